"""Printed policies, evaluated as the clouds do, grant what the table grants: on every key that Limpet can make."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet.app import place as places
from limpet.app.catalogs import lead, storage_of
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Invalid
from limpet.kernel.keys import IndexKeys, Key, QueueKeys, cell_key, check_prefix, clock_key, lock_key
from limpet.kernel.runtime import system
from limpet.kernel.store import Always, MemoryStore, ScopedStore, Version, When
from limpet.kernel.store.policies import Scope, aws_policy, gcp_policy, notes, root_of, scope_of
from limpet.kernel.store.roles import NARROWED, ROLES, TABLE, Role, Verb, allows, check_queues, patterns
from support.roles import OBJECT_VERBS, OTHERS, Shape, examples, folders_of, shapes

SCOPES = [Scope("acme", "prod/t/w"), Scope("acme")]
NARROW = check_queues("worker", ["x", "pending", "a b", "parts"])
FOLDERS = ["completed", "inbox", "packs", "parts", "pending", "quarantine", "scheduled", "shards", "slots", "user"]
FILES = ["bell.json", "control.json", "manifest.json", "sweep.json", "x.lock", "datapackage.json"]

every_role = pytest.mark.parametrize("role", ROLES)
EVERY: list[tuple[Role, Scope, tuple[str, ...]]] = [(role, scope, ()) for role in ROLES for scope in SCOPES]
EVERY += [(role, SCOPES[0], NARROW) for role in NARROWED]
thoroughly = settings(max_examples=150, deadline=None)


# ---- every key there can be ----

NAMES = st.sampled_from([*FOLDERS, *FILES, "a", "*", "a/b", "../x", "ü"]) | st.text(min_size=1, max_size=8).filter(
    lambda text: text.isprintable()
)
SHARDS = st.text("0123456789abcdef", min_size=2, max_size=4)
STAMPS = st.datetimes().map(lambda at: f"{at:%Y-%m-%dT%H:%M:%S.%f}Z")
IDS = st.text("0123456789abcdefghjkmnpqrstvwxyz", min_size=26, max_size=26)
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "batch": st.booleans(),
    "drop": NAMES.map(lambda name: QueueKeys.of(name).drop),
    "due": STAMPS,
    "entry": NAMES.map(lambda name: IndexKeys.of(name).root.partition("/")[2]),
    "id_": IDS,
    "key": NAMES,
    "n": st.integers(0, 999),
    "name": NAMES,
    "node": NAMES,
    "number": st.integers(0, 999),
    "run": IDS,
    "seq": st.integers(0, 10**9),
    "shard": SHARDS,
    "signal": NAMES,
    "slot": st.integers(0, 15),
    "stamp": STAMPS,
    "token": st.integers(1, 10**9),
}


def _keys_of(shape: Shape) -> st.SearchStrategy[Key]:
    arguments = {name: ARGUMENTS[name] for name in shape.needs}
    if shape.title.startswith("CatalogKeys"):
        arguments["name"] = st.sampled_from(["catalog", "executions"]) | NAMES
    return st.builds(shape.build, **arguments)


KEYS = st.one_of(*map(_keys_of, shapes())) | st.sampled_from(examples()) | st.sampled_from(OTHERS).map(Key)


# ---- AWS ----


def aws_allows(
    policy: dict[str, Any], action: str, resource: str, listed: str | None = None, *, header: str = ""
) -> bool:
    """Whether AWS lets a request pass: an Allow that matches, and no Deny that does. `header`: a put's condition."""
    effects = {
        statement["Effect"]
        for statement in policy["Statement"]
        if action in (statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]])
        and any(_like(pattern, resource) for pattern in statement["Resource"])
        and _holds(statement.get("Condition"), listed, header)
    }
    return effects == {"Allow"}


def _holds(condition: dict[str, Any] | None, listed: str | None, header: str) -> bool:
    if condition is None:
        return True
    if [*condition] == ["Null"]:
        assert {*condition["Null"].values()} == {"true"}
        return f"s3:{header}" not in condition["Null"]
    assert [*condition] == ["StringLike"]
    assert [*condition["StringLike"]] == ["s3:prefix"]
    return listed is not None and any(_like(pattern, listed) for pattern in condition["StringLike"]["s3:prefix"])


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    assert "${" not in glob
    return re.compile("".join({"*": ".*", "?": "."}.get(part, re.escape(part)) for part in glob), re.DOTALL)


def _like(glob: str, text: str) -> bool:
    return _pattern(glob).fullmatch(text) is not None


ACTIONS: dict[Verb, str] = {"get": "s3:GetObject", "put": "s3:PutObject", "delete": "s3:DeleteObject"}


@cache
def aws(role: Role, scope: Scope, roots: tuple[str, ...] = ()) -> dict[str, Any]:
    """The policy, made once."""
    return aws_policy(role, scope, roots)


def _compare_with_aws(key: Key) -> None:
    for role, scope, roots in EVERY:
        policy, bucket = aws(role, scope, roots), "arn:aws:s3:::acme"
        for verb in OBJECT_VERBS:
            granted = aws_allows(policy, ACTIONS[verb], f"{bucket}/{scope.below(key)}")
            assert granted is allows(role, verb, key, roots), (role, verb, key)
        for folder in folders_of([key]):
            listed = scope.below(f"{folder}/" if folder else "")
            granted = aws_allows(policy, "s3:ListBucket", bucket, listed or None)
            assert granted is allows(role, "list", folder, roots), (role, folder)


@pytest.mark.parametrize("key", examples())
def test_aws_agrees_with_the_table_on_a_key_of_each_shape(key: Key) -> None:
    _compare_with_aws(key)


@thoroughly
@given(key=KEYS)
def test_aws_agrees_with_the_table(key: Key) -> None:
    _compare_with_aws(key)


@thoroughly
@given(key=KEYS)
def test_aws_tells_that_an_object_is_missing_to_whoever_may_get_it(key: Key) -> None:
    """S3 answers 404 to whoever may list with the key as a prefix, else 403."""
    for role, scope, roots in EVERY:
        told = aws_allows(aws(role, scope, roots), "s3:ListBucket", "arn:aws:s3:::acme", scope.below(key))
        assert told is allows(role, "get", key, roots), (role, key)


@thoroughly
@given(key=KEYS, role=st.sampled_from(ROLES))
def test_aws_grants_nothing_elsewhere(role: Role, key: Key) -> None:
    policy = aws(role, SCOPES[0])
    for place in ("acme/prod/t/w2/", "acme/prod/t/", "acme/", "acme2/prod/t/w/", "acme/x/prod/t/w/"):
        for verb in OBJECT_VERBS:
            assert not aws_allows(policy, ACTIONS[verb], f"arn:aws:s3:::{place}{key}")
    for prefix in (None, "", "prod", "prod/", "prod/t/w", "prod/t/w2/", f"prod/t/w2/{key}"):
        assert not aws_allows(policy, "s3:ListBucket", "arn:aws:s3:::acme", prefix)


@every_role
def test_aws_policies_fit(role: Role) -> None:
    """A managed policy has at most 6,144 characters; here with the longest names that people use."""
    policy = aws_policy(role, Scope("b" * 63, "campaigns/acme-corporation/production/europe-west"), conditional=True)
    assert len(json.dumps(policy, separators=(",", ":"))) < 6_144
    sids = [statement["Sid"] for statement in policy["Statement"]]
    assert len({*sids}) == len(sids)
    assert all(re.fullmatch("[A-Za-z0-9]+", sid) for sid in sids)


def test_without_the_deny_a_compiler_could_write_records_called_packs() -> None:
    policy, key = aws_policy("compiler", SCOPES[0]), IndexKeys.of("a").single("5e", "packs", "2026", "1")
    resource = f"arn:aws:s3:::acme/{SCOPES[0].below(key)}"
    assert not aws_allows(policy, "s3:PutObject", resource)
    assert aws_allows(policy, "s3:DeleteObject", resource)
    policy["Statement"] = [each for each in policy["Statement"] if each["Effect"] == "Allow"]
    assert aws_allows(policy, "s3:PutObject", resource)


SWAPPED = [lock_key("x"), CatalogKeys.of("catalog").lock, CatalogKeys.of("catalog").head, cell_key("x")]
SWAPPED += [QueueKeys.of("x").slot(1), CatalogKeys.of("executions").sequence]


@pytest.mark.parametrize("roots", [(), check_queues("worker", ["x"])], ids=["all", "narrowed"])
def test_on_amazons_own_servers_locks_and_heads_are_never_put_without_a_condition(roots: tuple[str, ...]) -> None:
    writers: tuple[Role, ...] = ("worker",) if roots else ("api", "compactor", "worker")
    for role in writers:
        policy = aws_policy(role, SCOPES[0], roots, conditional=True)
        swapped = [key for key in SWAPPED if allows(role, "put", key, roots)]
        assert swapped
        for key in swapped:
            resource = f"arn:aws:s3:::acme/{SCOPES[0].below(key)}"
            assert not aws_allows(policy, "s3:PutObject", resource)
            assert aws_allows(policy, "s3:PutObject", resource, header="if-match")
            assert aws_allows(policy, "s3:PutObject", resource, header="if-none-match")
        plain = f"arn:aws:s3:::acme/{SCOPES[0].below(clock_key(0))}"
        assert role == "compactor" or aws_allows(policy, "s3:PutObject", plain)
    others: tuple[Role, ...] = ("reader", "tables", "pusher")
    for role in others:
        assert aws_policy(role, SCOPES[0], conditional=True) == aws_policy(role, SCOPES[0])


class _Recorder(MemoryStore):
    """Remembers what was put without a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: set[str] = set()
        self.swapped: set[str] = set()

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        (self.plain if isinstance(when, Always) else self.swapped).add(key)
        return super().put(key, data, when=when)


def test_limpet_itself_never_puts_those_without_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would stop on Amazon's servers, with the policies that it prints."""
    store = _Recorder()
    monkeypatch.setitem(places._named_memory, "conditions", store)
    fleet = limpet.open("memory://conditions", events=True)
    with fleet.lock("x").hold() as lease:
        fleet.cell("x").write({"a": 1}, lease=lease)
        fleet.cell("x").update(lambda value: value)
    queue = fleet.queue("x", concurrency=1)
    queue.push({})
    claim = queue.claim()
    assert claim
    with claim:
        for task in claim:
            task.done()
    with lead(storage_of(fleet.store, system()), fleet.url) as catalog:
        catalog.create_namespace(("ns",), {})
    guarded = ("cells/", "locks/", "manifests/", "queues/x/slots/", "sequence/")
    assert {key.partition("/")[0] for key in store.swapped} >= {"cells", "locks", "manifests", "queues"}
    assert [key for key in store.plain if key.startswith(guarded)] == []


# ---- Google Cloud ----


class Text(str):
    """A string of Google's condition language."""

    def startsWith(self, text: str) -> bool:  # noqa: N802
        """As it says."""
        return self.startswith(text)

    def endsWith(self, text: str) -> bool:  # noqa: N802
        """As it says."""
        return self.endswith(text)

    def extract(self, template: str) -> str:
        """What lies between the first place of what is before the braces, and the next of what is behind them."""
        before, name, after = re.fullmatch(r"([^{}]*)\{([a-z]+)\}([^{}]*)", template, re.DOTALL).groups()  # type: ignore[union-attr]
        assert name
        start = self.find(before)
        if start < 0:
            return ""
        start += len(before)
        stop = self.find(after, start) if after else len(self)
        return self[start:stop] if stop >= 0 else ""


class Named:
    """What an expression calls `resource` and `api`."""

    def __init__(self, name: str, listed: str) -> None:
        self.name = Text(name)
        self._listed = Text(listed)

    def getAttribute(self, name: str, default: str) -> Text:  # noqa: N802
        """The prefix of a listing."""
        assert name == "storage.googleapis.com/objectListPrefix"
        assert default == ""
        return self._listed


@cache
def _compiled(expression: str) -> Any:
    python = expression.replace("&&", " and ").replace("||", " or ").replace(" !resource", " not resource")
    return compile(python, "condition", "eval")


def gcp_allows(policy: dict[str, Any], permission: str, name: str, listed: str = "") -> bool:
    """Whether one of the bindings grants the permission on the resource."""
    request = Named(name, listed)
    return any(
        eval(_compiled(binding["condition"]["expression"]), {"__builtins__": {}}, {"resource": request, "api": request})
        for binding in policy["policy"]["bindings"]
        if permission in policy["roles"][binding["role"].rsplit("/", 1)[1]]["includedPermissions"]
    )


@cache
def gcp(role: Role, scope: Scope, roots: tuple[str, ...] = ()) -> dict[str, Any]:
    """A policy for somebody."""
    return gcp_policy(role, scope, roots, project="p", member="serviceAccount:x@p.iam.gserviceaccount.com")


def _compare_with_gcp(key: Key) -> None:
    """But delete, which comes with put."""
    bucket = "projects/_/buckets/acme"
    for role, scope, roots in EVERY:
        policy, name = gcp(role, scope, roots), f"{bucket}/objects/{scope.below(key)}"
        puts = allows(role, "put", key, roots)
        wanted = {
            "get": allows(role, "get", key, roots),
            "list": allows(role, "get", key, roots),  # then what is missing is 404, else 403
            "create": puts,
            "delete": puts or allows(role, "delete", key, roots),
        }
        for permission, granted in wanted.items():
            assert gcp_allows(policy, f"storage.objects.{permission}", name) is granted, (role, permission, key)
        for folder in folders_of([key]):
            listed = scope.below(f"{folder}/" if folder else "")
            granted = gcp_allows(policy, "storage.objects.list", bucket, listed)
            assert granted is allows(role, "list", folder, roots), (role, folder)


@pytest.mark.parametrize("key", examples())
def test_gcp_agrees_with_the_table_on_a_key_of_each_shape(key: Key) -> None:
    _compare_with_gcp(key)


@thoroughly
@given(key=KEYS)
def test_gcp_agrees_with_the_table(key: Key) -> None:
    _compare_with_gcp(key)


@thoroughly
@given(key=KEYS, role=st.sampled_from(ROLES))
def test_gcp_grants_nothing_elsewhere(role: Role, key: Key) -> None:
    policy = gcp(role, SCOPES[0])
    for place in ("acme/objects/prod/t/w2/", "acme/objects/", "acme2/objects/prod/t/w/", "acme/objects/x/prod/t/w/"):
        for permission in ("get", "list", "create", "delete"):
            assert not gcp_allows(policy, f"storage.objects.{permission}", f"projects/_/buckets/{place}{key}")
    hidden = f"projects/_/buckets/acme/objects/x/projects/_/buckets/acme/objects/prod/t/w/{key}"
    assert not gcp_allows(policy, "storage.objects.create", hidden)
    for prefix in ("", "prod", "prod/", "prod/t/w", "prod/t/w2/"):
        assert not gcp_allows(policy, "storage.objects.list", "projects/_/buckets/acme", prefix)


@pytest.mark.parametrize(
    "key", ["queues/x", "queues/x/y/pending/z", "queues//pending/z", "queues/pending/z", "queues/x/pending"]
)
def test_a_star_is_one_folder_for_gcp(key: str) -> None:
    assert not gcp_allows(gcp("worker", Scope("b")), "storage.objects.create", f"projects/_/buckets/b/objects/{key}")


@every_role
def test_gcp_policies_fit(role: Role) -> None:
    """At most 12 logical operators in a condition, and 20 conditions for one role and member; titles of 100 bytes."""
    bindings = gcp(role, SCOPES[0])["policy"]["bindings"]
    titles = [binding["condition"]["title"] for binding in bindings]
    assert len({*titles}) == len(titles) <= 20
    for binding in bindings:
        assert len(re.findall(r"&&|\|\|", binding["condition"]["expression"])) <= 12
        assert len(binding["condition"]["title"]) <= 100


# ---- places and words ----


def test_a_scope_from_a_url() -> None:
    assert scope_of("s3://acme/prod/?endpoint=http://127.0.0.1:1", "aws") == Scope("acme", "prod")
    assert scope_of("gs://acme", "gcp") == Scope("acme")
    assert Scope("acme", "prod").at(root_of("a b", "w")) == Scope("acme", "prod/a%20b/w")
    assert Scope("acme").at(root_of(None, "")) == Scope("acme")
    for url in ("gs://acme", "az://acme", "./fleet", "s3://"):
        with pytest.raises(Invalid):
            scope_of(url, "aws")


@pytest.mark.parametrize("given", [("a", None), (None, "b"), ("", "b")])
def test_a_tenant_and_a_workspace_go_together(given: tuple[str | None, str | None]) -> None:
    with pytest.raises(Invalid, match="go together"):
        root_of(*given)


@pytest.mark.parametrize("name", ["*", "a?b", "${aws:username}", 'x") || ("', "{name}", "a'b", "a\\b"])
def test_what_means_something_in_a_policy_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        Scope("acme", name)
    with pytest.raises(Invalid):
        Scope(name)
    assert Scope("acme").at(root_of(name, "w")).prefix.endswith("/w"), "a tenant's name is encoded"


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_bucket_is_a_name(name: str) -> None:
    with pytest.raises(Invalid):
        Scope(name)


def test_a_workspace_is_a_prefix() -> None:
    root = root_of("acme corp", "prod")
    assert check_prefix(root) == root
    ScopedStore(MemoryStore(), root, "api").put(Key("locks/catalog.lock"), b"")


def test_what_a_policy_grants_beyond_the_table_is_said() -> None:
    assert notes("aws", "api") == notes("gcp", "reader") == []
    [said] = notes("gcp", "compactor")
    assert said.endswith("can also delete: manifests/")
    [said] = notes("aws", "worker")
    assert "* match /" in said


def test_patterns_are_the_fewest() -> None:
    assert patterns("worker", "get") == (
        "cells/", "clock/", "indexes/", "ledger/executions/", "limpet.json", "locks/user/", "probe/", "queues/",
        "sequence/executions.json", "sync/", "workers/",
    )  # fmt: skip
    assert patterns("reader", "get") == ("",)
    assert patterns("reader", "put") == ()
    assert patterns("compiler", "delete", besides=patterns("compiler", "put")) == ("indexes/*/inbox/",)


# ---- the table, by the design ----


def test_the_catalogs_roles_delete_only_where_they_write() -> None:
    for role in ("api", "compactor"):
        assert {*patterns(role, "delete")} <= {*patterns(role, "put")}


def test_the_compactor_reads_the_ledger_and_the_locks_and_lists_neither() -> None:
    for pattern in ("ledger/", "locks/"):
        assert TABLE["compactor"][pattern] == {"get"}


def test_the_api_and_the_compactor_write_apart() -> None:
    shared = {*patterns("api", "put")} & {*patterns("compactor", "put")}
    assert shared == {"probe/"}

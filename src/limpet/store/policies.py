"""Cloud policies from the table of roles: what `limpet iam` prints.

A policy grants what the table grants, on every key that Limpet can make (a test evaluates them side by side). Two
things a cloud's language cannot say:

- AWS: `*` also matches `/`. So `indexes/*/packs/*` reaches `indexes/a/inbox/5e/packs/x`, a record with the key
  `packs`; where the role may not write there, a Deny takes it out again. What remains are keys that Limpet never makes.
- Google Cloud: to write over an object is to delete it, so `put` brings `storage.objects.delete` with it.

Both hide whether an object is missing from whoever may not list it, with 403 for 404. Every protocol here must tell the
two apart, so `get` lets a key be listed by its full name; that shows nothing which a get would not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from limpet.errors import Invalid
from limpet.keys import check_prefix, join, segment
from limpet.store.credentials import locate
from limpet.store.roles import TABLE, Role, Verb, patterns

__all__ = ["PROVIDERS", "Provider", "Scope", "aws_policy", "gcp_policy", "notes", "root_of", "scope_of"]

Provider = Literal["aws", "gcp"]
Json = dict[str, Any]

PROVIDERS: tuple[Provider, ...] = get_args(Provider)

_SCHEMES: dict[Provider, str] = {"aws": "s3", "gcp": "gs"}
_UNSAFE = frozenset("*?${}\"'\\")  # wildcards, policy variables, templates, and what ends a string

_ACTIONS: dict[Verb, str] = {"get": "s3:GetObject", "put": "s3:PutObject", "delete": "s3:DeleteObject"}
_NAMED_BY_USERS = ("indexes/*/inbox/", "queues/*/parts/", "queues/*/pending/")  # with a user's name as a folder

_GCP_ROLES: dict[str, Json] = {
    "limpetRead": {
        "title": "Limpet: read",
        "description": "Get objects, list them, and be told that one is missing.",
        "stage": "GA",
        "includedPermissions": ["storage.objects.get", "storage.objects.list"],
    },
    "limpetWrite": {
        "title": "Limpet: write",
        "description": "Create objects and write over them, which is to delete them too.",
        "stage": "GA",
        "includedPermissions": ["storage.objects.create", "storage.objects.delete"],
    },
    "limpetDelete": {
        "title": "Limpet: delete",
        "description": "Delete objects.",
        "stage": "GA",
        "includedPermissions": ["storage.objects.delete"],
    },
}
_OPERATORS_MAX = 12  # logical operators in one condition
_LISTED = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'


@dataclass(frozen=True, slots=True)
class Scope:
    """What a key is good for: a bucket, or a prefix of it without slashes at its ends."""

    bucket: str
    prefix: str = ""

    def __post_init__(self) -> None:
        for text in (self.bucket, self.prefix):
            if _UNSAFE & {*text}:
                raise Invalid(
                    f"{text!r} has characters that mean something in a policy", hint="choose a name without *?${}\"'"
                )
        if not self.bucket or "/" in self.bucket:
            raise Invalid(f"{self.bucket!r} is no bucket's name", hint="give the bucket alone; --prefix is apart")
        check_prefix(self.prefix)

    def at(self, root: str) -> Scope:
        """The scope of `root` below this one (see `root_of`)."""
        return Scope(self.bucket, join(self.prefix, root) if root else self.prefix)

    def below(self, pattern: str) -> str:
        """The keys of `pattern` as they are in the bucket; a folder ends in `/`."""
        return join(self.prefix, pattern)


def scope_of(url: str, provider: Provider) -> Scope:
    """Where the fleet at `url` lies.   Raises: Invalid, also for a bucket of another cloud."""
    place = locate(url, environ={})
    if place.scheme != _SCHEMES[provider]:
        raise Invalid(f"{url} is no bucket of {provider}", hint=f"give {_SCHEMES[provider]}://bucket/prefix")
    return Scope(place.bucket, place.prefix)


def root_of(tenant: str | None, workspace: str | None) -> str:
    """The prefix of a tenant's workspace below the fleet's URL; empty if neither is given.

    Raises: Invalid for one without the other.
    """
    if not tenant and not workspace:
        return ""
    if not tenant or not workspace:
        raise Invalid("a tenant and a workspace go together", hint="give both, or neither")
    return f"{segment(tenant)}/{segment(workspace)}"


def notes(provider: Provider, role: Role) -> list[str]:
    """What the printed policy grants beyond the table, in a sentence each."""
    if provider == "gcp":
        over = [pattern for pattern in patterns(role, "put") if pattern not in patterns(role, "delete")]
        said = f"on Google Cloud a write over an object deletes it, so this key can also delete: {', '.join(over)}"
        return [said] if over else []
    if not any("*" in pattern for verb in _ACTIONS for pattern in patterns(role, verb)):
        return []
    return ["AWS lets * match /, so this key also reaches deeper keys of the same form, which Limpet never makes"]


# ---- AWS ----


def aws_policy(role: Role, scope: Scope) -> Json:
    """An IAM policy for one role: for `aws iam put-role-policy`, and any server that takes AWS's policies."""
    statements = [
        _statement("Allow", verb, [_arn(scope, pattern) for pattern in found])
        for verb in _ACTIONS
        if (found := patterns(role, verb))
    ]
    statements.append(_listing(role, scope))
    for verb in _ACTIONS:
        if kept_out := [pattern for pattern in _NAMED_BY_USERS if _reached(role, verb, pattern)]:
            statements.append(_statement("Deny", verb, [_arn(scope, pattern) for pattern in kept_out]))
    return {"Version": "2012-10-17", "Statement": statements}


def _statement(effect: str, verb: Verb, resources: list[str]) -> Json:
    return {"Sid": f"{effect}{verb.title()}", "Effect": effect, "Action": _ACTIONS[verb], "Resource": resources}


def _arn(scope: Scope, pattern: str) -> str:
    return f"arn:aws:s3:::{scope.bucket}/{_glob(scope, pattern)}"


def _glob(scope: Scope, pattern: str) -> str:
    below = scope.below(pattern)
    return below if pattern and not pattern.endswith("/") else f"{below}*"


def _listing(role: Role, scope: Scope) -> Json:
    """S3 asks for this right with the prefix of a listing, and with the whole key of an object that is missing."""
    statement: Json = {
        "Sid": "AllowList",
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": [f"arn:aws:s3:::{scope.bucket}"],
    }
    prefixes = [*_prefixes(role, scope)]
    if "*" not in prefixes:  # of the whole bucket, a listing may come without a prefix
        statement["Condition"] = {"StringLike": {"s3:prefix": prefixes}}
    return statement


def _prefixes(role: Role, scope: Scope) -> Iterator[str]:
    listed = patterns(role, "list")
    yield from (_glob(scope, pattern) for pattern in listed)
    for pattern in patterns(role, "get", besides=listed):
        named = "*.lock" if pattern.startswith("locks/") else "*.json"  # an object, and no folder
        yield scope.below(f"{pattern}{named}" if pattern.endswith("/") else pattern)


def _reached(role: Role, verb: Verb, pattern: str) -> bool:
    """Whether AWS would let the role do `verb` somewhere in `pattern`, against the table."""
    head = pattern.partition("*")[0]
    granted = patterns(role, verb)
    return (
        pattern in TABLE[role]
        and verb not in TABLE[role][pattern]
        and head not in granted
        and any(each.startswith(f"{head}*") for each in granted)
    )


# ---- Google Cloud ----


def gcp_policy(role: Role, scope: Scope, *, project: str, member: str) -> Json:
    """Custom roles for the project, and bindings of them for the bucket's policy (version 3)."""
    reads = [_named(scope, pattern) for pattern in patterns(role, "get")]
    reads += [_listed(scope, pattern) for pattern in patterns(role, "list")]
    writes = patterns(role, "put")
    deletes = patterns(role, "delete", besides=writes)
    wanted = {
        "limpetRead": reads,
        "limpetWrite": [_named(scope, pattern) for pattern in writes],
        "limpetDelete": [_named(scope, pattern) for pattern in deletes],
    }
    bindings = [
        {
            "role": f"projects/{project}/roles/{name}",
            "members": [member],
            "condition": {"title": f"limpet {role} {name.removeprefix('limpet').lower()} {n}", "expression": condition},
        }
        for name, terms in wanted.items()
        for n, condition in enumerate(_conditions(terms), 1)
    ]
    used = {name: definition for name, definition in _GCP_ROLES.items() if wanted[name]}
    return {"roles": used, "policy": {"version": 3, "bindings": bindings}}


def _named(scope: Scope, pattern: str) -> str:
    """Whether the object is one of `pattern`. There are no wildcards: the first folder is cut out and compared."""
    place = f"projects/_/buckets/{scope.bucket}/objects/"
    head, star, tail = (place + scope.below(pattern)).partition("*")
    if not star:
        return f'resource.name.startsWith("{head}")' if head.endswith("/") else f'resource.name == "{head}"'
    cut = f'resource.name.extract("{head}{{name}}{tail}")'
    first = f'resource.name.extract("{head}{{name}}/")'
    parts = [f'resource.name.startsWith("{head}")', f'{cut} != ""', f"{cut} == {first}"]
    if not tail.endswith("/"):
        parts.append(f'resource.name.endsWith("{tail}")')
    return f"({' && '.join(parts)})"


def _listed(scope: Scope, pattern: str) -> str:
    return f'{_LISTED}.startsWith("{scope.below(pattern)}")'


def _conditions(terms: Sequence[str]) -> Iterator[str]:
    """The terms, any of which will do, in as few conditions as Google's limit allows."""
    taken: list[str] = []
    for term in terms:
        if taken and " || ".join([*taken, term]).count("&&") + len(taken) > _OPERATORS_MAX:
            yield " || ".join(taken)
            taken = []
        taken.append(term)
    if taken:
        yield " || ".join(taken)

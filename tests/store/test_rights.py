"""`limpet doctor --role`: a key with exactly the rights of its role passes, any other fails, and nothing is written."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from cli.harness import Here
from limpet.kernel.errors import Conflict, Unsupported
from limpet.kernel.keys import FLEET, Key
from limpet.kernel.rights import OUTSIDE, RightsReport, examine_rights
from limpet.kernel.store import Always, MemoryStore, ScopedStore, Store, Version, When
from limpet.kernel.store.cloud import CloudStore
from limpet.kernel.store.roles import NARROWED, ROLES, Role, check_queues
from support.roles import examples, key_for
from support.servers.process import Bucket

every_role = pytest.mark.parametrize("role", ROLES)


def everything(store: Store) -> dict[Key, tuple[Version, bytes]]:
    """All that is there."""
    stats = [*store.list()]
    return {stat.key: (stat.version, store.get(stat.key).data) for stat in stats}


def seeded() -> MemoryStore:
    """A store with an object for every key that Limpet makes."""
    store = MemoryStore()
    for key in examples():
        store.put(key, b"{}")
    return store


def wrong(report: RightsReport) -> set[tuple[str, str, bool]]:
    """What is not as the role wants it: where, the verb, and whether it is missing."""
    return {(check.where, check.verb, check.must) for check in report.checks if not check.ok}


@every_role
def test_a_key_of_each_role_passes_as_that_role_and_as_no_other(role: Role) -> None:
    store = seeded()
    before = everything(store)
    key = ScopedStore(store, role=role)
    assert wrong(examine_rights(key, role)) == set()
    for other in ROLES:
        assert examine_rights(key, other).ok is (other == role), other
    assert everything(store) == before


@pytest.mark.parametrize("role", NARROWED)
def test_a_narrowed_key(role: Role) -> None:
    store = seeded()
    before = everything(store)
    roots = check_queues(role, ["x", "a b"])
    key = ScopedStore(store, role=role, queues=["x", "a b"])
    assert wrong(examine_rights(key, role, roots=roots)) == set()
    assert any(missing for *_, missing in wrong(examine_rights(key, role))), "the whole role is more"
    assert {missing for *_, missing in wrong(examine_rights(ScopedStore(store, role=role), role, roots=roots))} == {
        False
    }
    assert everything(store) == before


def test_a_key_to_everything_is_too_much_and_touches_nothing() -> None:
    store = seeded()
    before = everything(store)
    report = examine_rights(store, "api", outside=store)
    found = wrong(report)
    assert ("manifests/", "put", False) in found
    assert ("locks/catalog.lock", "put", True) not in found
    assert {(OUTSIDE, verb, False) for verb in ("get", "put", "list", "delete")} <= found
    assert not any(missing for *_, missing in found)
    assert everything(store) == before
    named = {check.where: check.may for check in report.checks if check.verb == "delete"}
    assert named[FLEET] is None, "what may exist is never deleted"


def test_a_store_that_ignores_conditions_is_refused_before_a_real_object_is_put() -> None:
    class Careless(MemoryStore):
        def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
            return super().put(key, data)

    store = Careless()
    for key in examples():
        store.put(key, b"{}")
    before = everything(store)
    with pytest.raises(Unsupported, match="condition"):
        examine_rights(store, "worker")
    assert everything(store) == before


def test_on_google_cloud_a_right_to_put_may_be_one_to_delete() -> None:
    class Generations(MemoryStore):
        def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
            if when != Always():
                assert int(getattr(when, "version", "")) == 1, "a generation"
                raise Conflict("it is no longer that version")
            return super().put(key, data)

    key = ScopedStore(Generations(), role="api")
    assert wrong(examine_rights(key, "api", by_generation=True)) == set()


@every_role
def test_on_a_server_that_enforces_policies(
    seaweedfs: Bucket, role: Role, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"rights-{uuid4().hex}"
    owner = CloudStore(seaweedfs.at(prefix), options=seaweedfs.options)
    for name in (FLEET, Key("locks/catalog.lock"), Key("queues/x/bell.json")):
        owner.put(name, b"{}")
    before = everything(owner)
    key = key_for(seaweedfs, role, prefix)
    for variable, value in key.env.items():
        monkeypatch.setenv(variable, value)
    done = here("doctor", key.url, "--role", role, "--json")
    assert [check for check in json.loads(done.out)["checks"] if check["may"] not in (None, check["must"])] == []
    assert done.code == 0
    other: Role = "reader" if role != "reader" else "pusher"
    done = here("doctor", key.url, "--role", other)
    assert done.code == 1
    assert "FAIL" in done.out
    assert everything(owner) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("./fleet", "--role", "api"), "is not a bucket"),
        (("s3://b", "--role", "boss"), "no role 'boss'"),
        (("s3://b", "--role", "api", "--queue", "x"), "cannot be narrowed"),
        (("s3://b", "--queue", "x"), "none was given"),
    ],
)
def test_what_cannot_be_examined(here: Here, arguments: tuple[str, ...], said: str) -> None:
    done = here("doctor", *arguments)
    assert done.code == 2
    assert said in done.err

"""Each role's key is enough for what it does with an index, and no more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from limpet.index import Index, decide
from limpet.index.types import typed
from limpet.index.writer import stamps_of
from limpet.kernel.errors import Denied
from limpet.kernel.keys import IndexKeys
from limpet.kernel.lease import VersionWatch
from limpet.kernel.store import MemoryStore, ScopedStore
from support.clock import ManualRuntime, Time
from support.index import NAME, Rec, keys_in, objects

KEYS = keys_in("3a", 6)


class Place:
    """A bucket with an index, and keys to it."""

    def __init__(self) -> None:
        self.time = Time()
        self.bucket = MemoryStore(ManualRuntime(self.time, "store"))
        self.owner = self.index(None)
        self.owner.put_many(Rec(key, "one") for key in KEYS[:3])

    def index(self, role: str | None, name: str = NAME) -> Index[Rec]:
        """A handle with the rights of a role."""
        runtime = ManualRuntime(self.time, role or "owner")
        store = ScopedStore(self.bucket, role=role, runtime=runtime)
        stamps = stamps_of(store, runtime, "here")
        return Index(store, name, runtime, typed(Rec, "key"), stamps, VersionWatch(runtime))

    def state(self) -> list[tuple[str, str]]:
        """All objects but the clock's, and their versions."""
        return [(stat.key, stat.version) for stat in self.bucket.list() if not stat.key.startswith("clock/")]


def reads(index: Index[Rec]) -> None:
    """Every way of reading."""
    assert index.get(KEYS[0]) is not None
    assert index.get_many(KEYS)
    assert [*index.scan()]


def test_a_worker_writes_and_reads() -> None:
    place = Place()
    index = place.index("worker")
    reads(index)
    index.put(Rec(KEYS[3], "single"))
    index.put_many([Rec(KEYS[4], "pack"), Rec(KEYS[5], "pack")])
    index.delete(KEYS[0])
    assert {record.key for record in index.scan()} == {*KEYS[1:]}
    place.owner.compile(full=True)
    assert {record.key for record in index.scan()} == {*KEYS[1:]}
    assert index.get(KEYS[0]) is None


def test_a_worker_does_not_compile_create_or_evolve() -> None:
    place = Place()
    index = place.index("worker")
    index.put(Rec(KEYS[3]))
    before = place.state()
    for act in (lambda: index.compile(full=True), lambda: place.index("worker", "new").put(Rec("a"))):
        with pytest.raises(Denied):
            act()
    assert place.state() == before


def test_a_compiler_folds_packs_and_quarantines(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    index = place.index("compiler")
    assert index.compile().folded == 1
    reads(index)
    monkeypatch.setattr(decide, "FOLD_BELOW_BYTES", 0)
    monkeypatch.setattr(decide, "FOLD_SHARE", 100.0)
    monkeypatch.setattr(decide, "PACK_SINGLES", 1)
    place.owner.put(Rec(KEYS[3]))
    place.bucket.put(IndexKeys.of(NAME).pack("3a", "0" * 26), b"rubbish")
    place.bucket.put(IndexKeys.of(NAME).single("3a", "x", "2026-01-01T00:00:00.000000Z", "0" * 26), b"rubbish")
    report = index.compile()
    assert (report.packed, report.quarantined) == (1, 1)
    report = index.compile(full=True)
    assert (report.folded, report.quarantined) == (1, 1)
    assert len(objects(place.bucket, "quarantine")) == 2
    assert objects(place.bucket, "inbox") == objects(place.bucket, "packs") == []
    assert {record.key for record in index.scan()} == {*KEYS[:4]}


def test_a_compiler_puts_no_records_and_creates_nothing() -> None:
    place = Place()
    index = place.index("compiler")
    index.compile(full=True)
    before = place.state()
    acts: list[Callable[[], object]] = [lambda: index.put(Rec("a")), lambda: index.delete(KEYS[0])]
    for act in acts:
        with pytest.raises(Denied):
            act()
    assert place.state() == before


def test_a_reader_reads_and_changes_nothing() -> None:
    place = Place()
    place.owner.compile()
    place.owner.put(Rec(KEYS[3]))
    before = place.state()
    index = place.index("reader")
    reads(index)
    acts: list[Callable[[], object]] = [
        lambda: index.put(Rec("a")),
        lambda: index.put_many([Rec("a"), Rec("b")]),
        lambda: index.delete(KEYS[0]),
        lambda: index.compile(),
        lambda: index.compile(full=True),
        lambda: place.index("reader", "new").get("a"),
    ]
    for act in acts:
        with pytest.raises(Denied):
            act()
    assert place.state() == before
    reads(index)


@pytest.mark.parametrize("role", ["api", "compactor", "supervisor"])
def test_the_other_roles_have_no_business_here(role: str) -> None:
    place = Place()
    with pytest.raises(Denied):
        place.index(role).get(KEYS[0])

"""Any sequence of acts by several handles and processes leaves what a dict would hold."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import limpet
from limpet.index import Index, decide
from limpet.kernel.runtime import SystemRuntime
from support.index import NAME, Rec, at, keys_in, line_count, objects

KEYS = [*keys_in("3a", 5), *keys_in("77", 1)]
"""Most of them meet in one shard."""

PAST, NOW, FUTURE = range(3)
BEGAN = datetime.now(UTC).replace(microsecond=0)

Stamp = tuple[int, int, int]
"""Past, present or future; which moment, or the order of the acts; and how many steps behind it."""

given_stamps: st.SearchStrategy[Stamp | None] = st.one_of(
    st.none(), st.none(), st.tuples(st.sampled_from([PAST, FUTURE]), st.integers(1, 4), st.just(0))
)
texts = st.sampled_from([None, "a", "b", "line \n", "z" * 3000])
handles = st.integers(0, 2)
record = st.tuples(st.sampled_from(KEYS), texts, given_stamps)

acts = st.one_of(
    st.tuples(st.just("put"), handles, record),
    st.tuples(st.just("put"), handles, record),
    st.tuples(st.just("put_many"), handles, st.lists(record, min_size=1, max_size=8)),
    st.tuples(st.just("delete"), handles, st.sampled_from(KEYS)),
    st.tuples(st.just("get"), handles, st.sampled_from(KEYS)),
    st.tuples(st.just("get_many"), handles, st.sets(st.sampled_from(KEYS))),
    st.tuples(st.just("scan"), handles, st.none()),
    st.tuples(st.just("compile"), handles, st.booleans()),
    st.tuples(st.just("compile"), handles, st.booleans()),
    st.tuples(st.just("reopen"), handles, st.none()),
)


@dataclass
class World:
    """The index, and what it should hold. Handles 0 and 1 are one process's, 2 is another's."""

    url: str
    winners: dict[str, tuple[Stamp, bool, str]] = field(default_factory=dict)
    order: int = 0
    writers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runtimes = [SystemRuntime(), SystemRuntime()]
        self.indexes: list[Index[Rec]] = [self.open(n) for n in range(3)]

    def open(self, handle: int) -> Index[Rec]:
        """A new handle."""
        runtime = self.runtimes[handle // 2]
        return limpet.open(self.url, durability="os", runtime=runtime).index(NAME, Rec, key="key")

    def do(self, act: str, handle: int, what: Any) -> None:
        """Do one act, on both sides."""
        getattr(self, act)(handle, what)

    def put(self, handle: int, what: tuple[str, str | None, Stamp | None]) -> None:
        """A record, perhaps with a time of its own."""
        self._look(handle, [what[0]])
        self.indexes[handle].put(self._values(what))
        self._note(what)

    def put_many(self, handle: int, what: list[tuple[str, str | None, Stamp | None]]) -> None:
        """Some records; of one key the last counts."""
        self._look(handle, [each[0] for each in what])
        last = {each[0]: each for each in what}
        assert self.indexes[handle].put_many([self._values(each) for each in what]) == len(last)
        for each in last.values():
            self._note(each)

    def delete(self, handle: int, key: str) -> None:
        """A tombstone."""
        self._look(handle, [key])
        self.indexes[handle].delete(key)
        self._note((key, None, None), gone=True)

    def get(self, handle: int, key: str) -> None:
        """One record is as it should be."""
        assert self.indexes[handle].get(key) == self.wanted().get(key)

    def get_many(self, handle: int, keys: set[str]) -> None:
        """Some are."""
        wanted = self.wanted()
        assert self.indexes[handle].get_many(keys) == {key: wanted[key] for key in keys if key in wanted}

    def scan(self, handle: int, _: None) -> None:
        """All are."""
        found = [*self.indexes[handle].scan()]
        assert {record.key: record for record in found} == self.wanted()
        assert len(found) == len(self.wanted())

    def compile(self, handle: int, full: bool) -> None:
        """Nothing is to be seen of it."""
        report = self.indexes[handle].compile(full=full)
        assert (report.conflicts, report.held, report.quarantined) == (0, 0, 0)

    def reopen(self, handle: int, _: None) -> None:
        """The handle forgets what it knew; its process does not."""
        self.indexes[handle] = self.open(handle)

    def wanted(self) -> dict[str, Rec]:
        """The records that there are."""
        return {
            key: Rec(key, None if text == "\\N" else text) for key, (_, gone, text) in self.winners.items() if not gone
        }

    def _values(self, what: tuple[str, str | None, Stamp | None]) -> dict[str, Any]:
        key, text, stamp = what
        values: dict[str, Any] = {"key": key, "text": text}
        if stamp is not None:
            values["updated_at"] = at(stamp[1]) if stamp[0] == PAST else BEGAN + timedelta(hours=stamp[1])
        return values

    def _look(self, handle: int, keys: list[str]) -> None:
        """What another process put is only sure to be beaten by one that has seen it."""
        for key in {*keys}:
            if self.writers.get(key, handle // 2) != handle // 2:
                self.indexes[handle].get(key)
            self.writers[key] = handle // 2

    def _note(self, what: tuple[str, str | None, Stamp | None], *, gone: bool = False) -> None:
        key, text, stamp = what
        self.order += 1
        standing = self.winners.get(key)
        if stamp is None:
            # a put without a time beats all that its process has put or seen
            stamp = (NOW, self.order, 0)
            if standing and standing[0][0] == FUTURE:
                stamp = (FUTURE, standing[0][1], standing[0][2] + 1)
        new = (stamp, gone, "\\N" if text is None else text)
        if standing is None or new > standing:
            self.winners[key] = new


def run(url: str, steps: list[tuple[str, int, Any]]) -> None:
    """All the acts, and then whether all is as it should be, from every handle, before and after compiling."""
    world = World(url)
    for act, handle, what in steps:
        world.do(act, handle, what)
    world.scan(1, None)
    for handle in range(3):
        world.get_many(handle, {*KEYS})
    world.compile(0, True)
    store = limpet.open(url).store
    assert objects(store, "inbox") == objects(store, "packs") == []
    assert line_count(store) == len(world.winners), "each key once, tombstones too"
    world.scan(2, None)
    for handle in range(3):
        for key in KEYS:
            world.get(handle, key)


@pytest.fixture(autouse=True, scope="module")
def eager_packs() -> Iterator[None]:
    """Packs are made and rest although the index is small."""
    patch = pytest.MonkeyPatch()
    patch.setattr(decide, "FOLD_BELOW_BYTES", 0)
    patch.setattr(decide, "FOLD_SHARE", 0.9)
    patch.setattr(decide, "FOLD_PACKS", 4)
    patch.setattr(decide, "PACK_SINGLES", 2)
    yield
    patch.undo()


some = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


@settings(some, max_examples=100)
@given(st.lists(acts, max_size=40))
def test_in_memory(steps: list[tuple[str, int, Any]]) -> None:
    run(f"memory://model-{uuid4().hex}", steps)


@settings(some, max_examples=6)
@given(st.lists(acts, max_size=40))
def test_on_a_directory(steps: list[tuple[str, int, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(str(Path(folder) / "fleet"), steps)

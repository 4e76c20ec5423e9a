"""Whichever request fails, or is the last of its process: nothing acknowledged is lost, and no error is an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from limpet.index import Index, decide
from limpet.index.compiler import LOCK_TTL_S, CompileReport
from limpet.index.types import typed
from limpet.index.writer import stamps_of
from limpet.kernel.errors import Conflict, Corrupt, Denied, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.lease import VersionWatch
from limpet.kernel.store import Always, Blob, MemoryStore, MeteredStore, Stat, Version, When
from support.clock import ManualRuntime, Time
from support.index import NAME, Rec, at, keys_in, line_count, objects

T = TypeVar("T")

KEYS = keys_in("3a", 8)
ROOT = IndexKeys.of(NAME).root

_filled: dict[Key, Any] = {}


class Crash(BaseException):
    """The process ends here. No block of ours may catch it."""


class Network(MeteredStore):
    """A store whose n-th request meets something: before it arrives, or after, so that only its answer is lost."""

    def __init__(self, runtime: ManualRuntime, bucket: MemoryStore) -> None:
        super().__init__(bucket, runtime=runtime)
        self.log: list[str] = []
        self._at: int | None = None
        self._error: Callable[[], BaseException] = Crash
        self._arrives = False
        self._dead = False

    def fail(self, number: int, error: Callable[[], BaseException], *, arrives: bool = False) -> None:
        """The request of that number, counted from now, meets `error`."""
        self.log.clear()
        self._at, self._error, self._arrives, self._dead = number, error, arrives, False

    def fine(self) -> None:
        """From now on all is well."""
        self.log.clear()
        self._at, self._dead = None, False

    def _pass(self, what: str, act: Callable[[], T]) -> T:
        if self._dead:
            raise Crash
        self.log.append(what.replace(f"{ROOT}/", ""))
        if self._at is None or len(self.log) - 1 != self._at:
            return act()
        if self._arrives:
            act()
        error = self._error()
        self._dead = isinstance(error, Crash)
        raise error

    def get(self, key: Key, **options: Any) -> Blob:
        """See `Store.get`."""
        get = super().get
        return self._pass(f"get {key}", lambda: get(key, **options))

    def head(self, key: Key) -> Stat:
        """See `Store.head`."""
        head = super().head
        return self._pass(f"head {key}", lambda: head(key))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        put = super().put
        return self._pass(f"put {key}", lambda: put(key, data, when=when))

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        delete = super().delete
        self._pass(f"delete {key}", lambda: delete(key))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`."""
        listed = super().list
        return self._pass(f"list {prefix}", lambda: listed(prefix, after=after))

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """See `Store.list_dirs`."""
        list_dirs = super().list_dirs
        return self._pass(f"list_dirs {prefix}", lambda: list_dirs(prefix))


class Place:
    """One bucket with an index of which one shard has records compiled, packed and single, live and deleted."""

    def __init__(self) -> None:
        self.time = Time()
        self.bucket = MemoryStore(ManualRuntime(self.time, "store"))
        self._fill()
        self.time.sleep(10)  # two processes order what they put within a second or so
        self.wanted = {
            KEYS[0]: Rec(KEYS[0], "base"),
            KEYS[1]: Rec(KEYS[1], "pack"),
            KEYS[2]: Rec(KEYS[2], "single"),
            KEYS[4]: Rec(KEYS[4], "base"),
            KEYS[5]: Rec(KEYS[5], "pack"),
            KEYS[6]: Rec(KEYS[6], "single"),
        }

    def _fill(self) -> None:
        """The same each time, so it is done once."""
        if not _filled:
            index, _ = self.process("first")
            index.put_many(Rec(key, "base") for key in KEYS[:5])
            index.compile(full=True)
            index.put_many([Rec(KEYS[1], "pack"), Rec(KEYS[5], "pack")])
            index.put(Rec(KEYS[2], "single"))
            index.put(Rec(KEYS[6], "single"))
            index.delete(KEYS[3])
            _filled.update(self.bucket._objects)
        self.bucket._objects.update(_filled)
        self.bucket._written = len(_filled) * 10  # versions go on

    def process(self, owner: str) -> tuple[Index[Rec], Network]:
        """A handle in a process of its own, and its network."""
        runtime = ManualRuntime(self.time, owner)
        network = Network(runtime, self.bucket)
        stamps = stamps_of(network, runtime, "here")
        index: Index[Rec] = Index(network, NAME, runtime, typed(Rec, "key"), stamps, VersionWatch(runtime))
        assert index.manifest
        network.fine()
        return index, network

    def check(self) -> None:
        """A newcomer sees all there should be, by every way of reading."""
        index, _ = self.process("newcomer")
        assert {key: index.get(key) for key in KEYS} == {key: self.wanted.get(key) for key in KEYS}
        assert index.get_many(KEYS) == self.wanted
        found = [*index.scan()]
        assert {record.key: record for record in found} == self.wanted
        assert len(found) == len(self.wanted)

    def settle(self) -> None:
        """Another compiler goes on, and all is compiled."""
        self.time.sleep(2 * LOCK_TTL_S)
        index, _ = self.process("next")
        index.compile(full=True)
        assert objects(self.bucket, "inbox") == objects(self.bucket, "packs") == []
        assert line_count(self.bucket) == len({*self.wanted, KEYS[3]}), "each key once, the tombstone too"
        self.check()


def failing(act: Callable[[Index[Rec]], object], **fault: Any) -> Iterator[tuple[Place, Index[Rec], Network, Any]]:
    """Do `act` again and again, each time in a new place with the next of its requests failing; what came of it."""
    for number in range(200):
        place = Place()
        index, network = place.process("mine")
        network.fail(number, **fault)
        outcome: Any
        try:
            outcome = act(index)
        except (LimpetError, Crash) as error:
            outcome = error
        if len(network.log) <= number:
            assert number > 2, "nothing was asked of the store"
            return
        yield place, index, network, outcome
    raise AssertionError("it does not come to an end")


def fold(index: Index[Rec]) -> CompileReport:
    """Everything into the shard."""
    return index.compile(full=True)


@pytest.fixture
def packs_rather(monkeypatch: pytest.MonkeyPatch) -> None:
    """Singles become packs although the index is small."""
    monkeypatch.setattr(decide, "FOLD_BELOW_BYTES", 0)
    monkeypatch.setattr(decide, "FOLD_SHARE", 100.0)
    monkeypatch.setattr(decide, "PACK_SINGLES", 1)


# ---- a read error is an error ----


@pytest.mark.parametrize("error", [Unavailable, Denied, OutcomeUnknown])
@pytest.mark.parametrize(
    "read",
    [
        lambda index: index.get(KEYS[0]),
        lambda index: index.get(KEYS[1]),
        lambda index: index.get(KEYS[2]),
        lambda index: index.get(KEYS[7]),
        lambda index: index.get_many(KEYS),
        lambda index: [*index.scan()],
    ],
    ids=["compiled", "packed", "single", "never put", "many", "scan"],
)
def test_no_failed_read_is_an_empty_answer(
    read: Callable[[Index[Rec]], object], error: type[LimpetError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F23. A scan of the shard that matters is enough."""
    monkeypatch.setattr("limpet.index.reader.shard_ids", lambda depth: ["3a"])
    for _, _, network, outcome in failing(read, error=lambda: error("no")):
        assert type(outcome) is error, network.log


# ---- compiling ----


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize(
    "error", [Crash, lambda: Unavailable("no"), lambda: OutcomeUnknown("no"), lambda: Denied("no")]
)
def test_whichever_request_of_a_fold_fails_nothing_is_lost(error: Callable[[], BaseException], arrives: bool) -> None:
    for place, index, network, outcome in failing(fold, error=error, arrives=arrives):
        network.fine()
        place.check()
        if not isinstance(outcome, Crash):
            index.put(Rec(KEYS[7], "goes on"))
            place.wanted[KEYS[7]] = Rec(KEYS[7], "goes on")
            place.check()
        place.settle()


@pytest.mark.usefixtures("packs_rather")
@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("error", [Crash, lambda: Unavailable("no"), lambda: OutcomeUnknown("no")])
def test_whichever_request_of_packing_fails_nothing_is_lost(error: Callable[[], BaseException], arrives: bool) -> None:
    packed = False
    for place, _, network, _ in failing(lambda index: index.compile(), error=error, arrives=arrives):
        packed |= any(line.startswith("put packs") for line in network.log)
        network.fine()
        place.check()
        place.settle()
    assert packed


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize(
    "write",
    [
        lambda index: index.put(Rec(KEYS[0], "new")),
        lambda index: index.put_many([Rec(KEYS[0], "new"), Rec(KEYS[1], "new")]),
        lambda index: index.delete(KEYS[0]),
    ],
    ids=["put", "put_many", "delete"],
)
def test_a_write_that_failed_is_there_whole_or_not_at_all(write: Callable[[Index[Rec]], object], arrives: bool) -> None:
    for number in range(4):
        place = Place()
        index, network = place.process("mine")
        network.fail(number, Crash, arrives=arrives)
        try:
            write(index)
        except Crash:
            pass
        else:
            assert len(network.log) <= number
            return
        reader, _ = place.process("reader")
        found = reader.get_many(KEYS[:2])
        before = {key: place.wanted[key] for key in KEYS[:2]}
        landed = arrives and network.log[-1].startswith(("put inbox", "put packs"))
        assert (found == before) != landed
        if not landed:
            place.check()
    raise AssertionError("it does not come to an end")


def test_a_lost_answer_of_a_put_is_sent_again_and_counts_once() -> None:
    place = Place()
    index, network = place.process("mine")
    index.put(Rec(KEYS[7]))
    place.wanted[KEYS[7]] = Rec(KEYS[7], "again")
    before = len(objects(place.bucket, "inbox"))
    network.fail(0, lambda: OutcomeUnknown("no answer"), arrives=True)
    index.put(Rec(KEYS[7], "again"))
    assert len(network.log) == 2
    assert len(objects(place.bucket, "inbox")) == before + 1, "the same name"
    place.check()


# ---- the order of things ----


def test_a_fold_reads_what_waits_then_the_shard_then_swaps_then_records_then_deletes() -> None:
    place = Place()
    index, network = place.process("mine")
    fold(index)
    verbs = [
        " ".join((line.split()[0], line.split()[1].split("/")[0] + ("/lock" if line.endswith(".lock") else "")))
        for line in network.log
    ]
    order = list(dict.fromkeys(verb for verb in verbs if verb != "get manifest.json" or verb is verbs[0]))
    assert order[:5] == ["get manifest.json", "list_dirs inbox", "list_dirs packs", "list inbox", "list packs"]
    assert order[5:9] == ["get shards/lock", "put shards/lock", "get inbox", "get packs"]
    assert order[9:11] == ["get shards", "put shards"]
    assert order[11:14] == ["put manifest.json", "delete inbox", "delete packs"], "what goes is in a recorded fold"


@pytest.mark.usefixtures("packs_rather")
def test_a_pack_is_durable_before_its_singles_go_and_packs_are_never_packed() -> None:
    place = Place()
    index, network = place.process("mine")
    pack = objects(place.bucket, "packs")
    assert index.compile().packed == 1
    first_delete = next(n for n, line in enumerate(network.log) if line.startswith("delete"))
    assert any(line.startswith("put packs") for line in network.log[:first_delete])
    assert not any(line.startswith(("get packs", "delete packs", "get shards", "put shards")) for line in network.log)
    assert {*pack} < {*objects(place.bucket, "packs")}


@pytest.mark.parametrize("moment", ["get inbox", "get shards/3a.usv", "put shards/3a.usv", "delete"])
def test_only_what_was_read_is_deleted(moment: str) -> None:
    """F18: another put arrives after the listing, after the shard was read, or after the swap."""
    place = Place()
    index, network = place.process("mine")
    writer, _ = place.process("writer")

    def passing(what: str, act: Callable[[], Any]) -> Any:
        if "late" not in network.log and what.replace(f"{ROOT}/", "").startswith(moment):
            network.log.append("late")
            writer.put(Rec(KEYS[0], "late"))
            writer.put_many([Rec(KEYS[4], "late"), Rec(KEYS[5], "late")])
        return Network._pass(network, what, act)

    network._pass = passing  # type: ignore[method-assign]
    fold(index)
    assert "late" in network.log
    for key in (KEYS[0], KEYS[4], KEYS[5]):
        place.wanted[key] = Rec(key, "late")
    place.check()
    place.settle()


def test_of_two_compilers_that_read_the_same_one_swaps_and_the_other_leaves_everything() -> None:
    place = Place()
    mine, network = place.process("mine")
    other, _ = place.process("other")
    reports: list[CompileReport] = []

    def passing(what: str, act: Callable[[], Any]) -> Any:
        if what.endswith("put " + IndexKeys.of(NAME).shard("3a")) and not reports:
            reports.append(fold(other))
        return Network._pass(network, what, act)

    network._pass = passing  # type: ignore[method-assign]
    report = fold(mine)
    assert (report.folded, report.conflicts) == (0, 1)
    assert (reports[0].folded, reports[0].conflicts) == (1, 0)
    assert not any(line.startswith("delete") for line in network.log)
    place.check()
    place.settle()


def test_a_compiler_that_slept_for_a_day_over_its_swap_changes_nothing() -> None:
    """Others compiled, deleted and put since. What it read is gone, and its swap is refused."""
    place = Place()
    mine, network = place.process("mine")
    other, _ = place.process("other")

    def passing(what: str, act: Callable[[], Any]) -> Any:
        if what.startswith("put ") and what.endswith("/3a.usv") and "slept" not in network.log:
            network.log.append("slept")
            place.time.sleep(86_400)
            other.compile(full=True)
            other.delete(KEYS[0])
            other.put(Rec(KEYS[3], "back"))
            other.compile(full=True)
        return Network._pass(network, what, act)

    network._pass = passing  # type: ignore[method-assign]
    assert fold(mine).conflicts == 1
    del place.wanted[KEYS[0]]
    place.wanted[KEYS[3]] = Rec(KEYS[3], "back")
    place.check()
    index, _ = place.process("next")
    index.compile(full=True)
    place.check()


def test_the_lock_keeps_a_second_compiler_away_until_it_has_run_out() -> None:
    place = Place()
    mine, network = place.process("mine")
    network.fail(8, Crash)  # the lock is taken
    with pytest.raises(Crash):
        mine.compile()
    assert any(stat.key.endswith("3a.lock") for stat in place.bucket.list(f"{ROOT}/shards"))
    other, _ = place.process("other")
    assert other.compile().held == 1
    place.time.sleep(LOCK_TTL_S + 60)
    assert other.compile().folded == 1
    place.check()


# ---- compile never drops a tombstone, and nothing comes back ----


def test_tombstones_stay_and_an_older_record_that_comes_late_stays_deleted() -> None:
    place = Place()
    index, _ = place.process("mine")
    fold(index)
    index.put({"key": KEYS[3], "text": "older, and late", "updated_at": at(0)})
    place.check()
    fold(index)
    place.check()
    assert line_count(place.bucket) == len(place.wanted) + 1


def test_what_cannot_be_deleted_is_merged_again_and_changes_nothing() -> None:
    place = Place()
    index, network = place.process("mine")

    def passing(what: str, act: Callable[[], Any]) -> Any:
        if what.startswith("delete"):
            raise Unavailable("slow down")
        return Network._pass(network, what, act)

    network._pass = passing  # type: ignore[method-assign]
    fold(index)
    waiting = objects(place.bucket, "inbox")
    assert waiting
    data = place.bucket.get(IndexKeys.of(NAME).shard("3a")).data
    fold(index)
    assert objects(place.bucket, "inbox") == waiting
    assert place.bucket.get(IndexKeys.of(NAME).shard("3a")).data == data
    place.check()
    place.settle()


def test_an_error_in_one_shard_does_not_keep_the_others_from_being_compiled() -> None:
    place = Place()
    index, _ = place.process("mine")
    other = keys_in("77", 1)[0]
    index.put(Rec(other))
    place.bucket.put(IndexKeys.of(NAME).shard("3a"), b"cut off")
    with pytest.raises(Corrupt, match=r"shards/3a\.usv"):
        fold(index)
    assert not any("/77/" in key for key in objects(place.bucket, "inbox"))
    assert index.get(other) == Rec(other)


def test_a_shard_that_changes_all_the_time_is_a_conflict_and_no_error() -> None:
    place = Place()
    index, network = place.process("mine")

    def passing(what: str, act: Callable[[], Any]) -> Any:
        if what.startswith("put ") and what.endswith("/3a.usv"):
            raise Conflict("another version")
        return Network._pass(network, what, act)

    network._pass = passing  # type: ignore[method-assign]
    report = fold(index)
    assert (report.conflicts, report.folded, report.objects) == (1, 0, 0)
    place.check()

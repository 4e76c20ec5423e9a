"""`verify`: what it finds, what it repairs, what it leaves alone, and that neither readers nor crashes suffer by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, get_args

import msgspec
import pytest

import limpet
from limpet.app import Fleet
from limpet.index import Index
from limpet.index.decide import shard_id
from limpet.index.maintain.flaws import FIXABLE, FlawKind
from limpet.index.maintain.verify import HINTS, NOTES, VerifyReport, verify
from limpet.kernel.errors import Conflict, Corrupt, Denied, Held, Missing, Unavailable
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.lease import Lock
from limpet.kernel.store import MemoryStore, Store
from support.clock import ManualRuntime, Time
from support.index import (
    KEYS,
    NAME,
    Process,
    Rec,
    contents,
    keys_in,
    lines_of,
    pack_of,
    records_of,
    shard_key,
    texts_of,
    until_done,
    whole_of,
)

OLD = "2020-01-01T00:00:00.000000Z"
NOW = "2026-01-01T00:00:00.000000Z"
HERE, THERE = keys_in("5e", 6), keys_in("a1", 2, prefix="t")
SHARD = shard_key(HERE[0])


@pytest.fixture
def process() -> Process:
    """An index with six records in shard 5e, two in a1, a tombstone, and three that wait."""
    return filled()


def filled() -> Process:
    """The index of the fixture."""
    time = Time()
    process = Process.start(MemoryStore(ManualRuntime(time)), time, "p")
    process.index.put_many([Rec(key, key) for key in (*HERE, *THERE, "gone")])
    process.index.delete("gone")
    process.index.compile(full=True)
    process.index.put(Rec("single", "1"))
    process.index.put_many([Rec(key, key) for key in keys_in("77", 2, prefix="p")])
    return process


def model() -> dict[str, str | None]:
    """What that index holds."""
    found: dict[str, str | None] = {key: key for key in (*HERE, *THERE, *keys_in("77", 2, prefix="p"))}
    return found | {"single": "1"}


def kinds(report: VerifyReport) -> list[FlawKind]:
    """What was found, of whatever object."""
    return sorted({finding.kind for finding in report.findings})


def line_of(process: Process, key: str, stamp: str = NOW, text: str = "x") -> bytes:
    """A record as a line with its LF."""
    return process.index.manifest.schema.line({"key": key, "text": text}, stamp, where="") + b"\n"


def rewritten(store: Store, key: Key, change: Callable[[list[bytes]], Iterable[bytes]]) -> None:
    """Damage an object."""
    store.put(key, b"".join(change(lines_of(store, key))))


def single(process: Process) -> Key:
    """The one single that waits."""
    [found] = process.store.list(KEYS.inbox)
    return found.key


def pack(process: Process) -> Key:
    """The one pack that waits."""
    [found] = process.store.list(KEYS.packs)
    return found.key


def moved(store: Store, key: Key, to: Key) -> None:
    """Rename an object."""
    store.put(to, store.get(key).data)
    store.delete(key)


def manifest_with(process: Process, **changes: Any) -> None:
    """Damage the manifest."""
    process.whole.cell.update(lambda now: msgspec.structs.replace(now, **changes) if now else None)


def count_of(process: Process, shard: str, records: int) -> None:
    """Have the manifest say so many records of a shard."""
    told = [*process.whole.cell.read().value.records]  # type: ignore[union-attr]
    told[int(shard, 16)] = records
    manifest_with(process, records=tuple(told))


def stray_single(process: Process) -> None:
    shard = shard_id("stray", 3)
    process.store.put(KEYS.single(shard, "stray", OLD, "id"), line_of(process, "stray", OLD))


def stray_pack(process: Process) -> None:
    process.store.put(KEYS.pack(shard_id(HERE[0], 3), "id"), line_of(process, HERE[0], OLD))


def stray_shard(process: Process) -> None:
    """A copy of some records, one of them in no other place."""
    lines = [*lines_of(process.store, SHARD)[:3], line_of(process, "stray", OLD)]
    process.store.put(KEYS.shard("5e0"), b"".join(lines))


def with_duplicate(process: Process) -> None:
    old = line_of(process, HERE[2], OLD)
    rewritten(process.store, SHARD, lambda lines: [*lines[:2], old, *lines[2:]])


def with_misplaced(process: Process) -> None:
    """Two records of another shard, one of them older than what stands there; and the manifest counts them here."""
    more = line_of(process, THERE[0], OLD) + line_of(process, "t-new", OLD)
    rewritten(process.store, SHARD, lambda lines: [more, *lines])
    count_of(process, "5e", len(HERE) + 2)


def misplaced_single(process: Process) -> None:
    process.store.put(KEYS.single("5e", "t-new", OLD, "id"), line_of(process, "t-new", OLD))


def misplaced_in_pack(process: Process) -> None:
    rewritten(process.store, pack(process), lambda lines: [*lines, line_of(process, "t-new", OLD)])


def twice_in_single(process: Process) -> None:
    rewritten(process.store, single(process), lambda lines: [*lines, line_of(process, HERE[0], OLD)])


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done, which kinds verify names, at which object, and what the repair adds to the records."""

    do: Callable[[Process], object]
    kinds: tuple[FlawKind, ...]
    adds: tuple[str, ...] = ()


REPAIRED = {
    "order": Damage(lambda p: rewritten(p.store, SHARD, reversed), ("order",)),
    "a duplicate": Damage(with_duplicate, ("duplicate",)),
    "misplaced": Damage(with_misplaced, ("misplaced", "order"), ("t-new",)),
    "a pack out of order": Damage(lambda p: rewritten(p.store, pack(p), reversed), ("order",)),
    "a pack twice": Damage(lambda p: rewritten(p.store, pack(p), lambda ls: [ls[0], *ls]), ("duplicate",)),
    "misplaced in a pack": Damage(misplaced_in_pack, ("misplaced", "order"), ("t-new",)),
    "a misplaced single": Damage(misplaced_single, ("misplaced",), ("t-new",)),
    "a single of another time": Damage(
        lambda p: moved(p.store, single(p), KEYS.single(shard_id("single"), "single", OLD, "id")), ("misnamed",)
    ),
    "a single of another key": Damage(
        lambda p: moved(p.store, single(p), KEYS.single(shard_id("single"), "other", NOW, "id")), ("misnamed",)
    ),
    "a single without a stamp": Damage(
        lambda p: moved(p.store, single(p), Key(f"{KEYS.inbox_of(shard_id('single'), 'single')}/x.usv")), ("misnamed",)
    ),
    "two in a single": Damage(twice_in_single, ("misnamed", "misplaced", "order")),
    "a stray single": Damage(stray_single, ("stray",), ("stray",)),
    "a stray pack": Damage(stray_pack, ("stray",)),
    "a stray shard": Damage(stray_shard, ("stray",), ("stray",)),
    "no data package": Damage(lambda p: p.store.delete(KEYS.package), ("description",)),
    "no JSON Schema": Damage(lambda p: p.store.delete(KEYS.json_schema), ("description",)),
    "another data package": Damage(lambda p: p.store.put(KEYS.package, b"{}"), ("description",)),
    "counts of another length": Damage(lambda p: manifest_with(p, records=(1, 2)), ("counts",)),
    "sizes of another length": Damage(lambda p: manifest_with(p, sizes=()), ("counts",)),
    "a count below zero": Damage(lambda p: count_of(p, "00", -1), ("counts",)),
    "a count that lags": Damage(lambda p: count_of(p, "5e", 3), ("behind",)),
}

LOST = {
    "cut off": Damage(lambda p: p.store.put(SHARD, p.store.get(SHARD).data[:-1]), ("cut_off",)),
    "a line of nonsense": Damage(lambda p: rewritten(p.store, SHARD, lambda ls: [*ls, b"oops\n"]), ("bad_line",)),
    "an empty line": Damage(lambda p: rewritten(p.store, SHARD, lambda ls: [b"\n", *ls]), ("bad_line",)),
    "not UTF-8": Damage(lambda p: rewritten(p.store, SHARD, lambda ls: [b"\xff" + ls[0], *ls[1:]]), ("bad_line",)),
    "a missing shard": Damage(lambda p: p.store.delete(SHARD), ("missing_shard",)),
    "a missing empty shard": Damage(lambda p: p.store.delete(KEYS.shard("00")), ("missing_shard",)),
    "a lost record": Damage(lambda p: rewritten(p.store, SHARD, lambda ls: ls[1:]), ("lost",)),
    "a lost record behind a duplicate": Damage(
        lambda p: rewritten(p.store, SHARD, lambda ls: [ls[1], *ls[1:]]), ("duplicate", "lost")
    ),
    "a lost record and no order": Damage(
        lambda p: rewritten(p.store, SHARD, lambda ls: reversed(ls[1:])), ("lost", "order")
    ),
    "a corrupt single": Damage(lambda p: p.store.put(single(p), b"oops\n"), ("bad_line",)),
    "a single cut off": Damage(lambda p: p.store.put(single(p), b"oops"), ("cut_off",)),
    "an empty single": Damage(lambda p: p.store.put(single(p), b""), ("cut_off",)),
    "a corrupt pack": Damage(lambda p: rewritten(p.store, pack(p), lambda ls: [*ls, b"oops\n"]), ("bad_line",)),
    "an empty pack": Damage(lambda p: p.store.put(pack(p), b""), ("cut_off",)),
    "a corrupt stray": Damage(lambda p: p.store.put(KEYS.pack("5e0", "id"), b"oops\n"), ("stray",)),
    "a plain record": Damage(lambda p: p.store.put(Key(f"{KEYS.root}/a.com.usv"), b"a.com"), ("unknown",)),
    "a file of somebody's": Damage(lambda p: p.store.put(Key(f"{KEYS.shards}/notes.txt"), b"?"), ("unknown",)),
    "a folder of somebody's": Damage(lambda p: p.store.put(Key(f"{KEYS.inbox}/zz/a/b.usv"), b"?"), ("unknown",)),
    "a shard in capitals": Damage(lambda p: p.store.put(Key(f"{KEYS.shards}/5E.usv"), b""), ("unknown",)),
}


def test_what_is_in_order_has_no_findings(fleet: Fleet) -> None:
    index = fleet.index(NAME, Rec, key="key")
    index.put_many([Rec(f"k{n}", "x") for n in range(50)])
    index.delete("k0")
    index.compile(full=True)
    index.put(Rec("a\x1f\\é", "single"))
    index.put_many([Rec(f"m{n}") for n in range(50)])
    report = verify(whole_of(index))
    assert report.findings == []
    assert report.ok
    assert (report.shards, report.records, report.tombstones) == (256, 49, 1)
    assert report.waiting == len([*fleet.store.list(KEYS.inbox), *fleet.store.list(KEYS.packs)])


@pytest.mark.parametrize("damage", [*REPAIRED, *LOST])
def test_a_dry_run_finds_it_and_changes_nothing(process: Process, damage: str) -> None:
    done = (REPAIRED | LOST)[damage]
    done.do(process)
    before = contents(process.store, locks=True)
    with process.store.measure() as cost:
        report = verify(process.whole)
    assert kinds(report) == sorted(done.kinds)
    assert not any(finding.repaired for finding in report.findings)
    assert report.ok is (set(done.kinds) <= NOTES)
    assert cost.requests.keys() == {"get", "list"}
    assert contents(process.store, locks=True) == before


@pytest.mark.parametrize("damage", REPAIRED)
def test_what_is_derived_is_repaired(process: Process, damage: str) -> None:
    wanted = model() | dict.fromkeys(REPAIRED[damage].adds, "x")
    REPAIRED[damage].do(process)
    report = verify(process.whole, repair=True)
    assert report.ok
    assert all(finding.repaired for finding in report.findings), report.findings
    again = verify(process.whole)
    assert again.findings == []
    fresh = process.another("reader").index
    assert records_of(fresh) == wanted
    assert texts_of(fresh, wanted) == wanted
    assert fresh.get("gone") is None
    process.index.compile(full=True)
    assert verify(process.whole).findings == []
    assert records_of(process.index) == wanted


@pytest.mark.parametrize("damage", LOST)
def test_what_is_lost_is_reported_and_not_papered_over(process: Process, damage: str) -> None:
    LOST[damage].do(process)
    before = contents(process.store)
    report = verify(process.whole, repair=True)
    assert not report.ok
    assert not any(finding.repaired for finding in report.findings)
    assert all(finding.hint for finding in report.findings)
    assert contents(process.store) == before


def test_the_rest_is_repaired_beside_what_is_lost(process: Process) -> None:
    process.store.delete(KEYS.shard("00"))
    stray_single(process)
    rewritten(process.store, SHARD, reversed)
    report = verify(process.whole, repair=True)
    assert {finding.kind: finding.repaired for finding in report.findings} == {
        "missing_shard": False,
        "stray": True,
        "order": True,
    }
    assert [finding.kind for finding in verify(process.whole).findings] == ["missing_shard"]


def test_shards_are_repaired_before_what_goes_into_them(process: Process) -> None:
    process.index.compile(full=True)
    more = keys_in("77", 5, prefix="p")
    process.runtime.time.sleep(5.0)
    process.index.put_many([Rec(key, "new") for key in more])
    rewritten(process.store, pack(process), reversed)
    rewritten(process.store, KEYS.shard("77"), reversed)
    report = verify(process.whole, repair=True)
    assert [(finding.kind, finding.repaired) for finding in report.findings] == [("order", True), ("order", True)]
    assert verify(process.whole).findings == []
    assert texts_of(process.index, more) == dict.fromkeys(more, "new")


def test_a_stray_shard_brings_what_is_newer_and_only_that(process: Process) -> None:
    newer = line_of(process, HERE[1], "2026-12-01T00:00:00.000000Z", "newer")
    process.store.put(KEYS.shard("5e0"), line_of(process, HERE[0], OLD, "older") + newer)
    assert verify(process.whole, repair=True).ok
    assert texts_of(process.index, HERE[:2]) == {HERE[0]: HERE[0], HERE[1]: "newer"}
    brought = lines_of(process.store, next(stat.key for stat in process.store.list(KEYS.packs_of("5e"))))
    assert brought == [newer]


def test_every_kind_has_a_hint() -> None:
    assert HINTS.keys() == {*get_args(FlawKind)}
    assert HINTS.keys() > FIXABLE


def test_the_hint_for_what_waits_is_another(process: Process) -> None:
    process.store.put(single(process), b"oops\n")
    LOST["cut off"].do(process)
    hints = {finding.kind: finding.hint for finding in verify(process.whole).findings}
    assert "quarantine" in hints["bad_line"]
    assert hints["cut_off"].startswith("restore")


def test_every_value_is_decoded() -> None:
    @dataclass
    class Doc:
        key: str
        number: int
        data: dict[str, Any] | None = None

    fleet = limpet.open("memory://")
    index = fleet.index("docs", Doc, key="key")
    index.put(Doc("a", 7, {"x": 1}))
    index.compile(full=True)
    key = IndexKeys.of("docs").shard(shard_id("a"))
    good = fleet.store.get(key).data
    assert verify(whole_of(index)).findings == []
    for bad in (good.replace(b'{"x":1}', b'{"x":'), good.replace(b"\x1f7\x1f", b"\x1f\\N\x1f")):
        assert bad != good
        fleet.store.put(key, bad)
        [finding] = verify(whole_of(index), repair=True).findings
        assert (finding.key, finding.repaired) == (key, False)
        assert finding.kind in ("bad_line", "bad_value")
        assert "line 1" in finding.what


def test_quarantine_is_a_note(process: Process) -> None:
    process.store.put(single(process), b"oops\n")
    process.index.compile(full=True)
    process.store.put(KEYS.quarantined("00", "bad"), b"{")
    report = verify(process.whole)
    assert [finding.kind for finding in report.findings] == ["quarantined", "quarantined"]
    assert any("oops" in finding.what for finding in report.findings)
    assert report.ok


def test_cost(process: Process) -> None:
    """The manifest, one LIST, every object once; nothing else."""
    objects = [stat for stat in process.store.list(KEYS.root) if not stat.key.endswith(".lock")]
    with process.store.measure() as cost:
        verify(process.whole)
    assert cost.requests == {"get": len(objects), "list": 1}


def test_memory_is_bounded_by_batches(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more objects are read together than fit; on a store that is far away, many at once."""
    sizes: list[int] = []
    real = MemoryStore.get_many

    def get_many(self: MemoryStore, keys: Iterable[Key], **options: Any) -> Any:
        found = real(self, keys, **options)
        sizes.append(len(found))
        return found

    monkeypatch.setattr("limpet.kernel.store.api.Store.get_many", get_many)
    monkeypatch.setattr("limpet.index.maintain.BATCH_OBJECTS", 100)
    monkeypatch.setattr("limpet.index.maintain.BATCH_BYTES", 200)
    report = verify(process.whole)
    assert report.findings == []
    assert 90 < max(sizes) <= 100
    assert report.read_bytes > 200


# ---- beside others ----


def test_a_compile_meanwhile_is_no_finding(process: Process) -> None:
    other = process.another("other")
    process.store.after = once("list", KEYS.root, lambda: other.index.compile(full=True))
    assert verify(process.whole).findings == []


def test_lowered_counts_meanwhile_are_no_loss(process: Process) -> None:
    """A purge lowers the counts first: what it takes out then is not lost."""

    def purge() -> None:
        count_of(process, "5e", 5)
        rewritten(process.bucket, SHARD, lambda lines: lines[1:])

    process.store.after = once("list", KEYS.root, purge)
    assert "lost" not in kinds(verify(process.whole))


def test_a_reshard_meanwhile_is_a_conflict(process: Process) -> None:
    def reshard() -> None:
        process.bucket.delete(SHARD)
        manifest_with(process, generation=2)

    process.store.after = once("list", KEYS.root, reshard)
    with pytest.raises(Conflict, match="resharded"):
        verify(process.whole)


def test_a_column_added_meanwhile_is_no_finding(process: Process) -> None:
    def evolve() -> None:
        @dataclass
        class More:
            key: str
            text: str | None = None
            more: str | None = None

        assert len(process.another("other", kind=More).index.manifest.fields) == 5

    process.store.after = once("list", KEYS.root, evolve)
    assert verify(process.whole).findings == []


def test_a_shard_written_meanwhile_is_not_overwritten(process: Process) -> None:
    rewritten(process.store, SHARD, reversed)

    def write(verb: str, key: str) -> None:
        if (verb, key) == ("put", SHARD):
            process.store.before = lambda verb, key: None
            rewritten(process.bucket, SHARD, lambda lines: [line_of(process, "x")])

    process.store.before = write
    [finding] = verify(process.whole, repair=True).findings
    assert not finding.repaired
    assert "could not be repaired" in finding.what
    assert lines_of(process.store, SHARD) == [line_of(process, "x")]


@pytest.mark.parametrize("damage", ["a pack out of order", "misplaced in a pack", "a pack twice"])
def test_a_reader_that_listed_before_the_repair_misses_nothing(process: Process, damage: str) -> None:
    """failures.md, index 11: it looks for a pack that is gone; the records must be further on, not in another pack."""
    REPAIRED[damage].do(process)
    repairer = process.another("other")
    wanted = keys_in("77", 2, prefix="p")
    process.store.after = once("list", KEYS.packs_of("77"), lambda: verify(repairer.whole, repair=True))
    assert texts_of(process.index, wanted) == {key: key for key in wanted}


@pytest.mark.parametrize("damage", ["a single of another time", "a single of another key"])
def test_a_scan_that_listed_before_the_repair_misses_nothing(process: Process, damage: str) -> None:
    REPAIRED[damage].do(process)
    repairer = process.another("other")
    listed = KEYS.inbox_of(shard_id("single"))
    process.store.after = once("list", listed, lambda: verify(repairer.whole, repair=True))
    assert records_of(process.index) == model()


def once(verb: str, key: str, deed: Callable[[], object]) -> Callable[[str, str], None]:
    """Do it when that request was answered, the first time."""
    left = [deed]

    def after(verb_: str, key_: str) -> None:
        if (verb_, key_) == (verb, key) and left:
            left.pop()()

    return after


def test_one_repair_at_a_time(process: Process) -> None:
    stray_single(process)
    other = process.another("other")
    key = KEYS.lock("all")
    lock = Lock(other.store, key, key, 60.0, other.runtime, other.whole.watch)
    with lock.hold(wait_s=0):
        before = contents(process.store)
        with pytest.raises(Held) as held:
            verify(process.whole, repair=True)
        assert "reshard" in held.value.hint
        assert not verify(process.whole).ok
        assert contents(process.store) == before
    assert verify(process.whole, repair=True).ok


@pytest.mark.parametrize("which", [lambda process: SHARD, single, pack])
def test_a_read_error_is_an_error(process: Process, which: Callable[[Process], Key]) -> None:
    """What cannot be read now is not known to be good (F23)."""
    away = which(process)

    def before(verb: str, key: str) -> None:
        if key == away:
            raise Unavailable("away")

    process.store.before = before
    with pytest.raises(Unavailable):
        verify(process.whole)


def test_no_index_and_no_sense(process: Process) -> None:
    manifest_with(process, depth=7)
    with pytest.raises(Corrupt, match="is not a valid Manifest"):
        verify(process.whole)
    process.store.delete(KEYS.manifest)
    with pytest.raises(Missing, match="no index"):
        verify(process.whole)


# ---- crashes ----


def everything(process: Process) -> None:
    """Whatever can be repaired at once."""
    for name in ("misplaced", "misplaced in a pack", "a single of another time", "a stray shard", "a stray single"):
        REPAIRED[name].do(process)
    stray_pack(process)
    process.store.delete(KEYS.package)


def test_a_crash_at_any_write_is_mended_by_the_next_run() -> None:
    died = 0
    for number in count(1):
        process = filled()
        bucket, time = process.bucket, process.runtime.time
        everything(process)
        wanted = model() | {"t-new": "x", "stray": "x"}
        more = until_done(bucket, time, lambda whole: verify(whole, repair=True), number)
        last = Process.start(bucket, time, "last")
        assert verify(last.whole).findings == []
        assert records_of(last.index) == wanted
        last.index.compile(full=True)
        assert records_of(last.index) == wanted
        if not more:
            break
        died += 1
    assert died > 15


def test_repair_on_every_store(fleet: Fleet) -> None:
    index = fleet.index(NAME, Rec, key="key")
    index.put_many([Rec(key, key) for key in HERE])
    index.compile(full=True)
    whole = whole_of(index)
    rewritten(fleet.store, SHARD, reversed)
    stray = pack_of(index, {HERE[0]: "new", "stray": "x"}, "2026-06-01T00:00:00.000000Z")
    fleet.store.put(KEYS.shard("5e0"), stray)
    fleet.store.delete(KEYS.json_schema)
    assert not verify(whole).ok
    report = verify(whole, repair=True)
    assert kinds(report) == ["description", "order", "stray"]
    assert report.ok
    assert verify(whole).findings == []
    assert records_of(index).keys() == {*HERE, "stray"}
    with pytest.raises(Missing):
        fleet.store.get(KEYS.shard("5e0"))


def test_with_a_reader_s_key_it_looks(fleet: Fleet) -> None:
    index: Index[Any] = fleet.index(NAME, Rec, key="key")
    index.put(Rec("a"))
    read_only = limpet.open(fleet.url, read_only=True)
    assert verify(whole_of(read_only.index(NAME))).findings == []
    with pytest.raises(Denied):
        verify(whole_of(read_only.index(NAME)), repair=True)

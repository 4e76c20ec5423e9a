"""A fleet of format 1 as it was written once: still read, still guarded, and still written byte for byte."""

from __future__ import annotations

import importlib.util
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import limpet
from limpet.app import Fleet
from limpet.index import Index
from limpet.kernel.cell import Fence
from limpet.kernel.errors import Corrupt, Held, LeaseLost, LimpetError, Unsupported
from limpet.kernel.lease import Lease, State
from limpet.queue import BucketQueue

FORMAT1 = Path(__file__).parent / "format1"
MAKER = Path(__file__).resolve().parents[2] / "tools" / "make_golden.py"
REPORT = "locks/user/report.lock"


def _maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("limpet_tools_make_golden", MAKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


golden = _maker()


def files(root: Path) -> dict[str, bytes]:
    """Every file, except the directory store's own locks and temp files."""
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(".limpet/")}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy to open and write to, as if it had been written just now."""
    shutil.copytree(FORMAT1, tmp_path / "fleet", copy_function=shutil.copyfile)
    return tmp_path / "fleet"


SINCE_0_1 = {"errors", "error", "sums", "life", "began_at", "took", "payloads"}
"""Fields that 0.1 does not write, and ignores: each attempt's own error instead of one for all, digests of shards, the
life that a receipt belongs to, when and for how long a handler ran, the payloads of a batch."""
FORMAT_SINCE_0_1 = b',"format":"any"'
"""Of datetimes in a data package, which only other programs read."""


def _without_new(data: bytes) -> object:
    """The fields of an object that 0.1 knows."""
    fields = json.loads(data.replace(FORMAT_SINCE_0_1, b""))
    return {name: value for name, value in fields.items() if name not in SINCE_0_1}


def test_today_the_same_bytes_are_written(tmp_path: Path) -> None:
    """An accidental change of the format fails here. A wanted one is optional and named above, or bumps CURRENT."""
    golden.build(tmp_path / "made")
    made, kept = files(tmp_path / "made"), files(FORMAT1)
    assert sorted(made) == sorted(kept)
    changed = [name for name in kept if made[name] != kept[name]]
    assert len(changed) == 10
    for name in changed:
        assert _without_new(made[name]) == _without_new(kept[name]), name


def test_every_cell_reads_as_it_was_written(copy: Path) -> None:
    fleet = limpet.open(copy, read_only=True)
    for name, value in golden.CELLS.items():
        seen = fleet.cell(name).read()
        assert seen is not None, name
        assert seen.value == value
    counter, summary = fleet.cell("counter").read(), fleet.cell("summary").read()
    assert counter is not None
    assert summary is not None
    assert (counter.header.seq, len(counter.header.recent), counter.header.fence) == (20, 16, None)
    assert (summary.header.seq, len(summary.header.recent)) == (24, 16)
    assert summary.header.fence == Fence(REPORT, 3)


def test_every_lock_reads_as_it_was_left(copy: Path) -> None:
    fleet = limpet.open(copy, read_only=True)
    records = {seen.value.name: seen.value for seen in fleet.locks()}
    assert {name: record.token for name, record in records.items()} == golden.LOCKS
    assert [name for name, record in records.items() if record.state is State.HELD] == ["nightly"]
    assert records["report"].created_at.isoformat() == "2026-01-02T03:04:19+00:00"


def test_opening_and_reading_changes_nothing(copy: Path) -> None:
    before = files(copy)
    fleet = limpet.open(copy)
    for name in golden.CELLS:
        fleet.cell(name).read()
    assert fleet.meter.snapshot().requests == {"get": 1 + len(golden.CELLS)}
    assert files(copy) == before


def test_the_free_lock_is_taken_with_the_next_token_and_the_fence_still_holds(copy: Path) -> None:
    fleet = limpet.open(copy)
    cell = fleet.cell("summary")
    for token in (1, 2):
        with pytest.raises(LeaseLost, match="token 3"):
            cell.write("late", lease=Fence(REPORT, token))
    with pytest.raises(limpet.Invalid, match="guarded by"):
        cell.write("other lock", lease=Fence("locks/user/nightly.lock", 9))
    with fleet.lock("report").hold(wait_s=0) as lease:
        assert lease.token == 4
        cell.write("new", lease=lease)
    with pytest.raises(LeaseLost, match="token 4"):
        cell.write("late", lease=Fence(REPORT, 3))
    seen = limpet.open(copy).cell("summary").read()
    assert seen is not None
    assert (seen.value, seen.header.seq, seen.header.fence) == ("new", 25, Fence(REPORT, 4))


def test_the_held_lock_is_held(copy: Path) -> None:
    held = limpet.open(copy).lock("nightly").try_acquire()
    assert isinstance(held, Held)
    assert (held.by, held.token) == ("golden:1", 1)


def test_a_lock_with_a_nasty_name_goes_on(copy: Path) -> None:
    lease = limpet.open(copy).lock("../Ünïx/%2e ~#1").try_acquire()
    assert isinstance(lease, Lease)
    assert lease.token == 3


def test_an_unfenced_cell_is_swapped_on(copy: Path) -> None:
    fleet = limpet.open(copy)
    assert fleet.cell("counter").update(lambda n: (n or 0) + 1) is not None
    seen = fleet.cell("counter").read()
    assert seen is not None
    assert (seen.value, seen.header.seq) == (21, 21)


# ---- the queue ----


def queue_of(fleet: Fleet, name: str = golden.QUEUE, **policy: Any) -> BucketQueue:
    """A queue of the golden fleet, with every feature."""
    queue = fleet.queue(name, **policy)
    assert isinstance(queue, BucketQueue)
    return queue


def batch_in(root: Path, ending: str) -> str:
    """The one batch whose name ends so."""
    (found,) = [path.name for path in (root / "queues/enrich/pending").iterdir() if path.name.endswith(ending)]
    return found


def test_every_task_that_ended_reads_as_it_ended(copy: Path) -> None:
    before = files(copy)
    queue = queue_of(limpet.open(copy, read_only=True))
    for id_, (state, value) in golden.ENDED.items():
        result = queue.result(id_)
        assert (result.state, result.value) == (state, value)
        assert result.finished_at is not None
    failed = queue.result("failed")
    assert (failed.error, failed.attempts, failed.worker) == ("gone", 2, "golden:1")
    assert "Traceback" in (failed.traceback or "")
    assert queue.result("again").id == "again~1"
    assert files(copy) == before


def test_every_task_of_a_batch_that_ended_reads_as_it_ended(copy: Path) -> None:
    queue = queue_of(limpet.open(copy, read_only=True))
    (entry,) = [path.stem for path in (copy / "queues/enrich/completed").iterdir() if path.stem.endswith("-3")]
    results = [queue.result(f"{entry}.{n}") for n in range(3)]
    assert [(result.state, result.value) for result in results] == [
        ("completed", {"n": 0}),
        ("failed", None),
        ("completed", golden.LARGE),
    ]
    assert results[1].error == "unlucky"


def test_what_waits_reads_as_it_was_pushed(copy: Path) -> None:
    queue = queue_of(limpet.open(copy, read_only=True))
    shown = {peeked.id: peeked.payload for peeked in queue.peek(100)}
    assert golden.WAITING.items() <= shown.items()
    assert len(shown) == len(golden.WAITING) + 4 + 2
    assert queue.result("delayed").state == "scheduled"


def test_the_golden_queue_is_counted(copy: Path) -> None:
    stats = queue_of(limpet.open(copy)).stats()
    found = (stats.pending, stats.scheduled, stats.completed, stats.failed, stats.cancelled, stats.paused)
    assert found == (8, 1, 4, 2, 1, True)


def test_the_golden_queue_goes_on(copy: Path) -> None:
    """Paused, then resumed: what waits is done, what rests or is held stays so."""
    fleet = limpet.open(copy)
    queue = queue_of(fleet)
    assert not queue.claim()
    queue.resume()
    queue = queue_of(fleet)
    done = {}
    while claim := queue.claim(wait_s=1):
        with claim:
            for task in claim:
                assert task.attempt == 1
                done[task.id] = task.payload
                task.done()
    resting, fresh = batch_in(FORMAT1, "-4"), batch_in(FORMAT1, "-2")
    assert done == {**golden.WAITING, "delayed": {"n": 1}, f"{fresh}.0": {"n": 0}, f"{fresh}.1": {"n": 1}}
    assert [path.name for path in (copy / "queues/enrich/pending").iterdir() if any(path.iterdir())] == [resting]
    assert not queue.push({}, id="done").created
    assert queue.retry("failed") == ["failed~1"]


def test_a_golden_batch_that_rests_half_way(copy: Path) -> None:
    queue = queue_of(limpet.open(copy, read_only=True))
    entry = batch_in(copy, "-4")
    seen = queue.storage.lease(entry).read()
    assert seen is not None
    lease = seen.value
    assert (lease.state, lease.token, lease.done, lease.failed) == (State.FREE, 1, [0, 1], [])
    assert (lease.wait_s, lease.waits[2] > lease.waits[3] > 0) == (lease.waits[3], True)
    assert [*lease.results] == [0]
    assert len(lease.parts) == 1
    assert lease.error == "later"
    attempts = [lease.attempts.get(n, lease.charged) for n in (2, 3)]
    assert attempts == [1, 1]


def test_a_golden_lease_is_held_under_its_slot(copy: Path) -> None:
    fleet = limpet.open(copy)
    queue = queue_of(fleet, golden.AWKWARD, concurrency=1)
    held = queue.storage.lease("held").read()
    rests = queue.storage.lease("rests").read()
    assert held is not None
    assert rests is not None
    assert (held.value.state, held.value.token, held.value.running, held.value.attempts) == (State.HELD, 1, 0, {0: 1})
    assert (rests.value.state, rests.value.token, rests.value.attempts) == (State.FREE, 1, {0: 1})
    assert not queue.claim(), "its slot is taken"
    assert not queue_of(fleet, golden.AWKWARD).claim(), "one rests, the other is held"
    assert queue.cancel("held")
    assert queue.result("held").state == "cancelled"


# ---- the index ----


def root_of(fleet: Path) -> Path:
    """The folder of the golden index."""
    (found,) = (fleet / "indexes").iterdir()
    return found


def records_of(index: Index[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a scan shows, without times and nulls."""
    return {record["id"]: known(record) for record in index.scan()}


def known(record: dict[str, Any]) -> dict[str, Any]:
    """The columns of a record that its golden form may name."""
    return {name: value for name, value in record.items() if name not in ("id", "updated_at") and value is not None}


WANTED = {
    id_: {name: value for name, value in each.items() if value is not None} for id_, each in golden.RECORDS.items()
}


def test_every_record_reads_as_it_was_put(copy: Path) -> None:
    before = files(copy)
    index = limpet.open(copy, read_only=True).index(golden.INDEX)
    assert records_of(index) == WANTED
    for id_, wanted in WANTED.items():
        found = index.get(id_)
        assert found is not None
        assert known(found) == wanted, id_
    assert {id_: known(each) for id_, each in index.get_many([*WANTED, *golden.DELETED]).items()} == WANTED
    assert [index.get(id_) for id_ in golden.DELETED] == [None, None]
    early = index.get("early")
    assert early is not None
    assert early["updated_at"].isoformat() == "2026-01-01T03:04:05+00:00"
    assert files(copy) == before


def test_the_golden_index_holds_one_of_everything() -> None:
    """Else the tests beside this one would prove nothing."""
    root = root_of(FORMAT1)
    shards = {path.stem: path.read_bytes() for path in (root / "shards").glob("*.usv")}
    lines = [line for data in shards.values() for line in data.split(b"\n")[:-1]]
    assert len(shards) == 256
    assert {line.count(b"\x1f") for line in lines} == {11, 12}, "lines of an older schema, and of a newer"
    assert sum(line.split(b"\x1f")[11] == b"1" for line in lines) == 1, "a tombstone"
    assert len([*(root / "packs").rglob("*.usv")]) == 1
    singles = [*(root / "inbox").rglob("*.usv")]
    assert len(singles) == 5
    assert sum(path.read_bytes().split(b"\x1f")[11] == b"1" for path in singles) == 1, "and one that waits"
    assert len([*(root / "quarantine").rglob("*.json")]) == 1
    assert (root / "datapackage.json").exists()


def test_the_golden_index_is_compiled_and_goes_on(copy: Path) -> None:
    fleet = limpet.open(copy, durability="os")
    index = fleet.index(golden.INDEX)
    assert (index.manifest.schema_version, index.manifest.depth, index.manifest.generation) == (2, 2, 1)
    assert sum(index.manifest.records) == len(WANTED) - 3 + len(golden.DELETED), "three were new and wait"
    report = index.compile(full=True)
    assert (report.folded, report.objects, report.quarantined) == (5, 6, 0)
    assert records_of(index) == WANTED
    assert sum(limpet.open(copy).index(golden.INDEX).manifest.records) == len(WANTED) + len(golden.DELETED)
    index.put({"id": "plain0", "text": "new", "later": "later"})
    index.delete("plain1")
    index.put({"id": "gone", "text": "back"})
    index.put({"id": "early", "text": "hidden by the one there", "updated_at": datetime(2025, 1, 1, tzinfo=UTC)})
    wanted = {**WANTED, "plain0": {"text": "new", "later": "later"}, "gone": {"text": "back"}}
    del wanted["plain1"]
    assert records_of(index) == wanted
    index.compile(full=True)
    assert records_of(limpet.open(copy, read_only=True).index(golden.INDEX)) == wanted


def test_the_golden_index_gains_a_column(copy: Path) -> None:
    fleet = limpet.open(copy, durability="os")
    columns = [{"name": field.name, "type": field.type} for field in fleet.index(golden.INDEX).manifest.fields]
    later = fleet.index(golden.INDEX, {"fields": [*columns, {"name": "last", "type": "integer"}], "primaryKey": "id"})
    later.put({"id": "last", "last": 7})
    assert later.manifest.schema_version == 3
    later.compile(full=True)
    assert records_of(later) == {**WANTED, "last": {"last": 7}}


# ---- newer and damaged files ----


@pytest.mark.parametrize(
    ("file", "old", "new", "kind"),
    [
        ("limpet.json", b'"features":[]', b'"features":["zstd"]', Unsupported),
        ("limpet.json", b'"queue":1', b'"queue":2', Unsupported),
        ("limpet.json", b'"schema":1', b'"schema":2', Unsupported),
        ("limpet.json", b'"min_reader":1', b'"min_reader":2', Unsupported),
        ("limpet.json", b'"probe":{', b'"probe":[', Corrupt),
        ("limpet.json", b'"format":', b"", Corrupt),
        ("cells/counter.json", b'"schema":1', b'"schema":2', Unsupported),
        ("cells/counter.json", b'"seq":20', b'"seq":"20"', Corrupt),
        ("cells/counter.json", b'"value":20}', b'"value":20', Corrupt),
        ("cells/counter.json", b'"value":20', b'"value":NaN', Corrupt),
    ],
)
def test_what_is_newer_or_damaged_is_one_clear_error(
    copy: Path, file: str, old: bytes, new: bytes, kind: type[LimpetError]
) -> None:
    path = copy / file
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))
    before = files(copy)

    def use() -> None:
        fleet = limpet.open(copy)
        fleet.check()
        fleet.cell("counter").write(21)

    with pytest.raises(kind) as caught:
        use()
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert files(copy) == before


@pytest.mark.parametrize("size", [0, 1, 100, 274])
def test_a_truncated_limpet_json_is_corrupt_never_a_new_fleet(copy: Path, size: int) -> None:
    """F23: a read error is never an empty result."""
    path = copy / "limpet.json"
    path.write_bytes(path.read_bytes()[:size])
    before = files(copy)
    with pytest.raises(Corrupt, match=r"limpet\.json"):
        limpet.open(copy).check()
    assert files(copy) == before

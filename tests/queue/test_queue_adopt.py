"""`adopt`: the tasks of another program's queue, files in the layout of the original document, become tasks here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import limpet
from limpet.app import Fleet
from limpet.app.adopt import adopt_tasks
from limpet.kernel.errors import Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.store import MemoryStore, ScopedStore
from limpet.kernel.store.sources import FolderSource, StoreSource
from limpet.queue import BucketQueue, Queue, QueueAdoptReport
from limpet.queue.adopt import OWN_OBJECTS, QUEUE_FOLDERS, QueuePlace, verdict
from support.clock import ManualRuntime
from support.queue import Crash
from support.stores import Meddled

LEASE = '{"worker_id": "pi-a", "heartbeat_at": "2026-01-02T03:04:05Z", "expires_at": "2026-01-02T03:14:05Z"}'


def write(folder: Path, name: str, data: str | bytes | dict[str, Any]) -> Path:
    """A file of the other program."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data) if isinstance(data, dict) else data
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A queue as the document draws it: two tasks wait, one is held, one is done, two were given up."""
    folder = tmp_path / "old"
    write(folder, "pending/a.com/task.json", {"domain": "a.com"})
    write(folder, "pending/B Ü.com/task.json", {"domain": "B Ü.com"})
    write(folder, "pending/held.com/task.json", {"domain": "held.com"})
    write(folder, "pending/held.com/lease.json", LEASE)
    write(folder, "completed/done.com.json", {"domain": "done.com"})
    write(folder, "failed/bad.com.json", {"domain": "bad.com"})
    write(folder, "failed/worse.com/task.json", {"domain": "worse.com"})
    return folder


def run_all(queue: Queue) -> list[str]:
    """Run all that waits; the domains, sorted."""
    domains: list[str] = []
    while claim := queue.claim():
        with claim:
            for task in claim:
                domains.append(task.payload["domain"])
                task.done()
    return sorted(domains)


def ran(fleet: Fleet) -> list[str]:
    """The same, of the fleet's queue."""
    return run_all(fleet.queue("enrich"))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def counts(report: QueueAdoptReport) -> tuple[int, ...]:
    return report.pending, report.completed, report.failed, report.known, report.held


def test_a_queue_of_the_document_is_copied(fleet: Fleet, old: Path) -> None:
    before = files(old)
    report = adopt_tasks(fleet, "enrich", str(old))
    assert counts(report) == (2, 1, 2, 0, 1)
    assert (report.deleted, report.ignored, report.bad) == (0, 0, [])
    assert files(old) == before
    queue = fleet.queue("enrich")
    assert not queue.push({"domain": "done.com"}, id="done.com").created, "its id is used"
    assert queue.result("done.com").state == "completed"
    assert ran(fleet) == ["B Ü.com", "a.com"]
    [failure] = queue.failed()
    assert (failure.count, failure.error) == (2, "it had failed before this queue was adopted")
    assert sorted(queue.retry(all=True)) == ["bad.com~1", "worse.com~1"]
    assert ran(fleet) == ["bad.com", "worse.com"]


def test_twice_changes_nothing_not_even_after_the_tasks_have_run(fleet: Fleet, old: Path) -> None:
    adopt_tasks(fleet, "enrich", str(old))
    again = adopt_tasks(fleet, "enrich", str(old))
    assert counts(again) == (0, 0, 0, 5, 1)
    assert ran(fleet) == ["B Ü.com", "a.com"]
    assert counts(adopt_tasks(fleet, "enrich", str(old))) == (0, 0, 0, 5, 1)
    assert ran(fleet) == []


def test_quiesced_takes_held_tasks_too_and_leaves_only_what_it_does_not_know(fleet: Fleet, old: Path) -> None:
    write(old, "pending/a.com/notes.txt", "mine")
    write(old, "readme.txt", "mine")
    write(old, "completed/odd.txt", "mine")
    report = adopt_tasks(fleet, "enrich", str(old), quiesced=True)
    assert counts(report) == (3, 1, 2, 0, 0)
    assert (report.deleted, report.ignored, report.bad) == (7, 3, [])
    assert sorted(report.ignored_names) == ["completed/odd.txt", "pending/a.com/notes.txt", "readme.txt"]
    assert files(old) == ["completed/odd.txt", "pending/a.com/notes.txt", "readme.txt"]
    assert not (old / "pending/held.com").exists()
    assert not (old / "failed").exists()
    assert ran(fleet) == ["B Ü.com", "a.com", "held.com"]


def test_a_task_that_ended_and_was_not_removed_does_not_run_again(fleet: Fleet, old: Path) -> None:
    write(old, "completed/a.com.json", {"domain": "a.com"})
    write(old, "pending/bad.com/task.json", {"domain": "bad.com"})
    assert counts(adopt_tasks(fleet, "enrich", str(old))) == (1, 2, 2, 2, 1)
    assert ran(fleet) == ["B Ü.com"]


def test_a_task_that_the_other_program_ends_meanwhile_ends_here_too(fleet: Fleet, old: Path) -> None:
    adopt_tasks(fleet, "enrich", str(old))
    (old / "pending/a.com/task.json").rename(old / "completed/a.com.json")
    assert adopt_tasks(fleet, "enrich", str(old)).completed == 1
    assert ran(fleet) == ["B Ü.com"]


BAD: list[tuple[str, bytes, str]] = [
    ("pending/cut/task.json", b'{"domain": "a', "not valid JSON"),
    ("pending/list/task.json", b"[1]", "it is not a JSON object"),
    ("pending/empty/task.json", b"", "not valid JSON"),
    ("pending/nan/task.json", b'{"x": NaN}', "not valid JSON"),
    ("pending/twice/task.json", b'{"a": 1, "a": 2}', "the same key twice"),
    ("pending/deep/task.json", b'{"a": ' + b"[" * 9000, "JSON"),
    ("pending/large/task.json", b'{"a": "' + b"x" * (2 << 20) + b'"}', "more than the"),
    ("pending/payload/task.json", b'{"a": "' + b"x" * (300 << 10) + b'"}', "a task holds 262,144"),
    ("pending/retried~1/task.json", b"{}", "has a '~'"),
    ("pending/01jfxyz0000000000000000000/task.json", b"{}", "looks like one that limpet makes"),
    ("pending/bell\x07/task.json", b"{}", "control characters"),
    ("completed/own.json", b'{"schema": 1, "write_id": "x", "state": "completed"}', "an object of Limpet"),
    ("failed/text.json", b"oops", "not valid JSON"),
]


def test_bad_files_are_reported_and_kept_and_the_others_are_taken(fleet: Fleet, old: Path) -> None:
    for name, data, _ in BAD:
        write(old, name, data)
    report = adopt_tasks(fleet, "enrich", str(old), quiesced=True)
    assert counts(report) == (3, 1, 2, 0, 0)
    reasons = {bad.name: bad.reason for bad in report.bad}
    assert reasons.keys() == {name for name, _, _ in BAD}
    for name, data, why in BAD:
        assert why in reasons[name], name
        assert (old / name).read_bytes() == data
    assert len(ran(fleet)) == 3


def test_names_that_are_no_unicode_are_bad_and_links_are_not_followed(tmp_path: Path, old: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    os.makedirs(os.fsencode(old) + b"/pending/\xff")
    Path(os.fsdecode(os.fsencode(old) + b"/pending/\xff/task.json")).write_text("{}")
    secret = write(tmp_path, "secret/task.json", {"domain": "secret"})
    (old / "pending/linked").symlink_to(secret.parent)
    (old / "pending/file").mkdir()
    (old / "pending/file/task.json").symlink_to(secret)
    os.mkfifo(old / "completed/pipe.json")
    report = adopt_tasks(fleet, "enrich", str(old), quiesced=True)
    bad = ["completed/pipe.json", "pending/?/task.json", "pending/file/task.json"]
    assert sorted(bad.name for bad in report.bad) == bad
    assert (report.ignored, report.ignored_names) == (1, ["pending/linked"])
    assert secret.exists()
    assert "secret" not in ran(fleet)
    (tmp_path / "behind").symlink_to(old)
    old.rename(tmp_path / "elsewhere")
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue/pending").symlink_to(tmp_path / "elsewhere/pending")
    with pytest.raises(Denied, match="symbolic link"):
        adopt_tasks(fleet, "enrich", str(tmp_path / "queue"))


def test_a_file_with_a_time_of_its_own_moves_no_clock(tmp_path: Path, old: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    os.utime(old / "completed/done.com.json", (9e10, 9e10))
    os.utime(old / "pending/a.com/task.json", (-1e9, -1e9))
    report = adopt_tasks(fleet, "enrich", str(old))
    assert (report.completed, report.pending, report.bad) == (1, 2, [])
    assert ran(fleet) == ["B Ü.com", "a.com"]


@pytest.fixture
def other(url: str) -> str:
    """Another place of the same kind as the fleet's."""
    place, mark, query = url.partition("?")
    return f"{place}-old-{uuid4().hex[:6]}{mark}{query}"


def test_from_a_bucket(fleet: Fleet, other: str) -> None:
    store = limpet.open(other).store
    for name in ("pending/a/task.json", "completed/b.json", "failed/c.json", "failed/d/task.json"):
        store.put(Key(f"deep/queue/{name}"), b'{"domain": "x"}')
    store.put(Key("deep/queue/pending/a/lease.json"), LEASE.encode())
    queue = fleet.queue("enrich")
    assert isinstance(queue, BucketQueue)
    place, mark, query = other.partition("?")
    if place.startswith("memory:"):  # its URL has no prefix
        first = queue.adopt(StoreSource(store, "deep/queue", QUEUE_FOLDERS))
    else:
        first = adopt_tasks(fleet, "enrich", f"{place}/deep/queue/{mark}{query}")
    assert counts(first) == (0, 1, 2, 0, 1)
    report = queue.adopt(StoreSource(store, "deep/queue", QUEUE_FOLDERS), quiesced=True)
    assert counts(report) == (1, 0, 0, 3, 0)
    assert report.deleted == 5
    assert [*store.list("deep")] == []


def test_places_without_tasks_are_refused_and_say_what_is_there(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Missing, match=r"there are no tasks at .*/empty\n"):
        adopt_tasks(fleet, "enrich", str(tmp_path / "empty"))
    with pytest.raises(Missing, match="there is no folder"):
        adopt_tasks(fleet, "enrich", str(tmp_path / "nowhere"))
    write(tmp_path, "deep/enrich/pending/a.com/task.json", {"domain": "a.com"})
    with pytest.raises(Missing, match=r"other files there: 1, such as enrich/pending/a\.com/task\.json"):
        adopt_tasks(fleet, "enrich", str(tmp_path / "deep"))


def test_another_queue_of_limpets_own_is_left_alone(fleet: Fleet, tmp_path: Path) -> None:
    mine = limpet.open(tmp_path / "mine", durability="os")
    mine.queue("enrich").push({"domain": "a.com"}, id="a.com")
    report = adopt_tasks(fleet, "enrich", str(tmp_path / "mine/queues/enrich"), quiesced=True)
    assert [bad.reason.split(" (")[0] for bad in report.bad] == ["it is an object of Limpet"]
    assert mine.queue("enrich").stats().pending == 1


def test_payloads_are_checked_against_the_type_of_the_queue(old: Path) -> None:
    queue = limpet.open("memory://").queue("enrich", payload_type=dict[str, int])
    assert isinstance(queue, BucketQueue)
    report = queue.adopt(FolderSource(old, QUEUE_FOLDERS))
    assert report.pending == 0
    assert len(report.bad) == 5


# ---- crashes: whatever is stopped, the next run ends it, and each task runs once ----


def _crash_at(n: int) -> Callable[[str, str], None]:
    """Ends the process at the `n`-th change."""
    changes = count(1)

    def meddle(verb: str, key: str) -> None:
        if verb in ("put", "delete") and next(changes) == n:
            raise Crash

    return meddle


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_change_is_finished_by_the_next_run(when: str) -> None:
    crashes = 0
    for n in count(1):
        runtime = ManualRuntime()
        store = Meddled(MemoryStore(runtime), runtime)
        names = ["pending/a", "pending/b", "pending/both", "completed/both", "completed/c", "failed/d"]
        for name in names:
            path = f"{name}/task.json" if name.startswith("pending") else f"{name}.json"
            store.put(Key(f"old/{path}"), json.dumps({"domain": name.rpartition("/")[2]}).encode())
        store.put(Key("old/pending/b/lease.json"), LEASE.encode())
        source = StoreSource(store, "old", QUEUE_FOLDERS)
        setattr(store, when, _crash_at(n))
        crashed = False
        try:
            BucketQueue(store, "q", runtime).adopt(source, quiesced=True)
        except Crash:
            crashed = True
            crashes += 1
        setattr(store, when, lambda verb, key: None)
        queue = BucketQueue(store, "q", ManualRuntime(runtime.time))
        report = queue.adopt(source, quiesced=True)
        assert report.bad == []
        assert [*store.list("old")] == [], f"after change {n}"
        done = []
        while claim := queue.claim():
            with claim:
                for task in claim:
                    done.append(task.payload["domain"])
                    task.done()
        assert sorted(done) == ["a", "b"], f"after change {n}"
        assert [result.state for result in queue.results(["both", "c", "d"])] == ["completed", "completed", "failed"]
        if not crashed:
            break
    assert crashes >= 13


def test_a_store_that_refuses_deletes_nothing(old: Path) -> None:
    runtime = ManualRuntime()
    store = Meddled(MemoryStore(runtime), runtime)

    def refuse(verb: str, key: str) -> None:
        if verb == "put" and key.endswith("/task.json"):
            raise Denied("no")

    store.before = refuse
    before = files(old)
    with pytest.raises(LimpetError):
        BucketQueue(store, "q", runtime).adopt(FolderSource(old, QUEUE_FOLDERS), quiesced=True)
    left = files(old)
    assert [name for name in before if name.startswith("pending")] == [n for n in left if n.startswith("pending")]


def test_the_worker_role_is_enough(old: Path) -> None:
    runtime = ManualRuntime()
    store = ScopedStore(MemoryStore(runtime), role="worker", runtime=runtime)
    report = BucketQueue(store, "enrich", runtime).adopt(FolderSource(old, QUEUE_FOLDERS), quiesced=True)
    assert counts(report) == (3, 1, 2, 0, 0)


def test_what_it_costs(old: Path) -> None:
    """Of the fleet's store: what waits 1 PUT + 2 HEADs, what has ended 3 GETs + 1 PUT; 1 LIST in all."""
    fleet = limpet.open("memory://")
    fleet.check()
    with fleet.meter.measure() as cost:
        adopt_tasks(fleet, "enrich", str(old), quiesced=True)
    assert cost.requests == {"put": 3 + 1 + 2, "head": 3 * 2, "get": 3 * (1 + 2), "list": 1}
    runtime = ManualRuntime()
    theirs = Meddled(MemoryStore(runtime), runtime)
    theirs.put(Key("q/pending/a/task.json"), b"{}")
    theirs.put(Key("q/pending/a/lease.json"), b"{}")
    with theirs.measure() as cost:
        source = StoreSource(theirs, "q", QUEUE_FOLDERS)
        queue = fleet.queue("other")
        assert isinstance(queue, BucketQueue)
        queue.adopt(source, quiesced=True)
    assert cost.requests == {"list": 1, "get": 1, "delete": 2}


# ---- an id that is used here: what is kept must have the bytes of what goes ----


@pytest.mark.parametrize("state", ["pending", "scheduled", "failed", "retried", "completed", "cancelled"])
def test_an_original_whose_id_is_used_here_for_another_payload_stays(fleet: Fleet, tmp_path: Path, state: str) -> None:
    queue = fleet.queue("enrich")
    queue.push({"n": "ours"}, id="1", delay_s=900.0 if state == "scheduled" else 0.0)
    if state in ("failed", "retried", "completed"):
        with queue.claim() as claim:
            [task] = claim
            task.done() if state == "completed" else task.fail("no")
    if state == "retried":
        queue.retry("1")
    if state == "cancelled":
        queue.cancel("1")
    for n, name in enumerate(("pending/1/task.json", "completed/1.json", "failed/1.json", "failed/1/task.json")):
        other = write(tmp_path / f"other{n}", name, {"n": "theirs"})
        report = adopt_tasks(fleet, "enrich", str(tmp_path / f"other{n}"), quiesced=True)
        [bad] = report.bad
        assert bad.name == name
        assert "the id '1' is used here" in bad.reason
        assert (counts(report), report.deleted) == ((0, 0, 0, 0, 0), 0)
        assert json.loads(other.read_bytes()) == {"n": "theirs"}
    before = {"pending": "pending", "retried": "pending"}.get(state, "failed" if state == "failed" else state)
    assert queue.result("1").state == before, "what is kept has not ended by it"
    same = write(tmp_path / "same", "pending/1/task.json", '{ "n":  "ours" }')
    report = adopt_tasks(fleet, "enrich", str(tmp_path / "same"), quiesced=True)
    assert (report.bad, report.deleted, report.known + report.pending) == ([], 1, 1)
    assert not same.exists()


def test_two_folders_with_the_same_id_lose_neither_task(fleet: Fleet, tmp_path: Path) -> None:
    write(tmp_path / "a", "pending/1/task.json", {"domain": "a1"})
    write(tmp_path / "b", "pending/1/task.json", {"domain": "b1"})
    assert adopt_tasks(fleet, "enrich", str(tmp_path / "a"), quiesced=True).pending == 1
    for _ in range(2):
        [bad] = adopt_tasks(fleet, "enrich", str(tmp_path / "b"), quiesced=True).bad
        assert bad.name == "pending/1/task.json"
        assert ran(fleet) in (["a1"], [])
    assert (tmp_path / "b/pending/1/task.json").exists()


def test_of_two_files_of_one_id_in_a_folder_the_second_stays(fleet: Fleet, tmp_path: Path) -> None:
    write(tmp_path / "old", "pending/ab/1/task.json", {"domain": "first"})
    write(tmp_path / "old", "pending/cd/1/task.json", {"domain": "second"})
    write(tmp_path / "old", "failed/2.json", {"domain": "first"})
    write(tmp_path / "old", "failed/2/task.json", {"domain": "second"})
    write(tmp_path / "old", "completed/3.json", {"domain": "done"})
    write(tmp_path / "old", "failed/3.json", {"domain": "not done"})
    report = adopt_tasks(fleet, "enrich", str(tmp_path / "old"), quiesced=True)
    assert counts(report) == (1, 1, 1, 0, 0)
    assert len(report.bad) == 3
    assert len(files(tmp_path / "old")) == 3


VERDICTS: list[tuple[str, dict[str, bytes | None], str]] = [
    ("pending", {}, "write"),
    ("pending", {"pending": b"{}"}, "known"),
    ("pending", {"completed": b" {} "}, "known"),
    ("pending", {"scheduled 0": b"{}"}, "write"),
    ("pending", {"scheduled 0": b"1"}, "other"),
    ("pending", {"pending": b"{}", "completed": b"1"}, "other"),
    ("pending", {"failed": None}, "other"),
    ("completed", {}, "write"),
    ("completed", {"pending": b"{}"}, "write"),
    ("completed", {"failed": b"{}"}, "write"),
    ("completed", {"completed": b"{}", "pending": b"1"}, "known"),
    ("completed", {"pending": b"1"}, "other"),
    ("completed", {"completed": None}, "other"),
    ("failed", {"completed": b"{}"}, "known"),
    ("failed", {"failed": b"{}"}, "known"),
    ("failed", {"pending": b"{}"}, "write"),
    ("failed", {"scheduled 0": b"1"}, "other"),
]


@pytest.mark.parametrize(("place", "kept", "wanted"), VERDICTS)
def test_what_becomes_of_a_task_whose_id_may_be_used(place: QueuePlace, kept: dict[str, bytes], wanted: str) -> None:
    assert verdict(place, b"{}", kept) == wanted


# ---- the layout with folders by shard, and what is no part of a queue ----


def lay(where: Fleet | Path, name: str, data: str | bytes | dict[str, Any], *, queue: str = "enrich") -> None:
    """A file of the other program in the folder of a fleet's own queue, or below a local folder."""
    if isinstance(where, Path):
        write(where, name, data)
    elif "://" not in where.url:
        write(Path(where.url), f"queues/{queue}/{name}", data)
    else:
        text = json.dumps(data) if isinstance(data, dict) else data
        where.store.put(Key(f"queues/{queue}/{name}"), text if isinstance(text, bytes) else text.encode())


def lay_out(where: Fleet | Path) -> None:
    """A queue as the documents and the original program have it; some tasks lie in folders by shard."""
    for n in range(4):
        lay(where, f"pending/site{n}.com/task.json", {"domain": f"site{n}.com"})
        lay(where, f"pending/{n}a/deep{n}.com/task.json", {"domain": f"deep{n}.com"})
    lay(where, "pending/site0.com/lease.json", LEASE)
    lay(where, "pending/0a/deep0.com/lease.json", LEASE)
    lay(where, "pending/Odd Näme/task.json", {"domain": "Odd Näme"})
    lay(where, "pending/Odd Näme/lease.json", LEASE)
    lay(where, "completed/done.com.json", {"domain": "done.com"})
    lay(where, "completed/Both.json", {"domain": "Both"})
    lay(where, "pending/Both/task.json", {"domain": "Both"})
    lay(where, "pending/Both/lease.json", LEASE)
    lay(where, "completed/both.json", {"domain": "both"})
    lay(where, "pending/both/task.json", {"domain": "both"})
    lay(where, "failed/bad.com.json", {"domain": "bad.com"})
    lay(where, "failed/worse.com/task.json", {"domain": "worse.com"})


WAITING = sorted([*(f"site{n}.com" for n in range(4)), *(f"deep{n}.com" for n in range(4)), "Odd Näme"])


def test_folders_by_shard_are_taken_and_what_else_is_there_is_counted(fleet: Fleet, tmp_path: Path) -> None:
    lay_out(tmp_path / "old")
    write(tmp_path / "old", "pending/2/25.0/-80.0/x/task.json", {"domain": "too deep"})
    write(tmp_path / "old", "pending/9z/lease.json", LEASE)
    write(tmp_path / "old", "completed/2026/a.json", {"domain": "a"})
    write(tmp_path / "old", "audit/log.txt", "mine")
    first = adopt_tasks(fleet, "enrich", str(tmp_path / "old"))
    assert counts(first) == (6, 3, 2, 1, 4)
    assert (first.ignored, first.bad) == (4, [])
    report = adopt_tasks(fleet, "enrich", str(tmp_path / "old"), quiesced=True)
    assert (report.ignored, report.bad) == (4, [])
    assert len(files(tmp_path / "old")) == 4
    assert ran(fleet) == WAITING


# ---- in place: the files lie where the queue's own objects do ----


def test_in_place_every_task_is_taken_over_once(fleet: Fleet) -> None:
    lay_out(fleet)
    queue = fleet.queue("enrich")
    queue.push({"domain": "mine"}, id="mine")
    queue.push_many([{"domain": "batch"}] * 2)
    queue.push({"domain": "later"}, id="later", delay_s=900.0)
    with pytest.raises(Invalid, match="is the folder of this queue") as refused:
        adopt_tasks(fleet, "enrich", None)
    assert "--quiesced" in refused.value.hint
    lay(fleet, "notes.txt", "mine")
    report = adopt_tasks(fleet, "enrich", None, quiesced=True)
    assert (report.pending, report.completed, report.failed, report.known, report.held) == (9, 3, 2, 2, 0)
    assert (report.ignored, report.ignored_names, report.bad) == (1, ["notes.txt"], [])
    again = adopt_tasks(fleet, "enrich", None, quiesced=True)
    assert (counts(again), again.deleted, again.replaced, again.bad) == ((0, 0, 0, 0, 0), 0, 0, [])
    assert ran(fleet) == sorted([*WAITING, "mine", "batch", "batch"])
    states = {result.id: result.state for result in queue.results(["done.com", "Both", "both", "bad.com", "worse.com"])}
    assert states == {"done.com": "completed", "Both": "completed", "both": "completed"} | dict.fromkeys(
        ["bad.com", "worse.com"], "failed"
    )
    assert sorted(queue.retry(all=True)) == ["bad.com~1", "worse.com~1"]
    assert run_all(queue) == ["bad.com", "worse.com"]
    assert isinstance(queue, BucketQueue)
    queue.sweep()
    assert queue.notices() == []


@pytest.mark.parametrize("url", ["directory", "seaweedfs"], indirect=True)  # a URL of memory has no prefix
def test_in_place_by_the_url_of_the_queue(fleet: Fleet) -> None:
    lay(fleet, "pending/a.com/task.json", {"domain": "a.com"})
    place, mark, query = fleet.url.partition("?")
    report = adopt_tasks(fleet, "enrich", f"{place}/queues/enrich{mark}{query}", quiesced=True)
    assert (report.pending, report.replaced) == (1, 1)
    assert ran(fleet) == ["a.com"]


@pytest.mark.parametrize("url", ["directory", "seaweedfs"], indirect=True)  # a URL of memory has no prefix
def test_the_folder_of_a_campaign_in_the_fleet_itself(fleet: Fleet) -> None:
    """The local path of the document is queues/<campaign>/<queue>/."""
    lay(fleet, "enrich/pending/a.com/task.json", {"domain": "a.com"}, queue="camp")
    lay(fleet, "enrich/completed/b.com.json", {"domain": "b.com"}, queue="camp")
    place, mark, query = fleet.url.partition("?")
    report = adopt_tasks(fleet, "enrich", f"{place}/queues/camp/enrich{mark}{query}", quiesced=True)
    assert (report.pending, report.completed, report.deleted) == (1, 1, 2)
    assert ran(fleet) == ["a.com"]


def test_in_place_bad_files_stay_and_end_nothing(fleet: Fleet) -> None:
    """A file in completed/ that cannot be read has the name of a receipt: the task of that id is not closed by it."""
    lay(fleet, "completed/a.com.json", "oops")
    lay(fleet, "pending/a.com/task.json", {"domain": "a.com"})
    lay(fleet, "pending/b.com/task.json", "oops")
    lay(fleet, "pending/c.com/task.json", {"domain": "one"})
    lay(fleet, "completed/c.com.json", {"domain": "other"})
    lay(fleet, "completed/d.com.json", {"domain": "x" * (300 << 10)})
    lay(fleet, "pending/d.com/task.json", {"domain": "d.com"})
    report = adopt_tasks(fleet, "enrich", None, quiesced=True)
    bad = [*(f"completed/{name}.com.json" for name in "ad"), *(f"pending/{name}.com/task.json" for name in "abcd")]
    assert sorted(each.name for each in report.bad) == bad
    assert counts(report) == (0, 1, 0, 0, 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_in_place_a_crash_at_any_change_is_finished_by_the_next_run(when: str) -> None:
    for n in count(1):
        runtime = ManualRuntime()
        store = Meddled(MemoryStore(runtime), runtime)
        for name in (
            "pending/a/task",
            "pending/b/task",
            "pending/both/task",
            "completed/both",
            "failed/d",
            "pending/x/e/task",
        ):
            id_ = name.removesuffix("/task").rpartition("/")[2]
            store.put(Key(f"queues/q/{name}.json"), json.dumps({"domain": id_}).encode())
        store.put(Key("queues/q/pending/b/lease.json"), LEASE.encode())
        source = StoreSource(store, "queues/q", QUEUE_FOLDERS, own=OWN_OBJECTS)
        setattr(store, when, _crash_at(n))
        crashed = False
        try:
            BucketQueue(store, "q", runtime).adopt(source, quiesced=True, in_place=True)
        except Crash:
            crashed = True
        setattr(store, when, lambda verb, key: None)
        queue = BucketQueue(store, "q", ManualRuntime(runtime.time))
        assert queue.adopt(source, quiesced=True, in_place=True).bad == []
        done = []
        while claim := queue.claim():
            with claim:
                for task in claim:
                    done.append(task.payload["domain"])
                    task.done()
        assert sorted(done) == ["a", "b", "e"], f"after change {n}"
        assert [result.state for result in queue.results(["both", "d"])] == ["completed", "failed"]
        if not crashed:
            assert n > 8
            break


# ---- a worker that meets the files of the other program ----


@pytest.mark.parametrize("leased", [False, True])
def test_a_worker_leaves_tasks_of_another_program_alone_and_names_adopt(fleet: Fleet, leased: bool) -> None:
    lay(fleet, "pending/a.com/task.json", {"domain": "a.com"})
    if leased:
        lay(fleet, "pending/a.com/lease.json", LEASE)
        lay(fleet, "pending/3a/b.com/task.json", {"domain": "b.com"})
    queue = fleet.queue("enrich")
    queue.push({"domain": "mine"}, id="mine")
    assert run_all(queue) == ["mine"]
    assert run_all(queue) == []
    [note] = {notice.note for notice in queue.notices()}
    assert "`limpet queue adopt enrich --quiesced`" in note
    assert queue.failed() == []
    assert fleet.store.get(Key("queues/enrich/pending/a.com/task.json")).data == b'{"domain": "a.com"}'
    report = adopt_tasks(fleet, "enrich", None, quiesced=True)
    assert (report.pending, report.bad) == (1 + leased, [])


def test_a_task_of_another_program_with_a_lease_that_nobody_can_read_is_not_rejected() -> None:
    runtime = ManualRuntime()
    store = MemoryStore(runtime)
    store.put(Key("queues/q/pending/a/task.json"), b'{"domain": "a"}')
    store.put(Key("queues/q/pending/a/lease.json"), LEASE.encode())
    queue = BucketQueue(store, "q", runtime)
    for _ in range(3):
        assert not queue.claim()
        runtime.sleep(700.0)
    assert {notice.failed for notice in queue.notices()} == {0}
    assert [stat.key for stat in store.list("queues/q/failed")] == []
    assert [stat.key for stat in store.list("queues/q/parts")] == []


@pytest.mark.parametrize("name", ["pending/a/task.json", "pending/3f/a/task.json", "completed/a.json", "failed/a.json"])
def test_a_worker_does_not_start_on_files_of_another_program(fleet: Fleet, name: str) -> None:
    """A sweep would take what has ended there for receipts, and delete it after 30 days."""
    queue = fleet.queue("enrich")
    assert isinstance(queue, BucketQueue)
    queue.check_own()
    lay(fleet, name, {"domain": "a.com"})
    with pytest.raises(Unsupported, match="is a file of another program, in the folder of queue 'enrich'") as refused:
        queue.check_own()
    assert "limpet queue adopt" in refused.value.hint
    assert adopt_tasks(fleet, "enrich", None, quiesced=True).bad == []
    queue.check_own()


def test_that_a_queue_is_our_own_is_looked_at_until_it_was_swept() -> None:
    fleet = limpet.open("memory://")
    queue = fleet.queue("enrich")
    assert isinstance(queue, BucketQueue)
    queue.push({}, id="a")
    with fleet.meter.measure() as cost:
        queue.check_own()
    assert cost.requests == {"head": 1, "list": 3, "get": 1}
    queue._sweeper.take_turn()
    with fleet.meter.measure() as cost:
        queue.check_own()
    assert cost.requests == {"head": 1}

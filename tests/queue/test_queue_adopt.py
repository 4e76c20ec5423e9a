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
from limpet.errors import Denied, Invalid, LimpetError, Missing
from limpet.keys import Key
from limpet.queue import BucketQueue, QueueAdoptReport
from limpet.queue.adopt import QUEUE_FOLDERS
from limpet.store import MemoryStore, ScopedStore
from limpet.store.sources import FolderSource, StoreSource
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


def ran(fleet: Fleet) -> list[str]:
    """Run all that waits; the domains, sorted."""
    seen: list[str] = []
    while claim := fleet.queue("enrich").claim():
        with claim:
            for task in claim:
                seen.append(task.payload["domain"])
                task.done()
    return sorted(seen)


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
    assert (report.deleted, report.ignored, report.bad) == (7, 2, [])
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
    ("pending/payload/task.json", b'{"a": "' + b"x" * (300 << 10) + b'"}', "a task holds 262144"),
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


def test_names_that_are_no_unicode_and_links_are_passed_over(tmp_path: Path, old: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    os.makedirs(os.fsencode(old) + b"/pending/\xff")
    Path(os.fsdecode(os.fsencode(old) + b"/pending/\xff/task.json")).write_text("{}")
    secret = write(tmp_path, "secret/task.json", {"domain": "secret"})
    (old / "pending/linked").symlink_to(secret.parent)
    (old / "pending/file").mkdir()
    (old / "pending/file/task.json").symlink_to(secret)
    os.mkfifo(old / "completed/pipe.json")
    report = adopt_tasks(fleet, "enrich", str(old), quiesced=True)
    assert [bad.name for bad in report.bad] == ["pending/?/task.json"]
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


def test_the_place_of_the_queue_itself_and_an_empty_one_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    fleet.queue("enrich").push({"domain": "a.com"}, id="a.com")
    if not fleet.url.startswith("memory://"):
        place, mark, query = fleet.url.partition("?")
        with pytest.raises(Invalid, match="is the folder of the queue 'enrich' itself"):
            adopt_tasks(fleet, "enrich", f"{place}/queues/enrich{mark}{query}", quiesced=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Missing, match="there are no tasks at"):
        adopt_tasks(fleet, "enrich", str(tmp_path / "empty"))
    with pytest.raises(Missing, match="there is no folder"):
        adopt_tasks(fleet, "enrich", str(tmp_path / "nowhere"))
    assert ran(fleet) == ["a.com"]


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
    """Of the fleet's store: what waits 1 PUT + 2 HEADs, completed 1 HEAD + 1 PUT, failed 2 HEADs + 1 PUT."""
    fleet = limpet.open("memory://")
    fleet.check()
    with fleet.meter.measure() as cost:
        adopt_tasks(fleet, "enrich", str(old), quiesced=True)
    assert cost.requests == {"put": 3 + 1 + 2, "head": 3 * 2 + 1 + 2 * 2}
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

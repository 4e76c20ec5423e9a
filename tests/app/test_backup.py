"""`backup` and `restore`: a running fleet is copied whole; what is killed goes on; what is hostile stops nothing."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import limpet
from cli.harness import Here, limpet_command, poll
from limpet.app import Fleet, backup_decide, backup_order, backup_run
from limpet.app.backup import backup, check_backup, restore
from limpet.app.backup_decide import kind_of
from limpet.app.backup_run import LOCK_TTL_S, BackupReport
from limpet.app.place import _named_memory, store_for
from limpet.app.record import FleetRecord, record_cell
from limpet.kernel.errors import (
    Corrupt,
    Denied,
    Held,
    Invalid,
    LeaseLost,
    LimpetError,
    Missing,
    Unavailable,
    Unsupported,
)
from limpet.kernel.keys import BACKUP_LOCK, FLEET, Key
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.runtime import Runtime, ThreadHandle, system
from limpet.kernel.store import Blob, MemoryStore, MeteredStore, Stat, Store, Version
from limpet.queue import BucketQueue, Fail
from limpet.worker import Worker
from support.clock import QueueRuntime, Time
from support.servers.process import Bucket


@dataclass
class Site:
    """A record."""

    domain: str
    n: int = 0


# ---- a fleet that moves at any request of the backup ----


class Moving(MemoryStore):
    """Lets `deed` happen just before the request number `at` of whoever looks through it."""

    def __init__(self, runtime: Runtime, fleet: MemoryStore, at: int, deed: Callable[[], object]) -> None:
        super().__init__(runtime)
        self._objects = fleet._objects
        self.requests = 0
        self._at = at
        self._deed = deed

    def _step(self) -> None:
        if self.requests == self._at:
            self._deed()
        self.requests += 1

    def get(self, key: Key, **options: Any) -> Blob:
        """See `Store.get`. An empty shard is one of many, and no moment to act."""
        if not (key.endswith(".usv") and not self._objects[key].data):
            self._step()
        return super().get(key, **options)

    def head(self, key: Key) -> Stat:
        """See `Store.head`."""
        self._step()
        return super().head(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`."""
        self._step()
        return super().list(prefix, after=after)

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """See `Store.list_dirs`."""
        self._step()
        return super().list_dirs(prefix)

    def put(self, *args: Any, **options: Any) -> Version:
        """Never: nothing is written to the source."""
        raise AssertionError(f"the backup wrote {args[0]} to the source")

    def delete(self, key: Key) -> None:
        """Never."""
        raise AssertionError(f"the backup deleted {key} in the source")


class Story:
    """A fleet as it was before the backup began, and what happens to it once."""

    def __init__(
        self, begin: Callable[[Fleet], object], deed: Callable[[Fleet], object], *, kept_before: bool = False
    ) -> None:
        self.begin = begin
        self.deed = deed
        self.kept_before = kept_before
        """Whether the target has a backup from before."""

    def copied(self, at: int) -> tuple[Fleet, int]:
        """The restored fleet, if the deed happens at that request; and how many requests there were."""
        name = f"story-{uuid4().hex}"
        runtime = QueueRuntime(Time(), "fleet")
        memory = _named_memory[name] = MemoryStore(runtime)
        fleet = limpet.open(f"memory://{name}", runtime=runtime)
        self.begin(fleet)
        source = Moving(runtime, memory, at, lambda: self.deed(fleet))
        kept, made = MemoryStore(runtime), MemoryStore(runtime)
        if self.kept_before:
            backup(memory, kept, runtime, source_url="s", target_url="t")
        backup(source, kept, runtime, source_url="s", target_url="t")
        restore(kept, made, runtime, source_url="t", target_url="u")
        _named_memory[f"{name}-restored"] = made
        return limpet.open(f"memory://{name}-restored", runtime=runtime), source.requests

    def losses(self, holds: Callable[[Fleet], object]) -> Iterator[int]:
        """The requests at which the deed makes the copy inconsistent."""
        at, total = 0, 1
        while at <= total:
            fleet, total = self.copied(at)
            if not holds(fleet):
                yield at
            at += 1
        assert total > 20

    def lost(self, holds: Callable[[Fleet], object]) -> list[int]:
        """All of these requests."""
        return [*self.losses(holds)]

    def loses(self, holds: Callable[[Fleet], object]) -> bool:
        """Whether there is one."""
        return any(True for _ in self.losses(holds))


def claim_all(fleet: Fleet) -> list[str]:
    """Do whatever waits; what was done."""
    done = []
    queue = fleet.queue("q")
    while claim := queue.claim():
        with claim:
            for task in claim:
                done.append(task.id)
                task.done({"again": True})
    return done


def claim_later(fleet: Fleet) -> None:
    """Do what is due in a while."""
    fleet.runtime.sleep(10.0)
    claim_all(fleet)


TASK = Story(lambda fleet: fleet.queue("q").push({"n": 1}, id="a"), claim_all)
MINTED = Story(lambda fleet: fleet.queue("q").push({"n": 1}), claim_all)
DELAYED = Story(lambda fleet: fleet.queue("q").push({"n": 1}, id="a", delay_s=5.0), claim_later)


def is_known(fleet: Fleet) -> bool:
    """The task waits and can be done, or has ended."""
    state = fleet.queue("q").result("a").state
    fleet.runtime.sleep(100.0)
    return state == "completed" or claim_all(fleet) == ["a"]


@pytest.mark.parametrize("story", [TASK, DELAYED])
def test_a_task_that_moves_while_it_is_copied_is_in_the_copy(story: Story) -> None:
    assert story.lost(is_known) == []


def test_a_task_that_ended_while_it_was_copied_is_not_run_again_if_its_receipt_was_copied() -> None:
    def once(fleet: Fleet) -> bool:
        stats = fleet.queue("q").stats()
        return (stats.pending, stats.completed) in ((0, 1), (1, 0))

    assert MINTED.lost(once) == []


def test_the_wrong_order_of_a_queue_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_order, "QUEUE_ORDER", backup_decide.QUEUE_ORDER[::-1])
    assert TASK.loses(is_known)
    assert DELAYED.loses(is_known)


def fail_one(fleet: Fleet) -> None:
    """A task that has failed."""
    queue = fleet.queue("q", max_attempts=1)
    queue.push({"n": 1}, id="a")
    claim = queue.claim()
    assert claim
    with claim:
        for task in claim:
            task.fail("boom")


RETRIED = Story(fail_one, lambda fleet: fleet.queue("q").retry("a"))


def has_a_life(fleet: Fleet) -> bool:
    """It has failed, and may be retried; or it was, and its next life waits."""
    result = fleet.queue("q").result("a")
    return result.state == "failed" or claim_all(fleet) == ["a~1"]


def test_a_retry_while_it_is_copied_loses_nothing() -> None:
    assert RETRIED.lost(has_a_life) == []


def test_a_next_life_that_is_not_followed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_order, "_follow_retries", lambda run: None)
    assert RETRIED.loses(has_a_life)


class DurableTask:
    """A durable task of a fleet, and which of its steps were called. With `fails` its first life ends as failed."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.called: list[str] = []

    def work(self, fleet: Fleet, *, until_empty: bool = True) -> None:
        """Run the task, and those which it pushes."""

        @fleet.task("part")
        def part(name: str) -> str:
            return f"{name}!"

        @fleet.task("q", durable=True)
        def flow() -> list[Any]:
            task = limpet.current_task()
            first = limpet.step(self._call, "first")
            ends = limpet.gather(part.push_many([(first,), ("b",)], batch=1))
            second = limpet.step(self._call, f"{first} second", name="second")
            limpet.sleep(5)
            if self.fails and "~" not in task.id:
                raise Fail("it is to fail")
            return [first, [end.value for end in ends], second, limpet.wait_signal("go")]

        Worker([flow.job, part.job], fleet.runtime, burst=True, until_empty=until_empty).run()

    def _call(self, name: str) -> str:
        self.called.append(name)
        return f"{name}-{len(self.called)}"

    def begin(self, fleet: Fleet) -> None:
        """It has recorded steps, and waits for a signal; or it has failed."""
        fleet.queue("q").push({}, id="a")
        self.work(fleet, until_empty=False)
        while fleet.queue("part").stats().pending or len(self.called) < 2:
            fleet.runtime.sleep(3.0)
            self.work(fleet, until_empty=False)
        fleet.runtime.sleep(10.0)
        self.work(fleet, until_empty=False)

    def end(self, fleet: Fleet) -> None:
        """It is retried, or gets its signal, and ends."""
        queue = fleet.queue("q")
        id_ = "a"
        if queue.result("a").state == "failed":
            [id_] = queue.retry("a")
        elif queue.result("a~1").state != "unknown":
            id_ = "a~1"
        if queue.result(id_).state != "completed":
            queue.signal(id_, "go", "on")
            self.work(fleet)

    def is_whole(self, fleet: Fleet) -> bool:
        """In the copy it ends as it would have done, and no step that was recorded before is called again."""
        before = len(self.called)
        self.end(fleet)
        ids = ["a~1"] if self.fails else ["a"]
        value = fleet.queue("q").result(ids[0]).value
        fleet.runtime.sleep(2000.0)
        fleet.queue("q").sweep()  # type: ignore[attr-defined]
        left = [stat.key for stat in fleet.store.list("queues") if "/steps/" in stat.key]
        return (
            len(self.called) == before
            and value == ["first-1", ["first-1!", "b!"], "first-1 second-2", "on"]
            and not left
        )


def losses_of_steps(*, fails: bool) -> Iterator[int]:
    """The requests at which the end of a durable task makes the copy inconsistent."""
    flows: list[DurableTask] = []

    def begin(fleet: Fleet) -> None:
        flows.append(DurableTask(fails=fails))
        flows[-1].begin(fleet)

    return Story(begin, lambda fleet: flows[-1].end(fleet)).losses(lambda fleet: flows[-1].is_whole(fleet))


@pytest.mark.parametrize("fails", [False, True])
def test_a_durable_task_that_goes_on_while_it_is_copied_keeps_its_steps(fails: bool) -> None:
    assert [*losses_of_steps(fails=fails)] == []


def test_what_following_steps_costs() -> None:
    def lists(begin: Callable[[Fleet], object]) -> int:
        runtime = QueueRuntime(Time(), "fleet")
        name = f"story-{uuid4().hex}"
        memory = _named_memory[name] = MemoryStore(runtime)
        begin(limpet.open(f"memory://{name}", runtime=runtime))
        report = backup(memory, MemoryStore(runtime), runtime, source_url="s", target_url="t")
        return report.requests["source"]["list"]

    def push_plain(fleet: Fleet) -> None:
        for queue in ("q", "part"):
            fleet.queue(queue).push({}, id="a")

    plain = lists(push_plain)
    assert lists(DurableTask().begin) == plain + 1, "pending/ of the queue that has a durable task, once more"
    assert lists(DurableTask(fails=True).begin) == plain + 1, "failed/, likewise"


@pytest.mark.parametrize("fails", [False, True])
def test_steps_whose_task_is_not_followed_are_caught(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_order, "_moved", lambda run: set())
    assert any(True for _ in losses_of_steps(fails=fails))


class FanningTask:
    """A durable task that waits, and then pushes tasks, of which one is durable and pushes others. With `many`, the
    results are too large for the record of the gather, which asks for them again."""

    def __init__(self, *, many: bool = False) -> None:
        self.many = many

    def work(self, fleet: Fleet, *queues: str) -> None:
        """Run what waits in these queues."""

        @fleet.task("part")
        def part(name: str) -> str:
            return name * (40_000 if self.many else 1)

        @fleet.task("half", durable=True)
        def half() -> int:
            return sum(len(end.unwrap()) for end in limpet.gather(part.push_many([("x",), ("y",)], batch=2)))

        @fleet.task("q", durable=True)
        def flow() -> list[Any]:
            limpet.wait_signal("begin")
            first = limpet.step(lambda: "a", name="first")
            handles: list[Any] = [
                *part.push_many([(first,)] * 20, batch=1),
                half.push(),
                part.using(delay_s=3).push("z"),
            ]
            ends = limpet.gather(handles)
            values = [end.unwrap() for end in ends]
            if self.many:
                values = [value if isinstance(value, int) else len(value) for value in values]
            return [limpet.wait_signal("go"), *values]

        jobs = [each.job for each in (flow, half, part) if each.job.queue.name in queues]
        Worker(jobs, fleet.runtime, burst=True).run()

    def begin(self, fleet: Fleet) -> None:
        """It waits for its first signal."""
        fleet.queue("q").push({}, id="a")
        self.work(fleet, "q")

    def push(self, fleet: Fleet) -> None:
        """It pushes, and so does one of the tasks."""
        fleet.queue("q").signal("a", "begin", 1, early=True)
        self.work(fleet, "q")
        self.work(fleet, "half")

    def end(self, fleet: Fleet) -> None:
        """It waits for its second signal, and nothing else waits."""
        if fleet.queue("q").result("a").state == "pending":
            fleet.queue("q").signal("a", "begin", 1, early=True)
        for _ in range(6):
            fleet.runtime.sleep(20.0)
            self.work(fleet, "q", "half", "part")

    def is_whole(self, fleet: Fleet) -> bool:
        """In the copy it ends with all results."""
        queue = fleet.queue("q")
        self.end(fleet)
        queue.signal("a", "go", "on")
        self.end(fleet)
        parts = ["on", *[40_000] * 20, 80_000, 40_000] if self.many else ["on", *["a"] * 20, 2, "z"]
        return bool(queue.result("a").value == parts)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("deed", ["push", "end"])
def test_what_a_durable_task_pushes_while_it_is_copied_is_in_the_copy(deed: str, many: bool) -> None:
    flow = FanningTask(many=many)
    assert Story(flow.begin, getattr(flow, deed)).lost(flow.is_whole) == []


class CountingTask:
    """A durable task that waits for tasks, each of which returns another value whenever it runs."""

    def __init__(self) -> None:
        self.runs = count(1)

    def work(self, fleet: Fleet, *queues: str) -> None:
        """Run what waits in these queues."""

        @fleet.task("part")
        def part(name: str) -> str:
            return f"{name}{next(self.runs)}"

        @fleet.task("q", durable=True)
        def flow() -> list[Any]:
            limpet.step(lambda: next(self.runs), name="first")
            handles = part.push_many([("a",), ("b",)], batch=1)
            ends = limpet.gather(handles)
            return [limpet.wait_signal("go"), [(end.id, end.value) for end in ends]]

        jobs = [each.job for each in (flow, part) if each.job.queue.name in queues]
        Worker(jobs, fleet.runtime, burst=True).run()

    def push(self, fleet: Fleet) -> None:
        """It waits for a worker."""
        fleet.queue("q").push({}, id="a")

    def begin(self, fleet: Fleet) -> None:
        """It waits for tasks."""
        self.push(fleet)
        self.work(fleet, "q")

    def gather(self, fleet: Fleet) -> None:
        """These end, and it has recorded that."""
        for _ in range(3):
            fleet.runtime.sleep(10.0)
            self.work(fleet, "part", "q")

    def is_agreed(self, fleet: Fleet) -> bool:
        """In the copy, what it gathered is what the tasks returned."""
        self.gather(fleet)
        fleet.queue("q").signal("a", "go", "on")
        self.gather(fleet)
        said, ends = fleet.queue("q").result("a").unwrap()
        return said == "on" and [fleet.queue("part").result(id_).value for id_, _ in ends] == [end for _, end in ends]

    def is_not_repeated(self, fleet: Fleet) -> bool:
        """The first claim in the copy calls no step that the copy has."""
        copied = any("/steps/" in stat.key for stat in fleet.store.list("queues"))
        before = next(self.runs)
        self.work(fleet, "q")
        return not (copied and next(self.runs) > before + 1)


def test_what_a_task_gathers_while_it_is_copied_agrees_with_the_ends_in_the_copy() -> None:
    """Also where what it had pushed is in the target since the last backup, and is not read again."""
    task = CountingTask()
    assert Story(task.begin, task.gather, kept_before=True).lost(task.is_agreed) == []


def test_a_task_that_is_claimed_first_while_it_is_copied_calls_no_copied_step_again() -> None:
    """A9: the lease is not in the copy, so the first claim of the restored fleet has token 1."""
    task = CountingTask()
    assert Story(task.push, lambda fleet: task.work(fleet, "q")).lost(task.is_not_repeated) == []


def test_pushes_of_steps_that_are_not_followed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_order, "_pushed", lambda run: set())
    flow = FanningTask()
    assert Story(flow.begin, flow.push).loses(flow.is_whole)


def put_some(fleet: Fleet) -> None:
    """Records in a shard, a pack and a single."""
    index = fleet.index("sites", Site, key="domain")
    index.put_many([Site(f"s{n}", n) for n in range(3)])
    index.compile(full=True)
    index.put(Site("s0", 10))


def fold_more(fleet: Fleet) -> None:
    """Another put, and everything is folded."""
    index = fleet.index("sites", Site, key="domain")
    index.put(Site("s1", 11))
    index.compile(full=True)


INDEX = Story(put_some, fold_more)


def has_records(fleet: Fleet) -> bool:
    """Every record that was put before is there, and `verify` finds nothing."""
    index = fleet.index("sites", Site, key="domain")
    found = {site.domain: site.n for site in index.scan()}
    newest = found.get("s0") == 10 and found.get("s1") in (1, 11) and found.get("s2") == 2
    return newest and not [each for each in index.verify().findings if each.kind != "behind"]


def test_records_that_are_compiled_while_they_are_copied_are_in_the_copy() -> None:
    assert INDEX.lost(has_records) == []


def test_the_wrong_order_of_an_index_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_order, "INDEX_ORDER", backup_decide.INDEX_ORDER[::-1])
    monkeypatch.setattr(backup_order, "_settle_manifest", lambda run, root: run.copy_below(root, "manifest"))
    assert INDEX.loses(has_records)


def fence_again(fleet: Fleet) -> None:
    """The next holder writes."""
    with fleet.lock("report").hold(wait_s=0) as lease:
        fleet.cell("report").write({"token": lease.token}, lease=lease)


def test_no_cell_is_fenced_above_the_token_of_its_lock() -> None:
    def next_holder_may_write(fleet: Fleet) -> bool:
        seen = fleet.cell("report").read()
        assert seen is not None
        with fleet.lock("report").hold(wait_s=0) as lease:
            return bool(lease.token > seen.value["token"])

    assert Story(fence_again, fence_again).lost(next_holder_may_write) == []


def test_a_catalog_that_commits_and_collects_meanwhile_is_whole_in_the_copy() -> None:
    pytest.importorskip("pyiceberg")
    from datetime import timedelta

    from limpet.catalog.gc import delete_below, raise_floor
    from support.catalog import append, table

    def begin(fleet: Fleet) -> None:
        with fleet.lead_catalog() as catalog:
            catalog.create_namespace(["a"])
            for name in ("t", "gone"):
                catalog.create_table(["a"], table(name))

    def deed(fleet: Fleet) -> None:
        with fleet.lead_catalog() as catalog:
            catalog.commit_table(["a"], "t", append(catalog.load_table(["a"], "t"), 1))
            catalog.drop_table(["a"], "gone", purge=True)
            fleet.runtime.sleep(10.0)
            raise_floor(catalog.storage, keep=timedelta(0))
            delete_below(catalog.storage, grace_s=0.0)

    def is_whole(fleet: Fleet) -> bool:
        catalog = fleet.catalog()
        catalog.verify()
        for name in catalog.tables(["a"]).names:
            catalog.load_table(["a"], name)
        return "t" in catalog.tables(["a"]).names

    assert Story(begin, deed).lost(is_whole) == []


# ---- a fleet that runs ----


PACE_S = 0.02
"""Between two acts of one thread, so that the copies stay small."""


class Busy:
    """Threads that push, work, put, compile and commit until they are stopped, and note what was acknowledged."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pushed: list[str] = []
        self.put: dict[str, int] = {}
        self.tables: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(each,))
            for each in (self._push, self._work, self._put, self._compile, self._commit)
        ]
        self.errors: list[BaseException] = []

    def __enter__(self) -> Busy:
        for thread in self._threads:
            thread.start()
        try:
            poll("some work was done", self._is_busy)
        except AssertionError:
            self.__exit__()
            raise
        return self

    def _is_busy(self) -> bool:
        return bool(self.errors) or (len(self.pushed) > 20 and len(self.put) > 5 and len(self.tables) > 1)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors[0]

    def _run(self, work: Callable[[Fleet], None]) -> None:
        try:
            work(limpet.open(self.url, durability="os"))
        except BaseException as error:  # noqa: BLE001  told when the block ends
            self.errors.append(error)

    def _push(self, fleet: Fleet) -> None:
        queue = fleet.queue("q")
        while not self._stop.wait(PACE_S):
            id_ = f"t{len(self.pushed)}"
            queue.push({"n": 1}, id=id_)
            self.pushed.append(id_)
            self.pushed.extend(queue.push_many([{"n": n} for n in range(3)]))

    def _work(self, fleet: Fleet) -> None:
        queue = fleet.queue("q")
        while not self._stop.is_set():
            claim = queue.claim()
            if claim:
                with claim:
                    for task in claim:
                        task.done({"n": 1})

    def _put(self, fleet: Fleet) -> None:
        index = fleet.index("sites", Site, key="domain")
        n = 0
        while not self._stop.wait(PACE_S):
            n += 1
            index.put(Site(f"s{n % 97}", n))
            self.put[f"s{n % 97}"] = n

    def _compile(self, fleet: Fleet) -> None:
        index = fleet.index("sites", Site, key="domain")
        while not self._stop.wait(PACE_S):
            index.compile(full=True)

    def _commit(self, fleet: Fleet) -> None:
        from support.catalog import table

        with fleet.lead_catalog() as catalog:
            catalog.create_namespace(["a"])
            while not self._stop.wait(PACE_S):
                name = f"t{len(self.tables)}"
                catalog.create_table(["a"], table(name))
                self.tables.append(name)


def copy_while_busy(url: str, kept_url: str, made_url: str) -> None:
    """Back it up while it runs, twice; restore; then everything that was acknowledged before is there, and is whole."""
    store, kept, made = (store_for(each, system(), durability="os") for each in (url, kept_url, made_url))
    with Busy(url) as busy:
        backup(store, kept, system(), source_url=url, target_url=kept_url)
        pushed, put, tables = [*busy.pushed], dict(busy.put), [*busy.tables]
        backup(store, kept, system(), source_url=url, target_url=kept_url)
    assert check_backup(kept, system(), url=kept_url).ok
    restore(kept, made, system(), source_url=kept_url, target_url=made_url)
    fleet = limpet.open(made_url, durability="os")
    queue = fleet.queue("q")
    assert isinstance(queue, BucketQueue)
    waiting = {peeked.id for peeked in queue.peek(1_000_000)}
    lost = [id_ for id_ in pushed if id_ not in waiting and queue.result(id_).state != "completed"]
    assert lost == []
    assert queue.sweep() == 0, "every entry is in one place"
    index = fleet.index("sites", Site, key="domain")
    found = {site.domain: site.n for site in index.scan()}
    assert [key for key, n in put.items() if found[key] < n] == []
    assert [each for each in index.verify().findings if each.kind != "behind"] == []
    catalog = fleet.catalog()
    catalog.verify()
    assert {*tables} <= {*catalog.tables(["a"]).names}
    for name in catalog.tables(["a"]).names:
        assert catalog.load_table(["a"], name).metadata


def test_a_running_directory_is_copied_whole(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    copy_while_busy(*(str(tmp_path / name) for name in ("fleet", "kept", "made")))


@pytest.mark.full
def test_a_running_bucket_is_copied_to_a_directory_and_back(
    seaweedfs: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    for name, value in seaweedfs.env.items():
        monkeypatch.setenv(name, value)
    prefix = f"backup-{uuid4().hex}"
    copy_while_busy(seaweedfs.at(f"{prefix}/fleet"), str(tmp_path / "kept"), seaweedfs.at(f"{prefix}/made"))


def work_on_orders(fleet: Fleet, called: list[str], *, until_empty: bool) -> None:
    """Run durable tasks, which wait for a signal and for a batch, and note the calls of their steps."""

    def note(name: str) -> str:
        called.append(name)
        return f"{name} {len(called)}"

    @fleet.task("order", durable=True)
    def order(name: str) -> list[Any]:
        reserved = limpet.step(note, f"reserve {name}", name="reserve")
        early = limpet.wait_signal("early")
        ends = limpet.gather(fleet.queue("pack").push_many([{"n": n} for n in range(4)], batch=2))
        charged = limpet.step(note, f"charge {name}", name="charge")
        return [reserved, early, sum(end.value for end in ends), charged, limpet.wait_signal("late")]

    Worker([order.job], system(), burst=True, until_empty=until_empty, poll_s=0.2).run()


def pack(fleet: Fleet) -> bool:
    """Do one entry of the awaited tasks; whether there was one."""
    with fleet.queue("pack").claim() as claim:
        for task in claim or ():
            task.done(task.payload["n"])
        return bool(claim)


@pytest.mark.parametrize("kind", ["directory", "seaweedfs"])
def test_durable_tasks_go_on_in_another_place(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps, suspended leases, signals and awaited batches are copied: recorded steps are not called again."""
    places = [str(tmp_path / name) for name in ("fleet", "kept", "made")]
    if kind == "seaweedfs":
        bucket: Bucket = request.getfixturevalue("seaweedfs")
        for name, value in bucket.env.items():
            monkeypatch.setenv(name, value)
        prefix = f"backup-{uuid4().hex}"
        places = [bucket.at(f"{prefix}/fleet"), places[1], bucket.at(f"{prefix}/made")]
    stores = [store_for(url, system()) for url in places]
    called: list[str] = []
    fleet = limpet.open(places[0])
    queue = fleet.queue("order")
    batch = [*queue.push_many([{"name": "x"}, {"name": "y"}], id="two")]
    ids = [queue.push({"name": name}, id=name).id for name in ("single", "waits")] + batch
    for id_ in ids:
        if id_ != "waits":
            queue.signal(id_, "early", 7)
    work_on_orders(fleet, called, until_empty=False)
    assert pack(fleet), "one of two entries that each of them awaits"
    assert isinstance(queue, BucketQueue)
    assert [row["state"] for row in queue.entries("pending")] == ["suspended"] * 3, "two of the tasks are a batch"
    before = sorted(called)
    assert before == sorted(f"reserve {name}" for name in ("single", "waits", "x", "y"))

    backup(stores[0], stores[1], system(), source_url=places[0], target_url=places[1])
    restore(stores[1], stores[2], system(), source_url=places[1], target_url=places[2])
    made = limpet.open(places[2])
    queue = made.queue("order")
    for id_ in ids:
        queue.signal(id_, "late", "on", early=True)
    assert queue.signal("waits", "early", 8)
    assert not queue.signal("single", "early", 8), "the first one counts, and was copied"
    while queue.stats().pending:
        while pack(made):
            pass
        work_on_orders(made, called, until_empty=False)
    results = [result.unwrap() for result in queue.results(ids)]
    assert [value[1:3] + value[4:] for value in results] == [[7, 6, "on"], [8, 6, "on"], [7, 6, "on"], [7, 6, "on"]]
    names = [(value[0].rsplit(" ", 1)[0], value[3].rsplit(" ", 1)[0]) for value in results]
    assert names == [(f"reserve {name}", f"charge {name}") for name in ("single", "waits", "x", "y")]
    assert sorted(called[4:]) == sorted(f"charge {name}" for name in ("single", "waits", "x", "y"))


# ---- killed, repeated, refused ----


@pytest.fixture
def fleet_dir(tmp_path: Path) -> Path:
    """A fleet of some hundred objects."""
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    for n in range(30):
        fleet.queue("q").push({"n": n}, id=f"t{n}")
    fleet.index("sites", Site, key="domain").put(Site("a", 1))
    fleet.cell("c").write({"n": 1})
    return tmp_path / "fleet"


def copy(source: Path, target: Path, **options: Any) -> BackupReport:
    """Back up one directory to another."""
    old, new = (store_for(str(each), system(), durability="os") for each in (source, target))
    return backup(old, new, system(), source_url=str(source), target_url=str(target), **options)


def bring_back(source: Path, target: Path, **options: Any) -> BackupReport:
    """Restore one directory to another."""
    old, new = (store_for(str(each), system(), durability="os") for each in (source, target))
    return restore(old, new, system(), source_url=str(source), target_url=str(target), **options)


def expire(store: Store) -> None:
    """Let the lock of a run that was killed end, as it does by itself after its ttl."""
    with suppress(Missing):
        Lock(store, BACKUP_LOCK, "backup", LOCK_TTL_S, system(), VersionWatch(system())).break_()


def files_of(root: Path) -> dict[str, bytes]:
    """The objects of a directory that are copied."""
    store = store_for(str(root), system())
    return {stat.key: store.get(stat.key, size_max=None).data for stat in store.list() if kind_of(stat.key) != "own"}


def test_a_second_backup_copies_only_what_changed_and_removes_what_is_gone(fleet_dir: Path, tmp_path: Path) -> None:
    first = copy(fleet_dir, tmp_path / "kept")
    assert (first.copied, first.removed) == (first.objects, 0)
    fleet = limpet.open(fleet_dir, durability="os")
    claim = fleet.queue("q").claim()
    assert claim
    with claim:
        for task in claim:
            task.done()
    second = copy(fleet_dir, tmp_path / "kept")
    assert second.copied <= 3, "the receipt, and the index's manifest"
    assert second.removed == 1, "the task"
    assert files_of(tmp_path / "kept") == files_of(fleet_dir)


@pytest.mark.parametrize("after", [1, 150])
def test_a_killed_backup_is_known_as_such_and_goes_on(fleet_dir: Path, tmp_path: Path, after: int) -> None:
    kept = tmp_path / "kept"
    process = subprocess.Popen(limpet_command("backup", str(fleet_dir), str(kept)), stdout=subprocess.DEVNULL)

    def begun() -> bool:
        files = sum(len(names) for _, _, names in os.walk(kept))
        return process.poll() is not None or (files > after and (kept / "backup.json").exists())

    poll("it has begun", begun)
    process.kill()
    process.wait()
    store = store_for(str(kept), system())
    if not check_backup(store, system(), url="kept").finished:
        with pytest.raises(Invalid, match="was not finished"):
            bring_back(kept, tmp_path / "made")
    expire(store)
    assert copy(fleet_dir, kept).left_out == {}
    assert check_backup(store, system(), url="kept").ok
    bring_back(kept, tmp_path / "made")
    assert files_of(tmp_path / "made") == files_of(fleet_dir)


class Tired(Exception):
    """The process ends here."""


@pytest.mark.parametrize("after", [1, 2, 3, 100, 296, 297, 298, 299, 300, 301, 302, 303])
def test_a_restore_that_ends_anywhere_goes_on(fleet_dir: Path, tmp_path: Path, after: int) -> None:
    copy(fleet_dir, tmp_path / "kept")
    runtime = system()
    kept = store_for(str(tmp_path / "kept"), runtime)
    made = MemoryStore(runtime)

    class Dying(MemoryStore):
        left = after

        def put(self, *args: Any, **options: Any) -> Version:
            if self.left == 0:
                raise Tired
            self.left -= 1
            return made.put(*args, **options)

    dying = Dying(runtime)
    dying._objects = made._objects
    try:
        restore(kept, dying, runtime, source_url="kept", target_url="made")
    except Tired:
        _named_memory["dying"] = made
        record = made._objects.get(Key("limpet.json"))
        is_done = record is not None and b"restoring" not in record.data
        if record is not None and not is_done:
            with pytest.raises(LimpetError, match="being restored"):
                limpet.open("memory://dying").cell("c").read()
        expire(made)
        if not is_done:  # only the lock was not freed any more
            restore(kept, made, runtime, source_url="kept", target_url="made")
    objects = {key: entry.data for key, entry in made._objects.items() if kind_of(key) != "own"}
    assert objects == files_of(fleet_dir)
    _named_memory["dying"] = made
    seen = limpet.open("memory://dying").cell("c").read()
    assert seen is not None
    assert seen.value == {"n": 1}


# ---- two runs to one target ----


class Struck(MemoryStore):
    """Lets `deed` happen just before the request number `at` of whoever looks through it."""

    def __init__(self, runtime: Runtime, store: MemoryStore, at: int, deed: Callable[[], object]) -> None:
        super().__init__(runtime)
        self._objects = store._objects
        self.requests = 0
        self._at = at
        self._deed = deed
        self._dead = False

    def _step(self) -> None:
        self.requests += 1
        if self._dead:
            raise Unavailable("the process is dead")
        if self.requests == self._at + 1:
            try:
                self._deed()
            except Tired:
                self._dead = True
                raise

    def get(self, key: Key, **options: Any) -> Blob:
        """See `Store.get`."""
        self._step()
        return super().get(key, **options)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`."""
        self._step()
        return super().list(prefix, after=after)

    def put(self, *args: Any, **options: Any) -> Version:
        """See `Store.put`."""
        self._step()
        return super().put(*args, **options)

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        self._step()
        super().delete(key)


class Unrenewed(QueueRuntime):
    """A process whose threads never run, as if it were paused."""

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        """Nothing."""
        return super().spawn(lambda: None, name=name)


class TwoRuns:
    """A fleet that has been backed up once and has changed since; one run to that target, and one that begins at some
    request of the first."""

    def __init__(self, *, paused: bool) -> None:
        self.paused = paused
        self.time = Time()
        self.slow, self.quick = Unrenewed(self.time, "slow"), QueueRuntime(self.time, "quick")
        name = f"runs-{uuid4().hex}"
        self.memory = _named_memory[name] = MemoryStore(self.quick)
        self.fleet = limpet.open(f"memory://{name}", runtime=self.quick)
        self.kept = MemoryStore(self.quick)
        self.refused = 0

    def change(self, n: int) -> None:
        """A task ends, one is pushed, one fails, a cell is rewritten."""
        queue = self.fleet.queue("q", max_attempts=1)
        with queue.claim() as claim:
            for task in claim or ():
                task.fail("boom") if n % 2 else task.done(n)
        queue.push({"n": n}, id=f"t{n}")
        self.fleet.cell("c").write({"n": n})

    def copy(self, runtime: QueueRuntime, target: MemoryStore) -> BackupReport:
        """Run a backup."""
        return backup(self.memory, target, runtime, source_url="s", target_url="t")

    def interrupt(self) -> None:
        """The fleet changes, and the other run begins: while the first one works, or is paused beyond its lease."""
        self.change(3)
        if self.paused:
            self.quick.sleep(3 * LOCK_TTL_S)
        try:
            self.copy(self.quick, self.kept)
        except Held:
            self.refused += 1
        self.change(4)

    def run(self, at: int) -> tuple[bool, int]:
        """Whether the target is whole at the end and holds what the last run to end had copied."""
        for n in range(2):
            self.change(n)
        self.copy(self.quick, self.kept)
        self.change(2)
        store = Struck(self.slow, self.kept, at, self.interrupt)
        try:
            self.copy(self.slow, store)
        except Held:  # the other one was quicker to take the lock
            self.refused += 1
        except LeaseLost:
            assert self.paused
        self.quick.sleep(3 * LOCK_TTL_S)
        whole = check_backup(self.kept, self.quick, url="t").ok
        if whole:
            made = MemoryStore(self.quick)
            restore(self.kept, made, self.quick, source_url="t", target_url="u")
            queues = {key for key in made._objects if key.startswith("queues/")}
            places = ("pending/t2/task", "completed/t2", "failed/t2")
            whole = len({f"queues/q/{place}.json" for place in places} & queues) == 1
        if not self.paused:  # else an object that no record names may be there until the next run
            whole = whole and not check_backup(self.kept, self.quick, url="t").strange
        return whole, store.requests


def broken_runs(*, paused: bool) -> list[int]:
    """The requests of a run at which another one breaks the backup."""
    _, total = TwoRuns(paused=paused).run(at=1_000)
    assert total > 20
    return [at for at in range(total) if not TwoRuns(paused=paused).run(at)[0]]


@pytest.mark.parametrize("paused", [False, True])
def test_two_runs_to_one_target_leave_a_whole_backup(paused: bool) -> None:
    """A2: the second is refused while the first one works; one that was paused beyond its lease changes nothing."""
    assert broken_runs(paused=paused) == []


def test_a_run_is_refused_while_another_one_works_and_takes_over_after_it_was_killed() -> None:
    runs = TwoRuns(paused=False)
    runs.change(0)
    runs.copy(runs.quick, runs.kept)
    runs.change(1)

    def die() -> None:
        raise Tired

    with pytest.raises((Tired, Unavailable)):
        runs.copy(runs.slow, Struck(runs.slow, runs.kept, 10, die))
    with pytest.raises(Held, match="lock 'backup' is held by host:slow") as refused:
        runs.copy(runs.quick, runs.kept)
    assert "another run writes to t" in refused.value.hint
    began_s = runs.time.now_s
    report = backup(runs.memory, runs.kept, runs.quick, source_url="s", target_url="t", wait_s=200.0)
    assert 0 < runs.time.now_s - began_s <= 1.5 * LOCK_TTL_S
    assert report.left_out == {}
    assert check_backup(runs.kept, runs.quick, url="t").ok


def test_a_second_run_says_in_one_line_who_writes_and_exits_with_75(
    fleet_dir: Path, tmp_path: Path, here: Here
) -> None:
    kept = str(tmp_path / "kept")
    copy(fleet_dir, tmp_path / "kept")
    lock = Lock(store_for(kept, system()), BACKUP_LOCK, "backup", LOCK_TTL_S, system(), VersionWatch(system()))
    with lock.hold(wait_s=0):
        code, out, err = here("backup", str(fleet_dir), kept)
    assert (code, out) == (75, "")
    assert len(err.splitlines()) == 2
    assert err.startswith("limpet: lock 'backup' is held by ")
    assert "--wait SECONDS" in err
    assert here("backup", str(fleet_dir), kept)[0] == 0
    code, out, _ = here("restore", kept, str(tmp_path / "made"), "--json")
    assert code == 0
    assert json.loads(out)["fleet"] == limpet.open(tmp_path / "made").record.id != limpet.open(fleet_dir).record.id


def test_an_hourly_job_that_takes_two_hours() -> None:
    """Each hour a run begins. Those that meet another one end at once, and no run removes what a later one needs."""
    time = Time()
    runtimes = [QueueRuntime(time, f"cron{n}") for n in range(6)]
    memory = _named_memory["hourly"] = MemoryStore(runtimes[0])
    fleet = limpet.open("memory://hourly", runtime=runtimes[0])
    for n in range(30):
        fleet.queue("q").push({"n": n}, id=f"t{n}")

    class Slow(MemoryStore):
        def put(self, key: Key, *args: Any, **options: Any) -> Version:
            if key.startswith("queues/"):
                self._runtime.sleep(200.0)
            return super().put(key, *args, **options)

    kept = MemoryStore(runtimes[0])
    ends: list[str] = []

    def run(runtime: QueueRuntime) -> None:
        slow = Slow(runtime)
        slow._objects = kept._objects
        try:
            backup(memory, slow, runtime, source_url="s", target_url="t")
            ends.append("finished")
        except Held:
            ends.append("refused")

    jobs = [runtime.spawn(partial(run, runtime), name="cron") for runtime in runtimes[:1]]
    for n, runtime in enumerate(runtimes[1:], 1):
        time.at(3600.0 * n, partial(runtime.spawn, partial(run, runtime), name="cron"))
    runtimes[0].sleep(12 * 3600.0)
    assert jobs
    assert len(ends) == 6
    assert "refused" in ends
    assert ends[-1] == "finished"
    assert check_backup(kept, runtimes[0], url="t").ok
    restore(kept, MemoryStore(runtimes[0]), runtimes[0], source_url="t", target_url="u")


# ---- which fleet it is ----


def record_of(store: MemoryStore) -> FleetRecord:
    """What limpet.json says."""
    seen = record_cell(store, system()).read()
    assert seen is not None
    return seen.value


class Restored:
    """A fleet in memory, its backup, and what was restored from that."""

    def __init__(self, owner: str = "fleet") -> None:
        self.runtime = QueueRuntime(Time(), owner)
        self.name = f"ids-{uuid4().hex}"
        self.memory = _named_memory[self.name] = MemoryStore(self.runtime)
        self.fleet = limpet.open(f"memory://{self.name}", runtime=self.runtime)
        self.fleet.cell("c").write(1)
        self.kept = MemoryStore(self.runtime)

    def copy(self, store: MemoryStore | None = None) -> None:
        """Back it up, or another fleet that is at its URL."""
        backup(store or self.memory, self.kept, self.runtime, source_url="s", target_url="t")

    def restore(self, url: str, **options: Any) -> MemoryStore:
        """Restore it."""
        made = MemoryStore(self.runtime)
        report = restore(self.kept, made, self.runtime, source_url="t", target_url=url, **options)
        assert (report.fleet, report.epoch) == (record_of(made).id, record_of(made).epoch)
        return made


def test_a_restored_fleet_has_another_epoch_each_time_and_its_id_only_in_its_own_place() -> None:
    fleet = Restored()
    fleet.copy()
    id_ = record_of(fleet.memory).id
    assert id_
    assert record_of(fleet.kept).id == id_
    assert not record_of(fleet.memory).epoch
    first, again = fleet.restore("s"), None
    fleet.runtime.sleep(2.0)
    again = fleet.restore("s")
    assert record_of(first).id == record_of(again).id == id_
    assert 0 < (record_of(first).epoch or 0) < (record_of(again).epoch or 0), "two restores of one backup"
    assert record_of(fleet.restore("elsewhere")).id not in (id_, None)
    assert record_of(fleet.restore("elsewhere", keep_id=True)).id == id_
    made = fleet.restore("s")
    assert Fleet(MeteredStore(made), "s", record_of(made), fleet.runtime).queue("q").storage.epoch > 0  # type: ignore[attr-defined]


def test_a_backup_of_another_fleet_or_of_an_older_state_is_refused() -> None:
    fleet, other = Restored(), Restored("other")
    fleet.copy()
    with pytest.raises(Invalid, match=f"holds a backup of fleet {record_of(fleet.memory).id}, and s is fleet"):
        fleet.copy(other.memory)
    made = fleet.restore("s")
    fleet.copy(made)
    with pytest.raises(Invalid, match="holds a backup of this fleet after a restore, and s is its state before"):
        fleet.copy()
    assert check_backup(fleet.kept, fleet.runtime, url="t").ok


def test_a_backup_without_an_id_is_continued_and_restored() -> None:
    """As Limpet 0.1 has made it, of a fleet that it has made."""
    fleet = Restored()
    forget_id(fleet.memory)
    fleet.copy()
    assert not record_of(fleet.kept).id
    limpet.open(f"memory://{fleet.name}", runtime=fleet.runtime).identify()
    assert record_of(fleet.memory).id
    fleet.copy()
    assert record_of(fleet.kept).id == record_of(fleet.memory).id


def test_a_fleet_without_an_id_gets_one_from_the_first_process_that_may_write_it() -> None:
    fleet = Restored()
    forget_id(fleet.memory)
    limpet.open(f"memory://{fleet.name}", runtime=fleet.runtime, read_only=True).identify()
    assert not record_of(fleet.memory).id

    class ForWorkers(MemoryStore):
        def put(self, key: Key, *args: Any, **options: Any) -> Version:
            if key == FLEET:
                raise Denied("no role may write it")
            return super().put(key, *args, **options)

    guarded = _named_memory[f"{fleet.name}-guarded"] = ForWorkers(fleet.runtime)
    guarded._objects = fleet.memory._objects
    worker = limpet.open(f"memory://{fleet.name}-guarded", runtime=fleet.runtime)
    worker.identify()
    worker.queue("q").push({})
    assert not record_of(fleet.memory).id
    opened = limpet.open(f"memory://{fleet.name}", runtime=fleet.runtime)
    opened.identify()
    assert opened.record.id == record_of(fleet.memory).id is not msgspec.UNSET
    again = limpet.open(f"memory://{fleet.name}", runtime=fleet.runtime)
    again.identify()
    assert again.meter.snapshot().requests == {"get": 1}


def forget_id(store: MemoryStore) -> None:
    """As if Limpet 0.1 had set the fleet up."""
    fields = msgspec.json.decode(store.get(FLEET).data)
    del fields["id"]
    store.put(FLEET, msgspec.json.encode(fields))


def test_a_check_says_what_a_recorded_push_names_and_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A19: as a backup of Limpet 0.1, which copied steps last and followed none."""
    runtime = QueueRuntime(Time(), "fleet")
    name = f"lost-{uuid4().hex}"
    memory = _named_memory[name] = MemoryStore(runtime)
    fleet = limpet.open(f"memory://{name}", runtime=runtime)
    flow = FanningTask()
    flow.begin(fleet)
    lost: list[str] = []
    at = 0
    while not lost:
        source = Moving(runtime, memory, at, partial(flow.push, fleet))
        kept = MemoryStore(runtime)
        with monkeypatch.context() as patch:
            patch.setattr(backup_order, "_pushed", lambda run: set())
            patch.setattr(backup_run.CopyRun, "note_unknown", lambda run: None)
            backup(source, kept, runtime, source_url="s", target_url="t")
        found = check_backup(kept, runtime, url="t")
        lost, at = found.lost, at + 1
        if not lost:  # it has pushed before they were listed
            name = f"lost-{uuid4().hex}"
            memory = _named_memory[name] = MemoryStore(runtime)
            fleet = limpet.open(f"memory://{name}", runtime=runtime)
            flow.begin(fleet)
    assert not found.ok
    assert all(entry.startswith(("queues/part/", "queues/half/")) for entry in lost)
    report = restore(kept, MemoryStore(runtime), runtime, source_url="t", target_url="u")
    assert report.unknown == lost


def test_what_the_fleet_itself_no_longer_had_is_no_fault_of_the_backup() -> None:
    runtime = QueueRuntime(Time(), "fleet")
    name = f"purged-{uuid4().hex}"
    memory = _named_memory[name] = MemoryStore(runtime)
    fleet = limpet.open(f"memory://{name}", runtime=runtime)
    flow = FanningTask()
    flow.begin(fleet)
    flow.push(fleet)
    fleet.queue("part").purge()
    kept = MemoryStore(runtime)
    for _ in range(2):
        report = backup(memory, kept, runtime, source_url="s", target_url="t")
        assert report.unknown
        found = check_backup(kept, runtime, url="t")
        assert (found.ok, found.lost) == (True, [])


def test_places_that_hold_something_else_are_refused(fleet_dir: Path, tmp_path: Path) -> None:
    other = limpet.open(tmp_path / "other", durability="os")
    other.cell("mine").write({"n": 2})
    with pytest.raises(Invalid, match="is not empty"):
        copy(fleet_dir, tmp_path / "other")
    copy(fleet_dir, tmp_path / "kept")
    with pytest.raises(Invalid, match="holds a backup of"):
        copy(tmp_path / "other", tmp_path / "kept")
    with pytest.raises(Invalid, match="is not empty"):
        bring_back(tmp_path / "kept", tmp_path / "other")
    with pytest.raises(Missing, match="no backup"):
        bring_back(tmp_path / "other", tmp_path / "made")
    with pytest.raises(Missing, match="no fleet"):
        copy(tmp_path / "nowhere", tmp_path / "made")
    bring_back(tmp_path / "kept", tmp_path / "made")
    with pytest.raises(Invalid, match="restored before"):
        bring_back(tmp_path / "kept", tmp_path / "made")
    seen = other.cell("mine").read()
    assert seen is not None
    assert seen.value == {"n": 2}


def test_nobody_works_on_a_backup_but_all_may_read_it(fleet_dir: Path, tmp_path: Path) -> None:
    copy(fleet_dir, tmp_path / "kept")
    with pytest.raises((Unsupported, Invalid), match="backup"):
        limpet.open(tmp_path / "kept").queue("q").claim()
    assert limpet.open(tmp_path / "kept", read_only=True).queue("q").stats().pending == 30


def test_a_damaged_backup_is_found_and_not_restored(fleet_dir: Path, tmp_path: Path) -> None:
    copy(fleet_dir, tmp_path / "kept")
    (tmp_path / "kept/cells/c.json").write_bytes(b"{}")
    (tmp_path / "kept/queues/q/pending/t3/task.json").unlink()
    found = check_backup(store_for(str(tmp_path / "kept"), system()), system(), url="kept")
    assert (found.ok, found.changed, found.missing) == (
        False,
        ["cells/c.json"],
        ["queues/q/pending/t3/task.json"],
    )
    with pytest.raises(Corrupt, match="damaged or missing in the backup: 2 of "):
        bring_back(tmp_path / "kept", tmp_path / "made")
    report = bring_back(tmp_path / "kept", tmp_path / "made", force=True)
    assert len(report.damaged) == 2
    assert limpet.open(tmp_path / "made").queue("q").stats().pending == 29


def test_an_object_of_a_backup_that_has_grown_is_not_read(fleet_dir: Path, tmp_path: Path) -> None:
    """A sparse file of 1 TB: `backup --check` names it, and a restore does not go on without a word."""
    copy(fleet_dir, tmp_path / "kept")
    with (tmp_path / "kept/cells/c.json").open("r+b") as file:
        file.truncate(1 << 40)
    found = check_backup(store_for(str(tmp_path / "kept"), system()), system(), url="kept")
    assert (found.ok, found.changed, found.missing) == (False, ["cells/c.json"], [])
    with pytest.raises(Corrupt, match=r"damaged or missing in the backup: 1 of .* such as cells/c\.json"):
        bring_back(tmp_path / "kept", tmp_path / "made")
    report = bring_back(tmp_path / "kept", tmp_path / "made", force=True)
    assert (report.damaged, [*report.left_out]) == (["cells/c.json"], ["cells/c.json"])


def test_garbage_is_copied_as_it_is_and_what_cannot_be_copied_is_told(fleet_dir: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.json").write_text("secret")
    (fleet_dir / "queues/q/pending/t1/task.json").write_bytes(b"\xff\xfe")
    (fleet_dir / "indexes/sites/manifest.json").write_bytes(b"[" * 100_000)
    (fleet_dir / "queues/q/failed").mkdir()
    (fleet_dir / "queues/q/failed/x.json").write_bytes(b'{"retried_as": "x"}')
    (fleet_dir / "manifests").mkdir()
    (fleet_dir / "manifests/catalog.json").write_bytes(b"garbage")
    (fleet_dir / "notes.txt").write_bytes(b"mine")
    (fleet_dir / "queues/q/pending/link").symlink_to(secret)
    (fleet_dir / "cells/link.json").symlink_to(secret / "key.json")
    tables = fleet_dir / "warehouse/a/T/data/day=2026-11-17"
    tables.mkdir(parents=True)
    (tables / "Part 1.parquet").write_bytes(b"data")
    (tables / "link.parquet").symlink_to(secret / "key.json")
    with open(fleet_dir / "large.json", "wb") as large:
        large.truncate(backup_run.OBJECT_BYTES_MAX + 1)
    report = copy(fleet_dir, tmp_path / "kept")
    assert [*report.left_out] == ["large.json"]
    (fleet_dir / "large.json").unlink()
    bring_back(tmp_path / "kept", tmp_path / "made")
    assert files_of(tmp_path / "made") == files_of(fleet_dir)
    data = tmp_path / "made/warehouse/a/T/data/day=2026-11-17"
    assert [path.name for path in data.iterdir()] == ["Part 1.parquet"]
    assert not [path for path in (tmp_path / "made").rglob("*") if path.is_file() and path.read_bytes() == b"secret"]


def test_without_data_only_the_metadata_of_tables_is_copied(fleet_dir: Path, tmp_path: Path) -> None:
    folder = fleet_dir / "warehouse/a/t"
    folder.mkdir(parents=True)
    (folder / "v1.metadata.json").write_bytes(b"{}")
    (folder / "x.parquet").write_bytes(b"data")
    copy(fleet_dir, tmp_path / "kept", data=False)
    kept = [path.name for path in (tmp_path / "kept/warehouse").rglob("*") if path.is_file()]
    assert kept == ["v1.metadata.json"]


def test_every_kind_of_object_has_its_place_in_the_order() -> None:
    order = [name for name, _ in backup_decide.ORDER]
    for earlier, later in [
        ("scheduled", "pending"),
        ("pending", "failed"),
        ("failed", "completed"),
        ("completed", "steps"),
        ("imports", "inbox"),
        ("inbox", "packs"),
        ("packs", "shards"),
        ("shards", "manifest"),
        ("events", "folded"),
        ("cell", "lock"),
        ("head", "lock"),
    ]:
        assert order.index(earlier) < order.index(later)
    assert kind_of("queues/q/slots/0.lock") == "lock"
    assert kind_of("queues/q/parts/e/x.json") == "queue"
    assert kind_of("queues/q/steps/e/0.0000.json") == "steps"
    assert kind_of("queues/q/bell.json") == "own"
    assert kind_of("workers/01jd0000000000000000000000.json") == "own"
    assert kind_of("indexes/i/shards/00.lock") == "lock"
    assert kind_of("indexes/i/manifest.json") == "manifest"
    assert kind_of("sync/supervisor.lock") == "lock"
    assert kind_of("sync/a/0000000001.jsonl") == "sync"
    assert kind_of("state/executions/x.parquet") == "folded"
    assert kind_of("quarantine/executions/x.json") == "events"
    assert kind_of("notes") == "other"
    assert kind_of("limpet.json") == "own"


def test_a_store_is_asked_again_when_it_is_away(fleet_dir: Path) -> None:
    runtime = QueueRuntime(Time(), "b")

    class Shaky(MemoryStore):
        calls = 0

        def put(self, *args: Any, **options: Any) -> Version:
            self.calls += 1
            if self.calls % 7 == 0:
                raise limpet.Unavailable("slow down")
            return super().put(*args, **options)

    source: Store = store_for(str(fleet_dir), system())
    target = Shaky(runtime)
    report = backup(source, target, runtime, source_url="s", target_url="t")
    assert report.copied == report.objects == len(files_of(fleet_dir))

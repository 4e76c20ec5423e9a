"""Every kind of stored object, the fleet in which it is damaged, and who reads it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

import limpet
from fuzz.process import JOBS_EVERY_S, browsing, serving, virtual_processes
from fuzz.world import BUCKET, DISKS, NAME, URL, Bench, Built, FuzzStore, build, tolerated
from limpet import testing
from limpet.app import Fleet
from limpet.app.place import _named_memory
from limpet.app.presence import WorkerPresence
from limpet.events.sink import LedgerSink
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.errors import LimpetError
from limpet.kernel.keys import Key, QueueKeys, derived, worker_key, worker_of
from limpet.kernel.store import Store
from limpet.queue import BucketQueue
from limpet.queue.awaited import AskingTurn
from limpet.queue.entry import PushShape, SweepRecord
from limpet.queue.sync import Blocked, Disconnected, Supervisor, SyncEvent
from limpet.queue.sync.supervisor import UP_S
from support.index import keys_in
from support.queue import Network
from support.sync import Fleet as Nodes
from support.sync import Node

__all__ = ["KINDS", "RARELY", "Consumer", "Kind", "Resign"]

Consumer = Callable[[Bench], object]
Resign = Callable[[FuzzStore, str, bytes], bytes]
"""Puts digests right: gets the store, the key and the damaged bytes, may change other objects, returns the bytes."""

LATER_S = 7200.0
RETENTION_S = 40 * 86400.0
LARGE = "r" * 3000
GOOD = [f"g{n}" for n in range(1, 6)]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: in which fleet, at which key, in which form, who reads it."""

    name: str
    room: str
    fleet: Callable[[], Built]
    pattern: str
    form: str
    consumers: Sequence[Consumer]
    resign: Resign | None = None
    place: str = ""
    skip: Sequence[str] = ()
    """Mutations that are no damage for this kind."""

    def key(self) -> str:
        """The object that is damaged: the largest that matches."""
        built = self.fleet()
        found = built.keys(self.pattern, self.place)
        assert found, f"the fleet of {self.name} has no object {self.pattern}"
        return max(found, key=lambda key: len(built.data(key, self.place)))


# ---- queues ----


def _queue_fleet(bench: Bench) -> None:
    fleet = bench.open()
    queue = fleet.queue("q", ttl_s=30.0, max_attempts=2, backoff_s=0.0)
    assert isinstance(queue, BucketQueue)

    def end(verdict: Callable[[Any, int], None]) -> None:
        claim = queue.claim()
        assert claim
        with claim:
            for n, task in enumerate(claim):
                verdict(task, n)

    def mixed(task: Any, n: int) -> None:
        task.fail("unlucky", "Traceback ...") if n == 1 else task.done(LARGE if n == 2 else {"n": n})

    def half(task: Any, n: int) -> None:
        task.done(LARGE) if n < 2 else task.retry(60.0, "later")

    queue.push({"n": 1}, id="done")
    end(lambda task, _: task.done({"r": 1}))
    queue.push({"n": 2}, id="failed")
    end(lambda task, _: task.fail("boom", "Traceback ..."))
    queue.push({"n": 3}, id="cancelled")
    queue.cancel("cancelled")
    queue.push({"n": 4}, id="again")
    end(lambda task, _: task.fail("boom", "Traceback ..."))
    queue.retry("again")
    end(lambda task, _: task.done())
    bench.facts["ended_batch"] = queue.push_many([{"n": n} for n in range(3)])
    end(mixed)
    bench.facts["half_batch"] = queue.push_many([{"n": n} for n in range(4)])
    end(half)
    queue.push({"n": 5}, id="held")
    assert queue.claim()
    bench.facts["held_batch"] = queue.push_many([{"n": n} for n in range(3)])
    assert queue.claim()
    _spread(bench, queue)
    queue.push({"n": 6}, id="rests")
    end(lambda task, _: task.retry(60.0, "later"))
    queue.pause()
    queue.resume()
    narrow = fleet.queue("s", concurrency=2, ttl_s=30.0)
    narrow.push({"n": 7}, id="slot")
    assert narrow.claim()
    narrow.push({"n": 8}, id="narrow")
    queue.push({"n": 9}, id="later", delay_s=60.0)
    queue.push({"n": 10}, id="bad")
    bench.facts["bad_batch"] = queue.push_many([{"n": n} for n in range(3)])
    bench.facts["good_batch"] = queue.push_many([{"n": n} for n in range(3)])
    for id_ in GOOD:
        queue.push({"n": 11}, id=id_)
        fleet.queue("other").push({"n": 12}, id=id_)
    _swept(bench)
    bench.store.put(QueueKeys.of("q").bell, b'{"ring":"1"}')
    assert AskingTurn(queue.storage).take()
    shape = PushShape(id="pushed", tasks=2, entries=1, sha256=hashlib.sha256(b"2").hexdigest(), at=bench.runtime.wall())
    queue.storage.shape(derived("many", "pushed")).create(shape)


def _spread(bench: Bench, queue: BucketQueue) -> None:
    """A batch of which two tasks run, and two more ran when an earlier holder died."""
    ids = queue.push_many([{"n": n} for n in range(5)])
    queue.claim().hand_back()
    claim = queue.claim()
    assert claim.start_next()
    assert claim.start_next()
    key = QueueKeys.of("q").lease(ids[0].rpartition(".")[0])
    record = msgspec.json.decode(bench.store.get(key).data)
    assert record["beside"]
    bench.store.put(key, msgspec.json.encode({**record, "suspects": [2, 3]}))


def _swept(bench: Bench) -> None:
    """`sweep.json`, as a worker leaves it whose turn it was."""
    now = bench.runtime.wall()
    record = SweepRecord(worker_id="w", begun_at=now, retained_at=now)
    Cell(bench.store, QueueKeys.of("q").sweep, struct_codec(SweepRecord), bench.runtime).create(record)


def _swept_now(fleet: Fleet) -> int:
    queue = fleet.queue("q")
    assert isinstance(queue, BucketQueue)
    return queue.sweep()


def _tasks(fleet: Fleet) -> dict[str, Any]:
    return {
        "q": fleet.task("q", ttl_s=30.0, max_attempts=2, backoff_s=0.0)(handle),
        "s": fleet.task("s", concurrency=2, ttl_s=30.0)(handle),
        "other": fleet.task("other")(handle),
    }


def _are_done(bench: Bench, fleet: Fleet, queue: str, ids: Sequence[str]) -> None:
    for id_ in ids:
        state = fleet.queue(queue).result(id_).state
        bench.demand(state == "completed", f"task {id_!r} of {queue!r} is {state}")


def _are_pending(bench: Bench, fleet: Fleet, queue: str, ids: Sequence[str]) -> None:
    for id_ in ids:
        state = fleet.queue(queue).result(id_).state
        bench.demand(state == "pending", f"task {id_!r} of {queue!r} is {state}")


def work(bench: Bench) -> None:
    """Workers run everything; then take over what the dead held; then sweep, and once more after the retention."""
    fleet = bench.open()
    _tasks(fleet)
    tolerated(lambda: testing.drain(fleet))
    _are_done(bench, fleet, "other", GOOD)
    if "/control.json" not in bench.key:
        _are_done(bench, fleet, "q", [*GOOD, *bench.facts["good_batch"]])
    bench.pass_by(LATER_S)
    tolerated(lambda: testing.drain(fleet))
    if "/slots/" in bench.key:
        _are_done(bench, fleet, "s", ["narrow"])
    tolerated(_swept_now, fleet)
    _are_done(bench, fleet, "other", GOOD)
    bench.pass_by(RETENTION_S)
    tolerated(lambda: testing.drain(fleet))
    tolerated(_swept_now, fleet)


def _durable_task(fleet: Fleet) -> None:
    """A task with steps, which waits for a signal."""

    def double(n: int) -> int:
        return 2 * n

    @fleet.task("d", durable=True, max_attempts=2, backoff_s=0.0)
    def d(n: int) -> list[Any]:
        first = limpet.step(double, n)
        ends = limpet.gather([part.push(first)])
        return [first, ends[0].value, limpet.wait_signal("go"), limpet.step(double, first)]

    @fleet.task("part")
    def part(n: int) -> int:
        return n + 1


def _durable_fleet(bench: Bench) -> None:
    fleet = bench.open()
    _durable_task(fleet)
    queue = fleet.queue("d")
    for id_ in ("bad", "g1", "ended"):
        queue.push({"n": 1}, id=id_)
    queue.signal("ended", "go", 7)
    for _ in range(3):
        testing.drain(fleet)
        bench.runtime.sleep(10.0)
    assert queue.signal("bad", "go", 7)


def run_durable(bench: Bench) -> None:
    """Workers go on with suspended tasks when their signals have come; then a sweep, and a retry."""
    fleet = bench.open()
    _durable_task(fleet)
    queue = fleet.queue("d")
    tolerated(queue.signal, "bad", "go", 8)
    queue.signal("g1", "go", 9)
    for _ in range(2):
        tolerated(lambda: testing.drain(fleet))
        bench.pass_by(LATER_S)
    _are_done(bench, fleet, "d", ["g1"])
    assert isinstance(queue, BucketQueue)
    tolerated(queue.sweep)
    tolerated(lambda: queue.retry(all=True))
    tolerated(lambda: testing.drain(fleet))
    tolerated(queue.cancel, "bad")


def show_durable(bench: Bench) -> None:
    """What people type to look at durable tasks."""
    bench.demand("g1" in bench.cli("queue", "ls", "d").out, "`queue ls` does not show the task beside")
    for id_ in ("bad", "g1", "ended"):
        bench.cli("queue", "show", "d", id_)
        bench.cli("queue", "show", "d", id_, "--json")
    bench.cli("queue", "sweep", "d")
    bench.cli("queue", "retry", "d", "--all", "--from-scratch")
    bench.cli("queue", "cancel", "d", "bad")
    bench.demand("g1" in bench.cli("queue", "ls", "d").out, "`queue ls` does not show the task beside")


def ring_bell(bench: Bench) -> None:
    """`work` where the store is far away: workers ask the bell, pushers ring it."""
    bench.store.far = True
    fleet, bell = bench.open(), QueueKeys.of("q").bell
    _tasks(fleet)
    before = bench.store.head(bell).version
    fleet.queue("q").push({"n": 14}, id="rung")
    bench.demand(bench.store.head(bell).version != before, "the bell was not rung")
    tolerated(lambda: testing.drain(fleet))
    _are_done(bench, fleet, "q", ["rung"])
    work(bench)


def ask_in_turn(bench: Bench) -> None:
    """A process asks for its turn to look for suspended tasks. It has the turn, or it has not: other tasks go on."""
    queue = bench.open().queue("q")
    assert isinstance(queue, BucketQueue)
    turn = AskingTurn(queue.storage)
    tolerated(turn.take)
    turn.keep()
    turn.pass_on()


def push_with_id(bench: Bench) -> None:
    """A push of many tasks whose id was used before: it is made, or refused; that of another id is made."""
    queue = bench.open().queue("q")
    again = tolerated(queue.push_many, [{"n": 15}, {"n": 16}], id="pushed")
    bench.demand(isinstance(again, LimpetError) or len(again) == 2, "it was pushed in part")
    bench.demand(len(queue.push_many([{"n": 17}], id="fresh")) == 1, "another id was refused")


def handle(n: int = 0) -> dict[str, int]:
    """The function that `limpet work` runs for all queues."""
    return {"n": n}


def run_workers(bench: Bench) -> None:
    """`limpet work`, now and when those that held tasks are long dead."""
    arguments = ["work", "other", "-q", "q", "-q", "s", "--handler", "fuzz.kinds:handle", "--burst", "--url", BUCKET]
    fleet = bench.open()
    with virtual_processes(bench):
        bench.cli(*arguments)
        _are_done(bench, fleet, "other", GOOD)
        if "/control.json" not in bench.key:
            _are_done(bench, fleet, "q", [*GOOD, *bench.facts["good_batch"]])
        bench.pass_by(LATER_S)
        fleet.queue("other").push({"n": 13}, id="g6")
        bench.cli(*arguments, "--log", "json", "--json", "--threads", "2")
        _are_done(bench, fleet, "other", ["g6"])


def work_far(bench: Bench) -> None:
    """`work` in a bucket: the bell, tasks read beside their claims, deletes in the background."""
    bench.store.far = True
    work(bench)


def run_workers_far(bench: Bench) -> None:
    """`limpet work` in a bucket, where workers claim ahead too."""
    bench.store.far = True
    run_workers(bench)


def change_queue(bench: Bench) -> None:
    """Push with ids that are taken, retry, cancel, pause, purge."""
    fleet = bench.open()
    queue = fleet.queue("q")
    for id_ in ("bad", "done", "failed", "held", "later", "again", "new"):
        tolerated(queue.push, {"n": 0}, id=id_)
    for id_ in ("failed", "again", "bad"):
        bench.cli("queue", "retry", "q", id_)
    tolerated(lambda: queue.retry(all=True))
    for id_ in ("bad", "held", "later", "rests", bench.facts["bad_batch"][0], bench.facts["held_batch"][0]):
        tolerated(queue.cancel, id_)
    bench.cli("queue", "pause", "q")
    bench.cli("queue", "resume", "q")
    bench.cli("queue", "push", "q", '{"n": 1}', "--id", "bad")
    bench.cli("queue", "cancel", "q", "held")
    bench.cli("queue", "sweep", "q")
    bench.cli("queue", "purge", "q", "--yes")
    _are_pending(bench, fleet, "other", GOOD)


def show_queue(bench: Bench) -> None:
    """What people type to look at queues."""
    bench.demand("other" in bench.cli("status").out, "`status` does not show the other queue")
    bench.demand('"other"' in bench.cli("status", "--json").out, "`status --json` does not show the other queue")
    bench.cli("check", "--max-age", "1h", "--max-failed", "0", "--max-pending", "0")
    bench.demand("other" in bench.cli("queue", "ls").out, "`queue ls` does not show the other queue")
    bench.demand("g1" in bench.cli("queue", "ls", "q", "-n", "5000").out, "`queue ls q` does not show the tasks beside")
    for each in ("--failed", "--completed", "--scheduled"):
        bench.cli("queue", "ls", "q", each)
    bench.cli("queue", "ls", "q", "--json")
    bench.cli("queue", "stats", "q")
    bench.cli("queue", "peek", "q")
    bench.cli("queue", "cost", "q")
    for form in ([], ["--json"]):
        bench.cli("queue", "failed", "q", *form)


def show_tasks(bench: Bench) -> None:
    """What people type to look at tasks."""
    batches = [bench.facts[name][0] for name in ("ended_batch", "half_batch", "held_batch", "bad_batch")]
    name = re.search(r"/(?:pending|completed|failed|parts)/([^/]+?)(?:\.json)?(?:/|$)", bench.key)
    for id_ in {*([name[1]] if name else ()), "later", "again"}:
        bench.cli("queue", "show", "q", id_)
        bench.cli("queue", "show", "q", id_, "--json")
    for id_ in batches:
        bench.cli("queue", "show", "q", id_)
        bench.cli("queue", "show", "q", id_.rpartition(".")[0])
    bench.demand("g1" in bench.cli("queue", "show", "q", "g1").out, "`queue show` does not show a task beside")


def query_queue(bench: Bench) -> None:
    """`limpet sql` over the tasks."""
    said = bench.cli("sql", "select id, state, payload, result, error from queues.q").out
    bench.demand("g1" in said, "`limpet sql` does not show a task beside")
    bench.cli("sql", "select state, count(*) from queues.s group by 1", "--json")


# ---- the whole fleet ----

PAGES = (
    *("config", "overview", "store", "catalog", "catalog/difference/1/2"),
    *("queue/q", "queue/other", "queue/q/task/bad", "queue/q/task/done", "queue/q/task/held", "queue/s/task/slot"),
    *("index/recs", "index/fine", "index/recs/record/k1"),
)


def watch(bench: Bench) -> None:
    """`limpet top`, `limpet metrics` and every page of `limpet ui`, which reads a fleet once more after a while."""
    import tempfile
    from pathlib import Path

    beside = "fine" if bench.store.objects.get(Key("indexes/fine/manifest.json")) else "other"
    bench.demand(beside in bench.cli("top", "--once").out, f"`limpet top` does not show {beside!r}")
    with tempfile.TemporaryDirectory() as folder:
        done = bench.cli("metrics", "--textfile", f"{folder}/metrics")
        said = Path(f"{folder}/metrics").read_text() if done.code == 0 else ""
        bench.demand(f'"{beside}"' in said, f"`limpet metrics` does not show {beside!r}: {done.err}")
    with browsing(bench, URL) as page:
        for path in PAGES:
            page.ask("GET", f"/ui/api/{path}")
        page.ask("POST", "/ui/api/catalog/table", {"namespace": ["a"], "name": "bad"})
        page.pause(3600.0)
        found = page.ask("GET", "/ui/api/overview")
        bench.demand(found.status == 200 and beside in str(found.body), f"the dashboard does not show {beside!r}")


def _sign_task(store: FuzzStore, key: str, data: bytes) -> bytes:
    """The digest of the payload, put right."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data
    if "payload" in fields and "sha256" in fields:
        digest = hashlib.sha256(fields["payload"]).hexdigest().encode()
        return data.replace(bytes(fields["sha256"]), b'"' + digest + b'"', 1)
    return data


def _sign_lines(store: FuzzStore, key: str, data: bytes) -> bytes:
    """Count and digest in the first line, put right for the lines after it."""
    first, _, body = data.partition(b"\n")
    digest = hashlib.sha256(body).hexdigest().encode()
    first = re.sub(rb'"sha256":"[0-9a-f]*"', b'"sha256":"' + digest + b'"', first)
    return first + b"\n" + body


# ---- locks, cells, limpet.json ----


def _lock_fleet(bench: Bench) -> None:
    fleet = bench.open()
    for name in ("a", "bad", "z"):
        with fleet.lock(name, 30.0).hold(wait_s=0) as lease:
            fleet.cell(name).write({"of": name}, lease=lease)
    fleet.lock("held", 30.0).acquire()
    fleet.queue("other").push({"n": 1}, id="g1")
    fleet.queue("old").push({"n": 1})
    fleet.queue("old").drop()
    assert fleet.index("old", Rec, key="key").manifest
    fleet.index("old").drop()
    for name in ("bad", "fine"):
        now = bench.runtime.wall()
        record = WorkerPresence(
            host=name, pid=1, version="0.1.0", queues=["q", "s"], threads=2, since=now, renewed_at=now
        )
        bench.store.put(worker_key(name), msgspec.json.encode(record))


def use_locks(bench: Bench) -> None:
    """Acquire, hold and write, beside the damaged ones and on them."""
    fleet = bench.open()
    for name in ("bad", "held"):
        tolerated(fleet.lock(name, 30.0).try_acquire)
        tolerated(fleet.lock(name, 30.0).acquire, wait_s=600.0)
        tolerated(fleet.lock_seen, name)
        tolerated(fleet.cell(name).read)
        tolerated(fleet.cell(name).update, lambda value: {"old": value})
        tolerated(fleet.cell(name).write, {"new": 1})
    for name in ("a", "z"):
        with fleet.lock(name, 30.0).hold(wait_s=0) as lease:
            fleet.cell(name).write({"again": name}, lease=lease)


def show_locks(bench: Bench) -> None:
    """What people type to look at locks."""
    for arguments in (["lock", "ls"], ["lock", "ls", "--json"]):
        out = bench.cli(*arguments).out
        for name in ("a", "z"):
            bench.demand(re.search(rf"\b{name}\b", out), f"`{' '.join(arguments)}` does not show the lock {name!r}")
    bench.demand("other" in bench.cli("status").out, "`status` does not show the queue")
    bench.cli("status", "--json")
    for name in ("bad", "held"):
        bench.cli("lock", "show", name)
        bench.cli("lock", "show", name, "--json")
        bench.cli("lock", "break", name, "--yes")


def drop_again(bench: Bench) -> None:
    """Use a queue and an index again that were dropped, and drop them again."""
    fleet = bench.open()
    for kind in ("queue", "index"):
        bench.cli(kind, "drop", "old", "--dry-run")
        bench.cli(kind, "ls")
    queue = fleet.queue("old")
    assert isinstance(queue, BucketQueue)
    tolerated(queue.push, {"n": 2}, id="g2")
    with queue.claim() as claim:
        for task in claim:
            task.done()
    tolerated(queue.sweep)
    tolerated(queue.drop)
    tolerated(lambda: fleet.index("old", Rec, key="key").put_many([Rec("k", 1, 0.5, "x")]))
    tolerated(lambda: fleet.index("old").drop())
    bench.demand(fleet.queue("other").result("g1").state == "pending", "the queue beside lost its task")


def show_workers(bench: Bench) -> None:
    """`limpet workers`, and a process that starts beside the damaged object."""
    from limpet.app.presence import PresenceWriter, sweep, workers

    for form in ([], ["--json"]):
        done = bench.cli("workers", *form)
        bench.demand("fine" in done.out, "`limpet workers` does not show the process beside it")
    writer = PresenceWriter(bench.store, bench.runtime, queues=["q"], threads=1)
    writer.start()
    bench.runtime.sleep(300.0)
    found = workers(bench.open(read_only=True))
    bench.demand(bench.runtime.owner in [each.id for each in found.alive], "a process that started is not shown")
    writer.stop()
    bench.pass_by(2 * 86400.0)
    sweep(bench.store, bench.runtime)
    left = [stat.key for stat in bench.store.list("workers") if worker_of(stat.key) is not None]
    bench.demand(not left, "what nobody renews is still there after two days")


def _opened(bench: Bench, read_only: bool) -> object:
    return bench.open(read_only=read_only).cell("a").read()


def open_fleet(bench: Bench) -> None:
    """Everything starts with `limpet.json`."""
    for read_only in (False, True):
        tolerated(_opened, bench, read_only)
    commands = (["queue", "ls"], ["lock", "ls"], ["check", "--max-failed", "0"], ["top", "--once"], ["upgrade"])
    for arguments in (["status"], *commands):
        bench.cli(*arguments)


# ---- the index ----


@dataclass
class Rec:
    """A record with a column of each sort."""

    key: str
    n: int | None = None
    x: float | None = None
    text: str | None = None


def _index_fleet(bench: Bench) -> None:
    import tempfile
    from pathlib import Path

    fleet = bench.open()
    for name in ("recs", "fine"):
        index = fleet.index(name, Rec, key="key")
        index.put_many([Rec(f"k{n}", n, n / 4, f"text {n}") for n in range(60)])
        index.put_many([Rec(key, n, n / 4, f"text {n}") for n, key in enumerate(keys_in("00", 6))])
        index.compile(full=True)
    index = fleet.index("recs", Rec, key="key")
    shard = fleet.index("recs").storage.keys
    bench.facts["shards"] = str(shard.root)
    index.put_many([Rec(f"k{n}", n, 0.5, "packed") for n in range(0, 60, 7)])
    for n in range(3):
        index.put(Rec(f"k{n}", n, None, "single"))
    bench.store.put(shard.single("00", "broken", "2026-01-01T00:00:00.000000Z", bench.runtime.new_id()), b"\xff\n")
    index.compile()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "more.jsonl"
        file.write_text('{"key": "i1", "n": 1}\n{"key": "i2", "n": 2}\n')
        done = bench.cli("index", "import", "recs", str(file))
        assert done.code == 0, done
    index.put(Rec("s1", 1, None, "single"))
    index.put_many([Rec(key, n, 0.5, "packed") for n, key in enumerate(keys_in("7f", 6, prefix="p"))])


def read_index(bench: Bench) -> None:
    """get, get_many, scan, stats, of this index and of the one beside it."""
    fleet = bench.open()
    index = fleet.index("recs")
    found = {f"k{n}": tolerated(index.get, f"k{n}") for n in range(60)}
    damaged = [key for key, value in found.items() if not isinstance(value, dict)]
    if "manifest.json" not in bench.key:
        bench.demand(
            len(damaged) <= 4,
            f"{len(damaged)} records of an index cannot be read: {found[damaged[0]] if damaged else ''}",
        )
    tolerated(lambda: index.get_many([f"k{n}" for n in range(60)]))
    tolerated(lambda: [*index.scan()])
    tolerated(index.stats)
    _is_fine(bench, fleet)


def _is_fine(bench: Bench, fleet: Fleet) -> None:
    bench.demand(len([*fleet.index("fine").scan()]) == 66, "the index beside it lost records")


def compile_index(bench: Bench) -> None:
    """Compile everything, then read again; then put and compile once more."""
    fleet = bench.open()
    index = fleet.index("recs")
    tolerated(lambda: index.compile(full=True))
    if "manifest.json" not in bench.key and "/shards/" not in bench.key:
        for key in ("k1", "k8", "k20", "k59"):
            record = index.get(key)
            bench.demand(
                record is not None or "/packs/" in bench.key or "/inbox/" in bench.key, f"{key} is gone after compile"
            )
    tolerated(lambda: index.put({"key": "new", "n": 1}))
    tolerated(lambda: index.compile(full=True))
    tolerated(lambda: [*index.scan()])
    bench.cli("index", "compile")
    fleet.index("fine").put({"key": "k0", "n": 1})
    fleet.index("fine").compile(full=True)
    _is_fine(bench, fleet)


def verify_index(bench: Bench) -> None:
    """verify, and verify --repair."""
    bench.cli("index", "verify", "recs")
    bench.cli("index", "verify", "recs", "--repair")
    fine = bench.cli("index", "verify", "fine").code
    bench.demand(fine == 0 or not bench.key, "the index beside it is not whole")  # foreign names lie in both


def maintain_index(bench: Bench) -> None:
    """Change records by commands, give up what is damaged, purge and reshard."""
    bench.cli("index", "put", "recs", '{"key": "new", "n": 1}')
    bench.cli("index", "delete", "recs", "k1", "new")
    bench.cli("index", "verify", "recs", "--accept-loss")
    bench.cli("index", "purge", "recs", "--quiesced")
    bench.cli("index", "reshard", "recs", "--depth", "3", "--quiesced")
    bench.cli("index", "get", "recs", "k2")
    _is_fine(bench, bench.open())


def show_index(bench: Bench) -> None:
    """What people type to look at indexes."""
    bench.demand("fine" in bench.cli("index", "ls").out, "`index ls` does not show the index beside it")
    bench.demand(
        '"fine"' in bench.cli("index", "ls", "--json").out, "`index ls --json` does not show the index beside it"
    )
    bench.cli("index", "get", "recs", "k0", "k1", "s1", "broken")
    bench.cli("index", "get", "recs", "k0", "--json")
    bench.cli("index", "stats", "recs")
    bench.cli("index", "schema", "recs")


def query_index(bench: Bench) -> None:
    """sql and export."""
    tolerated(lambda: bench.open().index("recs").sql("select count(*), sum(n), max(text) from recs"))
    for format_ in ("jsonl", "csv"):
        bench.cli("index", "export", "recs", "-", "--format", format_)
    bench.cli("index", "sql", "select * from fine limit 2")


def import_index(bench: Bench) -> None:
    """The same import again: it goes on where its record says."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "more.jsonl"
        file.write_text('{"key": "i1", "n": 1}\n{"key": "i2", "n": 2}\n')
        bench.cli("index", "import", "recs", str(file))
        bench.cli("index", "import", "fine", str(file))


# ---- the catalog ----


def _catalog_fleet(bench: Bench) -> None:
    from limpet.app.catalogs import executions_of
    from limpet.catalog import compactor
    from limpet.events.fold import hand_over
    from support.catalog import append, table, view

    fleet = bench.open(events=True)
    before, compactor.SNAPSHOT_EVERY = compactor.SNAPSHOT_EVERY, 6
    try:
        with fleet.lead_catalog() as catalog:
            catalog.create_namespace(["a"], {"owner": "me"})
            for name in ("bad", "t2", "gone"):
                catalog.create_table(["a"], table(name))
            catalog.create_view(["a"], view("v"))
            for id_ in range(1, 4):
                for name in ("bad", "t2"):
                    catalog.commit_table(["a"], name, append(catalog.load_table(["a"], name), id_))
            catalog.drop_table(["a"], "gone")
    finally:
        compactor.SNAPSHOT_EVERY = before
    _tasks(fleet)
    executions = executions_of(bench.store, bench.runtime)
    for _ in range(3):
        for name in ("q", "other"):
            fleet.queue(name).push({"n": 1})
        testing.drain(fleet)
        bench.store.put(executions.keys.batch(bench.runtime.new_id()), b'{"schema":1,"domain":"executions"}')
        assert fleet.events is not None
        fleet.events.flush()
        if len(bench.facts) < 2:
            hand_over(bench.store, executions.keys, executions.publish)
            bench.facts[f"pass{len(bench.facts)}"] = True
    _close(fleet)
    bench.pass_by(LATER_S)


def _close(fleet: Fleet) -> None:
    assert isinstance(fleet.events, LedgerSink)
    fleet.events.close()


def _whole(bench: Bench) -> bool:
    """Whether the damage is to something that the whole catalog follows from."""
    return bool(re.match(r"manifests/catalog|snapshots/|locks/catalog", bench.key))


def read_catalog(bench: Bench) -> None:
    """List, load, log, time travel."""
    catalog = bench.open().catalog()
    for act in (
        catalog.namespaces,
        lambda: catalog.namespace(["a"]),
        lambda: catalog.tables(["a"]),
        lambda: catalog.views(["a"]),
        lambda: catalog.load_table(["a"], "bad"),
        lambda: catalog.load_view(["a"], "v"),
        catalog.log,
        catalog.verify,
        catalog.at,
        lambda: catalog.at(2),
    ):
        tolerated(act)
    if not _whole(bench):
        bench.demand(catalog.load_table(["a"], "t2").metadata, "the table beside it does not load")


def _appending(catalog: Any, name: str, id_: int) -> dict[str, Any]:
    """A client's commit to a table. A client that cannot read the metadata sends something else."""
    from support.catalog import append

    loaded = catalog.load_table(["a"], name)
    try:
        return append(loaded, id_)
    except (LookupError, TypeError, AttributeError, ValueError):
        return {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}


def commit_catalog(bench: Bench) -> None:
    """Lead, create, change, drop, undrop."""
    from support.catalog import table

    fleet = bench.open()

    def lead() -> None:
        with fleet.lead_catalog(wait_s=60.0) as catalog:
            tolerated(lambda: catalog.commit_table(["a"], "bad", _appending(catalog, "bad", 90)))
            tolerated(lambda: catalog.undrop(["a"], "gone"))
            tolerated(lambda: catalog.drop_table(["a"], "bad"))
            try:
                catalog.commit_table(["a"], "t2", _appending(catalog, "t2", 91))
                catalog.create_table(["a"], table("new"))
            except LimpetError as error:
                bench.demand(_whole(bench), f"a commit to the table beside it: {error}")

    if _whole(bench):
        tolerated(lead)
    else:
        lead()


def show_catalog(bench: Bench) -> None:
    """What people type about the catalog."""
    for arguments in (["log"], ["log", "--json"], ["show"], ["show", "--json"], ["show", "--at", "2"]):
        bench.cli("catalog", *arguments)
    bench.demand("other" in bench.cli("status").out, "`status` does not show the queue")


def tidy_catalog(bench: Bench) -> None:
    """What people type to check and to clean a catalog."""
    bench.cli("catalog", "verify")
    bench.cli("catalog", "undrop", "a.gone")
    bench.cli("catalog", "gc", "--keep", "0s", "--keep-versions", "1", "--grace", "0s")
    bench.cli("catalog", "verify", "--json")


def serve_catalog(bench: Bench) -> None:
    """`limpet serve`: everything is asked for, the table beside the damage is read and committed."""
    from support.catalog import table, view

    whole = _whole(bench)
    with serving(bench, URL) as service:
        for path in (
            "/healthz",
            "/readyz",
            "/v1/config",
            "/v1/namespaces",
            "/v1/namespaces?parent=a",
            "/v1/namespaces/a",
        ):
            service.ask("GET", path)
        for path in ("tables", "views", "tables/bad", "views/v", "tables/gone"):
            service.ask("GET", f"/v1/namespaces/a/{path}")
        service.ask("HEAD", "/v1/namespaces/a/tables/bad")
        change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
        for path, body in (
            ("/v1/namespaces/a/tables/bad", change),
            ("/v1/namespaces/a/tables/t2", change),
            ("/v1/namespaces/a/tables", table("new")),
            ("/v1/namespaces/a/views", view("v2")),
            ("/v1/namespaces/a/properties", {"updates": {"c": "d"}}),
            ("/limpet/undrop", {"namespace": ["a"], "name": "gone"}),
        ):
            status = service.ask("POST", path, body).status
            if path.endswith(("/t2", "/tables", "/properties")):
                bench.demand(status == 200 or whole, f"POST {path} is answered with {status}")
        service.pause(3 * JOBS_EVERY_S)
        service.ask("DELETE", "/v1/namespaces/a/tables/bad")
        found = service.ask("GET", "/v1/namespaces/a/tables/t2")
        bench.demand(
            whole or (found.status == 200 and found.body["metadata"]["properties"]["a"] == "b"), "t2 is not served"
        )
        service.ask("GET", "/readyz")


def fold_events(bench: Bench) -> None:
    """Events: fold, read, merge, collect, quarantine; and work with events goes on."""
    from limpet.app.catalogs import executions_of
    from limpet.catalog.gc import classify_ledger
    from limpet.events.fold import collect_events, hand_over

    fleet = bench.open(events=True)
    executions = executions_of(fleet.store, bench.runtime)
    tolerated(lambda: hand_over(fleet.store, executions.keys, executions.publish))
    tolerated(lambda: [*executions.scan()])
    tolerated(lambda: classify_ledger(fleet.catalog().storage, grace_s=0.0))
    bench.cli("catalog", "quarantine", "ls")
    bench.cli("catalog", "quarantine", "ls", "--json")
    bench.cli("catalog", "quarantine", "retry", "--all")
    _tasks(fleet)
    fleet.queue("other").push({"n": 1}, id="g1")
    tolerated(lambda: testing.drain(fleet))
    _are_done(bench, fleet, "other", ["g1"])
    assert fleet.events is not None
    tolerated(fleet.events.flush)
    tolerated(lambda: hand_over(fleet.store, executions.keys, executions.publish))
    tolerated(lambda: collect_events(executions, grace_s=0.0))
    tolerated(_close, fleet)


def show_events(bench: Bench) -> None:
    """What people type to see events."""
    for form in ([], ["--json"], ["-q", "other", "--since", "1000d"]):
        bench.cli("events", "ls", *form)


def _sign_head(store: FuzzStore, key: str, data: bytes) -> bytes:
    """The seal of a head, put right where it can be read at all."""
    from limpet.catalog.heads import HEADS
    from limpet.catalog.records import CatalogHead

    try:
        head = msgspec.json.decode(data, type=CatalogHead)
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        assert HEADS.to_struct is not None
        sealed = msgspec.json.decode(msgspec.json.encode(HEADS.to_struct(head)), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError):
        return data
    return msgspec.json.encode({**fields, **sealed})


def _sign_named(store: FuzzStore, key: str, data: bytes) -> bytes:
    """The digest of an object that a head names, put right there."""
    head_key = Key(f"manifests/{key.split('/')[1]}.json")
    old, head = store.get(Key(key)).data, store.get(head_key).data
    changed = head.replace(_sha256(old), _sha256(data)).replace(b'"size":%d' % len(old), b'"size":%d' % len(data))
    store.put(head_key, _sign_head(store, head_key, changed) if "/catalog" in head_key else changed)
    return data


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


# ---- an index that is published as a table ----


def _publish_fleet(bench: Bench) -> None:
    _index_fleet(bench)
    for name in ("recs", "fine"):
        done = bench.cli("index", "publish", name)
        assert done.code == 0, done
        bench.open().index(name).put({"key": "late", "n": 1})


def publish_index(bench: Bench) -> None:
    """Publish the index whose table is damaged, and the one beside it."""
    bench.cli("index", "publish", "recs")
    done = bench.cli("index", "publish", "fine")
    bench.demand(done.code == 0 and "published 67 records" in done.out, f"the index beside it: {done}")


def maintain_tables(bench: Bench) -> None:
    """`limpet tables`, on the table that is damaged and on the one beside it."""
    bad, fine = ("indexes.recs", "indexes.fine") if "indexes/" in bench.key else ("a.bad", "a.t2")
    for name in (bad, fine):
        codes = [
            bench.cli("tables", "compact", name).code,
            bench.cli("tables", "expire", name, "--max-age", "0s").code,
            bench.cli("tables", "orphans", name, "--grace", "0s", "--quiesced").code,
        ]
    bench.demand(fine == "a.t2" or codes == [0, 0, 0], f"`limpet tables` on the table beside it: {codes}")


def query_tables(bench: Bench) -> None:
    """`limpet sql` over the table that is damaged, and over the one beside it."""
    bench.cli("sql", "select count(*), max(text) from tables.indexes.recs")
    done = bench.cli("sql", "select count(*) as found from tables.indexes.fine", "--json")
    bench.demand('"found": 66' in done.out, f"the table beside it: {done}")


def query_fleet(bench: Bench) -> None:
    """`limpet sql` over all that is neither a queue nor an index. Each query costs 35 ms: one, and on an error four."""
    queries = [f"select * from fleet.{name}" for name in ("locks", "workers", "commits", "executions")]
    if bench.cli("sql", " union all by name ".join(queries), "--json").code:
        for query in queries:
            bench.cli("sql", query, "--json")


# ---- nodes ----

NODES = ("a", "b", "c")


def _node_fleet(bench: Bench) -> dict[str, Store]:
    nodes = Nodes()
    nodes.time = bench.time
    nodes.memory = bench.store
    a, b, c = nodes.nodes(*NODES)
    client = nodes.client()
    client.push("client1")
    a.push("a1", "a2")
    a.queue.push_many([{"n": n} for n in range(3)])
    a.up()
    c.down()
    a.work()
    a.push("a3", "taken")
    a.up()
    b.push(*GOOD)
    b.up()
    bench.time.sleep(10.0)
    claim = a.take()
    next(iter(claim))
    bench.time.sleep(15.0)
    a.up()
    b.push("b1", "b2")
    claim = b.take()
    c.down()
    c.push("c1")
    with c.supervisor._alone():
        pass
    return {name: node.memory for name, node in zip(NODES, (a, b, c), strict=True)}


def _nodes(bench: Bench) -> dict[str, Node]:
    fleet = Nodes()
    fleet.time = bench.time
    fleet.memory = bench.store
    made = {}
    for name in NODES:
        node = Node(fleet, name)
        node.memory = bench.places[name]
        node.store = Network(node.runtime, node.memory)
        node.queue = node.open_queue()
        made[name] = node
    for name, node in made.items():
        tolerated(node.restart)
        bench.demand(node.supervisor, name)
    return made


def sync_nodes(bench: Bench) -> None:
    """Every node syncs and works, thrice; then afresh. What the others pushed is done in the end."""
    nodes = _nodes(bench)
    for _ in range(3):
        for node in nodes.values():
            tolerated(node.up)
            tolerated(node.down)
            tolerated(node.work)
            tolerated(node.up)
        bench.pass_by(4000.0)
    queue = Nodes.client(_of(bench)).queue
    for id_ in GOOD:
        state = queue.result(id_).state
        bench.demand(state == "completed", f"task {id_!r} of node b is {state} in the bucket")
    for name, node in nodes.items():
        if bench.key.startswith("sync/") and bench.place == name:
            continue
        state = node.result(GOOD[0]).state
        bench.demand(state == "completed", f"node {name} believes that {GOOD[0]!r} is {state}")
    for node in nodes.values():
        tolerated(node.down, fresh=True)
        tolerated(node.supervisor.tidy)


def _of(bench: Bench) -> Nodes:
    fleet = Nodes()
    fleet.time = bench.time
    fleet.memory = bench.store
    return fleet


def supervise(bench: Bench) -> None:
    """`limpet supervise --once` on each node, twice. Then all know what node b pushed."""
    for form in ([], ["--json"]):
        for name in NODES:
            bench.cli("supervise", "--local", f"{DISKS}/{name}", "--remote", BUCKET, "--once", "--create", *form)
        bench.pass_by(100.0)
    for name, node in _nodes(bench).items():
        for id_ in GOOD:
            state = node.result(id_).state
            bench.demand(state != "unknown" or name == bench.place, f"node {name} does not know {id_!r} of node b")


def keep_supervising(bench: Bench) -> None:
    """`limpet supervise`, for two rounds: nothing in the bucket or on the disk ends it or is taken for an outage."""
    name = bench.place or "c"
    supervisor = Supervisor(bench.places[name], bench.store, bench.runtime)
    events: list[SyncEvent] = []
    tolerated(supervisor.run, _Until(bench, bench.time.now_s + UP_S + 5.0), events.append)
    bench.demand(len(events) >= 3, f"a supervisor reports no more than {events}")
    for event in events:
        bench.demand(not isinstance(event, Disconnected | Blocked), f"a supervisor reports {event}")


# ---- the list ----

# ---- backups ----

COPY = "copy"


def _backup_fleet(bench: Bench) -> dict[str, Store]:
    _lock_fleet(bench)
    fleet = bench.open()
    fleet.index("fine", Rec, key="key").put_many([Rec(f"k{n}", n) for n in range(4)])
    copy = FuzzStore(bench.runtime)
    _named_memory[f"{NAME}-{COPY}"] = copy
    assert bench.cli("backup", URL, f"{URL}-{COPY}", "--json").code == 0
    return {COPY: copy}


def use_backup(bench: Bench) -> None:
    """Check the damaged backup, bring it up to date, and make a fleet of it; a backup to another place is whole."""
    copy, other, made = (f"{URL}-{name}" for name in (COPY, "other", "made"))
    bench.cli("backup", "--check", copy)
    bench.cli("backup", "--check", copy, "--json")
    bench.cli("restore", copy, made)
    bench.cli("restore", copy, f"{made}2", "--force")
    bench.cli("backup", URL, copy)
    bench.cli("backup", "--check", copy)
    bench.cli("restore", URL, f"{made}3")
    whole = bench.cli("backup", URL, other).code == 0 and bench.cli("backup", "--check", other).code == 0
    bench.demand(whole or not bench.place, "a new backup is not whole")


class _Until:
    """A flag that time raises."""

    def __init__(self, bench: Bench, until_s: float) -> None:
        self._bench = bench
        self._until_s = until_s

    def is_set(self) -> bool:
        return self._bench.time.now_s >= self._until_s

    def set(self) -> None:
        self._until_s = 0.0

    def wait(self, timeout: float) -> bool:
        self._bench.runtime.sleep(timeout)
        return self.is_set()


_queues = cache(lambda: build(_queue_fleet))
_durables = cache(lambda: build(_durable_fleet))
_locks = cache(lambda: build(_lock_fleet))
_indexes = cache(lambda: build(_index_fleet))
_catalogs = cache(lambda: build(_catalog_fleet))
_synced = cache(lambda: build(_node_fleet))
_backups = cache(lambda: build(_backup_fleet))
_published = cache(lambda: build(_publish_fleet))

_ULID = "[0-9a-z]{26}"
_QUEUE: tuple[Consumer, ...] = (
    work,
    run_workers,
    run_workers_far,
    work_far,
    show_queue,
    show_tasks,
    change_queue,
    query_queue,
    watch,
)
_LOCKS: tuple[Consumer, ...] = (use_locks, show_locks, watch, query_fleet)
_INDEX: tuple[Consumer, ...] = (read_index, compile_index, show_index, verify_index, query_index, maintain_index, watch)
_TABLES: tuple[Consumer, ...] = (
    read_catalog,
    serve_catalog,
    commit_catalog,
    show_catalog,
    tidy_catalog,
    maintain_tables,
    query_fleet,
    watch,
)
_EVENTS: tuple[Consumer, ...] = (
    fold_events,
    show_events,
    serve_catalog,
    show_catalog,
    tidy_catalog,
    query_fleet,
    watch,
)
_PUBLISHED: tuple[Consumer, ...] = (publish_index, maintain_tables, query_tables, watch)
_NODES: tuple[Consumer, ...] = (sync_nodes, supervise, keep_supervising)


def _queue(name: str, pattern: str, form: str = "json", resign: Resign | None = None) -> Kind:
    return Kind(name, "queue", _queues, f"queues/{pattern}", form, _QUEUE, resign)


def _durable(name: str, pattern: str, *consumers: Consumer) -> Kind:
    return Kind(name, "durable", _durables, f"queues/d/{pattern}", "json", consumers or (run_durable, show_durable))


def _index(name: str, pattern: str, form: str = "json", consumers: Sequence[Consumer] = _INDEX) -> Kind:
    return Kind(name, "index", _indexes, f"indexes/recs/{pattern}", form, consumers)


def _catalog(
    name: str, pattern: str, form: str = "json", consumers: Sequence[Consumer] = _TABLES, resign: Resign | None = None
) -> Kind:
    return Kind(name, "catalog", _catalogs, pattern, form, consumers, resign)


def _table(name: str, pattern: str, form: str) -> Kind:
    return Kind(name, "publish", _published, f"warehouse/indexes/recs-[^/]*/{pattern}", form, _PUBLISHED)


def _sync(name: str, pattern: str, form: str = "json", resign: Resign | None = None, place: str = "") -> Kind:
    return Kind(name, "sync", _synced, pattern, form, _NODES, resign, place)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        _queue("task", "q/pending/bad/task.json", resign=_sign_task),
        _queue("batch", rf"q/pending/{_ULID}-3/tasks.jsonl", "jsonl", _sign_lines),
        _queue("lease", "q/pending/held/lease.json"),
        _queue("lease-free", "q/pending/rests/lease.json"),
        _queue("lease-batch", rf"q/pending/{_ULID}-4/lease.json"),
        _queue("lease-spread", rf"q/pending/{_ULID}-5/lease.json"),
        _queue("receipt-completed", "q/completed/done.json"),
        _queue("receipt-failed", "q/failed/failed.json"),
        _queue("receipt-retried", "q/failed/again.json"),
        _queue("receipt-batch", rf"q/completed/{_ULID}-3.json"),
        _queue("receipt-part-of-batch", rf"q/failed/{_ULID}-3\.1.json"),
        _queue("result-part", rf"q/parts/{_ULID}-3/.*"),
        _queue("control", "q/control.json"),
        _queue("sweep", "q/sweep.json"),
        Kind("bell", "queue", _queues, "queues/q/bell.json", "json", (ring_bell, *_QUEUE)),
        _queue("slot", "s/slots/0.lock"),
        Kind("asking", "queue", _queues, "queues/q/slots/asking.lock", "json", (ask_in_turn,)),
        Kind("push-shape", "queue", _queues, "queues/q/pushes/.*", "json", (push_with_id,)),
        _queue("scheduled", "q/scheduled/.*", resign=_sign_task),
        _durable("step", "steps/bad/0.0000.json"),
        _durable("step-push", "steps/bad/0.0001.json"),
        _durable("step-gather", "steps/bad/0.0002.json"),
        _durable("history", r"parts/ended/history-\d+\.json"),
        _durable("signal", "steps/bad/signals/0.go.json"),
        _durable("lease-suspended", "pending/bad/lease.json"),
        Kind("lock", "lock-cell", _locks, "locks/user/bad.lock", "json", _LOCKS),
        Kind("lock-held", "lock-cell", _locks, "locks/user/held.lock", "json", _LOCKS),
        Kind("cell", "lock-cell", _locks, "cells/bad.json", "json", _LOCKS),
        Kind("presence", "lock-cell", _locks, "workers/bad.json", "json", (show_workers, watch, query_fleet)),
        Kind("queue-drop", "lock-cell", _locks, r"queues/old\.drop\.json", "json", (drop_again,)),
        Kind("index-drop", "lock-cell", _locks, r"indexes/old\.drop\.json", "json", (drop_again,)),
        Kind("drop-lock", "lock-cell", _locks, r"queues/old\.drop\.lock", "json", (drop_again,)),
        Kind("limpet.json", "lock-cell", _locks, "limpet.json", "json", (open_fleet,)),
        _index("manifest", "manifest.json"),
        _index("datapackage", "datapackage.json", consumers=(read_index, show_index, verify_index)),
        _index("schema.json", "schema.json", consumers=(read_index, show_index, verify_index)),
        _index("shard", "shards/.*usv", "usv"),
        _index("shard-lock", "shards/.*lock", consumers=(read_index, compile_index, verify_index)),
        _index("pack", "packs/.*", "usv"),
        _index("single", "inbox/.*", "usv"),
        _index("index-quarantine", "quarantine/.*", consumers=(read_index, compile_index, show_index, verify_index)),
        _index("import", "imports/.*", consumers=(import_index, show_index, verify_index)),
        _catalog("head", "manifests/catalog.json", resign=_sign_head),
        _catalog("ledger", f"ledger/catalog/{_ULID}.json"),
        _catalog("commit", f"commits/catalog/{_ULID}.json"),
        _catalog("snapshot", f"snapshots/catalog/{_ULID}.parquet", "parquet", resign=_sign_named),
        _catalog("catalog-lock", "locks/catalog.lock"),
        _catalog("metadata", "warehouse/a/bad.*/00003-.*metadata.json"),
        _catalog("view-metadata", "warehouse/a/v-.*metadata.json"),
        _catalog("events", f"ledger/executions/{_ULID}.json", consumers=_EVENTS),
        _catalog("events-head", "manifests/executions.json", consumers=_EVENTS),
        _catalog("events-state", f"state/executions/{_ULID}.parquet", "parquet", _EVENTS, _sign_named),
        _catalog("sequence", "sequence/executions.json", consumers=(fold_events, serve_catalog)),
        _catalog("events-quarantine", f"quarantine/executions/{_ULID}.json", consumers=_EVENTS),
        _catalog("events-reason", f"quarantine/executions/{_ULID}.reason.json", consumers=_EVENTS),
        _sync("sync-log", "sync/a/.*", "jsonl", _sign_lines),
        _sync("sync-log-lease", "sync/a/0000000003.jsonl", "jsonl", _sign_lines),
        _sync("sync-log-client", "sync/client-.*", "jsonl", _sign_lines),
        _sync("sync-outbox", "sync/outbox/.*", place="b"),
        _sync("sync-cursor", "sync/cursors/.*", place="c"),
        _sync("sync-node", "sync/node.json", place="c"),
        _sync("sync-supervisor", "sync/supervisor.lock", place="c"),
        _sync("remote-lease", ".*/remote.json", place="c"),
        _table("table-manifest", "metadata/.*-m0.avro", "raw"),
        _table("table-manifest-list", "metadata/snap-.*avro", "raw"),
        _table("table-data", "data/.*parquet", "raw"),
        _table("table-metadata", "metadata/.*metadata.json", "json"),
        Kind("backup", "backup", _backups, "backup.json", "json", (use_backup,), place=COPY),
        Kind("backup-list", "backup", _backups, "backup/.*", "jsonl", (use_backup,), place=COPY),
    )
}

RARELY: dict[Consumer, int] = {query_index: 2, verify_index: 2, maintain_index: 2}
"""Consumers that take long: they have every second of their turns."""

"""Operations whose requests are counted: each prepares what it needs, and returns the act to be measured.

tests/costs.toml holds what they cost, `tests/test_costs.py` compares, and `tools/make_reference.py` prints the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from limpet.index import Index, shard_id
from limpet.index.types import typed
from limpet.index.writer import stamps_of
from limpet.kernel.cell import PLAIN, Cell, Fence
from limpet.kernel.errors import Conflict
from limpet.kernel.keys import Key, cell_key, lock_key
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.runtime import Runtime
from limpet.kernel.store import MeteredStore, Store
from limpet.queue import BucketQueue
from limpet.queue.claim import EntryClaim, EntryTask
from support.clock import QueueRuntime
from support.index import NAME, Rec, keys_in

__all__ = ["OPERATIONS", "TRIP_S", "Act", "ParallelRuntime", "Place", "TimedStore"]

A = TypeVar("A")
B = TypeVar("B")
Act = Callable[[], object]
TRIP_S = 0.001


class ParallelRuntime(QueueRuntime):
    """A process on a hand-moved clock that has a thread for each item of a fan-out, as the real one has."""

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = 32) -> list[B]:
        """All at the same time, so many at once."""
        todo, answers = [*items], dict[int, B]()
        for begin in range(0, len(todo), at_once):
            numbers = range(begin, min(begin + at_once, len(todo)))
            threads = [
                self.spawn(lambda n=n: answers.update({n: call(todo[n])}), name=f"part {n}")  # type: ignore[misc]
                for n in numbers
            ]
            for thread in threads:
                thread.join()
        return [answers[n] for n in range(len(todo))]


class TimedStore(MeteredStore):
    """Each request takes the same time, so that the time of an operation is the number of its round trips."""

    def _send(self, verb: str, key: Key, *, size: int = 0) -> Key:
        sent = super()._send(verb, key, size=size)
        self._runtime.sleep(TRIP_S)
        return sent


@dataclass(frozen=True, slots=True)
class Place:
    """An empty store, as two processes see it. Only `mine` is measured."""

    mine: MeteredStore
    runtime: Runtime
    others: Store
    others_runtime: Runtime
    queues: list[BucketQueue] = field(default_factory=list)

    def cell(self) -> Cell[object]:
        """A cell of the process that is measured."""
        return Cell(self.mine, cell_key("x"), PLAIN, self.runtime)

    def others_cell(self) -> Cell[object]:
        """The same cell, of another process."""
        return Cell(self.others, cell_key("x"), PLAIN, self.others_runtime)

    def lock(self, watch: VersionWatch | None = None, *, look_first: bool = False) -> Lock:
        """A lock, of a process that has seen nothing of it unless it says what."""
        watch = watch or VersionWatch(self.runtime)
        return Lock(self.mine, lock_key("x"), "x", 60.0, self.runtime, watch, look_first=look_first)

    def queue(self) -> BucketQueue:
        """A queue that has looked once, so that it knows that it is not paused and that nothing waits."""
        queue = BucketQueue(self.mine, "q", self.runtime)
        queue.claim()
        self.queues.append(queue)
        return queue

    def settle(self) -> None:
        """Wait for the deletes that a bucket's queues make in the background."""
        for queue in self.queues:
            queue.flush()

    def index(self) -> Index[Rec]:
        """An index whose handle has read the manifest and the store's clock."""
        stamps = stamps_of(self.mine, self.runtime, "fleet")
        index = Index(self.mine, NAME, self.runtime, typed(Rec, "key"), stamps, VersionWatch(self.runtime))
        index.put(Rec("first"))
        return index


OPERATIONS: dict[str, Callable[[Place], Act]] = {}
"""By room and name, `queue: push`."""


def _operation(name: str) -> Callable[[Callable[[Place], Act]], None]:
    def add(prepare: Callable[[Place], Act]) -> None:
        OPERATIONS[name] = prepare

    return add


# ---- cells ----


@_operation("cell: create")
def _(place: Place) -> Act:
    return lambda: place.cell().create(1)


@_operation("cell: create, when there is one")
def _(place: Place) -> Act:
    place.others_cell().create(1)

    def act() -> None:
        with suppress(Conflict):
            place.cell().create(2)

    return act


@_operation("cell: swap")
def _(place: Place) -> Act:
    cell = place.cell()
    seen = cell.create(1)
    return lambda: cell.swap(seen, 2)


@_operation("cell: update")
def _(place: Place) -> Act:
    place.others_cell().create(1)
    return lambda: place.cell().update(lambda _: 2)


@_operation("cell: update that changes nothing")
def _(place: Place) -> Act:
    return lambda: place.cell().update(lambda _: None)


@_operation("cell: first write of a handle")
def _(place: Place) -> Act:
    return lambda: place.cell().write(1)


@_operation("cell: later write of a handle")
def _(place: Place) -> Act:
    cell = place.cell()
    cell.write(1)
    return lambda: cell.write(2)


@_operation("cell: later write of a handle, under a lease")
def _(place: Place) -> Act:
    cell, fence = place.cell(), Fence("locks/user/a.lock", 1)
    cell.write(1, lease=fence)
    return lambda: cell.write(2, lease=fence)


@_operation("cell: write of a handle that has read what another wrote")
def _(place: Place) -> Act:
    cell = place.cell()
    cell.write(1)
    place.others_cell().write(2)
    cell.read()
    return lambda: cell.write(3)


@_operation("cell: write on an old version")
def _(place: Place) -> Act:
    cell = place.cell()
    cell.write(1)
    place.others_cell().write(2)
    return lambda: cell.write(3)


@_operation("cell: read")
def _(place: Place) -> Act:
    return place.cell().read


# ---- locks ----


@_operation("lock: take a new lock")
def _(place: Place) -> Act:
    return place.lock().try_acquire


@_operation("lock: renew")
def _(place: Place) -> Act:
    return place.lock().acquire().renew


@_operation("lock: release")
def _(place: Place) -> Act:
    return place.lock().acquire().release


@_operation("lock: take a free lock that this process had before")
def _(place: Place) -> Act:
    watch = VersionWatch(place.runtime)
    place.lock(watch).acquire().release()
    return place.lock(watch).try_acquire


@_operation("lock: take a free lock, looking first")
def _(place: Place) -> Act:
    place.lock().acquire().release()
    return place.lock(look_first=True).try_acquire


@_operation("lock: take a free lock that this process takes for new")
def _(place: Place) -> Act:
    place.lock().acquire().release()
    return place.lock().try_acquire


@_operation("lock: look at a lock that is held")
def _(place: Place) -> Act:
    place.lock().acquire()
    return place.lock(look_first=True).try_acquire


@_operation("lock: take and release")
def _(place: Place) -> Act:
    def act() -> None:
        with place.lock().hold():
            pass

    return act


@_operation("lock: peek")
def _(place: Place) -> Act:
    place.lock().acquire()
    return place.lock().peek


@_operation("lock: break")
def _(place: Place) -> Act:
    place.lock().acquire()
    return place.lock().break_


# ---- queues ----


def _claim(queue: BucketQueue) -> EntryClaim:
    claim = queue.claim(wait_s=30)
    assert isinstance(claim, EntryClaim)
    return claim


def _task(queue: BucketQueue) -> EntryTask:
    return next(iter(_claim(queue)))


def _started(queue: BucketQueue) -> EntryTask:
    queue.push({"n": 1}, id="x")
    return _task(queue)


@_operation("queue: push")
def _(place: Place) -> Act:
    queue = place.queue()
    return lambda: queue.push({"n": 1})


@_operation("queue: push with an id")
def _(place: Place) -> Act:
    queue = place.queue()
    return lambda: queue.push({"n": 1}, id="x")


@_operation("queue: push with an id that waits")
def _(place: Place) -> Act:
    queue = place.queue()
    queue.push({"n": 1}, id="x")
    return lambda: queue.push({"n": 1}, id="x")


@_operation("queue: push with an id that is done")
def _(place: Place) -> Act:
    queue = place.queue()
    _started(queue).done()
    queue.flush()
    return lambda: queue.push({"n": 1}, id="x")


@_operation("queue: push 1,000 tasks, 100 to a batch")
def _(place: Place) -> Act:
    queue = place.queue()
    return lambda: queue.push_many([{"n": n} for n in range(1000)], batch=100)


@_operation("queue: find, claim and start a task")
def _(place: Place) -> Act:
    queue = place.queue()
    queue.push({"n": 1})
    return lambda: _task(queue)


@_operation("queue: find, claim and start a task with an id")
def _(place: Place) -> Act:
    queue = place.queue()
    queue.push({"n": 1}, id="x")
    return lambda: _task(queue)


@_operation("queue: done")
def _(place: Place) -> Act:
    return _started(place.queue()).done


@_operation("queue: done, with a result")
def _(place: Place) -> Act:
    task = _started(place.queue())
    return lambda: task.done({"rows": 3})


@_operation("queue: fail")
def _(place: Place) -> Act:
    task = _started(place.queue())
    return lambda: task.fail("no")


@_operation("queue: another attempt later")
def _(place: Place) -> Act:
    task = _started(place.queue())
    return lambda: task.retry(after_s=60)


@_operation("queue: hand back")
def _(place: Place) -> Act:
    queue = place.queue()
    queue.push({"n": 1})
    return _claim(queue).hand_back


@_operation("queue: result of a task that is done")
def _(place: Place) -> Act:
    queue = place.queue()
    _started(queue).done()
    queue.flush()
    return lambda: queue.result("x")


@_operation("queue: retry a task that failed")
def _(place: Place) -> Act:
    queue = place.queue()
    _started(queue).fail("no")
    queue.flush()
    return lambda: queue.retry("x")


@_operation("queue: pause")
def _(place: Place) -> Act:
    return place.queue().pause


@_operation("queue: resume")
def _(place: Place) -> Act:
    queue = place.queue()
    queue.pause()
    return queue.resume


@_operation("queue: resume a queue that is not paused")
def _(place: Place) -> Act:
    queue = place.queue()
    queue.pause()
    queue.resume()
    return queue.resume


# ---- indexes ----


def _two_of_each(number: int) -> list[Rec]:
    """Two records of each of so many shards."""
    return [Rec(key) for n in range(number) for key in keys_in(f"{n:02x}", 2)]


def _compiled(place: Place, number: int) -> Index[Rec]:
    index = place.index()
    index.put_many(_two_of_each(number))
    index.compile(full=True)
    return index


@_operation("index: put")
def _(place: Place) -> Act:
    index = place.index()
    return lambda: index.put(Rec("a", "text"))


@_operation("index: delete")
def _(place: Place) -> Act:
    index = place.index()
    return lambda: index.delete("a")


@_operation("index: put_many, records of 7 shards")
def _(place: Place) -> Act:
    index = place.index()
    return lambda: index.put_many(_two_of_each(7))


@_operation("index: get, compiled")
def _(place: Place) -> Act:
    index = _compiled(place, 1)
    return lambda: index.get(keys_in("00", 1)[0])


@_operation("index: get, of a shard that is empty")
def _(place: Place) -> Act:
    index = place.index()
    assert shard_id("first") != "77"
    return lambda: index.get(keys_in("77", 1)[0])


@_operation("index: get, put since it was compiled")
def _(place: Place) -> Act:
    index = _compiled(place, 1)
    key = keys_in("00", 1)[0]
    index.get(key)
    index.put(Rec(key, "newer"))
    return lambda: index.get(key)


@_operation("index: get_many, records of 30 shards, compiled")
def _(place: Place) -> Act:
    index = _compiled(place, 30)
    return lambda: index.get_many([record.key for record in _two_of_each(30)])


@_operation("index: scan, compiled")
def _(place: Place) -> Act:
    index = _compiled(place, 3)
    return lambda: [*index.scan()]


@_operation("index: compile, nothing to do")
def _(place: Place) -> Act:
    return _compiled(place, 3).compile


@_operation("index: compile one shard")
def _(place: Place) -> Act:
    index = _compiled(place, 1)
    for key in keys_in("00", 2):
        index.put(Rec(key, "newer"))
    return index.compile

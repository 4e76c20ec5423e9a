"""The steps of a durable task.

`TaskSteps` are the steps of one run of a task: what earlier attempts have recorded, and what this one adds. A handler
that has to wait raises `Suspend`, which the worker turns into a free lease (`EntryClaim.suspend`). What
a handler calls is in `calls`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from limpet.kernel import records
from limpet.kernel.cell import Outcome, Versioned
from limpet.kernel.errors import Corrupt, Invalid, Unsupported
from limpet.kernel.keys import STEPS_MAX, Key, batch_of, entry_of, is_batch
from limpet.kernel.runtime import Runtime, in_own_task, in_thread, in_whole_thread, running_coroutine, system
from limpet.kernel.store.api import Store
from limpet.kernel.wording import many
from limpet.queue.api import Fail, Queue, Result, Task, TaskHandle, need
from limpet.queue.claim import EntryClaim, EntryTask
from limpet.queue.durable import (
    WAITS_FOR_CODE,
    KnownStep,
    OtherStep,
    agreed,
    has_ended,
    is_other,
    left_before,
    left_s,
    mismatch,
    pushed_name,
    recall,
    step_key,
    waiting,
    waiting_for_code,
)
from limpet.queue.entry import (
    DELAY_MAX_S,
    PARENT_MARK,
    GatheredStep,
    PushedStep,
    SignalStep,
    StepKind,
    StepRecord,
    Suspension,
    is_of,
)
from limpet.queue.step_values import (
    UNREADABLE,
    built_result,
    decoded_value,
    gathered_bytes,
    json_value,
    results_in_order,
)

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=msgspec.Struct)

ELSEWHERE = (
    "a step is made by the handler's own {where}: the number of one that is made in another {where} depends on timing"
)
ELSEWHERE_HINT = (
    "call limpet.step_async(f, x), or push_async, in the handler itself; what it returns may be awaited anywhere, "
    "in asyncio.gather too"
)
PUSHED_BEFORE = (
    "it pushed a task before its first step: each attempt would push again. "
    "Declare the task with durable=True, or push after the first step"
)


class Suspend(BaseException):
    """Ends a run of a durable task that has to wait. Do not catch it: the task goes on in a later run.

    It is no `Exception`, so that a handler's `except Exception` does not stop it.
    """

    def __init__(self, wait_s: float, suspension: Suspension) -> None:
        super().__init__(suspension.reason)
        self.wait_s = wait_s
        self.suspension = suspension


class TaskSteps:
    """The steps of one run of a task. It reads nothing before the first of them."""

    _claim: EntryClaim
    _n: int

    __slots__ = (
        *("_claim", "_log", "_mutex", "_n", "_next", "_pushed", "_queue", "_runtime", "_task", "_thread", "_unread"),
        *("main", "suspended", "under_way"),
    )

    def __init__(self, queue: Queue, task: Task) -> None:
        self._queue = queue
        self._task = task
        self._log: dict[int, Versioned[StepRecord]] | None = None
        self._next = 0
        self._pushed = False
        self._runtime: Runtime = task.place[0].storage.runtime if isinstance(task, EntryTask) else system()
        self._thread = self._runtime.thread()
        self.main: Any = None
        """The task of asyncio that runs an async handler; of a plain handler's own loop the first one with a step."""
        self.under_way: set[Any] = set()
        """The tasks of asyncio in which steps run that have begun."""
        self.suspended: Suspend | None = None
        """How this run was suspended; no step follows it."""

    @property
    def key(self) -> str:
        """The idempotency key of the step whose function runs.   Raises: Invalid outside of a step."""
        number = _inside.get()
        if number is None:
            raise Invalid("no step runs now", hint="step_key is for the function that limpet.step calls")
        return step_key(self._claim.origin(self._n), number)

    # ---- numbers and records ----

    def take(self) -> int:
        """The number of the next step.

        Raises: Invalid inside of a step, and outside of the handler's own coroutine or thread; Fail for one too many;
        Unsupported; Suspend if the run was suspended before.
        """
        if self.suspended is not None:
            raise self.suspended
        if _inside.get() is not None:
            raise Invalid("a step inside of a step has no number", hint="call the function itself")
        reserved = _reserved.get()
        if reserved is not None:
            _reserved.set(None)
            return reserved
        self._check_own()
        if self._log is None:
            self._begin()
        number = self._next
        if number >= STEPS_MAX:
            raise Fail(f"a task has at most {STEPS_MAX} steps; push other tasks for the rest")
        self._next += 1
        return number

    def _check_own(self) -> None:
        """Raises: Invalid outside of the handler's own coroutine or thread.

        There a step is numbered as it comes, in each attempt otherwise, and two of one name could swap their values.
        """
        if self._runtime.thread() != self._thread:
            raise Invalid(ELSEWHERE.format(where="thread"), hint=ELSEWHERE_HINT)
        loop, coroutine = running_coroutine()
        if loop is None:
            return
        if self.main is None or self.main.get_loop() is not loop:
            self.main = coroutine  # a plain handler runs a loop of its own
        if coroutine is None or coroutine is not self.main:
            raise Invalid(ELSEWHERE.format(where="coroutine"), hint=ELSEWHERE_HINT)

    def _begin(self) -> None:
        """The first step.   Raises: Unsupported where there are no steps; Fail after a push that was not numbered."""
        need(self._queue.name, self._queue.provider, self._queue.supports, "steps")
        if not isinstance(self._task, EntryTask):
            raise Unsupported(f"queue {self._queue.name!r} has no steps", hint="a bucket or a directory has them")
        if self._pushed:
            raise Fail(PUSHED_BEFORE)
        self._claim, self._n = self._task.place
        self._claim.storage.check_steps()
        self._mutex = self._claim.storage.runtime.mutex()
        self._unread = self._claim.may_have_begun
        self._log = {}

    def _steps(self) -> dict[int, Versioned[StepRecord]]:
        """What is recorded; of another life that is nothing.   Cost: 1 LIST, 1 GET for each step, in bulk; nothing in
        a first claim.
        """
        assert self._log is not None
        with self._mutex:
            if self._unread:
                self._claim.patiently(self._read)
                self._unread = False
        return self._log

    def _read(self) -> None:
        assert self._log is not None
        storage, entry = self._claim.storage, self._claim.entry
        blobs = storage.step_blobs(entry, self._n)
        if blobs:
            self._claim.note_durable(self._n, self._log)
        for number, blob in blobs.items():
            try:
                recorded = storage.decoded_step(entry, self._n, number, blob)
                if is_of(recorded.value.life, self._claim.life(self._n)):
                    self._log[number] = recorded
            except (Corrupt, Unsupported) as error:
                raise Fail(f"step {number} {UNREADABLE}: {error}") from None

    def recalled(
        self, number: int, kind: StepKind, name: str, sha256: str | None = None
    ) -> Versioned[StepRecord] | None:
        """The record of a step; None if there is none.   Raises: Suspend if it is of another step; LeaseLost.

        Cost: nothing once the steps were read; 1 GET if its lease was not renewed lately.
        """
        log = self._steps()
        self._claim.check_held()  # the steps of an ended task go: what was read counts if it was read before that
        match recall(log, number, kind, name, sha256):
            case KnownStep(step):
                return step
            case OtherStep(why):
                raise self._other_code(number, why)
        return None

    def record(
        self,
        number: int,
        kind: StepKind,
        name: str,
        value: bytes,
        *,
        began_at: datetime,
        wait_s: float = 0.0,
        sha256: str | None = None,
        any_step: bool = False,
    ) -> Versioned[StepRecord]:
        """Record a step, unless another attempt did so first: then theirs counts.

        Raises: Suspend if theirs is of another step, unless `any_step`; LeaseLost if the task may have ended meanwhile.
        Cost: 1 PUT, + 1 GET if another attempt was first, or the lease was not renewed lately.
        """
        claim = self._claim
        record = StepRecord(
            kind=kind,
            name=name,
            token=claim.token,
            label=claim.storage.runtime.label,
            began_at=began_at,
            at=self.wall(),
            value=msgspec.Raw(value),
            wait_s=wait_s,
            sha256=sha256,
            life=claim.life(self._n),
        )
        cell = claim.storage.step(claim.entry, self._n, number)
        outcomes: list[Outcome[StepRecord]] = []
        assert self._log is not None
        claim.note_durable(self._n, self._log)
        try:
            claim.patiently(lambda: outcomes.append(claim.storage.put_first(cell, record, confirm=claim.check_held)))
        except (Corrupt, Unsupported) as error:
            raise Fail(f"step {number} {UNREADABLE}: {error}") from None
        step = agreed(outcomes[-1])
        claim.check_held()  # if the task has ended, its steps are gone, and this record was the first for nobody else
        self._log[number] = step
        if not any_step and is_other(step.value, kind, name, sha256):
            raise self._other_code(number, mismatch(number, step.value, kind, name, sha256))
        return step

    def wall(self) -> datetime:
        """This machine's clock, for labels."""
        return self._claim.storage.runtime.wall()

    # ---- waiting ----

    def timer(self, numbers: Sequence[int], timeout_s: float | None, what: str) -> float | None:
        """How much of a time limit is left; None if there is none. It counts from its first record."""
        if timeout_s is None:
            return None
        return self._left_s(self._timed(numbers[0], "timer", what, timeout_s), numbers[-1])

    def sleep(self, number: int, seconds: float) -> None:
        """Return if the time is over.   Raises: Suspend."""
        left = self._left_s(self._timed(number, "sleep", "", seconds), number)
        if left > 0:
            wall = self.wall()
            reason = f"sleeping until {wall + timedelta(seconds=left):%Y-%m-%d %H:%M:%S} UTC"
            due_s = min(left, DELAY_MAX_S)
            raise self._to_suspend(left, Suspension(reason=reason, step=number, since=wall, due_s=due_s))

    def _timed(self, number: int, kind: StepKind, name: str, wait_s: float) -> Versioned[StepRecord]:
        found = self.recalled(number, kind, name)
        return found or self.record(number, kind, name, b"null", began_at=self.wall(), wait_s=wait_s)

    def _left_s(self, step: Versioned[StepRecord], number: int) -> float:
        """How long a time that was recorded by `step` still lasts, for the step that waits, of that `number`."""
        storage = self._claim.storage
        left = left_before(self._claim.state.first.suspended.get(self._n), number, self._claim.held_s)
        if left is not None:
            return left
        left = left_s(step, storage.store.now())
        return left if left <= 0 or step.modified is None else left_s(step, storage.exact_now())

    def _suspend(self, number: int, reason: str, left: float | None, **about: Any) -> Suspend:
        """`about`: what the step waits for, as `durable.waiting` takes it."""
        before = self._claim.state.first.suspended.get(self._n)
        return self._to_suspend(*waiting(before, reason=reason, step=number, wall=self.wall(), left=left, **about))

    def _other_code(self, number: int, why: str) -> Suspend:
        """Another step was recorded under that number: the task waits for code that fits, and keeps its attempts."""
        before, code = self._claim.state.first.suspended.get(self._n), self._claim.storage.code
        return self._to_suspend(*waiting_for_code(before, why=why, step=number, wall=self.wall(), code=code))

    def _to_suspend(self, wait_s: float, suspension: Suspension) -> Suspend:
        """What ends this run. It is kept, since a handler may catch it."""
        self.suspended = self.suspended or Suspend(wait_s, suspension)
        return self.suspended

    def gather(self, numbers: Sequence[int], handles: Sequence[TaskHandle], timeout_s: float | None) -> list[Result]:
        """The ends of these tasks.   Raises: Suspend while some have not ended and there is time left."""
        number, name = numbers[-1], f"{len(handles)} tasks"
        left = self.timer(numbers, timeout_s, "gather")
        found = self.recalled(number, "gather", name)
        digest = records.digest_of("\0".join(f"{each.queue.name}/{each}" for each in handles).encode())
        if self._claim.storage.keys.tasks(self._claim.entry, batch=self._claim.batch) in map(self._key_of, handles):
            raise Invalid(
                "a task cannot wait for itself, or for a task of its own batch: the batch ends as a whole",
                hint="push what it waits for by another push",
            )
        if found is None:
            began_at = self.wall()
            results = self._ends(number, handles, left)
            found = self.record(number, "gather", name, gathered_bytes(results, digest), began_at=began_at)
        gathered = decoded_value(found.value.value, GatheredStep, number)
        if len(gathered.tasks) != len(handles) or gathered.sha256 not in (None, digest):
            why = f"{WAITS_FOR_CODE}: step {number} gathered other tasks, or the same ones in another order"
            raise self._other_code(number, why)
        values = {} if gathered.values else self._values(number, handles, gathered)
        return [
            built_result(
                handle,
                Result(
                    str(handle),
                    each.state,
                    json_value(each.value) if gathered.values else values.get(str(handle)),
                    error=each.error,
                    attempts=each.attempts,
                    worker=each.worker,
                ),
            )
            for handle, each in zip(handles, gathered.tasks, strict=True)
        ]

    def _values(self, number: int, handles: Sequence[TaskHandle], gathered: GatheredStep) -> dict[str, Any]:
        """The results of the completed tasks of a gather, which were too large for its record.

        Raises: Fail if one is gone.   Cost: that of `results`.
        """
        done = [handle for handle, each in zip(handles, gathered.tasks, strict=True) if each.state == "completed"]
        found = results_in_order(done)
        if gone := next((each.id for each in found if not each.ok), None):
            raise Fail(f"step {number} gathered {gone!r}, whose result is gone: a receipt lasts for retention_s")
        return {each.id: records.builtins(each.value) for each in found}

    def _ends(self, number: int, handles: Sequence[TaskHandle], left: float | None) -> list[Result]:
        """How the tasks have ended.   Raises: Suspend.   Cost: 1 HEAD while the first of them has not, else that of
        `results`: 1 GET for each completed entry; while some are delayed 1 LIST more for each queue of theirs."""
        queues = sorted({handle.queue.name for handle in handles})
        where = " and ".join(map(repr, queues[:3])) + (" and others" if len(queues) > 3 else "")
        in_time = left is None or left > 0
        keys = [*dict.fromkeys(key for handle in handles if (key := self._key_of(handle)) is not None)]
        if in_time and keys and self._claim.storage.exists(keys[0]):
            raise self._suspend(number, f"waiting for {many(len(handles), 'task')} in {where}", left, awaits=keys)
        results = results_in_order(handles)
        before = self._claim.state.first.suspended.get(self._n)
        waited_s = 0.0 if before is None or before.step != number else before.waited_s
        open_ = [n for n, result in enumerate(results) if not has_ended(result.state, waited_s)]
        if open_ and in_time:
            said = f"waiting for {len(open_)} of {many(len(handles), 'task')} in {where}"
            awaits = [*dict.fromkeys(key for n in open_ if (key := self._key_of(handles[n])) is not None)]
            delayed_s = self._delayed_s([handles[n] for n in open_ if results[n].state == "scheduled"])
            raise self._suspend(number, said, left, awaits=awaits, delayed_s=delayed_s)
        return results

    def _delayed_s(self, delayed: Sequence[TaskHandle]) -> float:
        """In how many seconds the last of these delayed tasks is due.   Cost: 1 LIST a queue."""
        due: list[datetime] = []
        for queue in {id(handle.queue): typing.cast(Any, handle.queue) for handle in delayed}.values():
            times = queue.due_times()
            due += (times[entry] for handle in delayed if (entry := entry_of(handle)) in times)
        return (max(due) - self._claim.storage.store.now()).total_seconds() if due else 0.0

    def _key_of(self, handle: TaskHandle) -> Key | None:
        """The key of the entry of an awaited task, if it is in the same store."""
        storage = getattr(handle.queue, "storage", None)
        if storage is None or storage.store is not self._claim.storage.store:
            return None
        part = batch_of(handle)
        entry = part[0] if part else entry_of(handle)
        return typing.cast(Key, storage.keys.tasks(entry, batch=is_batch(entry)))

    def wait_signal(self, numbers: Sequence[int], name: str, timeout_s: float | None, default: Any) -> Any:
        """The value of a signal.   Raises: Suspend.   Cost: 1 GET, and 1 PUT when it is there."""
        number, claim = numbers[-1], self._claim
        signal = claim.storage.signal(claim.entry, self._n, name)
        left = self.timer(numbers, timeout_s, f"signal {name}")
        found = self.recalled(number, "signal", name)
        if found is None:
            began_at = self.wall()
            try:
                seen = signal.read()
            except (Corrupt, Unsupported) as error:
                raise Fail(f"the signal {name!r} cannot be read: {error}") from None
            if seen is not None and not is_of(seen.value.life, claim.life(self._n)):
                seen = None
            if seen is None and (left is None or left > 0):
                life = claim.life(self._n)
                raise self._suspend(number, f"waiting for the signal {name!r}", left, signal=name, life=life)
            step = SignalStep(came=False)
            if seen is not None:
                step = SignalStep(value=seen.value.value, by=seen.value.label, sent_at=seen.value.at)
            found = self.record(number, "signal", name, records.encode(step), began_at=began_at)
        step = decoded_value(found.value.value, SignalStep, number)
        return json_value(step.value) if step.came else default

    def version(self, change: str) -> bool:
        """Whether this task is on the new side of a change. On the old side no number is used."""
        number = self.take()
        step = self._steps().get(number)
        if step is None:
            step = self.record(number, "version", change, b"null", began_at=self.wall(), any_step=True)
        if is_other(step.value, "version", change):
            self._next -= 1
            return False
        return True

    # ---- pushes ----

    def numbers_push(self, *, has_id: bool) -> bool:
        """Whether a push is a step. In a task that is not durable so far it is not, and the task cannot become durable
        after it, unless the push has an id."""
        if _inside.get() is not None:
            return False
        if self._log is None and not self._queue.policy.durable:
            self._pushed = self._pushed or not has_id
            return False
        return True

    def push(self, queue: str, store: Store, push: Callable[..., PushedStep], sha256: str) -> PushedStep:
        """Push once: `push(name, fresh=, caller=, parent=)` gets the name, and whether no earlier attempt can have used
        it.

        `sha256`: the digest of what is pushed.

        The `caller` is the queue that is to be woken when what was pushed ends, `parent` this task and step; none for a
        queue in another store.
        Cost: that of the push, and 1 PUT.
        """
        number = self.take()
        found = self.recalled(number, "push", queue, sha256)
        if found is None:
            began_at = self.wall()
            name = pushed_name(self._claim.origin(self._n), number)
            caller = self._queue.name if store is self._claim.storage.store else ""
            parent = f"{self._task.id}{PARENT_MARK}{number}" if caller else ""
            pushed = push(
                name,
                fresh=not self._claim.may_have_begun,
                caller=caller,
                parent=parent if len(parent) <= records.NAME_MAX else "",
            )
            data = records.encode(pushed)
            found = self.record(number, "push", queue, data, began_at=began_at, sha256=sha256)
        return decoded_value(found.value.value, PushedStep, number)


RUNNING: ContextVar[TaskSteps | None] = ContextVar("limpet_steps", default=None)
"""The steps of the task that this code runs for."""
_inside: ContextVar[int | None] = ContextVar("limpet_step", default=None)
"""The number of the step whose function runs."""
_reserved: ContextVar[int | None] = ContextVar("limpet_reserved", default=None)
"""A number that was taken for the next step of this context: the order of calls counts, not that of threads."""


@contextmanager
def in_step(number: int) -> Iterator[None]:
    """The block is the function of that step."""
    before = _inside.set(number)
    try:
        yield
    finally:
        _inside.reset(before)


@contextmanager
def as_running(steps: TaskSteps) -> Iterator[None]:
    """The block is the handler of that task, also where it is called in a step of another one."""
    running, inside, reserved = RUNNING.set(steps), _inside.set(None), _reserved.set(None)
    try:
        yield
    finally:
        RUNNING.reset(running)
        _inside.reset(inside)
        _reserved.reset(reserved)


def refuse_push(queue: Queue) -> None:
    """For queues that cannot make a push once.   Raises: Unsupported in a durable task, outside of its steps."""
    steps = RUNNING.get()
    if steps is not None and steps.numbers_push(has_id=False):
        raise Unsupported(
            f"queue {queue.name!r} lives in {queue.provider}: each attempt of a durable task would push again",
            hint="push in a step: limpet.step(queue.push, payload)",
        )


def in_order(call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
    """`call(...)`, which pushes, in a thread. In a durable task its number is taken now, before it is awaited."""
    steps = RUNNING.get()
    if steps is None or not steps.numbers_push(has_id=True):
        return in_thread(call, *args, **kwargs)
    return begun(steps, numbered(steps.take(), partial(call, *args, **kwargs)))


async def numbered(number: int, call: Callable[[], R]) -> R:
    """`call()` in a thread; its push has that number."""
    before = _reserved.set(number)
    try:
        return await in_whole_thread(call)
    finally:
        _reserved.reset(before)


async def begun(steps: TaskSteps, work: Coroutine[Any, Any, R]) -> R:
    """What a step does in coroutines: if the task suspends itself meanwhile, this goes on until it is recorded.

    If its coroutine is cancelled otherwise, so is `work`, and nothing is recorded; but what runs in a thread comes to
    its end first.
    """
    value: R = await in_own_task(work, steps.under_way, goes_on=lambda: steps.suspended is not None)
    return value

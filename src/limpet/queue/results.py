"""What became of tasks: their receipts and results, for many at once, and waiting for them to end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from limpet.kernel import records
from limpet.kernel.answers import answers_options
from limpet.kernel.cell import Versioned
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.keys import Key, batch_of, entry_of, is_batch, parts_of_scheduled, retry_of
from limpet.kernel.runtime import Runtime, in_thread, pause
from limpet.kernel.store.api import Blob
from limpet.kernel.waiting import naps
from limpet.queue.api import AttemptError, Outcome, Result, ResultType
from limpet.queue.decide import attempt_errors, attempts_in, attempts_of, completion, errors_of, first_done, lists_done
from limpet.queue.entry import NOTHING, EntryLease, Part, Receipt
from limpet.queue.look import LookSchedule
from limpet.queue.storage import Storage

TOKEN_EVERY_S = 0.1
WAIT_MAX_S = 2.0
RESULTS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class ResultRead:
    """A read that the answer about a task needs. One that several tasks need is made once."""

    what: Literal["receipt", "lease", "part", "exists", "scheduled"]
    key: Key


T = TypeVar("T")
Reads = Generator[ResultRead, Any, T]
"""A query about one task: it yields the reads that it needs, and is sent their results."""


class ResultWait:
    """Waits for tasks to end: polls, with `pauses` between. Only those that have not ended are asked for again."""

    def __init__(
        self,
        queue: TaskResults,
        runtime: Runtime,
        ids: list[str],
        until_s: float,
    ) -> None:
        self._queue = queue
        self._runtime = runtime
        self._ids = ids
        self._until_s = until_s
        self._looks = LookSchedule(WAIT_MAX_S, runtime)
        self.found: dict[str, Result] = {}

    def pauses(self) -> Iterator[float]:
        """Seconds to pause, one after the other, until all have ended or the time is over.

        A long pause is many short ones where a change token tells, without a request, that it may end.
        """
        token = self._queue.change_token()
        while (pause_s := self._poll(token)) is not None:
            until_s = self._runtime.elapsed_s() + pause_s
            while (left_s := until_s - self._runtime.elapsed_s()) > 0:
                if token is None:
                    yield left_s
                elif self._queue.change_token() == token:
                    yield min(left_s, TOKEN_EVERY_S)
                else:
                    break
            token = self._queue.change_token()

    def _poll(self, token: str | None) -> float | None:
        """Ask for those that have not ended; how long to pause before the next poll, None if there is none.

        Cost: 2 GETs for each single task that has not ended, 2 GETs + 1 HEAD for each batch; in bulk.
        """
        self.found |= self._queue.ended({*self._ids} - self.found.keys())
        left_s = self._until_s - self._runtime.elapsed_s()
        if left_s <= 0 or len(self.found) == len({*self._ids}):
            return None
        if token is not None:
            return min(left_s, WAIT_MAX_S)
        self._looks.take(anyway=True)
        return min(left_s, self._looks.wait_s())

    def results(self) -> list[Result]:
        """What was found, in the order of the ids, and where the others are."""
        others = [id_ for id_ in self._ids if id_ not in self.found]
        found = self.found | dict(zip(others, self._queue.results(others), strict=True))
        return [found[id_] for id_ in self._ids]


class TaskResults:
    """The methods of a queue that tell how tasks ended."""

    result_type: ResultType | None = None

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._runtime = storage.runtime

    @answers_options
    def result(self, id: str | int, *, wait_s: float = 0.0) -> Result:
        """For a retried task: the result of its last retry. A task that is done in a running batch has ended.

        Cost: 1 GET for a completed task, up to 5 GETs and 2 HEADs else; with `wait_s`, that of `wait` before.
        """
        if wait_s:
            found = self.wait([id], timeout_s=wait_s)[0]
            if found.ready:
                return found
        return self._built(self.stored_result(id))

    def stored_result(self, id: str | int) -> Result:
        """The result with its value as it is stored.   Cost: that of `result`."""
        return self._answer(self._result(plain_id(id), alone=True))

    async def result_async(self, id: str | int, *, wait_s: float = 0.0) -> Result:
        """Cost: that of `result`."""
        if wait_s:
            waiting = self._waiting([id], wait_s)
            pauses = waiting.pauses()
            while (pause_s := await in_thread(next, pauses, None)) is not None:
                await pause(pause_s)
            found = waiting.found.get(plain_id(id))
            if found is not None and found.ready:
                return found
        return await in_thread(self.result, id)

    @answers_options
    def wait(self, ids: Iterable[str | int], *, timeout_s: float) -> list[Result]:
        """Cost: that of `results` at the end; before that, a poll takes 2 GETs for each single task that has not ended,
        and 2 GETs + 1 HEAD for each batch. In a bucket it polls after 0.2 s, and then less often, down to every 2 s;
        elsewhere when the change token differs, and every 2 s.
        """
        waiting = self._waiting(ids, timeout_s)
        for _ in naps(self._runtime, partial(next, waiting.pauses(), None)):
            pass
        return waiting.results()

    def _waiting(self, ids: Iterable[str | int], timeout_s: float) -> ResultWait:
        if not timeout_s >= 0:
            raise Invalid(f"a wait must not be negative, and is {timeout_s:g} s")
        until_s = self._runtime.elapsed_s() + timeout_s
        return ResultWait(self, self._runtime, [*map(plain_id, ids)], until_s)

    def change_token(self) -> str | None:
        """A directory and memory have one, a bucket has none."""
        tokens = [*map(self._store.change_token, (self._keys.pending, self._keys.scheduled, self._keys.root))]
        return None if None in tokens[:2] else " ".join(map(str, tokens))

    def results(self, ids: Iterable[str | int]) -> list[Result]:
        """A failed task of a batch that still runs is known by the last heartbeat.

        Cost: 1 GET for each completed entry: for a whole batch, if none of its tasks failed; in bulk.
        Another single task: 2 GETs and 1 HEAD. A batch that has not ended: 2 GETs and 2 HEADs. A failed one of a batch:
        2 GETs more. Large results: 1 GET for each part object that holds some.
        """
        wanted = [*map(plain_id, ids)]
        found = self._answers({id_: self._result(id_) for id_ in wanted}, _unread)
        return [self._built(found[id_]) for id_ in wanted]

    def _built(self, result: Result) -> Result:
        return result if self.result_type is None else self.result_type.built_result(result)

    def ended(self, ids: Iterable[str]) -> dict[str, Result]:
        """The results of those that have ended.   Cost: see `BucketQueue.wait`."""
        found = self._answers({id_: self._result(id_, anywhere=False) for id_ in sorted(ids)}, _unread)
        return {id_: self._built(result) for id_, result in found.items() if result.ready or result.error}

    def _answer(self, question: Reads[T]) -> T:
        """Read what it asks for, one after another."""
        return self._answers({"": question})[""]

    def _answers(
        self, questions: Mapping[str, Reads[T]], unread: Callable[[str, LimpetError], T] | None = None
    ) -> dict[str, T]:
        """Read what they ask for: the first read of all of them at the same time, then the second, and so on.

        `unread`: the answer to a question about an object that cannot be read, instead of an error.
        """
        answers: dict[str, T] = {}
        replies: dict[str, Any] = dict.fromkeys(questions)
        while replies:
            reads: dict[str, ResultRead] = {}
            for id_, reply in replies.items():
                question = questions[id_]
                try:
                    reads[id_] = question.throw(reply) if isinstance(reply, LimpetError) else question.send(reply)
                except StopIteration as end:
                    answers[id_] = end.value
                except (Corrupt, Unsupported) as error:
                    if unread is None:
                        raise
                    answers[id_] = unread(id_, error)
            replies_of = self._found_all({*reads.values()})
            replies = {id_: replies_of[read] for id_, read in reads.items()}
        return answers

    def _found_all(self, reads: set[ResultRead]) -> dict[ResultRead, Any]:
        """What each read found; the error of an object that cannot be read (F23).   Raises: other errors."""
        found: dict[ResultRead, Any] = {}
        gets = sorted((read for read in reads if read.what in ("receipt", "lease", "part")), key=lambda read: read.key)
        for start in range(0, len(gets), RESULTS_AT_ONCE):
            some = gets[start : start + RESULTS_AT_ONCE]
            blobs = self._store.get_many([read.key for read in some])
            for read in some:
                blob = blobs[read.key]
                try:
                    if isinstance(blob, LimpetError):
                        raise blob
                    found[read] = self._decoded(read, blob)
                except Missing:
                    found[read] = None
                except (Corrupt, Unsupported) as error:
                    found[read] = error
        heads = sorted((read for read in reads if read.what == "exists"), key=lambda read: read.key)
        for read, answer in zip(heads, self._runtime.fan_out(self._exists, heads), strict=True):
            if isinstance(answer, LimpetError):
                raise answer
            found[read] = answer
        if later := [read for read in reads if read.what == "scheduled"]:
            waiting = self.due_times()
            found |= {read: read.key.rsplit("/", 1)[1] in waiting for read in later}
        return found

    def _exists(self, read: ResultRead) -> bool | LimpetError:
        try:
            return self.storage.exists(read.key)
        except LimpetError as error:
            return error

    def _decoded(self, read: ResultRead, blob: Blob) -> Any:
        match read.what:
            case "lease":
                return self.storage.lease(read.key.rsplit("/", 2)[1]).decode(blob)
            case "part":
                return records.decode(blob.data, Part, what=read.key)
            case _:
                return self.storage.receipt(read.key).decode(blob).value

    def _result(self, id_: str, *, anywhere: bool = True, alone: bool = False) -> Reads[Result]:
        """The result of a task that has ended; for another one the id of its last retry, and `anywhere` where it is.

        What the tasks of a batch have in common is read first. `alone`: nobody asks for other tasks of its batch.
        """
        while True:
            part = batch_of(id_)
            where: Outcome = "unknown"
            found: Receipt | Result | None
            found = yield from (self._receipt_of_part(id_, *part, alone=alone) if part else self._receipt(id_))
            if found is None and anywhere:
                where = yield from self._whereabouts(id_)
                if where == "unknown":
                    # It may have ended between two looks. A batch that is nowhere does not end any more, unless it
                    # travels.
                    found = yield from self._receipt(id_, gone=not self.storage.journal.travels)
            if found is None or isinstance(found, Result):
                return found or Result(id_, where)
            if found.state != "retried" or not found.retried_as:
                return _as_result(id_, found)
            id_ = next_life(id_, found.retried_as)

    def _receipt_of_part(self, id_: str, entry: str, n: int, *, alone: bool) -> Reads[Receipt | Result | None]:
        """The receipt of task `n` of a batch; what the lease says if the batch has none.

        `alone`: of a task that has just failed also the receipt of which the lease does not know yet.
        """
        whole: Receipt | None = yield ResultRead("receipt", self._keys.completed_of(entry))
        if whole is not None:
            return (yield from self._receipt(id_, whole=whole))
        if (yield ResultRead("exists", self._keys.failed_of(entry))):
            return (yield from self._receipt(id_))
        early = yield from self._early(id_, entry, n)
        return (yield ResultRead("receipt", self._keys.failed_of(entry_of(id_)))) if early is None and alone else early

    def _early(self, id_: str, entry: str, n: int) -> Reads[Receipt | Result | None]:
        """The receipt of a failed task of a batch that still runs, or the result of one that is done.

        As of the last heartbeat. Not on a supervised node, where the batch may run in another place too.
        """
        if self.storage.journal.travels:
            return None
        seen: Versioned[EntryLease] | None = yield ResultRead("lease", self._keys.lease(entry))
        if seen is None:
            return None
        record = seen.value
        if n in record.failed:
            failed: Receipt | None = yield ResultRead("receipt", self._keys.failed_of(entry_of(id_)))
            return failed
        if n not in first_done(record):
            return None
        data = yield from self._large_result(record.results.get(n, NOTHING), record.parts, n)
        value = plain_value(data, f"the result of {id_!r}")
        return Result(id_, "completed", value, worker=record.label, attempts=max(1, attempts_of(record, n)))

    def errors(self, id: str | int) -> tuple[AttemptError, ...]:
        """Those of a task that waits are in its lease.   Cost: 1 GET; for a task that has ended up to 4."""
        part = batch_of(id := plain_id(id))
        entry, n = part or (entry_of(id), 0)
        seen = self.storage.lease(entry).read()
        if seen is not None and n in seen.value.errors:
            return attempt_errors(seen.value.errors[n])
        return self.stored_result(id).errors

    def receipt(self, id_: str, *, gone: bool = False) -> Receipt | None:
        """The receipt that counts for a task: completed beats failed. `gone`: its entry does not wait any more.

        Cost: 1 GET for a completed task; 2 GETs for another one, 3 or 4 for one of a batch.
        """
        return self._answer(self._receipt(id_, gone=gone))

    def completed(self, id_: str, *, gone: bool = False) -> Receipt | None:
        """The receipt that says that a task completed, with its result; None if there is none."""
        return self._answer(self._completed(id_, gone=gone))

    def _receipt(self, id_: str, *, gone: bool = False, whole: Receipt | None = None) -> Reads[Receipt | None]:
        done = yield from self._completed(id_, gone=gone, whole=whole)
        if done is not None:
            return done
        failed: Receipt | None = yield ResultRead("receipt", self._keys.failed_of(entry_of(id_)))
        part = batch_of(id_)
        if failed is None and part is not None:
            failed = yield ResultRead("receipt", self._keys.failed_of(part[0]))
        return failed

    def _completed(self, id_: str, *, gone: bool = False, whole: Receipt | None = None) -> Reads[Receipt | None]:
        """`whole`: the receipt of its batch, if that was read already."""
        name = entry_of(id_)
        part = batch_of(id_)
        own: Receipt | None = None
        if part is None:
            own = yield ResultRead("receipt", self._keys.completed_of(name))
            return own if own is None or is_batch(name) else (yield from self._with_result(own, id_, 0))
        entry, n = part
        if whole is None:
            whole = yield ResultRead("receipt", self._keys.completed_of(entry))
        ended = whole is not None or gone
        if whole is None or n in whole.own or not lists_done(whole, n):
            ended = ended or (yield ResultRead("exists", self._keys.failed_of(entry)))
            if ended:
                own = yield ResultRead("receipt", self._keys.completed_of(name))
        receipt = completion(n, whole=whole, own=own, ended=ended)
        return receipt and (yield from self._with_result(receipt, id_, n))

    def _read(self, key: Key) -> Receipt | None:
        seen = self.storage.receipt(key).read()
        return seen.value if seen else None

    def _with_result(self, receipt: Receipt, id_: str, n: int) -> Reads[Receipt]:
        """The receipt as that of task `n` alone; its result may lie in a part object."""
        result = yield from self._large_result(receipt.results.get(n) or receipt.result, receipt.parts, n)
        attempts = attempts_in(receipt, n)
        about = {"id": id_, "count": 1, "attempts": attempts, "tried": {}}
        return msgspec.structs.replace(receipt, **about, result=result, results={}, parts=[])

    def _large_result(self, result: msgspec.Raw, parts: Sequence[str], n: int) -> Reads[msgspec.Raw]:
        """The result of task `n`: the one in hand, if there is one, else what a part object has.

        Raises: Corrupt if none that is there has it, and one is gone.
        """
        gone = ""
        for key in parts if bytes(result) == bytes(NOTHING) else ():
            part: Part | None = yield ResultRead("part", Key(key))
            if part is not None and n in part.results:
                return part.results[n]
            gone = gone or (key if part is None else "")
        if gone:
            raise Corrupt(f"{gone}, which may hold the result, is gone", hint="push the task again")
        return result

    def _whereabouts(self, id_: str) -> Reads[Outcome]:
        part = batch_of(id_)
        entry = part[0] if part else entry_of(id_)
        if (yield ResultRead("exists", self._keys.tasks(entry, batch=part is not None))):
            return "pending"
        return "scheduled" if (yield ResultRead("scheduled", Key(f"{self._keys.scheduled}/{entry}"))) else "unknown"

    def due_times(self) -> dict[str, datetime]:
        """When each delayed entry is due.   Cost: 1 LIST per 1,000 delayed pushes."""
        listing = self._store.list(self._keys.scheduled)
        due = [parts for stat in listing if (parts := parts_of_scheduled(stat.key))]
        return {entry: at for at, entry in reversed(due)}  # of two pushes of an id the earlier one counts

    def scheduled(self, entry: str) -> list[Key]:
        """The delayed pushes of an entry.   Cost: 1 LIST per 1,000 delayed pushes."""
        listing = self._store.list(self._keys.scheduled)
        return [stat.key for stat in listing if (found := parts_of_scheduled(stat.key)) and found[1] == entry]


def plain_id(id_: str | int) -> str:
    """The text of a handle, or of a number.   Raises: Invalid for anything else."""
    if isinstance(id_, bool) or not isinstance(id_, str | int):
        raise Invalid(f"a task id is a text or a whole number, not {id_!r}")
    return str(id_)


def next_life(id_: str, retried_as: str) -> str:
    """The id under which a task was retried.   Raises: Corrupt for one that is not its next retry: it could loop."""
    before, after = retry_of(entry_of(id_)) or (entry_of(id_), 0, ""), retry_of(entry_of(retried_as))
    if after is None or (after[0], after[1]) != (before[0], before[1] + 1):
        raise Corrupt(f"the receipt of {id_!r} says that it was retried as {retried_as[:100]!r}, which is another task")
    return retried_as


def plain_value(data: bytes | msgspec.Raw, what: str) -> Any:
    """A payload or a result.   Raises: Corrupt."""
    return records.decode(bytes(data), Any, what=what)


def _unread(id_: str, error: LimpetError) -> Result:
    return Result(id_, "unknown", error=str(error))


def _as_result(id_: str, receipt: Receipt) -> Result:
    state: Outcome = "failed" if receipt.state == "retried" else receipt.state
    return Result(
        id=id_,
        state=state,
        value=plain_value(receipt.result, f"the result of {id_!r}") if receipt.state == "completed" else None,
        error=receipt.error,
        traceback=receipt.traceback,
        worker=receipt.label,
        attempts=receipt.attempts,
        finished_at=receipt.finished_at,
        errors=errors_of(receipt),
    )

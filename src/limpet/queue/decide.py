"""The queue's decisions about one entry, and its receipts: pure functions, no store and no clock.

An entry's tasks share one lease record. Every rule here answers an interleaving that broke an earlier wording of it
(docs/trust/failures.md H3, H4).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from limpet.kernel import records
from limpet.kernel.lease import State
from limpet.kernel.lease.decide import Take, Wait, next_step
from limpet.kernel.store.api import Version
from limpet.queue.api import AttemptError, Policy
from limpet.queue.entry import (
    ATTEMPT_TRACE_CHARS_MAX,
    ATTEMPTS_KEPT,
    CODES_MAX,
    DELAY_MAX_S,
    ERROR_CHARS_MAX,
    NOTHING,
    AttemptRecord,
    Content,
    Ended,
    EntryLease,
    PushShape,
    Receipt,
    Suspension,
    kept_payloads,
)

T = TypeVar("T")

ERRORS_BYTES_MAX = 64 * 1024
"""How much about failed attempts a lease carries with each swap."""
SUSPENSIONS_BYTES_MAX = 384 * 1024
"""How much about what its suspended tasks wait for. With results (`INLINE_TOTAL_MAX`), the keys of parts, one for each
task at most, and the numbers of tasks it stays below the size of a cell, `RECORD_BYTES_MAX`."""
BRIEF_CHARS_MAX = 200
BRIEF_REASON_CHARS = 60
NOTE_BYTES = 120
ENTRY_BYTES = 8
"""The number of a task beside its part of a list, in JSON."""
ABANDONED = "its worker died, or lost the store for longer than its claim lasted"


@dataclass(frozen=True, slots=True)
class Ready:
    """What a contender does about an entry's lease: take it now, finish what was ended, or look again at `at`."""

    take: bool
    finish: bool
    at: datetime | None


class Progress(msgspec.Struct):
    """What a claim has decided and not yet written. Times are on this process's rising clock.

    `attempts` counts the starts of a first claim, which are written with the next swap, not by a separate one;
    `running` are those of them that run now.
    """

    attempts: dict[int, int] = {}
    running: list[int] = []
    done: list[int] = []
    failed: list[int] = []
    due_s: dict[int, float] = {}
    results: dict[int, msgspec.Raw] = {}
    parts: list[str] = []
    error: str | None = None
    errors: dict[int, AttemptRecord] = {}
    suspended: dict[int, tuple[Suspension, float]] = {}
    """Tasks that have suspended themselves, and from when on the times of the suspension count. They are in `due_s`
    too, and `attempts` has the attempt given back."""
    durable: list[int] = []
    """Tasks that have recorded steps."""
    took: dict[int, float] = {}
    """Of a batch: for how long the handlers ran of the tasks that were done."""


def now_for(now: datetime, *, modified: datetime, unchanged_s: float, ours: bool) -> datetime:
    """The store's clock, as far as it says how old a record is that was `modified` then.

    This process has seen the record for `unchanged_s`: a clock that was set back makes it no younger. If the record is
    `ours`, written by this process, it is exactly so old: a clock that was set back before makes it no older.
    """
    watched = modified + timedelta(seconds=unchanged_s)
    return watched if ours else max(now, watched)


def claimable(
    record: EntryLease, *, modified: datetime, unchanged_s: float, now: datetime, wall: datetime, code: str = ""
) -> Ready:
    """Whether a lease that was looked at may be taken. A held one is judged by the rule of every lock (F24).

    `code`: the version of the code of this process. A task that waits for code is tried at once by another version.
    """
    if record.state is State.CANCELLED:
        return Ready(take=False, finish=True, at=None)
    if record.state is State.FREE:
        at = modified + timedelta(seconds=record.wait_s)
        fits = bool(record.suspended) and any(may_fit(each, code) for each in record.suspended.values())
        return Ready(take=fits or at <= now, finish=False, at=at)
    step = next_step(record, modified=modified, unchanged_s=unchanged_s, now=now, wall=wall)
    return Ready(take=isinstance(step, Take), finish=False, at=step.until if isinstance(step, Wait) else None)


@dataclass(frozen=True, slots=True)
class Resting:
    """An entry that this process has seen resting: with which lease, and until when.

    `due_s` is on this process's clock, which stands still while the machine sleeps; `at` is the same time of the
    store's clock, where there is one. A ring of the queue's bell may end the rest earlier, from `ring_s` on.
    """

    version: Version
    due_s: float
    at: datetime | None = None
    ring_s: float = math.inf


def is_left_out(rest: Resting, *, version: Version, at_s: float, now: datetime) -> bool:
    """Whether an entry, which a listing shows with that version of its lease, need not be considered now."""
    if rest.version != version:
        return False
    return at_s < rest.due_s and not (rest.at is not None and now >= rest.at)


def other_shape(first: PushShape, shape: PushShape) -> bool:
    """Whether a push of many tasks puts them into other entries than the first push with the same id did."""
    return (first.tasks, first.sha256) != (shape.tasks, shape.sha256)


def first_done(record: EntryLease) -> list[int]:
    """The tasks of a batch that have completed for everybody, although the batch has not ended, with these results.

    They were done by the first claim, and the lease says so: no other worker has run them or ever will, so that every
    receipt to come says the same. What a later claim has done counts at the end of the batch: a worker that lost the
    batch before may have run the same task, and may still finish first.
    """
    return record.done if record.token == 1 else record.done[: record.settled]


def waits_left(record: EntryLease, *, modified: datetime, now: datetime, code: str = "") -> dict[int, float]:
    """The waits of tasks that are not due yet, counted from now on. What `code` may fit is due."""
    since_s = (now - modified).total_seconds()
    waits = {n: wait_s - since_s for n, wait_s in record.waits.items() if wait_s > since_s}
    return {n: wait_s for n, wait_s in waits.items() if not may_fit(record.suspended.get(n), code)}


def may_fit(suspension: Suspension | None, code: str) -> bool:
    """Whether a task waits for code, and that version of it has not been tried.

    Not if so many versions were tried that the suspension has no room for another one: the task is tried by time alone,
    or each of them would find that the others have come between, and try again at once.
    """
    if suspension is None or not suspension.codes or not code:
        return False
    return len(suspension.codes) < CODES_MAX and code not in suspension.codes


def aged(suspended: Mapping[int, Suspension], by_s: float) -> dict[int, Suspension]:
    """The suspensions, with times that count from `by_s` seconds later on: those of a record that is written anew."""
    return {
        n: msgspec.structs.replace(
            each,
            waited_s=_clamped(each.waited_s + by_s),
            due_s=None if each.due_s is None else _clamped(each.due_s - by_s),
        )
        for n, each in suspended.items()
    }


def claimed(
    record: EntryLease | None,
    *,
    entry: str,
    worker_id: str,
    label: str,
    policy: Policy,
    wall: datetime,
    waits: dict[int, float] | None = None,
    since_s: float = 0.0,
) -> EntryLease:
    """The record after a contender takes the entry: one token more. `waits` are those that are left.

    `since_s`: how old the record is that it takes.

    A claim alone charges no attempt: only a task that was started is charged (H3), see `must_charge`. The tasks that
    ran when the holder before it died are suspects: one of them may have killed it.
    """
    expires_at = wall + timedelta(seconds=policy.ttl_s)
    if record is not None:
        return msgspec.structs.replace(
            record,
            state=State.HELD,
            name=entry,
            worker_id=worker_id,
            label=label,
            token=record.token + 1,
            created_at=wall,
            heartbeat_at=wall,
            expires_at=expires_at,
            ttl_s=policy.ttl_s,
            not_before=None,
            running=None,
            beside=[],
            suspects=_union(record.suspects, _died(record)),
            waits=waits or {},
            wait_s=0.0,
            suspended=fitted(aged(record.suspended, since_s)),
            contested=record.contested or record.state is State.HELD,
            settled=len(first_done(record)),
            errors=_after_death(record, wall),
        )
    return EntryLease(
        state=State.HELD,
        name=entry,
        worker_id=worker_id,
        label=label,
        token=1,
        attempt=1,
        created_at=wall,
        heartbeat_at=wall,
        expires_at=expires_at,
        ttl_s=policy.ttl_s,
        charged=0,
    )


def _named_in(record: EntryLease) -> list[int]:
    return record.beside if record.running is None else [record.running, *record.beside]


def _without_verdict(record: EntryLease, tasks: Sequence[int]) -> list[int]:
    """Those of the tasks, each once, that have neither ended nor wait for another attempt."""
    over = {*record.done, *record.failed, *record.waits} if tasks else ()
    return [n for n in dict.fromkeys(tasks) if n not in over]


def _died(record: EntryLease) -> list[int]:
    """The tasks that the holder of a record which is taken left behind running."""
    return _without_verdict(record, _named_in(record)) if record.state is State.HELD else []


def _after_death(record: EntryLease, wall: datetime) -> dict[int, list[AttemptRecord]]:
    """The errors of a record that is taken; each task that its holder left behind running has one more."""
    died = {
        n: AttemptRecord(attempt=attempts_of(record, n), at=wall, worker=record.label, error=ABANDONED)
        for n in _died(record)
    }
    return _kept_errors(record.errors, died, ())


def _still(suspended: dict[int, Suspension], waits: Collection[int]) -> dict[int, Suspension]:
    return {n: each for n, each in suspended.items() if n in waits} if suspended else suspended


def must_charge(record: EntryLease, policy: Policy) -> bool:
    """Whether each task of this claim is charged by a separate swap just before its handler starts (H3, F19).

    A first claim needs no such swaps: what it has started is charged with its next heartbeat or its end. If it dies
    before that, no task is charged, so a task that kills its process is started once more than `max_attempts` says. Not
    so where one attempt is all that there is.
    """
    return record.token > 1 or policy.max_attempts == 1


def start_order(record: EntryLease, count: int) -> list[int]:
    """The tasks that a claim starts, in this order: the open ones that do not wait, suspects first."""
    due = open_tasks(record, count)
    if record.waits:
        due = [n for n in due if n not in record.waits]
    if not record.suspects:
        return due
    return sorted(due, key=lambda n: n not in record.suspects)


def may_start(n: int, *, running: Collection[int], suspects: Collection[int], policy: Policy) -> bool:
    """Whether task `n`, the next in order, may be started beside the `running` tasks of its claim.

    Nothing runs beside a suspect: if it kills its process, no other task is charged for that. With one attempt nothing
    is spread, since a death would use up that of every task that runs; nor with `concurrency`, which so limits the
    tasks that run at once.
    """
    if not running:
        return True
    if policy.max_attempts == 1 or policy.concurrency is not None:
        return False
    return n not in suspects and not any(m in suspects for m in running)


def attempts_of(record: EntryLease, n: int) -> int:
    """How many attempts of task `n` were charged."""
    return record.attempts.get(n, record.charged)


def open_tasks(record: EntryLease, count: int) -> list[int]:
    """The tasks without a verdict."""
    if not record.done and not record.failed:
        return [*range(count)]
    ended = {*record.done, *record.failed}
    return [n for n in range(count) if n not in ended]


def exhausted(record: EntryLease, count: int, policy: Policy) -> list[int]:
    """The open tasks whose charged attempts reach the maximum: their workers died, and they are given up."""
    if record.charged < policy.max_attempts and all(n < policy.max_attempts for n in record.attempts.values()):
        return []
    return [n for n in open_tasks(record, count) if attempts_of(record, n) >= policy.max_attempts]


def progressed(record: EntryLease, progress: Progress, at_s: float) -> EntryLease:
    """The record with what the claim has decided so far. `at_s` is now, on the clock of `progress.due_s`."""
    done = _union(record.done, progress.done)
    started = {n: attempts for n, attempts in progress.attempts.items() if n not in progress.done}
    waits = {**record.waits, **{n: _clamped(due_s - at_s) for n, due_s in progress.due_s.items()}}
    suspended = {n: aged({n: each}, at_s - from_s)[n] for n, (each, from_s) in progress.suspended.items()}
    after = msgspec.structs.replace(
        record,
        attempts={**record.attempts, **started},
        done=done,
        failed=_union(record.failed, progress.failed),
        waits=waits,
        suspended=fitted(_still({**record.suspended, **suspended}, waits)),
        durable=_union(record.durable, progress.durable),
        results={**record.results, **progress.results},
        parts=_union(record.parts, progress.parts),
        error=progress.error or record.error,
        errors=_kept_errors(record.errors, progress.errors, {*done, *record.failed, *progress.failed}),
    )
    return _named(after, progress.running)


def _named(record: EntryLease, started: Sequence[int]) -> EntryLease:
    """The record that names the `started` tasks running, beside those that it names already. A verdict ends both that
    and a suspicion.

    A task whose charge we never heard of stays named, so that its attempt is restored when the claim lets go.
    """
    if not (started or record.suspects or _named_in(record)):
        return record
    suspects = _without_verdict(record, record.suspects)
    running = _without_verdict(record, [*started, *_named_in(record)])
    return msgspec.structs.replace(
        record, running=running[0] if running else None, beside=running[1:], suspects=suspects
    )


def error_of(record: EntryLease, n: int, count: int) -> str | None:
    """What task `n` said last, if the record of its entry of `count` tasks has it: never what its neighbour said."""
    said = [note.error for note in record.errors.get(n, ()) if note.error != ABANDONED]
    if said:
        return said[-1]
    return record.error if count == 1 else None


def _kept_errors(
    before: dict[int, list[AttemptRecord]], more: dict[int, AttemptRecord], ended: Collection[int]
) -> dict[int, list[AttemptRecord]]:
    """The last attempts of each open task, and of all no more than a lease should carry: the newest are kept."""
    if not before and not more:
        return before
    kept: dict[int, list[AttemptRecord]] = {}
    for n in sorted({*before, *more}):
        notes = [*before.get(n, ())]
        if n in more and more[n] not in notes:
            notes.append(more[n])
        if n not in ended:
            kept[n] = notes[-ATTEMPTS_KEPT:]
    if sum(_size(note) for notes in kept.values() for note in notes) <= ERRORS_BYTES_MAX:
        return kept
    room = ERRORS_BYTES_MAX
    newest = sorted(((note.at, n, i) for n, notes in kept.items() for i, note in enumerate(notes)), reverse=True)
    chosen: dict[int, dict[int, AttemptRecord]] = {}
    for _, n, i in newest:
        note = kept[n][i]
        if _size(note) > room:
            note = msgspec.structs.replace(note, error=note.error[:BRIEF_CHARS_MAX], traceback=None)
        if _size(note) <= room:
            room -= _size(note)
            chosen.setdefault(n, {})[i] = note
    return {n: [notes[i] for i in sorted(notes)] for n, notes in chosen.items()}


def _size(note: AttemptRecord) -> int:
    return NOTE_BYTES + len(records.encode(note.error + (note.traceback or ""))) - len(b'""')


def fitted(suspended: dict[int, Suspension]) -> dict[int, Suspension]:
    """The suspensions of all tasks of an entry, cut to the room that a lease has for them together.

    The shortest ones are kept, and the others get equal shares. A task of which fewer keys are kept goes on as soon as
    these are gone, and looks for the rest then.
    """
    sizes = {n: _size_of(each) for n, each in suspended.items()}
    room = SUSPENSIONS_BYTES_MAX
    if sum(sizes.values()) <= room:
        return suspended
    kept: dict[int, Suspension] = {}
    for turn, n in enumerate(sorted(sizes, key=lambda n: (sizes[n], n))):
        share = room // (len(sizes) - turn)
        kept[n] = suspended[n] if sizes[n] <= share else shortened(suspended[n], share)
        room -= _size_of(kept[n])
    return dict(sorted(kept.items()))


def shortened(suspension: Suspension, size: int) -> Suspension:
    """As much of a suspension as that many bytes hold: what does not fit is left to the looks of a later claim."""
    brief = msgspec.structs.replace(suspension, reason=suspension.reason[:BRIEF_REASON_CHARS], awaits=[])
    room = size - _size_of(brief) - len(b',"awaits":[]')
    if room < 0:
        brief = msgspec.structs.replace(brief, reason="", signal=None)
    awaits: list[str] = []
    for key in suspension.awaits:
        room -= len(records.encode(key)) + 1
        if room < 0:
            break
        awaits.append(key)
    return msgspec.structs.replace(brief, awaits=awaits)


def _size_of(suspension: Suspension) -> int:
    return ENTRY_BYTES + len(records.encode(suspension))


def bare(record: EntryLease) -> EntryLease:
    """The record without what it can do without: the tasks that wait are looked at by time, and run to see for what."""
    suspended = {n: shortened(each, 0) for n, each in record.suspended.items()}
    return msgspec.structs.replace(record, suspended=suspended, errors={})


def charged(record: EntryLease, tasks: Sequence[int]) -> EntryLease:
    """The record that names these tasks running, beside those that run on, each with one attempt more."""
    attempts = {n: attempts_of(record, n) + 1 for n in tasks}
    after = msgspec.structs.replace(
        record,
        attempt=attempts[tasks[0]],
        attempts={**record.attempts, **attempts},
        waits={m: wait_s for m, wait_s in record.waits.items() if m not in attempts},
        suspended={m: each for m, each in record.suspended.items() if m not in attempts},
    )
    return _named(after, tasks)


def freed(record: EntryLease, count: int, wall: datetime) -> EntryLease:
    """The record of an entry that rests until the first of its open tasks is due."""
    wait_s = min((record.waits.get(n, 0.0) for n in open_tasks(record, count)), default=0.0)
    not_before = wall + timedelta(seconds=wait_s) if wait_s > 0 else None
    return msgspec.structs.replace(
        record, state=State.FREE, running=None, beside=[], wait_s=wait_s, not_before=not_before
    )


def handed_back(record: EntryLease, returned: Collection[int], *, started: Collection[int] = ()) -> EntryLease:
    """The record with the attempts of the `returned` tasks restored, as if this claim had not started them.

    Only the `started` ones have anything to restore, and those named running, whose charge we may never have heard of.
    """
    charged_here = {n for n in returned if n in started or n in _named_in(record)}
    restored = {n: max(0, attempts_of(record, n) - 1) for n in charged_here}
    return msgspec.structs.replace(record, attempts={**record.attempts, **restored}, running=None, beside=[])


def cancelled(record: EntryLease) -> EntryLease:
    """The record of an entry that no worker may take any more. One that holds it goes on until it notices."""
    contested = record.contested or record.state is State.HELD
    return msgspec.structs.replace(
        record, state=State.CANCELLED, running=None, beside=[], suspended={}, contested=contested
    )


def _clamped(wait_s: float) -> float:
    return min(max(0.0, wait_s), DELAY_MAX_S)


def _union(before: list[T], more: list[T]) -> list[T]:
    if not before or not more:
        return [*before, *more]
    known = set(before)
    return [*before, *(item for item in more if item not in known)]


TRACEBACK_CHARS_MAX = 8_000
CUT = "\n...\n"


def clean_text(text: str, chars_max: int = ERROR_CHARS_MAX) -> str:
    """What an exception says, as text that JSON can hold."""
    return text[:chars_max].encode("utf-8", "replace").decode()


def trimmed(text: str, chars_max: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= chars_max:
        return text
    head = chars_max // 3
    return f"{text[:head]}{CUT}{text[head + len(CUT) - chars_max :]}"


def attempt_record(attempt: int, *, at: datetime, worker: str, error: str, trace: str | None) -> AttemptRecord:
    """A failed attempt, cut to what a lease can hold of it."""
    kept = clean_text(trimmed(trace, ATTEMPT_TRACE_CHARS_MAX), ATTEMPT_TRACE_CHARS_MAX) if trace else None
    return AttemptRecord(attempt=attempt, at=at, worker=worker, error=clean_text(error), traceback=kept)


def errors_of(receipt: Receipt) -> tuple[AttemptError, ...]:
    """The failed attempts in a receipt, oldest first."""
    if receipt.errors or not receipt.error or receipt.state not in ("failed", "retried"):
        return attempt_errors(receipt.errors)
    last = AttemptError(receipt.attempts, receipt.finished_at, receipt.label, receipt.error, receipt.traceback)
    return (last,)


def attempt_errors(kept: Sequence[AttemptRecord]) -> tuple[AttemptError, ...]:
    """Failed attempts as a user sees them."""
    return tuple(AttemptError(each.attempt, each.at, each.worker, each.error, each.traceback) for each in kept)


def attempts_in(receipt: Receipt, n: int) -> int:
    """The attempts of task `n`, as the receipt of its entry says; the batch's where that does not tell them apart."""
    return receipt.tried.get(n, 1 if receipt.tried else receipt.attempts)


def payload_in(receipt: Receipt, n: int) -> msgspec.Raw | None:
    """The payload of task `n`, as far as the receipt of its entry keeps it."""
    return receipt.payloads.get(n) if bytes(receipt.payload) == bytes(NOTHING) else receipt.payload


def took_in(receipt: Receipt, n: int) -> float | None:
    """How long the handler of task `n` ran that ended it, by the clock of its worker; None if that is not known."""
    if receipt.began_at is not None:
        return round(max(0.0, (receipt.finished_at - receipt.began_at).total_seconds()), 6)
    return receipt.took.get(n)


def lists_done(whole: Receipt, n: int) -> bool:
    """Whether the receipt of a batch says that task `n` is done."""
    return n < whole.count and n not in whole.failed


def completion(n: int, *, whole: Receipt | None, own: Receipt | None, ended: bool) -> Receipt | None:
    """The receipt by which task `n` of a batch has completed; None if it has not.

    `whole` is the batch's receipt in completed/, `own` the task's own one there, which a worker writes that finished
    the task after it had lost the batch. The batch's receipt counts if it lists the task as done, unless it names the
    task's own one as the earlier (`whole.own`). Otherwise a task's own receipt counts once the batch has `ended`:
    before that, the batch's present holder may still complete the task with another result. Both are created once and
    never change, so neither does the answer.
    """
    if whole is not None and lists_done(whole, n):
        return own if own is not None and n in whole.own else whole
    return own if ended else None


def task_receipt(
    record: EntryLease,
    content: Content,
    n: int,
    state: Ended,
    *,
    attempts: int,
    wall: datetime,
    result: msgspec.Raw | None = None,
    parts: list[str] | None = None,
    error: str | None = None,
    trace: str | None = None,
    origin: str | None = None,
    life: str | None = None,
    began_at: datetime | None = None,
    durable: bool = False,
) -> Receipt:
    """The receipt of task `n`. One that failed before keeps the errors of its attempts, this one's among them.

    `origin`: it may have recorded steps, and that is what the names of its pushes are derived from.
    """
    errors: list[AttemptRecord] = []
    if state == "failed" and record.errors.get(n):
        last = attempt_record(attempts, at=wall, worker=record.label, error=error or "", trace=trace)
        errors = [*record.errors.get(n, ())[-ATTEMPTS_KEPT:], last]
    return Receipt(
        state=state,
        id=content.ids[n],
        attempts=attempts,
        token=record.token,
        worker_id=record.worker_id,
        label=record.label,
        pushed_at=content.pushed_at,
        finished_at=wall,
        payload=msgspec.Raw(content.payloads[n]),
        result=result or NOTHING,
        parts=parts or [],
        error=clean_text(error) if error else None,
        traceback=clean_text(trace[-TRACEBACK_CHARS_MAX:], TRACEBACK_CHARS_MAX) if trace else None,
        errors=errors,
        retries=content.retries,
        origin=origin,
        life=life,
        began_at=began_at,
        durable=durable,
        caller=content.caller or None,
        parent=content.parent or None,
    )


def batch_receipt(
    record: EntryLease,
    content: Content,
    *,
    wall: datetime,
    own: Collection[int] = (),
    took: dict[int, float] | None = None,
) -> Receipt:
    """The receipt of a batch, which lists every verdict: what is not in `failed` is done.

    `attempts` is the most that one of its tasks took, and `tried` says who took more than one. Claims do not count: a
    suspension ends one, and is no attempt.
    `own`: the tasks that another worker finished before, and wrote separate receipts for.
    """
    return Receipt(
        state="completed",
        id=record.name,
        count=len(content.ids),
        attempts=max(1, record.charged, *record.attempts.values()),
        tried={n: tried for n in range(len(content.ids)) if (tried := attempts_of(record, n)) > 1},
        token=record.token,
        worker_id=record.worker_id,
        label=record.label,
        pushed_at=content.pushed_at,
        finished_at=wall,
        failed=record.failed,
        results=record.results,
        parts=record.parts,
        own=sorted(n for n in own if n not in record.failed),
        took=took or {},
        payloads=kept_payloads(content.payloads),
        durable=bool(record.durable),
        caller=content.caller or None,
        parent=content.parent or None,
    )

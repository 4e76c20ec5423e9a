"""The decisions about durable tasks: pure functions, no store and no clock.

A durable task records what it has done, step by step, and may suspend itself without holding a worker. Two rules are
enough: the first record of a step counts for every attempt, and a suspension is a free lease that knows what it waits
for. See docs/inside/decisions/0012-durable-tasks.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from limpet.kernel import records
from limpet.kernel.cell import Lost, Outcome, Replaced, Unclear, Versioned, Won
from limpet.kernel.keys import Key, QueueKeys, batch_of, derived, first_name, queue_place
from limpet.kernel.lease import State
from limpet.kernel.records import Name
from limpet.queue.decide import aged, may_fit, open_tasks, whole_us
from limpet.queue.entry import (
    AWAITS_MAX,
    CODES_MAX,
    REASON_CHARS_MAX,
    Content,
    EntryLease,
    GatheredStep,
    Receipt,
    StepKind,
    StepRecord,
    Suspension,
    task_name,
)

LOOK_MIN_S = 2.0
LOOK_MAX_S = 60.0
UNKNOWN_S = 120.0
"""After this time a task that is nowhere to be found counts as ended: it was purged, or its receipt has expired."""
LOOK_PART = 4
CODE_MIN_S = 180.0
CODE_MAX_S = 1800.0
CODE_PART = 2
"""A task that waits for code is tried again after half of the time for which it has waited, within these limits."""
NAME_CHARS = 60
"""So much is shown of the name of a step that does not fit."""
"""A task that has waited for a while is looked at again after this part of that time."""
DELAYED_MAX_S = 1800.0
"""A task that waits for delayed ones rests until they are due, but no longer than this: they may be cancelled."""


# ---- recorded steps ----

DIGEST_CHARS = 8
"""So much of a digest is shown."""
WAITS_FOR_CODE = "waits for code that fits"


@dataclass(frozen=True, slots=True)
class KnownStep:
    """The step was recorded: this is its record."""

    step: Versioned[StepRecord]


@dataclass(frozen=True, slots=True)
class NewStep:
    """No attempt has recorded the step, as far as is known: run it, then record it."""


@dataclass(frozen=True, slots=True)
class OtherStep:
    """Another step was recorded under this number: the code has changed."""

    why: str


def recall(
    log: Mapping[int, Versioned[StepRecord]], number: int, kind: StepKind, name: str, sha256: str | None = None
) -> KnownStep | NewStep | OtherStep:
    """What an attempt does about its step `number`, of that kind and name, with arguments of that digest."""
    step = log.get(number)
    if step is None:
        return NewStep()
    if is_other(step.value, kind, name, sha256):
        return OtherStep(mismatch(number, step.value, kind, name, sha256, log))
    return KnownStep(step)


def is_other(record: StepRecord, kind: StepKind, name: str, sha256: str | None = None) -> bool:
    """Whether a record is of another step than the one that was asked for.

    Arguments are compared where both have a digest.
    """
    if (record.kind, record.name) != (kind, name):
        return True
    return None not in (record.sha256, sha256) and record.sha256 != sha256


def mismatch(
    number: int,
    record: StepRecord,
    kind: StepKind,
    name: str,
    sha256: str | None = None,
    log: Mapping[int, Versioned[StepRecord]] | None = None,
) -> str:
    """What is said of a step that was recorded under another name, or with other arguments.

    `log`: where the arguments of the step are looked for that was asked for.
    """
    recorded, wanted = shown(record.kind, record.name[:NAME_CHARS]), shown(kind, name[:NAME_CHARS])
    if (record.kind, record.name) != (kind, name):
        return f"{WAITS_FOR_CODE}: step {number} is {recorded}, the code asks for {wanted}"
    wanted_there = (kind, name, sha256)
    numbers = [
        n for n, step in (log or {}).items() if (step.value.kind, step.value.name, step.value.sha256) == wanted_there
    ]
    where = f", which is step {numbers[0]}" if numbers else ""
    before, now = ((digest or "")[:DIGEST_CHARS] for digest in (record.sha256, sha256))
    return (
        f"{WAITS_FOR_CODE}: step {number} is {recorded} with arguments of digest {before}, the code asks for {wanted} "
        f"with {now}{where} (or do the arguments depend on a clock, or on chance?)"
    )


def arguments_digest(args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """The digest of the arguments of a step, equal in every process and attempt.

    It covers what can be encoded: of two clients, or two functions, it is the same.
    """
    named = [part for name in sorted(kwargs) for part in (name.encode(), records.stable_bytes(kwargs[name]))]
    parts = [b"", *map(records.stable_bytes, args), b"", *named]
    return records.digest_of(b"".join(b"%d:%b" % (len(part), part) for part in parts))


def shown(kind: StepKind, name: str) -> str:
    """A step as people see it."""
    return f"{kind} {name!r}" if name else kind


def agreed(outcome: Outcome[StepRecord]) -> Versioned[StepRecord]:
    """The record that counts after an attempt to create it: the first one, whichever attempt wrote it.

    Records are never rewritten, so the one that was read back is the first.
    """
    match outcome:
        case Won(seen):
            return seen
        case Replaced(_, now) | Lost(now) | Unclear(now):
            return now


# ---- the life of a task ----


def life_of(entry: str, n: int, content: Content, *, batch: bool) -> str:
    """The life of a task: the write id of its push, with the number of a task of a batch. A retry goes on with that of
    the task that it retries, so every push of an id is another life, and every attempt and retry the same.
    """
    if content.life or content.origin:
        return content.life or life_in(content.origin)
    return f"{content.write_id}.{n}" if batch else content.write_id


def life_in(origin: str) -> str:
    """The life in an origin, the text in which older records have it."""
    name, _, write_id = origin.rpartition("@")
    part = batch_of(name.rpartition("/")[2])
    return f"{write_id}.{part[1]}" if part else write_id


def origin_of(keys: QueueKeys, entry: str, n: int, content: Content, *, batch: bool) -> str:
    """What the names of a task's pushes and the keys of its steps are derived from: its queue, the first name that it
    had, and its life. Every version derives the same.
    """
    if content.origin:
        return content.origin
    name = task_name(entry, n, batch=batch)
    name = first_name(name) if content.life else name
    return f"{keys.root}/{name}@{(content.life or content.write_id).partition('.')[0]}"


def life_of_receipt(key: Key, receipt: Receipt) -> str:
    """The life of the task that a receipt is about. For one that does not say it, a text that no other receipt has."""
    if receipt.life:
        return receipt.life
    return life_in(receipt.origin) if receipt.origin else derived("life", key, receipt.finished_at.isoformat())


def next_scratch(life: str, retry: int) -> str:
    """The life of a retry that starts from scratch: another one, the same whenever the same receipt is retried so."""
    return derived("scratch", life, retry)


def is_retry(named: str, pushed_at: datetime | None, receipt: Receipt, life: str) -> bool:
    """Whether a task that has the name of a retry is one of the failed task with that receipt and life.

    `named`: the life that it says it has. If none, an older version pushed it: a retry is pushed after what it retries.
    """
    if named:
        return named in (life, next_scratch(life, receipt.retries + 1))
    return pushed_at is not None and receipt.pushed_at is not None and pushed_at >= receipt.pushed_at


class _RecordedLife(msgspec.Struct, frozen=True):
    """What a step and a signal say of their life."""

    life: Name | None = None


_RECORDED_LIFE = records.decoder(_RecordedLife)
_GATHERED = records.decoder(GatheredStep)


def is_copy(stored: bytes, source: bytes, life: str) -> bool:
    """Whether what has the name of a copied step is that copy, or a step of the same life."""
    said = life_said(stored)
    return stored == source or said == life or (said is None and life_said(source) is None)


def life_said(data: bytes) -> str | None:
    """The life in a step or a signal; None if it has none, or cannot be read."""
    try:
        return _RECORDED_LIFE.decode(data).life
    except msgspec.DecodeError:
        return None


def asks_again(steps: Mapping[int, StepRecord]) -> set[int]:
    """The steps that a retry does not keep: a gather in which a task had not completed, if no step follows it, and its
    time limit. The task may have been retried since.
    """
    last = max(steps, default=-1)
    if last < 0 or steps[last].kind != "gather":
        return set()
    try:
        ends = _GATHERED.decode(steps[last].value).tasks
    except msgspec.DecodeError:
        return set()
    if all(end.state == "completed" for end in ends):
        return set()
    timer = steps.get(last - 1)
    return {last, last - 1} if timer is not None and (timer.kind, timer.name) == ("timer", "gather") else {last}


def may_have_begun(content: Content, *, token: int, epoch: int) -> bool:
    """Whether a claim may find recorded steps of its task's life: not a first claim of a first push in this epoch of
    the fleet. In a restored backup the steps may be newer than the lease.
    """
    return token > 1 or bool(content.life or content.origin) or content.epoch != epoch


def may_have_steps(
    record: EntryLease | None, content: Content, durable: Collection[int], n: int, *, epoch: int
) -> bool:
    """Whether task `n` of an entry that ends may have recorded steps, so that a retry has to look for them.

    `durable`: the tasks of which that is known. A holder that died, or was cancelled, may have recorded some of which
    the lease does not know.
    """
    contested = record is not None and record.contested
    return contested or n in durable or content.has_steps or content.epoch != epoch


# ---- names and keys ----


def pushed_name(origin: str, number: int) -> str:
    """The name of what step `number` pushes: every attempt derives the same."""
    return derived("push", origin, number)


def step_key(origin: str, number: int) -> str:
    """The idempotency key of a step: the same in every attempt, and in every life that keeps the steps."""
    return f"{origin}#{number}"


def left_s(step: Versioned[StepRecord], now: datetime) -> float:
    """How long a sleep or a timer still lasts. One that this process has just recorded has no LastModified yet."""
    if step.modified is None:
        return step.value.wait_s
    return whole_us(step.value.wait_s - (now - step.modified).total_seconds())


def left_before(before: Suspension | None, step: int, held_s: float) -> float | None:
    """How long the time of a step still lasts, as the suspension tells which the task had when it was claimed, `held_s`
    ago; None if it was not suspended at that step, for a time.

    It counts rather than the record of the time: each claim has judged the age of a lease also by its own rising clock
    (`decide.now_for`), while the record is as old as the store's clock says, which may have been set.
    """
    if before is None or before.step != step or before.due_s is None:  # None, too, while it waited for code
        return None
    return whole_us(before.due_s - held_s)


def has_ended(state: str, waited_s: float) -> bool:
    """Whether an awaited task has ended: a failed or cancelled one has, too.

    One that is being made pending may be nowhere for a moment.
    """
    return state in ("completed", "failed", "cancelled") or (state == "unknown" and waited_s >= UNKNOWN_S)


# ---- suspension ----


def look_again_s(waited_s: float) -> float:
    """How long after a look at what a task waits for the next one is due."""
    return min(LOOK_MAX_S, max(LOOK_MIN_S, waited_s / LOOK_PART))


def waiting(
    before: Suspension | None,
    *,
    reason: str,
    step: int,
    wall: datetime,
    awaits: Sequence[str] = (),
    signal: str | None = None,
    life: str | None = None,
    left: float | None = None,
    delayed_s: float = 0.0,
) -> tuple[float, Suspension]:
    """How long a task rests that waits for other tasks or a signal, and the suspension.

    `before`: that of the same task's last claim; a task that waits at the same step is looked at less and less often.
    `life`: that of a task that waits for a signal.
    `left`: in how many seconds its own time is up. `delayed_s`: in how many seconds all that it waits for are due.
    """
    began_here = before is None or before.step != step or bool(before.codes)
    since, waited_s = (wall, 0.0) if before is None or began_here else (before.since, before.waited_s)
    wait_s = max(look_again_s(waited_s), min(delayed_s, DELAYED_MAX_S))
    rest_s = wait_s if left is None else max(0.0, min(wait_s, left))
    return rest_s, Suspension(
        reason=reason[:REASON_CHARS_MAX],
        step=step,
        since=since,
        waited_s=waited_s,
        due_s=None if left is None else max(0.0, left),
        awaits=[*awaits[:AWAITS_MAX]],
        signal=signal,
        life=life,
    )


def waiting_for_code(
    before: Suspension | None, *, why: str, step: int, wall: datetime, code: str
) -> tuple[float, Suspension]:
    """How long a task rests whose recorded steps this version of its code does not fit, and the suspension.

    `before`: that of the same task's last claim. The versions that were tried stay in it, at whatever step each of them
    stopped: two versions of which none fits do not take turns.
    """
    since, waited_s, codes = wall, 0.0, list[str]()
    if before is not None and before.codes:
        since, waited_s, codes = before.since, before.waited_s, before.codes
    tried = codes if code in codes or len(codes) >= CODES_MAX else [*codes, code]
    rest_s = min(CODE_MAX_S, max(CODE_MIN_S, waited_s / CODE_PART))
    return rest_s, Suspension(reason=why[:REASON_CHARS_MAX], step=step, since=since, waited_s=waited_s, codes=tried)


@dataclass(frozen=True, slots=True)
class WaitingStep:
    """What to look for on behalf of one task: entries that must be gone, a signal to its life that must be there.

    With neither, it waits for code.
    """

    n: int
    awaits: Sequence[str]
    signal: str | None
    life: str | None = None


def looks(record: EntryLease, count: int, *, modified: datetime, now: datetime, code: str = "") -> list[WaitingStep]:
    """What a worker looks for before it claims an entry that is due; empty if a task can continue either way.

    The entry can be claimed as soon as one task has what it waits for. Looks are hints: the claim asks for the results.
    """
    since_s = (now - modified).total_seconds()
    found: list[WaitingStep] = []
    if record.state is not State.FREE:
        return found
    for n in open_tasks(record, count):
        each = record.suspended.get(n)
        if record.waits.get(n, 0.0) > since_s:
            if may_fit(each, code):
                return []
            continue
        if each is None or not (each.awaits or each.signal) or (each.due_s is not None and each.due_s <= since_s):
            return []
        found.append(WaitingStep(n, [key for key in each.awaits if _is_entry(key)], each.signal, each.life))
    return found


def stands_still(record: EntryLease, count: int) -> list[WaitingStep]:
    """What the tasks of an entry wait for, if none of them goes on at a time or is with a worker; else nothing. That
    one is tried again which waits for code does not count: the code here does not fit.
    """
    found: list[WaitingStep] = []
    for n in open_tasks(record, count) if record.state is State.FREE else ():
        each = record.suspended.get(n)
        awaits = [] if each is None else [key for key in each.awaits if _is_entry(key)]
        if each is None or each.due_s is not None or not (awaits or each.signal or each.codes):
            return []
        found.append(WaitingStep(n, awaits, each.signal, each.life))
    return found


def _is_entry(key: str) -> bool:
    """Whether a key, which comes from a lease, is that of a task or a batch. Others are not looked at."""
    place = queue_place(key)
    return place is not None and place.kind in ("single", "batch")


def awaited_signal(record: EntryLease | None, n: int) -> str | None:
    """The name of the signal for which task `n` of an entry is suspended, as its lease says; None if it is not."""
    suspension = None if record is None or record.state is not State.FREE else record.suspended.get(n)
    return None if suspension is None else suspension.signal


def woken(record: EntryLease, n: int, signal: str, since_s: float) -> EntryLease | None:
    """The record of an entry whose task `n` waits for that signal, and may go on; None if it does not wait for it.

    `since_s`: how old the record is. The waits of the entry's other tasks go on.
    """
    each = record.suspended.get(n)
    if record.state is not State.FREE or each is None or each.signal != signal:
        return None
    waits = {m: max(0.0, wait_s - since_s) for m, wait_s in record.waits.items()}
    suspended = aged({**record.suspended, n: msgspec.structs.replace(each, signal=None, awaits=[])}, since_s)
    return msgspec.structs.replace(record, waits={**waits, n: 0.0}, wait_s=0.0, suspended=suspended)


def until(suspension: Suspension, modified: datetime) -> datetime | None:
    """When a suspended task goes on at the latest; None if it waits without a limit."""
    return None if suspension.due_s is None else modified + timedelta(seconds=suspension.due_s)


# ---- what is left ----


def orphaned(tasks: Collection[int], *, waits: bool, failed: Collection[int]) -> set[int]:
    """The tasks of an entry whose steps go. `waits`: the entry is pending or scheduled, so that all of them stay.

    Those of a `failed` task stay for a retry, until its receipt expires.
    """
    return set() if waits else {n for n in tasks if n not in failed}

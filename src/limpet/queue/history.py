"""What is kept of a durable task that has completed: its steps, in one bounded object beside its results.

A claim writes the histories of the tasks that it completes before their receipt: `parts/<entry>/history-<token>.json`.
It goes when the entry's receipt does, as all parts of an entry; so does one whose writer died before the receipt. A
failed task needs none, since it keeps its steps. Nothing here reads a store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec

from limpet.kernel import records
from limpet.kernel.cell import Versioned
from limpet.kernel.keys import STEPS_MAX, batch_of, count_of, is_batch
from limpet.kernel.records import Count, Digest, Instant, Name, Positive
from limpet.queue.entry import (
    NOTHING,
    SCHEMA,
    ByTask,
    GatheredStep,
    PushedStep,
    StepKind,
    StepNumber,
    StepRecord,
    TaskNumber,
    WaitSeconds,
)

VALUE_BYTES_MAX = 1024
"""A longer value of a step is kept as its size and digest."""
HISTORY_BYTES_MAX = 128 * 1024
"""How much is kept of one task, and of all tasks that a claim completes."""
CHILDREN_MAX = 100
STEP_NAME_CHARS = 200


class HistoryStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step as it was recorded. Of a value that is left out, `size` and `sha256` are kept."""

    number: StepNumber
    kind: StepKind
    name: Annotated[str, msgspec.Meta(max_length=STEP_NAME_CHARS)] = ""
    label: Name = ""
    began_at: Instant
    at: Instant
    wait_s: WaitSeconds = 0.0
    value: msgspec.Raw = NOTHING
    size: Count = 0
    sha256: Digest | None = None
    pushed: Annotated[list[Name], msgspec.Meta(max_length=CHILDREN_MAX)] = msgspec.field(default_factory=list)
    """Of a push: the id, or the first entries, that it made."""
    tasks: Count = 0
    """Of a push: how many tasks it made."""


class TaskHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The steps of one task, without `left_out` of them from the middle."""

    life: Name
    steps: Annotated[list[HistoryStep], msgspec.Meta(max_length=STEPS_MAX)] = msgspec.field(default_factory=list)
    left_out: Count = 0


class HistoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The histories of the tasks that one claim has completed, by their number in the entry."""

    schema: Positive = SCHEMA
    tasks: Annotated[dict[TaskNumber, TaskHistory], ByTask]


_PUSHED = records.decoder(PushedStep)
_GATHERED = records.decoder(GatheredStep)


def history_step(number: int, record: StepRecord, value_max: float = float("inf")) -> HistoryStep:
    """A recorded step, with a value of at most so many bytes; of a gather then the number of tasks in each state."""
    value, data = record.value, bytes(record.value)
    pushed, tasks = list[str](), 0
    if record.kind == "push":
        pushed, tasks = _pushed(data)
    if len(data) > value_max and record.kind == "gather":
        value, data = _counted(data)
    fits = len(data) <= value_max
    return HistoryStep(
        number=number,
        kind=record.kind,
        name=record.name[:STEP_NAME_CHARS],
        label=record.label,
        began_at=record.began_at,
        at=record.at,
        wait_s=record.wait_s,
        value=value if fits else NOTHING,
        size=0 if fits else len(data),
        sha256=None if fits else records.digest_of(data),
        pushed=pushed,
        tasks=tasks,
    )


def _pushed(data: bytes) -> tuple[list[str], int]:
    """What a push made: the first names, and how many tasks."""
    try:
        step = _PUSHED.decode(data)
    except msgspec.DecodeError:
        return [], 0
    if step.id is not None:
        return [step.id], 1
    return [*step.entries[:CHILDREN_MAX]], sum(count_of(entry) if is_batch(entry) else 1 for entry in step.entries)


def _counted(data: bytes) -> tuple[msgspec.Raw, bytes]:
    """How many tasks of a gather had ended in each state."""
    try:
        counts = records.encode(Counter(end.state for end in _GATHERED.decode(data).tasks))
    except msgspec.DecodeError:
        counts = data
    return msgspec.Raw(counts), counts


def history_of(log: Mapping[int, Versioned[StepRecord]], life: str, size: int = HISTORY_BYTES_MAX) -> TaskHistory:
    """The steps of a task in at most `size` bytes: with shorter values if they are too many, then without those in the
    middle.
    """
    numbers = sorted(log)
    steps: list[HistoryStep] = []
    for value_max in (VALUE_BYTES_MAX, VALUE_BYTES_MAX // 8, 0):
        steps = [history_step(number, log[number].value, value_max) for number in numbers]
        if len(records.encode(steps)) <= size:
            return TaskHistory(life=life, steps=steps)
    kept = len(steps) // 2
    while kept and len(records.encode([*steps[:kept], *steps[-kept:]])) > size:
        kept //= 2
    ends = [*steps[:kept], *steps[-kept:]] if kept else []
    return TaskHistory(life=life, steps=ends, left_out=len(steps) - len(ends))


def fitted_histories(tasks: Mapping[int, TaskHistory]) -> HistoryRecord:
    """The histories of the tasks of a claim, in one object: each gets an equal share of the room, or what it needs."""
    sizes = {n: len(records.encode(history)) for n, history in tasks.items()}
    room, kept = HISTORY_BYTES_MAX, dict[int, TaskHistory]()
    for turn, n in enumerate(sorted(sizes, key=lambda n: (sizes[n], n))):
        history = tasks[n]
        if sizes[n] > room // (len(sizes) - turn):
            left_out = len(history.steps) + history.left_out
            history = msgspec.structs.replace(history, steps=[], left_out=left_out)
        room -= min(room, len(records.encode(history)))
        kept[n] = history
    return HistoryRecord(tasks=dict(sorted(kept.items())))


def children_of(steps: Sequence[HistoryStep], most: int) -> list[tuple[str, str]]:
    """The queue and the id of the first `most` tasks that these steps have pushed."""
    found: list[tuple[str, str]] = []
    for step in steps:
        for name in step.pushed:
            count = count_of(name) if is_batch(name) and batch_of(name) is None else 0
            ids = [f"{name}.{n}" for n in range(min(count, most))] if count else [name]
            found += [(step.name, id_) for id_ in ids[: most - len(found)]]
    return found


def step_facts(steps: Sequence[HistoryStep]) -> list[dict[str, Any]]:
    """The steps as facts, in order.

    `waited_s`, of a step that suspends the task: how long a sleep is, and otherwise the time since the step before.
    """
    facts: list[dict[str, Any]] = []
    before: datetime | None = None
    for step in steps:
        took_s = round(max(0.0, (step.at - step.began_at).total_seconds()), 3)
        name = step.name
        if step.kind in ("sleep", "timer"):
            name = f"of {step.wait_s:g} s" + (f" for {step.name}" if step.name else "")
        about = {"kind": step.kind, "name": name, "worker": step.label, "began_at": step.began_at, "at": step.at}
        about["took_s"] = took_s
        if step.kind == "sleep":
            about["waited_s"] = step.wait_s
        elif step.kind in ("gather", "signal"):
            about["waited_s"] = round(max(0.0, (step.at - (before or step.began_at)).total_seconds()), 3)
        before = step.at
        facts.append({"number": step.number, **about, **value_facts(step.value, step.size, step.sha256)})
    return facts


def value_facts(value: msgspec.Raw, size: int = 0, sha256: str | None = None) -> dict[str, Any]:
    """A value as facts; of one that is left out its size and digest."""
    return {"value": plain(value)} | ({"value_bytes": size, "value_sha256": sha256} if size else {})


def cut_value(value: msgspec.Raw) -> tuple[msgspec.Raw, int, str | None]:
    """The value; instead of a long one null, with its size and digest."""
    data = bytes(value)
    return (value, 0, None) if len(data) <= VALUE_BYTES_MAX else (NOTHING, len(data), records.digest_of(data))


def plain(data: bytes | msgspec.Raw) -> Any:
    """A stored value as JSON; if it is none, a text that says so."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"(not JSON: {error}) {bytes(data)[:1000]!r}"

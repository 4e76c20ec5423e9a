"""How everything below one name is removed, so that the name can be used again: the rules, and the loop around them.

A drop record (`<folder>.drop.json`) beside the folder says how far it came, and stays for ever. One process at a time
drops, under a lock beside it.

    closing     the folder's own mark is written: whoever reads it uses the name no more; nothing was removed yet
    removing    objects are being removed; only another drop can go on from here
    dropped     nothing was left, and no delete was on its way: the name may be used again
    kept        somebody worked there after all: nothing was removed, and the marks were taken back

The order is: record `closing`, the folder's own mark, a pause until everybody has read that, a look at the leases,
record `removing`, the objects, the folder's own mark as the last of them, a pause until no delete can be on its way, a
listing that finds nothing, record `dropped`. A process that dies leaves the record as it is: the next drop goes on.

`next_step` and `lasts_until` are pure rules. What a queue or an index adds is a `DropTarget`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from itertools import islice

import msgspec

from limpet.kernel.cell import Cell, Versioned, struct_codec
from limpet.kernel.errors import Conflict, Held, LimpetError, Missing, Unavailable, Unsupported
from limpet.kernel.keys import Key, drop_lock, is_key
from limpet.kernel.lease import Lease, LeaseRecord, Lock, VersionWatch
from limpet.kernel.lease.decide import RESOLUTION_S, is_live
from limpet.kernel.records import Instant, Name
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Blob, Stat, Store

LOCK_TTL_S = 10.0
"""A drop that was killed is continued by another one after this time and the watch of a takeover."""
SETTLE_S = 120.0
"""How late a delete may land that was sent to a bucket: by a process that has died, or twice by a proxy."""
GROUP = 1000
ROUNDS_MAX = 10
COUNTED_MAX = 100_000
HOLDERS_SHOWN = 5


class DropState(Enum):
    """How far a drop came."""

    CLOSING = "closing"
    REMOVING = "removing"
    DROPPED = "dropped"
    KEPT = "kept"


class DropRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a drop record says. Its LastModified is the time of the last step."""

    stage: DropState
    label: Name
    """Who drops, for people."""
    at: Instant
    quiesced: bool = False
    """Whether an operator has said that no process uses the name any more."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who still works below the name: of what, which process, until when at least."""

    what: str
    by: str
    until: datetime


@dataclass(frozen=True, slots=True)
class DropReport:
    """What a drop removes, or has removed."""

    kind: str
    name: str
    counts: Mapping[str, int] = field(default_factory=dict)
    objects: int = 0
    bytes: int = 0
    more: bool = False
    """There is more than was counted."""
    held: tuple[Holder, ...] = ()
    unfinished: str | None = None
    """Who began to drop it earlier, and did not finish."""
    removed: int = 0
    """How many objects this call has removed."""
    dropped: bool = False


BEGUN = (DropState.CLOSING, DropState.REMOVING)
"""The stages at which the name is refused."""


class DropStep(Enum):
    """The next step of a drop."""

    REFUSE = "somebody works: change nothing"
    CLOSE = "write the marks"
    REOPEN = "somebody works: take the marks back"
    REMOVE = "remove what is listed"
    UNMARK = "remove the folder's own mark"
    SETTLE = "wait until no delete is on its way"
    FINISH = "the name may be used again"
    GIVE_UP = "others go on to write"


def next_step(
    stage: DropState | None, *, closed: bool, holders: int, listed: int, marked: bool, settled: bool, rounds: int
) -> DropStep:
    """What a drop does next.

    `closed`: this run has written both marks, and everybody has had the time to read them. `holders` is as of now, or 0
    once objects are being removed. `listed`: objects below the name, without the folder's own mark; `marked`: that is
    there. `settled`: this run has waited since its last delete, or none of its deletes can come late. `rounds`: how
    often it has removed what a listing showed.
    """
    if holders:
        return DropStep.REOPEN if closed and stage is DropState.CLOSING else DropStep.REFUSE
    if not closed:
        return DropStep.CLOSE
    if listed:
        return DropStep.REMOVE if rounds < ROUNDS_MAX else DropStep.GIVE_UP
    if marked:
        return DropStep.UNMARK
    return DropStep.FINISH if settled else DropStep.SETTLE


def lasts_until(record: LeaseRecord, *, modified: datetime, now: datetime) -> datetime | None:
    """Until when a lease is held at least; None for one that is free or has run out by the store's clock."""
    if not is_live(record, modified=modified, now=now):
        return None
    return modified + timedelta(seconds=record.ttl_s + RESOLUTION_S)


def drop_cell(store: Store, key: Key, runtime: Runtime) -> Cell[DropRecord]:
    """The cell of a drop record."""
    return Cell(store, key, struct_codec(DropRecord), runtime)


def being_dropped(kind: str, name: str) -> Unsupported:
    """The error for whoever uses a name that is being dropped."""
    return Unsupported(
        f"the {kind} {name!r} is being dropped",
        hint=f"wait until that has ended, or finish it: limpet {kind} drop {name}",
    )


class DropTarget(ABC):
    """What is dropped: a queue or an index."""

    kind: str
    name: str
    root: str
    """The folder of its objects."""
    record: Key
    """The key of the drop record."""
    mark: Key
    """The object in the folder that says to its users that it is being dropped; removed last."""

    @abstractmethod
    def check(self, seen: DropRecord | None) -> None:
        """Raise if there is no such thing, or it cannot be dropped soundly."""

    @abstractmethod
    def count(self, stats: Iterable[Stat]) -> Mapping[str, int]:
        """Count the objects by what they are to a user."""

    @abstractmethod
    def leases(self) -> dict[str, Blob | LimpetError]:
        """The lease records of those who may be at work, by what they hold."""

    @abstractmethod
    def lease_of(self, what: str, blob: Blob) -> LeaseRecord:
        """Decode one of them.   Raises: Corrupt; Unsupported."""

    @abstractmethod
    def close(self) -> float:
        """Write the folder's own mark; the seconds until everybody has read it."""

    @abstractmethod
    def reopen(self) -> None:
        """Take the folder's own mark back."""

    @abstractmethod
    def reuses(self, key: Key) -> bool:
        """Whether a later object may have the name of a removed one."""

    def announce(self, dropping: bool) -> None:  # noqa: B027, not every kind has readers of it
        """Say so, or that it is over, where a process reads it that opens the fleet."""


class Dropper:
    """One drop of one target.

    Crash: at any moment; then the name is refused, and the next drop goes on once the lock of this one has run out.
    """

    def __init__(self, store: Store, runtime: Runtime, target: DropTarget, watch: VersionWatch) -> None:
        self._store = store
        self._runtime = runtime
        self._target = target
        self._watch = watch
        self._cell = drop_cell(store, target.record, runtime)
        self._settled = True
        self._removed = 0
        self._trouble: Unavailable | None = None

    def look(self) -> DropReport:
        """What a drop would remove, and who works there. Changes nothing.

        Raises: as `DropTarget.check`.
        Cost: 2 GETs + 1 LIST per 1,000 objects, of at most 100,000 + 1 GET for each lease.
        """
        target, seen = self._target, self._cell.read()
        target.check(seen.value if seen else None)
        stats = [*islice(self._listed(), COUNTED_MAX + 1)]
        counted, more = stats[:COUNTED_MAX], len(stats) > COUNTED_MAX
        unfinished = seen.value.label if seen is not None and seen.value.stage in BEGUN else None
        return DropReport(
            target.kind,
            target.name,
            target.count(counted),
            len(counted),
            sum(stat.size for stat in counted),
            more,
            self._holders(),
            unfinished,
        )

    def run(self, *, quiesced: bool = False, progress: Callable[[str], object] = lambda said: None) -> DropReport:
        """Remove it all. `progress` is told what it waits for.

        Raises: Conflict while somebody works there, and nothing was changed, or if others go on to write there; Held
        while another process drops it; as `DropTarget.check`. After any error a second drop finishes what this began.
        Cost: as `look`, 7 PUTs + 3 GETs for the records, 2 LISTs more, and 1 DELETE an object, in bulk.
        """
        report = self.look()
        if report.held and report.unfinished is None:
            raise self._held(report.held)
        with self._alone() as lease:
            # with our token, before anything is decided: from now on no late write of an earlier drop counts (F12)
            seen = self._cell.update(lambda record: record, lease=lease)
            if seen is not None and seen.value.stage in BEGUN:
                report = replace(report, unfinished=seen.value.label)
            self._go(lease, seen, quiesced, progress)
        return replace(report, held=(), removed=self._removed, dropped=True)

    @contextmanager
    def _alone(self) -> Iterator[Lease]:
        """Hold the lock of the drop.   Raises: Held, if another process drops it."""
        key = drop_lock(self._target.record)
        name = f"drop of {self._target.kind} {self._target.name}"
        lock = Lock(self._store, key, name, LOCK_TTL_S, self._runtime, self._watch, look_first=True)
        try:
            with lock.hold(wait_s=0.0) as lease:
                yield lease
        except Held as error:
            if error.name == name:
                error.hint = "another process drops it; if that was killed, try again in a few seconds"
            raise

    def _go(
        self, lease: Lease, seen: Versioned[DropRecord] | None, quiesced: bool, progress: Callable[[str], object]
    ) -> None:
        stage = seen.value.stage if seen is not None and seen.value.stage in BEGUN else None
        closed, rounds = False, 0
        if stage is DropState.REMOVING:
            self._settled = not self._store.far  # the deletes of the one before us may be on their way
        while True:
            step, holders, keys = self._next(stage, closed=closed, rounds=rounds)
            match step:
                case DropStep.REFUSE:
                    raise self._held(holders)
                case DropStep.REOPEN:
                    self._target.reopen()
                    self._note(lease, DropState.KEPT, quiesced=False)
                    raise self._held(holders)
                case DropStep.CLOSE:
                    stage = stage or DropState.CLOSING
                    self._note(lease, stage, quiesced=quiesced)
                    self._target.announce(True)
                    self._pause(self._target.close(), "until every worker has noticed", progress)
                    closed = True
                case DropStep.REMOVE | DropStep.UNMARK:
                    if stage is not DropState.REMOVING:
                        stage = DropState.REMOVING
                        self._note(lease, stage, quiesced=quiesced)
                    self._remove(lease, keys or [self._target.mark])
                    rounds += bool(keys)
                case DropStep.SETTLE:
                    self._pause(SETTLE_S, "until no delete can be on its way", progress)
                    self._settled = True
                case DropStep.FINISH:
                    if not self._store.far:
                        self._remove_folders(self._target.root)
                    self._note(lease, DropState.DROPPED, quiesced=quiesced)
                    return
                case DropStep.GIVE_UP:
                    raise self._trouble or Conflict(
                        f"other processes go on to write to the {self._target.kind} {self._target.name!r}",
                        hint="stop them, and drop it again: what was there before is removed",
                    )

    def _next(
        self, stage: DropState | None, *, closed: bool, rounds: int
    ) -> tuple[DropStep, tuple[Holder, ...], list[Key]]:
        """The next step, by what is there now: who works there, and what is left."""
        holders = self._holders() if stage is not DropState.REMOVING or not closed else ()
        keys, marked = self._keys() if closed and not holders else ([], True)
        step = next_step(
            stage,
            closed=closed,
            holders=len(holders),
            listed=len(keys),
            marked=marked,
            settled=self._settled,
            rounds=rounds,
        )
        return step, holders, keys

    def _note(self, lease: Lease, stage: DropState, *, quiesced: bool) -> None:
        lease.check()
        record = DropRecord(stage=stage, label=self._runtime.label, at=self._runtime.wall(), quiesced=quiesced)
        self._cell.write(record, lease=lease)
        if stage not in BEGUN:
            self._target.announce(False)

    def _pause(self, seconds: float, why: str, progress: Callable[[str], object]) -> None:
        if seconds > 0:
            progress(f"waiting {seconds:.0f} s, {why}")
            self._runtime.sleep(seconds)

    def _listed(self) -> Iterator[Stat]:
        return (stat for stat in self._store.list(self._target.root) if is_key(stat.key))

    def _keys(self) -> tuple[list[Key], bool]:
        """What is left below the name, without the folder's own mark; and whether that is there."""
        keys = [stat.key for stat in self._listed()]
        return [key for key in keys if key != self._target.mark], self._target.mark in keys

    def _remove(self, lease: Lease, keys: list[Key]) -> None:
        """Delete them, while we hold the lock. What the store did not delete is listed again.   Raises: Denied."""
        for first in range(0, len(keys), GROUP):
            lease.check_held()
            group = keys[first : first + GROUP]
            if self._store.far and any(map(self._target.reuses, group)):
                self._settled = False
            errors = self._store.delete_many(group)
            self._removed += sum(error is None for error in errors.values())
            for error in errors.values():
                if isinstance(error, Unavailable):
                    self._trouble = error
                elif error is not None:
                    raise error

    def _remove_folders(self, folder: str) -> None:
        """Remove empty folders, which a directory lists: a process that dies between a delete and its tidying leaves
        them. A delete of a name that never was does that.   Cost: 1 LIST and 1 DELETE for each folder that is left."""
        names = self._store.list_dirs(folder)
        for name in names:
            self._remove_folders(f"{folder}/{name}")
        if not names:
            self._store.delete(Key(f"{folder}/none.json"))

    def _holders(self) -> tuple[Holder, ...]:
        """Who holds a lease there that has not run out by the store's clock. One that cannot be read is nobody's.

        Cost: that of the target's `leases`, and 1 PUT + 1 HEAD for the store's clock.
        """
        now = self._store.now(max_age_s=-1.0)  # before the leases: one that is renewed meanwhile counts as held
        blobs = self._target.leases()
        found = []
        for what, blob in blobs.items():
            if isinstance(blob, Missing):
                continue
            if isinstance(blob, LimpetError):
                raise blob
            try:
                record = self._target.lease_of(what, blob)
            except LimpetError:
                continue
            until = lasts_until(record, modified=blob.modified, now=now)
            if until is not None:
                found.append(Holder(what, record.label, until))
        return tuple(found)

    def _held(self, holders: tuple[Holder, ...]) -> Conflict:
        """The error that names the first holder."""
        first, others = holders[0], len(holders) - 1
        more = f", and {others:,} more {'is' if others == 1 else 'are'} held" if others else ""
        return Conflict(
            f"the {self._target.kind} {self._target.name!r} is in use: {first.by} holds {first.what}{more}",
            hint=f"wait until that has ended (held until {first.until:%H:%M:%S} UTC at least), or stop that process",
        )

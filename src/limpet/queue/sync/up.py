"""`Supervisor.up`: send to the bucket what this node did, and publish the leases that its workers hold.

Outbox entries are sent as they were written: never compared with the directory, never "local minus remote" (H8). An
entry is authoritative about what was asked for or done here, whether or not it has taken effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from limpet.kernel import keys, records
from limpet.kernel.cell import Lost, Replaced, Unclear, Versioned, Won
from limpet.kernel.errors import LimpetError, OutcomeUnknown
from limpet.kernel.keys import Key, QueueKeys, is_batch, queue_place
from limpet.kernel.lease import State, VersionWatch
from limpet.kernel.lease.decide import is_live
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Store, batched
from limpet.kernel.waiting import attempts
from limpet.queue.entry import ENTRY_BYTES_MAX, EntryLease
from limpet.queue.storage import Storage
from limpet.queue.sync.apply import Applier, Collision, Cycle, LineOutcome, OnUnreadable, queues_of, read_each
from limpet.queue.sync.decide import entry_of_line, let_go, promoted, published, superseded
from limpet.queue.sync.log import LogWriter, Outbox
from limpet.queue.sync.records import (
    DAMAGE,
    LINE_BYTES_MAX,
    EndLine,
    HeldLine,
    LeaseLine,
    OutboxLine,
    PushLine,
    read_outbox_entry,
)
from limpet.queue.sync.state import NodeState

AT_ONCE = 256
BYTES_AT_ONCE = 16 * 1024 * 1024
INLINE_BYTES_MAX = 256 * 1024
OWNER = "node:"
DAMAGE_S = 86400.0
"""A receipt that seems older than a damaged outbox entry, by up to this much, may be the one it noted: clocks step."""


def fill_outbox(local: Store, runtime: Runtime, *, since: datetime | None = None, bad: OnUnreadable) -> None:
    """Put every waiting task and every receipt of the directory into its outbox; `bad` is called for the rest.

    Done at the first start. Processes that opened the directory before it was marked as supervised have no journal:
    they must be restarted first. With `since`, after damage to the outbox: only receipts from then on. Receipts only
    grow, so sending one twice changes nothing. A push is not sent again: it may have ended elsewhere (H8).
    Cost: 1 LIST per 1,000 objects, 1 GET + 1 PUT for each.   Crash: done again, which sends some of it twice.
    """
    outbox = Outbox(local, runtime)
    for queue in queues_of(local, bad=bad):
        receipts = (queue.failed, queue.completed)
        for prefix in receipts if since else (queue.pending, queue.scheduled, *receipts):
            listed = (stat.key for stat in local.list(prefix) if since is None or stat.modified >= since)
            for key, blob in read_each(local, listed, size_max=ENTRY_BYTES_MAX, bad=bad):
                place = queue_place(key)
                if place is None:
                    continue
                with suppress(UnicodeDecodeError, *DAMAGE):  # other nodes could not read it either
                    if place.kind in ("single", "batch", "scheduled"):
                        outbox.pushed(key, blob.data)
                    else:
                        receipt = Storage(local, queue, runtime).receipt(key).decode(blob).value
                        outbox.ended(place.name, is_batch(place.name), key, receipt)


@dataclass(frozen=True, slots=True)
class _Sent:
    """The outcome of sending one outbox entry. `line` goes into the log for the other nodes, if there is one."""

    key: Key
    line: PushLine | EndLine | None = None
    outcome: LineOutcome | None = None
    error: LimpetError | None = None


class OutboxSender:
    """Sends the outbox of one node, and publishes the leases of its workers, so that other nodes skip those entries.

    Publishing saves work and guarantees nothing: nodes sync at intervals, so two of them may run one task, and a
    supervised claim's token fences nothing outside of its node. A live foreign lease wins.
    """

    def __init__(self, here: Applier, there: Applier, runtime: Runtime, state: NodeState, *, up_s: float) -> None:
        self._here = here
        self._there = there
        self._runtime = runtime
        self._state = state
        self._log = LogWriter(there.store, runtime, state, up_s=up_s)
        self._up_s = up_s
        self._held: dict[Key, HeldLine] = {}
        self._published: dict[Key, Versioned[EntryLease]] = {}
        self._watch = VersionWatch(runtime)

    def run(self) -> Cycle:
        """Send everything in the outbox: objects first, then the log that lists them; then trim the entries.

        A damaged entry is put aside and reported, and receipts from its time on are sent again: it may have noted one.
        Raises: the first error of the bucket; what was sent until then is logged and trimmed.
        Cost: here 1 LIST per 1,000 entries, and for each 1 GET, up to 3 HEADs and 1 DELETE; there as `Applier` says,
        and 1 PUT for each log.   Crash: anywhere, the next cycle sends the rest again, which changes nothing.
        """
        cycle = Cycle("up")
        damaged = self._send_all(cycle)
        if damaged:
            since = min(damaged) - timedelta(seconds=DAMAGE_S)
            fill_outbox(self._here.store, self._runtime, since=since, bad=cycle.unreadable.append)
            self._send_all(cycle)
        self._publish_leases(cycle)
        return cycle

    def _send_all(self, cycle: Cycle) -> list[datetime]:
        """Send what is in the outbox; returns the times of entries that could not be read."""
        found = {stat.key: stat for stat in self._here.store.list(keys.OUTBOX) if keys.is_key(stat.key)}
        self._held = {key: line for key, line in self._held.items() if key in found}
        new = [stat for key, stat in found.items() if key not in self._held]
        damaged: list[Key] = []
        for some in batched(new, lambda stat: stat.size, size=BYTES_AT_ONCE, count=AT_ONCE):
            damaged += self._send([stat.key for stat in some], cycle)
        return [found[key].modified for key in damaged]

    def _send(self, some: Sequence[Key], cycle: Cycle) -> list[Key]:
        """Send some entries; returns those that could not be read."""
        lines, damaged = self._read(some)
        over = superseded(lines.values())
        self._held |= {key: line for key, line in lines.items() if isinstance(line, HeldLine)}
        todo = [(key, line) for key, line in lines.items() if isinstance(line, PushLine | EndLine)]
        sent = self._runtime.fan_out(lambda entry: self._send_one(*entry, over), todo)
        self._unschedule(line for _, line in todo)
        cycle.logs += self._log.write([one.line for one in sent if one.line is not None])
        self._trim([one.key for one in sent if one.error is None], lines, cycle)
        for one in sent:
            cycle.collided(one.outcome.collision if one.outcome else None)
        for one in sent:
            if isinstance(one.error, DAMAGE):
                cycle.unreadable.append(one.key)  # it stays, and the next cycle tries again
            elif one.error is not None:
                raise one.error
        return damaged

    def _read(self, some: Sequence[Key]) -> tuple[dict[Key, OutboxLine], list[Key]]:
        """Read outbox entries, and put aside those that cannot be read."""
        lines: dict[Key, OutboxLine] = {}
        damaged: list[str] = []
        for key, blob in read_each(self._here.store, some, size_max=LINE_BYTES_MAX, bad=damaged.append):
            try:
                lines[key] = read_outbox_entry(blob.data, what=key)
            except DAMAGE:
                damaged.append(key)
        for name in damaged:
            self._state.put_aside(Key(name))
        return lines, [Key(name) for name in damaged]

    def _send_one(self, key: Key, line: PushLine | EndLine, over: set[tuple[str, str]]) -> _Sent:
        """Send one entry, and complete it here: a crash may have prevented its effect."""
        try:
            if isinstance(line, EndLine):
                return _Sent(key, _short(line), self._end(line))
            if entry_of_line(line) in over:
                return _Sent(key)
            outcome = self._push(line)
            return _Sent(key, None if outcome.ended else _short(line), outcome)
        except LimpetError as error:
            return _Sent(key, error=error)

    def _push(self, line: PushLine) -> LineOutcome:
        assert line.data is not None
        data = line.data.encode()
        outcome = self._there.push(Key(line.key), data, look_first=False)
        self._here.push(Key(line.key), data, look_first=True)
        return outcome

    def _end(self, line: EndLine) -> LineOutcome:
        assert line.receipt is not None
        outcome = self._there.end(line, line.receipt, parts_from=self._here.store, look_first=False)
        self._here.end(line, line.receipt, parts_from=self._here.store, look_first=True)
        return outcome

    def _unschedule(self, lines: Iterable[PushLine | EndLine]) -> None:
        """Delete from the bucket the scheduled objects of delayed pushes that this node has made pending.

        Cost: 1 LIST per 1,000 delayed pushes of each queue that has such, 1 DELETE each.
        """
        due: dict[str, set[str]] = {}
        for line in lines:
            if isinstance(line, PushLine) and promoted(line):
                root, entry = entry_of_line(line)
                due.setdefault(root, set()).add(entry)
        for root, entries in due.items():
            listed = [stat.key for stat in self._there.store.list(QueueKeys(root).scheduled)]
            over = [key for key in listed if (place := queue_place(key)) and place.name in entries]
            for error in self._there.store.delete_many(over).values():
                if error is not None:
                    raise error

    def _trim(self, done: Sequence[Key], lines: dict[Key, OutboxLine], cycle: Cycle) -> None:
        for key, error in self._here.store.delete_many(done).items():
            if error is not None:
                raise error
            cycle.trimmed += 1
            cycle.pushes += isinstance(lines[key], PushLine)
            cycle.ends += isinstance(lines[key], EndLine)

    def _publish_leases(self, cycle: Cycle) -> None:
        """Publish the leases that workers here hold, and release those that they no longer hold.

        Raises: OutcomeUnknown, Unavailable: call again.   Cost for each lease: 1 GET here; there 1 PUT for a renewal,
        else 1 GET + 1 PUT (+ 1 HEAD for the first lease of an entry).
        """
        results = {note: self._publish(note, cycle) for note in dict.fromkeys(self._held.values())}
        cycle.logs += self._log.write([line for _, line in results.values() if line])
        over = [key for key, note in self._held.items() if not results[note][0]]
        cycle.leases += sum(held for held, _ in results.values())
        self._here.store.delete_many(over)
        for key in over:
            del self._held[key]

    def _publish(self, note: HeldLine, cycle: Cycle) -> tuple[bool, LeaseLine | None]:
        """Publish, renew or release one lease; returns whether it is held here, and the line for the other nodes."""
        queue = QueueKeys(note.root)
        try:
            lease = self._here.storage(queue).lease(note.entry).read()
            if lease is None or not self._is_live(lease):
                return False, self._release(note, queue)
            foreign = self._swap(note, queue, lease.value)
        except DAMAGE:
            return False, None  # the next worker that claims it puts it into failed/
        if foreign is None:
            return True, lease_line(queue.root, note.entry, note.batch, lease.value)
        if foreign.state is State.HELD:
            cycle.collided(Collision("lease", queue.name, note.entry, foreign.label))
        return True, None

    def _is_live(self, lease: Versioned[EntryLease]) -> bool:
        assert lease.modified is not None
        return is_live(lease.value, modified=lease.modified, now=self._here.store.now())

    def _swap(self, note: HeldLine, queue: QueueKeys, local: EntryLease) -> EntryLease | None:
        """Make the bucket's lease ours; otherwise return the foreign one."""
        storage = self._there.storage(queue)
        cell = storage.lease(note.entry)
        seen = self._published.pop(cell.key, None) or cell.read()
        if seen is None and not storage.exists(queue.tasks(note.entry, batch=note.batch)):
            return None  # the bucket's entry has ended or was never sent: no other node could claim it
        for _ in attempts(self._runtime, pause_s=0):
            ours = published(
                seen.value if seen else None,
                local,
                owner=OWNER + self._state.node,
                hold_s=local.ttl_s + self._up_s,
                modified=seen.modified if seen else None,
                unchanged_s=self._watch.unchanged_s(cell.key, seen.version) if seen else 0.0,
                now=self._there.store.now(),
                wall=self._runtime.wall(),
            )
            if ours is None:
                return seen.value if seen else None
            match cell.attempt(seen, ours):
                case Won(mine):
                    self._published[cell.key] = mine
                    return None
                case Replaced(_, now) | Lost(now) | Unclear(now):
                    seen = now
        raise OutcomeUnknown(f"{cell.key} keeps changing")

    def _release(self, note: HeldLine, queue: QueueKeys) -> LeaseLine | None:
        """Free the bucket's lease; returns the line for the other nodes, unless they get a receipt."""
        cell = self._there.storage(queue).lease(note.entry)
        self._published.pop(cell.key, None)
        seen = cell.read()
        freed = let_go(seen.value if seen else None, owner=OWNER + self._state.node)
        if seen is None or freed is None:
            return None
        cell.attempt(seen, freed)
        ended = self._here.storage(queue).ended(note.entry)
        return None if ended else lease_line(queue.root, note.entry, note.batch, freed)


def lease_line(root: str, entry: str, batch: bool, record: EntryLease) -> LeaseLine:
    """The line that reports a lease, or its release."""
    return LeaseLine(
        root=root,
        entry=entry,
        batch=batch,
        held=record.state is State.HELD,
        worker_id=record.worker_id,
        label=record.label,
        token=record.token,
        ttl_s=record.ttl_s,
    )


def _short(line: PushLine | EndLine) -> PushLine | EndLine:
    """The line for the log: a large task or receipt is left out, for the bucket has it by now."""
    if len(records.encode(line)) <= INLINE_BYTES_MAX:
        return line
    if isinstance(line, PushLine):
        return PushLine(key=line.key)
    return EndLine(key=line.key, entry=line.entry, batch=line.batch, write_id=line.write_id)

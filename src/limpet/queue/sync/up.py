"""`sync_up`: what this node did goes to the bucket, and from there to the others.

Outbox entries are sent as they were written: never compared with the directory, never "local minus remote" (H8). An
entry is the truth about what was asked for or done here, whatever became of its effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from limpet import keys
from limpet.errors import LimpetError
from limpet.keys import Key, QueueKeys, queue_place
from limpet.queue.sync.adopt import adopt_ends
from limpet.queue.sync.apply import Applied, Applier
from limpet.queue.sync.decide import entry_of_line, promoted, superseded
from limpet.queue.sync.lease_up import LeaseUp
from limpet.queue.sync.log import LogWriter
from limpet.queue.sync.objects import DAMAGE, each, put_aside
from limpet.queue.sync.records import (
    LINE_BYTES_MAX,
    EndLine,
    HeldLine,
    LeaseLine,
    Line,
    PushLine,
    line_bytes,
    read_whole,
)
from limpet.queue.sync.report import Cycle
from limpet.queue.sync.state import NodeState
from limpet.runtime import Runtime
from limpet.store.api import Stat, Store

AT_ONCE = 256
BYTES_AT_ONCE = 16 * 1024 * 1024
INLINE_BYTES_MAX = 256 * 1024
DAMAGE_S = 86400.0
"""So much older than a damaged note a receipt may look, and still be the one that was noted: clocks step."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """What became of one outbox entry. `line` is what the others are told of it, if anything."""

    key: Key
    line: Line | None
    applied: Applied | None
    error: LimpetError | None


class Up:
    """Sends the outbox of one node."""

    def __init__(self, local: Store, remote: Store, runtime: Runtime, state: NodeState, *, up_s: float) -> None:
        self._local = local
        self._remote = remote
        self._runtime = runtime
        self._here = Applier(local, runtime, remote=False)
        self._there = Applier(remote, runtime, remote=True)
        self._state = state
        self._log = LogWriter(remote, runtime, state, up_s=up_s)
        self._leases = LeaseUp(local, remote, runtime, up_s=up_s)
        self._held: dict[Key, HeldLine] = {}

    def run(self) -> Cycle:
        """Send everything that waits: objects first, then the log that tells of them, then the entries go.

        A damaged entry is put aside and told of, and receipts from its time on are sent again: it may have been theirs.
        Raises: the first error that the bucket met; what was sent until then is logged and gone from the outbox.
        Cost: here 1 LIST per 1,000 entries, and for each 1 GET, up to 3 HEADs and 1 DELETE; there as `Applier` says,
        and 1 PUT for each log.   Crash: anywhere, the next cycle sends what is left again, which changes nothing.
        """
        cycle = Cycle("up")
        damaged = self._send_all(cycle)
        if damaged:
            since = min(damaged) - timedelta(seconds=DAMAGE_S)
            adopt_ends(self._local, self._runtime, since=since, bad=cycle.unreadable.append)
            self._send_all(cycle)
        self._tell_leases(cycle)
        return cycle

    def _send_all(self, cycle: Cycle) -> list[datetime]:
        """Send what is in the outbox; from when the entries are that could not be read."""
        found = {stat.key: stat for stat in self._local.list(keys.OUTBOX)}
        self._held = {key: line for key, line in self._held.items() if key in found}
        bad: list[str] = []
        for some in _packed([stat for key, stat in found.items() if key not in self._held]):
            self._send(some, cycle, bad)
        cycle.unreadable += bad
        return [found[Key(key)].modified for key in bad]

    def _send(self, some: Sequence[Key], cycle: Cycle, bad: list[str]) -> None:
        lines = self._read(some, bad)
        over = superseded(lines.values())
        self._held |= {key: line for key, line in lines.items() if isinstance(line, HeldLine)}
        todo = [(key, line) for key, line in lines.items() if isinstance(line, PushLine | EndLine)]
        sent = self._runtime.fan_out(lambda entry: self._one(*entry, over), todo)
        self._unschedule(line for _, line in todo)
        cycle.logs += self._log.write([one.line for one in sent if one.line is not None])
        self._trim([one.key for one in sent if one.error is None], lines, cycle)
        cycle.collisions += [one.applied.collision for one in sent if one.applied and one.applied.collision]
        for one in sent:
            if isinstance(one.error, DAMAGE):
                cycle.unreadable.append(one.key)  # it stays, and the next cycle tries again
            elif one.error is not None:
                raise one.error

    def _unschedule(self, lines: Iterable[PushLine | EndLine]) -> None:
        """Delayed pushes whose time has come on this node are pending there, too, or have ended: they wait no more.

        Cost: 1 LIST per 1,000 delayed pushes of each queue that has such, 1 DELETE each.
        """
        due: dict[str, set[str]] = {}
        for line in lines:
            if isinstance(line, PushLine) and promoted(line):
                root, entry = entry_of_line(line)
                due.setdefault(root, set()).add(entry)
        for root, entries in due.items():
            listed = [stat.key for stat in self._remote.list(QueueKeys(root).scheduled)]
            over = [key for key in listed if (place := queue_place(key)) and place.name in entries]
            for error in self._remote.delete_many(over).values():
                if error is not None:
                    raise error

    def _read(self, some: Sequence[Key], bad: list[str]) -> dict[Key, Line]:
        lines: dict[Key, Line] = {}
        unread: list[str] = []
        for key, blob in each(self._local, some, size_max=LINE_BYTES_MAX, bad=unread.append):
            try:
                lines[key] = read_whole(blob.data, what=key)
            except DAMAGE:
                unread.append(key)
        for name in unread:
            put_aside(self._local, self._runtime, Key(name))
        bad += unread
        return lines

    def _one(self, key: Key, line: PushLine | EndLine, over: set[tuple[str, str]]) -> _Sent:
        """Send one entry, and finish here what a crash may have left undone: the outbox is written ahead."""
        try:
            if isinstance(line, PushLine):
                if entry_of_line(line) in over:
                    return _Sent(key, None, None, None)
                return self._push(key, line)
            return self._end(key, line)
        except LimpetError as error:
            return _Sent(key, None, None, error)

    def _push(self, key: Key, line: PushLine) -> _Sent:
        assert line.data is not None
        data = line.data.encode()
        applied = self._there.push(Key(line.key), data, look_first=False)
        self._here.push(Key(line.key), data, look_first=True)
        return _Sent(key, None if applied.ended else _short(line), applied, None)

    def _end(self, key: Key, line: EndLine) -> _Sent:
        assert line.receipt is not None
        applied = self._there.end(line, line.receipt, parts_from=self._local, look_first=False)
        self._here.end(line, line.receipt, parts_from=self._local, look_first=True)
        return _Sent(key, _short(line), applied, None)

    def _trim(self, done: Sequence[Key], lines: dict[Key, Line], cycle: Cycle) -> None:
        for key, error in self._local.delete_many(done).items():
            if error is not None:
                raise error
            cycle.trimmed += 1
            cycle.pushes += isinstance(lines[key], PushLine)
            cycle.ends += isinstance(lines[key], EndLine)

    def _tell_leases(self, cycle: Cycle) -> None:
        """Publish what workers here hold, and let go of what they no longer hold."""
        outcomes = {note: self._leases.tell(note, node=self._state.node) for note in dict.fromkeys(self._held.values())}
        cycle.leases += sum(outcome.held for outcome in outcomes.values())
        cycle.collisions += [outcome.collision for outcome in outcomes.values() if outcome.collision]
        cycle.logs += self._log.write([outcome.line for outcome in outcomes.values() if outcome.line])
        over = [key for key, note in self._held.items() if not outcomes[note].held]
        self._local.delete_many(over)
        for key in over:
            del self._held[key]


def _packed(waiting: Sequence[Stat]) -> Iterator[list[Key]]:
    """Some entries at a time, as many as a small machine can hold."""
    pack: list[Key] = []
    size = 0
    for stat in waiting:
        if pack and (len(pack) == AT_ONCE or size + stat.size > BYTES_AT_ONCE):
            yield pack
            pack, size = [], 0
        pack.append(stat.key)
        size += stat.size
    if pack:
        yield pack


def _short(line: Line) -> Line:
    """The line as the others get it: what is large goes by reference, for the bucket has it by now."""
    if len(line_bytes(line)) <= INLINE_BYTES_MAX:
        return line
    match line:
        case PushLine(key=key):
            return PushLine(key=key)
        case EndLine():
            return EndLine(key=line.key, entry=line.entry, batch=line.batch, write_id=line.write_id)
        case HeldLine() | LeaseLine():
            return line

"""`sync_down`: what the others did comes to this node.

Logs are read in order behind a cursor for each node, which moves only when everything before it holds here. What was
pulled is not journaled again: it came from a log that all read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from limpet.errors import Missing
from limpet.keys import Key, QueueKeys, log_key, log_of
from limpet.queue.entry import ENTRY_BYTES_MAX, Receipt
from limpet.queue.sync.apply import Applier
from limpet.queue.sync.decide import absent, is_stale, unread
from limpet.queue.sync.fresh import Fresh
from limpet.queue.sync.lease_down import RemoteLeases
from limpet.queue.sync.log import LogReader
from limpet.queue.sync.objects import DAMAGE, queue_name
from limpet.queue.sync.records import (
    UP_MAX_S,
    EndLine,
    LeaseLine,
    Line,
    LogHeader,
    PushLine,
    is_client,
    place_of,
)
from limpet.queue.sync.report import Collision, Cycle
from limpet.queue.sync.state import NodeState
from limpet.runtime import Runtime
from limpet.store.api import Stat, Store


class Down:
    """Applies the others' logs to one node."""

    def __init__(
        self,
        local: Store,
        remote: Store,
        runtime: Runtime,
        state: NodeState,
        *,
        down_s: float,
        retention_s: float,
    ) -> None:
        self._local = local
        self._remote = remote
        self._runtime = runtime
        self._state = state
        self._down_s = down_s
        self._retention_s = retention_s
        self._here = Applier(local, runtime, remote=False)
        self._there = Applier(remote, runtime, remote=True)
        self._leases = RemoteLeases(local, runtime)
        self._reader = LogReader(remote, state)
        self._exact = False

    def run(self, *, fresh: bool = False) -> Cycle:
        """Apply what is new. `fresh`: from a listing of the bucket, as after an absence or where logs are missing.

        A log or a line that cannot be read is told of and passed over. What such a log, or that of a newer Limpet, may
        have told is pulled afresh: a node writes its objects before the log.
        Raises: Unavailable, OutcomeUnknown: what was applied until then is not read again.
        Cost: 1 LIST per 1,000 logs, 1 GET for each new one, and for each node with news 1 GET + 1 PUT here; what a
        line takes here says `Applier`. Once a process 1 PUT + 1 HEAD for the bucket's clock.
        Crash: anywhere, the next cycle applies what is left again, which changes nothing.
        """
        cycle = Cycle("down")
        now = self._now()
        listed = self._reader.listed(self._state.cursors, bad=cycle.unreadable.append)
        self._state.seen_last = max(_numbers(listed).get(self._state.node, [0]))
        news = unread(_numbers(listed), self._state.cursors, node=self._state.node)
        if fresh or news.gap or absent(self._state.record.pulled_at, now, self._retention_s):
            self._afresh(cycle, now)
        else:
            whole = [self._read(node, seqs, cycle) for node, seqs in news.seqs.items()]
            if not all(whole):  # trimmed meanwhile, or not to be read: as good as a gap
                self._afresh(cycle, now)
        before = now - timedelta(seconds=self._retention_s)
        cycle.trimmed = self._reader.trim(listed, before=before)
        for node in [node for node in self._state.cursors if is_client(node) and node not in listed]:
            self._state.forget(node)
        if is_stale(self._state.record.pulled_at, now, self._retention_s):
            self._state.pulled(now)
        return cycle

    def _now(self) -> datetime:
        """The bucket's clock, exact to begin with: a node without a clock of its own may have been off for weeks."""
        if self._exact:
            return self._remote.now()
        now = self._remote.now(max_age_s=0.0)
        self._exact = True
        return now

    def _read(self, node: str, seqs: Sequence[int], cycle: Cycle) -> bool:
        """Apply the logs of one node; whether all that was read could be."""
        whole = True
        for some in self._reader.packs(node, seqs):
            for seq, found in self._reader.read(node, some):
                if isinstance(found, tuple):
                    self._apply(node, seq, *found, cycle)
                    continue
                if not isinstance(found, Missing):
                    cycle.unreadable.append(log_key(node, seq))
                whole = False
            self._state.read_up_to(node, some[-1])
        return whole

    def _afresh(self, cycle: Cycle, now: datetime) -> None:
        """Everything from a listing. Logs of clients are read all the same: they tell of what is not there yet."""
        cycle.fresh = True
        listed = self._reader.listed({}, bad=cycle.unreadable.append)
        fresh = Fresh(self._local, self._remote, self._runtime, node=self._state.node, down_s=self._down_s)
        fresh.run(cycle, self._state.record.queues)
        recent = now - timedelta(seconds=self._retention_s)
        for node, stats in listed.items():
            numbers = [seq for stat in stats if stat.modified >= recent for _, seq in [log_of(stat.key) or (node, 0)]]
            for some in self._reader.packs(node, numbers if is_client(node) else ()):
                self._read_again(node, some, fresh, cycle)
        fresh.drop(cycle)
        for node, seqs in _numbers(listed).items():
            if node != self._state.node:
                self._state.read_up_to(node, seqs[-1])
        self._state.pulled(now)

    def _read_again(self, node: str, some: Sequence[int], fresh: Fresh, cycle: Cycle) -> None:
        for seq, found in self._reader.read(node, some):
            if isinstance(found, tuple):
                fresh.keep(found[1])
                self._apply(node, seq, *found, cycle)
            elif not isinstance(found, Missing):
                cycle.unreadable.append(log_key(node, seq))

    def _apply(
        self, node: str, seq: int, header: LogHeader, lines: Iterable[Line], bad: Iterable[int], cycle: Cycle
    ) -> None:
        cycle.unreadable += [f"{log_key(node, seq)} line {n}" for n in bad]
        leases: list[LeaseLine] = []
        for line in lines:
            if isinstance(line, LeaseLine):
                leases.append(line)
            elif isinstance(line, PushLine | EndLine) and self._wanted(place_of(line).keys):
                try:
                    self._put(line, cycle, client=is_client(node))
                except DAMAGE:
                    cycle.unreadable.append(line.key)
        cycle.logs += 1
        for lease in leases:
            if self._wanted(QueueKeys(lease.root)):
                live_s = self._down_s + min(header.up_s, UP_MAX_S) + lease.ttl_s
                self._note(lease, node, seq, live_s, cycle)

    def _wanted(self, queue: QueueKeys) -> bool:
        queues = self._state.record.queues
        return queues is None or queue_name(queue) in queues

    def _put(self, line: PushLine | EndLine, cycle: Cycle, *, client: bool) -> None:
        """Make a line hold here; one of a client also in the bucket, for the client may have died before it did."""
        if isinstance(line, PushLine):
            data = line.data.encode() if line.data is not None else self._fetched(Key(line.key))
            if data is None:
                return
            if client:
                self._there.push(Key(line.key), data, look_first=True)
            applied = self._here.push(Key(line.key), data, look_first=True)
            cycle.pushes += applied.new
        else:
            receipt = line.receipt or self._receipt(line)
            if receipt is None:
                return
            if client:
                self._there.end(line, receipt, parts_from=self._remote, look_first=True)
            applied = self._here.end(line, receipt, parts_from=self._remote, look_first=True)
            cycle.ends += applied.new
        if applied.collision is not None:
            cycle.collisions.append(applied.collision)

    def _fetched(self, key: Key) -> bytes | None:
        """A task that the log only names. If the bucket no longer has it, it has ended, and a receipt says so."""
        try:
            return self._remote.get(key, size_max=ENTRY_BYTES_MAX).data
        except Missing:
            return None

    def _receipt(self, line: EndLine) -> Receipt | None:
        seen = self._there.storage(place_of(line).keys).receipt(Key(line.key)).read()
        return seen.value if seen else None

    def _note(self, line: LeaseLine, node: str, seq: int, live_s: float, cycle: Cycle) -> None:
        queue = QueueKeys(line.root)
        if not self._here.exists(queue.tasks(line.entry, batch=line.batch)):
            return
        other = self._leases.note(line, node=node, seq=seq, live_s=live_s)
        cycle.leases += line.held
        if other is not None:
            cycle.collisions.append(Collision("lease", queue_name(queue), line.entry, other))


def _numbers(listed: Mapping[str, Sequence[Stat]]) -> dict[str, list[int]]:
    """The numbers of the logs of each node."""
    return {node: [named[1] for stat in stats if (named := log_of(stat.key))] for node, stats in listed.items()}

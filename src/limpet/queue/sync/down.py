"""`Supervisor.down`: apply to this node what the other nodes and the clients did.

Logs are read in order behind a cursor for each node, which moves only after everything before it is applied. Applied
lines are not journaled again: every node reads the log that they came from. Where logs are missing, at a node's first
sync and after a long absence, a full ("fresh") pull compares listings instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from limpet.kernel import keys
from limpet.kernel.errors import Corrupt, Missing
from limpet.kernel.keys import Key, QueueKeys, batch_of, is_batch, log_key, name_of_receipt, queue_place
from limpet.kernel.lease import State
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Blob, Stat, batched
from limpet.queue.entry import ENTRY_BYTES_MAX
from limpet.queue.sync.apply import Applier, Collision, Cycle, RemoteLeases, queues_of, read_each
from limpet.queue.sync.decide import absent, entry_of_line, is_stale, unread
from limpet.queue.sync.log import Logs, ReadLog, list_logs, read_logs, trim_logs
from limpet.queue.sync.records import (
    DAMAGE,
    LINE_BYTES_MAX,
    UP_MAX_S,
    EndLine,
    LeaseLine,
    Line,
    PushLine,
    is_client,
    place_of,
    read_line,
)
from limpet.queue.sync.state import NodeState
from limpet.queue.sync.up import OWNER, lease_line

AT_ONCE = 16
BYTES_AT_ONCE = 16 * 1024 * 1024


class LogApplier:
    """Applies the logs of the others to one node."""

    def __init__(
        self,
        here: Applier,
        there: Applier,
        runtime: Runtime,
        state: NodeState,
        *,
        down_s: float,
        retention_s: float,
    ) -> None:
        self._here = here
        self._there = there
        self._remote = there.store
        self._state = state
        self._down_s = down_s
        self._retention_s = retention_s
        self._leases = RemoteLeases(here.store, runtime)
        self._exact = False

    def run(self, *, fresh: bool = False) -> Cycle:
        """Apply what is new. `fresh`: from a listing of the bucket, as after an absence or where logs are missing.

        An unreadable log or line is reported and skipped. After an unreadable log, or one of a newer Limpet, a fresh
        pull finds what it listed: a node writes its objects before the log.
        Raises: Unavailable, OutcomeUnknown: what was applied until then is not read again.
        Cost: 1 LIST per 1,000 logs, 1 GET for each new one, and for each node with new logs 1 GET + 1 PUT here;
        for each line as `Applier` says. Once a process 1 PUT + 1 HEAD for the bucket's clock.
        Crash: anywhere, the next cycle applies the rest again, which changes nothing.
        """
        cycle = Cycle("down")
        state = self._state
        now = self._now()
        listed = list_logs(self._remote, state.cursors, ours=state.node, bad=cycle.unreadable.append)
        state.seen_last = max(listed.get(state.node, ()), default=0)
        news = unread(listed, state.cursors, node=state.node)
        if fresh or news.gap or absent(state.record.pulled_at, now, self._retention_s):
            self._pull_afresh(cycle, now)
        else:
            complete = [self._read(node, seqs, listed, cycle) for node, seqs in news.seqs.items()]
            if not all(complete):  # trimmed meanwhile, or unreadable: equivalent to a gap
                self._pull_afresh(cycle, now)
        cycle.trimmed = trim_logs(
            self._remote, listed, ours=state.node, before=now - timedelta(seconds=self._retention_s)
        )
        for node in [node for node in state.cursors if is_client(node) and node not in listed]:
            state.forget(node)
        if is_stale(state.record.pulled_at, now, self._retention_s):
            state.change(pulled_at=now)
        return cycle

    def _now(self) -> datetime:
        """The bucket's clock, exact the first time: a node without a clock battery may have been off for weeks."""
        now = self._remote.now() if self._exact else self._remote.now(max_age_s=0.0)
        self._exact = True
        return now

    def _read(self, node: str, seqs: Sequence[int], listed: Logs, cycle: Cycle) -> bool:
        """Apply the logs of one node; returns whether all of them were readable."""
        complete = True
        for some in _packed(node, seqs, listed):
            for seq, found in read_logs(self._remote, node, some):
                if isinstance(found, tuple):
                    self._apply(node, seq, found, cycle)
                    continue
                if not isinstance(found, Missing):
                    cycle.unreadable.append(log_key(node, seq))
                complete = False
            self._state.read_up_to(node, some[-1])
        return complete

    def _pull_afresh(self, cycle: Cycle, now: datetime) -> None:
        """Pull everything from a listing. Logs of clients are read as well: their objects may not be written yet."""
        cycle.fresh = True
        state = self._state
        listed = list_logs(self._remote, {}, ours=state.node, bad=cycle.unreadable.append)
        pull = _FreshPull(self._here, self._there, self._leases, state, cycle, self._down_s)
        pull.run()
        recent = now - timedelta(seconds=self._retention_s)
        for node, logs in listed.items():
            seqs = [seq for seq, stat in logs.items() if stat.modified >= recent] if is_client(node) else []
            for some in _packed(node, seqs, listed):
                for seq, found in read_logs(self._remote, node, some):
                    if isinstance(found, tuple):
                        pull.keep(found[1])
                        self._apply(node, seq, found, cycle)
                    elif not isinstance(found, Missing):
                        cycle.unreadable.append(log_key(node, seq))
        pull.drop()
        for node, logs in listed.items():
            if node != state.node:
                state.read_up_to(node, max(logs))
        state.change(pulled_at=now)

    def _apply(self, node: str, seq: int, log: ReadLog, cycle: Cycle) -> None:
        """Apply one log; leases last, so that they are not stored for entries which the same log ends."""
        header, lines, bad = log
        cycle.unreadable += [f"{log_key(node, seq)} line {n}" for n in bad]
        for line in lines:
            if isinstance(line, PushLine | EndLine) and self._is_wanted(place_of(line).keys):
                try:
                    self._put(line, cycle, client=is_client(node))
                except DAMAGE:
                    cycle.unreadable.append(line.key)
        cycle.logs += 1
        for line in lines:
            if isinstance(line, LeaseLine) and self._is_wanted(QueueKeys(line.root)):
                live_s = self._down_s + min(header.up_s, UP_MAX_S) + line.ttl_s
                self._note(line, node, seq, live_s, cycle)

    def _is_wanted(self, queue: QueueKeys) -> bool:
        queues = self._state.record.queues
        return queues is None or queue.name in queues

    def _put(self, line: PushLine | EndLine, cycle: Cycle, *, client: bool) -> None:
        """Apply a line here; a client's line also to the bucket, for the client may have died before it did."""
        if isinstance(line, PushLine):
            data = line.data.encode() if line.data is not None else self._fetch(Key(line.key))
            if data is None:
                return
            if client:
                self._there.push(Key(line.key), data, look_first=True)
            outcome = self._here.push(Key(line.key), data, look_first=True)
            cycle.pushes += outcome.new
        else:
            receipt = line.receipt
            if receipt is None:
                seen = self._there.storage(place_of(line).keys).receipt(Key(line.key)).read()
                if seen is None:
                    return
                receipt = seen.value
            if client:
                self._there.end(line, receipt, parts_from=self._remote, look_first=True)
            outcome = self._here.end(line, receipt, parts_from=self._remote, look_first=True)
            cycle.ends += outcome.new
        cycle.collided(outcome.collision)

    def _fetch(self, key: Key) -> bytes | None:
        """A task that the log only names; None if the bucket no longer has it: it has ended, and has a receipt."""
        try:
            return self._remote.get(key, size_max=ENTRY_BYTES_MAX).data
        except Missing:
            return None

    def _note(self, line: LeaseLine, node: str, seq: int, live_s: float, cycle: Cycle) -> None:
        queue = QueueKeys(line.root)
        if not self._here.storage(queue).exists(queue.tasks(line.entry, batch=line.batch)):
            return
        other = self._leases.note(line, node=node, seq=seq, live_s=live_s)
        cycle.leases += line.held
        if other is not None:
            cycle.collided(Collision("lease", queue.name, line.entry, other))


@dataclass
class _FreshPull:
    """One fresh pull of one node: `run`, then `keep` for the lines of clients, then `drop`.

    The order of the listings matters. Entries that wait here are listed first, then the outbox, then the bucket: so an
    entry that is in neither of the latter two was sent, and has ended there.
    """

    here: Applier
    there: Applier
    leases: RemoteLeases
    state: NodeState
    cycle: Cycle
    down_s: float
    doubtful: dict[tuple[QueueKeys, str], list[Key]] = field(default_factory=dict)
    """Waiting entries that may have ended in the bucket."""
    unsure: bool = False
    """Whether an outbox entry was damaged."""

    def run(self) -> None:
        """Apply every receipt, every waiting task and every held lease of the bucket.

        Cost: 1 LIST per 1,000 objects on both sides; 1 GET for each that is not here, and what it costs to apply.
        """
        wanted = self._queues()
        for queue in wanted:
            for key, entry in _tasks([*self.here.store.list(queue.pending), *self.here.store.list(queue.scheduled)]):
                self.doubtful.setdefault((queue, entry), []).append(key)
        self._keep_unsent()
        for queue in wanted:
            self._pull(queue)

    def keep(self, lines: Iterable[Line]) -> None:
        """Do not drop the entries of these pushes: the bucket may not have them yet."""
        for line in lines:
            if isinstance(line, PushLine):
                root, entry = entry_of_line(line)
                self.doubtful.pop((QueueKeys(root), entry), None)

    def drop(self) -> None:
        """Remove entries that wait here and not in the bucket: they ended there, and their receipts have expired.

        Nothing is removed if an outbox entry of this node was damaged: it may have noted a push that was never sent.
        Cost: 3 DELETEs an entry here.
        """
        if self.unsure:
            return
        for (queue, entry), keys_ in self.doubtful.items():
            self.here.store.delete_many(keys_)
            self.here.close(queue, entry, batch=is_batch(entry))
            self.cycle.dropped += 1

    def _queues(self) -> list[QueueKeys]:
        queues = self.state.record.queues
        if queues is not None:
            return [QueueKeys.of(name) for name in queues]
        return queues_of(self.here.store, self.there.store, bad=self.cycle.unreadable.append)

    def _keep_unsent(self) -> None:
        bad: list[str] = []
        notes = (stat.key for stat in self.here.store.list(keys.OUTBOX))
        for key, blob in read_each(self.here.store, notes, size_max=LINE_BYTES_MAX, bad=bad.append):
            try:
                self.keep([read_line(blob.data, what=key)])
            except Corrupt:
                bad.append(key)
        self.cycle.unreadable += bad
        self.unsure = bool(bad) or self.state.has_damage()

    def _pull(self, queue: QueueKeys) -> None:
        """Pull one queue. Waiting entries are listed before receipts: one that ends meanwhile is in both, and ended."""
        listed = [*self.there.store.list(queue.pending), *self.there.store.list(queue.scheduled)]
        ended = self._pull_receipts(queue)
        waiting = {key: entry for key, entry in _tasks(listed) if entry not in ended}
        for entry in waiting.values():
            self.doubtful.pop((queue, entry), None)
        here = {stat.key for stat in [*self.here.store.list(queue.pending), *self.here.store.list(queue.scheduled)]}
        bad = self.cycle.unreadable.append
        missing = [key for key in waiting if key not in here]
        for key, blob in read_each(self.there.store, missing, size_max=ENTRY_BYTES_MAX, bad=bad):
            self.cycle.pushes += self.here.push(key, blob.data, look_first=True).new
        leases = [stat.key for stat in listed if stat.key.endswith("/lease.json")]
        for key, blob in read_each(self.there.store, leases, size_max=RECORD_BYTES_MAX, bad=bad):
            self._note(queue, key, blob)

    def _pull_receipts(self, queue: QueueKeys) -> set[str]:
        """Apply every receipt that is not here; returns the names of all.

        For a batch with failures here, the bucket's receipt is read in any case: per task, completed beats failed.
        """
        failed, completed = (
            ({stat.key for stat in self.there.store.list(prefix)}, {stat.key for stat in self.here.store.list(prefix)})
            for prefix in (queue.failed, queue.completed)
        )
        parts = [part for key in failed[1] if (part := batch_of(name_of_receipt(key)))]
        doubtful = {queue.completed_of(entry) for entry, _ in parts} & completed[0]
        wanted = sorted(failed[0] - failed[1] | completed[0] - completed[1] | doubtful)
        bad = self.cycle.unreadable.append
        for key, blob in read_each(self.there.store, wanted, size_max=RECORD_BYTES_MAX, bad=bad):
            name = name_of_receipt(key)
            try:
                seen = self.there.storage(queue).receipt(key).decode(blob)
                line = EndLine(key=key, entry=name, batch=is_batch(name), write_id=seen.header.write_id)
                outcome = self.here.end(line, seen.value, parts_from=self.there.store, look_first=True)
                self.cycle.ends += outcome.new
            except DAMAGE:
                bad(key)
        return {name_of_receipt(key) for key in failed[0] | completed[0]}

    def _note(self, queue: QueueKeys, key: Key, blob: Blob) -> None:
        """Store a lease of the bucket as if log 0 of its node had reported it, so that any log is newer."""
        entry = key.rsplit("/", 2)[1]
        try:
            record = self.there.storage(queue).lease(entry).decode(blob).value
        except DAMAGE:
            self.cycle.unreadable.append(key)
            return
        if record.state is not State.HELD or record.worker_id == OWNER + self.state.node:
            return
        line = lease_line(queue.root, entry, is_batch(entry), record)
        if self.here.storage(queue).exists(queue.tasks(entry, batch=line.batch)):
            node = record.worker_id.removeprefix(OWNER)
            self.leases.note(line, node=node, seq=0, live_s=self.down_s + record.ttl_s)
            self.cycle.leases += 1


def _packed(node: str, seqs: Iterable[int], listed: Logs) -> Iterator[list[int]]:
    """Yield the numbers of some logs at a time."""
    return batched(seqs, lambda seq: listed[node][seq].size, size=BYTES_AT_ONCE, count=AT_ONCE)


def _tasks(listing: Iterable[Stat]) -> Iterator[tuple[Key, str]]:
    """Yield the tasks and batches in a listing of waiting and scheduled objects, with the entry of each."""
    for stat in listing:
        place = queue_place(stat.key)
        if place is not None and place.kind in ("single", "batch", "scheduled"):
            yield stat.key, place.name

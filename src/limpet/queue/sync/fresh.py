"""Pulling afresh: at a node's first sync, after a long absence, and where logs are missing, from a listing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from limpet import keys
from limpet.errors import Corrupt
from limpet.keys import Key, QueueKeys, queue_place
from limpet.lease import State
from limpet.queue.entry import ENTRY_BYTES_MAX, batch_of, is_batch, name_of_receipt
from limpet.queue.sync.apply import Applier
from limpet.queue.sync.decide import entry_of_line
from limpet.queue.sync.lease_down import RemoteLeases
from limpet.queue.sync.lease_up import OWNER
from limpet.queue.sync.objects import DAMAGE, each, queues_of
from limpet.queue.sync.records import LINE_BYTES_MAX, EndLine, LeaseLine, Line, PushLine, read_line
from limpet.queue.sync.report import Cycle
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import Runtime
from limpet.store.api import Blob, Stat, Store

Entry = tuple[QueueKeys, str]


class Fresh:
    """One fresh pull of one node: `run`, then `keep` for what clients tell, then `drop`.

    The order of the listings matters. Entries that wait here are listed first, then the outbox, then the bucket: so an
    entry that is in none of the latter two was sent, and has ended there.
    """

    def __init__(self, local: Store, remote: Store, runtime: Runtime, *, node: str, down_s: float) -> None:
        self._local = local
        self._remote = remote
        self._runtime = runtime
        self._node = node
        self._down_s = down_s
        self._here = Applier(local, runtime, remote=False)
        self._there = Applier(remote, runtime, remote=True)
        self._leases = RemoteLeases(local, runtime)
        self._doubtful: dict[Entry, list[Key]] = {}
        self._unsure = False

    def run(self, cycle: Cycle, queues: Sequence[str] | None) -> None:
        """Bring every receipt, every waiting task and every held lease of the bucket here.

        Cost: 1 LIST per 1,000 objects on both sides; 1 GET for each that is not here, and what it takes here.
        """
        wanted = self._queues(queues, cycle)
        for queue in wanted:
            for key, entry in _tasks([*self._local.list(queue.pending), *self._local.list(queue.scheduled)]):
                self._doubtful.setdefault((queue, entry), []).append(key)
        self._keep_unsent(cycle)
        for queue in wanted:
            self._pull(queue, cycle)

    def keep(self, lines: Iterable[Line]) -> None:
        """What a client tells of may be on its way to the bucket still."""
        for line in lines:
            if isinstance(line, PushLine):
                root, entry = entry_of_line(line)
                self._doubtful.pop((QueueKeys(root), entry), None)

    def drop(self, cycle: Cycle) -> None:
        """Remove what waits here and not in the bucket: it has ended there, so long ago that no receipt is left.

        Nothing goes while a note of this node is damaged: it may have been of a push that was never sent.
        Cost: 3 DELETEs an entry here.
        """
        if self._unsure:
            return
        for (queue, entry), keys_ in self._doubtful.items():
            self._local.delete_many(keys_)
            self._here.close(queue, entry, batch=is_batch(entry))
            cycle.dropped += 1

    def _queues(self, queues: Sequence[str] | None, cycle: Cycle) -> list[QueueKeys]:
        if queues is not None:
            return [QueueKeys.of(name) for name in queues]
        return queues_of(self._local, self._remote, bad=cycle.unreadable.append)

    def _keep_unsent(self, cycle: Cycle) -> None:
        bad: list[str] = []
        notes = (stat.key for stat in self._local.list(keys.OUTBOX))
        for key, blob in each(self._local, notes, size_max=LINE_BYTES_MAX, bad=bad.append):
            try:
                self.keep([read_line(blob.data, what=key)])
            except Corrupt:
                bad.append(key)
        cycle.unreadable += bad
        self._unsure = bool(bad) or any(True for _ in self._local.list(keys.DAMAGED))

    def _pull(self, queue: QueueKeys, cycle: Cycle) -> None:
        """Waiting entries are listed before receipts: one that ends meanwhile is then in both, and counts as ended."""
        listed = [*self._remote.list(queue.pending), *self._remote.list(queue.scheduled)]
        ended = self._pull_receipts(queue, cycle)
        waiting = {key: entry for key, entry in _tasks(listed) if entry not in ended}
        for entry in waiting.values():
            self._doubtful.pop((queue, entry), None)
        here = {stat.key for stat in [*self._local.list(queue.pending), *self._local.list(queue.scheduled)]}
        bad = cycle.unreadable.append
        absent = [key for key in waiting if key not in here]
        for key, blob in each(self._remote, absent, size_max=ENTRY_BYTES_MAX, bad=bad):
            cycle.pushes += self._here.push(key, blob.data, look_first=True).new
        leases = [stat.key for stat in listed if stat.key.endswith("/lease.json")]
        for key, blob in each(self._remote, leases, size_max=RECORD_BYTES_MAX, bad=bad):
            self._lease(queue, key, blob, cycle)

    def _pull_receipts(self, queue: QueueKeys, cycle: Cycle) -> set[str]:
        """Bring every receipt that is not here; the names of all.

        Of a batch with failures here the bucket's receipt is read in any case: per task, completed beats failed.
        """
        failed, completed = (
            ({stat.key for stat in self._remote.list(prefix)}, {stat.key for stat in self._local.list(prefix)})
            for prefix in (queue.failed, queue.completed)
        )
        parts = [part for key in failed[1] if (part := batch_of(name_of_receipt(key)))]
        doubtful = {queue.completed_of(entry) for entry, _ in parts} & completed[0]
        wanted = sorted(failed[0] - failed[1] | completed[0] - completed[1] | doubtful)
        for key, blob in each(self._remote, wanted, size_max=RECORD_BYTES_MAX, bad=cycle.unreadable.append):
            self._end(queue, key, blob, cycle)
        return {name_of_receipt(key) for key in failed[0] | completed[0]}

    def _end(self, queue: QueueKeys, key: Key, blob: Blob, cycle: Cycle) -> None:
        name = name_of_receipt(key)
        try:
            seen = self._there.storage(queue).receipt(key).decode(blob)
            line = EndLine(key=key, entry=name, batch=is_batch(name), write_id=seen.header.write_id)
            cycle.ends += self._here.end(line, seen.value, parts_from=self._remote, look_first=True).new
        except DAMAGE:
            cycle.unreadable.append(key)

    def _lease(self, queue: QueueKeys, key: Key, blob: Blob, cycle: Cycle) -> None:
        """A lease that stands in the bucket: as if told by a log of number 0, so that any log is newer."""
        entry = key.rsplit("/", 2)[1]
        try:
            record = self._there.storage(queue).lease(entry).decode(blob).value
        except DAMAGE:
            cycle.unreadable.append(key)
            return
        if record.state is not State.HELD or record.worker_id == OWNER + self._node:
            return
        line = LeaseLine(
            root=queue.root,
            entry=entry,
            batch=is_batch(entry),
            held=True,
            worker_id=record.worker_id,
            label=record.label,
            token=record.token,
            ttl_s=record.ttl_s,
        )
        if self._here.exists(queue.tasks(entry, batch=line.batch)):
            node = record.worker_id.removeprefix(OWNER)
            self._leases.note(line, node=node, seq=0, live_s=self._down_s + record.ttl_s)
            cycle.leases += 1


def _tasks(listing: Iterable[Stat]) -> Iterator[tuple[Key, str]]:
    """The tasks and batches in a listing of what waits or is scheduled, and the entry of each."""
    for stat in listing:
        place = queue_place(stat.key)
        if place is not None and place.kind in ("single", "batch", "scheduled"):
            yield stat.key, place.name

"""Publishing the leases that workers of a node hold, so that others leave those entries alone.

This saves work and promises nothing: nodes hear of each other only now and then, so two of them may run one task, and
a supervised claim's token fences nothing beyond its own node.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from limpet.cell import Lost, Replaced, Unclear, Versioned, Won
from limpet.errors import OutcomeUnknown
from limpet.keys import Key, QueueKeys
from limpet.lease import State, VersionWatch
from limpet.queue.entry import EntryLease
from limpet.queue.sync.apply import Applier
from limpet.queue.sync.decide import let_go, published
from limpet.queue.sync.objects import DAMAGE, queue_name
from limpet.queue.sync.records import HeldLine, LeaseLine
from limpet.queue.sync.report import Collision
from limpet.runtime import Runtime
from limpet.store.api import Store

SWAPS_MAX = 4
OWNER = "node:"


@dataclass(frozen=True, slots=True)
class Told:
    """`held`: a worker here still holds the entry. `line`: what the others are told."""

    held: bool
    line: LeaseLine | None = None
    collision: Collision | None = None


class LeaseUp:
    """Publishes the leases of one node, by create or swap; a live foreign lease wins."""

    def __init__(self, local: Store, remote: Store, runtime: Runtime, *, up_s: float) -> None:
        self._local = local
        self._remote = remote
        self._runtime = runtime
        self._up_s = up_s
        self._here = Applier(local, runtime, remote=False)
        self._there = Applier(remote, runtime, remote=True)
        self._sightings = VersionWatch(runtime)
        self._ours: dict[Key, Versioned[EntryLease]] = {}
        self._collided: set[tuple[Key, str]] = set()

    def tell(self, note: HeldLine, *, node: str) -> Told:
        """Publish one lease, renew it, or let it go.

        Raises: OutcomeUnknown, Unavailable: to be done again.
        Cost: 1 GET here; there 1 PUT for a renewal, else 1 GET + 1 PUT (+ 1 HEAD for the first lease of an entry).
        """
        queue = QueueKeys(note.root)
        try:
            lease = self._here.storage(queue).lease(note.entry).read()
            if lease is None or lease.value.state is not State.HELD or self._ran_out(lease):
                return self._let_go(note, queue, node)
            foreign = self._publish(note, queue, lease.value, node)
        except DAMAGE:
            return Told(held=False)  # whoever claims it next puts it into failed/
        if foreign is not None:
            return Told(held=True, collision=self._collision(queue, note.entry, foreign))
        return Told(held=True, line=_line(note, lease.value, held=True))

    def _ran_out(self, lease: Versioned[EntryLease]) -> bool:
        assert lease.modified is not None
        return self._local.now() > lease.modified + timedelta(seconds=lease.value.ttl_s + 1)

    def _publish(self, note: HeldLine, queue: QueueKeys, local: EntryLease, node: str) -> EntryLease | None:
        """Make the bucket's lease ours; the foreign one that is in the way."""
        cell = self._there.storage(queue).lease(note.entry)
        seen = self._ours.pop(cell.key, None) or cell.read()
        if seen is None and not self._there.exists(queue.tasks(note.entry, batch=note.batch)):
            return None  # it has ended there, or never came: nobody could claim it
        for _ in range(SWAPS_MAX):
            ours = published(
                seen.value if seen else None,
                local,
                owner=OWNER + node,
                hold_s=local.ttl_s + self._up_s,
                modified=seen.modified if seen else None,
                unchanged_s=self._sightings.unchanged_s(cell.key, seen.version) if seen else 0.0,
                now=self._remote.now(),
                wall=self._runtime.wall(),
            )
            if ours is None:
                return seen.value if seen else None
            match cell.attempt(seen, ours):
                case Won(mine):
                    self._ours[cell.key] = mine
                    return None
                case Replaced(_, now) | Lost(now) | Unclear(now):
                    seen = now
        raise OutcomeUnknown(f"{cell.key} is swapped all the time")

    def _let_go(self, note: HeldLine, queue: QueueKeys, node: str) -> Told:
        """No worker here holds it any more. If it has ended, the end says so."""
        cell = self._there.storage(queue).lease(note.entry)
        self._ours.pop(cell.key, None)
        seen = cell.read()
        freed = let_go(seen.value if seen else None, owner=OWNER + node)
        if seen is None or freed is None:
            return Told(held=False)
        cell.attempt(seen, freed)
        if self._here.storage(queue).ended(note.entry):
            return Told(held=False)
        return Told(held=False, line=_line(note, freed, held=False))

    def _collision(self, queue: QueueKeys, entry: str, foreign: EntryLease) -> Collision | None:
        """Told once for each of the others."""
        met = (queue.lease(entry), foreign.worker_id)
        if met in self._collided or foreign.state is not State.HELD:
            return None
        self._collided.add(met)
        return Collision("lease", queue_name(queue), entry, foreign.label)


def _line(note: HeldLine, record: EntryLease, *, held: bool) -> LeaseLine:
    return LeaseLine(
        root=note.root,
        entry=note.entry,
        batch=note.batch,
        held=held,
        worker_id=record.worker_id,
        label=record.label,
        token=record.token,
        ttl_s=record.ttl_s,
    )

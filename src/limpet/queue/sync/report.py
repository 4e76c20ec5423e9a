"""What a cycle of the supervisor did, for people and for machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

CollisionKind = Literal["run", "lease", "payload"]


@dataclass(frozen=True, slots=True)
class Collision:
    """Two sides did the same. None of them loses anything; it tells whether the intervals fit the work.

    `run`: a task was run to its end twice. `lease`: a worker here holds what another one holds, too. `payload`: one id
    was pushed with two payloads, and only one of them counts.
    """

    kind: CollisionKind
    queue: str
    entry: str
    other: str


@dataclass(slots=True)
class Cycle:
    """One `up` or `down`: how many pushes, ends and leases went which way, and in how many logs."""

    direction: Literal["up", "down"]
    pushes: int = 0
    ends: int = 0
    leases: int = 0
    logs: int = 0
    trimmed: int = 0
    dropped: int = 0
    """Pending entries that went because the bucket no longer has them."""
    fresh: bool = False
    """Whether everything was pulled from a listing, instead of the logs."""
    collisions: list[Collision] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Objects that are not what Limpet wrote, and `LOG line N`. Everything else goes on; each is told of once.

    Those of the bucket stay where they are, those of the node itself are in `sync/damaged/`.
    """

    @property
    def quiet(self) -> bool:
        """Whether nothing happened that anybody need hear of."""
        counts = (self.pushes, self.ends, self.leases, self.dropped, self.fresh, self.collisions, self.unreadable)
        return not any(counts)

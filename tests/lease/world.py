"""Processes that share one bucket and one hand-moved clock, each behind a scripted network of its own."""

from __future__ import annotations

from limpet.kernel.keys import lock_key
from limpet.kernel.lease import Lease, LeaseRecord, Lock, State, VersionWatch
from limpet.kernel.store import MemoryStore
from support.clock import ManualRuntime, Time
from support.stores import ScriptedStore

__all__ = ["TTL_S", "Process", "World", "won"]

TTL_S = 30.0


class Process:
    """One process: a runtime, a store and what it saw."""

    def __init__(self, world: World, owner: str, *, wall_offset_s: float = 0.0) -> None:
        self.runtime = ManualRuntime(world.time, owner, wall_offset_s=wall_offset_s)
        self.store = ScriptedStore(self.runtime, world.memory)
        self.sightings = VersionWatch(self.runtime)

    def lock(self, name: str = "backup", ttl_s: float = TTL_S, *, look_first: bool = False) -> Lock:
        """A new handle."""
        return Lock(self.store, lock_key(name), name, ttl_s, self.runtime, self.sightings, look_first=look_first)


class World:
    """The bucket and the clock."""

    def __init__(self) -> None:
        self.time = Time()
        self.memory = MemoryStore(ManualRuntime(self.time, "store"))

    def process(self, owner: str, *, wall_offset_s: float = 0.0) -> Process:
        """A process starts."""
        return Process(self, owner, wall_offset_s=wall_offset_s)

    def record(self, name: str = "backup") -> LeaseRecord:
        """The record as it stands."""
        found = self.process("looker").lock(name).peek()
        assert found is not None
        return found

    def facts(self, name: str = "backup") -> tuple[State, int, str]:
        """State, token and owner of the record as it stands."""
        found = self.record(name)
        return found.state, found.token, found.worker_id


def won(outcome: object) -> Lease:
    """The lease that an acquire must have given."""
    assert isinstance(outcome, Lease), outcome
    return outcome

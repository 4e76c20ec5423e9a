"""The processes of a run: each slot has turns to play, dies, and starts again as a new process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from limpet.errors import Held, LeaseLost, OutcomeUnknown, Unavailable
from limpet.sim.client import Client
from limpet.sim.linear import History
from limpet.sim.world import Process, Violation, World

__all__ = ["Actor", "Cast", "perform"]


class Actor(Client, ABC):
    """A client with a program: one of its turns after another."""

    @abstractmethod
    def turns(self) -> list[tuple[float, Callable[[], None]]]:
        """What it may do, with the share of each; the last one takes the rest."""

    def turn(self) -> None:
        """Do one of them. The errors that every caller must expect end the turn, not the run."""
        turns = self.turns()
        at = self.chance()
        while len(turns) > 1 and at >= turns[0][0]:
            at -= turns.pop(0)[0]
        with suppress(Held, LeaseLost, OutcomeUnknown, Unavailable):
            turns[0][1]()


class Cast(ABC):
    """Some slots of processes in one world, and the history of what they were told."""

    def __init__(self, world: World, *, slots: int, turns: int) -> None:
        self.world = world
        self.history = History()
        self.living: list[Process] = []
        self._turns_left = {f"p{i}": turns for i in range(slots)}
        self._playing = slots

    @abstractmethod
    def act(self) -> None:
        """The whole run, checks included.   Raises: Violation."""

    @abstractmethod
    def actor(self, process: Process) -> Actor:
        """The program of a process."""

    def play(self, nemesis: Callable[[], None], *, until_s: float) -> None:
        """Let every slot play its turns while `nemesis` torments them."""
        for slot in self._turns_left:
            self.launch(slot, 1)
        self.world.spawn(self.world.start("nemesis"), nemesis)
        self.world.run(until_s=until_s, done=lambda: self._playing == 0)
        self.fail_on_error()

    def launch(self, slot: str, life: int) -> None:
        """Start the slot's process."""
        process = self.world.start(f"{slot}#{life}")
        actor = self.actor(process)
        self.living.append(process)
        self.world.spawn(process, lambda: self._live(actor, slot))

    def relaunch(self, dead: Process) -> None:
        """Start the next process of the slot whose process has died."""
        slot, life = dead.name.split("#")
        self.launch(slot, int(life) + 1)

    def restart(self, dead: Process) -> None:
        """After a crash the slot's next process starts, a little later."""
        self.living.remove(dead)
        self.world.later(5 * self.world.chance(31, dead.index), lambda: self.relaunch(dead))

    def fail_on_error(self) -> None:
        """An error that no caller should ever see is a violation."""
        if isinstance(self.world.failure, Violation):
            raise self.world.failure
        if self.world.failure is not None:
            raise Violation(f"unexpected {self.world.failure!r}") from self.world.failure

    def _live(self, actor: Actor, slot: str) -> None:
        while self._turns_left[slot] > 0:
            self._turns_left[slot] -= 1
            actor.turn()
        self.living.remove(actor.process)
        self._playing -= 1


def perform(world: World, cast: Cast) -> tuple[World, Violation | None]:
    """Run the cast: the world as it ended, and the invariant that broke, if one did."""
    violation: Violation | None = None
    try:
        cast.act()
    except Violation as found:
        violation = found
    finally:
        world.close()
    return world, violation

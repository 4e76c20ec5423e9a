"""Requests between processes: lost, answered in vain, sent twice, delivered long after newer ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from limpet.errors import LimpetError, OutcomeUnknown
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Flight, Process, World, mix

__all__ = ["WIRE_FAULTS", "Wire"]

S = TypeVar("S")

WIRE_FAULTS = ("lost_request", "lost_reply", "late", "duplicate", "slow")


class Wire:
    """The network between the processes of a run."""

    def __init__(self, world: World, fault_rate: float) -> None:
        self._world = world
        self._fault_rate = fault_rate
        self._sent: Counter[int] = Counter()

    def call(
        self,
        caller: SimRuntime,
        step: str,
        find: Callable[[], tuple[Process, S] | None],
        work: Callable[[S], Any],
        *,
        patience_s: float,
        nobody: LimpetError | None = None,
    ) -> Any:
        """Have `work` done by whoever `find` finds when the request arrives, in a task of its process.

        Raises: what `work` raises there; OutcomeUnknown when no answer comes in time; `nobody`, if it is given, when
        nobody is there to connect to.
        """
        world, process = self._world, caller.process
        world.check_alive(process)
        self._sent[process.index] += 1
        sent = self._sent[process.index]
        fault = self._fault(process, sent)
        world.coverage[fault or "none", step] += 1
        near, far = (world.chance(n, process.index, sent) for n in (82, 83))
        answers: list[tuple[Any, LimpetError | None]] = []
        answered = caller.flag()

        def deliver(result: Any, error: LimpetError | None) -> None:
            answers.append((result, error))
            answered.set()

        def arrive(*, reply: bool) -> None:
            found = find()
            if found is not None and found[0].alive:
                back_s = 0.005 + 0.02 * far if reply else None
                world.spawn(found[0], partial(self._serve, found[1], work, deliver, back_s), name="rpc")
            elif nobody is not None and reply:
                deliver(None, nobody)

        process.in_flight[-sent] = Flight(step, partial(arrive, reply=False))
        world.passing(step, process)
        if fault == "late":
            world.later(patience_s * (1 + 12 * near), process.in_flight.pop(-sent).land)
        else:
            world.pause(0.005 + 0.02 * near * (100 if fault == "slow" else 1))
            process.in_flight.pop(-sent, None)
            if fault == "duplicate":
                world.later(8 * patience_s * far * far, partial(arrive, reply=False))
            if fault not in ("lost_request", "cut_off"):
                arrive(reply=fault != "lost_reply")
        answered.wait(patience_s)
        if not answers:
            world.note(process.name, step, result="no answer", fault=fault)
            raise OutcomeUnknown("no answer came")
        result, error = answers[0]
        world.note(process.name, step, result=type(error).__name__ if error else "ok", fault=fault)
        if error is not None:
            raise error
        return result

    def _serve(
        self,
        server: S,
        work: Callable[[S], Any],
        deliver: Callable[[Any, LimpetError | None], None],
        back_s: float | None,
    ) -> None:
        """Do it; the answer is delivered after so long, or never."""
        result, error = None, None
        try:
            result = work(server)
        except LimpetError as raised:
            error = raised
        if back_s is not None:
            self._world.later(back_s, partial(deliver, result, error))

    def _fault(self, process: Process, sent: int) -> str:
        world = self._world
        if process.cut_off_until_s > world.now_s and not world.healed:
            return "cut_off"
        if world.chance(80, process.index, sent) >= self._fault_rate:
            return ""
        kind = WIRE_FAULTS[mix(world.seed, 81, process.index, sent) % len(WIRE_FAULTS)]
        return kind if world.strike(f"{process.name}/rpc{sent}", kind) else ""

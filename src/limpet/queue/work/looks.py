"""`Looks`: which queue a worker looks at next, and when. Looking at an empty queue costs a request."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.runtime import Runtime

FIRST_S = 0.2
GROWTH = 1.5
BUSY_S = 1.0
IDLE_S = 24.0
TROUBLE_S = 30.0


@dataclass(slots=True)
class _Gate:
    """What is known of one queue. `hot`: the last look found something, so every thread may look again at once."""

    hot: bool = False
    pause_s: float = FIRST_S
    open_at_s: float = float("-inf")
    troubles: int = 0


class Looks:
    """Shared by the threads of one worker.

    A queue found empty is looked at again after a pause that grows, by one thread at a time; the pause counts from the
    beginning of a look. All queues together are looked at about once a second while any of them has work, and once in
    24 s when none has: more queues, or more threads, cost no more requests.

    `in_order`: an earlier queue comes first. Otherwise the queue that gave something goes to the end of the line.
    """

    def __init__(self, queues: int, runtime: Runtime, *, in_order: bool) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._gates = [_Gate() for _ in range(queues)]
        self._line: list[int] = list(range(queues))
        self._in_order = in_order

    def take(self) -> int | None:
        """The queue to look at now; None when it is too early for each. Tell then what came of it."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            for n in self._line:
                gate = self._gates[n]
                if gate.open_at_s <= at_s:
                    if not gate.hot:
                        gate.open_at_s = at_s + gate.pause_s * self._runtime.rng.uniform(0.9, 1.0)
                    return n
        return None

    def found(self, n: int) -> None:
        """There was something. The others are looked at soon: work brings work."""
        at_s = self._runtime.elapsed_s()
        soon_s = BUSY_S * len(self._gates)
        with self._mutex:
            for gate in self._gates:
                gate.pause_s = min(gate.pause_s, soon_s)
                gate.open_at_s = min(gate.open_at_s, at_s + soon_s)
            self._gates[n] = _Gate(hot=True)
            if not self._in_order:
                self._line.remove(n)
                self._line.append(n)

    def empty(self, n: int) -> None:
        """There was nothing."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            gate = self._gates[n]
            gate.troubles = 0
            if gate.hot:
                self._gates[n] = _Gate(open_at_s=at_s + FIRST_S)
            else:
                gate.pause_s = min(gate.pause_s * GROWTH, IDLE_S * len(self._gates))

    def later(self, n: int, after_s: float) -> None:
        """It could not be looked at: not before so many seconds."""
        with self._mutex:
            self._gates[n].open_at_s = self._runtime.elapsed_s() + after_s

    def trouble(self, n: int) -> int:
        """The store failed: not before a second, then two, up to 30. How often in a row."""
        with self._mutex:
            gate = self._gates[n]
            gate.hot = False
            gate.troubles += 1
            gate.open_at_s = self._runtime.elapsed_s() + min(TROUBLE_S, 2.0 ** (gate.troubles - 1))
            return gate.troubles

    def trouble_wait_s(self) -> float:
        """How long until every queue at which the last look failed may be looked at; 0.0 if there is none."""
        with self._mutex:
            at_s = self._runtime.elapsed_s()
            return max((max(gate.open_at_s - at_s, FIRST_S) for gate in self._gates if gate.troubles), default=0.0)

    def wake(self, n: int) -> None:
        """Something has changed there: it may be looked at now."""
        with self._mutex:
            self._gates[n].open_at_s = float("-inf")

    def line(self) -> list[int]:
        """All queues, in the order in which they are looked at."""
        with self._mutex:
            return [*self._line]

    def wait_s(self) -> float:
        """How long until a queue may be looked at."""
        with self._mutex:
            return max(0.0, min(gate.open_at_s for gate in self._gates) - self._runtime.elapsed_s())

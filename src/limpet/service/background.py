"""What a service does beside answering: writing down the newest commit, and loops that come round now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from limpet.catalog import Published, Publisher
from limpet.errors import LimpetError
from limpet.runtime import Runtime, Worker
from limpet.service.metrics import Counter, Histogram

__all__ = ["Afterwards", "Loop", "Measured"]

IDLE_S = 5.0


class Measured:
    """A publisher, and how long it takes. `then` is called after each publication."""

    def __init__(self, publish: Publisher, runtime: Runtime, then: Callable[[], None] | None = None) -> None:
        self._publish = publish
        self._runtime = runtime
        self._then = then
        self.seconds = Histogram("limpet_publish_seconds", "Time to publish a batch.", ("outcome",), runtime)

    def __call__(self, paths: Sequence[str], token: int) -> Published:
        """See `Compactor.publish`."""
        since_s, outcome = self._runtime.elapsed_s(), "fault"
        try:
            published = self._publish(paths, token)
            outcome = "published"
        except LimpetError as error:
            outcome = type(error).__name__
            raise
        finally:
            self.seconds.observe(self._runtime.elapsed_s() - since_s, outcome)
        if self._then is not None:
            self._then()
        return published


class Afterwards:
    """Does `work` in a thread of its own, once it was told that there is some: so that no publication waits for it.

    If it fails, whoever publishes next does it.
    """

    def __init__(self, name: str, work: Callable[[], None], runtime: Runtime) -> None:
        self._name = name
        self._work = work
        self._runtime = runtime
        self._wake = runtime.flag()
        self._stopped = runtime.flag()
        self._thread: Worker | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = self._runtime.spawn(self._run, name=f"limpet-{self._name}")

    def wake(self) -> None:
        """There is something to do."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(IDLE_S)
            self._wake = self._runtime.flag()
            with suppress(LimpetError):
                self._work()

    def stop(self) -> None:
        """Do it once more, and end."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()


class Loop:
    """Calls `work` every so often, in a thread of its own. An error is counted and told, and the next turn comes."""

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        every_s: float,
        runtime: Runtime,
        turns: Counter,
        tell: Callable[[str], None],
    ) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._runtime = runtime
        self._turns = turns
        self._tell = tell
        self._last = ""
        self._stopped = runtime.flag()

    def start(self) -> None:
        """Begin. The thread does not keep the process alive, and whatever it does may end at any point."""
        self._runtime.spawn(self._run, name=f"limpet-{self._name}")

    def _run(self) -> None:
        # spread over the interval, so that processes that start together do not come round together
        pause_s = self._runtime.rng.uniform(0.1, 1.0) * self._every_s
        while not self._stopped.wait(pause_s):
            pause_s = self._every_s
            self._turn()

    def _turn(self) -> None:
        try:
            self._work()
        except LimpetError as error:
            self._turns.add(self._name, "failed")
            if str(error) != self._last:
                self._tell(f"{self._name}: {error}" + (f" ({error.hint})" if error.hint else ""))
            self._last = str(error)
        else:
            self._turns.add(self._name, "done")
            self._last = ""

    def stop(self) -> None:
        """Begin no other turn."""
        self._stopped.set()

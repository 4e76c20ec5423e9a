"""The worker processes of `limpet demo`, what they report, and what is done to them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpet.errors import Unavailable
from limpet.runtime import Runtime

__all__ = ["Crew", "Event"]

DEADLINE_S = 150.0
FAREWELL_S = 10.0

HINT = "run it again; if it happens again, please report it with this line"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that befell a worker, `at_s` seconds after the demo began (all processes read one rising clock)."""

    at_s: float
    who: str
    what: str
    fields: dict[str, Any]


class Crew:
    """Starts workers (`limpet.cli.demo_worker`), gives them orders, hears their events, and ends them."""

    def __init__(self, url: str, logs: Path, runtime: Runtime) -> None:
        self._url = url
        self._logs = logs
        self._runtime = runtime
        self._began_s = runtime.elapsed_s()
        self._selector = selectors.DefaultSelector()
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._heard: dict[str, bytes] = {}
        self._ready: list[Event] = []
        self._requests: dict[str, dict[str, int]] = {}

    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return self._runtime.elapsed_s() - self._began_s

    def start(self, name: str) -> None:
        """Start a worker, which waits for orders."""
        worker = subprocess.Popen(
            [sys.executable, "-m", "limpet.cli.demo_worker", self._url, name, str(self._logs / f"{name}.log")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # an interrupt is for us, and we end them
        )
        assert worker.stdout is not None
        self._workers[name] = worker
        self._heard[name] = b""
        self._selector.register(worker.stdout, selectors.EVENT_READ, name)

    def pid(self, name: str) -> int:
        """The worker's process id."""
        return self._workers[name].pid

    def order(self, name: str, order: str) -> None:
        """Hand a worker an order: begin, linger or go."""
        stdin = self._workers[name].stdin
        assert stdin is not None
        stdin.write(f"{order}\n".encode())

    def kill(self, name: str) -> None:
        """Kill a worker with -9. Whatever it had still to say is not heard."""
        worker = self._workers.pop(name)
        assert worker.stdout is not None
        self._selector.unregister(worker.stdout)
        worker.kill()
        _bury(worker)

    def pause(self, name: str) -> None:
        """Stop a worker where it stands, as a laptop that is closed."""
        self._workers[name].send_signal(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Let a paused worker go on."""
        self._workers[name].send_signal(signal.SIGCONT)

    def next(self, timeout_s: float) -> Event | None:
        """The next event; None if there was none in that time.

        Raises: Unavailable when a worker fails, or when it all takes too long.
        """
        if not self._ready:
            if self.elapsed_s() > DEADLINE_S:
                raise Unavailable(f"the demo was not done after {DEADLINE_S:.0f} s", hint=HINT)
            for key, _ in self._selector.select(timeout_s):
                self._hear(key.data)
            self._ready.sort(key=lambda event: event.at_s)
        return self._ready.pop(0) if self._ready else None

    def requests(self) -> Counter[str]:
        """What all workers have asked of the store, the dead ones too, as far as they could tell."""
        return sum(map(Counter, self._requests.values()), Counter[str]())

    def end(self) -> None:
        """Have every worker finish and end, and hear its last words."""
        for worker in self._workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
        until_s = self.elapsed_s() + FAREWELL_S
        while self._selector.get_map() and self.elapsed_s() < until_s:
            self.next(FAREWELL_S)
        self.close()

    def close(self) -> None:
        """End every worker that is left, at once: also one that is paused."""
        for worker in self._workers.values():
            worker.kill()
            _bury(worker)
        self._workers.clear()
        self._selector.close()

    def _hear(self, name: str) -> None:
        worker = self._workers[name]
        assert worker.stdout is not None
        assert worker.stderr is not None
        said = os.read(worker.stdout.fileno(), 65536)
        if not said:
            self._selector.unregister(worker.stdout)
            if worker.wait() != 0:
                why = worker.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise Unavailable(f"worker {name} failed: {why or f'exit code {worker.returncode}'}", hint=HINT)
            return
        *whole, self._heard[name] = (self._heard[name] + said).split(b"\n")
        for line in whole:
            fields = json.loads(line)
            self._requests[name] = fields.pop("requests")
            at_s = fields.pop("at_s") - self._began_s
            self._ready.append(Event(at_s, name, fields.pop("what"), fields))


def _bury(worker: subprocess.Popen[bytes]) -> None:
    worker.wait()
    for pipe in (worker.stdin, worker.stdout, worker.stderr):
        if pipe is not None:
            pipe.close()

"""The processes of `limpet demo`, what they report, and what is done to them."""

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

DEADLINE_S = 150.0

HINT = "run it again; if it happens again, please report it with this line"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that befell a process, `at_s` seconds after the demo began (all processes read one rising clock)."""

    at_s: float
    who: str
    what: str
    fields: dict[str, Any]


class Crew:
    """Starts workers and compilers, gives them orders, hears their events, and ends them."""

    def __init__(self, url: str, logs: Path, runtime: Runtime) -> None:
        self._url = url
        self._logs = logs
        self._runtime = runtime
        self._began_s = runtime.elapsed_s()
        self._selector = selectors.DefaultSelector()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._heard: dict[str, bytes] = {}
        self._ready: list[Event] = []
        self._requests: dict[str, dict[str, dict[str, int]]] = {}

    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return self._runtime.elapsed_s() - self._began_s

    def start_worker(self, name: str) -> None:
        """Start a worker, which waits for orders."""
        self._start(name, "limpet.cli.demo_worker", self._url, name, str(self._logs / f"{name}.log"))

    def start_compiler(self, name: str) -> None:
        """Start a compiler, which waits for orders."""
        self._start(name, "limpet.cli.demo_compiler", self._url)

    def pid(self, name: str) -> int:
        """Its process id."""
        return self._processes[name].pid

    def order(self, name: str, order: str) -> None:
        """Hand on an order: see `demo_worker` and `demo_compiler`."""
        stdin = self._processes[name].stdin
        assert stdin is not None
        stdin.write(f"{order}\n".encode())

    def kill(self, name: str) -> None:
        """Kill with -9. Whatever it had still to say is not heard."""
        process = self._processes.pop(name)
        assert process.stdout is not None
        self._selector.unregister(process.stdout)
        process.kill()
        _bury(process)
        self._ready = [event for event in self._ready if event.who != name]

    def pause(self, name: str) -> None:
        """Stop one where it stands, as a laptop that is closed."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Let a paused one go on."""
        self._processes[name].send_signal(signal.SIGCONT)

    def next(self, timeout_s: float) -> Event | None:
        """The next event; None if there was none in that time.

        Raises: Unavailable when a process fails, or when it all takes too long.
        """
        if not self._ready:
            if self.elapsed_s() > DEADLINE_S:
                raise Unavailable(f"the demo was not done after {DEADLINE_S:.0f} s", hint=HINT)
            for key, _ in self._selector.select(timeout_s):
                self._hear(key.data)
            self._ready.sort(key=lambda event: event.at_s)
        return self._ready.pop(0) if self._ready else None

    def requests(self, purpose: str) -> Counter[str]:
        """What all have asked of the store for `tasks` or for the `index`, the dead too, as far as they could tell."""
        return sum((Counter(spent.get(purpose, {})) for spent in self._requests.values()), Counter[str]())

    def dismiss(self, name: str) -> None:
        """Have it finish and end. Its last event is `ended`."""
        stdin = self._processes[name].stdin
        assert stdin is not None
        stdin.close()

    def close(self) -> None:
        """End every process that is left, at once: also one that is paused."""
        for process in self._processes.values():
            process.kill()
            _bury(process)
        self._processes.clear()
        self._selector.close()

    def _start(self, name: str, module: str, *arguments: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # an interrupt is for us, and we end them
        )
        assert process.stdout is not None
        self._processes[name] = process
        self._heard[name] = b""
        self._selector.register(process.stdout, selectors.EVENT_READ, name)

    def _hear(self, name: str) -> None:
        process = self._processes[name]
        assert process.stdout is not None
        assert process.stderr is not None
        said = os.read(process.stdout.fileno(), 65536)
        if not said:
            self._selector.unregister(process.stdout)
            if process.wait() != 0:
                why = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise Unavailable(f"{name} failed: {why or f'exit code {process.returncode}'}", hint=HINT)
            return
        *whole, self._heard[name] = (self._heard[name] + said).split(b"\n")
        for line in whole:
            fields = json.loads(line)
            self._requests[name] = fields.pop("requests")
            at_s = fields.pop("at_s") - self._began_s
            self._ready.append(Event(at_s, name, fields.pop("what"), fields))


def _bury(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()

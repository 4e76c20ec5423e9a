"""Run one system: fill its queue, let fresh processes drain it, kill one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.queues.api import NotHere
from bench.queues.child import NOT_HERE
from bench.queues.servers import tied
from bench.queues.systems import System

__all__ = ["Claims", "Drain", "Failed", "Killed", "Lab"]

ROOT = Path(__file__).resolve().parent.parent.parent
WARM_UP = 100
PATIENCE_S = 5.0
HEIR_S = 3.0
CHILD_S = 600.0


class Failed(Exception):
    """A process of a measurement ended badly; the message holds its last words."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a claim cost, the first one and its look at the backlog included."""

    claims: int
    mean_us: float
    median_us: float
    longest_us: float
    requests: Mapping[str, float] = field(default_factory=dict)
    """A claim, by verb; for the systems that count requests."""


@dataclass(frozen=True, slots=True)
class Drain:
    """How fast tasks were handled. `again` counts deliveries of a task that had been delivered before."""

    per_s: float
    handled: int
    again: int
    claims: Claims | None


@dataclass(frozen=True, slots=True)
class Killed:
    """What became of `pushed` tasks after the worker was killed in the middle of them, and another one started.

    `lost` were never finished and are gone; `stuck` are still stored and reach nobody; `again` were finished and ran
    again; `in_flight` had been handed to a handler that did not return.
    """

    pushed: int
    in_flight: int
    lost: int
    stuck: int
    again: int


class Lab:
    """Runs measurements of one system, each in a fresh folder below `folder`, and each process of it a fresh one."""

    def __init__(self, system: System, folder: Path, address: str) -> None:
        self._system = system
        self._folder = folder
        self._address = address
        self._names = count()

    def drain(self, backlog: int, n: int, *, workers: int = 1) -> tuple[float, Drain]:
        """Fill the queue, then drain `n` of it; the rate of pushing, and what was drained."""
        with self._queue() as place:
            per_s = self._push(place, backlog, warm_up=WARM_UP * workers)
            return per_s, self._work(place, n, workers)

    def drain_filled(self, backlog: int, n: int, *, producers: int) -> Drain:
        """The same with one worker, after an untimed fill by several producers."""
        with self._queue() as place:
            self._push(place, 0)
            share = backlog // producers
            children = [
                self._start(place, "push", first=WARM_UP + i * share, n=share, warm_up=0, timed=False)
                for i in range(producers)
            ]
            for child in children:
                child.go()
            for child in children:
                child.finish()
            return self._work(place, n, workers=1)

    def kill(self, n: int) -> Killed:
        """Push `n` tasks, kill -9 the worker in the middle of them, let another one do the rest."""
        with self._queue() as place:
            self._push(place, n, warm_up=0)
            notes = place / "notes"
            options = {**self._system.options, **self._system.kill_options}
            doomed = self._start(place, "doomed", last=n // 2, notes=str(notes), options=options)
            doomed.go()
            done, hanging = _wait_for_hanging(doomed, notes)
            doomed.kill()
            patience_s = self._system.back_after_s + HEIR_S
            wanted = [*({*range(n)} - done)]
            heir = self._start(place, "inherit", wanted=wanted, patience_s=patience_s, options=options)
            heir.go()
            found = heir.finish()
        finished = done | {*found["numbers"]}
        missing = n - len(finished)
        stuck = min(missing, found["left"])
        again = sum(1 for number in found["numbers"] if number in done)
        return Killed(n, len(hanging), missing - stuck, stuck, again)

    @contextmanager
    def _queue(self) -> Iterator[Path]:
        place = self._folder / f"q{next(self._names)}"
        place.mkdir()
        try:
            yield place
        finally:
            subprocess.run(["rm", "-rf", str(place)], check=True)  # a million entries: much quicker than shutil

    def _push(self, place: Path, n: int, *, warm_up: int = WARM_UP) -> float:
        producer = self._start(place, "push", first=0, n=n, warm_up=warm_up, timed=True, fresh=True)
        producer.go()
        return n / max(float(producer.finish()["spent_s"]), 1e-9)

    def _work(self, place: Path, n: int, workers: int) -> Drain:
        target = WARM_UP + n // workers
        children = [self._start(place, "work", target=target, patience_s=PATIENCE_S) for _ in range(workers)]
        for child in children:
            child.go()
        return _drained([child.finish() for child in children], target)

    def _start(self, place: Path, act: str, *, fresh: bool = False, **job: Any) -> _Child:
        path = place / f"job{next(self._names)}.json"
        known = {
            "act": act,
            "module": self._system.module,
            "folder": str(place),
            "address": self._address,
            "fresh": fresh,
            "options": dict(self._system.options),
        }
        path.write_text(json.dumps({**known, **job}))
        return _Child(path)


class _Child:
    """A process that was started and is ready."""

    def __init__(self, job: Path) -> None:
        self._out = job.with_suffix(".out")
        self._log = job.with_suffix(".log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*tied("KILL"), sys.executable, "-m", "bench.queues.child", str(job)],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(job.parent)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self._end()

    def go(self) -> None:
        """Let it do its job."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def running(self) -> bool:
        """Whether it is still there."""
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9, with all that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def finish(self) -> dict[str, Any]:
        """Wait for its end; what it found.   Raises: Failed, NotHere."""
        self._end()
        found: dict[str, Any] = json.loads(self._out.read_text())
        return found

    def _end(self) -> None:
        try:
            self._process.communicate(timeout=CHILD_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"gave up after {CHILD_S:.0f} s") from None
        if self._process.returncode == NOT_HERE:
            raise NotHere(self._out.read_text())
        if self._process.returncode != 0:
            raise Failed(f"a process ended with {self._process.returncode}: {_last_words(self._log)}")


def _wait_for_hanging(child: _Child, notes: Path) -> tuple[set[int], set[int]]:
    """What it has done and what it hangs in, once it hangs and writes no more."""
    seen = ""
    until_s = time.monotonic() + CHILD_S
    while True:
        time.sleep(0.3)
        now = notes.read_text() if notes.exists() else ""
        if now == seen and "hangs" in now:
            lines = [line.split() for line in now.splitlines()]
            done, hangs = ({int(number) for verb, number in lines if verb == want} for want in ("done", "hangs"))
            return done, hangs
        if not child.running() or time.monotonic() > until_s:
            child.kill()
            raise Failed("the worker did not get to the middle of its tasks")
        seen = now


def _drained(found: Sequence[Mapping[str, Any]], target: int) -> Drain:
    """The rate from the first task after the warm-up until the first worker had done its share."""
    numbers = [number for worker in found for number in worker["numbers"]]
    stamps = sorted(stamp for worker in found for stamp in worker["stamps_ns"])
    ends = [worker["stamps_ns"][-1] for worker in found if len(worker["stamps_ns"]) >= target]
    if not ends:
        raise Failed(f"the workers got only {len(numbers)} tasks of {len(found) * target}")
    begin_ns, end_ns = stamps[WARM_UP - 1], min(ends)
    handled = sum(1 for stamp in stamps if begin_ns < stamp <= end_ns)
    return Drain(
        per_s=handled / ((end_ns - begin_ns) / 1e9),
        handled=handled,
        again=len(numbers) - len({*numbers}),
        claims=_claims(found[0]) if len(found) == 1 else None,
    )


def _claims(found: Mapping[str, Any]) -> Claims | None:
    claims_us = found["claims_us"]
    if not claims_us:
        return None
    return Claims(len(claims_us), mean(claims_us), median(claims_us), max(claims_us), found["facts"])


def _last_words(log: Path) -> str:
    """The last line that a process wrote to its log: with Python, the error."""
    return (log.read_text().strip().splitlines() or ["it said nothing"])[-1]

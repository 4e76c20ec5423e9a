"""One process of a measurement: a producer, a worker, or a worker that is about to be killed.

`python -m bench.queues.child JOB.json` opens the queue, says `ready`, waits for a line, does the job and writes what it
saw to `<JOB>.out`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.queues.api import NotHere, Payload, Place, Queue, Tally, payloads

__all__ = ["main"]

CHUNK = 20_000
AFTERWARDS_S = 1.0
NOT_HERE = 3
"""The exit code that says: something is not installed. What it is stands in `<JOB>.out`."""


class _Doomed(Tally):
    """Notes each task on disk when it is handled, and from task `last` on hangs for ever, waiting to be killed."""

    def __init__(self, last: int, notes: Path) -> None:
        super().__init__(target=sys.maxsize, patience_s=3600)
        self._last = last
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(self, payload: Payload) -> None:
        super().handle(payload)
        if len(self.numbers) > self._last:
            os.write(self._notes, f"hangs {payload['n']}\n".encode())
            while True:
                time.sleep(3600)
        os.write(self._notes, f"done {payload['n']}\n".encode())


class _Heir(Tally):
    """Waits for all of `wanted`, as long as patience lasts, and then a little for what comes once more."""

    def __init__(self, wanted: set[int], patience_s: float) -> None:
        super().__init__(target=sys.maxsize, patience_s=patience_s)
        self._wanted = wanted

    def handle(self, payload: Payload) -> None:
        super().handle(payload)
        self._wanted.discard(payload["n"])

    def over(self) -> bool:
        return super().over() or (not self._wanted and time.monotonic_ns() - self.stamps_ns[-1] > AFTERWARDS_S * 1e9)


def main(path: Path) -> int:
    """Do the job in the file at `path`; the exit code."""
    job: dict[str, Any] = json.loads(path.read_text())
    out = path.with_suffix(".out")
    try:
        adapter = importlib.import_module(f"bench.queues.{job['module']}")
        queue: Queue = adapter.connect(Place(Path(job["folder"]), job["address"], job["fresh"]), job["options"])
    except NotHere as error:
        out.write_text(str(error))
        return NOT_HERE
    print("ready", flush=True)
    sys.stdin.readline()
    found = ACTS[job["act"]](queue, job)
    queue.close()
    out.write_text(json.dumps(found))
    return 0


def _push(queue: Queue, job: dict[str, Any]) -> dict[str, Any]:
    """Push some to warm up; then `n`, timed; or fill the queue with them, untimed."""
    first, n = job["first"] + job["warm_up"], job["n"]
    queue.push(payloads(job["first"], job["warm_up"]))
    spent_s = 0.0
    for start in range(first, first + n, CHUNK):
        some = payloads(start, min(CHUNK, first + n - start))
        begun_s = time.perf_counter()
        (queue.push if job["timed"] else queue.fill)(some)
        spent_s += time.perf_counter() - begun_s
    queue.settle()
    return {"spent_s": spent_s}


def _work(queue: Queue, job: dict[str, Any]) -> dict[str, Any]:
    tally = Tally(job["target"], job["patience_s"])
    queue.work(tally)
    return _seen(queue, tally)


def _inherit(queue: Queue, job: dict[str, Any]) -> dict[str, Any]:
    tally = _Heir({*job["wanted"]}, job["patience_s"])
    queue.work(tally)
    return _seen(queue, tally)


def _seen(queue: Queue, tally: Tally) -> dict[str, Any]:
    return {
        "numbers": tally.numbers,
        "stamps_ns": tally.stamps_ns,
        "claims_us": tally.claims_us,
        "facts": queue.facts(),
        "left": queue.left(),
    }


def _doomed(queue: Queue, job: dict[str, Any]) -> dict[str, Any]:
    queue.work(_Doomed(job["last"], Path(job["notes"])))
    raise AssertionError("it should have been killed")


ACTS = {"push": _push, "work": _work, "doomed": _doomed, "inherit": _inherit}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

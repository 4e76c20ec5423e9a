"""A worker of `limpet demo`: a process of its own that wants the lock, and says in JSON lines what befalls it.

    python -m limpet.cli.demo_worker URL NAME                     takes orders from stdin, one a line
    python -m limpet.cli.demo_worker URL NAME late LOCK TOKEN     writes with a token from the past

Orders: `turn` (take the lock, write, free it), `stay` (the same, but keep the lock until `go`, or the end of stdin).
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import limpet
from limpet import records
from limpet.cell import Fenced
from limpet.cli.demo_crew import LOCK, TTL_S
from limpet.runtime import system

__all__ = ["DemoWorker", "main"]

WORK_S = 0.3
WAIT_S = 40.0


class DemoWorker:
    """What one process does in the demo."""

    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._fleet = limpet.open(url)
        self._cell = self._fleet.cell(LOCK)

    def obey(self) -> None:
        """Carry out orders until stdin ends."""
        for line in iter(sys.stdin.readline, ""):
            self._turn(stay=line.strip() == "stay")

    def write_late(self, lock: str, token: int) -> None:
        """Write as a holder would that was away for long and does not know it."""
        try:
            self._append(limpet.Fence(lock, token))
        except limpet.LeaseLost as refused:
            self._say("refused", kind=type(refused).__name__, message=str(refused))
        else:
            self._say("accepted", token=token)

    def _turn(self, *, stay: bool) -> None:
        with ExitStack() as stack:
            lease = self._take(stack)
            self._say("got", token=lease.token, lock=lease.lock)
            rows = self._append(lease)
            self._say("wrote", token=lease.token, rows=rows)
            if stay:
                sys.stdin.readline()
            else:
                system().sleep(WORK_S)
            self._say("frees")
        system().sleep(WORK_S)

    def _take(self, stack: ExitStack) -> limpet.Lease:
        lock = self._fleet.lock(LOCK, TTL_S)
        try:
            return stack.enter_context(lock.hold(wait_s=0))
        except limpet.Held as held:
            self._say("waits", by=held.by, token=held.token)
        return stack.enter_context(lock.hold(wait_s=WAIT_S))

    def _append(self, lease: Fenced) -> int:
        """Add our row to the cell; how many there are now."""
        seen = self._cell.read()
        rows = [*(seen.value["rows"] if seen else []), [self._name, lease.token]]
        self._cell.write({"rows": rows}, lease=lease)
        return len(rows)

    def _say(self, what: str, **fields: Any) -> None:
        spent = self._fleet.meter.snapshot().requests
        event = {"what": what, "at_s": system().elapsed_s(), "requests": spent, **fields}
        print(records.encode(event).decode(), flush=True)


def main(arguments: list[str]) -> None:
    """Run one worker."""
    url, name, *order = arguments
    worker = DemoWorker(url, name)
    if order:
        worker.write_late(order[1], int(order[2]))
    else:
        worker.obey()


if __name__ == "__main__":
    main(sys.argv[1:])

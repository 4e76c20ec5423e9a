"""How a process of `limpet demo` talks with it: orders come by stdin, one a line; events go to stdout as JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from limpet import records
from limpet.runtime import system

if TYPE_CHECKING:
    from limpet.app import Fleet


class Wire:
    """The process's end of it. `fleets`: one for each purpose, so that their requests can be told apart."""

    def __init__(self, **fleets: Fleet) -> None:
        self._fleets = fleets

    def say(self, what: str, **fields: Any) -> None:
        """Tell what happened, when, and how many requests this process has made by now, for what."""
        spent = {purpose: fleet.meter.snapshot().requests for purpose, fleet in self._fleets.items()}
        event = {"what": what, "at_s": system().elapsed_s(), "requests": spent, **fields}
        os.write(sys.stdout.fileno(), records.encode(event) + b"\n")

    def listen(self, obey: Callable[[str], None]) -> None:
        """Hand on each order, in a thread of its own. The last one is `end`, also when the demo itself has died."""

        def run() -> None:
            # unbuffered: a thread that waits in a buffer's lock would break the end of the process
            with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as orders:
                for line in orders:
                    obey(line.decode().strip())
            obey("end")

        system().spawn(run, name="limpet-demo-orders")

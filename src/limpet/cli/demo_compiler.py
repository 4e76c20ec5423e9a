"""A compiler of `limpet demo`: it folds what the workers put into the shards of the index, again and again.

    python -m limpet.cli.demo_compiler URL

Orders: `begin`; `tell` (say at once how many requests it has made). At the end it folds everything that waits.
"""

from __future__ import annotations

import sys

import limpet
from limpet.cli.demo_tasks import INDEX
from limpet.cli.demo_wire import Wire
from limpet.errors import LimpetError
from limpet.runtime import system

REST_S = 1.5
WAIT_S = 60.0


class DemoCompiler:
    """What one process does in the demo."""

    def __init__(self, url: str) -> None:
        fleet = limpet.open(url)
        self._index = fleet.index(INDEX)
        self._wire = Wire(index=fleet)
        self._begin = system().flag()
        self._ending = system().flag()

    def run(self) -> None:
        """Compile until the order to end comes, and then once more, everything."""
        self._wire.listen(self._obey)
        self._wire.say("ready")
        self._begin.wait(WAIT_S)
        while not self._ending.is_set():
            self._compile()
            self._ending.wait(REST_S)
        self._compile(full=True)
        self._wire.say("ended")

    def _obey(self, order: str) -> None:
        match order:
            case "begin":
                self._begin.set()
            case "tell":
                self._wire.say("tells")
            case "end":
                self._ending.set()
                self._begin.set()

    def _compile(self, *, full: bool = False) -> None:
        self._wire.say("folds")
        try:
            report = self._index.compile(full=full)
        except LimpetError as error:
            # the other shards were compiled; what this one lacks, the report at the end says
            self._wire.say("trouble", message=str(error))
        else:
            self._wire.say("folded", shards=report.folded, objects=report.objects)


def main(arguments: list[str]) -> None:
    """Run one compiler."""
    [url] = arguments
    DemoCompiler(url).run()


if __name__ == "__main__":
    main(sys.argv[1:])

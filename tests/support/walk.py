"""Which files of `src/limpet` a call enters, kernel aside: what a reader must open in order to follow it.

    with Tracer() as tracer:
        call()                       # imports, caches, threads
        with tracer.record() as walk:
            call()
    print(walk)

`python -m support.walk FOLDER COMMAND...` runs a `limpet` command that goes on, such as `limpet serve`: SIGUSR1 begins
a record and SIGUSR2 ends it; the walk is then in FOLDER/walk.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Tracer", "Walk"]

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = f"{ROOT / 'src' / 'limpet'}{os.sep}"
KERNEL = ("store", "cell", "lease", "keys", "keys.py", "records.py", "errors.py", "runtime.py", "sortedmap.py")


class Walk:
    """Files in the order in which they are first entered, each with the functions that are called in it."""

    def __init__(self, entered: Mapping[str, list[str]] | None = None) -> None:
        self.entered = {file: dict.fromkeys(functions) for file, functions in (entered or {}).items()}

    def enter(self, file: str, function: str) -> None:
        """A function of a file is called."""
        self.entered.setdefault(file, {})[function] = None

    def common(self, other: Walk) -> Walk:
        """The files that both walks enter: without what a timer happened to do meanwhile."""
        return Walk({file: [*functions] for file, functions in self.entered.items() if file in other.entered})

    def __len__(self) -> int:
        return len(self.entered)

    def __str__(self) -> str:
        lines = [f"{n:3} {file}: {', '.join(functions)}" for n, (file, functions) in enumerate(self.entered.items(), 1)]
        return "\n".join(lines)


class Tracer:
    """Sees every call in this thread and in those that are started while it is entered."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        self._before: Any = None

    def __enter__(self) -> Tracer:
        self._before = sys.getprofile()
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(self._before)
        threading.setprofile(self._before)

    @contextmanager
    def record(self) -> Iterator[Walk]:
        """What is called while the block lasts."""
        walk = self.begin()
        try:
            yield walk
        finally:
            self.end()

    def begin(self) -> Walk:
        """Record from now on."""
        self._walk = walk = Walk()
        return walk

    def end(self) -> Walk | None:
        """Record no more; what was recorded."""
        walk, self._walk = self._walk, None
        return walk

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        walk = self._walk
        if walk is None or event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        file = frame.f_code.co_filename.removeprefix(PACKAGE)
        if file.split(os.sep)[0] not in KERNEL and frame.f_code.co_name != "<module>":
            walk.enter(file, frame.f_code.co_qualname)


def _main(folder: Path, command: list[str]) -> None:
    tracer = Tracer()

    def begin(number: int, frame: FrameType | None) -> None:
        tracer.begin()
        (folder / "begun").touch()

    def end(number: int, frame: FrameType | None) -> None:
        walk = tracer.end()
        assert walk is not None
        text = json.dumps({file: [*functions] for file, functions in walk.entered.items()})
        (folder / "walk.new").write_text(text)
        (folder / "walk.new").replace(folder / "walk.json")

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    with tracer:
        from limpet.cli import main

        main(command)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])

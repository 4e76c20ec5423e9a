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

import inspect
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from support.catalog import SCHEMA
from support.servers.catalog import ask, until

__all__ = ["Tracer", "Walk", "calls_of", "commit_walks"]

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = f"{ROOT / 'src' / 'limpet'}{os.sep}"
START_S = 60.0
KERNEL = ("kernel",)


class Walk:
    """Files in the order in which they are first entered, each with the functions that are called in it."""

    def __init__(self, entered: Mapping[str, list[str]] | None = None, calls: int = 0, own_calls: int = 0) -> None:
        self.entered = {file: dict.fromkeys(functions) for file, functions in (entered or {}).items()}
        self.calls = calls
        """Calls of Python functions, wherever they are defined."""
        self.own_calls = own_calls
        """Calls of functions of `src/limpet`."""
        self.codes: set[CodeType] = set()
        """The functions of ours that were entered, the kernel's included."""

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
        if walk is None or event != "call":
            return
        walk.calls += 1
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        walk.own_calls += 1
        walk.codes.add(frame.f_code)
        file = frame.f_code.co_filename.removeprefix(PACKAGE)
        if file.split(os.sep)[0] not in KERNEL and frame.f_code.co_name != "<module>":
            walk.enter(file, frame.f_code.co_qualname)


def calls_of(act: Callable[[], object]) -> tuple[int, int, int]:
    """The number of calls that `act` makes, and the lines of the functions that it enters, ours and the kernel's."""
    with Tracer() as tracer, tracer.record() as walk:
        act()
    own = kernel = 0
    for code in walk.codes:
        if code.co_name.startswith("<"):
            continue  # a comprehension or a lambda: its lines are those of the function that holds it
        lines = len(inspect.getsourcelines(code)[0])
        if code.co_filename.removeprefix(PACKAGE).split(os.sep)[0] in KERNEL:
            kernel += lines
        else:
            own += lines
    return walk.calls, own, kernel


@contextmanager
def _server(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`limpet serve` under a tracer."""
    command = ["serve", "--url", str(folder / "fleet"), "--port", "0", "--json"]
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.walk", str(folder), *command],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    try:
        until("it says where it listens", lambda: (folder / "out").read_text().endswith("}\n"), START_S)
        url = json.loads((folder / "out").read_text())["url"]
        until("it leads", lambda: ask(url, "GET", "/readyz").json.get("leads"), START_S)
        yield process, url
    finally:
        process.kill()
        process.wait()


def commit_walks(folder: Path, times: int) -> list[Walk]:
    """What a commit over HTTP to a server on a directory calls, so many times."""
    table = "/v1/namespaces/a/tables/t"
    walks = []
    with _server(folder) as (process, url):

        def commit(n: int) -> None:
            updates = [{"action": "set-properties", "updates": {"n": str(n)}}]
            answer = ask(url, "POST", table, {"requirements": [], "updates": updates})
            assert answer.status == 200, answer.body

        assert ask(url, "POST", "/v1/namespaces", {"namespace": ["a"]}).status == 200
        assert ask(url, "POST", "/v1/namespaces/a/tables", {"name": "t", "schema": SCHEMA}).status == 200
        commit(0)
        for n in range(1, 1 + times):
            os.kill(process.pid, signal.SIGUSR1)
            until("it records", (folder / "begun").exists)
            commit(n)
            os.kill(process.pid, signal.SIGUSR2)
            until("it recorded", (folder / "walk.json").exists)
            walks.append(Walk(**json.loads((folder / "walk.json").read_text())))
            (folder / "walk.json").unlink()
            (folder / "begun").unlink()
    return walks


def _main(folder: Path, command: list[str]) -> None:
    tracer = Tracer()

    def begin(number: int, frame: FrameType | None) -> None:
        tracer.begin()
        (folder / "begun").touch()

    def end(number: int, frame: FrameType | None) -> None:
        walk = tracer.end()
        assert walk is not None
        entered = {file: [*functions] for file, functions in walk.entered.items()}
        text = json.dumps({"entered": entered, "calls": walk.calls, "own_calls": walk.own_calls})
        (folder / "walk.new").write_text(text)
        (folder / "walk.new").replace(folder / "walk.json")

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    with tracer:
        from limpet.cli import main

        main(command)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])

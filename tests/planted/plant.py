"""Run the simulation with a bug planted in the source of the kernel.

`python tests/planted/plant.py NAME` replays the bug's recorded seed; `--hunt N` looks for the first seed that catches
it, and with `--record` writes that seed into the file of the bug; without NAME it tells which bugs cannot be planted,
because the code that they change is no longer found. The bug is a change of text in a module, made while the module is
imported: nothing of limpet on disk is touched.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from planted.bug import AnchorError, Bug, planted
from planted.bugs import BUGS, record


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the modules that the bug changes from changed source."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._sources:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=self, submodule_search_locations=spec.submodule_search_locations
        )

    def exec_module(self, module: ModuleType) -> None:
        assert module.__file__ is not None
        exec(compile(self._sources[module.__name__], module.__file__, "exec"), module.__dict__)


def lost() -> list[str]:
    """Why bugs cannot be planted: a line or more for each that cannot."""
    why = []
    for bug in BUGS.values():
        try:
            planted(bug)
        except AnchorError as error:
            why.append(str(error))
    return why


def replay(bug: Bug, seeds: Iterable[int] | None = None, *, trace: bool = False, keep: bool = False) -> int:
    """Plant a bug in this process, which has not imported limpet yet, and run its recorded seed, or others.

    Exit code 0: it was caught; with `keep` the seed that caught it is recorded.
    """
    try:
        sys.meta_path.insert(0, _Finder(planted(bug)))
    except AnchorError as error:
        sys.exit(str(error))

    if "::" in bug.scenario:
        import pytest

        # Without --assert=plain pytest would load limpet itself, past our finder: limpet is a plugin of pytest.
        test = str(Path(__file__).parent.parent / bug.scenario)
        with tempfile.TemporaryDirectory(prefix="limpet-planted-") as scratch:
            code = pytest.main(["-q", "-x", "-p", "no:xdist", "--assert=plain", f"--basetemp={scratch}/tests", test])
        return 0 if code is pytest.ExitCode.TESTS_FAILED else 1

    from sim import SCENARIOS, trace_lines

    run = SCENARIOS[bug.scenario]
    for seed in [bug.seed] if seeds is None else seeds:
        world, violation = run(seed)
        if violation is not None:
            if trace:
                print(*trace_lines(world), sep="\n")
            print(f"seed {seed}: {str(violation).splitlines()[0]}")
            if keep:
                record(bug.name, seed)
            return 0
    print("not caught")
    return 1


def replay_into(said: Path, name: str) -> None:
    """`replay`, with stdout and stderr into a file; ends the process with the exit code."""
    with said.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.exit(replay(BUGS[name]))


def main() -> int:
    """Exit code 0: the planted bug was caught; without NAME: all of them can be planted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(BUGS))
    parser.add_argument("--hunt", type=int, default=0, help="try so many seeds")
    parser.add_argument("--first", type=int, default=0, help="where --hunt begins")
    parser.add_argument("--record", action="store_true", help="write the seed that --hunt finds into the bug's file")
    parser.add_argument("--trace", action="store_true", help="print the trace of the run")
    arguments = parser.parse_args()
    if arguments.name is None:
        why = lost()
        print(*why, f"{len(BUGS)} bugs, {len(why)} cannot be planted", sep="\n\n")
        return 1 if why else 0
    first = arguments.first
    seeds = range(first, first + arguments.hunt) if arguments.hunt else None
    return replay(BUGS[arguments.name], seeds, trace=arguments.trace, keep=arguments.record)


if __name__ == "__main__":
    sys.exit(main())

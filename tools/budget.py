"""Run the phases of a make target, and print what each one took against its budget.

    python3 tools/budget.py check | test | test-full

The table comes at the end of every run, a failing one too. A phase over its budget is marked, not failed: a slow
machine is no bug. After a phase that fails the later ones are not run. The simulation, whose clock is its own, runs in
the time that the phases behind it wait for servers, leases and browsers. Temporary files lie in memory where there is
room. Standard library only: it times the install.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

__all__ = ["TARGETS", "Phase", "Result", "Tally", "main", "plan", "report", "run"]

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
TOTAL_S = 9 * 60
TARGETS = ("check", "test", "test-full")
NO_TESTS_COLLECTED = 5
LOW_PRIORITY = ("nice", "-n", "10")

LINT = (
    ("ruff", "check", "--output-format=concise"),
    ("ruff", "format", "--check"),
    ("mypy",),
    ("lint-imports", "--no-logo"),
    ("python", "tools/house.py"),
)
COMPILE_TESTS = (str(BIN / "pytest"), "-n", "0", "--collect-only", "-qq", "tests")
"""Imports all tests once. Else each process of pytest compiles them, and rewrites their asserts: 14 s of CPU each."""

# Phases of tests that have folders of their own; whatever else lies in tests/ is unit + conformance.
SEEDS = "tests/simulation/test_seeds.py"
FOLDERS = {
    "simulation": ("tests/simulation", "tests/planted"),
    "crashes + clients": ("tests/crash", "tests/clients"),
    "browser": ("tests/browser",),
}
WORKERS = {"unit + conformance": "6", "crashes + clients": "5", "browser": "1"}
"""How many processes run tests, where it is not two: many of these wait for a server, or for a lease to run out. One
browser is enough."""
BUDGET_S = {
    "install": 60,
    "lint + types": 30,
    "unit + conformance": 180,
    "simulation": 270,
    "crashes + clients": 210,
    "browser": 60,
}
"""The simulation's is that of all that follows the unit tests."""
PATIENT = ("simulation",)
"""Phases that begin with the next one, and leave the processor to it whenever it wants it."""
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Phase:
    """Commands that are timed together; each runs, even if one before it failed. Without any there is nothing yet.

    `beside` runs at the same time, and nobody asks how it ended: it spares the later phases work. A `patient` phase
    runs together with those behind it, at low priority; what it prints comes at its end.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    budget_s: float | None = None
    pytest: bool = False
    beside: tuple[str, ...] = ()
    patient: bool = False


@dataclass(frozen=True, slots=True)
class Tally:
    """What pytest counted. `failed` includes errors, `skipped` includes expected failures."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """How a phase went. `used_s` is None if it did not run."""

    phase: Phase
    verdict: str
    used_s: float | None = None
    begun_s: float | None = None
    tally: Tally = field(default_factory=Tally)
    failed: bool = False


def plan(target: str) -> list[Phase]:
    """The phases of a target, in order. The budget is that of `make test`; the others only report their times."""
    install = "dev" if target == "check" else target
    beside = () if target == "check" else COMPILE_TESTS
    phases = [
        Phase("install", ((sys.executable, "tools/install.py", install),)),
        Phase("lint + types", tuple((str(BIN / name), *args) for name, *args in LINT), beside=beside),
    ]
    if target != "check":
        apart = [folder for folders in FOLDERS.values() for folder in folders]
        phases.append(_tests("unit + conformance", target, ["tests", *(f"--ignore={folder}" for folder in apart)]))
        for name, folders in FOLDERS.items():
            phases.append(_tests(name, target, [folder for folder in folders if (ROOT / folder).is_dir()]))
    if target == "test-full":
        phases.append(Phase("other Pythons", ((sys.executable, "tools/pythons.py"),)))
        phases.append(Phase("mutants", ((str(BIN / "python"), "tools/mutate.py", "--all"),)))
    if target != "test":
        return phases
    return [replace(phase, budget_s=BUDGET_S[phase.name]) for phase in phases]


def _tests(name: str, target: str, where: Sequence[str]) -> Phase:
    marked = () if target == "test-full" else ("-m", "not full")
    # Seeds spread over the cores by themselves, and their coverage table is to be seen; other tests do not.
    alone = [[SEEDS]] if SEEDS.rpartition("/")[0] in where else []
    parts = [*alone, [*where, f"--ignore={SEEDS}"] if alone else [*where]]
    spread = ("-n", WORKERS.get(name, "2"), "--dist", "worksteal")
    waits = ("--timeout=1200",) if name in PATIENT else ()
    commands = tuple(
        (str(BIN / "pytest"), *(("-n", "0") if part in alone else spread), "-r", "fEs", *waits, *marked, *part)
        for part in parts
        if part
    )
    return Phase(name, commands, pytest=True, patient=name in PATIENT)


def run(phases: Sequence[Phase], *, skips_fail: bool) -> list[Result]:
    """Run the phases until one fails; a result for each."""
    results: dict[str, Result] = {}
    threads: list[threading.Thread] = []

    def begin(phase: Phase) -> None:
        results[phase.name] = _run_phase(phase, skips_fail=skips_fail)

    for phase in phases:
        if not phase.commands:
            results[phase.name] = Result(phase, "-")
        elif any(result.failed for result in results.values()):
            results[phase.name] = Result(phase, "not run")
        elif phase.patient:
            threads.append(threading.Thread(target=begin, args=(phase,)))
            threads[-1].start()
        else:
            begin(phase)
    for thread in threads:
        thread.join()
    return [results[phase.name] for phase in phases]


def _run_phase(phase: Phase, *, skips_fail: bool) -> Result:
    begun_s = time.monotonic()
    tally = Tally()
    failed = interrupted = False
    with _scratch() as scratch, (scratch / "said").open("wb+") as said:
        said_to = said if phase.patient else None
        print(f"\n== {phase.name}" + (", beside the next phases" if phase.patient else ""), flush=True)
        with _beside(phase, env := _environment(scratch)):
            for i, command in enumerate(phase.commands):
                xml = scratch / f"{i}.xml"
                args = [*command, f"--junitxml={xml}"] if phase.pytest else [*command]
                print("$", shlex.join([Path(command[0]).name, *command[1:]]), flush=True)
                try:
                    code = _call([*LOW_PRIORITY, *args] if phase.patient else args, env, said_to)
                except KeyboardInterrupt:
                    code, interrupted = 130, True
                except OSError as error:
                    print(f"{command[0]}: {error.strerror}", flush=True)
                    code = 127
                tally += _counted(xml)
                failed |= code not in ((0, NO_TESTS_COLLECTED) if phase.pytest else (0,))
                if interrupted:
                    break
        if phase.patient:
            said.seek(0)
            print(f"\n== {phase.name}, its output\n{said.read().decode(errors='replace')}", flush=True)
    skipped_in_ci = skips_fail and tally.skipped > 0
    failed |= skipped_in_ci
    if failed and not tally.failed:
        tally += Tally(failed=1)  # the closing line of a failed run must not look clean
    verdict = "interrupted" if interrupted else _verdict(phase, tally, failed=failed)
    if skipped_in_ci:
        verdict += " (CI skips nothing)"
    return Result(phase, verdict, time.monotonic() - begun_s, begun_s, tally, failed)


def _call(args: Sequence[str], env: Mapping[str, str], said_to: BinaryIO | None) -> int:
    quiet = subprocess.DEVNULL
    return subprocess.run(args, cwd=ROOT, env=env, stdin=quiet, stdout=said_to, stderr=said_to).returncode


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for all temporary files of a phase; in memory, where a file is synced at once, if there is room."""
    fits = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
    folder = tempfile.mkdtemp(prefix="limpet-", dir=MEMORY if fits else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a process that was killed may have left one that still writes


def _environment(scratch: Path) -> dict[str, str]:
    env = os.environ | {
        # A pinned hash seed: one seed must give one trace, and xdist's workers must agree on an order.
        "PYTHONHASHSEED": "0",
        # Tests start hundreds of processes: without compiled modules each of them takes half a second longer.
        "PYTHONPYCACHEPREFIX": str(ROOT / ".cache" / "pycache"),
        "TMPDIR": str(scratch),
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


@contextmanager
def _beside(phase: Phase, env: Mapping[str, str]) -> Iterator[None]:
    if not phase.beside:
        yield
        return
    quiet = subprocess.DEVNULL
    with subprocess.Popen(phase.beside, cwd=ROOT, env=env, stdin=quiet, stdout=quiet, stderr=quiet):
        yield


def _verdict(phase: Phase, tally: Tally, *, failed: bool) -> str:
    if phase.pytest:
        return "no tests" if tally == Tally() else str(tally)
    return "FAILED" if failed else "ok"


def _counted(xml: Path) -> Tally:
    """The counts in a junit file; none if pytest never got as far as writing it."""
    if not xml.exists():
        return Tally()
    tally = Tally()
    for suite in ET.parse(xml).getroot().iter("testsuite"):
        tests, failures, errors, skipped = (
            int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
        )
        tally += Tally(tests - failures - errors - skipped, failures + errors, skipped)
    return tally


def report(results: Sequence[Result], *, total_s: float | None) -> str:
    """The table, and below it the closing line of all test phases together."""
    rows = [("phase", "budget", "used", "result")]
    for result in results:
        rows.append((result.phase.name, *_times(result.phase.budget_s, result.used_s), _marked(result)))
    used_s = _wall_s(results)
    over = "OVER BUDGET" if total_s is not None and used_s > total_s else ""
    rows.append(("total", *_times(total_s, used_s), over))
    lines = [f"{name:<20}{budget:>8}{used:>9}  {verdict}".rstrip() for name, budget, used, verdict in rows]
    if any(result.phase.pytest for result in results):
        lines.append(str(sum((result.tally for result in results), Tally())))
    return "\n".join(lines)


def _wall_s(results: Iterable[Result]) -> float:
    """From the first beginning to the last end; phases may run at the same time."""
    spans = [(result.begun_s or 0.0, (result.begun_s or 0.0) + result.used_s) for result in results if result.used_s]
    return max((end for _, end in spans), default=0.0) - min((begun for begun, _ in spans), default=0.0)


def _marked(result: Result) -> str:
    over = result.phase.budget_s is not None and (result.used_s or 0.0) > result.phase.budget_s
    return f"{result.verdict}   OVER BUDGET" if over else result.verdict


def _times(budget_s: float | None, used_s: float | None) -> tuple[str, str]:
    budget = "-" if budget_s is None else f"{budget_s / 60:g} min"
    return budget, "-" if used_s is None else f"{int(used_s) // 60}:{int(used_s) % 60:02}"


def main(target: str) -> int:
    """Run a target; its exit code."""
    skips_fail = os.environ.get("CI", "") not in ("", "0", "false")
    results = run(plan(target), skips_fail=skips_fail)
    print("\n" + report(results, total_s=TOTAL_S if target == "test" else None), flush=True)
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: budget.py {' | '.join(TARGETS)}")
    sys.exit(main(sys.argv[1]))

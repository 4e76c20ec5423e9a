"""Every planted bug is caught by its recorded seed, and that seed holds without it."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from limpet.sim.scenarios import SCENARIOS
from planted.bugs import BUGS, Bug
from sim_seeds import SEEDS

HERE = Path(__file__).parent


def test_there_are_enough_of_them() -> None:
    assert len(BUGS) >= 14 + 12 + 12 + 30 + 30
    rows = {row.strip() for bug in BUGS.values() for row in bug.row.split(",")}
    failures = (1, 2, 3, 4, 5, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)
    assert {f"F{n}" for n in failures} <= rows
    assert {f"H{n}" for n in (1, 2, 3, 4, 5, 6, 8)} <= rows, "H7 is a sentence in the docs"
    indexes = {f"index {n}" for n in (9, 11, 12, 13, 14, 15, 16, 17, 18)}
    assert indexes <= rows, "8 and 10 are about a layout that Limpet does not have"
    catalogs = {f"catalog {n}" for n in (*range(1, 12), "12a", "12b", "12c", "12d")}
    assert catalogs <= rows


def _replay(bug: Bug) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "plant.py"), bug.name]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("bug", BUGS.values(), ids=lambda bug: bug.name)
def test_caught(bug: Bug) -> None:
    if bug.seed >= SEEDS.get(bug.scenario, math.inf):  # the others, and tests, are run without the bug anyway
        _, violation = SCENARIOS[bug.scenario](bug.seed)
        assert violation is None, f"seed {bug.seed} fails without the bug: {violation}"
    done = _replay(bug)
    assert done.returncode == 0, f"{bug.name!r} survives seed {bug.seed}:\n{done.stdout}{done.stderr}"

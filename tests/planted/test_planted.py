"""Every planted bug is caught by its recorded seed, and that seed holds without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from limpet.sim.scenarios import SCENARIOS
from planted.bugs import BUGS, Bug

HERE = Path(__file__).parent


def test_there_are_enough_of_them() -> None:
    assert len(BUGS) >= 14 + 12 + 12
    rows = {row.strip() for bug in BUGS.values() for row in bug.row.split(",")}
    failures = (1, 2, 3, 5, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24, 25)
    assert {f"F{n}" for n in failures} <= rows
    assert {f"H{n}" for n in (1, 2, 3, 4, 5, 6, 8)} <= rows, "H7 is a sentence in the docs"


@pytest.mark.parametrize("bug", BUGS.values(), ids=lambda bug: bug.name)
def test_caught(bug: Bug) -> None:
    if bug.scenario in SCENARIOS:  # a test is run without the bug where it stands
        world, violation = SCENARIOS[bug.scenario](bug.seed)
        assert violation is None, f"seed {bug.seed} fails without the bug: {violation}"
        assert world.calls > 0
    done = subprocess.run(
        [sys.executable, str(HERE / "plant.py"), bug.name], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{bug.name!r} survives seed {bug.seed}:\n{done.stdout}{done.stderr}"

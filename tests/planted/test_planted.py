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
    assert len(BUGS) >= 14
    rows = " ".join(bug.row for bug in BUGS.values())
    for row in ("F1", "F2", "F3", "F5", "F8", "F9", "F10", "F12", "F13", "F14", "F15", "F16", "F17", "F25"):
        assert row in rows


@pytest.mark.parametrize("bug", BUGS.values(), ids=lambda bug: bug.name)
def test_caught(bug: Bug) -> None:
    world, violation = SCENARIOS[bug.scenario](bug.seed)
    assert violation is None, f"seed {bug.seed} fails without the bug: {violation}"
    assert world.calls > 0
    done = subprocess.run(
        [sys.executable, str(HERE / "plant.py"), bug.name], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{bug.name!r} survives seed {bug.seed}:\n{done.stdout}{done.stderr}"

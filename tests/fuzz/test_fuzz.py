"""2,000 damaged objects, of every kind: no traceback, bounded cost, and the good work beside them is done."""

from __future__ import annotations

import pytest

from fuzz.kinds import KINDS
from fuzz.run import SEED, cases, rotated, run_case

TOTAL = 2000


@pytest.mark.parametrize("name", KINDS)
def test_damaged_objects_stop_nobody(name: str) -> None:
    kind = KINDS[name]
    failures = []
    for n, mutation in enumerate(cases(kind, TOTAL // len(KINDS) + 1, SEED)):
        failures += run_case(kind, mutation, rotated(kind, mutation, n))
    assert not failures, f"seed {SEED}:\n" + "\n".join(map(str, failures[:20]))

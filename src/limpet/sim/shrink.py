"""Fewer faults, same failure."""

from __future__ import annotations

from collections.abc import Callable

from limpet.sim.world import Violation, World

__all__ = ["Run", "shrink"]

Run = Callable[..., tuple[World, Violation | None]]
RUNS_MAX = 400


def shrink(run: Run, seed: int) -> tuple[frozenset[str], World, Violation]:
    """The largest set of muted faults, found greedily, under which the seed still breaks an invariant.

    Faults are drawn per request, so muting one leaves the others where they are; each try is a whole new run.
    """
    world, violation = run(seed)
    assert violation is not None, "nothing to shrink"
    muted: frozenset[str] = frozenset()
    left = RUNS_MAX
    part = max(1, len(set(world.faults)) // 2)
    while left > 0:
        smaller = False
        faults = sorted(set(world.faults))
        for start in range(0, len(faults), part):
            left -= 1
            tried = muted | frozenset(faults[start : start + part])
            world_now, violation_now = run(seed, muted=tried)
            if violation_now is not None:
                muted, world, violation, smaller = tried, world_now, violation_now, True
                break
            if left <= 0:
                break
        if not smaller:
            if part == 1:
                break
            part = max(1, part // 2)
    return muted, world, violation

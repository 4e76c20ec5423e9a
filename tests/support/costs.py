"""Request counts: measured, added up, and multiplied."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from limpet.app import Fleet
from limpet.kernel.store import MeteredStore

__all__ = ["COSTS", "plus", "requests", "times"]

COSTS: dict[str, dict[str, int]] = {
    f"{room}: {name}": cost
    for room, costs in tomllib.loads((Path(__file__).parent.parent / "costs.toml").read_text("utf-8")).items()
    for name, cost in costs.items()
}
"""What operations cost, by room and name: `queue: push`."""


def requests(meter: MeteredStore | Fleet, act: Callable[[], object]) -> dict[str, int]:
    """What an act asked of the store, by verb."""
    meter = meter.meter if isinstance(meter, Fleet) else meter
    with meter.measure() as cost:
        act()
    return cost.requests


def plus(*costs: dict[str, int]) -> dict[str, int]:
    """Costs added up."""
    return dict(sum((Counter(cost) for cost in costs), Counter()))


def times(number: int, cost: dict[str, int]) -> dict[str, int]:
    """A cost so many times."""
    return {verb: number * each for verb, each in cost.items() if number * each}

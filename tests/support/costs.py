"""Request counts: measured, added up, and multiplied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from limpet.app import Fleet
from limpet.store import MeteredStore

__all__ = ["plus", "requests", "times"]


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

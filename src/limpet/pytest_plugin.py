"""Fixtures for the tests of code that uses Limpet. pytest finds them by itself once Limpet is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limpet.app import Fleet
    from limpet.testing import Clock, IsolatedFleet


@pytest.fixture
def limpet_isolated() -> Iterator[Callable[[Fleet], IsolatedFleet]]:
    """`test = limpet_isolated(fleet)`: `limpet.testing.isolated` until the test ends."""
    from contextlib import ExitStack

    from limpet.testing import isolated

    with ExitStack() as stack:
        yield lambda fleet: stack.enter_context(isolated(fleet))


@pytest.fixture
def limpet_clock() -> Clock:
    """The clock of `limpet_fleet`: `limpet_clock.advance(60)` moves it by a minute."""
    from limpet.testing import Clock

    return Clock()


@pytest.fixture
def limpet_fleet(limpet_clock: Clock) -> Fleet:
    """A new, empty fleet in memory, on `limpet_clock`."""
    from limpet import testing

    return testing.fleet(limpet_clock)

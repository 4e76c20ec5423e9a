"""Fixtures for the tests of code that uses Limpet. pytest finds them by itself once Limpet is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.testing import Clock


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

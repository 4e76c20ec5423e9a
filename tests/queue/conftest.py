"""Fixtures for the tests of the queue."""

from __future__ import annotations

import pytest

import limpet
from limpet.app import Fleet
from support.queue import World

__all__ = ["fleet", "world"]


@pytest.fixture
def world() -> World:
    """A fresh bucket, and a clock that is moved by hand."""
    return World()


@pytest.fixture
def fleet(url: str) -> Fleet:
    """A new fleet at that place, on the real clock."""
    return limpet.open(url)

"""Fixtures for the tests of the index."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet.app import Fleet
from limpet.kernel.store import MemoryStore
from support.clock import ManualRuntime, Time

__all__ = ["bucket", "fleet", "pytest_collection_modifyitems", "time"]

OF_THE_STORE = ("test_index_conformance", "test_index_verify")
"""What these do depends on the store. What others do with records is the same on each: a bucket runs them in full."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Creating an index in a bucket takes a second; `make test` has few."""
    for item in items:
        here = Path(__file__).parent in item.path.parents
        if here and "seaweedfs" in item.name and item.path.stem not in OF_THE_STORE and not _is_first(item, items):
            item.add_marker(pytest.mark.full)


def _is_first(item: pytest.Item, items: list[pytest.Item]) -> bool:
    """Whether it is the first test of its file in a bucket: those run each time."""
    return item is next(each for each in items if each.path == item.path and "seaweedfs" in each.name)


@pytest.fixture
def fleet(url: str) -> Fleet:
    """A new fleet at that place, on the real clock."""
    fleet = limpet.open(url)
    fleet.check()
    return fleet


@pytest.fixture
def time() -> Time:
    """The virtual time of `bucket`."""
    return Time()


@pytest.fixture
def bucket(time: Time) -> MemoryStore:
    """An empty bucket on that time."""
    return MemoryStore(ManualRuntime(time))

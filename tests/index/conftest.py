"""Fixtures for the tests of the index."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet.app import Fleet
from limpet.kernel.store import MemoryStore
from support.clock import ManualRuntime, Time

__all__ = ["bucket", "fleet", "pytest_collection_modifyitems", "time"]

HERE = Path(__file__).parent
OF_THE_STORE = ("test_index_conformance", "test_index_verify")
"""What these do depends on the store. What others do with records is the same on each: a bucket runs them in full."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Creating an index in a bucket takes a second; `make test` has the first such test of each file."""
    files_met: set[Path] = set()
    for item in items:
        if "seaweedfs" not in item.name or HERE not in item.path.parents or item.path.stem in OF_THE_STORE:
            continue
        if item.path in files_met:
            item.add_marker(pytest.mark.full)
        files_met.add(item.path)


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

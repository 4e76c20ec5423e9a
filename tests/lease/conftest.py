"""Fixtures for the tests of locks and leases."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from lease.world import World

__all__ = ["poll", "world"]


@pytest.fixture
def world() -> World:
    """A fresh bucket, and a clock that is moved by hand."""
    return World()


@pytest.fixture
def poll() -> Callable[[Callable[[], bool]], None]:
    """Wait on the real clock until something is true."""

    def wait(ready: Callable[[], bool]) -> None:
        until_s = time.monotonic() + 30
        while not ready():
            assert time.monotonic() < until_s, "it did not happen within 30 s"
            time.sleep(0.01)

    return wait

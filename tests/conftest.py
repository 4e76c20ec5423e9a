"""Fixtures for all tests: real servers, one of each per test run."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from support.servers.process import Bucket, NotInstalled
from support.servers.shared import shared

__all__ = ["seaweedfs", "server"]


@pytest.fixture(scope="session")
def server() -> Callable[[str], Bucket]:
    """`server("seaweedfs")`, or "rgw", "azurite", "rclone": its bucket, started if need be.

    Skips the test where the server cannot be had, and names the package; fails instead when CI is set.
    """
    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())

    def start(name: str) -> Bucket:
        try:
            return shared(name, run_id)
        except NotInstalled as error:
            if os.environ.get("CI"):
                pytest.fail(str(error), pytrace=False)
            pytest.skip(str(error))

    return start


@pytest.fixture(scope="session")
def seaweedfs(server: Callable[[str], Bucket]) -> Bucket:
    """The run's SeaweedFS bucket. Tests share it: each takes a prefix of its own."""
    return server("seaweedfs")

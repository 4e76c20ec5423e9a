"""Fixtures for all tests: real servers, one of each per test run; a place of each kind; the command line."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from cli.harness import Done, Here
from support.servers.process import Bucket, NotInstalled
from support.servers.shared import shared

__all__ = ["here", "pytest_collection_finish", "seaweedfs", "server", "url"]

gc.disable()


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: to look for garbage among them would be 40 % of the CPU of collecting."""
    gc.freeze()
    gc.enable()


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


@pytest.fixture(params=["memory", "directory", "seaweedfs"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty place of each kind, which may be opened several times."""
    if request.param == "memory":
        yield f"memory://fleet-{uuid4().hex}"
    elif request.param == "directory":
        yield str(tmp_path / "fleet")
    else:
        bucket: Bucket = request.getfixturevalue("seaweedfs")
        for variable, value in bucket.env.items():
            monkeypatch.setenv(variable, value)
        yield bucket.at(f"fleet-{uuid4().hex}")


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    """`here("lock", "ls", ...)` runs `limpet lock ls ...` in this process."""
    from limpet.cli import main

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        said = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Done(exit_.value.code, said.out, said.err)

    return run

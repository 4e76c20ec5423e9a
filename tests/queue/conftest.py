"""Fixtures for the tests of the queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import limpet
from limpet.app import Fleet
from support.queue import World
from support.servers.process import Bucket

__all__ = ["fleet", "url", "world"]


@pytest.fixture
def world() -> World:
    """A fresh bucket, and a clock that is moved by hand."""
    return World()


@pytest.fixture(params=["memory", "directory", "seaweedfs"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty place of each kind, which may be opened several times."""
    if request.param == "memory":
        yield f"memory://queue-{uuid4().hex}"
    elif request.param == "directory":
        yield str(tmp_path / "fleet")
    else:
        bucket: Bucket = request.getfixturevalue("seaweedfs")
        for variable, value in bucket.env.items():
            monkeypatch.setenv(variable, value)
        yield bucket.at(f"queue-{uuid4().hex}")


@pytest.fixture
def fleet(url: str) -> Fleet:
    """A new fleet at that place, on the real clock."""
    return limpet.open(url)

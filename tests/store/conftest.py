"""A fresh store of every kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from limpet.kernel.store import Store
from support.servers.maker import KINDS, Maker
from support.servers.process import Bucket, temp_folder

__all__ = ["kind", "maker", "store"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """One of the kinds of store."""
    return str(request.param)


@pytest.fixture
def maker(kind: str, server: Callable[[str], Bucket]) -> Iterator[Maker]:
    """How to open an empty store of that kind; it is a new prefix or folder for every test."""
    if kind == "memory":
        yield Maker(kind, "", {})
    elif kind.startswith("directory"):
        folder = temp_folder()
        yield Maker(kind, str(folder), {})
        shutil.rmtree(folder)
    else:
        bucket = server(kind)
        yield Maker(kind, bucket.at(f"t-{uuid4().hex}"), dict(bucket.options))


@pytest.fixture
def store(maker: Maker) -> Store:
    """An empty store of that kind."""
    return maker.open()

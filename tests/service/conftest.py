"""One running `limpet serve` for the tests that only ask it something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.servers.catalog import CatalogServer, catalog_server

__all__ = ["served"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogServer]:
    """`limpet serve` on a directory, nothing configured. Tests share it: each takes namespaces of its own."""
    with catalog_server(str(tmp_path_factory.mktemp("served") / "fleet")) as server:
        yield server

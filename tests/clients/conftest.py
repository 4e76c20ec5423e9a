"""A served catalog on a directory and one on SeaweedFS; every test gets a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.catalog.rest import RestCatalog

from clients.serving import Place, place_in, whole
from support.servers.process import Bucket

__all__ = ["Served", "catalog", "namespace", "served"]


@dataclass(frozen=True, slots=True)
class Served:
    """A catalog that somebody serves."""

    url: str
    place: Place

    def catalog(self, **properties: str) -> RestCatalog:
        """A new PyIceberg client. It is told the address, and on S3 its keys; the server tells it the rest."""
        return RestCatalog("limpet", uri=self.url, **self.place.keys, **properties)


@contextmanager
def serving(place: Place, folder: Path) -> Iterator[Served]:
    """API and compactor in one process."""
    with whole(place, folder) as service:
        yield Served(service.wait().url, place)


@pytest.fixture(scope="session")
def _on_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("directory")
    with serving(Place(str(folder / "fleet")), folder) as served:
        yield served


@pytest.fixture(scope="session")
def _on_seaweedfs(seaweedfs: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(place_in(seaweedfs, f"clients-{uuid4().hex}"), tmp_path_factory.mktemp("seaweedfs")) as served:
        yield served


@pytest.fixture(params=["directory", "seaweedfs"])
def served(request: pytest.FixtureRequest) -> Served:
    """The catalog of this test run on each kind of store."""
    found: Served = request.getfixturevalue(f"_on_{request.param}")
    return found


@pytest.fixture
def catalog(served: Served) -> Iterator[RestCatalog]:
    """A PyIceberg client."""
    client = served.catalog()
    yield client
    client.close()


@pytest.fixture
def namespace(catalog: RestCatalog) -> str:
    """A namespace that nobody else uses."""
    name = f"n{uuid4().hex[:12]}"
    catalog.create_namespace(name)
    return name

"""Limpet's service through PyIceberg's own REST client: what a PyIceberg user sees, the client's CPU included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.catalogs import wire
from bench.catalogs.api import Client, Place, Threaded, needs
from bench.catalogs.peers import PyIcebergClient

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {"pyiceberg.catalog.rest": "pyiceberg"}


def connect(place: Place) -> Threaded:
    """`place.server` answers already."""
    return _Rest(place)


class _Rest(Threaded):
    def __init__(self, place: Place) -> None:
        self._place = place
        self._bare = wire.connect(place)

    def fill(self, tables: int) -> None:
        self._bare.fill(tables)

    def client(self) -> Client:
        """A catalog with a connection of its own."""
        rest: Any = needs("pyiceberg.catalog.rest", "pyiceberg")
        catalog = rest.RestCatalog("bench", uri=f"http://{self._place.server}", **self._place.properties)
        return PyIcebergClient(catalog, f"{self._place.url}/warehouse")

    def spent(self) -> Mapping[str, float]:
        """Nothing: the server counts."""
        return {}

    def count(self) -> int:
        return self._bare.count()

    def snapshots(self, names: Sequence[str]) -> int:
        return self._bare.snapshots(names)

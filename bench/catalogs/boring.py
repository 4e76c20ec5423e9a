"""boringcatalog: the whole catalog in one JSON file, next to table metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.catalogs.api import Client, Place, Threaded, needs
from bench.catalogs.peers import PyIcebergClient, count, metadata_files, properties_of, snapshots, spent
from bench.catalogs.work import NAMESPACE, table
from bench.catalogs.write import writer

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {"boringcatalog": "boringcatalog", "pyarrow": "pyarrow"}
NAME = "bench"


def connect(place: Place) -> Threaded:
    """Open it, or make it."""
    return _Boring(place)


class _Boring(Threaded):
    def __init__(self, place: Place) -> None:
        self._place = place
        self._uri = f"{place.url}/catalog/catalog_{NAME}.json"
        self._near = self._open(0.0)

    def _open(self, delay_s: float) -> Any:
        base = needs("boringcatalog", "boringcatalog").BoringCatalog
        # PyIceberg 0.12 wants two methods for views that boringcatalog 0.4 does not have yet.
        whole = type("Boring", (base,), {"load_view": None, "register_view": None})
        return whole(NAME, uri=self._uri, **properties_of(self._place, delay_s))

    def fill(self, tables: int) -> None:
        """The file as it is after so many `create_table`."""
        self._near.create_namespace(NAMESPACE)
        with writer(self._place) as write:
            found = metadata_files(self._place, [table(number) for number in range(tables)], write)
            catalog, _ = self._near._read_catalog_json()
            catalog["tables"] = {
                f"{NAMESPACE}.{name}": {"namespace": NAMESPACE, "name": name, "metadata_location": location}
                for name, location in found.items()
            }
            write(self._uri, json.dumps(catalog, indent=2).encode())

    def client(self) -> Client:
        return PyIcebergClient(self._open(self._place.delay_s), self._place.url)

    def spent(self) -> Mapping[str, float]:
        return spent()

    def count(self) -> int:
        return count(self._near)

    def snapshots(self, names: Sequence[str]) -> int:
        return snapshots(self._near, names)

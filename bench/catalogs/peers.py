"""Clients that are PyIceberg catalogs in this process: SqlCatalog, boringcatalog, and the REST client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from bench.catalogs.api import Client, Place
from bench.catalogs.far import DELAY, requests
from bench.catalogs.work import NAMESPACE, append_body, schema_json

__all__ = ["PyIcebergClient", "count", "metadata_files", "properties_of", "snapshots", "spent"]

AT_ONCE = 8
NAME_MARK, UUID_MARK = "TABLE-NAME", "00000000-0000-4000-8000-000000000000"


def properties_of(place: Place, delay_s: float) -> dict[str, str]:
    """How PyIceberg reaches the place: counted, and so far away."""
    return {
        "warehouse": place.url,
        "py-io-impl": "bench.catalogs.far.FarFileIO",
        DELAY: str(delay_s),
        **place.properties,
    }


class PyIcebergClient(Client):
    """One client: `create_table`, and `commit_table` as `append` calls it once its files are written."""

    def __init__(self, catalog: Any, warehouse: str) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._schema = Schema.model_validate(schema_json())
        self._tables: dict[str, Any] = {}
        self._nth: dict[str, int] = {}

    def prepare(self, names: Sequence[str]) -> None:
        """See `Client.prepare`."""
        for name in names:
            self._look(name)

    def create(self, name: str) -> None:
        """See `Client.create`."""
        self._catalog.create_table((NAMESPACE, name), self._schema)

    def append(self, name: str) -> None:
        """See `Client.append`. After a failure it looks at the table anew, as a writer does."""
        if name not in self._nth:
            self._look(name)
        nth = self._nth.pop(name) + 1
        request = CommitTableRequest.model_validate(append_body(name, nth, self._warehouse))
        self._catalog.commit_table(self._tables[name], request.requirements, request.updates)
        self._nth[name] = nth

    def _look(self, name: str) -> None:
        self._tables[name] = self._catalog.load_table((NAMESPACE, name))
        self._nth[name] = _newest(self._tables[name])


def metadata_files(place: Place, names: Sequence[str], write: Callable[[str, bytes], object]) -> dict[str, str]:
    """Write a first metadata file for each table, as the catalogs do; where each lies."""
    location = f"{place.url}/{NAMESPACE}/{NAME_MARK}"
    metadata = new_table_metadata(
        Schema.model_validate(schema_json()),
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        location,
        table_uuid=UUID_MARK,  # type: ignore[arg-type]
    )
    text = metadata.model_dump_json()
    places = {}
    for number, name in enumerate(names):
        uuid = f"{number:08x}{UUID_MARK[8:]}"
        places[name] = f"{place.url}/{NAMESPACE}/{name}/metadata/00000-{uuid}.metadata.json"
        write(places[name], text.replace(NAME_MARK, name).replace(UUID_MARK, uuid).encode())
    return places


def count(catalog: Any) -> int:
    """How many tables there are."""
    return len(catalog.list_tables(NAMESPACE))


def snapshots(catalog: Any, names: Sequence[str]) -> int:
    """How many snapshots those tables have together."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(lambda name: _newest(catalog.load_table((NAMESPACE, name))), names))


def spent() -> Mapping[str, float]:
    """Requests of this process's FileIO."""
    return dict(requests())


def _newest(table: Any) -> int:
    return int(table.metadata.current_snapshot_id or 0)

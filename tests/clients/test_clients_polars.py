"""Polars against the served catalog: it reads by itself and writes through PyIceberg."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from clients.conftest import Served

FRAME = pl.DataFrame({"id": [1, 2, 3], "city": ["Oslo", "Bergen", None]})


@pytest.fixture(autouse=True)
def _without_its_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars warns when it plans by PyIceberg without having been told to."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def options(table: Table) -> dict[str, Any]:
    """What PyIceberg knows of the store: Polars reads the data by itself, and must be told."""
    return {name: value for name, value in table.io.properties.items() if name.startswith("s3.")}


@pytest.mark.parametrize("reader", ["native", "pyiceberg"])
def test_polars_scans_a_table(served: Served, catalog: RestCatalog, namespace: str, reader: str) -> None:
    table = catalog.create_table((namespace, "t"), FRAME.to_arrow().schema)
    table.append(FRAME.to_arrow())
    first = table.current_snapshot()
    assert first is not None
    with table.update_schema() as update:
        update.rename_column("city", "town")
    table.append(pa.table({"id": [4], "town": ["Moss"]}))
    again = served.catalog().load_table((namespace, "t"))

    def scan(snapshot_id: int | None = None) -> pl.LazyFrame:
        return pl.scan_iceberg(
            again,
            snapshot_id=snapshot_id,
            storage_options=options(again),
            reader_override=reader,  # type: ignore[arg-type]
        )

    wanted = pl.DataFrame({"id": [2, 4], "town": ["Bergen", "Moss"]})
    assert_frame_equal(scan().filter(pl.col("id") % 2 == 0).collect().sort("id"), wanted)
    assert scan(first.snapshot_id).collect().height == 3


def test_polars_writes_a_table(served: Served, catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), FRAME.to_arrow().schema)
    FRAME.write_iceberg(table, mode="append")
    FRAME.head(1).write_iceberg(table, mode="append")
    assert catalog.load_table(table.name()).scan().count() == 4
    FRAME.write_iceberg(catalog.load_table(table.name()), mode="overwrite")
    again = served.catalog().load_table(table.name())
    assert_frame_equal(pl.scan_iceberg(again, storage_options=options(again)).collect().sort("id"), FRAME)


def test_polars_sinks_into_a_table(served: Served, catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), FRAME.to_arrow().schema)
    FRAME.lazy().filter(pl.col("id") > 1).sink_iceberg(table, mode="append", storage_options=options(table))
    again = served.catalog().load_table(table.name())
    assert_frame_equal(
        pl.scan_iceberg(again, storage_options=options(again)).collect().sort("id"), FRAME.filter(pl.col("id") > 1)
    )

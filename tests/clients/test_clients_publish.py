"""A published index as its readers see it: PyIceberg, DuckDB and Polars, on a directory and on SeaweedFS."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

import limpet
from cli.harness import Here, limpet_command
from clients.conftest import Served
from clients.ducks import attached, connect
from limpet.app import Fleet
from limpet.service.client import ServiceWriter
from support.publish import PACKAGE, Rec, by_sql, plain_rows, some


@pytest.fixture(autouse=True)
def _polars(monkeypatch: pytest.MonkeyPatch) -> None:
    """It warns when it plans by PyIceberg without having been told to."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture
def fleet(served: Served, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The served fleet, with the keys of its bucket."""
    for variable, value in served.place.env.items():
        monkeypatch.setenv(variable, value)
    return limpet.open(served.place.url)


@pytest.fixture
def name() -> str:
    """An index that nobody else uses."""
    return f"ix{uuid4().hex[:12]}"


ON_A_DIRECTORY = pytest.mark.parametrize(
    "served", ["directory", pytest.param("seaweedfs", marks=pytest.mark.full)], indirect=True
)
"""What these show does not depend on the store: a bucket runs them in full."""


@pytest.fixture
def run(served: Served, here: Here) -> Here:
    """`run("sites", ...)` is `limpet index publish sites ...` on the served fleet, in this process."""
    return lambda *arguments: here("index", "publish", *arguments, "--url", served.place.url)


def by_pyiceberg(catalog: RestCatalog, name: str) -> list[tuple[Any, ...]]:
    return plain_rows(catalog.load_table(("indexes", name)).scan().to_arrow())


def by_duckdb(served: Served, name: str) -> list[tuple[Any, ...]]:
    with closing(attached(served)) as duck:
        duck.execute("SET timezone = 'UTC'")
        return plain_rows(duck.execute(f'SELECT * FROM c.indexes."{name}"').to_arrow_table())


def by_polars(table: Table, reader: str) -> list[tuple[Any, ...]]:
    options = {name: value for name, value in table.io.properties.items() if name.startswith("s3.")}
    frame = pl.scan_iceberg(table, storage_options=options, reader_override=reader).collect()  # type: ignore[arg-type]
    return plain_rows(frame.to_arrow())


def check(served: Served, fleet: Fleet, name: str) -> None:
    """Everybody sees what our own SQL says."""
    wanted = by_sql(fleet, name)
    catalog = served.catalog()
    assert by_pyiceberg(catalog, name) == wanted
    assert by_duckdb(served, name) == wanted
    for reader in ("native", "pyiceberg"):
        assert by_polars(catalog.load_table(("indexes", name)), reader) == wanted
    catalog.close()


def test_everybody_reads_what_sql_says(served: Served, fleet: Fleet, name: str, run: Here) -> None:
    index = fleet.index(name, PACKAGE, key="domain")
    index.put_many(some(120))
    index.delete("d5.com")
    first = run(name, "--catalog", served.url, "--json")
    assert first.code == 0, first.err
    assert json.loads(first.out)["records"] == 119
    check(served, fleet, name)
    index.put_many(some(3, first=118))
    index.delete("d6.com")
    again = run(name, "--catalog", served.url)
    assert again.out.startswith(f"published 119 records of '{name}' as the table indexes.{name}: "), again.err
    check(served, fleet, name)
    same = run(name, "--catalog", served.url)
    assert same.out.startswith(f"the table indexes.{name} is up to date, with 119 records\n"), same.err


@ON_A_DIRECTORY
def test_columns_that_were_added_are_seen(served: Served, fleet: Fleet, name: str) -> None:
    fleet.index(name, Rec, key="domain").put_many(Rec(f"d{n}.com", n) for n in range(60))
    writer = ServiceWriter(served.url)
    fleet.publish_index(name, through=writer)

    @dataclass
    class More(Rec):
        more: list[str] | None = None

    index = fleet.index(name, More, key="domain")
    index.put(More("d1.com", 1, more=["x"]))
    done = fleet.publish_index(name, through=writer)
    assert (done.files_added, done.files_removed) == (1, 1)
    rows = by_sql(fleet, name)
    for found in (by_pyiceberg(served.catalog(), name), by_duckdb(served, name)):
        assert [row[:4] for row in found] == [row[:4] for row in rows]
        assert [row[4] and json.loads(row[4]) for row in found] == [row[4] for row in rows]


def _append(table: Table) -> None:
    table.append(pa.Table.from_pylist([{"domain": "stranger.com"}], schema=table.schema().as_arrow()))


def _delete(table: Table) -> None:
    table.delete("n < 30")


def _rename(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("text", "words")


def _replace_column(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("text")
    with table.update_schema() as update:
        update.add_column("text", table.schema().find_type("domain"))


def _add_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("mine", table.schema().find_type("domain"))


@ON_A_DIRECTORY
@pytest.mark.parametrize("change", [_append, _delete, _rename, _replace_column, _add_column])
def test_what_others_do_to_the_table_is_put_right(served: Served, fleet: Fleet, name: str, change: Any) -> None:
    index = fleet.index(name, Rec, key="domain")
    index.put_many(Rec(f"d{n}.com", n, f"text {n}") for n in range(60))
    writer = ServiceWriter(served.url)
    fleet.publish_index(name, through=writer)
    change(served.catalog().load_table(("indexes", name)))
    assert fleet.publish_index(name, through=writer).changed
    check(served, fleet, name)
    assert not fleet.publish_index(name, through=writer).changed


@ON_A_DIRECTORY
def test_duckdb_deletes_and_the_next_publication_brings_back(served: Served, fleet: Fleet, name: str) -> None:
    """DuckDB writes files of deletes beside ours; none of them outlives a refresh."""
    fleet.index(name, Rec, key="domain").put_many(Rec(f"d{n}.com", n) for n in range(60))
    writer = ServiceWriter(served.url)
    fleet.publish_index(name, through=writer)
    with closing(attached(served)) as duck:
        duck.execute(f'DELETE FROM c.indexes."{name}" WHERE n < 30')
    assert len(by_pyiceberg(served.catalog(), name)) == 30
    assert fleet.publish_index(name, through=writer).changed
    check(served, fleet, name)


def test_a_table_is_read_without_any_catalog(name: str, tmp_path: Path) -> None:
    """What the demo tells people to type."""
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    fleet.index(name, Rec, key="domain").put_many(Rec(f"d{n}.com", n) for n in range(60))
    done = fleet.publish_index(name)
    with closing(connect()) as duck:
        scan = f"SELECT count(*), sum(n) FROM iceberg_scan('{done.metadata_location}')"
        assert duck.execute(scan).fetchall() == [(60, sum(range(60)))]


@pytest.fixture
def publishers(served: Served, name: str) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


@ON_A_DIRECTORY
def test_publishers_at_once_in_processes_of_their_own(
    served: Served, fleet: Fleet, name: str, publishers: list[subprocess.Popen[str]]
) -> None:
    fleet.index(name, Rec, key="domain").put_many(Rec(f"d{n}.com", n) for n in range(200))
    command = limpet_command("index", "publish", name, "--catalog", served.url, "--url", served.place.url, "--json")
    for _ in range(3):
        publishers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    told = [(*process.communicate(timeout=100), process.returncode) for process in publishers]
    assert [code for _, _, code in told] == [0, 0, 0], told
    assert {json.loads(out)["records"] for out, _, _ in told} == {200}
    check(served, fleet, name)


@ON_A_DIRECTORY
def test_wrong_input(served: Served, fleet: Fleet, name: str, run: Here) -> None:
    fleet.index(name, Rec, key="domain").put(Rec("a.com", 1))
    other = f"{name}-other"
    fleet.index(other, Rec, key="domain").put(Rec("b.com", 1))
    served_by = ("--catalog", served.url)
    assert run(name, *served_by).code == 0
    wrong = {
        (f"{name}x", *served_by): (1, f"there is no index '{name}x'", f"did you mean '{name}'?"),
        (other, "--table", f"indexes.{name}", *served_by): (2, "was not created from the index", "--table"),
        (other, "--table", "alone", *served_by): (2, "has no namespace", "namespace.name"),
        (other, "--wait", "0"): (1, "leads the catalog", "--catalog http://HOST:PORT"),
        (other, "--catalog", "ftp://x"): (2, "is not a service's URL", "http://HOST:PORT"),
        (other, "--catalog", "http://127.0.0.1:9"): (1, "cannot be reached", "limpet serve"),
    }
    for arguments, (code, said, hint) in wrong.items():
        done = run(*arguments)
        first, second = done.err.splitlines()
        assert (done.code, done.out) == (code, ""), arguments
        assert said in first, arguments
        assert hint in second, arguments
    assert served.catalog().list_tables("indexes").count(("indexes", other)) == 0

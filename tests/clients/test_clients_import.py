"""`limpet catalog import`: the tables of a SQL catalog and of another service, registered in this one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

import limpet
from clients.serving import Place, whole
from limpet.catalog.iceberg.importer import ImportedTable
from limpet.cli import main
from limpet.service.client import ServiceWriter

ROWS = pa.table({"id": [1, 2, 3]})


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`run(...)` is `limpet catalog import ...` into the test's fleet: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("LIMPET_STORAGE_URL", str(tmp_path / "fleet"))

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(["catalog", "import", *arguments])
        said = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, said.out, said.err

    return call


@pytest.fixture
def fleet(tmp_path: Path) -> limpet.Fleet:
    """A fleet whose warehouse is also that of the SQL catalog."""
    return limpet.open(str(tmp_path / "fleet"))


@pytest.fixture
def sql(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("old", uri=uri(tmp_path), warehouse=f"file://{tmp_path}/fleet/warehouse")
    catalog.create_namespace("sales")
    catalog.create_namespace("sales.north")
    for name in ("sales.orders", "sales.north.orders", "sales.returns"):
        catalog.create_table(name, ROWS.schema).append(ROWS)
    catalog.update_namespace_properties("sales", updates={"owner": "me", "location": "s3://elsewhere/sales"})
    yield catalog
    catalog.engine.dispose()


def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/old.db"


def outcomes(found: Iterator[ImportedTable]) -> dict[str, str]:
    return {".".join((*each.namespace, each.name)): each.outcome for each in found}


def test_the_tables_of_a_sql_catalog_are_registered(tmp_path: Path, fleet: limpet.Fleet, sql: SqlCatalog) -> None:
    everything = dict.fromkeys(("sales.orders", "sales.returns", "sales.north.orders"), "imported")
    assert outcomes(fleet.import_catalog(uri(tmp_path), name="old", dry_run=True)) == everything
    assert fleet.catalog().namespaces().names == [], "nothing was done yet"
    assert outcomes(fleet.import_catalog(uri(tmp_path), name="old")) == everything
    catalog = fleet.catalog()
    assert catalog.namespace(["sales"]) == {}, "its location is elsewhere"
    assert catalog.tables(["sales", "north"]).names == ["orders"]
    assert outcomes(fleet.import_catalog(uri(tmp_path), name="old")) == dict.fromkeys(everything, "present")
    with (
        whole(Place(str(tmp_path / "fleet")), tmp_path) as service,
        RestCatalog("new", uri=service.wait().url) as client,
    ):
        orders = client.load_table(("sales", "orders"))
        assert orders.scan().to_arrow()["id"].to_pylist() == [1, 2, 3]
        orders.append(ROWS)
        client.drop_table(("sales", "returns"))
    sql.load_table("sales.north.orders").append(ROWS)
    sql.create_table("sales.later", ROWS.schema, location=f"file://{tmp_path}/fleet/warehouse/later")
    assert outcomes(fleet.import_catalog(uri(tmp_path), name="old")) == {
        "sales.orders": "present",
        "sales.returns": "imported",
        "sales.north.orders": "differs",
        "sales.later": "imported",
    }


def test_a_table_that_cannot_be_imported_is_reported_and_the_rest_goes_on(
    tmp_path: Path, fleet: limpet.Fleet, sql: SqlCatalog, run: Run
) -> None:
    elsewhere = f"file://{tmp_path}/elsewhere/t"
    sql.create_table("sales.away", ROWS.schema, location=elsewhere)
    damaged = sql.load_table("sales.returns").metadata_location
    Path(damaged.removeprefix("file://")).write_text("{")
    with fleet.lead_catalog() as catalog:
        catalog.create_namespace(["sales"])
        catalog.create_table(["sales"], {"name": "orders", "schema": {"type": "struct", "fields": []}})
    code, out, _ = run("--from", uri(tmp_path), "--name", "old", "--json")
    found: dict[str, Any] = json.loads(out)
    assert code == 1
    assert (found["imported"], found["present"], found["differs"], found["failed"]) == (1, 0, 1, 2)
    reasons = {each["table"]: each["reason"] for each in found["tables"]}
    assert "not inside the warehouse" in reasons["sales.away"]
    assert "not valid JSON" in reasons["sales.returns"]
    assert "other metadata" in reasons["sales.orders"]
    assert reasons["sales.north.orders"] == ""


def test_the_tables_of_another_service_are_registered(tmp_path: Path, run: Run) -> None:
    """Its warehouse is a folder of this one."""
    fleet = limpet.open(str(tmp_path / "fleet")).check()
    with whole(Place(str(tmp_path / "fleet/warehouse/old")), tmp_path) as service:
        url = service.wait().url
        with RestCatalog("old", uri=url) as client:
            client.create_namespace("sales", {"owner": "me"})
            client.create_table("sales.orders", ROWS.schema).append(ROWS)
            client.create_table("sales.v3", ROWS.schema, properties={"format-version": "3"})
        code, out, _ = run("--from", url)
        assert (code, out.splitlines()[-1]) == (0, "2 tables imported, 0 were here, 0 differ, 0 failed")
        assert outcomes(fleet.import_catalog(url)) == {"sales.orders": "present", "sales.v3": "present"}
    assert fleet.catalog().namespace(["sales"]) == {"owner": "me"}
    found = json.loads(fleet.catalog().load_table(["sales"], "v3").metadata)
    assert (found["format-version"], found["next-row-id"]) == (3, 0)


@pytest.mark.parametrize("wrong", ["sqlite:////nowhere/x.db", "http://127.0.0.1:1", "what://x"])
def test_a_catalog_that_cannot_be_read_is_one_error(fleet: limpet.Fleet, wrong: str, run: Run) -> None:
    fleet.check()
    code, _, err = run("--from", wrong)
    assert code in (1, 2)
    assert err.startswith("limpet: ")
    assert "Traceback" not in err


def test_a_service_registers_them(tmp_path: Path, sql: SqlCatalog, run: Run) -> None:
    with whole(Place(str(tmp_path / "fleet")), tmp_path) as service:
        url = service.wait().url
        fleet = limpet.open(str(tmp_path / "fleet"))
        found = fleet.import_catalog(uri(tmp_path), name="old", through=ServiceWriter(url))
        assert {*outcomes(found).values()} == {"imported"}
        code, out, _ = run("--from", uri(tmp_path), "--name", "old", "--service", url)
        assert (code, out) == (0, "0 tables imported, 3 were here, 0 differ, 0 failed\n")

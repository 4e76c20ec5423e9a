"""`limpet catalog import`: tables and views of a SQL catalog, of Glue and of another service are registered here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.view.metadata import ViewVersion

import limpet
from cli.harness import Here
from clients.serving import Place, whole
from limpet.catalog.iceberg import importer
from limpet.catalog.iceberg.importer import ImportedTable
from limpet.service.client import ServiceWriter

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def run(here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Here:
    """`run(...)` is `limpet catalog import ...` into the test's fleet: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("LIMPET_STORAGE_URL", str(tmp_path / "fleet"))
    return partial(here, "catalog", "import")


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
    assert catalog.namespace(["sales"]) == {"owner": "me"}, "its location is elsewhere"
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


def test_maintenance_here_leaves_the_other_catalog_its_table(
    tmp_path: Path, fleet: limpet.Fleet, sql: SqlCatalog
) -> None:
    """Its newest metadata file is in no metadata of ours. So an import can be repeated, and given up."""
    everything = dict.fromkeys(("sales.orders", "sales.returns", "sales.north.orders"), "present")
    assert {*outcomes(fleet.import_catalog(uri(tmp_path), name="old")).values()} == {"imported"}
    orphan = tmp_path / "fleet/warehouse/sales/orders/data/orphan.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (0, 0))  # only what is older than the listing may go
    gone = fleet.maintain(("sales",), "orders").remove_orphans(grace=timedelta(0), quiesced=True).files
    assert gone == ("sales/orders/data/orphan.parquet",)
    assert sql.load_table("sales.orders").scan().to_arrow() == ROWS
    assert outcomes(fleet.import_catalog(uri(tmp_path), name="old")) == everything


def test_a_table_that_cannot_be_imported_is_reported_and_the_rest_goes_on(
    tmp_path: Path, fleet: limpet.Fleet, sql: SqlCatalog, run: Here
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


def test_the_tables_of_another_service_are_registered(tmp_path: Path, run: Here) -> None:
    """Its warehouse is a folder of this one."""
    fleet = limpet.open(str(tmp_path / "fleet")).check()
    with whole(Place(str(tmp_path / "fleet/warehouse/old")), tmp_path) as service:
        url = service.wait().url
        with RestCatalog("old", uri=url) as client:
            client.create_namespace("sales", {"owner": "me"})
            client.create_table("sales.orders", ROWS.schema).append(ROWS)
            client.create_table("sales.v3", ROWS.schema, properties={"format-version": "3"})
            client.create_view(
                "sales.ids", client.load_table("sales.orders").schema(), view_version("SELECT id FROM orders")
            )
        code, out, _ = run("--from", url)
        assert (code, out.splitlines()[-1]) == (0, "3 imported, 0 were here, 0 differ, 0 failed")
        assert "imported  view sales.ids" in out
        everything = dict.fromkeys(("sales.orders", "sales.v3", "sales.ids"), "present")
        assert outcomes(fleet.import_catalog(url)) == everything
        with fleet.lead_catalog() as catalog:
            catalog.replace_view(["sales"], "ids", replacement("SELECT 1"))
        assert outcomes(fleet.import_catalog(url)) == everything, "it was changed here, and the old one was not"
        with RestCatalog("old", uri=url) as client:
            client.drop_view("sales.ids")
            client.create_view(
                "sales.ids", client.load_table("sales.orders").schema(), view_version("SELECT id FROM v3")
            )
        assert outcomes(fleet.import_catalog(url)) == {**everything, "sales.ids": "differs"}
    assert fleet.catalog().namespace(["sales"]) == {"owner": "me"}
    found = json.loads(fleet.catalog().load_table(["sales"], "v3").metadata)
    assert (found["format-version"], found["next-row-id"]) == (3, 0)


def view_version(sql: str, number: int = 1) -> ViewVersion:
    version = {
        "version-id": number,
        "schema-id": 0,
        "timestamp-ms": number,
        "summary": {},
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
        "default-namespace": ["sales"],
    }
    return ViewVersion.model_validate(version)


def replacement(sql: str) -> dict[str, Any]:
    version = view_version(sql, 2).model_dump(mode="json", by_alias=True)
    return {
        "requirements": [],
        "updates": [
            {"action": "add-view-version", "view-version": version},
            {"action": "set-current-view-version", "view-version-id": -1},
        ],
    }


def test_the_tables_of_glue_are_registered(
    tmp_path: Path, fleet: limpet.Fleet, run: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moto answers as Glue. A table that is not Iceberg's is passed over."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    fleet.check()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        glue = GlueCatalog("old", **{"glue.endpoint": endpoint, "glue.region": "eu-west-1"})
        glue.create_namespace("sales", {"location": f"file://{tmp_path}/fleet/warehouse/sales"})
        glue.create_table("sales.orders", ROWS.schema).append(ROWS)
        glue.glue.create_table(DatabaseName="sales", TableInput={"Name": "plain", "Parameters": {}})
        arguments = ("--from", "glue://eu-west-1", "--option", f"glue.endpoint={endpoint}")
        code, out, _ = run(*arguments)
        assert (code, out) == (0, "imported  sales.orders\n1 imported, 0 were here, 0 differ, 0 failed\n")
        assert run(*arguments)[1] == "0 imported, 1 were here, 0 differ, 0 failed\n"
    finally:
        server.stop()
    code, _, err = run(*arguments)
    assert (code, "Traceback" in err) == (1, False)
    assert json.loads(fleet.catalog().load_table(["sales"], "orders").metadata)["snapshots"]


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("through", ["service", "lead"])
def test_an_import_that_is_killed_is_started_again(tmp_path: Path, sql: SqlCatalog, through: str) -> None:
    """kill -9 after some tables; then each table is there once, and the report counts each one once."""
    tables = {f"sales.t{n:02}" for n in range(40)}
    for name in tables:
        sql.create_table(name, ROWS.schema, location=f"file://{tmp_path}/fleet/warehouse/{name}")
    everything = {*tables, "sales.orders", "sales.returns", "sales.north.orders"}
    limpet.open(str(tmp_path / "fleet")).check()
    with ExitStack() as stack:
        arguments = ["catalog", "import", "--from", uri(tmp_path), "--name", "old", "-u", str(tmp_path / "fleet")]
        if through == "service":
            service = stack.enter_context(whole(Place(str(tmp_path / "fleet")), tmp_path))
            arguments += ["--service", service.wait().url]
        else:
            arguments += ["--wait", "60"]
        here: set[str] = set()
        for kill_after in (1, 7, 20):
            command = [sys.executable, "-m", "limpet", *arguments]
            env = {**os.environ, "PYTHONUNBUFFERED": "1"}
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
                assert process.stdout is not None
                said = [process.stdout.readline().split() for _ in range(kill_after)]
                process.kill()
            assert all(outcome == "imported" for outcome, _ in said)
            named = {name for _, name in said}
            assert not named & here, "it was imported before the kill"
            here |= named
        done = subprocess.run([sys.executable, "-m", "limpet", *arguments, "--json"], capture_output=True, text=True)
        found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, found["failed"], found["differs"]) == (0, 0, 0)
    assert found["imported"] + found["present"] == len(everything)
    assert found["present"] >= len(here)
    assert {each["table"] for each in found["tables"]} == everything
    catalog = limpet.open(str(tmp_path / "fleet"), read_only=True).catalog()
    assert {f"sales.{name}" for name in catalog.tables(["sales"]).names} == everything - {"sales.north.orders"}


@pytest.mark.parametrize("wrong", ["sqlite:////nowhere/x.db", "http://127.0.0.1:1", "what://x"])
def test_a_catalog_that_cannot_be_read_is_one_error(fleet: limpet.Fleet, wrong: str, run: Here) -> None:
    fleet.check()
    code, _, err = run("--from", wrong)
    assert code in (1, 2)
    assert err.startswith("limpet: ")
    assert "Traceback" not in err


def test_a_service_registers_them(tmp_path: Path, sql: SqlCatalog, run: Here) -> None:
    with whole(Place(str(tmp_path / "fleet")), tmp_path) as service:
        url = service.wait().url
        fleet = limpet.open(str(tmp_path / "fleet"))
        found = fleet.import_catalog(uri(tmp_path), name="old", through=ServiceWriter(url))
        assert {*outcomes(found).values()} == {"imported"}
        code, out, _ = run("--from", uri(tmp_path), "--name", "old", "--service", url)
        assert (code, out) == (0, "0 imported, 3 were here, 0 differ, 0 failed\n")


class OddCatalog(BaseHTTPRequestHandler):
    """A REST catalog that is slow to end, wrong or hostile in many ways, below a prefix and with OAuth2 tokens."""

    metadata: dict[str, str]
    tokens = 0

    def do_POST(self) -> None:
        OddCatalog.tokens += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.say(200, {"access_token": "ok", "token_type": "bearer", "expires_in": 3600})

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        if path == "/v1/config":
            self.say(200, {"defaults": {}, "overrides": {"prefix": "a/b"}})
        elif self.headers.get("Authorization") != "Bearer ok":
            self.say(401, {})
        elif not path.startswith("/v1/a/b/namespaces"):
            self.say(404, {})
        else:
            self.answer([unquote(part) for part in path.split("/")[5:]], asked)

    def answer(self, parts: list[str], asked: dict[str, str]) -> None:
        match parts:
            case []:
                self.namespaces(asked)
            case [namespace]:
                self.say(500 if namespace == "broken" else 200, {"namespace": [namespace], "properties": {}})
            case ["endless", "tables"]:
                again = {"0": "1", "1": "2", "2": "1"}[asked.get("pageToken", "0")]
                self.say(200, {"identifiers": [], "next-page-token": again})
            case ["broken", "tables"]:
                self.say(500, {"error": {"message": "no", "type": "x", "code": 500}})
            case [namespace, "tables"]:
                names = ["good", "good", "gone", "fails", "no json", "no location", "away", "half"]
                self.say(200, {"identifiers": [{"namespace": namespace.split(SEPARATOR), "name": n} for n in names]})
            case [_, "tables", "good" | "half" as name]:
                self.say(200, {"metadata-location": self.metadata[name]})
            case [_, "tables", "fails"]:
                self.say(503, {"error": {"message": "not now", "type": "x", "code": 503}})
            case [_, "tables", "no json"]:
                self.say(200, "<html>")
            case [_, "tables", "no location"]:
                self.say(200, {"metadata-location": None})
            case [_, "tables", "away"]:
                self.say(200, {"metadata-location": "s3://elsewhere/t/metadata/x.metadata.json"})
            case _:
                self.say(404, {"error": {"message": "none", "type": "NoSuchTableException", "code": 404}})

    def namespaces(self, asked: dict[str, str]) -> None:
        inner = {"": [["a b+c.d/\u00e9"], ["broken"], ["endless"], ["flat"]], "flat": [["flat", "in"]]}
        if asked.get("parent") == "broken":
            self.say(404, {})
        elif "pageToken" not in asked and "parent" not in asked:
            self.say(200, {"namespaces": inner[""][:2], "next-page-token": "2"})
        else:
            self.say(200, {"namespaces": inner.get(asked.get("parent", ""), [])[0 if "parent" in asked else 2 :]})

    def say(self, status: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


SEPARATOR = "\x1f"


def test_an_odd_source_is_reported_table_by_table(
    tmp_path: Path, fleet: limpet.Fleet, sql: SqlCatalog, run: Here
) -> None:
    """Pages that do not end, names of all kinds, errors in the middle, what is no metadata: each is one line."""
    good = sql.load_table("sales.orders").metadata_location
    half = tmp_path / "fleet/warehouse/half/metadata/00000-x.metadata.json"
    half.parent.mkdir(parents=True)
    half.write_bytes(Path(good.removeprefix("file://")).read_bytes()[:100])
    fleet.check()
    OddCatalog.metadata = {"good": good, "half": f"file://{half}"}
    with ThreadingHTTPServer(("127.0.0.1", 0), OddCatalog) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        oauth = ("--option", "credential=me:secret", "--option", f"oauth2-server-uri={url}/v1/oauth/tokens")
        arguments = ("--from", url, *oauth, "--json")
        reports = [json.loads(run(*arguments)[1]) for _ in range(2)]
        code, out, err = run("--from", url, "--option", "token=wrong")
        server.shutdown()
    assert (code, out, "Traceback" in err) == (1, "", False)
    assert OddCatalog.tokens >= 2, "a token was asked for"
    first, second = ({each["table"]: each for each in report["tables"]} for report in reports)
    assert [first[name]["kind"] for name in ("broken", "endless")] == ["namespace", "namespace"]
    assert "do not end" in first["endless"]["reason"]
    odd = "a b+c.d/\u00e9"
    outcomes_of = {name: first[f"{odd}.{name}"]["outcome"] for name in ("good", "gone", "fails", "no json", "half")}
    assert outcomes_of == {
        "good": "imported",
        "gone": "failed",
        "fails": "failed",
        "no json": "failed",
        "half": "failed",
    }
    assert "not inside the warehouse" in first[f"{odd}.away"]["reason"]
    assert "metadata location" in first[f"{odd}.no location"]["reason"]
    for space in ("flat", "flat.in"):  # its folder belongs to the first one already
        assert (first[f"{space}.good"]["outcome"], second[f"{space}.good"]["outcome"]) == ("failed", "failed")
        assert "belongs to another table" in first[f"{space}.good"]["reason"]
    assert second[f"{odd}.good"]["outcome"] == "present"
    assert all(each["reason"] for each in first.values() if each["outcome"] == "failed")
    assert reports[0]["failed"] == reports[1]["failed"] == sum(each["outcome"] == "failed" for each in first.values())
    assert fleet.catalog().tables([odd]).names == ["good"]


class HostileCatalog(BaseHTTPRequestHandler):
    """A REST catalog that chooses settings for its clients, and whose answers do not end."""

    config: dict[str, Any]
    posted: list[str]

    def do_POST(self) -> None:
        self.posted.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.say({"access_token": "ok", "token_type": "bearer"})

    def do_GET(self) -> None:
        if self.path.startswith("/v1/config"):
            self.say(self.config)
        elif self.path.startswith("/v1/mine/namespaces"):
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b" " * 65536)
        else:
            self.send_error(404)

    def say(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize("part", ["defaults", "overrides"])
def test_a_source_chooses_neither_code_nor_the_receiver_of_a_secret(
    tmp_path: Path, fleet: limpet.Fleet, run: Here, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """PyIceberg calls the function that the server names in `auth`, and sends the secret where it says."""
    monkeypatch.setattr(importer, "ANSWER_BYTES_MAX", 1 << 20)
    fleet.check()
    made = tmp_path / "made by the source"
    with ThreadingHTTPServer(("127.0.0.1", 0), HostileCatalog) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code_of = {"type": "custom", "impl": "os.mkdir", "custom": {"path": str(made)}}
        theirs = {"prefix": "mine", "auth": code_of, "oauth2-server-uri": f"{url}/stolen", "ssl": {"cabundle": "/none"}}
        HostileCatalog.config, HostileCatalog.posted = {"defaults": {}, "overrides": {}, part: theirs}, []
        oauth = ("--option", "credential=me:secret", "--option", f"oauth2-server-uri={url}/v1/oauth/tokens")
        code, out, err = run("--from", url, *oauth)
        server.shutdown()
    assert not made.exists()
    assert {*HostileCatalog.posted} == {"/v1/oauth/tokens"}
    assert (code, out) == (1, "")
    assert "answers with more than 1 MiB" in err


def test_a_source_that_does_not_answer_at_all_is_an_error(
    fleet: limpet.Fleet, run: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "ANSWER_S", 0.2)
    fleet.check()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, _, err = run("--from", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert code == 1
    assert "timed out" in err

"""`limpet catalog ...` on a catalog that was made in this process; only `undrop --service` asks a running one."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import limpet
from cli.harness import Here
from limpet.app.catalogs import executions_of, storage_of
from limpet.catalog import NotLeader
from limpet.catalog.catalog import Catalog
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import system
from limpet.kernel.store.api import Absent
from support.servers.catalog import CatalogServer

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}

EARLIER_S = 1_600_000_000


@pytest.fixture
def run(here: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Here:
    """`run("log", ...)` is `limpet catalog log ...` on the test's fleet: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("LIMPET_STORAGE_URL", str(tmp_path / "fleet"))
    return partial(here, "catalog")


def as_json(done: tuple[int, str, str]) -> Any:
    code, out, err = done
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def fleet(tmp_path: Path) -> limpet.Fleet:
    """A catalog with a history: `a.t` was created, renamed to `a.u` and dropped; `a.v` is there."""
    made = limpet.open(tmp_path / "fleet")
    with made.lead_catalog() as catalog:
        catalog.create_namespace(["a"], {"owner": "[bold]me"})
        catalog.create_table(["a"], {"name": "t", "schema": SCHEMA})
        catalog.rename_table((["a"], "t"), (["a"], "u"))
        catalog.create_table(["a"], {"name": "v", "schema": SCHEMA})
        catalog.drop_table(["a"], "u")
    return made


def test_log(fleet: limpet.Fleet, run: Here) -> None:
    code, out, _ = run("log")
    assert code == 0
    lines = [line.split() for line in out.splitlines()[1:]]
    assert [line[0] for line in lines] == ["6", "5", "4", "3", "2", "1"]
    assert [" ".join(line[5:]) for line in lines] == [
        "drop table a.u",
        "create table a.v",
        "rename a.t -> a.u",
        "create table a.t",
        "create namespace a",
        "a new leader",
    ]
    newest, before = as_json(run("log", "-n", "2", "--json"))
    assert (newest["version"], before["version"]) == (6, 5)
    assert newest["rows"][0]["what"] == "drop table"
    assert newest["rows"][0]["changes"] == [{"kind": "table", "name": "a.u"}]


def test_show_now_and_then(fleet: limpet.Fleet, run: Here) -> None:
    _, out, _ = run("show")
    assert "version 6" in out
    assert "a.v" in out
    assert "a.u" not in out
    now = as_json(run("show", "--json"))
    assert now["namespaces"] == [{"namespace": ["a"], "properties": {"owner": "[bold]me"}}]
    assert [table["name"] for table in now["tables"]] == ["v"]
    for at in ("3", "v3"):
        assert [table["name"] for table in as_json(run("show", "--at", at, "--json"))["tables"]] == ["t"]
    moment = as_json(run("log", "-n", "3", "--json"))[2]["at"]
    assert as_json(run("show", "--at", moment, "--json"))["version"] == 4
    later = datetime.now(UTC).isoformat()
    assert as_json(run("show", "--at", later, "--json"))["version"] == 6


@pytest.mark.parametrize(
    ("at", "code", "said"),
    [
        ("yesterday", 2, "neither a version nor a time"),
        ("2026-11-16T12:00:00", 2, "the time has no time zone"),
        ("99", 1, "there is no version 99 yet"),
        ("2000-01-01T00:00:00Z", 1, "no retained commit matches"),
    ],
)
def test_show_of_what_never_was(fleet: limpet.Fleet, run: Here, at: str, code: int, said: str) -> None:
    done = run("show", "--at", at)
    assert (done[0], done[1]) == (code, "")
    assert said in done[2]


def test_verify_finds_a_changed_commit(fleet: limpet.Fleet, run: Here) -> None:
    assert run("verify")[:2] == (0, "the chain is whole: 6 commits, back to version 1; 1 metadata file\n")
    assert as_json(run("verify", "--json")) == {
        "ok": True,
        "commits": 6,
        "oldest": 1,
        "broken": None,
        "files": 1,
        "undigested": 0,
        "faults": [],
    }
    [oldest, *_] = fleet.store.list("commits/catalog")
    data = fleet.store.get(oldest.key).data
    fleet.store.put(oldest.key, data.replace(b'"version":1', b'"version":7'))
    code, out, _ = run("verify")
    assert code == 1
    assert "the chain is broken" in out


def test_undrop_without_a_service(fleet: limpet.Fleet, run: Here) -> None:
    code, out, _ = run("undrop", "a.u")
    assert code == 0
    assert "'a.u' is back" in out
    assert "Table already exists: a.u" in run("undrop", "a.u")[2]
    assert "no table or view 'a.x' was dropped" in run("undrop", "a.x")[2]
    assert run("undrop", "u")[0] == 2
    with fleet.lead_catalog() as catalog:
        catalog.drop_table(["a"], "u")
        code, _, err = run("undrop", "a/u", "--separator", "/")
        assert code == 1
        assert "leads the catalog" in err
        assert "--service" in err
    assert as_json(run("undrop", "a/u", "--separator", "/", "--json"))["name"] == "u"


def test_undrop_through_a_service(served: CatalogServer, run: Here) -> None:
    space = f"n{uuid4().hex[:12]}"
    assert served.ask("POST", "/v1/namespaces", {"namespace": [space]}).status == 200
    made = served.ask("POST", f"/v1/namespaces/{space}/tables", {"name": "t", "schema": SCHEMA}).json
    assert served.ask("DELETE", f"/v1/namespaces/{space}/tables/t").status == 204
    done = as_json(run("undrop", f"{space}.t", "--service", served.url, "--json"))
    assert done["metadata_location"] == made["metadata-location"]
    code, _, err = run("undrop", f"{space}.t", "--service", served.url)
    assert code == 1
    assert "409" in err
    assert "cannot be reached" in run("undrop", "a.b", "--service", "http://127.0.0.1:1")[2]
    assert run("undrop", "a.b", "--service", "nowhere")[0] == 2


def test_gc_keeps_what_is_needed(fleet: limpet.Fleet, run: Here) -> None:
    assert len([*fleet.store.list("ledger/catalog")]) == 6
    done = as_json(run("gc", "--json"))
    nothing = {"floor": "", "history": 0, "applied": 0, "dead": 0, "events": 0, "faults": []}
    assert done == nothing, "all of it is young"
    done = as_json(run("gc", "--keep", "0s", "--keep-versions", "1", "--grace", "0s", "--json"))
    assert done["applied"] == 6
    assert [*fleet.store.list("ledger/catalog")] == []
    assert fleet.catalog().verify().broken is None
    assert [*fleet.catalog().tables(["a"]).names] == ["v"]
    assert run("gc", "--keep", "soon")[0] == 2


def test_gc_of_an_idle_catalog_does_not_take_the_last_commit_for_now(
    fleet: limpet.Fleet, run: Here, tmp_path: Path
) -> None:
    """The head may look older than the newest batch: writers of a directory spread times over some milliseconds."""
    for stat in [*fleet.store.list()]:
        at_s = EARLIER_S + stat.key.startswith("ledger/")
        os.utime(tmp_path / "fleet" / stat.key, (at_s, at_s))
    done = as_json(run("gc", "--grace", "0s", "--json"))
    assert (done["applied"], [*fleet.store.list("ledger/catalog")]) == (6, [])


def test_quarantine(fleet: limpet.Fleet, run: Here) -> None:
    assert run("quarantine", "ls")[1] == "the quarantine is empty\n"
    executions = executions_of(fleet.store, system())
    id_ = system().new_id()
    path = executions.keys.batch(id_)
    fleet.store.put(path, b"{", when=Absent())
    executions.publish([path])
    [found] = as_json(run("quarantine", "ls", "--json"))
    assert (found["id"], found["path"]) == (id_, path)
    assert id_ in run("quarantine", "ls")[1]
    for arguments in (["--all"], [id_]):
        code, out, _ = run("quarantine", "retry", *arguments)
        assert code == 1
        assert "still cannot be read" in out
    assert run("quarantine", "retry")[0] == run("quarantine", "retry", "--all", id_)[0] == 2
    assert run("quarantine", "retry", "0" * 26)[0] == 1


def test_nothing_there(run: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for command in ("log", "show", "verify", "gc"):
        code, out, err = run(command)
        assert (code, out) == (1, "")
        assert "there is no fleet" in err
    assert not (tmp_path / "fleet").exists()
    limpet.open(tmp_path / "fleet").check()
    assert "nothing was ever published" in run("log")[1]
    assert run("show")[0] == 1
    monkeypatch.delenv("LIMPET_STORAGE_URL")
    monkeypatch.delenv("LIMPET_URL", raising=False)
    assert run("log")[0] == 2


def test_the_workspace_is_that_of_the_environment(run: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with limpet.open(tmp_path / "fleet" / "acme" / "prod").lead_catalog() as catalog:
        catalog.create_namespace(["mine"])
    monkeypatch.setenv("LIMPET_TENANT_ID", "acme")
    assert run("show")[0] == 2
    monkeypatch.setenv("LIMPET_WORKSPACE_ID", "prod")
    assert as_json(run("show", "--json"))["namespaces"][0]["namespace"] == ["mine"]


@pytest.mark.parametrize("removals", ["owner", {"owner": 1}, [1], ["\ud800"], None, 7])
def test_removals_that_are_no_list_of_names_are_refused(fleet: limpet.Fleet, removals: object) -> None:
    with fleet.lead_catalog() as catalog:
        with pytest.raises(Invalid):
            catalog.update_properties(["a"], removals)
        assert catalog.update_properties(["a"], ("owner", "x")) == {
            "updated": [],
            "removed": ["owner"],
            "missing": ["x"],
        }


def test_python_reads_and_leads(fleet: limpet.Fleet) -> None:
    catalog: Catalog = fleet.catalog()
    assert [*catalog.tables(["a"]).names] == ["v"]
    with pytest.raises(NotLeader):
        catalog.drop_table(["a"], "v")
    with fleet.lead_catalog() as leading:
        leading.drop_table(["a"], "v")
        with pytest.raises(NotLeader, match="leads the catalog"), fleet.lead_catalog(wait_s=0):
            pass
    assert [*catalog.tables(["a"]).names] == []
    storage = storage_of(fleet.store, system())
    lock = json.loads(fleet.store.get(storage.keys.lock).data)
    assert lock["state"] == "free"

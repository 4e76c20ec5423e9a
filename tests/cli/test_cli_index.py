"""`limpet index`: create, ls, schema, put, get, delete, stats."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import limpet
from cli.harness import Done, Here
from limpet.kernel.keys import IndexKeys

FIELDS = ("--field", "domain:string", "--field", "visits:integer?", "--field", "at:datetime?", "--key", "domain")


@pytest.fixture
def index(here: Here) -> Here:
    """`index("get", "sites", ...)` runs `limpet index get sites ... -u fleet`."""
    return lambda *arguments: here("index", *arguments, "-u", "fleet")


@pytest.fixture
def sites(index: Here) -> Here:
    """An index with three columns."""
    assert index("create", "sites", *FIELDS).code == 0
    return index


def _refused(done: Done, code: int, said: str, hint: str = "") -> None:
    assert (done.code, done.out) == (code, "")
    first, *hints = done.err.splitlines()
    assert first.startswith("limpet: ")
    assert said in first
    assert all(each.startswith("hint: ") for each in hints)
    assert hint in "".join(hints)


def test_create(index: Here) -> None:
    done = index("create", "sites", *FIELDS, "--depth", "3")
    assert (done.code, done.err) == (0, "")
    assert done.out == "created 'sites': 4,096 shards, key 'domain', columns domain, visits, at, updated_at\n"
    manifest = limpet.open("fleet").index("sites").manifest
    assert [(field.name, field.type, field.required) for field in manifest.schema.columns] == [
        ("domain", "string", True),
        ("visits", "integer", False),
        ("at", "datetime", False),
        ("updated_at", "datetime", False),
    ]


def test_create_again_changes_nothing_or_adds(sites: Here) -> None:
    assert "'sites' was there already; nothing was changed" in sites("create", "sites", *FIELDS).out
    more = sites("create", "sites", *FIELDS, "--field", "title:string?")
    assert "'sites' was there, and has new columns now: 256 shards, key 'domain', columns domain, visits" in more.out
    _refused(sites("create", "sites", *FIELDS, "--depth", "3"), 2, "has depth 2, not 3", "leave depth out")


def test_create_by_a_data_package(index: Here) -> None:
    Path("table.json").write_text(json.dumps({"fields": [{"name": "id", "type": "integer"}], "primaryKey": "id"}))
    told = json.loads(index("create", "x", "--schema", "table.json", "--json").out)
    assert told == {
        "index": "x",
        "key": "id",
        "depth": 2,
        "schema_version": 1,
        "fields": [
            {"name": "id", "type": "integer", "required": True},
            {"name": "updated_at", "type": "datetime", "required": False},
        ],
    }


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        ((), "name the columns with --field or --schema", "--field domain:string --key domain"),
        (("--field", "a:string", "--schema", "x"), "name the columns with --field or --schema", "--field"),
        (("--field", "a:string"), "name the key column", "--key a"),
        (("--field", "a:string", "--key", "b"), "there is no field 'b' to be the key", "the fields are a"),
        (
            ("--field", "a:text", "--key", "a"),
            "'a:text' is not a column: there is no type 'text'",
            "the types are string",
        ),
        (("--field", "a", "--key", "a"), "'a' is not a column: it has no type", "write name:type"),
        (("--field", "a:number", "--key", "a"), "a key is a string or an integer", ""),
        (("--field", "a:string", "--field", "a:string", "--key", "a"), "there are two fields 'a'", ""),
        (("--schema", "nowhere.json"), "cannot read nowhere.json", ""),
    ],
)
def test_columns_that_make_no_sense_create_nothing(
    index: Here, arguments: tuple[str, ...], said: str, hint: str
) -> None:
    _refused(index("create", "sites", *arguments), 2, said, hint)
    assert not Path("fleet").exists()


def test_ls(sites: Here) -> None:
    sites("create", "other", *FIELDS)
    sites("put", "sites", '{"domain": "a.com"}')
    sites("compile", "sites")
    rows = json.loads(sites("ls", "--json").out)
    assert [(row["index"], row["records"], row["shards"]) for row in rows] == [("other", 0, 256), ("sites", 1, 256)]
    said = sites("ls").out.splitlines()
    assert said[0].split() == ["index", "key", "columns", "shards", "records", "size"]
    assert said[2].split()[:5] == ["sites", "domain", "4", "256", "1"]


def test_ls_of_an_empty_fleet(index: Here) -> None:
    limpet.open("fleet").check()
    assert index("ls").out == "there is no index at fleet; `limpet index create` makes one\n"
    assert index("ls", "--json").out == "[]\n"


def test_schema(sites: Here) -> None:
    said = sites("schema", "sites").out.splitlines()
    assert said[0] == "sites  schema version 1, 256 shards"
    assert [line.split() for line in said[2:]] == [
        ["domain", "string", "key"],
        ["visits", "integer", "may", "be", "null"],
        ["at", "datetime", "may", "be", "null"],
        ["updated_at", "datetime", "stamped"],
    ]


def test_schema_grows(sites: Here) -> None:
    added = sites("schema", "sites", "--add", "title:string", "--add", "tags:array?")
    assert added.out.splitlines()[-1] == "added title, tags"
    again = sites("schema", "sites", "--add", "title:string")
    assert again.out.splitlines()[-1] == "it has them already; nothing was changed"
    told = json.loads(sites("schema", "sites", "--json").out)
    assert (told["schema_version"], [field["name"] for field in told["fields"]][-2:]) == (2, ["title", "tags"])
    _refused(sites("schema", "sites", "--add", "visits:string"), 2, "the field 'visits' is integer, not string")
    _refused(sites("schema", "nope"), 1, "there is no index 'nope' at fleet", "there is sites")
    _refused(sites("schema", "site", "--add", "a:string"), 1, "there is no index 'site'", "did you mean 'sites'?")


def test_put_get_delete(sites: Here) -> None:
    record = '{"domain": "a.com", "visits": 5, "at": "2026-01-02T03:04:05+01:00"}'
    assert sites("put", "sites", record).out == "put 'a.com' into 'sites'\n"
    got = sites("get", "sites", "a.com")
    assert (got.code, got.err) == (0, "")
    assert got.out.splitlines()[:3] == ["domain      a.com", "visits      5", "at          2026-01-02T02:04:05Z"]
    assert sites("delete", "sites", "a.com", "b.com").out == "deleted 2 keys of 'sites'\n"
    _missing = sites("get", "sites", "a.com")
    assert (_missing.code, _missing.out) == (1, "")
    assert _missing.err == "limpet: there is no record 'a.com' in 'sites'\n"


def test_get_several(sites: Here) -> None:
    for domain in ("a", "b"):
        sites("put", "sites", json.dumps({"domain": domain}))
    done = sites("get", "sites", "b", "nope", "a", "--json")
    assert done.code == 1
    assert [json.loads(line)["domain"] for line in done.out.splitlines()] == ["b", "a"]
    assert done.err == "limpet: there is no record 'nope' in 'sites'\n"


def test_a_terminal_is_safe_from_what_a_record_says(sites: Here) -> None:
    sites("schema", "sites", "--add", "title:string")
    sites("put", "sites", json.dumps({"domain": "a", "title": "[red]x[/red]\x1b[2J\ny"}))
    assert "title       [red]x[/red]\\x1b[2J\\ny" in sites("get", "sites", "a").out.splitlines()


def test_integer_keys(index: Here) -> None:
    index("create", "x", "--field", "id:integer", "--key", "id")
    index("put", "x", '{"id": 7}')
    assert json.loads(index("get", "x", "7", "--json").out)["id"] == 7
    _refused(index("get", "x", "seven"), 2, "the key 'id': expected integer, got 'seven'")
    _refused(index("delete", "x", "7", "seven"), 2, "the key 'id': expected integer, got 'seven'")
    assert index("get", "x", "7").code == 0


def test_put_from_stdin(sites: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"domain": "a"}\n')))
    assert sites("put", "sites", "-", "--json").out == '{\n  "index": "sites",\n  "key": "a"\n}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"domain": "a"}\n{"domain": "b"}\n')))
    _refused(sites("put", "sites", "-"), 2, "the record is not valid JSON: Extra data", "limpet index import")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("{domain}", "the record is not valid JSON"),
        ("[1]", "the record is a JSON array, and a record is a JSON object"),
        ('{"visits": 1}', "field 'domain': expected the key, got nothing"),
        ('{"domain": "a", "visits": "5"}', "the record 'a': field 'visits': expected integer, got str '5'"),
        ('{"domain": "a", "at": "soon"}', "field 'at': expected datetime, got 'soon'"),
        ('{"domain": "a", "nope": 1}', "there is no field 'nope'"),
        ('{"domain": ""}', "the key 'domain' is empty"),
    ],
)
def test_a_record_that_is_bad(sites: Here, record: str, said: str) -> None:
    _refused(sites("put", "sites", record), 2, said)


@pytest.mark.parametrize(
    "arguments",
    [
        ("put", "nope", '{"domain": "a"}'),
        ("get", "nope", "a"),
        ("delete", "nope", "a"),
        ("stats", "nope"),
        ("export", "nope", "x.csv"),
        ("compile", "nope"),
        ("compile", "sites", "nope"),
        ("schema", "nope"),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_an_index_that_is_not_there(sites: Here, arguments: tuple[str, ...]) -> None:
    _refused(sites(*arguments), 1, "there is no index 'nope' at ")
    assert json.loads(sites("ls", "--json").out)[0]["index"] == "sites"


def test_a_fleet_that_is_not_there(index: Here) -> None:
    for arguments in (("ls",), ("get", "x", "a"), ("put", "x", "{}"), ("compile",), ("stats", "x")):
        _refused(index(*arguments), 1, "there is no fleet at ")
    assert not Path("fleet").exists()


def _stats(index: Here) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(index("stats", "sites", "--json").out)
    return told


def test_stats(sites: Here) -> None:
    fleet = limpet.open("fleet")
    handle = fleet.index("sites")
    handle.put_many({"domain": f"d{n}"} for n in range(600))
    handle.put({"domain": "single"})
    before = _stats(sites)
    assert (before["records"], before["bytes"], before["largest"], before["compiled_at"]) == (0, 0, None, None)
    assert before["singles"]["objects"] + before["packs"]["objects"] >= 200
    assert before["oldest_s"] is not None
    assert before["requests"] == {"get": 1, "list": 1}
    handle.compile(full=True)
    handle.put({"domain": "d1"})
    fleet.store.put(IndexKeys.of("sites").quarantined("00", "x"), b"{}")
    after = _stats(sites)
    assert (after["records"], after["singles"]["objects"], after["packs"]["objects"]) == (601, 1, 0)
    assert (after["quarantined"], after["shards"], after["schema_version"]) == (1, 256, 1)
    assert after["bytes"] == sum(handle.storage.shard(f"{n:02x}").size for n in range(256))
    assert after["largest"]["bytes"] == max(handle.storage.shard(f"{n:02x}").size for n in range(256))
    said = sites("stats", "sites").out
    assert "601 in the shards" in said
    assert "waiting     1 single of " in said
    assert "quarantine  1 object" in said
    assert said.splitlines()[-1] == "This took 2 requests: 1 GET, 1 LIST."


def test_create_over_files_of_another_program_writes_nothing(index: Here, tmp_path: Path) -> None:
    """In 0.1 236 empty shards were written first, and the hint was to delete what was there."""
    store = limpet.open("fleet").store
    keys = IndexKeys.of("sites")
    theirs = {keys.shard(f"{n:02x}"): f"d{n}.com\x1f{n}\n".encode() for n in range(20)}
    for key, data in theirs.items():
        store.put(key, data)
    done = index("create", "sites", *FIELDS)
    _refused(done, 1, "holds 20 shards with records", "limpet index adopt sites --quiesced")
    assert "nothing was written" in done.err
    assert {stat.key for stat in store.list(keys.root)} == {*theirs}
    assert "remove" not in done.err


def test_a_column_becomes_nullable_only_by_an_explicit_step(sites: Here) -> None:
    assert sites("create", "strict", "--field", "id:string", "--field", "n:integer", "--key", "id").code == 0
    assert sites("put", "strict", '{"id": "a", "n": 1}').code == 0
    assert sites("create", "strict", "--field", "id:string", "--field", "n:integer?", "--key", "id").code == 0
    _refused(sites("put", "strict", '{"id": "b"}'), 2, "field 'n': expected integer, got nothing", "--allow-null n")
    done = sites("schema", "strict", "--allow-null", "n")
    assert (done.code, "may be null" in done.out) == (0, True)
    assert sites("put", "strict", '{"id": "b"}').code == 0
    _refused(sites("schema", "strict", "--allow-null", "id"), 2, "is the key")


def test_damaged_shards_are_left_out_only_on_request(sites: Here, tmp_path: Path) -> None:
    records = "".join(f"site{n}.com,{n}\n" for n in range(300))
    Path("more.csv").write_text(f"domain,visits\n{records}")
    assert sites("import", "sites", "more.csv").code == 0
    assert sites("compile", "sites", "--full").code == 0
    store, keys = limpet.open("fleet").store, IndexKeys.of("sites")
    damaged = max((stat for stat in store.list(keys.shards) if stat.key.endswith(".usv")), key=lambda stat: stat.size)
    whole = int(json.loads(sites("sql", "select count(*) as n from sites", "--json").out)[0]["n"])
    lost = store.get(damaged.key).data.count(b"\n")
    store.put(damaged.key, b"")
    for command in (("sql", "select count(*) as n from sites", "--json"), ("export", "sites", "all.jsonl")):
        done = sites(*command)
        assert (done.code, "had" in done.err) == (1, True)
        assert "--skip-damaged" not in done.err
    assert not Path("all.jsonl").exists()
    done = sites("sql", "select count(*) as n from sites", "--json", "--skip-damaged")
    assert (done.code, json.loads(done.out)) == (1, [{"n": whole - lost}])
    assert f"{damaged.key} was left out (it had {lost} records)" in done.err
    assert "1 damaged shard was left out" in done.err
    done = sites("export", "sites", "all.jsonl", "--skip-damaged")
    assert (done.code, Path("all.jsonl").read_bytes().count(b"\n")) == (1, whole - lost)
    assert f"exported {whole - lost:,} records" in done.out
    assert "1 damaged shard was left out" in done.err
    done = sites("export", "sites", "-", "--format", "jsonl", "--skip-damaged")
    assert (done.code, done.out.count("\n")) == (1, whole - lost)

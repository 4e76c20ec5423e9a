"""SQL over indexes: the same answer as `scan`, typed, on every store; and nothing else of the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import limpet
from limpet.app import Fleet
from limpet.index import Index, shard_id
from limpet.index.decide import rank
from limpet.index.sql import _PURE, _VOLATILE, _WITH_EFFECTS, Parameters, refused_functions
from limpet.index.sql import sql as ask
from limpet.index.sql_rows import Rows
from limpet.index.sql_tables import SMALL_BYTES, table_of
from limpet.kernel.errors import Corrupt, Denied, Invalid, LimpetError, Unavailable
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.runtime import system
from limpet.kernel.store import Blob, ScopedStore, Store
from support.costs import requests
from support.index import NAME, REFUSED_SQL, Rec, at, keys_in, objects

NASTY = 'quote " slash \\ null \\N line \n return \r unit \x1f record \x1e nul \x00 del \x7f sep \u2028 crab \U0001f980'
KEYS = IndexKeys.of(NAME)

LARGE = "x" * (SMALL_BYTES + 1)
"""A record that makes its shard one that DuckDB reads in its place."""

pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")


def sql(fleet: Fleet, query: str, parameters: Parameters | None = None, **options: Any) -> Rows:
    return ask(fleet.store, system(), query, parameters, **options)


def one(fleet: Fleet, query: str, parameters: Parameters | None = None, **options: Any) -> Any:
    """The only value of the only row."""
    [[value]] = sql(fleet, query, parameters, **options)
    return value


def recs(fleet: Fleet) -> Index[Rec]:
    return fleet.index(NAME, Rec, key="key")


def texts(fleet: Fleet) -> dict[str, str | None]:
    """What SQL shows, which is what `scan` shows."""
    found: dict[str, str | None] = dict(sql(fleet, f"select key, text from {NAME}"))
    assert found == {record.key: record.text for record in recs(fleet).scan()}
    return found


def put_line(store: Store, line: bytes, *, depth: int = 2, pack: bool = False) -> None:
    """A line that waits, as some writer of any version left it."""
    key, stamp = line.split(b"\x1f")[0].decode(), line.split(b"\x1f")[2].decode()
    shard = shard_id(key, depth)
    place = KEYS.pack(shard, system().new_id()) if pack else KEYS.single(shard, key, stamp, system().new_id())
    store.put(place, line + b"\n")


@pytest.fixture
def memory() -> Fleet:
    """A new fleet in memory, for what does not depend on the store."""
    return limpet.open("memory://")


@dataclass
class Wide:
    """A column of each kind."""

    name: str
    number: float | None = None
    count: int | None = None
    good: bool | None = None
    day: date | None = None
    seen: datetime | None = None
    extra: dict[str, Any] | None = None
    tags: list[str] = field(default_factory=list)
    what: Any = None


def test_types(fleet: Fleet) -> None:
    index = fleet.index("wide", Wide, key="name")
    seen = datetime(2026, 3, 4, 5, 6, 7, 890123, tzinfo=UTC)
    full = Wide("full", 2.5, -(2**63), True, date(1, 1, 1), seen, {"a": [1, None]}, ["\x7f", "\\"], "text")
    for record in (full, Wide("bare")):
        index.put(record)
    rows = sql(fleet, "select * exclude (updated_at) from wide order by name desc")
    assert [Wide(**row) for row in rows.dicts()] == [full, Wide("bare")]
    types = ["VARCHAR", "DOUBLE", "BIGINT", "BOOLEAN", "DATE", "TIMESTAMP WITH TIME ZONE", "JSON", "JSON", "JSON"]
    assert list(rows.types) == types
    assert rows.columns == ("name", "number", "count", "good", "day", "seen", "extra", "tags", "what")
    assert rows[0][5].tzinfo is UTC


def test_numbers_sort_as_numbers_and_text_as_bytes(fleet: Fleet) -> None:
    index = fleet.index("wide", Wide, key="name")
    index.put_many([Wide(name, count=count) for name, count in (("é", 10), ("z", 9), ("Z", -1), ("a", 100))])
    assert [row for [row] in sql(fleet, "select count from wide order by count")] == [-1, 9, 10, 100]
    assert [row for [row] in sql(fleet, "select name from wide order by name")] == ["Z", "a", "z", "é"]


def test_what_waits_and_what_is_compiled_are_one_table(fleet: Fleet) -> None:
    index = recs(fleet)
    index.put_many([Rec("a", "old"), Rec("b", "old"), Rec("c", "old"), Rec("large", LARGE), Rec("gone", LARGE)])
    index.compile(full=True)
    index.put(Rec("a", "new"))
    index.delete("b")
    index.delete("gone")
    index.put_many([Rec("d", "new"), *(Rec(key, "pack") for key in keys_in(shard_id("c"), 2))])
    expected = {"a": "new", "c": "old", "d": "new", "large": LARGE, **dict.fromkeys(keys_in(shard_id("c"), 2), "pack")}
    assert texts(fleet) == expected
    index.compile(full=True)
    assert texts(fleet) == expected


@pytest.mark.parametrize("newer", ["base", "waits"])
def test_the_later_one_wins_wherever_it_is(fleet: Fleet, newer: str) -> None:
    index = fleet.index(NAME, Rec, key="key")
    base, waits = (at(2), at(1)) if newer == "base" else (at(1), at(2))
    index.put({"key": "a", "text": "base", "updated_at": base})
    index.put({"key": "gone", "text": "base", "updated_at": base})
    index.compile(full=True)
    index.put({"key": "a", "text": "waits", "updated_at": waits})
    schema = index.manifest.schema
    put_line(fleet.store, schema.tombstone("gone", waits.strftime("%Y-%m-%dT%H:%M:%S.%fZ")))
    assert texts(fleet) == ({"a": "base", "gone": "base"} if newer == "base" else {"a": "waits"})


STAMP = b"2026-01-01T00:00:00.000000Z"
GOOD = b"\x1f".join((b"a", b"text", STAMP, b"0"))
TIES = [
    *[(b"a", b"b"), (b"\\N", b"A"), (b"\\N", b"z"), (b"a", b"a "), (b"a", b"a\\n"), (b"", b"\\N")],
    *[(b"\xc3\xa9", b"z"), (b"\xf0\x9f\xa6\x80", b"\xef\xbf\xbd"), (b"a\xc2\xa0", b"a\\x1f")],
]


@pytest.mark.parametrize("swapped", [False, True])
def test_ties_are_told_as_everywhere(fleet: Fleet, swapped: bool) -> None:
    index = recs(fleet)
    shape = index.manifest.schema.shape
    expected = {}
    for waits in (False, True):
        for number, pair in enumerate(TIES):
            lines = [b"\x1f".join((b"k%d" % number, text, STAMP, b"0")) for text in pair]
            put_line(fleet.store, lines[waits ^ swapped])
            expected[f"k{number}"] = index.manifest.schema.values(max(lines, key=lambda line: rank(line, shape)))[
                "text"
            ]
        if not waits:
            index.compile(full=True)
    assert texts(fleet) == expected


def test_a_tie_with_a_tombstone(fleet: Fleet) -> None:
    index = recs(fleet)
    index.manifest  # noqa: B018 - the first look creates it
    live = {key: b"\x1f".join((key, b"zzz", STAMP, b"0")) for key in (b"a", b"b")}
    gone = {key: b"\x1f".join((key, b"\\N", STAMP, b"1")) for key in (b"a", b"b")}
    put_line(fleet.store, live[b"a"])
    put_line(fleet.store, gone[b"b"])
    index.compile(full=True)
    put_line(fleet.store, gone[b"a"])
    put_line(fleet.store, live[b"b"])
    assert texts(fleet) == {}


@dataclass
class Later:
    """`Rec`, with two columns that came later."""

    key: str
    text: str | None = None
    colour: str | None = None
    size: int | None = None


def test_lines_of_an_older_schema_are_short(fleet: Fleet) -> None:
    recs(fleet).put_many([Rec("a", "base"), Rec("b", "base")])
    recs(fleet).compile(full=True)
    recs(fleet).put(Rec("b", "single"))
    index = fleet.index(NAME, Later, key="key")
    index.put(Later("c", None, "red", 7))
    query = f"select key, text, colour, size from {NAME} order by key"
    expected = [("a", "base", None, None), ("b", "single", None, None), ("c", None, "red", 7)]
    assert list(sql(fleet, query)) == expected
    index.compile(full=True)
    assert list(sql(fleet, query)) == expected


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("tail", [b"A", b"\\N", b"z"])
def test_a_tie_between_a_short_and_a_long_line(memory: Fleet, tail: bytes, swapped: bool) -> None:
    recs(memory).manifest  # noqa: B018 - the first look creates it
    index = memory.index(NAME, Later, key="key")
    short = b"\x1f".join((b"k", b"\\N", STAMP, b"0"))
    long = b"\x1f".join((b"k", b"\\N", STAMP, b"0", tail, b"\\N"))
    first, second = (long, short) if swapped else (short, long)
    put_line(memory.store, first)
    index.compile(full=True)
    put_line(memory.store, second)
    assert one(memory, f"select colour from {NAME}") == {b"A": "A", b"\\N": None, b"z": "z"}[tail]


def test_lines_of_a_newer_schema_are_long(fleet: Fleet) -> None:
    index = recs(fleet)
    index.manifest  # noqa: B018 - the first look creates it
    long = [b"\x1f".join((key, b"new", STAMP, b"0", b"red", b"7")) for key in (b"a", b"b")]
    put_line(fleet.store, long[0])
    index.compile(full=True)
    put_line(fleet.store, long[1])
    index.put(Rec("c"))
    assert texts(fleet) == {"a": "new", "b": "new", "c": None}
    assert sql(fleet, f"from {NAME}").columns == ("key", "text", "updated_at")


@settings(max_examples=12, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=20, unique=True))
@example([NASTY, "\\", "\\n", "\\\\n", "\\N", "\\\\N", "\\x0a", "\ufeff", "\ufeffa", "", " ", "null", "'", "\x00"])
def test_every_string_survives(strings: list[str]) -> None:
    fleet = limpet.open("memory://")
    index = recs(fleet)
    index.put_many([Rec(text, text) for text in strings if text])
    index.compile_shards([shard_id(text) for text in strings[::2] if text], full=True)
    index.put(Rec("all", "".join(strings)))
    assert texts(fleet) == {text: text for text in strings if text} | {"all": "".join(strings)}
    assert one(fleet, f"select count(*) from {NAME} where text = ?", ["".join(strings)]) >= 1


@pytest.mark.parametrize("where", ["waits", "small", "large"])
def test_a_byte_order_mark_at_the_start_is_text(fleet: Fleet, where: str) -> None:
    index = recs(fleet)
    text = LARGE if where == "large" else None
    index.put_many([Rec(f"\ufeff{number}", text) for number in range(3)])
    if where != "waits":
        index.compile(full=True)
    assert texts(fleet) == {f"\ufeff{number}": text for number in range(3)}


def test_an_empty_index(fleet: Fleet) -> None:
    recs(fleet).manifest  # noqa: B018 - the first look creates it
    assert texts(fleet) == {}
    assert one(fleet, f"select count(*) from {NAME}") == 0
    recs(fleet).delete("never")
    assert texts(fleet) == {}


def test_a_deep_index(memory: Fleet) -> None:
    index = memory.index(NAME, Rec, key="key", depth=3)
    index.put_many([Rec(f"k{number}", "old") for number in range(50)])
    index.compile(full=True)
    index.put(Rec("k7", "new"))
    assert texts(memory) == {f"k{number}": "new" if number == 7 else "old" for number in range(50)}


@dataclass
class Owner:
    """Who owns what; the key is a number, and not the first column."""

    name: str
    id: int
    owns: str | None = None


def test_indexes_of_a_fleet_join(fleet: Fleet) -> None:
    recs(fleet).put_many([Rec("a", "1"), Rec("b", "2"), Rec("c", "3")])
    owners = fleet.index("owners", Owner, key="id")
    owners.put_many([Owner("Ann", 10, "a"), Owner("Bob", 9, "b"), Owner("Cy", 11)])
    owners.compile(full=True)
    owners.put(Owner("Bo", 9, "a"))
    query = f"select name, text from owners join {NAME} on owns = key order by id"
    assert list(sql(fleet, query)) == [("Bo", "1"), ("Ann", "1")]
    assert one(fleet, f"with o as (from owners) select count(*) from o, {NAME} r, {NAME} s where r.key = s.key") == 9


def test_names_that_need_quotes(memory: Fleet) -> None:
    for name in ("my-index", 'a "b".c', "select", "Mixed", "é'"):
        memory.index(name, Rec, key="key").put(Rec("k", name))
        quoted = name.replace('"', '""')
        assert one(memory, f'select text from "{quoted}"') == name


def test_columns_that_need_quotes(memory: Fleet) -> None:
    fields = [
        {"name": name, "type": "string"} for name in ('the "key"', "rank", "b0", "of_base", "w", "line", "select")
    ]
    index = memory.index("odd", {"fields": fields}, key='the "key"')
    record = {each["name"]: each["name"] for each in fields}
    index.put(record)
    index.compile(full=True)
    index.put({**record, "rank": "new"})
    [row] = sql(memory, "select * exclude (updated_at) from odd").dicts()
    assert row == {**record, "rank": "new"}


def test_names_do_not_depend_on_case(memory: Fleet) -> None:
    recs(memory).put(Rec("a"))
    assert one(memory, f"select count(*) from {NAME.upper()} x join {NAME} y using (key)") == 1


def test_names_that_differ_only_in_case(memory: Fleet) -> None:
    for name in ("twin", "Twin"):
        memory.index(name, Rec, key="key").put(Rec("k", name))
    assert one(memory, "select text from twin") == "twin"
    assert one(memory, "select text from Twin") == "Twin"
    with pytest.raises(Invalid, match="'Twin' and 'twin', two indexes that SQL cannot tell apart"):
        sql(memory, "select * from twin, Twin")
    with pytest.raises(Invalid, match="there is no index 'TWIN'"):
        sql(memory, "select * from TWIN")


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (f"describe {NAME}", [("key", "VARCHAR"), ("text", "VARCHAR"), ("updated_at", "TIMESTAMP WITH TIME ZONE")]),
        ("show tables", [(NAME,)]),
        ("values (1, 'a')", [(1, "a")]),
        (f"(select key from {NAME}) union all select 'x' from range(1)", [("a",), ("x",)]),
        (f"from {NAME} select key", [("a",)]),
        (f"table {NAME}", [("a", None)]),
        ("-- a comment\nselect 1;", [(1,)]),
        (f"select column_name from (summarize {NAME}) limit 1", [("key",)]),
        (f"select count(*) from query_table('{NAME}')", [(1,)]),
    ],
)
def test_what_counts_as_a_select(memory: Fleet, query: str, rows: list[tuple[Any, ...]]) -> None:
    recs(memory).put(Rec("a"))
    assert [row[: len(expected)] for row, expected in zip(sql(memory, query), rows, strict=True)] == rows


def test_parameters(memory: Fleet) -> None:
    recs(memory).put_many([Rec("a"), Rec("'; drop")])
    assert one(memory, f"select count(*) from {NAME} where key = ?", ["'; drop"]) == 1
    assert one(memory, f"select key from {NAME} where key >= $least", {"least": "a"}) == "a"
    with pytest.raises(Invalid):
        sql(memory, f"select * from {NAME} where key = ?")


# ---- what it costs ----


def test_a_compiled_index_costs_two_lists_and_its_shards(fleet: Fleet, url: str) -> None:
    recs(fleet).manifest  # noqa: B018 - the first look creates it
    # not by compiling: some buckets list an emptied folder for a while
    fleet.store.put(KEYS.shard(shard_id("a")), GOOD + b"\n")
    shards = 0 if "://" not in url else 256
    cost = requests(fleet, lambda: one(fleet, f"select count(*) from {NAME} a join {NAME} b using (key)"))
    assert cost == {"get": 1 + shards, "list": 2}
    assert requests(fleet, lambda: one(fleet, "select 1")) == {}
    assert requests(fleet, lambda: sql(fleet, f"describe {NAME}")) == {"get": 1}


def test_a_wrong_query_reads_no_record(memory: Fleet) -> None:
    recs(memory).put(Rec("a"))

    def wrong() -> None:
        with pytest.raises(Invalid):
            sql(memory, f"select nothing from {NAME}")

    assert requests(memory, wrong) == {"get": 1}


def test_only_what_waits_is_looked_for(fleet: Fleet, url: str) -> None:
    index = recs(fleet)
    index.put(Rec("a"))
    index.put(Rec("a"))
    index.put_many([Rec(key) for key in keys_in(shard_id("a"), 2)])
    shards = 0 if "://" not in url else 256
    cost = requests(fleet, lambda: one(fleet, f"select count(*) from {NAME}"))
    assert cost == {"get": 1 + 3 + shards, "list": 2 + 2}


def test_a_reader_may_ask(fleet: Fleet, url: str) -> None:
    recs(fleet).put(Rec("a"))
    reader = limpet.open(url, read_only=True)
    assert one(reader, f"select count(*) from {NAME}") == 1


def test_nothing_is_left_behind(memory: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "tmp"
    home.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(home))
    monkeypatch.chdir(home)
    recs(memory).put_many([Rec("a"), Rec("b")])
    assert one(memory, f"select count(*) from {NAME}") == 2
    with pytest.raises(Invalid):
        sql(memory, f"select error('x') from {NAME}")
    assert [*home.iterdir()] == []


# ---- what goes wrong ----


def test_a_missing_shard_is_an_error(fleet: Fleet) -> None:
    recs(fleet).put(Rec("a"))
    key = KEYS.shard(shard_id("b"))
    fleet.store.delete(key)
    with pytest.raises(Corrupt, match=f"{key} is missing"):
        sql(fleet, f"select count(*) from {NAME}")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (GOOD, "does not end with a line feed"),
        (b"a\x1ftext\n", "a line that is no record"),
        (GOOD[:-1] + b"2\n", "a line that is no record"),
        (b"a\x1f\xff\x1f" + STAMP + b"\x1f0\n", "not what Limpet wrote"),
    ],
)
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_bad_shard_is_an_error(fleet: Fleet, data: bytes, said: str, size: str) -> None:
    recs(fleet).manifest  # noqa: B018 - the first look creates it
    good = b"\x1f".join((b"b", LARGE.encode(), STAMP, b"0\n")) if size == "large" else b""
    fleet.store.put(KEYS.shard(shard_id("a")), good + data)
    with pytest.raises(Corrupt, match=said) as caught:
        sql(fleet, f"select count(*), max(text) from {NAME}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("below", ["inbox", "packs"])
def test_a_bad_object_that_waits_is_an_error(memory: Fleet, below: str) -> None:
    recs(memory).manifest  # noqa: B018 - the first look creates it
    name = "x/1-2.usv" if below == "inbox" else "1.usv"
    memory.store.put(Key(f"{KEYS.root}/{below}/{shard_id('a')}/{name}"), b"rubbish\n")
    with pytest.raises(Corrupt, match="rubbish"):
        sql(memory, f"select count(*) from {NAME}")


@pytest.mark.parametrize(
    ("query", "said", "hint"),
    [
        ("select * from nope", "there is no index 'nope'", f"there is {NAME}"),
        (f"select txt from {NAME}", 'Referenced column "txt" not found', "Candidate bindings"),
        ("select nofunction(1)", "nofunction does not exist", "Did you mean"),
        ("selec 1", 'Parser Error: syntax error at or near "selec"', ""),
        (f"select key + 1 from {NAME} where text", "Error", ""),
        (f"select cast(key as int) from {NAME}", "Could not convert string", ""),
        ("select '1'::bit as x", "column 'x' is of type BIT", "cast it"),
        ("select ['1'::bit] as x", "column 'x' is of type BIT", "cast it"),
        ("select timestamptz 'infinity' as x", "a value of column 'x' does not fit", "cast it"),
        ("select 1 as a, 2 as a", "two columns are called 'a'", "another name"),
    ],
)
def test_a_wrong_query_is_told_in_one_line(memory: Fleet, query: str, said: str, hint: str) -> None:
    recs(memory).put(Rec("a", "x"))
    with pytest.raises(Invalid) as caught:
        [*sql(memory, query).dicts()]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hint in caught.value.hint
    assert "\n" not in caught.value.hint


@pytest.mark.parametrize("allow_files", [False, True])
@pytest.mark.parametrize("query", REFUSED_SQL["not_selects"])
def test_only_a_select_is_run(query: str, allow_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match="that is not one SELECT"):
        sql(limpet.open("memory://"), query, allow_files=allow_files)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("query", REFUSED_SQL["files"])
def test_no_file_can_be_read(query: str, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("s3cret\n")
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    index = recs(fleet)
    index.put(Rec("a"))
    index.compile(full=True)
    names = {
        "path": tmp_path / "secret.txt",
        "folder": tmp_path,
        "fleet": tmp_path / "fleet",
        "shards": tmp_path / "fleet" / KEYS.shards,
        "shard": shard_id("a"),
    }
    with pytest.raises(Invalid) as caught:
        sql(fleet, query.format(**names))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("allow_files", [False, True])
@pytest.mark.parametrize("query", REFUSED_SQL["effects"])
def test_a_select_has_no_effects(query: str, allow_files: bool, tmp_path: Path) -> None:
    """Settings are locked and files are closed, and these write all the same, or end the process."""
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    recs(fleet).put(Rec("a"))
    recs(fleet).compile(full=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for place in (tmp_path / "log", tmp_path / "fleet" / KEYS.shards):
        with pytest.raises(Invalid, match="a query may not call"):
            sql(fleet, query.format(place=place), allow_files=allow_files)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_every_table_function_of_duckdb_is_known_or_refused(memory: Fleet) -> None:
    """A new DuckDB brings new functions: none of them may be called until somebody has looked at it."""
    recs(memory).put(Rec("a"))
    rows = sql(memory, "select distinct function_name as f from duckdb_functions() where function_type = 'table'")
    allowed = []
    for (name,) in rows:
        with pytest.raises(Invalid) as caught:
            sql(memory, f"select * from {name}('a', 'b', 'c', 'd', 'e', 'f', 'g')")
        if "may not call" not in str(caught.value):
            allowed.append(name)
    assert set(allowed) <= _PURE


def test_every_function_of_duckdb_with_side_effects_is_known_or_refused(memory: Fleet) -> None:
    """Those of a later version are refused until somebody has looked at them, and macros that call one too."""
    rows = sql(memory, "select distinct function_name as f from duckdb_functions() where has_side_effects")
    names = {name for (name,) in rows}
    assert names <= _VOLATILE | _WITH_EFFECTS, "look at the new ones, and note what they are"
    refused = refused_functions()
    assert names - _VOLATILE <= refused
    assert refused >= _WITH_EFFECTS
    assert refused - _WITH_EFFECTS == {"pg_sleep"}, "a macro that calls sleep_ms"
    assert "now" not in refused


def test_an_unknown_function_with_side_effects_is_refused(memory: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.index.sql._VOLATILE", frozenset())
    refused_functions.cache_clear()
    try:
        for query in ("select random()", "select 1 where 1 < (select random())", "select sum(random()) over ()"):
            with pytest.raises(Invalid, match=r"may not call random\(\)"):
                sql(memory, query)
    finally:
        refused_functions.cache_clear()


def test_functions_that_only_compute_may_be_called(memory: Fleet) -> None:
    assert list(sql(memory, "select * from range(3)")) == [(0,), (1,), (2,)]
    assert list(sql(memory, "select unnest([1, 2])")) == [(1,), (2,)]
    assert list(sql(memory, """select key from json_each('{"a": 1}')""")) == [("a",)]


def test_files_can_be_allowed(memory: Fleet, tmp_path: Path) -> None:
    recs(memory).put_many([Rec("a"), Rec("b")])
    (tmp_path / "mine.csv").write_text("key,n\na,1\nc,2\n")
    query = f"select key, n from '{tmp_path}/mine.csv' join {NAME} using (key)"
    assert list(sql(memory, query, allow_files=True)) == [("a", 1)]


def test_memory_is_limited(memory: Fleet) -> None:
    recs(memory).put(Rec("a"))
    assert one(memory, f"select count(*) from {NAME}", memory="300MB") == 1
    with pytest.raises(Invalid, match="Memory"):
        sql(memory, "select 1", memory="lots")
    with pytest.raises(Unavailable, match="Out of Memory"):
        sql(memory, "select list(range::varchar) from range(5000000)", memory="20MB")


def test_without_the_extra_it_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "import limpet; from limpet.index.sql import sql; from limpet.kernel.runtime import system\n"
        "try: sql(limpet.open('memory://').store, system(), 'select 1')\n"
        "except limpet.LimpetError as error: print(error, error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "SQL needs DuckDB and pyarrow pip install 'limpet[sql]'\n"


@pytest.mark.parametrize("name", ["glob[1]*", "it's", "héllo wörld", "key=other", "semi;colon"])
def test_folders_with_odd_names(tmp_path: Path, name: str) -> None:
    for folder, text in (("glob1", "decoy"), (name, LARGE)):
        fleet = limpet.open(tmp_path / folder / "Fleet", durability="os")
        index = recs(fleet)
        index.put(Rec("a", text))
        index.compile(full=True)
        index.put(Rec("b", "2"))
    assert texts(fleet) == {"a": LARGE, "b": "2"}


def test_a_link_is_no_shard(tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    recs(fleet).put(Rec("a"))
    path = tmp_path / "fleet" / KEYS.shard(shard_id("b"))
    path.unlink()
    (tmp_path / "secret").write_bytes(GOOD + b"\n")
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(Denied, match="is a symbolic link"):
        sql(fleet, f"select * from {NAME}")


class Meddled(ScopedStore):
    """The same store; `act` runs once, just after the calls that fill `after` were answered."""

    def __init__(self, store: Store, after: Sequence[str], act: Callable[[], object]) -> None:
        super().__init__(store)
        self.after = [*after]
        self.act = act

    def get(self, key: Key, **conditions: Any) -> Blob:
        blob = super().get(key, **conditions)
        self._answered(key)
        return blob

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        names = super().list_dirs(prefix)
        self._answered(prefix)
        return names

    def _answered(self, what: str) -> None:
        if what in self.after:
            self.after.remove(what)
            if not self.after:
                self.act()


@pytest.mark.parametrize("step", ["listed", "read"])
def test_a_compiler_that_comes_between(fleet: Fleet, step: str) -> None:
    """What moves from the inbox into the shards while a query runs is seen, at the one place or the other."""
    index = recs(fleet)
    index.put_many([Rec(f"k{number}", "old") for number in range(20)])
    index.compile(full=True)
    index.put_many([Rec(f"k{number}", "new") for number in range(30)])
    index.delete("k0")
    waiting = [*objects(fleet.store, "inbox"), *objects(fleet.store, "packs")]
    after = [KEYS.packs] if step == "listed" else waiting
    meddled = Meddled(fleet.store, after, lambda: index.compile(full=True))
    rows = ask(meddled, system(), f"select key, text from {NAME}")
    assert dict(rows) == {f"k{number}": "new" for number in range(1, 30)}
    assert objects(fleet.store, "inbox") == []


def test_queries_beside_writers_and_compilers(tmp_path: Path) -> None:
    """Every acknowledged put is in every later answer, while a shard is replaced under the reader."""
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    keys = keys_in("00", 300)
    recs(fleet).put_many([Rec(key, "x" * 2000) for key in keys[:50]])
    recs(fleet).compile(full=True)
    assert (tmp_path / "fleet" / KEYS.shard("00")).stat().st_size > SMALL_BYTES
    acknowledged = 50
    failed: list[LimpetError] = []
    stop = threading.Event()

    def write() -> None:
        nonlocal acknowledged
        handle = limpet.open(tmp_path / "fleet", durability="os").index(NAME, Rec, key="key")
        try:
            for key in keys[50:]:
                handle.put(Rec(key, "y" * 2000))
                acknowledged += 1
                handle.compile_shards(["00"], full=True)
                if stop.is_set():
                    return
        except LimpetError as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(8):
            before = acknowledged
            count, distinct, size = sql(fleet, f"select count(*), count(distinct key), min(length(text)) from {NAME}")[
                0
            ]
            assert count >= before
            assert (count, size) == (distinct, 2000)
    finally:
        stop.set()
        writer.join()
    assert failed == []
    assert acknowledged > 50


# ---- rows ----


def _rows(query: str) -> Rows:
    return sql(limpet.open("memory://"), query)


def test_rows_are_a_sequence() -> None:
    rows = _rows("select range as n, range * 2 as twice from range(25000)")
    assert len(rows) == 25000
    assert [*rows] == [(n, 2 * n) for n in range(25000)]
    assert rows[-1] == (24999, 49998)
    assert rows[2:6:2] == [(2, 4), (4, 8)]
    assert next(rows.dicts()) == {"n": 0, "twice": 0}
    with pytest.raises(IndexError):
        rows[25000]


VALUES: Sequence[tuple[str, Any]] = [
    ("sum(range) from range(10)", 45),
    ("170141183460469231731687303715884105727::hugeint", 2**127 - 1),
    ("340282366920938463463374607431768211455::uhugeint", 2**128 - 1),
    ("1.50::decimal(5,2)", Decimal("1.50")),
    ("interval '1 day 2 hours'", timedelta(days=1, hours=2)),
    ("timestamptz '2026-01-02 03:04:05.000006+02'", datetime(2026, 1, 2, 1, 4, 5, 6, tzinfo=UTC)),
    ("timestamp '2026-01-02 03:04:05'", datetime(2026, 1, 2, 3, 4, 5)),
    ("[timestamptz '2026-01-02 03:04:05+00', null]", [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), None]),
    ("""{'a': 1::hugeint, 'b': '{"c": [1]}'::json}""", {"a": 1, "b": {"c": [1]}}),
    ("map {'a': 1::hugeint}", {"a": 1}),
    ("'null'::json", None),
    ("null", None),
    *[(f"'{text}'::json", json.loads(text)) for text in ("[" * 65 + "]" * 65, str([[n] for n in range(99)]))],
    *[(f"'{text}'::json", text) for text in ("[" * 66 + "]" * 66, "[" * 700 + "]" * 700, "9" * 4400)],
    ("'ab'::blob", b"ab"),
    ("[1, 2]::int[2]", [1, 2]),
    ("'x'::enum('x', 'y')", "x"),
    ("uuid '00000000-0000-0000-0000-000000000001'", "00000000-0000-0000-0000-000000000001"),
]


@pytest.mark.parametrize(("expression", "value"), VALUES)
def test_values_are_python_values(expression: str, value: Any) -> None:
    [[found]] = _rows(f"select {expression}")
    assert (found, type(found)) == (value, type(value))
    if isinstance(found, datetime) and found.tzinfo:
        assert found.tzinfo is UTC


def test_rows_are_arrow(tmp_path: Path) -> None:
    rows = _rows("select 1::bigint as n, timestamptz '2026-01-02 03:04:05+00' as at, 'x' as s where true")
    assert pa.table(rows).equals(rows.arrow())
    assert rows.arrow().schema.field("at").type == pa.timestamp("us", tz="UTC")
    rows.parquet(str(tmp_path / "x.parquet"))
    assert pq.read_table(tmp_path / "x.parquet").schema.field("n").type == pa.int64()
    nothing = _rows("select 1 as a, 'x' as b where false")
    assert (len(nothing), [*nothing], nothing.types) == (0, [], ("INTEGER", "VARCHAR"))


def test_rows_print_as_a_table() -> None:
    rows = _rows("select * from (values (1, 'a', null), (20, 'b\nc\x1b[31m\u202e', true)) t(n, text, ok)")
    assert str(rows).splitlines() == [
        " n  text                ok",
        "--  ------------------  ----",
        " 1  a                   null",
        "20  b\\nc\\x1b[31m\\u202e  true",
        "(2 rows)",
    ]
    many = str(_rows("select range as n, repeat('x', 100) as long from range(41)")).splitlines()
    assert many[-1] == "(41 rows, the first 40 shown)"
    assert len(many) == 2 + 40 + 1
    assert max(map(len, many)) < 70


def test_the_table_of_an_index_that_is_not_there() -> None:
    store = limpet.open("memory://").store
    assert table_of(store, system(), "nope") is None
    assert table_of(store, system(), "\x00") is None


def test_shards_beyond_the_limit_of_open_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    index = recs(fleet)
    index.put_many([Rec(key, LARGE) for key in "abcdefgh"])
    index.compile(full=True)
    before = len(os.listdir("/proc/self/fd"))
    for open_max in (0, 3):
        monkeypatch.setattr("limpet.index.sql_tables.OPEN_MAX", open_max)
        assert texts(fleet) == dict.fromkeys("abcdefgh", LARGE)
    assert len(os.listdir("/proc/self/fd")) == before, "no file stays open"


ENDLESS = "select count(*) from range(1000000000000)"


def test_query_is_interrupted_when_its_time_is_over(fleet: Fleet) -> None:
    recs(fleet).put(Rec("a", "x"))
    for query in (ENDLESS, f"select key from {NAME} where ({ENDLESS}) > 0", f"summarize ({ENDLESS})"):
        with pytest.raises(Unavailable, match=r"stopped after 0\.2 s"):
            sql(fleet, query, timeout_s=0.2)
    assert one(fleet, f"select text from {NAME}", timeout_s=60) == "x"
    assert not [each for each in threading.enumerate() if each.name == "limpet-sql-timer"]


def test_wrong_query_with_a_time_limit_is_wrong(fleet: Fleet) -> None:
    with pytest.raises(Invalid, match="Parser"):
        sql(fleet, "selec", timeout_s=60)
    with pytest.raises(Invalid, match="needs time"):
        sql(fleet, "select 1", timeout_s=0)

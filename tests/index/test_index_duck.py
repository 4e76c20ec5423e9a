"""What DuckDB makes of the lines of an index, by our pieces of SQL."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limpet.index import sql_tables as duck
from limpet.index.codec import Field, Schema
from limpet.index.types import extended, with_own
from limpet.index.values import KINDS
from support.values import VALUES, hard_texts

duckdb = pytest.importorskip("duckdb")

SESSION = duckdb.connect()
SESSION.execute("set timezone = 'UTC'")
STAMP = "2026-03-01T00:00:00.000000Z"
STRINGS = with_own([Field("k", "string"), Field("a", "string"), Field("b", "string")], "k")
FULL = with_own([Field("k", "integer"), *(Field(f"a {kind}", kind) for kind in KINDS)], "k")

often = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _read(path: Path, schema: Schema, lines: list[bytes], rest: str = "") -> list[dict[str, Any]]:
    """The live records of those lines, in their order."""
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    query = f"select {duck.select(schema)} from read_csv({duck.literal(str(path))}, {duck.options(schema)})"
    found = SESSION.sql(f"{query} where \"_deleted\" = '0' {rest}").to_arrow_table().to_pylist()
    assert isinstance(found, list)
    return found


@often
@given(st.lists(st.tuples(hard_texts, st.none() | hard_texts), min_size=1, max_size=30))
def test_any_string_survives(tmp_path: Path, rows: list[tuple[str, str | None]]) -> None:
    lines = [
        STRINGS.line({"k": str(at), "a": text, "b": other}, STAMP, where="") for at, (text, other) in enumerate(rows)
    ]
    found = _read(tmp_path / "it.usv", STRINGS, lines)
    assert [(row["a"], row["b"]) for row in found] == rows


@often
@given(st.lists(st.fixed_dictionaries({f"a {kind}": st.none() | VALUES[kind] for kind in KINDS}), max_size=5))
def test_a_value_of_any_kind_survives(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    lines = [FULL.line({"k": at, **row}, STAMP, where="") for at, row in enumerate(rows)]
    found = _read(tmp_path / "it.usv", FULL, lines)
    for at, (row, seen) in enumerate(zip(rows, found, strict=True)):
        for kind in ("object", "array", "any"):
            text = seen.pop(f"a {kind}")
            assert row[f"a {kind}"] == (None if text is None else json.loads(text))
        assert seen == {"k": at, **{name: row[name] for name in seen if name in row}, "updated_at": seen["updated_at"]}
        assert seen["updated_at"] == datetime(2026, 3, 1, tzinfo=UTC)


def test_columns_sort_as_what_they_are(tmp_path: Path) -> None:
    schema = with_own([Field("k", "integer"), Field("at", "datetime"), Field("day", "date"), Field("x", "number")], "k")
    times = [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 999, 2026, 9999)]
    lines = [
        schema.line({"k": number, "at": at, "day": at.date(), "x": number / 3}, STAMP, where="")
        for number, at in zip((-10, -9, 9, 10), times, strict=True)
    ]
    for column in ("k", "at", "day", "x"):
        found = _read(tmp_path / "it.usv", schema, lines[::-1], f"order by {duck.identifier(column)}")
        assert [row["k"] for row in found] == [-10, -9, 9, 10], column
    assert [row["at"] for row in found] == times
    assert [row["day"] for row in found] == [date(year, 1, 1) for year in (1, 999, 2026, 9999)]


def test_names_are_quoted(tmp_path: Path) -> None:
    name = "a \"b\" 'c'); drop table x; --"
    schema = with_own([Field("select", "string"), Field(name, "integer"), Field("{x: 'y'}", "string")], "select")
    line = schema.line({"select": "a", name: 1, "{x: 'y'}": "z"}, STAMP, where="")
    [row] = _read(tmp_path / "it's.usv", schema, [line])
    assert {key: row[key] for key in ("select", name, "{x: 'y'}")} == {"select": "a", name: 1, "{x: 'y'}": "z"}


def test_tombstones_can_be_told(tmp_path: Path) -> None:
    lines = [STRINGS.line({"k": "a"}, STAMP, where=""), STRINGS.tombstone("b", STAMP)]
    assert [row["k"] for row in _read(tmp_path / "it.usv", STRINGS, lines)] == ["a"]


def test_lines_of_older_and_newer_schemas_are_read(tmp_path: Path) -> None:
    new = extended(STRINGS, [*STRINGS.fields[:3], Field("n", "integer")], "k")
    assert new is not None
    lines = [STRINGS.line({"k": "a"}, STAMP, where=""), new.line({"k": "b", "n": 1}, STAMP, where="")]
    assert [row["n"] for row in _read(tmp_path / "it.usv", new, lines)] == [None, 1]
    assert [row["k"] for row in _read(tmp_path / "it.usv", STRINGS, lines)] == ["a", "b"]


def test_a_long_line_is_read(tmp_path: Path) -> None:
    text = "x" * (5 << 20) + "\\"
    [row] = _read(tmp_path / "it.usv", STRINGS, [STRINGS.line({"k": "a", "a": text}, STAMP, where="")])
    assert row["a"] == text


def test_a_value_of_another_type_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(duckdb.Error, match="Could not convert string 'x' to INT64"):
        _read(tmp_path / "it.usv", FULL, [b"x" + b"\x1f\\N" * len(KINDS) + f"\x1f{STAMP}\x1f0".encode()])


def test_every_column_is_read_as_text() -> None:
    named = ", ".join(f"'{name}': 'VARCHAR'" for name in ("k", "a", "b", "updated_at", "_deleted"))
    assert f"columns={{{named}}}" in duck.options(STRINGS)

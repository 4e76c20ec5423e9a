"""Export, and import of what was exported: every value comes back, in every format."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import limpet
from limpet.app import Fleet
from limpet.index import Index
from limpet.index.codec import Field, Schema
from limpet.index.files import Import, export, whole_file
from limpet.index.formats import FORMATS, ChunkLimits
from limpet.index.formats.text import cells, guarded, joined, unguarded, unit, units
from limpet.index.types import with_own
from limpet.index.values import KINDS
from limpet.kernel.errors import Corrupt, Denied
from limpet.kernel.runtime import system
from support.clock import steady

parquet: Any = import_module("pyarrow.parquet")

EVERY_FORMAT = pytest.mark.parametrize("format", [*FORMATS])

SCHEMA = with_own([Field("key", "string"), *(Field(f"a {kind}", kind) for kind in KINDS)], "key")
STAMP = "2026-01-02T00:00:00.000000Z"

SPECIAL = "\x00\x04\x17\x1b\x1c\x1d\x1e\x1f\r\n\t\\N\"',=+-@␛␞␟␄\ufeff "
nasty = st.text(st.one_of(st.sampled_from(SPECIAL), st.characters(exclude_categories=["Cs"])))
finite = st.floats(allow_nan=False, allow_infinity=False)
plain_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), finite, nasty),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(nasty, inner, max_size=3)),
    max_leaves=5,
)
VALUES = {
    "string": nasty,
    "integer": st.integers(-(2**63), 2**63 - 1),
    "number": finite,
    "boolean": st.booleans(),
    "date": st.dates(),
    "datetime": st.datetimes(timezones=st.just(UTC)),
    "object": st.dictionaries(nasty, plain_json, max_size=3),
    "array": st.lists(plain_json, max_size=3),
    "any": plain_json,
}
records = st.lists(
    st.fixed_dictionaries(
        {"key": nasty.filter(bool)}, optional={f"a {kind}": st.none() | values for kind, values in VALUES.items()}
    ),
    max_size=4,
)


def _read(data: bytes, format: str, schema: Schema, limits: ChunkLimits) -> list[dict[str, Any]]:
    form, stream = FORMATS[format], io.BytesIO(data)
    head = form.head(stream)
    decode = form.decoder(head.names, schema)
    chunks = form.chunks(stream, head, head.start, limits)
    return [decode(raw) for chunk in chunks for _, raw in form.rows(chunk)]


@EVERY_FORMAT
@given(records, st.integers(1, 3))
@steady
def test_everything_comes_back(format: str, some: list[dict[str, Any]], batch: int) -> None:
    lines = [SCHEMA.line(record, STAMP, where="it") for record in some]
    stream = io.BytesIO()
    with FORMATS[format].write(stream, SCHEMA) as write:
        write(lines[:1])
        write(lines[1:])
    found = _read(stream.getvalue(), format, SCHEMA, ChunkLimits(records=batch))
    # 0.0 and -0.0, or 1 and 1.0, are equal and not the same; their lines tell
    assert [SCHEMA.line(record, STAMP, where="it") for record in found] == lines
    assert [record["updated_at"] for record in found] == [datetime(2026, 1, 2, tzinfo=UTC)] * len(lines)


ODD_NAMES = ["a,b", '"q"', "=x", " x ", "'tis", "'-", "\\N", "\u241f", "é", "id"]


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet", "strict-usv"])
def test_columns_of_any_name_come_back(format: str) -> None:
    schema = with_own([Field(name, "string") for name in ODD_NAMES], "id")
    values = {name: name for name in ODD_NAMES}
    stream = io.BytesIO()
    with FORMATS[format].write(stream, schema) as write:
        write([schema.line(values, STAMP, where="it")])
    [found] = _read(stream.getvalue(), format, schema, ChunkLimits())
    assert {name: found[name] for name in ODD_NAMES} == values
    stream.seek(0)
    assert [field.name for field in FORMATS[format].sample(stream).fields] == [*ODD_NAMES, "updated_at"]


def _exported(index: Index[Any], format: str) -> bytes:
    stream = io.BytesIO()
    for _ in export(index, stream, format):
        pass
    return stream.getvalue()


@EVERY_FORMAT
def test_an_export_imported_is_the_same_index(format: str) -> None:
    fleet = limpet.open("memory://")
    package = {"fields": [{"name": each.name, "type": each.type} for each in SCHEMA.fields]}
    one, other = (fleet.index(name, package, key="key") for name in ("one", "other"))
    one.put_many({"key": f"{char}{number}", "a string": char, "a any": [char]} for number, char in enumerate(SPECIAL))
    for taken in Import(other, io.BytesIO(_exported(one, format)), file="x", format=format).run():
        assert (taken.records, taken.bad) == (len(SPECIAL), ())
    assert [*other.scan()] == [*one.scan()]


@given(nasty)
@steady
def test_the_guard_is_undone_exactly(text: str) -> None:
    assert unguarded(guarded(text)) == text
    assert guarded(text)[:1] not in ("=", "+", "-", "@", "\t", "\r", "\n")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        *[("=1+1", "'=1+1"), ("'=1+1", "''=1+1"), ("-5 degrees", "'-5 degrees"), ("@SUM(A1)", "'@SUM(A1)")],
        *[("\tx", "'\tx"), ("\uff1d1", "'\uff1d1"), ("'tis", "'tis"), ("''quoted''", "''quoted''"), ("1-1", "1-1")],
        *[("", "")],
    ],
)
def test_formulas_are_text(text: str, written: str) -> None:
    assert guarded(text) == written
    assert unguarded(written) == text


@given(st.lists(st.none() | nasty, min_size=2))
@steady
def test_csv_cells(fields: list[str | None]) -> None:
    assert cells(joined(fields)) == fields


@given(st.lists(st.none() | nasty))
@steady
def test_strict_units(fields: list[str | None]) -> None:
    assert units("".join(map(unit, fields))) == fields


def _small(fleet: Fleet) -> Index[dict[str, Any]]:
    fields = [("domain", "string"), ("title", "string"), ("visits", "integer"), ("tags", "array"), ("seen", "date")]
    package = {"fields": [{"name": name, "type": kind} for name, kind in fields]}
    index = fleet.index("sites", package, key="domain")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    index.put_many(
        [
            {"domain": "a.com", "title": '=HYPERLINK("x")', "visits": -5, "tags": ["x"], "updated_at": at},
            {"domain": "b.com", "title": "", "seen": date(2026, 3, 4), "updated_at": at},
            {"domain": "gone.com", "updated_at": at},
        ]
    )
    index.delete("gone.com")
    return index


def test_what_each_format_looks_like(fleet: Fleet) -> None:
    index = _small(fleet)
    csv = _exported(index, "csv").decode().splitlines()
    assert csv[0] == "domain,title,visits,tags,seen,updated_at"
    assert sorted(csv[1:]) == [
        f"""a.com,"'=HYPERLINK(""x"")",-5,"[""x""]",,{STAMP}""",
        f'b.com,"",,,2026-03-04,{STAMP}',
    ]
    assert sorted(map(json.loads, _exported(index, "jsonl").splitlines()), key=lambda row: row["domain"]) == [
        {
            "domain": "a.com",
            "title": '=HYPERLINK("x")',
            "visits": -5,
            "tags": ["x"],
            "seen": None,
            "updated_at": "2026-01-02T00:00:00Z",
        },
        {
            "domain": "b.com",
            "title": "",
            "visits": None,
            "tags": None,
            "seen": "2026-03-04",
            "updated_at": "2026-01-02T00:00:00Z",
        },
    ]
    assert sorted(_exported(index, "usv").splitlines())[0] == (
        b'a.com\x1f=HYPERLINK("x")\x1f-5\x1f["x"]\x1f\\N\x1f' + STAMP.encode() + b"\x1f0"
    )
    strict = _exported(index, "strict-usv").decode()
    assert strict.startswith("domain\x1ftitle\x1fvisits\x1ftags\x1fseen\x1fupdated_at\x1f\x1e\n")
    assert f"b.com\x1f\x1f\\N\x1f\\N\x1f2026-03-04\x1f{STAMP}\x1f\x1e\n" in strict


def test_parquet_has_types(fleet: Fleet) -> None:
    table = parquet.read_table(io.BytesIO(_exported(_small(fleet), "parquet")))
    assert [str(field.type) for field in table.schema] == [
        *["string", "string", "int64", "string", "date32[day]", "timestamp[us, tz=UTC]"],
    ]
    assert [field.nullable for field in table.schema] == [False, True, True, True, True, True]
    assert sorted(table["domain"].to_pylist()) == ["a.com", "b.com"]


def test_compiled_or_not_it_is_the_same_file(fleet: Fleet) -> None:
    index = _small(fleet)
    before = _exported(index, "csv")
    index.compile(full=True)
    assert _exported(index, "csv") == before


def test_older_lines_get_the_new_columns(fleet: Fleet) -> None:
    index = _small(fleet)
    index.compile(full=True)
    package = {"fields": [*({"name": f.name, "type": f.type} for f in index.manifest.schema.columns), {"name": "new"}]}
    wider = fleet.index("sites", package, key="domain")
    assert _exported(wider, "csv").decode().splitlines()[0].endswith(",updated_at,new")
    assert all(line.endswith(b"\x1f0\x1f\\N") for line in _exported(wider, "usv").splitlines())


def test_cost_is_that_of_a_scan(fleet: Fleet) -> None:
    index = _small(fleet)
    index.compile(full=True)
    with fleet.meter.measure() as cost:
        _exported(index, "jsonl")
    assert cost.requests["get"] == 256
    # SeaweedFS shows the three folders that were emptied for a while
    assert cost.requests["list"] <= 2 + 2 * 3


def test_a_failed_export_leaves_the_old_file(fleet: Fleet, tmp_path: Path) -> None:
    index = _small(fleet)
    index.compile(full=True)
    fleet.store.delete(index.storage.keys.shard("ff"))
    target = tmp_path / "out.csv"
    target.write_text("old")
    with pytest.raises(Corrupt, match=r"ff\.usv is missing"), whole_file(target, system()) as stream:
        for _ in export(index, stream, "csv"):
            pass
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.csv"]


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    target, link = tmp_path / "out.csv", tmp_path / "link.csv"
    link.symlink_to(target)
    with whole_file(link, system()) as stream:
        stream.write(b"new")
        assert not target.exists()
    assert (target.read_bytes(), link.is_symlink()) == (b"new", True)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Denied, match=r"cannot write .*: No such file"), whole_file(tmp_path / "no" / "x", system()):
        pass
    with pytest.raises(Denied, match=r"cannot write .*: Is a directory"), whole_file(tmp_path, system()):
        pass

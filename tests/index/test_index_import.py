"""Import: what a file becomes, what is refused and how, and that it can end anywhere and go on."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import pytest

import limpet
from limpet.app import Fleet
from limpet.app.indexes import ImportJob
from limpet.index import Index
from limpet.index.codec import Field
from limpet.index.files import Import, identity
from limpet.index.formats import FORMATS, ChunkLimits, Mark, name_of
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.keys import INDEXES

pyarrow: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")

COLUMNS = {
    "domain": "string",
    "title": "string",
    "visits": "integer",
    "score": "number",
    "live": "boolean",
    "seen": "date",
    "at": "datetime",
    "tags": "array",
}
STAMP = b"2026-01-01T00:00:00.000000Z"
PACKAGE = {"fields": [{"name": name, "type": kind} for name, kind in COLUMNS.items()]}


def _index(fleet: Fleet, name: str = "sites") -> Index[dict[str, Any]]:
    return fleet.index(name, PACKAGE, key="domain")


@pytest.fixture
def index() -> Index[dict[str, Any]]:
    return _index(limpet.open("memory://"))


def _import(index: Index[Any], data: str | bytes, format: str = "csv", **options: Any) -> Import:
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    done = Import(index, stream, file=f"x.{format}", format=format, **options)
    for _ in done.run():
        pass
    return done


def _values(index: Index[dict[str, Any]], *names: str) -> dict[str, Any]:
    return {record["domain"]: tuple(record[name] for name in names) for record in index.scan()}


# ---- what is read ----


def test_csv_is_typed_by_the_columns(fleet: Fleet) -> None:
    index = _index(fleet)
    text = (
        "\ufeffvisits,domain,score,live,seen,at,tags,title\r\n"
        '5,a.com, 1.5 ,TRUE,2026-01-02,2026-01-02T03:04:05+01:00,"[1, ""x""]","two\r\nlines, and ""quotes"""\r\n'
        "\r\n"
        '-7,b.com,2e3,0,,,,""\r\n'
        ",c.com,7,,,,,\r\n"
    )
    assert _import(index, text).state.records == 3
    assert _values(index, *[*COLUMNS][1:]) == {
        "a.com": (
            'two\r\nlines, and "quotes"',
            5,
            1.5,
            True,
            date(2026, 1, 2),
            datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
            [1, "x"],
        ),
        "b.com": ("", -7, 2000.0, False, None, None, None),
        "c.com": (None, None, 7.0, None, None, None, None),
    }


def test_columns_may_be_left_out_unless_they_must_be_there(index: Index[Any]) -> None:
    _import(index, "domain\na.com\n")
    assert _values(index, "title") == {"a.com": (None,)}
    for text, said in [
        ("title\nx\n", "the header has no field 'domain', which every record needs"),
        ("domain,nope\na,b\n", "the header has a field 'nope', which the index does not have"),
        ("domain,domain\na,b\n", "the header has two fields 'domain'"),
        ("domain,,title\na,b,c\n", "the header has no name for field 2"),
        ("", "the file is empty"),
        ("domain;title\na;b\n", "the header has one field, 'domain;title'"),
    ]:
        with pytest.raises(Invalid, match=re.escape(said)):
            _import(index, text)
    assert [*_values(index)] == ["a.com"]


def test_an_empty_field_that_must_be_there_is_an_empty_string() -> None:
    package = {"fields": [{"name": "id"}, {"name": "name", "constraints": {"required": True}}]}
    index = limpet.open("memory://").index("x", package, key="id")
    _import(index, "id,name\na,\n")
    assert [record["name"] for record in index.scan()] == [""]


BAD = [
    ("a.com,5,x,1", "expected 3 fields, got 4"),
    ("a.com,5", "expected 3 fields, got 2"),
    ("a.com,five,x", "field 'visits': expected integer, got 'five'"),
    ("a.com,1.5,x", "field 'visits': expected integer, got '1.5'"),
    ("a.com,9223372036854775808,x", "field 'visits': expected integer of 64 bits, got 9223372036854775808"),
    ("a.com,1_000,x", "field 'visits': expected integer, got '1_000'"),
    ("a.com,\u0663,x", "field 'visits': expected integer, got '\u0663'"),
    (",5,x", "the key 'domain' is empty"),
    ('a.com,5,5" pipe', "a quote is out of place"),
    ('a.com,5,"x"y', "a quote is out of place"),
]


@pytest.mark.parametrize(("row", "said"), BAD)
def test_a_bad_row_is_named_and_spoils_nothing(index: Index[Any], row: str, said: str) -> None:
    with pytest.raises(Invalid) as error:
        _import(index, f"domain,visits,title\ngood.com,1,x\n{row}\nlast.com,2,y\n")
    assert str(error.value).startswith("line 3: ")
    assert said in str(error.value)
    assert _values(index) == {}


@pytest.mark.parametrize(("row", "said"), BAD)
def test_a_bad_row_can_be_left_out(index: Index[Any], tmp_path: Path, row: str, said: str) -> None:
    aside = tmp_path / "bad.csv"
    done = _import(index, f"domain,visits,title\ngood.com,1,x\n{row}\nlast.com,2,y", skip_bad=aside)
    assert (done.state.records, done.state.bad) == (2, 1)
    assert sorted(_values(index)) == ["good.com", "last.com"]
    assert aside.read_text() == f"domain,visits,title\n{row}\n"


@pytest.mark.parametrize(
    ("field", "cell", "said"),
    [
        ("score", "nan", "expected number, got 'nan'"),
        ("score", "9007199254740993", "which is not exact"),
        ("live", "yes", "expected boolean, got 'yes'"),
        ("seen", "2026-02-30", "expected date, got '2026-02-30'"),
        ("seen", "20260102", "expected date, got '20260102'"),
        ("at", "2026-01-02 03:04:05", "expected datetime with a time zone, got '2026-01-02 03:04:05'"),
        ("at", "yesterday", "expected datetime, got 'yesterday'"),
        ("at", "0001-01-01T00:00:00+05:00", "expected datetime, got '0001-01-01T00:00:00+05:00'"),
        ("tags", "[1", "is not valid JSON"),
        ("tags", "{}", "expected array, got dict {}"),
        ("updated_at", "2026-01-02", "expected datetime with a time zone"),
        ("updated_at", "2999-01-01T00:00:00Z", "more than a day ahead of the store's clock"),
    ],
)
def test_values_that_are_not_of_their_type(index: Index[Any], field: str, cell: str, said: str) -> None:
    with pytest.raises(Invalid) as error:
        _import(index, f'domain,{field}\na.com,"{cell}"\n')
    assert str(error.value).startswith(f"line 2: field '{field}': ")
    assert said in str(error.value)


def test_an_open_quote_spoils_only_its_own_line(index: Index[Any], tmp_path: Path) -> None:
    text = 'domain,title\na,1\nb,"open\nc,3\nd,"also open\ne,5\nf,"two\nlines"\ng,7\n'
    done = _import(index, text, skip_bad=tmp_path / "bad.csv")
    assert _values(index, "title") == {"a": ("1",), "c": ("3",), "e": ("5",), "f": ("two\nlines",), "g": ("7",)}
    assert (done.state.bad, (tmp_path / "bad.csv").read_text()) == (2, 'domain,title\nb,"open\nd,"also open\n')


def test_bytes_that_are_not_utf_8(index: Index[Any]) -> None:
    with pytest.raises(Invalid, match="line 2: byte 0xe9 is not UTF-8") as error:
        _import(index, "domain,title\na.com,caf\xe9\n".encode("latin-1"))
    assert "iconv -f LATIN1" in error.value.hint
    for data, hint in [("domain\na".encode("utf-16"), "iconv -f UTF-16"), (gzip.compress(b"domain\na"), "gunzip")]:
        with pytest.raises(Invalid) as error:
            _import(index, data)
        assert hint in error.value.hint


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"domain": "a", "visits": "5"}', "line 2: field 'visits': expected integer, got str '5'"),
        ('{"domain": "a", "visits": 1, "visits": 2}', "an object has the same key twice"),
        ('{"domain": "a", "score": NaN}', "NaN is not JSON"),
        ('{"domain": "a", "nope": 1}', "line 2: there is no field 'nope'"),
        ('{"domain": "a", "at": "2026-01-01"}', "line 2: field 'at': expected datetime with a time zone"),
        ('{"title": "a"}', "line 2: field 'domain': expected the key, got nothing"),
        ("[1]", "line 2: the record is a JSON array"),
        ("{", "line 2: the record is not valid JSON"),
    ],
)
def test_json_lines_that_are_bad(index: Index[Any], line: str, said: str) -> None:
    with pytest.raises(Invalid, match=re.escape(said)):
        _import(index, f'{{"domain": "good"}}\n{line}\n', "jsonl")


def _parquet(**columns: Any) -> bytes:
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), stream)
    return stream.getvalue()


def test_parquet_of_others(index: Index[Any]) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    data = _parquet(
        domain=pyarrow.array(["a"]).dictionary_encode(),
        title=pyarrow.array([Decimal("1.50")]),
        visits=pyarrow.array([5], pyarrow.int8()),
        score=pyarrow.array([0.5], pyarrow.float32()),
        live=[True],
        seen=[date(2026, 1, 2)],
        at=pyarrow.array([int(at.timestamp()) * 10**9 + 678901234], pyarrow.timestamp("ns", "Europe/Berlin")),
        tags=[["x", None]],
    )
    assert _import(index, data, "parquet").state.records == 1
    assert _values(index, *[*COLUMNS][1:]) == {"a": ("1.50", 5, 0.5, True, date(2026, 1, 2), at, ["x", None])}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"domain": ["a", None]}, "row 2: field 'domain': expected the key, got nothing"),
        ({"domain": ["a"], "visits": ["x"]}, "row 1: field 'visits': expected integer, got str 'x'"),
        ({"domain": ["a"], "at": [datetime(2026, 1, 1)]}, "row 1: field 'at': expected datetime with a time zone"),
        ({"title": ["a"]}, "the file has no field 'domain'"),
    ],
)
def test_parquet_that_is_bad(index: Index[Any], columns: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=re.escape(said)):
        _import(index, _parquet(**columns), "parquet")


def test_parquet_values_that_python_cannot_hold(index: Index[Any], tmp_path: Path) -> None:
    """Beyond the year 9999, or in a zone that nobody knows: only their own rows are bad."""
    data = _parquet(
        domain=["a", "b", "c"],
        at=pyarrow.array([0, 2**60, None], pyarrow.timestamp("us", "Mars/Base")),
        seen=pyarrow.array([1, None, 2**30], pyarrow.date32()),
        title=pyarrow.array([5, None, None], pyarrow.time64("ns")),
    )
    done = _import(index, data, "parquet", skip_bad=tmp_path / "bad.jsonl")
    assert (done.state.records, done.state.bad) == (1, 2)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert _values(index, "at", "seen", "title") == {"a": (epoch, date(1970, 1, 2), "00:00:00")}
    assert [json.loads(line)["domain"] for line in (tmp_path / "bad.jsonl").read_text().splitlines()] == ["b", "c"]
    with pytest.raises(Invalid, match="row 2: field 'at': Python cannot represent the value: "):
        _import(index, data, "parquet")


def test_what_is_no_parquet(index: Index[Any]) -> None:
    with pytest.raises(Invalid, match="it is not a Parquet file"):
        _import(index, "domain,title\n", "parquet")


def test_lines_of_another_index_with_its_tombstones(fleet: Fleet) -> None:
    old, new = _index(fleet, "old"), _index(fleet, "new")
    for domain in ("a", "b"):
        old.put({"domain": domain, "updated_at": datetime(2026, 1, 1, tzinfo=UTC)})
        new.put({"domain": domain, "updated_at": datetime(2026, 1, 1, tzinfo=UTC)})
    old.delete("a")
    old.compile(full=True)
    shards = [stat.key for stat in fleet.store.list(old.storage.keys.shards) if stat.key.endswith(".usv")]
    data = b"".join(fleet.store.get(key).data for key in shards)
    assert _import(new, data, "usv").state.records == 2
    assert [*_values(new)] == ["b"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"a|x", "line 1: it is not a record of this index: b'a\\x1fx'"),
        (b"a||||||||" + STAMP + b"|0|more", "line 1: expected 10 fields, got 11"),
        (b"a|\xff|||||||" + STAMP + b"|0", "line 1: byte 0xff is not UTF-8"),
        (b"a||||||||2026-02-30T00:00:00.000000Z|0", "line 1: it is not a record of this index"),
    ],
)
def test_lines_that_are_bad(index: Index[Any], line: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=re.escape(said)):
        _import(index, line.replace(b"||", b"|\\N|").replace(b"||", b"|\\N|").replace(b"|", b"\x1f") + b"\n", "usv")


def test_strict_usv_with_symbols_and_lines(index: Index[Any]) -> None:
    text = "domain␟title␟␞\na␟␛\nx␛␟y\n␟␞\r\nb␟\\N␟␞\n␄ what comes after does not count"
    assert _import(index, text, "strict-usv").state.records == 2
    assert _values(index, "title") == {"a": ("x␟y",), "b": (None,)}
    for bad, said in [
        ("domain␟title␟␞\na␟b␟␝c␟␞", "record 2: a unit does not end with U+001F"),
        ("domain␟title␟␞\na␟b␟", "record 2: it does not end with U+001E: it is incomplete"),
        ("domain␟title␟␞\na␟␞", "record 2: expected 2 fields, got 1"),
    ]:
        with pytest.raises(Invalid, match=re.escape(said)):
            _import(index, bad, "strict-usv")


def test_strict_records_that_cross_blocks(index: Index[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.index.formats.text.BLOCK", 7)
    text = "domain\x1ftitle\x1f\x1e\n" + "".join(f"{n}\x1f\x1b\x1e\u241b\u241e é\x1f\x1e\n" for n in range(50))
    assert _import(index, text, "strict-usv").state.records == 50
    assert set(_values(index, "title").values()) == {("\x1e\u241e é",)}


# ---- columns told by a file ----


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "-5", "", "0"], "integer"),
        (["1", "007"], "string"),
        (["9223372036854775808"], "string"),
        (["1", "2.5", "1e3"], "number"),
        (["9007199254740993", "2.5"], "string"),
        (["true", "FALSE"], "boolean"),
        (["0", "1"], "integer"),
        (["2026-01-02", ""], "date"),
        (["2026-01-02T03:04:05Z", "2026-01-02 03:04:05+02:00"], "datetime"),
        (["2026-01-02", "2026-01-02T03:04:05Z"], "string"),
        (["", ""], "string"),
        (["1", "x"], "string"),
        (["nan"], "string"),
    ],
)
def test_columns_of_csv(cells: list[str], kind: str) -> None:
    text = "id,it\n" + "".join(f"a,{cell}\n" for cell in cells)
    assert FORMATS["csv"].sample(io.BytesIO(text.encode())).fields == (Field("id", "string"), Field("it", kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        *[(["1", "null"], "integer"), (["1", "1.5"], "number"), (["true"], "boolean"), (['"2026-01-02"'], "date")],
        *[(['"2026-01-02T00:00:00Z"'], "datetime"), (['"5"'], "string"), (["{}"], "object"), (["[]"], "array")],
        *[(["1", '"x"'], "any"), (["1", "true"], "any"), (["null"], "string")],
    ],
)
def test_columns_of_json_lines(values: list[str], kind: str) -> None:
    text = "".join(f'{{"it": {value}}}\n' for value in values)
    assert FORMATS["jsonl"].sample(io.BytesIO(text.encode())).fields == (Field("it", kind),)  # type: ignore[arg-type]


def test_columns_of_parquet() -> None:
    data = _parquet(
        a=["x"],
        b=[1],
        c=[1.5],
        d=[True],
        e=[date(2026, 1, 1)],
        f=[datetime(2026, 1, 1, tzinfo=UTC)],
        g=[{"x": 1}],
        h=[[1]],
        i=[Decimal("1.5")],
        j=[b"x"],
    )
    kinds = [field.type for field in FORMATS["parquet"].sample(io.BytesIO(data)).fields]
    numbers = ["integer", "number", "boolean", "date", "datetime"]
    assert kinds == ["string", *numbers, "object", "array", "string", "string"]
    with pytest.raises(Invalid, match="field 'a': the times have no time zone"):
        FORMATS["parquet"].sample(io.BytesIO(_parquet(a=[datetime(2026, 1, 1)])))


def test_our_own_parquet_tells_everything(index: Index[Any]) -> None:
    from limpet.index.files import export

    stream = io.BytesIO()
    for _ in export(index, stream, "parquet"):
        pass
    sample = FORMATS["parquet"].sample(stream)
    assert (sample.key, sample.fields) == ("domain", index.manifest.schema.columns)


def test_formats_by_name() -> None:
    assert [name_of(file, None) for file in ("a.csv", "a.JSONL", "b.ndjson", "c.parquet", "d.usv")] == [
        "csv",
        "jsonl",
        "jsonl",
        "parquet",
        "usv",
    ]
    assert name_of("a.csv", "strict-usv") == "strict-usv"
    for file, named in [("a.txt", None), ("-", None), ("a.csv", "xml")]:
        with pytest.raises(Invalid):
            name_of(file, named)


# ---- which record wins ----


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_of_two_with_one_key_the_later_wins(index: Index[Any], batch: int) -> None:
    limits = ChunkLimits(records=batch)
    _import(index, "domain,visits\n" + "".join(f"a,{n}\n" for n in range(5)), limits=limits)
    stamps = [5, 9, 2, 9, 1]
    rows = "".join(f"b,{n},2026-01-0{stamp}T00:00:00Z\n" for n, stamp in enumerate(stamps))
    _import(index, "domain,visits,updated_at\n" + rows, limits=limits)
    assert _values(index, "visits") == {"a": (4,), "b": (3,)}


def test_what_was_put_while_it_ran_stays(index: Index[Any]) -> None:
    stream = io.BytesIO(b"domain,title\na,file\nb,file\n")
    work = Import(index, stream, file="x", format="csv", limits=ChunkLimits(records=1))
    run = work.run()
    next(run)
    index.put({"domain": "a", "title": "put"})
    index.put({"domain": "b", "title": "put"})
    next(run)
    assert _values(index, "title") == {"a": ("put",), "b": ("put",)}


def test_progress_is_told_within_the_first_chunk(index: Index[Any]) -> None:
    """A chunk has 200,000 records: a bar that moves only after it shows nothing for a minute."""
    rows = "".join(f"d{n},x\n" for n in range(3500))
    work = Import(index, io.BytesIO(f"domain,title\n{rows}".encode()), file="x", format="csv")
    told: list[tuple[int, int]] = []
    positions = [work.position]

    def tick() -> None:
        told.append((work.state.records, work.under_way))
        positions.append(work.position)

    [taken] = work.run(tick=tick)
    assert [each for each in told if each[1]] == [(0, 1000), (0, 2000), (0, 3000)]
    assert (taken.records, work.under_way) == (3500, 0)
    total = len("domain,title\n") + len(rows)
    assert sorted({*positions}) == positions, "the bar never goes back"
    assert positions[0] == len("domain,title\n")
    assert positions[1] == pytest.approx(total / 3.5, rel=0.1)
    assert work.position == total


def test_records_are_the_same_whether_their_block_is_read_in_columns_or_one_by_one(
    fleet: Fleet, tmp_path: Path
) -> None:
    """A bad record makes its block go one by one."""
    good = [
        {"domain": f"d{n % 700}", "title": ("x", "\u00e4\n", None, "\x1f")[n % 4], "visits": n, "score": n / 7}
        | ({"live": n % 2 == 0, "seen": "2026-01-02", "tags": [n]} if n % 3 else {})
        | ({"updated_at": f"2026-01-01T00:00:{n % 60:02}Z"} if n >= 1000 else {})
        for n in range(2000)
    ]
    lines = [json.dumps(each) for each in good]
    quick, slow = _index(fleet, "quick"), _index(fleet, "slow")
    assert _import(quick, "\n".join(lines), "jsonl").state.records == 2000
    columns = ("title", "visits", "score", "live", "seen", "tags")
    with_bad = [line for at in (0, 1000) for line in ('{"domain": "d", "visits": "many"}', *lines[at : at + 1000])]
    stream = io.BytesIO("\n".join(with_bad).encode())
    work = Import(slow, stream, file="x", format="jsonl", limits=ChunkLimits(), skip_bad=tmp_path / "bad")
    for _ in work.run():
        pass
    assert (work.state.records, work.state.bad) == (2000, 2)
    assert _values(slow, *columns) == _values(quick, *columns)


CELLS = (
    ("domain", ["a", "'=b", "'tis", "=d", "\u00e4"]),
    ("title", ["", '""', '"x, y"', "'+1", "\x1f"]),
    ("visits", ["1", "+2", "-3", " 4 ", ""]),
    ("score", ["1", "2.5", "", "1e3", "-0"]),
    ("live", ["true", "FALSE", "1", "", "0"]),
    ("seen", ["2026-01-02", "", " 2026-01-03 ", "", "2026-01-04"]),
    ("at", ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "", "2026-01-01T00:00:00.5Z", " 2026-01-01T00:00Z"]),
)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("odd", [name for name, _ in CELLS])
def test_rows_of_csv_are_the_same_whether_they_are_read_in_columns_or_one_by_one(
    fleet: Fleet, tmp_path: Path, odd: str, end: str
) -> None:
    """One column at a time has odd cells; a row of the wrong width makes all rows go one by one."""
    names = [name for name, _ in CELLS]
    rows = [
        [cells[n] if name == odd else f"d{n}" if name == "domain" else cells[0] for name, cells in CELLS]
        for n in range(5)
    ]
    text = end.join([",".join(names), *map(",".join, rows)])
    fast, slow = _index(fleet, "fast"), _index(fleet, "slow")
    _import(fast, text)
    work = _import(slow, f"{text}{end}too,few", skip_bad=tmp_path / "bad")
    assert (work.state.records, work.state.bad) == (5, 1)
    assert _values(fast, *names) == _values(slow, *names)


@pytest.mark.parametrize("gap", ["", " ", "\t"])
def test_a_name_twice_is_found_whatever_stands_before_the_colon(index: Index[Any], gap: str) -> None:
    good = '{"domain"GAP:"a","title":"\\":"}'.replace("GAP", gap)
    assert _import(index, good, "jsonl").state.records == 1
    for bad in ('{"domain":"b","visits"GAP:1,"visits":2}', '{"domain":"b","visits":1,"visits"GAP:2}'):
        with pytest.raises(Invalid, match="the same key twice"):
            _import(index, f"{good}\n{bad.replace('GAP', gap)}", "jsonl")


def test_two_records_on_a_line_and_one_on_two_are_bad(index: Index[Any]) -> None:
    for bad in ('{"domain":"a"}{"domain":"b"}', '{"domain":\n"a"} {"domain":"b"}'):
        with pytest.raises(Invalid, match="line 1: the record is not valid JSON"):
            _import(index, bad, "jsonl")


# ---- ending anywhere ----


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """30 records on 31 lines and one blank; a batch of 10 ends with a record that has three lines."""
    path = tmp_path / "sites.csv"
    rows = [f'd{n},"{n}\n\n"\n' if n % 10 == 9 else f"d{n},{n}\n" for n in range(30)]
    path.write_text("domain,title\n\n" + "".join(rows))
    return path


def _open(index: Index[Any], stream: IO[bytes], **options: Any) -> Import:
    name = identity(stream, "csv")
    return Import(index, stream, file="sites.csv", format="csv", id=name, limits=ChunkLimits(records=10), **options)


def _all(index: Index[Any], path: Path, **options: Any) -> Import:
    with path.open("rb") as stream:
        work = _open(index, stream, **options)
        for _ in work.run():
            pass
    return work


def _abandoned(index: Index[Any], path: Path, chunks: int, **options: Any) -> Import:
    """An import that ends without a word after some chunks, as a process that is killed."""
    with path.open("rb") as stream:
        work = _open(index, stream, **options)
        run = work.run()
        for _ in range(chunks):
            next(run)
    return work


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_it_goes_on_where_it_was(fleet: Fleet, file: Path, chunks: int) -> None:
    whole, parts = _index(fleet, "whole"), _index(fleet, "parts")
    _abandoned(parts, file, chunks)
    with fleet.meter.measure() as cost:
        again = _all(parts, file)
    assert again.resumed
    assert (again.state.records, again.state.number, again.state.done) == (30, 38, True)
    left = 3 - chunks
    assert cost.requests.get("put", 0) <= left * 11 + 1, "chunks that were in are not written again"
    once = _all(whole, file)
    assert not once.resumed
    assert _values(parts, "title") == _values(whole, "title")
    assert len(_values(parts)) == 30


def test_a_chunk_taken_twice_writes_the_same_lines(index: Index[Any], file: Path) -> None:
    """As after a crash between the last write of a chunk and the note that it is in."""
    store = index.storage.store
    _abandoned(index, file, 1)
    [cell] = store.list(f"{INDEXES}/sites/imports")
    noted = store.get(cell.key).data
    _abandoned(index, file, 1)
    before = {record["domain"]: record for record in index.scan()}
    assert len(before) == 20
    store.put(cell.key, noted)
    assert _abandoned(index, file, 1).state.records == 20
    assert {record["domain"]: record for record in index.scan()} == before


def test_what_begins_anew(index: Index[Any], file: Path) -> None:
    began = _abandoned(index, file, 1).state.began_at
    assert _abandoned(index, file, 0).state.began_at == began
    assert not _all(index, file, restart=True).resumed
    assert not _all(index, file).resumed, "an import that is done is done again"
    _abandoned(index, file, 1)
    os.utime(file, (1, 1))
    assert not _all(index, file).resumed, "a file that was changed is another one"


def test_an_index_that_is_gone_takes_its_progress_along(fleet: Fleet, file: Path) -> None:
    index = _index(fleet)
    _abandoned(index, file, 2)
    fleet.store.delete_many([stat.key for stat in fleet.store.list(INDEXES)])
    again = _all(_index(fleet), file)
    assert (again.resumed, len(_values(_index(fleet)))) == (False, 30)


def test_a_file_is_told_from_others(tmp_path: Path) -> None:
    path = tmp_path / "x"
    seen = set()
    for text in ("a" * 300_000, "b" + "a" * 299_999, "a" * 299_999 + "b", "a" * 300_001):
        path.write_text(text)
        os.utime(path, (5, 5))
        with path.open("rb") as stream:
            seen.add(identity(stream, "csv"))
            assert stream.tell() == 0
            seen.add(identity(stream, "jsonl"))
    assert len(seen) == 8


def test_bad_records_are_kept_once(index: Index[Any], tmp_path: Path) -> None:
    path, aside = tmp_path / "in.csv", tmp_path / "bad.csv"
    path.write_text("domain,visits\n" + "".join(f"d{n},{'x' if n % 5 == 0 else n}\n" for n in range(30)))
    _abandoned(index, path, 1, skip_bad=aside)
    with aside.open("a") as torn:
        torn.write("d10,x\nd1")  # the next chunk's, and then the power went
    done = _all(index, path, skip_bad=aside)
    assert (done.state.records, done.state.bad) == (24, 6)
    assert aside.read_text() == "domain,visits\n" + "".join(f"d{n},x\n" for n in range(0, 30, 5))


def test_a_file_that_is_not_ours_is_not_touched(index: Index[Any], tmp_path: Path) -> None:
    path, aside, other = tmp_path / "in.csv", tmp_path / "bad.csv", tmp_path / "other.csv"
    path.write_text("domain,visits\n" + "".join(f"d{n},{'x' if n % 5 == 0 else n}\n" for n in range(30)))
    aside.write_text("my thesis")
    with pytest.raises(Invalid, match=r"bad\.csv is not empty"):
        _all(index, path, skip_bad=aside)
    assert (aside.read_text(), _values(index)) == ("my thesis", {})
    aside.unlink()
    _abandoned(index, path, 0, skip_bad=aside)
    _abandoned(index, path, 2, skip_bad=aside)
    with pytest.raises(Invalid, match=r"the import began with --skip-bad .*bad\.csv"):
        _all(index, path, skip_bad=other)
    assert not other.exists()
    aside.write_text("cut")
    with pytest.raises(Invalid, match=r"bad\.csv is not empty"):
        _all(index, path, skip_bad=aside)
    with pytest.raises(Invalid, match=r"bad\.csv is not empty"):
        _all(index, path, skip_bad=aside, restart=True)
    aside.unlink()
    assert _all(index, path, skip_bad=aside, restart=True).state.bad == 6


def test_progress_that_cannot_be_read(index: Index[Any], file: Path) -> None:
    _abandoned(index, file, 1)
    [cell] = index.storage.store.list(f"{INDEXES}/sites/imports")
    index.storage.store.put(cell.key, b"")
    with pytest.raises(Corrupt) as error:
        _all(index, file)
    assert "--restart" in error.value.hint
    assert _all(index, file, restart=True).state.records == 30


def test_only_our_own_lines_delete(index: Index[Any]) -> None:
    index.put({"domain": "a"})
    with pytest.raises(Invalid, match="line 1: there is no field '_deleted'"):
        _import(index, '{"domain": "a", "_deleted": true}\n', "jsonl")
    assert [*_values(index)] == ["a"]


def test_parquet_goes_on_inside_a_row_group(index: Index[Any], tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"domain": [f"d{n}" for n in range(100)], "visits": [*range(100)]})
    parquet.write_table(table, path, row_group_size=30)
    limits = ChunkLimits(records=20)
    with path.open("rb") as stream:
        run = Import(index, stream, file="x", format="parquet", id="p", limits=limits).run()
        assert [next(run).records for _ in range(3)] == [20, 10, 20]
    with path.open("rb") as stream:
        work = Import(index, stream, file="x", format="parquet", id="p", limits=limits)
        assert (work.resumed, work.state.number) == (True, 50)
        assert sum(taken.records for taken in work.run()) == 50
    assert _values(index, "visits") == {f"d{n}": (n,) for n in range(100)}


def _few_bytes_much_inside(kind: str, path: Path) -> None:
    """A file of a few kilobytes that unpacks to gigabytes."""
    array = pyarrow.array
    if kind == "one large value, many times":
        packed = pyarrow.DictionaryArray.from_arrays(array([0] * 100_000, pyarrow.int32()), array(["x" * (20 << 20)]))
        table = pyarrow.table({"domain": [f"d{n % 10}" for n in range(100_000)], "title": packed})
    elif kind == "a medium value, many times":
        packed = pyarrow.DictionaryArray.from_arrays(array([0] * 3_000, pyarrow.int32()), array(["x" * (4 << 20)]))
        table = pyarrow.table({"domain": [f"d{n % 3}" for n in range(3_000)], "title": packed})
    else:
        number = 50_000_000
        lists = pyarrow.ListArray.from_arrays(array([0, number]), pyarrow.nulls(number, pyarrow.int64()))
        table = pyarrow.table({"domain": ["d"], "title": lists})
    parquet.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "one large value, many times",
            "field 'title': Python cannot represent the value: it has more than 16,777,216 bytes",
        ),
        ("many values in one row", "column 'title.list.element' has 50,000,000 values"),
        ("a medium value, many times", ""),
    ],
)
def test_a_small_parquet_file_does_not_exhaust_memory(index: Index[Any], tmp_path: Path, kind: str, said: str) -> None:
    """What a file unpacks to is bounded before it is unpacked, and pieces are small."""
    path = tmp_path / "bomb.parquet"
    _few_bytes_much_inside(kind, path)
    before = pyarrow.total_allocated_bytes()
    with path.open("rb") as stream:
        if said:
            with pytest.raises(Invalid, match=re.escape(said)):
                [*Import(index, stream, file="x", format="parquet").run()]
        else:
            chunks = FORMATS["parquet"].chunks(stream, FORMATS["parquet"].head(stream), Mark(), ChunkLimits())
            assert [next(chunks).rows.num_rows for _ in range(3)] == [15, 15, 15], "at most 64 MiB each"
    assert pyarrow.total_allocated_bytes() - before < 200 << 20


def test_chunks_are_bounded_by_bytes_too() -> None:
    stream = io.BytesIO(b"domain\n" + b"".join(b"x" * 100 + b"\n" for _ in range(50)))
    form = FORMATS["csv"]
    head = form.head(stream)
    sizes = [len(chunk.rows) for chunk in form.chunks(stream, head, head.start, ChunkLimits(size=1000))]
    assert sizes == [10] * 5


@pytest.mark.parametrize("format", ["csv", "jsonl", "usv", "strict-usv"])
def test_a_line_without_end_is_not_read_whole(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("api", "text"):
        monkeypatch.setattr(f"limpet.index.formats.{module}.LINE_BYTES_MAX", 1 << 16)
    monkeypatch.setattr("limpet.index.formats.text.BLOCK", 1 << 12)
    stream = io.BytesIO(b"domain\x1f\x1e\n" + b"x" * (1 << 20))
    head = FORMATS[format].head(stream)
    stream.seek(head.start.position)
    with pytest.raises(Invalid, match=r"(line|record) 2 has more than"):
        [*FORMATS[format].chunks(stream, head, head.start, ChunkLimits())]
    assert stream.tell() < 1 << 18


# ---- cost, and other workers ----


def test_cost(fleet: Fleet, file: Path) -> None:
    index = _index(fleet)
    _ = index.manifest
    with fleet.meter.measure() as cost:
        _all(index, file)
    assert cost.requests["put"] <= 2 + 3 * (10 + 1) + 1
    assert cost.requests["get"] == 1 + 3 + 1 + 1
    assert cost.requests.get("list", 0) == 0


def test_workers_take_chunks_and_the_order_is_kept(url: str, file: Path) -> None:
    fleet = limpet.open(url)
    index = _index(fleet)
    _ = index.manifest
    job = ImportJob(url, "sites")
    with file.open("rb") as stream, ThreadPoolExecutor(2) as pool:
        work = _open(index, stream)
        numbers = [work.state.number for _ in work.run(job, pool, at_once=2)]
    assert numbers == [14, 26, 38]
    assert len(_values(index)) == 30
    assert work.state.done


def test_a_bad_record_at_a_worker(url: str, file: Path) -> None:
    index = _index(limpet.open(url))
    file.write_text(file.read_text() + "x,y,z\n")
    with file.open("rb") as stream, ThreadPoolExecutor(2) as pool:
        work = _open(index, stream)
        with pytest.raises(Invalid, match="line 39: expected 2 fields, got 3"):
            [*work.run(ImportJob(url, "sites"), pool, at_once=2)]
    assert (work.state.records, len(_values(index))) == (30, 30)


def test_stamps_follow_the_chunks(index: Index[Any]) -> None:
    done = _import(index, "domain\na\nb\nc\n", limits=ChunkLimits(records=2))
    began = datetime.fromisoformat(done.state.began_at)
    first, second = began + timedelta(microseconds=1), began + timedelta(microseconds=2)
    assert _values(index, "updated_at") == {"a": (first,), "b": (first,), "c": (second,)}

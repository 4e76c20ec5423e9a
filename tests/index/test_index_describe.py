"""What other tools make of an index: frictionless by `datapackage.json`, validators by `schema.json`."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import limpet
from limpet.index.codec import Field, Schema
from limpet.index.decide import shard_ids
from limpet.index.describe import json_schema, package
from limpet.index.storage import Manifest, fresh
from limpet.index.types import extended, fields_of_package, typed, with_own

frictionless = pytest.importorskip("frictionless")
jsonschema = pytest.importorskip("jsonschema")

STAMP = "2026-03-01T00:00:00.000000Z"
AT = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class Site:
    """A column of each type."""

    domain: str
    title: str | None = None
    size: int | None = None
    rate: Annotated[float, msgspec.Meta(ge=0)] | None = None
    good: bool | None = None
    day: date | None = None
    seen: datetime | None = None
    color: Literal["red", "a\\b"] | None = None
    short: Annotated[str, msgspec.Meta(max_length=3)] | None = None
    tags: list[Any] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    other: Any = None


def _manifest(kind: Any, key: str) -> Manifest:
    columns = typed(kind, key).fields
    assert columns is not None
    return fresh(with_own(columns, key), 2)


def _lay_out(root: Path, manifest: Manifest, lines: Sequence[bytes]) -> Path:
    """A compiled index of those lines as files, in one of its shards; the path of its data package."""
    (root / "shards").mkdir(parents=True, exist_ok=True)
    for shard in shard_ids(manifest.depth):
        (root / "shards" / f"{shard}.usv").touch()
    (root / "shards" / "5e.usv").write_bytes(b"".join(line + b"\n" for line in lines))
    path = root / "datapackage.json"
    path.write_bytes(package("sites", manifest))
    return path


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for row in frictionless.Package(str(path)).resources[0].read_rows():
        yield row.to_dict()


def _errors(path: Path) -> list[list[Any]]:
    """What frictionless finds wrong: the kind, the row and the field."""
    report = frictionless.validate(str(path))
    assert report.errors == []
    found: list[list[Any]] = report.flatten(["type", "rowNumber", "fieldName"])
    assert bool(found) != report.valid
    return found


SITES = [
    Site("a.com", "plain", 1, 0.5, True, date(1, 2, 3), AT, "red", "abc", ["x", 'say "hi"'], {"a": "\n\\"}, "text"),
    Site("b.com", "with \"quotes\" and 'apostrophes'", -(2**63), 1e22, False, date(9999, 12, 31), AT, "a\\b", "\n\n\n"),
    Site("c.com", "  spaces  ", 2**63 - 1, 0.0, other=[1, None]),
    Site("d.com", ""),
    Site("e.com", "NaN"),
    Site("f.com", "\\"),
    Site("gone.com"),
]


def test_frictionless_validates_a_compiled_index_and_reads_it(tmp_path: Path) -> None:
    index = limpet.open(str(tmp_path)).index("sites", Site, key="domain")
    index.put_many(SITES)
    index.delete("gone.com")
    index.compile(full=True)
    path = tmp_path / "indexes" / "sites" / "datapackage.json"
    assert _errors(path) == []
    rows = {row["domain"]: row for row in _rows(path)}
    assert sorted(rows) == [site.domain for site in SITES]
    for site in SITES[:5]:
        row = rows[site.domain]
        assert (row["title"], row["size"], row["good"]) == (site.title, site.size, site.good)
        assert (row["day"], row["seen"], row["tags"]) == (site.day, site.seen, site.tags)
        assert row["more"] == site.more
        assert row["rate"] == (None if site.rate is None else Decimal(repr(site.rate)))
        assert row["other"] == (None if site.other is None else msgspec.json.encode(site.other).decode())
        assert row["updated_at"].tzinfo is not None
        assert row["_deleted"] is False
    assert rows["gone.com"]["_deleted"] is True
    assert rows["gone.com"]["title"] is None


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """The data package of a compiled index, whose times have microseconds. One reader takes each `"` for a quote."""
    index = limpet.open(str(tmp_path)).index("sites", Site, key="domain")
    index.put_many([Site("a.com", "A", 1, 0.5, True, date(2026, 1, 2), AT.replace(microsecond=123456)), Site("b.com")])
    index.delete("b.com")
    index.compile(full=True)
    return tmp_path / "indexes" / "sites" / "datapackage.json"


def _records(*command: str | Path) -> dict[str, dict[str, Any]]:
    """What a reader of version 1 prints of the package, by key. A process of its own: one leaves its files open."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return {record["domain"]: record for record in json.loads(done.stdout)}


READ = """
import datapackage, json, sys, warnings
warnings.simplefilter("ignore")
opened = datapackage.Package(sys.argv[1])
assert opened.valid, opened.errors
print(json.dumps(opened.resources[0].read(keyed=True), default=str))
"""


def test_the_python_reader_of_version_1_reads_times_with_microseconds(compiled: Path) -> None:
    pytest.importorskip("datapackage")
    rows = _records(sys.executable, "-W", "ignore", "-c", READ, compiled)
    a, b = rows["a.com"], rows["b.com"]
    assert (a["title"], a["size"], a["rate"], a["good"], a["day"]) == ("A", 1, "0.5", True, "2026-01-02")
    assert datetime.fromisoformat(a["seen"]) == AT.replace(microsecond=123456)
    assert datetime.fromisoformat(b["updated_at"]).utcoffset() is not None
    assert (a["_deleted"], b["_deleted"], b["title"]) == (False, True, None)


def test_the_javascript_reader_of_version_1_reads_times_with_microseconds(compiled: Path) -> None:
    readers = Path(sys.prefix) / "js"
    node = shutil.which("node")
    if node is None or not (readers / "node_modules" / "datapackage").is_dir():
        pytest.skip("node and npm are not there: `python3 tools/install.py dev` installs the reader by them")
    rows = _records(node, readers / "read.js", compiled)
    a, b = rows["a.com"], rows["b.com"]
    assert (a["title"], a["size"], a["rate"], a["good"], a["seen"]) == ("A", 1, 0.5, True, "2026-03-01T00:00:00.123Z")
    assert (a["_deleted"], b["_deleted"], b["title"]) == (False, True, None)


def test_the_package_is_a_v2_descriptor_with_every_shard() -> None:
    manifest = _manifest(Site, "domain")
    described = json.loads(package("sites", manifest))
    assert described["$schema"] == "https://datapackage.org/profiles/2.0/datapackage.json"
    assert described["version"] == "1"
    [resource] = described["resources"]
    assert resource["path"] == [f"shards/{number:02x}.usv" for number in range(256)]
    assert resource["dialect"] == {
        "header": False,
        "delimiter": "\x1f",
        "lineTerminator": "\n",
        "quoteChar": "\x1e",
        "skipInitialSpace": False,
    }
    assert resource["schema"]["missingValues"] == ["\\N"]
    assert resource["schema"]["primaryKey"] == ["domain"]
    assert frictionless.Package.from_descriptor(described).resources[0].schema.primary_key == ["domain"]
    fields = {each["name"]: each for each in resource["schema"]["fields"]}
    assert fields["_deleted"] == {"name": "_deleted", "type": "boolean", "trueValues": ["1"], "falseValues": ["0"]}
    assert fields["updated_at"] == {"name": "updated_at", "type": "datetime", "format": "any"}
    assert fields["tags"] == {"name": "tags", "type": "array", "limpet:constraints": {"required": True}}
    assert fields["rate"] == {"name": "rate", "type": "number", "constraints": {"minimum": 0.0}}
    assert fields["color"]["constraints"] == {"enum": ["a\\\\b", "red"]}
    assert fields["color"]["limpet:constraints"] == {"enum": ["a\\b", "red"]}
    assert fields["short"] == {"name": "short", "type": "string", "limpet:constraints": {"maxLength": 3}}


def test_frictionless_sees_a_broken_constraint_and_a_double_key(tmp_path: Path) -> None:
    manifest = _manifest(Site, "domain")
    free = with_own([Field(each.name, each.type) for each in manifest.fields[:12]], "domain")
    bad = free.line({"domain": "a", "rate": -1.0, "color": "green"}, STAMP, where="")
    path = _lay_out(tmp_path, manifest, [bad, bad])
    assert [found[0] for found in _errors(path)].count("constraint-error") == 4
    assert ["primary-key", 2, None] in [[*found[:2], None] for found in _errors(path)]


TEXT = with_own([Field("key", "string"), Field("text", "string"), Field("last", "string")], "key")
clean = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[*map(chr, range(32)), "\x7f", "\\"]))


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(clean, st.none() | clean), min_size=1, max_size=100))
@example([(' "a"', ' "a"')])
@example([("'a' 'b'", "\ufeff"), ("\ufeff", '"'), ("#", ""), ("NaN", "null"), ("\x85\u2028", "")])
def test_frictionless_reads_every_string_without_escapes_exactly(
    tmp_path: Path, rows: list[tuple[str, str | None]]
) -> None:
    lines = [
        TEXT.line({"key": str(at), "text": text, "last": last}, STAMP, where="") for at, (text, last) in enumerate(rows)
    ]
    path = _lay_out(tmp_path, fresh(TEXT, 2), lines)
    assert [(row["text"], row["last"]) for row in _rows(path)] == rows


def test_after_a_column_was_added_frictionless_misses_a_cell_until_the_shard_is_folded(tmp_path: Path) -> None:
    old = with_own([Field("key", "string")], "key")
    new = extended(old, [Field("key", "string"), Field("more", "integer")], "key")
    assert new is not None
    before, after = old.line({"key": "a"}, STAMP, where=""), new.line({"key": "b", "more": 1}, STAMP, where="")
    path = _lay_out(tmp_path, fresh(new, 2), [before, after])
    assert _errors(path) == [["missing-cell", 1, "more"]]
    path = _lay_out(tmp_path, fresh(old, 2), [before, after])
    assert [found[0] for found in _errors(path)] == ["extra-cell"]


def test_an_index_takes_its_own_description_as_its_type_and_nothing_changes(tmp_path: Path) -> None:
    manifest = _manifest(Site, "domain")
    fields, key = fields_of_package(_lay_out(tmp_path, manifest, []))
    assert key == "domain"
    assert any(each.required for each in fields if each.name != key)
    assert extended(manifest.schema, fields, key) is None


def _as_qsv(header: Sequence[str], row: Sequence[str], schema: dict[str, Any]) -> dict[str, Any]:
    """A CSV record as `qsv validate` hands it to its validator (src/cmd/validate.rs, to_json_instance)."""
    found: dict[str, Any] = {}
    for name, text in zip(header, row, strict=True):
        kind = schema["properties"].get(name, {}).get("type", "string")
        kinds = [each for each in ([kind] if isinstance(kind, str) else kind) if each != "null"]
        match kinds[-1]:
            case _ if not text:
                found[name] = None
            case "integer":
                found[name] = int(text)
            case "number":
                found[name] = float(text)
            case "boolean":
                found[name] = {"true": True, "1": True, "false": False, "0": False}[text]
            case "string":
                found[name] = text
            case other:
                raise AssertionError(f"qsv has no type {other}")
    return found


def _judge(schema: Schema, described: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """What a validator says of the record, exported as CSV."""
    out = io.StringIO()
    names = [each.name for each in schema.columns]
    line = schema.line(values, STAMP, where="")
    texts = ["" if text == "\\N" else text for text in line.decode().split("\x1f")]
    del texts[schema.shape.deleted_column]
    csv.writer(out).writerows([names, texts])
    header, row = csv.reader(io.StringIO(out.getvalue()))
    checks = jsonschema.Draft202012Validator(described, format_checker=jsonschema.FormatChecker())
    return sorted(error.message for error in checks.iter_errors(_as_qsv(header, row, described)))


def test_the_json_schema_takes_every_record_of_an_index() -> None:
    manifest = _manifest(Site, "domain")
    described = json.loads(json_schema("sites", manifest))
    jsonschema.Draft202012Validator.check_schema(described)
    kind = typed(Site, "domain")
    for site in SITES:
        if site.color != "a\\b" and "\n" not in (site.short or ""):  # an export undoes escapes, this test does not
            assert _judge(manifest.schema, described, dict(kind.values(site, where=""))) == [], site


def test_the_json_schema_refuses_what_an_index_refuses() -> None:
    manifest = _manifest(Site, "domain")
    described = json.loads(json_schema("sites", manifest))
    free = with_own([Field(each.name, "string") for each in manifest.schema.columns[:12]], "domain")
    wrong = {"rate": "-1", "color": "green", "short": "abcd", "day": "2026-02-30"}
    for name, text in wrong.items():
        assert len(_judge(free, described, {"domain": "a", "tags": "[]", "more": "{}", name: text})) == 1, name
    for name in ("size", "rate", "good"):
        with pytest.raises((ValueError, KeyError)):
            _judge(free, described, {"domain": "a", name: "x"})


def test_the_json_schema_knows_what_may_be_empty() -> None:
    limits = {
        "fields": [{"name": "k"}, {"name": "n", "type": "integer", "constraints": {"required": True}}, {"name": "t"}]
    }
    described = json.loads(json_schema("x", _manifest(limits, "k")))
    assert described["required"] == ["k"]
    assert {name: each["type"] for name, each in described["properties"].items()} == {
        "k": "string",
        "n": "integer",
        "t": ["string", "null"],
        "updated_at": ["string", "null"],
        "_deleted": ["boolean", "null"],
    }

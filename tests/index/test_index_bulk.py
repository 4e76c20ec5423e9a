"""`put_many` makes lines column by column: byte for byte what one record at a time becomes, and the same errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Annotated, Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import limpet
from limpet.index import Index, writer
from limpet.index.codec import LINE_BYTES_MAX, UPDATED_AT, Field, Schema, Typed
from limpet.index.types import extended, typed, with_own
from limpet.index.values import KINDS, stamp_text
from limpet.index.writer import AHEAD_MAX, EncodedRecords, Floor, RecordEncoder, Stamps, Times
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.store import MemoryStore
from support.clock import EPOCH, ManualRuntime, steady
from support.costs import requests
from support.index import NAME, Rec, at, objects
from support.values import VALUES, hard_texts

SCOPE = "indexes/recs"
HOUR = timedelta(hours=1)
KEYS = ["a", "b", "c", "d"]


class Color(Enum):
    """What only its type can check."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Usual:
    """What most people put."""

    key: str
    text: str
    count: int
    note: str | None = None
    rank: int | None = None
    updated_at: datetime | None = None


class Special(Usual):
    """One that is asked for its values like any other."""


@dataclass
class Limited:
    """One whose columns have constraints."""

    key: str
    count: Annotated[int, msgspec.Meta(ge=0, le=9)] = 1
    text: Annotated[str, msgspec.Meta(max_length=3)] = "abc"


@dataclass
class Judged:
    """One that only its type can check."""

    key: str
    color: Color = Color.RED
    tags: tuple[str, ...] = ()


class Numbered(msgspec.Struct, rename={"number": "no"}):
    """One with a number as its key, and a field that has another name in the index."""

    number: int
    at: datetime
    share: float = 0.5
    good: bool = True


@dataclass(frozen=True)
class Kind:
    """A type of records, its columns, and records of it, good and bad."""

    typed: Typed[Any]
    schema: Schema
    records: st.SearchStrategy[Any]


def _kind(kind: Any, key: str, records: st.SearchStrategy[Any]) -> Kind:
    found = typed(kind, key)
    assert found.fields is not None
    return Kind(found, with_own(found.fields, key), records)


def _with(schema: Schema, *fields: Field) -> Schema:
    """The schema with more columns."""
    found = extended(schema, [*schema.columns, *fields], schema.key)
    assert found is not None
    return found


near = st.sampled_from([-HOUR, timedelta(0), HOUR, AHEAD_MAX - HOUR, AHEAD_MAX + HOUR]).map(lambda by: EPOCH + by)
"""Of the past, or ahead, or too far ahead."""
zones = st.sampled_from([UTC, timezone(timedelta(0), "another"), timezone(timedelta(hours=-5))])
stamps = st.builds(
    lambda when, zone: when.astimezone(zone), near | VALUES["datetime"].filter(lambda t: t < EPOCH), zones
)
brought = st.none() | stamps | st.sampled_from([datetime(2026, 1, 1), "2026-01-01", 7])

keys = st.sampled_from([*KEYS, "é", "a\\\n", "x" * 600, "", "\ud800", None, 3]) | hard_texts
texts = hard_texts | st.sampled_from(["plain", "\\N", "\ud800", None, 3, Color.RED])
counts = VALUES["integer"] | st.sampled_from([0, 1 << 63, -(1 << 63) - 1, True, None, "1", 1.0])
usual_values = {
    "key": st.sampled_from(KEYS) | keys,
    "text": st.just("text") | texts,
    "count": st.integers(0, 9) | counts,
    "note": st.none() | texts,
    "rank": st.none() | counts,
    UPDATED_AT: st.none() | st.just(EPOCH - HOUR) | brought,
}
dicts = st.fixed_dictionaries(usual_values) | st.fixed_dictionaries(
    {"key": st.sampled_from(KEYS), "text": st.just("text"), "count": st.just(1)},
    optional={"note": st.none() | hard_texts, UPDATED_AT: brought, "other": st.just(1)},
)
usual = st.builds(Usual, **usual_values)
PLAIN = st.builds(Usual, st.sampled_from(KEYS), st.text("abc"), st.integers(0, 9), st.none() | st.text("abc"))

EVERY = tuple(Field(f"a {kind}", kind) for kind in KINDS)
every = st.fixed_dictionaries(
    {"key": st.sampled_from(KEYS)}, optional={field.name: st.none() | VALUES[field.type] for field in EVERY}
)
USUAL = _kind(Usual, "key", usual | dicts)
LATER = _with(USUAL.schema, Field("tags", "array"), Field("more", "string"))

ALL = {
    "usual": USUAL,
    "plain": Kind(USUAL.typed, USUAL.schema, PLAIN),
    "dicts": Kind(USUAL.typed, USUAL.schema, dicts),
    "mixed": Kind(USUAL.typed, USUAL.schema, usual | st.builds(Special, **usual_values) | dicts | st.just(7)),
    "an older program's": Kind(USUAL.typed, LATER, PLAIN),
    "limited": _kind(Limited, "key", st.builds(Limited, st.sampled_from(KEYS), st.integers(-1, 10), st.text("a"))),
    "judged": _kind(
        Judged,
        "key",
        st.builds(Judged, st.sampled_from(KEYS), st.sampled_from([*Color, "red", "green"]), st.just(("a",))),
    ),
    "numbered": _kind(
        Numbered,
        "no",
        st.builds(
            Numbered,
            st.integers(0, 9) | counts,
            VALUES["datetime"] | st.just(EPOCH),
            VALUES["number"] | st.sampled_from([float("inf"), 1, "x"]),
            st.booleans() | st.just(0),
        ),
    ),
    "every kind": Kind(typed(None, "key"), with_own([Field("key", "string"), *EVERY], "key"), every),
}


def _encoder(kind: Kind, seen: Mapping[str, datetime]) -> tuple[RecordEncoder[Any], Times]:
    """One process, which has seen records of those times."""
    runtime = ManualRuntime()
    giver = Stamps(MemoryStore(runtime), runtime, Floor(runtime))
    giver.remember(SCOPE, {key: stamp_text(when) for key, when in seen.items()})
    return RecordEncoder(kind.schema, kind.typed), Times(giver, SCOPE)


def _one_by_one(kind: Kind, records: Sequence[Any], seen: Mapping[str, datetime]) -> EncodedRecords | None:
    maker, times = _encoder(kind, seen)
    try:
        return maker.one_by_one(records, 1, times)
    except Invalid:
        return None


@settings(steady, max_examples=200)
@given(st.data(), st.sampled_from([*ALL]), st.dictionaries(st.sampled_from(KEYS), near))
def test_columns_make_of_records_what_each_becomes_by_itself(
    data: st.DataObject, name: str, seen: dict[str, datetime]
) -> None:
    kind = ALL[name]
    records = data.draw(st.lists(kind.records, min_size=1, max_size=6))
    wanted = _one_by_one(kind, records, seen)
    maker, times = _encoder(kind, seen)
    found = maker.in_columns(records, times)
    assert (found is None) == (wanted is None), "it is refused if one record is bad, and only then"
    if found is not None and wanted is not None:
        assert ([*found.keys], [*found.lines]) == (wanted.keys, wanted.lines)
        assert wanted.own is not None
        if found.own is not None:
            assert found.own == wanted.own
        else:
            assert not any(stamp and stamp > stamp_text(EPOCH + HOUR / 2) for stamp in wanted.own), "none is ahead"


FIRST = with_own([Field("key", "string"), Field("count", "integer"), Field("at", "datetime")], "key")
NARROW = _with(FIRST, Field("last", "string"))
WIDE = _with(NARROW, Field("json", "any"))
"""With a column of JSON, lines are looked at one by one."""

whole = st.lists(
    st.tuples(
        st.text("ab\\", min_size=1, max_size=3),
        st.none() | st.integers(-9, 9),
        st.just(EPOCH) | VALUES["datetime"],
        st.none() | st.text("ab é\n", max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@settings(steady, max_examples=200)
@given(whole, st.data())
def test_a_whole_object_is_good_if_each_of_its_lines_is(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    stamp = stamp_text(EPOCH)
    made = [
        NARROW.line({"key": key, "count": count, "at": when, "last": last}, stamp, where="")
        for key, count, when, last in rows
    ]
    good = b"".join([line + b"\n" for line in made])
    assert NARROW.lines(good, what="it") == WIDE.lines(good, what="it") == made
    where = data.draw(st.integers(0, len(good) - 2))
    damage = data.draw(
        st.sampled_from([b"", b"\x1f", b"\n", b"\\", b"\\N", b"\x7f", b"\xff", b"\xc3", b"0", b"9", b"-"])
    )
    bad = good[:where] + damage + good[where + data.draw(st.integers(0, 2)) :]
    if all(line.count(b"\x1f") < NARROW.shape.width for line in bad.split(b"\n")):
        assert _lines(NARROW, bad) == _lines(WIDE, bad)


def _lines(schema: Schema, data: bytes) -> list[bytes] | str:
    try:
        return schema.lines(data, what="it")
    except Corrupt as error:
        return str(error)


def test_a_line_that_is_too_long_is_refused() -> None:
    maker, times = _encoder(USUAL, {})
    fits = Usual("a", "x" * (LINE_BYTES_MAX - 100), 1)
    assert maker.in_columns([fits], times) is not None
    assert maker.in_columns([fits, Usual("b", "x" * LINE_BYTES_MAX, 1)], times) is None


@pytest.fixture
def index() -> Index[Any]:
    """A new index."""
    return limpet.open(f"memory://bulk-{uuid4().hex}").index(NAME, Rec, key="key")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks so small that a few records are several."""
    monkeypatch.setattr(writer, "CHUNK", 4)
    return 4


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a value": (lambda: Rec("x", 7), "record 10 ('x'): field 'text': expected string, got int 7"),  # type: ignore[arg-type]
    "no key": (lambda: {"text": "a"}, "record 10: field 'key': expected the key, got nothing"),
    "a name": (lambda: {"key": "x", "nope": 1}, "record 10 ('x'): there is no field 'nope'"),
    "no record": (lambda: 7, "record 10: expected a Rec or a dict, got int"),
    "a time": (
        lambda: {"key": "x", UPDATED_AT: "now"},
        "record 10 ('x'): field 'updated_at': expected datetime with a time zone, got 'now'",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_an_error_names_the_record_in_its_call_and_nothing_is_written(index: Index[Any], small: int, what: str) -> None:
    make, message = BAD[what]
    assert index.manifest
    records = [*(Rec(f"k{n}") for n in range(9)), make(), Rec("later", 3)]  # type: ignore[arg-type]
    with pytest.raises(Invalid) as caught:
        index.put_many(records)
    assert str(caught.value) == message
    assert [*objects(index.storage.store, "inbox"), *objects(index.storage.store, "packs")] == []


def test_of_two_records_with_one_key_the_last_counts_wherever_they_stand(index: Index[Any], small: int) -> None:
    records = [Rec(f"k{n % 7}", str(n)) for n in range(30)]
    assert index.put_many(iter(records)) == 7
    assert index.get_many(f"k{n}" for n in range(7)) == {f"k{n % 7}": Rec(f"k{n % 7}", str(n)) for n in range(23, 30)}


@pytest.mark.parametrize("last", [None, EPOCH - HOUR], ids=["none", "past"])
def test_a_time_ahead_that_was_not_written_is_not_remembered(small: int, last: datetime | None) -> None:
    runtime = ManualRuntime()
    index = limpet.open("memory://", runtime=runtime).index(NAME, key="key", kind={"fields": [{"name": "key"}]})
    ahead = {"key": "a", UPDATED_AT: EPOCH + HOUR}
    others = [{"key": f"k{n}"} for n in range(4)]
    index.put_many([ahead, *others, {"key": "a", UPDATED_AT: last}])
    index.put_many([{"key": "a"}])
    assert _stamp(index) < EPOCH + HOUR
    index.put_many([*others, {"key": "a", UPDATED_AT: last}, ahead])
    index.put_many([{"key": "a"}])
    assert _stamp(index) == EPOCH + HOUR + timedelta(microseconds=1), "that one was"


def _stamp(index: Index[Any]) -> datetime:
    record = index.get("a")
    assert record is not None
    when: datetime = record[UPDATED_AT]
    return when


def test_many_records_lie_in_the_shards_as_if_each_had_been_put() -> None:
    records = [{"key": f"k{n}", "text": "\\N\n"[: n % 4] or None, UPDATED_AT: at(n)} for n in range(60)]
    one, many = (limpet.open(f"memory://bulk-{uuid4().hex}").index(NAME, Rec, key="key") for _ in range(2))
    for record in records:
        one.put(record)
    assert many.put_many(records) == 60
    assert [*_shards(one)] == [*_shards(many)]


def _shards(index: Index[Any]) -> Iterator[bytes]:
    index.compile(full=True)
    for stat in index.storage.store.list(f"indexes/{NAME}/shards"):
        if stat.key.endswith(".usv"):
            yield index.storage.store.get(stat.key).data


def test_a_large_call_is_still_one_put_for_each_shard() -> None:
    fleet = limpet.open("memory://")
    index = fleet.index(NAME, Rec, key="key")
    index.put(Rec("a"))
    number = writer.CHUNK * 2 + 1
    assert requests(fleet, lambda: index.put_many(Rec(f"k{n}", "x") for n in range(number))) == {"put": 256}
    assert sum(1 for _ in index.scan()) == number + 1

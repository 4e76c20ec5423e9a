"""Users' types and data packages as columns, and their objects as values and back."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.index.codec import Constraints, Field, Typed
from limpet.index.types import typed, with_own
from limpet.kernel.errors import Corrupt, Invalid, Unsupported
from support.clock import steady
from support.values import hard_texts

STAMP = "2026-03-01T00:00:00.000000Z"
T = TypeVar("T")


class Color(Enum):
    """An enum of strings."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    """An enum of numbers."""

    LOW = 1
    HIGH = 2


@dataclass
class Place:
    """Something nested, with a time in it."""

    name: str
    seen: datetime | None = None


class Point(msgspec.Struct, array_like=True):
    """A nested struct that is an array in JSON."""

    x: int
    y: int


class Pair(NamedTuple):
    """A nested tuple."""

    a: int
    b: str


class Options(TypedDict):
    """A nested dict."""

    deep: bool


@dataclass
class Everything:
    """A field of each type that a column can hold."""

    key: str
    integer: int = 1
    number: float = 1.5
    flag: bool = True
    day: date = date(2026, 1, 1)
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    color: Color = Color.RED
    level: Level = Level.LOW
    letter: Literal["a", "b"] = "a"
    digit: Literal[1, 2, None] = 1
    uuid: UUID = field(default_factory=lambda: UUID(int=7))
    price: Decimal = Decimal("1.10")
    data: bytes = b"\x00\xff"
    hour: time = time(1, 2, 3)
    span: timedelta = timedelta(days=1, seconds=1)
    place: Place = field(default_factory=lambda: Place("x", datetime(2026, 1, 1, tzinfo=UTC)))
    point: Point = field(default_factory=lambda: Point(1, 2))
    pair: Pair = field(default_factory=lambda: Pair(1, "b"))
    options: Options = field(default_factory=lambda: Options(deep=True))
    names: list[str] = field(default_factory=lambda: ["a\\", "\n"])
    several: set[int] = field(default_factory=lambda: {3, 1})
    fixed: tuple[int, str] = (1, "a")
    by_number: dict[int, datetime] = field(default_factory=lambda: {1: datetime(2026, 1, 1, tzinfo=UTC)})
    loose: dict[str, Any] = field(default_factory=lambda: {"a": [1, None]})
    items: list[Any] = field(default_factory=lambda: [1, "a"])
    anything: Any = None
    perhaps: str | None = None


def _back(kind: Typed[Any], record: Any) -> Any:
    """What a put and a get make of a record."""
    assert kind.fields is not None
    assert kind.key is not None
    schema = with_own(kind.fields, kind.key)
    return kind.record(schema.values(schema.line(kind.values(record, where="record 1"), STAMP, where="record 1")))


def test_every_type_that_a_column_can_hold_comes_back() -> None:
    kind = typed(Everything, "key")
    assert _back(kind, Everything("a")) == Everything("a")
    assert _back(kind, {"key": "a"}) == Everything("a")
    other = Everything("a", color=Color.BLUE, level=Level.HIGH, digit=None, anything={"x": [1.5]}, perhaps="\\N")
    found = _back(kind, other)
    assert found == other
    assert [type(value) for value in vars(found).values()] == [type(value) for value in vars(other).values()]


def test_the_columns_of_a_type() -> None:
    columns = typed(Everything, "key").fields
    assert columns is not None
    assert {column.name: column.type for column in columns} == {
        "key": "string",
        "integer": "integer",
        "number": "number",
        "flag": "boolean",
        "day": "date",
        "at": "datetime",
        "color": "string",
        "level": "integer",
        "letter": "string",
        "digit": "integer",
        "uuid": "string",
        "price": "string",
        "data": "string",
        "hour": "string",
        "span": "string",
        "place": "object",
        "point": "array",
        "pair": "array",
        "options": "object",
        "names": "array",
        "several": "array",
        "fixed": "array",
        "by_number": "object",
        "loose": "object",
        "items": "array",
        "anything": "any",
        "perhaps": "string",
    }
    assert [column.name for column in columns if not column.required] == ["digit", "anything", "perhaps"]


@dataclass
class Site:
    """The usual record."""

    domain: str
    title: str | None
    score: int = 3


class Struct(msgspec.Struct, rename="camel"):
    """A record whose columns are called otherwise than its attributes."""

    the_key: str
    some_number: float = 0.5


class Later(msgspec.Struct, kw_only=True):
    """A record that takes no values by place."""

    key: str
    number: int = 1


@dataclass(frozen=True, slots=True)
class Frozen:
    """A record that cannot be changed."""

    key: str


@dataclass
class Strict:
    """A record that judges itself."""

    key: str
    least: int

    def __post_init__(self) -> None:
        if self.least < 0:
            raise ValueError("least is negative")


@dataclass
class Odd:
    """A record that makes one of its attributes itself."""

    key: str
    length: int = field(init=False, default=0)


class Own(Site):
    """A record with a constructor of its own."""

    def __init__(self) -> None:
        raise AssertionError("nobody calls this")


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (Site("a", None), "domain"),
        (Site("a", "\\N", -1), "domain"),
        (Struct("a", 1e22), "theKey"),
        (Later(key="a", number=2), "key"),
        (Frozen("a"), "key"),
        (Strict("a", 0), "key"),
    ],
)
def test_records_of_any_make_come_back(record: Any, key: str) -> None:
    assert _back(typed(type(record), key), record) == record


@steady
@given(hard_texts.filter(bool), st.none() | hard_texts, st.integers(-(2**63), 2**63 - 1))
def test_any_dataclass_comes_back(domain: str, title: str | None, score: int) -> None:
    assert _back(typed(Site, "domain"), Site(domain, title, score)) == Site(domain, title, score)


def test_a_record_is_made_directly_only_where_that_is_the_same() -> None:
    direct = {kind: typed(kind, "key").direct for kind in (Site, Struct, Frozen, Later, Strict, Odd, Own, Everything)}
    assert direct == {
        Site: True,
        Struct: True,
        Frozen: True,
        Later: False,
        Strict: False,
        Odd: False,
        Own: False,
        Everything: False,
    }


def test_a_subclass_is_a_record_too_and_attributes_that_are_no_columns_stay_out() -> None:
    @dataclass
    class More(Site):
        extra: int = 1

    record = More("a", "b")
    record.elsewhere = 5  # type: ignore[attr-defined]
    assert typed(Site, "domain").values(record, where="") == {"domain": "a", "title": "b", "score": 3}


def test_columns_that_the_type_does_not_know_are_left_out() -> None:
    kind = typed(Site, "domain")
    values = {"domain": "a", "title": "b", "score": 1, "updated_at": datetime(2026, 1, 1, tzinfo=UTC), "newer": 5}
    assert kind.record(values) == Site("a", "b", 1)


def test_without_a_type_records_are_dicts() -> None:
    kind = typed(None, None)
    assert kind.record({"a": 1}) == {"a": 1}
    with pytest.raises(Invalid, match="record 1: expected a dict, got Site"):
        kind.values(Site("a", None), where="record 1")


@pytest.mark.parametrize("wrong", [5, "a", None, ["domain"], Frozen("a")])
def test_a_record_of_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises(Invalid, match=rf"record 1: expected a Site or a dict, got {type(wrong).__name__}"):
        typed(Site, "domain").values(wrong, where="record 1")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"names": ["a", 1]}, "record 1 ('a'): field 'names[1]': Expected `str`, got `int`"),
        ({"place": {"nam": "x"}}, "record 1 ('a'): field 'place': Object missing required field `name`"),
        ({"color": "green"}, "record 1 ('a'): field 'color': Invalid enum value 'green'"),
        ({"letter": "c"}, "record 1 ('a'): field 'letter': Invalid enum value 'c'"),
        ({"uuid": "x"}, "record 1 ('a'): field 'uuid': Invalid UUID"),
        ({"several": object()}, None),
        ({"integer": "1"}, None),
        ({"by_number": {"x": datetime(2026, 1, 1, tzinfo=UTC)}}, None),
    ],
)
def test_what_the_type_would_not_read_back_is_refused_when_it_is_put(changed: dict[str, Any], said: str | None) -> None:
    kind = typed(Everything, "key")
    for record in ({"key": "a", **changed}, dataclasses.replace(Everything("a"), **changed)):
        with pytest.raises(Invalid) as caught:
            _back(kind, record)
        assert "record 1" in str(caught.value)
        assert next(iter(changed)) in str(caught.value)
        assert said is None or str(caught.value) == said


def test_a_type_that_judges_itself_is_asked_when_a_dict_is_put() -> None:
    with pytest.raises(Invalid, match=r"record 1 \('a'\): least is negative"):
        _back(typed(Strict, "key"), {"key": "a", "least": -1})


def test_what_is_stored_and_does_not_fit_the_type_is_corrupt_with_a_hint() -> None:
    with pytest.raises(Corrupt, match="a stored record is not a Site") as caught:
        typed(Site, "domain").record({"domain": "a", "title": None, "score": "high"})
    assert "allow what is stored" in caught.value.hint
    with pytest.raises(Unsupported, match="a record has no 'score', and every Site has one") as refused:
        typed(Site, "domain").record({"domain": "a", "title": "b", "score": None})
    assert "declare `score: ... | None`" in refused.value.hint
    with pytest.raises(Corrupt, match="least is negative"):
        typed(Strict, "key").record({"key": "a", "least": -1})


@dataclass
class Limited:
    """Constraints by annotation."""

    key: Annotated[str, msgspec.Meta(min_length=2, max_length=4)]
    small: Annotated[int, msgspec.Meta(ge=0, lt=10)] = 0
    real: Annotated[float, msgspec.Meta(gt=0.0, le=1.5)] | None = None
    word: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")] = "a"
    even: Annotated[int, msgspec.Meta(multiple_of=2)] = 2
    few: Annotated[list[Any], msgspec.Meta(max_length=2)] = field(default_factory=list)
    color: Color | None = None


def test_constraints_of_a_type_are_kept_with_the_column() -> None:
    columns = typed(Limited, "key").fields
    assert columns is not None
    assert {column.name: column.constraints for column in columns} == {
        "key": Constraints(min_length=2, max_length=4),
        "small": Constraints(minimum=0, exclusive_maximum=10),
        "real": Constraints(exclusive_minimum=0.0, maximum=1.5),
        "word": None,
        "even": None,
        "few": Constraints(max_length=2),
        "color": Constraints(enum=("red", "blue")),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("key", "a"), ("key", "abcde"), ("small", -1), ("small", 10), ("real", 0.0), ("real", 1.6), ("word", "A")],
        *[("even", 3), ("few", [1, 2, 3]), ("color", "green")],
    ],
)
def test_constraints_of_a_type_are_enforced_when_it_is_put(name: str, value: Any) -> None:
    kind = typed(Limited, "key")
    good = Limited("abcd", 9, 1.5, "z", 4, [1, 2], Color.RED)
    assert _back(kind, good) == good
    with pytest.raises(Invalid, match=name):
        _back(kind, dataclasses.replace(good, **{name: value}))
    with pytest.raises(Invalid, match=name):
        _back(kind, {"key": "abcd", name: value})


class Plain:
    """No record."""


@dataclass
class Of(Generic[T]):
    """A generic record."""

    key: T


@dataclass
class Naive:
    """A datetime without a zone."""

    key: str
    at: Annotated[datetime, msgspec.Meta(tz=False)]


@dataclass
class Both:
    """A field of two kinds."""

    key: str
    value: int | str


@dataclass
class Nothing:
    """A record of nothing."""


@pytest.mark.parametrize(
    "kind",
    [Plain, int, Of[str], Point, Naive, Both, Nothing, list[str], 5, dataclasses.make_dataclass("X", [("a", Plain)])],
)
def test_what_is_no_record_type_is_refused(kind: Any) -> None:
    with pytest.raises(Invalid):
        typed(kind, "key")


PACKAGE: dict[str, Any] = {
    "name": "domains",
    "resources": [
        {
            "name": "shards",
            "path": "x.csv",
            "schema": {
                "fields": [
                    {"name": "domain", "type": "string", "constraints": {"unique": True, "required": True}},
                    {"name": "size", "type": "integer", "constraints": {"minimum": 0, "maximum": "5"}},
                    {"name": "note"},
                    {"name": "day", "type": "date", "constraints": {"enum": ["2026-01-01"]}},
                    {"name": "_deleted", "type": "boolean"},
                ],
                "primaryKey": "domain",
            },
        }
    ],
}


def test_a_data_package_is_read_from_a_dict_a_path_or_its_schema(tmp_path: Path) -> None:
    expected = (
        Field("domain", "string", required=True),
        Field("size", "integer", constraints=Constraints(minimum=0, maximum=5)),
        Field("note", "string"),
        Field("day", "date", constraints=Constraints(enum=("2026-01-01",))),
    )
    path = tmp_path / "datapackage.json"
    path.write_text(json.dumps(PACKAGE))
    for package in (PACKAGE, path, str(path), PACKAGE["resources"][0]["schema"]):
        kind = typed(package, None)
        assert kind.fields == expected
        assert kind.key == "domain"
    assert typed(PACKAGE, "note").key == "note"


def test_dates_and_times_of_a_dict_are_values() -> None:
    kind = typed({"fields": [{"name": "k"}, {"name": "d", "type": "date"}, {"name": "t", "type": "datetime"}]}, "k")
    record = {"k": "a", "d": date(1, 2, 3), "t": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=3)))}
    found = _back(kind, record)
    assert {name: found[name] for name in record} == record
    with pytest.raises(Invalid, match=r"record 1: field 't': expected datetime with a time zone, got 2026-01-01"):
        _back(kind, {"k": "a", "t": datetime(2026, 1, 1)})


def _schema(**changes: Any) -> dict[str, Any]:
    return {"fields": [{"name": "k", "type": "string"}, {"name": "f", "type": "integer"} | changes]}


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ({}, "there is no schema with `fields`"),
        ({"resources": [{}, {}]}, "more than one resource"),
        ({"resources": 5}, "`resources` of the data package is not a list"),
        ({"fields": []}, "`fields` of the data package is not a list"),
        ({"fields": ["a"]}, "`fields` of the data package is not a list"),
        ({"fields": [{"type": "string"}]}, "field 1 of the schema has no name"),
        (_schema(type="geopoint"), "the field 'f' has the type 'geopoint'"),
        (_schema(type=["x"]), "the field 'f' has the type"),
        (_schema(constraints={"unique": True}), "the constraint 'unique', which an index does not enforce"),
        (_schema(constraints={"jsonSchema": {}}), "the constraint 'jsonSchema', which an index does not enforce"),
        (_schema(constraints=5), "the constraints of the field 'f' are not an object"),
        (_schema(constraints={"minLength": 5}), "the field 'f' is integer, which has no constraint 'minLength'"),
        (_schema(constraints={"minimum": "x"}), "the constraints of the field 'f' are not valid"),
        (_schema(constraints={"enum": []}), "the constraints of the field 'f' are not valid"),
        (_schema(type="string", constraints={"pattern": "("}), "the constraints of the field 'f' are not valid"),
        (_schema(type="string", constraints={"maxLength": "x"}), "the constraints of the field 'f' are not valid"),
        (_schema(type="string", format="email"), "the format 'email', which an index does not enforce"),
        ({**_schema(), "primaryKey": ["k", "f"]}, "primaryKey has several fields"),
        ({**_schema(), "foreignKeys": [{}]}, "the schema has foreignKeys"),
        ("/no/such/file.json", "cannot read /no/such/file.json"),
    ],
)
def test_a_data_package_that_cannot_be_kept_is_refused(package: Any, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        typed(package, None)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)

"""One value as the bytes of a field, and back."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limpet.index.values import INTEGER_END, KINDS, PATTERNS, READERS, WRITERS, Kind, shown, stamp_text, stamp_time
from limpet.kernel.errors import Invalid
from support.clock import steady
from support.values import VALUES, plain_json, times


def _fields(kind: Kind, value: Any) -> tuple[bytes, Any]:
    data = WRITERS[kind](value)
    return data, READERS[kind](data.decode())


def test_every_kind_is_tried() -> None:
    assert sorted(VALUES) == sorted(KINDS)


@steady
@given(st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_any_value_comes_back(kind: Kind, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])
    field, back = _fields(kind, value)
    assert back == value
    assert type(back) is type(value)
    assert re.fullmatch(PATTERNS[kind], field)
    assert min(field, default=0x20) >= 0x20
    assert b"\x7f" not in field


@steady
@given(times, times)
def test_times_sort_as_their_text(one: datetime, other: datetime) -> None:
    texts = [stamp_text(each) for each in (one, other)]
    assert (texts[0] < texts[1]) == (one < other)
    assert {len(text) for text in texts} == {27}
    assert [stamp_time(text) for text in texts] == [one, other]
    assert all(stamp_time(text).tzinfo is UTC for text in texts)


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        ("number", 1, b"1.0"),
        ("number", -0.0, b"-0.0"),
        ("number", 1e22, b"1e+22"),
        ("number", 5e-324, b"5e-324"),
        ("integer", -INTEGER_END, b"-9223372036854775808"),
        ("boolean", True, b"true"),
        ("date", date(1, 2, 3), b"0001-02-03"),
        ("datetime", datetime(1, 2, 3, tzinfo=UTC), b"0001-02-03T00:00:00.000000Z"),
        ("datetime", datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), b"2025-12-31T23:00:00.000000Z"),
        ("object", {"a": '"\\\n\x7f'}, rb'{"a":"\"\\\n\u007f"}'),
        ("any", "text", b'"text"'),
    ],
)
def test_how_a_value_is_spelt(kind: Kind, value: Any, field: bytes) -> None:
    assert WRITERS[kind](value) == field


def test_minus_zero_keeps_its_sign() -> None:
    assert math.copysign(1.0, _fields("number", -0.0)[1]) == -1.0


class Shade(StrEnum):
    """A string."""

    RED = "red"


class Old(str, Enum):  # noqa: UP042  that is the point
    """A string that `str()` spells otherwise."""

    RED = "red"


class Level(IntEnum):
    """A number."""

    LOW = 1


@dataclass
class Place:
    """Something nested, with a time."""

    at: datetime


class Word(str):
    """A string of the user's own."""


@pytest.mark.parametrize(
    ("kind", "value", "back"),
    [
        ("string", Shade.RED, "red"),
        ("string", Old.RED, "red"),
        ("string", Word("a\\"), "a\\"),
        ("string", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("string", Decimal("1.10"), "1.10"),
        ("string", b"\xff", "/w=="),
        ("integer", Level.LOW, 1),
        ("object", Place(datetime(2026, 1, 1, tzinfo=UTC)), {"at": "2026-01-01T00:00:00Z"}),
        ("array", {3, 1, 2}, [1, 2, 3]),
        ("array", (1, "a"), [1, "a"]),
    ],
)
def test_what_msgspec_can_turn_is_turned(kind: Kind, value: Any, back: Any) -> None:
    found = _fields(kind, value)[1]
    assert found == back
    assert type(found) is type(back)


WRONG: list[tuple[Kind, Any, str | None]] = [
    ("string", 5, "expected string, got int 5"),
    ("string", "\ud800", "'\\ud800' is not valid Unicode"),
    ("string", ["a"], "expected string, got list ['a']"),
    ("integer", True, "expected integer, got bool True"),
    ("integer", 3.0, "expected integer, got float 3.0"),
    ("integer", "3", "expected integer, got str '3'"),
    ("integer", INTEGER_END, "expected integer of 64 bits, got 9223372036854775808"),
    ("integer", 10**5000, "expected integer of 64 bits, got an integer of 16,610 bits"),
    ("number", True, "expected number, got bool True"),
    ("number", math.nan, "expected number, got nan, which is not finite"),
    ("number", math.inf, "expected number, got inf, which is not finite"),
    ("number", 2**53 + 1, "expected number, got 9007199254740993, which is not exact as one"),
    ("number", 10**5000, "expected number, got an integer of 16,610 bits, which is not exact as one"),
    ("number", Decimal("1.5"), "expected number, got Decimal Decimal('1.5')"),
    ("boolean", 1, "expected boolean, got int 1"),
    ("boolean", "true", "expected boolean, got str 'true'"),
    ("date", datetime(2026, 1, 1, tzinfo=UTC), None),
    ("date", "2026-01-01", "expected date, got str '2026-01-01'"),
    ("datetime", date(2026, 1, 1), "expected datetime, got date datetime.date(2026, 1, 1)"),
    ("datetime", "2026-01-01T00:00:00Z", "expected datetime, got str '2026-01-01T00:00:00Z'"),
    ("datetime", datetime(2026, 1, 1), "expected datetime with a time zone, got 2026-01-01 00:00:00"),
    ("datetime", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), None),
    ("datetime", datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))), None),
    ("object", ["a"], "expected object, got list ['a']"),
    ("object", {1: 2}, "the value has the key 1; JSON keys are strings"),
    ("object", {"at": datetime(2026, 1, 1, tzinfo=UTC)}, "the value['at'] is a datetime, which JSON cannot hold"),
    ("object", {"a": math.nan}, "the value['a'] is nan, which JSON cannot hold"),
    ("array", "abc", "expected array, got str 'abc'"),
    ("array", {"a": 1}, "expected array, got dict {'a': 1}"),
    ("any", {"a": "\ud800"}, "the value['a'] is not valid Unicode"),
    ("any", object, None),
]


@pytest.mark.parametrize(("kind", "value", "said"), WRONG, ids=[f"{row[0]}-{at}" for at, row in enumerate(WRONG)])
def test_a_wrong_value_is_named_in_one_line(kind: Kind, value: Any, said: str | None) -> None:
    with pytest.raises(Invalid) as caught:
        WRITERS[kind](value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 120
    if said is not None:
        assert str(caught.value) == said


class Loud:
    """A value whose repr is no single line."""

    def __repr__(self) -> str:
        return "a\nb" * 100


def test_a_value_is_shown_on_one_short_line() -> None:
    assert shown(Loud()) == "a b" * 12 + "a..."
    assert shown(7) == "7"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", "x", "\\q", "{", "[1", "1.5.1", "2026-13-01", "2026-01-01T00:00:00", "nan "])
def test_damage_reads_as_an_error_or_as_what_it_says(kind: Kind, text: str) -> None:
    good = re.fullmatch(PATTERNS[kind], text.encode()) is not None
    if good and kind not in ("object", "array", "any"):
        READERS[kind](text)
    elif kind in ("boolean", "date", "datetime"):
        with pytest.raises(ValueError):  # noqa: PT011
            READERS[kind](text)


@steady
@given(st.integers(-(10**20), 10**20))
@example(INTEGER_END)
@example(INTEGER_END - 1)
@example(-INTEGER_END)
@example(-INTEGER_END - 1)
@example(0)
def test_the_pattern_of_an_integer_is_exact(number: int) -> None:
    fits = -INTEGER_END <= number < INTEGER_END
    assert (re.fullmatch(PATTERNS["integer"], b"%d" % number) is not None) == fits
    for spelt in (b"0%d" % number, b"+%d" % number, b"%d " % number, b"-0"):
        assert re.fullmatch(PATTERNS["integer"], spelt) is None


def test_the_pattern_of_a_date_is_exact() -> None:
    matches = re.compile(PATTERNS["date"]).fullmatch
    for year in (0, 1, 4, 100, 400, 1900, 1999, 2000, 2004, 2026, 2096, 9996, 9999):
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    date.fromisoformat(text)
                    is_date = True
                except ValueError:
                    is_date = False
                assert (matches(text.encode()) is not None) == is_date, text


@steady
@given(st.dictionaries(st.text(), plain_json))
def test_json_is_json_for_everybody(value: dict[str, Any]) -> None:
    assert json.loads(WRITERS["object"](value)) == value

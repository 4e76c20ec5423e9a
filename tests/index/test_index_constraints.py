"""What a column allows: enforced when a record is put, and only ever loosened."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest

from limpet.index.codec import Constraints, Field, Schema
from limpet.index.types import constraints_of, extended, loosened, with_own
from limpet.index.values import Kind
from limpet.kernel import records
from limpet.kernel.errors import Invalid

STAMP = "2026-03-01T00:00:00.000000Z"


def _of(kind: Kind, **given: Any) -> Schema:
    limits = constraints_of(given, kind, field="f")
    return with_own([Field("k", "string"), Field("f", kind, constraints=limits)], "k")


@pytest.mark.parametrize(
    ("kind", "given", "good", "bad", "said"),
    [
        ("string", {"enum": ["a", "b\\"]}, "b\\", "c", "expected one of a, b\\, got 'c'"),
        ("string", {"minLength": 2}, "ab", "a", "expected a length of at least 2, got 'a'"),
        ("string", {"maxLength": 2}, "\n\\", "abc", "expected a length of at most 2, got 'abc'"),
        ("string", {"pattern": "[a-z]+"}, "abc", "abc1", "expected text like [a-z]+, got 'abc1'"),
        ("string", {"pattern": "a|ab"}, "ab", "abc", "expected text like a|ab, got 'abc'"),
        ("integer", {"enum": [1, "2"]}, 2, 3, "expected one of 1, 2, got 3"),
        ("integer", {"minimum": 3}, 3, 2, "expected at least 3, got 2"),
        ("integer", {"maximum": 3}, 3, 4, "expected at most 3, got 4"),
        ("integer", {"exclusiveMinimum": 3}, 4, 3, "expected more than 3, got 3"),
        ("integer", {"exclusiveMaximum": 3}, 2, 3, "expected less than 3, got 3"),
        ("number", {"minimum": 0, "maximum": 1.5}, 1, 1.6, "expected at most 1.5, got 1.6"),
        ("boolean", {"enum": [True]}, True, False, "expected one of True, got False"),
        ("date", {"minimum": "2026-01-01"}, date(2026, 1, 1), date(2025, 12, 31), None),
        ("datetime", {"maximum": "2026-01-01T02:00:00+02:00"}, datetime(2026, 1, 1, tzinfo=UTC), None, None),
        (
            "datetime",
            {"maximum": "2026-01-01T00:00:00Z"},
            None,
            datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
            "expected at most 2026-01-01T00:00:00.000000Z, got 2026-01-01T00:00:01.000000Z",
        ),
        ("array", {"maxLength": 1}, [1], [1, 2], "expected a length of at most 1, got [1, 2]"),
        ("object", {"minLength": 1}, {"a": 1}, {}, "expected a length of at least 1, got {}"),
    ],
)
def test_a_constraint_is_enforced(kind: Kind, given: dict[str, Any], good: Any, bad: Any, said: str | None) -> None:
    schema = _of(kind, **given)
    line = schema.line({"k": "a", "f": good}, STAMP, where="record 1")
    assert schema.values(line)["f"] == good
    schema.line({"k": "a"}, STAMP, where="record 1")
    if bad is not None:
        with pytest.raises(Invalid) as caught:
            schema.line({"k": "a", "f": bad}, STAMP, where="record 1")
        assert said is None or str(caught.value) == f"record 1: field 'f': {said}"


def test_a_key_may_have_constraints() -> None:
    limits = constraints_of({"pattern": "[a-z.]+"}, "string", field="k")
    schema = with_own([Field("k", "string", constraints=limits)], "k")
    assert schema.line({"k": "a.com"}, STAMP, where="")
    with pytest.raises(Invalid, match="record 1: field 'k': expected text like"):
        schema.line({"k": "A"}, STAMP, where="record 1")


def test_old_lines_are_read_whatever_the_constraints() -> None:
    free, strict = _of("integer"), _of("integer", minimum=5)
    line = free.line({"k": "a", "f": 1}, STAMP, where="")
    assert strict.lines(line + b"\n", what="it") == [line]
    assert strict.values(line)["f"] == 1


def test_constraints_are_stored_as_a_data_package_spells_them_and_not_at_all_if_there_are_none() -> None:
    schema = _of("number", minimum=0, exclusiveMaximum=2)
    assert records.encode(schema.fields[:2]) == (
        b'[{"name":"k","type":"string","required":true},'
        b'{"name":"f","type":"number","constraints":{"minimum":0.0,"exclusiveMaximum":2.0}}]'
    )
    assert msgspec.json.decode(records.encode(schema), type=Schema) == schema


def test_of_two_limits_the_tighter_one_is_kept() -> None:
    assert constraints_of({"minimum": 1, "exclusiveMinimum": 1}, "integer", field="f") == Constraints(
        exclusive_minimum=1
    )
    assert constraints_of({"minimum": 2, "exclusiveMinimum": 1}, "integer", field="f") == Constraints(minimum=2)
    assert constraints_of({"maximum": 1, "exclusiveMaximum": 1}, "integer", field="f") == Constraints(
        exclusive_maximum=1
    )
    assert constraints_of({"maximum": 0, "exclusiveMaximum": 1}, "integer", field="f") == Constraints(maximum=0)


ENUM = Constraints(enum=("a", "b"))
RANGE = Constraints(minimum=0, exclusive_maximum=10)
SIZE = Constraints(min_length=2, max_length=5, pattern="x+")


@pytest.mark.parametrize(
    ("stored", "declared", "result"),
    [
        (None, None, None),
        (ENUM, None, ENUM),
        (ENUM, ENUM, ENUM),
        (ENUM, Constraints(enum=("c", "a")), Constraints(enum=("a", "b", "c"))),
        (ENUM, Constraints(enum=("b",)), ENUM),
        (RANGE, Constraints(minimum=-1), Constraints(minimum=-1, exclusive_maximum=10)),
        (RANGE, Constraints(minimum=5, maximum=9), RANGE),
        (RANGE, Constraints(maximum=10), Constraints(minimum=0, maximum=10)),
        (RANGE, Constraints(exclusive_minimum=0), RANGE),
        (Constraints(exclusive_minimum=0), Constraints(minimum=0), Constraints(minimum=0)),
        (SIZE, Constraints(min_length=1, max_length=9), Constraints(min_length=1, max_length=9, pattern="x+")),
        (SIZE, Constraints(min_length=3, max_length=4), SIZE),
    ],
)
def test_constraints_are_only_loosened(
    stored: Constraints | None, declared: Constraints | None, result: Constraints | None
) -> None:
    assert loosened(stored, declared, field="f") == result


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (None, ENUM),
        (RANGE, ENUM),
        (Constraints(minimum=0), Constraints(maximum=5)),
        (Constraints(maximum=0), Constraints(exclusive_minimum=5)),
        (None, Constraints(min_length=1)),
        (SIZE, Constraints(pattern="y+")),
    ],
)
def test_a_constraint_that_older_records_may_break_is_refused(
    stored: Constraints | None, declared: Constraints
) -> None:
    with pytest.raises(Invalid, match="the field 'f' has another constraint") as caught:
        loosened(stored, declared, field="f")
    assert "never tightened" in caught.value.hint


def test_a_schema_is_extended_by_what_a_field_allows_more() -> None:
    schema = _of("string", enum=["a"])
    wider = extended(schema, [Field("k", "string"), Field("f", "string", constraints=Constraints(enum=("b",)))], "k")
    assert wider is not None
    assert wider.fields[1].constraints == Constraints(enum=("a", "b"))
    assert len(wider.fields) == len(schema.fields)
    assert extended(wider, schema.fields[:2], "k") is None
    assert extended(wider, [Field("k", "string"), Field("f", "string")], "k") is None

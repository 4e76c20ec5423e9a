"""Strict JSON in and out (F23, F32)."""

from __future__ import annotations

from contextlib import suppress
from enum import IntEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.kernel.errors import Corrupt, Invalid, LimpetError
from limpet.kernel.records import DEPTH_MAX, RECORD_BYTES_MAX, builtins, decode, encode, parse_json, plain
from support.clock import steady

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Point(msgspec.Struct, frozen=True):
    x: int
    name: str = ""


class Colour(IntEnum):
    RED = 1


class Celsius(float):
    """As numpy's float64 is: a float by class, unknown to the encoder."""


# ---- decode ----


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"null", b"[]", b"{}", b'{"x": "1"}', b'{"x": 1.5}', b'{"x": true}', b'{"x": NaN}', b'{"x": 1e999}',
        b'{"x": 1}x', b"\xff\xfe", b'{"x": 1, "name": "\xff"}', b'{"x": 1, "name": "\\ud800"}',
        b'{"x": 1, "name": null}',
        b'{"x": 1,}', b"{'x': 1}", b"\x00" * 64, b"<?xml?>", b'{"x": ' + b"9" * 5000 + b"}",
        # as deep as a record can be: Python 3.14 limits the stack that is used, and not the levels
        b'{"x": 1, "y": ' + b"[" * 520_000 + b"]" * 520_000 + b"}",
    ],
    ids=lambda data: data[:24],
)  # fmt: skip
def test_what_is_not_the_record_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"^cells/a\.json is not a valid Point: .") as caught:
        decode(data, Point, what="cells/a.json")
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_record_is_capped_before_it_is_parsed() -> None:
    at_most = b'{"x":1,"name":"' + b"a" * (RECORD_BYTES_MAX - 17) + b'"}'
    assert len(at_most) == RECORD_BYTES_MAX
    assert decode(at_most, Point, what="it").x == 1
    with pytest.raises(Corrupt, match="1,048,577 bytes"):
        decode(at_most + b" ", Point, what="it")


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"a":' * 100_000, b"[" * 200_000 + b"]" * 200_000])
def test_a_deeply_nested_record_is_corrupt_not_a_crash(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(data, list, what="it")


def test_fields_of_a_newer_version_are_left_out() -> None:
    assert decode(b'{"x": 1, "colour": "red"}', Point, what="it") == Point(1)


def test_a_record_reads_back() -> None:
    point = Point(7, "é")
    assert encode(point) == '{"x":7,"name":"é"}'.encode()
    assert decode(encode(point), Point, what="it") == point
    assert builtins(point) == {"x": 7, "name": "é"}


# ---- plain ----


@steady
@given(JSON)
def test_a_plain_value_reads_back_equal(value: Any) -> None:
    assert plain(value, what="it") is value
    assert msgspec.json.decode(encode(value)) == value


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def ring() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (float("nan"), "it is nan"),
        ([1, float("inf")], "it[1] is inf"),
        ({"a": -float("inf")}, "it['a'] is -inf"),
        ({1: 2}, "it has the key 1"),
        ({"a": {None: 1}}, "it['a'] has the key None"),
        ("\ud800", "it is not valid Unicode"),
        (b"bytes", "it is a bytes"),
        ({"a": [object()]}, "it['a'][0] is an object"),
        ({1, 2}, "it is a set"),
        (nested(DEPTH_MAX + 1), "it is nested deeper"),
        (ring(), "it is nested deeper"),
        (1 + 2j, "it is a complex"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_value_that_json_cannot_hold_is_invalid(value: Any, where: str) -> None:
    with pytest.raises(Invalid) as caught:
        plain(value, what="it")
    assert str(caught.value).startswith(where)


def test_depth_is_allowed_up_to_the_limit() -> None:
    assert plain(nested(DEPTH_MAX), what="it")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"\ud800": 1}, id="surrogate in a key"),
        pytest.param(Celsius(1.5), id="subclass of float"),
        pytest.param(10**5000, id="5,000 digits"),
    ],
)
def test_whatever_is_plain_can_be_encoded(value: Any) -> None:
    with suppress(LimpetError):
        encode(plain(value, what="it"))


def test_an_enum_of_numbers_is_its_number() -> None:
    assert encode(plain(Colour.RED, what="it")) == b"1"


# ---- parse_json ----


@pytest.mark.parametrize(
    "text",
    [
        "", "nul", "NaN", "[Infinity]", "-Infinity", '{"a": 1, "a": 2}', '{"b": {"a": 1, "a": 1}}', "1 2", "'a'",
        "[1,]", '"\\ud800"', "1e999", "9" * 5000, "[" * (DEPTH_MAX + 1) + "0" + "]" * (DEPTH_MAX + 1),
        "[" * 100_000, b"\xff", b'"\xc3"', '{"a": ' * 50_000,
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_a_users_text_is_parsed_strictly(text: str | bytes) -> None:
    with pytest.raises(Invalid, match=r"^the value ") as caught:
        parse_json(text, what="the value")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "cap", "fits"), [("[1]", 3, True), ("[1]", 2, False), (b"[1]", 2, False)])
def test_a_users_text_is_capped(text: str | bytes, cap: int, fits: bool) -> None:
    if fits:
        assert parse_json(text, what="it", bytes_max=cap) == [1]
    else:
        with pytest.raises(Invalid, match="more than 2 bytes"):
            parse_json(text, what="it", bytes_max=cap)


def test_a_users_text_is_capped_in_bytes() -> None:
    with pytest.raises(Invalid):
        parse_json('"éééé"', what="it", bytes_max=8)


@steady
@given(JSON)
def test_what_we_write_we_also_parse(value: Any) -> None:
    assert parse_json(encode(value), what="it") == value

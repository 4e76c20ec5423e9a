"""Strings as fields, and lines."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limpet.index.values import END, NULL, SEPARATOR, escape, lines_of, unescape, unsafe
from limpet.kernel.errors import Corrupt, Invalid
from support.clock import steady

HARD = [
    *["", "\\N", "\\", "\\\\n", "\\x1f", "\x1f\x1e\n\r\t\x1b\x00\x7f", "\x85\u2028\u2029\ufeff", "\U0001f41a"],
    *["a\\\nb"],
]


@steady
@given(st.text())
@pytest.mark.parametrize("hard", HARD)
def test_any_string_comes_back(hard: str, text: str) -> None:
    for each in (hard, text, hard + text, text + hard):
        assert unescape(escape(each)).decode() == each


@steady
@given(st.text())
@example("\\N")
def test_a_field_is_one_field_and_never_null(text: str) -> None:
    field = escape(text)
    assert field != NULL
    assert SEPARATOR not in field
    assert END not in field
    assert min(field, default=0x20) >= 0x20
    assert b"\x7f" not in field


@steady
@given(st.text(), st.text())
def test_two_strings_are_two_fields(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@steady
@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3))))
def test_lines_sort_as_tuples_of_their_fields(rows: list[tuple[str, str]]) -> None:
    fields = [tuple(map(escape, row)) for row in rows]
    assert sorted(SEPARATOR.join(row) for row in fields) == [SEPARATOR.join(row) for row in sorted(fields)]


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(Invalid, match="not valid Unicode"):
        escape("a\ud800b")


@pytest.mark.parametrize(
    "field", [b"\\", b"a\\", b"\\q", b"\\x", b"\\x1", b"\\x41", b"\\x0a", b"\\x5c", b"\\N", b"\\xff"]
)
def test_an_escape_that_is_never_written_is_corrupt(field: bytes) -> None:
    with pytest.raises(Corrupt, match="an escape that Limpet does not write"):
        unescape(field)


def test_what_must_be_escaped() -> None:
    every = bytes(range(256))
    assert unsafe(every) == bytes([*range(32), 92, 127])


def test_an_object_that_was_cut_off_is_corrupt() -> None:
    assert lines_of(b"", what="it") == []
    assert lines_of(b"a\n\nb\n", what="it") == [b"a", b"", b"b"]
    with pytest.raises(Corrupt, match="it does not end with a line feed"):
        lines_of(b"a\nb", what="it")

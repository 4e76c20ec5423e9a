"""Records as lines, lines as records, damage, and columns that are added later."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from limpet.index.codec import KEY_BYTES_MAX, LINE_BYTES_MAX, UPDATED_AT, Constraints, Field, Schema
from limpet.index.decide import key_of
from limpet.index.types import extended, nullable, with_own
from limpet.index.values import KINDS, SEPARATOR, Kind
from limpet.index.writer import stamp_in
from limpet.kernel.errors import Corrupt, Invalid
from support.clock import steady
from support.values import VALUES, hard_texts

AT = datetime(2026, 3, 1, tzinfo=UTC)
STAMP = "2026-03-01T00:00:00.000000Z"

EVERY = [Field("key", "string"), *(Field(f"a {kind}", kind) for kind in KINDS)]
FULL = with_own(EVERY, "key")
SITE = with_own([Field("domain", "string"), Field("title", "string", required=True), Field("n", "integer")], "domain")
LATER = extended(SITE, [*SITE.fields[:3], Field("tags", "array"), Field("more", "string")], "domain")

rows = st.fixed_dictionaries(
    {"key": st.text(min_size=1, max_size=20)},
    optional={field.name: st.none() | VALUES[field.type] for field in EVERY[1:]},
)


def line(schema: Schema, **values: Any) -> bytes:
    """A line of a record at `AT`."""
    return schema.line(values, STAMP, where="record 1")


@steady
@given(rows)
def test_any_record_comes_back(row: dict[str, Any]) -> None:
    one = FULL.line(row, STAMP, where="")
    assert FULL.lines(one + b"\n", what="it") == [one]
    assert FULL.values(one) == {**dict.fromkeys(field.name for field in FULL.columns), **row, UPDATED_AT: AT}
    assert not FULL.is_tombstone(one)
    assert FULL.stamp_of(one) == STAMP
    assert key_of(one, FULL.shape) == FULL.key_text(row["key"]).encode()


@steady
@given(hard_texts.filter(bool), hard_texts, st.none() | hard_texts)
def test_any_string_comes_back_whatever_it_holds(key: str, title: str, n: str | None) -> None:
    schema = with_own([Field("k", "string"), Field("t", "string"), Field("n", "string")], "k")
    one = line(schema, k=key, t=title, n=n)
    assert one.count(SEPARATOR) == 4
    assert schema.lines(one + b"\n", what="it") == [one]
    assert schema.values(one) == {"k": key, "t": title, "n": n, UPDATED_AT: AT}


@steady
@given(st.lists(st.tuples(hard_texts.filter(bool), hard_texts)))
def test_lines_sort_as_tuples_of_their_fields(pairs: list[tuple[str, str]]) -> None:
    schema = with_own([Field("k", "string"), Field("t", "string")], "k")
    lines = [line(schema, k=key, t=title) for key, title in pairs]
    assert [one.split(SEPARATOR) for one in sorted(lines)] == sorted(one.split(SEPARATOR) for one in lines)


def test_null_and_empty_are_two_things() -> None:
    assert SITE.values(line(SITE, domain="a", title=""))["title"] == ""
    assert SITE.values(line(SITE, domain="a", title="x"))["n"] is None
    assert SITE.values(line(SITE, domain="a", title="\\N"))["title"] == "\\N"


def test_a_very_long_string_comes_back_up_to_a_limit() -> None:
    long = "ü" * (LINE_BYTES_MAX // 2 - 100) + "\\"
    assert SITE.values(line(SITE, domain="a", title=long))["title"] == long
    with pytest.raises(Invalid, match=r"record 1: it has [\d,]+ bytes, more than the 16,777,216") as caught:
        line(SITE, domain="a", title=long + "x" * 1000)
    assert "separate objects" in caught.value.hint


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"domain": "a"}, "record 1: field 'title': expected string, got nothing"),
        ({"domain": "a", "title": None}, "record 1: field 'title': expected string, got nothing"),
        ({"title": "a"}, "record 1: field 'domain': expected string, got nothing"),
        ({"domain": "a", "title": 7}, "record 1: field 'title': expected string, got int 7"),
        ({"domain": "a", "title": "b", "n": "7"}, "record 1: field 'n': expected integer, got str '7'"),
        ({"domain": "a", "title": "b", "n": 2**63}, None),
        ({"domain": "a", "title": "b", "n": True}, "record 1: field 'n': expected integer, got bool True"),
        ({"domain": "a", "title": "\ud800"}, "record 1: field 'title': '\\ud800' is not valid Unicode"),
        ({"domain": "a", "title": "b", "m": 7}, "record 1: there is no field 'm'"),
        ({"domain": "a", "title": "b", "n": 1, "m": 7}, "record 1: there is no field 'm'"),
        ({"domain": "a", "title": "b", "_deleted": True}, "record 1: there is no field '_deleted'"),
        ({"domain": "a", "title": "b", 5: 7}, "record 1: there is no field 5"),
    ],
)
def test_a_bad_record_is_named_with_field_expected_and_got(values: dict[Any, Any], said: str | None) -> None:
    with pytest.raises(Invalid) as caught:
        SITE.line(values, STAMP, where="record 1")
    assert said is None or str(caught.value) == said
    assert "\n" not in str(caught.value)


def test_the_hint_of_an_unknown_field_tells_the_fields() -> None:
    with pytest.raises(Invalid) as caught:
        line(SITE, domain="a", title="b", m=1)
    assert caught.value.hint == "the fields are domain, title, n, updated_at"


def test_a_record_of_another_shape_goes_the_same_way() -> None:
    """The columns in another order, some left out, a stamp of their own: the same line."""
    whole = line(SITE, domain="a", title="b", n=None)
    assert line(SITE, title="b", domain="a") == whole
    assert SITE.line({"title": "b", "domain": "a", UPDATED_AT: "ignored"}, STAMP, where="") == whole


class Color(str, Enum):  # noqa: UP042  `str()` spells it otherwise
    """A key that is a string."""

    RED = "red"


def test_keys() -> None:
    numbers = with_own([Field("id", "integer")], "id")
    assert SITE.key_text("a\x00") == "a\x00"
    assert SITE.key_text(Color.RED) == "red"
    assert type(SITE.key_text(Color.RED)) is str
    assert SITE.key_text("x" * KEY_BYTES_MAX) == "x" * KEY_BYTES_MAX
    assert numbers.key_text(-7) == "-7"
    assert numbers.values(numbers.tombstone("-7", STAMP))["id"] == -7


@pytest.mark.parametrize(
    ("kind", "key", "said"),
    [
        ("string", 5, "the key 'k' is string, not int 5"),
        ("string", None, "the key 'k' is string, not NoneType None"),
        ("string", "", "the key 'k' is empty"),
        ("string", "\x00" * (KEY_BYTES_MAX // 4 + 1), None),
        ("string", "x" * (KEY_BYTES_MAX + 1), None),
        ("string", "a\ud800", "'a\\ud800' is not valid Unicode"),
        ("string", ["a"], "the key 'k' is string, not list ['a']"),
        ("integer", "5", "the key 'k' is integer, not str '5'"),
        ("integer", True, "the key 'k' is integer, not bool True"),
        ("integer", 2**63, "expected integer of 64 bits, got 9223372036854775808"),
        ("integer", 5.0, "the key 'k' is integer, not float 5.0"),
    ],
)
def test_a_bad_key_is_refused(kind: Kind, key: Any, said: str | None) -> None:
    with pytest.raises(Invalid) as caught:
        with_own([Field("k", kind)], "k").key_text(key)
    assert said is None or str(caught.value) == said
    assert len(str(caught.value)) < 120


def _old_and_new() -> tuple[Schema, Schema]:
    assert LATER is not None
    return SITE, LATER


def test_lines_of_other_ages_are_read() -> None:
    old, new = _old_and_new()
    before, after = line(old, domain="a", title="b", n=1), line(new, domain="a", title="b", n=1, tags=["x"], more="\\")
    gone = new.tombstone("a", STAMP)
    for schema in (old, new):
        assert schema.lines(b"\n".join([before, after, gone, old.tombstone("a", STAMP), b""]), what="it")
        assert schema.is_tombstone(gone)
    assert new.values(before) == {"domain": "a", "title": "b", "n": 1, UPDATED_AT: AT, "tags": None, "more": None}
    assert new.values(after)["tags"] == ["x"]
    assert old.values(after) == old.values(before)


@steady
@given(hard_texts.filter(bool), hard_texts, st.none() | st.lists(hard_texts))
def test_an_older_program_accepts_whatever_a_newer_one_writes(key: str, text: str, tags: list[str] | None) -> None:
    old, new = _old_and_new()
    one = line(new, domain=key, title=text, more=text, tags=tags)
    assert old.lines(one + b"\n", what="it") == [one]
    assert old.values(one)["title"] == text


DAMAGE: dict[str, bytes] = {
    "cut off": b"a\x1fb\x1f1\x1f" + STAMP.encode() + b"\x1f0",
    "too few fields": b"a\x1fb\x1f1\x1f" + STAMP.encode() + b"\n",
    "no fields": b"\n",
    "escape": b"a\x1f\\q\x1f1\x1f" + STAMP.encode() + b"\x1f0\n",
    "escape at the end": b"a\x1fb\\\x1f1\x1f" + STAMP.encode() + b"\x1f0\n",
    "a control character": b"a\x1fb\rc\x1f1\x1f" + STAMP.encode() + b"\x1f0\n",
    "integer": b"a\x1fb\x1f1x\x1f" + STAMP.encode() + b"\x1f0\n",
    "padded integer": b"a\x1fb\x1f01\x1f" + STAMP.encode() + b"\x1f0\n",
    "large integer": b"a\x1fb\x1f9999999999999999999\x1f" + STAMP.encode() + b"\x1f0\n",
    "stamp": b"a\x1fb\x1f1\x1f2026-02-30T00:00:00.000000Z\x1f0\n",
    "no stamp": b"a\x1fb\x1f1\x1f\\N\x1f0\n",
    "short stamp": b"a\x1fb\x1f1\x1f2026-02-03T00:00:00Z\x1f0\n",
    "mark": b"a\x1fb\x1f1\x1f" + STAMP.encode() + b"\x1f2\n",
    "null key": b"\\N\x1fb\x1f1\x1f" + STAMP.encode() + b"\x1f0\n",
    "empty key": b"\x1fb\x1f1\x1f" + STAMP.encode() + b"\x1f0\n",
    "not UTF-8": b"a\x1fb\xff\x1f1\x1f" + STAMP.encode() + b"\x1f0\n",
    "half a character": b"a\x1f\xc3\x1f1\x1f" + STAMP.encode() + b"\x1f0\n",
    "JSON": b"a\x1fb\x1f1\x1f" + STAMP.encode() + b'\x1f0\x1f["x"\n',
    "another kind of JSON": b"a\x1fb\x1f1\x1f" + STAMP.encode() + b"\x1f0\x1f{}\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_and_named(damage: str) -> None:
    _, schema = _old_and_new()
    good = line(schema, domain="a", title="b", n=1, tags=[]) + b"\n"
    schema.lines(good, what="it")
    with pytest.raises(Corrupt) as caught:
        schema.lines(good + DAMAGE[damage], what="packs/aa/1.usv")
    assert str(caught.value).startswith("packs/aa/1.usv")
    if "UTF-8" not in str(caught.value) and damage != "cut off":
        assert "line 2" in str(caught.value)


@steady
@given(rows, st.data())
def test_what_is_accepted_can_be_read(row: dict[str, Any], data: st.DataObject) -> None:
    good = FULL.line(row, STAMP, where="")
    at = data.draw(st.integers(0, len(good) - 1))
    changed = data.draw(st.sampled_from(b'0123456789N\\-x"{}[],:tTZe.\x1f\n\xff') | st.integers(0, 255))
    end = at + data.draw(st.integers(0, 2))
    damaged = good[:at] + bytes([changed]) + good[end:]
    assume(damaged != good)
    try:
        lines = FULL.lines(damaged + b"\n", what="it")
    except Corrupt:
        return
    for one in lines:
        FULL.values(one)
        FULL.is_tombstone(one)
        FULL.stamp_of(one)


def test_a_line_that_cannot_be_read_is_corrupt_and_named() -> None:
    parts = line(SITE, domain="a", title="b", n=1).split(SEPARATOR)
    parts[2] = b"x"
    with pytest.raises(Corrupt, match="the field 'n' of a line cannot be read: 'x'"):
        SITE.values(SEPARATOR.join(parts))
    with pytest.raises(Corrupt, match="too few fields"):
        SITE.values(b"a\x1fb")
    with pytest.raises(Corrupt, match="not UTF-8"):
        SITE.values(b"\xff" + line(SITE, domain="a", title="b"))


def test_own_columns_are_added_where_they_are_missing() -> None:
    assert [field.name for field in SITE.fields] == ["domain", "title", "n", "updated_at", "_deleted"]
    theirs = with_own([Field("updated_at", "datetime", required=True), Field("k", "string")], "k")
    assert [field.name for field in theirs.fields] == ["updated_at", "k", "_deleted"]
    assert [field.required for field in theirs.fields] == [False, True, False]
    assert theirs.values(line(theirs, k="a\\")) == {"updated_at": AT, "k": "a\\"}
    assert theirs.values(line(theirs, k="a")) == {"updated_at": AT, "k": "a"}


@pytest.mark.parametrize(
    ("fields", "key", "said"),
    [
        ([Field("", "string")], "", "a field cannot be called ''"),
        ([Field("a\nb", "string")], "a\nb", "a field cannot be called 'a\\nb'"),
        ([Field("_deleted", "string")], "_deleted", "a field cannot be called '_deleted'"),
        ([Field("k", "string"), Field("k", "string")], "k", "there are two fields 'k'"),
        ([Field("k", "string"), Field("K", "string")], "k", "the fields 'k' and 'K' differ only in case"),
        ([Field("k", "string"), Field("Updated_At", "datetime")], "k", None),
        ([Field("k", "string")], "q", "there is no field 'q' to be the key"),
        ([Field("k", "number")], "k", "the key 'k' is number; a key is a string or an integer"),
        ([Field("updated_at", "datetime")], "updated_at", None),
        ([Field("k", "string"), Field("updated_at", "string")], "k", None),
        ([Field("k", "string"), Field("updated_at", "datetime", constraints=Constraints(minimum=STAMP))], "k", None),
    ],
)
def test_a_bad_schema_is_refused(fields: list[Field], key: str, said: str | None) -> None:
    with pytest.raises(Invalid) as caught:
        with_own(fields, key)
    assert said is None or str(caught.value) == said


USER = list(SITE.fields[:3])


def test_the_same_columns_change_nothing() -> None:
    assert extended(SITE, USER, "domain") is None
    assert extended(SITE, [*USER, Field("updated_at", "datetime")], "domain") is None
    assert extended(SITE, [USER[1], USER[0], USER[2]], "domain") is None


def test_new_columns_come_last_and_an_older_program_goes_on() -> None:
    new = extended(SITE, [Field("first", "date"), *USER, Field("last", "any")], "domain")
    assert new is not None
    assert [field.name for field in new.fields] == [*(field.name for field in SITE.fields), "first", "last"]
    assert extended(new, USER, "domain") is None
    assert new.values(line(SITE, domain="a", title="b"))["first"] is None
    assert new.values(line(new, domain="a", title="b", first=date(1, 1, 1)))["first"] == date(1, 1, 1)


@pytest.mark.parametrize(
    ("fields", "key", "said", "hint"),
    [
        (USER, "title", "the index has the key 'domain', not 'title'", "make another index"),
        ([USER[0], Field("headline", "string"), USER[2]], "domain", None, "renamed"),
        ([*USER[:2], Field("m", "integer")], "domain", None, "renamed"),
        ([USER[0], USER[2]], "domain", None, "never renamed or removed"),
        ([*USER[:2], Field("n", "number")], "domain", "the field 'n' is integer, not number", "add a new field"),
        ([*USER, Field("m", "string", required=True)], "domain", None, "`m: ... | None = None`"),
        ([*USER, Field("TITLE", "string")], "domain", "the fields 'title' and 'TITLE' differ only in case", "SQL"),
        ([*USER, Field("m", "string"), Field("m", "string")], "domain", "there are two fields 'm'", ""),
        ([*USER, Field("_deleted", "boolean")], "domain", "a field cannot be called '_deleted'", ""),
        ([*USER, Field("updated_at", "string")], "domain", None, ""),
    ],
)
def test_what_is_no_extension_is_refused_with_a_hint(
    fields: list[Field], key: str, said: str | None, hint: str
) -> None:
    with pytest.raises(Invalid) as caught:
        extended(SITE, fields, key)
    assert said is None or str(caught.value) == said
    assert hint in caught.value.hint


def test_a_column_that_is_not_required_may_be_unknown_to_a_program() -> None:
    assert extended(SITE, USER[:2], "domain") is None


def test_a_column_comes_to_allow_null_only_when_somebody_says_so() -> None:
    """In 0.1 a type that allows null changed the column, and every older program's reads raised Corrupt."""
    looser = [Field("domain", "string"), Field("title", "string"), USER[2]]
    assert extended(SITE, looser, "domain") is None, "such a type may read; the schema stays"
    with pytest.raises(Invalid, match="field 'title': expected string, got nothing") as caught:
        line(SITE, domain="a")
    assert "--allow-null title" in caught.value.hint
    wider = nullable(SITE, "title")
    assert wider is not None
    assert [field.required for field in wider.fields] == [True, False, False, False, False]
    assert extended(wider, USER, "domain") is None
    assert wider.values(line(wider, domain="a"))["title"] is None
    assert nullable(wider, "title") is None
    with pytest.raises(Invalid, match="is the key"):
        nullable(SITE, "domain")
    with pytest.raises(Invalid, match="there is no field 'nope'"):
        nullable(SITE, "nope")


def test_the_stamp_that_a_record_brings_along() -> None:
    there = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    latest = datetime(2026, 1, 2, tzinfo=UTC)
    assert stamp_in(there, latest, where="") == "2026-01-01T00:00:00.000000Z"
    assert stamp_in(latest, latest, where="") == "2026-01-02T00:00:00.000000Z"
    for wrong in ("2026-01-01", datetime(2026, 1, 1), date(2026, 1, 1), 5):
        with pytest.raises(Invalid, match="record 7: field 'updated_at': expected datetime with a time zone"):
            stamp_in(wrong, latest, where="record 7")
    with pytest.raises(Invalid, match=r"record 7: field 'updated_at': .* is more than a day ahead"):
        stamp_in(latest + timedelta(microseconds=1), latest, where="record 7")
    with pytest.raises(Invalid, match="record 7: field 'updated_at': UTC cannot express"):
        stamp_in(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))), latest, where="record 7")

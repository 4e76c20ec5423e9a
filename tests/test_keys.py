"""Names become keys, and keys become file names, without aliases or escapes (F26, F28)."""

from __future__ import annotations

import string
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limpet.kernel import keys
from limpet.kernel.errors import Invalid
from limpet.kernel.keys import Key, check, check_prefix, disk_name, from_disk_name, is_own_path, name_of, segment
from support.clock import steady

SAFE = set(string.ascii_letters + string.digits + "_-.%")

NASTY = [
    "../x", "..", ".", "/abs", "a//b", "a/b", "a\\b", "%2e%2e", "%2F", "%", "%h", "%h" + "0" * 64, "a#1", "a?b", "a b",
    " a", "a ", "a.", ".hidden", "~", "~/x", "a~1", "con", "NUL", "a:b", "k", "K", "k.json", "k=", "=6b", "é",
    "e\u0301", "ﬁ", "ß", "SS", "İ", "\u0131", "\u2028", "\ufeff", "\U0001f980", "a" * 300, "A" * 300, "é" * 100,
    "a+b", "a,b", "a@b",
    "<script>", "=cmd()", "{}", "*", '"', "'", "`", "$HOME", "-rf", "x.lock", "limpet.json",
    ".uploads", "x.versions", "x%2Eversions", ".versions",
]  # fmt: skip
NAMES = st.text(min_size=1).filter(lambda name: not keys.has_control(name))
SEGMENTS = NAMES.map(segment) | st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1, max_size=40
).filter(lambda part: part not in (".", ".."))


# ---- names to segments ----


@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_name_becomes_one_harmless_segment(name: str) -> None:
    made = segment(name)
    assert set(made) <= SAFE
    assert not made.startswith(".")
    assert len(made) <= keys.SEGMENT_BYTES_MAX
    assert check(f"cells/{made}.json")
    assert check(f"probe/{made}/x.json")
    assert name_of(made) == (name if not made.startswith("%h") else made)


def test_nasty_names_stay_apart() -> None:
    assert len({segment(name) for name in NASTY}) == len(NASTY)


@steady
@given(NAMES, NAMES)
@example("%h", "%25h")
@example("a" * 161, "a" * 162)
@example("é", "e\u0301")
def test_distinct_names_give_distinct_segments(one: str, other: str) -> None:
    assert (segment(one) == segment(other)) == (one == other)


@pytest.mark.parametrize(
    "name", ["", "a\x00", "a\nb", "\x1f", "\x7f", "\x85", "\ud800", "a\udfff", None, 7, b"a", ["a"]], ids=repr
)
def test_a_name_that_no_key_can_carry_is_invalid(name: object) -> None:
    with pytest.raises(Invalid):
        segment(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "hashed"), [(keys.SEGMENT_BYTES_MAX, False), (keys.SEGMENT_BYTES_MAX + 1, True)])
def test_only_over_long_names_are_hashed(length: int, hashed: bool) -> None:
    assert segment("a" * length).startswith("%h") is hashed


@steady
@given(st.text(min_size=1, max_size=8).filter(lambda name: not keys.has_control(name)))
def test_a_users_name_cannot_leave_its_prefix(name: str) -> None:
    for key, prefix in [(keys.lock_key(name), "locks/user"), (keys.cell_key(name), "cells")]:
        assert key.count("/") == prefix.count("/") + 1
        assert key.startswith(prefix + "/")
        assert check(key) == key


@pytest.mark.parametrize("name", ["é" * 24, "日本" * 8, "A" * 79, "A" * 160], ids=lambda name: f"{len(name)}{name[:2]}")
def test_every_printable_name_can_be_used_whatever_its_length(name: str) -> None:
    """Refused by every store, while a longer name is fine: that one is hashed."""
    assert check(keys.lock_key(name + name + name + name))
    assert check(keys.lock_key(name))


# ---- keys ----


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "./a", "a\x00b", "a\nb", "a\x7f", "\x9f", "a\ud800", "a\uffff",
     "a\\b", ".uploads/a", "a/.uploads/b", "a.versions/b", "x" * 901, "a/" * 450 + "aa", "é/" * 400 + "a",
     "é" * 451, "A" * 81,
     "a/" + "é" * 41 + "/b", None, 3],
    ids=lambda key: repr(key)[:20],
)  # fmt: skip
def test_a_key_that_some_store_cannot_hold_is_invalid(key: object) -> None:
    with pytest.raises(Invalid):
        check(key)  # type: ignore[arg-type,unused-ignore]


@pytest.mark.parametrize(
    "key",
    [
        "a", "a/b/c", ".uploads", "a.versions", "a.uploads/b", ".a", "a.", "...", "%2e%2e/%2F", "a b", "é",
        "x" * 239, "A" * 79, "a/" * 449 + "aa",
    ],
    ids=lambda key: key[:20],
)  # fmt: skip
def test_any_other_key_is_fine(key: str) -> None:
    assert check(key) == key


@pytest.mark.parametrize(("prefix", "checked"), [("", ""), ("a", "a"), ("a/", "a"), ("a/b/", "a/b")])
def test_a_prefix_is_whole_segments(prefix: str, checked: str) -> None:
    assert check_prefix(prefix) == checked


@pytest.mark.parametrize("prefix", ["/", "//", "/a", "a//", "..", "a/../"])
def test_a_prefix_that_climbs_is_invalid(prefix: str) -> None:
    with pytest.raises(Invalid):
        check_prefix(prefix)


def test_join_puts_a_key_below_a_prefix() -> None:
    assert keys.join("", "a/b") == "a/b"
    assert keys.join("p/q", "a/b") == "p/q/a/b"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (keys.FLEET, "limpet.json"),
        (keys.lock_key("a b"), "locks/user/a%20b.lock"),
        (keys.cell_key("../x"), "cells/%2e.%2fx.json"),
        (keys.clock_key(15), "clock/f.json"),
        (keys.probe_key("id", "~"), "probe/id/%7e.json"),
    ],
)
def test_where_things_live(key: Key, expected: str) -> None:
    assert key == expected


# ---- segments to file names ----


@steady
@given(SEGMENTS, st.booleans())
@example("k=", True)
@example("a.json", False)
@example("=6b", True)
def test_a_file_name_reads_back_as_its_segment(part: str, leaf: bool) -> None:
    assert from_disk_name(disk_name(part, leaf=leaf)) == part


@steady
@given(SEGMENTS, SEGMENTS, st.booleans(), st.booleans())
@example("k", "K", True, True)
@example("é", "e\u0301", True, True)
@example("k", "k", True, False)
@example("k", "k=", False, True)
@example("a.json", "a.json=", True, False)
@example("a.json", "a.json", True, False)
def test_file_names_never_collide_on_any_disk(one: str, other: str, one_leaf: bool, other_leaf: bool) -> None:
    """Case-folding and Unicode-normalising disks, and the object `k` beside the folder of `k/x`."""
    names = [disk_name(one, leaf=one_leaf), disk_name(other, leaf=other_leaf)]
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        folded = [unicodedata.normalize(form, name).casefold() for name in names]
        assert (folded[0] == folded[1]) == ((one, one_leaf) == (other, other_leaf))


@steady
@given(SEGMENTS, st.booleans())
def test_a_file_name_is_plain_lower_case_ascii(part: str, leaf: bool) -> None:
    name = disk_name(part, leaf=leaf)
    assert set(name) <= set(string.ascii_lowercase + string.digits + "._%@~+,-=")
    assert not name.startswith(".")


@pytest.mark.parametrize(
    ("part", "leaf", "name"),
    [
        ("a.json", True, "a.json"),
        ("a.json", False, "a.json="),
        ("a", True, "a="),
        ("a", False, "a"),
        ("A%2E.lock", True, "=41%2=45.lock"),
        (".limpet", False, "=2elimpet"),
        ("..", False, "=2e."),
        ("é", True, "=c3=a9="),
    ],
)
def test_how_a_segment_looks_on_disk(part: str, leaf: bool, name: str) -> None:
    assert disk_name(part, leaf=leaf) == name


@pytest.mark.parametrize("name", ["=ff=", "=c3", "日本"])
def test_a_file_that_is_not_ours_has_no_segment(name: str) -> None:
    assert from_disk_name(name) is None


@given(st.text(alphabet="abz09._%@~+,-/ A\\=é", max_size=40))
def test_a_key_that_is_its_own_path_is_what_the_long_way_says(key: str) -> None:
    if not is_own_path(key):
        return
    parts = key.split("/")
    assert all(part not in ("", ".", "..") for part in parts)
    assert key == "/".join(disk_name(part, leaf=i == len(parts) - 1) for i, part in enumerate(parts))


@pytest.mark.parametrize(
    ("key", "own"),
    [
        ("queues/q/pending/01h/task.json", True),
        ("a.json", True),
        ("a", False),
        ("x.json/task.json", False),
        ("x.versions/task.json", False),
        (".uploads/task.json", False),
        ("A/task.json", False),
        ("a//task.json", False),
        ("a/task.json/", False),
        ("a/task.json\n", False),
        ("a" * 300 + ".json", False),
    ],
)
def test_keys_that_are_their_own_path(key: str, own: bool) -> None:
    assert is_own_path(key) is own

"""Names become keys: no two the same, neighbours in a listing, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.catalog.names import Kind, check_name, check_namespace, children, key_of, name_in, parsed, slug
from limpet.catalog.records import Change, Row
from limpet.catalog.state import CatalogState
from limpet.kernel.errors import Invalid
from limpet.kernel.keys import disk_name

KINDS: tuple[Kind, ...] = ("n", "t", "v")
NAMES = st.text(
    st.sampled_from("/%.ab2f5~é") | st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=9
)
NAMESPACES = st.lists(NAMES, max_size=4).map(tuple)


def is_name(text: str) -> bool:
    try:
        check_name(text)
    except Invalid:
        return False
    return True


NAMES = NAMES.filter(is_name)
THINGS = st.tuples(st.sampled_from(KINDS), NAMESPACES, NAMES)


@given(THINGS, THINGS)
def test_no_two_names_share_a_key_and_a_key_leads_back(
    one: tuple[Kind, tuple[str, ...], str], other: tuple[Kind, tuple[str, ...], str]
) -> None:
    assert (key_of(*one) == key_of(*other)) == (one == other)
    assert parsed(key_of(*one)) == one[1:]
    assert name_in(key_of(*one)) == one[2]


@given(st.lists(THINGS, max_size=12), NAMESPACES, st.sampled_from(KINDS), NAMES)
def test_a_listing_shows_the_children_in_order_and_nothing_else(
    things: list[tuple[Kind, tuple[str, ...], str]], namespace: tuple[str, ...], kind: Kind, after: str
) -> None:
    things += [(kind, namespace, "one"), (kind, namespace, "two"), (kind, (*namespace, "one"), "deep")]
    row = Row("1", "", tuple(Change(key_of(*thing), 1) for thing in things))
    state = CatalogState().after([row], "2026-11-16T00:00:00+00:00")
    expected = {name for of, where, name in things if (of, where) == (kind, namespace)}
    listed = [name_in(key) for key, _ in state.under(children(kind, namespace))]
    assert {*listed} == expected
    assert len(listed) == len(expected)
    later = [name_in(key) for key, _ in state.under(children(kind, namespace), key_of(kind, namespace, listed[0]))]
    assert later == listed[1:], "a page begins right after the last one"
    beyond = [name_in(key) for key, _ in state.under(children(kind, namespace), key_of(kind, namespace, after))]
    assert beyond == [name for name in listed if key_of(kind, namespace, name) > key_of(kind, namespace, after)]


@pytest.mark.parametrize(
    "name", ["a/b", "...", ".a", "a.b", "Größe", "名前", "%2f", "x" * 255, " ", "a b", "'; drop table"]
)
def test_names_that_work(name: str) -> None:
    assert check_name(name) == name
    assert check_namespace([name, name]) == (name, name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "non-empty"),
        (None, "non-empty"),
        (7, "non-empty"),
        ("x" * 256, "at most 255 characters"),
        (".", "part of a URL"),
        ("..", "part of a URL"),
        ("a\x1fb", "control"),
        ("a\nb", "control"),
        ("a\x00", "control"),
        ("\ud800", "control"),
    ],
)
def test_names_that_are_refused_say_why(name: object, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        check_name(name)
    with pytest.raises(Invalid, match=why):
        check_namespace(["a", name])


@pytest.mark.parametrize("levels", [[], (), "abc", ["x"] * 17, None])
def test_namespaces_that_are_refused(levels: object) -> None:
    with pytest.raises(Invalid):
        check_namespace(levels)  # type: ignore[arg-type]


@given(NAMES)
def test_a_slug_is_a_folder_on_every_disk(name: str) -> None:
    assert disk_name(slug(name), leaf=False) == slug(name)
    assert 0 < len(slug(name)) <= 40

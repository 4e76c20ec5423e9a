"""Names, entries and folders in a catalog's state, as tables: quick tests of every rule of `catalog/names`."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from limpet.catalog.names import (
    LEVELS_MAX,
    NAME_CHARACTERS_MAX,
    SLUG_CHARACTERS_MAX,
    AlreadyExists,
    Content,
    Entry,
    Kind,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    alike,
    check_alike,
    check_apart,
    check_free,
    check_name,
    check_namespace,
    check_namespace_exists,
    children,
    entry_in,
    find_entry,
    free_in,
    is_empty,
    key_of,
    location_of,
    name_in,
    neighbours,
    overlapping,
    parsed,
    reserve,
    shown,
    slug,
)
from limpet.catalog.records import Change, Row
from limpet.catalog.state import CatalogState
from limpet.kernel.errors import Conflict, Corrupt, Invalid, Missing, Unsupported

TABLE = ["wh/t", "1.json"]


def state(entries: Mapping[str, object]) -> CatalogState:
    return CatalogState(dict(entries))


# ---- names and keys ----


def test_the_bounds_of_names() -> None:
    assert (NAME_CHARACTERS_MAX, LEVELS_MAX, SLUG_CHARACTERS_MAX) == (255, 16, 40)
    assert check_namespace(["x"] * 16) == ("x",) * 16
    with pytest.raises(Invalid, match="at most 16 levels, this one 17"):
        check_namespace(["x"] * 17)
    assert check_name("x" * 255)
    with pytest.raises(Invalid, match="at most 255 characters, this one 256"):
        check_name("x" * 256)


@pytest.mark.parametrize(
    ("kind", "namespace", "name", "key"),
    [
        ("n", (), "a", "n//a"),
        ("n", ("a",), "b", "n/a//b"),
        ("t", ("a", "b"), "c", "t/a/b//c"),
        ("v", ("a/b",), "c%/", "v/a%2fb//c%25%2f"),
        ("t", ("%2f",), "%25", "t/%252f//%2525"),
    ],
)
def test_the_keys_of_names_and_the_names_of_keys(kind: Kind, namespace: tuple[str, ...], name: str, key: str) -> None:
    assert key_of(kind, namespace, name) == key
    assert key.startswith(children(kind, namespace))
    assert parsed(key) == (namespace, name)
    assert name_in(key) == name


@pytest.mark.parametrize("kind", ["n", "t", "v"])
@pytest.mark.parametrize("namespace", [(), ("n",), ("n", "x")])
def test_a_key_is_parsed_without_its_kind(kind: Kind, namespace: tuple[str, ...]) -> None:
    assert parsed(key_of(kind, namespace, kind)) == (namespace, kind)


def test_how_names_are_shown() -> None:
    assert shown(("a", "b"), "c") == "a.b.c"
    assert shown(("a", "b")) == "a.b"
    assert shown((), "c") == "c"
    assert shown(()) == ""


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("Orders", "orders"),
        ("a b/c", "a-b-c"),
        ("--a--", "a"),
        ("名前", "x"),
        ("x" * 41, "x" * 40),
        ("x" * 39 + " y", "x" * 39),
        ("a_1", "a_1"),
    ],
)
def test_the_folder_of_a_name(name: str, folder: str) -> None:
    assert slug(name) == folder


# ---- names that clients cannot tell apart ----


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("plain", None),
        ("a+b", "t/n//a"),
        ("a b", "t/n//a"),
        ("a b+c", "t/n//a"),
        ("a+b c", "t/n//a"),
        ("+b", "t/n//"),
        (" b", "t/n//"),
        ("a/b c", "t/n//a%2fb"),
    ],
)
def test_where_names_lie_that_are_alike(name: str, prefix: str | None) -> None:
    assert neighbours("t", ("n",), name) == prefix


def test_which_names_are_alike() -> None:
    assert alike("a+b c") == alike("a b+c") == "a b c"
    assert alike("ab") != alike("a b")


@pytest.mark.parametrize(
    ("there", "name", "refused"),
    [
        (["a b"], "a+b", True),
        (["a+b"], "a b", True),
        (["+"], " ", True),
        (["a b+c"], "a+b c", True),
        (["a b"], "a b", False),
        (["a b"], "a+c", False),
        (["ab"], "a+b", False),
        (["ab", "a b"], "a+b", True),
        (["a%2fb c"], "a/b+c", False),
        ([], "a+b", False),
    ],
)
def test_a_name_that_clients_cannot_tell_from_another_is_refused(there: list[str], name: str, refused: bool) -> None:
    now = state({"n//n": {}, **{key_of("t", ("n",), each): TABLE for each in there}})
    other = state({"n//n": {}, **{key_of("v", ("n",), each): TABLE for each in there}})
    if refused:
        with pytest.raises(Invalid, match=r"clients confuse it with .* which exists in 'n'"):
            check_alike(now, "t", ("n",), name)
        with pytest.raises(Invalid, match="clients confuse it with"):
            check_free(now, ("n",), name)
        with pytest.raises(Invalid, match="clients confuse it with"):
            check_free(other, ("n",), name)
    else:
        check_alike(now, "t", ("n",), name)
    check_alike(other, "t", ("n",), name)
    check_alike(now, "t", (), name)


def test_the_name_that_leaves_at_the_same_time_does_not_count() -> None:
    now = state({"n//n": {}, "t/n//a b": TABLE})
    check_free(now, ("n",), "a+b", leaving="t/n//a b")
    with pytest.raises(Invalid):
        check_free(now, ("n",), "a+b", leaving="t/n//other")
    check_alike(now, "t", ("n",), "a+b", "t/n//a b")
    more = state({"n//n": {}, "t/n//a b c": TABLE, "t/n//a b+c": TABLE})
    with pytest.raises(Invalid, match=r"'a b\+c'"):
        check_alike(more, "t", ("n",), "a+b+c", "t/n//a b c")


def test_a_namespace_at_the_top_may_be_alike_too() -> None:
    with pytest.raises(Invalid, match="which exists in 'this catalog'"):
        check_alike(state({"n//a b": {}}), "n", (), "a+b")


# ---- entries ----


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        (["r", "1.json"], Entry("r", "r/metadata/1.json")),
        (("r", "1.json"), Entry("r", "r/metadata/1.json")),
        (["r", "elsewhere/1.json"], Entry("r", "elsewhere/1.json")),
        (["r", "1.json", "s", "t"], Entry("r", "r/metadata/1.json", ("s", "t"))),
        (["a/b", "c/metadata/1.json", "s"], Entry("a/b", "c/metadata/1.json", ("s",))),
    ],
)
def test_what_the_state_holds_of_an_entry(value: list[str], entry: Entry) -> None:
    assert Entry.of(value) == entry
    assert entry.value() == [*value]
    assert entry.roots() == (value[0], *value[2:])


def test_metadata_in_the_folder_of_the_table_is_held_by_its_name() -> None:
    assert Entry("r", "r/metadata/1.json").value() == ["r", "1.json"]
    assert Entry("r", "r/metadata/deep/1.json").value() == ["r", "r/metadata/deep/1.json"]


@pytest.mark.parametrize("value", ["ab", "abc", {"a": "b", "c": "d"}, 7, [], ["a"], ["a", 1], ["a", "b", None], [1, 2]])
def test_an_entry_that_cannot_be_used_is_said_to_be_corrupt(value: object) -> None:
    with pytest.raises(Corrupt, match="an invalid entry"):
        Entry.of(value)  # type: ignore[arg-type]
    with pytest.raises(Corrupt):
        find_entry(state({"t/n//x": value}), "t", ("n",), "x")


def test_a_long_entry_is_shown_in_part() -> None:
    with pytest.raises(Corrupt) as caught:
        Entry.of(["x" * 1000])
    assert "x" * 98 in str(caught.value)
    assert "x" * 99 not in str(caught.value)


def test_a_table_or_view_is_found_by_its_name() -> None:
    now = state({"t/n//x": ["r", "1.json"], "v/n//y": ["s", "2.json"]})
    assert find_entry(now, "t", ("n",), "x") == entry_in(now, "t", ("n",), "x") == Entry("r", "r/metadata/1.json")
    assert find_entry(now, "v", ("n",), "y") == entry_in(now, "v", ("n",), "y") == Entry("s", "s/metadata/2.json")
    for kind, name in (("t", "y"), ("v", "x"), ("t", "z")):
        assert find_entry(now, kind, ("n",), name) is None  # type: ignore[arg-type]
    with pytest.raises(NoSuchTable, match=r"Table does not exist: n\.y\n"):
        entry_in(now, "t", ("n",), "y")
    with pytest.raises(NoSuchView, match=r"View does not exist: n\.x\n"):
        entry_in(now, "v", ("n",), "x")
    with pytest.raises(NoSuchTable, match=r"Table does not exist: gone\.x\.snapshots\n"):
        entry_in(now, "t", ("gone", "x"), "snapshots")
    assert issubclass(NoSuchTable, Missing)
    assert issubclass(NoSuchView, Missing)


# ---- namespaces ----


def test_a_namespace_exists_if_its_own_key_does() -> None:
    now = state({"n//a": {}, "n/a//b": {}, "n/a/b//c": {}, "n//x": {}})
    for there in ((), ("a",), ("a", "b"), ("a", "b", "c"), ("x",)):
        check_namespace_exists(now, there)
    for gone in (("b",), ("c",), ("x", "b"), ("b", "a"), ("a", "a"), ("a", "c"), ("x", "b", "c"), ("a", "b", "b")):
        with pytest.raises(NoSuchNamespace) as caught:
            check_namespace_exists(now, gone)
        assert str(caught.value).splitlines()[0] == f"Namespace does not exist: {'.'.join(gone)}"


@pytest.mark.parametrize("name", ["t", "v"])
@pytest.mark.parametrize(("wanted", "other"), [(None, ""), ("t", "v"), ("v", "t")])
def test_tables_and_views_share_names(name: Content, wanted: Content | None, other: str) -> None:
    now = state({"n//n": {}, "t/n//t": TABLE, "v/n//v": TABLE})
    what = {"t": "Table", "v": "View"}[name] + (" with same name" if other == name else "")
    with pytest.raises(AlreadyExists) as caught:
        check_free(now, ("n",), name, wanted)
    assert str(caught.value).splitlines()[0] == f"{what} already exists: n.{name}"
    check_free(now, ("n",), "free", wanted)
    check_free(now, (), name, wanted)
    with pytest.raises(NoSuchNamespace):
        check_free(now, ("m",), name, wanted)
    assert issubclass(AlreadyExists, Conflict)


def test_the_location_of_a_namespace() -> None:
    now = state(
        {"n//a": {"location": "one"}, "n/a//b": {"location": "two"}, "n/a/b//c": {"x": "y"}, "n//d": {}, "n//e": [1]}
    )
    assert location_of(now, ("a",)) == "one"
    assert location_of(now, ("a", "b")) == "two"
    for none in ((), ("b",), ("a", "a"), ("b", "a"), ("a", "b", "c"), ("a", "b", "b"), ("d",), ("e",), ("gone",)):
        assert location_of(now, none) is None


@pytest.mark.parametrize(
    ("key", "empty"),
    [
        ("n/a//b", False), ("t/a//b", False), ("v/a//b", False),
        ("n//a", True), ("t/a/b//c", True), ("v/a/b//c", True), ("n/aa//b", True), ("t/b//a", True), ("l/a//b", True),
    ],
)  # fmt: skip
def test_a_namespace_is_empty_if_nothing_is_directly_in_it(key: str, empty: bool) -> None:
    assert is_empty(state({key: {}}), ("a",)) is empty


# ---- folders ----


@pytest.mark.parametrize(
    ("held", "root", "taken"),
    [
        ({}, "a/b", None),
        ({"l/a/b": 1}, "a/b", "a/b"),
        ({"p/a/b": 1}, "a/b", "a/b"),
        ({"l/a": 1}, "a/b/c", "a"),
        ({"p/a": 1}, "a/b/c", "a"),
        ({"l/a/b": 1}, "a/b/c", "a/b"),
        ({"l/a": 1, "l/a/b": 1}, "a/b/c", "a"),
        ({"l/a/b/c": 1}, "a/b", "a/b/c"),
        ({"p/a/b/c/d": 1}, "a/b", "a/b/c/d"),
        ({"l/a/bb": 1, "p/a/b.x": 1, "l/a/c": 1, "l/b": 1}, "a/b", None),
        ({"q/a/b": 1, "t/a//b": 1}, "a/b", None),
        ({"l/a/b/c": 1}, "a/bc", None),
        ({"l/a/b": 1}, "A/b", "a/b"),
        ({"p/a/b": 1}, "A/B/c", "a/b"),
        ({"l/a/b/c": 1}, "A/b", "a/b/c"),
        ({"l/A/b": 1}, "a/b", "A/b"),
        ({"p/A": 1}, "a/b/c", "A"),
        ({"l/a/B/C": 1}, "a/b", "a/B/C"),
        ({"l/A/b": 1}, "a/B", "A/b"),
        ({"l/\u212a": 1}, "k", "\u212a"),
        ({"l/\u0130": 1}, "i", "\u0130"),
        ({"l/A/bb": 1, "l/A/c": 1, "l/B": 1}, "a/b", None),
    ],
)
def test_a_folder_belongs_to_one_table(held: dict[str, int], root: str, taken: str | None) -> None:
    now = state(held)
    assert free_in(now)(root) is (taken is None)
    if taken is None:
        assert reserve(now, [root]) == (Change(f"l/{root}", 1),)
        return
    with pytest.raises(Invalid) as caught:
        reserve(now, [root])
    assert str(caught.value).startswith(
        f"the location {root!r} overlaps with {taken!r}, which belongs to another table"
    )
    with pytest.raises(Invalid):
        reserve(now, ["free", root])
    assert reserve(now, [root], own=[root]) == (), "it has it already"
    own = [key[2:] for key in held]
    assert reserve(now, [root], own) == (() if root in own else (Change(f"l/{root}", 1),)), "only others are in the way"


def test_folders_of_another_case_are_known_after_every_change() -> None:
    """What is kept of them with each state is what a state that is read anew finds."""
    now = state({"l/A": 1})
    assert [*now.cased_folders("")] == ["A"]
    steps: list[tuple[Change, ...]] = [
        (Change("l/B", 1), Change("l/c", 1), Change("t/N//T", ["N", "x"])),
        (Change("l/A", None), Change("p/A", 1)),
        (Change("l/b", 1), Change("l/B", None)),
        (Change("l/D", 1),),
        (Change("p/D", 1), Change("l/D", None)),
        (Change("p/D", None), Change("p/A", None)),
    ]
    found = []
    for n, changes in enumerate(steps):
        now = now.after([Row(f"~{n}", "x", changes)], "2026-11-16T00:00:00.000000+00:00")
        now = now.forgetting("2026-11-16T00:00:00.000000+00:00")
        found.append([*now.cased_folders("")])
        assert found[-1] == [*state(now.entries()).cased_folders("")]
    assert found == [["A", "B"], ["A", "B"], ["A"], ["A", "D"], ["A", "D"], []]


def test_a_table_beside_one_of_another_case_has_no_credential() -> None:
    """Catalogs of version 0.1 may have such tables."""
    now = state({"l/T": 1, "l/t": 1, "l/u": 1, "l/V/x": 1, "l/v": 1})
    check_apart(now, ["u"])
    check_apart(now, ["T", "t"])
    for root, other in (("T", "t"), ("t", "T"), ("v", "V/x"), ("V/x", "v")):
        with pytest.raises(Unsupported, match=f"the folder '{root}' overlaps with '{other}'"):
            check_apart(now, ["u", root])


def test_each_folder_is_reserved_once_in_order() -> None:
    now = state({"l/own": 1, "l/own/deep": 1})
    assert reserve(now, ["b", "own", "a", "b"], own=("own", "own/deep")) == (Change("l/b", 1), Change("l/a", 1))
    assert reserve(now, ["own/new"], own=("own", "own/deep")) == (Change("l/own/new", 1),)
    with pytest.raises(Invalid, match="'own/deep', which belongs"):
        reserve(now, ["own/deep/new"], own=("own",))
    assert reserve(now, []) == ()


@pytest.mark.parametrize(
    ("owners", "clash"),
    [
        ([["a"], ["A"]], ("a", "a")),
        ([["A/b"], ["a"]], ("a", "a/b")),
        ([["A", "a"], ["b"]], None),
        ([], None),
        ([["a"], ["b"]], None),
        ([["a", "a"], ["b"]], None),
        ([["a", "a/b"], ["c"]], None),
        ([["a"], ["a"]], ("a", "a")),
        ([["a"], ["b"], ["c", "b"]], ("b", "b")),
        ([["a"], ["a/b"]], ("a", "a/b")),
        ([["a/b/c"], ["a"]], ("a", "a/b/c")),
        ([["x/b", "c"], ["x/bb", "x/c"]], None),
        ([["x/a/b/c"], ["x/a/b", "y"]], ("x/a/b", "x/a/b/c")),
    ],
)
def test_folders_of_two_owners_overlap(owners: list[list[str]], clash: tuple[str, str] | None) -> None:
    assert overlapping(owners) == clash

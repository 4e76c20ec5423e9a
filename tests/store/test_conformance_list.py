"""One suite for every store: listings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import pytest

from limpet.kernel.keys import Key
from limpet.kernel.store import Stat, Store

TREE = [
    "a", "a b/c", "a!", "a+b", "a-b/x", "a-b/y", "a.json", "a/b/c", "a/b/d", "a/bc/x", "a/b-c/x", "a/b", "a/x", "a0",
    "ab/c", "b/1", "b/10", "b/2", "B/1", "z", "~", "é/é",
]  # fmt: skip
"""Folders beside names that go on with a character below `/`, where a walk of folders is not the order of keys."""

MANY = 2300


def fill(store: Store, names: Iterable[str]) -> None:
    # One after another: SeaweedFS may lose an object `a` that is put while `a/b` is. Limpet has no such names.
    for name in names:
        store.put(Key(name), b"x")


def keys(found: Iterable[Stat]) -> list[str]:
    return [stat.key for stat in found]


def test_an_empty_store_lists_nothing(store: Store) -> None:
    assert ([*store.list()], [*store.list("a")], store.list_dirs(), store.sample("", 5)) == ([], [], [], [])


def test_keys_come_in_byte_order(store: Store) -> None:
    fill(store, TREE)
    assert keys(store.list()) == sorted(TREE, key=str.encode)


@pytest.mark.parametrize("prefix", ["a", "a/b", "b", "B", "a-b", "é", "a/b/c", "nothing", "z"])
def test_a_prefix_is_whole_segments(store: Store, prefix: str) -> None:
    fill(store, TREE)
    assert keys(store.list(prefix)) == sorted(key for key in TREE if key.startswith(prefix + "/"))
    assert keys(store.list(prefix + "/")) == keys(store.list(prefix))


def test_after_resumes_behind_any_key(store: Store) -> None:
    fill(store, TREE)
    for after in [*TREE, "a/c", "a-", "0", "zz"]:
        assert keys(store.list(after=after)) == sorted(key for key in TREE if key > after), after


def test_after_within_a_prefix(store: Store) -> None:
    fill(store, TREE)
    below = sorted(key for key in TREE if key.startswith("a/"))
    for after in [*below, "a/b/", "a/c", "a", "Z", "b"]:
        assert keys(store.list("a", after=after)) == [key for key in below if key > after], after


def test_a_listing_shows_what_was_just_written_and_not_what_was_just_deleted(store: Store) -> None:
    for i in range(20):
        key = Key(f"inbox/{i % 3}/{i:02}")
        version = store.put(key, b"x")
        assert (key, version) in [(stat.key, stat.version) for stat in store.list("inbox")]
        store.delete(key)
        assert key not in keys(store.list("inbox"))
    assert [*store.list()] == []


def test_folders(store: Store) -> None:
    fill(store, TREE)
    assert store.list_dirs() == ["B", "a", "a b", "a-b", "ab", "b", "é"]
    assert store.list_dirs("a") == ["b", "b-c", "bc"]
    assert store.list_dirs("a/b") == []
    assert store.list_dirs("nothing") == []


def test_many_pages(store: Store) -> None:
    """Long listings, flat and deep, cut into pages by the server: every key once, in order, and resumable."""
    flat = [f"flat/{i:05}" for i in range(MANY)]
    deep = [
        f"deep/e{i:04}{tail}"
        for i in range(MANY // 4)
        for tail in ("/lease.json", "/task.json", "-2/task.json", ".json")
    ]
    fill(store, flat + deep)
    assert keys(store.list()) == sorted(flat + deep)
    assert keys(store.list("flat")) == flat
    assert keys(store.list("deep")) == sorted(deep)
    assert keys(islice(store.list("flat"), 3)) == flat[:3]
    assert keys(store.list("flat", after=flat[1500])) == flat[1501:]
    cut = sorted(deep)[1111]
    assert keys(store.list("deep", after=cut)) == [key for key in sorted(deep) if key > cut]
    _check_sample(store, flat)


def _check_sample(store: Store, flat: list[str]) -> None:
    assert store.sample("nothing", 10) == []
    seen: set[str] = set()
    for _ in range(40):
        found = keys(store.sample("flat", 50))
        assert len(found) == len(set(found)) == 50
        assert set(found) <= set(flat)
        seen |= set(found)
    beyond_the_first_page = seen & set(flat[1000:])
    assert len(beyond_the_first_page) > 100
    assert len(seen & set(flat[:1000])) > 50


def test_a_sample_of_a_few_is_all_of_them(store: Store) -> None:
    fill(store, ["s/1/a", "s/2/a", "s/3", "t/4"])
    assert sorted(keys(store.sample("s", 10))) == ["s/1/a", "s/2/a", "s/3"]
    assert len(store.sample("s", 2)) == 2
    assert sorted(keys(store.sample("", 10))) == ["s/1/a", "s/2/a", "s/3", "t/4"]


def test_a_hint_changes_with_the_names_or_says_that_it_cannot_tell(store: Store) -> None:
    before = store.change_token("h")
    store.put(Key("h/1/a.json"), b"{}")
    after = store.change_token("h")
    assert (before is None) is (after is None)
    if before is not None:
        assert before != after
        store.delete(Key("h/1/a.json"))
        assert store.change_token("h") != after

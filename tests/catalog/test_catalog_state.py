"""The map that holds a catalog's state: the same as a dict in order, and older ones stay as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.catalog.records import Change, RememberedAnswer, Row
from limpet.catalog.state import CatalogState
from limpet.kernel import sortedmap
from limpet.kernel.sortedmap import SortedMap

MANY = 20_000
AT = "2026-11-17T08:00:00.000000+00:00"

keys = st.text("abc/", max_size=4)
changes = st.lists(st.tuples(keys, st.none() | st.integers(1, 9)), max_size=60)


@given(st.dictionaries(keys, st.integers(1, 9), max_size=60), changes, keys)
def test_a_sorted_map_is_a_dict_in_order(
    begin: dict[str, int], changed: list[tuple[str, int | None]], first: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sortedmap, "WIDTH", 4)  # many levels
        model, made = dict(begin), SortedMap(begin)
        older: list[tuple[dict[str, int], SortedMap]] = []
        for key, value in changed:
            older.append((dict(model), made))
            if value is None:
                model.pop(key, None)
                made = made.without(key)
            else:
                model[key] = value
                made = made.put(key, value)
        for wanted, found in (*older, (model, made)):
            assert [*found.items()] == sorted(wanted.items())
            assert [*found.items(first)] == sorted(item for item in wanted.items() if item[0] >= first)
            assert len(found) == len(wanted)
            assert [found.get(key) for key in ("a", first)] == [wanted.get(key) for key in ("a", first)]


@pytest.mark.parametrize("seed", range(6))
def test_maps_of_several_levels_after_random_changes(seed: int) -> None:
    """As above, in a tenth of the time: each map is compared when it is made, and some of them again at the end."""
    random = Random(seed)
    names = [f"{n:03}" for n in range(0, 300, 3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[SortedMap.__module__], "WIDTH", 4)
        model = dict.fromkeys(random.sample(names, seed * 15), 0)
        made = SortedMap(model)
        older = []
        for step in range(1, 150):
            _same(made, model, f"{random.randrange(300):03}")
            key = random.choice(names)
            if random.random() < (0.7 if step < 75 else 0.2):
                model, made = {**model, key: step}, made.put(key, step)
            else:
                model, made = {name: n for name, n in model.items() if name != key}, made.without(key)
            if step % 10 == 0:
                older.append((made, model))
        for before, wanted in older:
            _same(before, wanted, "150")
        for key in random.sample(sorted(model), len(model)):
            model, made = {name: n for name, n in model.items() if name != key}, made.without(key)
            _same(made, model, key)
        assert made.without("gone") is made


def _same(made: SortedMap, model: dict[str, int], first: str) -> None:
    assert [*made.items()] == sorted(model.items())
    assert [*made.items(first)] == sorted(item for item in model.items() if item[0] >= first)
    assert len(made) == len(model)
    for key in (first, "", "~", *model):
        assert made.get(key) == model.get(key)
        assert (key in made) is (key in model)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64, 65, 1024, 1025])
def test_a_map_is_built_of_half_full_nodes(count: int) -> None:
    """So that the next insertions split none of them."""
    model = {f"{n:06}": n for n in range(count)}
    made = SortedMap(dict(reversed(model.items())))
    assert [*made.items()] == [*model.items()]
    leaves = _leaves(made)
    assert {*leaves[:-1]} <= {32}
    assert 0 < leaves[-1] <= 32 or not count


def test_a_node_is_split_in_halves_when_it_has_more_than_64_keys() -> None:
    made = SortedMap()
    for n in range(64):
        made = made.put(f"{n:06}", n)
    assert _leaves(made) == [64]
    made = made.put("000063", 1).put("000064", 1)
    assert _leaves(made) == [32, 33]


def test_an_empty_map() -> None:
    for made in (SortedMap(), SortedMap({}), SortedMap({"a": 1}).without("a")):
        assert ([*made.items()], len(made), made.get(""), "" in made) == ([], 0, None, False)
        assert made.put("b", 2).get("b") == 2


def _leaves(made: SortedMap) -> list[int]:
    nodes = [made._root]
    for _ in range(made._height):
        nodes = [below for node in nodes for below in node[1]]
    return [len(keys) for keys, _ in nodes]


def test_entries_as_texts_in_pieces_that_stay_the_same() -> None:
    texts = {f"k{n:03}": f'{{"n":{n}}}' for n in range(100)}
    begin = CatalogState.of_texts(texts, {"k.d": RememberedAnswer("x", AT)})
    assert (begin.get("k007"), "k007" in begin, "k" in begin) == ({"n": 7}, True, False)
    assert (begin.answered("k.d"), begin.is_used("k")) == (RememberedAnswer("x", AT), True)
    assert _texts(begin) == texts
    assert begin.entries() == {f"k{n:03}": {"n": n} for n in range(100)}
    assert [*begin.keys_under("k00", "k007")] == ["k008", "k009"]
    assert [*begin.under("k00", "k007")] == [("k008", {"n": 8}), ("k009", {"n": 9})]
    after = begin.after([Row("r", "x", (Change("k099", [1, None]),))], AT)
    assert _texts(after) == {**texts, "k099": "[1,null]"}
    kept = {id(keys) for keys, _ in begin.leaves()} & {id(keys) for keys, _ in after.leaves()}
    assert len(kept) == len(begin.leaves()) - 1 == 3
    assert _texts(CatalogState({"b": {"x": "y"}, "a": 1})) == {"a": "1", "b": '{"x":"y"}'}


def _texts(state: CatalogState) -> dict[str, str]:
    found = [pair for keys, texts in state.leaves() for pair in zip(keys, texts, strict=True)]
    assert found == sorted(found)
    return dict(found)


def test_a_map_of_many_keys_is_shallow_and_a_change_leaves_the_rest() -> None:
    made = SortedMap({f"{n:06}": n for n in range(MANY)})
    for n in range(MANY, 2 * MANY):
        made = made.put(f"{n:06}", n)
    assert made._height <= 3
    nodes = {*_nodes(made._root, made._height)}
    for other in (made.put("000100", 7), made.put("0001000", 7), made.without("000100")):
        assert len({*_nodes(other._root, other._height)} - nodes) <= made._height + 2
    for n in range(2 * MANY):
        made = made.without(f"{n:06}")
    assert ([*made.items()], len(made), made._height) == ([], 0, 0)


def _nodes(node: sortedmap._Node, height: int) -> Iterator[int]:
    yield id(node[0])
    for slot in node[1] if height else ():
        yield from _nodes(slot, height - 1)

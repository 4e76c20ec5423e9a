"""The map that holds a catalog's state: the same as a dict in order, and older ones stay as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.catalog import state as state_module
from limpet.catalog.state import SortedMap

MANY = 20_000

keys = st.text("abc/", max_size=4)
changes = st.lists(st.tuples(keys, st.none() | st.integers(1, 9)), max_size=60)


@given(st.dictionaries(keys, st.integers(1, 9), max_size=60), changes, keys)
def test_a_sorted_map_is_a_dict_in_order(
    begin: dict[str, int], changed: list[tuple[str, int | None]], first: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_module, "WIDTH", 4)  # many levels
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


def _nodes(node: state_module._Node, height: int) -> Iterator[int]:
    yield id(node[0])
    for slot in node[1] if height else ():
        yield from _nodes(slot, height - 1)

"""A persistent sorted map: a change returns a new map, which shares all but a few nodes with the old one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

WIDTH = 64
"""The maximum number of keys in a node of a `SortedMap`."""

_Node = tuple[list[str], list[Any]]
"""Keys and their values. Above the lowest level, the first key of each child node, and that node. Neither list is ever
changed."""


class SortedMap:
    """An immutable map in the order of its keys: a tree of nodes with up to 64 keys each.

    `put` and `without` copy one node of each level: three nodes for 250,000 keys. Small nodes are not merged; empty
    ones are removed.
    """

    __slots__ = ("_height", "_root", "_size")

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        """Cost: sorting the keys."""
        keys = sorted(items or {})
        nodes: list[_Node] = _nodes(keys, [(items or {})[key] for key in keys]) or [([], [])]
        height = 0
        while len(nodes) > 1:
            nodes, height = _nodes([node[0][0] for node in nodes], nodes), height + 1
        self._root, self._height, self._size = nodes[0], height, len(keys)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """The value of a key; None if the key is not in the map."""
        keys, slots = self._root
        for _ in range(self._height):
            keys, slots = slots[max(0, bisect_right(keys, key) - 1)]
        at = bisect_left(keys, key)
        return slots[at] if at < len(keys) and keys[at] == key else None

    def items(self, first: str = "") -> Iterator[tuple[str, Any]]:
        """Keys and values in order, lazily, starting at `first`."""
        for keys, slots in _leaves(self._root, self._height, first):
            at = bisect_left(keys, first)
            yield from zip(keys[at:], slots[at:], strict=True)

    def leaves(self) -> list[_Node]:
        """The lowest nodes in order, each with up to 64 keys and their values. Two maps, one made from the other, share
        the nodes that did not change."""
        return [*_leaves(self._root, self._height, "")]

    def put(self, key: str, value: Any) -> SortedMap:
        """A new map in which the key has that value, which must not be None."""
        nodes = _put(self._root, self._height, key, value)
        height, size = self._height, self._size + (key not in self)
        if len(nodes) > 1:
            nodes, height = [([node[0][0] for node in nodes], nodes)], height + 1
        return self._with(nodes[0], height, size)

    def without(self, key: str) -> SortedMap:
        """A new map without the key."""
        if key not in self:
            return self
        root, height = _without(self._root, self._height, key), self._height
        while height and len(root[1]) == 1:
            root, height = root[1][0], height - 1
        return self._with(root, height if root[0] else 0, self._size - 1)

    def _with(self, root: _Node, height: int, size: int) -> SortedMap:
        other = SortedMap.__new__(SortedMap)
        other._root, other._height, other._size = root, height, size
        return other


def _nodes(keys: list[str], slots: list[Any]) -> list[_Node]:
    """Nodes of one level, each half full, as random insertions leave them."""
    half = WIDTH // 2
    return [(keys[at : at + half], slots[at : at + half]) for at in range(0, len(keys), half)]


def _put(node: _Node, height: int, key: str, value: Any) -> list[_Node]:
    """The node with a key added; two nodes if it has become too wide."""
    keys, slots = node
    if height:
        at = max(0, bisect_right(keys, key) - 1)
        new = _put(slots[at], height - 1, key, value)
        keys, slots = (
            [*keys[:at], *(each[0][0] for each in new), *keys[at + 1 :]],
            [*slots[:at], *new, *slots[at + 1 :]],
        )
    else:
        at = bisect_left(keys, key)
        after = at + 1 if at < len(keys) and keys[at] == key else at
        keys, slots = [*keys[:at], key, *keys[after:]], [*slots[:at], value, *slots[after:]]
    if len(keys) <= WIDTH:
        return [(keys, slots)]
    half = len(keys) // 2
    return [(keys[:half], slots[:half]), (keys[half:], slots[half:])]


def _without(node: _Node, height: int, key: str) -> _Node:
    """The node without a key that is in it."""
    keys, slots = node
    if not height:
        at = bisect_left(keys, key)
        return [*keys[:at], *keys[at + 1 :]], [*slots[:at], *slots[at + 1 :]]
    at = max(0, bisect_right(keys, key) - 1)
    new = _without(slots[at], height - 1, key)
    kept = [new] if new[0] else []
    return [*keys[:at], *(each[0][0] for each in kept), *keys[at + 1 :]], [*slots[:at], *kept, *slots[at + 1 :]]


def _leaves(node: _Node, height: int, first: str) -> Iterator[_Node]:
    """The lowest nodes in order, starting with the one in which `first` is or would be."""
    if not height:
        yield node
        return
    keys, slots = node
    for slot in slots[max(0, bisect_right(keys, first) - 1) :]:
        yield from _leaves(slot, height - 1, first)

"""The state of a catalog: entries by key, and the answers to recent requests. Both are immutable.

A change makes another state that shares all but a few nodes with the one before it. So a group of requests costs what
it changes, however many tables there are, and whoever reads an older state goes on reading it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from limpet.catalog.records import ACTOR, Row, Told, moment

ID_LIFETIME = timedelta(minutes=30)
"""For how long a client's id is remembered; announced to clients."""
MINTED = "~"
"""How ids begin that Limpet made for requests without one. No client can send such an id again."""
MINTED_LIFETIME = timedelta(minutes=1)
"""Longer than a leader tries to have a request published."""

TIDY_ABOVE = 1000
WIDTH = 64
"""How many keys a node of a `SortedMap` has at most."""

_Node = tuple[list[str], list[Any]]
"""Keys, and beside each its value; above the lowest level the first key of each node below, and that node. Neither
list is ever changed."""


class SortedMap:
    """An immutable map in the order of its keys: a tree of nodes with up to 64 keys each.

    `put` and `without` copy one node of each level: three of them for 250,000 keys. Nodes that became small are not
    joined; one that is empty goes.
    """

    __slots__ = ("_height", "_root", "_size")

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        """Cost: that of sorting them."""
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
        """The value of a key; None if there is none."""
        keys, slots = self._root
        for _ in range(self._height):
            keys, slots = slots[max(0, bisect_right(keys, key) - 1)]
        at = bisect_left(keys, key)
        return slots[at] if at < len(keys) and keys[at] == key else None

    def items(self, first: str = "") -> Iterator[tuple[str, Any]]:
        """Keys and values in order, from `first` on.   Cost: what is taken of it."""
        return _items(self._root, self._height, first)

    def put(self, key: str, value: Any) -> SortedMap:
        """Another map, in which the key has that value, which is not None."""
        nodes = _put(self._root, self._height, key, value)
        height, size = self._height, self._size + (key not in self)
        if len(nodes) > 1:
            nodes, height = [([node[0][0] for node in nodes], nodes)], height + 1
        return self._with(nodes[0], height, size)

    def without(self, key: str) -> SortedMap:
        """Another map without the key."""
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
    """The node with a key; two nodes, if it has become too wide."""
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


def _items(node: _Node, height: int, first: str) -> Iterator[tuple[str, Any]]:
    keys, slots = node
    if not height:
        at = bisect_left(keys, first)
        yield from zip(keys[at:], slots[at:], strict=True)
        return
    for slot in slots[max(0, bisect_right(keys, first) - 1) :]:
        yield from _items(slot, height - 1, first)


class State:
    """Entries by key, in order, and answers by the id of their request."""

    __slots__ = ("_answers", "_entries", "_kept", "_used")

    def __init__(self, entries: Mapping[str, Any] | None = None, answers: Mapping[str, Told] | None = None) -> None:
        self._entries = SortedMap(entries)
        self._answers = SortedMap(answers)
        self._used = SortedMap(dict.fromkeys(_client_keys(answers or ()), True))
        self._kept = len(self._answers)

    def get(self, key: str) -> Any:
        """The value of an entry; None if there is none."""
        return self._entries.get(key)

    def under(self, prefix: str, after: str = "") -> Iterator[tuple[str, Any]]:
        """The entries whose keys begin with `prefix` and come after `after`, in order.   Cost: what is taken of it."""
        for key, value in self._entries.items(max(prefix, after)):
            if not key.startswith(prefix):
                return
            if key != after:
                yield key, value

    def told(self, id_: str) -> Told | None:
        """The answer to a granted request."""
        found: Told | None = self._answers.get(id_)
        return found

    def is_used(self, key: str) -> bool:
        """Whether a granted request had this key of a client's, for whatever it asked."""
        return key in self._used

    def after(self, rows: Iterable[Row], at: str) -> State:
        """The state after rows that were published at that time.   Cost: what they change."""
        entries, answers, used = self._entries, self._answers, self._used
        for row in rows:
            for change in row.changes:
                if change.key != ACTOR:
                    gone = change.value is None
                    entries = entries.without(change.key) if gone else entries.put(change.key, change.value)
            answers = answers.put(row.id, Told(row.what, at, row.result))
            for key in _client_keys([row.id]):
                used = used.put(key, True)
        return _state(entries, answers, used, self._kept)

    def forgetting(self, at: str) -> State:
        """The state without answers that are older than their ids live, as of the time `at` of the newest commit.

        Cost: all answers are looked at.
        """
        minted, given = _oldest(at, MINTED_LIFETIME), _oldest(at, ID_LIFETIME)
        kept = {
            id_: told for id_, told in self._answers.items() if told.at >= (minted if id_.startswith(MINTED) else given)
        }
        used = SortedMap(dict.fromkeys(_client_keys(kept), True))
        return _state(self._entries, SortedMap(kept), used, len(kept))

    def tidied(self, at: str) -> State:
        """`forgetting`, once there are so many more answers than after the last time that it pays."""
        return self.forgetting(at) if len(self._answers) > 2 * self._kept + TIDY_ABOVE else self

    def entries(self) -> dict[str, Any]:
        """Every entry, in order.   Cost: a copy of all."""
        return dict(self._entries.items())

    def answers(self) -> dict[str, Told]:
        """Every answer that is remembered, by id.   Cost: a copy of all."""
        return dict(self._answers.items())


def _state(entries: SortedMap, answers: SortedMap, used: SortedMap, kept: int) -> State:
    made = State.__new__(State)
    made._entries, made._answers, made._used, made._kept = entries, answers, used, kept
    return made


def scoped(key: str, digest: str) -> str:
    """The id of a request: a client's key, and a digest of what is asked under it."""
    return f"{key}.{digest}"


def _client_keys(ids: Iterable[str]) -> set[str]:
    """The clients' keys in ids; those that Limpet made hold none."""
    return {key for id_ in ids if (key := id_.rpartition(".")[0])}


def is_live(id_: str, told_at: str, at: str) -> bool:
    """Whether an id is still remembered at a time. Times are the store's, and those of commits never go back."""
    return told_at >= _oldest(at, MINTED_LIFETIME if id_.startswith(MINTED) else ID_LIFETIME)


def _oldest(at: str, lifetime: timedelta) -> str:
    return time_text(moment(at) - lifetime)


def time_text(at: datetime) -> str:
    """A time as commits hold it: UTC, always as many characters, so that it sorts."""
    return at.isoformat(timespec="microseconds")

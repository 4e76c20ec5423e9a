"""The state of a catalog: entries by key, and the answers to recent requests. Both are immutable.

A change makes another state that shares all but a few nodes with the one before it. So a group of requests costs what
it changes, however many tables there are, and whoever reads an older state goes on reading it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from limpet.catalog.records import ACTOR, Change, RememberedAnswer, Row
from limpet.errors import Conflict, Corrupt, Invalid, Missing
from limpet.ledger import moment

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


class CatalogState:
    """Entries by key, in order, and answers by the id of their request."""

    __slots__ = ("_answers", "_entries", "_kept", "_used")

    def __init__(
        self, entries: Mapping[str, Any] | None = None, answers: Mapping[str, RememberedAnswer] | None = None
    ) -> None:
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

    def told(self, id_: str) -> RememberedAnswer | None:
        """The answer to a granted request."""
        found: RememberedAnswer | None = self._answers.get(id_)
        return found

    def is_used(self, key: str) -> bool:
        """Whether a granted request had this key of a client's, for whatever it asked."""
        return key in self._used

    def after(self, rows: Iterable[Row], at: str) -> CatalogState:
        """The state after rows that were published at that time.   Cost: what they change."""
        entries, answers, used = self._entries, self._answers, self._used
        for row in rows:
            for change in row.changes:
                if change.key != ACTOR:
                    gone = change.value is None
                    entries = entries.without(change.key) if gone else entries.put(change.key, change.value)
            answers = answers.put(row.id, RememberedAnswer(row.what, at, row.result))
            for key in _client_keys([row.id]):
                used = used.put(key, True)
        return _state(entries, answers, used, self._kept)

    def forgetting(self, at: str) -> CatalogState:
        """The state without answers that are older than their ids live, as of the time `at` of the newest commit.

        Cost: all answers are looked at.
        """
        minted, given = _oldest(at, MINTED_LIFETIME), _oldest(at, ID_LIFETIME)
        kept = {
            id_: told for id_, told in self._answers.items() if told.at >= (minted if id_.startswith(MINTED) else given)
        }
        used = SortedMap(dict.fromkeys(_client_keys(kept), True))
        return _state(self._entries, SortedMap(kept), used, len(kept))

    def tidied(self, at: str) -> CatalogState:
        """`forgetting`, once there are so many more answers than after the last time that it pays."""
        return self.forgetting(at) if len(self._answers) > 2 * self._kept + TIDY_ABOVE else self

    def entries(self) -> dict[str, Any]:
        """Every entry, in order.   Cost: a copy of all."""
        return dict(self._entries.items())

    def answers(self) -> dict[str, RememberedAnswer]:
        """Every answer that is remembered, by id.   Cost: a copy of all."""
        return dict(self._answers.items())


def _state(entries: SortedMap, answers: SortedMap, used: SortedMap, kept: int) -> CatalogState:
    made = CatalogState.__new__(CatalogState)
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


Kind = Literal["n", "t", "v"]
Namespace = tuple[str, ...]

NAME_CHARACTERS_MAX = 255
LEVELS_MAX = 16
SLUG_CHARACTERS_MAX = 40

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_NOT_PLAIN = re.compile(r"[^a-z0-9_]+")


def check_name(name: object, what: str = "name") -> str:
    """`name`, if a table, view or level of a namespace may have it.   Raises: Invalid, saying why not."""
    if not isinstance(name, str) or not name:
        raise Invalid(f"a {what} must be a non-empty string")
    if len(name) > NAME_CHARACTERS_MAX:
        raise Invalid(f"a {what} has at most {NAME_CHARACTERS_MAX} characters, this one {len(name)}: {name[:40]!r}...")
    if name in (".", ".."):
        raise Invalid(
            f"the {what} {name!r} cannot be part of a URL: clients take it for a folder", hint="choose another"
        )
    if _CONTROL.search(name):
        raise Invalid(f"the {what} {name!r} has control characters", hint="use printable characters")
    return name


def check_namespace(levels: Sequence[object]) -> Namespace:
    """The levels as a namespace.   Raises: Invalid for none, too many, or a level that no name may be."""
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not levels:
        raise Invalid("a namespace is a list of at least one level")
    if len(levels) > LEVELS_MAX:
        raise Invalid(f"a namespace has at most {LEVELS_MAX} levels, this one {len(levels)}")
    return tuple(check_name(level, "level of a namespace") for level in levels)


def children(kind: Kind, namespace: Namespace) -> str:
    """What the keys of everything of a kind directly in a namespace begin with, and no other key does."""
    return f"{kind}/{''.join(f'{_escaped(level)}/' for level in namespace)}/"


def key_of(kind: Kind, namespace: Namespace, name: str) -> str:
    """The key of a table or view in a namespace, or of a namespace in its parent."""
    return children(kind, namespace) + _escaped(name)


def alike(name: str) -> str:
    """The same text for all names that some client cannot tell apart in a URL: those with a plus for a space."""
    return name.replace("+", " ")


def neighbours(kind: Kind, namespace: Namespace, name: str) -> str | None:
    """What the keys of all names begin with that could be `alike` with this one; None if no other name is."""
    ends = [at for at in (name.find("+"), name.find(" ")) if at >= 0]
    return children(kind, namespace) + _escaped(name[: min(ends)]) if ends else None


def name_in(key: str) -> str:
    """The last part of a key: the name itself."""
    return _unescaped(key.rpartition("/")[2])


def parsed(key: str) -> tuple[Namespace, str]:
    """The namespace and name behind a key."""
    path, _, name = key[2:].rpartition("/")
    return tuple(_unescaped(part) for part in path.split("/") if part), _unescaped(name)


def shown(namespace: Namespace, name: str = "") -> str:
    """For messages: the levels joined by dots."""
    return ".".join((*namespace, *((name,) if name else ())))


def slug(name: str) -> str:
    """A folder name that reminds of `name`: safe on every store, and not unique."""
    return _NOT_PLAIN.sub("-", name.lower()).strip("-")[:SLUG_CHARACTERS_MAX].strip("-") or "x"


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2f")


def _unescaped(part: str) -> str:
    return part.replace("%2f", "/").replace("%25", "%")


LIVE, PURGED = "l", "p"

Content = Literal["t", "v"]
"""Tables and views, by the first letter of their keys."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A table or view: where its files and its newest metadata lie, as paths below the warehouse."""

    root: str
    path: str
    more: tuple[str, ...] = ()

    @staticmethod
    def of(value: Sequence[str]) -> Entry:
        """The entry that the state holds.   Raises: Corrupt for one that no version of Limpet decides on."""
        if not isinstance(value, list | tuple) or len(value) < 2 or not all(isinstance(each, str) for each in value):
            raise Corrupt(
                f"the catalog holds an entry that cannot be used: {repr(value)[:100]}",
                hint="drop the table by its name",
            )
        root, file, *more = value
        return Entry(root, file if "/" in file else f"{root}/metadata/{file}", tuple(more))

    def value(self) -> list[Any]:
        """What the state holds of it."""
        folder, _, name = self.path.rpartition("/")
        return [self.root, name if folder == f"{self.root}/metadata" else self.path, *self.more]

    def roots(self) -> tuple[str, ...]:
        """All folders that are its own."""
        return (self.root, *self.more)


def find_entry(state: CatalogState, kind: Content, namespace: Namespace, name: str) -> Entry | None:
    """A table or view, if there is one."""
    value = state.get(key_of(kind, namespace, name))
    return None if value is None else Entry.of(value)


def entry_in(state: CatalogState, kind: Content, namespace: Namespace, name: str) -> Entry:
    """A table or view.   Raises: NoSuchTable; NoSuchView.

    They are also raised where the namespace itself is missing: Spark asks for the metadata table `ns.tbl.snapshots` as
    a table of the namespace `ns.tbl`, and goes on only if that table, not its namespace, does not exist.
    """
    found = find_entry(state, kind, namespace, name)
    if found is None:
        if kind == "t":
            raise NoSuchTable(f"Table does not exist: {shown(namespace, name)}")
        raise NoSuchView(f"View does not exist: {shown(namespace, name)}")
    return found


def check_namespace_exists(state: CatalogState, namespace: Namespace) -> None:
    """Nothing, if the namespace is there.   Raises: NoSuchNamespace."""
    if namespace and state.get(key_of("n", namespace[:-1], namespace[-1])) is None:
        raise NoSuchNamespace(f"Namespace does not exist: {shown(namespace)}")


def check_free(
    state: CatalogState, namespace: Namespace, name: str, wanted: Content | None = None, *, leaving: str | None = None
) -> None:
    """Nothing, if a table or view may get this name: they share names. `wanted` is what is to be created, `leaving` the
    key that goes at the same time.

    Raises: NoSuchNamespace; AlreadyExists; Invalid for a name that clients cannot tell from another one there.
    """
    check_namespace_exists(state, namespace)
    kinds: tuple[tuple[Content, str], ...] = (("t", "Table"), ("v", "View"))
    for kind, what in kinds:
        if find_entry(state, kind, namespace, name) is not None:
            other = " with same name" if wanted is not None and wanted != kind else ""
            raise AlreadyExists(f"{what}{other} already exists: {shown(namespace, name)}")
        check_alike(state, kind, namespace, name, leaving)


def check_alike(state: CatalogState, kind: Kind, namespace: Namespace, name: str, leaving: str | None = None) -> None:
    """Nothing, if no other name of this kind there differs only in a plus for a space.   Raises: Invalid.

    Java's client writes a space in a URL as `+`, and other clients write a plus as `+`: of two such tables each client
    would reach the other's.
    """
    prefix = neighbours(kind, namespace, name)
    if prefix is None:
        return
    for key, _ in state.under(prefix):
        other = name_in(key)
        if other != name and key != leaving and alike(other) == alike(name):
            raise Invalid(
                f"Cannot use the name {name!r}: clients cannot tell it from {other!r}, which exists in "
                f"{shown(namespace) or 'this catalog'!r}",
                hint="some clients write a space in a URL as +; choose a name that differs in another character",
            )


def location_of(state: CatalogState, namespace: Namespace) -> str | None:
    """The `location` of a namespace: its tables lie there."""
    properties = state.get(key_of("n", namespace[:-1], namespace[-1])) if namespace else None
    return properties.get("location") if isinstance(properties, Mapping) else None


def is_empty(state: CatalogState, namespace: Namespace) -> bool:
    """Whether a namespace holds nothing."""
    kinds: tuple[Kind, ...] = ("n", "t", "v")
    return not any(next(state.under(children(kind, namespace)), None) for kind in kinds)


def reserve(state: CatalogState, roots: Iterable[str], own: Sequence[str] = ()) -> tuple[Change, ...]:
    """Make folders a table's own; those in `own` are so already.   Raises: Invalid, if one overlaps with another's."""
    wanted = [root for root in dict.fromkeys(roots) if root not in own]
    for root in wanted:
        taken = _taken(state, root, {*own})
        if taken is not None:
            raise Invalid(
                f"the location {root!r} overlaps with {taken!r}, which belongs to another table",
                hint="give each table a folder of its own, or leave the location out",
            )
    return tuple(Change(f"{LIVE}/{root}", 1) for root in wanted)


def free_in(state: CatalogState) -> Callable[[str], bool]:
    """Whether a folder belongs to no table, as far as a state tells."""
    return lambda root: _taken(state, root, set()) is None


def overlapping(owners: Sequence[Sequence[str]]) -> tuple[str, str] | None:
    """A folder of one owner and a folder of another that holds it, or is the same."""
    owner_of: dict[str, int] = {}
    for owner, roots in enumerate(owners):
        for root in roots:
            if owner_of.setdefault(root, owner) != owner:
                return root, root
    for root, owner in owner_of.items():
        for above in _above(root):
            if owner_of.get(above, owner) != owner:
                return above, root
    return None


def _above(root: str) -> list[str]:
    """The folder and all that hold it, the outermost first."""
    parts = root.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _taken(state: CatalogState, root: str, own: set[str]) -> str | None:
    """A folder of another table that is this one, holds it or lies in it."""
    for above in _above(root):
        if above not in own and any(state.get(f"{kind}/{above}") is not None for kind in (LIVE, PURGED)):
            return above
    for kind in (LIVE, PURGED):
        for key, _ in state.under(f"{kind}/{root}/"):
            if key[2:] not in own:
                return key[2:]
    return None


class NoSuchNamespace(Missing):
    """There is no namespace of that name."""

    default_hint = "check the name, or create the namespace first; each level of a nested one is created by itself"


class NoSuchTable(Missing):
    """There is no table of that name."""

    default_hint = "check the name; `limpet catalog log` shows what was dropped or renamed"


class NoSuchView(Missing):
    """There is no view of that name."""

    default_hint = "check the name; `limpet catalog log` shows what was dropped or renamed"


class AlreadyExists(Conflict):
    """A namespace, table or view of that name is there."""

    default_hint = "choose another name, or drop what is there first"


class NamespaceNotEmpty(Conflict):
    """The namespace still holds something."""

    default_hint = "drop what it holds first"


class CommitFailed(Conflict):
    """The table is not what the client thought: somebody else has committed."""

    default_hint = "load the table again and commit again"

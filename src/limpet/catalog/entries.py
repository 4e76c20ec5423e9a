"""What the state holds of tables and views, and which folders of the warehouse are theirs.

An entry is `[root, file, *more]`: the folder of the table below the warehouse, its metadata file (a name in
`root/metadata`, or a path of its own), and other folders that it has or had files in. Every commit rewrites the entry
in the head's tail, so it is short.

All folders of a table are reserved, under `l/` for as long as it lives and under `p/` while they are being purged. None
lies inside that of another table, so a purge cannot reach what belongs to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from limpet.catalog.names import Kind, Namespace, alike, children, key_of, name_in, neighbours, shown
from limpet.catalog.records import Change
from limpet.catalog.refusals import AlreadyExists, NoSuchNamespace, NoSuchTable, NoSuchView
from limpet.catalog.state import State
from limpet.errors import Corrupt, Invalid

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


def find(state: State, kind: Content, namespace: Namespace, name: str) -> Entry | None:
    """A table or view, if there is one."""
    value = state.get(key_of(kind, namespace, name))
    return None if value is None else Entry.of(value)


def entry_in(state: State, kind: Content, namespace: Namespace, name: str) -> Entry:
    """A table or view.   Raises: NoSuchTable; NoSuchView.

    They are also raised where the namespace itself is missing: Spark asks for the metadata table `ns.tbl.snapshots` as
    a table of the namespace `ns.tbl`, and goes on only if that table, not its namespace, does not exist.
    """
    found = find(state, kind, namespace, name)
    if found is None:
        if kind == "t":
            raise NoSuchTable(f"Table does not exist: {shown(namespace, name)}")
        raise NoSuchView(f"View does not exist: {shown(namespace, name)}")
    return found


def check_namespace_exists(state: State, namespace: Namespace) -> None:
    """Nothing, if the namespace is there.   Raises: NoSuchNamespace."""
    if namespace and state.get(key_of("n", namespace[:-1], namespace[-1])) is None:
        raise NoSuchNamespace(f"Namespace does not exist: {shown(namespace)}")


def check_free(
    state: State, namespace: Namespace, name: str, wanted: Content | None = None, *, leaving: str | None = None
) -> None:
    """Nothing, if a table or view may get this name: they share names. `wanted` is what is to be created, `leaving` the
    key that goes at the same time.

    Raises: NoSuchNamespace; AlreadyExists; Invalid for a name that clients cannot tell from another one there.
    """
    check_namespace_exists(state, namespace)
    kinds: tuple[tuple[Content, str], ...] = (("t", "Table"), ("v", "View"))
    for kind, what in kinds:
        if find(state, kind, namespace, name) is not None:
            other = " with same name" if wanted is not None and wanted != kind else ""
            raise AlreadyExists(f"{what}{other} already exists: {shown(namespace, name)}")
        check_alike(state, kind, namespace, name, leaving)


def check_alike(state: State, kind: Kind, namespace: Namespace, name: str, leaving: str | None = None) -> None:
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


def location_of(state: State, namespace: Namespace) -> str | None:
    """The `location` of a namespace: its tables lie there."""
    properties = state.get(key_of("n", namespace[:-1], namespace[-1])) if namespace else None
    return properties.get("location") if isinstance(properties, Mapping) else None


def is_empty(state: State, namespace: Namespace) -> bool:
    """Whether a namespace holds nothing."""
    kinds: tuple[Kind, ...] = ("n", "t", "v")
    return not any(next(state.under(children(kind, namespace)), None) for kind in kinds)


def reserve(state: State, roots: Iterable[str], own: Sequence[str] = ()) -> tuple[Change, ...]:
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


def free_in(state: State) -> Callable[[str], bool]:
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


def _taken(state: State, root: str, own: set[str]) -> str | None:
    """A folder of another table that is this one, holds it or lies in it."""
    for above in _above(root):
        if above not in own and any(state.get(f"{kind}/{above}") is not None for kind in (LIVE, PURGED)):
            return above
    for kind in (LIVE, PURGED):
        for key, _ in state.under(f"{kind}/{root}/"):
            if key[2:] not in own:
                return key[2:]
    return None

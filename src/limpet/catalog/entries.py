"""What the state holds of tables and views, and which folders of the warehouse are theirs.

An entry is `[root, file, *more]`: the folder of the table below the warehouse, its metadata file (a name in
`root/metadata`, or a path of its own), and other folders that it has or had files in. Every commit rewrites the entry
in the head's tail, so it is short.

All folders of a table are reserved, under `l/` for as long as it lives and under `p/` while they are being purged. None
lies inside that of another table, so a purge cannot reach what belongs to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from limpet.catalog.names import Kind, Namespace, children, key_of, shown
from limpet.catalog.records import Change
from limpet.catalog.refusals import AlreadyExists, NoSuchNamespace, NoSuchTable, NoSuchView
from limpet.catalog.state import State
from limpet.errors import Invalid

__all__ = [
    "LIVE",
    "PURGED",
    "Content",
    "Entry",
    "check_free",
    "check_namespace_exists",
    "entry_in",
    "find",
    "free_in",
    "is_empty",
    "overlapping",
    "reserve",
]

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
        """The entry that the state holds."""
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
    """A table or view.   Raises: NoSuchTable; NoSuchView; NoSuchNamespace."""
    found = find(state, kind, namespace, name)
    if found is None:
        check_namespace_exists(state, namespace)
        missing = NoSuchTable if kind == "t" else NoSuchView
        raise missing(f"there is no {'table' if kind == 't' else 'view'} {shown(namespace, name)!r}")
    return found


def check_namespace_exists(state: State, namespace: Namespace) -> None:
    """Nothing, if the namespace is there.   Raises: NoSuchNamespace."""
    if namespace and state.get(key_of("n", namespace[:-1], namespace[-1])) is None:
        raise NoSuchNamespace(f"there is no namespace {shown(namespace)!r}")


def check_free(state: State, namespace: Namespace, name: str) -> None:
    """Nothing, if a table or view may get this name: they share names.   Raises: NoSuchNamespace; AlreadyExists."""
    check_namespace_exists(state, namespace)
    if find(state, "t", namespace, name) is not None:
        raise AlreadyExists(f"there is a table {shown(namespace, name)!r}")
    if find(state, "v", namespace, name) is not None:
        raise AlreadyExists(f"there is a view {shown(namespace, name)!r}")


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


def free_in(state: State | None) -> Callable[[str], bool]:
    """Whether a folder is nobody's, as far as a state tells; None: it tells nothing."""
    return lambda root: state is None or _taken(state, root, set()) is None


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

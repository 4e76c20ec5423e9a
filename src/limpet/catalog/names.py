"""Names, entries and folders in the state of a catalog, as pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from limpet.catalog.records import Change
from limpet.catalog.state import LIVE, MARK, PURGED, CatalogState, folded
from limpet.kernel.errors import Conflict, Corrupt, Invalid, Missing, Unsupported

Kind = Literal["n", "t", "v"]
Namespace = tuple[str, ...]
NAME_CHARACTERS_MAX = 255
LEVELS_MAX = 16
SLUG_CHARACTERS_MAX = 40
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_ESCAPES = str.maketrans({"%": "%25", "/": "%2f"})
_NOT_PLAIN = re.compile(r"[^a-z0-9_]+")


def check_name(name: object, what: str = "name") -> str:
    """`name`, if it is valid for a table, a view or a level of a namespace.   Raises: Invalid, with the reason."""
    if not isinstance(name, str) or not name:
        raise Invalid(f"a {what} must be a non-empty string")
    if len(name) > NAME_CHARACTERS_MAX:
        raise Invalid(f"a {what} has at most {NAME_CHARACTERS_MAX} characters, this one {len(name)}: {name[:40]!r}...")
    if name in (".", ".."):
        raise Invalid(
            f"the {what} {name!r} cannot be part of a URL: clients read it as a relative path", hint="choose another"
        )
    if _CONTROL.search(name):
        raise Invalid(f"the {what} {name!r} has control characters", hint="use printable characters")
    return name


def check_namespace(levels: Sequence[object]) -> Namespace:
    """The levels as a namespace.   Raises: Invalid for no levels, too many, or an invalid one."""
    if isinstance(levels, str) or not isinstance(levels, Sequence) or not levels:
        raise Invalid("a namespace is a list of at least one level")
    if len(levels) > LEVELS_MAX:
        raise Invalid(f"a namespace has at most {LEVELS_MAX} levels, this one {len(levels)}")
    return tuple(check_name(level, "level of a namespace") for level in levels)


def children(kind: Kind, namespace: Namespace) -> str:
    """The key prefix of everything of a kind directly in a namespace, and of nothing else."""
    levels = "".join([f"{level.translate(_ESCAPES)}/" for level in namespace])
    return f"{kind}/{levels}/"


def key_of(kind: Kind, namespace: Namespace, name: str) -> str:
    """The key of a table or view in a namespace, or of a namespace in its parent."""
    return children(kind, namespace) + name.translate(_ESCAPES)


def alike(name: str) -> str:
    """A canonical form that is equal for names that clients confuse in URLs: those with a plus for a space."""
    return name.replace("+", " ")


def neighbours(kind: Kind, namespace: Namespace, name: str) -> str | None:
    """The key prefix of all names that could be `alike` to this one; None if there cannot be any."""
    ends = [at for at in (name.find("+"), name.find(" ")) if at >= 0]
    return children(kind, namespace) + name[: min(ends)].translate(_ESCAPES) if ends else None


def name_in(key: str) -> str:
    """The name in a key: its last part."""
    return _unescaped(key.rpartition("/")[2])


def parsed(key: str) -> tuple[Namespace, str]:
    """The namespace and the name in a key."""
    path, _, name = key[2:].rpartition("/")
    return tuple(_unescaped(part) for part in path.split("/") if part), _unescaped(name)


def shown(namespace: Namespace, name: str = "") -> str:
    """The levels joined by dots, for messages."""
    return ".".join((*namespace, *((name,) if name else ())))


def slug(name: str) -> str:
    """A folder name derived from `name`: safe on every store, not unique."""
    return _NOT_PLAIN.sub("-", name.lower()).strip("-")[:SLUG_CHARACTERS_MAX].strip("-") or "x"


def _unescaped(part: str) -> str:
    return part.replace("%2f", "/").replace("%25", "%")


Content = Literal["t", "v"]
"""Tables and views, by the first letter of their keys."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A table or view: its folder and its current metadata file, as paths below the warehouse."""

    root: str
    path: str
    more: tuple[str, ...] = ()

    @staticmethod
    def of(value: Sequence[str]) -> Entry:
        """The entry of a value in the state.   Raises: Corrupt for an invalid value."""
        if not isinstance(value, list | tuple) or len(value) < 2 or {*map(type, value)} != {str}:
            raise Corrupt(f"the catalog has an invalid entry: {repr(value)[:100]}", hint="drop the table by its name")
        root, file, *more = value
        return Entry(root, file if "/" in file else f"{root}/metadata/{file}", tuple(more))

    def value(self) -> list[Any]:
        """Its value in the state."""
        folder, _, name = self.path.rpartition("/")
        return [self.root, name if folder == f"{self.root}/metadata" else self.path, *self.more]

    def roots(self) -> tuple[str, ...]:
        """All folders of the table."""
        return (self.root, *self.more)


def find_entry(state: CatalogState, kind: Content, namespace: Namespace, name: str) -> Entry | None:
    """A table or view; None if it does not exist."""
    value = state.get(key_of(kind, namespace, name))
    return None if value is None else Entry.of(value)


def entry_in(state: CatalogState, kind: Content, namespace: Namespace, name: str) -> Entry:
    """A table or view.   Raises: NoSuchTable; NoSuchView.

    They are also raised if the namespace itself is missing: Spark requests the metadata table `ns.tbl.snapshots` as a
    table of the namespace `ns.tbl`, and continues only if the error is about the table, not the namespace.
    """
    found = find_entry(state, kind, namespace, name)
    if found is None:
        if kind == "t":
            raise NoSuchTable(f"Table does not exist: {shown(namespace, name)}")
        raise NoSuchView(f"View does not exist: {shown(namespace, name)}")
    return found


def check_namespace_exists(state: CatalogState, namespace: Namespace) -> None:
    """Check that a namespace exists.   Raises: NoSuchNamespace."""
    if namespace and key_of("n", namespace[:-1], namespace[-1]) not in state:
        raise NoSuchNamespace(f"Namespace does not exist: {shown(namespace)}")


def check_free(
    state: CatalogState, namespace: Namespace, name: str, wanted: Content | None = None, *, leaving: str | None = None
) -> None:
    """Check that a name is free; tables and views share names. `wanted`: the kind to be created; `leaving`: a key that
    is removed by the same request.

    Raises: NoSuchNamespace; AlreadyExists; Invalid for a name that clients confuse with an existing one.
    """
    check_namespace_exists(state, namespace)
    kinds: tuple[tuple[Content, str], ...] = (("t", "Table"), ("v", "View"))
    for kind, what in kinds:
        if find_entry(state, kind, namespace, name) is not None:
            other = " with same name" if wanted is not None and wanted != kind else ""
            raise AlreadyExists(f"{what}{other} already exists: {shown(namespace, name)}")
        check_alike(state, kind, namespace, name, leaving)


def check_alike(state: CatalogState, kind: Kind, namespace: Namespace, name: str, leaving: str | None = None) -> None:
    """Check that no other name of this kind differs only in a plus for a space.   Raises: Invalid.

    Java's client encodes a space in a URL as `+`, and other clients encode a plus as `+`: with two such tables, each
    client would reach the wrong one.
    """
    prefix = neighbours(kind, namespace, name)
    if prefix is None:
        return
    for key in state.keys_under(prefix):
        other = name_in(key)
        if other != name and key != leaving and alike(other) == alike(name):
            raise Invalid(
                f"Cannot use the name {name!r}: clients confuse it with {other!r}, which exists in "
                f"{shown(namespace) or 'this catalog'!r}",
                hint="some clients write a space in a URL as +; choose a name that differs in another character",
            )


def location_of(state: CatalogState, namespace: Namespace) -> str | None:
    """The `location` of a namespace: the folder of its tables."""
    properties = state.get(key_of("n", namespace[:-1], namespace[-1])) if namespace else None
    return properties.get("location") if isinstance(properties, Mapping) else None


def is_empty(state: CatalogState, namespace: Namespace) -> bool:
    """Whether a namespace holds nothing."""
    kinds: tuple[Kind, ...] = ("n", "t", "v")
    return not any(next(state.keys_under(children(kind, namespace)), None) for kind in kinds)


def reserve(state: CatalogState, roots: Iterable[str], own: Sequence[str] = ()) -> tuple[Change, ...]:
    """Reserve folders for a table; it has those in `own` already.

    Raises: Invalid, if one overlaps with another's. Upper and lower case are the same: some stores ignore them in the
    policies of credentials (SeaweedFS 4.48 does).
    """
    wanted = [root for root in dict.fromkeys(roots) if root not in own]
    for root in wanted:
        taken = _taken(state, root, {*own})
        if taken is not None:
            raise Invalid(
                f"the location {root!r} overlaps with {taken!r}, which belongs to another table",
                hint="use a separate folder for each table, or leave the location out",
            )
    return tuple(Change(f"{LIVE}/{root}", 1) for root in wanted)


def check_not_of_others(state: CatalogState, path: str, own: Sequence[str]) -> None:
    """Check that a file is in no folder of another table than that with the folders `own`.   Raises: Invalid."""
    other = _taken_in_same_case(state, path, {*own})
    if other is not None:
        raise Invalid(f"the file {path!r} is in the folder {other!r}, which belongs to another table")


def check_apart(state: CatalogState, roots: Sequence[str]) -> None:
    """Check that the folders of a table differ from those of others by more than upper and lower case.

    In tables of earlier versions `reserve` did not see to that.   Raises: Unsupported.
    """
    for root in roots:
        other = _taken_in_other_case(state, root, {*roots})
        if other is not None:
            raise Unsupported(
                f"the folder {root!r} overlaps with {other!r}, which belongs to another table, but for upper and lower "
                "case; a store may ignore that in policies",
                hint="use remote signing for this table",
            )


def free_in(state: CatalogState) -> Callable[[str], bool]:
    """A function that tells whether a folder belongs to no table in this state."""
    return lambda root: _taken(state, root, set()) is None


def overlapping(owners: Sequence[Sequence[str]]) -> tuple[str, str] | None:
    """Two equal or nested folders of different owners; None if there are none."""
    owner_of: dict[str, int] = {}
    for owner, roots in enumerate(owners):
        for root in map(folded, roots):
            if owner_of.setdefault(root, owner) != owner:
                return root, root
    for root, owner in owner_of.items():
        for above in _above(root):
            if owner_of.get(above, owner) != owner:
                return above, root
    return None


def _above(root: str) -> list[str]:
    """The folder and its ancestors, the outermost first."""
    parts = root.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _taken(state: CatalogState, root: str, own: set[str]) -> str | None:
    """A folder of another table that is equal to this one, contains it, or is inside it; whatever the case is."""
    found = _taken_in_same_case(state, root, own)
    return found if found is not None else _taken_in_other_case(state, root, own)


def _taken_in_other_case(state: CatalogState, root: str, own: set[str]) -> str | None:
    name = folded(root)
    if name != root and (found := _taken_in_same_case(state, name, own)) is not None:
        return found
    prefixes = (*(f"{above}{MARK}" for above in _above(name)), f"{name}/")
    others = (other for prefix in prefixes for other in state.cased_folders(prefix) if other not in own)
    return next(others, None)


def _taken_in_same_case(state: CatalogState, root: str, own: set[str]) -> str | None:
    kinds = [kind for kind in (LIVE, PURGED) if next(state.keys_under(f"{kind}/"), None)]
    for above in _above(root):
        if above not in own and any(f"{kind}/{above}" in state for kind in kinds):
            return above
    for kind in kinds:
        for key in state.keys_under(f"{kind}/{root}/"):
            if key[2:] not in own:
                return key[2:]
    return None


class NoSuchNamespace(Missing):
    """There is no namespace of that name."""

    default_hint = "check the name, or create the namespace first; each level of a nested one is created separately"


class NoSuchTable(Missing):
    """There is no table of that name."""

    default_hint = "check the name; `limpet catalog log` shows what was dropped or renamed"


class NoSuchView(Missing):
    """There is no view of that name."""

    default_hint = "check the name; `limpet catalog log` shows what was dropped or renamed"


class AlreadyExists(Conflict):
    """A namespace, table or view of that name exists."""

    default_hint = "choose another name, or drop what is there first"


class NamespaceNotEmpty(Conflict):
    """The namespace is not empty."""

    default_hint = "drop what it holds first"


class CommitFailed(Conflict):
    """A requirement of the commit does not hold: another client has committed."""

    default_hint = "load the table again and commit again"

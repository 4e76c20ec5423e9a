"""Tables: decisions on the state.

What a client sends is parsed and every location in it checked before a decision is asked for (F29); a decision only
looks at the state, and at metadata in memory. New metadata goes into a file of its own, which is written along with the
ledger's batch: a reader that finds the name in the head finds the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limpet.catalog import iceberg
from limpet.catalog.entries import LIVE, PURGED, Content, Entry, check_free, entry_in, find, free_in, reserve
from limpet.catalog.leader import Decide, Grant
from limpet.catalog.names import Namespace, key_of, shown
from limpet.catalog.records import Change
from limpet.catalog.refusals import CommitFailed, NeedsMetadata
from limpet.catalog.state import State
from limpet.catalog.warehouse import Document, Warehouse
from limpet.errors import Invalid, Missing
from limpet.store.api import Put

__all__ = [
    "DROP",
    "PURGE",
    "Applied",
    "Draft",
    "Find",
    "Prepared",
    "applied",
    "commit",
    "create",
    "draft",
    "drop",
    "prepare",
    "purged",
    "register",
    "registered",
    "rename",
    "undrop",
]

METADATA_PATH = "write.metadata.path"
CREATE, COMMIT, DROP, PURGE = "create table", "commit", "drop table", "purge table"

Find = Callable[[str], Document | None]
"""A metadata file by path, if it is in memory."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A table that is not in the catalog yet: its metadata, and the folders that it wants."""

    document: Document
    entry: Entry


@dataclass(frozen=True, slots=True)
class Prepared:
    """A commit whose locations are checked. `root` is None if it leaves the table where it is."""

    namespace: Namespace
    name: str
    commit: iceberg.Commit
    root: str | None
    places: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Applied:
    """What a commit does to the state, and the file that it makes.

    `path` is the table's metadata after it, `reserved` the folders that it makes the table's own.
    """

    changes: tuple[Change, ...]
    writes: tuple[Put, ...]
    path: str
    reserved: tuple[str, ...] = ()


def draft(
    warehouse: Warehouse, known: State | None, namespace: Namespace, name: str, request: Mapping[str, Any]
) -> Draft:
    """The table that a client asks to create; `known` is what is known of the others' folders.   Raises: Invalid."""
    properties = request.get("properties") or {}
    if not isinstance(properties, Mapping):
        raise Invalid("properties must be an object")
    places = warehouse.check_properties(properties)
    given = request.get("location")
    free = free_in(known)
    root = warehouse.new_root(namespace, name, free) if given is None else warehouse.root_of(given)
    document = iceberg.new_table(request, warehouse.location(root), warehouse.new_uuid(), _now_ms(warehouse))
    path = warehouse.new_file(places.get(METADATA_PATH, f"{root}/metadata"), None)
    return Draft(document, Entry(root, path, _outside(root, places.values())))


def create(warehouse: Warehouse, namespace: Namespace, name: str, new: Draft) -> Decide:
    """Create a table. The result of this and of every commit is the path of its metadata."""

    def decide(state: State) -> Grant:
        check_free(state, namespace, name)
        changes = reserve(state, new.entry.roots())
        put = warehouse.put_of(new.entry.path, new.document)
        return Grant(
            CREATE, (Change(key_of("t", namespace, name), new.entry.value()), *changes), new.entry.path, (put,)
        )

    return decide


def registered(warehouse: Warehouse, metadata_location: object) -> Draft:
    """A table whose metadata lies in the warehouse already.   Raises: Invalid.   Cost: 1 GET."""
    if not isinstance(metadata_location, str):
        raise Invalid("the metadata location must be a string")
    path = warehouse.file_of(metadata_location)
    try:
        document = warehouse.fetch(path)
    except Missing:
        raise Invalid(f"there is no metadata file {metadata_location!r}") from None
    table = iceberg.parse_table(document)
    for what, url in iceberg.files_of(document):
        warehouse.check_file(url, what)
    places = warehouse.check_properties(table.properties)
    root = warehouse.root_of(table.location)
    return Draft(document, Entry(root, path, _outside(root, places.values())))


def register(namespace: Namespace, name: str, new: Draft, *, overwrite: bool) -> Decide:
    """Enter a table whose metadata is there; with `overwrite` in place of the one of that name."""

    def decide(state: State) -> Grant:
        old = find(state, "t", namespace, name) if overwrite else None
        if old is None:
            check_free(state, namespace, name)
        own = old.roots() if old else ()
        more = tuple(root for root in dict.fromkeys((*own, *new.entry.more)) if root != new.entry.root)
        entry = Entry(new.entry.root, new.entry.path, more)
        changes = reserve(state, entry.roots(), own)
        return Grant("register table", (Change(key_of("t", namespace, name), entry.value()), *changes), entry.path)

    return decide


def prepare(warehouse: Warehouse, namespace: Namespace, name: str, request: Mapping[str, Any]) -> Prepared:
    """A client's commit, with every location in it checked.   Raises: Invalid."""
    parsed = iceberg.parse_commit(request)
    for what, url in parsed.files:
        warehouse.check_file(url, what)
    places = warehouse.check_properties(parsed.properties)
    root = None if parsed.location is None else warehouse.root_of(parsed.location)
    return Prepared(namespace, name, parsed, root, places)


def commit(warehouse: Warehouse, prepared: Prepared, in_memory: Find) -> Decide:
    """Change a table, or create one that was staged."""

    def decide(state: State) -> Grant:
        done = applied(state, warehouse, prepared, in_memory)
        return Grant(CREATE if prepared.commit.creates else COMMIT, done.changes, done.path, done.writes)

    return decide


def applied(state: State, warehouse: Warehouse, prepared: Prepared, in_memory: Find) -> Applied:
    """What a commit does to the state.

    Raises: NoSuchTable; NoSuchNamespace; CommitFailed; Invalid; NeedsMetadata.
    """
    if prepared.commit.creates:
        return _created(state, warehouse, prepared)
    old = entry_in(state, "t", prepared.namespace, prepared.name)
    document = in_memory(old.path)
    if document is None:
        raise NeedsMetadata((old.path,))
    new = iceberg.apply(document, prepared.commit, warehouse.location(old.path), _now_ms(warehouse))
    if new is None:
        return Applied((), (), old.path)
    root = old.root if prepared.root is None else prepared.root
    more = _outside(root, (*old.roots(), *prepared.places.values()), keep=old.more)
    path = warehouse.new_file(_metadata_folder(warehouse, new, root), old.path)
    entry = Entry(root, path, more)
    reserved = reserve(state, entry.roots(), old.roots()) if entry.roots() != old.roots() else ()
    change = Change(key_of("t", prepared.namespace, prepared.name), entry.value())
    added = tuple(root for root in entry.roots() if root not in old.roots())
    return Applied((change, *reserved), (warehouse.put_of(path, new),), path, added)


def _created(state: State, warehouse: Warehouse, prepared: Prepared) -> Applied:
    if find(state, "t", prepared.namespace, prepared.name) is not None:
        raise CommitFailed(f"there is a table {shown(prepared.namespace, prepared.name)!r} already")
    check_free(state, prepared.namespace, prepared.name)
    root = prepared.root or warehouse.new_root(prepared.namespace, prepared.name, free_in(state))
    document = iceberg.create(prepared.commit, warehouse.location(root), warehouse.new_uuid())
    path = warehouse.new_file(_metadata_folder(warehouse, document, root), None)
    entry = Entry(root, path, _outside(root, prepared.places.values()))
    changes = (
        Change(key_of("t", prepared.namespace, prepared.name), entry.value()),
        *reserve(state, entry.roots()),
    )
    return Applied(changes, (warehouse.put_of(path, document),), path, entry.roots())


def drop(namespace: Namespace, name: str, *, purge: bool) -> Decide:
    """Take a table out of the catalog. Its result is the entry; with `purge` its folders wait to be emptied."""

    def decide(state: State) -> Grant:
        old = entry_in(state, "t", namespace, name)
        changes = [Change(key_of("t", namespace, name), None)]
        changes += [Change(f"{LIVE}/{root}", None) for root in old.roots()]
        if purge:
            changes += [Change(f"{PURGED}/{root}", 1) for root in old.roots()]
        return Grant(PURGE if purge else DROP, tuple(changes), old.value())

    return decide


def purged(roots: Sequence[str]) -> Decide:
    """Folders that are empty now may be used again."""

    def decide(state: State) -> Grant:
        there = [root for root in roots if state.get(f"{PURGED}/{root}") is not None]
        return Grant("purged", tuple(Change(f"{PURGED}/{root}", None) for root in there))

    return decide


def undrop(kind: Content, namespace: Namespace, name: str, entry: Entry) -> Decide:
    """Put a table (or view) back that was dropped and not purged, if its name and its folders are free."""

    def decide(state: State) -> Grant:
        check_free(state, namespace, name)
        change = Change(key_of(kind, namespace, name), entry.value())
        return Grant("undrop", (change, *reserve(state, entry.roots())), entry.path)

    return decide


def rename(kind: Content, source: tuple[Namespace, str], target: tuple[Namespace, str]) -> Decide:
    """Give a table (or view) another name or namespace; its files stay where they are."""

    def decide(state: State) -> Grant:
        entry = entry_in(state, kind, *source)
        check_free(state, *target)
        return Grant("rename", (Change(key_of(kind, *source), None), Change(key_of(kind, *target), entry.value())))

    return decide


def _outside(root: str, places: Iterable[str], keep: Sequence[str] = ()) -> tuple[str, ...]:
    """Folders of a table besides `root`: those of `keep`, and of `places` those that do not lie in one already."""
    found = [place for place in keep if place != root]
    for place in places:
        if not any(f"{place}/".startswith(f"{known}/") for known in (root, *found)):
            found.append(place)
    return tuple(found)


def _metadata_folder(warehouse: Warehouse, document: Document, root: str) -> str:
    url = document.json()["properties"].get(METADATA_PATH, "").rstrip("/")
    return url.removeprefix(f"{warehouse.url}/") if url.startswith(f"{warehouse.url}/") else f"{root}/metadata"


def _now_ms(warehouse: Warehouse) -> int:
    return int(warehouse.runtime.wall().timestamp() * 1000)

"""Tables: decisions on the state.

What a client sends is parsed, every location in it checked (F29) and the new metadata worked out before a decision is
asked for; a decision looks at the state. New metadata goes into a file of its own, which is written along with the
ledger's batch: a reader that finds the name in the head finds the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limpet.catalog import iceberg
from limpet.catalog.entries import (
    LIVE,
    PURGED,
    Content,
    Entry,
    check_free,
    entry_in,
    find,
    free_in,
    location_of,
    reserve,
)
from limpet.catalog.leader import Decide, Grant
from limpet.catalog.loaded import Ahead
from limpet.catalog.names import Namespace, key_of, shown
from limpet.catalog.records import Change
from limpet.catalog.refusals import AlreadyExists, CommitFailed, NeedsMetadata
from limpet.catalog.state import State
from limpet.catalog.warehouse import Document, Warehouse
from limpet.errors import Invalid, LimpetError, Missing
from limpet.store.api import Put

METADATA_PATH = "write.metadata.path"
CREATE, COMMIT, DROP, PURGE = "create table", "commit", "drop table", "purge table"

ROUNDS_AHEAD = 3
"""After so many rounds in which others were first, the leader itself works out a commit of few updates."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A table that is not in the catalog yet: its metadata, and the folders that it wants."""

    document: Document
    entry: Entry


@dataclass(frozen=True, slots=True)
class Prepared:
    """A commit whose locations are checked. `root` is None if it leaves the table where it is. `created` is the
    metadata of a table that it creates, or why that cannot be: the leader says so, unless there is a table already."""

    namespace: Namespace
    name: str
    commit: iceberg.Commit
    root: str | None
    places: Mapping[str, str]
    created: Document | LimpetError | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What a commit does to the state, and the file that it makes.

    `path` is the table's metadata after it, `reserved` the folders that it makes the table's own.
    """

    changes: tuple[Change, ...]
    writes: tuple[Put, ...]
    path: str
    reserved: tuple[str, ...] = ()


def draft(warehouse: Warehouse, known: State, namespace: Namespace, name: str, request: Mapping[str, Any]) -> Draft:
    """The table that a client asks to create; `known` is what is known of the others' folders.   Raises: Invalid."""
    properties = request.get("properties") or {}
    if not isinstance(properties, Mapping):
        raise Invalid("properties must be an object")
    places = warehouse.check_properties(properties)
    given = request.get("location")
    root = new_root(warehouse, known, namespace, name) if given is None else warehouse.root_of(given)
    document = iceberg.new_table(request, warehouse.location(root), warehouse.new_uuid(), _now_ms(warehouse))
    path = warehouse.new_file(places.get(METADATA_PATH, f"{root}/metadata"), None, document)
    return Draft(document, Entry(root, path, outside(root, places.values())))


def create(warehouse: Warehouse, namespace: Namespace, name: str, new: Draft) -> Decide:
    """Create a table. The result of this and of every commit is the path of its metadata."""

    def decide(state: State) -> Grant:
        check_free(state, namespace, name, "t")
        changes = reserve(state, new.entry.roots())
        put = warehouse.put_of(new.entry.path, new.document)
        return Grant(
            CREATE, (Change(key_of("t", namespace, name), new.entry.value()), *changes), new.entry.path, (put,)
        )

    return decide


def registered(warehouse: Warehouse, metadata_location: object) -> Draft:
    """A table whose metadata lies in the warehouse already.   Raises: Invalid.   Cost: 1 GET.

    What was parsed and checked is written to a metadata file of ours: the client's own file may change later, and
    other programs may read things in it that were not checked.
    """
    if not isinstance(metadata_location, str):
        raise Invalid("the metadata location must be a string")
    path = warehouse.file_of(metadata_location)
    try:
        foreign = warehouse.fetch_foreign(path)
    except Missing:
        raise Invalid(f"there is no metadata file {metadata_location!r}") from None
    table = iceberg.parse_table(foreign)
    iceberg.check_table(table)
    for what, url in iceberg.files_of(foreign):
        warehouse.check_file(url, what)
    places = warehouse.check_properties(table.properties)
    root = warehouse.root_of(table.location)
    document = iceberg.encoded(table.model_copy(update={"location": warehouse.location(root)}))
    own = warehouse.new_file(places.get(METADATA_PATH, f"{root}/metadata"), path, document)
    return Draft(document, Entry(root, own, outside(root, places.values())))


def register(warehouse: Warehouse, namespace: Namespace, name: str, new: Draft, *, overwrite: bool) -> Decide:
    """Enter a table whose metadata is there; with `overwrite` in place of the one of that name."""

    def decide(state: State) -> Grant:
        old = find(state, "t", namespace, name) if overwrite else None
        if old is None:
            check_free(state, namespace, name, "t")
        own = old.roots() if old else ()
        more = tuple(root for root in dict.fromkeys((*own, *new.entry.more)) if root != new.entry.root)
        entry = Entry(new.entry.root, new.entry.path, more)
        changes = reserve(state, entry.roots(), own)
        put = warehouse.put_of(entry.path, new.document)
        named = Change(key_of("t", namespace, name), entry.value())
        return Grant("register table", (named, *changes), entry.path, (put,))

    return decide


def prepare(
    warehouse: Warehouse, known: Callable[[], State], namespace: Namespace, name: str, request: Mapping[str, Any]
) -> Prepared:
    """A client's commit, with every location in it checked; if it creates a table, the metadata of that.

    `known` tells what is known of others' folders, if a new one is needed.
    Raises: Invalid.
    """
    parsed = iceberg.parse_commit(request, warehouse.canonical)
    for what, url in parsed.files:
        warehouse.check_file(url, what)
    places = warehouse.check_properties(parsed.properties)
    root = None if parsed.location is None else warehouse.root_of(parsed.location)
    if not parsed.creates:
        return Prepared(namespace, name, parsed, root, places)
    root = root or new_root(warehouse, known(), namespace, name)
    created: Document | LimpetError
    try:
        created = iceberg.create(parsed, warehouse.location(root), warehouse.new_uuid())
    except LimpetError as error:
        created = error
    return Prepared(namespace, name, parsed, root, places, created)


def needs_of(warehouse: Warehouse, prepared: Prepared, path: str) -> dict[str, Callable[[Document], Document | None]]:
    """How a commit is worked out on the metadata at a path: for `Ahead.work_out`."""
    location = warehouse.location(path)
    return {path: lambda document: iceberg.apply(document, prepared.commit, location, _now_ms(warehouse))}


def commit(warehouse: Warehouse, prepared: Prepared, ahead: Ahead) -> Decide:
    """Change a table, or create one that was staged."""

    def decide(state: State) -> Grant:
        done = applied(state, warehouse, prepared, ahead)
        return Grant(CREATE if prepared.commit.creates else COMMIT, done.changes, done.path, done.writes)

    return decide


def applied(state: State, warehouse: Warehouse, prepared: Prepared, ahead: Ahead) -> Applied:
    """What a commit does to the state.

    Raises: NoSuchTable; NoSuchNamespace; CommitFailed; Invalid; NeedsMetadata.
    """
    if prepared.created is not None:
        return _created(state, warehouse, prepared, prepared.created)
    old = entry_in(state, "t", prepared.namespace, prepared.name)
    new = _after(warehouse, prepared, ahead, old.path)
    if new is None:
        return Applied((), (), old.path)
    root = old.root if prepared.root is None else prepared.root
    more = outside(root, (*old.roots(), *prepared.places.values()), keep=old.more)
    path = warehouse.new_file(metadata_folder(warehouse, new, root), old.path, new)
    entry = Entry(root, path, more)
    reserved = reserve(state, entry.roots(), old.roots()) if entry.roots() != old.roots() else ()
    change = Change(key_of("t", prepared.namespace, prepared.name), entry.value())
    added = tuple(root for root in entry.roots() if root not in old.roots())
    return Applied((change, *reserved), (warehouse.put_of(path, new),), path, added)


def _after(warehouse: Warehouse, prepared: Prepared, ahead: Ahead, path: str) -> Document | None:
    """The metadata after a commit; None if it changes nothing.   Raises: what it is refused with; NeedsMetadata.

    If it was worked out on other metadata than the table has now, those before it in the group were first. Only what
    takes no time is worked out here, in the leader's thread.
    """
    if ahead.has(path):
        return ahead.result(path)
    document = ahead.find(path)
    needs = needs_of(warehouse, prepared, path)
    if document is not None:
        if prepared.commit.is_light and document.is_plain:
            return needs[path](document)
        if prepared.commit.is_short and ahead.rounds >= ROUNDS_AHEAD:
            return needs[path](document)
    raise NeedsMetadata(needs)


def _created(state: State, warehouse: Warehouse, prepared: Prepared, document: Document | LimpetError) -> Applied:
    if find(state, "t", prepared.namespace, prepared.name) is not None:
        raise CommitFailed(f"Requirement failed: table already exists: {shown(prepared.namespace, prepared.name)}")
    check_free(state, prepared.namespace, prepared.name, "t")
    if isinstance(document, LimpetError):
        raise document
    assert prepared.root is not None
    root = prepared.root
    path = warehouse.new_file(metadata_folder(warehouse, document, root), None, document)
    entry = Entry(root, path, outside(root, prepared.places.values()))
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
        check_free(state, namespace, name, kind)
        change = Change(key_of(kind, namespace, name), entry.value())
        return Grant("undrop", (change, *reserve(state, entry.roots())), entry.path)

    return decide


def rename(kind: Content, source: tuple[Namespace, str], target: tuple[Namespace, str]) -> Decide:
    """Give a table (or view) another name or namespace; its files stay where they are."""

    def decide(state: State) -> Grant:
        entry = entry_in(state, kind, *source)
        kinds: tuple[tuple[Content, str], ...] = (("t", "Table"), ("v", "View"))
        for other, what in kinds:
            if find(state, other, *target) is not None:
                raise AlreadyExists(f"Cannot rename {shown(*source)} to {shown(*target)}. {what} already exists")
        check_free(state, *target, leaving=key_of(kind, *source))
        return Grant("rename", (Change(key_of(kind, *source), None), Change(key_of(kind, *target), entry.value())))

    return decide


def outside(root: str, places: Iterable[str], keep: Sequence[str] = ()) -> tuple[str, ...]:
    """Folders of a table besides `root`: those of `keep`, and of `places` those that do not lie in one already."""
    found = [place for place in keep if place != root]
    for place in places:
        if not any(f"{place}/".startswith(f"{known}/") for known in (root, *found)):
            found.append(place)
    return tuple(found)


def metadata_folder(warehouse: Warehouse, document: Document, root: str) -> str:
    """Where the metadata files of a table or view lie: where its properties say, else in its own folder."""
    url = warehouse.canonical((document.json().get("properties") or {}).get(METADATA_PATH, "")).rstrip("/")
    return url.removeprefix(f"{warehouse.url}/") if url.startswith(f"{warehouse.url}/") else f"{root}/metadata"


def new_root(warehouse: Warehouse, known: State, namespace: Namespace, name: str) -> str:
    """The folder for a table or view that names none: in the location of its namespace, if that has one."""
    return warehouse.new_root(namespace, name, free_in(known), location_of(known, namespace))


def _now_ms(warehouse: Warehouse) -> int:
    return int(warehouse.runtime.wall().timestamp() * 1000)

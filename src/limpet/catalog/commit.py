"""What requests do to the catalog, in two halves: a request is prepared, then decided on the state.

Preparing happens in the thread of the client's request: it parses, checks every location (F29), draws ids and folders,
takes the time, reads metadata and works out the new metadata. A decision (`Decide`) runs in the leader's thread. It is
a function of the state and of what was prepared, and it grants (`Grant`), refuses (raises), or says which metadata the
request must be worked out on first (`NeedsMetadata`). New metadata goes into a file with a new name, which is written
along with the ledger's batch: a reader that finds the name in the head finds the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limpet import records
from limpet.catalog import iceberg
from limpet.catalog.iceberg import views
from limpet.catalog.leader import Decide, Grant, NeedsMetadata
from limpet.catalog.records import CREATE, DROP, DROP_VIEW, PURGE, Change
from limpet.catalog.state import (
    LIVE,
    PURGED,
    AlreadyExists,
    CatalogState,
    CommitFailed,
    Content,
    Entry,
    Namespace,
    NamespaceNotEmpty,
    check_alike,
    check_free,
    check_name,
    check_namespace,
    check_namespace_exists,
    entry_in,
    find_entry,
    free_in,
    is_empty,
    key_of,
    location_of,
    overlapping,
    reserve,
    shown,
)
from limpet.catalog.warehouse import Document, Warehouse, property_text
from limpet.errors import Invalid, LimpetError, Missing
from limpet.store.api import Put

METADATA_PATH = "write.metadata.path"
PROPERTIES_BYTES_MAX = 64 << 10
TABLES_MAX = 1000
UPDATES_MAX = 10_000
ROUNDS_AHEAD = 3
"""After so many rounds in which others were first, the leader itself works out a commit of few updates."""

Needs = Mapping[str, Callable[[Document], Document | None]]
"""By the path of a metadata file, the function that works a request out on it."""


# ---- namespaces ----


def namespace_key(namespace: Namespace) -> str:
    """The key of a namespace in the state. Each level of a nested one is a namespace with properties."""
    return key_of("n", namespace[:-1], namespace[-1])


def check_namespace_properties(warehouse: Warehouse, properties: object) -> dict[str, str]:
    """What a client wants to set, as text.   Raises: Invalid, also for a location outside the warehouse."""
    if not isinstance(properties, Mapping):
        raise Invalid("properties must be an object")
    warehouse.check_properties(properties)
    checked = {name: property_text(name, value) for name, value in properties.items()}
    if len(records.plain_bytes(checked, what="properties")) > PROPERTIES_BYTES_MAX:
        raise Invalid(f"the properties of a namespace have at most {PROPERTIES_BYTES_MAX} bytes")
    return checked


def properties_of(state: CatalogState, namespace: Namespace) -> dict[str, str]:
    """The properties of a namespace.   Raises: NoSuchNamespace."""
    check_namespace_exists(state, namespace)
    found: dict[str, str] = state.get(namespace_key(namespace))
    return found


def create_namespace(namespace: Namespace, properties: Mapping[str, str]) -> Decide:
    """Create a namespace; its parent is there already."""

    def decide(state: CatalogState) -> Grant:
        check_namespace_exists(state, namespace[:-1])
        if state.get(namespace_key(namespace)) is not None:
            raise AlreadyExists(f"Namespace already exists: {shown(namespace)}")
        check_alike(state, "n", namespace[:-1], namespace[-1])
        return Grant("create namespace", (Change(namespace_key(namespace), properties),))

    return decide


def drop_namespace(namespace: Namespace) -> Decide:
    """Drop a namespace that holds nothing."""

    def decide(state: CatalogState) -> Grant:
        check_namespace_exists(state, namespace)
        if not is_empty(state, namespace):
            raise NamespaceNotEmpty(f"Namespace is not empty: {shown(namespace)}")
        return Grant("drop namespace", (Change(namespace_key(namespace), None),))

    return decide


def update_namespace(namespace: Namespace, removals: Sequence[str], updates: Mapping[str, str]) -> Decide:
    """Set and remove properties. Its result says which were set, which removed, and which were not there."""

    def decide(state: CatalogState) -> Grant:
        old = properties_of(state, namespace)
        removed = [name for name in removals if name in old]
        new = {**{name: value for name, value in old.items() if name not in removals}, **updates}
        if len(records.encode(new)) > PROPERTIES_BYTES_MAX:
            raise Invalid(f"the properties of a namespace have at most {PROPERTIES_BYTES_MAX} bytes")
        missing = [name for name in removals if name not in old]
        result: dict[str, Any] = {"updated": [*updates], "removed": removed, "missing": missing}
        return Grant("set namespace properties", (Change(namespace_key(namespace), new),), result)

    return decide


# ---- new tables and views ----


@dataclass(frozen=True, slots=True)
class Draft:
    """A table or view that is not in the catalog yet: its metadata, and the folders that it wants."""

    document: Document
    entry: Entry


def draft_table(
    warehouse: Warehouse, known: CatalogState, namespace: Namespace, name: str, request: Mapping[str, Any]
) -> Draft:
    """The table that a client asks to create; `known` tells which folders other tables have.   Raises: Invalid."""
    properties = request.get("properties") or {}
    if not isinstance(properties, Mapping):
        raise Invalid("properties must be an object")
    places = warehouse.check_properties(properties)
    root = _root(warehouse, known, namespace, name, request.get("location"))
    document = iceberg.new_table(request, warehouse.location(root), warehouse.new_uuid(), warehouse.now_ms())
    return _draft(warehouse, root, places, document)


def draft_view(
    warehouse: Warehouse, known: CatalogState, namespace: Namespace, name: str, request: Mapping[str, Any]
) -> Draft:
    """The view that a client asks to create; `known` tells which folders others have.   Raises: Invalid."""
    new = views.parse_new(request, warehouse.now_ms())
    places = warehouse.check_properties(new["properties"])
    root = _root(warehouse, known, namespace, name, request.get("location"))
    document = views.created(new, warehouse.location(root), warehouse.new_uuid())
    return _draft(warehouse, root, places, document)


def _draft(warehouse: Warehouse, root: str, places: Mapping[str, str], document: Document) -> Draft:
    path = warehouse.new_file(places.get(METADATA_PATH, f"{root}/metadata"), None, document)
    return Draft(document, Entry(root, path, _outside(root, places.values())))


def draft_registered(warehouse: Warehouse, metadata_location: object) -> Draft:
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
    copy = warehouse.new_file(places.get(METADATA_PATH, f"{root}/metadata"), path, document)
    return Draft(document, Entry(root, copy, _outside(root, places.values())))


def create(kind: Content, warehouse: Warehouse, namespace: Namespace, name: str, new: Draft) -> Decide:
    """Create a table or view. The result of this and of every commit is the path of its metadata."""

    def decide(state: CatalogState) -> Grant:
        check_free(state, namespace, name, kind)
        changes = (Change(key_of(kind, namespace, name), new.entry.value()), *reserve(state, new.entry.roots()))
        put = warehouse.put_of(new.entry.path, new.document)
        return Grant(CREATE if kind == "t" else "create view", changes, new.entry.path, (put,))

    return decide


def register_table(warehouse: Warehouse, namespace: Namespace, name: str, new: Draft, *, overwrite: bool) -> Decide:
    """Enter a table whose metadata is there; with `overwrite` in place of the one of that name."""

    def decide(state: CatalogState) -> Grant:
        old = find_entry(state, "t", namespace, name) if overwrite else None
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


# ---- commits ----


class WorkedMetadata:
    """The metadata after one request, by the path of the metadata before it: worked out before the leader is asked.

    The leader only looks whether a table still has the metadata that this began with. So a commit that takes long holds
    up no other client (C4).
    """

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._found: dict[str, Document] = {}
        self._results: dict[str, Document | LimpetError | None] = {}
        self.rounds = 0
        """How often the tables had changed meanwhile."""

    def find(self, path: str) -> Document | None:
        """A metadata file, if it is in memory: what was read stays until the answer, whatever the cache does."""
        return self._found.get(path) or self._warehouse.cached(path)

    def has(self, path: str) -> bool:
        """Whether the request was worked out on this metadata."""
        return path in self._results

    def result(self, path: str) -> Document | None:
        """The metadata after the request; None if nothing changes.   Raises: what the request is refused with."""
        result = self._results[path]
        if isinstance(result, LimpetError):
            raise result
        return result

    def work_out(self, needs: Needs) -> None:
        """Work the request out on metadata. A refusal is kept for the leader: the request may be granted already.

        Raises: Corrupt; Unavailable.   Cost: 1 GET each, unless in memory.
        """
        for path, apply in needs.items():
            document = self._found[path] = self.find(path) or self._warehouse.read(path)
            try:
                made = apply(document)
            except LimpetError as error:
                self._results[path] = error
                continue
            if made is not None:
                made.digest()
            self._results[path] = made


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """A commit to one table whose locations are checked, and its time. `root` is None if it leaves the table where it
    is. `created` is the metadata of a table that it creates, or why that cannot be: the leader says so, unless there is
    a table already."""

    namespace: Namespace
    name: str
    commit: iceberg.TableCommit
    root: str | None
    places: Mapping[str, str]
    now_ms: int
    created: Document | LimpetError | None = None

    def needs(self, warehouse: Warehouse, path: str) -> Needs:
        """How it is worked out on the metadata at a path."""
        location = warehouse.location(path)
        return {path: lambda document: iceberg.apply(document, self.commit, location, self.now_ms)}


@dataclass(frozen=True, slots=True)
class _TableChange:
    """What a commit does to the state, and the file that it makes.

    `path` is the table's metadata after it, `reserved` the folders that it takes for the table.
    """

    changes: tuple[Change, ...]
    writes: tuple[Put, ...]
    path: str
    reserved: tuple[str, ...] = ()


def prepare_commit(
    warehouse: Warehouse, known: Callable[[], CatalogState], namespace: Namespace, name: str, request: Mapping[str, Any]
) -> PreparedCommit:
    """A client's commit, with every location in it checked; if it creates a table, the metadata of that.

    `known` tells which folders others have, if a new one is needed.
    Raises: Invalid.
    """
    parsed = iceberg.parse_commit(request, warehouse.canonical)
    for what, url in parsed.files:
        warehouse.check_file(url, what)
    places = warehouse.check_properties(parsed.properties)
    root = None if parsed.location is None else warehouse.root_of(parsed.location)
    if not parsed.creates:
        return PreparedCommit(namespace, name, parsed, root, places, warehouse.now_ms())
    root = root or _root(warehouse, known(), namespace, name)
    created: Document | LimpetError
    try:
        created = iceberg.create(parsed, warehouse.location(root), warehouse.new_uuid())
    except LimpetError as error:
        created = error
    return PreparedCommit(namespace, name, parsed, root, places, warehouse.now_ms(), created)


def prepare_transaction(
    warehouse: Warehouse, known: Callable[[], CatalogState], changes: object
) -> tuple[PreparedCommit, ...]:
    """The changes of several tables that a client asks for, each of another one.   Raises: Invalid."""
    if not isinstance(changes, Sequence) or isinstance(changes, str) or not changes:
        raise Invalid("table-changes must be a list of at least one change")
    if len(changes) > TABLES_MAX:
        raise Invalid(f"a transaction changes at most {TABLES_MAX} tables, this one {len(changes)}")
    named: dict[tuple[Namespace, str], Mapping[str, Any]] = {}
    updates = 0
    for change in changes:
        identifier = change.get("identifier") if isinstance(change, Mapping) else None
        if not isinstance(identifier, Mapping):
            raise Invalid("each table change must name its table by an identifier")
        namespace = check_namespace(identifier.get("namespace") or ())
        name = namespace, check_name(identifier.get("name"), "table name")
        if name in named:
            raise Invalid(f"the transaction names {shown(*name)!r} twice", hint="put its updates into one change")
        named[name] = change
        updates += len(iceberg.listed(change, "updates", UPDATES_MAX))
    if updates > UPDATES_MAX:
        raise Invalid(f"the transaction has {updates} updates; at most {UPDATES_MAX} are taken at once")
    return tuple(prepare_commit(warehouse, known, *name, change) for name, change in named.items())


def commit_table(warehouse: Warehouse, prepared: PreparedCommit, worked: WorkedMetadata) -> Decide:
    """Change a table, or create one that was staged."""

    def decide(state: CatalogState) -> Grant | NeedsMetadata:
        done = _changed(state, warehouse, prepared, worked)
        if isinstance(done, NeedsMetadata):
            return done
        return Grant(CREATE if prepared.commit.creates else "commit", done.changes, done.path, done.writes)

    return decide


def commit_transaction(warehouse: Warehouse, prepared: Sequence[PreparedCommit], worked: WorkedMetadata) -> Decide:
    """Change several tables, or create staged ones: all of it is published, or nothing."""

    def decide(state: CatalogState) -> Grant | NeedsMetadata:
        done: list[_TableChange] = []
        needs: dict[str, Callable[[Any], Any]] = {}
        for each in prepared:
            found = _changed(state, warehouse, each, worked)
            if isinstance(found, NeedsMetadata):
                needs |= found.needs
            else:
                done.append(found)
        if needs:
            return NeedsMetadata(needs)
        clash = overlapping([each.reserved for each in done])
        if clash is not None:
            raise Invalid(f"the locations {clash[0]!r} and {clash[1]!r} of the transaction overlap")
        changes = tuple(change for each in done for change in each.changes)
        return Grant("transaction", changes, None, tuple(put for each in done for put in each.writes))

    return decide


def _changed(
    state: CatalogState, warehouse: Warehouse, prepared: PreparedCommit, worked: WorkedMetadata
) -> _TableChange | NeedsMetadata:
    """What a commit does to the state.   Raises: NoSuchTable; NoSuchNamespace; CommitFailed; Invalid."""
    if prepared.created is not None:
        return _created(state, warehouse, prepared, prepared.created)
    old = entry_in(state, "t", prepared.namespace, prepared.name)
    new = _after(warehouse, prepared, worked, old.path)
    if isinstance(new, NeedsMetadata):
        return new
    if new is None:
        return _TableChange((), (), old.path)
    entry = _moved(warehouse, old, new, prepared.root, prepared.places)
    reserved = reserve(state, entry.roots(), old.roots()) if entry.roots() != old.roots() else ()
    change = Change(key_of("t", prepared.namespace, prepared.name), entry.value())
    added = tuple(root for root in entry.roots() if root not in old.roots())
    return _TableChange((change, *reserved), (warehouse.put_of(entry.path, new),), entry.path, added)


def _after(
    warehouse: Warehouse, prepared: PreparedCommit, worked: WorkedMetadata, path: str
) -> Document | NeedsMetadata | None:
    """The metadata after a commit; None if it changes nothing.   Raises: what it is refused with.

    If it was worked out on other metadata than the table has now, those before it in the group were first. Only what
    takes no time is worked out here, in the leader's thread.
    """
    if worked.has(path):
        return worked.result(path)
    document, needs = worked.find(path), prepared.needs(warehouse, path)
    if document is not None:
        if prepared.commit.is_light and document.is_plain:
            return needs[path](document)
        if prepared.commit.is_short and worked.rounds >= ROUNDS_AHEAD:
            return needs[path](document)
    return NeedsMetadata(needs)


def _created(
    state: CatalogState, warehouse: Warehouse, prepared: PreparedCommit, document: Document | LimpetError
) -> _TableChange:
    if find_entry(state, "t", prepared.namespace, prepared.name) is not None:
        raise CommitFailed(f"Requirement failed: table already exists: {shown(prepared.namespace, prepared.name)}")
    check_free(state, prepared.namespace, prepared.name, "t")
    if isinstance(document, LimpetError):
        raise document
    assert prepared.root is not None
    root = prepared.root
    path = warehouse.new_file(_metadata_folder(warehouse, document, root), None, document)
    entry = Entry(root, path, _outside(root, prepared.places.values()))
    changes = (
        Change(key_of("t", prepared.namespace, prepared.name), entry.value()),
        *reserve(state, entry.roots()),
    )
    return _TableChange(changes, (warehouse.put_of(path, document),), path, entry.roots())


@dataclass(frozen=True, slots=True)
class PreparedView:
    """A replacement of a view: its parsed changes, where the view moves to, and the folders that its properties
    name."""

    changes: views.ViewChanges
    root: str | None
    places: Mapping[str, str]

    def needs(self, path: str) -> Needs:
        """How it is worked out on the metadata at a path."""
        return {path: lambda document: views.replaced(document, self.changes)}


def prepare_view(warehouse: Warehouse, request: Mapping[str, Any]) -> PreparedView:
    """The changes that a client asks for: all are known, and all locations inside.   Raises: Invalid."""
    changes, root = views.parse_changes(request, warehouse.now_ms()), None
    places: dict[str, str] = {}
    for update in changes.updates:
        if update["action"] == "set-location":
            root = warehouse.root_of(update["location"])
            update["location"] = warehouse.location(root)
        elif update["action"] == "set-properties":
            places |= warehouse.check_properties(update["updates"])
    return PreparedView(changes, root, places)


def replace_view(
    warehouse: Warehouse, namespace: Namespace, name: str, wanted: PreparedView, worked: WorkedMetadata
) -> Decide:
    """Change a view."""

    def decide(state: CatalogState) -> Grant | NeedsMetadata:
        old = entry_in(state, "v", namespace, name)
        if not worked.has(old.path):
            return NeedsMetadata(wanted.needs(old.path))
        new = worked.result(old.path)
        assert new is not None
        entry = _moved(warehouse, old, new, wanted.root, wanted.places)
        changes = (Change(key_of("v", namespace, name), entry.value()), *reserve(state, entry.roots(), old.roots()))
        return Grant("replace view", changes, entry.path, (warehouse.put_of(entry.path, new),))

    return decide


# ---- tables and views that are there ----


def drop(kind: Content, namespace: Namespace, name: str, *, purge: bool = False) -> Decide:
    """Take a table or view out of the catalog; its files stay. Its result is the entry, so that it can be put back.

    With `purge` the folders of a table wait to be emptied.
    """

    def decide(state: CatalogState) -> Grant:
        old = entry_in(state, kind, namespace, name)
        changes = [Change(key_of(kind, namespace, name), None)]
        changes += [Change(f"{LIVE}/{root}", None) for root in old.roots()]
        if purge:
            changes += [Change(f"{PURGED}/{root}", 1) for root in old.roots()]
        return Grant(DROP_VIEW if kind == "v" else PURGE if purge else DROP, tuple(changes), old.value())

    return decide


def release_folders(roots: Sequence[str]) -> Decide:
    """Let folders of purged tables be used again: they are empty now."""

    def decide(state: CatalogState) -> Grant:
        there = [root for root in roots if state.get(f"{PURGED}/{root}") is not None]
        return Grant("purged", tuple(Change(f"{PURGED}/{root}", None) for root in there))

    return decide


def undrop(kind: Content, namespace: Namespace, name: str, entry: Entry) -> Decide:
    """Put a table or view back that was dropped and not purged, if its name and its folders are free."""

    def decide(state: CatalogState) -> Grant:
        check_free(state, namespace, name, kind)
        change = Change(key_of(kind, namespace, name), entry.value())
        return Grant("undrop", (change, *reserve(state, entry.roots())), entry.path)

    return decide


def rename(kind: Content, source: tuple[Namespace, str], target: tuple[Namespace, str]) -> Decide:
    """Give a table or view another name or namespace; its files stay where they are."""

    def decide(state: CatalogState) -> Grant:
        entry = entry_in(state, kind, *source)
        kinds: tuple[tuple[Content, str], ...] = (("t", "Table"), ("v", "View"))
        for other, what in kinds:
            if find_entry(state, other, *target) is not None:
                raise AlreadyExists(f"Cannot rename {shown(*source)} to {shown(*target)}. {what} already exists")
        check_free(state, *target, leaving=key_of(kind, *source))
        return Grant("rename", (Change(key_of(kind, *source), None), Change(key_of(kind, *target), entry.value())))

    return decide


# ---- folders ----


def _moved(warehouse: Warehouse, old: Entry, new: Document, moves_to: str | None, places: Mapping[str, str]) -> Entry:
    """The entry of a table or view with new metadata, in its old folder or in the one that it moves to."""
    root = moves_to or old.root
    more = _outside(root, (*old.roots(), *places.values()), keep=old.more)
    return Entry(root, warehouse.new_file(_metadata_folder(warehouse, new, root), old.path, new), more)


def _outside(root: str, places: Iterable[str], keep: Sequence[str] = ()) -> tuple[str, ...]:
    """Folders of a table besides `root`: those of `keep`, and of `places` those that do not lie in one already."""
    found = [place for place in keep if place != root]
    for place in places:
        if not any(f"{place}/".startswith(f"{known}/") for known in (root, *found)):
            found.append(place)
    return tuple(found)


def _metadata_folder(warehouse: Warehouse, document: Document, root: str) -> str:
    """Where the metadata files of a table or view lie: where its properties say, else in its own folder."""
    url = warehouse.canonical((document.json().get("properties") or {}).get(METADATA_PATH, "")).rstrip("/")
    return url.removeprefix(f"{warehouse.url}/") if url.startswith(f"{warehouse.url}/") else f"{root}/metadata"


def _root(warehouse: Warehouse, known: CatalogState, namespace: Namespace, name: str, given: Any = None) -> str:
    """The folder of a new table or view: the given one, else a new one in the location of its namespace."""
    if given is not None:
        return warehouse.root_of(given)
    return warehouse.new_root(namespace, name, free_in(known), location_of(known, namespace))

"""Requests that create, drop, rename or describe namespaces, tables and views.

Like commits (`limpet.catalog.commit`), each is prepared in the thread of its client, and decided by a pure function: a
`Decide`, once its first parameters are bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from limpet.catalog.commit import METADATA_PATH, Needs, WorkedMetadata, check_size, moved, new_root, outside, with_files
from limpet.catalog.iceberg import tables, views
from limpet.catalog.iceberg.commits import named_by
from limpet.catalog.leader import Documents, Grant, NeedsMetadata
from limpet.catalog.maintain.decide import GC_PROPERTY, history_of
from limpet.catalog.names import (
    AlreadyExists,
    Content,
    Entry,
    Namespace,
    NamespaceNotEmpty,
    check_alike,
    check_free,
    check_namespace_exists,
    entry_in,
    find_entry,
    is_empty,
    key_of,
    reserve,
    shown,
)
from limpet.catalog.records import CREATE, DROP, DROP_VIEW, PURGE, Change
from limpet.catalog.state import LIVE, PURGED, CatalogState
from limpet.catalog.warehouse import Document, Warehouse, property_texts
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid, Missing

PROPERTIES_BYTES_MAX = 64 << 10


# ---- namespaces ----


def namespace_key(namespace: Namespace) -> str:
    """The key of a namespace in the state. Each level of a nested one is a namespace with properties."""
    return key_of("n", namespace[:-1], namespace[-1])


def check_namespace_properties(warehouse: Warehouse, properties: object) -> dict[str, str]:
    """The properties that a client sets, as text.   Raises: Invalid, also for a location outside the warehouse."""
    checked = property_texts(properties)
    warehouse.check_properties(checked)
    if len(records.plain_bytes(checked, what="properties")) > PROPERTIES_BYTES_MAX:
        raise Invalid(f"the properties of a namespace have at most {PROPERTIES_BYTES_MAX} bytes")
    return checked


def properties_of(state: CatalogState, namespace: Namespace) -> dict[str, str]:
    """The properties of a namespace.   Raises: NoSuchNamespace."""
    check_namespace_exists(state, namespace)
    found: dict[str, str] = state.get(namespace_key(namespace))
    return found


def create_namespace(
    namespace: Namespace, properties: Mapping[str, str], state: CatalogState, made: Documents
) -> Grant:
    """Create a namespace in an existing parent."""
    check_namespace_exists(state, namespace[:-1])
    if namespace_key(namespace) in state:
        raise AlreadyExists(f"Namespace already exists: {shown(namespace)}")
    check_alike(state, "n", namespace[:-1], namespace[-1])
    return Grant("create namespace", (Change(namespace_key(namespace), properties),))


def drop_namespace(namespace: Namespace, state: CatalogState, made: Documents) -> Grant:
    """Drop an empty namespace."""
    check_namespace_exists(state, namespace)
    if not is_empty(state, namespace):
        raise NamespaceNotEmpty(f"Namespace is not empty: {shown(namespace)}")
    return Grant("drop namespace", (Change(namespace_key(namespace), None),))


def update_namespace(
    namespace: Namespace, removals: Sequence[str], updates: Mapping[str, str], state: CatalogState, made: Documents
) -> Grant:
    """Set and remove properties. The result has the names that were updated, removed and missing."""
    old = properties_of(state, namespace)
    removed = [name for name in removals if name in old]
    new = {**{name: value for name, value in old.items() if name not in removals}, **updates}
    if len(records.encode(new)) > PROPERTIES_BYTES_MAX:
        raise Invalid(f"the properties of a namespace have at most {PROPERTIES_BYTES_MAX} bytes")
    missing = [name for name in removals if name not in old]
    result: dict[str, Any] = {"updated": [*updates], "removed": removed, "missing": missing}
    return Grant("set namespace properties", (Change(namespace_key(namespace), new),), result)


# ---- new tables and views ----


@dataclass(frozen=True, slots=True)
class Draft:
    """A table or view that is not in the catalog yet: its metadata and its folders."""

    document: Document
    entry: Entry


def draft(
    kind: Content,
    warehouse: Warehouse,
    known: CatalogState,
    namespace: Namespace,
    name: str,
    request: Mapping[str, Any],
) -> Draft:
    """The table or view of a create request; `known` has the folders of others.   Raises: Invalid."""
    if kind == "t":
        check_size([request.get(field) for field in tables.NEW_FIELDS], "the table")
    places = warehouse.check_properties(property_texts(request.get("properties") or {}))
    root = new_root(warehouse, known, namespace, name, request.get("location"))
    made = tables.new_table if kind == "t" else views.new_view
    document = made(request, warehouse.location(root), warehouse.new_uuid(), warehouse.now_ms())
    return _draft(warehouse, root, places, None, document)


def _draft(warehouse: Warehouse, root: str, places: Mapping[str, str], before: str | None, document: Document) -> Draft:
    path = warehouse.new_file(places.get(METADATA_PATH, f"{root}/metadata"), before, document)
    return Draft(document, Entry(root, path, outside(root, places.values())))


def draft_registered(kind: Content, warehouse: Warehouse, metadata_location: object) -> Draft:
    """A table or view whose metadata is in the warehouse already.   Raises: Invalid.   Cost: 1 GET.

    The parsed and checked metadata is written to a new file: the client's file may change later, and may contain fields
    that were not checked.
    """
    path, foreign = _foreign(warehouse, metadata_location)
    if kind == "t":
        metadata, files = tables.registered(foreign.json())
        for what, url in files:
            warehouse.path_of(url, what)
    else:
        metadata = views.registered(foreign.json())
    places = warehouse.check_properties(metadata["properties"])
    root = warehouse.root_of(metadata["location"])
    document_of = tables.document_of if kind == "t" else views.document_of
    return _draft(warehouse, root, places, path, document_of({**metadata, "location": warehouse.location(root)}))


def _foreign(warehouse: Warehouse, metadata_location: object) -> tuple[str, Document]:
    """The path of a metadata file that a client names, and its content.   Raises: Invalid.   Cost: 1 GET."""
    if not isinstance(metadata_location, str):
        raise Invalid("the metadata location must be a string")
    path = warehouse.file_of(metadata_location)
    try:
        return path, warehouse.fetch_foreign(path)
    except Missing:
        raise Invalid(f"there is no metadata file {metadata_location!r}") from None


def create(
    kind: Content,
    warehouse: Warehouse,
    namespace: Namespace,
    name: str,
    new: Draft,
    state: CatalogState,
    made: Documents,
) -> Grant:
    """Create a table or view. The result of this and of every commit is the path of its metadata."""
    check_free(state, namespace, name, kind)
    changes = (Change(key_of(kind, namespace, name), new.entry.value()), *reserve(state, new.entry.roots()))
    what = CREATE if kind == "t" else "create view"
    return with_files(warehouse, what, changes, new.entry.path, {new.entry.path: new.document})


def register_table(
    warehouse: Warehouse,
    namespace: Namespace,
    name: str,
    new: Draft,
    overwrite: bool,
    state: CatalogState,
    made: Documents,
) -> Grant:
    """Register a table with existing metadata; `overwrite`: replace the table of that name."""
    old = find_entry(state, "t", namespace, name) if overwrite else None
    if old is None:
        check_free(state, namespace, name, "t")
    own = old.roots() if old else ()
    more = tuple(root for root in dict.fromkeys((*own, *new.entry.more)) if root != new.entry.root)
    entry = Entry(new.entry.root, new.entry.path, more)
    changes = (Change(key_of("t", namespace, name), entry.value()), *reserve(state, entry.roots(), own))
    return with_files(warehouse, "register table", changes, entry.path, {entry.path: new.document})


@dataclass(frozen=True, slots=True)
class PreparedView:
    """A replacement of a view: its parsed changes, its new folder, and the folders in its properties."""

    changes: views.ViewChanges
    root: str | None
    places: Mapping[str, str]

    def needs(self, path: str) -> Needs:
        """By path, the function that computes the new metadata."""
        return {path: partial(views.replaced, wanted=self.changes)}


def prepare_view(warehouse: Warehouse, request: Mapping[str, Any]) -> PreparedView:
    """The changes of a replace request, checked.   Raises: Invalid."""
    changes = views.parse_changes(request, warehouse.canonical, warehouse.now_ms())
    named = named_by(changes.updates)
    root = None if named.location is None else warehouse.root_of(named.location)
    return PreparedView(changes, root, warehouse.check_properties(named.properties))


def replace_view(
    warehouse: Warehouse,
    namespace: Namespace,
    name: str,
    wanted: PreparedView,
    worked: WorkedMetadata,
    state: CatalogState,
    made: Documents,
) -> Grant | NeedsMetadata:
    """Change a view."""
    old = entry_in(state, "v", namespace, name)
    if not worked.has(old.path):
        return NeedsMetadata(wanted.needs(old.path))
    new = worked.result(old.path)
    assert new is not None
    entry = moved(warehouse, old, new, wanted.root, wanted.places)
    changes = (Change(key_of("v", namespace, name), entry.value()), *reserve(state, entry.roots(), old.roots()))
    return with_files(warehouse, "replace view", changes, entry.path, {entry.path: new})


# ---- tables and views that are there ----


class CheckedPurge(WorkedMetadata):
    """By the path of a table's metadata, whether the table may be purged. One that cannot be read can be purged."""

    def result(self, path: str) -> Document | None:
        with suppress(Corrupt):
            super().result(path)
        return None


def purge_needs(path: str, name: str) -> Needs:
    """By path, the check of the metadata of a table that is to be purged: Invalid if others need its files."""

    def check(document: Document) -> None:
        if not history_of(document.data, name).owns_files():
            raise Invalid(
                f"table {name!r} has {GC_PROPERTY}=false: other tables or catalogs may need its files",
                hint=f"drop it without purge, or set {GC_PROPERTY} to true first",
            )

    return {path: check}


def drop(
    kind: Content, namespace: Namespace, name: str, purge: CheckedPurge | None, state: CatalogState, made: Documents
) -> Grant | NeedsMetadata:
    """Drop a table or view; its files stay. The result is its entry, so that it can be restored.

    `purge`: the folders of a table are recorded, to be emptied, if the metadata that it has then allows it.
    """
    old = entry_in(state, kind, namespace, name)
    if purge is not None:
        needs, latest = purge_needs(old.path, name), made.get(old.path)
        if purge.has(old.path):
            purge.result(old.path)
        elif latest is not None:
            needs[old.path](latest)
        else:
            return NeedsMetadata(needs)
    changes = [Change(key_of(kind, namespace, name), None)]
    changes += [Change(f"{LIVE}/{root}", None) for root in old.roots()]
    if purge is not None:
        changes += [Change(f"{PURGED}/{root}", 1) for root in old.roots()]
    return Grant(DROP_VIEW if kind == "v" else DROP if purge is None else PURGE, tuple(changes), old.value())


def release_folders(roots: Sequence[str], state: CatalogState, made: Documents) -> Grant:
    """Release the folders of purged tables, which are empty now."""
    there = [root for root in roots if f"{PURGED}/{root}" in state]
    return Grant("purged", tuple(Change(f"{PURGED}/{root}", None) for root in there))


def undrop(kind: Content, namespace: Namespace, name: str, entry: Entry, state: CatalogState, made: Documents) -> Grant:
    """Restore a table or view that was dropped and not purged, if its name and its folders are free."""
    check_free(state, namespace, name, kind)
    change = Change(key_of(kind, namespace, name), entry.value())
    return Grant("undrop", (change, *reserve(state, entry.roots())), entry.path)


def rename(
    kind: Content, source: tuple[Namespace, str], target: tuple[Namespace, str], state: CatalogState, made: Documents
) -> Grant:
    """Rename a table or view, or move it to another namespace; its files are not moved."""
    entry = entry_in(state, kind, *source)
    kinds: tuple[tuple[Content, str], ...] = (("t", "Table"), ("v", "View"))
    for other, what in kinds:
        if find_entry(state, other, *target) is not None:
            raise AlreadyExists(f"Cannot rename {shown(*source)} to {shown(*target)}. {what} already exists")
    check_free(state, *target, leaving=key_of(kind, *source))
    return Grant("rename", (Change(key_of(kind, *source), None), Change(key_of(kind, *target), entry.value())))

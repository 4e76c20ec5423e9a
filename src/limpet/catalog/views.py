"""Views: their metadata, which is plain JSON here, and decisions on the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limpet import records
from limpet.catalog import iceberg
from limpet.catalog.entries import LIVE, Entry, check_free, entry_in, reserve
from limpet.catalog.leader import Decide, Grant
from limpet.catalog.loaded import Ahead
from limpet.catalog.names import Namespace, key_of
from limpet.catalog.records import Change
from limpet.catalog.refusals import CommitFailed, NeedsMetadata
from limpet.catalog.state import State
from limpet.catalog.tables import METADATA_PATH, Draft, metadata_folder, new_root, outside
from limpet.catalog.warehouse import Document, Warehouse, property_text
from limpet.errors import Corrupt, Invalid

DROP = "drop view"
HISTORY = "version.history.num-entries"
HISTORY_MAX = 10
UPDATES_MAX = 1000
REPRESENTATIONS_MAX = 100
LAST_ADDED = -1
LAST_SCHEMA, LAST_VERSION = "last-schema", "last-version"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """A replacement whose locations are checked: the UUIDs that it requires, its updates, where the view moves to, and
    the folders that its properties name."""

    uuids: Sequence[Any]
    updates: Sequence[Json]
    root: str | None
    places: Mapping[str, str]


def draft(warehouse: Warehouse, known: State, namespace: Namespace, name: str, request: Mapping[str, Any]) -> Draft:
    """The view that a client asks to create; `known` is what is known of others' folders.   Raises: Invalid."""
    schema, version = _object(request, "schema"), _object(request, "view-version")
    properties = _strings(request.get("properties") or {})
    places = warehouse.check_properties(properties)
    given = request.get("location")
    root = new_root(warehouse, known, namespace, name) if given is None else warehouse.root_of(given)
    first = {**_dated(warehouse, version), "version-id": 1, "schema-id": 0}
    metadata = {
        "view-uuid": warehouse.new_uuid(),
        "format-version": 1,
        "location": warehouse.location(root),
        "current-version-id": 1,
        "versions": [first],
        "version-log": [{"timestamp-ms": first["timestamp-ms"], "version-id": 1}],
        "schemas": [{**schema, "schema-id": 0}],
        "properties": properties,
    }
    document = _document(metadata)
    path = warehouse.new_file(places.get(METADATA_PATH, f"{root}/metadata"), None, document)
    return Draft(document, Entry(root, path, outside(root, places.values())))


def create(warehouse: Warehouse, namespace: Namespace, name: str, new: Draft) -> Decide:
    """Create a view. The result of this and of every replacement is the path of its metadata."""

    def decide(state: State) -> Grant:
        check_free(state, namespace, name, "v")
        changes = (Change(key_of("v", namespace, name), new.entry.value()), *reserve(state, new.entry.roots()))
        return Grant("create view", changes, new.entry.path, (warehouse.put_of(new.entry.path, new.document),))

    return decide


def prepare(warehouse: Warehouse, request: Mapping[str, Any]) -> Changes:
    """The changes that a client asks for: all are known, and all locations inside.   Raises: Invalid."""
    requirements = _objects(iceberg.listed(request, "requirements", UPDATES_MAX), "requirements")
    updates = _objects(iceberg.listed(request, "updates", UPDATES_MAX), "updates")
    places: dict[str, str] = {}
    for requirement in requirements:
        if requirement.get("type") != "assert-view-uuid":
            raise Invalid(f"there is no requirement {requirement.get('type')!r} of views")
    root: str | None = None
    for update in updates:
        match update.get("action"):
            case "set-location":
                root = warehouse.root_of(_text(update, "location"))
                update["location"] = warehouse.location(root)
            case "set-properties":
                update["updates"] = _strings(update.get("updates"))
                places |= warehouse.check_properties(update["updates"])
            case "add-view-version":
                update["view-version"] = _dated(warehouse, _object(update, "view-version"))
            case action if not isinstance(action, str) or action not in _UPDATES:
                raise Invalid(f"there is no update {action!r} of views")
    return Changes([requirement.get("uuid") for requirement in requirements], updates, root, places)


def needs_of(wanted: Changes, path: str) -> dict[str, Callable[[Document], Document]]:
    """How a replacement is worked out on the metadata at a path: for `Ahead.work_out`."""
    return {path: lambda document: _document(_applied(_json(document), wanted))}


def replace(warehouse: Warehouse, namespace: Namespace, name: str, wanted: Changes, ahead: Ahead) -> Decide:
    """Change a view."""

    def decide(state: State) -> Grant:
        old = entry_in(state, "v", namespace, name)
        if not ahead.has(old.path):
            raise NeedsMetadata(needs_of(wanted, old.path))
        new = ahead.result(old.path)
        assert new is not None
        root = wanted.root or old.root
        more = outside(root, (*old.roots(), *wanted.places.values()), keep=old.more)
        entry = Entry(root, warehouse.new_file(metadata_folder(warehouse, new, root), old.path, new), more)
        changes = (Change(key_of("v", namespace, name), entry.value()), *reserve(state, entry.roots(), old.roots()))
        return Grant("replace view", changes, entry.path, (warehouse.put_of(entry.path, new),))

    return decide


def drop(namespace: Namespace, name: str) -> Decide:
    """Take a view out of the catalog. Its result is the entry; its metadata stays, so that it can be put back."""

    def decide(state: State) -> Grant:
        old = entry_in(state, "v", namespace, name)
        gone = (Change(key_of("v", namespace, name), None), *(Change(f"{LIVE}/{root}", None) for root in old.roots()))
        return Grant(DROP, gone, old.value())

    return decide


# ---- metadata ----


def _applied(base: Json, wanted: Changes) -> Json:
    """The metadata after the updates.   Raises: CommitFailed; Invalid."""
    for uuid in wanted.uuids:
        if str(uuid).lower() != str(base["view-uuid"]).lower():
            raise CommitFailed(
                f"Requirement failed: view UUID does not match: expected {base['view-uuid']} != {str(uuid)[:100]}"
            )
    new = {**base, "schemas": [*base["schemas"]], "versions": [*base["versions"]]}
    for update in wanted.updates:
        _UPDATES[update["action"]](new, update)
    for helper in (LAST_SCHEMA, LAST_VERSION):
        new.pop(helper, None)
    current = new["current-version-id"]
    if current != base["current-version-id"]:
        stamp = {"timestamp-ms": _version(new, current)["timestamp-ms"], "version-id": current}
        new["version-log"] = [*base["version-log"], stamp]
    return _trimmed(new)


def _trimmed(view: Json) -> Json:
    """Without versions older than the history that the view keeps; the current one always stays."""
    given = view.get("properties", {}).get(HISTORY, str(HISTORY_MAX))
    keep = int(given) if given.isdecimal() and 0 < len(given) < 6 and int(given) else HISTORY_MAX
    newest = sorted(view["versions"], key=lambda version: version["version-id"])[-keep:]
    kept = {version["version-id"] for version in newest} | {view["current-version-id"]}
    view["versions"] = [version for version in view["versions"] if version["version-id"] in kept]
    log = view["version-log"]
    gone = max((i for i, entry in enumerate(log) if entry["version-id"] not in kept), default=-1)
    view["version-log"] = log[gone + 1 :]
    return view


def _assign_uuid(view: Json, update: Json) -> None:
    if update.get("uuid") != view["view-uuid"]:
        raise Invalid(f"Cannot reassign uuid: the view has {view['view-uuid']}")


def _upgrade(view: Json, update: Json) -> None:
    if update.get("format-version") != 1:
        raise Invalid("views have format version 1")


def _add_schema(view: Json, update: Json) -> None:
    schema = _object(update, "schema")
    body = {key: value for key, value in schema.items() if key != "schema-id"}
    for known in view["schemas"]:
        if {key: value for key, value in known.items() if key != "schema-id"} == body:
            view[LAST_SCHEMA] = known["schema-id"]
            return
    view[LAST_SCHEMA] = max(known["schema-id"] for known in view["schemas"]) + 1
    view["schemas"].append({**schema, "schema-id": view[LAST_SCHEMA]})


def _set_location(view: Json, update: Json) -> None:
    view["location"] = update["location"]


def _set_properties(view: Json, update: Json) -> None:
    view["properties"] = {**view.get("properties", {}), **update["updates"]}


def _remove_properties(view: Json, update: Json) -> None:
    removals = update.get("removals")
    if not isinstance(removals, list):
        raise Invalid("removals must be a list")
    view["properties"] = {key: value for key, value in view.get("properties", {}).items() if key not in removals}


def _add_version(view: Json, update: Json) -> None:
    version = dict(update["view-version"])
    if version.get("schema-id") == LAST_ADDED:
        if LAST_SCHEMA not in view:
            raise Invalid("Cannot set last added schema: no schema has been added")
        version["schema-id"] = view[LAST_SCHEMA]
    if version.get("schema-id") not in [schema["schema-id"] for schema in view["schemas"]]:
        raise Invalid(f"the view has no schema {version.get('schema-id')!r}")
    version["version-id"] = view[LAST_VERSION] = max(known["version-id"] for known in view["versions"]) + 1
    view["versions"].append(version)


def _set_current(view: Json, update: Json) -> None:
    id_ = update.get("view-version-id")
    if id_ == LAST_ADDED:
        if LAST_VERSION not in view:
            raise Invalid("Cannot set last version id: no current version id has been set")
        id_ = view[LAST_VERSION]
    view["current-version-id"] = _version(view, id_)["version-id"]


_UPDATES: Mapping[str, Callable[[Json, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade,
    "add-schema": _add_schema,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "add-view-version": _add_version,
    "set-current-view-version": _set_current,
}


def _version(view: Json, id_: object) -> Json:
    for version in view["versions"]:
        if version["version-id"] == id_:
            return dict(version)
    raise Invalid(f"the view has no version {id_!r}")


def _dated(warehouse: Warehouse, version: Json) -> Json:
    """A version of a client's, with a time.   Raises: Invalid if it has two SQL texts for one dialect."""
    given = version.get("representations")
    representations = given if isinstance(given, list) else []
    if len(representations) > REPRESENTATIONS_MAX:
        raise Invalid(f"a view has at most {REPRESENTATIONS_MAX} representations, not {len(representations)}")
    dialects = [each.get("dialect") for each in representations if isinstance(each, Mapping)]
    twice = _first_twice(dialect.lower() for dialect in dialects if isinstance(dialect, str))
    if twice is not None:
        raise Invalid(f"Invalid view version: Cannot add multiple queries for dialect {twice[:100]}")
    if version.get("timestamp-ms") is None:
        return {**version, "timestamp-ms": int(warehouse.runtime.wall().timestamp() * 1000)}
    return dict(version)


def _first_twice(texts: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            return text
        seen.add(text)
    return None


def _document(metadata: Json) -> Document:
    iceberg.check_view(metadata)
    return Document(records.plain_bytes(metadata, what="the view"), metadata)


def _json(document: Document) -> Json:
    try:
        iceberg.check_view(document.json())
    except Invalid as error:
        raise Corrupt(f"the metadata of the view is not sound: {error}") from None
    return document.json()


def _object(request: Mapping[str, Any], key: str) -> Json:
    found = request.get(key)
    if not isinstance(found, Mapping):
        raise Invalid(f"{key} must be an object")
    return dict(found)


def _objects(found: Sequence[Any], key: str) -> list[Json]:
    if not all(isinstance(each, Mapping) for each in found):
        raise Invalid(f"{key} must be a list of objects")
    return [dict(each) for each in found]


def _text(request: Mapping[str, Any], key: str) -> str:
    found = request.get(key)
    if not isinstance(found, str):
        raise Invalid(f"{key} must be a string")
    return found


def _strings(properties: Any) -> dict[str, str]:
    if not isinstance(properties, Mapping):
        raise Invalid("properties must be an object")
    return {key: property_text(key, value) for key, value in properties.items()}

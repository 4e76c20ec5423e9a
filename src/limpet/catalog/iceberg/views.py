"""The metadata of views, as plain JSON: new views, and replacements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limpet.catalog.iceberg.commits import listed
from limpet.catalog.iceberg.models import check_view
from limpet.catalog.names import CommitFailed
from limpet.catalog.warehouse import Document, Warehouse, property_texts
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid

HISTORY = "version.history.num-entries"
HISTORY_MAX = 10
UPDATES_MAX = 1000
REPRESENTATIONS_MAX = 100
LAST_ADDED = -1
LAST_SCHEMA, LAST_VERSION = "last-schema", "last-version"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ViewChanges:
    """A parsed replacement: the UUIDs that it requires, and its updates."""

    uuids: Sequence[Any]
    updates: Sequence[Json]


def parse_new(request: Mapping[str, Any], now_ms: int) -> Json:
    """The schema, the first version and the properties of a new view.   Raises: Invalid."""
    return {
        "schema": _object(request, "schema"),
        "version": _dated(_object(request, "view-version"), now_ms),
        "properties": property_texts(request.get("properties") or {}),
    }


def created(new: Json, location: str, uuid: str) -> Document:
    """The metadata of a new view, from the result of `parse_new`.   Raises: Invalid."""
    first = {**new["version"], "version-id": 1, "schema-id": 0}
    return document_of(
        {
            "view-uuid": uuid,
            "format-version": 1,
            "location": location,
            "current-version-id": 1,
            "versions": [first],
            "version-log": [{"timestamp-ms": first["timestamp-ms"], "version-id": 1}],
            "schemas": [{**new["schema"], "schema-id": 0}],
            "properties": new["properties"],
        }
    )


def registered(given: Json) -> Json:
    """The metadata of a view that another program wrote.   Raises: Invalid."""
    if given.get("format-version") != 1:
        raise Invalid("views have format version 1")
    check_view(given)
    versions = _objects(given["versions"], "versions")
    if len(versions) > UPDATES_MAX:
        raise Invalid(f"the view has {len(versions)} versions; at most {UPDATES_MAX} are taken")
    new = {**given, "versions": [_dated(version, 0) for version in versions]}
    _version(new, new.get("current-version-id"))
    return {**new, "properties": property_texts(new.get("properties") or {})}


def parse_changes(request: Mapping[str, Any], now_ms: int) -> ViewChanges:
    """The parsed changes of a request. Locations are not checked yet.   Raises: Invalid."""
    requirements = _objects(listed(request, "requirements", UPDATES_MAX), "requirements")
    updates = _objects(listed(request, "updates", UPDATES_MAX), "updates")
    for requirement in requirements:
        if requirement.get("type") != "assert-view-uuid":
            raise Invalid(f"there is no requirement {requirement.get('type')!r} of views")
    for update in updates:
        match update.get("action"):
            case "set-location":
                _text(update, "location")
            case "set-properties":
                update["updates"] = property_texts(update.get("updates"))
            case "add-view-version":
                update["view-version"] = _dated(_object(update, "view-version"), now_ms)
            case action if not isinstance(action, str) or action not in _UPDATES:
                raise Invalid(f"there is no update {action!r} of views")
    return ViewChanges([requirement.get("uuid") for requirement in requirements], updates)


def placed(updates: Sequence[Json], warehouse: Warehouse) -> tuple[str | None, dict[str, str]]:
    """The folder that parsed updates move a view to, None if they do not, and the folders in its properties.

    Raises: Invalid.
    """
    root, places = None, dict[str, str]()
    for update in updates:
        if update["action"] == "set-location":
            root = warehouse.root_of(update["location"])
            update["location"] = warehouse.location(root)
        elif update["action"] == "set-properties":
            places |= warehouse.check_properties(update["updates"])
    return root, places


def replaced(document: Document, wanted: ViewChanges) -> Document:
    """The metadata after a replacement.   Raises: CommitFailed; Invalid; Corrupt."""
    return document_of(_applied(_json(document), wanted))


def _applied(base: Json, wanted: ViewChanges) -> Json:
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
    """Remove versions beyond the retained history; the current one always stays."""
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


def _dated(version: Json, now_ms: int) -> Json:
    """A version from a client, with a time.   Raises: Invalid if it has two SQL texts for one dialect."""
    given = version.get("representations")
    representations = given if isinstance(given, list) else []
    if len(representations) > REPRESENTATIONS_MAX:
        raise Invalid(f"a view has at most {REPRESENTATIONS_MAX} representations, not {len(representations)}")
    dialects = [each.get("dialect") for each in representations if isinstance(each, Mapping)]
    twice = _first_twice(dialect.lower() for dialect in dialects if isinstance(dialect, str))
    if twice is not None:
        raise Invalid(f"Invalid view version: Cannot add multiple queries for dialect {twice[:100]}")
    if version.get("timestamp-ms") is None:
        return {**version, "timestamp-ms": now_ms}
    return dict(version)


def _first_twice(texts: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            return text
        seen.add(text)
    return None


def document_of(metadata: Json) -> Document:
    """Metadata of a view.   Raises: Invalid."""
    check_view(metadata)
    return Document(records.plain_bytes(metadata, what="the view"), metadata)


def _json(document: Document) -> Json:
    try:
        check_view(document.json())
    except Invalid as error:
        raise Corrupt(f"the metadata of the view is not valid: {error}") from None
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

"""The metadata of views, as plain JSON: new views, and replacements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from limpet.catalog.iceberg.commits import as_text, listed
from limpet.catalog.iceberg.metadata import MANY, Long, Short, Texts, ViewVersionJson
from limpet.catalog.iceberg.schemas import UNSET_ID, KebabFields, SchemaJson, columns_of, converted
from limpet.catalog.iceberg.updates import (
    UPDATES,
    AddSchema,
    AddViewVersion,
    AssignUuid,
    RemoveProperties,
    SetLocation,
    SetProperties,
    SetViewVersion,
    Update,
    UpgradeVersion,
    ViewUpdate,
)
from limpet.catalog.names import CommitFailed
from limpet.catalog.warehouse import Document, Json, property_texts
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.wording import many

HISTORY = "version.history.num-entries"
HISTORY_MAX = 10
UPDATES_MAX = 1000
REPRESENTATIONS_MAX = 100


class _NewView(KebabFields):
    schema: SchemaJson
    view_version: ViewVersionJson


class _ViewUuidCheck(KebabFields, tag_field="type", tag="assert-view-uuid"):
    uuid: Short


class _Changes(msgspec.Struct):
    updates: Annotated[list[ViewUpdate], msgspec.Meta(max_length=UPDATES_MAX)]
    requirements: Annotated[list[_ViewUuidCheck], msgspec.Meta(max_length=UPDATES_MAX)]


class _LogJson(KebabFields):
    version_id: Long
    timestamp_ms: Long


class _ViewJson(KebabFields):
    view_uuid: Short
    format_version: Literal[1]
    location: Short
    schemas: Annotated[list[SchemaJson], msgspec.Meta(max_length=MANY)]
    current_version_id: Long
    versions: Annotated[list[ViewVersionJson], msgspec.Meta(max_length=MANY)]
    version_log: Annotated[list[_LogJson], msgspec.Meta(max_length=MANY)]
    properties: Texts | None = None


def new_view(request: Mapping[str, Any], location: str, uuid: str, now_ms: int) -> Document:
    """The metadata of a new view.   Raises: Invalid."""
    given: Json = {name: request.get(name) for name in ("schema", "view-version")}
    converted(given, _NewView, "the view")
    columns_of(given["schema"])
    first = {**_dated(given["view-version"], now_ms), "version-id": 1, "schema-id": 0}
    return document_of(
        {
            "view-uuid": uuid,
            "format-version": 1,
            "location": location,
            "current-version-id": 1,
            "versions": [first],
            "version-log": [{"timestamp-ms": first["timestamp-ms"], "version-id": 1}],
            "schemas": [{**given["schema"], "schema-id": 0}],
            "properties": property_texts(request.get("properties") or {}),
        }
    )


def registered(given: Json) -> Json:
    """The metadata of a view that another program wrote.   Raises: Invalid."""
    if given.get("format-version") != 1:
        raise Invalid("views have format version 1")
    given = {**given, "properties": property_texts(given.get("properties") or {})}
    converted(given, _ViewJson, "the view")
    for schema in given["schemas"]:
        columns_of(schema)
    if len(given["versions"]) > UPDATES_MAX:
        raise Invalid(f"the view has {many(len(given['versions']), 'version')}; at most {UPDATES_MAX} are taken")
    schemas = [{"schema-id": 0, **schema} for schema in given["schemas"]]
    versions = [{"version-id": 1, **_dated(version, 0)} for version in given["versions"]]
    view = {**given, "schemas": schemas, "versions": versions}
    _version(view, view["current-version-id"])
    return view


def document_of(metadata: Json) -> Document:
    """Metadata of a view.   Raises: Invalid."""
    converted(metadata, _ViewJson, "the view")
    return Document(records.plain_bytes(metadata, what="the view"), metadata)


# ---- replacements ----


@dataclass(frozen=True, slots=True)
class ViewChanges:
    """A parsed replacement: the UUIDs that it requires, and its updates."""

    uuids: Sequence[str]
    updates: Sequence[Json]


def parse_changes(request: Mapping[str, Any], canonical: Callable[[str], str], now_ms: int) -> ViewChanges:
    """The parsed changes of a request. Locations are not checked yet.   Raises: Invalid."""
    required = listed(request, "requirements", UPDATES_MAX)
    updates = [as_text(update, canonical) for update in listed(request, "updates", UPDATES_MAX)]
    converted({"updates": updates, "requirements": required}, _Changes, "the replacement of the view")
    for nth, update in enumerate(updates):
        kind = UPDATES[update["action"]]
        if kind is AddSchema:
            columns_of(update["schema"])
        elif kind is AddViewVersion:
            updates[nth] = {**update, "view-version": _dated(update["view-version"], now_ms)}
    return ViewChanges([requirement["uuid"] for requirement in required], updates)


def replaced(document: Document, wanted: ViewChanges) -> Document:
    """The metadata after a replacement.   Raises: CommitFailed; Invalid; Corrupt."""
    base = document.json()
    try:
        converted(base, _ViewJson, "the metadata of the view")
    except Invalid as error:
        raise Corrupt(str(error)) from None
    for uuid in wanted.uuids:
        if uuid.lower() != base["view-uuid"].lower():
            raise CommitFailed(
                f"Requirement failed: view UUID does not match: expected {base['view-uuid']} != {uuid[:100]}"
            )
    work = _ViewWork(base)
    for update in wanted.updates:
        _APPLY[UPDATES[update["action"]]](work, update)
    current, log = work.view["current-version-id"], base["version-log"]
    if current != base["current-version-id"]:
        at_ms = _version(work.view, current)["timestamp-ms"]
        log = [*log, {"timestamp-ms": at_ms, "version-id": current}]
    return document_of(_trimmed({**work.view, "version-log": log}))


class _ViewWork:
    """Metadata of a view that is being changed, and the ids that were added last. Its values are never modified."""

    def __init__(self, view: Json) -> None:
        self.view = {**view, "properties": view.get("properties") or {}}
        self._schema_id: int | None = None
        self._version_id: int | None = None

    def assign_uuid(self, update: Json) -> None:
        if update["uuid"] != self.view["view-uuid"]:
            raise Invalid(f"Cannot reassign uuid: the view has {self.view['view-uuid']}")

    def upgrade(self, update: Json) -> None:
        if update["format-version"] != 1:
            raise Invalid("views have format version 1")

    def set_location(self, update: Json) -> None:
        self.view["location"] = update["location"].rstrip("/")

    def set_properties(self, update: Json) -> None:
        self.view["properties"] = {**self.view["properties"], **update["updates"]}

    def remove_properties(self, update: Json) -> None:
        kept = self.view["properties"].keys() - {*update["removals"]}
        self.view["properties"] = {name: text for name, text in self.view["properties"].items() if name in kept}

    def add_schema(self, update: Json) -> None:
        schemas = self.view["schemas"]
        for known in schemas:
            if {**known, "schema-id": 0} == {**update["schema"], "schema-id": 0}:
                self._schema_id = known["schema-id"]
                return
        self._schema_id = max(known["schema-id"] for known in schemas) + 1
        self.view["schemas"] = [*schemas, {**update["schema"], "schema-id": self._schema_id}]

    def add_version(self, update: Json) -> None:
        schema_id = update["view-version"]["schema-id"]
        if schema_id == UNSET_ID:
            if self._schema_id is None:
                raise Invalid("Cannot set last added schema: no schema has been added")
            schema_id = self._schema_id
        if schema_id not in [schema["schema-id"] for schema in self.view["schemas"]]:
            raise Invalid(f"the view has no schema {schema_id!r}")
        self._version_id = max(known["version-id"] for known in self.view["versions"]) + 1
        new = {**update["view-version"], "schema-id": schema_id, "version-id": self._version_id}
        self.view["versions"] = [*self.view["versions"], new]

    def set_version(self, update: Json) -> None:
        id_ = update["view-version-id"]
        if id_ == UNSET_ID:
            if self._version_id is None:
                raise Invalid("Cannot set last version id: no current version id has been set")
            id_ = self._version_id
        self.view["current-version-id"] = _version(self.view, id_)["version-id"]


_APPLY: Mapping[type[Update], Callable[[_ViewWork, Json], None]] = {
    AssignUuid: _ViewWork.assign_uuid,
    UpgradeVersion: _ViewWork.upgrade,
    AddSchema: _ViewWork.add_schema,
    SetLocation: _ViewWork.set_location,
    SetProperties: _ViewWork.set_properties,
    RemoveProperties: _ViewWork.remove_properties,
    AddViewVersion: _ViewWork.add_version,
    SetViewVersion: _ViewWork.set_version,
}


def _trimmed(view: Json) -> Json:
    """Remove versions beyond the retained history; the current one always stays."""
    given = view["properties"].get(HISTORY, str(HISTORY_MAX))
    keep = int(given) if given.isdecimal() and 0 < len(given) < 6 and int(given) else HISTORY_MAX
    newest = sorted(version["version-id"] for version in view["versions"])[-keep:]
    kept = {*newest, view["current-version-id"]}
    versions = [version for version in view["versions"] if version["version-id"] in kept]
    log = view["version-log"]
    gone = max((nth for nth, entry in enumerate(log) if entry["version-id"] not in kept), default=-1)
    return {**view, "versions": versions, "version-log": log[gone + 1 :]}


def _version(view: Json, id_: int) -> Json:
    for version in view["versions"]:
        if version["version-id"] == id_:
            return dict(version)
    raise Invalid(f"the view has no version {id_!r}")


def _dated(version: Json, now_ms: int) -> Json:
    """A version from a client, with a time.   Raises: Invalid if it has two SQL texts for one dialect."""
    if (count := len(version["representations"])) > REPRESENTATIONS_MAX:
        raise Invalid(f"a view has at most {REPRESENTATIONS_MAX} representations, not {count}")
    dialects: set[str] = set()
    for representation in version["representations"]:
        dialect = representation["dialect"].lower()
        if dialect in dialects:
            raise Invalid(f"Invalid view version: Cannot add multiple queries for dialect {dialect[:100]}")
        dialects.add(dialect)
    return {**version, "timestamp-ms": now_ms if version.get("timestamp-ms") is None else version["timestamp-ms"]}

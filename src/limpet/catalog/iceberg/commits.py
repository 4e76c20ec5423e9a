"""A commit to a table, as a client sends it: its updates and requirements, checked and applied.

What each update holds and does is in `limpet.catalog.iceberg.updates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from limpet.catalog.iceberg.metadata import (
    MANY,
    AnyUuid,
    Long,
    Short,
    TableWork,
    check_manifests,
    check_whole,
    files_in,
    refuse_version,
    strange_urls,
)
from limpet.catalog.iceberg.schemas import FIRST_PARTITION_ID, UNSET_ID, VERSION, KebabFields
from limpet.catalog.iceberg.updates import (
    LIGHT,
    UPDATES,
    AddSnapshot,
    AnyUpdate,
    RemoveSnapshots,
    SetLocation,
    SetProperties,
    SetRef,
    Update,
    UpgradeVersion,
    kind_of,
)
from limpet.catalog.names import CommitFailed
from limpet.catalog.warehouse import Json, property_texts
from limpet.kernel import records
from limpet.kernel.errors import Invalid

# ---- requirements ----


class _RequiredFields(KebabFields, tag_field="type"):
    """A requirement of a commit."""


class _UuidCheck(_RequiredFields, tag="assert-table-uuid"):
    uuid: AnyUuid


class _RefCheck(_RequiredFields, tag="assert-ref-snapshot-id"):
    ref: Short
    snapshot_id: Long | None = None


class _FieldCheck(_RequiredFields, tag="assert-last-assigned-field-id"):
    last_assigned_field_id: Long


class _SchemaCheck(_RequiredFields, tag="assert-current-schema-id"):
    current_schema_id: Long


class _PartitionCheck(_RequiredFields, tag="assert-last-assigned-partition-id"):
    last_assigned_partition_id: Long | None = None


class _SpecCheck(_RequiredFields, tag="assert-default-spec-id"):
    default_spec_id: Long


class _OrderCheck(_RequiredFields, tag="assert-default-sort-order-id"):
    default_sort_order_id: Long


class _CreateCheck(_RequiredFields, tag="assert-create"):
    pass


_Requirement = (
    _UuidCheck | _RefCheck | _FieldCheck | _SchemaCheck | _PartitionCheck | _SpecCheck | _OrderCheck | _CreateCheck
)

_MISMATCHES = {
    "assert-last-assigned-field-id": (
        "last assigned field id changed: expected id", "last-assigned-field-id", "last-column-id"),
    "assert-current-schema-id": ("current schema changed: expected id", "current-schema-id", "current-schema-id"),
    "assert-last-assigned-partition-id": (
        "last assigned partition id changed: expected id", "last-assigned-partition-id", "last-partition-id"),
    "assert-default-spec-id": ("default partition spec changed: expected id", "default-spec-id", "default-spec-id"),
    "assert-default-sort-order-id": (
        "default sort order changed: expected id", "default-sort-order-id", "default-sort-order-id"),
}  # fmt: skip
"""By type of requirement: the message, its field, and the field of the metadata that must be equal."""


def check_requirement(requirement: Json, table: Json) -> None:
    """Check a requirement of a client. The messages are those of the reference implementation.

    Raises: CommitFailed.
    """
    kind = requirement["type"]
    if kind == "assert-ref-snapshot-id":
        _check_ref(requirement["ref"], requirement.get("snapshot-id"), table["refs"].get(requirement["ref"]))
        return
    if kind == "assert-create":
        raise CommitFailed("Requirement failed: table already exists")
    if kind == "assert-table-uuid":
        what, wanted, found = "UUID does not match: expected", table["table-uuid"].lower(), requirement["uuid"]
    elif kind in _MISMATCHES:
        what, field, fact = _MISMATCHES[kind]
        wanted, found = requirement.get(field), table[fact]
    else:
        raise Invalid(f"there is no requirement {kind!r}")
    if wanted != found:
        raise CommitFailed(f"Requirement failed: {what} {wanted} != {found}")


def _check_ref(name: str, wanted: int | None, ref: Json | None) -> None:
    """Check that a branch or tag has the required snapshot, or does not exist.   Raises: CommitFailed."""
    if ref is None:
        if wanted is not None:
            raise CommitFailed(f"Requirement failed: branch or tag {name} is missing, expected {wanted}")
    elif wanted is None:
        raise CommitFailed(f"Requirement failed: {ref.get('type', 'branch')} {name} was created concurrently")
    elif wanted != ref["snapshot-id"]:
        raise CommitFailed(
            f"Requirement failed: {ref.get('type', 'branch')} {name} has changed: "
            f"expected id {wanted} != {ref['snapshot-id']}"
        )


# ---- commits ----


def joined(updates: Sequence[Any]) -> list[Any]:
    """The updates, with adjacent removals of snapshots joined: older clients send one for each snapshot."""
    whole: list[Any] = []
    for update in updates:
        last: Any = whole[-1] if whole else None
        if not _removes(update):
            whole.append(update)
        elif _removes(last):
            last["snapshot-ids"] += update["snapshot-ids"]
        else:
            whole.append(RemoveSnapshots.of(snapshot_ids=[*update["snapshot-ids"]]))
    return whole


def as_text(update: Any, canonical: Callable[[str], str]) -> Any:
    """A client's update, with its location in canonical form and its properties as text.   Raises: Invalid."""
    kind = kind_of(update)
    if kind is SetLocation and isinstance(update.get("location"), str):
        return {**update, "location": canonical(update["location"])}
    if kind is SetProperties and "updates" in update:
        return {**update, "updates": property_texts(update["updates"])}
    return update


def _removes(update: Any) -> bool:
    return kind_of(update) is RemoveSnapshots and isinstance(update.get("snapshot-ids"), list)


class _Checked(msgspec.Struct):
    updates: Annotated[list[AnyUpdate], msgspec.Meta(max_length=MANY)]
    requirements: Annotated[list[_Requirement], msgspec.Meta(max_length=MANY)]


_BRANCH_ONLY = ("min-snapshots-to-keep", "max-snapshot-age-ms")


def checked(asked: Sequence[Any], required: Sequence[Any] = ()) -> tuple[list[Json], list[Json]]:
    """The updates and the requirements of a commit as a client sent them.

    Raises: Invalid unless they are those of the specification.
    """
    required = [_with_lower_uuid(requirement) for requirement in required]
    try:
        records.converted({"updates": asked, "requirements": required}, _Checked)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Invalid(f"the commit is not valid: {str(error)[:300]}") from None
    for update in asked:
        kind = UPDATES[update["action"]]
        if kind is AddSnapshot:
            check_manifests(update["snapshot"])
        elif kind is UpgradeVersion and update["format-version"] > VERSION:
            refuse_version(update["format-version"])
        elif kind is SetRef and update["type"] == "tag" and any(map(update.get, _BRANCH_ONLY)):
            raise Invalid("Tags do not support setting minSnapshotsToKeep or maxSnapshotAgeMs")
    return [dict(update) for update in asked], required


def _with_lower_uuid(requirement: Any) -> Any:
    match requirement:
        case {"type": "assert-table-uuid", "uuid": str() as uuid}:
            return {**requirement, "uuid": uuid.lower()}
    return requirement


def listed(request: Mapping[str, Any], name: str, most: int) -> list[Any]:
    """A list in a commit. `updates` is required by the specification.   Raises: Invalid."""
    found = request.get(name)
    if found is None and name != "updates":
        return []
    if not isinstance(found, list | tuple):
        raise Invalid(f"Cannot parse {name} from non-array: {name} must be a list")
    if len(found) > most:
        raise Invalid(f"the commit has {len(found)} {name}; at most {most} are taken", hint="commit in several steps")
    return [*found]


@dataclass(frozen=True, slots=True)
class NamedByCommit:
    """What a commit refers to: its new location, its properties, and (kind, URL) of each file."""

    location: str | None
    properties: Mapping[str, str]
    files: Sequence[tuple[str, str]]


_OBJECTS: Mapping[type[Update], tuple[str, type[msgspec.Struct]]] = {
    kind: (field.encode_name, field.type)
    for kind in UPDATES.values()
    for field in msgspec.structs.fields(kind)
    if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
}
"""By kind of update, the field with an object of the specification, as a snapshot or a schema, and its type."""


def named_by(updates: Sequence[Json]) -> NamedByCommit:
    """What checked updates refer to."""
    location: str | None = None
    properties: dict[str, str] = {}
    files: list[tuple[str, str]] = []
    for update in updates:
        kind = UPDATES[update["action"]]
        if kind in _OBJECTS:
            name, object_kind = _OBJECTS[kind]
            files += files_in(update[name], object_kind)
        elif kind is SetRef:
            files += strange_urls(update, SetRef)
        elif kind is SetLocation:
            location = update["location"]
            files.append(("location", update["location"]))
        elif kind is SetProperties:
            properties |= update["updates"]
    return NamedByCommit(location, properties, files)


def updated(table: Json, updates: Sequence[Json], metadata_location: str, now_ms: int) -> Json | None:
    """The metadata after checked updates; None if they change nothing. `table` is not modified.

    `metadata_location`: the location of `table`.   Raises: CommitFailed for a stale snapshot; Invalid.
    """
    work = TableWork(table, now_ms)
    for update in updates:
        UPDATES[update["action"]].apply(work, update)
    if not work.changed:
        return None
    check_whole(work)
    return work.logged(metadata_location)


def created(updates: Sequence[Json], location: str, uuid: str, version: int, now_ms: int) -> Json:
    """The metadata of a table that checked updates create. `location` and `uuid` are defaults.

    Raises: Invalid; CommitFailed.
    """
    empty: Json = {
        "location": location,
        "table-uuid": uuid,
        "last-updated-ms": now_ms,
        "last-column-id": 0,
        "schemas": [],
        "current-schema-id": UNSET_ID,
        "partition-specs": [],
        "default-spec-id": UNSET_ID,
        "last-partition-id": FIRST_PARTITION_ID - 1,
        "properties": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "sort-orders": [],
        "default-sort-order-id": UNSET_ID,
        "refs": {},
        "statistics": [],
        "partition-statistics": [],
        "format-version": version,
        "last-sequence-number": 0,
    }
    if version >= VERSION:
        empty["next-row-id"] = 0
    work = TableWork(empty, now_ms, is_new=True)
    for update in updates:
        UPDATES[update["action"]].apply(work, update)
    check_whole(work)
    return work.table


def chosen_places(updates: object) -> Iterator[Any]:
    """What may become a folder of a table or view, in updates that were not checked yet."""
    for update in updates if isinstance(updates, list) else ():
        kind = kind_of(update)
        if kind is SetLocation:
            yield update.get("location")
        elif kind is SetProperties and isinstance(update.get("updates"), dict):
            yield from update["updates"].values()


def only(kind: type[Update], updates: Sequence[Json]) -> list[Json]:
    """The checked updates of a kind."""
    return [update for update in updates if UPDATES[update["action"]] is kind]


def is_light(update: Json) -> bool:
    """Whether the cost of a checked update does not grow with the schemas, specs and orders of the table."""
    return UPDATES[update["action"]] in LIGHT

"""The updates and requirements of a commit to a table, as clients send them: format versions 1 to 3.

They are checked against types and passed on as they are, with the fields that no specification knows. Their files and
folders are named, for the warehouse to check (F29).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

import msgspec

from limpet import records
from limpet.catalog.iceberg.schemas import (
    UNSET_ID,
    VERSION,
    KebabFields,
    OrderJson,
    SchemaJson,
    SpecJson,
    kebab_names,
)
from limpet.catalog.warehouse import Json, is_url
from limpet.errors import Invalid

ROW_ID_MAX = (1 << 63) - 1

MANY = 1 << 20
Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=ROW_ID_MAX)]
_Positive = Annotated[int, msgspec.Meta(gt=0, le=ROW_ID_MAX)]
Short = Annotated[str, msgspec.Meta(max_length=1 << 20)]
_Ids = Annotated[list[Long], msgspec.Meta(max_length=MANY)]
Texts = Annotated[dict[Short, Short], msgspec.Meta(max_length=MANY)]
AnyUuid = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$", max_length=36)]


# ---- objects in metadata ----


class SnapshotJson(KebabFields):
    """A snapshot. `first_row_id` and `added_rows`: the row lineage, of every snapshot since the table has
    version 3. Those of version 1 may lack the number and the summary."""

    snapshot_id: Long
    timestamp_ms: Long
    manifest_list: Short
    sequence_number: Amount | None = None
    summary: Texts | None = None
    parent_snapshot_id: Long | None = None
    schema_id: Long | None = None
    first_row_id: Amount | None = None
    added_rows: Amount | None = None
    key_id: Short | None = None


class _BlobJson(KebabFields):
    type: Short
    snapshot_id: Long
    sequence_number: Long
    fields: _Ids
    properties: Texts | None = None


class StatisticsJson(KebabFields):
    """A Puffin file with statistics of a snapshot."""

    snapshot_id: Long
    statistics_path: Short
    file_size_in_bytes: Amount
    file_footer_size_in_bytes: Amount
    blob_metadata: Annotated[list[_BlobJson], msgspec.Meta(max_length=MANY)]
    key_metadata: Short | None = None


class PartitionStatisticsJson(KebabFields):
    """A file with statistics of the partitions of a snapshot."""

    snapshot_id: Long
    statistics_path: Short
    file_size_in_bytes: Amount


class KeyJson(KebabFields):
    """An encryption key, itself encrypted by another one."""

    key_id: Short
    encrypted_key_metadata: Short
    encrypted_by_id: Short | None = None
    properties: Texts | None = None


class RefJson(KebabFields):
    """A branch or tag."""

    snapshot_id: Long
    type: Literal["branch", "tag"]
    max_ref_age_ms: _Positive | None = None
    max_snapshot_age_ms: _Positive | None = None
    min_snapshots_to_keep: _Positive | None = None


# ---- updates ----


class _Change(KebabFields, tag_field="action"):
    """An update, by its `action`."""


class _AssignUuidChange(_Change, tag="assign-uuid"):
    uuid: AnyUuid


class _UpgradeVersionChange(_Change, tag="upgrade-format-version"):
    format_version: Annotated[int, msgspec.Meta(ge=0, le=1000)]


class _AddSchemaChange(_Change, tag="add-schema"):
    schema: SchemaJson


class _SetSchemaChange(_Change, tag="set-current-schema"):
    schema_id: Long = UNSET_ID


class _AddSpecChange(_Change, tag="add-spec"):
    spec: SpecJson


class _SetSpecChange(_Change, tag="set-default-spec"):
    spec_id: Long = UNSET_ID


class _AddOrderChange(_Change, tag="add-sort-order"):
    sort_order: OrderJson


class _SetOrderChange(_Change, tag="set-default-sort-order"):
    sort_order_id: Long = UNSET_ID


class _AddSnapshotChange(_Change, tag="add-snapshot"):
    snapshot: SnapshotJson


class _SetRefChange(RefJson, kw_only=True, tag_field="action", tag="set-snapshot-ref"):
    ref_name: Short


class _RemoveRefChange(_Change, tag="remove-snapshot-ref"):
    ref_name: Short


class _RemoveSnapshotsChange(_Change, tag="remove-snapshots"):
    snapshot_ids: _Ids


class _SetLocationChange(_Change, tag="set-location"):
    location: Short


class _PutPropertiesChange(_Change, tag="set-properties"):
    updates: Texts


class _DropPropertiesChange(_Change, tag="remove-properties"):
    removals: Annotated[list[Short], msgspec.Meta(max_length=MANY)]


class _SetStatisticsChange(_Change, tag="set-statistics"):
    statistics: StatisticsJson


class _RemoveStatisticsChange(_Change, tag="remove-statistics"):
    snapshot_id: Long


class _SetPartitionStatisticsChange(_Change, tag="set-partition-statistics"):
    partition_statistics: PartitionStatisticsJson


class _RemovePartitionStatisticsChange(_Change, tag="remove-partition-statistics"):
    snapshot_id: Long


class _RemoveSpecsChange(_Change, tag="remove-partition-specs"):
    spec_ids: _Ids


class _RemoveSchemasChange(_Change, tag="remove-schemas"):
    schema_ids: _Ids


class _AddKeyChange(_Change, tag="add-encryption-key"):
    encryption_key: KeyJson


class _RemoveKeyChange(_Change, tag="remove-encryption-key"):
    key_id: Short


_Update = (
    _AssignUuidChange | _UpgradeVersionChange | _AddSchemaChange | _SetSchemaChange | _AddSpecChange
    | _SetSpecChange | _AddOrderChange | _SetOrderChange | _AddSnapshotChange | _SetRefChange | _RemoveRefChange
    | _RemoveSnapshotsChange | _SetLocationChange | _PutPropertiesChange | _DropPropertiesChange
    | _SetStatisticsChange | _RemoveStatisticsChange | _SetPartitionStatisticsChange
    | _RemovePartitionStatisticsChange | _RemoveSpecsChange | _RemoveSchemasChange | _AddKeyChange
    | _RemoveKeyChange
)  # fmt: skip


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


# ---- commits ----


class _Checked(msgspec.Struct):
    updates: Annotated[list[_Update], msgspec.Meta(max_length=MANY)]
    requirements: Annotated[list[_Requirement], msgspec.Meta(max_length=MANY)]


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
        if update.get("type") == "tag" and (update.get("min-snapshots-to-keep") or update.get("max-snapshot-age-ms")):
            raise Invalid("Tags do not support setting minSnapshotsToKeep or maxSnapshotAgeMs")
        if update["action"] == "add-snapshot":
            check_manifests(update["snapshot"])
        if update["action"] == "upgrade-format-version" and update["format-version"] > VERSION:
            refuse_version(update["format-version"])
    return [dict(update) for update in asked], required


@dataclass(frozen=True, slots=True)
class NamedByCommit:
    """What a commit refers to: its new location, its properties, and (kind, URL) of each file."""

    location: str | None
    properties: Mapping[str, str]
    files: Sequence[tuple[str, str]]


def named_by(updates: Sequence[Json]) -> NamedByCommit:
    """What checked updates refer to."""
    location: str | None = None
    properties: dict[str, str] = {}
    files: list[tuple[str, str]] = []
    for update in updates:
        match update["action"]:
            case "set-location":
                location = update["location"]
                files.append(("location", update["location"]))
            case "set-properties":
                properties |= update["updates"]
            case "add-snapshot":
                files += files_in_snapshot(update["snapshot"])
            case "set-statistics":
                files += files_in_statistics(update["statistics"], StatisticsJson)
            case "set-partition-statistics":
                files += files_in_statistics(update["partition-statistics"], PartitionStatisticsJson)
            case "add-encryption-key":
                files += strange_urls(update["encryption-key"], KeyJson)
            case "set-snapshot-ref":
                files += strange_urls(update, _SetRefChange)
            case "add-schema" | "add-spec" | "add-sort-order":
                kind, key = _PARTS[update["action"]]
                files += strange_urls(update[key], kind)
    return NamedByCommit(location, properties, files)


_PARTS: Mapping[str, tuple[type[msgspec.Struct], str]] = {
    "add-schema": (SchemaJson, "schema"),
    "add-spec": (SpecJson, "spec"),
    "add-sort-order": (OrderJson, "sort-order"),
}


def format_version(updates: Sequence[Json]) -> int:
    """The format version that updates ask for last; 0: none."""
    versions = [update["format-version"] for update in updates if update["action"] == "upgrade-format-version"]
    return int(versions[-1]) if versions else 0


def refuse_version(version: object) -> NoReturn:
    """Refuse a format version.   Raises: Invalid."""
    raise Invalid(
        f"format version {version} is not supported: this catalog supports versions 1 to {VERSION}",
        hint="create the table with format-version 2",
    )


def _with_lower_uuid(requirement: Any) -> Any:
    match requirement:
        case {"type": "assert-table-uuid", "uuid": str() as uuid}:
            return {**requirement, "uuid": uuid.lower()}
    return requirement


def check_manifests(snapshot: Mapping[str, Any]) -> None:
    """Raises: Invalid for a snapshot as in version 1, whose files would not be checked."""
    if "manifests" in snapshot:
        raise Invalid("a snapshot names its manifest list, not its manifests")


def files_in_snapshot(snapshot: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, URL) of each file that a snapshot names."""
    yield "manifest list", snapshot["manifest-list"]
    yield from strange_urls(snapshot, SnapshotJson)


def files_in_statistics(statistics: Mapping[str, Any], kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """(kind, URL) of each file that statistics name."""
    yield "statistics path", statistics["statistics-path"]
    yield from strange_urls(statistics, kind)


def strange_urls(given: Mapping[str, Any], kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """(name, URL) of all URLs in fields that the specification does not define: they are passed on to other clients."""
    known = kebab_names(kind)
    layer = [(name, value) for name, value in given.items() if name not in known]
    while layer:
        inner: list[tuple[str, Any]] = []
        for name, value in layer:
            if isinstance(value, str) and is_url(value):
                yield f"field {name[:100]!r}", value
            elif isinstance(value, Mapping):
                inner += [(name, each) for each in value.values()]
            elif isinstance(value, list | tuple):
                inner += [(name, each) for each in value]
        layer = inner

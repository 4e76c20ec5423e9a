"""Whole tables as JSON: new ones, those that another catalog wrote, and the form in which all of them are changed.

A table of version 1 has its current schema and partition spec twice, and other programs leave out empty lists. `whole`
has every field of its version, as `limpet.catalog.iceberg.metadata` expects it; `document_of` writes it down again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from limpet.catalog.iceberg.commits import checked, created
from limpet.catalog.iceberg.metadata import (
    MAIN,
    MANY,
    PARTS,
    SCHEMAS,
    SPECS,
    Amount,
    AnyUuid,
    KeyJson,
    Long,
    MetadataLogJson,
    PartitionStatisticsJson,
    RefJson,
    Short,
    SnapshotJson,
    StatisticsJson,
    TableWork,
    Texts,
    check_manifests,
    check_whole,
    files_in,
    refuse_version,
    strange_urls,
    used_part,
)
from limpet.catalog.iceberg.schemas import (
    FIRST_PARTITION_ID,
    UNSET_ID,
    VERSION,
    KebabFields,
    OrderJson,
    PartitionFieldJson,
    SchemaJson,
    SpecJson,
    check_order,
    check_spec,
    columns_of,
    converted,
    kebab_names,
    with_field_ids,
    with_new_ids,
    with_null_order,
    with_sources,
)
from limpet.catalog.iceberg.updates import AddOrder, AddSchema, AddSpec, SetOrder, SetProperties, SetSchema, SetSpec
from limpet.catalog.warehouse import Document, Json, property_texts
from limpet.kernel.errors import Corrupt, Invalid

DEFAULT_VERSION = 2
DEFAULTS = {"write.parquet.compression-codec": "zstd"}
"""Properties that the reference implementation sets in new tables: without them Spark writes GZIP."""
NEW_FIELDS = ("schema", "partition-spec", "write-order")
"""The fields of a create request that have a structure."""


# ---- new tables ----


def new_table(request: Mapping[str, Any], location: str, uuid: str, now_ms: int) -> Document:
    """The metadata of a new table, with new ids of its columns.   Raises: Invalid."""
    properties = {**DEFAULTS, **property_texts(request.get("properties") or {})}
    text = properties.get("format-version", str(DEFAULT_VERSION))
    if text not in ("1", "2", "3"):
        refuse_version(text)
    version = int(text)
    given = request.get("schema")
    if not isinstance(given, Mapping) or "fields" not in given:
        raise Invalid("Invalid schema: the schema has no fields")
    schema, ids = with_new_ids(given, version)
    spec, order = _part_of(request, "partition-spec"), _part_of(request, "write-order")
    check_spec(spec, version)
    check_order(order, version)
    spec["fields"] = [
        {**with_sources(field, ids, "partition field"), "field-id": FIRST_PARTITION_ID + at}
        for at, field in enumerate(spec["fields"])
    ]
    order = with_null_order(order)
    order["fields"] = [with_sources(field, ids, "sort field") for field in order["fields"]]
    names = {column.name: column.id for column in columns_of(schema, version).values()}
    for field in spec["fields"]:
        if field["name"] in names and not (
            field["transform"] in ("identity", "void") and names[field["name"]] == field.get("source-id")
        ):
            raise Invalid(f"Cannot create partition with a name that exists in schema: {field['name']}")
    updates = [
        AddSchema.of(schema=schema),
        SetSchema.of(),
        AddSpec.of(spec={**spec, "spec-id": 0}),
        SetSpec.of(),
        AddOrder.of(sort_order={**order, "order-id": 1 if order["fields"] else 0}),
        SetOrder.of(),
        SetProperties.of(updates={key: text for key, text in properties.items() if key != "format-version"}),
    ]
    checked(updates)
    return document_of(created(updates, location, uuid, version, now_ms))


def _part_of(request: Mapping[str, Any], name: str) -> Json:
    given = request.get(name) or {}
    if not isinstance(given, Mapping):
        raise Invalid(f"{name} must be an object")
    return {"fields": [], **given}


# ---- tables of other programs, and those of the catalog ----


class _SnapshotLogJson(KebabFields):
    snapshot_id: Long
    timestamp_ms: Long


class _TableJson(KebabFields):
    """The fields of a table of every version. A table of version 1 may lack the lists of schemas, specs and orders."""

    format_version: Literal[1, 2, 3]
    table_uuid: AnyUuid
    location: Short
    last_updated_ms: Long
    last_column_id: Amount
    last_sequence_number: Amount | None = None
    next_row_id: Amount | None = None
    schemas: Annotated[list[SchemaJson], msgspec.Meta(min_length=1, max_length=MANY)] | None = None
    current_schema_id: Long | None = None
    partition_specs: Annotated[list[SpecJson], msgspec.Meta(min_length=1, max_length=MANY)] | None = None
    default_spec_id: Long | None = None
    last_partition_id: Amount | None = None
    sort_orders: Annotated[list[OrderJson], msgspec.Meta(min_length=1, max_length=MANY)] | None = None
    default_sort_order_id: Long | None = None
    properties: Texts | None = None
    current_snapshot_id: Long | None = None
    snapshots: Annotated[list[SnapshotJson], msgspec.Meta(max_length=MANY)] | None = None
    snapshot_log: Annotated[list[_SnapshotLogJson], msgspec.Meta(max_length=MANY)] | None = None
    metadata_log: Annotated[list[MetadataLogJson], msgspec.Meta(max_length=MANY)] | None = None
    refs: Annotated[dict[Short, RefJson], msgspec.Meta(max_length=MANY)] | None = None
    statistics: Annotated[list[StatisticsJson], msgspec.Meta(max_length=MANY)] | None = None
    partition_statistics: Annotated[list[PartitionStatisticsJson], msgspec.Meta(max_length=MANY)] | None = None
    encryption_keys: Annotated[list[KeyJson], msgspec.Meta(max_length=MANY)] | None = None
    schema: SchemaJson | None = None
    partition_spec: Annotated[list[PartitionFieldJson], msgspec.Meta(max_length=MANY)] | None = None


_LISTS = ("snapshots", "snapshot-log", "metadata-log", "statistics", "partition-statistics")
_ALWAYS = (
    *("schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id"),
    *("sort-orders", "default-sort-order-id", "last-sequence-number"),
)
_ONLY_VERSION_1 = ("schema", "partition-spec")


def registered(given: Mapping[str, Any]) -> tuple[Json, list[tuple[str, str]]]:
    """A table that another program wrote, and (kind, URL) of each file in it.   Raises: Invalid."""
    version = given.get("format-version")
    if isinstance(version, int) and version > VERSION:
        refuse_version(version)
    table = _completed(given)
    work = TableWork(table, table["last-updated-ms"], is_new=True)
    check_whole(work)
    for kind in PARTS:
        _check_unique([part.get(kind.id, 0) for part in table[kind.listed]], kind.id)
    _check_unique([snapshot["snapshot-id"] for snapshot in table["snapshots"]], "snapshot-id")
    snapshot_ids = {snapshot["snapshot-id"] for snapshot in table["snapshots"]}
    for name, ref in table["refs"].items():
        if ref["snapshot-id"] not in snapshot_ids:
            raise Invalid(f"Cannot set {name} to unknown snapshot: {ref['snapshot-id']}")
    for snapshot in table["snapshots"]:
        check_manifests(snapshot)
        if snapshot.get("first-row-id") is not None and work.version >= VERSION:
            end = snapshot["first-row-id"] + (snapshot.get("added-rows") or 0)
            if end > table["next-row-id"]:
                raise Invalid(f"the metadata is not valid: next-row-id {table['next-row-id']} is below row id {end}")
    return table, [*_files_in(table)]


def _completed(given: Mapping[str, Any]) -> Json:
    """The metadata with every field of its version.   Raises: Invalid."""
    converted(given, _TableJson, "the metadata")
    fields = kebab_names(_TableJson)
    table: Json = {name: value for name, value in given.items() if value is not None or name not in fields}
    for name in _LISTS:
        table.setdefault(name, [])
    table.setdefault("properties", {})
    if table["format-version"] == 1:
        _complete_version_1(table)
    missing = [name for name in _ALWAYS if name not in table]
    if table["format-version"] >= VERSION and "next-row-id" not in table:
        missing.append("next-row-id")
    if missing:
        raise Invalid(f"the metadata is not valid: it has no {missing[0]}")
    refs = table.setdefault("refs", {})
    if table.get("current-snapshot-id", UNSET_ID) == UNSET_ID:
        table.pop("current-snapshot-id", None)
    elif MAIN not in refs:
        table["refs"] = {**refs, MAIN: {"snapshot-id": table["current-snapshot-id"], "type": "branch"}}
    if table["refs"].get(MAIN, {}).get("snapshot-id") != table.get("current-snapshot-id"):
        raise Invalid("the metadata is not valid: the current snapshot is not that of the main branch")
    table["table-uuid"] = table["table-uuid"].lower()
    return table


def _complete_version_1(table: Json) -> None:
    """Add the lists of schemas, partition specs and sort orders, which the first writers of Iceberg left out."""
    schema, fields = (table.pop(name, None) for name in _ONLY_VERSION_1)
    table["last-sequence-number"] = 0
    if "schemas" not in table:
        if schema is None:
            raise Invalid("the metadata is not valid: it has no schema")
        table["schemas"] = [{"schema-id": 0, **schema}]
    if "current-schema-id" not in table:
        table["current-schema-id"] = table["schemas"][-1].get("schema-id", 0)
    if "partition-specs" not in table:
        if fields is None:
            raise Invalid("the metadata is not valid: it has no partition-spec")
        check_spec({"fields": fields}, 1)
        table["partition-specs"] = [with_field_ids({"spec-id": 0, "fields": fields}, (), FIRST_PARTITION_ID - 1)]
    table.setdefault("default-spec-id", table["partition-specs"][-1].get("spec-id", 0))
    ids = [field["field-id"] for spec in table["partition-specs"] for field in spec["fields"]]
    table.setdefault("last-partition-id", max([FIRST_PARTITION_ID - 1, *ids]))
    table.setdefault("sort-orders", [{"order-id": 0, "fields": []}])
    table.setdefault("default-sort-order-id", 0)


def _check_unique(ids: Sequence[int], what: str) -> None:
    if len({*ids}) != len(ids):
        raise Invalid(f"the metadata is not valid: a {what} is used twice")


def _files_in(table: Json) -> Iterator[tuple[str, str]]:
    yield "location", table["location"]
    yield from strange_urls(table, _TableJson)
    for entry in table["metadata-log"]:
        yield "metadata log", entry["metadata-file"]
    kinds: tuple[tuple[str, type[msgspec.Struct]], ...] = (
        ("snapshots", SnapshotJson),
        *(("statistics", StatisticsJson), ("partition-statistics", PartitionStatisticsJson)),
        *((kind.listed, kind.type) for kind in PARTS),
        ("encryption-keys", KeyJson),
    )
    for name, kind in kinds:
        for each in table.get(name, ()):
            yield from files_in(each, kind)
    for ref in table["refs"].values():
        yield from strange_urls(ref, RefJson)


# ---- documents ----


def whole(document: Document) -> Json:
    """The metadata of a table with every field of its version; kept in the document.   Raises: Corrupt."""
    if document.table is None:
        try:
            document.table = _completed(document.json())
        except Invalid as error:
            raise Corrupt(str(error)) from None
    return document.table


def document_of(table: Json) -> Document:
    """The document of whole metadata.   Raises: Invalid for numbers of more than 64 bits."""
    written = table
    if table["format-version"] == 1:  # its readers may know only these fields of the current schema and spec
        fields = used_part(table, SPECS)["fields"]
        written = {**table, "schema": used_part(table, SCHEMAS), "partition-spec": fields}
        del written["last-sequence-number"]
    try:
        document = Document(msgspec.json.encode(written), written)
    except OverflowError as error:
        raise Invalid(f"the table is not valid: {error}") from None
    document.table = table
    return document

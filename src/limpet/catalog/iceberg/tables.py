"""The metadata of tables of format version 3, as plain JSON.

PyIceberg cannot write version 3, and its models lack some of its types and fields. So schemas, specs, snapshots, keys
and statistics of such a table are the JSON that a client sent: checked against types, and passed on unchanged. Older
tables are changed by `limpet.catalog.warehouse`, as far as snapshots, branches and properties go, and else by PyIceberg
(`limpet.catalog.iceberg.updates`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Annotated, Any, Literal, NoReturn

import msgspec

from limpet import records
from limpet.catalog.iceberg.schemas import (
    FIRST_PARTITION_ID,
    UNSET_ID,
    VERSION,
    KebabFields,
    OrderJson,
    SchemaJson,
    SpecJson,
    check_bound,
    check_order,
    check_spec,
    columns_of,
    kebab_names,
    with_field_ids,
    with_new_ids,
    with_null_order,
    with_sources,
)
from limpet.catalog.state import CommitFailed
from limpet.catalog.warehouse import MAIN, PLAIN_UPDATES, Json, PlainWork, Requirement, is_plain, is_url
from limpet.errors import Invalid

OPERATIONS = frozenset(("append", "replace", "overwrite", "delete"))
ROW_ID_MAX = (1 << 63) - 1

_MANY = 1 << 20
_Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=ROW_ID_MAX)]
_Positive = Annotated[int, msgspec.Meta(gt=0, le=ROW_ID_MAX)]
_Short = Annotated[str, msgspec.Meta(max_length=1 << 20)]
_Ids = Annotated[list[_Long], msgspec.Meta(max_length=_MANY)]
_Texts = Annotated[dict[_Short, _Short], msgspec.Meta(max_length=_MANY)]
_AnyUuid = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$", max_length=36)]


# ---- updates as clients send them, for version 3 ----


class SnapshotJson(KebabFields):
    """A snapshot. `first_row_id` and `added_rows`: the row lineage, of every snapshot since the table has version 3."""

    snapshot_id: _Long
    sequence_number: _Count
    timestamp_ms: _Long
    manifest_list: _Short
    summary: _Texts
    parent_snapshot_id: _Long | None = None
    schema_id: _Long | None = None
    first_row_id: _Count | None = None
    added_rows: _Count | None = None
    key_id: _Short | None = None


class _BlobJson(KebabFields):
    type: _Short
    snapshot_id: _Long
    sequence_number: _Long
    fields: _Ids
    properties: _Texts | None = None


class StatisticsJson(KebabFields):
    """A Puffin file with statistics of a snapshot."""

    snapshot_id: _Long
    statistics_path: _Short
    file_size_in_bytes: _Count
    file_footer_size_in_bytes: _Count
    blob_metadata: Annotated[list[_BlobJson], msgspec.Meta(max_length=_MANY)]
    key_metadata: _Short | None = None


class PartitionStatisticsJson(KebabFields):
    """A file with statistics of the partitions of a snapshot."""

    snapshot_id: _Long
    statistics_path: _Short
    file_size_in_bytes: _Count


class KeyJson(KebabFields):
    """An encryption key, itself encrypted by another one."""

    key_id: _Short
    encrypted_key_metadata: _Short
    encrypted_by_id: _Short | None = None
    properties: _Texts | None = None


class RefJson(KebabFields):
    """A branch or tag."""

    snapshot_id: _Long
    type: Literal["branch", "tag"]
    max_ref_age_ms: _Positive | None = None
    max_snapshot_age_ms: _Positive | None = None
    min_snapshots_to_keep: _Positive | None = None


class _Change(KebabFields, tag_field="action"):
    """An update, by its `action`."""


class _AssignUuidChange(_Change, tag="assign-uuid"):
    uuid: _AnyUuid


class _UpgradeVersionChange(_Change, tag="upgrade-format-version"):
    format_version: Annotated[int, msgspec.Meta(ge=0, le=1000)]


class _AddSchemaChange(_Change, tag="add-schema"):
    schema: SchemaJson


class _SetSchemaChange(_Change, tag="set-current-schema"):
    schema_id: _Long = UNSET_ID


class _AddSpecChange(_Change, tag="add-spec"):
    spec: SpecJson


class _SetSpecChange(_Change, tag="set-default-spec"):
    spec_id: _Long = UNSET_ID


class _AddOrderChange(_Change, tag="add-sort-order"):
    sort_order: OrderJson


class _SetOrderChange(_Change, tag="set-default-sort-order"):
    sort_order_id: _Long = UNSET_ID


class _AddSnapshotChange(_Change, tag="add-snapshot"):
    snapshot: SnapshotJson


class _SetRefChange(RefJson, kw_only=True, tag_field="action", tag="set-snapshot-ref"):
    ref_name: _Short


class _RemoveRefChange(_Change, tag="remove-snapshot-ref"):
    ref_name: _Short


class _RemoveSnapshotsChange(_Change, tag="remove-snapshots"):
    snapshot_ids: _Ids


class _SetLocationChange(_Change, tag="set-location"):
    location: _Short


class _PutPropertiesChange(_Change, tag="set-properties"):
    updates: _Texts


class _DropPropertiesChange(_Change, tag="remove-properties"):
    removals: Annotated[list[_Short], msgspec.Meta(max_length=_MANY)]


class _SetStatisticsChange(_Change, tag="set-statistics"):
    statistics: StatisticsJson


class _RemoveStatisticsChange(_Change, tag="remove-statistics"):
    snapshot_id: _Long


class _SetPartitionStatisticsChange(_Change, tag="set-partition-statistics"):
    partition_statistics: PartitionStatisticsJson


class _RemovePartitionStatisticsChange(_Change, tag="remove-partition-statistics"):
    snapshot_id: _Long


class _RemoveSpecsChange(_Change, tag="remove-partition-specs"):
    spec_ids: _Ids


class _RemoveSchemasChange(_Change, tag="remove-schemas"):
    schema_ids: _Ids


class _AddKeyChange(_Change, tag="add-encryption-key"):
    encryption_key: KeyJson


class _RemoveKeyChange(_Change, tag="remove-encryption-key"):
    key_id: _Short


_Update = (
    _AssignUuidChange | _UpgradeVersionChange | _AddSchemaChange | _SetSchemaChange | _AddSpecChange
    | _SetSpecChange | _AddOrderChange | _SetOrderChange | _AddSnapshotChange | _SetRefChange | _RemoveRefChange
    | _RemoveSnapshotsChange | _SetLocationChange | _PutPropertiesChange | _DropPropertiesChange
    | _SetStatisticsChange | _RemoveStatisticsChange | _SetPartitionStatisticsChange
    | _RemovePartitionStatisticsChange | _RemoveSpecsChange | _RemoveSchemasChange | _AddKeyChange
    | _RemoveKeyChange
)  # fmt: skip


class _Checked(msgspec.Struct):
    updates: Annotated[list[_Update], msgspec.Meta(max_length=_MANY)]
    requirements: Annotated[list[Requirement], msgspec.Meta(max_length=_MANY)]


class ExactCommit:
    """The updates and requirements of a commit as a client sent them, checked on demand.

    Each property raises Invalid for what the specification of version 3 does not allow.
    """

    def __init__(self, asked: Sequence[Any], required: Sequence[Any]) -> None:
        self._asked = asked
        self._required = required

    @cached_property
    def _both(self) -> tuple[list[Json], list[Json]]:
        required = [_with_lower_uuid(each) for each in self._required]
        try:
            records.converted({"updates": self._asked, "requirements": required}, _Checked)
        except (msgspec.ValidationError, RecursionError) as error:
            raise Invalid(f"the commit is not valid: {str(error)[:300]}") from None
        for each in self._asked:
            if each.get("type") == "tag" and (each.get("min-snapshots-to-keep") or each.get("max-snapshot-age-ms")):
                raise Invalid("Tags do not support setting minSnapshotsToKeep or maxSnapshotAgeMs")
            if each["action"] == "add-snapshot":
                _check_manifests(each["snapshot"])
        return [dict(each) for each in self._asked], required

    @property
    def updates(self) -> Sequence[Json]:
        """The updates."""
        return self._both[0]

    @property
    def requirements(self) -> Sequence[Json]:
        """The requirements."""
        return self._both[1]

    def named(self) -> tuple[str | None, dict[str, str], list[tuple[str, str]]]:
        """What the updates refer to: the new location, the properties, and (kind, URL) of each file."""
        location: str | None = None
        properties: dict[str, str] = {}
        files: list[tuple[str, str]] = []
        for update in self.updates:
            match update["action"]:
                case "set-location":
                    location = update["location"]
                    files.append(("location", update["location"]))
                case "set-properties":
                    properties |= update["updates"]
                case "add-snapshot":
                    files += _in_snapshot(update["snapshot"])
                case "set-statistics":
                    files += _in_statistics(update["statistics"], StatisticsJson)
                case "set-partition-statistics":
                    files += _in_statistics(update["partition-statistics"], PartitionStatisticsJson)
                case "add-encryption-key":
                    files += _strange_urls(update["encryption-key"], KeyJson)
                case "set-snapshot-ref":
                    files += _strange_urls(update, _SetRefChange)
                case "add-schema" | "add-spec" | "add-sort-order":
                    kind, key = _PARTS[update["action"]]
                    files += _strange_urls(update[key], kind)
        return location, properties, files


_PARTS: Mapping[str, tuple[type[msgspec.Struct], str]] = {
    "add-schema": (SchemaJson, "schema"),
    "add-spec": (SpecJson, "spec"),
    "add-sort-order": (OrderJson, "sort-order"),
}


def format_version(updates: Sequence[Any]) -> int:
    """The highest format version that updates ask for; 0: none."""
    asked = [each.get("format-version") for each in updates if _is_upgrade(each)]
    return max([0, *(version for version in asked if type(version) is int)])


def _is_upgrade(update: Any) -> bool:
    return isinstance(update, Mapping) and update.get("action") == "upgrade-format-version"


def refuse_later(updates: Sequence[Any], version: int) -> None:
    """Name what needs version 3 in updates of an older table.   Raises: Invalid, if there is something."""
    for update in updates:
        match update:
            case {"action": "add-encryption-key" | "remove-encryption-key"}:
                raise Invalid(f"the table has format version {version}: encryption keys are not supported until v3")
            case {"action": "add-schema", "schema": Mapping() as schema}:
                columns_of(schema, version)
            case {"action": "add-spec", "spec": Mapping() as spec}:
                check_spec(spec, version)
            case {"action": "add-sort-order", "sort-order": Mapping() as order}:
                check_order(order, version)


def refuse_version(version: object) -> NoReturn:
    """Raises: Invalid."""
    raise Invalid(
        f"format version {version} is not supported: this catalog supports versions 1 to {VERSION}",
        hint="create the table with format-version 2",
    )


def _with_lower_uuid(requirement: Any) -> Any:
    match requirement:
        case {"type": "assert-table-uuid", "uuid": str() as uuid}:
            return {**requirement, "uuid": uuid.lower()}
    return requirement


def _check_manifests(snapshot: Mapping[str, Any]) -> None:
    """Raises: Invalid for a snapshot as in version 1, whose files would not be checked."""
    if "manifests" in snapshot:
        raise Invalid("a snapshot names its manifest list, not its manifests")


def _in_snapshot(snapshot: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "manifest list", snapshot["manifest-list"]
    yield from _strange_urls(snapshot, SnapshotJson)


def _in_statistics(statistics: Mapping[str, Any], kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    yield "statistics path", statistics["statistics-path"]
    yield from _strange_urls(statistics, kind)


def _strange_urls(given: Mapping[str, Any], kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
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


# ---- new tables, and tables of other catalogs ----


def new_table(request: Mapping[str, Any], location: str, uuid: str, now_ms: int, properties: Mapping[str, str]) -> Json:
    """The metadata of a new table of version 3, with new ids of its columns.   Raises: Invalid."""
    given = request.get("schema")
    if not isinstance(given, Mapping) or "fields" not in given:
        raise Invalid("Invalid schema: the schema has no fields")
    schema, ids = with_new_ids(given)
    spec, order = _part_of(request, "partition-spec"), _part_of(request, "write-order")
    check_spec(spec)
    check_order(order)
    spec["fields"] = [
        {**with_sources(field, ids, "partition field"), "field-id": FIRST_PARTITION_ID + at}
        for at, field in enumerate(spec["fields"])
    ]
    order = with_null_order(order)
    order["fields"] = [with_sources(field, ids, "sort field") for field in order["fields"]]
    names = {column.name: column.id for column in columns_of(schema).values()}
    for field in spec["fields"]:
        if field["name"] in names and not (
            field["transform"] in ("identity", "void") and names[field["name"]] == field.get("source-id")
        ):
            raise Invalid(f"Cannot create partition with a name that exists in schema: {field['name']}")
    updates: list[Json] = [
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema"},
        {"action": "add-spec", "spec": {**spec, "spec-id": 0}},
        {"action": "set-default-spec"},
        {"action": "add-sort-order", "sort-order": {**order, "order-id": 1 if order["fields"] else 0}},
        {"action": "set-default-sort-order"},
        {"action": "set-properties", "updates": dict(properties)},
    ]
    ExactCommit(updates, ()).updates  # noqa: B018  (checks the types of what the client sent)
    return created(updates, location, uuid, now_ms)


def _part_of(request: Mapping[str, Any], name: str) -> Json:
    given = request.get(name) or {}
    if not isinstance(given, Mapping):
        raise Invalid(f"{name} must be an object")
    return {"fields": [], **given}


def created(updates: Sequence[Json], location: str, uuid: str, now_ms: int) -> Json:
    """The metadata of a table of version 3 that a commit creates. `location` and `uuid` are defaults.

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
        "format-version": VERSION,
        "last-sequence-number": 0,
        "next-row-id": 0,
    }
    work = _ExactWork(empty, now_ms, is_new=True)
    for update in updates:
        _UPDATES[update["action"]](work, update)
    _check_whole(work)
    return work.table


class _SnapshotLogJson(KebabFields):
    snapshot_id: _Long
    timestamp_ms: _Long


class _MetadataLogJson(KebabFields):
    metadata_file: _Short
    timestamp_ms: _Long


class _ExactTable(KebabFields):
    """The fields of a table of version 3."""

    format_version: Literal[3]
    table_uuid: _AnyUuid
    location: _Short
    last_sequence_number: _Count
    next_row_id: _Count
    last_updated_ms: _Long
    last_column_id: _Count
    schemas: Annotated[list[SchemaJson], msgspec.Meta(min_length=1, max_length=_MANY)]
    current_schema_id: _Long
    partition_specs: Annotated[list[SpecJson], msgspec.Meta(min_length=1, max_length=_MANY)]
    default_spec_id: _Long
    last_partition_id: _Count
    sort_orders: Annotated[list[OrderJson], msgspec.Meta(min_length=1, max_length=_MANY)]
    default_sort_order_id: _Long
    properties: _Texts | None = None
    current_snapshot_id: _Long | None = None
    snapshots: Annotated[list[SnapshotJson], msgspec.Meta(max_length=_MANY)] | None = None
    snapshot_log: Annotated[list[_SnapshotLogJson], msgspec.Meta(max_length=_MANY)] | None = None
    metadata_log: Annotated[list[_MetadataLogJson], msgspec.Meta(max_length=_MANY)] | None = None
    refs: Annotated[dict[_Short, RefJson], msgspec.Meta(max_length=_MANY)] | None = None
    statistics: Annotated[list[StatisticsJson], msgspec.Meta(max_length=_MANY)] | None = None
    partition_statistics: Annotated[list[PartitionStatisticsJson], msgspec.Meta(max_length=_MANY)] | None = None
    encryption_keys: Annotated[list[KeyJson], msgspec.Meta(max_length=_MANY)] | None = None


_LISTS = ("snapshots", "snapshot-log", "metadata-log", "statistics", "partition-statistics")


def registered(given: Mapping[str, Any]) -> tuple[Json, list[tuple[str, str]]]:
    """A table of version 3 that another catalog wrote, and (kind, URL) of each file in it.   Raises: Invalid."""
    try:
        records.converted(given, _ExactTable)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Invalid(f"the metadata is not valid: {str(error)[:300]}") from None
    known_names = kebab_names(_ExactTable)
    table: Json = {name: value for name, value in given.items() if value is not None or name not in known_names}
    for name in _LISTS:
        table.setdefault(name, [])
    table.setdefault("properties", {})
    refs = table.setdefault("refs", {})
    if table.get("current-snapshot-id", UNSET_ID) == UNSET_ID:
        table.pop("current-snapshot-id", None)
    elif MAIN not in refs:
        table["refs"] = {**refs, MAIN: {"snapshot-id": table["current-snapshot-id"], "type": "branch"}}
    if table["refs"].get(MAIN, {}).get("snapshot-id") != table.get("current-snapshot-id"):
        raise Invalid("the metadata is not valid: the current snapshot is not that of the main branch")
    table["table-uuid"] = table["table-uuid"].lower()
    if not is_plain(msgspec.json.encode(table)):
        raise Invalid("the metadata is not valid: its logs or its branches have fields of other types")
    _check_whole(_ExactWork(table, table["last-updated-ms"], is_new=True))
    for name, ids in (("schemas", "schema-id"), ("partition-specs", "spec-id"), ("sort-orders", "order-id")):
        _unique([each.get(ids, 0) for each in table[name]], ids)
    _unique([each["snapshot-id"] for each in table["snapshots"]], "snapshot-id")
    known = {each["snapshot-id"] for each in table["snapshots"]}
    for name, ref in table["refs"].items():
        if ref["snapshot-id"] not in known:
            raise Invalid(f"Cannot set {name} to unknown snapshot: {ref['snapshot-id']}")
    for snapshot in table["snapshots"]:
        _check_manifests(snapshot)
        if snapshot.get("first-row-id") is not None:
            end = snapshot["first-row-id"] + (snapshot.get("added-rows") or 0)
            if end > table["next-row-id"]:
                raise Invalid(f"the metadata is not valid: next-row-id {table['next-row-id']} is below row id {end}")
    return table, [*_files_in(table)]


def _unique(ids: Sequence[int], what: str) -> None:
    if len({*ids}) != len(ids):
        raise Invalid(f"the metadata is not valid: a {what} is used twice")


def _files_in(table: Json) -> Iterator[tuple[str, str]]:
    yield "location", table["location"]
    yield from _strange_urls(table, _ExactTable)
    for snapshot in table["snapshots"]:
        yield from _in_snapshot(snapshot)
    for entry in table["metadata-log"]:
        yield "metadata log", entry["metadata-file"]
    for name, kind in (("statistics", StatisticsJson), ("partition-statistics", PartitionStatisticsJson)):
        for each in table[name]:
            yield from _in_statistics(each, kind)
    parts = (("schemas", SchemaJson), ("partition-specs", SpecJson), ("sort-orders", OrderJson))
    for name, part in (*parts, ("encryption-keys", KeyJson)):
        for each in table.get(name, ()):
            yield from _strange_urls(each, part)
    for ref in table["refs"].values():
        yield from _strange_urls(ref, RefJson)


# ---- updates of schemas, specs, orders, statistics and keys ----


class JsonIds:
    """The schemas, specs or orders of a table by id, and the mapping from the ids in a request.

    `encode`: the bytes of one without its id.
    """

    def __init__(self, known: dict[int, Any], encode: Callable[[Any], bytes]) -> None:
        self.known = known
        self._encode = encode
        self._ids: dict[bytes, int] | None = None
        self._meant: dict[int, int] = {}

    def place(self, wanted: int, body: Any) -> int | None:
        """The id for a new one; None if the table has an equal one already, under any id.

        They are compared by their bytes: comparing each pair takes seconds for a thousand of them.
        """
        if self._ids is None:
            self._ids = {}
            for id_, known in self.known.items():
                self._ids.setdefault(self._encode(known), id_)
        new = self._encode(body)
        found = self._ids.get(new)
        id_ = found if found is not None else wanted if wanted not in self.known else max(self.known) + 1
        is_new = found is None
        if is_new:
            self.known[id_] = body
            self._ids[new] = id_
        self._meant[wanted] = self._meant[UNSET_ID] = id_
        return id_ if is_new else None

    def meant(self, id_: int, what: str) -> int:
        """The id in the table for an id in the request.   Raises: Invalid."""
        if id_ == UNSET_ID and UNSET_ID not in self._meant:
            raise Invalid(f"Cannot set last added {what}: no {what} has been added")
        return self._meant.get(id_, id_)


def _json_ids(parts: Sequence[Json], id_name: str) -> JsonIds:
    def encode(body: Json) -> bytes:
        return records.json_text({name: value for name, value in body.items() if name != id_name}).encode()

    return JsonIds({each.get(id_name, 0): each for each in parts}, encode)


class _ExactWork(PlainWork):
    """Metadata of any version, with schemas, specs and orders by id. `is_new`: the table is being created."""

    def __init__(self, table: Json, now_ms: int, *, is_new: bool = False) -> None:
        super().__init__(table, now_ms)
        self.is_new = is_new

    @cached_property
    def schemas(self) -> JsonIds:
        """The schemas by id."""
        return _json_ids(self.table["schemas"], "schema-id")

    @cached_property
    def specs(self) -> JsonIds:
        """The partition specs by id."""
        return _json_ids(self.table["partition-specs"], "spec-id")

    @cached_property
    def orders(self) -> JsonIds:
        """The sort orders by id."""
        return _json_ids(self.table["sort-orders"], "order-id")

    @property
    def parts_changed(self) -> bool:
        """Whether schemas, specs or orders were added, removed or set."""
        return not {"schemas", "specs", "orders"}.isdisjoint(vars(self))

    def assign_rows(self, snapshot: Json) -> None:
        """Take over the row ids of a new snapshot.   Raises: CommitFailed if they may be taken already; Invalid."""
        if self.table["format-version"] < VERSION:
            super().assign_rows(snapshot)
            return
        if snapshot["summary"].get("operation") not in OPERATIONS:
            raise Invalid(f"the summary of a snapshot has an operation: {', '.join(sorted(OPERATIONS))}")
        self.table["next-row-id"] = _after_rows(snapshot, self.table["next-row-id"])

    def drop_statistics(self, gone: Set[int]) -> None:
        super().drop_statistics(gone)
        if self.table["format-version"] >= VERSION and self.table.get("partition-statistics"):
            left = [each for each in self.table["partition-statistics"] if each["snapshot-id"] not in gone]
            self.set(partition_statistics=left)


def _after_rows(snapshot: Json, next_row_id: int) -> int:
    """The table's next row id after a snapshot. Row ids of a snapshot are never those of another one.

    Raises: CommitFailed if its row ids may be taken already: another commit was first; Invalid.
    """
    first, added = snapshot.get("first-row-id"), snapshot.get("added-rows")
    if first is None or added is None:
        raise Invalid(f"Cannot add a snapshot: {'first-row-id' if first is None else 'added-rows'} is null")
    if first < next_row_id:
        raise CommitFailed(f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first} < {next_row_id}")
    if first + added > ROW_ID_MAX:
        raise Invalid(f"Cannot add a snapshot: row ids end at {ROW_ID_MAX}")
    return int(first + added)


def _assign_uuid(work: _ExactWork, update: Json) -> None:
    if update["uuid"].lower() == work.table["table-uuid"].lower():
        return
    if not work.is_new:
        raise Invalid(f"Cannot reassign uuid: the table has {work.table['table-uuid']}")
    work.set(table_uuid=update["uuid"].lower())


def _upgrade(work: _ExactWork, update: Json) -> None:
    wanted, version = update["format-version"], work.table["format-version"]
    if wanted > VERSION:
        refuse_version(wanted)
    if work.is_new or wanted == version:
        return
    if wanted < version:
        raise Invalid(f"Cannot downgrade v{version} table to v{wanted}")
    work.set(format_version=wanted)
    if wanted == VERSION:
        work.set(next_row_id=0)


def _add_schema(work: _ExactWork, update: Json) -> None:
    schema = {"type": "struct", **update["schema"]}
    columns = columns_of(schema, work.table["format-version"])
    id_ = work.schemas.place(schema.get("schema-id", 0), schema)
    if id_ is not None:
        schema["schema-id"] = id_
        last = max([work.table["last-column-id"], *columns])
        work.set(schemas=[*work.table["schemas"], schema], last_column_id=last)


def _set_schema(work: _ExactWork, update: Json) -> None:
    id_ = work.schemas.meant(update.get("schema-id", UNSET_ID), "schema")
    if id_ not in work.schemas.known:
        raise Invalid(f"Cannot set current schema to unknown schema: {id_}")
    if id_ != work.table["current-schema-id"]:
        work.set(current_schema_id=id_)


def _add_spec(work: _ExactWork, update: Json) -> None:
    check_spec(update["spec"], work.table["format-version"])
    older = [field for spec in work.table["partition-specs"] for field in spec["fields"]]
    spec = with_field_ids(update["spec"], older, work.table["last-partition-id"])
    id_ = work.specs.place(spec.get("spec-id", 0), spec)
    if id_ is not None:
        spec["spec-id"] = id_
        last = max([work.table["last-partition-id"], *(field["field-id"] for field in spec["fields"])])
        work.set(partition_specs=[*work.table["partition-specs"], spec], last_partition_id=last)


def _set_spec(work: _ExactWork, update: Json) -> None:
    id_ = work.specs.meant(update.get("spec-id", UNSET_ID), "partition spec")
    if id_ not in work.specs.known:
        raise Invalid(f"Cannot set default partition spec to unknown spec: {id_}")
    if id_ != work.table["default-spec-id"]:
        work.set(default_spec_id=id_)


def _add_order(work: _ExactWork, update: Json) -> None:
    check_order(update["sort-order"], work.table["format-version"])
    order = with_null_order(update["sort-order"])
    id_ = work.orders.place(order.get("order-id", 0) if order["fields"] else 0, order)
    if id_ is not None:
        order["order-id"] = id_
        work.set(sort_orders=[*work.table["sort-orders"], order])


def _set_order(work: _ExactWork, update: Json) -> None:
    id_ = work.orders.meant(update.get("sort-order-id", UNSET_ID), "sort order")
    if id_ not in work.orders.known:
        raise Invalid(f"Cannot set default sort order to unknown sort order: {id_}")
    if id_ != work.table["default-sort-order-id"]:
        work.set(default_sort_order_id=id_)


def _set_location(work: _ExactWork, update: Json) -> None:
    location = update["location"].rstrip("/")
    if location != work.table["location"]:
        work.set(location=location)


def _set_statistics(work: _ExactWork, update: Json) -> None:
    _replace_statistics(work, "statistics", update["statistics"]["snapshot-id"], [update["statistics"]])


def _remove_statistics(work: _ExactWork, update: Json) -> None:
    _replace_statistics(work, "statistics", update["snapshot-id"], [])


def _set_partition_statistics(work: _ExactWork, update: Json) -> None:
    new = update["partition-statistics"]
    _replace_statistics(work, "partition-statistics", new["snapshot-id"], [new])


def _remove_partition_statistics(work: _ExactWork, update: Json) -> None:
    _replace_statistics(work, "partition-statistics", update["snapshot-id"], [])


def _replace_statistics(work: _ExactWork, name: str, snapshot_id: int, new: list[Json]) -> None:
    before = work.table.get(name) or []
    after = [*(each for each in before if each["snapshot-id"] != snapshot_id), *new]
    if after != before:
        work.set(**{name: after})


def _remove_specs(work: _ExactWork, update: Json) -> None:
    _remove_parts(work, "partition-specs", "spec-id", {*update["spec-ids"]}, work.table["default-spec-id"], work.specs)


def _remove_schemas(work: _ExactWork, update: Json) -> None:
    gone = {*update["schema-ids"]}
    _remove_parts(work, "schemas", "schema-id", gone, work.table["current-schema-id"], work.schemas)


def _remove_parts(work: _ExactWork, name: str, id_name: str, gone: set[int], current: int, ids: JsonIds) -> None:
    if current in gone:
        raise Invalid(f"Cannot remove {id_name} {current}: the table uses it")
    kept = [each for each in work.table[name] if each.get(id_name, 0) not in gone]
    if len(kept) != len(work.table[name]):
        work.set(**{name: kept})
        for id_ in gone:
            ids.known.pop(id_, None)


def _add_key(work: _ExactWork, update: Json) -> None:
    _need_version_3(work, "encryption keys are")
    new, before = update["encryption-key"], work.table.get("encryption-keys") or []
    same = [each for each in before if each["key-id"] == new["key-id"]]
    if same and same[0] != new:
        raise Invalid(f"the table has another encryption key {new['key-id']!r:.100}")
    if not same:
        work.set(encryption_keys=[*before, new])


def _remove_key(work: _ExactWork, update: Json) -> None:
    _need_version_3(work, "encryption keys are")
    before = work.table.get("encryption-keys") or []
    kept = [each for each in before if each["key-id"] != update["key-id"]]
    if len(kept) != len(before):
        work.set(encryption_keys=kept)


def _need_version_3(work: _ExactWork, what: str) -> None:
    if work.table["format-version"] < VERSION:
        raise Invalid(f"the table has format version {work.table['format-version']}: {what} not supported until v3")


def _check_whole(work: _ExactWork) -> None:
    """Check what holds after all updates of a commit of a table of version 3.   Raises: Invalid."""
    table = work.table
    parts = (("schemas", "schema-id", "current-schema-id"), ("partition-specs", "spec-id", "default-spec-id"),
             ("sort-orders", "order-id", "default-sort-order-id"))  # fmt: skip
    current: list[Json] = []
    for name, id_name, which in parts:
        found = [each for each in table[name] if each.get(id_name, 0) == table[which]]
        if not found:
            raise Invalid(f"the table is not valid: it has no {which.removesuffix('-id').replace('-', ' ')}")
        current.append(found[0])
    if work.is_new:
        for schema in table["schemas"]:
            columns_of(schema)
        for spec in table["partition-specs"]:
            check_spec(spec)
        for order in table["sort-orders"]:
            check_order(order)
    schema, spec, order = current
    if work.is_new or work.parts_changed:
        columns = columns_of(schema)
        check_bound(spec["fields"], columns, "partition field")
        check_bound(order["fields"], columns, "sort field")
    keys = {each["key-id"] for each in table.get("encryption-keys") or ()}
    for snapshot in table["snapshots"]:
        if snapshot.get("key-id") is not None and snapshot["key-id"] not in keys:
            raise Invalid(f"the table has no encryption key {snapshot['key-id']!r:.100}, which a snapshot needs")


_UPDATES: Mapping[str, Callable[[_ExactWork, Json], None]] = {
    **PLAIN_UPDATES,
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade,
    "add-schema": _add_schema,
    "set-current-schema": _set_schema,
    "add-spec": _add_spec,
    "set-default-spec": _set_spec,
    "add-sort-order": _add_order,
    "set-default-sort-order": _set_order,
    "set-location": _set_location,
    "set-statistics": _set_statistics,
    "remove-statistics": _remove_statistics,
    "set-partition-statistics": _set_partition_statistics,
    "remove-partition-statistics": _remove_partition_statistics,
    "remove-partition-specs": _remove_specs,
    "remove-schemas": _remove_schemas,
    "add-encryption-key": _add_key,
    "remove-encryption-key": _remove_key,
}


def updated(table: Json, updates: Sequence[Json], metadata_location: str, now_ms: int) -> Json | None:
    """The metadata after updates of a table that has version 3, or gets it; None if they change nothing.

    `table` is not modified.   Raises: CommitFailed for a stale snapshot; Invalid.
    """
    work = _ExactWork(table, now_ms)
    for update in updates:
        _UPDATES[update["action"]](work, update)
    if not work.changed:
        return None
    if work.table["format-version"] == VERSION:
        _check_whole(work)
    return work.logged(metadata_location)

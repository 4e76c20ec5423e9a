"""The updates of a commit to a table: the fields of each, the files that it names, and what it does.

For format versions 1 to 3. What a client sends is checked against the types and passed on as it is, with the fields
that no specification knows. Files and folders are named, for the warehouse to check (F29).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

import msgspec

from limpet.catalog.iceberg.metadata import (
    MAIN,
    MANY,
    ORDERS,
    ROW_ID_MAX,
    SCHEMAS,
    SPECS,
    AnyUuid,
    Ids,
    KeyJson,
    Long,
    PartitionStatisticsJson,
    RefJson,
    Short,
    SnapshotJson,
    StatisticsJson,
    TableWork,
    Texts,
    ViewVersionJson,
)
from limpet.catalog.iceberg.schemas import (
    UNSET_ID,
    VERSION,
    KebabFields,
    OrderJson,
    SchemaJson,
    SpecJson,
    check_order,
    check_spec,
    columns_of,
    kebab_names,
    with_field_ids,
    with_null_order,
)
from limpet.catalog.names import CommitFailed
from limpet.catalog.warehouse import Json
from limpet.kernel.errors import Invalid

OPERATIONS = frozenset(("append", "replace", "overwrite", "delete"))


class Update(KebabFields, tag_field="action"):
    """An update, by its `action`."""

    @classmethod
    def of(cls, **fields: Any) -> Json:
        """Such an update as JSON."""
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        return {"action": cls.__struct_config__.tag, **named}

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        """Change the metadata by a checked update.   Raises: CommitFailed; Invalid."""
        raise NotImplementedError  # every update of tables defines it: a struct of msgspec cannot have abstract methods


# ---- snapshots, branches and tags ----


class AddSnapshot(Update, tag="add-snapshot"):
    """Add a snapshot, which no branch or tag names yet."""

    snapshot: SnapshotJson

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        fields = kebab_names(SnapshotJson)
        new = {name: value for name, value in update["snapshot"].items() if value is not None or name not in fields}
        number, last = new.get("sequence-number", 0), work.table["last-sequence-number"]
        if work.version == 1:
            number = 0
        else:
            # One without a parent is never stale: a concurrent CREATE OR REPLACE TABLE adds it. The last number stays.
            if number <= last and new.get("parent-snapshot-id") is not None:
                raise CommitFailed(
                    f"Cannot add snapshot with sequence number {number} older than last sequence number {last}"
                )
            if new.get("summary", {}).get("operation") not in OPERATIONS:
                raise Invalid(f"the summary of a snapshot has an operation: {', '.join(sorted(OPERATIONS))}")
        if work.snapshot(new["snapshot-id"]) is not None:
            raise Invalid(f"Snapshot already exists for id: {new['snapshot-id']}")
        if work.version >= VERSION:
            work.set(next_row_id=_after_rows(new, work.table["next-row-id"]))
        elif {"first-row-id", "added-rows", "key-id"} & new.keys():
            raise Invalid("Cannot add a snapshot: first-row-id, added-rows and key-id are not supported until v3")
        work.added.add(new["snapshot-id"])
        work.set(
            last_updated_ms=new["timestamp-ms"],
            last_sequence_number=max(number, last),
            snapshots=[*work.table["snapshots"], new],
        )


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


_RETENTION = ("max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep")


class SetRef(RefJson, Update, kw_only=True, tag_field="action", tag="set-snapshot-ref"):
    """Create a branch or tag, or point it to another snapshot. The branch `main` is the current state."""

    ref_name: Short

    @classmethod
    def to_main(cls, snapshot_id: int) -> Json:
        """The update that makes a snapshot the current one."""
        return cls.of(ref_name=MAIN, type="branch", snapshot_id=snapshot_id)

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        name = update["ref-name"]
        left_out = {"action", "ref-name", *(key for key in _RETENTION if update.get(key) is None)}
        ref = {key: value for key, value in update.items() if key not in left_out}
        if work.table["refs"].get(name) == ref:
            return
        snapshot = work.snapshot(ref["snapshot-id"])
        if snapshot is None:
            raise Invalid(f"Cannot set {name} to unknown snapshot: {ref['snapshot-id']}")
        at_ms = snapshot["timestamp-ms"] if ref["snapshot-id"] in work.added else work.now_ms
        if name == MAIN:
            entry = {"snapshot-id": ref["snapshot-id"], "timestamp-ms": at_ms}
            work.set(current_snapshot_id=ref["snapshot-id"], snapshot_log=[*work.table["snapshot-log"], entry])
        if name == MAIN or ref["snapshot-id"] in work.added:
            work.set(last_updated_ms=at_ms)
        work.set(refs={**work.table["refs"], name: ref})


class RemoveRef(Update, tag="remove-snapshot-ref"):
    """Remove a branch or tag, if it is there."""

    ref_name: Short

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        name = update["ref-name"]
        if name not in work.table["refs"]:
            return
        work.set(refs={key: ref for key, ref in work.table["refs"].items() if key != name})
        if name == MAIN:
            work.table.pop("current-snapshot-id", None)


class RemoveSnapshots(Update, tag="remove-snapshots"):
    """Remove snapshots, with their branches, tags, statistics and log entries."""

    snapshot_ids: Ids

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        table = work.table
        gone = {*update["snapshot-ids"]} & {each["snapshot-id"] for each in table["snapshots"]}
        if not gone:
            return
        for name in [name for name, ref in table["refs"].items() if ref["snapshot-id"] in gone]:
            RemoveRef.apply(work, {"ref-name": name})
        work.set(
            snapshots=[
                {key: value for key, value in each.items() if key != "parent-snapshot-id" or value not in gone}
                for each in table["snapshots"]
                if each["snapshot-id"] not in gone
            ],
            snapshot_log=[each for each in table["snapshot-log"] if each["snapshot-id"] not in gone],
        )
        for name in ("statistics", "partition-statistics"):
            left = [part for part in table[name] if part["snapshot-id"] not in gone]
            if len(left) != len(table[name]):
                work.set(**{name: left})


# ---- the table and its properties ----


class AssignUuid(Update, tag="assign-uuid"):
    """Set the UUID of a new table. An existing one keeps its own."""

    uuid: AnyUuid

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        if update["uuid"].lower() == work.table["table-uuid"].lower():
            return
        if not work.is_new:
            raise Invalid(f"Cannot reassign uuid: the table has {work.table['table-uuid']}")
        work.set(table_uuid=update["uuid"].lower())


class UpgradeVersion(Update, tag="upgrade-format-version"):
    """Raise the format version."""

    format_version: Annotated[int, msgspec.Meta(ge=0, le=1000)]

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        wanted, version = update["format-version"], work.version
        if work.is_new or wanted == version:
            return
        if wanted < version:
            raise Invalid(f"Cannot downgrade v{version} table to v{wanted}")
        work.set(format_version=wanted)
        if wanted == VERSION:
            work.set(next_row_id=0)


class SetLocation(Update, tag="set-location"):
    """Move the table to another folder. Its files are not moved."""

    location: Short

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        location = update["location"].rstrip("/")
        if location != work.table["location"]:
            work.set(location=location)


class SetProperties(Update, tag="set-properties"):
    """Set properties; the others stay."""

    updates: Texts

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        if update["updates"]:
            work.set(properties={**work.table["properties"], **update["updates"]})


class RemoveProperties(Update, tag="remove-properties"):
    """Remove properties, as far as they are there."""

    removals: Annotated[list[Short], msgspec.Meta(max_length=MANY)]

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        gone = {*update["removals"]} & {*work.table["properties"]}
        if gone:
            work.set(properties={key: value for key, value in work.table["properties"].items() if key not in gone})


# ---- schemas, partition specs, sort orders ----


class AddSchema(Update, tag="add-schema"):
    """Add a schema, unless the table has an equal one."""

    schema: SchemaJson

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        schema = {"type": "struct", **update["schema"]}
        columns = columns_of(schema, work.version)
        if work.parts(SCHEMAS).add(schema.get("schema-id", 0), schema):
            work.set(last_column_id=max([work.table["last-column-id"], *columns]))


class SetSchema(Update, tag="set-current-schema"):
    """Make a schema the current one."""

    schema_id: Long = UNSET_ID

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        work.parts(SCHEMAS).use(update.get("schema-id", UNSET_ID))


class RemoveSchemas(Update, tag="remove-schemas"):
    """Remove schemas that are not the current one."""

    schema_ids: Ids

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        work.parts(SCHEMAS).remove({*update["schema-ids"]})


class AddSpec(Update, tag="add-spec"):
    """Add a partition spec, unless the table has an equal one."""

    spec: SpecJson

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        check_spec(update["spec"], work.version)
        older = [field for spec in work.table["partition-specs"] for field in spec["fields"]]
        last = work.table["last-partition-id"]
        spec = with_field_ids(update["spec"], older, last)
        if work.parts(SPECS).add(spec.get("spec-id", 0), spec):
            work.set(last_partition_id=max([last, *(field["field-id"] for field in spec["fields"])]))


class SetSpec(Update, tag="set-default-spec"):
    """Make a partition spec the default."""

    spec_id: Long = UNSET_ID

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        work.parts(SPECS).use(update.get("spec-id", UNSET_ID))


class RemoveSpecs(Update, tag="remove-partition-specs"):
    """Remove partition specs that are not the default."""

    spec_ids: Ids

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        work.parts(SPECS).remove({*update["spec-ids"]})


class AddOrder(Update, tag="add-sort-order"):
    """Add a sort order, unless the table has an equal one."""

    sort_order: OrderJson

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        check_order(update["sort-order"], work.version)
        order = with_null_order(update["sort-order"])
        work.parts(ORDERS).add(order.get("order-id", 0) if order["fields"] else 0, order)


class SetOrder(Update, tag="set-default-sort-order"):
    """Make a sort order the default."""

    sort_order_id: Long = UNSET_ID

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        work.parts(ORDERS).use(update.get("sort-order-id", UNSET_ID))


# ---- statistics and keys ----


class SetStatistics(Update, tag="set-statistics"):
    """Set the statistics of a snapshot."""

    statistics: StatisticsJson

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        _replace_statistics(work, "statistics", update["statistics"]["snapshot-id"], [update["statistics"]])


class RemoveStatistics(Update, tag="remove-statistics"):
    """Remove the statistics of a snapshot."""

    snapshot_id: Long

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        _replace_statistics(work, "statistics", update["snapshot-id"], [])


class SetPartitionStatistics(Update, tag="set-partition-statistics"):
    """Set the statistics of a snapshot's partitions."""

    partition_statistics: PartitionStatisticsJson

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        new = update["partition-statistics"]
        _replace_statistics(work, "partition-statistics", new["snapshot-id"], [new])


class RemovePartitionStatistics(Update, tag="remove-partition-statistics"):
    """Remove the statistics of a snapshot's partitions."""

    snapshot_id: Long

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        _replace_statistics(work, "partition-statistics", update["snapshot-id"], [])


def _replace_statistics(work: TableWork, name: str, snapshot_id: int, new: list[Json]) -> None:
    before = work.table[name]
    after = [*(each for each in before if each["snapshot-id"] != snapshot_id), *new]
    if after != before:
        work.set(**{name: after})


class AddKey(Update, tag="add-encryption-key"):
    """Add an encryption key."""

    encryption_key: KeyJson

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        _need_version_3(work)
        new, before = update["encryption-key"], work.table.get("encryption-keys") or []
        same = [each for each in before if each["key-id"] == new["key-id"]]
        if same and same[0] != new:
            raise Invalid(f"the table has another encryption key {new['key-id']!r:.100}")
        if not same:
            work.set(encryption_keys=[*before, new])


class RemoveKey(Update, tag="remove-encryption-key"):
    """Remove an encryption key, if it is there."""

    key_id: Short

    @staticmethod
    def apply(work: TableWork, update: Json) -> None:
        _need_version_3(work)
        before = work.table.get("encryption-keys") or []
        kept = [each for each in before if each["key-id"] != update["key-id"]]
        if len(kept) != len(before):
            work.set(encryption_keys=kept)


def _need_version_3(work: TableWork) -> None:
    if work.version < VERSION:
        raise Invalid(f"the table has format version {work.version}: encryption keys are not supported until v3")


# ---- views ----


class AddViewVersion(Update, tag="add-view-version"):
    """Add a version to a view. `limpet.catalog.iceberg.views` applies the updates of views."""

    view_version: ViewVersionJson


class SetViewVersion(Update, tag="set-current-view-version"):
    """Make a version of a view the current one."""

    view_version_id: Long


AnyUpdate = (
    AddSnapshot | SetRef | RemoveRef | RemoveSnapshots | AssignUuid | UpgradeVersion | SetLocation |
    SetProperties | RemoveProperties | AddSchema | SetSchema | RemoveSchemas | AddSpec | SetSpec |
    RemoveSpecs | AddOrder | SetOrder | SetStatistics | RemoveStatistics | SetPartitionStatistics |
    RemovePartitionStatistics | AddKey | RemoveKey
)  # fmt: skip
ViewUpdate = (
    AssignUuid | UpgradeVersion | AddSchema | SetLocation | SetProperties | RemoveProperties | AddViewVersion
    | SetViewVersion
)  # fmt: skip
UPDATES: Mapping[str, type[Update]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(AnyUpdate | ViewUpdate)
}
LIGHT = (AddSnapshot, SetRef, RemoveRef, RemoveSnapshots, SetProperties, RemoveProperties)
"""The updates whose cost does not grow with the schemas, specs and orders of the table."""


def kind_of(update: object) -> type[Update]:
    """The kind of an update that was not checked yet; `Update` for an unknown one."""
    action = update.get("action") if isinstance(update, Mapping) else None
    return UPDATES.get(action, Update) if isinstance(action, str) else Update

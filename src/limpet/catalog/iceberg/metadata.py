"""The metadata of a table after a commit: one function for each update, for format versions 1 to 3.

Metadata is plain JSON with every field of its version (`limpet.catalog.iceberg.tables.whole`). Its values are replaced,
never modified, since older metadata shares them. What a client sent is passed on unchanged, with the fields that no
specification knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from limpet import records
from limpet.catalog.iceberg.commits import ROW_ID_MAX, SnapshotJson
from limpet.catalog.iceberg.schemas import (
    FIRST_PARTITION_ID,
    UNSET_ID,
    VERSION,
    check_bound,
    check_order,
    check_spec,
    columns_of,
    kebab_names,
    with_field_ids,
    with_null_order,
)
from limpet.catalog.state import CommitFailed, check_fresh
from limpet.catalog.warehouse import Json
from limpet.errors import Invalid

MAIN = "main"
LOG_MAX_PROPERTY, LOG_MAX = "write.metadata.previous-versions-max", 100
OPERATIONS = frozenset(("append", "replace", "overwrite", "delete"))


# ---- requirements ----

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


# ---- work ----


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


class TableWork:
    """Metadata that is being changed. `is_new`: the table is being created."""

    def __init__(self, table: Json, now_ms: int, *, is_new: bool = False) -> None:
        self.table = dict(table)
        self.now_ms = now_ms
        self.is_new = is_new
        self.changed = False
        self.added: set[int] = set()
        self._last_ms = table["last-updated-ms"]

    @property
    def version(self) -> int:
        """The format version."""
        return int(self.table["format-version"])

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

    def snapshot(self, id_: int) -> Json | None:
        """The snapshot of that id."""
        # nearly always the newest one is wanted
        return next((each for each in reversed(self.table["snapshots"]) if each["snapshot-id"] == id_), None)

    def set(self, **fields: Any) -> None:
        """Set fields."""
        self.table.update({name.replace("_", "-"): value for name, value in fields.items()})
        self.changed = True

    def logged(self, metadata_location: str) -> Json:
        """The changed metadata, with the file before it in its log.   Raises: Invalid."""
        new, limit = self.table, _log_limit(self.table["properties"])
        entry = {"metadata-file": metadata_location, "timestamp-ms": self._last_ms}
        new["metadata-log"] = [*new["metadata-log"][-(limit - 1) :], entry] if limit > 1 else [entry]
        if new["last-updated-ms"] == self._last_ms:
            new["last-updated-ms"] = self.now_ms
        return new


def _log_limit(properties: Mapping[str, str]) -> int:
    try:
        return max(1, int(properties.get(LOG_MAX_PROPERTY, LOG_MAX)))
    except ValueError:
        raise Invalid(f"the property {LOG_MAX_PROPERTY} must be a whole number") from None


def _add_snapshot(work: TableWork, update: Json) -> None:
    fields = kebab_names(SnapshotJson)
    new = {name: value for name, value in update["snapshot"].items() if value is not None or name not in fields}
    number, last = new.get("sequence-number", 0), work.table["last-sequence-number"]
    if work.version == 1:
        number = 0
    else:
        check_fresh(number, last, new.get("parent-snapshot-id"))
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


def _set_ref(work: TableWork, update: Json) -> None:
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


def _remove_ref(work: TableWork, update: Json) -> None:
    name = update["ref-name"]
    if name not in work.table["refs"]:
        return
    work.set(refs={key: ref for key, ref in work.table["refs"].items() if key != name})
    if name == MAIN:
        work.table.pop("current-snapshot-id", None)


def _remove_snapshots(work: TableWork, update: Json) -> None:
    table = work.table
    gone = {*update["snapshot-ids"]} & {each["snapshot-id"] for each in table["snapshots"]}
    if not gone:
        return
    for name in [name for name, ref in table["refs"].items() if ref["snapshot-id"] in gone]:
        _remove_ref(work, {"ref-name": name})
    work.set(
        snapshots=[_orphaned(each, gone) for each in table["snapshots"] if each["snapshot-id"] not in gone],
        snapshot_log=[each for each in table["snapshot-log"] if each["snapshot-id"] not in gone],
    )
    for name in ("statistics", "partition-statistics"):
        left = [part for part in table[name] if part["snapshot-id"] not in gone]
        if len(left) != len(table[name]):
            work.set(**{name: left})


def _orphaned(snapshot: Json, gone: set[int]) -> Json:
    if snapshot.get("parent-snapshot-id") not in gone:
        return snapshot
    return {key: value for key, value in snapshot.items() if key != "parent-snapshot-id"}


def _put_properties(work: TableWork, update: Json) -> None:
    if update["updates"]:
        work.set(properties={**work.table["properties"], **update["updates"]})


def _remove_properties(work: TableWork, update: Json) -> None:
    gone = {*update["removals"]} & {*work.table["properties"]}
    if gone:
        work.set(properties={key: value for key, value in work.table["properties"].items() if key not in gone})


# ---- updates of schemas, specs, orders, statistics and keys ----


def _assign_uuid(work: TableWork, update: Json) -> None:
    if update["uuid"].lower() == work.table["table-uuid"].lower():
        return
    if not work.is_new:
        raise Invalid(f"Cannot reassign uuid: the table has {work.table['table-uuid']}")
    work.set(table_uuid=update["uuid"].lower())


def _upgrade(work: TableWork, update: Json) -> None:
    wanted, version = update["format-version"], work.version
    if work.is_new or wanted == version:
        return
    if wanted < version:
        raise Invalid(f"Cannot downgrade v{version} table to v{wanted}")
    work.set(format_version=wanted)
    if wanted == VERSION:
        work.set(next_row_id=0)


def _add_schema(work: TableWork, update: Json) -> None:
    schema = {"type": "struct", **update["schema"]}
    columns = columns_of(schema, work.version)
    id_ = work.schemas.place(schema.get("schema-id", 0), schema)
    if id_ is not None:
        schema["schema-id"] = id_
        last = max([work.table["last-column-id"], *columns])
        work.set(schemas=[*work.table["schemas"], schema], last_column_id=last)


def _set_schema(work: TableWork, update: Json) -> None:
    id_ = work.schemas.meant(update.get("schema-id", UNSET_ID), "schema")
    if id_ not in work.schemas.known:
        raise Invalid(f"Cannot set current schema to unknown schema: {id_}")
    if id_ != work.table["current-schema-id"]:
        work.set(current_schema_id=id_)


def _add_spec(work: TableWork, update: Json) -> None:
    check_spec(update["spec"], work.version)
    older = [field for spec in work.table["partition-specs"] for field in spec["fields"]]
    spec = with_field_ids(update["spec"], older, work.table["last-partition-id"])
    id_ = work.specs.place(spec.get("spec-id", 0), spec)
    if id_ is not None:
        spec["spec-id"] = id_
        last = max([work.table["last-partition-id"], *(field["field-id"] for field in spec["fields"])])
        work.set(partition_specs=[*work.table["partition-specs"], spec], last_partition_id=last)


def _set_spec(work: TableWork, update: Json) -> None:
    id_ = work.specs.meant(update.get("spec-id", UNSET_ID), "partition spec")
    if id_ not in work.specs.known:
        raise Invalid(f"Cannot set default partition spec to unknown spec: {id_}")
    if id_ != work.table["default-spec-id"]:
        work.set(default_spec_id=id_)


def _add_order(work: TableWork, update: Json) -> None:
    check_order(update["sort-order"], work.version)
    order = with_null_order(update["sort-order"])
    id_ = work.orders.place(order.get("order-id", 0) if order["fields"] else 0, order)
    if id_ is not None:
        order["order-id"] = id_
        work.set(sort_orders=[*work.table["sort-orders"], order])


def _set_order(work: TableWork, update: Json) -> None:
    id_ = work.orders.meant(update.get("sort-order-id", UNSET_ID), "sort order")
    if id_ not in work.orders.known:
        raise Invalid(f"Cannot set default sort order to unknown sort order: {id_}")
    if id_ != work.table["default-sort-order-id"]:
        work.set(default_sort_order_id=id_)


def _set_location(work: TableWork, update: Json) -> None:
    location = update["location"].rstrip("/")
    if location != work.table["location"]:
        work.set(location=location)


def _set_statistics(work: TableWork, update: Json) -> None:
    _replace_statistics(work, "statistics", update["statistics"]["snapshot-id"], [update["statistics"]])


def _remove_statistics(work: TableWork, update: Json) -> None:
    _replace_statistics(work, "statistics", update["snapshot-id"], [])


def _set_partition_statistics(work: TableWork, update: Json) -> None:
    new = update["partition-statistics"]
    _replace_statistics(work, "partition-statistics", new["snapshot-id"], [new])


def _remove_partition_statistics(work: TableWork, update: Json) -> None:
    _replace_statistics(work, "partition-statistics", update["snapshot-id"], [])


def _replace_statistics(work: TableWork, name: str, snapshot_id: int, new: list[Json]) -> None:
    before = work.table[name]
    after = [*(each for each in before if each["snapshot-id"] != snapshot_id), *new]
    if after != before:
        work.set(**{name: after})


def _remove_specs(work: TableWork, update: Json) -> None:
    _remove_parts(work, "partition-specs", "spec-id", {*update["spec-ids"]}, work.table["default-spec-id"], work.specs)


def _remove_schemas(work: TableWork, update: Json) -> None:
    gone = {*update["schema-ids"]}
    _remove_parts(work, "schemas", "schema-id", gone, work.table["current-schema-id"], work.schemas)


def _remove_parts(work: TableWork, name: str, id_name: str, gone: set[int], current: int, ids: JsonIds) -> None:
    if current in gone:
        raise Invalid(f"Cannot remove {id_name} {current}: the table uses it")
    kept = [each for each in work.table[name] if each.get(id_name, 0) not in gone]
    if len(kept) != len(work.table[name]):
        work.set(**{name: kept})
        for id_ in gone:
            ids.known.pop(id_, None)


def _add_key(work: TableWork, update: Json) -> None:
    _need_version_3(work, "encryption keys are")
    new, before = update["encryption-key"], work.table.get("encryption-keys") or []
    same = [each for each in before if each["key-id"] == new["key-id"]]
    if same and same[0] != new:
        raise Invalid(f"the table has another encryption key {new['key-id']!r:.100}")
    if not same:
        work.set(encryption_keys=[*before, new])


def _remove_key(work: TableWork, update: Json) -> None:
    _need_version_3(work, "encryption keys are")
    before = work.table.get("encryption-keys") or []
    kept = [each for each in before if each["key-id"] != update["key-id"]]
    if len(kept) != len(before):
        work.set(encryption_keys=kept)


def _need_version_3(work: TableWork, what: str) -> None:
    if work.version < VERSION:
        raise Invalid(f"the table has format version {work.table['format-version']}: {what} not supported until v3")


def check_whole(work: TableWork) -> None:
    """Check what holds after all updates of a commit.   Raises: Invalid."""
    if work.is_new or work.parts_changed:
        _check_parts(work)
    if work.version >= VERSION:
        keys = {key["key-id"] for key in work.table.get("encryption-keys") or ()}
        for snapshot in work.table["snapshots"]:
            if snapshot.get("key-id") is not None and snapshot["key-id"] not in keys:
                raise Invalid(f"the table has no encryption key {snapshot['key-id']!r:.100}, which a snapshot needs")


def _check_parts(work: TableWork) -> None:
    """Check that the current schema, partition spec and sort order are there, and fit each other.   Raises: Invalid."""
    table, version = work.table, work.version
    if work.is_new:
        for schema in table["schemas"]:
            columns_of(schema, version)
        for spec in table["partition-specs"]:
            check_spec(spec, version)
        for order in table["sort-orders"]:
            check_order(order, version)
    columns = columns_of(_current(table, "schemas", "schema-id", "current-schema-id"), version)
    spec = _current(table, "partition-specs", "spec-id", "default-spec-id")
    order = _current(table, "sort-orders", "order-id", "default-sort-order-id")
    check_bound(spec["fields"], columns, "partition field")
    check_bound(order["fields"], columns, "sort field")


def _current(table: Json, name: str, id_name: str, which: str) -> Json:
    """The part of a list that the table uses.   Raises: Invalid."""
    for part in table[name]:
        if part.get(id_name, 0) == table[which]:
            current: Json = part
            return current
    raise Invalid(f"the table is not valid: it has no {which.removesuffix('-id').replace('-', ' ')}")


LIGHT_UPDATES = frozenset(
    ("add-snapshot", "set-snapshot-ref", "remove-snapshot-ref", "remove-snapshots", "set-properties",
     "remove-properties")
)  # fmt: skip
"""The updates whose cost does not grow with the schemas, specs and orders of the table."""
_UPDATES: Mapping[str, Callable[[TableWork, Json], None]] = {
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_ref,
    "remove-snapshot-ref": _remove_ref,
    "remove-snapshots": _remove_snapshots,
    "set-properties": _put_properties,
    "remove-properties": _remove_properties,
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
    """The metadata after checked updates; None if they change nothing. `table` is not modified.

    `metadata_location`: the location of `table`.   Raises: CommitFailed for a stale snapshot; Invalid.
    """
    work = TableWork(table, now_ms)
    for update in updates:
        _UPDATES[update["action"]](work, update)
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
        _UPDATES[update["action"]](work, update)
    check_whole(work)
    return work.table

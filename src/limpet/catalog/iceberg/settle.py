"""What PyIceberg's updates leave open, or do otherwise than Iceberg's REST specification and Java implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssignUUIDUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    UpgradeFormatVersionUpdate,
)

from limpet.catalog.iceberg.quick import is_stale, stale
from limpet.errors import Invalid

M = TypeVar("M", bound=pydantic.BaseModel)

UNSET_ID = -1
"""In a request: the schema, spec or order that was added last. As the id of a partition field: not assigned yet."""


def settled(table: TableMetadata, updates: tuple[Any, ...], *, is_new: bool) -> tuple[Any, ...]:
    """The updates as PyIceberg applies them rightly: no id twice, none left open, none for what is not there."""
    settler = _Settler(table, is_new)
    for update in updates:
        new = settler.settle(update)
        if new is not None:
            settler.settled.append(new)
    return tuple(settler.settled)


class _Settler:
    """What a table will hold after the updates so far."""

    def __init__(self, table: TableMetadata, is_new: bool) -> None:
        self.settled: list[Any] = []
        self._table = table
        self._is_new = is_new
        self._schemas = _Ids({schema.schema_id: schema for schema in table.schemas})
        self._specs = _Ids({spec.spec_id: spec.fields for spec in table.partition_specs})
        self._orders = _Ids({order.order_id: order.fields for order in table.sort_orders})
        self._properties = {*table.properties}
        self._snapshots = {snapshot.snapshot_id for snapshot in table.snapshots}
        self._number: int = getattr(table, "last_sequence_number", 0)
        self._version: int = table.format_version

    def settle(self, update: Any) -> Any:
        """The update to make instead; None for none.   Raises: Invalid; CommitFailed."""
        match update:
            case AssignUUIDUpdate():
                if not self._is_new and update.uuid != self._table.table_uuid:
                    raise Invalid(f"Cannot reassign uuid: the table has {self._table.table_uuid}")
            case UpgradeFormatVersionUpdate():
                self._version = update.format_version
            case SetLocationUpdate():
                return _with(update, location=update.location.rstrip("/"))
            case SetPropertiesUpdate():
                self._properties |= {*update.updates}
            case RemovePropertiesUpdate():
                removals = [key for key in dict.fromkeys(update.removals) if key in self._properties]
                self._properties -= {*removals}
                return _with(update, removals=removals) if removals else None
            case AddSnapshotUpdate():
                self._add_snapshot(update.snapshot)
            case RemoveSnapshotsUpdate():
                gone = [id_ for id_ in dict.fromkeys(update.snapshot_ids) if id_ in self._snapshots]
                self._snapshots -= {*gone}
                return _with(update, snapshot_ids=gone) if gone else None
            case _:
                return self._with_ids(update)
        return update

    def _add_snapshot(self, snapshot: Any) -> None:
        number = snapshot.sequence_number or 0
        if self._version > 1 and is_stale(number, self._number, snapshot.parent_snapshot_id):
            raise stale(number, self._number)
        self._number = max(number, self._number)
        self._snapshots.add(snapshot.snapshot_id)

    def _with_ids(self, update: Any) -> Any:
        match update:
            case AddSchemaUpdate():
                check_schema(update.schema_, self._version)
                id_ = self._schemas.place(update.schema_.schema_id, update.schema_)
                return None if id_ is None else _with(update, schema_=_with(update.schema_, schema_id=id_))
            case SetCurrentSchemaUpdate():
                return _with(update, schema_id=self._schemas.meant(update.schema_id, "schema"))
            case AddPartitionSpecUpdate():
                spec = _numbered(self._table, update.spec, self.settled)
                id_ = self._specs.place(spec.spec_id, spec.fields)
                return None if id_ is None else _with(update, spec=_with(spec, spec_id=id_))
            case SetDefaultSpecUpdate():
                return _with(update, spec_id=self._specs.meant(update.spec_id, "partition spec"))
            case AddSortOrderUpdate():
                order = update.sort_order
                id_ = self._orders.place(order.order_id if order.fields else 0, order.fields)
                return None if id_ is None else _with(update, sort_order=_with(order, order_id=id_))
            case SetDefaultSortOrderUpdate():
                return _with(update, sort_order_id=self._orders.meant(update.sort_order_id, "sort order"))
        return update


def check_schema(schema: Schema, format_version: int) -> None:
    """Nothing, if tables of a format may have this schema.   Raises: Invalid for types and defaults of a later one."""
    try:
        schema.check_format_version_compatibility(format_version)
    except ValueError as error:
        raise Invalid(f"Invalid schema for v{format_version}: {error}") from None
    for field in index_by_id(schema).values():
        if field.initial_default is not None:
            raise Invalid(
                f"Invalid schema for v{format_version}: Invalid initial default for {field.name}: non-null default "
                f"({field.initial_default!r:.40}) is not supported until v3"
            )
        if field.write_default is not None:
            raise Invalid(
                f"Invalid schema for v{format_version}: Invalid write default for {field.name}: non-null default "
                f"({field.write_default!r:.40}) is not supported until v3"
            )


class _Ids:
    """The schemas, specs or orders of a table by id, and what a request means by the ids that it gives."""

    def __init__(self, known: dict[int, Any]) -> None:
        self._known = known
        self._ids: dict[bytes, int] | None = None
        self._meant: dict[int, int] = {}

    def place(self, wanted: int, body: Any) -> int | None:
        """The id for a new one; None if the table has it already, under whatever id.

        They are compared by their bytes: to compare each with each takes seconds for a thousand of them.
        """
        if self._ids is None:
            self._ids = {}
            for id_, known in self._known.items():
                self._ids.setdefault(_bytes_of(known), id_)
        new = _bytes_of(body)
        found = self._ids.get(new)
        id_ = found if found is not None else wanted if wanted not in self._known else max(self._known) + 1
        is_new = found is None
        if is_new:
            self._known[id_] = body
            self._ids[new] = id_
        self._meant[wanted] = self._meant[UNSET_ID] = id_
        return id_ if is_new else None

    def meant(self, id_: int, what: str) -> int:
        """The id that a request means.   Raises: Invalid."""
        if id_ == UNSET_ID and UNSET_ID not in self._meant:
            raise Invalid(f"Cannot set last added {what}: no {what} has been added")
        return self._meant.get(id_, id_)


def _numbered(table: TableMetadata, spec: PartitionSpec, settled: Sequence[Any]) -> PartitionSpec:
    """The spec with ids for fields that have none: those that the same field had in an older spec, else new ones."""
    if all(field.field_id != UNSET_ID for field in spec.fields):
        return spec
    added = [update.spec for update in settled if isinstance(update, AddPartitionSpecUpdate)]
    older = [field for known in (*table.partition_specs, *added) for field in known.fields]
    last = max([field.field_id for field in (*older, *spec.fields)] + [table.last_partition_id or 0, 999])
    fields: list[PartitionField] = []
    for field in spec.fields:
        if field.field_id == UNSET_ID:
            same = [one for one in older if (one.source_id, one.transform, one.name) == _parts(field)]
            last += 0 if same else 1
            field = field.model_copy(update={"field_id": same[0].field_id if same else last})
        fields.append(field)
    return _with(spec, fields=tuple(fields))


def _bytes_of(body: Any) -> bytes:
    """A schema, or the fields of a spec or order, without its id."""
    if isinstance(body, Schema):
        return body.model_dump_json(exclude={"schema_id"}).encode()
    return "\n".join(field.model_dump_json() for field in body).encode()


def _parts(field: PartitionField) -> tuple[Any, ...]:
    return field.source_id, field.transform, field.name


def _with(model: M, **fields: Any) -> M:
    return model.model_copy(update=fields)

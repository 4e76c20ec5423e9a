"""What the catalog uses PyIceberg for: new tables, and commits that `limpet.catalog.commit` cannot apply as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import pydantic
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV1, new_table_metadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.sorting import SortOrder
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
    SetPartitionStatisticsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)
from pyiceberg.view.metadata import ViewMetadata

from limpet import records
from limpet.catalog.iceberg import tables
from limpet.catalog.iceberg.schemas import UNSET_ID, VERSION, columns_of
from limpet.catalog.iceberg.tables import JsonIds
from limpet.catalog.state import CommitFailed, check_fresh
from limpet.catalog.warehouse import Document, check_no_lineage, document_of, property_texts
from limpet.errors import Corrupt, Invalid, Unsupported

DEFAULT_VERSION = 2
DEFAULTS = {"write.parquet.compression-codec": "zstd"}
"""Properties that the reference implementation sets in new tables: without them Spark writes GZIP."""
FORM_FIELDS = ("schema", "partition-spec", "write-order")
FORMS_MAX = 64
FORM_BYTES_MAX = 64 << 10
NO_UUID = "00000000-0000-4000-8000-000000000000"

_updates = pydantic.TypeAdapter(tuple[TableUpdate, ...])
_requirements = pydantic.TypeAdapter(tuple[TableRequirement, ...])

# PyIceberg raises all of these for invalid input.
_REJECTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RecursionError,
            StopIteration, TypeError, ValidationError, ValueError)  # fmt: skip


class _FormatVersion(msgspec.Struct):
    format_version: Annotated[int, msgspec.Meta(ge=0, le=1000)] = msgspec.field(name="format-version")


class _SharedList(list[Any]):
    """A list that is shared by copies. Metadata is never modified in place, and its lists grow with every commit."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _SharedList:
        return self

    def __add__(self, other: Sequence[Any]) -> _SharedList:
        return _SharedList([*self, *other])

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _SharedList(found) if isinstance(index, slice) else found


@dataclass(frozen=True, slots=True)
class NamedByCommit:
    """What a commit refers to: its new location, its properties, and (kind, URL) of each file."""

    location: str | None
    properties: Mapping[str, str]
    files: Sequence[tuple[str, str]]


class CommitModels:
    """The updates and requirements of a commit, as a client sent them, and PyIceberg's models of both, on demand.

    Each property raises Invalid for input that PyIceberg refuses.
    """

    def __init__(self, asked: Sequence[Any], required: Sequence[Any]) -> None:
        self.asked = asked
        self.required = required

    @cached_property
    def updates(self) -> tuple[Any, ...]:
        """The updates."""
        try:
            return _updates.validate_python([_with_defaults(update) for update in self.asked])
        except _REJECTS as error:
            _refuse("the commit", error)

    @cached_property
    def requirements(self) -> tuple[Any, ...]:
        """The requirements."""
        try:
            return _requirements.validate_python(tuple(self.required))
        except _REJECTS as error:
            _refuse("the commit", error)

    def json(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Updates and requirements as PyIceberg encodes them."""
        for update in self.updates:
            if isinstance(update, SetSnapshotRefUpdate):
                fields = update.model_dump(exclude={"action", "ref_name"})
                try:
                    SnapshotRef.model_validate(fields)
                except _REJECTS as error:
                    _refuse(f"the reference {update.ref_name!r}", error)
        updates, requirements = (
            [each.model_dump(mode="json") for each in part] for part in (self.updates, self.requirements)
        )
        return updates, requirements

    def named(self) -> NamedByCommit:
        """What the updates refer to.   Raises: Invalid, also for an unsupported format version."""
        location: str | None = None
        properties: dict[str, str] = {}
        files: list[tuple[str, str]] = []
        for update in self.updates:
            match update:
                case SetLocationUpdate():
                    location = update.location
                    files.append(("location", location))
                case SetPropertiesUpdate():
                    properties |= update.updates
                case AddSnapshotUpdate():
                    files.append(("manifest list", update.snapshot.manifest_list))
                case SetStatisticsUpdate():
                    files.append(("statistics path", update.statistics.statistics_path))
                case SetPartitionStatisticsUpdate():
                    files.append(("partition statistics path", update.partition_statistics.statistics_path))
                case UpgradeFormatVersionUpdate() if update.format_version > VERSION:
                    tables.refuse_version(update.format_version)
        return NamedByCommit(location, properties, files)


def new_table(request: Mapping[str, Any], location: str, uuid: str, now_ms: int) -> Document:
    """The metadata of a new table.   Raises: Invalid.

    What does not depend on the table's name is cached for similar tables: PyIceberg takes a millisecond.
    """
    properties = {**DEFAULTS, **property_texts(request.get("properties") or {})}
    version = properties.get("format-version", str(DEFAULT_VERSION))
    if version not in ("1", "2", "3"):
        tables.refuse_version(version)
    if version == "3":
        kept = {name: value for name, value in properties.items() if name != "format-version"}
        table = tables.new_table(request, location, uuid, now_ms, kept)
        return document_of(table)
    asked = [request.get(name) for name in FORM_FIELDS]
    given = zip(("add-schema", "add-spec", "add-sort-order"), ("schema", "spec", "sort-order"), asked, strict=True)
    try:
        form = msgspec.json.encode([*asked, properties])
        alike = _form(form) if len(form) <= FORM_BYTES_MAX else _form.__wrapped__(form)
    except _REJECTS as error:
        tables.refuse_later([{"action": action, key: value} for action, key, value in given], int(version))
        _refuse("the table", error)
    table = {**alike, "location": location, "table-uuid": uuid, "last-updated-ms": now_ms}
    return Document(msgspec.json.encode(table), table)


@lru_cache(maxsize=FORMS_MAX)
def _form(asked: bytes) -> Mapping[str, Any]:
    """The metadata of new tables with this schema, partition spec, sort order and properties. Immutable."""
    fields, partitions, sorting, properties = msgspec.json.decode(asked)
    if "fields" not in fields:
        raise Invalid("Invalid schema: the schema has no fields")
    schema = Schema.model_validate(fields)
    spec = PartitionSpec.model_validate(_with_field_ids(partitions) or {})
    order = SortOrder.model_validate(_with_null_order(sorting) or {})
    check_schema(schema, int(properties.get("format-version", DEFAULT_VERSION)))
    schema.find_column_name(0)  # builds the index of names, which detects duplicates
    metadata = new_table_metadata(schema, spec, order, "", properties, _uuid(NO_UUID))
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return encoded(metadata).json()


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table that another program wrote, parsed and checked. `files`: (kind, URL) of each file and folder in it."""

    location: str
    properties: Mapping[str, str]
    files: Sequence[tuple[str, str]]
    table: TableMetadata | dict[str, Any]

    def document(self, location: str) -> Document:
        """Its metadata as this catalog writes it, at another location."""
        if isinstance(self.table, dict):
            return document_of({**self.table, "location": location})
        return encoded(self.table.model_copy(update={"location": location}))


def foreign_table(document: Document) -> ForeignTable:
    """A table that another program wrote.   Raises: Invalid."""
    if document.json().get("format-version") == VERSION:
        exact, files = tables.registered(document.json())
        return ForeignTable(exact["location"], exact["properties"], files, exact)
    table = parse_table(document)
    for schema in table.schemas:
        check_schema(schema, table.format_version)
    return ForeignTable(table.location, table.properties, [*_files_of(table)], table)


def parse_table(document: Document) -> TableMetadata:
    """The parsed metadata of another program, cached in the document.   Raises: Invalid."""
    if document.model is None:
        try:
            version = records.decoder(_FormatVersion).decode(document.data).format_version
            if version > VERSION:
                tables.refuse_version(version)
            document.model = TableMetadataUtil.parse_raw(document.data.decode())
        except _REJECTS as error:
            _refuse("the metadata", error)
    table: TableMetadata = document.model
    return table


def table_of(document: Document) -> TableMetadata:
    """The metadata of a table in the catalog.

    Raises: Corrupt; Unsupported for one of version 3 with types that PyIceberg does not know.
    """
    try:
        return parse_table(document)
    except Invalid as error:
        if document.json().get("format-version") == VERSION:
            raise Unsupported(
                f"PyIceberg cannot read this table of format version 3: {error}", hint="use Spark or DuckDB for it"
            ) from None
        raise Corrupt(str(error)) from None


def _files_of(table: TableMetadata) -> Iterator[tuple[str, str]]:
    yield "location", table.location
    for snapshot in table.snapshots:
        yield "manifest list", snapshot.manifest_list
    for entry in table.metadata_log:
        yield "metadata log", entry.metadata_file
    for statistics in (*table.statistics, *table.partition_statistics):
        yield "statistics path", statistics.statistics_path


def apply(document: Document, commit: CommitModels, metadata_location: str, *, check: bool) -> Document | None:
    """The metadata after a commit; None if nothing changes. `check`: check its requirements too.

    Raises: CommitFailed if a requirement does not hold, or the commit is stale; Invalid; Corrupt.
    """
    table = table_of(document)
    try:
        if check:
            for requirement in commit.requirements:
                requirement.validate(table)
        updates = resolved_updates(table, commit.updates, is_new=False)
        new = _updated(table, updates, metadata_location)
    except CommitFailedException as error:
        raise CommitFailed(_line(error)) from None
    except _REJECTS as error:
        _refuse("the commit", error)
    return None if new is None else encoded(new)


def create(commit: CommitModels, location: str, uuid: str) -> Document:
    """The metadata of a table that a commit creates. `location` and `uuid` are defaults.

    Raises: Invalid; CommitFailed if it requires an existing table.
    """
    try:
        for requirement in commit.requirements:
            requirement.validate(None)
        first = [AssignUUIDUpdate(uuid=_uuid(uuid)), SetLocationUpdate(location=location)]
        empty = TableMetadataV1.model_construct(last_column_id=-1, schema=Schema())
        updates = resolved_updates(empty, (*first, *commit.updates), is_new=True)
        return encoded(_not_back(empty, update_table_metadata(empty, updates, enforce_validation=True), updates))
    except CommitFailedException as error:
        raise CommitFailed(_line(error)) from None
    except _REJECTS as error:
        _refuse("the table", error)


def check_view(metadata: Mapping[str, Any]) -> None:
    """Check the metadata of a view.   Raises: Invalid."""
    schemas = metadata.get("schemas")
    if isinstance(schemas, list):
        metadata = {**metadata, "schemas": [_without_columns(schema) for schema in schemas]}
    try:
        ViewMetadata.model_validate(metadata)
    except _REJECTS as error:
        _refuse("the view", error)


def _without_columns(schema: Any) -> Any:
    """A schema that is valid in version 3, without its columns: PyIceberg lacks some types. Another one as it is."""
    try:
        columns_of(schema)
    except Invalid:
        return schema
    return {**schema, "fields": [], "identifier-field-ids": []}


# ---- updates ----


def _updated(table: TableMetadata, updates: tuple[Any, ...], metadata_location: str) -> TableMetadata | None:
    shared = {name: _SharedList(value) for name, value in table if isinstance(value, list)}
    new = update_table_metadata(table.model_copy(update=shared), updates, metadata_location=metadata_location)
    new = _not_back(table, new, updates)
    if new.metadata_log is shared["metadata_log"]:
        return None  # nothing changed, else the last location would have been added
    if isinstance(new, TableMetadataV1):
        # readers of format 1 use only these fields for the current schema and spec
        fields = [field.model_dump() for field in new.spec().fields]
        new = new.model_copy(update={"schema_": new.schema(), "partition_spec": fields})
    return new


def _not_back(before: TableMetadata, after: TableMetadata, updates: Sequence[Any]) -> TableMetadata:
    """The metadata with the highest sequence number so far: a snapshot without a parent may have a lower one."""
    if after.format_version == 1:
        return after
    numbers = [each.snapshot.sequence_number or 0 for each in updates if isinstance(each, AddSnapshotUpdate)]
    highest = max([getattr(before, "last_sequence_number", 0), *numbers])
    if after.last_sequence_number >= highest:
        return after
    return after.model_copy(update={"last_sequence_number": highest})


# ---- requests ----


def _with_defaults(update: Any) -> Any:
    match update:
        case {"action": "add-spec", "spec": spec}:
            return {**update, "spec": _with_field_ids(spec)}
        case {"action": "add-sort-order", "sort-order": order}:
            return {**update, "sort-order": _with_null_order(order)}
    return update


def _with_field_ids(spec: Any) -> Any:
    """The spec with an id in each field: PyIceberg requires them, and the specification leaves them to the server."""
    return _with_fields(spec, lambda field: {"field-id": UNSET_ID, **field})


def _with_null_order(order: Any) -> Any:
    """The order with the default null order of its fields; PyIceberg would put nulls last in both directions."""
    nulls = {"asc": "nulls-first", "desc": "nulls-last"}
    return _with_fields(order, lambda field: {"null-order": nulls.get(str(field.get("direction", "asc"))), **field})


def _with_fields(given: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    if not isinstance(given, Mapping) or not isinstance(given.get("fields"), list | tuple):
        return given
    fields = [change(field) if isinstance(field, Mapping) else field for field in given["fields"]]
    return {**given, "fields": fields}


def _uuid(text: str) -> Any:
    """A text that PyIceberg's models convert to a UUID."""
    return text


def version_2(document: Document) -> Document:
    """The metadata of a table of an older version as one of version 2, before it becomes one of version 3.

    Raises: Corrupt.
    """
    table = table_of(document)
    try:
        newer = table if table.format_version > 1 else TableMetadataUtil.parse_obj({**table.model_dump(), **_VERSION_2})
        return encoded(newer)
    except _REJECTS as error:
        raise Corrupt(f"the metadata cannot be upgraded: {_line(error)}") from None


_VERSION_2 = {"format-version": 2, "last-sequence-number": 0}


def encoded(table: TableMetadata) -> Document:
    """The metadata as this catalog writes it: what was parsed and checked, and nothing else."""
    return Document(table.model_dump_json().encode(), model=table)


def _refuse(what: str, error: Exception) -> NoReturn:
    raise Invalid(f"{what} is not valid: {_line(error)}") from None


def _line(error: BaseException) -> str:
    """The error as one short line with the field."""
    inner = error.__cause__ if isinstance(error.__cause__, pydantic.ValidationError) else error
    if isinstance(inner, pydantic.ValidationError):
        first = inner.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"{place}: {first['msg']}"[:300] if place else first["msg"][:300]
    if isinstance(error, StopIteration):
        return "it refers to a schema, a partition spec or a sort order that does not exist"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:300]} is missing" if isinstance(error, KeyError) else text[:300]


M = TypeVar("M", bound=pydantic.BaseModel)


def resolved_updates(table: TableMetadata, updates: tuple[Any, ...], *, is_new: bool) -> tuple[Any, ...]:
    """The updates in a form that PyIceberg applies correctly: unique and assigned ids, existing objects only."""
    resolver = _Resolver(table, is_new)
    for update in updates:
        new = resolver.resolve(update)
        if new is not None:
            resolver.resolved.append(new)
    return tuple(resolver.resolved)


class _Resolver:
    """The content of a table after the updates so far."""

    def __init__(self, table: TableMetadata, is_new: bool) -> None:
        self.resolved: list[Any] = []
        self._table = table
        self._is_new = is_new
        self._schemas = JsonIds({schema.schema_id: schema for schema in table.schemas}, _bytes_of)
        self._specs = JsonIds({spec.spec_id: spec.fields for spec in table.partition_specs}, _bytes_of)
        self._orders = JsonIds({order.order_id: order.fields for order in table.sort_orders}, _bytes_of)
        self._properties = {*table.properties}
        self._snapshots = {snapshot.snapshot_id for snapshot in table.snapshots}
        self._number: int = getattr(table, "last_sequence_number", 0)
        self._version: int = table.format_version

    def resolve(self, update: Any) -> Any:
        """The update to apply instead; None for none.   Raises: Invalid; CommitFailed."""
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
        check_no_lineage(snapshot.first_row_id, snapshot.added_rows)
        number = snapshot.sequence_number or 0
        if self._version > 1:
            check_fresh(number, self._number, snapshot.parent_snapshot_id)
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
                spec = _numbered(self._table, update.spec, self.resolved)
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
    """Check a schema against a format version.   Raises: Invalid for types and defaults of a later version."""
    try:
        schema.check_format_version_compatibility(format_version)
    except ValueError as error:
        raise Invalid(f"Invalid schema for v{format_version}: {error}") from None
    for field in index_by_id(schema).values():
        for what, value in (("initial", field.initial_default), ("write", field.write_default)):
            if value is not None:
                raise Invalid(
                    f"Invalid schema for v{format_version}: Invalid {what} default for {field.name}: non-null default "
                    f"({value!r:.40}) is not supported until v3"
                )


def _numbered(table: TableMetadata, spec: PartitionSpec, resolved: Sequence[Any]) -> PartitionSpec:
    """The spec with ids for fields without one: the id of the same field in an older spec, else a new one."""
    if all(field.field_id != UNSET_ID for field in spec.fields):
        return spec
    added = [update.spec for update in resolved if isinstance(update, AddPartitionSpecUpdate)]
    older = [field for known in (*table.partition_specs, *added) for field in known.fields]
    last = max([field.field_id for field in (*older, *spec.fields)] + [table.last_partition_id or 0, 999])
    fields: list[PartitionField] = []
    for field in spec.fields:
        if field.field_id == UNSET_ID:
            wanted = field.source_id, field.transform, field.name
            same = [one for one in older if (one.source_id, one.transform, one.name) == wanted]
            last += 0 if same else 1
            field = field.model_copy(update={"field_id": same[0].field_id if same else last})
        fields.append(field)
    return _with(spec, fields=tuple(fields))


def _bytes_of(body: Any) -> bytes:
    """A schema, or the fields of a spec or order, without its id."""
    if isinstance(body, Schema):
        return body.model_dump_json(exclude={"schema_id"}).encode()
    return "\n".join(field.model_dump_json() for field in body).encode()


def _with(model: M, **fields: Any) -> M:
    return model.model_copy(update=fields)

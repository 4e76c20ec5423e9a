"""Requests parsed, requirements checked, updates applied, metadata turned into bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, NoReturn, TypeVar

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
    AssertCreate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
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
from limpet.catalog.state import CommitFailed
from limpet.catalog.warehouse import Document, property_text
from limpet.errors import Corrupt, Invalid

FORMAT_VERSION_MAX = 2
UPDATES_MAX = 10_000
ADDED_MAX = 1000
"""Schemas, partition specs, sort orders and other updates that PyIceberg works out, in one commit."""
REQUIREMENTS_MAX = 1000
LIGHT_MAX = 32
VALUES_MAX = 200_000
DEFAULTS = {"write.parquet.compression-codec": "zstd"}
"""What the reference implementation sets in new tables: without it Spark writes GZIP."""
FORMS_MAX = 64
FORM_BYTES_MAX = 64 << 10
NO_UUID = "00000000-0000-4000-8000-000000000000"

_updates = pydantic.TypeAdapter(tuple[TableUpdate, ...])
_requirements = pydantic.TypeAdapter(tuple[TableRequirement, ...])

# PyIceberg raises all of these for input that it does not take.
_REJECTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RecursionError,
            StopIteration, TypeError, ValidationError, ValueError)  # fmt: skip


class _FormatVersion(msgspec.Struct):
    format_version: Annotated[int, msgspec.Meta(ge=0, le=1000)] = msgspec.field(name="format-version")


class _SharedList(list[Any]):
    """A list that copies share. Metadata is never changed in place, and its lists grow with every commit."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _SharedList:
        return self

    def __add__(self, other: Sequence[Any]) -> _SharedList:
        return _SharedList([*self, *other])

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _SharedList(found) if isinstance(index, slice) else found


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A request to change a table, parsed.

    `plain` are its updates as JSON, if the fast path knows all of them; `files` are (what it is, URL) of each file that
    it names.
    """

    requirements: tuple[Any, ...]
    updates: tuple[Any, ...]
    plain: Sequence[dict[str, Any]] | None
    creates: bool
    location: str | None
    properties: Mapping[str, str]
    files: tuple[tuple[str, str], ...]

    @property
    def is_light(self) -> bool:
        """Whether it can be worked out at once, whatever the table is: few updates, all known to the fast path."""
        return self.plain is not None and len(self.plain) <= LIGHT_MAX

    @property
    def is_short(self) -> bool:
        """Whether it has few updates, of whatever kind."""
        return len(self.updates) <= LIGHT_MAX


def new_table(request: Mapping[str, Any], location: str, uuid: str, now_ms: int) -> Document:
    """The metadata of a table that a client asks to create.   Raises: Invalid.

    What does not depend on the table's name is worked out once for all that are alike: PyIceberg takes a millisecond.
    """
    check_size([request.get(name) for name in ("schema", "partition-spec", "write-order")], "the table")
    properties = {**DEFAULTS, **_properties(request.get("properties") or {})}
    version = properties.get("format-version", str(FORMAT_VERSION_MAX))
    if version not in ("1", "2"):
        _refuse_version(version)
    asked = [request.get(name) for name in ("schema", "partition-spec", "write-order")]
    try:
        form = msgspec.json.encode([*asked, properties])
        alike = _form(form) if len(form) <= FORM_BYTES_MAX else _form.__wrapped__(form)
    except _REJECTS as error:
        _refuse("the table", error)
    table = {**alike, "location": location, "table-uuid": uuid, "last-updated-ms": now_ms}
    return Document(msgspec.json.encode(table), table)


@lru_cache(maxsize=FORMS_MAX)
def _form(asked: bytes) -> Mapping[str, Any]:
    """The metadata of new tables with that schema, partition spec, sort order and properties; not to be changed."""
    fields, partitions, sorting, properties = msgspec.json.decode(asked)
    if "fields" not in fields:
        raise Invalid("Invalid schema: the schema has no fields")
    schema = Schema.model_validate(fields)
    spec = PartitionSpec.model_validate(_with_field_ids(partitions) or {})
    order = SortOrder.model_validate(_with_null_order(sorting) or {})
    check_schema(schema, int(properties.get("format-version", FORMAT_VERSION_MAX)))
    schema.find_column_name(0)  # builds the index of names, which finds those that are there twice
    metadata = new_table_metadata(schema, spec, order, "", properties, _uuid(NO_UUID))
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return _document(metadata).json()


def parse_commit(request: Mapping[str, Any], canonical: Callable[[str], str] = str) -> TableCommit:
    """A client's request to change a table.   Raises: Invalid, also for an update or requirement nobody knows.

    How much there is of it is checked first: what PyIceberg makes of it takes a thousand times as long. `canonical`
    makes a URL what this catalog writes.
    """
    asked, required = listed(request, "updates", UPDATES_MAX), listed(request, "requirements", REQUIREMENTS_MAX)
    check_size(asked, "the commit")
    try:
        raw = [_with_defaults(update, canonical) for update in joined(asked)]
        heavy = sum(update.get("action") not in FAST_ACTIONS for update in raw if isinstance(update, Mapping))
        if heavy > ADDED_MAX:
            raise Invalid(
                f"the commit has {heavy} updates of schemas, specs and the like; at most {ADDED_MAX} are taken at once",
                hint="commit them in several steps",
            )
        updates = _updates.validate_python(raw)
        requirements = _requirements.validate_python(tuple(required))
    except _REJECTS as error:
        _refuse("the commit", error)
    location: str | None = None
    properties: dict[str, str] = {}
    files: list[tuple[str, str]] = []
    for update in updates:
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
            case UpgradeFormatVersionUpdate() if update.format_version > FORMAT_VERSION_MAX:
                _refuse_version(update.format_version)
    creates = any(isinstance(requirement, AssertCreate) for requirement in requirements)
    return TableCommit(requirements, updates, _plain(updates), creates, location, properties, tuple(files))


def listed(request: Mapping[str, Any], name: str, most: int) -> list[Any]:
    """A list in a commit. `updates` must be there, as the specification says.   Raises: Invalid."""
    found = request.get(name)
    if found is None and name != "updates":
        return []
    if not isinstance(found, list | tuple):
        raise Invalid(f"Cannot parse {name} from non-array: {name} must be a list")
    if len(found) > most:
        raise Invalid(f"the commit has {len(found)} {name}; at most {most} are taken", hint="commit in several steps")
    return [*found]


def check_size(value: Any, what: str) -> None:
    """Nothing, if a request holds no more values than can be worked out in good time.   Raises: Invalid."""
    count, layer = 0, [value]
    while layer:
        count += len(layer)
        if count > VALUES_MAX:
            raise Invalid(f"{what} has more than {VALUES_MAX} values", hint="commit in several steps")
        inner: list[Any] = []
        for each in layer:
            if isinstance(each, Mapping):
                inner += each.values()
            elif isinstance(each, list | tuple):
                inner += each
        layer = inner


def joined(updates: Sequence[Any]) -> list[Any]:
    """The updates, with neighbours that remove snapshots made one: older clients send one for each snapshot."""
    found: list[Any] = []
    for update in updates:
        match (found[-1] if found else None), update:
            case (
                {"action": "remove-snapshots", "snapshot-ids": list() as before},
                {"action": "remove-snapshots", "snapshot-ids": list() as ids},
            ):
                before += ids
            case _, {"action": "remove-snapshots", "snapshot-ids": list() as ids}:
                found.append({"action": "remove-snapshots", "snapshot-ids": [*ids]})
            case _:
                found.append(update)
    return found


def check_table(table: TableMetadata) -> None:
    """Nothing, if tables of its format may have its schemas.   Raises: Invalid."""
    for schema in table.schemas:
        check_schema(schema, table.format_version)


def parse_table(document: Document) -> TableMetadata:
    """Metadata that somebody wrote, parsed once.   Raises: Invalid."""
    if document.model is None:
        try:
            version = records.decoder(_FormatVersion).decode(document.data).format_version
            if version > FORMAT_VERSION_MAX:
                _refuse_version(version)
            document.model = TableMetadataUtil.parse_raw(document.data.decode())
        except _REJECTS as error:
            _refuse("the metadata", error)
    table: TableMetadata = document.model
    return table


def table_of(document: Document) -> TableMetadata:
    """The metadata of a table in the catalog.   Raises: Corrupt."""
    try:
        return parse_table(document)
    except Invalid as error:
        raise Corrupt(str(error)) from None


def files_of(document: Document) -> Iterator[tuple[str, str]]:
    """(what it is, URL) of each file and folder that metadata names, but for its properties.   Raises: Corrupt."""
    table = table_of(document)
    yield "location", table.location
    for snapshot in table.snapshots:
        yield "manifest list", snapshot.manifest_list
    for entry in table.metadata_log:
        yield "metadata log", entry.metadata_file
    for statistics in (*table.statistics, *table.partition_statistics):
        yield "statistics path", statistics.statistics_path


def apply(document: Document, commit: TableCommit, metadata_location: str, now_ms: int) -> Document | None:
    """The metadata after a commit; None if it asks for no change. `metadata_location` is where `document` lies.

    Raises: CommitFailed if a requirement does not hold, or the commit was made for an older table; Invalid; Corrupt.
    """
    try:
        return _applied(document, commit, metadata_location, now_ms)
    except CommitFailedException as error:
        raise CommitFailed(_line(error)) from None
    except _REJECTS as error:
        _refuse("the commit", error)


def _applied(document: Document, commit: TableCommit, metadata_location: str, now_ms: int) -> Document | None:
    if document.is_plain is None:
        document.is_plain = fits_fast_path(document.data)
    if document.is_plain:
        for requirement in commit.requirements:
            _check(requirement, document.json())
        if commit.plain is not None:
            # The commit's time was taken before it waited for the leader; the table may have changed since.
            now_ms = max(now_ms, document.json()["last-updated-ms"])
            return _fast_document(fast_path(document.json(), commit.plain, metadata_location, now_ms))
    table = table_of(document)
    if not document.is_plain:
        for requirement in commit.requirements:
            requirement.validate(table)
    updates = resolved_updates(table, commit.updates, is_new=False)
    new = _updated(table, updates, metadata_location)
    return None if new is None else _document(new)


def _fast_document(table: dict[str, Any] | None) -> Document | None:
    if table is None:
        return None
    new = Document(msgspec.json.encode(table), table)
    new.is_plain = True
    return new


def create(commit: TableCommit, location: str, uuid: str) -> Document:
    """The metadata of a table that a commit creates. `location` and `uuid` are for those that name none.

    Raises: Invalid; CommitFailed if it requires a table that is there.
    """
    try:
        for requirement in commit.requirements:
            requirement.validate(None)
        first = [AssignUUIDUpdate(uuid=_uuid(uuid)), SetLocationUpdate(location=location)]
        empty = TableMetadataV1.model_construct(last_column_id=-1, schema=Schema())
        updates = resolved_updates(empty, (*first, *commit.updates), is_new=True)
        return _document(_not_back(empty, update_table_metadata(empty, updates, enforce_validation=True), updates))
    except CommitFailedException as error:
        raise CommitFailed(_line(error)) from None
    except _REJECTS as error:
        _refuse("the table", error)


def encoded(table: TableMetadata) -> Document:
    """The metadata as this catalog writes it: what was parsed and checked, and nothing else."""
    return _document(table)


def check_view(metadata: Mapping[str, Any]) -> None:
    """Nothing, if this may be the metadata of a view.   Raises: Invalid."""
    try:
        ViewMetadata.model_validate(metadata)
    except _REJECTS as error:
        _refuse("the view", error)


# ---- updates ----


def _updated(table: TableMetadata, updates: tuple[Any, ...], metadata_location: str) -> TableMetadata | None:
    shared = {name: _SharedList(value) for name, value in table if isinstance(value, list)}
    new = update_table_metadata(table.model_copy(update=shared), updates, metadata_location=metadata_location)
    new = _not_back(table, new, updates)
    if new.metadata_log is shared["metadata_log"]:
        return None  # nothing was changed, or the last location would have been added
    if isinstance(new, TableMetadataV1):
        # readers of the first format know the current schema and spec by these fields only
        fields = [field.model_dump() for field in new.spec().fields]
        new = new.model_copy(update={"schema_": new.schema(), "partition_spec": fields})
    return new


def _not_back(before: TableMetadata, after: TableMetadata, updates: Sequence[Any]) -> TableMetadata:
    """The metadata with the highest sequence number there was: a snapshot without a parent may have an older one."""
    if after.format_version == 1:
        return after
    numbers = [each.snapshot.sequence_number or 0 for each in updates if isinstance(each, AddSnapshotUpdate)]
    highest = max([getattr(before, "last_sequence_number", 0), *numbers])
    if after.last_sequence_number >= highest:
        return after
    return after.model_copy(update={"last_sequence_number": highest})


def _check(requirement: Any, table: Mapping[str, Any]) -> None:
    """Nothing, if the table is what the client requires. The words are those of the reference implementation.

    Raises: CommitFailed.
    """
    match requirement:
        case AssertCreate():
            raise CommitFailed("Requirement failed: table already exists")
        case AssertTableUUID():
            what, wanted, found = "UUID does not match: expected", table["table-uuid"].lower(), str(requirement.uuid)
        case AssertRefSnapshotId():
            _check_ref(requirement, table["refs"].get(requirement.ref))
            return
        case AssertLastAssignedFieldId():
            what, wanted = "last assigned field id changed: expected id", requirement.last_assigned_field_id
            found = table["last-column-id"]
        case AssertCurrentSchemaId():
            what, wanted = "current schema changed: expected id", requirement.current_schema_id
            found = table["current-schema-id"]
        case AssertLastAssignedPartitionId():
            what, wanted = "last assigned partition id changed: expected id", requirement.last_assigned_partition_id
            found = table["last-partition-id"]
        case AssertDefaultSpecId():
            what, wanted = "default partition spec changed: expected id", requirement.default_spec_id
            found = table["default-spec-id"]
        case AssertDefaultSortOrderId():
            what, wanted = "default sort order changed: expected id", requirement.default_sort_order_id
            found = table["default-sort-order-id"]
        case _:
            raise Invalid(f"there is no requirement {requirement.type!r}")
    if wanted != found:
        raise CommitFailed(f"Requirement failed: {what} {wanted} != {found}")


def _check_ref(requirement: AssertRefSnapshotId, ref: Mapping[str, Any] | None) -> None:
    """Nothing, if a branch or tag is where the client requires it, or is not there.   Raises: CommitFailed."""
    wanted, name = requirement.snapshot_id, requirement.ref
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


# ---- requests ----


def _with_defaults(update: Any, canonical: Callable[[str], str]) -> Any:
    match update:
        case {"action": "set-location", "location": str() as location}:
            return {**update, "location": canonical(location)}
        case {"action": "add-spec", "spec": spec}:
            return {**update, "spec": _with_field_ids(spec)}
        case {"action": "add-sort-order", "sort-order": order}:
            return {**update, "sort-order": _with_null_order(order)}
        case {"action": "set-properties", "updates": properties}:
            return {**update, "updates": _properties(properties)}
    return update


def _with_field_ids(spec: Any) -> Any:
    """The spec with an id in each field; PyIceberg demands what the specification leaves to the server."""
    return _with_fields(spec, lambda field: {"field-id": UNSET_ID, **field})


def _with_null_order(order: Any) -> Any:
    """The order with what its fields leave out; PyIceberg would put nulls last in either direction."""
    nulls = {"asc": "nulls-first", "desc": "nulls-last"}
    return _with_fields(order, lambda field: {"null-order": nulls.get(str(field.get("direction", "asc"))), **field})


def _with_fields(given: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    if not isinstance(given, Mapping) or not isinstance(given.get("fields"), list | tuple):
        return given
    fields = [change(field) if isinstance(field, Mapping) else field for field in given["fields"]]
    return {**given, "fields": fields}


def _properties(given: Any) -> dict[str, str]:
    """Properties as text.   Raises: Invalid."""
    if not isinstance(given, Mapping):
        raise Invalid("properties must be an object")
    return {key: property_text(key, value) for key, value in given.items()}


def _plain(updates: Sequence[Any]) -> Sequence[dict[str, Any]] | None:
    """The updates as JSON, if all are that the fast path knows.   Raises: Invalid for a reference that may not be."""
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate):
            fields = update.model_dump(exclude={"action", "ref_name"})
            try:
                SnapshotRef.model_validate(fields)
            except _REJECTS as error:
                _refuse(f"the reference {update.ref_name!r}", error)
    if all(update.action in FAST_ACTIONS for update in updates):
        return [update.model_dump(mode="json") for update in updates]
    return None


def _uuid(text: str) -> Any:
    """What PyIceberg's models make a UUID of."""
    return text


def _document(table: TableMetadata) -> Document:
    return Document(table.model_dump_json().encode(), model=table)


def _refuse_version(version: object) -> NoReturn:
    raise Invalid(
        f"format version {version} is not supported: this catalog keeps tables of versions 1 and 2",
        hint="create the table with format-version 2",
    )


def _refuse(what: str, error: Exception) -> NoReturn:
    raise Invalid(f"{what} cannot be taken: {_line(error)}") from None


def _line(error: BaseException) -> str:
    """One short line that names the field."""
    inner = error.__cause__ if isinstance(error.__cause__, pydantic.ValidationError) else error
    if isinstance(inner, pydantic.ValidationError):
        first = inner.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"{place}: {first['msg']}"[:300] if place else first["msg"][:300]
    if isinstance(error, StopIteration):
        return "it needs a schema, a partition spec or a sort order that is not there"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:300]} is missing" if isinstance(error, KeyError) else text[:300]


M = TypeVar("M", bound=pydantic.BaseModel)

UNSET_ID = -1
"""In a request: the schema, spec or order that was added last. As the id of a partition field: not assigned yet."""


def resolved_updates(table: TableMetadata, updates: tuple[Any, ...], *, is_new: bool) -> tuple[Any, ...]:
    """The updates as PyIceberg applies them rightly: no id twice, none left open, none for what is not there."""
    resolver = _Resolver(table, is_new)
    for update in updates:
        new = resolver.resolve(update)
        if new is not None:
            resolver.resolved.append(new)
    return tuple(resolver.resolved)


class _Resolver:
    """What a table will hold after the updates so far."""

    def __init__(self, table: TableMetadata, is_new: bool) -> None:
        self.resolved: list[Any] = []
        self._table = table
        self._is_new = is_new
        self._schemas = _Ids({schema.schema_id: schema for schema in table.schemas})
        self._specs = _Ids({spec.spec_id: spec.fields for spec in table.partition_specs})
        self._orders = _Ids({order.order_id: order.fields for order in table.sort_orders})
        self._properties = {*table.properties}
        self._snapshots = {snapshot.snapshot_id for snapshot in table.snapshots}
        self._number: int = getattr(table, "last_sequence_number", 0)
        self._version: int = table.format_version

    def resolve(self, update: Any) -> Any:
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
            raise stale_snapshot(number, self._number)
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


def _numbered(table: TableMetadata, spec: PartitionSpec, resolved: Sequence[Any]) -> PartitionSpec:
    """The spec with ids for fields that have none: those that the same field had in an older spec, else new ones."""
    if all(field.field_id != UNSET_ID for field in spec.fields):
        return spec
    added = [update.spec for update in resolved if isinstance(update, AddPartitionSpecUpdate)]
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


Json = dict[str, Any]

MAIN = "main"
LOG_MAX_PROPERTY, LOG_MAX = "write.metadata.previous-versions-max", 100


_MANY = 1 << 20
_Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Short = Annotated[str, msgspec.Meta(max_length=1 << 20)]


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: _Long
    timestamp_ms: _Long
    parent_snapshot_id: _Long | None = None


class _SnapshotId(msgspec.Struct, rename="kebab"):
    snapshot_id: _Long


class _FastTable(msgspec.Struct, rename="kebab"):
    """What is looked at here, and its types."""

    format_version: Literal[2]
    table_uuid: _Short
    last_updated_ms: _Long
    last_sequence_number: _Long
    last_column_id: _Long
    current_schema_id: _Long
    default_spec_id: _Long
    default_sort_order_id: _Long
    last_partition_id: _Long
    properties: Annotated[dict[_Short, _Short], msgspec.Meta(max_length=_MANY)]
    snapshots: Annotated[list[_Snapshot], msgspec.Meta(max_length=_MANY)]
    snapshot_log: Annotated[list[_SnapshotId], msgspec.Meta(max_length=_MANY)]
    metadata_log: Annotated[
        list[Annotated[dict[_Short, _Short | _Long], msgspec.Meta(max_length=16)]], msgspec.Meta(max_length=_MANY)
    ]
    refs: Annotated[dict[_Short, _SnapshotId], msgspec.Meta(max_length=_MANY)]
    statistics: Annotated[list[_SnapshotId], msgspec.Meta(max_length=_MANY)]
    current_snapshot_id: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | msgspec.UnsetType = msgspec.UNSET


def fits_fast_path(data: bytes) -> bool:
    """Whether metadata is fast_path here: it is of version 2, and has all that PyIceberg and we write."""
    try:
        table = records.decoder(_FastTable).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return table.current_snapshot_id is msgspec.UNSET or MAIN in table.refs


def fast_path(table: Json, updates: Sequence[Json], metadata_location: str, now_ms: int) -> Json | None:
    """The metadata after those updates; None if they change nothing. `table` itself is left as it is.

    Raises: CommitFailed for a snapshot that was made for an older table; Invalid.
    """
    work = _Work(dict(table), now_ms)
    for update in updates:
        _FAST[update["action"]](work, update)
    if not work.changed:
        return None
    new = work.table
    limit = _log_limit(new["properties"])
    entry = {"metadata-file": metadata_location, "timestamp-ms": table["last-updated-ms"]}
    new["metadata-log"] = [*new["metadata-log"][-(limit - 1) :], entry] if limit > 1 else [entry]
    if new["last-updated-ms"] == table["last-updated-ms"]:
        new["last-updated-ms"] = now_ms
    return new


class _Work:
    """Metadata that is being changed. What it holds is replaced, never changed: older metadata holds the same."""

    def __init__(self, table: Json, now_ms: int) -> None:
        self.table = table
        self.now_ms = now_ms
        self.changed = False
        self.added: set[int] = set()

    def snapshot(self, id_: int) -> Json | None:
        """The snapshot of that id."""
        # the one that is looked for is nearly always the newest
        return next((each for each in reversed(self.table["snapshots"]) if each["snapshot-id"] == id_), None)

    def set(self, **fields: Any) -> None:
        """Give fields new values."""
        self.table.update({name.replace("_", "-"): value for name, value in fields.items()})
        self.changed = True


def is_stale(number: int, last: int, parent: int | None) -> bool:
    """Whether a snapshot was made for an older table, by its sequence number and that of the table.

    A snapshot without a parent builds on nothing, so it is never stale: a concurrent CREATE OR REPLACE TABLE adds one.
    The table's own number does not go back for it.
    """
    return number <= last and parent is not None


def stale_snapshot(number: int, last: int) -> CommitFailed:
    """The refusal of a stale_snapshot snapshot, in the words of the reference implementation."""
    return CommitFailed(f"Cannot add snapshot with sequence number {number} older than last sequence number {last}")


def _add_snapshot(work: _Work, update: Json) -> None:
    new, last = update["snapshot"], work.table["last-sequence-number"]
    number = new.get("sequence-number") or 0
    if is_stale(number, last, new.get("parent-snapshot-id")):
        raise stale_snapshot(number, last)
    if work.snapshot(new["snapshot-id"]) is not None:
        raise Invalid(f"Snapshot already exists for id: {new['snapshot-id']}")
    work.added.add(new["snapshot-id"])
    work.set(
        last_updated_ms=new["timestamp-ms"],
        last_sequence_number=max(number, last),
        snapshots=[*work.table["snapshots"], new],
    )


def _set_ref(work: _Work, update: Json) -> None:
    name = update["ref-name"]
    ref = {key: value for key, value in update.items() if key not in ("action", "ref-name")}
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


def _remove_ref(work: _Work, update: Json) -> None:
    name = update["ref-name"]
    if name not in work.table["refs"]:
        return
    work.set(refs={key: ref for key, ref in work.table["refs"].items() if key != name})
    if name == MAIN:
        work.table.pop("current-snapshot-id", None)


def _remove_snapshots(work: _Work, update: Json) -> None:
    table = work.table
    gone = {*update["snapshot-ids"]} & {each["snapshot-id"] for each in table["snapshots"]}
    if not gone:
        return
    for name in [name for name, ref in table["refs"].items() if ref["snapshot-id"] in gone]:
        _remove_ref(work, {"ref-name": name})
    work.set(
        snapshots=[_orphaned(each, gone) for each in table["snapshots"] if each["snapshot-id"] not in gone],
        snapshot_log=[each for each in table["snapshot-log"] if each["snapshot-id"] not in gone],
        statistics=[each for each in table["statistics"] if each["snapshot-id"] not in gone],
    )


def _orphaned(snapshot: Json, gone: set[int]) -> Json:
    if snapshot.get("parent-snapshot-id") not in gone:
        return snapshot
    return {key: value for key, value in snapshot.items() if key != "parent-snapshot-id"}


def _put_properties(work: _Work, update: Json) -> None:
    if update["updates"]:
        work.set(properties={**work.table["properties"], **update["updates"]})


def _remove_properties(work: _Work, update: Json) -> None:
    gone = {*update["removals"]} & {*work.table["properties"]}
    if gone:
        work.set(properties={key: value for key, value in work.table["properties"].items() if key not in gone})


def _log_limit(properties: Mapping[str, str]) -> int:
    try:
        return max(1, int(properties.get(LOG_MAX_PROPERTY, LOG_MAX)))
    except ValueError:
        raise Invalid(f"the property {LOG_MAX_PROPERTY} must be a whole number") from None


_FAST: Mapping[str, Callable[[_Work, Json], None]] = {
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_ref,
    "remove-snapshot-ref": _remove_ref,
    "remove-snapshots": _remove_snapshots,
    "set-properties": _put_properties,
    "remove-properties": _remove_properties,
}

FAST_ACTIONS = frozenset(_FAST)
"""The updates that are known here."""

"""What the metadata of a table holds, as types, and metadata that is being changed, for format versions 1 to 3.

Metadata is plain JSON with every field of its version (`limpet.catalog.iceberg.tables.whole`). Its values are replaced,
never modified, since older metadata shares them. What a client sent is passed on unchanged, with the fields that no
specification knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import msgspec

from limpet.catalog.iceberg.schemas import (
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
)
from limpet.catalog.warehouse import Json, is_url
from limpet.kernel import records
from limpet.kernel.errors import Invalid

MAIN = "main"
LOG_MAX_PROPERTY, LOG_MAX = "write.metadata.previous-versions-max", 100
ROW_ID_MAX = (1 << 63) - 1

MANY = 1 << 20
Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=ROW_ID_MAX)]
Positive = Annotated[int, msgspec.Meta(gt=0, le=ROW_ID_MAX)]
Short = Annotated[str, msgspec.Meta(max_length=1 << 20)]
Ids = Annotated[list[Long], msgspec.Meta(max_length=MANY)]
Texts = Annotated[dict[Short, Short], msgspec.Meta(max_length=MANY)]
AnyUuid = Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$", max_length=36)]


# ---- the objects ----


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
    fields: Ids
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
    max_ref_age_ms: Positive | None = None
    max_snapshot_age_ms: Positive | None = None
    min_snapshots_to_keep: Positive | None = None


class MetadataLogJson(KebabFields):
    """An older metadata file, and the time of the metadata in it."""

    metadata_file: Short
    timestamp_ms: Long


class _SqlJson(KebabFields):
    type: Literal["sql"]
    sql: Short
    dialect: Short


class ViewVersionJson(KebabFields):
    """A version of a view."""

    schema_id: Long
    representations: Annotated[list[_SqlJson], msgspec.Meta(max_length=MANY)]
    default_namespace: Annotated[list[Short], msgspec.Meta(max_length=MANY)]
    version_id: Long = 1
    timestamp_ms: Long | None = None
    summary: Texts = msgspec.field(default_factory=dict)
    default_catalog: Short | None = None


# ---- files that they name ----


def refuse_version(version: object) -> NoReturn:
    """Refuse a format version.   Raises: Invalid."""
    raise Invalid(
        f"format version {version} is not supported: this catalog supports versions 1 to {VERSION}",
        hint="create the table with format-version 2",
    )


def check_manifests(snapshot: Mapping[str, Any]) -> None:
    """Raises: Invalid for a snapshot as in version 1, whose files would not be checked."""
    if "manifests" in snapshot:
        raise Invalid("a snapshot names its manifest list, not its manifests")


FILES: Mapping[type[msgspec.Struct], tuple[str, str]] = {
    SnapshotJson: ("manifest list", "manifest-list"),
    StatisticsJson: ("statistics path", "statistics-path"),
    PartitionStatisticsJson: ("statistics path", "statistics-path"),
}
"""The field of an object that names a file."""


def files_in(given: Mapping[str, Any], kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """(kind, URL) of each file that an object names, in fields that the specification does not define too."""
    if kind in FILES:
        shown, name = FILES[kind]
        yield shown, given[name]
    yield from strange_urls(given, kind)


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


# ---- metadata that is being changed ----


class PartKind(NamedTuple):
    """Schemas, partition specs or sort orders: their name in messages, and their fields in metadata."""

    what: str
    listed: str
    id: str
    used: str
    type: type[msgspec.Struct]


SCHEMAS = PartKind("schema", "schemas", "schema-id", "current-schema-id", SchemaJson)
SPECS = PartKind("partition spec", "partition-specs", "spec-id", "default-spec-id", SpecJson)
ORDERS = PartKind("sort order", "sort-orders", "order-id", "default-sort-order-id", OrderJson)
PARTS = (SCHEMAS, SPECS, ORDERS)


class TableParts:
    """The schemas, specs or orders of a table that is being changed, and the mapping from the ids in a request."""

    def __init__(self, work: TableWork, kind: PartKind) -> None:
        self._work = work
        self._kind = kind
        self._taken = {part.get(kind.id, 0) for part in work.table[kind.listed]}
        self._ids: dict[bytes, int] | None = None
        self._meant: dict[int, int] = {}

    def _body(self, part: Json) -> bytes:
        return records.json_text({name: value for name, value in part.items() if name != self._kind.id}).encode()

    def add(self, wanted: int, part: Json) -> bool:
        """Add one, by the id `wanted` if that is free; False if the table has an equal one already, under any id.

        They are compared by their bytes: comparing each pair takes seconds for a thousand of them.
        """
        parts = self._work.table[self._kind.listed]
        if self._ids is None:
            self._ids = {}
            for older in parts:
                self._ids.setdefault(self._body(older), older.get(self._kind.id, 0))
        body = self._body(part)
        is_new = body not in self._ids
        if is_new:
            self._ids[body] = max(self._taken) + 1 if wanted in self._taken else wanted
            self._taken.add(self._ids[body])
            self._work.set(**{self._kind.listed: [*parts, {**part, self._kind.id: self._ids[body]}]})
        self._meant[wanted] = self._meant[UNSET_ID] = self._ids[body]
        return is_new

    def use(self, wanted: int) -> None:
        """Set the one that the table uses, by its id in the request.   Raises: Invalid."""
        what, used = self._kind.what, self._kind.used
        if wanted == UNSET_ID and UNSET_ID not in self._meant:
            raise Invalid(f"Cannot set last added {what}: no {what} has been added")
        id_ = self._meant.get(wanted, wanted)
        if id_ not in self._taken:
            role = used.partition("-")[0]
            raise Invalid(f"Cannot set {role} {what} to unknown {what.removeprefix('partition ')}: {id_}")
        if id_ != self._work.table[used]:
            self._work.set(**{used: id_})

    def remove(self, ids: Collection[int]) -> None:
        """Remove those with these ids.   Raises: Invalid if the table uses one."""
        used, parts = self._work.table[self._kind.used], self._work.table[self._kind.listed]
        if used in ids:
            raise Invalid(f"Cannot remove {self._kind.id} {used}: the table uses it")
        kept = [part for part in parts if part.get(self._kind.id, 0) not in ids]
        if len(kept) != len(parts):
            self._work.set(**{self._kind.listed: kept})
            self._taken.difference_update(ids)


class TableWork:
    """Metadata that is being changed. `is_new`: the table is being created."""

    def __init__(self, table: Json, now_ms: int, *, is_new: bool = False) -> None:
        self.table = dict(table)
        self.now_ms = now_ms
        self.is_new = is_new
        self.changed = False
        self.added: set[int] = set()
        self.changed_parts: dict[PartKind, TableParts] = {}
        self._last_ms = table["last-updated-ms"]

    @property
    def version(self) -> int:
        """The format version."""
        return int(self.table["format-version"])

    def parts(self, kind: PartKind) -> TableParts:
        """The schemas, specs or orders."""
        if kind not in self.changed_parts:
            self.changed_parts[kind] = TableParts(self, kind)
        return self.changed_parts[kind]

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


def check_whole(work: TableWork) -> None:
    """Check what holds after all updates of a commit.   Raises: Invalid."""
    if work.is_new or work.changed_parts:
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
    columns = columns_of(used_part(table, SCHEMAS), version)
    check_bound(used_part(table, SPECS)["fields"], columns, "partition field")
    check_bound(used_part(table, ORDERS)["fields"], columns, "sort field")


def used_part(table: Json, kind: PartKind) -> Json:
    """The schema, spec or order that the table uses.   Raises: Invalid."""
    for part in table[kind.listed]:
        if part.get(kind.id, 0) == table[kind.used]:
            used: Json = part
            return used
    raise Invalid(f"the table is not valid: it has no {kind.used.removesuffix('-id').replace('-', ' ')}")

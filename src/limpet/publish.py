"""An index as an Iceberg table: its compiled shards as Parquet files, and one commit when any of them has changed.

The name of a data file says of which version of which shards it was made, so a refresh compares a listing of the shards
with the files that the table has, and writes only what differs. The order makes it safe:

- The table is looked at before the shards are listed, and the commit demands that it is still that table. So of two
  publishers at once the later commit never brings back older shards.
- The columns are read before and after the shards, and must be the same. So no record is cut to columns that are too
  old, and a file of an older schema can stay: its records have no other columns.

Sixteen neighbouring shards are one file while they are small, so that a small index is few files; once they are large,
each shard is a file by itself, so that a change copies little. Which it is follows from the sizes alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol

from limpet.catalog.catalog import Catalog
from limpet.catalog.iceberg.files import (
    Column,
    Contents,
    File,
    Stamp,
    TableFiles,
    commit_of,
    contents_of,
    data_file,
    has_snapshot,
    stage_request,
)
from limpet.catalog.state import AlreadyExists, NoSuchNamespace, NoSuchTable, shown
from limpet.catalog.warehouse import WAREHOUSE
from limpet.errors import Conflict, Corrupt, Denied, Invalid, LimpetError, Missing, Unavailable
from limpet.index import Index
from limpet.index.codec.lines import JSON_KINDS, Kind, Schema
from limpet.index.decide import shard_ids
from limpet.index.formats.parquet import arrow_table
from limpet.index.reader import Reader
from limpet.index.storage import IndexStorage, Manifest, batched, manifest_cell
from limpet.keys import Key, join
from limpet.store.api import Absent, Blob, Stat
from limpet.store.outcome import put_bytes

NEIGHBOURS = 16
PART_BYTES = 4 << 20
"""Up to so many bytes together, neighbours are one part."""

BATCH_BYTES = 32 << 20
VERSION_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Neighbouring shards that are not empty. `name` is what their ids begin with.

    `version` is another one when any of them is, and when one more is not empty.
    """

    name: str
    shards: tuple[str, ...]
    version: str
    size: int


class CompiledShards:
    """Lists and reads the shards of an index, as its manifest is. What waits for a compiler is not looked at."""

    def __init__(self, storage: IndexStorage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        self._reader = Reader(storage, manifest)

    def parts(self, part_bytes: int = PART_BYTES) -> list[ShardGroup]:
        """The parts that are not empty, as they are now.

        Raises: Corrupt for a shard that is not there, or lost records.   Cost: 1 LIST per 1,000 shards and locks; as
        `Reader.demand_whole`.
        """
        keys = self._storage.keys
        found = {stat.key: stat for stat in self._storage.store.list(keys.shards)}
        listed = {shard: found.get(keys.shard(shard)) for shard in shard_ids(self._manifest.depth)}
        stats = {shard: stat or self._look(shard) for shard, stat in listed.items()}
        for shard, stat in stats.items():
            self._reader.demand_whole(shard, stat.size)
        return parts_of(stats, part_bytes)

    def _look(self, shard: str) -> Stat:
        """A shard that a listing does not show, which is only a hint (F22).   Raises: Corrupt.   Cost: 1 HEAD."""
        try:
            return self._storage.store.head(self._storage.keys.shard(shard))
        except Missing:
            raise self._storage.no_shard(shard) from None

    def read(self, parts: Sequence[ShardGroup]) -> Iterator[tuple[ShardGroup, list[bytes]]]:
        """Each part as it was read, which may be newer than it was listed, and its live lines.

        Memory is bounded by 32 MiB of shards, or the largest part.   Raises: Corrupt.   Cost: 1 GET a shard.
        """
        schema = self._manifest.schema
        for batch in batched(parts, lambda part: part.size, size=BATCH_BYTES):
            blobs = self._storage.shards([shard for part in batch for shard in part.shards])
            for part in batch:
                read = {shard: blobs[shard] for shard in part.shards}
                lines = [line for shard, blob in read.items() for line in self._reader.sound(shard, blob.data)]
                yield replace(part, version=_version(read)), [line for line in lines if not schema.is_gone(line)]


def parts_of(shards: Mapping[str, Stat], part_bytes: int) -> list[ShardGroup]:
    """The parts of all the shards of an index, in their order, without empty ones. Pure."""
    ids = [*shards]
    parts: list[ShardGroup] = []
    for at in range(0, len(ids), NEIGHBOURS):
        some = ids[at : at + NEIGHBOURS]
        whole = _part(some[0][:-1], some, shards)
        parts += [whole] if whole.size <= part_bytes else [_part(shard, [shard], shards) for shard in some]
    return [part for part in parts if part.size]


def _part(name: str, ids: Sequence[str], shards: Mapping[str, Stat]) -> ShardGroup:
    found = {shard: shards[shard] for shard in ids if shards[shard].size}
    return ShardGroup(name, tuple(found), _version(found), sum(stat.size for stat in found.values()))


def _version(found: Mapping[str, Stat | Blob]) -> str:
    versions = "".join(f"{shard} {each.version}\n" for shard, each in found.items())
    return sha256(versions.encode()).hexdigest()[:VERSION_CHARACTERS]


NAMESPACE = ("indexes",)
"""The default namespace of tables that are made from indexes."""

TRIES_MAX = 10
AT_ONCE_BYTES = 32 << 20
COMPILES_MAX = 3
ID_BITS = 62

_TYPES: Mapping[Kind, str] = {
    "string": "string",
    "integer": "long",
    "number": "double",
    "boolean": "boolean",
    "date": "date",
    "datetime": "timestamptz",
    "object": "string",
    "array": "string",
    "any": "string",
}

_FILE = re.compile("([0-9a-f]+-[0-9a-f]{32})-[^/]*[.]parquet")


class TableWriter(Protocol):
    """Who changes the catalog: this process, or a service that it asks."""

    def create_namespace(self, namespace: Sequence[str]) -> None:
        """Create it.   Raises: Conflict if it is there."""

    def commit_table(self, namespace: Sequence[str], name: str, request: Mapping[str, Any]) -> str:
        """Change a table, or create a staged one; where its metadata lies.   Raises: Conflict; Missing; Invalid;
        OutcomeUnknown, and whatever else leaves it open whether it was done."""


class LedCatalogWriter:
    """A catalog that this process leads."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def create_namespace(self, namespace: Sequence[str]) -> None:
        self._catalog.create_namespace(namespace)

    def commit_table(self, namespace: Sequence[str], name: str, request: Mapping[str, Any]) -> str:
        return self._catalog.commit_table(namespace, name, request).metadata_location or ""


@dataclass(frozen=True, slots=True)
class Published:
    """A table that is now what the index is. `files_added` and `files_removed` are what this run changed.

    `changed`: there was a commit. `metadata_location` is what an engine without a catalog can read the table from.
    """

    index: str
    namespace: tuple[str, ...]
    table: str
    changed: bool
    records: int
    files: int
    files_added: int
    files_removed: int
    metadata_location: str
    snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class _PublishPlan:
    """What a look at the table and the shards found. `contents` is None if there is no table yet."""

    manifest: Manifest
    metadata_location: str
    contents: Contents | None
    keep: Sequence[File]
    drop: Sequence[File]
    due: Sequence[ShardGroup]

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to do."""
        return self.contents is not None and self.contents.fits and not (self.drop or self.due)


class IndexPublisher:
    """Publishes one index as one table. `catalog` is only read; `lead` returns a writer that may change it.

    `part_bytes`: up to so many bytes together, sixteen neighbouring shards are one file.
    """

    def __init__(
        self,
        index: Index[Any],
        catalog: Catalog,
        table: tuple[Sequence[str], str],
        lead: Callable[[], AbstractContextManager[TableWriter]],
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._index = index
        self._catalog = catalog
        self._namespace, self._name = tuple(table[0]), table[1]
        self._shown = shown(self._namespace, self._name)
        self._lead = lead
        self._part_bytes = part_bytes
        self._storage = index.storage
        self._warehouse = catalog.warehouse
        self._runtime = index.storage.runtime
        self._source = index.storage.keys.root

    def publish(self, *, compile: bool = True) -> Published:
        """Make the table hold what the index holds: every live record that was put before, if it may `compile` first.

        Raises: Missing without the index; Invalid for a table that is not this index's; NotLeader; OutcomeUnknown (it
        may be published: run it again); Unavailable if others published too often meanwhile.
        Cost: what `Index.compile` costs; 4 GETs of the catalog and the table, 1 GET of the manifest, 1 LIST per 1,000
        shards and locks; then, if something changed, 1 GET for each shard of a changed part, 1 PUT a part, 2 GETs,
        2 PUTs, and the lead and the commit of a catalog.
        Crash: the table is the old one or the new one. Files that no commit names may be left in its folder.
        """
        for _ in range(COMPILES_MAX if compile else 0):
            if not self._index.compile(full=True).conflicts:
                break
        plan = self._look()
        if plan.is_current:
            return self._as_it_was(plan)
        with self._lead() as writer:
            for _ in range(TRIES_MAX):
                done = self._try(writer, plan)
                if done is not None:
                    return done
                plan = self._look()
                if plan.is_current:
                    return self._as_it_was(plan)
        raise Unavailable(f"others have published {self._shown!r} too often", hint="run it again in a moment")

    def _as_it_was(self, plan: _PublishPlan) -> Published:
        assert plan.contents is not None
        return self._told(plan.metadata_location, TableFiles(plan.keep, (), ()), plan.contents, None)

    # ---- looking ----

    def _look(self) -> _PublishPlan:
        """Compare the table with the shards. The table comes first: what is listed later is at least as new."""
        manifest = self._manifest()
        columns = columns_of(manifest.schema)
        try:
            loaded = self._catalog.load_table(self._namespace, self._name)
        except (NoSuchTable, NoSuchNamespace):
            loaded = None
        contents: Contents | None = None
        if loaded is not None:
            contents = contents_of(loaded.metadata, self._source, columns, self._fetch)
            if not contents.is_of_source:
                raise Invalid(
                    f"the table {self._shown!r} was not made from the index {self._index.name!r}",
                    hint="name another table: --table NAMESPACE.NAME",
                )
        elif self._catalog.has_view(self._namespace, self._name):
            raise Invalid(f"{self._shown!r} is a view", hint="name another table: --table NAMESPACE.NAME")
        parts = {_tag(part): part for part in CompiledShards(self._storage, manifest).parts(self._part_bytes)}
        keep: dict[str, File] = {}
        drop: list[File] = []
        for file in contents.files if contents else ():
            named = _FILE.fullmatch(file.url.rpartition("/")[2])
            tag = named[1] if named and contents and contents.may_stay else ""
            if tag in parts and tag not in keep:
                keep[tag] = file
            else:
                drop.append(file)
        due = [part for tag, part in parts.items() if tag not in keep]
        location = loaded.metadata_location if loaded else None
        return _PublishPlan(manifest, location or "", contents, [*keep.values()], drop, due)

    def _manifest(self) -> Manifest:
        """The manifest as it is now.   Raises: Missing.   Cost: 1 GET."""
        seen = manifest_cell(self._storage).read()
        if seen is None:
            raise Missing(
                f"there is no index {self._index.name!r}", hint="`limpet index ls` shows those that there are"
            )
        return seen.value

    def _fetch(self, url: str) -> bytes:
        try:
            return self._storage.store.get(self._key(url), size_max=None).data
        except Missing as error:
            raise Corrupt(f"the table {self._shown!r} names a file that is gone: {error}") from None

    def _key(self, url: str) -> Key:
        """Where a file of the table lies in the store.   Raises: Invalid for one outside of the warehouse (F29)."""
        return join(WAREHOUSE, self._warehouse.file_of(url))

    # ---- writing ----

    def _try(self, writer: TableWriter, plan: _PublishPlan) -> Published | None:
        """Write what is due and commit it; None if the table or the columns are not what they were."""
        contents = plan.contents or self._staged(writer, plan)
        if contents is None:
            return None
        written: list[Key] = []
        try:
            files = TableFiles(plan.keep, self._write_parts(plan, contents, written), plan.drop)
            if _layout(self._manifest()) != _layout(plan.manifest):
                self._remove(written)
                return None
            if contents.fits and not contents.is_staged and not (files.add or files.drop):
                return self._told(plan.metadata_location, files, contents, None)  # what is due has no live record
            stamp = self._stamp()
            request, writes = commit_of(contents, files, stamp)
            self._write(writes, written)
        except LimpetError:
            self._remove(written)
            raise
        try:
            location = writer.commit_table(self._namespace, self._name, request)
        except (Conflict, NoSuchTable):
            location = self._landed(stamp)
            if not location:
                self._remove(written)  # F4: only a definite refusal makes it sure that no commit names them
                return None
        except (Invalid, Denied, Missing):
            self._remove(written)
            raise
        return self._told(location, files, contents, stamp)

    def _landed(self, stamp: Stamp) -> str:
        """Where the metadata lies if the table has our snapshot after all; else nothing.   Cost: 2 GETs.

        F1: a proxy may have sent the commit twice, and the refusal is the second one's.
        """
        try:
            loaded = self._catalog.load_table(self._namespace, self._name)
        except (NoSuchTable, NoSuchNamespace):
            return ""
        return loaded.metadata_location or "" if has_snapshot(loaded.metadata, stamp.snapshot_id) else ""

    def _stamp(self) -> Stamp:
        at_ms = int(self._runtime.wall().timestamp() * 1000)
        return Stamp(self._runtime.rng.getrandbits(ID_BITS) | 1, at_ms, self._runtime.new_id())

    def _staged(self, writer: TableWriter, plan: _PublishPlan) -> Contents | None:
        """A staged table: the commit that fills it creates it. None if another process has created it."""
        for depth in range(1, len(self._namespace) + 1):
            try:
                self._catalog.namespace(self._namespace[:depth])
            except NoSuchNamespace:
                try:
                    writer.create_namespace(self._namespace[:depth])
                except Conflict:
                    continue  # another process created it first
        columns = columns_of(plan.manifest.schema)
        request = stage_request(self._name, self._source, columns)
        try:
            staged = self._catalog.create_table(self._namespace, request)
        except AlreadyExists:
            return None
        except NoSuchNamespace:
            raise Invalid(
                f"the namespace of {self._shown!r} was created in another catalog than this fleet's",
                hint="--catalog must be the service of this very fleet",
            ) from None
        return contents_of(staged.metadata, self._source, columns, self._fetch, is_staged=True)

    def _write_parts(self, plan: _PublishPlan, contents: Contents, written: list[Key]) -> list[File]:
        """Write a file for each part that is due and has a live record. `written` gets their keys, even if it fails."""
        added: list[File] = []
        waiting: dict[str, bytes] = {}
        for part, lines in CompiledShards(self._storage, plan.manifest).read(plan.due):
            if lines:
                url = f"{contents.location}/data/{_tag(part)}-{self._runtime.new_id()}.parquet"
                file, waiting[url] = data_file(contents, url, arrow_table(plan.manifest.schema, lines))
                added.append(file)
            if sum(map(len, waiting.values())) > AT_ONCE_BYTES:
                self._write(waiting, written)
                waiting = {}
        self._write(waiting, written)
        return added

    def _write(self, files: Mapping[str, bytes], written: list[Key]) -> None:
        """Write files under unique names.   Raises: OutcomeUnknown; Unavailable.   Cost: 1 PUT each."""

        def write(url: str) -> Key | LimpetError:
            key = self._key(url)
            try:
                put_bytes(self._storage.store, self._runtime, key, files[url], Absent())
            except LimpetError as error:
                return error
            return key

        outcomes = self._runtime.fan_out(write, files, at_once=self._storage.store.at_once)
        written += [outcome for outcome in outcomes if not isinstance(outcome, LimpetError)]
        for outcome in outcomes:
            if isinstance(outcome, LimpetError):
                raise outcome

    def _remove(self, written: Sequence[Key]) -> None:
        """Delete files that no commit names. What cannot be deleted now is left: no reader opens it."""
        self._storage.store.delete_many(written)

    def _told(self, metadata_location: str, files: TableFiles, contents: Contents, stamp: Stamp | None) -> Published:
        """The report after a commit; without a `stamp` there was none."""
        after = (*files.keep, *files.add)
        is_new = stamp is not None and bool(files.add or files.drop)
        return Published(
            index=self._index.name,
            namespace=self._namespace,
            table=self._name,
            changed=stamp is not None,
            records=sum(file.records for file in after),
            files=len(after),
            files_added=len(files.add),
            files_removed=len(files.drop),
            metadata_location=metadata_location,
            snapshot_id=stamp.snapshot_id if stamp and is_new else contents.table.current_snapshot_id,
        )


def columns_of(schema: Schema) -> list[Column]:
    """The columns of the table that an index becomes, in their order."""
    return [
        Column(field.name, _TYPES[field.type], field.name == schema.key, "JSON" if field.type in JSON_KINDS else None)
        for field in schema.columns
    ]


def _tag(part: ShardGroup) -> str:
    """What the name of its file begins with."""
    return f"{part.name}-{part.version}"


def _layout(manifest: Manifest) -> object:
    """What must not change while the shards are read."""
    return manifest.fields, manifest.depth, manifest.generation

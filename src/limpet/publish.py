"""Publishing an index as an Iceberg table: its compiled shards as Parquet files, with one commit for all changes.

The name of a data file contains the version of its shards, so a refresh compares a listing of the shards with the files
of the table, and writes only what differs. It is safe by its order:

- The table is read before the shards are listed, and the commit requires that the table is unchanged. So of two
  concurrent publishers the later commit never restores older shards.
- The columns are read before and after the shards, and must be equal. So no record loses new columns, and a file of an
  older schema can stay: its records have no other columns.

Sixteen adjacent shards are one file while they are small, so that a small index has few files; larger shards have one
file each, so that a change rewrites little. This depends on the sizes alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

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
    stage_request,
)
from limpet.catalog.maintain.decide import expired, expiry_request, policy_of
from limpet.catalog.maintain.tables import Lead, TableChange, TableWriter
from limpet.catalog.names import AlreadyExists, NoSuchNamespace, NoSuchTable
from limpet.catalog.warehouse import METADATA_BYTES_MAX
from limpet.index import Index
from limpet.index.codec import Schema
from limpet.index.formats.parquet import arrow_table
from limpet.index.reader import Reader
from limpet.index.storage import IndexStorage, Manifest, manifest_cell
from limpet.index.values import JSON_KINDS, Kind
from limpet.kernel.errors import Conflict, Corrupt, Denied, Invalid, LimpetError, Missing
from limpet.kernel.keys import Key
from limpet.kernel.store.api import Blob, Stat, batched
from limpet.kernel.waiting import attempts

NEIGHBOURS = 16
PART_BYTES = 4 << 20
"""Adjacent shards of at most this total size are one part."""

BATCH_BYTES = 32 << 20
VERSION_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Adjacent non-empty shards. `name`: the common prefix of their ids.

    `version` changes when any of them changes, and when another one becomes non-empty.
    """

    name: str
    shards: tuple[str, ...]
    version: str
    size: int


class CompiledShards:
    """Lists and reads the shards of an index, by its manifest. Waiting objects are ignored."""

    def __init__(self, storage: IndexStorage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        self._reader = Reader(storage, manifest)

    def parts(self, part_bytes: int = PART_BYTES) -> list[ShardGroup]:
        """The current non-empty parts.

        Raises: Corrupt for a shard that is missing or lost records.   Cost: 1 LIST per 1,000 shards and locks; as
        `Reader.check_size`.
        """
        stats = self._storage.shard_stats(self._manifest.depth)
        for shard, stat in stats.items():
            self._reader.check_size(shard, stat.size)
        return parts_of(stats, part_bytes)

    def read(self, parts: Sequence[ShardGroup]) -> Iterator[tuple[ShardGroup, list[bytes]]]:
        """Each part as read, which may be newer than listed, and its live lines.

        Memory is bounded by 32 MiB of shards, or the largest part.   Raises: Corrupt.   Cost: 1 GET a shard.
        """
        schema = self._manifest.schema
        for batch in batched(parts, lambda part: part.size, size=BATCH_BYTES):
            blobs = self._storage.shards([shard for part in batch for shard in part.shards])
            for part in batch:
                read = {shard: blobs[shard] for shard in part.shards}
                lines = [line for shard, blob in read.items() for line in self._reader.checked_lines(shard, blob.data)]
                yield replace(part, version=_version(read)), [line for line in lines if not schema.is_tombstone(line)]


def parts_of(shards: Mapping[str, Stat], part_bytes: int) -> list[ShardGroup]:
    """The non-empty parts of all shards of an index, in order. Pure."""
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
"""The default namespace of published tables."""

AT_ONCE_BYTES = 32 << 20
COMPILES_MAX = 3

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


@dataclass(frozen=True, slots=True)
class Published:
    """The result: the table matches the index. `files_added` and `files_removed`: the changes of this run.

    `changed`: there was a commit. `metadata_location`: for engines that read the table without a catalog.
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
    """The difference between the table and the shards. `contents` is None if there is no table yet."""

    manifest: Manifest
    metadata_location: str
    contents: Contents | None
    keep: Sequence[File]
    drop: Sequence[File]
    due: Sequence[ShardGroup]
    expiring: Mapping[str, Any]

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to do."""
        return self.contents is not None and self.contents.fits and not (self.drop or self.due)


class IndexPublisher(TableChange):
    """Publishes one index as one table. `catalog` is only read; `lead` returns a writer for it.

    `part_bytes`: sixteen adjacent shards of at most this total size are one file.
    """

    def __init__(
        self,
        index: Index[Any],
        catalog: Catalog,
        table: tuple[Sequence[str], str],
        lead: Lead,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        super().__init__(catalog, table, lead)
        self._index = index
        self._part_bytes = part_bytes
        self._storage = index.storage
        self._source = index.storage.keys.root

    def publish(self, *, compile: bool = True) -> Published:
        """Update the table to the index: every live record that was put before, if it may `compile` first.

        Raises: Missing without the index; Invalid for a table of another source; NotLeader; OutcomeUnknown (it may be
        published: run it again); Unavailable after too many concurrent publications.
        Cost: what `Index.compile` costs; 4 GETs of the catalog and the table, 1 GET of the manifest, 1 LIST per 1,000
        shards and locks; then, if something changed, 1 GET for each shard of a changed part, 1 PUT a part, 2 GETs,
        2 PUTs, and the lead and the commit of a catalog.
        The commit also removes snapshots that the table's `history.expire.*` no longer keep, by default for five days.
        Crash: the table is the old one or the new one. Unused files may remain in its folder (`remove_orphans`).
        """
        for _ in range(COMPILES_MAX if compile else 0):
            if not self._index.compile(full=True).conflicts:
                break
        plan = self._look()
        if plan.is_current:
            return self._unchanged(plan)
        with self._lead() as writer:
            for tries in attempts(self._runtime):
                if tries > 1:
                    plan = self._look()
                if plan.is_current:
                    return self._unchanged(plan)
                done = self._try(writer, plan)
                if done is not None:
                    return done
        raise self._too_many()

    def _unchanged(self, plan: _PublishPlan) -> Published:
        assert plan.contents is not None
        return self._report(plan.metadata_location, TableFiles(plan.keep, (), ()), plan.contents, None)

    # ---- comparing ----

    def _look(self) -> _PublishPlan:
        """Compare the table with the shards. The table is read first: the shards are at least as new."""
        manifest = self._manifest()
        columns = columns_of(manifest.schema)
        try:
            loaded = self._load()
        except (NoSuchTable, NoSuchNamespace):
            loaded = None
        contents: Contents | None = None
        if loaded is not None:
            contents = contents_of(loaded.metadata, self._source, columns, self._fetch)
            if not contents.is_of_source:
                raise Invalid(
                    f"the table {self._shown!r} was not created from the index {self._index.name!r}",
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
        expiring: Mapping[str, Any] = {}
        if loaded is not None:  # what the next commit requires and changes, as with `TableMaintenance.expire`
            history = self._history(loaded)
            gone = expired(history, policy_of(history.properties), int(self._storage.store.now().timestamp() * 1000))
            expiring = expiry_request(history, gone) if gone and history.owns_files() else {}
        return _PublishPlan(manifest, location or "", contents, [*keep.values()], drop, due, expiring)

    def _manifest(self) -> Manifest:
        """The current manifest.   Raises: Missing.   Cost: 1 GET."""
        seen = manifest_cell(self._storage).read()
        if seen is None:
            raise Missing(f"there is no index {self._index.name!r}", hint="`limpet index ls` lists the indexes")
        return seen.value

    def _fetch(self, url: str, size_max: int = METADATA_BYTES_MAX) -> bytes:
        try:
            return self._storage.store.get(self._key(url), size_max=size_max).data
        except Missing as error:
            raise Corrupt(f"a file of the table {self._shown!r} is missing: {error}") from None

    # ---- writing ----

    def _try(self, writer: TableWriter, plan: _PublishPlan) -> Published | None:
        """Write the changed parts and commit; None if the table or the columns changed meanwhile."""
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
                return self._report(plan.metadata_location, files, contents, None)  # no live record in what changed
            stamp = self._stamp()
            request, writes = commit_of(contents, files, stamp)
            for part, more in plan.expiring.items():
                request[part] += more
            self._write(writes, written)
        except LimpetError:
            self._remove(written)
            raise
        try:
            location = writer.commit_table(self._namespace, self._name, request)
        except (Conflict, NoSuchTable):
            landed = self._landed(request, written)
            if not landed:
                return None
            location = landed
        except (Invalid, Denied):
            self._remove(written)
            raise
        return self._report(location, files, contents, stamp)

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
                f"the namespace of {self._shown!r} was created in the catalog of another fleet",
                hint="--catalog must be the service of this fleet",
            ) from None
        return contents_of(staged.metadata, self._source, columns, self._fetch, is_staged=True)

    def _write_parts(self, plan: _PublishPlan, contents: Contents, written: list[Key]) -> list[File]:
        """Write a file for each changed part with live records. Their keys are added to `written`, also on failure."""
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

    def _report(self, metadata_location: str, files: TableFiles, contents: Contents, stamp: Stamp | None) -> Published:
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
    """The columns of the published table, in order."""
    return [
        Column(field.name, _TYPES[field.type], field.name == schema.key, "JSON" if field.type in JSON_KINDS else None)
        for field in schema.columns
    ]


def _tag(part: ShardGroup) -> str:
    return f"{part.name}-{part.version}"


def _layout(manifest: Manifest) -> object:
    """What must not change while the shards are read."""
    return manifest.fields, manifest.depth, manifest.generation

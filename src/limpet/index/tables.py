"""An index as a table of DuckDB: its lines as text on disk, and a view that merges, types and unescapes them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from limpet.cell import Cell, struct_codec
from limpet.errors import Corrupt, Invalid, LimpetError, Missing
from limpet.index import duck
from limpet.index.decide import newest, shard_ids
from limpet.index.duck import identifier, literal
from limpet.index.manifest import Manifest
from limpet.index.reader import Reader
from limpet.index.schema import DELETED, LINE_BYTES_MAX, UPDATED_AT, Schema
from limpet.index.storage import SHARD_BYTES_MAX, Storage
from limpet.index.text import END
from limpet.keys import INDEXES, IndexKeys, Key, join, name_of
from limpet.runtime import Runtime
from limpet.store import DirectoryStore, MeteredStore, ScopedStore, Store
from limpet.store.directory.failure import failure
from limpet.store.directory.paths import file_path
from limpet.store.roles import allows

__all__ = ["BAD_LINE", "SCHEMA", "Gathered", "Table", "names_in", "table_of"]

SCHEMA = "limpet"
"""Where helper tables live in DuckDB, so that no index can have their names."""

BAD_LINE = "a shard holds a line that is no record"
BATCH_BYTES = 64 << 20
SHARDS_AT_ONCE = 64
SMALL_BYTES = 64 << 10

_BOM = "\ufeff".encode()
"""DuckDB drops it at the start of a file, so every file that we write begins with one."""

_GLOB = re.compile(r"[*?\[\\]")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_RANK = identifier("\x1frank")
_READ = f"hive_partitioning=false, buffer_size={2 * (LINE_BYTES_MAX + 1)}"


@dataclass(frozen=True, slots=True)
class Gathered:
    """The lines of an index as files: what waits (winners only; None for nothing) and the shards that are not empty."""

    waiting: str | None
    shards: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """One index, by the name that the query calls it."""

    name: str
    storage: Storage
    manifest: Manifest

    def gather(self, folder: Path) -> Gathered:
        """Bring the lines to where DuckDB can read them: what waits first, then the shards, as every reader does.

        Files go to `folder`, but large shards of a directory store are read where they are.
        Raises: Corrupt for a shard that is missing or cut off, or a bad object that waits; OSError.
        Cost: 2 LISTs; for each shard with work up to 2 LISTs and 1 GET an object; 1 GET a shard, none in a directory.
        """
        folder.mkdir()
        waiting = folder / "waiting"
        reader = Reader(self.storage, self.manifest)
        count = self._write_waiting(waiting, reader)
        return Gathered(str(waiting) if count else None, self._shards(folder, reader))

    def _write_waiting(self, path: Path, reader: Reader) -> int:
        """Write down the newest of the lines that wait, tombstones too; how many there are."""
        work = self.storage.work()
        shards = [shard for shard in shard_ids(self.manifest.depth) if shard in work.shards]
        shape = self.manifest.schema.shape

        def one(shard: str) -> dict[bytes, bytes] | LimpetError:
            try:
                return newest(reader.waiting(shard, work), shape)
            except LimpetError as error:
                return error

        count = 0
        with path.open("wb") as file:
            file.write(_BOM)
            for at in range(0, len(shards), SHARDS_AT_ONCE):
                some = shards[at : at + SHARDS_AT_ONCE]
                for found in self.storage.runtime.fan_out(one, some, at_once=self.storage.store.at_once):
                    if isinstance(found, LimpetError):
                        raise found
                    file.writelines(line + END for line in found.values())
                    count += len(found)
        return count

    def _shards(self, folder: Path, reader: Reader) -> list[str]:
        """The shards that are not empty, as files: large ones of a directory where they are, all others in one."""
        paths: list[str] = []
        elsewhere: list[str] = []
        copies = folder / "shards"
        with copies.open("wb") as file:
            file.write(_BOM)
            for shard in shard_ids(self.manifest.depth):
                path = _path_of(self.storage.store, self.storage.keys.shard(shard))
                if path is None:
                    elsewhere.append(shard)
                elif (data := self._look(shard, path, reader)) is None:
                    paths.append(path)
                else:
                    file.write(data)
            for some in self._batches(elsewhere):
                file.writelines(self._fetch(some, reader))
            return [str(copies), *paths] if file.tell() > len(_BOM) else paths

    def _look(self, shard: str, path: str, reader: Reader) -> bytes | None:
        """The bytes of a shard in a directory; None for one that DuckDB can just as well read by itself.

        A small one is read faster here. From one that begins with a byte order mark DuckDB would drop it.
        """
        try:
            fd = os.open(path, _OPEN)
            with os.fdopen(fd, "rb") as file:
                size = os.fstat(fd).st_size
                if size > SMALL_BYTES and file.read(len(_BOM)) != _BOM:
                    file.seek(size - 1)
                    self._demand_end(shard, file.read())
                    reader.demand_whole(shard, size)
                    return None
                file.seek(0)
                return self._whole(shard, file.read(), reader)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                raise self.storage.no_shard(shard) from None
            raise failure(f"could not read {path}", error) from error

    def _batches(self, shards: Sequence[str]) -> Iterator[list[str]]:
        """Few enough at a time to be held in memory, as far as the manifest knows their sizes."""
        batch: list[str] = []
        size = 0
        for shard in shards:
            count = self.manifest.count(shard)
            more = count.size if count else 0
            if batch and (len(batch) == SHARDS_AT_ONCE or size + more > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(shard)
            size += more
        if batch:
            yield batch

    def _fetch(self, shards: Sequence[str], reader: Reader) -> Iterator[bytes]:
        """The bytes of shards, through the store."""
        keys = {self.storage.keys.shard(shard): shard for shard in shards}
        for key, blob in self.storage.store.get_many(keys, size_max=SHARD_BYTES_MAX).items():
            if isinstance(blob, Missing):
                raise self.storage.no_shard(keys[key])
            if isinstance(blob, LimpetError):
                raise blob
            yield self._whole(keys[key], blob.data, reader)

    def _whole(self, shard: str, data: bytes, reader: Reader) -> bytes:
        """`data`, if it is all of the shard.   Raises: Corrupt."""
        reader.demand_records(shard, self._demand_end(shard, data).count(END))
        return data

    def _demand_end(self, shard: str, data: bytes) -> bytes:
        """`data`, if it is nothing or ends a line (F23).   Raises: Corrupt."""
        if data and not data.endswith(END):
            raise Corrupt(
                f"{self.storage.keys.shard(shard)} does not end with a line feed: it was cut off",
                hint="restore it from a backup; `limpet index verify` tells what else is amiss",
            )
        return data

    def statements(self, number: int, gathered: Gathered | None) -> Iterator[str]:
        """What makes the index a view in DuckDB; without anything gathered an empty one, which has the columns."""
        schema = self.manifest.schema
        rows = _nothing(schema)
        if gathered is not None and gathered.shards:
            rows = _read(gathered.shards, schema)
        if gathered is not None and gathered.waiting is not None:
            table = f"{SCHEMA}.waiting{number}"
            waiting = _read([gathered.waiting], schema)
            yield f"create table {table} as select w.*, {_rank('w', schema)} as {_RANK} from {waiting} w"
            rows = f"({_merged(rows, table, schema)})"
        yield f"create view {identifier(self.name)} as {_typed(rows, schema)}"


def table_of(store: Store, runtime: Runtime, name: str, index: str | None = None) -> Table | None:
    """The index that a query calls `name` (`index`, if that is another name); None if there is none.   Cost: 1 GET."""
    try:
        keys = IndexKeys.of(index or name)
    except Invalid:
        return None
    seen = Cell(store, keys.manifest, struct_codec(Manifest), runtime).read()
    if seen is None:
        return None
    return Table(name, Storage(store, keys, runtime), seen.value)


def names_in(store: Store) -> list[str]:
    """The indexes of a fleet.   Cost: 1 LIST per 1,000."""
    return sorted(name_of(part) for part in store.list_dirs(INDEXES))


def _path_of(store: Store, key: Key) -> str | None:
    """Where a directory keeps an object; None on other stores, and where DuckDB would take the path for a pattern."""
    while isinstance(store, MeteredStore | ScopedStore):
        if isinstance(store, ScopedStore):
            if store.role is not None and not allows(store.role, "get", key):
                return None
            key = join(store.prefix, key)
        store = store.inner
    if not isinstance(store, DirectoryStore):
        return None
    path = f"{store.root}{file_path(key)}"
    return None if _GLOB.search(path) else path


def _read(paths: Sequence[str], schema: Schema) -> str:
    return f"read_csv([{', '.join(map(literal, paths))}], {duck.options(schema)}, {_READ})"


def _nothing(schema: Schema) -> str:
    columns = ", ".join(f"null::varchar as {identifier(field.name)}" for field in schema.fields)
    return f"(select {columns} limit 0)"


def _rank(row: str, schema: Schema) -> str:
    r"""`decide.rank` in SQL: text compares by its bytes, and nulls at the end do not count."""
    fields = ", ".join(rf"coalesce({row}.{identifier(field.name)}, '\N')" for field in schema.fields)
    line = rf"regexp_replace(concat_ws(chr(31), {fields}), '(\x1f\\N)+$', '')"
    return f"struct_pack(stamp := {row}.{identifier(UPDATED_AT)}, gone := {row}.{identifier(DELETED)}, line := {line})"


def _merged(shards: str, table: str, schema: Schema) -> str:
    """The winning row of each key, tombstones too."""
    key = identifier(schema.key)
    names = [*enumerate(identifier(field.name) for field in schema.fields)]
    both = ", ".join(f"b.{name} as b{at}, w.{name} as w{at}" for at, name in names)
    of_base = (
        f"case when w.{key} is null then true when b.{key} is null then false else {_rank('b', schema)} > w.{_RANK} end"
    )
    winner = ", ".join(f"case when of_base then b{at} else w{at} end as {name}" for at, name in names)
    return (
        f"select {winner} from (select {both}, {of_base} as of_base from {shards} b full join {table} w "
        f"on b.{key} = w.{key})"
    )


def _typed(rows: str, schema: Schema) -> str:
    """The live records among raw rows, one typed column for each field of the schema."""
    gone = identifier(DELETED)
    live = f"case {gone} when '0' then true when '1' then false else error({literal(BAD_LINE)}) end"
    return f"select {duck.select(schema)} from {rows} where {live}"

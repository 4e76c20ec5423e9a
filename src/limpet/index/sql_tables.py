"""An index as a table of DuckDB: its shards and what waits, merged by SQL, so that a query sees each record once."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from limpet.index.codec import DELETED, LINE_BYTES_MAX, UPDATED_AT, Schema
from limpet.index.decide import newest, shard_ids
from limpet.index.reader import OnDamage, Reader
from limpet.index.storage import IndexStorage, Manifest, manifest_cell
from limpet.index.values import END, ESCAPES, Kind
from limpet.kernel.errors import Corrupt, Invalid, Missing
from limpet.kernel.keys import INDEXES, IndexKeys, Key, join, name_of
from limpet.kernel.runtime import Runtime
from limpet.kernel.store import DirectoryStore, MeteredStore, ScopedStore, Store
from limpet.kernel.store.api import batched
from limpet.kernel.store.directory.files import failure
from limpet.kernel.store.roles import allows

_TYPES: dict[Kind, str] = {
    "integer": "BIGINT",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "datetime": "TIMESTAMPTZ",
    "object": "JSON",
    "array": "JSON",
    "any": "JSON",
}


def identifier(name: str) -> str:
    """A name as SQL, safely quoted."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as SQL, safely quoted."""
    return "'" + text.replace("'", "''") + "'"


def options(schema: Schema) -> str:
    """The arguments of `read_csv` after the path.

    Nothing is auto-detected and there are no quotes. A line of an older schema is padded with nulls (`null_padding`),
    and unknown columns of a newer schema are ignored (`strict_mode`).
    """
    types = ", ".join(f"{literal(field.name)}: 'VARCHAR'" for field in schema.fields)
    return (
        r"delim=chr(31), quote='', escape='', nullstr='\N', header=false, auto_detect=false, new_line='\n', "
        f"null_padding=true, strict_mode=false, max_line_size={LINE_BYTES_MAX + 1}, columns={{{types}}}"
    )


def select(schema: Schema) -> str:
    """The select list over the columns of `read_csv`: typed, escapes undone, without `_deleted`.

    A value that does not have its column's type is an error, never a null.
    """
    named = [(identifier(field.name), _TYPES.get(field.type)) for field in schema.columns]
    return ", ".join(f"{f'cast({name} as {kind})' if kind else _unescaped(name)} as {name}" for name, kind in named)


def _unescaped(column: str) -> str:
    r"""Split at `\\`, undo the other escapes in the pieces, join with one backslash: so escapes cannot be confused."""
    short, long = "piece", "piece"
    for char, escaped in ESCAPES.items():
        if char != "\\":
            long = _replaced(long, escaped, char)
        if len(escaped) == 2 and char != "\\":
            short = _replaced(short, escaped, char)
    piece = rf"case when contains(piece, '\x') then {long} when contains(piece, '\') then {short} else piece end"
    pieces = rf"list_transform(string_split({column}, '\\'), lambda piece: {piece})"
    return rf"case when contains({column}, '\') then array_to_string({pieces}, '\') else {column} end"


def _replaced(text: str, escaped: str, char: str) -> str:
    return f"replace({text}, {literal(escaped)}, chr({ord(char)}))"


CATALOG = "tables"
"""The database of DuckDB in which the tables of the catalog are: `tables.<namespace>.<name>`."""
INPUT = "\x1finput"
SCHEMA = "limpet"
"""The DuckDB schema of helper tables, so that their names cannot clash with those of indexes."""
BAD_LINE = "a shard holds a line that is no record"
BATCH_BYTES = 64 << 20
SHARDS_AT_ONCE = 64
SMALL_BYTES = 64 << 10
OPEN_MAX = 4096
_BOM = "\ufeff".encode()
"""DuckDB removes it at the start of a file, so every file that we write begins with one."""
DESCRIPTORS = "/proc/self/fd"
"""Open files on Linux: a name there opens the same file again, even if its path was replaced."""
_RANK = identifier("\x1frank")
_READ = f"hive_partitioning=false, buffer_size={2 * (LINE_BYTES_MAX + 1)}"


@dataclass(frozen=True, slots=True)
class Gathered:
    """The lines of an index as files: waiting records (winners only; None if there are none) and non-empty shards.

    Some are paths of open descriptors, which the caller of `Table.gather` closes.
    """

    waiting: str | None
    shards: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """One index, by its name in the query."""

    name: str
    storage: IndexStorage
    manifest: Manifest

    def gather(self, folder: Path, opened: ExitStack, on_damage: OnDamage | None = None) -> Gathered:
        """Make the lines readable for DuckDB: waiting records first, then the shards, like every reader.

        Files are written to `folder`. Large shards of a directory store are read in place, on Linux and within the
        limit of open files: DuckDB follows links, so it gets files that are already open, until `opened` ends.
        With `on_damage` the lines are those of `Reader.scan`: checked, and merged with waiting records.
        Raises: Corrupt for a missing or truncated shard, or an invalid waiting object; OSError.
        Cost: 2 LISTs; for each shard with work up to 2 LISTs and 1 GET an object; 1 GET a shard, none in a directory.
        """
        folder.mkdir()
        reader = Reader(self.storage, self.manifest)
        if on_damage is not None:
            live = folder / "live"
            count = _write_lines(live, reader.scan(on_damage))
            return Gathered(None, [str(live)] if count else [])
        waiting = folder / "waiting"
        count = _write_lines(waiting, self._waiting(reader))
        return Gathered(str(waiting) if count else None, self._shards(folder, reader, opened))

    def _waiting(self, reader: Reader) -> Iterator[Collection[bytes]]:
        work, shape = self.storage.work(), self.manifest.schema.shape
        shards = [shard for shard in shard_ids(self.manifest.depth) if shard in work.shards]
        for at in range(0, len(shards), SHARDS_AT_ONCE):
            some = shards[at : at + SHARDS_AT_ONCE]
            for found in self.storage.for_each(lambda shard: newest(reader.waiting(shard, work), shape), some):
                yield found.values()

    def _shards(self, folder: Path, reader: Reader, opened: ExitStack) -> list[str]:
        """The non-empty shards as files: large ones of a directory in place, all others in one file."""
        paths: list[str] = []
        elsewhere: list[str] = []
        copies = folder / "shards"
        open_max = _open_max()
        with copies.open("wb") as file:
            file.write(_BOM)
            for shard in shard_ids(self.manifest.depth):
                found = None if len(paths) >= open_max else self._look(shard, reader, opened)
                if found is None:
                    elsewhere.append(shard)
                elif isinstance(found, str):
                    paths.append(found)
                else:
                    file.write(found)
            for some in batched(elsewhere, self.manifest.size, size=BATCH_BYTES, count=SHARDS_AT_ONCE):
                blobs = self.storage.shards(some)
                file.writelines(self._whole(shard, blob.data, reader) for shard, blob in blobs.items())
            return [str(copies), *paths] if file.tell() > len(_BOM) else paths

    def _look(self, shard: str, reader: Reader, opened: ExitStack) -> bytes | str | None:
        """The bytes of a shard in a directory, or the path of its open file, for DuckDB; None if it must be read
        through the store.

        A small one is read faster here. DuckDB would remove a byte order mark at the start of the shard.
        """
        directory = _directory_of(self.storage.store, self.storage.keys.shard(shard))
        if directory is None:
            return None
        store, key = directory
        try:
            with ExitStack() as ours:
                file = ours.enter_context(open(store.open(key), "rb"))
                size = os.fstat(file.fileno()).st_size
                if size > SMALL_BYTES and file.read(len(_BOM)) != _BOM:
                    file.seek(size - 1)
                    self._check_end(shard, file.read())
                    reader.check_size(shard, size)
                    opened.push(ours.pop_all())
                    return f"{DESCRIPTORS}/{file.fileno()}"
                file.seek(0)
                return self._whole(shard, file.read(), reader)
        except Missing:
            raise self.storage.no_shard(shard) from None
        except OSError as error:
            raise failure(f"could not read {key}", error) from error

    def _whole(self, shard: str, data: bytes, reader: Reader) -> bytes:
        """`data`, if the shard is complete.   Raises: Corrupt."""
        reader.check_records(shard, self._check_end(shard, data).count(END))
        return data

    def _check_end(self, shard: str, data: bytes) -> bytes:
        """`data`, if it is empty or ends with a line feed (F23).   Raises: Corrupt."""
        if data and not data.endswith(END):
            raise Corrupt(
                f"{self.storage.keys.shard(shard)} does not end with a line feed: it was cut off",
                hint="restore it from a backup; `limpet index verify` lists what else is wrong",
            )
        return data

    def statements(self, number: int, gathered: Gathered | None) -> Iterator[str]:
        """The statements that create the view of the index; without `gathered` an empty one."""
        schema = self.manifest.schema
        columns = ", ".join(f"null::varchar as {identifier(field.name)}" for field in schema.fields)
        rows = f"(select {columns} limit 0)"
        if gathered is not None and gathered.shards:
            rows = _read(gathered.shards, schema)
        if gathered is not None and gathered.waiting is not None:
            table = f"{SCHEMA}.waiting{number}"
            waiting = _read([gathered.waiting], schema)
            yield f"create table {table} as select w.*, {_rank('w', schema)} as {_RANK} from {waiting} w"
            rows = f"({_merged(rows, table, schema)})"
        live = f"case {identifier(DELETED)} when '0' then true when '1' then false else error({literal(BAD_LINE)}) end"
        yield f"create view {identifier(self.name)} as select {select(schema)} from {rows} where {live}"


def _write_lines(path: Path, parts: Iterable[Collection[bytes]]) -> int:
    count = 0
    with path.open("wb") as file:
        file.write(_BOM)
        for lines in parts:
            file.writelines(line + END for line in lines)
            count += len(lines)
    return count


def table_of(store: Store, runtime: Runtime, name: str, index: str | None = None) -> Table | None:
    """The index that the query calls `name` (`index`: its real name); None if there is none.   Cost: 1 GET."""
    try:
        keys = IndexKeys.of(index or name)
    except Invalid:
        return None
    storage = IndexStorage(store, keys, runtime)
    seen = manifest_cell(storage).read()
    return Table(name, storage, seen.value) if seen else None


def names_in(store: Store) -> list[str]:
    """The names of the indexes of a fleet.   Cost: 1 LIST per 1,000."""
    return sorted(name_of(part) for part in store.list_dirs(INDEXES))


def _directory_of(store: Store, key: Key) -> tuple[DirectoryStore, Key] | None:
    """The directory that keeps an object, and its key there; None on other stores."""
    while isinstance(store, MeteredStore | ScopedStore):
        if isinstance(store, ScopedStore):
            if store.role is not None and not allows(store.role, "get", key):
                return None
            key = join(store.prefix, key)
        store = store.inner
    return (store, key) if isinstance(store, DirectoryStore) else None


def _open_max() -> int:
    """How many shards of an index are kept open for DuckDB, which opens each again; the others are copied."""
    if not os.path.isdir(DESCRIPTORS):
        return 0
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_MAX if limit == resource.RLIM_INFINITY else min(OPEN_MAX, limit // 4)


def _read(paths: Sequence[str], schema: Schema) -> str:
    return f"read_csv([{', '.join(map(literal, paths))}], {options(schema)}, {_READ})"


def _rank(row: str, schema: Schema) -> str:
    r"""`decide.rank` in SQL: text is compared by bytes, and trailing nulls are ignored."""
    fields = ", ".join(rf"coalesce({row}.{identifier(field.name)}, '\N')" for field in schema.fields)
    line = rf"regexp_replace(concat_ws(chr(31), {fields}), '(\x1f\\N)+$', '')"
    return f"struct_pack(stamp := {row}.{identifier(UPDATED_AT)}, gone := {row}.{identifier(DELETED)}, line := {line})"


def _merged(shards: str, table: str, schema: Schema) -> str:
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

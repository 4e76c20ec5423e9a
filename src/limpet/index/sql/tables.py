"""An index as a table of DuckDB: its lines as text on disk, and a view that merges, types and unescapes them.

Lines are read as text (`options`), and a select list gives each column its type and undoes the escapes (`select`):

    select {select(schema)} from read_csv('shards/*.usv', {options(schema)}) where "_deleted" = '0'

A datetime becomes `TIMESTAMPTZ`. DuckDB shows it in the session's time zone (`set timezone = 'UTC'`), and its Python
client needs the package pytz to fetch one as an object; Arrow does not.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from limpet.cell import Cell, struct_codec
from limpet.errors import Corrupt, Invalid, Missing
from limpet.index.codec.lines import DELETED, END, ESCAPES, LINE_BYTES_MAX, UPDATED_AT, Field, Kind, Schema
from limpet.index.decide import newest, shard_ids
from limpet.index.reader import OnDamage, Reader
from limpet.index.storage import IndexStorage, Manifest, batched
from limpet.keys import INDEXES, IndexKeys, Key, join, name_of
from limpet.runtime import Runtime
from limpet.store import DirectoryStore, MeteredStore, ScopedStore, Store
from limpet.store.directory.files import failure
from limpet.store.roles import allows

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


def columns(schema: Schema) -> dict[str, str]:
    """The type of each column for `read_csv`, `_deleted` included: text, since escapes and types come after."""
    return {field.name: "VARCHAR" for field in schema.fields}


def options(schema: Schema) -> str:
    """The arguments of `read_csv` after the path.

    Nothing is guessed and there are no quotes. A line of an older schema gets nulls at its end (`null_padding`), and of
    one of a newer schema the columns that we do not know are left away (`strict_mode`).
    """
    types = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in columns(schema).items())
    return (
        r"delim=chr(31), quote='', escape='', nullstr='\N', header=false, auto_detect=false, new_line='\n', "
        f"null_padding=true, strict_mode=false, max_line_size={LINE_BYTES_MAX + 1}, columns={{{types}}}"
    )


def select(schema: Schema) -> str:
    """The select list over the columns of `read_csv`: typed, escapes undone, without `_deleted`.

    A value that is not of its column's type is an error of the query, never a null.
    """
    return ", ".join(f"{_value(field)} as {identifier(field.name)}" for field in schema.columns)


def _value(field: Field) -> str:
    column = identifier(field.name)
    if field.type == "string":
        return _unescaped(column)
    return f"cast({column} as {_TYPES[field.type]})"


def _unescaped(column: str) -> str:
    r"""Split at `\\`, undo the other escapes in the pieces, join with one backslash: so none is taken for another."""
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


SCHEMA = "limpet"
"""Where helper tables live in DuckDB, so that no index can have their names."""

BAD_LINE = "a shard holds a line that is no record"
BATCH_BYTES = 64 << 20
SHARDS_AT_ONCE = 64
SMALL_BYTES = 64 << 10
OPEN_MAX = 4096
_BOM = "\ufeff".encode()
"""DuckDB drops it at the start of a file, so every file that we write begins with one."""

DESCRIPTORS = "/proc/self/fd"
"""Where Linux shows open files: a name there opens the same file again, whatever its path leads to by now."""

_RANK = identifier("\x1frank")
_READ = f"hive_partitioning=false, buffer_size={2 * (LINE_BYTES_MAX + 1)}"


@dataclass(frozen=True, slots=True)
class Gathered:
    """The lines of an index as files: what waits (winners only; None for nothing) and the shards that are not empty.

    Some are paths of open descriptors, which the caller of `Table.gather` closes.
    """

    waiting: str | None
    shards: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """One index, by the name that the query calls it."""

    name: str
    storage: IndexStorage
    manifest: Manifest

    def gather(self, folder: Path, opened: ExitStack, on_damage: OnDamage | None = None) -> Gathered:
        """Bring the lines to where DuckDB can read them: what waits first, then the shards, as every reader does.

        Files go to `folder`. Large shards of a directory store are read where they are, on Linux and while the limit of
        open files allows it: DuckDB follows links, so it is given files that are open already, until `opened` ends.
        With an `on_damage` every shard is copied and checked, and damaged ones are left out with what waits for them.
        Raises: Corrupt for a shard that is missing or cut off, or a bad object that waits; OSError.
        Cost: 2 LISTs; for each shard with work up to 2 LISTs and 1 GET an object; 1 GET a shard, none in a directory.
        """
        folder.mkdir()
        waiting = folder / "waiting"
        reader = Reader(self.storage, self.manifest)
        if on_damage is not None:
            return self._gather_sound(folder, waiting, reader, on_damage)
        count = self._write_waiting(waiting, reader)
        return Gathered(str(waiting) if count else None, self._shards(folder, reader, opened))

    def _gather_sound(self, folder: Path, waiting: Path, reader: Reader, on_damage: OnDamage) -> Gathered:
        """`gather`, shard by shard: first what waits for one, then the shard; neither if either is damaged."""
        work, shape = self.storage.work(), self.manifest.schema.shape
        shards = folder / "shards"
        waits = False
        with waiting.open("wb") as of_waiting, shards.open("wb") as of_shards:
            of_waiting.write(_BOM)
            of_shards.write(_BOM)
            for shard in shard_ids(self.manifest.depth):
                try:
                    lines = newest(reader.waiting(shard, work), shape) if shard in work.shards else {}
                    data = self.storage.shard(shard).data
                    reader.sound(shard, data)
                except Corrupt as error:
                    on_damage(reader.left_out(shard, error))
                    continue
                waits = waits or bool(lines)
                of_waiting.writelines(line + END for line in lines.values())
                of_shards.write(data)
            is_empty = of_shards.tell() == len(_BOM)
        return Gathered(str(waiting) if waits else None, [] if is_empty else [str(shards)])

    def _write_waiting(self, path: Path, reader: Reader) -> int:
        """Write down the newest of the lines that wait, tombstones too; how many there are."""
        work = self.storage.work()
        shards = [shard for shard in shard_ids(self.manifest.depth) if shard in work.shards]
        shape = self.manifest.schema.shape

        count = 0
        with path.open("wb") as file:
            file.write(_BOM)
            for at in range(0, len(shards), SHARDS_AT_ONCE):
                some = shards[at : at + SHARDS_AT_ONCE]
                for found in self.storage.for_each(lambda shard: newest(reader.waiting(shard, work), shape), some):
                    file.writelines(line + END for line in found.values())
                    count += len(found)
        return count

    def _shards(self, folder: Path, reader: Reader, opened: ExitStack) -> list[str]:
        """The shards that are not empty, as files: large ones of a directory where they are, all others in one."""
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
        """The bytes of a shard in a directory, or the path of its open file if DuckDB can just as well read it by
        itself; None for one that must come through the store.

        A small one is read faster here. From one that begins with a byte order mark DuckDB would drop it.
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
                    self._demand_end(shard, file.read())
                    reader.demand_whole(shard, size)
                    opened.push(ours.pop_all())
                    return f"{DESCRIPTORS}/{file.fileno()}"
                file.seek(0)
                return self._whole(shard, file.read(), reader)
        except Missing:
            raise self.storage.no_shard(shard) from None
        except OSError as error:
            raise failure(f"could not read {key}", error) from error

    def _whole(self, shard: str, data: bytes, reader: Reader) -> bytes:
        """`data`, if it is all of the shard.   Raises: Corrupt."""
        reader.demand_records(shard, self._demand_end(shard, data).count(END))
        return data

    def _demand_end(self, shard: str, data: bytes) -> bytes:
        """`data`, if it is nothing or ends a line (F23).   Raises: Corrupt."""
        if data and not data.endswith(END):
            raise Corrupt(
                f"{self.storage.keys.shard(shard)} does not end with a line feed: it was cut off",
                hint="restore it from a backup; `limpet index verify` lists what else is wrong",
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
    return Table(name, IndexStorage(store, keys, runtime), seen.value)


def names_in(store: Store) -> list[str]:
    """The indexes of a fleet.   Cost: 1 LIST per 1,000."""
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
    """How many shards of an index are kept open for DuckDB, which opens each once more; the others are copied."""
    if not os.path.isdir(DESCRIPTORS):
        return 0
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_MAX if limit == resource.RLIM_INFINITY else min(OPEN_MAX, limit // 4)


def _read(paths: Sequence[str], schema: Schema) -> str:
    return f"read_csv([{', '.join(map(literal, paths))}], {options(schema)}, {_READ})"


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
    return f"select {select(schema)} from {rows} where {live}"

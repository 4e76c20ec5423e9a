"""SQL over the indexes of a fleet: DuckDB reads their lines, merges waiting records, and runs one query.

A query is parsed and bound against empty tables first, so that an invalid one reads nothing; then only the indexes that
it names are read. DuckDB has no access to other files unless that is allowed, loads no extension, and its settings are
locked before the query runs. That does not stop functions with side effects: `enable_logging` and `enable_profiling`
write files regardless of the settings. So only table functions that are known to read may be called, and no scalar
function that DuckDB takes for one with side effects, unless it is known to change nothing.

An index is a table: its lines are text files (`options`), and a select list converts each column to its type and undoes
the escapes (`select`):

    select {select(schema)} from read_csv('shards/*.usv', {options(schema)}) where "_deleted" = '0'

A datetime becomes `TIMESTAMPTZ`. DuckDB shows it in the session's time zone (`set timezone = 'UTC'`), and its Python
client needs the package pytz to fetch one as an object; Arrow does not.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import cache
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple, Protocol, overload

from limpet import records
from limpet.errors import Corrupt, Invalid, Missing, Unavailable, Unsupported
from limpet.index.codec import DELETED, END, ESCAPES, LINE_BYTES_MAX, UPDATED_AT, Field, Kind, Schema
from limpet.index.decide import newest, shard_ids
from limpet.index.reader import OnDamage, Reader
from limpet.index.storage import IndexStorage, Manifest, manifest_cell
from limpet.keys import INDEXES, IndexKeys, Key, join, name_of
from limpet.runtime import Runtime
from limpet.store import DirectoryStore, MeteredStore, ScopedStore, Store
from limpet.store.api import batched
from limpet.store.directory.files import failure
from limpet.store.roles import allows

Parameters = Sequence[Any] | Mapping[str, Any]
_NOT_A_SELECT = "not implemented"
_NO_TABLE = re.compile(r"Catalog Error: Table with name (.*) does not exist!")
_HINT = re.compile(r"^(?:Candidate bindings: |Did you mean ).*$", re.MULTILINE)
_INTERRUPTED = "Query interrupted"
INTERRUPT_EVERY_S = 0.05
TIMEOUT_S = 30.0
"""How long a query may compute by default, where people type it: in `limpet sql` and the dashboard."""

_PURE = frozenset(
    """
    generate_series json_each json_tree query_table range repeat repeat_row test_all_types unnest duckdb_columns
    duckdb_constraints duckdb_functions duckdb_keywords duckdb_memory duckdb_settings duckdb_tables duckdb_types
    duckdb_views pragma_collations pragma_platform pragma_table_info pragma_version pragma_show
    pg_timezone_names icu_calendar_names
    """.split()  # noqa: SIM905 (as a set it would have a line for each)
)
"""Table functions that compute, or list DuckDB's own objects."""

_OF_FILES = frozenset(
    """
    glob parquet_file_metadata parquet_kv_metadata parquet_metadata parquet_scan parquet_schema read_blob
    read_csv read_csv_auto read_json read_json_auto read_json_objects read_json_objects_auto read_ndjson
    read_ndjson_auto read_ndjson_objects read_parquet read_text sniff_csv
    """.split()  # noqa: SIM905 (as a set it would have a line for each)
)
"""Table functions that read files."""

_WITH_EFFECTS = frozenset({"getenv", "nextval", "setseed", "setval", "sleep_ms", "write_log"})
"""Scalar functions with side effects."""

_VOLATILE = frozenset(
    """
    current_connection_id current_query current_query_id current_transaction_id currval error gen_random_uuid random
    stats uuid uuidv4 uuidv7 vector_type
    """.split()  # noqa: SIM905 (as a set it would have a line for each)
)
"""Scalar functions that DuckDB takes for ones with side effects, and that change nothing."""

_SEALED = {
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}


def sql(
    store: Store,
    runtime: Runtime,
    query: str,
    parameters: Parameters | None = None,
    *,
    allow_files: bool = False,
    memory: str | None = None,
    on_damage: OnDamage | None = None,
    others: SqlTables | None = None,
    timeout_s: float | None = None,
) -> Rows:
    """Run one SELECT over the indexes of a fleet; each index is a table of its name, waiting records included.

    Each record is as of some moment after the query began; in a directory, an index that is named twice may be read at
    two moments. `parameters` fill `?` or `$name`. `allow_files`: the query may read local files.
    `memory`: how much DuckDB may use, such as "2GB", before it spills to a private temporary folder.
    `on_damage`: skip damaged shards and their waiting objects, and call it for each. Then every line is checked, which
    takes longer. `others`: more tables that the query may name, with the rest of the fleet.
    `timeout_s`: DuckDB is interrupted when it has computed for so long; reading from the store does not count.
    Raises: Invalid for an invalid query, or one that is not a SELECT; Unavailable after `timeout_s`, or if memory or
    space run out; Corrupt; Unsupported without the extra `sql`.
    Cost: 1 GET of the manifest for each table named, then as `Table.gather`; a query that fails to bind, and DESCRIBE,
    read no record.   Crash: a temporary folder may remain.
    """
    timer = QueryTimeLimit(runtime, timeout_s)
    try:
        with timer, TemporaryDirectory(prefix="limpet-sql-") as folder, ExitStack() as opened:
            home = Path(folder)
            with _session(home, [], allow_files, memory) as session:
                plan = _parsed(session, query, allow_files=allow_files)
                wanted = names_in(store) if plan.shows_all else plan.index_names
                tables = [table for name in wanted if (table := table_of(store, runtime, name))]
                _check_distinct(tables)
                more = _found_others(others, plan, {table.name for table in tables})
                for place, source in more.items():
                    _add_rows(session, place, source, ())
                with timer.computing(session):  # a constant of the query is computed here already
                    _bind(session, query, parameters, store, runtime, tables)
                    if plan.is_description:
                        return rows_of(session.sql(query, params=parameters))
            gathered = [table.gather(home / str(number), opened, on_damage) for number, table in enumerate(tables)]
            files = [path for each in gathered for path in each.shards]
            session = opened.enter_context(_session(home, files, allow_files, memory))
            session.execute(f"create schema {SCHEMA}")
            for number, (table, found) in enumerate(zip(tables, gathered, strict=True)):
                for statement in table.statements(number, found):
                    session.execute(statement)
            for place, source in more.items():
                _add_rows(session, place, source, source.read())
            with timer.computing(session):
                return rows_of(session.sql(query, params=parameters))
    except OSError as error:
        raise Unavailable(
            f"could not use the temporary folder: {error.strerror or error}", hint="free some space, or set TMPDIR"
        ) from error


class QueryTimeLimit:
    """Interrupts DuckDB when a query has computed for longer than `timeout_s`; with None, never.

    As a context it turns the interruption into `Unavailable`. One thread watches while there is a limit.
    """

    def __init__(self, runtime: Runtime, timeout_s: float | None) -> None:
        if timeout_s is not None and not timeout_s > 0:
            raise Invalid(f"a query needs time, and not {timeout_s:g} s", hint="--timeout 30s is the default")
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._left_s = timeout_s or 0.0
        self._is_over = False

    @contextmanager
    def computing(self, session: Any) -> Iterator[None]:
        """Count the time of this block."""
        if self._timeout_s is None:
            yield
            return
        ended, began_s = self._runtime.flag(), self._runtime.elapsed_s()

        def watch() -> None:
            if not ended.wait(max(0.0, self._left_s)):
                self._is_over = True
                while not ended.wait(INTERRUPT_EVERY_S):  # one between two statements is forgotten
                    session.interrupt()

        watching = self._runtime.spawn(watch, name="limpet-sql-timer")
        try:
            yield
        finally:
            ended.set()
            watching.join()  # before the session is closed
            self._left_s -= self._runtime.elapsed_s() - began_s

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._is_over and isinstance(error, (Invalid, KeyboardInterrupt)):
            raise Unavailable(
                f"the query was stopped after {self._timeout_s:g} s",
                hint="select less, or allow more time (--timeout 5m, timeout_s=300)",
            ) from None


@contextmanager
def _session(home: Path, files: Sequence[str], allow_files: bool, memory: str | None) -> Iterator[Any]:
    """An in-memory DuckDB that can read these files and our own folder, and by default nothing else."""
    try:
        duckdb = import_module("duckdb")
        import_module("pyarrow")
    except ImportError:
        raise Unsupported("SQL needs DuckDB and pyarrow", hint="pip install 'limpet[sql]'") from None
    try:
        session = duckdb.connect(":memory:", config={**_SEALED, "temp_directory": str(home / "spill")})
        try:
            session.execute("set timezone = 'UTC'; set enable_progress_bar = false")
            session.execute(f"attach ':memory:' as {CATALOG}")
            if memory is not None:
                session.execute(f"set memory_limit = {literal(memory)}")
            if not allow_files:
                # A replaced shard has no path any more: DuckDB then identifies the open file by its descriptor.
                folders = [str(home), *({os.path.dirname(path) for path in files} & {DESCRIPTORS})]
                session.execute(f"set allowed_directories = [{', '.join(map(literal, folders))}]")
                session.execute(f"set allowed_paths = [{', '.join(map(literal, files))}]")
                session.execute("set enable_external_access = false")
            session.execute("set lock_configuration = true")
            yield session
        finally:
            session.close()
    except duckdb.Error as error:
        raise _translated(error, duckdb, files) from None
    except RuntimeError as error:
        if str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from None
        raise


def _translated(error: Exception, duckdb: Any, files: Sequence[str]) -> Invalid | Corrupt | Unavailable:
    text = str(error)
    first = records.printable(text.partition("\n")[0])  # it may quote a stored value
    if BAD_LINE in text:
        return Corrupt(BAD_LINE, hint="`limpet index verify` names it")
    if "CSV Error" in text and any(path in text for path in files):
        return Corrupt(f"a shard is not what Limpet wrote: {first}", hint="`limpet index verify` names it")
    if isinstance(error, duckdb.OutOfMemoryException):
        return Unavailable(first, hint="allow more memory, select less, or free some space in TMPDIR")
    if isinstance(error, duckdb.PermissionException):
        return Invalid(first, hint="a query reads indexes only; allow_files=True (--allow-files) lets it read files")
    found = _HINT.search(text)
    return Invalid(first, hint=found[0].strip() if found else None)


class TablePlace(NamedTuple):
    """How a query names a table: `name`, `schema.name` or `catalog.schema.name`."""

    catalog: str
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class _QueryPlan:
    """The tables that a query names, and whether it only describes their columns."""

    places: Sequence[TablePlace]
    shows_all: bool
    is_description: bool

    @property
    def index_names(self) -> list[str]:
        """The names that may be those of indexes."""
        return sorted(
            {place.name for place in self.places if not place.catalog and place.schema.lower() in ("", "main")}
        )


def _parsed(session: Any, query: str, *, allow_files: bool) -> _QueryPlan:
    """Examine the syntax tree. Nothing is bound or run.

    Raises: Invalid unless it is one SELECT that calls allowed functions only.
    """
    try:
        [[text]] = session.execute("select json_serialize_sql(?::varchar)", [query]).fetchall()
        tree = json.loads(text)
    except RecursionError:
        raise Invalid("the query is nested too deeply") from None
    if tree["error"] and tree["error_type"] != _NOT_A_SELECT:
        raise Invalid(
            f"{tree['error_type'].capitalize()} Error: {tree['error_message']}".partition("\n")[0],
            hint="write DuckDB's SQL; each index is a table",
        )
    if tree["error"] or len(tree["statements"]) != 1:
        raise Invalid(
            "that is not one SELECT: a query can only read",
            hint="begin with select, with, from, values, describe, summarize or show; `limpet index put` writes",
        )
    places: set[TablePlace] = set()
    shows_all = False
    for node in _nodes(tree):
        if node.get("type") == "BASE_TABLE":
            places.add(TablePlace(node["catalog_name"], node["schema_name"], node["table_name"]))
        elif node.get("type") == "SHOW_REF" and node.get("query") is None:
            shows_all = True
        elif node.get("type") == "TABLE_FUNCTION":
            _check_function(node["function"]["function_name"].lower(), allow_files)
        elif "function_name" in node and node["function_name"].lower() in refused_functions():
            raise Invalid(f"a query may not call {node['function_name']}()", hint="a query can only read")
    top = tree["statements"][0]["node"].get("from_table") or {}
    is_description = top.get("type") == "SHOW_REF" and top.get("show_type") != "SUMMARY"
    return _QueryPlan(sorted(places), shows_all, is_description)


class SqlSource(Protocol):
    """A table of Arrow data. A text of a JSON column that is none becomes null."""

    @property
    def json(self) -> Collection[str]:
        """The columns whose texts are JSON."""

    @property
    def arrow_schema(self) -> Any:
        """Its columns, a `pyarrow.Schema`."""

    def read(self) -> Iterable[Any]:
        """Its rows: tables or record batches of pyarrow."""


class SqlTables(Protocol):
    """Tables that a query may name beside the indexes."""

    def find(self, place: TablePlace) -> SqlSource | None:
        """The table of that name; None if it is none of these.   Raises: Invalid for one of them that is not there."""

    def places(self) -> Sequence[TablePlace]:
        """All there are."""


def _found_others(others: SqlTables | None, plan: _QueryPlan, indexes: Collection[str]) -> dict[TablePlace, SqlSource]:
    """The other tables that a query names. An index hides a table of the same plain name."""
    if others is None:
        return {}
    wanted = [*plan.places, *(others.places() if plan.shows_all else ())]
    free = [place for place in wanted if place.catalog or place.schema or place.name not in indexes]
    distinct = {tuple(part.lower() for part in place): place for place in free}.values()
    return {place: source for place in distinct if (source := others.find(place)) is not None}


def _add_rows(session: Any, place: TablePlace, source: SqlSource, parts: Iterable[Any]) -> None:
    """Make rows a table of the session. They are copied, so that DuckDB may read them twice, or spill them."""
    named = [f"{identifier(place.catalog)}."] if place.catalog else []
    if place.schema:
        named.append(f"{identifier(place.schema)}.")
        session.execute(f"create schema if not exists {''.join(named)[:-1]}")
    columns = [
        f"case when json_valid({identifier(name)}) then {identifier(name)}::json end as {identifier(name)}"
        if name in source.json
        else identifier(name)
        for name in source.arrow_schema.names
    ]
    name = f"{''.join(named)}{identifier(place.name)}"
    select_list = f"select {', '.join(columns)} from {identifier(_INPUT)}"
    pa = import_module("pyarrow")
    for n, part in enumerate(chain([source.arrow_schema.empty_table()], parts)):
        session.register(_INPUT, part if isinstance(part, pa.Table) else pa.Table.from_batches([part]))
        session.execute(f"insert into {name} {select_list}" if n else f"create table {name} as {select_list}")
        session.unregister(_INPUT)


def _check_function(function: str, allow_files: bool) -> None:
    """Check that a table function only reads what the query may read.   Raises: Invalid."""
    if function in _OF_FILES and not allow_files:
        raise Invalid(
            f"a query may not call {function}()",
            hint="a query reads indexes only; allow_files=True (--allow-files) lets it read files",
        )
    if function not in _OF_FILES | _PURE:
        raise Invalid(
            f"a query may not call {function}()",
            hint="a query reads indexes; of the table functions it may call range, generate_series, unnest, json_each",
        )


@cache
def refused_functions() -> frozenset[str]:
    """The scalar functions that a query may not call, in lower case.

    Those are all that this DuckDB takes for functions with side effects, but for the ones that are known to change
    nothing, and macros that call one of them. So a function of a later version may be called once somebody has looked
    at it.
    """
    with import_module("duckdb").connect(":memory:", config=_SEALED) as session:
        listed = "select lower(function_name), has_side_effects, macro_definition from duckdb_functions()"
        functions = session.execute(listed).fetchall()
    refused = _WITH_EFFECTS | {name for name, has_effects, _ in functions if has_effects} - _VOLATILE
    calls = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(refused)))})\(", re.IGNORECASE)
    return refused | {name for name, _, body in functions if body and calls.search(body)}


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            yield node
            todo += node.values()
        elif isinstance(node, list):
            todo += node


def _bind(
    session: Any, query: str, parameters: Parameters | None, store: Store, runtime: Runtime, tables: list[Table]
) -> None:
    """Bind the query against empty tables. An index that the query names in another case is found and added.

    Raises: Invalid; for an unknown table with the existing names.
    """
    for table in tables:
        for statement in table.statements(0, None):
            session.execute(statement)
    duckdb = import_module("duckdb")
    names: list[str] | None = None
    while True:
        try:
            # DuckDB 2 wants a result to be read to its end before the next query.
            session.execute(f"explain {query}", parameters).fetchall()
            return
        except duckdb.CatalogException as error:
            found = _NO_TABLE.match(str(error))
            if found is None:
                raise
            names = names_in(store) if names is None else names
            table = _in_other_case(store, runtime, found[1], names)
        for statement in table.statements(0, None):
            session.execute(statement)
        tables.append(table)


def _in_other_case(store: Store, runtime: Runtime, name: str, names: Sequence[str]) -> Table:
    near = [each for each in names if each.lower() == name.lower()]
    table = table_of(store, runtime, name, near[0]) if len(near) == 1 else None
    if table is None:
        names = [each for each in names if each not in near]  # what lies there has no manifest
        hint = (
            f"there is {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}" if names else "there is no index yet"
        )
        raise Invalid(f"there is no index {name!r}", hint=hint)
    return table


def _check_distinct(tables: Sequence[Table]) -> None:
    lower: dict[str, str] = {}
    for table in tables:
        other = lower.setdefault(table.name.lower(), table.name)
        if other != table.name:
            raise Invalid(
                f"the query names {other!r} and {table.name!r}, two indexes that SQL cannot tell apart",
                hint="query one of them at a time",
            )


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
    return ", ".join(f"{_value(field)} as {identifier(field.name)}" for field in schema.columns)


def _value(field: Field) -> str:
    column = identifier(field.name)
    if field.type == "string":
        return _unescaped(column)
    return f"cast({column} as {_TYPES[field.type]})"


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
_INPUT = "\x1finput"

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
        """The winners of the lines that wait for each shard, including tombstones."""
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
        rows = _nothing(schema)
        if gathered is not None and gathered.shards:
            rows = _read(gathered.shards, schema)
        if gathered is not None and gathered.waiting is not None:
            table = f"{SCHEMA}.waiting{number}"
            waiting = _read([gathered.waiting], schema)
            yield f"create table {table} as select w.*, {_rank('w', schema)} as {_RANK} from {waiting} w"
            rows = f"({_merged(rows, table, schema)})"
        yield f"create view {identifier(self.name)} as {_typed(rows, schema)}"


def _write_lines(path: Path, parts: Iterable[Collection[bytes]]) -> int:
    """Write lines to a file; returns their number."""
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


def _nothing(schema: Schema) -> str:
    columns = ", ".join(f"null::varchar as {identifier(field.name)}" for field in schema.fields)
    return f"(select {columns} limit 0)"


def _rank(row: str, schema: Schema) -> str:
    r"""`decide.rank` in SQL: text is compared by bytes, and trailing nulls are ignored."""
    fields = ", ".join(rf"coalesce({row}.{identifier(field.name)}, '\N')" for field in schema.fields)
    line = rf"regexp_replace(concat_ws(chr(31), {fields}), '(\x1f\\N)+$', '')"
    return f"struct_pack(stamp := {row}.{identifier(UPDATED_AT)}, gone := {row}.{identifier(DELETED)}, line := {line})"


def _merged(shards: str, table: str, schema: Schema) -> str:
    """The winning row of each key, including tombstones."""
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


ROWS_SHOWN = 40
CELL_SHOWN = 60
BATCH_ROWS = 10_000
# Arrow converts them wrongly or not at all.
_REFUSED = {"bignum", "bit", "geometry", "time with time zone", "timestamp_ns", "union", "variant"}
_NUMBER = re.compile("U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)$|FLOAT$|DOUBLE$|DECIMAL")
Convert = Callable[[Any], Any]


class Rows(Sequence[tuple[Any, ...]]):
    """The result of a query: tuples of Python values. Its repr is a table.

    Datetimes are aware and in UTC, JSON is decoded, null is None. `polars.DataFrame(rows)`, `pyarrow.table(rows)` and
    every other Arrow reader accept it directly, with the types of the columns.
    """

    def __init__(self, table: Any, types: Sequence[str], converts: Sequence[Convert | None]) -> None:
        self.columns: tuple[str, ...] = tuple(table.column_names)
        """The names of the columns."""
        self.types: tuple[str, ...] = tuple(types)
        """Their types, as DuckDB calls them."""
        self._table = table
        self._converts = converts

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for at in range(0, len(self), BATCH_ROWS):
            yield from self._values(self._table.slice(at, BATCH_ROWS))

    @overload
    def __getitem__(self, at: int) -> tuple[Any, ...]: ...

    @overload
    def __getitem__(self, at: slice) -> list[tuple[Any, ...]]: ...

    def __getitem__(self, at: int | slice) -> tuple[Any, ...] | list[tuple[Any, ...]]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        return self._values(self._table.slice(range(len(self))[at], 1))[0]

    def dicts(self) -> Iterator[dict[str, Any]]:
        """The rows, each by the names of the columns.   Raises: Invalid if two columns have one name."""
        self._check_names()
        for row in self:
            yield dict(zip(self.columns, row, strict=True))

    def arrow(self) -> Any:
        """The rows as a `pyarrow.Table`; JSON is text there."""
        return self._table

    def parquet(self, where: str | IO[bytes]) -> None:
        """Write the rows as a Parquet file, with the types of the columns.   Raises: Invalid; OSError."""
        self._check_names()
        import_module("pyarrow.parquet").write_table(self._table, where)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        cells = [[cell[:CELL_SHOWN] for cell in map(shown, row)] for row in islice(self, ROWS_SHOWN)]
        heads = [shown(name)[:CELL_SHOWN] for name in self.columns]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        numbers = [is_number(kind) for kind in self.types]
        rule = ["-" * width for width in widths]
        lines = []
        for row in (heads, rule, *cells):
            padded = zip(row, widths, numbers, strict=True)
            lines.append("  ".join(cell.rjust(n) if right else cell.ljust(n) for cell, n, right in padded).rstrip())
        more = f", the first {ROWS_SHOWN} shown" if len(self) > ROWS_SHOWN else ""
        lines.append(f"({len(self):,} row{'' if len(self) == 1 else 's'}{more})")
        return "\n".join(lines)

    def _values(self, table: Any) -> list[tuple[Any, ...]]:
        columns = []
        for name, column, kind, convert in zip(self.columns, table.columns, self.types, self._converts, strict=True):
            try:
                values = _naive(column, kind).to_pylist()
                columns.append(values if convert is None else [None if v is None else convert(v) for v in values])
            except (ValueError, OverflowError) as error:
                raise Invalid(
                    f"a value of column {name!r} does not fit in Python: {' '.join(str(error).split())}",
                    hint="cast it to varchar",
                ) from None
        return [*zip(*columns, strict=True)]

    def _check_names(self) -> None:
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise Invalid(f"two columns are called {twice[0]!r}", hint="give one another name: select ... as ...")


def rows_of(result: Any) -> Rows:
    """The rows of a DuckDB relation.   Raises: Invalid for a type that has no Python value."""
    described = result.description
    converts = [_convert(kind, name) for name, kind, *_ in described]
    return Rows(result.to_arrow_table(), [str(kind) for _, kind, *_ in described], converts)


def _naive(column: Any, kind: str) -> Any:
    """Remove the time zone, which is UTC: pyarrow would need a time zone database, which small images lack."""
    if kind == "TIMESTAMP WITH TIME ZONE":
        return column.cast(import_module("pyarrow").timestamp("us"))
    return column


def _json_value(text: str) -> Any:
    """A JSON value. What Python may not be able to read or print stays text: numbers of thousands of digits, and more
    levels than Limpet stores (F32)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    may_be_deep = text.count("[") + text.count("{") > records.DEPTH_MAX
    return text if may_be_deep and _is_deeper(value, records.DEPTH_MAX) else value


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _convert(kind: Any, name: str) -> Convert | None:
    """The conversion from pyarrow's value to the usual Python value; None if there is none."""
    if str(kind) == "JSON":
        return _json_value
    if kind.id in _REFUSED:
        raise Invalid(f"column {name!r} is of type {kind}, which has no Python value", hint="cast it to varchar")
    match kind.id:
        case "hugeint":
            return int
        case "uhugeint":
            return lambda value: int(value) % (1 << 128)
        case "timestamp with time zone":
            return lambda value: value.replace(tzinfo=UTC)
        case "interval":
            return lambda value: timedelta(days=30 * value.months + value.days, microseconds=value.nanoseconds // 1000)
        case "list" | "array":
            inner = _convert(dict(kind.children)["child"], name)
            return inner and (lambda value: [_maybe(inner, each) for each in value])
        case "struct":
            parts = {key: _convert(part, name) for key, part in kind.children}
            return lambda value: {key: _maybe(parts[key], each) for key, each in value.items()}
        case "map":
            both = dict(kind.children)
            first, second = _convert(both["key"], name), _convert(both["value"], name)
            return lambda value: {_maybe(first, key): _maybe(second, each) for key, each in value}
    return None


def _maybe(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def is_number(kind: str) -> bool:
    """Whether a DuckDB type is numeric."""
    return _NUMBER.match(kind) is not None


def shown(value: Any) -> str:
    """A value as one line of text, safe on a terminal (F34)."""
    match value:
        case None:
            text = "null"
        case bool():
            text = "true" if value else "false"
        case str():
            text = value
        case dict() | list():
            text = json.dumps(value, ensure_ascii=False, default=shown)
        case _:
            text = records.encode(value).decode().strip('"') if hasattr(value, "isoformat") else str(value)
    return records.printable(text)

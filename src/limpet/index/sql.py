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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

from limpet.index.reader import OnDamage
from limpet.index.sql_rows import Rows, rows_of
from limpet.index.sql_tables import (
    BAD_LINE,
    CATALOG,
    DESCRIPTORS,
    INPUT,
    SCHEMA,
    Table,
    identifier,
    literal,
    names_in,
    table_of,
)
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid, Unavailable, Unsupported
from limpet.kernel.runtime import Runtime
from limpet.kernel.store import Store
from limpet.kernel.waiting import ticks

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
                for _ in ticks(ended, INTERRUPT_EVERY_S):  # one between two statements is forgotten
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
    select_list = f"select {', '.join(columns)} from {identifier(INPUT)}"
    pa = import_module("pyarrow")
    for n, part in enumerate(chain([source.arrow_schema.empty_table()], parts)):
        session.register(INPUT, part if isinstance(part, pa.Table) else pa.Table.from_batches([part]))
        session.execute(f"insert into {name} {select_list}" if n else f"create table {name} as {select_list}")
        session.unregister(INPUT)


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

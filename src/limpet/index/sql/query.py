"""SQL over the indexes of a fleet: DuckDB reads their lines, merges what waits, and answers one query.

A query is parsed and bound against empty tables first, so that a mistake costs no reading; then only the indexes that
it names are read. DuckDB sees no other file of the machine unless it is allowed to, loads no extension, and its
settings are locked before the query runs. None of that stops functions that have effects: `enable_logging` and
`enable_profiling` write files whatever the settings say. So only table functions that are known to read may be called.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from limpet.errors import Corrupt, Invalid, Unavailable, Unsupported
from limpet.index.reader import OnDamage
from limpet.index.sql.rows import Rows, rows_of
from limpet.index.sql.tables import BAD_LINE, DESCRIPTORS, SCHEMA, Table, literal, names_in, table_of
from limpet.runtime import Runtime
from limpet.store.api import Store

Parameters = Sequence[Any] | Mapping[str, Any]
_NOT_A_SELECT = "not implemented"
_NO_TABLE = re.compile(r"Catalog Error: Table with name (.*) does not exist!")
_HINT = re.compile(r"^(?:Candidate bindings: |Did you mean ).*$", re.MULTILINE)
_INTERRUPTED = "Query interrupted"

_PURE = frozenset(
    {
        "generate_series",
        "json_each",
        "json_tree",
        "query_table",
        "range",
        "repeat",
        "repeat_row",
        "test_all_types",
        "unnest",
        "duckdb_columns",
        "duckdb_constraints",
        "duckdb_functions",
        "duckdb_keywords",
        "duckdb_memory",
        "duckdb_settings",
        "duckdb_tables",
        "duckdb_types",
        "duckdb_views",
        "pragma_collations",
        "pragma_platform",
        "pragma_table_info",
        "pragma_version",
        "pragma_show",
        "pg_timezone_names",
        "icu_calendar_names",
    }
)
"""Table functions that compute, or list what DuckDB has."""

_OF_FILES = frozenset(
    {
        "glob",
        "parquet_file_metadata",
        "parquet_kv_metadata",
        "parquet_metadata",
        "parquet_scan",
        "parquet_schema",
        "read_blob",
        "read_csv",
        "read_csv_auto",
        "read_json",
        "read_json_auto",
        "read_json_objects",
        "read_json_objects_auto",
        "read_ndjson",
        "read_ndjson_auto",
        "read_ndjson_objects",
        "read_parquet",
        "read_text",
        "sniff_csv",
    }
)
"""Table functions that read files."""

_WITH_EFFECTS = frozenset({"getenv", "nextval", "setseed", "sleep_ms", "write_log"})
"""Scalar functions that do more than compute."""

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
) -> Rows:
    """Answer one SELECT over the indexes of a fleet, each a table of its name, what waits for a compiler included.

    Each record is as of some moment after the query began; in a directory, an index that is named twice may be seen at
    two moments. `parameters` fill `?` or `$name`. `allow_files`: the query may read files of this machine.
    `memory`: how much DuckDB may use, such as "2GB", before it spills to a private temporary folder.
    `on_damage`: leave out damaged shards and what waits for them, and call it for each. Every line is checked then,
    which takes longer.
    Raises: Invalid for a query that is wrong, or is no SELECT; Corrupt; Unsupported without the extra `sql`.
    Cost: 1 GET of the manifest for each table named, then as `Table.gather`; a query that fails to bind, and DESCRIBE,
    read no record.   Crash: a temporary folder may be left.
    """
    try:
        with TemporaryDirectory(prefix="limpet-sql-") as home:
            return _answer(store, runtime, Path(home), _QueryRequest(query, parameters, allow_files, memory, on_damage))
    except OSError as error:
        raise Unavailable(
            f"could not use the temporary folder: {error.strerror or error}", hint="free some space, or set TMPDIR"
        ) from error


@dataclass(frozen=True, slots=True)
class _QueryRequest:
    query: str
    parameters: Parameters | None
    allow_files: bool
    memory: str | None
    on_damage: OnDamage | None = None


def _answer(store: Store, runtime: Runtime, home: Path, asked: _QueryRequest) -> Rows:
    with _session(home, asked, []) as session:
        plan = _parsed(session, asked.query, allow_files=asked.allow_files)
        wanted = names_in(store) if plan.shows_all else plan.names
        tables = [table for name in wanted if (table := table_of(store, runtime, name))]
        _demand_distinct(tables)
        _bind(session, asked, store, runtime, tables)
        if plan.is_description:
            return _rows(session, asked)
    with ExitStack() as opened:
        gathered = [table.gather(home / str(number), opened, asked.on_damage) for number, table in enumerate(tables)]
        files = [path for each in gathered for path in each.shards]
        session = opened.enter_context(_session(home, asked, files))
        session.execute(f"create schema {SCHEMA}")
        for number, (table, found) in enumerate(zip(tables, gathered, strict=True)):
            for statement in table.statements(number, found):
                session.execute(statement)
        return _rows(session, asked)


def _rows(session: Any, asked: _QueryRequest) -> Rows:
    return rows_of(session.execute(asked.query, asked.parameters))


@contextmanager
def _session(home: Path, asked: _QueryRequest, files: Sequence[str]) -> Iterator[Any]:
    """A DuckDB in memory that can read those files, our own folder, and by default nothing else."""
    try:
        duckdb = import_module("duckdb")
        import_module("pyarrow")
    except ImportError:
        raise Unsupported("SQL needs DuckDB and pyarrow", hint="pip install 'limpet[sql]'") from None
    try:
        session = duckdb.connect(":memory:", config={**_SEALED, "temp_directory": str(home / "spill")})
        try:
            session.execute("set timezone = 'UTC'; set enable_progress_bar = false")
            if asked.memory is not None:
                session.execute(f"set memory_limit = {literal(asked.memory)}")
            if not asked.allow_files:
                # A shard that was replaced has no path any more: DuckDB then knows its open file by the descriptor.
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
    first = text.partition("\n")[0]
    if BAD_LINE in text:
        return Corrupt(BAD_LINE, hint="`limpet index verify` names it")
    if "CSV Error" in text and any(path in text for path in files):
        return Corrupt(f"a shard is not what Limpet wrote: {first}", hint="`limpet index verify` names it")
    if isinstance(error, duckdb.OutOfMemoryException):
        return Unavailable(first, hint="allow it more memory, ask for less, or free some space where TMPDIR is")
    if isinstance(error, duckdb.PermissionException):
        return Invalid(first, hint="a query reads indexes only; allow_files=True (--allow-files) lets it read files")
    found = _HINT.search(text)
    return Invalid(first, hint=found[0].strip() if found else None)


@dataclass(frozen=True, slots=True)
class _QueryPlan:
    """The tables that a query may name, and whether it asks only for their columns."""

    names: Sequence[str]
    shows_all: bool
    is_description: bool


def _parsed(session: Any, query: str, *, allow_files: bool) -> _QueryPlan:
    """Look at the syntax tree. Nothing is bound or run.

    Raises: Invalid for anything but one SELECT, and for a function that it may not call.
    """
    try:
        [[text]] = session.execute("select json_serialize_sql(?::varchar)", [query]).fetchall()
        tree = json.loads(text)
    except RecursionError:
        raise Invalid("the query is nested too deeply") from None
    if tree["error"] and tree["error_type"] != _NOT_A_SELECT:
        raise Invalid(f"{tree['error_type'].capitalize()} Error: {tree['error_message']}".partition("\n")[0])
    if tree["error"] or len(tree["statements"]) != 1:
        raise Invalid(
            "that is not one SELECT: a query can only read",
            hint="begin with select, with, from, values, describe, summarize or show; `limpet index put` writes",
        )
    names: set[str] = set()
    shows_all = False
    for node in _nodes(tree):
        if node.get("type") == "BASE_TABLE":
            names.add(node["table_name"])
        elif node.get("type") == "SHOW_REF" and node.get("query") is None:
            shows_all = True
        elif node.get("type") == "TABLE_FUNCTION":
            _demand_reading(node["function"]["function_name"].lower(), allow_files)
        elif node.get("class") == "FUNCTION" and node["function_name"].lower() in _WITH_EFFECTS:
            raise Invalid(f"a query may not call {node['function_name']}()", hint="a query can only read")
    top = tree["statements"][0]["node"].get("from_table") or {}
    is_description = top.get("type") == "SHOW_REF" and top.get("show_type") != "SUMMARY"
    return _QueryPlan(sorted(names), shows_all, is_description)


def _demand_reading(function: str, allow_files: bool) -> None:
    """Go on only with a table function that reads what the query may read.   Raises: Invalid."""
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


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            yield node
            todo += node.values()
        elif isinstance(node, list):
            todo += node


def _bind(session: Any, asked: _QueryRequest, store: Store, runtime: Runtime, tables: list[Table]) -> None:
    """Check the query against empty tables. An index that the query writes in other case is found and added.

    Raises: Invalid, for an unknown table with the names that there are.
    """
    for table in tables:
        for statement in table.statements(0, None):
            session.execute(statement)
    duckdb = import_module("duckdb")
    names: list[str] | None = None
    while True:
        try:
            session.execute(f"explain {asked.query}", asked.parameters)
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
        hint = f"there is {', '.join(names[:10])}{' ...' if len(names) > 10 else ''}" if names else "there is none yet"
        raise Invalid(f"there is no index {name!r}", hint=hint)
    return table


def _demand_distinct(tables: Sequence[Table]) -> None:
    lower: dict[str, str] = {}
    for table in tables:
        other = lower.setdefault(table.name.lower(), table.name)
        if other != table.name:
            raise Invalid(
                f"the query names {other!r} and {table.name!r}, two indexes that SQL cannot tell apart",
                hint="ask of one at a time",
            )

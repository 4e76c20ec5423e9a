"""One SQL session over a whole fleet: `limpet sql`.

    queues.<name>            the tasks of a queue: waiting, running, resting, suspended, scheduled, or ended
    tasks                    the tasks of all queues, with the name of the queue
    <index>                  the records of an index, what waits for a compiler included
    tables.<namespace>.<t>   the current rows of a table of the catalog; a namespace of levels is "a.b"
    executions               task runs and compactions that were recorded with --events
    commits                  the history of the catalog, a row for each request
    queues, locks, workers   as `limpet queue ls`, `limpet lock ls` and `limpet workers` show them

An index hides `tasks`, or another one of these, that has its name; `fleet.tasks` and so on always name these. Only the
tables that the query names are read. It runs in the sandbox of `limpet.index.sql`: one SELECT, no files, no extensions;
what is not an index is read here, through the store, and handed to DuckDB as Arrow data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from limpet.app.fleet import Fleet, catalog_extra, hint_at_names
from limpet.app.health import lock_states, summaries
from limpet.app.place import check_has_store
from limpet.app.presence import workers
from limpet.index.sql import Parameters, TablePlace, sql
from limpet.index.sql_rows import Rows
from limpet.index.sql_tables import CATALOG
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid, Missing, Unsupported
from limpet.kernel.keys import QueueKeys
from limpet.kernel.wording import many
from limpet.queue.count import ALL, SOME
from limpet.queue.rows import columns_of, task_rows
from limpet.queue.storage import Storage

QUEUES, FLEET = "queues", "fleet"
OBJECTS_MAX = 20_000
EVENTS_MAX = 200_000
COMMITS_MAX = 20_000
NAMES_MAX = 10_000

Columns = dict[str, str]
_KINDS = {
    "text": lambda pa: pa.string(),
    "json": lambda pa: pa.string(),
    "texts": lambda pa: pa.list_(pa.string()),
    "int": lambda pa: pa.int64(),
    "float": lambda pa: pa.float64(),
    "bool": lambda pa: pa.bool_(),
    "time": lambda pa: pa.timestamp("us", tz="UTC"),
}


def _columns(*texts: str) -> Columns:
    """The columns of a table, of texts such as `id: text, attempts: int`."""
    return dict(column.split(": ") for text in texts for column in text.split(", "))


TASKS = _columns(
    "id: text, state: text, batch: text, attempts: int, payload: json, result: json, error: text",
    "traceback: text, worker: text, pushed_at: time, due_at: time, began_at: time, finished_at: time",
    "took_s: float, parent: text, reason: text",
)
EXECUTIONS = _columns(
    "id: text, kind: text, finished_at: time, queue: text, task: text, attempt: int, worker: text",
    "outcome: text, took_s: float, error: text, fields: json",
)
COMMITS = _columns(
    "version: int, committed_at: time, commit: text, token: int, request: text, what: text, actor: text",
    "keys: texts",
)
COUNTS = _columns(
    "queue: text, state: text, pending: int, waiting: int, running: int, in_flight: int, resting: int",
    "suspended: int, waits_for_code: int, scheduled: int, completed: int, failed: int, cancelled: int, oldest_s: float",
    "paused: bool, no_worker: bool, at_least: texts",
)
LOCKS = _columns(
    "name: text, state: text, holder: text, token: int, taken_at: time, heartbeat_at: time, age_s: float",
    "ttl_s: float",
)
WORKERS = _columns(
    "id: text, state: text, host: text, pid: int, version: text, queues: texts, threads: int, since: time",
    "renewed_at: time, renewed_s: float",
)


def fleet_sql(
    fleet: Fleet,
    query: str,
    parameters: Parameters | None = None,
    *,
    full: bool = False,
    memory: str | None = None,
    timeout_s: float | None = None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Rows:
    """Answer one SELECT over the whole fleet (see the module for the tables).

    Each table is as of some moment after the query began. `on_note` is called with what was left out: of a queue at
    most 20,000 objects of a folder are read unless `full` is given, and objects that cannot be read are left out.
    `timeout_s`: how long DuckDB may compute; reading from the store does not count.
    Raises: Invalid for a query that is wrong, or is no SELECT, or names what is not there; Unavailable after
    `timeout_s`; Corrupt; Unsupported without the extra `sql`, for tables without `catalog`, and on SQS.
    Cost: for each table named. A queue: 1 LIST per 1,000 objects + 1 GET for each task, lease, receipt and part. An
    index: as `limpet.index.sql.sql`. A catalog table: 1 GET for its metadata, manifest list, each manifest and data
    file, and the catalog's state. queues: as `limpet status`. locks, workers: 1 LIST + 1 GET each. A query that
    fails to bind reads no rows.
    """
    check_has_store(fleet.url, "there is nothing that SQL could read")
    others = FleetTables(fleet, OBJECTS_MAX if not full else float("inf"), on_note)
    try:
        return sql(fleet.store, fleet.runtime, query, parameters, memory=memory, others=others, timeout_s=timeout_s)
    except Invalid as error:
        if "allow_files" in error.hint:
            error.hint = "a query reads the fleet only, and no files"
        elif str(error).startswith("there is no index"):
            error.hint += "; tasks are in `tasks` and queues.NAME, tables of the catalog in tables.NAMESPACE.NAME"
        raise


@dataclass(frozen=True, slots=True)
class _BuiltTable:
    columns: Columns
    rows: Callable[[], dict[str, list[Any]]]
    json: Collection[str] = field(default_factory=tuple)

    @property
    def arrow_schema(self) -> Any:
        pa = _pyarrow()
        return pa.schema([(name, _KINDS[kind](pa)) for name, kind in self.columns.items()])

    def read(self) -> Iterator[Any]:
        found = self.rows()
        arrays = {name: [_fitting(value, kind) for value in found[name]] for name, kind in self.columns.items()}
        yield _pyarrow().table(arrays, schema=self.arrow_schema)


@dataclass(frozen=True, slots=True)
class _CatalogTable:
    """The current rows of a table of the catalog. `scan` is a `limpet.catalog.iceberg.scan.TableReader`."""

    scan: Any
    json: Collection[str] = ()

    @property
    def arrow_schema(self) -> Any:
        return self.scan.arrow_schema

    def read(self) -> Iterator[Any]:
        yield from self.scan.batches()


class FleetTables:
    """What a query may name beside the indexes: see the module."""

    def __init__(self, fleet: Fleet, objects_max: float, on_note: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._objects_max = objects_max
        self._on_note = on_note
        self._built: dict[str, _BuiltTable] = {
            "tasks": _BuiltTable({"queue": "text", **TASKS}, self._all_tasks, ("payload", "result")),
            "executions": _BuiltTable(EXECUTIONS, self._executions, ("fields",)),
            "commits": _BuiltTable(COMMITS, self._commits),
            "queues": _BuiltTable(COUNTS, self._counts),
            "locks": _BuiltTable(LOCKS, self._locks),
            "workers": _BuiltTable(WORKERS, self._workers),
        }

    def find(self, place: TablePlace) -> _BuiltTable | _CatalogTable | None:
        catalog, schema = place.catalog.lower(), place.schema.lower()
        if catalog == CATALOG:
            return self._table(place)
        if catalog or schema not in ("", QUEUES, FLEET):
            return None
        if schema == QUEUES:
            name = _one_of(place.name, self._fleet.queues(), "queue", "limpet queue ls")
            return _BuiltTable(TASKS, lambda: self._tasks(name), ("payload", "result"))
        found = self._built.get(place.name.lower())
        if found is None and schema == FLEET:
            raise Invalid(f"there is no table fleet.{place.name}", hint=f"there is {', '.join(self._built)}")
        return found

    def places(self) -> Sequence[TablePlace]:
        queues = [TablePlace("", QUEUES, name) for name in self._fleet.queues()[:NAMES_MAX]]
        return [*(TablePlace("", "", name) for name in self._built), *queues, *self._catalog_places()]

    def _catalog_places(self) -> Iterator[TablePlace]:
        try:
            past = self._fleet.catalog().at()
        except (Unsupported, Missing):  # without the extra, or without a catalog
            return
        for namespace, name in [*past.tables][:NAMES_MAX]:
            yield TablePlace(CATALOG, ".".join(namespace), name)

    def _tasks(self, name: str) -> dict[str, list[Any]]:
        storage = Storage(self._fleet.store, QueueKeys.of(name), self._fleet.runtime)
        found = task_rows(storage, self._objects_max)
        for folder in found.cut:
            most = int(self._objects_max)
            self._on_note(
                f"queues.{name}: only the first {many(most, 'object')} of {folder}/ were read; --full reads all"
            )
        for line in found.unreadable:
            self._on_note(f"queues.{name}: left out: {line}")
        return columns_of([*found.rows.values()], TASKS)

    def _all_tasks(self) -> dict[str, list[Any]]:
        found = {name: self._tasks(name) for name in self._fleet.queues()}
        queues = [name for name, columns in found.items() for _ in columns["id"]]
        rows = {column: [cell for columns in found.values() for cell in columns[column]] for column in TASKS}
        return {"queue": queues, **rows}

    def _executions(self) -> dict[str, list[Any]]:
        from limpet.events.tail import recent

        found = recent(self._fleet.store, self._fleet.runtime, EVENTS_MAX)
        for line in found.unreadable:
            self._on_note(f"executions: left out: {line}")
        if len(found.events) == EVENTS_MAX:
            self._on_note(f"executions: only the newest {EVENTS_MAX:,} were read")
        rows = [
            event.fields
            | {"id": event.id, "kind": event.kind, "finished_at": event.at, "fields": records.json_text(event.fields)}
            for event in found.events
        ]
        return {name: [row.get(name) for row in rows] for name in EXECUTIONS}

    def _commits(self) -> dict[str, list[Any]]:
        log = self._fleet.catalog().log(COMMITS_MAX, lambda error: self._on_note(f"commits: {error}"))
        if len(log) == COMMITS_MAX:
            self._on_note(f"commits: only the newest {COMMITS_MAX:,} were read")
        rows = [(commit, row, [change.key for change in row.changes]) for commit in log for row in commit.rows]
        cells = [
            (commit.version, commit.at, commit.id, commit.token, row.id, row.what, row.actor or None, changed)
            for commit, row, changed in rows
        ]
        return {name: [row[n] for row in cells] for n, name in enumerate(COMMITS)}

    def _counts(self) -> dict[str, list[Any]]:
        found = summaries(self._fleet, limits=SOME if self._objects_max < float("inf") else ALL)
        for each in found:
            if each.trouble:
                self._on_note(f"queues: {each.queue}: {each.trouble}")
        return {name: [getattr(each, name) for each in found] for name in COUNTS}

    def _locks(self) -> dict[str, list[Any]]:
        found = lock_states(self._fleet)
        self._left_out("locks", found.unreadable)
        return {name: [getattr(lock, name) for lock in found.locks] for name in LOCKS}

    def _workers(self) -> dict[str, list[Any]]:
        found = workers(self._fleet)
        self._left_out("workers", found.unreadable)
        named = {name: [getattr(each, name, None) for each in found.workers] for name in WORKERS}
        return {**named, "state": ["gone" if each.gone else "alive" for each in found.workers]}

    def _left_out(self, table: str, unreadable: Mapping[str, str]) -> None:
        for key, error in unreadable.items():
            self._on_note(f"{table}: left out: {key}: {error}")

    def _table(self, place: TablePlace) -> _CatalogTable:
        catalog = self._fleet.catalog()
        names = {f"{'.'.join(namespace)}.{name}": (namespace, name) for namespace, name in catalog.at().tables}
        namespace, name = names[_one_of(f"{place.schema}.{place.name}", [*names], "table", "limpet catalog show")]
        with catalog_extra():
            from limpet.catalog.iceberg.scan import TableReader
        what = f"{'.'.join(namespace)}.{name}"
        loaded, read = catalog.open_table(namespace, name)

        def fetch(url: str, size_max: int) -> bytes:
            try:
                return read(url, size_max)
            except Missing:
                raise Corrupt(f"the table {what} names a file that is gone: {url[:200]}") from None
            except Invalid as error:
                raise Corrupt(f"the table {what} cannot be read: {error}") from None

        return _CatalogTable(TableReader(loaded.metadata, fetch, what))


def _one_of(name: str, names: Sequence[str], kind: str, command: str) -> str:
    """The name that a query means: as written, else the only one that differs in case.   Raises: Invalid."""
    near = [each for each in names if each == name] or [each for each in names if each.lower() == name.lower()]
    if len(near) == 1:
        return near[0]
    if near:
        raise Invalid(f"{name!r} may be {near[0]!r} or {near[1]!r}", hint="SQL cannot tell them apart")
    raise Invalid(f"there is no {kind} {name!r}", hint=hint_at_names(name, names, command) or "there is none yet")


def _fitting(value: Any, kind: str) -> Any:
    """A stored value as its column holds it; null if it is not of that type."""
    match kind, value:
        case (("text" | "json"), str()):
            return value.encode(errors="replace").decode()
        case "int", int() if not isinstance(value, bool) and abs(value) < 1 << 63:
            return value
        case "bool", bool():
            return value
        case "float", (int() | float()) if not isinstance(value, bool):
            return float(value)
        case "time", str():
            try:
                return records.moment(value)
            except Corrupt:
                return None
        case "time", _ if hasattr(value, "tzinfo"):
            return value
        case "texts", (list() | tuple()):
            return [str(each).encode(errors="replace").decode() for each in value]
    return None


def _pyarrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError:
        raise Unsupported("SQL needs DuckDB and pyarrow", hint="pip install 'limpet[sql]'") from None

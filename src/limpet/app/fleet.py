"""`open` and `Fleet`: everything under one URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from limpet import keys
from limpet.app.events import events_of, is_wanted
from limpet.app.formats import FleetRecord, check, enabled, fresh, may_write, upgraded
from limpet.app.indexes import open_index
from limpet.app.queues import LaterJournal, NoStore, demand_queue, journal_of, open_queue, policy_of, queue_names
from limpet.app.tasks import Hook, PolicyFields, TaskFunction, Tasks
from limpet.app.urls import Durability, absolute, store_for, url_or_default
from limpet.cell import PLAIN, Cell, Versioned, struct_codec
from limpet.errors import Conflict, Corrupt, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.events import EventSink
from limpet.index import Index
from limpet.index.writer import stamps_of
from limpet.lease import LeaseRecord, Lock, VersionWatch, lease_cell
from limpet.queue import Queue
from limpet.runtime import Runtime, in_thread, system
from limpet.store import MeteredStore, ScopedStore, Store
from limpet.store.probe import Findings, quick, use_etag_style

if TYPE_CHECKING:
    from limpet.catalog.catalog import Catalog
    from limpet.publish import Published, TableWriter

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

AT_ONCE = 100


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    create: bool = True,
    durability: Durability = "fsync",
    events: bool | None = None,
    runtime: Runtime | None = None,
) -> Fleet:
    """The fleet at `url`: `./dir`, `file://`, `memory://`, `s3://`, `gs://`, `az://`; without one, at LIMPET_URL.

    Nothing is read or written yet: the first use connects, and so does `fleet.check()`. A place that holds no fleet is
    then probed for what Limpet needs of a store, and `limpet.json` is written there; with `create=False` that is an
    error instead. With `read_only` it is one too, and nothing is ever written. `sqs://REGION/PREFIX` has queues only.
    `events`: workers and compilers note what they did in the ledger; without it, LIMPET_EVENTS=1 decides.
    Raises: Invalid for a URL that names no store; Unsupported. At first use: Invalid for a place that holds no fleet,
    or one that this version cannot use (`Fleet.check` tells them apart); Denied, Unavailable.
    Cost: nothing yet; the first use costs what `Fleet.check` says.
    """
    runtime = runtime or system()
    where = url_or_default(url)
    wants_events = is_wanted(events) and not read_only
    if where.startswith("sqs://"):
        if wants_events:
            raise Unsupported("SQS cannot keep events", hint="open a bucket or a directory, or switch events off")
        nothing = Findings(conditional=False, etag_style="quoted", at="", by="")
        return Fleet(MeteredStore(NoStore(runtime), runtime=runtime), where, fresh(nothing), runtime)
    opening = _Opening(where, runtime, read_only=read_only, create=create and not read_only)
    store = _LazyStore(store_for(where, runtime, durability=durability), _budget(), runtime, opening)
    sink = events_of(store, where, runtime) if wants_events else None
    return Fleet(store, where, store.record, runtime, read_only=read_only, events=sink)


@dataclass(slots=True)
class _Opening:
    """How the fleet at a URL is connected to."""

    where: str
    runtime: Runtime
    read_only: bool
    create: bool
    is_new: bool = False
    """Whether this process set the fleet up."""

    def run(self, store: Store) -> FleetRecord:
        """Read limpet.json, or set the fleet up.   Raises, Cost: see `Fleet.check`."""
        record = _record_cell(store, self.runtime).read()
        if record is None and not self.create:
            raise Missing(
                f"there is no fleet at {self.where}", hint="check the URL; opening it for writing creates one"
            )
        found = record.value if record else self._set_up(store)
        check(found, where=self.where)
        if not self.read_only and not may_write(found):
            raise Unsupported(
                f"the fleet at {self.where} wants writers of level {found.min_writer}",
                hint="upgrade limpet here (pip install -U limpet), or open it with read_only=True",
            )
        use_etag_style(store, found.probe.etag_style)
        return found

    def _set_up(self, store: Store) -> FleetRecord:
        cell = _record_cell(store, self.runtime)
        try:
            made = cell.create(fresh(quick(store, runtime=self.runtime))).value
        except Conflict:
            seen = cell.read()
            assert seen is not None
            return seen.value
        except Denied as error:
            raise Denied(
                f"there is no fleet at {self.where} yet, and it cannot be set up: {error}",
                hint="open it once with a key that may write",
            ) from error
        self.is_new = True
        return made


class _LazyStore(MeteredStore):
    """Opens the fleet before its first request. An opening that fails is tried again by the next request."""

    def __init__(self, store: Store, budget: int | None, runtime: Runtime, opening: _Opening) -> None:
        super().__init__(store, budget, runtime=runtime)
        self.opening = opening
        self._direct = MeteredStore(store, budget, runtime=runtime)
        self._direct._mutex, self._direct._spent, self._direct._clock = self._mutex, self._spent, self._clock
        self._opens = runtime.mutex()
        self._record: FleetRecord | None = None

    def record(self) -> FleetRecord:
        """What limpet.json says, read at most once.   Raises, Cost: see `Fleet.check`."""
        if self._record is None:
            with self._opens:
                if self._record is None:
                    self._record = self.opening.run(self._direct)
        return self._record

    def _charge(self, verb: str, *, written_bytes: int = 0) -> None:
        if self._record is None:
            self._open_for_request()
        super()._charge(verb, written_bytes=written_bytes)

    def _open_for_request(self) -> None:
        """Open the fleet. A place that has none, or one that cannot be used, must not look like a missing or damaged
        object to the caller of the request, who may well go on without that object."""
        try:
            self.record()
        except (Missing, Corrupt, Unsupported) as error:
            raise Invalid(str(error), hint=error.hint) from error


def _record_cell(store: Store, runtime: Runtime) -> Cell[FleetRecord]:
    return Cell(store, keys.FLEET, struct_codec(FleetRecord), runtime)


class Fleet:
    """What lives under one URL. Cheap to make, safe to share between threads; a forked child should open its own.

    `record` is what limpet.json says, or how to find out at first use.
    """

    def __init__(
        self,
        meter: MeteredStore,
        url: str,
        record: FleetRecord | Callable[[], FleetRecord],
        runtime: Runtime,
        *,
        read_only: bool = False,
        events: EventSink | None = None,
    ) -> None:
        self.url = url
        self.events = events
        """Where workers and compilers note what they did, if that is switched on."""
        self.meter = meter
        self.store: Store = ScopedStore(meter, role="reader", runtime=runtime) if read_only else meter
        self._record = record
        self._runtime = runtime
        self._sightings = VersionWatch(runtime)
        self._stamps = stamps_of(self.store, runtime, absolute(url))
        self._journal = LaterJournal(lambda: journal_of(self.record, self.store, runtime))
        self.tasks = Tasks(self.queue, events, self.check, runtime.wall)
        """The task functions that were defined with `task`, and the hooks."""

    @property
    def record(self) -> FleetRecord:
        """What limpet.json says. The first use connects, as `check` does."""
        if callable(self._record):
            self._record = self._record()
        return self._record

    @property
    def runtime(self) -> Runtime:
        """The clock, chance and threads that the fleet's parts use."""
        return self._runtime

    @property
    def is_new(self) -> bool:
        """Whether this handle set the fleet up, because there was none."""
        return isinstance(self.meter, _LazyStore) and self.meter.opening.is_new

    def check(self) -> None:
        """Connect now, instead of at first use, so that what is wrong with the place shows here.

        Raises: Unsupported for a fleet of a newer format, or a store that ignores conditions; Missing, Denied,
        Corrupt, Unavailable.
        Cost: 1 GET the first time; on a new place 5 PUTs, 1 GET and 1 DELETE more. Later nothing.
        """
        self.record  # noqa: B018 - reading it connects

    def __repr__(self) -> str:
        return f"Fleet({self.url!r})"

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self.close)

    def close(self) -> None:
        """Write the events that wait in memory. A fleet without events has nothing to close, and can be used on."""
        if self.events is not None:
            self.events.flush()

    def lock(self, name: str, ttl_s: float = 60.0, *, look_first: bool = False) -> Lock:
        """The lock `name`. `look_first`: it was probably used before, so read before creating.   Cost: nothing yet."""
        return Lock(self.store, keys.lock_key(name), name, ttl_s, self._runtime, self._sightings, look_first=look_first)

    def locks(
        self, *, on_error: Callable[[keys.Key, LimpetError], None] | None = None
    ) -> Iterator[Versioned[LeaseRecord]]:
        """Every lock that was ever used, in the order of their keys, as it is now; `modified` is the store's stamp.

        A lock that cannot be read is left out, and `on_error` is told its key and why; the others are not affected.
        Cost: 1 LIST per 1,000 locks + 1 GET a lock, a bounded number at once.
        """
        listed = (stat.key for stat in self.store.list(keys.LOCKS))
        while some := [*islice(listed, AT_ONCE)]:
            for key, found in self.store.get_many(some).items():
                try:
                    if isinstance(found, LimpetError):
                        raise found
                    seen = self._lease_cell(key).decode(found)
                except (Corrupt, Invalid, Missing, Unsupported) as error:
                    if on_error is not None and not isinstance(error, Missing):
                        on_error(key, error)
                    continue
                yield seen

    def lock_seen(self, name: str) -> Versioned[LeaseRecord] | None:
        """The lock `name` as it is now, like `locks`; None if it was never used.   Cost: 1 GET."""
        return self._lease_cell(keys.lock_key(name)).read()

    def _lease_cell(self, key: keys.Key) -> Cell[LeaseRecord]:
        return lease_cell(self.store, key, self._runtime)

    def cell(self, name: str) -> Cell[Any]:
        """The cell `name`: any JSON value up to 1 MiB, read and swapped as a whole.   Cost: nothing yet."""
        return Cell(self.store, keys.cell_key(name), PLAIN, self._runtime)

    def queue(
        self, name: str, *, payload_type: Any = None, create: bool = True, **policy: Unpack[PolicyFields]
    ) -> Queue:
        """The queue `name`, without a function. Payloads are dicts, or of `payload_type` (anything msgspec can read).

        A queue is made by its first push. With `create=False` one that was never used is `Missing`, and the error names
        one with a similar name. The other keywords are those of `Policy`: max_attempts, timeout_s, ttl_s, ...
        Raises: Invalid for a name that escapes, or a policy that makes no sense; Missing.
        Cost: nothing yet; with `create=False` 1 LIST (on SQS 1 request).
        """
        queue = open_queue(
            self.store,
            self.url,
            name,
            self._runtime,
            self._sightings,
            policy=policy_of({**policy}),
            payload_type=payload_type,
            journal=self._journal,
        )
        if not create:
            demand_queue(self.store, self.url, queue, self._runtime)
        return queue

    def queues(self) -> list[str]:
        """The names of the queues that were ever used, sorted.

        Cost: 1 LIST per 1,000 queues; on SQS 1 request for 1,000 queues of the prefix.
        """
        return queue_names(self.store, self.url, self._runtime)

    def indexes(self) -> list[str]:
        """The names of the indexes, sorted.   Cost: 1 LIST per 1,000 indexes."""
        return sorted(keys.name_of(part) for part in self.store.list_dirs(keys.INDEXES))

    @overload
    def index(self, name: str, kind: type[T], *, key: str | None = None, depth: int | None = None) -> Index[T]: ...

    @overload
    def index(
        self,
        name: str,
        kind: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        key: str | None = None,
        depth: int | None = None,
    ) -> Index[dict[str, Any]]: ...

    def index(self, name: str, kind: Any = None, *, key: str | None = None, depth: int | None = None) -> Index[Any]:
        """The index `name`, of records of `kind`: a dataclass, a msgspec Struct, or a data package (dict or path).

        Without a `kind` its stored schema counts, and records are dicts. `key` names the field that identifies a
        record; `depth` (2 to 4 hex digits, for a new index) how many shards there are.
        Raises: Invalid for a type that no columns can hold.   Cost: nothing yet; the first use reads or creates it.
        """
        return open_index(
            self.store,
            self.url,
            name,
            self._runtime,
            self._stamps,
            self._sightings,
            open,
            kind=kind,
            key=key,
            depth=depth,
            events=self.events,
        )

    @overload
    def task(self, name: Callable[P, R], /) -> TaskFunction[P, R]: ...

    @overload
    def task(
        self, name: str | None = None, *, cron: str | None = None, **policy: Unpack[PolicyFields]
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...

    def task(
        self, name: str | Callable[P, R] | None = None, *, cron: str | None = None, **policy: Unpack[PolicyFields]
    ) -> TaskFunction[P, R] | Callable[[Callable[P, R]], TaskFunction[P, R]]:
        """`@fleet.task("enrich", max_attempts=5)`: a function that can be pushed, and is still a plain function.

        Its queue has the task's name; `@fleet.task` and `@fleet.task()` take the function's. With `cron` (five fields,
        UTC) workers push it at those times, without arguments.
        Raises: Invalid for a function that no worker could run.   Cost: nothing yet.
        """
        if name is not None and not isinstance(name, str) and callable(name):
            return self.tasks.define(None, cron=cron, **policy)(name)
        return self.tasks.define(name, cron=cron, **policy)

    def on_start(self, hook: Hook) -> Hook:
        """`@fleet.on_start`: a worker calls the function with a `TaskRun` before each task of the fleet.

        Hooks run in the worker's thread, in the order of their definition, in workers and in `testing.drain` only. An
        exception in a hook is logged (`limpet.hooks`), and never changes what becomes of the task. Keep them quick: the
        task's claim is held meanwhile.
        """
        return self.tasks.hooks.add("start", hook)

    def on_done(self, hook: Hook) -> Hook:
        """`@fleet.on_done`: as `on_start`, once a task has succeeded and that is recorded."""
        return self.tasks.hooks.add("done", hook)

    def on_retry(self, hook: Hook) -> Hook:
        """`@fleet.on_retry`: as `on_start`, once an attempt has failed and another one will follow."""
        return self.tasks.hooks.add("retry", hook)

    def on_fail(self, hook: Hook) -> Hook:
        """`@fleet.on_fail`: as `on_start`, once a task has failed for good in this worker."""
        return self.tasks.hooks.add("fail", hook)

    def catalog(self) -> Catalog:
        """The table catalog, to look at: namespaces, tables, views, and what they were.   Cost: nothing yet.

        Raises: Unsupported without the extra (`pip install 'limpet[catalog]'`).
        """
        found = _catalogs()
        catalog: Catalog = found.open_catalog(found.storage_of(self.store, self._runtime), self.url)
        return catalog

    def lead_catalog(self, *, wait_s: float = 20.0) -> AbstractContextManager[Catalog]:
        """`with fleet.lead_catalog() as catalog:` the table catalog, to change, without a service.

        Where `limpet serve` leads it, ask that instead.
        Raises: NotLeader, if it still leads after `wait_s`; Unsupported, as `catalog`.
        """
        leading: AbstractContextManager[Catalog]
        leading = _catalogs().lead(self.store, self.url, self._runtime, wait_s=wait_s)
        return leading

    def publish_index(
        self,
        name: str,
        table: tuple[Sequence[str], str] | None = None,
        *,
        compile: bool = True,
        through: TableWriter | None = None,
        wait_s: float = 20.0,
    ) -> Published:
        """Make the index `name` an Iceberg table, or bring its table up to date: only changed shards are written.

        `table` is (namespace, name), by default (("indexes",), name). This process leads the catalog for a moment if
        something has changed; where a service leads, `through` asks that one.
        Raises, Cost, Crash: as `limpet.publish.IndexPublisher.publish`; Unsupported without the extra `catalog`.
        """
        try:
            from limpet.publish import NAMESPACE, IndexPublisher, LedCatalogWriter
        except ImportError:
            raise Unsupported("tables need PyIceberg and pyarrow", hint="pip install 'limpet[catalog]'") from None

        @contextmanager
        def lead() -> Iterator[TableWriter]:
            if through is not None:
                yield through
            else:
                with self.lead_catalog(wait_s=wait_s) as catalog:
                    yield LedCatalogWriter(catalog)

        publisher = IndexPublisher(self.index(name), self.catalog(), table or (NAMESPACE, name), lead)
        return publisher.publish(compile=compile)

    def enable(self, *features: str) -> bool:
        """Switch optional features on, for good: processes that open the fleet from now on heed them.

        Returns whether anything changed.   Cost: 1 GET + at most 1 PUT.
        """
        return self._change(lambda record: enabled(record, features))

    def upgrade(self) -> bool:
        """Raise the recorded formats to this version's. Older versions of Limpet refuse the fleet from then on.

        Returns whether anything changed.   Cost: 1 GET + at most 1 PUT.
        """
        return self._change(upgraded)

    def _change(self, change: Callable[[FleetRecord], FleetRecord | None]) -> bool:
        before = self.record
        seen = _record_cell(self.store, self._runtime).update(lambda record: change(record) if record else None)
        if seen is None:
            raise Missing(f"there is no fleet at {self.url}")
        self._record = seen.value
        return seen.value != before


def _budget() -> int | None:
    text = os.environ.get("LIMPET_REQUEST_BUDGET")
    if not text:
        return None
    if not text.isdigit():
        raise Invalid(f"LIMPET_REQUEST_BUDGET is {text!r}, not a number", hint="give a number of requests")
    return int(text)


def _catalogs() -> ModuleType:
    """`limpet.app.catalogs`.   Raises: Unsupported without the extra's packages."""
    try:
        return import_module("limpet.app.catalogs")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise Unsupported(f"the catalog needs {package}", hint="pip install 'limpet[catalog]'") from None

"""`open` and `Fleet`: everything under one URL.

`place` says which store a URL names, `record` which versions of Limpet may use the fleet there. The rooms are imported
when they are first used: a process that only takes a lock does not load the queue.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, cached_property, partial
from importlib import import_module
from itertools import islice
from operator import methodcaller
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload
from weakref import WeakKeyDictionary

from limpet.app.place import (
    SQS,
    Durability,
    NoStore,
    absolute,
    check_has_store,
    provider_of,
    request_budget,
    sqs_place,
    store_for,
    url_or_default,
)
from limpet.app.record import (
    NODE,
    SUPERVISED,
    Connector,
    FleetRecord,
    announce_drop,
    enabled,
    epoch_for,
    fresh,
    identified,
    record_cell,
    upgraded,
)
from limpet.kernel import keys
from limpet.kernel.answers import AnswersNames, answers_options, refuse_option
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import (
    Corrupt,
    Denied,
    Invalid,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.runtime import Runtime, in_thread, system
from limpet.kernel.store import MeteredStore, ScopedStore, Store
from limpet.kernel.store.metered import LazyStore
from limpet.kernel.store.probe import Findings
from limpet.kernel.wording import listed, nearest

if TYPE_CHECKING:
    from limpet.app.tasks import Hook, PolicyFields, TaskFunction, Tasks
    from limpet.catalog.catalog import Catalog
    from limpet.catalog.iceberg.importer import ImportedTable, ImportWriter
    from limpet.catalog.maintain.tables import TableMaintenance, TableWriter
    from limpet.events import EventSink
    from limpet.index import Index
    from limpet.index.writer import Stamps
    from limpet.kernel.cell import Cell, Versioned
    from limpet.kernel.lease import LeaseRecord, Lock, VersionWatch
    from limpet.publish import Published
    from limpet.queue import BucketQueue, Queue
    from limpet.queue.inspect import Inspection
    from limpet.queue.sync import ClientLog, Outbox

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

AT_ONCE = 100
EVENTS_SWITCH = "LIMPET_EVENTS"
PRESENCE_SWITCH = "LIMPET_PRESENCE"


@answers_options
def open(
    url: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    create: bool = True,
    durability: Durability = "fsync",
    events: bool | None = None,
    presence: bool = True,
    runtime: Runtime | None = None,
) -> Fleet:
    """The fleet at `url`: `./dir`, `file://`, `memory://`, `s3://`, `gs://`, `az://`; without one, at LIMPET_URL.

    Nothing is read or written yet: the first use connects, and so does `fleet.check()`. If there is no fleet, the store
    is then probed for the features that Limpet needs, and `limpet.json` is written; with `create=False` or `read_only`
    that is an error instead. With `read_only` nothing is ever written. `sqs://REGION/PREFIX` has queues only.
    `events`: workers and compilers record what they did; without it, LIMPET_EVENTS=1 switches that on.
    `presence`: `limpet work` shows in the fleet that it is alive (`limpet workers`); LIMPET_PRESENCE=0 hides it too.
    Raises: Invalid for a URL that names no store; Unsupported. At first use: Invalid for a place that holds no fleet,
    or one that this version cannot use (`Fleet.check` tells them apart); Denied, Unavailable.
    Cost: nothing yet; the first use costs what `Fleet.check` says.
    """
    runtime = runtime or system()
    where = url_or_default(url)
    wants_events = not read_only and is_wanted(events)
    if where.startswith("sqs://"):
        if wants_events:
            raise Unsupported("SQS cannot keep events", hint="open a bucket or a directory, or switch events off")
        nothing = Findings(conditional=False, etag_style="quoted", at="", by="")
        return Fleet(MeteredStore(NoStore(runtime), runtime=runtime), where, fresh(nothing), runtime)
    connector = Connector(where, runtime, read_only=read_only, create=create and not read_only)
    store = LazyStore(
        store_for(where, runtime, durability=durability), connector.connect, request_budget(), runtime=runtime
    )
    sink = events_of(store, where, runtime) if wants_events else None
    return Fleet(
        store, where, store.connected, runtime, read_only=read_only, events=sink, connector=connector, presence=presence
    )


def is_wanted(asked: bool | None) -> bool:
    """Whether events are switched on: `asked`, else LIMPET_EVENTS (1 or 0).   Raises: Invalid for another value."""
    return asked if asked is not None else _switched_on(EVENTS_SWITCH, default=False)


def is_presence_wanted() -> bool:
    """Whether worker processes write presence objects: LIMPET_PRESENCE (1 or 0), by default yes.   Raises: Invalid."""
    return _switched_on(PRESENCE_SWITCH, default=True)


def _switched_on(variable: str, *, default: bool) -> bool:
    """What a variable of the environment says, 1 or 0.   Raises: Invalid for another value."""
    text = os.environ.get(variable, "")
    if text not in ("", "0", "1"):
        raise Invalid(f"{variable} is {text!r}", hint="set it to 1 or 0")
    return text == "1" if text else default


def events_of(store: MeteredStore, url: str, runtime: Runtime) -> EventSink:
    """The sink of a fleet: one for all its handles in this process. What it still holds is written at exit."""
    place: Hashable = ("events", id(store) if url.startswith("memory:") else absolute(url))
    if place not in runtime.shared:
        from limpet.events import EXECUTIONS  # only a fleet that keeps events pays for it
        from limpet.events.sink import LedgerSink

        sink = LedgerSink(store, CatalogKeys.of(EXECUTIONS), runtime, lambda: store.snapshot().total())
        runtime.shared[place] = sink
        atexit.register(sink.close)
    found: EventSink = runtime.shared[place]
    return found


def _journal_of(store: Store, record: Callable[[], FleetRecord], runtime: Runtime) -> Outbox | ClientLog | None:
    """Where the queues of a fleet note what they do, if limpet.json says that it is joined with other places.

    It does not refer to the fleet, so that the store's files are closed as soon as nothing uses the fleet.
    """
    features = record().features
    if SUPERVISED not in features:
        return None
    from limpet.queue.sync import ClientLog, Outbox

    return (Outbox if NODE in features else ClientLog)(store, runtime)


class Fleet(AnswersNames):
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
        connector: Connector | None = None,
        presence: bool = True,
    ) -> None:
        self.url = url
        self.presence = presence
        """Whether the worker processes of its tasks may write a presence object."""
        self.events = events
        """Where workers and compilers note what they did, if that is switched on."""
        self.meter = meter
        self.store: Store = ScopedStore(meter, role="reader", runtime=runtime) if read_only else meter
        self._record = record
        self.handles: WeakKeyDictionary[Any, Callable[[Fleet], Any]] = WeakKeyDictionary()
        """The queues, indexes, locks and cells that it made and that are in use, with the call that made each."""
        self.runtime = runtime
        """The clock, chance and threads that the fleet's parts use."""
        self._connector = connector
        connected = record if callable(record) else lambda: record
        self._journal = cache(partial(_journal_of, self.store, connected, runtime))  # asked at the first use of a queue
        self._connected = connected

    @property
    def tasks(self) -> Tasks:
        """The task functions that were defined with `task`, and the hooks."""
        found: Tasks | None = self.__dict__.get("_tasks")
        if found is None:
            from limpet.app.tasks import Tasks

            found = self.__dict__.setdefault("_tasks", Tasks(self))
        return found

    @property
    def record(self) -> FleetRecord:
        """What limpet.json says. The first use connects, as `check` does."""
        if callable(self._record):
            self._record = self._record()
        return self._record

    @property
    def is_new(self) -> bool:
        """Whether this handle set the fleet up, because there was none."""
        return self._connector is not None and self._connector.is_new

    def check(self) -> Fleet:
        """Connect now instead of at first use, so that an unusable store is reported here. Returns the fleet.

        Raises: Unsupported for a fleet of a newer format, or a store that ignores conditions; Missing, Denied,
        Corrupt, Unavailable.
        Cost: 1 GET the first time; on a new place 5 PUTs, 1 GET and 1 DELETE more, and 1 PUT if it has no id yet. Later
        nothing.
        """
        self.record  # noqa: B018 - reading it connects
        return self

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

    @cached_property
    def _watch(self) -> VersionWatch:
        from limpet.kernel.lease import VersionWatch

        return VersionWatch(self.runtime)

    @answers_options
    def lock(self, name: str, ttl_s: float = 60.0, *, look_first: bool = False) -> Lock:
        """The lock `name`. `look_first`: it was probably used before, so read before creating.   Cost: nothing yet."""
        from limpet.kernel.lease import Lock

        lock = Lock(self.store, keys.lock_key(name), name, ttl_s, self.runtime, self._watch, look_first=look_first)
        self.handles[lock] = methodcaller("lock", name, ttl_s, look_first=look_first)
        return lock

    def locks(
        self, *, on_error: Callable[[keys.Key, LimpetError], None] | None = None
    ) -> Iterator[Versioned[LeaseRecord]]:
        """Every lock that was ever used, in the order of their keys, as it is now; `modified` is the store's stamp.

        A lock that cannot be read is left out, and `on_error` is called with its key and the error.
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
                if seen.value.dropped is not True:
                    yield seen

    def lock_seen(self, name: str) -> Versioned[LeaseRecord] | None:
        """The lock `name` as it is now, like `locks`; None if it was never used.   Cost: 1 GET."""
        seen = self._lease_cell(keys.lock_key(name)).read()
        return seen if seen is not None and seen.value.dropped is not True else None

    def _lease_cell(self, key: keys.Key) -> Cell[LeaseRecord]:
        from limpet.kernel.lease import lease_cell

        return lease_cell(self.store, key, self.runtime)

    def cell(self, name: str) -> Cell[Any]:
        """The cell `name`: any JSON value up to 1 MiB, read and swapped as a whole.   Cost: nothing yet."""
        from limpet.kernel.cell import PLAIN, Cell

        remedy = f"restore it from a backup, or `limpet cell rm {name} --force`"
        cell = Cell(self.store, keys.cell_key(name), PLAIN, self.runtime, remedy=remedy)
        self.handles[cell] = methodcaller("cell", name)
        return cell

    def cells(
        self, *, on_error: Callable[[keys.Key, LimpetError], None] | None = None
    ) -> Iterator[tuple[keys.Key, int, Versioned[Any]]]:
        """Every cell that has a value: its key, its size in bytes, and what was read; in the order of the keys.

        A cell that cannot be read is left out, and `on_error` is called with its key and the error.
        Cost: 1 LIST per 1,000 cells that were ever used + 1 GET a cell, a bounded number at once.
        """
        from limpet.kernel.cell import DROPPED, PLAIN, Cell

        listed = (stat.key for stat in self.store.list(keys.CELLS))
        while some := [*islice(listed, AT_ONCE)]:
            for key, found in self.store.get_many(some).items():
                try:
                    if isinstance(found, LimpetError):
                        raise found
                    seen = Cell(self.store, key, PLAIN, self.runtime).decode(found)
                except (Corrupt, Invalid, Missing, Unsupported) as error:
                    if on_error is not None and not isinstance(error, Missing):
                        on_error(key, error)
                    continue
                if seen.value is not DROPPED:
                    yield key, found.size, seen

    def queue(
        self, name: str, *, payload_type: Any = None, create: bool = True, **policy: Unpack[PolicyFields]
    ) -> Queue:
        """The queue `name`, without a function. Payloads are dicts, or of `payload_type` (anything msgspec can read).

        A queue is made by its first push. With `create=False` one that was never used is `Missing`, and the error names
        one with a similar name. The other keywords are those of `Policy`: max_attempts, timeout_s, ttl_s, ...
        Raises: Invalid for a name that escapes, or a policy that makes no sense; Missing.
        Cost: nothing yet; with `create=False` 1 LIST (on SQS 1 request).
        """
        from limpet.queue import Policy

        for option in sorted(policy.keys() - Policy.__dataclass_fields__.keys()):
            refuse_option(option, [*Policy.__dataclass_fields__, "payload_type", "create"], "a queue")
        provider, settled = provider_of(self.url), Policy(**policy)
        if provider == SQS:
            from limpet.queue.sqs import SqsQueue

            client, prefix = sqs_place(self.url, self.runtime)
            queue: Queue = SqsQueue(
                client, name, self.runtime, policy=settled, prefix=prefix, payload_type=payload_type
            )
        else:
            from limpet.queue import BucketQueue

            queue = BucketQueue(
                self.store,
                name,
                self.runtime,
                policy=settled,
                provider=provider,
                payload_type=payload_type,
                journal=self._journal,
                epoch=partial(epoch_for, self.store, self.runtime, self._connected, name),
                watch=self._watch,
            )
            queue.announce_drop = partial(announce_drop, self.store, self.runtime, name)
        if not create:
            demand_queue(self, queue)
        self.handles[queue] = methodcaller("queue", name, payload_type=payload_type, **policy)
        return queue

    def queues(self) -> list[str]:
        """The names of the queues that were ever used, sorted.

        Cost: 1 LIST per 1,000 queues; on SQS 1 request for 1,000 queues of the prefix.
        """
        if provider_of(self.url) != SQS:
            return sorted(keys.name_of(part) for part in self.store.list_dirs(keys.QUEUES))
        from limpet.queue.sqs import names_of

        return names_of(*sqs_place(self.url, self.runtime))

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

    @answers_options
    def index(self, name: str, kind: Any = None, *, key: str | None = None, depth: int | None = None) -> Index[Any]:
        """The index `name`, of records of `kind`: a dataclass, a msgspec Struct, or a data package (dict or path).

        Without a `kind` its stored schema counts, and records are dicts. `key` names the field that identifies a
        record; `depth` (2 to 4 hex digits, for a new index) how many shards there are.
        Raises: Invalid for a type that no columns can hold.   Cost: nothing yet; the first use reads or creates it.
        """
        from limpet.app.indexes import CompileJob
        from limpet.index import Index
        from limpet.index.types import typed

        in_memory = self.url.startswith("memory:")  # no other process sees it
        index = Index(
            self.store,
            name,
            self.runtime,
            typed(kind, key),
            self._stamps,
            self._watch,
            depth=depth,
            job=None if in_memory else CompileJob(absolute(self.url), name),
            events=self.events,
        )
        self.handles[index] = methodcaller("index", name, kind, key=key, depth=depth)
        return index

    @cached_property
    def _stamps(self) -> Stamps:
        from limpet.index.writer import stamps_of

        return stamps_of(self.store, self.runtime, absolute(self.url))

    @overload
    def task(self, name: Callable[P, R], /) -> TaskFunction[P, R]: ...

    @overload
    def task(
        self,
        name: str | None = None,
        *,
        cron: str | None = None,
        cron_zone: str | None = None,
        **policy: Unpack[PolicyFields],
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...

    def task(
        self,
        name: str | Callable[P, R] | None = None,
        *,
        cron: str | None = None,
        cron_zone: str | None = None,
        **policy: Unpack[PolicyFields],
    ) -> TaskFunction[P, R] | Callable[[Callable[P, R]], TaskFunction[P, R]]:
        """`@fleet.task("enrich", max_attempts=5)`: a function that can be pushed, and is still a plain function.

        Its queue has the task's name; `@fleet.task` and `@fleet.task()` take the function's. With `cron` (five fields,
        in UTC or in `cron_zone`, such as Europe/Berlin) workers push it at those times, without arguments.
        Raises: Invalid for a function that no worker could run, a type that JSON cannot hold, or a time that does not
        exist.   Cost: nothing yet.
        """
        if name is not None and not isinstance(name, str) and callable(name):
            return self.tasks.define(None, cron=cron, cron_zone=cron_zone, **policy)(name)
        return self.tasks.define(name, cron=cron, cron_zone=cron_zone, **policy)

    def on_start(self, hook: Hook) -> Hook:
        """`@fleet.on_start`: a worker calls the function with a `TaskRun` before each task of the fleet.

        Hooks run in the worker's thread, in the order of their definition, in workers and in `testing.drain` only. An
        exception in a hook is logged (`limpet.hooks`), and never changes what becomes of the task. Keep them short: the
        task's claim is held while they run.
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
        catalog: Catalog = _catalogs().open_catalog(self._catalog_storage, self.url)
        self.handles[catalog] = methodcaller("catalog")
        return catalog

    @cached_property
    def _catalog_storage(self) -> Any:
        """The one storage of all catalogs of this fleet: they share the state that was read."""
        return _catalogs().storage_of(self.store, self.runtime)

    def lead_catalog(self, *, wait_s: float = 20.0) -> AbstractContextManager[Catalog]:
        """`with fleet.lead_catalog() as catalog:` the table catalog, to change, without a service.

        Where `limpet serve` leads it, ask that instead.
        Raises: NotLeader, if it still leads after `wait_s`; Unsupported, as `catalog`.
        """
        leading: AbstractContextManager[Catalog]
        leading = _catalogs().lead(self._catalog_storage, self.url, wait_s=wait_s)
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
        with catalog_extra():
            from limpet.publish import NAMESPACE, IndexPublisher
        lead = partial(self._writing, through, wait_s)
        publisher = IndexPublisher(self.index(name), self.catalog(), table or (NAMESPACE, name), lead)
        return publisher.publish(compile=compile)

    def maintain(
        self, namespace: Sequence[str], name: str, *, through: TableWriter | None = None, wait_s: float = 20.0
    ) -> TableMaintenance:
        """A table's maintenance: `expire` old snapshots, `compact` small files, `remove_orphans`.   Cost: nothing yet.

        This process leads the catalog for each commit; where a service leads, `through` asks that one.
        Raises: Unsupported without the extra `catalog`; Invalid.
        """
        with catalog_extra():
            from limpet.catalog.maintain.tables import TableMaintenance
        return TableMaintenance(self.catalog(), (namespace, name), partial(self._writing, through, wait_s))

    def import_catalog(
        self,
        uri: str,
        *,
        name: str = "default",
        options: Mapping[str, str] | None = None,
        through: ImportWriter | None = None,
        dry_run: bool = False,
        wait_s: float = 20.0,
    ) -> Iterator[ImportedTable]:
        """Register the tables and views of another catalog (REST, SQL, Glue) whose files are in this warehouse; yields
        what became of each. This process leads the catalog meanwhile; where a service leads, `through` asks that one.

        Raises, Cost, Crash: as `limpet.catalog.iceberg.importer`; Unsupported without the extra `catalog`.
        """
        with catalog_extra():
            from limpet.catalog.iceberg.importer import SourceCatalog, import_tables

        def writing() -> AbstractContextManager[ImportWriter]:
            return nullcontext(through) if through is not None else self.lead_catalog(wait_s=wait_s)

        check_has_store(self.url, "tables need a store")
        catalog = self.catalog()
        return import_tables(SourceCatalog(uri, name, options), catalog, None if dry_run else writing)

    @contextmanager
    def _writing(self, through: TableWriter | None, wait_s: float) -> Iterator[TableWriter]:
        from limpet.catalog.maintain.tables import LedCatalogWriter

        if through is not None:
            yield through
        else:
            with self.lead_catalog(wait_s=wait_s) as catalog:
                yield LedCatalogWriter(catalog)

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

    def identify(self) -> None:
        """Give a fleet of Limpet 0.1 its id, if this process may: who may not leaves it to the next process.

        Cost: nothing for a fleet that has one, else 1 GET + 1 PUT.
        """
        if not self.record.id:
            with suppress(Denied, OutcomeUnknown, Unavailable):
                self._change(lambda record: record)

    def _change(self, change: Callable[[FleetRecord], FleetRecord | None]) -> bool:
        """Change the record; one that has no id gets it with that."""
        before = self.record

        def changed(record: FleetRecord | None) -> FleetRecord | None:
            wanted = change(record) if record else None
            return wanted and (identified(wanted, self.runtime.new_id()) or wanted)

        seen = record_cell(self.store, self.runtime).update(changed)
        if seen is None:
            raise Missing(f"there is no fleet at {self.url}")
        self._record = seen.value
        return seen.value != before


def _catalogs() -> ModuleType:
    with catalog_extra():
        import_module("pyiceberg")  # for scans and maintenance, later: better refused here
        return import_module("limpet.app.catalogs")


@contextmanager
def catalog_extra() -> Iterator[None]:
    """Around imports from the extra `catalog`.   Raises: Unsupported if one of its packages is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise Unsupported(f"the catalog needs {package}", hint="pip install 'limpet[catalog]'") from None


# ---- queues by name ----


def is_used(fleet: Fleet, queue: Queue) -> bool:
    """Whether the queue was ever used.   Cost: 1 LIST; on SQS 1 request."""
    from limpet.queue import BucketQueue

    if isinstance(queue, BucketQueue):
        return next(iter(fleet.store.list(keys.QueueKeys.of(queue.name).root)), None) is not None
    exists: bool = cast(Any, queue).exists()
    return exists


def demand_queue(fleet: Fleet, queue: Queue) -> None:
    """Check that the queue was ever used, so that a typo is an error and changes nothing.

    Raises: Missing, naming one with a similar name.   Cost: that of `is_used`, and of `Fleet.queues` if it was not.
    """
    if is_used(fleet, queue):
        return
    try:
        names = fleet.queues()
    except Denied:
        names = []
    hint = hint_at_names(queue.name, names, "limpet queue ls")
    raise Missing(
        f"there is no queue {queue.name!r} at {fleet.url}",
        hint=hint or "no queue was ever used here; `limpet queue push` makes one",
    )


def hint_at_names(name: str, names: Sequence[str], command: str) -> str:
    """A hint for a name that is not among `names`, which `command` lists; empty if there are none."""
    near = nearest(name, names)
    return f"did you mean {near!r}? `{command}` shows all" if near else listed(names, 5)


def in_store(queue: Queue, what: str) -> BucketQueue:
    """The queue, if it lives in the fleet's own store; `what` another provider cannot do.   Raises: Unsupported."""
    from limpet.queue import BucketQueue

    if isinstance(queue, BucketQueue):
        return queue
    raise Unsupported(
        f"queue {queue.name!r} lives in {queue.provider}, which cannot {what}", hint="a bucket or a directory can"
    )


def inspection(fleet: Fleet, name: str, what: str) -> Inspection:
    """The reading side of the queue `name`, as `in_store`.   Cost: nothing yet."""
    from limpet.queue.inspect import Inspection
    from limpet.queue.storage import Storage

    if provider_of(fleet.url) == SQS:
        in_store(fleet.queue(name), what)
    return Inspection(Storage(fleet.store, keys.QueueKeys.of(name), fleet.runtime))

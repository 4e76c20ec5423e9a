"""`open` and `Fleet`: everything under one URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

from limpet import keys
from limpet.app.events import events_of, is_wanted
from limpet.app.formats import NODE, SUPERVISED, Connector, FleetRecord, enabled, fresh, record_cell, upgraded
from limpet.app.tasks import Hook, PolicyFields, TaskFunction, Tasks
from limpet.app.urls import SQS, Durability, NoStore, absolute, provider_of, sqs_place, store_for, url_or_default
from limpet.cell import PLAIN, Cell, Versioned
from limpet.errors import Corrupt, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.events import EventSink
from limpet.lease import LeaseRecord, Lock, VersionWatch, lease_cell
from limpet.queue import BucketQueue, Policy, Queue
from limpet.queue.entry import Journal, NoJournal
from limpet.runtime import Runtime, in_thread, system
from limpet.store import MeteredStore, ScopedStore, Store
from limpet.store.metered import LazyStore
from limpet.store.probe import Findings

if TYPE_CHECKING:
    from limpet.catalog.catalog import Catalog
    from limpet.index import Index
    from limpet.index.writer import Stamps
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
    connector = Connector(where, runtime, read_only=read_only, create=create and not read_only)
    store = LazyStore(store_for(where, runtime, durability=durability), connector.connect, _budget(), runtime=runtime)
    sink = events_of(store, where, runtime) if wants_events else None
    return Fleet(store, where, store.connected, runtime, read_only=read_only, events=sink, connector=connector)


class _FleetJournal:
    """The journal of a fleet's queues, found when it is first needed: only limpet.json says which one it is."""

    def __init__(self, find: Callable[[], Journal]) -> None:
        self._find = find
        self._found: Journal | None = None

    def __getattr__(self, name: str) -> Any:
        if self._found is None:
            self._found = self._find()
        self.__dict__[name] = value = getattr(self._found, name)
        return value


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
        connector: Connector | None = None,
    ) -> None:
        self.url = url
        self.events = events
        """Where workers and compilers note what they did, if that is switched on."""
        self.meter = meter
        self.store: Store = ScopedStore(meter, role="reader", runtime=runtime) if read_only else meter
        self._record = record
        self.runtime = runtime
        """The clock, chance and threads that the fleet's parts use."""
        self._sightings = VersionWatch(runtime)
        self._connector = connector
        self._journal = cast(Journal, _FleetJournal(self._find_journal))
        self.tasks = Tasks(self.queue, events, self.check, runtime.wall)
        """The task functions that were defined with `task`, and the hooks."""

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
        return Lock(self.store, keys.lock_key(name), name, ttl_s, self.runtime, self._sightings, look_first=look_first)

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
        return lease_cell(self.store, key, self.runtime)

    def cell(self, name: str) -> Cell[Any]:
        """The cell `name`: any JSON value up to 1 MiB, read and swapped as a whole.   Cost: nothing yet."""
        return Cell(self.store, keys.cell_key(name), PLAIN, self.runtime)

    def queue(
        self, name: str, *, payload_type: Any = None, create: bool = True, **policy: Unpack[PolicyFields]
    ) -> Queue:
        """The queue `name`, without a function. Payloads are dicts, or of `payload_type` (anything msgspec can read).

        A queue is made by its first push. With `create=False` one that was never used is `Missing`, and the error names
        one with a similar name. The other keywords are those of `Policy`: max_attempts, timeout_s, ttl_s, ...
        Raises: Invalid for a name that escapes, or a policy that makes no sense; Missing.
        Cost: nothing yet; with `create=False` 1 LIST (on SQS 1 request).
        """
        unknown = sorted(policy.keys() - PolicyFields.__annotations__.keys())
        if unknown:
            known = ", ".join(PolicyFields.__annotations__)
            raise Invalid(f"a queue has no setting {unknown[0]!r}", hint=f"there are {known}")
        queue = self._open_queue(name, Policy(**policy), payload_type)
        if not create:
            demand_queue(self, queue)
        return queue

    def _open_queue(self, name: str, policy: Policy, payload_type: Any) -> Queue:
        provider = provider_of(self.url)
        if provider == SQS:
            from limpet.queue.sqs import SqsQueue

            wire, prefix = sqs_place(self.url, self.runtime)
            return SqsQueue(wire, name, self.runtime, policy=policy, prefix=prefix, payload_type=payload_type)
        return BucketQueue(
            self.store,
            name,
            self.runtime,
            policy=policy,
            provider=provider,
            payload_type=payload_type,
            journal=self._journal,
            watch=self._sightings,
        )

    def _find_journal(self) -> Journal:
        """Where the queues note what they do, if the fleet is joined with other places."""
        if SUPERVISED not in self.record.features:
            return NoJournal()
        from limpet.queue.sync import ClientLog, Outbox

        kind = Outbox if NODE in self.record.features else ClientLog
        return kind(self.store, self.runtime)

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

    def index(self, name: str, kind: Any = None, *, key: str | None = None, depth: int | None = None) -> Index[Any]:
        """The index `name`, of records of `kind`: a dataclass, a msgspec Struct, or a data package (dict or path).

        Without a `kind` its stored schema counts, and records are dicts. `key` names the field that identifies a
        record; `depth` (2 to 4 hex digits, for a new index) how many shards there are.
        Raises: Invalid for a type that no columns can hold.   Cost: nothing yet; the first use reads or creates it.
        """
        from limpet.app.indexes import open_index

        return open_index(
            self.store,
            self.url,
            name,
            self.runtime,
            self._stamps,
            self._sightings,
            open,
            kind=kind,
            key=key,
            depth=depth,
            events=self.events,
        )

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
        Raises: Invalid for a function that no worker could run, or a time that does not exist.   Cost: nothing yet.
        """
        if name is not None and not isinstance(name, str) and callable(name):
            return self.tasks.define(None, cron=cron, cron_zone=cron_zone, **policy)(name)
        return self.tasks.define(name, cron=cron, cron_zone=cron_zone, **policy)

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
        catalog: Catalog = found.open_catalog(found.storage_of(self.store, self.runtime), self.url)
        return catalog

    def lead_catalog(self, *, wait_s: float = 20.0) -> AbstractContextManager[Catalog]:
        """`with fleet.lead_catalog() as catalog:` the table catalog, to change, without a service.

        Where `limpet serve` leads it, ask that instead.
        Raises: NotLeader, if it still leads after `wait_s`; Unsupported, as `catalog`.
        """
        leading: AbstractContextManager[Catalog]
        leading = _catalogs().lead(self.store, self.url, self.runtime, wait_s=wait_s)
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
        seen = record_cell(self.store, self.runtime).update(lambda record: change(record) if record else None)
        if seen is None:
            raise Missing(f"there is no fleet at {self.url}")
        self._record = seen.value
        return seen.value != before


def is_used(fleet: Fleet, queue: Queue) -> bool:
    """Whether the queue was ever used.   Cost: 1 LIST; on SQS 1 request."""
    if isinstance(queue, BucketQueue):
        return next(iter(fleet.store.list(keys.QueueKeys.of(queue.name).root)), None) is not None
    exists: bool = cast(Any, queue).exists()
    return exists


def demand_queue(fleet: Fleet, queue: Queue) -> None:
    """Return if the queue was ever used; an error otherwise, so that a typo changes nothing.

    Raises: Missing, naming one with a similar name.   Cost: that of `is_used`, and of `Fleet.queues` if it was not.
    """
    if is_used(fleet, queue):
        return
    try:
        names = fleet.queues()
    except Denied:
        names = []
    near = get_close_matches(queue.name, names, n=1)
    if near:
        hint = f"did you mean {near[0]!r}? `limpet queue ls` shows all"
    elif names:
        hint = f"there is {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
    else:
        hint = "no queue was ever used here; `limpet queue push` makes one"
    raise Missing(f"there is no queue {queue.name!r} at {fleet.url}", hint=hint)


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

"""`open` and `Fleet`: everything under one URL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from limpet import keys
from limpet.app.events import events_of, is_wanted
from limpet.app.formats import FleetRecord, check, enabled, fresh, may_write, upgraded
from limpet.app.indexes import open_index
from limpet.app.queues import NoStore, journal_of, open_queue, policy_of
from limpet.app.tasks import PolicyFields, TaskFunction, Tasks
from limpet.app.urls import Durability, absolute, store_for, url_or_default
from limpet.cell import PLAIN, Cell, Seen, struct_codec
from limpet.errors import Conflict, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.events import EventSink
from limpet.index import Index
from limpet.index.stamps import stamps_of
from limpet.lease import LeaseRecord, Lock, Sightings
from limpet.queue import Queue
from limpet.runtime import Runtime, system
from limpet.store import MeteredStore, ScopedStore, Store
from limpet.store.probe import Findings, quick, use_etag_style

if TYPE_CHECKING:
    from limpet.app.publish import Published, TableWriter
    from limpet.catalog.catalog import Catalog

__all__ = ["Fleet", "open"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

AT_ONCE = 100


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    durability: Durability = "fsync",
    events: bool | None = None,
    runtime: Runtime | None = None,
) -> Fleet:
    """The fleet at `url`: `./dir`, `file://`, `memory://`, `s3://`, `gs://`, `az://`; without one, at LIMPET_URL.

    A place that holds no fleet yet is probed for what Limpet needs of a store, and `limpet.json` is written there;
    with `read_only` it is an error instead, and nothing is ever written. `sqs://REGION/PREFIX` has queues only.
    `events`: workers and compilers note what they did in the ledger; without it, LIMPET_EVENTS=1 decides.
    Raises: Unsupported for a fleet of a newer format, or a store that ignores conditions; Missing; Denied; Invalid.
    Cost: 1 GET; on a new place once 5 PUTs, 1 GET and 1 DELETE more.
    """
    runtime = runtime or system()
    where = url_or_default(url)
    wants_events = is_wanted(events) and not read_only
    if where.startswith("sqs://"):
        if wants_events:
            raise Unsupported("SQS cannot keep events", hint="open a bucket or a directory, or switch events off")
        nothing = Findings(conditional=False, etag_style="quoted", at="", by="")
        return Fleet(MeteredStore(NoStore(runtime), runtime=runtime), where, fresh(nothing), runtime)
    store = MeteredStore(store_for(where, runtime, durability=durability), _budget(), runtime=runtime)
    record = _record_cell(store, runtime).read()
    if record is None and read_only:
        raise Missing(f"there is no fleet at {where}", hint="check the URL; opening it for writing creates one")
    found = record.value if record else _set_up(store, runtime, where)
    check(found, where=where)
    if not read_only and not may_write(found):
        raise Unsupported(
            f"the fleet at {where} wants writers of level {found.min_writer}",
            hint="upgrade limpet here (pip install -U limpet), or open it with read_only=True",
        )
    use_etag_style(store, found.probe.etag_style)
    sink = events_of(store, where, runtime) if wants_events else None
    return Fleet(store, where, found, runtime, read_only=read_only, events=sink)


def _record_cell(store: Store, runtime: Runtime) -> Cell[FleetRecord]:
    return Cell(store, keys.FLEET, struct_codec(FleetRecord), runtime)


def _set_up(store: Store, runtime: Runtime, where: str) -> FleetRecord:
    cell = _record_cell(store, runtime)
    try:
        return cell.create(fresh(quick(store, runtime=runtime))).value
    except Conflict:
        seen = cell.read()
        assert seen is not None
        return seen.value
    except Denied as error:
        raise Denied(
            f"there is no fleet at {where} yet, and it cannot be set up: {error}",
            hint="open it once with a key that may write",
        ) from error


class Fleet:
    """What lives under one URL. Cheap to make, safe to share between threads; a forked child should open its own."""

    def __init__(
        self,
        meter: MeteredStore,
        url: str,
        record: FleetRecord,
        runtime: Runtime,
        *,
        read_only: bool = False,
        events: EventSink | None = None,
    ) -> None:
        self.url = url
        self.events = events
        """Where workers and compilers note what they did, if that is switched on."""
        self.record = record
        self.meter = meter
        self.store: Store = ScopedStore(meter, role="reader", runtime=runtime) if read_only else meter
        self._runtime = runtime
        self._sightings = Sightings(runtime)
        self._stamps = stamps_of(self.store, runtime, absolute(url))
        self._journal = journal_of(record, self.store, runtime)
        self.tasks = Tasks(self.queue, events)
        """The task functions that were defined with `task`."""

    def __repr__(self) -> str:
        return f"Fleet({self.url!r})"

    def lock(self, name: str, ttl_s: float = 60.0, *, look_first: bool = False) -> Lock:
        """The lock `name`. `look_first`: it was probably used before, so read before creating.   Cost: nothing yet."""
        return Lock(self.store, keys.lock_key(name), name, ttl_s, self._runtime, self._sightings, look_first=look_first)

    def locks(self) -> Iterator[Seen[LeaseRecord]]:
        """Every lock that was ever used, in the order of their keys, as it is now; `modified` is the store's stamp.

        Cost: 1 LIST per 1,000 locks + 1 GET a lock, a bounded number at once.
        """
        listed = (stat.key for stat in self.store.list(keys.LOCKS))
        while some := [*islice(listed, AT_ONCE)]:
            for key, found in self.store.get_many(some).items():
                if isinstance(found, LimpetError):
                    raise found
                yield self._lease_cell(key).decode(found)

    def lock_seen(self, name: str) -> Seen[LeaseRecord] | None:
        """The lock `name` as it is now, like `locks`; None if it was never used.   Cost: 1 GET."""
        return self._lease_cell(keys.lock_key(name)).read()

    def _lease_cell(self, key: keys.Key) -> Cell[LeaseRecord]:
        return Cell(self.store, key, struct_codec(LeaseRecord), self._runtime)

    def cell(self, name: str) -> Cell[Any]:
        """The cell `name`: any JSON value up to 1 MiB, read and swapped as a whole.   Cost: nothing yet."""
        return Cell(self.store, keys.cell_key(name), PLAIN, self._runtime)

    def queue(self, name: str, *, payload_type: Any = None, **policy: Unpack[PolicyFields]) -> Queue:
        """The queue `name`, without a function. Payloads are dicts, or of `payload_type` (anything msgspec can read).

        The keywords are those of `Policy`: max_attempts, timeout_s, ttl_s, concurrency, rate_per_s, ...
        Raises: Invalid for a name that escapes, or a policy that makes no sense.   Cost: nothing yet.
        """
        return open_queue(
            self.store,
            self.url,
            name,
            self._runtime,
            self._sightings,
            policy=policy_of({**policy}),
            payload_type=payload_type,
            journal=self._journal,
        )

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

    def task(
        self, name: str | None = None, *, cron: str | None = None, **policy: Unpack[PolicyFields]
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]:
        """`@fleet.task("enrich", max_attempts=5)`: a function that can be pushed, and is still a plain function.

        Its queue has the task's name. With `cron` (five fields, UTC) workers push it at those times, without arguments.
        Raises: Invalid for a function that no worker could run.   Cost: nothing yet.
        """
        return self.tasks.define(name, cron=cron, **policy)

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
        Raises, Cost, Crash: as `limpet.app.publish.Publisher.publish`; Unsupported without the extra `catalog`.
        """
        try:
            from limpet.app.publish import NAMESPACE, Led, Publisher
        except ImportError:
            raise Unsupported("tables need PyIceberg and pyarrow", hint="pip install 'limpet[catalog]'") from None

        @contextmanager
        def lead() -> Iterator[TableWriter]:
            if through is not None:
                yield through
            else:
                with self.lead_catalog(wait_s=wait_s) as catalog:
                    yield Led(catalog)

        return Publisher(self.index(name), self.catalog(), table or (NAMESPACE, name), lead).publish(compile=compile)

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
        self.record = seen.value
        return self.record != before


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

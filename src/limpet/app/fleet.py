"""`open` and `Fleet`: everything under one URL.

A URL names a store, and the provider of the queues, unless LIMPET_QUEUE_TYPE does. `limpet.json` in the store records
the formats of the fleet, so that a version of Limpet that does not know them refuses to use it: `check_record`,
`may_write`, `enabled` and `upgraded` are pure rules; `Connector` reads the record, or sets up a new fleet.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache, cached_property, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload
from urllib.parse import unquote, urlsplit

import msgspec

from limpet import keys
from limpet.cell import PLAIN, Cell, Versioned, struct_codec
from limpet.errors import (
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.events import EXECUTIONS, EventSink
from limpet.lease import LeaseRecord, Lock, VersionWatch, lease_cell
from limpet.queue import BucketQueue, Policy, Queue
from limpet.queue.inspect import Inspection
from limpet.records import Count, Name
from limpet.runtime import Flag, Runtime, in_thread, system
from limpet.store import DirectoryStore, MemoryStore, MeteredStore, ScopedStore, Store
from limpet.store.metered import LazyStore
from limpet.store.probe import Findings, probe_conditions, use_etag_style

if TYPE_CHECKING:
    from limpet.app.tasks import Hook, PolicyFields, TaskFunction, Tasks
    from limpet.catalog.catalog import Catalog
    from limpet.catalog.iceberg.importer import ImportedTable, ImportWriter
    from limpet.catalog.maintain.tables import TableMaintenance, TableWriter
    from limpet.catalog.storage import CatalogStorage
    from limpet.index import Index
    from limpet.index.writer import Stamps
    from limpet.publish import Published
    from limpet.queue.sync import ClientLog, Outbox, RemoteFleet, SyncEvent

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

AT_ONCE = 100
RECONNECT_MIN_S = 5.0
RECONNECT_MAX_S = 300.0
Durability = Literal["fsync", "os"]

SCHEMES = "use ./dir, file://, memory://, s3://, gs:// or az://"
_SCHEME_ALONE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?!//)(/?)([^/].*)?")

SQS = "sqs"
PROVIDERS = ("filesystem", "bucket", SQS)

EVENTS_SWITCH = "LIMPET_EVENTS"
PRESENCE_SWITCH = "LIMPET_PRESENCE"

_sqs_clients: dict[tuple[int, str, str], Any] = {}
_named_memory: dict[str, MemoryStore] = {}


# ---- a URL and its store ----


def url_or_default(url: str | os.PathLike[str] | None) -> str:
    """`url`, else LIMPET_URL.   Raises: Invalid when there is neither."""
    found = os.fspath(url) if url is not None else os.environ.get("LIMPET_URL", "")
    if not found:
        raise Invalid("no URL was given", hint="pass one, such as ./fleet or s3://bucket/prefix, or set LIMPET_URL")
    return found


def absolute(url: str) -> str:
    """The URL in one canonical form, which other processes can use: a path is absolute, without a trailing slash."""
    url = _whole(url)
    if url.startswith("file://"):
        url = unquote(urlsplit(url).path)
    if "://" not in url:
        return os.path.abspath(os.path.expanduser(url))
    scheme, separator, rest = url.partition("://")
    place, mark, query = rest.partition("?")
    return f"{scheme}{separator}{place.rstrip('/')}{mark}{query}"


def store_for(url: str, runtime: Runtime, *, durability: Durability = "fsync") -> Store:
    """The store behind `url`. Nothing is read or written yet.

    A path or `file://` is a directory, `memory://NAME` is shared within this process (`memory://` alone is new each
    time), and `s3://`, `gs://`, `az://` are buckets.   Raises: Unsupported for `sqs://`; Invalid for anything else.
    """
    url = _whole(url)
    scheme, separator, rest = url.partition("://")
    if not separator:
        try:
            return DirectoryStore(Path(url).expanduser(), durability=durability, runtime=runtime)
        except OSError as error:  # the path is resolved at once
            raise Denied(f"cannot open {url}: {error.strerror}", hint="check the path and your rights to it") from None
    match scheme:
        case "file":
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost") or not parts.path:
                raise Invalid(f"{url!r} names no absolute path", hint="write file:///absolute/path, or ./relative")
            return DirectoryStore(Path(unquote(parts.path)), durability=durability, runtime=runtime)
        case "memory":
            if not rest:
                return MemoryStore(runtime)
            return _named_memory.setdefault(rest, MemoryStore(runtime))
        case "s3" | "gs" | "az":
            from limpet.store.cloud import CloudStore

            return CloudStore(url, runtime=runtime)
        case "sqs":
            check_has_store(url, "it is no store")
    raise Invalid(f"{scheme}:// is no store that limpet knows", hint=SCHEMES)


def _whole(url: str) -> str:
    """`url`; but a URL with too few slashes would be taken for a folder called `s3:`.   Raises: Invalid.

    `file:/x` is a URL as it stands: the same as `file:///x`.
    """
    cut = _SCHEME_ALONE.fullmatch(url)
    if cut is None:
        return url
    scheme, slash, rest = cut[1], cut[2], cut[3] or ""
    if scheme == "file" and slash:
        return f"file:///{rest}"
    hint = f"write {scheme}://{rest}, or ./{url} for a folder of that name"
    known = scheme in ("s3", "gs", "az", "memory", "sqs", "file")
    raise Invalid(f"{url!r} is no URL and no path", hint=hint if known else f"{SCHEMES}, or ./{url} for a folder")


def provider_of(url: str) -> str:
    """The provider of a fleet's queues: `filesystem`, `memory`, `bucket` or `sqs`.

    LIMPET_QUEUE_TYPE=sqs puts the queues of any fleet on SQS.   Raises: Invalid where it contradicts the URL.
    """
    scheme, separator, _ = url.partition("://")
    own = "filesystem" if not separator or scheme == "file" else scheme if scheme in ("memory", SQS) else "bucket"
    asked = os.environ.get("LIMPET_QUEUE_TYPE", "")
    if not asked or asked == own:
        return own
    if asked not in PROVIDERS:
        raise Invalid(f"LIMPET_QUEUE_TYPE is {asked!r}", hint=f"it can be {', '.join(PROVIDERS)}")
    if asked == SQS:
        return SQS
    raise Invalid(f"LIMPET_QUEUE_TYPE is {asked}, and {url} is a {own}", hint="unset it, or open another URL")


def has_store(url: str) -> bool:
    """Whether the fleet has a store, with locks and cells: `sqs://` has queues only."""
    return not url.startswith("sqs://")


def check_has_store(url: str, why: str) -> None:
    """Raises: Unsupported for `sqs://`; `why` says what that means for the caller."""
    if not has_store(url):
        raise _without_store(why)


def _without_store(why: str) -> Unsupported:
    return Unsupported(
        f"SQS has queues and nothing else: {why}",
        hint="use a bucket or a directory for locks, cells, indexes and tables; `limpet status` shows the queues",
    )


def sqs_place(url: str, runtime: Runtime) -> tuple[Any, str]:
    """The client for the queues of a fleet on SQS, one for each region and endpoint, and their prefix."""
    parts = urlsplit(url if url.startswith("sqs://") else "sqs://")
    region = parts.netloc or os.environ.get("LIMPET_SQS_REGION", "")
    prefix = parts.path.strip("/") or os.environ.get("LIMPET_SQS_PREFIX", "")
    place = (id(runtime), region, os.environ.get("LIMPET_SQS_ENDPOINT", ""))
    if place not in _sqs_clients:
        from limpet.queue.sqs.client import SqsClient

        _sqs_clients[place] = SqsClient(runtime, region=region or None, endpoint_url=place[2] or None)
    return _sqs_clients[place], prefix


class NoStore(Store):
    """The store of `sqs://`, which has queues only: every request is refused."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _without_store("this needs a store")

    get = head = put = delete = list = sample = list_dirs = _refuse


# ---- limpet.json ----

LEVEL = 1
"""What this version of Limpet can read and write; `min_reader` and `min_writer` are compared with it."""

CURRENT = {"queue": 1, "index": 1, "catalog": 1}
"""The newest format of each room that this version writes."""

SUPERVISED = "supervised"
NODE = "node"
BACKUP = "backup"
"""In the `features` of a copy that `limpet backup` made: it can be read, and no worker uses it."""
RESTORING = "restoring"
"""In the `features` of a fleet that `limpet restore` has not finished: it cannot be used yet."""
FEATURES = frozenset({SUPERVISED, NODE})
"""The optional features that this version knows. `supervised`: queues here are joined with those of other places, by
journals and logs. `node`: this is one node's own directory among them."""


class FleetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `limpet.json` beside the cell's header."""

    format: Annotated[dict[Name, Count], msgspec.Meta(max_length=100)]
    min_reader: Count
    min_writer: Count
    features: Annotated[list[Name], msgspec.Meta(max_length=100)]
    probe: Findings
    id: Name | msgspec.UnsetType = msgspec.UNSET
    """Tells this fleet from every other one. Limpet 0.1 does not know it, nor what follows."""
    epoch: Count | msgspec.UnsetType = msgspec.UNSET
    """Raised by each restore of a backup, and not set before the first: what was pushed in another epoch may have
    recorded steps."""


def fresh(probe: Findings, id_: str | msgspec.UnsetType = msgspec.UNSET) -> FleetRecord:
    """The record of a new fleet."""
    return FleetRecord(format=dict(CURRENT), min_reader=LEVEL, min_writer=LEVEL, features=[], probe=probe, id=id_)


def identified(record: FleetRecord, id_: str) -> FleetRecord | None:
    """The record with an id; None if it has one."""
    return None if record.id else msgspec.structs.replace(record, id=id_)


def check_record(record: FleetRecord, *, where: str) -> None:
    """Return if this version of Limpet may read the fleet.   Raises: Unsupported, naming what is too new."""
    if RESTORING in record.features:
        raise Unsupported(
            f"the fleet at {where} is being restored", hint="if that was interrupted, run `limpet restore` again"
        )
    newer = [
        f"{room if room.isprintable() else repr(room)} format {n}"
        for room, n in sorted(record.format.items())
        if n > CURRENT.get(room, 0)
    ]
    unknown = [f"feature {name!r}" for name in sorted(record.features) if name not in {*FEATURES, BACKUP}]
    if record.min_reader > LEVEL:
        newer.append(f"readers of level {record.min_reader}")
    if newer or unknown:
        raise Unsupported(
            f"the fleet at {where} uses {', '.join(newer + unknown)}, which this limpet does not know",
            hint="upgrade limpet here: pip install -U limpet",
        )


def may_write(record: FleetRecord) -> bool:
    """Whether this version of Limpet may write to the fleet.   Raises: Unsupported for a backup of a fleet."""
    if BACKUP in record.features:
        raise Unsupported("this is a backup", hint="`limpet restore` makes a fleet of it; or open it read-only")
    return record.min_writer <= LEVEL


def enabled(record: FleetRecord, features: Sequence[str]) -> FleetRecord | None:
    """The record with these features; None when it has them already.   Raises: Invalid for an unknown feature."""
    for name in features:
        if name not in FEATURES:
            raise Invalid(f"there is no feature {name!r}", hint=f"there are {', '.join(sorted(FEATURES))}")
    if {*features} <= {*record.features}:
        return None
    return msgspec.structs.replace(record, features=sorted({*record.features, *features}))


def upgraded(record: FleetRecord) -> FleetRecord | None:
    """The record after `limpet upgrade`; None when there is nothing to raise. Nothing is ever lowered."""
    raised = msgspec.structs.replace(
        record,
        format={room: max(n, CURRENT.get(room, 0)) for room, n in (CURRENT | record.format).items()},
        min_reader=max(record.min_reader, LEVEL),
        min_writer=max(record.min_writer, LEVEL),
    )
    return raised if raised != record else None


def record_cell(store: Store, runtime: Runtime) -> Cell[FleetRecord]:
    """The cell `limpet.json`."""
    return Cell(store, keys.FLEET, struct_codec(FleetRecord), runtime)


@dataclass(slots=True)
class Connector:
    """Connects to the fleet at a URL; `is_new` says afterwards whether this process set the fleet up."""

    where: str
    runtime: Runtime
    read_only: bool
    create: bool
    is_new: bool = False

    def connect(self, store: Store) -> FleetRecord:
        """Read limpet.json, or set the fleet up.   Raises, Cost: see `Fleet.check`."""
        seen = record_cell(store, self.runtime).read()
        if seen is None and not self.create:
            raise Missing(
                f"there is no fleet at {self.where}", hint="check the URL; opening it for writing creates one"
            )
        found = seen.value if seen else self._set_up(store)
        check_record(found, where=self.where)
        if not self.read_only and not may_write(found):
            raise Unsupported(
                f"the fleet at {self.where} wants writers of level {found.min_writer}",
                hint="upgrade limpet here (pip install -U limpet), or open it with read_only=True",
            )
        if seen is not None and not (self.read_only or found.id):
            found = self._identify(store, seen)
        use_etag_style(store, found.probe.etag_style)
        return found

    def _set_up(self, store: Store) -> FleetRecord:
        cell = record_cell(store, self.runtime)
        try:
            made = cell.create(fresh(probe_conditions(store, runtime=self.runtime), self.runtime.new_id())).value
        except Conflict:  # another process set it up first
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

    def _identify(self, store: Store, seen: Versioned[FleetRecord]) -> FleetRecord:
        """Give a fleet of Limpet 0.1 an id. Whoever may not, or meets a fault, leaves it to the next process: no role
        may write limpet.json, and nothing that is done with an id needs one at once.   Cost: 1 PUT.
        """
        wanted = identified(seen.value, self.runtime.new_id())
        assert wanted is not None
        try:
            return record_cell(store, self.runtime).swap(seen, wanted).value
        except (Conflict, Denied, OutcomeUnknown, Unavailable):
            return seen.value


# ---- the fleet ----


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
    store = LazyStore(store_for(where, runtime, durability=durability), connector.connect, _budget(), runtime=runtime)
    sink = events_of(store, where, runtime) if wants_events else None
    return Fleet(
        store, where, store.connected, runtime, read_only=read_only, events=sink, connector=connector, presence=presence
    )


def open_node(local: Path, remote: str) -> Fleet:
    """The fleet of one node among those that share `remote`: its own directory, which is marked as one.

    Raises: Invalid for a URL, and for a directory that nodes share.   Cost: as `Fleet.check`, 1 GET and at most 1 PUT.
    """
    if str(local).startswith(("s3:/", "gs:/", "az:/", "sqs:/", "memory:/")):  # a path has no double slash
        raise Invalid(f"--local is a directory of this machine, not {local}", hint="the bucket is --remote")
    if local.expanduser().resolve() == Path(remote.removeprefix("file://")).expanduser().resolve():
        raise Invalid(
            "--local and --remote are the same directory", hint="give --local a directory that only this node uses"
        )
    fleet = open(local)
    if SUPERVISED in fleet.record.features and NODE not in fleet.record.features:
        raise Invalid(f"{local} is the bucket of other nodes", hint="give --local a directory that only this node uses")
    fleet.enable(NODE, SUPERVISED)
    return fleet


def open_shared(
    remote: str, stop: Flag, on_event: Callable[[SyncEvent], None], *, once: bool, create: bool
) -> Fleet | None:
    """The fleet that nodes share, marked as one: processes that open it from now on journal what they do in its queues.

    While it cannot be reached, this is reported once and tried again; None if `stop` is raised. With `once` it is an
    error. Raises: Missing if there is no fleet, unless `create`; Invalid for the directory of one node.
    Cost: as `Fleet.check`, 1 GET and at most 1 PUT.
    """
    from limpet.queue.sync import Disconnected, Reconnected

    began_s, failures = system().elapsed_s(), 0
    while not stop.is_set():
        try:
            fleet = open(remote, create=create).check()
            if NODE in fleet.record.features:
                raise Invalid(f"{remote} is the directory of one node", hint="--remote is what all nodes share")
            fleet.enable(SUPERVISED)
        except Missing as error:
            error.hint = "check --remote; with --create a new fleet is set up there"
            raise
        except (Unavailable, OutcomeUnknown) as error:
            if once:
                raise
            if not failures:
                on_event(Disconnected(error))
            stop.wait(min(RECONNECT_MAX_S, RECONNECT_MIN_S * 2**failures))
            failures += 1
            continue
        if failures:
            on_event(Reconnected(system().elapsed_s() - began_s))
        return fleet
    return None


def check_same(fleet: Fleet) -> None:
    """Return if the fleet at this URL is the one that was opened, as it was restored last.

    Raises: Invalid, Missing.   Cost: 1 GET.
    """
    opened, now = fleet.record, record_cell(fleet.store, fleet.runtime).read()
    if now is None:
        raise Missing(f"there is no fleet at {fleet.url} any more", hint="was it deleted? stop this process")
    ids = {record.id for record in (opened, now.value) if record.id}
    if len(ids) > 1 or (opened.epoch or 0) != (now.value.epoch or 0):
        what = "restored from a backup" if len(ids) == 1 else f"replaced by fleet {now.value.id}"
        raise Invalid(
            f"the fleet at {fleet.url} was {what} since this process began",
            hint="start this process again, if that is meant",
        )


def home_of(shared: Fleet) -> RemoteFleet:
    """Which fleet is at that URL now.   Raises: Missing; Unsupported while it is being restored.   Cost: 1 GET."""
    from limpet.queue.sync import RemoteFleet

    seen = record_cell(shared.store, shared.runtime).read()
    if seen is None:
        raise Missing(f"there is no fleet at {shared.url}", hint="was it deleted, or is the URL another one?")
    check_record(seen.value, where=shared.url)
    return RemoteFleet(seen.value.id or None, seen.value.epoch or 0)


def _budget() -> int | None:
    text = os.environ.get("LIMPET_REQUEST_BUDGET")
    if not text:
        return None
    if not text.isdigit():
        raise Invalid(f"LIMPET_REQUEST_BUDGET is {text!r}, not a number", hint="give a number of requests")
    return int(text)


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
    place: Hashable = (EventSink, id(store) if url.startswith("memory:") else absolute(url))
    if place not in runtime.shared:
        from limpet.events.sink import LedgerSink  # only a fleet that keeps events pays for it

        sink = LedgerSink(store, keys.CatalogKeys.of(EXECUTIONS), runtime, lambda: store.snapshot().total())
        runtime.shared[place] = sink
        atexit.register(sink.close)
    found: EventSink = runtime.shared[place]
    return found


def _journal_of(
    store: Store, record: FleetRecord | Callable[[], FleetRecord], runtime: Runtime
) -> Outbox | ClientLog | None:
    """Where the queues of a fleet note what they do, if limpet.json says that it is joined with other places.

    It does not refer to the fleet, so that the store's files are closed as soon as nothing uses the fleet.
    """
    features = (record() if callable(record) else record).features
    if SUPERVISED not in features:
        return None
    from limpet.queue.sync import ClientLog, Outbox

    return (Outbox if NODE in features else ClientLog)(store, runtime)


def _epoch_of(record: FleetRecord | Callable[[], FleetRecord]) -> int:
    """How many restores lie before the fleet."""
    return (record() if callable(record) else record).epoch or 0


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
        self.runtime = runtime
        """The clock, chance and threads that the fleet's parts use."""
        self._watch = VersionWatch(runtime)
        self._connector = connector
        self._storage: CatalogStorage | None = None
        self._journal = cache(partial(_journal_of, self.store, record, runtime))  # asked at the first use of a queue
        self._epoch = cache(partial(_epoch_of, record))

    @property
    def tasks(self) -> Tasks:
        """The task functions that were defined with `task`, and the hooks."""
        found: Tasks | None = self.__dict__.get("_tasks")
        if found is None:
            from limpet.app.tasks import Tasks

            made = Tasks(self.queue, self.events, self.check, self.runtime.wall, presence=self.presence)
            found = self.__dict__.setdefault("_tasks", made)
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

    def lock(self, name: str, ttl_s: float = 60.0, *, look_first: bool = False) -> Lock:
        """The lock `name`. `look_first`: it was probably used before, so read before creating.   Cost: nothing yet."""
        return Lock(self.store, keys.lock_key(name), name, ttl_s, self.runtime, self._watch, look_first=look_first)

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
        known = [each.name for each in fields(Policy)]
        unknown = sorted(policy.keys() - {*known})
        if unknown:
            raise Invalid(f"a queue has no setting {unknown[0]!r}", hint=f"there are {', '.join(known)}")
        queue = self._open_queue(name, Policy(**policy), payload_type)
        if not create:
            demand_queue(self, queue)
        return queue

    def _open_queue(self, name: str, policy: Policy, payload_type: Any) -> Queue:
        provider = provider_of(self.url)
        if provider == SQS:
            from limpet.queue.sqs import SqsQueue

            client, prefix = sqs_place(self.url, self.runtime)
            return SqsQueue(client, name, self.runtime, policy=policy, prefix=prefix, payload_type=payload_type)
        return BucketQueue(
            self.store,
            name,
            self.runtime,
            policy=policy,
            provider=provider,
            payload_type=payload_type,
            journal=self._journal,
            epoch=self._epoch,
            watch=self._watch,
        )

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
        from limpet.app.indexes import CompileJob
        from limpet.index import Index
        from limpet.index.types import typed

        in_memory = self.url.startswith("memory:")  # no other process sees it
        return Index(
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
        catalog: Catalog = _catalogs().open_catalog(self._catalog_storage(), self.url)
        return catalog

    def _catalog_storage(self) -> CatalogStorage:
        """The one storage of all catalogs of this fleet: they share the state that was read."""
        if self._storage is None:
            self._storage = _catalogs().storage_of(self.store, self.runtime)
        return self._storage

    def lead_catalog(self, *, wait_s: float = 20.0) -> AbstractContextManager[Catalog]:
        """`with fleet.lead_catalog() as catalog:` the table catalog, to change, without a service.

        Where `limpet serve` leads it, ask that instead.
        Raises: NotLeader, if it still leads after `wait_s`; Unsupported, as `catalog`.
        """
        leading: AbstractContextManager[Catalog]
        leading = _catalogs().lead(self._catalog_storage(), self.url, wait_s=wait_s)
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

    def _change(self, change: Callable[[FleetRecord], FleetRecord | None]) -> bool:
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
    near = get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}? `{command}` shows all"
    return f"there is {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}" if names else ""


def in_store(queue: Queue, what: str) -> BucketQueue:
    """The queue, if it lives in the fleet's own store; `what` another provider cannot do.   Raises: Unsupported."""
    if isinstance(queue, BucketQueue):
        return queue
    raise Unsupported(
        f"queue {queue.name!r} lives in {queue.provider}, which cannot {what}", hint="a bucket or a directory can"
    )


def inspection(fleet: Fleet, name: str, what: str) -> Inspection:
    """The reading side of the queue `name`, as `in_store`.   Cost: nothing yet."""
    if provider_of(fleet.url) == SQS:
        in_store(fleet.queue(name), what)
    return Inspection(fleet.store, keys.QueueKeys.of(name), fleet.runtime)

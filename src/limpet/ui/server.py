"""The dashboard over HTTP: its files, its JSON routes, and the live feed, on the guards of `limpet.service`.

Routes below `/ui/api` demand the token where there is one, the host name of this machine where there is none, and a
page of their own origin. Actions also demand JSON and a header that no form can send. The files need no token: nothing
of the fleet is in them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

import limpet
from limpet.app.fleet import in_store
from limpet.app.health import Limits
from limpet.app.history import FleetHistory
from limpet.app.overview import FleetOverview, OverviewWatch
from limpet.app.place import absolute, has_store, url_or_default
from limpet.kernel import records
from limpet.kernel.errors import Denied, Invalid, Unavailable
from limpet.kernel.keys import FLEET
from limpet.kernel.runtime import Flag, system
from limpet.kernel.waiting import ticks
from limpet.service.app import Route
from limpet.service.log import Form, ServiceLog
from limpet.service.parts import ServiceContext, ServicePart
from limpet.service.protocol import PEER_MAX
from limpet.service.requests import Rejected, Request, Response
from limpet.service.serve import address_of, listen, run
from limpet.service.tokens import DEFAULT, Caller, Tokens, check_bind, source_of
from limpet.ui import facts
from limpet.ui.receipts import MEMBERS_MAX, EndedTasks, ReceiptRows

if TYPE_CHECKING:
    from limpet.catalog.catalog import Catalog

T = TypeVar("T")

UI_TOKEN = "LIMPET_UI_TOKEN"
"""The variable with the token of `limpet ui`; LIMPET_UI_TOKEN_FILE names a file with it."""
STREAMS_MAX = 32
HEARTBEAT_S = 15.0
WAKE_S = 0.5
"""How soon a stream notices that its process ends."""
REFRESH_S = 1.0
QUERIES_MAX = 2
LEAD_S = 2.0
GUARD_HEADER = b"x-limpet-ui"

PAGE_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
STREAM_TYPE = (b"content-type", b"text/event-stream")
JSON_TYPE = (b"content-type", b"application/json")


# ---- the live feed ----


class OverviewFeed:
    """Watches the fleet while there are listeners, and sends each new overview to all of them."""

    def __init__(self, watch: OverviewWatch, ending: Flag) -> None:
        self._watch = watch
        self._runtime = watch.fleet.runtime
        self._ending = ending
        self._mutex = self._runtime.mutex()
        self._listeners: set[OverviewStream] = set()
        self._running = False
        self._wake = self._runtime.flag()
        self._all_at_once = False
        self._refreshed_s = float("-inf")
        self._telling = self._runtime.mutex()
        self._history = FleetHistory(watch.fleet)

    def listen(self) -> OverviewStream:
        """A new listener.   Raises: Unavailable if there are too many."""
        with self._mutex:
            if len(self._listeners) >= STREAMS_MAX:
                raise Unavailable("too many pages are open", hint="close some, or open them later")
            listener = OverviewStream(self, self._runtime.flag)
            self._listeners.add(listener)
            starts, self._running = not self._running, True
        if starts:
            self._runtime.spawn(self._run, name="limpet-ui-feed")
        else:
            self.refresh(everything=False)
        return listener

    def leave(self, listener: OverviewStream) -> None:
        """Hand nothing more to this one."""
        with self._mutex:
            self._listeners.discard(listener)

    @property
    def is_ending(self) -> bool:
        """Whether the process ends."""
        return self._ending.is_set()

    def refresh(self, *, everything: bool = True) -> None:
        """Read the fleet again now, all of it, but not twice within a second."""
        now_s = self._runtime.elapsed_s()
        if everything and now_s >= self._refreshed_s + REFRESH_S:
            self._refreshed_s, self._all_at_once = now_s, True
        self._wake.set()

    def prefer(self, queue: str) -> None:
        """Keep this queue up to date first: a page shows it."""
        self._watch.prefer(queue)

    def now(self) -> bytes:
        """The overview as JSON.   Cost: that of what is due, and of `FleetHistory.look`."""
        return records.encode(self._facts(self._watch.look()))

    def _run(self) -> None:
        """Watch until there are no listeners. After an error the pages reconnect, and a new thread starts."""
        try:
            self._watch_on()
        except BaseException:
            with self._mutex:
                self._running = False
                left = [*self._listeners]
            for listener in left:
                listener.close()
            raise

    def _watch_on(self) -> None:
        sent: FleetOverview | None = None
        while True:
            with self._mutex:
                if not self._listeners or self._ending.is_set():
                    self._running = False
                    return
                listeners = [*self._listeners]
            self._wake = self._runtime.flag()
            everything, self._all_at_once = self._all_at_once, False
            found = self._watch.look(now=everything)
            is_new = found is not sent
            sent = found
            data = records.encode(self._facts(found))
            for listener in listeners:
                if is_new or not listener.was_told:
                    listener.tell(data)
            pause_s = max(0.05, self._watch.wait_s())
            until_s = self._runtime.elapsed_s() + pause_s
            for _ in ticks(self._wake, min(WAKE_S, pause_s)):
                if self._runtime.elapsed_s() >= until_s or not self._listeners or self._ending.is_set():
                    break

    def _facts(self, found: FleetOverview) -> dict[str, Any]:
        with self._telling:
            versions = self._watch.versions()
            self._history.look(found, versions["queues"])
            return facts.overview_facts(found, self._history, versions, self._watch.wait_s())


class OverviewStream:
    """One listener: server-sent events, the newest overview each time, and a comment now and then."""

    def __init__(self, feed: OverviewFeed, flag: Callable[[], Flag]) -> None:
        self._feed = feed
        self._new_flag = flag
        self._news = flag()
        self._data: bytes | None = None
        self._closed = False
        self.was_told = False

    def tell(self, data: bytes) -> None:
        """Have the listener get this, instead of what it has not got yet."""
        self._data, self.was_told = data, True
        self._news.set()

    def next(self) -> bytes | None:
        for _ in islice(ticks(self._news, WAKE_S), int(HEARTBEAT_S / WAKE_S)):
            if self._feed.is_ending:
                return None
        if self._closed or self._feed.is_ending:
            return None
        self._news = self._new_flag()
        data, self._data = self._data, None
        return b": still here\n\n" if data is None else b"event: overview\ndata: " + data + b"\n\n"

    def close(self) -> None:
        self._closed = True
        self._news.set()
        self._feed.leave(self)


# ---- requests ----

_Text = Annotated[str, msgspec.Meta(max_length=1 << 20)]
_NameText = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class _RetryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _NameText | None = None
    group: _Text | None = None
    all: bool = False


class _IdBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _NameText


class _PushBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What comes beside the `payload`, which may be any JSON: the body as a whole is bounded."""

    id: _NameText | None = None
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=366 * 86400)] = 0.0


class _SignalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What comes beside the `value`, as in `_PushBody`."""

    id: _NameText
    name: _NameText
    early: bool = False


class _FailuresBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    group: _Text
    most: Annotated[int, msgspec.Meta(ge=1, le=MEMBERS_MAX)]


class _SqlBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sql: Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]


class _TableBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Annotated[list[_NameText], msgspec.Meta(min_length=1, max_length=64)]
    name: _NameText


def demand_own_page(request: Request) -> None:
    """Raises: Rejected (403) for a request that a page of another origin has made a browser send.

    A browser says where a request comes from. A port of this machine is another origin of the same site, so "same-site"
    is not enough. A program says nothing, and is asked for the token only.
    """
    said, origin = request.header(b"sec-fetch-site"), request.header(b"origin")
    is_own = said in (None, "same-origin") or (said == "none" and request.method in ("GET", "HEAD"))
    if said is None and origin is not None:
        is_own = urlsplit(origin).netloc == request.header(b"host")
    if not is_own or (request.method == "POST" and request.header(GUARD_HEADER) is None):
        raise Rejected(403, "ForbiddenException", "only the dashboard's own page may ask this")


def _valued(request: Request, name: str, kind: type[T]) -> tuple[Any, T]:
    """The field of a body that may be any JSON, and the others.   Raises: Invalid."""
    fields = dict(request.fields())
    if name not in fields:
        raise Invalid(f"the body has no {name}", hint=f"send {name} as JSON; null is JSON too")
    value = fields.pop(name)
    try:
        return value, records.converted(fields, kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the body is not valid: {error}") from None


def _json(value: Any) -> Response:
    return Response(200, records.encode(value), (JSON_TYPE,))


# ---- the part ----


class UiPart(ServicePart):
    """The dashboard of a fleet, beside other parts or alone.

    `catalog` is the one of an API in the same process; without it this process reads the catalog itself, and leads it
    for the moment of an undrop.
    """

    def __init__(
        self,
        context: ServiceContext,
        tokens: Tokens,
        catalog: Catalog | None = None,
        *,
        read_only: bool = False,
        limits: Limits | None = None,
        root: bool = False,
    ) -> None:
        """`root`: `/` leads to the dashboard too."""
        self._context = context
        self._fleet = context.fleet
        self._tokens = tokens
        self._catalog = catalog
        self._read_only = read_only
        self._root = root
        self.feed = OverviewFeed(OverviewWatch(context.fleet, limits), context.ending)
        self._rows = ReceiptRows()
        self._mutex = context.runtime.mutex()
        self._queries = 0

    def facts(self) -> dict[str, Any]:
        """Whether the store answers.   Cost: 1 HEAD; none beside an API, which asks by itself."""
        if self._catalog is None and has_store(self._fleet.url):
            self._fleet.store.head(FLEET)
        return {"ui": "/ui"}

    def stop(self) -> None:
        return

    def routes(self) -> list[Route]:
        pages = [Route("GET", path, partial(_file, name), None, quick=True) for path, name in _files().items()]
        to_ui = [Route("GET", path, _to_ui, None, quick=True) for path in ("/ui/", *(("/",) if self._root else ()))]
        return [*self._readings(), *self._actions(), *pages, *to_ui]

    def _readings(self) -> list[Route]:
        fleet = self._fleet
        table = {
            "config": self._config,
            "overview": lambda _: Response(200, self.feed.now(), (JSON_TYPE,)),
            "events": self._events,
            "queue/{queue}": self._queue,
            "queue/{queue}/ended": lambda request: _json(self._ended(request).lately()),
            "queue/{queue}/payloads": lambda request: _json(facts.payload_facts(fleet, request.names[0])),
            "queue/{queue}/task/{id}": lambda request: _json(facts.task_facts(fleet, *request.names)),
            "index/{index}": lambda request: _json(facts.index_facts(fleet, request.names[0])),
            "index/{index}/record/{key}": lambda request: _json(facts.record_facts(fleet, *request.names)),
            "catalog": lambda _: _json(facts.catalog_facts(self._catalog_here())),
            "catalog/difference/{old}/{new}": self._difference,
            "store": lambda _: _json(facts.store_facts(fleet)),
        }
        posts = {
            "queue/{queue}/failures": self._failures,
            "sql": self._sql,
            "refresh": self._refresh,
            "catalog/table": self._table,
        }
        return [
            *(self._route("GET", path, handler, "read") for path, handler in table.items()),
            *(self._route("POST", path, handler, "read") for path, handler in posts.items()),
        ]

    def _actions(self) -> list[Route]:
        table: dict[str, Callable[[Request], Mapping[str, Any]]] = {
            "queue/{queue}/retry": self._retry,
            "queue/{queue}/cancel": self._cancel,
            "queue/{queue}/pause": partial(self._pause, True),
            "queue/{queue}/resume": partial(self._pause, False),
            "queue/{queue}/push": self._push,
            "queue/{queue}/signal": self._signal,
            "queue/{queue}/fail": self._fail,
            "catalog/undrop": self._undrop,
        }
        return [self._route("POST", path, self._acting(handler), "write") for path, handler in table.items()]

    def _route(self, method: str, path: str, handler: Callable[[Request], Response], right: Any) -> Route:
        def guarded(request: Request) -> Response:
            demand_own_page(request)
            return handler(request)

        return Route(method, f"/ui/api/{path}", guarded, self._tokens, right=right)

    def _acting(self, handler: Callable[[Request], Mapping[str, Any]]) -> Callable[[Request], Response]:
        def act(request: Request) -> Response:
            if self._read_only:
                raise Denied("this dashboard is read-only", hint="start `limpet ui` without --read-only")
            done = handler(request)
            log = self._context.log
            log.event("action", text=request.header(b"x-limpet-action") or "", actor=request.caller.name)
            self.feed.refresh()
            return _json(done)

        return act

    # ---- readings ----

    def _config(self, request: Request) -> Response:
        return _json(
            {
                "version": limpet.__version__,
                "url": self._fleet.url,
                "actor": request.caller.name,
                "writes": not self._read_only and "write" in request.caller.rights,
                "tokens": bool(self._tokens),
                "sql": find_spec("duckdb") is not None and find_spec("pyarrow") is not None,
                "catalog": find_spec("pyiceberg") is not None,
                "store": has_store(self._fleet.url),
            }
        )

    def _queue(self, request: Request) -> Response:
        found = facts.queue_facts(self._fleet, request.names[0], self._rows)
        self.feed.prefer(request.names[0])
        return _json(found)

    def _ended(self, request: Request) -> EndedTasks:
        return EndedTasks(self._fleet, request.names[0], self._rows)

    def _failures(self, request: Request) -> Response:
        body = request.struct(_FailuresBody)
        return _json(self._ended(request).members(body.group, body.most))

    def _events(self, request: Request) -> Response:
        stream = None if request.method == "HEAD" else self.feed.listen()
        return Response(200, b"", (STREAM_TYPE, (b"x-accel-buffering", b"no")), stream)

    def _refresh(self, _: Request) -> Response:
        self.feed.refresh()
        return _json({"refreshed": True})

    def _catalog_here(self) -> Catalog:
        return self._catalog or self._fleet.catalog()

    def _table(self, request: Request) -> Response:
        body = request.struct(_TableBody)
        return _json(facts.table_facts(self._catalog_here(), body.namespace, body.name))

    def _difference(self, request: Request) -> Response:
        old, new = (int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0 for text in request.names)
        if not old or not new:
            raise Invalid("a version is a number from 1 on", hint="the history shows those that are kept")
        return _json(facts.difference(self._catalog_here(), old, new))

    def _sql(self, request: Request) -> Response:
        body = request.struct(_SqlBody)
        with self._mutex:
            if self._queries >= QUERIES_MAX:
                raise Unavailable("other queries are running", hint="try again when they have ended")
            self._queries += 1
        try:
            return _json(facts.sql_facts(self._fleet, body.sql))
        finally:
            with self._mutex:
                self._queries -= 1

    # ---- actions ----

    def _retry(self, request: Request) -> dict[str, Any]:
        body, queue = request.struct(_RetryBody), request.names[0]
        if (body.id is not None) + (body.group is not None) + body.all != 1:
            raise Invalid("say which task to retry: one id, one group, or all")
        if body.group is not None:
            return {"retried": facts.retry_group(self._fleet, queue, body.group)}
        handle = self._fleet.queue(queue, create=False)
        return {"retried": [*handle.retry(body.id, all=body.all)]}

    def _cancel(self, request: Request) -> dict[str, Any]:
        body = request.struct(_IdBody)
        return {"cancelled": self._fleet.queue(request.names[0], create=False).cancel(body.id)}

    def _pause(self, paused: bool, request: Request) -> dict[str, Any]:
        request.fields()
        handle = self._fleet.queue(request.names[0], create=False)
        (handle.pause if paused else handle.resume)()
        return {"paused": paused}

    def _push(self, request: Request) -> dict[str, Any]:
        payload, body = _valued(request, "payload", _PushBody)
        handle = self._fleet.queue(request.names[0], create=False)
        pushed = handle.push(payload, id=body.id, delay_s=body.delay_s)
        return {"id": pushed.id, "created": pushed.created}

    def _signal(self, request: Request) -> dict[str, Any]:
        value, body = _valued(request, "value", _SignalBody)
        handle = in_store(self._fleet.queue(request.names[0], create=False), "send a signal")
        who = "dashboard" if request.caller.name in ("", DEFAULT) else request.caller.name
        sender = f"{who} at {self._fleet.runtime.label}"
        sent = handle.send_signal(body.id, body.name, value, early=body.early, sender=sender)
        return {"sent": sent.first, "awaited": sent.awaited}

    def _fail(self, request: Request) -> dict[str, Any]:
        body = request.struct(_IdBody)
        return {"failed": self._fleet.queue(request.names[0], create=False).fail(body.id)}

    def _undrop(self, request: Request) -> dict[str, Any]:
        body = request.struct(_TableBody)
        if self._catalog is not None:
            done = self._catalog.undrop(body.namespace, body.name, actor=request.caller.name)
        else:
            from limpet.catalog.leader import NotLeader

            try:
                with self._fleet.lead_catalog(wait_s=LEAD_S) as catalog:
                    done = catalog.undrop(body.namespace, body.name, actor=request.caller.name)
            except NotLeader as error:
                name = ".".join([*body.namespace, body.name])
                error.hint = f"undrop it at /ui of that service, or: limpet catalog undrop {name} --service URL"
                raise
        return {"metadata_location": done.metadata_location}


# ---- files ----


def _files() -> dict[str, str]:
    names = sorted(each.name for each in (files("limpet.ui") / "static").iterdir() if each.is_file())
    return {"/ui": "index.html"} | {f"/ui/static/{name}": name for name in names if name.rpartition(".")[2] in TYPES}


def _file(name: str, _: Request) -> Response:
    data = (files("limpet.ui") / "static" / name).read_bytes()
    return Response(200, data, ((b"content-type", TYPES[name.rpartition(".")[2]]), *PAGE_HEADERS))


def _to_ui(_: Request) -> Response:
    return Response(307, b"", ((b"location", b"/ui"),))


# ---- the process ----


def ui_beside(context: ServiceContext, tokens: Tokens, catalog: Catalog) -> Sequence[ServicePart]:
    """The dashboard of `limpet serve`."""
    return [UiPart(context, tokens, catalog)]


def serve_ui(
    url: str | None,
    announce: Callable[[str, str, bool], None],
    *,
    host: str,
    port: int,
    token_file: str | None,
    read_only: bool,
    limits: Limits | None,
    log: Form,
) -> None:
    """Serve the dashboard of the fleet at `url` until a signal.

    `announce` gets the address of the dashboard, that of its fleet, and whether a token is needed.
    Raises: Invalid for an address that others can reach, without a token; the error that keeps the fleet from being
    opened: one that is not there is never created.
    """
    runtime = system()
    to_log = ServiceLog(runtime, log)
    environ = {**os.environ, **({f"{UI_TOKEN}_FILE": token_file} if token_file else {})}
    caller = Caller(DEFAULT, frozenset(("read", "write", "metrics")))
    source = source_of(UI_TOKEN, caller, runtime, to_log.warn, environ)
    tokens = Tokens((), *([source] if source is not None else []))
    check_bind(host, {f"{UI_TOKEN} (or --token-file)": bool(tokens)})
    fleet = limpet.open(url_or_default(url), read_only=read_only, create=False).check()
    context = ServiceContext(fleet, runtime, to_log)
    part = UiPart(context, tokens, read_only=read_only, limits=limits, root=True)
    listener = listen(host, port)
    started = partial(announce, f"{address_of(listener)}/ui", absolute(fleet.url), bool(tokens))
    run([part], context, listener, tokens, started, peer_max=PEER_MAX)

"""The Iceberg REST catalog protocol over a `Catalog`: namespaces, tables, views, transactions.

Each handler reads a request, calls one method of the catalog, and writes the response. The table in `Rest.routes` also
says which right a route needs, and in which namespaces; `/v1/config` shows it to clients.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from limpet.catalog.catalog import Catalog, LoadedTable, NamesPage, Sender
from limpet.catalog.iceberg.commits import chosen_places
from limpet.catalog.names import NoSuchTable, NoSuchView, shown
from limpet.catalog.state import ID_LIFETIME
from limpet.kernel.errors import Denied, Invalid, Missing, NotModified, Unsupported
from limpet.service.app import Route
from limpet.service.requests import Rejected, Request, Response, json_response
from limpet.service.sign import (
    DELEGATION_HEADER,
    REMOTE_SIGNING,
    VENDED,
    CredentialSource,
    RequestSigner,
    SignBody,
    delegations,
    signer_config,
    table_path,
)
from limpet.service.tokens import Tokens

SEPARATOR = "\x1f"
PAGE_MAX = 10_000
PAGE_MARK = "after"
KEY_HEADER = b"idempotency-key"
STAGED = "staged"
"""The parameter with the location of a table that is not in the catalog yet."""
REFRESH = "client.refresh-credentials-endpoint"

_NS = "/v1/namespaces/{namespace}"
_TABLE = f"{_NS}/tables/{{table}}"
_VIEW = f"{_NS}/views/{{view}}"
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MINTED_FOLDER = re.compile("-[0-9a-f]{12}(?:/|$)")
_NO_CONTENT = Response(204)


# ---- bodies of requests ----


class _NamespaceBody(msgspec.Struct):
    namespace: list[str]
    properties: dict[str, Any] | None = None


class _PropertiesBody(msgspec.Struct):
    removals: list[str] | None = None
    updates: dict[str, Any] | None = None


class _IdentifierBody(msgspec.Struct):
    namespace: list[str]
    name: str


class _RenameBody(msgspec.Struct):
    source: _IdentifierBody
    destination: _IdentifierBody


class _RegisterBody(msgspec.Struct, rename="kebab"):
    name: str
    metadata_location: str
    overwrite: bool = False


class _TaskBody(msgspec.Struct, rename="kebab"):
    plan_task: str


class _ChangeBody(msgspec.Struct):
    identifier: _IdentifierBody


class _TransactionBody(msgspec.Struct, rename="kebab"):
    table_changes: list[_ChangeBody]


# ---- the namespaces that a request touches ----


def _in_path(request: Request) -> list[list[str]]:
    return [_namespace_of(request)]


def _in_query(request: Request) -> list[list[str]]:
    return [_parent_of(request.query())]


def _parent_of(query: Mapping[str, str]) -> list[str]:
    return query["parent"].split(SEPARATOR) if query.get("parent") else []


def _in_body(request: Request) -> list[list[str]]:
    return [request.struct(_NamespaceBody).namespace]


def _in_rename(request: Request) -> list[list[str]]:
    body = request.struct(_RenameBody)
    return [body.source.namespace, body.destination.namespace]


def _in_transaction(request: Request) -> list[list[str]]:
    return [change.identifier.namespace for change in request.struct(_TransactionBody).table_changes]


# ---- the routes ----


class Rest:
    """The handlers. `config` is what clients need to reach the data; `signer` signs their requests for it, and `issuer`
    issues credentials for it.
    """

    def __init__(
        self,
        catalog: Catalog,
        tokens: Tokens,
        config: Mapping[str, str],
        signer: RequestSigner | None = None,
        issuer: CredentialSource | None = None,
    ) -> None:
        self._catalog = catalog
        self._tokens = tokens
        self._config = config
        self._signer = signer
        self._issuer = issuer

    def routes(self) -> list[Route]:
        """All routes, frequent paths first."""
        read = partial(Route, tokens=self._tokens, right="read", touched=_in_path)
        write = partial(Route, tokens=self._tokens, right="write", touched=_in_path)
        table = self._table(read, write)
        sign = read("POST", f"{_TABLE}/sign", self.sign)  # what it signs may need the right to write too
        credentials = read("GET", f"{_TABLE}/credentials", self.credentials)
        listed = [*table, *([sign] if self._signer else ()), *([credentials] if self._issuer else ())]
        config = {
            "defaults": self._config,
            "overrides": {},
            # as the specification writes them: `{plan-id}`, where a name of ours has no hyphen
            "endpoints": [
                f"{route.method} /v1/{{prefix}}/{route.path.removeprefix('/v1/')}".replace("{plan_id}", "{plan-id}")
                for route in listed
            ],
            "idempotency-key-lifetime": f"PT{int(ID_LIFETIME.total_seconds()) // 60}M",
        }
        answer = json_response(config)
        return [
            read("GET", "/v1/config", lambda _: answer, quick=True, touched=lambda _: ()),
            *table,
            sign,
            credentials,
            read("GET", f"{_NS}/functions", _no_functions),
            read("GET", f"{_NS}/functions/{{function}}", _no_functions),
            write("POST", "/limpet/undrop", self.undrop, touched=_in_body),
            Route("POST", "/v1/oauth/tokens", _no_oauth, None, quick=True),
        ]

    def _table(self, read: Callable[..., Route], write: Callable[..., Route]) -> list[Route]:
        """The routes of the protocol. One without `touched` requires rights in every namespace."""
        has_table = partial(_exists, self._catalog.has_table, NoSuchTable, "Table")
        has_view = partial(_exists, self._catalog.has_view, NoSuchView, "View")
        return [
            read("GET", _TABLE, self.table),
            read("HEAD", _TABLE, has_table),
            write("POST", _TABLE, self.commit_table),
            write("DELETE", _TABLE, self.drop_table),
            read("GET", _NS, self.namespace, sight=True),
            read("HEAD", _NS, self.has_namespace, sight=True),
            write("DELETE", _NS, self.drop_namespace),
            read("GET", f"{_NS}/tables", partial(_listed, self._catalog.tables)),
            write("POST", f"{_NS}/tables", self.create_table),
            read("GET", "/v1/namespaces", self.namespaces, touched=_in_query, sight=True),
            write("POST", "/v1/namespaces", self.create_namespace, touched=_in_body),
            write("POST", f"{_NS}/properties", self.update_properties),
            read("POST", f"{_TABLE}/metrics", self.report_metrics),  # it changes nothing
            read("POST", f"{_TABLE}/plan", self.plan_scan),
            read("GET", f"{_TABLE}/plan/{{plan_id}}", self.plan_result),
            read("DELETE", f"{_TABLE}/plan/{{plan_id}}", has_table),  # no plan is ever running,
            read("POST", f"{_TABLE}/tasks", self.scan_tasks),
            write("POST", f"{_TABLE}/unregister", self.unregister_table),
            # no namespaces: the metadata file may belong to a dropped table of any of them
            write("POST", f"{_NS}/register", self.register_table, touched=None),
            write("POST", "/v1/tables/rename", partial(_renamed, self._catalog.rename_table), touched=_in_rename),
            write("POST", "/v1/transactions/commit", self.commit_transaction, touched=_in_transaction),
            read("GET", f"{_NS}/views", partial(_listed, self._catalog.views)),
            write("POST", f"{_NS}/views", self.create_view),
            read("GET", _VIEW, self.view),
            read("HEAD", _VIEW, has_view),
            write("POST", _VIEW, self.replace_view),
            write("DELETE", _VIEW, self.drop_view),
            write("POST", f"{_NS}/register-view", self.register_view, touched=None),
            write("POST", "/v1/views/rename", partial(_renamed, self._catalog.rename_view), touched=_in_rename),
        ]

    # ---- namespaces ----

    def namespaces(self, request: Request) -> Response:
        """List the namespaces in another one (`parent`), or the top-level ones."""
        query = request.query()
        parent = tuple(_parent_of(query))
        after, limit = _page_of(query)
        page = self._catalog.namespaces(parent, after, limit if request.caller.prefixes is None else None)
        if request.caller.prefixes is not None:  # a page, and the token of the next one, name only what it sees
            names = [name for name in page.names if request.caller.sees([*parent, name])]
            rest = limit is not None and len(names) > limit
            page = NamesPage(names[:limit], names[:limit][-1] if rest else None)
        return json_response({"namespaces": [[*parent, name] for name in page.names], **_next(page)})

    def create_namespace(self, request: Request) -> Response:
        """Create one, with properties."""
        body = request.struct(_NamespaceBody)
        properties = self._catalog.create_namespace(body.namespace, body.properties or {}, **_sender(request))
        return json_response({"namespace": body.namespace, "properties": properties})

    def namespace(self, request: Request) -> Response:
        """Its properties."""
        namespace = _namespace_of(request)
        return json_response({"namespace": namespace, "properties": self._catalog.namespace(namespace)})

    def has_namespace(self, request: Request) -> Response:
        """204 if it exists."""
        self._catalog.namespace(_namespace_of(request))
        return _NO_CONTENT

    def drop_namespace(self, request: Request) -> Response:
        """Drop it, if it is empty."""
        self._catalog.drop_namespace(_namespace_of(request), **_sender(request))
        return _NO_CONTENT

    def update_properties(self, request: Request) -> Response:
        """Set and remove properties. 422 if a property is in both."""
        body = request.struct(_PropertiesBody)
        removals, updates = body.removals or [], body.updates or {}
        for name in removals:
            if name in updates:
                raise Rejected(
                    422, "UnprocessableEntityException", f"the property {name!r} is to be both set and removed"
                )
        done = self._catalog.update_properties(_namespace_of(request), removals, updates, **_sender(request))
        return json_response(done)

    # ---- tables ----

    def create_table(self, request: Request) -> Response:
        """Create a table, or stage it."""
        namespace, fields = _namespace_of(request), request.fields()
        self._check_places(request, _places_in_new(fields))
        made = self._catalog.create_table(namespace, fields, **_sender(request))
        return self._delegated(request, namespace, str(fields.get("name")), made)

    def table(self, request: Request) -> Response:
        """Load it: 304 if the client has this version; with `snapshots=refs` only snapshots with a branch or tag."""
        refs = _choice(request.query(), "snapshots", ("all", "refs")) == "refs"
        known = _etag_known(request, "-refs" if refs else "")
        try:
            found = self._catalog.load_table(*_identifier_of(request), known)
        except NotModified:
            return Response(304, headers=_etag(f"{known}-refs" if refs else str(known)))
        if refs:
            found = LoadedTable(found.metadata_location, _only_refs(found.metadata), found.config, f"{found.etag}-refs")
        return self._delegated(request, *_identifier_of(request), found)

    def commit_table(self, request: Request) -> Response:
        """Commit updates, or create a staged table."""
        fields = request.fields()
        self._check_places(request, chosen_places(fields.get("updates")))
        done = self._catalog.commit_table(*_identifier_of(request), fields, **_sender(request))
        body = {"metadata-location": done.metadata_location, "metadata": msgspec.Raw(done.metadata)}
        return json_response(body, headers=_etag(done.etag))

    def drop_table(self, request: Request) -> Response:
        """Drop it; with `purgeRequested`, also delete its files."""
        purge = _choice(request.query(), "purgeRequested", ("false", "true")) == "true"
        self._catalog.drop_table(*_identifier_of(request), purge=purge, **_sender(request))
        return _NO_CONTENT

    def register_table(self, request: Request) -> Response:
        """Register a table by the location of its metadata."""
        body, namespace = request.struct(_RegisterBody), _namespace_of(request)
        where = namespace, body.name, body.metadata_location
        made = self._catalog.register_table(*where, overwrite=body.overwrite, **_sender(request))
        return self._delegated(request, namespace, body.name, made)

    def unregister_table(self, request: Request) -> Response:
        """Drop a table, and answer with its last metadata, so that another catalog can register it."""
        last = self._catalog.unregister_table(*_identifier_of(request), **_sender(request))
        return json_response({"metadata-location": last.metadata_location, "metadata": msgspec.Raw(last.metadata)})

    def report_metrics(self, request: Request) -> Response:
        """Accept and ignore a report of a scan or commit. Clients also send one for a table that is only staged."""
        request.fields()
        return _NO_CONTENT

    def plan_scan(self, request: Request) -> Response:
        """Plan a scan: the files to read, or tasks that name them. Plans are made at once, and nothing is kept."""
        asked = request.fields() if request.body else {}
        return self._planned(self._catalog.plan_scan, request, asked, (400, "BadRequestException"))

    def plan_result(self, request: Request) -> Response:
        """The same plan again: its id has the request."""
        return self._planned(self._catalog.plan_scan, request, request.names[2], (404, "NoSuchPlanIdException"))

    def scan_tasks(self, request: Request) -> Response:
        """The files of one task of a plan."""
        task = request.struct(_TaskBody).plan_task
        return self._planned(self._catalog.scan_tasks, request, task, (404, "NoSuchPlanTaskException"))

    def _planned(
        self, plan: Callable[..., dict[str, Any]], request: Request, asked: Any, missing: tuple[int, str]
    ) -> Response:
        """A plan, or a part of one; `missing`: the answer if its snapshot, its id or the task is not there."""
        try:
            return json_response(plan(*_identifier_of(request), asked))
        except NoSuchTable:
            raise
        except Missing as error:
            raise Rejected(*missing, str(error)) from None

    def commit_transaction(self, request: Request) -> Response:
        """Commit to several tables: all or none."""
        changes = request.fields().get("table-changes")
        for change in changes if isinstance(changes, list) else ():
            if isinstance(change, dict):
                self._check_places(request, chosen_places(change.get("updates")))
        self._catalog.commit_transaction(changes, **_sender(request))
        return _NO_CONTENT

    # ---- access to data ----

    def sign(self, request: Request) -> Response:
        """Sign an S3 request of a client for a file of this table. A token that may only read cannot write one."""
        if self._signer is None:
            raise Unsupported("this service does not sign requests", hint="start it with --remote-signing")
        body = request.struct(SignBody)
        folders = self._folders(request, *_identifier_of(request), request.query().get(STAGED))
        return json_response(self._signer.sign(body, folders, may_write="write" in request.caller.rights))

    def credentials(self, request: Request) -> Response:
        """A short-lived credential for the files of this table. One for a token that may only read cannot write."""
        if self._issuer is None:
            raise Unsupported(
                "this service does not issue credentials", hint="start it with --sts-role-arn, or use remote signing"
            )
        folders = self._folders(request, *_identifier_of(request), request.query().get(STAGED), in_policy=True)
        found = self._issuer.storage_credentials(folders, may_write="write" in request.caller.rights)
        return json_response({"storage-credentials": found})

    def _folders(
        self, request: Request, namespace: list[str], name: str, staged: str | None, *, in_policy: bool = False
    ) -> tuple[str, ...]:
        """The folders of a table, or the one where the client has staged it. To stage one is to write.

        Raises: NoSuchTable; Denied; see `Catalog.table_folders` and `staged_folders`.
        """
        try:
            return self._catalog.table_folders(namespace, name, in_policy=in_policy)
        except NoSuchTable:
            if staged is None:
                raise
        if "write" not in request.caller.rights:
            raise Denied(f"the token {request.caller.name!r} may only read, and the table does not exist")
        self._check_places(request, [staged])
        return self._catalog.staged_folders(namespace, name, staged)

    def _delegated(self, request: Request, namespace: list[str], name: str, found: LoadedTable) -> Response:
        """A table; with a credential, or the settings for remote signing, if the client asks for one of them.

        A staged table is not in the catalog: its client sends the location along, and is asked for the right to write.
        """
        asked = delegations(request.header(DELEGATION_HEADER))
        issuer = self._issuer if VENDED in asked else None
        if issuer is None and (self._signer is None or REMOTE_SIGNING not in asked):
            return _loaded(found)
        staged = None if found.metadata_location else str(msgspec.json.decode(found.metadata)["location"])
        path, query = table_path(namespace, name), f"?{STAGED}={quote(staged, safe='')}" if staged else ""
        config = signer_config(path, f"sign{query}", request.caller.name)
        more: dict[str, Any] = {}
        if issuer is not None:
            folders = self._folders(request, namespace, name, staged, in_policy=True)
            may_write = "write" in request.caller.rights
            [issued] = more["storage-credentials"] = issuer.storage_credentials(folders, may_write=may_write)
            config = {**issued["config"], REFRESH: f"{path}/credentials{query}"}
        return _loaded(
            LoadedTable(found.metadata_location, found.metadata, {**found.config, **config}, found.etag), more
        )

    def _check_places(self, request: Request, places: Iterable[Any]) -> None:
        """With remote signing or issued credentials, a token for some namespaces cannot choose folders: they may hold
        files of a dropped table of another namespace. It may name folders that the catalog made: they are random.
        `places` are values of JSON; what is not a string is refused later.

        Raises: Denied.
        """
        if (self._signer is None and self._issuer is None) or request.caller.prefixes is None:
            return
        inside = f"{self._catalog.warehouse.url}/"
        for text in places:
            is_inside = isinstance(text, str) and text.startswith(inside)
            if is_inside and not _MINTED_FOLDER.search(text.removeprefix(inside)):
                raise Denied(
                    f"the token {request.caller.name!r} is for some namespaces and cannot choose a folder",
                    hint="leave the location out",
                )

    # ---- views ----

    def create_view(self, request: Request) -> Response:
        """Create a view."""
        self._check_places(request, _places_in_new(request.fields()))
        return _loaded(self._catalog.create_view(_namespace_of(request), request.fields(), **_sender(request)))

    def view(self, request: Request) -> Response:
        """Load it: 304 if the client has this version."""
        known = _etag_known(request)
        try:
            return _loaded(self._catalog.load_view(*_identifier_of(request), known))
        except NotModified:
            return Response(304, headers=_etag(str(known)))

    def register_view(self, request: Request) -> Response:
        """Register a view by the location of its metadata."""
        body = request.struct(_RegisterBody)
        where = _namespace_of(request), body.name, body.metadata_location
        return _loaded(self._catalog.register_view(*where, **_sender(request)))

    def replace_view(self, request: Request) -> Response:
        """Commit updates to a view."""
        self._check_places(request, chosen_places(request.fields().get("updates")))
        return _loaded(self._catalog.replace_view(*_identifier_of(request), request.fields(), **_sender(request)))

    def drop_view(self, request: Request) -> Response:
        """Drop it."""
        self._catalog.drop_view(*_identifier_of(request), **_sender(request))
        return _NO_CONTENT

    # ---- beyond the protocol ----

    def undrop(self, request: Request) -> Response:
        """`POST /limpet/undrop {namespace, name}`: restore the table or view that was dropped last."""
        body = request.struct(_IdentifierBody)
        return _loaded(self._catalog.undrop(body.namespace, body.name, **_sender(request)))


def _no_oauth(_: Request) -> Response:
    said = "limpet does not issue tokens: configure the client with one of the service's tokens, as `token`"
    return json_response({"error": "unsupported_grant_type", "error_description": said}, 400)


def _no_functions(_: Request) -> Response:
    """406: there are no functions."""
    raise Unsupported("limpet has no functions", hint="define them in the engine")


# ---- reading requests ----


def _places_in_new(fields: Mapping[str, Any]) -> Iterator[Any]:
    yield fields.get("location")
    properties = fields.get("properties")
    yield from properties.values() if isinstance(properties, dict) else ()


def _namespace_of(request: Request) -> list[str]:
    return request.names[0].split(SEPARATOR)


def _identifier_of(request: Request) -> tuple[list[str], str]:
    return _namespace_of(request), request.names[1]


def _sender(request: Request) -> Sender:
    """The Idempotency-Key of a request, and the name of its sender.   Raises: Invalid for a key that is not a UUID."""
    key = request.header(KEY_HEADER)
    if key is not None and not _UUID.fullmatch(key := key.lower()):
        raise Invalid("the Idempotency-Key is not a UUID", hint="send a UUIDv7 in its 36 characters")
    return {"id_": key, "actor": request.caller.name}


def _choice(query: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """A field of the query with a fixed set of values; the first is the default.   Raises: Invalid."""
    value = query.get(name, choices[0]).lower()
    if value not in choices:
        raise Invalid(f"{name} is {value!r}", hint=f"it can be {' or '.join(choices)}")
    return value


def _page_of(query: Mapping[str, str]) -> tuple[str, int | None]:
    """The start of a page and its maximum length (None: no limit).   Raises: Invalid."""
    token, size = query.get("pageToken", ""), query.get("pageSize")
    after = _after_of(token) if token else ""
    if size is None:
        return after, PAGE_MAX if "pageToken" in query else None
    if not size.isascii() or not size.isdigit() or not 1 <= len(size) <= 9 or int(size) < 1:
        raise Invalid("pageSize must be a whole number above 0")
    return after, min(int(size), PAGE_MAX)


def _after_of(token: str) -> str:
    """The name after which a page begins.   Raises: Invalid for a token that this service did not issue."""
    try:
        mark, _, after = urlsafe_b64decode(token.encode("ascii")).decode().partition(":")
    except ValueError:
        mark, after = "", ""
    if mark != PAGE_MARK or not after or token != _token_of(after):
        raise Invalid(f"Invalid pageToken: {token[:100]!r}", hint="start again without a token")
    return after


def _token_of(after: str) -> str:
    return urlsafe_b64encode(f"{PAGE_MARK}:{after}".encode()).decode()


def _etag_known(request: Request, suffix: str = "") -> str | None:
    """The version that the client has, for the kind of response that it requests; None if it has none."""
    for part in (request.header(b"if-none-match") or "").split(","):
        tag = part.strip().removeprefix("W/").strip('"')
        if tag and tag.endswith(suffix):
            return tag.removesuffix(suffix) if suffix else tag
    return None


# ---- writing answers ----


def _next(page: NamesPage) -> dict[str, str | None]:
    return {"next-page-token": _token_of(page.next) if page.next else None}


def _listed(names_in: Callable[..., NamesPage], request: Request) -> Response:
    """List the tables, or the views, in a namespace."""
    namespace = _namespace_of(request)
    page = names_in(namespace, *_page_of(request.query()))
    found = [{"namespace": namespace, "name": name} for name in page.names]
    return json_response({"identifiers": found, **_next(page)})


def _exists(has: Callable[[list[str], str], bool], missing: type[Missing], kind: str, request: Request) -> Response:
    """204 if the table or view exists."""
    namespace, name = _identifier_of(request)
    if not has(namespace, name):
        raise missing(f"{kind} does not exist: {shown(tuple(namespace), name)}")
    return _NO_CONTENT


def _renamed(rename: Callable[..., None], request: Request) -> Response:
    """Rename a table or a view."""
    body = request.struct(_RenameBody)
    source, target = (body.source.namespace, body.source.name), (body.destination.namespace, body.destination.name)
    rename(source, target, **_sender(request))
    return _NO_CONTENT


def _loaded(found: LoadedTable, more: Mapping[str, Any] | None = None) -> Response:
    body = {"metadata-location": found.metadata_location} if found.metadata_location else {}
    fields = {**body, "metadata": msgspec.Raw(found.metadata), "config": found.config, **(more or {})}
    return json_response(fields, headers=_etag(found.etag))


def _etag(tag: str) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"etag", f'"{tag}"'.encode()),) if tag else ()


def _only_refs(metadata: bytes) -> bytes:
    fields = msgspec.json.decode(metadata)
    named = {ref["snapshot-id"] for ref in (fields.get("refs") or {}).values()}
    fields["snapshots"] = [each for each in fields.get("snapshots") or () if each["snapshot-id"] in named]
    return msgspec.json.encode(fields)

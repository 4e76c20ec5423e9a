"""Tables and views of another catalog (REST, SQL, Glue, or any that PyIceberg opens), registered in this one.

Only names and locations of metadata are taken from the other catalog; no data is copied, and it is not changed. So the
files of a table or view must be in this warehouse already, as for every registration. An import that was interrupted is
started again: what is here already is left as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import pyiceberg.exceptions
from pyiceberg.catalog import Catalog as PyCatalog
from pyiceberg.catalog import CatalogType, infer_catalog_type, load_catalog
from pyiceberg.catalog.rest import Endpoints, IdentifierKind, RestCatalog
from pyiceberg.utils.config import Config, merge_config
from requests import PreparedRequest, Response, Session

from limpet.catalog.catalog import Catalog
from limpet.catalog.entries import Draft, draft_registered
from limpet.catalog.names import Content, NoSuchTable, NoSuchView
from limpet.catalog.warehouse import Document, Warehouse
from limpet.kernel.errors import Conflict, Corrupt, Denied, Invalid, Missing, Unavailable, Unsupported
from limpet.kernel.wording import many

NAMESPACES_MAX = 1_000_000
LEVELS_MAX = 32
LOCATION_CHARACTERS_MAX = 4096
PAGES_MAX = 10_000
"""Pages of one listing."""
ANSWER_S = 60.0
"""How long a REST catalog may take between two parts of an answer."""
ANSWER_BYTES_MAX = 256 << 20
"""Of one answer, or of all pages of one listing."""
PART_BYTES = 1 << 16
FROM_SERVER = ("prefix", "uri")
"""The settings that a REST catalog may choose for its clients."""

GLUE = "glue://"

Outcome = Literal["imported", "present", "differs", "failed"]
_KINDS: Mapping[Content, str] = {"t": "table", "v": "view"}


def _driver_errors() -> Iterator[type[Exception]]:
    with suppress(ImportError):  # only a SQL catalog needs it
        from sqlalchemy.exc import SQLAlchemyError

        yield SQLAlchemyError
    with suppress(ImportError):  # only Glue needs it
        from botocore.exceptions import BotoCoreError, ClientError

        yield from (BotoCoreError, ClientError)


_UNREADABLE: tuple[type[Exception], ...] = (
    *(kind for kind in vars(pyiceberg.exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, NotImplementedError, RuntimeError),
    *_driver_errors(),
)
"""What PyIceberg and its clients raise for a catalog that cannot be read."""
_OF_ONE_TABLE = (Conflict, Corrupt, Denied, Invalid, Missing, Unsupported)
"""Errors after which the import goes on with the next table."""


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """What became of one table or view of the other catalog, or of a namespace that cannot be listed.

    `imported`: it was registered, or would be. `present`: it was imported before. `differs`: a table or view of this
    name is here, and it is not this one, or another version of it. `failed`: for `reason`.
    """

    namespace: tuple[str, ...]
    name: str
    outcome: Outcome
    location: str = ""
    reason: str = ""
    kind: str = "table"


class ImportWriter(Protocol):
    """Writes to this catalog: this process, or a service."""

    def create_namespace(self, namespace: Sequence[str], properties: Mapping[str, str]) -> object:
        """Create it.   Raises: Conflict if it exists; Invalid."""

    def register_table(self, namespace: Sequence[str], name: str, metadata_location: str) -> object:
        """Register a table.   Raises: Conflict; Invalid; Missing."""

    def register_view(self, namespace: Sequence[str], name: str, metadata_location: str) -> object:
        """Register a view.   Raises: Conflict; Invalid; Missing."""


class SourceCatalog:
    """Another catalog; `glue://REGION` is that of an AWS account. `options`: settings of PyIceberg, as `warehouse`; its
    configuration file and environment variables for a catalog of that `name` count too, so that secrets need not be
    on a command line.

    Each method raises Unavailable if the catalog cannot be read.
    """

    def __init__(self, uri: str, name: str = "default", options: Mapping[str, str] | None = None) -> None:
        scheme, _, path = uri.partition(":///")
        if scheme.startswith("sqlite") and path and not os.path.exists(path):
            raise Invalid(f"there is no file {path!r:.200}", hint="write sqlite:////absolute/path.db")
        self.uri = uri
        settings = {"init_catalog_tables": "false", **(options or {}), "uri": uri}
        if uri.startswith(GLUE):
            region = uri.removeprefix(GLUE)
            settings |= {"type": "glue", **({"glue.region": region} if region else {})}
        with _reading(f"the catalog at {_hidden(uri)} cannot be opened"):
            self._catalog = _opened(name, settings)

    def close(self) -> None:
        """Close its connections."""
        self._catalog.close()

    def namespaces(self) -> Iterator[tuple[tuple[str, ...], dict[str, str], str]]:
        """Every namespace with its properties, and why those inside cannot be listed; parents first.

        Raises: Unavailable if the outermost ones cannot be listed; Invalid for too many.
        """
        waiting: list[tuple[str, ...]] = [()]
        met: set[tuple[str, ...]] = set()
        while waiting:
            parent = waiting.pop()
            problem = ""
            inner: list[tuple[str, ...]] = []
            try:
                with _reading(f"the namespaces of {_hidden(self.uri)} cannot be listed"):
                    inner = sorted({tuple(map(str, each)) for each in self._catalog.list_namespaces(parent)})
            except Unavailable as error:
                if not parent:
                    raise
                problem = _short(error)
            for each in reversed(inner):
                if each[:-1] == parent and each not in met and len(each) <= LEVELS_MAX:
                    met.add(each)
                    waiting.append(each)
            if len(met) > NAMESPACES_MAX:
                raise Invalid(f"{_hidden(self.uri)} has more than {NAMESPACES_MAX:,} namespaces")
            if parent:
                yield parent, self._properties(parent), problem

    def _properties(self, namespace: tuple[str, ...]) -> dict[str, str]:
        try:
            found = self._catalog.load_namespace_properties(namespace)
            return {str(name): str(value) for name, value in found.items() if name != "exists"}
        except _UNREADABLE:  # a namespace of a SQL catalog may be nothing but a part of a name
            return {}

    def names(self, kind: Content, namespace: tuple[str, ...]) -> list[str]:
        """The names of its tables, or of its views: none where the catalog has no views."""
        with _reading(f"the {_KINDS[kind]}s of {'.'.join(namespace)!r:.200} cannot be listed"):
            try:
                found = (self._catalog.list_tables if kind == "t" else self._catalog.list_views)(namespace)
            except NotImplementedError:
                found = []
            return sorted({str(each[-1]) for each in found})

    def location(self, kind: Content, namespace: tuple[str, ...], name: str) -> str:
        """The location of the current metadata of a table or view, which is not parsed.   Raises: Unavailable."""
        identifier, catalog = (*namespace, name), self._catalog
        with _reading(f"{'.'.join(identifier)!r:.200} cannot be loaded"):
            if isinstance(catalog, RestCatalog):
                return _text(_rest_location(catalog, kind, identifier))
            if hasattr(catalog, "engine"):
                return _text(_sql_location(catalog, namespace, name))
            if hasattr(catalog, "_get_glue_table"):
                return _text(catalog._get_glue_table(".".join(namespace), name)["Parameters"]["metadata_location"])
            return _text(catalog.load_table(identifier).metadata_location)


def _opened(name: str, settings: Mapping[str, str]) -> PyCatalog:
    """The catalog that PyIceberg opens with these settings; a REST catalog is a `BoundedRestCatalog`."""
    merged = merge_config(Config().get_catalog_config(name) or {}, dict(settings))
    if "py-catalog-impl" in settings:
        return load_catalog(name, **settings)
    kind = CatalogType(str(merged["type"]).lower()) if merged.get("type") else infer_catalog_type(name, merged)
    return BoundedRestCatalog(name, merged) if kind is CatalogType.REST else load_catalog(name, **settings)


class BoundedRestCatalog(RestCatalog):
    """A REST catalog that is not trusted: it chooses neither code nor secrets, its answers are small, its listings end.

    PyIceberg takes any setting from the server: one names a Python function that the client calls, another one the
    server that the client sends its secret to. It also reads an answer of any size, and follows any page.
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._pages: set[str] = set()
        self._listed = 0
        super().__init__(name, **settings)

    def _fetch_config(self) -> None:
        own = dict(self.properties)
        super()._fetch_config()
        theirs = {name: self.properties[name] for name in FROM_SERVER if isinstance(self.properties.get(name), str)}
        self.properties = {**own, **theirs}

    def _create_session(self) -> Session:
        session = super()._create_session()
        session.request = partial(self._request, session.request)  # type: ignore[method-assign]  # of this session alone
        for adapter in session.adapters.values():
            adapter.send = partial(self._send, adapter.send)  # type: ignore[method-assign]  # likewise
        return session

    def _request(self, request: Callable[..., Response], method: str, url: str, **options: Any) -> Response:
        page = (options.get("params") or {}).get("pageToken")
        if page is not None:
            if page in self._pages or len(self._pages) == PAGES_MAX:
                raise ValueError(f"its pages do not end: {page!r:.60} after {many(len(self._pages), 'page')}")
            self._pages.add(page)
        elif method == "GET":  # a token is asked for in the middle of a listing
            self._pages, self._listed = set(), 0
        return request(method, url, **{"timeout": ANSWER_S, **options})

    def _send(self, send: Callable[..., Response], request: PreparedRequest, **options: Any) -> Response:
        """Send a request, also one after a redirect, and read the answer.   Raises: ValueError if it is too long."""
        answer = send(request, **{**options, "stream": True})
        parts: list[bytes] = []
        for part in answer.iter_content(PART_BYTES):
            parts.append(part)
            self._listed += len(part)
            if self._listed > ANSWER_BYTES_MAX:
                answer.close()
                raise ValueError(f"it answers with more than {ANSWER_BYTES_MAX >> 20} MiB")
        answer._content = b"".join(parts)
        return answer


def _rest_location(catalog: RestCatalog, kind: Content, identifier: tuple[str, ...]) -> Any:
    endpoint = Endpoints.load_table if kind == "t" else Endpoints.load_view
    names = catalog._split_identifier_for_path(identifier, IdentifierKind.TABLE if kind == "t" else IdentifierKind.VIEW)
    answer = catalog._session.get(
        catalog.url(endpoint, prefixed=True, **names), params={"snapshots": "refs"} if kind == "t" else None
    )
    answer.raise_for_status()
    return answer.json()["metadata-location"]


def _sql_location(catalog: Any, namespace: tuple[str, ...], name: str) -> Any:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select
    from sqlalchemy.orm import Session

    with Session(catalog.engine) as session:
        return session.scalar(
            select(IcebergTables.metadata_location).where(
                IcebergTables.catalog_name == catalog.name,
                IcebergTables.table_namespace == ".".join(namespace),
                IcebergTables.table_name == name,
            )
        )


def _text(location: Any) -> str:
    if not isinstance(location, str) or not location or len(location) > LOCATION_CHARACTERS_MAX:
        raise ValueError(f"its metadata location is {location!r:.100}")
    return location


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise Unavailable(f"{what}: {_short(error)}", hint="check the URI, --name and --option") from None


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _hidden(uri: str) -> str:
    """A URI without user and password."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"[:200]


def import_tables(
    source: SourceCatalog, catalog: Catalog, writing: Callable[[], AbstractContextManager[ImportWriter]] | None
) -> Iterator[ImportedTable]:
    """Register all tables, then all views of each namespace of `source` in `catalog`; without `writing`, only compare.

    A namespace that cannot be listed is reported, and the import goes on with the next one. `source` is closed at the
    end.
    Raises: Unavailable; NotLeader; OutcomeUnknown: then start it again.
    Cost: for each table or view 1 request to the source, 1 GET of the head, 1 GET of the metadata; for a new one also a
    registration (`Catalog.register_table`). Crash: those so far are registered.
    """
    with closing(source), writing() if writing is not None else nullcontext() as writer:
        for namespace, properties, unlisted in source.namespaces():
            names: list[tuple[Content, str]] = []
            for kind in _KINDS:
                try:
                    names += [(kind, name) for name in source.names(kind, namespace)]
                except Unavailable as error:
                    unlisted = unlisted or _short(error)
            if unlisted:
                yield ImportedTable(namespace[:-1], namespace[-1], "failed", reason=unlisted, kind="namespace")
            problem = _make(writer, namespace, _fitting(catalog.warehouse, properties)) if writer is not None else ""
            for kind, name in names:
                if problem:
                    yield ImportedTable(namespace, name, "failed", reason=problem, kind=_KINDS[kind])
                else:
                    yield _imported(source, catalog, writer, kind, namespace, name)


def _make(writer: ImportWriter, namespace: tuple[str, ...], properties: Mapping[str, str]) -> str:
    """Create a namespace unless it exists, without properties if they are too many; returns why that cannot be."""
    problem = ""
    for given in (properties, {}):
        try:
            writer.create_namespace(namespace, given)
        except Conflict:
            return ""
        except _OF_ONE_TABLE as error:
            problem = _short(error)
        else:
            return ""
    return problem


def _fitting(warehouse: Warehouse, properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a namespace that are allowed here: not a location outside of this warehouse."""
    kept: dict[str, str] = {}
    for name, value in properties.items():
        with suppress(Invalid):
            warehouse.check_properties({name: value})
            kept[name] = value
    return kept


def _imported(
    source: SourceCatalog,
    catalog: Catalog,
    writer: ImportWriter | None,
    kind: Content,
    namespace: tuple[str, ...],
    name: str,
) -> ImportedTable:
    location = reason = ""
    outcome: Outcome = "failed"
    try:
        location = catalog.warehouse.canonical(source.location(kind, namespace, name))
        wanted = draft_registered(kind, catalog.warehouse, location)
        outcome = (_compared if kind == "t" else _compared_view)(catalog, namespace, name, wanted)
        if outcome == "differs":
            reason = f"a {_KINDS[kind]} of this name is here, with other metadata"
        elif outcome == "imported" and writer is not None:
            (writer.register_table if kind == "t" else writer.register_view)(namespace, name, location)
    except Unavailable as error:
        if location:
            raise
        reason = _short(error)
    except _OF_ONE_TABLE as error:
        outcome, reason = "failed", _short(error)
    return ImportedTable(namespace, name, outcome, location, reason, _KINDS[kind])


def _compared(catalog: Catalog, namespace: tuple[str, ...], name: str, wanted: Draft) -> Outcome:
    """`wanted`: what a registration writes; the name of its metadata file has a digest of it.

    So a table whose metadata is that file, or has it in its log, was imported before.
    """
    try:
        found = catalog.load_table(namespace, name)
    except NoSuchTable:
        return "imported"
    log = Document(found.metadata).json().get("metadata-log") or ()
    before = [entry.get("metadata-file") for entry in log if isinstance(entry, Mapping)]
    here = (found.metadata_location, *before)
    return "present" if catalog.warehouse.location(wanted.entry.path) in here else "differs"


def _compared_view(catalog: Catalog, namespace: tuple[str, ...], name: str, wanted: Draft) -> Outcome:
    """A view that has all versions of the other one was imported before; it may have newer ones."""
    try:
        found = Document(catalog.load_view(namespace, name).metadata).json()
    except NoSuchView:
        return "imported"
    other = wanted.document.json()
    is_same = found["view-uuid"] == other["view-uuid"]
    return "present" if is_same and all(each in found["versions"] for each in other["versions"]) else "differs"

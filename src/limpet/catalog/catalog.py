"""The catalog as the service and Python users call it: namespaces, tables and views, as in Iceberg's REST protocol.

Requests and answers are plain Python values; metadata is passed through as bytes. Every write takes an id, which makes
it idempotent: the same request with the same id gets the same answer again, and is done once. `actor` is the name of
the sender, for the log only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, TypedDict, Unpack

import msgspec

from limpet.catalog import commit, entries, history
from limpet.catalog.commit import PreparedCommit, WorkedMetadata
from limpet.catalog.leader import Decide, Documents, Grant, Leader, NeedsMetadata, NotLeader
from limpet.catalog.names import (
    Content,
    Entry,
    Kind,
    Namespace,
    check_apart,
    check_free,
    check_name,
    check_namespace,
    check_namespace_exists,
    check_not_of_others,
    children,
    entry_in,
    find_entry,
    key_of,
    name_in,
    parsed,
    reserve,
    shown,
)
from limpet.catalog.records import CommitRecord
from limpet.catalog.state import MINTED, PURGED, CatalogState, scoped
from limpet.catalog.storage import CatalogStorage, newest_head
from limpet.catalog.warehouse import FILES_AT_ONCE, Warehouse
from limpet.kernel import records
from limpet.kernel.errors import (
    Corrupt,
    Invalid,
    LimpetError,
    Missing,
    NotModified,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.waiting import attempts

_sorted_bytes = msgspec.json.Encoder(order="sorted").encode

PLANS_MAX = 4
MANIFEST_BYTES_MAX = 32 << 20
ID_CHARACTERS_MAX = 200
LAST_PAGES_MAX = 3
"""A folder that still has files after so many listings that showed all of them is being written to."""


class Sender(TypedDict, total=False):
    """Who sends a request, and its id: the same request with the same id is done once."""

    id_: str | None
    actor: str


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table or view: the location of its metadata (None if it is only staged), its bytes, and client settings."""

    metadata_location: str | None
    metadata: bytes
    config: Mapping[str, str]
    etag: str


@dataclass(frozen=True, slots=True)
class NamesPage:
    """Sorted names; `next` is the `after` of the next page, None on the last page."""

    names: Sequence[str]
    next: str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `Catalog.verify`: the chain, the number of metadata files that were read, how many of them have no
    digest (written by version 0.1), and which are damaged."""

    chain: history.ChainCheck
    files: int
    undigested: int = 0
    damaged: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """All problems."""
        return (*self.chain.faults, *self.damaged)

    @property
    def broken(self) -> str | None:
        """The first problem; None if there is none."""
        return self.faults[0] if self.faults else None


class Catalog:
    """One catalog. Without a `leader` it is read-only. Thread-safe.

    Every write takes the keywords `id_` (the same request with the same id is done once) and `actor` (the name of the
    sender, for the log). It also raises Invalid; NotLeader (nothing was attempted); OutcomeUnknown. It costs a share of
    a batch: 1 ledger PUT and 1 publication for all requests of a group.
    """

    def __init__(self, storage: CatalogStorage, warehouse: Warehouse, leader: Leader | None = None) -> None:
        self.storage = storage
        self.warehouse = warehouse
        self.leader = leader
        self.view = storage.view
        self._plans = storage.runtime.mutex()
        self._planning = 0

    # ---- namespaces ----

    def namespaces(self, parent: Sequence[str] = (), after: str = "", limit: int | None = None) -> NamesPage:
        """The names of the namespaces in another one, or at the top level.   Raises: NoSuchNamespace.   Cost: 1 GET."""
        return self._page("n", check_namespace(parent) if parent else (), after, limit)

    def namespace(self, namespace: Sequence[str]) -> dict[str, str]:
        """Its properties.   Raises: NoSuchNamespace.   Cost: 1 GET."""
        return dict(entries.properties_of(self._state(), check_namespace(namespace)))

    def create_namespace(
        self, namespace: Sequence[str], properties: Mapping[str, str] | None = None, **sender: Unpack[Sender]
    ) -> dict[str, str]:
        """Create it in an existing parent; returns its properties.   Raises: AlreadyExists; NoSuchNamespace."""
        levels = check_namespace(namespace)
        checked = entries.check_namespace_properties(self.warehouse, properties or {})
        self._commit(
            ("create namespace", levels, checked), partial(entries.create_namespace, levels, checked), **sender
        )
        return checked

    def drop_namespace(self, namespace: Sequence[str], **sender: Unpack[Sender]) -> None:
        """Drop it, if it is empty.   Raises: NoSuchNamespace; NamespaceNotEmpty."""
        levels = check_namespace(namespace)
        self._commit(("drop namespace", levels), partial(entries.drop_namespace, levels), **sender)

    def update_properties(
        self, namespace: Sequence[str], removals: object = (), updates: object = None, **sender: Unpack[Sender]
    ) -> dict[str, list[str]]:
        """Set and remove properties; returns the names that were `updated`, `removed` and `missing`.

        Raises: NoSuchNamespace; Invalid, also for a name that is both set and removed.
        """
        levels = check_namespace(namespace)
        if not isinstance(removals, list | tuple) or not all(isinstance(name, str) for name in removals):
            raise Invalid("removals must be a list of names")
        gone: list[str] = records.plain(list(dict.fromkeys(removals)), what="removals")  # they come back in the answer
        checked = entries.check_namespace_properties(self.warehouse, updates or {})
        if both := [name for name in gone if name in checked]:
            raise Invalid(f"the property {both[0]!r} is both set and removed")
        decide = partial(entries.update_namespace, levels, gone, checked)
        result: dict[str, list[str]] = self._commit(("set properties", levels, gone, checked), decide, **sender)
        return result

    # ---- tables ----

    def tables(self, namespace: Sequence[str], after: str = "", limit: int | None = None) -> NamesPage:
        """The names of the tables in a namespace.   Raises: NoSuchNamespace.   Cost: 1 GET."""
        return self._page("t", check_namespace(namespace), after, limit)

    def has_table(self, namespace: Sequence[str], name: str) -> bool:
        """Whether there is such a table.   Cost: 1 GET."""
        return find_entry(self._state(), "t", *_identifier(namespace, name)) is not None

    def folders(self, namespace: Sequence[str], name: str) -> tuple[str, ...]:
        """The folders of a table, as paths below the warehouse.   Raises: NoSuchTable.   Cost: 1 GET."""
        return entry_in(self._state(), "t", *_identifier(namespace, name)).roots()

    def load_table(self, namespace: Sequence[str], name: str, etag: str | None = None) -> LoadedTable:
        """The current table. Raises: NoSuchTable; NoSuchNamespace; NotModified, if it still has that `etag`.

        Cost: 1 conditional GET of the head, and 1 GET of the metadata unless it is in memory.
        """
        return self._load("t", *_identifier(namespace, name), etag)[0]

    def open_table(self, namespace: Sequence[str], name: str) -> tuple[LoadedTable, Callable[[str, int], bytes]]:
        """The current table, and a function that reads a file, by its URL and its maximal size.

        The function raises Invalid for a file outside the warehouse, or in a folder of another table (F29), and what
        `Warehouse.data` raises.   Raises, cost: as `load_table`.
        """
        loaded, state, own = self._load("t", *_identifier(namespace, name), None)

        def fetch(url: str, size_max: int) -> bytes:
            path = self.warehouse.data_path(url)
            check_not_of_others(state, path, own)
            return self.warehouse.data(path, size_max=size_max)

        return loaded, fetch

    def table_folders(self, namespace: Sequence[str], name: str, *, in_policy: bool = False) -> tuple[str, ...]:
        """The folders of a table, as paths below the warehouse; no other table's files are in them.

        `in_policy`: for the policy of a credential, in which stores may ignore upper and lower case.
        Raises: NoSuchTable; Unsupported, see `check_apart`.
        Cost: 0 if this process leads, else 1 GET, without a body if nothing changed.
        """
        state = self._known_or_read()
        roots = entry_in(state, "t", *_identifier(namespace, name)).roots()
        if in_policy:
            check_apart(state, roots)
        return roots

    def staged_folders(self, namespace: Sequence[str], name: str, location: str) -> tuple[str, ...]:
        """The folder of a table that is staged at `location`, as `table_folders`; the table must not exist yet.

        Nothing is kept of a staged table, so this says what a create request there may do.   Raises: NoSuchNamespace;
        AlreadyExists; Invalid for a folder of another table, or outside the warehouse.   Cost: as `table_folders`.
        """
        state, (where, what) = self._known_or_read(), _identifier(namespace, name)
        check_free(state, where, what, "t")
        root = self.warehouse.root_of(location)
        reserve(state, [root])
        return (root,)

    def plan_scan(self, namespace: Sequence[str], name: str, request: Mapping[str, Any] | str) -> dict[str, Any]:
        """Plan a scan, in this thread: the files that it reads, or tasks for `scan_tasks`. `request`: also a plan's id.

        Raises: NoSuchTable; Missing without that snapshot; Invalid; Unsupported; Corrupt; Unavailable if too many plans
        are made.   Cost: as `load_table`, and 1 GET of the manifest list; if the plan is one task, also those of
        `scan_tasks`, which reads each manifest of deletes, and each of data that the filter leaves.
        """
        from limpet.catalog.iceberg.plan import plan_scan  # it loads PyIceberg's reader of Parquet

        return self._planned(plan_scan, namespace, name, request)

    def scan_tasks(self, namespace: Sequence[str], name: str, task: str) -> dict[str, Any]:
        """The files of a task of a plan.   Raises, cost: as `plan_scan`."""
        from limpet.catalog.iceberg.plan import scan_tasks

        return self._planned(scan_tasks, namespace, name, task)

    def create_table(
        self, namespace: Sequence[str], request: Mapping[str, Any], **sender: Unpack[Sender]
    ) -> LoadedTable:
        """Create a table; with `stage-create` only create its metadata, and publish nothing.

        Raises: NoSuchNamespace; AlreadyExists.   Cost: beside the batch, 1 PUT of the metadata; staged 1 GET.
        """
        where, name = _identifier(namespace, request.get("name"))
        if request.get("stage-create"):
            state = self._state()
            new = entries.draft("t", self.warehouse, state, where, name, request)
            check_free(state, where, name)
            self.warehouse.make_folder(new.entry.root)
            return LoadedTable(None, new.document.data, {}, "")
        return self._create("t", where, name, request, **sender)

    def register_table(
        self,
        namespace: Sequence[str],
        name: str,
        metadata_location: str,
        *,
        overwrite: bool = False,
        **sender: Unpack[Sender],
    ) -> LoadedTable:
        """Register a table whose metadata is in the warehouse and whose folder belongs to no other table.

        The checked metadata is copied to a new file of the catalog.
        Raises: NoSuchNamespace; AlreadyExists.   Cost: beside the batch, 1 GET and 1 PUT.
        """
        where, name = _identifier(namespace, name)
        request = ("register table", where, name, metadata_location, overwrite)
        if (answered := self._answered(request, **sender)) is not None:
            return self._published(answered)
        new = entries.draft_registered("t", self.warehouse, metadata_location)
        decide = partial(entries.register_table, self.warehouse, where, name, new, overwrite)
        return self._published(self._commit(request, decide, **sender))

    def commit_table(
        self, namespace: Sequence[str], name: str, request: Mapping[str, Any], **sender: Unpack[Sender]
    ) -> LoadedTable:
        """Change a table, or create a staged one.   Raises: NoSuchTable; CommitFailed; NoSuchNamespace.

        Cost: beside the batch, 1 PUT of the metadata; 1 GET of the last metadata unless it is in memory.
        """
        where, name = _identifier(namespace, name)
        prepared = commit.prepare_commit(self.warehouse, self._known_or_read, where, name, request)
        worked = WorkedMetadata(self.warehouse)
        self._work_ahead(worked, prepared)
        decide = partial(commit.commit_table, self.warehouse, prepared, worked)
        return self._published(self._commit(("commit", where, name, request), decide, worked, **sender))

    def commit_transaction(self, changes: object, **sender: Unpack[Sender]) -> None:
        """Change several tables, or create staged ones: all or none.   Raises and cost: as `commit_table`."""
        prepared = commit.prepare_transaction(self.warehouse, self._known_or_read, changes)
        worked = WorkedMetadata(self.warehouse)
        for change in prepared:
            self._work_ahead(worked, change)
        decide = partial(commit.commit_transaction, self.warehouse, prepared, worked)
        self._commit(("transaction", changes), decide, worked, **sender)

    def drop_table(self, namespace: Sequence[str], name: str, *, purge: bool = False, **sender: Unpack[Sender]) -> None:
        """Drop a table; `purge`: also delete its files, after which it cannot be restored.

        Raises: NoSuchTable; NoSuchNamespace; Invalid for a purge of a table with `gc.enabled=false`.
        Cost: `purge`: a batch more, 1 GET of the metadata unless it is in memory, 1 LIST and 1 GET per 1,000 files, 1
        DELETE each.
        Crash: dropped or not; remaining files are recorded, and `finish_purges` deletes them.
        """
        where, name = _identifier(namespace, name)
        checked = entries.CheckedPurge(self.warehouse) if purge else None
        if checked is not None and (table := self._latest("t", where, name)) is not None:
            checked.work_out(entries.purge_needs(table.path, name))
        decide = partial(entries.drop, "t", where, name, checked)
        dropped = self._commit(("drop table", where, name, purge), decide, checked, **sender)
        if purge:
            with suppress(LimpetError):  # the state records the folders: they cannot be used until they are empty
                self._purge(Entry.of(dropped).roots())

    def unregister_table(self, namespace: Sequence[str], name: str, **sender: Unpack[Sender]) -> LoadedTable:
        """Drop a table, and return it as it was: its files stay, and another catalog can register it.

        Every earlier commit is in it, and later ones fail.   Raises: NoSuchTable.   Cost: a batch, and as `load_table`.
        """
        where, name = _identifier(namespace, name)
        decide = partial(entries.drop, "t", where, name, None)
        dropped = self._commit(("unregister table", where, name), decide, **sender)
        return self._published(Entry.of(dropped).path)

    def finish_purges(self) -> int:
        """Delete the remaining files of purged tables; returns the number of folders.   Raises: Unavailable; Denied."""
        roots = tuple(key[2:] for key in self._state().keys_under(f"{PURGED}/"))
        failed: LimpetError | None = None
        for root in roots:
            try:
                self._purge((root,))
            except LimpetError as error:  # continue with the others
                failed = failed or error
        if failed is not None:
            raise failed
        return len(roots)

    def rename_table(
        self, source: tuple[Sequence[str], str], target: tuple[Sequence[str], str], **sender: Unpack[Sender]
    ) -> None:
        """Rename a table, or move it to another namespace.   Raises: NoSuchTable; NoSuchNamespace; AlreadyExists."""
        self._rename("t", source, target, **sender)

    def undrop(self, namespace: Sequence[str], name: str, **sender: Unpack[Sender]) -> LoadedTable:
        """Restore the table or view with this name that was dropped last, as it was then.

        Raises: NoSuchNamespace; AlreadyExists; Missing if none was dropped, it was purged, or history was collected.
        Cost: beside the batch, 1 GET for each commit since (10,000 at most), and 1 of the metadata.
        """
        where, name = _identifier(namespace, name)
        request = ("undrop", where, name)
        if (answered := self._answered(request, **sender)) is not None:
            return self._published(answered)
        loaded = self.view.now()
        check_free(loaded.state if loaded else CatalogState(), where, name)
        kind, entry = history.last_dropped(self.storage, loaded, where, name)
        try:
            self.warehouse.fetch(entry.path)  # compares the digest
        except Missing:  # another table has used the folder since, and was purged
            raise Missing(f"the files of {name!r} are gone", hint="a purged table cannot be restored") from None
        return self._published(self._commit(request, partial(entries.undrop, kind, where, name, entry), **sender))

    # ---- views ----

    def views(self, namespace: Sequence[str], after: str = "", limit: int | None = None) -> NamesPage:
        """The names of the views in a namespace.   Raises: NoSuchNamespace.   Cost: 1 GET."""
        return self._page("v", check_namespace(namespace), after, limit)

    def has_view(self, namespace: Sequence[str], name: str) -> bool:
        """Whether there is such a view.   Cost: 1 GET."""
        return find_entry(self._state(), "v", *_identifier(namespace, name)) is not None

    def load_view(self, namespace: Sequence[str], name: str, etag: str | None = None) -> LoadedTable:
        """The current view.   Raises: NoSuchView; NoSuchNamespace; NotModified.   Cost: as `load_table`."""
        return self._load("v", *_identifier(namespace, name), etag)[0]

    def create_view(
        self, namespace: Sequence[str], request: Mapping[str, Any], **sender: Unpack[Sender]
    ) -> LoadedTable:
        """Create a view.   Raises: NoSuchNamespace; AlreadyExists.   Cost: beside the batch, 1 PUT."""
        where, name = _identifier(namespace, request.get("name"))
        return self._create("v", where, name, request, **sender)

    def register_view(
        self, namespace: Sequence[str], name: str, metadata_location: str, **sender: Unpack[Sender]
    ) -> LoadedTable:
        """Register a view whose metadata is in the warehouse and whose folder belongs to no other table or view.

        The checked metadata is copied to a new file of the catalog.
        Raises: NoSuchNamespace; AlreadyExists.   Cost: beside the batch, 1 GET and 1 PUT.
        """
        where, name = _identifier(namespace, name)
        request = ("register view", where, name, metadata_location)
        if (answered := self._answered(request, **sender)) is not None:
            return self._published(answered)
        new = entries.draft_registered("v", self.warehouse, metadata_location)
        decide = partial(entries.create, "v", self.warehouse, where, name, new)
        return self._published(self._commit(request, decide, **sender))

    def replace_view(
        self, namespace: Sequence[str], name: str, request: Mapping[str, Any], **sender: Unpack[Sender]
    ) -> LoadedTable:
        """Change a view.   Raises: NoSuchView; CommitFailed.   Cost: as `commit_table`."""
        where, name = _identifier(namespace, name)
        wanted = entries.prepare_view(self.warehouse, request)
        worked = WorkedMetadata(self.warehouse)
        if (old := self._latest("v", where, name)) is not None:
            worked.work_out(wanted.needs(old.path))
        decide = partial(entries.replace_view, self.warehouse, where, name, wanted, worked)
        return self._published(self._commit(("replace view", where, name, request), decide, worked, **sender))

    def drop_view(self, namespace: Sequence[str], name: str, **sender: Unpack[Sender]) -> None:
        """Drop a view.   Raises: NoSuchView; NoSuchNamespace."""
        where, name = _identifier(namespace, name)
        self._commit(("drop view", where, name), partial(entries.drop, "v", where, name, None), **sender)

    def rename_view(
        self, source: tuple[Sequence[str], str], target: tuple[Sequence[str], str], **sender: Unpack[Sender]
    ) -> None:
        """Rename a view, or move it to another namespace.   Raises: NoSuchView; NoSuchNamespace; AlreadyExists."""
        self._rename("v", source, target, **sender)

    # ---- history ----

    def log(self, limit: int | None = None, damaged: Callable[[Corrupt], None] | None = None) -> list[CommitRecord]:
        """The last commits, the newest first.   Cost: 1 GET each.

        Raises: Corrupt; with `damaged`, that is called for each unreadable record instead.
        """
        seen = newest_head(self.storage)
        return [*islice(history.log(self.storage, seen.value, damaged), limit)] if seen else []

    def at(self, when: int | datetime | None = None) -> history.PastCatalog:
        """The content of the catalog as of a version or a time; None: now.

        Raises: Missing if no retained commit matches; Invalid.   Cost: as `find_commit` and `state_of`.
        """
        return history.at(self.storage, self.view.now(), self.warehouse, when)

    def verify(self) -> Verified:
        """Read the whole chain, and the metadata of every table and view; compare every digest.

        Cost: 1 GET a commit and 1 for each table and view: caches are not used.
        """
        seen = newest_head(self.storage)
        if seen is None:
            return Verified(history.ChainCheck(0, 0), 0)
        checked, faults, files, undigested = history.verify(self.storage, seen.value), [], 0, 0
        try:
            state = self._state()
        except Corrupt as error:
            return Verified(checked, 0, 0, (str(error),))
        for kind, what in (("t", "table"), ("v", "view")):
            for key, value in state.under(f"{kind}/"):
                try:
                    path = Entry.of(value).path
                    files, undigested = files + 1, undigested + (not self.warehouse.has_digest(path))
                    self.warehouse.fetch(path)
                except (Corrupt, Invalid, Missing) as error:
                    faults.append(f"the metadata of {what} {shown(*parsed(key))}: {error}")
        return Verified(checked, files, undigested, tuple(faults))

    # ---- implementation ----

    def _planned(
        self, answer: Callable[..., dict[str, Any]], namespace: Sequence[str], name: str, request: Any
    ) -> dict[str, Any]:
        """At most `PLANS_MAX` at once: each may take 100 MB. Only files in the table's folders are read."""
        loaded, folders = self.load_table(namespace, name), self.table_folders(namespace, name)

        def fetch(url: str, size_max: int) -> bytes:
            path = self.warehouse.data_path(url, "manifest")
            if not any(path.startswith(f"{folder}/") for folder in folders):
                raise Unsupported(
                    f"the manifest {url!r:.200} is not in a folder of the table", hint="plan in the client"
                )
            try:
                return self.warehouse.data(path, size_max=min(size_max, MANIFEST_BYTES_MAX))
            except Missing as error:
                raise Corrupt(f"a manifest of the table is gone: {error}") from None

        with self._plans:
            if self._planning >= PLANS_MAX:
                raise Unavailable("too many scans are planned at once", hint="send it again in a moment")
            self._planning += 1
        try:
            return answer(loaded.metadata, request, fetch, self.storage.runtime.elapsed_s)
        finally:
            with self._plans:
                self._planning -= 1

    def _state(self) -> CatalogState:
        loaded = self.view.now()
        return loaded.state if loaded else CatalogState()

    def _page(self, kind: Kind, namespace: Namespace, after: str, limit: int | None) -> NamesPage:
        state = self._state()
        check_namespace_exists(state, namespace)
        if limit is not None and limit < 1:
            raise Invalid(f"a page has at least one name, not {limit}")
        names: list[str] = []
        for key in state.keys_under(children(kind, namespace), key_of(kind, namespace, after) if after else ""):
            if limit is not None and len(names) == limit:
                return NamesPage(names, names[-1])
            names.append(name_in(key))
        return NamesPage(names, None)

    def _load(
        self, kind: Content, namespace: Namespace, name: str, etag: str | None
    ) -> tuple[LoadedTable, CatalogState, tuple[str, ...]]:
        """A table or view, the state in which it was found, and its folders."""
        state = self._state()
        entry = entry_in(state, kind, namespace, name)
        while True:
            if etag is not None and etag == self.warehouse.etag(entry.path):
                raise NotModified(f"{shown(namespace, name)!r} still has the ETag {etag}")
            try:
                return self._loaded(entry.path), state, entry.roots()
            except Corrupt:
                state = self._state()
                before, entry = entry, entry_in(state, kind, namespace, name)
                if entry == before:
                    raise  # else it was replaced, and the old one purged, since the head was read

    def _loaded(self, path: str) -> LoadedTable:
        document = self.warehouse.read(path)
        etag = self.warehouse.etag(path)
        return LoadedTable(self.warehouse.location(path), document.data, {}, etag)

    def _published(self, path: str) -> LoadedTable:
        """The answer to a published write. A later error is OutcomeUnknown, never a refusal."""
        try:
            return self._loaded(path)
        except LimpetError as error:
            raise OutcomeUnknown(f"the request was published, but its metadata cannot be read now: {error}") from error

    def _commit(
        self,
        request: Sequence[Any],
        decide: Decide,
        worked: WorkedMetadata | None = None,
        *,
        id_: str | None = None,
        actor: str = "",
    ) -> Any:
        """Let the leader decide and publish. If it needs metadata, compute it, and ask again with the same id (F5)."""
        if self.leader is None:
            raise NotLeader("this catalog was opened read-only")
        scoped_id = self._scoped(id_, request)

        def decide_once(state: CatalogState, made: Documents) -> Grant | NeedsMetadata:
            if id_ is not None and state.is_used(id_):
                raise Invalid(f"the id {id_!r} was used for another request", hint="use a new id for each request")
            answer = decide(state, made)
            if isinstance(answer, Grant):
                for path, document in answer.made.items():
                    self.warehouse.keep(path, document)  # before another client can see it
            return answer

        for _ in attempts(self.storage.runtime, pause_s=0):
            answer = self.leader.commit(scoped_id, decide_once, actor)
            if not isinstance(answer, NeedsMetadata):
                return answer
            assert worked is not None
            worked.rounds += 1
            worked.work_out(answer.needs)
        raise Unavailable("too many concurrent commits to the same tables", hint="send it again in a moment")

    def _answered(self, request: Sequence[Any], *, id_: str | None = None, actor: str = "") -> Any:
        """The remembered answer to this request, as far as this process knows; None: there is none.

        For requests that first read something that may be gone after they were published.
        """
        state = self._known()
        answer = state.answered(self._scoped(id_, request)) if state is not None and id_ is not None else None
        return answer.result if answer is not None else None

    def _known(self) -> CatalogState | None:
        return self.leader.known if self.leader else None

    def _scoped(self, id_: str | None, request: Sequence[Any]) -> str:
        """A client's id with a digest of the request, so that another request with the same id is refused."""
        if id_ is None:
            return f"{MINTED}{self.storage.runtime.new_id()}"
        if not id_ or id_.startswith(MINTED) or len(id_) > ID_CHARACTERS_MAX or not id_.isprintable():
            raise Invalid(f"an id has 1 to {ID_CHARACTERS_MAX} printable characters and does not begin with {MINTED}")
        return scoped(id_, hashlib.sha256(_sorted_bytes(records.plain(request, what="the request"))).hexdigest()[:16])

    def _known_or_read(self) -> CatalogState:
        """The newest state.   Cost: 0 if this process leads, else 1 GET."""
        state = self._known()
        return state if state is not None else self._state()

    def _latest(self, kind: Content, namespace: Namespace, name: str) -> Entry | None:
        state = self._known()
        return find_entry(state, kind, namespace, name) if state is not None else None

    def _work_ahead(self, worked: WorkedMetadata, prepared: PreparedCommit) -> None:
        """Compute the metadata after a commit from the latest known metadata, before the leader is asked."""
        if prepared.created is None and (old := self._latest("t", prepared.namespace, prepared.name)) is not None:
            worked.work_out(prepared.needs(self.warehouse, old.path))

    def _create(
        self, kind: Content, where: Namespace, name: str, request: Mapping[str, Any], **sender: Unpack[Sender]
    ) -> LoadedTable:
        new = entries.draft(kind, self.warehouse, self._known_or_read(), where, name, request)
        what = "create table" if kind == "t" else "create view"
        decide = partial(entries.create, kind, self.warehouse, where, name, new)
        return self._published(self._commit((what, where, request), decide, **sender))

    def _rename(
        self,
        kind: Content,
        source: tuple[Sequence[str], str],
        target: tuple[Sequence[str], str],
        **sender: Unpack[Sender],
    ) -> None:
        old, new = _identifier(*source), _identifier(*target)
        self._commit(("rename", kind, old, new), partial(entries.rename, kind, old, new), **sender)

    def _purge(self, roots: Sequence[str]) -> None:
        """Empty the folders of purged tables, then release them.

        A file is deleted only if it was listed before the state was read, and the folder is purged in that state:
        otherwise another process may have emptied it, and a new table may be there (F18).
        """
        emptied = [root for root in roots if self._emptied(root)]
        if emptied:
            self._commit(("purged",), partial(entries.release_folders, emptied))

    def _emptied(self, root: str) -> bool:
        """Empty a folder. One into which a client still writes stays recorded; `finish_purges` tries it again."""
        last_pages = 0
        while files := self.warehouse.files_in(root):
            last_pages += len(files) < FILES_AT_ONCE
            if last_pages > LAST_PAGES_MAX or f"{PURGED}/{root}" not in self._state():
                return False
            self.warehouse.delete(files)
        self.warehouse.prune(root)
        self.warehouse.forget(root)
        return True


def _identifier(namespace: Sequence[str], name: object) -> tuple[Namespace, str]:
    return check_namespace(namespace), check_name(name)

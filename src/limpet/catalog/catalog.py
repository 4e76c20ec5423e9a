"""The catalog as the service and Python users call it: namespaces, tables and views, as in Iceberg's REST protocol.

Requests and answers are plain Python values; metadata is passed through as bytes. Every write takes an id: whoever
sends the same request with the same id again is told what was told the first time, and nothing is done twice. `actor`
is who sends it, for the log; it decides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec

from limpet import records
from limpet.catalog import commit, history
from limpet.catalog.commit import PreparedCommit, WorkedMetadata
from limpet.catalog.leader import Decide, Grant, Leader, NeedsMetadata, NotLeader
from limpet.catalog.records import CommitRecord
from limpet.catalog.state import (
    MINTED,
    PURGED,
    CatalogState,
    Content,
    Entry,
    Kind,
    Namespace,
    check_free,
    check_name,
    check_namespace,
    check_namespace_exists,
    children,
    entry_in,
    find_entry,
    key_of,
    name_in,
    parsed,
    scoped,
    shown,
)
from limpet.catalog.storage import CatalogStorage, CatalogView, newest_head
from limpet.catalog.warehouse import Warehouse
from limpet.errors import Corrupt, Invalid, LimpetError, Missing, NotModified, OutcomeUnknown, Unavailable

_sorted_bytes = msgspec.json.Encoder(order="sorted").encode

TRIES_MAX = 10
ID_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table or view: where its metadata lies (None if it is only staged), the bytes of it, and what clients need."""

    metadata_location: str | None
    metadata: bytes
    config: Mapping[str, str]
    etag: str


@dataclass(frozen=True, slots=True)
class NamesPage:
    """Names in order; `next` is the `after` of the next page, None on the last."""

    names: Sequence[str]
    next: str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """What `Catalog.verify` found: the chain, how many metadata files were read, how many of them have no digest
    (version 0.1 wrote them), and which cannot be used."""

    chain: history.ChainCheck
    files: int
    undigested: int = 0
    damaged: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """All that is wrong."""
        return (*self.chain.faults, *self.damaged)

    @property
    def broken(self) -> str | None:
        """The first thing that is wrong; None if nothing is."""
        return self.faults[0] if self.faults else None


class Catalog:
    """One catalog. Without a `leader` it only reads. Any number of threads may share it.

    Every write raises, beside what its method says: Invalid; NotLeader (nothing was attempted); OutcomeUnknown. It
    costs a share of a batch: 1 ledger PUT and 1 publication for all that are decided together.
    """

    def __init__(self, storage: CatalogStorage, warehouse: Warehouse, leader: Leader | None = None) -> None:
        self.storage = storage
        self.warehouse = warehouse
        self.leader = leader
        self.view = CatalogView(storage)

    # ---- namespaces ----

    def namespaces(self, parent: Sequence[str] = (), after: str = "", limit: int | None = None) -> NamesPage:
        """The names of the namespaces directly in another, or at the top.   Raises: NoSuchNamespace.   Cost: 1 GET."""
        return self._page("n", check_namespace(parent) if parent else (), after, limit)

    def namespace(self, namespace: Sequence[str]) -> dict[str, str]:
        """Its properties.   Raises: NoSuchNamespace.   Cost: 1 GET."""
        return dict(commit.properties_of(self._state(), check_namespace(namespace)))

    def create_namespace(
        self,
        namespace: Sequence[str],
        properties: Mapping[str, str] | None = None,
        *,
        id_: str | None = None,
        actor: str = "",
    ) -> dict[str, str]:
        """Create it, in a parent that is there; its properties.   Raises: AlreadyExists; NoSuchNamespace."""
        levels = check_namespace(namespace)
        checked = commit.check_namespace_properties(self.warehouse, properties or {})
        self._commit(id_, actor, ("create namespace", levels, checked), commit.create_namespace(levels, checked))
        return checked

    def drop_namespace(self, namespace: Sequence[str], *, id_: str | None = None, actor: str = "") -> None:
        """Drop it, if it is empty.   Raises: NoSuchNamespace; NamespaceNotEmpty."""
        levels = check_namespace(namespace)
        self._commit(id_, actor, ("drop namespace", levels), commit.drop_namespace(levels))

    def update_properties(
        self,
        namespace: Sequence[str],
        removals: object = (),
        updates: object = None,
        *,
        id_: str | None = None,
        actor: str = "",
    ) -> dict[str, list[str]]:
        """Set and remove properties; the names that were `updated`, `removed` and `missing`.

        Raises: NoSuchNamespace; Invalid, also if a name is to be both set and removed.
        """
        levels = check_namespace(namespace)
        if not isinstance(removals, list | tuple) or not all(isinstance(name, str) for name in removals):
            raise Invalid("removals must be a list of names")
        gone: list[str] = records.plain(list(dict.fromkeys(removals)), what="removals")  # they come back in the answer
        checked = commit.check_namespace_properties(self.warehouse, updates or {})
        if both := [name for name in gone if name in checked]:
            raise Invalid(f"the property {both[0]!r} is to be both set and removed")
        request = ("set properties", levels, gone, checked)
        result: dict[str, list[str]] = self._commit(id_, actor, request, commit.update_namespace(levels, gone, checked))
        return result

    # ---- tables ----

    def tables(self, namespace: Sequence[str], after: str = "", limit: int | None = None) -> NamesPage:
        """The names of the tables in a namespace.   Raises: NoSuchNamespace.   Cost: 1 GET."""
        return self._page("t", check_namespace(namespace), after, limit)

    def has_table(self, namespace: Sequence[str], name: str) -> bool:
        """Whether there is such a table.   Cost: 1 GET."""
        return find_entry(self._state(), "t", *_identifier(namespace, name)) is not None

    def load_table(self, namespace: Sequence[str], name: str, etag: str | None = None) -> LoadedTable:
        """A table as it is now. Raises: NoSuchTable; NoSuchNamespace; NotModified, if it is what `etag` stands for.

        Cost: 1 conditional GET of the head, and 1 GET of the metadata unless it is in memory.
        """
        return self._load("t", *_identifier(namespace, name), etag)

    def create_table(
        self, namespace: Sequence[str], request: Mapping[str, Any], *, id_: str | None = None, actor: str = ""
    ) -> LoadedTable:
        """Create a table; with `stage-create` only make its metadata, and publish nothing.

        Raises: NoSuchNamespace; AlreadyExists.   Cost: beside the batch, 1 PUT of the metadata; staged 1 GET.
        """
        where, name = _identifier(namespace, request.get("name"))
        if request.get("stage-create"):
            state = self._state()
            new = commit.draft_table(self.warehouse, state, where, name, request)
            check_free(state, where, name)
            self.warehouse.make_folder(new.entry.root)
            return LoadedTable(None, new.document.data, self.warehouse.config, "")
        new = commit.draft_table(self.warehouse, self._known_or_read(), where, name, request)
        path = self._commit(
            id_, actor, ("create table", where, request), commit.create("t", self.warehouse, where, name, new)
        )
        return self._told(path)

    def register_table(
        self,
        namespace: Sequence[str],
        name: str,
        metadata_location: str,
        *,
        overwrite: bool = False,
        id_: str | None = None,
        actor: str = "",
    ) -> LoadedTable:
        """Enter a table whose metadata lies in the warehouse and whose folder no other table has.

        Its metadata is copied, as it was checked, into a file of the catalog's own.
        Raises: NoSuchNamespace; AlreadyExists.   Cost: beside the batch, 1 GET and 1 PUT.
        """
        where, name = _identifier(namespace, name)
        request = ("register table", where, name, metadata_location, overwrite)
        if (answered := self._answered(id_, request)) is not None:
            return self._told(answered)
        new = commit.draft_registered(self.warehouse, metadata_location)
        decide = commit.register_table(self.warehouse, where, name, new, overwrite=overwrite)
        return self._told(self._commit(id_, actor, request, decide))

    def commit_table(
        self,
        namespace: Sequence[str],
        name: str,
        request: Mapping[str, Any],
        *,
        id_: str | None = None,
        actor: str = "",
    ) -> LoadedTable:
        """Change a table, or create one that was staged.   Raises: NoSuchTable; CommitFailed; NoSuchNamespace.

        Cost: beside the batch, 1 PUT of the metadata; 1 GET of the last metadata unless it is in memory.
        """
        where, name = _identifier(namespace, name)
        prepared = commit.prepare_commit(self.warehouse, self._known_or_read, where, name, request)
        worked = self._worked_out((prepared,))
        decide = commit.commit_table(self.warehouse, prepared, worked)
        return self._told(self._commit(id_, actor, ("commit", where, name, request), decide, worked))

    def commit_transaction(self, changes: object, *, id_: str | None = None, actor: str = "") -> None:
        """Change several tables, or create staged ones: all or none.   Raises and cost: as `commit_table`."""
        prepared = commit.prepare_transaction(self.warehouse, self._known_or_read, changes)
        worked = self._worked_out(prepared)
        decide = commit.commit_transaction(self.warehouse, prepared, worked)
        self._commit(id_, actor, ("transaction", changes), decide, worked)

    def drop_table(
        self, namespace: Sequence[str], name: str, *, purge: bool = False, id_: str | None = None, actor: str = ""
    ) -> None:
        """Take a table out of the catalog; `purge` deletes its files too, and then it cannot be put back.

        Raises: NoSuchTable; NoSuchNamespace.   Cost: `purge`: a batch more, 1 LIST and 1 GET per 1,000 files,
        1 DELETE each.
        Crash: dropped or not; files that are left are known, and `finish_purges` deletes them.
        """
        where, name = _identifier(namespace, name)
        dropped = self._commit(
            id_, actor, ("drop table", where, name, purge), commit.drop("t", where, name, purge=purge)
        )
        if purge:
            with suppress(LimpetError):  # the state names what is left, and nobody can use those folders until then
                self._purge(Entry.of(dropped).roots())

    def finish_purges(self) -> int:
        """Delete what is left of purged tables; in how many folders.   Raises: Unavailable; Denied."""
        roots = tuple(key[2:] for key, _ in self._state().under(f"{PURGED}/"))
        failed: LimpetError | None = None
        for root in roots:
            try:
                self._purge((root,))
            except LimpetError as error:  # the others go on
                failed = failed or error
        if failed is not None:
            raise failed
        return len(roots)

    def rename_table(
        self,
        source: tuple[Sequence[str], str],
        target: tuple[Sequence[str], str],
        *,
        id_: str | None = None,
        actor: str = "",
    ) -> None:
        """Give a table another name or namespace.   Raises: NoSuchTable; NoSuchNamespace; AlreadyExists."""
        self._rename("t", source, target, id_, actor)

    def undrop(self, namespace: Sequence[str], name: str, *, id_: str | None = None, actor: str = "") -> LoadedTable:
        """Put back the table or view of that name that was dropped last, as it was then.

        Raises: NoSuchNamespace; AlreadyExists; Missing if none was dropped, it was purged, or that is no longer kept.
        Cost: beside the batch, 1 GET for each commit since (10,000 at most), and 1 of the metadata.
        """
        where, name = _identifier(namespace, name)
        request = ("undrop", where, name)
        if (answered := self._answered(id_, request)) is not None:
            return self._told(answered)
        loaded = self.view.now()
        check_free(loaded.state if loaded else CatalogState(), where, name)
        kind, entry = history.last_dropped(self.storage, loaded, where, name)
        try:
            self.warehouse.fetch(entry.path)  # and it is what was dropped: its digest is compared
        except Missing:  # its folder was another table's since, and that one was purged
            raise Missing(f"the files of {name!r} are gone", hint="what was purged cannot be put back") from None
        return self._told(self._commit(id_, actor, request, commit.undrop(kind, where, name, entry)))

    # ---- views ----

    def views(self, namespace: Sequence[str], after: str = "", limit: int | None = None) -> NamesPage:
        """The names of the views in a namespace.   Raises: NoSuchNamespace.   Cost: 1 GET."""
        return self._page("v", check_namespace(namespace), after, limit)

    def has_view(self, namespace: Sequence[str], name: str) -> bool:
        """Whether there is such a view.   Cost: 1 GET."""
        return find_entry(self._state(), "v", *_identifier(namespace, name)) is not None

    def load_view(self, namespace: Sequence[str], name: str, etag: str | None = None) -> LoadedTable:
        """A view as it is now.   Raises: NoSuchView; NoSuchNamespace; NotModified.   Cost: as `load_table`."""
        return self._load("v", *_identifier(namespace, name), etag)

    def create_view(
        self, namespace: Sequence[str], request: Mapping[str, Any], *, id_: str | None = None, actor: str = ""
    ) -> LoadedTable:
        """Create a view.   Raises: NoSuchNamespace; AlreadyExists.   Cost: beside the batch, 1 PUT."""
        where, name = _identifier(namespace, request.get("name"))
        new = commit.draft_view(self.warehouse, self._known_or_read(), where, name, request)
        path = self._commit(
            id_, actor, ("create view", where, request), commit.create("v", self.warehouse, where, name, new)
        )
        return self._told(path)

    def replace_view(
        self,
        namespace: Sequence[str],
        name: str,
        request: Mapping[str, Any],
        *,
        id_: str | None = None,
        actor: str = "",
    ) -> LoadedTable:
        """Change a view.   Raises: NoSuchView; CommitFailed.   Cost: as `commit_table`."""
        where, name = _identifier(namespace, name)
        wanted = commit.prepare_view(self.warehouse, request)
        worked, state = WorkedMetadata(self.warehouse), self._known()
        old = find_entry(state, "v", where, name) if state is not None else None
        if old is not None:
            worked.work_out(wanted.needs(old.path))
        decide = commit.replace_view(self.warehouse, where, name, wanted, worked)
        return self._told(self._commit(id_, actor, ("replace view", where, name, request), decide, worked))

    def drop_view(self, namespace: Sequence[str], name: str, *, id_: str | None = None, actor: str = "") -> None:
        """Take a view out of the catalog.   Raises: NoSuchView; NoSuchNamespace."""
        where, name = _identifier(namespace, name)
        self._commit(id_, actor, ("drop view", where, name), commit.drop("v", where, name))

    def rename_view(
        self,
        source: tuple[Sequence[str], str],
        target: tuple[Sequence[str], str],
        *,
        id_: str | None = None,
        actor: str = "",
    ) -> None:
        """Give a view another name or namespace.   Raises: NoSuchView; NoSuchNamespace; AlreadyExists."""
        self._rename("v", source, target, id_, actor)

    # ---- the past ----

    def log(self, limit: int | None = None, damaged: Callable[[Corrupt], None] | None = None) -> list[CommitRecord]:
        """The last commits, the newest first.   Cost: 1 GET each.

        Raises: Corrupt; with `damaged` that is called instead for each record that cannot be read.
        """
        seen = newest_head(self.storage)
        return [*islice(history.log(self.storage, seen.value, damaged), limit)] if seen else []

    def at(self, when: int | datetime | None = None) -> history.PastCatalog:
        """What the catalog held as of a version, or a time; None: now.

        Raises: Missing if that was never, or is no longer kept; Invalid.   Cost: as `find_commit` and `state_of`.
        """
        return history.at(self.storage, self.view.now(), self.warehouse, when)

    def verify(self) -> Verified:
        """Walk the whole chain, and read the metadata of every table and view; compare every digest.

        Cost: 1 GET a commit and 1 for each table and view, whatever is in memory.
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

    # ---- how ----

    def _state(self) -> CatalogState:
        loaded = self.view.now()
        return loaded.state if loaded else CatalogState()

    def _page(self, kind: Kind, namespace: Namespace, after: str, limit: int | None) -> NamesPage:
        state = self._state()
        check_namespace_exists(state, namespace)
        if limit is not None and limit < 1:
            raise Invalid(f"a page has at least one name, not {limit}")
        names: list[str] = []
        for key, _ in state.under(children(kind, namespace), key_of(kind, namespace, after) if after else ""):
            if limit is not None and len(names) == limit:
                return NamesPage(names, names[-1])
            names.append(name_in(key))
        return NamesPage(names, None)

    def _load(self, kind: Content, namespace: Namespace, name: str, etag: str | None) -> LoadedTable:
        entry = entry_in(self._state(), kind, namespace, name)
        while True:
            if etag is not None and etag == self.warehouse.etag(entry.path):
                raise NotModified(f"{shown(namespace, name)!r} is still what {etag} stands for")
            try:
                return self._loaded(entry.path)
            except Corrupt:
                before, entry = entry, entry_in(self._state(), kind, namespace, name)
                if entry == before:
                    raise  # else it was replaced and purged since the head was read

    def _loaded(self, path: str) -> LoadedTable:
        document = self.warehouse.read(path)
        etag = self.warehouse.etag(path)
        return LoadedTable(self.warehouse.location(path), document.data, self.warehouse.config, etag)

    def _told(self, path: str) -> LoadedTable:
        """The answer to a write that is published: whatever is in the way now, it is not refused any more."""
        try:
            return self._loaded(path)
        except LimpetError as error:
            raise OutcomeUnknown(f"it was done, and its metadata cannot be read now: {error}") from error

    def _commit(
        self, id_: str | None, actor: str, request: Sequence[Any], decide: Decide, worked: WorkedMetadata | None = None
    ) -> Any:
        """Have a decision made and published; work out what it needs, and ask again, under the same id (F5)."""
        if self.leader is None:
            raise NotLeader("this process only reads")
        scoped_id = self._scoped(id_, request)

        def decide_once(state: CatalogState) -> Grant | NeedsMetadata:
            if id_ is not None and state.is_used(id_):
                raise Invalid(f"the id {id_!r} was given to another request", hint="give each request an id of its own")
            return decide(state)

        for _ in range(TRIES_MAX):
            answer = self.leader.commit(scoped_id, decide_once, actor)
            if not isinstance(answer, NeedsMetadata):
                return answer
            assert worked is not None
            worked.rounds += 1
            worked.work_out(answer.needs)
        raise Unavailable("others have committed to the same tables too often", hint="send it again in a moment")

    def _answered(self, id_: str | None, request: Sequence[Any]) -> Any:
        """What the client of this very request was told, as far as this process knows; None: nothing yet.

        For those that must read something first, which may be gone once they are done.
        """
        state = self._known()
        told = state.told(self._scoped(id_, request)) if state is not None and id_ is not None else None
        return told.result if told is not None else None

    def _known(self) -> CatalogState | None:
        """The newest state that this process knows without asking, if it leads."""
        return self.leader.known if self.leader else None

    def _scoped(self, id_: str | None, request: Sequence[Any]) -> str:
        """A client's id, with a digest of what it asks: another request with the same id is told so."""
        if id_ is None:
            return f"{MINTED}{self.storage.runtime.new_id()}"
        if not id_ or id_.startswith(MINTED) or len(id_) > ID_CHARACTERS_MAX or not id_.isprintable():
            raise Invalid(f"an id has 1 to {ID_CHARACTERS_MAX} printable characters and does not begin with {MINTED}")
        return scoped(id_, hashlib.sha256(_sorted_bytes(records.plain(request, what="the request"))).hexdigest()[:16])

    def _known_or_read(self) -> CatalogState:
        """The newest state that this process knows.   Cost: 0 if it leads, else 1 GET."""
        state = self._known()
        return state if state is not None else self._state()

    def _worked_out(self, prepared: Sequence[PreparedCommit]) -> WorkedMetadata:
        """The metadata after commits, worked out on what the tables most likely have, before the leader is asked."""
        worked, state = WorkedMetadata(self.warehouse), self._known()
        for each in prepared:
            old = find_entry(state, "t", each.namespace, each.name) if state and each.created is None else None
            if old is not None:
                worked.work_out(each.needs(self.warehouse, old.path))
        return worked

    def _rename(
        self,
        kind: Content,
        source: tuple[Sequence[str], str],
        target: tuple[Sequence[str], str],
        id_: str | None,
        actor: str,
    ) -> None:
        old, new = _identifier(*source), _identifier(*target)
        self._commit(id_, actor, ("rename", kind, old, new), commit.rename(kind, old, new))

    def _purge(self, roots: Sequence[str]) -> None:
        """Empty the folders of purged tables, then let them be used again.

        Only files are deleted that were listed before a look at the state that still has the folder as purged: another
        process may have emptied it meanwhile, and a new table may be there (F18).
        """
        emptied = [root for root in roots if self._emptied(root)]
        if emptied:
            self._commit(None, "", ("purged",), commit.release_folders(emptied))

    def _emptied(self, root: str) -> bool:
        while files := self.warehouse.files_in(root):
            if self._state().get(f"{PURGED}/{root}") is None:
                return False
            self.warehouse.delete(files)
        self.warehouse.prune(root)
        self.warehouse.forget(root)
        return True


def _identifier(namespace: Sequence[str], name: object) -> tuple[Namespace, str]:
    return check_namespace(namespace), check_name(name)

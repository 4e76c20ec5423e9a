"""The history of the catalog: its content at a version or time, and the last dropped table of a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from limpet.catalog.heads import commit_of, link_to
from limpet.catalog.names import Content, Entry, Namespace, key_of, parsed, shown
from limpet.catalog.records import DROP, DROP_VIEW, PURGE, CatalogHead, CommitRecord, Link
from limpet.catalog.state import CatalogState
from limpet.catalog.storage import CatalogStorage, LoadedState
from limpet.catalog.warehouse import Warehouse
from limpet.kernel.errors import Corrupt, Invalid, Missing
from limpet.kernel.records import moment

COMMITS_MAX = 10_000
LOOK = "`limpet catalog log` shows the versions that are kept"


@dataclass(frozen=True, slots=True)
class PastCatalog:
    """The content of the catalog as of a version: names, properties, and locations of metadata."""

    version: int
    at: str
    namespaces: Mapping[Namespace, Mapping[str, str]]
    tables: Mapping[tuple[Namespace, str], str]
    views: Mapping[tuple[Namespace, str], str]


def at(
    storage: CatalogStorage, loaded: LoadedState | None, warehouse: Warehouse, when: int | datetime | None
) -> PastCatalog:
    """The content of the catalog as of a version or a time; None: now.

    Raises: Missing if no retained commit matches; Invalid.   Cost: see `find_commit` and `state_of`.
    """
    if loaded is None:
        raise Missing("nothing was ever published here", hint="`limpet serve` serves a catalog to publish in")
    if when is None:
        return _past(warehouse, loaded.head.version, loaded.head.at, loaded.state)
    commit = find_commit(storage, loaded.head, _is_at_or_before(when, loaded.head.version))
    return _past(warehouse, commit.version, commit.at, state_of(storage, loaded.head, commit))


def last_dropped(
    storage: CatalogStorage, loaded: LoadedState | None, namespace: Namespace, name: str
) -> tuple[Content, Entry]:
    """The table or view of that name that was dropped last.   Raises: Missing, also if it was purged.

    Cost: 1 GET for each commit since, at most 10,000: the cost of one request must be bounded.
    """
    kinds: dict[str, Content] = {key_of("t", namespace, name): "t", key_of("v", namespace, name): "v"}
    commits = log(storage, loaded.head) if loaded else iter(())
    for commit in islice(commits, COMMITS_MAX):
        for row in reversed(commit.rows):
            gone = next((kinds[each.key] for each in row.changes if each.key in kinds and each.value is None), None)
            if gone is not None and row.what in (DROP, DROP_VIEW):
                return gone, Entry.of(row.result)
            if gone is not None and row.what == PURGE:
                raise Missing(f"{shown(namespace, name)!r} was purged: its files are gone")
    raise Missing(
        f"no table or view {shown(namespace, name)!r} was dropped in the last {COMMITS_MAX:,} commits that are kept",
        hint="`limpet catalog show --at` shows older states; a table can be registered by its metadata",
    )


def _past(warehouse: Warehouse, version: int, when: str, state: CatalogState) -> PastCatalog:
    def located(kind: Content) -> dict[tuple[Namespace, str], str]:
        found = ((parsed(key), Entry.of(value)) for key, value in state.under(f"{kind}/"))
        return {name: warehouse.location(entry.path) for name, entry in found}

    spaces = ((parsed(key), value) for key, value in state.under("n/"))
    return PastCatalog(
        version, when, {(*above, name): value for (above, name), value in spaces}, located("t"), located("v")
    )


def _is_at_or_before(when: int | datetime, newest: int) -> Callable[[CommitRecord], bool]:
    if isinstance(when, int):
        if when > newest:
            raise Missing(f"there is no version {when} yet; the newest is {newest}", hint=LOOK)
        if when < 1:
            raise Missing(f"there is no version {when}: the first is 1", hint=LOOK)
        return lambda commit: commit.version <= when
    if when.tzinfo is None:
        raise Invalid("the time has no time zone", hint="such as 2026-11-16T12:00:00+00:00")
    return lambda commit: moment(commit.at) <= when


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """The result of reading the chain: the number of commits, the oldest retained version, and all problems."""

    commits: int
    oldest: int
    faults: tuple[str, ...] = ()

    @property
    def broken(self) -> str | None:
        """The first problem; None if there is none."""
        return self.faults[0] if self.faults else None


def log(
    storage: CatalogStorage, head: CatalogHead, damaged: Callable[[Corrupt], None] | None = None
) -> Iterator[CommitRecord]:
    """The retained commits, the newest first.   Cost: 1 GET each.

    Raises: Corrupt; with `damaged`, that is called instead, and reading continues with the next older commit that an
    undamaged one links to.
    """
    ahead = {link.version: link for link in head.links}
    while ahead:
        link = ahead.pop(max(ahead))
        try:
            commit = _read(storage, head, link)
        except Corrupt as error:
            if damaged is None:
                raise
            damaged(error)
            continue
        if commit is None:
            return
        yield commit
        ahead |= {each.version: each for each in commit.links if each.version < commit.version}


def find_commit(
    storage: CatalogStorage, head: CatalogHead, is_at_or_before: Callable[[CommitRecord], bool]
) -> CommitRecord:
    """The newest commit for which the predicate holds; it must hold for every older one too.

    Raises: Missing if there is none, or it was collected; Corrupt.
    Cost: 1 GET a step; the number of steps grows with the square of the logarithm of the distance.
    """
    newer: CommitRecord | None = None
    links = head.links
    while links:
        commit = None
        for link in reversed(links):  # the farthest first: go back as far as possible without passing it
            commit = _read(storage, head, link)
            if commit is not None and not is_at_or_before(commit):
                break
        else:
            if commit is None:
                break
            return commit
        newer, links = commit, commit.links
    if newer is None and not head.links:
        raise Missing("nothing was ever published here")
    raise Missing("no retained commit matches; older history may have been collected", hint=LOOK)


def state_of(storage: CatalogStorage, head: CatalogHead, commit: CommitRecord) -> CatalogState:
    """The state right after a commit: its snapshot, and the rows since.

    Raises: Missing if a needed commit was collected; Corrupt.   Cost: 1 GET + 1 for each commit since the snapshot.
    """
    base = commit.snapshot.version if commit.snapshot else 0
    commits = [commit] if commit.version > base else []
    links = commit.links
    while links and links[0].version > base:
        before = _read(storage, head, links[0])
        if before is None:
            raise Missing(f"version {links[0].version} was collected")
        commits.append(before)
        links = before.links
    state = storage.snapshot(commit.snapshot)
    for each in reversed(commits):
        state = state.after(each.rows, each.at)
    return state


def verify(storage: CatalogStorage, head: CatalogHead) -> ChainCheck:
    """Read the whole chain and check every digest, version, token and time; collect all problems.

    Cost: 1 GET a commit.
    """
    commits, oldest, token, at = 0, head.version + 1, head.token, head.at
    faults: list[str] = []
    try:
        with suppress(Missing):  # it may be written as late as before the next commit
            storage.commit(head.links[0])
    except Corrupt as error:
        faults.append(str(error))
    for commit in log(storage, head, lambda error: faults.append(str(error))):
        if commit.version != oldest - 1:
            faults.append(f"after version {oldest} comes {commit.version}")
        if commit.token > token or commit.at > at:
            faults.append(f"version {commit.version} has a later token or time than its successor")
        commits, oldest, token, at = commits + 1, commit.version, commit.token, commit.at
    return ChainCheck(commits, oldest, tuple(dict.fromkeys(faults)))


def _read(storage: CatalogStorage, head: CatalogHead, link: Link) -> CommitRecord | None:
    """A linked commit; None if it was collected.

    Counterexample 11: GC may have raised the floor since `head` was read, so the newest head decides what must exist.
    """
    newest = commit_of(head, storage.keys.domain) if link == head.links[0] else None
    if newest is not None:
        if link_to(newest) != link:
            raise Corrupt(f"{storage.keys.head} does not match its own commit")
        return newest
    try:
        return storage.commit(link)
    except Missing:
        if link.id < _floor(storage, head, link):
            return None
        raise Corrupt(f"the commit of version {link.version} is missing") from None


def _floor(storage: CatalogStorage, head: CatalogHead, link: Link) -> str:
    """The lowest retained name; it may have risen since the head was read (counterexample 11)."""
    if link.id < head.gc_floor:
        return head.gc_floor
    seen = storage.head().read()
    return seen.value.gc_floor if seen else ""

"""The past of the catalog: what it held at a version or time, and what was dropped last under a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from limpet.catalog import chain
from limpet.catalog.entries import Content, Entry
from limpet.catalog.names import Namespace, key_of, parsed, shown
from limpet.catalog.records import Commit, moment
from limpet.catalog.state import State
from limpet.catalog.storage import Storage
from limpet.catalog.tables import DROP, PURGE
from limpet.catalog.view import Loaded
from limpet.catalog.views import DROP as DROP_VIEW
from limpet.catalog.warehouse import Warehouse
from limpet.errors import Invalid, Missing

COMMITS_MAX = 10_000
LOOK = "`limpet catalog log` shows the versions that are kept"


@dataclass(frozen=True, slots=True)
class Past:
    """What the catalog held as of a version: names, properties, and where the metadata of tables and views lay."""

    version: int
    at: str
    namespaces: Mapping[Namespace, Mapping[str, str]]
    tables: Mapping[tuple[Namespace, str], str]
    views: Mapping[tuple[Namespace, str], str]


def at(storage: Storage, loaded: Loaded | None, warehouse: Warehouse, when: int | datetime | None) -> Past:
    """What the catalog held as of a version or a time; None: now.

    Raises: Missing if that was never, or is no longer kept; Invalid.   Cost: see `chain.find` and `chain.state_of`.
    """
    if loaded is None:
        raise Missing("nothing was ever published here", hint="`limpet serve` serves a catalog to publish in")
    if when is None:
        return _past(warehouse, loaded.head.version, loaded.head.at, loaded.state)
    commit = chain.find(storage, loaded.head, _is_at_or_before(when, loaded.head.version))
    return _past(warehouse, commit.version, commit.at, chain.state_of(storage, loaded.head, commit))


def last_dropped(storage: Storage, loaded: Loaded | None, namespace: Namespace, name: str) -> tuple[Content, Entry]:
    """The table or view of that name that was dropped last.   Raises: Missing, also if it was purged.

    Cost: 1 GET for each commit since, at most 10,000: one request must not read all the past there is.
    """
    kinds: dict[str, Content] = {key_of("t", namespace, name): "t", key_of("v", namespace, name): "v"}
    commits = chain.log(storage, loaded.head) if loaded else iter(())
    for commit in islice(commits, COMMITS_MAX):
        for row in reversed(commit.rows):
            gone = next((kinds[each.key] for each in row.changes if each.key in kinds and each.value is None), None)
            if gone is not None and row.what in (DROP, DROP_VIEW):
                return gone, Entry.of(row.result)
            if gone is not None and row.what == PURGE:
                raise Missing(f"{shown(namespace, name)!r} was purged: its files are gone")
    raise Missing(
        f"no table or view {shown(namespace, name)!r} was dropped in the last {COMMITS_MAX:,} commits that are kept",
        hint="`limpet catalog show --at` tells what there was; its metadata can be registered",
    )


def _past(warehouse: Warehouse, version: int, when: str, state: State) -> Past:
    def located(kind: Content) -> dict[tuple[Namespace, str], str]:
        found = ((parsed(key), Entry.of(value)) for key, value in state.under(f"{kind}/"))
        return {name: warehouse.location(entry.path) for name, entry in found}

    spaces = ((parsed(key), value) for key, value in state.under("n/"))
    return Past(version, when, {(*above, name): value for (above, name), value in spaces}, located("t"), located("v"))


def _is_at_or_before(when: int | datetime, newest: int) -> Callable[[Commit], bool]:
    if isinstance(when, int):
        if when > newest:
            raise Missing(f"there is no version {when} yet; the newest is {newest}", hint=LOOK)
        if when < 1:
            raise Missing(f"there never was a version {when}", hint=LOOK)
        return lambda commit: commit.version <= when
    if when.tzinfo is None:
        raise Invalid("a time needs its zone", hint="such as 2026-11-16T12:00:00+00:00")
    return lambda commit: moment(commit.at) <= when

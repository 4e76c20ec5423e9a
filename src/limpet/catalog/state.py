"""The state of a catalog: entries by key, and what each recent request was told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from limpet.catalog.records import Row

__all__ = ["ID_LIFETIME", "State"]

ID_LIFETIME = timedelta(hours=24)
"""For how long a request's id is remembered; announced to clients."""


class State:
    """Entries by key. A value of its own: `with_rows` makes a new one and leaves the old as it is.

    Entries are kept in two layers, so that a commit costs what it changes and not what there is.
    """

    def __init__(self, entries: Mapping[str, Any] | None = None, results: Mapping[str, Row] | None = None) -> None:
        self._entries: dict[str, Any] = dict(entries or {})
        self._results: dict[str, Row] = dict(results or {})

    def get(self, key: str) -> Any:
        """The value of an entry; None if there is none."""
        return self._entries.get(key)

    def under(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """The entries whose keys begin with `prefix`, in order."""
        return iter(sorted((key, value) for key, value in self._entries.items() if key.startswith(prefix)))

    def told(self, id_: str) -> Row | None:
        """The row of a request with that id, if it was granted."""
        return self._results.get(id_)

    def apply(self, rows: Iterable[Row]) -> None:
        """Make the changes of rows that were published."""
        for row in rows:
            for change in row.changes:
                if change.value is None:
                    self._entries.pop(change.key, None)
                else:
                    self._entries[change.key] = change.value
            self._results[row.id] = Row(row.id, row.what, row.at, (), row.result)

    def copy(self) -> State:
        """Another one that is the same."""
        return State(self._entries, self._results)

    def forget(self, at: str) -> None:
        """Drop ids that are older than their lifetime, as of the time `at` of the newest commit."""
        limit = (datetime.fromisoformat(at) - ID_LIFETIME).isoformat()
        self._results = {id_: row for id_, row in self._results.items() if row.at >= limit}

    def entries(self) -> Mapping[str, Any]:
        """Every entry."""
        return self._entries

    def results(self) -> Mapping[str, Row]:
        """Every remembered request."""
        return self._results

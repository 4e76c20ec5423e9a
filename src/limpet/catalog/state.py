"""The state of a catalog: entries by key, and what each recent request was told."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from limpet.catalog.records import ACTOR, Row, Told, moment

ID_LIFETIME = timedelta(minutes=30)
"""For how long a client's id is remembered; announced to clients."""
MINTED = "~"
"""How ids begin that Limpet made for requests without one. No client can send such an id again."""
MINTED_LIFETIME = timedelta(minutes=1)
"""Longer than a leader tries to have a request published."""

TIDY_ABOVE = 1000


class State:
    """Entries by key, in order, and answers by the id of their request."""

    def __init__(self, entries: Mapping[str, Any] | None = None, answers: Mapping[str, Told] | None = None) -> None:
        self._entries: dict[str, Any] = dict(entries or {})
        self._order: list[str] = sorted(self._entries)
        self._answers: dict[str, Told] = dict(answers or {})
        self._kept = len(self._answers)
        self._used = _keys_in(self._answers)

    def get(self, key: str) -> Any:
        """The value of an entry; None if there is none."""
        return self._entries.get(key)

    def under(self, prefix: str, after: str = "") -> Iterator[tuple[str, Any]]:
        """The entries whose keys begin with `prefix` and come after `after`, in order.   Cost: what is taken of it."""
        at = bisect_left(self._order, max(prefix, after))
        while at < len(self._order) and (key := self._order[at]).startswith(prefix):
            if key != after:
                yield key, self._entries[key]
            at += 1

    def told(self, id_: str) -> Told | None:
        """What the client of a granted request was told."""
        return self._answers.get(id_)

    def is_used(self, key: str) -> bool:
        """Whether a granted request had this key of a client's, for whatever it asked."""
        return key in self._used

    def apply(self, rows: Iterable[Row], at: str) -> None:
        """Make the changes of rows that were published at that time."""
        for row in rows:
            for change in row.changes:
                if change.key != ACTOR:
                    self._set(change.key, change.value)
            self._answers[row.id] = Told(row.what, at, row.result)
            self._used |= _keys_in([row.id])

    def _set(self, key: str, value: Any) -> None:
        if value is None:
            if self._entries.pop(key, None) is not None:
                del self._order[bisect_left(self._order, key)]
            return
        if key not in self._entries:
            insort(self._order, key)
        self._entries[key] = value

    def copy(self) -> State:
        """Another one that is the same."""
        other = State.__new__(State)
        other._entries = self._entries.copy()
        other._order = self._order.copy()
        other._answers = self._answers.copy()
        other._kept = self._kept
        other._used = self._used.copy()
        return other

    def forget(self, at: str) -> None:
        """Drop answers that are older than their ids live, as of the time `at` of the newest commit."""
        minted, given = _oldest(at, MINTED_LIFETIME), _oldest(at, ID_LIFETIME)
        self._answers = {
            id_: told for id_, told in self._answers.items() if told.at >= (minted if id_.startswith(MINTED) else given)
        }
        self._kept = len(self._answers)
        self._used = _keys_in(self._answers)

    def tidy(self, at: str) -> None:
        """`forget`, once there are so many more answers than after the last time that it pays."""
        if len(self._answers) > 2 * self._kept + TIDY_ABOVE:
            self.forget(at)

    def entries(self) -> Mapping[str, Any]:
        """Every entry."""
        return self._entries

    def answers(self) -> Mapping[str, Told]:
        """Every answer that is remembered, by id."""
        return self._answers


def scoped(key: str, digest: str) -> str:
    """The id of a request: a client's key, and a digest of what is asked under it."""
    return f"{key}.{digest}"


def _keys_in(ids: Iterable[str]) -> set[str]:
    """The clients' keys in ids; those that Limpet made hold none."""
    return {key for id_ in ids if (key := id_.rpartition(".")[0])}


def is_live(id_: str, told_at: str, at: str) -> bool:
    """Whether an id is still remembered at a time. Times are the store's, and those of commits never go back."""
    return told_at >= _oldest(at, MINTED_LIFETIME if id_.startswith(MINTED) else ID_LIFETIME)


def _oldest(at: str, lifetime: timedelta) -> str:
    return time_text(moment(at) - lifetime)


def time_text(at: datetime) -> str:
    """A time as commits hold it: UTC, always as many characters, so that it sorts."""
    return at.isoformat(timespec="microseconds")

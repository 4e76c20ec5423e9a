"""The state of a catalog, as pure functions: entries by key, and answers to recent requests.

The state is immutable. A change returns a new state that shares all but a few nodes with the old one. So the cost of a
group of requests depends on its changes, not on the number of tables, and readers may keep an older state. Values of
entries are stored as the JSON text of a snapshot: a snapshot is written without encoding them again, and a value is
decoded when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from limpet.catalog.records import ACTOR, RememberedAnswer, Row
from limpet.kernel.records import json_text, moment
from limpet.kernel.sortedmap import SortedMap

ID_LIFETIME = timedelta(minutes=30)
"""How long a client's id is remembered; announced to clients."""
MINTED = "~"
"""The prefix of ids that Limpet generates for requests without one. Clients cannot send such an id."""
MINTED_LIFETIME = timedelta(minutes=1)
"""Longer than a leader tries to publish a request."""
TIDY_ABOVE = 1000
Leaf = tuple[list[str], list[str]]
"""Keys of entries, and the JSON texts of their values. Both lists are immutable."""
_decode = msgspec.json.Decoder().decode


class CatalogState:
    """Entries by key, in order, and answers by the id of their request."""

    __slots__ = ("_answers", "_cased", "_entries", "_kept", "_used")

    def __init__(
        self, entries: Mapping[str, Any] | None = None, answers: Mapping[str, RememberedAnswer] | None = None
    ) -> None:
        self._entries = SortedMap({key: json_text(value) for key, value in (entries or {}).items()})
        self._answers = SortedMap(answers)
        self._used = SortedMap(dict.fromkeys(_client_keys(answers or ()), True))
        self._kept = len(self._answers)
        self._cased: SortedMap | None = None

    @staticmethod
    def of_texts(texts: Mapping[str, str], answers: Mapping[str, RememberedAnswer]) -> CatalogState:
        """A state from values as JSON text, in the form of `json_text`; null is not allowed."""
        made = CatalogState(answers=answers)
        made._entries = SortedMap(texts)
        return made

    def get(self, key: str) -> Any:
        """The value of an entry; None if there is none."""
        text = self._entries.get(key)
        return None if text is None else _decode(text)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def under(self, prefix: str, after: str = "") -> Iterator[tuple[str, Any]]:
        """The entries with this key prefix and after `after`, in order.   Cost: proportional to what is consumed."""
        for key, text in self._under(prefix, after):
            yield key, _decode(text)

    def keys_under(self, prefix: str, after: str = "") -> Iterator[str]:
        """The keys of `under`, without decoding values."""
        return (key for key, _ in self._under(prefix, after))

    def _under(self, prefix: str, after: str) -> Iterator[tuple[str, str]]:
        for key, text in self._entries.items(max(prefix, after)):
            if not key.startswith(prefix):
                return
            if key != after:
                yield key, text

    def answered(self, id_: str) -> RememberedAnswer | None:
        """The answer to a granted request."""
        found: RememberedAnswer | None = self._answers.get(id_)
        return found

    def is_used(self, key: str) -> bool:
        """Whether any granted request had this id of a client."""
        return key in self._used

    def cased_folders(self, prefix: str) -> Iterator[str]:
        """The folders with upper-case letters whose `cased_key` begins with `prefix`. Most catalogs have none.

        Cost: the first call reads all folders; later states inherit the result.
        """
        if self._cased is None:
            found = (key for kind in (LIVE, PURGED) for key in self.keys_under(f"{kind}/"))
            self._cased = SortedMap(dict.fromkeys(sorted(filter(None, map(cased_key, found))), True))
        for key, _ in self._cased.items(prefix):
            if not key.startswith(prefix):
                return
            yield key.partition(MARK)[2]

    def after(self, rows: Iterable[Row], at: str) -> CatalogState:
        """The state after rows that were published at that time.   Cost: proportional to their changes."""
        entries, answers, used, cased = self._entries, self._answers, self._used, self._cased
        for row in rows:
            for change in row.changes:
                if change.key != ACTOR:
                    gone = change.value is None
                    entries = entries.without(change.key) if gone else entries.put(change.key, json_text(change.value))
                    if cased is not None and (mark := cased_key(change.key)) is not None:
                        cased = _without_folder(cased, entries, mark) if gone else cased.put(mark, True)
            answers = answers.put(row.id, RememberedAnswer(row.what, at, row.result))
            for key in _client_keys([row.id]):
                used = used.put(key, True)
        return _state(entries, answers, used, self._kept, cased)

    def forgetting(self, at: str) -> CatalogState:
        """The state without expired answers, as of the time `at` of the newest commit.

        Cost: proportional to the number of answers.
        """
        minted, given = _oldest(at, MINTED_LIFETIME), _oldest(at, ID_LIFETIME)
        kept = {
            id_: answer
            for id_, answer in self._answers.items()
            if answer.at >= (minted if id_.startswith(MINTED) else given)
        }
        used = SortedMap(dict.fromkeys(_client_keys(kept), True))
        return _state(self._entries, SortedMap(kept), used, len(kept), self._cased)

    def tidied(self, at: str) -> CatalogState:
        """`forgetting`, if the number of answers has grown enough since the last time."""
        return self.forgetting(at) if len(self._answers) > 2 * self._kept + TIDY_ABOVE else self

    def entries(self) -> dict[str, Any]:
        """Every entry, in order.   Cost: all are decoded."""
        return {key: _decode(text) for key, text in self._entries.items()}

    def leaves(self) -> list[Leaf]:
        """All keys in order and the JSON texts of their values, in pieces: `SortedMap.leaves`."""
        return self._entries.leaves()

    def answers(self) -> dict[str, RememberedAnswer]:
        """All remembered answers, by id.   Cost: a copy."""
        return dict(self._answers.items())


def _state(entries: SortedMap, answers: SortedMap, used: SortedMap, kept: int, cased: SortedMap | None) -> CatalogState:
    made = CatalogState.__new__(CatalogState)
    made._entries, made._answers, made._used, made._kept, made._cased = entries, answers, used, kept, cased
    return made


def cased_key(key: str) -> str | None:
    """For the key of a folder with upper-case letters: its `folded` form, a mark, and the folder; else None."""
    if not key.startswith((f"{LIVE}/", f"{PURGED}/")):
        return None
    root = key[2:]
    name = folded(root)
    return f"{name}{MARK}{root}" if name != root else None


def _without_folder(cased: SortedMap, entries: SortedMap, mark: str) -> SortedMap:
    """A folder may be released as a live one and recorded as a purged one by the same request."""
    root = mark.partition(MARK)[2]
    return cased if any(f"{kind}/{root}" in entries for kind in (LIVE, PURGED)) else cased.without(mark)


def scoped(key: str, digest: str) -> str:
    """The id of a request: a client's id, and a digest of the request."""
    return f"{key}.{digest}"


def _client_keys(ids: Iterable[str]) -> set[str]:
    """The clients' ids in scoped ids; generated ones contain none."""
    return {key for id_ in ids if (key := id_.rpartition(".")[0])}


def is_remembered(id_: str, told_at: str, at: str) -> bool:
    """Whether an id is still remembered at a time. Times are the store's; times of commits never decrease."""
    return told_at >= _oldest(at, MINTED_LIFETIME if id_.startswith(MINTED) else ID_LIFETIME)


def _oldest(at: str, lifetime: timedelta) -> str:
    return time_text(moment(at) - lifetime)


def time_text(at: datetime) -> str:
    """A time as text, as in commits: UTC, fixed width, so that it sorts."""
    return at.isoformat(timespec="microseconds")


# ---- names, entries and folders ----

LIVE, PURGED = "l", "p"
MARK = "\0"
"""It is in no name of a folder."""


def folded(root: str) -> str:
    """A form that is equal for folders that differ only in upper and lower case, however a store compares those."""
    return root.replace("\u0130", "i").casefold()

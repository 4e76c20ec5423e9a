"""What the users of an index wrote and read, checked as they go: every read is as new as it must be.

A write counts from the moment it is sent: it may land even if nobody is told so. A read that begins after another
ended, or after a write was acknowledged, never shows anything older. The rank of a line is worked out here once more,
so that a mistake in `limpet.index` is not believed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from limpet.keys import Key
from limpet.sim.world import Violation

__all__ = ["Books", "Line", "Rank", "Shown", "line_of", "lines_in"]

Rank = tuple[bytes, bytes, bytes]

KEY_AT, BY_AT, STAMP_AT, GONE_AT = range(4)
SEPARATOR, NULL = b"\x1f", b"\\N"
_known: dict[bytes, Line] = {}
KNOWN_MAX = 10_000


class Shown(Protocol):
    """A record as a user sees it."""

    @property
    def by(self) -> str | None:
        """Who wrote it, and which of theirs it is: nobody writes the same twice."""

    @property
    def updated_at(self) -> datetime | None:
        """When."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an index, as the checks see it."""

    key: str
    by: str
    rank: Rank
    width: int

    @property
    def stamp(self) -> str:
        """When it was written, as text."""
        return self.rank[0].decode()

    @property
    def gone(self) -> bool:
        """Whether it is a tombstone."""
        return self.rank[1] == b"1"

    def __str__(self) -> str:
        return f"{self.key!r} at {self.stamp} ({'deleted' if self.gone else self.by})"


def line_of(data: bytes) -> Line:
    """A line without its LF."""
    line = _known.get(data)
    if line is None:
        fields = data.split(SEPARATOR)
        content = [*fields]
        while content[-1] == NULL:
            content.pop()
        rank = (fields[STAMP_AT], fields[GONE_AT], SEPARATOR.join(content))
        line = Line(fields[KEY_AT].decode(), fields[BY_AT].decode(), rank, len(fields))
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[data] = line
    return line


def lines_in(data: bytes) -> list[Line]:
    """The lines of an object.   Raises: Violation for one that was cut off."""
    lines = data.split(b"\n")
    if lines.pop():
        raise Violation(f"an object does not end with a line feed: {data[-60:]!r}")
    return [line_of(line) for line in lines]


Floors = Mapping[str, Rank | None]


@dataclass(slots=True)
class _Handle:
    """What one process knows: its own stamps, and what it was shown, by key."""

    stamped: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)

    def saw(self, key: str, stamp: str) -> None:
        """A later put must count as later."""
        self.seen[key] = max(stamp, self.seen.get(key, ""))


@dataclass(slots=True)
class Books:
    """Every write that was sent, and for each key the rank below which no later read may fall."""

    sent: dict[str, dict[Rank, Line]] = field(default_factory=dict)
    bad: dict[Key, bytes] = field(default_factory=dict)
    operations: int = 0
    _by: dict[tuple[str, str], Line] = field(default_factory=dict)
    _floor: dict[str, Rank] = field(default_factory=dict)
    _safe: dict[str, Rank] = field(default_factory=dict)
    _handles: dict[str, _Handle] = field(default_factory=dict)

    def sends(self, who: str, line: Line, given: Container[str]) -> None:
        """A user's write leaves its process; the user chose the time of those `given`.   Raises: Violation."""
        self.sent.setdefault(line.key, {})[line.rank] = line
        if not line.gone:
            self._by[line.key, line.by] = line
        if line.by in given:
            return
        handle = self._handle(who)
        if line.stamp <= handle.stamped.get(line.key, ""):
            raise Violation(f"{who} stamped {line} although it had stamped {handle.stamped[line.key]} before")
        if line.stamp <= handle.seen.get(line.key, ""):
            raise Violation(f"{who} stamped {line} although it had seen {handle.seen[line.key]}")
        handle.stamped[line.key] = line.stamp

    def acknowledged(self, who: str, lines: Iterable[Line], given: Container[str]) -> None:
        """A write was answered: from now on everybody sees it, or something later."""
        for line in lines:
            self._raise(line.key, line.rank)
            self._safe[line.key] = max(line.rank, self._safe.get(line.key, line.rank))
            if line.by in given:
                self._handle(who).saw(line.key, line.stamp)

    def lost_power(self) -> None:
        """What was only read may be gone: a reader sees a write before it is durable."""
        self._floor = dict(self._safe)

    def begins(self, keys: Iterable[str]) -> Floors:
        """A read sets out."""
        return {key: self._floor.get(key) for key in keys}

    def ends(self, who: str, floors: Floors, found: Mapping[str, Shown], *, got: bool = True) -> None:
        """A read was answered; `got`: by `get`, which the process's next put of the key must exceed.

        Raises: Violation.
        """
        ranks: dict[str, Rank | None] = {}
        for key, floor in floors.items():
            record = found.get(key)
            ranks[key] = rank = self._nothing(who, key, floor) if record is None else self._shown(who, key, record)
            if floor is not None and rank is not None and rank < floor:
                raise Violation(
                    f"{who} read {self.sent[key][rank]} after {self.sent[key][floor]} was acknowledged or read"
                )
        for key, rank in ranks.items():
            if rank is not None:
                self._raise(key, rank)
                if got:
                    self._handle(who).saw(key, rank[0].decode())

    def _shown(self, who: str, key: str, record: Shown) -> Rank:
        line = self._by.get((key, record.by or ""))
        if line is None:
            raise Violation(f"{who} read {key!r} by {record.by!r}, which nobody wrote")
        if record.updated_at is None or line.stamp != f"{record.updated_at:%Y-%m-%dT%H:%M:%S.%f}Z":
            raise Violation(f"{who} read {line} with another time: {record.updated_at}")
        return line.rank

    def _nothing(self, who: str, key: str, floor: Rank | None) -> Rank | None:
        """The least tombstone that explains why there was nothing; None if nothing needs to be explained."""
        if floor is None:
            return None
        deletes = [rank for rank, line in self.sent[key].items() if line.gone and rank >= floor]
        if not deletes:
            raise Violation(f"{who} found nothing although {self.sent[key][floor]} was acknowledged or read")
        return min(deletes)

    def _raise(self, key: str, rank: Rank) -> None:
        self._floor[key] = max(rank, self._floor.get(key, rank))

    def _handle(self, who: str) -> _Handle:
        return self._handles.setdefault(who, _Handle())

"""What must be true of a catalog, worked out beside it: every head as it is published, every answer as it is given.

The order of the commits is the serial order. Each request is decided here once more, on the state that those before it
left behind; so a mistake in `limpet.catalog` is not believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from limpet.catalog.records import ACTOR, Row
from limpet.catalog.state import is_live
from limpet.errors import Conflict
from limpet.sim.world import Violation, World

__all__ = ["Books", "Call", "Entries", "Grants", "No", "Request", "ruling"]

Entries = Mapping[str, Any]
"""The state: by key a value, `{"v": text}`, with `"file"` where it came with an object."""

SLACK = timedelta(seconds=5)
"""By so much may the clock of a leader be ahead of that of a compactor, and so forget an id before its time."""


class No(Conflict):
    """A request is refused, and why: it names the value that is in the way, and nobody writes a value twice."""


@dataclass(frozen=True, slots=True)
class Request:
    """Make, change or drop entries, if each is as expected. `expected`: by key a text, or None for no entry."""

    what: str
    expected: Mapping[str, str | None]
    wanted: Mapping[str, str | None]
    with_file: bool = False


@dataclass(frozen=True, slots=True)
class Grants:
    """A request is granted: the texts that it leaves behind, and what its client is told."""

    texts: Mapping[str, str | None]
    result: Any


def ruling(request: Request, entries: Entries) -> Grants | str:
    """What a state says to a request; a text is why not."""
    found = {key: entries[key]["v"] if key in entries else None for key in request.wanted}
    for key, text in request.expected.items():
        if found[key] != text:
            return f"{key} is {found[key]}, not {text}"
    return Grants(request.wanted, {"was": [found[key] for key in sorted(found)]})


@dataclass(slots=True)
class Call:
    """One call of `Leader.commit`. `first` is the serial point at which it began; an open one has no outcome."""

    id: str
    who: str
    request: Request
    began_s: float
    first: int
    ended_s: float = float("inf")
    outcome: str = ""
    actor: str = ""


@dataclass(slots=True)
class _Granted:
    point: int
    at: str
    result: Any
    by: str
    written_s: float


@dataclass(slots=True)
class Books:
    """Every call, every serial point, every grant."""

    world: World
    points: list[Entries] = field(default_factory=lambda: [{}])
    """The state after each granted request, in order: all states that ever were."""
    granted: dict[str, list[_Granted]] = field(default_factory=dict)
    calls: dict[str, list[Call]] = field(default_factory=dict)
    operations: int = 0

    def begins(self, id_: str, who: str, request: Request, actor: str) -> Call:
        """A process is asked to commit, by a client of that name."""
        self.operations += 1
        call = Call(id_, who, request, self.world.now_s, len(self.points) - 1, actor=actor)
        self.calls.setdefault(id_, []).append(call)
        return call

    def _ends(self, call: Call, outcome: str, detail: object = "") -> None:
        call.ended_s, call.outcome = self.world.now_s, outcome
        self.world.note(call.who, "answers", call.id, call.request.what, f"{outcome} {detail}")

    def told(self, call: Call, result: Any) -> None:
        """It was acknowledged.   Raises: Violation unless it is published, with that very result."""
        self._ends(call, "ok", result)
        grants = self.granted.get(call.id, [])
        if not grants:
            raise Violation(f"{call.who} acknowledged {call.id}, which is not published")
        if result not in [grant.result for grant in grants]:
            raise Violation(f"{call.id} was told {result}, and {grants[-1].result} was published")

    def refused(self, call: Call, why: str) -> None:
        """It was refused.   Raises: Violation unless that was so at some moment of the call."""
        self._ends(call, "no", why)
        grant = self.granted.get(call.id, [])[-1:]
        for at, entries in enumerate(self.points[call.first :], call.first):
            if grant and grant[0].point <= at and is_live(call.id, grant[0].at, _later(self.store_time())):
                raise Violation(f"{call.id} was published, and {call.who} refused it: {why}")
            if ruling(call.request, entries) == why:
                return
        raise Violation(f"{call.who} refused {call.id} because {why}, and that was never so during the call")

    def store_time(self) -> str:
        """The store's clock."""
        return self.world.store_time().isoformat(timespec="microseconds")

    def not_attempted(self, call: Call) -> None:
        """It was answered by 503."""
        self._ends(call, "503")

    def unknown(self, call: Call) -> None:
        """It was answered by 500: it stays open."""
        self._ends(call, "unknown")

    def publish(self, row: Row, at: str, by: str, written_s: float, read: Callable[[str], bytes | None]) -> None:
        """A head holds a new row, whose batch `by` wrote.   Raises: Violation."""
        before = self.points[-1]
        calls = self.calls.get(row.id)
        if not calls:
            raise Violation(f"{row.id} was published, and nobody ever sent it")
        earlier = self.granted.get(row.id, [])[-1:]
        if earlier and is_live(row.id, earlier[0].at, _later(at)):
            raise Violation(f"{row.id} was published twice")
        for call in calls:
            if call.outcome == "no" and written_s < call.began_s:
                raise Violation(f"{call.who} refused {row.id}, and then an older copy of it was published")
        rules = ruling(calls[0].request, before)
        if isinstance(rules, str):
            raise Violation(f"{row.id} was published although {rules}")
        if row.actor not in {call.actor for call in calls}:
            raise Violation(f"{row.id} was published as a request of {row.actor!r}, and {calls[0].actor!r} sent it")
        changes = [change for change in row.changes if change.key != ACTOR]
        texts = {change.key: change.value["v"] if change.value else None for change in changes}
        if texts != rules.texts or row.result != rules.result:
            raise Violation(f"{row.id} was published as {row}, and should be {rules}")
        after = dict(before)
        for change in changes:
            if change.value is None:
                after.pop(change.key, None)
                continue
            file = change.value.get("file")
            if file is not None and read(file) != row.id.encode():
                raise Violation(f"{row.id} was published, and {file} is not there yet, or not its own")
            after[change.key] = change.value
        self.points.append(after)
        grant = _Granted(len(self.points) - 1, at, row.result, by, written_s)
        self.granted.setdefault(row.id, []).append(grant)

    def close(self) -> None:
        """At the end: what was published was attempted.   Raises: Violation."""
        for id_, grants in self.granted.items():
            for grant in grants:
                calls = [call for call in self.calls[id_] if call.who == grant.by]
                during = [call for call in calls if call.began_s <= grant.written_s <= call.ended_s]
                if not any(call.outcome in ("", "ok", "unknown") for call in during):
                    told = [call.outcome for call in during]
                    raise Violation(f"{id_} was published by {grant.by}, which had answered {told}")


def _later(at: str) -> str:
    return (datetime.fromisoformat(at) + SLACK).isoformat(timespec="microseconds")

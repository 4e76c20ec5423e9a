"""The newest events of a fleet: from the files that they were merged into, and from the ledger before that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from limpet.events import EXECUTIONS, OUTCOMES, Event
from limpet.events.fold import APPLIED_MAX, EventHead, Executions, read_batch
from limpet.events.ledger import OBJECT_BYTES_MAX
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.records import moment
from limpet.kernel.runtime import Runtime, ulid
from limpet.kernel.store.api import Store

TAIL_IDS_MAX = 100_000
STEP_S = 300.0
"""By how much a machine's clock may be set back between an event and the batch with it."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to list. An empty field matches all.   Raises: Invalid for an unknown outcome."""

    queues: Collection[str] = ()
    outcomes: Collection[str] = ()
    task: str | None = None
    since: datetime | None = None

    def __post_init__(self) -> None:
        for outcome in self.outcomes:
            if outcome not in OUTCOMES:
                raise Invalid(f"there is no outcome {outcome!r}", hint=f"there are {', '.join(OUTCOMES)}")

    def fits(self, event: Event) -> bool:
        """Whether the event matches."""
        fields = event.fields
        return (
            (not self.queues or fields.get("queue") in self.queues)
            and (not self.outcomes or fields.get("outcome") in self.outcomes)
            and (self.task is None or fields.get("task") == self.task)
            and (self.since is None or _is_since(event, self.since))
        )


def _is_since(event: Event, since: datetime) -> bool:
    """Whether an event is not older. One in a damaged file may have no time: it is left out."""
    try:
        return moment(event.at) >= since
    except Corrupt:
        return False


@dataclass(frozen=True, slots=True)
class Recent:
    """Events, the newest first, and the errors of unreadable objects. `cut`: more objects may hold some."""

    events: list[Event]
    unreadable: list[str]
    cut: bool = False


def recent(
    store: Store,
    runtime: Runtime,
    n: int,
    wanted: EventFilter = EventFilter(),
    *,
    batches_max: int | None = None,
    files_max: int | None = None,
) -> Recent:
    """The newest `n` matching events that were written, in the ledger or in folded files.

    `batches_max`, `files_max`: read no more objects of the ledger, or folded files, than the newest so many.
    Raises: Unsupported if there are folded events and pyarrow is not installed.
    Cost: 1 LIST per 1,000 objects of the ledger, 1 GET each; 1 GET + 1 for each file that may hold one of the newest.
    With `wanted.since`, objects that were written before are neither listed nor read.
    """
    keys = CatalogKeys.of(EXECUTIONS)
    found: dict[str, Event] = {}
    bad: list[str] = []
    floor = "" if wanted.since is None else ulid(max(0, int(1000 * (wanted.since.timestamp() - STEP_S))), 0)
    after = f"{keys.ledger}/{floor}" if floor else None
    listed = [stat.key for stat in store.list(keys.ledger, after=after) if keys.batch_id(stat.key) is not None]
    cut = batches_max is not None and len(listed) > batches_max
    if cut:
        listed = listed[-(batches_max or 0) :]
    for key, outcome in _read_batches(store, listed):
        if isinstance(outcome, str):
            bad.append(f"{key}: {outcome}")
        else:
            found |= {event.id: event for event in outcome if wanted.fits(event)}
    for number, (last, events) in enumerate(Executions(store, keys, runtime).newest_first(floor)):
        newest = sorted(found, reverse=True)[:n]
        if len(newest) == n and last < newest[-1]:
            break
        found |= {event.id: event for event in events if wanted.fits(event)}
        if number + 1 == files_max:
            cut = True
            break
    return Recent([found[id_] for id_ in sorted(found, reverse=True)[:n]], bad, cut)


def _read_batches(store: Store, keys: Sequence[Key]) -> Iterator[tuple[Key, tuple[Event, ...] | str]]:
    """The events of each batch, or why it cannot be read; none of one that was folded since.   Cost: 1 GET each."""
    for key, blob in store.get_many(keys, size_max=OBJECT_BYTES_MAX).items():
        try:
            if isinstance(blob, LimpetError):
                raise blob
            yield key, read_batch(blob.data, EXECUTIONS).events
        except Missing:
            continue
        except (Corrupt, Invalid, Unsupported) as error:
            yield key, str(error)


class SeenIds:
    """Ids that were seen, in bounded memory. Above `most` ids the lower half is forgotten: up to the highest of these,
    every id counts as seen."""

    def __init__(self, floor: str, most: int) -> None:
        self.floor = floor
        self._most = most
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def is_new(self, id_: str) -> bool:
        """Whether it is seen for the first time; from now on it is not."""
        if id_ <= self.floor or id_ in self._ids:
            return False
        self._ids.add(id_)
        if len(self._ids) > self._most:
            ids = sorted(self._ids)
            self.floor = ids[len(ids) // 2]
            self._ids = {*ids[len(ids) // 2 + 1 :]}
        return True


class EventTail:
    """Finds the matching events that were written since the last look. For one thread.

    An event is found once. Not found: events from more than an hour before the tail began, and those that are older
    than the last 50,000 of 100,000 matching ones.
    """

    def __init__(self, store: Store, runtime: Runtime, wanted: EventFilter) -> None:
        self._executions = Executions(store, CatalogKeys.of(EXECUTIONS), runtime)
        self._wanted = wanted
        self._seen = SeenIds(self._hours_off(-1), TAIL_IDS_MAX)
        self._read: set[str] = set()
        """The batches that were read, of those that the last look listed."""
        self._head = EventHead()

    def look(self) -> Recent:
        """What was written since the last look; at the first one, within the last hour.

        Raises: Unavailable (the next look finds the same); Unsupported if a batch was folded before it was read, and
        pyarrow is not installed.   Cost: 1 LIST per 1,000 batches of the last hour, then 1 GET for each that is new,
        together, then 1 GET of the head; and where batches were folded unread, 1 GET for each file that is new.
        """
        executions, keys = self._executions, self._executions.keys
        found: list[Event] = []
        bad: list[str] = []
        after = f"{keys.ledger}/{self._hours_off(-1)}"
        stats = executions.store.list(keys.ledger, after=after)
        listed = [stat.key for stat in stats if keys.batch_id(stat.key) is not None]
        read = {*self._read}
        for key, outcome in _read_batches(executions.store, [key for key in listed if key not in read]):
            read.add(key)
            if isinstance(outcome, str):
                bad.append(f"{key}: {outcome}")
            else:
                found += outcome
        head = executions.head()
        try:
            if unread_folds(self._head, head, read):
                known = {file.id for file in self._head.files}
                new = [file for file in head.files if file.id not in known and file.last > self._seen.floor]
                found += executions.events_of(new)
            self._head = head
        except Missing:  # merged since: the next look reads the file that it was merged into
            pass
        self._read = read.intersection(listed)
        ceiling = self._hours_off(1)  # ids of a clock that is far ahead must not raise the floor: they are not kept
        fitting = [event for event in found if self._wanted.fits(event)]
        fresh = [event for event in fitting if event.id > ceiling or self._seen.is_new(event.id)]
        return Recent(sorted(fresh, key=lambda event: event.id, reverse=True), bad)

    def _hours_off(self, hours: int) -> str:
        """The first id of the moment that is so many hours from now."""
        return ulid(max(0, int(1000 * (self._executions.runtime.wall().timestamp() + 3600 * hours))), 0)


def unread_folds(before: EventHead, after: EventHead, read: Collection[str]) -> bool:
    """Whether batches that are not in `read` were folded between two heads, as far as the later one tells."""
    if after.version == before.version:
        return False
    applied = [batch for batch in after.applied if batch.version > before.version]
    cut = len(applied) == len(after.applied) and len(applied) >= APPLIED_MAX
    return cut or not applied or any(batch.path not in read for batch in applied)

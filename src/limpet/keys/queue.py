"""The objects of a queue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from limpet.errors import Invalid
from limpet.keys.names import Key, check, name_of, segment

QUEUES = "queues"

_MINTED = re.compile(r"[0-9a-z]{26}(-[0-9]{1,4})?(\.[0-9]{1,4})?")


def is_minted(id_: str) -> bool:
    """Whether `id_` has the form of the ids that Limpet makes itself: a ULID, a batch of them, or a task of a batch."""
    return _MINTED.fullmatch(id_) is not None


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The objects of one queue. An `entry` is a segment already: a user's id encoded, or a minted one.

    Names sort so that one listing behind `pending` shows what waits and what is scheduled.
    """

    root: str

    @staticmethod
    def of(queue: str) -> QueueKeys:
        """The keys of the queue `queue`.   Raises: Invalid for a name that no segment can hold."""
        return QueueKeys(f"{QUEUES}/{segment(queue)}")

    @property
    def name(self) -> str:
        """The queue's name, as its users know it."""
        return name_of(self.root.removeprefix(f"{QUEUES}/"))

    @property
    def pending(self) -> str:
        """Where entries wait."""
        return f"{self.root}/pending"

    @property
    def scheduled(self) -> str:
        """Where delayed pushes wait for their time."""
        return f"{self.root}/scheduled"

    @property
    def completed(self) -> str:
        """The receipts of success."""
        return f"{self.root}/completed"

    @property
    def failed(self) -> str:
        """The receipts of failure."""
        return f"{self.root}/failed"

    @property
    def parts(self) -> str:
        """Results too large for a lease record, and bytes that could not be read."""
        return f"{self.root}/parts"

    @property
    def control(self) -> Key:
        """What an operator has set."""
        return Key(f"{self.root}/control.json")

    @property
    def sweep(self) -> Key:
        """When the queue was last swept."""
        return Key(f"{self.root}/sweep.json")

    def tasks(self, entry: str, *, batch: bool) -> Key:
        """The payload of an entry: one task, or a batch."""
        return Key(f"{self.root}/pending/{entry}/{'tasks.jsonl' if batch else 'task.json'}")

    def lease(self, entry: str) -> Key:
        """Who works on an entry."""
        return Key(f"{self.root}/pending/{entry}/lease.json")

    def remote(self, entry: str) -> Key:
        """Who works on an entry at another node, as far as a supervisor has heard."""
        return Key(f"{self.root}/pending/{entry}/remote.json")

    def completed_of(self, entry: str) -> Key:
        """The receipt of an entry, or of one task of a batch, that succeeded."""
        return Key(f"{self.root}/completed/{entry}.json")

    def failed_of(self, entry: str) -> Key:
        """The receipt of an entry, or of one task of a batch, that failed."""
        return Key(f"{self.root}/failed/{entry}.json")

    def scheduled_at(self, due: str, entry: str, id_: str) -> Key:
        """A push that is due at the time `due`, which sorts."""
        return Key(f"{self.root}/scheduled/{due}/{entry}@{id_}.json")

    def part(self, entry: str, id_: str) -> Key:
        """One part object of an entry."""
        return Key(f"{self.root}/parts/{entry}/{id_}.json")

    def slot(self, number: int) -> Key:
        """One of the leases that limit how many claims there are at once."""
        return Key(f"{self.root}/slots/{number}.lock")


_QUEUE_OBJECT = re.compile(
    r"(?P<root>queues/[^/]+)/(?:"
    r"pending/(?P<single>[^/]+)/task\.json"
    r"|pending/(?P<batch>[^/]+)/tasks\.jsonl"
    r"|scheduled/[^/]+/(?P<scheduled>[^/]+)@[^/@]+\.json"
    r"|completed/(?P<completed>[^/]+)\.json"
    r"|failed/(?P<failed>[^/]+)\.json"
    r"|parts/(?P<part>[^/]+)/[^/]+\.json)"
)

QueueObject = Literal["single", "batch", "scheduled", "completed", "failed", "part"]
_QUEUE_OBJECTS: tuple[QueueObject, ...] = get_args(QueueObject)


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """What an object of a queue is, as its key says: the entry that it belongs to, or the name of its receipt."""

    keys: QueueKeys
    kind: QueueObject
    name: str


def queue_place(key: str) -> QueuePlace | None:
    """What lies at `key`, if that is a place where a queue keeps tasks, receipts or parts; None for any other (F28)."""
    found = _QUEUE_OBJECT.fullmatch(key)
    if found is None:
        return None
    try:
        check(key)
    except Invalid:
        return None
    kind = next(each for each in _QUEUE_OBJECTS if found[each] is not None)
    return QueuePlace(QueueKeys(found["root"]), kind, found[kind])


def queue_at(folder: str) -> QueueKeys:
    """The keys of the queue in that folder of `queues/`, as a listing shows it."""
    return QueueKeys(f"{QUEUES}/{folder}")

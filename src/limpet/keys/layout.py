"""The bucket layout: the keys of a queue, of supervised nodes, of an index and of a catalog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from limpet.errors import Invalid
from limpet.keys.names import HASHED, Key, check, encoded, name_of, segment

QUEUES = "queues"
INDEXES = "indexes"
SYNC = "sync"
OUTBOX = f"{SYNC}/outbox"
CURSORS = f"{SYNC}/cursors"
DAMAGED = f"{SYNC}/damaged"
NODE = Key(f"{SYNC}/node.json")
SUPERVISOR = Key(f"{SYNC}/supervisor.lock")
LOG_MAX = 999_999_999
"""The last number of a log: one a second for 31 years. A larger one was not written by a node."""

QueueObject = Literal["single", "batch", "scheduled", "completed", "failed", "part"]
_QUEUE_OBJECTS: tuple[QueueObject, ...] = get_args(QueueObject)

_MINTED = re.compile(r"[0-9a-z]{26}(-[0-9]{1,4})?(\.[0-9]{1,4})?")
_ULID = re.compile("[0-7][0-9a-hjkmnp-tv-z]{25}")
_NOT_DIGITS = re.compile("[^0-9]")
_LOG = re.compile(r"sync/([^/]+)/([0-9]{10})\.jsonl")
_QUEUE_OBJECT = re.compile(
    r"(?P<root>queues/[^/]+)/(?:"
    r"pending/(?P<single>[^/]+)/task\.json"
    r"|pending/(?P<batch>[^/]+)/tasks\.jsonl"
    r"|scheduled/[^/]+/(?P<scheduled>[^/]+)@[^/@]+\.json"
    r"|completed/(?P<completed>[^/]+)\.json"
    r"|failed/(?P<failed>[^/]+)\.json"
    r"|parts/(?P<part>[^/]+)/[^/]+\.json)"
)


# ---- queues ----


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
        """The keys of the queue `queue`.   Raises: Invalid for an empty or unprintable name."""
        return QueueKeys(f"{QUEUES}/{segment(queue)}")

    @property
    def name(self) -> str:
        """The queue's name, as its users know it."""
        return name_of(self.root.removeprefix(f"{QUEUES}/"))

    @property
    def pending(self) -> str:
        """Folder of entries that wait or are held."""
        return f"{self.root}/pending"

    @property
    def scheduled(self) -> str:
        """Folder of delayed pushes that are not due."""
        return f"{self.root}/scheduled"

    @property
    def completed(self) -> str:
        """Folder of receipts of success."""
        return f"{self.root}/completed"

    @property
    def failed(self) -> str:
        """Folder of receipts of failure."""
        return f"{self.root}/failed"

    @property
    def parts(self) -> str:
        """Folder of results too large for a lease record, and of unreadable bytes."""
        return f"{self.root}/parts"

    @property
    def control(self) -> Key:
        """The settings of an operator."""
        return Key(f"{self.root}/control.json")

    @property
    def sweep(self) -> Key:
        """The time of the last sweep."""
        return Key(f"{self.root}/sweep.json")

    def tasks(self, entry: str, *, batch: bool) -> Key:
        """The payload of an entry: one task, or a batch."""
        return Key(f"{self.root}/pending/{entry}/{'tasks.jsonl' if batch else 'task.json'}")

    def lease(self, entry: str) -> Key:
        """The lease of an entry."""
        return Key(f"{self.root}/pending/{entry}/lease.json")

    def remote(self, entry: str) -> Key:
        """The lease of another node on an entry, as reported by its log."""
        return Key(f"{self.root}/pending/{entry}/remote.json")

    def completed_of(self, entry: str) -> Key:
        """The receipt of an entry, or of one task of a batch, that succeeded."""
        return Key(f"{self.root}/completed/{entry}.json")

    def failed_of(self, entry: str) -> Key:
        """The receipt of an entry, or of one task of a batch, that failed."""
        return Key(f"{self.root}/failed/{entry}.json")

    def scheduled_at(self, due: str, entry: str, id_: str) -> Key:
        """A push that is due at the time `due`, a text that sorts."""
        return Key(f"{self.root}/scheduled/{due}/{entry}@{id_}.json")

    def part(self, entry: str, id_: str) -> Key:
        """One part object of an entry."""
        return Key(f"{self.root}/parts/{entry}/{id_}.json")

    def slot(self, number: int) -> Key:
        """One of the leases that limit how many claims there are at once."""
        return Key(f"{self.root}/slots/{number}.lock")


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """The meaning of a queue's key: the kind of object, and its entry or the name of its receipt."""

    keys: QueueKeys
    kind: QueueObject
    name: str


def queue_place(key: str) -> QueuePlace | None:
    """The meaning of `key`, if it is that of a task, a receipt or a part of a queue; None for any other (F28)."""
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


# ---- supervised nodes ----


def outbox_key(id_: str) -> Key:
    """One entry of a node's outbox."""
    return Key(f"{OUTBOX}/{segment(id_)}.json")


def cursor_key(node: str) -> Key:
    """The last log of `node` that this node has applied."""
    return Key(f"{CURSORS}/{segment(node)}.json")


def log_key(node: str, seq: int) -> Key:
    """Log number `seq` of `node`. Keys sort by number."""
    return Key(f"{SYNC}/{segment(node)}/{seq:010d}.jsonl")


def damaged_key(id_: str) -> Key:
    """An unreadable object of a node's own directory, put aside."""
    return Key(f"{DAMAGED}/{segment(id_)}.json")


def log_of(key: str) -> tuple[str, int] | None:
    """The node and the number of a log; None for any other key, and for one that `log_key` does not make (F28)."""
    found = _LOG.fullmatch(key)
    if found is None or not 0 < int(found[2]) <= LOG_MAX:
        return None
    node = name_of(found[1])
    try:
        return (node, int(found[2])) if log_key(node, int(found[2])) == key else None
    except Invalid:
        return None


# ---- indexes: a `shard` is the first hex digits of a hash; a `key` is the text of a record's key ----


@dataclass(frozen=True, slots=True)
class IndexKeys:
    """The objects of one index."""

    root: str

    @staticmethod
    def of(index: str) -> IndexKeys:
        """The keys of the index `index`.   Raises: Invalid for an empty, unprintable or too long name."""
        folder = segment(index)
        if folder.startswith(HASHED):
            raise Invalid(f"the name {index[:40]!r}... is too long for an index", hint="a listing must tell its name")
        return IndexKeys(f"{INDEXES}/{folder}")

    @property
    def manifest(self) -> Key:
        """The columns and the number of shards."""
        return Key(f"{self.root}/manifest.json")

    @property
    def package(self) -> Key:
        """The Frictionless data package: derived from the manifest, for other tools."""
        return Key(f"{self.root}/datapackage.json")

    @property
    def json_schema(self) -> Key:
        """The columns as a JSON Schema: derived from the manifest, for other tools."""
        return Key(f"{self.root}/schema.json")

    @property
    def inbox(self) -> str:
        """Folder of puts of single records that wait to be compiled."""
        return f"{self.root}/inbox"

    @property
    def packs(self) -> str:
        """Folder of packs: many records of one shard, waiting to be compiled."""
        return f"{self.root}/packs"

    @property
    def shards(self) -> str:
        """Folder of compiled records."""
        return f"{self.root}/shards"

    @property
    def quarantine(self) -> str:
        """Folder of unreadable objects."""
        return f"{self.root}/quarantine"

    @property
    def adopted(self) -> str:
        """Folder of files of other programs that had names of the index: they are moved here, with those names."""
        return f"{self.root}/adopted"

    def inbox_of(self, shard: str, key: str | None = None) -> str:
        """Folder of the waiting puts of a shard, or of one record."""
        folder = f"{self.root}/inbox/{shard}"
        return folder if key is None else f"{folder}/{encoded(key)}"

    def single(self, shard: str, key: str, stamp: str, id_: str) -> Key:
        """One put of one record. Names sort by the stamp, a time of fixed width."""
        return Key(f"{self.inbox_of(shard, key)}/{digits(stamp)}-{id_}.usv")

    def packs_of(self, shard: str) -> str:
        """Folder of the waiting packs of a shard."""
        return f"{self.root}/packs/{shard}"

    def pack(self, shard: str, id_: str) -> Key:
        """Many records of one shard."""
        return Key(f"{self.root}/packs/{shard}/{id_}.usv")

    def shard(self, shard: str) -> Key:
        """The compiled records of a shard."""
        return Key(f"{self.root}/shards/{shard}.usv")

    def lock(self, shard: str) -> Key:
        """The lock of a shard's compiler."""
        return Key(f"{self.root}/shards/{shard}.lock")

    def import_(self, id_: str) -> Key:
        """The progress of the import of a file."""
        return Key(f"{self.root}/imports/{id_}.json")

    def quarantined(self, shard: str, id_: str) -> Key:
        """An unreadable object, with the reason."""
        return Key(f"{self.root}/quarantine/{shard}/{id_}.json")


def digits(stamp: str) -> str:
    """A time of fixed width as the name of a single has it."""
    return _NOT_DIGITS.sub("", stamp)


def single_stamp(key: str) -> str:
    """The stamp in the name of a single, as digits that sort."""
    return key.rpartition("/")[2].partition("-")[0]


# ---- catalogs, by domain (`catalog`, `executions`) ----


def is_ulid(text: str) -> bool:
    """Whether it is an id as `Runtime.new_id` makes them."""
    return _ULID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class CatalogKeys:
    """The objects of one domain. `id_` is a ULID: names rise with time."""

    domain: str

    @staticmethod
    def of(domain: str) -> CatalogKeys:
        """The keys of a domain.   Raises: Invalid for an empty or unprintable name."""
        return CatalogKeys(segment(domain))

    @property
    def lock(self) -> Key:
        """The lock of the leader."""
        return Key(f"locks/{self.domain}.lock")

    @property
    def head(self) -> Key:
        """The cell that says what is published."""
        return Key(f"manifests/{self.domain}.json")

    @property
    def ledger(self) -> str:
        """Folder of batches of events."""
        return f"ledger/{self.domain}"

    @property
    def sequence(self) -> Key:
        """The counter of positions."""
        return Key(f"sequence/{self.domain}.json")

    @property
    def states(self) -> str:
        """Folder of files of folded events."""
        return f"state/{self.domain}"

    @property
    def quarantine(self) -> str:
        """Folder of unreadable batches."""
        return f"quarantine/{self.domain}"

    @property
    def commits(self) -> str:
        """Folder of commit records."""
        return f"commits/{self.domain}"

    @property
    def snapshots(self) -> str:
        """Folder of snapshots."""
        return f"snapshots/{self.domain}"

    def batch(self, id_: str) -> Key:
        """A batch of events."""
        return Key(f"{self.ledger}/{id_}.json")

    def commit(self, id_: str) -> Key:
        """A commit record."""
        return Key(f"{self.commits}/{id_}.json")

    def snapshot(self, id_: str) -> Key:
        """A snapshot of the state."""
        return Key(f"{self.snapshots}/{id_}.parquet")

    def state(self, id_: str) -> Key:
        """A file of folded events."""
        return Key(f"{self.states}/{id_}.parquet")

    def quarantined(self, id_: str) -> Key:
        """An unreadable batch, unchanged."""
        return Key(f"{self.quarantine}/{id_}.json")

    def reason(self, id_: str) -> Key:
        """Why a batch is in quarantine."""
        return Key(f"{self.quarantine}/{id_}.reason.json")

    def id_of(self, path: str) -> str | None:
        """The id in the name of one of this domain's objects; None for an object with another name."""
        id_ = path.rsplit("/", 1)[-1].split(".", 1)[0]
        named = (self.batch, self.commit, self.snapshot, self.state, self.quarantined, self.reason)
        return id_ if is_ulid(id_) and path in [name(id_) for name in named] else None

    def batch_id(self, path: str) -> str | None:
        """The id of the batch at `path`; None for a path that is not one of this domain's batches (F28)."""
        id_ = path.removeprefix(f"{self.ledger}/").removesuffix(".json")
        return id_ if is_ulid(id_) and path == self.batch(id_) else None

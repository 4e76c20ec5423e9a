"""The only builder of object keys.

A key is `segment/segment/...`. Rooms never join strings themselves: they call a function here, so that a user's name
cannot climb out of its prefix, alias another name, or be refused by one store and taken by the next (F26, F28).

Two encodings, one for each border:

- `segment(name)` turns a user's name into one segment of `[A-Za-z0-9_-]`, non-leading dots and `%XX`.
- `disk_name(segment, leaf=)` turns a segment into a file name that survives case-folding and Unicode-normalising
  disks, and keeps the object `k` apart from the folder of `k/x`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NewType, get_args
from urllib.parse import quote, unquote

from limpet.errors import Invalid

__all__ = [
    "CURSORS",
    "FLEET",
    "NODE",
    "OUTBOX",
    "SUPERVISOR",
    "SYNC",
    "Key",
    "QueueKeys",
    "QueuePlace",
    "cell_key",
    "check",
    "check_prefix",
    "clock_key",
    "cursor_key",
    "disk_name",
    "from_disk_name",
    "is_minted",
    "is_own_path",
    "join",
    "lock_key",
    "log_key",
    "log_of",
    "name_of",
    "outbox_key",
    "probe_key",
    "queue_at",
    "queue_place",
    "segment",
]

Key = NewType("Key", str)

KEY_BYTES_MAX = 900
DISK_NAME_BYTES_MAX = 240
SEGMENT_BYTES_MAX = 160
HASHED = "%h"

FLEET = Key("limpet.json")
LOCKS = "locks/user"
CELLS = "cells"
QUEUES = "queues"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_HIDDEN_FOLDER = re.compile(r"(^|/)(\.uploads|[^/]*\.versions)/")
_FILE_ENDING = re.compile(r"\.(json|jsonl|usv|lock|parquet|avro|puffin|csv|txt|sql)$")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_DISK_UNSAFE = re.compile(r"^\.|[^a-z0-9._%@~+,-]")
_DISK_ESCAPE = re.compile(r"=([0-9a-f]{2})")
_PLAIN = re.compile(r"(?:[a-z0-9_%@~+,-][a-z0-9._%@~+,-]*(?:/|$))+")
_ODD_FOLDER = re.compile(r"\.(json|jsonl|usv|lock|parquet|avro|puffin|csv|txt|sql|versions)/")
_MINTED = re.compile(r"[0-9a-z]{26}(-[0-9]{1,4})?(\.[0-9]{1,4})?")


def segment(name: str) -> str:
    """One key segment for a user's name; distinct names give distinct segments.

    Raises: Invalid for an empty name, control characters or text that is not valid Unicode.
    """
    if not isinstance(name, str) or not name:
        raise Invalid(f"a name must be a non-empty string, not {name!r}")
    if _CONTROL.search(name):
        raise Invalid(f"the name {name!r} has control characters", hint="use printable characters")
    encoded = _PERCENT.sub(lambda found: found[0].lower(), quote(name, safe="").replace("~", "%7e"))
    if encoded.startswith("."):
        encoded = "%2e" + encoded[1:]
    if encoded.endswith(".versions"):
        encoded = encoded.removesuffix(".versions") + "%2eversions"
    if max(len(encoded), len(disk_name(encoded, leaf=False))) > SEGMENT_BYTES_MAX:
        return HASHED + hashlib.sha256(name.encode()).hexdigest()
    return encoded


def name_of(encoded: str) -> str:
    """The user's name behind a segment (a hashed one stays as it is)."""
    return encoded if encoded.startswith(HASHED) else unquote(encoded)


@lru_cache(maxsize=4096)
def check(key: str) -> Key:
    """`key`, if every store can hold it; the same rule for all of them.

    Raises: Invalid for `..`, empty segments, a leading slash, control characters, what some server misreads
    (a backslash, folders named `.uploads` or `*.versions`), or more bytes than a store takes.
    """
    if not isinstance(key, str) or not key:
        raise Invalid(f"a key must be a non-empty string, not {key!r}")
    if is_own_path(key):
        return Key(key)
    if _CONTROL.search(key):
        raise Invalid(f"the key {key!r} has control characters", hint="use printable characters")
    if "\\" in key or _HIDDEN_FOLDER.search(key):
        raise Invalid(
            f"the key {key!r} has a backslash, or a folder `.uploads` or `*.versions`",
            hint="some servers take the one for a slash and hide the others; choose another name",
        )
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise Invalid(f"the key {key!r} has an empty, '.' or '..' segment", hint="write it as segment/segment")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise Invalid(f"a key has at most {KEY_BYTES_MAX} bytes, this one {len(key.encode())}")
    for i, part in enumerate(parts):
        if len(disk_name(part, leaf=i == len(parts) - 1)) > DISK_NAME_BYTES_MAX:
            raise Invalid(f"the key segment {part[:40]!r}... is too long", hint="use a shorter name")
    return Key(key)


@lru_cache(maxsize=1024)
def check_prefix(prefix: str) -> str:
    """`prefix` if it is empty or whole segments; without a trailing slash."""
    return str(check(prefix.removesuffix("/"))) if prefix else ""


def is_own_path(key: str) -> bool:
    """Whether every store can hold `key`, and a disk under just that path. True for nearly all that Limpet makes."""
    return (
        len(key) < DISK_NAME_BYTES_MAX
        and _PLAIN.fullmatch(key) is not None
        and _FILE_ENDING.search(key) is not None
        and _ODD_FOLDER.search(key) is None
    )


def join(prefix: str, key: str) -> Key:
    """`key` below `prefix` (which may be empty)."""
    return Key(f"{prefix}/{key}") if prefix else Key(key)


def disk_name(part: str, *, leaf: bool) -> str:
    """The file name of one segment: lower-case ASCII, `=xx` for every other byte.

    Objects end in a known ending or else in `=`, folders the other way round, so `k` and `k/x` never collide.
    """
    name = _DISK_UNSAFE.sub(_escape, part)
    return name if bool(_FILE_ENDING.search(name)) is leaf else name + "="


def from_disk_name(name: str) -> str | None:
    """The segment behind a file name; None for a file that is not ours."""
    try:
        raw = _DISK_ESCAPE.sub(lambda m: chr(int(m[1], 16)), name.removesuffix("="))
        return raw.encode("latin-1").decode()
    except UnicodeError:
        return None


def _escape(found: re.Match[str]) -> str:
    return "".join(f"={byte:02x}" for byte in found[0].encode())


def lock_key(name: str) -> Key:
    """The lease record of a user's lock."""
    return Key(f"{LOCKS}/{segment(name)}.lock")


def cell_key(name: str) -> Key:
    """The object of a user's cell."""
    return Key(f"{CELLS}/{segment(name)}.json")


def clock_key(slot: int) -> Key:
    """An object that is rewritten only to read the store's clock from its LastModified."""
    return Key(f"clock/{slot:x}.json")


def probe_key(id_: str, name: str) -> Key:
    """A throw-away object of one `doctor` run."""
    return Key(f"probe/{segment(id_)}/{segment(name)}.json")


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


SYNC = "sync"
OUTBOX = f"{SYNC}/outbox"
CURSORS = f"{SYNC}/cursors"
NODE = Key(f"{SYNC}/node.json")
SUPERVISOR = Key(f"{SYNC}/supervisor.lock")

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

QueueObject = Literal["single", "batch", "scheduled", "completed", "failed", "part"]
_QUEUE_OBJECTS: tuple[QueueObject, ...] = get_args(QueueObject)


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """What an object of a queue is, as its key says: the entry that it belongs to, or the name of its receipt."""

    keys: QueueKeys
    kind: QueueObject
    name: str

    @property
    def queue(self) -> str:
        """The queue's name, as its users know it."""
        return name_of(self.keys.root.removeprefix(f"{QUEUES}/"))


def queue_place(key: str) -> QueuePlace | None:
    """What lies at `key`, if that is a place where a queue keeps tasks, receipts or parts; None for any other (F28)."""
    found = _QUEUE_OBJECT.fullmatch(key)
    if found is None:
        return None
    check(key)
    kind = next(each for each in _QUEUE_OBJECTS if found[each] is not None)
    return QueuePlace(QueueKeys(found["root"]), kind, found[kind])


def queue_at(folder: str) -> QueueKeys:
    """The keys of the queue in that folder of `queues/`, as a listing shows it."""
    return QueueKeys(f"{QUEUES}/{folder}")


def outbox_key(id_: str) -> Key:
    """One entry of a node's outbox."""
    return Key(f"{OUTBOX}/{segment(id_)}.json")


def cursor_key(node: str) -> Key:
    """How far this node has read the logs of `node`."""
    return Key(f"{CURSORS}/{segment(node)}.json")


def log_key(node: str, seq: int) -> Key:
    """What `node` did, part `seq`. Keys sort by it."""
    return Key(f"{SYNC}/{segment(node)}/{seq:010d}.jsonl")


def log_of(key: str) -> tuple[str, int] | None:
    """The node and the number of a log; None for any other key."""
    found = _LOG.fullmatch(key)
    return (name_of(found[1]), int(found[2])) if found else None

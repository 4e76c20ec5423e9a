"""Builds and parses all object keys: which keys are valid, and the layout of a bucket.

A key is `segment/segment/...`. Other packages never join strings themselves: they call a function here, so that a
user's name cannot leave its prefix or collide with another name, and so that every store accepts the key (F26, F28).

There are two encodings:

- `segment(name)` turns a user's name into one segment of `[A-Za-z0-9_-]`, non-leading dots and `%XX`.
- `disk_name(segment, leaf=)` turns a segment into a file name that is safe on file systems that fold case or normalise
  Unicode, and differs for the object `k` and the folder of `k/x`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Generic, Literal, NewType, TypeVar
from urllib.parse import quote, unquote

from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import ComputedField, sha256

Key = NewType("Key", str)
K = TypeVar("K", bound=str)

KEY_BYTES_MAX = 900
DISK_NAME_BYTES_MAX = 240
SEGMENT_BYTES_MAX = 160
HASHED = "%h"

FLEET = Key("limpet.json")
LOCKS = "locks/user"
WORKERS = "workers"
CELLS = "cells"
BACKUP = Key("backup.json")
BACKUPS = "backup"
BACKUP_LOCK = Key("backup/run.lock")

_CONTROL = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
"""Text, since it takes 5 ms to compile: `re` does so for the first name that is not printable."""
_HIDDEN_FOLDER = re.compile(r"(^|/)(\.uploads|[^/]*\.versions)/")
_FILE_ENDING = re.compile(r"\.(json|jsonl|usv|lock|parquet|avro|puffin|csv|txt|sql)$")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_DISK_UNSAFE = re.compile(r"^\.|[^a-z0-9._%@~+,-]")
_DISK_ESCAPE = re.compile(r"=([0-9a-f]{2})")
_PLAIN = re.compile(r"(?:[a-z0-9_%@~+,-][a-z0-9._%@~+,-]*(?:/|$))+")
_ODD_FOLDER = re.compile(r"\.(json|jsonl|usv|lock|parquet|avro|puffin|csv|txt|sql|versions)/")

QUEUES = "queues"
INDEXES = "indexes"
SYNC = "sync"
OUTBOX = f"{SYNC}/outbox"
CURSORS = f"{SYNC}/cursors"
DAMAGED = f"{SYNC}/damaged"
NODE = Key(f"{SYNC}/node.json")
SUPERVISOR = Key(f"{SYNC}/supervisor.lock")
LOG_MAX = 999_999_999
"""The highest number of a log: one log a second for 31 years. A node never writes a higher one."""

RETRY_MARK = "~"
"""Before the number of a retry: `<id>~1` is the first retry of the task `<id>`."""
TASK = "task.json"
BATCH = "tasks.jsonl"
LEASE = "lease.json"
REMOTE = "remote.json"
_ENTRY_OBJECTS = frozenset((TASK, BATCH, LEASE, REMOTE))

QueueObject = Literal["single", "batch", "scheduled", "completed", "failed", "part"]

DERIVED = "z"
"""How the names begin that Limpet derives from an id: no ULID begins so."""
HISTORY = "history-"
STEPS_MAX = 1000
"""The most steps of one task."""

_STEP = re.compile(r"(?P<entry>[^/]+)/(?P<task>[0-9]{1,3})\.(?P<number>[0-9]{4})\.json")
_SIGNAL = re.compile(r"(?P<entry>[^/]+)/signals/(?P<task>[0-9]{1,3})\.[^/]+\.json")
_MINTED = re.compile(r"[0-9a-z]{26}(-[0-9]{1,4})?(\.[0-9]{1,4})?")
_ULID = re.compile("[0-7][0-9a-hjkmnp-tv-z]{25}")
_RETRY = re.compile("(?P<number>[0-9]{1,9})(?P<tag>-[0-9a-z]{10})?")
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


class _KeyField(Generic[K]):
    """A field that is a key, or a folder: a text with the fields of its object in it, made at its first use."""

    def __init__(self, form: str) -> None:
        self._form = form

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, of: object, kind: object = None) -> K:
        text: K = self._form.format_map(of.__dict__)  # type: ignore[assignment]
        of.__dict__[self._name] = text
        return text


Folder = _KeyField[str]
Object = _KeyField[Key]


# ---- names, segments and file names ----


def segment(name: str) -> str:
    """One key segment for a user's name; distinct names give distinct segments.

    Raises: Invalid for an empty name, control characters or text that is not valid Unicode.
    """
    if not isinstance(name, str) or not name:
        raise Invalid(f"a name must be a non-empty string, not {name!r}")
    if has_control(name):
        raise Invalid(f"the name {name!r} has control characters", hint="use printable characters")
    return encoded(name)


def has_control(text: str) -> bool:
    """Whether a text has control characters, or such as are not valid Unicode."""
    return not text.isprintable() and re.search(_CONTROL, text) is not None


def encoded(name: str) -> str:
    """One key segment for any non-empty text; distinct texts give distinct segments. Long ones become a hash."""
    quoted = _PERCENT.sub(lambda found: found[0].lower(), quote(name, safe="").replace("~", "%7e"))
    if quoted.startswith("."):
        quoted = "%2e" + quoted[1:]
    if quoted.endswith(".versions"):
        quoted = quoted.removesuffix(".versions") + "%2eversions"
    if max(len(quoted), len(disk_name(quoted, leaf=False))) > SEGMENT_BYTES_MAX:
        return HASHED + sha256(name.encode()).hex()
    return quoted


def name_of(part: str) -> str:
    """The user's name that `segment` encoded (a hashed segment is returned unchanged)."""
    return part if part.startswith(HASHED) else unquote(part)


@lru_cache(maxsize=4096)
def check(key: str) -> Key:
    """`key`, if every store accepts it: the rule is the same for all stores.

    Raises: Invalid for `..`, empty segments, a leading slash, control characters, names that some servers misread
    (a backslash, folders named `.uploads` or `*.versions`), or a key that is too long.
    """
    path = check_path(key)
    parts = () if is_own_path(path) else path.split("/")
    for i, part in enumerate(parts):
        if len(disk_name(part, leaf=i == len(parts) - 1)) > DISK_NAME_BYTES_MAX:
            raise Invalid(f"the key segment {part[:40]!r}... is too long", hint="use a shorter name")
    return path


def check_path(key: str) -> Key:
    """`key`, if it is safe as the path of a file that another program wrote: as `check`, but for long segments.

    Their names on a disk are as they are, and not encoded.   Raises: Invalid.
    """
    if not isinstance(key, str) or not key:
        raise Invalid(f"a key must be a non-empty string, not {key!r}")
    if is_own_path(key):
        return Key(key)
    if has_control(key):
        raise Invalid(f"the key {key!r} has control characters", hint="use printable characters")
    if "\\" in key or _HIDDEN_FOLDER.search(key):
        hint = "some servers take the one for a slash and hide the others; choose another name"
        raise Invalid(f"the key {key!r} has a backslash, or a folder `.uploads` or `*.versions`", hint=hint)
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise Invalid(f"the key {key!r} has an empty, '.' or '..' segment", hint="write it as segment/segment")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise Invalid(f"a key has at most {KEY_BYTES_MAX} bytes, this one {len(key.encode())}")
    return Key(key)


def is_key(key: str) -> bool:
    """Whether `check` accepts `key`. A bucket may have other keys, which Limpet did not write."""
    return _valid(check, key) is not None


def _valid(make: Callable[..., Key], *parts: str | int) -> Key | None:
    """`make(*parts)`; None if that is no valid key."""
    try:
        return make(*parts)
    except Invalid:
        return None


@lru_cache(maxsize=1024)
def check_prefix(prefix: str) -> str:
    """`prefix` without a trailing slash, if it is empty or a valid key.   Raises: Invalid."""
    return str(check(prefix.removesuffix("/"))) if prefix else ""


@lru_cache(maxsize=4096)
def is_own_path(key: str) -> bool:
    """Whether `key` is valid and, unchanged, its path in a directory. True for nearly all keys that Limpet makes."""
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

    The name of an object has a known file ending, or `=` is added; for a folder it is the other way round. So `k` and
    `k/x` never collide.
    """
    # A file name that is not UTF-8 has surrogates, so it differs from every name that we make.
    name = _DISK_UNSAFE.sub(lambda found: f"={found[0].encode(errors='surrogatepass').hex('=')}", part)
    return name if bool(_FILE_ENDING.search(name)) is leaf else name + "="


def from_disk_name(name: str) -> str | None:
    """The segment that `disk_name` encoded; None for a name that it cannot have made."""
    try:
        raw = _DISK_ESCAPE.sub(lambda m: chr(int(m[1], 16)), name.removesuffix("="))
        return raw.encode("latin-1").decode()
    except UnicodeError:
        return None


# ---- locks, cells and other single objects ----


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
    """A temporary object of one `doctor` run."""
    return Key(f"probe/{segment(id_)}/{segment(name)}.json")


def worker_key(id_: str) -> Key:
    """The presence object of one worker process."""
    return Key(f"{WORKERS}/{segment(id_)}.json")


def worker_of(key: str) -> str | None:
    """The process whose presence object is at `key`; None for a key that `worker_key` does not make (F28)."""
    id_ = name_of(key.removeprefix(f"{WORKERS}/").removesuffix(".json"))
    return id_ if _valid(worker_key, id_) == key else None


def backup_list_key(run: str, number: int) -> Key:
    """A list of objects that one run of `limpet backup` copied. Keys sort by run and number."""
    return Key(f"{backup_lists(run)}/{number:06d}.jsonl")


def backup_lists(run: str) -> str:
    """Folder of the lists of one run of `limpet backup`."""
    return f"{BACKUPS}/{segment(run)}"


def drop_lock(drop: Key) -> Key:
    """The lock of the process that drops what the key of a drop record names."""
    return Key(f"{drop.removesuffix('.json')}.lock")


# ---- queues ----


def is_minted(id_: str) -> bool:
    """Whether `id_` has the form of the ids that Limpet makes itself: a ULID, a batch of them, or a task of a batch."""
    return _MINTED.fullmatch(id_) is not None


def is_ulid(text: str) -> bool:
    """Whether it is an id as `Runtime.new_id` makes them."""
    return _ULID.fullmatch(text) is not None


def derived(*parts: str | int) -> str:
    """A name in the form of a minted one that is the same whenever it is derived from the same parts."""
    from base64 import b32hexencode

    digest = sha256("\0".join(map(str, parts)).encode(errors="surrogatepass"))
    return DERIVED + b32hexencode(digest[:16])[:25].decode().lower()


def check_id(id_: str) -> str:
    """The entry of a user's id.   Raises: Invalid for an id that cannot be a name, or has the form of a minted id."""
    if not isinstance(id_, str):
        raise Invalid(f"a task id is a text or a whole number, not {id_!r}")
    if RETRY_MARK in id_:
        raise Invalid(f"the task id {id_!r} has a {RETRY_MARK!r}", hint="limpet marks retried tasks with it")
    if is_minted(id_):
        raise Invalid(f"the task id {id_!r} looks like one that limpet makes", hint="prefix it with a word of yours")
    return segment(id_)


def entry_of(id_: str) -> str:
    """The entry that a task id names: a minted one unchanged, a user's encoded, a retried one with its mark."""
    if not isinstance(id_, str) or not id_:
        raise Invalid(f"a task id is a non-empty text or a whole number, not {id_!r}")
    base, mark, life = id_.rpartition(RETRY_MARK)
    if mark and _RETRY.fullmatch(life):
        return f"{base if is_minted(base) else segment(base)}{mark}{life}"
    return id_ if is_minted(id_) else segment(id_)


def batch_of(id_: str) -> tuple[str, int] | None:
    """The batch and the number of a task of a batch; None for any other id."""
    entry, dot, n = id_.rpartition(".")
    return (entry, int(n)) if dot and is_minted(id_) and _is_number(n) else None


def is_history(key: str) -> bool:
    """Whether a part of an entry is a history."""
    return key.rpartition("/")[2].startswith(HISTORY)


def count_of(entry: str) -> int:
    """The number of tasks in an entry. The name of a batch contains it."""
    return int(entry.rpartition("-")[2]) if "-" in entry and is_batch(entry) else 1


def is_batch(entry: str) -> bool:
    """Whether an entry is a batch."""
    _, dash, count = entry.rpartition("-")
    return bool(dash) and _is_number(count) and is_minted(entry)


def retry_of(name: str) -> tuple[str, int, str] | None:
    """The first name of a retry, its number and its tag; None for a name that is not a retry."""
    base, mark, life = name.rpartition(RETRY_MARK)
    found = _RETRY.fullmatch(life) if mark else None
    return (base, int(found["number"]), found["tag"] or "") if found else None


def retry_name(base: str, number: int, tag: str = "") -> str:
    """The name, or the id, of a retry. A `tag` tells it from that of another life, which has the name without one."""
    return f"{base}{RETRY_MARK}{number}{tag}"


def retry_tag(life: str) -> str:
    """The tag of the retries of a life."""
    return f"-{derived('retry', life)[1:11]}"


def first_name(name: str) -> str:
    """The name, or the id, that a task had before it was ever retried."""
    part = retry_of(name)
    return part[0] if part else name


def life_before(name: str) -> str | None:
    """The name that was retried as this one; None for a name that is not a retry."""
    part = retry_of(name)
    if part is None:
        return None
    base, number, tag = part
    return base if number <= 1 else retry_name(base, number - 1, tag)


def name_of_receipt(key: str) -> str:
    """The entry, or the task of a batch, that a receipt is about."""
    return key.rsplit("/", 1)[1].removesuffix(".json")


def parts_of_entry(key: str, pending: str) -> tuple[str, str] | None:
    """The entry and the kind of one of its objects; None for a key that is not ours.

    The name of an entry tells whether it is a batch. A `tasks.jsonl` in the folder of a single task is not Limpet's,
    and must not end that task.
    """
    if not key.startswith(f"{pending}/"):
        return None
    entry, _, kind = key[len(pending) + 1 :].partition("/")
    if kind not in _ENTRY_OBJECTS or (kind in (TASK, BATCH) and is_batch(entry) != (kind == BATCH)):
        return None
    return entry, kind


def parts_of_step(key: str) -> tuple[str, int, int | None] | None:
    """The entry of a step, its task (0 for a single one) and its number; None for a key that is not ours.

    A signal has no number.
    """
    name = key.split("/", 3)[-1]
    found = _STEP.fullmatch(name)
    if found is not None:
        return found["entry"], int(found["task"]), int(found["number"])
    found = _SIGNAL.fullmatch(name)
    return None if found is None else (found["entry"], int(found["task"]), None)


def due_name(due: datetime) -> str:
    """A moment as a name that sorts by time."""
    return due.strftime("%Y%m%dT%H%M%SZ")


def due_of(name: str) -> datetime | None:
    """The moment in a name that `due_name` made; None for any other name."""
    try:
        return datetime.strptime(f"{name}+0000", "%Y%m%dT%H%M%SZ%z")
    except ValueError:
        return None


def parts_of_scheduled(key: str) -> tuple[datetime, str] | None:
    """When a delayed push is due, and its entry; None for a key that is not ours."""
    due_at, name = key.rsplit("/", 2)[1:]
    due, entry = due_of(due_at), name.removesuffix(".json").rpartition("@")[0]
    return (due, entry) if due is not None and entry else None


def write_id_of_scheduled(key: str) -> str:
    """The write id of a delayed push."""
    return key.rsplit("/", 1)[1].removesuffix(".json").rpartition("@")[2]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


@dataclass(frozen=True)
class QueueKeys:
    """The keys of one queue. An `entry` is a segment: an encoded user's id, or a minted one.

    Names sort so that one listing, from `pending` on, has both the pending and the scheduled entries.
    """

    root: str

    pending = Folder("{root}/pending")
    """Entries that wait or are held."""
    scheduled = Folder("{root}/scheduled")
    """Delayed pushes that are not due."""
    completed = Folder("{root}/completed")
    """Receipts of success."""
    failed = Folder("{root}/failed")
    """Receipts of failure."""
    parts = Folder("{root}/parts")
    """Results too large for a lease record, and unreadable bytes."""
    steps = Folder("{root}/steps")
    """The recorded steps of durable tasks, and the signals that were sent to them."""
    pushes = Folder("{root}/pushes")
    """The shapes of pushes of many tasks that have an id."""
    control = Object("{root}/control.json")
    """The settings that an operator has made: paused queues."""
    bell = Object("{root}/bell.json")
    """The object that pushers rewrite so that idle workers list the queue; only in a bucket."""
    sweep = Object("{root}/sweep.json")
    """The time of the last sweep."""
    asking = Object("{root}/slots/asking.lock")
    """The lease of the process that looks for what suspended tasks wait for."""
    drop = Object("{root}.drop.json")
    """How far the queue was dropped; it stays, beside the folder."""

    @staticmethod
    def of(queue: str) -> QueueKeys:
        """The keys of the queue `queue`.   Raises: Invalid for an empty or unprintable name."""
        return QueueKeys(f"{QUEUES}/{segment(queue)}")

    @ComputedField
    def name(self) -> str:
        """The queue's name, as its users know it."""
        return name_of(self.root.removeprefix(f"{QUEUES}/"))

    def tasks(self, entry: str, *, batch: bool) -> Key:
        """The payload of an entry: one task, or a batch."""
        return Key(f"{self.root}/pending/{entry}/{BATCH if batch else TASK}")

    def lease(self, entry: str) -> Key:
        """The lease of an entry."""
        return Key(f"{self.root}/pending/{entry}/{LEASE}")

    def remote(self, entry: str) -> Key:
        """The lease of another node on an entry, as reported by its log."""
        return Key(f"{self.root}/pending/{entry}/{REMOTE}")

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

    def history(self, entry: str, token: int) -> Key:
        """The part of an entry that has the steps of the tasks which one claim of it has completed."""
        return self.part(entry, f"{HISTORY}{token}")

    def steps_of(self, entry: str) -> str:
        """Folder of the steps and signals of an entry's tasks."""
        return f"{self.root}/steps/{entry}"

    def step(self, entry: str, n: int, number: int) -> Key:
        """Step `number` of task `n` of an entry. It is named by its number alone, so that two versions of the code
        cannot each record their own."""
        return Key(f"{self.root}/steps/{entry}/{n}.{number:04d}.json")

    def signal(self, entry: str, n: int, signal: str) -> Key:
        """A signal to task `n` of an entry.   Raises: Invalid for an empty or unprintable name."""
        return Key(f"{self.signals_of(entry)}/{n}.{segment(signal)}.json")

    def signals_of(self, entry: str) -> str:
        """Folder of the signals to an entry's tasks: a pusher may send signals, and record no steps."""
        return f"{self.root}/steps/{entry}/signals"

    def shape(self, id_: str) -> Key:
        """The shape of a push of many tasks, by the name from which those of its entries are derived."""
        return Key(f"{self.root}/pushes/{id_}.json")

    def slot(self, number: int) -> Key:
        """One of the leases that limit the number of concurrent claims."""
        return Key(f"{self.root}/slots/{number}.lock")


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """The meaning of a queue's key: the kind of object, and its entry or the name of its receipt."""

    keys: QueueKeys
    kind: QueueObject
    name: str


def queue_place(key: str) -> QueuePlace | None:
    """The meaning of `key`, if it is the key of a task, a receipt or a part of a queue; None for any other (F28)."""
    place = _QUEUE_OBJECT.fullmatch(key)
    if place is None or not is_key(key):
        return None
    kind: QueueObject = place.lastgroup  # type: ignore[assignment]  # the group that matched
    return QueuePlace(QueueKeys(place["root"]), kind, place[kind])


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
    log = _LOG.fullmatch(key)
    if log is None or not 0 < int(log[2]) <= LOG_MAX:
        return None
    node, number = name_of(log[1]), int(log[2])
    return (node, number) if _valid(log_key, node, number) == key else None


# ---- indexes: a `shard` is the first hex digits of a hash; a `key` is the text of a record's key ----


@dataclass(frozen=True)
class IndexKeys:
    """The objects of one index."""

    root: str

    manifest = Object("{root}/manifest.json")
    """The columns and the number of shards."""
    package = Object("{root}/datapackage.json")
    """The Frictionless data package: derived from the manifest, for other tools."""
    json_schema = Object("{root}/schema.json")
    """The columns as a JSON Schema: derived from the manifest, for other tools."""
    inbox = Folder("{root}/inbox")
    """Puts of single records that wait to be compiled."""
    packs = Folder("{root}/packs")
    """Packs: many records of one shard, waiting to be compiled."""
    shards = Folder("{root}/shards")
    """Compiled records."""
    quarantine = Folder("{root}/quarantine")
    """Unreadable objects."""
    adopted = Folder("{root}/adopted")
    """Files of other programs that have names which the index uses itself."""
    drop = Object("{root}.drop.json")
    """How far the index was dropped; it stays, beside the folder."""

    @staticmethod
    def of(index: str) -> IndexKeys:
        """The keys of the index `index`.   Raises: Invalid for an empty, unprintable or too long name."""
        folder = segment(index)
        if folder.startswith(HASHED):
            raise Invalid(f"the name {index[:40]!r}... is too long for an index", hint="a listing must tell its name")
        return IndexKeys(f"{INDEXES}/{folder}")

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

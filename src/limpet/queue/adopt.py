"""Taking over a queue of another program: files in the layout of docs/run/adopt.md ("Distributed Filesystem Queue").

    pending/<id>/task.json             a task that waits: its payload, a JSON object
    pending/<shard>/<id>/task.json     the same, in folders by shard
    lease.json, beside a task          a worker of the other program holds it
    completed/<id>.json                a task that is done
    failed/<id>.json                   a task that was given up; also failed/<id>/task.json

Ended tasks are copied before waiting ones, so that a task which the other program has ended but not yet removed from
`pending/` does not run again. Ids are kept, and an id is used once: a second run, or a run after a crash, adds the
missing tasks. An id that is used here for another payload is never taken for the same task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, get_args

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Conflict, Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.keys import BATCH, REMOTE, TASK, Key, check_id, parts_of_scheduled
from limpet.kernel.keys import LEASE as LEASE_FILE
from limpet.kernel.lease.decide import freed
from limpet.kernel.store.api import Blob, Match, Stat, batched
from limpet.kernel.store.outcome import put_bytes
from limpet.kernel.store.sources import BadFile, FileSource, Folders, bad_file, shown
from limpet.queue.api import Policy
from limpet.queue.decide import claimed
from limpet.queue.entry import ENTRY_BYTES_MAX, NOTHING, Receipt, TaskRecord, new_task, read_task
from limpet.queue.storage import Storage

QueuePlace = Literal["completed", "failed", "pending"]
PLACES: dict[str, QueuePlace] = {each: each for each in get_args(QueuePlace)}
QUEUE_FOLDERS: Folders = {"completed": (0,), "failed": (0, 1), "pending": (1, 2)}
"""The folders of a queue. Ended tasks come first, also in a listing sorted by name."""
OWN_OBJECTS = frozenset(
    ("scheduled", "parts", "steps", "pushes", "slots", "control.json", "bell.json", "sweep.json"),
)
"""What else lies in the folder of a queue of Limpet."""

AT_ONCE_BYTES = 16 << 20
AT_ONCE = 256
ENDING = ".json"
EXAMPLES_MAX = 3
GIVEN_UP = "it had failed before this queue was adopted"

Kept = Mapping[str, bytes | None]
"""The payload of each object that this queue has of an id, by its place; None for one whose payload cannot be told."""
Verdict = Literal["write", "known", "other"]


def verdict(place: QueuePlace, payload: bytes, kept: Kept) -> Verdict:
    """What becomes of a task of another program, whose id may be used here.

    It is known if it is kept with the same payload, and as ended if it has ended. It is another one if its id is used
    for another payload: to write it would end that task, or lose this one.
    """
    same = {where for where, there in kept.items() if there is not None and _is_same(there, payload)}
    others = kept.keys() - same
    if place == "pending":
        return "other" if others else "known" if same & PLACES.keys() else "write"
    ends = {"completed"} if place == "completed" else {"completed", "failed"}
    return "known" if same & ends else "other" if others else "write"


def _is_same(there: bytes, payload: bytes) -> bool:
    """Whether two payloads are the same JSON value. The order of an object's fields does not count."""
    if there == payload:
        return True
    try:
        one, other = (records.json_text(records.parse_json(data, what="it")) for data in (there, payload))
    except LimpetError:
        return False
    return one == other


@dataclass(slots=True)
class QueueAdoptReport:
    """The tasks that this call took over: `pending` were pushed, `completed` and `failed` got a receipt.

    `known`: tasks that this queue had before, with the same payload. `held`: tasks with a lease of the other program,
    which were skipped. `deleted`, `replaced` and `ignored` count files: deleted originals, originals in whose place
    there is an object of this queue now, and files that are no part of a queue, of which `ignored_names` are examples.
    """

    pending: int = 0
    completed: int = 0
    failed: int = 0
    known: int = 0
    held: int = 0
    deleted: int = 0
    replaced: int = 0
    ignored: int = 0
    ignored_names: list[str] = field(default_factory=list)
    bad: list[BadFile] = field(default_factory=list)

    def ignore(self, name: str) -> None:
        """Count a file that is no part of a queue."""
        self.ignored += 1
        if len(self.ignored_names) < EXAMPLES_MAX:
            self.ignored_names.append(shown(name))


@dataclass(frozen=True, slots=True)
class _TaskFile:
    """The file of one task, and the lease beside it."""

    place: QueuePlace
    id: str
    name: str
    size: int
    modified: datetime
    lease: str | None = None


@dataclass(frozen=True, slots=True)
class _TaskWrite:
    """A task that is to be written: its entry, its payload as JSON, and the bytes of its file."""

    file: _TaskFile
    entry: str
    payload: bytes
    data: bytes


class Adopter:
    """Takes over the tasks of another program's queue. `place` pushes a task under a given name.

    `in_place`: its files lie in the folder of this queue, where some have the names of our own objects.
    """

    def __init__(
        self,
        storage: Storage,
        place: Callable[[str, TaskRecord], bool],
        encode: Callable[[Any], bytes],
        source: FileSource,
        *,
        in_place: bool = False,
    ) -> None:
        self._storage = storage
        self._place = place
        self._encode = encode
        self._runtime = storage.runtime
        self._source = source
        self._in_place = in_place
        self._scheduled: dict[str, list[Key]] = {}
        self._report = QueueAdoptReport()

    def take_over(self, *, quiesced: bool) -> QueueAdoptReport:
        """Copy the tasks of the source: waiting tasks are pushed with their id, ended tasks get a receipt.

        `quiesced`: the other program has stopped. Leases are ignored, and each original is deleted once its task is
        durable here with the same payload; one that lies where our own object belongs is replaced by it in one swap.
        Without it no original is deleted, tasks with a lease are skipped, and a task that both programs claim runs
        twice. Invalid files, and tasks whose id is used here for another payload, are reported and kept.
        Raises: Missing if there is no source; Invalid in place without `quiesced`; any error of a write: then no
        original was deleted before its task was durable here.
        Cost: 1 LIST per 1,000 files and delayed pushes + 1 GET a task. A waiting task: a push with an id, and up to 3
        GETs if the id is used; an ended one: 3 GETs + 1 PUT. With `quiesced` 1 DELETE a file; in place 5 GETs + 1 PUT
        a task, 1 GET + 1 PUT a lease. In a bucket 1 PUT for the bell.
        Crash: some tasks are copied and others not; run it again.
        """
        report = self._report
        if self._in_place and not quiesced:
            raise Invalid(
                f"{self._storage.keys.root} is the folder of this queue, so its files would be replaced",
                hint="stop everything that writes them, then add --quiesced",
            )
        for stat in self._storage.store.list(self._storage.keys.scheduled):
            if (parts := parts_of_scheduled(stat.key)) is not None:
                self._scheduled.setdefault(parts[1], []).append(stat.key)
        for batch in batched(self._task_files(), lambda file: file.size, size=AT_ONCE_BYTES, count=AT_ONCE):
            if not quiesced:
                report.held += sum(file.lease is not None for file in batch)
                batch = [file for file in batch if file.lease is None]
            kept = self._write_all(self._checked(batch))
            if quiesced:
                self._delete(kept)
        if quiesced and not self._in_place:
            for folder in QUEUE_FOLDERS:
                self._source.prune(folder)
        if report.pending:
            self._storage.ring()
        return report

    def _task_files(self) -> Iterator[_TaskFile]:
        """The tasks of the source. A lease comes before its task, or they are adjacent."""
        leases: dict[str, str] = {}
        for folder, files in groupby(self._source.files(self._report.ignore), key=_folder_or_file):
            stats = {stat.key.rpartition("/")[2]: stat for stat in files}
            if folder.startswith("pending/") and LEASE_FILE in stats:
                leases[folder] = str(stats.pop(LEASE_FILE).key)
            if self._in_place and stats.keys() & {BATCH, REMOTE}:
                if BATCH in stats:
                    leases.pop(folder, None)
                stats = {name: stat for name, stat in stats.items() if name not in (BATCH, REMOTE)}
            for name, stat in stats.items():
                task = _task_file(stat, name)
                if task is None:
                    self._report.ignore(stat.key)
                else:
                    yield replace(task, lease=leases.pop(folder, None))
        for name in leases.values():
            self._report.ignore(name)

    def _checked(self, files: Sequence[_TaskFile]) -> list[_TaskWrite]:
        """Read some files; invalid ones are reported. In place, our own are passed over."""
        blobs = self._source.read([file.name for file in files], size_max=records.RECORD_BYTES_MAX)
        good: list[_TaskWrite] = []
        for file in files:
            data = blobs[file.name]
            try:
                if isinstance(data, LimpetError):
                    raise data
                value = records.parse_json(data, what="it")
                if not isinstance(value, dict):
                    raise Invalid("it is not a JSON object")
                if value.keys() >= records.OWN_FIELDS:
                    if self._in_place:
                        continue
                    raise Invalid("it is an object of Limpet", hint="`limpet backup` copies a fleet")
                good.append(_TaskWrite(file, check_id(file.id), self._encode(value), data))
            except LimpetError as error:
                self._report.bad.append(bad_file(file.name, error))
        return good

    def _write_all(self, tasks: Sequence[_TaskWrite]) -> list[_TaskFile]:
        """Write some tasks concurrently, ended ones before waiting ones; those whose originals may be deleted.

        Raises: the first error.
        """
        kept: list[_TaskFile] = []
        for place in QUEUE_FOLDERS:
            some = [task for task in tasks if task.file.place == place]
            answers = self._runtime.fan_out(self._written, some, at_once=self._storage.store.at_once)
            for task, answer in zip(some, answers, strict=True):
                if isinstance(answer, LimpetError):
                    raise answer
                if isinstance(answer, BadFile):
                    self._report.bad.append(answer)
                    continue
                setattr(self._report, answer, getattr(self._report, answer) + 1)
                if answer != "known" and self._own_key(task) is not None:
                    self._report.replaced += 1 + (task.file.lease is not None)
                else:
                    kept.append(task.file)
        return kept

    def _written(self, task: _TaskWrite) -> QueuePlace | Literal["known"] | BadFile | LimpetError:
        """Make a task durable here; what was done with it."""
        try:
            return self._write(task)
        except LimpetError as error:
            return error

    def _write(self, task: _TaskWrite) -> QueuePlace | Literal["known"] | BadFile:
        place, own = task.file.place, self._own_key(task)
        if place == "pending" and own is None and task.entry not in self._scheduled:
            if self._place(task.entry, self._record(task)):
                return "pending"
            if verdict(place, task.payload, kept := self._kept(task)) == "known":
                return "known"
            return _other(task, kept)
        kept = self._kept(task)
        match verdict(place, task.payload, kept):
            case "known":
                return "known"
            case "other":
                return _other(task, kept)
        if place == "pending":
            if own is not None:
                self._replace_task(task, own)
            elif not self._place(task.entry, self._record(task)):
                return _other(task, self._kept(task))
            return place
        receipt = self._receipt(task)
        if own is not None:
            self._storage.journal.ended(task.entry, False, own, receipt)
            blob = self._unchanged(task, own)
            self._storage.receipt(own).replace_unreadable(receipt, blob.version)
            return place
        keys = self._storage.keys
        key = keys.failed_of(task.entry) if place == "failed" else keys.completed_of(task.entry)
        stands = self._storage.write_receipt(task.entry, key, receipt, batch=False)
        return place if _is_same(bytes(stands.payload), task.payload) else _other(task, {place: None})

    def _own_key(self, task: _TaskWrite) -> Key | None:
        """The key of our own object in whose place the file of a task lies; None if it lies elsewhere."""
        if not self._in_place:
            return None
        keys, entry = self._storage.keys, task.entry
        own = {
            "pending": keys.tasks(entry, batch=False),
            "completed": keys.completed_of(entry),
            "failed": keys.failed_of(entry),
        }[task.file.place]
        return own if self._source.name_of(own[len(keys.root) + 1 :]) == task.file.name else None

    def _kept(self, task: _TaskWrite) -> Kept:
        """What this queue has of an id.   Cost: 3 GETs, 1 for each delayed push of that id."""
        keys, entry, waits = self._storage.keys, task.entry, task.file.place == "pending"
        places: dict[Key, str] = {
            keys.tasks(entry, batch=False): "pending",
            keys.failed_of(entry): "failed",
            keys.completed_of(entry): "completed",
        }
        own = self._own_key(task)
        if own is not None:
            del places[own]
        places |= {key: f"scheduled {n}" for n, key in enumerate(self._scheduled.get(entry, ()))}
        kept: dict[str, bytes | None] = {}
        for key, where in places.items():
            try:
                blob = self._storage.store.get(key, size_max=ENTRY_BYTES_MAX)
                if not records.is_foreign(blob.data):
                    ended = where in ("failed", "completed")
                    holder = records.decode(blob.data, Receipt, what=key) if ended else read_task(blob.data, what=key)
                    payload = bytes(holder.payload)
                    kept[where] = None if ended and payload == bytes(NOTHING) else payload
                elif waits and where != "pending":
                    kept[where] = None  # whatever has the name of a receipt ends the task
            except Missing:
                continue
            except (Corrupt, Unsupported):
                kept[where] = None
        return kept

    def _replace_task(self, task: _TaskWrite, own: Key) -> None:
        """Replace the file of a waiting task by our own, and before it a lease of the other program by one that is
        free: a worker that meets one of the two leaves the task alone.
        """
        lease = self._storage.lease(task.entry)
        if task.file.lease is not None:
            blob = self._storage.store.get(lease.key, size_max=ENTRY_BYTES_MAX)
            try:
                lease.decode(blob)  # of a worker of ours, which left the task alone
            except Corrupt:
                owner, label, wall = self._runtime.owner, self._runtime.label, self._runtime.wall()
                mine = claimed(None, entry=task.entry, worker_id=owner, label=label, policy=Policy(), wall=wall)
                lease.replace_unreadable(freed(mine), blob.version)
        data = records.encode(self._record(task))
        self._storage.journal.pushed(own, data)
        blob = self._unchanged(task, own)
        put_bytes(self._storage.store, self._runtime, own, data, Match(blob.version), deletable=True)

    def _unchanged(self, task: _TaskWrite, own: Key) -> Blob:
        """The file of a task, as it was read.   Raises: Conflict."""
        blob = self._storage.store.get(own)
        if blob.data != task.data:
            raise Conflict(f"{own} was written meanwhile", hint="stop everything that writes there, then try again")
        return blob

    def _record(self, task: _TaskWrite) -> TaskRecord:
        at = _moment(task.file.modified, self._runtime.wall())
        return new_task(task.file.id, task.payload, pushed_at=at, write_id=self._runtime.new_id())

    def _receipt(self, task: _TaskWrite) -> Receipt:
        return Receipt(
            state="failed" if task.file.place == "failed" else "completed",
            id=task.file.id,
            finished_at=_moment(task.file.modified, self._runtime.wall()),
            payload=msgspec.Raw(task.payload),
            error=GIVEN_UP if task.file.place == "failed" else None,
        )

    def _delete(self, files: Sequence[_TaskFile]) -> None:
        """Delete originals: leases first, so that after a crash the next run finds the task that a lease belongs to."""
        leases = [file.lease for file in files if file.lease is not None]
        for names in (leases, [file.name for file in files]):
            for name, error in self._source.delete(names).items():
                if error is None:
                    self._report.deleted += 1
                else:
                    self._report.bad.append(bad_file(name, f"it was taken over, but not deleted: {error}"))


def _other(task: _TaskWrite, kept: Kept) -> BadFile:
    """A task whose id is used here for another payload."""
    places = ", ".join(sorted(where.partition(" ")[0] for where in kept)) or "gone by now"
    told = "with another payload" if all(kept.values()) else "with a payload that is another one, or cannot be told"
    error = Invalid(
        f"the id {task.file.id!r} is used here ({places}) {told}",
        hint="compare the two; then remove this file, or adopt it into another queue",
    )
    return bad_file(task.file.name, error)


def _folder_or_file(stat: Stat) -> str:
    """The key of a task: the folder of its files, or the name of its only file."""
    folder, _, name = stat.key.rpartition("/")
    return folder if "/" in folder else f"{folder}/{name}"


def _task_file(stat: Stat, name: str) -> _TaskFile | None:
    """The task in a file; None if the file is no task."""
    first, _, rest = stat.key.partition("/")
    place = PLACES[first]
    if "/" not in rest:
        id_ = name.removesuffix(ENDING) if name.endswith(ENDING) else ""
    else:
        id_ = rest.split("/")[-2] if name == TASK else ""
    return _TaskFile(place, id_, str(stat.key), stat.size, stat.modified) if id_ else None


def _moment(modified: datetime, wall: datetime) -> datetime:
    """When a file was written; now, if its time is out of range."""
    return modified if modified.year >= 1970 and modified <= wall else wall

"""Taking over a queue of another program: files in the layout of docs/origins.md (the "Distributed Filesystem Queue").

    pending/<id>/task.json     a task that waits: its payload, a JSON object
    pending/<id>/lease.json    a worker of the other program holds it
    completed/<id>.json        a task that is done
    failed/<id>.json           a task that was given up; also failed/<id>/task.json

Ended tasks are copied before waiting ones, so that a task which the other program has ended but not yet removed from
`pending/` does not run again. Ids are kept, and an id is used once: a second run, or a run after a crash, adds the
missing tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, get_args

import msgspec

from limpet import records
from limpet.errors import Invalid, LimpetError
from limpet.keys import LEASE as LEASE_FILE
from limpet.keys import TASK, check_id
from limpet.queue.entry import Receipt, Storage, TaskRecord, new_task
from limpet.store.api import Stat, batched
from limpet.store.sources import BadFile, FileSource, Folders, bad_file

QueuePlace = Literal["completed", "failed", "pending"]
PLACES: dict[str, QueuePlace] = {each: each for each in get_args(QueuePlace)}
QUEUE_FOLDERS: Folders = {"completed": (0,), "failed": (0, 1), "pending": (1,)}
"""The folders of a queue. Ended tasks come first, also in a listing sorted by name."""

AT_ONCE_BYTES = 16 << 20
AT_ONCE = 256
ENDING = ".json"
GIVEN_UP = "it had failed before this queue was adopted"
OWN = frozenset(("schema", "write_id"))
"""Fields that every object of Limpet has, and a payload is unlikely to have."""


@dataclass(slots=True)
class QueueAdoptReport:
    """The tasks that this call took over: `pending` were pushed, `completed` and `failed` got a receipt.

    `known`: tasks whose id this queue had before. `held`: tasks with a lease of the other program, which were skipped.
    `deleted` and `ignored` count files: deleted originals, and files that are no part of a queue.
    """

    pending: int = 0
    completed: int = 0
    failed: int = 0
    known: int = 0
    held: int = 0
    deleted: int = 0
    ignored: int = 0
    bad: list[BadFile] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _FoundFile:
    """The file of one task, and the lease beside it."""

    place: QueuePlace
    id: str
    name: str
    size: int
    modified: datetime
    lease: str | None = None


@dataclass(frozen=True, slots=True)
class _TaskWrite:
    """A task that is to be written: its entry, and its payload as JSON."""

    file: _FoundFile
    entry: str
    payload: bytes


class Adopter:
    """Takes over the tasks of another program's queue. `place` pushes a task under a given name."""

    def __init__(
        self, storage: Storage, place: Callable[[str, TaskRecord], bool], encode: Callable[[Any], bytes]
    ) -> None:
        self._storage = storage
        self._place = place
        self._encode = encode
        self._runtime = storage.runtime

    def take_over(self, source: FileSource, *, quiesced: bool) -> QueueAdoptReport:
        """Copy the tasks of `source`: waiting tasks are pushed with their id, ended tasks get a receipt.

        `quiesced`: the other program has stopped. Leases are ignored, and each original is deleted once its task is
        durable here. Without it no original is deleted, tasks with a lease are skipped, and a task that both programs
        claim runs twice. Invalid files are reported and kept; the others are taken over.
        Raises: Missing if there is no source; any error of a write: then no original was deleted before its task was
        durable here.
        Cost: 1 LIST per 1,000 files + 1 GET a task. A waiting task: a push with an id; a completed one: 1 HEAD + 1 PUT;
        a failed one: 2 HEADs + 1 PUT. With `quiesced` 1 DELETE a file. In a bucket 1 PUT for the bell.
        Crash: some tasks are copied and others not; run it again.
        """
        report = QueueAdoptReport()
        for batch in batched(self._found(source, report), lambda file: file.size, size=AT_ONCE_BYTES, count=AT_ONCE):
            if not quiesced:
                report.held += sum(file.lease is not None for file in batch)
                batch = [file for file in batch if file.lease is None]
            written = self._write_all(self._checked(source, batch, report), report)
            if quiesced:
                _delete(source, written, report)
        if quiesced:
            for folder in QUEUE_FOLDERS:
                source.prune(folder)
        if report.pending:
            self._storage.ring()
        return report

    def _found(self, source: FileSource, report: QueueAdoptReport) -> Iterator[_FoundFile]:
        """The tasks of the source. The files of one task are adjacent in a listing."""
        for _, files in groupby(source.files(), key=_folder_or_file):
            stats = {stat.key.rpartition("/")[2]: stat for stat in files}
            lease = stats.get(LEASE_FILE)
            tasks = [found for name, stat in stats.items() if (found := _task_file(stat, name, lease)) is not None]
            report.ignored += len(stats) - len(tasks) - (lease is not None and bool(tasks))
            yield from tasks

    def _checked(self, source: FileSource, files: Sequence[_FoundFile], report: QueueAdoptReport) -> list[_TaskWrite]:
        """Read some files; invalid ones are reported."""
        found = source.read([file.name for file in files], size_max=records.RECORD_BYTES_MAX)
        good: list[_TaskWrite] = []
        for file in files:
            data = found[file.name]
            try:
                if isinstance(data, LimpetError):
                    raise data
                good.append(_TaskWrite(file, check_id(file.id), self._payload(data)))
            except LimpetError as error:
                report.bad.append(bad_file(file.name, error))
        return good

    def _payload(self, data: bytes) -> bytes:
        value = records.parse_json(data, what="it")
        if not isinstance(value, dict):
            raise Invalid("it is not a JSON object")
        if value.keys() >= OWN:
            raise Invalid("it is an object of Limpet", hint="`limpet backup` copies a fleet")
        return self._encode(value)

    def _write_all(self, tasks: Sequence[_TaskWrite], report: QueueAdoptReport) -> list[_FoundFile]:
        """Write some tasks concurrently, ended ones before waiting ones.   Raises: the first error."""
        waiting = [task for task in tasks if task.file.place == "pending"]
        ended = [task for task in tasks if task.file.place != "pending"]
        for part in (ended, waiting):
            for answer in self._runtime.fan_out(self._write, part, at_once=self._storage.store.at_once):
                if isinstance(answer, LimpetError):
                    raise answer
                setattr(report, answer, getattr(report, answer) + 1)
        return [task.file for task in tasks]

    def _write(self, task: _TaskWrite) -> QueuePlace | Literal["known"] | LimpetError:
        """Make a task durable here; what was done with it."""
        file, keys = task.file, self._storage.keys
        try:
            if file.place == "pending":
                at = _moment(file.modified, self._runtime.wall())
                record = new_task(file.id, task.payload, pushed_at=at, write_id=self._runtime.new_id())
                return "pending" if self._place(task.entry, record) else "known"
            failed = file.place == "failed"
            if self._storage.ended(task.entry) if failed else self._storage.exists(keys.completed_of(task.entry)):
                return "known"
            key = keys.failed_of(task.entry) if failed else keys.completed_of(task.entry)
            self._storage.write_receipt(task.entry, key, self._receipt(task), batch=False)
        except LimpetError as error:
            return error
        return file.place

    def _receipt(self, task: _TaskWrite) -> Receipt:
        return Receipt(
            state="failed" if task.file.place == "failed" else "completed",
            id=task.file.id,
            finished_at=_moment(task.file.modified, self._runtime.wall()),
            payload=msgspec.Raw(task.payload),
            error=GIVEN_UP if task.file.place == "failed" else None,
        )


def _delete(source: FileSource, files: Sequence[_FoundFile], report: QueueAdoptReport) -> None:
    """Delete originals: leases first, so that after a crash the next run finds the task that a lease belongs to."""
    leases = [file.lease for file in files if file.lease is not None]
    for names in (leases, [file.name for file in files]):
        for name, error in source.delete(names).items():
            if error is None:
                report.deleted += 1
            else:
                report.bad.append(bad_file(name, f"it was taken over, but not deleted: {error}"))


def _folder_or_file(stat: Stat) -> str:
    """The key of a task: the folder of its files, or the name of its only file."""
    folder, _, name = stat.key.rpartition("/")
    return folder if "/" in folder else f"{folder}/{name}"


def _task_file(stat: Stat, name: str, lease: Stat | None) -> _FoundFile | None:
    """The task in a file; None if the file is no task."""
    first, _, rest = stat.key.partition("/")
    place = PLACES.get(first)
    if place is None:
        return None
    if "/" not in rest:
        id_ = name.removesuffix(ENDING) if name.endswith(ENDING) else ""
    else:
        id_ = rest.rpartition("/")[0] if name == TASK else ""
    if not id_:
        return None
    return _FoundFile(place, id_, str(stat.key), stat.size, stat.modified, str(lease.key) if lease else None)


def _moment(modified: datetime, wall: datetime) -> datetime:
    """When a file was written; now, if its time is out of range."""
    return modified if modified.year >= 1970 and modified <= wall else wall

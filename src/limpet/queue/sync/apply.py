"""Applying lines to one store: the push rule for tasks, a grow-only set of receipts, `remote.json` for leases.

Nothing here is journaled, and everything may be repeated: after a crash anywhere, the lines are applied again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeVar

import msgspec

from limpet.kernel import keys, records
from limpet.kernel.cell import Cell, Lost, Replaced, Unclear, Won, struct_codec
from limpet.kernel.errors import Conflict, Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown
from limpet.kernel.keys import Key, QueueKeys, QueuePlace, queue_place
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Blob, Stat, Store, Version
from limpet.kernel.waiting import attempts
from limpet.queue.entry import ENTRY_BYTES_MAX, Part, Receipt, read_task, task_name
from limpet.queue.storage import Storage
from limpet.queue.sync.decide import ends, is_held_elsewhere, merged, noted, ran_twice, won_back
from limpet.queue.sync.records import DAMAGE, EndLine, LeaseLine, RemoteLease, place_at, place_of

AT_ONCE = 32
KNOWN_MAX = 10_000
CODEC = struct_codec(RemoteLease)

T = TypeVar("T")
OnUnreadable = Callable[[str], object]
"""Called with the name of an object that cannot be read."""


@dataclass(frozen=True, slots=True)
class Collision:
    """Two nodes did the same work. No result is lost; frequent collisions mean that the intervals are too long.

    `run`: a task was run to its end twice. `lease`: a worker here and another node hold the same entry. `payload`: one
    id was pushed with two payloads, and only one of them counts.
    """

    kind: Literal["run", "lease", "payload"]
    queue: str
    entry: str
    other: str


@dataclass(slots=True)
class Cycle:
    """The report of one `up` or `down`: how many pushes, ends and leases it sent or applied, and in how many logs."""

    direction: Literal["up", "down"]
    pushes: int = 0
    ends: int = 0
    leases: int = 0
    logs: int = 0
    trimmed: int = 0
    dropped: int = 0
    """Pending entries that were removed because the bucket no longer has them."""
    fresh: bool = False
    """Whether everything was pulled from a listing, instead of the logs."""
    collisions: list[Collision] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Objects that are not what Limpet wrote, and `LOG line N`. They stop nothing else; each is reported once.

    Those of the bucket stay where they are, those of the node itself are in `sync/damaged/`.
    """

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to report."""
        counts = (self.pushes, self.ends, self.leases, self.dropped, self.fresh, self.collisions, self.unreadable)
        return not any(counts)

    def collided(self, collision: Collision | None) -> None:
        """Add a collision, if there is one."""
        if collision is not None:
            self.collisions.append(collision)


def read_each(store: Store, wanted: Iterable[Key], *, size_max: int, bad: OnUnreadable) -> Iterator[tuple[Key, Blob]]:
    """Yield the objects that still exist; `bad` is called for those that are too large or have an impossible name.

    Raises: any other error of a read.   Cost: 1 GET each, many at once.
    """
    names = iter(wanted)
    while some := [*islice(names, AT_ONCE)]:
        for key, blob in store.get_many(some, size_max=size_max).items():
            if isinstance(blob, Blob):
                yield key, blob
            elif isinstance(blob, DAMAGE):
                bad(key)
            elif not isinstance(blob, Missing):
                raise blob


def stored_bytes(store: Store, key: Key, *, size_max: int) -> bytes | None:
    """The bytes of an object, None if there is none; empty for one that is too large to be ours.   Cost: 1 GET."""
    try:
        return store.get(key, size_max=size_max).data
    except Missing:
        return None
    except Corrupt:
        return b""


def queues_of(*stores: Store, bad: OnUnreadable) -> list[QueueKeys]:
    """The queues of some stores; `bad` is called for folders whose name no queue can have.   Cost: 1 LIST each."""
    found: list[QueueKeys] = []
    for folder in sorted({folder for store in stores for folder in store.list_dirs(keys.QUEUES)}):
        queue = keys.queue_at(folder)
        try:
            keys.check(queue.control)
        except Invalid:
            bad(queue.root)
        else:
            found.append(queue)
    return found


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """`new`: this call made the change. `ended`: a receipt ends the entry, so that a push of it has no effect."""

    new: bool
    ended: bool = False
    collision: Collision | None = None


class Applier:
    """Applies lines to the queues of one store; `remote` is the bucket, which has no `remote.json`."""

    def __init__(self, store: Store, runtime: Runtime, *, remote: bool) -> None:
        self.store = store
        self._runtime = runtime
        self._remote = remote
        self._storages: dict[str, Storage] = {}

    def storage(self, queue: QueueKeys) -> Storage:
        """A queue of this store, without a journal."""
        if queue.root not in self._storages:
            self._storages[queue.root] = Storage(self.store, queue, self._runtime)
        return self._storages[queue.root]

    def push(self, key: Key, data: bytes, *, look_first: bool) -> LineOutcome:
        """Put a task by the push rule: if absent, then look for a receipt; if there is one, remove the task (H5, H6).

        `look_first`: the task has probably been applied already, or has ended.
        Raises: OutcomeUnknown, Unavailable: call again.
        Cost: 1 PUT + 2 HEADs; if the object exists 1 GET more. With `look_first` 1 GET + 2 HEADs, and if it is
        new 1 PUT + 2 HEADs more.
        """
        place = place_at(key)
        storage = self.storage(place.keys)
        found = stored_bytes(self.store, key, size_max=ENTRY_BYTES_MAX) if look_first else None
        new = found is None
        if found is None:
            if (look_first or place.kind == "scheduled") and storage.ended(place.name):
                return LineOutcome(new=False, ended=True)
            found = self._create(key, data, lambda: self._in_the_way(storage, place, key, data))
            new = found is None
            if new:
                storage.ring()
        if place.kind == "scheduled":
            return LineOutcome(new=new)
        if storage.ended(place.name):
            self.close(place.keys, place.name, batch=place.kind == "batch")
            return LineOutcome(new=False, ended=True)
        if found is None or place.kind != "single":
            return LineOutcome(new=new)
        (payload, writer), (ours, _) = _pushed(found), _pushed(data)
        clash = Collision("payload", place.keys.name, place.name, writer) if payload != ours else None
        return LineOutcome(new=new, collision=clash)

    def end(self, line: EndLine, receipt: Receipt, *, parts_from: Store, look_first: bool) -> LineOutcome:
        """Write a receipt unless there is one, and remove the entry that it ends.

        `look_first`: the receipt has probably been applied already. `parts_from` has the part objects that the receipt
        names; they are copied first, so that a receipt never names an object that is not there.
        Raises: OutcomeUnknown, Unavailable: call again.
        Cost: 1 PUT + 2 DELETEs, + 1 GET if there is one; with `look_first` 1 GET + 1 HEAD, and the rest if it is new;
        for each part 1 GET + 1 PUT.
        """
        place = place_of(line)
        try:
            stands = self._put_receipt(line, receipt, parts_from, look_first=look_first)
        except DAMAGE:
            stands = receipt  # the stored one is unreadable, but it ends its name
        except OutcomeUnknown:
            if self._is_readable(line):
                raise
            stands = receipt
        if stands is not None and line.batch and ends(line):
            self._win_back(place, stands, receipt, parts_from)
        if ends(line):
            self.close(place.keys, line.entry, batch=line.batch, look_first=look_first)
        twice = stands is not None and ran_twice(stands, receipt)
        collision = Collision("run", place.keys.name, place.name, stands.label) if stands and twice else None
        return LineOutcome(new=stands is None, ended=True, collision=collision)

    def close(self, queue: QueueKeys, entry: str, *, batch: bool, look_first: bool = False) -> None:
        """Remove an entry that has ended: the task, then the leases.

        Cost: 2 DELETEs, on a node 3; with `look_first` 1 HEAD, and the rest only if the task is there.
        """
        task = queue.tasks(entry, batch=batch)
        storage = self.storage(queue)
        if look_first and not storage.exists(task):
            return
        if storage.closer is not None:
            storage.closer.add(entry, batch=batch)
            return
        self.store.delete(task)
        self.store.delete(queue.lease(entry))
        if not self._remote:
            self.store.delete(queue.remote(entry))

    def _put_receipt(self, line: EndLine, receipt: Receipt, parts_from: Store, *, look_first: bool) -> Receipt | None:
        """Write the receipt if it counts; otherwise return the stored one."""
        place = place_of(line)
        cell = self.storage(place.keys).receipt(Key(line.key))
        seen = cell.read() if look_first or receipt.state == "retried" else None
        if seen is None:
            self._copy_parts(place, receipt, parts_from)
            self._copy_own(place, line.entry, receipt, parts_from)
        for _ in attempts(self._runtime, pause_s=0):
            value = merged(seen.value if seen else None, receipt)
            if value is None:
                return seen.value if seen else None
            match cell.attempt(seen, value, write_id=line.write_id):
                case Won() | Replaced():
                    return None
                case Lost(now) | Unclear(now):
                    seen = now
        raise OutcomeUnknown(f"{line.key} keeps changing")

    def _is_readable(self, line: EndLine) -> bool:
        """Whether the stored receipt can be read, or there is none."""
        try:
            self.storage(place_of(line).keys).receipt(Key(line.key)).read()
        except DAMAGE:
            return False
        return True

    def _create(self, key: Key, data: bytes, stands: Callable[[], T | None]) -> T | None:
        """Put an object if absent; if the put is refused, return what `stands` finds instead."""
        for _ in attempts(self._runtime, pause_s=0):
            try:
                self.store.put(key, data, when=Absent())
                return None
            except Conflict:
                found = stands()
            if found is not None:
                return found
        raise OutcomeUnknown(f"it is unknown whether {key} was written")  # F6: refused, and there is no object

    def _in_the_way(self, storage: Storage, place: QueuePlace, key: Key, data: bytes) -> bytes | None:
        """The object that a push met; our own data if the entry ended meanwhile."""
        found = stored_bytes(self.store, key, size_max=ENTRY_BYTES_MAX)
        return data if found is None and storage.ended(place.name) else found

    def _copy_parts(self, place: QueuePlace, receipt: Receipt, source: Store) -> None:
        """Copy the part objects of a receipt."""
        storage = self.storage(place.keys)
        names = [*receipt.parts, *([receipt.raw] if receipt.raw else [])]
        for key in _own_parts(place, names) if source is not self.store else ():
            try:
                data = source.get(key, size_max=ENTRY_BYTES_MAX).data
            except (Missing, Corrupt):
                continue  # deleted after the retention, or not written by Limpet
            self._put_part(storage, key, data)

    def _put_part(self, storage: Storage, key: Key, data: bytes) -> None:
        """Put a part object. Its name is used once, so an existing one is the same.   Raises: OutcomeUnknown."""
        self._create(key, data, lambda: storage.exists(key) or None)

    def _copy_own(self, place: QueuePlace, entry: str, receipt: Receipt, source: Store) -> None:
        """Copy the receipts of single tasks that take precedence over the batch's receipt, before that one is written.

        Otherwise a task's result would first be that of the batch's receipt, and then change.
        """
        for n in receipt.own if source is not self.store else ():
            key = place.keys.completed_of(task_name(entry, n, batch=True))
            try:
                seen = Storage(source, place.keys, self._runtime).receipt(key).read()
            except DAMAGE:
                continue
            if seen is not None:
                self._copy_parts(place, seen.value, source)
                self.storage(place.keys).receipt(key).attempt(None, seen.value, write_id=seen.header.write_id)

    def _win_back(self, place: QueuePlace, stands: Receipt, ours: Receipt, source: Store) -> None:
        """Write single receipts for tasks that `ours` completed and `stands` failed (H4)."""
        storage = self.storage(place.keys)
        if ours.parts and any(n not in ours.failed for n in stands.failed):
            ours = msgspec.structs.replace(ours, results={**_parts(place, ours, source), **ours.results})
        for name, receipt in won_back(place.name, stands, ours).items():
            storage.receipt(place.keys.completed_of(name)).attempt(None, receipt)


class RemoteLeases:
    """The `remote.json` objects of one node: leases of other nodes, so that workers here skip those entries.

    They are stored beside our own leases, which a pull never touches. Each expires by itself, so that a node that died
    does not block an entry; only a newer log prolongs it, so that reading a log again does not.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._known: dict[tuple[Key, Version], float] = {}

    def note(self, line: LeaseLine, *, node: str, seq: int, live_s: float) -> str | None:
        """Store that `node` holds an entry, or released it, as its log `seq` says; it is live for `live_s` from now.

        Returns the label of the holder if a lease of a third node is live, too.   Cost: 1 GET + at most 1 PUT.
        """
        cell = self._cell(QueueKeys(line.root).remote(line.entry))
        try:
            seen = cell.read()
        except DAMAGE:
            self._store.delete(cell.key)
            seen = None
        value = noted(seen.value if seen else None, line, node=node, seq=seq, live_s=live_s)
        if value is None:
            return None
        cell.attempt(seen, value)
        if seen is None or seen.modified is None or seen.value.node == node or not line.held:
            return None
        return seen.value.label if is_held_elsewhere(seen.modified, seen.value.live_s, self._store.now()) else None

    def live(self, found: Iterable[Stat]) -> set[str]:
        """The entries of a listing that another node holds, as far as this one knows.

        Cost: 1 GET for each version of a `remote.json` that was not read before.
        """
        notes = {stat.key: stat for stat in found if stat.key.endswith("/remote.json")}
        if not notes:
            return set()
        unknown = [key for key, stat in notes.items() if (key, stat.version) not in self._known]
        for key, blob in self._store.get_many(unknown).items():
            if not isinstance(blob, LimpetError):
                with suppress(*DAMAGE):  # an unreadable one blocks no entry
                    self._known[key, blob.version] = self._cell(key).decode(blob).value.live_s
                    if len(self._known) > KNOWN_MAX:
                        del self._known[next(iter(self._known))]
        now = self._store.now()
        return {
            key.rsplit("/", 2)[1]
            for key, stat in notes.items()
            if is_held_elsewhere(stat.modified, self._known.get((key, stat.version), 0.0), now)
        }

    def holder(self, key: Key) -> RemoteLease | None:
        """The live lease of another node that is stored at `key`; None if there is none.   Cost: 1 GET."""
        try:
            seen = self._cell(key).read()
        except DAMAGE:
            return None
        if seen is None or seen.modified is None:
            return None
        return seen.value if is_held_elsewhere(seen.modified, seen.value.live_s, self._store.now()) else None

    def _cell(self, key: Key) -> Cell[RemoteLease]:
        return Cell(self._store, key, CODEC, self._runtime, deletable=True)


def _own_parts(place: QueuePlace, names: Iterable[str]) -> list[Key]:
    """The parts among `names` that belong to the receipt's queue: a receipt comes from another machine (F28)."""
    found = ((name, queue_place(name)) for name in names)
    return [Key(name) for name, part in found if part and part.kind == "part" and part.keys == place.keys]


def _parts(place: QueuePlace, receipt: Receipt, source: Store) -> dict[int, msgspec.Raw]:
    """The results in the part objects of a receipt."""
    results: dict[int, msgspec.Raw] = {}
    for key in _own_parts(place, receipt.parts):
        with suppress(Missing, Corrupt):
            results |= records.decode(source.get(key).data, Part, what=key).results
    return results


def _pushed(data: bytes) -> tuple[bytes, str]:
    """The payload of a task and the id of its push; for bytes that are not a task, the bytes and no id."""
    try:
        task = read_task(data, what="a task")
    except DAMAGE:
        return data, ""
    return bytes(task.payload), task.write_id

"""How one line comes to hold in one store: the push rule for tasks, a grow-only set of receipts.

Nothing here is journaled, and everything may be done again: a crash anywhere is answered by doing it once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from limpet import records
from limpet.cell import Lost, Replaced, Unclear, Won
from limpet.errors import Conflict, Corrupt, Missing, OutcomeUnknown
from limpet.keys import Key, QueueKeys, QueuePlace, queue_place
from limpet.queue.entry import ENTRY_BYTES_MAX, Part, Receipt, Storage, read_task, task_name
from limpet.queue.sync.decide import ends, merged, ran_twice, won_back
from limpet.queue.sync.objects import DAMAGE
from limpet.queue.sync.records import EndLine, place_of
from limpet.queue.sync.report import Collision, CollisionKind
from limpet.runtime import Runtime
from limpet.store.api import Absent, Store

SENDS_MAX = 4


@dataclass(frozen=True, slots=True)
class Applied:
    """`new`: this call made it so. `ended`: a receipt ends the entry, so that a push of it came to nothing."""

    new: bool
    ended: bool = False
    collision: Collision | None = None


class Applier:
    """Applies lines to the queues of one store."""

    def __init__(self, store: Store, runtime: Runtime, *, remote: bool) -> None:
        self._store = store
        self._runtime = runtime
        self._remote = remote
        self._storages: dict[str, Storage] = {}

    def storage(self, queue: QueueKeys) -> Storage:
        """A queue of this store, without a journal."""
        if queue.root not in self._storages:
            self._storages[queue.root] = Storage(self._store, queue, self._runtime)
        return self._storages[queue.root]

    def push(self, key: Key, data: bytes, *, look_first: bool) -> Applied:
        """Put a task there by the push rule: if absent, then look for a receipt; found, it is taken back (H5, H6).

        `look_first`: it is probably there already, or ended.
        Raises: OutcomeUnknown, Unavailable: to be done again.
        Cost: 1 PUT + 2 HEADs; if something stands there 1 GET more. With `look_first` 1 GET + 2 HEADs, and if it is
        news 1 PUT + 2 HEADs more.
        """
        place = _place(key)
        storage = self.storage(place.keys)
        found = self._read(key) if look_first else None
        new = found is None
        if found is None:
            if (look_first or place.kind == "scheduled") and storage.ended(place.name):
                return Applied(new=False, ended=True)
            found = self._create(storage, place, key, data)
            new = found is None
        if place.kind == "scheduled":
            return Applied(new=new)
        if storage.ended(place.name):
            self.close(place.keys, place.name, batch=place.kind == "batch")
            return Applied(new=False, ended=True)
        clash = found is not None and place.kind == "single" and _payload(found) != _payload(data)
        other = _pushed_by(found) if clash and found is not None else ""
        return Applied(new=new, collision=self._collision("payload", place, other) if clash else None)

    def end(self, line: EndLine, receipt: Receipt, *, parts_from: Store, look_first: bool) -> Applied:
        """Put a receipt there unless one stands there, and remove the entry that it ends.

        `look_first`: it is probably there already. `parts_from` has the results that the receipt only names; they come
        first, so that a receipt never names what is not there.
        Raises: OutcomeUnknown, Unavailable: to be done again.
        Cost: 1 PUT + 2 DELETEs, + 1 GET if one stands there; with `look_first` 1 GET + 1 HEAD, and what it then takes;
        for each part 1 GET + 1 PUT.
        """
        place = place_of(line)
        try:
            stands = self._put_receipt(line, receipt, parts_from, look_first=look_first)
        except DAMAGE:
            stands = receipt  # nobody can read the one that stands there, but it ends its name
        except OutcomeUnknown:
            if self._is_readable(line):
                raise
            stands = receipt
        if stands is not None and line.batch and ends(line):
            self._win_back(place, stands, receipt, parts_from)
        if ends(line):
            self.close(place.keys, line.entry, batch=line.batch, look_first=look_first)
        twice = stands is not None and ran_twice(stands, receipt)
        other = stands.label if stands is not None else ""
        collision = self._collision("run", place, other) if twice else None
        return Applied(new=stands is None, ended=True, collision=collision)

    def _put_receipt(self, line: EndLine, receipt: Receipt, parts_from: Store, *, look_first: bool) -> Receipt | None:
        """Put it if it is to stand there; the one that stands there instead."""
        place = place_of(line)
        cell = self.storage(place.keys).receipt(Key(line.key))
        seen = cell.read() if look_first or receipt.state == "retried" else None
        if seen is None:
            self._copy_parts(place, receipt, parts_from)
            self._copy_own(place, line.entry, receipt, parts_from)
        for _ in range(SENDS_MAX):
            value = merged(seen.value if seen else None, receipt)
            if value is None:
                return seen.value if seen else None
            match cell.attempt(seen, value, write_id=line.write_id):
                case Won() | Replaced():
                    return None
                case Lost(now) | Unclear(now):
                    seen = now
        raise OutcomeUnknown(f"{line.key} is swapped all the time")

    def _is_readable(self, line: EndLine) -> bool:
        """Whether what stands where a receipt belongs is one, or nothing does."""
        try:
            self.storage(place_of(line).keys).receipt(Key(line.key)).read()
        except DAMAGE:
            return False
        return True

    def close(self, queue: QueueKeys, entry: str, *, batch: bool, look_first: bool = False) -> None:
        """Remove an entry that has ended: the task, then the leases.

        Cost: 2 DELETEs, on a node 3; with `look_first` 1 HEAD, and the rest only if the task is there.
        """
        task = queue.tasks(entry, batch=batch)
        if look_first and not self.exists(task):
            return
        self._store.delete(task)
        self._store.delete(queue.lease(entry))
        if not self._remote:
            self._store.delete(queue.remote(entry))

    def exists(self, key: Key) -> bool:
        """Whether there is such an object.   Cost: 1 HEAD."""
        try:
            self._store.head(key)
        except Missing:
            return False
        return True

    def _create(self, storage: Storage, place: QueuePlace, key: Key, data: bytes) -> bytes | None:
        """Put it if absent; what stands there instead, if something does."""
        for _ in range(SENDS_MAX):
            try:
                self._store.put(key, data, when=Absent())
                return None
            except Conflict:
                found = self._read(key)
            if found is not None or storage.ended(place.name):
                return data if found is None else found
        raise OutcomeUnknown(f"whether {key} was written cannot be told")  # F6: refused, and nothing stands there

    def _read(self, key: Key) -> bytes | None:
        """What stands there; an empty text for what is larger than a task: the worker that claims it rejects it."""
        try:
            return self._store.get(key, size_max=ENTRY_BYTES_MAX).data
        except Missing:
            return None
        except Corrupt:
            return b""

    def _copy_parts(self, place: QueuePlace, receipt: Receipt, source: Store) -> None:
        names = [*receipt.parts, *([receipt.raw] if receipt.raw else [])]
        for key in _own_parts(place, names) if source is not self._store else ():
            try:
                data = source.get(key, size_max=ENTRY_BYTES_MAX).data
            except (Missing, Corrupt):
                continue  # too old to be kept, or none that we wrote
            self._put_part(key, data)

    def _copy_own(self, place: QueuePlace, entry: str, receipt: Receipt, source: Store) -> None:
        """Receipts of single tasks that count before the batch's own one, if that names them, are here before it is.

        Otherwise a result would first be that of the batch's receipt, and then another.
        """
        for n in receipt.own if source is not self._store else ():
            key = place.keys.completed_of(task_name(entry, n, batch=True))
            try:
                seen = Storage(source, place.keys, self._runtime).receipt(key).read()
            except DAMAGE:
                continue
            if seen is not None:
                self._copy_parts(place, seen.value, source)
                self.storage(place.keys).receipt(key).attempt(None, seen.value, write_id=seen.header.write_id)

    def _put_part(self, key: Key, data: bytes) -> None:
        """A part's name is used once, so one that is there is ours.   Raises: OutcomeUnknown."""
        for _ in range(SENDS_MAX):
            try:
                self._store.put(key, data, when=Absent())
                return
            except Conflict:
                if self.exists(key):
                    return
        raise OutcomeUnknown(f"whether {key} was written cannot be told")  # F6: refused, and nothing stands there

    def _win_back(self, place: QueuePlace, stands: Receipt, ours: Receipt, source: Store) -> None:
        storage = self.storage(place.keys)
        if ours.parts and any(n not in ours.failed for n in stands.failed):
            ours = msgspec.structs.replace(ours, results={**_parts(place, ours, source), **ours.results})
        for name, receipt in won_back(place.name, stands, ours).items():
            storage.receipt(place.keys.completed_of(name)).attempt(None, receipt)

    def _collision(self, kind: CollisionKind, place: QueuePlace, other: str) -> Collision:
        return Collision(kind, place.queue, place.name, other)


def _place(key: Key) -> QueuePlace:
    place = queue_place(key)
    assert place is not None, key
    return place


def _own_parts(place: QueuePlace, names: Iterable[str]) -> list[Key]:
    """Of the parts that a receipt names, those that its own queue can have: a receipt is another machine's (F28)."""
    found = ((name, queue_place(name)) for name in names)
    return [Key(name) for name, part in found if part and part.kind == "part" and part.keys == place.keys]


def _payload(data: bytes) -> bytes:
    try:
        return bytes(read_task(data, what="a task").payload)
    except DAMAGE:
        return data


def _pushed_by(data: bytes) -> str:
    try:
        return read_task(data, what="a task").write_id
    except DAMAGE:
        return ""


def _parts(place: QueuePlace, receipt: Receipt, source: Store) -> dict[int, msgspec.Raw]:
    results: dict[int, msgspec.Raw] = {}
    for key in _own_parts(place, receipt.parts):
        try:
            results |= records.decode(source.get(key).data, Part, what=key).results
        except (Missing, Corrupt):
            continue
    return results

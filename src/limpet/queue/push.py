"""Enqueue: create an entry at most once per id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate

from limpet.kernel import records
from limpet.kernel.cell import Won
from limpet.kernel.errors import Conflict, Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unsupported
from limpet.kernel.keys import Key, check_id, derived, due_name, is_minted, parts_of_scheduled
from limpet.kernel.store.api import Absent, Put, batched
from limpet.kernel.waiting import SENDS_MAX, attempts
from limpet.kernel.wording import many
from limpet.queue.api import Pushed
from limpet.queue.decide import other_shape
from limpet.queue.entry import (
    BATCH_MAX,
    DELAY_MAX_S,
    ENTRY_BYTES_MAX,
    PUSHED_ENTRIES_MAX,
    ForeignTask,
    PushShape,
    TaskRecord,
    batch_bytes,
    new_task,
    read_task,
)
from limpet.queue.finish import reject_scheduled
from limpet.queue.storage import Storage

AT_ONCE = 32


class Pusher:
    """Puts tasks into one queue."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._runtime = storage.runtime

    def push(
        self,
        payload: bytes,
        *,
        id: str | None,
        delay_s: float,
        trace: str = "",
        name: str | None = None,
        fresh: bool = False,
        caller: str = "",
        parent: str = "",
    ) -> Pushed:
        """One task.   Cost: 1 PUT; with an id 1 PUT + 2 HEADs. Delayed: 1 PUT (with an id + 2 HEADs), and once an hour
        1 PUT + 1 HEAD for the store's clock.

        A durable task pushes it under a derived `name`, if there is no id. `fresh`: no earlier attempt has used it, so
        that the HEADs are left out. `caller`, `parent`: the queue of that task, and its id and step.
        """
        entry = check_id(id) if id is not None else name
        if not isinstance(delay_s, int | float) or not 0 <= delay_s <= DELAY_MAX_S:
            said = f"{delay_s:,.10g}" if isinstance(delay_s, int | float) else repr(delay_s)
            raise Invalid(f"delay_s must be between 0 and {DELAY_MAX_S:,.0f} seconds, not {said}")
        write_id = self._runtime.new_id()
        entry = entry or write_id
        wall = self._runtime.wall()
        again = delay_s > 0 or entry == name  # it may be made pending more than once
        task = new_task(
            id or entry,
            payload,
            pushed_at=wall,
            write_id=write_id,
            delayed=again,
            trace=trace,
            caller=caller,
            epoch=self._storage.epoch,
            parent=parent,
        )
        if delay_s:
            return self._schedule(entry, task, delay_s)
        created = self.place(entry, task, fresh=fresh and entry == name)
        if created:
            self._storage.ring()
        return Pushed(task.id, created)

    def push_many(
        self,
        payloads: Iterable[bytes],
        *,
        batch: int,
        trace: str = "",
        id: str | None = None,
        name: str | None = None,
        fresh: bool = False,
        caller: str = "",
        parent: str = "",
    ) -> list[str]:
        """Many tasks, `batch` to an entry (fewer if they are large); their entries. All are checked before the first is
        pushed.

        `id`, or the `name` of a durable task: the entries' names are derived from it, so that the same push made again
        finds them there or ended. `fresh`, `caller`, `parent`: as in `push`.
        Raises: Conflict if the id was used for another number of tasks, or other batches. After the first entry is
        there, every error is OutcomeUnknown, and says how far the push came (`pushed`, `rest`).
        Cost: 1 PUT an entry, with a name 2 HEADs more; with an id 1 PUT more, + 1 GET if it was used before.
        Crash: whole entries are there or not.
        """
        if not 1 <= batch <= BATCH_MAX:
            raise Invalid(f"batch must be between 1 and {BATCH_MAX}, not {batch}")
        packs = [*batched([*payloads], lambda payload: len(payload) + 1, size=ENTRY_BYTES_MAX // 2, count=batch)]
        if id is not None:
            name = derived("many", check_id(id))
            if packs:
                self._agree(id, name, [*map(len, packs)])
        elif name is not None and len(packs) > PUSHED_ENTRIES_MAX:
            raise Invalid(
                f"one push of a durable task makes at most {PUSHED_ENTRIES_MAX} entries, not {len(packs)}",
                hint="use a larger batch=, or push in parts",
            )
        names = [None if name is None else derived(name, n) for n in range(len(packs))]
        made: dict[int, str] = {}
        try:
            for first in range(0, len(packs), AT_ONCE):
                group = {
                    n: self._pack(packs[n], trace, name=names[n], caller=caller, parent=parent)
                    for n in range(first, min(first + AT_ONCE, len(packs)))
                }
                self._put_group(group, made, used=name is not None and not fresh)
        except LimpetError as error:
            if not made:
                raise
            raise _half_way(error, packs, made, named=name is not None) from error
        return [made[n] for n in range(len(packs))]

    def _put_group(self, group: Mapping[int, Put], made: dict[int, str], *, used: bool) -> None:
        """Put some entries, and note in `made` those that are there. `used`: their names may have ended before."""
        for put in group.values():
            self._storage.journal.pushed(put.key, put.data)
        answers = self._store.put_many(group.values())
        made |= {n: put.key.rsplit("/", 2)[1] for n, put in group.items() if isinstance(answers[put.key], str)}
        try:
            for n, put in group.items():
                answer = answers[put.key]
                created = True
                if isinstance(answer, Conflict | OutcomeUnknown):
                    created = self._put_resolved(put.key, put.data, unclear=answer)
                elif isinstance(answer, LimpetError):
                    created = self._put_resolved(put.key, put.data)
                entry = made[n] = put.key.rsplit("/", 2)[1]
                if used and created and self._storage.ended(entry):
                    self._storage.close(entry, batch=True)
        finally:
            if made:
                self._storage.ring()

    def _agree(self, id_: str, name: str, counts: Sequence[int]) -> None:
        """Record the shape of a push that has an id, before its entries; the first record counts.

        Raises: Conflict if the id has another shape.   Cost: 1 PUT, + 1 GET if there is one.
        """
        digest = hashlib.sha256(" ".join(map(str, counts)).encode()).hexdigest()
        shape = PushShape(id=id_, tasks=sum(counts), entries=len(counts), sha256=digest, at=self._runtime.wall())
        outcome = self._storage.shape(name).attempt(None, shape)
        first = outcome.seen.value if isinstance(outcome, Won) else outcome.now.value
        if other_shape(first, shape):
            raise Conflict(
                f"the id {id_!r} was used for a push of {many(first.tasks, 'task')} in "
                f"{many(first.entries, 'batch', 'batches')}; this one has {shape.tasks} in {shape.entries}",
                hint="push the same tasks with the same batch=, or use another id",
            )

    def place(self, entry: str, task: TaskRecord, *, fresh: bool = False) -> bool:
        """The push rule: put if absent, then look for a receipt in failed/ and then in completed/ (H5, H6).

        Whether the task is now pending by this call. A receipt ends the name: the task is taken back.
        `fresh`: the name cannot have ended before.
        Raises: OutcomeUnknown, after which the same push may be made again.
        Cost: 1 PUT, and for a name that was not minted for this push 2 HEADs.
        """
        key = self._keys.tasks(entry, batch=False)
        data = records.encode(task)
        self._storage.journal.pushed(key, data)
        if not self._put_resolved(key, data, write_id=task.write_id):
            return False
        if fresh or (is_minted(entry) and not task.delayed) or not self._storage.ended(entry):
            return True
        self._storage.close(entry, batch=False)
        return False

    def promote(self, *, now: datetime, keys: Iterable[Key]) -> list[str]:
        """Make delayed pushes that are due pending; their entries.   Cost: each 1 GET, a push, 1 DELETE.

        Crash: at worst one is pushed twice, which the push rule undoes.
        """
        placed: list[str] = []
        for key in keys:
            found = parts_of_scheduled(key)
            if found is None:
                continue
            due, entry = found
            if due > now:
                break
            try:
                if self._place_scheduled(key, entry):
                    placed.append(entry)
                self._store.delete(key)
            except (Missing, Unsupported, OutcomeUnknown):
                continue
            except (Corrupt, Invalid) as error:  # it could not even be put aside; the others can be made pending
                self._storage.notices.warn(entry, f"{key} is passed over: {error}")
        return placed

    def _place_scheduled(self, key: Key, entry: str) -> bool:
        try:
            task = read_task(self._store.get(key).data, what=key)
        except (Corrupt, ForeignTask) as error:
            reject_scheduled(self._storage, key, str(error))
            return False
        return self.place(entry, task)

    def _schedule(self, entry: str, task: TaskRecord, delay_s: float) -> Pushed:
        if not is_minted(entry) and self._storage.ended(entry):
            return Pushed(task.id, False)
        due = self._storage.exact_now() + timedelta(seconds=delay_s + 1)
        key = self._keys.scheduled_at(due_name(due), entry, task.write_id)
        data = records.encode(task)
        self._storage.journal.pushed(key, data)
        self._put_resolved(key, data, write_id=task.write_id)
        self._storage.ring()
        return Pushed(task.id, True)

    def _pack(self, payloads: Sequence[bytes], trace: str, *, name: str | None, caller: str, parent: str) -> Put:
        write_id = self._runtime.new_id()
        data = batch_bytes(
            payloads,
            pushed_at=self._runtime.wall(),
            write_id=write_id,
            trace=trace,
            named=name is not None,
            caller=caller,
            epoch=self._storage.epoch,
            parent=parent,
        )
        return Put(self._keys.tasks(f"{name or write_id}-{len(payloads)}", batch=True), data, Absent())

    def _put_resolved(
        self, key: Key, data: bytes, *, write_id: str | None = None, unclear: LimpetError | None = None
    ) -> bool:
        """Put a task if absent; returns whether ours is the one that is there, or was there and has ended.

        Not `store.outcome.put_resolved`: a task may have been run and deleted before it is read back, so an absent one
        is looked for among the receipts, and sending the same task again at worst runs it again.
        `unclear`: it was sent already, and this was the answer.
        """
        if unclear is None:
            try:
                self._store.put(key, data, when=Absent())
                return True
            except (Conflict, OutcomeUnknown) as error:
                unclear = error
        for sent in attempts(self._runtime, SENDS_MAX, 0.2):
            if sent > 1:
                try:
                    self._store.put(key, data, when=Absent())
                    return True
                except LimpetError as error:
                    unclear = error
            try:
                found = self._store.get(key, size_max=ENTRY_BYTES_MAX).data
                return found == data if write_id is None else _pushed_by(found) == write_id
            except Missing:
                entry = key.rsplit("/", 2)[1]
                if is_minted(entry) and self._storage.ended(entry):
                    return True
            except Corrupt:
                return False  # the object is too large to be ours
            except LimpetError as error:
                unclear = error
        raise OutcomeUnknown(
            f"it is unknown whether the push to {key} happened ({unclear})", hint="push it again with the same id"
        )


def _half_way(
    error: LimpetError, packs: Sequence[Sequence[bytes]], made: Mapping[int, str], *, named: bool
) -> OutcomeUnknown:
    """The error of a push of many tasks of which those `made` are there, each by the place of its batch."""
    firsts = [*accumulate(map(len, packs), initial=0)]
    known = [n for n in range(len(packs)) if n in made]
    unclear = "; of one batch it is unknown" if isinstance(error, OutcomeUnknown) else ""
    done = sum(len(packs[n]) for n in known)
    half = OutcomeUnknown(
        f"{done} of {many(firsts[-1], 'task')} were pushed{unclear}, then: {error}",
        hint="make the same push again with the same id: it adds those that are not there"
        if named
        else "push those that are named in `rest` of the error; with an id=, the same push made again would add them",
    )
    half.pushed = [f"{made[n]}.{k}" for n in known for k in range(len(packs[n]))]
    half.rest = [k for n in range(len(packs)) if n not in made for k in range(firsts[n], firsts[n + 1])]
    return half


def _pushed_by(data: bytes) -> str | None:
    try:
        return read_task(data, what="the stored task").write_id
    except (Corrupt, Unsupported):
        return None

"""Sweeping: after crashes every task ends up in exactly one place.

Per task, completed beats failed beats pending beats scheduled. The sweep lists and compares; it deletes only names that
a receipt ends, and leases that have no task. It may run anywhere, any number at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import groupby, islice, takewhile

from limpet.kernel.errors import Corrupt, LimpetError, Missing, Unsupported
from limpet.kernel.keys import (
    BATCH,
    LEASE,
    REMOTE,
    TASK,
    Key,
    batch_of,
    derived,
    is_batch,
    is_history,
    name_of_receipt,
    parts_of_entry,
    parts_of_scheduled,
    parts_of_step,
    retry_of,
)
from limpet.kernel.store.api import Stat
from limpet.queue.api import Policy
from limpet.queue.decide import lists_done
from limpet.queue.durable import orphaned
from limpet.queue.entry import PUSHED_ENTRIES_MAX, Receipt, SweepRecord
from limpet.queue.storage import Storage

CHUNK = 1000
SWEEP_EVERY_S = 3600.0
RETAIN_EVERY_S = 86400.0
GRACE_S = 600.0
BUSY_S = 300.0
PARTS_WITHIN_S = 3 * RETAIN_EVERY_S


class Retention:
    """Decides which receipts, parts and shapes of a queue go by their age, and in which order. Pure.

    It is told of everything in failed/, parts/ and pushes/ first, then of what waits, then of completed/.
    """

    def __init__(self) -> None:
        self._there: set[str] = set()
        """Entries that wait, or have a young receipt, as far as something old is known to depend on them."""
        self._kept: set[str] = set()
        """Batches of which a task has a young receipt, or a retry that is there."""
        self._retries: dict[str, int] = {}
        """By the first name of a task: the highest number of a retry that is there."""
        self._receipts: dict[str, list[Key]] = {}
        """Old receipts that do not go at once, by the name of the entry that they end."""
        self._inner: dict[str, list[tuple[str, Key]]] = {}
        """Old objects of entries that do not end them: parts, and receipts of single tasks of a batch. By entry: the
        name of the task, or of the entry, and the key."""
        self._shapes: dict[Key, list[str]] = {}
        self._of_shapes: set[str] = set()
        """The names of the entries of old pushes, without the number of their tasks."""
        self.asks = False
        """Whether it must be told what waits: retries, and entries of old pushes."""

    def add_failed(self, name: str, key: Key, *, is_old: bool) -> None:
        """A receipt in failed/."""
        if is_old:
            self.asks = True
            self._add_receipt(name, key)
        else:
            self.note(name)

    def add_part(self, entry: str, key: Key) -> None:
        """An old part."""
        self._inner.setdefault(entry, []).append((entry, key))

    def add_shape(self, key: Key, names: Sequence[str]) -> None:
        """An old shape. `names`: those of its entries, without the number of their tasks."""
        self.asks = True
        self._shapes[key] = [*names]
        self._of_shapes.update(names)

    def note(self, name: str) -> None:
        """Something that keeps older things: an entry that waits, or a task or an entry that has a young receipt."""
        first, number, _ = retry_of(name) or (name, 0, "")
        part = batch_of(first)
        if number:
            self._retries[first] = max(number, self._retries.get(first, 0))
        if part is not None:
            self._kept.add(part[0])
        elif name in self._inner or name in self._receipts or name.rpartition("-")[0] in self._of_shapes:
            self._there.add(name)

    def add_completed(self, name: str, key: Key, *, is_old: bool) -> bool:
        """A receipt in completed/. Returns whether it goes at once: nothing else depends on it."""
        if not is_old:
            self.note(name)
            return False
        if name in self._inner or batch_of(name) or retry_of(name) or self._stays(name):
            self._add_receipt(name, key)
            return False
        return True

    def over(self, is_there: Callable[[str], bool]) -> Iterator[list[Key]]:
        """The keys of what goes, in the order in which it does. `is_there`: whether an entry waits or has a receipt. It
        is asked about those of which nothing else was told.
        """
        gone = {entry for entry in self._inner if self._is_over(entry, is_there)}
        yield [key for entry in sorted(gone) for name, key in self._inner[entry] if not self._stays(name)]
        # What was retried goes before its retry: a failed task without one may be retried again.
        in_order = sorted(self._receipts, key=lambda name: (retry_of(name) or (name, 0, ""))[1])
        yield [key for name in in_order if not self._stays(name) for key in self._receipts[name]]
        there = {name.rpartition("-")[0] for name in self._there} if self._shapes else set[str]()
        yield [key for key, names in self._shapes.items() if there.isdisjoint(names)]

    def _add_receipt(self, name: str, key: Key) -> None:
        part = batch_of(name)
        if part is None:
            self._receipts.setdefault(name, []).append(key)
        else:
            self._inner.setdefault(part[0], []).append((name, key))

    def _is_over(self, entry: str, is_there: Callable[[str], bool]) -> bool:
        """Whether an entry has ended so long ago that what is left of it goes, unless it depends on a retry."""
        return entry not in self._there and (entry in self._receipts or not is_there(entry))

    def _stays(self, name: str) -> bool:
        """Whether a task or an entry waits, has ended lately, or has a later retry that does or has, as one of its
        tasks may have."""
        first, number, _ = retry_of(name) or (name, 0, "")
        return name in self._there or name in self._kept or self._retries.get(first, 0) > number


class Sweeper:
    """Tidies one queue."""

    def __init__(self, storage: Storage, policy: Policy) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._runtime = storage.runtime
        self._policy = policy
        self.due_s = self._runtime.elapsed_s() + SWEEP_EVERY_S * self._runtime.rng.uniform(0.1, 1.0)

    def sweep_when_due(self) -> None:
        """Take a turn if `due_s` has passed: about one process sweeps an hour.

        Cost: nothing mostly; once an hour 1 GET, and 1 PUT + the sweep for the process that takes its turn.
        """
        at_s = self._runtime.elapsed_s()
        if at_s >= self.due_s:
            self.due_s = at_s + SWEEP_EVERY_S * self._runtime.rng.uniform(0.9, 1.1)
            self.take_turn()

    def take_turn(self) -> None:
        """Sweep unless some process did so within the last hour.   Cost: 1 GET; for its turn 1 PUT + the sweep."""
        cell = self._storage.sweeps()
        try:
            seen = cell.read()
        except Corrupt:
            self._store.delete(self._keys.sweep)  # it only records when a sweep began
            return
        except Unsupported:
            return
        if seen is None and self._is_dropped():
            return
        now = self._store.now(max_age_s=BUSY_S)
        if seen is not None and seen.modified is not None and now - seen.modified < timedelta(seconds=SWEEP_EVERY_S):
            return
        retained_at = seen.value.retained_at if seen else now
        retain = seen is not None and now - retained_at > timedelta(seconds=RETAIN_EVERY_S)
        turn = SweepRecord(
            worker_id=self._runtime.owner,
            begun_at=now,
            retained_at=now if retain else retained_at,
            retention_s=self._policy.kept_s,
        )
        try:
            if seen is None:
                cell.create(turn)
            else:
                cell.swap(seen, turn)
            self.sweep(grace_s=GRACE_S)
            if retain:
                self.retain()
                self.drop_parts(within_s=PARTS_WITHIN_S)
        except LimpetError:
            return  # another process had the turn, or the store is away: the next turn comes in an hour

    def _is_dropped(self) -> bool:
        """Whether the queue was dropped, and not used since: a worker that serves it must not make it anew.

        Cost: 1 HEAD, and 1 LIST if it was ever dropped.
        """
        return self._storage.exists(self._keys.drop) and next(iter(self._store.list(self._keys.root)), None) is None

    def sweep(self, *, grace_s: float = 0.0) -> int:
        """One pass; returns the number of deleted objects. Objects younger than `grace_s` may be in use, and are kept.

        Cost: 1 LIST per 1,000 objects of pending/, failed/ and what of completed/ lies between them, and of scheduled/,
        slots/ and steps/ together; 1 DELETE for each object that goes; 1 GET for each failed task of a batch; up to 2
        LISTs, 2 HEADs and 1 GET for each entry that has recorded steps.
        """
        before = self._store.now(max_age_s=BUSY_S) - timedelta(seconds=grace_s)
        gone = self._drop_failed(before) + self._drop_pending(before)
        # One listing shows both: a queue without durable tasks costs no request more.
        rest = self._store.list(self._keys.root, after=self._keys.scheduled)
        for folder, stats in groupby(rest, key=lambda stat: stat.key.removeprefix(self._keys.root).split("/")[1]):
            if folder == "scheduled":
                gone += self._drop_scheduled(stats, before)
            elif folder == "steps":
                gone += self._drop_steps(stats, min(before, self._store.now() - timedelta(seconds=GRACE_S)))
        if self._storage.closer is not None:
            self._storage.closer.flush()
        return gone

    def retain(self) -> int:
        """Remove receipts, results, parts and the shapes of pushes that are older than `retention_s`, then the steps of
        failed tasks that can no longer be retried: their ids may be used again. Nothing goes if they are kept for ever.

        What belongs to an entry that has not ended has no age, nor a receipt while a retry of its task is there:
        retention counts from the end. An entry's own receipt goes after all else that has its name, except steps, which
        say whose they are.
        Cost: 1 LIST per 1,000 of them; if receipts of failed tasks went, that of a sweep for recorded steps. If there
        are old failures or shapes, 1 LIST per 1,000 objects of pending/ more, and 1 GET for each old shape. 1 to 3
        HEADs for each entry with old parts that has not ended.
        """
        if self._policy.kept_s is None:
            return 0
        before = self._store.now(max_age_s=BUSY_S) - timedelta(seconds=self._policy.kept_s)
        retention = Retention()
        for stat in self._store.list(self._keys.failed):
            retention.add_failed(name_of_receipt(stat.key), stat.key, is_old=stat.modified < before)
        for stat in self._store.list(self._keys.parts):
            if stat.modified < before:
                retention.add_part(stat.key.rsplit("/", 2)[1], stat.key)
        self._add_shapes(
            retention, [stat.key for stat in self._store.list(self._keys.pushes) if stat.modified < before]
        )
        if retention.asks:
            for stat in self._store.list(self._keys.pending):  # before completed/: what ends meanwhile is seen there
                entry, kind = parts_of_entry(stat.key, self._keys.pending) or ("", "")
                if kind in (TASK, BATCH):
                    retention.note(entry)
        gone = 0
        for chunk in _chunks(self._store.list(self._keys.completed)):
            receipts = ((name_of_receipt(stat.key), stat) for stat in chunk)
            over = [
                stat.key
                for name, stat in receipts
                if retention.add_completed(name, stat.key, is_old=stat.modified < before)
            ]
            self._store.delete_many(over)
            gone += len(over)
        failures = False
        for keys in retention.over(self._is_there):
            self._store.delete_many(keys)
            gone += len(keys)
            failures = failures or any(key.startswith(f"{self._keys.failed}/") for key in keys)
        if failures:
            gone += self._drop_steps(self._store.list(self._keys.steps), self._store.now() - timedelta(seconds=GRACE_S))
        return gone

    def _is_there(self, entry: str) -> bool:
        """Whether an entry waits or has ended. Its task is looked for first: it goes after its receipt is there."""
        return self._storage.exists(self._keys.tasks(entry, batch=is_batch(entry))) or self._storage.ended(entry)

    def _add_shapes(self, retention: Retention, keys: list[Key]) -> None:
        """The old shapes of pushes, with the names of their entries. One that cannot be read goes by its age."""
        for key, blob in self._store.get_many(keys).items() if keys else ():
            name, entries = name_of_receipt(key), 0
            with suppress(Corrupt, Unsupported, Missing):
                if isinstance(blob, LimpetError):
                    raise blob
                entries = self._storage.shape(name).decode(blob).value.entries
            retention.add_shape(key, [derived(name, k) for k in range(min(entries, PUSHED_ENTRIES_MAX))])

    def _drop_failed(self, before: datetime) -> int:
        """Failed receipts of tasks that also completed (H4)."""
        gone = 0
        for chunk in _chunks(self._store.list(self._keys.failed)):
            names = {name_of_receipt(stat.key): stat.key for stat in chunk if stat.modified <= before}
            beaten = self._receipts(self._keys.completed, names)
            parts = {name: part for name in names if name not in beaten and (part := batch_of(name))}
            whole = self._receipts(self._keys.completed, {entry for entry, _ in parts.values()})
            for entry in sorted(whole):
                whole_ = self._storage.read_receipt(self._keys.completed_of(entry))
                beaten |= {name for name, (of, n) in parts.items() if of == entry and whole_ and lists_done(whole_, n)}
            self._store.delete_many([names[name] for name in sorted(beaten)])
            gone += len(beaten)
        return gone

    def _drop_pending(self, before: datetime) -> int:
        """Entries that a receipt ends, and leases without a task."""
        gone = 0
        for entries in self._entries():
            over = self._receipts(self._keys.completed, entries) | self._receipts(self._keys.failed, entries)
            for entry in sorted(over):
                gone += len(entries[entry])
                tasks = [stat.key for kind, stat in entries[entry].items() if kind != LEASE]
                if not any(self._store.delete_many(tasks).values()):
                    self._storage.drop_lease(entry)
            for entry, found in entries.items():
                young = any(stat.modified > before for stat in found.values())
                if entry not in over and found.keys() <= {LEASE, REMOTE} and not young:
                    gone += self._drop_orphans([stat.key for stat in found.values()])
        return gone

    def _drop_scheduled(self, stats: Iterator[Stat], before: datetime) -> int:
        """Delayed pushes of names that a receipt ends: the push rule would take them back when they are due."""
        gone = 0
        for chunk in _chunks(stats):
            entries: dict[str, list[Key]] = {}
            for stat in chunk:
                found = parts_of_scheduled(stat.key)
                if found is not None and stat.modified <= before:
                    entries.setdefault(found[1], []).append(stat.key)
            over = self._receipts(self._keys.completed, entries) | self._receipts(self._keys.failed, entries)
            keys = [key for entry in sorted(over) for key in entries[entry]]
            gone += sum(1 for error in self._store.delete_many(keys).values() if error is None)
        return gone

    def _drop_steps(self, listed: Iterator[Stat], before: datetime) -> int:
        """Steps and signals of tasks that have ended, except failed ones that may be retried.

        Young ones are kept whatever the sweep's grace: a retry copies the steps of a task before it pushes it.

        Cost: for each entry that has some up to 2 LISTs and 2 HEADs.
        """
        gone = 0
        stats = ((part, stat) for stat in listed if (part := parts_of_step(stat.key)))
        for entry, group in groupby(stats, key=lambda pair: pair[0][0]):
            found = [(part[1], stat) for part, stat in group]
            if any(stat.modified > before for _, stat in found):
                continue
            task = self._keys.tasks(entry, batch=is_batch(entry))
            waits = self._storage.exists(task) or any(self._keys_of_scheduled(entry))
            waits = waits or self._storage.exists(task)  # it may have become pending between the two
            failed = None if waits else self._failed_tasks(entry, before)
            over = orphaned({n for n, _ in found}, waits=failed is None, failed=failed or ())
            keys = [stat.key for n, stat in found if n in over]
            gone += sum(1 for error in self._store.delete_many(keys).values() if error is None)
        return gone

    def _keys_of_scheduled(self, entry: str) -> Iterator[Key]:
        for stat in self._store.list(self._keys.scheduled):
            found = parts_of_scheduled(stat.key)
            if found is not None and found[1] == entry:
                yield stat.key

    def _failed_tasks(self, entry: str, before: datetime) -> set[int] | None:
        """The tasks of an entry that have failed or were cancelled, and not retried, or have an unreadable receipt.

        None for a batch that was cancelled later than `before`: its worker may still run (H10).
        """
        names = {0: entry}
        if is_batch(entry):
            after = f"{self._keys.failed}/{entry}."
            listed = self._store.list(self._keys.failed, after=after)
            listed = takewhile(lambda stat: stat.key.startswith(after), listed)
            receipts = {name_of_receipt(stat.key): stat.modified for stat in listed}
            if receipts.pop(entry, before) > before:
                return None
            names = {part[1]: name for name in receipts if (part := batch_of(name))}
        failed: set[int] = set()
        for n, name in names.items():
            try:
                seen = self._storage.receipt(self._keys.failed_of(name)).read()
            except (Corrupt, Unsupported):
                failed.add(n)
                continue
            if seen is not None and seen.value.state in ("failed", "cancelled"):
                failed.add(n)
        return failed

    def drop_parts(self, *, grace_s: float = GRACE_S, within_s: float = float("inf")) -> int:
        """Remove result parts that no receipt of their ended entry names: their writers lost the entry.

        A receipt never changes, so what it does not name is never read. Parts older than `within_s` were looked at by
        an earlier pass. Histories are not named, and go with the receipt.
        Cost: 1 LIST per 1,000 parts; for each entry that has some of that age 1 GET of its receipt, and only if that
        does not name them all 2 LISTs + 1 GET for each receipt of its tasks.
        """
        now = self._store.now(max_age_s=BUSY_S)
        gone = 0
        for entry, parts in self._parts():
            old = {
                key
                for key, at in parts.items()
                if grace_s <= (now - at).total_seconds() <= within_s and not is_history(key)
            }
            orphans = old and self._orphans(entry, old)
            if orphans:
                gone += sum(1 for error in self._store.delete_many(sorted(orphans)).values() if error is None)
        return gone

    def _parts(self) -> Iterator[tuple[str, dict[Key, datetime]]]:
        """The parts of one entry after another."""
        stats = ((stat.key.rsplit("/", 2)[1], stat) for stat in self._store.list(self._keys.parts))
        for entry, group in groupby(stats, key=lambda pair: pair[0]):
            yield entry, {stat.key: stat.modified for _, stat in group}

    def _orphans(self, entry: str, parts: set[Key]) -> set[Key]:
        whole = self._storage.read_receipt(self._keys.completed_of(entry))
        left = parts - _named(whole)
        if not left:
            return left
        failed = self._storage.read_receipt(self._keys.failed_of(entry))
        if whole is None and failed is None:
            return set()  # it has not ended, or its receipt cannot be read
        left -= _named(failed)
        for folder, of in ((self._keys.completed, self._keys.completed_of), (self._keys.failed, self._keys.failed_of)):
            for n in sorted(self._storage.own_receipts(folder, entry)):
                receipt = self._storage.read_receipt(of(f"{entry}.{n}"))
                if receipt is None:
                    return set()
                left -= _named(receipt)
        return left

    def _entries(self) -> Iterator[dict[str, dict[str, Stat]]]:
        """Some whole entries at a time: a page may end in the middle of one. Files that are not ours are left alone."""
        entries: dict[str, dict[str, Stat]] = {}
        for stat in self._store.list(self._keys.pending):
            parts = parts_of_entry(stat.key, self._keys.pending)
            if parts is None:
                continue
            entry, kind = parts
            if entry not in entries and len(entries) >= CHUNK:
                yield entries
                entries = {}
            entries.setdefault(entry, {})[kind] = stat
        if entries:
            yield entries

    def _drop_orphans(self, keys: list[Key]) -> int:
        """Leases whose task the listing did not show: look again, for a listing is a hint (F22)."""
        if any(stat.key not in keys for stat in self._store.list(keys[0].rsplit("/", 1)[0])):
            return 0
        if self._storage.closer is not None:
            self._storage.drop_lease(keys[0].rsplit("/", 2)[1])
        else:
            self._store.delete_many(keys)
        return len(keys)

    def _receipts(self, prefix: str, names: Iterable[str]) -> set[str]:
        """Which of the names have a receipt below `prefix`.

        Cost: 1 LIST per 1,000 receipts between the first and the last name, and never more than 1 a name.
        """
        wanted = sorted(f"{prefix}/{name}.json" for name in names)
        found: set[str] = set()
        while wanted:
            page = [stat.key for stat in islice(self._store.list(prefix, after=wanted[0][:-1]), CHUNK)]
            found |= {name_of_receipt(key) for key in {*page}.intersection(wanted)}
            if len(page) < CHUNK:
                break
            wanted = [key for key in wanted if key > page[-1]]
        return found


def _named(receipt: Receipt | None) -> set[Key]:
    """The parts that a receipt names."""
    return set() if receipt is None else {Key(key) for key in (*receipt.parts, receipt.raw) if key}


def _chunks(listing: Iterator[Stat]) -> Iterator[list[Stat]]:
    while chunk := [*islice(listing, CHUNK)]:
        yield chunk

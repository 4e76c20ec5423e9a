"""`AwaitCheck`: whether suspended tasks have what they wait for, the ends of other tasks or signals.

A few are asked for one by one. Of many, in a bucket, the folders are listed in which they lie: a LIST tells of all keys
within 1,000 objects. The answers are hints: the claim of a task asks for the results, and suspends the task again if
one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from posixpath import commonpath
from typing import TypeVar

from limpet.kernel.errors import Corrupt, Denied, LeaseLost, LimpetError, OutcomeUnknown, Unavailable, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lease, Lock
from limpet.kernel.store.api import Version
from limpet.queue.durable import WaitingStep
from limpet.queue.entry import is_of
from limpet.queue.storage import Storage

T = TypeVar("T")

GONE_MAX = 20_000
PAGE = 1000
TURN_S = 30.0
LIST_FOR = 12
"""So many keys are worth a LIST, which costs as much as 12 HEADs."""


@dataclass(frozen=True, eq=False)
class AwaitedStep:
    """What one task of an entry waits for, as the `version` of the entry's lease says."""

    entry: str
    version: Version
    step: WaitingStep


class AskingTurn:
    """Which process of a queue looks for what the suspended tasks wait for: the holder of a lease.

    The holder renews it by its looks alone, so that one which is busy or dead loses it.
    Crash: another process takes the turn within two `TURN_S`. What became ready meanwhile is found then.
    """

    def __init__(self, storage: Storage) -> None:
        key, runtime = storage.keys.asking, storage.runtime
        self._runtime = runtime
        self._lock = Lock(storage.store, key, key, TURN_S, runtime, storage.watch, look_first=True)
        self._mutex = runtime.mutex()
        self._lease: Lease | None = None
        self._next_s = float("-inf")
        """When to try to take the turn again."""

    def take(self) -> bool:
        """Whether it is this process's turn; also where its key may not know, or the lease cannot be read.

        Raises: OutcomeUnknown, Unavailable.
        Cost: for the holder 1 PUT each `TURN_S` / 3; for the others 1 GET each `TURN_S`, and 1 PUT to take it.
        """
        with self._mutex:
            try:
                return self._keeps() or self._takes()
            except (Denied, Corrupt, Unsupported):
                return True

    def keep(self) -> None:
        """Keep the turn, if this process has it: it is idle, and would look.   Cost: 1 PUT each `TURN_S` / 3."""
        if self._lease is not None:
            with self._mutex, suppress(LimpetError):
                self._keeps()

    def pass_on(self) -> None:
        """Let another process have the turn.   Cost: 1 PUT."""
        with self._mutex:
            lease, self._lease = self._lease, None
        if lease is not None:
            with suppress(LimpetError):
                lease.release()

    def _keeps(self) -> bool:
        if self._lease is None:
            return False
        try:
            if self._lease.valid_for_s() < TURN_S * 2 / 3:
                self._lease.renew()
        except LeaseLost:
            self._lease = None
        return self._lease is not None

    def _takes(self) -> bool:
        at_s = self._runtime.elapsed_s()
        if at_s < self._next_s:
            return False
        self._next_s = at_s + TURN_S * self._runtime.rng.uniform(0.7, 1.0)
        lease = self._lock.try_acquire()
        self._lease = lease if isinstance(lease, Lease) else None
        return self._lease is not None


class AwaitCheck:
    """Looks for what the suspended tasks of one queue wait for."""

    def __init__(self, storage: Storage) -> None:
        self.turn = AskingTurn(storage)
        self._storage = storage
        self._gone: set[str] = set()
        """Awaited entries that were seen to be gone, each with the version of the lease that named it. A later version
        may name an entry again that was only delayed."""

    def ready(self, waiting: Iterable[AwaitedStep]) -> set[str]:
        """The entries of which a task has what it waits for.

        Raises: the first error of a look.
        Cost: 1 GET for each signal, or of several to one entry 1 LIST and 1 GET for each that has come; 1 HEAD for each
        task that waits for others, and 1 for each of those that has ended. Many at once in a bucket. There more than 12
        of one queue cost 1 LIST per 1,000 objects between the first and the last of them.
        """
        tasks = [*waiting]
        signals = {self._signal(task): task for task in tasks if task.step.signal is not None}
        come = self._there(signals, alone=set)
        with_signal = self._where(self._has_come, (task for key, task in signals.items() if key in come))
        entries = {task.entry for task in with_signal}
        others = [task for task in tasks if task.step.signal is None]
        while others:
            left = {task: self._left(task) for task in others}
            entries |= {task.entry for task, keys in left.items() if not keys}
            firsts = {Key(keys[0]) for keys in left.values() if keys}
            there = self._there(firsts, alone=self._heads)
            others = [task for task, keys in left.items() if keys and keys[0] not in there]
            self._note_gone(f"{task.version} {left[task][0]}" for task in others)
        return entries

    def _there(self, keys: Collection[Key], *, alone: Callable[[Collection[Key]], set[Key]]) -> set[Key]:
        """Those of the keys that are there, by listings of their folders; `alone` says it of those for which a LIST
        does not pay.
        """
        many = self._storage.store.far and len(keys) > LIST_FOR
        there: set[Key] = set()
        for _, group in groupby(sorted(keys), _queue_folder if many else _folder):
            left = [*group]
            while len(left) > 1:
                folder = commonpath([left[0], left[-1]])
                stats = [*islice(self._storage.store.list(folder, after=left[0][:-1]), PAGE)]
                end = stats[-1].key if len(stats) == PAGE else left[-1]
                names = {stat.key for stat in stats}
                there.update(key for key in left if key <= end and key in names)
                after = [key for key in left if key > end]
                if len(left) - len(after) < LIST_FOR:
                    there |= alone(after)  # they lie far apart
                    after = []
                left = after
            there |= alone(left)
        return there

    def _heads(self, keys: Collection[Key]) -> set[Key]:
        """The same, by a request for each. One that cannot be asked for now counts as there: the next look asks again,
        and other looks go on beside this one.
        """

        def is_there(key: Key) -> bool:
            try:
                return self._storage.exists(key)
            except (OutcomeUnknown, Unavailable):
                return True

        return {*self._where(is_there, keys)}

    def _has_come(self, task: AwaitedStep) -> bool:
        """Whether the signal to that life of the task is there.   Cost: 1 GET."""
        try:
            signal = self._storage.signal(task.entry, task.step.n, task.step.signal or "").read()
        except (Corrupt, Unsupported):
            return True  # the run of the task says so
        return signal is not None and (task.step.life is None or is_of(signal.value.life, task.step.life))

    def _where(self, ask: Callable[[T], bool], items: Iterable[T]) -> list[T]:
        """Those of which the answer is yes.   Raises: the first error of an answer."""

        def answer(item: T) -> bool | LimpetError:
            try:
                return ask(item)
            except LimpetError as error:
                return error

        asked = [*items]
        store = self._storage.store
        at_once = store.at_once if store.far else 1
        answers = self._storage.runtime.fan_out(answer, asked, at_once=at_once) if asked else []
        for each in answers:
            if isinstance(each, LimpetError):
                raise each
        return [item for item, yes in zip(asked, answers, strict=True) if yes]

    def _left(self, task: AwaitedStep) -> list[str]:
        """The entries that a task waits for, without those that were seen to be gone."""
        return [key for key in task.step.awaits if f"{task.version} {key}" not in self._gone]

    def _note_gone(self, gone: Iterable[str]) -> None:
        if len(self._gone) > GONE_MAX:
            self._gone.clear()
        self._gone.update(gone)

    def _signal(self, task: AwaitedStep) -> Key:
        return self._storage.keys.signal(task.entry, task.step.n, task.step.signal or "")


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


def _queue_folder(key: str) -> str:
    """The folder that holds the entries of a queue, or the signals to them: `queues/<q>/pending`."""
    return "/".join(key.split("/", 3)[:3])

"""Processes that share one queue, one bucket and one hand-moved clock, each behind a scripted network of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NoReturn, TypeVar

from limpet.kernel.keys import Key
from limpet.kernel.lease import State
from limpet.kernel.store import Always, Blob, MemoryStore, Stat, Store, Version, When
from limpet.queue import BucketQueue, Policy
from limpet.queue.claim import EntryClaim, EntryTask
from limpet.queue.entry import EntryLease, Receipt
from support.clock import ManualRuntime, QueueRuntime, Time
from support.stores import ScriptedStore

__all__ = [
    "LATER_S",
    "NAME",
    "ROOT",
    "TTL_S",
    "Crash",
    "Network",
    "Process",
    "World",
    "crash",
    "held",
    "raises",
    "rounds",
]

T = TypeVar("T")

NAME = "q"
ROOT = f"queues/{NAME}"
TTL_S = 30.0
AWAY_TIMES = 500
LATER_S = 600.0
"""Long enough for every takeover on the hand-moved clock."""


class Crash(BaseException):
    """The process ends here. No block of ours may catch it."""


def crash() -> NoReturn:
    """End the process."""
    raise Crash


def raises(error: BaseException) -> Callable[[], NoReturn]:
    """For `Network.before`: the request meets this error, and never arrives."""

    def deed() -> NoReturn:
        raise error

    return deed


class Network(ScriptedStore):
    """A store that notes what it is asked, and lets something happen just before a request arrives.

    Like a bucket it gives no hints, unless `hints` is set.
    """

    def __init__(self, runtime: ManualRuntime, others: Store) -> None:
        super().__init__(runtime, others)
        self.log: list[str] = []
        self.hints = False
        self.read_max: int | None = None
        """No answer may hold more bytes than this."""
        self._deeds: list[tuple[str, str, Callable[[], object]]] = []

    def before(self, verb: str, ending: str, deed: Callable[[], object]) -> None:
        """Do `deed`, once, before the next `verb` of a key with that ending."""
        self._deeds.append((verb, ending, deed))

    def away(self, verb: str, ending: str, error: BaseException) -> None:
        """From now on every `verb` of a key with that ending meets this error, and never arrives."""
        for _ in range(AWAY_TIMES):
            self.before(verb, ending, raises(error))

    def back(self) -> None:
        """Nothing more happens to requests."""
        self._deeds.clear()

    def wrote(self, *verbs: str) -> list[str]:
        """What was asked so far of those verbs, `put completed/x.json`, without the clock's; then forget it all."""
        found = [line for line in self.log if line.split()[0] in verbs and " clock/" not in line]
        self.log.clear()
        return found

    def change_token(self, prefix: str) -> str | None:
        """See `Store.change_token`."""
        return super().change_token(prefix) if self.hints else None

    def _note(self, verb: str, key: str) -> None:
        self.log.append(f"{verb} {key.removeprefix(f'{ROOT}/')}")
        for deed in self._deeds:
            if deed[0] == verb and key.endswith(deed[1]):
                self._deeds.remove(deed)
                deed[2]()
                return

    def get(self, key: Key, **options: Any) -> Blob:
        """See `Store.get`."""
        self._note("get", key)
        blob = super().get(key, **options)
        assert self.read_max is None or len(blob.data) <= self.read_max, key
        return blob

    def head(self, key: Key) -> Stat:
        """See `Store.head`."""
        self._note("head", key)
        return super().head(key)

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        self._note("put", key)
        return super().put(key, data, when=when)

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        self._note("delete", key)
        super().delete(key)

    def delete_in_order(self, keys: Sequence[Key]) -> None:
        """See `Store.delete_in_order`."""
        for key in keys:
            self.delete(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`."""
        self._note("list", prefix)
        return super().list(prefix, after=after)


class Process:
    """One process: a runtime, a store behind its own network, one queue."""

    def __init__(self, world: World, owner: str, payload_type: Any = None, **policy: Any) -> None:
        self.world = world
        self.runtime = QueueRuntime(world.time, owner)
        self.store = Network(self.runtime, world.memory)
        self.queue = BucketQueue(
            self.store,
            NAME,
            self.runtime,
            policy=Policy(**{"ttl_s": TTL_S, "backoff_s": 0.0, **policy}),
            payload_type=payload_type,
        )

    def freeze(self) -> None:
        """Stop its heartbeat, as SIGKILL does, or a pause. What the test still holds of it is a ghost, or wakes up."""
        self.runtime.frozen = True

    def cost(self, act: Callable[[], object]) -> dict[str, int]:
        """The requests that `act` takes."""
        with self.store.measure() as cost:
            act()
        return cost.requests

    def take(self, *, within_s: float = LATER_S) -> EntryClaim:
        """The next claim, waiting for it on the virtual clock."""
        return held(self.queue.claim(wait_s=within_s))

    def start(self, *, within_s: float = LATER_S) -> tuple[EntryClaim, EntryTask]:
        """The next claim and its first task, started."""
        claim = self.take(within_s=within_s)
        return claim, next(iter(claim))

    def drain(self, handle: Callable[[EntryTask], object] | None = None, *, idle_s: float = 100.0) -> list[str]:
        """Work until nothing was there for a while; the ids of the tasks that were started, in order."""
        ran: list[str] = []
        while claim := self.queue.claim(wait_s=idle_s):
            with claim:
                for task in held(claim):
                    ran.append(task.id)
                    if handle is None:
                        task.done()
                    else:
                        handle(task)
        return ran

    def collect(self, see: Callable[[EntryTask], T], *, idle_s: float = 100.0) -> list[T]:
        """Work as `drain`, every task done; what `see` says of each when it starts, in order."""
        seen: list[T] = []

        def handle(task: EntryTask) -> None:
            seen.append(see(task))
            task.done(task.id)

        self.drain(handle, idle_s=idle_s)
        return seen


class World:
    """The bucket and the clock. `far`: it has a bell, and deletes happen in the background, as in a real bucket."""

    def __init__(self, *, far: bool = False) -> None:
        self.time = Time()
        self.memory = MemoryStore(QueueRuntime(self.time, "store"))
        self.memory.far = far
        self._numbers = count(1)

    def process(self, owner: str | None = None, payload_type: Any = None, **policy: Any) -> Process:
        """A process starts. The keywords are those of `Policy`."""
        return Process(self, owner or f"p{next(self._numbers)}", payload_type, **policy)

    def names(self) -> list[str]:
        """Every object of the queue, below its root."""
        return [stat.key.removeprefix(f"{ROOT}/") for stat in self.memory.list(ROOT)]

    def read(self, key: str) -> bytes:
        """The bytes of an object of the queue."""
        return self.memory.get(Key(f"{ROOT}/{key}"), size_max=None).data

    def write(self, key: str, data: bytes) -> None:
        """Put an object into the queue, behind its back."""
        self.memory.put(Key(f"{ROOT}/{key}"), data)

    def delete(self, key: str) -> None:
        """Remove an object of the queue, behind its back."""
        self.memory.delete(Key(f"{ROOT}/{key}"))

    def lease(self, entry: str) -> EntryLease:
        """The lease of an entry as it stands."""
        seen = self.process("looker").queue.storage.lease(entry).read()
        assert seen is not None
        return seen.value

    def facts(self, entry: str) -> tuple[State, int, str]:
        """State, token and owner of an entry's lease as it stands."""
        record = self.lease(entry)
        return record.state, record.token, record.worker_id

    def receipt(self, key: str) -> Receipt:
        """A receipt as it stands: `completed/x` or `failed/x`."""
        seen = self.process("looker").queue.storage.receipt(Key(f"{ROOT}/{key}.json")).read()
        assert seen is not None
        return seen.value

    def dead(self, **policy: Any) -> EntryClaim:
        """A process that takes the next entry and dies before it starts anything."""
        process = self.process(**policy)
        claim = process.take()
        process.freeze()
        return claim

    def killed(self, **policy: Any) -> EntryTask:
        """A process that takes the next entry, starts its first task and dies in it. What is left is the zombie's."""
        process = self.process(**policy)
        _, task = process.start()
        process.freeze()
        return task


def held(claim: object) -> EntryClaim:
    """The claim that there must be."""
    assert isinstance(claim, EntryClaim), claim
    return claim


def rounds(number: int) -> list[dict[str, int]]:
    """So many payloads."""
    return [{"n": n} for n in range(number)]

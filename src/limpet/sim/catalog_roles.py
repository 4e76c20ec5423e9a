"""The processes around a catalog: those that lead, those that publish, and those that want something of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from limpet.catalog import Compactor, Grant, Leader, Published, Refusal, View
from limpet.catalog.anti_entropy import judged
from limpet.catalog.chain import find, log, state_of, verify
from limpet.catalog.gc import collect_ledger, delete_below, raise_floor
from limpet.catalog.leader import Decide
from limpet.catalog.records import Change, Head, SnapshotRef
from limpet.catalog.state import MINTED, State
from limpet.catalog.storage import Storage
from limpet.errors import Corrupt, Invalid, Missing, OutcomeUnknown, Unavailable
from limpet.keys import Key
from limpet.lease import Lock, Sightings
from limpet.sim.bucket import SimStore
from limpet.sim.cast import Actor
from limpet.sim.catalog_books import Books, Grants, No, Request, ruling
from limpet.sim.catalog_checks import KEYS, CatalogBucket, Json
from limpet.sim.catalog_wire import Wire
from limpet.sim.linear import History
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Process, Violation
from limpet.store.api import Absent, Put

__all__ = ["Api", "Customer", "Habits", "Publisher", "Scene", "SkewedRuntime"]

FOREVER_S = 600.0


@dataclass(frozen=True, slots=True)
class Habits:
    """What this seed's fleet is like. `embedded`: each API process publishes by itself."""

    names: tuple[str, ...]
    ttl_s: float
    apis: int
    compactors: int
    embedded: bool
    rest_s: float
    patience_s: float
    settles: float
    collects: float
    keeps: int


class Scene(Protocol):
    """What every role knows of the run."""

    bucket: CatalogBucket
    books: Books
    wire: Wire
    habits: Habits
    history: History

    def find(self, slot: str) -> tuple[Process, Any] | None:
        """The process that runs in a slot now."""

    def store(self, runtime: SimRuntime) -> SimStore:
        """A process's view of the bucket."""


class SkewedRuntime(SimRuntime):
    """Ids are made by the machine's wall clock, which may be wrong by days."""

    def new_id(self) -> str:
        """See `SimRuntime.new_id`."""
        self._ids += 1
        ms = int((self.world.now_s + self.process.wall_offset_s + 5e6) * 1000)
        return f"{ms:010d}p{self.process.index:03d}n{self._ids:011d}"


class _Slow(Storage):
    """Something takes long between a head and the snapshot that it names."""

    def snapshot(self, ref: SnapshotRef | None) -> State:
        """See `Storage.snapshot`."""
        self.runtime.sleep(self.runtime.rng.random() * 40)
        return super().snapshot(ref)


class _Role(Actor):
    def __init__(self, scene: Scene, process: Process) -> None:
        runtime = SkewedRuntime(process=process, world=scene.bucket.world)
        super().__init__(runtime, scene.store(runtime), scene.history)
        self.scene = scene
        self.books = scene.books
        self.bucket = scene.bucket
        self.habits = scene.habits
        self.storage = Storage(self.store, KEYS, runtime, Json())

    def turns(self) -> list[tuple[float, Callable[[], None]]]:
        """Servers have no turns: they serve."""
        return [(1.0, self.serve)]

    def serve(self) -> None:
        """Until the process ends."""
        while True:
            self.runtime.sleep(FOREVER_S)


class Publisher(_Role):
    """A compactor service."""

    def __init__(self, scene: Scene, process: Process) -> None:
        super().__init__(scene, process)
        self.compactor = Compactor(self.storage)
        self.preparing = False

    def publish(self, paths: Sequence[str], token: int) -> Published:
        """See `Compactor.publish`; often the record of the commit is written after the answer is out."""
        newest = self.bucket.heads[-1] if self.bucket.heads else None
        try:
            published = self.compactor.publish(paths, token)
        except Corrupt as error:
            raise Violation(f"{self.process.name} takes a sound catalog for broken: {error}") from error
        except Refusal:
            self.bucket.refused(paths)
            raise
        except Invalid:
            self.bucket.not_taken(paths, newest)
            raise
        self.bucket.answered(paths, published)
        if self.chance() < self.habits.settles:
            self.runtime.spawn(self.settle, name="settle")
            if not self.preparing:
                self.preparing = True
                self.runtime.spawn(self.prepare, name="prepare")
        return published

    def settle(self) -> None:
        """See `Compactor.settle`."""
        with suppress(Missing, OutcomeUnknown, Unavailable):
            self.compactor.settle()

    def prepare(self) -> None:
        """See `Compactor.prepare`."""
        with suppress(Missing, OutcomeUnknown, Unavailable):
            self.compactor.prepare()
        self.preparing = False


class Api(Publisher):
    """An API service. It leads if it can, and any process may ask it to commit."""

    def __init__(self, scene: Scene, process: Process) -> None:
        super().__init__(scene, process)
        lock = Lock(
            self.store, KEYS.lock, "catalog", self.habits.ttl_s, self.runtime, Sightings(self.runtime), look_first=True
        )
        self.leader = Leader(self.storage, self.publish if self.habits.embedded else self.send, lock)
        self.files = 0

    def serve(self) -> None:
        """Lead, or wait for the lead."""
        self.leader.run()

    def send(self, paths: Sequence[str], token: int) -> Published:
        """Ask some compactor to publish."""
        slot = f"k{int(self.chance() * self.habits.compactors)}"
        published: Published = self.scene.wire.call(
            self.sim,
            "publish.rpc",
            partial(self.scene.find, slot),
            lambda role: role.publish(paths, token),
            patience_s=1 + 3 * self.chance(),
        )
        return published

    @property
    def sim(self) -> SimRuntime:
        """The runtime."""
        return self.runtime

    def commit(self, id_: str | None, request: Request) -> Any:
        """What the service does with a request."""
        id_ = id_ or MINTED + self.runtime.new_id()
        call = self.books.begins(id_, self.process.name, request)
        try:
            result = self.leader.commit(id_, self.decide(id_, request))
        except No as no:
            self.books.refused(call, str(no))
            raise
        except Unavailable:
            self.books.not_attempted(call)
            raise
        except OutcomeUnknown:
            self.books.unknown(call)
            raise
        self.books.told(call, result)
        return result

    def decide(self, id_: str, request: Request) -> Decide:
        """The request as the leader takes it."""

        def decide(state: State) -> Grant:
            rules = ruling(request, {key: state.get(key) for key in request.wanted if state.get(key)})
            if not isinstance(rules, Grants):
                raise No(rules)
            file = None
            if request.with_file:
                self.files += 1
                file = Key(f"warehouse/{self.process.index}-{self.files}")
            value = {"file": file} if file else {}
            changes = tuple(
                Change(key, None if text is None else {"v": text, **value}) for key, text in rules.texts.items()
            )
            writes = (Put(file, id_.encode(), Absent()),) if file else ()
            return Grant(request.what, changes, rules.result, writes)

        return decide


class Customer(_Role):
    """A client: commits, reads, walks the chain, and now and then collects garbage."""

    def __init__(self, scene: Scene, process: Process) -> None:
        super().__init__(scene, process)
        self.view = View(self.storage)
        self.api = 0
        self.seen: dict[str, str | None] = {}
        self.old: Head | None = None

    def turns(self) -> list[tuple[float, Callable[[], None]]]:
        """The things that clients do."""
        return [
            (self.habits.collects, self.collect),
            (0.04, self.walk),
            (0.04, self.look_back),
            (0.12, self.look),
            (0.25, self.commit_some),
            (1.0, self.commit_one),
        ]

    def turn(self) -> None:
        """One of them, and a rest."""
        super().turn()
        self.runtime.sleep(self.chance() * self.habits.rest_s)

    def commit_one(self) -> None:
        """A request."""
        self.commit(self.request())

    def commit_some(self) -> None:
        """Several at once."""
        requests = [self.request() for _ in range(2 + int(self.chance() * 3))]

        def one(request: Request) -> None:
            with suppress(Unavailable, OutcomeUnknown):
                self.commit(request)

        self.runtime.fan_out(one, requests)

    def request(self) -> Request:
        """Something that may well be refused."""
        name, kind = self.name(), self.chance()
        with_file = self.chance() < 0.25
        if kind < 0.3:
            return Request("create", {name: None}, {name: self.new_value()}, with_file)
        if kind < 0.5:
            return Request("drop", {name: self.seen.get(name)}, {name: None})
        if kind < 0.6:
            return Request("put", {}, {name: self.new_value()}, with_file)
        if kind < 0.8:
            return Request("swap", {name: self.seen.get(name)}, {name: self.new_value()}, with_file)
        names = sorted({name, self.name(), self.name()})
        wanted = {each: None if self.chance() < 0.3 else self.new_value() for each in names}
        return Request("transaction", {name: self.seen.get(name)}, wanted, with_file)

    def name(self) -> str:
        """Some key."""
        return self.habits.names[int(self.chance() * len(self.habits.names))]

    def commit(self, request: Request) -> None:
        """Send it until it is answered, or the client has enough of it: the same id to any API."""
        id_ = f"{self.process.name}-{self.new_value()}" if self.chance() < 0.85 else None
        for _ in range(8):
            slot = f"a{self.api}"
            try:
                self.send(slot, id_, request)
            except No:
                return
            except OutcomeUnknown:
                if id_ is None or self.chance() < 0.2:
                    return
                self.elsewhere()
            except Unavailable:
                self.elsewhere()
            else:
                self.seen.update(request.wanted)
                return
            self.runtime.sleep(self.chance() * self.habits.ttl_s / 2)

    def elsewhere(self) -> None:
        """Try another API next."""
        self.api = int(self.chance() * self.habits.apis)

    def send(self, slot: str, id_: str | None, request: Request) -> Any:
        """One request to an API."""
        return self.scene.wire.call(
            self.runtime,
            "commit.rpc",
            partial(self.scene.find, slot),
            lambda role: role.commit(id_, request),
            patience_s=self.habits.patience_s * (0.5 + self.chance()),
        )

    def look(self) -> None:
        """Read, with a view that has been there for long or with a new one, alone or twice at a time."""
        if self.chance() < 0.3:
            self.runtime.fan_out(self.read, [self.view] * 2)
        elif self.chance() < 0.5:
            self.read(self.view)
        else:
            slow = self.chance() < 0.5
            self.read(View(_Slow(self.store, KEYS, self.runtime, Json()) if slow else self.storage))

    def read(self, view: View) -> Head | None:
        """Read.   Raises: Violation unless it is what was published at some moment of the call."""
        self.books.operations += 1
        least = self.bucket.version
        try:
            loaded = view.now()
        except Unavailable:
            return None
        found = loaded.head.version if loaded else 0
        if not least <= found <= self.bucket.version:
            raise Violation(f"{self.process.name} read version {found} when {least} was published")
        if loaded is None:
            return None
        if loaded.head not in self.bucket.heads:
            raise Violation(f"{self.process.name} read a head that never was: {loaded.head}")
        self.same(loaded.state, found)
        self.seen = {key: value["v"] for key, value in loaded.state.entries().items()}
        return loaded.head

    def same(self, state: State, version: int) -> None:
        """Raises: Violation unless the state is that of the version."""
        if state.entries() != self.bucket.known[version].entries:
            raise Violation(
                f"{self.process.name} read {state.entries()} as version {version}, "
                f"which is {self.bucket.known[version].entries}"
            )

    def head(self) -> Head | None:
        """A head to walk from: the newest, or one that was read a while ago."""
        head = self.old if self.old and self.chance() < 0.4 else self.read(self.view)
        self.old = head
        return head

    def walk(self) -> None:
        """The whole chain."""
        head = self.head()
        if head is None:
            return
        if self.chance() < 0.5:
            self.bucket.walked([*log(self.storage, head)], head)
        elif (checked := verify(self.storage, head)).broken:
            raise Violation(f"the chain of version {head.version} is broken: {checked.broken}")

    def look_back(self, version: int | None = None) -> None:
        """The state as it once was."""
        head = self.head()
        if head is None:
            return
        wanted = version or 1 + int(self.chance() * head.version)
        try:
            commit = find(self.storage, head, lambda commit: commit.version <= wanted)
            if commit != self.bucket.known[wanted].commit:
                raise Violation(f"version {wanted} was found as {commit}")
            self.same(state_of(self.storage, head, commit), wanted)
        except Missing as error:
            if wanted >= self.bucket.kept_from:
                raise Violation(f"version {wanted} must be kept: {error}") from error

    def collect(self) -> None:
        """Collect garbage, all of it or some."""
        self.books.operations += 3
        grace_s = self.chance() * self.habits.ttl_s
        raise_floor(self.storage, keep=timedelta(0), keep_versions=self.habits.keeps)
        if self.chance() < 0.8:
            delete_below(self.storage, grace_s=grace_s)
        if self.chance() < 0.5:
            self.bucket.judged(judged(self.storage, grace_s=grace_s))
            collect_ledger(self.storage, grace_s=grace_s)

"""The services of a catalog: those that lead, and those that publish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from limpet.catalog import Compactor, Grant, Leader, Published, Refusal
from limpet.catalog.compactor import Unreachable
from limpet.catalog.leader import Decide
from limpet.catalog.loaded import Ahead
from limpet.catalog.records import Change
from limpet.catalog.refusals import NeedsMetadata
from limpet.catalog.state import MINTED, State
from limpet.catalog.storage import Storage
from limpet.errors import Corrupt, Invalid, Missing, OutcomeUnknown, Unavailable
from limpet.keys import Key
from limpet.lease import Lock, VersionWatch
from limpet.sim.bucket import SimStore
from limpet.sim.cast import Actor
from limpet.sim.catalog_books import Books, Grants, No, Request, ruling
from limpet.sim.catalog_checks import KEYS, CatalogBucket, Json
from limpet.sim.catalog_wire import Wire
from limpet.sim.linear import History
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Process, Violation
from limpet.store.api import Absent, Put

__all__ = ["Api", "Habits", "Publisher", "Role", "Scene", "SkewedRuntime"]

FOREVER_S = 600.0
TRIES_MAX = 8


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


class Role(Actor):
    """A process of its own, with its own view of the bucket."""

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


class Publisher(Role):
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
            self.store,
            KEYS.lock,
            "catalog",
            self.habits.ttl_s,
            self.runtime,
            VersionWatch(self.runtime),
            look_first=True,
        )
        self.leader = Leader(self.storage, self.ask, lock)
        self.asked: tuple[Sequence[str], int] | None = None
        """The batch, and its token, whose fate the leader has not heard yet."""
        self.files = 0

    def serve(self) -> None:
        """Lead, or wait for the lead."""
        self.leader.run()

    def ask(self, paths: Sequence[str], token: int) -> Published:
        """What the leader calls. It takes a violation for a bug of ours, so the world must hear of it first."""
        try:
            return self.carry(paths, token)
        except Violation as violation:
            self.world.failure = self.world.failure or violation
            raise

    def carry(self, paths: Sequence[str], token: int) -> Published:
        """Publish, or have it published.   Raises: Violation if a term goes on before its last batch is settled."""
        if self.asked is not None and self.asked[0] != paths and self.asked[1] == token:
            raise Violation(f"{self.process.name} goes on, and {self.asked[0]} may still be published")
        before, self.asked = self.asked, None if self.bucket.is_epoch(paths) else (paths, token)
        try:
            published = self.publish(paths, token) if self.habits.embedded else self.send(paths, token)
        except Refusal:
            self.asked = None
            raise
        except Unreachable:
            self.asked = before
            raise
        self.asked = None
        return published

    def send(self, paths: Sequence[str], token: int) -> Published:
        """Ask some compactor to publish."""
        slot = f"k{int(self.chance() * self.habits.compactors)}"
        published: Published = self.scene.wire.call(
            self.sim,
            "publish.rpc",
            partial(self.scene.find, slot),
            lambda role: role.publish(paths, token),
            patience_s=1 + 3 * self.chance(),
            nobody=Unreachable("no compactor is there"),
        )
        return published

    @property
    def sim(self) -> SimRuntime:
        """The runtime."""
        return self.runtime

    def commit(self, id_: str | None, request: Request, actor: str) -> Any:
        """What the service does with a request."""
        id_ = id_ or MINTED + self.runtime.new_id()
        call = self.books.begins(id_, self.process.name, request, actor)
        try:
            result = self.ask_leader(id_, request, actor)
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

    def ask_leader(self, id_: str, request: Request, actor: str) -> Any:
        """Have a request decided; a swap is worked out ahead of that, as `Catalog.commit_table` does it."""
        if request.what != "swap":
            return self.leader.commit(id_, self.decide(id_, request, _ruled), actor)
        ahead, known = Ahead(_Pages()), self.leader.known  # type: ignore[arg-type]
        if known is not None:
            ahead.work_out(_needs(request, known))

        def worked_out(request: Request, state: State) -> Grants:
            needs = _needs(request, state)
            (path,) = needs
            if not ahead.has(path):
                raise NeedsMetadata(needs)
            made: Any = ahead.result(path)
            return cast(_Made, made).grants

        for _ in range(TRIES_MAX):
            try:
                return self.leader.commit(id_, self.decide(id_, request, worked_out), actor)
            except NeedsMetadata as need:
                ahead.work_out(need.needs)
        raise Unavailable("others were first too often")

    def decide(self, id_: str, request: Request, rule: Callable[[Request, State], Grants]) -> Decide:
        """The request as the leader takes it."""

        def decide(state: State) -> Grant:
            rules = rule(request, state)
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


@dataclass(frozen=True, slots=True)
class _Made:
    """What a swap was worked out to be."""

    grants: Grants

    def digest(self) -> str:
        """See `Document.digest`."""
        return ""


class _Pages:
    """A warehouse for `Ahead`: an entry's text is its metadata, and its path is the entry and the text."""

    def cached(self, path: str) -> None:
        """See `Warehouse.cached`."""

    def read(self, path: str) -> str:
        """See `Warehouse.read`."""
        return path


def _ruled(request: Request, state: State) -> Grants:
    """Raises: No."""
    rules = ruling(request, {key: state.get(key) for key in request.wanted if state.get(key)})
    if not isinstance(rules, Grants):
        raise No(rules)
    return rules


def _needs(request: Request, state: State) -> dict[str, Callable[[Any], Any]]:
    """How a request for one entry is worked out on what that entry is, by the path of that."""
    ((key, value),) = ((key, state.get(key)) for key in request.wanted)
    base = State({key: value} if value else {}, {})
    return {f"{key}={value['v'] if value else ''}": lambda _: _Made(_ruled(request, base))}

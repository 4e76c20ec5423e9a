"""The processes of the catalog's scenario, around the catalog as it stands, and the network between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from limpet.catalog import CatalogView, Compactor, Grant, Leader, PublicationRefused
from limpet.catalog.commit import WorkedMetadata
from limpet.catalog.compactor import Unreachable
from limpet.catalog.gc import classify_ledger, collect_ledger, delete_below, raise_floor
from limpet.catalog.history import find_commit, log, state_of, verify
from limpet.catalog.leader import Decide, Documents, NeedsMetadata
from limpet.catalog.records import CatalogHead, Change, SnapshotRef
from limpet.catalog.state import MINTED, CatalogState
from limpet.catalog.storage import CatalogStorage
from limpet.events.ledger import Publication
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.store.api import Absent, Put
from sim.actors import Actor, Turns, pick_fault
from sim.bucket import SimStore
from sim.catalog_model import KEYS, CatalogBucket, EntryRequest, Granted, JsonSnapshots, RequestRefused, ruling
from sim.world import PendingRequest, SimProcess, SimRuntime, Violation, World

if TYPE_CHECKING:
    from sim.catalog import CatalogActors

FOREVER_S = 600.0
TRIES_MAX = 8
RPC_FAULTS = ("lost_request", "lost_reply", "late", "duplicate", "slow")


class RpcPipe:
    """The network between processes: requests or answers are lost, duplicated or delayed."""

    def __init__(self, world: World, slots: Mapping[str, tuple[SimProcess, Any]], fault_rate: float) -> None:
        self._world = world
        self._slots = slots
        self._fault_rate = fault_rate
        self._sent: Counter[int] = Counter()

    def call(
        self,
        caller: SimRuntime,
        step: str,
        slot: str,
        work: Callable[[Any], Any],
        *,
        patience_s: float,
        unreachable: LimpetError | None = None,
    ) -> Any:
        """Do `work` with the actor that is in the slot when the request arrives, in a task of its process.

        Raises: what `work` raises there; OutcomeUnknown when no answer comes in time; `unreachable`, if it is given,
        when no process is there to connect to.
        """
        world, process = self._world, caller.process
        world.check_alive(process)
        self._sent[process.index] += 1
        sent = self._sent[process.index]
        fault = pick_fault(world, process, RPC_FAULTS, self._fault_rate, salt=80, number=sent, name="rpc")
        world.coverage[fault or "none", step] += 1
        near, far = (world.chance(n, process.index, sent) for n in (82, 83))
        answers: list[tuple[Any, LimpetError | None]] = []
        answered = caller.flag()

        def deliver(result: Any, error: LimpetError | None) -> None:
            answers.append((result, error))
            answered.set()

        def serve(actor: Any, *, reply: bool) -> None:
            result, error = _attempt(partial(work, actor))
            if reply:
                world.later(0.005 + 0.02 * far, partial(deliver, result, error))

        def arrive(*, reply: bool) -> None:
            found = self._slots.get(slot)
            if found is not None and found[0].alive:
                world.spawn(found[0], partial(serve, found[1], reply=reply), name="rpc")
            elif unreachable is not None and reply:
                deliver(None, unreachable)

        process.in_flight[-sent] = PendingRequest(step, partial(arrive, reply=False))
        world.begins(step, process)
        if fault == "late":
            world.later(patience_s * (1 + 12 * near), process.in_flight.pop(-sent).land)
        else:
            world.pause(0.005 + 0.02 * near * (100 if fault == "slow" else 1))
            process.in_flight.pop(-sent, None)
            if fault == "duplicate":
                world.later(8 * patience_s * far * far, partial(arrive, reply=False))
            if fault not in ("lost_request", "cut_off"):
                arrive(reply=fault != "lost_reply")
        answered.wait(patience_s)
        result, error = answers[0] if answers else (None, OutcomeUnknown("no answer came"))
        outcome = (type(error).__name__ if error else "ok") if answers else "no answer"
        world.note(process.name, step, result=outcome, fault=fault)
        if error is not None:
            raise error
        return result


def _attempt(work: Callable[[], Any]) -> tuple[Any, LimpetError | None]:
    try:
        return work(), None
    except LimpetError as error:
        return None, error


class SkewedRuntime(SimRuntime):
    """Its ids come from the machine's wall clock, which may be wrong by days."""

    def new_id(self) -> str:
        self._ids += 1
        ms = int((self.world.now_s + self.process.wall_offset_s + 5e6) * 1000)
        return f"{ms:010d}p{self.process.index:03d}n{self._ids:011d}"


class CatalogActor(Actor):
    """A process of the catalog, with its view of the bucket."""

    def __init__(self, actors: CatalogActors, process: SimProcess) -> None:
        runtime = SkewedRuntime(actors.world, process)
        super().__init__(runtime, SimStore(actors.bucket, runtime))
        self.actors = actors
        self.model = actors.model
        self.bucket = actors.bucket
        self.storage = CatalogStorage(self.store, KEYS, runtime, JsonSnapshots())

    def turns(self) -> Turns:
        """A server only serves."""
        return [(1.0, self.serve)]

    def serve(self) -> None:
        """Serve until the process ends."""
        while True:
            self.runtime.sleep(FOREVER_S)


class CompactorProcess(CatalogActor):
    """A compactor service."""

    def __init__(self, actors: CatalogActors, process: SimProcess) -> None:
        super().__init__(actors, process)
        self.compactor = Compactor(self.storage)
        self.preparing = False

    def publish(self, paths: Sequence[str], token: int) -> Publication:
        """See `Compactor.publish`; often the record of the commit is written after the answer is out."""
        newest = self.bucket.heads[-1] if self.bucket.heads else None
        try:
            published = self.compactor.publish(paths, token)
        except Corrupt as error:
            raise Violation(f"{self.process.name} takes a sound catalog for broken: {error}") from error
        except PublicationRefused:
            self.bucket.refused(paths)
            raise
        except Invalid:
            self.bucket.not_taken(paths, newest)
            raise
        self.bucket.answered(paths, published)
        if self.chance() < self.actors.settles:
            self.runtime.spawn(self.settle, name="settle")
            if not self.preparing:
                self.preparing = True
                self.runtime.spawn(self.prepare, name="prepare")
        return published

    def settle(self) -> None:
        """Write the record of the newest commit."""
        with suppress(Missing, OutcomeUnknown, Unavailable):
            self.compactor.record()

    def prepare(self) -> None:
        """Make the snapshot that will be due soon."""
        with suppress(Missing, OutcomeUnknown, Unavailable):
            self.compactor.prepare()
        self.preparing = False


class ApiProcess(CompactorProcess):
    """An API service. It leads if it can, and any process may ask it to commit."""

    def __init__(self, actors: CatalogActors, process: SimProcess) -> None:
        super().__init__(actors, process)
        lock = Lock(
            self.store,
            KEYS.lock,
            "catalog",
            self.actors.plan.ttl_s,
            self.runtime,
            VersionWatch(self.runtime),
            look_first=True,
        )
        self.leader = Leader(self.storage, self.ask, lock)
        self.asked: tuple[Sequence[str], int] | None = None
        """The batch, and its token, whose fate the leader does not know yet."""
        self.files = 0

    def serve(self) -> None:
        """Lead, or wait for the lead."""
        self.leader.run()

    def ask(self, paths: Sequence[str], token: int) -> Publication:
        """Called by the leader, which would handle a violation like any bug: so the world records it first."""
        try:
            return self.carry(paths, token)
        except Violation as violation:
            self.world.failure = self.world.failure or violation
            raise

    def carry(self, paths: Sequence[str], token: int) -> Publication:
        """Publish, or ask a compactor to.   Raises: Violation if a term continues before its last batch is settled."""
        if self.asked is not None and self.asked[0] != paths and self.asked[1] == token:
            raise Violation(f"{self.process.name} continues its term, and {self.asked[0]} may still be published")
        before, self.asked = self.asked, None if self.bucket.is_epoch(paths) else (paths, token)
        try:
            published = self.publish(paths, token) if self.actors.embedded else self.send(paths, token)
        except PublicationRefused:
            self.asked = None
            raise
        except Unreachable:
            self.asked = before
            raise
        self.asked = None
        return published

    def send(self, paths: Sequence[str], token: int) -> Publication:
        """Ask some compactor to publish."""
        slot = f"k{int(self.chance() * self.actors.compactors)}"
        published: Publication = self.actors.pipe.call(
            self.runtime,
            "publish.rpc",
            slot,
            lambda compactor: compactor.publish(paths, token),
            patience_s=1 + 3 * self.chance(),
            unreachable=Unreachable("no compactor is there"),
        )
        return published

    def commit(self, id_: str | None, request: EntryRequest, actor: str) -> Any:
        """Handle a request, as the service does. What it would sign for its sender is decided by what it knows."""
        self.authorize()
        id_ = id_ or MINTED + self.runtime.new_id()
        call = self.model.begins(id_, self.process.name, request, actor)
        try:
            result = self.ask_leader(id_, request, actor)
        except RequestRefused as no:
            self.model.refused(call, str(no))
            raise
        except (Unavailable, OutcomeUnknown) as error:
            self.model.ends(call, "503" if isinstance(error, Unavailable) else "unknown")
            raise
        self.model.acknowledged(call, result)
        return result

    def authorize(self) -> None:
        """Read the folders of a table, for a signature, a credential or a plan, as `Catalog.table_folders` does.

        A process that does not lead reads the head (`CatalogClient.look_at`).   Raises: Violation.
        """
        state = self.leader.known
        if state is not None:
            self.model.authorized(self.process.name, state.entries())

    def ask_leader(self, id_: str, request: EntryRequest, actor: str) -> Any:
        """Let the leader decide a request; a swap is worked out ahead of that, as in `Catalog.commit_table`."""
        if request.what != "swap":
            return self.leader.commit(id_, self.decide(id_, request, _ruled), actor)
        ahead, known = WorkedMetadata(_Pages()), self.leader.known  # type: ignore[arg-type]  # reads as a warehouse does
        if known is not None:
            ahead.work_out(_needs(request, known))

        def worked_out(request: EntryRequest, state: CatalogState) -> Granted | NeedsMetadata:
            needs = _needs(request, state)
            (path,) = needs
            if not ahead.has(path):
                return NeedsMetadata(needs)
            made: Any = ahead.result(path)
            return cast(_WorkedDocument, made).granted

        for _ in range(TRIES_MAX):
            answer = self.leader.commit(id_, self.decide(id_, request, worked_out), actor)
            if not isinstance(answer, NeedsMetadata):
                return answer
            ahead.work_out(answer.needs)
        raise Unavailable("others were first too often")

    def decide(
        self, id_: str, request: EntryRequest, rule: Callable[[EntryRequest, CatalogState], Granted | NeedsMetadata]
    ) -> Decide:
        """The request in the form that the leader takes."""

        def decide(state: CatalogState, made: Documents) -> Grant | NeedsMetadata:
            rules = rule(request, state)
            if isinstance(rules, NeedsMetadata):
                return rules
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
class _WorkedDocument:
    """A swap that was worked out, in place of a document."""

    granted: Granted

    def digest(self) -> str:
        return ""


class _Pages:
    """A warehouse for `WorkedMetadata`: an entry's text is its metadata, and its path is the entry and the text."""

    def read(self, path: str) -> str:
        return path


def _ruled(request: EntryRequest, state: CatalogState) -> Granted:
    """Raises: RequestRefused."""
    rules = ruling(request, {key: state.get(key) for key in request.wanted if state.get(key)})
    if not isinstance(rules, Granted):
        raise RequestRefused(rules)
    return rules


def _needs(request: EntryRequest, state: CatalogState) -> dict[str, Callable[[Any], Any]]:
    """By the path of an entry's metadata, how a request for that entry is worked out."""
    ((key, value),) = ((key, state.get(key)) for key in request.wanted)
    base = CatalogState({key: value} if value else {}, {})
    return {f"{key}={value['v'] if value else ''}": lambda _: _WorkedDocument(_ruled(request, base))}


class _SlowStorage(CatalogStorage):
    """Delays a reader between a head and the snapshot that it names, often until GC has run."""

    bucket: CatalogBucket

    def snapshot(self, ref: SnapshotRef | None) -> CatalogState:
        for _ in range(20):
            self.runtime.sleep(self.runtime.rng.random() * 10)
            if ref is None or self.keys.snapshot(ref.id) not in self.bucket.objects:
                break
        return super().snapshot(ref)


class CatalogClient(CatalogActor):
    """A client: commits, reads, walks the chain, and now and then collects garbage."""

    def __init__(self, actors: CatalogActors, process: SimProcess) -> None:
        super().__init__(actors, process)
        self.view = CatalogView(self.storage)
        self.api = 0
        self.name = process.name if process.index % 2 else ""
        """The name by which the service knows it; some clients have none."""
        self.seen: dict[str, str | None] = {}
        self.old: CatalogHead | None = None

    def turns(self) -> Turns:
        return [
            (self.actors.collects, self.collect),
            (0.04, self.walk),
            (0.04, self.look_back),
            (0.12, self.look),
            (0.25, self.commit_some),
            (1.0, lambda: self.commit(self.request())),
        ]

    def rest(self) -> None:
        self.runtime.sleep(self.chance() * self.actors.rest_s)

    def commit_some(self) -> None:
        """Several at once."""
        requests = [self.request() for _ in range(2 + int(self.chance() * 3))]

        def one(request: EntryRequest) -> None:
            with suppress(Unavailable, OutcomeUnknown):
                self.commit(request)

        self.runtime.fan_out(one, requests)

    def request(self) -> EntryRequest:
        """A request that may be refused."""
        name, kind = self.some_key(), self.chance()
        with_file = self.chance() < 0.25
        if kind < 0.3:
            return EntryRequest("create", {name: None}, {name: self.new_value()}, with_file)
        if kind < 0.5:
            return EntryRequest("drop", {name: self.seen.get(name)}, {name: None})
        if kind < 0.6:
            return EntryRequest("put", {}, {name: self.new_value()}, with_file)
        if kind < 0.8:
            return EntryRequest("swap", {name: self.seen.get(name)}, {name: self.new_value()}, with_file)
        names = sorted({name, self.some_key(), self.some_key()})
        wanted = {each: None if self.chance() < 0.3 else self.new_value() for each in names}
        return EntryRequest("transaction", {name: self.seen.get(name)}, wanted, with_file)

    def some_key(self) -> str:
        """Some key."""
        return self.actors.names[int(self.chance() * len(self.actors.names))]

    def commit(self, request: EntryRequest) -> None:
        """Send it until it is answered, or the client gives up: with the same id, to any API."""
        id_ = f"{self.process.name}-{self.new_value()}" if self.chance() < 0.85 else None
        for _ in range(8):
            try:
                self.send(f"a{self.api}", id_, request)
                self.seen.update(request.wanted)
                return
            except RequestRefused:
                return
            except (OutcomeUnknown, Unavailable) as error:
                if isinstance(error, OutcomeUnknown) and (id_ is None or self.chance() < 0.2):
                    return
            self.api = int(self.chance() * self.actors.apis)
            self.runtime.sleep(self.chance() * self.actors.plan.ttl_s / 2)

    def send(self, slot: str, id_: str | None, request: EntryRequest) -> Any:
        """One request to an API."""
        return self.actors.pipe.call(
            self.runtime,
            "commit.rpc",
            slot,
            lambda api: api.commit(id_, request, self.name),
            patience_s=self.actors.patience_s * (0.5 + self.chance()),
        )

    def look(self) -> None:
        """Read, with an old view or a new one, alone or twice at a time."""
        if self.chance() < 0.3:
            self.runtime.fan_out(self.look_at, [self.view] * 2)
        elif self.chance() < 0.5:
            self.look_at(self.view)
        elif self.chance() < 0.5:
            self.look_at(CatalogView(self.storage))
        else:
            slow = _SlowStorage(self.store, KEYS, self.runtime, JsonSnapshots())
            slow.bucket = self.bucket
            self.look_at(CatalogView(slow))

    def look_at(self, view: CatalogView) -> CatalogHead | None:
        """Read.   Raises: Violation unless it is what was published at some moment of the call."""
        self.model.operations += 1
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

    def same(self, state: CatalogState, version: int) -> None:
        """Raises: Violation unless the state is that of the version."""
        if state.entries() != self.bucket.known[version].entries:
            known = self.bucket.known[version].entries
            raise Violation(f"{self.process.name} read {state.entries()} as version {version}, which is {known}")

    def head(self) -> CatalogHead | None:
        """A head to walk from: the newest, or one that was read a while ago."""
        head = self.old if self.old and self.chance() < 0.4 else self.look_at(self.view)
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
            commit = find_commit(self.storage, head, lambda commit: commit.version <= wanted)
            if commit != self.bucket.known[wanted].commit:
                raise Violation(f"version {wanted} was found as {commit}")
            self.same(state_of(self.storage, head, commit), wanted)
        except Missing as error:
            if wanted >= self.bucket.kept_from:
                raise Violation(f"version {wanted} must be kept: {error}") from error

    def collect(self) -> None:
        """Collect garbage, all of it or some."""
        self.model.operations += 3
        grace_s = self.chance() * self.actors.plan.ttl_s
        raise_floor(self.storage, keep=timedelta(0), keep_versions=self.actors.keeps)
        if self.chance() < 0.8:
            delete_below(self.storage, grace_s=grace_s)
        if self.chance() < 0.5:
            self.bucket.classified(classify_ledger(self.storage, grace_s=grace_s))
            collect_ledger(self.storage, grace_s=grace_s)

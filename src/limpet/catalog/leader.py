"""The leader: one process at a time validates requests in memory and has them published in groups.

While one group is being published the next gathers. Whatever happens to this process, its messages or its clock, the
head decides what was published; an answer that cannot be decided on the head is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from limpet.catalog.compactor import PublicationRefused, Unreachable
from limpet.catalog.decide import unusable
from limpet.catalog.records import ACTOR, Change, LedgerBatch, Row
from limpet.catalog.state import CatalogState, time_text
from limpet.catalog.storage import CatalogStorage, CatalogView
from limpet.errors import Held, Invalid, LimpetError, OutcomeUnknown, Unavailable
from limpet.lease import Heartbeat, Lease, Lock
from limpet.ledger import Publication, Publisher, above
from limpet.runtime import Flag
from limpet.store.api import Put

GROUP_MAX = 256
PATIENCE_S = 30.0
EPOCH_PATIENCE_S = 5.0
STALL_S = 120.0
"""A leader that has not taken a turn for so long is not renewed any more (F16)."""
LOOK_EVERY_S = 2.0
DECIDE_S = 2.0
"""For so long the requests of one group are decided; those that are left go with the next one."""
BACKOFF_S = 0.2
GATHER_SHARE = 0.5
GATHER_MAX_S = 0.1
"""For so much of the time that the last group took, the next one waits for those that were just answered: clients that
were answered together come back together (0006)."""

BUGS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Grant:
    """A request that is allowed: what it changes, and what its client is told."""

    what: str
    changes: tuple[Change, ...]
    result: Any = None
    writes: tuple[Put, ...] = ()
    """Objects that the changes name: durable before anything is published, under names that nobody else uses."""


@dataclass(frozen=True, slots=True)
class NeedsMetadata:
    """Not decided: a table has other metadata than the request was worked out on.

    The client's thread works it out on each path by the function beside it, and asks again with the same id.
    """

    needs: Mapping[str, Callable[[Any], Any]]


Decide = Callable[[CatalogState], Grant | NeedsMetadata]
"""A function of the state: grants, or raises the refusal that its client gets."""


class NotLeader(Unavailable):
    """Another process leads. Nothing was attempted."""

    default_hint = "send it again in a moment"


@dataclass(slots=True)
class _Pending:
    id: str
    decide: Decide
    answered: Flag
    actor: str = ""
    result: Any = None
    error: Exception | None = None

    def answer(self, result: Any) -> None:
        self.result = result
        self.answered.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.answered.set()


@dataclass(slots=True)
class _Term:
    """The time for which this process leads: its lease, and the newest state that it knows to be published."""

    lease: Lease
    heartbeat: Heartbeat
    version: int
    state: CatalogState
    last_id: str


@dataclass(slots=True)
class _Group:
    """Requests that were validated together: the rows of those that are granted, and what each will be told."""

    rows: list[Row] = field(default_factory=list)
    writes: list[Put] = field(default_factory=list)
    told: list[tuple[_Pending, Any, Exception | None]] = field(default_factory=list)


class Leader:
    """Leads one domain when it can. `start` it; `commit` from any thread; `stop` hands the lock back."""

    def __init__(self, storage: CatalogStorage, publish: Publisher, lock: Lock) -> None:
        self._storage = storage
        self._runtime = storage.runtime
        self._publish = publish
        self._lock = lock
        self._view = CatalogView(storage)
        self._mutex = self._runtime.mutex()
        self._waiting: list[_Pending] = []
        self._wake = self._runtime.flag()
        self._enough = self._runtime.flag()
        self._expected = 0
        self._took_s = 0.0
        self._stopped = self._runtime.flag()
        self._term: _Term | None = None
        self.leader = ""
        """Who leads, as far as this process knows."""
        self.trouble: Exception | None = None
        """Why this process could not lead when it last tried, though no other one does."""

    @property
    def leads(self) -> bool:
        """Whether this process believes that it leads."""
        term = self._term
        return term is not None and not term.lease.lost

    @property
    def known(self) -> CatalogState | None:
        """The newest state that this process knows to be published; None unless it leads. Not to be changed."""
        term = self._term
        return term.state if term is not None else None

    def commit(self, id_: str, decide: Decide, actor: str = "") -> Any:
        """Have a request granted and published; what its client is told. `actor` is who sent it, for the log.

        Raises: whatever `decide` raised, if that is so as of the published state; NotLeader (nothing was attempted);
        OutcomeUnknown.   Cost: a share of 1 ledger PUT and 1 publication.
        """
        pending = _Pending(id_, decide, self._runtime.flag(), actor)
        with self._mutex:
            if self._stopped.is_set():
                raise NotLeader("this process is ending")
            self._waiting.append(pending)
            self._wake.set()
            if len(self._waiting) >= self._expected:
                self._enough.set()
        while not pending.answered.wait(LOOK_EVERY_S):
            pass
        if pending.error is not None:
            raise pending.error
        return pending.result

    def run(self) -> None:
        """Serve until `stop`: in a thread of its own. However that ends, nobody waits for ever."""
        try:
            self.turn()
            while not self._stopped.is_set():
                if self._wake.wait(LOOK_EVERY_S) and self._expected > 1:
                    self._enough.wait(min(GATHER_MAX_S, GATHER_SHARE * self._took_s))
                self.turn()
        finally:
            self.stop()
            self._resign()
            while group := self._take():
                _fail(group, NotLeader("this process is ending"))

    def stop(self) -> None:
        """End `run` after the group that is under way."""
        self._stopped.set()
        self._wake.set()

    def turn(self) -> None:
        """Take or keep the lead, and serve what waits."""
        group = self._take()
        try:
            term = self._lead()
            term.lease.progress()
            self.trouble = None
        except (LimpetError, *BUGS) as error:  # they were in no batch
            self.trouble = None if isinstance(error, NotLeader) else error
            _fail(group, error if isinstance(error, NotLeader) else NotLeader(f"nobody leads yet: {error}"))
            return
        try:
            if group:
                self._serve(term, group)
        except LimpetError as error:
            _fail(group, error if isinstance(error, NotLeader | OutcomeUnknown) else NotLeader(str(error)))
        except BUGS as error:
            self._resign()
            _fail(group, OutcomeUnknown(f"something went wrong here: {type(error).__name__}: {error}"))

    def _take(self) -> list[_Pending]:
        with self._mutex:
            taken, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
            if not self._waiting and not self._stopped.is_set():
                self._wake = self._runtime.flag()
            return taken

    def _lead(self) -> _Term:
        """The term of this process, a new one if need be.   Raises: NotLeader; whatever else is in the way."""
        if self._term is not None and not self._term.lease.lost:
            return self._term
        self._resign()
        lease = self._lock.try_acquire()
        if isinstance(lease, Held):
            self.leader = lease.by
            raise NotLeader(f"{lease.by} leads")
        heartbeat = Heartbeat(lease, self._runtime, stall_s=STALL_S, on_lost=None)
        try:
            self._term = self._begin(lease, heartbeat)
        except BaseException:
            _release(lease, heartbeat)
            raise
        self.leader = self._runtime.label
        return self._term

    def _begin(self, lease: Lease, heartbeat: Heartbeat) -> _Term:
        """Publish the epoch of a new term, then load. Until then an older leader's batches may still be published."""
        before = self._view.now()
        last_id = before.head.last_id if before else ""
        if before is not None and before.head.token >= lease.token:
            # the lock was lost and began anew: its token must exceed every one that has led
            lease.rewrite(lambda record: msgspec.structs.replace(record, token=before.head.token + 1))
        self._send(lease, self._add(lease, None, _Group(), last_id), EPOCH_PATIENCE_S)
        loaded = self._view.now()
        if loaded is None or loaded.head.token != lease.token:
            raise NotLeader("another process has led since")
        return _Term(lease, heartbeat, loaded.head.version, loaded.state, loaded.head.last_id)

    def _resign(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            _release(term.lease, term.heartbeat)

    def _serve(self, term: _Term, waiting: Sequence[_Pending]) -> None:
        begun_s = self._runtime.elapsed_s()
        while True:
            if self._runtime.elapsed_s() - begun_s > PATIENCE_S:
                raise OutcomeUnknown("other batches were published before it again and again")
            group, state = self._validate(term, waiting)
            if not group.rows:
                if self._is_current(term):
                    break
                continue
            since_s = self._runtime.elapsed_s()
            path = self._add(term.lease, term.version, group, term.last_id)
            try:
                published = self._send(term.lease, path, PATIENCE_S)
            except PublicationRefused as refusal:
                self._after_refusal(term, refusal)
                continue
            except OutcomeUnknown:
                self._resign()  # the next term begins with what was really published
                raise
            term.version, term.state, term.last_id = published.version, state, max(term.last_id, published.commit)
            self._took_s = self._runtime.elapsed_s() - since_s
            break
        self._put_back(waiting[len(group.told) :])
        self._expect(len(group.told))
        for pending, result, error in group.told:
            if error is not None:
                pending.fail(error)
            else:
                pending.answer(result)

    def _put_back(self, pending: Sequence[_Pending]) -> None:
        """Let requests wait for the next group that were not decided in this one: they are the first of it."""
        if pending:
            with self._mutex:
                self._waiting[:0] = pending
                self._wake.set()

    def _expect(self, answered: int) -> None:
        """Let the next group wait for who is there, and for who will be answered now and may come back."""
        with self._mutex:
            self._expected, self._enough = min(GROUP_MAX, len(self._waiting) + answered), self._runtime.flag()

    def _validate(self, term: _Term, waiting: Sequence[_Pending]) -> tuple[_Group, CatalogState]:
        """Decide in order, each on what those before it leave behind; as many as can be decided in good time."""
        group, at = _Group(), time_text(self._storage.store.now())
        state = term.state.tidied(at)
        begun_s = self._runtime.elapsed_s()
        for number, pending in enumerate(waiting):
            if number and self._runtime.elapsed_s() - begun_s > DECIDE_S:
                break
            told = state.told(pending.id)
            if told is not None:
                group.told.append((pending, told.result, None))
                continue
            try:
                grant = pending.decide(state)
            except (LimpetError, *BUGS) as error:  # whatever is wrong with one request, the others go on
                group.told.append((pending, None, error))
                continue
            if isinstance(grant, NeedsMetadata):
                group.told.append((pending, grant, None))
                continue
            signed = (Change(ACTOR, pending.actor),) if pending.actor else ()
            row = Row(pending.id, grant.what, (*grant.changes, *signed), grant.result)
            wrong = unusable([row])
            if wrong is not None:
                group.told.append((pending, None, Invalid(f"it cannot be published: {wrong}")))
                continue
            state = state.after([row], at)
            group.rows.append(row)
            group.writes += grant.writes
            group.told.append((pending, grant.result, None))
        return group, state

    def _is_current(self, term: _Term) -> bool:
        """Whether what this process knows is still what is published: a look that began after the requests came.

        If not, the term goes on with what is there now.   Raises: NotLeader.
        """
        loaded = self._view.now()
        if loaded is None or loaded.head.token != term.lease.token:
            self._resign()
            raise NotLeader("another process has led since")
        if loaded.head.version == term.version:
            return True
        term.version, term.state, term.last_id = loaded.head.version, loaded.state, loaded.head.last_id
        return False

    def _after_refusal(self, term: _Term, refusal: PublicationRefused) -> None:
        """A refused batch is not a refused commit: go on with what is published, or give up the lead.

        Raises: OutcomeUnknown, if another process leads: a copy of a request may be granted there.
        """
        try:
            self._is_current(term)
        except NotLeader:
            raise OutcomeUnknown(f"another process leads now, and may grant it: {refusal}") from None

    def _add(self, lease: Lease, base_version: int | None, group: _Group, last_id: str) -> str:
        """Write the batch of a group, and what it names.   Raises: Unavailable: nobody was told of it, it is dead."""
        domain, rows = self._storage.keys.domain, tuple(group.rows)
        batch = LedgerBatch(domain=domain, token=lease.token, base_version=base_version, rows=rows)
        try:
            return str(self._storage.add_batch(above(self._runtime.new_id(), last_id), batch, group.writes))
        except OutcomeUnknown as error:
            raise Unavailable(f"nothing was published: {error}") from error

    def _send(self, lease: Lease, path: str, patience_s: float) -> Publication:
        """Have a batch published: the same request until the head has decided, or patience ends.

        Raises: Refusal; Unavailable if nobody could be told of it, so that it is dead; OutcomeUnknown.
        """
        since_s, told = self._runtime.elapsed_s(), False
        while True:
            try:
                return self._publish([path], lease.token)
            except PublicationRefused:
                raise
            except Invalid as error:
                raise OutcomeUnknown(f"the compactor does not take the batch: {error}") from error
            except LimpetError as error:
                told |= not isinstance(error, Unreachable)
                if self._runtime.elapsed_s() - since_s > patience_s or self._stopped.is_set():
                    if not told:
                        raise Unavailable(str(error), hint=error.hint) from error
                    raise OutcomeUnknown(f"whether it was published cannot be told: {error}") from error
            self._runtime.sleep(self._runtime.rng.uniform(0.5, 1.0) * BACKOFF_S)


def _fail(group: Sequence[_Pending], error: Exception) -> None:
    """Tell those that were not answered yet."""
    for pending in group:
        if not pending.answered.is_set():
            pending.fail(error)


def _release(lease: Lease, heartbeat: Heartbeat) -> None:
    heartbeat.stop()
    with suppress(LimpetError):  # it runs out by itself
        lease.release()

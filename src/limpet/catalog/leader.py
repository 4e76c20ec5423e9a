"""The leader: one process at a time validates requests in memory and publishes them in groups.

While one group is being published the next one is collected. The head alone decides what was published, regardless of
crashes, lost messages and wrong clocks; if the head does not decide an outcome, it is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from limpet.catalog.compactor import PublicationRefused, Unreachable
from limpet.catalog.heads import unusable
from limpet.catalog.records import ACTOR, Change, LedgerBatch, Row
from limpet.catalog.state import CatalogState, time_text
from limpet.catalog.storage import CatalogStorage
from limpet.events.ledger import Publication, Publisher
from limpet.kernel import records
from limpet.kernel.errors import Held, Invalid, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lease, Lock, Renewer
from limpet.kernel.runtime import Flag, ulid_above
from limpet.kernel.store.api import Absent, Put
from limpet.kernel.store.outcome import put_bytes
from limpet.kernel.waiting import WakeFlag, attempts, ticks

GROUP_MAX = 256
PUBLISH_S = 30.0
"""How long a batch is sent again; after that its outcome counts as unknown."""
EPOCH_S = 5.0
STALL_S = 120.0
"""The lease of a leader that has made no progress for this time is not renewed (F16)."""
LOOK_EVERY_S = 2.0
DECIDE_S = 2.0
"""How long requests of one group are decided; the remaining ones go into the next group."""
SEND_EVERY_S = 0.2
GATHER_SHARE = 0.5
GATHER_MAX_S = 0.1
"""The share of the last group's duration for which the next group waits: clients that were answered together send their
next requests together (0006)."""

WRITES_WIDER = 4
"""A whole group of clients waits for its batch, so its writes have a higher concurrency."""
OWN_MAX = 4

BUGS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError),
    *(StopIteration, TypeError, ValueError),
)

Documents = Mapping[str, Any]
"""Metadata files by their paths."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A granted request: its changes, and the answer to its client."""

    what: str
    changes: tuple[Change, ...]
    result: Any = None
    writes: tuple[Put, ...] = ()
    """Objects that the changes refer to, under unique names: durable before the publication."""
    made: Documents = field(default_factory=dict)
    """The metadata files among `writes`, by path: for requests that are decided later."""


@dataclass(frozen=True, slots=True)
class NeedsMetadata:
    """Not decided: the metadata of a table is not the one that the request was computed from.

    By path, the function that computes it. The client's thread calls them, and asks again with the same id.
    """

    needs: Mapping[str, Callable[[Any], Any]]


Decide = Callable[[CatalogState, Documents], Grant | NeedsMetadata]
"""A pure function of the state, and of the metadata that earlier requests of this group and the last one have created.
It returns a grant, or raises the refusal for its client."""


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
    """A term as leader: the lease, and the newest state that is known to be published."""

    lease: Lease
    renewer: Renewer
    version: int
    state: CatalogState
    last_id: str
    made: Documents = field(default_factory=dict)
    """The metadata that the last group created."""


@dataclass(slots=True)
class _Group:
    """Requests that were decided together: the rows of the granted ones, and the answer to each."""

    rows: list[Row] = field(default_factory=list)
    writes: list[Put] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict)
    answers: list[tuple[_Pending, Any, Exception | None]] = field(default_factory=list)


class Leader:
    """Leads one domain when it can. `run` it in a thread; `commit` from any thread; `stop` releases the lock."""

    def __init__(self, storage: CatalogStorage, publish: Publisher, lock: Lock) -> None:
        self._storage = storage
        self._runtime = storage.runtime
        self._publish = publish
        self._lock = lock
        self._view = storage.view
        self._mutex = self._runtime.mutex()
        self._waiting: list[_Pending] = []
        self._waker = WakeFlag(self._runtime)
        self._enough = self._runtime.flag()
        self._expected = 0
        self._took_s = 0.0
        self._term: _Term | None = None
        self.leader = ""
        """The label of the leading process, if known."""
        self.leader_known = self._runtime.flag()
        """Raised once it is known which process leads."""
        self.trouble: Exception | None = None
        """The error that kept this process from leading, while no other one leads."""
        self.group_published: Callable[[int], object] | None = None
        """Called with the number of commits in each group that was published."""
        self.check_fleet: Callable[[], object] | None = None
        """Called before each term. Raises: LimpetError if what this process serves is not there any more."""

    @property
    def leads(self) -> bool:
        """Whether this process believes that it leads."""
        term = self._term
        return term is not None and not term.lease.lost

    @property
    def known(self) -> CatalogState | None:
        """The newest published state: all that was acknowledged is in it; None unless this process leads. Immutable.

        Rights are checked by it. A process that was paused may have a successor that it does not know of, so the lease
        must not have ended by this process's clock.
        """
        term = self._term
        return term.state if term is not None and not term.lease.lost else None

    def commit(self, id_: str, decide: Decide, actor: str = "") -> Any:
        """Decide and publish a request; returns the answer. `actor` is the name of the sender, for the log.

        Raises: the refusal of `decide`, made on a published state; NotLeader (nothing was attempted); OutcomeUnknown.
        Cost: a share of 1 ledger PUT and 1 publication.
        """
        pending = _Pending(id_, decide, self._runtime.flag(), actor)
        with self._mutex:
            if self._waker.stopped:
                raise NotLeader("this process is stopping")
            self._waiting.append(pending)
            self._waker.wake()
            if len(self._waiting) >= self._expected:
                self._enough.set()
        for _ in ticks(pending.answered, LOOK_EVERY_S):
            pass
        if pending.error is not None:
            raise pending.error
        return pending.result

    def run(self) -> None:
        """Serve until `stop`, in a separate thread. When it ends, every waiting request is answered."""
        try:
            self.turn()
            for woken in self._waker.rounds(LOOK_EVERY_S):
                if woken and self._expected > 1:
                    self._gather()
                self.turn()
        finally:
            self.stop()
            self._resign()
            while group := self._take():
                _fail(group, NotLeader("this process is stopping"))

    def stop(self) -> None:
        """End `run` after the current group."""
        self._waker.stop()

    def _gather(self) -> None:
        """Clients that were answered together send again together: wait a little for all of them."""
        self._enough.wait(min(GATHER_MAX_S, GATHER_SHARE * self._took_s))

    def turn(self) -> None:
        """Acquire or keep the lead, and serve the waiting requests."""
        group = self._take()
        try:
            term = self._lead()
            term.lease.progress()
            self.trouble = None
        except (LimpetError, *BUGS) as error:  # they were in no batch
            self.trouble = None if isinstance(error, NotLeader) else error
            _fail(group, error if isinstance(error, NotLeader) else NotLeader(f"no process leads yet: {error}"))
            return
        try:
            if group:
                self._serve(term, group)
        except LimpetError as error:
            _fail(group, error if isinstance(error, NotLeader | OutcomeUnknown) else NotLeader(str(error)))
        except BUGS as error:
            self._resign()
            _fail(group, OutcomeUnknown(f"internal error: {type(error).__name__}: {error}"))

    def _take(self) -> list[_Pending]:
        with self._mutex:
            taken, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
            if not self._waiting:
                self._waker.rest()
            return taken

    def _lead(self) -> _Term:
        """The current term, or a new one.   Raises: NotLeader; any error of the store."""
        if self._term is not None and not self._term.lease.lost:
            return self._term
        self._resign()
        lease = self._lock.try_acquire()
        if isinstance(lease, Held):
            self.leader = lease.by
            self.leader_known.set()
            raise NotLeader(f"{lease.by} leads")
        renewer = Renewer.of_lease(lease, self._runtime, stall_s=STALL_S)
        try:
            self._term = self._begin(lease, renewer)
        except BaseException:
            _release(lease, renewer)
            raise
        self.leader = self._runtime.label
        self.leader_known.set()
        return self._term

    def _begin(self, lease: Lease, renewer: Renewer) -> _Term:
        """Publish the epoch of a new term, then load the state. Before the epoch, an older leader may still publish."""
        if self.check_fleet is not None:
            self.check_fleet()
        before = self._view.now()
        last_id = before.head.last_id if before else ""
        if before is not None and before.head.token >= lease.token:
            # The lock was deleted and created again: its token must exceed all earlier ones. The leader before may
            # still trust its lease, and check rights by its state (`known`). So the raised token ends this lease, and
            # the next term begins when the record has expired.
            lease.rewrite(lambda record: msgspec.structs.replace(record, token=before.head.token + 1))
            raise NotLeader("the lock of the catalog was deleted; a process leads again when its record has expired")
        try:
            self._send(lease, self._add(lease, None, _Group(), last_id), EPOCH_S)
        except PublicationRefused as refusal:
            raise NotLeader(f"another process has led since: {refusal}") from None
        loaded = self._view.now()
        if loaded is None or loaded.head.token != lease.token:
            raise NotLeader("another process has led since")
        return _Term(lease, renewer, loaded.head.version, loaded.state, loaded.head.last_id)

    def _resign(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            _release(term.lease, term.renewer)

    def _serve(self, term: _Term, waiting: Sequence[_Pending]) -> None:
        begun_s = self._runtime.elapsed_s()
        while True:
            if self._runtime.elapsed_s() - begun_s > PUBLISH_S:
                raise OutcomeUnknown("other batches were published before it again and again")
            group, state = self._validate(term, waiting)
            if not group.rows:
                if self._is_current(term):
                    break
                continue
            since_s = self._runtime.elapsed_s()
            path = self._add(term.lease, term.version, group, term.last_id)
            try:
                published = self._send(term.lease, path, PUBLISH_S)
            except PublicationRefused as refusal:
                self._after_refusal(term, refusal)
                continue
            except OutcomeUnknown:
                self._resign()  # the next term begins with the state that was published
                raise
            term.version, term.state, term.last_id = published.version, state, max(term.last_id, published.commit)
            term.made = group.made
            self._took_s = self._runtime.elapsed_s() - since_s
            if self.group_published is not None:
                self.group_published(len(group.rows))
            break
        self._expect(waiting[len(group.answers) :], len(group.answers))
        for pending, result, error in group.answers:
            if error is not None:
                pending.fail(error)
            else:
                pending.answer(result)

    def _expect(self, undecided: Sequence[_Pending], answered: int) -> None:
        """Undecided requests are the first of the next group. Clients that are answered now will send others to it."""
        with self._mutex:
            self._waiting[:0] = undecided
            if undecided:
                self._waker.wake()
            self._expected, self._enough = min(GROUP_MAX, len(self._waiting) + answered), self._runtime.flag()

    def _validate(self, term: _Term, waiting: Sequence[_Pending]) -> tuple[_Group, CatalogState]:
        """Decide requests in order, each on the state after those before it, up to a time limit."""
        group, at = _Group(), time_text(self._storage.store.now())
        state, made = term.state.tidied(at), dict(term.made)
        begun_s = self._runtime.elapsed_s()
        for number, pending in enumerate(waiting):
            if number and self._runtime.elapsed_s() - begun_s > DECIDE_S:
                break
            answered = state.answered(pending.id)
            if answered is not None:
                group.answers.append((pending, answered.result, None))
                continue
            try:
                grant = pending.decide(state, made)
            except (LimpetError, *BUGS) as error:  # an error of one request does not affect the others
                group.answers.append((pending, None, error))
                continue
            if isinstance(grant, NeedsMetadata):
                group.answers.append((pending, grant, None))
                continue
            signed = (Change(ACTOR, pending.actor),) if pending.actor else ()
            row = Row(pending.id, grant.what, (*grant.changes, *signed), grant.result)
            wrong = unusable([row])
            if wrong is not None:
                group.answers.append((pending, None, Invalid(f"it cannot be published: {wrong}")))
                continue
            state = state.after([row], at)
            group.rows.append(row)
            group.writes += grant.writes
            group.made |= grant.made
            made |= grant.made
            group.answers.append((pending, grant.result, None))
        return group, state

    def _is_current(self, term: _Term) -> bool:
        """Whether the term's state is still the published one, read after the requests arrived.

        If not, the term continues with the published state.   Raises: NotLeader.
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
        """A refused batch is not a refused commit: continue with the published state, or resign.

        Raises: OutcomeUnknown, if another process leads: it may have granted a repeated request.
        """
        try:
            self._is_current(term)
        except NotLeader:
            raise OutcomeUnknown(f"another process leads now, and may grant it: {refusal}") from None

    def _add(self, lease: Lease, base_version: int | None, group: _Group, last_id: str) -> str:
        """Write the batch of a group and its objects.   Raises: Unavailable: no compactor knows it, it is dead."""
        domain, rows = self._storage.keys.domain, tuple(group.rows)
        batch = LedgerBatch(domain=domain, token=lease.token, base_version=base_version, rows=rows)
        try:
            return add_batch(self._storage, ulid_above(self._runtime.new_id(), last_id), batch, group.writes)
        except OutcomeUnknown as error:
            raise Unavailable(f"nothing was published: {error}") from error

    def _send(self, lease: Lease, path: str, patience_s: float) -> Publication:
        """Publish a batch: repeat the request until the head has decided, or until the timeout.

        Raises: PublicationRefused; Unavailable if no compactor was reached, so that it is dead; OutcomeUnknown.
        """
        since_s, reached = self._runtime.elapsed_s(), False
        for _ in attempts(self._runtime, None, SEND_EVERY_S, longest_s=SEND_EVERY_S):
            try:
                return self._publish([path], lease.token)
            except PublicationRefused:
                raise
            except Invalid as error:
                raise OutcomeUnknown(f"the compactor rejects the batch: {error}") from error
            except LimpetError as error:
                reached |= not isinstance(error, Unreachable)
                if self._runtime.elapsed_s() - since_s > patience_s or self._waker.stopped:
                    if not reached:
                        raise Unavailable(str(error), hint=error.hint) from error
                    raise OutcomeUnknown(f"it is not known whether the batch was published: {error}") from error
        raise AssertionError


def add_batch(storage: CatalogStorage, id_: str, batch: LedgerBatch, writes: Sequence[Put] = ()) -> Key:
    """Write a batch under a new name, and concurrently the objects that its rows refer to.

    Raises: OutcomeUnknown; Unavailable; no other process knows the names.   Cost: 1 PUT, and 1 for each of `writes`.
    """
    key, store, runtime = storage.keys.batch(id_), storage.store, storage.runtime

    def create(put: Put) -> LimpetError | None:
        try:
            put_bytes(store, runtime, put.key, put.data, Absent())
        except LimpetError as error:
            return error
        return None

    puts = [Put(key, records.encode(batch)), *writes]
    for outcome in runtime.fan_out(create, puts, at_once=WRITES_WIDER * store.at_once):
        if outcome is not None:
            raise outcome
    batches = storage.recent.batches
    batches[key] = batch
    while len(batches) > OWN_MAX:
        del batches[next(iter(batches))]
    return key


def _fail(group: Sequence[_Pending], error: Exception) -> None:
    for pending in group:
        if not pending.answered.is_set():
            pending.fail(error)


def _release(lease: Lease, renewer: Renewer) -> None:
    renewer.stop()
    with suppress(LimpetError):  # it expires
        lease.release()

"""What must hold of a catalog: every answer to a client, and every head that is published.

The commits define the serial order. Each request is decided here independently, on the state after those before it, so
that a mistake in `limpet.catalog` is found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec

from limpet.catalog.gc import BatchOutcome, ClassifiedBatch, will_never_be
from limpet.catalog.records import ACTOR, CatalogHead, CommitRecord, LedgerBatch, Link, RememberedAnswer, Row
from limpet.catalog.state import CatalogState, is_remembered
from limpet.events.ledger import Publication
from limpet.kernel import records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Conflict
from limpet.kernel.keys import Key
from limpet.kernel.store.api import Version, When
from sim.actors import RunPlan
from sim.bucket import Bucket
from sim.world import Violation, World

KEYS = CatalogKeys.of("catalog")
Entries = Mapping[str, Any]
"""The state: by key a value, `{"v": text}`, with `"file"` where it came with an object."""
SLACK = timedelta(seconds=5)
"""How far a leader's clock may be ahead of a compactor's: it may forget an id that much early."""


# ---- what must hold: every answer ----


class RequestRefused(Conflict):
    """Why a request is refused. It names the conflicting value, and values are unique."""


@dataclass(frozen=True, slots=True)
class EntryRequest:
    """Make, change or drop entries, if each is as expected. `expected`: by key a text, or None for no entry."""

    what: str
    expected: Mapping[str, str | None]
    wanted: Mapping[str, str | None]
    with_file: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """A request is granted: the texts that it leaves behind, and its result."""

    texts: Mapping[str, str | None]
    result: Any


def ruling(request: EntryRequest, entries: Entries) -> Granted | str:
    """The decision on a request in a state; a text is the reason for a refusal."""
    found = {key: entries[key]["v"] if key in entries else None for key in request.wanted}
    for key, text in request.expected.items():
        if found[key] != text:
            return f"{key} is {found[key]}, not {text}"
    return Granted(request.wanted, {"was": [found[key] for key in sorted(found)]})


@dataclass(slots=True)
class CommitCall:
    """A call of `Leader.commit`. `first` is the serial point at which it began; an open one has no outcome."""

    id: str
    who: str
    request: EntryRequest
    began_s: float
    first: int
    actor: str
    """The name of the client that sent it."""
    ended_s: float = float("inf")
    outcome: str = ""


@dataclass(slots=True)
class _Grant:
    point: int
    at: str
    result: Any
    by: str
    written_s: float


@dataclass(slots=True)
class CatalogModel:
    """Every call, every serial point, every grant."""

    world: World
    points: list[Entries] = field(default_factory=lambda: [{}])
    """The state after each granted request, in order: all states that ever were."""
    granted: dict[str, list[_Grant]] = field(default_factory=dict)
    calls: dict[str, list[CommitCall]] = field(default_factory=dict)
    operations: int = 0
    settled: int = 0
    """The newest point that a client knows of."""

    def begins(self, id_: str, who: str, request: EntryRequest, actor: str) -> CommitCall:
        """A process is asked to commit, by a client of that name."""
        self.operations += 1
        call = CommitCall(id_, who, request, self.world.now_s, len(self.points) - 1, actor)
        self.calls.setdefault(id_, []).append(call)
        return call

    def ends(self, call: CommitCall, outcome: str, detail: object = "") -> None:
        """It was answered: by 503 if it was not attempted; by 500, "unknown", it stays open."""
        call.ended_s, call.outcome = self.world.now_s, outcome
        self.world.note(call.who, "answers", call.id, call.request.what, f"{outcome} {detail}")

    def acknowledged(self, call: CommitCall, result: Any) -> None:
        """It was acknowledged.   Raises: Violation unless it is published, with that very result."""
        self.ends(call, "ok", result)
        grants = self.granted.get(call.id, [])
        if not grants:
            raise Violation(f"{call.who} acknowledged {call.id}, which is not published")
        if result not in [grant.result for grant in grants]:
            raise Violation(f"{call.id} was answered with {result}, and {grants[-1].result} was published")
        self.settled = max(self.settled, grants[0].point)

    def authorized(self, who: str, entries: Entries) -> None:
        """A right was checked by this state.   Raises: Violation if it lacks a change that was acknowledged before."""
        if entries not in self.points[self.settled :]:
            raise Violation(f"{who} signs by {entries}, and {self.points[self.settled]} was acknowledged")

    def refused(self, call: CommitCall, why: str) -> None:
        """It was refused.   Raises: Violation unless that was so at some moment of the call."""
        self.ends(call, "no", why)
        grant = self.granted.get(call.id, [])[-1:]
        now = self.world.store_time().isoformat(timespec="microseconds")
        for at, entries in enumerate(self.points[call.first :], call.first):
            if grant and grant[0].point <= at and is_remembered(call.id, grant[0].at, _later(now)):
                raise Violation(f"{call.id} was published, and {call.who} refused it: {why}")
            if ruling(call.request, entries) == why:
                return
        raise Violation(f"{call.who} refused {call.id} because {why}, and that was never so during the call")

    def publish(self, row: Row, at: str, by: str, written_s: float, read: Callable[[str], bytes | None]) -> None:
        """A head holds a new row, whose batch `by` wrote.   Raises: Violation."""
        before = self.points[-1]
        calls = self.calls.get(row.id)
        if not calls:
            raise Violation(f"{row.id} was published, and no client ever sent it")
        earlier = self.granted.get(row.id, [])[-1:]
        if earlier and is_remembered(row.id, earlier[0].at, _later(at)):
            raise Violation(f"{row.id} was published twice")
        for call in calls:
            if call.outcome == "no" and written_s < call.began_s:
                raise Violation(f"{call.who} refused {row.id}, and then an older copy of it was published")
        rules = ruling(calls[0].request, before)
        if isinstance(rules, str):
            raise Violation(f"{row.id} was published although {rules}")
        if row.actor not in {call.actor for call in calls}:
            raise Violation(f"{row.id} was published as a request of {row.actor!r}, and {calls[0].actor!r} sent it")
        changes = [change for change in row.changes if change.key != ACTOR]
        texts = {change.key: change.value["v"] if change.value else None for change in changes}
        if texts != rules.texts or row.result != rules.result:
            raise Violation(f"{row.id} was published as {row}, and should be {rules}")
        after = dict(before)
        for change in changes:
            if change.value is None:
                after.pop(change.key, None)
                continue
            file = change.value.get("file")
            if file is not None and read(file) != row.id.encode():
                raise Violation(f"{row.id} was published, and {file} is not there yet, or not its own")
            after[change.key] = change.value
        self.points.append(after)
        grant = _Grant(len(self.points) - 1, at, row.result, by, written_s)
        self.granted.setdefault(row.id, []).append(grant)

    def close(self) -> None:
        """At the end: what was published was attempted.   Raises: Violation."""
        for id_, grants in self.granted.items():
            for grant in grants:
                calls = [call for call in self.calls[id_] if call.who == grant.by]
                during = [call for call in calls if call.began_s <= grant.written_s <= call.ended_s]
                if not any(call.outcome in ("", "ok", "unknown") for call in during):
                    answers = [call.outcome for call in during]
                    raise Violation(f"{id_} was published by {grant.by}, which had answered {answers}")


def _later(at: str) -> str:
    return (datetime.fromisoformat(at) + SLACK).isoformat(timespec="microseconds")


# ---- every head ----


class JsonSnapshots:
    """Snapshots as JSON."""

    def to_bytes(self, state: CatalogState) -> bytes:
        """The state as JSON."""
        return msgspec.json.encode([state.entries(), state.answers()])

    def from_bytes(self, data: bytes, *, what: str) -> CatalogState:
        """The state that `to_bytes` encoded."""
        entries, answers = msgspec.json.decode(data, type=tuple[dict[str, Any], dict[str, RememberedAnswer]])
        return CatalogState(entries, answers)


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """A version that was published: its commit, and the serial point that it left behind."""

    commit: CommitRecord
    link: Link
    entries: Entries


@dataclass(frozen=True, slots=True)
class _WrittenBatch:
    batch: LedgerBatch
    by: str
    at_s: float


class CatalogBucket(Bucket):
    """The bucket, and what was published in it."""

    def __init__(self, world: World, plan: RunPlan, model: CatalogModel, *, keeps: int) -> None:
        super().__init__(world, plan)
        self.world = world
        self.model = model
        self.heads: list[CatalogHead] = []
        """In the order in which they were swapped in, those of GC too."""
        self.known: dict[int, KnownVersion] = {}
        self.kept_from = 1
        """The oldest version that must still be readable."""
        self._keeps = keeps
        self._dead: set[str] = set()
        self._batches: dict[str, _WrittenBatch] = {}
        self._paths: set[str] = set()

    @property
    def version(self) -> int:
        """The version of the newest head; 0: there is none."""
        return self.heads[-1].version if self.heads else 0

    def put(self, who: str, key: Key, data: bytes, when: When) -> Version:
        """A violation ends the run, whichever process caused it."""
        version = super().put(who, key, data, when)
        if key == KEYS.head:
            try:
                self._swapped(_unsealed(data))
            except Violation as violation:
                self.world.failure = self.world.failure or violation
        elif key.startswith(KEYS.ledger) and key not in self._batches:
            self._batches[key] = _WrittenBatch(msgspec.json.decode(data, type=LedgerBatch), who, self.world.now_s)
        return version

    def _swapped(self, head: CatalogHead) -> None:
        before = self.heads[-1] if self.heads else None
        self.heads.append(head)
        if before is not None and before.version == head.version:
            if msgspec.structs.replace(before, gc_floor=head.gc_floor) != head or head.gc_floor < before.gc_floor:
                raise Violation(f"version {head.version} was published twice, and more than its floor has changed")
            self.kept_from = max(self.kept_from, head.version - self._keeps + 1)
            return
        self._follows(before, head)
        commit = self._commit(before, head)
        self.known[head.version] = KnownVersion(commit, head.links[0], {})
        self._rows(before, head, commit)
        self.known[head.version] = KnownVersion(commit, head.links[0], self.model.points[-1])
        self._state(head)
        self.world.note("bucket", "publishes", f"version {head.version}", f"token {head.token}", commit.id)

    def _follows(self, before: CatalogHead | None, head: CatalogHead) -> None:
        if head.version != (before.version if before else 0) + 1:
            raise Violation(f"version {head.version} follows {before.version if before else 0}")
        if head.links[0].version != head.version:
            raise Violation(f"the first link of version {head.version} is to {head.links[0].version}")
        if before is not None:
            if head.token < before.token or head.at < before.at or head.gc_floor != before.gc_floor:
                raise Violation(f"token, time or floor fell at version {head.version}: {before} became {head}")
            if not before.last_id < head.links[0].id <= head.last_id or head.links[0].id < before.gc_floor:
                raise Violation(f"{head.links[0]} was named below {before.last_id} or {before.gc_floor}")
            if head.links[1:2] != before.links[:1]:
                raise Violation(f"version {head.version} does not point back to {before.links[0]}")
        for link in head.links[1:]:
            if self.known[link.version].link != link:
                raise Violation(f"version {head.version} points to {link}, not to {self.known[link.version].link}")
        if any(one.version <= other.version for one, other in pairwise(head.links)):
            raise Violation(f"the links of version {head.version} are out of order")

    def _commit(self, before: CatalogHead | None, head: CatalogHead) -> CommitRecord:
        """The commit of a head; the one before it must be on record by now."""
        if before is not None and before.links[0].id >= before.gc_floor:
            self._on_record(before.links[0])
        paths = tuple(each.path for each in head.applied if each.version == head.version)
        if not paths or self._paths.intersection(paths) or self._dead.intersection(paths):
            raise Violation(f"version {head.version} publishes nothing, or something again, or dead: {paths}")
        if before is not None and not set(head.applied) <= {*before.applied, *head.applied[-len(paths) :]}:
            raise Violation(f"version {head.version} remembers what was never published")
        self._paths.update(paths)
        if not head.tail:
            return msgspec.json.decode(self._on_record(head.links[0]), type=CommitRecord)
        commit = CommitRecord(
            domain=KEYS.domain,
            id=head.links[0].id,
            version=head.version,
            token=head.token,
            at=head.at,
            paths=paths,
            rows=head.tail[-1].rows,
            links=head.links[1:],
            snapshot=head.snapshot,
        )
        if _digest(records.encode(commit)) != head.links[0].sha256:
            raise Violation(f"the head of version {head.version} does not hold the commit that it names")
        return commit

    def _on_record(self, link: Link) -> bytes:
        found = self.objects.get(KEYS.commit(link.id))
        if found is None or _digest(found.data) != link.sha256:
            raise Violation(f"the commit of version {link.version} is not on record, or is another")
        return found.data

    def _rows(self, before: CatalogHead | None, head: CatalogHead, commit: CommitRecord) -> None:
        rows: list[Row] = []
        for path in commit.paths:
            written = self._batches.get(path)
            if written is None:
                raise Violation(f"{path} was published, and no process wrote it")
            batch, led = written.batch, before.token if before else 0
            fits = batch.base_version == head.version - 1 and led == head.token
            if batch.token != head.token or not (fits or (batch.base_version is None and led < head.token)):
                raise Violation(f"version {head.version} with token {head.token} publishes {batch}")
            for row in batch.rows:
                rows.append(row)
                self.model.publish(row, head.at, written.by, written.at_s, self._read)
        if commit.rows != tuple(rows):
            raise Violation(f"version {head.version} holds other rows than {commit.paths}")

    def _read(self, key: str) -> bytes | None:
        found = self.objects.get(Key(key))
        return found.data if found else None

    def _state(self, head: CatalogHead) -> None:
        """The state that a reader derives from the head is the one that was published."""
        entries: dict[str, Any] = {}
        answers: dict[str, RememberedAnswer] = {}
        base = 0
        if head.snapshot is not None:
            found = self.objects.get(KEYS.snapshot(head.snapshot.id))
            if found is None or _digest(found.data) != head.snapshot.sha256 or found.size != head.snapshot.size:
                raise Violation(f"the head of version {head.version} names a snapshot that is not there, or another")
            state = JsonSnapshots().from_bytes(found.data, what="snapshot")
            entries, answers, base = dict(state.entries()), dict(state.answers()), head.snapshot.version
        if [tail.version for tail in head.tail] != [*range(base + 1, head.version + 1)]:
            raise Violation(f"the tail of version {head.version} does not follow its snapshot of {base}")
        for tail in head.tail:
            for row in tail.rows:
                answers[row.id] = RememberedAnswer(row.what, tail.at, row.result)
                entries.update({change.key: change.value for change in row.changes if change.key != ACTOR})
        if {key: value for key, value in entries.items() if value is not None} != self.model.points[-1]:
            raise Violation(f"the head of version {head.version} says {entries}, not {self.model.points[-1]}")
        for id_, grants in self.model.granted.items():
            answer = answers.get(id_)
            if (answer is None or answer.result != grants[-1].result) and is_remembered(id_, grants[-1].at, head.at):
                raise Violation(f"the head of version {head.version} has forgotten {id_}")

    def walked(self, commits: Sequence[CommitRecord], head: CatalogHead) -> None:
        """A client walked the chain from `head`.   Raises: Violation unless it is the true one, down to the floor."""
        for commit, version in zip(commits, range(head.version, 0, -1), strict=False):
            if commit != self.known[version].commit:
                raise Violation(f"the chain says {commit}, not {self.known[version].commit}")
        oldest = commits[-1].version if commits else head.version + 1
        if head.version >= self.kept_from and oldest > self.kept_from:
            raise Violation(f"the chain ends at version {oldest}, and {self.kept_from} must be kept")

    def is_epoch(self, paths: Sequence[str]) -> bool:
        """Whether those are epochs: they change nothing, and a token has only one that is published."""
        return all(self._batches[path].batch.base_version is None for path in paths if path in self._batches)

    def answered(self, paths: Sequence[str], published: Publication) -> None:
        """A compactor says that those batches were published.   Raises: Violation unless they were, as that."""
        known = self.known.get(published.version)
        if known is None or known.commit.paths != tuple(paths) or known.commit.id != published.commit:
            raise Violation(f"{paths} were answered with {published}, and are not that")

    def refused(self, paths: Sequence[str]) -> None:
        """A compactor says that they never will be.   Raises: Violation if they are, or still may be.

        An epoch that is long past may be refused: the process that asks for it does not lead any more.
        """
        for written in (self._batches[path] for path in paths if path in self._batches):
            epoch = written.batch.base_version is None
            if not epoch and self._paths.intersection(paths):
                raise Violation(f"{paths} were published, and then refused")
            if self.heads and not will_never_be(written.batch, self.heads[-1]):
                raise Violation(f"{paths} were refused, and may still be published: {written.batch}")
        self._dead.update(paths)

    def not_taken(self, paths: Sequence[str], before: CatalogHead | None) -> None:
        """A compactor says that they are no batches.   Raises: Violation if the head remembered them all the time."""
        if before is not None and {*paths} <= {each.path for each in before.applied}:
            raise Violation(f"{paths} were published, and then called invalid")

    def classified(self, found: Sequence[ClassifiedBatch]) -> None:
        """A client classified the ledger.   Raises: Violation unless each batch has the fate that was reported."""
        for each in found:
            if each.fate is BatchOutcome.APPLIED and each.path not in self._paths:
                raise Violation(f"{each.path} counts as applied, and never was published")
            if each.fate is BatchOutcome.DEAD:
                if each.path in self._paths:
                    raise Violation(f"{each.path} counts as dead, and was published")
                self._dead.add(each.path)


def _unsealed(data: bytes) -> CatalogHead:
    """A head without its seal.   Raises: Violation unless its seal is the digest of the rest."""
    head = msgspec.json.decode(data, type=CatalogHead)
    bare = msgspec.structs.replace(head, seal="")
    if head.seal != _digest(records.encode(bare)):
        raise Violation(f"the head of version {head.version} is not sealed")
    return bare


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

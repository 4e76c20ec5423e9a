"""The bucket of a catalog: each head is checked the moment it is published, on everything that lies there then."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from limpet import records
from limpet.catalog.anti_entropy import Fate, Judged, will_never_be
from limpet.catalog.compactor import Published
from limpet.catalog.records import ACTOR, Batch, Commit, Head, Link, Row, Told
from limpet.catalog.state import State, is_live
from limpet.keys import CatalogKeys, Key
from limpet.sim.bucket import Bucket
from limpet.sim.catalog_books import Books, Entries
from limpet.sim.nemesis import Knobs
from limpet.sim.world import Violation, World
from limpet.store.api import Version, When

__all__ = ["KEYS", "CatalogBucket", "Json", "Known"]

KEYS = CatalogKeys.of("catalog")


class Json:
    """Snapshots as JSON."""

    def to_bytes(self, state: State) -> bytes:
        """See `SnapshotCodec.to_bytes`."""
        return msgspec.json.encode([state.entries(), state.answers()])

    def from_bytes(self, data: bytes, *, what: str) -> State:
        """See `SnapshotCodec.from_bytes`."""
        entries, answers = msgspec.json.decode(data, type=tuple[dict[str, Any], dict[str, Told]])
        return State(entries, answers)


@dataclass(frozen=True, slots=True)
class Known:
    """A version that was published: its commit, and the serial point that it left behind."""

    commit: Commit
    link: Link
    entries: Entries


@dataclass(frozen=True, slots=True)
class _Written:
    batch: Batch
    by: str
    at_s: float


class CatalogBucket(Bucket):
    """The bucket, and what was published in it."""

    def __init__(self, world: World, knobs: Knobs, books: Books, *, keeps: int) -> None:
        super().__init__(world, knobs)
        self.world = world
        self.books = books
        self.heads: list[Head] = []
        """As they were swapped in, those of GC too."""
        self.known: dict[int, Known] = {}
        self.kept_from = 1
        """From this version on the past can be told."""
        self._keeps = keeps
        self._dead: set[str] = set()
        self._batches: dict[str, _Written] = {}
        self._paths: set[str] = set()

    @property
    def version(self) -> int:
        """Of the newest head; 0: there is none."""
        return self.heads[-1].version if self.heads else 0

    def put(self, who: str, key: Key, data: bytes, when: When) -> Version:
        """See `Bucket.put`. What is wrong about it ends the run, whoever did it."""
        version = super().put(who, key, data, when)
        if key == KEYS.head:
            self._watched(lambda: self._swapped(_unsealed(data)))
        elif key.startswith(KEYS.ledger) and key not in self._batches:
            self._batches[key] = _Written(msgspec.json.decode(data, type=Batch), who, self.world.now_s)
        return version

    def _watched(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Violation as violation:
            self.world.failure = self.world.failure or violation

    def _swapped(self, head: Head) -> None:
        before = self.heads[-1] if self.heads else None
        self.heads.append(head)
        if before is not None and before.version == head.version:
            if msgspec.structs.replace(before, gc_floor=head.gc_floor) != head or head.gc_floor < before.gc_floor:
                raise Violation(f"version {head.version} was published twice, and more than its floor has changed")
            self.kept_from = max(self.kept_from, head.version - self._keeps + 1)
            return
        self._follows(before, head)
        commit = self._commit(before, head)
        self.known[head.version] = Known(commit, head.links[0], {})
        self._rows(before, head, commit)
        self.known[head.version] = Known(commit, head.links[0], self.books.points[-1])
        self._state(head)
        self.world.note("bucket", "publishes", f"version {head.version}", f"token {head.token}", commit.id)

    def _follows(self, before: Head | None, head: Head) -> None:
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

    def _commit(self, before: Head | None, head: Head) -> Commit:
        """The commit of a head, by what is written about it; the one before it must be on record by now."""
        if before is not None and before.links[0].id >= before.gc_floor:
            self._on_record(before.links[0])
        paths = tuple(each.path for each in head.applied if each.version == head.version)
        if not paths or self._paths.intersection(paths) or self._dead.intersection(paths):
            raise Violation(f"version {head.version} publishes nothing, or something again, or dead: {paths}")
        if before is not None and not set(head.applied) <= {*before.applied, *head.applied[-len(paths) :]}:
            raise Violation(f"version {head.version} remembers what was never published")
        self._paths.update(paths)
        if not head.tail:
            return msgspec.json.decode(self._on_record(head.links[0]), type=Commit)
        commit = Commit(
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

    def _rows(self, before: Head | None, head: Head, commit: Commit) -> None:
        rows: list[Row] = []
        for path in commit.paths:
            written = self._batches.get(path)
            if written is None:
                raise Violation(f"{path} was published, and nobody wrote it")
            batch, led = written.batch, before.token if before else 0
            fits = batch.base_version == head.version - 1 and led == head.token
            if batch.token != head.token or not (fits or (batch.base_version is None and led < head.token)):
                raise Violation(f"version {head.version} with token {head.token} publishes {batch}")
            for row in batch.rows:
                rows.append(row)
                self.books.publish(row, head.at, written.by, written.at_s, self._read)
        if commit.rows != tuple(rows):
            raise Violation(f"version {head.version} holds other rows than {commit.paths}")

    def _read(self, key: str) -> bytes | None:
        found = self.objects.get(Key(key))
        return found.data if found else None

    def _state(self, head: Head) -> None:
        """What a reader makes of the head is what was published."""
        entries: dict[str, Any] = {}
        answers: dict[str, Told] = {}
        base = 0
        if head.snapshot is not None:
            found = self.objects.get(KEYS.snapshot(head.snapshot.id))
            if found is None or _digest(found.data) != head.snapshot.sha256 or found.size != head.snapshot.size:
                raise Violation(f"the head of version {head.version} names a snapshot that is not there, or another")
            state = Json().from_bytes(found.data, what="snapshot")
            entries, answers, base = dict(state.entries()), dict(state.answers()), head.snapshot.version
        if [tail.version for tail in head.tail] != [*range(base + 1, head.version + 1)]:
            raise Violation(f"the tail of version {head.version} does not follow its snapshot of {base}")
        for tail in head.tail:
            for row in tail.rows:
                answers[row.id] = Told(row.what, tail.at, row.result)
                entries.update({change.key: change.value for change in row.changes if change.key != ACTOR})
        if {key: value for key, value in entries.items() if value is not None} != self.books.points[-1]:
            raise Violation(f"the head of version {head.version} says {entries}, not {self.books.points[-1]}")
        for id_, grants in self.books.granted.items():
            told = answers.get(id_)
            if (told is None or told.result != grants[-1].result) and is_live(id_, grants[-1].at, head.at):
                raise Violation(f"the head of version {head.version} has forgotten {id_}")

    def walked(self, commits: Sequence[Commit], head: Head) -> None:
        """Somebody walked the chain from `head`.   Raises: Violation unless it is the true one, down to the floor."""
        for commit, version in zip(commits, range(head.version, 0, -1), strict=False):
            if commit != self.known[version].commit:
                raise Violation(f"the chain says {commit}, not {self.known[version].commit}")
        oldest = commits[-1].version if commits else head.version + 1
        if head.version >= self.kept_from and oldest > self.kept_from:
            raise Violation(f"the chain ends at version {oldest}, and {self.kept_from} must be kept")

    def is_epoch(self, paths: Sequence[str]) -> bool:
        """Whether those are epochs: they change nothing, and a token has only one that is published."""
        return all(self._batches[path].batch.base_version is None for path in paths if path in self._batches)

    def answered(self, paths: Sequence[str], published: Published) -> None:
        """A compactor says that those batches were published.   Raises: Violation unless they were, as that."""
        known = self.known.get(published.version)
        if known is None or known.commit.paths != tuple(paths) or known.commit.id != published.commit:
            raise Violation(f"{paths} were answered with {published}, and are not that")

    def refused(self, paths: Sequence[str]) -> None:
        """A compactor says that they never will be.   Raises: Violation if they are, or still may be.

        An epoch that is long past may be refused: whoever asks for it does not lead any more.
        """
        for written in (self._batches[path] for path in paths if path in self._batches):
            epoch = written.batch.base_version is None
            if not epoch and self._paths.intersection(paths):
                raise Violation(f"{paths} were published, and then refused")
            if self.heads and not will_never_be(written.batch, self.heads[-1]):
                raise Violation(f"{paths} were refused, and may still be published: {written.batch}")
        self._dead.update(paths)

    def not_taken(self, paths: Sequence[str], before: Head | None) -> None:
        """A compactor says that they are no batches.   Raises: Violation if the head remembered them all the time."""
        if before is not None and {*paths} <= {each.path for each in before.applied}:
            raise Violation(f"{paths} were published, and then called invalid")

    def judged(self, found: Sequence[Judged]) -> None:
        """Somebody looked through the ledger.   Raises: Violation unless each batch is what it is said to be."""
        for each in found:
            if each.fate is Fate.APPLIED and each.path not in self._paths:
                raise Violation(f"{each.path} counts as applied, and never was published")
            if each.fate is Fate.DEAD:
                if each.path in self._paths:
                    raise Violation(f"{each.path} counts as dead, and was published")
                self._dead.add(each.path)


def _unsealed(data: bytes) -> Head:
    """A head as it is in memory.   Raises: Violation unless its seal is the digest of the rest."""
    head = msgspec.json.decode(data, type=Head)
    bare = msgspec.structs.replace(head, seal="")
    if head.seal != _digest(records.encode(bare)):
        raise Violation(f"the head of version {head.version} is not sealed")
    return bare


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

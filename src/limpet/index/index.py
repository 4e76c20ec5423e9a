"""`Index`: records by key, in one bucket, for any number of writers, compilers and readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from limpet.events import EventSink
from limpet.index.codec import Fields, Schema, Typed
from limpet.index.compiler import Compiler, CompileReport, Outcomes, ShardJob, compile_there, emit_run
from limpet.index.decide import DEPTHS, shard_ids
from limpet.index.describe import IndexStats, stats, write_descriptions
from limpet.index.maintain import WholeIndex
from limpet.index.maintain.drop import IndexTarget, make_room
from limpet.index.maintain.import_existing import AdoptReport, foreign_manifest, import_existing, import_in_place
from limpet.index.maintain.offline import PurgeReport, ReshardReport, purge, reshard
from limpet.index.maintain.verify import VerifyReport, verify
from limpet.index.reader import Reader, warn_of
from limpet.index.sql import Parameters, sql
from limpet.index.sql_rows import Rows
from limpet.index.storage import IndexStorage, Manifest, WaitingShards, fresh, manifest_cell
from limpet.index.types import extended, nullable, with_own
from limpet.index.writer import RecordWriter, Stamps
from limpet.kernel.cell import Cell
from limpet.kernel.drop import Dropper, DropReport
from limpet.kernel.errors import Conflict, Corrupt, Denied, Invalid, LimpetError, Missing, Unavailable
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.lease import VersionWatch
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Put, Store, Version
from limpet.kernel.store.sources import FileSource
from limpet.kernel.waiting import TRIES_MAX, attempts
from limpet.kernel.wording import many

R = TypeVar("R")
REFRESH_S = 600.0
"""After this time a handle reads the manifest again: there may be new columns, or a reshard."""


@dataclass(frozen=True, slots=True)
class _OpenedIndex(Generic[R]):
    manifest: Manifest
    reader: Reader
    writer: RecordWriter[R]
    at_s: float


class Index(Generic[R]):
    """Records of one type under one name. Cheap to create; the first use reads the manifest, or creates the index, and
    every ten minutes a use reads it again (1 GET).

    A put is visible to every later get, scan, sql and compile, on any machine, unless a record with an equal or later
    `updated_at` exists. Of several records with one key the same one wins everywhere. Thread-safe.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        runtime: Runtime,
        typed: Typed[R],
        stamps: Stamps,
        watch: VersionWatch,
        *,
        depth: int | None = None,
        job: ShardJob | None = None,
        events: EventSink | None = None,
    ) -> None:
        self.name = name
        self._events = events
        self._runtime = runtime
        self._typed = typed
        self._stamps = stamps
        self._watch = watch
        self._job = job
        self._storage = IndexStorage(store, IndexKeys.of(name), runtime)
        self._cell = manifest_cell(self._storage)
        self._layout = Layout(self._storage, self._cell, name, typed, depth)
        self._opened: _OpenedIndex[R] | None = None

    def __repr__(self) -> str:
        return f"Index({self.name!r})"

    @property
    def manifest(self) -> Manifest:
        """The manifest, at most ten minutes old.   Cost: 0; after ten minutes 1 GET; at first as creating the index."""
        return self._open().manifest

    @property
    def storage(self) -> IndexStorage:
        """The objects of the index, for maintenance tools."""
        return self._storage

    def put(self, record: R | Mapping[str, Any]) -> None:
        """Write one record, replacing the one with the same key. `updated_at`, unless given, is the store's time.

        Raises: Invalid, naming field and value; OutcomeUnknown (put it again).   Cost: 1 PUT; 1 PUT + 1 HEAD more once
        in ten minutes, for the clock.   Crash: written entirely or not at all.
        """
        self._open().writer.put(record)

    def put_many(self, records: Iterable[R | Mapping[str, Any]]) -> int:
        """Write many records, or none if one is invalid; of two with one key the last wins. Returns how many.

        Raises: Invalid, naming record, field and value; OutcomeUnknown, Unavailable (put them again).
        Cost: at most 1 PUT for each shard touched.   Crash: the records of some shards may be written, others not.
        """
        return self._open().writer.put_many(records)

    def put_lines(self, lines: Mapping[str, bytes]) -> None:
        """Write lines encoded by this index's schema, by key: for imports.   Cost and crash: as `put_many`."""
        self._open().writer.put_lines(lines)

    def delete(self, key: str | int) -> None:
        """Delete the record of `key`; it need not exist.   Raises: Invalid.   Cost: 1 PUT."""
        self._open().writer.delete(key)

    def get(self, key: str | int) -> R | None:
        """The record of `key`, or None.

        A later put of the key by this process is newer than the record that is returned.
        Raises: Corrupt, Unavailable: a read error is never an empty result.
        Cost: 2 LISTs + 1 to 3 range GETs, at most 192 KiB together while no record exceeds 4 KiB; 1 GET if singles of
        the key wait, and 1 to 3 for each waiting pack of its shard.
        """
        opened = self._open()
        text = opened.manifest.schema.key_text(key)
        return self._record(opened, text, opened.reader.find(text))

    def get_many(self, keys: Iterable[str | int]) -> dict[str | int, R]:
        """The records of those keys that have one.

        Cost: 2 LISTs; for each shard touched 1 GET, or what `get` costs for each key if that reads less; where objects
        wait, up to 2 LISTs and 1 GET an object more.
        """
        opened = self._open()
        texts = {opened.manifest.schema.key_text(key): key for key in keys}
        found: dict[str | int, R] = {}
        for text, line in opened.reader.find_many(texts).items():
            record = self._record(opened, text, line)
            if record is not None:
                found[texts[text]] = record
        return found

    def scan(self, *, skip_damaged: bool = False) -> Iterator[R]:
        """Every record, each as of some moment after the scan began. Memory is bounded by the largest shard.

        `skip_damaged`: skip damaged shards and their waiting objects, each with a `DamagedShardWarning`.
        Raises: Corrupt for a damaged shard otherwise.
        Cost: 1 GET + 2 LISTs + 1 GET a shard; where objects wait, up to 2 LISTs and 1 GET an object more.
        """
        opened = self._open(again=True)
        schema = opened.manifest.schema
        for lines in opened.reader.scan(warn_of if skip_damaged else None):
            for line in lines:
                yield self._typed.record(schema.values(line))

    def sql(
        self,
        query: str,
        parameters: Parameters | None = None,
        *,
        allow_files: bool = False,
        memory: str | None = None,
        skip_damaged: bool = False,
    ) -> Rows:
        """Run a SELECT over this index and any other of the fleet; each index is a table of the same name.

        `skip_damaged`: skip damaged shards and their waiting objects, each with a `DamagedShardWarning`.
        Raises, Cost: as `limpet.index.sql.sql`; needs the extra `sql`.
        """
        self._open()
        return sql(
            self._storage.store,
            self._runtime,
            query,
            parameters,
            allow_files=allow_files,
            memory=memory,
            on_damage=warn_of if skip_damaged else None,
        )

    def verify(self, *, repair: bool = False, accept_loss: bool = False) -> VerifyReport:
        """Read and check the whole index; `repair`: repair what can be derived; `accept_loss`: keep what is left of
        damaged shards.   See `maintain.verify.verify`.
        """
        return verify(self._whole(), repair=repair, accept_loss=accept_loss)

    def adopt(self, source: FileSource | None = None, *, quiesced: bool = False, any_name: bool = False) -> AdoptReport:
        """Import plain `{key}.usv` files.   See `maintain.import_existing.import_existing`."""
        return import_existing(self._whole(), self._stamps, source, quiesced=quiesced, any_name=any_name)

    def adopt_in_place(
        self, source: FileSource | None = None, *, quiesced: bool = False, any_name: bool = False
    ) -> AdoptReport:
        """Create this index from plain files in its folder.   See `maintain.import_existing.import_in_place`."""
        whole, layout = self._whole(), self._layout
        report = import_in_place(whole, layout, self._stamps, source, quiesced=quiesced, any_name=any_name)
        self._opened = None
        return report

    def has_foreign_manifest(self) -> bool:
        """Whether another program's `manifest.json` lies in the place of this index's.   Cost: 1 GET."""
        return foreign_manifest(self._storage) is not None

    def reshard(self, depth: int, *, quiesced: bool = False) -> ReshardReport:
        """Change the depth of the shards, while no other process uses the index.   See `maintain.offline.reshard`."""
        report = reshard(self._whole(), depth, quiesced=quiesced)
        self._opened = None
        return report

    def purge(self, *, quiesced: bool = False, older_than_s: float | None = None) -> PurgeReport:
        """Drop tombstones, while no other process uses the index.   See `maintain.offline.purge`."""
        report = purge(self._whole(), quiesced=quiesced, older_than_s=older_than_s)
        self._opened = None
        return report

    def drop(
        self, *, quiesced: bool = False, dry_run: bool = False, progress: Callable[[str], object] = lambda said: None
    ) -> DropReport:
        """Remove the index with all its records.

        Processes that have it open learn of it within ten minutes; until then, puts of theirs may succeed, and go with
        the index. So an index of that name is created eleven minutes later at the earliest, unless the drop was
        `quiesced`: nothing uses the index any more. The new index has nothing of the old one. A published table stays.
        `dry_run` returns the report and removes nothing. `progress` gets a line for each wait: in a bucket two minutes
        for late deletes.
        Raises: Conflict while a compiler, repair or reshard works, and nothing was changed, or if others go on to
        write; Held while another process drops it; Missing; Corrupt. After any other error, drop it again.
        Cost: 2 LISTs per 1,000 objects, 1 GET for each lock of a shard, 1 DELETE an object, in bulk; 10 PUTs, 12 GETs.
        Crash: the index is refused by every process; a second drop goes on.
        """
        dropper = Dropper(
            self._storage.store, self._runtime, IndexTarget(self._storage, quiesced=quiesced), self._watch
        )
        report = dropper.look() if dry_run else dropper.run(quiesced=quiesced, progress=progress)
        self._opened = None
        return report

    def allow_null(self, field: str) -> None:
        """Make a required column nullable. Programs whose type requires a value cannot read a record without one from
        then on (Unsupported), so change their types first.   Raises: Missing; Invalid.
        Cost: 1 GET + 1 PUT; 2 GETs + 2 PUTs for the descriptions.
        """
        self._layout.allow_null(field)
        self._opened = None

    def _whole(self) -> WholeIndex:
        return WholeIndex(self.name, self._storage, self._cell, self._watch, lambda: self.compile(full=True))

    def stats(self) -> IndexStats:
        """The index in numbers.   Cost: 1 GET and as `limpet.index.describe.stats`."""
        return stats(self._storage, self.name, self._open(again=True).manifest)

    def compile(
        self, executor: Executor | None = None, *, full: bool = False, stop: Callable[[], bool] | None = None
    ) -> CompileReport:
        """Fold waiting objects into the shards where that is worth it or overdue; gather other singles into packs.

        `full`: fold everything, also in shards that another compiler has locked (it may be dead; the swap decides).

        Any number of compilers may run concurrently, and be killed at any moment. With an `executor` (threads,
        processes, Dask, Ray) the shards are distributed over its workers, which open the fleet themselves. After `stop`
        returns True, no further shard is started.
        Raises: Corrupt for a damaged shard, Unavailable for a worker that died: after all other shards were compiled.
        Cost: 1 GET + 2 LISTs, then as `Compiler.compile` for each shard with work, and as `Compiler.record` for
        every 256 shards (with an executor, every 8).
        """
        began_s = self._runtime.elapsed_s()
        compiler = self._compiler()
        work = self._storage.work()
        shards = sorted(work.shards)
        self._runtime.rng.shuffle(shards)
        parts: Iterable[CompileReport | LimpetError]
        if executor is None:
            parts = compiler.run(shards, work, full=full, stop=stop)
        else:
            job = self._job or (lambda some, full, _: self.compile_shards(some, full=full))
            parts = compile_there(job, executor, shards, full, self._runtime.new_id(), stop)
        if not shards:
            compiler.record(CompileReport())
        report = CompileReport()
        failed: LimpetError | None = None
        for part in parts:
            if isinstance(part, LimpetError):
                failed = failed or part
            else:
                report.add(part)
        if report.too_large and failed is None:
            failed = Corrupt(
                f"{report.too_large[0]} is larger than any object that Limpet writes, and was not touched",
                hint="move it elsewhere; everything else was compiled",
            )
        if self._events is not None:
            emit_run(self._events, self._runtime, self.name, report, failed, began_s)
        if failed is not None:
            raise failed
        return report

    def compile_shards(self, shards: Sequence[str], *, full: bool = False) -> Outcomes:
        """Compile these shards: one part of a run on an executor."""
        everywhere = frozenset(shards)
        compiler = self._compiler()
        return [*compiler.run(shards, WaitingShards(everywhere, everywhere), full=full)]

    def _compiler(self) -> Compiler:
        return Compiler(self.name, self._storage, self._cell, self._open(again=True).manifest, self._watch)

    def __reduce__(self) -> NoReturn:
        raise Invalid("a handle of an index cannot be sent to another process", hint="open the fleet there, by its URL")

    def _record(self, opened: _OpenedIndex[R], key: str, line: bytes | None) -> R | None:
        if line is None:
            return None
        schema = opened.manifest.schema
        record = None if schema.is_tombstone(line) else self._typed.record(schema.values(line))
        self._stamps.remember(self._storage.keys.root, {key: schema.stamp_of(line)})
        return record

    def _open(self, *, again: bool = False) -> _OpenedIndex[R]:
        opened, at_s = self._opened, self._runtime.elapsed_s()
        if opened is not None and not again and at_s - opened.at_s < REFRESH_S:
            return opened
        manifest = self._layout.load()
        if opened is not None and opened.manifest == manifest:
            self._opened = replace(opened, at_s=at_s)
        else:
            reader = Reader(self._storage, manifest)
            writer = RecordWriter(self._storage, manifest, self._typed, self._stamps)
            self._opened = _OpenedIndex(manifest, reader, writer, at_s)
        return self._opened


DEPTH = 2


class Layout:
    """The manifest of one index, as a program's type wants it to be."""

    def __init__(self, storage: IndexStorage, cell: Cell[Manifest], name: str, typed: Typed[Any], depth: int | None):
        if depth is not None and depth not in DEPTHS:
            raise Invalid(f"an index has a depth of {DEPTHS[0]} to {DEPTHS[-1]}, not {depth}")
        self._storage = storage
        self._cell = cell
        self._name = name
        self._typed = typed
        self._depth = depth
        self._fits: tuple[Fields, str] | None = None
        """The columns and the key of a manifest that the type was last found to fit."""

    def load(self) -> Manifest:
        """The current manifest: created if there is none, extended if the type has new columns.

        Raises: Missing without a type; Invalid for a type that does not fit.   Cost: 1 GET; see `_create`, `_evolved`.
        """
        seen = self._cell.read()
        if seen is None:
            return self._create()
        if self._depth is not None and seen.value.depth != self._depth:
            raise Invalid(
                f"the index {self._name!r} has depth {seen.value.depth}, not {self._depth}",
                hint="leave depth out, or `limpet index reshard`",
            )
        return self._evolved(seen.value)

    def _evolved(self, manifest: Manifest) -> Manifest:
        """The manifest with the type's new columns; without them if this process may not add columns.

        Cost: 0, or 1 GET + 1 PUT and the descriptions.
        """
        if self._typed.fields is None or self._fits == (manifest.fields, manifest.key):
            return manifest
        fields, key = self._typed.fields, self._typed.key or manifest.key
        if extended(manifest.schema, fields, key) is None:
            self._fits = (manifest.fields, manifest.key)
            return manifest
        try:
            return self._changed(lambda schema: extended(schema, fields, key))
        except Denied:
            return manifest  # a read-only process needs no new columns; a put of one is refused

    def allow_null(self, name: str) -> Manifest:
        """Make a column nullable.   Raises: Missing; Invalid.   Cost: 1 GET + 1 PUT and the descriptions."""
        return self._changed(lambda schema: nullable(schema, name))

    def _changed(self, new: Callable[[Schema], Schema | None]) -> Manifest:
        def change(now: Manifest | None) -> Manifest | None:
            schema = new(now.schema) if now else None
            if now is None or schema is None:
                return None
            return msgspec.structs.replace(now, fields=schema.fields, schema_version=now.schema_version + 1)

        seen = self._cell.update(change)
        if seen is None:
            raise self._missing()
        if seen.value.described != seen.value.schema_version:
            write_descriptions(self._storage, self._name, seen.value)
        return seen.value

    def _create(self) -> Manifest:
        """Create a new index: empty shards, then the manifest, then the descriptions.

        Raises: Corrupt or Conflict if there are records of something else: nothing is written then; as `make_room`.
        Cost: 1 LIST, 1 PUT a shard + 3 PUTs and 3 GETs; for a name that was dropped as `make_room`.
        Crash: without a manifest there is no index; creating it again completes it.
        """
        manifest = self.planned()
        make_room(self._storage)
        if next(self._storage.store.list(self._storage.keys.root), None) is not None:
            self._check_empty()
        if self.put_shards(manifest):
            self._check_empty()
        return self.complete(manifest)

    def planned(self) -> Manifest:
        """The manifest of a new index of this type.   Raises: Missing without a type; Invalid without a key."""
        if self._typed.fields is None:
            raise self._missing()
        if self._typed.key is None:
            raise Invalid(f"the index {self._name!r} is new: say which field is its key", hint="key=...")
        return fresh(with_own(self._typed.fields, self._typed.key), self._depth or DEPTH)

    def complete(self, manifest: Manifest, *, instead: Version | None = None) -> Manifest:
        """Write the manifest of a new index, after its shards: from now on it exists. Then describe it.

        `instead`: the version of another program's file that lies in its place.
        Returns the current manifest, if another process was first.   Cost: 3 PUTs and 2 GETs.
        """
        try:
            if instead is None:
                self._cell.create(manifest)
            else:
                self._cell.replace_unreadable(manifest, instead)
        except Conflict:
            return self.load()
        write_descriptions(self._storage, self._name, manifest)
        return manifest

    def put_shards(self, manifest: Manifest) -> bool:
        """Create the empty shards that are missing. Returns whether some existed already.

        A conflict does not prove that a shard exists: a store may refuse concurrent puts (F15). So it is looked up.
        Raises: Unavailable if a shard can neither be created nor found.   Cost: 1 PUT each; 1 HEAD for each conflict.
        """
        shards: Sequence[Key] = [self._storage.keys.shard(shard) for shard in shard_ids(manifest.depth)]
        some_were_there = False
        for _ in attempts(self._storage.runtime, pause_s=0):
            left: list[Key] = []
            for key, outcome in self._storage.store.put_many([Put(key, b"", Absent()) for key in shards]).items():
                if isinstance(outcome, Conflict):
                    some_were_there = True
                    if not self._storage.store.exists(key):
                        left.append(key)
                elif isinstance(outcome, LimpetError):
                    raise outcome
            if not left:
                return some_were_there
            shards = left
        raise Unavailable(f"{shards[0]} could not be created: the store refused it {TRIES_MAX} times", hint="try again")

    def _check_empty(self) -> None:
        """Check that existing shards are empty: another creation was interrupted, or is running now.

        Raises: Corrupt for records without a manifest.   Cost: 1 LIST per 1,000 shards, 2 LISTs, 1 GET.
        """
        store, keys = self._storage.store, self._storage.keys
        full = [stat.key for stat in store.list(keys.shards) if stat.size and stat.key.endswith(".usv")]
        waits = [stat.key for prefix in (keys.inbox, keys.packs) if (stat := next(store.list(prefix), None))]
        if (full or waits) and self._cell.read() is None:
            what = f"{many(len(full), 'shard')} with records" if full else "records that wait to be compiled"
            raise Corrupt(
                f"{keys.root} holds {what}, such as {(full or waits)[0]}, and no manifest; nothing was written",
                hint=f"another program's files: stop it, then `limpet index adopt {self._name} --quiesced` makes an "
                f"index of them; an index of Limpet's: restore {self._cell.key} from a backup",
            )

    def _missing(self) -> Missing:
        return Missing(
            f"there is no index {self._name!r}",
            hint='create it with a type: fleet.index(name, Type, key="...") or `limpet index create`',
        )

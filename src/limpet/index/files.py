"""Importing a file into an index, chunk by chunk, and exporting an index into a file, shard by shard.

An import can be killed at any moment, and is resumed where it was.

A chunk is a deterministic function of the file and the start time of the import: records without `updated_at` get the
start time plus a microsecond for each earlier chunk. So importing a chunk twice changes nothing, of two records with
one key the later in the file wins, and records that are put during the import are newer than imported ones. The
progress is stored in a cell of the index, and is deleted with it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec

from limpet.index.codec import DELETED, UPDATED_AT, Schema
from limpet.index.decide import rank
from limpet.index.formats import FORMATS, Chunk, ChunkLimits, Mark
from limpet.index.formats.api import Decode, DecodeMany
from limpet.index.index import Index
from limpet.index.reader import OnDamage, Reader
from limpet.index.values import stamp_text, stamp_time
from limpet.index.writer import AHEAD_MAX, TICK, FixedTimes, encoded, stamp_in
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.errors import Corrupt, Denied, Invalid
from limpet.kernel.records import YEARS, Count, Name, Text
from limpet.kernel.runtime import Runtime

TICK_RECORDS = 1000
CHECKED_RECORDS = 20_000
ENDS_BYTES = 64 << 10
CLOCK_NOW_S = -1.0
TOMBSTONES_IN = "usv"
"""The only format with tombstones: Limpet's own lines."""


@dataclass(frozen=True, slots=True)
class ChunkOrder:
    """How to import a chunk: its format, the stamp of records without one, and whether to skip invalid records."""

    format: str
    at: datetime
    skip_bad: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that cannot be imported: the error with its position in the file, and its bytes."""

    why: str
    kept: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """How many records of a chunk were written, and those that were skipped."""

    records: int
    bad: tuple[Bad, ...]


ChunkJob = Callable[[Chunk, ChunkOrder], Taken]
"""`take` for one index, in any process; `limpet.app` creates one that can be pickled."""


def take(index: Index[Any], chunk: Chunk, order: ChunkOrder, tick: Callable[[int], None] | None = None) -> Taken:
    """Write the records of a chunk. Of several with one key the one with the greatest `updated_at` is written, or, of
    those without one, the last. `tick` is called periodically with the number of records read.

    Raises: Invalid for the first invalid record, unless they are skipped; nothing of the chunk is written then.
    Cost: at most 1 PUT for each shard touched.   Crash: some are written; importing the chunk again completes it.
    """
    winners, taken = _encoded(index.manifest.schema, chunk, order, tick)
    index.put_lines(winners)
    return taken


def check_file(schema: Schema, stream: IO[bytes], format: str, at: datetime) -> int:
    """Read a whole file as an import into an index with that schema would at that time; the number of its records.

    Raises: Invalid for the first invalid record.
    """
    form = FORMATS[format]
    head = form.head(stream)
    form.decoder(head.names, schema)
    records = 0
    for chunk in form.chunks(stream, head, head.start, ChunkLimits(CHECKED_RECORDS)):
        records += _encoded(schema, chunk, ChunkOrder(format, at, False))[1].records
    stream.seek(0)
    return records


def _encoded(
    schema: Schema, chunk: Chunk, order: ChunkOrder, tick: Callable[[int], None] | None = None
) -> tuple[dict[str, bytes], Taken]:
    """The lines of a chunk by their keys, as `take` writes them."""
    form = FORMATS[order.format]
    decode, decode_many = form.decoder(chunk.names, schema), form.bulk_decoder(chunk.names, schema)
    times = FixedTimes(stamp_text(order.at), order.at + AHEAD_MAX)
    winners: dict[str, bytes] = {}
    bad: list[Bad] = []
    records = looked_at = 0

    def one_by_one(rows: Sequence[tuple[int, Any]]) -> Iterator[tuple[str, bytes]]:
        for number, raw in rows:
            try:
                yield _line(schema, decode, raw, order, times, where=f"{form.noun} {number}")
            except Invalid as error:
                if not order.skip_bad:
                    raise
                bad.append(Bad(str(error), form.aside(chunk.names, raw)))

    rows = form.rows(chunk)
    while some := [*islice(rows, TICK_RECORDS)]:
        if tick is not None and looked_at:
            tick(looked_at)
        fast = _lines(schema, decode_many, [raw for _, raw in some], order, times)
        if fast is not None and winners.keys().isdisjoint(by_key := dict(fast)) and len(by_key) == len(some):
            winners |= by_key
            records += len(some)
            looked_at += len(some)
            continue
        for key, line in fast or one_by_one(some):
            standing = winners.get(key)
            if (
                standing is None
                # all records without `updated_at` have the same stamp: of those the last in the file wins
                or schema.stamp_of(line) == schema.stamp_of(standing) == times.common
                or rank(line, schema.shape) > rank(standing, schema.shape)
            ):
                winners[key] = line
            records += 1
        looked_at += len(some)
    return winners, Taken(records, tuple(bad))


def _lines(
    schema: Schema, decode: DecodeMany, raws: Sequence[Any], order: ChunkOrder, times: FixedTimes
) -> Sequence[tuple[str, bytes]] | None:
    """The same as `_line` for each record, by columns; None if one may be invalid, or a tombstone."""
    if order.format == TOMBSTONES_IN:
        return None
    try:
        columns = decode(raws)
        batch = encoded(schema, columns, len(raws), times) if columns is not None else None
    except Invalid:
        return None
    return [*zip(batch.keys, batch.lines, strict=True)] if batch else None


def _line(
    schema: Schema, decode: Decode, raw: Any, order: ChunkOrder, times: FixedTimes, *, where: str
) -> tuple[str, bytes]:
    """The key and the line of a record.   Raises: Invalid, with the position in the file."""
    try:
        values = decode(raw)
        key = values.get(schema.key)
        if key is None:
            raise Invalid(f"field {schema.key!r}: expected the key, got nothing")
        text = schema.key_text(key)
    except Invalid as error:
        raise Invalid(f"{where}: {error}", hint=error.hint) from None
    at = values.get(UPDATED_AT)
    stamp = times.common if at is None else stamp_in(at, times.latest, where=where)
    if order.format == TOMBSTONES_IN and values.pop(DELETED, False):
        return text, schema.tombstone(text, stamp)
    return text, schema.line(values, stamp, where=where)


class ImportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an import: the fields of its cell. Everything before `position` is in the index.

    `bad` records were skipped; they are the first `bad_bytes` bytes of `bad_file`.
    """

    file: Text
    format: Name
    began_at: Name
    position: Count = 0
    number: Count = 0
    chunks: Count = 0
    records: Count = 0
    bad: Count = 0
    bad_bytes: Count = 0
    bad_file: Text = ""
    done: bool = False

    @property
    def mark(self) -> Mark:
        """Where the next chunk begins."""
        return Mark(self.position, self.number)


def identity(stream: IO[bytes], format: str) -> str:
    """A digest that identifies a file: of its size, modification time, first and last 64 KiB, and format."""
    about = os.fstat(stream.fileno())
    mixed = hashlib.sha256(f"{format} {about.st_size} {about.st_mtime_ns} ".encode())
    for at in (0, max(0, about.st_size - ENDS_BYTES)):
        stream.seek(at)
        mixed.update(stream.read(ENDS_BYTES))
    stream.seek(0)
    return mixed.hexdigest()[:32]


class Import:
    """The import of one file.

    Raises: Invalid for a file whose fields do not match the index, before anything is written.
    Cost: 1 GET + 1 PUT to begin, 1 swap (a GET and a PUT) after each chunk.
    """

    def __init__(
        self,
        index: Index[Any],
        stream: IO[bytes],
        *,
        file: str,
        format: str,
        limits: ChunkLimits = ChunkLimits(),
        id: str | None = None,
        restart: bool = False,
        skip_bad: Path | None = None,
    ) -> None:
        self._form = FORMATS[format]
        self._stream = stream
        self._limits = limits
        self._head = self._form.head(stream)
        self._form.decoder(self._head.names, index.manifest.schema)
        storage = self._storage = index.storage
        self._cell = (
            Cell(storage.store, storage.keys.import_(id), struct_codec(ImportRecord), storage.runtime) if id else None
        )
        found = self._found(restart)
        self.resumed = found is not None and found.number > self._head.start.number
        began_at = stamp_text(storage.store.now(max_age_s=CLOCK_NOW_S)) if found is None else found.began_at
        start = self._head.start
        self.state = found or ImportRecord(
            file=file, format=format, began_at=began_at, position=start.position, number=start.number
        )
        self._aside = (
            _BadRecordFile(skip_bad, self._form.aside(self._head.names, None), self.state) if skip_bad else None
        )
        if found is None or self._aside:
            self._save(bad_file=self._aside.name if self._aside else self.state.bad_file)
        self._here = partial(take, index)
        self.under_way = 0
        """How many records of the current chunk have been read."""
        self._end = self.state.mark

    def run(
        self,
        job: ChunkJob | None = None,
        executor: Executor | None = None,
        at_once: int = 1,
        tick: Callable[[], None] | None = None,
    ) -> Iterator[Taken]:
        """Import the file; yields after each chunk, once `state` includes it. `tick` is called within chunks.

        With an `executor`, `job` runs there, for at most `at_once` + 1 chunks concurrently.
        Raises: Invalid for an invalid record; any write error. Chunks in `state` are imported; later ones may be.
        """
        if self._aside:
            self._aside.begin()
        for end, taken in self._taken(job or partial(self._here, tick=partial(self._tick, tick)), executor, at_once):
            self.under_way = 0
            kept = self._aside.add(taken.bad) if self._aside else self.state.bad_bytes
            self._save(
                position=end.position,
                number=end.number,
                chunks=self.state.chunks + 1,
                records=self.state.records + taken.records,
                bad=self.state.bad + len(taken.bad),
                bad_bytes=kept,
            )
            yield taken
        self._save(done=True)

    @property
    def position(self) -> int:
        """The approximate position in the file of the last record read, `under_way` included."""
        state, end = self.state, self._end
        share = min(1.0, self.under_way / max(end.number - state.number, 1))
        return state.position + int(share * max(end.position - state.position, 0))

    def _tick(self, tick: Callable[[], None] | None, records: int) -> None:
        self.under_way = records
        if tick is not None:
            tick()

    def _found(self, restart: bool) -> ImportRecord | None:
        """The state to resume from.   Raises: Corrupt."""
        if self._cell is None:
            return None
        try:
            seen = self._cell.read()
            if seen is not None:
                self._check_state(seen.value, self._cell.key)
        except Corrupt as error:
            if not restart:
                raise Corrupt(str(error), hint="--restart begins the import again") from None
            self._storage.remove([self._cell.key])
            return None
        return None if seen is None or restart or seen.value.done else seen.value

    def _check_state(self, found: ImportRecord, key: str) -> None:
        try:
            year = stamp_time(found.began_at).year
        except ValueError:
            year = 0
        if FORMATS.get(found.format) is not self._form or year not in YEARS:
            raise Corrupt(f"{key} is not a valid state of this import: {found.format!r}, begun {found.began_at!r}")

    def _orders(self) -> Iterator[tuple[Chunk, ChunkOrder]]:
        """The remaining chunks, each with a later stamp than the one before."""
        began_at = stamp_time(self.state.began_at)
        chunks = self._form.chunks(self._stream, self._head, self.state.mark, self._limits)
        for number, chunk in enumerate(chunks, self.state.chunks + 1):
            yield chunk, ChunkOrder(self.state.format, began_at + number * TICK, self._aside is not None)

    def _taken(self, job: ChunkJob, executor: Executor | None, at_once: int) -> Iterator[tuple[Mark, Taken]]:
        if executor is None:
            for chunk, order in self._orders():
                self._end = chunk.end
                yield chunk.end, job(chunk, order)
            return
        under_way: deque[tuple[Mark, Future[Taken]]] = deque()
        try:
            for chunk, order in self._orders():
                under_way.append((chunk.end, executor.submit(job, chunk, order)))
                if len(under_way) > at_once:
                    end, future = under_way.popleft()
                    yield end, future.result()
            while under_way:
                end, future = under_way.popleft()
                yield end, future.result()
        finally:
            for _, future in under_way:
                future.cancel()

    def _save(self, **changes: Any) -> None:
        mine = self.state = msgspec.structs.replace(self.state, **changes)
        if self._cell is None:
            return

        def change(now: ImportRecord | None) -> ImportRecord | None:
            # the same import may run twice; the one that is ahead has written the same lines
            same = now is not None and now.began_at == mine.began_at
            return None if same and now is not None and (now.done or now.number > mine.number) else mine

        self._cell.update(change)


class _BadRecordFile:
    """The file of skipped records. It has those up to the last imported chunk.

    Raises: Invalid for a file with content that this import did not write.
    """

    def __init__(self, path: Path, head: bytes, state: ImportRecord) -> None:
        self.name = os.path.abspath(path)
        self._path = path
        self._head = head
        self._size = state.bad_bytes
        if state.bad and state.bad_file not in ("", self.name):
            raise Invalid(
                f"the import began with --skip-bad {state.bad_file}", hint="name that file again, or use --restart"
            )
        there = path.stat().st_size if path.exists() else 0
        if there and (state.bad_file != self.name or there < self._size):
            raise Invalid(f"{path} is not empty", hint="name a new file for --skip-bad, or remove it")

    def begin(self) -> None:
        """Create the file, or truncate it to the size in the import's state."""
        self._append(b"" if self._size else self._head)

    def add(self, bad: tuple[Bad, ...]) -> int:
        """Append records, durably; returns the size of the file."""
        if bad:
            self._append(b"".join(each.kept for each in bad))
        return self._size

    def _append(self, data: bytes) -> None:
        try:
            with open(self._path, "ab") as file:
                file.truncate(self._size)
                self._size += file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            hint = "name another file for --skip-bad"
            raise Denied(f"cannot write {self._path}: {error.strerror}", hint=hint) from None


@dataclass(frozen=True, slots=True)
class Exported:
    """The progress of an export."""

    shards: int
    of_shards: int
    records: int


def export(index: Index[Any], stream: IO[bytes], format: str, on_damage: OnDamage | None = None) -> Iterator[Exported]:
    """Write every record, with `updated_at`, in the order of the shards; yields after each shard.

    Each record is as of some moment after the export began. Memory is bounded by the largest shard.
    With `on_damage`, damaged shards are skipped, as in `Reader.scan`.
    Raises: Corrupt, Unavailable: the output is incomplete then.   Cost: as `Index.scan`.
    """
    manifest = index.manifest
    shards = records = 0
    with FORMATS[format].write(stream, manifest.schema) as write:
        for lines in Reader(index.storage, manifest).scan(on_damage):
            write(lines)
            shards += 1
            records += len(lines)
            yield Exported(shards, 16**manifest.depth, records)


@contextmanager
def whole_file(path: Path, runtime: Runtime) -> Iterator[IO[bytes]]:
    """A file to write, which appears under its name only if the block succeeds.

    A pipe or a device is written to directly.
    Raises: Denied, if it cannot be written.   Crash: the old file or the new one; a hidden temporary file may remain.
    """
    try:
        path = path.resolve()
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            with open(path, "wb") as stream:
                yield stream
            return
        part = path.with_name(f".{path.name}.{runtime.new_id()}.part")
        try:
            with open(part, "xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
    except OSError as error:
        # F27: no incomplete file has the name
        raise Denied(
            f"cannot write {path}: {error.strerror}", hint="check the path and the free space on the disk"
        ) from None

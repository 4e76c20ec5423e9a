"""Importing a file into an index, chunk by chunk, and exporting an index into a file, shard by shard.

An import can be killed at any moment, and continues where it was.

What a chunk writes follows from the file and from when the import began, and from nothing else: records that bring no
`updated_at` get the time when the import began and a microsecond for each chunk before theirs. So a chunk that is taken
twice changes nothing, of two records with one key the later in the file wins, and what is put while the import runs is
later than what it brings. How far it has come is kept in a cell of the index: an index that is gone takes it along.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from limpet.cell import Cell, struct_codec
from limpet.errors import Corrupt, Denied, Invalid
from limpet.index.codec.lines import DELETED, UPDATED_AT, Schema, stamp_text, stamp_time, writer
from limpet.index.decide import rank
from limpet.index.formats import FORMATS, Chunk, ChunkLimits, Decode, Mark
from limpet.index.index import Index
from limpet.index.reader import OnDamage, Reader
from limpet.index.writer import AHEAD_MAX
from limpet.records import YEARS, Count, Name, Text
from limpet.runtime import Runtime

TICK = timedelta(microseconds=1)
TICK_RECORDS = 1000
ENDS_BYTES = 64 << 10
CLOCK_NOW_S = -1.0
_stamp = writer("datetime")
TOMBSTONES_IN = "usv"
"""The only format that says which records were deleted: Limpet's own lines."""


@dataclass(frozen=True, slots=True)
class ChunkOrder:
    """How a chunk is taken: from which format, as of when, and whether bad records are left out."""

    format: str
    at: datetime
    skip_bad: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that cannot be taken: its number in the file, why, what to do about it, and as it is kept."""

    number: int
    why: str
    hint: str
    kept: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a chunk."""

    records: int
    bad: tuple[Bad, ...]


ChunkJob = Callable[[Chunk, ChunkOrder], Taken]
"""`take` for one index, in whatever process; `limpet.app` makes one that can be pickled."""


def take(index: Index[Any], chunk: Chunk, order: ChunkOrder, tick: Callable[[int], None] | None = None) -> Taken:
    """Write the records of a chunk. Of several with one key the one with the greatest `updated_at` is written, and of
    those that bring none the last. `tick` is called now and then with the number of records read.

    Raises: Invalid for the first bad record, unless they are left out; nothing of the chunk is written then.
    Cost: at most 1 PUT for each shard touched.   Crash: some of them; taking the chunk again completes it.
    """
    schema, form = index.manifest.schema, FORMATS[order.format]
    decode = form.decoder(chunk.names, schema)
    common = stamp_text(order.at)
    winners: dict[str, bytes] = {}
    bad: list[Bad] = []
    records = 0
    for looked_at, (number, raw) in enumerate(form.rows(chunk)):
        if tick is not None and looked_at and looked_at % TICK_RECORDS == 0:
            tick(looked_at)
        try:
            key, line = _line(schema, decode, raw, f"{form.noun} {number}", order)
        except Invalid as error:
            if not order.skip_bad:
                raise
            bad.append(Bad(number, str(error), error.hint, form.aside(chunk.names, raw)))
            continue
        standing = winners.get(key)
        if standing is None or _wins(line, standing, schema, common):
            winners[key] = line
        records += 1
    index.put_lines(winners)
    return Taken(records, tuple(bad))


def _wins(line: bytes, standing: bytes, schema: Schema, common: str) -> bool:
    """Whether a later line of the file wins. All that bring no time have one in `common`: there the order decides."""
    if schema.stamp_of(line) == schema.stamp_of(standing) == common:
        return True
    return rank(line, schema.shape) > rank(standing, schema.shape)


def _line(schema: Schema, decode: Decode, raw: Any, where: str, order: ChunkOrder) -> tuple[str, bytes]:
    """The key and the line of a record.   Raises: Invalid, naming the place in the file."""
    try:
        values = decode(raw)
        stamp = _stamp_of(values.get(UPDATED_AT), order)
        key = values.get(schema.key)
        if key is None:
            raise Invalid(f"field {schema.key!r}: expected the key, got nothing")
        text = schema.key_text(key)
    except Invalid as error:
        raise Invalid(f"{where}: {error}", hint=error.hint) from None
    if order.format == TOMBSTONES_IN and values.pop(DELETED, False):
        return text, schema.tombstone(text, stamp)
    return text, schema.line(values, stamp, where=where)


def _stamp_of(at: Any, order: ChunkOrder) -> str:
    if at is None:
        return stamp_text(order.at)
    stamp = _stamp(at).decode()
    if at > order.at + AHEAD_MAX:
        raise Invalid(
            f"field {UPDATED_AT!r}: {stamp} is more than a day ahead of the store's clock",
            hint="a record from the future would hide every later put; correct it, or leave the field out",
        )
    return stamp


class ImportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far an import has come: the fields of its cell. Everything before `position` is in the index.

    `bad` records were left out; the first `bad_bytes` bytes of `bad_file` hold them.
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
    """A digest that identifies a file: of its size, when it was changed, its first and last 64 KiB, and its format."""
    about = os.fstat(stream.fileno())
    mixed = hashlib.sha256(f"{format} {about.st_size} {about.st_mtime_ns} ".encode())
    for at in (0, max(0, about.st_size - ENDS_BYTES)):
        stream.seek(at)
        mixed.update(stream.read(ENDS_BYTES))
    stream.seek(0)
    return mixed.hexdigest()[:32]


class Import:
    """One file on its way into an index.

    Raises: Invalid for a file whose fields are not those of the index, before anything is written.
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
        """How many records of the chunk that is being taken here have been looked at."""

    def run(
        self,
        job: ChunkJob | None = None,
        executor: Executor | None = None,
        at_once: int = 1,
        tick: Callable[[], None] | None = None,
    ) -> Iterator[Taken]:
        """Take it all; yields after each chunk, when `state` says that it is in. `tick` is called within chunks.

        With an `executor`, `job` is run there, for at most `at_once` chunks and one more at a time.
        Raises: Invalid for a bad record; whatever a write met. What `state` says is in stays, and the rest may be.
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

    def _tick(self, tick: Callable[[], None] | None, records: int) -> None:
        self.under_way = records
        if tick is not None:
            tick()

    def _found(self, restart: bool) -> ImportRecord | None:
        """The state to go on from.   Raises: Corrupt."""
        if self._cell is None:
            return None
        try:
            seen = self._cell.read()
            if seen is not None:
                self._demand_sense(seen.value, self._cell.key)
        except Corrupt as error:
            if not restart:
                raise Corrupt(str(error), hint="--restart begins the import again") from None
            self._storage.remove([self._cell.key])
            return None
        return None if seen is None or restart or seen.value.done else seen.value

    def _demand_sense(self, found: ImportRecord, key: str) -> None:
        """Go on only from a state that an import of this format wrote.   Raises: Corrupt."""
        try:
            year = stamp_time(found.began_at).year
        except ValueError:
            year = 0
        if FORMATS.get(found.format) is not self._form or year not in YEARS:
            raise Corrupt(f"{key} is no state of this import: {found.format!r}, begun {found.began_at!r}")

    def _orders(self) -> Iterator[tuple[Chunk, ChunkOrder]]:
        """The chunks that are left, each as of its own microsecond."""
        began_at = stamp_time(self.state.began_at)
        chunks = self._form.chunks(self._stream, self._head, self.state.mark, self._limits)
        for number, chunk in enumerate(chunks, self.state.chunks + 1):
            yield chunk, ChunkOrder(self.state.format, began_at + number * TICK, self._aside is not None)

    def _taken(self, job: ChunkJob, executor: Executor | None, at_once: int) -> Iterator[tuple[Mark, Taken]]:
        if executor is None:
            for chunk, order in self._orders():
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
            # the same import may run twice, and the one that is further on has brought the same lines
            same = now is not None and now.began_at == mine.began_at
            return None if same and now is not None and (now.done or now.number > mine.number) else mine

        self._cell.update(change)


class _BadRecordFile:
    """The file of bad records. It holds those that were left out up to the last chunk that is in.

    Raises: Invalid for a file with something in it that this import did not write.
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
            raise Invalid(f"{path} has something in it already", hint="name a new file for --skip-bad, or remove it")

    def begin(self) -> None:
        """Start the file, or cut it back to the size that the import's state records."""
        try:
            with open(self._path, "ab") as file:
                file.truncate(self._size)
                self._size += file.write(self._head) if not self._size else 0
        except OSError as error:
            raise self._denied(error) from None

    def add(self, bad: tuple[Bad, ...]) -> int:
        """Keep some more, durably; the size of the file."""
        if bad:
            try:
                with open(self._path, "ab") as file:
                    self._size += file.write(b"".join(each.kept for each in bad))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise self._denied(error) from None
        return self._size

    def _denied(self, error: OSError) -> Denied:
        return Denied(f"cannot write {self._path}: {error.strerror}", hint="name another file for --skip-bad")


@dataclass(frozen=True, slots=True)
class Exported:
    """How far an export has come."""

    shards: int
    of_shards: int
    records: int


def export(index: Index[Any], stream: IO[bytes], format: str, on_damage: OnDamage | None = None) -> Iterator[Exported]:
    """Write every record, `updated_at` included, in the order of the shards; yields after each of them.

    Each record is as of some moment after the export began. Memory is bounded by the largest shard.
    Damaged shards are left out if there is an `on_damage`, as in `Reader.scan`.
    Raises: Corrupt, Unavailable: what was written then is not whole.   Cost: as `Index.scan`.
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
    """A file to write, which appears under its name when the block ends well, and not at all otherwise.

    A pipe or a device is written to directly.
    Raises: Denied, when the disk does not take it.   Crash: the old file or the new one; a hidden part may be left.
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
        # F27: nothing half-written is left under the name
        raise Denied(f"cannot write {path}: {error.strerror}", hint="check the path and the room on the disk") from None

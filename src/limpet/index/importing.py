"""Taking a file into an index, chunk by chunk. It can be killed at any moment, and goes on where it was.

What a chunk writes follows from the file and from when the import began, and from nothing else: a record that brings no
`updated_at` gets the time when the import began and a microsecond for each line before it. So a chunk that is taken
twice changes nothing, of two records with one key the later in the file wins, and what is put while the import runs is
later than what it brings (but for the first second of each million lines). How far it has come is kept in a cell of
the index: an index that is gone takes it along.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from limpet.cell import Cell, struct_codec
from limpet.errors import Denied, Invalid
from limpet.index.decide import rank
from limpet.index.formats import FORMATS, Chunk, Decode, Limits, Mark
from limpet.index.index import Index
from limpet.index.schema import DELETED, UPDATED_AT, Schema
from limpet.index.stamps import AHEAD_MAX
from limpet.index.values import stamp_text, stamp_time, writer

__all__ = ["Bad", "Import", "ImportRecord", "Job", "Order", "Taken", "identity", "take"]

TICK = timedelta(microseconds=1)
ENDS_BYTES = 64 << 10
CLOCK_NOW_S = -1.0

_stamp = writer("datetime")
TOMBSTONES_IN = "usv"
"""The only format that says which records were deleted: Limpet's own lines."""


@dataclass(frozen=True, slots=True)
class Order:
    """How the chunks of one import are taken: from which format, as of when, and whether bad records are left out."""

    format: str
    began_at: datetime
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


Job = Callable[[Chunk, Order], Taken]
"""`take` for one index, in whatever process; `limpet.app` makes one that can be pickled."""


def take(index: Index[Any], chunk: Chunk, order: Order) -> Taken:
    """Write the records of a chunk. Of several with one key the one with the greatest `updated_at` is written.

    Raises: Invalid for the first bad record, unless they are left out; nothing of the chunk is written then.
    Cost: at most 1 PUT for each shard touched.   Crash: some of them; taking the chunk again completes it.
    """
    schema, form = index.manifest.schema, FORMATS[order.format]
    decode = form.decoder(chunk.names, schema)
    winners: dict[str, bytes] = {}
    bad: list[Bad] = []
    records = 0
    for number, raw in form.rows(chunk):
        try:
            key, line = _line(schema, decode, raw, number, order)
        except Invalid as error:
            if not order.skip_bad:
                raise
            bad.append(Bad(number, str(error), error.hint, form.aside(chunk.names, raw)))
            continue
        standing = winners.get(key)
        if standing is None or rank(line, schema.shape) > rank(standing, schema.shape):
            winners[key] = line
        records += 1
    index.put_lines(winners)
    return Taken(records, tuple(bad))


def _line(schema: Schema, decode: Decode, raw: Any, number: int, order: Order) -> tuple[str, bytes]:
    """The key and the line of a record.   Raises: Invalid, naming the place in the file."""
    where = f"{FORMATS[order.format].noun} {number}"
    try:
        values = decode(raw)
        stamp = _stamp_of(values.get(UPDATED_AT), number, order)
        key = values.get(schema.key)
        if key is None:
            raise Invalid(f"field {schema.key!r}: expected the key, got nothing")
        text = schema.key_text(key)
    except Invalid as error:
        raise Invalid(f"{where}: {error}", hint=error.hint) from None
    if order.format == TOMBSTONES_IN and values.pop(DELETED, False):
        return text, schema.tombstone(text, stamp)
    return text, schema.line(values, stamp, where=where)


def _stamp_of(at: Any, number: int, order: Order) -> str:
    if at is None:
        return stamp_text(order.began_at + number * TICK)
    stamp = _stamp(at).decode()
    if at > order.began_at + AHEAD_MAX:
        raise Invalid(
            f"field {UPDATED_AT!r}: {stamp} is more than a day ahead of the store's clock",
            hint="a record from the future would hide every later put; correct it, or leave the field out",
        )
    return stamp


class ImportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far an import has come: the fields of its cell. Everything before `position` is in the index."""

    file: str
    format: str
    began_at: str
    position: int = 0
    number: int = 0
    records: int = 0
    bad: int = 0
    bad_bytes: int = 0
    done: bool = False

    @property
    def mark(self) -> Mark:
        """Where the next chunk begins."""
        return Mark(self.position, self.number)


def identity(stream: IO[bytes], format: str) -> str:
    """What tells a file from every other: its size, when it was changed, its first and last 64 KiB, and its format."""
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
        limits: Limits = Limits(),
        id: str | None = None,
        restart: bool = False,
        skip_bad: Path | None = None,
    ) -> None:
        self._form = FORMATS[format]
        self._stream = stream
        self._limits = limits
        self._head = self._form.head(stream)
        self._form.decoder(self._head.names, index.manifest.schema)
        storage = index.storage
        self._cell = (
            Cell(storage.store, storage.keys.import_(id), struct_codec(ImportRecord), storage.runtime) if id else None
        )
        found = self._cell.read() if self._cell and not restart else None
        self.resumed = found is not None and not found.value.done and found.value.number > self._head.start.number
        if found is not None and not found.value.done:
            self.state = found.value
        else:
            began_at = storage.store.now(max_age_s=CLOCK_NOW_S)
            start = self._head.start
            self.state = ImportRecord(
                file=file, format=format, began_at=stamp_text(began_at), position=start.position, number=start.number
            )
            if self._cell:
                self._cell.write(self.state)
        self._order = Order(format, stamp_time(self.state.began_at), skip_bad is not None)
        self._aside = _Aside(skip_bad, self._form.aside(self._head.names, None)) if skip_bad else None
        self._here = partial(take, index)

    def run(self, job: Job | None = None, executor: Executor | None = None, at_once: int = 1) -> Iterator[Taken]:
        """Take it all; yields after each chunk, when `state` says that it is in.

        With an `executor`, `job` is run there, for at most `at_once` chunks and one more at a time.
        Raises: Invalid for a bad record; whatever a write met. What `state` says is in stays, and the rest may be.
        """
        if self._aside:
            self._aside.begin(self.state.bad_bytes)
        for end, taken in self._taken(job or self._here, executor, at_once):
            kept = self._aside.add(taken.bad) if self._aside else self.state.bad_bytes
            self._save(
                position=end.position,
                number=end.number,
                records=self.state.records + taken.records,
                bad=self.state.bad + len(taken.bad),
                bad_bytes=kept,
            )
            yield taken
        self._save(done=True)

    def _taken(self, job: Job, executor: Executor | None, at_once: int) -> Iterator[tuple[Mark, Taken]]:
        chunks = self._form.chunks(self._stream, self._head, self.state.mark, self._limits)
        if executor is None:
            for chunk in chunks:
                yield chunk.end, job(chunk, self._order)
            return
        under_way: deque[tuple[Mark, Future[Taken]]] = deque()
        try:
            for chunk in chunks:
                under_way.append((chunk.end, executor.submit(job, chunk, self._order)))
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


class _Aside:
    """The file of bad records. It holds those that were left out up to the last chunk that is in."""

    def __init__(self, path: Path, head: bytes) -> None:
        self._path = path
        self._head = head
        self._size = 0

    def begin(self, size: int) -> None:
        """Start the file, or cut it back to what it held when the import was last told to be so far."""
        try:
            with open(self._path, "ab") as file:
                if file.tell() < size:
                    raise Invalid(
                        f"{self._path} is not the file that the import began with: it is too short",
                        hint="name the same file again, or begin anew with --restart",
                    )
                file.truncate(size)
                self._size = size
                if not size:
                    self._size = file.write(self._head)
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

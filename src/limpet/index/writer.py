"""Writing records: a `put` writes one object, a `put_many` at most one object per shard; and their stamps."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from itertools import islice, repeat
from typing import Any, Generic, TypeVar

from limpet.index.codec import UPDATED_AT, Columns, Schema, Typed
from limpet.index.decide import PACK_BYTES, digest, key_of, packed, shard_ids, shard_of, split
from limpet.index.storage import IndexStorage, Manifest
from limpet.index.values import END, all_in_utc, shown, stamp_text, stamp_texts, stamp_time
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Put, Store

READ_EVERY_S = 600.0
AHEAD_MAX = timedelta(days=1)
READ_NOW_S = -1.0
TICK = timedelta(microseconds=1)
AHEAD_KEPT = 100_000


class Floor:
    """The latest stamps of one process in one fleet, shared by all its handles: new stamps must exceed them."""

    def __init__(self, runtime: Runtime) -> None:
        self.mutex = runtime.mutex()
        self.at: datetime | None = None
        self.ahead: OrderedDict[tuple[str, str], datetime] = OrderedDict()
        """By index and key, a stamp that was read there and is later than all stamps issued so far."""


class Stamps:
    """The stamps of puts through one store.

    The store's clock is read every ten minutes, and advanced by the process's own clock. It is a lower bound: of two
    puts by two machines within about a second, either may be the later one. A put after a get of its key is always
    later.
    """

    def __init__(self, store: Store, runtime: Runtime, floor: Floor) -> None:
        self._store = store
        self._runtime = runtime
        self._floor = floor
        self._reading: tuple[datetime, float] | None = None

    def next(self, index: str, key: str) -> str:
        """A stamp later than every one before it, and than the last one that was read for `key`.

        Cost: 0; 1 PUT + 1 HEAD once in ten minutes.
        """
        return self.after(index, key, self.common())

    def common(self) -> str:
        """A stamp later than every one before it, for many records at once.   Cost: as `next`."""
        now = self._now()
        with self._floor.mutex:
            if self._floor.at is not None and now <= self._floor.at:
                now = self._floor.at + TICK
            self._floor.at = now
        return stamp_text(now)

    def after(self, index: str, key: str, stamp: str) -> str:
        """`stamp`, or a later one if a later stamp was read for `key`."""
        with self._floor.mutex:
            seen = self._floor.ahead.get((index, key))
            if seen is None or stamp_text(seen) < stamp:
                return stamp
            try:
                later = seen + TICK
            except OverflowError:
                raise Corrupt(
                    f"the record {key!r} has the greatest possible updated_at, so no put can be newer",
                    hint="remove it from its shard by hand; Limpet did not write it",
                ) from None
            self._floor.ahead[index, key] = later
            return stamp_text(later)

    def after_each(self, index: str, keys: Sequence[str], stamp: str) -> list[str]:
        """`after` for each key."""
        with self._floor.mutex:
            if not self._floor.ahead:
                return [stamp] * len(keys)
        return [self.after(index, key, stamp) for key in keys]

    def latest(self) -> datetime:
        """The latest `updated_at` that a record may have: a day ahead of the store's clock.   Cost: as `next`."""
        now = self._now()
        with self._floor.mutex:
            if self._floor.at is None or now > self._floor.at:
                self._floor.at = now
        return now + AHEAD_MAX

    def remember(self, index: str, stamps: Mapping[str, str]) -> None:
        """Remember stamps that this process has read or written, by key: a later put of the key must be newer."""
        floor = self._floor
        with floor.mutex:
            for key, stamp in stamps.items():
                at = stamp_time(stamp)
                if floor.at is None or at > floor.at:
                    kept = floor.ahead.pop((index, key), at)
                    floor.ahead[index, key] = max(kept, at)
                    if len(floor.ahead) > AHEAD_KEPT:
                        floor.ahead.popitem(last=False)

    def _now(self) -> datetime:
        """The store's time, read separately: other requests may have seen timestamps from the future."""
        reading = self._reading
        if reading is None or self._runtime.elapsed_s() - reading[1] >= READ_EVERY_S:
            now = self._store.now(max_age_s=READ_NOW_S)
            reading = self._reading = (now, self._runtime.elapsed_s())
        return reading[0] + timedelta(seconds=self._runtime.elapsed_s() - reading[1])


class Times:
    """The times of one call: the stamps of records without `updated_at`, and the latest allowed `updated_at`."""

    def __init__(self, stamps: Stamps, scope: str) -> None:
        self._stamps = stamps
        self._scope = scope

    @cached_property
    def common(self) -> str:
        """`Stamps.common`, called once."""
        return self._stamps.common()

    @cached_property
    def latest(self) -> datetime:
        """`Stamps.latest`, called once."""
        return self._stamps.latest()

    def after(self, keys: Sequence[str]) -> list[str]:
        """The stamp of each key's record: later than the last one that was read for it."""
        return self._stamps.after_each(self._scope, keys, self.common)


@dataclass(frozen=True, slots=True)
class FixedTimes:
    """The same for records of an import, which all have the stamp `common`."""

    common: str
    latest: datetime

    def after(self, keys: Sequence[str]) -> list[str]:
        """`common` for each key."""
        return [self.common] * len(keys)


def stamp_in(at: Any, latest: datetime, *, where: str) -> str:
    """The stamp of a record whose `updated_at` is `at`.

    Raises: Invalid unless it is a datetime with a time zone, and not after `latest`.
    """
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise Invalid(f"{where}: field {UPDATED_AT!r}: expected datetime with a time zone, got {shown(at)}")
    if at > latest:
        raise Invalid(
            f"{where}: field {UPDATED_AT!r}: {at} is more than a day ahead of the store's clock",
            hint="a record from the future would hide every later put; correct it, or leave updated_at out",
        )
    try:
        return stamp_text(at)
    except OverflowError:
        raise Invalid(f"{where}: field {UPDATED_AT!r}: UTC cannot express {at}") from None


def stamps_of(store: Store, runtime: Runtime, fleet: str) -> Stamps:
    """The stamps of puts through `store`. All handles of a process on one fleet share a `Floor`."""
    floor = runtime.shared.setdefault((Floor, fleet), Floor(runtime))
    return Stamps(store, runtime, floor)


R = TypeVar("R")
A = TypeVar("A")
CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Encoded records, in order.

    `own`: the `updated_at` that each record had, or None; None instead of a sequence if no stamp is ahead of the
    store's clock, so that none must be remembered.
    """

    keys: Sequence[str]
    lines: Sequence[bytes]
    own: Sequence[str | None] | None


def chunks(items: Iterable[A]) -> Iterator[list[A]]:
    """The items in chunks: large enough for a batch, small enough for a processor's cache."""
    left = iter(items)
    while some := [*islice(left, CHUNK)]:
        yield some


ALONE = "the record"
"""What error messages call a single record; those of a batch are numbered."""


class RecordEncoder(Generic[R]):
    """Encodes records as lines, one or many."""

    def __init__(self, schema: Schema, typed: Typed[R]) -> None:
        self._schema = schema
        self._typed = typed

    def one(self, record: R | Mapping[str, Any], times: Times, where: str) -> tuple[str, str, bytes, bool]:
        """The key, stamp and line of a record, and whether the stamp is its own `updated_at`.   Raises: Invalid."""
        values = self._typed.values(record, where=where)
        value = values.get(self._schema.key)
        if value is None:
            raise Invalid(f"{where}: field {self._schema.key!r}: expected the key, got nothing")
        key = self._schema.key_text(value)
        if where:
            where = f"{where} {key!r}" if where == ALONE else f"{where} ({key!r})"
        stamp, is_own = _stamp(key, values.get(UPDATED_AT), times, where)
        return key, stamp, self._schema.line(values, stamp, where=where), is_own

    def one_by_one(self, records: Iterable[R | Mapping[str, Any]], first: int, times: Times) -> EncodedRecords:
        """Encode records one by one; `first` is the number of the first.   Raises: Invalid, with the number."""
        keys, lines, own = list[str](), list[bytes](), list[str | None]()
        for number, record in enumerate(records, first):
            try:
                key, stamp, line, is_own = self.one(record, times, "")
            except Invalid:
                self.one(record, times, f"record {number}")  # raises the same error, with the record's number
                raise
            keys.append(key)
            lines.append(line)
            own.append(stamp if is_own else None)
        return EncodedRecords(keys, lines, own)

    def in_columns(self, records: Sequence[R | Mapping[str, Any]], times: Times) -> EncodedRecords | None:
        """The same as `one_by_one`, much faster; None if a record may be invalid."""
        try:
            return encoded(self._schema, self._typed.columns(records), len(records), times)
        except Invalid:
            return None


def encoded(schema: Schema, columns: Columns, number: int, times: Times | FixedTimes) -> EncodedRecords | None:
    """Encode so many records by their columns; None for a column that the index does not have.

    Raises: Invalid if a record is invalid, without saying which.
    """
    nothing = [None] * number
    given = {field.name: columns.get(field.name, nothing) for field in schema.columns}
    if not columns.keys() <= given.keys():
        return None
    keys = schema.key_texts(given[schema.key])
    brought = given.pop(UPDATED_AT)
    own: Sequence[str | None] | None = None
    if {*map(type, brought)} == {type(None)}:
        stamps: Sequence[str] = times.after(keys)
    elif all_in_utc(brought) and (newest := max(brought)) <= times.latest:
        stamps = stamp_texts(brought)
        # a stamp that is not ahead of the store's clock need not be remembered: `Stamps.remember` would not keep it
        own = stamps if newest > times.latest - AHEAD_MAX else None
    else:
        each = [_stamp(key, at, times, "") for key, at in zip(keys, brought, strict=True)]
        stamps, own = [stamp for stamp, _ in each], [stamp if is_own else None for stamp, is_own in each]
    return EncodedRecords(keys, schema.bulk_lines([*given.values()], stamps), own)


def _stamp(key: str, brought: Any, times: Times | FixedTimes, where: str) -> tuple[str, bool]:
    """The stamp of a record with this `updated_at`, and whether it is its own.   Raises: Invalid."""
    if brought is not None:
        return stamp_in(brought, times.latest, where=where), True
    return times.after([key])[0], False


_Shards = defaultdict[int, dict[bytes, bytes]]
"""Lines by the number of their shard and the digest of their key."""


class RecordWriter(Generic[R]):
    """Writes records as objects that wait for a compiler. All checks are made before the first write."""

    def __init__(self, storage: IndexStorage, manifest: Manifest, typed: Typed[R], stamps: Stamps) -> None:
        self._storage = storage
        self._depth = manifest.depth
        self._schema = manifest.schema
        self._stamps = stamps
        self._scope = storage.keys.root
        self._encoder = RecordEncoder(self._schema, typed)

    def put(self, record: R | Mapping[str, Any]) -> None:
        """Write one record.   Raises: Invalid; OutcomeUnknown.   Cost: 1 PUT.   Crash: written or not."""
        key, stamp, line, is_own = self._encoder.one(record, Times(self._stamps, self._scope), ALONE)
        self._single(key, stamp, line)
        if is_own:
            self._stamps.remember(self._scope, {key: stamp})

    def delete(self, key: Any) -> None:
        """Write a tombstone, which hides every record of the key with an earlier or equal stamp.   Cost: 1 PUT."""
        text = self._schema.key_text(key)
        stamp = self._stamps.next(self._scope, text)
        self._single(text, stamp, self._schema.tombstone(text, stamp))

    def put_many(self, records: Iterable[R | Mapping[str, Any]]) -> int:
        """Write many records; of two with one key the last one wins. Returns the number of keys.

        Nothing is written unless every record is valid. Raises: Invalid; OutcomeUnknown or Unavailable, when some may
        have been written: put them again.
        Cost: at most 1 PUT for each shard touched.   Crash: any subset of the objects may be written.
        """
        times = Times(self._stamps, self._scope)
        shards: _Shards = defaultdict(dict)
        own: dict[str, str | None] = {}
        first = 1
        for some in chunks(records):
            batch = self._encoder.in_columns(some, times) or self._encoder.one_by_one(some, first, times)
            self._gather(shards, batch.keys, batch.lines)
            if batch.own or own:
                own.update(zip(batch.keys, batch.own or repeat(None), strict=False))
            first += len(some)
        self._write(shards)
        self._stamps.remember(self._scope, {key: stamp for key, stamp in own.items() if stamp})
        return sum(map(len, shards.values()))

    def put_lines(self, lines: Mapping[str, bytes]) -> None:
        """Write valid lines, by key.   Cost and crash: as `put_many`."""
        shards: _Shards = defaultdict(dict)
        self._gather(shards, lines, lines.values())
        self._write(shards)

    def _single(self, key: str, stamp: str, line: bytes) -> None:
        shard = shard_of(digest(key.encode()), self._depth)
        at = self._storage.keys.single(shard, key, stamp, self._storage.runtime.new_id())
        self._storage.add(at, line + END)

    def _gather(self, shards: _Shards, keys: Iterable[str], lines: Iterable[bytes]) -> None:
        """Add lines to their shards; of two with one key the last one wins."""
        above = 16 - 4 * self._depth
        for key, line in zip(keys, lines, strict=True):
            place = sha256(key.encode()).digest()
            shards[(place[0] << 8 | place[1]) >> above][place] = line

    def _write(self, shards: _Shards) -> None:
        ids = shard_ids(self._depth)
        self._storage.add_many(
            [self._object(ids[number], part) for number, lines in shards.items() for part in split(lines, PACK_BYTES)]
        )

    def _object(self, shard: str, lines: Mapping[bytes, bytes]) -> Put:
        """A pack; for one line a single, which readers of other records need not read."""
        id_ = self._storage.runtime.new_id()
        if len(lines) > 1:
            return Put(self._storage.keys.pack(shard, id_), packed(lines, self._schema.shape))
        [line] = lines.values()
        key = key_of(line, self._schema.shape).decode()
        return Put(self._storage.keys.single(shard, key, self._schema.stamp_of(line), id_), line + END)

"""What every store promises, the values that pass through it, and what all stores share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NewType, TypeVar

import msgspec

from limpet.kernel.errors import Conflict, Corrupt, LimpetError, Missing, NotModified
from limpet.kernel.keys import Key, clock_key
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.runtime import FAN_OUT_MAX, Runtime
from limpet.kernel.wording import many

A = TypeVar("A")
B = TypeVar("B")

CLOCK_SLOTS = 16

Version = NewType("Version", str)


class Always(msgspec.Struct, frozen=True):
    """Put unconditionally: create the object or replace it."""


class Absent(msgspec.Struct, frozen=True):
    """Put only if there is no object of that name."""


class Match(msgspec.Struct, frozen=True):
    """Put only if the object has exactly this version."""

    version: Version


When = Always | Absent | Match


class Stat(msgspec.Struct, frozen=True):
    """The metadata of an object, as a listing or a HEAD returns it."""

    key: Key
    size: int
    version: Version
    modified: datetime


class Blob(msgspec.Struct, frozen=True):
    """Bytes of an object and the version that they belong to. `size` is the size of the whole object, also for a
    range."""

    data: bytes
    version: Version
    modified: datetime
    size: int


class Put(msgspec.Struct, frozen=True):
    """One write of a `put_many`."""

    key: Key
    data: bytes
    when: When = Always()


class StoreClock:
    """A lower bound of the store's clock (F13, F14): the newest LastModified seen, plus the time since then on this
    machine's monotonic clock.

    The store stamped that LastModified before this process saw it, so the sum never exceeds the store's time while both
    clocks run at the same rate. A LastModified in whole seconds is rounded down, so it stays a lower bound.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sample: tuple[datetime, float] | None = None
        self.floor = datetime.min.replace(tzinfo=UTC)
        """What was modified until then, as most objects were, need not be observed."""

    def observe(self, modified: datetime) -> None:
        """Take note of a LastModified in an answer."""
        bound = self.read(max_age_s=None)
        if bound is None or modified > bound:
            self.reset(modified)
        else:
            self.floor = bound

    def reset(self, modified: datetime) -> None:
        """Replace the sample by the LastModified of an object that was written just now, even if it is lower."""
        self._sample = (modified, self._runtime.elapsed_s())
        self.floor = modified

    def read(self, *, max_age_s: float | None) -> datetime | None:
        """The bound; None when nothing was seen, or nothing within `max_age_s`."""
        if self._sample is None:
            return None
        modified, seen_at_s = self._sample
        age_s = self._runtime.elapsed_s() - seen_at_s
        if max_age_s is not None and age_s > max_age_s:
            return None
        return modified + timedelta(seconds=age_s)


class Store(ABC):
    """Bytes under names, with conditional writes. The same behaviour on a directory, in memory and in a bucket.

    Every call may raise `Unavailable` (back off), `Denied`, or `Invalid` (a key no store can hold).
    """

    at_once = FAN_OUT_MAX
    """Recommended concurrency of the batch operations."""

    far = False
    """Whether a request takes milliseconds, as in a bucket. Callers then send requests concurrently where they can."""

    conflict_is_final = False
    """Whether a `Conflict` proves that no copy of the put landed. False where requests cross a network: a proxy may
    send one twice, and the reply may be that to the second copy (F1)."""

    def __init__(self, runtime: Runtime, clock: StoreClock | None = None) -> None:
        self._runtime = runtime
        self._clock = clock or StoreClock(runtime)

    @abstractmethod
    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        """The object, or bytes `[start, stop)` of it (a stop past the end is clipped).

        An object of more than `size_max` bytes is refused before its bytes are read, so that one large object cannot
        exhaust the memory of its readers. Readers of larger kinds name their own limit; a range is its own limit.
        Raises: Missing; Corrupt (size_max); Conflict (if_match); NotModified (if_none_match); Invalid (a range that
        starts past the end; also for a bucket that does not exist, so that a wrong URL does not look like an empty
        store).
        Cost: 1 GET; a range moves only its own bytes.
        """

    @abstractmethod
    def head(self, key: Key) -> Stat:
        """The object's size, version and time, without its bytes.   Raises: Missing.   Cost: 1 HEAD."""

    def exists(self, key: Key) -> bool:
        """Whether there is such an object.   Cost: 1 HEAD."""
        try:
            self.head(key)
        except Missing:
            return False
        return True

    @abstractmethod
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """Write the whole object, atomically and durably, if `when` holds; returns the new version.

        Raises: Conflict, when the store answers that the condition does not hold. An earlier copy of the same request
        may be the cause, so `kernel/store/outcome.py` reads the object back. OutcomeUnknown, when no clear answer came.
        Cost: 1 PUT. Crash: the old object or the new one, never a part of one.
        """

    @abstractmethod
    def delete(self, key: Key) -> None:
        """Remove the object. It is no error if it does not exist.   Cost: 1 DELETE."""

    def delete_in_order(self, keys: Sequence[Key]) -> None:
        """Remove objects of one folder whose names are no longer used, in this order: each after the one before it has
        been deleted durably.

        A name is no longer used if no process acts on the outcome of a write to it. A concurrent swap of one of them
        may still succeed after the delete and restore the object. The process that swaps must then learn from another
        object that the name is no longer used, and delete it.
        Raises: as `delete`; the objects after the one that failed are not deleted.
        Cost: 1 DELETE each, one after the other.   Crash: the first ones are deleted, the others are not.
        """
        for key in keys:
            self.delete(key)

    @abstractmethod
    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """The objects below `prefix/` in the byte order of their keys, lazily; with `after`, those with a greater key.

        A listing is not a snapshot: objects that change meanwhile may or may not be in it (F22).
        Cost: 1 LIST per 1,000 objects.
        """

    @abstractmethod
    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """Up to `n` objects below `prefix/`, starting at a random key, in any order.   Cost: 1 or 2 LISTs."""

    @abstractmethod
    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """The names of the folders directly below `prefix/`, sorted.   Cost: 1 LIST per 1,000 entries.

        Like `list`, it is not a snapshot: a folder that has become empty may be in it for a while.
        """

    def change_token(self, prefix: str) -> str | None:
        """A text that changes when a name directly below `prefix/` is added or removed; None if it would cost a
        request.

        It may also change without such a change, and miss one that happens during the call.   Cost: no request.
        """
        return None

    def get_many(
        self, keys: Iterable[Key], *, size_max: int | None = RECORD_BYTES_MAX
    ) -> Mapping[Key, Blob | LimpetError]:
        """Each object, or the error of its read; `size_max` as in `get`.

        Cost: 1 GET each, at most `at_once` at a time.
        """
        return self._each(lambda key: key, lambda key: self.get(key, size_max=size_max), keys)

    def put_many(self, puts: Iterable[Put]) -> Mapping[Key, Version | LimpetError]:
        """Each new version, or the error of its write.   Cost: 1 PUT each, at most `at_once` at a time."""
        return self._each(lambda put: put.key, lambda put: self.put(put.key, put.data, when=put.when), puts)

    def delete_many(self, keys: Iterable[Key]) -> Mapping[Key, LimpetError | None]:
        """Delete each; returns None or the error of each (F20).   Cost: 1 DELETE each, at most `at_once` at a time."""
        return self._each(lambda key: key, self.delete, keys)

    def _each(
        self, key_of: Callable[[A], Key], call: Callable[[A], B], items: Iterable[A]
    ) -> dict[Key, B | LimpetError]:
        def one(item: A) -> tuple[Key, B | LimpetError]:
            try:
                return key_of(item), call(item)
            except LimpetError as error:
                return key_of(item), error

        return dict(self._runtime.fan_out(one, items, at_once=self.at_once))

    def now(self, *, max_age_s: float | None = None) -> datetime:
        """A lower bound of the store's own clock: the newest LastModified seen, plus the time since on our clock.

        Cost: 0; if nothing was seen yet, or the last reading is older than `max_age_s`, 1 PUT + 1 HEAD.
        """
        bound = self._clock.read(max_age_s=max_age_s)
        if bound is not None:
            return bound
        key = clock_key(self._runtime.rng.randrange(CLOCK_SLOTS))
        self.put(key, b"{}")
        modified = self.head(key).modified
        self._clock.reset(modified)
        return modified


class WrappedStore(Store):
    """A store that forwards to another one, `inner`. With the same runtime, both use one `StoreClock`.

    `_send` is called before each request; a wrapper overrides it to count, delay or refuse requests.
    """

    def __init__(self, inner: Store, runtime: Runtime) -> None:
        super().__init__(runtime, inner._clock if inner._runtime is runtime else None)
        self.inner = inner
        self.at_once = inner.at_once
        self.conflict_is_final = inner.conflict_is_final
        self.far = inner.far

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        full = self._send("get", key)
        blob = self.inner.get(full, range=range, if_match=if_match, if_none_match=if_none_match, size_max=size_max)
        return self._received(blob)

    def head(self, key: Key) -> Stat:
        return self._seen(self.inner.head(self._send("head", key)))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        return self.inner.put(self._send("put", key, size=len(data)), data, when=when)

    def delete(self, key: Key) -> None:
        self.inner.delete(self._send("delete", key))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        return map(self._seen, self.inner.list(self._send("list", Key(prefix)), after=after))

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        return [*map(self._seen, self.inner.sample(self._send("list", Key(prefix)), n))]

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        return self.inner.list_dirs(self._send("list", Key(prefix)))

    def change_token(self, prefix: str) -> str | None:
        return self.inner.change_token(prefix)

    def _send(self, verb: str, key: Key, *, size: int = 0) -> Key:
        """A request is about to be sent, with `size` bytes; returns the key, or the prefix of a listing, in `inner`."""
        return key

    def _received(self, blob: Blob) -> Blob:
        """An object was read."""
        if blob.modified > self._clock.floor:
            self._clock.observe(blob.modified)
        return blob

    def _seen(self, stat: Stat) -> Stat:
        """An object was listed, or its metadata read."""
        if stat.modified > self._clock.floor:
            self._clock.observe(stat.modified)
        return stat


def check_read(key: Key, version: Version, if_match: Version | None, if_none_match: Version | None) -> None:
    """Check the conditions of a read against an object's version.   Raises: Conflict; NotModified."""
    if if_match is not None and version != if_match:
        raise Conflict(f"{key} is no longer version {if_match}")
    if if_none_match is not None and version == if_none_match:
        raise NotModified(f"{key} is still version {if_none_match}")


def check_put(key: Key, version: Version | None, when: When) -> None:
    """Check the condition of a put against the object's version, None if there is none.   Raises: Conflict."""
    match when:
        case Absent() if version is not None:
            raise Conflict(f"{key} exists")
        case Match(wanted) if version != wanted:
            raise Conflict(f"{key} is no longer version {wanted}")


def check_size(key: Key, size: int, size_max: int | None) -> None:
    """Refuse an object that is larger than its reader allows.   Raises: Corrupt."""
    if size_max is not None and size > size_max:
        raise Corrupt(f"{key} has {many(size, 'byte')}, more than the {size_max:,} that it may have")


def batched(
    items: Iterable[A], size_of: Callable[[A], int], *, size: int, count: int | None = None
) -> Iterator[list[A]]:
    """The items in batches of at most `count` items and `size` bytes; an item of more bytes is a batch by itself."""
    batch: list[A] = []
    total = 0
    for item in items:
        more = size_of(item)
        if batch and (len(batch) == count or total + more > size):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += more
    if batch:
        yield batch

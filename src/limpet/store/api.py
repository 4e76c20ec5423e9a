"""What every store promises, the values that pass through it, and what all stores share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NewType, TypeVar

from limpet.errors import Corrupt, LimpetError
from limpet.keys import Key, clock_key
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import FAN_OUT_MAX, Runtime
from limpet.store.clock import StoreClock

A = TypeVar("A")
B = TypeVar("B")

CLOCK_SLOTS = 16

Version = NewType("Version", str)


@dataclass(frozen=True, slots=True)
class Always:
    """Put whatever is there."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Put only if there is no object of that name."""


@dataclass(frozen=True, slots=True)
class Match:
    """Put only if the object has exactly this version."""

    version: Version


When = Always | Absent | Match


@dataclass(frozen=True, slots=True)
class Stat:
    """What a listing or a HEAD tells of an object."""

    key: Key
    size: int
    version: Version
    modified: datetime


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes of an object, with the version that they belong to. `size` is that of the whole object."""

    data: bytes
    version: Version
    modified: datetime
    size: int


@dataclass(frozen=True, slots=True)
class Put:
    """One write of a `put_many`."""

    key: Key
    data: bytes
    when: When = Always()


class Store(ABC):
    """Bytes under names, with conditional writes. The same behaviour on a directory, in memory and in a bucket.

    Every call may raise `Unavailable` (back off), `Denied`, or `Invalid` (a key no store can hold).
    """

    at_once = FAN_OUT_MAX
    """Recommended concurrency of the batch operations."""

    conflict_is_final = False
    """Whether a `Conflict` proves that no copy of the put landed. False where a request travels: a proxy may send it
    twice, and the reply may be that of the second copy (F1)."""

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
        starts past the end, or no such bucket: a mistake in the URL must not read as an empty store).
        Cost: 1 GET; a range moves only its own bytes.
        """

    @abstractmethod
    def head(self, key: Key) -> Stat:
        """The object's size, version and time, without its bytes.   Raises: Missing.   Cost: 1 HEAD."""

    @abstractmethod
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """Write the whole object, atomically and durably, if `when` holds; the new version.

        Raises: Conflict, when the store answers that the condition does not hold (also where an earlier copy of this
        very request made it so: `limpet.store.outcome` resolves that by reading back); OutcomeUnknown, when no clear
        answer came. Cost: 1 PUT. Crash: the old object or the new one, whole.
        """

    @abstractmethod
    def delete(self, key: Key) -> None:
        """Remove the object; one that is not there is fine.   Cost: 1 DELETE."""

    @abstractmethod
    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """The objects below `prefix/` in the byte order of their keys, lazily; `after` resumes behind that key.

        A hint, not the truth: what changes meanwhile may or may not show (F22). Cost: 1 LIST per 1,000 objects.
        """

    @abstractmethod
    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """Up to `n` objects below `prefix/` from a random place, order not promised.   Cost: 1 or 2 LISTs."""

    @abstractmethod
    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """The names of the folders just below `prefix/`, sorted.   Cost: 1 LIST per 1,000 entries.

        A hint, like `list`: a folder that was emptied may show for a while.
        """

    def change_token(self, prefix: str) -> str | None:
        """A text that changes when a name just below `prefix/` comes or goes; None if that would cost a request.

        It may change without need, and miss what happens at the very moment of asking.   Cost: no request.
        """
        return None

    def get_many(
        self, keys: Iterable[Key], *, size_max: int | None = RECORD_BYTES_MAX
    ) -> Mapping[Key, Blob | LimpetError]:
        """Each object or the error that its read met; `size_max` as in `get`.

        Cost: 1 GET each, at most `at_once` at a time.
        """
        return self._each(lambda key: key, lambda key: self.get(key, size_max=size_max), keys)

    def put_many(self, puts: Iterable[Put]) -> Mapping[Key, Version | LimpetError]:
        """Each new version or the error that its write met.   Cost: 1 PUT each, at most `at_once` at a time."""
        return self._each(lambda put: put.key, lambda put: self.put(put.key, put.data, when=put.when), puts)

    def delete_many(self, keys: Iterable[Key]) -> Mapping[Key, LimpetError | None]:
        """Delete each; None, or the error that it met (F20).   Cost: 1 DELETE each, at most `at_once` at a time."""
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
    """A store around another one. In one process, both read the same clock."""

    def __init__(self, inner: Store, runtime: Runtime) -> None:
        super().__init__(runtime, inner._clock if inner._runtime is runtime else None)
        self.inner = inner
        self.at_once = inner.at_once
        self.conflict_is_final = inner.conflict_is_final


def check_size(key: Key, size: int, size_max: int | None) -> None:
    """Refuse an object that is larger than its reader allows.   Raises: Corrupt."""
    if size_max is not None and size > size_max:
        raise Corrupt(f"{key} has {size} bytes, more than the {size_max} that it may have")

"""`Cell`: one small JSON object that everybody may write, one winner at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from limpet import records
from limpet.cell.decide import SCHEMA, Fence, Header, Write, admit, judge, next_header
from limpet.errors import Conflict, Corrupt, Invalid, Missing, OutcomeUnknown, Unsupported
from limpet.keys import Key
from limpet.runtime import Runtime
from limpet.store.api import Absent, Blob, Match, Store, Version
from limpet.store.outcome import Verdict, put_resolved

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

TRIES_MAX = 40
BACKOFF_S = 0.01
BACKOFF_MAX_S = 0.3
GONE = Version("replaced")


class Fenced(Protocol):
    """Anything that carries a fencing token: a `Lease`, or a bare `Fence`."""

    @property
    def lock(self) -> str:
        """The key of the lock."""

    @property
    def token(self) -> int:
        """The token that the lock gave."""


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How a cell's value becomes a struct of type `kind`, and is read back from the cell's bytes.

    The struct's fields stand beside the header's, so none of them may have the name of a field of the header.
    """

    kind: type[msgspec.Struct]
    to_struct: Callable[[T], msgspec.Struct]
    from_bytes: Callable[[bytes, str], T]

    def __post_init__(self) -> None:
        shared = {*self.kind.__struct_encode_fields__} & {*Header.__struct_encode_fields__}
        if shared:
            raise TypeError(f"{self.kind.__name__} has fields of the cell's header: {', '.join(sorted(shared))}")

    def fields(self, value: T) -> bytes:
        """The JSON fields of `value`, without the braces around them."""
        struct = self.to_struct(value)
        if type(struct) is not self.kind:
            raise TypeError(f"a {type(struct).__name__} is not a {self.kind.__name__}")
        return records.encode(struct)[1:-1]


def struct_codec(kind: type[S]) -> Codec[S]:
    """The codec of a cell whose value is a struct."""
    return Codec(kind, lambda value: value, lambda data, what: records.decode(data, kind, what=what))


class _Plain(msgspec.Struct):
    value: Any


PLAIN: Codec[Any] = Codec(
    _Plain,
    lambda value: _Plain(records.plain(value, what="the value")),
    lambda data, what: records.decode(data, _Plain, what=what).value,
)
"""Any JSON value, under the field `value`."""


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """One look at a cell: its value, and the version to swap on. `modified` is None for a write of our own."""

    value: T
    header: Header
    version: Version
    modified: datetime | None


@dataclass(frozen=True, slots=True)
class Won(Generic[T]):
    """The write happened, and `seen` is what we wrote."""

    seen: Versioned[T]


@dataclass(frozen=True, slots=True)
class Replaced(Generic[T]):
    """The write happened and was since replaced by `now`. No swap on `seen`, what we wrote, can win."""

    seen: Versioned[T]
    now: Versioned[T]


@dataclass(frozen=True, slots=True)
class Lost(Generic[T]):
    """The write did not happen and never will. `now` is what stands there instead."""

    now: Versioned[T]


@dataclass(frozen=True, slots=True)
class Unclear(Generic[T]):
    """Whether the write happened cannot be told: too many others came after it. It is not, and cannot become, `now`."""

    now: Versioned[T]


Outcome = Won[T] | Replaced[T] | Lost[T] | Unclear[T]
"""What became of one attempt to write a cell."""


class Cell(Generic[T]):
    """One object that is read, decided upon, and swapped.

    Every write either wins against exactly the version that it was decided on, or changes nothing. `deletable` cells
    may be removed, and then their name is never used again; for them a lost reply to a create stays unknown.
    `remedy` is the hint of `Corrupt`: what to do about a cell that cannot be read.
    """

    def __init__(
        self,
        store: Store,
        key: Key,
        codec: Codec[T],
        runtime: Runtime,
        *,
        deletable: bool = False,
        remedy: str | None = None,
    ) -> None:
        self._store = store
        self._key = key
        self._codec = codec
        self._runtime = runtime
        self._deletable = deletable
        self._remedy = remedy
        self._last: Versioned[T] | None = None

    @property
    def key(self) -> Key:
        """Where the cell lives."""
        return self._key

    def read(self) -> Versioned[T] | None:
        """The cell as it is now; None if it was never written.

        Raises: Corrupt; Unsupported for a cell that a newer Limpet wrote.   Cost: 1 GET.
        """
        try:
            with self.explained():
                self._last = self.decode(self._store.get(self._key))
        except Missing:
            self._last = None
        return self._last

    def replace_unreadable(self, value: T) -> Versioned[T]:
        """Put `value` in place of a cell that cannot be read; its fence is gone with it.

        Raises: Missing; Conflict if it was written meanwhile; OutcomeUnknown.   Cost: 1 HEAD + 1 PUT.
        """
        header = next_header(None, self._runtime.new_id(), None)
        version = self._store.head(self._key).version
        version = self._store.put(self._key, self._encode(header, value), when=Match(version))
        self._last = Versioned(value, header, version, None)
        return self._last

    def create(self, value: T) -> Versioned[T]:
        """Write the first version.   Raises: Conflict; OutcomeUnknown.   Cost: 1 PUT, refused + 1 GET."""
        return self._won(self.attempt(None, value))

    def swap(self, seen: Versioned[T], value: T) -> Versioned[T]:
        """Replace exactly what was `seen`.   Raises: Conflict; OutcomeUnknown.   Cost: 1 PUT, refused + 1 GET."""
        return self._won(self.attempt(seen, value))

    def update(self, change: Callable[[T | None], T | None], *, lease: Fenced | None = None) -> Versioned[T] | None:
        """Read, let `change` decide, swap; again from the start when somebody else wrote first.

        `change` gets the value (None: no cell yet) and returns the new one, or None to leave it. It may run several
        times. With a lease, as `write`.
        Raises: OutcomeUnknown; Conflict after 40 lost swaps; LeaseLost, Invalid.
        Cost: 1 GET + 1 PUT uncontended; the first lost swap adds 1 GET + 1 PUT, later ones 2 GETs + 1 PUT.
        """

        def decide(seen: Versioned[T] | None) -> tuple[T, Fence | None] | None:
            fence = self._admitted(seen, lease)
            value = change(seen.value if seen else None)
            return None if value is None else (value, fence)

        return self._contend(self.read(), decide)

    def write(self, value: T, *, lease: Fenced | None = None) -> Versioned[T]:
        """Put `value`, whatever is there. With a lease, the cell takes it only while no newer token has written.

        The token is compared in the same swap that writes (F12), so a paused holder that wakes up too late changes
        nothing. A write without a lease keeps the cell's fence.
        Raises: LeaseLost for a lower token; Invalid for a lease of another lock; OutcomeUnknown.
        Cost: 1 PUT if this handle saw the newest version, else 1 GET + 1 PUT.
        """
        seen = self._contend(self._last or self.read(), lambda seen: (value, self._admitted(seen, lease)))
        assert seen is not None
        return seen

    def attempt(
        self,
        seen: Versioned[T] | None,
        value: T,
        fence: Fence | None = None,
        *,
        write_id: str | None = None,
        lost: bool = False,
    ) -> Outcome[T]:
        """One conditional write on what was `seen` (None: create), settled. The rooms above build on this.

        A caller that wants to recognise the write after OutcomeUnknown names it by a fresh `write_id`. `lost`: it
        has just lost a swap to others.
        Raises: OutcomeUnknown when nothing is known at all; whatever the store refuses before anything is sent.
        """
        with self.explained():
            return self._attempt(seen, value, fence, write_id, lost)

    def _attempt(
        self, seen: Versioned[T] | None, value: T, fence: Fence | None, write_id: str | None, lost: bool
    ) -> Outcome[T]:
        base = seen.header if seen else None
        header = next_header(base, write_id or self._runtime.new_id(), fence or _kept(seen), lost=lost)
        write = Write(header.write_id, base, seen.version if seen else None, self._deletable)
        data = self._encode(header, value)

        def look(found: Blob | None) -> Verdict:
            if found is None:
                return judge(write, None, None)
            return judge(write, self._header(found), found.version)

        when = Match(seen.version) if seen else Absent()
        settled = put_resolved(self._store, self._runtime, self._key, data, when, look)
        if settled.version is not None:
            self._last = Versioned(value, header, settled.version, settled.found.modified if settled.found else None)
            return Won(self._last)
        if settled.found is None:
            raise self._unknown()
        self._last = now = self.decode(settled.found)
        match settled.verdict:
            case Verdict.REPLACED:
                return Replaced(Versioned(value, header, GONE, None), now)
            case Verdict.LOST:
                return Lost(now)
            case _:
                return Unclear(now)

    def _admitted(self, seen: Versioned[T] | None, lease: Fenced | None) -> Fence | None:
        offered = Fence(lease.lock, lease.token) if lease is not None else None
        return admit(_kept(seen), offered, what=self._key)

    def _contend(
        self,
        seen: Versioned[T] | None,
        decide: Callable[[Versioned[T] | None], tuple[T, Fence | None] | None],
    ) -> Versioned[T] | None:
        for tries in range(1, TRIES_MAX + 1):
            decision = decide(seen)
            if decision is None:
                return seen
            value, fence = decision
            match self.attempt(seen, value, fence, lost=tries > 1):
                case Won(written) | Replaced(written):
                    return written
                case Unclear():
                    raise self._unknown()
                case Lost(now) if tries == 1:
                    seen = now  # read a moment ago: swap on it at once
                case Lost():
                    # Sleep first, then read: a base read before the sleep is stale when it is swapped on, and a
                    # writer that stays behind for more writes than the ring holds cannot tell its own outcome.
                    self._runtime.sleep(self._runtime.rng.uniform(0, min(BACKOFF_S * 2**tries, BACKOFF_MAX_S)))
                    seen = self.read()
        raise Conflict(f"{self._key} was swapped by others {TRIES_MAX} times in a row", hint="write it less often")

    def _won(self, outcome: Outcome[T]) -> Versioned[T]:
        match outcome:
            case Won(seen) | Replaced(seen):
                return seen
            case Lost():
                raise Conflict(f"{self._key} was written by somebody else first")
            case Unclear():
                raise self._unknown()

    def _unknown(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"whether the write of {self._key} happened is unknown: the object that was read back does not show it"
        )

    def _encode(self, header: Header, value: T) -> bytes:
        fields = self._codec.fields(value)
        data = records.encode(header)[:-1] + (b"," + fields if fields else b"") + b"}"
        if len(data) > records.RECORD_BYTES_MAX:
            raise Invalid(
                f"the value of {self._key} takes {len(data)} bytes; a cell holds {records.RECORD_BYTES_MAX}",
                hint="keep large data in an object of its own and its name in the cell",
            )
        return data

    def _header(self, blob: Blob) -> Header:
        header = records.decode(blob.data, Header, what=self._key)
        if header.schema > SCHEMA:
            raise Unsupported(f"{self._key} has schema {header.schema}; this limpet reads up to {SCHEMA}")
        if header.seq < 1 or header.schema < 1:
            raise Corrupt(f"{self._key} has seq {header.seq} and schema {header.schema}")
        return header

    def decode(self, blob: Blob) -> Versioned[T]:
        """A look at bytes of this cell that were read elsewhere, by `get_many` say.   Raises: Corrupt; Unsupported."""
        with self.explained():
            header = self._header(blob)
            return Versioned(self._codec.from_bytes(blob.data, self._key), header, blob.version, blob.modified)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Give the cell's remedy to a `Corrupt` of the block."""
        try:
            yield
        except Corrupt as error:
            error.hint = self._remedy or error.hint
            raise


def _kept(seen: Versioned[T] | None) -> Fence | None:
    return seen.header.fence if seen else None

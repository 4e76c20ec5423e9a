"""`Cell`: one small JSON object that many processes write by compare-and-swap; one of several concurrent writes wins.

All mutable state of Limpet is in cells. `decide` has the rules, this module the I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from limpet.kernel import records
from limpet.kernel.cell.decide import SCHEMA, Fence, Header, Write, admit, classify, next_header
from limpet.kernel.errors import Conflict, Corrupt, Invalid, Missing, OutcomeUnknown, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Blob, Match, Store, Version
from limpet.kernel.store.outcome import Verdict, put_resolved
from limpet.kernel.waiting import CONTENDED_TRIES_MAX, attempts
from limpet.kernel.wording import an, many

__all__ = [
    "PLAIN",
    "Cell",
    "Codec",
    "Fence",
    "Fenced",
    "Header",
    "Lost",
    "Outcome",
    "Replaced",
    "Unclear",
    "Versioned",
    "Won",
    "struct_codec",
]

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


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
    """Converts a cell's value to a struct of type `kind`, and reads it back from the cell's bytes.

    The struct's fields are stored beside those of the header, so none of them may have the name of a header field.
    """

    kind: type[msgspec.Struct]
    to_struct: Callable[[T], msgspec.Struct] | None
    """None: the value is the struct."""
    from_bytes: Callable[[bytes, str], T]
    schema_of: Callable[[T], int] | None = None
    """The schema that is written with a value: a version of Limpet that knows only lower ones leaves the cell alone."""
    schema_max: int = SCHEMA
    can_drop: bool = False
    """Whether the value may be `DROPPED`."""

    def __post_init__(self) -> None:
        shared = {*self.kind.__struct_encode_fields__} & {*Header.__struct_encode_fields__}
        if shared:
            raise TypeError(f"{self.kind.__name__} has fields of the cell's header: {', '.join(sorted(shared))}")


def struct_codec(kind: type[S]) -> Codec[S]:
    """The codec of a cell whose value is a struct."""
    return Codec(kind, None, lambda data, what: records.decode(data, kind, what=what))


class _PlainBody(msgspec.Struct):
    value: Any
    dropped: bool | msgspec.UnsetType = msgspec.UNSET


class Dropped(Enum):
    """The value of a cell that was dropped."""

    DROPPED = "dropped"


DROPPED = Dropped.DROPPED


def _plain_body(value: Any) -> _PlainBody:
    return _PlainBody(None, True) if value is DROPPED else _PlainBody(records.plain(value, what="the value"))


def _plain_value(data: bytes, what: str) -> Any:
    body = records.decode(data, _PlainBody, what=what)
    return DROPPED if body.dropped is True else body.value


PLAIN: Codec[Any] = Codec(_PlainBody, _plain_body, _plain_value, can_drop=True)
"""Any JSON value, under the field `value`. In a cell that was dropped, versions without `drop` see null."""


class Versioned(msgspec.Struct, Generic[T], frozen=True):
    """A cell as it was read or written: its value and its version. `modified` is None for a write of this process."""

    value: T
    header: Header
    version: Version
    modified: datetime | None


class Won(msgspec.Struct, Generic[T], frozen=True):
    """The write happened, and `seen` is what it wrote."""

    seen: Versioned[T]


class Replaced(msgspec.Struct, Generic[T], frozen=True):
    """The write happened: `seen` is what it wrote. Another write has replaced it by `now`, so no swap on `seen` can
    win."""

    seen: Versioned[T]
    now: Versioned[T]


class Lost(msgspec.Struct, Generic[T], frozen=True):
    """The write did not happen and never will. `now` is the cell's content instead."""

    now: Versioned[T]


class Unclear(msgspec.Struct, Generic[T], frozen=True):
    """It is unknown whether the write happened: too many others followed. It is not the content `now`, and never will
    be."""

    now: Versioned[T]


Outcome = Won[T] | Replaced[T] | Lost[T] | Unclear[T]
"""The outcome of one attempt to write a cell."""


class Cell(Generic[T]):
    """One object that changes only by compare-and-swap.

    A write either replaces exactly the version that it is based on, or changes nothing. `deletable` cells may be
    deleted, and their name is then never used again; if the reply to their creation is lost, the outcome stays unknown.
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
        """The key of the cell's object."""
        return self._key

    def read(self) -> Versioned[T] | None:
        """Read the cell; None if it was never written, or was dropped.

        Raises: Corrupt; Unsupported for a cell that a newer Limpet wrote.   Cost: 1 GET.
        """
        seen = self._read()
        return None if seen is not None and seen.value is DROPPED else seen

    def _read(self) -> Versioned[T] | None:
        """As `read`, and what was written when it was dropped."""
        try:
            self._last = self.decode(self._store.get(self._key))
        except Missing:
            self._last = None
        except Corrupt as error:
            self.explain(error)
            raise
        return self._last

    def replace_unreadable(self, value: T, version: Version | None = None) -> Versioned[T]:
        """Replace a cell that cannot be read by `value`; its fence is lost. `version`: the one that was found there.

        Raises: Missing; Conflict if it was written meanwhile; OutcomeUnknown.   Cost: 1 HEAD + 1 PUT; 1 PUT.
        """
        header = next_header(None, self._runtime.new_id(), None)
        version = version or self._store.head(self._key).version
        version = self._store.put(self._key, self._encode(header, value), when=Match(version))
        self._last = Versioned(value, header, version, None)
        return self._last

    def create(self, value: T) -> Versioned[T]:
        """Write the first version, or the first after a drop.

        Raises: Conflict; OutcomeUnknown.   Cost: 1 PUT, refused + 1 GET; after a drop 2 PUTs + 1 GET.
        """
        return self._swapped(None, value)

    def swap(self, seen: Versioned[T], value: T) -> Versioned[T]:
        """Replace exactly what was `seen`.   Raises: Conflict; OutcomeUnknown.   Cost: 1 PUT, refused + 1 GET."""
        return self._swapped(seen, value)

    def _swapped(self, seen: Versioned[T] | None, value: T) -> Versioned[T]:
        match self.attempt(seen, value):
            case Won(written) | Replaced(written):
                return written
            case Lost(now) if seen is None and now.value is DROPPED:
                return self._swapped(now, value)
            case Lost():
                raise Conflict(f"{self._key} was written by another process first")
            case Unclear():
                raise self._unknown()

    def drop(self, *, lease: Fenced | None = None, force: bool = False) -> Versioned[T] | None:
        """Drop the value: for `read`, `update` and `create` the cell was never written. Returns what was there.

        An object of about 200 bytes stays, with the cell's fence: so no late write, sent before the drop, brings the
        value back, and a late holder of a lock is refused. `lease`: as in `write`. `force`: also a value that cannot be
        read, for which None is returned; its fence is lost.
        Raises: Missing; Corrupt; as `write`.   Cost: 1 GET + 1 PUT.   Crash: dropped, or not.
        """
        if not self._codec.can_drop:
            raise TypeError(f"{self._key} is no cell of a user")
        gone: Any = DROPPED
        dropped: list[Versioned[T]] = []

        def decide(seen: Versioned[T] | None) -> tuple[T, Fence | None] | None:
            if seen is None or seen.value is DROPPED:
                raise Missing(f"there is no value in {self._key}", hint="`limpet cell ls` shows the cells")
            dropped[:] = [seen]
            return gone, self._admitted(seen, lease)

        try:
            self._contend(self._read(), decide)
        except Corrupt:
            if not force:
                raise
            self.replace_unreadable(gone)
        return dropped[0] if dropped else None

    def update(self, change: Callable[[T | None], T | None], *, lease: Fenced | None = None) -> Versioned[T] | None:
        """Read, call `change`, swap; start again if another process wrote first.

        `change` gets the value (None: no cell yet) and returns the new one, or None to leave the cell unchanged. It may
        be called several times. `lease`: as in `write`.
        Raises: OutcomeUnknown; Conflict after 100 lost swaps; LeaseLost, Invalid.
        Cost: 1 GET + 1 PUT uncontended; the first lost swap adds 1 GET + 1 PUT, later ones 2 GETs + 1 PUT.
        """

        def decide(seen: Versioned[T] | None) -> tuple[T, Fence | None] | None:
            fence = self._admitted(seen, lease)
            value = change(None if seen is None or seen.value is DROPPED else seen.value)
            return None if value is None else (value, fence)

        seen = self._contend(self._read(), decide)
        return None if seen is not None and seen.value is DROPPED else seen

    def write(self, value: T, *, lease: Fenced | None = None) -> Versioned[T]:
        """Replace the cell's value by `value`. With a lease, only if no newer token has written to the cell.

        The token is compared in the swap that writes (F12), so a holder that was paused and resumes too late changes
        nothing. A write without a lease keeps the cell's fence.
        Raises: LeaseLost for a lower token; Invalid for a lease of another lock; OutcomeUnknown.
        Cost: 1 PUT if this handle saw the newest version, else 1 GET + 1 PUT.
        """
        seen = self._contend(self._last or self._read(), lambda seen: (value, self._admitted(seen, lease)))
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
        """One conditional write on what was `seen` (None: create), and its outcome.

        A caller that wants to recognise the write after OutcomeUnknown passes a new `write_id`. `lost`: the caller has
        just lost a swap to another process.
        Raises: OutcomeUnknown if the cell could not be read back; the store's errors if nothing was sent.
        """
        base, kept = (seen.header, seen.header.fence) if seen else (None, None)
        try:
            header = next_header(base, write_id or self._runtime.new_id(), fence or kept, lost=lost)
            data = self._encode(header, value)

            def read_back(found: Blob | None) -> Verdict:
                write = Write(header.write_id, base, seen.version if seen else None, self._deletable)
                return classify(write, self._header(found) if found else None, found.version if found else None)

            when = Match(seen.version) if seen else Absent()
            end = put_resolved(self._store, self._runtime, self._key, data, when, read_back)
            if end.version is not None:
                self._last = Versioned(value, header, end.version, end.found.modified if end.found else None)
                return Won(self._last)
            if end.found is None:
                raise self._unknown()
            self._last = now = self.decode(end.found)
        except Corrupt as error:
            self.explain(error)
            raise
        match end.verdict:
            case Verdict.REPLACED:
                return Replaced(Versioned(value, header, Version("replaced"), None), now)
            case Verdict.LOST:
                return Lost(now)
            case _:
                return Unclear(now)

    def _admitted(self, seen: Versioned[T] | None, lease: Fenced | None) -> Fence | None:
        offered = Fence(lease.lock, lease.token) if lease is not None else None
        return admit(seen.header.fence if seen else None, offered, what=self._key)

    def _contend(
        self, seen: Versioned[T] | None, decide: Callable[[Versioned[T] | None], tuple[T, Fence | None] | None]
    ) -> Versioned[T] | None:
        took_s = 0.0

        def pause_s(lost: int) -> float:
            # Not `backoff_s`: on a slow store, writers must spread over many swaps, so that few overlap.
            return self._runtime.rng.uniform(0, max(min(0.01 * 2**lost, 0.3), 16 * took_s)) if lost > 1 else 0.0

        for tries in attempts(self._runtime, CONTENDED_TRIES_MAX, pause_s):
            if tries > 2:
                # Read after the pause: a base that was read before it is stale by now, and a writer that falls behind
                # by more writes than the ring holds cannot resolve its own outcome.
                seen = self._read()
            decision = decide(seen)
            if decision is None:
                return seen
            value, fence = decision
            sent_s = self._runtime.elapsed_s()
            match self.attempt(seen, value, fence, lost=tries > 1):
                case Won(written) | Replaced(written):
                    return written
                case Unclear():
                    raise self._unknown()
                case Lost(now) if tries == 1:
                    seen = now  # it was just read, so swap on it at once
                case Lost():
                    took_s = self._runtime.elapsed_s() - sent_s
        raise Conflict(f"{self._key} was swapped by others {many(tries, 'time')} in a row", hint="write it less often")

    def _unknown(self) -> OutcomeUnknown:
        why = "the object that was read back does not show it"
        return OutcomeUnknown(f"whether the write of {self._key} happened is unknown: {why}")

    def _encode(self, header: Header, value: T) -> bytes:
        codec = self._codec
        struct = value if codec.to_struct is None else codec.to_struct(value)
        if type(struct) is not codec.kind:
            raise TypeError(f"{an(type(struct).__name__)} is not {an(codec.kind.__name__)}")
        if codec.schema_of is not None:
            header = msgspec.structs.replace(header, schema=codec.schema_of(value))
        fields = records.encode(struct)  # in braces, as the header
        data = records.encode(header) if fields == b"{}" else records.encode(header)[:-1] + b"," + fields[1:]
        if len(data) > records.RECORD_BYTES_MAX:
            what = f"the value of {self._key} takes {many(len(data), 'byte')}; a cell holds {records.RECORD_BYTES_MAX}"
            raise Invalid(what, hint="keep large data in a separate object, and its name in the cell")
        return data

    def _header(self, blob: Blob) -> Header:
        header = records.decode(blob.data, Header, what=self._key)
        schema_max = self._codec.schema_max
        if header.schema > schema_max:
            raise Unsupported(f"{self._key} has schema {header.schema}; this limpet reads up to {schema_max}")
        if header.seq < 1 or header.schema < 1:
            raise Corrupt(f"{self._key} has seq {header.seq} and schema {header.schema}")
        return header

    def decode(self, blob: Blob) -> Versioned[T]:
        """Decode bytes of this cell that the caller has read, by `get_many` say.   Raises: Corrupt; Unsupported."""
        try:
            header = self._header(blob)
            return Versioned(self._codec.from_bytes(blob.data, self._key), header, blob.version, blob.modified)
        except Corrupt as error:
            self.explain(error)
            raise

    def explain(self, error: Corrupt) -> None:
        """Set the cell's remedy as the hint of the error."""
        error.hint = self._remedy or error.hint

"""The cell's decisions: pure functions, no store and no clock."""

from __future__ import annotations

from binascii import b2a_base64
from typing import Annotated

import msgspec

from limpet.kernel.errors import Corrupt, Invalid, LeaseLost
from limpet.kernel.records import INTEGER_MAX, Count, Name, Positive
from limpet.kernel.runtime import sha256, ulid_ms
from limpet.kernel.store.api import Version
from limpet.kernel.store.outcome import Verdict

SCHEMA = 1
RING_SIZE = 16
RECENT_MAX = 1024
MARKS_MAX = 4096
MARK_CHARS = 3
OFTEN_MS = 5_000

WriteId = Annotated[str, msgspec.Meta(max_length=64)]


class Fence(msgspec.Struct, frozen=True):
    """A lock, and the highest of its tokens that has written to a cell."""

    lock: Name
    token: Count


class Header(msgspec.Struct, frozen=True):
    """What every cell stores besides its value.

    `seq` counts the writes, `write_id` identifies this one, `recent` the up to 16 before it, newest last. So no two
    writes have the same bytes, and an ETag that is only a digest does not repeat either (F15). `older` exists while the
    cell is written often: a short mark of each write before the recent ones, newest last.
    """

    schema: Positive
    seq: Positive
    write_id: WriteId
    recent: Annotated[tuple[WriteId, ...], msgspec.Meta(max_length=RECENT_MAX)] = ()
    fence: Fence | None = None
    older: Annotated[str, msgspec.Meta(max_length=MARK_CHARS * MARKS_MAX)] | msgspec.UnsetType = msgspec.UNSET

    @property
    def marks(self) -> str:
        """`older` as a text, empty if there is none."""
        return self.older if isinstance(self.older, str) else ""


class Write(msgspec.Struct, frozen=True):
    """One attempt to write: its id, and the base that it replaces (None: no object)."""

    write_id: str
    base: Header | None
    base_version: Version | None
    deletable: bool


def next_header(base: Header | None, write_id: str, fence: Fence | None, *, lost: bool = False) -> Header:
    """The header of the write that follows `base`. `lost`: its writer has just lost a swap.

    A writer cannot resolve its own write once more writes have followed than the header records. So while the cell is
    written often, or by a writer that has just lost a swap, a mark is kept of each id that leaves the ring; afterwards
    each write drops two marks. Safety does not depend on how many are kept: fewer marks only make more outcomes
    unknown.
    Raises: Corrupt for a base whose `seq` is the largest possible.
    """
    if base is None:
        return Header(SCHEMA, 1, write_id, fence=fence)
    if base.seq == INTEGER_MAX:
        raise Corrupt(f"a cell with seq {base.seq} cannot be written: it could never be read again")
    recent = (*base.recent, base.write_id)
    older = base.marks
    if len(recent) > RING_SIZE and (lost or _written_often(recent)):
        older = (older + "".join(map(mark, recent[:-RING_SIZE])))[-MARK_CHARS * MARKS_MAX :]
    elif len(recent) > RING_SIZE and older:
        older = (older + mark(recent[0]))[2 * MARK_CHARS :]
    return Header(SCHEMA, base.seq + 1, write_id, recent[-RING_SIZE:], fence, older or msgspec.UNSET)


def _written_often(recent: tuple[str, ...]) -> bool:
    """Whether the recent writes are a few seconds apart at most, by the clocks of their writers."""
    first_ms, last_ms = ulid_ms(recent[0]), ulid_ms(recent[-1])
    return first_ms is not None and last_ms is not None and abs(last_ms - first_ms) < OFTEN_MS


def mark(write_id: str) -> str:
    """18 bits of a write id's digest, as text. Different marks prove different ids; equal marks prove nothing."""
    return b2a_base64(sha256(write_id.encode())[:3]).decode()[:MARK_CHARS]


def classify(write: Write, found: Header | None, found_version: Version | None) -> Verdict:
    """What a read-back shows about `write` (docs/inside/decisions/0001-kernel.md).

    LOST is final: the write is conditional on a version that the object can never have again. (The creation of a
    deletable name can still land late, once the name is free again: the packages that delete names tolerate that.) A
    missing object is the base only if its name is never deleted; else it may have been created and deleted
    (counterexample 3).
    """
    if found is None:
        return Verdict.BASE if write.base is None and not write.deletable else Verdict.UNKNOWN
    if found.write_id == write.write_id:
        return Verdict.WON
    if write.write_id in found.recent:
        return Verdict.REPLACED
    if write.base is not None and found_version == write.base_version:
        return Verdict.BASE
    base_seq = write.base.seq if write.base else 0
    if write.base is not None and _wrote_other(found, base_seq, write.base.write_id):
        return Verdict.UNKNOWN  # deleted and created again: `found` is the history of another cell (counterexample 4)
    if _wrote_other(found, base_seq + 1, write.write_id):
        return Verdict.LOST  # ours could only have landed as the write that followed our base
    return Verdict.UNKNOWN


def _wrote_other(found: Header, seq: int, write_id: str) -> bool:
    """Whether `found` records that write number `seq` was not `write_id`."""
    back = found.seq - seq
    if 0 <= back <= len(found.recent):
        return (*found.recent, found.write_id)[-back - 1] != write_id
    at = len(found.marks) - MARK_CHARS * (back - len(found.recent))
    return back > 0 <= at and found.marks[at : at + MARK_CHARS] != mark(write_id)


def admit(kept: Fence | None, offered: Fence | None, *, what: str) -> Fence | None:
    """The fence of the next write to a cell whose fence is `kept`, for a writer with the token `offered`.

    Tokens of different locks are not comparable, and a write without a lease keeps the fence
    (counterexamples 6 and 7).   Raises: LeaseLost for a lower token (F12); Invalid for another lock's.
    """
    if kept is None or offered is None:
        return offered or kept
    if kept.lock != offered.lock:
        raise Invalid(
            f"{what} is guarded by {kept.lock}, not by {offered.lock}", hint="use a lease of the lock that guards it"
        )
    if offered.token < kept.token:
        raise LeaseLost(f"{what} was already written with token {kept.token}; token {offered.token} is too old")
    return offered

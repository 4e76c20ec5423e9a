"""The cell's decisions: pure functions, no store and no clock."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Annotated

import msgspec

from limpet.errors import Corrupt, Invalid, LeaseLost
from limpet.records import INTEGER_MAX, Count, Name, Positive
from limpet.runtime import ulid_ms
from limpet.store.api import Version
from limpet.store.outcome import Verdict

SCHEMA = 1
RING_SIZE = 16
RECENT_MAX = 1024
MARKS_MAX = 4096
MARK_CHARS = 3
OFTEN_MS = 5_000

WriteId = Annotated[str, msgspec.Meta(max_length=64)]


class Fence(msgspec.Struct, frozen=True):
    """A lock and the highest of its tokens that has written."""

    lock: Name
    token: Count


class Header(msgspec.Struct, frozen=True):
    """What every cell carries besides its value.

    `seq` counts the writes, `write_id` names this one, `recent` names the up to 16 before it, newest last. Bodies
    therefore never repeat, so neither does an ETag that is only a digest (F15). `older` is there while the cell is
    written often: a short mark of each write before the recent ones, newest last.
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


@dataclass(frozen=True, slots=True)
class Write:
    """One attempt to write: its id, and the base that it was decided on (None: no object)."""

    write_id: str
    base: Header | None
    base_version: Version | None
    deletable: bool


def next_header(base: Header | None, write_id: str, fence: Fence | None, *, lost: bool = False) -> Header:
    """The header of the write that follows `base`. `lost`: its writer has just lost a swap.

    A writer that is overtaken by more writes than the header remembers cannot learn whether its own write landed. So
    while the cell is written often, or by a writer that has just lost a swap, a mark is kept of each id that leaves the
    ring; afterwards each write drops two marks. How much is kept is never a matter of safety: a short memory only
    makes more outcomes unknown.
    Raises: Corrupt for a base that nobody counted up.
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
    return base64.b64encode(hashlib.sha256(write_id.encode()).digest()[:3]).decode()[:MARK_CHARS]


def judge(write: Write, found: Header | None, found_version: Version | None) -> Verdict:
    """What a read-back says of `write` (DESIGN section 3).

    LOST is final: our bytes are conditional on a version that can never stand again. (A create under a name that may
    be deleted can still land late, once the name is free again: the rooms that delete tolerate that.) An absent object
    is the base only under a name that is never deleted; elsewhere it may have come and gone (counterexample 3).
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
        return Verdict.UNKNOWN  # deleted and created anew: this is another cell's history (counterexample 4)
    if _wrote_other(found, base_seq + 1, write.write_id):
        return Verdict.LOST  # ours could only have landed as the write that followed our base
    return Verdict.UNKNOWN


def _wrote_other(found: Header, seq: int, write_id: str) -> bool:
    """Whether `found` remembers that write number `seq` was not `write_id`."""
    back = found.seq - seq
    if 0 <= back <= len(found.recent):
        return (*found.recent, found.write_id)[-back - 1] != write_id
    at = len(found.marks) - MARK_CHARS * (back - len(found.recent))
    return back > 0 <= at and found.marks[at : at + MARK_CHARS] != mark(write_id)


def admit(kept: Fence | None, offered: Fence | None, *, what: str) -> Fence | None:
    """The fence of the next write, if the cell that keeps `kept` takes a write offered with `offered`.

    Tokens of different locks are not comparable, and a write without a lease does not erase the fence
    (counterexamples 6 and 7).   Raises: LeaseLost for a lower token (F12); Invalid for another lock's.
    """
    if kept is None or offered is None:
        return offered or kept
    if kept.lock != offered.lock:
        raise Invalid(
            f"{what} is guarded by {kept.lock}, not by {offered.lock}", hint="write it with a lease of its own lock"
        )
    if offered.token < kept.token:
        raise LeaseLost(f"{what} was already written with token {kept.token}; token {offered.token} is too old")
    return offered

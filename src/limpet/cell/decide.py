"""The cell's decisions: pure functions, no store and no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from limpet.errors import Invalid, LeaseLost
from limpet.records import Count, Name, Positive
from limpet.store.api import Version
from limpet.store.outcome import Verdict

__all__ = ["CONTENDED_RING_SIZE", "RING_SIZE", "Fence", "Header", "Write", "admit", "judge", "next_header"]

SCHEMA = 1
RING_SIZE = 16
CONTENDED_RING_SIZE = 256
CONTENDED_S = 10.0

WriteId = Annotated[str, msgspec.Meta(max_length=64)]


class Fence(msgspec.Struct, frozen=True):
    """A lock and the highest of its tokens that has written."""

    lock: Name
    token: Count


class Header(msgspec.Struct, frozen=True):
    """What every cell carries besides its value.

    `seq` counts the writes, `write_id` names this one, `recent` names the up to 16 before it (256 while many contend),
    newest last. Bodies therefore never repeat, so neither does an ETag that is only a digest (F15).
    """

    schema: Positive
    seq: Positive
    write_id: WriteId
    recent: Annotated[tuple[WriteId, ...], msgspec.Meta(max_length=4 * CONTENDED_RING_SIZE)] = ()
    fence: Fence | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """One attempt to write: its id, and the base that it was decided on (None: no object)."""

    write_id: str
    base: Header | None
    base_version: Version | None
    deletable: bool


def next_header(
    base: Header | None, write_id: str, fence: Fence | None, *, lost: bool = False, age_s: float = float("inf")
) -> Header:
    """The header of the write that follows `base`, which is `age_s` old.

    A writer that is overtaken by more writes than the ring holds cannot learn whether its own write landed. So a
    writer that has just lost a swap lets the ring grow beyond 16, up to 256; others let it grow on while the cell is
    written often, and shrink it by one a write afterwards. The length is never a matter of safety: a short ring only
    makes more outcomes unknown.
    """
    if base is None:
        return Header(SCHEMA, 1, write_id, (), fence)
    contended = lost or (len(base.recent) > RING_SIZE and age_s < CONTENDED_S)
    kept = len(base.recent) + 1 if contended else len(base.recent) - 1
    size = min(max(kept, RING_SIZE), CONTENDED_RING_SIZE)
    return Header(SCHEMA, base.seq + 1, write_id, (*base.recent, base.write_id)[-size:], fence)


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
    ring_starts = found.seq - len(found.recent)
    if write.base is not None and ring_starts <= base_seq < found.seq and write.base.write_id not in found.recent:
        return Verdict.UNKNOWN  # deleted and created anew: this is another cell's history (counterexample 4)
    ring_reaches_back = ring_starts <= base_seq + 1
    if found.seq > base_seq and ring_reaches_back:
        return Verdict.LOST
    return Verdict.UNKNOWN


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

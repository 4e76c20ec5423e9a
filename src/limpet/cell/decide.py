"""The cell's decisions: pure functions, no store and no clock."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from limpet.errors import Invalid, LeaseLost
from limpet.store.api import Version
from limpet.store.outcome import Verdict

__all__ = ["RING_SIZE", "Fence", "Header", "Write", "admit", "judge", "next_header"]

SCHEMA = 1
RING_SIZE = 16


class Fence(msgspec.Struct, frozen=True):
    """A lock and the highest of its tokens that has written."""

    lock: str
    token: int


class Header(msgspec.Struct, frozen=True):
    """What every cell carries besides its value.

    `seq` counts the writes, `write_id` names this one, `recent` names the up to 16 before it, newest last. Bodies
    therefore never repeat, so neither does an ETag that is only a digest (F15).
    """

    schema: int
    seq: int
    write_id: str
    recent: tuple[str, ...] = ()
    fence: Fence | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """One attempt to write: its id, and the base that it was decided on (None: no object)."""

    write_id: str
    base: Header | None
    base_version: Version | None
    deletable: bool


def next_header(base: Header | None, write_id: str, fence: Fence | None) -> Header:
    """The header of the write that follows `base`."""
    if base is None:
        return Header(SCHEMA, 1, write_id, (), fence)
    return Header(SCHEMA, base.seq + 1, write_id, (*base.recent, base.write_id)[-RING_SIZE:], fence)


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

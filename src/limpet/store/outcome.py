"""Won, lost, or unknown: what a conditional put really did.

A store's answer to a conditional put cannot be taken at its word. A lost reply hides a write that landed; a 412 may
come from an earlier copy of the very same request (a client's retry, a proxy's duplicate). So every 412, the first
too, and every lost reply is settled by reading back before it is named (F1, F3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from limpet.errors import Conflict, LimpetError, Missing, OutcomeUnknown
from limpet.keys import Key
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import Runtime
from limpet.store.api import Absent, Blob, Match, Store, Version, When

SENDS_MAX = 3
BACKOFF_S = 0.1


class Verdict(Enum):
    """What a read-back says of a write whose answer was unclear."""

    WON = "it is what stands there"
    REPLACED = "it landed, and somebody wrote after it"
    BASE = "nothing has changed yet: send the same bytes again"
    LOST = "somebody else wrote, and ours can no longer land"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The end of a conditional put: anything but BASE. `found` is what the last read-back saw, if there was one."""

    verdict: Verdict
    version: Version | None
    found: Blob | None


def put_resolved(
    store: Store,
    runtime: Runtime,
    key: Key,
    data: bytes,
    when: When,
    judge: Callable[[Blob | None], Verdict],
    *,
    size_max: int | None = RECORD_BYTES_MAX,
) -> Resolution:
    """Put `data` if `when` holds, and find out what became of it. `judge` reads a look at the object.

    A read-back of an object larger than `size_max` tells nothing.

    Only the same bytes are ever sent again (F5). Raises: OutcomeUnknown when it cannot be read back or still stands at
    its base after three sends; Unavailable or Denied when nothing was sent that could have landed.
    Cost: 1 PUT; after an unclear answer 1 GET more, and 1 PUT + 1 GET for each of at most two resends.
    """
    unclear: LimpetError | None = None
    for sent in range(1, SENDS_MAX + 1):
        try:
            return Resolution(Verdict.WON, store.put(key, data, when=when), None)
        except (Conflict, OutcomeUnknown) as error:
            final = unclear is None and store.conflict_is_final and isinstance(error, Conflict)
            unclear = error
        except LimpetError:
            final = False
            if unclear is None:
                raise
        found = _look(store, key, size_max)
        verdict = judge(found)
        if final and found is not None and verdict is Verdict.UNKNOWN:
            verdict = Verdict.LOST  # the one send was compared and refused, so no copy of it can have landed
        if verdict is Verdict.BASE:
            if sent < SENDS_MAX:
                runtime.sleep(runtime.rng.uniform(0.5, 1.0) * BACKOFF_S * sent)
            continue
        return Resolution(verdict, found.version if found and verdict is Verdict.WON else None, found)
    raise OutcomeUnknown(f"whether the write of {key} happened cannot be told ({unclear})")


def put_bytes(store: Store, runtime: Runtime, key: Key, data: bytes, when: When, *, deletable: bool = False) -> Version:
    """A conditional put of an object that carries no write id: identical bytes are the same write (F2).

    Raises: OutcomeUnknown whenever something else stands there after an unclear answer. Never deletes anything.
    `deletable`: others may remove the object, so finding it absent proves nothing.   Cost: as `put_resolved`.
    """

    def judge(found: Blob | None) -> Verdict:
        if found is not None and found.data == data:
            return Verdict.WON
        if isinstance(when, Match) and found is not None and found.version == when.version:
            return Verdict.BASE
        if isinstance(when, Absent) and found is None and not deletable:
            return Verdict.BASE  # F6: S3's 409 is reported as "already exists" although nothing landed
        return Verdict.UNKNOWN

    size_max = len(data) if isinstance(when, Absent) else None  # what is larger than ours is not ours
    settled = put_resolved(store, runtime, key, data, when, judge, size_max=size_max)
    if settled.version is None:
        raise OutcomeUnknown(f"whether the write of {key} happened cannot be told: other bytes stand there")
    return settled.version


def _look(store: Store, key: Key, size_max: int | None) -> Blob | None:
    try:
        return store.get(key, size_max=size_max)
    except Missing:
        return None
    except LimpetError as error:
        raise OutcomeUnknown(f"whether the write of {key} happened cannot be told: {error}") from error

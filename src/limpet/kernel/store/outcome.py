"""Resolves the outcome of a conditional put: won, lost, or unknown.

The store's answer alone does not tell the outcome. If the reply is lost, the write may have landed. A 412 may be the
answer to a second copy of the same request (a client's retry, a proxy's duplicate), the first copy of which landed. So
after every 412, the first one too, and after every lost reply the object is read back (F1, F3).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from limpet.kernel.errors import Conflict, LimpetError, Missing, OutcomeUnknown
from limpet.kernel.keys import Key
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Blob, Match, Store, Version, When
from limpet.kernel.waiting import SENDS_MAX, attempts


class Verdict(Enum):
    """What a read-back shows about a write whose answer was unclear."""

    WON = "it is the current content"
    REPLACED = "it landed, and another writer wrote after it"
    BASE = "nothing has changed yet: send the same bytes again"
    LOST = "another writer wrote, and ours can no longer land"
    UNKNOWN = "nothing proves whether it landed"


class Resolution(msgspec.Struct, frozen=True):
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
    classify: Callable[[Blob | None], Verdict],
    *,
    size_max: int | None = RECORD_BYTES_MAX,
) -> Resolution:
    """Put `data` if `when` holds, and resolve the outcome. `classify` gets the object that a read-back finds.

    If that object is larger than `size_max`, the outcome is unknown. Only the same bytes are ever sent again (F5).

    Raises: OutcomeUnknown when the object cannot be read back, or is still unchanged after three sends; Unavailable or
    Denied when nothing was sent that could have landed.
    Cost: 1 PUT; after an unclear answer 1 GET more, and 1 PUT + 1 GET for each of at most two resends.
    """
    unclear: LimpetError
    try:
        return Resolution(Verdict.WON, store.put(key, data, when=when), None)
    except (Conflict, OutcomeUnknown) as error:
        unclear = error
    final = store.conflict_is_final and isinstance(unclear, Conflict)
    for sent in attempts(runtime, SENDS_MAX):
        if sent > 1:
            try:
                return Resolution(Verdict.WON, store.put(key, data, when=when), None)
            except LimpetError as error:
                unclear, final = error, False
        found = _look(store, key, size_max)
        verdict = classify(found)
        if final and found is not None and verdict is Verdict.UNKNOWN:
            verdict = Verdict.LOST  # the one send was compared and refused, so no copy of it can have landed
        if verdict is not Verdict.BASE:
            return Resolution(verdict, found.version if found and verdict is Verdict.WON else None, found)
    raise OutcomeUnknown(f"the outcome of the write of {key} is unknown ({unclear})")


def put_bytes(store: Store, runtime: Runtime, key: Key, data: bytes, when: When, *, deletable: bool = False) -> Version:
    """A conditional put of an object that carries no write id: identical bytes count as this write (F2).

    `deletable`: other processes may delete the object, so its absence proves nothing. Never deletes anything.
    Raises: OutcomeUnknown whenever other bytes are found after an unclear answer.   Cost: as `put_resolved`.
    """

    def classify(found: Blob | None) -> Verdict:
        if found is not None and found.data == data:
            return Verdict.WON
        if isinstance(when, Match) and found is not None and found.version == when.version:
            return Verdict.BASE
        if isinstance(when, Absent) and found is None and not deletable:
            return Verdict.BASE  # F6: S3's 409 is reported as "already exists" although nothing landed
        return Verdict.UNKNOWN

    size_max = len(data) if isinstance(when, Absent) else None  # a larger object is not our write
    resolution = put_resolved(store, runtime, key, data, when, classify, size_max=size_max)
    if resolution.version is None:
        raise OutcomeUnknown(f"the outcome of the write of {key} is unknown: the object has other bytes")
    return resolution.version


def _look(store: Store, key: Key, size_max: int | None) -> Blob | None:
    try:
        return store.get(key, size_max=size_max)
    except Missing:
        return None
    except LimpetError as error:
        raise OutcomeUnknown(f"the outcome of the write of {key} is unknown: {error}") from error

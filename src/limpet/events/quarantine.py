"""Quarantine: batches that could not be read, kept as they were found, each with the reason beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import msgspec

from limpet import records
from limpet.errors import Corrupt, Missing
from limpet.keys import CatalogKeys, Key
from limpet.records import Count, Digest, Name
from limpet.store.api import Blob, Store

REASON_CHARS_MAX = 500


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch lies in quarantine: where it was, what is wrong with it, and what it was like."""

    id: Name
    path: Name
    reason: Name
    size: Count
    sha256: Digest
    written_at: Name


def isolate(store: Store, keys: CatalogKeys, id_: str, blob: Blob, reason: str) -> None:
    """Keep a copy of a batch, then the reason. Whoever does it again writes the same.   Cost: 2 PUTs.

    Crash: the copy without a reason; the batch is still where it was, and is found again.
    """
    said = Reason(
        id=id_,
        path=keys.batch(id_),
        reason=reason[:REASON_CHARS_MAX],
        size=len(blob.data),
        sha256=hashlib.sha256(blob.data).hexdigest(),
        written_at=blob.modified.isoformat(timespec="seconds"),
    )
    store.put(keys.quarantined(id_), blob.data)
    store.put(keys.reason(id_), records.encode(said))


def quarantined(store: Store, keys: CatalogKeys) -> Iterator[Reason]:
    """What lies in quarantine, in the order of ids; of one whose reason is damaged it says just that.

    Cost: 1 LIST per 1,000 objects, 1 GET each.
    """
    for stat in store.list(keys.quarantine):
        id_ = keys.id_of(stat.key)
        if id_ is not None and stat.key == keys.reason(id_):
            try:
                yield reason_of(store, keys, id_)
            except Missing:
                continue  # it was taken out since
            except Corrupt as error:
                at = stat.modified.isoformat(timespec="seconds")
                said = f"why it is here cannot be read: {error}"[:REASON_CHARS_MAX]
                yield Reason(id=id_, path=keys.batch(id_), reason=said, size=stat.size, sha256="0" * 64, written_at=at)


def reason_of(store: Store, keys: CatalogKeys, id_: str) -> Reason:
    """Why a batch lies in quarantine.   Raises: Missing if it does not; Corrupt.   Cost: 1 GET."""
    try:
        data = store.get(keys.reason(id_)).data
    except Missing:
        raise Missing(f"there is no batch {id_} in quarantine") from None
    return records.decode(data, Reason, what=keys.reason(id_))


def retry(store: Store, keys: CatalogKeys, id_: str, fold: Callable[[str, Blob], int]) -> int:
    """Have a batch read again, by a newer Limpet say; how many of its events are new. Then it leaves quarantine.

    Raises: Missing if it is not there; Invalid if it still cannot be read, and then it stays; whatever `fold` meets.
    Cost: 2 GETs, a fold, 2 DELETEs.   Crash: it stays, and the next retry finds its events folded.
    """
    said = reason_of(store, keys, id_)
    blob = store.get(keys.quarantined(id_), size_max=said.size)
    if hashlib.sha256(blob.data).hexdigest() != said.sha256:
        raise Corrupt(f"{keys.quarantined(id_)} is not what was put there: its digest differs")
    new = fold(id_, blob)
    forget(store, keys, id_)
    return new


def forget(store: Store, keys: CatalogKeys, id_: str) -> None:
    """Take a batch out of quarantine for good.   Raises: Denied for a role that may not.   Cost: 2 DELETEs."""
    for key in (keys.quarantined(id_), keys.reason(id_)):
        store.delete(Key(key))

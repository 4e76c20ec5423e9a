"""Batches of events that could not be read: each in quarantine, with its reason, until somebody reads it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from limpet.kernel import records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Corrupt, Missing
from limpet.kernel.keys import Key
from limpet.kernel.records import Count, Digest, Name, digest_of
from limpet.kernel.store.api import Blob, Store

REASON_CHARS_MAX = 500


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch is in quarantine: its path, the reason, size, digest and time."""

    id: Name
    path: Name
    reason: Name
    size: Count
    sha256: Digest
    written_at: Name


def isolate(store: Store, keys: CatalogKeys, id_: str, blob: Blob, reason: str) -> None:
    """Copy a batch to quarantine, then write the reason. Idempotent.   Cost: 2 PUTs.

    Crash: a copy without a reason; the batch is still in the ledger, and is found again.
    """
    said = Reason(
        id=id_,
        path=keys.batch(id_),
        reason=reason[:REASON_CHARS_MAX],
        size=len(blob.data),
        sha256=digest_of(blob.data),
        written_at=blob.modified.isoformat(timespec="seconds"),
    )
    store.put(keys.quarantined(id_), blob.data)
    store.put(keys.reason(id_), records.encode(said))


def quarantined(store: Store, keys: CatalogKeys) -> Iterator[Reason]:
    """The batches in quarantine, sorted by id; for a damaged reason, that is the reason.

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
                said = f"the reason cannot be read: {error}"[:REASON_CHARS_MAX]
                yield Reason(id=id_, path=keys.batch(id_), reason=said, size=stat.size, sha256="0" * 64, written_at=at)


def reason_of(store: Store, keys: CatalogKeys, id_: str) -> Reason:
    """Why a batch is in quarantine.   Raises: Missing if it is not there; Corrupt.   Cost: 1 GET."""
    try:
        data = store.get(keys.reason(id_)).data
    except Missing:
        raise Missing(f"there is no batch {id_} in quarantine") from None
    return records.decode(data, Reason, what=keys.reason(id_))


def retry(store: Store, keys: CatalogKeys, id_: str, fold: Callable[[str, Blob], int]) -> int:
    """Fold a batch from quarantine, for example with a newer Limpet, and remove it; returns how many events are new.

    Raises: Missing if it is not there; Invalid if it still cannot be read: then it stays; errors of `fold`.
    Cost: 2 GETs, a fold, 2 DELETEs.   Crash: it stays, and the next retry finds its events folded.
    """
    said = reason_of(store, keys, id_)
    blob = store.get(keys.quarantined(id_), size_max=said.size)
    if digest_of(blob.data) != said.sha256:
        raise Corrupt(f"{keys.quarantined(id_)} was modified in quarantine: its digest differs")
    new = fold(id_, blob)
    forget(store, keys, id_)
    return new


def forget(store: Store, keys: CatalogKeys, id_: str) -> None:
    """Delete a batch from quarantine.   Raises: Denied for a role that may not.   Cost: 2 DELETEs."""
    for key in (keys.quarantined(id_), keys.reason(id_)):
        store.delete(Key(key))

"""Inbox objects that cannot be read: kept with the reason, out of the way of the rest."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

import msgspec

from limpet import records
from limpet.errors import Corrupt
from limpet.index.storage import Storage
from limpet.keys import Key

__all__ = ["Quarantined", "quarantine", "read_quarantined"]


class Quarantined(msgspec.Struct, frozen=True):
    """An object as it was found: its key, what is wrong with it, and its bytes in base 64."""

    key: str
    reason: str
    found_at: str
    data: str


def read_quarantined(data: bytes, *, what: str) -> Quarantined:
    """An object as it was kept, however large.   Raises: Corrupt."""
    try:
        return records.decoder(Quarantined).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{what} is no object that was kept in quarantine: {error}") from None


def quarantine(storage: Storage, shard: str, bad: Mapping[Key, tuple[bytes, str]]) -> None:
    """Move objects to `quarantine/`: the copy is durable before the object is deleted.

    Cost: 1 PUT + 1 DELETE each.   Crash: the object, its copy, or both are there.
    """
    for key, (data, reason) in bad.items():
        at = storage.runtime.wall().isoformat(timespec="seconds")
        kept = Quarantined(key, reason, at, b64encode(data).decode())
        storage.add(storage.keys.quarantined(shard, storage.runtime.new_id()), records.encode(kept))
        storage.remove([key])

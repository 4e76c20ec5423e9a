"""Inbox objects that cannot be read: kept with the reason, out of the way of the rest."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated

import msgspec

from limpet import records
from limpet.index.storage import WAITING_BYTES_MAX, Storage
from limpet.keys import Key
from limpet.records import Name, Text

KEPT_CHARACTERS_MAX = 4 * (WAITING_BYTES_MAX // 3 + 1)
REASON_MAX = 2000


class Quarantined(msgspec.Struct, frozen=True):
    """An object as it was found: its key, what is wrong with it, and its bytes in base 64."""

    key: Text
    reason: Text
    found_at: Name
    data: Annotated[str, msgspec.Meta(max_length=KEPT_CHARACTERS_MAX)]


def read_quarantined(data: bytes, *, what: str) -> Quarantined:
    """An object as it was kept, however large.   Raises: Corrupt."""
    return records.decode(data, Quarantined, what=what, size_max=2 * KEPT_CHARACTERS_MAX)


def quarantine(storage: Storage, shard: str, bad: Mapping[Key, tuple[bytes, str]]) -> None:
    """Move objects to `quarantine/`: the copy is durable before the object is deleted.

    Cost: 1 PUT + 1 DELETE each.   Crash: the object, its copy, or both are there.
    """
    for key, (data, reason) in bad.items():
        keep(storage, shard, key, data, reason)
        storage.remove([key])


def keep(storage: Storage, shard: str, key: Key, data: bytes, reason: str) -> None:
    """Put a copy of an object, with the reason, into `quarantine/`.   Cost: 1 PUT, or 1 for every 256 MiB."""
    at = storage.runtime.wall().isoformat(timespec="seconds")
    for start in range(0, len(data) or 1, WAITING_BYTES_MAX):
        part = b64encode(data[start : start + WAITING_BYTES_MAX]).decode()
        kept = Quarantined(key, reason[:REASON_MAX], at, part)
        storage.add(storage.keys.quarantined(shard, storage.runtime.new_id()), records.encode(kept))

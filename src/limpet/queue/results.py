"""Results of a batch: small ones stand in its records, large ones in part objects."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from limpet import records
from limpet.keys import Key
from limpet.queue.records import Part
from limpet.queue.storage import Storage
from limpet.store.api import Absent

INLINE_BYTES_MAX = 1024
INLINE_TOTAL_MAX = 256 * 1024
PART_BYTES_MAX = 512 * 1024


class Results:
    """Keeps the results of one claim, and the large ones until they are written.

    `inline_bytes`: what earlier claims of the entry have put into the record.
    """

    def __init__(self, storage: Storage, entry: str, *, inline_bytes: int) -> None:
        self._storage = storage
        self._entry = entry
        self._inline_bytes = inline_bytes
        self.all: dict[int, msgspec.Raw] = {}
        self.large: dict[int, msgspec.Raw] = {}

    def is_large(self, n: int, data: msgspec.Raw) -> bool:
        """Whether the result of task `n` goes into a part object; then it is kept here."""
        self.all[n] = data
        size = len(bytes(data))
        if size <= INLINE_BYTES_MAX and self._inline_bytes + size <= INLINE_TOTAL_MAX:
            self._inline_bytes += size
            return False
        self.large[n] = data
        return True

    def write_large(self) -> Iterator[Key]:
        """Write what is kept; the keys of the parts. It comes before the record that names them.

        Cost: 1 PUT per 512 KiB.
        """
        while self.large:
            some: dict[int, msgspec.Raw] = {}
            size = 0
            for n, data in [*self.large.items()]:
                size += len(bytes(data))
                if some and size > PART_BYTES_MAX:
                    break
                some[n] = data
            key = self._storage.keys.part(self._entry, self._storage.runtime.new_id())
            self._storage.store.put(key, records.encode(Part(results=some)), when=Absent())
            for n in some:
                self.large.pop(n, None)
            yield key

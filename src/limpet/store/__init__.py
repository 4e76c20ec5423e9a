"""Bytes under names, with conditional writes, on a directory, in memory, or in a bucket.

`Store` is the whole interface. `DirectoryStore`, `MemoryStore` and `CloudStore` implement it; `ScopedStore` and
`MeteredStore` wrap any of them.
"""

from limpet.store.api import Absent, Always, Blob, Match, Put, Stat, Store, Version, When
from limpet.store.memory import MemoryStore

__all__ = [
    "Absent",
    "Always",
    "Blob",
    "Match",
    "MemoryStore",
    "Put",
    "Stat",
    "Store",
    "Version",
    "When",
]

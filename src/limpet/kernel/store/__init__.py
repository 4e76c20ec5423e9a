"""Bytes under names, with conditional writes, on a directory, in memory, or in a bucket.

`Store` is the whole interface. `DirectoryStore`, `MemoryStore` and `CloudStore` (`cloud`, imported only when a bucket
is opened) implement it; `ScopedStore` and `MeteredStore` wrap any of them. `outcome` resolves conditional writes whose
answer is unclear.
"""

from limpet.kernel.store.api import Absent, Always, Blob, Match, Put, Stat, Store, Version, When
from limpet.kernel.store.directory import DirectoryStore
from limpet.kernel.store.memory import MemoryStore
from limpet.kernel.store.metered import Cost, MeteredStore
from limpet.kernel.store.roles import ScopedStore

__all__ = [
    "Absent",
    "Always",
    "Blob",
    "Cost",
    "DirectoryStore",
    "Match",
    "MemoryStore",
    "MeteredStore",
    "Put",
    "ScopedStore",
    "Stat",
    "Store",
    "Version",
    "When",
]

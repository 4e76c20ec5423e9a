"""Bytes under names, with conditional writes, on a directory, in memory, or in a bucket.

`Store` is the whole interface. `DirectoryStore`, `MemoryStore` and `CloudStore` (`limpet.store.cloud`, imported only
when a bucket is opened) implement it; `ScopedStore` and `MeteredStore` wrap any of them. `outcome` resolves conditional
writes whose answer is unclear; `doctor` checks whether a store honours conditional writes at all.
"""

from limpet.store.api import Absent, Always, Blob, Match, Put, Stat, Store, Version, When
from limpet.store.directory import DirectoryStore
from limpet.store.memory import MemoryStore
from limpet.store.metered import Cost, MeteredStore
from limpet.store.roles import ScopedStore

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

"""How a test opens its store: again, or in another process."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from limpet.kernel.store import MemoryStore, Store

__all__ = ["KINDS", "SHARED_KINDS", "Maker"]

_FULL = [pytest.mark.full, pytest.mark.timeout(600)]  # the first use installs the server

SHARED_KINDS = [
    "directory-fsync",
    "directory-os",
    "seaweedfs",
    pytest.param("rgw", marks=_FULL),
    pytest.param("azurite", marks=_FULL),
]
KINDS = ["memory", *SHARED_KINDS]


@dataclass(frozen=True, slots=True)
class Maker:
    """A store's kind, place and options; it can be pickled."""

    kind: str
    url: str
    options: dict[str, str]

    def open(self) -> Store:
        """The store. A memory store is new each time."""
        if self.kind == "memory":
            return MemoryStore()
        if self.kind.startswith("directory"):
            from limpet.kernel.store.directory import DirectoryStore

            return DirectoryStore(self.url, durability="fsync" if self.kind.endswith("fsync") else "os")
        from limpet.kernel.store.cloud import CloudStore

        store = CloudStore(self.url, options=self.options)
        if self.kind == "rgw":
            store.etag_style = "unquoted"
        return store

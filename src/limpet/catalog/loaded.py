"""What the catalog hands out: tables and views with their metadata, and pages of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from limpet.catalog.warehouse import Document, Warehouse

__all__ = ["InMemory", "LoadedTable", "Page"]


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table or view: where its metadata lies (None if it is only staged), the bytes of it, and what clients need."""

    metadata_location: str | None
    metadata: bytes
    config: Mapping[str, str]
    etag: str


@dataclass(frozen=True, slots=True)
class Page:
    """Names in order; `next` is the `after` of the next page, None on the last."""

    names: Sequence[str]
    next: str | None


class InMemory:
    """Metadata that one request has at hand: what it loaded stays until it is answered, whatever the cache does."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._own: dict[str, Document] = {}

    def find(self, path: str) -> Document | None:
        """A metadata file, if it is in memory."""
        return self._own.get(path) or self._warehouse.cached(path)

    def load(self, paths: Sequence[str]) -> None:
        """Read those that are not.   Cost: 1 GET each, unless in memory."""
        for path in paths:
            self._own[path] = self._warehouse.read(path)

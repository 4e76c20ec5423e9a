"""What the catalog hands out: tables and views with their metadata, and pages of names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from limpet.catalog.warehouse import Document, Warehouse
from limpet.errors import LimpetError


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


class Ahead:
    """What one request has worked out before the leader is asked: the metadata after it, by the path of that before it.

    The leader only looks whether a table still has the metadata that this began with. So a commit that takes long holds
    up nobody but its own client (C4).
    """

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._found: dict[str, Document] = {}
        self._results: dict[str, Document | LimpetError | None] = {}
        self.rounds = 0
        """How often the tables had changed meanwhile."""

    def find(self, path: str) -> Document | None:
        """A metadata file, if it is in memory: whatever the cache does, what was read stays until the answer."""
        return self._found.get(path) or self._warehouse.cached(path)

    def has(self, path: str) -> bool:
        """Whether the commit was worked out on this metadata."""
        return path in self._results

    def result(self, path: str) -> Document | None:
        """The metadata after the commit; None if nothing changes.   Raises: what the commit is refused with."""
        result = self._results[path]
        if isinstance(result, LimpetError):
            raise result
        return result

    def work_out(self, needs: Mapping[str, Callable[[Document], Document | None]]) -> None:
        """Work the commit out on metadata. What it is refused with is for the leader to say: it may be granted already.

        Raises: Corrupt; Unavailable.   Cost: 1 GET each, unless in memory.
        """
        for path, apply in needs.items():
            document = self._found[path] = self.find(path) or self._warehouse.read(path)
            try:
                made = apply(document)
            except LimpetError as error:
                self._results[path] = error
                continue
            if made is not None:
                made.digest()
            self._results[path] = made

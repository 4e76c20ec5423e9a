"""How a fleet opens an index, and how its compilers are spread over other processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from limpet.index import CompileReport, Index
from limpet.index.stamps import stamps_of
from limpet.index.typed import typed
from limpet.lease import Sightings
from limpet.runtime import Runtime
from limpet.store import Store

__all__ = ["CompileJob", "open_index"]


@dataclass(frozen=True, slots=True)
class CompileJob:
    """Compiles some shards in whatever process it is called: a thread, a child, a machine of a Dask or Ray cluster.

    That process opens the fleet by its URL, with the credentials of its own environment.
    """

    open: Callable[[str], Any]
    url: str
    index: str

    def __call__(self, shards: Sequence[str], full: bool) -> CompileReport:
        """Compile them.   Raises: as `Index.compile_shards`."""
        index: Index[Any] = self.open(self.url).index(self.index)
        return index.compile_shards(shards, full=full)


def open_index(
    store: Store,
    url: str,
    name: str,
    runtime: Runtime,
    sightings: Sightings,
    opener: Callable[[str], Any],
    *,
    kind: Any,
    key: str | None,
    depth: int | None,
) -> Index[Any]:
    """The index `name`, of records of `kind`.   Raises: Invalid.   Cost: nothing yet."""
    return Index(
        store,
        name,
        runtime,
        typed(kind, key),
        stamps_of(store, runtime, url),
        sightings,
        depth=depth,
        job=CompileJob(opener, url, name),
    )

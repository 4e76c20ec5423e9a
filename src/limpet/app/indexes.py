"""How a fleet opens an index, and how its compilers are spread over other processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from limpet.app.urls import absolute
from limpet.errors import LimpetError
from limpet.events import EventSink
from limpet.index import CompileReport, Index
from limpet.index.codec.types import typed
from limpet.index.writer import Stamps
from limpet.lease import VersionWatch
from limpet.runtime import Runtime
from limpet.store import Store

if TYPE_CHECKING:
    from limpet.index.files import ChunkOrder, Taken
    from limpet.index.formats import Chunk


@dataclass(frozen=True, slots=True)
class _IndexJob:
    """Work on an index in whatever process it is called: a thread, a child, a machine of a Dask or Ray cluster.

    That process opens the fleet by its URL, with the credentials of its own environment.
    """

    open: Callable[[str], Any]
    url: str
    index: str

    def _opened(self) -> Index[Any]:
        return cast(Index[Any], self.open(self.url).index(self.index))


class CompileJob(_IndexJob):
    """Compiles some shards."""

    def __call__(self, shards: Sequence[str], full: bool, run_id: str) -> Sequence[CompileReport | LimpetError]:
        """Compile them; the outcome of each. `run_id` only makes each call unique (see `ShardJob`).

        Raises: whatever opening the index meets.
        """
        return self._opened().compile_shards(shards, full=full)


class ImportJob(_IndexJob):
    """Takes a chunk of a file into an index."""

    def __call__(self, chunk: Chunk, order: ChunkOrder) -> Taken:
        """Take it.   Raises: as `take`."""
        from limpet.index.files import take

        return take(self._opened(), chunk, order)


def open_index(
    store: Store,
    url: str,
    name: str,
    runtime: Runtime,
    stamps: Stamps,
    watch: VersionWatch,
    opener: Callable[[str], Any],
    *,
    kind: Any,
    key: str | None,
    depth: int | None,
    events: EventSink | None,
) -> Index[Any]:
    """The index `name`, of records of `kind`.   Raises: Invalid.   Cost: nothing yet."""
    return Index(
        store,
        name,
        runtime,
        typed(kind, key),
        stamps,
        watch,
        depth=depth,
        job=None if url.startswith("memory:") else CompileJob(opener, absolute(url), name),
        events=events,
    )

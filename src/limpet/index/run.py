"""One compile run: its shards here, or spread over the workers of an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future

from limpet.errors import LimpetError, Unavailable
from limpet.events import EventSink, compaction
from limpet.index.compiler import Compiler, CompileReport
from limpet.index.decide import shard_ids
from limpet.index.manifest import Manifest
from limpet.index.storage import Storage, Work
from limpet.lease import VersionWatch
from limpet.runtime import Runtime

PART = 8
AT_ONCE = 8
AT_ONCE_BYTES = 64 << 20
"""So many bytes of shards are folded side by side, or one shard: memory is bounded by the largest."""

ROUND_SHARDS = 256
ROUND_BYTES = 1 << 30
"""After so many shards, or bytes of them, a run records what it has folded: a run that dies repeats no more."""

Outcomes = Sequence[CompileReport | LimpetError]
Stop = Callable[[], bool]

Job = Callable[[Sequence[str], bool, str], Outcomes]
"""Compiles some shards of an index wherever it is run; made by `limpet.app`, so that it can be pickled.

The last argument is different each time: some executors (Dask's) answer a call that they have seen before from memory.
"""


def never() -> bool:
    """Do not stop."""
    return False


def rounds(shards: Sequence[str], manifest: Manifest) -> Iterator[list[str]]:
    """The shards in runs that are recorded together."""
    sizes = dict(zip(shard_ids(manifest.depth), manifest.sizes, strict=False))
    some: list[str] = []
    size = 0
    for shard in shards:
        more = sizes.get(shard, 0)
        if some and (len(some) == ROUND_SHARDS or size + more > ROUND_BYTES):
            yield some
            some, size = [], 0
        some.append(shard)
        size += more
    if some:
        yield some


def compile_here(
    storage: Storage,
    manifest: Manifest,
    sightings: VersionWatch,
    shards: Sequence[str],
    work: Work,
    full: bool,
    stop: Stop,
) -> Outcomes:
    """Compile those shards in this process, some side by side: what became of each.

    A folder that is no shard of this index is counted: a program that knows it by another depth writes there.
    """
    compiler = Compiler(storage, manifest, sightings)
    every = {*shard_ids(manifest.depth)}

    def one(shard: str) -> CompileReport | LimpetError:
        if stop():
            return CompileReport()
        if shard not in every:
            return CompileReport(strays=1)
        try:
            return compiler.compile(shard, work, full=full)
        except LimpetError as error:
            return error

    largest = max(manifest.sizes, default=0)
    at_once = max(1, min(AT_ONCE, storage.store.at_once, AT_ONCE_BYTES // max(largest, 1)))
    return storage.runtime.fan_out(one, shards, at_once=at_once)


def compile_there(
    job: Job, executor: Executor, shards: Sequence[str], full: bool, run_id: str, stop: Stop
) -> Iterator[CompileReport | LimpetError]:
    """Have those shards compiled by an executor's workers: what became of each, or of each part that a worker lost."""
    parts = [shards[at : at + PART] for at in range(0, len(shards), PART)]
    futures: list[Future[Outcomes]] = []
    try:
        futures = [executor.submit(job, part, full, f"{run_id}-{number}") for number, part in enumerate(parts)]
    except RuntimeError as error:  # a pool that is broken or shut down
        yield Unavailable(f"the executor takes no work: {error}")
    for future in futures:
        if stop() and future.cancel():
            continue
        try:
            yield from future.result()
        except LimpetError as error:
            yield error
        except (BrokenExecutor, CancelledError) as error:
            yield Unavailable(f"a worker ended before its shards were compiled: {error or type(error).__name__}")


def tell(
    sink: EventSink, runtime: Runtime, index: str, report: CompileReport, failed: LimpetError | None, began_s: float
) -> None:
    """Note a run that changed something or failed; one that found nothing to do is no event."""
    if not (report.folded or report.packed or report.quarantined or failed):
        return
    names = ("folded", "packed", "rested", "held", "conflicts", "objects", "records", "written_bytes", "quarantined")
    counts = {name: getattr(report, name) for name in names}
    took_s = round(runtime.elapsed_s() - began_s, 6)
    sink.emit(compaction(runtime, index=index, counts=counts, took_s=took_s, error=str(failed) if failed else ""))

"""The worlds that `python -m limpet.sim` can run, by name."""

from limpet.sim.scenarios import catalog, directory, index, index_disk, kernel, queue, supervisor
from limpet.sim.shrink import Run

__all__ = ["SCENARIOS"]

SCENARIOS: dict[str, Run] = {
    "kernel": kernel.run,
    "directory": directory.run,
    "queue": queue.run,
    "supervisor": supervisor.run,
    "index": index.run,
    "index_disk": index_disk.run,
    "catalog": catalog.run,
}

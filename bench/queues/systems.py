"""Which systems are measured, and what is known of each beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.queues.dramatiq import HEARTBEAT_S
from bench.queues.postgres import LEASE_S
from bench.queues.procrastinate import STALLED_S

__all__ = ["SYSTEMS", "Kind", "System"]

Kind = Literal["ours", "file", "SQLite", "server"]
OURS_TTL_S = 4.0


@dataclass(frozen=True, slots=True)
class System:
    """One row. `synced` says when an acknowledged push has reached the disk."""

    name: str
    kind: Kind
    module: str
    synced: str
    options: Mapping[str, Any] = field(default_factory=dict)
    server: Literal["", "redis", "postgres"] = ""
    slow: bool = False
    """Drains 2,000 of a backlog, not all of it."""
    pairs: bool = True
    """Is measured with two workers too."""
    million: bool = False
    """Is measured at a backlog of a million too."""
    back_after_s: float = 0.0
    """How long what a killed worker held stays with it, at the shortest setting that is sensible."""
    kill_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def durable(self) -> bool:
        """Whether an acknowledged push survives a power loss."""
        return self.synced == "each"

    @property
    def batch(self) -> int:
        """How many tasks are pushed and claimed at once."""
        return int(self.options.get("batch", 1))


def _ours(batch: int, durability: str) -> System:
    return System(
        name=f"limpet {'batch 100' if batch > 1 else 'single'}, {durability}",
        kind="ours",
        module="ours",
        synced="each" if durability == "fsync" else "never",
        options={"batch": batch, "durability": durability},
        million=batch > 1 or durability == "os",
        back_after_s=3 * OURS_TTL_S,
        kill_options={"ttl_s": OURS_TTL_S},
    )


def _postgres(batch: int, commit: str, rows: str = "deleted") -> System:
    more = ", leased rows" * (rows == "leased") + ", async commit" * (commit == "off")
    return System(
        name=f"Postgres {'batch 100' if batch > 1 else 'single'}{more}",
        kind="server",
        module="postgres",
        synced="each" if commit == "on" else "within 0.6 s",
        options={"batch": batch, "commit": commit, "rows": rows},
        server="postgres",
        slow=batch == 1,
        million=batch > 1 and commit == "on",
        back_after_s=LEASE_S if rows == "leased" else 0.0,
    )


def _procrastinate(batch: int, concurrency: int) -> System:
    return System(
        name=f"Procrastinate, {'batch defer' if batch > 1 else 'defer'}, {concurrency} at a time",
        kind="server",
        module="procrastinate",
        synced="each",
        options={"batch": batch, "concurrency": concurrency},
        server="postgres",
        slow=True,
        back_after_s=2 * STALLED_S,
        # Without a task that looks for stalled jobs, what a killed worker held stays with it.
        kill_options={"reap_s": STALLED_S},
    )


def _dramatiq(threads: int) -> System:
    return System(
        name=f"Dramatiq + Redis, {threads} thread{'s' if threads > 1 else ''}",
        kind="server",
        module="dramatiq",
        synced="within 1 s",
        options={"threads": threads},
        server="redis",
        slow=True,
        back_after_s=2 * HEARTBEAT_S,
        # Its own chance of 1 in 1,000 commands would be a lottery in a short run: look at every command.
        kill_options={"maintenance": 1_000_000},
    )


SYSTEMS = (
    _ours(100, "os"),
    _ours(100, "fsync"),
    _ours(1, "os"),
    _ours(1, "fsync"),
    System("Huey SQLite, fsync off", "SQLite", "huey", "never", {"storage": "sqlite", "fsync": False}),
    System("Huey SQLite", "SQLite", "huey", "each", {"storage": "sqlite"}),
    System("Huey File", "file", "huey", "never", {"storage": "file"}, slow=True),
    System("litequeue", "SQLite", "litequeue", "at checkpoints", slow=True),
    System("persist-queue Ack", "SQLite", "persistqueue", "each"),
    System("Celery filesystem, worker", "file", "celery", "never", {"consumer": "worker"}, slow=True),
    System("Celery filesystem, kombu", "file", "celery", "never", {"consumer": "kombu"}, slow=True, pairs=False),
    _dramatiq(1),
    _dramatiq(8),
    _procrastinate(1, 1),
    _procrastinate(100, 8),
    _postgres(1, "on"),
    _postgres(1, "off"),
    _postgres(100, "on"),
    _postgres(100, "off"),
    _postgres(100, "on", "leased"),
)

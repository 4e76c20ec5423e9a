"""Who is alive: a presence object for each worker process, `workers/<id>.json`.

A process writes its object once it has run for a second, rewrites it every two minutes, and deletes it when it ends.
One that was killed leaves its object behind: the process that takes its place in the same `limpet work` deletes it;
without one, `workers` shows it as gone five minutes after the last renewal, and the next process that starts deletes it
a day later. Nothing depends on these objects: a task is safe by its lease alone,
so a presence that is lost, late or stale changes only what people see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import Annotated

import msgspec

from limpet import __version__
from limpet.app.fleet import Fleet
from limpet.app.record import BACKUP, SUPERVISED
from limpet.kernel import keys, records
from limpet.kernel.errors import Corrupt, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.records import Count, Instant, Name
from limpet.kernel.runtime import Runtime
from limpet.kernel.store import Store
from limpet.kernel.waiting import ticks
from limpet.queue.cost import PRESENCE_EVERY_S

FIRST_S = 1.0
"""A process that ends sooner costs no request."""
GONE_S = 300.0
SWEEP_EVERY_S = KEPT_S = 86400.0
END_S = 2.0
"""How long the end of a process waits for its object to be deleted."""
QUEUES_MAX = 200
WORKERS_MAX = 1000


class WorkerPresence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `workers/<id>.json` holds, with the first 200 queues. Times are by the clock of the worker's machine."""

    host: Name
    pid: Count
    version: Name
    queues: Annotated[list[Name], msgspec.Meta(max_length=QUEUES_MAX)]
    threads: Count
    since: Instant
    renewed_at: Instant


class PresenceWriter:
    """Keeps the presence object of this process up to date, on a background thread.

    `on_refused` is called once, with the error, if the key in use may not write it; then nothing more is tried. Any
    other error is dropped: the next renewal makes good for it. `on_written` is called once, after the first PUT.
    `reaped`: the owners of processes that are known to have died; their objects are deleted.
    Cost: 1 PUT after a second and every two minutes, 1 LIST after the first PUT and once a day, 1 DELETE at the end;
    nothing for a process that ends within a second. 1 DELETE for each that was reaped.
    Crash: the object stays, and another process deletes it a day later.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        queues: Sequence[str],
        threads: int,
        on_refused: Callable[[LimpetError], None] = lambda error: None,
        on_written: Callable[[], None] = lambda: None,
        reaped: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._key = keys.worker_key(runtime.owner)
        self._on_refused = on_refused
        self._on_written = on_written
        self._reaped = [*map(keys.worker_key, reaped)]
        host, _, pid = runtime.label.rpartition(":")
        now = runtime.wall()
        self._record = WorkerPresence(
            host=host[: records.NAME_MAX],
            pid=int(pid) if pid.isdigit() else 0,
            version=__version__,
            queues=[*queues][:QUEUES_MAX],
            threads=threads,
            since=now,
            renewed_at=now,
        )
        self._over = runtime.flag()
        self._ended = runtime.flag()

    def start(self) -> None:
        """Start the thread."""
        self._runtime.spawn(self._keep, name="limpet-presence")

    def stop(self) -> None:
        """End the thread and delete the object. Waits two seconds at most."""
        self._over.set()
        self._ended.wait(END_S)

    def _keep(self) -> None:
        written = False
        swept_s = float("-inf")
        try:
            for key in self._reaped:
                with suppress(LimpetError):
                    self._store.delete(key)
            for _ in chain(islice(ticks(self._over, FIRST_S), 1), ticks(self._over, PRESENCE_EVERY_S)):
                self._record = msgspec.structs.replace(self._record, renewed_at=self._runtime.wall())
                try:
                    self._store.put(self._key, records.encode(self._record))
                    if not written:
                        self._on_written()
                    written = True
                    if self._runtime.elapsed_s() - swept_s >= SWEEP_EVERY_S:
                        swept_s = self._runtime.elapsed_s()
                        sweep(self._store, self._runtime)
                except (Denied, Unsupported, Invalid) as error:
                    self._on_refused(error)
                    return
                except LimpetError:
                    continue
            if written:
                with suppress(LimpetError):
                    self._store.delete(self._key)
        finally:
            self._ended.set()


def sweep(store: Store, runtime: Runtime) -> int:
    """Delete the presence objects that were not renewed for a day. Returns their number.

    Cost: 1 LIST per 1,000 processes, 1 DELETE for each that goes.
    """
    listed = [stat for stat in store.list(keys.WORKERS) if keys.worker_of(stat.key) is not None]
    now = max([runtime.wall(), *(stat.modified for stat in listed)])
    old = [stat.key for stat in listed if (now - stat.modified).total_seconds() > KEPT_S]
    for key in old:
        store.delete(key)
    return len(old)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker process. `gone`: it has not renewed its presence for five minutes, so it was most likely killed."""

    id: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    threads: int
    since: datetime
    renewed_at: datetime
    renewed_s: float
    """Seconds since the last renewal, by the store's clock."""
    gone: bool

    @property
    def label(self) -> str:
        """`host:pid`, as leases and logs name the process."""
        return f"{self.host}:{self.pid}"


@dataclass(frozen=True, slots=True)
class FleetWorkers:
    """The worker processes of a fleet, those alive first, each part by host and pid.

    `more`: there are more than the limit that was given.
    """

    workers: list[WorkerState]
    unreadable: dict[str, str]
    """The keys of presence objects that cannot be read, with the reason."""
    more: bool = False
    unknown: int = 0
    """Processes that are alive, or may be, whose queues are not known: a presence object that cannot be read."""
    elsewhere: bool = False
    """Whether processes in other places may work on the tasks (`limpet supervise`), or the fleet is a backup."""

    def may_work_on(self, queue: str) -> bool:
        """Whether a living process names this queue, or may: those that were not read, or name only their first 200."""
        named = any(queue in each.queues or len(each.queues) >= QUEUES_MAX for each in self.alive)
        return named or self.more or bool(self.unknown) or self.elsewhere

    @property
    def alive(self) -> list[WorkerState]:
        """Those that have renewed their presence lately."""
        return [each for each in self.workers if not each.gone]


def workers(fleet: Fleet, limit: int = WORKERS_MAX) -> FleetWorkers:
    """The worker processes that wrote a presence object and have not deleted it, at most `limit`.

    A process that has just started, or has presence switched off, is not among them; nor is one that works on SQS.
    Cost: 1 LIST per 1,000 processes + 1 GET each.
    """
    listed = [*islice(fleet.store.list(keys.WORKERS), limit + 1)]
    found: list[WorkerState] = []
    unreadable: dict[str, str] = {}
    unknown = 0
    modified = {stat.key: stat.modified for stat in listed}
    now = max([fleet.runtime.wall(), *(stat.modified for stat in listed)])
    for key, blob in fleet.store.get_many([stat.key for stat in listed[:limit]]).items():
        id_ = keys.worker_of(key)
        if isinstance(blob, Missing) or id_ is None:
            continue
        try:
            if isinstance(blob, LimpetError):
                raise blob
            record = records.decode(blob.data, WorkerPresence, what=key)
        except (Corrupt, Invalid, Unsupported) as error:
            unreadable[key] = str(error)
            unknown += (now - modified[key]).total_seconds() <= GONE_S
            continue
        renewed_s = max(0.0, (now - blob.modified).total_seconds())
        fields = msgspec.structs.asdict(record) | {"queues": tuple(record.queues)}
        found.append(WorkerState(id=id_, **fields, renewed_s=round(renewed_s, 1), gone=renewed_s > GONE_S))
    found.sort(key=lambda each: (each.gone, each.host, each.pid, each.id))
    elsewhere = not {SUPERVISED, BACKUP}.isdisjoint(fleet.record.features)
    return FleetWorkers(found, unreadable, more=len(listed) > limit, unknown=unknown, elsewhere=elsewhere)

"""Procrastinate: its own app, `defer` or `batch_defer`, and its own worker; the handler is a coroutine.

Jobs are kept when they are done (`delete_jobs` "never", its default). What a killed worker held comes back only by the
task that its documentation tells users to write: with the option `reap_s` it looks for stalled jobs every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from bench.queues.api import Options, Payload, Place, Queue, Tally, needs

__all__ = ["STALLED_S", "connect"]

STALLED_S = 3.0
"""For the kill: when a worker without heartbeat counts as stalled; by default 30 s."""


def connect(place: Place, options: Options) -> Queue:
    """`batch` jobs a statement when they are pushed; `concurrency` jobs at a time in one worker."""
    return _Procrastinate(place, options)


class _Procrastinate(Queue):
    def __init__(self, place: Place, options: Options) -> None:
        package, psycopg = needs("procrastinate", "procrastinate"), needs("psycopg", "psycopg[binary]")
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._options = options
        where = {"host": place.address, "dbname": "postgres", "user": "bench"}
        self._connection = psycopg.connect(**where, autocommit=True)
        if place.fresh:
            self._connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        self._app = package.App(connector=package.PsycopgConnector(kwargs=where))
        if place.fresh:
            with self._app.replace_connector(package.SyncPsycopgConnector(kwargs=where)) as app, app.open():
                app.schema_manager.apply_schema()
            self._connection.execute("CHECKPOINT")
        self._tally: Tally | None = None
        self._task = self._app.task(name="handle")(self._handle)
        if "reap_s" in options:
            reap = self._app.task(name="reap", queueing_lock="reap", pass_context=True)(self._reap)
            self._app.periodic(cron="* * * * * *")(reap)

    async def _handle(self, **payload: Any) -> None:
        assert self._tally is not None
        self._tally.handle(payload)

    async def _reap(self, context: Any, timestamp: int) -> None:
        manager = self._app.job_manager
        for job in await manager.get_stalled_jobs(seconds_since_heartbeat=self._options["reap_s"]):
            await manager.retry_job(job)

    def push(self, payloads: Sequence[Payload]) -> None:
        batch = int(self._options["batch"])
        with self._app.open():
            if batch == 1:
                for payload in payloads:
                    self._task.defer(**payload)
                return
            for first in range(0, len(payloads), batch):
                self._task.batch_defer(*payloads[first : first + batch])

    def settle(self) -> None:
        self._connection.execute("VACUUM ANALYZE procrastinate_jobs")

    def work(self, tally: Tally) -> None:
        self._tally = tally
        asyncio.run(self._work(tally))

    async def _work(self, tally: Tally) -> None:
        reap_s = self._options.get("reap_s")
        timing = {} if reap_s is None else {"update_heartbeat_interval": reap_s / 3, "stalled_worker_timeout": reap_s}
        async with self._app.open_async():
            running = self._app.run_worker_async(
                concurrency=self._options["concurrency"], install_signal_handlers=False, **timing
            )
            worker = asyncio.create_task(running)
            while not tally.over() and not worker.done():
                await asyncio.sleep(0.01)
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    def left(self) -> int:
        count = "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'handle' AND status IN ('todo', 'doing')"
        return int(self._connection.execute(count).fetchone()[0])

    def close(self) -> None:
        self._connection.close()

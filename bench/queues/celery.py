"""Celery's filesystem transport: by the real worker (solo pool, one task at a time), and by kombu's consumer alone.

Whatever slows the worker and is no part of handling tasks is off: remote control, gossip, mingle, heartbeat, events,
results. Messages are moved through the temp folder, which is on tmpfs too (TMPDIR).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.queues.api import Options, Payload, Place, Queue, Tally, needs

__all__ = ["connect"]

NAME = "bench"


def connect(place: Place, options: Options) -> Queue:
    """`consumer` is worker (Celery's) or kombu."""
    folders = {"data_folder_in": "messages", "data_folder_out": "messages", "control_folder": "control"}
    transport: dict[str, Any] = {name: str(place.folder / folder) for name, folder in folders.items()}
    for folder in transport.values():
        Path(folder).mkdir(exist_ok=True)
    transport["polling_interval"] = 0.01
    return _Celery(transport) if options["consumer"] == "worker" else _Kombu(transport)


class _Messages(Queue):
    def __init__(self, transport: dict[str, Any]) -> None:
        self._messages = Path(transport["data_folder_in"])

    def left(self) -> int:
        return sum(1 for _ in self._messages.iterdir())


class _Celery(_Messages):
    def __init__(self, transport: dict[str, Any]) -> None:
        super().__init__(transport)
        self._app = needs("celery", "celery").Celery(NAME, broker="filesystem://")
        self._app.conf.update(
            broker_connection_retry_on_startup=True,
            broker_transport_options=transport,
            task_ignore_result=True,
            worker_enable_remote_control=False,
            worker_prefetch_multiplier=1,
        )
        self._tally: Tally | None = None

        def handle(payload: Payload) -> None:
            assert self._tally is not None
            self._tally.handle(payload)

        self._task = self._app.task(name="handle")(handle)

    def push(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self._task.delay(payload)

    def work(self, tally: Tally) -> None:
        self._tally = tally
        state = needs("celery.worker.state", "celery")
        worker = self._app.Worker(
            pool="solo",
            concurrency=1,
            loglevel="ERROR",
            quiet=True,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        threading.Thread(target=_stop_when_over, args=(tally, state), daemon=True).start()
        worker.start()


def _stop_when_over(tally: Tally, state: Any) -> None:
    while not tally.over():
        tally.rest()
    state.should_stop = 0


class _Kombu(_Messages):
    def __init__(self, transport: dict[str, Any]) -> None:
        super().__init__(transport)
        self._kombu = needs("kombu", "celery")
        self._connection = self._kombu.Connection("filesystem://", transport_options=transport)
        self._queue = self._kombu.Queue(NAME, self._kombu.Exchange(NAME), routing_key=NAME)

    def push(self, payloads: Sequence[Payload]) -> None:
        with self._connection.Producer(serializer="json") as producer:
            for payload in payloads:
                producer.publish(payload, exchange=self._queue.exchange, routing_key=NAME, declare=[self._queue])

    def work(self, tally: Tally) -> None:
        def handle(payload: Payload, message: Any) -> None:
            tally.handle(payload)
            message.ack()

        with self._connection.Consumer(self._queue, callbacks=[handle], prefetch_count=1):
            while not tally.over():
                try:
                    self._connection.drain_events(timeout=0.1)
                except TimeoutError:
                    continue

    def close(self) -> None:
        self._connection.close()

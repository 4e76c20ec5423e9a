"""`BucketQueue`: a queue in a store. Its methods by audience: pushing here, `claiming`, `inspect`, `operating`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Never

from limpet.kernel import records
from limpet.kernel.answers import AnswersNames, answers_options, refuse_option
from limpet.kernel.errors import OutcomeUnknown
from limpet.kernel.keys import QueueKeys, count_of
from limpet.kernel.lease import VersionWatch
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Store
from limpet.queue.api import FEATURES, Feature, Policy, Pushed, Queue, TaskHandle
from limpet.queue.claiming import Claiming
from limpet.queue.durable import arguments_digest
from limpet.queue.entry import PushedStep, encoded_payload
from limpet.queue.operating import Operating
from limpet.queue.push import Pusher
from limpet.queue.results import plain_id
from limpet.queue.steps import RUNNING, in_order
from limpet.queue.storage import Journal, Storage
from limpet.queue.tracing import OTEL, span


class BucketQueue(AnswersNames, Claiming, Operating):
    """Tasks in a store: at least once, nothing acknowledged is lost, each ends in one place.

    Safe to share between threads. See `Queue` for the promises and docs/trust/guarantees.md for the proofs.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        runtime: Runtime,
        *,
        policy: Policy | None = None,
        provider: str = "bucket",
        payload_type: Any = None,
        journal: Journal | Callable[[], Journal | None] | None = None,
        watch: VersionWatch | None = None,
        epoch: int | Callable[[], int] = 0,
    ) -> None:
        storage = Storage(store, QueueKeys.of(name), runtime, journal, epoch)
        storage.watch = watch or storage.watch
        super().__init__(storage, policy or Policy(), records.decoder(payload_type or Any))
        self.name = name
        self.provider = provider
        self.supports: frozenset[Feature] = FEATURES
        self._payload_type = payload_type
        self._pusher = Pusher(storage)

    def __repr__(self) -> str:
        return f"<queue {self.name!r} ({self.provider})>"

    def push(self, payload: Any, *, id: str | int | None = None, delay_s: float = 0.0, **unknown: Never) -> Pushed:
        """Cost: 1 PUT; with an id 1 PUT + 2 HEADs.   Crash: the task is there, or it is not."""
        for option in unknown:
            refuse_option(option, ("id", "delay_s"), "push()")
        data = encoded_payload(payload, self._payload_type)
        id = id if id is None or isinstance(id, str) else plain_id(id)
        steps = RUNNING.get()
        if steps is not None and steps.numbers_push(has_id=id is not None):
            push = partial(self._push_step, data, id, delay_s)
            step = steps.push(self.name, self._store, push, arguments_digest([payload, id], {}))
            return Pushed(self._handle(step.id or ""), step.created)
        pushed = self._push(data, id=id, delay_s=delay_s)
        return Pushed(self._handle(pushed.id), pushed.created)

    def _push(self, data: bytes, *, delay_s: float, **about: Any) -> Pushed:
        if OTEL not in sys.modules:
            pushed = self._pusher.push(data, delay_s=delay_s, **about)
        else:
            with span("push", self.name, "producer") as traced:
                pushed = self._pusher.push(data, delay_s=delay_s, trace=traced.traceparent(), **about)
                traced.set(message_id=pushed.id, created=pushed.created)
        if self.discovery.pages.crowded and pushed.created and not delay_s:
            self.discovery.add([pushed.id])  # so that it need not be looked for among thousands
        return pushed

    def _push_step(self, data: bytes, id_: str | None, delay_s: float, name: str, **about: Any) -> PushedStep:
        """The push of a durable task: under the derived name, unless it has an id."""
        pushed = self._push(data, id=id_, delay_s=delay_s, name=name, **about)
        return PushedStep(id=pushed.id, created=pushed.created)

    @answers_options
    def push_many(self, payloads: Iterable[Any], *, batch: int = 100, id: str | int | None = None) -> list[TaskHandle]:
        """Cost: 1 PUT a batch; with an id 2 HEADs more for each, and 1 PUT.   Crash: whole batches are there or not."""
        id = id if id is None or isinstance(id, str) else plain_id(id)
        steps = RUNNING.get()
        if steps is not None:
            payloads = [*payloads]  # in a task the iterable may ask for steps itself
        encoded: Iterable[bytes] = (encoded_payload(payload, self._payload_type) for payload in payloads)
        try:
            if steps is not None and steps.numbers_push(has_id=id is not None):
                encoded = [*encoded]
                push = partial(self._push_steps, encoded, batch, id)
                entries = steps.push(self.name, self._store, push, arguments_digest([*payloads, id, batch], {})).entries
            else:
                entries = self._push_many(encoded, batch=batch, id=id)
        except OutcomeUnknown as error:
            error.pushed = [*map(self._handle, error.pushed)]
            raise
        return [self._handle(f"{entry}.{n}") for entry in entries for n in range(count_of(entry))]

    def _push_many(self, encoded: Iterable[bytes], **about: Any) -> list[str]:
        if OTEL not in sys.modules:
            entries = self._pusher.push_many(encoded, **about)
        else:
            with span("push", self.name, "producer") as traced:
                entries = self._pusher.push_many(encoded, trace=traced.traceparent(), **about)
                traced.set(tasks=sum(map(count_of, entries)))
        if self.discovery.pages.crowded and not about.get("id"):
            self.discovery.add(entries)
        return entries

    def _push_steps(
        self, encoded: Iterable[bytes], batch: int, id_: str | None, name: str, *, fresh: bool, **about: Any
    ) -> PushedStep:
        """As `_push_step`, for many tasks."""
        about |= {"name": name, "fresh": fresh} if id_ is None else {"id": id_}
        entries = self._push_many(encoded, batch=batch, **about)
        return PushedStep(entries=entries)

    def push_async(
        self, payload: Any, *, id: str | int | None = None, delay_s: float = 0.0
    ) -> Coroutine[Any, Any, Pushed]:
        return in_order(self.push, payload, id=id, delay_s=delay_s)

    def _handle(self, id_: str) -> TaskHandle:
        handle = TaskHandle(id_)
        handle.queue = self
        return handle


def pending_in(queue: Queue) -> int:
    """How many tasks of a queue have not ended: the `pending` of its `stats`.

    Cost: 1 LIST per 1,000 objects that wait; on SQS that of `stats`.
    """
    return queue.pending() if isinstance(queue, BucketQueue) else queue.stats().pending

"""`SqsClaim`: messages that this process has received, from the delivery to the verdicts on their tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from limpet.kernel.errors import Invalid, OutcomeUnknown, Unavailable
from limpet.kernel.keys import first_name
from limpet.kernel.waiting import backoff_s
from limpet.queue.api import NO_VERDICT, apply_error
from limpet.queue.sqs.client import TRIES, FailedDelivery, Message, TaskMessage, check

if TYPE_CHECKING:
    from limpet.queue.sqs.queue import SqsQueue

HIDDEN_MAX_S = 12 * 3600


@dataclass(slots=True)
class Delivery:
    """One delivery and how far it is. `until_s` is when others may get it, on this process's clock."""

    message: Message
    task: TaskMessage
    until_s: float
    received_s: float
    started_s: float = 0.0
    state: Literal["waiting", "running", "ended", "over", "back"] = "waiting"
    """`ended`: done and not yet deleted; `over`: it has a verdict, and the message is gone; `back`: handed back."""
    gone: bool = False


class SqsTask:
    """One task of a claim. See `Task` for the verdicts."""

    __slots__ = ("_claim", "_held", "payload")

    def __init__(self, claim: SqsClaim, held: Delivery, payload: Any) -> None:
        self._claim = claim
        self._held = held
        self.payload = payload

    @property
    def id(self) -> str:
        return self._held.task.id

    @property
    def key(self) -> str:
        """Its id without the mark of a retry: here every push of an id has the same key."""
        return first_name(self.id)

    @property
    def attempt(self) -> int:
        """The number of times that SQS has delivered the message."""
        return self._held.message.count

    @property
    def fence(self) -> None:
        """SQS gives no token that rises."""

    @property
    def lost(self) -> bool:
        return self._claim.is_lost(self._held)

    def done(self, result: Any = None) -> None:
        """Also a lost task is deleted, which SQS may or may not heed.

        Raises: Unsupported for a result: SQS has no place for it.
        Cost: 1 request, for the last task of a claim; those before it share it.
        """
        if result is not None:
            self._claim._queue.refuse("results")
        self._claim.done(self._held)

    def retry(self, after_s: float | None = None, error: str = "", traceback: str | None = None) -> None:
        """SQS has no place for the error, unless it was the last attempt.

        On a lost task it does nothing: the worker that has it now gives the verdict.
        Raises: Invalid if it would stay hidden for more than 12 hours since it was received.
        Cost: 1 request; as `fail` with the last attempt.
        """
        self._claim.retry(self._held, after_s, error, traceback)

    def fail(self, error: str, traceback: str | None = None) -> None:
        """On a lost task it does nothing.   Cost: 2 requests."""
        self._claim.fail(self._held, error, traceback)


class SqsClaim:
    """One message or up to ten, hidden from others. Finished ones are deleted together, at the latest by the heartbeat.

    Crash: what was not deleted is delivered again when its hiding runs out.
    """

    token = 0

    def __init__(self, queue: SqsQueue, held: Sequence[Delivery]) -> None:
        self._queue = queue
        self._runtime = queue.runtime
        self._held = held
        self._mutex = queue.runtime.mutex()
        self._started_s = queue.runtime.elapsed_s()
        queue.renewer.add(self)

    @property
    def lost(self) -> bool:
        unjudged = [held for held in self._held if held.state in ("waiting", "running", "back")]
        return bool(unjudged) and all(map(self.is_lost, unjudged))

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[SqsTask]:
        while (task := self.start_next()) is not None:
            yield task

    def start_next(self) -> SqsTask | None:
        """Any number may run side by side: SQS has charged every message with its delivery."""
        while (held := self._pick()) is not None:
            try:
                return SqsTask(self, held, self._queue.decoder.decode(held.task.payload))
            except (msgspec.DecodeError, RecursionError) as error:
                self.fail(held, f"the payload does not fit: {error}")
        return None

    @property
    def may_start(self) -> bool:
        return any(held.state == "waiting" and not self.is_lost(held) for held in self._held)

    def _pick(self) -> Delivery | None:
        with self._mutex:
            for held in self._held:
                if held.state == "waiting" and not self.is_lost(held):
                    held.state = "running"
                    held.started_s = self._started_s = self._runtime.elapsed_s()
                    return held
        return None

    def __enter__(self) -> SqsClaim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None or isinstance(error, Exception):
            for held in [held for held in self._held if held.state == "running"]:
                apply_error(SqsTask(self, held, None), error)
        self.hand_back()

    def hand_back(self) -> None:
        """SQS cannot take an attempt back: the delivery stays counted.   Cost: 1 request."""
        self._queue.renewer.remove(self)
        with self._mutex:
            back = self._ours()
            for held in back:
                held.state = "back"
            try:
                self._delete_ended()
            finally:
                if back:
                    with suppress(Unavailable, OutcomeUnknown):  # then they come back when their hiding runs out
                        self._queue.hide(back, 0)

    def renew(self) -> None:
        """Delete what has ended, and hide the rest for another `ttl_s`. Not once a task has run past its time (F16).

        Raises: LimpetError, after which it is tried again soon.   Cost: 1 request, and 1 if something has ended.
        """
        limit_s = self._queue.policy.timeout_s
        with self._mutex:
            self._delete_ended(tries=1)
            running = (held.started_s for held in self._held if held.state == "running")
            since_s = min(running, default=self._started_s)
            if limit_s is None or self._runtime.elapsed_s() - since_s < limit_s:
                self._hide_ours()

    def is_lost(self, held: Delivery) -> bool:
        """Whether others may have this message by now, and no verdict of ours came before that."""
        ran_out = held.state in ("waiting", "running") and self._runtime.elapsed_s() >= held.until_s
        return held.gone or ran_out or held.state == "back"

    def done(self, held: Delivery) -> None:
        """Verdict: it succeeded."""
        with self._mutex:
            if held.state == "back":
                self._queue.delete_ended([held.message])
            elif held.state == "running":
                held.state = "ended"
            if not any(each.state in ("waiting", "running") for each in self._held):
                self._delete_ended()
        self._rest()

    def retry(self, held: Delivery, after_s: float | None, error: str, trace: str | None = None) -> None:
        """Verdict: another attempt, if there is one left."""
        queue, count = self._queue, held.message.count
        if count >= queue.policy.max_attempts:
            self.fail(held, error or NO_VERDICT, trace)
            return
        longest_s = HIDDEN_MAX_S - 1 - (self._runtime.elapsed_s() - held.received_s)
        if after_s is None:
            pause_s = backoff_s(self._runtime, count, queue.policy.backoff_s, longest_s=queue.policy.backoff_max_s)
            after_s = max(0.0, min(longest_s, pause_s))
        if not 0 <= after_s <= longest_s:
            raise Invalid(
                f"after_s is {after_s:g}; SQS hides a message for at most 12 hours from its delivery",
                hint="retry sooner, or use a queue in a bucket",
            )
        with self._mutex:
            if held.state != "running" or self.is_lost(held):
                return
            refused = queue.hide([held], math.ceil(after_s))
            held.gone = any(refusal.gone for refusal in refused.values())
            if not held.gone:
                check(f"queue {queue.name!r}: not put off", [held.task.id], refused)
            held.state = "over"
        self._rest()

    def fail(self, held: Delivery, error: str, trace: str | None = None) -> None:
        """Verdict: it failed for good. Without the message it is not ours to say."""
        with self._mutex:
            if held.state != "running" or self.is_lost(held):
                return
            self._queue.move_to_failed([FailedDelivery(held.message, held.task, error, trace)])
            held.state = "over"
        self._rest()

    def _ours(self) -> list[Delivery]:
        return [held for held in self._held if held.state in ("waiting", "running") and not self.is_lost(held)]

    def _rest(self) -> None:
        if not any(held.state in ("waiting", "running", "ended") for held in self._held):
            self._queue.renewer.remove(self)

    def _delete_ended(self, *, tries: int = TRIES) -> None:
        ended = [held for held in self._held if held.state == "ended"]
        if ended:
            self._queue.delete_ended([held.message for held in ended], tries=tries)
            for held in ended:
                held.state = "over"

    def _hide_ours(self) -> None:
        queue, ours = self._queue, self._ours()
        if not ours:
            return
        sent_at_s = self._runtime.elapsed_s()
        refused = queue.hide(ours, queue.hidden_s, tries=1)
        answered_s = self._runtime.elapsed_s()
        for n, held in enumerate(ours):
            if n in refused:
                held.gone = refused[n].gone
            elif answered_s < held.until_s:  # later it proves nothing: SQS says yes to an expired receipt too
                held.until_s = sent_at_s + queue.hidden_s
        left = {n: refusal for n, refusal in refused.items() if not refusal.gone}
        check(f"queue {queue.name!r}: not renewed", [held.task.id for held in ours], left)

"""`SqsClaim`: messages in the hands of this process, from the receive to the last verdict."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import msgspec

from limpet.errors import Invalid, LeaseLost, OutcomeUnknown, Unavailable
from limpet.queue.api import Fail, Feature, Policy, Retry, need
from limpet.queue.claim import NO_VERDICT, Renewer
from limpet.queue.decide import backoff_s
from limpet.queue.sqs_messages import Burial, TaskMessage, failed_text
from limpet.queue.sqs_wire import TRIES, Message, Wire, check, pack
from limpet.runtime import Runtime

HIDDEN_MAX_S = 12 * 3600


@dataclass(frozen=True, slots=True)
class Desk:
    """What a claim needs of its queue: the two SQS queues, and how to work on them."""

    name: str
    supports: frozenset[Feature]
    wire: Wire
    runtime: Runtime
    policy: Policy
    renewer: Renewer
    decoder: msgspec.json.Decoder[Any]
    main_url: str
    failed_url: str

    @property
    def ttl_s(self) -> int:
        """How long a message is hidden at a time: SQS counts whole seconds."""
        return math.ceil(self.policy.ttl_s)

    def bury(self, burials: Sequence[Burial]) -> None:
        """Send messages to the failed queue, then delete them from the main one.

        Cost: 2 requests for ten.   Crash: one may be in both; it is then buried a second time.
        """
        texts = [failed_text(each, self.runtime) for each in burials]
        for batch in pack(texts, len(texts)):
            refused = self.wire.send(self.failed_url, texts[batch.start : batch.stop])
            names = [burials[n].message.id for n in batch]
            check(f"queue {self.name!r}: messages could not be moved to its failed queue", names, refused)
        self._delete([each.message for each in burials])

    def delete(self, ended: Sequence[Held], *, tries: int = TRIES) -> None:
        """Delete what has ended.   Raises: Unavailable, OutcomeUnknown: it may come again.   Cost: 1 for ten."""
        self._delete([held.message for held in ended], tries=tries)

    def _delete(self, messages: Sequence[Message], *, tries: int = TRIES) -> None:
        refused = self.wire.delete(self.main_url, [message.receipt for message in messages], tries=tries)
        names = [message.id for message in messages]
        check(f"queue {self.name!r}: messages that have ended could not be deleted", names, refused)


@dataclass(slots=True)
class Held:
    """One delivery and how far it is. `until_s` is when others may get it, on this process's clock."""

    message: Message
    task: TaskMessage
    until_s: float
    received_s: float
    state: Literal["waiting", "running", "ended", "over", "back"] = "waiting"
    """`ended` is done and not yet deleted, `over` judged and off our hands, `back` handed back."""
    gone: bool = False


class SqsTask:
    """One task of a claim. See `Task` for the verdicts."""

    __slots__ = ("_claim", "_held", "payload")

    def __init__(self, claim: SqsClaim, held: Held, payload: Any) -> None:
        self._claim = claim
        self._held = held
        self.payload = payload

    @property
    def id(self) -> str:
        return self._held.task.id

    @property
    def attempt(self) -> int:
        """It is how often SQS has delivered the message."""
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
            self._claim.refuse_result()
        self._claim.done(self._held)

    def retry(self, after_s: float | None = None, error: str = "", traceback: str | None = None) -> None:
        """SQS has no place for the error, unless it was the last attempt.

        On a lost task it does nothing: whoever has it now judges it.
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

    def __init__(self, desk: Desk, held: Sequence[Held]) -> None:
        self._desk = desk
        self._runtime = desk.runtime
        self._held = held
        self._mutex = desk.runtime.mutex()
        self._started_s = desk.runtime.elapsed_s()
        desk.renewer.add(self)

    @property
    def lost(self) -> bool:
        unjudged = [held for held in self._held if held.state in ("waiting", "running", "back")]
        return bool(unjudged) and all(map(self.is_lost, unjudged))

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[SqsTask]:
        for held in self._held:
            if held.state != "waiting" or self.is_lost(held):
                continue
            held.state = "running"
            self._started_s = self._runtime.elapsed_s()
            try:
                payload = self._desk.decoder.decode(held.task.payload)
            except (msgspec.DecodeError, RecursionError) as error:
                self.fail(held, f"the payload does not fit: {error}")
                continue
            yield SqsTask(self, held, payload)

    def __enter__(self) -> SqsClaim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None or isinstance(error, Exception):
            for held in [held for held in self._held if held.state == "running"]:
                self._judge_by(held, error)
        self.hand_back()

    def hand_back(self) -> None:
        """SQS cannot take an attempt back: the delivery stays counted.   Cost: 1 request."""
        self._desk.renewer.remove(self)
        with self._mutex:
            back = self._ours()
            for held in back:
                held.state = "back"
            try:
                self._delete_ended()
            finally:
                if back:
                    with suppress(Unavailable, OutcomeUnknown):  # then they come back when their hiding runs out
                        self._desk.wire.hide(self._desk.main_url, [held.message.receipt for held in back], 0)

    def renew(self) -> None:
        """Delete what has ended, and hide the rest for another `ttl_s`. Not once a task has run past its time (F16).

        Raises: LimpetError, after which it is tried again soon.   Cost: 1 request, and 1 if something has ended.
        """
        limit_s = self._desk.policy.timeout_s
        with self._mutex:
            self._delete_ended(tries=1)
            if limit_s is None or self._runtime.elapsed_s() - self._started_s < limit_s:
                self._hide_ours()

    def is_lost(self, held: Held) -> bool:
        """Whether others may have this message by now, and no verdict of ours came before that."""
        ran_out = held.state in ("waiting", "running") and self._runtime.elapsed_s() >= held.until_s
        return held.gone or ran_out or held.state == "back"

    def refuse_result(self) -> None:
        """Results cannot be kept.   Raises: Unsupported."""
        need(self._desk.name, "sqs", self._desk.supports, "results")

    def done(self, held: Held) -> None:
        """Verdict: it succeeded."""
        with self._mutex:
            if held.state == "back":
                self._desk.delete([held])
            elif held.state == "running":
                held.state = "ended"
            if not any(each.state in ("waiting", "running") for each in self._held):
                self._delete_ended()
        self._rest()

    def retry(self, held: Held, after_s: float | None, error: str, trace: str | None = None) -> None:
        """Verdict: another attempt, if there is one left."""
        desk, count = self._desk, held.message.count
        if count >= desk.policy.max_attempts:
            self.fail(held, error or NO_VERDICT, trace)
            return
        longest_s = HIDDEN_MAX_S - 1 - (self._runtime.elapsed_s() - held.received_s)
        if after_s is None:
            after_s = max(0.0, min(longest_s, backoff_s(desk.policy, count, self._runtime.rng.random())))
        if not 0 <= after_s <= longest_s:
            raise Invalid(
                f"after_s is {after_s:g}; SQS hides a message for at most 12 hours from its delivery",
                hint="retry sooner, or use a queue in a bucket",
            )
        with self._mutex:
            if held.state != "running" or self.is_lost(held):
                return
            refused = desk.wire.hide(desk.main_url, [held.message.receipt], math.ceil(after_s))
            held.gone = any(refusal.gone for refusal in refused.values())
            if not held.gone:
                check(f"queue {desk.name!r}: not put off", [held.task.id], refused)
            held.state = "over"
        self._rest()

    def fail(self, held: Held, error: str, trace: str | None = None) -> None:
        """Verdict: it failed for good. Without the message it is not ours to say."""
        with self._mutex:
            if held.state != "running" or self.is_lost(held):
                return
            self._desk.bury([Burial(held.message, held.task, error, trace)])
            held.state = "over"
        self._rest()

    def _judge_by(self, held: Held, error: Exception | None) -> None:
        match error:
            case Fail():
                self.fail(held, str(error))
            case Retry():
                self.retry(held, error.after_s, str(error))
            case None | LeaseLost():
                self.retry(held, None, NO_VERDICT)
            case _:
                trace = "".join(traceback.format_exception(error))
                self.retry(held, None, f"{type(error).__name__}: {error}", trace)

    def _ours(self) -> list[Held]:
        return [held for held in self._held if held.state in ("waiting", "running") and not self.is_lost(held)]

    def _rest(self) -> None:
        if not any(held.state in ("waiting", "running", "ended") for held in self._held):
            self._desk.renewer.remove(self)

    def _delete_ended(self, *, tries: int = TRIES) -> None:
        ended = [held for held in self._held if held.state == "ended"]
        if ended:
            self._desk.delete(ended, tries=tries)
            for held in ended:
                held.state = "over"

    def _hide_ours(self) -> None:
        desk, ours = self._desk, self._ours()
        if not ours:
            return
        sent_at_s = self._runtime.elapsed_s()
        refused = desk.wire.hide(desk.main_url, [held.message.receipt for held in ours], desk.ttl_s, tries=1)
        answered_s = self._runtime.elapsed_s()
        for n, held in enumerate(ours):
            if n in refused:
                held.gone = refused[n].gone
            elif answered_s < held.until_s:  # later it proves nothing: SQS says yes to an expired receipt too
                held.until_s = sent_at_s + desk.ttl_s
        left = {n: refusal for n, refusal in refused.items() if not refusal.gone}
        check(f"queue {desk.name!r}: not renewed", [held.task.id for held in ours], left)

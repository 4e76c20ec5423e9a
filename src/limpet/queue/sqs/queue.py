"""`SqsQueue`: a queue on Amazon SQS, for fleets that have it already.

A task is one message of a standard queue. Failed tasks are messages of a second queue, `NAME-failed`. What SQS cannot
do is missing from `supports`, and asking for it is an error:

- no ids: a standard queue does not know them, and a FIFO queue forgets them after five minutes;
- no results, no peeking and no cancelling: SQS shows a message only by delivering it, which counts as an attempt;
- no pause, no slots, no fencing.

SQS drops a message after 14 days, its longest retention. It counts deliveries, so a task that is handed back has used
an attempt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NoReturn

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable, Unsupported
from limpet.kernel.keys import first_name
from limpet.kernel.lease import Renewer
from limpet.kernel.runtime import Runtime, in_thread, system
from limpet.kernel.waiting import backoff_s
from limpet.queue.api import (
    AttemptError,
    EmptyClaim,
    Failure,
    Feature,
    Notice,
    Peeked,
    Policy,
    Pushed,
    Result,
    Stats,
    TaskHandle,
    need,
)
from limpet.queue.claim import NO_VERDICT, apply_error
from limpet.queue.entry import encoded_payload
from limpet.queue.sqs.client import (
    BATCH_MAX,
    POLL_MAX_S,
    TRIES,
    FailedDelivery,
    Message,
    Refusal,
    SqsClient,
    TaskMessage,
    check,
    failed_text,
    next_life,
    pack,
    read_failed,
    read_message,
    task_text,
)
from limpet.queue.steps import refuse_push

DELAY_MAX_S = 900
HIDDEN_MAX_S = 12 * 3600
KEPT_S = 14 * 86400
NAME_MAX = 80
FAILED = "-failed"
SCAN_S = 60
CLOCK_S = 0.001
IDLE_POLL_S = 24.0
SUPPORTS: frozenset[Feature] = frozenset(("attempts", "batches", "delay", "poison", "purge", "retry", "stats"))
DIED = "it was delivered {count} times, and no worker gave a verdict"

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PREFIX = re.compile(r"[A-Za-z0-9-]*")


def connect(
    name: str,
    *,
    region: str | None = None,
    prefix: str = "",
    endpoint_url: str | None = None,
    policy: Policy | None = None,
    payload_type: Any = None,
    receive: int = 1,
    runtime: Runtime | None = None,
) -> SqsQueue:
    """The queue `name` in a region, with a new client. Several queues should share an `SqsClient` instead.

    Raises: Unsupported without boto3.   Cost: nothing yet; the first use finds or creates the SQS queues.
    """
    runtime = runtime or system()
    client = SqsClient(runtime, region=region, endpoint_url=endpoint_url)
    return SqsQueue(client, name, runtime, policy=policy, prefix=prefix, payload_type=payload_type, receive=receive)


def names_of(client: SqsClient, prefix: str = "") -> list[str]:
    """The queues below a prefix, sorted; without one, all standard queues of the region.

    Raises: Denied without sqs:ListQueues; Invalid.   Cost: 1 request for 1,000 SQS queues.
    """
    _check_prefix(prefix)
    below = f"{prefix}_" if prefix else ""
    found = [name.removeprefix(below) for name in client.names(below)]
    return sorted(name for name in found if _NAME.fullmatch(name) and not name.endswith(FAILED))


class SqsQueue:
    """Tasks on SQS: at least once. Safe to share between threads. See `Queue` for the promises.

    `receive` is how many messages a claim takes at once, up to ten. More make short tasks cheaper, but SQS counts an
    attempt for all of them when a process dies, also for those that it had not started: then `attempts` is missing
    from `supports`.
    """

    def __init__(
        self,
        client: SqsClient,
        name: str,
        runtime: Runtime,
        *,
        policy: Policy | None = None,
        prefix: str = "",
        payload_type: Any = None,
        receive: int = 1,
    ) -> None:
        self.name = name
        self.policy = policy or Policy()
        self.provider = "sqs"
        self.supports: frozenset[Feature] = SUPPORTS if receive == 1 else SUPPORTS - {"attempts"}
        if not 1 <= receive <= BATCH_MAX:
            raise Invalid(f"receive must be between 1 and {BATCH_MAX}, not {receive}")
        if self.policy.ttl_s > HIDDEN_MAX_S:
            raise Invalid(f"ttl_s can be at most {HIDDEN_MAX_S} seconds on SQS, and is {self.policy.ttl_s:g}")
        if self.policy.concurrency is not None:
            self._refuse("slots")
        self._sqs_name = _sqs_name(prefix, name)
        self._client = client
        self._runtime = runtime
        self._payload_type = payload_type
        self._decoder: msgspec.json.Decoder[Any] = records.decoder(payload_type or Any)
        self._receive = receive
        self._ttl_s = math.ceil(self.policy.ttl_s)
        """How long a message is hidden at a time: SQS counts whole seconds."""
        self._renewer = Renewer(runtime, self.policy.ttl_s, name=f"limpet-renewer-{name}")
        self._urls: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<queue {self.name!r} (sqs)>"

    def push(self, payload: Any, *, id: str | None = None, delay_s: float = 0.0) -> Pushed:
        """Raises: Unsupported for an id; Invalid for more than 252 KiB or a delay over 15 minutes; Unavailable (push
        again); OutcomeUnknown (it may be there; pushing again may make two of it).
        Cost: 1 request.   Crash: the task is there, or it is not.
        """
        refuse_push(self)
        if id is not None:
            self._refuse("ids")
        if not 0 <= delay_s <= DELAY_MAX_S:
            raise Invalid(
                f"delay_s must be between 0 and {DELAY_MAX_S} seconds on SQS, not {delay_s:g}",
                hint="push it later, or use a queue in a bucket",
            )
        task = self._task(payload)
        text = task_text(task)
        refused = self._client.send(self._main(create=True), [text], delay_s=math.ceil(delay_s))
        check(f"queue {self.name!r}: not pushed", ["the task"], refused)
        return Pushed(self._handle(task.id), True)

    async def push_async(self, payload: Any, *, id: str | None = None, delay_s: float = 0.0) -> Pushed:
        return await in_thread(self.push, payload, id=id, delay_s=delay_s)

    def push_many(self, payloads: Iterable[Any], *, batch: int = 100, id: str | None = None) -> list[TaskHandle]:
        """Each task is one message; a request carries at most `batch` of them, and at most ten.

        Raises: Invalid before anything is sent; Unavailable or OutcomeUnknown, with the places in `payloads` of the
        tasks that are not there or may not be.
        Cost: 1 request for ten tasks, or for 256 KiB.   Crash: some are there, some are not.
        """
        refuse_push(self)
        if id is not None:
            self._refuse("ids")
        if batch < 1:
            raise Invalid(f"batch must be at least 1, not {batch}")
        tasks = [self._task(payload) for payload in payloads]
        texts = [task_text(task) for task in tasks]
        if texts:
            self._client.send_many(self._main(create=True), texts, most=batch, what=f"queue {self.name!r}")
        return [self._handle(task.id) for task in tasks]

    def _handle(self, id_: str) -> TaskHandle:
        handle = TaskHandle(id_)
        handle.queue = self
        return handle

    def claim(self, *, wait_s: float = 0.0) -> SqsClaim | EmptyClaim:
        """Without waiting, SQS looks at some of its servers only, and may miss a task.

        Messages that are no tasks, and tasks that were delivered more than `max_attempts` times, go to the failed
        queue (F19).
        Cost: 1 request for each 20 s of waiting, 1 more for a part of a second; 2 for messages that go to the failed
        queue. The first claim finds the two SQS queues with a request each.
        Crash: what was received is delivered again after `ttl_s`.
        """
        main_url = self._main(create=True)
        self._failed(create=True)  # before anything is received: a failure must have a place to go to
        until_s = self._runtime.elapsed_s() + wait_s
        poll_max_s = max(1, min(POLL_MAX_S, self._ttl_s // 2))
        while True:
            sent_at_s = self._runtime.elapsed_s()
            poll_s = max(0, math.floor(min(poll_max_s, until_s - sent_at_s + CLOCK_S)))
            messages = self._client.receive(main_url, self._receive, wait_s=poll_s, visibility_s=self._ttl_s)
            answered_s = self._runtime.elapsed_s()
            took_s, left_s = answered_s - sent_at_s, until_s - answered_s
            # They were hidden at some moment of the poll. We take its end: polls take at most half of ttl_s, so the
            # first renewal comes in time even if it was the beginning. A longer call means that we were stopped.
            held = self._fit(messages, answered_s if took_s < poll_s + 1 else sent_at_s)
            if held:
                return SqsClaim(self, held)
            if messages:
                continue
            if left_s <= CLOCK_S:
                return EmptyClaim()
            if left_s + CLOCK_S < 1 or took_s < poll_s / 2:  # less than SQS can wait, or a server that does not wait
                self._runtime.sleep(min(left_s, 1.0))

    @property
    def idle_poll_s(self) -> float:
        return IDLE_POLL_S

    @property
    def claims_ahead(self) -> bool:
        """False: a message that goes back has used an attempt."""
        return False

    def claim_last(self) -> SqsClaim | EmptyClaim:
        """As a `claim` that waits for a second, so that SQS looks at all its servers."""
        return self.claim(wait_s=1.0)

    def claim_ahead(self) -> None:
        """None: see `claims_ahead`."""

    def flush(self) -> None:
        pass

    def change_token(self) -> None:
        """SQS has none; a claim waits in the server."""

    def exists(self) -> bool:
        """Whether there is such a queue: the first push or claim creates it.   Cost: 1 request."""
        try:
            self._main()
        except Missing:
            return False
        return True

    def standstill(self) -> Sequence[str] | None:
        """No task of SQS is suspended.   Cost: that of `stats`."""
        return None if self.stats().pending else ()

    def stats(self) -> Stats:
        """SQS's own numbers: approximate, and late by up to a minute.

        `in_flight` counts tasks that wait for their next attempt too. SQS keeps no count of what was completed, and
        does not tell the age of a task: both are None, as is `resting`. `failed` counts the dead-letter queue too, if
        one is configured.   Raises: Missing.   Cost: 2 requests, 2 more for a dead-letter queue.
        """
        (waiting, hidden, delayed), dead_letters = self._counts(self._main())
        failed = 0
        with suppress(Missing):  # no task was claimed yet
            failed = sum(self._counts(self._failed())[0])
        if dead_letters not in (None, self._sqs_name + FAILED):
            failed += sum(self._counts(self._url(dead_letters, create=False))[0])
        return Stats(
            pending=waiting + hidden,
            in_flight=hidden,
            scheduled=delayed,
            completed=None,
            failed=failed,
            oldest_s=None,
            paused=False,
            resting=None,
            done=None,
            cancelled=None,
        )

    def peek(self, n: int = 10) -> Sequence[Peeked]:
        """Raises: Unsupported: SQS shows a message only by delivering it."""
        self._refuse("peek")

    def result(self, id: str, *, wait_s: float = 0.0) -> Result:
        """Raises: Unsupported: SQS forgets what has ended."""
        self._refuse("results")

    async def result_async(self, id: str, *, wait_s: float = 0.0) -> Result:
        """Raises: Unsupported, as `result`."""
        return self.result(id, wait_s=wait_s)

    def results(self, ids: Iterable[str]) -> Sequence[Result]:
        """Raises: Unsupported: SQS forgets what has ended."""
        self._refuse("results")

    def wait(self, ids: Iterable[str], *, timeout_s: float) -> Sequence[Result]:
        """Raises: Unsupported: SQS forgets what has ended."""
        self._refuse("results")

    def errors(self, id: str) -> Sequence[AttemptError]:
        """Raises: Unsupported: SQS has no place for the error of an attempt."""
        self._refuse("results")

    def failed(self, n: int = 100, *, where: str | None = None, since_s: float | None = None) -> Sequence[Failure]:
        """Raises: Unsupported: SQS shows a message only by delivering it."""
        raise Unsupported(
            f"queue {self.name!r} lives in sqs, which cannot list what failed",
            hint="`limpet queue retry QUEUE --all` pushes it again; a bucket or a directory can list it",
        )

    def notices(self) -> Sequence[Notice]:
        return ()

    def retry(
        self,
        id: str | None = None,
        *,
        all: bool = False,
        where: str | None = None,
        since_s: float | None = None,
        from_scratch: bool = False,
    ) -> list[str]:
        """The new task is there before the failed one goes.

        Messages that could not be read stay; so do tasks that fail again meanwhile.
        Raises: Missing; Invalid for a message that could not be read.
        Cost: 3 requests for ten failed tasks, and 1 that finds no more. For one id the failed queue is read through
        until it turns up: 1 request for ten, and 1 for ten to show them again.
        Crash: a task may be in both queues; another retry makes a second one of it.
        """
        if (id is None) is not all:
            raise Invalid("say which task to retry, or all=True")
        if where is not None or since_s is not None:
            self._refuse("peek")
        self._main()
        self._failed(create=True)
        moved: dict[str, str] = {}
        kept: dict[str, Message] = {}
        try:
            while (id is None or not moved) and (messages := self._look_at_failed(kept)):
                kept |= {message.id: message for message in messages}
                for message in self._move(messages, id, moved):
                    del kept[message.id]
        finally:
            left = [message.receipt for message in kept.values()]
            for start in range(0, len(left), BATCH_MAX):
                with suppress(Unavailable, OutcomeUnknown):  # then they show again within a minute
                    self._client.hide(self._failed(), left[start : start + BATCH_MAX], 0)
        if id is not None and not moved:
            raise Missing(f"queue {self.name!r} has no failed task {id!r}")
        return [*moved.values()]

    def cancel(self, id: str) -> bool:
        """Raises: Unsupported: SQS cannot find a message by its task."""
        self._refuse("cancel")

    def signal(self, id: str, name: str, value: Any = None) -> bool:
        """Raises: Unsupported: SQS has no place for a signal."""
        self._refuse("steps")

    def pause(self) -> None:
        """Raises: Unsupported."""
        self._refuse("pause")

    def resume(self) -> None:
        """Raises: Unsupported."""
        self._refuse("pause")

    def purge(self) -> int:
        """The number is SQS's, approximate. What runs just now is dropped too, if it fails.

        Raises: Missing; Unavailable: SQS does it once a minute.   Cost: 2 requests.
        """
        count = sum(self._counts(self._main())[0])
        self._client.call(f"purge queue {self.name!r}", "purge_queue", QueueUrl=self._main())
        return count

    def _refuse(self, feature: Feature) -> NoReturn:
        need(self.name, self.provider, self.supports, feature)
        raise AssertionError(feature)

    def _main(self, *, create: bool = False) -> str:
        return self._url(self._sqs_name, create=create)

    def _failed(self, *, create: bool = False) -> str:
        return self._url(self._sqs_name + FAILED, create=create)

    def _url(self, sqs_name: str, *, create: bool) -> str:
        """Found once a process. Only a push or a claim creates a queue: a look at a misspelt one does not."""
        if sqs_name not in self._urls:
            try:
                self._urls[sqs_name] = self._client.find(sqs_name)
            except Missing:
                if not create:
                    raise Missing(
                        f"there is no SQS queue {sqs_name!r}", hint="check the name; the first push creates it"
                    ) from None
                attributes = {
                    "MessageRetentionPeriod": str(KEPT_S),
                    "VisibilityTimeout": str(self._ttl_s),
                }
                self._urls[sqs_name] = self._client.make(sqs_name, attributes)
        return self._urls[sqs_name]

    def _hide(self, receipts: Sequence[str], visibility_s: int, *, tries: int = TRIES) -> dict[int, Refusal]:
        """Hide claimed messages for `visibility_s` from now; the places of the refused ones.   Cost: 1 for ten."""
        return self._client.hide(self._main(), receipts, visibility_s, tries=tries)

    def _move_to_failed(self, failed: Sequence[FailedDelivery]) -> None:
        """Send messages to the failed queue, then delete them from the main one.

        Cost: 2 requests for ten.   Crash: one may be in both; it is then moved a second time.
        """
        texts = [failed_text(each, self._runtime) for each in failed]
        for batch in pack(texts, len(texts)):
            refused = self._client.send(self._failed(), texts[batch.start : batch.stop])
            names = [failed[n].message.id for n in batch]
            check(f"queue {self.name!r}: messages could not be moved to its failed queue", names, refused)
        self._delete([each.message for each in failed])

    def _delete(self, messages: Sequence[Message], *, tries: int = TRIES) -> None:
        """Delete what has ended.   Raises: Unavailable, OutcomeUnknown: it may come again.   Cost: 1 for ten."""
        refused = self._client.delete(self._main(), [message.receipt for message in messages], tries=tries)
        names = [message.id for message in messages]
        check(f"queue {self.name!r}: messages that have ended could not be deleted", names, refused)

    def _counts(self, url: str) -> tuple[tuple[int, int, int], str | None]:
        """How many messages wait, are hidden, are delayed; and the dead-letter queue, if one is configured.

        Cost: 1 request.
        """
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
        wanted = [*names, "RedrivePolicy"]
        answer = self._client.call("count", "get_queue_attributes", QueueUrl=url, AttributeNames=wanted)["Attributes"]
        waiting, hidden, delayed = (int(answer[name]) for name in names)
        return (waiting, hidden, delayed), _dead_letters(answer.get("RedrivePolicy", "{}"))

    def _task(self, payload: Any) -> TaskMessage:
        data = msgspec.Raw(encoded_payload(payload, self._payload_type))
        return TaskMessage(id=self._runtime.new_id(), payload=data, pushed_at=self._runtime.wall())

    def _fit(self, messages: Sequence[Message], hidden_s: float) -> list[Delivery]:
        """The messages that can be handed out. The others go to the failed queue."""
        held: list[Delivery] = []
        unfit: list[FailedDelivery] = []
        for message in messages:
            try:
                task = read_message(message)
            except Corrupt as error:
                unfit.append(FailedDelivery(message, None, str(error)))
                continue
            if message.count > self.policy.max_attempts:
                unfit.append(FailedDelivery(message, task, DIED.format(count=message.count - 1)))
            else:
                held.append(Delivery(message, task, until_s=hidden_s + self._ttl_s, received_s=hidden_s))
        if unfit:
            try:
                self._move_to_failed(unfit)
            except LimpetError:
                if not held:  # else they come again, and the tasks beside them lose no attempt by it
                    raise
        return held

    def _look_at_failed(self, seen: Mapping[str, Message]) -> list[Message]:
        """Up to ten failed messages; none when there is nothing but what was seen already.   Cost: 1 request."""
        messages = self._client.receive(self._failed(), BATCH_MAX, wait_s=1, visibility_s=SCAN_S)
        return messages if any(message.id not in seen for message in messages) else []

    def _move(self, messages: Sequence[Message], id_: str | None, moved: dict[str, str]) -> list[Message]:
        """Push the failed tasks among `messages` that are asked for, and delete them here; those that are gone now.

        `moved` maps the messages that failed to the ids of their new lives; it grows. A failure that a crash wrote
        twice is pushed once.
        """
        found = [(message, record) for message in messages if (record := read_failed(message, id_)) is not None]
        found = [(message, record) for message, record in found if record.id not in moved.values()]
        fresh = {
            record.message: next_life(record, self._runtime.wall())
            for _, record in found
            if record.message not in moved
        }
        texts = [task_text(task) for task in fresh.values()]
        for batch in pack(texts, BATCH_MAX):
            refused = self._client.send(self._main(), texts[batch.start : batch.stop])
            check(
                f"queue {self.name!r}: not retried",
                [task.id for task in [*fresh.values()][batch.start : batch.stop]],
                refused,
            )
        moved |= {message: task.id for message, task in fresh.items()}
        gone = [message for message, _ in found]
        if gone:
            refused = self._client.delete(self._failed(), [message.receipt for message in gone])
            check(
                f"queue {self.name!r}: retried, but still among the failed", [message.id for message in gone], refused
            )
        return gone


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
            self._claim._queue._refuse("results")
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
        self._runtime = queue._runtime
        self._held = held
        self._mutex = queue._runtime.mutex()
        self._started_s = queue._runtime.elapsed_s()
        queue._renewer.add(self)

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
                return SqsTask(self, held, self._queue._decoder.decode(held.task.payload))
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
        self._queue._renewer.remove(self)
        with self._mutex:
            back = self._ours()
            for held in back:
                held.state = "back"
            try:
                self._delete_ended()
            finally:
                if back:
                    with suppress(Unavailable, OutcomeUnknown):  # then they come back when their hiding runs out
                        self._queue._hide([held.message.receipt for held in back], 0)

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
                self._queue._delete([held.message])
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
            refused = queue._hide([held.message.receipt], math.ceil(after_s))
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
            self._queue._move_to_failed([FailedDelivery(held.message, held.task, error, trace)])
            held.state = "over"
        self._rest()

    def _ours(self) -> list[Delivery]:
        return [held for held in self._held if held.state in ("waiting", "running") and not self.is_lost(held)]

    def _rest(self) -> None:
        if not any(held.state in ("waiting", "running", "ended") for held in self._held):
            self._queue._renewer.remove(self)

    def _delete_ended(self, *, tries: int = TRIES) -> None:
        ended = [held for held in self._held if held.state == "ended"]
        if ended:
            self._queue._delete([held.message for held in ended], tries=tries)
            for held in ended:
                held.state = "over"

    def _hide_ours(self) -> None:
        queue, ours = self._queue, self._ours()
        if not ours:
            return
        sent_at_s = self._runtime.elapsed_s()
        refused = queue._hide([held.message.receipt for held in ours], queue._ttl_s, tries=1)
        answered_s = self._runtime.elapsed_s()
        for n, held in enumerate(ours):
            if n in refused:
                held.gone = refused[n].gone
            elif answered_s < held.until_s:  # later it proves nothing: SQS says yes to an expired receipt too
                held.until_s = sent_at_s + queue._ttl_s
        left = {n: refusal for n, refusal in refused.items() if not refusal.gone}
        check(f"queue {queue.name!r}: not renewed", [held.task.id for held in ours], left)


def _dead_letters(policy: str) -> str | None:
    """The queue that a redrive policy names."""
    try:
        target = records.decoder(dict[str, Any]).decode(policy).get("deadLetterTargetArn")
    except msgspec.DecodeError:
        return None
    return target.rpartition(":")[2] if isinstance(target, str) else None


def _check_prefix(prefix: str) -> None:
    if not _PREFIX.fullmatch(prefix):
        raise Invalid(f"SQS queues cannot have the prefix {prefix!r}", hint="use letters, digits and -")


def _sqs_name(prefix: str, name: str) -> str:
    """The SQS name of a queue. A prefix has no underscore, so that no two pairs give one name (F28)."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(FAILED):
        raise Invalid(
            f"SQS cannot have a queue {name!r}",
            hint=f"use letters, digits, - and _; a name cannot end in {FAILED}, and FIFO queues are not supported",
        )
    _check_prefix(prefix)
    whole = f"{prefix}_{name}" if prefix else name
    if len(whole) + len(FAILED) > NAME_MAX:
        raise Invalid(f"the queue name {whole!r} is too long", hint=f"SQS takes {NAME_MAX - len(FAILED)} characters")
    return whole

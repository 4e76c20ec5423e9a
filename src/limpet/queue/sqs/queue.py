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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from limpet.kernel import records
from limpet.kernel.answers import AnswersNames, answers_options
from limpet.kernel.drop import DropReport
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable, Unsupported
from limpet.kernel.lease import Renewer
from limpet.kernel.runtime import Runtime, in_thread, system
from limpet.kernel.waiting import SENDS_MAX, attempts
from limpet.queue.api import (
    FAILED_BY_COMMAND,
    AttemptError,
    EmptyClaim,
    Failure,
    Feature,
    Notice,
    Peeked,
    Policy,
    Pushed,
    Result,
    ResultType,
    Stats,
    TaskHandle,
    need,
)
from limpet.queue.entry import encoded_payload
from limpet.queue.sqs.claim import HIDDEN_MAX_S, Delivery, SqsClaim
from limpet.queue.sqs.client import (
    BATCH_MAX,
    POLL_MAX_S,
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


class SqsQueue(AnswersNames):
    """Tasks on SQS: at least once. Safe to share between threads. See `Queue` for the promises.

    `receive` is how many messages a claim takes at once, up to ten. More make short tasks cheaper, but SQS counts an
    attempt for all of them when a process dies, also for those that it had not started: then `attempts` is missing
    from `supports`.
    """

    provider = "sqs"

    result_type: ResultType | None = None

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
        if not 1 <= receive <= BATCH_MAX:
            raise Invalid(f"receive must be between 1 and {BATCH_MAX}, not {receive}")
        self._receive = receive
        if self.policy.ttl_s > HIDDEN_MAX_S:
            raise Invalid(f"ttl_s can be at most {HIDDEN_MAX_S} seconds on SQS, and is {self.policy.ttl_s:g}")
        if self.policy.concurrency is not None:
            self.refuse("slots")
        self._sqs_name = _sqs_name(prefix, name)
        self._client = client
        self.runtime = runtime
        self._payload_type = payload_type
        self.decoder: msgspec.json.Decoder[Any] = records.decoder(payload_type or Any)
        self.renewer = Renewer(runtime, self.policy.ttl_s, name=f"limpet-renewer-{name}")
        self._urls: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<queue {self.name!r} (sqs)>"

    @property
    def supports(self) -> frozenset[Feature]:
        return SUPPORTS if self._receive == 1 else SUPPORTS - {"attempts"}

    @property
    def hidden_s(self) -> int:
        """How long a message is hidden at a time: SQS counts whole seconds."""
        return math.ceil(self.policy.ttl_s)

    @answers_options
    def push(self, payload: Any, *, id: str | int | None = None, delay_s: float = 0.0) -> Pushed:
        """Raises: Unsupported for an id; Invalid for more than 252 KiB or a delay over 15 minutes; Unavailable (push
        again); OutcomeUnknown (it may be there; pushing again may make two of it).
        Cost: 1 request.   Crash: the task is there, or it is not.
        """
        refuse_push(self)
        if id is not None:
            self.refuse("ids")
        if not 0 <= delay_s <= DELAY_MAX_S:
            raise Invalid(
                f"delay_s must be between 0 and {DELAY_MAX_S} seconds on SQS, not {delay_s:g}",
                hint="push it later, or use a queue in a bucket",
            )
        task = self._task(payload)
        text = task_text(task)
        refused = self._client.send(self._main(create=True), [text], delay_s=math.ceil(delay_s))
        check(f"queue {self.name!r}: not pushed", ["the task"], refused)
        return Pushed(self._handles([task])[0], True)

    async def push_async(self, payload: Any, *, id: str | int | None = None, delay_s: float = 0.0) -> Pushed:
        return await in_thread(self.push, payload, id=id, delay_s=delay_s)

    def push_many(self, payloads: Iterable[Any], *, batch: int = 100, id: str | int | None = None) -> list[TaskHandle]:
        """Each task is one message; a request carries at most `batch` of them, and at most ten.

        Raises: Invalid before anything is sent; Unavailable or OutcomeUnknown, with the places in `payloads` of the
        tasks that are not there or may not be.
        Cost: 1 request for ten tasks, or for 256 KiB.   Crash: some are there, some are not.
        """
        refuse_push(self)
        if id is not None:
            self.refuse("ids")
        if batch < 1:
            raise Invalid(f"batch must be at least 1, not {batch}")
        tasks = [self._task(payload) for payload in payloads]
        texts = [task_text(task) for task in tasks]
        if texts:
            self._client.send_many(self._main(create=True), texts, most=batch, what=f"queue {self.name!r}")
        return self._handles(tasks)

    def _handles(self, tasks: Iterable[TaskMessage]) -> list[TaskHandle]:
        handles = [TaskHandle(task.id) for task in tasks]
        for handle in handles:
            handle.queue = self
        return handles

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
        until_s = self.runtime.elapsed_s() + wait_s
        poll_max_s = max(1, min(POLL_MAX_S, self.hidden_s // 2))
        rest_s = 0.0

        def pause_s(_: int) -> float:
            return rest_s

        for _ in attempts(self.runtime, None, pause_s):
            sent_at_s = self.runtime.elapsed_s()
            poll_s = max(0, math.floor(min(poll_max_s, until_s - sent_at_s + CLOCK_S)))
            messages = self._client.receive(main_url, self._receive, wait_s=poll_s, visibility_s=self.hidden_s)
            answered_s = self.runtime.elapsed_s()
            took_s, left_s = answered_s - sent_at_s, until_s - answered_s
            # They were hidden at some moment of the poll. We take its end: polls take at most half of ttl_s, so the
            # first renewal comes in time even if it was the beginning. A longer call means that we were stopped.
            held = self._fit(messages, answered_s if took_s < poll_s + 1 else sent_at_s)
            if held:
                return SqsClaim(self, held)
            if left_s <= CLOCK_S and not messages:
                break
            # Less is left than SQS can wait, or the server does not wait.
            hasty = not messages and (left_s + CLOCK_S < 1 or took_s < poll_s / 2)
            rest_s = min(left_s, 1.0) if hasty else 0.0
        return EmptyClaim()

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
        self.refuse("peek")

    def result(self, id: str | int, *, wait_s: float = 0.0) -> Result:
        """Raises: Unsupported: SQS forgets what has ended."""
        self.refuse("results")

    async def result_async(self, id: str | int, *, wait_s: float = 0.0) -> Result:
        """Raises: Unsupported, as `result`."""
        return self.result(id, wait_s=wait_s)

    def results(self, ids: Iterable[str | int]) -> Sequence[Result]:
        """Raises: Unsupported: SQS forgets what has ended."""
        self.refuse("results")

    def wait(self, ids: Iterable[str | int], *, timeout_s: float) -> Sequence[Result]:
        """Raises: Unsupported: SQS forgets what has ended."""
        self.refuse("results")

    def errors(self, id: str | int) -> Sequence[AttemptError]:
        """Raises: Unsupported: SQS has no place for the error of an attempt."""
        self.refuse("results")

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
        id: str | int | None = None,
        *,
        all: bool = False,
        where: str | None = None,
        since_s: float | None = None,
        from_scratch: bool = False,
        dry_run: bool = False,
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
        if where is not None or since_s is not None or dry_run:
            self.refuse("peek")
        self._main()
        self._failed(create=True)
        moved: dict[str, str] = {}
        kept: dict[str, Message] = {}
        try:
            while (id is None or not moved) and (messages := self._look_at_failed(kept)):
                kept |= {message.id: message for message in messages}
                for message in self._move(messages, None if id is None else str(id), moved):
                    del kept[message.id]
        finally:
            left = [message.receipt for message in kept.values()]
            for start in range(0, len(left), BATCH_MAX):
                with suppress(Unavailable, OutcomeUnknown):  # then they show again within a minute
                    self._client.hide(self._failed(), left[start : start + BATCH_MAX], 0)
        if id is not None and not moved:
            raise Missing(f"queue {self.name!r} has no failed task {id!r}")
        return [*moved.values()]

    def cancel(self, id: str | int) -> bool:
        """Raises: Unsupported: SQS cannot find a message by its task."""
        self.refuse("cancel")

    def fail(self, id: str | int, error: str = FAILED_BY_COMMAND) -> bool:
        """Raises: Unsupported: SQS cannot find a message by its task."""
        self.refuse("cancel")

    def signal(self, id: str | int, name: str, value: Any = None, *, early: bool = False) -> bool:
        """Raises: Unsupported: SQS has no place for a signal."""
        self.refuse("steps")

    def pause(self) -> None:
        """Raises: Unsupported."""
        self.refuse("pause")

    def resume(self) -> None:
        """Raises: Unsupported."""
        self.refuse("pause")

    def drop(self, *, dry_run: bool = False, progress: Callable[[str], object] = lambda said: None) -> DropReport:
        """Raises: Unsupported: SQS deletes a queue within a minute, and tells nobody who receives from it."""
        raise Unsupported(
            f"queue {self.name!r} lives in SQS, which drops its queues itself",
            hint=f"`aws sqs delete-queue` removes it; `limpet queue purge {self.name}` drops what waits",
        )

    def purge(self) -> int:
        """The number is SQS's, approximate. What runs just now is dropped too, if it fails.

        Raises: Missing; Unavailable: SQS does it once a minute.   Cost: 2 requests.
        """
        count = sum(self._counts(self._main())[0])
        self._client.call(f"purge queue {self.name!r}", "purge_queue", QueueUrl=self._main())
        return count

    def refuse(self, feature: Feature) -> NoReturn:
        """Raises: Unsupported, as always for this feature."""
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
                attributes = {"MessageRetentionPeriod": str(KEPT_S), "VisibilityTimeout": str(self.hidden_s)}
                self._urls[sqs_name] = self._client.make(sqs_name, attributes)
        return self._urls[sqs_name]

    def hide(self, held: Sequence[Delivery], visibility_s: int, *, tries: int = SENDS_MAX) -> dict[int, Refusal]:
        """Hide claimed messages for `visibility_s` from now; the places of the refused ones.   Cost: 1 for ten."""
        receipts = [each.message.receipt for each in held]
        return self._client.hide(self._main(), receipts, visibility_s, tries=tries)

    def move_to_failed(self, failed: Sequence[FailedDelivery]) -> None:
        """Send messages to the failed queue, then delete them from the main one.

        Cost: 2 requests for ten.   Crash: one may be in both; it is then moved a second time.
        """
        texts = [(each.message.id, failed_text(each, self.runtime)) for each in failed]
        self._send(self._failed(), texts, "messages could not be moved to its failed queue")
        self.delete_ended([each.message for each in failed])

    def delete_ended(self, messages: Sequence[Message], *, tries: int = SENDS_MAX) -> None:
        """Delete what has ended.   Raises: Unavailable, OutcomeUnknown: it may come again.   Cost: 1 for ten."""
        self._delete(self._main(), messages, "messages that have ended could not be deleted", tries=tries)

    def _send(self, url: str, texts: Sequence[tuple[str, str]], trouble: str) -> None:
        """Send some texts, each with its name.   Raises: Invalid, Unavailable, OutcomeUnknown.   Cost: 1 for ten."""
        bodies = [text for _, text in texts]
        for batch in pack(bodies, BATCH_MAX):
            refused = self._client.send(url, bodies[batch.start : batch.stop])
            check(f"queue {self.name!r}: {trouble}", [texts[n][0] for n in batch], refused)

    def _delete(self, url: str, messages: Sequence[Message], trouble: str, *, tries: int = SENDS_MAX) -> None:
        """Delete messages.   Raises: Unavailable, OutcomeUnknown: they may come again.   Cost: 1 for ten."""
        refused = self._client.delete(url, [message.receipt for message in messages], tries=tries)
        check(f"queue {self.name!r}: {trouble}", [message.id for message in messages], refused)

    def _counts(self, url: str) -> tuple[tuple[int, int, int], str | None]:
        """How many messages wait, are hidden, are delayed; and the dead-letter queue, if one is configured.

        Cost: 1 request.
        """
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
        wanted = [*names, "RedrivePolicy"]
        answer = self._client.call("count", "get_queue_attributes", QueueUrl=url, AttributeNames=wanted)["Attributes"]
        waiting, hidden, delayed = (int(answer[name]) for name in names)
        target: Any = None
        with suppress(msgspec.DecodeError):
            target = (
                records.decoder(dict[str, Any]).decode(answer.get("RedrivePolicy", "{}")).get("deadLetterTargetArn")
            )
        return (waiting, hidden, delayed), target.rpartition(":")[2] if isinstance(target, str) else None

    def _task(self, payload: Any) -> TaskMessage:
        data = msgspec.Raw(encoded_payload(payload, self._payload_type))
        return TaskMessage(id=self.runtime.new_id(), payload=data, pushed_at=self.runtime.wall())

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
                held.append(Delivery(message, task, until_s=hidden_s + self.hidden_s, received_s=hidden_s))
        if unfit:
            try:
                self.move_to_failed(unfit)
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
        records_ = [record for _, record in found if record.message not in moved]
        fresh = {record.message: next_life(record, self.runtime.wall()) for record in records_}
        self._send(self._main(), [(task.id, task_text(task)) for task in fresh.values()], "not retried")
        moved |= {message: task.id for message, task in fresh.items()}
        gone = [message for message, _ in found]
        if gone:
            self._delete(self._failed(), gone, "retried, but still among the failed")
        return gone


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

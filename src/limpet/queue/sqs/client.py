"""`SqsClient`: the requests that Limpet makes of SQS, what their failures mean, and the form of its messages.

The only module that loads boto3. botocore's own retries are off: after a lost reply it would send again in silence, and
whether a message was sent could no longer be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Annotated, Any

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import (
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.keys import RETRY_MARK
from limpet.kernel.records import Count, Instant, Name, Text
from limpet.kernel.runtime import Runtime
from limpet.kernel.waiting import SENDS_MAX, attempts
from limpet.kernel.wording import many
from limpet.queue.decide import TRACEBACK_CHARS_MAX, clean_text

BATCH_MAX = 10
BATCH_BYTES_MAX = 256 * 1024
POLL_MAX_S = 20
CONNECT_S = 5
READ_S = POLL_MAX_S + 10
CONNECTIONS_MAX = 64
WAVE = 32
AT_ONCE = 8
LINE_MAX = 200
COUNT = "ApproximateReceiveCount"

_READS = ("get_queue_url", "get_queue_attributes", "list_queues", "receive_message")
_NO_CREDENTIALS = (
    "NoCredentialsError",
    "NoAuthTokenError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "MetadataRetrievalError",
    "SSOError",
    "LoginError",
    "RefreshWithMFAUnsupportedError",
)
_DENIED = (
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignatureException",
    "KmsAccessDenied",
    "MissingAuthenticationToken",
    "NotAuthorized",
    "OptInRequired",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)
_BUSY = (
    "KmsThrottled",
    "OverLimit",
    "PurgeQueueInProgress",
    "QueueDeletedRecently",
    "RequestThrottled",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
)
_WAIT_A_MINUTE = ("PurgeQueueInProgress", "QueueDeletedRecently")
_NO_QUEUE = ("NonExistentQueue", "QueueDoesNotExist")
_QUEUE_EXISTS = ("QueueAlreadyExists", "QueueNameExists")
_GONE = ("MessageNotInflight", "ReceiptHandleIsInvalid")


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery. `count` is the number of deliveries of this message, including this one."""

    id: str
    receipt: str
    body: str
    count: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why SQS did not do one entry of a batch. `ours` means that asking again is of no use.

    `gone` means that the receipt no longer stands for a message: it was deleted, or delivered again.
    """

    line: str
    ours: bool
    gone: bool


class SqsClient:
    """A client of one region, shared by all queues of a process and by its threads."""

    def __init__(self, runtime: Runtime, *, region: str | None = None, endpoint_url: str | None = None) -> None:
        self._runtime = runtime
        self._region = region
        self._endpoint_url = endpoint_url
        self._mutex = runtime.mutex()
        self._made: tuple[str, Any] | None = None
        self._boto3 = _load("boto3")
        self._failures = (
            _load("botocore.exceptions").BotoCoreError,
            _load("botocore.exceptions").ClientError,
            _load("botocore.parsers").ResponseParserError,
        )

    @property
    def client(self) -> Any:
        """The boto3 client, made at first use. A forked child makes its own: sockets cannot be shared.

        Raises: Invalid for a region, endpoint or profile that makes no sense.
        """
        made = self._made
        if made is None or made[0] != self._runtime.owner:
            with self._mutex:
                made = self._made
                if made is None or made[0] != self._runtime.owner:
                    made = self._made = (self._runtime.owner, self._new_client())
        return made[1]

    def find(self, name: str) -> str:
        """The URL of a queue.   Raises: Missing.   Cost: 1 request."""
        return str(self.call(f"find queue {name}", "get_queue_url", QueueName=name)["QueueUrl"])

    def names(self, prefix: str) -> list[str]:
        """The names of all queues that begin with `prefix`.   Raises: Denied.   Cost: 1 request for 1,000 queues."""
        found: list[str] = []
        more: dict[str, Any] = {"QueueNamePrefix": prefix} if prefix else {}
        while True:
            answer = self.call("list queues", "list_queues", MaxResults=1000, **more)
            found += [url.rpartition("/")[2] for url in answer.get("QueueUrls", ())]
            if not answer.get("NextToken"):
                return found
            more["NextToken"] = answer["NextToken"]

    def make(self, name: str, attributes: Mapping[str, str]) -> str:
        """The URL of a queue that is created with `attributes`, unless another process did so meanwhile.

        Raises: Denied.   Cost: 1 request.
        """
        try:
            made = self.call(f"create queue {name}", "create_queue", QueueName=name, Attributes=dict(attributes))
        except Conflict:  # it exists, with other attributes
            return self.find(name)
        except Denied as error:
            raise Denied(
                f"there is no queue {name}, and it cannot be created: {error}",
                hint="create it, or allow sqs:CreateQueue",
            ) from None
        return str(made["QueueUrl"])

    def receive(self, url: str, n: int, *, wait_s: int, visibility_s: int) -> list[Message]:
        """Up to `n` messages, hidden from others for `visibility_s`; waits for the first one.   Cost: 1 request."""
        answer = self.call(
            "receive",
            "receive_message",
            QueueUrl=url,
            MaxNumberOfMessages=n,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=visibility_s,
            MessageSystemAttributeNames=[COUNT],
        )
        return [
            Message(each["MessageId"], each["ReceiptHandle"], each["Body"], int(each["Attributes"][COUNT]))
            for each in answer.get("Messages", ())
        ]

    def send(self, url: str, bodies: Sequence[str], *, delay_s: int = 0) -> dict[int, Refusal]:
        """Send at most ten messages; the places of those that were refused.   Cost: 1 request.

        Raises: OutcomeUnknown: any of them may have been sent, even more than once.
        """
        entries = [{"MessageBody": body, "DelaySeconds": delay_s} for body in bodies]
        return self._batch("send", "send_message_batch", url, entries)

    def send_many(self, url: str, bodies: Sequence[str], *, most: int, what: str) -> None:
        """Send any number, at most `most` to a request, several requests side by side. Stops soon after a failure.

        Raises: the first failure, naming the places of all that were not sent.   Cost: 1 request for ten or 256 KiB.
        """
        batches = pack(bodies, most)
        for start in range(0, len(batches), WAVE):
            wave = batches[start : start + WAVE]
            answers = self._runtime.fan_out(lambda batch: self._try_send(url, bodies, batch), wave, at_once=AT_ONCE)
            failures = [answer for answer in answers if answer is not None]
            if failures:
                raise _partly(what, failures, sent=wave[-1].stop, of=len(bodies))

    def _try_send(self, url: str, bodies: Sequence[str], batch: range) -> tuple[list[int], LimpetError] | None:
        """The places of a batch that were not sent, and why."""
        try:
            refused = self.send(url, bodies[batch.start : batch.stop])
        except LimpetError as error:
            return [*batch], error
        return ([batch[n] for n in refused], _first(refused)) if refused else None

    def delete(self, url: str, receipts: Sequence[str], *, tries: int = SENDS_MAX) -> dict[int, Refusal]:
        """Delete at most ten messages; the places of those that were refused. Gone already is no refusal.

        Cost: 1 request.
        """
        entries = [{"ReceiptHandle": each} for each in receipts]
        refused = self._batch("delete", "delete_message_batch", url, entries, tries=tries)
        return {n: refusal for n, refusal in refused.items() if not refusal.gone}

    def hide(
        self, url: str, receipts: Sequence[str], visibility_s: int, *, tries: int = SENDS_MAX
    ) -> dict[int, Refusal]:
        """Hide at most ten messages for `visibility_s` from now; the places of the refused ones.   Cost: 1 request."""
        entries = [{"ReceiptHandle": each, "VisibilityTimeout": visibility_s} for each in receipts]
        return self._batch("change visibility", "change_message_visibility_batch", url, entries, tries=tries)

    def call(self, what: str, operation: str, *, tries: int = SENDS_MAX, **arguments: Any) -> dict[str, Any]:
        """One request, sent again while it may help.

        Raises: Denied, Invalid, Missing, Conflict: SQS refused it. Unavailable: it was not done. OutcomeUnknown: one of
        the sent ones may have been done.
        """
        unclear: LimpetError | None = None
        failure: LimpetError | None = None
        for _ in attempts(self._runtime, tries):
            try:
                answer: dict[str, Any] = getattr(self.client, operation)(**arguments)
                return answer
            except self._failures as error:
                failure = _explained(what, error, reads=operation in _READS)
            if isinstance(failure, OutcomeUnknown):
                unclear = failure
            elif not isinstance(failure, Unavailable):
                break
        assert failure is not None
        raise unclear or failure

    def _batch(
        self, what: str, operation: str, url: str, entries: Sequence[Mapping[str, Any]], *, tries: int = SENDS_MAX
    ) -> dict[int, Refusal]:
        """F20: the answer is 200 with refused entries inside. Those are sent again, alone, while it may help."""
        left = dict(enumerate(entries))
        refused: dict[int, Refusal] = {}
        for _ in attempts(self._runtime, tries):
            asked = [{"Id": str(n), **entry} for n, entry in left.items()]
            answer = self.call(what, operation, tries=tries, QueueUrl=url, Entries=asked)
            for done in answer.get("Successful", ()):
                refused.pop(int(done["Id"]), None)
                left.pop(int(done["Id"]), None)
            for each in answer.get("Failed", ()):
                refused[int(each["Id"])] = refusal = _refusal(each)
                if refusal.ours:
                    left.pop(int(each["Id"]), None)
            if not left:
                break
        return {**{n: Refusal("SQS did not say", ours=False, gone=False) for n in left}, **refused}

    def _new_client(self) -> Any:
        config = _load("botocore.config").Config(
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            max_pool_connections=CONNECTIONS_MAX,
        )
        try:
            session = self._boto3.Session(region_name=self._region)
            return session.client("sqs", endpoint_url=self._endpoint_url, config=config)
        except self._failures as error:
            raise _explained("open SQS", error, reads=True) from None
        except ValueError as error:
            raise Invalid(
                f"open SQS: {_one_line(str(error))}", hint="check LIMPET_SQS_ENDPOINT and the region"
            ) from None


def pack(bodies: Sequence[str], most: int) -> list[range]:
    """The places of `bodies` in batches that one request can carry: at most `most`, ten, and 256 KiB together."""
    batches: list[range] = []
    start = size = 0
    for n, body in enumerate(bodies):
        bytes_ = len(body.encode())
        if n > start and (n - start >= min(most, BATCH_MAX) or size + bytes_ > BATCH_BYTES_MAX):
            batches.append(range(start, n))
            start, size = n, 0
        size += bytes_
    if start < len(bodies):
        batches.append(range(start, len(bodies)))
    return batches


def check(what: str, names: Sequence[str], refused: Mapping[int, Refusal]) -> None:
    """Check that nothing was refused.   Raises: Invalid or Unavailable, naming each entry that was refused (F20)."""
    if refused:
        those = "; ".join(f"{names[n]} ({refusal.line})" for n, refusal in sorted(refused.items()))
        raise type(_first(refused))(f"{what}: {those}")


def _first(refused: Mapping[int, Refusal]) -> LimpetError:
    kind = Invalid if all(refusal.ours for refusal in refused.values()) else Unavailable
    return kind(refused[min(refused)].line)


def _partly(what: str, failures: Sequence[tuple[list[int], LimpetError]], *, sent: int, of: int) -> LimpetError:
    errors = [error for _, error in failures]
    worst = next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
    fate = "may not have been" if isinstance(worst, OutcomeUnknown) else "were not"
    places = _spans([n for lost, _ in failures for n in lost] + [*range(sent, of)])
    return type(worst)(f"{what}: of {many(of, 'task')}, number {places} {fate} pushed: {worst}", hint=worst.hint)


def _spans(places: Sequence[int]) -> str:
    """`3, 7-9` for 3, 7, 8, 9."""
    spans: list[list[int]] = []
    for place in sorted(places):
        if spans and place == spans[-1][1] + 1:
            spans[-1][1] = place
        else:
            spans.append([place, place])
    return ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in spans)


def _load(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise Unsupported("queues on SQS need boto3", hint="pip install 'limpet[sqs]'") from None


def _explained(what: str, error: Any, *, reads: bool) -> LimpetError:
    """Translate an error of botocore into one of ours."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    line = f"{what}: {_one_line(str(error))}"
    unclear = Unavailable if reads else OutcomeUnknown
    if "ClientError" in kinds:
        return _refused(what, error.response, unclear)
    if kinds & set(_NO_CREDENTIALS):
        return Denied(line, hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
    if "ConnectionError" in kinds:
        return Unavailable(line, hint="check the endpoint, the region and the network; then retry")
    if kinds & {"HTTPClientError", "ResponseParserError", "IncompleteReadError"}:
        return unclear(line)
    return Invalid(line, hint="set AWS_REGION, or write sqs://REGION/PREFIX; check AWS_PROFILE")


def _refused(what: str, answer: Mapping[str, Any], unclear: type[LimpetError]) -> LimpetError:
    code = _code(answer["Error"])
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    line = f"{what}: {code}: {_one_line(answer['Error'].get('Message') or '')}".removesuffix(": ")
    if code in _NO_QUEUE:
        return Missing(line, hint="it was deleted; open the queue again to create it")
    if code in _QUEUE_EXISTS:
        return Conflict(line)
    if code in _BUSY or status == 429:  # before the rest: SQS says some of these with a 403
        return Unavailable(line, hint="wait a minute, then retry" if code in _WAIT_A_MINUTE else None)
    if code in _DENIED or status in (401, 403):
        return Denied(line)
    if status >= 500:
        return unclear(line)
    return Invalid(line)


def _refusal(entry: Mapping[str, Any]) -> Refusal:
    code, said = _code(entry), entry.get("Message") or ""
    gone = code in _GONE or (code == "InvalidParameterValue" and "parameter ReceiptHandle" in said)
    return Refusal(_one_line(f"{code}: {said}".removesuffix(": ")), ours=bool(entry["SenderFault"]), gone=gone)


def _code(error: Mapping[str, Any]) -> str:
    return str(error["Code"]).rpartition(".")[2]


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 3] + "..."


SCHEMA = 1
BODY_BYTES_MAX = BATCH_BYTES_MAX
ROOM_BYTES = 4096
"""Left free in a task's message, so that the message of its failure fits too."""
ERROR_CHARS_MIN = 200
NOTHING = msgspec.Raw(b"null")

_Long = Annotated[str, msgspec.Meta(max_length=1 << 20)]
"""A text that may fill a message: SQS takes no more than 1 MiB."""


class TaskMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the main queue. `retries` counts the task's earlier lives."""

    schema: Count = SCHEMA
    id: Text
    payload: msgspec.Raw
    pushed_at: Instant
    retries: Count = 0


class FailedMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of the failed queue: a task, and how it failed.

    `message` is the SQS id of the one that failed, `body` its text if it is no task (as much of it as fits).
    """

    schema: Count = SCHEMA
    id: Text
    payload: msgspec.Raw = NOTHING
    error: _Long
    traceback: _Long | None = None
    worker: Name
    worker_id: Name
    attempts: Count
    retries: Count = 0
    pushed_at: Instant | None = None
    failed_at: Instant
    message: Name
    body: _Long | None = None


@dataclass(frozen=True, slots=True)
class FailedDelivery:
    """A message that goes to the failed queue, and why. Without a task it is one that could not be read."""

    message: Message
    task: TaskMessage | None
    error: str
    traceback: str | None = None


def task_text(task: TaskMessage) -> str:
    """The message of a task.   Raises: Invalid if it is too large (F32)."""
    text = _as_text(records.encode(task))
    size, most = len(text.encode()), BODY_BYTES_MAX - ROOM_BYTES
    if size > most:
        raise Invalid(
            f"the task takes {many(size, 'byte')}; on SQS it may take {most}",
            hint="put the data into a separate object, and its name into the task",
        )
    return text


def read_message(message: Message) -> TaskMessage:
    """The task in a message.   Raises: Corrupt if it is none, or one of a newer Limpet."""
    what = f"message {message.id}"
    task = records.decode(message.body.encode(), TaskMessage, what=what)
    if task.schema > SCHEMA:
        raise Corrupt(f"{what} has schema {task.schema}; this limpet reads up to {SCHEMA}")
    return task


def failed_text(failed: FailedDelivery, runtime: Runtime) -> str:
    """The message for the failed queue, cut where it would not fit: first the traceback, then the error, then the text
    of what could not be read.
    """
    message, task = failed.message, failed.task
    record = FailedMessage(
        id=task.id if task else message.id,
        payload=task.payload if task else NOTHING,
        error=clean_text(failed.error),
        traceback=failed.traceback and clean_text(failed.traceback[-TRACEBACK_CHARS_MAX:], TRACEBACK_CHARS_MAX),
        worker=runtime.label,
        worker_id=runtime.owner,
        attempts=message.count,
        retries=task.retries if task else 0,
        pushed_at=task.pushed_at if task else None,
        failed_at=runtime.wall(),
        message=message.id,
        body=None if task else message.body,
    )
    shorter = msgspec.structs.replace(record, traceback=None)
    shortest = msgspec.structs.replace(shorter, error=record.error[:ERROR_CHARS_MIN])
    for each in (record, shorter, shortest):
        if _fits(text := _as_text(records.encode(each))):
            return text
    while record.body and not _fits(text):
        record = msgspec.structs.replace(record, body=record.body[: len(record.body) // 2])
        most = f"the first {len(record.body or '')} of its {many(len(message.body), 'character')}"
        why = f"{shortest.error} (only {most} are kept)"
        text = _as_text(records.encode(msgspec.structs.replace(shortest, body=record.body, error=why)))
    return text  # a task beyond our limit came from a queue that takes such: nothing of it is cut


def read_failed(message: Message, id_: str | None) -> FailedMessage | None:
    """The failed task in a message; None if it is another one or cannot be pushed again."""
    try:
        record = records.decode(message.body.encode(), FailedMessage, what=f"message {message.id}")
    except Corrupt:
        return None
    if id_ not in (None, record.id):
        return None
    if record.body is not None and id_ is not None:
        raise Invalid(f"{id_!r} could not be read as a task", hint="its text is in the `body` of the failed message")
    return record if record.body is None else None


def next_life(record: FailedMessage, now: datetime) -> TaskMessage:
    """The task that a failed one becomes when it is retried: fresh attempts, and a new id."""
    life = record.retries + 1
    base = record.id.rpartition(RETRY_MARK)[0] if record.retries else record.id
    return TaskMessage(id=f"{base}{RETRY_MARK}{life}", payload=record.payload, pushed_at=now, retries=life)


def _as_text(data: bytes) -> str:
    """JSON as SQS takes it: two characters that are fine in JSON are not in a message."""
    return data.decode().replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")


def _fits(text: str) -> bool:
    """Whether SQS takes a message of that text."""
    return len(text.encode()) <= BODY_BYTES_MAX

"""Tasks as JSON text: one payload, or a file with one on each line, which is pushed in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from limpet.kernel import records
from limpet.kernel.errors import Invalid, OutcomeUnknown
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.queue import Queue
from limpet.queue.entry import PAYLOAD_BYTES_MAX, payload_bytes

CHUNK_BATCHES = 16
CHUNK_BYTES_MAX = 16 * 1024 * 1024
EXAMPLE = """quote it for the shell: '{"domain": "a.com"}'"""
STORE_APART = "put the data into a separate object, and its name into the task"


def parse_payload(text: str | bytes, *, what: str) -> dict[str, Any]:
    """A task's payload from JSON text, strictly.   Raises: Invalid, with a hint for the shell."""
    size = len(text) if isinstance(text, bytes) else len(text.encode(errors="surrogatepass"))
    if size > RECORD_BYTES_MAX:
        raise Invalid(
            f"{what} takes more than {RECORD_BYTES_MAX:,} bytes; a task holds {PAYLOAD_BYTES_MAX:,}", hint=STORE_APART
        )
    try:
        value = records.parse_json(text, what=what)
    except Invalid as error:
        raise _explained(error, what) from None
    if not isinstance(value, dict):
        kind = {list: "array", str: "string", int: "number", float: "number"}.get(type(value), "literal")
        raise Invalid(f"{what} is a JSON {kind}, and a task is a JSON object", hint=EXAMPLE)
    payload_bytes(value, what=what)
    return value


def _explained(error: Invalid, what: str) -> Invalid:
    said = str(error)
    if "nested" in said or "recursion" in said:
        return Invalid(f"{what} is nested too deeply; 64 levels are allowed", hint=STORE_APART)
    if "is not UTF-8" in said:
        return Invalid(said, hint="write it in UTF-8, such as with iconv -t utf-8")
    if said.endswith("is not JSON"):
        return Invalid(said, hint="JSON has no NaN and no infinity: use null, or a string")
    return Invalid(said, hint=EXAMPLE)


class BadLine(Invalid):
    """A line of a file is no task. Everything before its batch was pushed, and nothing after that."""


@dataclass(slots=True)
class FilePush:
    """Pushes a file of JSON lines, batch by batch. `next_line` is the first line that is not pushed yet.
    If a push ended half-way, `later` tasks after it are there.
    """

    queue: Queue
    batch: int
    pushed: int = 0
    later: int = 0
    batches: int = 0
    next_line: int = 1
    read_bytes: int = 0
    first_id: str | None = None
    last_id: str | None = None
    _line: int = 0
    _tasks: list[dict[str, Any]] = field(default_factory=list)
    _at: list[int] = field(default_factory=list)

    def run(self, stream: IO[bytes]) -> Iterator[None]:
        """Push it all; yields after each few batches.   Raises: BadLine; what `Queue.push_many` raises."""
        waiting_bytes = 0
        while line := stream.readline(RECORD_BYTES_MAX + 1):
            self._line += 1
            self.read_bytes += len(line)
            if not line.strip():
                continue
            self._take(line)
            waiting_bytes += len(line)
            if len(self._tasks) == CHUNK_BATCHES * self.batch or waiting_bytes > CHUNK_BYTES_MAX:
                self._send(len(self._tasks))
                waiting_bytes = 0
                yield
        self._send(len(self._tasks))
        yield

    def _take(self, line: bytes) -> None:
        try:
            task = parse_payload(line, what=f"line {self._line}")
        except Invalid as error:
            self._send(len(self._tasks) // self.batch * self.batch)
            self.next_line = self._at[0] if self._at else self._line
            raise BadLine(str(error), hint=error.hint) from None
        self._tasks.append(task)
        self._at.append(self._line)

    def _send(self, count: int) -> None:
        if not count:
            return
        self.next_line = self._at[0]
        try:
            ids = self.queue.push_many(self._tasks[:count], batch=self.batch)
        except OutcomeUnknown as error:
            if error.rest:
                self.pushed += len(error.pushed)
                self.next_line, self.later = self._at[error.rest[0]], len(error.pushed) - error.rest[0]
            raise
        del self._tasks[:count], self._at[:count]
        self.pushed += len(ids)
        self.batches += len({id_.rpartition(".")[0] for id_ in ids})
        self.first_id, self.last_id = self.first_id or ids[0], ids[-1]
        self.next_line = self._line + 1

"""What `limpet work` and its worker processes tell each other, as JSON lines through two pipes.

Down the first pipe goes an `Order`, then `STOP` or `NOW`; its end means that limpet is gone. Up the second come
messages.
"""

from __future__ import annotations

import os
from datetime import datetime

import msgspec

from limpet import records
from limpet.queue.work import Event, Tally

STOP = b"stop\n"
NOW = b"now\n"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker process is to do. `target` is a module's attribute, or with a `handler` the first queue."""

    target: str | None
    handler: str | None
    url: str | None
    queues: list[str]
    threads: int
    burst: bool
    max_tasks: int | None
    grace_s: float
    routine: bool
    count: bool
    events: bool = False
    until_empty: bool = False
    log_json: bool = False


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", tag_field="what"):
    """It cannot begin, and has claimed nothing. `kind` is the name of the error."""

    kind: str
    message: str
    hint: str


class Backlog(msgspec.Struct, frozen=True, kw_only=True, tag="backlog", tag_field="what"):
    """How many tasks wait, in all queues that it works on."""

    pending: int


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="log", tag_field="what"):
    """A record of Python's `logging`, and the task in whose handler it was made."""

    at: datetime
    worker: str
    level: str
    logger: str
    message: str
    queue: str = ""
    id: str = ""
    attempt: int = 0
    traceback: str = ""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended", tag_field="what"):
    """Its last words. `again`: another process is to go on; `trouble`: it gave up, and why."""

    again: bool
    trouble: str = ""


Message = Event | Tally | Refused | Backlog | LogLine | Ended

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode_line(value: msgspec.Struct) -> bytes:
    """One line of JSON."""
    return records.encode(value) + b"\n"


def decode_message(line: bytes) -> Message:
    """What a worker process said."""
    return _decoder.decode(line)


class Lines:
    """Whole lines out of the pieces that a pipe gives."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return whole


class ControlPipe:
    """The reading end of the first pipe. One read may bring several lines: each of them counts."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.stop = False
        """Whether anything came after the order: `STOP`, `NOW`, or the end."""
        self.now = False
        """Whether that was `NOW`, or the end: limpet is gone."""
        self._lines = Lines()
        self._order: bytes | None = None

    def order(self) -> Order | None:
        """Wait for the order; None if limpet was gone before it came."""
        while self._order is None and not self.now:
            self.read()
        return None if self._order is None else records.decoder(Order).decode(self._order)

    def read(self) -> None:
        """Take in what the pipe holds; waits if it holds nothing."""
        piece = os.read(self.fd, 65536)
        self.stop = self.stop or not piece
        self.now = self.now or not piece
        for line in self._lines.feed(piece):
            if self._order is None:
                self._order = line
            else:
                self.stop = True
                self.now = self.now or line == NOW.rstrip()

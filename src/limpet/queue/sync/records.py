"""What nodes write for each other: outbox entries, logs, cursors, and what a node remembers of itself.

A line says one thing that happened, with all that another node needs in order to apply it. An outbox entry is one line
in an object of its own; a log is a header and some lines. Lines may be applied in any order and any number of times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

import msgspec

from limpet import records
from limpet.errors import Corrupt, Invalid, Unsupported
from limpet.keys import QueueKeys, QueuePlace, queue_place, segment
from limpet.queue.records import ENTRY_BYTES_MAX, Receipt

__all__ = [
    "CursorRecord",
    "EndLine",
    "HeldLine",
    "LeaseLine",
    "Line",
    "LogHeader",
    "NodeRecord",
    "PushLine",
    "RemoteLease",
    "check_node",
    "client_name",
    "is_client",
    "line_bytes",
    "log_bytes",
    "place_of",
    "read_line",
    "read_log",
    "read_whole",
]

SCHEMA = 1
LINE_BYTES_MAX = 4 * ENTRY_BYTES_MAX
NODE_CHARS_MAX = 64
CLIENT = "client-"
RESERVED = ("outbox", "cursors")


class PushLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="push", omit_defaults=True):
    """A task or a batch is put at `key`. Without `data` it is large, and the bucket has it."""

    key: str
    data: str | None = None


class EndLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end", omit_defaults=True):
    """A receipt is put at `key`. It ends `entry` if it is the entry's own, not that of one task of a batch.

    Without `receipt` it is large, and the bucket has it. `write_id` lets a receipt that is sent twice be recognised.
    """

    key: str
    entry: str
    batch: bool
    write_id: str
    receipt: Receipt | None = None


class HeldLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="held"):
    """A worker of this node has held `entry` for a while. It stays in the outbox for as long as that is so."""

    root: str
    entry: str
    batch: bool


class LeaseLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="lease"):
    """A worker of the log's node holds `entry`, or (`held` false) has let it go without an end."""

    root: str
    entry: str
    batch: bool
    held: bool
    worker_id: str
    label: str
    token: int
    ttl_s: float


Line = PushLine | EndLine | HeldLine | LeaseLine


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a log. `owner` is the process that wrote it, `up_s` how often the node is heard of."""

    schema: int = SCHEMA
    node: str
    owner: str
    up_s: float
    count: int
    sha256: str


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a node remembers of itself, a cell in its own directory.

    `last_log` is the number of the last log that it wrote, `owners` are the latest processes that wrote any, `queues`
    is what it pulls (None: every queue), and `pulled_at` about when it last heard everything, on the bucket's clock
    (None: never).
    """

    node: str
    last_log: int = 0
    owners: list[str] = msgspec.field(default_factory=list)
    queues: list[str] | None = None
    adopted: bool = False
    pulled_at: datetime | None = None


class CursorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far this node has read the logs of `node`."""

    node: str
    last_log: int


class RemoteLease(msgspec.Struct, frozen=True, kw_only=True):
    """Who works on an entry elsewhere, as its log `log` said. It counts for `live_s` after it was written here."""

    node: str
    log: int
    worker_id: str
    label: str
    token: int
    live_s: float


_lines: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line, strict=True)


def check_node(node: str) -> str:
    """`node`, if a node may be called so.   Raises: Invalid."""
    if not node or len(node) > NODE_CHARS_MAX or segment(node) != node:
        raise Invalid(
            f"a node cannot be called {node!r}", hint=f"use up to {NODE_CHARS_MAX} letters, digits, `-`, `_` and `.`"
        )
    if node.startswith(CLIENT) or node in RESERVED:
        raise Invalid(f"the node name {node!r} is taken by limpet itself", hint="choose another one")
    return node


def client_name(id_: str) -> str:
    """The name in logs of somebody who works on the bucket directly."""
    return CLIENT + id_


def is_client(node: str) -> bool:
    """Whether the logs under this name are those of a process that works on the bucket directly.

    It writes a line before the effect, and a node after it: a line of a client may tell of what the bucket has not yet.
    """
    return node.startswith(CLIENT)


def line_bytes(line: Line) -> bytes:
    """One line, without its end."""
    return records.encode(line)


def read_line(data: bytes, *, what: str) -> Line:
    """A line that was stored.   Raises: Corrupt."""
    if len(data) > LINE_BYTES_MAX:
        raise Corrupt(f"{what} has {len(data)} bytes, more than the {LINE_BYTES_MAX} that a line may have")
    try:
        line = _lines.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{what} is not a valid line: {error or 'nested too deeply'}") from None
    if not isinstance(line, PushLine):
        _place(_keys_of(line).tasks(line.entry, batch=line.batch))
    else:
        place_of(line)
    return line


def read_whole(data: bytes, *, what: str) -> PushLine | EndLine | HeldLine:
    """An outbox entry: a line that refers to nothing.   Raises: Corrupt."""
    line = read_line(data, what=what)
    match line:
        case LeaseLine() | PushLine(data=None) | EndLine(receipt=None):
            raise Corrupt(f"{what} is no outbox entry")
    return line


def place_of(line: PushLine | EndLine) -> QueuePlace:
    """Where the line's object belongs.   Raises: Corrupt for a key that no queue has, or of another kind (F28)."""
    place = _place(line.key)
    wanted = ("single", "batch", "scheduled") if isinstance(line, PushLine) else ("completed", "failed")
    if place.kind not in wanted:
        raise Corrupt(f"a line names {line.key!r}, which is no place for it")
    return place


def _keys_of(line: EndLine | HeldLine | LeaseLine) -> QueueKeys:
    return place_of(line).keys if isinstance(line, EndLine) else QueueKeys(line.root)


def _place(key: str) -> QueuePlace:
    try:
        place = queue_place(key)
    except Invalid as error:
        raise Corrupt(f"a line names {key!r}: {error}") from None
    if place is None:
        raise Corrupt(f"a line names {key!r}, which is no place for it")
    return place


def log_bytes(lines: Sequence[Line], *, node: str, owner: str, up_s: float) -> bytes:
    """The object of a log."""
    body = b"\n".join(map(line_bytes, lines))
    digest = hashlib.sha256(body).hexdigest()
    header = LogHeader(node=node, owner=owner, up_s=up_s, count=len(lines), sha256=digest)
    return records.encode(header) + b"\n" + body


def read_log(data: bytes, *, what: str) -> tuple[LogHeader, list[Line]]:
    """A log.   Raises: Corrupt; Unsupported for one that a newer Limpet wrote."""
    first, _, body = data.partition(b"\n")
    header = records.decode(first, LogHeader, what=what)
    if header.schema > SCHEMA:
        raise Unsupported(f"{what} has schema {header.schema}; this limpet reads up to {SCHEMA}")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise Corrupt(f"{what} does not match its digest")  # F23: cut short, or changed by another program
    return header, [read_line(line, what=what) for line in body.split(b"\n")] if header.count else []

"""What nodes write for each other: outbox entries, logs, cursors, and what a node remembers of itself.

A line says one thing that happened, with all that another node needs in order to apply it. An outbox entry is one line
in an object of its own; a log is a header and some lines. Lines may be applied in any order and any number of times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated

import msgspec

from limpet import records
from limpet.errors import Corrupt, Invalid, Unsupported
from limpet.keys import LOG_MAX, QueueKeys, QueuePlace, queue_place, segment
from limpet.lease.decide import TTL_MAX_S
from limpet.queue.entry import ENTRY_BYTES_MAX, Receipt, batch_of
from limpet.records import Count, Digest, Instant, Name, Seconds

SCHEMA = 1
LINE_BYTES_MAX = 4 * ENTRY_BYTES_MAX
LOG_READ_MAX = LINE_BYTES_MAX + (1 << 20)
"""The largest log that is read: one line of a client, and its header."""
LINES_READ_MAX = 10_000
UP_MAX_S = 86400.0
"""A node that is heard of less often than that cannot keep an entry from the others for longer."""
OWNERS_READ_MAX = 64
QUEUES_MAX = 10_000
NODE_CHARS_MAX = 64
CLIENT = "client-"
RESERVED = ("outbox", "cursors", "damaged")

LogNumber = Annotated[int, msgspec.Meta(ge=0, le=LOG_MAX)]
Ttl = Annotated[float, msgspec.Meta(gt=0.0, le=TTL_MAX_S)]
Whole = Annotated[str, msgspec.Meta(max_length=ENTRY_BYTES_MAX)]
"""The text of a task or a batch."""


class PushLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="push", omit_defaults=True):
    """A task or a batch is put at `key`. Without `data` it is large, and the bucket has it."""

    key: Name
    data: Whole | None = None


class EndLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end", omit_defaults=True):
    """A receipt is put at `key`. It ends `entry` if it is the entry's own, not that of one task of a batch.

    Without `receipt` it is large, and the bucket has it. `write_id` lets a receipt that is sent twice be recognised.
    """

    key: Name
    entry: Name
    batch: bool
    write_id: Name
    receipt: Receipt | None = None


class HeldLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="held"):
    """A worker of this node has held `entry` for a while. It stays in the outbox for as long as that is so."""

    root: Name
    entry: Name
    batch: bool


class LeaseLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="lease"):
    """A worker of the log's node holds `entry`, or (`held` false) has let it go without an end."""

    root: Name
    entry: Name
    batch: bool
    held: bool
    worker_id: Name
    label: Name
    token: Count
    ttl_s: Ttl


Line = PushLine | EndLine | HeldLine | LeaseLine


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a log. `owner` is the process that wrote it, `up_s` how often the node is heard of."""

    schema: Count = SCHEMA
    node: Name
    owner: Name
    up_s: Seconds
    count: Annotated[int, msgspec.Meta(ge=0, le=LINES_READ_MAX)]
    sha256: Digest


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a node remembers of itself, a cell in its own directory.

    `last_log` is the number of the last log that it wrote, `owners` are the latest processes that wrote any, `queues`
    is what it pulls (None: every queue), and `pulled_at` about when it last heard everything, on the bucket's clock
    (None: never).
    """

    node: Name
    last_log: LogNumber = 0
    owners: Annotated[list[Name], msgspec.Meta(max_length=OWNERS_READ_MAX)] = msgspec.field(default_factory=list)
    queues: Annotated[list[Name], msgspec.Meta(max_length=QUEUES_MAX)] | None = None
    adopted: bool = False
    pulled_at: Instant | None = None


class CursorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far this node has read the logs of `node`."""

    node: Name
    last_log: LogNumber


class RemoteLease(msgspec.Struct, frozen=True, kw_only=True):
    """Who works on an entry elsewhere, as its log `log` said. It counts for `live_s` after it was written here."""

    node: Name
    log: LogNumber
    worker_id: Name
    label: Name
    token: Count
    live_s: Seconds


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
    line: Line = records.decode(data, Line, what=what, size_max=LINE_BYTES_MAX)  # type: ignore[arg-type]
    match line:
        case PushLine():
            place_of(line)
        case EndLine():
            name = place_of(line).name
            of = batch_of(name)
            if line.entry != name and (of is None or of[0] != line.entry):
                raise Corrupt(f"{what} has a receipt of {name!r} for {line.entry!r}")
        case HeldLine() | LeaseLine():
            _place(QueueKeys(line.root).tasks(line.entry, batch=line.batch))
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
        raise Corrupt(f"a line names {line.key[:NODE_CHARS_MAX]!r}, which is no place for it")
    return place


def _place(key: str) -> QueuePlace:
    place = queue_place(key)
    if place is None:
        raise Corrupt(f"a line names {key[:NODE_CHARS_MAX]!r}, which is no place for it")
    return place


def log_bytes(lines: Sequence[Line], *, node: str, owner: str, up_s: float) -> bytes:
    """The object of a log."""
    body = b"\n".join(map(line_bytes, lines))
    digest = hashlib.sha256(body).hexdigest()
    header = LogHeader(node=node, owner=owner, up_s=up_s, count=len(lines), sha256=digest)
    return records.encode(header) + b"\n" + body


def read_header(data: bytes, *, what: str) -> LogHeader:
    """The header of a log, if the rest is as it says.   Raises: Corrupt; Unsupported for one of a newer Limpet."""
    first, _, body = data.partition(b"\n")
    header = records.decode(first, LogHeader, what=what)
    if header.schema > SCHEMA:
        raise Unsupported(f"{what} has schema {header.schema}; this limpet reads up to {SCHEMA}")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise Corrupt(f"{what} does not match its digest")  # F23: cut short, or changed by another program
    if body.count(b"\n") + bool(body) != header.count:
        raise Corrupt(f"{what} does not have the {header.count} lines that it should")
    return header


def read_log(data: bytes, *, what: str) -> tuple[LogHeader, list[Line], list[int]]:
    """A log: its header, the lines that can be read, and the numbers (from 1) of those that cannot.

    A line that is not what Limpet writes is left out, and says nothing about its neighbours.
    Raises: Corrupt, Unsupported: as `read_header`.
    """
    header = read_header(data, what=what)
    lines: list[Line] = []
    bad: list[int] = []
    for n, line in enumerate(data.split(b"\n")[1:] if header.count else (), 1):
        try:
            lines.append(read_line(line, what=what))
        except Corrupt:
            bad.append(n)
    return header, lines, bad

"""The stored formats: outbox entries, logs, cursors, and the record of a node.

A line describes one event, with everything that another node needs in order to apply it. An outbox entry is an object
with one line; a log is a header and several lines. Lines may be applied in any order and any number of times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid, Unsupported
from limpet.kernel.keys import LOG_MAX, QueueKeys, QueuePlace, batch_of, queue_place, segment
from limpet.kernel.lease.decide import TTL_MAX_S
from limpet.kernel.records import Count, Digest, Instant, Name, Seconds
from limpet.kernel.wording import many
from limpet.queue.entry import ENTRY_BYTES_MAX, Receipt

SCHEMA = 1
LINE_BYTES_MAX = 4 * ENTRY_BYTES_MAX
LOG_READ_MAX = LINE_BYTES_MAX + (1 << 20)
"""The largest log that is read: the header, and one line of the largest size."""
LINES_READ_MAX = 10_000
UP_MAX_S = 86400.0
"""An upper bound of the interval that a log's header states: it prolongs the leases which that log reports."""
OWNERS_READ_MAX = 64
QUEUES_MAX = 10_000
NODE_CHARS_MAX = 64
CLIENT = "client-"
RESERVED = ("outbox", "cursors", "damaged")
DAMAGE = (Corrupt, Invalid, Unsupported)
"""Errors about one object or its name, not about the store: the object is reported, and the cycle goes on."""

LogNumber = Annotated[int, msgspec.Meta(ge=0, le=LOG_MAX)]
Ttl = Annotated[float, msgspec.Meta(gt=0.0, le=TTL_MAX_S)]
EntryText = Annotated[str, msgspec.Meta(max_length=ENTRY_BYTES_MAX)]
"""The text of a task or a batch."""


class PushLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="push", omit_defaults=True):
    """A task or a batch was pushed to `key`. A large one has no `data`: it is read from the bucket."""

    key: Name
    data: EntryText | None = None


class EndLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end", omit_defaults=True):
    """A receipt was written to `key`. It ends `entry`, unless it is the receipt of one task of a batch.

    A large one has no `receipt`: it is read from the bucket. `write_id` identifies a receipt that is sent twice.
    """

    key: Name
    entry: Name
    batch: bool
    write_id: Name
    receipt: Receipt | None = None


class HeldLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="held"):
    """A worker of this node has held `entry` for a while. The line stays in the outbox until the entry is released."""

    root: Name
    entry: Name
    batch: bool


class LeaseLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="lease"):
    """A worker of the log's node holds `entry`, or (`held` false) has released it unfinished."""

    root: Name
    entry: Name
    batch: bool
    held: bool
    worker_id: Name
    label: Name
    token: Count
    ttl_s: Ttl


OutboxLine = PushLine | EndLine | HeldLine
Line = OutboxLine | LeaseLine


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a log. `owner` is the process that wrote it, `up_s` the interval at which the node sends."""

    schema: Count = SCHEMA
    node: Name
    owner: Name
    up_s: Seconds
    count: Annotated[int, msgspec.Meta(ge=0, le=LINES_READ_MAX)]
    sha256: Digest


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node, a cell in its directory.

    `last_log` is the number of the last log that it wrote, `owners` are the latest processes that wrote any, `queues`
    are those that it pulls (None: every queue), `adopted` says that objects from before the first supervisor are in
    the outbox, and `pulled_at` is about when the last complete pull was, on the bucket's clock (None: never).
    """

    node: Name
    last_log: LogNumber = 0
    owners: Annotated[list[Name], msgspec.Meta(max_length=OWNERS_READ_MAX)] = msgspec.field(default_factory=list)
    queues: Annotated[list[Name], msgspec.Meta(max_length=QUEUES_MAX)] | None = None
    adopted: bool = False
    pulled_at: Instant | None = None
    fleet: Name | None = None
    """The id of the fleet that the node belongs to. Limpet 0.1 does not know it, nor what follows."""
    epoch: Count = 0
    """The epoch of that fleet when the node last exchanged anything with it."""


class CursorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last log of `node` that was applied here."""

    node: Name
    last_log: LogNumber


class RemoteLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease of another node, as reported by its log `log`. It is live for `live_s` after it was written here."""

    node: Name
    log: LogNumber
    worker_id: Name
    label: Name
    token: Count
    live_s: Seconds


def check_node(node: str) -> str:
    """`node`, if that is a valid name for a node.   Raises: Invalid."""
    if not node or len(node) > NODE_CHARS_MAX or segment(node) != node:
        raise Invalid(
            f"a node cannot be called {node!r}", hint=f"use up to {NODE_CHARS_MAX} letters, digits, `-`, `_` and `.`"
        )
    if node.startswith(CLIENT) or node in RESERVED:
        raise Invalid(f"the node name {node!r} is taken by limpet itself", hint="choose another one")
    return node


def is_client(node: str) -> bool:
    """Whether the logs under this name were written by a process that works on the bucket directly.

    A client logs before it writes to the bucket, a node afterwards: so a client's line may precede its object.
    """
    return node.startswith(CLIENT)


def read_line(data: bytes, *, what: str) -> Line:
    """Decode and validate a stored line.   Raises: Corrupt."""
    kind: Any = Line  # a union is not a `type[...]`, and Python has no other way to annotate it yet (PEP 747)
    line: Line = records.decode(data, kind, what=what, size_max=LINE_BYTES_MAX)
    match line:
        case PushLine():
            place_of(line)
        case EndLine():
            name = place_of(line).name
            of = batch_of(name)
            if line.entry != name and (of is None or of[0] != line.entry):
                raise Corrupt(f"{what} has a receipt of {name!r} for {line.entry!r}")
        case HeldLine() | LeaseLine():
            place_at(QueueKeys(line.root).tasks(line.entry, batch=line.batch))
    return line


def read_outbox_entry(data: bytes, *, what: str) -> OutboxLine:
    """Decode and validate an outbox entry: a line that has its task or its receipt.   Raises: Corrupt."""
    line = read_line(data, what=what)
    match line:
        case LeaseLine() | PushLine(data=None) | EndLine(receipt=None):
            raise Corrupt(f"{what} is not an outbox entry")
    return line


def place_of(line: PushLine | EndLine) -> QueuePlace:
    """The place of the line's object.   Raises: Corrupt for a key outside of a queue, or of another kind (F28)."""
    place = place_at(line.key)
    wanted = ("single", "batch", "scheduled") if isinstance(line, PushLine) else ("completed", "failed")
    if place.kind not in wanted:
        raise Corrupt(f"a line names {line.key[:NODE_CHARS_MAX]!r}, where it cannot belong")
    return place


def place_at(key: str) -> QueuePlace:
    """The place in a queue that `key` names.   Raises: Corrupt for a key outside of a queue (F28)."""
    place = queue_place(key)
    if place is None:
        raise Corrupt(f"a line names {key[:NODE_CHARS_MAX]!r}, where it cannot belong")
    return place


def log_bytes(lines: Sequence[Line], *, node: str, owner: str, up_s: float) -> bytes:
    """Encode a log."""
    body = b"\n".join(map(records.encode, lines))
    digest = hashlib.sha256(body).hexdigest()
    header = LogHeader(node=node, owner=owner, up_s=up_s, count=len(lines), sha256=digest)
    return records.encode(header) + b"\n" + body


def read_header(data: bytes, *, what: str) -> LogHeader:
    """Decode the header of a log and check its digest.   Raises: Corrupt; Unsupported for a log of a newer Limpet."""
    first, _, body = data.partition(b"\n")
    header = records.decode(first, LogHeader, what=what)
    if header.schema > SCHEMA:
        raise Unsupported(f"{what} has schema {header.schema}; this limpet reads up to {SCHEMA}")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise Corrupt(f"{what} does not match its digest")  # F23: cut short, or changed by another program
    if body.count(b"\n") + bool(body) != header.count:
        raise Corrupt(f"{what} does not have the {many(header.count, 'line')} that its header states")
    return header


def read_log(data: bytes, *, what: str) -> tuple[LogHeader, list[Line], list[int]]:
    """Decode a log: its header, its valid lines, and the 1-based numbers of invalid ones.

    An invalid line is skipped; the other lines of its log count.   Raises: Corrupt, Unsupported: as `read_header`.
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

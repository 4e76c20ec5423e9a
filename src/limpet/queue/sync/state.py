"""What a node remembers: its name, the last log that it wrote, and how far it has read the logs of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import msgspec

from limpet import keys
from limpet.cell import Cell, struct_codec
from limpet.errors import Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.keys import Key
from limpet.queue.sync.objects import DAMAGE, put_aside
from limpet.queue.sync.records import NODE_CHARS_MAX, CursorRecord, NodeRecord, check_node
from limpet.runtime import Runtime
from limpet.store.api import Store

OWNERS_MAX = 16
SUFFIX_CHARS = 6
HOST_CHARS_MAX = 32


class NodeState:
    """The node's own cells, read once and kept in memory: one supervisor at a time works on a directory.

    Two at once do no harm either: logs are created if absent, and applying one twice changes nothing.
    """

    def __init__(self, local: Store, runtime: Runtime, *, node: str | None, queues: Sequence[str] | None) -> None:
        self._local = local
        self._runtime = runtime
        self._wanted = None if node is None else check_node(node)
        self._queues = None if queues is None else sorted({*queues})
        self._cell = Cell(local, keys.NODE, struct_codec(NodeRecord), runtime)
        self._record: NodeRecord | None = None
        self._cursors: dict[str, int] = {}
        self._lost = False
        self.seen_last = 0
        """The last number in our own folder of the bucket, as the last listing showed it: it may be a stranger's."""
        self.damaged: list[str] = []
        """Cells of this node that could not be read, and were put aside."""

    @property
    def record(self) -> NodeRecord:
        """The node as it is now; `start` comes first."""
        assert self._record is not None
        return self._record

    @property
    def node(self) -> str:
        """The node's name."""
        return self.record.node

    @property
    def cursors(self) -> Mapping[str, int]:
        """The last log of each other node that was applied here."""
        return self._cursors

    def start(self) -> None:
        """Read what there is; at the very first start, choose a name. Does nothing the second time.

        A cursor that cannot be read starts over, which leads to a fresh pull. A node whose own record cannot be read
        goes on under a new name: it does not know which logs are its own.
        Raises: Invalid for a name that is not the one which this directory already has.
        Cost: 1 GET + 1 PUT + 1 LIST per 1,000 cursors and 1 GET each.
        """
        if self._record is not None:
            return
        try:
            found = self._cell.read()
        except (Corrupt, Unsupported):
            self._put_aside(keys.NODE)
            found, self._lost = None, True
        if found is not None and not self._is_called(found.value.node):
            raise Invalid(
                f"this directory is the node {found.value.node!r}, not {self._wanted!r}",
                hint=f"leave --node out; a copied directory becomes a node of its own without {keys.NODE}",
            )
        self._load_cursors()
        self._change(self._begun)

    def is_ours(self, owner: str) -> bool:
        """Whether a process of that name was a supervisor of this directory.   Cost: 1 GET here if it is not known."""
        if owner not in self.record.owners:
            found = self._cell.read()  # one that took over from us while we slept
            self._record = found.value if found else self.record
        return owner in self.record.owners

    def wrote(self, seq: int) -> None:
        """The log `seq` is in the bucket.   Cost: 1 PUT here."""
        self._change(lambda record: msgspec.structs.replace(record, last_log=seq))

    def adopted(self) -> None:
        """What was in the directory before its first supervisor is in the outbox.   Cost: 1 PUT here."""
        self._change(lambda record: msgspec.structs.replace(record, adopted=True))

    def pulled(self, at: datetime) -> None:
        """Everything up to then was heard.   Cost: 1 PUT here."""
        self._change(lambda record: msgspec.structs.replace(record, pulled_at=at))

    def read_up_to(self, node: str, seq: int) -> None:
        """The logs of `node` up to `seq` are applied.   Cost: 1 GET + 1 PUT here."""
        if seq > self._cursors.get(node, 0):
            cell = Cell(self._local, keys.cursor_key(node), struct_codec(CursorRecord), self._runtime)
            cell.update(
                lambda found: None if found and found.last_log >= seq else CursorRecord(node=node, last_log=seq)
            )
            self._cursors[node] = seq

    def forget(self, node: str) -> None:
        """A client whose logs are all gone is never heard of again.   Cost: 1 DELETE here."""
        self._local.delete(keys.cursor_key(node))
        del self._cursors[node]

    def _load_cursors(self) -> None:
        listed = [stat.key for stat in self._local.list(keys.CURSORS)]
        for key, found in self._local.get_many(listed).items():
            if isinstance(found, Missing):
                continue
            try:
                if isinstance(found, LimpetError):
                    raise found
                cursor = Cell(self._local, key, struct_codec(CursorRecord), self._runtime).decode(found).value
                if keys.cursor_key(cursor.node) != key:
                    raise Corrupt(f"{key} is the cursor of {cursor.node!r}")
            except DAMAGE:
                self._put_aside(key)
            else:
                self._cursors[cursor.node] = cursor.last_log

    def _put_aside(self, key: Key) -> None:
        put_aside(self._local, self._runtime, key)
        self.damaged.append(key)

    def _is_called(self, node: str) -> bool:
        """Whether a node of that name is the one that was asked for: after damage a name has some letters more."""
        return self._wanted in (None, node) or (node.startswith(f"{self._wanted}-") and self._was_damaged())

    def _was_damaged(self) -> bool:
        return any(True for _ in self._local.list(keys.DAMAGED))

    def _begun(self, record: NodeRecord) -> NodeRecord:
        """The record of a node whose next process starts. A node that pulls other queues than before starts afresh."""
        return msgspec.structs.replace(
            record,
            owners=[*record.owners, self._runtime.owner][-OWNERS_MAX:],
            queues=self._queues,
            pulled_at=record.pulled_at if record.queues == self._queues else None,
        )

    def _change(self, change: Callable[[NodeRecord], NodeRecord]) -> None:
        seen = self._cell.update(lambda record: change(record or self._first()))
        assert seen is not None
        self._record = seen.value

    def _first(self) -> NodeRecord:
        """The record of a new node. After damage nothing is adopted: what was here was adopted long ago."""
        return NodeRecord(node=self._name(), queues=self._queues, adopted=self._lost)

    def _name(self) -> str:
        """The host's name, and some letters of chance: many a Pi is called `raspberrypi`."""
        suffix = f"-{self._runtime.new_id()[-SUFFIX_CHARS:]}"
        if self._wanted is not None:
            return self._wanted[: NODE_CHARS_MAX - len(suffix)] + suffix if self._lost else self._wanted
        host = self._runtime.label.rpartition(":")[0].partition(".")[0][:HOST_CHARS_MAX]
        return check_node(keys.segment(host or "node")[:HOST_CHARS_MAX] + suffix)

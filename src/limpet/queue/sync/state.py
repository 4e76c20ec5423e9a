"""`NodeState`: the node's name, the last log that it wrote, its cursors in the logs of others, and damaged objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from limpet.kernel import keys
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Store
from limpet.queue.sync.decide import FleetVerdict, RemoteFleet, joined
from limpet.queue.sync.records import DAMAGE, NODE_CHARS_MAX, CursorRecord, NodeRecord, check_node

OWNERS_MAX = 16
SUFFIX_CHARS = 6
HOST_CHARS_MAX = 32
KEPT_BYTES_MAX = 1 << 20


class NodeState:
    """The node's own cells, read once and cached: one supervisor at a time works on a directory.

    Two at once do no harm either: logs are created if absent, and applying one twice changes nothing.
    """

    rehome = False
    """Whether the next `join` joins the fleet that it meets, whichever it is."""

    def __init__(self, local: Store, runtime: Runtime, *, node: str | None, queues: Sequence[str] | None) -> None:
        self._local = local
        self._runtime = runtime
        self._wanted = None if node is None else check_node(node)
        self._queues = None if queues is None else sorted({*queues})
        self._cell = Cell(local, keys.NODE, struct_codec(NodeRecord), runtime)
        self._record: NodeRecord | None = None
        self._lost = False
        self.cursors: dict[str, int] = {}
        """The last log of each other node that was applied here."""
        self.seen_last = 0
        """The highest log number in our folder of the bucket when it was last listed; perhaps not written by us."""
        self.unreadable: list[str] = []
        """Objects that could not be read and that no cycle has reported yet."""

    @property
    def record(self) -> NodeRecord:
        """The current record; valid after `start`."""
        assert self._record is not None
        return self._record

    @property
    def node(self) -> str:
        """The node's name."""
        return self.record.node

    def start(self) -> None:
        """Read the node's cells; at the very first start, choose a name. Does nothing the second time.

        A cursor that cannot be read starts at zero, which leads to a fresh pull. If the node's own record cannot be
        read, the node gets a new name: it does not know which logs it wrote.
        Raises: Invalid for a name that is not the one which this directory already has.
        Cost: 1 GET + 1 PUT + 1 LIST per 1,000 cursors and 1 GET each.
        """
        if self._record is not None:
            return
        try:
            found = self._cell.read()
        except (Corrupt, Unsupported):
            self.put_aside(keys.NODE)
            found, self._lost = None, True
        if found is not None and not self._is_called(found.value.node):
            raise Invalid(
                f"this directory is the node {found.value.node!r}, not {self._wanted!r}",
                hint=f"leave --node out; to make a copied directory a separate node, remove {keys.NODE} from it",
            )
        self._load_cursors()
        self._update(self._started)

    def join(self, home: RemoteFleet) -> None:
        """Compare the fleet at the remote URL with the one that the node belongs to.

        A node that joins a fleet, or meets its own after a restore, sends everything again and pulls everything, by no
        cursor; its logs keep their numbers, since other nodes may have read the old ones.
        Raises: Invalid for another fleet.   Cost: nothing if it is the same; else 1 PUT and 1 DELETE a cursor here.
        Crash: done again, or the record says that everything is to be sent.
        """
        known = RemoteFleet(self.record.fleet, self.record.epoch)
        verdict = joined(known, home)
        if verdict in (FleetVerdict.OTHER, FleetVerdict.OLDER) and not self.rehome:
            raise Invalid(
                f"node {self.node!r} belongs to fleet {known.fleet}; --remote is {verdict.value}, {home.fleet}",
                hint="check --remote; `limpet supervise --rehome` joins that fleet, and sends it all that is here",
            )
        if verdict is not FleetVerdict.SAME:
            self._local.delete_many(keys.cursor_key(node) for node in self.cursors)
            self.cursors.clear()
            self.change(fleet=home.fleet, epoch=home.epoch, adopted=False, pulled_at=None)
        elif home.fleet is not None and home != known:
            self.change(fleet=home.fleet, epoch=home.epoch)
        self.rehome = False

    def is_ours(self, owner: str) -> bool:
        """Whether that process was a supervisor of this directory.   Cost: 1 GET here if it is not known."""
        if owner not in self.record.owners:
            found = self._cell.read()  # another supervisor may have taken over while this one was suspended
            self._record = found.value if found else self.record
        return owner in self.record.owners

    def change(self, **fields: object) -> None:
        """Set fields of the node's record.   Cost: 1 PUT here."""
        self._update(lambda record: msgspec.structs.replace(record, **fields))

    def read_up_to(self, node: str, seq: int) -> None:
        """Store that the logs of `node` up to `seq` are applied.   Cost: 1 GET + 1 PUT here."""
        if seq > self.cursors.get(node, 0):
            cell = Cell(self._local, keys.cursor_key(node), struct_codec(CursorRecord), self._runtime)
            cell.update(
                lambda found: None if found and found.last_log >= seq else CursorRecord(node=node, last_log=seq)
            )
            self.cursors[node] = seq

    def forget(self, node: str) -> None:
        """Delete the cursor of a client whose logs are all trimmed: its name never recurs.   Cost: 1 DELETE here."""
        self._local.delete(keys.cursor_key(node))
        del self.cursors[node]

    def put_aside(self, key: Key) -> None:
        """Move a damaged object of the node's directory to `sync/damaged/` and report it; of a large one the beginning.

        While an object is there, the node cannot know everything that it has to send, and a fresh pull drops nothing.
        Cost: 1 HEAD + 1 GET + 1 PUT + 1 DELETE.   Crash: done again.
        """
        self.unreadable.append(key)
        if not keys.is_key(key):
            return  # no store takes that name: Limpet has not written it, and cannot move it
        name = key.rsplit("/", 1)[1].partition(".")[0]
        try:
            size = self._local.head(key).size
            data = self._local.get(key, range=(0, min(size, KEPT_BYTES_MAX))).data if size else b""
        except Missing:
            return
        self._local.put(keys.damaged_key(f"{name}-{self._runtime.new_id()}"), data, when=Absent())
        self._local.delete(key)

    def has_damage(self) -> bool:
        """Whether an object was put aside.   Cost: 1 LIST here."""
        return any(True for _ in self._local.list(keys.DAMAGED))

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
                self.put_aside(key)
            else:
                self.cursors[cursor.node] = cursor.last_log

    def _is_called(self, node: str) -> bool:
        """Whether `node` is the name that was asked for; after damage a suffix is appended to it."""
        return self._wanted in (None, node) or (node.startswith(f"{self._wanted}-") and self.has_damage())

    def _started(self, record: NodeRecord) -> NodeRecord:
        """The record for a new process. If it pulls other queues than the last one, the next pull is a fresh one."""
        return msgspec.structs.replace(
            record,
            owners=[*record.owners, self._runtime.owner][-OWNERS_MAX:],
            queues=self._queues,
            pulled_at=record.pulled_at if record.queues == self._queues else None,
        )

    def _update(self, change: Callable[[NodeRecord], NodeRecord]) -> None:
        seen = self._cell.update(lambda record: change(record or self._first()))
        assert seen is not None
        self._record = seen.value

    def _first(self) -> NodeRecord:
        """The record of a new node. After damage nothing is imported: that was done at the very first start."""
        return NodeRecord(node=self._name(), queues=self._queues, adopted=self._lost)

    def _name(self) -> str:
        """The name that was asked for, or the host's name with a random suffix: host names are not unique."""
        suffix = f"-{self._runtime.new_id()[-SUFFIX_CHARS:]}"
        if self._wanted is not None:
            return self._wanted[: NODE_CHARS_MAX - len(suffix)] + suffix if self._lost else self._wanted
        host = self._runtime.label.rpartition(":")[0].partition(".")[0][:HOST_CHARS_MAX]
        return check_node(keys.segment(host or "node")[:HOST_CHARS_MAX] + suffix)

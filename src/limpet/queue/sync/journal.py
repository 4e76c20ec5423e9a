"""Where a push or an end is noted before it takes effect (H8): a node's outbox, or a client's log in the bucket.

The note comes first, so that a crash can at worst leave a note without its effect. Sending such a note is right: the
push was asked for, the handler did return. The other way round, what was acknowledged here would never leave the node.
"""

from __future__ import annotations

from collections.abc import Iterable

from limpet import keys
from limpet.errors import Conflict, Corrupt, Missing, OutcomeUnknown
from limpet.keys import Key, QueueKeys
from limpet.queue.entry import Receipt
from limpet.queue.sync.lease_down import RemoteLeases
from limpet.queue.sync.records import (
    LOG_READ_MAX,
    EndLine,
    HeldLine,
    Line,
    PushLine,
    client_name,
    line_bytes,
    log_bytes,
)
from limpet.runtime import Runtime
from limpet.store.api import Absent, Stat, Store

SENDS_MAX = 4
BACKOFF_S = 0.1


class Outbox:
    """A supervised node's journal: one object for each entry, until `sync_up` has sent it.

    Cost: 1 PUT into the node's own directory for each push and each end, and for a claim that lasts.
    """

    travels = True

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._leases = RemoteLeases(store, runtime)

    def pushed(self, key: Key, data: bytes) -> None:
        self._append(PushLine(key=key, data=data.decode()))

    def ended(self, entry: str, batch: bool, key: Key, receipt: Receipt) -> None:
        self._append(EndLine(key=key, entry=entry, batch=batch, write_id=self._runtime.new_id(), receipt=receipt))

    def held(self, queue: QueueKeys, entry: str, batch: bool) -> None:
        self._append(HeldLine(root=queue.root, entry=entry, batch=batch))

    def foreign(self, found: Iterable[Stat]) -> set[str]:
        """Cost: 1 GET for each `remote.json` that was not seen before."""
        return self._leases.live(found)

    def _append(self, line: Line) -> None:
        self._store.put(keys.outbox_key(self._runtime.new_id()), line_bytes(line), when=Absent())


class ClientLog:
    """The journal of a process that works on the bucket directly, beside supervised nodes: it writes a log itself.

    Each line is a log of its own, and they are written one after another, so that whoever sees a number has seen, or
    can see, all lower ones.   Cost: 1 PUT into the bucket for each push and each end.
    """

    travels = True

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._owner = ""
        self._node = ""
        self._seq = 0

    def pushed(self, key: Key, data: bytes) -> None:
        self._append(PushLine(key=key, data=data.decode()))

    def ended(self, entry: str, batch: bool, key: Key, receipt: Receipt) -> None:
        self._append(EndLine(key=key, entry=entry, batch=batch, write_id=self._runtime.new_id(), receipt=receipt))

    def held(self, queue: QueueKeys, entry: str, batch: bool) -> None:
        """The bucket's own lease says it."""

    def foreign(self, found: Iterable[Stat]) -> set[str]:
        """In the bucket there is one lease for all."""
        return set()

    def _append(self, line: Line) -> None:
        """Write the next log.   Raises: OutcomeUnknown, Unavailable: then nothing may take effect yet."""
        with self._mutex:
            if self._owner != self._runtime.owner:  # a forked child is a client of its own
                self._owner, self._node, self._seq = self._runtime.owner, client_name(self._runtime.new_id()), 0
            data = log_bytes([line], node=self._node, owner=self._owner, up_s=0.0)
            for sent in range(1, SENDS_MAX + 1):
                if self._written(keys.log_key(self._node, self._seq + 1), data):
                    self._seq += 1
                    return
                self._runtime.sleep(self._runtime.rng.uniform(0.5, 1.0) * BACKOFF_S * sent)
        raise OutcomeUnknown(f"whether a log of {self._node} was written cannot be told", hint="do it again")

    def _written(self, key: Key, data: bytes) -> bool:
        """Whether our line stands there now. A line that we gave up and that landed late takes the number."""
        try:
            self._store.put(key, data, when=Absent())
            return True
        except (Conflict, OutcomeUnknown):
            pass
        try:
            found = self._store.get(key, size_max=LOG_READ_MAX).data
        except Missing:
            return False
        except Corrupt:
            found = b""  # larger than a log: not ours
        if found != data:
            self._seq += 1
        return found == data

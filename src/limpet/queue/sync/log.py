"""Journals and logs: a push or an end is noted before it takes effect (H8), and nodes read each other's logs.

A node notes it in the outbox of its directory, a client of the bucket in a log. The note comes first, so that a crash
can at worst leave a note without its effect. Sending such a note is correct: the push was asked for, the handler did
return. The other way round, an acknowledged push or end would never leave the node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from limpet.kernel import keys, records
from limpet.kernel.errors import Conflict, Corrupt, LimpetError, Missing, OutcomeUnknown, Unsupported
from limpet.kernel.keys import Key, QueueKeys
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Stat, Store, batched
from limpet.kernel.waiting import SENDS_MAX, attempts
from limpet.queue.entry import Receipt
from limpet.queue.sync.apply import OnUnreadable, RemoteLeases, stored_bytes
from limpet.queue.sync.records import (
    CLIENT,
    LOG_READ_MAX,
    EndLine,
    HeldLine,
    Line,
    LogHeader,
    PushLine,
    is_client,
    log_bytes,
    read_header,
    read_log,
)
from limpet.queue.sync.state import NodeState

LINES_MAX = 1000
LOG_BYTES_MAX = 4 * 1024 * 1024
PAGE = 1000

Logs = Mapping[str, Mapping[int, Stat]]
"""Logs in the bucket, by node and number, oldest first."""
ReadLog = tuple[LogHeader, list[Line], list[int]]
"""The header, the valid lines, and the numbers of invalid ones."""


class _LineJournal(ABC):
    """A journal of lines: implements `limpet.queue.entry.Journal`."""

    travels = True

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime

    def pushed(self, key: Key, data: bytes) -> None:
        self._append(PushLine(key=key, data=data.decode()))

    def ended(self, entry: str, batch: bool, key: Key, receipt: Receipt) -> None:
        self._append(EndLine(key=key, entry=entry, batch=batch, write_id=self._runtime.new_id(), receipt=receipt))

    @abstractmethod
    def _append(self, line: Line) -> None:
        """Store a line durably.   Raises: OutcomeUnknown, Unavailable: then it must not take effect yet."""


class Outbox(_LineJournal):
    """A supervised node's journal: one object for each entry, until `Supervisor.up` has sent it.

    Cost: 1 PUT into the node's own directory for each push and each end, and for a claim that lasts.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        super().__init__(store, runtime)
        self._leases = RemoteLeases(store, runtime)

    def held(self, queue: QueueKeys, entry: str, batch: bool) -> None:
        self._append(HeldLine(root=queue.root, entry=entry, batch=batch))

    def foreign(self, found: Iterable[Stat]) -> set[str]:
        """Cost: 1 GET for each version of a `remote.json` that was not read before."""
        return self._leases.live(found)

    def _append(self, line: Line) -> None:
        self._store.put(keys.outbox_key(self._runtime.new_id()), records.encode(line), when=Absent())


class ClientLog(_LineJournal):
    """The journal of a process that works on the bucket directly, beside supervised nodes: it writes logs itself.

    Each line is one log, and they are written one after another, so that a reader that sees a number has seen, or can
    read, all lower ones.   Cost: 1 PUT into the bucket for each push and each end.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        super().__init__(store, runtime)
        self._mutex = runtime.mutex()
        self._owner = ""
        self._node = ""
        self._seq = 0

    def held(self, queue: QueueKeys, entry: str, batch: bool) -> None:
        """Nothing: the lease in the bucket shows it."""

    def foreign(self, found: Iterable[Stat]) -> set[str]:
        """Nothing: in the bucket all processes share one lease for each entry."""
        return set()

    def _append(self, line: Line) -> None:
        runtime = self._runtime
        with self._mutex:
            if self._owner != runtime.owner:  # a forked child is another client
                self._owner, self._node, self._seq = runtime.owner, CLIENT + runtime.new_id(), 0
            data = log_bytes([line], node=self._node, owner=self._owner, up_s=0.0)
            for _ in attempts(runtime, SENDS_MAX):
                found = _put_log(self._store, keys.log_key(self._node, self._seq + 1), data)
                if found is not None:  # ours, or an earlier line that was given up and landed late: it has the number
                    self._seq += 1
                if found == data:
                    return
        raise OutcomeUnknown(f"it is unknown whether a log of {self._node} was written", hint="do it again")


class LogWriter:
    """Appends to the logs of one node. Numbers have no holes: the next one is used only after the last one is stored.

    Objects that another program wrote into our folder are skipped and left: the other nodes cannot read them either.
    """

    def __init__(self, remote: Store, runtime: Runtime, state: NodeState, *, up_s: float) -> None:
        self._remote = remote
        self._runtime = runtime
        self._state = state
        self._up_s = up_s

    def write(self, lines: Sequence[Line]) -> int:
        """Append the lines; returns how many logs that took.

        Raises: OutcomeUnknown, Unavailable: then the lines must be written again; Conflict if another directory writes
        under this node's name.   Cost: 1 PUT, and 1 PUT here, for each log.
        """
        count = 0
        for some in batched(lines, lambda line: len(records.encode(line)), size=LOG_BYTES_MAX, count=LINES_MAX):
            self._append(some)
            count += 1
        return count

    def _append(self, lines: Sequence[Line]) -> None:
        state, runtime = self._state, self._runtime
        data = log_bytes(lines, node=state.node, owner=runtime.owner, up_s=self._up_s)
        last = state.record.last_log
        seq = (last if last and last >= state.seen_last else self._last_of_ours()) + 1
        for _ in attempts(runtime):
            if seq > keys.LOG_MAX:
                raise Conflict(
                    f"the logs of the node {state.node!r} have reached their last number",
                    hint=f"give it another --node, after removing {keys.NODE} from its directory",
                )
            key = keys.log_key(state.node, seq)
            found = _put_log(self._remote, key, data)
            if found == data:
                state.change(last_log=seq)
                return
            if found is not None:
                self._check_ours(found, key)
                seq = self._last_of_ours() + 1  # skip what an earlier process of ours sent, or what is not a log
        raise OutcomeUnknown(f"it is unknown whether a log of {state.node} was written")

    def _last_of_ours(self) -> int:
        """The number of the last log in our folder, which must be one of ours if it can be read.

        Cost: 1 LIST per 1,000 logs; 1 GET if there is one.
        """
        last: tuple[Key, int] | None = None
        for stat in self._remote.list(f"{keys.SYNC}/{keys.segment(self._state.node)}"):
            named = keys.log_of(stat.key)
            if named is not None:
                last = stat.key, named[1]
        if last is None:
            return 0
        key, number = last
        found = stored_bytes(self._remote, key, size_max=LOG_READ_MAX)
        if found is not None:
            self._check_ours(found, key)
        return number

    def _check_ours(self, found: bytes, key: Key) -> None:
        try:
            header = read_header(found, what=key)
        except (Corrupt, Unsupported):
            return  # not written by another node
        if not self._state.is_ours(header.owner):
            raise Conflict(
                f"another directory writes to the bucket as the node {self._state.node!r}",
                hint=f"give this one another --node; if it was copied or restored, remove {keys.NODE} from it first",
            )


def list_logs(remote: Store, cursors: Mapping[str, int], *, ours: str, bad: OnUnreadable) -> Logs:
    """The logs in the bucket; of more than 1,000 in a row that the cursors cover, or that are `ours`, not all.

    `bad` is called for objects with other names.
    Cost: 1 LIST per 1,000 logs that are not skipped, and 1 for each longer row that is.
    """
    found: dict[str, dict[int, Stat]] = {}
    after: Key | None = None
    while True:
        known = 0
        for stat in remote.list(keys.SYNC, after=after):
            named = keys.log_of(stat.key)
            if named is None:
                bad(stat.key)
                continue
            node, seq = named
            found.setdefault(node, {})[seq] = stat
            skip_to = keys.LOG_MAX if node == ours else cursors.get(node, 0)
            known = known + 1 if seq < skip_to else 0
            if known >= PAGE:
                after = keys.log_key(node, skip_to)
                break
        else:
            return found


def read_logs(
    remote: Store, node: str, seqs: Iterable[int]
) -> Iterator[tuple[int, ReadLog | Corrupt | Unsupported | Missing]]:
    """Yield the logs `seqs` of a node, or for each the error that prevents reading it.   Cost: 1 GET each."""
    named = {keys.log_key(node, seq): seq for seq in seqs}
    for key, found in remote.get_many(named, size_max=LOG_READ_MAX).items():
        if isinstance(found, Missing | Corrupt):
            yield named[key], found
        elif isinstance(found, LimpetError):
            raise found
        else:
            yield named[key], _decoded(found.data, node, key)


def trim_logs(remote: Store, listed: Logs, *, ours: str, before: datetime) -> int:
    """Delete logs of our own and of clients, which may be gone, from before that time; returns how many.

    The last log of a node is kept, so that a node that was away notices the gap.   Cost: 1 DELETE each.
    """
    old: list[Key] = []
    for node, logs in listed.items():
        stats = [*logs.values()]
        if node == ours:
            old += [stat.key for stat in stats[:-1] if stat.modified < before]
        elif is_client(node):
            old += [stat.key for stat in stats if stat.modified < before]
    for error in remote.delete_many(old).values():
        if error is not None:
            raise error
    return len(old)


def _put_log(store: Store, key: Key, data: bytes) -> bytes | None:
    """Create a log; returns what is stored there afterwards: `data` if it was written."""
    try:
        store.put(key, data, when=Absent())
        return data
    except (Conflict, OutcomeUnknown):
        return stored_bytes(store, key, size_max=LOG_READ_MAX)


def _decoded(data: bytes, node: str, key: Key) -> ReadLog | Corrupt | Unsupported:
    try:
        log = read_log(data, what=key)
    except (Corrupt, Unsupported) as error:
        return error
    return log if log[0].node == node else Corrupt(f"{key} is a log of {log[0].node!r}")

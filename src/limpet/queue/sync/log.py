"""A node's logs in the bucket: written in order, read by the others, trimmed by their own node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from limpet import keys
from limpet.errors import Conflict, Corrupt, LimpetError, Missing, OutcomeUnknown, Unsupported
from limpet.keys import Key
from limpet.queue.sync.objects import Aside
from limpet.queue.sync.records import (
    LOG_READ_MAX,
    Line,
    LogHeader,
    is_client,
    line_bytes,
    log_bytes,
    read_header,
    read_log,
)
from limpet.queue.sync.state import NodeState
from limpet.runtime import Runtime
from limpet.store.api import Absent, Stat, Store

LINES_MAX = 1000
LOG_BYTES_MAX = 4 * 1024 * 1024
SENDS_MAX = 4
PAGE = 1000
AT_ONCE = 16
BYTES_AT_ONCE = 16 * 1024 * 1024

ReadLog = tuple[LogHeader, list[Line], list[int]]
"""The header, the lines, and the numbers of lines that cannot be read."""


class LogWriter:
    """Appends to the logs of one node. Numbers have no holes: the next one is used only when the last one stands.

    What a stranger wrote into our folder is stepped over, and left: the others cannot read it either.
    """

    def __init__(self, remote: Store, runtime: Runtime, state: NodeState, *, up_s: float) -> None:
        self._remote = remote
        self._runtime = runtime
        self._state = state
        self._up_s = up_s

    def write(self, lines: Sequence[Line]) -> int:
        """Append the lines; how many logs that took.

        Raises: OutcomeUnknown, Unavailable: then the lines must be written again; Conflict if another directory writes
        under this node's name.   Cost: 1 PUT, and 1 PUT here, for each log.
        """
        count = 0
        for some in _packed(lines):
            self._append(some)
            count += 1
        return count

    def _append(self, lines: Sequence[Line]) -> None:
        state, runtime = self._state, self._runtime
        data = log_bytes(lines, node=state.node, owner=runtime.owner, up_s=self._up_s)
        seq = self._next_number()
        for sent in range(1, SENDS_MAX + 1):
            self._check_number(seq)
            key = keys.log_key(state.node, seq)
            try:
                self._remote.put(key, data, when=Absent())
                break
            except (Conflict, OutcomeUnknown):
                found = self._look(key)
            if found == data:
                break
            if found is not None:
                self._check_ours(found, key)
                seq = self._last_of_ours() + 1  # one that an earlier process of ours sent, or what is not a log
            runtime.sleep(runtime.rng.uniform(0.05, 0.1) * sent)
        else:
            raise OutcomeUnknown(f"whether a log of {state.node} was written cannot be told")
        state.wrote(seq)

    def _next_number(self) -> int:
        """The number after our last log, or after one that was seen in our folder and that we did not write."""
        last = self._state.record.last_log
        return (last if last and last >= self._state.seen_last else self._last_of_ours()) + 1

    def _check_number(self, seq: int) -> None:
        if seq > keys.LOG_MAX:
            raise Conflict(
                f"the logs of the node {self._state.node!r} have reached their last number",
                hint=f"give it another --node, after removing {keys.NODE} from its directory",
            )

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
        found = self._look(key)
        if found is not None:
            self._check_ours(found, key)
        return number

    def _look(self, key: Key) -> bytes | None:
        """What stands there; an empty text for what is larger than a log."""
        try:
            return self._remote.get(key, size_max=LOG_READ_MAX).data
        except Missing:
            return None
        except Corrupt:
            return b""

    def _check_ours(self, found: bytes, key: Key) -> None:
        try:
            header = read_header(found, what=key)
        except (Corrupt, Unsupported):
            return  # no directory of another node writes that
        if not self._state.is_ours(header.owner):
            raise Conflict(
                f"another directory writes to the bucket as the node {self._state.node!r}",
                hint=f"give this one another --node; if it was copied or restored, remove {keys.NODE} from it first",
            )


class LogReader:
    """Finds and reads the logs of the others."""

    def __init__(self, remote: Store, state: NodeState) -> None:
        self._remote = remote
        self._state = state
        self._sizes: dict[Key, int] = {}

    def listed(self, cursors: Mapping[str, int], *, bad: Aside) -> dict[str, list[Stat]]:
        """The logs in the bucket, by node, oldest first; of long stretches that the cursors cover, not all.

        `bad` is told of objects that no node can have put there.
        Cost: 1 LIST per 1,000 logs that are not skipped, and 1 for each stretch of more that is.
        """
        found: dict[str, list[Stat]] = {}
        self._sizes = {}
        after: Key | None = None
        while True:
            known = 0
            for stat in self._remote.list(keys.SYNC, after=after):
                named = keys.log_of(stat.key)
                if named is None:
                    bad(stat.key)
                    continue
                node, seq = named
                found.setdefault(node, []).append(stat)
                self._sizes[stat.key] = stat.size
                skip_to = keys.LOG_MAX if node == self._state.node else cursors.get(node, 0)
                known = known + 1 if seq < skip_to else 0
                if known >= PAGE:
                    after = keys.log_key(node, skip_to)
                    break
            else:
                return found

    def packs(self, node: str, seqs: Iterable[int]) -> Iterator[list[int]]:
        """Some logs at a time, as many as a small machine can hold."""
        pack: list[int] = []
        size = 0
        for seq in seqs:
            length = self._sizes.get(keys.log_key(node, seq), 0)
            if pack and (len(pack) == AT_ONCE or size + length > BYTES_AT_ONCE):
                yield pack
                pack, size = [], 0
            pack.append(seq)
            size += length
        if pack:
            yield pack

    def read(self, node: str, seqs: Sequence[int]) -> Iterator[tuple[int, ReadLog | Corrupt | Unsupported | Missing]]:
        """The logs `seqs` of a node, or why one cannot be read.   Cost: 1 GET each."""
        named = {keys.log_key(node, seq): seq for seq in seqs}
        for key, found in self._remote.get_many(named, size_max=LOG_READ_MAX).items():
            if isinstance(found, Missing | Corrupt):
                yield named[key], found
            elif isinstance(found, LimpetError):
                raise found
            else:
                yield named[key], _decoded(found.data, node, key)

    def trim(self, listed: Mapping[str, Sequence[Stat]], *, before: datetime) -> int:
        """Remove our own logs that are older than that, and those of clients, which may be gone; how many.

        The last log of a node stays, so that whoever was away sees that there was more.   Cost: 1 DELETE each.
        """
        old: list[Key] = []
        for node, stats in listed.items():
            if node == self._state.node:
                old += [stat.key for stat in stats[:-1] if stat.modified < before]
            elif is_client(node):
                old += [stat.key for stat in stats if stat.modified < before]
        for error in self._remote.delete_many(old).values():
            if error is not None:
                raise error
        return len(old)


def _decoded(data: bytes, node: str, key: Key) -> ReadLog | Corrupt | Unsupported:
    try:
        log = read_log(data, what=key)
        if log[0].node != node:
            raise Corrupt(f"{key} is a log of {log[0].node!r}")
    except (Corrupt, Unsupported) as error:
        return error
    return log


def _packed(lines: Sequence[Line]) -> Iterator[list[Line]]:
    pack: list[Line] = []
    size = 0
    for line in lines:
        length = len(line_bytes(line))
        if pack and (len(pack) == LINES_MAX or size + length > LOG_BYTES_MAX):
            yield pack
            pack, size = [], 0
        pack.append(line)
        size += length
    if pack:
        yield pack

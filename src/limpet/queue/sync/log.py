"""A node's logs in the bucket: written in order, read by the others, trimmed by their own node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from limpet import keys
from limpet.errors import Conflict, LimpetError, Missing, OutcomeUnknown
from limpet.keys import Key
from limpet.queue.sync.records import Line, LogHeader, is_client, line_bytes, log_bytes, read_log
from limpet.queue.sync.state import NodeState
from limpet.runtime import Runtime
from limpet.store.api import Absent, Stat, Store

__all__ = ["LogReader", "LogWriter"]

LINES_MAX = 1000
LOG_BYTES_MAX = 4 * 1024 * 1024
SENDS_MAX = 4
PAGE = 1000
LAST = 9_999_999_999


class LogWriter:
    """Appends to the logs of one node. Numbers have no holes: the next one is used only when the last one stands."""

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
        seq = (state.record.last_log or self._last_of_ours()) + 1
        for sent in range(1, SENDS_MAX + 1):
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
                seq += 1  # one that an earlier process of ours sent, and that landed late
            runtime.sleep(runtime.rng.uniform(0.05, 0.1) * sent)
        else:
            raise OutcomeUnknown(f"whether a log of {state.node} was written cannot be told")
        state.wrote(seq)

    def _last_of_ours(self) -> int:
        """The last log under our name, where this directory does not know of any. It must be one of ours all the same.

        Cost: 1 LIST per 1,000 logs; 1 GET if there is one.
        """
        last: Stat | None = None
        for stat in self._remote.list(f"{keys.SYNC}/{keys.segment(self._state.node)}"):
            last = stat
        if last is None:
            return 0
        found = self._look(last.key)
        if found is not None:
            self._check_ours(found, last.key)
        named = keys.log_of(last.key)
        return named[1] if named else 0

    def _look(self, key: Key) -> bytes | None:
        try:
            return self._remote.get(key, size_max=None).data
        except Missing:
            return None

    def _check_ours(self, found: bytes, key: Key) -> None:
        header, _ = read_log(found, what=key)
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

    def listed(self, cursors: Mapping[str, int]) -> dict[str, list[Stat]]:
        """The logs in the bucket, by node, oldest first; of long stretches that the cursors cover, not all.

        Cost: 1 LIST per 1,000 logs that are not skipped, and 1 for each stretch of more that is.
        """
        found: dict[str, list[Stat]] = {}
        after: Key | None = None
        while True:
            known = 0
            for stat in self._remote.list(keys.SYNC, after=after):
                named = keys.log_of(stat.key)
                if named is None:
                    continue
                node, seq = named
                found.setdefault(node, []).append(stat)
                skip_to = LAST if node == self._state.node else cursors.get(node, 0)
                known = known + 1 if seq < skip_to else 0
                if known >= PAGE:
                    after = keys.log_key(node, skip_to)
                    break
            else:
                return found

    def read(self, node: str, seqs: Sequence[int]) -> Iterator[tuple[int, LogHeader, list[Line]]]:
        """The logs `seqs` of a node.   Raises: Missing, Corrupt: it is to be pulled afresh.   Cost: 1 GET each."""
        named = {keys.log_key(node, seq): seq for seq in seqs}
        for key, found in self._remote.get_many(named).items():
            if isinstance(found, LimpetError):
                raise found
            yield named[key], *read_log(found.data, what=key)

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

"""The supervisor's decisions: pure functions, no store and no clock.

Everything that travels between nodes only grows: a name is pushed, then ended, and an end is never taken back. So
lines may be lost with a crash and sent again, arrive twice, late, or in any order, and all nodes end up the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from limpet.errors import Corrupt, Unsupported
from limpet.lease import State
from limpet.lease.decide import Take, next_step
from limpet.queue.entry import EntryLease, Receipt, read_task, task_name
from limpet.queue.sync.records import EndLine, LeaseLine, Line, PushLine, RemoteLease, place_of

ABSENT_PART = 6 / 7
"""A node that was away for longer than this part of the retention pulls afresh: the oldest logs may be going."""

STALE_PART = 1 / 28
"""How old, as a part of the retention, the note of the last pull may get before it is written again."""


@dataclass(frozen=True, slots=True)
class Unread:
    """The logs to read, by node, oldest first; and whether some that should be there are gone."""

    seqs: Mapping[str, Sequence[int]]
    gap: bool


def merged(stands: Receipt | None, ours: Receipt) -> Receipt | None:
    """The receipt to put where `stands` is; None to leave it. The first finisher wins; a retried one says so."""
    if stands is None:
        return ours
    if ours.state == "retried" and stands.state in ("failed", "cancelled"):
        return msgspec.structs.replace(stands, state="retried", retried_as=ours.retried_as)
    return None


def ran_twice(stands: Receipt, ours: Receipt) -> bool:
    """Whether two receipts for one place tell of two runs."""
    by_operator = "cancelled" in (stands.state, ours.state)
    return not by_operator and (stands.worker_id, stands.finished_at) != (ours.worker_id, ours.finished_at)


def won_back(entry: str, stands: Receipt, ours: Receipt) -> dict[str, Receipt]:
    """Receipts of their own for the tasks of a batch that we completed, and that failed by the receipt that stands.

    Per task, completed beats failed, whoever was first (H4). Results that lie in a part are not copied.
    """
    if not (stands.state == ours.state == "completed"):
        return {}
    return {
        task_name(entry, n, batch=True): msgspec.structs.replace(
            ours,
            id=task_name(entry, n, batch=True),
            count=1,
            result=ours.results.get(n, msgspec.Raw(b"null")),
            failed=[],
            results={},
            parts=[],
        )
        for n in stands.failed
        if n not in ours.failed and n < ours.count
    }


def entry_of_line(line: PushLine | EndLine) -> tuple[str, str]:
    """The queue and the entry that a line is about."""
    place = place_of(line)
    return place.keys.root, place.name if isinstance(line, PushLine) else line.entry


def ends(line: EndLine) -> bool:
    """Whether the line ends its whole entry, and is not about one task of a batch."""
    return place_of(line).name == line.entry


def promoted(line: PushLine) -> bool:
    """Whether the line makes a delayed push pending: what is scheduled of it waits for nothing more."""
    if line.data is None or '"delayed":true' not in line.data or place_of(line).kind != "single":
        return False
    try:
        return read_task(line.data.encode(), what=line.key).delayed
    except (Corrupt, Unsupported):
        return False


def superseded(lines: Iterable[Line]) -> set[tuple[str, str]]:
    """The entries (queue, name) that are ended by these very lines: pushing them first would be of no use."""
    return {entry_of_line(line) for line in lines if isinstance(line, EndLine) and ends(line)}


def published(
    stands: EntryLease | None,
    local: EntryLease,
    *,
    owner: str,
    hold_s: float,
    modified: datetime | None,
    unchanged_s: float,
    now: datetime,
    wall: datetime,
) -> EntryLease | None:
    """The bucket's lease for an entry that a worker of the node `owner` holds; None where a live foreign one stands.

    Nobody is evicted: were the last writer to win, two nodes would take the lease from each other for ever. It is
    held for `hold_s`, because the bucket hears of us only now and then.
    """
    if stands is None:
        return _first(local, owner=owner, hold_s=hold_s, wall=wall)
    if stands.state is State.CANCELLED:
        return None
    ours = stands.state is State.HELD and stands.worker_id == owner
    if stands.state is State.HELD and not ours:
        assert modified is not None
        step = next_step(stands, modified=modified, unchanged_s=unchanged_s, now=now, wall=wall)
        if not isinstance(step, Take):
            return None
    return msgspec.structs.replace(
        stands,
        state=State.HELD,
        worker_id=owner,
        label=local.label,
        token=stands.token if ours else stands.token + 1,
        created_at=stands.created_at if ours else wall,
        heartbeat_at=wall,
        expires_at=wall + timedelta(seconds=hold_s),
        ttl_s=hold_s,
        not_before=None,
        running=None,
    )


def _first(local: EntryLease, *, owner: str, hold_s: float, wall: datetime) -> EntryLease:
    """A lease that charges nothing: what the node's own lease counts is the node's affair."""
    return EntryLease(
        state=State.HELD,
        name=local.name,
        worker_id=owner,
        label=local.label,
        token=1,
        attempt=local.attempt,
        created_at=wall,
        heartbeat_at=wall,
        expires_at=wall + timedelta(seconds=hold_s),
        ttl_s=hold_s,
        charged=0,
    )


def let_go(stands: EntryLease | None, *, owner: str) -> EntryLease | None:
    """The bucket's lease once no worker of the node holds the entry any more; None if it is not ours."""
    if stands is None or stands.state is not State.HELD or stands.worker_id != owner:
        return None
    return msgspec.structs.replace(stands, state=State.FREE, wait_s=0.0)


def noted(stands: RemoteLease | None, line: LeaseLine, *, node: str, seq: int, live_s: float) -> RemoteLease | None:
    """What to write beside our own lease about a foreign one; None to leave what stands.

    A log that is read again changes nothing: only a newer one is news, and only news is live for longer.
    """
    if stands is not None and stands.node == node and stands.log >= seq:
        return None
    if not line.held and (stands is None or stands.node != node):
        return None
    return RemoteLease(
        node=node,
        log=seq,
        worker_id=line.worker_id,
        label=line.label,
        token=line.token,
        live_s=live_s if line.held else 0.0,
    )


def is_live(modified: datetime, live_s: float, now: datetime) -> bool:
    """Whether a foreign lease that was written down at `modified` still counts, all on this node's clock."""
    return now < modified + timedelta(seconds=live_s)


def unread(listed: Mapping[str, Sequence[int]], cursors: Mapping[str, int], *, node: str) -> Unread:
    """Which of the listed logs `node` has not read. Numbers have no holes, so one that is missing was trimmed.

    A stranger may have written any number, so nothing is counted up to it.
    """
    news = {
        other: fresh
        for other, seqs in listed.items()
        if other != node and (fresh := sorted(seq for seq in seqs if seq > cursors.get(other, 0)))
    }
    gap = any(seqs[-1] - cursors.get(other, 0) != len(seqs) for other, seqs in news.items())
    return Unread(news, gap)


def absent(pulled_at: datetime | None, now: datetime, retention_s: float) -> bool:
    """Whether a node has been away for so long that receipts and logs which it never saw may be gone."""
    return pulled_at is None or now - pulled_at > timedelta(seconds=retention_s * ABSENT_PART)


def is_stale(pulled_at: datetime | None, now: datetime, retention_s: float) -> bool:
    """Whether it is time to write down again that everything was heard."""
    return pulled_at is None or now - pulled_at > timedelta(seconds=retention_s * STALE_PART)

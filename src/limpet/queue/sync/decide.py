"""The supervisor's decisions: pure functions, no store and no clock.

What nodes exchange only grows: a name is pushed, then ended, and an end is never undone. So lines may be sent again
after a crash, and arrive twice, late, or in any order: all nodes converge to the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import msgspec

from limpet.kernel.errors import Corrupt, Unsupported
from limpet.kernel.lease import State
from limpet.kernel.lease.decide import Take, next_step
from limpet.queue.entry import EntryLease, Receipt, read_task, task_name
from limpet.queue.sync.records import EndLine, LeaseLine, Line, PushLine, RemoteLease, place_of

ABSENT_PART = 6 / 7
"""A node that was away for longer than this part of the retention makes a full pull: the oldest logs may be trimmed."""

STALE_PART = 1 / 28
"""The time of the last pull is stored again once it is older than this part of the retention."""


@dataclass(frozen=True, slots=True)
class RemoteFleet:
    """Which fleet is at the remote URL: its id, None for one that has none yet, and its epoch."""

    fleet: str | None
    epoch: int


class FleetVerdict(Enum):
    """What the fleet at the remote URL is to a node."""

    SAME = "the one that the node belongs to"
    RESTORED = "the one that the node belongs to, restored from a backup since: it may lack what the node has sent"
    OLDER = "an older copy of it"
    OTHER = "another one"


def joined(known: RemoteFleet, now: RemoteFleet) -> FleetVerdict:
    """What the fleet `now` at the remote URL is to a node that belongs to `known`."""
    if now.fleet is None or now == known:
        return FleetVerdict.SAME
    if known.fleet not in (None, now.fleet):
        return FleetVerdict.OTHER
    if now.epoch == known.epoch:
        return FleetVerdict.SAME  # the node learns the id now
    return FleetVerdict.RESTORED if now.epoch > known.epoch else FleetVerdict.OLDER


@dataclass(frozen=True, slots=True)
class Unread:
    """The logs to read, by node, oldest first; `gap` says that some of them were trimmed."""

    seqs: Mapping[str, Sequence[int]]
    gap: bool


def merged(stands: Receipt | None, ours: Receipt) -> Receipt | None:
    """The receipt to write over `stands`; None to leave it. The first finisher wins; a retry is noted in it."""
    if stands is None:
        return ours
    if ours.state == "retried" and stands.state in ("failed", "cancelled"):
        return msgspec.structs.replace(stands, state="retried", retried_as=ours.retried_as)
    return None


def ran_twice(stands: Receipt, ours: Receipt) -> bool:
    """Whether two receipts of one key come from two runs."""
    by_operator = "cancelled" in (stands.state, ours.state)
    return not by_operator and (stands.worker_id, stands.finished_at) != (ours.worker_id, ours.finished_at)


def won_back(entry: str, stands: Receipt, ours: Receipt) -> dict[str, Receipt]:
    """Single receipts for the tasks of a batch that we completed, and that failed according to the stored receipt.

    Per task, completed beats failed, in whichever order they finish (H4). Results in part objects are not copied.
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
    """Whether the line makes a delayed push pending: its scheduled object is obsolete then."""
    if line.data is None or '"delayed":true' not in line.data or place_of(line).kind != "single":
        return False
    try:
        return read_task(line.data.encode(), what=line.key).delayed
    except (Corrupt, Unsupported):
        return False


def superseded(lines: Iterable[Line]) -> set[tuple[str, str]]:
    """The entries (queue, name) that these lines end: their pushes need not be sent."""
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
    """The bucket's lease for an entry that a worker of the node `owner` holds; None if a foreign one is live.

    A live lease is never taken over: if the last writer won, two nodes would take it from each other without end. It is
    held for `hold_s`, which covers the interval between two cycles.
    """
    ours = stands is not None and stands.state is State.HELD and stands.worker_id == owner
    about: dict[str, Any] = {
        "state": State.HELD,
        "worker_id": owner,
        "label": local.label,
        "heartbeat_at": wall,
        "expires_at": wall + timedelta(seconds=hold_s),
        "ttl_s": hold_s,
    }
    if stands is None:  # it charges no attempt: attempts are counted in the node's own lease
        return EntryLease(name=local.name, token=1, attempt=local.attempt, created_at=wall, charged=0, **about)
    if stands.state is State.CANCELLED:
        return None
    if stands.state is State.HELD and not ours:
        assert modified is not None
        step = next_step(stands, modified=modified, unchanged_s=unchanged_s, now=now, wall=wall)
        if not isinstance(step, Take):
            return None
    if not ours:
        about |= {"token": stands.token + 1, "created_at": wall}
    return msgspec.structs.replace(stands, not_before=None, running=None, beside=[], **about)


def let_go(stands: EntryLease | None, *, owner: str) -> EntryLease | None:
    """The bucket's lease, released: no worker of the node holds the entry any more. None if it is not ours."""
    if stands is None or stands.state is not State.HELD or stands.worker_id != owner:
        return None
    return msgspec.structs.replace(stands, state=State.FREE, wait_s=0.0)


def noted(stands: RemoteLease | None, line: LeaseLine, *, node: str, seq: int, live_s: float) -> RemoteLease | None:
    """The `remote.json` to write for a lease of another node; None to leave what is stored.

    A log that is read again changes nothing: only a newer log prolongs a lease.
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


def is_held_elsewhere(modified: datetime, live_s: float, now: datetime) -> bool:
    """Whether a lease of another node that was stored at `modified` is live; all times are of this node's clock."""
    return now < modified + timedelta(seconds=live_s)


def unread(listed: Mapping[str, Iterable[int]], cursors: Mapping[str, int], *, node: str) -> Unread:
    """Which of the listed logs `node` has not read. Numbers have no holes, so one that is missing was trimmed.

    Another program may have written any number, so no loop counts up to it.
    """
    news = {
        other: fresh
        for other, seqs in listed.items()
        if other != node and (fresh := sorted(seq for seq in seqs if seq > cursors.get(other, 0)))
    }
    gap = any(seqs[-1] - cursors.get(other, 0) != len(seqs) for other, seqs in news.items())
    return Unread(news, gap)


def absent(pulled_at: datetime | None, now: datetime, retention_s: float) -> bool:
    """Whether the last pull is so old that receipts and logs which the node never read may have been deleted."""
    return pulled_at is None or now - pulled_at > timedelta(seconds=retention_s * ABSENT_PART)


def is_stale(pulled_at: datetime | None, now: datetime, retention_s: float) -> bool:
    """Whether the stored time of the last pull should be renewed."""
    return pulled_at is None or now - pulled_at > timedelta(seconds=retention_s * STALE_PART)

"""What has ended in a queue, as rows that are made of receipts: what ended lately, and failures by error.

A receipt that was read before, and that has not changed since, costs no request. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from heapq import nlargest
from itertools import islice
from typing import Any

from limpet.app.fleet import Fleet, inspection
from limpet.app.overview import CappedStore
from limpet.kernel.errors import LimpetError
from limpet.kernel.keys import Key, QueueKeys, is_batch, name_of_receipt
from limpet.kernel.store.api import Stat, Version
from limpet.kernel.wording import many
from limpet.queue.decide import payload_in
from limpet.queue.entry import Receipt
from limpet.queue.inspect import Inspection, duration_facts, kind_of, took_of
from limpet.queue.storage import Storage

ENDED_SHOWN = 100
"""How many of the tasks that ended last are listed."""
LISTED_MAX = 2000
"""How many names of a large folder in a bucket are listed at once."""
NEAR_MAX = 10_000
"""How many objects of a folder are listed in a directory."""
FAILED_READ = 200
MEMBERS_MAX = 1000
LOOKED_MAX = 5000
"""How many receipts are looked at for the members of a group."""
GROUP_IDS = 20
RECEIPTS_AT_ONCE = 50
ROWS_KEPT = 10_000
ERROR_CHARS_MAX = 500
PAYLOAD_CHARS_MAX = 1000


def cut(text: object, most: int = ERROR_CHARS_MAX) -> str:
    """A text of bounded length; None is empty."""
    found = "" if text is None else str(text)
    return found if len(found) <= most else f"{found[:most]}… ({many(len(found), 'character')})"


@dataclass(frozen=True, slots=True)
class EndedRow:
    """One entry that has ended, or one task of a batch. `kind` is its error without the figures in it; `took` has the
    durations of its handlers, `took_s` that of a single one."""

    id: str
    state: str
    tasks: int
    failed: int
    attempts: int
    pushed_at: datetime | None
    finished_at: datetime
    worker: str
    error: str
    kind: str
    payload: str
    took_s: float | None
    took: Sequence[float]


def _row(receipt: Receipt, facts: Mapping[str, Any]) -> EndedRow:
    names = ("id", "state", "tasks", "failed", "attempts", "pushed_at", "finished_at", "worker", "took_s")
    payloads = [bytes(payload) for n in range(receipt.count) if (payload := payload_in(receipt, n)) is not None]
    return EndedRow(
        **{name: facts[name] for name in names},
        error=cut(receipt.error),
        kind=kind_of(receipt.error or ""),
        payload=cut(b"\n".join(payloads).decode(errors="replace"), PAYLOAD_CHARS_MAX),
        took=took_of(receipt),
    )


class ReceiptRows:
    """Rows of receipts as of the version that was read, for all pages of a process. Threads may share it."""

    def __init__(self) -> None:
        self._rows: dict[Key, tuple[Version, EndedRow]] = {}

    def of(self, stat: Stat) -> EndedRow | None:
        """The row of a receipt as it was listed; None if that version was not read yet."""
        version, row = self._rows.get(stat.key, (None, None))
        return row if version == stat.version else None

    def keep(self, stat: Stat, row: EndedRow) -> None:
        """Remember a row. That of a batch is not kept: it counts other receipts too."""
        if is_batch(name_of_receipt(stat.key)):
            return
        if len(self._rows) >= ROWS_KEPT:
            self._rows = {}
        self._rows[stat.key] = stat.version, row


class EndedTasks:
    """What has ended in one queue. `unreadable` has the errors of receipts that were passed over."""

    def __init__(self, fleet: Fleet, queue: str, rows: ReceiptRows | None = None) -> None:
        """Raises: Unsupported on SQS."""
        inspection(fleet, queue, "list its tasks")
        self._keys = QueueKeys.of(queue)
        self._store = CappedStore(fleet.store, fleet.runtime, NEAR_MAX)
        self._reader = Inspection(Storage(self._store, self._keys, fleet.runtime))
        self._rows = ReceiptRows() if rows is None else rows
        self.unreadable: list[str] = []

    def lately(self) -> dict[str, Any]:
        """The 100 that ended last, the newest first. `more`: others ended before. `sampled`: a folder is so large that
        only the receipts of tasks that were pushed last were listed; then retries and tasks with ids of users may be
        missing.

        Cost: 2 LISTs, of large folders up to 6 each; 1 GET for each of 100 receipts that was not read before.
        """
        most = LISTED_MAX if self._store.far else NEAR_MAX
        folders = (self._keys.completed, self._keys.failed)
        listings = [self._reader.latest_receipts(folder, ENDED_SHOWN, most) for folder in folders]
        stats = [stat for listing, _ in listings for stat in listing]
        newest = nlargest(ENDED_SHOWN, stats, key=lambda stat: (stat.modified, stat.key))
        rows = sorted(self._read(newest), key=lambda row: row.finished_at, reverse=True)
        whole = all(is_whole for _, is_whole in listings)
        return {
            "ended": [_facts(row) for row in rows],
            "more": len(stats) > ENDED_SHOWN or not whole,
            "sampled": not whole,
            "unreadable": len(self.unreadable),
            "durations": duration_facts([took_s for row in rows if row.state == "completed" for took_s in row.took]),
        }

    def groups(self) -> dict[str, Any]:
        """Failed tasks by error without the figures in it, the most frequent first, of the first 200 failed tasks.

        Cost: 1 LIST per 1,000 receipts in failed/, and 1 GET for each that was not read before, until 200 are found.
        """
        rows = [*islice(self._failed(), FAILED_READ)]
        groups: dict[str, list[EndedRow]] = {}
        for row in rows:
            groups.setdefault(row.kind, []).append(row)
        found = [
            {
                "error": kind,
                "count": sum(row.tasks for row in members),
                "last_at": max(row.finished_at for row in members),
                "tasks": [_facts(row) for row in members[:GROUP_IDS]],
                "more": len(members) > GROUP_IDS or len(rows) == FAILED_READ,
            }
            for kind, members in groups.items()
        ]
        return {
            "groups": sorted(found, key=lambda group: (-group["count"], group["error"])),
            "failed_read": len(rows),
            "failed_more": len(rows) == FAILED_READ,
            "unreadable": len(self.unreadable),
            "unreadable_error": self.unreadable[0] if self.unreadable else "",
        }

    def members(self, kind: str, most: int) -> dict[str, Any]:
        """The first members of a group. `more`: there are more of them, or more than 5,000 receipts to look at.

        Cost: as `groups`, until `most` are found.
        """
        failed = islice(self._failed(), LOOKED_MAX)
        members = [*islice((row for row in failed if row.kind == kind), min(most, MEMBERS_MAX) + 1)]
        shown = members[: min(most, MEMBERS_MAX)]
        more = len(members) > len(shown) or next(failed, None) is not None
        return {"tasks": [_facts(row) for row in shown], "more": more, "limit": MEMBERS_MAX}

    def _failed(self) -> Iterator[EndedRow]:
        return (row for row in self._read(self._store.list(self._keys.failed)) if row.state == "failed")

    def _read(self, stats: Iterable[Stat]) -> Iterator[EndedRow]:
        """The rows of receipts, in the order of their stats; not of those that were retried or cannot be read."""
        listing = iter(stats)
        while page := [*islice(listing, RECEIPTS_AT_ONCE)]:
            rows = {stat.key: row for stat in page if (row := self._rows.of(stat)) is not None}
            unread = {stat.key: stat for stat in page if stat.key not in rows}
            for key, receipt, facts in self._reader.listed_entries(unread.values(), self._pass_over):
                rows[key] = _row(receipt, facts)
                self._rows.keep(unread[key], rows[key])
            yield from (rows[stat.key] for stat in page if stat.key in rows)

    def _pass_over(self, error: LimpetError) -> None:
        self.unreadable.append(cut(error))


def _facts(row: EndedRow) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if name not in ("kind", "took")}

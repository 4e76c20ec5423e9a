"""What `limpet demo` finds when it reads everything back: from the store, and from the notes of the handlers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.cli.demo_tasks import QUEUE, expected, payload
from limpet.cli.queue_options import in_store
from limpet.errors import LimpetError
from limpet.queue.entry import batch_of, name_of_receipt

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.keys import Key
    from limpet.queue.entry import Receipt, Storage


@dataclass(frozen=True, slots=True)
class Ended:
    """How the store says that tasks ended: the result of each that completed, the error of each that failed."""

    completed: Mapping[str, Any]
    failed: Mapping[str, str]
    pending: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What became of the tasks that were pushed. All numbers are counts of tasks."""

    pushed: int
    completed: int
    failed: int
    lost: int
    """Neither completed nor failed."""
    twice: int
    """Both completed and failed, or never pushed."""
    wrong: int
    """Ended in the wrong way, or with the wrong result."""
    ran_again: int
    asked_for: int
    """Of those that ran more than once: how many had asked for it, by Retry."""

    @property
    def sound(self) -> bool:
        """Whether every task ended once, and rightly."""
        return self.pushed == self.completed + self.failed and not (self.lost or self.twice or self.wrong)


def read_back(fleet: Fleet) -> Ended:
    """Read every receipt of the queue.   Cost: 1 LIST per 1,000 objects, 1 GET a receipt."""
    storage = in_store(fleet.queue(QUEUE), "be read back").storage
    completed: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name, receipt in _receipts(storage, storage.keys.completed):
        if batch_of(name):
            completed[name] = msgspec.json.decode(receipt.result)
            continue
        for n in range(receipt.count):
            if n not in receipt.failed:
                completed[f"{name}.{n}"] = msgspec.json.decode(receipt.results.get(n, b"null"))
    for name, receipt in _receipts(storage, storage.keys.failed):
        failed[name] = receipt.error or ""
    pending = sum(1 for _ in storage.store.list(storage.keys.pending))
    return Ended(completed, failed, pending)


def _receipts(storage: Storage, folder: str) -> list[tuple[str, Receipt]]:
    keys: list[Key] = [stat.key for stat in storage.store.list(folder)]
    found = []
    for key, blob in storage.store.get_many(keys).items():
        if isinstance(blob, LimpetError):
            raise blob
        found.append((name_of_receipt(key), storage.receipt(key).decode(blob).value))
    return found


def runs_in(logs: Path) -> Counter[int]:
    """How often each task was started, as the handlers noted it themselves."""
    return Counter(int(line) for log in sorted(logs.glob("*.log")) for line in log.read_text().split())


def find(ids: Sequence[str], ended: Ended, runs: Mapping[int, int]) -> Findings:
    """Hold what was pushed (task `n` got the id `ids[n]`) against how it ended. Pure."""
    known = set(ids)
    both = ended.completed.keys() & ended.failed.keys()
    strange = (ended.completed.keys() | ended.failed.keys()) - known
    wrong = sum(
        1
        for n, id_ in enumerate(ids)
        if (id_ in ended.completed and ended.completed[id_] != expected(n))
        or (id_ in ended.failed and expected(n) is not None)
    )
    again = [n for n, times in runs.items() if times > 1]
    return Findings(
        pushed=len(ids),
        completed=len(ended.completed),
        failed=len(ended.failed),
        lost=sum(1 for id_ in ids if id_ not in ended.completed and id_ not in ended.failed),
        twice=len(both) + len(strange),
        wrong=wrong,
        ran_again=len(again),
        asked_for=sum(1 for n in again if payload(n).get("kind") == "flaky"),
    )

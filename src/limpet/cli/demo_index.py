"""What `limpet demo` finds in its index, and what it asks of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from limpet.cli.demo_report import Ended
from limpet.cli.demo_screen import MARGIN
from limpet.cli.demo_tasks import INDEX, KEY, expected
from limpet.cli.shared import clean
from limpet.keys import IndexKeys

if TYPE_CHECKING:
    from rich.console import RenderableType

    from limpet.app import Fleet

QUERY = (
    "select worker, count(*) as records, sum(square) as total,",
    "       max(updated_at) as latest",
    f"from {INDEX} group by worker order by worker",
)


@dataclass(frozen=True, slots=True)
class Indexed:
    """What the store says of the index: its records, and how many objects still wait for a compiler."""

    records: Sequence[Mapping[str, Any]]
    waiting: int


@dataclass(frozen=True, slots=True)
class InIndex:
    """How records fit the tasks. `wrong`: not the right square, one too many, or of a task that did not complete."""

    records: int
    wrong: int
    missing: int

    @property
    def sound(self) -> bool:
        """Whether each completed task has its record, and nothing else has one."""
        return not (self.wrong or self.missing)


def read_records(fleet: Fleet) -> Indexed:
    """Read the whole index.   Raises: Corrupt.   Cost: 1 GET + 4 LISTs + 1 GET a shard."""
    keys = IndexKeys.of(INDEX)
    records = [*fleet.index(INDEX).scan()]
    return Indexed(records, sum(1 for folder in (keys.inbox, keys.packs) for _ in fleet.store.list(folder)))


def find_records(ids: Sequence[str], ended: Ended, records: Iterable[Mapping[str, Any]]) -> InIndex:
    """Hold the records against the tasks that completed (task `n` has the id `ids[n]`). Pure."""
    owed = {n: expected(n) for n, id_ in enumerate(ids) if id_ in ended.completed}
    count = wrong = 0
    seen: set[int] = set()
    for record in records:
        number = record[KEY]
        count += 1
        wrong += number in seen or number not in owed or record["square"] != owed[number]
        seen.add(number)
    return InIndex(count, wrong, len(owed.keys() - seen))


def by_worker(records: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """What `QUERY` answers, worked out here."""
    rows: dict[str, tuple[int, int, Any]] = {}
    for record in records:
        count, total, latest = rows.get(record["worker"], (0, 0, record["updated_at"]))
        rows[record["worker"]] = (count + 1, total + record["square"], max(latest, record["updated_at"]))
    return [(worker, *rows[worker]) for worker in sorted(rows)]


def table_of(rows: Iterable[Sequence[Any]], colours: Mapping[str, str]) -> RenderableType:
    """The answer to `QUERY`, for people."""
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("worker", "records", "total", "latest"):
        table.add_column(name, justify="left" if name in ("worker", "latest") else "right")
    for worker, records, total, latest in rows:
        colour = colours.get(worker, "default")
        at = f"{latest:%H:%M:%S.%f}"[:-3]
        table.add_row(f"[{colour}]{clean(worker)}[/{colour}]", f"{records:,}", f"{total:,}", at)
    return Padding(table, (0, 0, 0, len(MARGIN)), expand=False)

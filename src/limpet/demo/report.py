"""How `limpet demo` ends: it queries the index, compares the store with what was pushed, and adds up the cost."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.cli.catalog.options import demand_extra
from limpet.cli.options import in_store
from limpet.cli.output import clean, many
from limpet.demo.screen import MARGIN, DemoScreen
from limpet.demo.tasks import INDEX, KEY, QUEUE, expected, payload
from limpet.errors import LimpetError, Unsupported
from limpet.keys import IndexKeys
from limpet.queue.cost import SQS_BATCH, sqs
from limpet.queue.entry import batch_of, name_of_receipt
from limpet.store.metered import AS_OF, dollars

if TYPE_CHECKING:
    from rich.console import RenderableType

    from limpet.app import Fleet
    from limpet.publish import Published
    from limpet.queue.entry import Receipt, Storage

LOOK = (
    "status",
    "queue ls demo --failed",
    "queue cost demo",
    f"index stats {INDEX}",
    f'index sql "from {INDEX} limit 5"',
)
QUERY = (
    "select worker, count(*) as records, sum(square) as total,",
    "       max(updated_at) as latest",
    f"from {INDEX} group by worker order by worker",
)

Rows = Sequence[tuple[Any, ...]]
"""The rows that SQL gave."""


@dataclass(frozen=True, slots=True)
class DemoHistory:
    """What the demo saw itself. `signed` is what the cell `fenced` must hold; `takeovers` are seconds by batch."""

    ids: Sequence[str]
    takeovers: Mapping[int, float]
    refused: int
    fenced: str
    signed: Mapping[str, Any]
    folds: int
    merged: int


@dataclass(frozen=True, slots=True)
class EndedTasks:
    """How the store says that tasks ended: the result of each that completed, the error of each that failed."""

    completed: Mapping[str, Any]
    failed: Mapping[str, str]
    pending: int


@dataclass(frozen=True, slots=True)
class DemoCounts:
    """How the tasks that were pushed ended. All numbers are counts of tasks."""

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


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """How records fit the tasks. `wrong`: not the right square, one too many, or of a task that did not complete."""

    records: int
    wrong: int
    missing: int

    @property
    def sound(self) -> bool:
        """Whether each completed task has its record, and nothing else has one."""
        return not (self.wrong or self.missing)


def read_tasks(fleet: Fleet) -> EndedTasks:
    """Read every receipt of the queue.   Cost: 1 LIST per 1,000 objects, 1 GET a receipt."""
    storage = in_store(fleet.queue(QUEUE), "be read back").storage
    completed: dict[str, Any] = {}
    for name, receipt in _receipts(storage, storage.keys.completed):
        if batch_of(name):
            completed[name] = msgspec.json.decode(receipt.result)
            continue
        for n in range(receipt.count):
            if n not in receipt.failed:
                completed[f"{name}.{n}"] = msgspec.json.decode(receipt.results.get(n, b"null"))
    failed = {name: receipt.error or "" for name, receipt in _receipts(storage, storage.keys.failed)}
    return EndedTasks(completed, failed, sum(1 for _ in storage.store.list(storage.keys.pending)))


def _receipts(storage: Storage, folder: str) -> list[tuple[str, Receipt]]:
    found = []
    for key, blob in storage.store.get_many([stat.key for stat in storage.store.list(folder)]).items():
        if isinstance(blob, LimpetError):
            raise blob
        found.append((name_of_receipt(key), storage.receipt(key).decode(blob).value))
    return found


def runs_in(logs: Path) -> Counter[int]:
    """How often each task was started, as the workers noted it themselves."""
    return Counter(int(line) for log in sorted(logs.glob("*.log")) for line in log.read_text().split())


def count_tasks(ids: Sequence[str], ended: EndedTasks, runs: Mapping[int, int]) -> DemoCounts:
    """Compare what was pushed (task `n` got the id `ids[n]`) with how it ended. Pure."""
    strange = (ended.completed.keys() | ended.failed.keys()) - {*ids}
    wrong = sum(
        1
        for n, id_ in enumerate(ids)
        if (id_ in ended.completed and ended.completed[id_] != expected(n))
        or (id_ in ended.failed and expected(n) is not None)
    )
    again = [n for n, times in runs.items() if times > 1]
    return DemoCounts(
        pushed=len(ids),
        completed=len(ended.completed),
        failed=len(ended.failed),
        lost=sum(1 for id_ in ids if id_ not in ended.completed and id_ not in ended.failed),
        twice=len(ended.completed.keys() & ended.failed.keys()) + len(strange),
        wrong=wrong,
        ran_again=len(again),
        asked_for=sum(1 for n in again if payload(n).get("kind") == "flaky"),
    )


def read_records(fleet: Fleet) -> tuple[list[Mapping[str, Any]], int]:
    """The records of the index, and how many objects wait for a compiler.   Cost: 1 GET + 4 LISTs + 1 GET a shard."""
    keys = IndexKeys.of(INDEX)
    records: list[Mapping[str, Any]] = [*fleet.index(INDEX).scan()]
    return records, sum(1 for folder in (keys.inbox, keys.packs) for _ in fleet.store.list(folder))


def count_records(ids: Sequence[str], ended: EndedTasks, records: Iterable[Mapping[str, Any]]) -> RecordCounts:
    """Compare the records with the tasks that completed (task `n` has the id `ids[n]`). Pure."""
    owed = {n: expected(n) for n, id_ in enumerate(ids) if id_ in ended.completed}
    count = wrong = 0
    seen: set[int] = set()
    for record in records:
        number = record[KEY]
        count += 1
        wrong += number in seen or number not in owed or record["square"] != owed[number]
        seen.add(number)
    return RecordCounts(count, wrong, len(owed.keys() - seen))


def by_worker(records: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """The answer to `QUERY`, computed here."""
    rows: dict[str, tuple[int, int, Any]] = {}
    for record in records:
        count, total, latest = rows.get(record["worker"], (0, 0, record["updated_at"]))
        rows[record["worker"]] = (count + 1, total + record["square"], max(latest, record["updated_at"]))
    return [(worker, *rows[worker]) for worker in sorted(rows)]


def ask(screen: DemoScreen, fleet: Fleet, colours: Mapping[str, str]) -> Rows | None:
    """Print how many records each worker has in the index; the rows that SQL gave, None without DuckDB."""
    index = fleet.index(INDEX)
    try:
        answer = [*index.sql("\n".join(QUERY))]
    except Unsupported as missing:
        screen.say(_table(by_worker(index.scan()), colours))
        screen.say(f"[dim]{MARGIN}worked out by a scan; for SQL: {clean(missing.hint)}[/dim]")
        return None
    for line in QUERY:
        screen.say(f"[dim]{MARGIN}{line}[/dim]")
    screen.say(_table(answer, colours))
    return answer


def _table(rows: Iterable[Sequence[Any]], colours: Mapping[str, str]) -> RenderableType:
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


def publish(screen: DemoScreen, fleet: Fleet) -> Published | None:
    """Publish the index as an Iceberg table, and print how to query it; None, and a line, without the packages.

    Raises: LimpetError.
    """
    try:
        demand_extra()
    except Unsupported as missing:
        screen.say(f"[dim]{MARGIN}as an Iceberg table too: {clean(missing.hint)}[/dim]")
        return None
    with fleet.meter.measure() as cost:
        done = fleet.publish_index(INDEX, compile=False)
    name = ".".join((*done.namespace, done.table))
    wrote = f"{many(done.records, 'record')} in {many(done.files, 'Parquet file')}, with {cost.total()} requests"
    screen.say(f"[dim]{MARGIN}published as the Iceberg table {clean(name)}: {wrote}[/dim]")
    scan = f"from iceberg_scan({clean(repr(done.metadata_location))})"
    screen.say(f"[dim]{MARGIN}DuckDB: install iceberg; load iceberg; {scan}[/dim]")
    return done


def report(
    screen: DemoScreen, fleet: Fleet, logs: Path, seen: DemoHistory, answer: Rows | None, published: Published | None
) -> bool:
    """Print what the store holds beside what it must hold; whether every check passed."""
    ended, (indexed, waiting) = read_tasks(fleet), read_records(fleet)
    found = count_tasks(seen.ids, ended, runs_in(logs))
    stored = count_records(seen.ids, ended, indexed)
    cell = fleet.cell(seen.fenced).read()
    kept = cell is not None and cell.value == seen.signed
    sums = f"{found.pushed:,} pushed = {found.completed:,} completed + {found.failed:,} failed"
    left = f"{many(found.lost, 'task')}; {many(ended.pending, 'object')} still pending"
    records = f"{stored.records:,} records = {found.completed:,} completed, "
    records += f"{stored.wrong:,} wrong, {stored.missing:,} missing"
    folded = f"at least {seen.merged:,} objects merged by {seen.folds:,} folds; {waiting:,} still wait"
    taken = " and ".join(f"batch {batch} after {after_s:.1f} s" for batch, after_s in seen.takeovers.items())
    table = f"{published.records:,} records in the Iceberg table" if published else ""
    died = found.ran_again - found.asked_for
    again = f"{found.ran_again:,} tasks: {found.asked_for:,} by Retry, {died:,} whose worker died or slept"
    checks = [
        screen.fact("tasks", sums, found.pushed == found.completed + found.failed and not found.twice),
        screen.fact("lost", left, not found.lost and not ended.pending),
        screen.fact("results", f"{found.completed:,} read back, {found.wrong} wrong", not found.wrong),
        screen.fact("index", records, stored.sound),
        screen.fact("compiled", folded, not waiting),
        answer is None or screen.fact("sql", "the table above, held against a scan", answer == by_worker(indexed)),
        published is None or screen.fact("table", table, published.records == stored.records),
        screen.fact("taken over", taken, len(seen.takeovers) == 2),
        screen.fact("fencing", f"{seen.refused} late write refused", seen.refused == 1 and kept),
        screen.fact("run twice", again),
    ]
    return found.sound and all(checks)


def prices(
    screen: DemoScreen, total: int, tasks: Counter[str], index: Counter[str], read_back: Mapping[str, int]
) -> None:
    """Print requests and dollars, and which is cheaper. SQS has no index, so its price is compared with the tasks'."""
    screen.fact("requests", f"{tasks.total():,} for tasks: {_by_verb(tasks)}")
    screen.fact("", f"{index.total():,} for the index: {_by_verb(index)}")
    mine = dollars(tasks, "s3")
    screen.fact("price", f"${mine:.5f} for tasks, ${dollars(index, 's3'):.5f} for the index, on S3 ({AS_OF})")
    screen.fact("", "[dim]100 records at once are some 80 PUTs, 10,000 at once are 256[/dim]")
    screen.fact("", f"${dollars(read_back, 's3'):.5f} to read it all back")
    single, tens = sqs(total, 1).dollars, sqs(total, SQS_BATCH).dollars
    who = "Limpet is cheaper" if mine < tens else "SQS is cheaper" if mine > single else "in tens SQS is cheaper"
    screen.fact("on SQS", f"tasks: ${single:.5f}, in tens ${tens:.5f}; {who}")


def _by_verb(spent: Counter[str]) -> str:
    return ", ".join(f"{count:,} {verb.upper()}" for verb, count in spent.most_common())


def farewell(screen: DemoScreen, place: str, logs: Path, took_s: float | None, *, keep: bool, stays: bool) -> None:
    """Print whether all checks passed, after how long (None: one failed), and where to look, if it stays."""
    screen.say()
    if took_s is None:
        screen.say("[bold red]Something did not go as promised: please report this output.[/bold red]")
    else:
        screen.say(f"[bold green]All as promised[/bold green], in {took_s:.0f} s.{' Have a look:' if stays else ''}")
        if not stays:
            screen.say("[dim]The folder is removed. `limpet demo --keep` leaves it, to be looked at.[/dim]")
            return
    for command in LOOK:
        screen.say(f"  [cyan]limpet {command} --url {clean(shlex.quote(place))}[/cyan]")
    if keep or took_s is None:
        screen.say(f"[dim]The handlers' own notes are in {logs}.[/dim]")

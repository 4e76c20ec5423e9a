"""How `limpet demo` ends: a question to the index, the report, what it cost, and where to look next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpet.cli.demo_index import QUERY, by_worker, find_records, read_records, table_of
from limpet.cli.demo_report import find, read_back, runs_in
from limpet.cli.demo_screen import MARGIN
from limpet.cli.demo_tasks import INDEX
from limpet.cli.queue_bill import SQS_BATCH, sqs
from limpet.cli.queue_options import many
from limpet.cli.shared import clean
from limpet.errors import Unsupported
from limpet.store.metered import AS_OF, dollars

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.cli.demo_screen import Screen
    from limpet.publish import Published

LOOK = (
    "status",
    "queue ls demo --failed",
    "queue cost demo",
    f"index stats {INDEX}",
    f'index sql "from {INDEX} limit 5"',
)

Answer = Sequence[tuple[Any, ...]]
"""The rows that SQL gave."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the demo saw for itself. `signed` is what the cell `fenced` must hold; `takeovers` are seconds by batch."""

    ids: Sequence[str]
    takeovers: Mapping[int, float]
    refused: int
    fenced: str
    signed: Mapping[str, Any]
    folds: int
    merged: int


def ask(screen: Screen, fleet: Fleet, colours: Mapping[str, str]) -> Answer | None:
    """Print whose results stand in the index, and return what SQL answered; None where DuckDB is not installed."""
    index = fleet.index(INDEX)
    try:
        answer = [*index.sql("\n".join(QUERY))]
    except Unsupported as missing:
        screen.say(table_of(by_worker(index.scan()), colours))
        screen.say(f"[dim]{MARGIN}worked out by a scan; for SQL: {clean(missing.hint)}[/dim]")
        return None
    for line in QUERY:
        screen.say(f"[dim]{MARGIN}{line}[/dim]")
    screen.say(table_of(answer, colours))
    return answer


def report(
    screen: Screen, fleet: Fleet, logs: Path, seen: Seen, answer: Answer | None, published: Published | None
) -> bool:
    """Print what the store holds beside what it must hold; whether every promise was kept."""
    ended, indexed = read_back(fleet), read_records(fleet)
    found = find(seen.ids, ended, runs_in(logs))
    stored = find_records(seen.ids, ended, indexed.records)
    rows = by_worker(indexed.records)
    cell = fleet.cell(seen.fenced).read()
    kept = cell is not None and cell.value == seen.signed
    sums = f"{found.pushed:,} pushed = {found.completed:,} completed + {found.failed:,} failed"
    left = f"{many(found.lost, 'task')}; {many(ended.pending, 'object')} still pending"
    records = f"{stored.records:,} records = {found.completed:,} completed, "
    records += f"{stored.wrong:,} wrong, {stored.missing:,} missing"
    folded = f"at least {seen.merged:,} objects merged by {seen.folds:,} folds; {indexed.waiting:,} still wait"
    taken = " and ".join(f"batch {batch} after {after_s:.1f} s" for batch, after_s in seen.takeovers.items())
    table = f"{published.records:,} records in the Iceberg table" if published else ""
    died = found.ran_again - found.asked_for
    again = f"{found.ran_again:,} tasks: {found.asked_for:,} by Retry, {died:,} whose worker died or slept"
    promises = [
        screen.fact("tasks", sums, found.pushed == found.completed + found.failed and not found.twice),
        screen.fact("lost", left, not found.lost and not ended.pending),
        screen.fact("results", f"{found.completed:,} read back, {found.wrong} wrong", not found.wrong),
        screen.fact("index", records, stored.sound),
        screen.fact("compiled", folded, not indexed.waiting),
        answer is None or screen.fact("sql", "the table above, held against a scan", answer == rows),
        published is None or screen.fact("table", table, published.records == stored.records),
        screen.fact("taken over", taken, len(seen.takeovers) == 2),
        screen.fact("fencing", f"{seen.refused} late write refused", seen.refused == 1 and kept),
        screen.fact("run twice", again),
    ]
    return found.sound and all(promises)


def prices(screen: Screen, total: int, tasks: Counter[str], index: Counter[str], read_back: Mapping[str, int]) -> None:
    """Print requests and dollars, whoever is cheaper. SQS has no index: it is held against the tasks alone."""
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


def farewell(screen: Screen, place: str, logs: Path, took_s: float | None, *, keep: bool, stays: bool) -> None:
    """Print whether all went well, with the time that it took (None: it did not), and where to look, if it stays."""
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

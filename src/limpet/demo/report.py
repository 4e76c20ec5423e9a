"""What `limpet demo` prints: its progress, and a report, for which it queries the index, compares the store with what
was pushed, and adds up the cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpet.cli import clean, table
from limpet.cli.catalog import demand_extra
from limpet.demo import FANNED, INDEX, KEY, QUEUE, REPORTS, expected, payload
from limpet.kernel.errors import Unsupported
from limpet.kernel.runtime import system
from limpet.kernel.store.metered import AS_OF, dollars
from limpet.kernel.wording import many
from limpet.queue.cost import SQS_BATCH, sqs

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from limpet.app import Fleet
    from limpet.publish import Published
    from limpet.queue import Result

REFRESH_S = 0.1
BAR = 30
MARGIN = " " * 11
"""The width of the time, before lines that have none."""
QUERY = (
    "select worker, count(*) as records, sum(square) as total,",
    "       max(updated_at) as latest",
    f"from {INDEX} group by worker order by worker",
)

Rows = Sequence[tuple[Any, ...]]
"""The rows that SQL gave."""


# ---- the screen ----


@dataclass(slots=True)
class DemoProcess:
    """The last known state of one worker process."""

    pid: int
    state: str = "starting"
    done: int = 0


@dataclass(slots=True)
class DemoState:
    """The last known state of the whole demo, from the events of its workers."""

    total: int
    processes: dict[int, DemoProcess] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    @property
    def ended(self) -> int:
        """How many tasks have completed or failed."""
        return len(self.done) + len(self.failed)


class DemoScreen:
    """Prints lines, and on a terminal shows the progress of all workers below them."""

    def __init__(self, out: Console, state: DemoState) -> None:
        self._out = out
        self._state = state
        self._began_s = system().elapsed_s()
        self._live: Live | None = None
        self._shown_s = 0.0
        self._announced = 0
        self._step = 0

    def since_start_s(self) -> float:
        """Seconds since the demo began."""
        return system().elapsed_s() - self._began_s

    def say(self, text: RenderableType = "") -> None:
        """Print a line, in markup, or a table."""
        self._out.print(text, soft_wrap=not self._out.is_terminal)

    def step(self, title: str) -> None:
        """Print the title of the next step."""
        self._step += 1
        self.say()
        self.say(f"[bold]{self._step}. {title}[/bold]")

    def note(self, text: str) -> None:
        """Print a line with the time."""
        self.row(f"[dim]{self.since_start_s():6.1f} s[/dim]   ", text)

    def row(self, head: str, text: str) -> None:
        """Print a line that begins with `head`. On a terminal, what does not fit goes on below the text."""
        from rich.table import Table

        if not self._out.is_terminal:
            self.say(f"{head}{text}")
            return
        row = Table.grid()
        row.add_column(no_wrap=True)
        row.add_column(overflow="fold")
        row.add_row(head, text)
        self.say(row)

    def fact(self, name: str, text: str, holds: bool | None = None) -> bool:
        """Print a line of the report; with `holds`, a check and whether it passed."""
        mark = {True: "[green]ok[/green]  ", False: "[bold red]FAIL[/bold red]", None: "    "}[holds]
        self.row(f"  {mark}  {name:<11}", text)
        return holds is not False

    def open(self) -> None:
        """Begin to show the progress."""
        if self._out.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()

    def show(self) -> None:
        """Show the progress, if it is time: ten times a second, or without a terminal at each fifth of the tasks."""
        if self._live is not None:
            if self.since_start_s() - self._shown_s >= REFRESH_S:
                self._shown_s = self.since_start_s()
                self._live.update(self._picture(), refresh=True)
            return
        state, fifth = self._state, self._state.total // 5
        if state.ended >= self._announced + fifth:
            self._announced = state.ended // fifth * fifth
            self.note(f"{state.ended:,} of {many(state.total, 'task')} have ended")

    def close(self) -> None:
        """Leave only the lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        state = self._state
        top = Table.grid(padding=(0, 2))
        top.add_row(
            ProgressBar(state.total, state.ended, width=BAR),
            f"{max(0, state.total - state.ended):,} pending",
            f"[green]{len(state.done):,} done[/green]",
            f"[red]{len(state.failed):,} failed[/red]",
            f"[dim]{self.since_start_s():.0f} s[/dim]",
        )
        workers = Table.grid(padding=(0, 2))
        for each in state.processes.values():
            style = "red" if each.state in ("killed", "stopped") else "default"
            workers.add_row("", f"worker {each.pid}", f"{each.done:>5,} tasks", f"[{style}]{each.state}[/{style}]")
        return Group("", top, workers)


# ---- the report ----


@dataclass(slots=True)
class DemoHistory:
    """What the demo observes. `takeovers`: seconds by batch; `fenced`: the task whose late write was refused; `fan_id`:
    the durable task, and `fan_taken_s`: how long it took until others had what a killed worker held."""

    ids: list[str] = field(default_factory=list)
    takeovers: dict[int, float] = field(default_factory=dict)
    refused: int = 0
    fenced: int = 0
    merged: int = 0
    fan_id: str = ""
    fan_taken_s: float | None = None


@dataclass(frozen=True, slots=True)
class DemoCounts:
    """How the tasks that were pushed ended. All numbers are counts of tasks."""

    completed: int
    failed: int
    lost: int
    """Neither completed nor failed."""
    wrong: int
    """Ended in the wrong way, or with the wrong result."""
    ran_again: int
    asked_for: int
    """Of those that ran more than once: the number that raised Retry."""


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """How records fit the tasks. `wrong`: not the right square, one too many, or of a task that did not complete."""

    records: int
    wrong: int
    missing: int


@dataclass(frozen=True, slots=True)
class DemoNotes:
    """The notes of all workers: how often each task was started, and the requests that were made."""

    runs: Counter[int]
    tasks: Counter[str]
    index: Counter[str]


def read_notes(folder: Path) -> DemoNotes:
    """Add up the notes of the workers (see `limpet.demo.app`); a killed one may have left half a line."""
    notes = DemoNotes(Counter(), Counter(), Counter())
    for path in sorted(folder.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        notes.runs.update(line["n"] for line in lines if line["n"] is not None)
        for spent, purpose in ((notes.tasks, "tasks"), (notes.index, "index")):
            spent.update(lines[-1][purpose] if lines else {})
    return notes


def read_results(fleet: Fleet, ids: Sequence[str]) -> list[Result]:
    """The outcome of every task.   Cost: 1 GET for each that completed."""
    return system().fan_out(fleet.queue(QUEUE).result, ids)


def count_tasks(results: Sequence[Result], runs: Mapping[int, int]) -> DemoCounts:
    """Compare the outcome of each task, in the order of their numbers, with the right one. Pure."""
    owed = ((result, expected(n)) for n, result in enumerate(results))
    wrong = sum(
        (result.state == "completed" and (right is None or result.value != right))
        or (result.state == "failed" and right is not None)
        for result, right in owed
    )
    states = Counter(result.state for result in results)
    again = [n for n, times in runs.items() if times > 1]
    return DemoCounts(
        completed=states["completed"],
        failed=states["failed"],
        lost=len(results) - states["completed"] - states["failed"],
        wrong=wrong,
        ran_again=len(again),
        asked_for=sum(1 for n in again if payload(n).get("kind") == "flaky"),
    )


def count_records(results: Sequence[Result], records: Iterable[Mapping[str, Any]]) -> RecordCounts:
    """Compare the records with the tasks that completed. Pure."""
    owed = {n: expected(n) for n, result in enumerate(results) if result.state == "completed"}
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


def ask(screen: DemoScreen, fleet: Fleet) -> Rows | None:
    """Print how many records each worker has in the index; the rows that SQL gave, None without DuckDB."""
    index = fleet.index(INDEX)
    try:
        answer = [*index.sql("\n".join(QUERY))]
    except Unsupported as missing:
        screen.say(_table(by_worker(index.scan())))
        screen.say(f"[dim]{MARGIN}computed by a scan; for SQL: {clean(missing.hint)}[/dim]")
        return None
    for line in QUERY:
        screen.say(f"[dim]{MARGIN}{line}[/dim]")
    screen.say(_table(answer))
    return answer


def _table(rows: Iterable[Sequence[Any]]) -> RenderableType:
    from rich.padding import Padding

    made = table("worker", "records", "total", "latest", right=("records", "total"))
    for worker, records, total, latest in rows:
        made.add_row(clean(worker), f"{records:,}", f"{total:,}", f"{latest:%H:%M:%S.%f}"[:-3])
    return Padding(made, (0, 0, 0, len(MARGIN)), expand=False)


def publish(screen: DemoScreen, fleet: Fleet, *, stays: bool) -> Published | None:
    """Publish the index as an Iceberg table, and print how to query it if it `stays`; None, and a line, without the
    packages.   Raises: LimpetError."""
    try:
        demand_extra()
    except Unsupported as missing:
        screen.row(MARGIN, f"[dim]to publish it as an Iceberg table: {clean(missing.hint)}[/dim]")
        return None
    with fleet.meter.measure() as cost:
        done = fleet.publish_index(INDEX, compile=False)
    name = ".".join((*done.namespace, done.table))
    wrote = (
        f"{many(done.records, 'record')} in {many(done.files, 'Parquet file')}, with {many(cost.total(), 'request')}"
    )
    screen.row(MARGIN, f"[dim]published as the Iceberg table {clean(name)}: {wrote}[/dim]")
    if stays:
        scan = f"from iceberg_scan({clean(repr(done.metadata_location))})"
        screen.row(MARGIN, f"[dim]DuckDB: install iceberg; load iceberg; {scan}[/dim]")
    return done


def report(
    screen: DemoScreen, fleet: Fleet, seen: DemoHistory, notes: DemoNotes, answer: Rows | None, table: Published | None
) -> bool:
    """Print what the store holds beside what it must hold; whether every check passed."""
    stats, index = fleet.queue(QUEUE).stats(), fleet.index(INDEX)
    results, records = read_results(fleet, seen.ids), [*index.scan()]
    found, stored = count_tasks(results, notes.runs), count_records(results, records)
    pushed, waits = len(seen.ids), index.stats()
    waiting = waits.singles.objects + waits.packs.objects
    died = found.ran_again - found.asked_for
    checks = [
        screen.fact(
            "tasks",
            f"{pushed:,} pushed = {stats.completed:,} completed + {stats.failed:,} failed",
            (stats.completed, stats.failed, pushed) == (found.completed, found.failed, found.completed + found.failed),
        ),
        screen.fact(
            "lost", f"{many(found.lost, 'task')}; {stats.pending:,} still pending", not (found.lost or stats.pending)
        ),
        screen.fact("results", f"{found.completed:,} read back, {found.wrong} wrong", not found.wrong),
        screen.fact(
            "index",
            f"{many(stored.records, 'record')} = {found.completed:,} completed, {stored.wrong:,} wrong, "
            f"{stored.missing:,} missing",
            not (stored.wrong or stored.missing),
        ),
        screen.fact("compiled", f"{many(seen.merged, 'object')} merged at the end; {waiting:,} left", not waiting),
        answer is None
        or screen.fact("sql", "the table above equals a scan of the index", answer == by_worker(records)),
        table is None
        or screen.fact(
            "table", f"{many(table.records, 'record')} in the Iceberg table", table.records == stored.records
        ),
    ]
    checks += [*_takeovers(screen, fleet, seen), _fan_in(screen, fleet, seen)]
    screen.fact(
        "run twice",
        f"{many(found.ran_again, 'task')}: {found.asked_for:,} by Retry, {died:,} whose worker died or was stopped",
    )
    return all(checks)


def _takeovers(screen: DemoScreen, fleet: Fleet, seen: DemoHistory) -> list[bool]:
    """Print which batches were taken over, and which late write was refused; whether each was as it must be."""
    cell = fleet.cell(f"slow-{seen.fenced}").read()
    taken = " and ".join(f"batch {batch} after {after_s:.1f} s" for batch, after_s in seen.takeovers.items())
    return [
        screen.fact("takeovers", taken, len(seen.takeovers) == 2),
        screen.fact(
            "fencing",
            f"{many(seen.refused, 'late write')} refused",
            seen.refused == 1 and cell is not None and cell.value["token"] == 2,
        ),
    ]


def _fan_in(screen: DemoScreen, fleet: Fleet, seen: DemoHistory) -> bool:
    """Print how the durable task ended; whether it gathered what it has pushed, in one attempt."""
    fan = fleet.queue(REPORTS).result(seen.fan_id)
    total = fan.unwrap()["total"] if fan.ok else 0
    after = "never" if seen.fan_taken_s is None else f"after {seen.fan_taken_s:.1f} s"
    return screen.fact(
        "durable",
        f"{many(fan.attempts, 'attempt')}, the sum of {FANNED} cubes is {total:,}; a batch was taken over {after}",
        fan.attempts == 1 and total == sum(n**3 for n in range(FANNED)) and seen.fan_taken_s is not None,
    )


def prices(
    screen: DemoScreen, total: int, tasks: Counter[str], index: Counter[str], read_back: Mapping[str, int]
) -> None:
    """Print requests and dollars, and which is cheaper. SQS has no index, so its price is compared with the tasks'."""
    screen.fact("requests", f"{tasks.total():,} for tasks: {_by_verb(tasks)}")
    screen.fact("", f"{index.total():,} for the index: {_by_verb(index)}")
    mine = dollars(tasks, "s3")
    screen.fact("price", f"${mine:.5f} for tasks, ${dollars(index, 's3'):.5f} for the index, on S3 ({AS_OF})")
    screen.fact("", f"${dollars(read_back, 's3'):.5f} to read everything back")
    single, tens = sqs(total, 1).dollars, sqs(total, SQS_BATCH).dollars
    cheaper = "SQS is cheaper" if mine > single else "SQS is cheaper with batches of ten"
    cheaper = "Limpet is cheaper" if mine < tens else cheaper
    screen.fact("on SQS", f"the same tasks: ${single:.5f}, in batches of ten ${tens:.5f}; {cheaper}")


def _by_verb(spent: Counter[str]) -> str:
    return ", ".join(f"{count:,} {verb.upper()}" for verb, count in spent.most_common())

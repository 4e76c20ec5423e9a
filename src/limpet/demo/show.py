"""The command `limpet demo`: it starts a pool of workers, kills three of them, stops one, and reports."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import limpet
from limpet.app.place import check_has_store
from limpet.cli import EXIT_FAILED, clean, console, say
from limpet.cli.parse import Exit, Option
from limpet.demo import BATCH, CUBES, FANNED, FOLDS, INDEX, KEY, QUEUE, REPORTS, DemoResult, payload
from limpet.demo.report import DemoHistory, DemoProcess, DemoScreen, DemoState, ask, prices, publish, read_notes, report
from limpet.kernel.errors import Invalid, LimpetError, Unavailable
from limpet.kernel.runtime import system
from limpet.kernel.wording import many
from limpet.worker.pool import ProcessPool
from limpet.worker.protocol import Message, WorkerEvent, WorkerOrder

WORKERS = 4
FAN_WORKERS = 2
THREADS = 2
TASKS = 5000
TASKS_MIN = 2000
FOLD_EVERY = 1000
"""After so many tasks a worker is asked to compile the index."""
MOMENT_S = 0.15
DEADLINE_S = 150.0
LOOK = (
    "status",
    f"queue ls {QUEUE} --failed",
    f"queue cost {QUEUE}",
    f"index stats {INDEX}",
    f'index sql "from {INDEX} limit 5"',
)


def demo(
    url: Annotated[
        str | None, Option("-u", help="Use this store, under a new prefix, instead of a temporary folder.")
    ] = None,
    tasks: Annotated[int, Option(min=TASKS_MIN, max=100_000, help="How many tasks.")] = TASKS,
    keep: Annotated[bool, Option(help="Keep the temporary folder, to look at it.")] = False,
) -> None:
    """Watch four workers survive kill -9 and a long sleep, in half a minute. Nothing to set up.

    5,000 tasks wait in a queue that is a plain folder. One worker is killed while it holds a batch, another is stopped
    until a third one has taken its batch over; its late write is refused. The results go into an index, which the
    workers compile at the same time; one of them is killed while it compiles. Then a durable task pushes 200 others and
    waits for them without a worker, while one of theirs is killed. At the end everything is read back, also with SQL.
    Exit code 0 means that every check passed. The temporary folder is then removed, unless --keep is given;
    what was written to --url stays.

    Example:
    $ limpet demo
    $ limpet demo --url s3://bucket/prefix
    Exit codes: 0 every check passed; 1 a check failed; 2 wrong usage.
    """
    if url is not None and url.startswith("memory:"):
        raise Invalid("the demo's processes cannot share memory", hint="use a folder or a bucket, or no --url at all")
    if url is not None:
        check_has_store(url, "the demo needs a store")
    notes = Path(tempfile.mkdtemp(prefix="limpet-demo-"))
    place = str(notes / "fleet")
    if url is not None:
        base, mark, query = url.partition("?")
        place = f"{base.rstrip('/')}/limpet-demo-{system().new_id()}{mark}{query}"
    run = DemoRun(place, notes, tasks, stays=keep or url is not None)
    passed = False
    try:
        passed = run.run()
    except KeyboardInterrupt:
        run.screen.close()
        say(f"interrupted; what was written stays in {place}")
        raise
    finally:
        run.screen.close()
        with suppress(OSError):  # it stays unless it is empty
            notes.rmdir()
    _print_end(run, stays=keep or url is not None or not passed, passed=passed)
    if not passed:
        raise Exit(EXIT_FAILED)
    if not keep:
        shutil.rmtree(notes, ignore_errors=True)


def _print_end(run: DemoRun, *, stays: bool, passed: bool) -> None:
    screen = run.screen
    screen.say()
    if not passed:
        screen.say("[bold red]A check failed: please report this output.[/bold red]")
    else:
        screen.say(f"[bold green]Every check passed[/bold green], in {screen.since_start_s():.0f} s.")
    if not stays:
        screen.say("[dim]The temporary folder is removed. `limpet demo --keep` keeps it.[/dim]")
        return
    screen.say("Look at what is stored:")
    for command in LOOK:
        screen.say(f"  [cyan]limpet {command} --url {clean(shlex.quote(run.place))}[/cyan]")


# ---- the run ----

Script = Generator[None, WorkerEvent, None]
"""The steps that kill and stop workers, as a generator: it is resumed with every event of a worker."""


class DemoRun:
    """The demo. The events of the workers only decide when to strike; the report is read back from the store."""

    def __init__(self, place: str, notes: Path, tasks: int, *, stays: bool) -> None:
        self.place = place
        self._stays = stays
        self.state = DemoState(tasks)
        self.screen = DemoScreen(console(), self.state)
        self._notes = notes
        self._seen = DemoHistory()
        self._struck_at_s: dict[str, float] = {}
        """By task, when the worker that ran it was killed or stopped."""
        self._stopped = 0
        """The process that is stopped, or 0."""
        self._interrupted = self._trouble = False
        self._folding = False
        self._fold_at = FOLD_EVERY

    def run(self) -> bool:
        """Run it, and report what the store holds: whether every check passed.

        Raises: Unsupported for a store that ignores conditions; KeyboardInterrupt.
        """
        self._fleet = limpet.open(self.place)
        self._fleet.check()
        self._index_fleet = limpet.open(self.place)  # the same store, but its requests are counted apart
        self.screen.say(f"[bold]Limpet demo[/bold]: {many(self.state.total, 'task')}, four workers, an index")
        self.screen.say(f"[dim]Everything is stored in {clean(self.place)}. There is no server.[/dim]")
        self._push()
        os.environ["LIMPET_DEMO_NOTES"] = str(self._notes)
        self.screen.step("Four worker processes start. They share nothing but the store.")
        self._work(WORKERS, self._strike())
        del os.environ["LIMPET_DEMO_NOTES"]  # the prices are those of the tasks above
        self.screen.step(f"A durable task pushes {FANNED} others, and waits for them without a worker.")
        self._seen.fan_id = limpet.open(self.place).queue(REPORTS, durable=True).push({"n": FANNED}).id
        self._work(FAN_WORKERS, self._strike_fan())
        return self._report()

    def _push(self) -> None:
        self.screen.step(
            f"Push {many(self.state.total, 'task')}, {BATCH} in an object. A few will fail, and some are retried."
        )
        with self._fleet.meter.measure() as cost:
            self._seen.ids = [*self._fleet.queue(QUEUE).push_many(map(payload, range(self.state.total)), batch=BATCH)]
        self.screen.note(f"{many(len(self._seen.ids), 'task')} pushed with {many(cost.total(), 'request')}")
        shards = 16 ** self._index_fleet.index(INDEX, DemoResult, key=KEY).manifest.depth
        spent = self._index_fleet.meter.snapshot().total()
        self.screen.note(
            f"an index for their results: {many(shards, 'empty shard')}, created with {many(spent, 'request')}"
        )

    def _work(self, workers: int, script: Script) -> None:
        order = WorkerOrder(
            target="limpet.demo.app:fleet",
            handler=None,
            url=self.place,
            queues=[],
            threads=THREADS,
            burst=True,
            until_empty=True,
            max_tasks=None,
            grace_s=1.0,
            routine=True,
            count=True,
        )
        self._script = script
        next(self._script)
        self.screen.open()
        pool = ProcessPool(order, workers, system(), self._hear, quiet_stdout=False)
        try:
            pool.run()
        finally:
            self._resume()
            self.screen.close()
        if self._interrupted:
            raise KeyboardInterrupt
        if pool.trouble:
            raise Unavailable(pool.trouble, hint="run it again; if it happens again, please report it with this line")

    def _strike(self) -> Script:
        """Kill a worker in a batch, stop another in a batch, kill one that compiles; then let the stopped one go on."""
        killed = yield from self._until(self._begins_slow_task)
        self.screen.step(f"Worker {_pid(killed)} is killed with kill -9, in the middle of a batch.")
        self._struck_at_s[killed.id] = self.screen.since_start_s()
        self._kill(killed, f"while it held batch {self._batch(killed.id)}")
        stopped = yield from self._until(lambda event: self._begins_slow_task(event) and _pid(event) != _pid(killed))
        self.screen.step(f"Worker {_pid(stopped)} is stopped in the middle of a batch, as when a laptop is closed.")
        self._struck_at_s[stopped.id] = self.screen.since_start_s()
        self._stop(stopped)
        self.screen.note("Their leases run out 3 s after they were last renewed. Then other workers take over.")
        if not self._folding:
            self._push_fold()
        yield from self._kill_one_that_folds()
        yield from self._until(lambda _: len(self._seen.takeovers) == len(self._struck_at_s))
        self.screen.step(f"Worker {self._stopped} continues with its old lease, and writes.")
        pid, self._seen.fenced = self._stopped, self._seen.ids.index(stopped.id)
        self._resume()
        late = yield from self._until(
            lambda event: _pid(event) == pid and event.id == stopped.id and event.kind in ("lost", "retry", "done")
        )
        self._seen.refused += late.kind != "done" and "too old" in late.note
        self.screen.note(f"worker {pid} is [bold red]refused[/bold red]: {clean(late.note)}")
        yield from self._until(lambda _: False)

    def _kill_one_that_folds(self) -> Script:
        while True:
            fold = yield from self._until(lambda event: event.queue == FOLDS and event.kind == "started")
            until_s = self.screen.since_start_s() + MOMENT_S
            event = yield from self._until(
                lambda event: event.id == fold.id or self.screen.since_start_s() >= until_s  # noqa: B023, used at once
            )
            if event.id != fold.id:
                break
            self._push_fold()
        self.screen.step(f"Worker {_pid(fold)} is killed with kill -9, while it compiles the index.")
        self._kill(fold, "while it merged records into shards")

    def _strike_fan(self) -> Script:
        suspended = slow = None
        while suspended is None or slow is None:
            event = yield from self._until(lambda event: event.kind in ("suspended", "progress"))
            if event.queue == CUBES:
                slow = event
            else:
                suspended = event
                self.screen.note(f"the durable task is [bold]suspended[/bold]: {clean(event.note)}")
        self._kill(slow, f"while it held {BATCH} of them")
        struck_at_s = self.screen.since_start_s()
        taken = yield from self._until(lambda event: event.kind == "progress" and event.id == slow.id)
        self._seen.fan_taken_s = self.screen.since_start_s() - struck_at_s
        who = f"worker {_pid(taken)} [green]took over[/green]"
        self.screen.note(f"{who} with {clean(taken.note)}, after {self._seen.fan_taken_s:.1f} s")
        done = yield from self._until(lambda event: event.kind == "done" and event.queue == REPORTS)
        self.screen.note(f"all of them have ended: worker {_pid(done)} went on with the durable task, and it is done")
        yield from self._until(lambda _: False)

    def _until(self, holds: Callable[[WorkerEvent], bool]) -> Generator[None, WorkerEvent, WorkerEvent]:
        while True:
            event = yield
            if holds(event):
                return event

    def _hear(self, message: Message) -> None:
        """Called by the pool with every message of a worker.   Raises: Unavailable when it all takes too long."""
        if self.screen.since_start_s() > DEADLINE_S:
            raise Unavailable(
                f"the demo was not done after {DEADLINE_S:.0f} s",
                hint="run it again; if it happens again, please report it with this line",
            )
        if isinstance(message, WorkerEvent):
            self._note(message)
            if not self._interrupted:
                self._script.send(message)
        self.screen.show()

    def _note(self, event: WorkerEvent) -> None:
        if event.kind in ("crashed", "trouble", "warning"):
            self.screen.note(clean(event.note))
        if event.kind == "stopping":
            self._interrupted = True
            self._resume()
        if event.kind in ("crashed", "stopping"):
            return  # an event of the pool
        process = self.state.processes.setdefault(_pid(event), DemoProcess(_pid(event)))
        match event.kind:
            case "ready":
                process.state = "ready"
                self.screen.note(f"worker {process.pid} started")
            case _ if event.queue in (REPORTS, CUBES):
                process.state = "works for the durable task"
            case "started":
                folds = event.queue == FOLDS
                process.state = "compiles the index" if folds else f"works on batch {self._batch(event.id)}"
            case "progress" if event.id in self._struck_at_s:
                batch, after_s = self._batch(event.id), self.screen.since_start_s() - self._struck_at_s[event.id]
                self._seen.takeovers[batch] = after_s
                who = f"worker {process.pid} [green]took over[/green]"
                self.screen.note(f"{who} batch {batch} with {event.note}, after {after_s:.1f} s")
            case "done" | "failed" if event.queue == QUEUE:
                (self.state.done if event.kind == "done" else self.state.failed).add(event.id)
                process.done += 1
                if self.state.ended >= self._fold_at and not self._folding:
                    self._push_fold()
            case "done":
                self._folding = False

    def _push_fold(self) -> None:
        """Ask the workers to compile the index: one at a time, since two would read the same objects."""
        self._folding, self._fold_at = True, self.state.ended + FOLD_EVERY
        self._fleet.queue(FOLDS).push({})

    def _begins_slow_task(self, event: WorkerEvent) -> bool:
        if event.queue != QUEUE or event.kind != "started" or event.attempt > 1:
            return False
        return payload(self._seen.ids.index(event.id)).get("kind") == "slow"

    def _batch(self, id_: str) -> int:
        return self._seen.ids.index(id_) // BATCH + 1

    def _kill(self, event: WorkerEvent, meanwhile: str) -> None:
        pid = _pid(event)
        os.kill(pid, signal.SIGKILL)
        self.state.processes[pid].state = "killed"
        self.screen.note(f"worker {pid} [bold red]killed[/bold red] {meanwhile}")

    def _stop(self, event: WorkerEvent) -> None:
        self._stopped = _pid(event)
        os.kill(self._stopped, signal.SIGSTOP)
        self.state.processes[self._stopped].state = "stopped"
        self.screen.note(
            f"worker {self._stopped} [bold red]stopped[/bold red] while it held batch {self._batch(event.id)}"
        )

    def _resume(self) -> None:
        if self._stopped:
            with suppress(ProcessLookupError):
                os.kill(self._stopped, signal.SIGCONT)
            self.state.processes[self._stopped].state = "continues"
            self._stopped = 0

    def _report(self) -> bool:
        """Compare what was pushed with what the store has, read through a new fleet that may only read."""
        self.screen.step("The tasks are done. The rest of their records is compiled.")
        table = None
        with self._noting_trouble():
            self._seen.merged = self._index_fleet.index(INDEX).compile(full=True).objects
            self.screen.note(f"{many(self._seen.merged, 'object')} merged")
        fleet = limpet.open(self.place, read_only=True)
        self.screen.step("Query the index with SQL: which worker has computed how many results?")
        answer = ask(self.screen, fleet)
        with self._noting_trouble():
            table = publish(self.screen, limpet.open(self.place), stays=self._stays)
        self.screen.step("Read everything back, and compare it with what was pushed.")
        notes = read_notes(self._notes)
        passed = report(self.screen, fleet, self._seen, notes, answer, table)
        prices(
            self.screen,
            self.state.total,
            notes.tasks + Counter(self._fleet.meter.snapshot().requests),
            notes.index + Counter(self._index_fleet.meter.snapshot().requests),
            fleet.meter.snapshot().requests,
        )
        return passed and not self._trouble

    @contextmanager
    def _noting_trouble(self) -> Iterator[None]:
        """Go on after an error: the report says what is missing."""
        try:
            yield
        except LimpetError as error:
            self._trouble = True
            self.screen.note(f"[red]trouble[/red]: {clean(str(error))}")


def _pid(event: WorkerEvent) -> int:
    """The process of a worker, whose name is `host:pid/thread`."""
    return int(event.worker.rpartition(":")[2].partition("/")[0])

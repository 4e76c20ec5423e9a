"""The command `limpet demo`: it starts workers and compilers, kills two of them, stops one, and reports."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import limpet
from limpet.cli.options import in_store
from limpet.cli.output import EXIT_FAILED, clean, console, lines, say
from limpet.demo.screen import DemoProcess, DemoScreen, DemoState
from limpet.demo.tasks import BATCH, INDEX, KEY, QUEUE, TTL_S, DemoResult, payload, split_id
from limpet.errors import Invalid, Unavailable
from limpet.runtime import system

EPILOG = lines(
    "Example:",
    "$ limpet demo",
    "$ limpet demo --url s3://bucket/prefix",
    "Exit codes: 0 all went as promised; 1 something did not; 2 wrong usage.",
)

WORKERS = {"ada": "cyan", "ben": "magenta", "cyd": "yellow", "dot": "blue"}
COMPILERS = {"eve": "bright_cyan", "fay": "bright_magenta"}
TASKS = 5000
TASKS_MIN = 2000
KILL_AT = 0.15
PAUSE_AT = 0.3
MOMENT_S = 0.1
DRAIN_LOOK_S = 0.7
DEADLINE_S = 150.0
HINT = "run it again; if it happens again, please report it with this line"


def demo(
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "-u",
            show_default=False,
            help="Show it there, under a new prefix, not in a temporary folder.",
        ),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=TASKS_MIN, max=100_000, help="How many tasks.")] = TASKS,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder, to look at it.")] = False,
) -> None:
    """Watch four workers survive kill -9 and a long sleep, in twenty seconds. Nothing to set up.

    5,000 tasks wait in a queue that is a plain folder. One worker is killed while it holds a batch, another is stopped
    until the others have taken its batch over; its late write is refused. Results land in an index, which two compilers
    fold; one of them is killed too. Then everything is read back, in SQL too. Exit code 0 means that all
    checks passed. The temporary folder is removed then, unless --keep is given; what was written to --url stays.
    """
    if url is not None and url.startswith("memory:"):
        raise Invalid("the demo's processes cannot share memory", hint="use a folder or a bucket, or no --url at all")
    logs = Path(tempfile.mkdtemp(prefix="limpet-demo-"))
    place = str(logs / "fleet")
    if url is not None:
        base, mark, query = url.partition("?")
        place = f"{base.rstrip('/')}/limpet-demo-{system().new_id()}{mark}{query}"
    show = _DemoRun(place, logs, tasks)
    try:
        kept_promises = show.run(keep=keep, stays=keep or url is not None)
    except KeyboardInterrupt:
        show.screen.close()
        say(f"interrupted; what was written stays in {place}")
        raise
    finally:
        show.screen.close()
        show.processes.close()
        with suppress(OSError):  # it stays unless it is empty
            logs.rmdir()
    if not kept_promises:
        raise typer.Exit(EXIT_FAILED)
    if not keep:
        shutil.rmtree(logs, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """What a process told, `at_s` seconds after the demo began (all processes read one rising clock)."""

    at_s: float
    who: str
    what: str
    fields: dict[str, Any]


class DemoProcessGroup:
    """Starts workers and compilers, gives them orders (see `limpet.demo.workers`), hears their events, ends them."""

    def __init__(self) -> None:
        self._began_s = system().elapsed_s()
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._unread: dict[str, bytes] = {}
        self._ready: list[DemoEvent] = []
        self._requests: dict[str, dict[str, dict[str, int]]] = {}

    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return system().elapsed_s() - self._began_s

    def start(self, name: str, *arguments: str) -> int:
        """Start a process, which waits for the order `begin`; its pid."""
        process = subprocess.Popen(
            [sys.executable, "-m", "limpet.demo.workers", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # an interrupt is for us, and we end them
        )
        assert process.stdout is not None
        self._running[name] = process
        self._unread[name] = b""
        self._selector.register(process.stdout, selectors.EVENT_READ, name)
        return process.pid

    def order(self, name: str, order: str) -> None:
        """Hand on an order. `end`: finish and exit; the last event is then `ended`."""
        stdin = self._running[name].stdin
        assert stdin is not None
        if order == "end":
            stdin.close()
        else:
            stdin.write(f"{order}\n".encode())

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP, as when a laptop is closed, or SIGCONT."""
        self._running[name].send_signal(number)

    def kill(self, name: str) -> None:
        """Kill with -9. Events that it has not sent yet are not heard."""
        process = self._running.pop(name)
        assert process.stdout is not None
        self._selector.unregister(process.stdout)
        _end(process)
        self._ready = [event for event in self._ready if event.who != name]

    def next(self, timeout_s: float) -> DemoEvent | None:
        """The next event; None if there was none in that time.

        Raises: Unavailable when a process fails, or when it all takes too long.
        """
        if not self._ready:
            if self.elapsed_s() > DEADLINE_S:
                raise Unavailable(f"the demo was not done after {DEADLINE_S:.0f} s", hint=HINT)
            for key, _ in self._selector.select(timeout_s):
                self._hear(key.data)
            self._ready.sort(key=lambda event: event.at_s)
        return self._ready.pop(0) if self._ready else None

    def requests(self, purpose: str) -> Counter[str]:
        """The requests of all processes for `tasks` or for the `index`, as far as they told before they ended."""
        return sum((Counter(spent.get(purpose, {})) for spent in self._requests.values()), Counter[str]())

    def close(self) -> None:
        """Kill every process that is left, also one that is stopped."""
        for process in self._running.values():
            _end(process)
        self._running.clear()
        self._selector.close()

    def _hear(self, name: str) -> None:
        process = self._running[name]
        assert process.stdout is not None
        assert process.stderr is not None
        said = os.read(process.stdout.fileno(), 65536)
        if not said:
            self._selector.unregister(process.stdout)
            if process.wait() != 0:
                why = process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise Unavailable(f"{name} failed: {why or f'exit code {process.returncode}'}", hint=HINT)
            return
        *whole, self._unread[name] = (self._unread[name] + said).split(b"\n")
        for line in whole:
            fields = json.loads(line)
            self._requests[name] = fields.pop("requests")
            at_s = fields.pop("at_s") - self._began_s
            self._ready.append(DemoEvent(at_s, name, fields.pop("what"), fields))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


class _DemoRun:
    """The demo, step by step. Events of the processes are only shown; the report is read back from the store."""

    def __init__(self, place: str, logs: Path, tasks: int) -> None:
        self.processes = DemoProcessGroup()
        workers = {name: DemoProcess(name, colour, "tasks") for name, colour in WORKERS.items()}
        compilers = {name: DemoProcess(name, colour, "objects merged") for name, colour in COMPILERS.items()}
        self.state = DemoState(tasks, workers | compilers)
        self.screen = DemoScreen(console(), self.state)
        self._place = place
        self._logs = logs
        self._ids: list[str] = []
        self._batches: dict[str, int] = {}
        self._signed: dict[str, DemoEvent] = {}
        self._refused: list[DemoEvent] = []
        self._takeovers: dict[int, float] = {}

    def run(self, *, keep: bool, stays: bool) -> bool:
        """Run it, and report what the store holds: whether all checks passed.

        Raises: Unsupported for a store that ignores conditions.
        """
        self._fleet = limpet.open(self._place)
        self._indexed = limpet.open(self._place)  # the same, but its requests are counted apart
        self._fleet.check()
        self._indexed.check()
        self._queue = in_store(self._fleet.queue(QUEUE), "run the demo")
        self.screen.say(f"[bold]Limpet demo[/bold]: {self.state.total:,} tasks, four workers, an index, two kill -9")
        self.screen.say(
            f"[dim]Everything lies in {clean(self._place)}.\nNo server runs; a bucket works just the same.[/dim]"
        )
        self._push()
        self._start()
        killed, killed_at_s = self._kill_worker()
        paused, paused_at_s, sleeper = self._pause_worker()
        self._kill_compiler()
        self._await_takeover(killed, killed_at_s)
        self._await_takeover(paused, paused_at_s)
        self._wake(sleeper, paused)
        self._wait_for(lambda: self._queue.stats().pending == 0, every_s=DRAIN_LOOK_S)
        self._dismiss(WORKERS)
        self._compile_rest()
        return self._report(paused, keep=keep, stays=stays)

    def _push(self) -> None:
        self.screen.act(f"Push {self.state.total:,} tasks, {BATCH} to an object. A few are poison, some fail at first.")
        with self._fleet.meter.measure() as cost:
            self._ids = self._queue.push_many(map(payload, range(self.state.total)), batch=BATCH)
        for id_ in self._ids:
            self._batches.setdefault(split_id(id_)[0], len(self._batches) + 1)
        self._note(f"{len(self._ids):,} tasks in {len(self._batches)} objects, with {cost.total()} requests")
        shards = 16 ** self._indexed.index(INDEX, DemoResult, key=KEY).manifest.depth
        spent = self._indexed.meter.snapshot().total()
        self._note(f"an index for their results: {shards} empty shards, with {spent} requests")

    def _start(self) -> None:
        self.screen.act("Four processes work, two compile the index. All that they share is the store.")
        pids = {
            name: self.processes.start(name, "worker", self._place, name, str(self._logs / f"{name}.log"))
            for name in WORKERS
        }
        pids |= {name: self.processes.start(name, "compiler", self._place) for name in COMPILERS}
        for name, pid in pids.items():
            self.state.processes[name].pid = pid
        self.screen.open()
        self._wait_for(lambda: all(each.state == "ready" for each in self.state.processes.values()))
        for names, do in ((WORKERS, "work"), (COMPILERS, "compile")):
            self._note("pids: " + ", ".join(f"{name} {pids[name]}" for name in names) + f" {do}")
        for name in pids:
            self.processes.order(name, "begin")

    def _kill_worker(self) -> tuple[str, float]:
        """Kill a worker in the middle of a batch; the batch, and when."""
        event = self._lingering(KILL_AT)
        self.screen.act(f"{event.who} is killed with -9 halfway through a batch. Nobody tells the others.")
        self._kill(event.who, self._holding(event))
        return event.fields["entry"], self.processes.elapsed_s()

    def _pause_worker(self) -> tuple[str, float, str]:
        """Stop a worker in the middle of a batch; the batch, when, and the worker."""
        event = self._lingering(PAUSE_AT)
        self.screen.act(f"{event.who} is stopped, like a laptop that is closed, and will wake up too late.")
        self.processes.send(event.who, signal.SIGSTOP)
        self.state.processes[event.who].state = "paused"
        self._line(event.who, f"[bold red]stopped[/bold red], {self._holding(event)}")
        self._note(f"their leases must run out first: {TTL_S:g} s without a heartbeat")
        return event.fields["entry"], self.processes.elapsed_s(), event.who

    def _kill_compiler(self) -> None:
        """Kill a compiler in the middle of a run."""

        def compiling() -> list[str]:
            until_s = self.processes.elapsed_s() - MOMENT_S
            each = [(name, self.state.processes[name]) for name in COMPILERS]
            return [name for name, process in each if process.state == "folds" and process.heard_s <= until_s]

        self._wait_for(lambda: bool(compiling()))
        name = compiling()[0]
        self.processes.order(name, "tell")  # so that its requests are in the bill
        self._until("tells")
        self.screen.act(f"{name}, a compiler, is killed with -9 too, in the middle of a run.")
        self._kill(name, "while it folded results into shards")

    def _kill(self, name: str, meanwhile: str) -> None:
        process = self.state.processes[name]
        self.processes.kill(name)
        process.state = "killed"
        self._line(name, f"[bold red]killed[/bold red] (pid {process.pid}), {meanwhile}")

    def _holding(self, event: DemoEvent) -> str:
        return f"holding batch {self._batches[event.fields['entry']]} with token {event.fields['token']}"

    def _lingering(self, share: float) -> DemoEvent:
        """Once that share of the tasks has ended, have the next worker that takes a batch wait halfway in it.

        So it is always in the middle of a batch when it is killed or stopped.
        """
        self._wait_for(lambda: self.state.ended >= share * self.state.total)
        self.processes.order(self._until("took").who, "linger")
        return self._until("lingers")

    def _await_takeover(self, entry: str, since_s: float) -> None:
        """Wait until another worker has the batch."""
        self._wait_for(lambda: entry in self._signed)
        event = self._signed[entry]
        self._takeovers[self._batches[entry]] = event.at_s - since_s
        took = f"[green]took over[/green] batch {self._batches[entry]} with token {event.fields['token']}"
        self._line(event.who, f"{took}, {event.at_s - since_s:.1f} s later")

    def _wake(self, sleeper: str, entry: str) -> None:
        """Wake the worker that was stopped. It goes on as if no time had passed."""
        self.screen.act(f"{sleeper} wakes up, believes that it still holds its batch, and writes.")
        self.state.processes[sleeper].state = "awake"
        self.processes.send(sleeper, signal.SIGCONT)
        self.processes.order(sleeper, "go")
        self._wait_for(lambda: bool(self._refused) or self._signed[entry].who == sleeper)
        for event in self._refused:
            self._line(event.who, "[bold red]refused[/bold red], LeaseLost:")
            self._note(event.fields["message"].replace(f"cells/{entry}.json", f"batch {self._batches[entry]}"))

    def _compile_rest(self) -> None:
        """Have the compiler that is left merge all that still waits."""
        [name] = [name for name in COMPILERS if self.state.processes[name].state != "killed"]
        self.screen.act(f"The work is done. {name} folds what still waits, the dead one's shards too.")
        before = self.state.processes[name].count
        self._dismiss(COMPILERS)
        self.screen.close()
        self._line(name, f"[green]folded[/green] the last {self.state.processes[name].count - before:,} objects")

    def _dismiss(self, names: Iterable[str]) -> None:
        """Have those that are left finish and exit."""
        left = [self.state.processes[name] for name in names if self.state.processes[name].state != "killed"]
        for process in left:
            self.processes.order(process.name, "end")
        self._wait_for(lambda: all(process.state == "ended" for process in left))

    def _wait_for(self, holds: Callable[[], bool], *, every_s: float = 0.0) -> None:
        """Hear events until it holds."""
        asked_s = float("-inf")
        while True:
            if self.processes.elapsed_s() - asked_s >= every_s:
                asked_s = self.processes.elapsed_s()
                if holds():
                    return
            self._hear()

    def _until(self, what: str) -> DemoEvent:
        while True:
            event = self._hear()
            if event is not None and event.what == what:
                return event

    def _hear(self) -> DemoEvent | None:
        """The next event, if one comes soon; the picture follows it."""
        event = self.processes.next(0.1)
        if event is not None:
            self._apply(event)
        self.screen.show(self.processes.elapsed_s())
        return event

    def _apply(self, event: DemoEvent) -> None:
        process, fields = self.state.processes[event.who], event.fields
        process.heard_s = event.at_s
        match event.what:
            case "ready" | "ended" | "folds":
                process.state = event.what
            case "took":
                process.state, process.batch = "works", self._batches[fields["entry"]]
            case "ran":
                process.state = "ran"
                self.state.done.update(fields["done"])
                self.state.failed.update(fields["failed"])
                process.count += len(fields["done"]) + len(fields["failed"])
            case "folded":
                process.state = "rests"
                process.count += fields["objects"]
                self.state.folds += fields["shards"]
            case "trouble":
                self._line(event.who, f"[red]trouble[/red]: {clean(fields['message'])}")
            case "signed":
                self._signed[fields["entry"]] = event
            case "refused":
                self._refused.append(event)

    def _report(self, paused: str, *, keep: bool, stays: bool) -> bool:
        """Compare what was pushed with what the store has, read through a new fleet that may only read."""
        from limpet.demo.report import DemoHistory, ask, farewell, prices, publish, report

        signed = self._signed[paused]
        seen = DemoHistory(
            ids=self._ids,
            takeovers=self._takeovers,
            refused=len(self._refused),
            fenced=paused,
            signed={"worker": signed.who, "token": signed.fields["token"]},
            folds=self.state.folds,
            merged=sum(self.state.processes[name].count for name in COMPILERS),
        )
        fleet = limpet.open(self._place, read_only=True)
        self.screen.act("Whose results stand in the index? Anybody can ask it, in SQL.")
        answer = ask(self.screen, fleet, WORKERS)
        published = publish(self.screen, limpet.open(self._place))
        self.screen.act("What the store holds, read back afresh.")
        kept_promises = report(self.screen, fleet, self._logs, seen, answer, published)
        tasks = self.processes.requests("tasks") + Counter(self._fleet.meter.snapshot().requests)
        index = self.processes.requests("index") + Counter(self._indexed.meter.snapshot().requests)
        prices(self.screen, self.state.total, tasks, index, fleet.meter.snapshot().requests)
        took_s = self.processes.elapsed_s() if kept_promises else None
        farewell(self.screen, self._place, self._logs, took_s, keep=keep, stays=stays)
        return kept_promises

    def _line(self, who: str, text: str) -> None:
        self.screen.line(self.processes.elapsed_s(), who, text)

    def _note(self, text: str) -> None:
        self.screen.note(self.processes.elapsed_s(), text)

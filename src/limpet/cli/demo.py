"""`limpet demo`: a fleet at work, two of it killed, one asleep, and what the store says at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.cli.shared import EXIT_FAILED, clean, console, lines, say
from limpet.errors import Invalid

if TYPE_CHECKING:
    from limpet.cli.demo_crew import Event
    from limpet.cli.demo_screen import Member
    from limpet.runtime import Runtime

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
    from limpet.runtime import system

    place, logs = _places(url, system())
    show = _Show(place, logs, tasks, system(), keep=keep, stays=keep or url is not None)
    try:
        show.run()
    except KeyboardInterrupt:
        show.screen.close()
        say(f"interrupted; what was written stays in {place}")
        raise
    finally:
        show.screen.close()
        show.crew.close()
        with suppress(OSError):  # it stays unless it is empty
            logs.rmdir()
    if show.kept_promises and not keep:
        shutil.rmtree(logs, ignore_errors=True)
    if not show.kept_promises:
        raise typer.Exit(EXIT_FAILED)


def _places(url: str | None, runtime: Runtime) -> tuple[str, Path]:
    """A URL where nothing is yet, and a folder for the handlers' own notes."""
    if url is not None and url.startswith("memory:"):
        raise Invalid("the demo's processes cannot share memory", hint="use a folder or a bucket, or no --url at all")
    home = Path(tempfile.mkdtemp(prefix="limpet-demo-"))
    if url is None:
        return str(home / "fleet"), home
    base, mark, query = url.partition("?")
    return f"{base.rstrip('/')}/limpet-demo-{runtime.new_id()}{mark}{query}", home


class _Show:
    """The story, act by act. What the processes tell is only shown; the report is read back from the store."""

    def __init__(self, place: str, logs: Path, tasks: int, runtime: Runtime, *, keep: bool, stays: bool) -> None:
        from limpet.cli.demo_crew import Crew
        from limpet.cli.demo_screen import Board, Member, Screen

        self.crew = Crew(place, logs, runtime)
        workers = {name: Member(name, colour, "tasks") for name, colour in WORKERS.items()}
        compilers = {name: Member(name, colour, "objects merged") for name, colour in COMPILERS.items()}
        self.board = Board(tasks, workers | compilers)
        self.screen = Screen(console(), self.board)
        self.kept_promises = False
        self._keep = keep
        self._stays = stays
        self._place = place
        self._logs = logs
        self._runtime = runtime
        self._ids: list[str] = []
        self._batches: dict[str, int] = {}
        self._signed: dict[str, Event] = {}
        self._refused: list[Event] = []
        self._takeovers: dict[int, float] = {}

    def run(self) -> None:
        """Play it, then tell what the store says.   Raises: Unsupported for a store that ignores conditions."""
        import limpet
        from limpet.cli.demo_tasks import QUEUE
        from limpet.cli.queue_options import in_store

        self._fleet = limpet.open(self._place)
        self._indexed = limpet.open(self._place)  # the same, but its requests are counted apart
        self._fleet.check()
        self._indexed.check()
        self._queue = in_store(self._fleet.queue(QUEUE), "run the demo")
        self.screen.say(f"[bold]Limpet demo[/bold]: {self.board.total:,} tasks, four workers, an index, two kill -9")
        self.screen.say(
            f"[dim]Everything lies in {clean(self._place)}.\nNo server runs; a bucket works just the same.[/dim]"
        )
        self._push()
        self._begin()
        killed, killed_at_s = self._kill_one()
        paused, paused_at_s, sleeper = self._pause_one()
        self._kill_compiler()
        self._take_over(killed, killed_at_s)
        self._take_over(paused, paused_at_s)
        self._wake(sleeper, paused)
        self._drain()
        self._fold_all()
        self._report(paused)

    def _push(self) -> None:
        from limpet.cli.demo_tasks import BATCH, INDEX, KEY, Result, payload

        self._act(f"Push {self.board.total:,} tasks, {BATCH} to an object. A few are poison, some fail at first.")
        before = self._fleet.meter.snapshot()
        self._ids = self._queue.push_many(map(payload, range(self.board.total)), batch=BATCH)
        for id_ in self._ids:
            self._batches.setdefault(id_.rpartition(".")[0], len(self._batches) + 1)
        spent = (self._fleet.meter.snapshot() - before).total()
        self._note(f"{len(self._ids):,} tasks in {len(self._batches)} objects, with {spent} requests")
        shards = 16 ** self._indexed.index(INDEX, Result, key=KEY).manifest.depth
        spent = self._indexed.meter.snapshot().total()
        self._note(f"an index for their results: {shards} empty shards, with {spent} requests")

    def _begin(self) -> None:
        self._act("Four processes work, two compile the index. All that they share is the store.")
        for name in WORKERS:
            self.crew.start_worker(name)
        for name in COMPILERS:
            self.crew.start_compiler(name)
        for name, member in self.board.crew.items():
            member.pid = self.crew.pid(name)
        self.screen.open()
        self._wait_for(lambda: all(each.state == "ready" for each in self.board.crew.values()))
        for names, do in ((WORKERS, "work"), (COMPILERS, "compile")):
            self._note("pids: " + ", ".join(f"{name} {self.crew.pid(name)}" for name in names) + f" {do}")
        for name in self.board.crew:
            self.crew.order(name, "begin")

    def _kill_one(self) -> tuple[str, float]:
        """Kill a worker in the middle of a batch; the batch, and when."""
        event = self._lingering(KILL_AT)
        member = self.board.crew[event.who]
        self._act(f"{event.who} is killed with -9 halfway through a batch. Nobody tells the others.")
        self.crew.kill(event.who)
        member.state = "killed"
        self._line(event.who, f"[bold red]killed[/bold red] (pid {member.pid}), {self._holding(event)}")
        return event.fields["entry"], self.crew.elapsed_s()

    def _pause_one(self) -> tuple[str, float, str]:
        """Stop a worker in the middle of a batch; the batch, when, and who."""
        from limpet.cli.demo_tasks import TTL_S

        event = self._lingering(PAUSE_AT)
        self._act(f"{event.who} is stopped, like a laptop that is closed, and will wake up too late.")
        self.crew.pause(event.who)
        self.board.crew[event.who].state = "paused"
        self._line(event.who, f"[bold red]stopped[/bold red], {self._holding(event)}")
        self._note(f"their leases must run out first: {TTL_S:g} s without a heartbeat")
        return event.fields["entry"], self.crew.elapsed_s(), event.who

    def _kill_compiler(self) -> None:
        """Kill a compiler in the middle of a run."""

        def in_a_run() -> list[Member]:
            until_s = self.crew.elapsed_s() - MOMENT_S
            compilers = [self.board.crew[name] for name in COMPILERS]
            return [member for member in compilers if member.state == "folds" and member.heard_s <= until_s]

        self._wait_for(lambda: bool(in_a_run()))
        member = in_a_run()[0]
        self.crew.order(member.name, "tell")  # so that its requests are in the bill
        self._until("tells")
        self._act(f"{member.name}, a compiler, is killed with -9 too, in the middle of a run.")
        self.crew.kill(member.name)
        member.state = "killed"
        self._line(member.name, f"[bold red]killed[/bold red] (pid {member.pid}), while it folded results into shards")

    def _holding(self, event: Event) -> str:
        batch = self._batches[event.fields["entry"]]
        return f"holding batch {batch} with token {event.fields['token']}"

    def _lingering(self, share: float) -> Event:
        """Once that share of the tasks has ended, have the next worker that takes a batch stay halfway in it.

        So that what is done to it happens in the middle of a batch, every time.
        """
        self._wait_for(lambda: self.board.ended >= share * self.board.total)
        event = self._until("took")
        self.crew.order(event.who, "linger")
        return self._until("lingers")

    def _take_over(self, entry: str, since_s: float) -> None:
        """Wait until somebody else has the batch."""
        self._wait_for(lambda: entry in self._signed)
        event = self._signed[entry]
        self._takeovers[self._batches[entry]] = event.at_s - since_s
        took = f"[green]took over[/green] batch {self._batches[entry]} with token {event.fields['token']}"
        self._line(event.who, f"{took}, {event.at_s - since_s:.1f} s later")

    def _wake(self, sleeper: str, entry: str) -> None:
        """Wake the one that slept, which goes on as if nothing had happened."""
        self._act(f"{sleeper} wakes up, believes that it still holds its batch, and writes.")
        self.board.crew[sleeper].state = "awake"
        self.crew.wake(sleeper)
        self.crew.order(sleeper, "go")
        self._wait_for(lambda: bool(self._refused) or self._signed[entry].who == sleeper)
        for event in self._refused:
            self._line(event.who, "[bold red]refused[/bold red], LeaseLost:")
            self._note(event.fields["message"].replace(f"cells/{entry}.json", f"batch {self._batches[entry]}"))

    def _drain(self) -> None:
        """Wait until the store says that nothing is left."""
        self._wait_for(lambda: self._queue.stats().pending == 0, every_s=DRAIN_LOOK_S)
        self._dismiss(WORKERS)

    def _fold_all(self) -> None:
        """Have the compiler that is left fold all that still waits."""
        [name] = [name for name in COMPILERS if self.board.crew[name].state != "killed"]
        self._act(f"The work is done. {name} folds what still waits, the dead one's shards too.")
        before = self.board.crew[name].count
        self._dismiss(COMPILERS)
        self.screen.close()
        self._line(name, f"[green]folded[/green] the last {self.board.crew[name].count - before:,} objects")

    def _dismiss(self, names: Iterable[str]) -> None:
        """Have them finish and end."""
        left = [self.board.crew[name] for name in names if self.board.crew[name].state != "killed"]
        for member in left:
            self.crew.dismiss(member.name)
        self._wait_for(lambda: all(member.state == "ended" for member in left))

    def _wait_for(self, holds: Callable[[], bool], *, every_s: float = 0.0) -> None:
        """Hear events until it holds."""
        asked_s = float("-inf")
        while True:
            if self.crew.elapsed_s() - asked_s >= every_s:
                asked_s = self.crew.elapsed_s()
                if holds():
                    return
            self._hear()

    def _until(self, what: str) -> Event:
        while True:
            event = self._hear()
            if event is not None and event.what == what:
                return event

    def _hear(self) -> Event | None:
        """The next event, if one comes soon; the picture follows it."""
        event = self.crew.next(0.1)
        if event is not None:
            self._take_in(event)
        self.screen.show(self.crew.elapsed_s())
        return event

    def _take_in(self, event: Event) -> None:
        member = self.board.crew[event.who]
        member.heard_s = event.at_s
        match event.what:
            case "ready":
                member.state = "ready"
            case "took":
                member.state, member.batch = "works", self._batches[event.fields["entry"]]
            case "ran":
                member.state = "ran"
                self.board.done.update(event.fields.get("done", ()))
                self.board.failed.update(event.fields.get("failed", ()))
                member.count += sum(map(len, event.fields.values()))
            case "folds":
                member.state = "folds"
            case "folded":
                member.state = "rests"
                member.count += event.fields["objects"]
                self.board.folds += event.fields["shards"]
            case "trouble":
                self._line(event.who, f"[red]trouble[/red]: {clean(event.fields['message'])}")
            case "signed":
                self._signed[event.fields["entry"]] = event
            case "refused":
                self._refused.append(event)
            case "ended":
                member.state = "ended"

    def _report(self, paused: str) -> None:
        """Hold what was pushed against what the store has, read by a fleet of its own that may only read."""
        import limpet
        from limpet.cli.demo_end import Seen, ask, farewell, prices, report
        from limpet.cli.demo_publish import publish

        signed = self._signed[paused]
        seen = Seen(
            ids=self._ids,
            takeovers=self._takeovers,
            refused=len(self._refused),
            fenced=paused,
            signed={"worker": signed.who, "token": signed.fields["token"]},
            folds=self.board.folds,
            merged=sum(self.board.crew[name].count for name in COMPILERS),
        )
        fleet = limpet.open(self._place, read_only=True)
        self._act("Whose results stand in the index? Anybody can ask it, in SQL.")
        answer = ask(self.screen, fleet, WORKERS)
        published = publish(self.screen, limpet.open(self._place))
        self._act("What the store holds, read back afresh.")
        self.kept_promises = report(self.screen, fleet, self._logs, seen, answer, published)
        tasks = self.crew.requests("tasks") + Counter(self._fleet.meter.snapshot().requests)
        index = self.crew.requests("index") + Counter(self._indexed.meter.snapshot().requests)
        prices(self.screen, self.board.total, tasks, index, fleet.meter.snapshot().requests)
        took_s = self.crew.elapsed_s() if self.kept_promises else None
        farewell(self.screen, self._place, self._logs, took_s, keep=self._keep, stays=self._stays)

    def _act(self, title: str) -> None:
        self.screen.act(title)

    def _line(self, who: str, text: str) -> None:
        self.screen.line(self.crew.elapsed_s(), who, text)

    def _note(self, text: str) -> None:
        self.screen.note(self.crew.elapsed_s(), text)

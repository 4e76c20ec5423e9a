"""How `limpet demo` looks: lines that stay, and below them, on a terminal, a picture of the fleet that moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limpet.cli.output import clean

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

IDLE_AFTER_S = 0.8
REFRESH_S = 0.1
BAR = 30
MARGIN = " " * 15
"""The width of the time and a name, before lines that have neither."""


@dataclass(slots=True)
class DemoProcess:
    """The last known state of one process, and how much it did: tasks of a worker, merged objects of a compiler."""

    name: str
    colour: str
    unit: str
    pid: int = 0
    state: str = "starting"
    batch: int = 0
    count: int = 0
    heard_s: float = 0.0

    def shown(self, at_s: float) -> str:
        """Its state, as the picture shows it."""
        match self.state:
            case "ran" if at_s - self.heard_s > IDLE_AFTER_S:
                return "looks for work"
            case "works" | "ran":
                return f"works on batch {self.batch}"
            case "folds":
                return "folds shards"
            case other:
                return other


@dataclass(slots=True)
class DemoState:
    """The last known state of the whole demo, from the events of its processes."""

    total: int
    processes: dict[str, DemoProcess]
    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    folds: int = 0
    """How often a shard was rewritten, as far as compilers could tell."""

    @property
    def ended(self) -> int:
        """Tasks with a verdict."""
        return len(self.done) + len(self.failed)


class DemoScreen:
    """Prints. Without a terminal only lines, and one each time that a fifth of the tasks has ended."""

    def __init__(self, out: Console, state: DemoState) -> None:
        self._out = out
        self._state = state
        self._live: Live | None = None
        self._shown_s = 0.0
        self._announced = 0
        self._act = 0

    def say(self, text: RenderableType = "") -> None:
        """A line that stays, in markup, or a table."""
        self._out.print(text, soft_wrap=not self._out.is_terminal)

    def act(self, title: str) -> None:
        """The next part begins."""
        self._act += 1
        self.say()
        self.say(f"[bold]{self._act}. {title}[/bold]")

    def line(self, at_s: float, who: str, text: str) -> None:
        """A line about one process."""
        colour = self._state.processes[who].colour
        self.say(f"[dim]{at_s:6.1f} s[/dim]  [{colour}]{who}[/{colour}]  {text}")

    def note(self, at_s: float, text: str) -> None:
        """A line about no process in particular."""
        self.say(f"[dim]{at_s:6.1f} s       {text}[/dim]")

    def fact(self, name: str, text: str, holds: bool | None = None) -> bool:
        """A line of the report; with `holds`, a check and whether it passed."""
        from rich.table import Table

        mark = {True: "[green]ok[/green]  ", False: "[bold red]FAIL[/bold red]", None: "    "}[holds]
        if self._out.is_terminal:
            row = Table.grid()
            row.add_row(f"  {mark}  {name:<11}", text)
            self.say(row)
        else:
            self.say(f"  {mark}  {name:<11}{text}")
        return holds is not False

    def open(self) -> None:
        """Begin to show the fleet."""
        if self._out.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()

    def show(self, at_s: float) -> None:
        """Show the fleet as it is now, if it is time."""
        if self._live is not None:
            if at_s - self._shown_s >= REFRESH_S:
                self._shown_s = at_s
                self._live.update(self._picture(at_s), refresh=True)
            return
        state = self._state
        if state.ended >= self._announced + state.total // 5:
            self._announced = state.ended // (state.total // 5) * (state.total // 5)
            self.say(f"{at_s:6.1f} s       {state.ended:,} of {state.total:,} tasks have ended")

    def close(self) -> None:
        """Leave only the lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _picture(self, at_s: float) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        state = self._state
        top = Table.grid(padding=(0, 2))
        waiting = max(0, state.total - state.ended)
        top.add_row(
            ProgressBar(state.total, state.ended, width=BAR),
            f"{waiting:,} pending",
            f"[green]{len(state.done):,} done[/green]",
            f"[red]{len(state.failed):,} failed[/red]",
            f"[dim]{at_s:.0f} s[/dim]",
        )
        crew = Table.grid(padding=(0, 2))
        for each in state.processes.values():
            said = each.shown(at_s)
            style = (
                "red" if said in ("killed", "paused") else "dim" if each.state not in ("works", "ran", "folds") else ""
            )
            styled = f"[{style}]{clean(said)}[/{style}]" if style else clean(said)
            name = f"[{each.colour}]{each.name}[/{each.colour}]"
            crew.add_row("", name, f"[dim]pid {each.pid}[/dim]", f"{each.count:>5,} {each.unit}", styled)
        return Group("", top, crew)

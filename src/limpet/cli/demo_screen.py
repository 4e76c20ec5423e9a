"""How `limpet demo` looks: lines that stay, and below them, on a terminal, a picture of the fleet that moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limpet.cli.shared import clean

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

IDLE_AFTER_S = 0.8
REFRESH_S = 0.1
BAR = 30
MARGIN = " " * 15
"""Before what is said by nobody in particular: the time and a name would stand there."""


@dataclass(slots=True)
class Member:
    """What is known of one process, and how much it did: a worker in tasks, a compiler in objects that it merged."""

    name: str
    colour: str
    unit: str
    pid: int = 0
    state: str = "starting"
    batch: int = 0
    count: int = 0
    heard_s: float = 0.0

    def now(self, at_s: float) -> str:
        """Its state, for people."""
        match self.state:
            case "ran" if at_s - self.heard_s > IDLE_AFTER_S:
                return "looks for work"
            case "works" | "ran":
                return f"works on batch {self.batch}"
            case "folds":
                return "folds shards"
            case state:
                return state


@dataclass(slots=True)
class Board:
    """What is known of the whole demo, from what its processes tell."""

    total: int
    crew: dict[str, Member]
    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    folds: int = 0
    """How often a shard was written anew, as far as compilers could tell."""

    @property
    def ended(self) -> int:
        """Tasks with a verdict."""
        return len(self.done) + len(self.failed)


class Screen:
    """Prints. Without a terminal only lines, and now and then how far it is."""

    def __init__(self, out: Console, board: Board) -> None:
        self._out = out
        self._board = board
        self._live: Live | None = None
        self._shown_s = 0.0
        self._told = 0
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
        """What befell one process."""
        colour = self._board.crew[who].colour
        self.say(f"[dim]{at_s:6.1f} s[/dim]  [{colour}]{who}[/{colour}]  {text}")

    def note(self, at_s: float, text: str) -> None:
        """What else there is to know."""
        self.say(f"[dim]{at_s:6.1f} s       {text}[/dim]")

    def fact(self, name: str, text: str, holds: bool | None = None) -> bool:
        """A line of the report; with `holds` a promise, and whether it was kept."""
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
        board = self._board
        if board.ended >= self._told + board.total // 5:
            self._told = board.ended // (board.total // 5) * (board.total // 5)
            self.say(f"{at_s:6.1f} s       {board.ended:,} of {board.total:,} tasks have ended")

    def close(self) -> None:
        """Leave only the lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _picture(self, at_s: float) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        board = self._board
        top = Table.grid(padding=(0, 2))
        waiting = max(0, board.total - board.ended)
        top.add_row(
            ProgressBar(board.total, board.ended, width=BAR),
            f"{waiting:,} pending",
            f"[green]{len(board.done):,} done[/green]",
            f"[red]{len(board.failed):,} failed[/red]",
            f"[dim]{at_s:.0f} s[/dim]",
        )
        crew = Table.grid(padding=(0, 2))
        for each in board.crew.values():
            said = each.now(at_s)
            style = (
                "red" if said in ("killed", "paused") else "dim" if each.state not in ("works", "ran", "folds") else ""
            )
            state = f"[{style}]{clean(said)}[/{style}]" if style else clean(said)
            name = f"[{each.colour}]{each.name}[/{each.colour}]"
            crew.add_row("", name, f"[dim]pid {each.pid}[/dim]", f"{each.count:>5,} {each.unit}", state)
        return Group("", top, crew)

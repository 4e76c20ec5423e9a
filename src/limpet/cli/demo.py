"""`limpet demo`: processes contend for one lock, its holder is killed, and a late write is refused."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.cli.demo_crew import LOCK, TTL_S, Crew, Event
from limpet.cli.shared import EXIT_FAILED, console, lines
from limpet.errors import Invalid

if TYPE_CHECKING:
    from rich.console import Console

    from limpet.runtime import Runtime

__all__ = ["EPILOG", "demo"]

EPILOG = lines(
    "Example:",
    "$ limpet demo",
    "$ limpet demo --url s3://bucket/prefix",
    "Exit codes: 0 all went as promised; 1 something did not; 2 wrong usage.",
)

CREW = {"ada": "cyan", "ben": "magenta", "cyd": "yellow"}
TURNS = 2


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
    keep: Annotated[bool, typer.Option("--keep", help="Leave what was written, to look at it.")] = False,
) -> None:
    """Watch a lock survive kill -9, in half a minute. Nothing to set up.

    Three processes take turns with one lock. The holder is killed; another takes over with a higher token; a late
    write with the dead one's old token is refused. It is a check too: the exit code tells.
    """
    from limpet.runtime import system

    out = console()
    with _place(url, system(), keep=keep) as place:
        show = _Show(place, out, system(), kept=keep)
        try:
            show.run()
        finally:
            show.crew.close()
    if not show.kept_promises:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _place(url: str | None, runtime: Runtime, *, keep: bool) -> Iterator[str]:
    """A URL where nothing is yet; what the demo writes there is removed afterwards."""
    from limpet.app.urls import store_for
    from limpet.store import DirectoryStore

    if url is not None and url.startswith("memory:"):
        raise Invalid("the demo's processes cannot share memory", hint="use a folder or a bucket, or no --url at all")
    if url is None:
        place = tempfile.mkdtemp(prefix="limpet-demo-")
    else:
        base, mark, query = url.partition("?")
        place = f"{base.rstrip('/')}/limpet-demo-{runtime.new_id()}{mark}{query}"
    try:
        yield place
    finally:
        store = store_for(place, runtime)
        if isinstance(store, DirectoryStore) and not keep:
            shutil.rmtree(store.root, ignore_errors=True)
        elif not keep:
            store.delete_many([stat.key for stat in store.list()])


class _Show:
    """The story in four scenes. What the workers report is kept, and held against the store at the end."""

    def __init__(self, place: str, out: Console, runtime: Runtime, *, kept: bool) -> None:
        self.crew = Crew(place, runtime)
        self.kept_promises = False
        self._place = place
        self._kept = kept
        self._out = out
        self._written: list[tuple[str, int]] = []
        self._lock = ""

    def run(self) -> None:
        """Play it, then print what the store says.   Raises: Unsupported for a store that ignores conditions."""
        import limpet

        self._set_up = limpet.open(self._place).meter.snapshot().requests
        self._out.print("[bold]Limpet demo[/bold]: three processes, one lock, one kill -9")
        self._say(f"[dim]Everything lies in {self._place}. No server runs; a bucket works just the same.[/dim]")
        self._take_turns()
        victim, token = self._kill_the_holder()
        takeover_s = self._take_over(token)
        refused = self._write_late(victim, token)
        self._report(takeover_s, token, refused)

    def _take_turns(self) -> None:
        self._scene(1, f"All three want the lock '{LOCK}', {TURNS} turns each. The holder adds a row to a cell.")
        for name in CREW:
            self.crew.start(name)
            for _ in range(TURNS):
                self.crew.order(name, "turn")
        for _ in range(TURNS * len(CREW)):
            self._until("frees")

    def _kill_the_holder(self) -> tuple[str, int]:
        holder, *others = CREW
        self._scene(2, f"Now {holder} takes it and is killed, before it can free the lock. The others wait.")
        self.crew.order(holder, "stay")
        token = int(self._until("wrote").fields["token"])
        for name in others:
            self.crew.order(name, "stay")
        for _ in others:
            self._until("waits")
        pid = self.crew.pid(holder)
        self.crew.kill(holder)
        self._line(holder, f"[bold red]killed with -9[/bold red] (pid {pid}), holding token {token}")
        self._note(f"the store still says 'held': a lease lasts {TTL_S:g} s without a heartbeat")
        return holder, token

    def _take_over(self, dead_token: int) -> float:
        """How long after the kill the lock was taken over."""
        killed_at_s = self.crew.elapsed_s()
        takeover_s = self._until("got").at_s - killed_at_s
        self._note(f"taken over {takeover_s:.1f} s after the kill; token {dead_token} is too old from now on")
        for _ in range(len(CREW) - 1):
            self.crew.order(self._until("wrote").who, "go")
            self._until("frees")
        return takeover_s

    def _write_late(self, victim: str, token: int) -> bool:
        """Whether the dead one's late write was refused."""
        self._scene(3, f"A write that {victim} sent before it died arrives only now, with its token {token}.")
        self.crew.start(victim, "late", self._lock, str(token))
        return self._until("refused", "accepted").what == "refused"

    def _until(self, *what: str) -> Event:
        """Show events up to and with the first of these kinds."""
        event = self._next()
        while event.what not in what:
            event = self._next()
        return event

    def _next(self) -> Event:
        """The next event, shown."""
        event = self.crew.next()
        told = event.fields
        match event.what:
            case "waits":
                self._line(event.who, f"[dim]waits: {self.crew.name_of(told['by'])} holds it[/dim]", event.at_s)
            case "got":
                self._lock = told["lock"]
                self._line(event.who, f"[green]has the lock[/green], token [bold]{told['token']}[/bold]", event.at_s)
            case "wrote":
                self._written.append((event.who, told["token"]))
                self._line(event.who, f"wrote row {told['rows']} with token {told['token']}", event.at_s)
            case "frees":
                self._line(event.who, "frees the lock", event.at_s)
            case "refused":
                self._line(event.who, f"[bold red]refused[/bold red], {told['kind']}: {told['message']}", event.at_s)
            case "accepted":
                self._line(event.who, f"[bold red]was let in with token {told['token']}[/bold red]", event.at_s)
        return event

    def _report(self, takeover_s: float, dead_token: int, refused: bool) -> None:
        """Hold what the workers reported against what the store has."""
        import limpet
        from limpet.store.prices import AS_OF, dollars

        self._scene(4, "What the store holds, read back by a process that may only read.")
        fleet = limpet.open(self._place, read_only=True)
        seen, lock = fleet.cell(LOCK).read(), fleet.lock_seen(LOCK)
        assert seen is not None
        assert lock is not None
        rows = [(str(by), int(token)) for by, token in seen.value["rows"]]
        tokens = [token for _, token in rows]
        lost = len({*self._written} - {*rows})
        rising = tokens == [*range(1, lock.value.token + 1)]
        kept = sorted(self._written, key=lambda row: row[1]) == rows
        next_token = dead_token + 1
        promises = [
            self._fact("tokens", f"1 to {lock.value.token}, each for one holder", rising),
            self._fact("writes", f"{len(self._written)} acknowledged, {lost} writes lost", kept),
            self._fact("takeover", f"{takeover_s:.1f} s after the kill, with token {next_token}", next_token in tokens),
            self._fact("fencing", f"{int(refused)} late write refused", refused),
        ]
        spent = sum(map(Counter, self.crew.requests.values()), Counter(self._set_up))
        spent.update(fleet.meter.snapshot().requests)
        by_verb = ", ".join(f"{count} {verb.upper()}" for verb, count in spent.most_common())
        self._fact("requests", f"{spent.total()} by all processes: {by_verb}")
        self._fact("price", f"${dollars(spent, 's3'):.5f}, had it been S3 (list prices of {AS_OF})")
        self.kept_promises = all(promises)
        self._farewell()

    def _farewell(self) -> None:
        self._out.print()
        if not self.kept_promises:
            self._say("[bold red]Something did not go as promised: please report this output.[/bold red]")
            return
        self._say("[bold green]All as promised.[/bold green] Your turn:")
        if self._kept:
            self._say(f"  [cyan]limpet lock show {LOCK} --url '{self._place}'[/cyan]")
        self._say(
            "  [cyan]limpet lock run backup --url ./fleet -- sleep 30[/cyan]   (and the same in a second terminal)"
        )

    def _scene(self, number: int, title: str) -> None:
        self._out.print()
        self._say(f"[bold]{number}. {title}[/bold]")

    def _line(self, who: str, text: str, at_s: float | None = None) -> None:
        at_s = self.crew.elapsed_s() if at_s is None else at_s
        self._say(f"[dim]{at_s:6.1f} s[/dim]  [{CREW[who]}]{who}[/{CREW[who]}]  {text}")

    def _note(self, text: str) -> None:
        self._say(f"[dim]{self.crew.elapsed_s():6.1f} s[/dim]       [dim]{text}[/dim]")

    def _fact(self, name: str, text: str, holds: bool | None = None) -> bool:
        mark = {True: "[green]ok[/green]  ", False: "[bold red]FAIL[/bold red]", None: "    "}[holds]
        self._say(f"  {mark}  {name:<10}{text}")
        return holds is not False

    def _say(self, text: str) -> None:
        self._out.print(text, soft_wrap=True)

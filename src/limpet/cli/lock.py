"""`limpet lock`: run a command under a lock, and look at locks."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.options import JsonOption, UrlOption, existing, opened
from limpet.cli.output import EXIT_FAILED, ago, clean, complain, console, lines, now_of, print_json, say
from limpet.errors import Invalid, LimpetError, Missing

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.lease import LockState

EXIT_NOT_FOUND = 127

app = typer.Typer(
    name="lock",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run a command under a lock, and look at locks.",
    epilog=lines(
        "Example: at most one backup at a time, on any number of machines",
        "$ limpet lock run backup -u s3://acme/prod --ttl 60 -- ./backup.sh",
    ),
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The lock's name.", show_default=False)]


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise typer.BadParameter(f"{text!r} is no number of seconds")
    return value


def _seconds_or_none(text: str) -> float:
    return math.inf if text == "none" else _seconds(text)


@app.command(
    epilog=lines(
        "Example: a cron job on many machines, of which one runs and the others leave at once",
        "$ limpet lock run nightly -u s3://acme/prod -- ./report.sh",
        "Example: wait up to ten minutes for our turn",
        "$ limpet lock run deploy -u s3://acme/prod --wait 600 -- ./deploy.sh --all",
        "Exit codes: the command's own, 128 + n if signal n ended it; 75 the lock is held; 70 the lease was lost and "
        "the command ended; 127 there is no such command; 2 wrong usage; 1 anything else.",
    )
)
def run(
    name: NameArgument,
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="What to run, with its arguments, behind `--`.", show_default=False),
    ],
    url: UrlOption = None,
    ttl: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long the lock outlives us if we die. Renewed every third of it."),
    ] = 60.0,
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", parser=_seconds, help="How long to wait while it is held; inf: for ever."),
    ] = 0.0,
    stall: Annotated[
        float,
        typer.Option(
            metavar="SECONDS|none",
            parser=_seconds_or_none,
            show_default="none",
            help="Stop renewing after so long: a command that hangs then loses the lock, and is ended.",
        ),
    ] = math.inf,
) -> None:
    """Run a command while holding a lock.

    The lock is renewed while the command runs, and freed when it ends. The command finds LIMPET_TOKEN, LIMPET_LOCK
    and LIMPET_URL in its environment. The token is higher than every earlier holder's: hand it on to whatever can
    refuse an older one.

    A lock whose holder died is taken over once its ttl has passed and it was seen unchanged for a third of the ttl
    plus 2 s. We stay that long even with --wait 0, so that a cron job does take over.

    SIGTERM, SIGINT and SIGHUP are passed on to the command's process group. If the lease is lost, or limpet is
    stopped past its ttl or killed (by kill -9 too), the whole group gets SIGTERM, and SIGKILL 5 s later.
    """
    from limpet.worker.command import run_locked

    if shutil.which(command[0]) is None:
        complain(Missing(f"there is no command {command[0]!r}", hint="check its spelling and PATH; nothing was locked"))
        raise typer.Exit(EXIT_NOT_FOUND)
    stall_s = None if stall == math.inf else stall
    raise typer.Exit(run_locked(opened(url), name, command, ttl_s=ttl, wait_s=wait, stall_s=stall_s))


@app.command(
    epilog=lines(
        "Example:",
        "$ limpet lock ls -u s3://acme/prod",
        "Exit codes: 0 listed; 1 no fleet there, or it cannot be read; 2 wrong usage.",
    )
)
def ls(url: UrlOption = None, json: JsonOption = False) -> None:
    """List every lock that was ever used. Changes nothing.

    The state is free, held, or overdue: held, but not renewed for longer than its ttl. The next who wants an overdue
    lock takes it over.
    """
    from limpet.lease import lock_state

    fleet = opened(url, read_only=True)
    bad: list[dict[str, Any]] = []
    seen = list(fleet.locks(on_error=lambda key, error: bad.append(unreadable(key, error))))
    now = now_of(*(each.modified for each in seen))
    found = [lock_state(each, now) for each in seen]
    if json:
        print_json([*found, *bad])
        return
    out = console()
    if not found and not bad:
        out.print(f"no lock was ever used at {fleet.url}", soft_wrap=True, markup=False)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for title in ("lock", "state", "holder"):
        table.add_column(title, overflow="fold")
    for title in ("token", "last heartbeat", "ttl"):
        table.add_column(title, justify="right", no_wrap=True)
    for lock in found:
        holder = clean(lock.holder) if lock.state != "free" else "-"
        cells = [str(lock.token), f"{ago(lock.age_s)} ago", f"{lock.ttl_s:g} s"]
        table.add_row(clean(lock.name), _state(lock.state), holder, *cells)
    for facts in bad:
        table.add_row(clean(facts["key"]), "[red]unreadable[/red]", clean(facts["error"]), "-", "-", "-")
    out.print(table)
    out.print("\n[dim]Heartbeats are stamped by the store's clock; a free lock's is its last change.[/dim]")


@app.command(
    epilog=lines(
        "Example:",
        "$ limpet lock show backup -u s3://acme/prod",
        "Exit codes: 0 shown; 1 there is no such lock or fleet; 2 wrong usage.",
    )
)
def show(name: NameArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Show one lock: who holds it, with which token, since when. Changes nothing."""
    from limpet.keys import lock_key

    fleet = opened(url, read_only=True)
    lock = replace(_found(fleet, name), key=lock_key(name))
    if json:
        print_json(lock)
        return
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    held = lock.state != "free"
    table.add_row("lock", clean(lock.name))
    table.add_row("state", _state(lock.state))
    table.add_row("holder" if held else "last holder", clean(f"{lock.holder}  ({lock.worker_id})"))
    table.add_row("token", f"{lock.token}  (the next holder gets {lock.token + 1})")
    table.add_row("taken", f"{lock.taken_at:%Y-%m-%d %H:%M:%S} UTC, by the holder's clock")
    stamp = f"{lock.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC, by the store's clock: {ago(lock.age_s)} ago"
    table.add_row("last heartbeat" if held else "last change", stamp)
    table.add_row("ttl", f"{lock.ttl_s:g} s")
    table.add_row("key", clean(lock_key(name)))
    console().print(table)


@app.command(
    "break",
    epilog=lines(
        "Example: the holder's machine is gone for good, and its ttl is an hour",
        "$ limpet lock break backup -u s3://acme/prod",
        "Exit codes: 0 the lock is free; 1 no such lock or fleet, or you said no; 2 wrong usage, or no terminal.",
    ),
)
def break_(
    name: NameArgument,
    url: UrlOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also replace a record that cannot be read, or has no higher token to give.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Free a lock, even if it is held.

    A holder that is alive learns of it at its next renewal (a third of its ttl) and stops. The token is kept, so the
    next holder's is higher, and what the old holder writes through Limpet is refused once the next token has written.

    A lock whose record is damaged cannot be taken. --force replaces it; the next token is the time in milliseconds,
    which is higher than any that was counted up. Stop what uses the lock first.
    """
    fleet = existing(url)
    if force:
        _replace_damaged(fleet, name, yes=yes, json=json)
    before = _found(fleet, name)
    was_held = before.state != "free"
    if was_held and not yes:
        if not sys.stdin.isatty():
            raise Invalid(
                f"lock {name!r} is held by {before.holder}, and there is no terminal to ask", hint="add --yes"
            )
        said = f"{before.holder} holds {name!r} with token {before.token}; last heartbeat {ago(before.age_s)} ago"
        say(f"{said}.", err=True)
        if not typer.confirm("Break it?", err=True):
            say("nothing was changed", err=True)
            raise typer.Exit(EXIT_FAILED)
    if was_held:
        fleet.lock(name).break_()
    if json:
        print_json({"name": name, "broken": was_held, "was": before})
    elif not was_held:
        say(f"{name!r} is free already; nothing was changed")
    else:
        say(
            f"{name!r} is free. The next holder gets token {before.token + 1}; what {before.holder} still writes "
            f"with token {before.token} is refused once that one has written."
        )


def _replace_damaged(fleet: Fleet, name: str, *, yes: bool, json: bool) -> None:
    """Replace a record that cannot be taken, and exit. Returns for one that is in order."""
    why = fleet.lock(name).damage()
    if why is None:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise Invalid(f"lock {name!r} is damaged, and there is no terminal to ask", hint="add --yes")
        say(f"{name!r} is damaged: {why}.", err=True)
        if not typer.confirm("Replace it?", err=True):
            say("nothing was changed", err=True)
            raise typer.Exit(EXIT_FAILED)
    token = fleet.lock(name).break_(force=True).token
    if json:
        print_json({"name": name, "replaced": why, "token": token})
    else:
        say(f"{name!r} was damaged ({why}) and is free now. The next holder gets token {token + 1}.")
    raise typer.Exit


def _found(fleet: Fleet, name: str) -> LockState:
    """The lock `name` as it is now.   Raises: Missing for one that was never used."""
    from limpet.lease import lock_state

    seen = fleet.lock_seen(name)
    if seen is None:
        raise Missing(f"there is no lock {name!r}", hint="`limpet lock ls` shows those there are")
    return lock_state(seen, now_of(seen.modified))


def unreadable(key: str, error: LimpetError) -> dict[str, Any]:
    """A lock that cannot be read, as JSON has it."""
    return {"key": key, "state": "unreadable", "error": str(error)}


def _state(state: str) -> str:
    colour = {"held": "green", "overdue": "red"}.get(state)
    return f"[{colour}]{state}[/{colour}]" if colour else state

"""`limpet lock`: run a command under a lock, and look at locks."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import limpet
from limpet import cli
from limpet.cli import ago, answer, clean, complain, confirm, pairs, print_json, say, table, when
from limpet.cli.drop import DryRunOption
from limpet.cli.options import JsonOption, UrlOption, YesOption
from limpet.cli.parse import Argument, BadParameter, Exit, Option, group, lines
from limpet.kernel.errors import Missing

if TYPE_CHECKING:
    from limpet.app import Fleet

EXIT_NOT_FOUND = 127


NameArgument = Annotated[str, Argument(metavar="NAME", help="The lock's name.")]


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise BadParameter(f"{text!r} is not a number of seconds")
    return value


def run(
    name: NameArgument,
    command: Annotated[list[str], Argument(metavar="COMMAND", help="What to run, with its arguments, behind `--`.")],
    url: UrlOption = None,
    ttl: Annotated[
        float,
        Option(
            metavar="SECONDS", help="How long the lock stays held if limpet dies. It is renewed every third of that."
        ),
    ] = 60.0,
    wait: Annotated[
        float,
        Option(metavar="SECONDS", parser=_seconds, help="How long to wait while it is held; inf: without a limit."),
    ] = 0.0,
    stall: Annotated[
        float,
        Option(
            metavar="SECONDS|none",
            parser=lambda text: math.inf if text == "none" else _seconds(text),
            show_default="none",
            help="Stop renewing after this time: a command that hangs then loses the lock, and is ended.",
        ),
    ] = math.inf,
) -> None:
    """Run a command while holding a lock.

    The lock is renewed while the command runs, and freed when it ends. The command finds LIMPET_TOKEN, LIMPET_LOCK
    and LIMPET_URL in its environment. The token is higher than every earlier holder's: pass it to every
    service that can refuse an older one.

    A lock whose holder died is taken over once its ttl has passed and it was seen unchanged for a third of the ttl
    plus 2 s. limpet waits that long even with --wait 0, so that a cron job does take over.

    SIGTERM, SIGINT and SIGHUP are passed on to the command's process group. If the lease is lost, or limpet is
    stopped past its ttl or killed (by kill -9 too), the whole group gets SIGTERM, and SIGKILL 5 s later.

    Example: a cron job on many machines, of which one runs and the others leave at once
    $ limpet lock run nightly -u s3://acme/prod -- ./report.sh
    Example: wait up to ten minutes for the lock
    $ limpet lock run deploy -u s3://acme/prod --wait 600 -- ./deploy.sh --all
    Exit codes: the command's own, 128 + n if signal n ended it; 75 the lock is held; 70 the lease was lost and the
      command ended; 127 there is no such command; 2 wrong usage; 1 anything else.
    """
    from limpet.worker.command import run_locked

    if shutil.which(command[0]) is None:
        complain(Missing(f"there is no command {command[0]!r}", hint="check its spelling and PATH; nothing was locked"))
        raise Exit(EXIT_NOT_FOUND)
    stall_s = None if stall == math.inf else stall
    raise Exit(run_locked(limpet.open(url).check(), name, command, ttl_s=ttl, wait_s=wait, stall_s=stall_s))


def ls(url: UrlOption = None, json: JsonOption = False) -> None:
    """List every lock that was ever used. Changes nothing.

    The state is free, held, or overdue: held, but not renewed for longer than its ttl. The next process that
    asks for an overdue lock takes it over.

    Example:
    $ limpet lock ls -u s3://acme/prod
    Exit codes: 0 listed; 1 no fleet there, or it cannot be read; 2 wrong usage.
    """
    from limpet.app.health import lock_states

    fleet = limpet.open(url, read_only=True).check()
    found = lock_states(fleet)
    if json:
        bad = [{"key": key, "state": "unreadable", "error": error} for key, error in found.unreadable.items()]
        print_json([*found.locks, *bad])
        return
    if not found.locks and not found.unreadable:
        say(f"no lock was ever used at {fleet.url}")
        return
    figures = ("token", "last heartbeat", "ttl")
    listed = table("lock", "state", "holder", *figures, right=figures)
    for lock in found.locks:
        holder = clean(lock.holder) if lock.state != "free" else "-"
        cells = [str(lock.token), f"{ago(lock.age_s)} ago", f"{lock.ttl_s:g} s"]
        listed.add_row(clean(lock.name), _state(lock.state), holder, *cells)
    for key, error in found.unreadable.items():
        listed.add_row(clean(key), "[red]unreadable[/red]", clean(error), "-", "-", "-")
    cli.show(listed, "\n[dim]Heartbeats are stamped by the store's clock; a free lock's is its last change.[/dim]")


def show(name: NameArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Show one lock: who holds it, with which token, since when. Changes nothing.

    Example:
    $ limpet lock show backup -u s3://acme/prod
    Exit codes: 0 shown; 1 there is no such lock or fleet; 2 wrong usage.
    """
    from limpet.app.health import lock_state_of
    from limpet.kernel.keys import lock_key

    lock = replace(lock_state_of(limpet.open(url, read_only=True).check(), name), key=lock_key(name))
    if json:
        print_json(lock)
        return
    held = lock.state != "free"
    rows = {
        "lock": clean(lock.name),
        "state": _state(lock.state),
        "holder" if held else "last holder": clean(f"{lock.holder}  ({lock.worker_id})"),
        "token": f"{lock.token}  (the next holder gets {lock.token + 1})",
        "taken": f"{when(lock.taken_at)}, by the holder's clock",
        "last heartbeat" if held else "last change": f"{when(lock.heartbeat_at)}, by the store's clock: "
        f"{ago(lock.age_s)} ago",
        "ttl": f"{lock.ttl_s:g} s",
        "key": clean(lock_key(name)),
    }
    cli.show(pairs(rows.items()))


def break_(
    name: NameArgument,
    url: UrlOption = None,
    yes: YesOption = False,
    force: Annotated[
        bool, Option(help="Also replace a record that cannot be read, or has no higher token to give.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Free a lock, even if it is held.

    A holder that is alive learns of it at its next renewal (a third of its ttl) and stops. The token is kept, so the
    next holder's is higher, and what the old holder writes through Limpet is refused once the next token has written.

    A lock whose record is damaged cannot be taken. --force replaces it; the next token is the time in milliseconds,
    which is higher than any that was counted up. Stop what uses the lock first.

    Example: the holder's machine is gone for good, and its ttl is an hour
    $ limpet lock break backup -u s3://acme/prod
    Exit codes: 0 the lock is free; 1 no such lock or fleet, or you said no; 2 wrong usage, or no terminal.
    """
    from limpet.app.health import lock_state_of

    fleet = limpet.open(url, create=False).check()
    if force:
        _replace_damaged(fleet, name, yes=yes, json=json)
    before = lock_state_of(fleet, name)
    was_held = before.state != "free"
    if was_held and not yes:
        held = f"lock {name!r} is held by {before.holder} with token {before.token}"
        confirm(f"{held}; last heartbeat {ago(before.age_s)} ago", "Break it?")
    if was_held:
        fleet.lock(name).break_()
    text = (
        f"{name!r} is free. The next holder gets token {before.token + 1}; what {before.holder} still writes "
        f"with token {before.token} is refused once that one has written."
    )
    facts = {"name": name, "broken": was_held, "was": before}
    answer(facts, text if was_held else f"{name!r} is free already; nothing was changed", json=json)


def drop(
    name: NameArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a lock that no process holds from `limpet lock ls`. Its name can be used again.

    A record of it stays, so that the next holder gets a higher token than every earlier one.

    Example:
    $ limpet lock drop backup -u s3://acme/prod
    Exit codes: 0 dropped; 1 no such lock or fleet, or you said no; 2 wrong usage, or no terminal; 75 it is held.
    """
    from limpet.app.health import lock_state_of

    fleet = limpet.open(url, create=False, read_only=dry_run).check()
    lock = lock_state_of(fleet, name)
    facts = {"name": name, "dropped": not dry_run, "was": lock}
    if dry_run:
        text = f"would be dropped: lock {name!r}, which is {lock.state}; the next holder gets token {lock.token + 1}"
        answer(facts, text, json=json)
        return
    if not yes and lock.state == "free":  # one that is held is refused without a question
        confirm(f"lock {name!r} is free, and was last held by {lock.holder}", "Drop it?")
    fleet.lock(name).drop()
    answer(facts, f"dropped lock {name!r}; the next holder gets token {lock.token + 1}", json=json)


def _replace_damaged(fleet: Fleet, name: str, *, yes: bool, json: bool) -> None:
    """Replace a record that cannot be taken, and exit. Returns for one that is in order."""
    why = fleet.lock(name).damage()
    if why is None:
        return
    if not yes:
        confirm(f"lock {name!r} is damaged: {why}", "Replace it?")
    token = fleet.lock(name).break_(force=True).token
    text = f"{name!r} was damaged ({why}) and is free now. The next holder gets token {token + 1}."
    answer({"name": name, "replaced": why, "token": token}, text, json=json)
    raise Exit


def _state(state: str) -> str:
    colour = {"held": "green", "overdue": "red"}.get(state)
    return f"[{colour}]{state}[/{colour}]" if colour else state


app = group(
    "lock",
    run,
    ls,
    show,
    break_,
    drop,
    epilog=lines(
        "Example: at most one backup at a time, on any number of machines",
        "$ limpet lock run backup -u s3://acme/prod --ttl 60 -- ./backup.sh",
    ),
)

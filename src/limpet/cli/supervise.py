"""`limpet supervise`: sync a node's own directory with the bucket."""

from __future__ import annotations

import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli import ago, many
from limpet.cli.options import JsonOption, SignalFlag
from limpet.records import printable

if TYPE_CHECKING:
    from limpet.queue.sync import Collision, Cycle, SyncEvent


LocalOption = Annotated[
    Path, typer.Option("--local", metavar="DIR", help="The node's own fleet: a directory on this machine.")
]
RemoteOption = Annotated[
    str, typer.Option("--remote", metavar="URL", envvar="LIMPET_REMOTE", help="The bucket that all nodes share.")
]
UpOption = Annotated[
    float, typer.Option("--up", metavar="SECONDS", min=1.0, help="How often to send what was done here.")
]
DownOption = Annotated[
    float, typer.Option("--down", metavar="SECONDS", min=1.0, help="How often to apply what the others did.")
]
NodeOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", show_default="made at the first start, then kept", help="The name of this node in the bucket."
    ),
]
QueueOption = Annotated[
    list[str] | None,
    typer.Option("--queue", "-q", metavar="NAME", show_default="all", help="Pull only this queue. May be repeated."),
]
OnceOption = Annotated[bool, typer.Option("--once", help="One cycle in both directions, then exit.")]


def supervise(
    local: LocalOption,
    remote: RemoteOption,
    up: UpOption = 300.0,
    down: DownOption = 3600.0,
    node: NodeOption = None,
    queue: QueueOption = None,
    once: OnceOption = False,
    json: JsonOption = False,
) -> None:
    """Let this machine work offline on its own directory, and sync that with the bucket at intervals.

    Everything that is pushed or done on a node reaches the bucket and every other node; a completion is never undone.
    Two nodes may run one task, because they learn of each other late: that is reported as a collision.

    The first start marks both places as supervised. Processes that opened one of them before that must be restarted:
    they do not journal what they do.

    Example: a Raspberry Pi that works with or without a network
    $ limpet supervise --local ~/fleet --remote s3://acme/prod
    $ limpet work app:fleet --url ~/fleet
    Example: bring everything up to date once, in a cron job, or before the machine is switched off
    $ limpet supervise --local ~/fleet --remote s3://acme/prod --once
    Signals: on SIGTERM, SIGINT and SIGHUP it finishes the cycle and exits; on SIGUSR1 it syncs at once.
    Exit codes: 0 stopped by a signal, or (--once) in sync; 1 refused, or (--once) the bucket cannot be reached; 2
      wrong usage; 70 the machine slept and another supervisor took over; 75 another supervisor works on the directory.
    """
    from limpet.app.fleet import open_node, open_shared
    from limpet.queue.sync import Cycle, Supervisor
    from limpet.runtime import system
    from limpet.worker.signals import STOP_SIGNALS, SignalPipe

    runtime = system()

    def write(event: SyncEvent) -> None:
        if once or not isinstance(event, Cycle) or not event.quiet:
            _write(event, runtime.wall(), json=json)

    with SignalPipe.catching((*STOP_SIGNALS, signal.SIGUSR1)) as signals:
        stop = SignalFlag(signals)
        here = open_node(local, remote)
        there = open_shared(remote, stop, write, once=once)
        if there is None:
            return
        supervisor = Supervisor(here.store, there.store, runtime, node=node, queues=queue, up_s=up, down_s=down)
        stop.on_usr1 = supervisor.ask
        if once:
            supervisor.once(write)
        else:
            supervisor.run(stop, write)


def _write(event: SyncEvent, at: datetime, *, json: bool) -> None:
    """Print what happened: one JSON object on stdout, or lines on stderr."""
    from limpet import records

    fields, said = _shown(event)
    if json:
        print(records.encode({"at": at, **fields}).decode(), flush=True)
        return
    for line in said:
        print(f"{at:%H:%M:%S}Z {line}", file=sys.stderr, flush=True)


def _shown(event: SyncEvent) -> tuple[dict[str, Any], list[str]]:
    """The JSON object and the lines of text that show an event."""
    from dataclasses import asdict

    from limpet.queue.sync import Blocked, Disconnected, Reconnected

    match event:
        case Disconnected(error):
            fields = {"event": "away", "error": str(error), "hint": error.hint}
            return fields, [f"away  {error}; the node keeps working offline"]
        case Blocked(error):
            fields = {"event": "blocked", "error": str(error), "hint": error.hint}
            return fields, [f"stuck {error}; it is retried", *([f"      {error.hint}"] if error.hint else [])]
        case Reconnected(after_s):
            return {"event": "back", "after_s": round(after_s, 1)}, [f"back  after {ago(after_s)}"]
        case cycle:
            fields = asdict(cycle)
            lines = [f"{cycle.direction:<5} {_counts(cycle)}", *map(_collision, cycle.collisions)]
            # Names may come from another program: `printable` keeps control characters from the terminal.
            lines += [f"bad   {printable(name)} cannot be read; the rest is synced" for name in cycle.unreadable]
            return {"event": fields.pop("direction"), **fields}, lines


def _counts(cycle: Cycle) -> str:
    kinds = [(cycle.pushes, "push", "pushes"), (cycle.ends, "end", "ends"), (cycle.leases, "lease", "leases")]
    kinds.append((cycle.dropped, "dropped", "dropped"))
    said = ", ".join(many(*kind) for kind in kinds if kind[0]) or "nothing new"
    return f"{said}, by a full pull" if cycle.fresh else said


def _collision(collision: Collision) -> str:
    what = {
        "run": "was run twice",
        "lease": "is held here and elsewhere",
        "payload": "was pushed with two payloads, of which one counts",
    }[collision.kind]
    other = f" ({printable(collision.other)})" if collision.other else ""
    return f"twice task {collision.entry!r} of queue {collision.queue!r} {what}{other}"

"""`limpet supervise`: sync a node's own directory with the bucket."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.options import JsonOption
from limpet.cli.output import ago, lines, many, printable

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.queue.sync import Collision, Cycle, Supervisor, SyncEvent
    from limpet.runtime import Runtime
    from limpet.worker.signals import SignalPipe

RETRY_MIN_S = 5.0
RETRY_MAX_S = 300.0

EPILOG = lines(
    "Example: a Raspberry Pi that works with or without a network",
    "$ limpet supervise --local ~/fleet --remote s3://acme/prod",
    "$ limpet work app:fleet --url ~/fleet",
    "Example: bring everything up to date once, in a cron job or before pulling the plug",
    "$ limpet supervise --local ~/fleet --remote s3://acme/prod --once",
    "Signals: on SIGTERM, SIGINT and SIGHUP it finishes the cycle and exits; on SIGUSR1 it syncs at once.",
    "Exit codes: 0 stopped by a signal, or (--once) in sync; 1 refused, or (--once) the bucket cannot be reached; 2 "
    "wrong usage; 70 the machine slept and another supervisor took over; 75 another supervisor works on the directory.",
)

LocalOption = Annotated[
    Path,
    typer.Option(
        "--local", metavar="DIR", show_default=False, help="The node's own fleet: a directory on this machine."
    ),
]
RemoteOption = Annotated[
    str,
    typer.Option(
        "--remote", metavar="URL", show_default=False, envvar="LIMPET_REMOTE", help="The bucket that all nodes share."
    ),
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
        metavar="NAME",
        show_default="made at the first start, then kept",
        help="The name of this node in the bucket.",
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
    """
    from limpet.queue.sync import Supervisor
    from limpet.runtime import system
    from limpet.worker.signals import STOP_SIGNALS, SignalPipe

    runtime = system()
    writer = _EventWriter(runtime, as_json=json, quiet=not once)
    with SignalPipe.catching((*STOP_SIGNALS, signal.SIGUSR1)) as signals:
        stop = _SignalFlag(signals)
        here = _node_fleet(local, remote)
        there = _shared_fleet(remote, writer, stop, runtime, once=once)
        if there is None:
            return
        supervisor = Supervisor(here.store, there.store, runtime, node=node, queues=queue, up_s=up, down_s=down)
        stop.supervisor = supervisor
        if once:
            supervisor.once(writer.write)
        else:
            supervisor.run(stop, writer.write)


class _SignalFlag:
    """A flag that a signal raises; SIGUSR1 asks for a cycle instead."""

    def __init__(self, signals: SignalPipe) -> None:
        self.supervisor: Supervisor | None = None
        self._signals = signals
        self._up = False

    def set(self) -> None:
        self._up = True
        self._signals.wake()

    def is_set(self) -> bool:
        for number in self._signals.read():
            if number != signal.SIGUSR1:
                self._up = True
            elif self.supervisor is not None:
                self.supervisor.ask()
        return self._up

    def wait(self, timeout: float) -> bool:
        import select

        if not self.is_set():
            select.select([self._signals.fd], [], [], timeout)
        return self.is_set()


def _node_fleet(local: Path, remote: str) -> Fleet:
    """Open the node's own fleet and mark it as one.   Raises: Invalid for a directory that other nodes share."""
    import limpet
    from limpet.errors import Invalid

    if local.expanduser().resolve() == Path(remote.removeprefix("file://")).expanduser().resolve():
        raise Invalid("--local and --remote are the same directory", hint="give the node a directory of its own")
    fleet = limpet.open(local)
    if "supervised" in fleet.record.features and "node" not in fleet.record.features:
        raise Invalid(f"{local} is the bucket of other nodes", hint="give this node a directory of its own")
    fleet.enable("node", "supervised")
    return fleet


def _shared_fleet(
    remote: str, writer: _EventWriter, stop: _SignalFlag, runtime: Runtime, *, once: bool
) -> Fleet | None:
    """Open the shared fleet and mark it as one that has nodes, retrying while it cannot be reached; None if stopped."""
    import limpet
    from limpet.errors import Invalid, OutcomeUnknown, Unavailable
    from limpet.queue.sync import Disconnected, Reconnected

    failed = False
    began_s = runtime.elapsed_s()
    pause_s = RETRY_MIN_S
    while not stop.is_set():
        try:
            fleet = limpet.open(remote)
            if "node" in fleet.record.features:
                raise Invalid(f"{remote} is the directory of one node", hint="--remote is what all nodes share")
            fleet.enable("supervised")
        except (Unavailable, OutcomeUnknown) as error:
            if once:
                raise
            if not failed:
                writer.write(Disconnected(error))
            failed = True
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            continue
        if failed:
            writer.write(Reconnected(runtime.elapsed_s() - began_s))
        return fleet
    return None


class _EventWriter:
    """Prints a line for each cycle in which something happened, and when the bucket is lost or found again."""

    def __init__(self, runtime: Runtime, *, as_json: bool, quiet: bool) -> None:
        self._runtime = runtime
        self._as_json = as_json
        self._quiet = quiet

    def write(self, event: SyncEvent) -> None:
        """Print an event."""
        from limpet import records
        from limpet.queue.sync import Cycle

        if isinstance(event, Cycle) and event.quiet and self._quiet:
            return
        at = self._runtime.wall()
        fields, lines = _shown(event)
        if self._as_json:
            print(records.encode({"at": at, **fields}).decode(), flush=True)
            return
        for line in lines:
            print(f"{at:%H:%M:%S}Z {line}", file=sys.stderr, flush=True)


def _shown(event: SyncEvent) -> tuple[dict[str, Any], list[str]]:
    """The JSON object and the lines of text that show an event."""
    from dataclasses import asdict

    from limpet.queue.sync import Blocked, Disconnected, Reconnected

    match event:
        case Disconnected(error):
            fields = {"event": "away", "error": str(error), "hint": error.hint}
            return fields, [f"away  {error}; the node goes on working offline"]
        case Blocked(error):
            fields = {"event": "blocked", "error": str(error), "hint": error.hint}
            return fields, [f"stuck {error}; it is retried", *([f"      {error.hint}"] if error.hint else [])]
        case Reconnected(after_s):
            return {"event": "back", "after_s": round(after_s, 1)}, [f"back  after {ago(after_s)}"]
        case cycle:
            fields = asdict(cycle)
            lines = [f"{cycle.direction:<5} {_counts(cycle)}", *map(_collision, cycle.collisions)]
            # Names may come from another program: `printable` keeps control characters from the terminal.
            lines += [f"bad   {printable(name)} cannot be read; the rest goes on" for name in cycle.unreadable]
            return {"event": fields.pop("direction"), **fields}, lines


def _counts(cycle: Cycle) -> str:
    kinds = [(cycle.pushes, "push", "pushes"), (cycle.ends, "end", "ends"), (cycle.leases, "lease", "leases")]
    kinds.append((cycle.dropped, "dropped", "dropped"))
    said = ", ".join(many(*kind) for kind in kinds if kind[0]) or "nothing new"
    return f"{said}, pulled afresh" if cycle.fresh else said


def _collision(collision: Collision) -> str:
    what = {
        "run": "was run twice",
        "lease": "is held here and elsewhere",
        "payload": "was pushed with two payloads, of which one counts",
    }[collision.kind]
    other = f" ({printable(collision.other)})" if collision.other else ""
    return f"twice task {collision.entry!r} of queue {collision.queue!r} {what}{other}"

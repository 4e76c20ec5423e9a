"""`limpet supervise`: keep a node's own directory and the bucket in step."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.queue_options import many
from limpet.cli.shared import JsonOption, ago, lines, printable

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.queue.sync import Collision, Cycle, Event, Supervisor
    from limpet.runtime import Runtime
    from limpet.worker.signals import SignalPipe

RETRY_MIN_S = 5.0
RETRY_MAX_S = 300.0

EPILOG = lines(
    "Example: a Raspberry Pi that works whether or not the network is there",
    "$ limpet supervise --local ~/fleet --remote s3://acme/prod",
    "$ limpet work app:fleet --url ~/fleet",
    "Example: bring everything up to date once, in a cron job or before pulling the plug",
    "$ limpet supervise --local ~/fleet --remote s3://acme/prod --once",
    "Signals: SIGTERM, SIGINT and SIGHUP let it finish the cycle and leave; SIGUSR1 lets it sync at once.",
    "Exit codes: 0 told to stop, or (--once) in step; 1 refused, or (--once) the bucket is away; 2 wrong usage; 70 the "
    "machine slept and another supervisor took over; 75 another supervisor works on the directory.",
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
    float, typer.Option("--down", metavar="SECONDS", min=1.0, help="How often to bring what the others did.")
]
NodeOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default="made at the first start, then kept",
        help="What this node is called in the bucket.",
    ),
]
QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", "-q", metavar="NAME", show_default="all", help="Bring only this queue here. May be repeated."
    ),
]
OnceOption = Annotated[bool, typer.Option("--once", help="One cycle in both directions, then leave.")]


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
    """Let this machine work offline on a directory of its own, and bring it and the bucket together now and then.

    Whatever is pushed or done on a node reaches the bucket and every other node; a completion is never undone. Two
    nodes may run one task, because they hear of each other late: that is reported as a collision.

    The first start marks both places as supervised. Processes that opened one of them before that must be started
    again: they do not note what they do.
    """
    from limpet.queue.sync import Supervisor
    from limpet.runtime import system
    from limpet.worker.signals import STOP_SIGNALS, SignalPipe

    runtime = system()
    teller = _Teller(runtime, as_json=json, quiet=not once)
    with SignalPipe.catching((*STOP_SIGNALS, signal.SIGUSR1)) as signals:
        stop = _Stop(signals, runtime)
        here = _node_fleet(local, remote)
        there = _shared_fleet(remote, teller, stop, runtime, once=once)
        if there is None:
            return
        supervisor = Supervisor(here.store, there.store, runtime, node=node, queues=queue, up_s=up, down_s=down)
        stop.supervisor = supervisor
        if once:
            supervisor.once(teller.tell)
        else:
            supervisor.run(stop, teller.tell)


class _Stop:
    """A flag that a signal raises; SIGUSR1 asks for a cycle instead."""

    def __init__(self, signals: SignalPipe, runtime: Runtime) -> None:
        self.supervisor: Supervisor | None = None
        self._signals = signals
        self._runtime = runtime
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
    """The node's own fleet, marked as one.   Raises: Invalid for the directory that is the others' bucket."""
    import limpet
    from limpet.errors import Invalid

    if local.expanduser().resolve() == Path(remote.removeprefix("file://")).expanduser().resolve():
        raise Invalid("--local and --remote are the same directory", hint="give the node a directory of its own")
    fleet = limpet.open(local)
    if "supervised" in fleet.record.features and "node" not in fleet.record.features:
        raise Invalid(f"{local} is the bucket of other nodes", hint="give this node a directory of its own")
    fleet.enable("node", "supervised")
    return fleet


def _shared_fleet(remote: str, teller: _Teller, stop: _Stop, runtime: Runtime, *, once: bool) -> Fleet | None:
    """The shared fleet, marked as one that has nodes. While it is away, wait; None when told to stop meanwhile."""
    import limpet
    from limpet.errors import Invalid, LimpetError, OutcomeUnknown, Unavailable
    from limpet.queue.sync import Away, Back

    away: LimpetError | None = None
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
            if away is None:
                teller.tell(Away(error))
            away = error
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            continue
        if away is not None:
            teller.tell(Back(runtime.elapsed_s() - began_s))
        return fleet
    return None


class _Teller:
    """One line for each cycle in which something happened, and for each change of the weather."""

    def __init__(self, runtime: Runtime, *, as_json: bool, quiet: bool) -> None:
        self._runtime = runtime
        self._as_json = as_json
        self._quiet = quiet

    def tell(self, event: Event) -> None:
        """Write an event down."""
        from limpet import records
        from limpet.queue.sync import Cycle

        if isinstance(event, Cycle) and event.quiet and self._quiet:
            return
        at = self._runtime.wall()
        if self._as_json:
            print(records.encode({"at": at, **_facts(event)}).decode(), flush=True)
            return
        for line in _lines(event):
            print(f"{at:%H:%M:%S}Z {line}", file=sys.stderr, flush=True)


def _facts(event: Event) -> dict[str, Any]:
    from dataclasses import asdict

    from limpet.queue.sync import Away, Back, Blocked

    match event:
        case Away(error):
            return {"event": "away", "error": str(error), "hint": error.hint}
        case Blocked(error):
            return {"event": "blocked", "error": str(error), "hint": error.hint}
        case Back(after_s):
            return {"event": "back", "after_s": round(after_s, 1)}
        case _:
            fields = asdict(event)
            return {"event": fields.pop("direction"), **fields}


def _lines(event: Event) -> list[str]:
    from limpet.queue.sync import Away, Back, Blocked

    match event:
        case Away(error):
            return [f"away  {error}; working on with what is here"]
        case Blocked(error):
            return [f"stuck {error}; it is tried again", *([f"      {error.hint}"] if error.hint else [])]
        case Back(after_s):
            return [f"back  after {ago(after_s)}"]
        case _:
            return [f"{event.direction:<5} {_counts(event)}", *map(_collision, event.collisions), *_unreadable(event)]


def _counts(cycle: Cycle) -> str:
    kinds = [(cycle.pushes, "push", "pushes"), (cycle.ends, "end", "ends"), (cycle.leases, "lease", "leases")]
    kinds.append((cycle.dropped, "dropped", "dropped"))
    said = ", ".join(many(*kind) for kind in kinds if kind[0]) or "nothing new"
    return f"{said}, pulled afresh" if cycle.fresh else said


def _collision(collision: Collision) -> str:
    what = {
        "run": "was run twice",
        "lease": "is worked on here and elsewhere",
        "payload": "was pushed with two payloads, of which one counts",
    }[collision.kind]
    other = f" ({printable(collision.other)})" if collision.other else ""
    return f"twice task {collision.entry!r} of queue {collision.queue!r} {what}{other}"


def _unreadable(cycle: Cycle) -> list[str]:
    """One line each. Their names are a stranger's, and must not write to the terminal what they like."""
    return [f"bad   {printable(name)} cannot be read; the rest goes on" for name in cycle.unreadable]

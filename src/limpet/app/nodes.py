"""Fleets that are joined: the directory of one node, the place that nodes share, and whether a URL still holds the
fleet that was opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from limpet.app.fleet import Fleet, open
from limpet.app.record import NODE, SUPERVISED, check_record, record_cell
from limpet.kernel.errors import Invalid, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.runtime import Flag, system
from limpet.kernel.waiting import attempts

if TYPE_CHECKING:
    from limpet.queue.sync import RemoteFleet, SyncEvent

RECONNECT_MIN_S = 5.0
RECONNECT_MAX_S = 300.0


def open_node(local: Path, remote: str) -> Fleet:
    """The fleet of one node among those that share `remote`: its own directory, which is marked as one.

    Raises: Invalid for a URL, and for a directory that nodes share.   Cost: as `Fleet.check`, 1 GET and at most 1 PUT.
    """
    if str(local).startswith(("s3:/", "gs:/", "az:/", "sqs:/", "memory:/")):  # a path has no double slash
        raise Invalid(f"--local is a directory of this machine, not {local}", hint="the bucket is --remote")
    if local.expanduser().resolve() == Path(remote.removeprefix("file://")).expanduser().resolve():
        raise Invalid(
            "--local and --remote are the same directory", hint="give --local a directory that only this node uses"
        )
    fleet = open(local)
    if SUPERVISED in fleet.record.features and NODE not in fleet.record.features:
        raise Invalid(f"{local} is the bucket of other nodes", hint="give --local a directory that only this node uses")
    fleet.enable(NODE, SUPERVISED)
    return fleet


def open_shared(
    remote: str, stop: Flag, on_event: Callable[[SyncEvent], None], *, once: bool, create: bool
) -> Fleet | None:
    """The fleet that nodes share, marked as one: processes that open it from now on journal what they do in its queues.

    While it cannot be reached, this is reported once and tried again; None if `stop` is raised. With `once` it is an
    error. Raises: Missing if there is no fleet, unless `create`; Invalid for the directory of one node.
    Cost: as `Fleet.check`, 1 GET and at most 1 PUT.
    """
    from limpet.queue.sync import Disconnected, Reconnected

    began_s = system().elapsed_s()
    for tries in attempts(system(), None, RECONNECT_MIN_S, longest_s=RECONNECT_MAX_S, stop=stop):
        try:
            fleet = open(remote, create=create).check()
            if NODE in fleet.record.features:
                raise Invalid(f"{remote} is the directory of one node", hint="--remote is what all nodes share")
            fleet.enable(SUPERVISED)
            fleet.identify()
        except Missing as error:
            error.hint = "check --remote; with --create a new fleet is set up there"
            raise
        except (Unavailable, OutcomeUnknown) as error:
            if once:
                raise
            if tries == 1:
                on_event(Disconnected(error))
            continue
        if tries > 1:
            on_event(Reconnected(system().elapsed_s() - began_s))
        return fleet
    return None


def check_same(fleet: Fleet) -> None:
    """Return if the fleet at this URL is the one that was opened, as it was restored last.

    Raises: Invalid, Missing.   Cost: 1 GET.
    """
    opened, now = fleet.record, record_cell(fleet.store, fleet.runtime).read()
    if now is None:
        raise Missing(f"there is no fleet at {fleet.url} any more", hint="was it deleted? stop this process")
    ids = {record.id for record in (opened, now.value) if record.id}
    if len(ids) > 1 or (opened.epoch or 0) != (now.value.epoch or 0):
        what = "restored from a backup" if len(ids) == 1 else f"replaced by fleet {now.value.id}"
        raise Invalid(
            f"the fleet at {fleet.url} was {what} since this process began",
            hint="start this process again, if that is meant",
        )


def home_of(shared: Fleet) -> RemoteFleet:
    """Which fleet is at that URL now.   Raises: Missing; Unsupported while it is being restored.   Cost: 1 GET."""
    from limpet.queue.sync import RemoteFleet

    seen = record_cell(shared.store, shared.runtime).read()
    if seen is None:
        raise Missing(f"there is no fleet at {shared.url}", hint="was it deleted, or is the URL another one?")
    check_record(seen.value, where=shared.url)
    return RemoteFleet(seen.value.id or None, seen.value.epoch or 0)

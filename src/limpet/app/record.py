"""`limpet.json`, which records the formats of a fleet, so that a version of Limpet that does not know them refuses to
use it: `check_record`, `may_write`, `enabled` and `upgraded` are pure rules; `Connector` reads the record, or sets up a
new fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec

from limpet.kernel import keys
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.errors import Conflict, Denied, Invalid, Missing, Unsupported
from limpet.kernel.records import Count, Name
from limpet.kernel.runtime import Runtime
from limpet.kernel.store import Store
from limpet.kernel.store.probe import Findings, probe_conditions, use_etag_style

LEVEL = 1
"""What this version of Limpet can read and write; `min_reader` and `min_writer` are compared with it."""

CURRENT = {"queue": 1, "index": 1, "catalog": 1}
"""The newest format of each room that this version writes."""

SUPERVISED = "supervised"
NODE = "node"
BACKUP = "backup"
"""In the `features` of a copy that `limpet backup` made: it can be read, and no worker uses it."""
RESTORING = "restoring"
"""In the `features` of a fleet that `limpet restore` has not finished: it cannot be used yet."""
FEATURES = frozenset({SUPERVISED, NODE})
"""The optional features that this version knows. `supervised`: queues here are joined with those of other places, by
journals and logs. `node`: this is one node's own directory among them."""


DROPPING_MAX = 100


class FleetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `limpet.json` beside the cell's header."""

    format: Annotated[dict[Name, Count], msgspec.Meta(max_length=100)]
    min_reader: Count
    min_writer: Count
    features: Annotated[list[Name], msgspec.Meta(max_length=100)]
    probe: Findings
    id: Name | msgspec.UnsetType = msgspec.UNSET
    """Tells this fleet from every other one. Limpet 0.1 does not know it, nor what follows."""
    epoch: Count | msgspec.UnsetType = msgspec.UNSET
    """Raised by each restore of a backup, and not set before the first: what was pushed in another epoch may have
    recorded steps."""
    dropping: Annotated[list[Name], msgspec.Meta(max_length=DROPPING_MAX)] | msgspec.UnsetType = msgspec.UNSET
    """Queues that are being dropped, or were when a process died: their drop records tell."""


def fresh(probe: Findings, id_: str | msgspec.UnsetType = msgspec.UNSET) -> FleetRecord:
    """The record of a new fleet."""
    return FleetRecord(format=dict(CURRENT), min_reader=LEVEL, min_writer=LEVEL, features=[], probe=probe, id=id_)


def identified(record: FleetRecord, id_: str) -> FleetRecord | None:
    """The record with an id; None if it has one."""
    return None if record.id else msgspec.structs.replace(record, id=id_)


def check_record(record: FleetRecord, *, where: str) -> None:
    """Return if this version of Limpet may read the fleet.   Raises: Unsupported, naming what is too new."""
    if RESTORING in record.features:
        raise Unsupported(
            f"the fleet at {where} is being restored", hint="if that was interrupted, run `limpet restore` again"
        )
    newer = [
        f"{room if room.isprintable() else repr(room)} format {n}"
        for room, n in sorted(record.format.items())
        if n > CURRENT.get(room, 0)
    ]
    unknown = [f"feature {name!r}" for name in sorted(record.features) if name not in {*FEATURES, BACKUP}]
    if record.min_reader > LEVEL:
        newer.append(f"readers of level {record.min_reader}")
    if newer or unknown:
        raise Unsupported(
            f"the fleet at {where} uses {', '.join(newer + unknown)}, which this limpet does not know",
            hint="upgrade limpet here: pip install -U limpet",
        )


def may_write(record: FleetRecord) -> bool:
    """Whether this version of Limpet may write to the fleet.   Raises: Unsupported for a backup of a fleet."""
    if BACKUP in record.features:
        raise Unsupported("this is a backup", hint="`limpet restore` makes a fleet of it; or open it read-only")
    return record.min_writer <= LEVEL


def enabled(record: FleetRecord, features: Sequence[str]) -> FleetRecord | None:
    """The record with these features; None when it has them already.   Raises: Invalid for an unknown feature."""
    for name in features:
        if name not in FEATURES:
            raise Invalid(f"there is no feature {name!r}", hint=f"there are {', '.join(sorted(FEATURES))}")
    if {*features} <= {*record.features}:
        return None
    return msgspec.structs.replace(record, features=sorted({*record.features, *features}))


def upgraded(record: FleetRecord) -> FleetRecord | None:
    """The record after `limpet upgrade`; None when there is nothing to raise. Nothing is ever lowered."""
    raised = msgspec.structs.replace(
        record,
        format={room: max(n, CURRENT.get(room, 0)) for room, n in (CURRENT | record.format).items()},
        min_reader=max(record.min_reader, LEVEL),
        min_writer=max(record.min_writer, LEVEL),
    )
    return raised if raised != record else None


def announce_drop(store: Store, runtime: Runtime, queue: str, dropping: bool) -> None:
    """Note that a queue is being dropped, or is no more, for those who open the fleet from now on.

    Cost: 1 GET + at most 1 PUT.
    """

    def change(record: FleetRecord | None) -> FleetRecord | None:
        if record is None:
            return None
        before = record.dropping or []
        names = [name for name in before if name != queue] + [queue] * dropping
        if names == before or len(names) > DROPPING_MAX:
            return None
        return msgspec.structs.replace(record, dropping=names or msgspec.UNSET)

    record_cell(store, runtime).update(change)


def epoch_for(store: Store, runtime: Runtime, record: Callable[[], FleetRecord], queue: str) -> int:
    """The epoch of the fleet, for whoever is about to push to a queue.

    Raises: Unsupported for a queue that is being dropped.   Cost: nothing; 1 GET if limpet.json says that it may be.
    """
    seen = record()
    if seen.dropping and queue in seen.dropping:
        from limpet.kernel.drop import BEGUN, being_dropped, drop_cell

        with suppress(Denied):
            drop = drop_cell(store, keys.QueueKeys.of(queue).drop, runtime).read()
            if drop is not None and drop.value.stage in BEGUN:
                raise being_dropped("queue", queue)
    return seen.epoch or 0


def record_cell(store: Store, runtime: Runtime) -> Cell[FleetRecord]:
    """The cell `limpet.json`."""
    return Cell(store, keys.FLEET, struct_codec(FleetRecord), runtime)


@dataclass(slots=True)
class Connector:
    """Connects to the fleet at a URL; `is_new` says afterwards whether this process set the fleet up."""

    where: str
    runtime: Runtime
    read_only: bool
    create: bool
    is_new: bool = False

    def connect(self, store: Store) -> FleetRecord:
        """Read limpet.json, or set the fleet up.   Raises, Cost: see `Fleet.check`."""
        seen = record_cell(store, self.runtime).read()
        if seen is None and not self.create:
            raise Missing(
                f"there is no fleet at {self.where}", hint="check the URL; opening it for writing creates one"
            )
        found = seen.value if seen else self._set_up(store)
        check_record(found, where=self.where)
        if not self.read_only and not may_write(found):
            raise Unsupported(
                f"the fleet at {self.where} wants writers of level {found.min_writer}",
                hint="upgrade limpet here (pip install -U limpet), or open it with read_only=True",
            )
        use_etag_style(store, found.probe.etag_style)
        return found

    def _set_up(self, store: Store) -> FleetRecord:
        cell = record_cell(store, self.runtime)
        try:
            made = cell.create(fresh(probe_conditions(store, runtime=self.runtime), self.runtime.new_id())).value
        except Conflict:  # another process set it up first
            seen = cell.read()
            assert seen is not None
            return seen.value
        except Denied as error:
            raise Denied(
                f"there is no fleet at {self.where} yet, and it cannot be set up: {error}",
                hint="open it once with a key that may write",
            ) from error
        self.is_new = True
        return made

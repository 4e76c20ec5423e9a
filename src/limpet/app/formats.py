"""`limpet.json`: which formats a fleet is written in, and whether this version of Limpet may touch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from limpet.errors import Invalid, Unsupported
from limpet.records import Count, Name
from limpet.store.probe import Findings

LEVEL = 1
"""What this version of Limpet can read and write; `min_reader` and `min_writer` are compared with it."""

CURRENT = {"queue": 1, "index": 1, "catalog": 1}
"""The newest format of each room that this version writes."""

SUPERVISED = "supervised"
NODE = "node"
BACKUP = "backup"
"""In the `features` of a copy that `limpet backup` made: it may be read, and nobody works on it."""
RESTORING = "restoring"
"""In the `features` of a fleet that `limpet restore` has not finished: it cannot be used yet."""
FEATURES = frozenset({SUPERVISED, NODE})
"""The optional features that this version knows. `supervised`: queues here are joined with those of other places, by
journals and logs. `node`: this is one node's own directory among them."""


class FleetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `limpet.json` beside the cell's header."""

    format: Annotated[dict[Name, Count], msgspec.Meta(max_length=100)]
    min_reader: Count
    min_writer: Count
    features: Annotated[list[Name], msgspec.Meta(max_length=100)]
    probe: Findings


def fresh(probe: Findings) -> FleetRecord:
    """The record of a new fleet."""
    return FleetRecord(format=dict(CURRENT), min_reader=LEVEL, min_writer=LEVEL, features=[], probe=probe)


def check(record: FleetRecord, *, where: str) -> None:
    """Whether this version of Limpet may read the fleet.   Raises: Unsupported, saying what is too new."""
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
    """The record with these features; None when it has them already.   Raises: Invalid for one that there is not."""
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

"""The updates that writers send all day, on plain JSON: a commit costs what it adds, not what the table has.

The outcome is what PyIceberg's own updates give, which the tests compare. Whatever else a client asks for, and metadata
that another program wrote, goes by PyIceberg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from limpet import records
from limpet.catalog.refusals import CommitFailed
from limpet.errors import Invalid

Json = dict[str, Any]

MAIN = "main"
LOG_MAX_PROPERTY, LOG_MAX = "write.metadata.previous-versions-max", 100


_MANY = 1 << 20
_Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Short = Annotated[str, msgspec.Meta(max_length=1 << 20)]


class _Snapshot(msgspec.Struct, rename="kebab"):
    snapshot_id: _Long
    timestamp_ms: _Long
    parent_snapshot_id: _Long | None = None


class _Of(msgspec.Struct, rename="kebab"):
    snapshot_id: _Long


class _Table(msgspec.Struct, rename="kebab"):
    """What is looked at here, and its types."""

    format_version: Literal[2]
    table_uuid: _Short
    last_updated_ms: _Long
    last_sequence_number: _Long
    last_column_id: _Long
    current_schema_id: _Long
    default_spec_id: _Long
    default_sort_order_id: _Long
    last_partition_id: _Long
    properties: Annotated[dict[_Short, _Short], msgspec.Meta(max_length=_MANY)]
    snapshots: Annotated[list[_Snapshot], msgspec.Meta(max_length=_MANY)]
    snapshot_log: Annotated[list[_Of], msgspec.Meta(max_length=_MANY)]
    metadata_log: Annotated[
        list[Annotated[dict[_Short, _Short | _Long], msgspec.Meta(max_length=16)]], msgspec.Meta(max_length=_MANY)
    ]
    refs: Annotated[dict[_Short, _Of], msgspec.Meta(max_length=_MANY)]
    statistics: Annotated[list[_Of], msgspec.Meta(max_length=_MANY)]
    current_snapshot_id: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | msgspec.UnsetType = msgspec.UNSET


def fits(data: bytes) -> bool:
    """Whether metadata is updated here: it is of version 2, and has all that PyIceberg and we write."""
    try:
        table = records.decoder(_Table).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return table.current_snapshot_id is msgspec.UNSET or MAIN in table.refs


def updated(table: Json, updates: Sequence[Json], metadata_location: str, now_ms: int) -> Json | None:
    """The metadata after those updates; None if they change nothing. `table` itself is left as it is.

    Raises: CommitFailed for a snapshot that was made for an older table; Invalid.
    """
    work = _Work(dict(table), now_ms)
    for update in updates:
        _APPLY[update["action"]](work, update)
    if not work.changed:
        return None
    new = work.table
    limit = _log_limit(new["properties"])
    entry = {"metadata-file": metadata_location, "timestamp-ms": table["last-updated-ms"]}
    new["metadata-log"] = [*new["metadata-log"][-(limit - 1) :], entry] if limit > 1 else [entry]
    if new["last-updated-ms"] == table["last-updated-ms"]:
        new["last-updated-ms"] = now_ms
    return new


class _Work:
    """Metadata that is being changed. What it holds is replaced, never changed: older metadata holds the same."""

    def __init__(self, table: Json, now_ms: int) -> None:
        self.table = table
        self.now_ms = now_ms
        self.changed = False
        self.added: set[int] = set()

    def snapshot(self, id_: int) -> Json | None:
        """The snapshot of that id."""
        # the one that is looked for is nearly always the newest
        return next((each for each in reversed(self.table["snapshots"]) if each["snapshot-id"] == id_), None)

    def set(self, **fields: Any) -> None:
        """Give fields new values."""
        self.table.update({name.replace("_", "-"): value for name, value in fields.items()})
        self.changed = True


def is_stale(number: int, last: int, parent: int | None) -> bool:
    """Whether a snapshot was made for an older table, by its sequence number and that of the table.

    A snapshot without a parent builds on nothing, so it is never stale: a concurrent CREATE OR REPLACE TABLE adds one.
    The table's own number does not go back for it.
    """
    return number <= last and parent is not None


def stale(number: int, last: int) -> CommitFailed:
    """The refusal of a stale snapshot, in the words of the reference implementation."""
    return CommitFailed(f"Cannot add snapshot with sequence number {number} older than last sequence number {last}")


def _add_snapshot(work: _Work, update: Json) -> None:
    new, last = update["snapshot"], work.table["last-sequence-number"]
    number = new.get("sequence-number") or 0
    if is_stale(number, last, new.get("parent-snapshot-id")):
        raise stale(number, last)
    if work.snapshot(new["snapshot-id"]) is not None:
        raise Invalid(f"Snapshot already exists for id: {new['snapshot-id']}")
    work.added.add(new["snapshot-id"])
    work.set(
        last_updated_ms=new["timestamp-ms"],
        last_sequence_number=max(number, last),
        snapshots=[*work.table["snapshots"], new],
    )


def _set_ref(work: _Work, update: Json) -> None:
    name = update["ref-name"]
    ref = {key: value for key, value in update.items() if key not in ("action", "ref-name")}
    if work.table["refs"].get(name) == ref:
        return
    snapshot = work.snapshot(ref["snapshot-id"])
    if snapshot is None:
        raise Invalid(f"Cannot set {name} to unknown snapshot: {ref['snapshot-id']}")
    at_ms = snapshot["timestamp-ms"] if ref["snapshot-id"] in work.added else work.now_ms
    if name == MAIN:
        entry = {"snapshot-id": ref["snapshot-id"], "timestamp-ms": at_ms}
        work.set(current_snapshot_id=ref["snapshot-id"], snapshot_log=[*work.table["snapshot-log"], entry])
    if name == MAIN or ref["snapshot-id"] in work.added:
        work.set(last_updated_ms=at_ms)
    work.set(refs={**work.table["refs"], name: ref})


def _remove_ref(work: _Work, update: Json) -> None:
    name = update["ref-name"]
    if name not in work.table["refs"]:
        return
    work.set(refs={key: ref for key, ref in work.table["refs"].items() if key != name})
    if name == MAIN:
        work.table.pop("current-snapshot-id", None)


def _remove_snapshots(work: _Work, update: Json) -> None:
    table = work.table
    gone = {*update["snapshot-ids"]} & {each["snapshot-id"] for each in table["snapshots"]}
    if not gone:
        return
    for name in [name for name, ref in table["refs"].items() if ref["snapshot-id"] in gone]:
        _remove_ref(work, {"ref-name": name})
    work.set(
        snapshots=[_orphaned(each, gone) for each in table["snapshots"] if each["snapshot-id"] not in gone],
        snapshot_log=[each for each in table["snapshot-log"] if each["snapshot-id"] not in gone],
        statistics=[each for each in table["statistics"] if each["snapshot-id"] not in gone],
    )


def _orphaned(snapshot: Json, gone: set[int]) -> Json:
    if snapshot.get("parent-snapshot-id") not in gone:
        return snapshot
    return {key: value for key, value in snapshot.items() if key != "parent-snapshot-id"}


def _set_properties(work: _Work, update: Json) -> None:
    if update["updates"]:
        work.set(properties={**work.table["properties"], **update["updates"]})


def _remove_properties(work: _Work, update: Json) -> None:
    gone = {*update["removals"]} & {*work.table["properties"]}
    if gone:
        work.set(properties={key: value for key, value in work.table["properties"].items() if key not in gone})


def _log_limit(properties: Mapping[str, str]) -> int:
    try:
        return max(1, int(properties.get(LOG_MAX_PROPERTY, LOG_MAX)))
    except ValueError:
        raise Invalid(f"the property {LOG_MAX_PROPERTY} must be a whole number") from None


_APPLY: Mapping[str, Callable[[_Work, Json], None]] = {
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_ref,
    "remove-snapshot-ref": _remove_ref,
    "remove-snapshots": _remove_snapshots,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
}

ACTIONS = frozenset(_APPLY)
"""The updates that are known here."""

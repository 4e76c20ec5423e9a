"""What the pages show, as plain values for JSON. Every function reads, and none changes anything.

Text that was stored by others is cut to a bounded length here; the page shows it as text, never as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.app.fleet import Fleet, demand_queue, inspection
from limpet.app.history import DepthHistory, FinishRate, FleetHistory
from limpet.app.indexes import demand_index
from limpet.app.overview import CappedStore, FleetOverview
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing
from limpet.kernel.keys import TASK, IndexKeys, QueueKeys
from limpet.kernel.store.metered import AS_OF
from limpet.queue.entry import read_task
from limpet.queue.inspect import Inspection, kind_of
from limpet.queue.storage import Storage
from limpet.queue.summary import QueueSummary
from limpet.ui.receipts import PAYLOAD_CHARS_MAX, EndedTasks, ReceiptRows, cut

if TYPE_CHECKING:
    from limpet.catalog.catalog import Catalog
    from limpet.catalog.records import CommitRecord, Row

ENTRIES_SHOWN = 100
QUARANTINE_SHOWN = 50
NAMES_SHOWN = 2000
COMMITS_SHOWN = 50
SNAPSHOTS_SHOWN = 50
ROWS_SHOWN = 500
NOTES_SHOWN = 10
TEXT_CHARS_MAX = 20_000
CELL_CHARS_MAX = 1000
STEP_CHARS_MAX = 2000
NAME_CHARS_MAX = 200
STEPS_SHOWN = 200
SEARCHED_BYTES_MAX = 64 << 10
"""Larger tasks are not searched."""
PROBES = 3
NOT_IN_OVERVIEW = ("sizes", "backlog", "columns")
KINDS = {"n": "namespace", "t": "table", "v": "view"}


def json_text(value: Any) -> str:
    """A JSON value as indented text of bounded length."""
    try:
        return cut(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), TEXT_CHARS_MAX)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return cut(repr(value), TEXT_CHARS_MAX)


# ---- the overview ----


def overview_facts(
    found: FleetOverview, history: FleetHistory, versions: Mapping[str, int], wait_s: float
) -> dict[str, Any]:
    """The overview, for the live feed. `wait_s`: when the fleet is looked at again if nothing changes."""
    return {
        "url": found.url,
        "at": found.at,
        "wait_s": round(wait_s, 1),
        "versions": versions,
        "sampled": found.sampled,
        "queues": [
            _queue_facts(each, history.rate(found, each.queue), history.depth(found, each.queue))
            for each in found.queues
        ],
        "uncounted": found.uncounted,
        "locks": {
            "locks": [asdict(each) for each in found.locks.locks],
            "unreadable": {key: cut(error) for key, error in found.locks.unreadable.items()},
            "more": found.locks.more,
        },
        "indexes": [
            {name: value for name, value in asdict(each).items() if name not in NOT_IN_OVERVIEW}
            | {"trouble": cut(each.trouble)}
            for each in found.indexes
        ],
        "indexes_more": found.indexes_more,
        "catalog": None if found.catalog is None else asdict(found.catalog),
        "workers": None
        if found.workers is None
        else {"workers": [asdict(each) for each in found.workers.workers], "more": found.workers.more},
        "alerts": [asdict(each) for each in found.alerts],
        "limits": asdict(found.limits),
        "bill": None if found.bill is None else {**asdict(found.bill), "prices_of": AS_OF},
        "trouble": {part: cut(error) for part, error in found.trouble.items()},
        "read_at": found.read_at,
    }


def _queue_facts(each: QueueSummary, rate: FinishRate | None, depth: DepthHistory | None) -> dict[str, Any]:
    return {
        **each.facts(),
        "minutes": rate.minutes if rate and any(rate.minutes) else (),
        "per_minute": rate.per_minute if rate else None,
        "rate_source": rate.source if rate else None,
        "rate_at_least": bool(rate and rate.at_least),
        "depth": depth.minutes if depth and any(depth.minutes) else (),
        "depth_source": depth.source if depth else None,
        "depth_since": depth.since if depth else None,
        "depth_at_least": bool(depth and depth.at_least),
    }


# ---- a queue ----


def queue_facts(fleet: Fleet, name: str, rows: ReceiptRows | None = None) -> dict[str, Any]:
    """What is at work, rests, is scheduled and has failed in a queue.   Raises: Missing; Unsupported on SQS.

    Receipts of failed tasks that cannot be read are passed over, and counted.
    Cost: 4 LISTs; 1 GET for each of the first 100 entries that has a lease, and for each receipt in failed/ that is not
    in `rows`, until 200 failed tasks are found.
    """
    if name not in fleet.queues():
        demand_queue(fleet, fleet.queue(name))
    inspection(fleet, name, "list its tasks")  # of a folder of a directory with more than 999 objects any 1,000
    reader = Inspection(Storage(CappedStore(fleet.store, fleet.runtime), QueueKeys.of(name), fleet.runtime))
    pending = [*islice(reader.entries("pending"), ENTRIES_SHOWN + 1)]
    scheduled = [*islice(reader.entries("scheduled"), ENTRIES_SHOWN + 1)]
    return {
        "queue": name,
        "pending": [
            {**row, "error": cut(row.get("error")), "reason": cut(row.get("reason"))} for row in pending[:ENTRIES_SHOWN]
        ],
        "pending_more": len(pending) > ENTRIES_SHOWN,
        "scheduled": scheduled[:ENTRIES_SHOWN],
        "scheduled_more": len(scheduled) > ENTRIES_SHOWN,
        **EndedTasks(fleet, name, rows).groups(),
    }


def payload_facts(fleet: Fleet, name: str) -> dict[str, str]:
    """The payloads of the first 100 single tasks that wait and of 100 that are scheduled, as text, by id.

    Raises: Unsupported on SQS.   Cost: 2 LISTs, and 1 GET each.
    """
    inspection(fleet, name, "list its tasks")
    store, keys = CappedStore(fleet.store, fleet.runtime), QueueKeys.of(name)
    pending = (each.key for each in store.list(keys.pending) if each.key.endswith(f"/{TASK}"))
    scheduled = (each.key for each in store.list(keys.scheduled))
    wanted = [*islice(pending, ENTRIES_SHOWN), *islice(scheduled, ENTRIES_SHOWN)]
    payloads: dict[str, str] = {}
    for key, blob in store.get_many(wanted, size_max=SEARCHED_BYTES_MAX).items():
        with suppress(LimpetError):  # what has ended meanwhile, is too large or cannot be read is not searched
            if isinstance(blob, LimpetError):
                raise blob
            task = read_task(blob.data, what=key)
            payloads[task.id] = cut(bytes(task.payload).decode(errors="replace"), PAYLOAD_CHARS_MAX)
    return payloads


def task_facts(fleet: Fleet, queue: str, id_: str) -> dict[str, Any]:
    """Everything that the store has about a task: payload, result, tracebacks, steps, signals, parent and children.

    Raises: Missing; Unsupported on SQS.   Cost: that of `Inspection.describe`.
    """
    found = inspection(fleet, queue, "show a task").describe(id_)
    if found is None:
        raise Missing(f"there is no task {id_!r} in queue {queue!r}", hint="receipts are kept for a time only")
    bounded = ("payload", "result", "errors", "traceback", "steps", "signals", "reason")
    shown = {name: value for name, value in found.items() if name not in bounded}
    shown["error"] = cut(found.get("error"), TEXT_CHARS_MAX)
    shown["failed"] = [*found["failed"]][:ENTRIES_SHOWN] if isinstance(found.get("failed"), list) else []
    for name in ("payload", "result"):
        if name in found:
            shown[name] = json_text(found[name])
    shown["traceback"] = cut(found.get("traceback"), TEXT_CHARS_MAX)
    shown["errors"] = [
        {**each, "error": cut(each["error"], TEXT_CHARS_MAX), "traceback": cut(each["traceback"], TEXT_CHARS_MAX)}
        for each in found.get("errors", ())
    ]
    steps = found.get("steps", ())
    shown["reason"] = cut(found.get("reason"))
    shown["steps"] = [_step_facts(step) for step in steps[-STEPS_SHOWN:]]
    shown["steps_before"] = max(0, len(steps) - STEPS_SHOWN)
    shown["signals"] = [{**signal, "value": _value_text(signal)} for signal in _signals(found, steps)]
    return {"children": [], **shown}


def _step_facts(step: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in step:
        return {"number": step["number"], "error": cut(step["error"])}
    return {**step, "value": _value_text(step)}


def _value_text(about: Mapping[str, Any]) -> str:
    """The value of a step or signal; of one that was too long for a history, its size and digest."""
    if "value_bytes" in about:
        return f"not kept: {about['value_bytes']:,} bytes, SHA-256 {about['value_sha256']}"
    return cut(json_text(about["value"]), STEP_CHARS_MAX)


def _signals(found: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The signals to a task: those that are stored, and of one that has completed those that its steps recorded."""
    signals = {signal["name"]: signal for signal in found.get("signals", ())}
    for step in steps:
        got = step.get("value")
        if step.get("kind") == "signal" and isinstance(got, dict) and got.get("came", True):
            about = {"by": cut(got.get("by"), NAME_CHARS_MAX), "at": cut(got.get("sent_at"), 40)}
            signals.setdefault(step["name"], {"name": step["name"], **about, "value": got.get("value")})
    return [*signals.values()][:STEPS_SHOWN]


def retry_group(fleet: Fleet, queue: str, kind: str) -> list[str]:
    """Retry the failed tasks of a group, as `queue_facts` groups them; their new ids.

    Raises: Missing if there is none.   Cost: that of listing all failed tasks, and of a retry for each in the group.
    """
    handle = fleet.queue(queue, create=False)
    reader = inspection(fleet, queue, "list its tasks")
    rows = reader.entries("failed", lambda error: None)
    ids = [row["id"] for row in rows if row["state"] == "failed" and kind_of(row["error"] or "") == kind]
    if not ids:
        raise Missing("no failed task has this error any more")
    return [new for id_ in ids for new in handle.retry(id_)]


# ---- an index ----


def index_facts(fleet: Fleet, name: str) -> dict[str, Any]:
    """An index: its columns, the size and backlog of each shard, and what lies in quarantine.

    Raises: Missing; Corrupt.   Cost: that of `count_index`, 1 GET; for quarantined objects 1 LIST and 1 GET each.
    """
    from limpet.index.describe import count_index
    from limpet.index.storage import IndexStorage

    manifest = demand_index(fleet, name).manifest
    storage = IndexStorage(fleet.store, IndexKeys.of(name), fleet.runtime)
    found = count_index(storage, name, most=10 * ENTRIES_SHOWN - 1)
    fields = [{"name": each.name, "type": each.type, "required": each.required} for each in manifest.schema.columns]
    return {**asdict(found), "columns": fields, "quarantine": _quarantine_facts(storage) if found.quarantined else []}


def _quarantine_facts(storage: Any) -> list[dict[str, Any]]:
    from limpet.index.compiler import KEPT_CHARACTERS_MAX, read_quarantined

    keys = [stat.key for stat in islice(storage.store.list(storage.keys.quarantine), QUARANTINE_SHOWN)]
    found: list[dict[str, Any]] = []
    for key, blob in storage.store.get_many(keys, size_max=2 * KEPT_CHARACTERS_MAX).items():
        try:
            if isinstance(blob, LimpetError):
                raise blob
            kept = read_quarantined(blob.data, what=key)
            found.append({"key": cut(kept.key), "reason": cut(kept.reason), "found_at": cut(kept.found_at, 40)})
        except (Corrupt, Missing, Invalid) as error:
            found.append({"key": cut(key), "reason": cut(error), "found_at": ""})
    return found


def record_facts(fleet: Fleet, name: str, key: str) -> dict[str, Any]:
    """The record of `key`, as text by column; None if there is none.   Raises: Missing; Invalid; Corrupt.

    Cost: that of `Index.get`, and 1 GET.
    """
    index = demand_index(fleet, name)
    kinds = {each.name: each.type for each in index.manifest.schema.columns}
    is_number = kinds.get(index.manifest.key) == "integer"
    if is_number and not key.strip().lstrip("-").isdigit():
        raise Invalid(f"{key[:40]!r} is no integer", hint=f"the key of {name!r} is an integer")
    record = index.get(int(key) if is_number else key)
    shown = None if record is None else {column: _cell(value) for column, value in record.items()}
    return {"key": key, "record": shown}


def sql_facts(fleet: Fleet, query: str) -> dict[str, Any]:
    """The answer to a SELECT over the whole fleet, in the sandbox of `limpet.index.sql`: at most 500 rows of it.

    Raises: Invalid for a query that is wrong; Unavailable for one that computes for longer than 30 s; Unsupported
    without the extra `sql`.   Cost: as `limpet.app.query.fleet_sql`, of what the query names.
    """
    from limpet.app.query import fleet_sql
    from limpet.index.sql import TIMEOUT_S
    from limpet.index.sql_rows import is_number

    notes: list[str] = []
    rows = fleet_sql(fleet, query, memory="1GB", timeout_s=TIMEOUT_S, on_note=lambda note: notes.append(cut(note)))
    return {
        "columns": [*rows.columns],
        "numbers": [is_number(kind) for kind in rows.types],
        "rows": [[_cell(value) for value in row] for row in islice(rows, ROWS_SHOWN)],
        "count": len(rows),
        "notes": notes[:NOTES_SHOWN],
    }


def _cell(value: Any) -> str | None:
    from limpet.index.sql_rows import shown

    return None if value is None else cut(shown(value), CELL_CHARS_MAX)


# ---- the catalog ----


def catalog_facts(catalog: Catalog) -> dict[str, Any]:
    """Namespaces, tables and views, and the last commits.   Raises: Missing if nothing was ever published.

    Cost: 1 GET, and 1 for each of 50 commits.
    """
    past = catalog.at()
    faults: list[str] = []
    commits = catalog.log(COMMITS_SHOWN, lambda error: faults.append(cut(error)))
    names = [*past.tables, *past.views]
    return {
        "version": past.version,
        "at": past.at,
        "namespaces": [[*levels] for levels in islice(past.namespaces, NAMES_SHOWN)],
        "tables": [{"namespace": [*levels], "name": name} for levels, name in islice(past.tables, NAMES_SHOWN)],
        "views": [{"namespace": [*levels], "name": name} for levels, name in islice(past.views, NAMES_SHOWN)],
        "more": max(0, len(names) - NAMES_SHOWN),
        "commits": [_commit_facts(commit) for commit in commits],
        "faults": faults,
    }


def _commit_facts(commit: CommitRecord) -> dict[str, Any]:
    rows = [{"what": row.what, "actor": row.actor, "changes": _changes(row)} for row in commit.rows[:ENTRIES_SHOWN]]
    return {"version": commit.version, "at": commit.at, "token": commit.token, "rows": rows}


def _changes(row: Row) -> list[dict[str, Any]]:
    from limpet.catalog.names import parsed

    found = [(change, parsed(change.key)) for change in row.changes if change.key[:2] in ("n/", "t/", "v/")]
    return [
        {"kind": KINDS[change.key[:1]], "namespace": [*levels], "name": name, "gone": change.value is None}
        for change, (levels, name) in found[:ENTRIES_SHOWN]
    ]


def table_facts(catalog: Catalog, namespace: Sequence[str], name: str) -> dict[str, Any]:
    """A table's columns, snapshots and properties, by its metadata.   Raises: NoSuchTable; NoSuchNamespace; Corrupt.

    Cost: 1 conditional GET of the head, and 1 GET of the metadata unless it is in memory.
    """
    loaded = catalog.load_table(namespace, name)
    try:
        found = _metadata_facts(msgspec.json.decode(loaded.metadata))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Corrupt(f"the metadata of the table makes no sense: {type(error).__name__}: {error}") from None
    return {"namespace": [*namespace], "name": name, "metadata_location": cut(loaded.metadata_location), **found}


def _metadata_facts(metadata: dict[str, Any]) -> dict[str, Any]:
    schemas = {each["schema-id"]: each for each in metadata.get("schemas", [])}
    schema: dict[str, Any] = schemas.get(metadata.get("current-schema-id"), {})
    snapshots = sorted(metadata.get("snapshots", []), key=lambda each: each["timestamp-ms"], reverse=True)
    return {
        "location": cut(metadata.get("location")),
        "updated_ms": metadata.get("last-updated-ms"),
        "format": metadata.get("format-version"),
        "columns": [
            {
                "id": each.get("id"),
                "name": cut(each.get("name")),
                "type": cut(_type_text(each.get("type"))),
                "required": bool(each.get("required")),
                "doc": cut(each.get("doc")),
            }
            for each in schema.get("fields", [])[:NAMES_SHOWN]
        ],
        "partitions": _partition_text(metadata),
        "current": str(metadata.get("current-snapshot-id")),
        "snapshots": [_snapshot_facts(each) for each in snapshots[:SNAPSHOTS_SHOWN]],
        "snapshots_more": max(0, len(snapshots) - SNAPSHOTS_SHOWN),
        "properties": {
            cut(key): cut(value) for key, value in islice(metadata.get("properties", {}).items(), ENTRIES_SHOWN)
        },
    }


def _type_text(kind: Any) -> str:
    if isinstance(kind, dict):
        inner = [kind.get("element"), kind.get("key"), kind.get("value")]
        inner += [each.get("type") for each in kind.get("fields", [])]
        return f"{kind.get('type')}<{', '.join(_type_text(each) for each in inner if each is not None)}>"
    return str(kind)


def _partition_text(metadata: Mapping[str, Any]) -> str:
    specs = {each["spec-id"]: each for each in metadata.get("partition-specs", [])}
    spec: dict[str, Any] = specs.get(metadata.get("default-spec-id"), {})
    return cut(", ".join(f"{each.get('transform')}({each.get('name')})" for each in spec.get("fields", [])))


def _snapshot_facts(each: Mapping[str, Any]) -> dict[str, Any]:
    summary = each.get("summary") or {}
    figures = ("operation", "added-records", "deleted-records", "total-records", "total-data-files")
    facts = {name.replace("-", "_"): cut(summary.get(name), 40) for name in figures}
    return {"id": str(each.get("snapshot-id")), "at_ms": each.get("timestamp-ms"), **facts}


def difference(catalog: Catalog, old: int, new: int) -> dict[str, Any]:
    """What differs between two versions of the catalog: what came, what went, and what was changed.

    Raises: Missing for a version that is not kept.   Cost: see `Catalog.at`, twice.
    """
    before, after = catalog.at(old), catalog.at(new)
    found: list[dict[str, Any]] = []
    for kind, left, right in (
        ("namespace", before.namespaces, after.namespaces),
        ("table", _by_levels(before.tables), _by_levels(after.tables)),
        ("view", _by_levels(before.views), _by_levels(after.views)),
    ):
        for levels in sorted({*left, *right}):
            if left.get(levels) != right.get(levels):
                change = "added" if levels not in left else "removed" if levels not in right else "changed"
                found.append({"kind": kind, "name": [*levels], "change": change})
    return {
        "old": {"version": before.version, "at": before.at},
        "new": {"version": after.version, "at": after.at},
        "changes": found[:NAMES_SHOWN],
        "more": max(0, len(found) - NAMES_SHOWN),
    }


def _by_levels(names: Mapping[tuple[tuple[str, ...], str], str]) -> dict[tuple[str, ...], str]:
    return {(*levels, name): location for (levels, name), location in names.items()}


# ---- the store ----


def store_facts(fleet: Fleet) -> dict[str, Any]:
    """How long the store takes to answer, and what this process has asked of it.   Cost: 3 GETs."""
    from limpet.kernel.keys import FLEET

    times: list[float] = []
    for _ in range(PROBES):
        began_s = fleet.runtime.elapsed_s()
        fleet.store.get(FLEET)
        times.append(round(1000 * (fleet.runtime.elapsed_s() - began_s), 2))
    spent, record = fleet.meter.snapshot(), fleet.record
    return {
        "url": fleet.url,
        "get_ms": sorted(times),
        "requests": spent.requests,
        "read_bytes": spent.read_bytes,
        "written_bytes": spent.written_bytes,
        "formats": record.format,
        "features": record.features,
        "conditional": record.probe.conditional,
        "probed_at": record.probe.at,
    }

"""How an entry ends without a worker's verdict: it cannot be read, or is cancelled.

What cannot be read ends in failed/ with the reason, its bytes kept: never lost, never in a loop of crashes (F23).
"""

from __future__ import annotations

from typing import Any

import msgspec

from limpet.kernel.errors import Corrupt, Missing, Unsupported
from limpet.kernel.keys import Key, count_of, name_of_receipt
from limpet.kernel.store.api import Absent
from limpet.queue.decide import attempts_of, task_receipt
from limpet.queue.durable import life_of, may_have_steps, origin_of
from limpet.queue.entry import NOTHING, Content, Ended, EntryLease, ForeignTask, Receipt, task_name
from limpet.queue.storage import Storage

CANCELLED = "cancelled"
MAY_RUN = "may still run its handler, and if that succeeds, the task has completed after all"


def reject_entry(storage: Storage, entry: str, why: str, *, batch: bool) -> None:
    """End an entry whose task or lease cannot be read, and say so. If only the lease is bad, its tasks can be retried.

    Raises: ForeignTask for one of another program, which is left as it is.
    Cost: 3 GETs, 2 PUTs (for a batch with a bad lease 1 a task more), 2 DELETEs.
    """
    content: Content | None
    try:
        content = storage.content(entry, batch=batch)
    except Missing:
        storage.drop_lease(entry)
        return
    except ForeignTask:
        raise
    except (Corrupt, Unsupported):
        content = None
    raw = _keep_bytes(storage, entry, batch=batch)
    if content is None:
        receipt = unclaimed_receipt(storage, "failed", entry, why, raw=raw)
        storage.write_receipt(entry, storage.keys.failed_of(entry), receipt, batch=batch)
    else:
        _fail_all(storage, entry, content, why, raw, batch=batch)
    storage.close(entry, batch=batch)
    storage.notices.failed(entry, why, count_of(entry))


def reject_scheduled(storage: Storage, key: Key, why: str) -> None:
    """End a delayed push that cannot be read. Its receipt has another name: a good task of that id may be pending.

    Cost: 1 GET + 2 PUTs.
    """
    name = name_of_receipt(key)
    raw = storage.keys.part(name, storage.runtime.new_id())
    storage.store.put(raw, storage.raw_bytes(key), when=Absent())
    receipt = unclaimed_receipt(storage, "failed", name, why, raw=raw)
    storage.write_receipt(name, storage.keys.failed_of(name), receipt, batch=False)
    storage.notices.failed(name, why)


def finish_cancelled(storage: Storage, entry: str, *, batch: bool) -> bool:
    """Write the receipt of a cancelled entry and remove the entry; returns whether this call ended it.

    Tasks of a batch that were done before keep their completion.
    Cost: 1 GET, 2 HEADs, 1 GET, 1 PUT, 2 DELETEs; for a batch 1 PUT more for each task that was done. For the steps of
    a batch that no worker holds 1 LIST, and 1 DELETE each.
    """
    keys = storage.keys
    try:
        content = storage.content(entry, batch=batch)
    except Missing:
        storage.drop_lease(entry)
        return False
    if storage.ended(entry):
        storage.close(entry, batch=batch)
        return False
    seen = storage.lease(entry).read()
    record = seen.value if seen is not None else None
    if record is not None and batch:
        _complete_done(storage, entry, content, record)
    durable = {*record.durable} if record is not None else {*()}
    keeps = not batch and may_have_steps(record, content, durable, 0, epoch=storage.epoch)
    receipt = unclaimed_receipt(
        storage,
        "cancelled",
        entry if batch else content.ids[0],
        f"{CANCELLED}: {record.label} {MAY_RUN}" if record is not None and record.contested else CANCELLED,
        count=len(content.ids),
        payload=NOTHING if batch else msgspec.Raw(content.payloads[0]),
        pushed_at=content.pushed_at,
        retries=content.retries,
        life=None if batch else life_of(entry, 0, content, batch=False),
        origin=origin_of(keys, entry, 0, content, batch=False) if keeps else None,
        caller=content.caller or None,
        parent=content.parent or None,
    )
    stands = storage.write_receipt(entry, keys.failed_of(entry), receipt, batch=batch)
    failed = record.failed if record is not None else ()
    # The steps of a single task stay for a retry. A batch is not retried, but for its tasks that failed before. While a
    # worker may still run them, all steps stay for a later sweep (H10).
    contested = record is not None and record.contested
    drops = batch and not contested and bool(durable.difference(failed))
    storage.close(entry, batch=batch, steps=drops, keep=failed)
    if content.caller:
        storage.wake(content.caller)
    return stands.state == "cancelled"


def _complete_done(storage: Storage, entry: str, content: Content, record: EntryLease) -> None:
    for n in record.done:
        receipt = task_receipt(
            record,
            content,
            n,
            "completed",
            attempts=max(1, attempts_of(record, n)),
            wall=storage.runtime.wall(),
            result=record.results.get(n),
            parts=[] if n in record.results else record.parts,
            life=life_of(entry, n, content, batch=True),
        )
        storage.write_receipt(entry, storage.keys.completed_of(f"{entry}.{n}"), receipt, batch=True)


def _fail_all(storage: Storage, entry: str, content: Content, why: str, raw: str, *, batch: bool) -> None:
    """Write a receipt in failed/ for each task of an entry; for a batch also the one that ends it.

    Each may have recorded steps, which only its lease could tell: a retry looks for them.
    """
    for n, id_ in enumerate(content.ids):
        readable = storage.kept_payload(entry, content.payloads[n]) is None
        payload = msgspec.Raw(content.payloads[n]) if readable else NOTHING
        receipt = unclaimed_receipt(
            storage,
            "failed",
            id_,
            why,
            raw=raw,
            payload=payload,
            retries=content.retries,
            origin=origin_of(storage.keys, entry, n, content, batch=batch),
            life=life_of(entry, n, content, batch=batch),
        )
        name = task_name(entry, n, batch=batch)
        storage.write_receipt(entry, storage.keys.failed_of(name), receipt, batch=batch)
    if batch:
        count = len(content.ids)
        receipt = unclaimed_receipt(storage, "completed", entry, why, raw=raw, count=count, failed=[*range(count)])
        storage.write_receipt(entry, storage.keys.completed_of(entry), receipt, batch=True)


def _keep_bytes(storage: Storage, entry: str, *, batch: bool) -> Key:
    """Copy the bytes of the entry's task, then of its lease, into one part object; returns its key."""
    data = b""
    for key in (storage.keys.tasks(entry, batch=batch), storage.keys.lease(entry)):
        try:
            data += storage.raw_bytes(key) + b"\n"
        except Missing:
            continue
    raw = storage.keys.part(entry, storage.runtime.new_id())
    storage.store.put(raw, data, when=Absent())
    return raw


def unclaimed_receipt(storage: Storage, state: Ended, id_: str, error: str, **about: Any) -> Receipt:
    """A receipt that does not come from a claim; `about` are further fields of it."""
    runtime = storage.runtime
    return Receipt(
        state=state,
        id=id_,
        error=error,
        worker_id=runtime.owner,
        label=runtime.label,
        finished_at=runtime.wall(),
        **about,
    )

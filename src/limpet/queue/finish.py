"""How an entry ends without a worker's verdict: it cannot be read, or it was cancelled.

What cannot be read ends in failed/ with the reason, its bytes kept: never lost, never in a loop of crashes (F23).
"""

from __future__ import annotations

import msgspec

from limpet.errors import Corrupt, Missing, Unsupported
from limpet.keys import Key
from limpet.queue.decide import attempts_of, task_receipt
from limpet.queue.entry import (
    NOTHING,
    Content,
    Ended,
    EntryLease,
    Receipt,
    Storage,
    count_of,
    name_of_receipt,
    task_name,
)
from limpet.store.api import Absent

CANCELLED = "cancelled"


def reject_entry(storage: Storage, entry: str, why: str, *, batch: bool) -> None:
    """End an entry whose task or lease cannot be read, and say so. If only the lease is bad, its tasks can be retried.

    Cost: 2 GETs, 2 PUTs (for a batch with a bad lease 1 a task more), 2 DELETEs.
    """
    raw = _kept(storage, entry, batch=batch)
    try:
        content = storage.content(entry, batch=batch)
    except Missing:
        storage.drop_lease(entry)
        return
    except (Corrupt, Unsupported):
        receipt = _receipt(storage, entry, "failed", why, raw)
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
    receipt = _receipt(storage, name, "failed", why, raw)
    storage.write_receipt(name, storage.keys.failed_of(name), receipt, batch=False)
    storage.notices.failed(name, why)


def _fail_all(storage: Storage, entry: str, content: Content, why: str, raw: str, *, batch: bool) -> None:
    for n, id_ in enumerate(content.ids):
        readable = storage.kept_payload(entry, content.payloads[n]) is None
        payload = msgspec.Raw(content.payloads[n]) if readable else NOTHING
        receipt = _receipt(storage, id_, "failed", why, raw, payload=payload, retries=content.retries)
        name = task_name(entry, n, batch=batch)
        storage.write_receipt(entry, storage.keys.failed_of(name), receipt, batch=batch)
    if batch:
        numbers = [*range(len(content.ids))]
        receipt = _receipt(storage, entry, "completed", why, raw, count=len(numbers), failed=numbers)
        storage.write_receipt(entry, storage.keys.completed_of(entry), receipt, batch=True)


def _kept(storage: Storage, entry: str, *, batch: bool) -> str:
    """Both objects of the entry as they are, in one part object: the task's bytes, then the lease's."""
    data = b""
    for key in (storage.keys.tasks(entry, batch=batch), storage.keys.lease(entry)):
        try:
            data += storage.raw_bytes(key) + b"\n"
        except Missing:
            continue
    raw = storage.keys.part(entry, storage.runtime.new_id())
    storage.store.put(raw, data, when=Absent())
    return raw


def _receipt(
    storage: Storage,
    id_: str,
    state: Ended,
    why: str,
    raw: str,
    *,
    payload: msgspec.Raw = NOTHING,
    count: int = 1,
    failed: list[int] | None = None,
    retries: int = 0,
) -> Receipt:
    return Receipt(
        state=state,
        id=id_,
        count=count,
        worker_id=storage.runtime.owner,
        label=storage.runtime.label,
        finished_at=storage.runtime.wall(),
        payload=payload,
        error=why,
        failed=failed or [],
        retries=retries,
        raw=raw,
    )


def finish_cancelled(storage: Storage, entry: str, *, batch: bool) -> bool:
    """Write the receipt of a cancelled entry and remove the entry; whether this call ended it.

    Tasks of a batch that were done before keep their completion.
    Cost: 1 GET, 2 HEADs, 1 GET, 1 PUT, 2 DELETEs; for a batch 1 PUT more for each task that was done.
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
    if seen is not None and batch:
        for n in seen.value.done:
            done = _done_receipt(storage, seen.value, content, n)
            storage.write_receipt(entry, keys.completed_of(f"{entry}.{n}"), done, batch=True)
    payload = msgspec.Raw(content.payloads[0]) if not batch else NOTHING
    id_ = entry if batch else content.ids[0]
    receipt = cancelled_receipt(storage, id_, content, payload, len(content.ids))
    stands = storage.write_receipt(entry, keys.failed_of(entry), receipt, batch=batch)
    storage.close(entry, batch=batch)
    return stands.state == "cancelled"


def _done_receipt(storage: Storage, record: EntryLease, content: Content, n: int) -> Receipt:
    return task_receipt(
        record,
        content,
        n,
        "completed",
        attempts=max(1, attempts_of(record, n)),
        wall=storage.runtime.wall(),
        result=record.results.get(n),
        parts=[] if n in record.results else record.parts,
    )


def cancelled_receipt(storage: Storage, id_: str, content: Content, payload: msgspec.Raw, count: int) -> Receipt:
    """The receipt of an entry that an operator cancelled."""
    return Receipt(
        state="cancelled",
        id=id_,
        count=count,
        worker_id=storage.runtime.owner,
        label=storage.runtime.label,
        pushed_at=content.pushed_at,
        finished_at=storage.runtime.wall(),
        payload=payload,
        error=CANCELLED,
        retries=content.retries,
    )

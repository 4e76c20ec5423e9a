"""What is in a directory before its first supervisor comes: it goes to the outbox, as if it had just been done."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.errors import Corrupt
from limpet.keys import Key, QueueKeys, queue_at, queue_place
from limpet.queue.names import is_batch
from limpet.queue.storage import Storage
from limpet.queue.sync.journal import Outbox
from limpet.queue.sync.objects import each, folders
from limpet.runtime import Runtime
from limpet.store.api import Blob, Store

__all__ = ["adopt"]


def adopt(local: Store, runtime: Runtime) -> int:
    """Put every waiting task and every receipt of the directory into its outbox; how many.

    Processes that opened the directory before it was marked as supervised note nothing: start them again first.
    Cost: 1 LIST per 1,000 objects, 1 GET + 1 PUT for each.   Crash: done again, which sends some of it twice.
    """
    outbox = Outbox(local, runtime)
    count = 0
    for folder in folders(local):
        for key, blob in _objects(local, queue_at(folder)):
            count += _note(outbox, local, runtime, key, blob)
    return count


def _objects(local: Store, queue: QueueKeys) -> Iterator[tuple[Key, Blob]]:
    for prefix in (queue.pending, queue.scheduled, queue.failed, queue.completed):
        listed = (stat.key for stat in local.list(prefix))
        yield from each(local, listed)


def _note(outbox: Outbox, local: Store, runtime: Runtime, key: Key, blob: Blob) -> bool:
    place = queue_place(key)
    if place is None:
        return False
    if place.kind in ("single", "batch", "scheduled"):
        try:
            outbox.pushed(key, blob.data)
        except UnicodeDecodeError:
            return False  # no task of ours: the next worker that claims it puts it into failed/, which is noted
        return True
    try:
        receipt = Storage(local, place.keys, runtime).receipt(key).decode(blob).value
    except Corrupt:
        return False  # it ends its name here, and nobody could read it elsewhere
    outbox.ended(place.name, is_batch(place.name), key, receipt)
    return True

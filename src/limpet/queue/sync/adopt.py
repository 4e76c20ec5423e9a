"""What is in a directory goes to the outbox: at its first supervisor, and where damage made notes unreadable."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from limpet.keys import Key, queue_place
from limpet.queue.entry import ENTRY_BYTES_MAX, Storage, is_batch
from limpet.queue.sync.journal import Outbox
from limpet.queue.sync.objects import DAMAGE, Aside, each, queues_of
from limpet.runtime import Runtime
from limpet.store.api import Blob, Store


def adopt(local: Store, runtime: Runtime, *, bad: Aside) -> int:
    """Put every waiting task and every receipt of the directory into its outbox; how many. `bad` is told of the rest.

    Processes that opened the directory before it was marked as supervised note nothing: start them again first.
    Cost: 1 LIST per 1,000 objects, 1 GET + 1 PUT for each.   Crash: done again, which sends some of it twice.
    """
    outbox = Outbox(local, runtime)
    count = 0
    for queue in queues_of(local, bad=bad):
        for key, blob in _objects(local, queue.pending, queue.scheduled, queue.failed, queue.completed, bad=bad):
            count += _note(outbox, local, runtime, key, blob)
    return count


def adopt_ends(local: Store, runtime: Runtime, *, since: datetime, bad: Aside) -> int:
    """Put the receipts since then into the outbox again: the notes of some of them are damaged. How many.

    Ends only grow, so sending one twice changes nothing. A push is not sent again: it may have ended elsewhere (H8).
    Cost: 1 LIST per 1,000 receipts, 1 GET + 1 PUT for each that is young enough.
    """
    outbox = Outbox(local, runtime)
    count = 0
    for queue in queues_of(local, bad=bad):
        for key, blob in _objects(local, queue.failed, queue.completed, since=since, bad=bad):
            count += _note(outbox, local, runtime, key, blob)
    return count


def _objects(local: Store, *prefixes: str, since: datetime | None = None, bad: Aside) -> Iterator[tuple[Key, Blob]]:
    for prefix in prefixes:
        listed = (stat.key for stat in local.list(prefix) if since is None or stat.modified >= since)
        yield from each(local, listed, size_max=ENTRY_BYTES_MAX, bad=bad)


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
    except DAMAGE:
        return False  # it ends its name here, and nobody could read it elsewhere
    outbox.ended(place.name, is_batch(place.name), key, receipt)
    return True

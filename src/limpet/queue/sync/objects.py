"""Small things that pulling and adopting share: reading many objects and naming queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from limpet import keys
from limpet.errors import Missing
from limpet.keys import Key, QueueKeys, name_of
from limpet.store.api import Blob, Store

__all__ = ["each", "folders", "queue_name"]

AT_ONCE = 32


def each(store: Store, wanted: Iterable[Key]) -> Iterator[tuple[Key, Blob]]:
    """The objects that are still there.   Raises: whatever else a read met.   Cost: 1 GET each, many at once."""
    names = iter(wanted)
    while some := [*islice(names, AT_ONCE)]:
        for key, blob in store.get_many(some, size_max=None).items():
            if isinstance(blob, Blob):
                yield key, blob
            elif not isinstance(blob, Missing):
                raise blob


def folders(store: Store) -> Sequence[str]:
    """The queues of a store, as folders.   Cost: 1 LIST."""
    return store.list_dirs(keys.QUEUES)


def queue_name(queue: QueueKeys) -> str:
    """The queue's name, as its users know it."""
    return name_of(queue.root.removeprefix(f"{keys.QUEUES}/"))

"""Small things that pulling and adopting share: reading many objects, what is wrong with one, and naming queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from limpet import keys
from limpet.errors import Corrupt, Invalid, Missing, Unsupported
from limpet.keys import Key, QueueKeys, check, name_of, queue_at
from limpet.runtime import Runtime
from limpet.store.api import Absent, Blob, Store

AT_ONCE = 32
KEPT_BYTES_MAX = 1 << 20

DAMAGE = (Corrupt, Invalid, Unsupported)
"""What is wrong with one object or its name, and not with the store: it is told of, and everything else goes on."""

Aside = Callable[[str], object]
"""Is told the name of an object that cannot be read."""


def each(store: Store, wanted: Iterable[Key], *, size_max: int, bad: Aside) -> Iterator[tuple[Key, Blob]]:
    """The objects that are still there. `bad` is told of those that are too large, or that no store would have named.

    Raises: whatever else a read met.   Cost: 1 GET each, many at once.
    """
    names = iter(wanted)
    while some := [*islice(names, AT_ONCE)]:
        for key, blob in store.get_many(some, size_max=size_max).items():
            if isinstance(blob, Blob):
                yield key, blob
            elif isinstance(blob, DAMAGE):
                bad(key)
            elif not isinstance(blob, Missing):
                raise blob


def queues_of(*stores: Store, bad: Aside) -> list[QueueKeys]:
    """The queues of some stores. `bad` is told of folders that no queue can have.   Cost: 1 LIST each."""
    found: list[QueueKeys] = []
    for folder in sorted({folder for store in stores for folder in store.list_dirs(keys.QUEUES)}):
        queue = queue_at(folder)
        try:
            check(queue.control)
        except Invalid:
            bad(queue.root)
        else:
            found.append(queue)
    return found


def put_aside(local: Store, runtime: Runtime, key: Key) -> None:
    """Move a damaged object of the node's own directory to `sync/damaged/`; of a large one its beginning is kept.

    While something is there, the node cannot know what it has sent, and a fresh pull drops nothing.
    Cost: 1 HEAD + 1 GET + 1 PUT + 1 DELETE.   Crash: done again.
    """
    name = key.rsplit("/", 1)[1].partition(".")[0]
    try:
        size = local.head(key).size
        data = local.get(key, range=(0, min(size, KEPT_BYTES_MAX))).data if size else b""
    except Missing:
        return
    local.put(keys.damaged_key(f"{name}-{runtime.new_id()}"), data, when=Absent())
    local.delete(key)


def queue_name(queue: QueueKeys) -> str:
    """The queue's name, as its users know it."""
    return name_of(queue.root.removeprefix(f"{keys.QUEUES}/"))

"""Shared by the ledgers of the catalog and of events: the types of a publication, and helpers of garbage collection.

A batch is written once under a new name. A compactor publishes it by recording that name in the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from limpet.kernel.errors import Denied
from limpet.kernel.keys import Key
from limpet.kernel.records import Count, Name
from limpet.kernel.store.api import Store

OBJECT_BYTES_MAX = 64 << 20
DELETED_AT_ONCE = 1000
CLOCK_AGE_S = 60.0


class AppliedBatch(msgspec.Struct, frozen=True, array_like=True):
    """A published batch: its version and commit."""

    path: Name
    version: Count
    commit: Name


def delete_all(store: Store, keys: Sequence[Key]) -> None:
    """Delete all keys.   Raises: the first error; other objects may then be left.   Cost: 1 DELETE each."""
    for start in range(0, len(keys), DELETED_AT_ONCE):
        for error in store.delete_many(keys[start : start + DELETED_AT_ONCE]).values():
            if error is not None:
                raise error


@dataclass(frozen=True, slots=True)
class Publication:
    """The answer to a publication; a repeated request gets the same one."""

    version: int
    commit: str


Publisher = Callable[[Sequence[str], int], Publication]
"""Publishes the batches at those paths under a token: `Compactor.publish`, `Executions.publish`, or one over HTTP."""


def store_time(store: Store, look: Callable[[], object]) -> datetime:
    """A lower bound of the store's time, for a decision about the age of objects.

    A role that may not write the clock's object uses the LastModified of objects that it has read, at first of the one
    that `look` reads. Its bound is lower, so it keeps objects longer.
    Cost: 0; once a minute 1 PUT + 1 HEAD, or for such a role at first 1 GET.
    """
    try:
        return store.now(max_age_s=CLOCK_AGE_S)
    except Denied:
        look()
        return store.now()

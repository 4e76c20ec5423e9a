"""What the two ledgers share, the catalog's and that of events: names that rise, times as text, publication.

A batch is written once under a new name and handed to a compactor by that name; the head that names it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec

from limpet.errors import Corrupt, Denied
from limpet.keys import Key
from limpet.records import Count, Name
from limpet.runtime import ulid
from limpet.store.api import Store

_MOMENT = r"(19[7-9]\d|2[0-4]\d\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)"
Moment = Annotated[str, msgspec.Meta(pattern=f"^{_MOMENT}$", max_length=32)]
"""A time in UTC as text that sorts. `moment` reads it."""
MomentOrNone = Annotated[str, msgspec.Meta(pattern=f"^({_MOMENT})?$", max_length=32)]
"""The same; an empty text if there is none yet."""
OBJECT_BYTES_MAX = 64 << 20
DELETED_AT_ONCE = 1000
TIME_CHARACTERS = 10
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
CLOCK_AGE_S = 60.0


class AppliedBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch that was published, and as what."""

    path: Name
    version: Count
    commit: Name


def moment(text: str) -> datetime:
    """The time of a stored text.   Raises: Corrupt."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise Corrupt(f"{text[:40]!r} is no time with a zone")
    return at


def above(id_: str, floor: str) -> str:
    """`id_`, or if it is not above `floor` the same with a time right above that one's.

    So names rise even where a clock is slow, and no two are the same (counterexample 9).
    """
    if id_ > floor:
        return id_
    number = 0
    for character in floor[:TIME_CHARACTERS]:
        number = number * 32 + _ALPHABET.index(character)
    return ulid(number + 1, 0)[:TIME_CHARACTERS] + id_[TIME_CHARACTERS:]


def delete_all(store: Store, keys: Sequence[Key]) -> None:
    """Delete every one.   Raises: the first error, and the rest may stay.   Cost: 1 DELETE each."""
    for start in range(0, len(keys), DELETED_AT_ONCE):
        for error in store.delete_many(keys[start : start + DELETED_AT_ONCE]).values():
            if error is not None:
                raise error


@dataclass(frozen=True, slots=True)
class Publication:
    """The answer to a publication: the same for whoever asks again."""

    version: int
    commit: str


Publisher = Callable[[Sequence[str], int], Publication]
"""Publishes the batches at those paths under a token: `Compactor.publish`, `Executions.publish`, or one over HTTP."""


def store_time(store: Store, look: Callable[[], object]) -> datetime:
    """The store's time, asked for before anything old is read: in a quiet bucket that would be all that is known of it.

    A role that may not ask knows only what it has seen, at first the age of what `look` reads: it keeps things longer.
    Cost: 0; once a minute 1 PUT + 1 HEAD, or for such a role at first 1 GET.
    """
    try:
        return store.now(max_age_s=CLOCK_AGE_S)
    except Denied:
        look()
        return store.now()

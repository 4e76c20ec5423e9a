"""The lease's decisions: pure functions, no store and no clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, TypeVar

import msgspec

from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.records import Instant, Name, Text

R = TypeVar("R", bound="LeaseRecord")

LOOK_MARGIN_S = 2.0
RESOLUTION_S = 1.0
TTL_MIN_S = 1.0
TTL_MAX_S = 7 * 86400.0
TOKEN_MAX = 1 << 50
"""No lock is taken this often. Each token is the last one plus 1, so a higher one was not reached by counting."""

Token = Annotated[int, msgspec.Meta(ge=0, le=TOKEN_MAX)]


class State(Enum):
    """What a lease record says."""

    HELD = "held"
    FREE = "free"
    CANCELLED = "cancelled"


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lock. `created_at`, `heartbeat_at` and `expires_at` are labels for people; no decision
    compares them with a clock."""

    state: State
    name: Text
    worker_id: Name
    label: Name
    token: Token
    attempt: Token
    created_at: Instant
    heartbeat_at: Instant
    expires_at: Instant
    ttl_s: Annotated[float, msgspec.Meta(gt=0.0, le=TTL_MAX_S)]
    not_before: Instant | None = None
    dropped: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether a user has dropped the lock: it is free, listings leave it out, and the next holder uses it again."""


@dataclass(frozen=True, slots=True)
class Create:
    """There is no record: create it."""


@dataclass(frozen=True, slots=True)
class Take:
    """The lock is free or abandoned: swap on exactly the version seen."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Another process holds it, at least until then. `confirm`: it may be abandoned, and a later read can show that."""

    until: datetime
    confirm: bool


def check_ttl(ttl_s: float) -> float:
    """`ttl_s`, if it is in the allowed range.   Raises: Invalid."""
    if not isinstance(ttl_s, int | float) or not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
        said = f"{ttl_s:g}" if isinstance(ttl_s, int | float) else repr(ttl_s)
        raise Invalid(f"ttl_s must be between {TTL_MIN_S:g} and {TTL_MAX_S:g} seconds, not {said}")
    return float(ttl_s)


def renew_interval_s(ttl_s: float) -> float:
    """The time between two renewals: two may fail before the lease expires."""
    return ttl_s / 3


def look_interval_s(ttl_s: float) -> float:
    """The minimum time between a contender's two reads of an unchanged record: a live holder renews within it."""
    return renew_interval_s(ttl_s) + LOOK_MARGIN_S


def next_step(
    record: LeaseRecord | None, *, modified: datetime, unchanged_s: float, now: datetime, wall: datetime
) -> Create | Take | Wait:
    """What a contender does after reading a lock's record.

    `modified` is the record's LastModified, `unchanged_s` how long this process has seen the same version, `now` a
    lower bound of the store's clock. A record that was unchanged for its whole ttl is expired even if the store's clock
    was set back. A wrong clock cannot do harm: it only makes a contender wait, or lose a swap (F8, F13). `wall` only
    decides `Wait.confirm`.
    Raises: Invalid for a cancelled record, which is never taken again.
    """
    if record is None:
        return Create()
    if record.state is State.FREE:
        if record.not_before is None or record.not_before <= now:
            return Take()
        return Wait(record.not_before, confirm=False)
    if record.state is not State.HELD:
        raise Invalid(f"{record.name!r} is {record.state.value}", hint="it has ended; use a new name")
    lasts_s = record.ttl_s + RESOLUTION_S  # F14: LastModified is rounded down
    until = modified + timedelta(seconds=lasts_s)
    expired = until <= now or unchanged_s >= lasts_s
    watched = unchanged_s >= look_interval_s(record.ttl_s)
    if expired and watched:
        return Take()
    return Wait(until, confirm=expired or (not watched and wall > record.expires_at))


def is_live(record: LeaseRecord, *, modified: datetime, now: datetime) -> bool:
    """Whether the lease is held and was renewed within its ttl. For display; taking a lock needs `next_step`."""
    return record.state is State.HELD and now <= modified + timedelta(seconds=record.ttl_s + RESOLUTION_S)


def taken(
    record: LeaseRecord | None, *, name: str, worker_id: str, label: str, ttl_s: float, wall: datetime
) -> LeaseRecord:
    """The record after a contender has taken the lock: the next token.

    Raises: Corrupt if there is no higher token: the record could never be read again.
    """
    if record is not None and record.token >= TOKEN_MAX:
        raise Corrupt(f"lock {name!r} has token {record.token}: no holder could have a higher one")
    return LeaseRecord(
        state=State.HELD,
        name=name,
        worker_id=worker_id,
        label=label,
        token=record.token + 1 if record else 1,
        attempt=min(record.attempt + 1, TOKEN_MAX) if record else 1,
        created_at=wall,
        heartbeat_at=wall,
        expires_at=wall + timedelta(seconds=ttl_s),
        ttl_s=ttl_s,
    )


def renewed(record: R, wall: datetime) -> R:
    """The record after its holder's heartbeat."""
    return msgspec.structs.replace(record, heartbeat_at=wall, expires_at=wall + timedelta(seconds=record.ttl_s))


def reset(name: str, worker_id: str, label: str, ttl_s: float, wall: datetime) -> LeaseRecord:
    """The free record that replaces one that cannot be read.

    Its token is the time in milliseconds: higher than any token reached by counting from 1, and than an earlier
    reset's.
    """
    record = taken(None, name=name, worker_id=worker_id, label=label, ttl_s=ttl_s, wall=wall)
    token = min(TOKEN_MAX - 1, max(1, int(wall.timestamp() * 1000)))
    return msgspec.structs.replace(record, state=State.FREE, token=token)


def freed(record: R) -> R:
    """The record after a release or a break. It keeps its token, so that tokens only rise (F9, F10)."""
    return msgspec.structs.replace(record, state=State.FREE)

"""Who may touch what: one table of role, key prefix and verbs.

`ScopedStore` enforces it, and cloud policies and the docs are made from it. A pattern that ends in `/` covers every key
below it, any other is one key; `*` stands for exactly one segment. `get` covers HEAD; `list` covers sampling.

Three rules shaped it. Only the compactor writes catalog state, so no bug elsewhere can. Where tokens must keep rising
(locks, slots, heads, sequences) nobody may delete (F10). Setting up or upgrading a bucket writes `limpet.json` and
needs a key without a role.

`tables` is for those who read and write tables (Spark, DuckDB, PyIceberg): they ask the API, and touch data files only.
They may neither put nor delete `*.metadata.json`, which only the API writes.

`pusher` puts tasks and reads their results. `worker` and `pusher` can be narrowed to some queues: then every pattern
below `queues/` stands for these queues only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, get_args

from limpet.errors import Invalid
from limpet.keys import QueueKeys

Role = Literal["api", "compactor", "compiler", "pusher", "reader", "supervisor", "tables", "worker"]
Verb = Literal["get", "put", "list", "delete"]

Grants = Mapping[str, frozenset[Verb]]

ROLES: tuple[Role, ...] = get_args(Role)

NARROWED: tuple[Role, ...] = ("pusher", "worker")
"""The roles that can be narrowed to some queues. A supervisor's logs are of all queues."""

UNWRITTEN: Mapping[Role, tuple[str, ...]] = MappingProxyType({"tables": (".metadata.json",)})
"""Endings of keys that a role may neither put nor delete, whatever its patterns say."""

_LOOK: frozenset[Verb] = frozenset({"get", "list"})
_KEEP: frozenset[Verb] = frozenset({"get", "put", "list"})
_OWN: frozenset[Verb] = frozenset({"get", "put", "list", "delete"})
_TIDY: frozenset[Verb] = frozenset({"get", "list", "delete"})
_SWAP: frozenset[Verb] = frozenset({"get", "put"})
_GET: frozenset[Verb] = frozenset({"get"})

_SERVICE: Grants = {"limpet.json": _GET, "probe/": _OWN}
_LOCKING: Grants = {**_SERVICE, "clock/": _SWAP}

_QUEUES: Grants = {
    "queues/": _LOOK,
    "queues/*/pending/": _OWN,
    "queues/*/scheduled/": _OWN,
    "queues/*/completed/": _OWN,
    "queues/*/failed/": _OWN,
    "queues/*/parts/": _OWN,
    "queues/*/sweep.json": frozenset({"get", "put", "delete"}),
}

_EVENTS: Grants = {"ledger/executions/": _SWAP, "sequence/executions.json": _SWAP}

TABLE: Mapping[Role, Grants] = MappingProxyType(
    {
        "api": {
            **_LOCKING,
            "locks/catalog.lock": _SWAP,
            "ledger/": _OWN,
            "sequence/": _KEEP,
            "warehouse/": _OWN,
            "manifests/": _LOOK,
            "snapshots/": _LOOK,
            "commits/": _LOOK,
            "state/": _LOOK,
            "quarantine/": _LOOK,
        },
        "compactor": {
            **_SERVICE,
            "locks/": _GET,
            "ledger/": _GET,
            "manifests/": _KEEP,
            "snapshots/": _OWN,
            "commits/": _OWN,
            "state/": _OWN,
            "quarantine/": _OWN,
        },
        "compiler": {
            **_LOCKING,
            **_EVENTS,
            "indexes/": _LOOK,
            "indexes/*/datapackage.json": _SWAP,
            "indexes/*/schema.json": _SWAP,
            "indexes/*/manifest.json": _SWAP,
            "indexes/*/inbox/": _TIDY,
            "indexes/*/packs/": _OWN,
            "indexes/*/shards/": _KEEP,
            "indexes/*/quarantine/": _KEEP,
        },
        "pusher": {
            "limpet.json": _GET,
            "clock/": _SWAP,
            "queues/": _GET,
            "queues/*/pending/*/task.json": frozenset({"get", "put", "delete"}),
            "queues/*/pending/*/tasks.jsonl": _SWAP,
            "queues/*/scheduled/*/": _SWAP,
        },
        "reader": {"": _LOOK},
        "supervisor": {**_LOCKING, **_QUEUES, "sync/": _OWN},
        "tables": {"limpet.json": _GET, "warehouse/": _OWN},
        "worker": {
            **_LOCKING,
            **_QUEUES,
            **_EVENTS,
            "queues/*/slots/": _KEEP,
            "sync/": _KEEP,
            "indexes/": _LOOK,
            "indexes/*/inbox/": _KEEP,
            "indexes/*/packs/": _KEEP,
            "indexes/*/imports/": _KEEP,
            "locks/user/": _KEEP,
            "cells/": _KEEP,
        },
    }
)


def check_role(role: str) -> Role:
    """`role`, if there is one of that name.   Raises: Invalid."""
    for known in ROLES:
        if role == known:
            return known
    raise Invalid(f"there is no role {role!r}", hint=f"use one of {', '.join(ROLES)}")


def check_queues(role: Role, queues: Sequence[str]) -> tuple[str, ...]:
    """The folders of these queues, if `role` can be narrowed to queues; none for none.   Raises: Invalid."""
    if queues and role not in NARROWED:
        raise Invalid(
            f"the role {role} cannot be narrowed to some queues",
            hint=f"only {' and '.join(NARROWED)} can; leave --queue out",
        )
    return tuple(dict.fromkeys(QueueKeys.of(name).root for name in queues))


def grants(role: Role, roots: Sequence[str] = ()) -> Grants:
    """What `role` may do; with the folders of some queues, only there among all queues."""
    if not roots:
        return TABLE[role]
    found: dict[str, frozenset[Verb]] = {}
    for pattern, verbs in TABLE[role].items():
        if pattern.startswith("queues/"):
            below = pattern.removeprefix("queues/").removeprefix("*/")
            found |= {f"{root}/{below}": verbs for root in roots}
        else:
            found[pattern] = verbs
    return found


def allows(role: Role, verb: Verb, key: str, roots: Sequence[str] = ()) -> bool:
    """Whether `role` may do `verb` on `key`; for `list`, on every key below the prefix `key` (empty for all)."""
    target = f"{key}/" if verb == "list" and key else key
    if verb in ("put", "delete") and key.endswith(UNWRITTEN.get(role, ())):
        return False
    return any(verb in verbs and _covers(pattern, target) for pattern, verbs in grants(role, roots).items())


def _covers(pattern: str, key: str) -> bool:
    """Whether `key` lies in `pattern`; a `key` that ends in `/` stands for all the keys below it."""
    wanted, found = pattern.split("/"), key.split("/")
    if wanted[-1]:
        return len(found) == len(wanted) and _same(wanted, found)
    return len(found) >= len(wanted) and _same(wanted[:-1], found)


def _same(wanted: list[str], found: list[str]) -> bool:
    return all(want in ("*", part) for want, part in zip(wanted, found, strict=False))


def patterns(role: Role, verb: Verb, *, besides: Sequence[str] = (), roots: Sequence[str] = ()) -> tuple[str, ...]:
    """The fewest patterns on which `role` may do `verb`, without what those in `besides` cover."""
    granted = [pattern for pattern, verbs in grants(role, roots).items() if verb in verbs]
    wider = [*granted, *besides]
    return tuple(
        pattern
        for pattern in sorted(granted)
        if pattern not in besides and not any(other != pattern and _covers(other, pattern) for other in wider)
    )


def as_markdown() -> str:
    """The table for the docs: a row for each prefix, a column for each role."""
    order = get_args(Verb)
    rows = [["prefix", *ROLES], ["---"] * (len(ROLES) + 1)]
    for pattern in sorted({pattern for grants in TABLE.values() for pattern in grants}):
        cells = [" ".join(verb for verb in order if verb in TABLE[role].get(pattern, ())) for role in ROLES]
        rows.append([f"`{pattern}`" if pattern else "everything", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"

"""Roles: one table of role, key prefix and allowed verbs, and the store that enforces it.

`ScopedStore` enforces the table; cloud policies and the docs are generated from it. A pattern that ends in `/` covers
every key below it, any other is one key; `*` stands for exactly one segment. `get` includes HEAD; `list` includes
sampling.

The table follows three rules. Only the compactor writes catalog state, so no bug elsewhere can damage it. No role may
delete objects whose tokens must keep rising: locks, slots, heads, sequences (F10). Creating or upgrading a fleet writes
`limpet.json` and needs credentials without a role.

`tables` is for programs that read and write tables (Spark, DuckDB, PyIceberg): they send commits to the API, and write
data files only. They may neither put nor delete `*.metadata.json`, which only the API writes.

`pusher` puts tasks, sends signals to them, rewrites the bell of their queue, and reads their results. Without the right
to put `bell.json` a push still succeeds; idle workers then notice it within a minute. `worker` and `pusher` can be
narrowed to some queues: every pattern below `queues/` then applies to these queues only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Literal, get_args

import msgspec

from limpet.kernel.errors import Denied, Invalid
from limpet.kernel.keys import Key, QueueKeys, check_path, check_prefix, clock_key, join
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store.api import Stat, Store, WrappedStore

Role = Literal["api", "compactor", "compiler", "pusher", "reader", "supervisor", "tables", "worker"]
Verb = Literal["get", "put", "list", "delete"]

Grants = Mapping[str, frozenset[Verb]]

ROLES: tuple[Role, ...] = get_args(Role)

NARROWED: tuple[Role, ...] = ("pusher", "worker")
"""The roles that can be narrowed to some queues. The supervisor's role cannot: its logs are about all queues."""

UNWRITTEN: Mapping[Role, tuple[str, ...]] = MappingProxyType({"tables": (".metadata.json",)})
"""Endings of keys that a role may neither put nor delete, whatever its patterns say."""

_VERBS: Mapping[str, Verb] = {"get": "get", "head": "get", "put": "put", "delete": "delete"}
"""The right that a request needs."""

_ALL: tuple[Verb, ...] = get_args(Verb)
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
    **{f"queues/*/{folder}/": _OWN for folder in ("pending", "scheduled", "completed", "failed")},
    **{f"queues/*/{folder}/": _OWN for folder in ("parts", "steps", "pushes")},
    "queues/*/bell.json": _SWAP,
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
            **dict.fromkeys(("manifests/", "snapshots/", "commits/", "state/", "quarantine/"), _LOOK),
        },
        "compactor": {
            **_SERVICE,
            "locks/": _GET,
            "ledger/": _GET,
            "manifests/": _KEEP,
            **dict.fromkeys(("snapshots/", "commits/", "state/", "quarantine/"), _OWN),
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
            "queues/*/pushes/": _SWAP,
            "queues/*/steps/*/signals/": _SWAP,
            "queues/*/bell.json": _SWAP,
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
            "workers/": _OWN,
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
    if role not in ROLES:
        raise Invalid(f"there is no role {role!r}", hint=f"use one of {', '.join(ROLES)}")
    return role


def check_queues(role: Role, queues: Sequence[str]) -> tuple[str, ...]:
    """The folders of these queues; empty if `queues` is.   Raises: Invalid if `role` cannot be narrowed to queues."""
    if queues and role not in NARROWED:
        hint = f"only {' and '.join(NARROWED)} can; leave --queue out"
        raise Invalid(f"the role {role} cannot be narrowed to some queues", hint=hint)
    return tuple(dict.fromkeys(QueueKeys.of(name).root for name in queues))


def grants(role: Role, roots: Sequence[str] = ()) -> Grants:
    """What `role` may do. `roots`: the folders of the only queues that it may use."""
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
    return _allowed(role, verb, tuple(roots)).fullmatch(target) is not None


@cache
def _allowed(role: Role, verb: Verb, roots: tuple[str, ...]) -> re.Pattern[str]:
    """All the patterns of a role for a verb as one expression, for whole keys and for prefixes with their slash."""
    granted = "|".join(_expression(pattern) for pattern, verbs in grants(role, roots).items() if verb in verbs)
    unwritten = UNWRITTEN.get(role, ()) if verb in ("put", "delete") else ()
    endings = "".join(f"(?<!{re.escape(ending)})" for ending in unwritten)
    # `(?!)` matches nothing: a role without any pattern for the verb
    return re.compile(f"(?:{granted or '(?!)'}){endings}", re.DOTALL)


def _expression(pattern: str) -> str:
    below = ".*" if not pattern or pattern.endswith("/") else ""
    return re.escape(pattern).replace(r"\*", "[^/]*") + below


def patterns(role: Role, verb: Verb, *, besides: Sequence[str] = (), roots: Sequence[str] = ()) -> tuple[str, ...]:
    """The smallest set of patterns on which `role` may do `verb`, without those that `besides` covers."""
    granted = [pattern for pattern, verbs in grants(role, roots).items() if verb in verbs]

    def is_covered(pattern: str) -> bool:
        wider = (_expression(other) for other in (*granted, *besides) if other != pattern)
        return pattern in besides or any(re.fullmatch(other, pattern, re.DOTALL) for other in wider)

    return tuple(pattern for pattern in sorted(granted) if not is_covered(pattern))


def as_markdown() -> str:
    """The table for the docs: a row for each prefix, a column for each role."""
    rows = [["prefix", *ROLES], ["---"] * (len(ROLES) + 1)]
    for pattern in sorted({pattern for grants in TABLE.values() for pattern in grants}):
        cells = [" ".join(verb for verb in _ALL if verb in TABLE[role].get(pattern, ())) for role in ROLES]
        rows.append([f"`{pattern}`" if pattern else "everything", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


class ScopedStore(WrappedStore):
    """The objects below `prefix`, under keys without it. With a role, a request that its table forbids is `Denied` and
    not sent.

    The clock's object is below the prefix too, so credentials for the prefix are enough. The batch verbs return
    `Denied` for each forbidden key, and process the others.
    """

    def __init__(
        self,
        store: Store,
        prefix: str = "",
        role: str | None = None,
        *,
        queues: Sequence[str] = (),
        runtime: Runtime | None = None,
    ) -> None:
        """`queues`: the only queues that the role may use; empty for all.   Raises: Invalid."""
        super().__init__(store, runtime or system())
        self.prefix = check_prefix(prefix)
        self.role = None if role is None else check_role(role)
        roots = check_queues(self.role, queues) if self.role is not None else ()
        self._allowed = {verb: _allowed(self.role, verb, roots) for verb in _ALL} if self.role is not None else None
        clock = clock_key(0)
        self._may_ask_clock = self._allowed is None or all(self._allowed[verb].fullmatch(clock) for verb in _SWAP)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """A forbidden prefix is `Denied` at the call, not at the first step."""
        return super().list(prefix, after=join(self.prefix, after) if after else None)

    def change_token(self, prefix: str) -> str | None:
        return self.inner.change_token(self._below(prefix))

    def now(self, *, max_age_s: float | None = None) -> datetime:
        """A role that may not write the clock's object gets the last known bound, whatever its age.

        Raises: Denied for such a role, if it has read no object yet.
        """
        if self._may_ask_clock:
            return super().now(max_age_s=max_age_s)
        bound = self._clock.read(max_age_s=None)
        if bound is None:
            raise Denied(
                f"the role {self.role} may not write the object that reads the store's clock",
                hint="read any object first: its LastModified is a time of the store",
            )
        return bound

    def _send(self, verb: str, key: Key, *, size: int = 0) -> Key:
        if verb == "list":
            return Key(self._below(key))
        check_path(key)
        if self._allowed is not None and not self._allowed[_VERBS[verb]].fullmatch(key):
            raise self._denied(_VERBS[verb], key)
        return join(self.prefix, key) if self.prefix else key

    def _below(self, prefix: str) -> str:
        below = check_prefix(prefix)
        if self._allowed is not None and not self._allowed["list"].fullmatch(f"{below}/" if below else ""):
            raise self._denied("list", below)
        return join(self.prefix, below) if below else self.prefix

    def _denied(self, verb: Verb, key: str) -> Denied:
        return Denied(
            f"the role {self.role} may not {verb} {key or 'everything'}",
            hint="use a role that may (see the page on roles), or open the store without a role",
        )

    def _seen(self, stat: Stat) -> Stat:
        super()._seen(stat)
        return msgspec.structs.replace(stat, key=Key(stat.key[len(self.prefix) + 1 :])) if self.prefix else stat

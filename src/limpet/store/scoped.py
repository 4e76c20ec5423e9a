"""One prefix of a store, with the rights of one role."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from limpet.errors import Denied
from limpet.keys import Key, check, check_prefix, clock_key, join
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import Runtime, system
from limpet.store.api import Always, Blob, Stat, Store, Version, When, WrappedStore
from limpet.store.roles import Verb, allows, check_queues, check_role


class ScopedStore(WrappedStore):
    """Everything below `prefix`, under keys without it. With a role, what its table forbids is `Denied` and not sent.

    The clock is read inside the scope too, so a credential that is bound to the prefix is enough. The batch verbs give
    `Denied` for each key that is forbidden, and do the rest.
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
        """`queues`: the only ones that the role reaches; none means all.   Raises: Invalid."""
        super().__init__(store, runtime or system())
        self.prefix = check_prefix(prefix)
        self.role = None if role is None else check_role(role)
        self._roots = check_queues(self.role, queues) if self.role is not None else ()

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        blob = self.inner.get(
            self._full("get", key), range=range, if_match=if_match, if_none_match=if_none_match, size_max=size_max
        )
        self._clock.observe(blob.modified)
        return blob

    def head(self, key: Key) -> Stat:
        return self._seen(self.inner.head(self._full("get", key)))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        return self.inner.put(self._full("put", key), data, when=when)

    def delete(self, key: Key) -> None:
        self.inner.delete(self._full("delete", key))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """A forbidden prefix is `Denied` at the call, not at the first step."""
        found = self.inner.list(self._below(prefix), after=join(self.prefix, after) if after else None)
        return map(self._seen, found)

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        return [self._seen(stat) for stat in self.inner.sample(self._below(prefix), n)]

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        return self.inner.list_dirs(self._below(prefix))

    def change_token(self, prefix: str) -> str | None:
        return self.inner.change_token(self._below(prefix))

    def now(self, *, max_age_s: float | None = None) -> datetime:
        """A role that may not write the probe gets the bound that it has, whatever its age.

        Raises: Denied, for such a role, when nothing was seen yet.
        """
        if self._may("put", clock_key(0)) and self._may("get", clock_key(0)):
            return super().now(max_age_s=max_age_s)
        bound = self._clock.read(max_age_s=None)
        if bound is None:
            raise Denied(
                f"the role {self.role} may not write the object that reads the store's clock",
                hint="read any object first: its LastModified tells the time",
            )
        return bound

    def _may(self, verb: Verb, key: str) -> bool:
        return self.role is None or allows(self.role, verb, key, self._roots)

    def _full(self, verb: Verb, key: Key) -> Key:
        check(key)
        self._demand(verb, key)
        return join(self.prefix, key)

    def _below(self, prefix: str) -> str:
        below = check_prefix(prefix)
        self._demand("list", below)
        return join(self.prefix, below) if below else self.prefix

    def _demand(self, verb: Verb, key: str) -> None:
        if not self._may(verb, key):
            raise Denied(
                f"the role {self.role} may not {verb} {key or 'everything'}",
                hint="use a role that may (see the table in limpet.store.roles), or open the store without a role",
            )

    def _seen(self, stat: Stat) -> Stat:
        self._clock.observe(stat.modified)
        return replace(stat, key=Key(stat.key[len(self.prefix) + 1 :])) if self.prefix else stat

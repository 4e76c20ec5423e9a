"""A store that is far away: every request waits before it is sent. Requests that run side by side wait side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from limpet.keys import Key
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import Runtime, system
from limpet.store.api import Always, Blob, Stat, Store, Version, When

__all__ = ["DELAY_S", "SlowStore"]

DELAY_S = 0.03


class SlowStore(Store):
    """`store`, with `delay_s` before each request. Its batch verbs run as many at once as a bucket's do."""

    far = True

    def __init__(self, store: Store, delay_s: float = DELAY_S, *, runtime: Runtime | None = None) -> None:
        super().__init__(runtime or system())
        self.inner = store
        self.delay_s = delay_s

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        """See `Store.get`."""
        time.sleep(self.delay_s)
        blob = self.inner.get(key, range=range, if_match=if_match, if_none_match=if_none_match, size_max=size_max)
        self._clock.observe(blob.modified)
        return blob

    def head(self, key: Key) -> Stat:
        """See `Store.head`."""
        time.sleep(self.delay_s)
        return self._seen(self.inner.head(key))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        time.sleep(self.delay_s)
        return self.inner.put(key, data, when=when)

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        time.sleep(self.delay_s)
        self.inner.delete(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`. One wait for the whole of it."""
        time.sleep(self.delay_s)
        return map(self._seen, self.inner.list(prefix, after=after))

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """See `Store.sample`."""
        time.sleep(self.delay_s)
        return [self._seen(stat) for stat in self.inner.sample(prefix, n)]

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """See `Store.list_dirs`."""
        time.sleep(self.delay_s)
        return self.inner.list_dirs(prefix)

    def change_token(self, prefix: str) -> str | None:
        """None: a bucket has no change token."""
        return None

    def _seen(self, stat: Stat) -> Stat:
        self._clock.observe(stat.modified)
        return stat

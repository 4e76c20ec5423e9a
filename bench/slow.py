"""A store that is far away: every request waits before it is sent. Requests that run side by side wait side by side."""

from __future__ import annotations

import time

from limpet.kernel.keys import Key
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store.api import Store, WrappedStore

__all__ = ["DELAY_S", "SlowStore"]

DELAY_S = 0.03


class SlowStore(WrappedStore):
    """`store`, with `delay_s` before each request. Its batch verbs run as many at once as a bucket's do."""

    def __init__(self, store: Store, delay_s: float = DELAY_S, *, runtime: Runtime | None = None) -> None:
        super().__init__(store, runtime or system())
        self.delay_s = delay_s
        self.at_once, self.conflict_is_final, self.far = Store.at_once, False, True

    def change_token(self, prefix: str) -> str | None:
        """None: a bucket has no change token."""
        return None

    def _send(self, verb: str, key: Key, *, size: int = 0) -> Key:
        """Wait. A listing waits once for the whole of it."""
        time.sleep(self.delay_s)
        return key

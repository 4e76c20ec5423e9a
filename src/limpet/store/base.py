"""What all stores share: fan-out of the batch verbs, and reading the store's clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeVar

from limpet.errors import LimpetError
from limpet.keys import Key, clock_key
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import FAN_OUT_MAX, Runtime
from limpet.store.api import Always, Blob, Put, Stat, Version, When
from limpet.store.clock import StoreClock

A = TypeVar("A")
B = TypeVar("B")

CLOCK_SLOTS = 16


class BaseStore(ABC):
    """The verbs that follow from `get`, `head`, `put` and `delete`."""

    at_once = FAN_OUT_MAX
    """See `Store.at_once`: a bucket is far away."""
    conflict_is_final = False

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clock = StoreClock(runtime)

    @abstractmethod
    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob: ...

    @abstractmethod
    def head(self, key: Key) -> Stat: ...

    @abstractmethod
    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version: ...

    @abstractmethod
    def delete(self, key: Key) -> None: ...

    def change_token(self, prefix: str) -> str | None:
        return None

    def get_many(
        self, keys: Iterable[Key], *, size_max: int | None = RECORD_BYTES_MAX
    ) -> Mapping[Key, Blob | LimpetError]:
        return self._each(lambda key: key, lambda key: self.get(key, size_max=size_max), keys)

    def put_many(self, puts: Iterable[Put]) -> Mapping[Key, Version | LimpetError]:
        return self._each(lambda put: put.key, lambda put: self.put(put.key, put.data, when=put.when), puts)

    def delete_many(self, keys: Iterable[Key]) -> Mapping[Key, LimpetError | None]:
        return self._each(lambda key: key, self.delete, keys)

    def _each(
        self, key_of: Callable[[A], Key], call: Callable[[A], B], items: Iterable[A]
    ) -> dict[Key, B | LimpetError]:
        def one(item: A) -> tuple[Key, B | LimpetError]:
            try:
                return key_of(item), call(item)
            except LimpetError as error:
                return key_of(item), error

        return dict(self._runtime.fan_out(one, items, at_once=self.at_once))

    def now(self, *, max_age_s: float | None = None) -> datetime:
        bound = self._clock.read(max_age_s=max_age_s)
        if bound is not None:
            return bound
        key = clock_key(self._runtime.rng.randrange(CLOCK_SLOTS))
        self.put(key, b"{}")
        modified = self.head(key).modified
        self._clock.reset(modified)
        return modified

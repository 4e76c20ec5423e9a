"""Counts the requests to a store, their bytes and their price, and refuses requests above a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

from limpet.kernel.errors import Conflict, Corrupt, Denied, Invalid, Missing, Unsupported
from limpet.kernel.keys import Key, check, check_path, check_prefix, is_key, is_own_path
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store.api import Always, Blob, Stat, Store, Version, When, WrappedStore
from limpet.kernel.wording import many

T = TypeVar("T")

PAGE = 1000


@dataclass(slots=True)
class Cost:
    """The cost of some calls. `requests` has a count for each verb that was used: get, head, put, list, delete."""

    requests: dict[str, int] = field(default_factory=dict)
    read_bytes: int = 0
    written_bytes: int = 0
    refused: int = 0
    """Puts that met a Conflict; they are in `requests` and `written_bytes` too."""

    def __sub__(self, earlier: Cost) -> Cost:
        return Cost(
            {verb: more for verb, n in self.requests.items() if (more := n - earlier.requests.get(verb, 0))},
            self.read_bytes - earlier.read_bytes,
            self.written_bytes - earlier.written_bytes,
            self.refused - earlier.refused,
        )

    def total(self) -> int:
        """All requests."""
        return sum(self.requests.values())

    def dollars(self, provider: str) -> float:
        """The price of the requests at `provider` (see `dollars`).   Raises: Invalid."""
        return dollars(self.requests, provider)


class MeteredStore(WrappedStore):
    """Counts every call and forwards it to `store`. A call counts as its `Store` docstring says; threads may share it.

    A request counts when it is sent, whatever the answer; retries inside the cloud's client library are not counted.
    `now` and the batch verbs call this store's other verbs, which count. Put a `ScopedStore` around the meter, not
    inside it, so that requests which a role forbids are not counted.

    With a `budget`, the request that would exceed it and all later ones are `Denied` and not sent.
    """

    def __init__(self, store: Store, budget: int | None = None, *, runtime: Runtime | None = None) -> None:
        super().__init__(store, runtime or system())
        self.budget = budget
        self._mutex = self._runtime.mutex()
        self._spent = Cost()
        self._before_first: Callable[[], object] | None = None
        """Called before each request while it is not None."""

    def snapshot(self) -> Cost:
        """The cost so far; the difference of two snapshots is the cost between them."""
        with self._mutex:
            return self._spent - Cost()

    @contextmanager
    def measure(self) -> Iterator[Cost]:
        """The cost of the `with` block; filled in when the block ends."""
        before, cost = self.snapshot(), Cost()
        try:
            yield cost
        finally:
            spent = self.snapshot() - before
            for name in Cost.__slots__:
                setattr(cost, name, getattr(spent, name))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        key = self._send("put", key, size=len(data))
        try:
            return self.inner.put(key, data, when=when)
        except Conflict:
            with self._mutex:
                self._spent.refused += 1
            raise

    def delete_in_order(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._send("delete", key)
        self.inner.delete_in_order(keys)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """A page counts when its first object is reached, and only there the budget is checked."""
        clock = self._clock
        for i, stat in enumerate(self.inner.list(self._send("list", Key(prefix)), after=after)):
            if i and i % PAGE == 0:
                self._send("list", Key(prefix))
            if stat.modified > clock.floor:
                clock.observe(stat.modified)
            yield stat

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """Counted as one LIST per 1,000 objects returned."""
        return self._pages_after_first(super().sample(prefix, n))

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        folders = self._pages_after_first(super().list_dirs(prefix))
        return [name for name in folders if is_key(name)]  # another program may have made `..`

    def _send(self, verb: str, key: Key, *, size: int = 0) -> Key:
        if not is_own_path(key):
            {"list": check_prefix, "put": check}.get(verb, check_path)(key)
        if self._before_first is not None:
            self._before_first()
        with self._mutex:
            spent = self._spent
            if self.budget is not None and spent.total() >= self.budget:
                raise Denied(
                    f"the budget of {many(self.budget, 'request')} for this process is spent; this {verb} was not sent",
                    hint="look for a loop that runs away; if it needs more, raise LIMPET_REQUEST_BUDGET (or budget=)",
                )
            spent.requests[verb] = spent.requests.get(verb, 0) + 1
            spent.written_bytes += size
        return key

    def _received(self, blob: Blob) -> Blob:
        with self._mutex:
            self._spent.read_bytes += len(blob.data)
        if blob.modified > self._clock.floor:
            self._clock.observe(blob.modified)
        return blob

    def _pages_after_first(self, found: Sequence[T]) -> Sequence[T]:
        for _ in range(PAGE, len(found), PAGE):
            self._send("list", Key(""))
        return found


class LazyStore(MeteredStore, Generic[T]):
    """A metered store that calls `connect` before its first request. If that fails, the next request tries again.

    `connect` gets the store itself, with the same counts and the same clock, and returns what `connected` returns.
    """

    def __init__(
        self, store: Store, connect: Callable[[Store], T], budget: int | None = None, *, runtime: Runtime
    ) -> None:
        super().__init__(store, budget, runtime=runtime)
        self._connect = connect
        self._direct = MeteredStore(store, budget, runtime=runtime)
        self._direct._mutex, self._direct._spent, self._direct._clock = self._mutex, self._spent, self._clock
        self._connecting = runtime.mutex()
        self._connected: T | None = None
        self._before_first = self._connect_for_request

    def connected(self) -> T:
        """What `connect` returned; it is called at most once.   Raises, Cost: those of `connect`."""
        if self._connected is None:
            with self._connecting:
                if self._connected is None:
                    self._connected = self._connect(self._direct)
                    self._before_first = None
        return self._connected

    def _connect_for_request(self) -> None:
        """Connect. `Missing`, `Corrupt` and `Unsupported` become `Invalid`: the caller of a request would take them for
        errors of the object that it asked for, and might go on without it."""
        try:
            self.connected()
        except (Missing, Corrupt, Unsupported) as error:
            raise Invalid(str(error), hint=error.hint) from error


AS_OF = "2026-11"

_PRICES = {"get": 0.0004, "head": 0.0004, "put": 0.005, "list": 0.005, "delete": 0.0}

DOLLARS_PER_1000: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "s3": _PRICES,  # Standard, us-east-1
        "gcs": _PRICES,  # Standard, one region: class A and class B operations
        "azure": _PRICES,  # Blob Storage Hot, LRS, East US
    }
)


def dollars(requests: Mapping[str, int], provider: str) -> float:
    """The price of `requests` (a count for each verb) at `provider`: s3, gcs or azure.   Raises: Invalid."""
    if provider not in DOLLARS_PER_1000:
        raise Invalid(f"no prices for {provider!r}", hint=f"use one of {', '.join(DOLLARS_PER_1000)}")
    prices = DOLLARS_PER_1000[provider]
    return sum(count * prices[verb] for verb, count in requests.items()) / 1000

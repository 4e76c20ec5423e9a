"""One suite for every store: races, between threads and between processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Barrier

import pytest

from limpet.kernel.errors import Conflict, OutcomeUnknown
from limpet.kernel.keys import Key
from limpet.kernel.store import Absent, Match, Store, Version
from support.servers.maker import SHARED_KINDS, Maker

CONTENDERS = 32
K = Key("race/one.json")


def race(store: Store, put: Callable[[int], Version]) -> list[Version]:
    """The versions that won when all contenders put at once."""
    barrier = Barrier(CONTENDERS)

    def one(i: int) -> Version | None:
        barrier.wait(timeout=60)
        try:
            return put(i)
        except (Conflict, OutcomeUnknown):  # RGW answers a lost swap with 500: unknown at this level
            return None

    with ThreadPoolExecutor(CONTENDERS) as threads:
        return [version for version in threads.map(one, range(CONTENDERS)) if version is not None]


def increment(store: Store, times: int) -> int:
    """Add `times` ones to the number in the object, each by a swap; how many swaps won."""
    won = 0
    while won < times:
        seen = store.get(K)
        try:
            store.put(K, b"%d" % (int(seen.data) + 1), when=Match(seen.version))
        except (Conflict, OutcomeUnknown):
            continue
        won += 1
    return won


def increment_elsewhere(maker: Maker, times: int) -> int:
    return increment(maker.open(), times)


def test_one_of_many_creates_wins(store: Store) -> None:
    winners = race(store, lambda i: store.put(K, b"%d" % i, when=Absent()))
    assert winners == [store.get(K).version]


def test_one_of_many_swaps_wins(store: Store) -> None:
    base = store.put(K, b"base")
    winners = race(store, lambda i: store.put(K, b"%d" % i, when=Match(base)))
    assert winners == [store.get(K).version]


def test_threads_lose_no_increment(store: Store) -> None:
    store.put(K, b"0")
    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(increment, [store] * 8, [10] * 8)) == 80
    assert store.get(K).data == b"80"


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_processes_lose_no_increment(maker: Maker) -> None:
    maker.open().put(K, b"0")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=spawn) as processes:
        assert sum(processes.map(increment_elsewhere, [maker] * 4, [15] * 4)) == 60
    assert maker.open().get(K).data == b"60"

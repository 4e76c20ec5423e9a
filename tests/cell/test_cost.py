"""What each act on a cell costs in requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from limpet.cell import PLAIN, Cell, Fence
from limpet.errors import Conflict
from limpet.keys import cell_key
from limpet.store import MemoryStore, MeteredStore
from support.clock import ManualRuntime

K = cell_key("x")
FENCE = Fence("locks/user/a.lock", 1)


class Bench:
    """A metered handle, and another process's."""

    def __init__(self) -> None:
        runtime = ManualRuntime()
        memory = MemoryStore(runtime)
        self.store = MeteredStore(memory, runtime=runtime)
        self.mine = Cell(self.store, K, PLAIN, runtime)
        self.other = Cell(memory, K, PLAIN, runtime)

    def cost(self, act: Callable[[], object]) -> dict[str, int]:
        with self.store.measure() as cost:
            act()
        return cost.requests


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_create_is_one_put(bench: Bench) -> None:
    assert bench.cost(lambda: bench.mine.create(1)) == {"put": 1}


def test_a_refused_create_reads_once_more(bench: Bench) -> None:
    bench.other.create(1)

    def refused() -> None:
        with pytest.raises(Conflict):
            bench.mine.create(2)

    assert bench.cost(refused) == {"put": 1, "get": 1}


def test_swap_is_one_put(bench: Bench) -> None:
    seen = bench.mine.create(1)
    assert bench.cost(lambda: bench.mine.swap(seen, 2)) == {"put": 1}


def test_update_is_a_get_and_a_put(bench: Bench) -> None:
    for _ in range(3):
        assert bench.cost(lambda: bench.mine.update(lambda n: (n or 0) + 1)) == {"get": 1, "put": 1}


def test_an_update_that_declines_is_a_get(bench: Bench) -> None:
    assert bench.cost(lambda: bench.mine.update(lambda _: None)) == {"get": 1}


@pytest.mark.parametrize("lease", [None, FENCE])
def test_write_is_one_put_for_a_handle_that_saw_the_newest_version(bench: Bench, lease: Fence | None) -> None:
    assert bench.cost(lambda: bench.mine.write(1, lease=lease)) == {"get": 1, "put": 1}
    for n in range(3):
        assert bench.cost(partial(bench.mine.write, n, lease=lease)) == {"put": 1}
    bench.other.write(9, lease=lease)
    bench.mine.read()
    assert bench.cost(lambda: bench.mine.write(1, lease=lease)) == {"put": 1}


def test_a_write_on_an_old_version_pays_for_its_mistake(bench: Bench) -> None:
    bench.mine.write(1)
    bench.other.write(2)
    assert bench.cost(lambda: bench.mine.write(3)) == {"put": 2, "get": 1}


def test_read_is_one_get(bench: Bench) -> None:
    assert bench.cost(bench.mine.read) == {"get": 1}

"""B1: a counter that many writers update at once ends at the right number, and no outcome is unknown."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from limpet.kernel.cell import PLAIN, Cell
from limpet.kernel.errors import LimpetError
from limpet.kernel.keys import cell_key
from limpet.kernel.runtime import SystemRuntime
from support.servers.maker import Maker

WRITERS = 16


def contend(maker: Maker, updates: int) -> tuple[Counter[str], int]:
    """How the updates of 16 writers ended, and where the counter stands."""
    ends: Counter[str] = Counter()
    store = maker.open()  # the client of a bucket is shared, as the threads of one process share it

    def write() -> None:
        cell = Cell(store, cell_key("count"), PLAIN, SystemRuntime())
        mine: Counter[str] = Counter()
        for _ in range(updates // WRITERS):
            try:
                cell.update(lambda value: (value or 0) + 1)
                mine["done"] += 1
            except LimpetError as error:
                mine[type(error).__name__] += 1
        ends.update(mine)

    threads = [threading.Thread(target=write) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = Cell(store, cell_key("count"), PLAIN, SystemRuntime()).read()
    assert seen is not None
    return ends, seen.value


@pytest.mark.parametrize("kind", ["memory", "directory-os", "seaweedfs"])
def test_sixteen_writers_lose_and_double_nothing_and_know_every_outcome(maker: Maker) -> None:
    ends, value = contend(maker, 800)
    assert ends == {"done": 800}
    assert value == 800


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["memory", "directory-os", "directory-fsync", "seaweedfs"])
def test_ten_thousand_updates_by_sixteen_writers(maker: Maker) -> None:
    ends, value = contend(maker, 10_000)
    assert ends == {"done": 10_000}
    assert value == 10_000

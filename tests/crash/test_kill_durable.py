"""kill -9 among the workers of durable tasks: each order is carried out, and each effect is in the books once."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import limpet
from crash.conftest import Start
from crash.test_kill import Poll

WORKERS = 2
KILLS = 8
TTL_S = 1.0
ORDERS = 24


def test_orders_are_carried_out_once_in_the_books(place: str, start: Start, poll: Poll, tmp_path: Path) -> None:
    books = tmp_path / "books"
    books.mkdir()
    fleet = limpet.open(place)
    queue = fleet.queue("order")
    ids = [queue.push({"n": n}, id=f"order-{n}").id for n in range(ORDERS)]

    def effects() -> list[str]:
        return [page.read_text() for page in books.iterdir() if not page.name.endswith(".draft")]

    chance = random.Random(7)
    workers = [start("orders", place, TTL_S, books) for _ in range(WORKERS)]
    for kill in range(KILLS):
        goal = min(len(effects()) + chance.randint(1, 6), 2 * ORDERS - KILLS + kill)
        poll(lambda goal=goal: len(effects()) >= goal, "a worker goes on")  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.05))
        victim = chance.randrange(WORKERS)
        workers[victim].kill()
        workers[victim].wait()
        workers[victim] = start("orders", place, TTL_S, books)
    poll(lambda: queue.stats().pending == 0, "the rest is done")
    for process in workers:
        process.kill()
        process.wait()

    bad = [n for n in range(ORDERS) if n % 4 == 3]
    wanted = Counter(f"{what} {n}" for what in ("reserve", "charge") for n in range(ORDERS))
    wanted += Counter(f"release {n}" for n in bad)
    wanted += Counter(f"ship {n}" for n in range(ORDERS) if n not in bad)
    assert Counter(effects()) == wanted
    values = [result.value for result in queue.results(ids)]
    assert values == ["released" if n in bad else [10 * n + part for part in range(3)] for n in range(ORDERS)]
    assert fleet.queue("pack").stats().completed == 3 * (ORDERS - len(bad)), "each part is packed under one name"

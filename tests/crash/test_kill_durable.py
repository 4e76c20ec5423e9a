"""kill -9 among the workers of durable tasks: each effect is in the books once, and no recorded step runs again."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import limpet
from crash.conftest import Start
from crash.durable_programs import PARTS, is_bad_page, is_declined, is_refused, size_of
from crash.test_kill import Poll

WORKERS = 3
TTL_S = 1.0
SECTIONS = 12


class Books:
    """What the workers have entered and logged: see `crash.durable_programs`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "effects").mkdir(parents=True)

    def effects(self) -> Counter[str]:
        """What was entered, and how often."""
        return Counter(page.read_text() for page in (self.folder / "effects").iterdir())

    def log(self) -> list[list[str]]:
        """The events, in the order in which they happened."""
        log = self.folder / "log"
        return [line.split(" ") for line in log.read_text().splitlines()] if log.exists() else []

    def entered(self) -> int:
        """How many effects there are."""
        return sum(1 for _ in (self.folder / "effects").iterdir())

    def repeated(self) -> int:
        """How many calls of steps were repeated. None is by a run that began after the step was known to be recorded.

        A step whose call was repeated was called by runs that died, or ran at the same time, before the record.
        """
        known: dict[str, int] = {}
        began: dict[str, int] = {}
        calls: Counter[str] = Counter()
        for at, (event, *words) in enumerate(self.log()):
            if event == "begin":
                began[words[0]] = at
            elif event == "known":
                known.setdefault(words[0], at)
            else:
                key, run, *what = words
                calls[key] += 1
                assert began[run] < known.get(key, at), f"{' '.join(what)} ran again, and was recorded before"
        assert {*calls} == {page.name for page in (self.folder / "effects").iterdir()}
        return sum(calls.values()) - len(calls)


def _killed(launch: Callable[[], subprocess.Popen[str]], books: Books, poll: Poll, *, kills: int, total: int) -> None:
    """Start workers, and kill one of them at random after some progress, again and again until `total` effects."""
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    goals = sorted(chance.randrange(total) for _ in range(kills))
    workers = [launch() for _ in range(WORKERS)]
    for goal in goals:
        poll(lambda goal=goal: books.entered() >= goal, f"{goal} effects")  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.05))
        victim = chance.randrange(WORKERS)
        workers[victim].kill()
        workers[victim].wait()
        workers[victim] = launch()


KILLS = pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.full)])


@KILLS
def test_orders(place: str, start: Start, poll: Poll, tmp_path: Path, kills: int) -> None:
    count = 4 * kills
    books = Books(tmp_path / "books")
    fleet = limpet.open(place)
    queue = fleet.queue("order")
    ids = [queue.push({"n": n}, id=f"order-{n}").id for n in range(count)]
    declined = {n for n in range(count) if is_declined(n)}
    refused = {n for n in range(count) if is_refused(n)} - declined
    wanted = Counter(f"{what} {n}" for what in ("reserve", "charge") for n in range(count))
    wanted += Counter(f"ship {n}" for n in range(count) if n not in declined)
    wanted += Counter(f"refund {n}" for n in refused)
    wanted += Counter(f"release {n}" for n in declined | refused)

    _killed(lambda: start("orders", place, TTL_S, books.folder), books, poll, kills=kills, total=wanted.total())
    poll(lambda: queue.stats().pending == 0, "the rest is done")

    assert books.effects() == wanted
    values = {n: "declined" if n in declined else "refused" for n in declined | refused}
    results = queue.results(ids)
    assert [result.value for result in results] == [
        values.get(n, [10 * n + part for part in range(PARTS)]) for n in range(count)
    ]
    packed = fleet.queue("pack").stats()
    assert packed.completed == PARTS * (count - len(declined)), "each part is packed under one name"
    print(f"{count} orders, {kills} kills, {books.repeated()} of {wanted.total()} steps were called again")


@KILLS
def test_a_fan_out_and_a_report(place: str, start: Start, poll: Poll, tmp_path: Path, kills: int) -> None:
    pages = 5 * kills * kills
    books = Books(tmp_path / "books")
    fleet = limpet.open(place)
    queue = fleet.queue("report")
    id_ = queue.push({"pages": pages, "sections": SECTIONS}, id="monday").id
    bad = [n for n in range(pages) if is_bad_page(n)]
    wanted = Counter(f"store {n}" for n in range(pages) if n not in bad)
    wanted += Counter(["list", "write", *(f"section {n}" for n in range(SECTIONS))])

    _killed(lambda: start("scraper", place, TTL_S, books.folder), books, poll, kills=kills, total=wanted.total())
    poll(lambda: queue.stats().pending == 0, "the rest is done")

    assert books.effects() == wanted
    sizes = [0 if n in bad else size_of(n) for n in range(pages)]
    sums = [sum(sizes[part::SECTIONS]) for part in range(SECTIONS)]
    assert queue.result(id_).value == {"sums": sums, "bad": bad}
    crawled = fleet.queue("crawl").stats()
    assert (crawled.completed, crawled.failed, crawled.pending) == (pages - len(bad), len(bad), 0)
    print(f"{pages} pages, {kills} kills, {books.repeated()} of {wanted.total()} steps were called again")

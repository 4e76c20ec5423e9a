"""Workers of durable tasks whose effects are in the books of a shop: programs of `crash.programs`.

The books are a folder. `effects/` has one file for each idempotency key, entered once, as a bank does. `log` has a line
for each event of a worker, in the order in which they happened: the operating system appends them one at a time.

    begin RUN            a handler began, after its claim
    call KEY RUN WHAT    the function of a step is called
    known KEY RUN        `limpet.step` returned: the step is recorded
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import limpet
from limpet.kernel.runtime import system
from limpet.queue import Fail
from limpet.worker import Worker

__all__ = ["PARTS", "is_bad_page", "is_declined", "is_refused", "orders", "scraper", "size_of"]

PARTS = 3
BATCH = 50


def is_declined(n: int) -> bool:
    """Whether the bank declines the charge of an order."""
    return n % 6 == 5


def is_refused(n: int) -> bool:
    """Whether the carrier refuses an order, which is paid by then."""
    return n % 4 == 2


def is_bad_page(n: int) -> bool:
    """Whether a page cannot be fetched."""
    return n % 50 == 49


def size_of(n: int) -> int:
    """The size of a page."""
    return 1000 + n * 7 % 911


class BookKeeper:
    """Enters effects, once for each key, and logs what the worker does."""

    def __init__(self, folder: str) -> None:
        self._effects = Path(folder, "effects")
        self._log = os.open(Path(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self) -> str:
        """A handler begins: the name of this run."""
        run = uuid4().hex
        self._say("begin", run)
        return run

    def step(self, run: str, what: str, answer: Any = None, *, most_s: float = 0.02) -> Any:
        """A step with an effect: what it returns, as every attempt sees it."""
        keys: list[str] = []

        def effect() -> Any:
            keys.append(_key())
            self._say("call", keys[0], run, what)
            time.sleep(random.uniform(0, most_s / 2))
            self._enter(keys[0], what)
            time.sleep(random.uniform(0, most_s / 2))
            return answer

        value = limpet.step(effect, name=what.split()[0])
        if keys:
            self._say("known", keys[0], run)
        return value

    def _enter(self, key: str, what: str) -> None:
        draft = self._effects.parent / f"{key}.{uuid4().hex}"
        draft.write_text(what)
        with suppress(FileExistsError):
            os.link(draft, self._effects / key)
        draft.unlink()

    def _say(self, *words: str) -> None:
        os.write(self._log, (" ".join(words) + "\n").encode())


def _key() -> str:
    task = limpet.current_task()
    return hashlib.sha256(task.step_key.encode()).hexdigest()


def _settings(ttl_s: str) -> dict[str, Any]:
    return {"ttl_s": float(ttl_s), "max_attempts": 100, "backoff_s": 0.1}


def orders(url: str, ttl_s: str, folder: str) -> None:
    """Work on orders, for ever: reserve, charge, pack, ship. A charge or a shipment that is refused is compensated."""
    fleet, books = limpet.open(url), BookKeeper(folder)

    @fleet.task("pack", **_settings(ttl_s))
    def pack(n: int, part: int) -> int:
        time.sleep(random.uniform(0, 0.02))
        return 10 * n + part

    @fleet.task("order", **_settings(ttl_s), durable=True)
    def order(n: int) -> list[int] | str:
        run = books.begin()
        compensations: list[Callable[[], object]] = []

        def compensated(said: str) -> str:
            for undo in reversed(compensations):
                undo()
            return said

        books.step(run, f"reserve {n}")
        compensations.append(lambda: books.step(run, f"release {n}"))
        if books.step(run, f"charge {n}", not is_declined(n)) is False:
            return compensated("declined")
        compensations.append(lambda: books.step(run, f"refund {n}"))
        ends = limpet.gather(pack.push_many([(n, part) for part in range(PARTS)]))
        limpet.sleep(0.2)
        if books.step(run, f"ship {n}", not is_refused(n)) is False:
            return compensated("refused")
        return [end.unwrap() for end in ends]

    Worker([order.job, pack.job], system(), threads=2, poll_s=0.3).run()


def scraper(url: str, ttl_s: str, folder: str) -> None:
    """Crawl and report, for ever. The tasks of the fan-out are durable, too: the pages that they store are effects."""
    fleet, books = limpet.open(url), BookKeeper(folder)

    @fleet.task("crawl", **_settings(ttl_s), durable=True)
    def crawl(n: int) -> int:
        run = books.begin()
        if is_bad_page(n):
            raise Fail(f"page {n} is gone")
        return int(books.step(run, f"store {n}", size_of(n), most_s=0.004))

    @fleet.task("report", **_settings(ttl_s), durable=True)
    def report(pages: int, sections: int) -> dict[str, Any]:
        run = books.begin()
        numbers = books.step(run, "list", [*range(pages)])
        ends = limpet.gather(crawl.push_many([(n,) for n in numbers], batch=BATCH))
        sizes = [end.value if end.ok else 0 for end in ends]
        limpet.sleep(0.2)
        sums = [books.step(run, f"section {part}", sum(sizes[part::sections]), most_s=0.2) for part in range(sections)]
        bad = [n for n, end in zip(numbers, ends, strict=True) if not end.ok]
        return dict(books.step(run, "write", {"sums": sums, "bad": bad}))

    Worker([report.job, crawl.job], system(), threads=3, poll_s=0.3).run()

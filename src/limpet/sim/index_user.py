"""What a process does with an index: it writes, reads and compiles, and tells the books what it was told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from limpet.errors import Corrupt, Missing
from limpet.index import Index
from limpet.index.stamps import stamps_of
from limpet.keys import Key
from limpet.lease import VersionWatch
from limpet.sim.cast import Actor
from limpet.sim.index_books import Books, Line, lines_in
from limpet.sim.index_store import INDEX, NEWER, OLDER, WAITING, Newer, Older, Watched
from limpet.sim.linear import History
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import EPOCH, Violation

__all__ = ["DAMAGE", "Habits", "User"]

DAMAGE = ("changed", "lost", "missing_shard", "cut_off", "bad_line", "bad_value", "order", "duplicate", "misplaced")

Turns = list[tuple[float, Callable[[], None]]]


@dataclass(frozen=True, slots=True)
class Habits:
    """What the users of this seed are like.

    `duel`: each does one thing, as fast as it can. `ahead`: with records of the future. `full`: how often a compiler is
    told to fold everything.
    """

    names: tuple[str, ...]
    duel: bool = False
    ahead: bool = False
    rest_s: float = 3.0
    full: float = 0.07


class User(Actor):
    """One process's program."""

    store: Watched

    def __init__(self, runtime: SimRuntime, store: Watched, history: History, books: Books, habits: Habits) -> None:
        super().__init__(runtime, store, history)
        self.store = store
        self.books = books
        self.habits = habits
        self.index: Index[Any] = Index(
            store,
            INDEX,
            runtime,
            NEWER if self.process.newer else OLDER,
            stamps_of(store, runtime, "fleet"),
            VersionWatch(runtime),
        )

    def turns(self) -> Turns:
        """The things that users do. Every slot does all of them, unless it has just one thing to do."""
        write: Turns = [(0.12, self.put_some), (0.05, self.put_with_time), (0.08, self.delete), (0.2, self.put)]
        read: Turns = [(0.03, self.verify), (0.07, self.scan), (0.08, self.get_some), (0.15, self.get)]
        work: Turns = [(self.habits.full, self.compile_all), (0.2, self.compile)]
        if self.habits.duel:
            slot = int(self.process.name[1:].partition("#")[0])
            return (read, work, write, read, work)[slot]
        return [*write, *read, *work]

    def turn(self) -> None:
        """One of them, and a rest. What a vandal spoilt may be met by anybody who reads."""
        try:
            super().turn()
        except Corrupt:
            if not self.books.bad:
                raise
        self.runtime.sleep(self.chance() * self.habits.rest_s)

    def name(self) -> str:
        """Some key."""
        return self.habits.names[int(self.chance() * len(self.habits.names))]

    def record(self, *, given: bool = False) -> Older | Newer:
        """A record of some key that nobody else writes; with a time that others may give too."""
        name = self.name()
        return self.made(name, self.some_time(name) if given else None)

    def made(self, name: str, at: datetime | None = None) -> Older | Newer:
        """A record as this program's version makes it."""
        by = self.new_value()
        return Newer(name, by, at, note=f"by {by}") if self.process.newer else Older(name, by, at)

    def some_time(self, name: str) -> datetime:
        """A time that somebody used for this key already, so that they meet; or now, coarsely; or some hours off."""
        used = [line.stamp for line in self.books.sent.get(name, {}).values()]
        if used and self.chance() < 0.5:
            return datetime.fromisoformat(used[int(self.chance() * len(used))])
        at = EPOCH + timedelta(seconds=int(self.world.now_s) // 8 * 8)
        if self.chance() < (0.5 if self.habits.ahead else 0.1):
            at += timedelta(hours=(-3, 5, 20)[int(self.chance() * (3 if self.habits.ahead else 1))])
        return at

    def writing(self, records: Iterable[Older | Newer], call: Callable[[], object]) -> list[Line]:
        """Write; the lines that were sent count as acknowledged once it is answered."""
        self.books.operations += 1
        given = {str(record.by) for record in records if record.updated_at}
        sent: dict[Key, list[Line]] = {}

        def watch(key: Key, data: bytes) -> None:
            if key not in sent and key.startswith(WAITING):
                sent[key] = lines_in(data)
                for line in sent[key]:
                    self.books.sends(self.process.name, line, given)

        self.store.watch = watch
        try:
            call()
        finally:
            self.store.watch = None
        lines = [line for each in sent.values() for line in each]
        self.books.acknowledged(self.process.name, lines, given)
        return lines

    def put(self) -> None:
        """A record, stamped by Limpet; often after a look at it."""
        record = self.record()
        if self.chance() < 0.3:
            self.get(record.key)
        self.writing([], lambda: self.index.put(record))

    def put_with_time(self) -> None:
        """A record that brings its own time."""
        record = self.record(given=True)
        self.writing([record], lambda: self.index.put(record))

    def put_some(self) -> None:
        """Several at once, the same key twice or more; the last of each counts."""
        records = [self.record(given=self.chance() < 0.15) for _ in range(2 + int(self.chance() * 4))]
        if self.chance() < 0.2:
            self.get(records[0].key)
        lines = self.writing(records, lambda: self.index.put_many(records))
        last = {record.key: record.by for record in records}
        if {line.key: line.by for line in lines} != last or len(lines) != len(last):
            raise Violation(f"put_many of {records} wrote {[str(line) for line in lines]}")

    def delete(self) -> None:
        """Remove a record."""
        name = self.name()
        self.writing([], lambda: self.index.delete(name))

    def get(self, key: str | None = None) -> None:
        """One record."""
        self.books.operations += 1
        name = key or self.name()
        floors = self.books.begins([name])
        record = self.index.get(name)
        self.books.ends(self.process.name, floors, {} if record is None else {name: record})

    def get_some(self) -> None:
        """Some records, and one that never was."""
        self.books.operations += 1
        names = sorted({self.name() for _ in range(1 + int(self.chance() * 5))})
        floors = self.books.begins(names)
        found: dict[Any, Any] = self.index.get_many([*names, "nobody"])
        if not found.keys() <= {*names}:
            raise Violation(f"get_many of {names} found {found}")
        self.books.ends(self.process.name, floors, found)

    def scan(self) -> None:
        """Every record."""
        self.books.operations += 1
        floors = self.books.begins(self.habits.names)
        records = [*self.index.scan()]
        found = {record.key: record for record in records}
        if len(found) != len(records):
            raise Violation(f"a scan shows a key twice: {records}")
        self.books.ends(self.process.name, floors, found, got=False)

    def verify(self) -> None:
        """A check beside all the others. No shard is ever damaged, so it says that none is.   Raises: Violation."""
        self.books.operations += 1
        try:
            report = self.index.verify()
        except Missing:
            return  # nobody has created it yet
        for finding in report.findings:
            if finding.kind in DAMAGE and "/shards/" in finding.key:
                raise Violation(f"{finding.key} is healthy, and verify says that it {finding.what}")

    def compile(self) -> None:
        """As a cron job does."""
        self.books.operations += 1
        self.index.compile()

    def compile_all(self) -> None:
        """As somebody does who wants small listings now."""
        self.books.operations += 1
        self.index.compile(full=True)

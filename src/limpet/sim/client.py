"""What a process does with cells, and the notes that it takes for the checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.cell import PLAIN, Cell, Fenced, Versioned
from limpet.errors import Conflict, Invalid, LeaseLost
from limpet.keys import Key, cell_key
from limpet.sim.linear import History
from limpet.sim.runtime import SimRuntime
from limpet.store import Store

__all__ = ["Client"]


class Client:
    """Unchanged kernel code on one process's store; every answer goes into the history."""

    def __init__(self, runtime: SimRuntime, store: Store, history: History) -> None:
        self.runtime = runtime
        self.process = runtime.process
        self.world = runtime.world
        self.store = store
        self.history = history
        self.values = 0
        self.draws = 0
        self.register: Versioned[Any] | None = None

    def chance(self) -> float:
        """Chance of this process alone."""
        self.draws += 1
        return self.world.chance(40, self.process.index, self.draws)

    def cell(self, name: str) -> Cell[Any]:
        """A fresh handle on a cell."""
        return Cell(self.store, cell_key(name), PLAIN, self.runtime)

    def new_value(self) -> str:
        """A value that nobody else writes."""
        self.values += 1
        return f"{self.process.name}-{self.values}"

    def recorded(self, key: Key, name: str, argument: Any, call: Callable[[], Any]) -> Any:
        """Do it, and put it into the history: an unknown outcome stays open. None for a refusal that is an answer."""
        operation = self.history.begin(self.process.name, key, name, argument)
        try:
            answer = call()
        except LeaseLost:
            self.history.end(operation, "LeaseLost")
            raise
        except (Conflict, Invalid) as refused:
            self.history.end(operation, type(refused).__name__)
            return None
        self.history.end(operation, answer)
        return answer

    def read(self, cell: Cell[Any]) -> Versioned[Any] | None:
        """A read of the whole cell."""
        operation = self.history.begin(self.process.name, cell.key, "read")
        seen = cell.read()
        self.history.end(operation, seen.value if seen else None)
        return seen

    def write(self, cell: Cell[Any], lease: Fenced | None, *, name: str = "write") -> None:
        """A write, with or without a token."""
        value = self.new_value()
        token = lease.token if lease else None
        self.recorded(cell.key, name, (value, token), lambda: cell.write(value, lease=lease) and "ok")

    def count(self) -> None:
        """A shared counter: increments by update."""
        cell = self.cell("counter")

        def add() -> Any:
            seen = cell.update(lambda n: (n or 0) + 1)
            return seen.value if seen else None

        self.recorded(cell.key, "add", None, add)

    def swap_register(self) -> None:
        """Read a register, and swap it on what was read, now or later."""
        cell = self.cell("register")
        seen = self.register if self.register and self.chance() < 0.3 else self.read(cell)
        if seen is None:
            self.create(cell)
            return
        self.register = seen
        if self.chance() < 0.3:
            self.runtime.sleep(self.chance() * 2)
        value = self.new_value()
        self.recorded(cell.key, "swap", (seen.value, value), lambda: cell.swap(seen, value) and "ok")

    def create_once(self) -> None:
        """Several race to create one name."""
        cell = self.cell(f"once-{int(self.chance() * 3)}")
        self.create(cell)
        self.read(cell)

    def create(self, cell: Cell[Any]) -> None:
        """Write the first version."""
        value = self.new_value()
        self.recorded(cell.key, "create", value, lambda: cell.create(value) and "ok")

"""Write the golden directory of the current format: what this version of Limpet leaves on a disk, byte for byte.

    python tools/make_golden.py tests/golden/format1

Ids and times are fixed, so the same code always writes the same bytes; a test compares them with what was committed.
A golden directory is never rewritten: when the format changes on purpose, the new code makes the next one, and the old
one stays to prove that it can still be read.
"""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from limpet import keys
from limpet.app.formats import FleetRecord, fresh
from limpet.cell import PLAIN, Cell, struct_codec
from limpet.lease import Lease, Lock, Sightings
from limpet.runtime import SystemRuntime, ulid
from limpet.store import DirectoryStore
from limpet.store.probe import Findings

__all__ = ["CELLS", "LOCKS", "build", "main"]

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WEEK_S = 7 * 86400.0

LOCKS = {"report": 3, "nightly": 1, "../Ünïx/%2e ~#1": 2}
"""Each lock and its token. `nightly` is held, the others are free."""

CELLS: dict[str, Any] = {
    "counter": 20,
    "summary": {"rows": 20, "by": "token 3"},
    "a": "lower",
    "A": "upper",
    "é": "one character",
    "e\u0301": "two characters",
    "k": [],
    "k/x": {"deep": [1, -2.5, 1e300, True, None, 'quote " slash \\ line \n nul \u0000 crab \U0001f980']},
    ".hidden": 9007199254740993,
    "../../escape": False,
    "a" * 300: "a name that is hashed",
    "con.json": "",
}
"""Each cell and its value. `summary` is guarded by the lock `report`."""


class _FixedRuntime(SystemRuntime):
    """Each act takes one second. How many ids an act draws does not move those of the next."""

    def __init__(self) -> None:
        self._acts = self._ids = 0
        super().__init__()

    def act(self) -> None:
        self._acts, self._ids = self._acts + 1, 0

    @property
    def owner(self) -> str:
        return ulid(0, 1)

    @property
    def label(self) -> str:
        return "golden:1"

    def wall(self) -> datetime:
        return START + timedelta(seconds=self._acts)

    def elapsed_s(self) -> float:
        return float(self._acts)

    def new_id(self) -> str:
        self._ids += 1
        return ulid(int(self.wall().timestamp()) * 1000, self._acts * 32 + self._ids)


class _Builder:
    def __init__(self, root: Path) -> None:
        self.runtime = _FixedRuntime()
        self.store = DirectoryStore(root, durability="os", runtime=self.runtime)
        self.sightings = Sightings(self.runtime)

    def fleet(self) -> None:
        self.runtime.act()
        findings = Findings(conditional=True, etag_style="quoted", at=START.isoformat(), by="limpet 0.1.0")
        Cell(self.store, keys.FLEET, struct_codec(FleetRecord), self.runtime).create(fresh(findings))

    def take(self, name: str) -> Lease:
        self.runtime.act()
        lease = Lock(self.store, keys.lock_key(name), name, WEEK_S, self.runtime, self.sightings).try_acquire()
        assert isinstance(lease, Lease)
        return lease

    def write(self, name: str, value: Any, lease: Lease | None = None) -> None:
        self.runtime.act()
        Cell(self.store, keys.cell_key(name), PLAIN, self.runtime).write(value, lease=lease)

    def locks_and_summary(self) -> None:
        for name, token in LOCKS.items():
            for turn in range(1, token + 1):
                lease = self.take(name)
                for n in range(1, 21 if name == "report" and turn == token else 3):
                    self.runtime.act()
                    lease.renew()
                    if name == "report":
                        self.write("summary", {"rows": n, "by": f"token {turn}"}, lease)
                if name != "nightly":
                    self.runtime.act()
                    lease.release()

    def other_cells(self) -> None:
        for n in range(1, CELLS["counter"] + 1):
            self.write("counter", n)
        for name, value in CELLS.items():
            if name not in ("counter", "summary"):
                self.write(name, value)


def build(root: Path) -> None:
    """Write the golden directory below `root`, which must not exist."""
    root.mkdir(parents=True)
    builder = _Builder(root)
    builder.fleet()
    builder.locks_and_summary()
    builder.other_cells()
    shutil.rmtree(root / ".limpet")  # locks and temp files of the directory store: no part of the format


def main() -> None:
    """Build where the command line says."""
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("usage: make_golden.py NEW_DIRECTORY (an existing one is never rewritten)")
    build(Path(sys.argv[1]))


if __name__ == "__main__":
    main()

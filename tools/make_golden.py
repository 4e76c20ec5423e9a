"""Write the golden directory of the current format: what this version of Limpet leaves on a disk, byte for byte.

    python tools/make_golden.py tests/golden/format1

Ids and times are fixed, so the same code always writes the same bytes; a test compares them with what was committed.
A golden directory is never rewritten: when the format changes on purpose, the new code makes the next one, and the old
one stays to prove that it can still be read.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from limpet.app.record import FleetRecord, fresh
from limpet.index import Index
from limpet.index.types import typed
from limpet.index.writer import stamps_of
from limpet.kernel import keys
from limpet.kernel.cell import PLAIN, Cell, struct_codec
from limpet.kernel.lease import Lease, Lock, VersionWatch
from limpet.kernel.runtime import SystemRuntime, ThreadHandle, ulid
from limpet.kernel.store import DirectoryStore
from limpet.kernel.store.probe import Findings
from limpet.queue import BucketQueue, Policy
from limpet.queue.claim import EntryClaim

__all__ = [
    "AWKWARD",
    "CELLS",
    "DELETED",
    "ENDED",
    "INDEX",
    "LARGE",
    "LOCKS",
    "QUEUE",
    "RECORDS",
    "WAITING",
    "build",
    "main",
]

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

QUEUE = "enrich"
AWKWARD = "../Warteschlange für Ä"
LARGE = "large " * 400

ENDED: dict[str, tuple[str, Any]] = {
    "done": ("completed", {"rows": 3, "text": 'quote " line \n \u2028 crab \U0001f980'}),
    "failed": ("failed", None),
    "again": ("completed", "at the second life"),
    "cancelled": ("cancelled", None),
}
"""Each task of the queue that has ended, with its state and result. `again` failed once and was retried."""

WAITING: dict[str, Any] = {"a/b é": {"domain": "a.com", "deep": [1, None, {"x": "\u2028"}]}, "x" * 300: {"n": 1}}
"""Single tasks that wait, and their payloads."""

INDEX = "../Größe %2e"
TEXT = 'quote " slash \\ null \\N line \n return \r unit \x1f record \x1e nul \x00 del \x7f \u2028 crab \U0001f980'

RECORDS: dict[str, dict[str, Any]] = {
    **{f"plain{n}": {"text": f"compiled {n}", "number": n} for n in range(12)},
    "every kind": {
        "text": TEXT,
        "number": -(2**63),
        "ratio": 1e300,
        "good": False,
        "day": date(1999, 12, 31),
        "moment": datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC),
        "tags": ["x", "", None],
        "extra": {"deep": [1, -2.5, True, None, TEXT]},
        "whatever": "any",
    },
    "empty": {"text": "", "number": 0, "ratio": 0.0, "good": True, "tags": [], "extra": {}, "whatever": 0},
    TEXT: {"text": "an awkward key"},
    "k" * 300: {"text": "a key whose folder is hashed"},
    "Upper": {"text": "upper"},
    "upper": {"text": "lower"},
    "early": {"text": "with a time of its own"},
    "back": {"text": "deleted, and put again"},
    "wide": {"text": "compiled with the newer column", "later": "new"},
    "pack0": {"text": "waits in a pack", "later": None},
    "pack263": {"text": "waits in a pack", "later": "new"},
    "plain1": {"text": "waits in a pack", "number": 1},
    "single": {"text": "waits by itself", "later": "new"},
    "plain2": {"text": "waits by itself", "number": 2, "later": TEXT},
}
"""Each record of the index as it is read: what is not named is null."""

DELETED = ("gone", "gone later")
"""Keys with a tombstone, compiled and waiting."""

_COLUMNS = [
    {"name": "id", "type": "string"},
    {"name": "text", "type": "string"},
    {"name": "number", "type": "integer"},
    {"name": "ratio", "type": "number"},
    {"name": "good", "type": "boolean"},
    {"name": "day", "type": "date"},
    {"name": "moment", "type": "datetime"},
    {"name": "tags", "type": "array"},
    {"name": "extra", "type": "object"},
    {"name": "whatever", "type": "any"},
]


class _FixedRuntime(SystemRuntime):
    """Each act takes one second. How many ids an act draws does not move those of the next."""

    def __init__(self) -> None:
        self._acts = self._ids = 0
        super().__init__()
        self.owner, self.label, self.rng = ulid(0, 1), "golden:1", Random(1)

    def act(self) -> None:
        self._acts, self._ids = self._acts + 1, 0
        self.rng = Random(1)

    def wall(self) -> datetime:
        return START + timedelta(seconds=self._acts)

    def elapsed_s(self) -> float:
        return float(self._acts)

    def new_id(self) -> str:
        self._ids += 1
        return ulid(int(self.wall().timestamp()) * 1000, self._acts * 32 + self._ids)

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        return _NoThread()


class _NoThread:
    """What is written does not depend on when a heart beats."""

    def join(self) -> None:
        """There is nothing to wait for."""


class _FixedStore(DirectoryStore):
    """A directory that is never probed for its clock. `fixed`: a moment that finds its way into what is written."""

    at_once = 1
    fixed: datetime | None = None

    def now(self, *, max_age_s: float | None = None) -> datetime:
        return self.fixed or datetime.now(UTC)


class _Builder:
    def __init__(self, root: Path) -> None:
        self.runtime = _FixedRuntime()
        self.store = _FixedStore(root, durability="os", runtime=self.runtime)
        self.sightings = VersionWatch(self.runtime)

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

    def queue(self, name: str = QUEUE, **policy: Any) -> BucketQueue:
        """A fresh process's handle, so that no page is left over from an earlier act."""
        self.runtime.act()
        return BucketQueue(self.store, name, self.runtime, policy=Policy(**{"ttl_s": WEEK_S, **policy}))

    def claim(self, name: str = QUEUE, **policy: Any) -> EntryClaim:
        claim = self.queue(name, **policy).claim()
        assert isinstance(claim, EntryClaim)
        self.runtime.act()
        return claim

    def ended_tasks(self) -> None:
        for id_, (state, result) in ENDED.items():
            self.queue().push({"task": id_}, id=id_)
            if state == "cancelled":
                self.queue().cancel(id_)
            elif id_ == "done":
                next(iter(self.claim())).done(result)
            else:
                next(iter(self.claim())).retry(after_s=0, error="not yet")
                next(iter(self.claim())).fail("gone", "Traceback (most recent call last): gone")
        self.queue().retry("again")
        next(iter(self.claim())).done(ENDED["again"][1])

    def batches(self) -> None:
        """One that has ended, with every kind of verdict; one that rests half-way; one that nobody took yet."""
        self.queue().push_many([{"n": n} for n in range(3)])
        verdicts = iter(self.claim())
        next(verdicts).done({"n": 0})
        next(verdicts).fail("unlucky")
        next(verdicts).done(LARGE)
        self.queue().push_many([{"n": n} for n in range(4)])
        claim = self.claim()
        verdicts = iter(claim)
        next(verdicts).done("kept")
        next(verdicts).done(LARGE)
        next(verdicts).retry(after_s=WEEK_S, error="much later")
        next(verdicts).retry(after_s=WEEK_S / 2, error="later")
        self.queue().push_many([{"n": 0}, {"n": 1}])

    def entries(self) -> None:
        """A task that rests, one that is held, one under a limit, and some that wait."""
        self.queue(AWKWARD).push({"n": 1}, id="rests")
        next(iter(self.claim(AWKWARD))).retry(after_s=WEEK_S)
        self.queue(AWKWARD).push({"n": 2}, id="held")
        next(iter(self.claim(AWKWARD, concurrency=1, max_attempts=1)))
        for id_, payload in WAITING.items():
            self.queue().push(payload, id=id_)
        queue = self.queue()
        self.store.fixed = self.runtime.wall()
        queue.push({"n": 1}, id="delayed", delay_s=60)
        self.queue().pause()

    def records(self, *later: str) -> Index[dict[str, Any]]:
        """A fresh process's handle of the index, with columns that came later."""
        self.runtime.act()
        self.store.fixed = self.runtime.wall()
        columns = [*_COLUMNS, *({"name": name, "type": "string"} for name in later)]
        stamps = stamps_of(self.store, self.runtime, f"act {self.runtime.wall()}")
        kind = typed({"fields": columns, "primaryKey": "id"}, None)
        return Index(self.store, INDEX, self.runtime, kind, stamps, self.sightings)

    def index(self) -> None:
        """Shards of an older and a newer schema; packs, singles and tombstones that wait; and what was set aside."""
        named = {id_: {"id": id_, **values} for id_, values in RECORDS.items()}
        waiting = ("wide", "pack0", "pack263", "plain1", "single", "plain2")
        first = [record for id_, record in named.items() if id_ not in (*waiting, "early", "back")]
        self.records().put_many([*first, {"id": "plain1"}, {"id": "plain2"}, {"id": "gone"}, {"id": "gone later"}])
        self.records().put({**named["early"], "updated_at": START - timedelta(days=1)})
        self.records().delete("gone")
        self.records().put({"id": "back", "text": "first"})
        self.records().delete("back")
        self.records().compile(full=True)
        self.records().put(named["back"])
        self.records("later").put(named["wide"])
        rubbish = keys.IndexKeys.of(INDEX).pack("3a", ulid(0, 2))
        self.store.put(rubbish, b"rubbish")
        self.records("later").compile(full=True)
        self.records("later").put_many(named[id_] for id_ in ("pack0", "pack263", "plain1"))
        self.records("later").put(named["single"])
        self.records("later").put({"id": "plain2", "text": "an older one that waits"})
        self.records("later").put(named["plain2"])
        self.records("later").delete("gone later")


def build(root: Path) -> None:
    """Write the golden directory below `root`, which must not exist."""
    root.mkdir(parents=True)
    builder = _Builder(root)
    builder.fleet()
    builder.locks_and_summary()
    builder.other_cells()
    builder.ended_tasks()
    builder.batches()
    builder.entries()
    builder.index()
    shutil.rmtree(root / ".limpet")  # locks and temp files of the directory store: no part of the format


def main() -> None:
    """Build where the command line says."""
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("usage: make_golden.py NEW_DIRECTORY (an existing one is never rewritten)")
    build(Path(sys.argv[1]))


if __name__ == "__main__":
    main()

"""The programs that the crash tests run, kill and stop: `python -m crash.programs NAME ARGUMENT ...`."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import limpet
from crash.durable_programs import orders, scraper
from crash.index_programs import compile_records, write_records
from limpet.kernel.cell import Cell, Fence, Lost, Replaced, Unclear, Won
from limpet.kernel.cell.decide import admit
from limpet.kernel.errors import Held, LeaseLost, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key, lock_key
from limpet.kernel.lease import Lease, Lock, VersionWatch
from limpet.kernel.runtime import system
from limpet.kernel.store import Absent, Always, DirectoryStore, Match, MemoryStore, Version, When

__all__ = ["body", "expected", "kind_of", "main"]

PATIENCE_S = 30.0


def say(*words: object) -> None:
    """One line for the test, at once."""
    print(*words, flush=True)


def kind_of(act: Callable[[], object]) -> str:
    """What became of it: `done`, or the name of the error."""
    try:
        act()
    except LimpetError as error:
        return type(error).__name__
    return "done"


# ---- count: contend for one lock, and log under its token ----


def count(url: str, ttl_s: str, name: str, acks: str) -> None:
    """Take the lock, append to the log cell a few times, give it back; for ever.

    Notes in its own file, one line each, which tokens it got and which appends were acknowledged.
    """
    notes = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    fleet = limpet.open(url)
    lock = fleet.lock("work", ttl_s=float(ttl_s), look_first=True)
    cell = fleet.cell("log")
    appended = 0
    while True:
        try:
            with lock.hold(wait_s=1) as lease:
                os.write(notes, f"token {lease.token}\n".encode())
                for _ in range(random.randint(1, 5)):
                    appended += 1
                    entry = f"{name}.{appended}"
                    append(cell, [lease.token, entry], lease)
                    os.write(notes, f"entry {entry}\n".encode())
                    time.sleep(0.02)
        except (Held, LeaseLost, OutcomeUnknown, Unavailable):
            continue
        time.sleep(random.uniform(0, 0.2))


def append(cell: Cell[Any], item: list[Any], lease: Lease) -> None:
    """Add `item` to the list in the cell, in one swap that also compares the token."""
    while True:
        seen = cell.read()
        fence = admit(seen.header.fence if seen else None, Fence(lease.lock, lease.token), what=cell.key)
        match cell.attempt(seen, [*(seen.value if seen else []), item], fence):
            case Won() | Replaced():
                return
            case Unclear():
                raise OutcomeUnknown("too many others came after it")
            case Lost():
                continue


# ---- hold: keep a lock, sleep through its TTL, come back ----


def hold(url: str, ttl_s: str) -> None:
    """Hold the lock and write under it; when told to, try to go on as if nothing had happened."""
    fleet = limpet.open(url)
    cell = fleet.cell("result")
    told: list[str] = []

    def block() -> None:
        with fleet.lock("job", ttl_s=float(ttl_s)).hold(on_lost=lambda: told.append("lost")) as lease:
            cell.write(f"by token {lease.token}", lease=lease)
            say("holding", lease.token)
            sys.stdin.readline()
            say("write", kind_of(lambda: cell.write("late", lease=lease)))
            say("check", kind_of(lease.check))
            say("renew", kind_of(lease.renew))
            waits_until_s = time.monotonic() + PATIENCE_S
            while not told and time.monotonic() < waits_until_s:  # the end of the block stops the thread that tells
                time.sleep(0.01)

    say("block", kind_of(block))
    say("told", len(told))


# ---- fill: write and delete on a directory as fast as it goes ----

KEYS = 7


def body(i: int) -> bytes | None:
    """What operation `i` puts; None if it deletes."""
    if i % 11 == 0:
        return None
    seed = hashlib.sha256(str(i).encode()).digest()
    return b"%d " % i + seed * (1 + int.from_bytes(seed[:2]) // 16)


def expected(acknowledged: int) -> dict[Key, bytes | None]:
    """The bytes of every key after the operations 1 .. `acknowledged`."""
    found: dict[Key, bytes | None] = {_key(n): None for n in range(KEYS)}
    for i in range(max(1, acknowledged - 2 * KEYS), acknowledged + 1):
        found[_key(i)] = body(i)
    return found


def _key(i: int) -> Key:
    return Key(f"fill/k{i % KEYS}")


def fill(root: str, first: str, acks: str) -> None:
    """Operation after operation, each noted once it is acknowledged."""
    notes = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    store = DirectoryStore(root)
    i = int(first)
    while True:
        key, data = _key(i), body(i)
        if data is None:
            store.delete(key)
        else:
            store.put(key, data, when=Always() if i % 3 == 0 else _as_it_is(store, key))
        os.write(notes, b"%d\n" % i)
        i += 1


def _as_it_is(store: DirectoryStore, key: Key) -> When:
    try:
        return Match(store.head(key).version)
    except Missing:
        return Absent()


# ---- fork ----


def fork(url: str) -> None:
    """Fork inside a hold; child and then parent say what each of them may do, and how their block ends."""
    fleet = limpet.open(url)
    child = -1

    def block() -> None:
        nonlocal child
        with fleet.lock("job").hold() as lease:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
            for act in (lease.check, lease.renew):
                say("parent" if child else "child", act.__name__, kind_of(act))

    outcome = kind_of(block)
    say("parent" if child else "child", "block", outcome)


def fork_and_open(url: str) -> None:
    """Use a place, fork, and open it anew in the child."""

    def use() -> None:
        limpet.open(url).cell("a").update(lambda n: (n or 0) + 1)

    use()
    child = os.fork()
    if child == 0:
        signal.alarm(5)  # kills the child if it hangs
        os._exit(0 if kind_of(use) in ("done", "Unsupported") else 1)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


class _Stuck(MemoryStore):
    """Every put of the heartbeat waits until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if threading.current_thread().name.startswith("limpet-renewer"):
            self.entered.set()
            self.go.wait(60)
        return super().put(key, data, when=when)


def fork_mid_renewal() -> None:
    """Fork while the heartbeat thread is inside a renewal; the child then leaves the block."""
    store, runtime = _Stuck(), system()
    child = -1

    def block() -> None:
        nonlocal child
        with Lock(store, lock_key("job"), "job", 3.0, runtime, VersionWatch(runtime)).hold() as lease:
            store.entered.wait(60)
            child = os.fork()
            if child:
                store.go.set()
            else:
                signal.alarm(5)  # kills the child if it hangs
                assert kind_of(lease.renew) == "LeaseLost"

    outcome = kind_of(block)
    if child == 0:
        os._exit(0 if outcome == "LeaseLost" else 1)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


# ---- work: do the tasks of a queue ----


def work(url: str, ttl_s: str, notes: str) -> None:
    """Claim and do, for ever. Notes in its own file which tasks it started, and which of them were acknowledged."""
    lines = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    queue = limpet.open(url).queue("work", ttl_s=float(ttl_s), max_attempts=100, backoff_s=0.1)
    while True:
        try:
            with queue.claim(wait_s=1) as claim:
                for task in claim:
                    os.write(lines, f"start {task.id}\n".encode())
                    time.sleep(random.uniform(0, 0.03))
                    task.done({"by": notes})
                    os.write(lines, f"done {task.id}\n".encode())
        except (LeaseLost, OutcomeUnknown, Unavailable):
            continue


def main() -> None:
    """Run the program that the command line names."""
    programs: dict[str, Callable[..., None]] = {
        "count": count,
        "hold": hold,
        "fill": fill,
        "fork": fork,
        "fork_and_open": fork_and_open,
        "fork_mid_renewal": fork_mid_renewal,
        "orders": orders,
        "scraper": scraper,
        "work": work,
        "write_records": write_records,
        "compile_records": compile_records,
    }
    programs[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()

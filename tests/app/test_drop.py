"""Queues, indexes, locks and cells that are dropped: the same in memory, on a directory and in a bucket."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import limpet
from limpet.app.place import _named_memory
from limpet.app.record import DROPPING_MAX, announce_drop, record_cell
from limpet.kernel import drop as dropping
from limpet.kernel.drop import DropRecord, DropState, drop_cell
from limpet.kernel.errors import Conflict, Corrupt, Held, Invalid, LeaseLost, Missing, Unsupported
from limpet.kernel.keys import QueueKeys, cell_key, lock_key
from limpet.kernel.store import DirectoryStore

COLUMNS = {"fields": [{"name": "id", "type": "string"}]}


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of a memory store of this test's own."""
    name = uuid4().hex
    yield f"memory://{name}"
    _named_memory.pop(name, None)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real clock is not waited for."""
    monkeypatch.setattr(dropping, "SETTLE_S", 0.0)
    monkeypatch.setattr("limpet.queue.drop.NOTICE_S", 0.0)


def test_all_four_are_dropped_alike(url: str) -> None:
    fleet = limpet.open(url)
    queue, lock, cell = fleet.queue("q"), fleet.lock("l"), fleet.cell("c")
    index = fleet.index("i", COLUMNS, key="id")
    queue.push({"n": 1}, id="mine")
    index.put({"id": "a"})
    with lock:
        pass
    cell.create({"v": 1})
    assert (fleet.queues(), fleet.indexes(), len([*fleet.locks()]), len([*fleet.cells()])) == (["q"], ["i"], 1, 1)
    assert queue.drop().counts["pending"] == 1
    assert index.drop(quiesced=True).objects > 256
    assert (lock.drop().token, cell.drop().value) == (1, {"v": 1})  # type: ignore[union-attr]
    assert ([*fleet.store.list("queues/q")], [*fleet.store.list("indexes/i")]) == ([], [])
    assert ([*fleet.locks()], [*fleet.cells()]) == ([], [])
    if not fleet.meter.far:  # some servers list a folder that is empty
        assert (fleet.queues(), fleet.indexes()) == ([], [])
    for again in (queue.drop, index.drop, lock.drop, cell.drop):
        with pytest.raises(Missing):
            again()
    assert queue.push({"n": 2}, id="mine").created
    index.put({"id": "b"})
    assert [record["id"] for record in index.scan()] == ["b"]
    with lock as lease:
        assert lease.token == 2
    assert cell.update(lambda value: (value or 0) + 1).value == 1  # type: ignore[union-attr]


def test_a_queue_that_is_being_dropped_is_refused_to_those_who_open_the_fleet(memory: str) -> None:
    fleet = limpet.open(memory)
    fleet.queue("q").push({"n": 1})
    cell = drop_cell(fleet.store, QueueKeys.of("q").drop, fleet.runtime)
    begun = cell.create(DropRecord(stage=DropState.REMOVING, label="other", at=fleet.runtime.wall()))
    announce_drop(fleet.store, fleet.runtime, "q", True)
    for _ in range(2):
        with pytest.raises(Unsupported, match="the queue 'q' is being dropped"):
            limpet.open(memory).queue("q").push({"n": 2})
    limpet.open(memory).queue("other").push({"n": 2})
    cell.swap(begun, DropRecord(stage=DropState.DROPPED, label="other", at=fleet.runtime.wall()))
    limpet.open(memory).queue("q").push({"n": 2})  # its process died before it could take the announcement back
    assert limpet.open(memory).queue("q").drop().dropped
    assert limpet.open(memory).record.dropping is not None
    seen = record_cell(fleet.store, fleet.runtime).read()
    assert seen is not None
    assert not seen.value.dropping
    for n in range(DROPPING_MAX + 2):
        announce_drop(fleet.store, fleet.runtime, f"q{n}", True)
    seen = record_cell(fleet.store, fleet.runtime).read()
    assert seen is not None
    assert len(seen.value.dropping or ()) == DROPPING_MAX


# ---- locks ----


def test_a_lock_is_a_block(memory: str) -> None:
    lock = limpet.open(memory).lock("a", ttl_s=60)
    with lock as lease:
        assert (lease.token, lease.lost) == (1, False)
        with pytest.raises(Held, match="is held") as refused:
            lock.drop()
        assert refused.value.hint.endswith("limpet lock break a")
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert [seen.value.state.value for seen in limpet.open(memory).locks()] == ["free"]

    def lose() -> None:
        with lock:
            lock.break_()
            with limpet.open(memory).lock("a"):
                pass

    with pytest.raises(LeaseLost):
        lose()


def test_threads_and_coroutines_share_one_lock(memory: str) -> None:
    lock, inside, order = limpet.open(memory).lock("a"), [0], list[int]()

    def enter() -> None:
        with lock as lease:
            inside[0] += 1
            assert inside == [1]
            order.append(lease.token)
            inside[0] -= 1

    threads = [threading.Thread(target=enter) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def enter_async() -> None:
        async with lock as lease:
            order.append(lease.token)

    async def both() -> None:
        await asyncio.gather(enter_async(), enter_async())

    asyncio.run(both())
    assert order == [1, 2, 3, 4, 5]


def test_a_dropped_lock_keeps_its_token_for_late_holders(memory: str) -> None:
    fleet = limpet.open(memory)
    lock, cell = fleet.lock("a"), fleet.cell("guarded")
    with lock as late:
        cell.write(1, lease=late)
    lock.drop()
    assert lock.peek() is None
    assert fleet.lock_seen("a") is None
    with pytest.raises(Missing):
        lock.drop()
    with lock as lease:
        cell.write(2, lease=lease)
    with pytest.raises(LeaseLost):
        cell.write(3, lease=late)


# ---- cells ----


def test_no_late_write_brings_a_dropped_value_back(memory: str) -> None:
    fleet = limpet.open(memory)
    cell, late = fleet.cell("c"), fleet.cell("c")
    with fleet.lock("l") as old:
        cell.write(1, lease=old)
    seen = late.read()
    assert seen is not None
    with fleet.lock("l") as lease:
        cell.drop(lease=lease)
    with pytest.raises(Conflict):
        late.swap(seen, 2)
    with pytest.raises(LeaseLost):
        late.write(2, lease=old)
    assert cell.read() is None
    assert cell.create(3).value == 3
    assert cell.read() is not None


def test_a_value_that_cannot_be_read_is_dropped_only_by_force(memory: str) -> None:
    fleet = limpet.open(memory)
    fleet.store.put(cell_key("c"), b"\xff")
    told: list[str] = []
    assert [*fleet.cells(on_error=lambda key, error: told.append(key))] == []
    assert told == ["cells/c.json"]
    with pytest.raises(Corrupt, match="is not a valid") as refused:
        fleet.cell("c").drop()
    assert refused.value.hint == "restore it from a backup, or `limpet cell rm c --force`"
    assert fleet.cell("c").drop(force=True) is None
    assert fleet.cell("c").read() is None


def test_an_older_reader_sees_null_and_a_free_lock(memory: str) -> None:
    fleet = limpet.open(memory)
    fleet.cell("c").create(1)
    fleet.cell("c").drop()
    with fleet.lock("l"):
        pass
    fleet.lock("l").drop()
    assert fleet.store.get(cell_key("c")).data.endswith(b'"value":null,"dropped":true}')
    assert b'"state":"free"' in fleet.store.get(lock_key("l")).data
    with pytest.raises(Invalid):
        fleet.cell("")


PROGRAM = """
import sys, limpet
from limpet.kernel import drop
drop.GROUP = 1
print("dropping", flush=True)
limpet.open(sys.argv[1]).queue("q").drop(progress=lambda said: print(said, flush=True))
"""


def test_a_killed_drop_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 while it removes 300 tasks, one by one."""
    url = str(tmp_path / "fleet")
    limpet.open(url).queue("q").push_many([{"n": n} for n in range(300)], batch=1)
    with subprocess.Popen([sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)][1].startswith("waiting 7 s")
        store, whole = DirectoryStore(tmp_path / "fleet"), 300
        while whole == len([*store.list("queues/q/pending")]):
            assert process.poll() is None
        process.kill()
    fleet = limpet.open(url)
    with pytest.raises(Unsupported, match="is being dropped"):
        fleet.queue("q").push({"n": 1})
    shown = fleet.queue("q").drop(dry_run=True)
    assert shown.unfinished is not None
    while True:
        try:
            assert fleet.queue("q").drop().dropped
            break
        except Held:  # until the lock of the killed one has run out
            continue
    assert fleet.queues() == []
    assert fleet.queue("q").push({"n": 1}).created

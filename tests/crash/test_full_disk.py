"""A disk that is full: typed errors, nothing acknowledged, and all is well once there is space (F27)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import limpet
from limpet.kernel.errors import OutcomeUnknown, Unavailable
from limpet.kernel.lease import Lease

SIZE = "size=512k"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", SIZE, "limpet-test", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here (needs root): {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # an open store keeps folders open


def stuff(disk: Path) -> Path:
    """Use up all the space."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def temps(disk: Path) -> list[Path]:
    return [*(disk / "fleet" / ".limpet" / "tmp").iterdir()]


def test_a_full_disk_stops_the_locking_and_breaks_nothing(disk: Path) -> None:
    fleet = limpet.open(disk / "fleet")
    mine = fleet.lock("mine").try_acquire()
    assert isinstance(mine, Lease)
    fleet.cell("result").write("before", lease=mine)
    ballast = stuff(disk)
    for act in (
        fleet.lock("new").try_acquire,
        mine.renew,
        mine.release,
        lambda: fleet.cell("result").write("x" * 50_000, lease=mine),
        lambda: fleet.cell("other").create(1),
        lambda: limpet.open(disk / "another").check(),
    ):
        with pytest.raises(Unavailable, match="the disk is full") as caught:
            act()
        assert "space" in caught.value.hint
    assert temps(disk) == []
    assert fleet.lock("new").peek() is None
    assert fleet.cell("other").read() is None
    seen = limpet.open(disk / "fleet").cell("result").read()
    assert seen is not None
    assert seen.value == "before"
    mine.check()

    ballast.unlink()
    mine.renew()
    fleet.cell("result").write("after", lease=mine)
    mine.release()
    with fleet.lock("mine").hold(wait_s=0) as lease:
        assert lease.token == 2
    fresh = fleet.lock("new").try_acquire()
    assert isinstance(fresh, Lease)
    assert fresh.token == 1
    assert temps(disk) == []


def test_a_hold_on_a_full_disk_ends_as_if_by_a_crash(disk: Path) -> None:
    """The release fails; the block does not: the lock runs out by itself."""
    fleet = limpet.open(disk / "fleet")
    with fleet.lock("mine").hold(wait_s=0):
        ballast = stuff(disk)
    record = fleet.lock("mine").peek()
    assert record is not None
    assert record.state.value == "held"
    ballast.unlink()


def test_a_push_of_many_tasks_that_fills_the_disk_is_completed_by_the_same_push(disk: Path) -> None:
    queue = limpet.open(disk / "fleet").queue("work")
    payloads = [{"n": n, "blob": "x" * 2000} for n in range(500)]
    with pytest.raises(OutcomeUnknown, match="the disk is full") as caught:
        queue.push_many(payloads, batch=10, id="load")
    error = caught.value
    assert 0 < len(error.pushed) < 500
    assert len(error.pushed) + len(error.rest) == 500
    assert f"{len(error.pushed)} of 500 tasks were pushed" in str(error)
    assert len({*error.pushed}) == queue.stats().pending
    assert temps(disk) == []

    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    whole = queue.push_many(payloads, batch=10, id="load")
    assert {*error.pushed} == {whole[n] for n in range(500) if n not in {*error.rest}}
    assert queue.stats().pending == 500


def test_a_full_disk_stops_the_queue_and_loses_nothing(disk: Path) -> None:
    queue = limpet.open(disk / "fleet").queue("work")
    queue.push({"n": 3}, id="in hand")
    in_hand = queue.claim()
    kept = queue.push({"n": 1}, id="kept")
    ids = queue.push_many([{"n": n} for n in range(5)])
    ballast = stuff(disk)
    for act in (
        lambda: queue.push({"n": 2}, id="refused"),
        lambda: queue.push_many([{"n": n} for n in range(500)]),
        lambda: queue.push({"n": 2}, delay_s=5),
        queue.claim,
        queue.pause,
    ):
        with pytest.raises(Unavailable, match="the disk is full"):
            act()
    assert temps(disk) == []
    [task] = in_hand
    with pytest.raises(Unavailable, match="the disk is full"):
        task.done({"took": "long"})
    assert queue.result("refused").state == "unknown"

    ballast.unlink()
    with in_hand:
        pass
    done = {task.id}
    while claim := queue.claim():
        with claim:
            for each in claim:
                each.done()
                done.add(each.id)
    assert done == {kept.id, "in hand", *ids}
    stats = queue.stats()
    assert (stats.completed, stats.failed, stats.pending, stats.scheduled) == (7, 0, 0, 0)
    assert queue.result("in hand").value == {"took": "long"}


def test_orphans_free_a_full_disk(disk: Path) -> None:
    fleet = limpet.open(disk / "fleet")
    index = fleet.index("recs", {"fields": [{"name": "id", "type": "string"}]}, key="id")
    for n in range(2):
        index.put({"id": f"r{n}"})
        fleet.publish_index("recs")
    fleet.maintain(("indexes",), "recs").expire(max_age=timedelta(0))
    stuff(disk)
    table = limpet.open(disk / "fleet").maintain(("indexes",), "recs")
    with pytest.raises(Unavailable, match="the disk is full"):
        table.compact(min_files=2)
    assert table.remove_orphans(grace=timedelta(0), quiesced=True).bytes > 0
    assert fleet.cell("new").create(1), "there is space again"

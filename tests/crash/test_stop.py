"""A holder that is stopped past its TTL (SIGSTOP, a laptop's sleep) and comes back: fenced out (F12)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import limpet
from crash.conftest import Start

TTL_S = 2.0


def line(process: object) -> list[str]:
    stdout = getattr(process, "stdout", None)
    assert stdout is not None
    return str(stdout.readline()).split()


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_holder_that_slept_through_its_ttl_changes_nothing(
    place: str, start: Start, poll: Callable[[Callable[[], bool], str], None]
) -> None:
    holder = start("hold", place, TTL_S)
    assert line(holder) == ["holding", "1"]
    os.kill(holder.pid, signal.SIGSTOP)
    poll(lambda: stopped(holder.pid), "the holder is stopped")
    fleet = limpet.open(place)
    cell = fleet.cell("result")
    seen = cell.read()
    assert seen is not None
    assert seen.value == "by token 1"
    lease = fleet.lock("job", ttl_s=60).acquire(wait_s=60)
    assert lease.token == 2
    cell.write("by token 2", lease=lease)

    os.kill(holder.pid, signal.SIGCONT)
    said, _ = holder.communicate("go\n", timeout=60)
    assert said.splitlines() == [
        "write LeaseLost",
        "check LeaseLost",
        "renew LeaseLost",
        "block LeaseLost",
        "told 1",
    ]
    seen = fleet.cell("result").read()
    assert seen is not None
    assert seen.value == "by token 2"
    lease.renew()
    lease.release()

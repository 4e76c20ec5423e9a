"""A holder that is stopped past its TTL (SIGSTOP, a laptop's sleep) and comes back: fenced out (F12)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_a_forked_child_does_not_own_its_parents_lease(place: str, start: Start) -> None:
    """F17, with a real fork, a heartbeat thread that the child lacks, and both leaving the block."""
    said, _ = start("fork", place).communicate(timeout=60)
    facts = [json.loads(text) for text in said.splitlines()]
    assert facts == [
        ["child", {"check": "LeaseLost", "renew": "LeaseLost", "again": "Held"}],
        ["block", "LeaseLost"],
        ["parent", {"check": "done", "renew": "done", "again": "Held", "after": "done"}],
        ["block", "done"],
    ]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the child waits for a mutex that no thread of it holds")
def test_a_child_forked_during_a_renewal_can_leave_the_block(start: Start) -> None:
    said, _ = start("fork_mid_renewal").communicate(timeout=60)
    assert said == "child 0\n"

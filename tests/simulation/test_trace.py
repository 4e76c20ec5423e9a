"""The trace of a failure is readable, and its faults are shrunk."""

from __future__ import annotations

import pytest

from sim import SCENARIOS, describe, shrink, trace_lines
from sim.__main__ import main
from sim.world import Violation, World

NEEDED = {"p0/3", "p1/4"}
ALL = sorted({*NEEDED, *(f"p2/{n}" for n in range(20))})


def _fails_with_two_faults(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    world = World(seed, muted=muted)
    for fault in ALL:
        world.strike(fault, "late")
    return world, Violation("both") if set(world.faults) >= NEEDED else None


def test_shrinking_keeps_just_the_faults_that_matter() -> None:
    muted, world, violation = shrink(_fails_with_two_faults, 1)
    assert set(world.faults) == NEEDED
    assert muted == frozenset(ALL) - NEEDED
    assert str(violation) == "both"


def test_one_seed_prints_its_trace_hash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "--seed", "3"]) == 0
    assert SCENARIOS["kernel"](3)[0].trace_hash() in capsys.readouterr().out


def test_a_broken_seed_is_told_and_shrunk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENARIOS, "kernel", _fails_with_two_faults)
    assert main(["kernel", "--seed", "9"]) == 1
    told = capsys.readouterr().out
    assert "shrunk from 22 faults to 2" in told
    assert "BROKEN: both" in told
    assert "again: python -m sim kernel --seed 9" in told


@pytest.mark.full
def test_soak_reports_seeds_faults_and_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--seconds", "1", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    for word in ("kernel: ", "directory: ", "virtual hours", "faults: ", "power_loss"):
        assert word in told


def test_the_trace_names_who_did_what_to_which_object_and_the_fault() -> None:
    world, _ = SCENARIOS["kernel"](3)
    told = "\n".join(trace_lines(world))
    assert "lock.create" in told
    assert "<< " in told
    assert "token 1" in told


def test_bodies_are_described_in_a_few_words() -> None:
    assert describe(b'{"seq":2,"state":"held","token":4,"worker_id":"p1"}') == "[seq 2: held, token 4, p1]"
    assert describe(b'{"seq":2,"value":7,"fence":{"token":4}}') == "[seq 2: 7, token 4]"
    assert describe(b"{}") == ""

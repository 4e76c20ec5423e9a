"""kill -9, again and again: nothing acknowledged is lost, tokens only rise, and somebody always goes on."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import limpet
from crash.conftest import Start
from crash.programs import body, expected
from limpet.kernel.store import DirectoryStore

WORKERS = 3
TTL_S = 2.0
KILLS = {"directory": 8, "seaweedfs": 5}
FILL_KILLS = 10

Poll = Callable[[Callable[[], bool], str], None]


@dataclass
class Worker:
    """One life of one worker, and its own notes of what was acknowledged."""

    process: subprocess.Popen[str]
    notes: Path

    def noted(self, what: str) -> list[str]:
        """The notes of one kind; a line that the kill cut short does not count."""
        if not self.notes.exists():
            return []
        lines = self.notes.read_text().split("\n")[:-1]
        return [line.split()[1] for line in lines if line.startswith(what)]

    def last_token(self) -> int:
        """The newest token that it got; 0 for none."""
        return max(map(int, self.noted("token")), default=0)


def test_workers_that_are_killed_lose_nothing_acknowledged(
    place: str, start: Start, poll: Poll, tmp_path: Path
) -> None:
    lives: list[Worker] = []

    def launch() -> Worker:
        name = f"w{len(lives)}"
        worker = Worker(start("count", place, TTL_S, name, tmp_path / f"{name}.notes"), tmp_path / f"{name}.notes")
        lives.append(worker)
        return worker

    def entries() -> int:
        return sum(len(life.noted("entry")) for life in lives)

    chance = random.Random(7)
    workers = [launch() for _ in range(WORKERS)]
    for kill in range(KILLS["seaweedfs" if place.startswith("s3:") else "directory"]):
        goal = entries() + chance.randint(1, 4)
        poll(lambda goal=goal: entries() >= goal, "somebody goes on")  # type: ignore[misc]
        newest = max(range(WORKERS), key=lambda n: workers[n].last_token())
        victim = newest if kill % 2 else chance.randrange(WORKERS)  # the holder, most likely; anybody
        workers[victim].process.kill()
        workers[victim].process.wait()
        workers[victim] = launch()
    goal = entries() + 3
    poll(lambda: entries() >= goal, "somebody goes on after the last kill")
    for worker in workers:
        worker.process.kill()
        worker.process.wait()

    tokens = [int(token) for life in lives for token in life.noted("token")]
    assert len(set(tokens)) == len(tokens), "two holders had one token"
    for life in lives:
        assert all(int(one) < int(other) for one, other in pairwise(life.noted("token")))
    fleet = limpet.open(place)
    seen = fleet.cell("log").read()
    assert seen is not None
    log = [(token, entry) for token, entry in seen.value]
    assert [token for token, _ in log] == sorted(token for token, _ in log), "an older token wrote after a newer one"
    assert len({entry for _, entry in log}) == len(log), "one append was made twice"
    assert {entry for life in lives for entry in life.noted("entry")} <= {entry for _, entry in log}
    for token in {token for token, _ in log}:
        assert len({entry.split(".")[0] for held, entry in log if held == token}) == 1, "one token, two writers"
    lease = fleet.lock("work", ttl_s=TTL_S).acquire(wait_s=60)
    assert lease.token > max(tokens)
    assert seen.header.fence is not None
    assert seen.header.fence.token == log[-1][0]
    lease.release()


def test_a_directory_whose_writer_is_killed_holds_whole_objects_and_all_acknowledged(
    start: Start, poll: Poll, tmp_path: Path
) -> None:
    """The exact state is known: every acknowledged operation, and the one under way either done or not."""
    root, notes = tmp_path / "store", tmp_path / "notes"
    notes.touch()
    chance = random.Random(11)

    def last() -> int:
        lines = notes.read_text().split("\n")[:-1]
        return int(lines[-1]) if lines else 0

    for kill in range(1, FILL_KILLS + 1):
        goal = last() + chance.randint(5, 80)
        writer = start("fill", root, last() + 1, notes)
        poll(lambda goal=goal: last() >= goal, "the writer goes on")  # type: ignore[misc]
        writer.kill()
        writer.wait()
        done = last()
        before, after = expected(done), expected(done + 1)
        store = DirectoryStore(root)
        found = {stat.key: stat.size for stat in store.list()}
        for key in before:
            data = store.get(key).data if key in found else None
            assert data in (before[key], after[key]), f"{key} after operation {done}"
        assert set(found) <= set(before)
        assert len([*(root / ".limpet" / "tmp").iterdir()]) <= kill, "at most one temp file for each kill"
    assert last() > 5 * FILL_KILLS
    assert body(last()) != body(last() + 1)

"""kill -9 among the workers of a queue: every task is completed, none is lost, and what ran twice is counted."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import limpet
from crash.conftest import Start
from crash.test_kill import Poll

WORKERS = 4
KILLS = 20
TTL_S = 1.0
SINGLES = 60
NAMED = 60
BATCHES = 24
BATCH = 20


def test_workers_that_are_killed_complete_every_task(place: str, start: Start, poll: Poll, tmp_path: Path) -> None:
    queue = limpet.open(place).queue("work")
    ids = [queue.push({"n": n}).id for n in range(SINGLES)]
    ids += [queue.push({"n": n}, id=f"named/{n}").id for n in range(NAMED)]
    ids += queue.push_many([{"n": n} for n in range(BATCHES * BATCH)], batch=BATCH)
    lives: list[tuple[subprocess.Popen[str], Path]] = []

    def launch() -> tuple[subprocess.Popen[str], Path]:
        notes = tmp_path / f"{len(lives)}.notes"
        lives.append((start("work", place, TTL_S, notes), notes))
        return lives[-1]

    def noted(what: str) -> list[str]:
        lines = [line for _, notes in lives if notes.exists() for line in notes.read_text().split("\n")[:-1]]
        return [line.split()[1] for line in lines if line.startswith(what)]

    chance = random.Random(5)
    workers = [launch() for _ in range(WORKERS)]
    for kill in range(KILLS):
        goal = min(len(noted("start")) + chance.randint(1, 25), len(ids) - KILLS + kill)
        poll(lambda goal=goal: len(noted("start")) >= goal, "somebody goes on")  # type: ignore[misc]
        victim = chance.randrange(WORKERS)
        workers[victim][0].kill()
        workers[victim][0].wait()
        workers[victim] = launch()
    poll(lambda: queue.stats().pending == 0, "the rest is done")
    for process, _ in workers:
        process.kill()
        process.wait()

    queue.sweep()  # type: ignore[attr-defined]
    stats = queue.stats()
    assert (stats.completed, stats.failed, stats.pending) == (len(ids), 0, 0)
    starts = Counter(noted("start"))
    assert {*starts} == {*ids}, "a task that never ran, or that nobody pushed"
    for id_ in random.Random(6).sample(ids, 60):
        assert queue.result(id_).state == "completed", id_
    assert {*noted("done")} <= {*ids}
    twice = sum(count - 1 for count in starts.values())
    assert twice <= KILLS * BATCH, "a kill repeats at most what one worker had in hand"
    print(f"{len(ids)} tasks, {KILLS} kills, {twice} starts repeated")

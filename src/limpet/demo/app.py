"""The tasks of `limpet demo`, written as a user would write them: `limpet work limpet.demo.app:fleet` runs them.

The store is the one at LIMPET_URL. So that the demo can add up its costs, every process keeps notes in the folder
LIMPET_DEMO_NOTES: a line for each task that it starts, with the number of requests that it has made so far.
"""

import atexit
import json
import os

import limpet
from limpet.demo import CUBES, FOLDS, INDEX, KEY, QUEUE, REPORTS, SLOW_CUBE, DemoResult
from limpet.kernel.runtime import system

WORK_S = 0.002
SLOW_S = 1.5
CUBE_S = 5.0
TTL_S = 3.0

URL = os.environ.get("LIMPET_URL", "memory://")
NOTES = os.environ.get("LIMPET_DEMO_NOTES")

fleet = limpet.open(URL)
index_fleet = limpet.open(URL)  # the same store, but its requests are counted apart
results = index_fleet.index(INDEX, DemoResult, key=KEY)


@fleet.task(QUEUE, ttl_s=TTL_S)
def square(n: int, kind: str = "") -> int:
    """Compute a square, and put it into the index.

    After a kill in between the task is run again and its record is put again: same key, same square.
    """
    task = limpet.current_task()
    _note(n)
    system().sleep(WORK_S)
    if kind == "poison":
        raise limpet.Fail(f"{n} is poison")
    if kind == "flaky" and task.attempt == 1:
        raise limpet.Retry(f"{n} fails the first time", after_s=0.5)
    if kind == "slow":
        if task.token == 1:
            system().sleep(SLOW_S)
        # Refused if another worker has taken the task over meanwhile, and has written with its newer token.
        fleet.cell(f"slow-{n}").write({"worker": os.getpid(), "token": task.token}, lease=task)
        task.progress(f"token {task.token}")
    results.put(DemoResult(n, n * n, str(os.getpid())))
    return n * n


@fleet.task(FOLDS, ttl_s=TTL_S)
def fold() -> dict[str, int]:
    """Merge the records that wait into the shards of the index."""
    _note(None)
    report = results.compile()
    return {"objects": report.objects, "shards": report.folded}


@fleet.task(REPORTS, ttl_s=TTL_S, durable=True)
def add_cubes(n: int) -> dict[str, int]:
    """Fan out, wait, fan in: a durable task. While it waits for the others it holds no worker and no lease.

    What a step returned is recorded, and so is the push: a later attempt does not repeat them.
    """
    numbers = limpet.step(choose, n)
    done = limpet.gather(cube.push_many([(each,) for each in numbers]))
    return limpet.step(add_up, [result.value for result in done if result.ok])


def choose(n: int) -> list[int]:
    """The first step."""
    return [*range(n)]


def add_up(cubes: list[int]) -> dict[str, int]:
    """The last step."""
    return {"tasks": len(cubes), "total": sum(cubes), "worker": os.getpid()}


@fleet.task(CUBES, ttl_s=TTL_S)
def cube(n: int) -> int:
    """One of the tasks that `add_cubes` waits for. One is slow at first; the demo kills its worker meanwhile."""
    task = limpet.current_task()
    if n == SLOW_CUBE:
        task.progress(f"token {task.token}")
        if task.token == 1:
            system().sleep(CUBE_S)
    return n**3


@atexit.register
def _note_requests() -> None:
    _note(None)


def _note(n: int | None) -> None:
    if NOTES is None:
        return
    spent = {"tasks": fleet.meter.snapshot().requests, "index": index_fleet.meter.snapshot().requests}
    # One write of a few bytes: the kernel has it before the work begins, even if this process is killed.
    with open(os.path.join(NOTES, f"{os.getpid()}.jsonl"), "ab", buffering=0) as notes:
        notes.write(json.dumps({"n": n, **spent}).encode() + b"\n")

"""Thousands of seeds: every invariant holds, and the runs are real."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import pytest

from sim import SCENARIOS, RunSum, coverage_table, run_seeds
from sim.actors import PROCESS_FAULTS, REQUEST_FAULTS, STEPS
from sim.backup import STEPS as BACKUP_STEPS
from sim.catalog import RPC_STEPS
from sim.catalog import STEPS as CATALOG_STEPS
from sim.catalog_processes import RPC_FAULTS
from sim.drop import STEPS as DROP_STEPS
from sim.durable import STEPS as DURABLE_STEPS
from sim.index import STEPS as INDEX_STEPS
from sim.lives import STEPS as LIVES_STEPS
from sim.maintain import STEPS as MAINTAIN_STEPS
from sim.queue import STEPS as QUEUE_STEPS
from sim.supervisor import STEPS as SUPERVISOR_STEPS
from support.seeds import SEEDS

JOBS = 2
pytestmark = pytest.mark.timeout(1200)

VERBS = {"read": "get", "settle": "get", "head": "head", "delete": "delete", "list": "list"}
REGRESSIONS = json.loads((Path(__file__).parent / "regressions.json").read_text())


RARE = 1000


@pytest.fixture
def swarm(capsys: pytest.CaptureFixture[str]) -> Callable[..., RunSum]:
    """`swarm("queue")` runs the seeds of a scenario, prints how many, and checks that they hold and are real runs."""

    def run(scenario: str, *, table: bool = False, calls: int = 100, faults: int = 10, actors: int = 3) -> RunSum:
        total = run_seeds(scenario, 0, SEEDS[scenario], jobs=JOBS)
        rate, hours = total.runs / total.busy_s * 60, total.virtual_s / 3600
        with capsys.disabled():
            print(f"\n{scenario}: {total.runs} seeds, {rate:.0f} a minute a core, {hours:.0f} virtual hours")
            if table:
                print(coverage_table(total.coverage))
        told = "\n".join(f"{why}\n  python -m sim {scenario} --seed {seed}" for seed, why in total.broken)
        assert not total.broken, told
        assert total.runs == SEEDS[scenario]
        assert median(total.calls) >= calls
        assert median(total.faults) >= faults
        assert min(total.actors) >= actors
        return total

    return run


def test_kernel_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("kernel", table=True)
    missed = _missed(total, STEPS)
    assert not missed, f"no seed struck {missed}"
    assert not total.by_kind["(linearizability given up)"]


def test_queue_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("queue", table=True)
    missed = [(kind, step) for kind, step in _missed(total, QUEUE_STEPS) if kind != "store_clock_step"]
    assert not missed, f"no seed struck {missed}"
    assert total.by_kind["store_clock_step"] > 50, "it strikes the store, whatever step anybody is at"


def test_maintain_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("maintain", actors=0)
    for step in MAINTAIN_STEPS:
        assert any(count for (_, struck), count in total.coverage.items() if struck == step), step
    assert total.coverage["crash", "warehouse.delete"] or total.coverage["crash", "warehouse.put"]


def test_durable_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("durable")
    for kind in PROCESS_FAULTS:  # a process that pauses or hangs is a zombie afterwards
        assert total.by_kind[kind] > 50, f"hardly any {kind}"
    for step in DURABLE_STEPS:
        struck = {kind for kind, at in total.coverage if at == step and total.coverage[kind, at]} - {"none"}
        if step == "steps.delete":  # see below
            continue
        assert "crash" in struck, f"no process died at {step}"
        missed = {*REQUEST_FAULTS[VERBS.get(step.split(".")[1], "put")]} - struck
        assert not missed, f"no seed struck {step} with {missed}"


def test_swept_seeds(swarm: Callable[..., RunSum]) -> None:
    """In most seeds of `durable` the steps of a cancelled batch go when the faults have stopped. Here, none."""
    total = swarm("swept", calls=50, faults=1, actors=0)
    struck = {kind for kind, at in total.coverage if at == "steps.delete"}
    assert {"crash", *REQUEST_FAULTS["delete"]} <= struck, f"only {struck} struck the sweep of steps"
    assert total.by_kind["crash"] == total.runs, "in each run the sweep dies in a delete of steps"
    assert total.coverage["left", "steps.delete"] >= 50, "the dead sweep must leave steps to the next one"


def test_drop_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("drop")
    for step in DROP_STEPS:
        assert total.coverage["none", step], f"nobody was at {step}"
    for step in ("drop.put", "task.delete", "lock.renew"):
        assert total.coverage["crash", step], f"no process died at {step}"


def test_lives_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("lives", actors=0)
    assert total.virtual_s / total.runs >= 30 * 86_400
    for step in LIVES_STEPS:  # parts and shapes are deleted once in months, and seldom with a fault
        struck = {kind for kind, at in total.coverage if at == step and kind != "none"}
        assert len(struck) >= 3, f"hardly any fault at {step}: {struck}"


def test_backup_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("backup", actors=0)
    for kind in ("crash", "pause", "hang", "cut_off"):
        assert total.by_kind[kind] > 50, f"hardly any {kind}"
    for step in BACKUP_STEPS:
        assert total.coverage["none", step], f"nobody was at {step}"
    assert total.coverage["crash", "lock.renew"] + total.coverage["crash", "backup.put"]


@pytest.mark.parametrize("scenario", ["queue_far", "index_far"])
def test_far_seeds(swarm: Callable[..., RunSum], scenario: str) -> None:
    swarm(scenario, calls=0, faults=0, actors=0)


def test_supervisor_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("supervisor", table=True)
    for step in SUPERVISOR_STEPS:
        assert total.coverage["crash", step] + total.coverage["power_off", step], f"nobody died at {step}"
        kinds = ("stall",) if step.startswith("local.") else REQUEST_FAULTS[VERBS.get(step.split(".")[1], "put")]
        if step.startswith("local.") and total.coverage["none", step] < RARE:
            continue  # a disk stalls in 0.3 % of its calls
        missed = [kind for kind in kinds if not total.coverage[kind, step]]
        assert not missed, f"no seed struck {step} with {missed}"


def test_index_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("index", table=True)
    missed = [(kind, step) for kind, step in _missed(total, INDEX_STEPS) if kind != "store_clock_step"]
    assert not missed, f"no seed struck {missed}"
    assert total.by_kind["store_clock_step"] > 50, "it strikes the store, whatever step anybody is at"


def test_index_disk_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("index_disk", faults=0)
    assert total.by_kind["power_loss"] > SEEDS["index_disk"]
    for step in ("fsync", "rename", "unlink"):
        assert total.coverage["power_loss", step], f"no power loss during {step}"
        assert total.coverage["crash", step], f"no crash during {step}"


def test_catalog_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("catalog", table=True)
    idle = {("wall_step", step) for step in CATALOG_STEPS if step.endswith(".delete")}  # no name is made there
    missed = [each for each in _missed(total, CATALOG_STEPS) if each[0] != "store_clock_step" and each not in idle]
    missed += [
        (kind, step)
        for step in RPC_STEPS
        for kind in (*RPC_FAULTS, *PROCESS_FAULTS)
        if not total.coverage[kind, step] and kind != "store_clock_step"
    ]
    assert not missed, f"no seed struck {missed}"
    assert total.by_kind["store_clock_step"] > 50, "it strikes the store, whatever step anybody is at"
    assert total.by_kind["lost_lock"] > 50


def _missed(total: RunSum, steps: Sequence[str]) -> list[tuple[str, str]]:
    return [
        (kind, step)
        for step in steps
        for kind in (*REQUEST_FAULTS[VERBS.get(step.split(".")[1], "put")], *PROCESS_FAULTS)
        if not total.coverage[kind, step] and not _cannot_be(kind, step)
    ]


def _cannot_be(kind: str, step: str) -> bool:
    """S3's 409 answers only conditional writes."""
    return kind == "refused_409" and step in ("clock.put", "pack.put", "single.put")


def test_directory_seeds(swarm: Callable[..., RunSum]) -> None:
    total = swarm("directory", table=True)
    for step in {step for _, step in total.coverage}:
        assert total.coverage["power_loss", step], f"no power loss during {step}"
        assert total.coverage["crash", step], f"no crash during {step}"
        assert step == "lock" or total.coverage["eio", step], f"no failed {step}"


@pytest.mark.parametrize("case", REGRESSIONS, ids=lambda case: f"{case['scenario']}-{case['seed']}")
def test_regressions(case: dict[str, str]) -> None:
    _, violation = SCENARIOS[case["scenario"]](int(case["seed"]))
    assert violation is None, f"{case['why']}: {violation}"

"""Thousands of seeds: every invariant holds, and the runs are real."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest

from limpet.sim import SCENARIOS, RunSum, coverage_table, run_seeds
from limpet.sim.actors import PROCESS_FAULTS, REQUEST_FAULTS, STEPS
from limpet.sim.backup import STEPS as BACKUP_STEPS
from limpet.sim.catalog import RPC_FAULTS, RPC_STEPS
from limpet.sim.catalog import STEPS as CATALOG_STEPS
from limpet.sim.durable import STEPS as DURABLE_STEPS
from limpet.sim.index import STEPS as INDEX_STEPS
from limpet.sim.lives import STEPS as LIVES_STEPS
from limpet.sim.maintain import STEPS as MAINTAIN_STEPS
from limpet.sim.queue import STEPS as QUEUE_STEPS
from limpet.sim.supervisor import STEPS as SUPERVISOR_STEPS
from support.seeds import SEEDS

JOBS = 2

VERBS = {"read": "get", "settle": "get", "head": "head", "delete": "delete", "list": "list"}
REGRESSIONS = json.loads((Path(__file__).parent / "regressions.json").read_text())


RARE = 1000


def _told(scenario: str, total: RunSum) -> str:
    return "\n".join(f"{why}\n  python -m limpet.sim {scenario} --seed {seed}" for seed, why in total.broken)


@pytest.mark.timeout(600)
def test_kernel_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("kernel", 0, SEEDS["kernel"], jobs=JOBS)
    with capsys.disabled():
        rate = total.runs / total.busy_s * 60
        print(f"\nkernel: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.0f} virtual hours")
        print(coverage_table(total.coverage))
    assert not total.broken, _told("kernel", total)
    assert total.runs == SEEDS["kernel"]
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    assert min(total.actors) >= 3
    missed = _missed(total, STEPS)
    assert not missed, f"no seed struck {missed}"
    assert not total.by_kind["(linearizability given up)"]


@pytest.mark.timeout(600)
def test_queue_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("queue", 0, SEEDS["queue"], jobs=JOBS)
    with capsys.disabled():
        rate = total.runs / total.busy_s * 60
        print(f"\nqueue: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.0f} virtual hours")
        print(coverage_table(total.coverage))
    assert not total.broken, _told("queue", total)
    assert total.runs == SEEDS["queue"]
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    assert min(total.actors) >= 3
    missed = [(kind, step) for kind, step in _missed(total, QUEUE_STEPS) if kind != "store_clock_step"]
    assert not missed, f"no seed struck {missed}"
    assert total.by_kind["store_clock_step"] > 50, "it strikes the store, whatever step anybody is at"


@pytest.mark.timeout(600)
def test_maintain_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("maintain", 0, SEEDS["maintain"], jobs=JOBS)
    with capsys.disabled():
        print(f"\nmaintain: {total.runs} seeds, {total.virtual_s / 3600:.0f} virtual hours")
    assert not total.broken, _told("maintain", total)
    assert total.runs == SEEDS["maintain"]
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    for step in MAINTAIN_STEPS:
        assert any(count for (_, struck), count in total.coverage.items() if struck == step), step
    assert total.coverage["crash", "warehouse.delete"] or total.coverage["crash", "warehouse.put"]


@pytest.mark.timeout(600)
def test_durable_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("durable", 0, SEEDS["durable"], jobs=JOBS)
    with capsys.disabled():
        rate = total.runs / total.busy_s * 60
        print(f"\ndurable: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.0f} virtual hours")
    assert not total.broken, _told("durable", total)
    assert total.runs == SEEDS["durable"]
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    assert min(total.actors) >= 3
    for kind in PROCESS_FAULTS:  # a process that pauses or hangs is a zombie afterwards
        assert total.by_kind[kind] > 50, f"hardly any {kind}"
    for step in DURABLE_STEPS:
        assert total.coverage["crash", step], f"no process died at {step}"
        kinds = REQUEST_FAULTS[VERBS.get(step.split(".")[1], "put")]
        missed = [kind for kind in kinds if not total.coverage[kind, step]]
        rare = step == "steps.delete"  # most tasks end when the faults have stopped
        assert len(missed) <= rare, f"no seed struck {step} with {missed}"


@pytest.mark.timeout(600)
def test_lives_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("lives", 0, SEEDS["lives"], jobs=JOBS)
    with capsys.disabled():
        print(f"\nlives: {total.runs} seeds, {total.virtual_s / 86_400:.0f} virtual days")
    assert not total.broken, _told("lives", total)
    assert total.runs == SEEDS["lives"]
    assert total.virtual_s / total.runs >= 30 * 86_400
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    for step in LIVES_STEPS:  # parts and shapes are deleted once in months, and seldom with a fault
        struck = {kind for kind, at in total.coverage if at == step and kind != "none"}
        assert len(struck) >= 3, f"hardly any fault at {step}: {struck}"


def test_backup_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("backup", 0, SEEDS["backup"], jobs=JOBS)
    with capsys.disabled():
        rate = total.runs / total.busy_s * 60
        print(f"\nbackup: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.0f} virtual hours")
    assert not total.broken, _told("backup", total)
    assert total.runs == SEEDS["backup"]
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    for kind in ("crash", "pause", "hang", "cut_off"):
        assert total.by_kind[kind] > 50, f"hardly any {kind}"
    for step in BACKUP_STEPS:
        assert total.coverage["none", step], f"nobody was at {step}"
    assert total.coverage["crash", "lock.renew"] + total.coverage["crash", "backup.put"]


def test_far_queue_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("queue_far", 0, SEEDS["queue_far"], jobs=JOBS)
    rate = total.runs / total.busy_s * 60
    with capsys.disabled():
        print(
            f"\nqueue_far: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.0f} virtual hours"
        )
    assert not total.broken, _told("queue_far", total)
    assert total.runs == SEEDS["queue_far"]


def test_far_index_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("index_far", 0, SEEDS["index_far"], jobs=JOBS)
    rate = total.runs / total.busy_s * 60
    with capsys.disabled():
        print(
            f"\nindex_far: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.0f} virtual hours"
        )
    assert not total.broken, _told("index_far", total)
    assert total.runs == SEEDS["index_far"]


@pytest.mark.timeout(600)
def test_supervisor_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("supervisor", 0, SEEDS["supervisor"], jobs=JOBS)
    with capsys.disabled():
        rate = total.runs / total.busy_s * 60
        print(
            f"\nsupervisor: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.0f} virtual hours"
        )
        print(coverage_table(total.coverage))
    assert not total.broken, _told("supervisor", total)
    assert total.runs == SEEDS["supervisor"]
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    assert min(total.actors) >= 3
    for step in SUPERVISOR_STEPS:
        assert total.coverage["crash", step] + total.coverage["power_off", step], f"nobody died at {step}"
        kinds = ("stall",) if step.startswith("local.") else REQUEST_FAULTS[VERBS.get(step.split(".")[1], "put")]
        if step.startswith("local.") and total.coverage["none", step] < RARE:
            continue  # a disk stalls in 0.3 % of its calls
        missed = [kind for kind in kinds if not total.coverage[kind, step]]
        assert not missed, f"no seed struck {step} with {missed}"


@pytest.mark.timeout(600)
def test_index_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("index", 0, SEEDS["index"], jobs=JOBS)
    with capsys.disabled():
        rate = total.runs / total.busy_s * 60
        print(f"\nindex: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.0f} virtual hours")
        print(coverage_table(total.coverage))
    assert not total.broken, _told("index", total)
    assert total.runs == SEEDS["index"]
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    assert min(total.actors) >= 3
    missed = [(kind, step) for kind, step in _missed(total, INDEX_STEPS) if kind != "store_clock_step"]
    assert not missed, f"no seed struck {missed}"
    assert total.by_kind["store_clock_step"] > 50, "it strikes the store, whatever step anybody is at"


@pytest.mark.timeout(600)
def test_index_disk_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("index_disk", 0, SEEDS["index_disk"], jobs=JOBS)
    with capsys.disabled():
        print(f"\nindex_disk: {total.runs} seeds, {total.runs / total.busy_s * 60:.0f} a minute a core")
    assert not total.broken, _told("index_disk", total)
    assert total.runs == SEEDS["index_disk"]
    assert median(total.calls) >= 100
    assert min(total.actors) >= 3
    assert total.by_kind["power_loss"] > SEEDS["index_disk"]
    for step in ("fsync", "rename", "unlink"):
        assert total.coverage["power_loss", step], f"no power loss during {step}"
        assert total.coverage["crash", step], f"no crash during {step}"


@pytest.mark.timeout(600)
def test_catalog_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("catalog", 0, SEEDS["catalog"], jobs=JOBS)
    with capsys.disabled():
        rate = total.runs / total.busy_s * 60
        print(f"\ncatalog: {total.runs} seeds, {rate:.0f} a minute a core, {total.virtual_s / 3600:.0f} virtual hours")
        print(coverage_table(total.coverage))
    assert not total.broken, _told("catalog", total)
    assert total.runs == SEEDS["catalog"]
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    assert min(total.actors) >= 3
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


@pytest.mark.timeout(600)
def test_directory_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_seeds("directory", 0, SEEDS["directory"], jobs=JOBS)
    with capsys.disabled():
        print(f"\ndirectory: {total.runs} seeds, {total.runs / total.busy_s * 60:.0f} a minute a core")
        print(coverage_table(total.coverage))
    assert not total.broken, _told("directory", total)
    assert median(total.calls) >= 100
    assert median(total.faults) >= 10
    assert min(total.actors) >= 3
    for step in {step for _, step in total.coverage}:
        assert total.coverage["power_loss", step], f"no power loss during {step}"
        assert total.coverage["crash", step], f"no crash during {step}"
        assert step == "lock" or total.coverage["eio", step], f"no failed {step}"


@pytest.mark.parametrize("case", REGRESSIONS, ids=lambda case: f"{case['scenario']}-{case['seed']}")
def test_regressions(case: dict[str, str]) -> None:
    _, violation = SCENARIOS[case["scenario"]](int(case["seed"]))
    assert violation is None, f"{case['why']}: {violation}"

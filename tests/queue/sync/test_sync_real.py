"""Real disks, a real bucket, real kills: nodes on directories around SeaweedFS."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

import limpet
from limpet.kernel.runtime import system
from limpet.queue.sync import Supervisor
from support.servers.process import Bucket

KILLS = 4
NOTED_MIN = 3

NODE = """
import sys
import limpet
from limpet.queue.sync import Supervisor
from limpet.kernel.runtime import system

life, remote = sys.argv[1:]
fleet = limpet.open("a", durability="os")
queue = fleet.queue("q")
supervisor = Supervisor(fleet.store, limpet.open(remote).store, system(), node="a")
for n in range(1000):
    id_ = queue.push({"n": n}, id=f"{life}-{n}").id
    print("pushed", id_, flush=True)
    if n % 2:
        with queue.claim() as claim:
            for task in claim:
                task.done(n)
        print("done", id_, flush=True)
    supervisor.up()
    supervisor.down()
"""


@pytest.fixture(params=["directory", "seaweedfs"])
def remote(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    if request.param == "directory":
        return "bucket"
    bucket: Bucket = request.getfixturevalue("seaweedfs")
    for variable, value in bucket.env.items():
        monkeypatch.setenv(variable, value)
    return bucket.at(f"sync-{uuid4().hex}")


def _node(name: str, remote: str) -> tuple[limpet.Fleet, Supervisor]:
    here, there = limpet.open(name, durability="os"), limpet.open(remote)
    here.enable("node", "supervised")
    there.enable("supervised")
    here, there = limpet.open(name, durability="os"), limpet.open(remote)
    return here, Supervisor(here.store, there.store, system(), node=name)


def _killed(life: int, remote: str, chance: random.Random) -> list[list[str]]:
    """One life of the node `a`, cut short; what it had acknowledged."""
    command = [sys.executable, "-c", NODE, str(life), remote]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wanted = NOTED_MIN + chance.randrange(12)
        noted = [process.stdout.readline().split() for _ in range(wanted)]
        process.kill()
        noted += [line.split() for line in process.stdout.read().splitlines()]
    return [words for words in noted if len(words) == 2]


def test_a_node_that_is_killed_again_and_again_loses_nothing(remote: str) -> None:
    first, _ = _node("a", remote)
    assert first.record.features == ["node", "supervised"]
    chance = random.Random(3)
    noted = [words for life in range(KILLS) for words in _killed(life, remote, chance)]
    a, boss_a = _node("a", remote)
    b, boss_b = _node("b", remote)
    direct = limpet.open(remote).queue("q")
    direct.push({}, id="direct")
    for boss in (boss_a, boss_b, boss_a):
        boss.up()
        boss.down()
    pushed = [id_ for what, id_ in noted if what == "pushed"]
    assert len(pushed) >= KILLS
    for queue in (a.queue("q"), b.queue("q"), direct):
        states = {id_: queue.result(id_).state for id_ in [*pushed, "direct"]}
        assert {*states.values()} <= {"pending", "completed"}
    queue = b.queue("q", ttl_s=1)
    while claim := queue.claim(wait_s=0):
        with claim:
            for task in claim:
                task.done("b")
    for boss in (boss_b, boss_a, boss_b):
        boss.up()
        boss.down()
    held = {id_ for id_ in pushed if b.queue("q").result(id_).state == "pending"}
    assert len(held) <= KILLS, "only what a killed worker held may still wait for its lease to run out"
    for id_ in {*pushed, "direct"} - held:
        assert [queue.result(id_).state for queue in (a.queue("q"), b.queue("q"), direct)] == ["completed"] * 3

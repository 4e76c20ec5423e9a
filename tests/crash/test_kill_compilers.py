"""kill -9 among the writers and compilers of an index: what was acknowledged is there, each key once, all compiled."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import limpet
from crash.conftest import Start
from crash.index_programs import Item, records
from crash.test_kill import Poll
from limpet.app import Fleet
from limpet.index import Index
from limpet.kernel.keys import IndexKeys

WRITERS = COMPILERS = 4
KILLS = 20
KEYS = IndexKeys.of("items")


@dataclass
class Life:
    """One life of a writer or compiler, and its own notes."""

    process: subprocess.Popen[str]
    notes: Path
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _read_bytes: int = 0

    def lines(self) -> list[dict[str, Any]]:
        """What it noted; a line that the kill cut short does not count. Reads what is new: it is asked all the time."""
        if self.notes.exists():
            with self.notes.open("rb") as file:
                file.seek(self._read_bytes)
                whole, end, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole + end)
            self._lines += [json.loads(line) for line in whole.splitlines()]
        return self._lines


@dataclass
class Acts:
    """What was done to one key, in the order of its writer: `(text, given time)`; a text of None is a delete."""

    done: list[tuple[str | None, int | None]] = field(default_factory=list)
    unsure: list[tuple[str | None, int | None]] = field(default_factory=list)

    def may_be(self) -> set[str | None]:
        """The texts that the key may have now; None is none."""
        if all(at_us is None for _, at_us in (*self.done, *self.unsure)):
            # one writer's: the last, or one that died before it was told
            return {text for text, _ in (self.done[-1:] or [(None, None)]) + self.unsure}
        if any(at_us is None for _, at_us in self.done):
            return {None}  # a delete is later than every time that is given
        sure = max(((at_us, text) for text, at_us in self.done), default=(-1, None))
        return {sure[1]} | {text for text, at_us in self.unsure if at_us is None or at_us > (sure[0] or 0)}


def acts_of(lives: list[Life]) -> dict[str, Acts]:
    """By key, what all writers noted."""
    acts: dict[str, Acts] = {}
    for life in lives:
        lines = life.lines()
        done = {line["done"] for line in lines if "done" in line}
        for line in lines:
            for key, text, at_us in line.get("items", ()):
                found = acts.setdefault(key, Acts())
                (found.done if line["begin"] in done else found.unsure).append((text, at_us))
    return acts


def waiting(fleet: Fleet) -> list[str]:
    """What no compiler has folded yet."""
    return [stat.key for place in (KEYS.inbox, KEYS.packs) for stat in fleet.store.list(place)]


def shard_lines(fleet: Fleet) -> Iterator[bytes]:
    """Every compiled line."""
    for stat in fleet.store.list(KEYS.shards):
        if stat.key.endswith(".usv"):
            yield from fleet.store.get(stat.key).data.splitlines()


def test_writers_and_compilers_that_are_killed_lose_nothing(
    place: str, start: Start, poll: Poll, tmp_path: Path
) -> None:
    fleet = limpet.open(place)
    index: Index[Item] = records(fleet)
    assert index.manifest
    lives: list[Life] = []
    writers: list[Life] = []

    def launch(slot: int) -> Life:
        notes = tmp_path / f"{len(lives)}.notes"
        if slot < WRITERS:
            life = Life(start("write_records", place, slot, notes), notes)
            writers.append(life)
        else:
            life = Life(start("compile_records", place, notes), notes)
        lives.append(life)
        return life

    def done() -> int:
        return sum("done" in line for life in writers for line in life.lines())

    def runs() -> int:
        return sum("folded" in line for life in lives for line in life.lines())

    chance = random.Random(11)
    crew = [launch(slot) for slot in range(WRITERS + COMPILERS)]
    poll(lambda: done() > 0 and runs() > 0, "they begin")
    for _ in range(KILLS):
        goal, run = done() + chance.randint(1, 25), runs() + chance.randint(0, 1)
        poll(lambda goal=goal, run=run: done() >= goal and runs() >= run, "somebody goes on")  # type: ignore[misc]
        victim = chance.randrange(len(crew))
        crew[victim].process.kill()
        crew[victim].process.wait()
        crew[victim] = launch(victim)
    for life in crew:
        life.process.kill()
        life.process.wait()

    acts = acts_of(writers)
    before = {key: index.get(key) for key in acts}
    while waiting(fleet):
        index.compile(full=True)
    assert {key: index.get(key) for key in acts} == before, "compiling changes nothing that is seen"
    found = {item.key: item for item in index.scan()}
    assert found == {key: item for key, item in before.items() if item}
    for key, item in before.items():
        assert (item.text if item else None) in acts[key].may_be(), (key, acts[key])
    copies = Counter(line.partition(b"\x1f")[0].decode() for line in shard_lines(fleet))
    assert {*copies.values()} == {1}
    assert {key for key, each in acts.items() if each.done} <= {*copies} <= {*acts}
    assert fleet.store.list_dirs(KEYS.root).count("quarantine") == 0
    compiled = Counter[str]()
    for life in lives:
        for line in life.lines():
            compiled.update({kind: line[kind] for kind in ("folded", "packed") if kind in line})
    assert compiled["folded"] > 0, "packs are made only where little waits, which depends on how fast the writers are"
    print(f"{done()} acts on {len(acts)} keys, {KILLS} kills, {runs()} runs: {dict(compiled)}")

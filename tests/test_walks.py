"""How many files of ours a call walks through, kernel aside (docs/inside/architecture.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pytest

import limpet
from limpet.cli import main
from support.walk import Tracer, Walk, commit_walks

FILES_MAX = {
    "a task, push to receipt": 14,
    "a record, put, compile, get": 8,
    "a commit over HTTP": 19,
    "`limpet queue ls`": 11,
}
"""More than these need a reason."""
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "inside" / "architecture.md"
TIMES = 3


@dataclass
class Rec:
    """What is put."""

    key: str
    text: str


def _walk(act: Callable[[], object]) -> Walk:
    """What `act` enters every time."""
    with Tracer() as tracer:
        act()
        found = []
        for _ in range(TIMES):
            with tracer.record() as walk:
                act()
            found.append(walk)
    return reduce(Walk.common, found)


def _demand(way: str, walk: Walk) -> None:
    if len(walk) > FILES_MAX[way]:
        pytest.fail(f"{len(walk)} files instead of {FILES_MAX[way]}:\n{walk}", pytrace=False)
    assert {*walk.entered} == _documented(way), f"docs/inside/architecture.md names other files:\n{walk}"


def _documented(way: str) -> set[str]:
    """The files that the table of walks names; behind a semicolon are other ways."""
    [row] = [line for line in ARCHITECTURE.read_text().splitlines() if line.startswith(f"| {way} |")]
    _, _, count, through, _ = row.split("|")
    files = {*re.findall(r"`([a-z_/]+[.]py)`", through.partition(";")[0])}
    assert int(count) == len(files)
    return files


def test_a_task_from_push_to_receipt(tmp_path: Path) -> None:
    fleet = limpet.open(str(tmp_path / "fleet"), durability="os")
    queue = fleet.queue("shout")
    pushed: list[str] = []

    @fleet.task
    def shout(text: str) -> str:
        return text.upper()

    def act() -> None:
        pushed.append(shout.push("hello").id)
        claim = queue.claim()
        assert claim
        with claim:
            for task in claim:
                task.done("HELLO")

    walk = _walk(act)
    assert {queue.result(each).state for each in pushed} == {"completed"}
    _demand("a task, push to receipt", walk)


def test_a_record_from_put_to_get(tmp_path: Path) -> None:
    index = limpet.open(str(tmp_path / "fleet"), durability="os").index("recs", Rec, key="key")

    def act() -> None:
        index.put(Rec("a", "b"))
        index.compile(full=True)
        assert index.get("a") == Rec("a", "b")

    _demand("a record, put, compile, get", _walk(act))


def test_queue_ls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "fleet")
    limpet.open(url, durability="os").queue("shout").push({"text": "hello"}, id="one")

    def act() -> None:
        with pytest.raises(SystemExit):
            main(["queue", "ls", "shout", "--url", url])
        assert "one" in capsys.readouterr().out

    _demand("`limpet queue ls`", _walk(act))


def test_a_commit_over_http(tmp_path: Path) -> None:
    _demand("a commit over HTTP", reduce(Walk.common, commit_walks(tmp_path, TIMES)))

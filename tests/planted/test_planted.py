"""Every planted bug is caught by its recorded seed, and that seed holds without it."""

from __future__ import annotations

import math
import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from planted.bug import AnchorError, Bug, Change, planted
from planted.bugs import BUGS, BugFileError, parse, record
from planted.plant import lost, replay_into
from sim import SCENARIOS
from support.seeds import SEEDS

HERE = Path(__file__).parent


def test_there_are_enough_of_them() -> None:
    assert len(BUGS) >= 14 + 12 + 12 + 30 + 30
    rows = {row.strip() for bug in BUGS.values() for row in bug.row.split(",")}
    failures = (1, 2, 3, 4, 5, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)
    assert {f"F{n}" for n in failures} <= rows
    assert {f"H{n}" for n in (1, 2, 3, 4, 5, 6, 8, 9)} <= rows, "H7 is a sentence in the docs"
    indexes = {f"index {n}" for n in (9, 11, 12, 13, 14, 15, 16, 17, 18)}
    assert indexes <= rows, "8 and 10 are about a layout that Limpet does not have"
    catalogs = {f"catalog {n}" for n in (*range(1, 12), "12a", "12b", "12c", "12d")}
    assert catalogs <= rows


def test_every_bug_can_be_planted() -> None:
    why = lost()
    assert not why, "\n\n".join(why)


def _one(where: str, old: str, new: str) -> Bug:
    return Bug("a bug", "F1", 0, (Change(where, old, new),))


def test_code_is_found_by_function_whatever_its_file_and_its_line_breaks() -> None:
    spread = "if (  # what is offered\n  offered.token<kept.token ) :"
    for where in ("admit", "cell.admit", "decide.admit", "cell.decide.admit"):
        with pytest.raises(AnchorError, match="does not hold the code"):
            planted(_one(where, spread, "if False:"))
        [(module, source)] = planted(_one(where, "if offered.token<kept\n  .token :", "if False:")).items()
        assert module == "limpet.kernel.cell.decide"
        assert source.count("    if False:\n") == 1


def test_lines_that_are_added_are_indented_like_the_code_that_is_there() -> None:
    added = "if offered.token < kept.token:\n    print()\n    if kept:\n        print()"
    [source] = planted(_one("admit", "if offered.token < kept.token:", added)).values()
    assert "\n        print()\n        if kept:\n            print()\n" in source


@pytest.mark.parametrize(
    ("where", "old", "why"),
    [
        ("cell.no_such_function", "x", "nothing in src/limpet is called cell.no_such_function"),
        ("queue.admit", "return", "nothing in src/limpet is called queue.admit"),
        ("cell.admit", "no_such_code", "cell.admit does not hold the code below; looked in kernel.cell.decide.admit"),
        ("cell.admit", "offered", "cell.admit holds this code [0-9]+ times: kernel.cell.decide.admit"),
    ],
)
def test_an_anchor_that_fits_no_place_or_several_is_refused(where: str, old: str, why: str) -> None:
    with pytest.raises(AnchorError, match=why):
        planted(_one(where, old, ""))


_BLOCK = (
    "bug: a bug\nrow: F1\ncaught by: queue seed 7\nin: cell.admit\n if kept:\n-    return kept\n+    return offered\n"
)


def test_a_bug_is_read_from_its_block() -> None:
    [first, second] = parse(f"# Bugs.\n\n{_BLOCK}\n{_BLOCK}in: cell.classify\n-x\n")
    change = Change("cell.admit", "if kept:\n    return kept", "if kept:\n    return offered")
    assert first == Bug("a bug", "F1", 7, (change,), "queue")
    assert second.changes == (change, Change("cell.classify", "x", ""))
    [other] = parse(_BLOCK.replace("queue seed 7", "queue/test_a.py::test_b\nimport: from a import b"))
    assert (other.scenario, other.seed, other.imports) == ("queue/test_a.py::test_b", 0, "from a import b")


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("row: F1\n", ""),
        ("queue seed 7", "queue"),
        ("in: cell.admit\n", ""),
        (" if kept", "if kept"),
        (" if kept:\n-    return kept\n", ""),
        ("-    return kept\n+    return offered\n", ""),
        ("return offered\n", "return offered\n\n+    pass\n"),
    ],
)
def test_a_block_of_another_form_is_refused(line: str, instead: str) -> None:
    assert line in _BLOCK
    with pytest.raises(BugFileError):
        [*parse(_BLOCK.replace(line, instead))]


def test_a_seed_is_recorded_in_the_file_of_its_bug(tmp_path: Path) -> None:
    (tmp_path / "a.bugs").write_text(other := _BLOCK.replace("a bug", "a bug of others"))
    (tmp_path / "b.bugs").write_text(f"# Bugs.\n\n{_BLOCK}")
    record("a bug", 12, tmp_path)
    assert (tmp_path / "a.bugs").read_text() == other
    assert (tmp_path / "b.bugs").read_text() == f"# Bugs.\n\n{_BLOCK}".replace("seed 7", "seed 12")


@pytest.fixture(scope="session")
def forks() -> ForkServerContext:
    """A server of processes that have imported everything but limpet. It ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["planted.preload"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE.parent))  # the fork server of Python 3.11 does not take over sys.path
        forkserver.ensure_running()
    return context


@pytest.mark.parametrize("bug", BUGS.values(), ids=lambda bug: bug.name)
def test_caught(bug: Bug, forks: ForkServerContext, tmp_path: Path) -> None:
    if bug.seed >= SEEDS.get(bug.scenario, math.inf):  # the others, and tests, are run without the bug anyway
        _, violation = SCENARIOS[bug.scenario](bug.seed)
        assert violation is None, f"seed {bug.seed} fails without the bug: {violation}"
    said = tmp_path / "said"
    process = forks.Process(target=replay_into, args=(said, bug.name))
    process.start()
    process.join(1000)
    process.kill()
    assert process.exitcode == 0, f"{bug.name!r} survives seed {bug.seed}:\n{said.read_text()}"

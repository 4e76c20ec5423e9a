"""The Makefile, the pins, the budget tool, the figures of the house and the mutation tool."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"limpet_tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


budget = _tool("budget")
house = _tool("house")
install = _tool("install")
mutate = _tool("mutate")


def _pytest(folder: Path, body: str) -> tuple[str, ...]:
    (folder / "test_it.py").write_text(body)
    return (sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), "-c", os.devnull, str(folder))


def test_help_lists_every_target() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = " ".join(re.findall(r"^  make (\S+) +\S", said, re.M))
    assert listed == "help demo test test-full near check bench docs mutants screenshots soak clean"


def test_make_says_what_is_missing_without_python() -> None:
    done = subprocess.run(["make", "test", "PYTHON="], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "limpet needs Python 3.11" in done.stderr


def test_ci_runs_make_test() -> None:
    ci = ROOT / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert "make test" in ci.read_text()


def test_constraints_are_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==\d[\w.]*", line)] == []


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {_plain(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {_plain(re.split(r"[\[<>=!~; ]", want)[0]) for want in wanted} - pinned == set()


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_budget_covers_the_phases_in_order() -> None:
    phases = budget.plan("test")
    assert [phase.name for phase in phases] == [*budget.BUDGET_S]
    assert sum(phase.budget_s for phase in phases if not phase.patient) == budget.TOTAL_S
    assert [phase.name for phase in phases if phase.patient] == ["simulation"]
    full = [phase.name for phase in budget.plan("test-full")]
    assert full == [*budget.BUDGET_S, "other Pythons", "mutants"]
    assert all("not full" in command for phase in phases if phase.pytest for command in phase.commands)


def test_a_failing_phase_stops_the_later_ones_but_not_the_table() -> None:
    good, bad = (sys.executable, "-c", ""), (sys.executable, "-c", "raise SystemExit(3)")
    phases = [
        budget.Phase("one", (good,), 60),
        budget.Phase("two", (bad, good), 60),
        budget.Phase("three", (good,), 60),
        budget.Phase("four", (), 60, pytest=True),
    ]
    results = budget.run(phases, skips_fail=False)
    assert [(result.verdict, result.failed) for result in results] == [
        ("ok", False),
        ("FAILED", True),
        ("not run", False),
        ("-", False),
    ]
    assert budget.report(results, total_s=900).splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


def test_what_runs_beside_a_phase_ends_with_it_and_decides_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    beside = (sys.executable, "-c", f"open({str(mark)!r}, 'w'); raise SystemExit(3)")
    [result] = budget.run([budget.Phase("one", ((sys.executable, "-c", ""),), beside=beside)], skips_fail=False)
    assert not result.failed
    assert mark.exists()


def test_a_patient_phase_runs_together_with_those_behind_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    code = "import os, time\nopen({!r}, 'w')\nwhile not os.path.exists({!r}): time.sleep(0.01)\nprint('met')"
    phases = [
        budget.Phase("patient", ((sys.executable, "-c", code.format(str(first), str(second))),), patient=True),
        budget.Phase("other", ((sys.executable, "-c", code.format(str(second), str(first))),)),
    ]
    results = budget.run(phases, skips_fail=False)
    assert [(result.phase.name, result.verdict) for result in results] == [("patient", "ok"), ("other", "ok")]
    assert re.findall(r"^met$", capfd.readouterr().out, re.M) == ["met", "met"]
    longest_s = max(result.used_s for result in results)
    assert longest_s <= budget._wall_s(results) < sum(result.used_s for result in results)


def test_a_command_that_is_not_there_fails_its_phase() -> None:
    [result] = budget.run([budget.Phase("one", (("no-such-command-of-limpet",),))], skips_fail=False)
    assert result.failed


def test_tests_are_counted_from_what_pytest_wrote(tmp_path: Path) -> None:
    body = (
        "import os, pytest\n"
        "def test_a(): assert os.environ['PYTHONHASHSEED'] == '0'\n"
        "def test_b(): assert 0\n"
        "def test_c(): pytest.skip('no server')\n"
        "def test_d(gone): pass\n"
    )
    phases = [budget.Phase("unit", (_pytest(tmp_path, body),), pytest=True)]
    results = budget.run(phases, skips_fail=False)
    assert results[0].failed
    assert results[0].tally == budget.Tally(passed=1, failed=2, skipped=1)


@pytest.mark.parametrize(("in_ci", "failed"), [(False, 0), (True, 1)])
def test_a_skip_fails_only_in_ci(tmp_path: Path, in_ci: bool, failed: int) -> None:
    body = "import pytest\ndef test_a(): pytest.skip('no server')\n"
    [result] = budget.run([budget.Phase("unit", (_pytest(tmp_path, body),), pytest=True)], skips_fail=in_ci)
    assert result.failed is in_ci
    assert result.tally == budget.Tally(failed=failed, skipped=1)


def test_a_folder_without_tests_is_no_failure(tmp_path: Path) -> None:
    [result] = budget.run([budget.Phase("unit", (_pytest(tmp_path, ""),), pytest=True)], skips_fail=True)
    assert (result.failed, result.verdict) == (False, "no tests")


def test_over_budget_is_marked_and_not_failed() -> None:
    slow = budget.Result(budget.Phase("one", (("x",),), 60), "ok", used_s=61.0)
    table = budget.report([slow], total_s=60)
    assert re.search(r"^one +1 min +1:01 +ok +OVER BUDGET$", table, re.M)
    assert re.search(r"^total +1 min +1:01 +OVER BUDGET$", table, re.M)


def test_a_missing_package_is_named_with_what_it_costs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    install.install_packages([install.Package("left-pad", "no-such-command-of-limpet", "padding")])
    assert capsys.readouterr().out == "missing Debian package left-pad: skipped without it: padding\n"


MUTATED = '''
Kind = Literal["nor", "these"]

def f(x: int = 1) -> bool:
    """Not this text."""
    y = x + 1
    if x < 3 and not y:
        raise ValueError("nor this one", 5)
    return replace(x, a=1) == "no"
'''

MUTANTS = {
    "def f(x: int=2) -> bool:",
    "def f(x: int=0) -> bool:",
    "x - 1",
    "x + 2",
    "x + 0",
    "pass",
    "x <= 3",
    "x >= 3",
    "x < 4",
    "x < 2",
    "x < 3 or not y",
    "y",
    "replace(x)",
    "replace(x, a=2)",
    "replace(x, a=0)",
    "replace(x, a=1) != 'no'",
    "replace(x, a=1) == 'no?'",
    "return None",
}


def test_mutants_change_one_thing_each() -> None:
    found = [*mutate.mutants(MUTATED)]
    assert {mutant.new for mutant in found} == MUTANTS
    assert len(found) == len(MUTANTS) + 1, "two statements can be dropped"
    assert {mutant.function for mutant in found} == {"f"}
    sources = {mutate.ast.unparse(mutant.tree) for mutant in found}
    assert len(sources) == len(found)
    assert mutate.ast.unparse(mutate.ast.parse(MUTATED)) not in sources


PATCHED = """
LIMIT = 3
TWICE = 2 * LIMIT

def above(x, most=LIMIT):
    return x > most

class Box:
    size = 1

    def full(self, x):
        return x > TWICE
"""


def test_a_loaded_module_becomes_each_mutant_for_all_that_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for what a class declares: only a fresh import changes that."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "patched_user.py").write_text("from patched import *")
    (tmp_path / "patched.py").write_text(PATCHED)

    def answers() -> tuple[object, ...]:
        user = sys.modules["patched_user"]
        return (user.LIMIT, user.TWICE, [user.above(n) for n in range(6)], [user.Box().full(n) for n in range(10)])

    seen = {}
    for mutant in mutate.mutants(PATCHED):
        for name in ("patched", "patched_user"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module("patched_user")
        before = answers()
        module = sys.modules["patched"]
        change = mutate._change(mutant, module, mutate._functions(module))
        if change is not None:
            change.make()
            assert answers() != before
        seen[mutant.new] = change and change.owner
    for name in ("patched", "patched_user"):
        monkeypatch.delitem(sys.modules, name)
    assert seen == {
        "LIMIT = 4": None,
        "LIMIT = 2": None,
        "2 / LIMIT": None,
        "3 * LIMIT": None,
        "1 * LIMIT": None,
        "x >= most": "above",
        "x <= most": "above",
        "return None": "Box.full",
        "size = 2": None,
        "size = 0": None,
        "x >= TWICE": "Box.full",
        "x <= TWICE": "Box.full",
    }


def test_every_mutated_module_has_tests_and_every_argument_names_one() -> None:
    for module, tests in mutate.TESTS.items():
        assert [path for path in (module, *tests) if not (ROOT / path).is_file()] == []
    argued = [line for line in mutate.ARGUED.read_text().splitlines() if line.startswith("- ")]
    assert [line for line in argued if not mutate._ARGUED.match(line)] == []
    assert {mutate._ARGUED.match(line)[1] for line in argued} <= {*mutate.TESTS}
    decisions = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py") if _is_decision(path)}
    assert {f"src/limpet/{name}.py" for name in ("queue/decide", "queue/durable", "catalog/state")} <= decisions
    assert decisions <= {*mutate.TESTS}


def test_code_of_each_argued_mutant_is_still_there() -> None:
    """`make mutants` fails for an argument without its mutant, but takes an hour to say so."""
    code = {path: ast.unparse(ast.parse((ROOT / path).read_text())) for path in mutate.TESTS}
    argued = [mutate._ARGUED.match(line) for line in mutate.ARGUED.read_text().splitlines()]
    assert [row[0] for row in argued if row and row[3] not in code[row[1]]] == []


def _is_decision(path: Path) -> bool:
    """Whether a module has only decisions: it is called `decide`, or its docstring begins by saying that it is pure."""
    first, _, _ = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")
    return path.name == "decide.py" or "pure functions" in " ".join(first.split())


@pytest.mark.full
def test_a_mutant_of_a_class_is_seen_after_a_fresh_import() -> None:
    """Limpet is a plugin of pytest: without care, pytest loads the module from its file instead of the mutant."""
    program = """
import os, sys
sys.path[:0] = ["src", "tests", "tools"]
import mutate
path = "src/limpet/kernel/cell/decide.py"
found = next(each for each in mutate.mutants(open(path).read()) if "max_length=65" in each.new)
tests = ["tests/cell/test_decide.py", "-k", "figures_of_a_header"]
pid = mutate._start("limpet.kernel.cell.decide", found.tree, tests, 1)
print("exit code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "DID NOT RAISE ValidationError" in said
    assert said.endswith("exit code 1\n")


def test_a_figure_over_its_limit_is_named() -> None:
    limits = {"a": {"aim": 1, "limit": 2}, "b": {"aim": 1, "limit": 2}}
    assert house.judge({"a": 2, "b": 3}, limits) == ["b"]


@pytest.mark.parametrize(
    ("name", "value", "aim", "limit", "is_loose"),
    [
        ("retry_constants", 7, 6, 15, True), ("retry_constants", 7, 6, 8, False), ("retry_constants", 7, 6, 7, False),
        ("retry_constants", 4, 6, 6, False), ("retry_constants", 4, 6, 7, True), ("files_large", 0, 4, 0, False),
        ("lines_wheel", 60_000, 54_000, 60_600, False), ("lines_wheel", 60_000, 54_000, 60_601, True),
        ("task_calls", 260, 250, 286, False), ("task_calls", 260, 250, 287, True),
        ("test_ratio", 1.2, 1.15, 1.25, True), ("test_ratio", 1.14, 1.15, 1.15, False),
    ],
)  # fmt: skip
def test_a_limit_follows_its_figure_down_to_the_aim(
    name: str, value: float, aim: float, limit: float, is_loose: bool
) -> None:
    assert house.loose({name: value}, {name: {"aim": aim, "limit": limit}}) == [name] * is_loose


def test_what_is_recorded_is_never_loose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tomllib.loads((ROOT / "tools" / "house.toml").read_text())
    values = {name: limit["limit"] * 0.5 for name, limit in limits.items()}
    monkeypatch.setattr(house, "LIMITS", tmp_path / "house.toml")
    house._record(values, limits)
    recorded = tomllib.loads((tmp_path / "house.toml").read_text())
    assert {name: limit["limit"] for name, limit in recorded.items()} == values
    assert house.loose(values, recorded) == []


def test_each_figure_has_an_aim_and_a_limit() -> None:
    limits = tomllib.loads((ROOT / "tools" / "house.toml").read_text())
    assert [*limits] == [figure.name for figure in house.FIGURES]
    assert all({*limit} == {"aim", "limit"} for limit in limits.values())

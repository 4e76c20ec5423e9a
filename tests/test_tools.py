"""`make near` finds the tests of every module, and `tools/pythons.py` runs what the package promises."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from near import MANY, near, planted_in
from pythons import TESTS, VERSIONS, interpreter

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "src" / "limpet").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ("src/limpet/queue/decide.py", "tests/queue/test_decide.py"),
        ("src/limpet/queue/closer.py", "tests/queue/test_closer.py"),
        ("src/limpet/kernel/errors.py", "tests/test_errors.py"),
        ("src/limpet/ui/static/app.js", "tests/ui"),
        ("tests/queue/test_decide.py", "tests/queue/test_decide.py"),
        ("docs/run/serve.md", "tests/test_docs.py"),
    ],
)
def test_the_nearest_test_comes_first(changed: str, first: str) -> None:
    assert near(ROOT / changed)[0] == first


def test_every_module_has_tests_near_it() -> None:
    alone = {str(path.relative_to(ROOT)): near(path) for path in MODULES}
    assert [name for name, tests in alone.items() if not tests] == []
    wide = [name for name, tests in alone.items() if tests == ["tests"]]
    assert wide == ["src/limpet/__init__.py", "src/limpet/kernel/__init__.py"], "near to this is everything"
    assert all((ROOT / test).exists() for tests in alone.values() for test in tests)
    assert len(near(ROOT / "src/limpet/kernel/errors.py", many=None)) > MANY


def test_the_planted_bugs_of_a_module() -> None:
    bugs = planted_in(ROOT / "src/limpet/queue/closer.py")
    assert "tests/planted/test_planted.py::test_caught[a lease goes together with its task]" in bugs
    assert planted_in(ROOT / "src/limpet/kernel/rights.py") == []


def test_versions_of_python_agree() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert (*named,) == VERSIONS, "classifiers name what was run"
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    matrix = workflow["jobs"]["pythons"]["strategy"]["matrix"]
    assert (*matrix["python"],) == VERSIONS
    assert all((ROOT / path).exists() for path in TESTS)
    here = ".".join(map(str, sys.version_info[:2]))
    assert interpreter(here) is None or here in VERSIONS

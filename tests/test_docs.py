"""Every code block of the README and the docs runs as it stands, and what pages name is there."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import limpet
from planted.bugs import BUGS
from support.docs import (
    PAGES,
    ROOT,
    blocks,
    plain,
    printed,
    program,
    run_python,
    run_shell,
    said,
    write_files,
    write_packages,
)
from support.servers.moto import Moto
from support.servers.process import Bucket, NotInstalled

FIRST_FLEET_LINES_MAX = 25
VENV = str(Path(sys.executable).parent)

Env = Callable[[Path, Path], Mapping[str, str]]


@pytest.fixture(scope="session")
def sqs() -> Iterator[Mapping[str, str]]:
    """What the AWS client and Limpet need in order to find moto's SQS."""
    try:
        with Moto() as moto:
            env = moto.bucket.env
            endpoint = env["LIMPET_SQS_ENDPOINT"]
            yield {
                **env,
                "AWS_ENDPOINT_URL_SQS": endpoint,
                "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
    except NotInstalled as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Env:
    """All that a page gets from outside: where its fleet is, and for SQS a server."""

    def make(page: Path, home: Path) -> Mapping[str, str]:
        more = request.getfixturevalue("sqs") if page.name == "from-sqs.md" else {}
        return {"LIMPET_URL": str(home / "fleet"), **more}

    return make


def _with(kind: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, kind)]


@pytest.mark.parametrize("page", _with("python"), ids=lambda page: page.name)
def test_python_blocks_run_and_print_what_they_say(page: Path, tmp_path: Path, env: Env) -> None:
    code = program(page)
    write_files(page, tmp_path)
    output = run_python(code, tmp_path, env(page, tmp_path))
    for text in printed(code):
        assert text in output


LONG = ("index.md", "look.md", "offline-nodes.md")
"""Pages whose commands take ten seconds and more: `make test-full` runs them."""


def _or_full(page: Path) -> Any:
    return pytest.param(page, marks=pytest.mark.full) if page.name in LONG else page


@pytest.mark.parametrize("page", [_or_full(page) for page in _with("sh")], ids=lambda page: page.name)
def test_shell_blocks_run_and_print_what_they_say(page: Path, tmp_path: Path, env: Env) -> None:
    script = "\n".join(blocks(page, "sh"))
    for target in re.findall(r"^make (\w[\w-]*)", script, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    write_files(page, tmp_path)
    lines = [line for line in script.splitlines() if not line.startswith(("make ", "pip "))]
    output = run_shell("\n".join(lines), tmp_path, env(page, tmp_path))
    for text in said(script):
        assert text in plain(output)


OTHERS = ("[import-untyped]", "reportMissingModuleSource", "reportMissingTypeStubs")
"""What checkers say of packages without types: boto3, Django, PyArrow."""


def test_mypy_accepts_every_example(tmp_path: Path) -> None:
    write_packages(tmp_path)
    command = [sys.executable, "-m", "mypy", str(tmp_path)]  # strict, by pyproject.toml, whose cache it uses
    env = {**os.environ, "MYPYPATH": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    assert [line for line in ran.stdout.splitlines() if ": error:" in line and not line.endswith(OTHERS)] == []
    assert "source files" in ran.stdout, ran.stdout + ran.stderr


def test_pyright_accepts_every_example(tmp_path: Path) -> None:
    write_packages(tmp_path)
    # Without the types that pyright infers from the code of others: Django's `atomic` is no context manager there.
    settings = {"typeCheckingMode": "standard", "useLibraryCodeForTypes": False, "include": ["."]}
    settings["extraPaths"] = [str(ROOT / "src")]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [f"{VENV}/basedpyright", "-p", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    said = json.loads(ran.stdout)["generalDiagnostics"]
    assert [each for each in said if each["severity"] == "error" and each.get("rule") not in OTHERS] == []


@pytest.mark.parametrize("page", _with("py"), ids=lambda page: page.name)
def test_code_of_others_compiles(page: Path) -> None:
    for body in blocks(page, "py"):
        compile(body, page.name, "exec")


def test_the_page_of_tasks_has_every_option() -> None:
    section = (ROOT / "docs" / "use" / "tasks.md").read_text().partition("## Define\n")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (.*?) \| ", section, re.MULTILINE)
    options = {option for cell in first_cells for option in QUOTED.findall(cell)}
    parameters = {*inspect.signature(limpet.Fleet.task).parameters} - {"self", "policy"}
    assert options == parameters | {field.name for field in fields(limpet.Policy)}


@pytest.mark.full
def test_the_first_fleet_is_short_and_works_in_a_bucket(seaweedfs: Bucket, tmp_path: Path) -> None:
    page = ROOT / "docs" / "run" / "first-fleet.md"
    [app], [script] = blocks(page, "python"), blocks(page, "bash")
    assert len([line for line in (app + script).splitlines() if line.strip()]) <= FIRST_FLEET_LINES_MAX
    (tmp_path / "app.py").write_text(app)
    place = seaweedfs.at(f"docs-{uuid4().hex}").partition("?")[0]
    output = run_shell(script, tmp_path, {**seaweedfs.env, "LIMPET_URL": place})
    assert len(said(script)) >= 6
    for text in said(script):
        assert text in plain(output)
    assert re.search(r"^one\s+1\s.*\srunning\s", output, re.MULTILINE), "the worker died with a task in hand"
    assert re.search("failed shout one attempt [12]", plain(output)), (
        "another one took it over; a first claim that dies before its first renewal charges nobody"
    )


# ---- what pages name is there ----

QUOTED = re.compile(r"`([^`\n]+)`")
DOCSTRINGS = ("python", "house")
"""How the names of pages of docstrings begin; those may name attributes."""
PLANTED = re.compile(r'planted ((?:"[^"]+"(?:, | and )?)+)')
IN_SIM = re.compile(r"\b[Ss]im ((?:`[\w.]+`(?:, )?)+)")
PROOF = re.compile(rf"`test_\w+`|`tests/(?:\w+/)*\w+\.py`|{PLANTED.pattern}|{IN_SIM.pattern}")
PROMISES = [
    ROOT / "docs" / "trust" / "guarantees.md",
    ROOT / "docs" / "trust" / "threat-model.md",
    ROOT / "SECURITY.md",
]


@cache
def _functions(folder: str) -> set[str]:
    """The names of all functions below a folder of the tree; a method is also there as `Class.method`."""
    nodes = [node for path in (ROOT / folder).rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    methods = {
        f"{node.name}.{each.name}"
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    }
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)} | methods


def _missing(page: Path, tests: set[str], invariants: set[str]) -> Iterator[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for name in QUOTED.findall(text):
        if re.fullmatch(r"test_\w+", name) and name not in tests:
            yield f"no test {name}"
        if re.fullmatch(r"_[a-z]\w+", name) and name not in invariants and not page.name.startswith(DOCSTRINGS):
            yield f"no invariant {name} in the simulation"
        if re.fullmatch(r"(src|tests|tools|bench|docs)/[\w./-]*", name):
            if not (ROOT / name).exists():
                yield f"no file {name}"
        elif re.fullmatch(r"(\w+/)+\w+\.py", name):
            is_there = page.name.startswith(DOCSTRINGS) or (ROOT / "src" / "limpet" / name).exists()
            yield from () if is_there else (f"no module {name}",)
    for names in IN_SIM.findall(text):
        yield from (f"no {name} in the simulation" for name in QUOTED.findall(names) if name not in invariants)
    for names in PLANTED.findall(text):
        yield from (f"no planted bug {name!r}" for name in re.findall(r'"([^"]+)"', names) if name not in BUGS)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    assert [*_missing(page, _functions("tests"), _functions("sim"))] == []


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`test_gone`, sim `_gone`, `Gone.gone`, `tests/gone.py`, `queue/gone.py`; "
        'planted "gone", "a swap is a plain put"\n'
    )
    assert len([*_missing(page, set(), set())]) == 7


def _statements(page: Path) -> Iterator[str]:
    """The paragraphs, items and rows of a page; of a row with its proof in the last column, that column behind `| `."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    begins = re.compile(r"\| |- |\d+\. ")
    for part in re.split(r"\n\s*\n", text):
        found: list[str] = []
        for line in part.splitlines():
            if line.startswith(("#", "|---")):
                continue
            if begins.match(line) or not found:
                found.append(line)
            else:
                found[-1] += f" {line.strip()}"
        if found and re.match(r"\| .*\| (proof|shown by|guard and proof) ", found[0]):
            yield from (f"{row.split(' | ')[0]} | {row.split(' | ')[-1]}" for row in found[1:])
        elif found and found[0].startswith("| "):
            yield from found[1:]
        else:
            yield from found


PROMISE_NOTHING = (
    "The values of `created`:",
    "The power of clocks:",
    "No promise:",
    "- **That a task runs only once.**",
    "- **Exclusion of side effects outside Limpet.**",
    "- **Fairness.**",
    "- **Anything on a store that `limpet doctor` refuses.**",
    "- **Denial of service**",
    "- **Side effects outside Limpet.**",
    "- **A store that lies**",
    "[SECURITY.md](../../SECURITY.md) says",
    "Please report it in private",
    '1. Use "Report a vulnerability"',
    "2. Say what an attacker needs",
    "3. You get an answer",
    "Not a weakness:",
)
"""Headings of lists, what is refused any promise, and what people do: no test can show it."""


@pytest.mark.parametrize("page", PROMISES, ids=lambda page: page.name)
def test_every_statement_names_a_proof(page: Path) -> None:
    """A folder of tests is no proof: a name that a reader can run is."""
    statements = [*_statements(page)]
    assert len(statements) >= 10
    shown = [each for each in statements if not each.startswith(PROMISE_NOTHING)]
    assert [each for each in shown if not PROOF.search(each.split(" | ")[-1] if " | " in each else each)] == []


def test_what_promises_nothing_is_on_a_page() -> None:
    statements = [each for page in PROMISES for each in _statements(page)]
    for start in PROMISE_NOTHING:
        assert [each for each in statements if each.startswith(start) and not PROOF.search(each)], start


FAILURES = ROOT / "docs" / "trust" / "failures.md"
ROWS = 32 + 10 + 14 + 7 + 4 + 9 + 9
"""F1 to F34, of which three share one row; then A to E and G, two of them without a number."""


def test_every_row_of_the_failures_names_a_proof() -> None:
    rows = [each for each in _statements(FAILURES) if re.match(r"\| (?:[A-G]\d+|rule)\b", each)]
    assert len(rows) == ROWS
    assert [row for row in rows if not PROOF.search(row)] == []


def _labels() -> set[str]:
    """The labels of the failures page: its rows, and each counterexample by its heading and number."""
    text = FAILURES.read_text()
    labels = {*re.findall(r"^\| ([A-G]\d+)\b", text, re.M), *re.findall(r"^\*\*(H\d)\.", text, re.M), "F30", "F31"}
    kind = ""
    for line in text.splitlines():
        heading = re.match(r"(?:### |\*\*)(Cell|Lease|Catalog|Order of listings)(?!,)", line)
        kind = {"Order of listings": "index"}.get(heading[1], heading[1].lower()) if heading else kind
        if number := re.match(r"(\d+)\. ", line):
            labels |= {f"{kind} {number[1]}", f"counterexample {number[1]}"}
            labels |= {f"{kind} {number[1]}{letter}" for letter in re.findall(r"\(([a-d])\)", line)}
    return labels


def test_every_label_that_code_names_is_a_failure() -> None:
    named = set()
    for path in (path for folder in ("src", "sim", "tests") for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text()
        named |= {*re.findall(r"\b(?:F[1-9]\d?|H[1-9])\b(?!\.)", text)}
        named |= {f"counterexample {number}" for number in re.findall(r"[Cc]ounterexamples? (\d+)", text)}
    for bug in BUGS.values():
        named |= {*re.findall(r"\b(?:[A-G]\d+|(?:cell|lease|index|catalog|counterexample) \d+[a-d]?)\b", bug.row)}
    assert {"F25", "H1", "index 17", "catalog 9", "catalog 12c", "counterexample 3"} <= named
    assert named - _labels() == set()


def test_a_statement_without_a_proof_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\nIt holds\n(`test_this`).\n\nIt holds too.\n\n| promise | proof |\n|---|---|\n"
        "| so | `test_that` |\n| and `test_so` | `tests/folder` |\n\n- one `tests/a/test_b.py`\n- two\n  and more\n"
    )
    assert [each for each in _statements(page) if not PROOF.search(each.split(" | ")[-1])] == [
        "It holds too.",
        "| and `test_so` | `tests/folder` |",
        "- two and more",
    ]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_exactly_once_is_only_denied(page: Path) -> None:
    said = [line for line in page.read_text().splitlines() if "exactly once" in line.lower()]
    assert [line for line in said if not re.search(r"\b(never|not|no)\b", line, re.IGNORECASE)] == []


def test_the_reference_is_up_to_date() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "make_reference.py"))
    assert {path.name for path in tool["FOLDER"].glob("*.md")} == {
        *tool["PAGES"],
        "bucket.md",
        "iceberg.md",
        "install.md",
    }
    for path, page in (tool["PAGES"] | tool["PARTS"]).items():
        assert (tool["FOLDER"] / path).read_text() == page(), "run: .venv/bin/python tools/make_reference.py"

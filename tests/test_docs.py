"""Every code block of the README and the docs runs as it stands, and what pages name is there."""

from __future__ import annotations

import ast
import os
import re
import runpy
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from planted.bugs import BUGS
from support.docs import PAGES, ROOT, blocks, plain, printed, program, run_python, run_shell, said, write_files
from support.servers.moto import Moto
from support.servers.process import Bucket, NotInstalled

FIRST_FLEET_LINES_MAX = 25

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
    output = run_python(code, tmp_path, env(page, tmp_path))
    for text in printed(code):
        assert text in output


LONG = ("index.md", "operate.md", "raspberry-pi-fleet.md")
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


@pytest.mark.parametrize("page", _with("py"), ids=lambda page: page.name)
def test_code_of_others_compiles(page: Path) -> None:
    for body in blocks(page, "py"):
        compile(body, page.name, "exec")


@pytest.mark.full
def test_the_first_fleet_is_short_and_works_in_a_bucket(seaweedfs: Bucket, tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "first-fleet.md"
    [app], [script] = blocks(page, "python"), blocks(page, "bash")
    assert len([line for line in (app + script).splitlines() if line.strip()]) <= FIRST_FLEET_LINES_MAX
    (tmp_path / "app.py").write_text(app)
    place = seaweedfs.at(f"docs-{uuid4().hex}").partition("?")[0]
    output = run_shell(script, tmp_path, {**seaweedfs.env, "LIMPET_URL": place})
    assert len(said(script)) >= 6
    for text in said(script):
        assert text in plain(output)
    assert re.search(r"^one\s+1\s.*\sheld\s", output, re.MULTILINE), "the worker died with a task in hand"
    assert re.search("failed shout one attempt [12]", plain(output)), (
        "another one took it over; a first claim that dies before its first renewal charges nobody"
    )


# ---- what pages name is there ----

QUOTED = re.compile(r"`([^`\n]+)`")
PLANTED = re.compile(r'planted ((?:"[^"]+"(?:, | and )?)+)')


@cache
def _functions(folder: str) -> set[str]:
    """The names of all functions below a folder of the tree."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / folder).rglob("*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _missing(page: Path, tests: set[str], invariants: set[str]) -> Iterator[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for name in QUOTED.findall(text):
        if re.fullmatch(r"test_\w+", name) and name not in tests:
            yield f"no test {name}"
        if re.fullmatch(r"_[a-z]\w+", name) and name not in invariants:
            yield f"no invariant {name} in the simulation"
        if re.fullmatch(r"(src|tests|tools|bench|docs)/[\w./-]*", name):
            if not (ROOT / name).exists():
                yield f"no file {name}"
        elif re.fullmatch(r"(\w+/)+\w+\.py", name) and not (ROOT / "src" / "limpet" / name).exists():
            yield f"no module {name}"
    for names in PLANTED.findall(text):
        yield from (f"no planted bug {name!r}" for name in re.findall(r'"([^"]+)"', names) if name not in BUGS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page: Path) -> None:
    assert [*_missing(page, _functions("tests"), _functions("src/limpet/sim"))] == []


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '`test_gone`, sim `_gone`, `tests/gone.py`, `queue/gone.py`; planted "gone", "a swap is a plain put"\n'
    )
    assert len([*_missing(page, set(), set())]) == 5


@pytest.mark.parametrize(("page", "after"), [("GUARANTEES.md", ""), ("THREAT_MODEL.md", "## What we defend against")])
def test_every_promise_names_a_proof(page: str, after: str) -> None:
    text = (ROOT / "docs" / page).read_text().partition(after)[2] if after else (ROOT / "docs" / page).read_text()
    rows = [line for line in text.splitlines() if re.match(r"\| (?!promise|threat)", line)]
    assert len(rows) > 25
    assert [row for row in rows if not re.search(r"test|[Ss]im|planted", row.split(" | ")[-1])] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_exactly_once_is_only_denied(page: Path) -> None:
    said = [line for line in page.read_text().splitlines() if "exactly once" in line.lower()]
    assert [line for line in said if not re.search(r"\b(never|not|no)\b", line, re.IGNORECASE)] == []


def test_the_reference_is_up_to_date() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "make_reference.py"))
    for name, page in tool["PAGES"].items():
        assert (tool["FOLDER"] / name).read_text() == page(), "run: .venv/bin/python tools/make_reference.py"

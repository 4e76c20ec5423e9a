"""Mistakes of new users are answered with one clear line, a hint and the documented exit code, and change nothing.

`mistakes.txt` has a row for each: what is typed, a command or `>>>` Python, and below it the exit code or the kind of
error, words of the line, and behind `=>` words of the hint; no hint follows where there is none.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import limpet
from cli.harness import Here
from limpet.kernel.errors import LimpetError

TABLE = Path(__file__).with_name("mistakes.txt")
LEAST = 195
NO_PART = {"__pycache__", "clock", ".limpet"}
"""Folders of what is no part of a fleet: what Python keeps, what was written to read the store's clock, its locks."""


class Mistake(NamedTuple):
    """A row of the table."""

    typed: str
    kind: str
    said: str
    hint: str


def _rows() -> Iterator[Mistake]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    for typed, answer in zip(lines[::2], lines[1::2], strict=True):
        kind, _, words = answer.strip().partition(" ")
        said, _, hint = words.partition(" => ")
        yield Mistake(typed, kind, said, hint)


MISTAKES = [*_rows()]
COMMANDS = [mistake for mistake in MISTAKES if mistake.typed.startswith("limpet ")]
SNIPPETS = [mistake for mistake in MISTAKES if mistake.typed.startswith(">>> ")]

APP = """
import limpet
fleet = limpet.open("fleet")
NUMBER = 7
@fleet.task("enrich")
def enrich(domain: str) -> str:
    return domain
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet: a task that waits, one that failed, an index, a lock; and files to push and import."""
    home = tmp_path_factory.mktemp("mistakes")
    fleet = limpet.open(home / "fleet", durability="os")
    queue = fleet.queue("enrich", max_attempts=1)
    queue.push({"domain": "b.com"}, id="lost")
    with queue.claim() as claim:
        for task in claim:
            task.fail("no answer")
    queue.push({"domain": "a.com"}, id="good")
    fields = [{"name": "domain", "type": "string"}, {"name": "visits", "type": "integer"}]
    fleet.index("sites", {"fields": fields}, key="domain", depth=2).put({"domain": "a.com", "visits": 1})
    with fleet.lock("backup").hold():
        pass
    (home / "app.py").write_text(APP)
    (home / "broken.py").write_text("import nothing_like_it\n")
    (home / "bad.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    (home / "utf16.jsonl").write_bytes('{"a": 1}\n'.encode("utf-16"))
    (home / "rows.jsonl").write_text('{"a": 1}\n')
    (home / "rows.csv").write_text("domain,visits\na.com,1\n")
    (home / "rows.xyz").write_text("domain\n")
    (home / "other.csv").write_text("name\na.com\n")
    return home


def _tree(home: Path) -> list[tuple[str, int, int]]:
    """Every file with its size and time."""
    return sorted(
        (str(path.relative_to(home)), stat.st_size, stat.st_mtime_ns)
        for path in home.rglob("*")
        if path.is_file() and not NO_PART & {*path.parts} and (stat := os.stat(path))
    )


def _check(first: str, hint: str, mistake: Mistake) -> None:
    assert mistake.said in first, first
    assert bool(mistake.hint) is bool(hint), hint or "no hint"
    assert mistake.hint in hint, hint
    assert "\n" not in first + hint
    assert "correct the input" not in hint


@pytest.mark.parametrize("mistake", COMMANDS, ids=lambda mistake: mistake.typed)
def test_a_wrong_command_is_answered(here: Here, home: Path, mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    before = _tree(home)
    done = here(*shlex.split(mistake.typed)[1:])
    assert (str(done.code), done.out) == (mistake.kind, ""), done
    lines = done.err.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("limpet: "))
    assert len(lines) - at <= 2, done.err
    _check(lines[at], (lines[at + 1 :] or [""])[0].removeprefix("hint: "), mistake)
    assert _tree(home) == before


def job() -> None:
    """A function that a worker could run."""


def stars(*names: str) -> None:
    """A function that no payload fits."""


def generator() -> Iterator[int]:
    """A function that yields."""
    yield 1


@pytest.mark.parametrize("mistake", SNIPPETS, ids=lambda mistake: mistake.typed)
def test_wrong_python_is_answered(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = limpet.open("memory://")

    def enrich(domain: str) -> str:
        return domain

    names: dict[str, Any] = {
        "limpet": limpet,
        "fleet": fleet,
        "enrich": fleet.task("enrich")(enrich),
        "queue": fleet.queue("mail"),
        "NOW": datetime.now(UTC),
        "NAIVE": datetime(2026, 1, 1),
        **{function.__name__: function for function in (job, stars, generator)},
    }
    with pytest.raises((LimpetError, AttributeError, TypeError)) as raised:
        exec(mistake.typed.removeprefix(">>> "), names)
    error = raised.value
    kinds = [kind.__name__ for kind in type(error).__mro__]
    assert mistake.kind in kinds
    said, _, hint = str(error).partition("; ") if isinstance(error, AttributeError) else (str(error), "", "")
    _check(said, getattr(error, "hint", hint), mistake)
    assert not fleet.queues() or "push" in mistake.typed


def test_the_table_has_no_mistake_twice() -> None:
    typed = [mistake.typed for mistake in MISTAKES]
    assert len({*typed}) == len(typed) >= LEAST
    assert all(re.fullmatch(r"[12]|Invalid|Missing|AttributeError|TypeError", mistake.kind) for mistake in MISTAKES)

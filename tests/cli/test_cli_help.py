"""What a newcomer reads: help, version, exit codes; and how soon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import limpet
from cli.harness import COMMANDS, Here, limpet_command
from limpet.cli import parser
from limpet.cli.parse import Group, summary_of

LINES_MAX = 80
GROUPS = [
    ("catalog",),
    ("catalog", "quarantine"),
    ("events",),
    ("index",),
    ("lock",),
    ("cell",),
    ("queue",),
    ("tables",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "limpet")
def test_help_is_short_and_shows_flags_as_flags(
    here: Here, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, said, err = here(*command, "--help")
    assert (code, err) == (0, "")
    assert "Example" in said
    assert f"$ limpet {' '.join(command)}".rstrip() in said
    assert ("Exit codes: " in said) is (command not in GROUPS)
    assert "<bool>" not in said
    assert len(said.splitlines()) <= LINES_MAX, said
    [help_] = [line for line in said.splitlines() if "--help" in line]
    assert help_.strip("│ ").split() == ["--help", "-h", "Show", "this", "message", "and", "exit."]


def test_help_tells_defaults_and_variables_beside_the_text(here: Here) -> None:
    said = " ".join(here("queue", "ls", "--help").out.split())
    assert "Show at most N entries. [default: 20]" in said
    assert "[env: LIMPET_URL]" in said


def test_every_command_is_listed() -> None:
    """A group lists a command by a line of its own table, which is the first sentence of the command's help."""

    def below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name in command.list_commands(None) if isinstance(command, Group) else ():
            inner = command.get_command(None, name)
            assert inner is not None
            assert inner.name == name
            assert command.summary(name) == summary_of(inner.help)
            yield from below(inner, (*words, name))

    assert sorted(below(parser(), ())) == COMMANDS


@pytest.mark.parametrize("group", [(), *GROUPS], ids=lambda group: " ".join(group) or "limpet")
def test_help_names_what_is_inside(here: Here, group: tuple[str, ...]) -> None:
    said = here(*group, "--help").out
    for command in COMMANDS:
        if command[:-1] == group and command:
            assert f" {command[-1]} " in said


def test_version(here: Here) -> None:
    assert here("--version").out == f"limpet {limpet.__version__}\n"


def test_python_m_limpet_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "limpet", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == subprocess.run(limpet_command("--version"), capture_output=True, text=True).stdout


HEAVY = ("asyncio", "concurrent.futures", "duckdb", "msgspec", "obstore", "pyarrow", "subprocess")
ROOMS = ("limpet.app", "limpet.catalog", "limpet.index", "limpet.queue", "limpet.service", "limpet.kernel.store")
SCREEN = ("click", "rich", "typer")


def _loaded(code: str) -> set[str]:
    """The modules that are loaded once the code has run in a new process, beside those that Python starts with."""
    code = f"import sys; old = {{*sys.modules}}\n{code}\nprint(*({{*sys.modules}} - old), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {*done.stdout.split("\n")}


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import limpet", (*HEAVY, *ROOMS, *SCREEN, "limpet.cli")),
        ("import limpet; limpet.LeaseLost", (*HEAVY, *ROOMS, *SCREEN, "limpet.cli")),
        (
            "import limpet; limpet.open('memory://').queue('q').push({})",
            (*(each for each in HEAVY if each != "msgspec"), *SCREEN, "limpet.catalog", "limpet.index", "limpet.cli"),
        ),
        ("import limpet.cli", (*HEAVY, *ROOMS, *SCREEN)),
        ("import limpet.cli as c; c.parser()", (*HEAVY, *ROOMS, "rich", "typer", "limpet.cli.lock")),
        (
            "import limpet.cli as c; c.parser().get_command(None, 'lock').get_command(None, 'ls')",
            (*HEAVY, *ROOMS, "pydantic", "rich", "typer", "limpet.cli.queue"),
        ),
    ],
)
def test_what_is_not_loaded_before_it_is_needed(code: str, heavy: tuple[str, ...]) -> None:
    loaded = _loaded(code)
    assert "limpet.kernel.errors" in loaded
    assert not loaded & {*heavy}


def test_the_version_is_printed_before_click_is_loaded() -> None:
    code = "import sys, limpet.cli\ntry: limpet.cli.main(['--version'])\nexcept SystemExit as end: assert end.code == 0"
    assert not _loaded(code) & {*HEAVY, *ROOMS, *SCREEN}


def test_every_public_name_is_found_when_it_is_used() -> None:
    code = "from limpet import *\nassert limpet_names <= {*globals()}, limpet_names - {*globals()}"
    done = subprocess.run([sys.executable, "-c", f"limpet_names = { ({*limpet.__all__} - {'__version__'})!r}\n{code}"])
    assert done.returncode == 0
    assert {*limpet.__all__} <= {*dir(limpet)}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = limpet.nothing

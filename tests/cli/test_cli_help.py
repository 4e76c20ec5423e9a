"""What a newcomer reads: help, version, exit codes; and how soon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import limpet
from cli.harness import Here, limpet_command

COMMANDS: list[tuple[str, ...]] = [
    (),
    ("backup",),
    ("catalog",),
    ("catalog", "gc"),
    ("catalog", "log"),
    ("catalog", "quarantine"),
    ("catalog", "quarantine", "ls"),
    ("catalog", "quarantine", "retry"),
    ("catalog", "show"),
    ("catalog", "undrop"),
    ("catalog", "verify"),
    ("check",),
    ("demo",),
    ("doctor",),
    ("events",),
    ("events", "ls"),
    ("events", "tail"),
    ("iam",),
    ("index",),
    ("index", "adopt"),
    ("index", "compile"),
    ("index", "create"),
    ("index", "delete"),
    ("index", "export"),
    ("index", "get"),
    ("index", "import"),
    ("index", "ls"),
    ("index", "publish"),
    ("index", "purge"),
    ("index", "put"),
    ("index", "reshard"),
    ("index", "schema"),
    ("index", "sql"),
    ("index", "stats"),
    ("index", "verify"),
    ("lock",),
    ("lock", "break"),
    ("lock", "ls"),
    ("lock", "run"),
    ("lock", "show"),
    ("queue",),
    ("queue", "cancel"),
    ("queue", "cost"),
    ("queue", "failed"),
    ("queue", "ls"),
    ("queue", "pause"),
    ("queue", "peek"),
    ("queue", "purge"),
    ("queue", "push"),
    ("queue", "resume"),
    ("queue", "retry"),
    ("queue", "show"),
    ("queue", "stats"),
    ("queue", "sweep"),
    ("restore",),
    ("serve",),
    ("serve", "api"),
    ("serve", "compactor"),
    ("status",),
    ("supervise",),
    ("upgrade",),
    ("work",),
]
LINES_MAX = 70
GROUPS = [("catalog",), ("catalog", "quarantine"), ("events",), ("index",), ("lock",), ("queue",)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "limpet")
def test_help_has_an_example(here: Here, command: tuple[str, ...]) -> None:
    done = here(*command, "--help")
    assert (done.code, done.err) == (0, "")
    assert "Example" in done.out
    assert f"$ limpet {' '.join(command)}".rstrip() in done.out
    assert ("Exit codes: " in done.out) is (command not in GROUPS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "limpet")
def test_help_is_short_and_shows_flags_as_flags(
    here: Here, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = here(*command, "--help").out
    assert "<bool>" not in said
    assert len(said.splitlines()) <= LINES_MAX, said
    [help_] = [line for line in said.splitlines() if "--help" in line]
    assert help_.strip("│ ").split() == ["--help", "-h", "Show", "this", "message", "and", "exit."]


def test_help_tells_defaults_and_variables_beside_the_text(here: Here) -> None:
    said = " ".join(here("queue", "ls", "--help").out.split())
    assert "Show at most so many. [default: 20]" in said
    assert "[env: LIMPET_URL]" in said


def test_every_command_is_listed() -> None:
    from typer.main import get_command

    from limpet.cli import app

    def below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, each in getattr(command, "commands", {}).items():
            yield from below(each, (*words, name))

    assert sorted(below(get_command(app), ())) == COMMANDS


@pytest.mark.parametrize("group", [(), *GROUPS], ids=lambda group: " ".join(group) or "limpet")
def test_help_names_what_is_inside(here: Here, group: tuple[str, ...]) -> None:
    said = here(*group, "--help").out
    for command in COMMANDS:
        if command[:-1] == group and command:
            assert f" {command[-1]} " in said


@pytest.mark.parametrize("command", [("work",), ("queue", "ls"), ("index", "import")], ids=" ".join)
def test_no_type_stands_beside_a_flag(here: Here, command: tuple[str, ...]) -> None:
    flags = [line for line in here(*command, "--help").out.splitlines() if "<bool>" in line]
    assert [line.split()[1] for line in flags] in ([], ["--help"]), "a flag takes no value"


def test_version(here: Here) -> None:
    assert here("--version").out == f"limpet {limpet.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [("frobnicate",), ("lock", "ls", "--frob"), ("lock", "show"), ("upgrade", "a", "b")]
)
def test_wrong_usage_is_2(here: Here, arguments: tuple[str, ...]) -> None:
    done = here(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Usage: limpet" in done.err


def test_python_m_limpet_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "limpet", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == subprocess.run(limpet_command("--version"), capture_output=True, text=True).stdout


def test_importing_the_cli_loads_nothing_heavy() -> None:
    heavy = {"rich", "obstore", "subprocess", "limpet.store.cloud", "limpet.store.doctor", "limpet.worker.command"}
    code = f"import sys, typer; old = {{*sys.modules}}; import limpet.cli; print({heavy!r} & ({{*sys.modules}} - old))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

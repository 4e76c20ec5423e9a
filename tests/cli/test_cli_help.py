"""What a newcomer reads: help, version, exit codes; and how soon."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import limpet
from cli.harness import Here, limpet_command

COMMANDS: list[tuple[str, ...]] = [
    (),
    ("demo",),
    ("doctor",),
    ("lock",),
    ("lock", "break"),
    ("lock", "ls"),
    ("lock", "run"),
    ("lock", "show"),
    ("upgrade",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "limpet")
def test_help_has_an_example(here: Here, command: tuple[str, ...]) -> None:
    done = here(*command, "--help")
    assert (done.code, done.err) == (0, "")
    assert "Example" in done.out
    assert f"$ limpet {' '.join(command)}".rstrip() in done.out
    assert "Exit codes: " in done.out or command == ("lock",)


def test_every_command_is_listed() -> None:
    from typer.main import get_command

    from limpet.cli import app

    root: Any = get_command(app)
    found = [(), *((name,) for name in root.commands), *(("lock", name) for name in root.commands["lock"].commands)]
    assert sorted(found) == COMMANDS


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
    heavy = {"rich", "obstore", "subprocess", "limpet.store.cloud", "limpet.store.examine", "limpet.cli.run"}
    code = f"import sys, typer; old = {{*sys.modules}}; import limpet.cli; print({heavy!r} & ({{*sys.modules}} - old))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

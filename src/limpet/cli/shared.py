"""What all commands share: exit codes, options, errors, and how things are printed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet import records
from limpet.errors import Held, Invalid, LeaseLost, LimpetError

if TYPE_CHECKING:
    from rich.console import Console

    from limpet.app import Fleet

__all__ = [
    "ENV_URL",
    "EXIT_FAILED",
    "EXIT_HELD",
    "EXIT_INTERRUPTED",
    "EXIT_LOST",
    "EXIT_USAGE",
    "JsonOption",
    "UrlOption",
    "ago",
    "complain",
    "console",
    "existing",
    "lines",
    "opened",
    "print_json",
]

ENV_URL = "LIMPET_URL"

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_LOST = 70
EXIT_HELD = 75
EXIT_INTERRUPTED = 130

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", "-u", envvar=ENV_URL, show_default=False, help="The fleet: ./dir, s3://bucket/prefix, gs://, az://."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


def lines(*each: str) -> str:
    """Paragraphs of help, in Markdown; those that begin with `$` are commands to type."""
    return "\n\n".join(f"`{line}`" if line.startswith("$") else line for line in each)


def complain(error: LimpetError) -> int:
    """Say on stderr what went wrong, and what to do about it; the exit code for it."""
    print(f"limpet: {error}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    match error:
        case Held():
            return EXIT_HELD
        case LeaseLost():
            return EXIT_LOST
        case Invalid():
            return EXIT_USAGE
        case _:
            return EXIT_FAILED


def print_json(value: Any) -> None:
    """`value`, of plain types or structs, as indented JSON on stdout."""
    import msgspec

    print(msgspec.json.format(records.encode(value), indent=2).decode())


def console(*, stderr: bool = False) -> Console:
    """Where tables and coloured lines go. Without a terminal they come out plain, and no line is cut."""
    from rich.console import Console

    plain_width = None if (sys.stderr if stderr else sys.stdout).isatty() else int(os.environ.get("COLUMNS") or 160)
    return Console(stderr=stderr, highlight=False, width=plain_width)


def opened(url: str | None, *, read_only: bool = False, create: bool = True) -> Fleet:
    """The fleet at `url`, connected: what is wrong with the place is said before anything else."""
    import limpet

    fleet = limpet.open(url, read_only=read_only, create=create)
    fleet.check()
    return fleet


def existing(url: str | None) -> Fleet:
    """The fleet at `url`, to write to. One that is not there is `Missing`, so that a typo creates nothing."""
    return opened(url, create=False)


def ago(seconds: float) -> str:
    """A span of time, as people say it."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"

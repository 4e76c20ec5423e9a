"""The command line: `limpet demo | work | queue | index | catalog | serve | status | check | lock | ...`.

`commands` has the table of commands, with one module or package for each; `output` has exit codes and how commands
print, `options` what they share. What a command needs is imported when it runs: `limpet --version` answers before Typer
is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from limpet import __version__
from limpet.errors import LimpetError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. An error of Limpet's is one line and a hint, never a traceback.

    Any other error is a mistake in limpet: one line too, and exit code 71, which nothing else has.
    """
    words = [*sys.argv[1:]] if arguments is None else [*arguments]
    try:
        sys.exit(_run(words))
    except Exception as error:  # noqa: BLE001 (nothing above this could report it)
        from limpet.cli.output import complain_of_mistake

        sys.exit(complain_of_mistake(error))


def _run(words: list[str]) -> int:
    """Run a command: its exit code.   Raises: SystemExit with the code of a command that chose one."""
    if words == ["--version"]:
        print(f"limpet {__version__}")
        return 0
    from limpet.cli.commands import run
    from limpet.cli.output import EXIT_INTERRUPTED, complain

    try:
        run(words)
    except LimpetError as error:
        return complain(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0

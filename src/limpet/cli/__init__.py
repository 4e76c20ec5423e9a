"""The command line: `limpet demo | work | queue | index | catalog | serve | status | check | lock | ...`.

One module for each command; `shared` holds exit codes, options and how errors are said. What a command needs is
imported when it runs, so that `limpet --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from limpet import __version__
from limpet.cli import (
    backup,
    catalog,
    check,
    demo,
    doctor,
    events,
    iam,
    index,
    lock,
    queue,
    serve,
    status,
    supervise,
    upgrade,
    work,
)
from limpet.cli.shared import EXIT_INTERNAL, EXIT_INTERRUPTED, complain, lines, say
from limpet.errors import LimpetError

__all__ = ["app", "main"]

TRACEBACK = "LIMPET_TRACEBACK"

app = typer.Typer(
    name="limpet",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Run a whole fleet from one bucket: tasks, workers and locks in an object store or a plain directory.",
    epilog=lines(
        "Example: see it work, on a temporary folder, in half a minute",
        "$ limpet demo",
        "Example: push a task, run what waits, look (app.py has a fleet and its tasks)",
        """$ limpet queue push enrich '{"domain": "a.com"}' --url s3://acme/prod""",
        "$ limpet work app:fleet -p 4 --url s3://acme/prod",
        "$ limpet status --url s3://acme/prod",
        "Exit codes: 0 done; 1 refused, failed or unhealthy; 2 wrong usage; 70 the lease was lost while the command "
        "ran; 71 a mistake in limpet itself; 75 the lock is held; 130 interrupted. `lock run` passes the command's own "
        "code on.",
    ),
)
app.command(epilog=demo.EPILOG)(demo.demo)
app.command(epilog=work.EPILOG)(work.work)
app.command(epilog=supervise.EPILOG)(supervise.supervise)
app.add_typer(queue.app)
app.add_typer(index.app)
app.add_typer(catalog.app)
app.add_typer(serve.app)
app.command(epilog=status.EPILOG)(status.status)
app.command(epilog=check.EPILOG)(check.check)
app.add_typer(lock.app)
app.add_typer(events.app)
app.command(epilog=doctor.EPILOG)(doctor.doctor)
app.command(epilog=iam.EPILOG)(iam.iam)
app.command(epilog=upgrade.EPILOG)(upgrade.upgrade)
app.command(epilog=backup.BACKUP_EPILOG)(backup.backup)
app.command(epilog=backup.RESTORE_EPILOG)(backup.restore)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"limpet {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    show_traceback: Annotated[
        bool,
        typer.Option("--traceback", help="Show the traceback of a mistake in limpet. LIMPET_TRACEBACK=1 does too."),
    ] = False,
) -> None:
    """Options of `limpet` itself. (The help text is the app's.)"""
    if show_traceback:
        os.environ[TRACEBACK] = "1"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. An error of Limpet's is one line and a hint, never a traceback.

    Any other error is a mistake in limpet: one line too, and exit code 71, which nothing else has.
    """
    with _Internal():
        try:
            command = get_command(app)
            _shorten_help(command)
            command(args=arguments, prog_name="limpet")
        except LimpetError as error:
            sys.exit(complain(error))
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        sys.exit(0)
    raise AssertionError("the command line ends with an exit")


def _shorten_help(command: Any, parent: typer.Context | None = None) -> None:
    """Have the help of all commands show flags without a type, and defaults beside the text instead of below it."""
    context = typer.Context(command, info_name=command.name, parent=parent, **command.context_settings)
    for each in command.get_params(context):
        if getattr(each, "is_flag", False):
            each.metavar = ""
        elif each.param_type_name == "option":
            default = each.show_default if isinstance(each.show_default, str) else each.default
            notes = [f"default: {default}"] if each.show_default and default is not None else []
            notes += [f"env: {each.envvar}"] if each.envvar and each.show_envvar else []
            each.help = " ".join([each.help or "", *(f"[{note}]" for note in notes)])
            each.show_default = each.show_envvar = False
    for inner in getattr(command, "commands", {}).values():
        _shorten_help(inner, context)


class _Internal:
    """A block out of which no error comes but an exit."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not isinstance(error, Exception):
            return
        if os.environ.get(TRACEBACK, "0") not in ("", "0"):
            traceback.print_exception(error)
        said, _, more = str(error).strip().partition("\n")
        what = f"{type(error).__name__}: {said}" if said else type(error).__name__
        say(f"limpet: internal error: {what[:500]}{' ...' if more else ''}", err=True)
        say(f"hint: please report it; `limpet --traceback ...` or {TRACEBACK}=1 shows where it was", err=True)
        sys.exit(EXIT_INTERNAL)

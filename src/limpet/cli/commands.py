"""The table of commands, and the Typer app that is built from it: all of it, or only the command that was typed."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from limpet import __version__
from limpet.cli.output import TRACEBACK, lines

COMMANDS = {
    "demo": "limpet.demo.show:demo",
    "work": "limpet.cli.work:work",
    "supervise": "limpet.cli.supervise:supervise",
    "queue": "limpet.cli.queue:app",
    "index": "limpet.cli.index:app",
    "catalog": "limpet.cli.catalog:app",
    "serve": "limpet.cli.serve:app",
    "status": "limpet.cli.status:status",
    "check": "limpet.cli.check:check",
    "lock": "limpet.cli.lock:app",
    "events": "limpet.cli.events:app",
    "doctor": "limpet.cli.doctor:doctor",
    "iam": "limpet.cli.iam:iam",
    "upgrade": "limpet.cli.upgrade:upgrade",
    "backup": "limpet.cli.backup:backup",
    "restore": "limpet.cli.backup:restore",
}
"""Each command with its module and its name there: a function, or `app` for a group of commands.
The examples of a function are in its module's EPILOG, or in an EPILOG that begins with its name."""

EPILOG = lines(
    "Example: see it work, on a temporary folder, in half a minute",
    "$ limpet demo",
    "Example: push a task, run what waits, look (app.py has a fleet and its tasks)",
    """$ limpet queue push enrich '{"domain": "a.com"}' --url s3://acme/prod""",
    "$ limpet work app:fleet -p 4 --url s3://acme/prod",
    "$ limpet status --url s3://acme/prod",
    "Exit codes: 0 done; 1 refused, failed or unhealthy; 2 wrong usage; 70 the lease was lost while the command "
    "ran; 71 a mistake in limpet itself; 75 the lock is held; 130 interrupted. `lock run` passes the command's own "
    "code on.",
)


def run(arguments: list[str]) -> None:
    """Run the command that `arguments` name. Only its module is imported, unless the name is missing or unknown.

    Raises: LimpetError, SystemExit, KeyboardInterrupt; anything else is a mistake in limpet.
    """
    typed = next((word for word in arguments if word != "--traceback"), "")
    parser(typed if typed in COMMANDS else None)(args=arguments, prog_name="limpet")


def parser(only: str | None = None) -> Any:
    """What parses the command line and runs it: for all commands, or for one of them."""
    command = get_command(build(only))
    _shorten_help(command)
    return command


def build(only: str | None = None) -> typer.Typer:
    """The command line as a Typer app: with all commands, or with one of them."""
    app = typer.Typer(
        name="limpet",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["--help", "-h"]},
        help="Run a whole fleet from one bucket: tasks, workers and locks in an object store or a plain directory.",
        epilog=EPILOG,
    )
    app.callback()(_options)
    for name, place in COMMANDS.items():
        if only in (None, name):
            _add(app, *place.split(":"))
    return app


def _add(app: typer.Typer, module_name: str, name: str) -> None:
    module = import_module(module_name)
    found: Any = getattr(module, name)
    if name == "app":
        app.add_typer(found)
    else:
        own = f"{name.upper()}_EPILOG"
        app.command(epilog=getattr(module, own if hasattr(module, own) else "EPILOG"))(found)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"limpet {__version__}")
        raise typer.Exit


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

"""The command line: `limpet demo | work | queue | index | catalog | serve | ui | status | check | ...`.

`COMMANDS` names the module of each command; `main` imports the module of the command that was typed, and runs it. Below
that is what all commands share: exit codes, and how they print. `say` prints a plain line, `show` lines with Rich's
markup and tables, `print_json` JSON; none of them lets a control character reach a terminal. `options` has the options
and arguments that commands share.

Typer, Rich and the library are imported where they are used: `limpet --version` answers without them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from limpet import __version__
from limpet.errors import Held, Invalid, LeaseLost, LimpetError, Unavailable

if TYPE_CHECKING:
    from datetime import datetime

    import typer
    from rich.console import Console, RenderHook
    from rich.table import Table

__all__ = ["main"]

COMMANDS = {
    "demo": "limpet.demo.show:demo",
    "work": "limpet.cli.work:work",
    "supervise": "limpet.cli.work:supervise",
    "queue": "limpet.cli.queue:app",
    "index": "limpet.cli.index:app",
    "catalog": "limpet.cli.catalog:app",
    "tables": "limpet.cli.catalog:tables",
    "serve": "limpet.cli.serve:app",
    "ui": "limpet.cli.serve:ui",
    "status": "limpet.cli.fleet:status",
    "top": "limpet.cli.fleet:top",
    "check": "limpet.cli.fleet:check",
    "workers": "limpet.cli.fleet:workers",
    "lock": "limpet.cli.lock:app",
    "sql": "limpet.cli.sql:sql",
    "metrics": "limpet.cli.fleet:metrics",
    "events": "limpet.cli.events:app",
    "doctor": "limpet.cli.store:doctor",
    "iam": "limpet.cli.store:iam",
    "upgrade": "limpet.cli.fleet:upgrade",
    "backup": "limpet.cli.store:backup",
    "restore": "limpet.cli.store:restore",
    "completion": "limpet.cli.options:completion",
}
"""Each command with its module and its name there: a function, or a group of commands."""

EXAMPLES = (
    "Example: see it work, on a temporary folder, in half a minute",
    "$ limpet demo",
    "Example: push a task, run what waits, look (app.py has a fleet and its tasks)",
    """$ limpet queue push enrich '{"domain": "a.com"}' --url s3://acme/prod""",
    "$ limpet work app:fleet -p 4 --url s3://acme/prod",
    "$ limpet status --url s3://acme/prod",
    "Exit codes: 0 done; 1 refused, failed or unhealthy; 2 wrong usage; 70 the lease was lost while the command "
    "ran; 71 a bug in limpet; 75 the lock is held; 130 interrupted. `lock run` passes the command's own "
    "code on.",
)

TRACEBACK = "LIMPET_TRACEBACK"
COMPLETE = "_LIMPET_COMPLETE"
CONFIG = "limpet.toml"
CONFIG_VARIABLE, PROFILE_VARIABLE = "LIMPET_CONFIG", "LIMPET_PROFILE"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_LOST = 70
EXIT_INTERNAL = 71
EXIT_HELD = 75
EXIT_INTERRUPTED = 130
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
FULL_HINT = "free some space where stdout or the temporary files go"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. An error of Limpet's is one line and a hint, never a traceback.

    Any other error is a bug in limpet: one line too, and exit code 71, which nothing else has.
    """
    _open_closed_streams()
    words = [*sys.argv[1:]] if arguments is None else [*arguments]
    if words == ["--version"]:
        print(f"limpet {__version__}")
        sys.exit(0)
    try:
        if COMPLETE in os.environ:
            _complete()
        if (
            os.path.exists(CONFIG)
            or any(map(os.environ.get, (CONFIG_VARIABLE, PROFILE_VARIABLE)))
            or any(word.startswith("--profile") for word in words)
        ):
            from limpet.cli.config import run_configured

            run_configured(words)
        else:
            run(words)
    except LimpetError as error:
        sys.exit(complain(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (nothing above this could report it)
        if isinstance(error, OSError) and error.errno in DISK_FULL:  # stores report theirs as `LimpetError`
            sys.exit(complain(Unavailable(f"cannot write the output: {error.strerror}", hint=FULL_HINT)))
        sys.exit(complain_of_mistake(error))
    sys.exit(0)


def _open_closed_streams() -> None:
    """Open what the caller has closed (`>&-`) as /dev/null: otherwise the next file that is opened gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (it stays open)


def run(words: Sequence[str], defaults: Callable[[Any], dict[str, Any]] = lambda command: {}) -> None:
    """Run a command line. `defaults`: those of the options of a command, by command and parameter."""
    import typer

    typed = next((word for word in words if word != "--traceback"), "")
    command = parser(typed if typed in COMMANDS else None)
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]  # Typer does not export it
    try:
        code = command(args=[*words], prog_name="limpet", default_map=defaults(command), standalone_mode=False)
    except usage_error as error:
        _complain_of_usage(error)
        sys.exit(EXIT_USAGE)
    except typer.Abort:
        say("limpet: interrupted at the question; nothing was changed", err=True)
        sys.exit(EXIT_FAILED)
    if code:
        sys.exit(code)


def _complain_of_usage(error: Any) -> None:
    """Print what is wrong with a command line, and how it is used. The help, for want of words, is printed already."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return
    said = " ".join(error.format_message().split()).rstrip(".")
    said = said.replace(": Value error, ", ": ").replace(": Input should be ", ": it must be ")
    usage = " ".join(error.ctx.get_usage().split()).removeprefix("Usage: ") if error.ctx else "limpet COMMAND ..."
    where = error.ctx.command_path if error.ctx else "limpet"
    complain(Invalid(f"{said[:1].lower()}{said[1:]}", hint=f"usage: {usage}; `{where} --help` says more"))


def _complete() -> NoReturn:
    """Answer a shell's request for completions (`limpet completion`). Only the command that is typed is loaded."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # not exported

    completion_init()
    typed = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()[1:2]
    parser(typed[0] if typed and typed[0] in COMMANDS else None)(args=[], prog_name="limpet", complete_var=COMPLETE)
    sys.exit(0)


def parser(only: str | None = None) -> Any:
    """The parser that runs a command line: for all commands, or for one of them."""
    from typer.main import get_command

    command = get_command(build(only))
    _shorten_help(command)
    return command


def build(only: str | None = None) -> typer.Typer:
    """The command line as a Typer app: with all commands, or with one of them."""
    import typer

    def print_version(wanted: bool) -> None:
        if wanted:
            print(f"limpet {__version__}")
            raise typer.Exit

    version = typer.Option(
        False, "--version", callback=print_version, is_eager=True, help="Print the version and exit."
    )
    traceback = typer.Option(
        False, "--traceback", help=f"Show the traceback of a bug in limpet. {TRACEBACK}=1 does too."
    )

    profile = typer.Option(
        None, "--profile", metavar="NAME", envvar=PROFILE_VARIABLE, help="A profile of limpet.toml; before the command."
    )

    def options(version: bool = version, show_traceback: bool = traceback, profile: str | None = profile) -> None:
        if show_traceback:
            os.environ[TRACEBACK] = "1"

    app = typer.Typer(
        name="limpet",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["--help", "-h"]},
        help="Run a whole fleet from one bucket: tasks, workers and locks in an object store or a plain directory.",
        epilog=lines(*EXAMPLES),
    )
    app.callback()(options)
    for name, place in COMMANDS.items():
        if only in (None, name):
            module, _, attribute = place.partition(":")
            _add(app, getattr(import_module(module), attribute))
    return app


def _add(app: typer.Typer, found: Any) -> None:
    """Add a group, or a function: it has the command's name, with a `_` behind a keyword of Python.

    Its docstring is the help; from the first `Example` on, it is the epilog: an indented line continues the one above.
    """
    from inspect import cleandoc

    import typer

    if isinstance(found, typer.Typer):
        app.add_typer(found)
        return
    said, _, more = cleandoc(found.__doc__).partition("\n\nExample")
    examples = lines(*f"Example{more}".replace("\n  ", " ").split("\n"))
    app.command(found.__name__.rstrip("_"), help=said, epilog=examples)(found)


def _shorten_help(command: Any, parent: typer.Context | None = None) -> None:
    """Have the help of all commands show flags without a type, and defaults beside the text instead of below it."""
    import typer

    context = typer.Context(command, info_name=command.name, parent=parent, **command.context_settings)
    for each in command.get_params(context):
        is_flag = getattr(each, "is_flag", False)
        if is_flag:
            each.metavar = ""
        if each.param_type_name == "option":
            default = each.show_default if isinstance(each.show_default, str) else each.default
            notes = [f"default: {default}"] if each.show_default and default is not None and not is_flag else []
            variables = [each.envvar] if isinstance(each.envvar, str) else [*(each.envvar or ())]
            notes += [f"env: {' or '.join(variables)}"] if variables and each.show_envvar else []
            each.help = " ".join([each.help or "", *(f"[{note}]" for note in notes)])
            each.show_default = each.show_envvar = False
    for inner in getattr(command, "commands", {}).values():
        _shorten_help(inner, context)


# ---- what commands share ----


def group(name: str, *commands: Any, help: str, epilog: str) -> typer.Typer:
    """A group of commands, in that order: functions, and groups."""
    import typer

    app = typer.Typer(name=name, no_args_is_help=True, rich_markup_mode="markdown", help=help, epilog=epilog)
    for command in commands:
        _add(app, command)
    return app


def lines(*each: str) -> str:
    """Paragraphs of help, in Markdown. What begins with `$` is a command to type, on the next line of its paragraph."""
    return "".join(f"\\\n`{line}`" if line.startswith("$") else f"\n\n{line}" for line in each).strip()


def clean(text: str) -> str:
    """`printable` text for a `console`: what looks like Rich's markup is not."""
    from rich.markup import escape

    from limpet.records import printable

    return escape(printable(text))


def clean_lines(text: str) -> str:
    """As `clean`, for text of several lines, such as a traceback. Each is marked, so that none passes for ours."""
    return "\n".join(f"| {clean(line.expandtabs())}" for line in text.split("\n"))


def say(text: str, *, err: bool = False) -> None:
    """Print one line."""
    import typer

    from limpet.records import printable

    typer.echo(printable(text), err=err)


def show(*parts: str | Table, err: bool = False) -> None:
    """Print lines with Rich's markup, which are never cut, and tables, whose long cells are folded."""
    out = console(stderr=err)
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, str))


def table(*titles: str, right: Collection[str] = ()) -> Table:
    """An empty table without lines. The columns `right` hold figures; long text in the others is folded."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for title in titles:
        figures = title in right
        made.add_column(title, justify="right" if figures else "left", no_wrap=figures, overflow="fold")
    return made


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names, in bold, and what they stand for; without a header."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, text in rows:
        made.add_row(name, text)
    return made


def confirm(what: str, question: str) -> None:
    """Return if the user says yes.   Raises: Invalid without a terminal to ask on; Exit with code 1 for a no."""
    import typer

    if not sys.stdin.isatty():
        raise Invalid(f"{what}, and there is no terminal to ask", hint="add --yes")
    say(f"{what}.", err=True)
    if not typer.confirm(question, err=True):
        say("nothing was changed", err=True)
        raise typer.Exit(EXIT_FAILED)


def complain(error: LimpetError) -> int:
    """Print an error and its hint on stderr; returns the exit code for it."""
    say(f"limpet: {error}", err=True)
    if error.hint:
        say(f"hint: {error.hint}", err=True)
    match error:
        case Held():
            return EXIT_HELD
        case LeaseLost():
            return EXIT_LOST
        case Invalid():
            return EXIT_USAGE
        case _:
            return EXIT_FAILED


def complain_of_mistake(error: Exception) -> int:
    """Print on stderr that limpet itself failed; returns the exit code for it."""
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    said, _, more = str(error).strip().partition("\n")
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    say(f"limpet: internal error: {what[:500]}{' ...' if more else ''}", err=True)
    say(f"hint: please report it; `limpet --traceback ...` or {TRACEBACK}=1 shows where it was", err=True)
    return EXIT_INTERNAL


def print_json(value: Any) -> None:
    """`value`, of plain types or structs, as indented JSON on stdout. What does not print is written as \\uXXXX."""
    import msgspec
    import typer

    from limpet.records import encode

    typer.echo(printable_json(msgspec.json.format(encode(value), indent=2).decode()))


def answer(facts: Any, text: str, *, json: bool) -> None:
    """Print what a command did: the facts as JSON, or a line."""
    if json:
        print_json(facts)
    else:
        say(text)


def print_dated(facts: dict[str, Any], said: Iterable[str], *, json: bool) -> None:
    """Print at once what has just happened, with the time: facts as a line of JSON on stdout, or lines on stderr."""
    from limpet.records import encode
    from limpet.runtime import system

    at = system().wall()
    if json:
        print(encode({"at": at, **facts}).decode(), flush=True)
        return
    for line in said:
        print(f"{at:%H:%M:%S}Z {line}", file=sys.stderr, flush=True)


def printable_json(text: str) -> str:
    """JSON that means the same and is safe on a terminal."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def console(*, stderr: bool = False) -> Console:
    """The console for tables and coloured lines. Without a terminal the output is plain: no line is cut, and the cells
    of a table are separated by tabs. Control characters never reach the terminal, whatever their source."""
    from rich.console import Console

    plain_width = None if (sys.stderr if stderr else sys.stdout).isatty() else int(os.environ.get("COLUMNS") or 160)
    made = Console(stderr=stderr, highlight=False, width=plain_width)
    made.push_render_hook(_safe_hook(plain=plain_width is not None))
    return made


def _safe_hook(*, plain: bool) -> RenderHook:
    """The hook by which our consoles remove control characters from everything that they print."""
    from rich.console import ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
    from rich.segment import Segment
    from rich.table import Table

    from limpet.records import printable

    class SafeOutput:
        """Something to print, without control characters in it."""

        def __init__(self, inner: ConsoleRenderable) -> None:
            self._inner = inner

        def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
            if plain and isinstance(self._inner, Table):
                for row in _rows_of(out, self._inner):
                    yield Segment("\t".join(map(printable, row)).rstrip())
                    yield Segment.line()
                return
            for segment in out.render(self._inner, options):
                if segment.control or segment.text.isprintable():
                    yield segment
                else:
                    lines = segment.text.split("\n")
                    yield Segment("\n".join(map(printable, lines)), segment.style)

    class SafeHook(RenderHook):
        """Makes everything `SafeOutput`."""

        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [SafeOutput(each) for each in renderables]

    return SafeHook()


def _rows_of(out: Console, table: Table) -> list[list[str]]:
    """The cells of a table as plain text, with its header if it shows one."""
    columns = [[*column.cells] for column in table.columns]
    if table.show_header:
        columns = [[column.header, *cells] for column, cells in zip(table.columns, columns, strict=True)]
    return [
        [" ".join(out.render_str(str(cell)).plain.split("\n")) for cell in row] for row in zip(*columns, strict=True)
    ]


@contextmanager
def progress_bar(description: str, *, total: int | None, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on stderr, only on a terminal. It yields a function that takes what `Progress.update` takes.

    Without a total, the bar only moves: the end is not known.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    err = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        yield partial(bar.update, bar.add_task(description, total=total))


def size_text(size: float) -> str:
    """A number of bytes, for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def requests_text(requests: dict[str, int], where: str = "") -> str:
    """The requests of a command by verb, as a dim line."""
    took = ", ".join(f"{count:,} {verb.upper()}" for verb, count in requests.items())
    return f"[dim]This took {many(sum(requests.values()), 'request')}{where}: {took}.[/dim]"


def ago(seconds: float) -> str:
    """A span of time, for people."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"


def now_of(*stamps: datetime | None) -> datetime:
    """The store's time, as near as one gets without writing: this machine's, but not before what the store stamped."""
    from limpet.runtime import system

    return max([system().wall(), *(stamp for stamp in stamps if stamp is not None)])


def when(moment: datetime | None) -> str:
    """A moment, for people."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "-"


def many(count: int, one: str, more: str | None = None) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"

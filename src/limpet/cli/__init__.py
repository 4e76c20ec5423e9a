"""The command line: `limpet demo | work | queue | index | catalog | serve | ui | status | check | ...`.

`COMMANDS` names the module of each command, and its line in the help; `main` has `parse` read the words, which imports
the module of the command that was typed. Read `parse` (commands from the signatures of functions), `help`, `options`
(what commands share), `config` (limpet.toml), `completion`, then a file for each group of commands. Below the table is
how they print: `say` a plain line, `show` lines with Rich's markup and tables, `print_json` JSON; none of them lets a
control character reach a terminal.

It may import every room, and holds no rules of its own: a command parses, calls one function, and prints. Click, Rich
and the library are imported where they are used: `limpet --version` answers without them.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from limpet import __version__
from limpet.kernel.errors import Held, Invalid, LeaseLost, LimpetError, Unavailable
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console, RenderHook
    from rich.table import Table

    from limpet.cli.parse import Group, UsageError

__all__ = ["main"]

COMMANDS = {
    "demo": (
        "limpet.demo.show:demo",
        "Watch four workers survive kill -9 and a long sleep, in half a minute. Nothing to set up.",
    ),
    "work": ("limpet.cli.work:work", "Run tasks: claim what waits in a queue, call its function, record the result."),
    "supervise": (
        "limpet.cli.work:supervise",
        "Let this machine work offline on its own directory, and sync that with the bucket at intervals.",
    ),
    "ui": (
        "limpet.cli.serve:ui",
        "Serve the dashboard: queues, workers, indexes, the catalog, locks and what it all costs, live in a browser.",
    ),
    "status": ("limpet.cli.fleet:status", "Show the queues of a fleet and the locks that are held. Changes nothing."),
    "top": (
        "limpet.cli.fleet:top",
        "Watch a fleet: queues with their rates, workers, indexes, locks, the catalog, and what it costs. "
        "Changes nothing.",
    ),
    "check": (
        "limpet.cli.fleet:check",
        "Check rules on every queue: one line for each that is violated, and exit code 1. Changes nothing.",
    ),
    "workers": (
        "limpet.cli.fleet:workers",
        "Show the worker processes of a fleet: where they run, their version and queues, and since when. "
        "Changes nothing.",
    ),
    "sql": (
        "limpet.cli.sql:sql",
        "Query a fleet in SQL: tasks, records, tables, events, commits, locks and workers. Changes nothing.",
    ),
    "metrics": (
        "limpet.cli.fleet:metrics",
        "Show a fleet to Prometheus: depth, age and rate of queues, workers, locks, indexes, the catalog, cost.",
    ),
    "doctor": (
        "limpet.cli.store:doctor",
        "Find out whether a store keeps the promises that Limpet builds on, and how fast it is.",
    ),
    "iam": (
        "limpet.cli.store:iam",
        "Print a policy that grants what a role needs in a bucket, as JSON. Nothing is sent to the cloud.",
    ),
    "upgrade": ("limpet.cli.fleet:upgrade", "Raise a fleet's recorded formats to those of this limpet."),
    "backup": (
        "limpet.cli.store:backup",
        "Copy a fleet to another URL. It may be running, and nothing is written to it.",
    ),
    "restore": (
        "limpet.cli.store:restore",
        "Restore a backup as a fleet, in an empty place. It cannot be opened before the restore is complete.",
    ),
    "completion": (
        "limpet.cli.completion:completion",
        "Print a script that completes limpet's commands and options in your shell. Changes nothing.",
    ),
    "queue": ("limpet.cli.queue:app", "Push tasks, look at queues, retry what failed."),
    "index": ("limpet.cli.index:app", "Keep records by key: import, look up, query, compile, export."),
    "catalog": (
        "limpet.cli.catalog:app",
        "Show the table catalog and its history, and restore dropped tables. `limpet serve` serves it.",
    ),
    "tables": (
        "limpet.cli.catalog:tables",
        "Maintain tables without an engine: expire snapshots, compact small files, delete orphans.",
    ),
    "serve": (
        "limpet.cli.serve:app",
        "Serve the table catalog: Iceberg's REST protocol, for PyIceberg, DuckDB, Polars and Spark.",
    ),
    "lock": ("limpet.cli.lock:app", "Run a command under a lock, and look at locks."),
    "cell": ("limpet.cli.cell:app", "Read, write and count JSON values that all processes share."),
    "events": ("limpet.cli.events:app", "Look at what ran: the runs that workers record with --events."),
}
"""Each command: its module and its name there, and its line in `limpet --help`, which loads none of them."""

PANELS = {
    "Run": ("demo", "work", "supervise", "queue", "lock", "cell"),
    "Look": ("status", "top", "ui", "workers", "check", "events", "sql", "metrics"),
    "Keep": ("index", "backup", "restore"),
    "Tables": ("catalog", "tables", "serve"),
    "Set up": ("doctor", "iam", "upgrade", "completion"),
}
"""The frames of `limpet --help`."""

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

URL_HELP = "The fleet: ./dir, s3://bucket/prefix, gs://, az://. It may stand behind the command, too."
PROFILE_HELP = "A profile of limpet.toml; before the command."
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
            or any(word.startswith("--profile") for word in words[: place_of_command(words)])
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


def run(words: Sequence[str], defaults: Callable[[str, Any], dict[str, Any]] = lambda typed, parser: {}) -> None:
    """Run a command line. `defaults`: those of the options of the typed command, by command and parameter."""
    from limpet.cli.parse import Abort, Exit, UsageError

    top = parser()
    typed = next(iter(words[place_of_command(words) :]), "")
    try:
        with top.make_context("limpet", [*words], default_map=defaults(typed, top)) as context:
            top.invoke(context)
    except Exit as end:
        sys.exit(end.exit_code)
    except UsageError as error:
        _complain_of_usage(error)
        sys.exit(EXIT_USAGE)
    except Abort:
        say("limpet: interrupted at the question; nothing was changed", err=True)
        sys.exit(EXIT_FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it when it ends
        sys.exit(EXIT_FAILED)


def _complain_of_usage(error: UsageError) -> None:
    """Print what is wrong with a command line, and how it is used; for want of words, the help."""
    from limpet.cli.parse import NoArgsIsHelpError, echo

    if isinstance(error, NoArgsIsHelpError):
        echo(error.format_message())
        return
    said = _said(error)
    usage = " ".join(error.ctx.get_usage().split()).removeprefix("Usage: ") if error.ctx else "limpet COMMAND ..."
    where = error.ctx.command_path if error.ctx else "limpet"
    hint = _hint_at(error, said, where) or f"usage: {usage}; `{where} --help` says more"
    complain(Invalid(f"{said[:1].lower()}{said[1:]}", hint=hint))


def _said(error: UsageError) -> str:
    """What is wrong, on one line. What it probably means is for the hint."""
    from limpet.cli.parse import NoSuchOption

    if isinstance(error, NoSuchOption):
        return f"no such option {error.option_name!r}"
    return " ".join(error.format_message().split()).rstrip(".")


def _hint_at(error: UsageError, said: str, where: str) -> str:
    """What was probably meant; empty if that is not known."""
    from limpet.cli.parse import HintedUsageError, NoSuchOption

    if isinstance(error, HintedUsageError):
        return error.hint
    if isinstance(error, NoSuchOption):
        from limpet.kernel.foreign import ours_for
        from limpet.kernel.wording import nearest

        is_long = error.option_name.startswith("--")
        if ours := ours_for(error.option_name) if is_long or where in ("limpet", "limpet work") else None:
            return f"in Limpet: {ours}"
        known = error.ctx.command.params if error.ctx else []
        options = [name for each in known for name in (*each.opts, *each.secondary_opts)]
        near = nearest(error.option_name, [*options, "--help"]) if is_long else None
        return f"did you mean {near}? `{where} --help` shows all" if near else ""
    extra = re.fullmatch(r".*unexpected extra argument \((\S+)\)", said)
    if extra and (extra[1].startswith((".", "/", "~")) or "://" in extra[1]):
        return f"name the fleet by --url: {where} -u {extra[1]}"
    return ""


def place_of_command(words: Sequence[str]) -> int:
    """The place of the command among the words: options of `limpet` itself come before it."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("--url", "-u", "--profile") else 1
    return at


def _complete() -> NoReturn:
    """Answer a shell's request for completions (`limpet completion`). Only the command that is typed is loaded."""
    from limpet.cli.completion import answer_shell
    from limpet.cli.parse import Exit

    if os.path.exists(CONFIG) or CONFIG_VARIABLE in os.environ:
        from limpet.cli.config import configured

        with suppress(LimpetError):
            configured(())  # names of the fleet's queues are asked for where the file says
    try:
        answer_shell(parser())
    except Exit as end:
        sys.exit(end.exit_code)
    except Exception:  # noqa: BLE001 (a shell would show it in the middle of the user's line)
        sys.exit(EXIT_FAILED)
    sys.exit(0)


def parser() -> Group:
    """The parser of the whole command line. The modules of commands are imported when they are typed."""
    from limpet.cli.parse import Context, Exit, Group, Option, colour, lines

    def print_version(context: Context, option: Any, wanted: bool) -> None:
        if wanted:
            say(f"limpet {__version__}")
            raise Exit

    def show_traceback(context: Context, option: Any, wanted: bool) -> None:
        if wanted:
            os.environ[TRACEBACK] = "1"

    version = Option("--version", help="Print the version and exit.").parameter("version", bool, False)
    version.callback, version.is_eager = print_version, True
    traceback = Option("--traceback", help=f"Show the traceback of a bug in limpet. {TRACEBACK}=1 does too.")
    shown = traceback.parameter("traceback", bool, False)
    shown.callback = show_traceback
    profile = Option("--profile", metavar="NAME", envvar=PROFILE_VARIABLE, help=PROFILE_HELP)
    url = Option("--url", "-u", help=URL_HELP).parameter("url", str | None, None)
    return Group(
        "limpet",
        COMMANDS,
        PANELS,
        params=[url, profile.parameter("profile", str | None, None), shown, version],
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"], "color": colour()},
        help="Run a whole fleet from one bucket: tasks, workers and locks in an object store or a plain directory.",
        epilog=lines(*EXAMPLES),
    )


# ---- what commands share ----


def clean(text: str) -> str:
    """`printable` text for a `console`: what looks like Rich's markup is not."""
    from rich.markup import escape

    from limpet.kernel.records import printable

    return escape(printable(text))


def clean_lines(text: str) -> str:
    """As `clean`, for text of several lines, such as a traceback. Each is marked, so that none passes for ours."""
    return "\n".join(f"| {clean(line.expandtabs())}" for line in text.split("\n"))


def say(text: str, *, err: bool = False) -> None:
    """Print one line."""
    from limpet.kernel.records import printable

    print(printable(text), file=sys.stderr if err else sys.stdout, flush=True)


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
    from limpet.cli.parse import Exit
    from limpet.cli.parse import confirm as ask

    if not sys.stdin.isatty():
        raise Invalid(f"{what}, and there is no terminal to ask", hint="add --yes")
    say(f"{what}.", err=True)
    if not ask(question, err=True):
        say("nothing was changed", err=True)
        raise Exit(EXIT_FAILED)


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

    from limpet.kernel.records import encode

    print(printable_json(msgspec.json.format(encode(value), indent=2).decode()), flush=True)


def answer(facts: Any, text: str, *, json: bool) -> None:
    """Print what a command did: the facts as JSON, or a line."""
    if json:
        print_json(facts)
    else:
        say(text)


def print_dated(facts: dict[str, Any], said: Iterable[str], *, json: bool) -> None:
    """Print at once what has just happened, with the time: facts as a line of JSON on stdout, or lines on stderr."""
    from limpet.kernel.records import encode
    from limpet.kernel.runtime import system

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

    from limpet.kernel.records import printable

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
    from limpet.kernel.runtime import system

    return max([system().wall(), *(stamp for stamp in stamps if stamp is not None)])


def when(moment: datetime | None) -> str:
    """A moment, for people."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "-"

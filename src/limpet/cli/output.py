"""What commands print: lines, tables, JSON, errors and exit codes. Nothing reaches a terminal unescaped."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from limpet import records
from limpet.errors import Held, Invalid, LeaseLost, LimpetError

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console, RenderHook
    from rich.table import Table


TRACEBACK = "LIMPET_TRACEBACK"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_LOST = 70
EXIT_INTERNAL = 71
EXIT_HELD = 75
EXIT_INTERRUPTED = 130


def lines(*each: str) -> str:
    """Paragraphs of help, in Markdown. What begins with `$` is a command to type, on the next line of its paragraph."""
    return "".join(f"\\\n`{line}`" if line.startswith("$") else f"\n\n{line}" for line in each).strip()


def printable(text: str) -> str:
    """`text` on one line, safe on a terminal: whatever does not print is escaped as in a Python string.

    That covers control characters, line ends, terminal escapes, and marks that change the direction of text (F34).
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def clean(text: str) -> str:
    """`printable` text for a `console`: what looks like Rich's markup is not."""
    from rich.markup import escape

    return escape(printable(text))


def clean_lines(text: str) -> str:
    """As `clean`, for text of several lines, such as a traceback. Each is marked, so that none passes for ours."""
    return "\n".join(f"| {clean(line.expandtabs())}" for line in text.split("\n"))


def say(text: str, *, err: bool = False) -> None:
    """Print one line. Everything that commands print goes through here, `print_json`, or a `console`."""
    typer.echo(printable(text), err=err)


def complain(error: LimpetError) -> int:
    """Say on stderr what went wrong, and what to do about it; the exit code for it."""
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
    """Say on stderr that limpet itself failed; the exit code for it."""
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

    typer.echo(printable_json(msgspec.json.format(records.encode(value), indent=2).decode()))


def printable_json(text: str) -> str:
    """JSON that means the same and is safe on a terminal."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def console(*, stderr: bool = False) -> Console:
    """Where tables and coloured lines go. Without a terminal they come out plain: no line is cut, and the cells of a
    table are parted by tabs. Control characters never reach the terminal, wherever they come from."""
    from rich.console import Console

    plain_width = None if (sys.stderr if stderr else sys.stdout).isatty() else int(os.environ.get("COLUMNS") or 160)
    made = Console(stderr=stderr, highlight=False, width=plain_width)
    made.push_render_hook(_safe_hook(plain=plain_width is not None))
    return made


def _safe_hook(*, plain: bool) -> RenderHook:
    """What every console of ours does with everything that it prints."""
    from rich.console import ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
    from rich.segment import Segment
    from rich.table import Table

    class Safe:
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
        """Makes everything `Safe`."""

        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [Safe(each) for each in renderables]

    return SafeHook()


def _rows_of(out: Console, table: Table) -> list[list[str]]:
    """The cells of a table as plain text, with its header if it shows one."""
    columns = [[*column.cells] for column in table.columns]
    if table.show_header:
        columns = [[column.header, *cells] for column, cells in zip(table.columns, columns, strict=True)]
    return [
        [" ".join(out.render_str(str(cell)).plain.split("\n")) for cell in row] for row in zip(*columns, strict=True)
    ]


def ago(seconds: float) -> str:
    """A span of time, as people say it."""
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

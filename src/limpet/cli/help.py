"""How the help of a command looks: its usage, what it does, frames with its options and commands, and examples."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

import click

from limpet.cli.parse import OPTIONS, Group, HelpNote, ShownArgument, ShownOption, shown_names

__all__ = ["page"]

BOLD, DIM, NAME, SHORT, VALUE = "1", "2", "1;36", "1;32", "1;33"
TEXT_MIN = 20
Cell = tuple[str, str]
"""A text and its style."""
Row = tuple[Sequence[Cell], str]
"""The cells at the left of a frame, and the text beside them."""


def page(command: click.Command, context: click.Context) -> str:
    """The help of a command, as wide as the terminal."""
    width = max(40, shutil.get_terminal_size().columns)
    usage = " ".join(context.get_usage().split()).removeprefix("Usage: ")
    out = ["", f" {_styled('Usage:', VALUE)} {_styled(usage, BOLD)}", ""]
    first, *others = (command.help or "").split("\n\n")
    out += [*_paragraph(first, width), ""]
    for text in others:
        out += [*(_styled(line, DIM) for line in _paragraph(text, width)), ""]
    for title, rows in _frames(command, context):
        out += _frame(title, rows, width)
    if command.epilog:
        out.append("")
        for text in command.epilog.split("\n\n"):
            out += [*_paragraph(text, width), ""]
    return "\n".join(out)


def _frames(command: click.Command, context: click.Context) -> Iterator[tuple[str, list[Row]]]:
    panels: dict[str, list[Row]] = {"Arguments": [], OPTIONS: []}
    for parameter in command.get_params(context):
        said = parameter.said if isinstance(parameter, ShownArgument | ShownOption) else HelpNote("")
        if isinstance(parameter, click.Argument):
            panels[said.panel].append(_argument(parameter, said, context))
        elif isinstance(parameter, click.Option) and not parameter.hidden:
            panels.setdefault(said.panel, []).append(_option(parameter, said, context))
    yield from ((title, rows) for title, rows in panels.items() if rows)
    if isinstance(command, Group):
        for title, names in command.panels().items():
            if names:
                yield title, [([(name, NAME)], command.summary(name)) for name in names]


def _argument(argument: click.Argument, said: HelpNote, context: click.Context) -> Row:
    mark = ("*", "31") if argument.required else ("", "")
    name = argument.make_metavar(context).strip("[]").removesuffix("...")
    return [mark, (name, VALUE)], " ".join([*_notes(said), *(["[required]"] if argument.required else [])])


def _option(option: click.Option, said: HelpNote, context: click.Context) -> Row:
    long, short = shown_names(option)
    has_value = isinstance(option, ShownOption) and not option.is_flag
    value = option.make_metavar(context) if has_value else ""
    notes = " ".join(_notes(said)) or option.help or ""
    return [(", ".join(long), NAME), (", ".join(short), SHORT), (value, VALUE)], notes


def _notes(said: HelpNote) -> Iterator[str]:
    """The text, and behind it the default and the variables."""
    if said.text:
        yield said.text
    if said.default is not None:
        yield f"[default: {said.default}]"
    if said.variables:
        yield f"[env: {' or '.join(said.variables)}]"


def _frame(title: str, rows: list[Row], width: int) -> Iterator[str]:
    """A frame with a table in it. A column that is empty in every row is left out."""
    line, corners, side = _strokes()
    used = [n for n in range(len(rows[0][0])) if any(cells[n][0] for cells, _ in rows)]
    widths = {n: max(len(cells[n][0]) for cells, _ in rows) for n in used}
    left = sum(widths.values()) + 2 * len(used)
    inner = max(width - 4, left + TEXT_MIN)
    head = f"{corners[0]}{line} {title} "
    yield _styled(f"{head}{line * (inner + 3 - len(head))}{corners[1]}", DIM)
    edge = _styled(side, DIM)
    for cells, text in rows:
        beside = [*_wrapped(text, inner - left)] or [("", "")]
        names = "".join(_styled(cells[n][0].ljust(widths[n]), cells[n][1]) + "  " for n in used)
        for number, (plain, styled) in enumerate(beside):
            yield f"{edge} {' ' * left if number else names}{styled}{' ' * (inner - left - len(plain))} {edge}"
    yield _styled(f"{corners[2]}{line * (inner + 2)}{corners[3]}", DIM)


def _strokes() -> tuple[str, str, str]:
    """What frames are drawn with; in ASCII where stdout has nothing else."""
    try:
        "╭".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return "-", "++++", "|"
    return "─", "╭╮╰╯", "│"


def _paragraph(text: str, width: int) -> Iterator[str]:
    """The lines of a paragraph, whose commands (`$ ...`) keep lines of their own."""
    for is_command, parts in groupby(text.split("\n"), lambda line: line.startswith("$")):
        if is_command:
            yield from (f" {_styled(part, NAME)}" for part in parts)
        else:
            yield from (f" {styled}" for _, styled in _wrapped(" ".join(parts), width - 2))


def _wrapped(text: str, width: int) -> Iterator[Cell]:
    """Text in lines of at most so many characters, each plain, and with its `code` marked."""
    plain, styled, is_code = "", "", False
    for word in text.split():
        bare = word.replace("`", "")
        shown = _styled(bare, NAME) if is_code or "`" in word else bare
        if word.count("`") % 2:
            is_code = not is_code
        if plain and len(plain) + 1 + len(bare) > width:
            yield plain, styled
            plain, styled = bare, shown
        else:
            gap = " " if plain else ""
            plain, styled = f"{plain}{gap}{bare}", f"{styled}{gap}{shown}"
    if plain:
        yield plain, styled


def _styled(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if text and style else text

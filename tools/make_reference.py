"""Write docs/reference/ from the code: `.venv/bin/python tools/make_reference.py`.

A test holds the pages to it. They are made from the commands themselves and not from their printed help, whose frames
and colours change with the library that draws them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from limpet.cli import app

__all__ = ["PAGES", "cli_page", "commands", "main"]

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
MADE = "*Made from the code by `tools/make_reference.py`; a test keeps it up to date.*"
HELP_OPTIONS = ("help", "version")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words, groups before what is in them."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


def cli_page() -> str:
    """The command line, one section a command."""
    root = get_command(app)
    parts = ["# The command line", MADE]
    for path, command in commands(root):
        parts += _section(path, command)
    return "\n\n".join(parts) + "\n"


def _section(path: tuple[str, ...], command: Any) -> Iterator[str]:
    words = " ".join(("limpet", *path))
    inside = getattr(command, "commands", {})
    yield f"## {words}" if path else "## limpet"
    yield f"`{_usage(words, command, group=bool(inside))}`"
    yield _text(command.help)
    if inside:
        rows = [(f"[`{words} {name}`](#{_anchor(words, name)})", _first(each.help)) for name, each in inside.items()]
        yield _table(("command", "what it does"), rows)
    rows = [(_names(each), _about(each)) for each in command.params if each.name not in HELP_OPTIONS]
    if rows:
        yield _table(("argument or option", "meaning"), rows)
    if command.epilog:
        yield _examples(command.epilog)


def _usage(words: str, command: Any, *, group: bool) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = [each.metavar or each.name.upper() for each in arguments]
    optional = [text if each.required else f"[{text}]" for each, text in zip(arguments, shown, strict=True)]
    return " ".join((words, *(("COMMAND",) if group else ()), "[OPTIONS]", *optional))


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_code(parameter.metavar or parameter.name.upper())}`"
    names = ", ".join(f"`{name}`" for name in sorted(parameter.opts, key=len, reverse=True))
    return names if parameter.is_flag else f"{names} `{_code(parameter.metavar or _kind(parameter))}`"


def _kind(parameter: Any) -> str:
    choices = getattr(parameter.type, "choices", None)
    if choices:
        return "|".join(str(getattr(each, "value", each)) for each in choices)
    kind = parameter.type.name.split()[0].upper()
    return {"INTEGER": "N", "FLOAT": "N", "TEXT": "TEXT", "INT": "N", "STR": "TEXT"}.get(kind, kind)


def _about(parameter: Any) -> str:
    notes = []
    default = parameter.default
    if isinstance(parameter.show_default, str):
        notes.append(f"Default: {parameter.show_default}.")
    elif parameter.show_default and default is not None and not getattr(parameter, "is_flag", False):
        value = getattr(default, "value", default)
        notes.append(f"Default: {value:g}." if isinstance(value, float) else f"Default: {value}.")
    if parameter.envvar:
        notes.append(f"Environment: `{parameter.envvar}`.")
    return " ".join([_text(parameter.help).replace("|", "\\|"), *notes])


def _text(text: str | None) -> str:
    """Paragraphs, each on one line."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _first(text: str | None) -> str:
    return _text(text).partition("\n")[0]


def _examples(epilog: str) -> str:
    """Commands to type as one block, and the sentences around them."""
    lines: list[str] = []
    for part in epilog.split("\n\n"):
        typed = part.startswith("`$")
        if typed and (not lines or lines[-1] != "```"):
            lines += ["", "```console"]
        elif typed:
            lines.pop()
        lines += [part.strip("`"), "```"] if typed else ["", part]
    return "\n".join(lines).strip()


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    """Text for a cell of a table: GitHub reads a bar as the end of it, in code too."""
    return text.replace("|", "\\|")


def _anchor(words: str, name: str) -> str:
    return f"{words} {name}".replace(" ", "-")


PAGES = {"cli.md": cli_page}
"""The pages, by file name."""


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()

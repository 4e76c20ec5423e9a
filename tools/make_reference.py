"""Write docs/reference/ from the code: `.venv/bin/python tools/make_reference.py`.

A test holds the pages to it. They are made from the commands' own signatures and not from the printed help, whose
frames and colours change with the library that draws them.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from limpet.cli.commands import build
from limpet.store import roles

__all__ = ["FOLDER", "PAGES", "Command", "cli_page", "commands", "house_page", "main", "roles_page"]

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
MADE = "*Made from the code by `tools/make_reference.py`; a test keeps it up to date.*"


@dataclass(frozen=True, slots=True)
class Command:
    """One command, or a group of them: its words after `limpet`, and what its help says."""

    words: tuple[str, ...]
    help: str
    epilog: str
    parameters: tuple[Parameter, ...] = ()
    inside: tuple[Command, ...] = ()

    @property
    def typed(self) -> str:
        """What one types."""
        return " ".join(("limpet", *self.words))


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument or option of a command."""

    name: str
    kind: Any
    info: ArgumentInfo | OptionInfo
    default: Any

    @property
    def is_argument(self) -> bool:
        """Whether it is typed without a name."""
        return isinstance(self.info, ArgumentInfo)

    @property
    def value(self) -> str:
        """What stands for its value; empty for a flag."""
        if self.info.metavar or self.is_argument:
            return self.info.metavar or self.name.upper()
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return "|".join(str(each.value) for each in self.kind)
        return {bool: "", int: "N", float: "N"}.get(self.kind, "TEXT")


def commands(group: typer.Typer | None = None, words: tuple[str, ...] = ()) -> Command:
    """The command line as a tree: what a group has itself comes before its groups."""
    group = group or build()
    inside = [_command(info, words) for info in group.registered_commands]
    for each in group.registered_groups:
        assert each.typer_instance is not None
        inside.append(commands(each.typer_instance, (*words, str(each.typer_instance.info.name))))
    own, alone = group.registered_callback, group.info.invoke_without_command
    runs = own is not None and True in (alone, own.invoke_without_command)
    parameters = _parameters(own.callback) if own is not None and runs else ()
    return Command(words, _text(group.info.help), _said(group.info.epilog), parameters, tuple(inside))


def _command(info: Any, words: tuple[str, ...]) -> Command:
    call = info.callback
    name = info.name or call.__name__.replace("_", "-")
    return Command((*words, name), _text(info.help or call.__doc__), _said(info.epilog), _parameters(call))


def _parameters(call: Any) -> tuple[Parameter, ...]:
    hints = typing.get_type_hints(call, include_extras=True)
    found = []
    for name, each in inspect.signature(call).parameters.items():
        if hints[name] is not typer.Context:
            kind, about = typing.get_args(hints[name])
            found.append(Parameter(name, _bare(kind), about, each.default))
    return tuple(found)


def _bare(kind: Any) -> Any:
    """The type of one value: without None, and of a list that of its items."""
    kinds = [each for each in typing.get_args(kind) if each is not NoneType] or [kind]
    return kinds[0] if len(kinds) == 1 and kinds[0] is kind else _bare(kinds[0])


def cli_page() -> str:
    """The command line, a section for each command."""
    return "\n\n".join(["# The command line", MADE, *_sections(commands())]) + "\n"


def _sections(command: Command) -> Iterator[str]:
    yield f"## {command.typed}"
    yield f"`{_usage(command)}`"
    yield command.help
    if command.inside:
        links = [f"[`{each.typed}`](#{each.typed.replace(' ', '-')})" for each in command.inside]
        about = [each.help.partition("\n")[0] for each in command.inside]
        yield _table(("command", "what it does"), zip(links, about, strict=True))
    if command.parameters:
        yield _table(("", "meaning"), [(_names(each), _meaning(each)) for each in command.parameters])
    if command.epilog:
        yield _examples(command.epilog)
    for each in command.inside:
        yield from _sections(each)


def _usage(command: Command) -> str:
    if command.inside:
        return f"{command.typed} [OPTIONS]" if command.parameters else f"{command.typed} COMMAND ..."
    arguments = [each for each in command.parameters if each.is_argument]
    shown = [(each.value.strip("[]"), each.default is inspect.Parameter.empty) for each in arguments]
    return " ".join((command.typed, "[OPTIONS]", *(name if needed else f"[{name}]" for name, needed in shown)))


def _names(parameter: Parameter) -> str:
    if parameter.is_argument:
        return f"`{_cell(parameter.value.strip('[]'))}`"
    given = parameter.info.default  # inside Annotated, the first name lands here
    names = [*([given] if isinstance(given, str) else []), *(parameter.info.param_decls or ())]
    names = names or [f"--{parameter.name.replace('_', '-')}"]
    typed = ", ".join(f"`{name}`" for name in names)
    return f"{typed} `{_cell(parameter.value)}`" if parameter.value else typed


def _meaning(parameter: Parameter) -> str:
    info, default = parameter.info, parameter.default
    parts = [_cell(_text(info.help))]
    if isinstance(info.show_default, str):
        parts.append(f"Default: {info.show_default}.")
    elif info.show_default and default not in (None, False, inspect.Parameter.empty):
        parts.append(f"Default: {default:g}." if isinstance(default, float) else f"Default: {default}.")
    if info.envvar:
        names = [info.envvar] if isinstance(info.envvar, str) else info.envvar
        parts.append(f"Environment: {', else '.join(f'`{name}`' for name in names)}.")
    return " ".join(parts)


def _text(text: str | None) -> str:
    """Paragraphs, each on one line."""
    return "\n\n".join(" ".join(part.split()) for part in _said(text).split("\n\n"))


def _said(text: Any) -> str:
    """The text, where one was given."""
    return inspect.cleandoc(text) if isinstance(text, str) else ""


def _cell(text: str) -> str:
    """Text for a cell of a table, which a bar would end, in code too."""
    return text.replace("|", "\\|")


def _table(head: tuple[str, str], rows: typing.Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ("---", "---"), *rows])


def _examples(epilog: str) -> str:
    """The commands to type as blocks, and the sentences around them."""
    lines: list[str] = []
    for part in epilog.replace("\\\n", "\n\n").split("\n\n"):
        if not part.startswith("`$"):
            lines += ["", part]
            continue
        if lines and lines[-1] == "```":
            lines.pop()
        else:
            lines += ["", "```console"]
        lines += [part.strip("`"), "```"]
    return "\n".join(lines).strip()


def roles_page() -> str:
    """Who may touch what."""
    return "\n\n".join(["# Roles", MADE, _text(roles.__doc__), roles.as_markdown()])


def house_page() -> str:
    """The rooms of the package from top to bottom, as the import contract in pyproject.toml orders them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each["type"] == "layers"]
    width = max(len(name) for layer in layers for name in _rooms(layer))
    line = f"+{'-' * (width + 2)}+"
    picture = [line]
    for layer in layers:
        for name in _rooms(layer):
            picture.append(f"| {name:<{width}} |  {_summary(name)}")
        picture.append(line)
    text = "A module imports only from boxes below its own, and modules that share a box do not import each other."
    return (
        "\n\n".join(["# The house", MADE, f"{text} `lint-imports` checks it.", "```\n" + "\n".join(picture) + "\n```"])
        + "\n"
    )


def _rooms(layer: str) -> list[str]:
    return [name.strip().removeprefix("limpet.") for name in layer.split("|")]


def _summary(name: str) -> str:
    """The first sentence of the module's docstring."""
    path = ROOT / "src" / "limpet" / name.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ")


PAGES = {"cli.md": cli_page, "house.md": house_page, "roles.md": roles_page}
"""What makes each page."""


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()

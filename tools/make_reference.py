"""Write docs/reference/ from the code: `.venv/bin/python tools/make_reference.py`.

A test holds the pages to it. They are made from the commands' own signatures and not from the printed help, whose
frames and colours change with the library that draws them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from limpet.app.catalogs import open_catalog, storage_of
from limpet.cli import build
from limpet.runtime import system
from limpet.service.http import Route, Tokens
from limpet.service.rest import Rest
from limpet.service.rpc import compactor_routes
from limpet.service.serve import health_routes
from limpet.store import MemoryStore, roles

__all__ = [
    "FOLDER",
    "PAGES",
    "Command",
    "bucket_page",
    "cli_page",
    "commands",
    "house_page",
    "http_page",
    "main",
    "python_page",
    "roles_page",
]

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


# ---- the Python interface ----

PUBLIC = ("limpet", "limpet.testing", "limpet.index", "limpet.catalog", "limpet.store", "limpet.queue", "limpet.app")
"""The packages whose exports are on the page; what several of them export is under the first."""


def python_page() -> str:
    """Every exported class and function, with its docstring."""
    parts = ["# The Python interface", MADE, PYTHON_ABOUT]
    seen: set[int] = set()
    for package in PUBLIC:
        module = importlib.import_module(package)
        names = [name for name in _exports(module) if id(getattr(module, name)) not in seen]
        things = [(name, getattr(module, name)) for name in names]
        seen |= {id(thing) for _, thing in things}
        things = [(name, thing) for name, thing in things if inspect.isclass(thing) or inspect.isroutine(thing)]
        parts += [f"## {package}", _docs(module)]
        for name, thing in sorted(things, key=lambda each: (inspect.isclass(each[1]), each[0].lower())):
            parts += _described(f"{package}.{name}", thing)
    return "\n\n".join(part for part in parts if part) + "\n"


PYTHON_ABOUT = (
    "Everything that a public function takes or returns is here. *Cost* is in requests to the store, *Crash* what a "
    "process leaves behind that dies in the middle, *Raises* names the errors. An error is a subclass of "
    "`limpet.LimpetError` and has a `hint`."
)


def _exports(module: ModuleType) -> list[str]:
    """What a package exports; of a module without `__all__`, what it defines itself."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    return [name for name in own if not name.startswith("_")]


def _described(path: str, thing: Any) -> list[str]:
    """A class with its public methods and properties, or a function."""
    if not inspect.isclass(thing):
        return [f"### {path}", f"```text\n{path.rpartition('.')[2]}{_signature(thing)}\n```", _docs(thing)]
    bases = [base.__name__ for base in thing.__bases__ if base.__module__.startswith("limpet")]
    shown = _signature(thing).partition(" -> ")[0] if is_dataclass(thing) else f"({', '.join(bases)})" if bases else ""
    parts = [f"### {path}", f"```text\nclass {thing.__name__}{shown}\n```", _docs(thing)]
    for name, each in vars(thing).items():
        inner = each.__func__ if isinstance(each, classmethod | staticmethod) else each
        if name.startswith("_") or not (inspect.isfunction(inner) or isinstance(inner, property)):
            continue
        shown = f"{name}{_signature(inner)}" if inspect.isfunction(inner) else name
        doc = _docs(getattr(thing, name) if inspect.isfunction(inner) else inner)
        parts.append(f"**`{shown}`**" + (f"\n\n{doc}" if doc else ""))
    return parts


def _docs(thing: Any) -> str:
    """The docstring; examples in it, which are indented or begin with `from` or `def`, as a block."""
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and (thing.__doc__ is None or text.startswith(f"{thing.__name__}(")):
        return ""  # that of a base class, or made by a dataclass
    parts = []
    for part in re.sub(r"\n(?=(Raises|Cost|Crash):)", "\n\n", text).split("\n\n"):
        is_code = part.startswith(("from ", "def ", "import ", "    ", "with "))
        is_drawn = any(line.startswith("  ") for line in part.splitlines()) and not part.startswith("- ")
        parts.append(f"```text\n{part}\n```" if is_code or is_drawn else part)
    return "\n\n".join(parts)


def _signature(call: Any) -> str:
    """The parameters and what is returned, as they are written."""
    signature = inspect.signature(call)
    shown, kinds = [], [each.kind for each in signature.parameters.values()]
    for number, each in enumerate(signature.parameters.values()):
        if (
            each.kind is each.KEYWORD_ONLY
            and each.VAR_POSITIONAL not in kinds
            and each.KEYWORD_ONLY not in kinds[:number]
        ):
            shown.append("*")
        if each.name in ("self", "cls"):
            continue
        star = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        text = star + each.name + (f": {_annotation(each.annotation)}" if each.annotation is not each.empty else "")
        if each.default is not each.empty:
            value = "..." if " at 0x" in repr(each.default) else repr(each.default)
            text += f" = {value}" if each.annotation is not each.empty else f"={value}"
        shown.append(text)
    returned = signature.return_annotation
    end = f" -> {_annotation(returned)}" if returned is not signature.empty else ""
    return f"({', '.join(shown)}){end}"


def _annotation(kind: Any) -> str:
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)


# ---- the HTTP interface ----

HTTP_ABOUT = """`limpet serve` answers the first two groups and is its own compactor; `limpet serve api` answers the
same, and `limpet serve compactor` the last two. Iceberg's routes are those of its REST catalog specification, with the
same bodies and errors.

- A caller sends `Authorization: Bearer TOKEN`. Tokens, rights and namespaces: [the service](../how-to/serve.md).
- A write may carry an `Idempotency-Key`: the same request again gets the recorded answer.
- A process that does not lead answers writes with 503 and `Retry-After`. 500, 502 and 504 mean that the outcome is
  unknown; 503 that nothing was attempted.
- Errors are `{"error": {"message", "type", "code"}}`."""


def http_page() -> str:
    """The routes, as the service has them."""
    tokens = Tokens()
    catalog = open_catalog(storage_of(MemoryStore(), system()), "memory://reference")
    handlers = Rest(catalog, tokens, {})
    health = health_routes(dict, lambda: False, system())
    metrics = Route("GET", "/metrics", _metrics, tokens, right="metrics")
    parts = [
        ("Iceberg", handlers.routes()),
        ("Health and metrics", [*health, metrics]),
        ("Between API and compactor", compactor_routes({}, tokens)),
    ]
    sections = [
        f"## {title}\n\n" + _rows(("route", "right", "what it does"), map(_route, routes)) for title, routes in parts
    ]
    return "\n\n".join(["# The HTTP interface", MADE, HTTP_ABOUT, *sections]) + "\n"


def _metrics(_: Any) -> Any:
    """The metrics of the process, for Prometheus."""


def _route(route: Route) -> tuple[str, str, str]:
    handler = route.handler.func if isinstance(route.handler, partial) else route.handler
    known = {
        "healthz": "The process answers.",
        "readyz": "It reaches its store; who leads.",
        "check": "The secret is known.",
    }
    known |= {
        "<lambda>": "What a client must know: defaults and the list of endpoints.",
        "_no_oauth": "Refused: tokens are given out by hand.",
    }
    text = " ".join((inspect.getdoc(handler) or known[handler.__name__]).split("\n\n")[0].split())
    right = "none" if route.tokens is None else route.right
    return f"`{route.method} {route.path}`", right, _cell(text)


def _rows(head: tuple[str, ...], rows: typing.Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ("---",) * len(head), *rows])


# ---- the bucket ----


def bucket_page() -> str:
    """What lies in a bucket: the section of ARCHITECTURE.md, beside the roles that may write it."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    section = text.partition("## What is in the bucket\n")[2].partition("\n## ")[0].strip()
    about = (
        "Everything that Limpet keeps, below the URL of a fleet. The layout is format 1 of each part; `limpet.json` "
        "records it, and it changes only by [`limpet upgrade`](../how-to/upgrade.md). Who may write what: "
        "[roles](roles.md). Words: [glossary](../glossary.md)."
    )
    return "\n\n".join(["# What is in the bucket", MADE, about, section]) + "\n"


PAGES = {
    "bucket.md": bucket_page,
    "cli.md": cli_page,
    "house.md": house_page,
    "http.md": http_page,
    "python.md": python_page,
    "roles.md": roles_page,
}
"""What makes each page."""


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()

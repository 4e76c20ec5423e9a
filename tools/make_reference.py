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
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from limpet.app.catalogs import open_catalog, storage_of
from limpet.cli import parser
from limpet.cli.parse import Context, Group, ShownArgument, ShownOption
from limpet.kernel.foreign import WORDS
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore, roles
from limpet.service.app import Route
from limpet.service.rest import Rest
from limpet.service.rpc import compactor_routes
from limpet.service.status import health_routes
from limpet.service.tokens import Tokens

__all__ = [
    "FOLDER",
    "PAGES",
    "cli_page",
    "commands_in",
    "costs_page",
    "group_page",
    "house_page",
    "http_page",
    "main",
    "python_page",
    "roles_page",
]

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
MADE = "*Made from the code by `tools/make_reference.py`; a test keeps it up to date.*"


def cli_page() -> str:
    """The commands without a group, and a link to each group."""
    return "\n\n".join(["# The command line", MADE, *_sections(parser(), by_page=True)]) + "\n"


def group_page(name: str) -> str:
    """The commands of one group, a section for each."""
    return "\n\n".join([f"# limpet {name}", MADE, *_sections(commands_in(parser())[name], f"limpet {name}")]) + "\n"


def _sections(command: click.Command, path: str = "limpet", *, by_page: bool = False) -> Iterator[str]:
    """A section for a command and for each inside of it; `by_page`: groups have pages of their own."""
    context = Context(command)
    inside = commands_in(command)
    apart = {name for name, each in inside.items() if by_page and isinstance(each, Group)}
    yield f"## {path}"
    yield f"`{_usage(command, path, context)}`"
    yield _text(command.help)
    if isinstance(command, Group):
        pages = {name: f"cli-{name}.md" if name in apart else "" for name in inside}
        links = [f"[`{path} {name}`]({page}#{path.replace(' ', '-')}-{name})" for name, page in pages.items()]
        yield _table(("command", "what it does"), zip(links, map(command.summary, inside), strict=True))
    shown = [each for each in command.params if isinstance(each, ShownArgument | ShownOption)]
    if shown and command.callback is not None:
        yield _table(("", "meaning"), [(_names(each, context), _meaning(each)) for each in shown])
    if command.epilog:
        yield _examples(command.epilog)
    for name, each in inside.items():
        if name not in apart:
            yield from _sections(each, f"{path} {name}")


def _usage(command: click.Command, path: str, context: Context) -> str:
    if isinstance(command, Group):
        return f"{path} [OPTIONS]" if command.invoke_without_command else f"{path} COMMAND ..."
    arguments = [each.make_metavar(context) for each in command.params if isinstance(each, ShownArgument)]
    return " ".join((path, "[OPTIONS]", *arguments))


def commands_in(command: click.Command) -> dict[str, click.Command]:
    """What is in a group, by name."""
    if not isinstance(command, Group):
        return {}
    return {name: each for name in command.list_commands(None) if (each := command.get_command(None, name))}


def _names(parameter: ShownArgument | ShownOption, context: Context) -> str:
    if isinstance(parameter, ShownArgument):
        return f"`{_cell(parameter.make_metavar(context).strip('[]').removesuffix('...'))}`"
    if parameter.secondary_opts:
        return f"`{'/'.join([*parameter.opts, *parameter.secondary_opts])}`"
    typed = ", ".join(f"`{name}`" for name in parameter.opts)
    return typed if parameter.is_flag else f"{typed} `{_cell(parameter.make_metavar(context))}`"


def _meaning(parameter: ShownArgument | ShownOption) -> str:
    said = parameter.said
    parts = [_cell(_text(said.text))]
    if parameter.secondary_opts and parameter.default:
        parts.append(f"Default: `{parameter.opts[0]}`.")
    if said.default not in (None, "", []):
        parts.append(f"Default: {said.default:g}." if isinstance(said.default, float) else f"Default: {said.default}.")
    if said.variables:
        parts.append(f"Environment: {', else '.join(f'`{name}`' for name in said.variables)}.")
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
    parts: list[str] = []
    for is_command, group in groupby(epilog.replace("\n\n", "\n").split("\n"), lambda line: line.startswith("$")):
        lines = [*group]
        parts += ["\n".join(("```console", *lines, "```"))] if is_command else lines
    return "\n\n".join(parts)


def roles_page() -> str:
    """Who may touch what."""
    return "\n\n".join(["# Roles", MADE, _text(roles.__doc__), roles.as_markdown()])


def house_page() -> str:
    """The rooms of the package from top to bottom, as the import contract orders them, and the files of each."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [layer for each in contracts if each["type"] == "layers" for layer in each["layers"]]
    width = max(len(name) for layer in layers for name in _rooms(layer))
    line = f"+{'-' * (width + 2)}+"
    picture = [line]
    for layer in layers:
        for name in _rooms(layer):
            picture.append(f"| {name:<{width}} |  {_summary(name)}")
        picture.append(line)
    text = "A module imports only from boxes below its own, and modules that share a box do not import each other."
    parts = ["# The house", MADE, f"{text} `lint-imports` checks it.", "```\n" + "\n".join(picture) + "\n```"]
    for folder in (*sorted(path.parent for path in SOURCES.rglob("__init__.py")), ROOT / "sim"):
        parts += _files(folder)
    return "\n\n".join(parts) + "\n"


SOURCES = ROOT / "src" / "limpet"


def _files(folder: Path) -> list[str]:
    """What each file of a folder is for, in its own words."""
    name = folder.relative_to(SOURCES.parent if folder.is_relative_to(SOURCES) else ROOT).as_posix()
    rows = [
        (f"`{path.name}`", _cell(_first_sentence(path)))
        for path in sorted(folder.glob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    ]
    about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return [f"## {name}", _formatted(about), *([_table(("file", "purpose"), rows)] if rows else [])]


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def _rooms(layer: str) -> list[str]:
    return [name.strip().removeprefix("limpet.") for name in layer.split("|")]


def _summary(name: str) -> str:
    """The first sentence of the module's docstring."""
    path = SOURCES / name.replace(".", "/")
    return _first_sentence(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))


# ---- the Python interface ----

PUBLIC = (
    "limpet",
    "limpet.testing",
    "limpet.index",
    "limpet.catalog",
    "limpet.kernel.store",
    "limpet.queue",
    "limpet.app",
)
"""The packages that have a page; a name that several of them export is on the page of the first."""
PYTHON_PAGES = {each: f"python-{each.split('.')[1]}.md" if "." in each else "python.md" for each in PUBLIC}


def python_page(page: str = "python.md") -> str:
    """The exported classes and functions of one package, with their docstrings; the first page links to the others."""
    parts: list[str] = []
    seen: set[int] = set()
    for package, name in PYTHON_PAGES.items():
        module = importlib.import_module(package)
        things = [(each, getattr(module, each)) for each in _exports(module) if id(getattr(module, each)) not in seen]
        seen |= {id(thing) for _, thing in things}
        if name != page:
            continue
        things = [(each, thing) for each, thing in things if inspect.isclass(thing) or inspect.isroutine(thing)]
        parts = [f"# {package}", MADE, _docs(module)]
        if package == PUBLIC[0]:
            links = (f"[`{other}`]({file})" for other, file in PYTHON_PAGES.items() if other != package)
            parts = ["# The Python interface", MADE, PYTHON_ABOUT, f"Packages: {', '.join(links)}.", f"## {package}"]
            parts.append(_docs(module))
        for each, thing in sorted(things, key=lambda pair: (inspect.isclass(pair[1]), pair[0].lower())):
            parts += _described(f"{package}.{each}", thing)
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
    for name, each in _members(thing).items():
        inner = each.__func__ if isinstance(each, classmethod | staticmethod) else each
        if name.startswith("_") or not (inspect.isfunction(inner) or isinstance(inner, property)):
            continue
        shown = f"{name}{_signature(inner)}" if inspect.isfunction(inner) else name
        doc = _docs(getattr(thing, name) if inspect.isfunction(inner) else inner)
        parts.append(f"**`{shown}`**" + (f"\n\n{doc}" if doc else ""))
    return parts


def _members(thing: type) -> dict[str, Any]:
    """What a class defines or inherits from parts that are not public by themselves."""
    members: dict[str, Any] = {}
    for part in thing.__mro__:
        room = part.__module__.rpartition(".")[0]
        public = any(hasattr(importlib.import_module(each), part.__name__) for each in ("limpet", room or "builtins"))
        if part is thing or (room.startswith("limpet") and not public):
            members |= {name: each for name, each in vars(part).items() if name not in members}
    return members


def _docs(thing: Any) -> str:
    """The docstring; examples in it, which are indented or begin with `from` or `def`, as a block."""
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and (thing.__doc__ is None or text.startswith(f"{thing.__name__}(")):
        return ""  # that of a base class, or made by a dataclass
    return _formatted(text)


def _formatted(text: str) -> str:
    """A docstring as Markdown: drawings and examples become blocks."""
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

- A caller sends `Authorization: Bearer TOKEN`. Tokens, rights and namespaces: [the service](../run/serve.md).
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
        "_renamed": "Rename a table or a view.",
        "_no_oauth": "Refused: tokens are given out by hand.",
    }
    text = " ".join((inspect.getdoc(handler) or known[handler.__name__]).split("\n\n")[0].split())
    right = "none" if route.tokens is None else route.right
    return f"`{route.method} {route.path}`", right, _cell(text)


def _rows(head: tuple[str, ...], rows: typing.Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ("---",) * len(head), *rows])


# ---- requests ----


def costs_page() -> str:
    """The requests and round trips of each operation, from tests/costs.toml."""
    verbs = ("get", "head", "list", "put", "delete")
    head = ("operation", *(verb.upper() for verb in verbs), "round trips")
    sections = []
    for room, costs in tomllib.loads((ROOT / "tests" / "costs.toml").read_text()).items():
        rows = [
            (name, *(str(cost.get(verb, "")) for verb in verbs), str(cost["trips"])) for name, cost in costs.items()
        ]
        sections.append(f"## {room}\n\n" + _rows(head, rows))
    return "\n\n".join(["# What operations cost", MADE, COSTS_ABOUT, *sections]) + "\n"


COSTS_ABOUT = (
    "The requests of each operation in a bucket, from `tests/costs.toml`, to which `tests/test_costs.py` holds them. "
    "Round trips are the requests that follow one another before the operation returns; the others run at the same "
    "time, or in the background. A push, a hand-back and a resume include 1 PUT of the queue's bell, at most once a "
    "second and process; on a directory there is none. Ranges and limits: [architecture](../inside/architecture.md)."
)


GROUPS = [name for name, each in commands_in(parser()).items() if isinstance(each, Group)]
CELERY = ROOT / "docs" / "use" / "from-celery.md"
WORDS_BETWEEN = re.compile(r"(?<=<!-- made from limpet.kernel.foreign -->\n).*?(?=\n<!-- end -->)", re.DOTALL)


def celery_page() -> str:
    """The page from Celery, with the table of `limpet.kernel.foreign` in it."""
    shown = [(*(" ".join(f"`{word}`" for word in said.split()) for said in row[:2]), row.ours) for row in WORDS]
    made = _rows(("Celery", "Huey, RQ, Dramatiq, SQS", "Limpet"), shown)
    return WORDS_BETWEEN.sub(lambda _: made, CELERY.read_text())


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "costs.md": costs_page,
    "house.md": house_page,
    "http.md": http_page,
    "roles.md": roles_page,
    **{f"cli-{name}.md": partial(group_page, name) for name in GROUPS},
    **{name: partial(python_page, name) for name in PYTHON_PAGES.values()},
}
"""What makes each page."""
PARTS: dict[Path, Callable[[], str]] = {CELERY: celery_page}
"""Pages written by hand, of which a part is made."""


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
    for path, page in PARTS.items():
        path.write_text(page())


if __name__ == "__main__":
    main()

"""What a planted bug is, and how the place in the source is found where it is planted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path

__all__ = ["AnchorError", "Bug", "Change", "definitions", "planted"]

PACKAGE = Path(__file__).resolve().parent.parent.parent / "src" / "limpet"


class AnchorError(Exception):
    """A change matches no place in the source, or several."""


@dataclass(frozen=True)
class Change:
    """In the function called `where`, the code `old` stands once, and becomes `new`.

    `where` names a function, a method or a constant by some parts of its dotted name, in order, the last one included:
    `limpet.kernel.cell.decide.admit` is also `cell.admit`, `decide.admit` and `admit`. So it may move to
    another file. `old` is compared token by token: line breaks, indentation, comments and trailing commas do not count.
    The lines of `new` are indented relative to the first line of `old`, wherever that is found.
    """

    where: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """A planted bug, where it comes from, and the seed that catches it. `scenario` may also be one test of tests/.

    `imports` is a statement for names that the changes need; every changed module gets it.
    """

    name: str
    row: str
    seed: int
    changes: tuple[Change, ...]
    scenario: str = "kernel"
    imports: str = ""


def planted(bug: Bug) -> dict[str, str]:
    """The source of every module that the bug changes, by the module's name.

    Raises:
        AnchorError: a change matches no place, or several.
    """
    changed: dict[Path, str] = {}
    for change in bug.changes:
        path, source = _plant(bug, change, changed)
        changed[path] = source
    return {_module(path): f"{source}\n{bug.imports}\n" for path, source in changed.items()}


@dataclass(frozen=True)
class _Place:
    path: Path
    source: str
    name: str
    start: int
    stop: int

    def __str__(self) -> str:
        line = self.source.count("\n", 0, self.start) + 1
        return f"{self.name} ({self.path.relative_to(PACKAGE.parent.parent)}:{line})"


def _plant(bug: Bug, change: Change, changed: Mapping[Path, str]) -> tuple[Path, str]:
    definitions = [*_definitions(change.where, changed)]
    found = [match for place in definitions for match in _matches(place, change.old)]
    if len(found) != 1:
        raise AnchorError(_complaint(bug, change, definitions, found))
    [place] = found
    shift = _depth_of_statement(place) - _depth(change.old)
    first, *others = change.new.strip("\n").split("\n")
    lines = [first.lstrip(" "), *(" " * (_depth(each) + shift) + each.lstrip(" ") for each in others)]
    return place.path, place.source[: place.start] + "\n".join(lines) + place.source[place.stop :]


def _complaint(bug: Bug, change: Change, definitions: list[_Place], found: list[_Place]) -> str:
    said = f"{bug.name!r} cannot be planted: "
    if not definitions:
        return said + f"nothing in src/limpet is called {change.where}: name the function that holds\n{change.old}"
    if not found:
        looked = ", ".join(map(str, definitions))
        return said + f"{change.where} does not hold the code below; looked in {looked}\n{change.old}"
    return said + f"{change.where} holds this code {len(found)} times: {', '.join(map(str, found))}\n{change.old}"


# ---- finding definitions ----


def _definitions(where: str, changed: Mapping[Path, str]) -> Iterator[_Place]:
    """The functions and constants of the package that are called `where`."""
    *above, name = where.split(".")
    places = [place for place in definitions().get(name, ()) if place.path not in changed]
    places += [place for path, source in changed.items() for place in _defined(path, source)]
    for place in places:
        parts = ["limpet", *place.name.split(".")]
        if parts[-1] == name and _in_order(above, parts[:-1]):
            yield place


@cache
def definitions() -> Mapping[str, Sequence[_Place]]:
    """All functions and constants of the package, by the last part of their names."""
    found: dict[str, list[_Place]] = {}
    for path in _paths():
        for place in _defined(path, _read(path)):
            found.setdefault(place.name.rpartition(".")[2], []).append(place)
    return found


def _defined(path: Path, source: str) -> Iterator[_Place]:
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    for dotted, node in _named(_parse(source).body, _module(path)):
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        assert node.end_lineno is not None
        yield _Place(path, source, dotted.removeprefix("limpet."), starts[first - 1], starts[node.end_lineno])


def _named(body: list[ast.stmt], above: str) -> Iterator[tuple[str, ast.stmt]]:
    """Functions, methods and constants; what is defined inside of a function belongs to it."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield f"{above}.{name}", node
            case ast.ClassDef(name=name, body=inner):
                yield from _named(inner, f"{above}.{name}")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield f"{above}.{name}", node
            case ast.If(body=inner, orelse=others) | ast.Try(body=inner, orelse=others):
                yield from _named([*inner, *others], above)


def _in_order(parts: list[str], names: list[str]) -> bool:
    left = iter(names)
    return all(part in left for part in parts)


@cache
def _paths() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@lru_cache(maxsize=16)
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def _module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


# ---- comparing code ----


_TOKEN = re.compile(
    r"""#[^\n]*|\\\n"""
    r"""|(?P<token>[rbfuRBFU]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|\w+|[^\w\s])""",
    re.S,
)


@dataclass(frozen=True)
class _Token:
    text: str
    start: int = field(compare=False)
    stop: int = field(compare=False)


def _tokens(code: str, start: int = 0, stop: int | None = None) -> list[_Token]:
    found = _TOKEN.finditer(code, start, len(code) if stop is None else stop)
    tokens = [_Token(match["token"], match.start(), match.end()) for match in found if match["token"]]
    following = [*tokens[1:], _Token("", 0, 0)]
    return [one for one, after in zip(tokens, following, strict=True) if one.text != "," or after.text not in (*")]}",)]


def _matches(place: _Place, old: str) -> Iterator[_Place]:
    wanted, tokens = _tokens(old), _tokens(place.source, place.start, place.stop)
    size = len(wanted)
    assert size, "there is no code to look for"
    for at in range(len(tokens) - size + 1):
        if tokens[at : at + size] == wanted:
            yield _Place(place.path, place.source, place.name, tokens[at].start, tokens[at + size - 1].stop)


def _depth_of_statement(place: _Place) -> int:
    """How deep the statement is indented in which the place begins."""
    at = place.source.count("\n", 0, place.start) + 1
    return max((n, depth) for n, depth in _statements(place.source) if n <= at)[1]


@lru_cache(maxsize=512)
def _statements(source: str) -> tuple[tuple[int, int], ...]:
    """The lines in which statements and their clauses begin, and how deep these are indented."""
    begin, todo = set[int](), [*_parse(source).body]
    while todo:
        node = todo.pop()
        begin.add(node.lineno)
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for inner in getattr(node, name, ()):
                todo += [inner] if isinstance(inner, ast.stmt) else inner.body
    lines = source.splitlines()
    begin |= {n for n, line in enumerate(lines, start=1) if re.match(r"\s*(else|except|finally|case)\b", line)}
    return tuple((n, _depth(lines[n - 1])) for n in begin)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))

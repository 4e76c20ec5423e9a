"""Measure the house: lines, calls, large files, repeated concepts, words. A figure may not get worse.

    python tools/house.py            # print each figure, its aim and limit; fail if one is over, or a limit is loose
    python tools/house.py --record   # write the figures that got better into tools/house.toml as the new limits

`tools/house.toml` holds for each figure its aim and its limit. A change that must raise a limit edits that file, and
its commit says why. A limit may be below its aim; above it, it follows the figure down.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

__all__ = ["FIGURES", "Figure", "judge", "main", "measured"]

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "limpet"
LIMITS = ROOT / "tools" / "house.toml"
BIG_LINES, SMALL_LINES = 700, 80
USER_ROOMS = ("kernel", "queue", "worker", "app")
APART = ("queue/sync/", "queue/sqs/")
RETRY_NAME = re.compile(r"(?:^|_)(TRIES|RETRIES|SENDS|BACKOFF|PATIENCE|PAUSE|GROWTH|AGAIN)(_|$)")
UPDATE_NAMES = {
    *("add-snapshot", "add-schema", "set-snapshot-ref", "assign-uuid", "set-properties", "add-spec", "set-location"),
    *("remove-snapshots", "remove-snapshot-ref", "add-sort-order", "set-current-schema", "add-view-version"),
}
MADE = re.compile(r"<!-- made from .*?<!-- end -->", re.DOTALL)
"""A part of a page that is made from code."""
HISTORY = re.compile(
    r"\b(no longer|used to|since then|formerly|in an earlier)\b|\b20\d\d-\d\d-\d\d\b|\b\w+ pass(es)? of\b"
)
STATE_VIEWS = ("queue/inspect.py", "queue/summary.py", "cli/queue.py", "ui/facts.py", "ui/static/queue.js")
OTHER_STATE_WORDS = {"waits", "runs", "held", "held elsewhere", "rests", "corrupt"}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the house: its name, the text that the report shows, and its measure."""

    name: str
    about: str
    measure: Callable[[], float]
    room: float = 0.01
    """The share of the value by which its limit may be above it."""


@dataclass(frozen=True, slots=True)
class _Module:
    path: str
    lines: int
    tree: ast.Module


@cache
def _modules() -> tuple[_Module, ...]:
    texts = [(path.relative_to(SRC).as_posix(), path.read_text()) for path in sorted(SRC.rglob("*.py"))]
    return tuple(_Module(path, text.count("\n"), ast.parse(text)) for path, text in texts)


def _wheel_lines() -> int:
    return sum(module.lines for module in _modules())


def _user_lines() -> int:
    """Lines that a user of tasks meets: the kernel, the queue without sync and SQS, the worker and the app."""
    return sum(
        module.lines
        for module in _modules()
        if module.path.startswith(tuple(f"{room}/" for room in USER_ROOMS)) and not module.path.startswith(APART)
    )


def _big_files() -> int:
    return sum(1 for module in _modules() if module.lines > BIG_LINES)


def _crumbs() -> int:
    """Files under 80 lines that one other module imports."""
    importers: Counter[str] = Counter()
    for module in _modules():
        targets = {
            f"{node.module}" for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) and node.module
        }
        importers.update(targets)
    return sum(
        1
        for module in _modules()
        if module.lines < SMALL_LINES
        and not module.path.endswith(("__init__.py", "decide.py", "__main__.py"))
        and importers["limpet." + module.path.removesuffix(".py").replace("/", ".")] == 1
    )


def _update_modules() -> int:
    """Modules that name updates of Iceberg, as every module must that parses, builds or applies them.

    Those of views are a format of their own, so two are enough: one for tables, one for views.
    """
    return sum(
        1
        for module in _modules()
        if len({node.value for node in ast.walk(module.tree) if isinstance(node, ast.Constant)} & UPDATE_NAMES) >= 1
    )


def _retry_constants() -> int:
    names = (
        target.id
        for module in _modules()
        for node in module.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    )
    return sum(1 for name in names if name.isupper() and RETRY_NAME.search(name))


def _sleep_loops() -> int:
    """Loops that pause: `sleep`, `pause`, or a `wait` for so many seconds. `asyncio.wait` waits for results."""

    def pauses(call: ast.Call) -> bool:
        match call.func:
            case ast.Attribute(value=ast.Name(id="asyncio"), attr="wait"):
                return False
            case ast.Attribute(attr="wait") | ast.Name(id="wait"):
                return bool(call.args or call.keywords)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return name in ("sleep", "pause")
        return False

    def sleeps(loop: ast.AST) -> bool:
        return any(pauses(node) for node in ast.walk(loop) if isinstance(node, ast.Call))

    loops = (
        node
        for module in _modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.While | ast.For | ast.AsyncFor)
    )
    return sum(1 for loop in loops if sleeps(loop))


def _constructor_fields() -> int:
    """The number of attributes that the largest constructor of the queue sets."""

    def fields(node: ast.FunctionDef) -> int:
        targets = (
            target
            for each in ast.walk(node)
            if isinstance(each, ast.Assign | ast.AnnAssign)
            for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        )
        flat = (part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target]))
        return len(
            {
                t.attr
                for t in flat
                if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id == "self"
            }
        )

    return max(
        fields(node)
        for module in _modules()
        if module.path.startswith("queue/")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )


def _longest_function() -> int:
    """Lines of the longest function, its docstring aside."""

    def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
        return (node.end_lineno or 0) - body[0].lineno + 2

    return max(
        length(node)
        for module in _modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _state_words() -> int:
    """Words for the state of a task: those of `TaskState`, which every `TaskRow` has, and others that a view uses."""
    [states] = re.findall(
        r"^TaskState = Literal\[(.*?)\]", (SRC / "queue/api.py").read_text(), re.MULTILINE | re.DOTALL
    )
    words = {*re.findall(r'"([a-z]+)"', states)}
    for path in STATE_VIEWS:
        words |= {*re.findall(r"[\"']([a-z_ ]+)[\"']", (SRC / path).read_text())} & OTHER_STATE_WORDS
    return len(words)


@cache
def _pages() -> dict[str, str]:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = {path: path.relative_to(ROOT).as_posix() for path in paths}
    return {name: path.read_text() for path, name in names.items() if not name.startswith("docs/reference/")}


def _doc_words() -> int:
    return sum(len(MADE.sub("", text).split()) for text in _pages().values())


def _history_pages() -> int:
    return sum(1 for text in _pages().values() if HISTORY.search(text))


def _test_ratio() -> float:
    """The simulation counts as source: it is code that the tests run."""
    tests, simulation = (
        sum(path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py")) for folder in ("tests", "sim")
    )
    return round(tests / (_wheel_lines() + simulation), 3)


# ---- walks: the functions that a call enters ----

_TASK = """
import sys, tempfile, limpet
from support.walk import calls_of
queue = limpet.open(tempfile.mkdtemp(dir=sys.argv[1]) + "/fleet", durability="os").queue("shout")
def act():
    queue.push({"text": "hello"})
    with queue.claim() as claim:
        for task in claim:
            task.done("HELLO")
for _ in range(20):
    act()
print(*min(calls_of(act) for _ in range(10)))
"""


@cache
def _task_walk() -> tuple[int, int, int]:
    """One task on a directory: calls of all frames; lines of the functions entered, our own and the kernel's."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run(
            [sys.executable, "-c", _TASK, folder], env=env, capture_output=True, text=True, check=True
        )
    calls, own, kernel = map(int, said.stdout.split())
    return calls, own, kernel


@cache
def _commit_calls() -> int:
    """One commit over HTTP to a server on a directory: calls of functions of limpet, to 20, since timers add some."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.walk import commit_walks

    with tempfile.TemporaryDirectory() as folder:
        return -20 * (min(walk.own_calls for walk in commit_walks(Path(folder), 8)) // -20)


FIGURES = (
    Figure("lines_wheel", "lines in the wheel", _wheel_lines),
    Figure("lines_user", "lines of kernel, queue without sync and SQS, worker and app", _user_lines),
    Figure("task_calls", "calls of one task on a directory, all frames", lambda: _task_walk()[0], room=0.1),
    Figure("task_lines_own", "lines of our functions that one task enters", lambda: _task_walk()[1], room=0.1),
    Figure(
        "task_lines_kernel", "lines of the kernel's functions that one task enters", lambda: _task_walk()[2], room=0.1
    ),
    Figure("commit_calls", "calls of one commit over HTTP, limpet's own", _commit_calls, room=0.1),
    Figure("files_large", f"files over {BIG_LINES} lines", _big_files),
    Figure("files_small", f"files under {SMALL_LINES} lines with one importer", _crumbs),
    Figure("update_modules", "modules that parse or apply updates of Iceberg", _update_modules),
    Figure("retry_constants", "constants for tries and back-off", _retry_constants),
    Figure("sleep_loops", "loops that sleep", _sleep_loops),
    Figure("constructor_fields", "fields of the largest constructor in queue/", _constructor_fields),
    Figure("function_lines", "lines of the longest function without its docstring", _longest_function),
    Figure("state_words", "words for the state of a task in ls, SQL and dashboard", _state_words),
    Figure("doc_words", "hand-written words of docs", _doc_words),
    Figure("history_pages", "pages of docs that tell history", _history_pages),
    Figure("test_ratio", "lines of tests for a line of source", _test_ratio),
)


def measured(figures: Iterable[Figure] = FIGURES) -> dict[str, float]:
    """Each figure by its name."""
    return {figure.name: figure.measure() for figure in figures}


def judge(values: Mapping[str, float], limits: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The names of the figures that are over their limit."""
    return [name for name, value in values.items() if value > limits[name]["limit"]]


def loose(values: Mapping[str, float], limits: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The names of the figures that could get worse unseen: the limit is above the aim, and far above the value."""
    room = {figure.name: figure.room for figure in FIGURES}

    def most(name: str, value: float) -> float:
        wide = value * (1 + room[name])
        return max(limits[name]["aim"], ceil(wide) if value == int(value) else wide)

    return [name for name, value in values.items() if limits[name]["limit"] > most(name, value)]


def _report(values: Mapping[str, float], limits: Mapping[str, Mapping[str, float]]) -> str:
    width = max(len(figure.about) for figure in FIGURES)
    lines = [f"{'':{width}} {'now':>10} {'aim':>10} {'limit':>10}"]
    for figure in FIGURES:
        value, limit = values[figure.name], limits[figure.name]
        mark = "  over its limit" if value > limit["limit"] else "" if value > limit["aim"] else "  aim met"
        lines.append(f"{figure.about:{width}} {value:>10,} {limit['aim']:>10,} {limit['limit']:>10,}{mark}")
    return "\n".join(lines)


def _record(values: Mapping[str, float], limits: Mapping[str, Mapping[str, float]]) -> None:
    rows = [
        f"{name} = {{ aim = {limits[name]['aim']}, limit = {min(value, limits[name]['limit'])} }}"
        for name, value in values.items()
    ]
    LIMITS.write_text("# Aim and limit of each figure that tools/house.py measures.\n" + "\n".join(rows) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Print the figures; 1 if one is over its limit."""
    limits = tomllib.loads(LIMITS.read_text())
    values = measured()
    print(_report(values, limits))
    if [*arguments] == ["--record"]:
        _record(values, limits)
        return 0
    over = judge(values, limits)
    if over:
        print(f"\nover the limit: {', '.join(over)}. Lower the figure, or raise its limit in house.toml and say why.")
    wide = loose(values, limits)
    if wide:
        print(f"\nlimit far above the figure: {', '.join(wide)}. Hold what was reached: tools/house.py --record")
    return 1 if over or wide else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

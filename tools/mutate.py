"""Mutation testing of decision modules: change one thing at a time, and see whether the tests notice.

    python tools/mutate.py src/limpet/lease/decide.py                    # the tests of the table below
    python tools/mutate.py src/limpet/x/y.py --tests tests/x/test_y.py   # any other module
    python tools/mutate.py --all                                         # every module of the table

A mutant flips a comparison, swaps `and` and `or`, adds or subtracts one, changes a constant, or drops a statement or a
field of `replace`. Each one runs in a forked process, which loads the module from changed source: nothing on disk is
touched. A mutant that fails a test, or does not come back in time, is killed. Exit code 1: less than 95 % were.

Mutants that behave exactly like the original are argued in docs/design/mutants.md and not counted. A line there is
`- FILE FUNCTION: OLD -> NEW: why`, FILE, FUNCTION, OLD and NEW in backticks, as this program prints them.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
ARGUED = ROOT / "docs" / "design" / "mutants.md"
QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
AIM = 0.95
TIMEOUT_MIN_S = 20.0
TIMEOUT_FACTOR = 6.0
POLL_S = 0.01

TESTS: dict[str, tuple[str, ...]] = {
    "src/limpet/lease/decide.py": ("tests/lease/test_decide.py", "tests/lease/test_lock.py"),
    "src/limpet/cell/decide.py": ("tests/cell/test_decide.py", "tests/cell/test_cell.py"),
    "src/limpet/store/outcome.py": ("tests/store/test_outcome.py",),
    "src/limpet/queue/decide.py": ("tests/queue/test_decide.py", "tests/queue/test_attempts.py"),
    "src/limpet/queue/sync/decide.py": ("tests/queue/sync/test_sync_decide.py",),
    "src/limpet/index/decide.py": ("tests/index/test_index_decide.py",),
    "src/limpet/index/seek.py": ("tests/index/test_index_seek.py",),
    "src/limpet/catalog/decide.py": ("tests/catalog/test_catalog_kernel.py",),
    "src/limpet/catalog/state.py": ("tests/catalog/test_catalog_kernel.py", "tests/catalog/test_catalog_names.py"),
}

ORDERS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
SUMS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
DROPPED = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Raise, ast.Continue, ast.Break, ast.Delete)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module: in which function, at which line, what was there, what is there instead."""

    line: int
    function: str
    old: str
    new: str
    tree: ast.Module

    @property
    def argument(self) -> tuple[str, str, str]:
        """What an argued survivor names beside the file."""
        return self.function, self.old, self.new


# ---- making mutants ----


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a module, from its first line to its last."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not _is_skipped(node, parents):
            for replaced in _replacements(node, parents):
                yield _mutant(tree, node, replaced, parents)


def _mutant(tree: ast.Module, node: ast.AST, replaced: ast.AST, parents: dict[ast.AST, ast.AST]) -> Mutant:
    shown = node
    while not isinstance(shown, ast.stmt | ast.match_case) and not _is_telling(shown):
        shown = parents[shown]
    memo = {id(node): replaced}
    changed = copy.deepcopy(tree, memo)
    new = memo.get(id(shown), replaced)
    return Mutant(
        getattr(node, "lineno", getattr(shown, "lineno", 0)),
        _function(node, parents),
        _text(shown),
        _text(new),
        ast.fix_missing_locations(changed),
    )


def _is_telling(node: ast.AST) -> bool:
    """Whether its text says enough to a reader: a bare name or a constant does not."""
    return isinstance(node, ast.Compare | ast.BoolOp | ast.BinOp | ast.UnaryOp | ast.IfExp | ast.Call)


def _text(node: object) -> str:
    """Code on one line; of a compound statement its head only."""
    if isinstance(node, ast.match_case):
        return f"case {ast.unparse(node.pattern)}"
    assert isinstance(node, ast.AST)
    lines = ast.unparse(node).splitlines() or ["pass"]
    return " ".join(line.strip() for line in (lines if isinstance(node, ast.expr) else lines[:1]))


def _function(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    names: list[str] = []
    at: ast.AST | None = node
    while at is not None:
        if isinstance(at, ast.FunctionDef | ast.ClassDef):
            names.insert(0, at.name)
        at = parents.get(at)
    return ".".join(names) or "module"


def _is_skipped(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Annotations, decorators, docstrings, imports, assertions, `__all__`, and the texts of errors."""
    child, at = node, parents.get(node)
    while at is not None:
        match at:
            case ast.arg() | ast.Assert() | ast.JoinedStr():
                return True
            case ast.AnnAssign() if child is at.annotation:
                return True
            case ast.FunctionDef() if child is at.returns or child in at.decorator_list:
                return True
            case ast.ClassDef() if child in at.decorator_list or child in at.bases or child in at.keywords:
                return True
            case ast.Raise():
                return True
            case ast.Assign(targets=[ast.Name(id=name)]) if name in ("__all__", "__slots__"):
                return True
            case ast.Expr(value=ast.Constant(value=str())):
                return True
        child, at = at, parents.get(at)
    return False


def _replacements(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                for other in ORDERS[type(op)]:
                    yield ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.BinOp() if type(node.op) in SUMS:
            yield ast.BinOp(node.left, SUMS[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield node.operand
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Call(func=ast.Attribute(attr="replace") | ast.Name(id="replace")):
            for i in range(len(node.keywords)):
                yield ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]])
        case ast.Constant():
            yield from _constants(node, parents[node])
        case ast.match_case() if len(_match(node, parents).cases) > 1:
            yield ast.match_case(node.pattern, ast.Constant(False), node.body)
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() | ast.NamedExpr()):
            yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Return(value=value) if value is not None and not _is_none(value) and _inside(node, parents):
            yield ast.Return(ast.Constant(None))
        case ast.stmt() if isinstance(node, DROPPED) and _inside(node, parents):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                yield ast.Pass()


def _match(case: ast.match_case, parents: dict[ast.AST, ast.AST]) -> ast.Match:
    found = parents[case]
    assert isinstance(found, ast.Match)
    return found


def _constants(node: ast.Constant, parent: ast.AST) -> Iterator[ast.AST]:
    match node.value:
        case bool():
            yield ast.Constant(not node.value)
        case int() | float():
            yield ast.Constant(node.value + 1)
            yield ast.Constant(node.value - 1)
        case str() if isinstance(parent, ast.Compare | ast.Tuple | ast.MatchValue | ast.Return):
            yield ast.Constant(f"{node.value}?")


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _inside(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a statement is in a function: what a module or a class declares is not dropped."""
    at = parents.get(node)
    while at is not None and not isinstance(at, ast.FunctionDef | ast.ClassDef):
        at = parents.get(at)
    return isinstance(at, ast.FunctionDef)


# ---- running them ----


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from the mutant."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self._name = name
        self._tree = tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__file__ is not None
        exec(compile(self._tree, module.__file__, "exec"), module.__dict__)


def _start(module: str, tree: ast.Module, tests: Sequence[str], log: int, names: Path | None = None) -> int:
    """Run the tests in a forked process; its id. Into `names` it writes what was imported."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.meta_path.insert(0, _Finder(module, tree))
        import pytest

        code = int(pytest.main(["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "--no-header", *QUIET, *tests]))
        if code == 0 and module not in sys.modules:
            print(f"these tests do not import {module}")
            code = 71
        if names is not None:
            names.write_text("\n".join(name for name, each in [*sys.modules.items()] if _is_foreign(each)))
    finally:
        if code == 70:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)


def _is_foreign(module: ModuleType) -> bool:
    """Whether it is installed, and not of this checkout."""
    return "site-packages" in (getattr(module, "__file__", None) or "")


def _wait(pid: int, until_s: float) -> int | None:
    """The exit code; None while it runs. After `until_s` it is killed, with all that it started."""
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        return os.waitstatus_to_exitcode(status)
    if time.monotonic() < until_s:
        return None
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGKILL


def _run_all(module: str, found: Sequence[Mutant], tests: Sequence[str], jobs: int, timeout_s: float) -> list[Mutant]:
    """The survivors."""
    survivors: list[Mutant] = []
    running: dict[int, tuple[Mutant, float]] = {}
    left = [*reversed(found)]
    with open(os.devnull, "wb") as nowhere:
        while left or running:
            while left and len(running) < jobs:
                mutant = left.pop()
                pid = _start(module, mutant.tree, tests, nowhere.fileno())
                running[pid] = (mutant, time.monotonic() + timeout_s)
            for pid, (mutant, until_s) in [*running.items()]:
                code = _wait(pid, until_s)
                if code is not None:
                    del running[pid]
                    if code == 0:
                        survivors.append(mutant)
            time.sleep(POLL_S)
    return sorted(survivors, key=lambda mutant: mutant.line)


def _baseline(module: str, source: str, tests: Sequence[str], scratch: Path) -> float:
    """How long the tests take without a change, which they must survive.

    Other people's modules that they need are imported here, once, and not by each mutant.
    """
    names = scratch / "names"
    with tempfile.TemporaryFile() as log:
        begun_s = time.monotonic()
        pid = _start(module, ast.parse(source), tests, log.fileno(), names)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            log.seek(0)
            sys.exit(f"the tests fail without any change:\n{log.read().decode(errors='replace')}")
        took_s = time.monotonic() - begun_s
    for name in names.read_text().split():
        with suppress(ImportError):
            importlib.import_module(name)
    return took_s


_ARGUED = re.compile(r"- `([^`]+)` `([^`]+)`: `([^`]+)` -> `([^`]+)`: \S")


def _argued(path: str) -> set[tuple[str, str, str]]:
    lines = ARGUED.read_text().splitlines() if ARGUED.exists() else []
    rows = (_ARGUED.match(line) for line in lines)
    return {(row[2], row[3], row[4]) for row in rows if row and row[1] == path}


def mutate(path: str, tests: Sequence[str], *, jobs: int, only: str | None, scratch: Path) -> bool:
    """Try every mutant of one module; whether enough of them were killed."""
    source = (ROOT / path).read_text()
    module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    took_s = _baseline(module, source, tests, scratch)
    argued = _argued(path)
    found = sorted(mutants(source), key=lambda mutant: mutant.line)
    if only is not None:
        found = [mutant for mutant in found if only in mutant.function]
    stale = argued - {mutant.argument for mutant in found} if only is None else set()
    tried = [mutant for mutant in found if mutant.argument not in argued]
    begun_s = time.monotonic()
    survivors = _run_all(module, tried, tests, jobs, max(TIMEOUT_MIN_S, TIMEOUT_FACTOR * took_s))
    for mutant in survivors:
        print(f"  {path}:{mutant.line}\n    - `{path}` `{mutant.function}`: `{mutant.old}` -> `{mutant.new}`: ")
    for function, old, new in sorted(stale):
        print(f"  argued in {ARGUED.name}, but there is no such mutant: `{function}`: `{old}` -> `{new}`")
    killed = len(tried) - len(survivors)
    part = killed / len(tried) if tried else 1.0
    equivalent = f", {len(found) - len(tried)} argued to be equivalent" if len(found) > len(tried) else ""
    print(
        f"{path}: {killed} of {len(tried)} mutants killed, {100 * part:.1f} %{equivalent}"
        f" ({time.monotonic() - begun_s:.0f} s)",
        flush=True,
    )
    return part >= AIM and not stale


def main() -> int:
    """Exit code 0: in each module enough mutants were killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE.py")
    parser.add_argument("--tests", nargs="+", default=[], help="instead of those in the table")
    parser.add_argument("--all", action="store_true", help="every module of the table")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants to try at a time")
    parser.add_argument("--function", help="only mutants of functions whose name contains this")
    arguments = parser.parse_args()
    paths = [*TESTS] if arguments.all else [_path(name) for name in arguments.modules]
    if not paths:
        parser.error("name a module, or say --all")
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    good = True
    with tempfile.TemporaryDirectory(prefix="limpet-mutate-") as scratch:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = scratch
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        for path in paths:
            tests = arguments.tests or TESTS.get(path)
            if not tests:
                parser.error(f"no tests are known for {path}: name them with --tests")
            good &= mutate(path, tests, jobs=arguments.jobs, only=arguments.function, scratch=Path(scratch))
    return 0 if good else 1


def _path(name: str) -> str:
    """A module as the table names it."""
    return str(Path(name).resolve().relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())

"""Mutation testing of decision modules: change one thing at a time, and see whether the tests notice.

    python tools/mutate.py src/limpet/kernel/lease/decide.py                    # the tests of the table below
    python tools/mutate.py src/limpet/x/y.py --tests tests/x/test_y.py   # any other module
    python tools/mutate.py --all                                         # every module of the table

A mutant flips a comparison, swaps `and` and `or`, adds or subtracts one, changes a constant, or drops a statement or a
field of `replace`. Each one runs in a forked process: nothing on disk is touched. Where only the code of a function
differs, that process has all tests collected already, gets the new code, and runs the tests that call the function and
take less than a second. A mutant that fails a test, or does not come back in time, is killed. Exit code 1: less than
95 % were.

Mutants that behave exactly like the original are argued in tools/mutants.txt and not counted. A line there is
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
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent
ARGUED = ROOT / "tools" / "mutants.txt"
QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
OPTIONS = ("-q", "-m", "not full", "-p", "no:xdist", "--no-header", "--tb=short", *QUIET)
AIM = 0.95
SLOW_S = 1.0
CPU_MIN_S = 2.0
CPU_FACTOR = 4.0
WALL_S = 300.0
MEMORY_MAX = 2 << 30
POLL_S = 0.002
VALUES = (int, float, str, bytes, tuple, frozenset, timedelta)

TESTS: dict[str, tuple[str, ...]] = {
    "src/limpet/kernel/lease/decide.py": ("tests/lease/test_decide.py", "tests/lease/test_lock.py"),
    "src/limpet/kernel/cell/decide.py": ("tests/cell/test_decide.py", "tests/cell/test_cell.py"),
    "src/limpet/kernel/store/outcome.py": ("tests/store/test_outcome.py",),
    "src/limpet/queue/decide.py": (
        "tests/queue/test_decide.py",
        "tests/queue/test_attempts.py",
        "tests/queue/test_batch.py",
        "tests/queue/test_claim.py",
        "tests/queue/test_receipts.py",
    ),
    "src/limpet/queue/durable.py": ("tests/queue/test_durable_decide.py",),
    "src/limpet/app/backup_decide.py": ("tests/app/test_backup.py",),
    "src/limpet/queue/sync/decide.py": ("tests/queue/sync/test_sync_decide.py",),
    "src/limpet/index/decide.py": ("tests/index/test_index_decide.py", "tests/index/test_index_seek.py"),
    "src/limpet/catalog/maintain/decide.py": ("tests/catalog/test_catalog_retention.py",),
    "src/limpet/service/decide.py": ("tests/service/test_service_signing.py",),
    "src/limpet/kernel/sortedmap.py": ("tests/catalog/test_catalog_state.py",),
    **dict.fromkeys(
        ("src/limpet/catalog/state.py", "src/limpet/catalog/names.py", "src/limpet/catalog/heads.py"),
        (
            "tests/catalog/test_catalog_decide.py",
            "tests/catalog/test_catalog_entries.py",
            "tests/catalog/test_catalog_hardening.py",
            "tests/catalog/test_catalog_kernel.py",
            "tests/catalog/test_catalog_names.py",
            "tests/catalog/test_catalog_reference.py",
            "tests/catalog/test_catalog_state.py",
        ),
    ),
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
    is_declared: bool
    """It changes the default of an argument: that is not in the code of the function."""

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
        _is_default(node, parents),
    )


def _is_default(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.arguments):
        at = parents.get(at)
    return at is not None


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
    """Annotations, types, decorators, docstrings, imports, assertions, `__all__`, and the texts of errors."""
    child, at = node, parents.get(node)
    while at is not None:
        match at:
            case ast.arg() | ast.Assert() | ast.JoinedStr():
                return True
            case ast.Subscript(value=ast.Name(id="Literal")):
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


class _Verdict(Enum):
    KILLED = "a test fails"
    SURVIVED = "all tests pass"
    UNTRIED = "only a fresh import can tell"


class _Warm:
    """A pytest plugin that tries mutants after collection: nothing is imported or collected again for a mutant.

    Each mutant is a forked process. There the functions of the module get the code of the mutant, wherever they were
    imported to, and the tests that ran the changed function run: those that killed the latest mutants first, then from
    the quickest to the slowest. Constants are changed likewise. Mutants of classes are left for a fresh import.
    """

    def __init__(self, module: str, found: Sequence[Mutant], names: Path) -> None:
        self.verdicts: list[_Verdict] = []
        self.failure = ""
        self._module = module
        self._found = found
        self._names = names
        self._took_s: dict[str, float] = {}
        self._ran: dict[str, set[str]] = {}
        self._killers: list[str] = []

    def pytest_configure(self) -> None:
        """Hypothesis tries the same examples for each mutant, and does not spend time on a smaller counterexample."""
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants", phases=(Phase.explicit, Phase.generate), database=None, deadline=None, derandomize=True
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests once, run them for each mutant."""
        self._names.write_text("\n".join(name for name, each in [*sys.modules.items()] if _is_foreign(each)))
        if self._module not in sys.modules:
            self.failure = f"these tests do not import {self._module}"
            return True
        module = sys.modules[self._module]
        codes = _functions(module)
        for item in session.items:
            self._measure(item, codes)
            if self.failure:
                return True
        items = sorted(session.items, key=lambda item: self._took_s[item.nodeid])
        items = [item for item in items if self._took_s[item.nodeid] <= SLOW_S]
        unchanged = Mutant(0, "module", "", "", ast.parse(Path(module.__file__ or "").read_text()), is_declared=False)
        if self._try(unchanged, items, module, codes) is not _Verdict.SURVIVED:
            self.failure = f"in a forked process {self._killers} fails, or takes too long, without any change"
            return True
        for mutant in self._found:
            self.verdicts.append(self._try(mutant, items, module, codes))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the first failure."""
        if report.failed and not self.failure:
            self.failure = f"{report.nodeid}\n{report.longrepr}"

    def _measure(self, item: pytest.Item, codes: dict[str, FunctionType]) -> None:
        """Run a test without a change, for its time and for the functions that it calls."""
        known = {function.__code__: name for name, function in codes.items()}
        ran = self._ran.setdefault(item.nodeid, set())

        def trace(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code in known:
                ran.add(known[frame.f_code])

        threading.setprofile(trace)
        sys.setprofile(trace)
        begun_s = time.process_time()
        _run(item)
        self._took_s[item.nodeid] = time.process_time() - begun_s
        sys.setprofile(None)
        threading.setprofile(None)

    def _try(
        self, mutant: Mutant, items: Sequence[pytest.Item], module: ModuleType, codes: dict[str, FunctionType]
    ) -> _Verdict:
        change = _change(mutant, module, codes)
        if change is None:
            return _Verdict.UNTRIED
        chosen = [item for item in items if change.owner is None or change.owner in self._ran[item.nodeid]]
        if not chosen:
            return _Verdict.SURVIVED
        first = {name: at for at, name in enumerate(self._killers)}
        chosen.sort(key=lambda item: first.get(item.nodeid, len(first)))
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            self._run_changed(change, chosen, writer)
        os.close(writer)
        code = _wait(pid, time.monotonic() + WALL_S)
        with os.fdopen(reader) as pipe:
            killer = pipe.read()
        if killer:
            self._killers = [killer, *(name for name in self._killers if name != killer)]
        if code == 0 and change.owner is None and mutant.old:
            return _Verdict.UNTRIED  # a class may have been declared with the value
        return _Verdict.SURVIVED if code == 0 else _Verdict.KILLED

    def _run_changed(self, change: _Change, items: Sequence[pytest.Item], writer: int) -> NoReturn:
        """In a forked process: make the change and run the tests, up to the first that fails, which it names.

        A test that takes far longer than before is ended by the signal of its timer, and the process with it.
        """
        code = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
            change.make()
            for item in items:
                signal.setitimer(signal.ITIMER_PROF, CPU_MIN_S + CPU_FACTOR * self._took_s[item.nodeid])
                _run(item)
                if self.failure:
                    os.write(writer, item.nodeid.encode())
                    break
            else:
                code = 0
        finally:
            os._exit(code)


def _functions(module: ModuleType) -> dict[str, FunctionType]:
    """Every function and method that the module defines, by its qualified name."""
    found: dict[str, FunctionType] = {}
    inside: list[object] = [*vars(module).values()]
    while inside:
        each = inside.pop()
        match each:
            case FunctionType() if each.__code__.co_filename == module.__file__:
                found[each.__qualname__] = each
            case classmethod() | staticmethod():
                inside.append(each.__func__)
            case property():
                inside += [each.fget, each.fset]
            case type() if each.__module__ == module.__name__:
                inside += vars(each).values()
        wrapped = getattr(each, "__wrapped__", None) if not isinstance(each, type) else None
        if wrapped is not None:
            inside.append(wrapped)
    return found


@dataclass(frozen=True, slots=True)
class _Change:
    """What a mutant changes in the loaded modules. `owner` is the function whose code it changes, None for a value."""

    owner: str | None
    make: Callable[[], None]


def _change(mutant: Mutant, module: ModuleType, codes: dict[str, FunctionType]) -> _Change | None:
    """How to turn the loaded module into the mutant; None if only an import can: it declares other classes."""
    compiled = compile(mutant.tree, module.__file__ or "", "exec")
    owner = next((name for name in _owners(mutant.function) if name in codes), None)
    if owner is None and mutant.function != "module":
        return None
    if owner is None or mutant.is_declared:
        return _Change(None, partial(_set_values, compiled, module, codes))
    old = codes[owner]
    inside = [compiled]
    while inside:
        code = inside.pop()
        if code.co_qualname == owner and code.co_freevars == old.__code__.co_freevars:
            return _Change(owner, partial(setattr, old, "__code__", code))
        inside += [each for each in code.co_consts if isinstance(each, CodeType)]
    return None


def _set_values(compiled: CodeType, module: ModuleType, codes: dict[str, FunctionType]) -> None:
    """Give constants, wherever they were imported to, and defaults of arguments the values of the mutant."""
    fresh = ModuleType(module.__name__)
    fresh.__file__ = module.__file__
    exec(compiled, fresh.__dict__)
    for name, new in vars(fresh).items():
        old = vars(module).get(name)
        if isinstance(new, VALUES) and new != old:
            for each in [*sys.modules.values()]:
                if vars(each).get(name) is old:
                    setattr(each, name, new)
    for name, changed in _functions(fresh).items():
        codes[name].__defaults__ = changed.__defaults__
        codes[name].__kwdefaults__ = changed.__kwdefaults__


def _owners(function: str) -> Iterator[str]:
    """`a.b.c`, `a.b`, `a`: a function is defined in another one, or in a class."""
    parts = function.split(".")
    for size in range(len(parts), 0, -1):
        yield ".".join(parts[:size])


def _run(item: pytest.Item) -> None:
    """Run one test, with all of its fixtures torn down afterwards."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def _start(module: str, tree: ast.Module, tests: Sequence[str], log: int) -> int:
    """Import everything afresh in a forked process, with the mutant, and run all tests; its id."""
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

        # Limpet is a plugin of pytest, which would load its modules by itself to rewrite their assertions.
        code = int(pytest.main([*OPTIONS, "--assert=plain", "-x", *tests]))
    finally:
        if code == 70:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)


def _is_foreign(module: ModuleType) -> bool:
    """Whether it is installed, and not of this checkout."""
    return "site-packages" in (getattr(module, "__file__", None) or "")


def _wait(pid: int, until_s: float) -> int:
    """The exit code. After `until_s` it is killed, with all that it started."""
    while time.monotonic() < until_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGKILL


def _verdicts(module: str, found: Sequence[Mutant], tests: Sequence[str], scratch: Path) -> list[_Verdict]:
    """What became of each mutant: in one warm process what can be tried there, and the rest one import at a time."""
    answer, names = scratch / "verdicts", scratch / "names"
    pid = os.fork()
    if not pid:
        _serve(module, found, tests, answer, names)
    os.waitpid(pid, 0)
    verdicts = [_Verdict[name] for name in answer.read_text().split()] if answer.exists() else []
    if len(verdicts) != len(found):
        sys.exit(f"{module}: its tests cannot be run without any change")
    answer.unlink()
    for name in names.read_text().split():
        with suppress(ImportError):
            importlib.import_module(name)
    with open(os.devnull, "wb") as nowhere:
        for at, mutant in enumerate(found):
            if verdicts[at] is _Verdict.UNTRIED:
                pid = _start(module, mutant.tree, tests, nowhere.fileno())
                code = _wait(pid, time.monotonic() + WALL_S)
                verdicts[at] = _Verdict.SURVIVED if code == 0 else _Verdict.KILLED
    return verdicts


def _serve(module: str, found: Sequence[Mutant], tests: Sequence[str], answer: Path, names: Path) -> NoReturn:
    """In a forked process: collect the tests once and try all mutants."""
    try:
        import pytest

        warm = _Warm(module, found, names)
        with tempfile.TemporaryFile("w+") as log:
            shown = os.dup(1)
            os.dup2(log.fileno(), 1)
            code = int(pytest.main([*OPTIONS, f"--basetemp={answer.parent / 'pytest'}", *tests], plugins=[warm]))
            sys.stdout.flush()
            os.dup2(shown, 1)
            if code not in (0, 5) or warm.failure:
                log.seek(0)
                print(log.read(), warm.failure)
            else:
                answer.write_text("\n".join(verdict.name for verdict in warm.verdicts))
    finally:
        sys.stdout.flush()
        os._exit(0)


_ARGUED = re.compile(r"- `([^`]+)` `([^`]+)`: `([^`]+)` -> `([^`]+)`: \S")


def _argued(path: str) -> set[tuple[str, str, str]]:
    lines = ARGUED.read_text().splitlines() if ARGUED.exists() else []
    rows = (_ARGUED.match(line) for line in lines)
    return {(row[2], row[3], row[4]) for row in rows if row and row[1] == path}


def mutate(path: str, tests: Sequence[str], *, only: str | None, scratch: Path) -> bool:
    """Try every mutant of one module; whether enough of them were killed."""
    source = (ROOT / path).read_text()
    module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    argued = _argued(path)
    found = sorted(mutants(source), key=lambda mutant: mutant.line)
    if only is not None:
        found = [mutant for mutant in found if only in mutant.function]
    stale = argued - {mutant.argument for mutant in found} if only is None else set()
    tried = [mutant for mutant in found if mutant.argument not in argued]
    begun_s = time.monotonic()
    verdicts = _verdicts(module, tried, tests, scratch)
    survivors = [mutant for mutant, each in zip(tried, verdicts, strict=True) if each is _Verdict.SURVIVED]
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
            good &= mutate(path, tests, only=arguments.function, scratch=Path(scratch))
    return 0 if good else 1


def _path(name: str) -> str:
    """A module as the table names it."""
    return str(Path(name).resolve().relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())

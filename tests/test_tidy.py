"""The rules of the house that no linter knows, each a small function over one file's syntax tree.

`RULES` pairs every rule with code that breaks it, so that a rule which finds nothing is known to look.
"""

from __future__ import annotations

import ast
import fnmatch
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from support.known import KNOWN

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 60
FAILURE_ROWS = 34
AMBIENT = ("time", "random", "uuid", "threading", "secrets", "concurrent.futures", "asyncio", "multiprocessing")
AMBIENT_CALLS = ("datetime.now", "datetime.utcnow", "datetime.today", "date.today", "os.urandom")
CODE_FROM_BYTES = ("pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml")
EXTRAS = ("obstore", "duckdb", "greenlet", "boto3", "pyarrow", "pyiceberg")

# Joined here, so that this file does not hold what it forbids.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
REGISTRIES = ("pypi org", "pythonhosted org", "npmjs org", "npmjs com", "yarnpkg com", "crates io", "docker io")
REGISTRY = re.compile(r"\b(" + "|".join(host.replace(" ", r"\.") for host in REGISTRIES) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(?:home|Users|root|work|opt/wheels)/[\w.]+")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Finding = tuple[int, str]


@dataclass(frozen=True)
class Source:
    """One file: its path below the root, its text, and for Python its tree."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parse(self.text)

    @property
    def nodes(self) -> Sequence[ast.AST]:
        """All nodes of the tree."""
        return _walked(self.text)

    @property
    def module(self) -> str:
        """The dotted name of a module below src/."""
        return self.path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def lines(self) -> Iterator[tuple[int, str]]:
        return enumerate(self.text.splitlines(), start=1)


@cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _walked(text: str) -> Sequence[ast.AST]:
    return [*ast.walk(_parse(text))]


# ---- rules for the package ----


def functions_are_small(source: Source) -> Iterator[Finding]:
    for node in source.nodes:
        if isinstance(node, Function):
            said = ast.get_docstring(node, clean=False) or ""  # the help of a command is as long as it needs to be
            count = (node.end_lineno or node.lineno) - node.lineno + 1 - said.count("\n")
            if count > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name}() has {count} lines; the limit is {FUNCTION_LINES_MAX}"


def time_and_chance_come_from_runtime(source: Source) -> Iterator[Finding]:
    """The simulation can replay only what goes through a Runtime, so the CLI gets no exception either.

    `sim` itself may import random, whose seeded generators stand in for chance, and multiprocessing, which spreads
    whole runs over the cores. Users' coroutines need a loop, which `worker.coroutines` makes. An index can be compiled
    and imported by an executor that a user brings, or the CLI makes. The service has one loop, and threads beside it.
    """
    if source.module == "limpet.kernel.runtime":
        return
    allowed = {"random", "multiprocessing"} if _is_or_below(source.module, "sim") else set()
    if source.module == "limpet.worker.coroutines":
        allowed = {"asyncio"}
    if source.module in (
        "limpet.index.index",
        "limpet.index.compiler",
        "limpet.index.files",
        "limpet.cli.index.options",
    ):
        allowed = {"concurrent.futures"}
    if source.module == "limpet.cli.index.options":
        allowed |= {"multiprocessing"}
    if source.module in ("limpet.service.app", "limpet.service.protocol", "limpet.service.tls"):
        allowed = {"asyncio"}
    for line, name in _imports(source):
        for banned in AMBIENT:
            if banned not in allowed and _is_or_below(name, banned):
                yield line, f"imports {name}; only limpet/kernel/runtime.py may: take a Runtime argument"
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith(AMBIENT_CALLS):
            yield node.lineno, f"uses {ast.unparse(node)}; only limpet/kernel/runtime.py may: take a Runtime argument"


def obstore_stays_in_the_cloud_store(source: Source) -> Iterator[Finding]:
    if source.module != "limpet.kernel.store.cloud":
        for line, name in _imports(source):
            if _is_or_below(name, "obstore"):
                yield line, f"imports {name}; only limpet/kernel/store/cloud.py may"


def nobody_imports_the_simulation(source: Source) -> Iterator[Finding]:
    if not _is_or_below(source.module, "sim"):
        for line, name in _imports(source):
            if _is_or_below(name, "sim"):
                yield line, f"imports {name}; nothing in limpet may"


def module_has_docstring(source: Source) -> Iterator[Finding]:
    if not ast.get_docstring(source.tree):
        yield 1, "the module has no docstring"


def packages_say_what_they_export(source: Source) -> Iterator[Finding]:
    """A package has an `__all__`; whoever has one names only what is there. `limpet` exports all that it imports."""
    exported = _exported(source.tree)
    if exported is None:
        if source.path.endswith("/__init__.py"):
            yield 1, "the package has no __all__"
        return
    bound = _bound(source.tree.body)
    for name in exported:
        if name not in bound:
            yield 1, f"__all__ names {name}, which the module does not define"
    for name, node in bound.items():
        public = not name.startswith("_") and name not in exported and not _is_future(node)
        if public and source.path.endswith("limpet/__init__.py"):
            yield node.lineno, f"{name} is public but not in __all__: export it, or begin its name with an underscore"


def public_names_are_documented(source: Source) -> Iterator[Finding]:
    """An override inherits the docstring of the method that it overrides."""
    yield from _undocumented(source.tree.body, "")


def errors_are_caught_by_kind(source: Source) -> Iterator[Finding]:
    """The top level of a thread that must survive anything says so: `except Exception:  # noqa: BLE001 (why)`."""
    lines = source.text.splitlines()
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield node.lineno, "a bare except; name the errors"
            elif any(isinstance(part, ast.Name) and part.id == "Exception" for part in ast.walk(node.type)):
                if re.search(r"# noqa: BLE001 \(.+\)", lines[node.lineno - 1]):
                    continue
                yield node.lineno, "catches Exception; name the errors"
        elif isinstance(node, ast.Call) and ast.unparse(node).endswith(
            ("suppress(Exception)", "suppress(BaseException)")
        ):
            yield node.lineno, "suppresses every error; name the errors"


def types_are_decoded_by_records(source: Source) -> Iterator[Finding]:
    """The first use of a type by two threads at once ends the process (see `records.decoder`)."""
    if source.module == "limpet.kernel.records" or _is_or_below(source.module, "sim"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call):
            called, typed = ast.unparse(node.func), any(each.arg == "type" for each in node.keywords)
            if called == "msgspec.convert" or (called == "msgspec.json.decode" and typed):
                yield node.lineno, f"calls {called} for a type: use records.decoder or records.converted"


def no_bytes_become_code(source: Source) -> Iterator[Finding]:
    """Stored and received bytes are data (F32): nothing unpickles, evaluates or executes any."""
    for line, name in _imports(source):
        if any(_is_or_below(name, banned) for banned in CODE_FROM_BYTES):
            yield line, f"imports {name}: it can turn bytes into code"
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            yield node.lineno, f"calls {node.func.id}"


def reads_have_a_limit(source: Source) -> Iterator[Finding]:
    """One large object must not exhaust memory (F32): without `size_max`, a read has the limit of records."""
    if _is_or_below(source.module, "sim"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call):
            for each in node.keywords:
                if each.arg == "size_max" and isinstance(each.value, ast.Constant) and each.value.value is None:
                    yield node.lineno, f"{ast.unparse(node.func)} reads an object of any size: give a limit"


# ---- rules for every file ----


def failure_rows_exist(source: Source) -> Iterator[Finding]:
    if source.path.endswith((".py", ".md")):
        for line, text in source.lines():
            for row in re.findall(r"\bF(\d+)\b", text.split("# noqa")[0]):
                if not 1 <= int(row) <= FAILURE_ROWS:
                    yield line, f"F{row} is not a row of failures.md (F1 to F{FAILURE_ROWS})"


def nothing_is_left_unfinished(source: Source) -> Iterator[Finding]:
    if source.path.endswith(".py"):
        for line, text in source.lines():
            for found in UNFINISHED.findall(text):
                yield line, f"says {found}: finish it, or open an issue"


def no_registry_is_named(source: Source) -> Iterator[Finding]:
    for line, text in source.lines():
        for found in REGISTRY.findall(text):
            yield line, f"names the registry {found}: where packages come from is the machine's business"


def no_machine_path_is_named(source: Source) -> Iterator[Finding]:
    for line, text in source.lines():
        for found in MACHINE_PATH.findall(text):
            yield line, f"names {found}, a path of one machine"


def relative_links_resolve(source: Source) -> Iterator[Finding]:
    if not source.path.endswith(".md"):
        return
    fenced = False
    for line, text in source.lines():
        fenced ^= text.lstrip().startswith("```")
        for target in [] if fenced else re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
            path = target.split("#")[0]
            if path and not re.match(r"[a-z]+:", path) and not (ROOT / source.path).parent.joinpath(path).exists():
                yield line, f"links to {target}, which is not there"


# ---- reading trees ----


def _imports(source: Source) -> Iterator[tuple[int, str]]:
    """Every module or name that is imported anywhere in the file, in dotted form."""
    package = source.module.split(".")
    if not source.path.endswith("/__init__.py"):
        package.pop()
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def _is_or_below(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and "__all__" in _bound([node]):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def _bound(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The names that statements bind at module level, `if` and `try` included."""
    names: dict[str, ast.stmt] = {}
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names[node.name] = node
            case ast.Import() | ast.ImportFrom():
                names |= {(alias.asname or alias.name.split(".")[0]): node for alias in node.names}
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                parts = [part for target in targets for part in ast.walk(target)]
                names |= {part.id: node for part in parts if isinstance(part, ast.Name)}
            case ast.If():
                names |= _bound(node.body) | _bound(node.orelse)
            case ast.Try():
                names |= _bound(node.body) | _bound([stmt for handler in node.handlers for stmt in handler.body])
    return names


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _undocumented(body: list[ast.stmt], prefix: str, inherited: frozenset[str] = frozenset()) -> Iterator[Finding]:
    for node in body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        if any(name.endswith(("overload", ".setter", "override")) for name in decorators) or node.name in inherited:
            continue
        if not ast.get_docstring(node):
            yield node.lineno, f"{prefix}{node.name} has no docstring"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body, f"{prefix}{node.name}.", _inherited(node))


def _inherited(node: ast.ClassDef) -> frozenset[str]:
    """The methods of the classes of the package that it derives from, and of the protocols that it may implement."""
    names: set[str] = set() if "Protocol" in _bases(node) else {*_protocol_methods()}
    waiting, met = [*_bases(node)], set()
    while waiting:
        base = waiting.pop()
        for one in _classes().get(base, []) if base not in met else []:
            names |= {part.name for part in one.body if isinstance(part, Function)}
            waiting += _bases(one)
        met.add(base)
    return frozenset(names)


@cache
def _protocol_methods() -> frozenset[str]:
    """The documented methods of the package's protocols; the classes that implement one need not name it."""
    protocols = [one for each in _classes().values() for one in each if "Protocol" in _bases(one)]
    methods = [part for one in protocols for part in one.body if isinstance(part, Function)]
    return frozenset(method.name for method in methods if ast.get_docstring(method))


def _bases(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        yield ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]


@cache
def _classes() -> dict[str, list[ast.ClassDef]]:
    """The classes of the package by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for source in _package():
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


# ---- the files ----


@cache
def _files() -> tuple[Source, ...]:
    """Every text file of the tree that .gitignore does not leave out (a fresh machine may have no git to ask)."""
    patterns = [".git", *(ROOT / ".gitignore").read_text().split()]
    found = []
    for path in sorted(_walk(ROOT, patterns)):
        try:
            found.append(Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return tuple(found)


def _package() -> list[Source]:
    return [source for source in _files() if re.match(r"(src/limpet|sim)/.*\.py$", source.path)]


def _walk(folder: Path, patterns: list[str]) -> Iterator[Path]:
    for path in folder.iterdir():
        if any(_ignored(path, pattern) for pattern in patterns) or path.is_symlink():
            continue
        if path.is_dir():
            yield from _walk(path, patterns)
        else:
            yield path


def _ignored(path: Path, pattern: str) -> bool:
    if pattern.startswith("/"):
        return path == ROOT / pattern.strip("/")
    return fnmatch.fnmatch(path.name, pattern.strip("/"))


Rule = Callable[[Source], Iterator[Finding]]


@dataclass(frozen=True)
class Case:
    """A rule, code that breaks it once, and where that code pretends to be."""

    rule: Rule
    bad: str
    path: str = "src/limpet/cli/bad.py"


PACKAGE_RULES = [
    Case(functions_are_small, "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    Case(time_and_chance_come_from_runtime, "from time import sleep"),
    Case(time_and_chance_come_from_runtime, "from concurrent import futures"),
    Case(time_and_chance_come_from_runtime, "def f():\n    import threading"),
    Case(time_and_chance_come_from_runtime, "import time", "sim/bad.py"),
    Case(time_and_chance_come_from_runtime, "import random", "src/limpet/simple.py"),
    Case(time_and_chance_come_from_runtime, "at = datetime.datetime.now(UTC)"),
    Case(obstore_stays_in_the_cloud_store, "from obstore.store import S3Store", "src/limpet/kernel/store/directory.py"),
    Case(nobody_imports_the_simulation, "import sim"),
    Case(nobody_imports_the_simulation, "from sim.world import World"),
    Case(nobody_imports_the_simulation, "import sim.world", "src/limpet/__init__.py"),
    Case(module_has_docstring, "__all__ = []"),
    Case(packages_say_what_they_export, '"""Doc."""', "src/limpet/cli/__init__.py"),
    Case(packages_say_what_they_export, '__all__ = ["gone"]'),
    Case(
        packages_say_what_they_export, "from limpet.kernel.errors import Held\n__all__ = []", "src/limpet/__init__.py"
    ),
    Case(public_names_are_documented, "class C:\n    '''Doc.'''\n    def f(self): ..."),
    Case(public_names_are_documented, "async def f(): ..."),
    Case(
        public_names_are_documented, "class C(Store):\n    '''Doc.'''\n    def put(self): ...\n    def new(self): ..."
    ),
    Case(errors_are_caught_by_kind, "try: f()\nexcept (OSError, Exception): raise"),
    Case(errors_are_caught_by_kind, "try: f()\nexcept: raise"),
    Case(errors_are_caught_by_kind, "try: f()\nexcept Exception:  # noqa: BLE001\n    raise"),
    Case(errors_are_caught_by_kind, "with contextlib.suppress(Exception): f()"),
    Case(types_are_decoded_by_records, "msgspec.convert(value, kind)"),
    Case(types_are_decoded_by_records, "msgspec.json.decode(data, type=Head)"),
    Case(reads_have_a_limit, "store.get(key, size_max=None)"),
    Case(no_bytes_become_code, "def f():\n    from pickle import loads"),
    Case(no_bytes_become_code, "value = eval(text)"),
]
FILE_RULES = [
    Case(failure_rows_exist, "# F8: fine\n# F" + "35: no such row"),
    Case(nothing_is_left_unfinished, "# TO" + "DO: later"),
    Case(no_registry_is_named, "index = 'https://" + ".".join(("pypi", "org")) + "/simple'", "setup.cfg"),
    Case(no_machine_path_is_named, "cd /" + "work/checkout", "docs/bad.md"),
    Case(relative_links_resolve, "[a](#here) [b](https://x.test/y) [c](nowhere.md#there)", "docs/bad.md"),
]


def _name(rule: Rule) -> str:
    return rule.__name__


def _rules(cases: list[Case]) -> list[Rule]:
    return list(dict.fromkeys(case.rule for case in cases))


def _enforce(rule: Rule, sources: Sequence[Source]) -> None:
    broken = [f"{source.path}:{line}: {what}" for source in sources for line, what in rule(source)]
    if broken:
        pytest.fail("\n".join(broken), pytrace=False)


@pytest.mark.parametrize("rule", _rules(PACKAGE_RULES), ids=_name)
def test_package(rule: Rule) -> None:
    assert len(_package()) > 5
    _enforce(rule, _package())


@pytest.mark.parametrize("rule", _rules(FILE_RULES), ids=_name)
def test_files(rule: Rule) -> None:
    _enforce(rule, _files())


@pytest.mark.parametrize("case", PACKAGE_RULES + FILE_RULES, ids=lambda case: _name(case.rule))
def test_rule_finds_what_it_forbids(case: Case) -> None:
    found = [*case.rule(Source(case.path, case.bad))]
    assert len(found) == 1, found


def test_every_rule_is_run() -> None:
    rules = {case.rule.__name__ for case in PACKAGE_RULES + FILE_RULES}
    defined = {name for name, value in globals().items() if _takes_source(value)}
    assert rules == defined


def _takes_source(value: object) -> bool:
    notes = getattr(value, "__annotations__", {})
    return [*notes] == ["source", "return"] and notes["return"] == "Iterator[Finding]"


# ---- rules for the package as a whole; what breaks them today is in support/known.py ----


SMALL_LINES = 80
INTERFACES = ("Store", "BaseStore", "Queue", "BaseQueue", "Format")
"""What a backend derives from."""

STANDARD = frozenset(
    """
    location properties spec statistics update uuid
    absent acceptor actor admin admission adopter always answer api app applied applier arguments backlog backoff bad
    bill blob blocked body bucket budget buffer bulk call caller candidate catalog change check checked child chunk
    claiming classifier client codec collected collision column command compiled compiler conflict connection connector
    constraints content context corrupt cost count counter create cron csv current cycle decoder delivery denied
    disconnected discovery disk document done draft dropped edge empty encoder ended engine error executions exists
    exported fail failed failure fenced field file filter finding flag flaw fold folder form forward found function
    gathered gauge go grant granted group handle header held histogram history hook import index indexed inode input
    inspected inspection internal invalid io job json jsonl killed kind latency layout ledger level limiter limits link
    list listed load loaded log loop lost machine manifest map mark match member merged message metadata metrics missing
    model modified move mutex name namespace newer note notice operation option order output parquet peeked permits pin
    pinned pipe place plan planned policy prepared process progress protocol publication publish published publisher
    pull purge push pushed pusher pushing put quarantined queue rate read reader ready reason recent reconnected ref
    refusal refused rejected renewable renewer repairs replaced report request resolution resolver response rest retried
    route row run runner running sample schedule schema scope screen search sender sent sequence shape shell signer sink
    slow source stat state step stop storage styled sum summary sweeper table tail take taken temp template term threads
    times type typed unavailable unclear unknown unreachable unread unreadable unsupported user usv verified verifier
    versioned view violation wait waiting warehouse warning watch watched won work world write writer written
    """.split()  # noqa: SIM905 (as a list it would have a line for each word)
)
"""Ordinary words of the trade, which need no entry in the glossary. A word that a reader must look up is not one."""


def class_names_are_unique() -> Iterator[str]:
    """By name: no two classes of the package share one."""
    for name, nodes in _classes().items():
        if len(nodes) > 1:
            yield name


def small_modules_have_two_users() -> Iterator[str]:
    """By module: one of under 80 lines that one other module imports belongs into that one."""
    modules = {source.module: source for source in _package()}
    users: dict[str, set[str]] = {}
    for source in modules.values():
        for _, name in _imports(source):
            module = name if name in modules else name.rpartition(".")[0]
            users.setdefault(module, set()).add(source.module)
    for module, source in modules.items():
        last = module.rpartition(".")[2]
        if last == "decide" or source.path.endswith("__.py") or source.text.count("\n") >= SMALL_LINES:
            continue
        classes = [node for node in source.tree.body if isinstance(node, ast.ClassDef)]
        is_backend = any(base in INTERFACES for node in classes for base in _bases(node))
        if not is_backend and len(users.get(module, set()) - {module}) == 1:
            yield module


def class_names_are_plain() -> Iterator[str]:
    """By class: its last word is in docs/inside/glossary.md, or is a standard term."""
    known = {_singular(word) for term in _glossary() for word in term.split()} | {*map(_singular, STANDARD)}
    for name in _classes():
        *_, last = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
        if _singular(last.lower()) not in known:
            yield name


def glossary_is_used() -> Iterator[str]:
    """By term: code or pages use it, the glossary aside."""
    aside = ("docs/inside/glossary.md", "tests/support/known.py")
    used = [each for each in _files() if each.path.endswith((".py", ".md")) and each.path not in aside]
    text = "\n".join(source.text.lower() for source in used)
    for term in _glossary():
        if not re.search(rf"\b{re.escape(term)}", text):
            yield term


def cited_documents_exist() -> Iterator[str]:
    """By document: what a comment or docstring cites is in the repository."""
    there = {part for source in _files() for part in (source.path, source.path.rpartition("/")[2])}
    for source in _files():
        if source.path.endswith(".py"):
            yield from _cited(source) - there


def _cited(source: Source) -> set[str]:
    if not re.search(r"\.md\b|ounterexample|seed 00", source.text):
        return set()
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    said = [token.string for token in tokens if token.type == tokenize.COMMENT]
    for node in source.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            said.append(ast.get_docstring(node) or "")
    text = "\n".join(said)
    cited = set(re.findall(r"(?<![\w./-])(?:[\w.-]+/)*[A-Za-z0-9_-]+\.md\b|\bseed 00\d\b", text))
    if re.search(r"\b[Cc]ounterexamples? \d", text):
        cited.add("failures.md")
    return cited


def _glossary() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "inside" / "glossary.md").read_text(), re.M)
    return [term.strip().lower() for row in rows for term in re.split(r"[,/]", row) if term.strip() != "word"]


def _singular(word: str) -> str:
    for ending, single in (("ies", "y"), ("ches", "ch"), ("s", "")):
        if word.endswith(ending) and not word.endswith("ss"):
            return word.removesuffix(ending) + single
    return word


TREE_RULES: list[Callable[[], Iterator[str]]] = [
    class_names_are_unique,
    small_modules_have_two_users,
    class_names_are_plain,
    glossary_is_used,
    cited_documents_exist,
]


@pytest.mark.parametrize("rule", TREE_RULES, ids=lambda rule: rule.__name__)
def test_tree(rule: Callable[[], Iterator[str]]) -> None:
    """Nothing breaks the rule but what did so when it was made; that list only shrinks."""
    found, known = {*rule()}, KNOWN[rule.__name__]
    new, mended = sorted(found - known), sorted(known - found)
    if new:
        pytest.fail(f"{rule.__doc__}\nbroken by: {', '.join(new)}", pytrace=False)
    if mended:
        pytest.fail(f"no longer broken; take it out of tests/support/known.py: {', '.join(mended)}", pytrace=False)


CONCEPTS: dict[str, tuple[str, set[str]]] = {
    "counting the tasks of a queue": (
        r"^def (?:count_queues|summarize)\(|^class FailedReceipts\b",
        {"queue/count.py", "queue/summary.py"},
    ),
    "whether a lease is live": (r"^def is_live\(", {"kernel/lease/decide.py"}),
    "resolving an outcome by reading back": (r"^def put_resolved\(|^class Verdict\b", {"kernel/store/outcome.py"}),
    "renewing leases in a thread": (
        r"^class Renewer\b|renew_interval_s\(",
        {"kernel/lease/renewer.py", "kernel/lease/decide.py"},
    ),
    "how often an idle worker looks": (r"^class (?:Poll\w+|LookSchedule)\b", {"queue/look.py"}),
    "processes that are started and watched": (r"\bPopen\(", {"worker/command.py", "worker/pool.py"}),
    "trying again": (r"^def (?:attempts|backoff_s|polls|ticks)\(", {"kernel/waiting.py"}),
    "what time it is": (r"def elapsed_s\(", {"kernel/runtime.py", "sim/world.py", "testing/clock.py"}),
    "forwarding to another store": (r"self\.inner\.get\(", {"kernel/store/api.py"}),
}
"""By concept: how it would be written again, and where it is."""


@pytest.mark.parametrize("concept", CONCEPTS)
def test_each_concept_has_one_implementation(concept: str) -> None:
    pattern, places = CONCEPTS[concept]
    found = {source.path.removeprefix("src/limpet/") for source in _package() if re.search(pattern, source.text, re.M)}
    assert found == places, "use what is there; or say here why there are two"


def test_import_limpet_loads_no_extra() -> None:
    code = f"import sys, limpet; print(*sorted({set(EXTRAS)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], "`import limpet` loads what only a cloud URL or an extra may need"

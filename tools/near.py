"""Find and run the tests nearest to a change: `make near FILE=src/limpet/queue/decide.py`.

    .venv/bin/python tools/near.py FILE... [--list] [--all]

Near to a module are, in this order: the tests that CONTRIBUTING.md names for it; those of its name in the folder of
its name (`queue/decide.py`: `tests/queue/test_*decide*.py`); those that name the module, most often first; and the
planted bugs that change it. If there are none of the first three, the folder, or what names its package. Near to any
other file are the tests that name it, and to a page those of all pages. `--list` runs nothing; `--all` takes more than
the first 8 that only name the module.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

__all__ = ["main", "near", "planted_in"]

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PACKAGE = ROOT / "src" / "limpet"
MANY = 8


def near(file: Path, *, many: int | None = MANY) -> list[str]:
    """The files and folders of tests nearest to a file of the project, nearest first."""
    file = file.resolve()
    if file.is_relative_to(TESTS):
        return [_shown(file)] if file.name.startswith("test_") else _naming([file.stem], TESTS, many)
    found = _in_the_table(_shown(file)) + (["tests/test_docs.py"] if file.suffix == ".md" else [])
    if not file.is_relative_to(PACKAGE):
        return [*dict.fromkeys([*found, *_naming([_shown(file), file.name], TESTS, many)])]
    inside = file.relative_to(PACKAGE).with_suffix("")
    parts = [part for part in inside.parts if part != "__init__"]
    parts = parts[parts[:1] == ["kernel"] :]  # the tests of its rooms lie in folders of their own
    folder = next(path for path in (TESTS.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)) if path.is_dir())
    if parts:
        named = [*folder.glob(f"test_*{parts[-1]}*.py"), *TESTS.glob(f"test_{parts[-1]}.py")]
        found += [_shown(path) for path in sorted(named)]
    if file.suffix == ".py" and parts:
        module = ".".join(["limpet", *inside.parts]).removesuffix(".__init__")
        above = module.rpartition(".")[0]
        found += _naming([module, rf"from {above} import [^\n]*\b{parts[-1]}"], TESTS, many)
        if not found and folder == TESTS:
            found = _naming([above], TESTS, many)
    return [*dict.fromkeys(found)] or [_shown(folder)]


def planted_in(file: Path) -> list[str]:
    """The planted bugs that change a module, as tests."""
    module = ".".join(file.resolve().relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    return [f"tests/planted/test_planted.py::test_caught[{name}]" for name, modules in _planted() if module in modules]


@cache
def _planted() -> list[tuple[str, Collection[str]]]:
    """Each planted bug, and the modules that it changes."""
    sys.path[:0] = [str(TESTS)]
    from planted.bug import AnchorError, planted
    from planted.bugs import BUGS

    changed: list[tuple[str, Collection[str]]] = []
    for bug in BUGS.values():
        try:
            changed.append((bug.name, planted(bug).keys()))
        except AnchorError as error:
            print(f"note: {str(error).splitlines()[0]}", file=sys.stderr)
    return changed


def _in_the_table(name: str) -> list[str]:
    """The tests that the table of CONTRIBUTING.md names beside a file, or beside its folder."""
    found: list[str] = []
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines():
        cells = line.split("|")
        if len(cells) == 5:
            edited = re.findall(r"`((?:src|tools)/[\w./]+)`", cells[2])
            if any(name == each or name.startswith(f"{each}/") for each in edited):
                found += [path for path in re.findall(r"`(tests/[\w./]+\.py)`", cells[3]) if (ROOT / path).exists()]
    return found


def _naming(names: Sequence[str], folder: Path, many: int | None) -> list[str]:
    """The test files in which one of the names stands, those with most of them first."""
    # A pattern that begins with text is found much faster than one that begins with a boundary of words.
    wanted = [re.compile(rf"{name if name.startswith('from ') else re.escape(name)}\b") for name in names]
    counts = {path: sum(_count(each, text) for each in wanted) for path, text in _texts(folder).items()}
    found = [_shown(path) for path in sorted(counts, key=lambda path: -counts[path]) if counts[path]]
    return found if many is None else found[:many]


def _count(pattern: re.Pattern[str], text: str) -> int:
    starts = (match.start() for match in pattern.finditer(text))
    return sum(1 for start in starts if not re.match(r"\w", text[start - 1 : start]))


@cache
def _texts(folder: Path) -> Mapping[Path, str]:
    return {path: path.read_text() for path in sorted(folder.rglob("test_*.py"))}


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def main(arguments: Sequence[str]) -> int:
    """Run the tests; the exit code of pytest."""
    parser = argparse.ArgumentParser(description="Run the tests nearest to a change.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--all", action="store_true", help="all tests that name the module")
    chosen = parser.parse_args(arguments)
    tests: list[str] = []
    bugs: list[str] = []
    for file in chosen.files:
        if not file.exists() or not file.resolve().is_relative_to(ROOT):
            parser.error(f"there is no file {file} in this project")
        tests += near(file, many=None if chosen.all else MANY)
        if file.resolve().is_relative_to(PACKAGE) and file.suffix == ".py":
            bugs += planted_in(file)
    wanted = [*dict.fromkeys([*tests, *bugs])]
    print(*wanted, sep="\n", flush=True)
    if chosen.list or not wanted:
        return 0
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "not full", *wanted]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

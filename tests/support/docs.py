"""Code blocks of the pages: finding them, running them, and leaving nothing behind.

What the language of a block says:

- `python`: all blocks of a page run as one program; `print(...)  # text` must print that text. One whose first line is
  `# name.py` is also that file, for the page's shell; a `# test_name.py` is only that.
- `sh`: all blocks of a page run as one script; lines of `make` and `pip` are left out. `command  #=> text` must print
  that text, whatever the spaces in it.
- `bash`: the same, but each page says how it is run; only first-fleet.md has one.
- `py`: somebody else's system. It must compile.
- Anything else (`console`, `text`, `ini`, ...) is only read.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

__all__ = [
    "PAGES",
    "ROOT",
    "blocks",
    "plain",
    "printed",
    "program",
    "run_python",
    "run_shell",
    "said",
    "write_files",
    "write_packages",
]

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

PATIENCE_S = 100.0
LAST_S = 15.0

_FILE = re.compile(r"# (\w+\.py)\n")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"print\(.*\)  # (.+)$", re.MULTILINE)
_SAID = re.compile(r" #=> (.+)$", re.MULTILINE)


def blocks(page: Path, kind: str) -> list[str]:
    """The blocks of a page in one language."""
    return [body for found, body in _BLOCK.findall(page.read_text()) if found == kind]


def program(page: Path) -> str:
    """The Python of a page."""
    return "\n".join(body for body in blocks(page, "python") if not body.startswith("# test_"))


def write_files(page: Path, home: Path) -> None:
    """Write the blocks of a page that are files."""
    for body in blocks(page, "python"):
        if named := _FILE.match(body):
            (home / named[1]).write_text(body)


def write_packages(home: Path) -> None:
    """Write the Python of all pages, one package for each page, for type checkers: its program, and its files."""
    for page in PAGES:
        bodies = blocks(page, "python")
        if not bodies:
            continue
        package = "page_" + re.sub(r"\W", "_", page.stem.lower())
        files = {named[1]: body for body in bodies if (named := _FILE.match(body))}
        stems = "|".join(name.removesuffix(".py") for name in files)
        (home / package).mkdir()
        for name, code in {**files, "__init__.py": "", "page_program.py": program(page)}.items():
            if files:
                code = re.sub(rf"^(from|import) ({stems})\b", rf"\1 {package}.\2", code, flags=re.MULTILINE)
            (home / package / name).write_text(code)


def printed(code: str) -> list[str]:
    """What a Python program must print, by its comments."""
    return _PRINTED.findall(code)


def said(script: str) -> list[str]:
    """What a shell script must say, by its comments."""
    return [plain(text) for text in _SAID.findall(script)]


def plain(text: str) -> str:
    """The text with single spaces."""
    return " ".join(text.split())


def run_python(code: str, home: Path, env: Mapping[str, str]) -> str:
    """Run a program in `home`; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env=_environment(home, env),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_shell(script: str, home: Path, env: Mapping[str, str]) -> str:
    """Run a script in `home`, and wait until all that it started has ended; what they said, on stdout and stderr.

    They are in one session, so that whoever is left can be found, and is ended by its id.
    """
    with tempfile.TemporaryFile("w+") as output:
        shell = subprocess.Popen(
            ["bash", "-euc", script],
            cwd=home,
            env=_environment(home, env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(PATIENCE_S)
            left = _left_after(shell.pid, LAST_S)
        finally:
            shell.kill()
            shell.wait()
            for pid in _session(shell.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            output.seek(0)
            text = output.read()
            print(text)  # pytest shows it when the test fails
    assert code == 0, text
    assert not left, f"still running: {left}\n{text}"
    return text


def _environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LIMPET_", "AWS_"))}
    return {**clean, "PATH": path, "HOME": str(home), "NO_COLOR": "1", **more}


def _left_after(session: int, seconds: float) -> list[int]:
    until_s = time.monotonic() + seconds
    while (left := _session(session)) and time.monotonic() < until_s:
        time.sleep(0.05)
    return left


def _session(session: int) -> list[int]:
    """The processes of a session that run."""
    found = subprocess.run(["ps", "-A", "-o", "pid=,sess=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in found.splitlines()]
    return [int(pid) for pid, of, state in rows if of == str(session) and not state.startswith("Z")]

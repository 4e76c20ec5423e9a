"""Every code block of the README and the docs runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMENTED = re.compile(r"print\(.*\)  # (.+)$", re.MULTILINE)


def _blocks(page: Path, kind: str) -> list[str]:
    return [body for found, body in BLOCK.findall(page.read_text()) if found == kind]


def _environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(home), "NO_COLOR": "1"}


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_run_and_print_what_they_say(page: Path, tmp_path: Path) -> None:
    code = "\n".join(_blocks(page, "python"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for said in COMMENTED.findall(code):
        if "rises each time" not in said:
            assert said in done.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "sh")], ids=lambda page: page.name)
def test_shell_blocks_run(page: Path, tmp_path: Path) -> None:
    lines = [
        line for body in _blocks(page, "sh") for line in body.splitlines() if not line.startswith(("make ", "pip "))
    ]
    if not lines:
        for body in _blocks(page, "sh"):
            for target in re.findall(r"^make (\w[\w-]*)", body, re.MULTILINE):
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
        return
    done = subprocess.run(
        ["bash", "-euc", "\n".join(lines)],
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

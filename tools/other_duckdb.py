"""Run the tests of SQL with a DuckDB of the other major version that `limpet[sql]` accepts.

    .venv/bin/python tools/other_duckdb.py

It is installed beside `.venv`, in `.cache/duckdb`, and found first. `constraints.txt` has the newest version for which
the Iceberg extension is a package, since the tests of clients need that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
MAJORS = {"1": "duckdb>=1.5.5,<2", "2": "duckdb>=2,<3"}
TESTS = (
    "tests/index/test_index_sql.py",
    "tests/index/test_index_duck.py",
    "tests/app/test_query.py",
    "tests/cli/test_cli_sql.py",
    "tests/cli/test_cli_index_sql.py",
    "tests/ui/test_ui_pages.py",
    "tests/ui/test_ui_guards.py",
)


def main() -> int:
    """The exit code of the tests."""
    [major] = {*MAJORS} - {version("duckdb").partition(".")[0]}
    folder = ROOT / ".cache" / "duckdb" / major
    if not (folder / "duckdb").is_dir():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), MAJORS[major]]
        subprocess.run(install, check=True)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
    }
    show = "import duckdb; print('DuckDB', duckdb.__version__)"
    subprocess.run([sys.executable, "-c", show], env=env, check=True)
    tests = [sys.executable, "-m", "pytest", "-p", "no:xdist", *TESTS]
    return subprocess.run(tests, env=env, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

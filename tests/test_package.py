"""Wheel and sdist: what is in them, and that they work in a fresh environment, the core alone too."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import limpet

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "reference" / "install.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SIZE_MAX = 1_100_000
PACKAGES = 9
TOOLS = {"limpet", "pip", "setuptools", "wheel"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [sdist] = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_has_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel, _ = built
    names = zipfile.ZipFile(wheel).namelist()
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    info = f"limpet-{limpet.__version__}.dist-info"
    assert {name for name in names if name.endswith(".py")} == sources
    assert "limpet/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"limpet", info}
    assert any(name.endswith("LICENSE") for name in names)
    assert wheel.stat().st_size < SIZE_MAX


def test_the_sdist_can_be_built_again(built: tuple[Path, Path]) -> None:
    _, sdist = built
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/limpet/__init__.py", "src/limpet/py.typed"} <= names
    assert sdist.stat().st_size < SIZE_MAX


def test_the_page_states_the_dependencies() -> None:
    for needed in PROJECT["dependencies"]:
        assert f"`{re.split('[<>=]', needed)[0]}`" in PAGE


def test_the_extras_that_hints_and_pages_name_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    named = re.findall(r"limpet\[([\w,]+)\]", "".join(page.read_text() for page in pages))
    extras = PROJECT["optional-dependencies"]
    assert {"aws", "sqs", "sql", "catalog"} <= {extra for each in named for extra in each.split(",")} <= {*extras}
    assert extras["sqs"] == ["limpet[aws]"], "the same: boto3"


def _packages(python: Path) -> set[str]:
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    names = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in listed.stdout.splitlines()}
    return names - TOOLS


@pytest.mark.full
@pytest.mark.parametrize(("which", "click"), [(0, "click"), (0, "click==8.2.0"), (1, "click")])
def test_it_works_in_a_fresh_environment(built: tuple[Path, Path], tmp_path: Path, which: int, click: str) -> None:
    """The core alone, from the wheel and from the sdist."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
    if click == "click":
        pip += ["-c", ROOT / "constraints.txt"]
    done = subprocess.run([*pip, built[which], click], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = _packages(python)
    assert len(found) == PACKAGES, sorted(found)
    assert {name for name in found if f"`{name}`" not in PAGE} == set()
    (tmp_path / "app.py").write_text((ROOT / "deploy" / "app.py").read_text())
    script = (
        "limpet --version\n"
        """limpet queue push shout '{"word": "hello"}' --id first\n"""
        "limpet work app:fleet --until-empty --quiet\n"
        "limpet queue show shout first\n"
        "limpet index create sites --field domain:string --key domain\n"
        """limpet index put sites '{"domain": "a.com"}' && limpet index get sites a.com\n"""
        "limpet index sql 'select 1' && exit 1 || true\n"
    )
    env = {"PATH": f"{python.parent}:/usr/bin:/bin", "LIMPET_URL": str(tmp_path / "fleet"), "HOME": str(tmp_path)}
    said = subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    assert '"HELLO!"' in said.stdout
    assert "limpet[sql]" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.full
@pytest.mark.timeout(900)
def test_sql_works_with_the_other_major_version_of_duckdb() -> None:
    done = subprocess.run(
        [sys.executable, "tools/other_duckdb.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

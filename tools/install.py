"""Set up `.venv` and the Debian packages that a make target needs. Standard library only: it runs before the install.

    python3 tools/install.py core | demo | docs | dev | test | test-full | bench | screenshots

A second run costs nothing: a stamp in `.venv` holds the digest of what was installed from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PACKAGES", "Package", "install_npm", "install_packages", "install_venv", "main"]

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
JAVASCRIPT = ROOT / "tests" / "index" / "js"
INPUTS = ("pyproject.toml", "constraints.txt", "tools/install.py")
EXTRAS = {
    "core": "",
    "demo": "[sql]",
    "docs": "[docs]",
    "dev": "[dev]",
    "test": "[dev]",
    "test-full": "[dev,spark]",
    "bench": "[dev,bench]",
    "screenshots": "[dev]",
}
ALONE = {
    EXTRAS["bench"]: ("boringcatalog==0.4.0",),
    EXTRAS["test-full"]: ("sagemaker-feature-store-pyspark==2.2.2",),
}
"""What is installed without its dependencies: they would want other versions than ours, and are not used."""
POSTGRES_BIN = "/usr/lib/postgresql/*/bin"


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package, the command that shows it is there, and what is skipped without it."""

    name: str
    command: str
    skipped: str


_TEST = (
    Package("procps", "pgrep", "the README's quickstart"),
    Package("systemd", "systemd-analyze", "the units of deploy/systemd"),
    Package("chromium", "chromium", "the dashboard in a browser (tests/browser)"),
    Package("tmux", "tmux", "limpet top, in a terminal"),
    Package("zsh", "zsh", "completion in zsh"),
    Package("fish", "fish", "completion in fish"),
    Package("npm", "npm", "the reader of data packages in JavaScript"),
)
PACKAGES: dict[str, tuple[Package, ...]] = {
    "test": _TEST,
    "test-full": (
        *_TEST,
        Package("radosgw", "radosgw", "conformance on Ceph RGW"),
        Package("ceph-mon", "ceph-mon", "conformance on Ceph RGW"),
        Package("ceph-osd", "ceph-osd", "conformance on Ceph RGW"),
        Package("default-jre-headless", "java", "the catalog's clients: Spark"),
        Package("prometheus", "promtool", "alert rules and metrics, checked by promtool"),
    ),
    "bench": (
        Package("redis-server", "redis-server", "Dramatiq in bench/queue.py"),
        Package("postgresql", "initdb", "Postgres and Procrastinate in bench/queue.py, DBOS in bench/durable.py"),
        Package("strace", "strace", "files opened, in bench/index.py"),
    ),
    "screenshots": (Package("chromium", "chromium", "the screenshots"),),
}


def install_venv(extras: str, venv: Path = VENV, base: str = sys.executable) -> None:
    """Make `venv`, of the Python `base`, hold limpet, editable, with `extras`, at the versions of constraints.txt."""
    python = venv / "bin" / "python"
    stamp = venv / f".installed-{extras.strip('[]') or 'core'}"
    wanted = _digest()
    part_of_dev = extras in (EXTRAS["core"], EXTRAS["demo"], EXTRAS["docs"])
    stamps = [stamp, venv / ".installed-dev"] if part_of_dev else [stamp]
    if any(_read(path) == wanted for path in stamps) and _works(python):
        return
    if not _works(python):
        print(f"creating {venv.name} with {base}", flush=True)
        _run([base, "-m", "venv", "--clear", str(venv)])
    print(f"installing limpet{extras} into {venv.name}", flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-qq", "--no-compile"]
    # The pip that comes with Python 3.11 takes three times as long to choose versions.
    _run([*pip, "-c", "constraints.txt", "--upgrade", "pip"])
    _run([*pip, "-c", "constraints.txt", "-e", f".{extras}"])
    if extras in ALONE:
        _run([*pip, "--no-deps", *ALONE[extras]])
    stamp.write_text(wanted)


def install_packages(packages: Sequence[Package]) -> None:
    """Install the Debian packages that are missing, if root; else name each, and what is skipped without it."""
    missing = [package for package in packages if not _found(package.command)]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        names = [package.name for package in missing]
        print(f"installing Debian packages: {' '.join(names)}", flush=True)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names]
        if _try(install) != 0:  # a fresh machine has no package lists yet
            _try(["apt-get", "update", "-qq"])
            _try(install)
        missing = [package for package in missing if not _found(package.command)]
    for package in missing:
        print(f"missing Debian package {package.name}: skipped without it: {package.skipped}", flush=True)


def install_npm() -> None:
    """Install what tests run in JavaScript, at the versions of its lock file, into `.venv/js`."""
    lock = (JAVASCRIPT / "package-lock.json").read_text()
    stamp = VENV / "js" / ".installed"
    if _read(stamp) == lock:
        return
    if not _found("npm"):
        print("missing npm: skipped without it: the reader of data packages in JavaScript", flush=True)
        return
    shutil.copytree(JAVASCRIPT, VENV / "js", dirs_exist_ok=True)
    options = ["--prefix", str(VENV / "js"), "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    if _try(["npm", "ci", *options]) == 0:
        stamp.write_text(lock)
    else:
        print("npm failed: skipped without it: the reader of data packages in JavaScript", flush=True)


def _found(command: str) -> bool:
    return shutil.which(command) is not None or any(Path("/").glob(f"{POSTGRES_BIN[1:]}/{command}"))


def _digest() -> str:
    digest = hashlib.sha256(f"{ROOT}\n".encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _works(python: Path) -> bool:
    return python.exists() and _try([str(python), "-c", ""]) == 0


def _try(command: list[str]) -> int:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL).returncode


def _run(command: list[str]) -> None:
    code = _try(command)
    if code != 0:
        sys.exit(f"install failed ({code}): {' '.join(command)}")


def main(target: str) -> None:
    """Install for one target."""
    install_venv(EXTRAS[target])
    install_packages(PACKAGES.get(target, ()))
    if EXTRAS[target].startswith("[dev"):
        install_npm()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in EXTRAS:
        sys.exit(f"usage: install.py {' | '.join(EXTRAS)}")
    main(sys.argv[1])

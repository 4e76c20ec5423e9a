"""Run the unit, queue, index and catalog tests on other Pythons: those of this machine, and Debian's.

    python3 tools/pythons.py                       each of 3.11 to 3.14 that is here, but not the one of .venv
    python3 tools/pythons.py 3.12 3.13             these
    python3 tools/pythons.py --debian trixie sid   Debian's own, each in a folder that debootstrap makes; for root

An interpreter is on the PATH or one of pyenv's. Each gets an environment in .cache/pythons, installed once. A folder
of Debian is in .cache/debian, made once, from the mirror that this machine's apt uses. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from install import PYTHON, install_venv

__all__ = ["TESTS", "VERSIONS", "interpreter", "main", "mirror"]

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TESTS = (
    *(f"tests/{name}" for name in ("cell", "lease", "store", "queue", "index", "catalog", "app", "golden")),
    *(f"tests/test_{name}.py" for name in ("records", "runtime", "keys", "stored", "testing")),
    "tests/clients/test_clients_import.py",
    "tests/service/test_service_libraries.py",
)
PYTEST = ("-m", "pytest", "-n", "2", "--dist", "worksteal", "-r", "fE", "-m", "not full")
PACKAGES = ("ca-certificates", "git", "make", "openssl", "procps", "python3", "python3-venv")
SETTINGS = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")
NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt")


def interpreter(version: str) -> Path | None:
    """A Python of that version on this machine, with what an environment needs."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python3"), reverse=True)
    check = f"import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
    for python in [*([Path(on_path)] if on_path else []), *of_pyenv]:
        if subprocess.run([python, "-c", check], capture_output=True).returncode == 0:
            return python
    return None


def mirror() -> str:
    """The mirror of Debian that this machine's apt uses; empty if there is none."""
    for path in sorted([Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]):
        if path.is_file():
            found = re.search(r"^(?:URIs:|deb(?: \[[^]]*\])?) *(https?://\S+/debian)/?(?:\s|$)", path.read_text(), re.M)
            if found:
                return found[1]
    return ""


def _tested(name: str, python: Path, tests: Sequence[str]) -> bool:
    """Run the tests with one Python; whether they passed."""
    print(f"\n== {name}", flush=True)
    venv = CACHE / "pythons" / name
    try:
        install_venv("[dev]", venv, str(python))
    except SystemExit as failed:
        print(failed, flush=True)
        return False
    return _ran([str(venv / "bin" / "python"), *PYTEST, *tests])


def _tested_on_debian(suite: str, tests: Sequence[str]) -> bool:
    """Run the tests in a folder with that Debian; whether they passed."""
    print(f"\n== Debian {suite}", flush=True)
    folder = CACHE / "debian" / suite
    if not folder.exists():
        partial = folder.with_name(f"{suite}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        include = f"--include={','.join(PACKAGES)}"
        if not _ran(["debootstrap", "--variant=minbase", include, suite, str(partial), mirror()]):
            return False
        partial.rename(folder)
    for name in (*SETTINGS, *NETWORK):
        _copied(Path(name).expanduser(), folder)
    for kept_out in ("src", "tests", "tools", "docs"):  # files that are gone here
        shutil.rmtree(folder / "limpet" / kept_out, ignore_errors=True)
    for path in _checkout():
        target = folder / "limpet" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
    inside = [
        "cd /limpet",
        # these tests ask git which files are the project's
        "git init -q . && git add -A",
        "python3 tools/install.py dev",
        ".venv/bin/python --version",
        shlex.join([".venv/bin/python", *PYTEST, *tests]),
    ]
    at = shlex.quote(str(folder))
    script = f"mount --bind /proc {at}/proc && mount --rbind /dev {at}/dev && exec chroot {at} sh -c {{}}"
    # a mount namespace of its own: nothing stays mounted
    return _ran(["unshare", "--mount", "sh", "-c", script.format(shlex.quote(" && ".join(inside)))], inside=True)


def _copied(path: Path, folder: Path) -> None:
    """Copy a file of this machine to the same place in the folder, where a user's is root's."""
    if path.is_file():
        home = Path.home()
        place = Path("root") / path.relative_to(home) if path.is_relative_to(home) else path.relative_to("/")
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / place)


def _checkout() -> Iterator[str]:
    """The files of the project, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    yield from (name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file())


def _ran(command: Sequence[str], *, inside: bool = False) -> bool:
    print("$", shlex.join(command), flush=True)
    env = os.environ | {"PYTHONHASHSEED": "0"}
    if inside:
        env |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        env.pop("TMPDIR", None)
    return subprocess.run(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL).returncode == 0


def _version_of(python: Path) -> str:
    shown = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True)
    return shown.stdout.decode().strip()


def main(arguments: Sequence[str]) -> int:
    """Run the tests; 1 if some failed."""
    parser = argparse.ArgumentParser(description="Run tests on other Pythons.")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(VERSIONS)}")
    parser.add_argument("--debian", nargs="+", default=[], metavar="SUITE", help="Debian's Python, such as trixie, sid")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH", help="other tests than the usual ones")
    chosen = parser.parse_args(arguments)
    own = _version_of(PYTHON) if PYTHON.exists() else ""
    wanted = chosen.versions or ([] if chosen.debian else [version for version in VERSIONS if version != own])
    results: dict[str, str] = {}
    for version in wanted:
        python = interpreter(version)
        if python is None:
            results[f"Python {version}"] = "FAILED: not on this machine" if chosen.versions else "not on this machine"
        else:
            results[f"Python {version}"] = "passed" if _tested(version, python, chosen.tests) else "FAILED"
    for suite in chosen.debian:
        results[f"Debian {suite}"] = "passed" if _tested_on_debian(suite, chosen.tests) else "FAILED"
    print("\n" + "\n".join(f"{name:<16}{said}" for name, said in results.items()), flush=True)
    return 1 if any(said.startswith("FAILED") for said in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

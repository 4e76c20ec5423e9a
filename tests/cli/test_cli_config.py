"""`limpet.toml`, profiles, shell completion, `work --reload`."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import limpet
from cli.harness import COMMANDS, Here, Spawn, limpet_command, poll
from limpet.kernel.runtime import system
from limpet.worker.pool import SourceWatch

CONFIG = """
url = "./fleet"

[profiles.staging]
url = "other"
env = {STAGE = "yes", KEPT = "from the file"}

[workers.bulk]
target = "app:fleet"
queue = ["bulk"]
burst = true
json = true

[defaults.work]
threads = 3
burst = false

[defaults.queue.ls]
n = 2
"""
APP = """
import limpet
fleet = limpet.open()

@fleet.task()
def bulk(n: int): ...

@fleet.task()
def mail(n: int): ...
"""


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command sets in the environment of this process goes with the test."""
    for name in ("LIMPET_URL", "LIMPET_PROFILE", "LIMPET_CONFIG", "STAGE"):
        monkeypatch.setenv(name, "")


def test_the_file_names_the_fleet_and_defaults(here: Here, tmp_path: Path) -> None:
    queue = limpet.open(tmp_path / "fleet").queue("q")
    for n in range(5):
        queue.push({"n": n})
    (tmp_path / "limpet.toml").write_text(CONFIG)
    assert len(json.loads(here("queue", "ls", "q", "--json").out)) == 2
    assert len(json.loads(here("queue", "ls", "q", "--json", "-n", "4").out)) == 4


def test_what_is_typed_and_the_environment_count_more(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fleet", "other", "third", "fourth"):
        limpet.open(tmp_path / name).queue(f"in-{name}").push({})
    (tmp_path / "limpet.toml").write_text(CONFIG)
    assert "in-fleet" in here("status").out
    monkeypatch.setenv("LIMPET_URL", "")
    monkeypatch.setenv("KEPT", "from outside")
    assert "in-other" in here("--profile", "staging", "status").out
    assert (os.environ["STAGE"], os.environ["KEPT"]) == ("", "from outside")
    monkeypatch.setenv("LIMPET_URL", "")
    assert "in-other" in here("--profile=staging", "status").out
    monkeypatch.setenv("LIMPET_URL", "")
    monkeypatch.setenv("LIMPET_PROFILE", "staging")
    assert "in-other" in here("status").out
    monkeypatch.setenv("LIMPET_URL", "third")
    assert "in-third" in here("status").out
    assert "in-fourth" in here("status", "-u", "fourth").out


def test_a_relative_url_is_below_the_file(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limpet.open(tmp_path / "fleet").queue("q").push({})
    (tmp_path / "limpet.toml").write_text(CONFIG)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert here("status").code == 2, "only the current directory is looked at"
    monkeypatch.setenv("LIMPET_CONFIG", str(tmp_path / "limpet.toml"))
    assert here("status").code == 0


def test_a_worker_that_the_file_defines(tmp_path: Path) -> None:
    (tmp_path / "limpet.toml").write_text(CONFIG)
    (tmp_path / "app.py").write_text(APP)
    fleet = limpet.open(tmp_path / "fleet")
    for name in ("bulk", "mail"):
        fleet.queue(name).push({"n": 1})
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIMPET_")}
    done = subprocess.run(limpet_command("work", "bulk"), capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 1
    assert fleet.queue("mail").stats().pending == 1


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("url = ", "limpet.toml is not TOML: ", "correct it"),
        ("url = 3", "limpet.toml: url is not a text", "in quotes"),
        ("ulr = 'x'", "limpet.toml: nothing is called 'ulr'", "did you mean 'url'?"),
        ("defaults = 3", "limpet.toml: defaults is not a table", "write [defaults]"),
        ("[defaults.statsu]", "limpet.toml: nothing is called 'statsu' in [defaults]", "did you mean 'status'?"),
        ("[defaults.status]\nfulll = true", "limpet.toml: nothing is called 'fulll' in [defaults.status]", "'full'"),
        ("[defaults]\nstatus = 1", "limpet.toml: defaults.status is not a table", "write [defaults.status]"),
        ("\x00", "limpet.toml is not TOML: ", "correct it"),
        ("a = " + "[" * 5000, "limpet.toml is not TOML: ", "correct it"),
    ],
)
def test_a_wrong_file_is_one_line(here: Here, tmp_path: Path, text: str, said: str, hint: str) -> None:
    limpet.open(tmp_path / "fleet").check()
    (tmp_path / "limpet.toml").write_text(text)
    done = here("status", "-u", "fleet")
    assert (done.code, done.out) == (2, "")
    first, second = done.err.splitlines()
    assert first.startswith(f"limpet: {said}")
    assert hint in second


def test_a_profile_or_a_file_that_is_not_there(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here("--profile", "x", "status").err.splitlines()[0].startswith("limpet: there is no profile 'x'")
    (tmp_path / "limpet.toml").write_text(CONFIG)
    assert here("--profile", "x", "status").err.splitlines() == [
        "limpet: limpet.toml has no profile 'x'",
        "hint: there is staging",
    ]
    monkeypatch.setenv("LIMPET_CONFIG", "nowhere.toml")
    assert here("status").err.splitlines()[0] == "limpet: there is no file nowhere.toml"


# ---- completion ----


def _env(folder: Path) -> dict[str, str]:
    bin_ = Path(limpet_command()[0]).parent
    return {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "HOME": str(folder)}


def _completed(shell: str, typed: str, folder: Path) -> list[str]:
    env = _env(folder)
    words = typed.split(" ")
    script = (
        f'eval "$(limpet completion {shell})"; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; '
        '_limpet_completion limpet; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    assert _completed("bash", "limpet que", tmp_path) == ["queue"]
    assert _completed("bash", "limpet queue re", tmp_path) == ["retry", "resume"]
    assert "--reload" in _completed("bash", "limpet work --r", tmp_path)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands(tmp_path: Path) -> None:
    script = 'limpet completion fish | source; complete -C "limpet queue re"'
    done = subprocess.run(["fish", "-c", script], capture_output=True, text=True, env=_env(tmp_path), cwd=tmp_path)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["resume", "retry"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_with_the_first_tab(here: Here, tmp_path: Path) -> None:
    (tmp_path / "_limpet").write_text(here("completion", "zsh").out)
    ours, theirs = pty.openpty()
    with subprocess.Popen(["zsh", "-fi"], stdin=theirs, stdout=theirs, stderr=theirs, env=_env(tmp_path)) as shell:
        try:
            set_up = f"PS1=; fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump"
            os.write(ours, f"{set_up}; echo rea''dy\n".encode())
            said = b""
            while b"ready" not in said:
                said += os.read(ours, 4096)
            os.write(ours, b"limpet que\t")
            while b"queue" not in said:
                assert b"\a" not in said, "it found nothing"
                said += os.read(ours, 4096)
        finally:
            shell.kill()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(here: Here, shell: str) -> None:
    done = here("completion", shell)
    assert done.code == 0
    assert f"_LIMPET_COMPLETE=complete_{shell}" in done.out


def test_every_command_can_be_completed(tmp_path: Path) -> None:
    env = {**os.environ, "_LIMPET_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "limpet "}
    done = subprocess.run(limpet_command(), capture_output=True, text=True, env=env, cwd=tmp_path)
    for words in COMMANDS:
        if len(words) == 1:
            assert f'"{words[0]}"' in done.stdout
    assert here_unknown(env, tmp_path) == 2


def here_unknown(env: dict[str, str], folder: Path) -> int:
    """The exit code of a shell that is not known."""
    command = limpet_command("completion", "tcsh")
    plain = {name: value for name, value in env.items() if name != "_LIMPET_COMPLETE"}
    return subprocess.run(command, capture_output=True, env=plain, cwd=folder).returncode


# ---- reload ----

HELLO = """
import pathlib
import limpet
fleet = limpet.open("./fleet")

@fleet.task()
def hello():
    return "{said}"
"""


def test_a_changed_file_starts_the_workers_again(spawn: Spawn, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(HELLO.format(said="one"))
    queue = limpet.open(tmp_path / "fleet").queue("hello")
    process = spawn("work", "app:fleet", "--reload", "--log", "json")
    assert queue.push({}).result(wait_s=30).value == "one"
    app.write_text(HELLO.format(said="two"))
    poll("the new code runs", lambda: queue.push({}).result(wait_s=30).value == "two")
    app.write_text("this is no Python")
    (tmp_path / "other.py").write_text("x = 1")
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert any('"event":"crashed"' in line and "app cannot be imported" in line for line in lines)
    app.write_text(HELLO.format(said="six"))
    poll("it works again", lambda: queue.push({}).result(wait_s=30).value == "six")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_what_is_watched(tmp_path: Path) -> None:
    watch = SourceWatch(str(tmp_path), system())
    try:
        (tmp_path / "notes.txt").write_text("x")
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv" / "a.py").write_text("x")
        (tmp_path / "node_modules").mkdir()
        (tmp_path / "node_modules" / "a.py").write_text("x")
        assert not watch.check()
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "a.py").write_text("x")
        assert watch.check()
        assert not watch.check()
        (tmp_path / "pkg" / "a.py").write_text("xy")
        assert watch.check()
        (tmp_path / "pkg" / "a.py").unlink()
        assert watch.check()
        assert os.read(watch.fd, 10) == b"xxx"
    finally:
        watch.close()
        os.close(watch.fd)
        os.close(watch._write_fd)

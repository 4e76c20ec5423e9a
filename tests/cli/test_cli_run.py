"""`limpet lock run`: a command under a lock, in real processes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, Spawn, alive, limpet_command, on_terminal, poll, read_until
from limpet.kernel.lease import State

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the kernel kills orphans on Linux only")


def _run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(limpet_command("lock", "run", *arguments), input=stdin, capture_output=True, text=True)


def _state(name: str = "x") -> State:
    seen = limpet.open("fleet", read_only=True).lock_seen(name)
    assert seen is not None
    return seen.value.state


def _pids(process: subprocess.Popen[str]) -> list[int]:
    """The process ids that the command prints first."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def _all_end(pids: list[int]) -> None:
    poll(f"{pids} ended", lambda: not any(map(alive, pids)))


def test_runs_with_token_lock_and_url(tmp_path: Path) -> None:
    for token in ("1", "2"):
        done = _run("x", "-u", "fleet", "--", "sh", "-c", 'echo "$LIMPET_TOKEN $LIMPET_LOCK $LIMPET_URL"; cd /')
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{token} locks/user/x.lock {tmp_path}/fleet\n"
    assert _state() is State.FREE


def test_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPET_URL", "fleet")
    assert _run("x", "--", "true").returncode == 0
    assert _state() is State.FREE


def test_passes_the_streams_and_arguments_through() -> None:
    script = 'cat; echo "$@" >&2'
    done = _run("x", "-u", "fleet", "--", "sh", "-c", script, "sh", "--ttl", "a b", "--", "-n", stdin="one\ntwo")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\ntwo", "--ttl a b -- -n\n")


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("exit 75", 75), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_exit_code_is_the_commands(script: str, code: int) -> None:
    done = _run("x", "-u", "fleet", "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (code, "")
    assert _state() is State.FREE


def test_command_gets_default_signals_and_its_own_group() -> None:
    script = "import os, signal; print(signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL, os.getpid() == os.getpgrp())"
    assert _run("x", "-u", "fleet", "--", "python3", "-c", script).stdout == "True True\n"
    # A broken pipe ends `yes` silently only if SIGPIPE is not ignored.
    done = _run("x", "-u", "fleet", "--", "sh", "-c", "yes | head -n 1")
    assert (done.stdout, done.stderr) == ("y\n", "")


def test_a_command_that_is_not_there_locks_nothing(here: Here) -> None:
    done = here("lock", "run", "x", "-u", "fleet", "--", "no-such-command-of-limpet")
    assert done.code == 127
    assert done.err.startswith("limpet: there is no command 'no-such-command-of-limpet'\nhint: ")
    assert not Path("fleet").exists()


def test_a_file_that_cannot_run_is_126() -> None:
    Path("broken").write_bytes(b"\x7fELF")
    Path("broken").chmod(0o755)
    done = _run("x", "-u", "fleet", "--", "./broken")
    assert done.returncode == 126
    assert done.stderr.startswith("limpet: cannot run ./broken: ")


def test_held_is_75_and_nothing_runs(here: Here) -> None:
    with limpet.open("fleet").lock("x").hold(wait_s=0):
        done = here("lock", "run", "x", "-u", "fleet", "--", "touch", "ran")
    assert (done.code, done.out) == (75, "")
    said, hint = done.err.splitlines()
    assert said.startswith(f"limpet: lock 'x' is held by {os.uname().nodename}:{os.getpid()}, at least until ")
    assert hint == "hint: wait for it with --wait SECONDS, or look at it: limpet lock show x"
    assert not Path("ran").exists()


def test_wait_gets_the_lock_when_it_is_freed(spawn: Spawn) -> None:
    holder = spawn("lock", "run", "x", "-u", "fleet", "--", "sh", "-c", "echo; read line")
    _pids(holder)
    waiter = spawn("lock", "run", "x", "-u", "fleet", "--wait", "inf", "--", "sh", "-c", "echo $LIMPET_TOKEN")
    holder.communicate("\n")
    assert waiter.communicate() == ("2\n", "")
    assert (holder.returncode, waiter.returncode) == (0, 0)


def test_a_broken_lock_ends_the_whole_group(spawn: Spawn) -> None:
    process = spawn("lock", "run", "x", "-u", "fleet", "--ttl", "1.5", "--", "sh", "-c", "sleep 40 & echo $$ $!; wait")
    pids = _pids(process)
    limpet.open("fleet").lock("x").break_()
    _, err = process.communicate()
    assert process.returncode == 70
    assert [line.partition(":")[0] for line in err.splitlines()] == ["limpet", "hint"]
    assert "the command has ended without the lock: lock 'x' was taken from token 1" in err
    _all_end(pids)


def test_the_group_gets_time_to_tidy_up_and_then_none(spawn: Spawn) -> None:
    """The leader dies at once; one grandchild tidies up, another refuses to end."""
    tidy = "trap 'sleep 0.3; touch tidied; exit' TERM; sleep 40 & wait"
    deaf = "trap '' TERM; exec sleep 40"
    script = f"({tidy}) & a=$!; ({deaf}) & echo $$ $a $!; wait"
    process = spawn("lock", "run", "x", "-u", "fleet", "--ttl", "1.5", "--", "sh", "-c", script)
    pids = _pids(process)
    limpet.open("fleet").lock("x").break_()
    process.communicate()
    assert process.returncode == 70
    assert Path("tidied").exists()
    _all_end(pids)


def test_a_lock_lost_before_the_end_is_70_though_the_command_went_well() -> None:
    script = f"{limpet_command()[0]} lock break x --yes >&2"
    done = _run("x", "-u", "fleet", "--ttl", "600", "--", "sh", "-c", script)
    assert done.returncode == 70
    assert "the command has ended without the lock: " in done.stderr


def test_a_command_may_run_much_longer_than_the_ttl() -> None:
    done = _run("x", "-u", "fleet", "--ttl", "1", "--", "sleep", "2.5")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_that_stalls_is_ended(spawn: Spawn) -> None:
    script = "echo $$; exec sleep 40"
    process = spawn("lock", "run", "x", "-u", "fleet", "--ttl", "1", "--stall", "0", "--", "sh", "-c", script)
    pids = _pids(process)
    process.communicate()
    assert process.returncode == 70
    _all_end(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_passed_on(spawn: Spawn, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'exit 9' {name}; echo; read line"
    process = spawn("lock", "run", "x", "-u", "fleet", "--", "sh", "-c", script)
    _pids(process)
    process.send_signal(number)
    assert process.wait() == 9
    assert process.communicate() == ("", "")
    assert _state() is State.FREE


def test_killed_limpet_takes_the_command_along(spawn: Spawn) -> None:
    process = spawn("lock", "run", "x", "-u", "fleet", "--", "sh", "-c", "sleep 40 & echo $PPID $$ $!; wait")
    pids = _pids(process)
    process.kill()
    _all_end(pids)


@linux
def test_killed_leash_takes_the_command_along(spawn: Spawn) -> None:
    process = spawn("lock", "run", "x", "-u", "fleet", "--", "sh", "-c", "echo $PPID $$; read line")
    leash, command = _pids(process)
    os.kill(leash, signal.SIGKILL)
    _all_end([leash, command])
    process.communicate()
    assert process.returncode == 137


def test_stopped_limpet_loses_the_command_before_it_wakes(spawn: Spawn) -> None:
    process = spawn("lock", "run", "x", "-u", "fleet", "--ttl", "1", "--", "sh", "-c", "sleep 40 & echo $$ $!; wait")
    pids = _pids(process)
    process.send_signal(signal.SIGSTOP)
    _all_end(pids)
    assert process.poll() is None
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate()
    assert process.returncode == 70
    assert "ran out without a renewal" in err


def test_a_dead_holders_lock_is_taken_over_without_wait(spawn: Spawn, here: Here) -> None:
    dead = spawn("lock", "run", "x", "-u", "fleet", "--ttl", "1", "--", "sh", "-c", "echo; read line")
    _pids(dead)
    dead.kill()
    poll("overdue", lambda: '"overdue"' in here("lock", "show", "x", "-u", "fleet", "--json").out)
    done = _run("x", "-u", "fleet", "--ttl", "1", "--", "sh", "-c", "echo $LIMPET_TOKEN")
    assert (done.returncode, done.stdout) == (0, "2\n")


def _on_terminal(script: str) -> tuple[int, int]:
    return on_terminal("lock", "run", "x", "-u", "fleet", "--", "sh", "-c", script)


def test_the_command_can_read_the_terminal() -> None:
    pid, fd = _on_terminal("echo ready; read line; echo got $line")
    read_until(fd, lambda said: b"ready" in said)
    os.write(fd, b"hello\n")
    read_until(fd, lambda said: b"got hello" in said)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(fd)


def test_ctrl_c_reaches_the_command() -> None:
    pid, fd = _on_terminal("trap 'exit 7' INT; echo ready; read line")
    read_until(fd, lambda said: b"ready" in said)
    ended, status, pressed_s = 0, 0, 0.0
    while not ended:  # a shell that has not begun to read yet hears it only afterwards: then it is pressed again
        if time.monotonic() - pressed_s > 10:
            os.write(fd, b"\x03")
            pressed_s = time.monotonic()
        time.sleep(0.02)
        ended, status = os.waitpid(pid, os.WNOHANG)
    assert os.waitstatus_to_exitcode(status) == 7
    assert _state() is State.FREE
    os.close(fd)


def test_a_process_with_a_thousand_open_files_runs_commands_too(here: Here) -> None:
    """`select` refuses descriptors from 1,024 on."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    files: list[int] = []
    try:
        while not files or files[-1] < 1100:
            files.append(os.open("/dev/null", os.O_RDONLY))
        assert here("lock", "run", "x", "-u", "fleet", "--", "true").code == 0
    finally:
        for fd in files:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

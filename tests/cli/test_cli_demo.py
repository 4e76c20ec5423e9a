"""`limpet demo` keeps its promises, says so, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, Spawn
from servers.process import Bucket

REPORT = (
    r"ok    tokens    1 to 9, each for one holder",
    r"ok    writes    9 acknowledged, 0 writes lost",
    r"ok    takeover  \d+\.\d s after the kill, with token 8",
    r"ok    fencing   1 late write refused",
    r"requests  \d+ by all processes: \d+ \w+, \d+ \w+",
    r"price     \$0\.000\d\d, had it been S3",
    r"ada  killed with -9 \(pid \d+\), holding token 7",
    r"ada  refused, LeaseLost: cells/report.json was already written with token 9; token 7 is too old",
    r"All as promised\.",
)


def test_demo_reports_what_the_store_holds(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two at once, for it takes its time: one is kept and read here, the other must leave nothing behind."""
    temp = tmp_path_factory.mktemp("temp")
    monkeypatch.setenv("TMPDIR", str(temp))
    demos = [spawn("demo"), spawn("demo", "--url", "place", "--keep")]
    for demo in demos:
        out, err = demo.communicate()
        assert (demo.returncode, err) == (0, "")
        assert [len(re.findall(said, out)) for said in REPORT] == [1] * len(REPORT), out
        assert "FAIL" not in out
        assert "\x1b" not in out
    assert [*temp.iterdir()] == []
    [kept] = Path("place").iterdir()
    assert f"limpet lock show report --url 'place/{kept.name}'" in out
    fleet = limpet.open(kept, read_only=True)
    seen, lock = fleet.cell("report").read(), fleet.lock_seen("report")
    assert seen is not None
    assert lock is not None
    assert [token for _, token in seen.value["rows"]] == [*range(1, 10)]
    assert (lock.value.token, lock.value.state.value) == (9, "free")


def test_an_interrupt_is_quiet_and_leaves_nothing(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temp = tmp_path_factory.mktemp("temp")
    monkeypatch.setenv("TMPDIR", str(temp))
    demo = spawn("demo")
    assert demo.stdout is not None
    assert any("has the lock" in line for line in demo.stdout)
    demo.send_signal(signal.SIGINT)
    assert demo.wait() == 130
    assert demo.communicate()[1] == ""
    assert [*temp.iterdir()] == []


def test_demo_needs_a_store_that_processes_share(here: Here) -> None:
    done = here("demo", "--url", "memory://x")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("limpet: the demo's processes cannot share memory\nhint: ")


def test_demo_fails_where_conditions_are_ignored(
    here: Here, server: Callable[[str], Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    rclone = server("rclone")
    for name, value in rclone.env.items():
        monkeypatch.setenv(name, value)
    done = here("demo", "--url", rclone.at(f"demo-{os.getpid()}"))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("limpet: the store ignores conditions: ")

"""`limpet index import` and `export`: what they say, refuse and leave behind, also when killed."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import limpet
from cli.harness import Done, Here, Spawn, alive, limpet_command, poll

IMPORT = ("index", "import", "sites", "sites.csv", "-u", "fleet")
CREATE = ("--create", "--key", "domain")


def _write(rows: int = 5, path: str = "sites.csv") -> None:
    Path(path).write_text("domain,visits\n" + "".join(f"d{n}.com,{n}\n" for n in range(rows)))


def _records() -> dict[str, Any]:
    return {record["domain"]: record["visits"] for record in limpet.open("fleet").index("sites").scan()}


def _refused(done: Done, code: int, said: str, hint: str = "") -> None:
    assert (done.code, done.out) == (code, "")
    lines = done.err.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("limpet: "))
    first, *hints = lines[at:]
    assert said in first
    assert len(hints) <= 1
    assert hint in "".join(hints)


def test_a_file_into_a_new_index(here: Here) -> None:
    _write()
    done = here(*IMPORT, *CREATE)
    assert (done.code, done.out, done.err) == (
        0,
        "imported 5 records into 'sites' in 0 s\n",
        "(new index: domain string, visits integer; key domain)\n",
    )
    assert _records() == {f"d{n}.com": n for n in range(5)}
    told = json.loads(here(*IMPORT, "--json").out)
    assert (told["records"], told["bad"], told["resumed"], told["format"]) == (5, 0, False, "csv")


def test_what_create_needs(here: Here) -> None:
    _write()
    _refused(here(*IMPORT, "--create"), 2, "the index 'sites' is new: say which field is its key", "domain, visits")
    _refused(here(*IMPORT, "--create", "--key", "nope"), 2, "there is no field 'nope' to be the key")
    _refused(here(*IMPORT, "--key", "domain"), 2, "--key needs --create")
    assert not Path("fleet").exists()
    _refused(here(*IMPORT), 1, "there is no fleet at ")
    assert here(*IMPORT, *CREATE).code == 0
    assert here(*IMPORT, "--create").code == 0
    _refused(here(*IMPORT, "--create", "--key", "visits"), 2, "its key is 'domain'", "leave --key out")


def test_a_key_that_looks_like_a_date_is_text(here: Here) -> None:
    Path("days.csv").write_text("day,n\n2026-01-01,1\n")
    assert here("index", "import", "days", "days.csv", "--create", "--key", "day", "-u", "fleet").code == 0
    assert here("index", "get", "days", "2026-01-01", "-u", "fleet").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere.csv",), 1, "cannot read nowhere.csv: No such file"),
        (("nowhere.csv", "--skip-bad", "sites.csv"), 1, "cannot read nowhere.csv: No such file"),
        (("sites.txt",), 2, "the name sites.txt implies no format"),
        (("-",), 2, "standard input and output have no format"),
        (("sites.csv", "--format", "xml"), 2, "there is no format 'xml'"),
        (("-", "--format", "parquet"), 2, "parquet is not read from a pipe"),
        (("sites.csv", "--engine", "horses=4"), 2, "'horses=4' is not an engine"),
        (("sites.csv", "--engine", "processes=0"), 2, "an engine has 1 to 256 workers"),
        (("sites.csv", "--engine", "processes"), 2, "'processes' is not an engine"),
        (("sites.csv", "--skip-bad", "sites.csv"), 2, "--skip-bad names the file that is imported"),
        (("sites.csv", "--format", "jsonl"), 2, "line 1: the record is not valid JSON"),
        (("sites.csv", "--format", "parquet"), 2, "it is not a Parquet file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_usage(here: Here, arguments: tuple[str, ...], code: int, said: str) -> None:
    _write()
    assert here(*IMPORT, *CREATE).code == 0
    _refused(here("index", "import", "sites", *arguments, "-u", "fleet"), code, said)


def test_a_bad_row(here: Here) -> None:
    _write()
    here(*IMPORT, *CREATE)
    Path("sites.csv").write_text("domain,visits\n" + "x.com,1\n" * 10 + "y.com,many\n")
    said = "line 12: field 'visits': expected integer, got 'many'; 10 records before that batch are imported"
    _refused(here(*IMPORT, "--batch", "5"), 2, said, "--skip-bad FILE")
    done = here(*IMPORT, "--batch", "5", "--skip-bad", "bad.csv")
    assert (done.code, done.out) == (0, "imported 10 records into 'sites' in 0 s\n")
    assert done.err.splitlines() == [
        "continuing after line 11, where the last run stopped; --restart starts over",
        "left out line 12: field 'visits': expected integer, got 'many'",
        "left out 1 bad record, kept in bad.csv",
    ]
    assert Path("bad.csv").read_text() == "domain,visits\ny.com,many\n"


def test_stdin(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    _write()
    here(*IMPORT, *CREATE)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"domain": "z", "visits": 9}\n')))
    assert here("index", "import", "sites", "-", "--format", "jsonl", "-u", "fleet").code == 0
    assert _records()["z"] == 9


def test_threads_and_processes(here: Here) -> None:
    _write(30)
    assert here(*IMPORT, *CREATE, "--batch", "10", "--engine", "threads=2").code == 0
    assert len(_records()) == 30
    _write(40)
    done = here(*IMPORT, "--batch", "10", "--engine", "processes=2")
    assert (done.code, done.err) == (0, "")
    assert len(_records()) == 40
    _refused(here("index", "compile", "-u", "memory://x", "--engine", "processes=2"), 1, "there is no fleet")


def test_killed_it_goes_on(here: Here, spawn: Spawn) -> None:
    _write(1200)
    process = spawn(*IMPORT, *CREATE, "--batch", "100")
    cells = Path("fleet/indexes/sites/imports")
    poll("some batches are in", lambda: any(_saved(path) >= 300 for path in cells.glob("*.json*")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    [cell] = cells.glob("*.json*")
    saved = _saved(cell)
    done = here(*IMPORT, "--batch", "100", "--json")
    assert f"continuing after line {saved + 1:,}, where the last run stopped" in done.err
    told = json.loads(done.out)
    assert (told["resumed"], told["records"]) == (True, 1200)
    assert _records() == {f"d{n}.com": n for n in range(1200)}


def _saved(path: Path) -> int:
    try:
        return int(json.loads(path.read_bytes())["records"])
    except (FileNotFoundError, ValueError):
        return 0


def test_no_worker_outlives_a_killed_import(spawn: Spawn) -> None:
    _write(200_000)
    process = spawn(*IMPORT, *CREATE, "--batch", "1000", "--engine", "processes=2")
    children: list[int] = []

    def started() -> bool:
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        children[:] = map(int, listed)
        return len(children) >= 3  # two workers and multiprocessing's tracker

    poll("the workers are there", started)
    process.send_signal(signal.SIGKILL)
    process.wait()
    poll("all of them are gone", lambda: not any(map(alive, children)))


def test_interrupted(here: Here, spawn: Spawn) -> None:
    _write(100_000)
    process = spawn(*IMPORT, *CREATE, "--batch", "100")
    cells = Path("fleet/indexes/sites/imports")
    poll("a batch is in", lambda: any(_saved(path) >= 100 for path in cells.glob("*.json*")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[1].startswith("interrupted: ")
    assert err.endswith("records before that batch are imported, and the same command continues from there\n")


def test_a_store_that_refuses_says_how_far_it_got(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(30)
    here(*IMPORT, *CREATE)
    monkeypatch.setenv("LIMPET_REQUEST_BUDGET", "25")
    _refused(
        here(*IMPORT, "--batch", "10"), 1, "10 records before that batch are imported, and the same command continues"
    )
    monkeypatch.delenv("LIMPET_REQUEST_BUDGET")
    assert "continuing after line 11" in here(*IMPORT, "--batch", "10").err


def test_a_terminal_sees_a_bar() -> None:
    _write(2000)
    ours, theirs = pty.openpty()
    command = limpet_command(*IMPORT, *CREATE, "--batch", "500")
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    shown = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        with suppress(OSError):  # the end of a terminal is an error
            while more := os.read(ours, 1 << 16):
                shown += more
        assert process.stdout is not None
        assert process.stdout.read().startswith(b"imported 2,000 records into 'sites'")
    os.close(ours)
    assert b" records, " in shown
    assert b"/s, " in shown
    assert b" KiB of " in shown
    assert "━".encode() in shown


# ---- export ----


@pytest.mark.parametrize("file", ["out.csv", "out.jsonl", "out.parquet", "out.usv"])
def test_export_and_back(here: Here, file: str) -> None:
    _write()
    here(*IMPORT, *CREATE)
    done = here("index", "export", "sites", file, "-u", "fleet")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"exported 5 records of 'sites' to {file} ({file[4:]}, ")
    before = [*limpet.open("fleet").index("sites").scan()]
    if file != "out.usv":
        again = here("index", "import", "sites", file, "--create", "--key", "domain", "-u", "copy")
        assert again.code == 0, again.err
    else:
        columns = ("--field", "domain:string", "--field", "visits:integer?", "--key", "domain")
        here("index", "create", "sites", *columns, "-u", "copy")
        assert here("index", "import", "sites", file, "-u", "copy").code == 0
    assert [*limpet.open("copy").index("sites").scan()] == before


def test_export_to_stdout(here: Here) -> None:
    _write(1)
    here(*IMPORT, *CREATE)
    command = limpet_command("index", "export", "sites", "-", "--format", "jsonl", "-u", "fleet")
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["domain"] == "d0.com"


def test_a_reader_that_goes_away_is_no_traceback(here: Here) -> None:
    _write(20_000)
    here(*IMPORT, *CREATE)
    command = limpet_command("index", "export", "sites", "-", "--format", "csv", "-u", "fleet")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"domain,visits,updated_at\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("no/such/folder.csv",), 1, "cannot write "),
        (("out.txt",), 2, "the name out.txt implies no format"),
        (("-",), 2, "standard input and output have no format"),
        (("-", "--format", "csv", "--json"), 2, "the records and --json cannot both go to stdout"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_export_that_cannot_be(here: Here, arguments: tuple[str, ...], code: int, said: str) -> None:
    _write()
    here(*IMPORT, *CREATE)
    _refused(here("index", "export", "sites", *arguments, "-u", "fleet"), code, said)


def test_a_failed_export_leaves_nothing(here: Here) -> None:
    _write()
    here(*IMPORT, *CREATE)
    limpet.open("fleet").store.delete(limpet.open("fleet").index("sites").storage.keys.shard("ff"))
    _refused(here("index", "export", "sites", "out.csv", "-u", "fleet"), 1, "ff.usv is missing")
    assert sorted(path.name for path in Path().iterdir()) == ["fleet", "sites.csv"]

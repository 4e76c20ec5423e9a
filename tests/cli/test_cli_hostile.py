"""What lies in a store is printed without effect on the terminal, and one bad object hides no good one."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

import limpet
from cli.harness import Here
from limpet.cli import clean, print_json
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lease
from limpet.kernel.records import printable

EVIL = "a\x1b[31mb\x07c\nforged: d\u202ee\x9bf\r\u2028g\x7f[bold]h"


NAME = "a\u202eb\u2066c[bold]d"
"""A queue may be called so; control characters are refused in names, but somebody may make such a folder by hand."""


def _edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _only(pattern: str) -> Path:
    [file] = Path("fleet").glob(pattern)
    return file


def _lock(name: str) -> Path:
    before = {*Path("fleet").glob("locks/**/*.lock")}
    assert isinstance(limpet.open("fleet").lock(name).try_acquire(), Lease)
    [file] = {*Path("fleet").glob("locks/**/*.lock")} - before
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder whose `fleet` everybody copies, and the ids of its tasks."""
    folder = tmp_path_factory.mktemp("hostile")
    with chdir(folder):
        return folder, _make()


@pytest.fixture
def hostile(made: tuple[Path, dict[str, str]]) -> dict[str, str]:
    """A fleet in which everything that can be chosen by others is `EVIL`; ids of its tasks."""
    folder, ids = made
    shutil.copytree(folder / "fleet", "fleet", copy_function=shutil.copy)  # leases are as if renewed now
    return ids


def _make() -> dict[str, str]:
    fleet = limpet.open("fleet", durability="os")
    _edit(_lock("one"), label=EVIL, name=EVIL)
    queue = fleet.queue("jobs", max_attempts=1)
    failed = queue.push({"text": EVIL, EVIL: 1}, id="failed")
    with queue.claim() as claim:
        for task in claim:
            task.fail(EVIL, f"Traceback:\n  {EVIL}\nValueError: {EVIL}")
    _edit(_only("queues/jobs/failed/**/*failed*.json"), label=EVIL)
    done = queue.push({}, id="done")
    with queue.claim() as claim:
        for task in claim:
            task.done({"text": EVIL})
    _edit(_only("queues/jobs/completed/**/*done*.json"), label=EVIL)
    held = queue.push({"text": EVIL}, id="held")
    assert queue.claim()
    _edit(_only("queues/jobs/pending/held/lease.json"), label=EVIL, error=EVIL)
    fleet.queue(NAME).push({"text": EVIL}, delay_s=600)
    fleet.queue(NAME).push({"text": EVIL})
    shutil.copytree("fleet/queues/jobs", "fleet/queues/%1b%5b31m%0aforged%e2%80%ae")
    return {"failed": failed.id, "done": done.id, "held": held.id}


COMMANDS = [
    ("lock", "ls"),
    ("lock", "show", "one"),
    ("lock", "break", "one"),
    ("lock", "break", "one", "--yes"),
    ("lock", "run", "one", "--", "true"),
    ("status",),
    ("check", "--max-pending", "0", "--max-failed", "0"),
    ("queue", "ls"),
    ("queue", "ls", "jobs"),
    ("queue", "ls", "jobs", "--failed"),
    ("queue", "ls", "jobs", "--completed"),
    ("queue", "ls", NAME),
    ("queue", "ls", NAME, "--scheduled"),
    ("queue", "show", "jobs", "failed"),
    ("queue", "show", "jobs", "done"),
    ("queue", "show", "jobs", "held"),
    ("queue", "show", "jobs", EVIL),
    ("queue", "peek", "jobs"),
    ("queue", "peek", NAME),
    ("queue", "stats", NAME),
    ("queue", "cost", NAME),
    ("queue", "pause", NAME),
    ("queue", "resume", NAME),
    ("queue", "push", NAME, "{}"),
    ("queue", "push", "jobs", "{", "--id", EVIL),
    ("queue", "retry", "jobs", "--all"),
    ("queue", "cancel", EVIL, EVIL),
    ("queue", "cancel", NAME, NAME),
    ("queue", "ls", EVIL),
    ("queue", "stats", "\x1b[31m\nforged\u202e"),
    ("lock", "run", EVIL, "--", "true"),
    ("lock", "show", EVIL),
    ("queue", "purge", NAME, "--yes"),
    ("queue", "sweep", NAME),
    ("queue", "ls", f"{EVIL}x"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: " ".join(each).encode("unicode_escape").decode()[:60])
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.usefixtures("hostile")
def test_nothing_reaches_the_terminal_raw(here: Here, command: tuple[str, ...], as_json: bool) -> None:
    place = command.index("--") if "--" in command else len(command)
    json_ = ["--json"] if as_json and command[:2] != ("lock", "run") else []
    done = here(*command[:place], "-u", "fleet", *json_, *command[place:])
    assert done.code in (0, 1, 2, 75), done.err
    said = (done.out + done.err).replace("\n", "").replace("\t", "")
    assert said.isprintable(), [char for char in said if not char.isprintable()]
    lines = (done.out + done.err).splitlines()
    assert not [line for line in lines if line.lstrip().startswith("forged")]
    assert "internal error" not in done.err
    if as_json and done.out:
        json.loads(done.out)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"\xff\xfe"),
        lambda file: file.write_bytes(b"[" * 100_000),
        lambda file: _edit(file, ttl_s=1e300),
        lambda file: _edit(file, expires_at="2026-01-01T00:00:00"),
        lambda file: _edit(file, token=-1),
        lambda file: _edit(file, schema=99),
        lambda file: file.write_bytes(b"x" * (2 << 20)),
        lambda file: file.rename(file.with_name("a\x1b[31mb.lock")),
        lambda file: file.rename(file.with_name("%zz.lock")),
        lambda file: (file.unlink(), file.mkdir()),
    ],
)
def test_one_bad_lock_hides_no_other(here: Here, spoil: Any) -> None:
    _lock("good")
    bad = _lock("middle")
    _lock("zebra")
    spoil(bad)
    told = json.loads(here("lock", "ls", "-u", "fleet", "--json").out)
    assert {row.get("name") for row in told} >= {"good", "zebra"}
    shown = here("lock", "ls", "-u", "fleet")
    assert shown.code == 0
    assert {"good", "zebra"} <= {line.split("\t")[0] for line in shown.out.splitlines()}
    status = here("status", "-u", "fleet")
    assert status.code == 0
    assert {"good", "zebra"} <= {line.split("\t")[0] for line in status.out.splitlines()}


def test_an_unreadable_lock_is_named(here: Here) -> None:
    _lock("bad").write_bytes(b"{")
    [row] = json.loads(here("lock", "ls", "-u", "fleet", "--json").out)
    assert (row["key"], row["state"]) == ("locks/user/bad.lock", "unreadable")
    assert "unreadable\t" in here("lock", "ls", "-u", "fleet").out
    assert "unreadable: locks/user/bad.lock" in here("status", "-u", "fleet").out
    done = here("lock", "show", "bad", "-u", "fleet")
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 2)


def test_a_damaged_control_record_hides_no_queue(here: Here) -> None:
    for name in ("a", "b"):
        limpet.open("fleet").queue(name).push({})
    limpet.open("fleet").queue("a").pause()
    Path("fleet/queues/a/control.json").write_bytes(b"\xff")
    done = here("status", "-u", "fleet")
    assert done.code == 0
    assert [line.split("\t")[:2] for line in done.out.splitlines()[1:3]] == [["a", "1"], ["b", "1"]]
    assert "cannot tell whether it is paused" in done.out
    assert here("check", "--max-pending", "0", "-u", "fleet").code == 1


def test_an_unreadable_receipt_counts_as_failed(here: Here) -> None:
    queue = limpet.open("fleet").queue("a")
    queue.push_many([{}] * 2, batch=1)
    for _ in range(2):
        with queue.claim() as claim:
            for task in claim:
                task.fail("no")
    sorted(Path("fleet/queues/a/failed").rglob("*.json"))[0].write_bytes(b"\xff")
    done = here("check", "--max-failed", "1", "-u", "fleet")
    assert (done.code, done.out) == (1, "a: 2 tasks failed, and --max-failed is 1\n")


def test_a_payload_or_result_that_is_not_utf8_is_shown(here: Here) -> None:
    queue = limpet.open("fleet", durability="os").queue("jobs", max_attempts=1)
    for id_ in ("waits", "fails", "done"):
        queue.push({"x": "y"}, id=id_)
    for _ in range(3):
        with queue.claim() as claim:
            for task in claim:
                if task.id == "fails":
                    task.fail("no")
                elif task.id == "done":
                    task.done({"x": "y"})
                else:
                    claim.hand_back()
                    break
    for file in (*Path("fleet/queues/jobs").rglob("task.json"), *Path("fleet/queues/jobs").rglob("failed/**/*.json")):
        file.write_bytes(file.read_bytes().replace(b'"y"', b'"\xff\xfe"'))
    for file in Path("fleet/queues/jobs/completed").rglob("*.json"):
        file.write_bytes(file.read_bytes().replace(b'"y"', b'"\xff\xfe"'))
    for id_ in ("waits", "fails", "done"):
        done = here("queue", "show", "jobs", id_, "-u", "fleet")
        assert done.code in (0, 1)
        assert "internal error" not in done.err, (id_, done.err)
        assert len(done.err.splitlines()) <= 2


@pytest.mark.parametrize("chain", [("loop", "loop"), ("loop~1", "loop"), ("loop~1", "loop~1")], ids="-".join)
def test_a_retry_that_leads_to_itself_ends(here: Here, chain: tuple[str, str]) -> None:
    """By one step or by two: one line says which receipt is wrong, and other tasks are shown."""
    fleet = limpet.open("fleet")
    queue = fleet.queue("jobs", max_attempts=1)
    for id_ in ("loop", "other"):
        queue.push({}, id=id_)
        with queue.claim() as claim:
            for task in claim:
                task.fail("no")
    receipt = json.loads(fleet.store.get(Key("queues/jobs/failed/loop.json")).data)
    for name, next_ in zip(("loop", "loop~1"), chain, strict=True):
        data = json.dumps({**receipt, "state": "retried", "retried_as": next_}).encode()
        fleet.store.put(Key(f"queues/jobs/failed/{name}.json"), data)
    for command in ("show", "retry") if chain[0] == "loop" else ("show",):
        done = here("queue", command, "jobs", "loop", "-u", "fleet")
        assert (done.code, done.out) == (1, ""), command
        line, hint = done.err.splitlines()
        assert line.startswith("limpet: ")
        assert line.endswith("which is another task")
        assert hint.startswith("hint: ")
    assert [row["id"] for row in json.loads(here("queue", "ls", "jobs", "--failed", "-u", "fleet", "--json").out)] == [
        "other"
    ]
    assert here("queue", "show", "jobs", "other", "-u", "fleet").code == 0


# ---- the top level ----


@pytest.mark.parametrize("shown", [False, True])
def test_a_mistake_in_limpet_is_one_line_and_a_code_of_its_own(
    here: Here, monkeypatch: pytest.MonkeyPatch, shown: bool
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a\x1bb\nc")

    monkeypatch.setattr(limpet, "open", broken)
    monkeypatch.delenv("LIMPET_TRACEBACK", raising=False)
    done = here(*(["--traceback"] if shown else []), "lock", "ls", "-u", "fleet")
    os.environ.pop("LIMPET_TRACEBACK", None)
    assert (done.code, done.out) == (71, "")
    *traceback, line, hint = done.err.splitlines()
    assert line == "limpet: internal error: KeyError: 'a\\x1bb\\nc'"
    assert hint.startswith("hint: please report it")
    assert bool(traceback) is shown


def test_what_printable_and_json_make_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("plain ü 漢 🐌") == "plain ü 漢 🐌"
    assert printable(EVIL) == r"a\x1b[31mb\x07c\nforged: d\u202ee\x9bf\r\u2028g\x7f[bold]h"
    assert clean("[bold]x") == r"\[bold]x"
    value = {"text": EVIL, "other": "\U000e0001"}
    print_json(value)
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert json.loads(out) == value

"""`limpet queue push`: what it takes, what it refuses, and how far a bad file gets."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, limpet_command
from limpet.app.push_file import CHUNK_BATCHES
from limpet.cli.options import duration_s

PUSH = ("queue", "push", "enrich", "-u", "fleet")


def _payloads() -> list[object]:
    return sorted((task.payload for task in limpet.open("fleet").queue("enrich").peek(1000)), key=str)


def _lines(*payloads: object) -> str:
    return "".join(json.dumps(payload) + "\n" for payload in payloads)


def test_a_task(here: Here) -> None:
    done = here(*PUSH, '{"domain": "a.com"}')
    assert (done.code, done.err) == (0, "(new fleet at fleet)\n")
    said, id_, *_ = done.out.split()
    assert said == "pushed"
    [task] = limpet.open("fleet").queue("enrich").peek()
    assert (task.id, task.payload) == (id_, {"domain": "a.com"})


def test_an_id_is_pushed_once(here: Here) -> None:
    assert here(*PUSH, "{}", "--id", "a.com@2026").out == "pushed a.com@2026 to 'enrich'\n"
    again = here(*PUSH, "{}", "--id", "a.com@2026")
    assert (again.code, again.out) == (0, "'a.com@2026' was pushed to 'enrich' before; nothing was changed\n")
    assert json.loads(here(*PUSH, "{}", "--id", "b", "--json").out) == {"id": "b", "created": True}
    assert json.loads(here(*PUSH, "{}", "--id", "b", "--json").out) == {"id": "b", "created": False}


def test_a_delayed_task_waits_for_its_time(here: Here) -> None:
    assert here(*PUSH, "{}", "--delay", "15m").code == 0
    stats = limpet.open("fleet").queue("enrich").stats()
    assert (stats.pending, stats.scheduled) == (0, 1)
    listed = json.loads(here("queue", "ls", "enrich", "--scheduled", "-u", "fleet", "--json").out)
    assert 800 < listed[0]["due_in_s"] <= 902


DEEP = '{"a":' * 70 + "1" + "}" * 70
DEEPER = '{"a":' * 50_000 + "1" + "}" * 50_000
BIG = json.dumps({"a": "x" * (256 * 1024)})
HUGE = json.dumps({"a": "x" * (1 << 20)})


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        (DEEP, "the payload is nested too deeply", "separate object"),
        (DEEPER, "the payload is nested too deeply", "separate object"),
        (BIG, "the payload takes 262,152 bytes; a task holds 262,144", "separate object"),
        (HUGE, "the payload takes more than 1,048,576 bytes; a task holds 262,144", "separate object"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_json_that_is_too_large_or_deep_is_one_line_and_a_hint_and_creates_nothing(
    here: Here, text: str, said: str, hint: str
) -> None:
    done = here(*PUSH, text)
    assert (done.code, done.out) == (2, "")
    first, second = done.err.splitlines()
    assert first.startswith("limpet: ")
    assert said in first
    assert second.startswith("hint: ")
    assert hint in second
    assert not Path("fleet").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("q",), "say what to push"),
        (("q", "{}", "--file", "x"), "say what to push"),
        (("q", "--file", "x", "--id", "a"), "--id and --delay are for a single task"),
        (("q", "--file", "x", "--delay", "1m"), "--id and --delay are for a single task"),
        (("a\nb", "{}"), "the name 'a\\nb' has control characters"),
        (("q", "{}", "--id", "a~1"), "the task id 'a~1' has a '~'"),
        (("q", "{}", "--delay", "400d"), "delay_s must be between 0 and"),
    ],
)
def test_wrong_usage(here: Here, arguments: tuple[str, ...], said: str) -> None:
    done = here("queue", "push", *arguments, "-u", "fleet")
    assert (done.code, done.out) == (2, "")
    first, *hints = done.err.splitlines()
    assert said in first
    assert all(each.startswith("hint: ") for each in hints)


@pytest.mark.parametrize("text", ["90", "1.5h", "-1s", "1h30m", "s", "", " 1s", "1S", "1w", "٣s", "1" * 10 + "s"])
def test_durations_are_strict(here: Here, text: str) -> None:
    done = here(*PUSH, "{}", "--delay", text)
    assert (done.code, done.out) == (2, "")
    assert "is not a duration" in done.err
    assert not Path("fleet").exists()


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0), ("90s", 90), ("15m", 900), ("1h", 3600), ("2d", 172800)])
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


def test_a_file_goes_in_batches(here: Here) -> None:
    Path("in.jsonl").write_text("\n" + _lines(*({"n": n} for n in range(25))) + "\n\n")
    done = here(*PUSH, "--file", "in.jsonl", "--batch", "10")
    assert (done.code, done.out, done.err) == (
        0,
        "pushed 25 tasks to 'enrich' in 3 batches\n",
        "(new fleet at fleet)\n",
    )
    assert _payloads() == sorted(({"n": n} for n in range(25)), key=str)
    told = json.loads(here(*PUSH, "--file", "in.jsonl", "--json").out)
    assert (told["queue"], told["pushed"], told["batches"]) == ("enrich", 25, 1)
    assert (told["first_id"].endswith("-25.0"), told["last_id"].endswith("-25.24")) == (True, True)


def test_a_file_without_an_end_of_line(here: Here) -> None:
    Path("in.jsonl").write_text('{"n": 1}\n{"n": 2}')
    assert here(*PUSH, "--file", "in.jsonl").out == "pushed 2 tasks to 'enrich' in 1 batch\n"


def test_stdin_is_a_file_too(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"n": 1}\n')))
    assert here(*PUSH, "--file", "-").out == "pushed 1 task to 'enrich' in 1 batch\n"


def test_an_empty_file(here: Here) -> None:
    Path("in.jsonl").write_text("\n")
    done = here(*PUSH, "--file", "in.jsonl")
    assert (done.code, done.out) == (0, "the file has no line; nothing was pushed\n")


@pytest.mark.parametrize("good", [0, 9, 10, 35, CHUNK_BATCHES * 10, CHUNK_BATCHES * 10 + 15])
def test_nothing_of_a_bad_lines_batch_is_pushed(here: Here, good: int) -> None:
    """Line `good` + 2 is bad, for line 1 is blank. What was pushed ends where the hint says to go on."""
    Path("in.jsonl").write_text("\n" + _lines(*({"n": n} for n in range(good))) + '{"n": }\n' + _lines({"n": 99}) * 30)
    done = here(*PUSH, "--file", "in.jsonl", "--batch", "10")
    whole = good // 10 * 10
    assert (done.code, done.out) == (2, "")
    assert f"line {good + 2} is not valid JSON" in done.err
    if whole:
        assert f"; {whole} tasks before line {whole + 2} went in\n" in done.err
        assert f"hint: correct it, then: tail -n +{whole + 2} in.jsonl | limpet queue push enrich --file -" in done.err
    else:
        assert "; nothing was pushed\nhint: quote it" in done.err
    assert _payloads() == sorted(({"n": n} for n in range(whole)), key=str)


def test_a_line_that_is_too_long_is_not_read_whole(here: Here) -> None:
    Path("in.jsonl").write_text(_lines({"n": 1}) + HUGE + HUGE)
    done = here(*PUSH, "--file", "in.jsonl")
    assert done.code == 2
    assert "line 2 takes more than 1,048,576 bytes; a task holds 262,144; nothing was pushed" in done.err


@pytest.mark.parametrize(("file", "why"), [("nowhere.jsonl", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read(here: Here, file: str, why: str) -> None:
    done = here(*PUSH, "--file", file)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"limpet: cannot read {file}: {why}")


def test_a_store_that_refuses_says_how_far_it_got(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget ends after the fleet is set up and some batches are pushed."""
    limpet.open("fleet").check()
    Path("in.jsonl").write_text(_lines({"n": 1}) * CHUNK_BATCHES * 3)
    monkeypatch.setenv("LIMPET_REQUEST_BUDGET", str(2 + CHUNK_BATCHES))
    done = here(*PUSH, "--file", "in.jsonl", "--batch", "1")
    assert (done.code, done.out) == (1, "")
    assert f"; {CHUNK_BATCHES} tasks before line {CHUNK_BATCHES + 1} went in; more may have been" in done.err
    monkeypatch.delenv("LIMPET_REQUEST_BUDGET")
    assert len(_payloads()) == CHUNK_BATCHES


def test_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(_lines({"n": 1}) * 5000)
    ours, theirs = pty.openpty()
    command = limpet_command(*PUSH, "--file", "in.jsonl", "--batch", "50")
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, env=env, text=True, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 20)
    os.close(ours)
    assert done.stdout == "pushed 5,000 tasks to 'enrich' in 100 batches\n"
    assert b"tasks pushed" in shown
    assert "━".encode() in shown


def test_what_is_new_is_said_on_stderr(here: Here) -> None:
    """A typo makes a queue or a fleet, so it is said."""
    assert here(*PUSH, "{}").err == "(new fleet at fleet)\n"
    assert here(*PUSH, "{}").err == ""
    done = here("queue", "push", "enrihc", "{}", "-u", "fleet", "--json")
    assert (done.code, done.err) == (0, "(new queue)\n")
    assert json.loads(done.out)["created"]


def test_without_create_nothing_is_made(here: Here) -> None:
    done = here("queue", "push", "enrich", "{}", "--no-create", "-u", "fleet")
    assert (done.code, Path("fleet").exists()) == (1, False)
    assert done.err.startswith("limpet: there is no fleet at fleet\n")
    here(*PUSH, "{}")
    done = here("queue", "push", "enrihc", "{}", "--no-create", "-u", "fleet")
    assert done.code == 1
    assert "did you mean 'enrich'?" in done.err
    assert here("queue", "push", "enrich", "{}", "--no-create", "-u", "fleet").code == 0
    assert limpet.open("fleet").queues() == ["enrich"]

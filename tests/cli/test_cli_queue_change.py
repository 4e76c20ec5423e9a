"""`limpet queue retry | cancel | pause | resume | purge | sweep`: what they do, and what a typo does not."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, limpet_command
from limpet.keys import Key
from limpet.queue import Queue
from limpet.runtime import system

CHANGES = [
    ("retry", "enrich", "a"),
    ("retry", "enrich", "--all"),
    ("cancel", "enrich", "a"),
    ("pause", "enrich"),
    ("resume", "enrich"),
    ("purge", "enrich", "--yes"),
    ("sweep", "enrich"),
]


@pytest.fixture(autouse=True)
def _fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet in memory, which commands and tests find without a URL."""
    monkeypatch.setenv("LIMPET_URL", f"memory://{system().new_id()}")


@pytest.fixture
def queue() -> Queue:
    """Two tasks that failed, one that waits, one that is delayed."""
    queue = limpet.open().queue("enrich")
    for id_ in ("a", "b"):
        queue.push({"n": id_}, id=id_)
        with queue.claim() as claim:
            for task in claim:
                task.fail("no")
    queue.push({"n": "c"}, id="c")
    queue.push({"n": "d"}, id="d", delay_s=600)
    return queue


def _run(here: Here, *arguments: str) -> str:
    done = here("queue", *arguments)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_retry_one(here: Here, queue: Queue) -> None:
    assert _run(here, "retry", "enrich", "a") == "'a' waits again, as 'a~1'\n"
    assert (queue.stats().pending, queue.stats().failed) == (2, 1)
    assert json.loads(_run(here, "retry", "enrich", "b", "--json")) == {"queue": "enrich", "retried": ["b~1"]}


def test_retry_all(here: Here, queue: Queue) -> None:
    assert _run(here, "retry", "enrich", "--all") == "waiting again, 2 tasks: a~1, b~1\n"
    assert (queue.stats().pending, queue.stats().failed) == (3, 0)
    assert _run(here, "retry", "enrich", "--all") == "nothing in 'enrich' has failed\n"


@pytest.mark.parametrize("arguments", [(), ("a", "--all")])
def test_retry_wants_one_or_all(here: Here, queue: Queue, arguments: tuple[str, ...]) -> None:
    done = here("queue", "retry", "enrich", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("limpet: say which task to retry, or --all\nhint: `limpet queue ls enrich --failed`")


@pytest.mark.parametrize(
    ("command", "hint"), [("retry", "limpet queue ls enrich --failed"), ("cancel", "limpet queue ls")]
)
def test_a_task_that_is_not_there(here: Here, queue: Queue, command: str, hint: str) -> None:
    done = here("queue", command, "enrich", "nope")
    assert (done.code, done.out) == (1, "")
    said, advice = done.err.splitlines()
    assert "'nope'" in said
    assert hint in advice


def test_cancel(here: Here, queue: Queue) -> None:
    assert _run(here, "cancel", "enrich", "c") == "'c' is cancelled\n"
    assert queue.result("c").state == "cancelled"
    again = here("queue", "cancel", "enrich", "c")
    assert (again.code, again.out) == (1, "")
    assert again.err == "'c' has ended already; nothing was changed: limpet queue show enrich c\n"
    told = here("queue", "cancel", "enrich", "c", "--json")
    assert (told.code, json.loads(told.out)["cancelled"]) == (1, False)


def test_pause_and_resume(here: Here, queue: Queue) -> None:
    assert _run(here, "pause", "enrich") == "'enrich' is paused; go on with: limpet queue resume enrich\n"
    assert queue.stats().paused
    assert not limpet.open().queue("enrich").claim()
    assert json.loads(_run(here, "resume", "enrich", "--json")) == {"queue": "enrich", "paused": False}
    assert not queue.stats().paused
    _run(here, "pause", "enrich")
    assert _run(here, "resume", "enrich") == "'enrich' is resumed; workers notice within a few seconds\n"


def test_purge_drops_what_waits_and_keeps_what_ended(here: Here, queue: Queue) -> None:
    assert _run(here, "purge", "enrich", "--yes") == "dropped 2 tasks of 'enrich'\n"
    assert (queue.stats().pending, queue.stats().scheduled) == (0, 0)
    assert queue.result("a").state == "failed"


def test_purge_asks(here: Here, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    done = here("queue", "purge", "enrich")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "limpet: 2 tasks would be dropped from 'enrich', 0 of them in flight, and nobody is here to ask\n"
        "hint: add --yes\n"
    )
    assert queue.stats().pending == 1


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
def test_purge_obeys_the_answer(answer: bytes, code: int, left: int) -> None:
    queue = limpet.open("fleet").queue("enrich")
    queue.push({})
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run(limpet_command("queue", "purge", "enrich", "-u", "fleet"), stdin=theirs, capture_output=True)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == code
    assert b"Drop them all?" in done.stderr
    assert queue.stats().pending == left


def test_sweep_removes_what_a_crash_left(here: Here, queue: Queue) -> None:
    limpet.open().store.put(Key("queues/enrich/pending/a/task.json"), b"{}")
    assert _run(here, "sweep", "enrich") == "'enrich' is tidy; 1 object removed\n"
    assert json.loads(_run(here, "sweep", "enrich", "--json")) == {"queue": "enrich", "removed": 0}


@pytest.mark.parametrize("arguments", CHANGES, ids=" ".join)
def test_a_mistyped_url_creates_nothing(here: Here, arguments: tuple[str, ...]) -> None:
    done = here("queue", *arguments, "-u", "./typo")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("limpet: there is no fleet at ./typo\nhint: ")
    assert not Path("typo").exists()


@pytest.mark.parametrize("arguments", CHANGES, ids=" ".join)
def test_a_mistyped_queue_creates_nothing(here: Here, arguments: tuple[str, ...]) -> None:
    limpet.open().queue("mail").push({})
    done = here("queue", *arguments)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"limpet: there is no queue 'enrich' at {limpet.open().url}\nhint: there is mail\n"
    assert [*limpet.open().store.list_dirs("queues")] == ["mail"]

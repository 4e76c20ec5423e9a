"""Wrong input is answered with one line, a hint and an exit code; `test_mistakes` has the table of mistakes."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, limpet_command


def test_a_name_that_is_not_utf8_is_one_line_and_a_hint(here: Here) -> None:
    done = here("queue", "push", "q\udcff", "{}", "-u", "fleet")
    assert (done.code, done.out) == (2, "")
    line, hint = done.err.splitlines()
    assert "'q\\udcff'" in line
    assert "printable" in hint
    assert not [*Path().iterdir()]


@pytest.mark.parametrize("command", [("status",), ("queue", "ls"), ("queue", "ls", "--json"), ("top", "--once")])
def test_a_full_disk_behind_stdout_is_one_line(command: tuple[str, ...]) -> None:
    limpet.open("fleet", durability="os").queue("q").push({})
    with open("/dev/full", "w") as full:
        done = subprocess.run(limpet_command(*command, "-u", "fleet"), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    line, hint = done.stderr.splitlines()
    assert line == "limpet: cannot write the output: No space left on device"
    assert hint.startswith("hint: free some space")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_but_what_is_seen(closed: str) -> None:
    """Nothing that the command opens may get the number of stdout."""
    words = shlex.join(limpet_command("queue", "push", "q", "{}", "--id", "one", "-u", "fleet"))
    done = subprocess.run(["sh", "-c", f"{words} {closed}"], capture_output=True, text=True)
    assert done.returncode == 0, done
    assert "internal error" not in done.stderr
    assert [each.id for each in limpet.open("fleet").queue("q").peek()] == ["one"]
    assert not [file for file in Path("fleet").rglob("*") if file.is_file() and b"pushed one" in file.read_bytes()]
    done = subprocess.run(["sh", "-c", f"{words} {closed}"], capture_output=True, text=True)
    assert done.returncode == 0, "it was pushed before"


FLEET = """
status; check --max-age 1h; workers; upgrade; events ls; sql 'select * from locks'; top
lock ls; lock show x; lock break x --yes; catalog log; catalog gc; tables expire n.t
queue ls; queue ls q; queue failed q; queue peek q; queue show q a; queue stats q; queue cost q
queue retry q a; queue retry q --all; queue cancel q a; queue signal q a go; queue pause q; queue resume q
queue purge q --yes; queue sweep q; metrics --textfile x; index ls; index get x k; index stats x
"""
"""Commands on a fleet that must be there."""


@pytest.mark.parametrize("command", [each.strip() for line in FLEET.splitlines() for each in line.split(";") if each])
def test_a_mistyped_url_creates_nothing(here: Here, command: str) -> None:
    done = here(*shlex.split(command), "-u", "./typo")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("limpet: there is no fleet at ./typo\nhint: check the URL")
    assert not [*Path().iterdir()]


PATHS = ("../x", "..", ".", "./x", "/x", "x/", "a/../b", "a//b")


@pytest.mark.parametrize("name", PATHS)
def test_a_path_is_no_name_for_a_new_queue_or_index(here: Here, name: str) -> None:
    Path("sites.csv").write_text("domain\na.com\n")
    for arguments in (
        ("queue", "push", name, "{}"),
        ("index", "create", name, "--field", "id:string", "--key", "id"),
        ("index", "import", name, "sites.csv", "--create", "--key", "domain"),
    ):
        done = here(*arguments, "-u", "fleet")
        assert done.code == 2
        assert f"{name!r} is a path, and not a name for a new" in done.err
        assert "--url says where the fleet is" in done.err
    assert not Path("fleet").exists()
    assert {each.name for each in Path().iterdir()} == {"sites.csv"}


def test_a_queue_that_was_given_such_a_name_in_python_can_be_used(here: Here) -> None:
    limpet.open("fleet", durability="os").queue("../x").push({"n": 1}, id="one")
    assert here("queue", "push", "../x", "{}", "--id", "two", "-u", "fleet").code == 0
    assert "two" in here("queue", "ls", "../x", "-u", "fleet").out
    assert here("queue", "push", "a/b", "{}", "-u", "fleet").code == 0

"""Wrong input is answered with one clear line, a hint and the documented exit code, and changes nothing."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, limpet_command

CASES: dict[str, tuple[tuple[str, ...], int, str, str]] = {
    "a bucket without a name": (("queue", "ls", "x", "-u", "s3://"), 2, "must name a bucket", "s3://bucket/prefix"),
    "no URL": (("status", "-u", ""), 2, "no URL was given", "LIMPET_URL"),
    "an unknown scheme": (("status", "-u", "http://x"), 2, "http://", "s3://"),
    "a place for no folders": (
        ("queue", "push", "q", "{}", "-u", "/proc/nope"),
        1,
        "No such file",
        "path of the store",
    ),
    "nothing to read there": (
        ("queue", "ls", "-u", "/proc/nope"),
        1,
        "there is no fleet at /proc/nope",
        "check the URL",
    ),
    "a queue without a name": (("queue", "push", "", "{}", "-u", "fleet"), 2, "non-empty", "input"),
    "a queue without a name to list": (("queue", "ls", "", "-u", "fleet"), 2, "non-empty", "input"),
    "a task without a name": (("queue", "push", "q", "{}", "--id", "", "-u", "fleet"), 2, "non-empty", "input"),
    "an index without a name": (("index", "get", "", "k", "-u", "fleet"), 2, "non-empty", "input"),
    "a lock without a name": (("lock", "show", "", "-u", "fleet"), 2, "non-empty", "input"),
    "control characters": (("queue", "push", "a\x1bb", "{}", "-u", "fleet"), 2, "control characters", "printable"),
    "not UTF-8 on the command line": (("queue", "push", "q\udcff", "{}", "-u", "fleet"), 2, "'q\\udcff'", "printable"),
    "a lease without time": (
        ("lock", "run", "x", "--ttl", "0", "-u", "fleet", "--", "true"),
        2,
        "ttl_s must be",
        "input",
    ),
    "one URL to back up": (("backup", "fleet"), 2, "name two URLs", "limpet backup fleet BACKUP_URL"),
    "two URLs to check": (("backup", "--check", "a", "b"), 2, "one URL", "limpet backup --check"),
    "bad SQL": (("index", "sql", "selec 1", "-u", "fleet"), 2, "syntax error at or near", "each index is a table"),
    "SQL of no index": (
        ("index", "sql", "select * from nope", "-u", "fleet"),
        2,
        "there is no index 'nope'",
        "there is",
    ),
    "SQL that writes": (("index", "sql", "drop table x", "-u", "fleet"), 2, "can only read", "begin with select"),
    "a file that is not UTF-8": (
        ("queue", "push", "q", "-f", "bad.jsonl", "-u", "fleet"),
        2,
        "line 2 is not UTF-8",
        "iconv",
    ),
    "a typo in a command": (("quue", "ls"), 2, "no such command 'quue'. Did you mean 'queue'?", "usage: limpet "),
    "a typo in a command of a group": (("queue", "lst"), 2, "no such command 'lst'", "`limpet queue --help` says more"),
    "a typo in an option": (("queue", "ls", "--jsn"), 2, "no such option: --jsn", "usage: limpet queue ls [OPTIONS]"),
    "a number that is none": (
        ("queue", "ls", "x", "-n", "many", "-u", "fleet"),
        2,
        "invalid value for '-n'",
        "usage: ",
    ),
    "a number that is too small": (
        ("queue", "ls", "x", "-n", "0"),
        2,
        "'-n': it must be greater than or equal to 1",
        "",
    ),
    "no argument": (("queue", "show", "q", "-u", "fleet"), 2, "missing argument 'ID'", "usage: limpet queue show"),
    "no value for an option": (("queue", "ls", "--url"), 2, "--url' requires an argument", "limpet --help"),
    "a choice that there is not": (("completion", "tcsh"), 2, "'tcsh' is not one of 'bash', 'zsh', 'fish'", "usage: "),
    "no duration": (("check", "--max-age", "90"), 2, "'--max-age': '90' is not a duration", "usage: limpet check"),
    "no duration for the dashboard": (("ui", "fleet", "--max-age", "90"), 2, "'--max-age': '90' is not a duration", ""),
    "two URLs for the dashboard": (("ui", "fleet", "-u", "other"), 2, "two URLs: fleet, and --url other", "leave one"),
    "two URLs to upgrade": (("upgrade", "fleet", "-u", "other"), 2, "two URLs: fleet, and --url other", "leave one"),
    "one task and all": (
        ("queue", "retry", "q", "one", "--all", "-u", "fleet"),
        2,
        "--all means every task that failed",
        "leave 'one' out, or --all",
    ),
    "a file in UTF-16": (("queue", "push", "q", "-f", "utf16.jsonl", "-u", "fleet"), 2, "line 1 is not UTF-8", "iconv"),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_is_one_line_and_a_hint(here: Here, case: str) -> None:
    limpet.open("fleet", durability="os").check()
    Path("bad.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    Path("utf16.jsonl").write_bytes('{"a": 1}\n'.encode("utf-16"))
    before = sorted(Path("fleet").rglob("*.json*"))
    arguments, code, said, hint = CASES[case]
    done = here(*arguments)
    assert done.code == code, done
    assert done.out == ""
    first, second = done.err.splitlines()
    assert first.startswith("limpet: ")
    assert said in first
    assert second.startswith("hint: ")
    assert hint in second
    assert "Traceback" not in done.err
    assert sorted(Path("fleet").rglob("*.json*")) == before


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

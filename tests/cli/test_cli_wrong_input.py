"""Wrong input is answered with one clear line, a hint and the documented exit code, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from cli.harness import Here

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

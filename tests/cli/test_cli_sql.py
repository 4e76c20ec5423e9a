"""`limpet sql` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import limpet
from cli.harness import Here
from support.index import HOSTILE_SQL


def test_rows_in_every_format_and_errors_in_one_line(here: Here, tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet")
    fleet.queue("q").push({"text": "\x1b[31m[b]"}, id="a")
    url = str(tmp_path / "fleet")
    done = here("sql", "select id, state, payload from queues.q", "-u", url)
    assert (done.code, done.out) == (0, 'id\tstate\tpayload\na\twaiting\t{"text": "\\u001b[31m[b]"}\n')
    rows = json.loads(here("sql", "select id, payload from queues.q", "--json", "-u", url).out)
    assert rows == [{"id": "a", "payload": {"text": "\x1b[31m[b]"}}]
    done = here("sql", "select id from queues.q", "--csv", "-", "-u", url)
    assert done.out == "id\na\n"
    done = here("sql", "select id from queues.q", "--csv", "-", "--json", "-u", url)
    assert (done.code, done.err.splitlines()[0]) == (2, "limpet: --json and --csv exclude each other")
    done = here("sql", "select * from queues.nope", "-u", url)
    assert (done.code, done.err) == (2, "limpet: there is no queue 'nope'\nhint: there is q\n")
    done = here("sql", "select * from read_csv('/etc/passwd')", "-u", url)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[1] == "hint: a query reads the fleet only, and no files"


def test_what_cannot_be_read_is_said_on_stderr(here: Here, tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet")
    fleet.queue("q").push({}, id="a")
    fleet.queue("q").push({}, id="b")
    (tmp_path / "fleet" / "queues" / "q" / "pending" / "a" / "task.json").write_text("{")
    done = here("sql", "select id from queues.q", "--json", "-u", str(tmp_path / "fleet"))
    assert (done.code, json.loads(done.out)) == (0, [{"id": "b"}])
    assert done.err.startswith("queues.q: left out: queues/q/pending/a/task.json: ")


def test_query_that_computes_for_too_long_is_stopped(here: Here, tmp_path: Path) -> None:
    url = str(tmp_path / "fleet")
    limpet.open(url).queue("q").push({})
    done = here("sql", "select count(*) from range(1000000000000)", "--timeout", "1s", "-u", url)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "limpet: the query was stopped after 1 s\nhint: select less, or allow more time (--timeout 5m, timeout_s=300)\n"
    )
    done = here("sql", "select 1", "--timeout", "0s", "-u", url)
    assert (done.code, done.err.splitlines()[0]) == (2, "limpet: a query needs time, and not 0 s")


@pytest.mark.parametrize("command", [["sql"], ["index", "sql"]], ids=" ".join)
def test_both_commands_refuse_what_is_more_than_a_select_over_the_fleet(
    here: Here, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    limpet.open(tmp_path / "fleet").queue("q").push({})
    (tmp_path / "secret.txt").write_text("s3cret\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for query in HOSTILE_SQL:
        done = here(*command, query.format(folder=tmp_path), "-u", str(tmp_path / "fleet"))
        assert (done.code, done.out) == (2, ""), query
        assert "s3cret" not in done.err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

"""Commands over all queues of a fleet, the fleet named before the command, and names that the shell completes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import limpet
from cli.harness import Here
from limpet.cli import COMMANDS, PANELS, fleet_names


@pytest.fixture
def failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fleet with two queues: two tasks of `enrich` and one of `mail` have failed, `other` was never worked on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fleet = limpet.open("fleet", durability="os")
    for name, ids in (("enrich", ("a", "b")), ("mail", ("c",))):
        queue = fleet.queue(name, max_attempts=1)
        for id_ in ids:
            queue.push({}, id=id_)
            with queue.claim() as claim:
                for task in claim:
                    task.fail("timeout after 3 s")
    fleet.queue("other").push({}, id="d")


@pytest.mark.usefixtures("failed")
def test_failed_and_retry_of_all_queues(here: Here) -> None:
    rows = [line.split("\t") for line in here("queue", "failed", "-u", "fleet").out.splitlines()]
    assert [[row[0], row[1], row[-1]] for row in rows[1:]] == [
        ["enrich", "2", "timeout after # s"],
        ["mail", "1", "timeout after # s"],
    ]
    told = json.loads(here("queue", "failed", "--json", "-u", "fleet").out)
    assert [(row["queue"], row["count"]) for row in told] == [("enrich", 2), ("mail", 1)]
    would = here("queue", "retry", "--where", "TIMEOUT", "--dry-run", "-u", "fleet").out
    assert would == "would be retried in 'enrich', 2 tasks: a, b\nwould be retried in 'mail', 1 task: c\n"
    assert here("queue", "retry", "enrich", "a", "--dry-run", "-u", "fleet").out == "would be retried, 1 task: a\n"
    assert json.loads(here("queue", "retry", "mail", "--all", "--dry-run", "--json", "-u", "fleet").out) == {
        "queue": "mail",
        "would_retry": ["c"],
    }
    done = json.loads(here("queue", "retry", "--all", "--json", "-u", "fleet").out)
    assert done == [
        {"queue": "enrich", "retried": ["a~1", "b~1"]},
        {"queue": "mail", "retried": ["c~1"]},
        {"queue": "other", "retried": []},
    ]
    assert here("queue", "retry", "--all", "-u", "fleet").out == "nothing has failed in any queue\n"
    assert here("queue", "failed", "-u", "fleet").out == "nothing has failed in any queue\n"


@pytest.mark.usefixtures("failed")
def test_sql_over_the_tasks_of_all_queues(here: Here) -> None:
    query = "select queue, state, count(*) n from tasks group by all order by all"
    rows = json.loads(here("sql", query, "--json", "-u", "fleet").out)
    assert [(row["queue"], row["state"], row["n"]) for row in rows] == [
        ("enrich", "failed", 2),
        ("mail", "failed", 1),
        ("other", "waiting", 1),
    ]
    assert here("sql", "select id from fleet.tasks where queue = 'mail'", "--csv", "-", "-u", "fleet").out == "id\nc\n"


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize(
    "words",
    [("-u", "fleet", "queue", "stats", "mail"), ("--url=fleet", "status"), ("-u", "fleet", "check", "-u", "fleet")],
)
def test_a_fleet_may_be_named_before_the_command(
    here: Here, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMPET_URL", "elsewhere")
    done = here(*words)
    assert "mail" in done.out
    assert not Path("elsewhere").exists()


def test_a_profile_and_a_worker_of_limpet_toml_stand_behind_a_url(here: Here) -> None:
    limpet.open("one", durability="os").queue("mail").push({})
    Path("limpet.toml").write_text('url = "two"\n[profiles.p]\nurl = "three"\n[workers.w]\ntarget = "no:fleet"\n')
    assert "mail" in here("-u", "one", "--profile", "p", "status").out
    assert "there is no module 'no'" in here("-u", "one", "work", "w").err


def test_a_backup_takes_the_fleet_by_url(here: Here) -> None:
    limpet.open("fleet", durability="os").queue("mail").push({}, id="a")
    assert here("backup", "copy", "-u", "fleet").code == 0
    assert here("-u", "again", "restore", "copy").code == 0
    assert [task.id for task in limpet.open("again").queue("mail").peek()] == ["a"]
    assert here("doctor", "-u", "place", "--rounds", "1", "--json").code == 0


def test_help_has_a_frame_for_each_command(here: Here) -> None:
    framed = [name for names in PANELS.values() for name in names]
    assert sorted(framed) == sorted(COMMANDS)
    assert all(f" {title} " in here("--help").out for title in PANELS)
    assert " Keep " in here("queue", "--help").out


def _completed(here: Here, monkeypatch: pytest.MonkeyPatch, shell: str, *words: str) -> str:
    monkeypatch.setenv("_LIMPET_COMPLETE", f"complete_{shell}")
    line = " ".join(("limpet", *words))
    if shell == "bash":
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
    else:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    done = here()
    assert done.err == ""
    return done.out


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize(
    ("shell", "out"), [("bash", "mail\n"), ("fish", "mail\n"), ("zsh", "_arguments '*: :((\"mail\"))'\n")]
)
def test_names_of_queues_are_completed(here: Here, monkeypatch: pytest.MonkeyPatch, shell: str, out: str) -> None:
    monkeypatch.setattr(fleet_names, "WAIT_S", 20.0)
    limpet.open("fleet").queue("m $(x)").push({})
    for words in (("-u", "fleet", "queue", "show", "m"), ("check", "-u", "fleet", "-q", "m")):
        assert _completed(here, monkeypatch, shell, *words) == out
    monkeypatch.setenv("LIMPET_URL", "fleet")
    assert _completed(here, monkeypatch, shell, "queue", "peek", "m") == out


@pytest.mark.usefixtures("failed")
def test_completed_names_are_kept_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_names, "WAIT_S", 20.0)
    assert fleet_names.names_for("queue", "fleet") == ["enrich", "mail", "other"]
    limpet.open("fleet").queue("new").push({})
    assert "new" not in fleet_names.names_for("queue", "fleet")
    [kept] = Path(os.environ["XDG_CACHE_HOME"]).rglob("names/*")
    os.utime(kept, (0, 0))
    assert "new" in fleet_names.names_for("queue", "fleet")
    limpet.open("fleet").index("sites", {"fields": [{"name": "a", "type": "string"}]}, key="a", depth=2).compile()
    assert fleet_names.names_for("index", "fleet") == ["sites"]


@pytest.mark.usefixtures("failed")
def test_a_store_that_does_not_answer_completes_nothing(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _completed(here, monkeypatch, "bash", "-u", "./typo", "queue", "show", "m").strip() == ""
    assert not Path("typo").exists()
    silent, _ = os.pipe()
    monkeypatch.setattr(fleet_names, "_list", lambda kind, where: [str(os.read(silent, 1))])
    assert _completed(here, monkeypatch, "bash", "-u", "fleet", "queue", "show", "m").strip() == ""

"""Commands on a fleet whose queues are on SQS: they work, or say that they cannot. Never `ok` by default."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import limpet
from cli.harness import COMMANDS, NEED_STORE, Here
from limpet.app.health import Limits
from limpet.app.overview import OverviewWatch
from support.servers.moto import REGION, Moto
from support.servers.process import NotInstalled


@pytest.fixture(scope="module")
def moto() -> Iterator[dict[str, str]]:
    """What a client of a moto server needs in its environment."""
    try:
        with Moto() as server:
            yield dict(server.bucket.env)
    except NotInstalled as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture
def url(moto: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {**moto, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    return f"sqs://{REGION}/t{uuid4().hex[:8]}"


def test_check_is_red_with_one_message_waiting(here: Here, url: str) -> None:
    limpet.open(url).queue("jobs").push({"n": 1})
    done = here("check", "--max-pending", "0", "-u", url)
    assert (done.code, done.out) == (1, "jobs: about 1 task pending, and --max-pending is 0\n")
    done = here("check", "--max-pending", "1", "--max-failed", "0", "-u", url)
    assert (done.code, done.out) == (0, "ok: 1 queue within limits\n")
    done = here("check", "--max-pending", "0", "-q", "jobs", "-u", url, "--json")
    assert (done.code, json.loads(done.out)["ok"]) == (1, False)


def test_a_rule_that_cannot_be_checked_is_violated(here: Here, url: str) -> None:
    limpet.open(url).queue("jobs").push({"n": 1})
    done = here("check", "--max-age", "1h", "-u", url)
    assert (done.code, done.out) == (1, "jobs: --max-age cannot be checked: SQS does not report how old a task is\n")
    done = here("check", "--max-pending", "5", "-q", "jbos", "-u", url)
    assert done.code == 1
    assert done.err.splitlines()[0] == f"limpet: there is no queue 'jbos' at {url}"
    assert "did you mean 'jobs'?" in done.err


def test_a_url_without_any_queue_is_not_ok(here: Here, url: str) -> None:
    """SQS has no record of a fleet: a typo in the prefix looks like a fleet without queues."""
    done = here("check", "--max-pending", "0", "-u", url)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[0] == f"limpet: there is no queue at {url}"


def test_failed_tasks_count_and_so_does_a_dead_letter_queue(here: Here, url: str) -> None:
    queue = limpet.open(url).queue("jobs", max_attempts=1)
    queue.push({"n": 1})
    with queue.claim(wait_s=5) as claim:
        for task in claim:
            task.fail("no")
    wire = queue._client  # type: ignore[attr-defined]
    prefix = url.rpartition("/")[2]
    dead = wire.client.create_queue(QueueName=f"{prefix}-dead")["QueueUrl"]
    arn = wire.client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "9"})
    main = wire.client.get_queue_url(QueueName=f"{prefix}_jobs")["QueueUrl"]
    wire.client.set_queue_attributes(QueueUrl=main, Attributes={"RedrivePolicy": policy})
    wire.client.send_message_batch(QueueUrl=dead, Entries=[{"Id": str(n), "MessageBody": "x"} for n in range(2)])
    assert queue.stats().failed == 3
    done = here("check", "--max-failed", "2", "-u", url)
    assert (done.code, done.out) == (1, "jobs: about 3 tasks failed, and --max-failed is 2\n")


def test_status_ls_and_stats_show_the_numbers_of_sqs(here: Here, url: str) -> None:
    fleet = limpet.open(url)
    for n in range(3):
        fleet.queue("jobs").push({"n": n})
    fleet.queue("later").push({"n": 1}, delay_s=600)
    claim = fleet.queue("jobs").claim(wait_s=5)
    assert claim
    assert fleet.queues() == ["jobs", "later"]
    rows = json.loads(here("queue", "ls", "-u", url, "--json").out)
    counts = {row["queue"]: (row["pending"], row["in_flight"], row["scheduled"], row["completed"]) for row in rows}
    assert counts == {"jobs": (3, 1, 0, None), "later": (0, 0, 1, None)}
    assert all(row["approximate"] for row in rows)
    for command in (("status",), ("queue", "ls")):
        done = here(*command, "-u", url)
        assert done.code == 0
        assert done.out.splitlines()[1].split("\t")[:4] == ["jobs", "3", "1", "-"]
        assert "approximate" in done.out
        assert "no queue was ever used" not in done.out
    done = here("queue", "stats", "jobs", "-u", url)
    assert done.code == 0, done.err
    assert [line.split() for line in done.out.splitlines()[1:6]] == [
        ["pending", "3"],
        ["running", "1"],
        ["resting", "-"],
        ["scheduled", "0"],
        ["completed", "-"],
    ]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("ls", "jobs"), "cannot list its tasks"),
        (("show", "jobs", "x"), "cannot show a task's lease"),
        (("ls", "jobs", "--failed"), "cannot list its tasks"),
        (("failed", "jobs"), "cannot list what failed"),
        (("peek", "jobs"), "has no peek"),
        (("cost", "jobs"), "cannot be priced"),
        (("cancel", "jobs", "x"), "has no cancel"),
        (("signal", "jobs", "x", "go"), "cannot send a signal"),
        (("pause", "jobs"), "has no pause"),
        (("resume", "jobs"), "has no pause"),
        (("sweep", "jobs"), "cannot be swept"),
        (("adopt", "jobs", "--from", "old"), "cannot take over files"),
        (("push", "jobs", "{}", "--id", "x"), "has no ids"),
    ],
)
def test_what_sqs_cannot_do_is_said(here: Here, url: str, command: tuple[str, ...], said: str) -> None:
    limpet.open(url).queue("jobs").push({"n": 1})
    done = here("queue", *command, "-u", url)
    assert (done.code, done.out) == (1, "")
    line, hint = done.err.splitlines()
    assert line.startswith("limpet: queue 'jobs' lives in sqs, which ")
    assert said in line
    assert hint.startswith("hint: ")


WITH_QUEUES = {
    ("check",),
    ("metrics",),
    ("status",),
    ("top",),
    ("ui",),
    ("work",),
    *(words for words in COMMANDS if words[:1] == ("queue",)),
}
"""Those that work on SQS, or refuse one queue by its name: the other tests of this file."""


@pytest.mark.parametrize("command", NEED_STORE, ids=" ".join)
def test_what_needs_a_store_says_that_sqs_is_none(
    here: Here, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line and a hint, before any request is made: nothing listens at that address."""
    monkeypatch.setenv("LIMPET_SQS_ENDPOINT", "http://127.0.0.1:9")
    url = f"sqs://{REGION}/pre"
    arguments = [word.replace("URL", url).replace("PLACE", str(tmp_path)) for word in NEED_STORE[command]]
    done = here(*command, *([] if url in arguments else ["-u", url]), *arguments)
    assert (done.code, done.out) == (1, "")
    line, hint = done.err.splitlines()
    assert line.startswith("limpet: SQS has queues and nothing else: ")
    assert hint.startswith("hint: use a bucket or a directory")


def test_no_command_is_left_out() -> None:
    groups = {words[:-1] for words in COMMANDS if words} - {("serve",)}
    no_url = {("completion",), ("iam",)}  # it needs no fleet; it takes a bucket's URL, and says so
    assert {*COMMANDS} - groups - no_url == NEED_STORE.keys() | WITH_QUEUES - {("queue",)}


def test_the_dashboard_shows_the_queues(url: str) -> None:
    fleet = limpet.open(url)
    fleet.queue("jobs").push({"n": 1})
    assert OverviewWatch(fleet).look().alerts == [], "SQS reports neither ages nor workers"
    watch = OverviewWatch(fleet, Limits(pending=0))
    found = watch.look()
    assert [(each.queue, each.pending, each.approximate) for each in found.queues] == [("jobs", 1, True)]
    assert [(each.rule, each.bound) for each in found.alerts] == [("max-pending", "about")]
    assert (found.trouble, found.catalog, found.indexes) == ({}, None, ())
    for _ in range(5):
        watch.look(now=True)
    assert watch.wait_s() > 60  # requests to SQS cost too: it backs off


def test_a_policy_and_a_node_need_a_bucket_and_a_directory(here: Here, tmp_path: Path) -> None:
    done = here("iam", "--provider", "aws", "--role", "worker", "-u", "sqs://eu-west-1/pre")
    assert (done.code, done.err.splitlines()[0]) == (2, "limpet: 'sqs://eu-west-1/pre' is not a bucket's URL")
    done = here("supervise", "--local", "sqs://eu-west-1/pre", "--remote", str(tmp_path), "--once")
    assert (done.code, done.err.splitlines()) == (
        2,
        ["limpet: --local is a directory of this machine, not sqs:/eu-west-1/pre", "hint: the bucket is --remote"],
    )
    assert not [*tmp_path.iterdir()]


def test_what_sqs_can_do_works(here: Here, url: str) -> None:
    done = here("queue", "push", "jobs", "{}", "-u", url)
    assert (done.code, done.err) == (0, "(new queue)\n")
    assert here("queue", "push", "jobs", "{}", "-u", url).err == ""
    assert here("queue", "retry", "jobs", "--all", "-u", url).code == 0
    done = here("queue", "retry", "jobs", "x", "-u", url)
    assert (done.code, done.err.splitlines()[1]) == (1, "hint: --all retries all")
    done = here("queue", "purge", "jobs", "--yes", "-u", url)
    assert (done.code, done.out) == (0, "dropped 2 tasks of 'jobs'\n")
    for command in (("stats", "jbos"), ("purge", "jbos", "--yes"), ("retry", "jbos", "--all")):
        assert here("queue", *command, "-u", url).code == 1


def test_top_and_metrics_show_the_numbers_of_sqs(here: Here, url: str, tmp_path: Path) -> None:
    limpet.open(url).queue("jobs").push({"n": 1})
    done = here("top", "--once", "-u", url)
    assert (done.code, done.err) == (0, "")
    assert ["jobs", "1", "0"] in [line.split("\t")[:3] for line in done.out.splitlines()]
    done = here("metrics", "--textfile", str(tmp_path / "out.prom"), "-u", url)
    assert done.code == 0, done.err
    text = (tmp_path / "out.prom").read_text()
    assert 'limpet_queue_pending{queue="jobs"} 1.0\n' in text
    assert "limpet_queue_oldest_seconds{" not in text, "SQS reports no ages"

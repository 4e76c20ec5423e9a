"""`limpet queue ls | show | peek | stats | cost`: what an operator sees, and that looking changes nothing."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

import limpet
from cli.harness import Here
from limpet.kernel.keys import Key, batch_of
from limpet.kernel.runtime import system
from limpet.queue import Queue
from limpet.testing import drain

WORKER = f"{os.uname().nodename}:{os.getpid()}"
LOOKS = [
    ("ls",),
    ("ls", "enrich"),
    ("show", "enrich", "ok"),
    ("peek", "enrich"),
    ("stats", "enrich"),
    ("cost", "enrich"),
]


@pytest.fixture(autouse=True)
def _fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet in memory, which commands and tests find without a URL."""
    monkeypatch.setenv("LIMPET_URL", f"memory://{system().new_id()}")


def _fail(task: Any) -> None:
    task.fail("gone [bold]away[/bold]\x1b[31m\nfor good", "Traceback:\n  here")


def _run(queue: Queue, entries: int = 1) -> None:
    """Claim so many entries and do what each task says."""
    for _ in range(entries):
        with queue.claim() as claim:
            assert claim
            for task in claim:
                match task.payload.get("do"):
                    case "fail":
                        _fail(task)
                    case "rest":
                        task.retry(after_s=600, error="429")
                    case _:
                        task.done({"title": "Hi"})


@pytest.fixture
def queue() -> Queue:
    """One task for each state, and a batch of 10 of which one failed."""
    queue = limpet.open().queue("enrich", ttl_s=600)
    for id_, do in (("ok", "done"), ("bad/1", "fail"), ("rest", "rest")):
        queue.push({"do": do}, id=id_)
        _run(queue)
    queue.push_many([{"do": "fail" if n == 3 else "done"} for n in range(10)], batch=10)
    _run(queue)
    queue.push({"do": "wait"}, id="held")
    assert queue.claim()
    queue.push({"do": "wait"}, id="waits")
    queue.push({"do": "later"}, id="later", delay_s=600)
    queue.push({"do": "drop"}, id="dropped")
    queue.cancel("dropped")
    return queue


def _json(here: Here, *arguments: str) -> Any:
    done = here("queue", *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def _rows(out: str) -> dict[str, str]:
    """The lines of `queue show`, up to the traceback."""
    return dict(line.split("\t", 1) for line in out.splitlines() if "\t" in line)


def test_ls_shows_all_queues(here: Here, queue: Queue) -> None:
    limpet.open().queue("a [b]").push({})
    title, first, second = here("queue", "ls").out.splitlines()
    assert title == "queue\tpending\trunning\tresting\tscheduled\tcompleted\tfailed\toldest"
    assert first.split()[:7] == ["a", "[b]", "1", "0", "0", "0", "0"]
    assert second.split()[:7] == ["enrich", "3", "1", "1", "1", "10", "2"]
    assert second.endswith("1 cancelled")
    assert [(each["queue"], each["pending"]) for each in _json(here, "ls")] == [("a [b]", 1), ("enrich", 3)]


def test_ls_pending_tells_who_works_on_what(here: Here, queue: Queue) -> None:
    rows = {row["id"]: row for row in _json(here, "ls", "enrich")}
    assert [(id_, row["state"], row["attempt"], row["worker"]) for id_, row in rows.items()] == [
        ("held", "running", 1, WORKER),
        ("rest", "resting", 1, None),
        ("waits", "waiting", 0, None),
    ]
    assert 590 < rows["rest"]["rests_s"] <= 600
    shown = here("queue", "ls", "enrich").out
    assert [line.split()[0] for line in shown.splitlines()] == ["id", "held", "rest", "waits"]
    assert "resting 10 min" in shown


def test_ls_failed_and_completed(here: Here, queue: Queue) -> None:
    failed = _json(here, "ls", "enrich", "--failed")
    assert sorted((row["id"].rpartition("-")[2], row["state"]) for row in failed) == [
        ("10.3", "failed"),
        ("bad/1", "failed"),
        ("dropped", "cancelled"),
    ]
    [batch, single] = _json(here, "ls", "enrich", "--completed")
    assert (batch["tasks"], batch["failed"], single["id"], single["tasks"]) == (10, 1, "ok", 1)
    shown = here("queue", "ls", "enrich", "--failed").out
    assert "gone [bold]away[/bold]\\x1b[31m for good" in shown
    assert "\x1b" not in shown


def test_ls_leaves_out_what_was_retried(here: Here, queue: Queue) -> None:
    queue.retry("bad/1")
    assert "bad/1" not in [row["id"] for row in _json(here, "ls", "enrich", "--failed")]
    assert "bad/1~1" in [row["id"] for row in _json(here, "ls", "enrich")]


def test_ls_shows_so_many(here: Here) -> None:
    queue = limpet.open().queue("enrich")
    for n in range(5):
        queue.push({"n": n})
    shown = here("queue", "ls", "enrich", "-n", "3").out.splitlines()
    assert (len(shown), shown[-1]) == (6, "There are more: -n 15 shows more of them.")
    assert len(_json(here, "ls", "enrich", "-n", "3")) == 3
    assert len(here("queue", "ls", "enrich", "-n", "5").out.splitlines()) == 6


def test_a_name_that_is_too_long_for_a_key_is_shown_as_it_is(here: Here) -> None:
    long = "x" * 300
    limpet.open().queue("enrich").push({"n": 1}, id=long)
    assert [row["id"] for row in _json(here, "ls", "enrich")] == [long]
    assert _json(here, "show", "enrich", long)["payload"] == {"n": 1}


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--pending", "nothing waits in"),
        ("--failed", "nothing has failed in"),
        ("--completed", "nothing is completed in"),
        ("--scheduled", "nothing is scheduled in"),
    ],
)
def test_ls_of_nothing(here: Here, flag: str, said: str) -> None:
    queue = limpet.open().queue("enrich")
    queue.pause()
    assert here("queue", "ls", "enrich", flag).out == f"{said} 'enrich'\n"
    assert _json(here, "ls", "enrich", flag) == []


def test_ls_of_a_fleet_without_queues(here: Here) -> None:
    limpet.open().check()
    assert here("queue", "ls").out == f"no queue was ever used at {limpet.open().url}\n"
    assert _json(here, "ls") == []


@pytest.mark.parametrize("arguments", [("ls", "q", "--failed", "--pending"), ("ls", "--failed")])
def test_ls_wants_one_list(here: Here, arguments: tuple[str, ...]) -> None:
    limpet.open().queue("q").push({})
    done = here("queue", *arguments)
    assert (done.code, done.out) == (2, "")
    assert "--failed" in done.err


def test_show_what_ended(here: Here, queue: Queue) -> None:
    rows = _rows(here("queue", "show", "enrich", "ok").out)
    assert (rows["task"], rows["state"], rows["worker"], rows["attempts"]) == ("ok", "completed", WORKER, "1")
    assert rows["result"] == '{"title":"Hi"}'
    facts = _json(here, "show", "enrich", "bad/1")
    assert (facts["state"], facts["payload"], facts["traceback"]) == ("failed", {"do": "fail"}, "Traceback:\n  here")
    shown = here("queue", "show", "enrich", "bad/1").out
    assert shown.endswith("\n| Traceback:\n|   here\n")
    assert "gone [bold]away[/bold]\\x1b[31m" in shown
    assert _json(here, "show", "enrich", "dropped")["state"] == "cancelled"


def test_show_what_waits(here: Here, queue: Queue) -> None:
    held = _json(here, "show", "enrich", "held")
    assert (held["state"], held["worker"], held["token"], held["attempt"]) == ("running", WORKER, 1, 1)
    rests = _rows(here("queue", "show", "enrich", "rest").out)
    assert (rests["state"], rests["next try"], rests["error"]) == ("resting", "in 10 min", "429")
    assert _json(here, "show", "enrich", "waits")["state"] == "waiting"
    later = _json(here, "show", "enrich", "later")
    assert (later["state"], later["payload"]) == ("scheduled", {"do": "later"})


def test_show_follows_a_retry(here: Here, queue: Queue) -> None:
    queue.retry("bad/1")
    rows = _rows(here("queue", "show", "enrich", "bad/1").out)
    assert (rows["task"], rows["state"], rows["retried"]) == ("bad/1~1", "waiting", "bad/1 was retried as bad/1~1")


def test_show_a_batch_and_its_tasks(here: Here, queue: Queue) -> None:
    [batch, _] = _json(here, "ls", "enrich", "--completed")
    whole = _json(here, "show", "enrich", batch["id"])
    assert (whole["state"], whole["tasks"], whole["failed"]) == ("completed", 10, [f"{batch['id']}.3"])
    assert _json(here, "show", "enrich", f"{batch['id']}.4")["result"] == {"title": "Hi"}
    assert _json(here, "show", "enrich", f"{batch['id']}.3")["state"] == "failed"


def test_show_a_batch_on_its_way(here: Here) -> None:
    queue = limpet.open().queue("enrich", ttl_s=600)
    first, *_ = queue.push_many([{"n": n} for n in range(4)], batch=4)
    part = batch_of(first)
    assert part is not None
    entry, _ = part
    assert _json(here, "show", "enrich", entry) | {"pushed_at": 0} == {
        "queue": "enrich",
        "id": entry,
        "state": "waiting",
        "old_state": "waits",
        "attempt": 0,
        "worker": None,
        "pushed_at": 0,
        "tasks": 4,
    }
    claim = queue.claim()
    tasks = iter(claim)
    next(tasks).done()
    next(tasks).fail("no")
    next(tasks).retry(after_s=600, error="429")
    claim.hand_back()
    whole = _json(here, "show", "enrich", entry)
    assert (whole["done"], whole["failed"], whole["tasks"]) == (1, [f"{entry}.1"], 4)
    states = [_json(here, "show", "enrich", f"{entry}.{n}")["state"] for n in range(4)]
    assert states == ["completed", "failed", "resting", "waiting"]
    assert "completed" in here("queue", "show", "enrich", f"{entry}.0").out
    assert "1 of 4" in here("queue", "ls", "enrich").out
    assert "1 done, in batches that have not ended" in here("queue", "stats", "enrich").out
    assert here("queue", "show", "enrich", f"{entry}.4").code == 1


def test_peek_shows_payloads(here: Here) -> None:
    queue = limpet.open().queue("enrich")
    queue.push({"a": "[b]"}, id="x")
    title, payload = here("queue", "peek", "enrich").out.splitlines()
    assert title.startswith("x  pushed 20")
    assert payload == '  {"a":"[b]"}'
    queue.push_many([{"n": n} for n in range(50)])
    assert len(_json(here, "peek", "enrich", "-n", "7")) == 7
    queue.purge()
    assert here("queue", "peek", "enrich").out == "nothing waits in 'enrich'\n"


def test_stats_counts_one_queue(here: Here, queue: Queue) -> None:
    stats = queue.stats()
    found = _json(here, "stats", "enrich")
    for name in ("pending", "running", "resting", "scheduled", "completed", "failed", "cancelled", "paused"):
        assert found[name] == getattr(stats, name), name
    shown = here("queue", "stats", "enrich").out
    assert [line.split()[-1] for line in shown.splitlines()][:8] == ["enrich", "3", "1", "1", "1", "10", "2", "1"]


def test_cost_stands_beside_sqs(here: Here, queue: Queue) -> None:
    facts = _json(here, "cost", "enrich")
    assert (facts["tasks"], facts["entries"], facts["receipts_read"]) == (13, 4, 4)
    assert facts["dollars"] == 0
    assert facts["dollars_in_a_bucket"] > 0
    assert facts["per_million"]["sqs_1"]["dollars"] == pytest.approx(1.2)
    assert facts["per_million"]["sqs_10"]["dollars"] == pytest.approx(0.12)
    assert facts["per_million"]["this_queue"]["dollars"] > 1
    shown = here("queue", "cost", "enrich").out
    assert "nothing here; $0.00009" in shown
    assert "SQS is cheaper: this queue costs" in shown
    assert "not metered" in shown
    idle = facts["idle_worker"]
    assert (idle["poll_s"], idle["a_month"]["dollars"]) == (2.0, 0.0)
    assert idle["a_month_in_a_bucket"]["dollars"] < 0.86
    assert "An idle worker costs nothing here; in a bucket up to $0.854 a month on S3." in shown


def test_cost_of_large_batches_is_below_sqs(here: Here) -> None:
    queue = limpet.open().queue("enrich")
    queue.push_many([{"n": n} for n in range(1000)], batch=1000)
    _run(queue)
    assert "Limpet is cheaper: this queue takes" in here("queue", "cost", "enrich").out


def test_cost_before_anything_has_ended(here: Here) -> None:
    limpet.open().queue("enrich").push({})
    shown = here("queue", "cost", "enrich").out
    assert shown.startswith("enrich: nothing has ended yet; 1 entry waiting\n")
    assert "this_queue" not in _json(here, "cost", "enrich")["per_million"]


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_looking_changes_nothing(here: Here, queue: Queue, arguments: tuple[str, ...]) -> None:
    store = limpet.open().store
    before = {stat.key: stat.version for stat in store.list()}
    assert here("queue", *arguments).code == 0
    assert {stat.key: stat.version for stat in store.list()} == before


@pytest.mark.parametrize("arguments", LOOKS[1:], ids=" ".join)
def test_a_mistyped_queue_is_named(here: Here, arguments: tuple[str, ...]) -> None:
    limpet.open().queue("enrihc").push({})
    done = here("queue", *arguments)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"limpet: there is no queue 'enrich' at {limpet.open().url}\n"
        "hint: did you mean 'enrihc'? `limpet queue ls` shows all\n"
    )


def test_an_unknown_task(here: Here) -> None:
    limpet.open().queue("enrich").push({})
    done = here("queue", "show", "enrich", "nope")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("limpet: there is no task 'nope' in queue 'enrich'\nhint: `limpet queue ls enrich`")


def test_a_corrupt_receipt_is_one_line(here: Here) -> None:
    limpet.open().queue("enrich").push({})
    limpet.open().store.put(Key("queues/enrich/failed/x.json"), b"{garbage")
    done = here("queue", "ls", "enrich", "--failed")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("limpet: queues/enrich/failed/x.json is not a valid ")


def test_show_tells_of_every_attempt(here: Here) -> None:
    queue = limpet.open("fleet").queue("flaky", max_attempts=2, backoff_s=0.0)
    queue.push({}, id="x")
    for n in (1, 2):
        with queue.claim(wait_s=5) as claim:
            for task in claim:
                task.retry(0.0, f"error {n}", f"Traceback:\n  line {n}")
        shown = here("queue", "show", "flaky", "x", "-u", "fleet").out
        for m in range(1, n + 1):
            assert f"\nattempt {m} failed " in shown
            assert f": error {m}\n| Traceback:\n|   line {m}\n" in shown
    told = json.loads(here("queue", "show", "flaky", "x", "-u", "fleet", "--json").out)
    assert [(each["attempt"], each["error"]) for each in told["errors"]] == [(1, "error 1"), (2, "error 2")]


def test_a_suspended_task_is_shown_with_what_it_waits_for_and_its_steps(here: Here) -> None:
    fleet = limpet.open()

    @fleet.task("orders")
    def order() -> None:
        limpet.step(int, "7", name="reserve")
        limpet.wait_signal("approved", timeout_s=86400)

    order.using(id="seven").push()
    drain(fleet)
    [row] = json.loads(here("queue", "ls", "orders", "--json").out)
    assert (row["state"], row["reason"]) == ("suspended", "waiting for the signal 'approved'")
    [line] = [line for line in here("queue", "ls", "orders").out.splitlines() if line.startswith("seven")]
    assert "suspended" in line
    assert "waiting for the signal 'approved'" in line
    told = here("queue", "show", "orders", "seven").out
    facts = dict(re.split(r" {2,}|\t", line.strip(), maxsplit=1) for line in told.splitlines() if line.strip())
    assert facts["state"] == "suspended"
    assert facts["suspended"].startswith("waiting for the signal 'approved', since ")
    assert re.fullmatch(rf"step reserve\t.* UTC\t[\d.]+ m?s\t{WORKER}\t7", facts["0"])
    assert facts["1"].startswith("timer of 86400 s for signal approved\t")
    assert "waits until" in facts
    assert not {"heartbeat", "token", "worker"} & facts.keys(), "no worker holds it"
    assert here("queue", "ls").out.splitlines()[1].endswith("\t1 suspended")
    assert (
        "of them          1 suspended; the oldest: waiting for the signal 'approved'"
        in here("queue", "stats", "orders").out
    )


def test_a_failed_durable_task_is_shown_with_its_steps_and_its_waits(here: Here) -> None:
    fleet = limpet.open()

    @fleet.task("orders", max_attempts=1)
    def order() -> None:
        limpet.step(int, "7", name="reserve")
        limpet.sleep(0)
        limpet.wait_signal("approved")
        raise RuntimeError("no van")

    order.using(id="seven").push()
    drain(fleet)
    fleet.queue("orders").signal("seven", "approved", "ann")
    drain(fleet)
    told = here("queue", "show", "orders", "seven").out
    assert re.search(r"(?m)^state +failed$|^state\tfailed$", told)
    assert re.search(r"(?m)^0\tstep reserve\t.* UTC\t[\d.]+ m?s\t", told)
    assert re.search(r"(?m)^1\tsleep of 0 s\t.* UTC\twaited 0 s\t", told)
    assert re.search(r"(?m)^2\tsignal approved\t.* UTC\twaited \d+ s\t", told)


def test_what_has_ended_can_be_looked_at(here: Here) -> None:
    fleet = limpet.open()

    @fleet.task("parcels")
    def parcel(n: int) -> int:
        return n

    @fleet.task("orders")
    def order(customer: str) -> str:
        limpet.step(str.upper, customer, name="reserve")
        parcel.push_many([(n,) for n in range(3)])
        return str(limpet.wait_signal("approved"))

    order.using(id="seven").push("bob")
    drain(fleet)
    assert here("queue", "signal", "orders", "seven", "approved", '"yes"').code == 0
    drain(fleet)
    told = here("queue", "show", "orders", "seven").out
    for line in (
        r"state\tcompleted",
        r"pushed\t.* UTC",
        r"began\t.* UTC",
        r"handler\tran for [\d.]+ m?s",
        r'payload\t\{"customer":"bob"\}',
        r'result\t"yes"',
        rf'0\tstep reserve\t.* UTC\t[\d.]+ m?s\t{WORKER}\t"BOB"',
        r'2\tsignal approved\t.*"yes".*"by":"\w+@.*',
        r"\w+-3\.2\tparcels\tcompleted",
    ):
        assert re.search(f"(?m)^{line}$", told), line
    facts = json.loads(here("queue", "show", "orders", "seven", "--json").out)
    assert [step["kind"] for step in facts["steps"]] == ["step", "push", "signal"]
    child = facts["children"][2]["id"]
    told = here("queue", "show", "parcels", child).out
    assert "\npushed by\tstep 1 of seven in orders\n" in told
    assert '\npayload\t{"n":2}\n' in told
    last = here("queue", "ls", "orders", "--completed").out.splitlines()
    assert last[0] == "id\ttasks\tfailed\tpushed\tended\ttook\tpayload"
    assert re.fullmatch(r'seven\t1\t0\t.* ago\t.* ago\t[\d.]+ m?s\t\{"customer":"bob"\}', last[1])
    stats = json.loads(here("queue", "stats", "parcels", "--json").out)
    assert stats["handlers"]["tasks"] == 3
    assert re.search(r"handlers   p50 [\d.]+ m?s, p99 [\d.]+ m?s", here("queue", "stats", "parcels").out)
    rows = json.loads(here("sql", "select * from queues.parcels order by id", "--json").out)
    assert [(row["parent"], row["payload"]) for row in rows] == [("orders/seven#1", {"n": n}) for n in range(3)]
    assert all(row["took_s"] >= 0 for row in rows)


def test_what_ended_last_is_listed_first(here: Here) -> None:
    fleet = limpet.open()

    @fleet.task("echo")
    def echo(text: str) -> str:
        return text

    for id_, text in (("z", "first"), ("m", "second"), ("a", "x" * 100)):
        echo.using(id=id_).push(text)
        drain(fleet)
    told = here("queue", "ls", "echo", "--completed", "--limit", "2").out.splitlines()
    assert [line.split("\t")[0] for line in told[1:3]] == ["a", "m"]
    assert told[1].endswith("xxx...")
    assert "There are more" in told[-1]

"""What is kept of a task that has completed: payload, times, steps, signals; and that it goes with the receipt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

import limpet
from limpet.kernel import records
from limpet.kernel.cell import Versioned
from limpet.kernel.keys import derived
from limpet.kernel.store import Version
from limpet.queue.claim import EntryTask
from limpet.queue.entry import (
    KEPT_PAYLOAD_BYTES_MAX,
    KEPT_PAYLOADS_BYTES_MAX,
    GatheredStep,
    GatheredTask,
    PushedStep,
    StepRecord,
    kept_payloads,
)
from limpet.queue.history import (
    HISTORY_BYTES_MAX,
    VALUE_BYTES_MAX,
    HistoryRecord,
    children_of,
    fitted_histories,
    history_of,
    history_step,
    step_facts,
)
from limpet.queue.rows import task_rows
from limpet.worker import Job, Worker
from support.clock import EPOCH
from support.queue import Process, World

DAY_S = 86400.0


def recorded(value: Any = None, **fields: Any) -> StepRecord:
    base: dict[str, Any] = {"kind": "step", "name": "act", "token": 1, "began_at": EPOCH, "at": EPOCH}
    return StepRecord(**{**base, "value": msgspec.Raw(records.encode(value)), **fields})


def log_of(*steps: StepRecord) -> dict[int, Versioned[StepRecord]]:
    header: Any = None
    return {n: Versioned(step, header, Version("v"), EPOCH) for n, step in enumerate(steps)}


# ---- what is kept of steps ----


def test_a_long_value_is_kept_as_size_and_digest() -> None:
    short, long = history_step(0, recorded("x" * 9), VALUE_BYTES_MAX), recorded("x" * VALUE_BYTES_MAX)
    assert (bytes(short.value), short.size) == (b'"xxxxxxxxx"', 0)
    cut = history_step(0, long, VALUE_BYTES_MAX)
    assert (bytes(cut.value), cut.size) == (b"null", VALUE_BYTES_MAX + 2)
    assert cut.sha256 == records.digest_of(bytes(long.value))
    assert {"value_bytes": cut.size, "value_sha256": cut.sha256}.items() <= step_facts([cut])[0].items()


def test_a_gather_is_counted_and_a_push_names_its_tasks() -> None:
    ends = [GatheredTask(state="completed", value=msgspec.Raw(b"1" * 50))] * 90 + [GatheredTask(state="failed")]
    gather = history_step(2, recorded(GatheredStep(tasks=ends), kind="gather"), VALUE_BYTES_MAX)
    assert msgspec.json.decode(gather.value) == {"completed": 90, "failed": 1}
    first, second = (f"{derived('push', 'a', n)}-{count}" for n, count in ((0, 30), (1, 2)))
    many = history_step(1, recorded(PushedStep(entries=[first, second]), kind="push", name="q"))
    one = history_step(3, recorded(PushedStep(id="order-7"), kind="push", name="r"))
    assert (many.tasks, one.tasks) == (32, 1)
    assert children_of([many, one], 31) == [*(("q", f"{first}.{n}") for n in range(30)), ("q", f"{second}.0")]
    assert children_of([one], 20) == [("r", "order-7")], "an id that looks like a batch's is one of a user"


@pytest.mark.parametrize(
    ("steps", "size", "left_out", "kept_value"),
    [(10, 900, 0, 900), (300, 900, 0, 0), (1000, 100, 500, 0)],
)
def test_a_history_is_bounded(steps: int, size: int, left_out: int, kept_value: int) -> None:
    history = history_of(log_of(*[recorded("x" * size, label="host:1")] * steps), "life")
    assert len(records.encode(history)) <= HISTORY_BYTES_MAX + 100
    assert (len(history.steps) + history.left_out, history.left_out) == (steps, left_out)
    assert [history.steps[0].number, history.steps[-1].number] == [0, steps - 1]
    assert (len(bytes(history.steps[0].value)) - 2 == kept_value) is bool(kept_value)


def test_the_histories_of_a_batch_share_one_object() -> None:
    small = history_of(log_of(recorded(1)), "a.0")
    large = history_of(log_of(*[recorded("x" * 900)] * 100), "a.1")
    record = fitted_histories(dict.fromkeys(range(1, 9), large) | {0: small})
    assert len(records.encode(record)) <= HISTORY_BYTES_MAX
    assert record.tasks[0] == small
    assert [record.tasks[n].left_out for n in range(1, 9)] == [*[100] * 7, 0], "the last one has the room that is left"


def test_the_payloads_that_a_batch_keeps() -> None:
    large = b'"' + b"x" * KEPT_PAYLOAD_BYTES_MAX + b'"'
    assert kept_payloads([b"1", large, b"not json", b"[2]"]).keys() == {0, 3}
    some = kept_payloads([b'"' + b"x" * 1000 + b'"'] * 1000)
    assert [*some] == [*range(len(some))]
    assert 60 < len(some) < KEPT_PAYLOADS_BYTES_MAX // 1000


# ---- as workers write it ----


def order(payload: Any) -> Any:
    first = limpet.step(str.upper, payload["name"], name="reserve")
    return [first, limpet.wait_signal("approved", timeout_s=payload.get("wait_s", 0))]


def work(process: Process, handle: Any = order) -> None:
    Worker([Job(process.queue, handle)], process.runtime, burst=True).run()
    process.queue.flush()


def parts(world: World) -> list[str]:
    return [name for name in world.names() if name.startswith("parts/")]


@pytest.fixture(params=[False, True], ids=["near", "far"])
def world(request: pytest.FixtureRequest) -> World:
    return World(far=request.param)


def test_a_completed_task_tells_its_steps_and_who_sent_its_signals(world: World) -> None:
    process, operator = world.process(), world.process("operator")
    pushed = process.queue.push({"name": "bob", "wait_s": 3600})
    work(process)
    facts = operator.queue.describe(pushed.id) or {}
    assert [step["kind"] for step in facts["steps"]] == ["step", "timer"]
    operator.queue.send_signal(pushed.id, "approved", "yes", sender="ann@desk")
    facts = operator.queue.describe(pushed.id) or {}
    assert [(each["name"], each["by"], each["value"]) for each in facts["signals"]] == [("approved", "ann@desk", "yes")]
    work(process)
    assert not [name for name in world.names() if name.startswith("steps/")]
    facts = operator.queue.describe(pushed.id) or {}
    assert (facts["payload"], facts["result"]) == ({"name": "bob", "wait_s": 3600}, ["BOB", "yes"])
    assert [(step["kind"], step["value"]) for step in facts["steps"][:2]] == [("step", "BOB"), ("timer", None)]
    signal = facts["steps"][2]["value"]
    assert (signal["value"], signal["by"]) == ("yes", "ann@desk")
    assert {"sent_at"} < signal.keys()
    assert facts["pushed_at"] <= facts["began_at"] <= facts["finished_at"]


def test_a_batch_of_durable_tasks_tells_the_steps_of_each(world: World) -> None:
    process, operator = world.process(), world.process()
    ids = process.queue.push_many([{"name": name, "wait_s": 300 * n} for n, name in enumerate(("ann", "bob", "cid"))])
    work(process)
    process.runtime.sleep(301)
    work(process)
    process.runtime.sleep(301)
    work(process)
    assert len(parts(world)) == 3, "one for each claim that completed a task"
    for id_, name in zip(ids, ("ANN", "BOB", "CID"), strict=True):
        facts = operator.queue.describe(id_) or {}
        assert (facts["steps"][0]["value"], facts["payload"]["name"]) == (name, name.lower())
    rows = task_rows(operator.queue.storage).rows
    assert rows[ids[2]].payload == '{"name":"cid","wait_s":600}'
    assert rows[ids[2]].took_s is not None


def test_a_history_goes_with_its_receipt_and_an_unfinished_one_too(world: World) -> None:
    process = world.process(retention_s=7 * DAY_S)
    process.queue.push({"name": "bob"}, id="a")
    work(process)
    [key] = parts(world)
    world.write(key.replace("-1", "-7"), world.read(key))  # as by a claim that died before the receipt
    for days in (1, 6):
        process.runtime.sleep(days * DAY_S - 600)
        process.queue.sweep()
        assert len(parts(world)) == 2
        assert "steps" in (process.queue.describe("a") or {})
    process.runtime.sleep(2 * DAY_S)
    process.queue.sweep()
    assert [name for name in world.names() if name.split("/")[0] in ("parts", "completed", "steps")] == []


def test_a_history_that_is_gone_or_damaged_is_not_shown(world: World) -> None:
    process = world.process()
    process.queue.push({"name": "bob"}, id="a")
    work(process)
    [key] = parts(world)
    record = records.decode(world.read(key), HistoryRecord, what=key)
    other = msgspec.structs.replace(record.tasks[0], life="another")
    for data in (b"junk", records.encode(HistoryRecord(tasks={0: other})), b""):
        world.write(key, data)
        assert process.queue.describe("a")["steps_lost"]  # type: ignore[index]
    world.delete(key)
    facts = process.queue.describe("a") or {}
    assert (facts["state"], facts["steps_lost"]) == ("completed", True)


@pytest.mark.parametrize(("durable", "puts"), [(False, 2), (True, 6)])
def test_what_a_history_costs(durable: bool, puts: int) -> None:
    """A plain task costs a lease and a receipt, as before; a durable one its three steps, and one object more."""
    world = World()
    process = world.process()
    process.queue.push({"name": "bob"})
    cost = process.cost(lambda: work(process, order if durable else lambda payload: None))
    assert cost["put"] == puts
    assert "list" in cost
    assert len(parts(world)) == durable


def test_a_retry_of_a_child_still_tells_its_parent(world: World) -> None:
    process = world.process(max_attempts=1, durable=True)

    def parent(payload: Any) -> None:
        if payload.get("child"):
            raise RuntimeError("no")
        process.queue.push({"child": True})

    process.queue.push({}, id="a")
    work(process, parent)
    work(process, parent)
    facts = process.queue.describe("a") or {}
    [child] = facts["children"]
    assert child["state"] == "failed"
    [retried] = process.queue.retry(all=True)
    for id_ in (child["id"], retried):
        assert (process.queue.describe(id_) or {})["parent"] == {"queue": "q", "id": "a", "step": 0}
    assert [each["id"] for each in (process.queue.describe("a") or {})["children"]] == [retried]


def test_how_long_handlers_take(world: World) -> None:
    process = world.process()
    assert process.queue.durations() == {"tasks": 0}
    process.queue.push_many([{"s": float(n)} for n in range(1, 100)])
    process.queue.push({"s": 1000.0})

    def handle(task: EntryTask) -> None:
        process.runtime.sleep(task.payload["s"])
        task.done()

    process.drain(handle)
    facts = process.queue.durations()
    assert (facts["tasks"], facts["p50_s"], facts["p99_s"], facts["longest_s"]) == (100, 51.0, 1000.0, 1000.0)
    assert process.queue.durations(1)["tasks"] == 1
    rows, whole = process.queue.latest(1)
    assert (whole, rows[0]["took_s"], rows[0]["payload"]) == (True, 1000.0, {"s": 1000.0})
    receipt = world.receipt(f"completed/{rows[0]['id']}")
    assert receipt.began_at == receipt.finished_at - timedelta(seconds=1000)

"""What the dashboard answers: the live feed, each page with its cost in requests, actions, and wrong requests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.app import Fleet
from limpet.index import sql as index_sql
from limpet.kernel.keys import Key, QueueKeys
from limpet.kernel.runtime import system
from limpet.queue import summary
from limpet.queue.claim import EntryClaim
from limpet.testing import drain
from limpet.ui import facts, receipts
from limpet.ui import server as ui_server
from support.catalog import append
from support.costs import plus, requests
from support.dashboard import COLUMNS, HOSTILE, SCHEMA
from support.index import HOSTILE_SQL
from ui.conftest import DashboardServer, Serve


@pytest.fixture
def fleet() -> Fleet:
    return limpet.open("memory://").check()


def fail_some(fleet: Fleet) -> None:
    """Five tasks of `enrich` that failed with two errors, and one that is done."""

    @fleet.task("enrich", max_attempts=1)
    def enrich(n: int) -> int:
        if n < 3:
            raise TimeoutError(f"no answer after {n} s")
        if n < 5:
            raise ValueError(HOSTILE)
        return n

    for n in range(6):
        enrich.push(n)
    drain(fleet)


# ---- the live feed ----


def test_feed_tells_what_changes_and_ends_with_the_process(serve: Serve, fleet: Fleet) -> None:
    server = serve(fleet)
    connection, overviews = server.listen()
    first = next(overviews)
    assert first["queues"] == []
    fleet.queue("mail").push({})
    later = next(each for each in overviews if each["queues"])
    assert later["queues"][0]["waiting"] == 1
    assert later["versions"]["queues"] > first["versions"]["queues"]
    server.context.ending.set()
    assert not any(each["queues"] == [] for each in overviews)  # and the stream ends
    connection.close()


def test_refresh_reads_again_at_once(serve: Serve, fleet: Fleet) -> None:
    server = serve(fleet)
    connection, overviews = server.listen()
    first = next(overviews)
    assert server.post("refresh", body={}).status == 200
    assert next(overviews)["at"] > first["at"]
    connection.close()


def test_too_many_streams_are_told_to_come_back(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui_server, "STREAMS_MAX", 1)
    server = serve()
    connection, overviews = server.listen()
    next(overviews)
    assert server.get("events").status == 503
    connection.close()


def test_nobody_listens_and_nothing_is_read(serve: Serve, fleet: Fleet) -> None:
    server = serve(fleet)
    connection, overviews = server.listen()
    next(overviews)
    connection.close()
    feed = server.part.feed

    def is_quiet() -> bool:
        return not feed._running

    deadline_s = system().elapsed_s() + 30
    while not is_quiet() and system().elapsed_s() < deadline_s:
        system().sleep(0.05)
    assert is_quiet()


# ---- pages ----


def test_queue_page(serve: Serve, fleet: Fleet) -> None:
    fail_some(fleet)
    queue = fleet.queue("enrich", ttl_s=600)
    queue.push_many({"n": n} for n in range(100))
    claim = queue.claim()
    assert isinstance(claim, EntryClaim)
    for _ in range(59):
        task = claim.start_next()
        assert task is not None
        task.done()
    claim.renew()
    queue.push({}, id="later", delay_s=600)
    server = serve(fleet)
    found = server.get("queue", "enrich").json
    (batch,) = found["pending"]
    assert (batch["state"], batch["done"], batch["tasks"], batch["worker"]) == ("running", 59, 100, fleet.runtime.label)
    assert batch["taken_at"] is not None
    assert [each["id"] for each in found["scheduled"]] == ["later"]
    groups = [(each["error"], each["count"]) for each in found["groups"]]
    assert groups == [("TimeoutError: no answer after # s", 3), (f"ValueError: {HOSTILE}", 2)]


def test_cost_of_a_queue_page_and_unreadable_receipts_are_passed_over_and_counted(serve: Serve, fleet: Fleet) -> None:
    fail_some(fleet)
    server = serve(fleet)
    spent = requests(fleet, lambda: server.get("queue", "enrich"))
    # whether there is such a queue; pending/, scheduled/, failed/; and 5 receipts
    assert spent == {"list": 1 + 3, "get": 5}
    failed = QueueKeys.of("enrich").failed
    key = next(iter(fleet.store.list(failed))).key
    fleet.store.put(key, b"{")
    found = server.get("queue", "enrich").json
    assert (found["failed_read"], found["unreadable"], found["failed_more"]) == (4, 1, False)
    assert key.rpartition("/")[2] in found["unreadable_error"]
    retried = [
        id_
        for group in found["groups"]
        for id_ in server.post("queue", "enrich", "retry", body={"group": group["error"]}).json["retried"]
    ]
    assert len(retried) == 4


def test_more_failures_than_are_read(serve: Serve, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "FAILED_READ", 3)
    fail_some(fleet)
    found = serve(fleet).get("queue", "enrich").json
    assert (found["failed_read"], found["failed_more"]) == (3, True)


def test_task_page_and_its_cost(serve: Serve, fleet: Fleet) -> None:
    fail_some(fleet)
    fleet.queue("enrich").push({}, id="waits")
    server = serve(fleet)
    groups = server.get("queue", "enrich").json["groups"]
    failed = groups[0]["tasks"][0]["id"]
    # One of the four tells how long receipts are kept.
    assert requests(fleet, lambda: server.get("queue", "enrich", "task", failed)) == {"get": 4}
    assert requests(fleet, lambda: server.get("queue", "enrich", "task", "waits")) == {"get": 7, "head": 2}
    assert sum(requests(fleet, lambda: server.get("queue", "enrich", "task", "nothing")).values()) <= 12
    id_ = groups[1]["tasks"][0]["id"]
    found = server.get("queue", "enrich", "task", id_).json
    assert found["state"] == "failed"
    assert found["payload"].startswith("{")
    (attempt,) = found["errors"]
    assert "Traceback" in attempt["traceback"]
    assert HOSTILE in attempt["error"]
    assert server.get("queue", "enrich", "task", "nothing").status == 404
    assert server.get("queue", "enrich", "task", "../../x").status in (400, 404)


def test_large_payload_is_cut(serve: Serve, fleet: Fleet) -> None:
    fleet.queue("mail").push({"text": "x" * 200_000}, id="large")
    found = serve(fleet).get("queue", "mail", "task", "large")
    assert len(found.body) < 40_000
    assert "characters)" in found.json["payload"]


def indexed(fleet: Fleet) -> None:
    companies = fleet.index("companies", COLUMNS, key="domain")
    companies.put_many({"domain": f"c{n}.example", "company": HOSTILE, "employees": n} for n in range(50))
    companies.compile()
    companies.put({"domain": "new.example", "company": "New"})


def test_index_page_and_its_cost(serve: Serve, fleet: Fleet) -> None:
    indexed(fleet)
    server = serve(fleet)
    answer: list[Any] = []
    spent = requests(fleet, lambda: answer.append(server.get("index", "companies").json))
    found = answer[0]
    assert (found["records"], found["waiting"], len(found["sizes"]), found["key"]) == (50, 1, 256, "domain")
    assert sum(found["backlog"].values()) == 1
    assert spent == {"get": 2, "list": 1}


def test_record_and_its_cost(serve: Serve, fleet: Fleet) -> None:
    indexed(fleet)
    server = serve(fleet)
    assert server.get("index", "companies", "record", "c7.example").json["record"]["employees"] == "7"
    assert server.get("index", "companies", "record", "new.example").json["record"]["company"] == "New"
    assert server.get("index", "companies", "record", "a/b c").json["record"] is None
    assert server.get("index", "nothing").status == 404
    spent = requests(fleet, lambda: server.get("index", "companies", "record", "c7.example"))
    # the manifest; what waits, as singles and as packs; the shard
    assert spent == {"get": 2, "list": 2}


def test_sql_stays_in_its_sandbox(serve: Serve, tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet")
    indexed(fleet)
    server = serve(fleet)
    found = server.post("sql", body={"sql": "select count(*) as n from companies"}).json
    assert (found["columns"], found["rows"], found["count"]) == (["n"], [["51"]], 1)
    (tmp_path / "secret.txt").write_text("s3cret\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for query in (*HOSTILE_SQL, "copy companies to '{folder}/secret.txt'", "selec", "drop x"):
        refused = server.post("sql", body={"sql": query.format(folder=tmp_path)})
        assert refused.status == 400, query
        assert "s3cret" not in str(refused.json)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert server.post("sql", body={"sql": "select * from range(2000)"}).json["count"] == 2000


def test_sql_over_everything_and_its_cost(serve: Serve, fleet: Fleet) -> None:
    fail_some(fleet)
    indexed(fleet)
    server = serve(fleet)
    ask = "select state, count(*) from queues.enrich group by state order by state"
    answer: list[Any] = []
    spent = requests(fleet, lambda: answer.append(server.post("sql", body={"sql": ask}).json))
    assert answer[0]["rows"] == [["completed", "1"], ["failed", "5"]]
    # is there an index of that name, and such a queue; four folders; and 6 receipts
    assert spent == {"list": 1 + 4, "get": 6}
    spent = requests(fleet, lambda: server.post("sql", body={"sql": "select count(*) from companies"}))
    # the manifest, 256 shards and what waits; the inbox, packs and shards, each listed as `Table.gather` says
    assert spent == {"get": 1 + 256 + 1, "list": 4}


def test_sql_has_thirty_seconds(serve: Serve, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert index_sql.TIMEOUT_S == 30.0
    monkeypatch.setattr(index_sql, "TIMEOUT_S", 0.2)
    answer = serve(fleet).post("sql", body={"sql": "select count(*) from range(1000000000000)"})
    assert (answer.status, answer.json["error"]["message"]) == (
        503,
        "the query was stopped after 0.2 s (select less, or allow more time (--timeout 5m, timeout_s=300))",
    )


def test_quarantine_is_shown(serve: Serve, fleet: Fleet) -> None:
    indexed(fleet)
    fleet.store.put(Key("indexes/companies/inbox/00/x/0-01m7hwq79qx90hmhn3y764bxst.usv"), b"\xff broken")
    fleet.index("companies").compile()
    (found,) = serve(fleet).get("index", "companies").json["quarantine"]
    assert found["reason"]


def with_tables(fleet: Fleet) -> None:
    with fleet.lead_catalog() as catalog:
        catalog.create_namespace(["sales"], actor="ada")
        orders = catalog.create_table(["sales"], {"name": "orders", "schema": SCHEMA}, actor="ada")
        catalog.commit_table(["sales"], "orders", append(orders, 3_051_729_675_574_597_004), actor="loader")
        catalog.create_table(["sales"], {"name": "refunds", "schema": SCHEMA})
        catalog.drop_table(["sales"], "refunds", actor="bob")


def test_catalog_page_and_the_cost_of_each_part(serve: Serve, fleet: Fleet) -> None:
    with_tables(fleet)
    server = serve(fleet)
    body = {"namespace": ["sales"], "name": "orders"}
    assert requests(fleet, lambda: server.get("catalog")) == {"get": 1 + 6}  # the head and 6 commits
    assert requests(fleet, lambda: server.post("catalog", "table", body=body)) == {"get": 2}
    spent = requests(fleet, lambda: server.get("catalog", "difference", "3", "5"))
    assert spent == {"get": 15}  # two times `Catalog.at`: the head, and the commits after a snapshot
    found = server.get("catalog").json
    assert (found["version"], found["namespaces"]) == (6, [["sales"]])
    assert found["tables"] == [{"namespace": ["sales"], "name": "orders"}]
    dropped = found["commits"][0]["rows"][0]
    assert (dropped["what"], dropped["actor"], dropped["changes"][0]["name"]) == ("drop table", "bob", "refunds")
    table = server.post("catalog", "table", body=body).json
    assert [each["name"] for each in table["columns"]] == ["order_id", "customer", "amount", "ordered_at", "tags"]
    assert table["columns"][4]["type"] == "list<string>"
    assert table["current"] == table["snapshots"][0]["id"] == "3051729675574597004"
    assert server.post("catalog", "table", body={"namespace": ["sales"], "name": "x"}).status == 404

    changes = server.get("catalog", "difference", "3", "5").json["changes"]
    named = [(each["change"], each["kind"], each["name"]) for each in changes]
    assert named == [("changed", "table", ["sales", "orders"]), ("added", "table", ["sales", "refunds"])]
    assert server.get("catalog", "difference", "5", "6").json["changes"][0]["change"] == "removed"
    assert server.get("catalog", "difference", "0", "x").status == 400
    assert server.get("catalog", "difference", "1", "99").status == 404


def test_undrop(serve: Serve, fleet: Fleet) -> None:
    with_tables(fleet)
    server = serve(fleet)
    body = {"namespace": ["sales"], "name": "refunds"}
    assert server.post("catalog", "undrop", body=body).status == 200
    assert fleet.catalog().has_table(["sales"], "refunds")
    assert server.post("catalog", "undrop", body=body).status == 409


def test_undrop_while_a_service_leads_says_what_to_do(
    serve: Serve, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui_server, "LEAD_S", 0.2)
    with_tables(fleet)
    server = serve(fleet)
    with fleet.lead_catalog():
        answer = server.post("catalog", "undrop", body={"namespace": ["sales"], "name": "refunds"})
    assert "limpet catalog undrop sales.refunds --service URL" in answer.json["error"]["message"]


def test_store_page_and_its_cost(serve: Serve, fleet: Fleet) -> None:
    server = serve(fleet)
    answer: list[Any] = []
    assert requests(fleet, lambda: answer.append(server.get("store").json)) == {"get": 3}
    assert len(answer[0]["get_ms"]) == 3


# ---- actions ----


def state_of(server: DashboardServer, id_: str) -> str:
    found: str = server.get("queue", "enrich", "task", id_).json["state"]
    return found


def test_retry_one_then_a_group_then_all(serve: Serve, fleet: Fleet) -> None:
    fail_some(fleet)
    server = serve(fleet)
    timeouts, broken = server.get("queue", "enrich").json["groups"]
    one = timeouts["tasks"][0]["id"]
    assert server.post("queue", "enrich", "retry", body={"id": one}).json["retried"] == [f"{one}~1"]
    group = server.post("queue", "enrich", "retry", body={"group": broken["error"]}).json["retried"]
    assert len(group) == 2
    assert fleet.queue("enrich").stats().failed == 2
    assert server.post("queue", "enrich", "retry", body={"group": broken["error"]}).status == 404
    assert len(server.post("queue", "enrich", "retry", body={"all": True}).json["retried"]) == 2
    stats = fleet.queue("enrich").stats()
    assert (stats.failed, stats.pending) == (0, 5)


def test_push_pause_resume_cancel(serve: Serve, fleet: Fleet) -> None:
    fleet.queue("enrich").push({})
    server = serve(fleet)
    pushed = server.post("queue", "enrich", "push", body={"payload": {"a": HOSTILE}, "id": "b"}).json
    assert pushed == {"id": "b", "created": True}
    assert server.post("queue", "enrich", "push", body={"payload": {}, "delay_s": 60}).status == 200
    assert server.post("queue", "enrich", "pause", body={}).json == {"paused": True}
    assert fleet.queue("enrich").stats().paused
    assert server.post("queue", "enrich", "resume", body={}).json == {"paused": False}
    assert server.post("queue", "enrich", "cancel", body={"id": "b"}).json == {"cancelled": True}
    assert state_of(server, "b") == "cancelled"


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("retry", {}),
        ("retry", {"all": True, "id": "a"}),
        ("retry", {"all": "yes"}),
        ("retry", {"unknown": 1}),
        ("cancel", {}),
        ("cancel", {"id": ["a"]}),
        ("push", {}),
        ("push", {"payload": {}, "delay_s": -1}),
        ("push", {"payload": {}, "id": ""}),
        ("pause", []),
        ("pause", "x"),
    ],
)
def test_wrong_bodies_are_refused(serve: Serve, fleet: Fleet, action: str, body: Any) -> None:
    fleet.queue("enrich").push({})
    assert serve(fleet).post("queue", "enrich", action, body=body).error == (400, "BadRequestException")


def test_typo_creates_no_queue(serve: Serve, fleet: Fleet) -> None:
    fleet.queue("enrich").push({})
    server = serve(fleet)
    bodies: dict[str, dict[str, Any]] = {
        "push": {"payload": {}},
        "pause": {},
        "retry": {"all": True},
        "cancel": {"id": "a"},
        "fail": {"id": "a"},
        "signal": {"id": "a", "name": "go", "value": None},
    }
    for action, body in bodies.items():
        answer = server.post("queue", "enrihc", action, body=body)
        assert answer.status == 404
        assert "did you mean 'enrich'" in answer.json["error"]["message"]
    assert server.get("queue", "enrihc").status == 404
    assert fleet.queues() == ["enrich"]


# ---- what others stored ----


def test_hostile_names_come_back_as_they_are(serve: Serve, fleet: Fleet) -> None:
    for name in (HOSTILE, "a/b", "ä ö", "%2e%2e", "..."):
        fleet.queue(name).push({"text": HOSTILE}, id=HOSTILE)
        server = serve(fleet)
        (entry,) = server.get("queue", name).json["pending"]
        assert entry["id"] == HOSTILE
        assert HOSTILE.replace('"', '\\"') in server.get("queue", name, "task", HOSTILE).json["payload"]


def test_damaged_objects_do_not_hide_the_page(serve: Serve, fleet: Fleet) -> None:
    fail_some(fleet)
    keys = QueueKeys.of("enrich")
    fleet.store.put(Key(f"{keys.failed}/zzz.json"), b"\xff")
    fleet.store.put(Key(f"{keys.pending}/01m7hwq79qx90hmhn3y764bxst/task.json"), b"[")
    fleet.store.put(Key(f"{keys.pending}/01m7hwq79qx90hmhn3y764bxst/lease.json"), b"[")
    found = serve(fleet).get("queue", "enrich").json
    assert found["unreadable"]
    assert [each["count"] for each in found["groups"]] == [3, 2]
    assert (found["pending"][0]["state"], found["pending"][0]["old_state"]) == ("waiting", "corrupt")


# ---- durable tasks ----


def wait_after(fleet: Fleet, steps: int, value: str = "ok") -> str:
    """A durable task that has recorded so many steps and is suspended; its id."""

    @fleet.task("orders")
    def order() -> None:
        for n in range(steps):
            limpet.step(lambda: value, name=f"step-{n}")
        limpet.wait_signal("approved")

    order.using(id="one").push()
    drain(fleet)
    return "one"


def test_the_page_of_a_suspended_task_has_its_reason_and_steps(fleet: Fleet) -> None:
    id_ = wait_after(fleet, 3)
    found = facts.task_facts(fleet, "orders", id_)
    assert (found["state"], found["reason"]) == ("suspended", "waiting for the signal 'approved'")
    assert [(each["number"], each["kind"], each["name"]) for each in found["steps"]] == [
        (0, "step", "step-0"),
        (1, "step", "step-1"),
        (2, "step", "step-2"),
    ]
    assert found["steps"][0]["value"] == '"ok"'
    by_steps = requests(fleet, lambda: facts.task_facts(fleet, "orders", id_))
    other = limpet.open("memory://").check()
    wait_after(other, 0)
    plain = requests(other, lambda: facts.task_facts(other, "orders", id_))
    assert by_steps == plus(plain, {"get": 3}), "1 GET for each step, beside a LIST for any number, and one of signals"
    assert plain["list"] == 2
    [row] = facts.queue_facts(fleet, "orders")["pending"]
    assert (row["state"], row["reason"]) == ("suspended", "waiting for the signal 'approved'")


def test_what_may_be_suspended_does_not_count_as_waiting(
    serve: Serve, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2 of 5 leases it is known that their tasks are suspended. Then `waiting` is a lower bound."""

    @fleet.task("orders")
    def order() -> None:
        limpet.step(int)
        limpet.wait_signal("approved")

    for n in range(5):
        order.using(id=f"s{n}").push()
    drain(fleet)
    fleet.queue("orders").push({}, id="w")
    monkeypatch.setattr(summary, "LEASES_READ_MAX", 2)
    [queue] = serve(fleet).get("overview").json["queues"]
    assert (queue["pending"], queue["suspended"], queue["unread"], queue["waiting"]) == (6, 2, 3, 1)
    assert "suspended" in queue["at_least"]


def test_steps_that_are_many_long_or_unreadable_are_bounded(fleet: Fleet) -> None:
    id_ = wait_after(fleet, facts.STEPS_SHOWN + 5, "x" * 10_000)
    fleet.store.put(QueueKeys.of("orders").step(id_, 0, facts.STEPS_SHOWN), b"{")
    found = facts.task_facts(fleet, "orders", id_)
    assert (len(found["steps"]), found["steps_before"]) == (facts.STEPS_SHOWN, 5)
    assert len(found["steps"][0]["value"]) < facts.STEP_CHARS_MAX + 100
    unreadable = [each["number"] for each in found["steps"] if "error" in each]
    assert unreadable == [facts.STEPS_SHOWN]


# ---- the style sheet ----


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(theme: str) -> None:
    """AA, 4.5 to 1: every colour of text on every background that it stands on."""
    sheet = (Path(ui_server.__file__).parent / "static" / "style.css").read_text()
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", sheet.partition(theme)[2].partition("}")[0]))
    pairs = [(text, back) for text in ("text", "muted", "faint", "accent") for back in ("bg", "panel", "raised")]
    pairs += [(kind, f"{kind}-soft") for kind in ("good", "warn", "bad", "accent")]
    pairs += [("bad", "panel"), ("muted", "line-soft"), ("on-accent", "accent"), ("bg", "text")]
    weak = {pair: round(found, 2) for pair in pairs if (found := _contrast(*(colours[name] for name in pair))) < 4.5}
    assert weak == {}

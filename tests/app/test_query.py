"""`limpet sql`: one session over the whole fleet; what each table holds, what it costs, and that the sandbox holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet import testing
from limpet.app import Fleet
from limpet.app.presence import WorkerPresence
from limpet.app.query import fleet_sql
from limpet.index.sql_rows import Rows
from limpet.kernel.errors import Corrupt, Denied, Invalid, Unsupported
from limpet.kernel.keys import Key, QueueKeys, worker_key
from limpet.queue import BucketQueue
from limpet.queue.rows import task_rows
from limpet.queue.storage import Storage
from support.catalog import table as new_table
from support.costs import requests
from support.docs import ROOT, blocks
from support.index import HOSTILE_SQL

SANDBOX = [
    *HOSTILE_SQL,
    "delete from queues.q",
    "insert into queues.q (id) values ('x')",
    "drop table queues.q",
    "copy queues.q to '{folder}/out.csv'",
    "detach tables",
    "use tables",
    "select * from tables.'{folder}/secret.txt'",
    "select *, (select content from read_text('{folder}/secret.txt')) from queues.q",
    "select * from fleet.nothing",
    "select * from queues.nothing",
    "select * from tables.a.nothing",
    "select * from \x1finput",
]


@dataclass
class Site:
    """A record."""

    domain: str
    visits: int = 0


def ask(fleet: Fleet, query: str, **options: Any) -> list[tuple[Any, ...]]:
    return [*fleet_sql(fleet, query, **options)]


def _end(queue: BucketQueue, verdict: Callable[[Any, int], object]) -> None:
    claim = queue.claim()
    assert claim
    with claim:
        for n, task in enumerate(claim):
            verdict(task, n)


def _bucket_queue(fleet: Fleet, name: str = "q", **policy: Any) -> BucketQueue:
    queue = fleet.queue(name, **{"backoff_s": 0.0, **policy})
    assert isinstance(queue, BucketQueue)
    return queue


@pytest.fixture
def fleet() -> Fleet:
    return limpet.open("memory://").check()


def test_every_state_of_a_task_is_a_row(fleet: Fleet) -> None:
    queue = _bucket_queue(fleet, max_attempts=2)
    queue.push({"n": 1}, id="done")
    _end(queue, lambda task, _: task.done({"r": [1]}))
    queue.push({"n": 2}, id="failed")
    _end(queue, lambda task, _: task.fail("HTTP 429", "Traceback"))
    queue.push({"n": 3}, id="cancelled")
    queue.cancel("cancelled")
    queue.push({"n": 4}, id="rests")
    _end(queue, lambda task, _: task.retry(600.0, "later"))
    queue.push({"n": 5}, id="runs")
    claim = queue.claim()
    assert claim.start_next()
    queue.push({"n": 6}, id="waits")
    queue.push({"n": 7}, id="later", delay_s=600)
    rows = ask(fleet, "select id, state, attempts, payload.n::int, result.r, error, worker is not null from queues.q")
    assert sorted(rows, key=lambda row: row[3]) == [
        ("done", "completed", 1, 1, [1], None, True),
        ("failed", "failed", 1, 2, None, "HTTP 429", True),
        ("cancelled", "cancelled", 0, 3, None, "cancelled", True),
        ("rests", "resting", 1, 4, None, "later", False),
        ("runs", "running", 0, 5, None, None, True),  # a first claim charges with its next write
        ("waits", "waiting", 0, 6, None, None, False),
        ("later", "scheduled", 0, 7, None, None, False),
    ]
    [(due, pushed)] = ask(fleet, "select due_at > now(), pushed_at <= now() from queues.q where id = 'later'")
    assert (due, pushed) == (True, True)
    assert claim


def test_the_tasks_of_batches_are_rows_of_their_own(fleet: Fleet) -> None:
    queue = _bucket_queue(fleet)
    large = "x" * 5000

    def mixed(task: Any, n: int) -> None:
        task.fail("no") if n == 1 else task.done(large if n == 2 else {"n": n})

    queue.push_many([{"n": n} for n in range(3)])
    _end(queue, mixed)
    queue.push_many([{"n": n} for n in range(10, 14)])
    _end(queue, lambda task, n: task.done(n) if n < 2 else task.retry(600.0, "later"))
    rows = ask(fleet, "select state, count(*), count(distinct batch) from queues.q group by 1 order by 1")
    assert rows == [("completed", 4, 2), ("failed", 1, 1), ("resting", 2, 1)]
    [(result,)] = ask(fleet, "select result from queues.q where id like '%-3.2'")
    assert result == large
    counted = queue.stats()
    assert ((counted.completed or 0) + (counted.done or 0), counted.failed, counted.resting) == (4, 1, 2)


def test_a_retried_task_is_there_as_its_retry(fleet: Fleet) -> None:
    queue = _bucket_queue(fleet)
    queue.push({"n": 1}, id="a")
    _end(queue, lambda task, _: task.fail("no"))
    queue.retry("a")
    assert ask(fleet, "select id, state from queues.q") == [("a~1", "waiting")]


def test_a_query_costs_a_get_for_each_object_and_nothing_if_it_is_wrong(fleet: Fleet) -> None:
    queue = _bucket_queue(fleet)
    for n in range(5):
        queue.push({"n": n})
    _end(queue, lambda task, _: task.done())
    claim = queue.claim()
    assert claim
    asked = requests(fleet, lambda: ask(fleet, "select count(*) from queues.q"))
    assert asked == {"list": 1 + 4, "get": 4 + 1 + 1}, "the names of queues, four folders; tasks, lease, receipt"

    def wrong() -> None:
        with pytest.raises(Invalid, match="nope"):
            ask(fleet, "select nope from queues.q")

    assert requests(fleet, wrong) == {"list": 1}
    assert requests(fleet, lambda: ask(fleet, "describe queues.q")) == {"list": 1}


def test_what_is_left_out_is_said(fleet: Fleet) -> None:
    queue = _bucket_queue(fleet)
    for n in range(4):
        queue.push({"n": n}, id=f"t{n}")
    fleet.store.put(QueueKeys.of("q").tasks("t1", batch=False), b"{")
    notes: list[str] = []
    assert ask(fleet, "select id from queues.q order by id", on_note=notes.append) == [("t0",), ("t2",), ("t3",)]
    [note] = notes
    assert note.startswith("queues.q: left out: queues/q/pending/t1/task.json: ")
    found = task_rows(Storage(fleet.store, QueueKeys.of("q"), fleet.runtime), 2)
    assert (found.cut, len(found.rows)) == (["pending"], 1)


def test_hostile_values_are_values(fleet: Fleet) -> None:
    """Whatever a payload, an error or a name holds, it is data; a name that is no identifier is quoted."""
    name = 'we"ird; drop table x; --'
    queue = _bucket_queue(fleet, name)
    text = "'); drop table q; --\x1b[31m\u202e"
    queue.push({"a": text}, id=text.replace("\x1b", ""))
    _end(queue, lambda task, _: task.fail(text))
    quoted = name.replace('"', '""')
    [(payload, state)] = ask(fleet, f"""select payload->>'a', state from queues."{quoted}" """)
    assert (payload, state) == (text, "failed")
    key = fleet.store.put(Key("queues/q2/pending/x/task.json"), b"not json")
    assert key
    assert ask(fleet, "select * from queues.q2") == []
    assert "\x1b" not in repr(fleet_sql(fleet, f'select payload from queues."{quoted}"'))


def test_indexes_hide_tables_of_their_name(fleet: Fleet) -> None:
    fleet.index("locks", Site, key="domain").put(Site("a.com", 1))
    fleet.lock("mine").acquire()
    assert ask(fleet, "select domain from locks") == [("a.com",)]
    assert ask(fleet, "select name, state from fleet.locks") == [("mine", "held")]
    assert ask(fleet, "select count(*) from Fleet.Workers") == [(0,)]


def test_show_tables_names_what_there_is(fleet: Fleet) -> None:
    fleet.index("sites", Site, key="domain").put(Site("a.com", 1))
    fleet.queue("q").push({})
    rows = ask(fleet, "select schema_name, table_name from duckdb_tables() where false") + ask(fleet, "show all tables")
    names = {(row[0], row[1], row[2]) for row in rows}
    main = {("memory", "main", name) for name in ("sites", "commits", "executions", "locks", "workers")}
    assert main | {("memory", "queues", "q")} <= names


@pytest.fixture
def whole(tmp_path: Path) -> Fleet:
    """A fleet with some of everything, on a directory."""
    fleet = limpet.open(tmp_path / "fleet", events=True, durability="os")

    @fleet.task(max_attempts=2, backoff_s=0.0)
    def enrich(domain: str) -> dict[str, Any]:
        if domain.startswith("bad"):
            raise limpet.Fail(f"HTTP 42{len(domain) % 10} for {domain}") if domain == "bad" else ValueError(domain)
        return {"domain": domain, "visits": len(domain)}

    for domain in ("a.com", "bb.com", "bad", "bad.com"):
        enrich.push(domain)
    testing.drain(fleet)
    fleet.close()
    enrich.push("runs.com")
    claim = enrich.queue.claim()
    assert claim
    sites = fleet.index("sites", Site, key="domain")
    sites.put_many([Site("a.com", 3), Site("zz.com", 5)])
    fleet.publish_index("sites")
    fleet.lock("nightly").acquire()
    host, _, pid = fleet.runtime.label.rpartition(":")
    now = fleet.runtime.wall()
    record = WorkerPresence(
        host=host, pid=int(pid), version="9.9", queues=["enrich"], threads=1, since=now, renewed_at=now
    )
    fleet.store.put(worker_key("w1"), msgspec.json.encode(record))
    fleet.__dict__["claim"] = claim
    return fleet


QUERIES = blocks(ROOT / "docs" / "run" / "look.md", "sql")


def test_the_ten_queries_of_the_page(whole: Fleet) -> None:
    answers = [fleet_sql(whole, query) for query in QUERIES]
    assert len(answers) == 10
    states, errors, payloads, times, running, results, missing, slow, agreed, changed = map(list, answers)
    assert sorted(states) == [("completed", 2, 1), ("failed", 2, 2), ("running", 1, 0)]
    assert {row[0] for row in errors} == {"HTTP # for bad", "ValueError: bad.com"}
    assert payloads == [("bad.com", 2, "ValueError: bad.com")]
    assert times[0][1] == 4
    assert [(row[1], row[2]) for row in running] == [("9.9", 1)]
    assert results == [("bb.com", 6), ("a.com", 5)]
    assert missing == [("zz.com",)]
    assert slow[0][0] == "enrich"
    assert slow[0][2] == 5, "the runs of four tasks, one of them twice"
    assert agreed == [(2, 2, 0)]
    assert ("lock", "nightly is held") in {row[:2] for row in changed}
    assert {row[0] for row in changed} == {"commit", "lock"}


def test_tables_of_the_catalog(whole: Fleet) -> None:
    rows = ask(whole, "select domain, visits from tables.indexes.sites order by 1")
    assert rows == [("a.com", 3), ("zz.com", 5)]
    assert ask(whole, "select count(*) from tables.Indexes.SITES t join tables.indexes.sites u using (domain)") == [
        (2,)
    ]
    assert ("tables", "indexes", "sites") in {row[:3] for row in ask(whole, "show all tables")}
    with pytest.raises(Invalid, match=r"there is no table 'indexes\.nope'"):
        ask(whole, "select * from tables.indexes.nope")


def test_a_table_that_names_a_file_elsewhere_is_refused(whole: Fleet) -> None:
    """A manifest is hostile too: a data file outside of the warehouse is not opened (F29)."""
    with whole.lead_catalog() as leading:
        leading.create_table(["indexes"], new_table("other"))
    catalog = whole.catalog()
    _, read = catalog.open_table(["indexes"], "sites")
    [root], [other] = (catalog.folders(["indexes"], name) for name in ("sites", "other"))
    top = Path(whole.url) / "warehouse"
    kept = next(path for path in (top / root).rglob("*.parquet")).relative_to(top)
    assert read(f"{catalog.warehouse.url}/{kept}", 1 << 20).startswith(b"PAR1")
    for path in ("x=1", f"{root}/city=%2e%2e"):
        (top / path).mkdir(parents=True)
        (top / path / "free.parquet").write_bytes(b"PAR1")
        assert read(f"{catalog.warehouse.url}/{path}/free.parquet", 9) == b"PAR1"
    (top / other / "data").mkdir(exist_ok=True)
    (top / other / "data" / "x.parquet").write_bytes(b"PAR1")
    inside = f"{catalog.warehouse.url}/{root}"
    urls = ["file:///etc/passwd", "/etc/passwd", f"{catalog.warehouse.url}/../../limpet.json", "s3://other/x"]
    urls += [
        f"{inside}/data/..%2f/../../x",
        f"{inside}//x",
        f"{inside}/./x",
        f"{inside}/a\\b",
        f"{inside}/a?b",
        inside[:-1],
    ]
    urls += [f"{catalog.warehouse.url}/{other}/data/x.parquet", f"{inside}/a\x00b", f"{inside}/{'a/' * 500}b", ""]
    for url in urls:
        with pytest.raises((Invalid, limpet.Missing)):
            read(url, 1000)
    with pytest.raises(limpet.Missing, match="there is no file"):
        read(f"{inside}/%2e%2e/%2e%2e/limpet.json", 1000)


def test_a_link_among_the_files_of_a_table_is_not_followed(whole: Fleet, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s3cret")
    catalog = whole.catalog()
    [root] = catalog.folders(["indexes"], "sites")
    folder = Path(whole.url) / "warehouse" / root
    (folder / "city=Oslo").symlink_to(tmp_path)
    (folder / "link.parquet").symlink_to(tmp_path / "secret")
    _, read = catalog.open_table(["indexes"], "sites")
    for name in ("city=Oslo/secret", "link.parquet"):
        with pytest.raises(Denied):
            read(f"{catalog.warehouse.url}/{root}/{name}", 1000)


def test_damaged_tables_are_errors_and_nothing_else(whole: Fleet) -> None:
    files = [stat.key for stat in whole.store.list("warehouse") if stat.key.endswith((".avro", ".parquet"))]
    for key in files:
        good = whole.store.get(key).data
        for bad in (b"", good[: len(good) // 2], good[:100] + b"\x00" * 50 + good[150:], b"PAR1" * 10):
            whole.store.put(key, bad)
            with suppress(Corrupt):
                ask(limpet.open(whole.url), "select * from tables.indexes.sites")
        whole.store.put(key, good)
    for key in files:
        good = whole.store.get(key).data
        whole.store.delete(key)
        with pytest.raises(Corrupt, match="names a file that is gone"):
            ask(limpet.open(whole.url), "select * from tables.indexes.sites")
        whole.store.put(key, good)


@pytest.mark.parametrize("query", SANDBOX)
def test_the_sandbox_holds(query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.txt").write_text("s3cret\n")
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    fleet.queue("q").push({"n": 1})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises((Invalid, Unsupported, limpet.Missing)) as caught:
        fleet_sql(fleet, query.format(folder=tmp_path))
    assert "s3cret" not in str(caught.value)
    assert "allow_files" not in caught.value.hint
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_read_only_key_is_enough(tmp_path: Path) -> None:
    limpet.open(tmp_path / "fleet").queue("q").push({"n": 1})
    found: Rows = fleet_sql(limpet.open(tmp_path / "fleet", read_only=True), "select payload from queues.q")
    assert [*found.dicts()] == [{"payload": {"n": 1}}]

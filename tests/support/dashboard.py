"""A fleet with something of everything, to look at: for the tests of the dashboard, and for its screenshots."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

import limpet
from limpet.app.presence import WorkerPresence
from limpet.kernel import records
from limpet.kernel.keys import worker_key
from limpet.kernel.lease import Lease
from limpet.kernel.runtime import SystemRuntime
from limpet.queue.claim import EntryClaim
from limpet.testing import drain
from support.catalog import append

__all__ = ["COLUMNS", "GONE", "HOLDER", "HOSTILE", "SCHEMA", "WAITING", "sample_fleet"]

HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
"""A name and payload that would act, if a page took it for HTML."""

COLUMNS = {
    "fields": [
        {"name": "domain", "type": "string"},
        {"name": "company", "type": "string"},
        {"name": "employees", "type": "integer"},
        {"name": "country", "type": "string"},
    ]
}
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "order_id", "type": "long", "required": True, "doc": "The number on the invoice"},
        {"id": 2, "name": "customer", "type": "string", "required": True},
        {"id": 3, "name": "amount", "type": "decimal(12, 2)", "required": False},
        {"id": 4, "name": "ordered_at", "type": "timestamptz", "required": True},
        {
            "id": 5,
            "name": "tags",
            "type": {"type": "list", "element-id": 6, "element": "string", "element-required": False},
            "required": False,
        },
    ],
}
HOLDER = "pi-4:2113"
"""The worker that holds a batch of which 59 tasks are done."""
WAITING = "order-1017"
"""The durable task that waits for a signal."""
GONE = "spot-0b71"
"""The host of a worker that was killed: the screenshots make its presence old."""
WORKERS = (("pi-3", 1877, 4), ("pi-4", 2113, 4), ("fargate-7c2f", 1, 16), (GONE, 1, 16))
COMPANIES = ("Acme", "Globex", "Initech", "Umbrella", "Hooli", "Stark", "Wayne", "Tyrell")


def sample_fleet(url: str, *, records: int = 400, hostile: bool = True) -> tuple[limpet.Fleet, list[object]]:
    """Fill a fleet; and what must be kept alive for it to stay as it is: claims and leases.

    `hostile`: with names and payloads that look like HTML.
    """
    fleet = limpet.open(url, durability="os")
    held = [*_queues(fleet, hostile), _locks(_on(fleet, "ci-runner:88"))]
    _workers(fleet)
    companies = fleet.index("companies", COLUMNS, key="domain")
    companies.put_many(_company(n) for n in range(records))
    companies.compile()
    companies.put_many(_company(n) for n in range(records, records + 30))
    fleet.index("pages", {"fields": [{"name": "url", "type": "string"}]}, key="url").put({"url": "https://a.example"})
    _catalog(fleet)
    return fleet, held


def _company(n: int) -> dict[str, Any]:
    return {
        "domain": f"company{n}.example",
        "company": f"{COMPANIES[n % len(COMPANIES)]} {n}",
        "employees": (n * 7919) % 5000,
        "country": ("DE", "FR", "US", "JP")[n % 4],
    }


def _queues(fleet: limpet.Fleet, hostile: bool) -> list[object]:
    numbers = count()

    @fleet.task("enrich", max_attempts=2, backoff_s=0.0)
    def enrich(domain: str) -> dict[str, Any]:
        n = next(numbers)
        if domain.startswith("slow"):
            raise TimeoutError(f"no answer from {domain} after {10 + n % 5}.0 s")
        if domain.startswith("limit"):
            raise RuntimeError(f"429 Too Many Requests: retry after {30 + n % 60} s")
        if domain.startswith("<"):
            raise ValueError(f"not a domain: {domain}")
        return {"domain": domain, "employees": n}

    for n in range(60):
        enrich.push(f"company{n}.example")
    for n in range(9):
        enrich.push(f"slow{n}.example")
    for n in range(4):
        enrich.push(f"limit{n}.example")
    enrich.push(HOSTILE if hostile else "<unknown>")
    drain(fleet)
    queue = fleet.queue("enrich", ttl_s=600)
    queue.push_many({"domain": f"new{n}.example"} for n in range(300))
    queue.push({"domain": "later.example"}, delay_s=5400)
    held: list[object] = [
        _half_done(_on(fleet, worker).queue("enrich", ttl_s=600), done)
        for worker, done in ((HOLDER, 59), ("fargate-7c2f:1", 12))
    ]
    _suspended(fleet)
    mail = fleet.queue("mail")
    mail.push_many({"to": f"user{n}@example.org"} for n in range(40))
    mail.pause()
    fleet.queue("thumbnails").push({"image": "cat.png"}, id="cat.png")
    resting = fleet.queue("thumbnails")
    with resting.claim() as claim:
        for task in claim:
            task.retry(1800, "ConnectionError: the image server is away")
    if hostile:
        fleet.queue(HOSTILE).push({"text": HOSTILE}, id=HOSTILE)
    return held


def _suspended(fleet: limpet.Fleet) -> None:
    """A durable task with three recorded steps, which waits for a signal."""

    @fleet.task("shipping")
    def order(number: int) -> str:
        limpet.step(reserve, number)
        limpet.step(charge, number)
        limpet.sleep(0)
        return str(limpet.wait_signal("approved"))

    order.using(id=WAITING).push(1017)
    drain(fleet)


def reserve(number: int) -> dict[str, Any]:
    """A step."""
    return {"order": number, "shelf": "B-12"}


def charge(number: int) -> dict[str, Any]:
    """A step."""
    return {"order": number, "paid": "49.00"}


def _on(fleet: limpet.Fleet, label: str) -> limpet.Fleet:
    """The same fleet, used by another process."""
    runtime = SystemRuntime()
    runtime.label = label
    return limpet.open(fleet.url, runtime=runtime, durability="os")


def _workers(fleet: limpet.Fleet) -> None:
    now = fleet.runtime.wall()
    for n, (host, pid, threads) in enumerate(WORKERS):
        record = WorkerPresence(
            host=host,
            pid=pid,
            version=limpet.__version__,
            queues=["enrich", "mail", "thumbnails"],
            threads=threads,
            since=now - timedelta(hours=3 + 11 * n),
            renewed_at=now,
        )
        fleet.store.put(worker_key(f"{host}-{pid}"), records.encode(record))


def _half_done(queue: limpet.Queue, done: int) -> object:
    """A batch of which some tasks are done, held as by a worker that goes on."""
    claim = queue.claim()
    assert isinstance(claim, EntryClaim)
    for _ in range(done):
        task = claim.start_next()
        assert task is not None
        task.done({"ok": True})
    claim.start_next()
    claim.renew()
    return claim


def _locks(fleet: limpet.Fleet) -> list[Lease]:
    free = fleet.lock("nightly-report").acquire()
    free.release()
    return [fleet.lock("deploy", ttl_s=600).acquire(), fleet.lock("reindex", ttl_s=600).acquire()]


def _catalog(fleet: limpet.Fleet) -> None:
    with fleet.lead_catalog() as catalog:
        catalog.create_namespace(["sales"], {"owner": "ada"}, actor="ada")
        catalog.create_namespace(["web"], actor="ada")
        orders = catalog.create_table(["sales"], {"name": "orders", "schema": SCHEMA}, actor="ada")
        for n in range(1, 4):
            summary = {
                "operation": "append",
                "added-records": str(1200 * n),
                "total-records": str(600 * n * (n + 1)),
                "total-data-files": str(n),
            }
            at_ms = int(fleet.runtime.wall().timestamp() * 1000) - (4 - n) * 86_400_000
            commit = append(orders, n * 2_718_281_828_459_045, summary=summary, **{"timestamp-ms": at_ms})
            orders = catalog.commit_table(["sales"], "orders", commit, actor="loader")
        catalog.create_table(["sales"], {"name": "refunds", "schema": SCHEMA}, actor="ada")
        catalog.create_table(["web"], {"name": "visits", "schema": SCHEMA}, actor="loader")
        catalog.drop_table(["sales"], "refunds", actor="bob")

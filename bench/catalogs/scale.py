"""A catalog of many tables, as clients and operators meet it: lists, loads and commits, start-up, takeover, memory.

`python -m bench.catalogs.scale TABLES FOLDER` fills a catalog below FOLDER, 100 tables to a namespace, and prints what
it measured as JSON. Only the tables of the first namespace have files; nothing reads those of the others. Each time
is the median and the 99th percentile of calls one after another, in this process, then over HTTP from `limpet serve`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

import limpet
from bench.catalogs.api import Place
from bench.catalogs.grow import add_entries
from bench.catalogs.ours import Bench, fill, opened, parts_of
from bench.catalogs.work import NAMESPACE, append_body, as_bytes, table
from clients import serving
from limpet.app.catalogs import leader_of, storage_of
from limpet.catalog import Compactor
from limpet.catalog.catalog import Catalog
from limpet.kernel.runtime import system

__all__ = ["scaled"]

EACH = 100
"""Tables in a namespace."""
CALLS, COMMITS = 300, 700
"""Commits go past a checkpoint, which is made every 500."""
PAGE = 50
REPEATS = 5
PATIENCE_S = 120.0
TABLES = f"/v1/namespaces/{NAMESPACE}/tables"

Calls = Mapping[str, Callable[[], object]]
Times = dict[str, tuple[float, float]]


def scaled(tables: int, folder: Path) -> dict[str, Any]:
    """All that is measured with so many tables."""
    place = Place(folder, f"file://{folder}/fleet", 0.0)
    found: dict[str, Any] = {"tables": tables, "namespaces": max(1, tables // EACH)}
    _fill(place, tables)
    found["load_state_ms"] = 1000 * median(_load_state(place) for _ in range(REPEATS))
    found["begin_ms"] = 1000 * median(_begin(place) for _ in range(REPEATS))
    fleet = opened(place)
    _, compactor, api = parts_of(fleet)
    compactor.start()
    api.start()
    try:
        found["in process"] = _measured(_in_process(api.catalog))
    finally:
        api.stop()
        compactor.stop()
    [snapshot] = sorted((folder / "fleet").glob("snapshots/catalog/*.parquet"))[-1:]
    found["snapshot_bytes"] = snapshot.stat().st_size
    return found | _served(folder)


def _fill(place: Place, tables: int) -> None:
    _, compactor, api = parts_of(opened(place))
    compactor.start()
    api.start()
    while not api.leader.leads:
        time.sleep(0.01)
    fill(api.catalog, EACH)
    add_entries(api.catalog, tables - EACH, lambda number: f"space{number // EACH:04}")
    api.stop()
    compactor.stop()


def _load_state(place: Place) -> float:
    """Seconds from nothing to the state in memory: the snapshot read, checked and decoded."""
    return _timed(storage_of(limpet.open(place.url).meter, system()).view.now)


def _begin(place: Place) -> float:
    """Seconds from a free lock to a leader with the state."""
    storage = storage_of(limpet.open(place.url).meter, system())
    leader = leader_of(storage, Compactor(storage).publish)
    took_s = _timed(leader.turn)
    assert leader.leads
    leader.stop()
    leader.run()  # it releases the lock
    return took_s


def _in_process(catalog: Catalog) -> Calls:
    client, names = Bench(catalog), cycle([table(number) for number in range(EACH)])
    return {
        "namespaces, a page": lambda: catalog.namespaces((), "", PAGE),
        "namespaces, all": lambda: catalog.namespaces(),
        "tables, a page": lambda: catalog.tables((NAMESPACE,), "", PAGE),
        "tables, all of a namespace": lambda: catalog.tables((NAMESPACE,)),
        "load": lambda: catalog.load_table((NAMESPACE,), next(names)),
        "commit": lambda: client.append(next(names)),
    }


class _Client:
    """One connection to a service, kept open. `nth`: how often each table was appended to before."""

    def __init__(self, url: str, warehouse: str, nth: int) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
        self._warehouse = warehouse
        self._nth = dict.fromkeys((table(number) for number in range(EACH)), nth)
        self._names = cycle(self._nth)

    def ask(self, method: str, path: str, body: bytes | None = None) -> int:
        """The status of the answer."""
        self._connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def must(self, method: str, path: str, body: bytes | None = None) -> None:
        """An answer that says yes."""
        status = self.ask(method, path, body)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status}")

    def append(self) -> None:
        """To the next table."""
        name = next(self._names)
        self._nth[name] += 1
        self.must("POST", f"{TABLES}/{name}", as_bytes(append_body(name, self._nth[name], self._warehouse)))

    def calls(self) -> Calls:
        """As `_in_process`."""
        return {
            "namespaces, a page": lambda: self.must("GET", f"/v1/namespaces?pageSize={PAGE}"),
            "namespaces, all": lambda: self.must("GET", "/v1/namespaces"),
            "tables, a page": lambda: self.must("GET", f"{TABLES}?pageSize={PAGE}"),
            "tables, all of a namespace": lambda: self.must("GET", TABLES),
            "load": lambda: self.must("GET", f"{TABLES}/{next(self._names)}"),
            "commit": self.append,
        }


def _measured(calls: Calls) -> Times:
    """Median and 99th percentile in ms, by what is called."""
    found: Times = {}
    for what, call in calls.items():
        call()
        times = [_timed(call) for _ in range((COMMITS if what == "commit" else CALLS) - 1)]
        found[what] = 1000 * median(times), 1000 * quantiles(times, n=100)[98]
    return found


def _timed(call: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    call()
    return time.perf_counter() - begun_s


def _served(folder: Path) -> dict[str, Any]:
    """Over HTTP; start-up until it leads; memory; takeover by a process that waits, after a kill -9 of the leader."""
    place, found = serving.Place(f"{folder}/fleet"), dict[str, Any]()
    with serving.whole(place, folder) as first:
        found["start_s"] = _timed(first.wait)
        client = _Client(first.url, f"file://{folder}/fleet/warehouse", COMMITS // EACH)
        found["over HTTP"] = _measured(client.calls())
        found["leader_rss_mb"] = _rss_mb(first)
        with serving.whole(place, folder) as second:
            second.wait(leads=False)
            before = _rss_mb(second)
            first.kill()
            found["takeover_s"] = _timed(second.wait)
            found["waiting_rss_mb"], found["taken_rss_mb"] = before, _rss_mb(second)
            second.kill()
            with serving.whole(place, folder) as third:  # as a service that is started after a crash
                found["start_after_kill_s"] = _timed(third.wait)
    return found


def _rss_mb(service: serving.Service) -> float:
    [line] = [each for each in Path(f"/proc/{service.pid}/status").read_text().splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    print(json.dumps(scaled(int(sys.argv[1]), Path(sys.argv[2]))))

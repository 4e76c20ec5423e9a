"""kill -9 among those who serve the catalog, under PyIceberg clients: what was acknowledged is there, exactly once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog

from clients.serving import Place, Service, api, compactor, place_in, poll, whole
from crash.catalog_clients import NAMESPACE, SCHEMA, SHARED, Books, Client
from support.servers.process import Bucket

pytestmark = pytest.mark.timeout(300)

CLIENTS = 16
KILLS = 10
LEASE_S = 2.0


@pytest.fixture
def services() -> Iterator[ExitStack]:
    """Those who serve; they surely end."""
    with ExitStack() as stack:
        yield stack


def test_api_and_compactor_apart_on_a_directory(services: ExitStack, tmp_path: Path) -> None:
    place = Place(str(tmp_path / "fleet"))
    behind = services.enter_context(compactor(place, tmp_path))
    front = services.enter_context(api(place, tmp_path, behind, lease_s=LEASE_S))
    crash(place, fronts=[front], victims=[front, behind], kills=KILLS)


@pytest.mark.full
def test_both_in_one_process(services: ExitStack, tmp_path: Path) -> None:
    place = Place(str(tmp_path / "fleet"))
    both = services.enter_context(whole(place, tmp_path, lease_s=LEASE_S))
    crash(place, fronts=[both], victims=[both], kills=3)


@pytest.mark.full
def test_a_standby_takes_over_on_seaweedfs(services: ExitStack, tmp_path: Path, seaweedfs: Bucket) -> None:
    place = place_in(seaweedfs, f"crash-{uuid4().hex}")
    behind = services.enter_context(compactor(place, tmp_path))
    fronts = [
        services.enter_context(api(place, tmp_path, behind, lease_s=LEASE_S, name=name)) for name in ("api", "standby")
    ]
    crash(place, fronts=fronts, victims=[*fronts, behind], kills=KILLS)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_many_kills(services: ExitStack, tmp_path: Path, seaweedfs: Bucket, seed: int) -> None:
    place = place_in(seaweedfs, f"crash-{uuid4().hex}") if seed % 2 else Place(str(tmp_path / "fleet"))
    behind = [services.enter_context(compactor(place, tmp_path))]
    fronts = [
        services.enter_context(api(place, tmp_path, behind[0], lease_s=LEASE_S, name=name))
        for name in ("api", "standby")
    ]
    crash(place, fronts=fronts, victims=[*fronts, *behind], kills=100, seed=seed)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"t": ("1", ["t.0"])}, "lost"),
        ({"t": ("1", ["t.0", "t.1", "t.2"])}, "refused"),
        ({"t": ("1", ["t.0", "t.1", "t.9"])}, "nobody asked"),
        ({"t": ("1", ["t.0", "t.1", "t.1"])}, "more than once"),
        ({"t": ("2", ["t.0", "t.1"])}, "another table"),
    ],
)
def test_the_comparison_finds_what_is_wrong(found: dict[str, tuple[str, list[str]]], said: str) -> None:
    books = Books(acked={"t", "t.0", "t.1"}, refused={"t.2"}, unknown={"t.3"}, created={"t": "1"})
    for right in (["t.0", "t.1"], ["t.0", "t.1", "t.3"]):
        _compare({"t": ("1", right)}, books)
    with pytest.raises(AssertionError, match=said):
        _compare(found, books)


def crash(place: Place, *, fronts: Sequence[Service], victims: Sequence[Service], kills: int, seed: int = 11) -> None:
    """Let clients work, kill at random, and compare what is there in the end with what they were told."""
    for service in {*fronts, *victims}:
        service.wait(leads=False)
    poll(lambda: any(front.leads() for front in fronts), lambda: "nobody leads")
    _begin(place, fronts)
    books, stop, chance = Books(), threading.Event(), random.Random(seed)
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [Client(n, [front.url for front in fronts], place.keys, books, stop) for n in range(CLIENTS)]
        running = [pool.submit(client.run) for client in clients]
        try:
            for _ in range(kills):
                goal = len(books.acked) + chance.randint(1, 15)

                def resumed(goal: int = goal) -> bool:
                    for service in victims:
                        service.demand_life()
                    return len(books.acked) >= goal or any(each.done() for each in running)

                poll(
                    resumed, lambda: "\n".join([f"commits do not resume: {books.answers}", *map(Service.log, victims)])
                )
                victim = chance.choice(victims)
                victim.kill()
                victim.start()
        finally:
            stop.set()
    for each in running:
        each.result()
    assert books.wrong == []
    poll(lambda: any(front.leads() for front in fronts), lambda: "nobody leads in the end")
    _compare(_rows(place, fronts), books)
    _verify(place)
    print(f"{len(books.acked)} acknowledged, {len(books.refused)} refused, {len(books.unknown)} unknown, {kills} kills")
    print(dict(books.answers))


def _leader(place: Place, fronts: Sequence[Service]) -> RestCatalog:
    url = next(front.url for front in fronts if front.leads())
    return RestCatalog("limpet", uri=url, **place.keys)


def _begin(place: Place, fronts: Sequence[Service]) -> None:
    with _leader(place, fronts) as catalog:
        catalog.create_namespace(NAMESPACE)
        catalog.create_table((NAMESPACE, SHARED), SCHEMA, properties={"commit.retry.num-retries": "50"})


def _rows(place: Place, fronts: Sequence[Service]) -> dict[str, tuple[str, list[str]]]:
    """By table its id, and the rows in it."""
    found = {}
    with _leader(place, fronts) as catalog:
        for name in catalog.list_tables(NAMESPACE):
            table = catalog.load_table(name)
            ids: pa.ChunkedArray = table.scan().to_arrow()["id"]
            found[name[-1]] = (str(table.metadata.table_uuid), ids.to_pylist())
    return found


def _compare(found: dict[str, tuple[str, list[str]]], books: Books) -> None:
    copies = Counter(row for _, rows in found.values() for row in rows)
    there = {*copies, *found} - {SHARED}
    assert books.acked - there == set(), "acknowledged and lost"
    assert books.refused & there == set(), "refused, and yet there"
    assert there - books.acked - books.unknown == set(), "there, and nobody asked for it"
    assert {row: n for row, n in copies.items() if n > 1} == {}, "there more than once"
    assert {name: found[name][0] for name in books.created} == books.created, "another table than the one acknowledged"


def _verify(place: Place) -> None:
    command = [str(Path(sys.executable).parent / "limpet"), "catalog", "verify", "--url", place.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **place.env})
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["broken"] is None

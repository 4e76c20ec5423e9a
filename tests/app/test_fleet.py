"""`open` and `Fleet`: what they promise, refuse and cost."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import limpet
from limpet.app.record import FleetRecord
from limpet.kernel import keys
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.errors import Conflict, Denied, Held, Invalid, LeaseLost, LimpetError, Missing, Unsupported
from limpet.kernel.lease import Lease, State
from limpet.kernel.runtime import system
from limpet.kernel.store import DirectoryStore, MemoryStore
from support.clock import ManualRuntime
from support.servers.process import Bucket


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of a memory store of this test's own."""
    from limpet.app.place import _named_memory

    name = uuid4().hex
    yield f"memory://{name}"
    _named_memory.pop(name, None)


def memory_store(url: str) -> MemoryStore:
    from limpet.app.place import _named_memory

    return _named_memory[url.removeprefix("memory://")]


def opened(url: str | Path | None = None, **options: Any) -> limpet.Fleet:
    """Open, and connect at once."""
    fleet = limpet.open(url, **options)
    fleet.check()
    return fleet


def value_of(fleet: limpet.Fleet, cell: str) -> Any:
    """What a cell holds."""
    seen = fleet.cell(cell).read()
    assert seen is not None
    return seen.value


def snapshot(root: Path) -> dict[str, str]:
    """Every file below `root`, with a digest of its bytes."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


# ---- open ----


def test_a_new_place_becomes_a_fleet(memory: str) -> None:
    fleet = opened(memory)
    assert fleet.url == memory
    assert fleet.record.format == {"queue": 1, "index": 1, "catalog": 1}
    assert fleet.record.probe.conditional
    assert [stat.key for stat in memory_store(memory).list()] == [keys.FLEET], "the probe is gone"
    assert repr(fleet) == f"Fleet('{memory}')"


def test_the_url_may_come_from_the_environment(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPET_URL", memory)
    assert opened().url == memory


def test_two_that_open_a_new_place_at_once_agree(memory: str) -> None:
    """The other one's limpet.json lands between our look and our create."""
    opened(memory)
    store = memory_store(memory)
    theirs = store.get(keys.FLEET).data
    store.delete(keys.FLEET)

    class Racing(ManualRuntime):
        """Asked for the time when the probe is done, just before the create."""

        def wall(self) -> datetime:
            store.put(keys.FLEET, theirs)
            return super().wall()

    opened(memory, runtime=Racing())
    assert store.get(keys.FLEET).data == theirs


@pytest.mark.parametrize("where", ["directory", "seaweedfs"])
def test_what_open_costs(
    where: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "fleet")
    if where == "seaweedfs":
        bucket: Bucket = request.getfixturevalue("seaweedfs")
        for name, value in bucket.env.items():
            monkeypatch.setenv(name, value)
        url = bucket.at(f"open-{uuid4().hex}")
    new = opened(url)
    assert new.meter.snapshot().requests == {"get": 2, "put": 5, "delete": 1}
    existing = opened(url)
    assert existing.meter.snapshot().requests == {"get": 1}
    reader = opened(url, read_only=True)
    assert reader.meter.snapshot().requests == {"get": 1}


def test_opening_does_nothing_until_the_first_use(tmp_path: Path) -> None:
    place = tmp_path / "fleet"
    fleet = limpet.open(place)
    queue, lock, cell = fleet.queue("q"), fleet.lock("l"), fleet.cell("c")
    fleet.index("i")
    fleet.task("t")(lambda: None)
    assert (fleet.meter.snapshot().requests, place.exists()) == ({}, False)
    queue.push({})
    assert fleet.is_new
    assert fleet.meter.snapshot().requests == {"get": 2, "put": 6, "delete": 1}
    assert cell.read() is None
    assert lock.peek() is None
    assert not limpet.open(place).is_new


def test_a_place_that_cannot_be_reached_is_asked_again_at_the_next_use(tmp_path: Path) -> None:
    place = tmp_path / "fleet"
    fleet = limpet.open(place, create=False)
    cell = fleet.cell("c")
    for _ in range(2):
        with pytest.raises(Invalid, match="there is no fleet at"):
            cell.write(1)
    with pytest.raises(Missing, match="there is no fleet at"):
        fleet.check()
    assert not place.exists()
    opened(place)
    with fleet.meter.measure() as cost:
        cell.write(1)
    assert cost.requests == {"get": 2, "put": 1}, "limpet.json, the cell as it was, and the cell"


def test_a_place_without_a_fleet_does_not_read_as_an_empty_one(tmp_path: Path) -> None:
    """The same for a first use that would take a missing object as an answer."""
    for fleet in (limpet.open(tmp_path / "x", read_only=True), limpet.open(tmp_path / "x", create=False)):
        for look in (
            lambda: fleet.cell("a").read(),  # noqa: B023
            lambda: fleet.lock_seen("a"),  # noqa: B023
            lambda: fleet.queue("q").result("a"),  # noqa: B023
            lambda: [*fleet.locks()],  # noqa: B023
            lambda: fleet.queue("q").claim(),  # noqa: B023
        ):
            with pytest.raises(Invalid, match="there is no fleet at"):
                look()


def test_threads_that_use_a_new_fleet_at_once_open_it_once(tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    queue = fleet.queue("q")
    system().fan_out(lambda n: queue.push({"n": n}), range(20))
    assert fleet.meter.snapshot().requests == {"get": 2, "put": 25, "delete": 1}


def test_queues_and_indexes_are_listed(memory: str) -> None:
    fleet = limpet.open(memory)
    assert (fleet.queues(), fleet.indexes()) == ([], [])
    for name in ("mail", "enrich", "a/b"):
        fleet.queue(name).push({})
    fleet.index("sites", {"fields": [{"name": "id", "type": "string"}]}, key="id").put({"id": "a"})
    assert fleet.queues() == ["a/b", "enrich", "mail"]
    assert fleet.indexes() == ["sites"]


def test_a_queue_that_must_exist(memory: str) -> None:
    fleet = limpet.open(memory)
    with pytest.raises(Missing) as caught:
        fleet.queue("enrich", create=False)
    assert "no queue was ever used here" in caught.value.hint
    fleet.queue("enrich").push({})
    assert fleet.queue("enrich", create=False).stats().pending == 1
    with pytest.raises(Missing, match="there is no queue 'enrihc' at") as caught:
        fleet.queue("enrihc", create=False)
    assert caught.value.hint.startswith("did you mean 'enrich'?")
    with fleet.meter.measure() as cost:
        fleet.queue("enrich", create=False)
    assert cost.requests == {"list": 1}


def test_a_budget_stops_a_runaway(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(memory)
    monkeypatch.setenv("LIMPET_REQUEST_BUDGET", "3")
    fleet = opened(memory)
    fleet.cell("a").write(1)
    with pytest.raises(Denied, match="budget of 3"):
        fleet.cell("a").read()


@pytest.mark.parametrize("budget", ["many", "-1", "1.5", " "])
def test_a_budget_that_is_no_number_is_invalid(memory: str, monkeypatch: pytest.MonkeyPatch, budget: str) -> None:
    monkeypatch.setenv("LIMPET_REQUEST_BUDGET", budget)
    with pytest.raises(Invalid, match="LIMPET_REQUEST_BUDGET"):
        opened(memory)


# ---- too new, or broken ----


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


REFUSED: dict[str, tuple[Callable[[bytes], bytes], type[LimpetError]]] = {
    "format": (replaced(b'"queue":1', b'"queue":2'), Unsupported),
    "feature": (replaced(b'"features":[]', b'"features":["zstd"]'), Unsupported),
    "reader": (replaced(b'"min_reader":1', b'"min_reader":2'), Unsupported),
    "schema": (replaced(b'"schema":1', b'"schema":2'), Unsupported),
    "truncated": (lambda data: data[: len(data) // 2], limpet.Corrupt),
    "empty": (lambda data: b"", limpet.Corrupt),
    "garbage": (lambda data: b"\x00\xff garbage", limpet.Corrupt),
    "no fields": (lambda data: b"{}", limpet.Corrupt),
    "no probe": (replaced(b'"probe"', b'"prove"'), limpet.Corrupt),
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(("spoil", "kind"), REFUSED.values(), ids=REFUSED)
def test_a_fleet_that_cannot_be_understood_is_refused_and_untouched(
    tmp_path: Path, spoil: Callable[[bytes], bytes], kind: type[LimpetError], read_only: bool
) -> None:
    opened(tmp_path)
    file = tmp_path / "limpet.json"
    before = file.read_bytes()
    file.write_bytes(spoil(before))
    assert file.read_bytes() != before
    was = snapshot(tmp_path)
    with pytest.raises(kind) as caught:
        opened(tmp_path, read_only=read_only)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert snapshot(tmp_path) == was


def test_a_fleet_that_wants_newer_writers_may_still_be_read(tmp_path: Path) -> None:
    opened(tmp_path).cell("a").write(1)
    file = tmp_path / "limpet.json"
    file.write_bytes(file.read_bytes().replace(b'"min_writer":1', b'"min_writer":2'))
    was = snapshot(tmp_path)
    with pytest.raises(Unsupported, match="writers of level 2") as caught:
        opened(tmp_path)
    assert "read_only=True" in caught.value.hint
    assert value_of(opened(tmp_path, read_only=True), "a") == 1
    assert snapshot(tmp_path) == was


# ---- read only ----


def test_reading_writes_nothing(tmp_path: Path) -> None:
    fleet = opened(tmp_path)
    lease = fleet.lock("l").try_acquire()
    assert isinstance(lease, Lease)
    fleet.cell("a").write({"n": 1}, lease=lease)
    was = snapshot(tmp_path)
    reader = opened(tmp_path, read_only=True)
    assert value_of(reader, "a") == {"n": 1}
    assert reader.cell("b").read() is None
    assert reader.lock("l").peek() is not None
    assert [seen.value.name for seen in reader.locks()] == ["l"]
    for act in (
        lambda: reader.cell("a").write(2),
        lambda: reader.cell("b").create(2),
        lambda: reader.cell("a").update(lambda _: 2),
        lambda: reader.lock("m").try_acquire(),
        lambda: reader.lock("l").break_(),
    ):
        with pytest.raises(Denied):
            act()
    spent = reader.meter.snapshot().requests
    assert set(spent) <= {"get", "head", "list"}
    assert snapshot(tmp_path) == was


def test_reading_a_place_without_a_fleet_creates_none(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no fleet at"):
        opened(tmp_path / "x", read_only=True)
    assert [*tmp_path.iterdir()] == []


def test_a_read_only_key_opens_reads_and_sets_nothing_up(seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in seaweedfs.env.items():
        monkeypatch.setenv(name, value)
    url = seaweedfs.at(f"read-only-{uuid4().hex}")
    opened(url).cell("a").write(1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweedfs.read_only["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweedfs.read_only["secret_access_key"])
    reader = opened(url)
    assert value_of(reader, "a") == 1
    with pytest.raises(Denied):
        reader.cell("a").write(2)
    with pytest.raises(Denied, match="no fleet at"):
        opened(seaweedfs.at(f"nothing-{uuid4().hex}"))


# ---- rooms ----


def test_locks_and_cells_work_together(memory: str) -> None:
    fleet = opened(memory)
    with fleet.lock("report", ttl_s=60).hold(wait_s=0) as lease:
        fleet.cell("report").write({"rows": 3}, lease=lease)
        assert isinstance(opened(memory).lock("report").try_acquire(), Held)
    with fleet.lock("report").hold(wait_s=0) as newer:
        assert newer.token == lease.token + 1
        opened(memory).cell("report").write({"rows": 4}, lease=newer)
    with pytest.raises(LeaseLost):
        fleet.cell("report").write({"rows": 5}, lease=lease)
    assert value_of(fleet, "report") == {"rows": 4}


def test_every_lock_ever_used_is_listed(memory: str) -> None:
    fleet = opened(memory)
    names = ["b", "a", "../x", "Ü", "a" * 300]
    for name in names:
        assert isinstance(fleet.lock(name).try_acquire(), Lease)
    fleet.lock("a").break_()
    assert sorted(seen.value.name for seen in fleet.locks()) == sorted(names)
    assert [seen.value.name for seen in fleet.locks() if seen.value.state is State.FREE] == ["a"]


def test_a_cell_and_a_lock_of_one_name_are_apart(memory: str) -> None:
    fleet = opened(memory)
    fleet.cell("x").write(1)
    assert isinstance(fleet.lock("x").try_acquire(), Lease)


# ---- upgrade ----


def old_fleet(root: Path) -> None:
    cell = Cell(DirectoryStore(root), keys.FLEET, struct_codec(FleetRecord), system())
    old = msgspec.structs.replace(opened(root).record, format={"queue": 0}, min_reader=0, min_writer=0)
    cell.update(lambda _: old)


def test_an_old_fleet_keeps_its_format_until_it_is_upgraded(tmp_path: Path) -> None:
    old_fleet(tmp_path)
    fleet = opened(tmp_path)
    fleet.cell("a").write(1)
    assert opened(tmp_path).record.format == {"queue": 0}
    assert fleet.upgrade() is True
    assert fleet.record == opened(tmp_path).record
    assert fleet.record.format == {"queue": 1, "index": 1, "catalog": 1}
    assert fleet.upgrade() is False


def test_what_an_upgrade_costs(tmp_path: Path) -> None:
    old_fleet(tmp_path)
    fleet = opened(tmp_path)
    with fleet.meter.measure() as cost:
        fleet.upgrade()
    assert cost.requests == {"get": 1, "put": 1}
    with fleet.meter.measure() as cost:
        fleet.upgrade()
    assert cost.requests == {"get": 1}


def test_a_fleet_that_is_gone_cannot_be_upgraded(memory: str) -> None:
    fleet = opened(memory)
    memory_store(memory).delete(keys.FLEET)
    with pytest.raises(Missing):
        fleet.upgrade()


def test_swapping_by_hand_needs_the_newest_version(memory: str) -> None:
    fleet = opened(memory)
    seen = fleet.cell("a").create(1)
    fleet.cell("a").swap(seen, 2)
    with pytest.raises(Conflict):
        fleet.cell("a").swap(seen, 3)


WITHOUT_EXTRA = """
import sys
sys.modules["pyiceberg"] = None
import limpet
fleet = limpet.open("memory://x")
for reach in (fleet.catalog, fleet.lead_catalog):
    try:
        reach()
    except limpet.Unsupported as error:
        print(error, "|", error.hint)
"""


def test_the_catalog_without_its_packages_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRA], capture_output=True, text=True, check=False)
    assert done.stdout == 2 * "the catalog needs pyiceberg | pip install 'limpet[catalog]'\n", done.stderr


def _use_queue(fleet: limpet.Fleet) -> None:
    queue = fleet.queue("enrich")
    queue.push({"n": 1})
    with queue.claim() as claim:
        for task in claim:
            task.done()


def _use_lock(fleet: limpet.Fleet) -> None:
    with fleet.lock("report").hold(wait_s=1) as lease:
        fleet.cell("report").write({"n": 1}, lease=lease)


@dataclass
class Site:
    """What is put."""

    domain: str


def _use_index(fleet: limpet.Fleet) -> None:
    index = fleet.index("sites", Site, key="domain")
    index.put(Site("a.com"))
    index.compile()
    assert index.get("a.com") is not None


@pytest.mark.parametrize("use", [_use_queue, _use_lock, _use_index])
def test_a_fleet_that_is_no_longer_used_keeps_no_file_open(tmp_path: Path, use: Callable[[limpet.Fleet], None]) -> None:
    """Without the garbage collector: a process may open a fleet for each of its requests."""
    use(limpet.open(tmp_path / "first", durability="os"))
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/dev/fd"))
        use(limpet.open(tmp_path / "second", durability="os"))
        assert len(os.listdir("/dev/fd")) <= before
    finally:
        gc.enable()

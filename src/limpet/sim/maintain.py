"""Scenario: writers, readers, tags, expiry and removal of orphans around one table; each process leads when it writes.

Invariants: a file is never deleted while the published table needs it, for any snapshot that it retains; who read the
table's metadata can read its files for half of the grace time; at the end exactly the needed files are left.
Files are found here by a walk of the bucket's own objects, not by the code that is checked. Compaction is left out:
PyIceberg reads data files in threads. A writer here replaces files as compaction does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyiceberg.avro.file as avro_module

import limpet.catalog.compactor as compactor_module
import limpet.catalog.maintain.tables as tables_module
from limpet.app.catalogs import DOMAIN, lead, open_catalog
from limpet.catalog.iceberg.avro import AvroBudget, entries_in, manifests_in
from limpet.catalog.iceberg.files import (
    Column,
    Input,
    TableFiles,
    commit_of,
    contents_of,
    data_file,
    stage_request,
)
from limpet.catalog.maintain.tables import LedCatalogWriter, TableMaintenance, TableWriter
from limpet.catalog.records import CatalogHead
from limpet.catalog.state import Entry, key_of
from limpet.catalog.storage import CatalogStorage
from limpet.catalog.warehouse import WAREHOUSE
from limpet.errors import Conflict, Invalid
from limpet.keys import CatalogKeys, Key
from limpet.sim.actors import Actor, Actors, Nemesis, RunPlan, Settings, Turns, steps
from limpet.sim.bucket import Bucket, SimStore
from limpet.sim.catalog import JsonSnapshots
from limpet.sim.world import SimProcess, SimRuntime, Violation, World

URL = "memory://sim"
WHERE = ("a",), "t"
COLUMNS = (Column("id", "string"),)
ROWS = pa.table({"id": ["x"]})
GRACE_S = 3600.0
TURNS = 14
REST_S = 2400.0
SHORT_S = 1.0
RUN_S = 200_000.0
AHEAD_S = 86_400.0
HEAL_S = 300_000.0
SELDOM = 40
"""Processes are struck that many times less often than in other scenarios: their turns are minutes apart."""

STEPS = steps("warehouse: delete list put read", "manifests: put read", "ledger: put", "lock: take takeover")
"""The steps at which a process may be struck."""


class WarehouseBucket(Bucket):
    """Checks each deletion of a table's file."""

    def delete(self, who: str, key: Key) -> None:
        """Raises: Violation for a file that the table needs."""
        if key.startswith(f"{WAREHOUSE}/") and key in self.needed():
            self._world.failure = self._world.failure or Violation(f"{who} deletes {key}, which a snapshot needs")
        super().delete(who, key)

    def needed(self) -> set[Key]:
        """The files of the published table: its metadata, older metadata, and all files of all snapshots."""
        head = self.objects.get(CatalogKeys.of(DOMAIN).head)
        if head is None:
            return set()
        value = None
        for tail in msgspec.json.decode(head.data, type=CatalogHead).tail:
            for change in (change for row in tail.rows for change in row.changes):
                value = change.value if change.key == key_of("t", *WHERE) else value
        if value is None:
            return set()
        path = Key(f"{WAREHOUSE}/{Entry.of(value).path}")
        metadata = msgspec.json.decode(self.objects[path].data)
        found = {path, *(self.key(entry["metadata-file"]) for entry in metadata.get("metadata-log") or ())}
        for snapshot in metadata.get("snapshots") or ():
            found |= self.files(snapshot["manifest-list"])
        return found

    def files(self, manifest_list: str) -> set[Key]:
        """The files of a snapshot.   Raises: Violation if one that leads to others is gone."""

        def fetch(url: str, _: int) -> bytes:
            if self.key(url) not in self.objects:
                raise Violation(f"{self.key(url)} is gone, and a retained snapshot needs it")
            return self.objects[self.key(url)].data

        found = {self.key(manifest_list)}
        for manifest in manifests_in(Input(manifest_list, fetch), AvroBudget()):
            found.add(self.key(manifest.manifest_path))
            for entry in entries_in(Input(manifest.manifest_path, fetch), manifest, AvroBudget()):
                found.add(self.key(entry.data_file.file_path))
        return found

    @staticmethod
    def key(url: str) -> Key:
        """The key of a file."""
        return Key(url.removeprefix(f"{URL}/"))


class MaintainActors(Actors):
    """Processes on separate machines, around one table."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, replace(plan, nemesis_every_s=SELDOM * plan.nemesis_every_s), slots=4, turns=TURNS)
        self.bucket = WarehouseBucket(world, self.plan)

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        """The head keeps all commits, where the invariants look for them."""
        settings: dict[tuple[ModuleType, str], Any] = {
            (compactor_module, "SNAPSHOT_EVERY"): 1 << 20,
            (compactor_module, "TAIL_BYTES_MAX"): 1 << 30,
            (tables_module, "GRACE_S_MIN"): GRACE_S,
            (avro_module, "os"): SimpleNamespace(urandom=bytes),  # the marks between blocks of a file
        }
        return settings

    def act(self) -> None:
        founder = MaintainActor(self, self.world.start("founder"))
        self.world.healed = True
        self.alone(founder, founder.found, within_s=HEAL_S)
        self.world.healed = False
        self.play(Nemesis(self, STEPS).run, until_s=RUN_S)
        self.stop_faults()
        newcomer = MaintainActor(self, self.world.start("newcomer"))
        self.alone(newcomer, newcomer.clean_up, within_s=HEAL_S)
        left, needed = {*self.bucket.below(WAREHOUSE)}, self.bucket.needed()
        if left != needed:
            raise Violation(
                f"after the clean-up {sorted(left - needed)} are left, and {sorted(needed - left)} are gone"
            )

    def actor(self, process: SimProcess) -> MaintainActor:
        self.vary(process, newer=False)
        return MaintainActor(self, process)


class MaintainedTable(TableMaintenance):
    """The table, and how a writer adds a file to it and replaces others."""

    def replace_files(self, writer: TableWriter, dropped: int) -> bool:
        """Add a file, and drop so many; False if another process was first."""
        contents = contents_of(self._load().metadata, "sim", COLUMNS, self._fetch)
        stamp, written = self._stamp(), list[Key]()
        file, data = data_file(contents, f"{contents.location}/data/{stamp.unique}.parquet", ROWS)
        changed = TableFiles(contents.files[dropped:], [file], contents.files[:dropped])
        request, manifests = commit_of(contents, changed, stamp)
        self._write({file.url: data, **manifests}, written)
        try:
            writer.commit_table(*WHERE, request)
        except Conflict:
            if not self._landed(stamp):
                self._remove(written)
                return False
        return True

    def newest(self) -> tuple[list[int], str | None]:
        """The ids of the snapshots, and the manifest list of the current one."""
        history = self._history(self._load())
        current = history.by_id().get(history.current_snapshot_id or 0)
        return [*history.by_id()], current.manifest_list if current else None


class MaintainActor(Actor):
    """A writer, reader and operator of the table."""

    expected = (*Actor.expected, Conflict, Invalid)

    def __init__(self, actors: MaintainActors, process: SimProcess) -> None:
        runtime = SimRuntime(actors.world, process)
        super().__init__(runtime, SimStore(actors.bucket, runtime))
        self.bucket = actors.bucket
        self.storage = CatalogStorage(self.store, CatalogKeys.of(DOMAIN), runtime, JsonSnapshots())
        self.table = MaintainedTable(open_catalog(self.storage, URL), WHERE, self.leading)

    def turns(self) -> Turns:
        return [(0.35, self.write), (0.15, self.expire), (0.25, self.remove), (0.1, self.tag), (0.15, self.read)]

    def rest(self) -> None:
        """Often turns follow each other closely, so that others are in the middle of theirs."""
        self.runtime.sleep((SHORT_S if self.chance() < 0.5 else REST_S) * self.chance())

    @contextmanager
    def leading(self) -> Iterator[TableWriter]:
        """The catalog, which this process leads meanwhile."""
        with lead(self.storage, URL) as catalog:
            yield LedCatalogWriter(catalog)

    def found(self) -> None:
        """Create the table."""
        with lead(self.storage, URL) as catalog:
            catalog.create_namespace(WHERE[0])
            catalog.create_table(WHERE[0], {**stage_request(WHERE[1], "sim", COLUMNS), "stage-create": False})

    def write(self) -> None:
        """Add a file, and sometimes drop others."""
        with self.leading() as writer:
            for _ in range(3):
                if self.table.replace_files(writer, int(3 * self.chance())):
                    return

    def expire(self) -> None:
        """Expire snapshots, all or some."""
        self.table.expire(max_age=timedelta(seconds=2 * GRACE_S * self.chance()), min_snapshots=1)

    def remove(self) -> None:
        """Remove orphans, after the least grace time."""
        self.table.remove_orphans(grace=timedelta(seconds=GRACE_S))

    def tag(self) -> None:
        """Set a tag to some snapshot, or remove it."""
        ids, _ = self.table.newest()
        update: dict[str, Any] = {"action": "remove-snapshot-ref", "ref-name": "kept"}
        if ids and self.chance() < 0.7:
            id_ = ids[int(len(ids) * self.chance())]
            update = {"action": "set-snapshot-ref", "ref-name": "kept", "type": "tag", "snapshot-id": id_}
        with self.leading() as writer:
            writer.commit_table(*WHERE, {"requirements": [], "updates": [update]})

    def read(self) -> None:
        """A query that takes a while: it reads the files of the snapshot that was current when it began."""
        _, manifest_list = self.table.newest()
        if manifest_list is not None:
            self.runtime.sleep(GRACE_S / 2 * (0.5 + self.chance() / 2))
            gone = [key for key in self.bucket.files(manifest_list) if key not in self.bucket.objects]
            if gone:
                raise Violation(f"{self.process.name} cannot read {gone}, which were current half a grace time ago")

    def clean_up(self) -> None:
        """Expire all but the newest snapshot, and remove all orphans. Clocks of writers were up to half a day ahead."""
        self.table.expire(max_age=timedelta(0))
        self.runtime.sleep(AHEAD_S + 3 * GRACE_S)
        self.table.remove_orphans(grace=timedelta(seconds=GRACE_S))

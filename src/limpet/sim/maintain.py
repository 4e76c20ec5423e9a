"""Scenario: writers, readers, tags, expiry, compaction and removal of orphans around one table; each process leads when
it writes, clocks are up to half a day wrong, and a proxy sends some commits twice.

Invariants: a file is never deleted while the published table needs it, for any snapshot that it retains; who read the
table's metadata can read the files of all its snapshots for half of the grace time; a compaction changes no row; a tag
stays, with its snapshot, until it is moved; at the end exactly the needed files are left.
Files are found here by a walk of the bucket's own objects, not by the code that is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from io import BytesIO
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pyiceberg.avro.file as avro_module
import pyiceberg.io.pyarrow as arrow_module

import limpet.catalog.compactor as compactor_module
import limpet.catalog.maintain.tables as tables_module
from limpet.app.catalogs import DOMAIN, lead, open_catalog
from limpet.catalog.catalog import Catalog
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
from limpet.catalog.iceberg.rewrite import CurrentFiles
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
from limpet.store.api import Version, When

URL = "memory://sim"
WHERE = ("a",), "t"
COLUMNS = (Column("id", "string"),)
TAG, MOVES = "kept", "moves"
"""A tag, and the property that each move or removal of it changes."""
GRACE_S = 3600.0
TURNS = 14
REST_S = 2400.0
SHORT_S = 1.0
RUN_S = 200_000.0
AHEAD_S = 86_400.0
HEAL_S = 300_000.0
TWICE = 0.1
"""The share of commits that a proxy sends twice."""
SELDOM = 40
"""Processes are struck that many times less often than in other scenarios: their turns are minutes apart."""

STEPS = steps("warehouse: delete list put read", "manifests: put read", "ledger: put", "lock: take takeover")
"""The steps at which a process may be struck."""


class WarehouseBucket(Bucket):
    """Checks each deletion of a table's file, and each commit."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, plan)
        self._published: dict[str, Any] = {}

    def put(self, who: str, key: Key, data: bytes, when: When) -> Version:
        """Raises: Violation for a commit that loses a tag or rows."""
        version = super().put(who, key, data, when)
        if key == CatalogKeys.of(DOMAIN).head:
            before, (_, self._published) = self._published, self.published()
            wrong = self._wrong(before, self._published) if before else ""
            if wrong:
                self._world.failure = self._world.failure or Violation(f"{who} publishes a table in which {wrong}")
        return version

    def delete(self, who: str, key: Key) -> None:
        """Raises: Violation for a file that the table needs."""
        if key.startswith(f"{WAREHOUSE}/") and key in self.needed():
            self._world.failure = self._world.failure or Violation(f"{who} deletes {key}, which a snapshot needs")
        super().delete(who, key)

    def published(self) -> tuple[Key, dict[str, Any]]:
        """The table's metadata file, and what is in it; nothing before the table is there."""
        head, value = self.objects.get(CatalogKeys.of(DOMAIN).head), None
        for tail in msgspec.json.decode(head.data, type=CatalogHead).tail if head else ():
            for change in (change for row in tail.rows for change in row.changes):
                value = change.value if change.key == key_of("t", *WHERE) else value
        if value is None:
            return Key(""), {}
        path = Key(f"{WAREHOUSE}/{Entry.of(value).path}")
        return path, msgspec.json.decode(self.objects[path].data)

    def needed(self) -> set[Key]:
        """The files of the published table: its metadata, older metadata, and all files of all snapshots."""
        path, metadata = self.published()
        found = {path, *(self.key(entry["metadata-file"]) for entry in metadata.get("metadata-log") or ())} - {""}
        for snapshot in metadata.get("snapshots") or ():
            found |= self.files(snapshot["manifest-list"])
        return found

    def _wrong(self, before: dict[str, Any], after: dict[str, Any]) -> str:
        """What one commit must not have done."""
        old, new = ({each["snapshot-id"]: each for each in table.get("snapshots") or ()} for table in (before, after))
        refs: dict[str, Any] = after.get("refs") or {}
        lacking = [name for name, ref in refs.items() if ref["snapshot-id"] not in new]
        if lacking:
            return f"the snapshot of {lacking[0]!r} is gone"
        is_moved = before["properties"].get(MOVES) != after["properties"].get(MOVES)
        if not is_moved and (before.get("refs") or {}).get(TAG) != refs.get(TAG):
            return f"the tag {TAG!r} was lost"
        current, parent = new.get(after.get("current-snapshot-id")), old.get(before.get("current-snapshot-id"))
        if current and parent and current is not parent and current["summary"]["operation"] == "replace":
            was, is_ = self.rows(parent), self.rows(current)
            return f"a compaction has made {is_} of {was}" if was != is_ else ""
        return ""

    def rows(self, snapshot: dict[str, Any]) -> list[str]:
        """The rows of a snapshot, sorted."""
        files = [key for key in self.files(snapshot["manifest-list"]) if key.endswith(".parquet")]
        return sorted(id_ for key in files for id_ in pq.read_table(BytesIO(self.objects[key].data))["id"].to_pylist())

    def files(self, manifest_list: str) -> set[Key]:
        """The files of a snapshot.   Raises: Violation if one that leads to others is gone."""

        def fetch(url: str, _: int) -> bytes:
            if self.key(url) not in self.objects:
                raise Violation(f"{self.key(url)} is gone, and a reader or a retained snapshot needs it")
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
        plan = replace(plan, nemesis_every_s=SELDOM * plan.nemesis_every_s)
        super().__init__(world, plan, slots=2 + world.seed % 3, turns=TURNS)
        self.bucket = WarehouseBucket(world, self.plan)

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        """The head keeps all commits, where the invariants look for them. PyIceberg starts no threads."""
        settings: dict[tuple[ModuleType, str], Any] = {
            (compactor_module, "SNAPSHOT_EVERY"): 1 << 20,
            (compactor_module, "TAIL_BYTES_MAX"): 1 << 30,
            (tables_module, "GRACE_S_MIN"): GRACE_S,
            (avro_module, "os"): SimpleNamespace(urandom=bytes),  # the marks between blocks of a file
            (arrow_module, "ExecutorFactory"): SimpleNamespace(get_or_create=lambda: SimpleNamespace(map=map)),
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
        process.wall_offset_s = (self.world.chance(32, process.index) - 0.5) * AHEAD_S
        return MaintainActor(self, process)


class MaintainedTable(TableMaintenance):
    """The table, and how a writer adds a file to it and replaces others."""

    reading_s = 0.0
    """How long the next compaction reads its files: others commit meanwhile."""

    def _current(self) -> CurrentFiles:
        found, reading_s, self.reading_s = super()._current(), self.reading_s, 0.0
        if reading_s:
            self._runtime.sleep(reading_s)
        return found

    def replace_files(self, writer: TableWriter, dropped: int) -> bool:
        """Add a file, and drop so many; False if another process was first."""
        contents = contents_of(self._load().metadata, "sim", COLUMNS, self._fetch)
        stamp, written = self._stamp(), list[Key]()
        rows = pa.table({"id": [stamp.unique]})
        file, data = data_file(contents, f"{contents.location}/data/{stamp.unique}.parquet", rows)
        changed = TableFiles(contents.files[dropped:], [file], contents.files[:dropped])
        request, manifests = commit_of(contents, changed, stamp)
        self._write({file.url: data, **manifests}, written)
        try:
            writer.commit_table(*WHERE, request)
        except Conflict:
            return bool(self._landed(request, written))
        return True

    def snapshots(self) -> dict[int, str]:
        """The manifest lists of all snapshots, by their ids."""
        history = self._history(self._load())
        return {id_: snapshot.manifest_list or "" for id_, snapshot in history.by_id().items()}


class ProxiedWriter(LedCatalogWriter):
    """Behind a proxy that sends some commits twice; the client gets the second answer (F1)."""

    def __init__(self, catalog: Catalog, chance: Callable[[], float]) -> None:
        super().__init__(catalog)
        self._chance = chance

    def commit_table(self, namespace: Sequence[str], name: str, request: Mapping[str, Any]) -> str:
        if self._chance() < TWICE:
            super().commit_table(namespace, name, request)
        return super().commit_table(namespace, name, request)


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
        writes = [(0.25, self.write), (0.15, self.expire), (0.1, self.compact), (0.1, self.tag)]
        return [*writes, (0.2, self.remove), (0.2, self.read)]

    def rest(self) -> None:
        """Often turns follow each other closely, so that others are in the middle of theirs; or nothing happens."""
        long_s = REST_S if self.chance() < 0.8 else 3 * GRACE_S
        self.runtime.sleep((SHORT_S if self.chance() < 0.5 else long_s) * self.chance())

    @contextmanager
    def leading(self) -> Iterator[TableWriter]:
        """The catalog, which this process leads meanwhile."""
        with lead(self.storage, URL) as catalog:
            yield ProxiedWriter(catalog, self.chance)

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

    def compact(self) -> None:
        """Rewrite all files as one, which sometimes takes long."""
        self.table.reading_s = REST_S * self.chance() if self.chance() < 0.5 else 0.0
        self.table.compact(min_files=2)

    def tag(self) -> None:
        """Set a tag to some snapshot, or remove it."""
        ids = [*self.table.snapshots()]
        update: dict[str, Any] = {"action": "remove-snapshot-ref", "ref-name": TAG}
        if ids and self.chance() < 0.7:
            id_ = ids[int(len(ids) * self.chance())]
            update = {"action": "set-snapshot-ref", "ref-name": TAG, "type": "tag", "snapshot-id": id_}
        moved = {"action": "set-properties", "updates": {MOVES: self.runtime.new_id()}}
        with self.leading() as writer:
            writer.commit_table(*WHERE, {"requirements": [], "updates": [update, moved]})

    def read(self) -> None:
        """Queries that take a while: they read the files of the snapshots that were there when they began."""
        lists = self.table.snapshots().values()
        if lists:
            self.runtime.sleep(GRACE_S / 2 * (0.5 + self.chance() / 2))
            needed = {key for each in lists for key in self.bucket.files(each)}
            gone = sorted(needed - self.bucket.objects.keys())
            if gone:
                raise Violation(f"{self.process.name} cannot read {gone}, which were needed half a grace time ago")

    def clean_up(self) -> None:
        """Expire all but the newest snapshot, and remove all orphans. Clocks of writers were up to half a day ahead."""
        self.table.expire(max_age=timedelta(0))
        self.runtime.sleep(AHEAD_S + 3 * GRACE_S)
        self.table.remove_orphans(grace=timedelta(seconds=GRACE_S))

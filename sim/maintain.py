"""Scenario: writers, readers, tags, expiry, compaction and removal of orphans around one table; each process leads when
it writes, clocks are up to half a day wrong, and a proxy sends some commits twice. Engines delete rows by position
deletes, or in half of the runs by deletion vectors (format version 3). A second table is purged while others set its
property `gc.enabled`.

Invariants: a file is never deleted while the published table needs it, for any snapshot that it retains; who read the
table's metadata can read the files of all its snapshots for half of the grace time; a compaction changes no row; a tag
stays, with its snapshot, until it is moved; at the end exactly the needed files are left; no table is purged while its
`gc.enabled` is false.
Files are found here by a walk of the bucket's own objects, not by the code that is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from io import BytesIO
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pyiceberg.avro.file as avro_module
import pyiceberg.io.pyarrow as arrow_module
from pyiceberg.manifest import DataFile, ManifestEntry

import limpet.catalog.compactor as compactor_module
import limpet.catalog.maintain.tables as tables_module
from limpet.app.catalogs import DOMAIN, lead, open_catalog
from limpet.catalog.catalog import Catalog
from limpet.catalog.iceberg.avro import AvroBudget, entries_in, manifests_in
from limpet.catalog.iceberg.files import (
    Column,
    Contents,
    File,
    Stamp,
    TableFiles,
    commit_of,
    contents_of,
    data_file,
    stage_request,
)
from limpet.catalog.iceberg.models import Input
from limpet.catalog.iceberg.rewrite import CurrentFiles
from limpet.catalog.maintain.decide import GC_PROPERTY
from limpet.catalog.maintain.tables import Lead, LedCatalogWriter, TableMaintenance, TableWriter
from limpet.catalog.names import Entry, NoSuchTable, key_of
from limpet.catalog.records import PURGE, CatalogHead, Row
from limpet.catalog.storage import CatalogStorage
from limpet.catalog.warehouse import WAREHOUSE
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Conflict, Invalid
from limpet.kernel.keys import Key
from limpet.kernel.store.api import Version, When
from sim.actors import Actor, Actors, Nemesis, RunPlan, Settings, Turns, steps
from sim.bucket import Bucket, SimStore
from sim.catalog_model import JsonSnapshots
from sim.deletes import changing_commit, position_deletes, puffin_deletes
from sim.world import SimProcess, SimRuntime, Violation, World

URL = "memory://sim"
WHERE = ("a",), "t"
SHARED = ("a",), "shared"
COLUMNS = (Column("id", "string"),)
ROWS = 3
"""Rows of a new file."""
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
        self._read: dict[str, dict[str, list[ManifestEntry]]] = {}
        self._checked = 0
        self._owns: dict[int, bool] = {}
        self.gone: dict[str, dict[str, list[int]]] = {}
        """By the URL of a file of deletes and of a data file, the positions of the rows that it deletes."""

    def put(self, who: str, key: Key, data: bytes, when: When) -> Version:
        """Raises: Violation for a commit that loses a tag or rows."""
        version = super().put(who, key, data, when)
        if key == CatalogKeys.of(DOMAIN).head:
            before, (_, self._published) = self._published, self.published()
            wrong = (self._wrong(before, self._published) if before else "") or self._purged()
            if wrong:
                self._world.failure = self._world.failure or Violation(f"{who} publishes a table in which {wrong}")
        return version

    def delete(self, who: str, key: Key) -> None:
        """Raises: Violation for a file that the table needs."""
        if key.startswith(f"{WAREHOUSE}/") and key in self.needed():
            self._world.failure = self._world.failure or Violation(f"{who} deletes {key}, which a snapshot needs")
        super().delete(who, key)

    def _rows(self) -> list[Row]:
        """All requests that were published."""
        head = self.objects.get(CatalogKeys.of(DOMAIN).head)
        tails = msgspec.json.decode(head.data, type=CatalogHead).tail if head else ()
        return [row for tail in tails for row in tail.rows]

    def published(self, table: tuple[Sequence[str], str] = WHERE) -> tuple[Key, dict[str, Any]]:
        """The metadata file of a table, and what is in it; nothing while the table is not there."""
        value = None
        for change in (change for row in self._rows() for change in row.changes):
            value = change.value if change.key == key_of("t", (*table[0],), table[1]) else value
        return self._metadata(value) if value is not None else (Key(""), {})

    def _metadata(self, value: Any) -> tuple[Key, dict[str, Any]]:
        path = Key(f"{WAREHOUSE}/{Entry.of(value).path}")
        return path, msgspec.json.decode(self.objects[path].data)

    def _purged(self) -> str:
        """What the newest requests must not have done to the table `SHARED`."""
        rows, owns = self._rows(), True
        for number, row in enumerate(rows):
            for change in (change for change in row.changes if change.key == key_of("t", *SHARED)):
                if row.what == PURGE and not owns and number >= self._checked:
                    return f"a table was purged although its {GC_PROPERTY} was false"
                if change.value is not None and number >= self._checked:
                    owns = self._metadata(change.value)[1]["properties"].get(GC_PROPERTY) != "false"
                    self._owns[number] = owns
                elif change.value is not None:
                    owns = self._owns[number]
        self._checked = len(rows)
        return ""

    def needed(self) -> set[Key]:
        """The files of the published tables: their metadata, older metadata, and all files of all snapshots."""
        found: set[Key] = set()
        for path, metadata in (self.published(), self.published(SHARED)):
            found |= {path, *(self.key(entry["metadata-file"]) for entry in metadata.get("metadata-log") or ())}
            for snapshot in metadata.get("snapshots") or ():
                found |= self.files(snapshot["manifest-list"])
        return found - {Key("")}

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
        """The rows of a snapshot, sorted. A delete applies to files that are as old as it is, or older."""
        entries = [entry for entries in self._manifests(snapshot["manifest-list"]).values() for entry in entries]
        deletes = [
            (entry.sequence_number or 0, self.gone[entry.data_file.file_path])
            for entry in entries
            if entry.data_file.file_path in self.gone
        ]
        found: list[str] = []
        for entry in entries:
            url, number = entry.data_file.file_path, entry.sequence_number or 0
            if url not in self.gone:
                ids = pq.read_table(BytesIO(self.objects[self.key(url)].data))["id"].to_pylist()
                gone = {at for since, positions in deletes if since >= number for at in positions.get(url, ())}
                found += [id_ for at, id_ in enumerate(ids) if at not in gone]
        return sorted(found)

    def files(self, manifest_list: str) -> set[Key]:
        """The files of a snapshot.   Raises: Violation if one that leads to others is gone."""
        found = {self.key(manifest_list)}
        for manifest, entries in self._manifests(manifest_list).items():
            found |= {self.key(manifest), *(self.key(entry.data_file.file_path) for entry in entries)}
        return found

    def _manifests(self, manifest_list: str) -> Mapping[str, Sequence[ManifestEntry]]:
        """The manifests of a snapshot, by URL, with their entries. A name is that of one file for ever."""

        def fetch(url: str, _: int) -> bytes:
            if self.key(url) not in self.objects:
                raise Violation(f"{self.key(url)} is gone, and a reader or a retained snapshot needs it")
            return self.objects[self.key(url)].data

        if manifest_list not in self._read:
            self._read[manifest_list] = {
                each.manifest_path: [*entries_in(Input(each.manifest_path, fetch), each, AvroBudget())]
                for each in manifests_in(Input(manifest_list, fetch), AvroBudget())
            }
        for url in (manifest_list, *self._read[manifest_list]):
            fetch(url, 0)
        return self._read[manifest_list]

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
        self.version = 2 + (world.chance(90) < 0.5)
        """The format version of the table."""

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

    def __init__(self, catalog: Catalog, lead: Lead, gone: dict[str, dict[str, list[int]]]) -> None:
        super().__init__(catalog, WHERE, lead)
        self._gone = gone

    def _current(self) -> CurrentFiles:
        found, reading_s, self.reading_s = super()._current(), self.reading_s, 0.0
        if reading_s:
            self._runtime.sleep(reading_s)
        return found

    def replace_files(self, writer: TableWriter, dropped: int) -> bool:
        """Add a file, and drop so many; False if another process was first."""
        contents = contents_of(self._load().metadata, "sim", COLUMNS, self._fetch)
        stamp = self._stamp()
        file, data = self._new_file(contents, stamp)
        if any(self._deletes(super()._current())):
            dropped = len(contents.files)  # this commit keeps no deletes
        changed = TableFiles(contents.files[dropped:], [file], contents.files[:dropped])
        request, manifests = commit_of(contents, changed, stamp)
        return self._published(writer, request, {file.url: data, **manifests})

    def change_rows(self, writer: TableWriter, *, adds: bool, deletes: float | None) -> bool:
        """Add a file, or delete a row, or both in one snapshot: then it is a row of the new file. False if another
        process was first. `deletes` chooses the row."""
        current, stamp = super()._current(), self._stamp()
        contents = contents_of(self._load().metadata, "sim", COLUMNS, self._fetch)
        if contents.table.current_snapshot_id != current.table.current_snapshot_id:
            return False
        new = [self._new_file(contents, stamp)] if adds else []
        sizes = {file.url: file.records for file, _ in new} or {
            file.url: file.entry.data_file.record_count for file in current.data
        }
        gone: dict[str, list[int]] = {}
        if deletes is not None and sizes:
            url, size = [*sizes.items()][int(deletes * len(sizes))]
            gone = {url: [int(deletes * 1000) % size]}
        writes = {file.url: data for file, data in new}
        files: list[DataFile] = []
        where = f"{contents.location}/data/{stamp.unique}-deletes"
        if current.version == 3:
            gone = _merged([gone, *self._deletes(current)], {*sizes, *(file.url for file in current.data)})
            where = f"{where}.puffin"
            files, writes[where] = puffin_deletes(where, gone)
        elif gone:
            where = f"{where}.parquet"
            made, writes[where] = position_deletes(where, gone)
            files = [made]
        if not files:
            writes.pop(where, None)
        self._gone[where] = gone
        request, manifests = changing_commit(current, stamp, [file for file, _ in new], files)
        return self._published(writer, request, {**writes, **manifests})

    def _deletes(self, current: CurrentFiles) -> list[dict[str, list[int]]]:
        """The rows that the files of deletes in a snapshot delete."""
        return [self._gone[url] for url in {delete.file_path: None for delete in current.deletes.values()}]

    def _new_file(self, contents: Contents, stamp: Stamp) -> tuple[File, bytes]:
        rows = pa.table({"id": [f"{stamp.unique}-{n}" for n in range(ROWS)]})
        return data_file(contents, f"{contents.location}/data/{stamp.unique}.parquet", rows)

    def _published(self, writer: TableWriter, request: Mapping[str, Any], files: Mapping[str, bytes]) -> bool:
        """Write files and commit; False if another process was first."""
        written: list[Key] = []
        self._write(files, written)
        try:
            writer.commit_table(*WHERE, request)
        except Conflict:
            return bool(self._landed(request, written))
        return True

    def snapshots(self) -> dict[int, str]:
        """The manifest lists of all snapshots, by their ids."""
        history = self._history(self._load())
        return {id_: snapshot.manifest_list or "" for id_, snapshot in history.by_id().items()}


def create_shared(catalog: Catalog) -> None:
    """Create the table `SHARED`, unless it is there: always in the same folder, which its purge empties."""
    if not catalog.has_table(*SHARED):
        request = {**stage_request(SHARED[1], "sim", COLUMNS), "stage-create": False}
        catalog.create_table(SHARED[0], {**request, "location": f"{URL}/{WAREHOUSE}/{SHARED[1]}"})


def _merged(some: Sequence[Mapping[str, Sequence[int]]], live: set[str]) -> dict[str, list[int]]:
    """All positions that are deleted in the `live` data files."""
    urls = sorted({url for each in some for url in each} & live)
    return {url: sorted({position for each in some for position in each.get(url, ())}) for url in urls}


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
        self.table = MaintainedTable(open_catalog(self.storage, URL), self.leading, actors.bucket.gone)
        self.version = actors.version

    def turns(self) -> Turns:
        writes = [(0.12, self.write), (0.18, self.change), (0.12, self.expire), (0.12, self.compact), (0.08, self.tag)]
        return [*writes, (0.05, self.share), (0.15, self.remove), (0.2, self.read)]

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
            request = {**stage_request(WHERE[1], "sim", COLUMNS), "stage-create": False}
            request["properties"] = {**request["properties"], "format-version": str(self.version)}
            catalog.create_table(WHERE[0], request)

    def write(self) -> None:
        """Add a file, and sometimes drop others."""
        with self.leading() as writer:
            for _ in range(3):
                if self.table.replace_files(writer, int(3 * self.chance())):
                    return

    def change(self) -> None:
        """Add rows or delete some, as an engine does; sometimes a row that is added by the same commit."""
        kind, row = self.chance(), self.chance()
        with self.leading() as writer:
            for _ in range(3):
                if self.table.change_rows(writer, adds=kind < 0.4, deletes=None if kind < 0.15 else row):
                    return

    def share(self) -> None:
        """Say that others need the files of the table `SHARED`, or that they do not, beside its purge."""
        flag = "false" if self.chance() < 0.7 else "true"
        updates = [{"action": "set-properties", "updates": {GC_PROPERTY: flag}}]
        with lead(self.storage, URL) as catalog:
            catalog.finish_purges()
            create_shared(catalog)

            def act(purges: bool) -> None:
                self.runtime.sleep(SHORT_S * self.chance() if self.chance() < 0.3 else 0.0)
                with suppress(*self.expected, NoSuchTable):
                    if purges:
                        catalog.drop_table(*SHARED, purge=True)
                    else:
                        catalog.commit_table(*SHARED, {"requirements": [], "updates": updates})

            self.runtime.fan_out(act, [True, False] if self.chance() < 0.5 else [False, True])

    def expire(self) -> None:
        """Expire snapshots, all or some."""
        self.table.expire(max_age=timedelta(seconds=2 * GRACE_S * self.chance()), min_snapshots=1)

    def remove(self) -> None:
        """Remove orphans, after the least grace time."""
        self.table.remove_orphans(grace=timedelta(seconds=GRACE_S))

    def compact(self) -> None:
        """Rewrite all files as one, which sometimes takes long; and sometimes change rows meanwhile."""
        self.table.reading_s = reading_s = REST_S * self.chance() if self.chance() < 0.5 else 0.0

        def change_meanwhile() -> None:
            self.runtime.sleep(reading_s * self.chance())
            self.change()

        def act(work: Callable[[], object]) -> None:
            with suppress(*self.expected):
                work()

        works: list[Callable[[], object]] = [partial(self.table.compact, min_files=2)]
        works += [change_meanwhile] if self.chance() < 0.5 else []
        self.runtime.fan_out(act, works)

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
        with lead(self.storage, URL) as catalog:
            catalog.finish_purges()
            create_shared(catalog)
            updates = [{"action": "set-properties", "updates": {GC_PROPERTY: "true"}}]
            catalog.commit_table(*SHARED, {"requirements": [], "updates": updates})
            catalog.drop_table(*SHARED, purge=True)

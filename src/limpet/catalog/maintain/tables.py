"""Maintenance of one table without an engine: old snapshots expire, small files become large ones, orphans go.

Each decision is a pure function (`limpet.catalog.maintain.decide`). Expiry and compaction change the table by commits;
neither deletes a file. Files are deleted by `remove_orphans` alone, after a grace time. It lists the files first and
reads the metadata afterwards, so that a file of a commit in between counts as needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Protocol

from limpet.catalog.catalog import Catalog, LoadedTable
from limpet.catalog.iceberg.commits import only
from limpet.catalog.iceberg.files import Stamp
from limpet.catalog.iceberg.rewrite import (
    FILES_MAX,
    CurrentFiles,
    NeededFiles,
    RewrittenGroup,
    current_files,
    replacing_commit,
    rewritten,
)
from limpet.catalog.iceberg.updates import AddSnapshot
from limpet.catalog.maintain.decide import (
    GC_PROPERTY,
    ExpiryPlan,
    ListedFile,
    TableHistory,
    expired,
    expiry_request,
    history_of,
    names_of,
    orphans,
    policy_of,
    recent_metadata,
    rewrite_groups,
    was_added,
)
from limpet.catalog.names import NoSuchNamespace, NoSuchTable, check_name, check_namespace, shown
from limpet.catalog.warehouse import METADATA_BYTES_MAX, WAREHOUSE
from limpet.kernel.errors import (
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.keys import Key
from limpet.kernel.store.api import Absent
from limpet.kernel.store.directory.files import is_full
from limpet.kernel.store.outcome import put_bytes
from limpet.kernel.waiting import attempts

ID_BITS = 62
TARGET_BYTES = 64 << 20
TARGET_BYTES_MAX = 1 << 30
MIN_FILES = 5
GROUPS_AT_ONCE = 16
"""Groups of files that one commit replaces: a large table is compacted in several commits."""
GRACE_S = 3 * 24 * 3600.0
GRACE_S_MIN = 3600.0
METADATA_MARK = ".metadata.json"


class TableWriter(Protocol):
    """Writes to the catalog: this process, or a service."""

    def create_namespace(self, namespace: Sequence[str]) -> None:
        """Create it.   Raises: Conflict if it exists."""

    def commit_table(self, namespace: Sequence[str], name: str, request: Mapping[str, Any]) -> str:
        """Change a table, or create a staged one; returns the location of its metadata.   Raises: Conflict; Missing;
        Invalid; OutcomeUnknown and others, after which the outcome is unknown."""


class LedCatalogWriter:
    """A catalog that this process leads."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def create_namespace(self, namespace: Sequence[str]) -> None:
        self._catalog.create_namespace(namespace)

    def commit_table(self, namespace: Sequence[str], name: str, request: Mapping[str, Any]) -> str:
        return self._catalog.commit_table(namespace, name, request).metadata_location or ""


Lead = Callable[[], AbstractContextManager[TableWriter]]


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """The result of `expire`: the snapshots, branches and tags that expired (or would), and how many snapshots stay."""

    snapshots: tuple[int, ...]
    refs: tuple[str, ...]
    kept: int
    dry_run: bool


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of `compact`: files before and after, of those that were rewritten (or would be), and the commits.

    `unreadable`: data files that were left, since they are outside the warehouse, or their URL has characters that
    programs read in different ways, as `?`.
    """

    files: int
    bytes: int
    new_files: int
    new_bytes: int
    commits: int
    dry_run: bool
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """The result of `remove_orphans`: the files that went (or would), as paths below the warehouse."""

    files: tuple[str, ...]
    bytes: int
    listed: int
    dry_run: bool


class TableChange:
    """What a process needs that changes one table. `catalog` is only read; `lead` returns a writer for it."""

    def __init__(self, catalog: Catalog, table: tuple[Sequence[str], str], lead: Lead) -> None:
        self._catalog = catalog
        self._namespace, self._name = tuple(table[0]), table[1]
        self._shown = shown(self._namespace, self._name)
        self._lead = lead
        self._warehouse = catalog.warehouse
        self._store = catalog.warehouse.store
        self._runtime = catalog.warehouse.runtime

    def _load(self) -> LoadedTable:
        return self._catalog.load_table(self._namespace, self._name)

    def _fetch(self, url: str, size_max: int = METADATA_BYTES_MAX) -> bytes:
        """A file that the table names.   Raises: Missing; Corrupt, also for one outside the warehouse (F29)."""
        try:
            return self._warehouse.data(self._warehouse.data_path(url), size_max=size_max)
        except Invalid as error:
            raise Corrupt(f"the table {self._shown} cannot be read: {error}") from None

    def _key(self, url: str) -> Key:
        """The key of a file of the table.   Raises: Invalid for one outside the warehouse (F29)."""
        return Key(f"{WAREHOUSE}/{self._warehouse.file_of(url)}")

    def _write(self, files: Mapping[str, bytes], written: list[Key]) -> None:
        """Write files under unique names; their keys are added to `written`, also on failure.

        Raises: OutcomeUnknown; Unavailable.   Cost: 1 PUT each.
        """

        def write(url: str) -> LimpetError | None:
            try:
                key = self._key(url)
                put_bytes(self._store, self._runtime, key, files[url], Absent())
            except LimpetError as error:
                return error
            written.append(key)
            return None

        for error in self._runtime.fan_out(write, files, at_once=self._store.at_once):
            if error is not None:
                raise error

    def _remove(self, written: Sequence[Key]) -> None:
        """Delete files that no commit names. Errors are ignored: no reader opens such a file."""
        self._store.delete_many(written)

    def _history(self, loaded: LoadedTable) -> TableHistory:
        return history_of(loaded.metadata, self._shown)

    def _stamp(self) -> Stamp:
        at_ms = int(self._runtime.wall().timestamp() * 1000)
        return Stamp(self._runtime.rng.getrandbits(ID_BITS) | 1, at_ms, self._runtime.new_id())

    def _landed(self, request: Mapping[str, Any], written: Sequence[Key]) -> str | None:
        """The location of the metadata if the table got our snapshot although the commit was refused.

        Else "", and the files that were written for it are deleted. They stay if the snapshot may have expired already,
        or (None) if the table was dropped, since it may be restored.   Raises: OutcomeUnknown.   Cost: 2 GETs.
        F1: a proxy may have sent the commit twice, and only the second one was refused.
        """
        try:
            loaded = self._load()
        except (NoSuchTable, NoSuchNamespace):
            return None
        added = only(AddSnapshot, request["updates"])
        was = was_added(self._history(loaded), added[0]["snapshot"]) if added else False
        if was is None:
            raise OutcomeUnknown(f"a commit to {self._shown!r} was refused, and may be there all the same")
        if was:
            return loaded.metadata_location or ""
        self._remove(written)  # F4: after a definite refusal no commit can name them
        return ""

    def _too_many(self) -> Unavailable:
        return Unavailable(f"too many concurrent commits to {self._shown!r}", hint="run it again in a moment")


class TableMaintenance(TableChange):
    """Maintains one table. `catalog` is only read; `lead` returns a writer for it."""

    def __init__(self, catalog: Catalog, table: tuple[Sequence[str], str], lead: Lead) -> None:
        super().__init__(catalog, (check_namespace(table[0]), check_name(table[1])), lead)

    # ---- expiry ----

    def expire(
        self, *, max_age: timedelta | None = None, min_snapshots: int | None = None, dry_run: bool = False
    ) -> ExpiryReport:
        """Remove old snapshots from the table. Their files stay until `remove_orphans`.

        Without arguments the properties `history.expire.*` of the table count, else Iceberg's defaults: five days, one
        snapshot. Rules of a branch or tag itself come first. Times are compared with the store's clock.
        Raises: NoSuchTable; Invalid; Unsupported with `gc.enabled=false`; NotLeader; OutcomeUnknown (run it again);
        Unavailable after too many conflicts.
        Cost: 1 GET of the head, 1 GET of the metadata, 1 PUT + 1 HEAD for the clock; if something expires the lead
        and a commit.   Crash: expired or not.
        """
        if min_snapshots is not None and min_snapshots < 1:
            raise Invalid(f"at least one snapshot is kept, not {min_snapshots}")
        if max_age is not None and max_age < timedelta(0):
            raise Invalid("the age must not be negative")
        age_ms = None if max_age is None else int(max_age.total_seconds() * 1000)
        history, plan = self._expiry(age_ms, min_snapshots)
        if plan and not dry_run:
            with self._lead() as writer:
                for tries in attempts(self._runtime):
                    if tries > 1:
                        history, plan = self._expiry(age_ms, min_snapshots)
                    if not plan:
                        break
                    with suppress(Conflict):
                        writer.commit_table(self._namespace, self._name, expiry_request(history, plan))
                        break
                else:
                    raise self._too_many()
        kept = len(history.snapshots or ()) - len(plan.snapshots)
        return ExpiryReport(plan.snapshots, plan.refs, kept, dry_run)

    def _expiry(self, age_ms: int | None, min_snapshots: int | None) -> tuple[TableHistory, ExpiryPlan]:
        now_ms = int(self._now().timestamp() * 1000)
        history = self._owned(self._load())
        policy = policy_of(history.properties, max_age_ms=age_ms, min_snapshots=min_snapshots)
        return history, expired(history, policy, now_ms)

    # ---- compaction ----

    def compact(
        self, *, target_bytes: int = TARGET_BYTES, min_files: int = MIN_FILES, dry_run: bool = False
    ) -> CompactionReport:
        """Rewrite small data files of the main branch as files of about `target_bytes`, and apply deletes.

        Only files of the current partition spec, in Parquet, are rewritten; a group has `min_files` or more of one
        partition, or a file with deletes. After a conflict, files whose rows have not changed are not rewritten again.
        Rows of a table of format version 3 keep their ids, and the sequence number of their last change.
        Raises: NoSuchTable; Invalid; Unsupported for equality deletes, encrypted tables, format version 1, and columns
        of types that PyIceberg cannot write; NotLeader; Corrupt; OutcomeUnknown (run it again); Unavailable.
        Cost: 2 GETs of the catalog, 1 GET of the manifest list and each manifest; for each group 1 GET of each file and
        its deletes and 1 PUT; for each 16 groups 2 PUTs, the lead and a commit.
        Crash: the table is the old one or the new one. Unused files may remain; `remove_orphans` deletes them.
        """
        if not 1 <= target_bytes <= TARGET_BYTES_MAX:
            raise Invalid(f"the target size is 1 byte to {TARGET_BYTES_MAX >> 20} MiB, not {target_bytes}")
        if min_files < 2:
            raise Invalid(f"a group has at least two files, not {min_files}")
        files = bytes_ = new_files = new_bytes = commits = 0
        while True:
            current = self._current()
            groups = rewrite_groups(
                current.candidates(self._is_readable), target_bytes=target_bytes, min_files=min_files
            )
            if dry_run or not groups:
                files += sum(map(len, groups))
                bytes_ += sum(file.size for group in groups for file in group)
                new_files += len(groups)
                unreadable = sum(not self._is_readable(file.url) for file in current.data)
                return CompactionReport(files, bytes_, new_files, new_bytes, commits, dry_run, unreadable)
            sizes = {current.data[file.nth].url: file.size for group in groups for file in group}
            done = self._replace(current, [[file.nth for file in group] for group in groups[:GROUPS_AT_ONCE]])
            files += sum(len(each.old) for each in done)
            bytes_ += sum(sizes[url] for each in done for url in each.old)
            new_files += sum(each.new is not None for each in done)
            new_bytes += sum(each.new.file_size_in_bytes for each in done if each.new is not None)
            commits += 1

    def _current(self) -> CurrentFiles:
        return current_files(self._load().metadata, self._fetch_own, self._shown)

    def _replace(self, current: CurrentFiles, groups: Sequence[Sequence[int]]) -> list[RewrittenGroup]:
        """Rewrite groups of files and commit; returns those that were replaced, not all if others changed them.

        After an error no new file is left, unless a commit that names it may have been published.
        """
        written: dict[int, list[Key]] = {}
        done: list[RewrittenGroup] = []
        may_be_published = False
        try:
            for group in groups:
                files = [current.data[nth] for nth in group]
                one, data = rewritten(current, files, self._fetch_own, self._warehouse.new_uuid(), self._shown)
                self._write(data, written.setdefault(len(done), []))
                done.append(one)
            with self._lead() as writer:
                for tries in attempts(self._runtime):
                    if tries > 1:
                        current = self._current()
                        stale = [nth for nth, one in enumerate(done) if not one.still_holds(current)]
                        self._remove([key for nth in stale for key in written[nth]])
                        kept = [nth for nth in range(len(done)) if nth not in stale]
                        done, written = [done[nth] for nth in kept], {at: written[nth] for at, nth in enumerate(kept)}
                    if not done:
                        break
                    may_be_published = True
                    refusal = self._commit(writer, current, done)
                    if refusal is None:
                        return done
                    may_be_published = False
                    if not isinstance(refusal, Conflict):
                        raise refusal
            raise self._too_many()
        except LimpetError:
            if not may_be_published:
                self._remove([key for keys in written.values() for key in keys])
            raise

    def _commit(self, writer: TableWriter, current: CurrentFiles, done: Sequence[RewrittenGroup]) -> LimpetError | None:
        """Commit a replacement; returns why it was refused for good, so that its manifests are deleted, or None.

        Raises: OutcomeUnknown and others, after which it may be published.
        """
        request, manifests = replacing_commit(current, done, self._stamp())
        written: list[Key] = []
        try:
            self._write(manifests, written)
        except LimpetError as error:
            self._remove(written)
            return error
        try:
            writer.commit_table(self._namespace, self._name, request)
        except Conflict as error:
            landed = self._landed(request, written)
            if landed is None:
                raise NoSuchTable(f"{self._shown!r} was dropped meanwhile") from error
            return None if landed else error
        except (Invalid, Denied) as error:
            self._remove(written)
            return error
        return None

    # ---- orphans ----

    def remove_orphans(
        self, *, grace: timedelta | None = None, quiesced: bool = False, dry_run: bool = False
    ) -> OrphanReport:
        """Delete files in the table's folders that neither a retained snapshot nor a commit under way needs.

        Needed are: metadata files that the metadata names, and those of other catalogs; manifest lists, manifests, data
        files, delete files and statistics of all snapshots; the same of metadata that was current within the grace
        time, as far as the metadata log goes back, since queries may still read it. Files that were changed within the
        grace time (three days) stay: a commit may be about to name them. `quiesced`: no other process uses the table;
        then the time may be under an hour, and older metadata does not count.
        Raises: NoSuchTable; Invalid; Corrupt if something cannot be read (then nothing is deleted); Unsupported for
        more than a million files, and with `gc.enabled=false`; Denied; Unavailable.
        Cost: 1 GET of the head twice, 1 LIST per 1,000 files, 1 GET of the metadata, of each metadata file of the grace
        time, and of each manifest list and manifest; 1 DELETE each; 1 PUT + 1 HEAD for the clock.
        Crash: some are deleted; the next run deletes the rest.
        """
        grace_s = GRACE_S if grace is None else grace.total_seconds()
        if grace_s < 0 or (grace_s < GRACE_S_MIN and not quiesced):
            raise Invalid(
                f"a grace time of {grace_s:g} s is too short: a commit under way could lose its files",
                hint="an hour at least; or stop every writer, and say quiesced (--quiesced)",
            )
        before = self._now() - timedelta(seconds=grace_s)
        roots = self._catalog.folders(self._namespace, self._name)
        listed = self._listed(roots)  # before the metadata is read
        loaded = self._load()
        if self._catalog.folders(self._namespace, self._name) != roots:
            raise Unavailable(f"{self._shown!r} was moved meanwhile", hint="run it again")
        history = self._owned(loaded)
        location = loaded.metadata_location or ""
        written = {name: file.modified for file in listed for name in names_of(file.path)}
        recent = [] if quiesced else recent_metadata(history, location, written, before)
        needed = self._needed(location, history, recent) | self._foreign(listed)
        doomed = orphans(listed, needed, before)
        if not dry_run:
            self._warehouse.delete([file.path for file in doomed])
        paths = tuple(file.path.removeprefix(f"{WAREHOUSE}/") for file in doomed)
        return OrphanReport(paths, sum(file.size for file in doomed), len(listed), dry_run)

    def _listed(self, roots: Sequence[str]) -> list[ListedFile]:
        found: list[ListedFile] = []
        for root in roots:
            for stat in self._warehouse.stats_in(root):
                found.append(ListedFile(stat.key, stat.size, stat.modified))
                if len(found) > FILES_MAX:
                    raise Unsupported(f"{self._shown} has more than {FILES_MAX:,} files", hint="use Spark for it")
        return found

    def _foreign(self, listed: Sequence[ListedFile]) -> set[str]:
        """The names of metadata files that this catalog did not write: the table may still be in another one too."""
        others = (
            file.path for file in listed if METADATA_MARK in file.path and not self._warehouse.has_digest(file.path)
        )
        return {name for path in others for name in names_of(path)}

    def _needed(self, location: str, history: TableHistory, recent: Sequence[str]) -> set[str]:
        """The names of all files that the metadata at `location` needs, and the `recent` metadata before it."""
        names: set[str] = set()

        def keep(url: str) -> None:
            names.update(names_of(url))

        found = NeededFiles(self._fetch, keep)
        keep(location)
        for entry in history.metadata_log or ():
            keep(entry.metadata_file)
        for each in (history, *self._older(recent)):
            for file in (*(each.statistics or ()), *(each.partition_statistics or ())):
                keep(file.statistics_path)
            for snapshot in each.snapshots or ():
                if snapshot.manifest_list is None:
                    raise Unsupported(f"{self._shown} has a snapshot without a manifest list", hint="use Spark for it")
                try:
                    found.add_snapshot(snapshot.manifest_list)
                except Missing as error:
                    if each is history:
                        raise Corrupt(f"a file of {self._shown} is gone; nothing was deleted: {error}") from None
        return names

    def _older(self, urls: Sequence[str]) -> Iterator[TableHistory]:
        for url in urls:
            try:
                yield history_of(self._fetch(url), self._shown)
            except Missing:
                continue  # other programs delete old metadata files

    # ---- shared ----

    def _owned(self, loaded: LoadedTable) -> TableHistory:
        history = self._history(loaded)
        if not history.owns_files():
            raise Unsupported(
                f"{self._shown} has {GC_PROPERTY} = {history.properties[GC_PROPERTY]!r:.40}: other tables or catalogs "
                "may need its files",
                hint="maintain it where they belong; if that is here, set the property to true",
            )
        return history

    def _now(self) -> datetime:
        """The store's time, by a probe: what was seen of an idle fleet is a bound that may be days behind.

        Where the probe cannot be written, on a full disk or by a role that may not, that bound counts: it keeps more.
        Cost: 1 PUT + 1 HEAD.
        """
        try:
            return self._store.now(max_age_s=0.0)
        except (Denied, Unavailable) as error:
            if isinstance(error, Unavailable) and not is_full(error):
                raise
            self._load()
            return self._store.now()

    @cached_property
    def _own_folders(self) -> tuple[str, ...]:
        return tuple(f"{root}/" for root in self._catalog.table_folders(self._namespace, self._name))

    def _fetch_own(self, url: str, size_max: int) -> bytes:
        """A file to rewrite. One that is not in the table's folders may be another table's, which those who may read
        this one may not read: it is not copied.   Raises: as `_fetch`; Unsupported.
        """
        if self._is_readable(url) and not self._warehouse.data_path(url).startswith(self._own_folders):
            raise Unsupported(
                f"{url!r:.200} is not in a folder of the table {self._shown}", hint="rewrite the table with an engine"
            )
        return self._fetch(url, size_max)

    def _is_readable(self, url: str) -> bool:
        try:
            self._warehouse.data_path(url)
        except Invalid:
            return False
        return True

"""An index as something that is dropped: what it holds, who works on it, and its own mark, which is in `manifest.json`.

A process that opened the index before reads the manifest again within ten minutes (`REFRESH_S`); until then it may put
records below a name that was dropped. So an index of that name is created `REST_S` after the drop at the earliest, and
what was written there until then is removed first. After a `quiesced` drop there is no such process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta

import msgspec

from limpet.index.storage import IndexStorage, Manifest, closed_manifest_cell
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.drop import BEGUN, DropRecord, DropState, DropTarget, being_dropped, drop_cell
from limpet.kernel.errors import Conflict, LimpetError, Missing
from limpet.kernel.keys import Key, name_of
from limpet.kernel.lease import LeaseRecord
from limpet.kernel.lease.decide import RESOLUTION_S
from limpet.kernel.store.api import Blob, Stat

REST_S = 660.0
"""`REFRESH_S`, and a minute for what a process sends then."""
FOLDERS = ("inbox", "packs", "quarantine", "imports")


class IndexTarget(DropTarget):
    """One index."""

    kind = "index"

    def __init__(self, storage: IndexStorage, *, quiesced: bool = False) -> None:
        self._storage = storage
        self._quiesced = quiesced
        self.name = name_of(storage.keys.root.rpartition("/")[2])
        self.root = storage.keys.root
        self.record = storage.keys.drop
        self.mark = storage.keys.manifest

    def check(self, seen: DropRecord | None) -> None:
        """Raises: Corrupt; Missing without a manifest: what else lies there is not Limpet's, unless it was dropped.

        Cost: 1 GET; 1 LIST for one that was dropped.
        """
        if closed_manifest_cell(self._storage).read() is not None:
            return
        if seen is not None and seen.stage is DropState.DROPPED:
            goes_on = self._quiesced and not seen.quiesced
            if goes_on or next(iter(self._storage.store.list(self.root)), None) is not None:
                return
        if seen is None or seen.stage not in BEGUN:
            raise Missing(f"there is no index {self.name!r}", hint="`limpet index ls` shows all")

    def count(self, stats: Iterable[Stat]) -> Mapping[str, int]:
        """The records as the manifest counts them, and objects by folder.   Cost: 1 GET."""
        found = Counter(stat.key.removeprefix(f"{self.root}/").partition("/")[0] for stat in stats)
        seen = closed_manifest_cell(self._storage).read()
        records = sum(max(0, number) for number in seen.value.records) if seen else 0
        return {"records": records} | {folder: found[folder] for folder in FOLDERS if found[folder]}

    def leases(self) -> dict[str, Blob | LimpetError]:
        """The locks of shards, and of repairs, by their key.   Cost: 1 LIST per 1,000 shards, 1 GET for each lock."""
        keys = [stat.key for stat in self._storage.store.list(self._storage.keys.shards) if stat.key.endswith(".lock")]
        return {str(key): blob for key, blob in self._storage.store.get_many(keys).items()}

    def lease_of(self, what: str, blob: Blob) -> LeaseRecord:
        cell = Cell(self._storage.store, Key(what), struct_codec(LeaseRecord), self._storage.runtime)
        return cell.decode(blob).value

    def close(self) -> float:
        """Every version of Limpet refuses the manifest from now on.   Cost: 1 GET + 1 PUT."""
        self._set_dropping(True)
        return 0.0

    def reopen(self) -> None:
        """Cost: 1 GET + 1 PUT."""
        self._set_dropping(False)

    def _set_dropping(self, dropping: bool) -> None:
        def change(manifest: Manifest | None) -> Manifest | None:
            if manifest is None or manifest.is_dropping is dropping:
                return None
            return msgspec.structs.replace(manifest, dropping=True if dropping else msgspec.UNSET)

        closed_manifest_cell(self._storage).update(change)

    def reuses(self, key: Key) -> bool:
        """Only singles, packs and what is in quarantine are named once."""
        return not key.startswith((f"{self._storage.keys.inbox}/", f"{self._storage.keys.packs}/"))


def make_room(storage: IndexStorage) -> None:
    """Before an index is created: remove what late writers left of one that was dropped.

    Only what was written before the name could be used again goes, so that nothing of the new index does, which another
    process may be creating too.
    Raises: Unsupported for one that is being dropped; Conflict until `REST_S` after a drop that was not quiesced.
    Cost: 1 GET; for a name that was dropped 2 LISTs more, and 1 PUT + 1 HEAD; 1 DELETE for each object that goes.
    """
    seen = drop_cell(storage.store, storage.keys.drop, storage.runtime).read()
    if seen is None or seen.modified is None or seen.value.stage is DropState.KEPT:
        return
    name = name_of(storage.keys.root.rpartition("/")[2])
    if seen.value.stage in BEGUN:
        raise being_dropped("index", name)
    if seen.value.quiesced:
        return
    free_at = seen.modified + timedelta(seconds=REST_S)
    now = storage.store.now(max_age_s=-1.0)
    if now < free_at + timedelta(seconds=RESOLUTION_S):
        raise Conflict(
            f"the index {name!r} was dropped at {seen.modified:%H:%M:%S} UTC, and who had it open may still write",
            hint=f"create it after {free_at:%H:%M:%S} UTC; or drop it with --quiesced, if nothing uses it",
        )
    for folder in (storage.keys.inbox, storage.keys.packs):
        storage.remove([stat.key for stat in storage.store.list(folder) if stat.modified < free_at])

"""Taking plain record files into an index: those of seed 001, or any folder of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from limpet import records
from limpet.errors import Corrupt, Invalid, LimpetError, Missing
from limpet.index.decide import keys_of, rank
from limpet.index.manifest import Manifest
from limpet.index.offline import Whole, batches, load, put_packs
from limpet.index.plain import ENDING, is_named, rows, values_of
from limpet.index.schema import stamp_in
from limpet.index.sources import SHARDS, Source, StoreSource
from limpet.index.stamps import Stamps, given
from limpet.store.api import Stat

__all__ = ["AdoptReport", "BadFile", "adopt"]

PACKS_BYTES = 64 << 20
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that was not taken in, and why. It stays as it is."""

    name: str
    reason: str


@dataclass(slots=True)
class AdoptReport:
    """What was taken in. `ignored` files have another ending; `deleted` are originals that are gone."""

    files: int = 0
    records: int = 0
    packs: int = 0
    deleted: int = 0
    ignored: int = 0
    bad: list[BadFile] = field(default_factory=list)


def adopt(whole: Whole, stamps: Stamps, source: Source | None = None, *, quiesced: bool = False) -> AdoptReport:
    """Copy plain `{key}.usv` files into the index: from `source`, or those that lie just beside its manifest.

    Each file is one record, its fields in the order of the index's columns, and its name is the key; so are those in
    the source's `inbox/*/`. Files in its `shards/` have many, or none. A record without `updated_at` was written when
    its file was. With `quiesced` an original is deleted once its records are durable here; without, all stay, since a
    program that still writes them could put a newer record between our read and our delete (F18). Taking the same files
    in twice changes nothing.
    Bad files are reported and kept, and the rest goes on.
    Raises: Missing if there is no index or source; Invalid for a source that is an index of Limpet's own; whatever a
    write met: then nothing was deleted that is not durable here.
    Cost: 1 GET + 1 LIST per 1,000 files + 1 GET a file; 1 PUT for each shard touched, for each 64 MiB of records;
    1 DELETE a file with `quiesced`.   Crash: some records are taken in and others not; run it again.
    """
    manifest = load(whole).value
    if source is None:
        source = StoreSource(whole.storage.store, whole.storage.keys.root, shards=False)
    adopter = _Adopter(whole, manifest, stamps, source, quiesced)
    for batch in batches(source.files()):
        adopter.take(batch)
    adopter.flush()
    return adopter.report


class _Adopter:
    def __init__(self, whole: Whole, manifest: Manifest, stamps: Stamps, source: Source, quiesced: bool) -> None:
        self._storage = whole.storage
        self._manifest = manifest
        self._schema = manifest.schema
        self._stamps = stamps
        self._source = source
        self._quiesced = quiesced
        self._lines: dict[bytes, bytes] = {}
        self._size = 0
        self._names: list[str] = []
        self._is_foreign = False
        self.report = AdoptReport()

    def take(self, batch: list[Stat]) -> None:
        """Read some files, and keep what is good in memory."""
        wanted = {str(stat.key): stat for stat in batch if stat.key.endswith(ENDING)}
        self.report.ignored += len(batch) - len(wanted)
        if not self._is_foreign and any("/" in name for name in wanted):
            self._demand_foreign()
        for name, data in self._source.read([*wanted]).items():
            try:
                if isinstance(data, LimpetError):
                    raise data
                lines = self._lines_of(name, data, wanted[name].modified)
            except LimpetError as error:
                self._bad(name, f"{error} ({error.hint})" if error.hint else str(error))
            else:
                self._keep(name, lines)
        if self._size >= PACKS_BYTES:
            self.flush()

    def flush(self) -> None:
        """Put what is in memory where it belongs; once that is durable, the originals may go."""
        self.report.packs += put_packs(self._storage, self._manifest, [*self._lines.values()])
        if self._quiesced:
            for name, error in self._source.delete(self._names).items():
                if error is None:
                    self.report.deleted += 1
                else:
                    self._bad(name, f"it was taken in, but stays: {error}")
        self._lines, self._size, self._names = {}, 0, []

    def _bad(self, name: str, reason: str) -> None:
        """Note a bad file. On a disk its name may be no valid Unicode."""
        self.report.bad.append(BadFile(name.encode(errors="replace").decode(), reason))

    def _demand_foreign(self) -> None:
        """Shards of our own have escapes and tombstones, which a plain file has not.   Raises: Invalid."""
        self._is_foreign = True
        found = self._source.read([MANIFEST])[MANIFEST]
        if isinstance(found, Missing):
            return
        if isinstance(found, LimpetError):
            raise found
        try:
            records.decode(found, Manifest, what=MANIFEST)
        except Corrupt:
            return
        raise Invalid(
            f"the {SHARDS}/ there belong to an index of Limpet's own",
            hint="`limpet index export` it, and `limpet index import` that",
        )

    def _lines_of(self, name: str, data: bytes, modified: datetime) -> list[bytes]:
        """The records of a file as lines of the index, all or none.   Raises: Invalid."""
        found = rows(data, self._schema)
        is_shard = name.startswith(f"{SHARDS}/")
        if not is_shard and len(found) != 1:
            what = f"it has {len(found)} records; the file of a key has one" if found else "it is empty"
            raise Invalid(what, hint="")
        lines: list[bytes] = []
        latest = self._stamps.latest()
        for number, fields in enumerate(found, 1):
            where = f"record {number}"
            values = values_of(fields, self._schema, where=where)
            at = stamp_in(values, where=where) or modified
            line = self._schema.line(values, given(at, latest, where=where), where=where)
            key = self._schema.key_text(values[self._schema.key])
            if not is_shard and not is_named(name.rpartition("/")[2].removesuffix(ENDING), key):
                raise Invalid(f"its name is not that of its key {key!r}", hint="rename it, or correct the key")
            lines.append(line)
        return lines

    def _keep(self, name: str, lines: list[bytes]) -> None:
        shape = self._schema.shape
        for key, line in zip(keys_of(lines, shape), lines, strict=True):
            other = self._lines.get(key)
            if other is None or rank(line, shape) > rank(other, shape):
                self._lines[key] = line
            self._size += len(line)
        self._names.append(name)
        self.report.files += 1
        self.report.records += len(lines)

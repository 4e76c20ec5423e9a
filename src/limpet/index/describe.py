"""Descriptions of an index: a Frictionless data package and a JSON Schema for other tools, statistics for people.

Facts about the data package (v2), tested with frictionless 5.21:

- A path may not be a pattern, so every shard is listed. `format` must be csv: it does not know `.usv`.
- The default `quoteChar` would remove quotes, and v2 requires one character: U+001E, which is in no line.
- `skipInitialSpace` must be set, or it is guessed from the first lines, and spaces are lost.
- `missingValues` defines null; `nullSequence` is ignored.
- A pattern as the format of a datetime would give naive ones. The default format gives aware ones, but two readers of
  v1 (`datapackage` of PyPI and of npm) refuse microseconds in it: `any` is read by all three.
- After a column was added, it reports a `missing-cell` for each line of a shard that was not folded since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec

from limpet.index.codec import DELETED, OUR_CONSTRAINTS, Constraints, Field
from limpet.index.decide import shard_ids
from limpet.index.storage import DESCRIPTION_BYTES_MAX, IndexStorage, Manifest, manifest_cell
from limpet.index.values import NULL, SEPARATOR, Kind, escape
from limpet.kernel import records
from limpet.kernel.errors import Conflict, Corrupt, Invalid, Missing, OutcomeUnknown, Unsupported
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.store.api import Absent, Match, Stat
from limpet.kernel.waiting import TRIES_MAX, attempts


def package(name: str, manifest: Manifest, *, formats: bool = True) -> bytes:
    """`datapackage.json`. Its `version` is that of the schema, as is that of `schema.json`.

    `formats`: with the formats of datetimes, which Limpet 0.1 did not write.
    """
    described: dict[str, Any] = {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": name,
        "version": str(manifest.schema_version),
        "resources": [
            {
                "name": "shards",
                "type": "table",
                "path": [f"shards/{shard}.usv" for shard in shard_ids(manifest.depth)],
                "format": "csv",
                "mediatype": "text/csv",
                "encoding": "utf-8",
                "dialect": {
                    "header": False,
                    "delimiter": SEPARATOR.decode(),
                    "lineTerminator": "\n",
                    "quoteChar": "\x1e",
                    "skipInitialSpace": False,
                },
                "schema": {
                    "fields": [_field(field, formats=formats) for field in manifest.fields],
                    "primaryKey": [manifest.key],
                    "missingValues": [NULL.decode()],
                },
            }
        ],
    }
    return records.encode(described)


def _field(field: Field, *, formats: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": field.name, "type": field.type}
    if formats and field.type == "datetime":
        described["format"] = "any"
    if field.name == DELETED:
        return {**described, "trueValues": ["1"], "falseValues": ["0"]}
    limits = field.constraints or Constraints()
    ours = {"required": True} if field.required else {}
    ours |= msgspec.to_builtins(limits)
    if field.type == "string":  # the stored text has escapes, so it may be longer, and differ; a tombstone has nulls
        enum = tuple(escape(str(each)).decode() for each in limits.enum) if limits.enum else None
        limits = msgspec.structs.replace(limits, enum=enum, max_length=None, pattern=None)
    stored = msgspec.to_builtins(limits)
    return described | ({"constraints": stored} if stored else {}) | ({OUR_CONSTRAINTS: ours} if ours != stored else {})


_JSON_TYPES: Mapping[Kind, dict[str, str]] = {
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
}


def json_schema(name: str, manifest: Manifest) -> bytes:
    """`schema.json`: one record of a CSV export, for `qsv validate`.

    qsv converts each field to the type of its column here, and an empty one, also an empty string, to null: so string
    columns allow null, except for the key. JSON columns are strings.
    """
    described = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "version": str(manifest.schema_version),
        "type": "object",
        "properties": {field.name: _property(field, key=manifest.key) for field in manifest.fields},
        "required": [manifest.key],
    }
    return records.encode(described)


def _property(field: Field, *, key: str) -> dict[str, Any]:
    described: dict[str, Any] = {**_JSON_TYPES.get(field.type, {"type": "string"})}
    if field.type in ("string", "integer", "number", "boolean"):
        described |= msgspec.to_builtins(field.constraints or Constraints())
    if "pattern" in described:
        described["pattern"] = f"^(?:{described['pattern']})$"
    if field.name == key or (field.required and field.type != "string"):
        return described
    if "enum" in described:
        described["enum"] = [*described["enum"], None]
    return {**described, "type": [described["type"], "null"]}


def descriptions(keys: IndexKeys, name: str, manifest: Manifest) -> dict[Key, bytes]:
    """The two files that describe an index to other tools, by their keys."""
    return {keys.package: package(name, manifest), keys.json_schema: json_schema(name, manifest)}


def write_descriptions(storage: IndexStorage, name: str, manifest: Manifest) -> None:
    """Describe the index by its manifest, unless a later schema is described already.

    Raises: Conflict or OutcomeUnknown if others write it concurrently: a later run tries again.
    Cost: 2 GETs + at most 2 PUTs.   Crash: each file is the old or the new one.
    """
    for key, data in descriptions(storage.keys, name, manifest).items():
        _write(storage, key, data, manifest.schema_version)


def _write(storage: IndexStorage, key: Key, data: bytes, version: int) -> None:
    for tries in attempts(storage.runtime, pause_s=0):
        try:
            blob = storage.store.get(key, size_max=DESCRIPTION_BYTES_MAX)
        except Missing:
            blob = None
        if blob is not None and (blob.data == data or _version_of(blob.data) > version):
            return
        try:
            storage.store.put(key, data, when=Match(blob.version) if blob else Absent())
        except (Conflict, OutcomeUnknown):
            if tries == TRIES_MAX:
                raise
        else:
            return


def _version_of(data: bytes) -> int:
    """The schema version of a description; 0 if it cannot be read: it is derived, and may be replaced."""
    try:
        return int(msgspec.json.decode(data)["version"])
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        return 0


@dataclass(frozen=True, slots=True)
class Waits:
    """Objects that wait to be compiled. `oldest_at` is the store's time of the oldest."""

    objects: int
    bytes: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard, by its id."""

    id: str
    bytes: int


@dataclass(frozen=True, slots=True)
class IndexStats:
    """The statistics of an index.

    `records` and `bytes` are those of the compiled shards. Records count tombstones, as of the last recorded
    compile; None for an index of depth 4, which has too many shards to count. `compiled_at` is when a shard was last
    written, by the store's clock.
    """

    name: str
    key: str
    columns: int
    schema_version: int
    depth: int
    shards: int
    records: int | None
    bytes: int
    largest: Shard | None
    singles: Waits
    packs: Waits
    quarantined: int
    compiled_at: datetime | None

    @property
    def oldest_at(self) -> datetime | None:
        """When the oldest waiting object was put."""
        return min((at for at in (self.singles.oldest_at, self.packs.oldest_at) if at), default=None)


def stats(storage: IndexStorage, name: str, manifest: Manifest) -> IndexStats:
    """The statistics of an index. Read-only.   Cost: 1 LIST per 1,000 objects, and 1 for `adopted/` and `imports/`."""
    counts = _FolderCounts(storage)
    sizes = {shard: counts.sizes[shard] for shard in shard_ids(manifest.depth) if shard in counts.sizes}
    largest = max(sizes, key=lambda shard: sizes[shard], default=None)
    return IndexStats(
        name=name,
        key=manifest.key,
        columns=len(manifest.schema.columns),
        schema_version=manifest.schema_version,
        depth=manifest.depth,
        shards=16**manifest.depth,
        records=sum(manifest.records) if manifest.records else None,
        bytes=sum(sizes.values()),
        largest=Shard(largest, sizes[largest]) if largest else None,
        singles=counts.waits("inbox"),
        packs=counts.waits("packs"),
        quarantined=counts.objects["quarantine"],
        compiled_at=counts.compiled_at,
    )


@dataclass(frozen=True, slots=True)
class IndexCount:
    """An index as a dashboard shows it, by one capped listing.

    `sizes` has the bytes of each shard, and `backlog` the number of objects that wait for each. The names in `at_least`
    are lower bounds, because counting stopped. `trouble` says why part of it is not known.
    """

    name: str
    key: str = ""
    columns: tuple[str, ...] = ()
    depth: int = 0
    records: int | None = None
    bytes: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    oldest_at: datetime | None = None
    quarantined: int = 0
    compiled_at: datetime | None = None
    sizes: tuple[int, ...] = ()
    backlog: Mapping[str, int] = field(default_factory=dict)
    at_least: tuple[str, ...] = ()
    trouble: str = ""


def count_index(storage: IndexStorage, name: str, *, most: int) -> IndexCount:
    """Count an index, with up to `most` objects of each folder. Reads only. An unreadable manifest is its `trouble`.

    An index of depth 3 or 4 has thousands of shards: their sizes are those of its manifest, as of the last fold.
    Cost: 1 LIST per 1,000 objects listed, 1 LIST for each folder that is cut short, and 1 GET.
    """
    counts = _FolderCounts(storage, most)
    singles, packs = counts.waits("inbox"), counts.waits("packs")
    counted = IndexCount(
        name,
        waiting=singles.objects + packs.objects,
        waiting_bytes=singles.bytes + packs.bytes,
        oldest_at=min((at for at in (singles.oldest_at, packs.oldest_at) if at), default=None),
        quarantined=counts.objects["quarantine"],
        backlog=dict(counts.backlog),
        at_least=(
            *(("waiting",) if counts.cut & {"inbox", "packs"} else ()),
            *(("quarantined",) if "quarantine" in counts.cut else ()),
        ),
    )
    try:
        seen = manifest_cell(storage).read()
    except (Corrupt, Invalid, Unsupported) as error:
        return replace(counted, trouble=f"its manifest cannot be read: {error}")
    if seen is None:
        return replace(counted, trouble="it has no manifest")
    manifest = seen.value
    listed = "shards" not in counts.cut
    sizes = [counts.sizes.get(shard, 0) for shard in shard_ids(manifest.depth)] if listed else [*manifest.sizes]
    return replace(
        counted,
        key=manifest.key,
        columns=tuple(each.name for each in manifest.schema.columns),
        depth=manifest.depth,
        records=sum(manifest.records) if manifest.records else None,
        bytes=sum(sizes),
        sizes=tuple(sizes),
        compiled_at=counts.compiled_at if listed else seen.modified,
    )


class _FolderCounts:
    """What one listing of an index showed. Counting a folder stops after `most` objects."""

    def __init__(self, storage: IndexStorage, most: int | None = None) -> None:
        self._root = storage.keys.root
        self._most = most
        self.objects: Counter[str] = Counter()
        self.cut: set[str] = set()
        self.backlog: Counter[str] = Counter()
        self.sizes: dict[str, int] = {}
        self.compiled_at: datetime | None = None
        self._bytes: Counter[str] = Counter()
        self._oldest_at: dict[str, datetime] = {}
        after: str | None = None
        while (after := self._add(storage.store.list(self._root, after=after))) is not None:
            continue

    def waits(self, folder: str) -> Waits:
        """What waits in `inbox` or `packs`."""
        return Waits(self.objects[folder], self._bytes[folder], self._oldest_at.get(folder))

    def _add(self, listed: Iterable[Stat]) -> str | None:
        """Count until a folder is full; from where to list on then."""
        for stat in listed:
            folder, _, below = stat.key[len(self._root) + 1 :].partition("/")
            if not below:
                continue
            is_full = self._most is not None and self.objects[folder] == self._most
            if is_full or folder not in ("inbox", "packs", "quarantine", "shards"):
                self.cut.add(folder)
                return f"{self._root}/{folder}0"  # 0 is the character behind the slash
            self.objects[folder] += 1
            if folder == "shards":
                shard, _, kind = below.partition(".")
                if kind == "usv" and stat.size:
                    self.sizes[shard] = stat.size
                    self.compiled_at = max(self.compiled_at or stat.modified, stat.modified)
            elif folder != "quarantine":
                self.backlog[below.partition("/")[0]] += 1
                self._bytes[folder] += stat.size
                self._oldest_at[folder] = min(self._oldest_at.get(folder, stat.modified), stat.modified)
        return None

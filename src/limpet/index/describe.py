"""An index described: to other tools as a Frictionless data package and a JSON Schema, to people in numbers.

Facts about the data package (v2), found out with frictionless 5.21:

- A path may not be a pattern, so every shard is listed. `format` must be csv: it does not know `.usv`.
- The default `quoteChar` eats quotes, and v2 wants one character: it is U+001E, which no line has.
- `skipInitialSpace` must be said, or it is guessed from the first lines, and spaces are eaten.
- Null is what `missingValues` says; `nullSequence` is ignored.
- The default format of a datetime gives aware ones; a pattern would give naive ones.
- After a column was added, it reports a `missing-cell` for each line of a shard that was not folded since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from limpet import records
from limpet.errors import Conflict, Missing, OutcomeUnknown
from limpet.index.codec.lines import DELETED, NULL, OUR_CONSTRAINTS, SEPARATOR, Constraints, Field, Kind, escape
from limpet.index.decide import shard_ids
from limpet.index.storage import DESCRIPTION_BYTES_MAX, IndexStorage, Manifest
from limpet.keys import Key
from limpet.store.api import Absent, Match


def package(name: str, manifest: Manifest) -> bytes:
    """`datapackage.json`. Its `version` is that of the schema, as is that of `schema.json`."""
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
                    "fields": [_field(field) for field in manifest.fields],
                    "primaryKey": [manifest.key],
                    "missingValues": [NULL.decode()],
                },
            }
        ],
    }
    return records.encode(described)


def _field(field: Field) -> dict[str, Any]:
    described: dict[str, Any] = {"name": field.name, "type": field.type}
    if field.name == DELETED:
        return {**described, "trueValues": ["1"], "falseValues": ["0"]}
    limits = field.constraints or Constraints()
    ours = {"required": True} if field.required else {}
    ours |= msgspec.to_builtins(limits)
    stored = msgspec.to_builtins(_of_text(limits) if field.type == "string" else limits)
    return described | ({"constraints": stored} if stored else {}) | ({OUR_CONSTRAINTS: ours} if ours != stored else {})


def _of_text(limits: Constraints) -> Constraints:
    """What the stored text of a string meets: it has escapes, so it may be longer, and look otherwise.

    No column's text is `required`: a tombstone has nulls.
    """
    enum = tuple(escape(str(each)).decode() for each in limits.enum) if limits.enum else None
    return msgspec.structs.replace(limits, enum=enum, max_length=None, pattern=None)


_JSON_TYPES: Mapping[Kind, dict[str, str]] = {
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
}


def json_schema(name: str, manifest: Manifest) -> bytes:
    """`schema.json`: one record of a CSV export, as `qsv validate` judges it.

    qsv makes each field the type that its column has here, an empty one null, and an empty string as well: so a column
    of strings takes null unless it is the key. What is JSON in a column is a string to it.
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


TRIES_MAX = 5


def write_descriptions(storage: IndexStorage, name: str, manifest: Manifest) -> None:
    """Describe the index as its manifest says, unless a later schema is described already.

    Raises: Conflict or OutcomeUnknown if others write it all the time: a later run tries again.
    Cost: 2 GETs + at most 2 PUTs.   Crash: either file is old or new, whole.
    """
    version = manifest.schema_version
    _write(storage, storage.keys.package, package(name, manifest), version)
    _write(storage, storage.keys.json_schema, json_schema(name, manifest), version)


def _write(storage: IndexStorage, key: Key, data: bytes, version: int) -> None:
    for tried in range(1, TRIES_MAX + 1):
        try:
            blob = storage.store.get(key, size_max=DESCRIPTION_BYTES_MAX)
        except Missing:
            blob = None
        if blob is not None and (blob.data == data or _version_of(blob.data) > version):
            return
        try:
            storage.store.put(key, data, when=Match(blob.version) if blob else Absent())
        except (Conflict, OutcomeUnknown):
            if tried == TRIES_MAX:
                raise
        else:
            return


def _version_of(data: bytes) -> int:
    """The schema version of a description; none if it cannot be read, for it is derived and may be replaced."""
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
    """An index in numbers.

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
        """When the oldest of what waits was put."""
        return min((at for at in (self.singles.oldest_at, self.packs.oldest_at) if at), default=None)


def stats(storage: IndexStorage, name: str, manifest: Manifest) -> IndexStats:
    """Count an index. Reads only.

    Cost: 1 LIST per 1,000 objects in each of `shards/`, `inbox/`, `packs/` and `quarantine/`, at least 1 for each.
    """
    keys, store = storage.keys, storage.store
    ids = {keys.shard(shard): shard for shard in shard_ids(manifest.depth)}
    largest: Shard | None = None
    size = 0
    compiled_at: datetime | None = None
    for each in store.list(keys.shards):
        shard = ids.get(each.key)
        if shard is None or not each.size:
            continue
        size += each.size
        compiled_at = max(compiled_at or each.modified, each.modified)
        if largest is None or each.size > largest.bytes:
            largest = Shard(shard, each.size)
    return IndexStats(
        name=name,
        key=manifest.key,
        columns=len(manifest.schema.columns),
        schema_version=manifest.schema_version,
        depth=manifest.depth,
        shards=16**manifest.depth,
        records=sum(manifest.records) if manifest.records else None,
        bytes=size,
        largest=largest,
        singles=_waits(storage, keys.inbox),
        packs=_waits(storage, keys.packs),
        quarantined=sum(1 for _ in store.list(keys.quarantine)),
        compiled_at=compiled_at,
    )


def _waits(storage: IndexStorage, folder: str) -> Waits:
    objects = size = 0
    oldest: datetime | None = None
    for each in storage.store.list(folder):
        objects += 1
        size += each.size
        oldest = min(oldest or each.modified, each.modified)
    return Waits(objects, size, oldest)

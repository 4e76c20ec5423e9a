"""`manifest.json`: the columns of an index, how many shards it has, and about how much lies in them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

from limpet.index.decide import shard_ids
from limpet.index.schema import Field, Schema

__all__ = ["COUNTED_DEPTH_MAX", "Count", "Manifest", "counted", "fresh"]

COUNTED_DEPTH_MAX = 3
"""A deeper index has too many shards to count each in one small object."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The fields of `manifest.json` beside the cell's header.

    `generation` rises when shards are laid out anew; `described` is the schema version that datapackage.json shows.
    `records` and `sizes` (bytes) are by shard, as of the last compile run that told: never more than there is.
    """

    fields: tuple[Field, ...]
    key: str
    depth: int
    generation: int = 1
    schema_version: int = 1
    described: int = 0
    records: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    @cached_property
    def schema(self) -> Schema:
        """The columns."""
        return Schema(self.fields, self.key)

    def count(self, shard: str) -> Count | None:
        """What the manifest says of a shard; None if it does not."""
        at = int(shard, 16)
        known = at < len(self.records) and at < len(self.sizes)
        return Count(self.records[at], self.sizes[at]) if known else None


class Count(msgspec.Struct, frozen=True):
    """How many records and bytes a shard has."""

    records: int
    size: int


def fresh(schema: Schema, depth: int) -> Manifest:
    """The manifest of a new index."""
    zeros = (0,) * 16**depth if depth <= COUNTED_DEPTH_MAX else ()
    return Manifest(fields=schema.fields, key=schema.key, depth=depth, records=zeros, sizes=zeros)


def counted(manifest: Manifest, counts: Mapping[str, Count]) -> Manifest:
    """The manifest with newer counts. A shard never loses a record, so the greater count is the newer one."""
    if manifest.depth > COUNTED_DEPTH_MAX:
        return manifest
    records, sizes = [*manifest.records], [*manifest.sizes]
    for at, shard in enumerate(shard_ids(manifest.depth)):
        if shard in counts and counts[shard].records >= records[at]:
            records[at], sizes[at] = counts[shard].records, counts[shard].size
    return msgspec.structs.replace(manifest, records=tuple(records), sizes=tuple(sizes))

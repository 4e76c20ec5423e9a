"""Parquet in 256 parts by the SHA-256 of the key, read and written by polars: our layout with a columnar file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.indexes.api import Index, Options, Place, arrow, needs
from bench.indexes.records import Fields, Months

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {"polars": "polars", "pyarrow": "pyarrow"}


def connect(place: Place, options: Options) -> Index:
    """There are no options."""
    return _Parquet(place)


class _Parquet(Index):
    def __init__(self, place: Place) -> None:
        self._pl = needs("polars", "polars")
        self._folder = place.folder / "parts"
        self._folder.mkdir(exist_ok=True)

    def prepare(self, records: Sequence[Fields]) -> Any:
        table = self._pl.from_arrow(arrow(records))
        return table.with_columns(self._pl.Series("part", [_part(fields[0]) for fields in records]))

    def load(self, prepared: Any) -> None:
        for part, some in self._by_part(prepared):
            self._write(part, some.sort("domain"))

    def upsert(self, prepared: Any) -> None:
        for part, some in self._by_part(prepared):
            both = self._pl.concat([self._pl.read_parquet(self._path(part)), some])
            self._write(part, both.sort("domain", "updated_at").unique("domain", keep="last", maintain_order=True))

    def settle(self) -> None:
        return

    def lookup(self, key: str) -> Fields | None:
        found = self._pl.scan_parquet(self._path(_part(key))).filter(self._pl.col("domain") == key).collect()
        row: Fields | None = found.row(0) if found.height else None
        return row

    def scans(self) -> Mapping[str, Callable[[], Months]]:
        return {"polars": self._scan}

    def _scan(self) -> Months:
        pl = self._pl
        month = pl.col("updated_at").dt.truncate("1mo").alias("month")
        grouped = pl.scan_parquet(self._folder / "*.parquet").group_by(month)
        found = grouped.agg(pl.len().alias("count"), pl.col("version").sum()).collect()
        return {f"{month:%Y-%m}": (count, total) for month, count, total in found.rows()}

    def _by_part(self, prepared: Any) -> Sequence[tuple[str, Any]]:
        parts = prepared.partition_by("part", as_dict=True, include_key=False)
        return [(part, some) for (part,), some in parts.items()]

    def _write(self, part: str, table: Any) -> None:
        fresh = self._folder / f"{part}.new"
        table.write_parquet(fresh)
        os.replace(fresh, self._path(part))

    def _path(self, part: str) -> Path:
        return self._folder / f"{part}.parquet"


def _part(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:2]

"""Delta Lake by delta-rs: `merge`; the table Z-ordered by its key, with Bloom filters, old files removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.indexes.api import Index, Options, Place, needs
from bench.indexes.records import Fields, Months

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {"deltalake": "deltalake", "pyarrow": "pyarrow"}
ROW_GROUP = 16_384


def connect(place: Place, options: Options) -> Index:
    """There are no options."""
    return _Delta(place)


class _Delta(Index):
    def __init__(self, place: Place) -> None:
        self._delta = needs("deltalake", "deltalake")
        self._uri = str(place.folder / "table")
        bloom = self._delta.BloomFilterProperties(set_bloom_filter_enabled=True, fpp=0.01, ndv=ROW_GROUP)
        self._style = self._delta.WriterProperties(
            compression="ZSTD",
            max_row_group_size=ROW_GROUP,
            column_properties={"domain": self._delta.ColumnProperties(bloom_filter_properties=bloom)},
        )
        self._query: Any = None
        if not place.fresh:
            self._open()

    def load(self, prepared: Any) -> None:
        self._delta.write_deltalake(self._uri, prepared, writer_properties=self._style)

    def upsert(self, prepared: Any) -> None:
        merger = self._delta.DeltaTable(self._uri).merge(
            prepared,
            predicate="t.domain = s.domain",
            source_alias="s",
            target_alias="t",
            writer_properties=self._style,
        )
        newer = merger.when_matched_update_all(predicate="s.updated_at >= t.updated_at")
        newer.when_not_matched_insert_all().execute()

    def settle(self) -> None:
        table = self._delta.DeltaTable(self._uri)
        table.optimize.z_order(["domain"], writer_properties=self._style)
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        table.create_checkpoint()

    def lookup(self, key: str) -> Fields | None:
        rows = self._sql(f"SELECT domain, company, version, updated_at FROM t WHERE domain = '{key}'")
        row = rows.to_pylist()
        return (row[0]["domain"], row[0]["company"], row[0]["version"], row[0]["updated_at"]) if row else None

    def scans(self) -> Mapping[str, Callable[[], Months]]:
        return {"SQL": self._scan}

    def _scan(self) -> Months:
        rows = self._sql(
            "SELECT date_trunc('month', updated_at) AS m, count(*) AS n, sum(version) AS s FROM t GROUP BY 1"
        )
        return {f"{row['m']:%Y-%m}": (row["n"], row["s"]) for row in rows.to_pylist()}

    def _sql(self, text: str) -> Any:
        return needs("pyarrow", "pyarrow").table(self._query.execute(text).read_all())

    def _open(self) -> None:
        self._query = self._delta.QueryBuilder().register("t", self._delta.DeltaTable(self._uri))

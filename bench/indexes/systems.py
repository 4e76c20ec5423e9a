"""Which systems are measured, and what is known of each beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["SYSTEMS", "Kind", "System"]

Kind = Literal["ours", "database", "lakehouse", "LSM tree"]


@dataclass(frozen=True, slots=True)
class System:
    """One row. `synced` says what of an acknowledged upsert was synced to the disk: counted with strace."""

    name: str
    kind: Kind
    module: str
    synced: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settled_by: str = ""
    """What makes it ready for reading after a write; nothing if there is no such thing."""


SYSTEMS = (
    System("limpet, fsync", "ours", "ours", "all", {"durability": "fsync"}, "compile"),
    System("limpet, os", "ours", "ours", "nothing", {"durability": "os"}, "compile"),
    System("SQLite", "database", "sqlite", "all", settled_by="checkpoint"),
    System("DuckDB", "database", "duckdb", "all", settled_by="checkpoint"),
    System("delta-rs", "lakehouse", "delta", "nothing", settled_by="Z-order, vacuum"),
    System("LanceDB", "lakehouse", "lance", "nothing", settled_by="optimize"),
    System("PyIceberg", "lakehouse", "iceberg", "the catalog"),
    System("Parquet + polars", "lakehouse", "parquet", "nothing"),
    System("SlateDB", "LSM tree", "slate", "nothing", settled_by="flush"),
)

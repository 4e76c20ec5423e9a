"""What every index is measured by: the same records, and a few verbs.

An adapter is a module with `NEEDS`, the Python packages that it uses, and `connect(place, options) -> Index`. It does
what its system's own documentation tells a user to do, set up so that looking a record up by its key is quick.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.indexes.records import COLUMNS, Fields, Months
from bench.queues.api import NotHere, needs

__all__ = ["Index", "NotHere", "Options", "Place", "arrow", "months", "needs"]

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an index lives: a separate folder on tmpfs. `fresh`: make it again, empty."""

    folder: Path
    fresh: bool


class Index(Protocol):
    """One index of one system, opened by one process."""

    def prepare(self, records: Sequence[Fields]) -> Any:
        """The records in the form that the system likes best. Not timed."""
        return arrow(records)

    @abstractmethod
    def load(self, prepared: Any) -> None:
        """Store all of them in the empty index, as durably as the system's row says."""

    @abstractmethod
    def upsert(self, prepared: Any) -> None:
        """Store each, in the place of the one with its key if there is one; every reader sees them from then on."""

    @abstractmethod
    def settle(self) -> None:
        """Whatever a careful user does between writing much and reading: compile, compact, index, vacuum."""

    @abstractmethod
    def lookup(self, key: str) -> Fields | None:
        """The record of a key, as Python values."""

    @abstractmethod
    def scans(self) -> Mapping[str, Callable[[], Months]]:
        """The ways to count records and sum versions by month."""

    def spent(self) -> Mapping[str, float]:
        """Requests and bytes so far, for a system that counts them itself."""
        return {}

    def close(self) -> None:
        """Let go of files and connections."""
        return


def arrow(records: Sequence[Fields]) -> Any:
    """The records as an Arrow table."""
    pa = needs("pyarrow", "pyarrow")
    kinds = (pa.string(), pa.string(), pa.int64(), pa.timestamp("us", tz="UTC"))
    columns = zip(*records, strict=True)
    return pa.table({name: pa.array(column, kind) for name, column, kind in zip(COLUMNS, columns, kinds, strict=True)})


def months(table: Any) -> Months:
    """The answer of a scan from an Arrow table with updated_at and version, grouped by Arrow."""
    pc, pa = needs("pyarrow.compute", "pyarrow"), needs("pyarrow", "pyarrow")
    at = table["updated_at"]
    month = pc.add(pc.multiply(pc.year(at), 100), pc.month(at))
    grouped = pa.table({"month": month, "version": table["version"]}).group_by("month")
    found = grouped.aggregate([("version", "count"), ("version", "sum")])
    columns = (found[name].to_pylist() for name in ("month", "version_count", "version_sum"))
    return {f"{at // 100}-{at % 100:02}": (count, total) for at, count, total in zip(*columns, strict=True)}

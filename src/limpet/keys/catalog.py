"""The objects of a catalog, by domain (`catalog`, `executions`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from limpet.keys.names import Key, segment

__all__ = ["CatalogKeys"]

_ULID = re.compile("[0-9a-z]{26}")


@dataclass(frozen=True, slots=True)
class CatalogKeys:
    """The objects of one domain. `id_` is a ULID: names rise with time."""

    domain: str

    @staticmethod
    def of(domain: str) -> CatalogKeys:
        """The keys of a domain.   Raises: Invalid for a name that no segment can hold."""
        return CatalogKeys(segment(domain))

    @property
    def lock(self) -> Key:
        """Who leads."""
        return Key(f"locks/{self.domain}.lock")

    @property
    def head(self) -> Key:
        """What is published."""
        return Key(f"manifests/{self.domain}.json")

    @property
    def ledger(self) -> str:
        """Where batches of events lie."""
        return f"ledger/{self.domain}"

    @property
    def commits(self) -> str:
        """Where commit records lie."""
        return f"commits/{self.domain}"

    @property
    def snapshots(self) -> str:
        """Where snapshots lie."""
        return f"snapshots/{self.domain}"

    def batch(self, id_: str) -> Key:
        """A batch of events."""
        return Key(f"{self.ledger}/{id_}.json")

    def commit(self, id_: str) -> Key:
        """A commit record."""
        return Key(f"{self.commits}/{id_}.json")

    def snapshot(self, id_: str) -> Key:
        """A snapshot of the state."""
        return Key(f"{self.snapshots}/{id_}.parquet")

    def batch_id(self, path: str) -> str | None:
        """The id of the batch at `path`; None for a path that is not one of this domain's batches (F28)."""
        id_ = path.removeprefix(f"{self.ledger}/").removesuffix(".json")
        return id_ if _ULID.fullmatch(id_) and path == self.batch(id_) else None

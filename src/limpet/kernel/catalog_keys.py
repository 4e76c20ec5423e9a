"""The keys of a catalog's objects, by domain (`catalog`, `executions`)."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.kernel.keys import Folder, Key, Object, is_ulid, segment


@dataclass(frozen=True)
class CatalogKeys:
    """The objects of one domain. `id_` is a ULID: names rise with time."""

    domain: str

    lock = Object("locks/{domain}.lock")
    """The lock of the leader."""
    head = Object("manifests/{domain}.json")
    """The cell that says what is published."""
    sequence = Object("sequence/{domain}.json")
    """The counter of positions."""
    ledger = Folder("ledger/{domain}")
    """Batches of events."""
    states = Folder("state/{domain}")
    """Files of folded events."""
    quarantine = Folder("quarantine/{domain}")
    """Unreadable batches."""
    commits = Folder("commits/{domain}")
    """Commit records."""
    snapshots = Folder("snapshots/{domain}")
    """Snapshots of the state."""

    @staticmethod
    def of(domain: str) -> CatalogKeys:
        """The keys of a domain.   Raises: Invalid for an empty or unprintable name."""
        return CatalogKeys(segment(domain))

    def batch(self, id_: str) -> Key:
        """A batch of events."""
        return Key(f"{self.ledger}/{id_}.json")

    def commit(self, id_: str) -> Key:
        """A commit record."""
        return Key(f"{self.commits}/{id_}.json")

    def snapshot(self, id_: str) -> Key:
        """A snapshot of the state."""
        return Key(f"{self.snapshots}/{id_}.parquet")

    def state(self, id_: str) -> Key:
        """A file of folded events."""
        return Key(f"{self.states}/{id_}.parquet")

    def quarantined(self, id_: str) -> Key:
        """An unreadable batch, unchanged."""
        return Key(f"{self.quarantine}/{id_}.json")

    def reason(self, id_: str) -> Key:
        """Why a batch is in quarantine."""
        return Key(f"{self.quarantine}/{id_}.reason.json")

    def id_of(self, path: str) -> str | None:
        """The id in the name of one of this domain's objects; None for an object with another name."""
        id_ = path.rsplit("/", 1)[-1].split(".", 1)[0]
        named = (self.batch, self.commit, self.snapshot, self.state, self.quarantined, self.reason)
        return id_ if is_ulid(id_) and path in [name(id_) for name in named] else None

    def batch_id(self, path: str) -> str | None:
        """The id of the batch at `path`; None for a path that is not one of this domain's batches (F28)."""
        id_ = path.removeprefix(f"{self.ledger}/").removesuffix(".json")
        return id_ if is_ulid(id_) and path == self.batch(id_) else None

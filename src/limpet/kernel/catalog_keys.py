"""The keys of a catalog's objects, by domain (`catalog`, `executions`)."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.kernel.keys import Key, is_ulid, segment


@dataclass(frozen=True, slots=True)
class CatalogKeys:
    """The objects of one domain. `id_` is a ULID: names rise with time."""

    domain: str

    @staticmethod
    def of(domain: str) -> CatalogKeys:
        """The keys of a domain.   Raises: Invalid for an empty or unprintable name."""
        return CatalogKeys(segment(domain))

    @property
    def lock(self) -> Key:
        """The lock of the leader."""
        return Key(f"locks/{self.domain}.lock")

    @property
    def head(self) -> Key:
        """The cell that says what is published."""
        return Key(f"manifests/{self.domain}.json")

    @property
    def ledger(self) -> str:
        """Folder of batches of events."""
        return f"ledger/{self.domain}"

    @property
    def sequence(self) -> Key:
        """The counter of positions."""
        return Key(f"sequence/{self.domain}.json")

    @property
    def states(self) -> str:
        """Folder of files of folded events."""
        return f"state/{self.domain}"

    @property
    def quarantine(self) -> str:
        """Folder of unreadable batches."""
        return f"quarantine/{self.domain}"

    @property
    def commits(self) -> str:
        """Folder of commit records."""
        return f"commits/{self.domain}"

    @property
    def snapshots(self) -> str:
        """Folder of snapshots."""
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

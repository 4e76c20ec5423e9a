"""The objects of a catalog, by domain (`catalog`, `executions`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from limpet.keys.names import Key, segment

_ULID = re.compile("[0-7][0-9a-hjkmnp-tv-z]{25}")


def is_ulid(text: str) -> bool:
    """Whether it is an id as `Runtime.new_id` makes them."""
    return _ULID.fullmatch(text) is not None


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
    def sequence(self) -> Key:
        """Which positions are handed out."""
        return Key(f"sequence/{self.domain}.json")

    @property
    def states(self) -> str:
        """Where files of folded events lie."""
        return f"state/{self.domain}"

    @property
    def quarantine(self) -> str:
        """Where batches lie that could not be read."""
        return f"quarantine/{self.domain}"

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

    def state(self, id_: str) -> Key:
        """A file of folded events."""
        return Key(f"{self.states}/{id_}.parquet")

    def quarantined(self, id_: str) -> Key:
        """A batch that could not be read, as it was found."""
        return Key(f"{self.quarantine}/{id_}.json")

    def reason(self, id_: str) -> Key:
        """Why a batch lies in quarantine."""
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

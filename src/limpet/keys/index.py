"""The objects of an index. A `shard` is the first hex digits of a hash; a `key` is the text of a record's key."""

from __future__ import annotations

import re
from dataclasses import dataclass

from limpet.errors import Invalid
from limpet.keys.names import HASHED, Key, encoded, segment

INDEXES = "indexes"

_NOT_DIGITS = re.compile("[^0-9]")


@dataclass(frozen=True, slots=True)
class IndexKeys:
    """The objects of one index."""

    root: str

    @staticmethod
    def of(index: str) -> IndexKeys:
        """The keys of the index `index`.   Raises: Invalid for a name that no segment can hold, or none can tell."""
        folder = segment(index)
        if folder.startswith(HASHED):
            raise Invalid(f"the name {index[:40]!r}... is too long for an index", hint="a listing must tell its name")
        return IndexKeys(f"{INDEXES}/{folder}")

    @property
    def manifest(self) -> Key:
        """The columns and the number of shards."""
        return Key(f"{self.root}/manifest.json")

    @property
    def package(self) -> Key:
        """The Frictionless data package: derived from the manifest, for other tools."""
        return Key(f"{self.root}/datapackage.json")

    @property
    def json_schema(self) -> Key:
        """The columns as a JSON Schema: derived from the manifest, for other tools."""
        return Key(f"{self.root}/schema.json")

    @property
    def inbox(self) -> str:
        """Where single records wait."""
        return f"{self.root}/inbox"

    @property
    def packs(self) -> str:
        """Where many records of one shard wait in one object."""
        return f"{self.root}/packs"

    @property
    def shards(self) -> str:
        """Where compiled records lie."""
        return f"{self.root}/shards"

    @property
    def quarantine(self) -> str:
        """Where objects lie that could not be read."""
        return f"{self.root}/quarantine"

    @property
    def adopted(self) -> str:
        """Where files of another program lie that stood in the way of an index's own, under the names they had."""
        return f"{self.root}/adopted"

    def inbox_of(self, shard: str, key: str | None = None) -> str:
        """Where the singles of a shard wait, or those of one record."""
        folder = f"{self.root}/inbox/{shard}"
        return folder if key is None else f"{folder}/{encoded(key)}"

    def single(self, shard: str, key: str, stamp: str, id_: str) -> Key:
        """One put of one record. Names sort by the stamp, a time of fixed width."""
        return Key(f"{self.inbox_of(shard, key)}/{digits(stamp)}-{id_}.usv")

    def packs_of(self, shard: str) -> str:
        """Where the packs of a shard wait."""
        return f"{self.root}/packs/{shard}"

    def pack(self, shard: str, id_: str) -> Key:
        """Many records of one shard."""
        return Key(f"{self.root}/packs/{shard}/{id_}.usv")

    def shard(self, shard: str) -> Key:
        """The compiled records of a shard."""
        return Key(f"{self.root}/shards/{shard}.usv")

    def lock(self, shard: str) -> Key:
        """Who compiles a shard."""
        return Key(f"{self.root}/shards/{shard}.lock")

    def import_(self, id_: str) -> Key:
        """How far the import of a file has come."""
        return Key(f"{self.root}/imports/{id_}.json")

    def quarantined(self, shard: str, id_: str) -> Key:
        """An object that could not be read, with the reason."""
        return Key(f"{self.root}/quarantine/{shard}/{id_}.json")


def digits(stamp: str) -> str:
    """A time of fixed width as the name of a single has it."""
    return _NOT_DIGITS.sub("", stamp)


def single_stamp(key: str) -> str:
    """The stamp in the name of a single, as digits that sort."""
    return key.rpartition("/")[2].partition("-")[0]

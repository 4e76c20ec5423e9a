"""Keeping `datapackage.json` and `schema.json` up to date, whoever is late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from limpet.errors import Conflict, Missing, OutcomeUnknown
from limpet.index import describe
from limpet.index.manifest import Manifest
from limpet.index.storage import Storage
from limpet.keys import Key
from limpet.store.api import Absent, Match

__all__ = ["write_descriptions"]

TRIES_MAX = 5


def write_descriptions(storage: Storage, name: str, manifest: Manifest) -> None:
    """Describe the index as its manifest says, unless a later schema is described already.

    Columns are only ever added, so the description with more of them is the later one.
    Raises: Conflict or OutcomeUnknown if others write it all the time: a later run tries again.
    Cost: 2 GETs + at most 2 PUTs.   Crash: either file is old or new, whole.
    """
    keys, columns = storage.keys, len(manifest.fields)
    _write(storage, keys.package, describe.package(name, manifest), columns, _columns_of_package)
    _write(storage, keys.json_schema, describe.json_schema(name, manifest), columns, _columns_of_json_schema)


def _write(storage: Storage, key: Key, data: bytes, columns: int, count: Callable[[Any], int]) -> None:
    for tried in range(1, TRIES_MAX + 1):
        try:
            blob = storage.store.get(key)
        except Missing:
            blob = None
        if blob is not None and (blob.data == data or _count(blob.data, count) > columns):
            return
        try:
            storage.store.put(key, data, when=Match(blob.version) if blob else Absent())
        except (Conflict, OutcomeUnknown):
            if tried == TRIES_MAX:
                raise
        else:
            return


def _count(data: bytes, count: Callable[[Any], int]) -> int:
    """How many columns a description has; none if it cannot be read, for it is derived and may be replaced."""
    try:
        return count(msgspec.json.decode(data))
    except (msgspec.DecodeError, LookupError, TypeError):
        return 0


def _columns_of_package(package: Any) -> int:
    return len(package["resources"][0]["schema"]["fields"])


def _columns_of_json_schema(schema: Any) -> int:
    return len(schema["properties"])

"""Keeping `datapackage.json` and `schema.json` up to date, whoever is late."""

from __future__ import annotations

import msgspec

from limpet.errors import Conflict, Missing, OutcomeUnknown
from limpet.index import describe
from limpet.index.manifest import Manifest
from limpet.index.storage import DESCRIPTION_BYTES_MAX, Storage
from limpet.keys import Key
from limpet.store.api import Absent, Match

TRIES_MAX = 5


def write_descriptions(storage: Storage, name: str, manifest: Manifest) -> None:
    """Describe the index as its manifest says, unless a later schema is described already.

    Raises: Conflict or OutcomeUnknown if others write it all the time: a later run tries again.
    Cost: 2 GETs + at most 2 PUTs.   Crash: either file is old or new, whole.
    """
    version = manifest.schema_version
    _write(storage, storage.keys.package, describe.package(name, manifest), version)
    _write(storage, storage.keys.json_schema, describe.json_schema(name, manifest), version)


def _write(storage: Storage, key: Key, data: bytes, version: int) -> None:
    for tried in range(1, TRIES_MAX + 1):
        try:
            blob = storage.store.get(key, size_max=DESCRIPTION_BYTES_MAX)
        except Missing:
            blob = None
        if blob is not None and (blob.data == data or _version_of(blob.data) > version):
            return
        try:
            storage.store.put(key, data, when=Match(blob.version) if blob else Absent())
        except (Conflict, OutcomeUnknown):
            if tried == TRIES_MAX:
                raise
        else:
            return


def _version_of(data: bytes) -> int:
    """The schema version of a description; none if it cannot be read, for it is derived and may be replaced."""
    try:
        return int(msgspec.json.decode(data)["version"])
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        return 0

"""Writing an index into a file, shard by shard."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from limpet.errors import Denied
from limpet.index.formats import FORMATS
from limpet.index.index import Index
from limpet.index.reader import OnDamage, Reader
from limpet.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Exported:
    """How far an export has come."""

    shards: int
    of_shards: int
    records: int


def export(index: Index[Any], stream: IO[bytes], format: str, on_damage: OnDamage | None = None) -> Iterator[Exported]:
    """Write every record, `updated_at` included, in the order of the shards; yields after each of them.

    Each record is as of some moment after the export began. Memory is bounded by the largest shard.
    Damaged shards are left out if there is an `on_damage`, as in `Reader.scan`.
    Raises: Corrupt, Unavailable: what was written then is not whole.   Cost: as `Index.scan`.
    """
    manifest = index.manifest
    shards = records = 0
    with FORMATS[format].write(stream, manifest.schema) as write:
        for lines in Reader(index.storage, manifest).scan(on_damage):
            write(lines)
            shards += 1
            records += len(lines)
            yield Exported(shards, 16**manifest.depth, records)


@contextmanager
def whole_file(path: Path, runtime: Runtime) -> Iterator[IO[bytes]]:
    """A file to write, which appears under its name when the block ends well, and not at all otherwise.

    A pipe or a device is written to directly.
    Raises: Denied, when the disk does not take it.   Crash: the old file or the new one; a hidden part may be left.
    """
    try:
        path = path.resolve()
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            with open(path, "wb") as stream:
                yield stream
            return
        part = path.with_name(f".{path.name}.{runtime.new_id()}.part")
        try:
            with open(part, "xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
    except OSError as error:
        # F27: nothing half-written is left under the name
        raise Denied(f"cannot write {path}: {error.strerror}", hint="check the path and the room on the disk") from None

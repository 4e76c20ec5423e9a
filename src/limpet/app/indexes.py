"""A fleet's indexes: how one is opened, or created for a file; and jobs for other processes.

`demand_index`, `add_columns` and `columns_for` are behind the commands of `limpet index`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import msgspec

from limpet.app.fleet import hint_at_names, open
from limpet.index import CompileReport, Index
from limpet.index.types import with_own
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing
from limpet.kernel.keys import IndexKeys

if TYPE_CHECKING:
    from limpet.app.fleet import Fleet
    from limpet.index.codec import Field
    from limpet.index.files import ChunkOrder, Taken
    from limpet.index.formats import Chunk
    from limpet.index.storage import Manifest


@dataclass(frozen=True, slots=True)
class _IndexJob:
    """Work on an index in the process that calls it: a thread, a child, a machine of a Dask or Ray cluster.

    That process opens the fleet by its URL, with the credentials of its environment.
    """

    url: str
    name: str

    def index(self) -> Index[dict[str, Any]]:
        """The index, opened here."""
        return open(self.url).index(self.name)


class CompileJob(_IndexJob):
    """Compiles some shards."""

    def __call__(self, shards: Sequence[str], full: bool, run_id: str) -> Sequence[CompileReport | LimpetError]:
        """Compile them; the outcome of each. `run_id` only makes each call unique (see `ShardJob`).

        Raises: any error of opening the index.
        """
        return self.index().compile_shards(shards, full=full)


class ImportJob(_IndexJob):
    """Takes a chunk of a file into an index."""

    def __call__(self, chunk: Chunk, order: ChunkOrder) -> Taken:
        """Take it.   Raises: as `take`."""
        from limpet.index.files import take

        return take(self.index(), chunk, order)


def demand_index(fleet: Fleet, name: str) -> Index[dict[str, Any]]:
    """The index `name`, which must exist.   Raises: Missing, naming one with a similar name; Corrupt.   Cost: 1 GET."""
    index = fleet.index(name)
    try:
        index.manifest  # noqa: B018 - the first look reads it
    except Missing:
        names = fleet.indexes()
        if name in names and has_objects(fleet, name):
            keys = IndexKeys.of(name)
            raise Corrupt(
                f"the index {name!r} at {fleet.url} has no manifest, and other objects of it are there",
                hint=f"restore {keys.manifest} from a backup; if no index was ever made there, "
                f"`limpet index adopt {name}` makes one of another program's files",
            ) from None
        make = f"make it: limpet index create {name} --field id:string --key id, or limpet index import --create"
        hint = hint_at_names(name, names, "limpet index ls") or make
        raise Missing(f"there is no index {name!r} at {fleet.url}", hint=hint) from None
    return index


def has_objects(fleet: Fleet, name: str) -> bool:
    """Whether anything lies where the index `name` has its objects.   Cost: 1 LIST."""
    return any(stat.size for stat in fleet.store.list(IndexKeys.of(name).root))


def manifest_of(fleet: Fleet, name: str) -> Manifest | None:
    """The manifest of the index `name`; None if there is no such index.   Cost: 1 GET."""
    with suppress(Missing):
        return fleet.index(name).manifest
    return None


def package_of(fields: Iterable[Field]) -> dict[str, Any]:
    """Columns as a table schema, which `fleet.index` takes."""
    return {
        "fields": [
            {"name": field.name, "type": field.type, "constraints": {"required": field.required}} for field in fields
        ]
    }


def add_columns(fleet: Fleet, name: str, new: Sequence[Field]) -> tuple[Manifest, list[str]]:
    """Add columns at the end of an index; its manifest, and the names of those that it did not have.

    Raises: Missing; Invalid for a column that it has with another type.
    """
    before = demand_index(fleet, name).manifest
    own = [each for each in before.schema.columns if each.name not in {field.name for field in new}]
    manifest = fleet.index(name, package_of([*own, *new]), key=before.key).manifest
    known = {each.name for each in before.fields}
    return manifest, [field.name for field in manifest.fields if field.name not in known]


def columns_for(
    name: str, stream: IO[bytes], format: str, key: str | None, *, at: datetime | None
) -> tuple[dict[str, Any], str]:
    """The columns of a new index `name` for the records of a file, as a table schema, and its key.

    A key that is neither text nor an integer in the file becomes text. `at`: read the whole file as an import would at
    that time, so that no index is made for a file with a bad record.   Raises: Invalid.
    """
    from limpet.index.files import check_file
    from limpet.index.formats import FORMATS

    sample = FORMATS[format].sample(stream)
    stream.seek(0)
    key = key or sample.key
    if key is None:
        names = ", ".join(each.name for each in sample.fields)
        raise Invalid(f"the index {name!r} is new: say which field is its key", hint=f"--key one of {names}")
    fields = [
        msgspec.structs.replace(field, type="string")
        if field.name == key and field.type not in ("string", "integer")
        else field
        for field in sample.fields
    ]
    schema = with_own(fields, key)  # refuses columns that no index can have
    if at is not None:
        try:
            check_file(schema, stream, format, at)
        except Invalid as error:
            given = " ".join(f"--field {field.name}:{field.type}" for field in fields)
            hint = f"{error.hint}; or make the index with other types: limpet index create {name} {given} --key {key}"
            raise Invalid(f"{error}; nothing was created or imported", hint=hint) from None
    return package_of(fields), key

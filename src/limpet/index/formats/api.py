"""What every file format does: give records chunk by chunk, so that memory is bounded, and take them shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any, Protocol

from limpet.errors import Invalid
from limpet.index.fields import UPDATED_AT, Field
from limpet.index.schema import Schema

SAMPLE_ROWS = 1000

Decode = Callable[[Any], dict[str, Any]]
"""From a record as it is in the file to its values by column.   Raises: Invalid."""

Write = Callable[[Sequence[bytes]], None]
"""Writes the records behind some lines of an index."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place between two records of a file: bytes (Parquet: rows) before it, and the number of the last record."""

    position: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says before its first record: the names of its fields, if it has them, and where records begin."""

    names: tuple[str, ...] | None
    start: Mark = Mark()


@dataclass(frozen=True, slots=True)
class Limits:
    """When a chunk is full."""

    records: int = 200_000
    size: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records as they are in the file, which any process can decode. `end` is where the next chunk begins."""

    names: tuple[str, ...] | None
    rows: Any
    end: Mark


@dataclass(frozen=True, slots=True)
class Sample:
    """The columns that a file seems to have, and its key if it tells."""

    fields: tuple[Field, ...]
    key: str | None = None


class Format(Protocol):
    """One way to write records into a file."""

    noun: str
    """What a record is called in messages: a line, a record, a row."""

    seeks: bool
    """Whether a file is needed: a stream that cannot go back will not do."""

    def head(self, stream: IO[bytes]) -> Head:
        """Read what comes before the records, from the start of the file.   Raises: Invalid."""

    def total(self, stream: IO[bytes], size: int) -> int:
        """The position at the end of a file of `size` bytes."""

    def chunks(self, stream: IO[bytes], head: Head, after: Mark, limits: Limits) -> Iterator[Chunk]:
        """The records after a mark. The stream stands behind the head.   Raises: Invalid."""

    def rows(self, chunk: Chunk) -> Iterator[tuple[int, Any]]:
        """Each record of a chunk with its number in the file."""

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        """How records become values.   Raises: Invalid for fields that the index does not have."""

    def sample(self, stream: IO[bytes]) -> Sample:
        """The columns of a file, by its own types or by its first 1,000 records.   Raises: Invalid."""

    def aside(self, names: tuple[str, ...] | None, row: Any) -> bytes:
        """A record as it is kept when it cannot be imported. Without a `row`: what such a file begins with."""

    def write(self, stream: IO[bytes], schema: Schema) -> AbstractContextManager[Write]:
        """Write a file; it is complete when the block ends."""


def matched(names: Sequence[str], schema: Schema, *, what: str) -> dict[str, Field]:
    """The columns behind a file's field names.

    Raises: Invalid for a name that comes twice, that the index does not have, or that is missing and must be there.
    """
    columns: Mapping[str, Field] = {field.name: field for field in schema.columns}
    for at, name in enumerate(names):
        if name in names[:at]:
            raise Invalid(f"{what} has two fields {name!r}")
        if name not in columns:
            raise Invalid(
                f"{what} has a field {name!r}, which the index does not have",
                hint=f"it has {', '.join(columns)}; `limpet index schema NAME --add {name}:string` adds a column",
            )
    for field in columns.values():
        if field.required and field.name not in names:
            raise Invalid(f"{what} has no field {field.name!r}, which every record needs")
    return {name: columns[name] for name in names}


def wrong_width(expected: int, got: int, *, hint: str | None = None) -> Invalid:
    """The error for a record with too many or too few fields."""
    return Invalid(f"expected {expected} field{'' if expected == 1 else 's'}, got {got}", hint=hint)


def in_field(name: str, error: Invalid) -> Invalid:
    """The same error, naming the field."""
    hint = error.hint
    if name == UPDATED_AT and hint == Invalid.default_hint:
        hint = "updated_at is when the record was last changed; leave the field out to take the time of the import"
    return Invalid(f"field {name!r}: {error}", hint=hint)

"""The columns of an index.

A schema is the user's columns, then `updated_at` unless they have it, then `_deleted`; columns that were added later
follow. Positions never change, so a line of any age can be read by any later schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from limpet.errors import Corrupt, Invalid
from limpet.index.decide import Shape, digest, keys_of, shard_of
from limpet.index.text import NULL, SEPARATOR, escape, lines_of
from limpet.index.values import PATTERNS, TEXT, Kind, reader, writer

__all__ = ["DELETED", "UPDATED_AT", "Field", "Schema", "checked", "extended", "stamp_in", "with_own"]

UPDATED_AT = "updated_at"
DELETED = "_deleted"
LIVE, GONE = b"0", b"1"
KEY_KINDS = ("string", "integer")
KEY_BYTES_MAX = 2048


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column. `required`: a live record must have a value there."""

    name: str
    type: Kind
    required: bool = False


class Schema(msgspec.Struct, frozen=True, dict=True):
    """The columns of an index, Limpet's own included, and which of them is the key."""

    fields: tuple[Field, ...]
    key: str

    @cached_property
    def shape(self) -> Shape:
        """Where a line has its key, its stamp and its mark of deletion."""
        at = {field.name: i for i, field in enumerate(self.fields)}
        return Shape(at[self.key], at[UPDATED_AT], at[DELETED], len(self.fields))

    @cached_property
    def columns(self) -> tuple[Field, ...]:
        """The columns that a user sees: all but `_deleted`."""
        return tuple(field for field in self.fields if field.name != DELETED)

    @cached_property
    def _writers(self) -> list[Any]:
        return [writer(field.type) for field in self.fields]

    @cached_property
    def _readers(self) -> list[Any]:
        return [reader(field.type) for field in self.fields]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(field.name for field in self.columns)

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        """Every line that this schema, an older or a newer one writes."""
        shape = self.shape
        parts = [b"(?:" + PATTERNS[field.type] + rb"|\\N)" for field in self.fields]
        parts[shape.key_at] = b"(?:" + PATTERNS[self.fields[shape.key_at].type] + b")"
        parts[shape.stamp_at] = PATTERNS["datetime"]
        parts[shape.gone_at] = b"[01]"
        least = 1 + shape.gone_at
        tail = b"(?:" + SEPARATOR + rb"(?:" + TEXT + rb"|\\N))*"
        for part in reversed(parts[least:]):
            tail = b"(?:" + SEPARATOR + part + tail + b")?"
        return re.compile(SEPARATOR.join(parts[:least]) + tail)

    def key_text(self, key: Any) -> str:
        """The text that a key is hashed and named by.   Raises: Invalid for one that the key's column cannot hold."""
        kind = self.fields[self.shape.key_at].type
        if kind == "integer" and type(key) is int:
            key = str(key)
        elif not isinstance(key, str) or kind != "string":
            raise Invalid(f"the key {self.key!r} is {kind}, not {type(key).__name__} {key!r}")
        if not key:
            raise Invalid(f"the key {self.key!r} is empty")
        if len(escape(key)) > KEY_BYTES_MAX:
            raise Invalid(f"the key {key[:40]!r}... has more than {KEY_BYTES_MAX} bytes")
        return str(key)

    def line(self, values: Mapping[str, Any], stamp: str, *, where: str) -> bytes:
        """A live record as a line; `where` names it in errors. `updated_at` in `values` is ignored: `stamp` counts.

        Raises: Invalid, naming the record, the field, what was expected and what came.
        """
        unknown = values.keys() - self._names
        if unknown:
            raise Invalid(
                f"{where}: there is no field {min(unknown)!r}",
                hint=f"the fields are {', '.join(field.name for field in self.columns)}",
            )
        parts: list[bytes] = []
        for field, write in zip(self.fields, self._writers, strict=True):
            value = values.get(field.name)
            if field.name == UPDATED_AT:
                parts.append(stamp.encode())
            elif field.name == DELETED:
                parts.append(LIVE)
            elif value is None:
                if field.required:
                    raise Invalid(f"{where}: field {field.name!r}: expected {field.type}, got nothing")
                parts.append(NULL)
            else:
                try:
                    parts.append(write(value))
                except Invalid as error:
                    raise Invalid(f"{where}: field {field.name!r}: {error}", hint=error.hint) from None
        return SEPARATOR.join(parts)

    def tombstone(self, key: str, stamp: str) -> bytes:
        """The line that says a key was deleted."""
        parts = [NULL] * self.shape.width
        parts[self.shape.key_at] = escape(key)
        parts[self.shape.stamp_at] = stamp.encode()
        parts[self.shape.gone_at] = GONE
        return SEPARATOR.join(parts)

    def is_gone(self, line: bytes) -> bool:
        """Whether the line is a tombstone."""
        return line.split(SEPARATOR, self.shape.gone_at + 1)[self.shape.gone_at] == GONE

    def stamp_of(self, line: bytes) -> str:
        """When the line's record was written, as text."""
        return line.split(SEPARATOR, self.shape.stamp_at + 1)[self.shape.stamp_at].decode()

    def values(self, line: bytes) -> dict[str, Any]:
        """The record of a line, `updated_at` included. A column that the line does not know is None.

        Raises: Corrupt.
        """
        parts = line.split(SEPARATOR)
        if len(parts) <= self.shape.gone_at:
            raise Corrupt(f"the line {line[:60]!r} has too few fields")
        parts += [NULL] * (len(self.fields) - len(parts))
        return {
            field.name: None if part == NULL else read(part)
            for field, read, part in zip(self.fields, self._readers, parts, strict=False)
            if field.name != DELETED
        }

    def lines(self, data: bytes, *, what: str) -> list[bytes]:
        """The lines of an object, each checked against the schema.   Raises: Corrupt, naming the first bad one."""
        lines = lines_of(data, what=what)
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise Corrupt(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None
        matches = self._pattern.fullmatch
        for number, line in enumerate(lines, 1):
            if matches(line) is None:
                raise Corrupt(f"{what}: line {number} is not a record of this index: {line[:60]!r}")
        return lines


def with_own(fields: Sequence[Field], key: str) -> Schema:
    """A new schema of the user's columns, Limpet's own added.   Raises: Invalid."""
    names = [field.name for field in fields]
    for name in names:
        if not name or not name.isprintable() or name == DELETED:
            raise Invalid(f"a field cannot be called {name!r}")
        if names.count(name) > 1:
            raise Invalid(f"there are two fields {name!r}")
    by_name = {field.name: field for field in fields}
    if key not in by_name:
        raise Invalid(f"there is no field {key!r} to be the key", hint=f"the fields are {', '.join(names)}")
    if by_name[key].type not in KEY_KINDS or key == UPDATED_AT:
        raise Invalid(f"the key {key!r} is {by_name[key].type}; a key is a string or an integer")
    if UPDATED_AT in by_name and by_name[UPDATED_AT].type != "datetime":
        raise Invalid(f"the field {UPDATED_AT!r} is {by_name[UPDATED_AT].type}; it must be a datetime")
    own = [] if UPDATED_AT in by_name else [Field(UPDATED_AT, "datetime")]
    named = [
        Field(field.name, field.type, required=field.required or field.name == key)
        if field.name != UPDATED_AT
        else Field(UPDATED_AT, "datetime")
        for field in fields
    ]
    return Schema((*named, *own, Field(DELETED, "boolean")), key)


def extended(schema: Schema, fields: Sequence[Field], key: str) -> Schema | None:
    """The schema that also has the user's new columns, at the end; None if it has them all.

    A program that does not know the newest columns yet is fine. Raises: Invalid for another key, another type, what
    looks like a renamed column, or a new column that must have a value.
    """
    if key != schema.key:
        raise Invalid(f"the index has the key {schema.key!r}, not {key!r}", hint="make another index")
    by_name = {field.name: field for field in schema.fields}
    missing = [each.name for each in schema.columns if each.name not in {UPDATED_AT, *(field.name for field in fields)}]
    if missing and any(field.name not in by_name for field in fields):
        raise Invalid(
            f"the index has a field {missing[0]!r} that is not there any more, and there are new ones",
            hint="fields are never renamed or removed: keep it, or make another index",
        )
    for name in missing:
        if by_name[name].required:
            raise Invalid(f"the index has a field {name!r} that every record needs, and it is not there any more")
    new: list[Field] = []
    for field in fields:
        known = by_name.get(field.name)
        if known is None:
            if field.required:
                raise Invalid(
                    f"the new field {field.name!r} must allow null: older records have none",
                    hint=f"declare it as `{field.name}: ... | None = None`",
                )
            new.append(field)
        elif known.type != field.type:
            raise Invalid(
                f"the field {field.name!r} is {known.type}, not {field.type}",
                hint="a field keeps its type: add a new one beside it",
            )
    return Schema((*schema.fields, *new), schema.key) if new else None


def stamp_in(values: Mapping[str, Any], *, where: str) -> datetime | None:
    """The `updated_at` that a record brings along, if it does.   Raises: Invalid."""
    at = values.get(UPDATED_AT)
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise Invalid(f"{where}: field {UPDATED_AT!r}: expected datetime with a time zone, got {at!r}")
    return at


def checked(schema: Schema, depth: int, shard: str, data: bytes, *, what: str) -> list[bytes]:
    """The lines of an object that waits for a shard.   Raises: Corrupt for a bad line, or one of another shard."""
    lines = schema.lines(data, what=what)
    for number, key in enumerate(keys_of(lines, schema.shape), 1):
        if shard_of(digest(key), depth) != shard:
            raise Corrupt(f"{what}: line {number} belongs to shard {shard_of(digest(key), depth)}")
    return lines

"""The columns of an index.

A schema is the user's columns, then `updated_at` unless they have it, then `_deleted`; columns that were added later
follow. Positions never change, so a line of any age can be read by any later schema, and by any earlier one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from limpet.errors import Corrupt, Invalid
from limpet.index.constraints import loosened
from limpet.index.decide import Shape, places_of, shard_of
from limpet.index.fields import DELETED, FIELDS_MAX, GONE, UPDATED_AT, Field, Fields, Plan, plan_of
from limpet.index.text import END, NULL, SEPARATOR, escape, lines_of, unsafe
from limpet.index.values import JSON_KINDS, PATTERNS, all_in_64_bits, plain, reader, shown, writer
from limpet.records import Name

KEY_KINDS = ("string", "integer")
KEY_BYTES_MAX = 2048
SHORT_KEY = KEY_BYTES_MAX // 4
"""So many characters fit in a key, even if each is escaped."""
LINE_BYTES_MAX = 16 << 20


class Schema(msgspec.Struct, frozen=True, dict=True):
    """The columns of an index, Limpet's own included, and which of them is the key."""

    fields: Fields
    key: Name

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
    def _plan(self) -> Plan:
        return plan_of(self.fields)

    @cached_property
    def _matchers(self) -> dict[int, Callable[[bytes], re.Match[bytes] | None]]:
        """For lines of this schema or an older one, by how many fields they have; made as they are needed."""
        return {}

    @cached_property
    def _all_usual(self) -> re.Pattern[bytes]:
        """A whole object of lines of this schema; none if there is JSON, which must be parsed."""
        return self._all(self._parts)

    @cached_property
    def _all_plain(self) -> re.Pattern[bytes]:
        """The same of lines that hold no control, escape or null, so that any string in them is good."""
        parts = [*self._parts]
        for at, field in enumerate(self.fields):
            if field.type == "string":
                stop = SEPARATOR if at + 1 < len(parts) else END
                parts[at] = b"[^" + stop + (b"]++" if at == self.shape.key_at else b"]*+")
        return self._all(parts)

    def _all(self, parts: Sequence[bytes]) -> re.Pattern[bytes]:
        has_json = any(field.type in JSON_KINDS for field in self.fields)
        return re.compile(b"(?!)" if has_json else b"(?>" + SEPARATOR.join(parts) + END + b")*+")

    @cached_property
    def _parts(self) -> Sequence[bytes]:
        """What each field of a line of this schema looks like. JSON is in groups."""
        shape = self.shape
        parts = [b"(?:" + _pattern(field) + rb"|\\N)" for field in self.fields]
        parts[shape.key_at] = b"(?!" + SEPARATOR + b")(?:" + PATTERNS[self.fields[shape.key_at].type] + b")"
        parts[shape.stamp_at] = PATTERNS["datetime"]
        parts[shape.gone_at] = b"[01]"
        return parts

    def key_text(self, key: Any) -> str:
        """The text that a key is hashed and named by.   Raises: Invalid for one that the key's column cannot hold."""
        kind = self.fields[self.shape.key_at].type
        if type(key) is str and kind == "string" and key.isascii() and 0 < len(key) <= SHORT_KEY:
            return key
        try:
            text = plain(key)
        except TypeError:
            text = None
        if type(text) is not (str if kind == "string" else int):
            raise Invalid(f"the key {self.key!r} is {kind}, not {type(key).__name__} {shown(key)}")
        size = len(writer(kind)(text))
        if not size:
            raise Invalid(f"the key {self.key!r} is empty")
        if size > KEY_BYTES_MAX:
            raise Invalid(f"the key {shown(key)} has {size} bytes, more than {KEY_BYTES_MAX}")
        return str(text)

    def key_texts(self, keys: Sequence[Any]) -> Sequence[str]:
        """`key_text` of each. Usual ones are checked all at once.   Raises: Invalid."""
        kind = self.fields[self.shape.key_at].type
        if kind == "string" and {*map(type, keys)} == {str} and "".join(keys).isascii():
            sizes = {*map(len, keys)}
            if min(sizes) > 0 and max(sizes) <= SHORT_KEY:
                return keys
        if kind == "integer" and all_in_64_bits(keys):
            return [*map(str, keys)]
        return [self.key_text(key) for key in keys]

    def line(self, values: Mapping[str, Any], stamp: str, *, where: str) -> bytes:
        """A live record as a line; `where` names it in errors. `updated_at` in `values` is ignored: `stamp` counts.

        Raises: Invalid, naming the record, the field, what was expected and what came.
        """
        plan = self._plan
        try:
            line = plan.line(plan.row(values), stamp)
        except LookupError:
            raise self._unknown(values, where) from None
        except Invalid as error:
            raise Invalid(f"{where}: {error}", hint=error.hint) from None
        if len(line) > LINE_BYTES_MAX:
            raise Invalid(
                f"{where}: it has {len(line)} bytes, more than the {LINE_BYTES_MAX} that a record may have",
                hint="keep what is large in an object of its own, and its name in the record",
            )
        return line

    def bulk_lines(self, columns: Sequence[Sequence[Any]], stamps: Sequence[str]) -> list[bytes]:
        """What `line` would make of each record, from the columns of all but `updated_at`, in their order.

        Raises: Invalid, not naming the record.
        """
        lines = self._plan.lines(columns, stamps)
        if max(map(len, lines)) > LINE_BYTES_MAX:
            raise Invalid("a record is too large")
        return lines

    def _unknown(self, values: Mapping[str, Any], where: str) -> Invalid:
        names = [field.name for field in self.columns]
        name = next(name for name in values if name not in names)
        return Invalid(f"{where}: there is no field {shown(name)}", hint=f"the fields are {', '.join(names)}")

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

        Raises: Corrupt, naming the field.
        """
        return self._plan.values(line)

    def lines(self, data: bytes, *, what: str) -> list[bytes]:
        """The lines of an object, each checked: what is accepted here, `values` can read.

        Raises: Corrupt, naming the first bad one.
        """
        lines = lines_of(data, what=what)
        try:
            if not data.isascii():
                data.decode()
        except UnicodeDecodeError as error:
            raise Corrupt(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None
        # a string of a line without a backslash needs no second look, which would take as long as all the rest
        is_plain = unsafe(data) == (SEPARATOR * (self.shape.width - 1) + END) * len(lines)
        if (self._all_plain if is_plain else self._all_usual).fullmatch(data) is None:
            for number, line in enumerate(lines, 1):
                if not self._is_line(line):
                    raise Corrupt(f"{what}: line {number} is not a record of this index: {line[:60]!r}")
        return lines

    def _is_line(self, line: bytes) -> bool:
        number = line.count(SEPARATOR) + 1
        if number > FIELDS_MAX or len(line) > LINE_BYTES_MAX:
            return False
        if number > self.shape.width:  # of a newer schema, whose other columns are of any kind
            *fields, more = line.split(SEPARATOR, self.shape.width)
            if _MORE.fullmatch(more) is None:
                return False
            line = SEPARATOR.join(fields)
        width = max(self.shape.gone_at + 1, min(number, self.shape.width))
        matches = self._matchers.get(width)
        if matches is None:
            matches = self._matchers[width] = re.compile(SEPARATOR.join(self._parts[:width])).fullmatch
        found = matches(line)
        return found is not None and _all_json(found.groups())


_MORE = re.compile(rb"[^\x00-\x1e\x7f]*+")


def _pattern(field: Field) -> bytes:
    pattern = PATTERNS[field.type]
    return b"(" + pattern + b")" if field.type in JSON_KINDS else pattern


def _all_json(fields: Sequence[bytes | None]) -> bool:
    read = reader("any")
    try:
        for field in fields:
            if field is not None and field != NULL:
                read(field.decode())
    except ValueError:
        return False
    return True


def _check_names(names: Sequence[str]) -> None:
    """Raises: Invalid for too many, a name that cannot be a column's, or two that SQL takes for one."""
    if len(names) >= FIELDS_MAX:
        raise Invalid(f"an index has at most {FIELDS_MAX - 1} fields, not {len(names)}", hint="put some into an object")
    seen: dict[str, str] = {}
    for name in names:
        if not name or not name.isprintable() or name.lower() == DELETED:
            raise Invalid(f"a field cannot be called {name!r}")
        if name in seen.values():
            raise Invalid(f"there are two fields {name!r}")
        if name.lower() in seen:
            raise Invalid(
                f"the fields {seen[name.lower()]!r} and {name!r} differ only in case", hint="SQL takes them for one"
            )
        seen[name.lower()] = name


def with_own(fields: Sequence[Field], key: str) -> Schema:
    """A new schema of the user's columns, Limpet's own added.   Raises: Invalid."""
    by_name = {field.name: field for field in fields}
    own = [] if UPDATED_AT in by_name else [Field(UPDATED_AT, "datetime")]
    _check_names([field.name for field in (*fields, *own)])
    if key not in by_name:
        raise Invalid(f"there is no field {key!r} to be the key", hint=f"the fields are {', '.join(by_name)}")
    if by_name[key].type not in KEY_KINDS:
        raise Invalid(f"the key {key!r} is {by_name[key].type}; a key is a string or an integer")
    _check_updated_at(by_name.get(UPDATED_AT))
    replace = msgspec.structs.replace
    named = [
        replace(field, required=field.name != UPDATED_AT and (field.required or field.name == key)) for field in fields
    ]
    return Schema((*named, *own, Field(DELETED, "boolean")), key)


def _check_updated_at(field: Field | None) -> None:
    if field is not None and field.type != "datetime":
        raise Invalid(f"the field {UPDATED_AT!r} is {field.type}; it must be a datetime")
    if field is not None and field.constraints is not None:
        raise Invalid(f"the field {UPDATED_AT!r} has constraints", hint="leave them out: it is the time of the put")


def extended(schema: Schema, fields: Sequence[Field], key: str) -> Schema | None:
    """The schema that also allows what the user's columns allow, new ones at the end; None if it does already.

    A program that does not know the newest columns yet is fine, and so is one that allows less. One that would allow
    null where a value is required changes nothing: it reads as before, and a put of null is refused. That step is
    `nullable`, since programs whose type demands a value cannot read such records.
    Raises: Invalid for another key, another type, a new constraint, what looks like a renamed column, or a new column
    that must have a value.
    """
    if key != schema.key:
        raise Invalid(f"the index has the key {schema.key!r}, not {key!r}", hint="make another index")
    declared = {field.name: field for field in fields}
    _check_updated_at(declared.get(UPDATED_AT))
    _check_missing(schema, declared)
    known = [_loosened(field, declared.get(field.name)) for field in schema.fields]
    names = {field.name for field in schema.fields}
    new = [field for field in fields if field.name not in names]
    _check_names([field.name for field in (*schema.columns, *new)])
    for field in new:
        if field.required:
            raise Invalid(
                f"the new field {field.name!r} must allow null: older records have none",
                hint=f"declare it as `{field.name}: ... | None = None`",
            )
    found = Schema((*known, *new), schema.key)
    return found if found != schema else None


def _check_missing(schema: Schema, declared: Mapping[str, Field]) -> None:
    missing = [field for field in schema.columns if field.name not in declared and field.name != UPDATED_AT]
    for field in missing:
        if field.required:
            raise Invalid(
                f"the index has a field {field.name!r} that every record needs, and it is not there any more",
                hint="fields are never renamed or removed: keep it, or make another index",
            )
    new = declared.keys() - {field.name for field in schema.fields}
    if missing and new:
        raise Invalid(
            f"the index has a field {missing[0].name!r} that is not there any more, and {min(new)!r} is new",
            hint="fields are never renamed or removed: keep it, or make another index",
        )


def _loosened(known: Field, declared: Field | None) -> Field:
    if declared is None:
        return known
    if known.name == DELETED:
        raise Invalid(f"a field cannot be called {DELETED!r}")
    if known.type != declared.type:
        raise Invalid(
            f"the field {known.name!r} is {known.type}, not {declared.type}",
            hint="a field keeps its type: add a new one beside it",
        )
    constraints = loosened(known.constraints, declared.constraints, field=known.name)
    return msgspec.structs.replace(known, constraints=constraints)


def nullable(schema: Schema, name: str) -> Schema | None:
    """The schema with a column that may be null; None if it may be already.   Raises: Invalid."""
    by_name = {field.name: field for field in schema.columns}
    if name not in by_name:
        raise Invalid(f"there is no field {name!r}", hint=f"the fields are {', '.join(by_name)}")
    if name == schema.key:
        raise Invalid(f"the field {name!r} is the key, and every record has one")
    if not by_name[name].required:
        return None
    replace = msgspec.structs.replace
    fields = tuple(replace(field, required=False) if field.name == name else field for field in schema.fields)
    return Schema(fields, schema.key)


def stamp_in(values: Mapping[str, Any], *, where: str) -> datetime | None:
    """The `updated_at` that a record brings along, if it does.   Raises: Invalid."""
    at = values.get(UPDATED_AT)
    if at is None:
        return None
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise Invalid(f"{where}: field {UPDATED_AT!r}: expected datetime with a time zone, got {shown(at)}")
    return at


def checked(schema: Schema, depth: int, shard: str, data: bytes, *, what: str) -> list[bytes]:
    """The lines of an object that waits for a shard.   Raises: Corrupt for a bad line, or one of another shard."""
    return placed(schema, depth, shard, data, what=what)[1]


def placed(schema: Schema, depth: int, shard: str, data: bytes, *, what: str) -> tuple[list[bytes], list[bytes]]:
    """What `checked` answers, and before it the digests of the keys.   Raises: as `checked`."""
    lines = schema.lines(data, what=what)
    places = places_of(lines, schema.shape)
    if places and not shard == shard_of(min(places), depth) == shard_of(max(places), depth):
        number, of = next((n, of) for n, place in enumerate(places, 1) if (of := shard_of(place, depth)) != shard)
        raise Corrupt(f"{what}: line {number} belongs to shard {of}")
    return places, lines

"""One column; and how the values of a record become a line and back, which is the hot path of every put and scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Annotated, Any

import msgspec

from limpet.errors import Corrupt, Invalid
from limpet.index.constraints import Constraints, checker
from limpet.index.text import BACKSLASH, END, NULL, SEPARATOR, unsafe
from limpet.index.values import INTEGER_END, Kind, all_in_64_bits, all_in_utc, reader, shown, stamp_texts, writer
from limpet.records import Name

UPDATED_AT = "updated_at"
DELETED = "_deleted"
OUR_CONSTRAINTS = "limpet:constraints"
"""In a data package of ours: the constraints of a live record's values. Those of the text that is stored are looser."""
LIVE, GONE = b"0", b"1"
TEMPLATES_MAX = 1000
FIELDS_MAX = 4096
"""So many columns an index may have. A line with more fields is no record: no Limpet wrote it."""

_BETWEEN, _NULL, _LIVE = SEPARATOR.decode(), NULL.decode(), LIVE.decode()


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column. `required`: a live record must have a value there. `constraints`: what that value must meet."""

    name: Name
    type: Kind
    required: bool = False
    constraints: Constraints | None = None


Fields = Annotated[tuple[Field, ...], msgspec.Meta(max_length=FIELDS_MAX)]


@dataclass(frozen=True, slots=True)
class _Template:
    """The line of a row whose values have certain types, for `%`.

    `unsafe` are the bytes that such a line must have and no value in it may: the separators, and a backslash for each
    null. `integers` are the places of numbers, which may be too large; `stamp_at` is where the stamp goes.
    """

    text: str
    unsafe: bytes
    integers: tuple[int, ...]
    stamp_at: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What would otherwise be found out anew for each record.

    A row has the values that a user gives: of all columns but `updated_at` and `_deleted`. Most rows are strings and
    integers in which nothing must be escaped: they fill a template, made once for their types. Any other row is written
    field by field. Likewise a line without a backslash has no null, and its strings are what they look like.
    """

    fields: tuple[Field, ...]
    given: tuple[Field, ...]
    names: tuple[str, ...]
    known: frozenset[str]
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    writers: tuple[Callable[[Any], bytes], ...]
    readers: tuple[Callable[[str], Any], ...]
    converted: tuple[tuple[int, Callable[[str], Any]], ...]
    """By place, what reads the fields of a plain line whose text is not the value itself."""
    gone_at: int
    templates: dict[tuple[type[Any], ...], _Template | None]

    def row(self, values: Mapping[str, Any]) -> Sequence[Any]:
        """The values of a row; None for those that are not there.   Raises: LookupError for a name of no column."""
        try:
            if len(values) - (UPDATED_AT in values) == len(self.given):
                return self.pick(values)
        except LookupError:
            pass
        if not values.keys() <= self.known:
            raise LookupError
        return [values.get(field.name) for field in self.given]

    def line(self, row: Sequence[Any], stamp: str) -> bytes:
        """A live record as a line.   Raises: Invalid, naming the field, what was expected and what came."""
        types = tuple(map(type, row))
        try:
            template = self.templates[types]
        except KeyError:
            template = self._template(types)
            if len(self.templates) < TEMPLATES_MAX:
                self.templates[types] = template
        if template is None:
            return self._field_by_field(row, stamp)
        for at in template.integers:
            if not -INTEGER_END <= row[at] < INTEGER_END:
                return self._field_by_field(row, stamp)
        try:
            line = (template.text % (*row[: template.stamp_at], stamp, *row[template.stamp_at :])).encode()
        except UnicodeEncodeError:
            return self._field_by_field(row, stamp)
        return line if unsafe(line) == template.unsafe else self._field_by_field(row, stamp)

    def _template(self, types: Sequence[type[Any]]) -> _Template | None:
        """None if a row of such types must be looked at field by field."""
        texts: list[str] = []
        for field, kind in zip(self.given, types, strict=True):
            if kind is type(None) and not field.required:
                texts.append(_NULL + "%.0s")
            elif (field.type, kind) in (("string", str), ("integer", int)) and field.constraints is None:
                texts.append("%s")
            else:
                return None
        integers = tuple(at for at, kind in enumerate(types) if kind is int)
        stamp_at = [field.name for field in self.fields].index(UPDATED_AT)
        texts.insert(stamp_at, "%s")
        texts.insert(self.gone_at, _LIVE)
        text = _BETWEEN.join(texts)
        return _Template(text, unsafe(text.encode()), integers, stamp_at)

    def _field_by_field(self, row: Sequence[Any], stamp: str) -> bytes:
        rest = iter(zip(self.writers, row, strict=True))
        parts: list[bytes] = []
        for field in self.fields:
            if field.name == UPDATED_AT:
                parts.append(stamp.encode())
            elif field.name == DELETED:
                parts.append(LIVE)
            else:
                write, value = next(rest)
                parts.append(_part(field, write, value))
        return SEPARATOR.join(parts)

    def lines(self, columns: Sequence[Sequence[Any]], stamps: Sequence[str]) -> list[bytes]:
        """What `line` would make of each row, from the columns of all rows.   Raises: Invalid, not naming the row."""
        rest = iter(zip(self.given, self.writers, columns, strict=True))
        texts: list[Iterable[str]] = []
        for field in self.fields:
            if field.name == UPDATED_AT:
                texts.append(stamps)
            elif field.name == DELETED:
                texts.append(repeat(_LIVE, len(stamps)))
            else:
                texts.append(_texts(*next(rest)))
        return "\n".join(map(_BETWEEN.join, zip(*texts, strict=True))).encode().split(END)

    def values(self, line: bytes) -> dict[str, Any]:
        """The values of a line by column, but for `_deleted`.   Raises: Corrupt, naming the field."""
        try:
            values: list[Any] = line.decode().split(_BETWEEN)
            del values[self.gone_at]
            if BACKSLASH in line or len(values) < len(self.readers):
                values += [_NULL] * (len(self.readers) - len(values))
                for at, read in enumerate(self.readers):
                    values[at] = None if values[at] == _NULL else read(values[at])
            else:
                for at, read in self.converted:
                    values[at] = read(values[at])
        except (ValueError, IndexError, Corrupt):
            raise self._unreadable(line) from None
        return dict(zip(self.names, values))  # noqa: B905  strict= takes half as long again; a newer line has more

    def _unreadable(self, line: bytes) -> Corrupt:
        """The error for a line that cannot be read."""
        try:
            texts = line.decode().split(_BETWEEN)
            del texts[self.gone_at]
        except (UnicodeDecodeError, IndexError):
            return Corrupt(f"the line {line[:60]!r} has too few fields, or is not UTF-8")
        for name, read, text in zip(self.names, self.readers, texts, strict=False):
            try:
                if text != _NULL:
                    read(text)
            except (ValueError, Corrupt):
                return Corrupt(f"the field {name!r} of a line cannot be read: {shown(text)}")
        raise AssertionError("every field can be read")


def _part(field: Field, write: Callable[[Any], bytes], value: Any) -> bytes:
    if value is None:
        if field.required:
            raise Invalid(
                f"field {field.name!r}: expected {field.type}, got nothing",
                hint=f"`limpet index schema NAME --allow-null {field.name}` lets it be null, for all programs",
            )
        return NULL
    try:
        return write(value)
    except Invalid as error:
        raise Invalid(f"field {field.name!r}: {error}", hint=error.hint) from None


def _texts(field: Field, write: Callable[[Any], bytes], column: Sequence[Any]) -> Sequence[str]:
    """What `_part` would make of each value of a column. Usual ones are checked all at once.   Raises: Invalid."""
    types = {*map(type, column)}
    nulls = type(None) in types
    if field.constraints is None and not (nulls and field.required):
        values = [value for value in column if value is not None] if nulls else column
        types.discard(type(None))
        if not types:
            return [_NULL] * len(column)
        if field.type == "string" and types == {str} and _is_plain("".join(values)):
            return [_NULL if value is None else value for value in column] if nulls else column
        if field.type == "integer" and all_in_64_bits(values):
            return [_NULL if value is None else str(value) for value in column] if nulls else [*map(str, column)]
        if field.type == "datetime" and all_in_utc(column):
            return stamp_texts(column)
    return [_part(field, write, value).decode() for value in column]


def _is_plain(text: str) -> bool:
    """Whether it can be written as it is."""
    try:
        return not unsafe(text.encode())
    except UnicodeEncodeError:
        return False


def plan_of(fields: tuple[Field, ...]) -> Plan:
    """The plan for the columns of a schema."""
    columns = [field for field in fields if field.name != DELETED]
    given = tuple(field for field in columns if field.name != UPDATED_AT)
    pick = itemgetter(*(field.name for field in given))
    return Plan(
        fields=fields,
        given=given,
        names=tuple(field.name for field in columns),
        known=frozenset(field.name for field in columns),
        pick=pick if len(given) > 1 else lambda values: (pick(values),),
        writers=tuple(_writer(field) for field in given),
        readers=tuple(reader(field.type) for field in columns),
        converted=tuple((at, reader(field.type)) for at, field in enumerate(columns) if field.type != "string"),
        gone_at=[field.name for field in fields].index(DELETED),
        templates={},
    )


def _writer(field: Field) -> Callable[[Any], bytes]:
    write = writer(field.type)
    if field.constraints is None:
        return write
    check = checker(field.constraints, field.type)

    def write_checked(value: Any) -> bytes:
        data = write(value)
        check(data)
        return data

    return write_checked

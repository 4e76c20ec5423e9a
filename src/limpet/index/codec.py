"""A record as a line of text, and back: the hot path of every put, get and scan.

Fields are separated by U+001F, and a line ends with LF; there is no header, and the encoding is UTF-8. Null is `\\N`.
In other fields backslashes and control characters (C0 and DEL) are escaped; JSON uses its usual escapes. So a field has
no byte below 0x20, and every string can be stored: lines sort like the tuples of their fields, a line is incomplete
only if its LF is missing, and every reader of delimited text can parse it (F23, F33).

Each value has exactly one encoding:

    string      the text, escaped
    integer     decimal, of 64 bits
    number      the shortest decimal that reads back equal
    boolean     true, false
    date        2026-03-01
    datetime    2026-03-01T12:00:00.000000Z, always in UTC
    object, array, any    compact JSON, with the escapes of JSON

A `Schema` is the user's columns, then `updated_at` unless they have it, then `_deleted`; columns that were added later
follow. Positions never change, so every line can be read with any later or earlier schema. `Typed` converts between the
objects of a user's type and the values of a record.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec

from limpet.index.values import (
    BACKSLASH,
    END,
    INTEGER_END,
    JSON_KINDS,
    NULL,
    PATTERNS,
    READERS,
    SEPARATOR,
    WRITERS,
    A,
    Kind,
    Read,
    Write,
    all_in_64_bits,
    all_in_utc,
    builtins_of,
    escape,
    lines_of,
    shown,
    stamp_texts,
    unsafe,
)
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid, Unsupported
from limpet.kernel.records import Name
from limpet.kernel.wording import an, many

R = TypeVar("R")
ENUM_MAX = 10_000
FLOAT_MAX = sys.float_info.max
_Integer = Annotated[int, msgspec.Meta(ge=-INTEGER_END, le=INTEGER_END - 1)]
_Number = Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
Scalar = records.Text | _Integer | _Number | bool
TIME_KINDS: tuple[Kind, ...] = ("date", "datetime")


class Constraints(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The constraints of a column, named as in a data package. A date or a datetime is given as in a line.

    A pattern must match the whole string. At most one of `minimum` and `exclusive_minimum` is set, and so for maxima.
    """

    enum: Annotated[tuple[Scalar, ...], msgspec.Meta(max_length=ENUM_MAX)] | None = None
    minimum: Scalar | None = None
    maximum: Scalar | None = None
    exclusive_minimum: Scalar | None = None
    exclusive_maximum: Scalar | None = None
    min_length: records.Count | None = None
    max_length: records.Count | None = None
    pattern: records.Text | None = None


def checker(limits: Constraints, kind: Kind) -> Callable[[bytes], None]:
    """A function that checks the bytes of a field.   It raises Invalid, with the constraint and the value."""
    checks = [*_checks(limits, kind)]
    read = READERS[kind]

    def check(data: bytes) -> None:
        text = data.decode()
        value = read(text)
        for good, expected in checks:
            if not good(value):
                raise Invalid(f"expected {expected}, got {text if kind in TIME_KINDS else shown(value)}")

    return check


def _checks(limits: Constraints, kind: Kind) -> Iterator[tuple[Callable[[Any], bool], str]]:
    def limit(given: Scalar | None) -> Any:
        return READERS[kind](given) if isinstance(given, str) and kind != "string" else given

    if limits.enum is not None:
        allowed = [limit(each) for each in limits.enum]
        yield allowed.__contains__, f"one of {', '.join(map(str, limits.enum))}"
    bounds: Sequence[tuple[Scalar | None, Callable[[Any, Any], bool], str]] = (
        (limits.minimum, operator.le, "at least"),
        (limits.maximum, operator.ge, "at most"),
        (limits.exclusive_minimum, operator.lt, "more than"),
        (limits.exclusive_maximum, operator.gt, "less than"),
    )
    for given, is_met, words in bounds:
        if given is not None:
            yield partial(is_met, limit(given)), f"{words} {given}"
    shortest, longest = limits.min_length, limits.max_length
    if shortest is not None:
        yield lambda value: len(value) >= shortest, f"a length of at least {shortest}"
    if longest is not None:
        yield lambda value: len(value) <= longest, f"a length of at most {longest}"
    if limits.pattern is not None:
        matches = re.compile(limits.pattern).fullmatch
        yield lambda value: matches(value) is not None, f"text like {limits.pattern}"


UPDATED_AT = "updated_at"
DELETED = "_deleted"
OUR_CONSTRAINTS = "limpet:constraints"
"""In our data packages: the constraints of a live record's values. Those of the stored text are weaker."""
LIVE, GONE = b"0", b"1"
FIELDS_MAX = 4096
"""The maximum number of columns. A line with more fields is not a record."""
_BETWEEN, _NULL, _LIVE = SEPARATOR.decode(), NULL.decode(), LIVE.decode()


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column. `required`: a live record must have a value. `constraints`: what the value must satisfy."""

    name: Name
    type: Kind
    required: bool = False
    constraints: Constraints | None = None


Fields = Annotated[tuple[Field, ...], msgspec.Meta(max_length=FIELDS_MAX)]


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
    """`_part` of each value of a column, with a fast path for common types.   Raises: Invalid."""
    types = {*map(type, column)}
    nulls = type(None) in types
    if field.constraints is None and not (nulls and field.required):
        values = [value for value in column if value is not None] if nulls else column
        types.discard(type(None))
        if not types:
            return [_NULL] * len(column)
        if field.type == "string" and types == {str} and _needs_no_escape("".join(values)):
            return [_NULL if value is None else value for value in column] if nulls else column
        if field.type == "integer" and all_in_64_bits(values):
            return [_NULL if value is None else str(value) for value in column] if nulls else [*map(str, column)]
        if field.type == "datetime" and all_in_utc(column):
            return stamp_texts(column)
    return [_part(field, write, value).decode() for value in column]


def _needs_no_escape(text: str) -> bool:
    try:
        return not unsafe(text.encode())
    except UnicodeEncodeError:
        return False


def _writer(field: Field) -> Callable[[Any], bytes]:
    write = WRITERS[field.type]
    if field.constraints is None:
        return write
    check = checker(field.constraints, field.type)

    def write_checked(value: Any) -> bytes:
        data = write(value)
        check(data)
        return data

    return write_checked


@dataclass(frozen=True, slots=True)
class Shape:
    """The positions of the fields that Limpet itself uses. `width`: the number of fields; older lines have fewer."""

    key_column: int
    stamp_column: int
    deleted_column: int
    width: int


KEY_BYTES_MAX = 2048
SHORT_KEY = KEY_BYTES_MAX // 4
"""Characters that fit into a key even if each is escaped."""
LINE_BYTES_MAX = 16 << 20


class Schema(msgspec.Struct, frozen=True, dict=True):
    """The columns of an index, Limpet's own included, and which of them is the key.

    A row has the values that a user gives: all columns except `updated_at` and `_deleted`. A line without a backslash
    has no null and no escapes.
    """

    fields: Fields
    key: Name

    @cached_property
    def shape(self) -> Shape:
        """The positions of the key, the stamp and the deletion mark."""
        at = {field.name: i for i, field in enumerate(self.fields)}
        return Shape(at[self.key], at[UPDATED_AT], at[DELETED], len(self.fields))

    @cached_property
    def columns(self) -> tuple[Field, ...]:
        """The columns that a user sees: all but `_deleted`."""
        return tuple(field for field in self.fields if field.name != DELETED)

    @cached_property
    def _given(self) -> tuple[Field, ...]:
        return tuple(field for field in self.columns if field.name != UPDATED_AT)

    @cached_property
    def _names(self) -> dict[str, None]:
        return {field.name: None for field in self.columns}

    @cached_property
    def _writers(self) -> tuple[Write, ...]:
        return tuple(map(_writer, self._given))

    @cached_property
    def _readers(self) -> tuple[Read, ...]:
        return tuple(READERS[field.type] for field in self.columns)

    @cached_property
    def _converted(self) -> tuple[tuple[int, Read], ...]:
        """By position, the decoders of the fields of a line without escapes, strings excepted."""
        return tuple((at, READERS[field.type]) for at, field in enumerate(self.columns) if field.type != "string")

    @cached_property
    def _matchers(self) -> dict[int, Callable[[bytes], re.Match[bytes] | None]]:
        """Matchers for lines of this schema or an older one, by number of fields; created on demand."""
        return {}

    @cached_property
    def _usual_pattern(self) -> re.Pattern[bytes]:
        """Matches a whole object of lines of this schema; never if there is JSON, which must be parsed."""
        return self._all(self._parts)

    @cached_property
    def _fast_pattern(self) -> re.Pattern[bytes]:
        """The same for lines without control characters, escapes and nulls, where every string is valid."""
        parts = [*self._parts]
        for at, field in enumerate(self.fields):
            if field.type == "string":
                stop = SEPARATOR if at + 1 < len(parts) else END
                parts[at] = b"[^" + stop + (b"]++" if at == self.shape.key_column else b"]*+")
        return self._all(parts)

    def _all(self, parts: Sequence[bytes]) -> re.Pattern[bytes]:
        has_json = any(field.type in JSON_KINDS for field in self.fields)
        return re.compile(b"(?!)" if has_json else b"(?>" + SEPARATOR.join(parts) + END + b")*+")

    @cached_property
    def _parts(self) -> Sequence[bytes]:
        """The pattern of each field of a line of this schema. JSON is in groups."""
        shape = self.shape
        parts = [
            b"(?:" + (b"(%b)" if field.type in JSON_KINDS else b"%b") % PATTERNS[field.type] + rb"|\\N)"
            for field in self.fields
        ]
        parts[shape.key_column] = b"(?!" + SEPARATOR + b")(?:" + PATTERNS[self.fields[shape.key_column].type] + b")"
        parts[shape.stamp_column] = PATTERNS["datetime"]
        parts[shape.deleted_column] = b"[01]"
        return parts

    def key_text(self, key: Any) -> str:
        """The key as text, for hashing and object names.   Raises: Invalid if the key column cannot hold it."""
        kind = self.fields[self.shape.key_column].type
        if type(key) is str and kind == "string" and key.isascii() and 0 < len(key) <= SHORT_KEY:
            return key
        try:
            text = builtins_of(key)
        except TypeError:
            text = None
        if type(text) is not (str if kind == "string" else int):
            raise Invalid(f"the key {self.key!r} is {kind}, not {type(key).__name__} {shown(key)}")
        size = len(WRITERS[kind](text))
        if not size:
            raise Invalid(f"the key {self.key!r} is empty")
        if size > KEY_BYTES_MAX:
            raise Invalid(f"the key {shown(key)} has {many(size, 'byte')}, more than {KEY_BYTES_MAX:,}")
        return str(text)

    def key_texts(self, keys: Sequence[Any]) -> Sequence[str]:
        """`key_text` of each, with a fast path for common types.   Raises: Invalid."""
        kind = self.fields[self.shape.key_column].type
        if kind == "string" and {*map(type, keys)} == {str} and "".join(keys).isascii():
            sizes = {*map(len, keys)}
            if min(sizes) > 0 and max(sizes) <= SHORT_KEY:
                return keys
        if kind == "integer" and all_in_64_bits(keys):
            return [*map(str, keys)]
        return [self.key_text(key) for key in keys]

    def line(self, values: Mapping[str, Any], stamp: str, *, where: str) -> bytes:
        """A live record as a line; `where` names it in errors. `stamp` replaces `updated_at` in `values`.

        Raises: Invalid, with the record, the field, the expected type and the given value.
        """
        for name in values:
            if name not in self._names:
                hint = f"the fields are {', '.join(self._names)}"
                raise Invalid(f"{where}: there is no field {shown(name)}", hint=hint)
        try:
            row = [values.get(field.name) for field in self._given]
            parts = map(_part, self._given, self._writers, row)
            line = SEPARATOR.join(self._with_own(parts, stamp.encode(), LIVE))
        except Invalid as error:
            raise Invalid(f"{where}: {error}", hint=error.hint) from None
        if len(line) > LINE_BYTES_MAX:
            raise Invalid(
                f"{where}: it has {many(len(line), 'byte')}, more than the {LINE_BYTES_MAX:,} that a record may have",
                hint="store large values as separate objects, and their names in the record",
            )
        return line

    def _with_own(self, given: Iterable[A], stamp: A, gone: A) -> list[A]:
        """The values of a row, with those of Limpet's own columns inserted: `updated_at` comes before `_deleted`."""
        row = [*given]
        row.insert(self.shape.stamp_column, stamp)
        row.insert(self.shape.deleted_column, gone)
        return row

    def bulk_lines(self, columns: Sequence[Sequence[Any]], stamps: Sequence[str]) -> list[bytes]:
        """`line` of each record, from the columns of all records except `updated_at`, in order.

        Raises: Invalid, without the record.
        """
        texts: Iterable[Iterable[str]] = map(_texts, self._given, self._writers, columns)
        rows = zip(*self._with_own(texts, stamps, repeat(_LIVE, len(stamps))), strict=True)
        lines = "\n".join(map(_BETWEEN.join, rows)).encode().split(END)
        if max(map(len, lines)) > LINE_BYTES_MAX:
            raise Invalid("a record is too large")
        return lines

    def tombstone(self, key: str, stamp: str) -> bytes:
        """The tombstone of a key."""
        parts = [NULL] * self.shape.width
        parts[self.shape.key_column] = escape(key)
        parts[self.shape.stamp_column] = stamp.encode()
        parts[self.shape.deleted_column] = GONE
        return SEPARATOR.join(parts)

    def is_tombstone(self, line: bytes) -> bool:
        """Whether the line is a tombstone."""
        return line.split(SEPARATOR, self.shape.deleted_column + 1)[self.shape.deleted_column] == GONE

    def stamp_of(self, line: bytes) -> str:
        """The `updated_at` of a line, as text."""
        return line.split(SEPARATOR, self.shape.stamp_column + 1)[self.shape.stamp_column].decode()

    def values(self, line: bytes) -> dict[str, Any]:
        """The record of a line, with `updated_at`. A column that was added later is None.

        Raises: Corrupt, naming the field.
        """
        try:
            values: list[Any] = line.decode().split(_BETWEEN)
            del values[self.shape.deleted_column]
            if BACKSLASH in line or len(values) < len(self._readers):
                values += [_NULL] * (len(self._readers) - len(values))
                for at, read in enumerate(self._readers):
                    values[at] = None if values[at] == _NULL else read(values[at])
            else:
                for at, read in self._converted:
                    values[at] = read(values[at])
        except (ValueError, IndexError, Corrupt):
            raise self._unreadable(line) from None
        return dict(zip(self._names, values))  # noqa: B905  strict= takes 50 % longer; a line of a newer schema has more fields

    def _unreadable(self, line: bytes) -> Corrupt:
        try:
            texts = line.decode().split(_BETWEEN)
            del texts[self.shape.deleted_column]
        except (UnicodeDecodeError, IndexError):
            return Corrupt(f"the line {line[:60]!r} has too few fields, or is not UTF-8")
        for name, read, text in zip(self._names, self._readers, texts, strict=False):
            try:
                if text != _NULL:
                    read(text)
            except (ValueError, Corrupt):
                return Corrupt(f"the field {name!r} of a line cannot be read: {shown(text)}")
        raise AssertionError("every field can be read")

    def lines(self, data: bytes, *, what: str) -> list[bytes]:
        """The lines of an object, checked: `values` can decode each of them.

        Raises: Corrupt, naming the first invalid one.
        """
        lines = lines_of(data, what=what)
        try:
            if not data.isascii():
                data.decode()
        except UnicodeDecodeError as error:
            raise Corrupt(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None
        # strings of lines without a backslash need no check, which would take as long as all the rest
        is_plain = unsafe(data) == (SEPARATOR * (self.shape.width - 1) + END) * len(lines)
        if (self._fast_pattern if is_plain else self._usual_pattern).fullmatch(data) is None:
            for number, line in enumerate(lines, 1):
                if not self._is_line(line):
                    raise Corrupt(f"{what}: line {number} is not a record of this index: {line[:60]!r}")
        return lines

    def _is_line(self, line: bytes) -> bool:
        number = line.count(SEPARATOR) + 1
        if number > FIELDS_MAX or len(line) > LINE_BYTES_MAX:
            return False
        if number > self.shape.width:  # a newer schema, whose additional columns may be of any kind
            *fields, more = line.split(SEPARATOR, self.shape.width)
            if _MORE.fullmatch(more) is None:
                return False
            line = SEPARATOR.join(fields)
        width = max(self.shape.deleted_column + 1, min(number, self.shape.width))
        matches = self._matchers.get(width)
        if matches is None:
            matches = self._matchers[width] = re.compile(SEPARATOR.join(self._parts[:width])).fullmatch
        found = matches(line)
        return found is not None and _all_json(found.groups())


_MORE = re.compile(rb"[^\x00-\x1e\x7f]*+")


def _all_json(fields: Sequence[bytes | None]) -> bool:
    read = READERS["any"]
    try:
        for field in fields:
            if field is not None and field != NULL:
                read(field.decode())
    except ValueError:
        return False
    return True


Columns = Mapping[str, Sequence[Any]]


def by_column(records: Sequence[Mapping[str, Any]]) -> Columns:
    """The values of records by column; None where a record has none."""
    columns = _alike(records)
    if columns is not None:
        return columns
    return {name: [record.get(name) for record in records] for name in dict.fromkeys(chain.from_iterable(records))}


def _alike(records: Sequence[Any]) -> Columns | None:
    """The same, fast, for dicts that all have the same names; else None."""
    if {*map(type, records)} == {dict} and len({*map(len, records)}) == 1:
        with suppress(KeyError):
            return {name: [*map(itemgetter(name), records)] for name in records[0]}
    return None


@dataclasses.dataclass(frozen=True)
class Typed(Generic[R]):
    """A user's type: its columns, and by column the names and defaults of its attributes.

    Without a `kind`, records are dicts. `by_type`: columns that cannot express the whole type (a nested type, an enum,
    a set); their values are converted to JSON types. `validates`: the type itself must accept the record before it is
    put, so that it can be read back. `direct`: the type's constructor takes the columns in order.
    """

    kind: type[R] | None
    fields: tuple[Field, ...] | None
    key: str | None
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)
    by_type: frozenset[str] = frozenset()
    validates: bool = False
    direct: bool = False

    @cached_property
    def _get(self) -> Callable[[Any], tuple[Any, ...]]:
        return _tuple_of(attrgetter, self.attributes.values())

    @cached_property
    def _pick(self) -> Callable[[Any], tuple[Any, ...]]:
        return _tuple_of(itemgetter, self.attributes)

    def values(self, record: R | Mapping[str, Any], *, where: str) -> Mapping[str, Any]:
        """The record's values by column.

        Raises: Invalid unless it is of the type or a mapping, or if the type refuses it.
        """
        values: Mapping[str, Any]
        if type(record) is self.kind or (self.kind is not None and isinstance(record, self.kind)):
            values = dict(zip(self.attributes, self._get(record)))  # noqa: B905  strict= takes 50 % longer
        elif isinstance(record, Mapping):
            left_out = {column: make() for column, make in self.defaults.items() if column not in record}
            values = {**record, **left_out} if left_out else record
        else:
            wanted = f"{an(self.kind.__name__)} or a dict" if self.kind else "a dict"
            raise Invalid(f"{where}: expected {wanted}, got {type(record).__name__}")
        return self._validated(values, where) if self.validates else values

    def columns(self, records: Sequence[R | Mapping[str, Any]]) -> Columns:
        """The values of many records by column; None where a record has none.

        Raises: as `values`, without the record.
        """
        if not self.validates:
            if {*map(type, records)} == {self.kind}:
                return {column: [*map(attrgetter(name), records)] for column, name in self.attributes.items()}
            columns = _alike(records)
            if columns is not None and self.defaults.keys() <= columns.keys():
                return columns
        return by_column([self.values(record, where="") for record in records])

    def _validated(self, values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """The values as JSON types, if the type accepts them."""
        if self.key is not None and self.key in values:
            where = f"{where} ({shown(values[self.key])})"
        turned = {**values}
        for column in [each for each in values if each in self.by_type]:
            try:
                turned[column] = builtins_of(values[column])
            except (TypeError, ValueError, RecursionError) as error:
                raise Invalid(f"{where}: field {column!r}: {error}") from None
        try:
            self._made(turned)
        except msgspec.ValidationError as error:
            said, _, path = str(error).rpartition(" - at `$")
            field = f"field {path.strip('.`')!r}: " if said else ""
            raise Invalid(f"{where}: {field}{said or error}") from None
        return turned

    def record(self, values: dict[str, Any]) -> R:
        """A user's object.   Raises: Corrupt for values that the type refuses; Unsupported for a null that the index
        allows and the type does not.
        """
        if self.kind is None:
            return cast(R, values)
        if self.direct:
            try:
                found = self._pick(values)
                if None not in found:
                    return self.kind(*found)
            except KeyError:
                pass  # the index does not have this column yet: use the type's default
        try:
            return self._made(values)
        except msgspec.ValidationError as error:
            for field in self.fields or ():
                if field.required and values.get(field.name) is None:
                    raise Unsupported(
                        f"a record has no {field.name!r}, and every {self.kind.__name__} has one",
                        hint=f"the column may be null: declare `{field.name}: ... | None`, or read it without a type",
                    ) from None
            raise Corrupt(
                f"a stored record is not {an(self.kind.__name__)}: {error}",
                hint="let the type allow what is stored (`... | None = None`), or read it without a type",
            ) from None

    def _made(self, values: Mapping[str, Any]) -> R:
        assert self.kind is not None
        known = {column: values[column] for column in self.attributes if column in values}
        return records.converted(known, self.kind, str_keys=True)


def _tuple_of(getter: Callable[..., Any], names: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A getter that always returns a tuple, also for one name."""
    found = [*names]
    get = getter(*found)
    return cast(Callable[[Any], tuple[Any, ...]], get if len(found) > 1 else lambda record: (get(record),))

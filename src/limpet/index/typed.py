"""From a user's type to columns, and between its objects and the values of a record."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from inspect import signature
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import inspect

from limpet import records
from limpet.errors import Corrupt, Invalid, Unsupported
from limpet.index.constraints import Constraints, constraints_of
from limpet.index.fields import DELETED, OUR_CONSTRAINTS, Field
from limpet.index.values import KINDS, Kind, plain, shown

R = TypeVar("R")

PACKAGE_BYTES_MAX = 1 << 20


@dataclasses.dataclass(frozen=True)
class Typed(Generic[R]):
    """A user's type: its columns, and by column the names of its attributes and what they are when left out.

    Without a `kind`, records are dicts. `by_type` are the columns that say less than the type does (a nested type, an
    enum, a set): their values are turned into what JSON has. `judges`: the type itself must take the record before it
    is put, so that what was put can be read back. `direct`: the type's constructor takes the columns in their order.
    """

    kind: type[R] | None
    fields: tuple[Field, ...] | None
    key: str | None
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)
    by_type: frozenset[str] = frozenset()
    judges: bool = False
    direct: bool = False

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        return tuple(self.attributes)

    @cached_property
    def _get(self) -> Callable[[Any], tuple[Any, ...]]:
        return _tuple_of(attrgetter, self.attributes.values())

    @cached_property
    def _pick(self) -> Callable[[Any], tuple[Any, ...]]:
        return _tuple_of(itemgetter, self.attributes)

    def values(self, record: R | Mapping[str, Any], *, where: str) -> Mapping[str, Any]:
        """The record's values by column.

        Raises: Invalid for anything but the type or a mapping, and for what the type itself would refuse.
        """
        values: Mapping[str, Any]
        if type(record) is self.kind or (self.kind is not None and isinstance(record, self.kind)):
            values = dict(zip(self._columns, self._get(record)))  # noqa: B905  strict= would take half as long again
        elif isinstance(record, Mapping):
            left_out = {column: make() for column, make in self.defaults.items() if column not in record}
            values = {**record, **left_out} if left_out else record
        else:
            wanted = f"a {self.kind.__name__} or a dict" if self.kind else "a dict"
            raise Invalid(f"{where}: expected {wanted}, got {type(record).__name__}")
        return self._judged(values, where) if self.judges else values

    def columns(self, records: Sequence[R | Mapping[str, Any]], names: Sequence[str]) -> dict[str, Sequence[Any]]:
        """The values of many records by column, in the order of `names`; None where a record has none.

        Raises: as `values`, LookupError for a name that is not among `names`; not saying which record it was.
        """
        alike = self._alike(records)
        rows = [self.values(record, where="") for record in records] if alike is None else []
        if not {*names}.issuperset(chain.from_iterable(rows) if alike is None else alike):
            raise LookupError
        if alike is None:
            return {name: [row.get(name) for row in rows] for name in names}
        nothing = [None] * len(records)
        return {name: alike.get(name, nothing) for name in names}

    def _alike(self, records: Sequence[Any]) -> Mapping[str, Sequence[Any]] | None:
        """The columns of records that are all of the type, or all dicts with the same names; None for any others."""
        kinds = {*map(type, records)}
        if self.judges:
            return None
        if kinds == {self.kind}:
            return {column: [*map(attrgetter(name), records)] for column, name in self.attributes.items()}
        if kinds == {dict} and self.defaults.keys() <= records[0].keys() and len({*map(len, records)}) == 1:
            with suppress(KeyError):
                return {name: [*map(itemgetter(name), records)] for name in records[0]}
        return None

    def _judged(self, values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """The values as JSON has them, if the type takes them back."""
        if self.key is not None and self.key in values:
            where = f"{where} ({shown(values[self.key])})"
        turned = {**values}
        for column in [each for each in values if each in self.by_type]:
            try:
                turned[column] = plain(values[column])
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
        """A user's object.   Raises: Corrupt for values that the type refuses; Unsupported for a null that it does not
        allow, and the index does.
        """
        if self.kind is None:
            return cast(R, values)
        if self.direct:
            try:
                found = self._pick(values)
                if None not in found:
                    return self.kind(*found)
            except KeyError:
                pass  # the index does not have that column yet: the type says what it is then
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
                f"a stored record is not a {self.kind.__name__}: {error}",
                hint="let the type allow what is stored (`... | None = None`), or read it without a type",
            ) from None

    def _made(self, values: Mapping[str, Any]) -> R:
        assert self.kind is not None
        known = {column: values[column] for column in self._columns if column in values}
        return records.converted(known, self.kind, str_keys=True)


def _tuple_of(getter: Callable[..., Any], names: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A getter of several things at once; one alone would not come as a tuple."""
    found = [*names]
    get = getter(*found)
    return cast(Callable[[Any], tuple[Any, ...]], get if len(found) > 1 else lambda record: (get(record),))


def typed(kind: Any, key: str | None) -> Typed[Any]:
    """What `fleet.index(name, kind, key=)` was given: a dataclass, a Struct, a data package, or nothing.

    Raises: Invalid.
    """
    if kind is None:
        return Typed(None, None, key)
    if isinstance(kind, (Mapping, str, os.PathLike)):
        fields, primary = fields_of_package(kind)
        return Typed(None, fields, key or primary)
    try:
        info = inspect.type_info(kind)
    except (TypeError, NameError) as error:
        raise Invalid(f"{kind!r} cannot be read as a record type: {error}") from None
    is_record = isinstance(kind, type) and not getattr(info, "array_like", False)
    if not isinstance(info, (inspect.DataclassType, inspect.StructType)) or not is_record:
        raise Invalid(f"{kind!r} is no record type", hint="use a dataclass, a msgspec Struct or a data package")
    if not info.fields:
        raise Invalid(f"{kind!r} has no fields")
    read = [_field(each) for each in info.fields]
    by_type = frozenset(field.name for field, whole in read if not whole)
    return Typed(
        kind,
        tuple(field for field, _ in read),
        key,
        {each.encode_name: each.name for each in info.fields},
        {each.encode_name: _default(each) for each in info.fields if not each.required},
        by_type,
        judges=bool(by_type) or hasattr(kind, "__post_init__"),
        direct=not by_type and _takes_columns(kind, [each.name for each in info.fields]),
    )


def _takes_columns(kind: Any, names: Sequence[str]) -> bool:
    """Whether `kind(*columns)` makes a record and does nothing else."""
    made = vars(kind).get("__dataclass_params__") if dataclasses.is_dataclass(kind) else None
    if hasattr(kind, "__post_init__") or not (issubclass(kind, msgspec.Struct) or (made is not None and made.init)):
        return False
    taken = signature(kind).parameters.values()
    return all(each.kind is each.POSITIONAL_OR_KEYWORD for each in taken) and [each.name for each in taken] == [*names]


def _default(field: inspect.Field) -> Callable[[], Any]:
    if field.default_factory is not msgspec.NODEFAULT:
        return cast(Callable[[], Any], field.default_factory)
    return lambda: field.default


def _field(field: inspect.Field) -> tuple[Field, bool]:
    """The column of an attribute, and whether it says all that the type does."""
    name, found = field.encode_name, _columns(field.type)
    kinds = {column.kind for column in found if column.kind is not None}
    if len(kinds) != 1:
        what = " or ".join(sorted(kinds)) or "nothing"
        raise Invalid(f"the field {name!r} may be {what}; a column has one type")
    kind = kinds.pop()
    told = [column for column in found if column.kind is not None]
    optional = len(told) < len(found) or kind == "any"
    limits: Constraints | None = None
    if len(told) == 1:
        limits = constraints_of(told[0].limits, kind, field=name)
    return Field(name, kind, required=not optional, constraints=limits), len(told) == 1 and told[0].whole


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """What one member of a type becomes: a kind (None: null), its constraints, and whether they say all of it."""

    kind: Kind | None
    limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    whole: bool = False


_KIND_OF: dict[type[inspect.Type], Kind] = {
    inspect.StrType: "string",
    inspect.UUIDType: "string",
    inspect.DecimalType: "string",
    inspect.BytesType: "string",
    inspect.TimeType: "string",
    inspect.TimeDeltaType: "string",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.DictType: "object",
    inspect.StructType: "object",
    inspect.DataclassType: "object",
    inspect.TypedDictType: "object",
    inspect.ListType: "array",
    inspect.SetType: "array",
    inspect.FrozenSetType: "array",
    inspect.VarTupleType: "array",
    inspect.TupleType: "array",
    inspect.NamedTupleType: "array",
    inspect.AnyType: "any",
}

_LIMITS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
}


def _columns(type_: inspect.Type) -> list[_Column]:
    """What each member of a type needs as a column."""
    match type_:
        case inspect.Metadata(type=inner):
            return _columns(inner)
        case inspect.UnionType(types=types):
            return [column for each in types for column in _columns(each)]
        case inspect.NoneType():
            return [_Column(None)]
        case inspect.LiteralType(values=values) | inspect.EnumType(cls=values):
            return _choices([msgspec.to_builtins(value) for value in values])
        case inspect.DateTimeType(tz=False):
            raise Invalid("a column cannot hold a datetime without a time zone")
        case inspect.StructType(array_like=True):
            return [_Column("array")]
    kind = _KIND_OF.get(type(type_))
    if kind is None:
        raise Invalid(f"a column cannot hold a {type(type_).__name__.removesuffix('Type').lower()}")
    limits = {ours: value for theirs, ours in _LIMITS.items() if (value := getattr(type_, theirs, None)) is not None}
    return [_Column(kind, limits, _is_whole(type_))]


def _choices(values: Sequence[Any]) -> list[_Column]:
    """An enum or a Literal. The type turns the value back into a member, so the column does not say it all."""
    found = [_Column(None)] if None in values else []
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if isinstance(value, int)]
    found += [_Column("string", {"enum": texts})] if texts else []
    found += [_Column("integer", {"enum": numbers})] if numbers else []
    return found


def _is_whole(type_: inspect.Type) -> bool:
    """Whether the kind of a column and its constraints say all that the type does."""
    match type_:
        case inspect.StrType(pattern=pattern):
            return pattern is None
        case inspect.IntType(multiple_of=multiple) | inspect.FloatType(multiple_of=multiple):
            return multiple is None
        case inspect.BoolType() | inspect.DateTimeType() | inspect.DateType() | inspect.AnyType():
            return True
        case inspect.DictType(key_type=key, value_type=inspect.AnyType()):
            return isinstance(key, (inspect.StrType, inspect.AnyType))
        case inspect.ListType(item_type=inspect.AnyType()):
            return True
    return False


def fields_of_package(package: Mapping[str, Any] | str | os.PathLike[str]) -> tuple[tuple[Field, ...], str | None]:
    """The columns and the key that a Frictionless data package or table schema names.   Raises: Invalid."""
    if not isinstance(package, Mapping):
        path = Path(package)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise Invalid(f"cannot read {path}: {error.strerror}") from None
        package = records.parse_json(data, what=str(path), bytes_max=PACKAGE_BYTES_MAX)
    table = _table(package)
    primary = _primary(table)
    fields: list[Field] = []
    for number, each in enumerate(_list(table, "fields"), 1):
        name, kind = each.get("name"), each.get("type", "string")
        if not isinstance(name, str):
            raise Invalid(f"field {number} of the schema has no name")
        if kind not in KINDS:
            raise Invalid(f"the field {name!r} has the type {kind!r}", hint=f"the types are {', '.join(KINDS)}")
        if name != DELETED:
            fields.append(_package_field(name, kind, each, primary))
    return tuple(fields), primary


def _primary(table: Mapping[str, Any]) -> str | None:
    primary = table.get("primaryKey")
    if isinstance(primary, list) and len(primary) == 1:
        primary = primary[0]
    if primary is not None and not isinstance(primary, str):
        raise Invalid("the schema's primaryKey has several fields", hint="an index has one key")
    for name in ("foreignKeys", "uniqueKeys"):
        if table.get(name):
            raise Invalid(f"the schema has {name}, which an index does not enforce", hint="leave them out")
    return primary


def _package_field(name: str, kind: Kind, given: Mapping[str, Any], primary: str | None) -> Field:
    constraints = given.get(OUR_CONSTRAINTS) or given.get("constraints") or {}
    if not isinstance(constraints, Mapping):
        raise Invalid(f"the constraints of the field {name!r} are not an object")
    if kind == "string" and given.get("format", "default") != "default":
        raise Invalid(
            f"the field {name!r} has the format {given['format']!r}, which an index does not enforce",
            hint="leave it out, or use the constraint pattern",
        )
    own = {"required"} if name != primary and constraints.get("unique") else {"required", "unique"}
    rest = {each: value for each, value in constraints.items() if each not in own}
    limits = constraints_of(rest, kind, field=name)
    return Field(name, kind, required=constraints.get("required") is True, constraints=limits)


def _table(package: Any) -> Mapping[str, Any]:
    if isinstance(package, Mapping) and "resources" in package:
        resources = _list(package, "resources")
        if len(resources) != 1:
            raise Invalid("the data package has more than one resource", hint="give the schema of one of them")
        package = resources[0].get("schema")
    if not isinstance(package, Mapping) or "fields" not in package:
        raise Invalid("there is no schema with `fields` in the data package")
    return package


def _list(table: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    found = table.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(each, Mapping) for each in found):
        raise Invalid(f"`{name}` of the data package is not a list of objects")
    return found

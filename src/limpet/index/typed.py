"""From a user's type to columns, and between its objects and the values of a record."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import inspect

from limpet import records
from limpet.errors import Corrupt, Invalid
from limpet.index.schema import DELETED, Field
from limpet.index.values import KINDS, Kind

__all__ = ["Typed", "fields_of_package", "typed"]

R = TypeVar("R")

PACKAGE_BYTES_MAX = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Typed(Generic[R]):
    """A user's type: its columns, and by column the names of its attributes and what they are when left out.

    Without a `kind`, records are dicts.
    """

    kind: type[R] | None
    fields: tuple[Field, ...] | None
    key: str | None
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)

    def values(self, record: R | Mapping[str, Any], *, where: str) -> Mapping[str, Any]:
        """The record's values by column.   Raises: Invalid for anything but the type or a mapping."""
        if isinstance(record, Mapping):
            left_out = {column: make() for column, make in self.defaults.items() if column not in record}
            return {**record, **left_out} if left_out else record
        if self.kind is None or not isinstance(record, self.kind):
            wanted = f"a {self.kind.__name__} or a dict" if self.kind else "a dict"
            raise Invalid(f"{where}: expected {wanted}, got {type(record).__name__}")
        return {column: getattr(record, name) for column, name in self.attributes.items()}

    def record(self, values: dict[str, Any]) -> R:
        """A user's object.   Raises: Corrupt for values that the type refuses."""
        if self.kind is None:
            return cast(R, values)
        known = {column: value for column, value in values.items() if column in self.attributes}
        try:
            return msgspec.convert(known, self.kind)
        except msgspec.ValidationError as error:
            raise Corrupt(
                f"a stored record is not a {self.kind.__name__}: {error}",
                hint="let the type allow what is stored (`... | None = None`), or read it without a type",
            ) from None


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
    if not isinstance(info, (inspect.DataclassType, inspect.StructType)):
        raise Invalid(f"{kind!r} is no record type", hint="use a dataclass, a msgspec Struct or a data package")
    fields = tuple(_field(each) for each in info.fields)
    return Typed(
        kind,
        fields,
        key,
        {each.encode_name: each.name for each in info.fields},
        {each.encode_name: _default(each) for each in info.fields if not each.required},
    )


def _default(field: inspect.Field) -> Callable[[], Any]:
    if field.default_factory is not msgspec.NODEFAULT:
        return cast(Callable[[], Any], field.default_factory)
    return lambda: field.default


def _field(field: inspect.Field) -> Field:
    kinds, optional = _kinds(field.type)
    if len(kinds) != 1:
        raise Invalid(
            f"the field {field.encode_name!r} may be {' or '.join(sorted(kinds)) or 'nothing'}; a column has one type"
        )
    return Field(field.encode_name, kinds.pop(), required=not optional)


_KIND_OF: dict[type[inspect.Type], Kind] = {
    inspect.StrType: "string",
    inspect.UUIDType: "string",
    inspect.DecimalType: "string",
    inspect.BytesType: "string",
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
    inspect.AnyType: "any",
}


def _kinds(type_: inspect.Type) -> tuple[set[Kind], bool]:
    """The kinds of column that a type may need, and whether it allows null."""
    match type_:
        case inspect.Metadata(type=inner):
            return _kinds(inner)
        case inspect.UnionType(types=types):
            each = [_kinds(one) for one in types]
            return set().union(*(kinds for kinds, _ in each)), any(optional for _, optional in each)
        case inspect.NoneType():
            return set(), True
        case inspect.LiteralType(values=values) | inspect.EnumType(cls=values):
            plain = [msgspec.to_builtins(value) for value in values]
            return {"string" if isinstance(value, str) else "integer" for value in plain}, False
        case inspect.AnyType():
            return {"any"}, True
    kind = _KIND_OF.get(type(type_))
    if kind is None:
        raise Invalid(f"a column cannot hold a {type(type_).__name__.removesuffix('Type').lower()}")
    return {kind}, False


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
    fields: list[Field] = []
    for number, each in enumerate(_list(table, "fields"), 1):
        name, kind = each.get("name"), each.get("type", "string")
        if not isinstance(name, str):
            raise Invalid(f"field {number} of the schema has no name")
        if kind not in KINDS:
            raise Invalid(f"the field {name!r} has the type {kind!r}", hint=f"the types are {', '.join(KINDS)}")
        constraints = each.get("constraints") or {}
        if name != DELETED:
            fields.append(Field(name, kind, required=bool(constraints.get("required"))))
    primary = table.get("primaryKey")
    if isinstance(primary, list) and len(primary) == 1:
        primary = primary[0]
    if primary is not None and not isinstance(primary, str):
        raise Invalid("the schema's primaryKey has several fields", hint="an index has one key")
    return tuple(fields), primary


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

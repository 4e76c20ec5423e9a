"""The columns that a program declares by a type or a data package, their constraints, and schema evolution."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import inspect

from limpet.index.codec import (
    DELETED,
    FIELDS_MAX,
    OUR_CONSTRAINTS,
    TIME_KINDS,
    UPDATED_AT,
    Constraints,
    Field,
    Scalar,
    Schema,
    Typed,
    checker,
)
from limpet.index.values import KINDS, READERS, WRITERS, Kind, shown, stamp_time
from limpet.kernel import records
from limpet.kernel.errors import Invalid
from limpet.kernel.wording import an

PACKAGE_BYTES_MAX = 1 << 20


def typed(kind: Any, key: str | None) -> Typed[Any]:
    """The argument of `fleet.index(name, kind, key=)`: a dataclass, a Struct, a data package, or nothing.

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
        raise Invalid(f"{kind!r} is not a record type", hint="use a dataclass, a msgspec Struct or a data package")
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
        validates=bool(by_type) or hasattr(kind, "__post_init__"),
        direct=not by_type and _takes_columns(kind, [each.name for each in info.fields]),
    )


def _takes_columns(kind: Any, names: Sequence[str]) -> bool:
    """Whether `kind(*columns)` creates a record, without side effects."""
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
    """The column of an attribute, and whether it expresses the whole type."""
    name, found = field.encode_name, _columns(field.type)
    kinds = {column.kind for column in found if column.kind is not None}
    if len(kinds) != 1:
        what = " or ".join(sorted(kinds)) or "nothing"
        raise Invalid(f"the field {name!r} may be {what}; a column has one type")
    kind = kinds.pop()
    valued = [column for column in found if column.kind is not None]
    optional = len(valued) < len(found) or kind == "any"
    limits: Constraints | None = None
    if len(valued) == 1:
        limits = constraints_of(valued[0].limits, kind, field=name)
    return Field(name, kind, required=not optional, constraints=limits), len(valued) == 1 and valued[0].whole


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """One member of a type: its kind (None: null), its constraints, and whether they express the whole type."""

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
        raise Invalid(f"a column cannot hold {an(type(type_).__name__.removesuffix('Type').lower())}")
    limits = {ours: value for theirs, ours in _LIMITS.items() if (value := getattr(type_, theirs, None)) is not None}
    return [_Column(kind, limits, _is_whole(type_))]


def _choices(values: Sequence[Any]) -> list[_Column]:
    found = [_Column(None)] if None in values else []
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if isinstance(value, int)]
    found += [_Column("string", {"enum": texts})] if texts else []
    found += [_Column("integer", {"enum": numbers})] if numbers else []
    return found


def _is_whole(type_: inspect.Type) -> bool:
    """Whether the kind of a column and its constraints express the whole type."""
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
    """The columns and the key of a Frictionless data package or table schema.   Raises: Invalid."""
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


_RANGED: tuple[Kind, ...] = ("integer", "number", *TIME_KINDS)
_SIZED: tuple[Kind, ...] = ("string", "object", "array")

_KINDS: Mapping[str, tuple[Kind, ...]] = {
    "enum": ("string", "boolean", *_RANGED),
    "minimum": _RANGED,
    "maximum": _RANGED,
    "exclusiveMinimum": _RANGED,
    "exclusiveMaximum": _RANGED,
    "minLength": _SIZED,
    "maxLength": _SIZED,
    "pattern": ("string",),
}


def constraints_of(given: Mapping[str, Any], kind: Kind, *, field: str) -> Constraints | None:
    """The constraints of a column from a data package or a type, checked and in canonical form; None for none.

    Raises: Invalid for a constraint that is unknown, does not apply to the kind of column, or has an invalid value.
    """
    for name in given:
        if name not in _KINDS:
            raise Invalid(
                f"the field {field!r} has the constraint {name!r}, which an index does not enforce",
                hint=f"leave it out; the constraints are required, {', '.join(_KINDS)}",
            )
        if kind not in _KINDS[name]:
            raise Invalid(f"the field {field!r} is {kind}, which has no constraint {name!r}", hint="leave it out")
    try:
        found = records.converted({name: _canonical(name, value, kind) for name, value in given.items()}, Constraints)
        checker(found, kind)
    except (Invalid, re.error, msgspec.ValidationError) as error:
        raise Invalid(f"the constraints of the field {field!r} are not valid: {error}") from None
    return _bounded(found, _lower(found), _upper(found)) if given else None


def _canonical(name: str, value: Any, kind: Kind) -> Any:
    if name == "enum":
        if not isinstance(value, (list, tuple)) or not value:
            raise Invalid(f"enum is {shown(value)}, not a list of values")
        return [_literal(each, kind) for each in value]
    return value if name in ("minLength", "maxLength", "pattern") else _literal(value, kind)


def _literal(value: Any, kind: Kind) -> Scalar:
    """A value of the kind as a JSON type. A data package may give it as text."""
    if isinstance(value, str) and kind != "string":
        try:
            value = stamp_time(value) if kind == "datetime" else READERS[kind](value)
        except ValueError:
            raise Invalid(f"expected {kind}, got {shown(value)}") from None
    text = WRITERS[kind](value).decode()
    literal: Scalar = text if kind in TIME_KINDS else READERS[kind](text)
    return literal


def loosened(stored: Constraints | None, declared: Constraints | None, *, field: str) -> Constraints | None:
    """The constraints of a column after another declaration, which may relax them.

    Constraints that are not declared stay. A stricter declaration is that of an older program: it changes nothing.
    Raises: Invalid for a new constraint: existing records may violate it.
    """
    if declared is None:
        return stored
    stored = stored or Constraints()
    new = [
        name
        for name in ("enum", "min_length", "max_length", "pattern")
        if getattr(declared, name) is not None and getattr(stored, name) is None
    ]
    new += ["minimum"] if _lower(declared) and not _lower(stored) else []
    new += ["maximum"] if _upper(declared) and not _upper(stored) else []
    if new or (declared.pattern or stored.pattern) != stored.pattern:
        raise Invalid(
            f"the field {field!r} has another constraint {(new or ['pattern'])[0]!r} in the index",
            hint="constraints can be relaxed, never tightened: add a new field instead",
        )
    relaxed = Constraints(
        enum=tuple(dict.fromkeys((*stored.enum, *(declared.enum or ())))) if stored.enum else None,
        min_length=_of_both(min, stored.min_length, declared.min_length),
        max_length=_of_both(max, stored.max_length, declared.max_length),
        pattern=stored.pattern,
    )
    lower = min(filter(None, (_lower(stored), _lower(declared))), default=None)
    upper = max(filter(None, (_upper(stored), _upper(declared))), default=None)
    return _bounded(relaxed, lower, upper)


def _of_both(better: Callable[[Any], Any], stored: int | None, declared: int | None) -> int | None:
    found = [each for each in (stored, declared) if each is not None]
    return better(found) if found else None


_Bound = tuple[Any, bool]


def _lower(limits: Constraints) -> _Bound | None:
    """The tighter lower bound, and whether it is exclusive; the smaller pair allows more."""
    bounds = ((limits.minimum, False), (limits.exclusive_minimum, True))
    return max((bound for bound in bounds if bound[0] is not None), default=None)


def _upper(limits: Constraints) -> _Bound | None:
    """The tighter upper bound, and whether it is inclusive; the greater pair allows more."""
    bounds = ((limits.maximum, True), (limits.exclusive_maximum, False))
    return min((bound for bound in bounds if bound[0] is not None), default=None)


def _bounded(limits: Constraints, lower: _Bound | None, upper: _Bound | None) -> Constraints:
    least, exclusive = lower or (None, False)
    most, inclusive = upper or (None, True)
    return msgspec.structs.replace(
        limits,
        minimum=None if exclusive else least,
        maximum=most if inclusive else None,
        exclusive_minimum=least if exclusive else None,
        exclusive_maximum=None if inclusive else most,
    )


KEY_KINDS = ("string", "integer")


def _check_names(names: Sequence[str]) -> None:
    """Raises: Invalid for too many names, an invalid one, or two that differ only in case."""
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
    """A new schema: the user's columns and Limpet's own.   Raises: Invalid."""
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
    """The schema extended to the user's columns, new ones at the end; None if nothing changes.

    A program may lack the newest columns, and may have stricter constraints. One that allows null in a required column
    changes nothing: a put of null is refused. `nullable` is a separate step, since programs whose type requires a value
    cannot read records without one.
    Raises: Invalid for another key, another type, a new constraint, an apparent rename of a column, or a new required
    column.
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
                f"the index has a required field {field.name!r}, which is missing from the declaration",
                hint="fields are never renamed or removed: keep it, or make another index",
            )
    new = declared.keys() - {field.name for field in schema.fields}
    if missing and new:
        raise Invalid(
            f"the field {missing[0].name!r} of the index is missing from the declaration, and {min(new)!r} is new",
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
            hint="the type of a field cannot change: add a new field instead",
        )
    constraints = loosened(known.constraints, declared.constraints, field=known.name)
    return msgspec.structs.replace(known, constraints=constraints)


def nullable(schema: Schema, name: str) -> Schema | None:
    """The schema with this column nullable; None if it is already.   Raises: Invalid."""
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

"""Schemas, partition specs and sort orders as the JSON that a client sent, checked by the rules of Iceberg's version 3.

PyIceberg's models lack types and fields of that version (variant, transforms of several columns), and rewrite others.
Nothing is converted here: what was checked is passed on as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Invalid
from limpet.kernel.wording import an

Json = dict[str, Any]

UNSET_ID = -1
"""In a request: the schema, spec or order that was added last. As the id of a partition field: not assigned."""
VERSION = 3
FIELD_ID_MAX = 2_147_483_447
"""Higher ids are reserved for metadata columns, such as `_row_id`."""
FIRST_PARTITION_ID = 1000
DEPTH_MAX = 64
_MANY = 200_000

_Id = Annotated[int, msgspec.Meta(ge=0, le=FIELD_ID_MAX)]
_AnyId = Annotated[int, msgspec.Meta(ge=UNSET_ID, le=(1 << 31) - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1 << 16)]
_Text = Annotated[str, msgspec.Meta(max_length=1 << 20)]
_Ids = Annotated[list[_Id], msgspec.Meta(max_length=_MANY)]
_Objects = Annotated[list[Any], msgspec.Meta(max_length=_MANY)]


class KebabFields(msgspec.Struct, rename="kebab", kw_only=True):
    """Fields that the specification of version 3 defines. Others are passed on too; URLs in them are checked."""


class SchemaJson(KebabFields):
    """A schema. Its fields are checked one by one (`columns_of`)."""

    fields: _Objects
    type: Literal["struct"] = "struct"
    schema_id: _AnyId = 0
    identifier_field_ids: _Ids | None = None


class FieldJson(KebabFields):
    """A column, or a field of a struct. The defaults are JSON values of its type (`_check_default`)."""

    id: _Id
    name: _Name
    type: Any
    required: bool
    doc: _Text | None = None
    initial_default: Any = None
    write_default: Any = None


class _ListJson(KebabFields):
    element_id: _Id
    element: Any
    element_required: bool


class _MapJson(KebabFields):
    key_id: _Id
    key: Any
    value_id: _Id
    value: Any
    value_required: bool


class PartitionFieldJson(KebabFields):
    """A field of a partition spec, with one source column or several."""

    name: _Name
    transform: _Name
    source_id: _Id | None = None
    source_ids: Annotated[list[_Id], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    field_id: _AnyId | None = None


class SpecJson(KebabFields):
    """A partition spec."""

    fields: Annotated[list[PartitionFieldJson], msgspec.Meta(max_length=_MANY)]
    spec_id: _AnyId = 0


class SortFieldJson(KebabFields):
    """A field of a sort order, with one source column or several."""

    transform: _Name
    direction: Literal["asc", "desc"] = "asc"
    null_order: Literal["nulls-first", "nulls-last"] | None = None
    source_id: _Id | None = None
    source_ids: Annotated[list[_Id], msgspec.Meta(min_length=1, max_length=1000)] | None = None


class OrderJson(KebabFields):
    """A sort order."""

    fields: Annotated[list[SortFieldJson], msgspec.Meta(max_length=_MANY)]
    order_id: _AnyId = 0


@lru_cache(maxsize=64)
def kebab_names(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The names of a struct's fields in JSON, with its tag."""
    info = msgspec.structs.fields(kind)
    return frozenset(field.encode_name for field in info) | {str(kind.__struct_config__.tag_field)}


# ---- schemas ----


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A field at any depth of a schema. `type`: the JSON of its type; `in_struct`: no list or map is above it."""

    id: int
    name: str
    type: Any
    required: bool
    in_struct: bool

    @property
    def kind(self) -> str:
        """The name of its type without parameters: `decimal`, `struct`."""
        return kind_of(self.type)


_LATER = frozenset(("timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography"))
_PRIMITIVES = frozenset(
    ("boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "string", "uuid",
     "binary", "timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography")
)  # fmt: skip
NO_DEFAULT = frozenset(("unknown", "variant", "geometry", "geography"))
_WITH_PARAMETERS = re.compile(
    r"""(?P<decimal>decimal\(\s*(?P<precision>\d{1,2})\s*,\s*(?P<scale>\d{1,2})\s*\))
    | (?P<fixed>fixed\[\s*(?P<length>\d{1,9})\s*\])
    | (?P<geometry>geometry\([^()]{1,200}\))
    | (?P<geography>geography\([^(),]{1,200}(?:,\s*['"]?(?:spherical|vincenty|thomas|andoyer|karney)['"]?\s*)?\))
    """,
    re.VERBOSE,
)


def kind_of(type_: Any) -> str:
    """The name of a type without parameters.   Raises: Invalid for a type that does not exist."""
    if isinstance(type_, Mapping):
        found = type_.get("type")
        if found in ("struct", "list", "map"):
            return str(found)
        raise Invalid(f"Invalid schema: there is no type {found!r:.60}")
    if not isinstance(type_, str):
        raise Invalid(f"Invalid schema: {type_!r:.60} is not a type")
    if type_ in _PRIMITIVES:
        return type_
    match = _WITH_PARAMETERS.fullmatch(type_) if len(type_) < 512 else None
    if match is None:
        raise Invalid(f"Invalid schema: there is no type {type_!r:.60}")
    kind = next(name for name in ("decimal", "fixed", "geometry", "geography") if match[name] is not None)
    if kind == "decimal" and not (0 < int(match["precision"]) <= 38 and int(match["scale"]) <= 38):
        raise Invalid(f"Invalid schema: {type_}: a decimal has a precision of 1 to 38")
    return kind


def columns_of(schema: Mapping[str, Any], version: int = VERSION) -> dict[int, SchemaColumn]:
    """The fields of a schema by id.

    Raises: Invalid for a schema that is not valid, or has types or default values of a later format version.
    """
    checked = converted(schema, SchemaJson, "the schema")
    found: dict[int, SchemaColumn] = {}
    for column, defaults in _walk(schema, "", True, 0):
        if column.id in found:
            raise Invalid(f"Invalid schema: multiple entries for field id {column.id}")
        found[column.id] = column
        kind = column.kind
        if version < VERSION and kind in _LATER:
            raise Invalid(
                f"Invalid schema for v{version}: Invalid type for {column.name}: {kind} is not supported until v3"
            )
        if kind == "unknown" and column.required:
            raise Invalid(f"Invalid schema: the column {column.name!r} of type unknown must be optional")
        for what, value in defaults.items():
            if value is None:
                continue
            if version < VERSION:
                raise Invalid(
                    f"Invalid schema for v{version}: Invalid {what} default for {column.name}: non-null default "
                    f"({value!r:.40}) is not supported until v3"
                )
            _check_default(column.type, value, f"the {what} default of {column.name!r}", 0)
    for id_ in checked.identifier_field_ids or ():
        _check_identifier(id_, found)
    return found


def _check_identifier(id_: int, columns: Mapping[int, SchemaColumn]) -> None:
    column = columns.get(id_)
    if column is None:
        raise Invalid(f"Cannot add fieldId {id_} as an identifier field: field does not exist")
    if not column.in_struct or column.kind in ("struct", "list", "map", "float", "double", *NO_DEFAULT):
        raise Invalid(f"Cannot add field {column.name} as an identifier field: its type cannot identify a row")
    if not column.required:
        raise Invalid(f"Cannot add field {column.name} as an identifier field: not a required field")


def _walk(struct: Mapping[str, Any], path: str, in_struct: bool, depth: int) -> Iterator[tuple[SchemaColumn, Json]]:
    names: set[str] = set()
    for given in struct.get("fields") or ():
        field = converted(given, FieldJson, "the schema")
        if field.name in names:
            raise Invalid(f"Invalid schema: multiple fields for name {path}{field.name}")
        names.add(field.name)
        column = SchemaColumn(field.id, f"{path}{field.name}", field.type, field.required, in_struct)
        yield column, {"initial": field.initial_default, "write": field.write_default}
        yield from _inside(column, depth + 1)


def _inside(column: SchemaColumn, depth: int) -> Iterator[tuple[SchemaColumn, Json]]:
    if depth > DEPTH_MAX:
        raise Invalid(f"Invalid schema: it is nested more than {DEPTH_MAX} levels deep")
    type_, kind = column.type, column.kind
    parts: list[SchemaColumn] = []
    if kind == "struct":
        if not isinstance(type_.get("fields"), list | tuple):
            raise Invalid(f"Invalid schema: the struct {column.name!r} has no fields")
        yield from _walk(type_, f"{column.name}.", column.in_struct, depth)
    elif kind == "list":
        items = converted(type_, _ListJson, "the schema")
        parts = [SchemaColumn(items.element_id, f"{column.name}.element", items.element, items.element_required, False)]
    elif kind == "map":
        pairs = converted(type_, _MapJson, "the schema")
        parts = [
            SchemaColumn(pairs.key_id, f"{column.name}.key", pairs.key, True, False),
            SchemaColumn(pairs.value_id, f"{column.name}.value", pairs.value, pairs.value_required, False),
        ]
    for part in parts:
        yield part, {}
        yield from _inside(part, depth + 1)


_CLOCK = r"\d{2}:\d{2}:\d{2}(?:\.\d{1,%d})?"
_DAY = r"[+-]?\d{4,9}-\d{2}-\d{2}"
_ZONE = r"(?:[+-]\d{2}:\d{2}|Z)"
_DEFAULTS: Mapping[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: _is_whole(value, 31),
    "long": lambda value: _is_whole(value, 63),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "double": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "decimal": lambda value: _is_text(value, r"-?\d{1,38}(?:\.\d{1,38})?(?:[eE][+-]?\d{1,3})?"),
    "date": lambda value: _is_text(value, _DAY),
    "time": lambda value: _is_text(value, _CLOCK % 6),
    "timestamp": lambda value: _is_text(value, f"{_DAY}T{_CLOCK % 6}"),
    "timestamptz": lambda value: _is_text(value, f"{_DAY}T{_CLOCK % 6}{_ZONE}"),
    "timestamp_ns": lambda value: _is_text(value, f"{_DAY}T{_CLOCK % 9}"),
    "timestamptz_ns": lambda value: _is_text(value, f"{_DAY}T{_CLOCK % 9}{_ZONE}"),
    "string": lambda value: isinstance(value, str),
    "uuid": lambda value: _is_text(value, "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "fixed": lambda value: _is_text(value, "(?:[0-9a-fA-F]{2})*"),
    "binary": lambda value: _is_text(value, "(?:[0-9a-fA-F]{2})*"),
    "struct": lambda value: isinstance(value, Mapping) and not value,  # the defaults are those of its fields
}
"""By type, whether a JSON value is one of that type (the specification's appendix D)."""


def _check_default(type_: Any, value: Any, what: str, depth: int) -> None:
    kind = kind_of(type_)
    if kind in NO_DEFAULT:
        raise Invalid(f"{what} must be null: its type is {kind}")
    if kind == "list" and isinstance(value, list) and depth < DEPTH_MAX:
        for each in value:
            if each is not None:
                _check_default(type_.get("element"), each, what, depth + 1)
        return
    if kind == "map" and isinstance(value, Mapping) and depth < DEPTH_MAX:
        keys, values = value.get("keys"), value.get("values")
        if isinstance(keys, list) and isinstance(values, list) and len(keys) == len(values):
            for inner, part in (("key", keys), ("value", values)):
                for each in part:
                    if each is not None:
                        _check_default(type_.get(inner), each, what, depth + 1)
            return
    if kind not in _DEFAULTS or not _DEFAULTS[kind](value):
        raise Invalid(f"{what} is {value!r:.40}, which is not {an(type_ if isinstance(type_, str) else str(kind))}")


def _is_whole(value: Any, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits


def _is_text(value: Any, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def with_new_ids(schema: Mapping[str, Any], version: int = VERSION) -> tuple[Json, dict[int, int]]:
    """The schema with ids from 1, as the reference implementation assigns them to a new table, and the new id by old
    one. All fields of a struct come before those inside them.   Raises: Invalid."""
    columns_of(schema, version)
    ids: dict[int, int] = {}
    fields = _numbered_struct(schema["fields"], ids)
    new = {**schema, "type": "struct", "schema-id": 0, "fields": fields}
    if schema.get("identifier-field-ids") is not None:
        new["identifier-field-ids"] = [ids[id_] for id_ in schema["identifier-field-ids"]]
    return new, ids


def _numbered_struct(fields: Sequence[Mapping[str, Any]], ids: dict[int, int]) -> list[Json]:
    new = [{**field, "id": _numbered_id(field["id"], ids)} for field in fields]
    return [{**field, "type": _numbered_type(field["type"], ids)} for field in new]


def _numbered_type(type_: Any, ids: dict[int, int]) -> Any:
    if isinstance(type_, str):
        return type_
    if type_["type"] == "struct":
        return {**type_, "fields": _numbered_struct(type_["fields"], ids)}
    parts = ("element",) if type_["type"] == "list" else ("key", "value")
    new = {**type_, **{f"{part}-id": _numbered_id(type_[f"{part}-id"], ids) for part in parts}}
    return {**new, **{part: _numbered_type(new[part], ids) for part in parts}}


def _numbered_id(id_: int, ids: dict[int, int]) -> int:
    ids[id_] = len(ids) + 1
    return ids[id_]


# ---- partition specs and sort orders ----

_TIMES = frozenset(("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"))
_TRANSFORMS: Mapping[str, frozenset[str]] = {
    "identity": _PRIMITIVES - {"variant", "geometry", "geography"} | {"decimal", "fixed"},
    "year": _TIMES | {"date"},
    "month": _TIMES | {"date"},
    "day": _TIMES | {"date"},
    "hour": _TIMES,
    "bucket": _TIMES | {"int", "long", "decimal", "date", "time", "string", "uuid", "fixed", "binary"},
    "truncate": frozenset(("int", "long", "decimal", "string", "binary")),
}
"""By transform, the types of its source column. Others are unknown: readers ignore them."""
_TRANSFORM = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,99})(?:\[\s*(\d{1,9})\s*\])?")


def check_spec(spec: Any, version: int = VERSION) -> None:
    """Check a partition spec by itself.   Raises: Invalid."""
    checked = converted(spec, SpecJson, "the partition spec")
    _check_unique([field.name for field in checked.fields], "partition field name")
    _check_unique([field.field_id for field in checked.fields if _is_set(field.field_id)], "partition field id")
    for field in checked.fields:
        _check_sources(field, f"the partition field {field.name!r}", version)


def check_order(order: Any, version: int = VERSION) -> None:
    """Check a sort order by itself.   Raises: Invalid."""
    checked = converted(order, OrderJson, "the sort order")
    for field in checked.fields:
        _check_sources(field, "a field of the sort order", version)


def _check_sources(field: PartitionFieldJson | SortFieldJson, what: str, version: int) -> None:
    if (field.source_id is None) == (field.source_ids is None):
        raise Invalid(f"{what} needs a source-id, or source-ids of a transform of several columns")
    if field.source_ids is not None and version < VERSION:
        raise Invalid(f"{what} has source-ids: transforms of several columns are not supported until v3")
    if _TRANSFORM.fullmatch(field.transform) is None:
        raise Invalid(f"{what}: {field.transform!r:.60} is not a transform")


def check_bound(fields: Iterable[Mapping[str, Any]], columns: Mapping[int, SchemaColumn], what: str) -> None:
    """Check that the fields of a spec or order fit the columns of a schema.   Raises: Invalid."""
    for field in fields:
        match = _TRANSFORM.fullmatch(field["transform"])
        transform = match[1] if match else ""
        for id_ in _sources(field) if transform != "void" else ():
            column = columns.get(id_)
            if column is None:
                raise Invalid(f"Cannot find source column for {what}: {field.get('name', id_)}")
            if not column.in_struct or column.kind in ("struct", "list", "map"):
                raise Invalid(f"Cannot use {column.name} in a {what}: it is not a primitive column")
            if transform in _TRANSFORMS and column.kind not in _TRANSFORMS[transform]:
                raise Invalid(
                    f"Invalid source field {column.name} with type {column.kind} for transform: {field['transform']}"
                )


def _sources(field: Mapping[str, Any]) -> list[int]:
    return [field["source-id"]] if field.get("source-id") is not None else [*field["source-ids"]]


def with_sources(field: Mapping[str, Any], ids: Mapping[int, int], what: str) -> Json:
    """A field of a spec or order, with the new ids of its source columns.   Raises: Invalid."""
    missing = [id_ for id_ in _sources(field) if id_ not in ids]
    if missing:
        raise Invalid(f"Cannot find source column for {what}: {field.get('name', missing[0])}")
    new = [ids[id_] for id_ in _sources(field)]
    return {**field, "source-id": new[0]} if field.get("source-id") is not None else {**field, "source-ids": new}


def with_field_ids(spec: Mapping[str, Any], older: Iterable[Mapping[str, Any]], last: int) -> Json:
    """The spec with ids for fields without one: the id of the same field in an older spec, else a new one."""
    known = {_meaning(field): field["field-id"] for field in reversed([*older])}
    last = max([last, FIRST_PARTITION_ID - 1, *known.values()])
    last = max([last, *(field["field-id"] for field in spec["fields"] if _is_set(field.get("field-id")))])
    fields: list[Json] = []
    for field in spec["fields"]:
        if not _is_set(field.get("field-id")):
            last += _meaning(field) not in known
            field = {**field, "field-id": known.get(_meaning(field), last)}
        fields.append(dict(field))
    return {**spec, "fields": fields}


def with_null_order(order: Mapping[str, Any]) -> Json:
    """The order with the direction and the default null order of its fields."""
    fields = []
    for field in order["fields"]:
        direction = field.get("direction", "asc")
        nulls = field.get("null-order") or ("nulls-first" if direction == "asc" else "nulls-last")
        fields.append({**field, "direction": direction, "null-order": nulls})
    return {**order, "fields": fields}


def _meaning(field: Mapping[str, Any]) -> tuple[Any, ...]:
    return *_sources(field), field["transform"], field["name"]


def _is_set(id_: int | None) -> bool:
    return id_ is not None and id_ != UNSET_ID


def _check_unique(values: Sequence[Any], what: str) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise Invalid(f"the {what} {value!r:.60} is used twice")
        seen.add(value)


def converted(value: Any, kind: type[records.T], what: str) -> records.T:
    """A checked struct of what a client sent.   Raises: Invalid."""
    try:
        return records.converted(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Invalid(f"{what} is not valid: {str(error)[:300]}") from None

"""Every stored byte is hostile: each stored struct has bounds on every number, text, collection and time."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import inspect

import limpet
from limpet.kernel import records
from limpet.kernel.errors import Corrupt
from limpet.kernel.records import Count, Instant, Name, Seconds

NOT_STORED = {
    "limpet.catalog.commit": "a client's commit, bounded by the service and by `check_size`",
    "limpet.kernel.cell.Lost": "an outcome in memory",
    "limpet.kernel.cell.Replaced": "an outcome in memory",
    "limpet.kernel.cell.Unclear": "an outcome in memory",
    "limpet.kernel.cell.Versioned": "a value that was read and checked",
    "limpet.kernel.cell.Won": "an outcome in memory",
    "limpet.kernel.cell.decide.Write": "an attempt in memory",
    "limpet.queue.decide.Progress": "what a claim has decided, in memory",
    "limpet.queue.entry.Content": "tasks that were read and checked",
    "limpet.queue.pages.Candidate": "a row of a listing",
    "limpet.service.rest": "messages, bounded by the service",
    "limpet.service.rpc": "messages, bounded by the service",
    "limpet.kernel.store.api": "arguments and results of a store's calls",
    "limpet.kernel.store.outcome.Resolution": "an outcome in memory",
    "limpet.kernel.doctor.Check": "figures that `doctor` prints",
    "limpet.kernel.doctor.Latency": "figures that `doctor` prints",
    "limpet.kernel.doctor.Report": "figures that `doctor` prints",
    "limpet.kernel.rights": "figures that `doctor --role` prints",
    "limpet.worker.protocol": "lines between a worker and its children",
}
"""Modules and structs that never come from a store, and what they are instead."""
FREE = {
    "limpet.catalog.iceberg.schemas.FieldJson.initial_default": "`_check_default` looks at it, by its type",
    "limpet.catalog.iceberg.schemas.FieldJson.type": "`columns_of` looks at it, to a limited depth",
    "limpet.catalog.iceberg.schemas.FieldJson.write_default": "`_check_default` looks at it, by its type",
    "limpet.catalog.iceberg.schemas.SchemaJson.fields[]": "`columns_of` converts each to a `FieldJson`",
    "limpet.catalog.iceberg.schemas._ListJson.element": "a type, as that of a field",
    "limpet.catalog.iceberg.schemas._MapJson.key": "a type, as that of a field",
    "limpet.catalog.iceberg.schemas._MapJson.value": "a type, as that of a field",
    "limpet.catalog.iceberg.plan._AskedFields.filter": "an expression of at most 16 KiB, which PyIceberg parses",
    "limpet.catalog.iceberg.plan._TaskFields.filter": "an expression of at most 16 KiB, which PyIceberg parses",
    "limpet.catalog.records.Change.value": "an entry of the state; `unusable` looks at it before it is published",
    "limpet.catalog.records.Row.result": "what a client was told, handed out again as it is",
    "limpet.catalog.records.RememberedAnswer.result": "what a client was told, handed out again as it is",
    "limpet.kernel.cell._PlainBody.value": "a user's own JSON value, within the bounds of a record",
    "limpet.events.Event.fields{}": "facts about a run, kept as JSON text and never computed with",
}
"""Fields that hold any JSON value, and why that is safe."""


def stored() -> list[type[msgspec.Struct]]:
    """Every struct of the package that is read from a store."""
    found: set[type[msgspec.Struct]] = set()
    for module in pkgutil.walk_packages(limpet.__path__, "limpet."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.name:
                found.add(value)
    return sorted((kind for kind in found if not {kind.__module__, _path(kind)} & {*NOT_STORED}), key=_path)


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def unbounded(info: inspect.Type, where: str, inside: tuple[type, ...] = ()) -> Iterator[str]:
    """The places in a type that accept a value of any size."""
    if where in FREE:
        return
    match info:
        case inspect.IntType(ge=ge, gt=gt, le=le, lt=lt) | inspect.FloatType(ge=ge, gt=gt, le=le, lt=lt):
            if (ge is None and gt is None) or (le is None and lt is None):
                yield f"{where}: a number without bounds"
        case inspect.StrType(max_length=None) | inspect.BytesType(max_length=None):
            yield f"{where}: a text without a greatest length"
        case inspect.DateTimeType(tz=tz) if tz is not True:
            yield f"{where}: a time that may lack its zone"
        case inspect.AnyType():
            yield f"{where}: anything at all"
        case (
            inspect.ListType(item_type=item, max_length=longest)
            | inspect.VarTupleType(item_type=item, max_length=longest)
        ):
            if longest is None:
                yield f"{where}: a list without a greatest length"
            yield from unbounded(item, f"{where}[]", inside)
        case inspect.TupleType(item_types=items):
            for item in items:
                yield from unbounded(item, f"{where}[]", inside)
        case inspect.DictType(key_type=key, value_type=value, max_length=longest):
            if longest is None:
                yield f"{where}: a mapping without a greatest length"
            yield from unbounded(key, f"{where} (key)", inside)
            yield from unbounded(value, f"{where}{{}}", inside)
        case inspect.UnionType(types=types):
            for each in types:
                yield from unbounded(each, where, inside)
        case inspect.StructType(cls=cls, fields=fields) if cls not in inside:
            for field in fields:
                yield from unbounded(field.type, f"{_path(cls)}.{field.name}", (*inside, cls))


@pytest.mark.parametrize("kind", stored(), ids=_path)
def test_every_field_of_a_stored_struct_is_bounded(kind: type[msgspec.Struct]) -> None:
    assert [*unbounded(inspect.type_info(kind), _path(kind))] == []


class Inner(msgspec.Struct):
    at: Instant


class Outer(msgspec.Struct):
    n: Count = 0
    wait_s: Seconds = 0.0
    name: Name = ""
    at: Instant | None = None
    inner: Annotated[list[Inner], msgspec.Meta(max_length=3)] = []
    by_name: Annotated[dict[Name, Inner | None], msgspec.Meta(max_length=3)] = {}


class Loose(msgspec.Struct):
    n: int
    x: float
    text: str
    at: datetime
    items: list[Count]
    names: dict[Name, Count]
    free: Any


def test_the_walk_sees_each_kind_of_field_without_a_bound() -> None:
    assert [*unbounded(inspect.type_info(Outer), "Outer")] == []
    assert len([*unbounded(inspect.type_info(Loose), "Loose")]) == 7


@pytest.mark.parametrize(
    "text",
    [
        '"n": -1', '"n": 9007199254740992', '"n": ' + "9" * 4301, '"wait_s": 1e300', '"wait_s": 1e999',
        '"wait_s": -0.5',
        '"name": "' + "x" * 1025 + '"', '"at": "2026-01-01T00:00:00"', '"at": "0001-01-01T00:00:00+23:59"',
        '"at": "9999-12-31T23:59:59-23:00"', '"inner": [{"at": "9999-12-31T23:59:59Z"}]',
        '"by_name": {"a": null, "b": {"at": "1969-12-31T23:59:59Z"}}', '"inner": [1]',
        '"x": ' + "[" * 100_000,
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_what_no_limpet_wrote_is_corrupt_and_nothing_else(text: str) -> None:
    with pytest.raises(Corrupt, match=r"^a\.json is not a valid Outer: .") as caught:
        records.decode(f"{{{text}}}".encode(), Outer, what="a.json")
    assert str(caught.value).isprintable()


def test_ordinary_times_pass_in_any_zone() -> None:
    text = b'{"at": "2026-11-17T08:00:00+05:30", "inner": [{"at": "2026-11-17T08:00:00Z"}]}'
    value = records.decode(text, Outer, what="a.json")
    assert value.at == datetime(2026, 11, 17, 2, 30, tzinfo=UTC)


def test_the_text_of_an_error_is_printable_and_short() -> None:
    with pytest.raises(Corrupt) as caught:
        records.decode(b'{"by_name": {"\\u001b[31m' + b"x" * 5000 + b'": 1}}', Outer, what="a.json")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400

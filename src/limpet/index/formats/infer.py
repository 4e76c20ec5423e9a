"""Guessing columns from the first records of a file: a string, unless every value is something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from limpet.errors import Invalid
from limpet.index.fields import UPDATED_AT, Field
from limpet.index.formats.convert import from_text
from limpet.index.values import INTEGER_END, Kind

# a zero in front is part of a code or a telephone number, which an integer would lose
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")


def _is_integer(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and -INTEGER_END <= int(text) < INTEGER_END


def _is_number(text: str) -> bool:
    # a whole number that no float holds exactly would be refused later
    return _NUMBER.fullmatch(text) is not None and (not text.lstrip("-").isdigit() or abs(int(text)) <= 1 << 53)


def _is_boolean(text: str) -> bool:
    return text.lower() in ("true", "false")


def _reads_as(kind: Kind) -> Callable[[str], bool]:
    read = from_text(kind)

    def reads(text: str) -> bool:
        try:
            return read(text) is not None
        except Invalid:
            return False

    return reads


_TESTS: Sequence[tuple[Kind, Callable[[str], bool]]] = (
    ("integer", _is_integer),
    ("number", _is_number),
    ("boolean", _is_boolean),
    ("date", _reads_as("date")),
    ("datetime", _reads_as("datetime")),
)


def _kind_of_text(texts: Iterable[str], tests: Sequence[tuple[Kind, Callable[[str], bool]]] = _TESTS) -> Kind:
    some = {text.strip() for text in texts}
    some.discard("")
    for kind, test in tests:
        if some and all(map(test, some)):
            return kind
    return "string"


def fields_of_text(names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> tuple[Field, ...]:
    """The columns behind rows of text. A row of the wrong width is left to the import to complain about."""
    whole = [row for row in rows if len(row) == len(names)]
    return tuple(
        _field(name, _kind_of_text(cell for row in whole if (cell := row[at]) is not None))
        for at, name in enumerate(names)
    )


def fields_of_json(rows: Sequence[Mapping[str, Any]]) -> tuple[Field, ...]:
    """The columns behind JSON objects, in the order in which they are first seen."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return tuple(
        _field(name, _kind_of_json([each for each in some if each is not None])) for name, some in columns.items()
    )


def _kind_of_json(values: Sequence[Any]) -> Kind:
    kinds = {type(value) for value in values}
    if kinds <= {str}:
        return _kind_of_text(values, _TESTS[-2:])
    if kinds == {int}:
        return "integer"
    if kinds <= {int, float}:
        return "number"
    by_type: dict[type, Kind] = {bool: "boolean", dict: "object", list: "array"}
    return by_type.get(kinds.pop(), "any") if len(kinds) == 1 else "any"


def _field(name: str, kind: Kind) -> Field:
    return Field(name, "datetime" if name == UPDATED_AT else kind)

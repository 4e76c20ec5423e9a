"""The types of arguments, results and step values: an annotation, and how its values are stored and built back.

All three are stored as plain JSON, and built by the annotation of the code that reads them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from limpet.kernel import records
from limpet.kernel.models import built_part, model_of
from limpet.queue.api import Result

SUPPORTED = "use plain values, dataclasses, msgspec structs, pydantic models, datetimes, enums, UUIDs or Decimals"
TAGGED = "use one type with a field that tells its kinds apart, or msgspec structs with tag=True"
UNTYPED = (inspect.Parameter.empty, typing.NoReturn, typing.Never, object)


class UnsupportedType(TypeError):
    """Values of this annotation cannot be stored, or cannot be built back. `hint` says what to write instead."""

    @property
    def hint(self) -> str:
        """What to write instead."""
        return TAGGED if str(self).startswith("Type unions") else SUPPORTED


@dataclass(frozen=True, slots=True)
class ValueType:
    """An annotation. `build` makes a value of it from JSON's types; None if every value stays as it is.

    `build` raises msgspec.ValidationError. It is a call of C, so that a plain argument costs no call of Python.
    """

    kind: Any = Any
    build: Callable[[Any], Any] | None = None
    takes_none: bool = True

    def stored(self, value: Any) -> Any:
        """The value as JSON's types.   Raises: ValueError if it does not fit; TypeError, RecursionError."""
        plain = records.builtins(value)
        if self.build is not None:
            self.build(plain)
        return plain

    def built(self, value: Any) -> Any:
        """A value from JSON's types.   Raises: msgspec.ValidationError."""
        return value if self.build is None else self.build(value)

    def built_result(self, result: Result[Any]) -> Result[Any]:
        """The result with its value built. One that does not fit stays as it is stored, and `error` says why."""
        if self.build is None or not result.ok:
            return result
        try:
            return replace(result, value=self.build(result.value), error=None)
        except msgspec.ValidationError as error:
            return replace(result, error=f"the result does not fit {shown_type(self.kind)}: {error}")


ANYTHING = ValueType()
"""What has no annotation, or one that only type checkers can read."""


def value_type(note: Any, function: Callable[..., Any]) -> ValueType:
    """The type that an annotation of a function names.

    Raises: UnsupportedType; NameError for a name that is not defined, or not yet.
    """
    names = getattr(inspect.unwrap(function), "__globals__", {})
    if note in UNTYPED:
        return ANYTHING
    try:
        kind = typing.get_type_hints(_Note(note), names, include_extras=True)["it"]
        if typing.get_origin(kind) in (Awaitable, Coroutine):
            kind = typing.get_args(kind)[-1]
        if kind is Any or kind in UNTYPED:
            return ANYTHING
        described = msgspec.inspect.type_info(kind)
        records.decoder(kind)  # msgspec analyses the type once, under a mutex
    except (AttributeError, SyntaxError) as error:  # of an annotation that is a text
        raise NameError(str(error)) from None
    except TypeError as error:
        raise UnsupportedType(str(error).partition(" - type ")[0]) from None
    if other := next(_unsupported(described, set()), None):
        raise UnsupportedType(f"JSON cannot hold a value of type {shown_type(other)}")
    build = partial(msgspec.convert, type=kind, str_keys=True, dec_hook=built_part)
    return ValueType(kind, build, _takes_none(described))


def return_type(function: Callable[..., Any]) -> ValueType:
    """The type of what a function returns, or of what its coroutine does.   Raises: as `value_type`."""
    notes = getattr(inspect.unwrap(function), "__annotations__", {})
    return value_type(notes.get("return", inspect.Parameter.empty), function)


def shown_type(kind: Any) -> str:
    """A type as it stands in the source."""
    return inspect.formatannotation(kind)


class _Note:
    """Holds one annotation for `typing.get_type_hints`, so that one that cannot be read does not affect the others."""

    def __init__(self, note: Any) -> None:
        self.__annotations__ = {"it": note}


def _unsupported(part: Any, seen: set[int]) -> Iterator[Any]:
    """The classes in a described type that JSON cannot hold."""
    if isinstance(part, msgspec.inspect.CustomType):
        if part.cls is not object and model_of(part.cls) is None:
            yield part.cls
    elif isinstance(part, tuple):
        for item in part:
            yield from _unsupported(item, seen)
    elif isinstance(part, msgspec.Struct) and id(part) not in seen:
        seen.add(id(part))
        for name in part.__struct_fields__:
            yield from _unsupported(getattr(part, name), seen)


def _takes_none(part: msgspec.inspect.Type) -> bool:
    match part:
        case msgspec.inspect.UnionType(types=parts):
            return any(map(_takes_none, parts))
        case msgspec.inspect.LiteralType(values=values):
            return None in values
    return isinstance(part, msgspec.inspect.NoneType | msgspec.inspect.AnyType)

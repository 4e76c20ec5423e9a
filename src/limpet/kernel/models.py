"""Classes that write and read themselves: pydantic's models, and any with `model_dump` and `model_validate`.

`records` gives the two hooks to msgspec, which calls them for what it does not know. Nothing is imported for that: the
user's class brings its package along.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import msgspec

REASONS_MAX = 3
"""How many of the reasons are shown why a value does not fit a model."""


@dataclass(frozen=True, slots=True)
class Model:
    """How one class is written, and how it is built back from JSON's types."""

    plain: Callable[[Any], Any]
    build: Callable[[Any], Any]


@cache
def model_of(kind: Any) -> Model | None:
    """None for a class that does not write and read itself. One of texts, such as the handle of a task, is a text.

    Fields are written by their names, and read by their names or aliases, where the class can do that (pydantic 2.11);
    else by their aliases. Computed fields are left out. A class that reads JSON text does so, since a strict model
    takes a time in a text from JSON only.
    """
    kind = typing.get_origin(kind) or kind
    if isinstance(kind, type) and issubclass(kind, str):
        return Model(str, partial(_text_of, kind))
    dump, validate, from_text = (getattr(kind, f"model_{name}", None) for name in ("dump", "validate", "validate_json"))
    if not isinstance(kind, type) or dump is None or validate is None:
        return None
    by_name = "by_name" in inspect.signature(validate).parameters
    plain = _with(dump, mode="json", round_trip=True, by_alias=not by_name)
    read = _with(validate if from_text is None else from_text, by_name=True, by_alias=True)
    return Model(plain, read if from_text is None else lambda value: read(msgspec.json.encode(value)))


def _with(function: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
    """The function with those of the options that it takes."""
    parameters = inspect.signature(function).parameters
    return partial(function, **{name: value for name, value in options.items() if name in parameters})


def _text_of(kind: type[str], value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    return kind(value)


def plain_part(value: Any) -> Any:
    """For msgspec: a model as JSON's types.   Raises: TypeError for a value of any other class."""
    kind: Any = type(value)
    model = model_of(kind)
    if model is None:
        raise TypeError(f"Encoding objects of type {kind.__name__} is unsupported")
    return model.plain(value)


def built_part(kind: Any, value: Any) -> Any:
    """For msgspec: a model from JSON's types.   Raises: ValueError with the reasons on one line; TypeError."""
    if kind is object:
        return value
    model = model_of(kind)
    if model is None:
        raise TypeError(f"Building objects of type {kind.__name__} is unsupported")
    try:
        return model.build(value)
    except ValueError as error:
        raise ValueError(_reasons(error)) from error


def _reasons(error: ValueError) -> str:
    """Why a value does not fit, on one line. What pydantic says of it takes three lines for each field."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return str(error).partition("\n")[0]
    found = listed()
    reasons = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": ") for each in found[:REASONS_MAX]]
    return "; ".join(reasons) + (f"; {len(found) - REASONS_MAX} more" if len(found) > REASONS_MAX else "")

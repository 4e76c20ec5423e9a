"""What a column allows of its kind: the constraints of Frictionless that one value alone can meet or break."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from limpet import records
from limpet.errors import Invalid
from limpet.index.values import INTEGER_END, Kind, reader, shown, stamp_time, writer

ENUM_MAX = 10_000
FLOAT_MAX = sys.float_info.max

_Integer = Annotated[int, msgspec.Meta(ge=-INTEGER_END, le=INTEGER_END - 1)]
_Number = Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
Plain = records.Text | _Integer | _Number | bool

_TIMES: tuple[Kind, ...] = ("date", "datetime")
_RANGED: tuple[Kind, ...] = ("integer", "number", *_TIMES)
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


class Constraints(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The constraints of a column, spelt as in a data package. A date or a datetime is the text that a line has.

    A pattern must match the whole string. Of `minimum` and `exclusive_minimum`, and of the maxima, one at most is set.
    """

    enum: Annotated[tuple[Plain, ...], msgspec.Meta(max_length=ENUM_MAX)] | None = None
    minimum: Plain | None = None
    maximum: Plain | None = None
    exclusive_minimum: Plain | None = None
    exclusive_maximum: Plain | None = None
    min_length: records.Count | None = None
    max_length: records.Count | None = None
    pattern: records.Text | None = None


def constraints_of(given: Mapping[str, Any], kind: Kind, *, field: str) -> Constraints | None:
    """The constraints that a data package or a type gives a column, checked and made canonical; None for none.

    Raises: Invalid for one that there is not, that the kind of column does not have, or whose value makes no sense.
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
        raise Invalid(f"the constraints of the field {field!r} make no sense: {error}") from None
    return _one_each(found) if given else None


def _canonical(name: str, value: Any, kind: Kind) -> Any:
    if name == "enum":
        if not isinstance(value, (list, tuple)) or not value:
            raise Invalid(f"enum is {shown(value)}, not a list of values")
        return [_literal(each, kind) for each in value]
    return value if name in ("minLength", "maxLength", "pattern") else _literal(value, kind)


def _literal(value: Any, kind: Kind) -> Plain:
    """A value of the kind as JSON can hold it. A data package may give it as text."""
    if isinstance(value, str) and kind != "string":
        try:
            value = stamp_time(value) if kind == "datetime" else reader(kind)(value)
        except ValueError:
            raise Invalid(f"expected {kind}, got {shown(value)}") from None
    text = writer(kind)(value).decode()
    literal: Plain = text if kind in _TIMES else reader(kind)(text)
    return literal


def _one_each(found: Constraints) -> Constraints:
    """Only the tighter of an inclusive and an exclusive limit."""
    changes: dict[str, None] = {}
    if found.minimum is not None and found.exclusive_minimum is not None:
        changes["minimum" if _le(found.minimum, found.exclusive_minimum) else "exclusive_minimum"] = None
    if found.maximum is not None and found.exclusive_maximum is not None:
        changes["maximum" if _le(found.exclusive_maximum, found.maximum) else "exclusive_maximum"] = None
    return msgspec.structs.replace(found, **changes)


def _le(one: Any, other: Any) -> bool:
    return bool(one <= other)


def checker(limits: Constraints, kind: Kind) -> Callable[[bytes], None]:
    """A judge of the bytes of a field.   The function raises: Invalid, saying what was expected and what came."""
    checks = [*_checks(limits, kind)]
    read = reader(kind)

    def check(data: bytes) -> None:
        text = data.decode()
        value = read(text)
        for good, expected in checks:
            if not good(value):
                raise Invalid(f"expected {expected}, got {text if kind in _TIMES else shown(value)}")

    return check


def _checks(limits: Constraints, kind: Kind) -> list[tuple[Callable[[Any], bool], str]]:
    def limit(given: Plain | None) -> Any:
        return reader(kind)(given) if isinstance(given, str) and kind != "string" else given

    checks: list[tuple[Callable[[Any], bool], str]] = []
    if limits.enum is not None:
        allowed = [limit(each) for each in limits.enum]
        checks.append((lambda value: value in allowed, f"one of {', '.join(map(str, limits.enum))}"))
    least, most = limit(limits.minimum), limit(limits.maximum)
    above, below = limit(limits.exclusive_minimum), limit(limits.exclusive_maximum)
    shortest, longest, pattern = limits.min_length, limits.max_length, limits.pattern
    if least is not None:
        checks.append((lambda value: value >= least, f"at least {limits.minimum}"))
    if most is not None:
        checks.append((lambda value: value <= most, f"at most {limits.maximum}"))
    if above is not None:
        checks.append((lambda value: value > above, f"more than {limits.exclusive_minimum}"))
    if below is not None:
        checks.append((lambda value: value < below, f"less than {limits.exclusive_maximum}"))
    if shortest is not None:
        checks.append((lambda value: len(value) >= shortest, f"a length of at least {shortest}"))
    if longest is not None:
        checks.append((lambda value: len(value) <= longest, f"a length of at most {longest}"))
    if pattern is not None:
        matches = re.compile(pattern).fullmatch
        checks.append((lambda value: matches(value) is not None, f"text like {pattern}"))
    return checks


def loosened(stored: Constraints | None, declared: Constraints | None, *, field: str) -> Constraints | None:
    """The constraints of a column that a program declares anew: it may allow more than before.

    What is not declared stays. A program that allows less is an older one: it goes on, and nothing changes.
    Raises: Invalid for a constraint that the column does not have: records without it may be there.
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
            hint="a field may allow more than before, never less: add a new one beside it",
        )
    lower = min(filter(None, (_lower(stored), _lower(declared))), default=(None, False))
    upper = max(filter(None, (_upper(stored), _upper(declared))), default=(None, True))
    return Constraints(
        enum=tuple(dict.fromkeys((*stored.enum, *(declared.enum or ())))) if stored.enum else None,
        minimum=None if lower[1] else lower[0],
        maximum=upper[0] if upper[1] else None,
        exclusive_minimum=lower[0] if lower[1] else None,
        exclusive_maximum=None if upper[1] else upper[0],
        min_length=_of_both(min, stored.min_length, declared.min_length),
        max_length=_of_both(max, stored.max_length, declared.max_length),
        pattern=stored.pattern,
    )


def _of_both(better: Callable[[Any], Any], stored: int | None, declared: int | None) -> int | None:
    found = [each for each in (stored, declared) if each is not None]
    return better(found) if found else None


def _lower(limits: Constraints) -> tuple[Any, bool] | None:
    """The least value, and whether it is out itself; the smaller pair allows more."""
    if limits.exclusive_minimum is not None:
        return limits.exclusive_minimum, True
    return None if limits.minimum is None else (limits.minimum, False)


def _upper(limits: Constraints) -> tuple[Any, bool] | None:
    """The greatest value, and whether it is in itself; the greater pair allows more."""
    if limits.exclusive_maximum is not None:
        return limits.exclusive_maximum, False
    return None if limits.maximum is None else (limits.maximum, True)

"""Names that a user's program gets wrong, answered: attributes of our objects, and keywords of our functions.

An attribute that is not there is an `AttributeError`, so that `hasattr`, pickle and mocks work; a keyword is `Invalid`.
Either says ours for a word of another system (`foreign`), else the nearest of ours, else all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from limpet.kernel.errors import Invalid

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


class UnknownName(AttributeError):
    """An attribute that is not there. What to write instead is looked up when the error is shown: most never are."""

    def __init__(self, said: str, name: str = "", names: Collection[str] = ()) -> None:
        super().__init__(said)
        self._asked = (name, names)

    def __str__(self) -> str:
        name, names = self._asked
        said = super().__str__()
        if not name or name.startswith("_"):
            return said
        from limpet.kernel.foreign import hint_for

        return f"{said}; {hint_for(f'.{name}', name, [each for each in names if not each.startswith('_')])}"


class AnswersNames:
    """A class whose objects answer an attribute that they do not have."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker would take every name for one that is there

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if hasattr(kind, name):  # a property of ours, whose own error must not be hidden
                return object.__getattribute__(self, name)
            raise UnknownName(f"{kind.__name__!r} object has no attribute {name!r}", name, dir(kind))


def refuse_option(name: str, names: Collection[str], what: str) -> NoReturn:
    """Raises: Invalid for a keyword that `what` does not take; it takes `names`."""
    from limpet.kernel.foreign import hint_for

    raise Invalid(f"{what} has no option {name!r}", hint=hint_for(f"{name}=", name, names))


def answers_options(function: Callable[P, R]) -> Callable[P, R]:
    """The function; a keyword that it does not take is `Invalid`, and no `TypeError`.   Cost: one call more."""
    code = function.__code__
    names = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
    parts = [part for part in function.__qualname__.split(".") if part != "__init__"]
    what = f"{parts[-1]}()"

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= names:
            refuse_option(min(kwargs.keys() - names), names - {"self"}, what)
        return function(*args, **kwargs)

    return call


def answers_fields(kind: C) -> C:
    """A dataclass whose constructor refuses a keyword as `answers_options` does."""
    kind.__init__ = answers_options(kind.__init__)  # type: ignore[misc]
    return kind

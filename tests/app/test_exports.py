"""Whatever a public function returns can be imported from a package, so that users can annotate it."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import limpet
import limpet.testing

INNER = ("limpet.cli", "sim", "limpet.service", "limpet.iceberg")
"""Packages that are no library for users."""


def _packages() -> Iterator[ModuleType]:
    yield limpet
    yield limpet.testing
    for found in pkgutil.walk_packages(limpet.__path__, "limpet."):
        if found.ispkg and not found.name.startswith(INNER):
            yield import_module(found.name)


def _public(package: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in getattr(package, "__all__", ()):
        yield f"{package.__name__}.{name}", getattr(package, name)


def _calls(path: str, thing: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The function itself, or the public methods and properties of a class."""
    if inspect.isfunction(thing):
        yield path, thing
    for name, each in vars(thing).items() if inspect.isclass(thing) else ():
        inner = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
        if not name.startswith("_") and inspect.isfunction(inner):
            yield f"{path}.{name}", inner


@cache
def _imported_for_types(module: ModuleType) -> dict[str, Any]:
    """What a module imports only under TYPE_CHECKING: annotations name it."""
    found: dict[str, Any] = {}
    for node in ast.parse(Path(str(module.__file__)).read_text()).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for each in node.body:
                if isinstance(each, ast.ImportFrom):
                    source = import_module(str(each.module))
                    found |= {alias.asname or alias.name: getattr(source, alias.name) for alias in each.names}
    return found


def _ours(annotation: Any) -> Iterator[type]:
    """The classes of Limpet that an annotation names, at any depth."""
    for each in (annotation, typing.get_origin(annotation)):
        if isinstance(each, type) and each.__module__.partition(".")[0] == "limpet":
            yield each
    for inner in typing.get_args(annotation):
        for each in inner if isinstance(inner, list) else [inner]:
            yield from _ours(each)


def test_everything_that_a_public_function_returns_is_exported() -> None:
    exported = [*(pair for package in _packages() for pair in _public(package))]
    known = {id(thing) for _, thing in exported}
    missing: dict[str, str] = {}
    looked_at = 0
    for path, thing in exported:
        for where, call in _calls(path, thing):
            names = _imported_for_types(sys.modules[call.__module__])
            returned = typing.get_type_hints(call, localns=names).get("return")
            looked_at += 1
            missing |= {
                f"{each.__module__}.{each.__qualname__}": where for each in _ours(returned) if id(each) not in known
            }
    assert missing == {}
    assert looked_at > 200


def test_a_hook_can_be_annotated() -> None:
    assert {"TaskRun", "Failure", "AttemptError", "Peeked", "Claim"} <= {*limpet.__all__}

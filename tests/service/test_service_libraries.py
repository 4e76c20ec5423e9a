"""The parts of uvicorn, starlette and httptools that are used here although they promise nothing.

pyproject.toml caps the versions of these libraries. Before a cap is raised, this test says what is gone.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from pathlib import Path
from textwrap import dedent

import httptools
import pytest
import uvicorn
from starlette.routing import compile_path
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from limpet.service import serve
from limpet.service.protocol import LimitedProtocol

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
CAPPED = ("httptools", "starlette", "uvicorn")


def _used(owner: str, of: object) -> set[str]:
    """The attributes of the expression `owner` that the source of `of` reads or sets."""
    tree = ast.parse(dedent(inspect.getsource(of)))  # type: ignore[arg-type]
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if ast.unparse(node.value) == owner}


def _members(of: type) -> set[str]:
    """The attributes of a class, and those that its own methods set on an instance."""
    is_python = (inspect.getsourcefile(of) or "").endswith(".py")
    return {*dir(of), *(_used("self", of) if is_python else ())}


OWN = {*vars(LimitedProtocol), *_used("self", LimitedProtocol.__init__)}
"""What `LimitedProtocol` defines itself; what it overrides must be in uvicorn's class too."""
OVERRIDDEN = {name for name in vars(LimitedProtocol) if not name.startswith("_")}
USES = [
    (HttpToolsProtocol, (_used("self", LimitedProtocol) - OWN) | _used("super()", LimitedProtocol) | OVERRIDDEN),
    (RequestResponseCycle, _used("self.cycle", LimitedProtocol)),
    (FlowControl, _used("self.flow", LimitedProtocol)),
    (ServerState, _used("self.server_state", LimitedProtocol)),
    (httptools.HttpRequestParser, _used("self.parser", LimitedProtocol)),
    (uvicorn.Server, _used("server", serve)),
]


@pytest.mark.parametrize(("library", "names"), USES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_names_that_are_used_exist(library: type, names: set[str]) -> None:
    assert names, f"nothing of {library.__name__} is used: take it out of this test"
    gone = sorted(names - _members(library))
    assert not gone, f"{library.__module__}.{library.__name__} has no {', '.join(gone)} any more"


@pytest.mark.parametrize("name", sorted(OVERRIDDEN))
def test_overridden_methods_take_the_same_arguments(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(of, name)) for of in (LimitedProtocol, HttpToolsProtocol))
    assert [*ours.parameters] == [*theirs.parameters], f"uvicorn's HttpToolsProtocol.{name} takes other arguments"


def test_what_is_called_takes_the_arguments_that_it_is_given() -> None:
    state = dict.fromkeys(("config", "server_state", "app_state"))
    inspect.signature(HttpToolsProtocol).bind(**state)
    inspect.signature(uvicorn.Server.startup).bind(None, sockets=[])
    inspect.signature(uvicorn.Server.run).bind(None, sockets=[])
    assert inspect.signature(uvicorn.Server.capture_signals).parameters.keys() == {"self"}
    pattern = compile_path("/v1/{name}/x")[0]
    found = pattern.match("/v1/a%2Fb/x")
    assert found is not None
    assert found.groups() == ("a%2Fb",)


def test_the_error_of_a_callback_is_the_context_of_the_parser_s_error() -> None:
    class Refusing:
        def on_message_begin(self) -> None:
            raise KeyError("refused")

    with pytest.raises(httptools.HttpParserError) as caught:
        httptools.HttpRequestParser(Refusing()).feed_data(b"GET / HTTP/1.1\r\n\r\n")
    assert isinstance(caught.value.__context__, KeyError)
    assert httptools.parse_url(b"/a?b").path == b"/a"


def test_the_versions_of_these_libraries_are_capped() -> None:
    for extra in ("catalog", "dev"):
        needed = PROJECT["optional-dependencies"][extra]
        bounds = {re.split("[<>=]", text)[0]: text for text in needed}
        assert [name for name in CAPPED if "<" not in bounds[name]] == [], extra

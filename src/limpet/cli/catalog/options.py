"""What the catalog's commands share: where it lies, and names as one types them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from limpet.errors import Invalid

if TYPE_CHECKING:
    from limpet.app import Fleet

URL_VARIABLES = ["LIMPET_STORAGE_URL", "LIMPET_URL"]

CatalogUrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        envvar=URL_VARIABLES,
        show_default=False,
        help="The fleet: ./dir, s3://bucket/prefix, gs://, az://. With LIMPET_TENANT_ID and LIMPET_WORKSPACE_ID, the "
        "workspace's catalog below it.",
    ),
]
TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", show_default=False, help="The table: namespace.name, or level.level.name.")
]
SeparatorOption = Annotated[
    str, typer.Option("--separator", metavar="TEXT", help="What joins the parts of TABLE, for names with dots in them.")
]


def demand_extra() -> None:
    """Go on only with the catalog's packages.   Raises: Unsupported."""
    from importlib.util import find_spec

    from limpet.errors import Unsupported

    needed = ("prometheus_client", "pyarrow", "pyiceberg", "starlette", "uvicorn")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise Unsupported(f"the catalog needs {', '.join(missing)}", hint="pip install 'limpet[catalog]'")


def opened(url: str | None, *, read_only: bool) -> Fleet:
    """The workspace's fleet. One that is not there is `Missing`, so that a typo creates nothing."""
    demand_extra()
    import limpet
    from limpet.app.catalogs import workspace_url
    from limpet.app.urls import url_or_default

    where = workspace_url(url_or_default(url))
    fleet = limpet.open(where, read_only=read_only, create=False)
    fleet.check()
    return fleet


def identifier(text: str, separator: str) -> tuple[list[str], str]:
    """A table as it is typed.   Raises: Invalid."""
    *namespace, name = text.split(separator) if separator else [text]
    if not namespace or not name or not all(namespace):
        raise Invalid(
            f"{text!r} is no table: it has no namespace", hint="write namespace.name; --separator / joins with slashes"
        )
    return namespace, name

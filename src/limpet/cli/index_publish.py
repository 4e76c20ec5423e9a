"""`limpet index publish`: an index as an Iceberg table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.index_options import IndexArgument, demand_index
from limpet.cli.queue_options import many
from limpet.cli.shared import JsonOption, UrlOption, clean, console, existing, lines, print_json

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.app.publish import Published

EPILOG = lines(
    "Example: where no service runs; through the one that leads the catalog; under another name",
    "$ limpet index publish sites -u s3://acme/prod",
    "$ limpet index publish sites --catalog http://127.0.0.1:8181 -u s3://acme/prod",
    "$ limpet index publish sites --table web.sites -u s3://acme/prod",
    "Exit codes: 0 the table is what the index is; 1 there is no such index, another process leads the catalog, or it "
    "could not be read or written; 2 wrong usage, or a table that is not this index's.",
)


def publish(
    index: IndexArgument,
    table: Annotated[
        str | None,
        typer.Option(
            "--table", metavar="NAMESPACE.NAME", show_default="indexes.INDEX", help="The table, made if need be."
        ),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog",
            metavar="URL",
            show_default=False,
            help="Commit through the `limpet serve` there, with the first of LIMPET_API_TOKENS.",
        ),
    ] = None,
    compile: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Fold what waits into the shards first, or leave it out.")
    ] = True,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait for the lead, without --catalog."),
    ] = 20.0,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Make an index an Iceberg table, for DuckDB, Polars, PyIceberg, Spark and so on; or bring its table up to date.

    Only shards that have changed since the last time are written, in one commit: readers see the old table or the new
    one. If nothing has changed, nothing is written. Run it from cron, as often as you like.

    Without --catalog this process leads the catalog for a moment. Where `limpet serve` leads it, name that one.
    """
    from limpet.cli.catalog.options import demand_extra, identifier

    demand_extra()
    named = identifier(table, ".") if table is not None else None
    fleet = existing(url)
    demand_index(fleet, index)
    with console(stderr=True).status("publishing"):
        done = _publish(fleet, index, named, catalog, compile=compile, wait_s=wait)
    if json:
        print_json(done)
    else:
        _print(done)


def _publish(
    fleet: Fleet,
    index: str,
    table: tuple[Sequence[str], str] | None,
    service: str | None,
    *,
    compile: bool,
    wait_s: float,
) -> Published:
    from limpet.catalog import NotLeader

    through = ServiceWriter(service) if service is not None else None
    try:
        return fleet.publish_index(index, table, compile=compile, through=through, wait_s=wait_s)
    except NotLeader as error:
        if through is not None:
            raise
        raise NotLeader(str(error), hint="commit through it: --catalog http://HOST:PORT") from None


def _print(done: Published) -> None:
    out = console()
    name = clean(".".join((*done.namespace, done.table)))
    if done.changed:
        kept = done.files - done.files_added
        out.print(
            f"published {many(done.records, 'record')} of {clean(repr(done.index))} as the table {name}: "
            f"{many(done.files_added, 'file')} written, {kept:,} kept, {done.files_removed:,} removed",
            soft_wrap=True,
        )
    else:
        out.print(f"the table {name} is up to date, with {many(done.records, 'record')}", soft_wrap=True)
    out.print(f"[dim]{clean(done.metadata_location)}[/dim]", soft_wrap=True)


class ServiceWriter:
    """A catalog that a running service leads.   Raises, in each: the kind of error that it met; Unavailable."""

    def __init__(self, url: str) -> None:
        from limpet.service.auth import API_TOKENS, secrets_of

        self._url = url
        self._token = next(iter(secrets_of(API_TOKENS)), None)

    def create_namespace(self, namespace: Sequence[str]) -> None:
        self._post("/v1/namespaces", {"namespace": list(namespace), "properties": {}})

    def commit_table(self, namespace: Sequence[str], name: str, request: Mapping[str, Any]) -> str:
        from urllib.parse import quote

        where = quote("\x1f".join(namespace), safe="")
        answer = self._post(f"/v1/namespaces/{where}/tables/{quote(name, safe='')}", request)
        return str(answer.get("metadata-location"))

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        from limpet.service.client import post

        return post(self._url, path, body, self._token)

"""`limpet metrics`: a fleet for Prometheus, as a port or as a file."""

from __future__ import annotations

from typing import Annotated

import typer

import limpet
from limpet.cli import lines, say
from limpet.cli.options import UrlOption
from limpet.errors import Invalid

EPILOG = lines(
    "Example: a port that Prometheus scrapes; on this machine only, or for all",
    "$ limpet metrics --serve 9464 -u s3://acme/prod",
    "$ limpet metrics --serve 0.0.0.0:9464 -u s3://acme/prod",
    "Example: from cron, a file for the textfile collector of the node exporter",
    "$ limpet metrics --textfile /var/lib/node_exporter/limpet.prom -u s3://acme/prod",
    "Exit codes: 0 written; 130 stopped by Ctrl-C; 1 no fleet there, or no such port or file; 2 wrong usage.",
)
DAY_S = 86400.0


def metrics(
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="[HOST:]PORT", help="Answer scrapes until Ctrl-C. Port 0 takes a free one."),
    ] = None,
    textfile: Annotated[
        str | None, typer.Option("--textfile", metavar="FILE", help="Write one reading to a file, and exit.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--count", metavar="N", min=999, help="Count up to so many objects of a kind in a queue: 1 LIST per 1,000."
        ),
    ] = 10_000,
    idle_requests: Annotated[
        int,
        typer.Option(
            "--idle-requests",
            metavar="N",
            min=60,
            help="Requests an hour on an idle fleet, at most. With more, a change is noticed sooner.",
        ),
    ] = 260,
    url: UrlOption = None,
) -> None:
    """Show a fleet to Prometheus: depth, age and rate of queues, workers, locks, indexes, the catalog, cost.

    Reads only. Scraped every 15 s, an idle fleet costs under 260 requests an hour. Alert rules and a Grafana board are
    in deploy/; `limpet work --metrics-port` shows how long handlers take. Needs the extra `metrics`.
    """
    from limpet.app.metrics import FleetMetrics, ScrapePlace, serving, write_textfile
    from limpet.runtime import system

    if (serve is None) is (textfile is None):
        raise Invalid("say --serve PORT or --textfile FILE", hint="one of the two")
    address = None if serve is None else ScrapePlace.of(serve)
    found = FleetMetrics(limpet.open(url, read_only=True).check(), objects=count, idle_requests=idle_requests)
    if textfile is not None:
        write_textfile(found.registry(), textfile)
        say(f"wrote {textfile}", err=True)
        return
    assert address is not None
    with serving(found.registry(), address) as taken:
        say(f"metrics on {taken}", err=True)
        while True:
            system().sleep(DAY_S)

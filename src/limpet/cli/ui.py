"""`limpet ui`: the dashboard of a fleet, in a browser."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from limpet.cli import print_json, say
from limpet.cli.catalog import demand_extra
from limpet.cli.options import DELAY_HELP, JsonOption, UrlOption, duration_s
from limpet.cli.serve import HostOption, LogForm, LogOption, PortOption

UI_PORT = 8180


def ui(
    where: Annotated[str | None, typer.Argument(metavar="[URL]", help="The fleet; or use --url.")] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = UI_PORT,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="PATH",
            envvar="LIMPET_UI_TOKEN_FILE",
            show_default=False,
            help="A file with the token that the page asks for; read again when it changes. Or set LIMPET_UI_TOKEN.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser of this machine.")] = False,
    max_age: Annotated[
        str, typer.Option("--max-age", metavar="TIME", help=f"Warn of an older task that has not ended, {DELAY_HELP}.")
    ] = "1h",
    max_failed: Annotated[int, typer.Option("--max-failed", metavar="N", min=0, help="Warn of more failed tasks.")] = 0,
    max_pending: Annotated[
        int | None, typer.Option("--max-pending", metavar="N", min=0, help="Warn of more tasks that wait.")
    ] = None,
    log: LogOption = LogForm.none,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Serve the dashboard: queues, workers, indexes, the catalog, locks and what it all costs, live in a browser.

    Without a token it answers this machine only, and every user of it. A page that is left open costs at most 200
    requests an hour on an idle fleet. `limpet serve` has the same dashboard at /ui. Warnings follow the rules of
    `limpet check`.

    Example: show a fleet in the browser, without buttons that change it
    $ limpet ui s3://acme/prod --open
    $ limpet ui s3://acme/prod --read-only
    Example: for others, behind a token that the page asks for
    $ openssl rand -hex 32 > ui.token && chmod 600 ui.token
    $ limpet ui s3://acme/prod --host 0.0.0.0 --token-file ui.token
    Exit codes: 0 stopped by a signal; 1 no fleet there, or it cannot be read; 2 wrong usage, or the port is taken; 130
      ended at once.
    """
    demand_extra()
    from limpet.app.health import Limits
    from limpet.ui.server import serve_ui

    limits = Limits(duration_s(max_age), max_failed, max_pending)
    announce = partial(_announce, open_browser, read_only, json)
    serve_ui(
        where or url,
        announce,
        host=host,
        port=port,
        token_file=token_file,
        read_only=read_only,
        limits=limits,
        log=log.value,
    )


def _announce(open_browser: bool, read_only: bool, json: bool, here: str, fleet: str, guarded: bool) -> None:
    """Print where the dashboard is, and open it if that was asked for."""
    if json:
        print_json({"url": here, "fleet": fleet, "token": guarded})
    else:
        may = "look" if read_only else "look and act"
        asks = f"who has the token may {may}" if guarded else f"every user of this machine may {may}"
        say(f"The dashboard of {fleet} is at {here}; {asks}. Ctrl-C ends it.")
    if open_browser:
        typer.launch(here)

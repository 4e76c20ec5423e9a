"""`limpet serve`, the table catalog over HTTP, and `limpet ui`, the dashboard of a fleet in a browser."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from limpet.cli import COMMANDS, print_json, say
from limpet.cli.catalog import URL_VARIABLES, demand_extra
from limpet.cli.options import JsonOption, LimitOptions, UrlOption, is_typed, one_url
from limpet.cli.parse import Argument, BadParameter, Context, Option, group, lines

if TYPE_CHECKING:
    from limpet.service.serve import Kind

API_PORT = 8181
COMPACTOR_PORT = 8182
DEFAULT_URL = "./fleet"

CODES = (
    "Signals: SIGTERM, SIGINT and SIGHUP let it answer the requests that it has, release the lead and exit; a second "
    "one ends it at once.",
    "Exit codes: 0 stopped by a signal; 1 the store is unavailable or refuses; 2 wrong usage, or the port is taken; "
    "130 ended at once.",
)
EPILOG = lines(
    "Example: a catalog on this machine, with nothing configured; then look",
    "$ limpet serve",
    "$ curl http://127.0.0.1:8181/readyz",
    "Example: in a bucket, for others, with tokens that they must send",
    "$ LIMPET_API_TOKENS=$(openssl rand -hex 32) limpet serve -u s3://acme/prod --host 0.0.0.0",
    "Example: with named tokens that have rights, over TLS, and a log for programs",
    "$ limpet serve -u s3://acme/prod --host 0.0.0.0 --tokens-file tokens.toml --tls-cert cert.pem --tls-key key.pem "
    "--log json",
    *CODES,
)


class LogForm(StrEnum):
    """How a line of the service's log looks."""

    text = "text"
    json = "json"
    none = "none"


PATH = {"metavar": "PATH", "show_default": False}


def _named(option: str, help: str, **about: Any) -> Any:
    """An option with a variable named after it."""
    variable = f"LIMPET_{option.removeprefix('--').replace('-', '_').upper()}"
    return Option(option, envvar=variable, help=help, **about)


HostOption = Annotated[str, Option("--host", metavar="ADDRESS", help="Where to listen. Public ones need tokens.")]
PortOption = Annotated[
    int, Option("--port", "-p", metavar="PORT", min=0, max=65535, help="Where to listen; 0 takes a free port.")
]
LogOption = Annotated[LogForm, _named("--log", "The log on stderr, in this form.")]


@dataclass
class CompactorOptions:
    """The options of every process of the service. But for `url` and `json` they are those of `serve_fleet`."""

    url: Annotated[
        str,
        Option(
            "-u",
            envvar=URL_VARIABLES,
            help="The fleet: ./dir, s3://bucket/prefix, gs://, az://. With LIMPET_TENANT_ID and LIMPET_WORKSPACE_ID, "
            "the catalog is that workspace's, below it.",
        ),
    ] = DEFAULT_URL
    host: HostOption = "127.0.0.1"
    port: PortOption = COMPACTOR_PORT
    metrics_token_file: Annotated[
        str | None, _named("--metrics-token-file", "A file with a token for /metrics alone.", **PATH)
    ] = None
    tls_cert: Annotated[str | None, _named("--tls-cert", "Serve over TLS, with this certificate.", **PATH)] = None
    tls_key: Annotated[str | None, _named("--tls-key", "The key of --tls-cert.", **PATH)] = None
    peer_max: Annotated[
        int,
        _named(
            "--peer-connections",
            "Connections without a known token from one address, such as a proxy.",
            metavar="N",
            min=1,
            max=512,
        ),
    ] = 128
    log: LogOption = LogForm.text
    json: JsonOption = False


@dataclass
class ApiOptions(CompactorOptions):
    """The options of a process that answers clients."""

    port: PortOption = API_PORT
    lease_s: Annotated[
        float,
        _named(
            "--lease-s",
            "How long the leader's lease lasts; then another process takes over.",
            metavar="SECONDS",
            min=1.0,
            max=3600.0,
        ),
    ] = 10.0
    tokens_file: Annotated[
        str | None, _named("--tokens-file", "Named tokens with their rights (TOML); watched.", **PATH)
    ] = None
    remote_signing: Annotated[bool, _named("--remote-signing", "Sign S3 requests of clients without a key.")] = False
    sts_role_arn: Annotated[
        str | None,
        _named(
            "--sts-role-arn",
            "Give clients credentials of this role, each for one table.",
            metavar="ARN",
            show_default=False,
        ),
    ] = None
    sts_endpoint: Annotated[
        str | None,
        _named(
            "--sts-endpoint", "The STS of that role, if it is not the store or AWS.", metavar="URL", show_default=False
        ),
    ] = None
    sts_duration_s: Annotated[
        int,
        _named(
            "--sts-duration-s", "How long its credentials last.", metavar="SECONDS", min=900, max=43200, hidden=True
        ),
    ] = 3600
    no_ui: Annotated[bool, Option(help="Leave out the dashboard at /ui.")] = False


def serve(context: Context, options: ApiOptions) -> None:
    """Both halves in one process, unless one of them is named. (The help text is the app's.)"""
    if context.invoked_subcommand is None:
        _serve("all", options)
        return
    for option in context.command.params:  # `limpet serve --port 1 api` would not do what it says
        if is_typed(context, str(option.name)):
            raise BadParameter(f"{option.opts[0]} goes behind {context.invoked_subcommand}", context)


def api(
    compactor_urls: Annotated[
        list[str],
        _named(
            "--compactor-url",
            "Where `limpet serve compactor` listens. Repeatable: if one is gone, the next.",
            metavar="URL",
            show_default=False,
        ),
    ],
    options: ApiOptions,
    ca: Annotated[
        str | None,
        _named(
            "--ca",
            "Certificates of the authorities to trust for an https --compactor-url, instead of the system's.",
            **PATH,
        ),
    ] = None,
) -> None:
    """Serve the REST protocol alone; what it decides is published by a compactor elsewhere.

    Any number may run: one leads and takes writes, the others answer reads, and take over when it is gone. Set
    LIMPET_RPC_SECRET (or LIMPET_RPC_SECRET_FILE) to the compactor's secret.

    Example: two of them share a bucket; one leads, the other takes over when it ends
    $ limpet serve api --compactor-url http://compactor:8182 -u s3://acme/prod
    Signals: SIGTERM, SIGINT and SIGHUP let it answer the requests that it has, release the lead and exit; a second
      one ends it at once.
    Exit codes: 0 stopped by a signal; 1 the store is unavailable or refuses; 2 wrong usage, or the port is taken;
      130 ended at once.
    """
    _serve("api", options, compactor_urls=compactor_urls, ca=ca)


def compactor(options: CompactorOptions) -> None:
    """Serve publication alone: the only process whose key may write what is published.

    Any number may run. Set LIMPET_RPC_SECRET (or LIMPET_RPC_SECRET_FILE) to a secret that the API must send.

    Example: for APIs on other machines, which send the same secret
    $ LIMPET_RPC_SECRET_FILE=/run/secrets/rpc limpet serve compactor -u s3://acme/prod --host 0.0.0.0
    Example: for an API on this machine
    $ limpet serve compactor -u s3://acme/prod
    Signals: SIGTERM, SIGINT and SIGHUP let it answer the requests that it has, release the lead and exit; a second
      one ends it at once.
    Exit codes: 0 stopped by a signal; 1 the store is unavailable or refuses; 2 wrong usage, or the port is taken;
      130 ended at once.
    """
    _serve("compactor", options)


def _serve(kind: Kind, options: CompactorOptions, **more: Any) -> None:
    demand_extra()
    from limpet.service.serve import serve_fleet
    from limpet.ui.server import ui_beside

    given = {**vars(options), **more}
    url, json, ui = given.pop("url"), given.pop("json"), not given.pop("no_ui", True)
    serve_fleet(kind, url, partial(_announce, kind, json), beside=ui_beside if ui else None, **given)


app = group(
    "serve",
    api,
    compactor,
    call=serve,
    help=lines(
        COMMANDS["serve"][1],
        "One process does it all, on this machine, in a folder or a bucket. To let others in, give named tokens with "
        "--tokens-file, or set LIMPET_API_TOKENS (or LIMPET_API_TOKENS_FILE) to tokens that may do everything. `api` "
        "and `compactor` run the two halves apart, each with least-privilege credentials.",
    ),
    epilog=EPILOG,
)


def _announce(kind: Kind, json: bool, here: str, fleet: str, guarded: bool) -> None:
    if json:
        print_json({"url": here, "serves": kind, "fleet": fleet, "tokens": guarded})
        sys.stdout.flush()
        return
    asks = "callers send Authorization: Bearer TOKEN" if guarded else "every user of this machine may call"
    if kind == "compactor":
        said = [f"The compactor of {fleet} listens on {here}; {asks}."]
    else:
        token = ", token=TOKEN" if guarded else ""
        authorization = "TOKEN 'TOKEN'" if guarded else "AUTHORIZATION_TYPE 'none'"
        said = [
            f"The catalog of {fleet} answers on {here}; {asks}.",
            f"""  PyIceberg  load_catalog("limpet", type="rest", uri="{here}"{token})""",
            f"  DuckDB     ATTACH '' AS limpet (TYPE iceberg, ENDPOINT '{here}', {authorization});",
            f"  tables     {fleet.partition('?')[0].rstrip('/')}/warehouse",
            f"  dashboard  {here}/ui",
        ]
    said.append(f"  look       {here}/readyz and {here}/metrics; Ctrl-C ends it")
    print("\n".join(said), flush=True)


# ---- limpet ui ----


UI_PORT = 8180


def ui(
    context: Context,
    warnings: LimitOptions,
    where: Annotated[str | None, Argument(metavar="[URL]", help="The fleet; or use --url.")] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = UI_PORT,
    token_file: Annotated[
        str | None,
        Option(
            envvar="LIMPET_UI_TOKEN_FILE",
            **PATH,
            help="A file with the token that the page asks for; read again when it changes. Or set LIMPET_UI_TOKEN.",
        ),
    ] = None,
    read_only: Annotated[bool, Option(help="Show everything, change nothing.")] = False,
    open_browser: Annotated[bool, Option("--open", help="Open the page in the browser of this machine.")] = False,
    log: LogOption = LogForm.none,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Serve the dashboard: queues, workers, indexes, the catalog, locks and what it all costs, live in a browser.

    Without a token it answers this machine only, and every user of it. A page that is left open costs at most 200
    requests an hour on an idle fleet. `limpet serve` has the same dashboard at /ui. It warns by the rules of
    `limpet check`; those that are not given are --max-age 1h, --max-failed 0 and --no-worker 5m.

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
    from dataclasses import replace

    from limpet.app.health import default_limits
    from limpet.app.place import url_or_default
    from limpet.ui.server import serve_ui

    fleet_url = url_or_default(one_url(context, where, url))
    rules = zip(("age_s", "failed", "pending", "no_worker_s"), vars(warnings).values(), strict=True)
    given: dict[str, Any] = {name: value for name, value in rules if value is not None}
    serve_ui(
        fleet_url,
        partial(_announce_ui, open_browser, read_only, json),
        host=host,
        port=port,
        token_file=token_file,
        read_only=read_only,
        limits=replace(default_limits(fleet_url), **given),
        log=log.value,
    )


def _announce_ui(open_browser: bool, read_only: bool, json: bool, here: str, fleet: str, guarded: bool) -> None:
    if json:
        print_json({"url": here, "fleet": fleet, "token": guarded})
    else:
        may = "look" if read_only else "look and act"
        asks = f"who has the token may {may}" if guarded else f"every user of this machine may {may}"
        say(f"The dashboard of {fleet} is at {here}; {asks}. Ctrl-C ends it.")
    if open_browser:
        webbrowser.open(here)

"""`limpet serve`: the table catalog over HTTP."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from limpet.cli.catalog_options import URL_VARIABLES, demand_extra
from limpet.cli.shared import JsonOption, lines, print_json
from limpet.errors import Invalid

if TYPE_CHECKING:
    import socket

    from limpet.app import Fleet
    from limpet.service.parts import Part, Shared

__all__ = ["api", "app", "compactor", "serve"]

API_PORT = 8181
COMPACTOR_PORT = 8182
DEFAULT_URL = "./fleet"

CODES = (
    "Signals: SIGTERM, SIGINT and SIGHUP let it answer what it has in hand, hand the lead back and leave; a second one "
    "ends it at once.",
    "Exit codes: 0 told to stop; 1 the store is away or refuses; 2 wrong usage, or the port is taken; 130 ended at "
    "once.",
)
EPILOG = lines(
    "Example: a catalog on this machine, with nothing configured; then look",
    "$ limpet serve",
    "$ curl http://127.0.0.1:8181/readyz",
    "Example: in a bucket, for others, with tokens that they must send",
    "$ LIMPET_API_TOKENS=$(openssl rand -hex 32) limpet serve -u s3://acme/prod --host 0.0.0.0",
    *CODES,
)
API_EPILOG = lines(
    "Example: two of them share a bucket; one leads, the other takes over when it ends",
    "$ limpet serve api --compactor-url http://compactor:8182 -u s3://acme/prod",
    *CODES,
)
COMPACTOR_EPILOG = lines(
    "Example: for APIs on other machines, which send the same secret",
    "$ LIMPET_RPC_SECRET_FILE=/run/secrets/rpc limpet serve compactor -u s3://acme/prod --host 0.0.0.0",
    "Example: for an API on this machine",
    "$ limpet serve compactor -u s3://acme/prod",
    *CODES,
)

ServeUrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        "-u",
        envvar=URL_VARIABLES,
        help="The fleet: ./dir, s3://bucket/prefix, gs://, az://. With LIMPET_TENANT_ID and LIMPET_WORKSPACE_ID, the "
        "catalog is that workspace's, below it.",
    ),
]
HostOption = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen. Public ones need tokens.")]
PortOption = Annotated[
    int, typer.Option("--port", "-p", min=0, max=65535, help="Where to listen; 0 takes a free port.")
]
LeaseOption = Annotated[
    float,
    typer.Option(
        "--lease-s",
        metavar="SECONDS",
        min=1.0,
        max=3600.0,
        envvar="LIMPET_LEASE_S",
        help="How long the others wait for a leader that says nothing before one of them takes over.",
    ),
]
CompactorUrlOption = Annotated[
    str,
    typer.Option(
        "--compactor-url",
        metavar="URL",
        envvar="LIMPET_COMPACTOR_URL",
        show_default=False,
        help="Where `limpet serve compactor` listens.",
    ),
]

app = typer.Typer(
    name="serve",
    rich_markup_mode="markdown",
    invoke_without_command=True,
    help=lines(
        "Serve the table catalog: Iceberg's REST protocol, for PyIceberg, DuckDB, Polars, Spark and Trino.",
        "One process does it all, on this machine, in a folder or a bucket. To let others in, set LIMPET_API_TOKENS "
        "(or LIMPET_API_TOKENS_FILE) to the tokens that they must send. `api` and `compactor` run the two halves "
        "apart, each with a key that can do no more than its half.",
    ),
    epilog=EPILOG,
)


@app.callback()
def serve(
    context: typer.Context,
    url: ServeUrlOption = DEFAULT_URL,
    host: HostOption = "127.0.0.1",
    port: PortOption = API_PORT,
    lease_s: LeaseOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Both halves in one process, unless one of them is named. (The help text is the app's.)"""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    _run("all", url, host, port, lease_s, None, json)


@app.command(epilog=API_EPILOG)
def api(
    compactor_url: CompactorUrlOption,
    url: ServeUrlOption = DEFAULT_URL,
    host: HostOption = "127.0.0.1",
    port: PortOption = API_PORT,
    lease_s: LeaseOption = 10.0,
    json: JsonOption = False,
) -> None:
    """Serve the REST protocol alone; what it decides is published by a compactor elsewhere.

    Any number may run: one leads and takes writes, the others answer reads, and take over when it is gone. Set
    LIMPET_RPC_SECRET (or LIMPET_RPC_SECRET_FILE) to the compactor's secret.
    """
    _run("api", url, host, port, lease_s, compactor_url, json)


@app.command(epilog=COMPACTOR_EPILOG)
def compactor(
    url: ServeUrlOption = DEFAULT_URL,
    host: HostOption = "127.0.0.1",
    port: PortOption = COMPACTOR_PORT,
    json: JsonOption = False,
) -> None:
    """Serve publication alone: the only process whose key may write what is published.

    Any number may run. Set LIMPET_RPC_SECRET (or LIMPET_RPC_SECRET_FILE) to a secret that the API must send.
    """
    _run("compactor", url, host, port, 0.0, None, json)


def _refuse_options(context: typer.Context) -> None:
    """`limpet serve --port 1 api` would not do what it says."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{option} goes behind {context.invoked_subcommand}", context)


Kind = Literal["all", "api", "compactor"]


def _run(kind: Kind, url: str, host: str, port: int, lease_s: float, compactor_url: str | None, json: bool) -> None:
    import limpet
    from limpet.app.urls import absolute

    demand_extra()
    from limpet.app.catalogs import workspace_url
    from limpet.runtime import system
    from limpet.service.auth import API_TOKENS, RPC_SECRET, Tokens, check_bind, secrets_of
    from limpet.service.metrics import Counter
    from limpet.service.parts import Shared
    from limpet.service.process import run
    from limpet.service.server import listen

    runtime = system()
    tokens, secrets = secrets_of(API_TOKENS), secrets_of(RPC_SECRET)
    check_bind(host, {RPC_SECRET: bool(secrets)} if kind == "compactor" else {API_TOKENS: bool(tokens)})
    where = absolute(workspace_url(url))
    if "%" in where.partition("?")[0]:
        raise Invalid(
            f"{where} has a % in it, which clients of tables read in different ways",
            hint="choose a place, tenant and workspace of letters, digits, - and _",
        )
    fleet = limpet.open(where)
    turns = Counter("limpet_loop_turns_total", "Turns of the loops in the background.", ("loop", "outcome"), runtime)
    shared = Shared(fleet, runtime, turns, _tell)
    guard = Tokens(secrets if kind == "compactor" else tokens)
    parts = _parts(kind, shared, guard, secrets, lease_s, compactor_url)
    listener = listen(host, port)
    run(parts, shared, listener, guard, lambda: _announce(kind, fleet, listener, bool(guard), json))


def _parts(
    kind: Kind, shared: Shared, guard: Any, secrets: list[str], lease_s: float, compactor_url: str | None
) -> list[Part]:
    from limpet.service.parts import ApiPart, CompactorPart, RpcPart

    if kind == "api":
        assert compactor_url is not None
        away = RpcPart(shared, compactor_url, secrets[0] if secrets else None)
        return [away, ApiPart(shared, guard, away.publish, away.fold, lease_s=lease_s)]
    compactor = CompactorPart(shared, guard, exposed=kind == "compactor")
    if kind == "compactor":
        return [compactor]
    return [compactor, ApiPart(shared, guard, compactor.publish, compactor.fold, lease_s=lease_s)]


def _tell(line: str) -> None:
    print(f"limpet: {line}", file=sys.stderr, flush=True)


def _announce(kind: Kind, fleet: Fleet, listener: socket.socket, guarded: bool, json: bool) -> None:
    from limpet.app.urls import absolute

    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    here = f"http://{'127.0.0.1' if host == '0.0.0.0' else '[::1]' if host == '::' else shown}:{port}"
    facts = {"url": here, "serves": kind, "fleet": absolute(fleet.url), "tokens": guarded}
    if json:
        print_json(facts)
        sys.stdout.flush()
        return
    asks = "anybody on this machine may call" if not guarded else "callers send Authorization: Bearer TOKEN"
    if kind == "compactor":
        said = [f"The compactor of {facts['fleet']} listens on {here}; {asks}."]
    else:
        token = ", token=TOKEN" if guarded else ""
        authorization = "TOKEN 'TOKEN'" if guarded else "AUTHORIZATION_TYPE 'none'"
        said = [
            f"The catalog of {facts['fleet']} answers on {here}; {asks}.",
            f"""  PyIceberg  load_catalog("limpet", type="rest", uri="{here}"{token})""",
            f"  DuckDB     ATTACH '' AS limpet (TYPE iceberg, ENDPOINT '{here}', {authorization});",
            f"  tables     {str(facts['fleet']).partition('?')[0].rstrip('/')}/warehouse",
        ]
    said.append(f"  look       {here}/readyz and {here}/metrics; Ctrl-C ends it")
    print("\n".join(said), flush=True)

"""`limpet serve`: the table catalog over HTTP."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from limpet.cli.catalog.options import URL_VARIABLES, demand_extra
from limpet.cli.options import JsonOption
from limpet.cli.output import lines, print_json
from limpet.errors import Invalid

if TYPE_CHECKING:
    import socket
    import ssl

    from limpet.app import Fleet
    from limpet.service.auth import Tokens
    from limpet.service.log import ServiceLog
    from limpet.service.serve import ServiceContext, ServicePart

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
    "Example: with named tokens that have rights, by TLS, and a log for programs",
    "$ limpet serve -u s3://acme/prod --host 0.0.0.0 --tokens-file tokens.toml --tls-cert cert.pem --tls-key key.pem "
    "--log json",
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


class LogForm(StrEnum):
    """How a line of the service's log looks."""

    text = "text"
    json = "json"
    none = "none"


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

TokensFileOption = Annotated[
    str | None,
    typer.Option(
        "--tokens-file",
        metavar="PATH",
        envvar="LIMPET_TOKENS_FILE",
        show_default=False,
        help="TOML with named tokens and their rights; read again when it changes.",
    ),
]
MetricsTokenOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-token-file",
        metavar="PATH",
        envvar="LIMPET_METRICS_TOKEN_FILE",
        show_default=False,
        help="A file with a token that may read /metrics, and nothing else.",
    ),
]
TlsCertOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="PATH",
        envvar="LIMPET_TLS_CERT",
        show_default=False,
        help="Serve by TLS: its certificate.",
    ),
]
TlsKeyOption = Annotated[
    str | None,
    typer.Option(
        "--tls-key", metavar="PATH", envvar="LIMPET_TLS_KEY", show_default=False, help="The key of --tls-cert."
    ),
]
CaOption = Annotated[
    str | None,
    typer.Option(
        "--ca",
        metavar="PATH",
        envvar="LIMPET_CA",
        show_default=False,
        help="The authorities that vouch for an https --compactor-url, in place of the system's.",
    ),
]
PeerOption = Annotated[
    int,
    typer.Option(
        "--peer-connections",
        metavar="N",
        min=1,
        max=512,
        envvar="LIMPET_PEER_CONNECTIONS",
        help="Connections without a known token from one address; behind a proxy, which is one address, up to 512.",
    ),
]
LogOption = Annotated[LogForm, typer.Option("--log", envvar="LIMPET_LOG", help="The log on stderr, in this form.")]

app = typer.Typer(
    name="serve",
    rich_markup_mode="markdown",
    invoke_without_command=True,
    help=lines(
        "Serve the table catalog: Iceberg's REST protocol, for PyIceberg, DuckDB, Polars and Spark.",
        "One process does it all, on this machine, in a folder or a bucket. To let others in, give named tokens with "
        "--tokens-file, or set LIMPET_API_TOKENS (or LIMPET_API_TOKENS_FILE) to tokens that may do everything. `api` "
        "and `compactor` run the two halves apart, each with least-privilege credentials.",
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
    tokens_file: TokensFileOption = None,
    metrics_token_file: MetricsTokenOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    peer_connections: PeerOption = 128,
    log: LogOption = LogForm.text,
    json: JsonOption = False,
) -> None:
    """Both halves in one process, unless one of them is named. (The help text is the app's.)"""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    door = _Door(host, port, tokens_file, metrics_token_file, tls_cert, tls_key, peer_connections)
    _run("all", url, door, log, json, lease_s=lease_s)


@app.command(epilog=API_EPILOG)
def api(
    compactor_url: CompactorUrlOption,
    url: ServeUrlOption = DEFAULT_URL,
    host: HostOption = "127.0.0.1",
    port: PortOption = API_PORT,
    lease_s: LeaseOption = 10.0,
    ca: CaOption = None,
    tokens_file: TokensFileOption = None,
    metrics_token_file: MetricsTokenOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    peer_connections: PeerOption = 128,
    log: LogOption = LogForm.text,
    json: JsonOption = False,
) -> None:
    """Serve the REST protocol alone; what it decides is published by a compactor elsewhere.

    Any number may run: one leads and takes writes, the others answer reads, and take over when it is gone. Set
    LIMPET_RPC_SECRET (or LIMPET_RPC_SECRET_FILE) to the compactor's secret.
    """
    door = _Door(host, port, tokens_file, metrics_token_file, tls_cert, tls_key, peer_connections)
    _run("api", url, door, log, json, lease_s=lease_s, compactor_url=compactor_url, ca=ca)


@app.command(epilog=COMPACTOR_EPILOG)
def compactor(
    url: ServeUrlOption = DEFAULT_URL,
    host: HostOption = "127.0.0.1",
    port: PortOption = COMPACTOR_PORT,
    metrics_token_file: MetricsTokenOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    peer_connections: PeerOption = 128,
    log: LogOption = LogForm.text,
    json: JsonOption = False,
) -> None:
    """Serve publication alone: the only process whose key may write what is published.

    Any number may run. Set LIMPET_RPC_SECRET (or LIMPET_RPC_SECRET_FILE) to a secret that the API must send.
    """
    door = _Door(host, port, None, metrics_token_file, tls_cert, tls_key, peer_connections)
    _run("compactor", url, door, log, json)


def _refuse_options(context: typer.Context) -> None:
    """`limpet serve --port 1 api` would not do what it says."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{option} goes behind {context.invoked_subcommand}", context)


Kind = Literal["all", "api", "compactor"]


@dataclass(frozen=True, slots=True)
class _Door:
    """Where a service listens, and what it asks of callers."""

    host: str
    port: int
    tokens_file: str | None
    metrics_token_file: str | None
    tls_cert: str | None
    tls_key: str | None
    peer_max: int

    def tls(self) -> ssl.SSLContext | None:
        """Raises: Invalid for a certificate without a key, a key without a certificate, or ones of no use."""
        from limpet.service.serve import tls_context

        if (self.tls_cert is None) != (self.tls_key is None):
            raise Invalid("--tls-cert and --tls-key go together", hint="give both, or neither")
        return tls_context(self.tls_cert, self.tls_key) if self.tls_cert and self.tls_key else None


def _run(
    kind: Kind,
    url: str,
    door: _Door,
    form: LogForm,
    json: bool,
    *,
    lease_s: float = 0.0,
    compactor_url: str | None = None,
    ca: str | None = None,
) -> None:
    import limpet
    from limpet.app.urls import absolute

    demand_extra()
    from limpet.app.catalogs import workspace_url
    from limpet.runtime import system
    from limpet.service.auth import API_TOKENS, RPC_SECRET, check_bind, is_loopback, secrets_of
    from limpet.service.log import ServiceLog
    from limpet.service.serve import ServiceContext, listen, run

    runtime = system()
    log = ServiceLog(runtime, form.value)
    tls, secrets = door.tls(), secrets_of(RPC_SECRET)
    guard, metrics = _guards(kind, door, log)
    check_bind(door.host, {RPC_SECRET if kind == "compactor" else API_TOKENS: bool(guard)})
    where = absolute(workspace_url(url))
    if "%" in where.partition("?")[0]:
        raise Invalid(
            f"{where} has a % in it, which clients of tables read in different ways",
            hint="choose a place, tenant and workspace of letters, digits, - and _",
        )
    fleet = limpet.open(where)
    fleet.check()
    shared = ServiceContext(fleet, runtime, log)
    parts = _parts(kind, shared, guard, secrets, lease_s, compactor_url, ca)
    listener = listen(door.host, door.port)
    if tls is None and not is_loopback(door.host):
        log.tell(f"{door.host} is served without TLS: tokens can be read on the way; give --tls-cert, or use a proxy")

    def started() -> None:
        _announce(kind, fleet, listener, bool(guard), json, secure=tls is not None)

    run(parts, shared, listener, metrics, started, tls=tls, peer_max=door.peer_max)


def _guards(kind: Kind, door: _Door, log: ServiceLog) -> tuple[Tokens, Tokens]:
    """The tokens of the service, and those of its metrics: the same, and one that may do nothing else."""
    from limpet.runtime import system
    from limpet.service.auth import (
        API_TOKENS,
        DEFAULT,
        METRICS_TOKEN,
        RPC_SECRET,
        Caller,
        Tokens,
        WatchedFile,
        named_tokens,
        source_of,
    )

    runtime = system()
    owner = Caller(DEFAULT, frozenset(("read", "write", "metrics")))
    rpc = Caller("rpc", frozenset(("publish", "metrics")))
    name, caller = (RPC_SECRET, rpc) if kind == "compactor" else (API_TOKENS, owner)
    sources = [source_of(name, caller, runtime, log.tell)]
    if door.tokens_file is not None:
        sources.append(WatchedFile(door.tokens_file, named_tokens, runtime, log.tell, private=True))
    environ = {**os.environ, **({f"{METRICS_TOKEN}_FILE": door.metrics_token_file} if door.metrics_token_file else {})}
    scraper = source_of(METRICS_TOKEN, Caller("metrics", frozenset(("metrics",))), runtime, log.tell, environ)
    found = [source for source in sources if source is not None]
    return Tokens((), *found), Tokens((), *found, *([scraper] if scraper is not None else []))


def _parts(
    kind: Kind,
    shared: ServiceContext,
    guard: Tokens,
    secrets: list[str],
    lease_s: float,
    compactor_url: str | None,
    ca: str | None,
) -> list[ServicePart]:
    from limpet.service.serve import ApiPart, CompactorPart, RemoteCompactorPart

    if kind == "api":
        assert compactor_url is not None
        away = RemoteCompactorPart(shared, compactor_url, secrets[0] if secrets else None, ca)
        return [away, ApiPart(shared, guard, away.publish, away.fold, lease_s=lease_s)]
    compactor = CompactorPart(shared, guard, exposed=kind == "compactor")
    if kind == "compactor":
        return [compactor]
    return [compactor, ApiPart(shared, guard, compactor.publish, compactor.fold, lease_s=lease_s)]


def _announce(kind: Kind, fleet: Fleet, listener: socket.socket, guarded: bool, json: bool, *, secure: bool) -> None:
    from limpet.app.urls import absolute

    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if secure else "http"
    here = f"{scheme}://{'127.0.0.1' if host == '0.0.0.0' else '[::1]' if host == '::' else shown}:{port}"
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

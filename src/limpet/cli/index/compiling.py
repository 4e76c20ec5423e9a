"""`limpet index compile` and `publish`: fold what waits into the shards; make an index an Iceberg table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.index.options import EngineOption, IndexArgument, demand_index, requests_text, size_text, table
from limpet.cli.options import JsonOption, UrlOption, existing
from limpet.cli.output import ago, clean, console, lines, many, print_json
from limpet.errors import Corrupt, LimpetError, Missing, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.cli.index.engine import Engine
    from limpet.index import CompileReport
    from limpet.publish import Published
    from limpet.worker.signals import SignalPipe


COMPILE_EPILOG = lines(
    "Example: once; for ever, as a service; on a Dask cluster",
    "$ limpet index compile sites -u s3://acme/prod",
    "$ limpet index compile --watch -u s3://acme/prod",
    "$ limpet index compile sites --full --engine dask=tcp://10.0.0.5:8786 -u s3://acme/prod",
    "Exit codes: 0 compiled, or stopped by a signal with --watch; 1 there is no such index, a shard is corrupt, or the "
    "store refused; 2 wrong usage; 130 interrupted.",
)

IDLE_MAX = 8
COUNTS = ("folded", "packed", "rested", "held", "conflicts", "objects", "records")


def compile(
    index: Annotated[
        list[str] | None,
        typer.Argument(metavar="INDEX", show_default=False, help="The indexes; without one, all of them."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Fold everything that waits, whether it pays or not.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until SIGTERM or Ctrl-C.")] = False,
    every: Annotated[
        float,
        typer.Option(
            "--every",
            metavar="SECONDS",
            min=1.0,
            help="With --watch: how often. While nothing waits, up to eight times as rarely.",
        ),
    ] = 60.0,
    engine: EngineOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Fold the records that wait into the shards, which makes lookups and queries cheap.

    A shard is folded when that pays or is overdue; below that, waiting records are gathered into packs. Readers see no
    difference. Any number of compilers may run at once, anywhere, and be killed at any moment.
    """
    from limpet.cli.index.engine import engine as engine_of

    fleet = existing(url)
    for name in index or ():
        demand_index(fleet, name)
    with engine_of(engine, fleet.url) as place:
        if watch:
            _watch(fleet, index, place, every, full=full, json=json)
        else:
            _once(fleet, index, place, full=full, json=json)


def _once(fleet: Fleet, names: list[str] | None, place: Engine, *, full: bool, json: bool) -> None:
    reports: dict[str, CompileReport] = {}
    failed: LimpetError | None = None
    with fleet.meter.measure() as cost:
        for name in names or fleet.indexes():
            try:
                reports[name] = fleet.index(name).compile(place.executor, full=full)
            except Corrupt as error:
                failed = failed or error
            except Missing:
                if names:
                    raise
    if json:
        print_json({"indexes": {name: _facts(each) for name, each in reports.items()}, "requests": cost.requests})
    elif reports or failed is None:
        _print(reports, cost.requests, spread=place.executor is not None)
    if failed is not None:
        raise failed


def _facts(report: CompileReport) -> dict[str, Any]:
    return {each.name: getattr(report, each.name) for each in fields(report) if each.name not in ("folds", "merged")}


def _print(reports: dict[str, CompileReport], requests: dict[str, int], *, spread: bool) -> None:
    out = console()
    if not reports:
        out.print("there is no index to compile; `limpet index create` makes one")
        return
    rows = table("index", *COUNTS, "written", "quarantined")
    for name, report in reports.items():
        counts = [f"{getattr(report, each):,}" for each in COUNTS]
        bad = f"[red]{report.quarantined:,}[/red]" if report.quarantined else "0"
        rows.add_row(clean(name), *counts, size_text(report.written_bytes), bad)
    out.print(rows)
    for name, report in reports.items():
        if report.strays:
            said = f"{name}: {many(report.strays, 'folder')} of another depth"
            out.print(f"[yellow]{clean(said)}[/yellow]; `limpet index verify` tells more", soft_wrap=True)
    where = " here; what the workers asked is not in it" if spread else ""
    out.print(requests_text(requests, where), soft_wrap=True)


class _StopRequest:
    """Raised by a signal, for good."""

    def __init__(self, signals: SignalPipe) -> None:
        self._signals = signals
        self._up = False

    def __call__(self) -> bool:
        self._up = self._up or bool(self._signals.read())
        return self._up

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until it is raised; whether it was."""
        import select

        if not self():
            select.select([self._signals.fd], [], [], seconds)
        return self()


def _watch(fleet: Fleet, names: list[str] | None, place: Engine, every_s: float, *, full: bool, json: bool) -> None:
    """Compile again and again. A store that is away, or a bad shard, is told and tried again; all else is an end."""
    from limpet.runtime import system
    from limpet.worker.signals import STOP_SIGNALS, SignalPipe

    runtime = system()
    pause_s = every_s
    with SignalPipe.catching(STOP_SIGNALS) as signals:
        stop = _StopRequest(signals)
        while not stop():
            busy = False
            try:
                for name in names or fleet.indexes():
                    began_s = runtime.elapsed_s()
                    try:
                        report = fleet.index(name).compile(place.executor, full=full, stop=stop)
                    except (Corrupt, Unavailable, OutcomeUnknown) as error:
                        _tell({"index": name, "error": str(error), "hint": error.hint}, json=json)
                        continue
                    except Missing:
                        if names:
                            raise
                        continue
                    if report.objects or report.quarantined:
                        busy = True
                        _tell({"index": name, **_facts(report), "seconds": runtime.elapsed_s() - began_s}, json=json)
            except (Unavailable, OutcomeUnknown) as error:
                _tell({"error": str(error), "hint": error.hint}, json=json)
            pause_s = every_s if busy else min(2 * pause_s, IDLE_MAX * every_s)
            stop.wait(pause_s)


def _tell(facts: dict[str, Any], *, json: bool) -> None:
    """One line about one run: JSON on stdout, words on stderr."""
    from limpet import records
    from limpet.runtime import system

    at = system().wall()
    if json:
        print(records.encode({"at": at, **facts}).decode(), flush=True)
        return
    if "error" in facts:
        said = f"{facts.get('index', 'store')}: {facts['error']} (hint: {facts['hint']})"
    else:
        said = (
            f"{facts['index']}: {many(facts['folded'], 'shard')} folded, {facts['packed']:,} packed, "
            f"{many(facts['objects'], 'object')}, {many(facts['records'], 'record')} new, "
            f"{size_text(facts['written_bytes'])} written in {ago(facts['seconds'])}"
        )
        said += f", {facts['quarantined']:,} to quarantine" if facts["quarantined"] else ""
    print(f"{at:%H:%M:%S}Z {said}", file=sys.stderr, flush=True)


PUBLISH_EPILOG = lines(
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
        _print_published(done)


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


def _print_published(done: Published) -> None:
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

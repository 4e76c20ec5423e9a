"""`limpet index compile` and `publish`: fold what waits into the shards; publish an index as an Iceberg table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

import limpet
from limpet.cli import ago, clean, console, lines, many, print_json, requests_text, say, show, size_text, table
from limpet.cli.index.options import EngineOption, IndexArgument
from limpet.cli.options import JsonOption, UrlOption
from limpet.errors import Corrupt, LimpetError, Missing, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.cli.index.engine import Engine
    from limpet.index import CompileReport
    from limpet.publish import Published
    from limpet.worker.signals import SignalPipe

EPILOGS = {
    "compile": lines(
        "Example: once; as a service, until it is stopped; on a Dask cluster",
        "$ limpet index compile sites -u s3://acme/prod",
        "$ limpet index compile --watch -u s3://acme/prod",
        "$ limpet index compile sites --full --engine dask=tcp://10.0.0.5:8786 -u s3://acme/prod",
        "Exit codes: 0 compiled, or stopped by a signal with --watch; 1 there is no such index, a shard is corrupt, or "
        "the store refused; 2 wrong usage; 130 interrupted.",
    ),
    "publish": lines(
        "Example: where no service runs; through the one that leads the catalog; under another name",
        "$ limpet index publish sites -u s3://acme/prod",
        "$ limpet index publish sites --catalog http://127.0.0.1:8181 -u s3://acme/prod",
        "$ limpet index publish sites --table web.sites -u s3://acme/prod",
        "Exit codes: 0 the table is up to date; 1 there is no such index, another process leads the catalog, or it "
        "could not be read or written; 2 wrong usage, or a table that is not this index's.",
    ),
}

IDLE_MAX = 8
COUNTS = ("folded", "packed", "rested", "held", "conflicts", "objects", "records")


def compile(
    index: Annotated[
        list[str] | None,
        typer.Argument(metavar="INDEX", show_default=False, help="The indexes; without one, all of them."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Fold all waiting records, even where few of them wait.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until SIGTERM or Ctrl-C.")] = False,
    every: Annotated[
        float,
        typer.Option(
            "--every",
            metavar="SECONDS",
            min=1.0,
            help="With --watch: the interval. While nothing waits, it grows up to eightfold.",
        ),
    ] = 60.0,
    engine: EngineOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Fold waiting records into the shards, so that lookups and queries are cheap.

    A shard is rewritten when enough records wait for it, or one has waited for a day; until then they are gathered into
    packs. Readers see no difference. Any number of compilers may run at once, anywhere, and be killed at any moment.
    """
    from limpet.app.indexes import demand_index
    from limpet.cli.index.engine import engine as engine_of

    fleet = limpet.open(url, create=False).check()
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
    if not reports:
        say("there is no index to compile; `limpet index create` makes one")
        return
    figures = (*COUNTS, "written", "quarantined")
    listed = table("index", *figures, right=figures)
    for name, report in reports.items():
        counts = [f"{getattr(report, each):,}" for each in COUNTS]
        bad = f"[red]{report.quarantined:,}[/red]" if report.quarantined else "0"
        listed.add_row(clean(name), *counts, size_text(report.written_bytes), bad)
    show(listed)
    for name, report in reports.items():
        if report.strays:
            said = f"{name}: {many(report.strays, 'folder')} of another depth"
            show(f"[yellow]{clean(said)}[/yellow]; `limpet index verify` tells more")
    show(requests_text(requests, " here, without those of the workers" if spread else ""))


class _StopRequest:
    """Whether a signal has asked to stop; once it has, it stays so."""

    def __init__(self, signals: SignalPipe) -> None:
        self._signals = signals
        self._up = False

    def __call__(self) -> bool:
        self._up = self._up or bool(self._signals.read())
        return self._up

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until a signal comes; whether one did."""
        import select

        if not self():
            select.select([self._signals.fd], [], [], seconds)
        return self()


def _watch(fleet: Fleet, names: list[str] | None, place: Engine, every_s: float, *, full: bool, json: bool) -> None:
    """Compile until a signal comes. An unavailable store or a bad shard is reported, and tried again."""
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
                        _print_run({"index": name, "error": str(error), "hint": error.hint}, json=json)
                        continue
                    except Missing:
                        if names:
                            raise
                        continue
                    if report.objects or report.quarantined:
                        busy = True
                        _print_run(
                            {"index": name, **_facts(report), "seconds": runtime.elapsed_s() - began_s}, json=json
                        )
            except (Unavailable, OutcomeUnknown) as error:
                _print_run({"error": str(error), "hint": error.hint}, json=json)
            pause_s = every_s if busy else min(2 * pause_s, IDLE_MAX * every_s)
            stop.wait(pause_s)


def _print_run(facts: dict[str, Any], *, json: bool) -> None:
    """Print one line about one run: JSON on stdout, text on stderr."""
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


def publish(
    index: IndexArgument,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="NAMESPACE.NAME",
            show_default="indexes.INDEX",
            help="The table; created if it does not exist.",
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
    """Publish an index as an Iceberg table for DuckDB, Polars, PyIceberg, Spark and others, or update its table.

    Only shards that have changed since the last time are written, in one commit: readers see the old table or the new
    one. If nothing has changed, nothing is written. Run it from cron, as often as you like.

    Without --catalog, this process leads the catalog for a moment. If a `limpet serve` leads it, name it by --catalog.
    """
    from limpet.app.indexes import demand_index
    from limpet.cli.catalog import demand_extra, identifier

    demand_extra()
    named = identifier(table, ".") if table is not None else None
    fleet = limpet.open(url, create=False).check()
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

    through = None
    if service is not None:
        from limpet.service.client import ServiceWriter

        through = ServiceWriter(service)
    try:
        return fleet.publish_index(index, table, compile=compile, through=through, wait_s=wait_s)
    except NotLeader as error:
        if through is not None:
            raise
        raise NotLeader(str(error), hint="commit through it: --catalog http://HOST:PORT") from None


def _print_published(done: Published) -> None:
    name = clean(".".join((*done.namespace, done.table)))
    if done.changed:
        kept = done.files - done.files_added
        files = f"{many(done.files_added, 'file')} written, {kept:,} kept, {done.files_removed:,} removed"
        said = f"published {many(done.records, 'record')} of {clean(repr(done.index))} as the table {name}: {files}"
    else:
        said = f"the table {name} is up to date, with {many(done.records, 'record')}"
    show(said, f"[dim]{clean(done.metadata_location)}[/dim]")

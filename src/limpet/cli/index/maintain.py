"""`limpet index compile`, `publish`, `verify`, `adopt`, `reshard`, `purge` and `drop`: operations on a whole index."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import limpet
from limpet.cli import (
    EXIT_FAILED,
    ago,
    answer,
    clean,
    console,
    print_dated,
    print_json,
    requests_text,
    say,
    show,
    size_text,
    table,
)
from limpet.cli.drop import DryRunOption, run_drop
from limpet.cli.index.options import Engine, EngineOption, IndexArgument, engine_of, opened
from limpet.cli.options import DELAY_HELP, JsonOption, SignalFlag, UrlOption, YesOption, duration_s
from limpet.cli.parse import Argument, Exit, Option
from limpet.kernel.errors import Corrupt, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import IndexKeys
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.index import CompileReport
    from limpet.index.maintain.import_existing import AdoptReport
    from limpet.index.maintain.verify import VerifyReport


IDLE_MAX = 8
COUNTS = ("folded", "packed", "rested", "held", "conflicts", "objects", "records")


def compile(
    index: Annotated[
        list[str] | None, Argument(metavar="INDEX", help="The indexes; without one, all of them.", names="index")
    ] = None,
    full: Annotated[bool, Option(help="Fold all waiting records, even where few of them wait.")] = False,
    watch: Annotated[bool, Option(help="Repeat until SIGTERM or Ctrl-C.")] = False,
    every: Annotated[
        float,
        Option(
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

    Example: once; as a service, until it is stopped; on a Dask cluster
    $ limpet index compile sites -u s3://acme/prod
    $ limpet index compile --watch -u s3://acme/prod
    $ limpet index compile sites --full --engine dask=tcp://10.0.0.5:8786 -u s3://acme/prod
    Exit codes: 0 compiled, or stopped by a signal with --watch; 1 there is no such index, a shard is corrupt, or the
      store refused; 2 wrong usage; 130 interrupted.
    """
    from limpet.app.indexes import demand_index

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
            show(f"[yellow]{clean(said)}[/yellow]; see `limpet index verify`")
    show(requests_text(requests, " here, without those of the workers" if spread else ""))


def _watch(fleet: Fleet, names: list[str] | None, place: Engine, every_s: float, *, full: bool, json: bool) -> None:
    """Compile until a signal comes. An unavailable store or a bad shard is reported, and tried again."""
    from limpet.kernel.waiting import ticks
    from limpet.worker.protocol import STOP_SIGNALS, SignalPipe

    ticks_apart = ticks_left = 1
    with SignalPipe.catching(STOP_SIGNALS) as signals:
        stop = SignalFlag(signals)
        for _ in chain([None], ticks(stop, every_s)):
            ticks_left -= 1
            if ticks_left:
                continue
            busy = False
            try:
                for name in names or fleet.indexes():
                    try:
                        busy |= _compile_watched(fleet, name, place, stop, full=full, json=json)
                    except Missing:
                        if names:
                            raise
            except (Unavailable, OutcomeUnknown) as error:
                _print_run({"error": str(error), "hint": error.hint}, json=json)
            ticks_left = ticks_apart = 1 if busy else min(2 * ticks_apart, IDLE_MAX)


def _compile_watched(fleet: Fleet, name: str, place: Engine, stop: SignalFlag, *, full: bool, json: bool) -> bool:
    """Compile one index and report it; whether there was something to do."""
    from limpet.kernel.runtime import system

    began_s = system().elapsed_s()
    try:
        report = fleet.index(name).compile(place.executor, full=full, stop=stop.is_set)
    except (Corrupt, Unavailable, OutcomeUnknown) as error:
        _print_run({"index": name, "error": str(error), "hint": error.hint}, json=json)
        return False
    if report.objects or report.quarantined:
        _print_run({"index": name, **_facts(report), "seconds": system().elapsed_s() - began_s}, json=json)
        return True
    return False


def _print_run(facts: dict[str, Any], *, json: bool) -> None:
    if "error" in facts:
        said = f"{facts.get('index', 'store')}: {facts['error']} (hint: {facts['hint']})"
    else:
        said = (
            f"{facts['index']}: {many(facts['folded'], 'shard')} folded, {facts['packed']:,} packed, "
            f"{many(facts['objects'], 'object')}, {many(facts['records'], 'record')} new, "
            f"{size_text(facts['written_bytes'])} written in {ago(facts['seconds'])}"
        )
        said += f", {facts['quarantined']:,} to quarantine" if facts["quarantined"] else ""
    print_dated(facts, [said], json=json)


def publish(
    index: IndexArgument,
    table: Annotated[
        str | None,
        Option(metavar="NAMESPACE.NAME", show_default="indexes.INDEX", help="The table; created if it does not exist."),
    ] = None,
    catalog: Annotated[
        str | None,
        Option(metavar="URL", help="Commit through the `limpet serve` there, with the first of LIMPET_API_TOKENS."),
    ] = None,
    compile: Annotated[
        bool, Option("--compile/--no-compile", help="Fold what waits into the shards first, or leave it out.")
    ] = True,
    wait: Annotated[
        float, Option(metavar="SECONDS", min=0.0, help="How long to wait for the lead, without --catalog.")
    ] = 20.0,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Publish an index as an Iceberg table for DuckDB, Polars, PyIceberg, Spark and others, or update its table.

    Only shards that have changed since the last time are written, in one commit: readers see the old table or the new
    one. If nothing has changed, nothing is written. Run it from cron, as often as you like.

    Without --catalog, this process leads the catalog for a moment. If a `limpet serve` leads it, name it by --catalog.

    Example: where no service runs; through the one that leads the catalog; under another name
    $ limpet index publish sites -u s3://acme/prod
    $ limpet index publish sites --catalog http://127.0.0.1:8181 -u s3://acme/prod
    $ limpet index publish sites --table web.sites -u s3://acme/prod
    Exit codes: 0 the table is up to date; 1 there is no such index, another process leads the catalog, or it could not
      be read or written; 2 wrong usage, or a table that is not this index's.
    """
    from limpet.app.indexes import demand_index
    from limpet.catalog import NotLeader
    from limpet.cli.catalog import demand_extra, identifier, writer_of

    demand_extra()
    named = identifier(table, ".") if table is not None else None
    fleet = limpet.open(url, create=False).check()
    demand_index(fleet, index)
    with console(stderr=True).status("publishing"):
        try:
            done = fleet.publish_index(index, named, compile=compile, through=writer_of(catalog), wait_s=wait)
        except NotLeader as error:
            if catalog is not None:
                raise
            raise NotLeader(str(error), hint="commit through it: --catalog http://HOST:PORT") from None
    name = clean(".".join((*done.namespace, done.table)))
    said = f"the table {name} is up to date, with {many(done.records, 'record')}"
    if done.changed:
        kept = done.files - done.files_added
        files = f"{many(done.files_added, 'file')} written, {kept:,} kept, {done.files_removed:,} removed"
        said = f"published {many(done.records, 'record')} of {clean(repr(done.index))} as the table {name}: {files}"
    if json:
        print_json(done)
    else:
        show(said, f"[dim]{clean(done.metadata_location)}[/dim]")


# ---- repairs ----

QuiescedOption = Annotated[
    bool, Option("--quiesced", help="I have stopped everything that writes, compiles or reads the index.")
]

FINDING = ("kind", "key", "what", "wrong", "repaired", "hint")


def verify(
    name: IndexArgument,
    repair: Annotated[
        bool, Option(help="Repair what can be derived: order, duplicates, misplaced records, counts.")
    ] = False,
    accept_loss: Annotated[
        bool,
        Option(help="Keep what is left of damaged or missing shards, give up the rest; their bytes go to quarantine."),
    ] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Read every object of an index, and report what is wrong.

    Without --repair and --accept-loss nothing is changed, and read-only credentials are enough. Restore a damaged shard
    from a backup if you have one; --accept-loss gives up what is lost. The index may be in use meanwhile.

    Example: verify, then repair what can be derived
    $ limpet index verify domains -u s3://acme/prod
    $ limpet index verify domains --repair -u s3://acme/prod
    Example: a shard is lost for good; go on with all the others
    $ limpet index verify domains --accept-loss -u s3://acme/prod
    Exit codes: 0 nothing is wrong, or all was repaired; 1 something is wrong, or there is no such index; 2 wrong
      usage; 75 another repair, reshard or purge is running.
    """
    index = opened(url, name, read_only=not (repair or accept_loss))
    with console(stderr=True).status(f"reading {name!r}"):
        report = index.verify(repair=repair, accept_loss=accept_loss)
    if json:
        facts = ("ok", "shards", "records", "tombstones", "waiting", "read_bytes")
        print_json(
            {
                "index": name,
                **{each: getattr(report, each) for each in facts},
                "findings": [{each: getattr(found, each) for each in FINDING} for found in report.findings],
            }
        )
    else:
        _print_report(name, report)
    if not report.ok:
        raise Exit(EXIT_FAILED)


def _print_report(name: str, report: VerifyReport) -> None:
    for found in report.findings:
        state = "repaired" if found.repaired else "wrong" if found.wrong else "note"
        say(f"{state} {found.kind}: {found.key} {found.what}")
    for hint in dict.fromkeys(found.hint for found in report.findings if found.wrong):
        say(f"hint: {hint}", err=True)
    read = f"{many(report.shards, 'shard')}, {many(report.records, 'record')}, {many(report.tombstones, 'tombstone')}"
    waits = f"; {many(report.waiting, 'object')} to be compiled" if report.waiting else ""
    wrong = sum(found.wrong for found in report.findings)
    verdict = f"{many(wrong, 'thing is', 'things are')} wrong with {name!r}" if wrong else f"{name!r} is in order"
    say(f"{verdict}: {read}{waits}")


def adopt(
    name: IndexArgument,
    from_: Annotated[
        str | None,
        Option(
            "--from",
            metavar="DIR",
            help="Where the files are: a folder, or a URL such as s3://bucket/prefix. Default: beside the index's own.",
        ),
    ] = None,
    quiesced: Annotated[
        bool, Option(help="Nothing writes those files any more: delete each once it is imported.")
    ] = False,
    schema: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            show_default="the folder's datapackage.json",
            help="The columns, if there is no index yet: a data package or table schema, in JSON.",
        ),
    ] = None,
    key: Annotated[str | None, Option("--key", "-k", metavar="NAME", help="The key, if there is no index yet.")] = None,
    any_name: Annotated[bool, Option(help="A file need not be named by the key of its record.")] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Import plain record files, `{key}.usv`, that other programs wrote.

    Each holds one record: its fields between U+001F, in the order of the index's columns, without a header. Files in a
    folder `shards/` there hold many. Bad files are reported and kept; the others are imported. Running it twice changes
    nothing.

    Without --from, and if the folder has no manifest, an index is made in place: the records are put, the record files
    are moved to `adopted/` unchanged, and so are locks and a `manifest.json` of the other program. The index's own
    manifest is written last. If any file is bad, nothing is changed. The place need not be a fleet before.

    Example: import a folder of record files; then those beside the index's own, which nothing writes any more
    $ limpet index adopt domains --from ./old/domains -u s3://acme/prod
    $ limpet index adopt domains --quiesced -u s3://acme/prod
    Example: make an index of shards that another program left where the index should be
    $ limpet index adopt domains --key domain --quiesced -u ./fleet
    Exit codes: 0 all were imported; 1 some were bad, or there is no such index or folder; 2 wrong usage.
    """
    from limpet.app.adopt import adopt_files, has_records

    fleet = limpet.open(url, create=from_ is None and has_records(url, name)).check()
    with console(stderr=True).status(f"taking files into {name!r}"):
        report, in_place = adopt_files(fleet, name, from_, schema, key, quiesced=quiesced, any_name=any_name)
    if json:
        print_json({"index": name, **asdict(report)})
    else:
        _print_adopted(name, report, in_place=in_place, quiesced=quiesced)
    if report.bad:
        raise Exit(EXIT_FAILED)


def _print_adopted(name: str, report: AdoptReport, *, in_place: bool, quiesced: bool) -> None:
    for bad in report.bad:
        say(f"not imported: {bad.name}: {bad.reason}", err=True)
    if report.locks:
        fate = "moved" if report.created else "deleted" if quiesced else "not looked at"
        say(f"{many(report.locks, 'lock')} of the other program: {fate}", err=True)
    if report.ignored:
        said = many(report.ignored, "other file is no record and stays", "other files are no records and stay")
        say(f"{said}, such as {', '.join(report.ignored_names)}", err=True)
    if in_place and not report.created:
        say(f"nothing was changed: {many(len(report.bad), 'file is', 'files are')} bad", err=True)
        return
    kept = f"; {many(report.deleted, 'original')} deleted" if quiesced else "; the originals stay"
    if report.created:
        adopted = IndexKeys.of(name).adopted
        kept = f"; {many(report.moved, 'file')} moved to {adopted}/, the others stay"
    say(
        f"imported {many(report.records, 'record')} of {many(report.files, 'file')} into {name!r}{kept}"
        + (f"; {many(len(report.bad), 'file is', 'files are')} bad" if report.bad else "")
    )


def reshard(
    name: IndexArgument,
    depth: Annotated[int, Option(help="Hex digits of a shard's name: 2 to 4 (256 to 65,536).")],
    quiesced: QuiescedOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Change the number of shards of an index. Offline.

    Stop everything that uses the index first. If it is interrupted, run it again. With the depth that the index has, it
    only cleans up after a reshard that was abandoned.

    Example: 4,096 shards instead of 256, while no process uses the index
    $ limpet index reshard domains --depth 3 --quiesced -u s3://acme/prod
    Exit codes: 0 done; 1 another process wrote meanwhile, or a shard is bad: put that right and run it again; 2 wrong
      usage; 75 another repair, reshard or purge is running.
    """
    handle = opened(url, name)
    with console(stderr=True).status(f"resharding {name!r}"):
        report = handle.reshard(depth, quiesced=quiesced)
    text = f"{name!r} has depth {depth} already; {many(report.removed, 'object')} of another depth removed"
    if report.before != depth:
        text = (
            f"{name!r} has {many(report.shards, 'shard')} of depth {depth} now (it was {report.before}), with "
            f"{many(report.records, 'record')}, tombstones included"
        )
    answer({"index": name, **asdict(report)}, text, json=json)


def purge(
    name: IndexArgument,
    older_than: Annotated[
        float | None, Option(metavar="AGE", parser=duration_s, help=f"Only older ones, {DELAY_HELP}.")
    ] = None,
    quiesced: QuiescedOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Drop the tombstones of deleted records. Offline.

    Stop everything that uses the index first: a program that later writes an older record of a deleted key brings it
    back. Waiting records are compiled first.

    Example: drop tombstones that are older than 30 days, while no process uses the index
    $ limpet index purge domains --older-than 30d --quiesced -u s3://acme/prod
    Exit codes: 0 done; 1 another process wrote meanwhile, or a shard is bad: put that right and run it again; 2 wrong
      usage; 75 another repair, reshard or purge is running.
    """
    handle = opened(url, name)
    with console(stderr=True).status(f"purging {name!r}"):
        report = handle.purge(quiesced=quiesced, older_than_s=older_than)
    kept = f"; {report.kept:,} are younger and stay" if report.kept else ""
    text = f"{many(report.dropped, 'tombstone')} dropped from {many(report.shards, 'shard')} of {name!r}{kept}"
    answer({"index": name, **asdict(report)}, text, json=json)


def drop(
    name: IndexArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    quiesced: Annotated[bool, Option(help="Nothing uses the index: its name can be used again at once.")] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Remove an index with all its records. A table that was published from it stays.

    It is refused while a compiler, a repair or a reshard works. Programs that have the index open learn of it within
    ten minutes, and puts of theirs go with it; so its name can be used again after eleven minutes, or at once with
    --quiesced. If the command is killed, run it again: it goes on. In a bucket it waits for two minutes.

    Example: what would go; then drop it
    $ limpet index drop sites --dry-run -u s3://acme/prod
    $ limpet index drop sites --yes -u s3://acme/prod
    Exit codes: 0 dropped; 1 no such index, it is in use, or you said no; 2 wrong usage, or no terminal to ask; 75
      another process drops it.
    """
    from limpet.app.indexes import demand_index

    fleet = limpet.open(url, create=False, read_only=dry_run).check()
    index = fleet.index(name)
    try:
        run_drop(partial(index.drop, quiesced=quiesced), yes=yes, dry_run=dry_run, json=json)
    except Missing:
        demand_index(fleet, name)
        raise

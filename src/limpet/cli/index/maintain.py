"""`limpet index verify`, `adopt`, `reshard` and `purge`: operations on a whole index."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import limpet
from limpet.cli import EXIT_FAILED, console, lines, many, print_json, say
from limpet.cli.index.options import IndexArgument
from limpet.cli.options import DELAY_HELP, JsonOption, UrlOption, duration_s
from limpet.keys import IndexKeys

if TYPE_CHECKING:
    from limpet.index.maintain.import_existing import AdoptReport
    from limpet.index.maintain.verify import VerifyReport

EPILOGS = {
    "verify": lines(
        "Example: verify, then repair what can be derived",
        "$ limpet index verify domains -u s3://acme/prod",
        "$ limpet index verify domains --repair -u s3://acme/prod",
        "Example: a shard is lost for good; go on with all the others",
        "$ limpet index verify domains --accept-loss -u s3://acme/prod",
        "Exit codes: 0 nothing is wrong, or all was repaired; 1 something is wrong, or there is no such index; 2 wrong "
        "usage; 75 another repair, reshard or purge is running.",
    ),
    "adopt": lines(
        "Example: import a folder of record files; then those beside the index's own, which nothing writes any more",
        "$ limpet index adopt domains --from ./old/domains -u s3://acme/prod",
        "$ limpet index adopt domains --quiesced -u s3://acme/prod",
        "Example: make an index of shards that another program left where the index should be",
        "$ limpet index adopt domains --key domain --quiesced -u ./fleet",
        "Exit codes: 0 all were imported; 1 some were bad, or there is no such index or folder; 2 wrong usage.",
    ),
    "reshard": lines(
        "Example: 4,096 shards instead of 256, while no process uses the index",
        "$ limpet index reshard domains --depth 3 --quiesced -u s3://acme/prod",
        "Exit codes: 0 done; 1 another process wrote meanwhile, or a shard is bad: put that right and run it again; 2 "
        "wrong usage; 75 another repair, reshard or purge is running.",
    ),
    "purge": lines(
        "Example: drop tombstones that are older than 30 days, while no process uses the index",
        "$ limpet index purge domains --older-than 30d --quiesced -u s3://acme/prod",
        "Exit codes: 0 done; 1 another process wrote meanwhile, or a shard is bad: put that right and run it again; 2 "
        "wrong usage; 75 another repair, reshard or purge is running.",
    ),
}

QuiescedOption = Annotated[
    bool, typer.Option("--quiesced", help="I have stopped everything that writes, compiles or reads the index.")
]

FINDING = ("kind", "key", "what", "wrong", "repaired", "hint")


def verify(
    name: IndexArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be derived: order, duplicates, misplaced records, counts.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Keep what is left of damaged or missing shards, give up the rest; their bytes go to quarantine.",
        ),
    ] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Read every object of an index, and report what is wrong.

    Without --repair and --accept-loss nothing is changed, and read-only credentials are enough. Restore a damaged shard
    from a backup if you have one; --accept-loss gives up what is lost. The index may be in use meanwhile.
    """
    from limpet.app.indexes import demand_index

    handle = demand_index(limpet.open(url, create=False, read_only=not (repair or accept_loss)).check(), name)
    with console(stderr=True).status(f"reading {name!r}"):
        report = handle.verify(repair=repair, accept_loss=accept_loss)
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
        raise typer.Exit(EXIT_FAILED)


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
        typer.Option(
            "--from",
            metavar="DIR",
            show_default=False,
            help="Where the files are: a folder, or a URL such as s3://bucket/prefix. Default: beside the index's own.",
        ),
    ] = None,
    quiesced: Annotated[
        bool, typer.Option("--quiesced", help="Nothing writes those files any more: delete each once it is imported.")
    ] = False,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            show_default="the folder's datapackage.json",
            help="The columns, if there is no index yet: a data package or table schema, in JSON.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", metavar="NAME", show_default=False, help="The key, if there is no index yet."),
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Import plain record files, `{key}.usv`, that other programs wrote.

    Each holds one record: its fields between U+001F, in the order of the index's columns, without a header. Files in a
    folder `shards/` there hold many. Bad files are reported and kept; the others are imported. Running it twice changes
    nothing.

    Without --from, and if the folder has no manifest, an index is made in place: the records are put, the record files
    are moved to `adopted/` unchanged, and the manifest is written last. If any file is bad, nothing is changed. The
    place need not be a fleet before.
    """
    from limpet.app.adopt import adopt_files, has_records

    fleet = limpet.open(url, create=from_ is None and has_records(url, name)).check()
    with console(stderr=True).status(f"taking files into {name!r}"):
        report, in_place = adopt_files(fleet, name, from_, schema, key, quiesced=quiesced)
    if json:
        print_json({"index": name, **asdict(report)})
    else:
        _print_adopted(name, report, in_place=in_place, quiesced=quiesced)
    if report.bad:
        raise typer.Exit(EXIT_FAILED)


def _print_adopted(name: str, report: AdoptReport, *, in_place: bool, quiesced: bool) -> None:
    for bad in report.bad:
        say(f"not imported: {bad.name}: {bad.reason}", err=True)
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
    depth: Annotated[
        int, typer.Option("--depth", show_default=False, help="Hex digits of a shard's name: 2 to 4 (256 to 65,536).")
    ],
    quiesced: QuiescedOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Change the number of shards of an index. Offline.

    Stop everything that uses the index first. If it is interrupted, run it again. With the depth that the index has, it
    only cleans up after a reshard that was abandoned.
    """
    from limpet.app.indexes import demand_index

    handle = demand_index(limpet.open(url, create=False).check(), name)
    with console(stderr=True).status(f"resharding {name!r}"):
        report = handle.reshard(depth, quiesced=quiesced)
    if json:
        print_json({"index": name, **asdict(report)})
    elif report.before == depth:
        say(f"{name!r} has depth {depth} already; {many(report.removed, 'object')} of another depth removed")
    else:
        say(
            f"{name!r} has {many(report.shards, 'shard')} of depth {depth} now (it was {report.before}), with "
            f"{many(report.records, 'record')}, tombstones included"
        )


def purge(
    name: IndexArgument,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than", metavar="AGE", parser=duration_s, show_default=False, help=f"Only older ones, {DELAY_HELP}."
        ),
    ] = None,
    quiesced: QuiescedOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Drop the tombstones of deleted records. Offline.

    Stop everything that uses the index first: a program that later writes an older record of a deleted key brings it
    back. Waiting records are compiled first.
    """
    from limpet.app.indexes import demand_index

    handle = demand_index(limpet.open(url, create=False).check(), name)
    with console(stderr=True).status(f"purging {name!r}"):
        report = handle.purge(quiesced=quiesced, older_than_s=older_than)
    if json:
        print_json({"index": name, **asdict(report)})
    else:
        kept = f"; {report.kept:,} are younger and stay" if report.kept else ""
        shards = many(report.shards, "shard")
        say(f"{many(report.dropped, 'tombstone')} dropped from {shards} of {name!r}{kept}")

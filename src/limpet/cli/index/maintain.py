"""`limpet index verify`, `adopt`, `reshard` and `purge`: operations on a whole index."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.index.options import IndexArgument, demand_index
from limpet.cli.options import DELAY_HELP, JsonOption, UrlOption, duration_s, existing, opened
from limpet.cli.output import EXIT_FAILED, console, lines, many, print_json, say
from limpet.errors import Invalid, Missing
from limpet.keys import IndexKeys, Key

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.index import Index
    from limpet.index.maintain.import_existing import AdoptReport, FileSource
    from limpet.index.maintain.purge import PurgeReport
    from limpet.index.maintain.reshard import ReshardReport
    from limpet.index.maintain.verify import Finding, VerifyReport


VERIFY_EPILOG = lines(
    "Example: look, then put right what can be derived",
    "$ limpet index verify domains -u s3://acme/prod",
    "$ limpet index verify domains --repair -u s3://acme/prod",
    "Example: a shard is lost for good; go on with all the others",
    "$ limpet index verify domains --accept-loss -u s3://acme/prod",
    "Exit codes: 0 nothing is wrong, or nothing any more; 1 something is, or there is no such index; 2 wrong usage; "
    "75 another repair, reshard or purge is at work.",
)

ADOPT_EPILOG = lines(
    "Example: take in a folder of record files; then those beside the index's own, which nobody writes any more",
    "$ limpet index adopt domains --from ./old/domains -u s3://acme/prod",
    "$ limpet index adopt domains --quiesced -u s3://acme/prod",
    "Example: make an index of a folder of shards that another program left just where the index should be",
    "$ limpet index adopt domains --key domain --quiesced -u ./fleet",
    "Exit codes: 0 all were taken in; 1 some were bad, or there is no such index or folder; 2 wrong usage.",
)

RESHARD_EPILOG = lines(
    "Example: 4,096 shards instead of 256, when nobody is at work on it",
    "$ limpet index reshard domains --depth 3 --quiesced -u s3://acme/prod",
    "Exit codes: 0 done; 1 somebody wrote all the same, or a shard is bad: run it again when that is settled; 2 wrong "
    "usage; 75 somebody is at work.",
)

PURGE_EPILOG = lines(
    "Example: forget what was deleted more than 30 days ago, when nobody is at work on it",
    "$ limpet index purge domains --older-than 30d --quiesced -u s3://acme/prod",
    "Exit codes: 0 done; 1 somebody wrote all the same, or a shard is bad: run it again when that is settled; 2 wrong "
    "usage; 75 somebody is at work.",
)

QuiescedOption = Annotated[
    bool, typer.Option("--quiesced", help="Nothing writes, compiles or reads the index now: I have stopped it all.")
]

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def verify(
    name: IndexArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put right what can be derived: order, duplicates, places, counts.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Go on with what is left of damaged or missing shards; their bytes go to quarantine."
        ),
    ] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Read everything again, and say what is wrong.

    Without --repair and --accept-loss nothing is changed, and a key that may only read is enough. Restore a damaged
    shard from a backup if you have one; only --accept-loss goes on without what is lost. It may run while the index is
    used.
    """
    fleet = existing(url) if repair or accept_loss else opened(url, read_only=True)
    handle = demand_index(fleet, name)
    with console(stderr=True).status(f"reading {name!r}"):
        report = handle.verify(repair=repair, accept_loss=accept_loss)
    if json:
        print_json(_facts(name, report))
    else:
        _tell(name, report)
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


def _facts(name: str, report: VerifyReport) -> dict[str, object]:
    return {
        "index": name,
        "ok": report.ok,
        "shards": report.shards,
        "records": report.records,
        "tombstones": report.tombstones,
        "waiting": report.waiting,
        "read_bytes": report.read_bytes,
        "findings": [
            {
                "kind": found.kind,
                "key": found.key,
                "what": found.what,
                "wrong": found.wrong,
                "repaired": found.repaired,
                "hint": found.hint,
            }
            for found in report.findings
        ],
    }


def _tell(name: str, report: VerifyReport) -> None:
    for found in report.findings:
        say(f"{_mark(found)}: {found.key} {_clean(found.what)}")
    for hint in dict.fromkeys(found.hint for found in report.findings if found.wrong):
        say(f"hint: {hint}", err=True)
    read = f"{many(report.shards, 'shard')}, {many(report.records, 'record')}, {many(report.tombstones, 'tombstone')}"
    waits = f"; {many(report.waiting, 'object')} to be compiled" if report.waiting else ""
    wrong = sum(found.wrong for found in report.findings)
    verdict = f"{many(wrong, 'thing is', 'things are')} wrong with {name!r}" if wrong else f"{name!r} is in order"
    say(f"{verdict}: {read}{waits}")


def _mark(found: Finding) -> str:
    if found.repaired:
        return f"repaired {found.kind}"
    return f"wrong {found.kind}" if found.wrong else f"note {found.kind}"


def _clean(text: str) -> str:
    """Text of a stranger, on one line and safe on a terminal (F34)."""
    return _UNPRINTABLE.sub("?", text)


def adopt(
    name: IndexArgument,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="DIR",
            show_default=False,
            help="Where the files lie: a folder, or a URL such as s3://bucket/prefix. Else beside the index's own.",
        ),
    ] = None,
    quiesced: Annotated[
        bool, typer.Option("--quiesced", help="Nothing writes those files any more: delete each once it is taken in.")
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
    """Take in plain record files, `{key}.usv`, as programs without Limpet write them.

    Each holds one record: its fields between U+001F, in the order of the index's columns, without a header. Files in a
    folder `shards/` there hold many. Bad ones are named and kept, and the rest goes on; doing it twice changes nothing.

    Without --from, and if the folder has no manifest, an index is made where the files lie: their records are put, what
    lies in `shards/` and `inbox/` is moved to `adopted/` beside them, as it is, and the manifest is written last. If a
    file is bad then, nothing is changed.
    """
    fleet = existing(url)
    in_place = from_ is None and _has_no_manifest(fleet, name)
    if not in_place and (schema or key):
        raise Invalid(
            "--schema and --key are for files that lie where an index should be",
            hint=f"the index {name!r} has its columns; leave them out" if from_ is None else "leave --from out",
        )
    source = _source(fleet, name, from_, shards=in_place)
    with console(stderr=True).status(f"taking files into {name!r}"):
        if in_place:
            report = _new_index(fleet, name, schema, key).adopt_in_place(source, quiesced=quiesced)
        else:
            report = demand_index(fleet, name).adopt(source, quiesced=quiesced)
    if json:
        print_json({"index": name, **_fields(report)})
    else:
        _tell_adopted(name, report, in_place=in_place, quiesced=quiesced)
    if report.bad:
        raise typer.Exit(EXIT_FAILED)


def _tell_adopted(name: str, report: AdoptReport, *, in_place: bool, quiesced: bool) -> None:
    for bad in report.bad:
        say(f"not taken in: {_clean(bad.name)}: {_clean(bad.reason)}", err=True)
    if in_place and not report.created:
        say(f"nothing was changed: {many(len(report.bad), 'file is', 'files are')} bad", err=True)
        return
    kept = f"; {many(report.deleted, 'original')} deleted" if quiesced else "; the originals stay"
    if report.created:
        adopted = IndexKeys.of(name).adopted
        kept = f"; {many(report.moved, 'file')} moved to {adopted}/, the others stay"
    say(
        f"{name!r} took in {many(report.records, 'record')} of {many(report.files, 'file')}{kept}"
        + (f"; {many(len(report.bad), 'file is', 'files are')} bad" if report.bad else "")
    )


def _has_no_manifest(fleet: Fleet, name: str) -> bool:
    """Whether objects lie where an index should be, and there is none."""
    index = fleet.index(name)
    try:
        index.manifest  # noqa: B018 - the first look reads it
    except Missing:
        return any(stat.size for stat in fleet.store.list(index.storage.keys.root))
    return False


def _new_index(fleet: Fleet, name: str, schema: Path | None, key: str | None) -> Index[Any]:
    """The index that is to be made of files, with the columns that were named, or those of their data package."""
    from limpet import records
    from limpet.index.storage import DESCRIPTION_BYTES_MAX

    if schema is not None:
        return fleet.index(name, schema, key=key)
    keys = IndexKeys.of(name)
    for at in (Key(f"{keys.adopted}/datapackage.json"), keys.package, Key(f"{keys.shards}/datapackage.json")):
        with suppress(Missing):
            data = fleet.store.get(at, size_max=DESCRIPTION_BYTES_MAX).data
            package = records.parse_json(data, what=at, bytes_max=DESCRIPTION_BYTES_MAX)
            return fleet.index(name, package, key=key)
    raise Invalid(
        f"{keys.root} holds files and no manifest, and no datapackage.json tells their columns",
        hint="--schema FILE: a data package or table schema whose fields stand in the order of the files",
    )


def _fields(report: AdoptReport | PurgeReport | ReshardReport) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(report)


def _source(fleet: Fleet, name: str, where: str | None, *, shards: bool = False) -> FileSource | None:
    """Where the files lie. A local folder is read as such: its file names need not be those of a store."""
    from urllib.parse import unquote, urlsplit

    from limpet.app.urls import store_for
    from limpet.index.maintain.import_existing import FolderSource, StoreSource
    from limpet.keys import disk_name
    from limpet.runtime import system

    at = where or fleet.url
    if at.startswith("file://"):
        at = unquote(urlsplit(at).path)
    is_folder = "://" not in at
    if where is not None:
        return FolderSource(Path(at).expanduser()) if is_folder else StoreSource(store_for(at, system()))
    if not is_folder:
        return None
    parts = [disk_name(part, leaf=False) for part in IndexKeys.of(name).root.split("/")]
    root = Path(at).expanduser()
    return FolderSource(root.joinpath(*parts), shards=shards, root=root)


def reshard(
    name: IndexArgument,
    depth: Annotated[
        int, typer.Option("--depth", show_default=False, help="Hex digits of a shard's name: 2 to 4 (256 to 65,536).")
    ],
    quiesced: QuiescedOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Give an index more shards, or fewer. Offline.

    Stop everything that uses the index first. Should it be interrupted, run it again: it completes. With the depth
    that the index has, it tidies up after one that was given up.
    """
    fleet = existing(url)
    handle = demand_index(fleet, name)
    with console(stderr=True).status(f"resharding {name!r}"):
        report = handle.reshard(depth, quiesced=quiesced)
    if json:
        print_json({"index": name, **_fields(report)})
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
        str | None,
        typer.Option("--older-than", metavar="AGE", show_default=False, help=f"Only older ones, {DELAY_HELP}."),
    ] = None,
    quiesced: QuiescedOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Drop the tombstones of deleted records. Offline.

    Stop everything that uses the index first, for good: an older record of a deleted key that is written after this
    is alive again. Everything that waits is compiled before.
    """
    age_s = None if older_than is None else duration_s(older_than)
    fleet = existing(url)
    handle = demand_index(fleet, name)
    with console(stderr=True).status(f"purging {name!r}"):
        report = handle.purge(quiesced=quiesced, older_than_s=age_s)
    if json:
        print_json({"index": name, **_fields(report)})
    else:
        kept = f"; {report.kept:,} are younger and stay" if report.kept else ""
        shards = many(report.shards, "shard")
        say(f"{many(report.dropped, 'tombstone')} dropped from {shards} of {name!r}{kept}")

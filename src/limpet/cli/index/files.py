"""`limpet index import` and `export`: a file into an index, and an index into a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

import limpet
from limpet.cli import ago, many, print_json, progress_bar, say, size_text
from limpet.cli.index.options import EngineOption, IndexArgument, SkipDamagedOption, engine_of, opened, skipping
from limpet.cli.options import STDIN, JsonOption, UrlOption, open_input, refuse_path, until_reader_leaves
from limpet.errors import Invalid, LimpetError, Missing

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.index import Index
    from limpet.index.files import Exported, Import


FileArgument = Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="The file; - is stdin.")]

FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        show_default="by the name of the file",
        help="csv, jsonl, parquet, usv (limpet's own lines) or strict-usv (the Internet-Draft).",
    ),
]

KeyOption = Annotated[
    str | None,
    typer.Option("--key", "-k", metavar="NAME", show_default=False, help="The key of the index to --create."),
]

SkipBadOption = Annotated[
    Path | None,
    typer.Option(
        "--skip-bad", metavar="FILE", show_default=False, help="Write bad records to this file, and continue."
    ),
]

STDOUT = "-"
WHY_SHOWN = 5


def import_(
    index: IndexArgument,
    file: FileArgument,
    format: FormatOption = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the index if it does not exist, with the columns of the file.")
    ] = False,
    key: KeyOption = None,
    batch: Annotated[
        int,
        typer.Option("--batch", min=1, metavar="N", help="How many records, of at most 64 MiB, to write at a time."),
    ] = 200_000,
    skip_bad: SkipBadOption = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start from the beginning, even if a part is imported already.")
    ] = False,
    engine: EngineOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Import a file: CSV, JSON lines, Parquet or USV.

    Fields go to the columns of the same name. A record replaces the one with the same key unless that one is newer. The
    time of a record is its field `updated_at`, or else when the import began.

    If it is killed or interrupted, or the store refuses, run the same command again: it continues where it stopped.
    Importing a file twice changes nothing but the time. It stops at the first bad record, names it, and writes nothing
    of its batch. With --skip-bad it continues, and keeps bad records in a file of the same format (for Parquet: JSON
    lines), to be corrected and imported.

    In CSV an empty field is null and "" an empty string. A field that begins with an apostrophe and = + - or @, as
    `limpet index export` writes it, loses the apostrophe. With --create, a column is a string unless the first 1,000
    records are all of another type.

    Example: into an existing index; into a new one with the columns of the file; on four cores
    $ limpet index import sites sites.csv -u s3://acme/prod
    $ limpet index import sites sites.parquet --create --key domain -u s3://acme/prod
    $ limpet index import sites sites.jsonl --engine processes=4 --skip-bad bad.jsonl -u s3://acme/prod
    Exit codes: 0 all is in, but for what --skip-bad left out; 1 there is no such index or file, or the store refused;
      2 wrong usage, or a bad record; 130 interrupted.
    """
    from limpet.index.files import Import, identity
    from limpet.index.formats import FORMATS, ChunkLimits, name_of

    named = name_of(file, format)
    _check_options(file, named, create=create, key=key)
    with open_input(file) as stream:
        if skip_bad is not None and skip_bad.exists() and os.path.samestat(skip_bad.stat(), os.fstat(stream.fileno())):
            raise Invalid("--skip-bad names the file that is imported", hint="name another one")
        fleet, handle = _target(index, url, stream, named, create=create, key=key)
        work = Import(
            handle,
            stream,
            file=Path(file).name,
            format=named,
            limits=ChunkLimits(records=batch),
            id=None if file == STDIN else identity(stream, named),
            restart=restart,
            skip_bad=skip_bad,
        )
        size = 0 if file == STDIN else os.fstat(stream.fileno()).st_size
        end = FORMATS[named].total(stream, size) if size else 0
        _run(work, fleet, index, file, engine, partial(_progress, work, end, size), json=json, skip_bad=skip_bad)


def _check_options(file: str, named: str, *, create: bool, key: str | None) -> None:
    """Raises: Invalid for options that exclude each other, and for a file that they cannot be used with."""
    from limpet.index.formats import FORMATS

    if key and not create:
        raise Invalid("--key needs --create: an existing index has its key", hint="leave it out, or add --create")
    if file == STDIN and (FORMATS[named].seeks or create):
        why = "--create needs to read it twice" if create else f"{named} is not read from a pipe"
        raise Invalid(f"stdin cannot be imported: {why}", hint="write it into a file first")
    if not os.path.isfile(file) and os.path.exists(file) and not os.path.isdir(file):
        raise Invalid(f"{file} is not a plain file", hint="- reads from a pipe")


def _target(
    index: str, url: str | None, stream: IO[bytes], format: str, *, create: bool, key: str | None
) -> tuple[Fleet, Index[dict[str, Any]]]:
    """The index to import into. Nothing is created before the file's columns are known to make an index."""
    from limpet.app.indexes import columns_for, demand_index

    if not create:
        fleet = limpet.open(url, create=False).check()
        return fleet, demand_index(fleet, index)
    refuse_path(index, "index", lambda: opened(url, index))
    try:
        fleet = limpet.open(url, create=False).check()
        manifest = fleet.index(index).manifest
    except Missing:
        columns, key = columns_for(index, stream, format, key)
        fleet = limpet.open(url).check()
        handle = fleet.index(index, columns, key=key)
        handle.manifest  # noqa: B018 - the first look creates it
        return fleet, handle
    if key not in (None, manifest.key):
        raise Invalid(f"the index {index!r} exists, and its key is {manifest.key!r}", hint="leave --key out")
    return fleet, fleet.index(index)


def _run(
    work: Import,
    fleet: Fleet,
    index: str,
    file: str,
    engine_text: str | None,
    progress: Callable[[], AbstractContextManager[Callable[[], None]]],
    *,
    json: bool,
    skip_bad: Path | None,
) -> None:
    from limpet.app.fleet import absolute
    from limpet.app.indexes import ImportJob
    from limpet.index.formats import FORMATS
    from limpet.runtime import system

    if work.resumed:
        after = f"{FORMATS[work.state.format].noun} {work.state.number:,}"
        say(f"continuing after {after}, where the last run stopped; --restart starts over", err=True)
    began_s = system().elapsed_s()
    before = work.state.records
    explained = 0
    try:
        with engine_of(engine_text, fleet.url) as place, progress() as show:
            job = ImportJob(absolute(fleet.url), index) if place.executor else None
            for taken in work.run(job, place.executor, place.workers, show):
                for bad in taken.bad[: WHY_SHOWN - explained]:
                    say(f"left out {bad.why}", err=True)
                explained = min(WHY_SHOWN, explained + len(taken.bad))
                show()
    except KeyboardInterrupt:
        say(f"interrupted: {_so_far(work, file)}", err=True)
        raise
    except Invalid as error:
        hint = error.hint if skip_bad else f"{error.hint}; or leave bad records out with --skip-bad FILE"
        raise Invalid(f"{error}; {_so_far(work, file)}", hint=hint) from None
    except LimpetError as error:
        raise type(error)(f"{error}; {_so_far(work, file)}", hint=error.hint) from error
    seconds = system().elapsed_s() - began_s
    state = work.state
    if json:
        facts = {"index": index, "file": file, "format": state.format, "records": state.records, "bad": state.bad}
        print_json({**facts, "resumed": work.resumed, "began_at": state.began_at, "seconds": round(seconds, 3)})
        return
    rate = f", {(state.records - before) / seconds:,.0f}/s" if seconds > 1 else ""
    say(f"imported {many(state.records, 'record')} into {index!r} in {ago(seconds)}{rate}")
    if state.bad:
        say(f"left out {many(state.bad, 'bad record')}, kept in {skip_bad}", err=True)


def _so_far(work: Import, file: str) -> str:
    state = work.state
    if not state.records:
        return "nothing was imported"
    more = "" if file == STDIN else ", and the same command continues from there"
    return f"{many(state.records, 'record')} before that batch are imported{more}"


@contextmanager
def _progress(work: Import, total: int, size: int) -> Iterator[Callable[[], None]]:
    """A bar over the file, from where the last run stopped to its end. It yields a function that draws it."""
    from limpet.runtime import system

    began_s, before, start = system().elapsed_s(), work.state.records, work.state.position
    with progress_bar("importing", total=total - start if total else None) as update:

        def show() -> None:
            records = work.state.records + work.under_way
            rate = (records - before) / max(system().elapsed_s() - began_s, 0.001)
            said = f"{many(records, 'record')}, {rate:,.0f}/s"
            if total:
                said += f", {size_text(size * work.position / total)} of {size_text(size)}"
            update(completed=work.position - start, description=said)

        show()
        yield show


def export(
    index: IndexArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="The file to write; - is stdout.")],
    format: FormatOption = None,
    skip_damaged: SkipDamagedOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Write every record of an index into a file, `updated_at` included. `limpet index import` reads it back the same.

    What waits to be compiled is in it; deleted records are not. The file appears when it is whole: a failed export
    leaves the old one, or none.

    In CSV, null is an empty field and an empty string is "". Text that a spreadsheet would run as a formula gets an
    apostrophe in front.

    Example: a file that spreadsheets and pandas read; to another program; into another index
    $ limpet index export sites sites.csv -u s3://acme/prod
    $ limpet index export sites - --format jsonl -u s3://acme/prod | jq .domain
    $ limpet index export sites - --format jsonl -u ./a | limpet index import sites - --format jsonl -u ./b
    Exit codes: 0 written; 1 there is no such index, it could not be read or written, or --skip-damaged left some out
      (the file is written then); 2 wrong usage.
    """
    from limpet.index.files import export as exporting
    from limpet.index.formats import name_of

    named = name_of(file, format)
    if file == STDOUT and json:
        raise Invalid("the records and --json cannot both go to stdout", hint="write the records into a file")
    handle = opened(url, index, read_only=True)
    with skipping(skip_damaged) as on_damage:
        with until_reader_leaves():
            records = _write(file, lambda stream: exporting(handle, stream, named, on_damage))
        if json:
            print_json({"index": index, "file": file, "format": named, "records": records})
        elif file != STDOUT:
            size = f", {size_text(os.path.getsize(file))}" if os.path.isfile(file) else ""
            say(f"exported {many(records, 'record')} of {index!r} to {file} ({named}{size})")


def _write(file: str, export: Callable[[IO[bytes]], Iterator[Exported]]) -> int:
    """Write the file, or to stdout; how many records."""
    from limpet.index.files import whole_file
    from limpet.runtime import system

    done: Exported | None = None
    to_stdout = file == STDOUT
    with ExitStack() as stack:
        stream = sys.stdout.buffer if to_stdout else stack.enter_context(whole_file(Path(file), system()))
        quiet = to_stdout and sys.stdout.isatty()
        update = stack.enter_context(progress_bar("exporting", total=None, quiet=quiet))
        for done in export(stream):
            update(completed=done.shards, total=done.of_shards, description=many(done.records, "record"))
        stream.flush()
    return done.records if done else 0

"""`limpet index import`: a file into an index."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.index.options import (
    FORMAT_HELP,
    EngineOption,
    IndexArgument,
    demand_index,
    package_of,
    progress_bar,
    size_text,
)
from limpet.cli.options import JsonOption, UrlOption, existing, opened
from limpet.cli.output import ago, lines, many, print_json, say
from limpet.errors import Invalid, LimpetError, Missing

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.index import Index
    from limpet.index.files import Import, Taken


EPILOG = lines(
    "Example: into an index that is there; into a new one, its columns told by the file; on four cores",
    "$ limpet index import sites sites.csv -u s3://acme/prod",
    "$ limpet index import sites sites.parquet --create --key domain -u s3://acme/prod",
    "$ limpet index import sites sites.jsonl --engine processes=4 --skip-bad bad.jsonl -u s3://acme/prod",
    "Exit codes: 0 all is in, but for what --skip-bad left out; 1 there is no such index or file, or the store "
    "refused; 2 wrong usage, or a bad record; 130 interrupted.",
)

FileArgument = Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="The file; - is stdin.")]

FormatOption = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", show_default="by the name of the file", help=FORMAT_HELP)
]

KeyOption = Annotated[
    str | None,
    typer.Option("--key", "-k", metavar="NAME", show_default=False, help="The key of the index to --create."),
]

SkipBadOption = Annotated[
    Path | None,
    typer.Option("--skip-bad", metavar="FILE", show_default=False, help="Write bad records there, and go on."),
]

STDIN = "-"
WHY_SHOWN = 5


def import_(
    index: IndexArgument,
    file: FileArgument,
    format: FormatOption = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make the index if it is not there, its columns told by the file.")
    ] = False,
    key: KeyOption = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Write so many records at a time, or 64 MiB.")
    ] = 200_000,
    skip_bad: SkipBadOption = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, though a part is in already.")] = False,
    engine: EngineOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Import a file: CSV, JSON lines, Parquet or USV.

    Fields go to the columns of the same name. A record replaces the one with the same key, unless that is later: with
    a field `updated_at` it counts as of then, without one as of the moment when the import began.

    Killed, interrupted or refused, the same command goes on where it was. Importing a file twice changes nothing but
    the time. At the first bad record it stops, names it, and writes nothing of its batch; --skip-bad keeps such records
    in a file of the same format (of Parquet: JSON lines), to be corrected and imported.

    In CSV an empty field is null and "" an empty string. A field that begins with an apostrophe and = + - or @, as
    `limpet index export` writes it, loses the apostrophe. With --create, a column is a string unless the first 1,000
    records are all of another type.
    """
    from limpet.index.files import Import, identity
    from limpet.index.formats import FORMATS, ChunkLimits, name_of

    named = name_of(file, format)
    if key and not create:
        raise Invalid("--key is for --create: an index that is there has its key", hint="leave it out, or add --create")
    if file == STDIN and (FORMATS[named].seeks or create):
        why = "--create needs to read it twice" if create else f"{named} is not read from a pipe"
        raise Invalid(f"stdin cannot be imported so: {why}", hint="write it into a file first")
    with _opened(file) as stream:
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
        if work.resumed:
            noun = FORMATS[named].noun
            say(f"going on after {noun} {work.state.number:,}, where the last run was; --restart begins anew", err=True)
        show = partial(_progress, work, *_extent(file, stream, named))
        _run(work, fleet, index, file, engine, show, json=json, skip_bad=skip_bad)


def _extent(file: str, stream: IO[bytes], format: str) -> tuple[int, int]:
    """Where the file ends, and how many bytes that are; zeros if nobody knows."""
    from limpet.index.formats import FORMATS

    size = 0 if file == STDIN else os.fstat(stream.fileno()).st_size
    return (FORMATS[format].total(stream, size), size) if size else (0, 0)


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    if file == STDIN:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            if not os.path.isfile(file) and os.path.exists(file) and not os.path.isdir(file):
                raise Invalid(f"{file} is not a plain file", hint="- reads from a pipe")
            stream = stack.enter_context(open(file, "rb"))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise Missing(f"cannot read {file}: {reason}", hint="check the path; - reads from stdin") from None
        yield stream


def _target(
    index: str, url: str | None, stream: IO[bytes], format: str, *, create: bool, key: str | None
) -> tuple[Fleet, Index[dict[str, Any]]]:
    from limpet.index.codec.types import with_own
    from limpet.index.formats import FORMATS

    if not create:
        fleet = existing(url)
        return fleet, demand_index(fleet, index)
    try:
        fleet = existing(url)
        manifest = fleet.index(index).manifest
    except Missing:
        pass
    else:
        if key not in (None, manifest.key):
            raise Invalid(f"the index {index!r} is there, and its key is {manifest.key!r}", hint="leave --key out")
        return fleet, fleet.index(index)
    sample = FORMATS[format].sample(stream)
    stream.seek(0)
    key = key or sample.key
    if key is None:
        names = ", ".join(each.name for each in sample.fields)
        raise Invalid(f"the index {index!r} is new: say which field is its key", hint=f"--key one of {names}")
    columns = [*_with_key(sample.fields, key)]
    with_own(columns, key)  # before anything is made
    fleet = opened(url)
    handle = fleet.index(index, package_of(columns), key=key)
    handle.manifest  # noqa: B018 - the first look creates it
    return fleet, handle


def _with_key(fields: Any, key: str) -> Iterator[Any]:
    """The columns, the key one that a key can be: what is neither text nor an integer is taken as text."""
    import msgspec

    for field in fields:
        if field.name == key and field.type not in ("string", "integer"):
            yield msgspec.structs.replace(field, type="string")
        else:
            yield field


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
    import limpet
    from limpet.app.indexes import ImportJob
    from limpet.app.urls import absolute
    from limpet.cli.index.engine import engine
    from limpet.runtime import system

    began_s = system().elapsed_s()
    before = work.state.records
    told = 0
    try:
        with engine(engine_text, fleet.url) as place, progress() as show:
            job = ImportJob(limpet.open, absolute(fleet.url), index) if place.executor else None
            for taken in work.run(job, place.executor, place.workers, show):
                told = _tell_bad(taken, told)
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


def _tell_bad(taken: Taken, told: int) -> int:
    """Say why the first few records are left out."""
    for bad in taken.bad[: WHY_SHOWN - told]:
        say(f"left out {bad.why}", err=True)
    return min(WHY_SHOWN, told + len(taken.bad))


def _so_far(work: Import, file: str) -> str:
    state = work.state
    if not state.records:
        return "nothing was imported"
    more = "" if file == STDIN else ", and the same command goes on from there"
    return f"{many(state.records, 'record')} before that batch are in{more}"


@contextmanager
def _progress(work: Import, total: int, size: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr over the file; one that only moves where the end is not known. Only on a terminal."""
    from limpet.runtime import system

    began_s, before, start = system().elapsed_s(), work.state.records, work.state.position
    with progress_bar("importing", total=total - start if total else None) as update:

        def show() -> None:
            records = work.state.records + work.under_way
            rate = (records - before) / max(system().elapsed_s() - began_s, 0.001)
            said = f"{many(records, 'record')}, {rate:,.0f}/s"
            if total:
                said += f", {size_text(size * work.state.position / total)} of {size_text(size)}"
            update(completed=work.state.position - start, description=said)

        yield show

"""`limpet index export`: an index into a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from limpet.cli.index_options import FORMAT_HELP, IndexArgument, SkipDamagedOption, demand_index, size_text, skipping
from limpet.cli.queue_options import many
from limpet.cli.shared import EXIT_FAILED, JsonOption, UrlOption, console, lines, opened, print_json, say
from limpet.errors import Invalid

if TYPE_CHECKING:
    from limpet.index.exporting import Exported

EPILOG = lines(
    "Example: a file that spreadsheets and pandas read; to another program; into another index",
    "$ limpet index export sites sites.csv -u s3://acme/prod",
    "$ limpet index export sites - --format jsonl -u s3://acme/prod | jq .domain",
    "$ limpet index export sites - --format jsonl -u ./a | limpet index import sites - --format jsonl -u ./b",
    "Exit codes: 0 written; 1 there is no such index, it could not be read or written, or --skip-damaged left some "
    "out (the file is written then); 2 wrong usage.",
)

STDOUT = "-"


def export(
    index: IndexArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="The file to write; - is stdout.")],
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", show_default="by the name of the file", help=FORMAT_HELP),
    ] = None,
    skip_damaged: SkipDamagedOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Write every record of an index into a file, `updated_at` included. `limpet index import` reads it back the same.

    What waits to be compiled is in it; deleted records are not. The file appears when it is whole: a failed export
    leaves the old one, or none.

    In CSV, null is an empty field and an empty string is "". Text that a spreadsheet would run as a formula gets an
    apostrophe in front.
    """
    from limpet.index.exporting import export as exporting
    from limpet.index.formats import name_of

    named = name_of(file, format)
    if file == STDOUT and json:
        raise Invalid("stdout cannot hold the records and --json", hint="write the records into a file")
    handle = demand_index(opened(url, read_only=True), index)
    with skipping(skip_damaged) as on_damage:
        try:
            records = _write(file, lambda stream: exporting(handle, stream, named, on_damage))
        except BrokenPipeError:
            # the reader has gone, with what it wanted; the interpreter must not try to flush the rest
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_FAILED) from None
        if json:
            print_json({"index": index, "file": file, "format": named, "records": records})
        elif file != STDOUT:
            size = f", {size_text(os.path.getsize(file))}" if os.path.isfile(file) else ""
            say(f"exported {many(records, 'record')} of {index!r} to {file} ({named}{size})")


def _write(file: str, export: Callable[[IO[bytes]], Iterator[Exported]]) -> int:
    """Write the file, or to stdout; how many records."""
    from limpet.index.exporting import whole_file
    from limpet.runtime import system

    done: Exported | None = None
    if file == STDOUT:
        with _progress(quiet=sys.stdout.isatty()) as show:
            for done in export(sys.stdout.buffer):
                show(done)
            sys.stdout.buffer.flush()
    else:
        with whole_file(Path(file), system()) as stream, _progress() as show:
            for done in export(stream):
                show(done)
    return done.records if done else 0


@contextmanager
def _progress(*, quiet: bool = False) -> Iterator[Callable[[Exported], None]]:
    """A bar on stderr over the shards. Only on a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    err = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task("exporting", total=None)
        yield lambda done: bar.update(
            task, completed=done.shards, total=done.of_shards, description=many(done.records, "record")
        )

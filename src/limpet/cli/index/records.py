"""`limpet index put`, `get`, `delete`, `sql` and `export`: the records of an index."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.index.options import (
    FORMAT_HELP,
    IndexArgument,
    KeysArgument,
    SkipDamagedOption,
    demand_index,
    key_of,
    progress_bar,
    size_text,
    skipping,
    until_reader_leaves,
)
from limpet.cli.options import JsonOption, UrlOption, existing, opened
from limpet.cli.output import EXIT_FAILED, clean, console, lines, many, print_json, say
from limpet.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.index.files import Exported
    from limpet.index.sql.rows import Rows


PUT_EPILOG = lines(
    "Example: a record; one from another program",
    """$ limpet index put sites '{"domain": "a.com", "title": "A"}' -u s3://acme/prod""",
    "$ curl -s https://a.com/site.json | limpet index put sites - -u s3://acme/prod",
    "Exit codes: 0 written; 1 there is no such index, or the store refused; 2 wrong usage, or a bad record.",
)

GET_EPILOG = lines(
    "Example: one record; several, one JSON object a line",
    "$ limpet index get sites a.com -u s3://acme/prod",
    "$ limpet index get sites a.com b.com --json -u s3://acme/prod",
    "Exit codes: 0 all were found; 1 one is missing, or there is no such index; 2 wrong usage.",
)

DELETE_EPILOG = lines(
    "Example:",
    "$ limpet index delete sites a.com b.com -u s3://acme/prod",
    "Exit codes: 0 deleted; 1 there is no such index, or the store refused; 2 wrong usage.",
)

STDIN = "-"
STDIN_BYTES_MAX = 16 << 20


def put(
    index: IndexArgument,
    record: Annotated[
        str,
        typer.Argument(metavar="JSON", show_default=False, help="The record: a JSON object; - is stdin."),
    ],
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Write one record, in place of the one with the same key.

    Dates and times are strings such as 2026-11-05 and 2026-11-05T12:00:00Z. Many records go faster with
    `limpet index import`.
    """
    from limpet.index.formats.jsonl import json_decoder, parsed

    text: str | bytes = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1) if record == STDIN else record
    try:
        given = parsed(text)
    except Invalid as error:
        hint = """quote it for the shell: '{"domain": "a.com"}'"""
        many_lines = isinstance(text, bytes) and text.count(b"\n") > 1 and "Extra data" in str(error)
        raise Invalid(str(error), hint="many records: limpet index import" if many_lines else hint) from None
    handle = demand_index(existing(url), index)
    schema = handle.manifest.schema
    values = json_decoder(schema)(given)
    handle.put(values)
    key = values[schema.key]
    if json:
        print_json({"index": index, "key": key})
    else:
        say(f"put {str(key)!r} into {index!r}")


def get(index: IndexArgument, keys: KeysArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Print records by their keys, as they are now. Changes nothing."""
    from limpet import records

    handle = demand_index(opened(url, read_only=True), index)
    schema = handle.manifest.schema
    wanted = [key_of(schema, key) for key in keys]
    found = {wanted[0]: handle.get(wanted[0])} if len(wanted) == 1 else handle.get_many(wanted)
    some = [found[key] for key in wanted if found.get(key) is not None]
    for at, record in enumerate(some):
        if json:
            typer.echo(records.encode(record))
        else:
            if at:
                typer.echo()
            assert record is not None
            _print_record(record)
    missing = [key for key in wanted if found.get(key) is None]
    for key in missing:
        say(f"limpet: there is no record {str(key)!r} in {index!r}", err=True)
    if missing:
        raise typer.Exit(EXIT_FAILED)


def _print_record(record: dict[str, Any]) -> None:
    from limpet import records
    from limpet.cli.output import clean

    out = console()
    width = max(map(len, record))
    for name, value in record.items():
        if isinstance(value, str):
            said = value or '""'
        else:
            said = "-" if value is None else _bare(records.encode(value).decode())
        shown = clean(said.replace("\n", "\\n").replace("\t", "\\t"))
        out.print(f"[bold]{clean(name):<{width}}[/bold]  {shown}", soft_wrap=True)


def _bare(text: str) -> str:
    """JSON of a date or a time without its quotes."""
    return text.strip('"') if text.startswith('"') else text


def delete(index: IndexArgument, keys: KeysArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Delete records by their keys. Keys that have none are fine.

    A put that comes later brings a record back.
    """
    handle = demand_index(existing(url), index)
    schema = handle.manifest.schema
    wanted = [key_of(schema, key) for key in keys]
    for key in wanted:
        schema.key_text(key)
    for key in wanted:
        handle.delete(key)
    if json:
        print_json({"index": index, "deleted": wanted})
    else:
        say(f"deleted {many(len(wanted), 'key')} of {index!r}")


SQL_EPILOG = lines(
    "Example: count, join two indexes, keep the answer as Parquet",
    """$ limpet index sql "select count(*), max(updated_at) from sites" -u s3://acme/prod""",
    """$ limpet index sql "select * from sites join owners using (domain)" --csv - -u s3://acme/prod""",
    """$ limpet index sql "from sites where title is null" --parquet untitled.parquet -u s3://acme/prod""",
    'A name that is no plain word needs quotes: `select * from "my-index"`. `show tables` lists the indexes, '
    "`describe sites` the columns of one.",
    "Exit codes: 0 answered; 1 there is no such fleet, it cannot be read, or --skip-damaged left some out; 2 wrong "
    "usage or a wrong query.",
)

ROWS_SHOWN = 500
STDOUT = "-"


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", show_default=False, help="One SELECT, in DuckDB's SQL.")],
    url: UrlOption = None,
    json: JsonOption = False,
    csv: Annotated[
        str | None,
        typer.Option("--csv", metavar="FILE", show_default=False, help="Write CSV to a file; - is stdout."),
    ] = None,
    parquet: Annotated[
        str | None, typer.Option("--parquet", metavar="FILE", show_default=False, help="Write a Parquet file.")
    ] = None,
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="Let the query read files of this machine, such as read_csv('x').")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", show_default=False, help="How much memory DuckDB may use, such as 500MB; then it spills."
        ),
    ] = None,
    skip_damaged: SkipDamagedOption = False,
) -> None:
    """Ask the indexes of a fleet in SQL. Each index is a table; records that wait for a compiler count too.

    Changes nothing. Only the indexes that the query names are read. Needs the extra `sql`.
    """
    from limpet.index.sql.query import sql as ask
    from limpet.runtime import system

    chosen = [name for name, wanted in (("--json", json), ("--csv", csv), ("--parquet", parquet)) if wanted]
    if len(chosen) > 1:
        raise Invalid(f"{chosen[0]} and {chosen[1]} are two forms of one answer", hint="ask for one of them")
    fleet = opened(url, read_only=True)
    with until_reader_leaves(), skipping(skip_damaged) as on_damage:
        rows = ask(fleet.store, system(), query, allow_files=allow_files, memory=memory, on_damage=on_damage)
        if json:
            _print_rows_json(rows)
        elif csv == STDOUT:
            sys.stdout.writelines(_csv(rows))
            sys.stdout.flush()
        elif csv or parquet:
            _write_rows(rows, csv, parquet)
        else:
            _print_rows(rows)


def _write_rows(rows: Rows, csv: str | None, parquet: str | None) -> None:
    from pathlib import Path

    from limpet.index.files import whole_file
    from limpet.runtime import system

    path = csv or parquet or ""
    with whole_file(Path(path), system()) as stream:
        if csv:
            stream.writelines(line.encode() for line in _csv(rows))
        else:
            rows.parquet(stream)
    say(f"wrote {many(len(rows), 'row')} to {path}", err=True)


def _print_rows_json(rows: Rows) -> None:
    import msgspec

    encoder = msgspec.json.Encoder(decimal_format="number")
    data = encoder.encode([{name: _json_ready(value) for name, value in row.items()} for row in rows.dicts()])
    print(msgspec.json.format(data, indent=2).decode())


def _json_ready(value: Any) -> Any:
    """A number of more than 64 bits as text: most readers of JSON would round it."""
    match value:
        case int() if value.bit_length() > 63:
            return str(value)
        case dict():
            return {str(key): _json_ready(each) for key, each in value.items()}
        case list():
            return [_json_ready(each) for each in value]
    return value


def _csv(rows: Rows) -> Iterator[str]:
    """A header, then the rows; null is an empty cell, an empty string is in quotes. No cell is a formula (F34)."""
    from limpet.index.formats.csv import guarded, joined

    yield joined([guarded(name) for name in rows.columns]) + "\n"
    for row in rows:
        yield joined([None if value is None else _cell(value) for value in row]) + "\n"


def _cell(value: Any) -> str:
    from decimal import Decimal

    from limpet import records
    from limpet.index.formats.csv import guarded

    match value:
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return str(value)
        case str():
            return guarded(value)
    text = records.encode(value).decode()
    return guarded(text[1:-1] if text.startswith('"') else text)


def _print_rows(rows: Rows) -> None:
    from itertools import islice

    from rich.table import Table

    from limpet.index.sql.rows import is_number, shown

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, kind in zip(rows.columns, rows.types, strict=True):
        table.add_column(clean(name), justify="right" if is_number(kind) else "left", overflow="fold")
    for row in islice(rows, ROWS_SHOWN):
        table.add_row(*("[dim]null[/dim]" if value is None else clean(shown(value)) for value in row))
    out = console()
    out.print(table)
    if len(rows) > ROWS_SHOWN:
        out.print(f"\n[dim]The first {ROWS_SHOWN} of {len(rows):,} rows; --csv or --json gives them all.[/dim]")


EXPORT_EPILOG = lines(
    "Example: a file that spreadsheets and pandas read; to another program; into another index",
    "$ limpet index export sites sites.csv -u s3://acme/prod",
    "$ limpet index export sites - --format jsonl -u s3://acme/prod | jq .domain",
    "$ limpet index export sites - --format jsonl -u ./a | limpet index import sites - --format jsonl -u ./b",
    "Exit codes: 0 written; 1 there is no such index, it could not be read or written, or --skip-damaged left some "
    "out (the file is written then); 2 wrong usage.",
)


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
    from limpet.index.files import export as exporting
    from limpet.index.formats import name_of

    named = name_of(file, format)
    if file == STDOUT and json:
        raise Invalid("stdout cannot hold the records and --json", hint="write the records into a file")
    handle = demand_index(opened(url, read_only=True), index)
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
    if file == STDOUT:
        with progress_bar("exporting", total=None, quiet=sys.stdout.isatty()) as update:
            for done in export(sys.stdout.buffer):
                update(completed=done.shards, total=done.of_shards, description=many(done.records, "record"))
            sys.stdout.buffer.flush()
    else:
        with whole_file(Path(file), system()) as stream, progress_bar("exporting", total=None) as update:
            for done in export(stream):
                update(completed=done.shards, total=done.of_shards, description=many(done.records, "record"))
    return done.records if done else 0

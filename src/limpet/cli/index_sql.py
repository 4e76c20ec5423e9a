"""`limpet index sql`: ask the indexes of a fleet in SQL."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.index_options import SkipDamagedOption, skipping
from limpet.cli.queue_options import many
from limpet.cli.shared import EXIT_FAILED, JsonOption, UrlOption, clean, console, lines, opened, say
from limpet.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.index.rows import Rows

EPILOG = lines(
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
    from limpet.index.sql import sql as ask
    from limpet.runtime import system

    chosen = [name for name, wanted in (("--json", json), ("--csv", csv), ("--parquet", parquet)) if wanted]
    if len(chosen) > 1:
        raise Invalid(f"{chosen[0]} and {chosen[1]} are two forms of one answer", hint="ask for one of them")
    fleet = opened(url, read_only=True)
    try:
        with skipping(skip_damaged) as on_damage:
            rows = ask(fleet.store, system(), query, allow_files=allow_files, memory=memory, on_damage=on_damage)
            if json:
                _print_json(rows)
            elif csv == STDOUT:
                sys.stdout.writelines(_csv(rows))
                sys.stdout.flush()
            elif csv or parquet:
                _write(rows, csv, parquet)
            else:
                _print_table(rows)
    except BrokenPipeError:
        # the reader has gone, with what it wanted; the interpreter must not try to flush the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None


def _write(rows: Rows, csv: str | None, parquet: str | None) -> None:
    from pathlib import Path

    from limpet.index.exporting import whole_file
    from limpet.runtime import system

    path = csv or parquet or ""
    with whole_file(Path(path), system()) as stream:
        if csv:
            stream.writelines(line.encode() for line in _csv(rows))
        else:
            rows.parquet(stream)
    say(f"wrote {many(len(rows), 'row')} to {path}", err=True)


def _print_json(rows: Rows) -> None:
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


def _print_table(rows: Rows) -> None:
    from itertools import islice

    from rich.table import Table

    from limpet.index.rows import is_number, shown

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, kind in zip(rows.columns, rows.types, strict=True):
        table.add_column(clean(name), justify="right" if is_number(kind) else "left", overflow="fold")
    for row in islice(rows, ROWS_SHOWN):
        table.add_row(*("[dim]null[/dim]" if value is None else clean(shown(value)) for value in row))
    out = console()
    out.print(table)
    if len(rows) > ROWS_SHOWN:
        out.print(f"\n[dim]The first {ROWS_SHOWN} of {len(rows):,} rows; --csv or --json gives them all.[/dim]")

"""`limpet sql`: one query over everything in a fleet; and how the rows of any query are printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import limpet
from limpet.cli import clean, say, show, table
from limpet.cli.options import DELAY_HELP, JsonOption, UrlOption, duration_s, until_reader_leaves
from limpet.cli.parse import Argument, Option
from limpet.kernel.errors import Invalid
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.index.sql_rows import Rows

STDOUT = "-"
ROWS_SHOWN = 500

QueryArgument = Annotated[str, Argument(metavar="QUERY", help="One SELECT, in DuckDB's SQL.")]
CsvOption = Annotated[str | None, Option("--csv", metavar="FILE", help="Write CSV to a file; - is stdout.")]
ParquetOption = Annotated[str | None, Option("--parquet", metavar="FILE", help="Write a Parquet file.")]
MemoryOption = Annotated[
    str | None, Option(metavar="SIZE", help="How much memory DuckDB may use, such as 500MB; then it spills.")
]


def sql(
    query: QueryArgument,
    url: UrlOption = None,
    json: JsonOption = False,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
    full: Annotated[
        bool, Option(help="Read every task; otherwise 20,000 objects of a queue's folder at most.")
    ] = False,
    memory: MemoryOption = None,
    timeout: Annotated[
        str, Option(metavar="TIME", help=f"Stop a query that computes for longer, {DELAY_HELP}.")
    ] = "30s",
) -> None:
    """Query a fleet in SQL: tasks, records, tables, events, commits, locks and workers. Changes nothing.

    Only what the query names is read, but of that all: a queue costs a GET for each of its tasks. The time that this
    takes does not count for --timeout. Needs the extra `sql`, and `catalog` for tables.

    Example: how the tasks of a queue are doing, and why they failed
    $ limpet sql "select state, count(*) from queues.enrich group by state" -u s3://acme/prod
    $ limpet sql "select queue, state, count(*) from tasks group by all" -u s3://acme/prod
    $ limpet sql "select error, count(*) n from queues.enrich where state = 'failed' group by 1 order by 2 desc" -u
      s3://acme/prod
    Example: which records of an index have no row in a table of the catalog
    $ limpet sql "select domain from sites anti join tables.web.pages using (domain)" -u s3://acme/prod
    Tables: tasks (of all queues), queues.<queue>, every index by its name, tables.<namespace>.<table>, executions,
      commits, locks, workers; `describe queues.enrich` shows the columns, `show all tables` what there is.
    Exit codes: 0 answered; 1 no fleet there, something cannot be read, or the time was up; 2 wrong usage, or a wrong
      query.
    """
    from limpet.app.query import fleet_sql

    demand_one_format(json=json, csv=csv, parquet=parquet)
    timeout_s = duration_s(timeout)
    fleet = limpet.open(url, read_only=True).check()
    with until_reader_leaves():
        rows = fleet_sql(
            fleet, query, full=full, memory=memory, timeout_s=timeout_s, on_note=lambda note: say(note, err=True)
        )
        print_answer(rows, json=json, csv=csv, parquet=parquet)


def demand_one_format(*, json: bool, csv: str | None, parquet: str | None) -> None:
    """Raises: Invalid if more than one format was asked for."""
    chosen = [name for name, wanted in (("--json", json), ("--csv", csv), ("--parquet", parquet)) if wanted]
    if len(chosen) > 1:
        raise Invalid(f"{chosen[0]} and {chosen[1]} exclude each other", hint="choose one")


def print_answer(rows: Rows, *, json: bool, csv: str | None, parquet: str | None) -> None:
    """Print the rows of a query, or write them to a file."""
    from limpet.index.files import whole_file
    from limpet.kernel.runtime import system

    if json:
        _print_rows_json(rows)
    elif csv == STDOUT:
        sys.stdout.writelines(_csv(rows))
        sys.stdout.flush()
    elif path := csv or parquet:
        with whole_file(Path(path), system()) as stream:
            if csv:
                stream.writelines(line.encode() for line in _csv(rows))
            else:
                rows.parquet(stream)
        say(f"wrote {many(len(rows), 'row')} to {path}", err=True)
    else:
        _print_rows(rows)


def bare(text: str) -> str:
    """JSON of a date or a time without its quotes."""
    return text.strip('"') if text.startswith('"') else text


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
    from limpet.index.formats.text import guarded, joined

    yield joined([guarded(name) for name in rows.columns]) + "\n"
    for row in rows:
        yield joined([None if value is None else _cell(value) for value in row]) + "\n"


def _cell(value: Any) -> str:
    from decimal import Decimal

    from limpet.index.formats.text import guarded
    from limpet.kernel import records

    match value:
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return str(value)
        case str():
            return guarded(value)
    return guarded(bare(records.encode(value).decode()))


def _print_rows(rows: Rows) -> None:
    from itertools import islice

    from limpet.index.sql_rows import is_number, shown

    names = [clean(name) for name in rows.columns]
    listed = table(*names, right=[name for name, kind in zip(names, rows.types, strict=True) if is_number(kind)])
    for row in islice(rows, ROWS_SHOWN):
        listed.add_row(*("[dim]null[/dim]" if value is None else clean(shown(value)) for value in row))
    show(listed)
    if len(rows) > ROWS_SHOWN:
        show(f"\n[dim]The first {ROWS_SHOWN} of {many(len(rows), 'row')}; --csv or --json gives them all.[/dim]")

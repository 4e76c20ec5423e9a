"""`limpet index put`, `get`, `delete` and `sql`: the records of an index."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

import limpet
from limpet.cli import EXIT_FAILED, clean, lines, many, print_json, say, show
from limpet.cli.index.options import (
    IndexArgument,
    KeysArgument,
    SkipDamagedOption,
    key_of,
    skipping,
)
from limpet.cli.options import STDIN, JsonOption, UrlOption, until_reader_leaves
from limpet.cli.sql import (
    CsvOption,
    MemoryOption,
    ParquetOption,
    QueryArgument,
    bare,
    demand_one_format,
    print_answer,
)
from limpet.errors import Invalid

if TYPE_CHECKING:
    pass

EPILOGS = {
    "put": lines(
        "Example: a record; one from another program",
        """$ limpet index put sites '{"domain": "a.com", "title": "A"}' -u s3://acme/prod""",
        "$ curl -s https://a.com/site.json | limpet index put sites - -u s3://acme/prod",
        "Exit codes: 0 written; 1 there is no such index, or the store refused; 2 wrong usage, or a bad record.",
    ),
    "get": lines(
        "Example: one record; several, one JSON object a line",
        "$ limpet index get sites a.com -u s3://acme/prod",
        "$ limpet index get sites a.com b.com --json -u s3://acme/prod",
        "Exit codes: 0 all were found; 1 one is missing, or there is no such index; 2 wrong usage.",
    ),
    "delete": lines(
        "Example:",
        "$ limpet index delete sites a.com b.com -u s3://acme/prod",
        "Exit codes: 0 deleted; 1 there is no such index, or the store refused; 2 wrong usage.",
    ),
    "sql": lines(
        "Example: count, join two indexes, keep the answer as Parquet",
        """$ limpet index sql "select count(*), max(updated_at) from sites" -u s3://acme/prod""",
        """$ limpet index sql "select * from sites join owners using (domain)" --csv - -u s3://acme/prod""",
        """$ limpet index sql "from sites where title is null" --parquet untitled.parquet -u s3://acme/prod""",
        'A name that is no plain word needs quotes: `select * from "my-index"`. `show tables` lists the indexes, '
        "`describe sites` the columns of one.",
        "Exit codes: 0 answered; 1 there is no such fleet, it cannot be read, or --skip-damaged left some out; 2 wrong "
        "usage or a wrong query.",
    ),
}

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
    """Write one record; it replaces the one with the same key.

    Dates and times are strings such as 2026-11-05 and 2026-11-05T12:00:00Z. For many records, `limpet index import` is
    faster.
    """
    from limpet.app.indexes import demand_index
    from limpet.index.formats.jsonl import json_decoder, parsed

    text: str | bytes = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1) if record == STDIN else record
    try:
        given = parsed(text)
    except Invalid as error:
        hint = """quote it for the shell: '{"domain": "a.com"}'"""
        many_lines = isinstance(text, bytes) and text.count(b"\n") > 1 and "Extra data" in str(error)
        raise Invalid(str(error), hint="many records: limpet index import" if many_lines else hint) from None
    handle = demand_index(limpet.open(url, create=False).check(), index)
    schema = handle.manifest.schema
    values = json_decoder(schema)(given)
    handle.put(values)
    key = values[schema.key]
    if json:
        print_json({"index": index, "key": key})
    else:
        say(f"put {str(key)!r} into {index!r}")


def get(index: IndexArgument, keys: KeysArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Print records by key. Changes nothing."""
    from limpet import records
    from limpet.app.indexes import demand_index

    handle = demand_index(limpet.open(url, read_only=True).check(), index)
    schema = handle.manifest.schema
    wanted = [key_of(schema, key) for key in keys]
    found = {wanted[0]: handle.get(wanted[0])} if len(wanted) == 1 else handle.get_many(wanted)
    missing = []
    printed = False
    for key in wanted:
        record = found.get(key)
        if record is None:
            missing.append(key)
        elif json:
            typer.echo(records.encode(record))
        else:
            if printed:
                say("")
            _print_record(record)
            printed = True
    for key in missing:
        say(f"limpet: there is no record {str(key)!r} in {index!r}", err=True)
    if missing:
        raise typer.Exit(EXIT_FAILED)


def _print_record(record: dict[str, Any]) -> None:
    from limpet import records

    width = max(map(len, record))
    for name, value in record.items():
        if isinstance(value, str):
            said = value or '""'
        else:
            said = "-" if value is None else bare(records.encode(value).decode())
        shown = clean(said.replace("\n", "\\n").replace("\t", "\\t"))
        show(f"[bold]{clean(name):<{width}}[/bold]  {shown}")


def delete(index: IndexArgument, keys: KeysArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Delete records by key. A key without a record is no error.

    A later put brings a record back.
    """
    from limpet.app.indexes import demand_index

    handle = demand_index(limpet.open(url, create=False).check(), index)
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


def sql(
    query: QueryArgument,
    url: UrlOption = None,
    json: JsonOption = False,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="Let the query read files of this machine, such as read_csv('x').")
    ] = False,
    memory: MemoryOption = None,
    skip_damaged: SkipDamagedOption = False,
) -> None:
    """Query the indexes of a fleet in SQL. Each index is a table; records that wait to be compiled are included.

    Changes nothing. Only the indexes that the query names are read. Needs the extra `sql`.
    """
    from limpet.index.sql import sql as ask
    from limpet.runtime import system

    demand_one_format(json=json, csv=csv, parquet=parquet)
    fleet = limpet.open(url, read_only=True).check()
    with until_reader_leaves(), skipping(skip_damaged) as on_damage:
        rows = ask(fleet.store, system(), query, allow_files=allow_files, memory=memory, on_damage=on_damage)
        print_answer(rows, json=json, csv=csv, parquet=parquet)

"""`limpet index put`, `get` and `delete`: single records."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from limpet.cli.index_options import IndexArgument, KeysArgument, demand_index, key_of
from limpet.cli.queue_options import many
from limpet.cli.shared import EXIT_FAILED, JsonOption, UrlOption, console, existing, lines, opened, print_json, say
from limpet.errors import Invalid

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
            _print(record)
    missing = [key for key in wanted if found.get(key) is None]
    for key in missing:
        say(f"limpet: there is no record {str(key)!r} in {index!r}", err=True)
    if missing:
        raise typer.Exit(EXIT_FAILED)


def _print(record: dict[str, Any]) -> None:
    from limpet import records
    from limpet.cli.shared import clean

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

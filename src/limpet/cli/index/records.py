"""`limpet index create`, `ls`, `schema` and `stats`; `put`, `get`, `delete` and `sql`; `import` and `export`: indexes,
their records, and files of records."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import limpet
from limpet.cli import (
    EXIT_FAILED,
    ago,
    answer,
    clean,
    now_of,
    print_json,
    progress_bar,
    requests_text,
    say,
    show,
    size_text,
    table,
    when,
)
from limpet.cli.index.options import (
    EngineOption,
    IndexArgument,
    KeysArgument,
    SkipDamagedOption,
    engine_of,
    field_of,
    key_of,
    opened,
    skipping,
)
from limpet.cli.options import STDIN, JsonOption, UrlOption, open_input, refuse_path, until_reader_leaves
from limpet.cli.parse import Argument, Exit, Option, echo
from limpet.cli.sql import (
    STDOUT,
    CsvOption,
    MemoryOption,
    ParquetOption,
    QueryArgument,
    bare,
    demand_one_format,
    print_answer,
)
from limpet.kernel.errors import Invalid, LimpetError, Missing
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.index import Index
    from limpet.index.describe import Waits
    from limpet.index.files import Exported, Import
    from limpet.index.storage import Manifest


def create(
    index: IndexArgument,
    schema: Annotated[Path | None, Option(metavar="FILE", help="A data package or table schema, in JSON.")] = None,
    field: Annotated[
        list[str] | None, Option("--field", "-f", metavar="NAME:TYPE", help="A column; NAME:TYPE? may be null. Repeat.")
    ] = None,
    key: Annotated[
        str | None, Option("--key", "-k", metavar="NAME", help="The column that identifies a record.")
    ] = None,
    depth: Annotated[
        int | None, Option(min=2, max=4, show_default="2", help="2, 3 or 4: an index has 256, 4,096 or 65,536 shards.")
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Create an index. If it exists, new columns are added to it.

    The types are string, integer, number, boolean, date, datetime, object, array and any (JSON). Every record also has
    `updated_at`, which decides between two records with one key.

    256 shards are enough for some hundred million small records; a shard is rewritten as a whole.

    Example: by columns (? means that it may be null); by a Frictionless data package or table schema
    $ limpet index create sites --field domain:string --field title:string? --key domain -u s3://acme/prod
    $ limpet index create sites --schema datapackage.json -u s3://acme/prod
    Exit codes: 0 created, or it exists with these columns; 1 the store refused; 2 wrong usage, or other columns.
    """
    from limpet.app.indexes import manifest_of, package_of
    from limpet.index.types import typed, with_own

    if (schema is None) is (not field):
        raise Invalid("name the columns with --field or --schema", hint="--field domain:string --key domain")
    if field and not key:
        raise Invalid("name the key column", hint=f"--key {field[0].rpartition(':')[0] or 'NAME'}")
    columns: Any = schema if schema is not None else package_of([field_of(each) for each in field or ()])
    found = typed(columns, key)
    if found.key is None:
        raise Invalid("the schema names no primaryKey", hint="say which field is the key: --key NAME")
    with_own(found.fields or (), found.key)  # refuses columns that make no sense before a fleet is made for them
    refuse_path(index, "index", lambda: opened(url, index))
    fleet = limpet.open(url).check()
    before = manifest_of(fleet, index)
    manifest = fleet.index(index, columns, key=key, depth=depth).manifest
    if json:
        print_json(_facts(index, manifest))
        return
    names = ", ".join(each.name for each in manifest.schema.columns)
    if before is None:
        said = f"created {index!r}"
    elif before.schema_version < manifest.schema_version:
        said = f"{index!r} was there, and has new columns now"
    else:
        said = f"{index!r} was there already; nothing was changed"
    say(f"{said}: {many(16**manifest.depth, 'shard')}, key {manifest.key!r}, columns {names}")


def ls(url: UrlOption = None, json: JsonOption = False) -> None:
    """List the indexes. Changes nothing.

    Records are as of the last compile: what waits is not counted. It costs a LIST, and a GET for each index.

    Example:
    $ limpet index ls -u s3://acme/prod
    Exit codes: 0 listed; 1 there is no such fleet; 2 wrong usage.
    """
    fleet = limpet.open(url, read_only=True).check()
    rows: list[dict[str, Any]] = []
    for name in fleet.indexes():
        try:
            manifest = fleet.index(name).manifest
        except Missing:
            rows.append({"index": name, "error": "was never completed: create it again"})
        except LimpetError as error:
            rows.append({"index": name, "error": str(error)})
        else:
            counted = bool(manifest.records)
            rows.append(
                {
                    "index": name,
                    "key": manifest.key,
                    "columns": len(manifest.schema.columns),
                    "shards": 16**manifest.depth,
                    "records": sum(manifest.records) if counted else None,
                    "bytes": sum(manifest.sizes) if counted else None,
                }
            )
    if json:
        print_json(rows)
        return
    if not rows:
        say(f"there is no index at {fleet.url}; `limpet index create` makes one")
        return
    figures = ("columns", "shards", "records", "size")
    listed = table("index", "key", *figures, right=figures)
    for row in rows:
        if "error" in row:
            listed.add_row(clean(row["index"]), f"[red]{clean(row['error'])}[/red]")
            continue
        records = "-" if row["records"] is None else f"{row['records']:,}"
        size = "-" if row["bytes"] is None else size_text(row["bytes"])
        listed.add_row(clean(row["index"]), clean(row["key"]), str(row["columns"]), f"{row['shards']:,}", records, size)
    show(listed)


def schema(
    index: IndexArgument,
    add: Annotated[list[str] | None, Option(metavar="NAME:TYPE", help="Add a column at the end. Repeat.")] = None,
    allow_null: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="Let a column be null. Change the types of all programs first: those that demand a value cannot read "
            "such records.",
        ),
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the columns of an index, add some, or let one be null.

    A new column is null in the records that are there. Columns are never renamed, removed or given another type.

    Example: the columns; one more
    $ limpet index schema sites -u s3://acme/prod
    $ limpet index schema sites --add visits:integer -u s3://acme/prod
    Exit codes: 0 shown or added; 1 there is no such index; 2 wrong usage, or a column that it cannot have.
    """
    from limpet.app.indexes import add_columns, demand_index

    added: list[str] = []
    new = [field_of(each, always_optional=True) for each in add or ()]
    fleet = limpet.open(url, create=False, read_only=not add and not allow_null).check()
    for name in allow_null or ():
        demand_index(fleet, index).allow_null(name)
    if new:
        manifest, added = add_columns(fleet, index, new)
    else:
        manifest = demand_index(fleet, index).manifest
    if json:
        print_json(_facts(index, manifest))
        return
    columns = table("column", "type", "")
    for field in manifest.schema.columns:
        notes = "key" if field.name == manifest.key else "" if field.required else "may be null"
        columns.add_row(clean(field.name), field.type, "stamped" if field.name == "updated_at" else notes)
    version = f"schema version {manifest.schema_version}, {many(16**manifest.depth, 'shard')}"
    show(f"[bold]{clean(index)}[/bold]  {version}", columns)
    if add:
        say("")
        say(f"added {', '.join(added)}" if added else "it has them already; nothing was changed")


def _facts(index: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "index": index,
        "key": manifest.key,
        "depth": manifest.depth,
        "schema_version": manifest.schema_version,
        "fields": [
            {"name": each.name, "type": each.type, "required": each.required} for each in manifest.schema.columns
        ],
    }


def stats(index: IndexArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Count what an index holds, and what waits to be compiled. Changes nothing.

    It lists every object of the index, at a request for each thousand; no record is read. Deleted records count until
    `limpet index purge`.

    Example:
    $ limpet index stats sites -u s3://acme/prod
    Exit codes: 0 shown; 1 there is no such index or fleet; 2 wrong usage.
    """
    from limpet.app.indexes import demand_index

    fleet = limpet.open(url, read_only=True).check()
    handle = demand_index(fleet, index)
    with fleet.meter.measure() as cost:
        found = handle.stats()
    age_s = (now_of(found.oldest_at) - found.oldest_at).total_seconds() if found.oldest_at else None
    if json:
        oldest_s = None if age_s is None else round(age_s, 1)
        print_json({**asdict(found), "oldest_s": oldest_s, "requests": cost.requests})
        return
    records = f"{found.records:,}" if found.records is not None else "not counted at depth 4"
    largest = f", the largest {size_text(found.largest.bytes)} ({found.largest.id})" if found.largest else ""
    rows = {
        "records": f"{records} in the shards",
        "size": f"{size_text(found.bytes)} in {many(found.shards, 'shard')}{largest}",
        "waiting": f"{_waits(found.singles, 'single')}, {_waits(found.packs, 'pack')}",
        "oldest": f"{ago(age_s)} ago" if age_s is not None else "nothing waits",
        "compiled": f"last {when(found.compiled_at)}" if found.compiled_at else "never",
        "schema": f"version {found.schema_version}, {many(found.columns, 'column')}, key {found.key!r}",
        "quarantine": many(found.quarantined, "object") if found.quarantined else "empty",
    }
    show(f"[bold]{clean(found.name)}[/bold]")
    for name, text in rows.items():
        line = f"  {name:<11} {clean(text)}"
        show(f"[red]{line}[/red]" if name == "quarantine" and found.quarantined else line)
    show(requests_text(cost.requests))


def _waits(waits: Waits, what: str) -> str:
    return f"{many(waits.objects, what)} of {size_text(waits.bytes)}" if waits.objects else f"no {what}s"


# ---- records ----

STDIN_BYTES_MAX = 16 << 20


def put(
    index: IndexArgument,
    record: Annotated[str, Argument(metavar="JSON", help="The record: a JSON object; - is stdin.")],
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Write one record; it replaces the one with the same key.

    Dates and times are strings such as 2026-11-05 and 2026-11-05T12:00:00Z. For many records, `limpet index import` is
    faster.

    Example: a record; one from another program
    $ limpet index put sites '{"domain": "a.com", "title": "A"}' -u s3://acme/prod
    $ curl -s https://a.com/site.json | limpet index put sites - -u s3://acme/prod
    Exit codes: 0 written; 1 there is no such index, or the store refused; 2 wrong usage, or a bad record.
    """
    from limpet.index.formats.text import json_decoder, parsed

    text: str | bytes = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1) if record == STDIN else record
    try:
        given = parsed(text)
    except Invalid as error:
        hint = """quote it for the shell: '{"domain": "a.com"}'"""
        many_lines = isinstance(text, bytes) and text.count(b"\n") > 1 and "Extra data" in str(error)
        raise Invalid(str(error), hint="many records: limpet index import" if many_lines else hint) from None
    handle = opened(url, index)
    schema = handle.manifest.schema
    values = json_decoder(schema)(given)
    handle.put(values)
    key = values[schema.key]
    answer({"index": index, "key": key}, f"put {str(key)!r} into {index!r}", json=json)


def get(index: IndexArgument, keys: KeysArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Print records by key. Changes nothing.

    Example: one record; several, one JSON object a line
    $ limpet index get sites a.com -u s3://acme/prod
    $ limpet index get sites a.com b.com --json -u s3://acme/prod
    Exit codes: 0 all were found; 1 one is missing, or there is no such index; 2 wrong usage.
    """
    from limpet.kernel import records

    handle = opened(url, index, read_only=True)
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
            echo(records.encode(record))
        else:
            if printed:
                say("")
            _print_record(record)
            printed = True
    for key in missing:
        say(f"limpet: there is no record {str(key)!r} in {index!r}", err=True)
    if missing:
        raise Exit(EXIT_FAILED)


def _print_record(record: dict[str, Any]) -> None:
    from limpet.kernel import records

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

    Example:
    $ limpet index delete sites a.com b.com -u s3://acme/prod
    Exit codes: 0 deleted; 1 there is no such index, or the store refused; 2 wrong usage.
    """
    handle = opened(url, index)
    schema = handle.manifest.schema
    wanted = [key_of(schema, key) for key in keys]
    for key in wanted:
        schema.key_text(key)
    for key in wanted:
        handle.delete(key)
    answer({"index": index, "deleted": wanted}, f"deleted {many(len(wanted), 'key')} of {index!r}", json=json)


def sql(
    query: QueryArgument,
    url: UrlOption = None,
    json: JsonOption = False,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
    allow_files: Annotated[
        bool, Option(help="Let the query read files of this machine, such as read_csv('x').")
    ] = False,
    memory: MemoryOption = None,
    skip_damaged: SkipDamagedOption = False,
) -> None:
    """Query the indexes of a fleet in SQL. Each index is a table; records that wait to be compiled are included.

    Changes nothing. Only the indexes that the query names are read. Needs the extra `sql`.

    Example: count, join two indexes, keep the answer as Parquet
    $ limpet index sql "select count(*), max(updated_at) from sites" -u s3://acme/prod
    $ limpet index sql "select * from sites join owners using (domain)" --csv - -u s3://acme/prod
    $ limpet index sql "from sites where title is null" --parquet untitled.parquet -u s3://acme/prod
    A name that is no plain word needs quotes: `select * from "my-index"`. `show tables` lists the indexes, `describe
      sites` the columns of one.
    Exit codes: 0 answered; 1 there is no such fleet, it cannot be read, or --skip-damaged left some out; 2 wrong usage
      or a wrong query.
    """
    from limpet.index.sql import sql as ask
    from limpet.kernel.runtime import system

    demand_one_format(json=json, csv=csv, parquet=parquet)
    fleet = limpet.open(url, read_only=True).check()
    with until_reader_leaves(), skipping(skip_damaged) as on_damage:
        rows = ask(fleet.store, system(), query, allow_files=allow_files, memory=memory, on_damage=on_damage)
        print_answer(rows, json=json, csv=csv, parquet=parquet)


FormatOption = Annotated[
    str | None,
    Option(
        "--format",
        metavar="FORMAT",
        show_default="by the name of the file",
        help="csv, jsonl, parquet, usv (limpet's own lines) or strict-usv (the Internet-Draft).",
    ),
]
WHY_SHOWN = 5


def import_(
    index: IndexArgument,
    file: Annotated[str, Argument(metavar="FILE", help="The file; - is stdin.")],
    format: FormatOption = None,
    create: Annotated[
        bool, Option(help="Create the index if it does not exist, with the columns of the file.")
    ] = False,
    key: Annotated[str | None, Option("--key", "-k", metavar="NAME", help="The key of the index to --create.")] = None,
    batch: Annotated[
        int, Option(min=1, metavar="N", help="How many records, of at most 64 MiB, to write at a time.")
    ] = 200_000,
    skip_bad: Annotated[
        Path | None, Option(metavar="FILE", help="Write bad records to this file, and continue.")
    ] = None,
    restart: Annotated[bool, Option(help="Start from the beginning, even if a part is imported already.")] = False,
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
    records are all of another type; the index is made once the whole file was found good, unless --skip-bad is given.

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
    if key and not create:
        raise Invalid("--key needs --create: an existing index has its key", hint="leave it out, or add --create")
    if file == STDIN and (FORMATS[named].seeks or create):
        why = "--create needs to read it twice" if create else f"{named} is not read from a pipe"
        raise Invalid(f"stdin cannot be imported: {why}", hint="write it into a file first")
    if not os.path.isfile(file) and os.path.exists(file) and not os.path.isdir(file):
        raise Invalid(f"{file} is not a plain file", hint="- reads from a pipe")
    with open_input(file) as stream:
        if skip_bad is not None and skip_bad.exists() and os.path.samestat(skip_bad.stat(), os.fstat(stream.fileno())):
            raise Invalid("--skip-bad names the file that is imported", hint="name another one")
        fleet, handle = _target(index, url, stream, named, create=create, key=key, skips=skip_bad is not None)
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


def _target(
    index: str, url: str | None, stream: IO[bytes], format: str, *, create: bool, key: str | None, skips: bool
) -> tuple[Fleet, Index[dict[str, Any]]]:
    """The index to import into. It is created once the whole file was read, unless bad records are skipped."""
    from limpet.app.indexes import columns_for, demand_index
    from limpet.kernel.runtime import system

    if not create:
        fleet = limpet.open(url, create=False).check()
        return fleet, demand_index(fleet, index)
    refuse_path(index, "index", lambda: opened(url, index))
    try:
        fleet = limpet.open(url, create=False).check()
        manifest = fleet.index(index).manifest
    except Missing:
        columns, key = columns_for(index, stream, format, key, at=None if skips else system().wall())
        fleet = limpet.open(url).check()
        handle = fleet.index(index, columns, key=key)
        handle.manifest  # noqa: B018 - the first look creates it
        guessed = ", ".join(f"{field['name']} {field['type']}" for field in columns["fields"])
        say(f"(new index: {guessed}; key {key})", err=True)
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
    from limpet.app.indexes import ImportJob
    from limpet.app.place import absolute
    from limpet.index.formats import FORMATS
    from limpet.kernel.runtime import system

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
    from limpet.kernel.runtime import system

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
    file: Annotated[str, Argument(metavar="FILE", help="The file to write; - is stdout.")],
    format: FormatOption = None,
    skip_damaged: SkipDamagedOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Write every record of an index into a file, `updated_at` included. `limpet index import` reads it back the same.

    The file has waiting records too, and no deleted ones. The file appears when it is whole: a failed export
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
    from limpet.index.files import whole_file
    from limpet.kernel.runtime import system

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

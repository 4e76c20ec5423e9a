"""`limpet index create`, `ls`, `schema` and `stats`: indexes, their columns and their sizes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.index.options import IndexArgument, demand_index, field_of, package_of, requests_text, size_text, table
from limpet.cli.options import JsonOption, UrlOption, existing, opened
from limpet.cli.output import ago, clean, console, lines, many, now_of, print_json, say, when
from limpet.errors import Invalid, LimpetError, Missing

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.index.describe import IndexStats, Waits
    from limpet.index.storage import Manifest


CREATE_EPILOG = lines(
    "Example: by columns (? means that it may be null); by a Frictionless data package or table schema",
    "$ limpet index create sites --field domain:string --field title:string? --key domain -u s3://acme/prod",
    "$ limpet index create sites --schema datapackage.json -u s3://acme/prod",
    "Exit codes: 0 created, or it is there with these columns; 1 the store refused; 2 wrong usage, or other columns.",
)

LS_EPILOG = lines(
    "Example:",
    "$ limpet index ls -u s3://acme/prod",
    "Exit codes: 0 listed; 1 there is no such fleet; 2 wrong usage.",
)

SCHEMA_EPILOG = lines(
    "Example: the columns; one more",
    "$ limpet index schema sites -u s3://acme/prod",
    "$ limpet index schema sites --add visits:integer -u s3://acme/prod",
    "Exit codes: 0 shown or added; 1 there is no such index; 2 wrong usage, or a column that it cannot have.",
)


def create(
    index: IndexArgument,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", metavar="FILE", show_default=False, help="A data package or table schema, in JSON."),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field", "-f", metavar="NAME:TYPE", show_default=False, help="A column; NAME:TYPE? may be null. Repeat."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", metavar="NAME", show_default=False, help="The column that tells records apart."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth", min=2, max=4, show_default="2", help="2, 3 or 4: an index has 256, 4,096 or 65,536 shards."
        ),
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Make an index. Where there is one already, its columns are added to.

    The types are string, integer, number, boolean, date, datetime, object, array and any (JSON). Every record also has
    `updated_at`, which decides between two records with one key.

    256 shards do for some hundred million small records; a shard is rewritten as a whole.
    """
    if (schema is None) is (not field):
        raise Invalid("say which columns it has: --field, or --schema", hint="--field domain:string --key domain")
    if field and not key:
        raise Invalid("say which column is the key", hint=f"--key {field[0].rpartition(':')[0] or 'NAME'}")
    columns: Any = schema if schema is not None else package_of([field_of(each) for each in field or ()])
    _check(columns, key)
    fleet = opened(url)
    handle = fleet.index(index, columns, key=key, depth=depth)
    before = _manifest_before(fleet, index)
    manifest = handle.manifest
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
    say(f"{said}: {16**manifest.depth:,} shards, key {manifest.key!r}, columns {names}")


def _check(columns: Any, key: str | None) -> None:
    """Refuse columns that make no sense before a fleet is made for them."""
    from limpet.index.codec.types import typed, with_own

    found = typed(columns, key)
    if found.key is None:
        raise Invalid("the schema names no primaryKey", hint="say which field is the key: --key NAME")
    with_own(found.fields or (), found.key)


def _manifest_before(fleet: Fleet, index: str) -> Manifest | None:
    try:
        return fleet.index(index).manifest
    except Missing:
        return None


def ls(url: UrlOption = None, json: JsonOption = False) -> None:
    """List the indexes. Changes nothing.

    Records are as of the last compile: what waits is not counted. It costs a LIST, and a GET for each index.
    """
    fleet = opened(url, read_only=True)
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
    _print_indexes(fleet.url, rows)


def _print_indexes(url: str, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    out = console()
    if not rows:
        out.print(f"there is no index at {url}; `limpet index create` makes one", markup=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for title in ("index", "key", "columns", "shards", "records", "size"):
        table.add_column(title, justify="left" if title in ("index", "key") else "right")
    for row in rows:
        if "error" in row:
            table.add_row(clean(row["index"]), f"[red]{clean(row['error'])}[/red]")
            continue
        records = "-" if row["records"] is None else f"{row['records']:,}"
        size = "-" if row["bytes"] is None else size_text(row["bytes"])
        table.add_row(clean(row["index"]), clean(row["key"]), str(row["columns"]), f"{row['shards']:,}", records, size)
    out.print(table)


def schema(
    index: IndexArgument,
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="NAME:TYPE", show_default=False, help="Add a column at the end. Repeat."),
    ] = None,
    allow_null: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-null",
            metavar="NAME",
            show_default=False,
            help="Let a column be null. Change the types of all programs first: those that demand a value cannot read "
            "such records.",
        ),
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the columns of an index, add some, or let one be null.

    A new column is null in the records that are there. Columns are never renamed, removed or given another type.
    """
    for name in allow_null or ():
        demand_index(existing(url), index).allow_null(name)
    if not add:
        manifest = demand_index(opened(url, read_only=True), index).manifest
        added: list[str] = []
    else:
        new = [field_of(each, always_optional=True) for each in add]
        fleet = existing(url)
        before = demand_index(fleet, index).manifest
        own = [each for each in before.schema.columns if each.name not in {field.name for field in new}]
        manifest = fleet.index(index, package_of([*own, *new]), key=before.key).manifest
        known = {each.name for each in before.fields}
        added = [field.name for field in manifest.fields if field.name not in known]
    if json:
        print_json(_facts(index, manifest))
        return
    _print_columns(index, manifest)
    if add:
        said = f"added {', '.join(added)}" if added else "it has them already; nothing was changed"
        typer.echo()
        say(said)


def _print_columns(index: str, manifest: Manifest) -> None:
    out = console()
    out.print(
        f"[bold]{clean(index)}[/bold]  schema version {manifest.schema_version}, {16**manifest.depth:,} shards",
        soft_wrap=True,
    )
    rows = table("column", "type", "", right=False)
    for field in manifest.schema.columns:
        notes = "key" if field.name == manifest.key else "" if field.required else "may be null"
        rows.add_row(clean(field.name), field.type, "stamped" if field.name == "updated_at" else notes)
    out.print(rows)


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


STATS_EPILOG = lines(
    "Example:",
    "$ limpet index stats sites -u s3://acme/prod",
    "Exit codes: 0 shown; 1 there is no such index or fleet; 2 wrong usage.",
)


def stats(index: IndexArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Count what an index holds, and what waits to be compiled. Changes nothing.

    It lists every object of the index, at a request for each thousand; no record is read. Deleted records count until
    `limpet index purge`.
    """
    fleet = opened(url, read_only=True)
    handle = demand_index(fleet, index)
    with fleet.meter.measure() as cost:
        found = handle.stats()
    age_s = (now_of(found.oldest_at) - found.oldest_at).total_seconds() if found.oldest_at else None
    if json:
        print_json(_stats_facts(found, age_s, cost.requests))
    else:
        _print_stats(found, age_s, cost.requests)


def _stats_facts(found: IndexStats, age_s: float | None, requests: dict[str, int]) -> dict[str, Any]:
    return {**asdict(found), "oldest_s": None if age_s is None else round(age_s, 1), "requests": requests}


def _print_stats(found: IndexStats, age_s: float | None, requests: dict[str, int]) -> None:
    out = console()
    records = f"{found.records:,}" if found.records is not None else "not counted at depth 4"
    compiled = f", last {when(found.compiled_at)}" if found.compiled_at else ", never"
    rows = {
        "records": f"{records} in the shards",
        "size": f"{size_text(found.bytes)} in {found.shards:,} shards{_largest(found)}",
        "waiting": f"{_waits(found.singles, 'single')}, {_waits(found.packs, 'pack')}",
        "oldest": f"{ago(age_s)} ago" if age_s is not None else "nothing waits",
        "compiled": compiled.removeprefix(", "),
        "schema": f"version {found.schema_version}, {many(found.columns, 'column')}, key {found.key!r}",
        "quarantine": many(found.quarantined, "object") if found.quarantined else "empty",
    }
    out.print(f"[bold]{clean(found.name)}[/bold]")
    for name, said in rows.items():
        style = "red" if name == "quarantine" and found.quarantined else None
        out.print(f"  {name:<11} {clean(said)}", soft_wrap=True, style=style)
    out.print(requests_text(requests), soft_wrap=True)


def _largest(found: IndexStats) -> str:
    return f", the largest {size_text(found.largest.bytes)} ({found.largest.id})" if found.largest else ""


def _waits(waits: Waits, what: str) -> str:
    return f"{many(waits.objects, what)} of {size_text(waits.bytes)}" if waits.objects else f"no {what}s"

"""What the index's commands share: arguments, how an index is opened, keys and columns as one types them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.output import EXIT_FAILED, console, many, say
from limpet.errors import Corrupt, Invalid, Missing

if TYPE_CHECKING:
    from rich.table import Table

    from limpet.app import Fleet
    from limpet.index import Index
    from limpet.index.codec.lines import Field, Schema
    from limpet.index.reader import DamagedShard, OnDamage


IndexArgument = Annotated[str, typer.Argument(metavar="INDEX", show_default=False, help="The index's name.")]
KeysArgument = Annotated[list[str], typer.Argument(metavar="KEY", show_default=False, help="Keys of records.")]

SkipDamagedOption = Annotated[
    bool,
    typer.Option("--skip-damaged", help="Leave damaged shards out, name each on stderr, and end with exit code 1."),
]

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        show_default="this process",
        help="Spread the work: processes=N, threads=N, or dask=tcp://HOST:PORT.",
    ),
]

FORMAT_HELP = "csv, jsonl, parquet, usv (limpet's own lines) or strict-usv (the Internet-Draft)."


def demand_index(fleet: Fleet, name: str) -> Index[dict[str, Any]]:
    """The index, if there is one of that name.   Raises: Missing, naming one that is near.   Cost: 1 GET."""
    from difflib import get_close_matches

    index = fleet.index(name)
    try:
        index.manifest  # noqa: B018 - the first look reads it
    except Missing:
        names = fleet.indexes()
        if name in names and any(stat.size for stat in fleet.store.list(index.storage.keys.root)):
            raise Corrupt(
                f"the index {name!r} at {fleet.url} has no manifest, and other objects of it are there",
                hint=f"restore {index.storage.keys.manifest} from a backup; if no index was ever made there, "
                "`limpet index create` tells what is in its way",
            ) from None
        near = get_close_matches(name, names, n=1)
        if near:
            hint = f"did you mean {near[0]!r}? `limpet index ls` shows all"
        elif names:
            hint = f"there is {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
        else:
            hint = f"make it: limpet index create {name} --field id:string --key id, or limpet index import --create"
        raise Missing(f"there is no index {name!r} at {fleet.url}", hint=hint) from None
    return index


@contextmanager
def skipping(skip_damaged: bool) -> Iterator[OnDamage | None]:
    """What to hand to a reader. If shards were left out, the command ends with exit code 1 when all else is done."""
    count = 0

    def tell(left_out: DamagedShard) -> None:
        nonlocal count
        count += 1
        say(f"damaged: {left_out}", err=True)

    yield tell if skip_damaged else None
    if count:
        shards = "1 damaged shard was" if count == 1 else f"{count} damaged shards were"
        say(f"limpet: {shards} left out: this is not all that the index had", err=True)
        say("hint: restore them from a backup, or `limpet index verify --accept-loss`", err=True)
        raise typer.Exit(EXIT_FAILED)


def key_of(schema: Schema, text: str) -> str | int:
    """A key as it is typed.   Raises: Invalid."""
    from limpet.index.formats.api import from_text

    kind = schema.fields[schema.shape.key_at].type
    if kind != "integer":
        return text
    try:
        key: str | int | None = from_text(kind)(text)
    except Invalid as error:
        raise Invalid(f"the key {schema.key!r}: {error}") from None
    return "" if key is None else key


def field_of(text: str, *, always_optional: bool = False) -> Field:
    """A column as it is typed: `name:type`, with `?` at the end if it may be null.   Raises: Invalid."""
    from limpet.index.codec.lines import KINDS, Field

    name, colon, typed = text.rpartition(":")
    kind = typed.removesuffix("?")
    for known in KINDS:
        if kind == known and name and colon:
            return Field(name, known, required=not always_optional and not typed.endswith("?"))
    why = f"there is no type {kind!r}" if name and colon else "it has no type"
    raise Invalid(
        f"{text!r} is no column: {why}",
        hint=f"write name:type, or name:type? if it may be null; the types are {', '.join(KINDS)}",
    )


def package_of(fields: list[Field]) -> dict[str, Any]:
    """The columns as a table schema, which `fleet.index` takes."""
    return {
        "fields": [
            {"name": field.name, "type": field.type, "constraints": {"required": field.required}} for field in fields
        ]
    }


def size_text(size: float) -> str:
    """A number of bytes, as people say it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def table(*titles: str, right: bool = True) -> Table:
    """An empty table without lines between cells; `right`: the columns after the first hold numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for at, title in enumerate(titles):
        made.add_column(title, justify="right" if right and at else "left")
    return made


def requests_text(requests: dict[str, int], where: str = "") -> str:
    """What a command cost, in requests by verb, as a dim line."""
    took = ", ".join(f"{count:,} {verb.upper()}" for verb, count in requests.items())
    return f"[dim]This took {many(sum(requests.values()), 'request')}{where}: {took}.[/dim]"


@contextmanager
def progress_bar(description: str, *, total: int | None, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on stderr, only on a terminal. It yields a function that takes what `Progress.update` takes."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    err = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        yield partial(bar.update, bar.add_task(description, total=total))


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """Exit with code 1 when the reader of stdout has closed it. The interpreter must not try to flush the rest."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None

"""What the commands of `limpet index` share: arguments and options, damaged shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.cli import EXIT_FAILED, say
from limpet.errors import Invalid

if TYPE_CHECKING:
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


@contextmanager
def skipping(skip_damaged: bool) -> Iterator[OnDamage | None]:
    """What to hand to a reader. If shards were left out, the command ends with exit code 1 when all else is done."""
    count = 0

    def report(left_out: DamagedShard) -> None:
        nonlocal count
        count += 1
        say(f"damaged: {left_out}", err=True)

    yield report if skip_damaged else None
    if count:
        shards = "1 damaged shard was" if count == 1 else f"{count} damaged shards were"
        say(f"limpet: {shards} left out: the output is incomplete", err=True)
        say("hint: restore them from a backup, or `limpet index verify --accept-loss`", err=True)
        raise typer.Exit(EXIT_FAILED)


def key_of(schema: Schema, text: str) -> str | int:
    """The key for the text of an argument.   Raises: Invalid."""
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
    """The column for `name:type`, with `?` at the end if it may be null.   Raises: Invalid."""
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

"""`limpet cell`: JSON values that change by compare-and-swap."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import limpet
from limpet import cli
from limpet.cli import answer, clean, confirm, print_json, say, size_text, table, when
from limpet.cli.drop import DryRunOption
from limpet.cli.options import STDIN, JsonOption, UrlOption, YesOption
from limpet.cli.parse import Argument, Option, group, lines
from limpet.kernel.errors import Conflict, Corrupt, Invalid, LimpetError, Missing
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.kernel.cell import Cell, Versioned

NameArgument = Annotated[str, Argument(metavar="NAME", help="The cell's name.")]
VALUE_CHARS_SHOWN = 60


def get(name: NameArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Print the value of a cell as JSON. With --json its version too, for `put --if-version`. Changes nothing.

    Example:
    $ limpet cell get settings -u s3://acme/prod
    Exit codes: 0 printed; 1 there is no such cell or fleet, or it cannot be read; 2 wrong usage.
    """
    seen = _demand(limpet.open(url, read_only=True).check(), name)
    print_json(_facts(name, seen) if json else seen.value)


def put(
    name: NameArgument,
    value: Annotated[str, Argument(metavar="JSON", help="The new value; - reads it from stdin.")],
    create: Annotated[bool, Option("--create", help="Only if there is no value yet.")] = False,
    if_version: Annotated[
        str | None, Option("--if-version", metavar="VERSION", help="Only if the cell still has this version.")
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Write the value of a cell: any JSON of at most 1 MiB. A cell is made by its first write.

    With --create or --if-version, one of several concurrent writes wins, and the others end with exit code 1.

    Example: write an object; write a text, quoted as JSON; write only if the version is still the one that was read
    $ limpet cell put settings '{"limit": 5}' -u s3://acme/prod
    $ limpet cell put leader '"ann"' --create -u s3://acme/prod
    $ limpet cell put settings - --if-version "$version" -u s3://acme/prod < settings.json
    Exit codes: 0 written; 1 the cell has another version, or the store refused; 2 wrong usage, or bad JSON.
    """
    from limpet.kernel.records import RECORD_BYTES_MAX, parse_json

    if create and if_version is not None:
        raise Invalid("--create means that there is no version yet", hint="leave it out, or --if-version")
    text = sys.stdin.buffer.read(RECORD_BYTES_MAX + 1) if value == STDIN else value
    try:
        told = parse_json(text, what="the value")
    except Invalid as error:
        if value != STDIN:
            error.hint = f"a text is in double quotes: '\"{value}\"'"
        raise
    cell = _open(url).cell(name)
    if create:
        written = _create(cell, name, told)
    elif if_version is not None:
        written = _swap(cell, name, if_version, told)
    else:
        written = cell.write(told)
    answer(_facts(name, written), f"wrote {name!r}, version {written.version}", json=json)


def _create(cell: Cell[Any], name: str, value: Any) -> Versioned[Any]:
    try:
        return cell.create(value)
    except Conflict:
        hint = f"`limpet cell get {name} --json` shows its version, for --if-version"
        raise Conflict(f"cell {name!r} has a value already; nothing was changed", hint=hint) from None


def _swap(cell: Cell[Any], name: str, version: str, value: Any) -> Versioned[Any]:
    seen = cell.read()
    with suppress(Conflict):
        if seen is not None and seen.version == version:
            return cell.swap(seen, value)
    raise Conflict(
        f"cell {name!r} is no longer version {version}; nothing was changed",
        hint=f"`limpet cell get {name} --json` shows what it is now",
    )


def incr(
    name: NameArgument,
    by: Annotated[str, Argument(metavar="N", help="How much to add; less than 0 subtracts, behind `--`.")] = "1",
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Add to a cell that holds a number, and print the new one. One without a value counts from 0.

    Any number of processes may add at once, and each addition counts once.

    Example: one more; ten less
    $ limpet cell incr visits -u s3://acme/prod
    $ limpet cell incr visits -u s3://acme/prod -- -10
    Exit codes: 0 added; 1 the store refused, or whether it happened is unknown; 2 wrong usage, or the cell holds no
      number.
    """
    from limpet.kernel.records import INTEGER_MAX, parse_json

    amount: Any = None
    with suppress(Invalid):
        amount = parse_json(by, what="the amount")
    if not _is_number(amount):
        raise Invalid(f"{by!r} is not a number", hint="write it as 1, -10 or 0.5")

    def added(value: Any) -> Any:
        if value is not None and not _is_number(value):
            raise Invalid(f"cell {name!r} holds no number", hint=f"`limpet cell get {name}` shows what it holds")
        total = (value or 0) + amount
        if abs(total) > INTEGER_MAX:
            raise Invalid(f"{total} is more than a JSON number holds exactly", hint="nothing was changed")
        return total

    seen = _open(url).cell(name).update(added)
    assert seen is not None
    answer(_facts(name, seen), f"{seen.value}", json=json)


def _open(url: str | None) -> Fleet:
    """The fleet to write to; stderr says if it is new, for it may be a typo."""
    fleet = limpet.open(url).check()
    if fleet.is_new:
        say(f"(new fleet at {fleet.url})", err=True)
    return fleet


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def ls(
    limit: Annotated[int, Option(min=1, help="How many cells to show at most.")] = 1000,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """List the cells of a fleet: when each was written, its size, and how its value begins. Changes nothing.

    Example:
    $ limpet cell ls -u s3://acme/prod
    Exit codes: 0 listed; 1 no fleet there, or it cannot be read; 2 wrong usage.
    """
    from limpet.kernel.keys import CELLS, name_of

    fleet = limpet.open(url, read_only=True).check()
    bad: dict[str, LimpetError] = {}
    cells = [*islice(fleet.cells(on_error=lambda key, error: bad.update({key: error})), limit + 1)]
    names = {key: name_of(key.removeprefix(f"{CELLS}/").removesuffix(".json")) for key, _, _ in cells}
    if json:
        rows = [_facts(names[key], cell) | {"bytes": size} for key, size, cell in cells[:limit]]
        unreadable = [{"key": key, "error": str(error)} for key, error in bad.items()]
        print_json({"cells": rows, "unreadable": unreadable, "more": len(cells) > limit})
        return
    if not cells and not bad:
        say(f"no cell has a value at {fleet.url}")
        return
    listed = table("cell", "written", "size", "value", right=("size",))
    for key, size, cell in cells[:limit]:
        listed.add_row(clean(names[key]), when(cell.modified), size_text(size), clean(_begin(cell.value)))
    for where, error in bad.items():
        listed.add_row(clean(where), "[red]unreadable[/red]", "-", clean(str(error)))
    cli.show(listed)
    if len(cells) > limit:
        say(f"there are more than {many(limit, 'cell')}: --limit shows more", err=True)


def rm(
    name: NameArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    force: Annotated[bool, Option(help="Also a cell that cannot be read.")] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Remove the value of a cell. Its name can be used again.

    A small object stays, so that no late write brings the value back, and the cell is still guarded by its lock.

    Example:
    $ limpet cell rm settings -u s3://acme/prod
    Exit codes: 0 removed; 1 no such cell or fleet, or you said no; 2 wrong usage, or no terminal to ask.
    """
    fleet = limpet.open(url, create=False, read_only=dry_run).check()
    try:
        seen = _demand(fleet, name)
        facts, text = _facts(name, seen), f"cell {name!r}: {_begin(seen.value)}"
    except Corrupt as error:
        if not force:
            raise
        facts, text = {"name": name, "error": str(error)}, f"cell {name!r}, which cannot be read"
    if dry_run:
        answer(facts | {"removed": False}, f"would be removed: {text}", json=json)
        return
    if not yes:
        confirm(f"{text} would be removed, for good", "Remove it?")
    fleet.cell(name).drop(force=force)
    answer(facts | {"removed": True}, f"removed cell {name!r}", json=json)


def _demand(fleet: Fleet, name: str) -> Versioned[Any]:
    seen = fleet.cell(name).read()
    if seen is None:
        raise Missing(f"there is no cell {name!r} at {fleet.url}", hint="`limpet cell ls` shows those there are")
    return seen


def _facts(name: str, seen: Versioned[Any]) -> dict[str, Any]:
    fence = seen.header.fence
    return {
        "name": name,
        "value": seen.value,
        "version": seen.version,
        "writes": seen.header.seq,
        "written_at": seen.modified,
        "lock": fence and fence.lock,
        "token": fence and fence.token,
    }


def _begin(value: Any) -> str:
    from limpet.kernel.records import json_text

    text = json_text(value)
    return text if len(text) <= VALUE_CHARS_SHOWN else f"{text[: VALUE_CHARS_SHOWN - 3]}..."


app = group(
    "cell",
    get,
    put,
    incr,
    ls,
    rm,
    epilog=lines(
        "Example: a setting that all processes share, and a counter",
        "$ limpet cell put settings '{\"limit\": 5}' -u s3://acme/prod",
        "$ limpet cell get settings -u s3://acme/prod",
        "$ limpet cell incr visits -u s3://acme/prod",
    ),
)

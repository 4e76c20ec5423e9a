"""`limpet catalog log | show | verify`: the catalog as it is, was, and came to be. They change nothing."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.catalog.options import CatalogUrlOption, opened
from limpet.cli.options import JsonOption
from limpet.cli.output import EXIT_FAILED, clean, console, lines, many, print_json
from limpet.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.app import Fleet
    from limpet.catalog.history import PastCatalog
    from limpet.catalog.records import CommitRecord, Row

LOG_EPILOG = lines(
    "Example:",
    "$ limpet catalog log -n 5 -u s3://acme/prod",
    "Exit codes: 0 shown; 1 no fleet there, it cannot be read, or a commit record is damaged; 2 wrong usage.",
)
SHOW_EPILOG = lines(
    "Example: now; as of a version; as of a moment",
    "$ limpet catalog show -u s3://acme/prod",
    "$ limpet catalog show --at 41 -u s3://acme/prod",
    "$ limpet catalog show --at 2026-11-16T12:00:00Z -u s3://acme/prod",
    "Exit codes: 0 shown; 1 it was never so, or is no longer kept; 2 wrong usage.",
)
VERIFY_EPILOG = lines(
    "Example:",
    "$ limpet catalog verify -u s3://acme/prod",
    "Exit codes: 0 all is as it was committed; 1 it is not, or cannot be read; 2 wrong usage.",
)

_KINDS = {"n": "namespace", "t": "table", "v": "view"}


def log(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many commits to show.")] = 20,
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the last commits, the newest first: what was done, when, by whom, and under which leader.

    Who did it is the name of the token that the request came with; it is empty where `limpet serve` asks for none. A
    commit holds whatever was granted while the one before it was published. Each names the one before by digest.
    """
    fleet = opened(url, read_only=True)
    faults: list[str] = []
    commits = fleet.catalog().log(limit, lambda error: faults.append(str(error)))
    if json:
        print_json([_commit_facts(commit) for commit in commits])
    else:
        _print_log(fleet, commits)
    for fault in faults:
        console(stderr=True).print(f"[red]damaged[/red]: {clean(fault)}", soft_wrap=True)
    if faults:
        raise typer.Exit(EXIT_FAILED)


def _print_log(fleet: Fleet, commits: Sequence[CommitRecord]) -> None:
    out = console()
    if not commits:
        out.print(f"nothing was ever published at {fleet.url}", soft_wrap=True, markup=False)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("version", justify="right", no_wrap=True)
    table.add_column("published", no_wrap=True)
    table.add_column("token", justify="right", no_wrap=True)
    signed = any(row.actor for commit in commits for row in commit.rows)
    if signed:
        table.add_column("who", overflow="fold")
    table.add_column("what", overflow="fold")
    for commit in commits:
        said = "\n".join(map(_said, commit.rows)) or "[dim]a new leader[/dim]"
        who = ["\n".join(clean(row.actor) for row in commit.rows)] if signed else []
        table.add_row(str(commit.version), _moment(commit.at), str(commit.token), *who, said)
    out.print(table)


def show(
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="VERSION|TIME", show_default="now", help="A version, or a time with its zone."),
    ] = None,
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show what the catalog holds, or held: namespaces, tables and views, and where their metadata lies."""
    fleet = opened(url, read_only=True)
    past = fleet.catalog().at(_when(at))
    if json:
        print_json(_past_facts(past))
        return
    out = console()
    out.print(f"[bold]version {past.version}[/bold], published {_moment(past.at)}", soft_wrap=True)
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for title in ("name", "kind", "metadata"):
        table.add_column(title, overflow="fold")
    rows = [(namespace, "namespace", "") for namespace in past.namespaces]
    for kind, found in (("table", past.tables), ("view", past.views)):
        rows += [((*namespace, name), kind, location) for (namespace, name), location in found.items()]
    for levels, kind, location in sorted(rows):
        table.add_row(clean(".".join(levels)), kind, clean(location))
    out.print(table if rows else "it is empty")


def verify(url: CatalogUrlOption = None, json: JsonOption = False) -> None:
    """Walk the chain of commits from the newest to the oldest that is kept, and compare every digest; then read the
    metadata file of every table and view, and compare its digest with the one that was committed.

    Nothing in the past, and no metadata file, can have been changed without its showing here. Metadata files that
    version 0.1 wrote have no digest; they get one with the next commit to their table.
    """
    fleet = opened(url, read_only=True)
    with console(stderr=True).status("walking the chain"):
        found = fleet.catalog().verify()
    chain = found.chain
    if json:
        print_json(
            {
                "ok": found.broken is None,
                "commits": chain.commits,
                "oldest": chain.oldest,
                "broken": chain.broken,
                "files": found.files,
                "undigested": found.undigested,
                "faults": found.faults,
            }
        )
    elif found.broken is None:
        span = f", back to version {chain.oldest}" if chain.commits else ""
        unsaid = f", {found.undigested} of them without a digest" if found.undigested else ""
        files = many(found.files, "metadata file")
        console().print(f"the chain is whole: {many(chain.commits, 'commit')}{span}; {files}{unsaid}", soft_wrap=True)
    else:
        for fault in chain.faults:
            console().print(f"[red]the chain is broken[/red]: {clean(fault)}", soft_wrap=True)
        for fault in found.damaged:
            console().print(f"[red]damaged[/red]: {clean(fault)}", soft_wrap=True)
    if found.broken is not None:
        raise typer.Exit(EXIT_FAILED)


def _when(text: str | None) -> int | datetime | None:
    """A version or a time as it is typed.   Raises: Invalid."""
    if text is None:
        return None
    number = text.removeprefix("v")
    if number.isascii() and number.isdigit() and len(number) < 19:
        return int(number)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text!r} is neither a version nor a time", hint="such as 41, or 2026-11-16T12:00:00Z") from None


def _names(row: Row) -> list[tuple[str, str]]:
    """Kinds and dotted names of what a row changed."""
    from limpet.catalog.state import parsed, shown

    found = [(change.key[:1], parsed(change.key)) for change in row.changes if change.key[:2] in ("n/", "t/", "v/")]
    return [(_KINDS[kind], shown(*where)) for kind, where in found]


def _said(row: Row) -> str:
    names = [name for _, name in _names(row)]
    return clean(f"{row.what} {' -> '.join(names) if row.what.startswith('rename') else ', '.join(names)}".strip())


def _commit_facts(commit: CommitRecord) -> dict[str, Any]:
    rows = [
        {
            "id": row.id,
            "what": row.what,
            "actor": row.actor,
            "changes": [{"kind": kind, "name": name} for kind, name in _names(row)],
        }
        for row in commit.rows
    ]
    return {"version": commit.version, "commit": commit.id, "at": commit.at, "token": commit.token, "rows": rows}


def _past_facts(past: PastCatalog) -> dict[str, Any]:
    def entries(found: Any) -> list[dict[str, Any]]:
        return [
            {"namespace": namespace, "name": name, "metadata_location": location}
            for (namespace, name), location in sorted(found.items())
        ]

    return {
        "version": past.version,
        "at": past.at,
        "namespaces": [
            {"namespace": levels, "properties": properties} for levels, properties in sorted(past.namespaces.items())
        ],
        "tables": entries(past.tables),
        "views": entries(past.views),
    }


def _moment(at: str) -> str:
    return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S} UTC"

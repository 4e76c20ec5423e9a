"""`limpet catalog undrop | gc`, and the quarantine of events."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.catalog.options import CatalogUrlOption, SeparatorOption, TableArgument, identifier, opened
from limpet.cli.options import DELAY_HELP, JsonOption, duration_s
from limpet.cli.output import EXIT_FAILED, clean, console, lines, many, print_json
from limpet.errors import Invalid

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.events.fold import Executions

UNDROP_EPILOG = lines(
    "Example: where no service runs; then through the one that leads",
    "$ limpet catalog undrop sales.orders -u s3://acme/prod",
    "$ limpet catalog undrop sales.orders --service http://127.0.0.1:8181",
    "Exit codes: 0 it is back; 1 none was dropped, it was purged, the name is taken, or another process leads; 2 wrong "
    "usage.",
)
GC_EPILOG = lines(
    "Example: keep a week of history",
    "$ limpet catalog gc --keep 7d -u s3://acme/prod",
    "Exit codes: 0 done; 1 no fleet there, or something in the chain is missing; 2 wrong usage.",
)


def undrop(
    table: TableArgument,
    service: Annotated[
        str | None,
        typer.Option(
            "--service",
            metavar="URL",
            show_default=False,
            help="Ask the `limpet serve` there, with the first of LIMPET_API_TOKENS.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait for the lead, without --service."),
    ] = 0.0,
    separator: SeparatorOption = ".",
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Put back the table or view of that name that was dropped last, as it was then.

    A drop deletes no files, so everything is there. What was purged is not, and cannot be put back. Without a service
    this process leads the catalog for a moment; where another one leads, name it with --service.
    """
    namespace, name = identifier(table, separator)
    if service is not None:
        location = _ask(service, namespace, name)
    else:
        location = _lead_and_undrop(opened(url, read_only=False), namespace, name, wait)
    if json:
        print_json({"namespace": namespace, "name": name, "metadata_location": location})
    else:
        console().print(f"{table!r} is back, with {location}", soft_wrap=True, markup=False)


def _lead_and_undrop(fleet: Fleet, namespace: list[str], name: str, wait_s: float) -> str:
    from limpet.catalog import NotLeader

    try:
        with fleet.lead_catalog(wait_s=wait_s) as catalog:
            return str(catalog.undrop(namespace, name).metadata_location)
    except NotLeader as error:
        raise NotLeader(str(error), hint="ask it: --service http://HOST:PORT; or --wait until it is gone") from None


def _ask(service: str, namespace: list[str], name: str) -> str:
    """Have a running service do it.   Raises: the kind of error that it met."""
    from limpet.service.auth import API_TOKENS, secrets_of
    from limpet.service.client import post

    tokens = secrets_of(API_TOKENS)
    answer = post(service, "/limpet/undrop", {"namespace": namespace, "name": name}, tokens[0] if tokens else None)
    return str(answer.get("metadata-location"))


def gc(
    keep: Annotated[
        str, typer.Option("--keep", metavar="TIME", help=f"How much history to keep, {DELAY_HELP}.")
    ] = "30d",
    keep_versions: Annotated[
        int, typer.Option("--keep-versions", min=1, help="How many of the newest versions to keep, however old.")
    ] = 100,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="Objects younger than this stay, whatever they are.")
    ] = "1h",
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Give up old history, and delete what no version that is kept needs. `limpet serve` does it every hour.

    Table data is never touched. What was dropped before the history that is kept can no longer be undropped.
    """
    from limpet.app.catalogs import executions_of, storage_of
    from limpet.catalog.gc import collect
    from limpet.runtime import system

    keep_s, grace_s = duration_s(keep), duration_s(grace)
    fleet = opened(url, read_only=False)
    storage = storage_of(fleet.store, system())
    with console(stderr=True).status("collecting"):
        executions = executions_of(fleet.store, system())
        keeping = timedelta(seconds=keep_s)
        done = collect(storage, executions, keep=keeping, keep_versions=keep_versions, grace_s=grace_s)
    ledger = done.ledger
    if json:
        print_json(
            {
                "floor": done.floor,
                "history": done.history,
                "applied": ledger.applied,
                "dead": ledger.dead,
                "events": done.events,
                "faults": done.faults,
            }
        )
    else:
        console().print(
            f"deleted {many(done.history, 'commit record and snapshot', 'commit records and snapshots')}, "
            f"{many(ledger.applied, 'published batch', 'published batches')}, "
            f"{many(ledger.dead, 'batch that was never published', 'batches that were never published')}, "
            f"{many(done.events, 'merged file of events', 'merged files of events')}",
            soft_wrap=True,
        )
        for fault in done.faults:
            console().print(f"[red]damaged[/red]: {clean(fault)}", soft_wrap=True)
    if done.faults:
        raise typer.Exit(EXIT_FAILED)


quarantine = typer.Typer(
    name="quarantine",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at events that could not be read, and have them read again.",
    epilog=lines("Example:", "$ limpet catalog quarantine ls -u s3://acme/prod"),
)


@quarantine.command(
    epilog=lines(
        "Example:",
        "$ limpet catalog quarantine ls -u s3://acme/prod",
        "Exit codes: 0 listed; 1 no fleet there, or it cannot be read; 2 wrong usage.",
    )
)
def ls(url: CatalogUrlOption = None, json: JsonOption = False) -> None:
    """List what lies in quarantine, and why. Changes nothing."""
    from limpet.events.quarantine import quarantined

    fleet = opened(url, read_only=True)
    executions = _executions(fleet)
    found = [*quarantined(fleet.store, executions.keys)]
    if json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print("nothing lies in quarantine")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for title in ("id", "written", "bytes", "reason"):
        table.add_column(title, overflow="fold", justify="right" if title == "bytes" else "left")
    for reason in found:
        table.add_row(reason.id, clean(reason.written_at), f"{reason.size:,}", clean(reason.reason))
    out.print(table)


@quarantine.command(
    epilog=lines(
        "Example: one of them; then all",
        "$ limpet catalog quarantine retry 01m7hwq79qx90hmhn3y764bxst -u s3://acme/prod",
        "$ limpet catalog quarantine retry --all -u s3://acme/prod",
        "Exit codes: 0 all were read; 1 some still cannot be, and stay, or there is no such batch; 2 wrong usage.",
    )
)
def retry(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", show_default=False, help="Ids, as `quarantine ls` shows them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Everything that lies there.")] = False,
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Have batches of events read again, by a newer limpet say. What can be read leaves quarantine."""
    from limpet.events.quarantine import quarantined
    from limpet.events.quarantine import retry as retry_one

    if bool(ids) is every:
        raise Invalid("name the ids, or say --all", hint="`limpet catalog quarantine ls` shows them")
    fleet = opened(url, read_only=False)
    executions = _executions(fleet)
    wanted = [reason.id for reason in quarantined(fleet.store, executions.keys)] if every else [*(ids or ())]
    results: list[dict[str, Any]] = []
    for id_ in wanted:
        try:
            new = retry_one(fleet.store, executions.keys, id_, executions.fold)
            results.append({"id": id_, "events": new, "error": None})
        except Invalid as error:
            results.append({"id": id_, "events": 0, "error": str(error)})
    if json:
        print_json(results)
    else:
        for result in results:
            said = result["error"] or f"read: {many(result['events'], 'new event')}"
            console().print(f"{result['id']}  {clean(said)}", soft_wrap=True)
    if any(result["error"] for result in results):
        raise typer.Exit(EXIT_FAILED)


def _executions(fleet: Fleet) -> Executions:
    from limpet.app.catalogs import executions_of
    from limpet.runtime import system

    return executions_of(fleet.store, system())

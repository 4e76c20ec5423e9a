"""`limpet tables`: maintenance of tables without an engine: expire snapshots, compact files, remove orphans."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from limpet import cli
from limpet.cli import clean, console, group, lines, many, print_json, say, size_text
from limpet.cli.catalog import CatalogUrlOption, fleet_of, identifier
from limpet.cli.options import DELAY_HELP, JsonOption, duration_s

if TYPE_CHECKING:
    from limpet.catalog import TableMaintenance

SHOWN_MAX = 20

app = group(
    "tables",
    help="Maintain tables without an engine: expire snapshots, compact small files, delete orphans.",
    epilog=lines(
        "Example: what would expire; then do it, and free the space",
        "$ limpet tables expire sales.orders --dry-run -u s3://acme/prod",
        "$ limpet tables expire sales.orders -u s3://acme/prod",
        "$ limpet tables orphans sales.orders -u s3://acme/prod",
    ),
)

TableArgument = Annotated[str, typer.Argument(metavar="NAMESPACE.TABLE", show_default=False, help="The table.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="URL",
        show_default=False,
        help="Commit through the `limpet serve` there, with the first of LIMPET_API_TOKENS.",
    ),
]
WaitOption = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait for the lead, without --service.")
]
SeparatorOption = Annotated[
    str, typer.Option("--separator", metavar="TEXT", help="What joins the parts of TABLE, for names with dots in them.")
]


def _table(table: str, separator: str, url: str | None, service: str | None, wait_s: float) -> TableMaintenance:
    namespace, name = identifier(table, separator)
    through = None
    if service is not None:
        from limpet.service.client import ServiceWriter

        through = ServiceWriter(service)
    return fleet_of(url).maintain(namespace, name, through=through, wait_s=wait_s)


@app.command(
    epilog=lines(
        "Example: keep a week, and at least ten snapshots",
        "$ limpet tables expire sales.orders --max-age 7d --min-snapshots 10 -u s3://acme/prod",
        "Exit codes: 0 done; 1 no such table, or another process leads the catalog; 2 wrong usage.",
    )
)
def expire(
    table: TableArgument,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            metavar="AGE",
            show_default="the table's history.expire.max-snapshot-age-ms, or 5d",
            help=f"Keep younger snapshots, {DELAY_HELP}.",
        ),
    ] = None,
    min_snapshots: Annotated[
        int | None,
        typer.Option(
            "--min-snapshots",
            min=1,
            show_default="the table's history.expire.min-snapshots-to-keep, or 1",
            help="Keep so many of each branch.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    service: ServiceOption = None,
    wait: WaitOption = 20.0,
    separator: SeparatorOption = ".",
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Remove old snapshots from a table, in one commit. What a branch or tag needs is kept, by its own rules.

    No file is deleted: `limpet tables orphans` does that, after a grace time.
    """
    age = None if max_age is None else timedelta(seconds=duration_s(max_age))
    done = _table(table, separator, url, service, wait).expire(
        max_age=age, min_snapshots=min_snapshots, dry_run=dry_run
    )
    if json:
        print_json(done)
        return
    verb = "would expire" if dry_run else "expired"
    refs = f", and the branches or tags {', '.join(done.refs)}" if done.refs else ""
    cli.show(clean(f"{many(len(done.snapshots), 'snapshot')} of {table} {verb}{refs}; {done.kept:,} kept"))


@app.command(
    epilog=lines(
        "Example: files of about 128 MiB",
        "$ limpet tables compact sales.orders --target-mib 128 -u s3://acme/prod",
        "Exit codes: 0 done; 1 no such table, another process leads, or it cannot be rewritten; 2 wrong usage.",
    )
)
def compact(
    table: TableArgument,
    target_mib: Annotated[int, typer.Option("--target-mib", min=1, max=1024, help="Size of the new files.")] = 64,
    min_files: Annotated[
        int, typer.Option("--min-files", min=2, help="Rewrite small files only where there are so many.")
    ] = 5,
    dry_run: DryRunOption = False,
    service: ServiceOption = None,
    wait: WaitOption = 20.0,
    separator: SeparatorOption = ".",
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Rewrite small data files as large ones, and apply position deletes. The rows stay the same.

    Commits of others meanwhile are kept. The old files stay for older snapshots: expire those, then delete orphans.
    """
    with console(stderr=True).status("compacting"):
        done = _table(table, separator, url, service, wait).compact(
            target_bytes=target_mib << 20, min_files=min_files, dry_run=dry_run
        )
    if json:
        print_json(done)
        return
    verb = "would become" if dry_run else "became"
    say(f"{many(done.files, 'file')} of {table} ({size_text(done.bytes)}) {verb} {many(done.new_files, 'file')}")


@app.command(
    epilog=lines(
        "Example: what would go; then delete it",
        "$ limpet tables orphans sales.orders --dry-run -u s3://acme/prod",
        "$ limpet tables orphans sales.orders --grace 7d -u s3://acme/prod",
        "Exit codes: 0 done; 1 no such table, or a part of it cannot be read (nothing is deleted); 2 wrong usage.",
    )
)
def orphans(
    table: TableArgument,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="Keep every file that is younger, and what was needed then.")
    ] = "3d",
    quiesced: Annotated[
        bool, typer.Option("--quiesced", help="No other process uses the table: allow a grace time under an hour.")
    ] = False,
    dry_run: DryRunOption = False,
    separator: SeparatorOption = ".",
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Delete files in the table's folders that no snapshot needs and that are older than the grace time.

    These are the files of expired snapshots, and of writers that crashed. A commit under way keeps its files if
    it takes less than the grace time.
    """
    time = timedelta(seconds=duration_s(grace))
    done = _table(table, separator, url, None, 0.0).remove_orphans(grace=time, quiesced=quiesced, dry_run=dry_run)
    if json:
        print_json(done)
        return
    for path in done.files[:SHOWN_MAX] if dry_run else ():
        cli.show(clean(path))
    if dry_run and len(done.files) > SHOWN_MAX:
        say(f"... and {len(done.files) - SHOWN_MAX:,} more; --json shows all")
    verb = "would go" if dry_run else "deleted"
    say(f"{many(len(done.files), 'file')} of {done.listed:,} ({size_text(done.bytes)}) {verb}")

"""`limpet backup` and `limpet restore`: copy a fleet to another URL, and make a fleet of such a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.index.options import size_text
from limpet.cli.options import JsonOption
from limpet.cli.output import EXIT_FAILED, clean, console, lines, many, print_json
from limpet.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from limpet.app.backup import BackupProgress, BackupReport, CheckReport
    from limpet.store import Store

BACKUP_EPILOG = lines(
    "Example: every night, to another bucket; only what changed is copied again",
    "$ limpet backup s3://acme/prod s3://acme-backup/prod",
    "Example: read the whole backup, and compare it with what was recorded",
    "$ limpet backup --check s3://acme-backup/prod",
    "Exit codes: 0 finished, or the backup is whole; 1 no fleet there, objects had to be left out, the backup is not "
    "whole, or the store refused; 2 wrong usage, or the place holds something else; 130 interrupted: run it again.",
)
RESTORE_EPILOG = lines(
    "Example:",
    "$ limpet restore s3://acme-backup/prod s3://acme/prod",
    "Exit codes: 0 restored; 1 no backup there, or objects of it are damaged; 2 wrong usage, the place is not empty, "
    "or the backup is not finished; 130 interrupted: run it again.",
)

SHOWN_MAX = 20


def backup(
    source: Annotated[
        str, typer.Argument(metavar="FLEET_URL", show_default=False, help="The fleet; with --check, the backup.")
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="BACKUP_URL", show_default=False, help="An empty place, or an earlier backup of the same fleet."
        ),
    ] = None,
    data: Annotated[
        bool, typer.Option("--data/--no-data", help="Copy the data files of tables, not only their metadata.")
    ] = True,
    check: Annotated[bool, typer.Option("--check", help="Copy nothing: compare a backup with its record.")] = False,
    json: JsonOption = False,
) -> None:
    """Copy a fleet to another URL. It may be running, and nothing is written to it.

    All that was acknowledged before this began is in the copy, or its outcome is. A run that was interrupted goes on
    when it is started again; a later run copies only what has changed.
    """
    from limpet.app.backup import backup as copy
    from limpet.app.backup import check_backup
    from limpet.runtime import system

    if check:
        if target is not None:
            raise Invalid("--check takes one URL, that of the backup")
        with _bar(json=json) as tell:
            _print_check(check_backup(_store(source), system(), url=source, tell=tell), source, json=json)
        return
    if target is None:
        raise Invalid("name two URLs: the fleet and the place for the copy")
    report = _copied(partial(copy, data=data), source, target, json=json)
    _print(report, f"backed up {source} to {target}", json=json)


def restore(
    source: Annotated[str, typer.Argument(metavar="BACKUP_URL", show_default=False, help="A finished backup.")],
    target: Annotated[str, typer.Argument(metavar="FLEET_URL", show_default=False, help="An empty place.")],
    force: Annotated[
        bool, typer.Option("--force", help="Take a backup that is unfinished or damaged as it is.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Make a fleet of a backup, in an empty place. It cannot be opened before all of it is there.

    Locks that were held become free when their time is over. Do not let the old fleet and this one run at once.
    """
    from limpet.app.backup import restore as copy

    report = _copied(partial(copy, force=force), source, target, json=json)
    _print(report, f"restored {source} to {target}", json=json)


def _copied(copy: Callable[..., BackupReport], source: str, target: str, *, json: bool) -> BackupReport:
    from limpet.runtime import system

    places = {"source_url": _plain(source), "target_url": _plain(target)}
    with _bar(json=json) as tell:
        return copy(_store(source), _store(target), system(), **places, tell=tell)


def _store(url: str) -> Store:
    from limpet.app.urls import store_for
    from limpet.runtime import system

    if url.startswith("sqs://"):
        raise Unsupported("SQS cannot be copied", hint="its messages live in AWS; receive them instead")
    return store_for(url, system())


def _plain(url: str) -> str:
    """The URL, the same for every way to write it, and without options."""
    from limpet.app.urls import absolute

    return absolute(url).partition("?")[0]


@contextmanager
def _bar(*, json: bool) -> Iterator[Callable[[BackupProgress], None]]:
    """A moving bar on stderr. Only on a terminal."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    err = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=err, transient=True, disable=json or not err.is_terminal) as bar:
        task = bar.add_task("listing", total=None)

        def tell(at: BackupProgress) -> None:
            said = f"{at.kind}: {many(at.objects, 'object')}, {size_text(at.bytes)}, {at.copied:,} copied"
            bar.update(task, description=said)

        yield tell


def _print(report: BackupReport, what: str, *, json: bool) -> None:
    if json:
        print_json(
            {
                "objects": report.objects,
                "bytes": report.bytes,
                "copied": report.copied,
                "copied_bytes": report.copied_bytes,
                "removed": report.removed,
                "left_out": report.left_out,
                "damaged": report.damaged,
                "requests": report.requests,
            }
        )
    else:
        out = console()
        same = report.objects - report.copied
        out.print(
            f"{what}: {many(report.objects, 'object')}, {size_text(report.bytes)}; {report.copied:,} copied, "
            f"{max(same, 0):,} were there, {report.removed:,} removed",
            markup=False,
            soft_wrap=True,
        )
        for key, why in [*report.left_out.items()][:SHOWN_MAX]:
            out.print(f"left out: {clean(key)}: {clean(why)}", soft_wrap=True)
        for key in report.damaged[:SHOWN_MAX]:
            out.print(f"damaged: {clean(key)}", soft_wrap=True)
        out.print(f"[dim]This took {_requests(report.requests)}.[/dim]", soft_wrap=True)
    if report.left_out:
        raise typer.Exit(EXIT_FAILED)


def _requests(spent: dict[str, dict[str, int]]) -> str:
    return "; ".join(
        f"at the {side} " + ", ".join(f"{count:,} {verb.upper()}" for verb, count in sorted(verbs.items()))
        for side, verbs in spent.items()
    )


def _print_check(found: CheckReport, url: str, *, json: bool) -> None:
    facts: dict[str, Any] = {
        "ok": found.ok,
        "finished": found.finished,
        "objects": found.objects,
        "bytes": found.bytes,
        "missing": found.missing,
        "changed": found.changed,
        "strange": found.strange,
        "left_out": found.left_out,
    }
    if json:
        print_json(facts)
    else:
        out = console()
        for title in ("missing", "changed", "strange"):
            for key in facts[title][:SHOWN_MAX]:
                out.print(f"{title}: {clean(key)}", soft_wrap=True)
        state = "whole" if found.ok else "not finished" if not found.finished else "damaged"
        said = f"the backup at {url} is {state}: {many(found.objects, 'object')}, {size_text(found.bytes)}"
        out.print(said, markup=False, soft_wrap=True)
    if not found.ok:
        raise typer.Exit(EXIT_FAILED)

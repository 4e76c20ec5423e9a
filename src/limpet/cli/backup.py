"""`limpet backup` and `limpet restore`: copy a fleet to another URL, and make a fleet of such a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.cli import EXIT_FAILED, lines, many, print_json, progress_bar, say, show, size_text
from limpet.cli.options import JsonOption
from limpet.errors import Invalid

if TYPE_CHECKING:
    from limpet.app.backup import BackupProgress, BackupReport, CheckReport

EPILOGS = {
    "backup": lines(
        "Example: every night, to another bucket; only what changed is copied again",
        "$ limpet backup s3://acme/prod s3://acme-backup/prod",
        "Example: read the whole backup, and compare it with what was recorded",
        "$ limpet backup --check s3://acme-backup/prod",
        "Exit codes: 0 finished, or the backup is whole; 1 no fleet there, objects had to be left out, the backup is "
        "not whole, or the store refused; 2 wrong usage, or the place holds something else; 130 interrupted: run it "
        "again.",
    ),
    "restore": lines(
        "Example:",
        "$ limpet restore s3://acme-backup/prod s3://acme/prod",
        "Exit codes: 0 restored; 1 no backup there, or objects of it are damaged; 2 wrong usage, the place is not "
        "empty, or the backup is not finished; 130 interrupted: run it again.",
    ),
}

SHOWN_MAX = 20


def backup(
    source: Annotated[str, typer.Argument(metavar="FLEET_URL", help="The fleet; with --check, the backup.")],
    target: Annotated[
        str | None, typer.Argument(metavar="BACKUP_URL", help="An empty place, or an earlier backup of the same fleet.")
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
    from limpet.app.backup import check_backup, store_to_copy
    from limpet.runtime import system

    if check:
        if target is not None:
            raise Invalid("--check takes one URL, that of the backup", hint=f"limpet backup --check {target}")
        with _bar(json=json) as tell:
            found = check_backup(store_to_copy(source), system(), url=source, tell=tell)
        _print_check(found, source, json=json)
        return
    if target is None:
        raise Invalid("name two URLs: the fleet and the place for the copy", hint=f"limpet backup {source} BACKUP_URL")
    report = _copied(partial(copy, data=data), source, target, json=json)
    _print(report, f"backed up {source} to {target}", json=json)


def restore(
    source: Annotated[str, typer.Argument(metavar="BACKUP_URL", help="A finished backup.")],
    target: Annotated[str, typer.Argument(metavar="FLEET_URL", help="An empty place.")],
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
    from limpet.app.backup import plain_url, store_to_copy
    from limpet.runtime import system

    urls = {"source_url": plain_url(source), "target_url": plain_url(target)}
    with _bar(json=json) as tell:
        return copy(store_to_copy(source), store_to_copy(target), system(), **urls, tell=tell)


@contextmanager
def _bar(*, json: bool) -> Iterator[Callable[[BackupProgress], None]]:
    with progress_bar("listing", total=None, quiet=json) as update:
        yield lambda at: update(
            description=f"{at.kind}: {many(at.objects, 'object')}, {size_text(at.bytes)}, {at.copied:,} copied"
        )


def _print(report: BackupReport, what: str, *, json: bool) -> None:
    if json:
        facts = asdict(report)
        del facts["vanished"]
        print_json(facts)
    else:
        same = max(report.objects - report.copied, 0)
        say(
            f"{what}: {many(report.objects, 'object')}, {size_text(report.bytes)}; {report.copied:,} copied, "
            f"{same:,} were there, {report.removed:,} removed"
        )
        for key, why in islice(report.left_out.items(), SHOWN_MAX):
            say(f"left out: {key}: {why}")
        for key in report.damaged[:SHOWN_MAX]:
            say(f"damaged: {key}")
        took = "; ".join(
            f"at the {side} " + ", ".join(f"{count:,} {verb.upper()}" for verb, count in sorted(verbs.items()))
            for side, verbs in report.requests.items()
        )
        show(f"[dim]This took {took}.[/dim]")
    if report.left_out:
        raise typer.Exit(EXIT_FAILED)


def _print_check(found: CheckReport, url: str, *, json: bool) -> None:
    if json:
        print_json({"ok": found.ok, **asdict(found)})
    else:
        keys = {"missing": found.missing, "changed": found.changed, "strange": found.strange}
        for title, some in keys.items():
            for key in some[:SHOWN_MAX]:
                say(f"{title}: {key}")
        state = "whole" if found.ok else "not finished" if not found.finished else "damaged"
        say(f"the backup at {url} is {state}: {many(found.objects, 'object')}, {size_text(found.bytes)}")
    if not found.ok:
        raise typer.Exit(EXIT_FAILED)

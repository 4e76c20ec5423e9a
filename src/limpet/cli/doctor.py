"""`limpet doctor`: does a store keep the promises that Limpet needs?"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.cli.options import ENV_URL, JsonOption
from limpet.cli.output import EXIT_FAILED, console, lines, many, print_json

if TYPE_CHECKING:
    from limpet.store import MeteredStore, Store
    from limpet.store.doctor import Check, Report

EPILOG = lines(
    "Example: a folder, and a bucket of an S3 server of your own",
    "$ limpet doctor ./fleet",
    "$ limpet doctor 's3://bucket/prefix?endpoint=http://127.0.0.1:8333'",
    "Exit codes: 0 fit for Limpet; 1 not, or it could not be examined; 2 wrong usage.",
)


def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", envvar=ENV_URL, show_default=False, help="./dir, s3://bucket/prefix, gs://, az://."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="How often to repeat each race. More finds more.")] = 3,
    json: JsonOption = False,
) -> None:
    """Find out whether a store keeps the promises that Limpet builds on, and how fast it is.

    It races creates and swaps against each other, checks listings, ranges, names and the clock, and measures. A store
    that ignores conditional writes looks healthy until two processes meet: here it fails.

    There need not be a fleet yet. It takes one or two thousand requests (half a cent on S3), and deletes all that it
    writes.
    """
    from limpet.app.urls import url_or_default
    from limpet.records import to_fields
    from limpet.runtime import system
    from limpet.store import MeteredStore
    from limpet.store.doctor import examine

    where = url_or_default(url)
    with _to_examine(where) as store, _progress() as progress:
        meter = MeteredStore(store, runtime=system())
        report = examine(meter, rounds=rounds, progress=progress)
    if json:
        print_json({"url": where, **to_fields(report), "requests": meter.snapshot().requests})
    else:
        _show(where, report, meter)
    if not report.ok:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _to_examine(url: str) -> Iterator[Store]:
    """The store to examine. For a directory it is a new folder in it, or above it, which is removed afterwards."""
    from limpet.app.urls import store_for
    from limpet.errors import Denied
    from limpet.runtime import system
    from limpet.store import DirectoryStore

    store = store_for(url, system())
    if not isinstance(store, DirectoryStore):
        yield store
        return
    near = store.root
    while not near.exists():
        near = near.parent
    try:
        # A leading dot: no key of a store is stored under such a name.
        folder = tempfile.mkdtemp(prefix=".limpet-doctor-", dir=near)
    except OSError as error:
        raise Denied(f"cannot write below {near}: {os.strerror(error.errno or 0)}") from error
    try:
        yield DirectoryStore(folder, runtime=system())
    finally:
        shutil.rmtree(folder)


@contextmanager
def _progress() -> Iterator[Callable[[Check], None]]:
    """A progress bar on stderr, to be called after each check. Without a terminal nothing is shown."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from limpet.store.doctor import CHECKS

    err = console(stderr=True)
    columns = (TextColumn("{task.description:<26}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("conditional writes", total=len(CHECKS) + 1)

        def advance(check: Check) -> None:
            bar.update(task, advance=1, description=f"{check.name}: {'ok' if check.ok else 'FAIL'}")

        yield advance


def _show(url: str, report: Report, meter: MeteredStore) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console()
    checks = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for title in ("check", "", "what was seen"):
        checks.add_column(title, overflow="fold", no_wrap=title != "what was seen")
    hints = {""}
    for check in report.checks:
        once = f"\n[dim]{escape(check.hint)}[/dim]" if check.hint not in hints else ""
        hints.add(check.hint)
        checks.add_row(check.name, _mark(check), escape(check.detail) + once)
    speed = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for title in ("1 KiB, one by one", "calls", "p50", "p95"):
        speed.add_column(title, justify="left" if "," in title else "right")
    for each in report.latency:
        speed.add_row(each.verb, str(each.calls), _ms(each.p50_ms), _ms(each.p95_ms))
    out.print(checks)
    if report.latency:
        out.print()
        out.print(speed)
    out.print()
    spent = meter.snapshot()
    out.print(f"[dim]{many(spent.total(), 'request')}; on S3 they would cost ${spent.dollars('s3'):.4f}[/dim]")
    out.print(_verdict(escape(url), report), soft_wrap=True)


def _ms(value: float) -> str:
    """Milliseconds, with the digits that say something."""
    return f"{value:.1f} ms" if value >= 1 else f"{value:.2g} ms"


def _mark(check: Check) -> str:
    if check.ok:
        return "[green]ok[/green]"
    return "[bold red]FAIL[/bold red]" if check.required else "[yellow]note[/yellow]"


def _verdict(url: str, report: Report) -> str:
    failed = [check.name for check in report.checks if check.required and not check.ok]
    notes = [check.name for check in report.checks if not check.required and not check.ok]
    if failed:
        return f"[bold red]FAIL[/bold red]  {url} is not fit for Limpet: {', '.join(failed)}"
    but = f" (see the note on {', '.join(notes)})" if notes else ""
    return f"[bold green]ok[/bold green]  {url} is fit for Limpet{but}"

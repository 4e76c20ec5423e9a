"""How `limpet queue drop` and `limpet index drop` show what goes, ask, wait, and say what is gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from limpet.cli import confirm, console, print_json, say, size_text
from limpet.cli.parse import Option
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.kernel.drop import DropReport

DryRunOption = Annotated[bool, Option("--dry-run", help="Only show what would be removed.")]
AT_LEAST = "at least "


def run_drop(drop: Callable[..., DropReport], *, yes: bool, dry_run: bool, json: bool) -> None:
    """Show what `drop` would remove; unless it is a dry run, ask, and call it. It takes `dry_run` and `progress`."""
    report = drop(dry_run=True)
    if dry_run:
        _print(report, f"would be removed: {_said(report)}", json=json)
        for holder in report.held:
            say(f"in use: {holder.by} holds {holder.what} until {holder.until:%H:%M:%S} UTC at least", err=True)
        return
    if not yes and not report.held:  # one that is in use is refused without a question
        confirm(f"{_said(report)} would be removed, for good", "Drop it?")
    with console(stderr=True).status(f"dropping {report.kind} {report.name!r}") as status:
        report = drop(progress=lambda said: status.update(f"dropping {report.kind} {report.name!r}: {said}"))
    _print(report, f"dropped {report.kind} {report.name!r}: {many(report.removed, 'object')} removed", json=json)


def _said(report: DropReport) -> str:
    least = AT_LEAST if report.more else ""
    counts = ", ".join(f"{number:,} {what}" for what, number in report.counts.items() if number) or "nothing"
    begun = f" (begun by {report.unfinished}, not finished)" if report.unfinished else ""
    size = f"{many(report.objects, 'object')} of {size_text(report.bytes)}"
    return f"{report.kind} {report.name!r}{begun}: {least}{counts}; {least}{size}"


def _print(report: DropReport, text: str, *, json: bool) -> None:
    if json:
        facts: dict[str, Any] = asdict(report)
        print_json(facts)
    else:
        say(text)

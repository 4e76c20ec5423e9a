"""`limpet check`: is all well? For alerts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.cli.options import DELAY_HELP, JsonOption, UrlOption, demand_queue, duration_s, opened
from limpet.cli.output import EXIT_FAILED, ago, lines, many, now_of, print_json, say
from limpet.errors import Invalid

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.queue.inspect import Folder, QueueCount, QueueSummary
    from limpet.runtime import Runtime

EPILOG = lines(
    "Example: from cron, or as a health check",
    "$ limpet check --max-age 1h --max-failed 10 -u s3://acme/prod",
    "$ limpet check --max-pending 50000 -q enrich -q mail -u s3://acme/prod",
    "Exit codes: 0 all rules hold; 1 a rule is violated, or it could not be found out; 2 wrong usage.",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What may not be exceeded, for each queue by itself; None: no limit."""

    age_s: float | None = None
    failed: int | None = None
    pending: int | None = None


@dataclass(frozen=True, slots=True)
class BrokenLimit:
    """A rule that does not hold, or could not be checked: then there is no `value`."""

    queue: str
    rule: str
    limit: float
    value: float | None
    message: str


def check(
    max_age: Annotated[
        float | None,
        typer.Option(
            "--max-age",
            metavar="TIME",
            parser=duration_s,
            show_default=False,
            help=f"The oldest task that has not ended was pushed at most so long ago, {DELAY_HELP}.",
        ),
    ] = None,
    max_failed: Annotated[
        int | None,
        typer.Option("--max-failed", metavar="N", min=0, show_default=False, help="At most N tasks failed."),
    ] = None,
    max_pending: Annotated[
        int | None,
        typer.Option("--max-pending", metavar="N", min=0, show_default=False, help="At most N tasks wait."),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", metavar="QUEUE", show_default=False, help="Look only here; may be repeated."),
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Check rules on every queue; one line for each that is violated, and the exit code tells. Changes nothing.

    Tasks that were retried or cancelled do not count as failed, and delayed ones do not wait before their time. A rule
    that cannot be checked counts as violated: SQS tells no ages, so --max-age always fails there.
    """
    from limpet.runtime import system

    limits = Limits(max_age, max_failed, max_pending)
    if limits == Limits():
        raise Invalid("no rule was given", hint="say --max-age, --max-failed or --max-pending")
    fleet = opened(url, read_only=True)
    found, wrong = violations(fleet, limits, queue, system())
    if json:
        print_json({"ok": not wrong, "queues": found, "violations": wrong})
    for each in wrong if not json else ():
        say(each.message)
    if wrong:
        raise typer.Exit(EXIT_FAILED)
    if not json:
        say(f"ok: {many(len(found), 'queue')} within limits")


def violations(
    fleet: Fleet, limits: Limits, queues: Sequence[str] | None, runtime: Runtime
) -> tuple[list[str], list[BrokenLimit]]:
    """The queues that were looked at, and the rules that do not hold there.

    Raises: Missing for a queue that is not there: an alert on a typo would never fire.
    Cost: 1 LIST per 1,000 objects that wait or failed, 1 or 2 more for each queue; 1 GET for each failed task, only
    where there are more than allowed.
    """
    from limpet.app.urls import SQS, provider_of
    from limpet.cli.status import summaries
    from limpet.queue.inspect import count_queues

    wanted = [*dict.fromkeys(queues)] if queues else None
    for name in wanted or ():
        demand_queue(fleet, fleet.queue(name))
    if provider_of(fleet.url) == SQS:
        counted = summaries(fleet, wanted)
        return [each.queue for each in counted], [wrong for each in counted for wrong in _broken_on_sqs(each, limits)]
    found = count_queues(fleet.store, wanted, _folders(limits))
    wrong = [broken for each in found for broken in _broken(fleet, each, limits, runtime)]
    return wanted or [each.queue for each in found], wrong


def _broken_on_sqs(counted: QueueSummary, limits: Limits) -> list[BrokenLimit]:
    name, wrong = counted.queue, []
    if limits.age_s is not None:
        said = f"{name}: --max-age cannot be checked: SQS does not tell how old a task is"
        wrong.append(BrokenLimit(name, "max-age", limits.age_s, None, said))
    if limits.failed is not None and counted.failed > limits.failed:
        said = f"{name}: about {many(counted.failed, 'task')} failed, and --max-failed is {limits.failed:,}"
        wrong.append(BrokenLimit(name, "max-failed", limits.failed, counted.failed, said))
    if limits.pending is not None and counted.pending > limits.pending:
        said = f"{name}: about {many(counted.pending, 'task')} pending, and --max-pending is {limits.pending:,}"
        wrong.append(BrokenLimit(name, "max-pending", limits.pending, counted.pending, said))
    return wrong


def _folders(limits: Limits) -> Mapping[Folder, float]:
    """Look only at what a rule is about."""
    everything, nothing = float("inf"), 0.0
    waiting = limits.age_s is not None or limits.pending is not None
    return {
        "completed": nothing,
        "failed": everything if limits.failed is not None else nothing,
        "pending": everything if waiting else nothing,
        "scheduled": nothing,
    }


def _broken(fleet: Fleet, found: QueueCount, limits: Limits, runtime: Runtime) -> list[BrokenLimit]:
    from limpet.queue.inspect import count_failed

    wrong = []
    now = now_of(found.newest)
    if limits.age_s is not None and found.oldest is not None and _age_s(found.oldest, now) > limits.age_s:
        age_s = _age_s(found.oldest, now)
        said = f"the oldest task was pushed {ago(age_s)} ago, and --max-age is {ago(limits.age_s)}"
        wrong.append(_violation(found, "max-age", limits.age_s, round(age_s, 1), said))
    if limits.failed is not None and len(found.failed_names()) > limits.failed:
        failed, whole = count_failed(fleet.store, runtime, found, limits.failed)
        if failed > limits.failed:
            said = f"{'' if whole else 'at least '}{many(failed, 'task')} failed, and --max-failed is {limits.failed:,}"
            wrong.append(_violation(found, "max-failed", limits.failed, failed, said))
    if limits.pending is not None and found.pending > limits.pending:
        said = f"{many(found.pending, 'task')} pending, and --max-pending is {limits.pending:,}"
        wrong.append(_violation(found, "max-pending", limits.pending, found.pending, said))
    return wrong


def _violation(found: QueueCount, rule: str, limit: float, value: float, said: str) -> BrokenLimit:
    return BrokenLimit(found.queue, rule, limit, value, f"{found.queue}: {said}")


def _age_s(moment: datetime, now: datetime) -> float:
    return (now - moment).total_seconds()

"""`limpet queue cost`: what a queue costs in requests and dollars, beside SQS."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from limpet.cli.options import JsonOption, QueueArgument, UrlOption, demand_queue, in_store, opened
from limpet.cli.output import clean, console, lines, many, print_json
from limpet.queue.cost import (
    MILLION,
    NOT_COUNTED,
    SQS_BATCH,
    Bill,
    Work,
    as_pushed,
    break_even,
    requests_of,
    sqs,
    work_of,
)

EPILOG = lines(
    "Example:",
    "$ limpet queue cost enrich -u s3://acme/prod",
    "Exit codes: 0 shown; 1 there is no such queue or fleet; 2 wrong usage.",
)
BATCHES = (1, 10, 100, 1000)
PROVIDERS = {"s3": "s3", "gs": "gcs", "az": "azure"}
NAMES = {"s3": "S3", "gcs": "Cloud Storage", "azure": "Azure Blob Storage"}


def cost(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Show what a queue costs in requests and dollars, beside SQS. Changes nothing.

    Nobody meters a whole fleet, so this is computed from what the queue shows: each entry and receipt stands for the
    requests that it took at least. Receipts that retention has removed are not in it.
    """
    from limpet.runtime import system

    fleet = opened(url, read_only=True)
    handle = in_store(fleet.queue(queue), "be priced")
    work, read = work_of(fleet.store, queue, system())
    if not work.ended and not work.waiting:
        demand_queue(fleet, handle)
    free = handle.provider != "bucket"
    provider = PROVIDERS.get(fleet.url.partition("://")[0], "s3")
    facts = _facts(queue, work, read, provider, free=free)
    if json:
        print_json(facts)
    else:
        _print(facts, provider, free=free)


def _facts(queue: str, work: Work, read: int, provider: str, *, free: bool) -> dict[str, Any]:
    from limpet.store.metered import AS_OF, dollars

    spent = requests_of(work)
    price = dollars(spent, provider)
    facts: dict[str, Any] = {
        "queue": queue,
        "tasks": work.tasks,
        "entries": work.ended,
        "waiting_entries": work.waiting,
        "claims": work.claims,
        "receipts_read": read,
        "requests": spent,
        "dollars": 0.0 if free else price,
        "dollars_in_a_bucket": price,
        "provider": provider,
        "prices_of": AS_OF,
        "per_million": {f"limpet_{batch}": asdict(as_pushed(MILLION, batch, provider=provider)) for batch in BATCHES},
    }
    facts["per_million"] |= {f"sqs_{batch}": asdict(sqs(MILLION, batch)) for batch in (1, SQS_BATCH)}
    if work.tasks:
        ended = requests_of(replace(work, waiting=0, waiting_named=0))
        share = MILLION / work.tasks
        mine = Bill(round(sum(ended.values()) * share), dollars(ended, provider) * share)
        facts["per_million"] = {"this_queue": asdict(mine), **facts["per_million"]}
    return facts


def _print(facts: dict[str, Any], provider: str, *, free: bool) -> None:
    from rich.table import Table

    out = console()
    out.print(_heading(facts), soft_wrap=True)
    by_verb = ", ".join(f"{count:,} {verb.upper()}" for verb, count in facts["requests"].items() if count)
    price = f"${_money(facts['dollars_in_a_bucket'])}"
    where = f"nothing here; {price} on {NAMES[provider]}" if free else f"{price} on {NAMES[provider]}"
    out.print(f"  so far, at least   {many(sum(facts['requests'].values()), 'request')}: {by_verb}", soft_wrap=True)
    out.print(f"  which cost         {where}\n", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("a million tasks")
    table.add_column("requests", justify="right")
    table.add_column("dollars", justify="right")
    for name, bill in facts["per_million"].items():
        style = "bold" if name == "this_queue" else None
        table.add_row(_label(name), f"{bill['requests']:,}", f"${_money(bill['dollars'])}", style=style)
    out.print(table)
    out.print()
    out.print(_verdict(facts["per_million"], provider), soft_wrap=True)
    out.print(
        f"[dim]Computed from {many(facts['entries'], 'receipt')} ({facts['receipts_read']:,} read), not metered. "
        f"Not in it: {NOT_COUNTED}. List prices of {facts['prices_of']}, requests only, without free tiers.[/dim]",
        soft_wrap=True,
    )


def _heading(facts: dict[str, Any]) -> str:
    name = f"[bold]{clean(facts['queue'])}[/bold]"
    if not facts["entries"]:
        return f"{name}: nothing has ended yet; {many(facts['waiting_entries'], 'entry', 'entries')} waiting"
    size, claims = facts["tasks"] / facts["entries"], facts["claims"] / facts["entries"]
    often = "once" if claims == 1 else f"{claims:.3g} times"
    return f"{name}: {many(facts['tasks'], 'task')} ended, {size:.3g} to an entry, each entry claimed {often}"


def _label(name: str) -> str:
    if name == "this_queue":
        return "this queue, as it was used"
    who, _, batch = name.partition("_")
    title = {"limpet": "Limpet", "sqs": "SQS"}[who]
    return f"{title}, one by one" if batch == "1" else f"{title}, {batch} at once"


def _verdict(bills: dict[str, dict[str, Any]], provider: str) -> str:
    """Which of the two is cheaper, in a sentence."""
    mine, theirs = bills.get("this_queue", bills["limpet_100"])["dollars"], bills[f"sqs_{SQS_BATCH}"]["dollars"]
    who = "this queue" if "this_queue" in bills else "Limpet with 100 at once"
    if mine <= theirs:
        return f"Limpet is cheaper: {who} takes {mine / theirs:.0%} of what SQS takes with {SQS_BATCH} at once."
    times, enough = mine / theirs, break_even(provider=provider)
    return (
        f"SQS is cheaper: {who} costs {times:.3g} times as much as SQS with {SQS_BATCH} at once. "
        f"Limpet is cheaper from {enough} tasks to an entry on, if they succeed at once."
    )


def _money(dollars: float) -> str:
    """Enough digits to see the first two that count."""
    return f"{dollars:.2f}" if dollars >= 1 else f"{dollars:.3g}" if dollars >= 0.001 else f"{dollars:.6f}"

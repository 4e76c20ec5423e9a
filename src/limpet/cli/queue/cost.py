"""`limpet queue cost`: what a queue costs in requests and dollars, beside SQS."""

from __future__ import annotations

from typing import Any

import limpet
from limpet.cli import clean, lines, many, print_json, show, table
from limpet.cli.options import JsonOption, QueueArgument, UrlOption
from limpet.queue.cost import NOT_COUNTED, SQS_BATCH, break_even, cost_facts, work_of

EPILOGS = {
    "cost": lines(
        "Example:",
        "$ limpet queue cost enrich -u s3://acme/prod",
        "Exit codes: 0 shown; 1 there is no such queue or fleet; 2 wrong usage.",
    )
}
PROVIDERS = {"s3": "s3", "gs": "gcs", "az": "azure"}
NAMES = {"s3": "S3", "gcs": "Cloud Storage", "azure": "Azure Blob Storage"}


def cost(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Show what a queue costs in requests and dollars, beside SQS. Changes nothing.

    Requests of a whole fleet are not metered. The figures are computed from the entries and receipts of the queue: each
    stands for the requests that it took at least. Receipts that retention has removed are not in it.
    """
    from limpet.app.fleet import in_store

    fleet = limpet.open(url, read_only=True).check()
    handle = in_store(fleet.queue(queue), "be priced")
    work, read = work_of(fleet.store, queue, fleet.runtime)
    if not work.ended and not work.waiting:
        fleet.queue(queue, create=False)
    free = handle.provider != "bucket"
    provider = PROVIDERS.get(fleet.url.partition("://")[0], "s3")
    facts = cost_facts(work, provider, poll_s=handle.policy.poll_s, free=free)
    facts = {"queue": queue, "receipts_read": read, **facts}
    if json:
        print_json(facts)
    else:
        _print(facts, provider, free=free)


def _idle_lines(facts: dict[str, Any], provider: str, *, free: bool) -> str:
    idle, bell = facts["idle_worker"], facts["bell_an_hour_at_most"]
    month = _money(idle["a_month_in_a_bucket"]["dollars"])
    if free:
        return f"An idle worker costs nothing here; in a bucket up to ${month} a month on {NAMES[provider]}."
    asked = " + ".join(f"{count:,} {verb.upper()}s" for verb, count in idle["requests_an_hour"].items())
    return (
        f"An idle worker process makes up to {asked} an hour with poll_s={idle['poll_s']:g}: ${month} a month. "
        "The PUTs renew its presence; LIMPET_PRESENCE=0 saves them.\n"
        f"A push rings the bell: 1 PUT more, at most once a second and process, ${_money(bell['dollars'])} an hour."
    )


def _print(facts: dict[str, Any], provider: str, *, free: bool) -> None:
    by_verb = ", ".join(f"{count:,} {verb.upper()}" for verb, count in facts["requests"].items() if count)
    price = f"${_money(facts['dollars_in_a_bucket'])} on {NAMES[provider]}"
    bills = table("a million tasks", "requests", "dollars", right=("requests", "dollars"))
    for name, bill in facts["per_million"].items():
        style = "bold" if name == "this_queue" else None
        bills.add_row(_label(name), f"{bill['requests']:,}", f"${_money(bill['dollars'])}", style=style)
    show(
        _heading(facts),
        f"  so far, at least   {many(sum(facts['requests'].values()), 'request')}: {by_verb}",
        f"  which cost         {f'nothing here; {price}' if free else price}\n",
        bills,
        f"\n{_verdict(facts['per_million'], provider)}",
        _idle_lines(facts, provider, free=free),
        f"[dim]Computed from {many(facts['entries'], 'receipt')} ({facts['receipts_read']:,} read), not metered. "
        f"Not in it: {NOT_COUNTED}. List prices of {facts['prices_of']}, requests only, without free tiers.[/dim]",
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

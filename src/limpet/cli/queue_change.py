"""`limpet queue push`, and what operators do to tasks that wait or have failed: `retry`, `cancel`, `fail`, `signal`,
`pause`, `resume`, `purge`, `drop`, `sweep`, `adopt`."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Annotated, Any

import limpet
from limpet.cli import EXIT_FAILED, ago, answer, clean, confirm, console, print_json, progress_bar, say
from limpet.cli.drop import DryRunOption, run_drop
from limpet.cli.options import (
    DELAY_HELP,
    STDIN,
    IdArgument,
    JsonOption,
    QueueArgument,
    QueueOrAllArgument,
    SinceOption,
    UrlOption,
    WhereOption,
    YesOption,
    duration_s,
    open_input,
    refuse_path,
)
from limpet.cli.parse import Argument, Exit, Option
from limpet.kernel.errors import Invalid, LimpetError, Missing
from limpet.kernel.keys import check_id
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.app.push_file import FilePush
    from limpet.queue import Queue, QueueAdoptReport


def push(
    queue: QueueArgument,
    payload: Annotated[str | None, Argument(metavar="JSON", help="The task: a JSON object.")] = None,
    id: Annotated[str | None, Option(help="The task's name. A second push of it changes nothing.")] = None,
    delay: Annotated[
        float | None, Option(metavar="TIME", parser=duration_s, help=f"Run it after this time, {DELAY_HELP}.")
    ] = None,
    file: Annotated[str | None, Option("-f", metavar="FILE", help="JSON objects, one a line; - is stdin.")] = None,
    batch: Annotated[int, Option(min=1, max=1000, help="How many tasks of a file share an object.")] = 100,
    create: Annotated[
        bool, Option("--create/--no-create", help="Create the fleet or queue if it does not exist.")
    ] = True,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Push a task, or a file of tasks. The queue is made by its first push, and stderr then says "(new queue)".

    A task is a JSON object of at most 256 KiB. Once the command has ended, no crash loses it.

    Tasks of a file go in batches: 100 tasks in one object cost a hundredth of 100 objects. They get new ids
    and are not deduplicated. At the first bad line it stops: nothing of that line's batch is pushed, and the line is
    named.

    Example: one task; the same task at most once; many, a hundred to an object
    $ limpet queue push enrich '{"domain": "a.com"}' -u s3://acme/prod
    $ limpet queue push enrich '{"domain": "a.com"}' --id a.com@2026-11 --delay 15m -u s3://acme/prod
    $ limpet queue push enrich --file domains.jsonl -u s3://acme/prod
    Exit codes: 0 pushed, or the id was pushed before; 1 the store refused; 2 wrong usage, or bad JSON.
    """
    from limpet.app.push_file import EXAMPLE, parse_payload

    if (payload is None) is (file is None):
        raise Invalid("say what to push: JSON, or --file", hint=EXAMPLE if file is None else "one of the two")
    if file is not None:
        if id is not None or delay is not None:
            raise Invalid("--id and --delay are for a single task, not for --file", hint="leave them out")
        with open_input(file) as stream:
            handle, remark = _queue(url, queue, create=create)
            _push_file(handle, stream, file, batch=batch, json=json)
        _remark(remark)
        return
    assert payload is not None
    task = parse_payload(payload, what="the payload")
    if id is not None:
        check_id(id)
    handle, remark = _queue(url, queue, create=create)
    pushed = handle.push(task, id=id, delay_s=delay or 0.0)
    _remark(remark)
    new, old = f"pushed {pushed.id} to {queue!r}", f"{pushed.id!r} was pushed to {queue!r} before; nothing was changed"
    answer(pushed, new if pushed.created else old, json=json)


def _queue(url: str | None, name: str, *, create: bool) -> tuple[Queue, str]:
    """The queue to push to, and what to say if it is new, or its fleet is: it may be a typo.   Cost: 1 LIST more."""
    from limpet.app.fleet import is_used

    if create:
        refuse_path(name, "queue", lambda: _queue(url, name, create=False))
    fleet = limpet.open(url, create=create)
    fleet.queue(name)  # a name that cannot be makes no fleet
    queue = fleet.check().queue(name, create=create)
    if fleet.is_new:
        return queue, f"(new fleet at {fleet.url})"
    return queue, "(new queue)" if create and not is_used(fleet, queue) else ""


def _remark(text: str) -> None:
    if text:
        say(text, err=True)


def _push_file(queue: Queue, stream: IO[bytes], file: str, *, batch: int, json: bool) -> None:
    from limpet.app.push_file import BadLine, FilePush

    work = FilePush(queue, batch)
    try:
        size = 0 if file == STDIN else os.path.getsize(file)
        with progress_bar("pushing", total=size or None) as update:
            for _ in work.run(stream):
                update(completed=work.read_bytes, description=f"{many(work.pushed, 'task')} pushed")
    except KeyboardInterrupt:
        say(f"interrupted: {_so_far(work)}", err=True)
        raise
    except BadLine as error:
        hint = _go_on(work, file) if work.pushed else error.hint
        raise Invalid(f"{error}; {_so_far(work)}", hint=hint) from None
    except LimpetError as error:
        raise type(error)(f"{error}; {_so_far(work)}; more may have been", hint=error.hint) from error
    facts = {name: getattr(work, name) for name in ("pushed", "batches", "first_id", "last_id")}
    text = f"pushed {many(work.pushed, 'task')} to {queue.name!r} in {many(work.batches, 'batch', 'batches')}"
    nothing = "the file has no line; nothing was pushed"
    answer({"queue": queue.name, **facts}, text if work.pushed else nothing, json=json)


def _so_far(work: FilePush) -> str:
    if not work.pushed:
        return "nothing was pushed"
    later = f", and {work.later} of those after it" if work.later else ""
    return f"{many(work.pushed - work.later, 'task')} before line {work.next_line} went in{later}"


def _go_on(work: FilePush, file: str) -> str:
    if file == STDIN:
        return f"correct it, and push from line {work.next_line} on"
    return f"correct it, then: tail -n +{work.next_line} {file} | limpet queue push {work.queue.name} --file -"


# ---- what operators do ----

IDS_SHOWN = 10


def _handle(url: str | None, queue: str) -> Queue:
    return limpet.open(url, create=False).check().queue(queue, create=False)


def _answer_first(first: bool, facts: dict[str, Any], text: str, else_text: str, *, json: bool) -> None:
    """Print what was done; or, with exit code 1, that it had been done before, or could not be."""
    if first or json:
        answer(facts, text, json=json)
    else:
        say(else_text, err=True)
    if not first:
        raise Exit(EXIT_FAILED)


@contextmanager
def _hinting(kind: type[LimpetError], hint: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        error.hint = hint
        raise


def nothing_failed(queue: str | None, where: str | None, since_s: float | None) -> str:
    """That no failed task of the queue, or of any, was found that fits."""
    error = f" with {where!r} in its error" if where is not None else ""
    time = f" in the last {ago(since_s)}" if since_s is not None else ""
    return f"nothing has failed in {'any queue' if queue is None else repr(queue)}{error}{time}"


def retry(
    queue: QueueOrAllArgument = None,
    id: Annotated[str | None, Argument(metavar="ID", help="The task's id; or use --all.")] = None,
    all: Annotated[bool, Option(help="Retry every task that failed. Cancelled ones stay.")] = False,
    where: WhereOption = None,
    since: SinceOption = None,
    from_scratch: Annotated[
        bool, Option(help="Forget the recorded steps of durable tasks: run them all again.")
    ] = False,
    dry_run: Annotated[bool, Option(help="Only say which tasks it would be.")] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Queue failed tasks again, with fresh attempts: one by its id, all, or those that --where and --since name.

    A retried task has a new id: ~1, ~2 and so on are added to its old one. Commands that are given the old id find it.
    A durable task keeps its recorded steps, unless --from-scratch is given.

    Example: one task; all that failed; those whose error mentions a timeout, of the last two hours
    $ limpet queue retry enrich a.com@2026-11 -u s3://acme/prod
    $ limpet queue retry enrich --all -u s3://acme/prod
    $ limpet queue retry enrich --where timeout --since 2h -u s3://acme/prod
    $ limpet queue retry enrich --where 'error ~ 429|503' --since 1h -u s3://acme/prod
    Example: in all queues; first what it would be
    $ limpet queue retry --where timeout --dry-run -u s3://acme/prod
    $ limpet queue retry --where timeout -u s3://acme/prod
    Exit codes: 0 done; 1 there is no such failed task or queue; 2 wrong usage.
    """
    chosen = where is not None or since is not None
    if id is not None and chosen:
        raise Invalid("--where and --since choose among all failed tasks", hint="leave the id out, or the options")
    if id is not None and all:
        raise Invalid("--all means every task that failed", hint=f"leave {id!r} out, or --all")
    if id is None and not (all or chosen):
        raise Invalid(
            "say which task to retry, or --all, --where or --since",
            hint=f"`limpet queue ls {queue} --failed` shows what failed, `limpet queue failed {queue}` groups it"
            if queue is not None
            else "`limpet queue failed` groups what failed",
        )
    fleet = limpet.open(url, create=False).check()
    about: dict[str, Any] = {"where": where, "since_s": since, "from_scratch": from_scratch, "dry_run": dry_run}
    retried = {}
    for name in fleet.queues() if queue is None else [queue]:
        handle = fleet.queue(name, create=False)
        can_list = "peek" in handle.supports
        hint = f"`limpet queue ls {name} --failed` shows what failed" if can_list else "--all retries all"
        with _hinting(Missing, hint):
            retried[name] = [*handle.retry(id, all=id is None, **about)]
    _answer_retried(retried, queue, id, nothing_failed(queue, where, since), dry_run=dry_run, json=json)


def _answer_retried(
    retried: dict[str, list[str]], queue: str | None, id_: str | None, nothing: str, *, dry_run: bool, json: bool
) -> None:
    """Print the ids by queue; of the whole fleet a line for each queue in which something failed."""
    key, would = ("would_retry", "would be retried") if dry_run else ("retried", "waiting again")
    facts = [{"queue": name, key: ids} for name, ids in retried.items()]
    if json:
        print_json(facts[0] if queue is not None else facts)
    elif not any(retried.values()):
        say(nothing)
    elif id_ is not None and not dry_run:
        say(f"{id_!r} waits again, as {retried[queue or ''][0]!r}")
    else:
        for name, ids in retried.items():
            shown = ", ".join(ids[:IDS_SHOWN]) + (", ..." if len(ids) > IDS_SHOWN else "")
            where = f" in {name!r}" if queue is None else ""
            if ids:
                say(f"{would}{where}, {many(len(ids), 'task')}: {shown}")


def cancel(queue: QueueArgument, id: IdArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Cancel a task that has not ended.

    No worker starts it any more. A handler that runs is not stopped: an async one is cancelled with the next heartbeat
    of its worker, a plain function runs to its end, unless it calls current_task().check(), and if it succeeds, the
    task has completed after all. A task of a batch cannot be cancelled alone, only the whole batch.

    Example:
    $ limpet queue cancel enrich a.com@2026-11 -u s3://acme/prod
    Exit codes: 0 cancelled; 1 it had ended, or there is no such task; 2 wrong usage.
    """
    handle = _handle(url, queue)
    with _hinting(Missing, f"`limpet queue ls {queue}` shows what waits"):
        cancelled = handle.cancel(id)
    said = (handle.result(id).error or "") if cancelled and not json else ""
    done = f"{id!r} is {clean(said) if said.startswith('cancelled: ') else 'cancelled'}"
    ended = f"{id!r} has ended already; nothing was changed: limpet queue show {queue} {id}"
    _answer_first(cancelled, {"queue": queue, "id": id, "cancelled": cancelled}, done, ended, json=json)


def fail(
    queue: QueueArgument,
    id: IdArgument,
    error: Annotated[str, Option(metavar="TEXT", help="What is said of it.")] = "failed by command",
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """End a task as failed that no worker holds: it waits, rests, is suspended or delayed.

    A durable task that waits for code that fits ends in no other way if no such code is deployed. A failed task can be
    retried, and keeps its recorded steps. A task that a worker holds is left alone.

    Example:
    $ limpet queue fail order order-7 --error 'withdrawn by the customer' -u s3://acme/prod
    Exit codes: 0 failed; 1 it had ended, a worker holds it, or there is no such task; 2 wrong usage.
    """
    handle = _handle(url, queue)
    with _hinting(Missing, f"`limpet queue ls {queue}` shows what waits"):
        failed = handle.fail(id, error)
    ended = f"{id!r} has ended already; nothing was changed: limpet queue show {queue} {id}"
    _answer_first(failed, {"queue": queue, "id": id, "failed": failed}, f"{id!r} is failed", ended, json=json)


def signal(
    queue: QueueArgument,
    id: IdArgument,
    name: Annotated[str, Argument(metavar="NAME", help="The name that the task waits for.")],
    value: Annotated[str, Argument(metavar="JSON", help="What the task gets.")] = "null",
    early: Annotated[bool, Option(help="Send it for a later wait, though the task waits for another signal.")] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Send a signal to a durable task that waits for it now or later: an approval, say.

    The first signal of a name counts. While a task is suspended until another signal comes, the name is refused.

    Example:
    $ limpet queue signal order order-7 approved '"ann"' -u s3://acme/prod
    Exit codes: 0 sent; 1 one of that name was sent before, or no such task waits; 2 wrong usage, or the task waits for
    another signal.
    """
    from limpet.app.fleet import in_store
    from limpet.kernel.records import parse_json

    with _hinting(Invalid, f"a text is in double quotes: '\"{value}\"'"):
        told = parse_json(value, what="the value")
    handle = _handle(url, queue)
    with _hinting(Missing, f"`limpet queue ls {queue}` shows what waits"):
        sent = in_store(handle, "send a signal").send_signal(id, name, told, early=early, sender=_sender())
    done = f"{id!r} gets {name!r}" if sent.awaited else f"sent; {id!r} does not wait for {name!r} yet"
    before = f"{name!r} was sent to {id!r} before, and the first one counts"
    facts = {"queue": queue, "id": id, "signal": name, "sent": sent.first, "awaited": sent.awaited}
    _answer_first(sent.first, facts, done, f"{before}; nothing was changed", json=json)


def _sender() -> str:
    """Who types the command."""
    with suppress(KeyError, OSError):  # a user without a name
        return f"{getpass.getuser()}@{os.uname().nodename}"
    return ""


def pause(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Stop workers from claiming tasks of a queue, until `resume`.

    Workers notice within a few seconds. Running tasks continue, and tasks may still be pushed.

    Example:
    $ limpet queue pause enrich -u s3://acme/prod
    Exit codes: 0 paused; 1 there is no such queue; 2 wrong usage.
    """
    _set_paused(queue, url, True, json=json)


def resume(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Undo `pause`.

    Example:
    $ limpet queue resume enrich -u s3://acme/prod
    Exit codes: 0 resumed; 1 there is no such queue; 2 wrong usage.
    """
    _set_paused(queue, url, False, json=json)


def _set_paused(queue: str, url: str | None, paused: bool, *, json: bool) -> None:
    handle = _handle(url, queue)
    (handle.pause if paused else handle.resume)()
    said = (
        f"paused; go on with: limpet queue resume {queue}" if paused else "resumed; workers notice within a few seconds"
    )
    answer({"queue": queue, "paused": paused}, f"{queue!r} is {said}", json=json)


def purge(queue: QueueArgument, yes: YesOption = False, url: UrlOption = None, json: JsonOption = False) -> None:
    """Delete every task that waits, delayed ones too. Receipts of tasks that have ended stay.

    There is no undo. A running handler is not stopped, and if it succeeds, its result counts.

    Example:
    $ limpet queue purge enrich --yes -u s3://acme/prod
    Exit codes: 0 purged; 1 there is no such queue, or you said no; 2 wrong usage, or no terminal to ask.
    """
    handle = _handle(url, queue)
    if not yes:
        stats = handle.stats()
        waiting = many(stats.pending + stats.scheduled, "task")
        confirm(f"{waiting} would be dropped from {queue!r}, {stats.in_flight:,} of them running", "Drop them all?")
    gone = handle.purge()
    answer({"queue": queue, "purged": gone}, f"dropped {many(gone, 'task')} of {queue!r}", json=json)


def drop(
    queue: QueueArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a queue with all that it holds: tasks that wait, receipts, results. Its name can be used again.

    It is refused while tasks run: stop the workers, or wait. The queue is paused meanwhile, and cannot be used. If the
    command is killed, run it again: it goes on. In a bucket it waits for two minutes if the queue had ids of your own,
    so that no late delete strikes a task that is pushed under one of them again.

    Example: what would go; then drop it
    $ limpet queue drop enrich --dry-run -u s3://acme/prod
    $ limpet queue drop enrich --yes -u s3://acme/prod
    Exit codes: 0 dropped; 1 no such queue, tasks run, or you said no; 2 wrong usage, or no terminal to ask; 75 another
      process drops it.
    """
    from limpet.app.fleet import demand_queue

    fleet = limpet.open(url, create=False, read_only=dry_run).check()
    handle = fleet.queue(queue)
    try:
        run_drop(handle.drop, yes=yes, dry_run=dry_run, json=json)
    except Missing:
        demand_queue(fleet, handle)
        raise


def sweep(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Clean up after crashes: finish tasks that ended half-way, and delete leftovers of tasks that have ended.

    Workers do this by themselves, one of them once an hour. Nothing that waits or ended is lost by it: receipts stay,
    however old they are, until a worker whose retention_s they exceed removes them.

    Example:
    $ limpet queue sweep enrich -u s3://acme/prod
    Exit codes: 0 swept; 1 there is no such queue; 2 wrong usage.
    """
    from limpet.app.fleet import in_store

    handle = _handle(url, queue)
    gone = in_store(handle, "be swept").sweep(retain=False)
    answer({"queue": queue, "removed": gone}, f"{queue!r} is tidy; {many(gone, 'object')} removed", json=json)


def adopt(
    queue: QueueArgument,
    from_: Annotated[
        str | None,
        Option(
            "--from",
            metavar="DIR",
            show_default="the queue's own folder",
            help="Where they are: a folder, or a URL (s3://bucket/prefix).",
        ),
    ] = None,
    quiesced: Annotated[
        bool, Option(help="The other program has stopped: ignore leases, delete each original once its task is safe.")
    ] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Take over a queue that another program keeps in files.

    Its files: `pending/ID/task.json`, or `pending/SHARD/ID/task.json`, is a waiting task, with a `lease.json` beside it
    while a worker holds it; `completed/ID.json` and `failed/ID.json` are ended tasks. Each file is the payload, a JSON
    object. Ids are kept, so running it twice changes nothing; failed tasks can be retried. Invalid files, and tasks
    whose id this queue has with another payload, are reported and kept. Other files are counted.

    Without --quiesced nothing is deleted, tasks with a lease are skipped, and a task that the other program claims
    later runs twice. Without --from the files lie where the queue keeps its own (`queues/QUEUE/` below the URL): each
    is replaced in its place, which needs --quiesced. The place need not be a fleet before.

    Example: copy the tasks of another program's queue; then take it over, once that program has stopped
    $ limpet queue adopt enrich --from ./old/queues/enrich -u s3://acme/prod
    $ limpet queue adopt enrich --from ./old/queues/enrich --quiesced -u s3://acme/prod
    Example: in place, where the other program kept them in s3://acme/campaigns/x/queues/enrich
    $ limpet queue adopt enrich --quiesced -u s3://acme/campaigns/x
    Exit codes: 0 all were taken; 1 some files were bad, or there are none; 2 wrong usage.
    """
    from limpet.app.adopt import adopt_tasks

    refuse_path(queue, "queue", lambda: _handle(url, queue))
    fleet = limpet.open(url).check()
    with console(stderr=True).status(f"taking tasks into {queue!r}"):
        report = adopt_tasks(fleet, queue, from_, quiesced=quiesced)
    if json:
        print_json({"queue": queue, **asdict(report)})
    else:
        _print_adopted(queue, report)
    if report.bad:
        raise Exit(EXIT_FAILED)


def _print_adopted(queue: str, report: QueueAdoptReport) -> None:
    for bad in report.bad:
        say(f"not taken over: {bad.name}: {bad.reason}", err=True)
    if report.held:
        held = many(report.held, "task has a lease and was skipped", "tasks have a lease and were skipped")
        say(f"{held}; once the other program has stopped: --quiesced", err=True)
    if report.ignored:
        names = ", ".join(report.ignored_names)
        said = many(report.ignored, "other file is no task and stays", "other files are no tasks and stay")
        say(f"{said}, such as {names}", err=True)
    parts = [f"{report.pending:,} waiting, {report.completed:,} completed, {report.failed:,} failed"]
    if report.known:
        parts.append(f"{report.known:,} known before")
    if report.replaced:
        parts.append(f"{many(report.replaced, 'original')} replaced in place")
    if report.deleted or not report.replaced:
        parts.append(f"{many(report.deleted, 'original')} deleted" if report.deleted else "no original deleted")
    say(f"took {many(report.pending + report.completed + report.failed, 'task')} into {queue!r}: {'; '.join(parts)}")
    if report.completed:
        say(
            "hint: ids of completed tasks stay used for as long as the workers keep receipts, by default 30 days; "
            'retention_s=float("inf") keeps them for ever',
            err=True,
        )

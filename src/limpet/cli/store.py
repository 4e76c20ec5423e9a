"""`limpet doctor`, `iam`, `backup` and `restore`: whether a store keeps the promises that Limpet needs, policies for a
bucket, and a fleet copied to another URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit, urlunsplit

from limpet.cli import EXIT_FAILED, clean, print_json, progress_bar, say, show, size_text, table
from limpet.cli.options import JsonOption, UrlOption, one_url
from limpet.cli.parse import Argument, Context, Exit, Option
from limpet.kernel.errors import Invalid
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.app.backup import CheckReport
    from limpet.app.backup_run import BackupProgress, BackupReport
    from limpet.kernel.doctor import Check, Report
    from limpet.kernel.rights import RightCheck
    from limpet.kernel.store import MeteredStore


def doctor(
    context: Context,
    where: Annotated[str | None, Argument(metavar="[URL]", help="The place; or use --url.")] = None,
    rounds: Annotated[int, Option(min=1, max=100, help="How often to repeat each race. More finds more.")] = 3,
    role: Annotated[
        str | None, Option(metavar="ROLE", help="Check instead that the key in use has the rights of this role.")
    ] = None,
    queue: Annotated[
        list[str] | None, Option(metavar="NAME", help="With --role: narrowed to this; repeatable.")
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Find out whether a store keeps the promises that Limpet builds on, and how fast it is.

    It races creates and swaps against each other, checks listings, ranges, names and the clock, and measures latency. A
    store that ignores conditional writes loses one of two simultaneous writes: it fails here.

    No fleet is needed. It takes one or two thousand requests (half a cent on S3), and deletes all that it writes.

    With --role it examines the credentials instead: what the role must be able to do works, and everything else is
    denied. It writes nothing: its puts have a condition that no object meets, and it deletes what does not exist.

    Example: a folder, and a bucket of a self-hosted S3 server
    $ limpet doctor ./fleet
    $ limpet doctor 's3://bucket/prefix?endpoint=http://127.0.0.1:8333'
    Example: does this machine's key have the rights of an API, and no others?
    $ limpet doctor --role api s3://acme/prod
    Exit codes: 0 fit for Limpet, or a key as its role wants it; 1 not, or it could not be examined; 2 wrong usage.
    """
    from limpet.app.place import check_has_store, store_for, url_or_default
    from limpet.kernel.doctor import CHECKS, examine, store_to_examine
    from limpet.kernel.records import builtins
    from limpet.kernel.runtime import system
    from limpet.kernel.store import MeteredStore

    where = url_or_default(one_url(context, where, url))
    check_has_store(where, "there is no store to examine")
    if role is not None or queue:
        _examine_key(where, role, queue or (), json=json)
        return
    with (
        store_to_examine(store_for(where, system()), system()) as store,
        progress_bar("conditional writes", total=len(CHECKS) + 1) as update,
    ):
        meter = MeteredStore(store, runtime=system())
        report = examine(
            meter,
            rounds=rounds,
            progress=lambda check: update(advance=1, description=f"{check.name}: {'ok' if check.ok else 'FAIL'}"),
        )
    if json:
        print_json({"url": where, **builtins(report), "requests": meter.snapshot().requests})
    else:
        _print(where, report, meter)
    if not report.ok:
        raise Exit(EXIT_FAILED)


def _examine_key(url: str, name: str | None, queues: Sequence[str], *, json: bool) -> None:
    from limpet.app.place import store_for
    from limpet.kernel.records import builtins
    from limpet.kernel.rights import OUTSIDE, VERBS, examine_rights, samples
    from limpet.kernel.runtime import system
    from limpet.kernel.store.roles import check_queues, check_role

    if name is None:
        raise Invalid("--queue narrows a role, and none was given", hint="give --role worker or --role pusher")
    role = check_role(name)
    roots = check_queues(role, queues)
    parts = urlsplit(url)
    if parts.scheme not in ("s3", "gs", "az"):
        raise Invalid(f"{clean(url)} is not a bucket: it has no keys with rights", hint="give s3://, gs:// or az://")
    outside = store_for(urlunsplit(parts._replace(path="")), system()) if parts.path.strip("/") else None
    with progress_bar("rights", total=len(samples(role, "x", roots)) + (4 if outside else 0)) as update:
        report = examine_rights(
            store_for(url, system()),
            role,
            roots=roots,
            outside=outside,
            by_generation=parts.scheme == "gs",
            progress=lambda check: update(advance=1, description=check.where or "everything"),
        )
    wrong = [check for check in report.checks if not check.ok]
    if json:
        print_json({"url": url, **builtins(report)})
    else:
        rights = {(check.where, check.verb): check for check in report.checks}
        shown = table("where", *VERBS)
        for where in sorted({check.where for check in report.checks}, key=lambda where: (where == OUTSIDE, where)):
            shown.add_row(clean(where) or "everything", *(_right(rights.get((where, verb))) for verb in VERBS))
        show(shown, "")
        refused = next((f"[dim]such as: {clean(check.detail)}[/dim]" for check in wrong if check.detail), "")
        show(*([refused] if refused else []), _verdict_on_key(role, wrong))
    if wrong:
        raise Exit(EXIT_FAILED)


def _right(check: RightCheck | None) -> str:
    if check is None or check.may is None:
        return ""
    if check.ok:
        return "yes" if check.may else "[dim]-[/dim]"
    return "[bold red]TOO MUCH[/bold red]" if check.may else "[bold red]MISSING[/bold red]"


def _verdict_on_key(role: str, wrong: Sequence[RightCheck]) -> str:
    if not wrong:
        return f"[bold green]ok[/bold green]  the key has the rights of the role {role}, and no others"
    missing = sum(check.must for check in wrong)
    counts = {"missing": missing, "too much": len(wrong) - missing}
    said = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"[bold red]FAIL[/bold red]  the key has not the rights of the role {role}: {said}"


def _print(url: str, report: Report, meter: MeteredStore) -> None:
    checks = table("check", "", "what was seen")
    hints = {""}
    for check in report.checks:
        once = f"\n[dim]{clean(check.hint)}[/dim]" if check.hint not in hints else ""
        hints.add(check.hint)
        checks.add_row(check.name, _mark(check), clean(check.detail) + once)
    show(checks)
    if report.latency:
        speed = table("1 KiB, one by one", "calls", "p50", "p95", right=("calls", "p50", "p95"))
        for each in report.latency:
            speed.add_row(each.verb, str(each.calls), _ms(each.p50_ms), _ms(each.p95_ms))
        say("")
        show(speed)
    spent = meter.snapshot()
    show(
        f"\n[dim]{many(spent.total(), 'request')}; on S3 they would cost ${spent.dollars('s3'):.4f}[/dim]",
        _verdict(clean(url), report),
    )


def _ms(value: float) -> str:
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


TenantOption = Annotated[
    str | None,
    Option(
        "--tenant", metavar="NAME", envvar="LIMPET_TENANT_ID", help="Only what lies below this tenant and --workspace."
    ),
]
WorkspaceOption = Annotated[
    str | None, Option("--workspace", metavar="NAME", envvar="LIMPET_WORKSPACE_ID", help="See --tenant.")
]
RoleOption = Annotated[
    str,
    Option(
        "--role", metavar="ROLE", help="One of api, compactor, compiler, pusher, reader, supervisor, tables, worker."
    ),
]


def iam(
    provider: Annotated[str, Option(metavar="aws|gcp", help="The cloud.")],
    role: RoleOption,
    bucket: Annotated[str | None, Option(metavar="NAME", help="The bucket, without a URL.")] = None,
    prefix: Annotated[str, Option(metavar="PATH", show_default=False, help="Where the fleet is in --bucket.")] = "",
    queue: Annotated[
        list[str] | None, Option(metavar="NAME", help="Only this queue (worker, pusher); repeatable.")
    ] = None,
    conditions: Annotated[
        bool | None,
        Option(
            "--conditions/--no-conditions",
            help="AWS: demand If-Match or If-None-Match for locks and heads. Left out where another endpoint is named.",
        ),
    ] = None,
    tenant: TenantOption = None,
    workspace: WorkspaceOption = None,
    project: Annotated[str, Option(metavar="ID", help="Google Cloud: the project of the custom roles.")] = "PROJECT",
    member: Annotated[str, Option(metavar="WHO", help="Google Cloud: such as serviceAccount:NAME@....")] = "MEMBER",
    url: UrlOption = None,
) -> None:
    """Print a policy that grants what a role needs in a bucket, as JSON. Nothing is sent to the cloud.

    Where the cloud's policy language cannot express a role exactly, what the policy grants beyond it is listed on
    stderr.

    Example: least-privilege credentials for workers
    $ limpet iam --provider aws --role worker -u s3://acme/prod > worker.json
    $ aws iam put-role-policy --role-name pi --policy-name limpet --policy-document file://worker.json
    Example: a key that can only push to one queue, and read its results
    $ limpet iam --provider aws --role pusher --queue emails -u s3://acme/prod
    Example: the compactor of one workspace
    $ limpet iam --provider aws --role compactor --tenant acme --workspace prod -u s3://acme-data
    Exit codes: 0 printed; 2 wrong usage.
    """
    from limpet.kernel.store.policies import (
        PROVIDERS,
        Scope,
        aws_policy,
        gcp_policy,
        is_amazon,
        notes,
        root_of,
        scope_of,
    )
    from limpet.kernel.store.roles import check_queues, check_role

    known = check_role(role)
    roots = check_queues(known, queue or ())
    cloud = next((each for each in PROVIDERS if each == provider), None)
    if cloud is None:
        raise Invalid(f"there is no provider {provider!r}", hint=f"use one of {', '.join(PROVIDERS)}")
    if bucket is not None:
        fleet = Scope(bucket, prefix.strip("/"))
    elif url is not None and not prefix:
        fleet = scope_of(url, cloud)
    else:
        raise Invalid("no bucket was given", hint="say --url s3://bucket/prefix, or --bucket and --prefix")
    scope = fleet.at(root_of(tenant, workspace))
    if cloud == "aws":
        amazon = is_amazon(None if bucket is not None else url)
        print_json(aws_policy(known, scope, roots, conditional=amazon if conditions is None else conditions))
    else:
        print_json(gcp_policy(known, scope, roots, project=project, member=member))
    for note in notes(cloud, known, roots):
        say(f"note: {note}", err=True)


# ---- backup ----

SHOWN_MAX = 20


WaitOption = Annotated[
    float, Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait for another run to that place.")
]


def backup(
    source: Annotated[str, Argument(metavar="FLEET_URL", help="The fleet, or use --url; with --check, the backup.")],
    target: Annotated[
        str | None, Argument(metavar="BACKUP_URL", help="An empty place, or an earlier backup of the same fleet.")
    ] = None,
    url: UrlOption = None,
    data: Annotated[
        bool, Option("--data/--no-data", help="Copy the data files of tables, not only their metadata.")
    ] = True,
    check: Annotated[bool, Option(help="Copy nothing: compare a backup with its record.")] = False,
    wait: WaitOption = 0.0,
    json: JsonOption = False,
) -> None:
    """Copy a fleet to another URL. It may be running, and nothing is written to it.

    Everything that was acknowledged before the backup began is in the copy, or its outcome is. An interrupted run
    continues when it is started again; a later run copies only what has changed. One run at a time writes to a place.

    Example: every night, to another bucket; only what changed is copied again
    $ limpet backup s3://acme/prod s3://acme-backup/prod
    Example: read the whole backup, and compare it with what was recorded
    $ limpet backup --check s3://acme-backup/prod
    Exit codes: 0 finished, or the backup is whole; 1 no fleet there, objects had to be left out, the backup is not
      whole, or the store refused; 2 wrong usage, or the place holds something else; 70 it was paused, and another run
      took over; 75 another run to the same place has not ended; 130 interrupted: run it again.
    """
    from limpet.app.backup import backup as copy
    from limpet.app.backup import check_backup, store_to_copy
    from limpet.kernel.runtime import system

    if check:
        if target is not None:
            raise Invalid("--check takes one URL, that of the backup", hint=f"limpet backup --check {target}")
        with _bar(json=json) as tell:
            found = check_backup(store_to_copy(source), system(), url=source, tell=tell)
        _print_check(found, source, json=json)
        return
    if target is None and url is not None:
        source, target = url, source
    if target is None:
        raise Invalid("name two URLs: the fleet and the place for the copy", hint=f"limpet backup {source} BACKUP_URL")
    report = _copied(partial(copy, data=data, wait_s=wait), source, target, json=json)
    _print_copied(report, f"backed up {source} to {target}", json=json)


def restore(
    source: Annotated[str, Argument(metavar="BACKUP_URL", help="A finished backup.")],
    target: Annotated[str | None, Argument(metavar="FLEET_URL", help="An empty place; or use --url.")] = None,
    url: UrlOption = None,
    force: Annotated[bool, Option(help="Take a backup that is unfinished or damaged as it is.")] = False,
    keep_id: Annotated[bool, Option(help="It goes on as the fleet that was backed up, which is gone.")] = False,
    wait: WaitOption = 0.0,
    json: JsonOption = False,
) -> None:
    """Restore a backup as a fleet, in an empty place. It cannot be opened before the restore is complete.

    Locks that were held become free when their time is over. Do not let the old fleet and this one run at once.

    At the URL that was backed up it is the same fleet for nodes and backups, with a new epoch: nodes send again what
    they have. Elsewhere it is a fleet of its own, unless --keep-id says that the old one is gone.

    Example:
    $ limpet restore s3://acme-backup/prod s3://acme/prod
    Example: the old bucket is lost; nodes are then started with the new one as --remote
    $ limpet restore --keep-id s3://acme-backup/prod s3://acme-eu/prod
    Exit codes: 0 restored; 1 no backup there, or objects of it are damaged; 2 wrong usage, the place is not empty, or
      the backup is not finished; 70, 75 as for backup; 130 interrupted: run it again.
    """
    from limpet.app.backup import restore as copy
    from limpet.app.place import url_or_default

    target = target or url_or_default(url)
    report = _copied(partial(copy, force=force, keep_id=keep_id, wait_s=wait), source, target, json=json)
    _print_copied(report, f"restored {source} to {target}, fleet {report.fleet}", json=json)
    if not json:
        for entry in report.unknown[:SHOWN_MAX]:
            say(f"lost: {entry}: a durable task has pushed it, and it is not in the backup")


def _copied(copy: Callable[..., BackupReport], source: str, target: str, *, json: bool) -> BackupReport:
    from limpet.app.backup import plain_url, store_to_copy
    from limpet.kernel.runtime import system

    urls = {"source_url": plain_url(source), "target_url": plain_url(target)}
    with _bar(json=json) as tell:
        return copy(store_to_copy(source), store_to_copy(target), system(), **urls, tell=tell)


@contextmanager
def _bar(*, json: bool) -> Iterator[Callable[[BackupProgress], None]]:
    with progress_bar("listing", total=None, quiet=json) as update:
        yield lambda at: update(
            description=f"{at.kind}: {many(at.objects, 'object')}, {size_text(at.bytes)}, {at.copied:,} copied"
        )


def _print_copied(report: BackupReport, what: str, *, json: bool) -> None:
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
        raise Exit(EXIT_FAILED)


def _print_check(found: CheckReport, url: str, *, json: bool) -> None:
    if json:
        print_json({"ok": found.ok, **asdict(found)})
    else:
        keys = {"missing": found.missing, "changed": found.changed, "strange": found.strange, "lost": found.lost}
        for title, some in keys.items():
            for key in some[:SHOWN_MAX]:
                say(f"{title}: {key}")
        damage = "damaged" if found.missing or found.changed else "without tasks that durable tasks have pushed"
        state = "whole" if found.ok else "not finished" if not found.finished else damage
        say(f"the backup at {url} is {state}: {many(found.objects, 'object')}, {size_text(found.bytes)}")
    if not found.ok:
        raise Exit(EXIT_FAILED)

"""`limpet catalog`: the table catalog, its history, what operators do to it, and the quarantine of events; and
`limpet tables`: maintenance of tables without an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import limpet
from limpet import cli
from limpet.cli import EXIT_FAILED, answer, clean, console, print_json, say, size_text, table
from limpet.cli.options import DELAY_HELP, JsonOption, duration_s
from limpet.cli.parse import Argument, Exit, Option, group, lines
from limpet.kernel.errors import Invalid, Unsupported
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.catalog import TableMaintenance
    from limpet.catalog.history import PastCatalog
    from limpet.catalog.records import CommitRecord, Row
    from limpet.events.fold import Executions
    from limpet.service.client import ServiceWriter

URL_VARIABLES = ["LIMPET_STORAGE_URL", "LIMPET_URL"]
KINDS = {"n": "namespace", "t": "table", "v": "view"}

CatalogUrlOption = Annotated[
    str | None,
    Option(
        "--url",
        "-u",
        envvar=URL_VARIABLES,
        show_default=False,
        help="The fleet: ./dir, s3://bucket/prefix, gs://, az://. With LIMPET_TENANT_ID and LIMPET_WORKSPACE_ID, the "
        "workspace's catalog below it.",
    ),
]


TableArgument = Annotated[
    str,
    Argument(metavar="NAMESPACE.TABLE", show_default=False, help="The table, or level.level.name.", names="table"),
]
DryRunOption = Annotated[bool, Option("--dry-run", help="Only show what would be done.")]
ServiceOption = Annotated[
    str | None,
    Option(
        "--service",
        metavar="URL",
        show_default=False,
        help="Commit through the `limpet serve` there, with the first of LIMPET_API_TOKENS.",
    ),
]
WaitOption = Annotated[
    float, Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait for the lead, without --service.")
]
SeparatorOption = Annotated[
    str, Option("--separator", metavar="TEXT", help="What joins the parts of TABLE, for names with dots in them.")
]


def demand_extra() -> None:
    """Return if the packages of the catalog are installed.   Raises: Unsupported."""
    from importlib.util import find_spec

    needed = ("prometheus_client", "pyarrow", "pyiceberg", "starlette", "uvicorn")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        hint = "pip install 'limpet[catalog]', or 'limpet[ui]' for the dashboard"
        raise Unsupported(f"this command needs {', '.join(missing)}", hint=hint)


def fleet_of(url: str | None, *, read_only: bool = False) -> Fleet:
    """The workspace's fleet. One that is not there is `Missing`, so that a typo creates nothing."""
    demand_extra()
    from limpet.app.catalogs import workspace_url
    from limpet.app.place import url_or_default

    return limpet.open(workspace_url(url_or_default(url)), read_only=read_only, create=False).check()


def identifier(text: str, separator: str) -> tuple[list[str], str]:
    """A table as it is typed.   Raises: Invalid."""
    *namespace, name = text.split(separator) if separator else [text]
    if not namespace or not name or not all(namespace):
        raise Invalid(
            f"{text!r} is not a table: it has no namespace",
            hint="write namespace.name; --separator / joins with slashes",
        )
    return namespace, name


def writer_of(service: str | None) -> ServiceWriter | None:
    """A writer that commits through the `limpet serve` at a URL; None without one."""
    from limpet.service.client import ServiceWriter

    return None if service is None else ServiceWriter(service)


def log(
    limit: Annotated[int, Option("-n", min=1, help="How many commits to show.")] = 20,
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the last commits, the newest first, each with its time, its caller and its leader.

    `who` is the name of the token that came with the request; it is empty where `limpet serve` asks for none. A commit
    holds all changes that were granted while the one before it was published, and names that one by digest.

    Example:
    $ limpet catalog log -n 5 -u s3://acme/prod
    Exit codes: 0 shown; 1 no fleet there, it cannot be read, or a commit record is damaged; 2 wrong usage.
    """
    fleet = fleet_of(url, read_only=True)
    faults: list[str] = []
    commits = fleet.catalog().log(limit, lambda error: faults.append(str(error)))
    if json:
        print_json([_commit_facts(commit) for commit in commits])
    elif commits:
        _print_log(commits)
    else:
        say(f"nothing was ever published at {fleet.url}")
    _tell_damage(faults, err=True)


def _print_log(commits: Sequence[CommitRecord]) -> None:
    signed = any(row.actor for commit in commits for row in commit.rows)
    who = ["who"] if signed else []
    listed = table("version", "published", "token", *who, "what", right=("version", "token"))
    for commit in commits:
        said = "\n".join(map(_said, commit.rows)) or "[dim]a new leader[/dim]"
        actors = ["\n".join(clean(row.actor) for row in commit.rows)] if signed else []
        listed.add_row(str(commit.version), _moment(commit.at), str(commit.token), *actors, said)
    cli.show(listed)


def _tell_damage(faults: Iterable[str], *, err: bool = False) -> None:
    """Name what is damaged, and exit with code 1; return if nothing is."""
    faults = [*faults]
    for fault in faults:
        cli.show(f"[red]damaged[/red]: {clean(fault)}", err=err)
    if faults:
        raise Exit(EXIT_FAILED)


def _names(row: Row) -> list[tuple[str, str]]:
    from limpet.catalog.names import parsed, shown

    found = [(change.key[:1], parsed(change.key)) for change in row.changes if change.key[:2] in ("n/", "t/", "v/")]
    return [(KINDS[kind], shown(*where)) for kind, where in found]


def _said(row: Row) -> str:
    names = [name for _, name in _names(row)]
    return clean(f"{row.what} {' -> '.join(names) if row.what.startswith('rename') else ', '.join(names)}".strip())


def _commit_facts(commit: CommitRecord) -> dict[str, Any]:
    rows = [
        {
            "id": row.id,
            "what": row.what,
            "actor": row.actor,
            "changes": [{"kind": kind, "name": name} for kind, name in _names(row)],
        }
        for row in commit.rows
    ]
    return {"version": commit.version, "commit": commit.id, "at": commit.at, "token": commit.token, "rows": rows}


def show(
    at: Annotated[
        str | None, Option(metavar="VERSION|TIME", show_default="now", help="A version, or a time with its zone.")
    ] = None,
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the namespaces, tables and views of the catalog, now or in the past, and where their metadata lies.

    Example: now; as of a version; as of a moment
    $ limpet catalog show -u s3://acme/prod
    $ limpet catalog show --at 41 -u s3://acme/prod
    $ limpet catalog show --at 2026-11-16T12:00:00Z -u s3://acme/prod
    Exit codes: 0 shown; 1 there is no such version, or its history has been collected; 2 wrong usage.
    """
    fleet = fleet_of(url, read_only=True)
    past = fleet.catalog().at(_when(at))
    if json:
        print_json(_past_facts(past))
        return
    listed = table("name", "kind", "metadata")
    rows = [(namespace, "namespace", "") for namespace in past.namespaces]
    for kind, found in (("table", past.tables), ("view", past.views)):
        rows += [((*namespace, name), kind, location) for (namespace, name), location in found.items()]
    for levels, kind, location in sorted(rows):
        listed.add_row(clean(".".join(levels)), kind, clean(location))
    heading = f"[bold]version {past.version}[/bold], published {_moment(past.at)}"
    cli.show(heading, listed if rows else "it is empty")


def _when(text: str | None) -> int | datetime | None:
    """A version or a time as it is typed.   Raises: Invalid."""
    if text is None:
        return None
    number = text.removeprefix("v")
    if number.isascii() and number.isdigit() and len(number) < 19:
        return int(number)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text!r} is neither a version nor a time", hint="such as 41, or 2026-11-16T12:00:00Z") from None


def _past_facts(past: PastCatalog) -> dict[str, Any]:
    def entries(found: Any) -> list[dict[str, Any]]:
        return [
            {"namespace": namespace, "name": name, "metadata_location": location}
            for (namespace, name), location in sorted(found.items())
        ]

    return {
        "version": past.version,
        "at": past.at,
        "namespaces": [
            {"namespace": levels, "properties": properties} for levels, properties in sorted(past.namespaces.items())
        ],
        "tables": entries(past.tables),
        "views": entries(past.views),
    }


def _moment(at: str) -> str:
    return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S} UTC"


def verify(url: CatalogUrlOption = None, json: JsonOption = False) -> None:
    """Walk the chain of commits from the newest to the oldest that is kept, and compare every digest; then read the
    metadata file of every table and view, and compare its digest with the one that was committed.

    A change of an old commit, or of a metadata file, shows here. Metadata files that version 0.1 wrote have no digest;
    they get one with the next commit to their table.

    Example:
    $ limpet catalog verify -u s3://acme/prod
    Exit codes: 0 everything is as it was committed; 1 something is damaged or cannot be read; 2 wrong usage.
    """
    fleet = fleet_of(url, read_only=True)
    with console(stderr=True).status("walking the chain"):
        found = fleet.catalog().verify()
    chain = found.chain
    if json:
        facts = {"ok": found.broken is None, "commits": chain.commits, "oldest": chain.oldest, "broken": chain.broken}
        print_json({**facts, "files": found.files, "undigested": found.undigested, "faults": found.faults})
    elif found.broken is None:
        span = f", back to version {chain.oldest}" if chain.commits else ""
        unsaid = f", {found.undigested} of them without a digest" if found.undigested else ""
        files = many(found.files, "metadata file")
        say(f"the chain is whole: {many(chain.commits, 'commit')}{span}; {files}{unsaid}")
    else:
        for fault in chain.faults:
            cli.show(f"[red]the chain is broken[/red]: {clean(fault)}")
        _tell_damage(found.damaged)
    if found.broken is not None:
        raise Exit(EXIT_FAILED)


def undrop(
    table: TableArgument,
    service: ServiceOption = None,
    wait: WaitOption = 0.0,
    separator: SeparatorOption = ".",
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Put back the table or view of that name that was dropped last, as it was then.

    A drop deletes no files. A table that was purged cannot be put back. Without --service this process leads the
    catalog for a moment; where `limpet serve` leads it, name that one with --service.

    Example: where no service runs; then through the one that leads
    $ limpet catalog undrop sales.orders -u s3://acme/prod
    $ limpet catalog undrop sales.orders --service http://127.0.0.1:8181
    Exit codes: 0 restored; 1 no such table was dropped, it was purged, the name is taken, or another process leads; 2
      wrong usage.
    """
    from limpet.service.client import ServiceWriter

    namespace, name = identifier(table, separator)
    if service is not None:
        location = ServiceWriter(service).undrop(namespace, name)
    else:
        location = _lead_and_undrop(fleet_of(url), namespace, name, wait)
    facts = {"namespace": namespace, "name": name, "metadata_location": location}
    answer(facts, f"{table!r} is back, with {location}", json=json)


def _lead_and_undrop(fleet: Fleet, namespace: list[str], name: str, wait_s: float) -> str:
    from limpet.catalog import NotLeader

    try:
        with fleet.lead_catalog(wait_s=wait_s) as catalog:
            return str(catalog.undrop(namespace, name).metadata_location)
    except NotLeader as error:
        raise NotLeader(str(error), hint="ask it: --service http://HOST:PORT; or --wait until it is gone") from None


def import_(
    source: Annotated[
        str,
        Option(
            "--from", metavar="URI", show_default=False, help="http(s)://, sqlite:///, postgresql://, glue://REGION."
        ),
    ],
    name: Annotated[
        str, Option(help="Its name in PyIceberg's configuration, and of a SQL catalog in its tables.")
    ] = "default",
    option: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", show_default=False, help="A setting of PyIceberg; repeat it.")
    ] = None,
    dry_run: DryRunOption = False,
    service: ServiceOption = None,
    wait: WaitOption = 0.0,
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Register every namespace, table and view of another catalog, REST, SQL or Glue, in this one.

    No data is copied: the files of a table must be in this warehouse already. The other catalog is not changed; stop
    its writers first. Run it again after an interruption: what is here is passed over.

    Example: from a REST catalog whose token is in PYICEBERG_CATALOG__OLD__TOKEN; from a SQL catalog
    $ limpet catalog import --from https://old.example/catalog --name old -u s3://acme/prod
    $ limpet catalog import --from sqlite:////srv/iceberg.db --dry-run -u /srv/fleet
    Exit codes: 0 every table is here; 1 some differ or failed, the other catalog cannot be read, or another
      process leads; 2 wrong usage.
    """
    settings = dict(each.partition("=")[::2] for each in option or ())
    counts = dict.fromkeys(("imported", "present", "differs", "failed"), 0)
    done = fleet_of(url, read_only=dry_run).import_catalog(
        source, name=name, options=settings, through=writer_of(service), dry_run=dry_run, wait_s=wait
    )
    found: list[dict[str, str]] = []
    for each in done:
        counts[each.outcome] += 1
        shown = ".".join((*each.namespace, each.name))
        if json:
            facts = {"kind": each.kind, "outcome": each.outcome, "location": each.location, "reason": each.reason}
            found.append({"table": shown, **facts})
        elif each.outcome != "present":
            kind = "" if each.kind == "table" else f"{each.kind} "
            say(f"{each.outcome:<9} {kind}{shown}{f': {each.reason}' if each.reason else ''}")
    if json:
        print_json({**counts, "tables": found})
    else:
        would = "would be imported" if dry_run else "imported"
        say(f"{counts['imported']} {would}, {counts['present']} were here, "
            f"{counts['differs']} differ, {counts['failed']} failed")  # fmt: skip
    if counts["differs"] or counts["failed"]:
        raise Exit(EXIT_FAILED)


def gc(
    keep: Annotated[str, Option(metavar="TIME", help=f"How much history to keep, {DELAY_HELP}.")] = "30d",
    keep_versions: Annotated[int, Option(min=1, help="How many of the newest versions to keep, however old.")] = 100,
    grace: Annotated[str, Option(metavar="TIME", help="Keep every object that is younger than this.")] = "1h",
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Delete old history, and objects that no retained version needs. `limpet serve` does it every hour.

    Table data is never touched. A table that was dropped before the retained history can no longer be undropped.

    Example: keep a week of history
    $ limpet catalog gc --keep 7d -u s3://acme/prod
    Exit codes: 0 done; 1 no fleet there, or something in the chain is missing; 2 wrong usage.
    """
    from limpet.app.catalogs import storage_of
    from limpet.catalog.gc import collect

    kept, grace_s = timedelta(seconds=duration_s(keep)), duration_s(grace)
    fleet = fleet_of(url)
    with console(stderr=True).status("collecting"):
        storage = storage_of(fleet.store, fleet.runtime)
        done = collect(storage, _executions(fleet), keep=kept, keep_versions=keep_versions, grace_s=grace_s)
    ledger = done.ledger
    if json:
        facts = {"floor": done.floor, "history": done.history, "applied": ledger.applied, "dead": ledger.dead}
        print_json({**facts, "events": done.events, "faults": done.faults})
    else:
        say(
            f"deleted {many(done.history, 'commit record and snapshot', 'commit records and snapshots')}, "
            f"{many(ledger.applied, 'published batch', 'published batches')}, "
            f"{many(ledger.dead, 'batch that was never published', 'batches that were never published')}, "
            f"{many(done.events, 'merged file of events', 'merged files of events')}"
        )
        _tell_damage(done.faults)
    if done.faults:
        raise Exit(EXIT_FAILED)


def ls(url: CatalogUrlOption = None, json: JsonOption = False) -> None:
    """List the batches of events in quarantine, and why they are there. Changes nothing.

    Example:
    $ limpet catalog quarantine ls -u s3://acme/prod
    Exit codes: 0 listed; 1 no fleet there, or it cannot be read; 2 wrong usage.
    """
    from limpet.events.quarantine import quarantined

    fleet = fleet_of(url, read_only=True)
    found = [*quarantined(fleet.store, _executions(fleet).keys)]
    if json:
        print_json(found)
        return
    if not found:
        say("the quarantine is empty")
        return
    listed = table("id", "written", "bytes", "reason", right=["bytes"])
    for reason in found:
        listed.add_row(clean(reason.id), clean(reason.written_at), f"{reason.size:,}", clean(reason.reason))
    cli.show(listed)


def retry(
    ids: Annotated[
        list[str] | None, Argument(metavar="ID", show_default=False, help="Ids, as `quarantine ls` shows them.")
    ] = None,
    every: Annotated[bool, Option("--all", help="All batches in quarantine.")] = False,
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Read batches of events again, after an upgrade of limpet for example. Those that can be read leave quarantine.

    Example: one of them; then all
    $ limpet catalog quarantine retry 01m7hwq79qx90hmhn3y764bxst -u s3://acme/prod
    $ limpet catalog quarantine retry --all -u s3://acme/prod
    Exit codes: 0 all were read; 1 some still cannot be, and stay, or there is no such batch; 2 wrong usage.
    """
    from limpet.events.quarantine import quarantined
    from limpet.events.quarantine import retry as retry_one

    if bool(ids) is every:
        raise Invalid("name the ids, or say --all", hint="`limpet catalog quarantine ls` shows them")
    fleet = fleet_of(url)
    executions = _executions(fleet)
    wanted = [reason.id for reason in quarantined(fleet.store, executions.keys)] if every else [*(ids or ())]
    results: list[dict[str, Any]] = []
    for id_ in wanted:
        try:
            new = retry_one(fleet.store, executions.keys, id_, executions.fold)
            results.append({"id": id_, "events": new, "error": None})
        except Invalid as error:
            results.append({"id": id_, "events": 0, "error": str(error)})
    if json:
        print_json(results)
    else:
        for result in results:
            said = result["error"] or f"read: {many(result['events'], 'new event')}"
            say(f"{result['id']}  {said}")
    if any(result["error"] for result in results):
        raise Exit(EXIT_FAILED)


def _executions(fleet: Fleet) -> Executions:
    from limpet.app.catalogs import executions_of

    return executions_of(fleet.store, fleet.runtime)


# ---- maintenance of tables ----

SHOWN_MAX = 20


def _maintenance(table: str, separator: str, url: str | None, service: str | None, wait_s: float) -> TableMaintenance:
    namespace, name = identifier(table, separator)
    return fleet_of(url).maintain(namespace, name, through=writer_of(service), wait_s=wait_s)


def expire(
    table: TableArgument,
    max_age: Annotated[
        str | None,
        Option(
            metavar="AGE",
            show_default="the table's history.expire.max-snapshot-age-ms, or 5d",
            help=f"Keep younger snapshots, {DELAY_HELP}.",
        ),
    ] = None,
    min_snapshots: Annotated[
        int | None,
        Option(
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

    Example: keep a week, and at least ten snapshots
    $ limpet tables expire sales.orders --max-age 7d --min-snapshots 10 -u s3://acme/prod
    Exit codes: 0 done; 1 no such table, or another process leads the catalog; 2 wrong usage.
    """
    age = None if max_age is None else timedelta(seconds=duration_s(max_age))
    done = _maintenance(table, separator, url, service, wait).expire(
        max_age=age, min_snapshots=min_snapshots, dry_run=dry_run
    )
    verb = "would expire" if dry_run else "expired"
    refs = f", and the branches or tags {', '.join(done.refs)}" if done.refs else ""
    answer(done, f"{many(len(done.snapshots), 'snapshot')} of {table} {verb}{refs}; {done.kept:,} kept", json=json)


def compact(
    table: TableArgument,
    target_mib: Annotated[int, Option(min=1, max=1024, help="Size of the new files.")] = 64,
    min_files: Annotated[int, Option(min=2, help="Rewrite small files only where there are so many.")] = 5,
    dry_run: DryRunOption = False,
    service: ServiceOption = None,
    wait: WaitOption = 20.0,
    separator: SeparatorOption = ".",
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Rewrite small data files as large ones, and apply position deletes. The rows stay the same.

    Commits of others meanwhile are kept. The old files stay for older snapshots: expire those, then delete orphans.

    Example: files of about 128 MiB
    $ limpet tables compact sales.orders --target-mib 128 -u s3://acme/prod
    Exit codes: 0 done; 1 no such table, another process leads, or it cannot be rewritten; 2 wrong usage.
    """
    with console(stderr=True).status("compacting"):
        done = _maintenance(table, separator, url, service, wait).compact(
            target_bytes=target_mib << 20, min_files=min_files, dry_run=dry_run
        )
    verb, old, new = "would become" if dry_run else "became", many(done.files, "file"), many(done.new_files, "file")
    left = f"; {many(done.unreadable, 'file')} cannot be read here" if done.unreadable else ""
    answer(done, f"{old} of {table} ({size_text(done.bytes)}) {verb} {new}{left}", json=json)


def orphans(
    table: TableArgument,
    grace: Annotated[
        str,
        Option(metavar="TIME", help="Keep files that are younger, or were needed less than this time ago."),
    ] = "3d",
    quiesced: Annotated[
        bool, Option(help="No other process uses the table: allow a grace time under an hour.")
    ] = False,
    dry_run: DryRunOption = False,
    separator: SeparatorOption = ".",
    url: CatalogUrlOption = None,
    json: JsonOption = False,
) -> None:
    """Delete files in the table's folders that no snapshot needs and that are older than the grace time.

    These are the files of expired snapshots, and of writers that crashed. A commit under way keeps its files if
    it takes less than the grace time.

    Example: what would go; then delete it
    $ limpet tables orphans sales.orders --dry-run -u s3://acme/prod
    $ limpet tables orphans sales.orders --grace 7d -u s3://acme/prod
    Exit codes: 0 done; 1 no such table, or a part of it cannot be read (nothing is deleted); 2 wrong usage.
    """
    time = timedelta(seconds=duration_s(grace))
    done = _maintenance(table, separator, url, None, 0.0).remove_orphans(grace=time, quiesced=quiesced, dry_run=dry_run)
    if json:
        print_json(done)
        return
    for path in done.files[:SHOWN_MAX] if dry_run else ():
        cli.show(clean(path))
    if dry_run and len(done.files) > SHOWN_MAX:
        say(f"... and {len(done.files) - SHOWN_MAX:,} more; --json shows all")
    verb = "would go" if dry_run else "deleted"
    say(f"{many(len(done.files), 'file')} of {done.listed:,} ({size_text(done.bytes)}) {verb}")


quarantine = group(
    "quarantine",
    ls,
    retry,
    help="Look at events that could not be read, and have them read again.",
    epilog=lines("Example:", "$ limpet catalog quarantine ls -u s3://acme/prod"),
)
app = group(
    "catalog",
    "Look",
    log,
    show,
    verify,
    "Change",
    undrop,
    import_,
    gc,
    quarantine,
    epilog=lines(
        "Example: the last commits; the catalog as of version 41",
        "$ limpet catalog log -u s3://acme/prod",
        "$ limpet catalog show --at 41 -u s3://acme/prod",
    ),
)
tables = group(
    "tables",
    expire,
    compact,
    orphans,
    epilog=lines(
        "Example: what would expire; then do it, and free the space",
        "$ limpet tables expire sales.orders --dry-run -u s3://acme/prod",
        "$ limpet tables expire sales.orders -u s3://acme/prod",
        "$ limpet tables orphans sales.orders -u s3://acme/prod",
    ),
)

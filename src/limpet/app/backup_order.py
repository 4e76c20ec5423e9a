"""The order in which a fleet is copied, so that the copy is consistent while the fleet runs.

Data that moves is copied in the direction in which it moves, one step after the other; objects that refer to others are
copied before those. So an object that has moved before it was copied is found in a later step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from limpet.app.backup_decide import INDEX_ORDER, QUEUE_ORDER, REST, Entries, entry_at, kind_of
from limpet.app.backup_run import CopyRun, patiently, step_owners
from limpet.events import EXECUTIONS
from limpet.events.fold import EventHead
from limpet.index.storage import Manifest, shortened
from limpet.kernel import keys, records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing
from limpet.kernel.keys import Key
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.store.api import Blob, Stat
from limpet.kernel.store.directory.plain import WAREHOUSE

SETTLE_ROUNDS = 20
HEAD_BYTES_MAX = 64 << 20
CATALOG = "catalog"


def copy_fleet(run: CopyRun, *, data: bool) -> None:
    """Copy everything, in the order of `ORDER`."""
    source = run.source
    run.copy_below(keys.SYNC, "sync")
    for kind in QUEUE_ORDER:
        for queue in source.list_dirs(keys.QUEUES):
            run.copy_below(f"{keys.QUEUES}/{queue}/{kind}", kind)
    _follow_retries(run)
    _copy_steps(run)
    for index in source.list_dirs(keys.INDEXES):
        _copy_index(run, f"{keys.INDEXES}/{index}")
    for prefix in ("ledger/executions", "quarantine/executions"):  # before the files of the head, into which they move
        run.copy_below(prefix, "events")
    _copy_under_head(run, EXECUTIONS, [("state/executions", "folded")], _has_named_events)
    _copy_catalog(run, data=data)
    for prefix in ("cells", "sequence"):
        run.copy_below(prefix, "cell")
    run.copy_all((stat for stat in source.list() if kind_of(stat.key) in REST), "other")
    locks = [
        "locks",
        keys.SYNC,
        *(f"{keys.QUEUES}/{queue}/slots" for queue in source.list_dirs(keys.QUEUES)),
        *(f"{keys.INDEXES}/{index}/shards" for index in source.list_dirs(keys.INDEXES)),
    ]
    for prefix in locks:
        run.copy_below(prefix, "lock")


def _follow_retries(run: CopyRun) -> None:
    """Copy tasks that were created by a retry while the backup ran: receipts name them.

    A retry creates the new task before it marks the receipt, and pending/ was copied before failed/: a copied receipt
    may name a task that did not exist when pending/ was copied.
    Cost: for each such task 1 LIST and 2 HEADs.
    """
    done: set[str] = set()
    while waiting := [name for name in run.retried if name not in done]:
        for name in waiting:
            done.add(name)
            root, _, entry = name.rpartition("/")
            receipts = [f"{root}/{kind}/{entry}.json" for kind in ("failed", "completed")]
            if any(key in run.lines for key in receipts):
                continue
            run.copy_below(f"{root}/pending/{entry}", "pending")
            for key in receipts:
                with suppress(Missing, Invalid):
                    run.copy_all([_stat(run, key)], kind_of(key))


def _copy_steps(run: CopyRun) -> None:
    """Copy the recorded steps and signals of durable tasks, and what they refer to.

    A step is recorded after what it has pushed, and what it has pushed may have been made from the values of the steps
    before it. So steps are copied after the queues, and the entries that recorded pushes name are then followed through
    their queues once more, with their own steps, until all were followed.

    Steps are deleted after their task, or after the receipt of a failed one was marked as retried. So where the task or
    the receipt is unchanged after its steps were copied, none is missing. Where it has changed, the receipt is copied
    again, and the retry that it names, with its steps.
    Cost: 1 LIST per 1,000 steps, failed receipts, and entries of queues with durable tasks; 1 HEAD for each task that
    has moved meanwhile, and those lists again. While tasks that steps have pushed have not ended in the copy: 1 LIST
    per 1,000 objects of their queues.
    """
    followed: set[str] = set()
    _follow_retries(run)
    for queue in run.source.list_dirs(keys.QUEUES):
        run.copy_below(f"{keys.QUEUES}/{queue}/steps", "steps")
    for _ in range(SETTLE_ROUNDS):
        run.durable.update(step_owners(run.lines))
        run.read_names()
        moved = _moved(run) - followed
        pushed = _pushed(run) - followed
        if not moved and not pushed:
            return
        followed |= moved | pushed
        retried = {*run.retried}
        for root in {name.rpartition("/")[0] for name in moved}:
            run.copy_below(f"{root}/failed", "failed")
        for root, _, entry in (name.rpartition("/") for name in moved):
            with suppress(Missing, Invalid):
                run.copy_all([_stat(run, f"{root}/completed/{entry}.json")], "completed")
        _copy_entries(run, pushed, QUEUE_ORDER)
        _follow_retries(run)
        _copy_entries(run, pushed | (run.retried.keys() - retried), ["steps"])
    why = "it was pushed while the backup ran, as others before: pause its queue, or run the backup again"
    run.report.left_out |= dict.fromkeys(_pushed(run) - followed, why)


def _pushed(run: CopyRun) -> set[str]:
    entries = Entries.among(run.lines)
    return entries.needed(run.pushed) - entries.ended


def _copy_entries(run: CopyRun, names: Collection[str], kinds: Sequence[str]) -> None:
    """Copy the objects of these entries, by one listing a kind and queue."""
    for root in sorted({name.rpartition("/")[0] for name in names}):
        for kind in kinds:
            listed = run.source.list(f"{root}/{kind}")
            run.copy_all((stat for stat in listed if kind_of(stat.key) == kind and entry_at(stat.key) in names), kind)


def _moved(run: CopyRun) -> set[str]:
    """The durable tasks that were copied as waiting, and the tasks that were copied as failed, and are so no longer.

    A receipt does not say whether its task was durable, so all that were retried meanwhile count.
    """
    copied: dict[str, list[tuple[str, str]]] = {}
    for key in run.lines:
        match = re.fullmatch(r"(queues/[^/]+)/(?:pending/([^/]+)/tasks?\.jsonl?|failed/([^/]+?)(?:\.\d+)?\.json)", key)
        if match and (match[3] or f"{match[1]}/{match[2]}" in run.durable):
            copied.setdefault(f"{match[1]}/{'failed' if match[3] else 'pending'}", []).append(
                (key, match[2] or match[3])
            )
    moved: set[str] = set()
    for folder, found in copied.items():
        root, _, kind = folder.rpartition("/")
        now = {stat.key: stat.version for stat in run.source.list(folder)}
        for key, entry in found:
            if Key(key) not in now or (kind == "failed" and now[Key(key)] != run.lines[key].version):
                moved.add(f"{root}/{entry}")
    return moved


def _stat(run: CopyRun, key: str) -> Stat:
    """The source's entry for an object.   Raises: Missing; Invalid.   Cost: 1 HEAD."""
    return patiently(run.runtime, lambda: run.source.head(Key(key)))


def _blob(run: CopyRun, key: Key, size_max: int = RECORD_BYTES_MAX) -> Blob | None:
    """The source's object; None if it is missing, or is larger than it can be.   Cost: 1 GET."""
    with suppress(Missing, Corrupt):
        return patiently(run.runtime, lambda: run.source.get(key, size_max=size_max))
    return None


def _copy_index(run: CopyRun, root: str) -> None:
    """Copy one index: the progress of imports, then records in the direction in which they move, then the manifest.

    An index without a manifest at the start is still being created: its manifest is not copied.
    """
    has_manifest = _blob(run, Key(f"{root}/manifest.json")) is not None
    for kind in INDEX_ORDER:
        run.copy_below(f"{root}/{kind}", kind)
    if has_manifest:
        _settle_manifest(run, root)


def _settle_manifest(run: CopyRun, root: str) -> None:
    """Copy the manifest such that its record of each shard matches the copied shard.

    A shard that was folded after it was copied is copied again, with its waiting records, until the manifest matches.
    A shard that still differs then differs in the source too: it is being folded, or damaged.
    """
    key = Key(f"{root}/manifest.json")
    last: object = None
    for _ in range(SETTLE_ROUNDS):
        blob = _blob(run, key)
        if blob is None:
            run.copy_below(root, "manifest")
            return
        differ = _outdated(run, root, blob.data)
        state = [(shard, said, run.lines[shard].version) for shard, said in differ]
        if not differ or state == last:
            break
        last = state
        for shard, _ in differ:
            name = shard.rsplit("/", 1)[1].removesuffix(".usv")
            for kind in ("inbox", "packs", "shards", "inbox", "packs"):
                run.copy_below(f"{root}/{kind}" if kind == "shards" else f"{root}/{kind}/{name}", kind)
    assert blob is not None
    run.put(key, blob.version, blob.data)


def _outdated(run: CopyRun, root: str, manifest: bytes) -> list[tuple[str, object]]:
    """The copied shards that differ from the manifest, with its record; none if it cannot be read."""
    try:
        found = records.decode(manifest, Manifest, what=f"{root}/manifest.json")
    except Corrupt:
        return []
    differ: list[tuple[str, object]] = []
    for key, line in run.lines.items():
        match = re.fullmatch(re.escape(root) + "/shards/([0-9a-f]{1,4})[.]usv", key)
        said = found.count(match[1]) if match else None
        digest = shortened(bytes.fromhex(line.sha256))
        if said is not None and (line.size != said.size or (line.size and said.sum not in ("", digest))):
            differ.append((key, said))
    return differ


def _has_named_events(run: CopyRun) -> bool:
    events = CatalogKeys.of(EXECUTIONS)
    try:
        head = records.decode(run.target.get(events.head).data, EventHead, what=events.head)
    except LimpetError:
        return True
    return all(events.state(file.id) in run.lines for file in head.files)


def _copy_catalog(run: CopyRun, *, data: bool) -> None:
    """Copy the catalog. The head is read first and written last: in between, all its objects are copied."""
    named = [(f"{name}/{CATALOG}", "history") for name in ("commits", "snapshots", "ledger")]
    named += [(WAREHOUSE, "metadata"), *([(WAREHOUSE, "data")] if data else [])]
    _copy_under_head(run, CATALOG, named, _has_named_tables)
    own = [f"manifests/{domain}.json" for domain in (CATALOG, EXECUTIONS)]
    run.copy_all((stat for stat in run.source.list("manifests") if stat.key not in own), "head")


def _copy_under_head(
    run: CopyRun, domain: str, named: Sequence[tuple[str, str]], is_whole: Callable[[CopyRun], bool]
) -> None:
    """Copy the objects of a head, and then this version of the head.

    If some are missing then, they were collected or purged meanwhile, and a newer head does not need them: start again
    with that. If the head is still the same, they are missing in the source.
    """
    key = Key(f"manifests/{domain}.json")
    for _ in range(SETTLE_ROUNDS):
        blob = _blob(run, key, HEAD_BYTES_MAX)
        gone = run.report.vanished
        for prefix, kind in named:
            run.copy_below(prefix, kind)
        if blob is None:
            run.copy_all((stat for stat in run.source.list("manifests") if stat.key == key), "head")
            return
        run.put(key, blob.version, blob.data)
        if run.report.vanished == gone and is_whole(run):
            return
        with suppress(Missing):
            if _stat(run, key).version == blob.version:
                return


def _has_named_tables(run: CopyRun) -> bool:
    """Whether all objects of the copied head of the catalog are in the copy; True without the extra `catalog`.

    Cost: 1 GET a commit, in the target.
    """
    try:
        from limpet.app.catalogs import open_catalog, storage_of
        from limpet.catalog.names import Entry
    except ModuleNotFoundError:
        return True
    catalog = open_catalog(storage_of(run.target, run.runtime), "memory://copy")
    try:
        catalog.verify()
        loaded = catalog.view.now()
    except LimpetError:
        return False
    entries = [value for kind in "tv" for _, value in loaded.state.under(f"{kind}/")] if loaded else []
    return all(f"{WAREHOUSE}/{Entry.of(value).path}" in run.lines for value in entries)

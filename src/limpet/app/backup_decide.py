"""What a backup decides: pure functions, no store and no clock.

Which object is of which kind and copied when, whether a run may write to a target, what recorded steps refer to, and
which id and epoch a restored fleet has. docs/inside/decisions/0007-backup.md has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Invalid, LimpetError
from limpet.kernel.keys import QueueKeys, batch_of, entry_of, name_of_receipt, parts_of_scheduled
from limpet.kernel.records import Count, Digest, Instant, Name
from limpet.kernel.wording import an
from limpet.queue.entry import PushedStep, StepRecord

ORDER: tuple[tuple[str, str], ...] = (
    ("sync", r"sync/(?!supervisor\.lock).+"),
    ("scheduled", r"queues/[^/]+/scheduled/.+"),
    ("pending", r"queues/[^/]+/pending/.+"),
    ("failed", r"queues/[^/]+/failed/.+"),
    ("completed", r"queues/[^/]+/completed/.+"),
    ("steps", r"queues/[^/]+/steps/.+"),
    ("queue", r"queues/[^/]+/(?!slots/|bell\.json$).+"),
    ("imports", r"indexes/[^/]+/imports/.+"),
    ("inbox", r"indexes/[^/]+/inbox/.+"),
    ("packs", r"indexes/[^/]+/packs/.+"),
    ("shards", r"indexes/[^/]+/shards/[^/]+\.usv"),
    ("index", r"indexes/[^/]+/(?!manifest\.json$|shards/[^/]+\.lock$).+"),
    ("manifest", r"indexes/[^/]+/manifest\.json"),
    ("events", r"(?:ledger|quarantine)/executions/.+"),
    ("folded", r"state/executions/.+"),
    ("history", r"(?:ledger|commits|snapshots|state|quarantine)/[^/]+/.+"),
    ("metadata", r"warehouse/.+\.metadata\.json"),
    ("data", r"warehouse/.+"),
    ("head", r"manifests/.+\.json"),
    ("cell", r"(?:cells|sequence)/.+"),
    ("lock", r"locks/.+|queues/[^/]+/slots/.+|indexes/[^/]+/shards/[^/]+\.lock|sync/supervisor\.lock"),
    ("own", r"limpet\.json|backup\.json|backup/.+|clock/.+|probe/.+|workers/.+|queues/[^/]+/bell\.json"),
)
"""The kinds of objects, in the order in which they are copied; a key has the first kind that it matches. Locks come
last, after cells and heads, so that no fence in the copy is above the token of its lock. `own` is never copied."""

QUEUE_ORDER = ("scheduled", "pending", "failed", "completed")
INDEX_ORDER = ("imports", "inbox", "packs", "shards")
OTHER = "other"
REST = ("queue", "index", "history", OTHER)
"""Kinds that may be copied in any order, after those above."""

_KINDS = tuple((name, re.compile(pattern, re.DOTALL)) for name, pattern in ORDER)


def kind_of(key: str) -> str:
    """The kind of an object, by its key; `other` for an object that Limpet does not write."""
    return next((name for name, pattern in _KINDS if pattern.fullmatch(key)), OTHER)


class ListRef(msgspec.Struct, frozen=True, array_like=True):
    """A list of copied objects: the digest of the object that holds it, and how many lines that has."""

    sha256: Digest
    lines: Count


UNKNOWN_MAX = 1000


class BackupRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`backup.json`, a cell: which run wrote here last, and whether it has finished."""

    purpose: Literal["backup", "restore"]
    state: Literal["running", "finished"]
    run: Name
    source: Name
    """The URL of the source; for a restore, the run of the backup."""
    begun_at: Instant
    finished_at: Instant | None = None
    objects: Count = 0
    bytes: Count = 0
    with_data: bool = True
    left_out: Count = 0
    lists: Annotated[tuple[ListRef, ...], msgspec.Meta(max_length=8000)] = ()
    sha256: Name = ""
    """The digest of the concatenated digests of the lists."""
    fleet: Name | None = None
    """The id of the fleet that was copied. Limpet 0.1 does not know it, nor what follows."""
    epoch: Count = 0
    """The epoch of that fleet."""
    unknown: Annotated[tuple[Name, ...], msgspec.Meta(max_length=UNKNOWN_MAX)] = ()
    """Entries that recorded pushes name and that the fleet did not have, as `queues/QUEUE/ENTRY`."""


# ---- who may write to a target ----


def check_target(before: BackupRecord | None, wanted: BackupRecord, *, is_empty: bool, target_url: str) -> None:
    """Return if the run `wanted` may write to a target whose record is `before`.

    Only an empty target, or one of a run with the same purpose, source and fleet, is ever written to. A fleet with
    another id is another one, even at the same URL; one with a lower epoch is an old copy of what was backed up.
    Raises: Invalid.
    """
    if before is None and not is_empty:
        raise Invalid(
            f"{target_url} is not empty",
            hint="a backup or a restored fleet needs an empty target; name another folder or prefix",
        )
    if before is None:
        return
    if wanted.purpose == before.purpose == "restore" and before.state == "finished":
        raise Invalid(f"{target_url} was restored before", hint="it is a fleet now; name an empty target")
    if (before.purpose, before.source) != (wanted.purpose, wanted.source):
        raise Invalid(
            f"{target_url} holds {an(before.purpose)} of {before.source}, not of {wanted.source}",
            hint="name another target, or empty this one",
        )
    if before.fleet is not None and wanted.fleet is not None and before.fleet != wanted.fleet:
        raise Invalid(
            f"{target_url} holds a backup of fleet {before.fleet}, and {wanted.source} is fleet {wanted.fleet} now",
            hint="name another target for the new fleet; `limpet restore` brings the old one back",
        )
    if before.epoch > wanted.epoch:
        raise Invalid(
            f"{target_url} holds a backup of this fleet after a restore, and {wanted.source} is its state before",
            hint="back up the fleet that was restored, or name another target",
        )


def run_name(token: int, id_: str) -> str:
    """The name of the run that holds the target's lock with that token."""
    return f"{token:08d}-{id_}"


def token_of_run(run: str) -> int:
    """The token in the name of a run: a later run has a higher one. 0 for a run of Limpet 0.1."""
    match = re.match("([0-9]{8,})-", run)
    return int(match[1]) if match else 0


def older_lists(names: Iterable[str], run: str) -> Iterator[str]:
    """The lists, among all keys below `backup/`, of runs that began before `run`."""
    for key in names:
        match = re.fullmatch(r"backup/([^/]+)/[0-9]+\.jsonl", key)
        if match and token_of_run(match[1]) < token_of_run(run):
            yield key


# ---- which fleet a restored one is ----


def next_epoch(epoch: int, wall: datetime) -> int:
    """The epoch of a restored fleet: above that of the backup, and above that of every earlier restore of it.

    So it is not a count. Two restores of one backup, one after the other, must not have the same epoch: the second one
    knows nothing of the first, and only the clock tells them apart.
    """
    return max(epoch + 1, int(wall.timestamp()))


def keeps_id(found: BackupRecord, target_url: str, *, asked: bool) -> bool:
    """Whether a restored fleet goes on as the one that was backed up.

    It does where it was backed up from: that URL is empty, so the old one is gone. Elsewhere the old one may live, and
    two fleets with one id would take each other's nodes and backups; there an operator must ask for it.
    """
    return asked or found.source == target_url[: records.NAME_MAX]


# ---- entries of queues, and what they refer to ----


def entry_at(key: str) -> str | None:
    """The entry that an object of a queue belongs to, as `queues/QUEUE/ENTRY`; None for any other object."""
    match = re.fullmatch(r"(queues/[^/]+)/(scheduled|pending|failed|completed|steps)/(.+)", key, re.DOTALL)
    if match is None:
        return None
    root, kind, name = match.groups()
    if kind == "scheduled":
        push = parts_of_scheduled(key)
        return f"{root}/{push[1]}" if push else None
    if kind in ("pending", "steps"):
        return f"{root}/{name.partition('/')[0]}"
    part = batch_of(name_of_receipt(key))
    return f"{root}/{part[0] if part else name_of_receipt(key)}"


def superseded(names: Iterable[str]) -> list[str]:
    """The keys of entries whose receipt is among `names`: they were copied at different times. The receipt wins."""
    copied = [*names]
    ended = {
        (match[1], match[2])
        for key in copied
        if (match := re.fullmatch(r"(queues/[^/]+)/(?:completed|failed)/(.+)\.json", key))
    }
    pending = ((key, re.fullmatch(r"(queues/[^/]+)/pending/([^/]+)/.+", key)) for key in copied)
    return [key for key, match in pending if match and (match[1], match[2]) in ended]


@dataclass(frozen=True, slots=True)
class StepNames:
    """What a recorded step refers to. `gathers`: the ends of what earlier steps have pushed."""

    pushed: tuple[str, ...] = ()
    """Entries, as `queues/QUEUE/ENTRY`."""
    gathers: bool = False


def names_in_step(key: str, data: bytes) -> StepNames:
    """What a recorded step refers to; nothing if it cannot be read."""
    try:
        step = records.decode(data, StepRecord, what=key)
        if step.kind == "push":
            made = records.decode(bytes(step.value), PushedStep, what=key)
            names = [*made.entries, *([] if made.id is None else [entry_of(made.id)])]
            return StepNames(tuple(f"{QueueKeys.of(step.name).root}/{name}" for name in names))
        return StepNames(gathers=step.kind == "gather")
    except LimpetError:
        return StepNames()


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries that some objects belong to, as `queues/QUEUE/ENTRY`: those that wait, and those with a receipt."""

    waiting: frozenset[str]
    ended: frozenset[str]
    failed: frozenset[str]
    """Those with a receipt of a failed task, which may be retried with its steps; of a batch it may be one of many."""

    @staticmethod
    def among(names: Iterable[str]) -> Entries:
        """Those of the objects with these keys."""
        waiting, ended, failed = set(), set(), set()
        for key in names:
            entry = entry_at(key)
            kind = key.split("/", 3)[2] if entry is not None else ""
            if entry is None or kind == "steps":
                continue
            if kind == "scheduled" or key.endswith(("/task.json", "/tasks.jsonl")):
                waiting.add(entry)
            elif kind != "pending" and name_of_receipt(key) == entry.rpartition("/")[2]:
                ended.add(entry)
            if kind == "failed":
                failed.add(entry)
        return Entries(frozenset(waiting), frozenset(ended), frozenset(failed))

    def needed(self, pushed: Mapping[str, Collection[str]]) -> set[str]:
        """What recorded pushes name (by the entry that has recorded them), if that entry can go on."""
        owners = (self.waiting - self.ended) | self.failed
        return {name for owner in owners & pushed.keys() for name in pushed[owner]}

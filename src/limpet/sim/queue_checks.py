"""The queue's invariants, checked on what its users were told, what handlers ran, and what the bucket really did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from limpet.keys import Key, QueueKeys, is_minted
from limpet.lease import State
from limpet.queue import Policy, Result, Task
from limpet.queue.claim import EntryClaim
from limpet.queue.decide import attempts_of
from limpet.queue.names import batch_of, count_of, entry_of, is_batch, name_of_receipt
from limpet.queue.receipts import completion
from limpet.queue.records import EntryLease, Receipt
from limpet.sim.bucket import Bucket
from limpet.sim.nemesis import Knobs
from limpet.sim.world import Violation, World

__all__ = ["Books", "Push", "Run", "check_queue"]

BUDGET_BASE = 900
BUDGET_PER_TASK = 90


@dataclass(slots=True)
class Push:
    """A push, and what it was told; `ids` is empty while its outcome is unknown."""

    payloads: Sequence[Any]
    user_id: str | None
    delayed: bool
    ids: Sequence[str] = ()
    created: bool = True


@dataclass(slots=True)
class Run:
    """One start of a handler, and how it ended; "" if it never did."""

    at_s: float
    who: str
    id: str
    entry: str
    token: int
    attempt: int
    ended: str = ""
    ended_at_s: float = float("inf")
    acknowledged: bool = False
    settled: bool = False

    def end(self, world: World, how: str) -> None:
        """The handler returned, failed, or took its process with it."""
        self.ended, self.ended_at_s = how, world.now_s


@dataclass(slots=True)
class Books:
    """What the simulation knows beside the bucket."""

    pushes: list[Push] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    retries: list[str] = field(default_factory=list)
    told: dict[str, Result] = field(default_factory=dict)

    def tell(self, result: Result) -> None:
        """Somebody asked for a result. Once a task has completed, the answer stays the same."""
        before = self.told.setdefault(result.id, result) if result.state == "completed" else self.told.get(result.id)
        if before is not None and before != result:
            raise Violation(f"the result of {result.id} was {before}, and is now {result}")

    @contextmanager
    def pushing(self, world: World, payload: Any, id_: str | None, *, delayed: bool = False) -> Iterator[Push]:
        """A push is under way; it counts as acknowledged once `ids` is set."""
        push = Push(payload if isinstance(payload, list) else [payload], id_, delayed)
        self.pushes.append(push)
        yield push

    def started(self, world: World, who: str, task: Task, claim: EntryClaim) -> Run:
        """A handler starts."""
        run = Run(world.now_s, who, task.id, claim.entry, claim.token, task.attempt)
        self.runs.append(run)
        return run

    def settled(self, entry: str, token: int, who: str) -> None:
        """A claim's block ended without an error: its verdicts are durable."""
        for run in self.runs:
            if (run.entry, run.token, run.who) == (entry, token, who):
                run.settled = True

    def retried(self, ids: Sequence[str]) -> None:
        """These lives were begun."""
        self.retries.extend(ids)


def check_queue(world: World, knobs: Knobs, bucket: Bucket, keys: QueueKeys, books: Books, policy: Policy) -> None:
    """Every invariant of the queue.   Raises: Violation."""
    _nothing_is_left(bucket, keys)
    _one_place_each(bucket, keys)
    _nothing_is_lost(bucket, keys, books)
    _one_push_creates(books)
    _deletes_are_safe(bucket, keys)
    _completions_stay(bucket, keys)
    _results_stay(bucket, keys, books)
    _completed_means_done(bucket, keys, books)
    _one_winner_each(bucket, keys, books)
    _returned_means_completed(bucket, keys, books)
    _failed_means_failed(bucket, keys, books)
    _attempts_are_limited(bucket, keys, books, policy)
    _only_starts_are_charged(bucket, keys, books)
    _ended_tasks_do_not_start(bucket, keys, books)
    if not knobs.drift:
        _only_abandoned_entries_are_taken(bucket, keys, knobs)
        _no_renewal_past_the_time(bucket, books, policy)
    _requests_are_bounded(world, books)


def _below(bucket: Bucket, prefix: str) -> list[Key]:
    return sorted(key for key in bucket.objects if key.startswith(f"{prefix}/"))


def _receipt(bucket: Bucket, key: Key) -> Receipt | None:
    blob = bucket.objects.get(key)
    return msgspec.json.decode(blob.data, type=Receipt) if blob else None


def _nothing_is_left(bucket: Bucket, keys: QueueKeys) -> None:
    left = [*_below(bucket, keys.pending), *_below(bucket, keys.scheduled)]
    if left:
        raise Violation(f"after the sweep there is still {left[0]}")


def _one_place_each(bucket: Bucket, keys: QueueKeys) -> None:
    for key in _below(bucket, keys.failed):
        name = name_of_receipt(key)
        part = batch_of(name)
        if keys.completed_of(name) in bucket.objects:
            raise Violation(f"{name} is both failed and completed")
        whole = _receipt(bucket, keys.completed_of(part[0])) if part else None
        if part and whole is not None and part[1] not in whole.failed:
            raise Violation(f"{name} has failed, and its batch says that it completed")


def _where(bucket: Bucket, keys: QueueKeys, name: str) -> str:
    """Where a task ended up: `completed`, `failed`, or an empty string."""
    if keys.completed_of(name) in bucket.objects:
        return "completed"
    part = batch_of(name)
    whole = _receipt(bucket, keys.completed_of(part[0])) if part else None
    if whole is not None and part is not None and part[1] not in whole.failed:
        return "completed"
    if keys.failed_of(name) in bucket.objects:
        return "failed"
    return "failed" if part and keys.failed_of(part[0]) in bucket.objects else ""


def _nothing_is_lost(bucket: Bucket, keys: QueueKeys, books: Books) -> None:
    for id_ in [*(id_ for push in books.pushes for id_ in push.ids), *books.retries]:
        if not _where(bucket, keys, entry_of(id_)):
            raise Violation(f"the push of {id_} was acknowledged, and the task is nowhere")
        if (result := books.results.get(id_)) is not None and not result.ready:
            raise Violation(f"{id_} has ended, and result() says {result.state}")
    for key in _below(bucket, keys.failed):
        receipt = _receipt(bucket, key)
        if receipt is not None and receipt.retried_as and not _where(bucket, keys, entry_of(receipt.retried_as)):
            raise Violation(f"{receipt.id} was retried as {receipt.retried_as}, which is nowhere (H1)")


def _one_push_creates(books: Books) -> None:
    created = Counter(
        push.user_id for push in books.pushes if push.user_id and push.ids and push.created and not push.delayed
    )
    for id_, count in created.items():
        if count > 1:
            raise Violation(f"{count} pushes of {id_} were told that they created it")


def _deletes_are_safe(bucket: Bucket, keys: QueueKeys) -> None:
    """A task goes only when a receipt ends it; a lease only when its task is gone (F18, F20)."""
    present: dict[Key, bool] = {}
    for applied in bucket.journal:
        if applied.data is not None:
            present[applied.key] = applied.copy
            continue
        present.pop(applied.key, None)
        if not applied.key.startswith(f"{keys.pending}/"):
            continue
        entry, kind = applied.key.rsplit("/", 2)[1:]
        ended = keys.completed_of(entry) in present or keys.failed_of(entry) in present
        copied = [present[key] for batch in (False, True) if (key := keys.tasks(entry, batch=batch)) in present]
        if kind != "lease.json" and not ended:
            raise Violation(f"{applied.who} deleted {applied.key}, which no receipt ends")
        if kind == "lease.json" and copied and not ended:
            raise Violation(f"{applied.who} deleted {applied.key}, whose task waits: its tokens start again")
        if kind == "lease.json" and is_minted(entry) and not applied.copy and copied == [False]:
            raise Violation(f"{applied.who} deleted {applied.key} before its task: an ended task is claimable again")


def _completions_stay(bucket: Bucket, keys: QueueKeys) -> None:
    """The first finisher wins, for good."""
    completed = [applied for applied in bucket.journal if applied.key.startswith(f"{keys.completed}/")]
    first: dict[Key, str] = {}
    for applied in completed:
        if applied.data is None:
            raise Violation(f"{applied.who} deleted {applied.key}: a completion is undone")
        if applied.key in first:
            raise Violation(f"{applied.who} replaced {applied.key}, which {first[applied.key]} had written")
        first[applied.key] = applied.who


def _results_stay(bucket: Bucket, keys: QueueKeys, books: Books) -> None:
    """What is told of a completed task of a batch never changes, however late another worker finishes it."""
    receipts: dict[str, Receipt] = {}
    ended: set[str] = set()
    told: dict[str, Receipt] = {}
    for applied in bucket.journal:
        if applied.data is None or not applied.key.startswith((f"{keys.completed}/", f"{keys.failed}/")):
            continue
        name = name_of_receipt(applied.key)
        entry = (batch_of(name) or (name, 0))[0]
        if not is_batch(entry):
            continue
        if name == entry:
            ended.add(entry)
        if applied.key.startswith(f"{keys.completed}/"):
            receipts[name] = msgspec.json.decode(applied.data, type=Receipt)
        for n in range(count_of(entry)):
            own, id_ = receipts.get(f"{entry}.{n}"), f"{entry}.{n}"
            now = completion(n, whole=receipts.get(entry), own=own, ended=entry in ended)
            if id_ in told and now is not told[id_]:
                raise Violation(f"{applied.who} changed the result of {id_} by {applied.key}")
            if now is not None:
                told[id_] = now
    for id_, receipt in told.items():
        result = books.results.get(id_)
        if result is not None and result.finished_at != receipt.finished_at:
            raise Violation(f"result({id_}) is that of {result.worker}, and {receipt.label} was the first to finish it")


def _completed_means_done(bucket: Bucket, keys: QueueKeys, books: Books) -> None:
    """Nothing is completed whose handler never returned (H2)."""
    returned = {run.id for run in books.runs if run.ended == "returned"}
    for push in books.pushes:
        for id_ in push.ids:
            if _where(bucket, keys, entry_of(id_)) == "completed" and id_ not in returned:
                raise Violation(f"{id_} is completed, and its handler never returned")


def _one_winner_each(bucket: Bucket, keys: QueueKeys, books: Books) -> None:
    """One process a token; and tokens of a lease rise for as long as its entry lives."""
    holders: dict[tuple[str, int], Run] = {}
    for run in books.runs:
        first = holders.setdefault((run.entry, run.token), run)
        if first.who != run.who and not _ended_before(bucket, keys, run.entry, run.at_s):
            raise Violation(f"token {run.token} of {run.entry} was won by {first.who} and by {run.who}")
    starts: dict[tuple[str, int, int], Run] = {}
    for run in books.runs:
        first = starts.setdefault((run.id, run.token, run.attempt), run)
        if first is not run and not _ended_before(bucket, keys, run.entry, run.at_s):
            raise Violation(f"attempt {run.attempt} of {run.id} was started by {first.who} and by {run.who}")


def _ended_before(bucket: Bucket, keys: QueueKeys, entry: str, at_s: float) -> bool:
    """Whether the entry had a receipt by then: late copies of its task may run again, which at least once allows."""
    receipts = {keys.completed_of(entry), keys.failed_of(entry)}
    return any(applied.key in receipts and applied.at_s <= at_s for applied in bucket.journal)


def _returned_means_completed(bucket: Bucket, keys: QueueKeys, books: Books) -> None:
    """Work that a handler finished, and whose worker lived to say so, is never thrown away (H4)."""
    for run in books.runs:
        single = batch_of(run.id) is None
        heard = run.acknowledged and (single or run.settled)
        if run.ended == "returned" and heard and _where(bucket, keys, entry_of(run.id)) != "completed":
            raise Violation(f"{run.who} finished {run.id} (token {run.token}), and it is not completed")


def _failed_means_failed(bucket: Bucket, keys: QueueKeys, books: Books) -> None:
    """Nothing in failed/ whose handler never failed or died (H3)."""
    named = _named_running(bucket, keys)
    troubled = {run.id for run in books.runs if run.ended != "returned" or not run.acknowledged}
    for key in _below(bucket, keys.failed):
        receipt = _receipt(bucket, key)
        assert receipt is not None
        if receipt.state != "cancelled" and receipt.id not in troubled and name_of_receipt(key) not in named:
            raise Violation(f"{receipt.id} is in failed/ ({receipt.error}), and its handler never failed or died")


def _named_running(bucket: Bucket, keys: QueueKeys) -> set[str]:
    """Tasks that were named running by a swap whose holder then lost the entry without a verdict."""
    named: set[str] = set()
    last: dict[Key, EntryLease] = {}
    for applied in bucket.journal:
        if not applied.key.endswith("/lease.json") or applied.data is None:
            continue
        record = msgspec.json.decode(applied.data, type=EntryLease)
        before = last.get(applied.key)
        if before is not None and before.running is not None and record.token > before.token:
            batch = keys.tasks(before.name, batch=True) in {a.key for a in bucket.journal}
            named.add(f"{before.name}.{before.running}" if batch else before.name)
        last[applied.key] = record
    return named


def _attempts_are_limited(bucket: Bucket, keys: QueueKeys, books: Books, policy: Policy) -> None:
    for run in books.runs:
        if run.attempt > policy.max_attempts:
            raise Violation(f"{run.id} was started as attempt {run.attempt} of {policy.max_attempts}")
    tokens: dict[str, set[int]] = {}
    for run in books.runs:
        if run.ended in ("failed", "died") and not _ended_before(bucket, keys, run.entry, run.at_s):
            tokens.setdefault(run.id, set()).add(run.token)
    for id_, seen in tokens.items():
        counted = seen if policy.max_attempts == 1 else seen - {1}  # a first claim that dies charges nobody
        if len(counted) > policy.max_attempts:
            raise Violation(
                f"{id_} failed or died under {len(seen)} tokens; {policy.max_attempts} attempts are allowed"
            )


def _only_starts_are_charged(bucket: Bucket, keys: QueueKeys, books: Books) -> None:
    """A task has as many attempts as it had starts, at most: neighbours of a killer are not charged (H3).

    A swap that names a task running counts as a start: the process may have died just before the handler.
    """
    starts: dict[str, set[int]] = {}
    for run in books.runs:
        starts.setdefault(entry_of(run.id), set()).add(run.token)
    for applied in bucket.journal:
        if not applied.key.endswith("/lease.json") or applied.data is None:
            continue
        record = msgspec.json.decode(applied.data, type=EntryLease)
        if record.running is not None:
            name = f"{record.name}.{record.running}" if is_batch(record.name) else record.name
            starts.setdefault(name, set()).add(record.token)
        for n in range(count_of(record.name)):
            name = f"{record.name}.{n}" if is_batch(record.name) else record.name
            if attempts_of(record, n) > len(starts.get(name, ())):
                raise Violation(
                    f"{applied.who} wrote {attempts_of(record, n)} attempts of {name}, which was started "
                    f"{len(starts.get(name, ()))} times"
                )


def _ended_tasks_do_not_start(bucket: Bucket, keys: QueueKeys, books: Books) -> None:
    """An entry with a user's id, or taken over, is looked up in failed/ and completed/ before it runs (H5)."""
    claims = {
        (_entry(applied.key), msgspec.json.decode(applied.data, type=EntryLease).token): applied.at_s
        for applied in reversed(bucket.journal)
        if applied.key.endswith("/lease.json") and applied.data is not None
    }
    for run in books.runs:
        if is_minted(run.entry) and run.token == 1:
            continue
        claimed_at_s = claims.get((run.entry, run.token), run.at_s)
        if _ended_before(bucket, keys, run.entry, claimed_at_s):
            raise Violation(f"{run.who} started {run.id} (token {run.token}), which had ended before it was claimed")


def _entry(key: str) -> str:
    return key.rsplit("/", 2)[1]


def _only_abandoned_entries_are_taken(bucket: Bucket, keys: QueueKeys, knobs: Knobs) -> None:
    last: dict[Key, tuple[float, EntryLease]] = {}
    for applied in bucket.journal:
        if not applied.key.endswith("/lease.json"):
            continue
        if applied.data is None:
            last.pop(applied.key, None)
            continue
        record = msgspec.json.decode(applied.data, type=EntryLease)
        at_s, before = last.get(applied.key, (applied.at_s, record))
        if record.token < before.token:
            raise Violation(f"{applied.key}: token {record.token} follows {before.token}")
        rested_s = applied.at_s - at_s
        wanted_s = before.ttl_s if before.state is State.HELD else before.wait_s - 1
        early = record.token > before.token and rested_s < wanted_s and knobs.sane_clocks
        if early and not _ended_before(bucket, keys, _entry(applied.key), applied.at_s):
            raise Violation(
                f"{applied.key}: {record.worker_id} took it {rested_s:.2f} s after {before.worker_id} wrote "
                f"{before.state.value}, not {wanted_s:g} s"
            )
        last[applied.key] = (applied.at_s, record)


def _no_renewal_past_the_time(bucket: Bucket, books: Books, policy: Policy) -> None:
    """A worker that hangs in a handler does not keep the entry for ever (F16)."""
    if policy.timeout_s is None:
        return
    starts: dict[tuple[str, str, int], list[Run]] = {}
    for run in books.runs:
        starts.setdefault((run.who, run.entry, run.token), []).append(run)
    written: set[str] = set()
    for sent in bucket.sent:
        again = sent.write_id in written
        written.add(sent.write_id)
        if sent.step != "lease.renew" or again or not sent.direct:
            continue
        for run in starts.get((sent.who, _entry(sent.key), sent.token), ()):
            if run.at_s + policy.timeout_s + 1 < sent.at_s < run.ended_at_s:
                raise Violation(f"{sent.who} renewed {sent.key} {sent.at_s - run.at_s:.1f} s after {run.id} began")


def _requests_are_bounded(world: World, books: Books) -> None:
    tasks = sum(len(push.payloads) for push in books.pushes) + len(books.retries)
    if world.calls > BUDGET_BASE + BUDGET_PER_TASK * tasks:
        raise Violation(f"{world.calls} requests for {tasks} tasks")

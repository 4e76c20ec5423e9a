"""Bugs planted in the queue: COUNTEREXAMPLES.md H1 to H7, FAILURES.md rows, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["QUEUE_BUGS"]


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str], scenario: str = "queue") -> Bug:
    return Bug(name, row, seed, tuple(Change(f"queue.{where}", old, new) for where, old, new in changes), scenario)


QUEUE_BUGS = [
    _bug(
        "retry swaps the receipt first",
        "H1",
        766,
        ("_retry", 'self._pusher.place(f"{entry}{RETRY_MARK}{life}", task)', ""),
        (
            "_retry",
            "self._storage.receipt(key).attempt(seen, retried)",
            'self._storage.receipt(key).attempt(seen, retried)\nself._pusher.place(f"{entry}{RETRY_MARK}{life}", task)',
        ),
    ),
    _bug(
        "a batch's receipt does not list its failed tasks",
        "H2",
        0,
        ("batch_receipt", "failed=record.failed", "failed=[]"),
    ),
    _bug(
        "every claim charges every task",
        "H3, attempts per entry",
        1,
        ("claimed", "waits=waits or {}", "waits=waits or {},\ncharged=record.charged + 1"),
    ),
    _bug(
        "the first claim charges the only attempt",
        "H3",
        1,
        ("claimed", "charged=0", "charged=1"),
        ("must_charge", "return record.token > 1 or policy.max_attempts == 1", "return record.token > 1"),
    ),
    _bug(
        "a first claim that dies charges every task of its batch",
        "H3",
        2,
        ("claimed", "charged=0", "charged=0 if policy.max_attempts == 1 else 1"),
        ("EntryClaim.__iter__", "attempts_of(self._lease.record, n) + 1", "1"),
    ),
    _bug(
        "what a first claim has started is not charged by its end",
        "attempts are written with the next swap",
        0,
        ("progressed", "attempts={**record.attempts, **started},", ""),
        scenario="queue/test_attempts.py::test_every_handler_that_raises_costs_one_attempt",
    ),
    _bug(
        "finished work is dropped on a lost lease",
        "H4",
        6,
        (
            "EntryClaim.done",
            "data = None if result is None else msgspec.Raw(result_bytes(result))",
            "data = None if result is None else msgspec.Raw(result_bytes(result))\n"
            "if not self._still_ours():\n"
            "    return",
        ),
    ),
    _bug(
        "a batch's finished tasks are dropped on a lost lease",
        "H4",
        192,
        (
            "_complete_late",
            "for n in tasks:\n    data = result",
            "for n in [] if self.batch else tasks:\n    data = result",
        ),
    ),
    _bug(
        "a claim of a user's id does not look for receipts",
        "H5",
        2310,
        ("_open", "holding.token > 1 or not content.minted or", "holding.token > 1 or"),
    ),
    _bug(
        "a takeover does not look for receipts",
        "H5",
        2,
        ("_open", "holding.token > 1 or not content.minted or", "not content.minted or"),
    ),
    _bug(
        "completed is looked up before failed",
        "H6, receipts in the wrong order",
        0,
        (
            "Storage.ended",
            "self.exists(self.keys.failed_of(entry)) or self.exists(self.keys.completed_of(entry))",
            "self.exists(self.keys.completed_of(entry)) or self.exists(self.keys.failed_of(entry))",
        ),
        scenario="queue/test_push.py::test_h6_a_receipt_that_moves_is_not_missed",
    ),
    _bug(
        "receipts are checked before the put",
        "H5, receipts checked before the put",
        18,
        (
            "place",
            "if not self._put_resolved(key, data, write_id=task.write_id):\n    return False",
            "if not is_minted(entry) and self._storage.ended(entry):\n"
            "    return False\n"
            "return self._put_resolved(key, data, write_id=task.write_id)",
        ),
        ("_open", "holding.token > 1 or not content.minted or", "holding.token > 1 or"),
    ),
    _bug(
        "a nack moves the payload",
        "payload moved on nack",
        0,
        (
            "EntryClaim._let_go",
            "def _let_go(self) -> None:",
            "def _let_go(self) -> None:\n"
            "    key = self._storage.keys.tasks(self.entry, batch=self.batch)\n"
            "    blob = self._storage.store.get(key)\n"
            "    self._storage.store.delete(key)\n"
            "    self._storage.store.put(key, blob.data)",
        ),
    ),
    _bug(
        "a hung worker is renewed for ever",
        "F16",
        16,
        ("EntryClaim.renew", "self._runtime.elapsed_s() - self._started_s <= limit_s:", "limit_s:"),
    ),
    _bug(
        "a task that kills its process is not charged",
        "F19",
        0,
        (
            "_charge",
            "self._lease.rewrite(lambda record: charged(self._written(record), n))",
            "self._lease.rewrite(self._written)",
        ),
    ),
    _bug(
        "a failed delete is taken for a success",
        "F20",
        10,
        (
            "Storage.close",
            "self.store.delete(self.keys.tasks(entry, batch=batch))",
            "self.store.delete_many([self.keys.tasks(entry, batch=batch)])",
        ),
    ),
    _bug(
        "a listed entry without a lease is taken by a plain put",
        "F8, F21, F22",
        0,
        (
            "_take",
            "match cell.attempt(seen, record):",
            "if seen is None:\n    self._store.delete(cell.key)\nmatch cell.attempt(seen, record):",
        ),
    ),
    _bug(
        "a lease is taken without looking at its age",
        "F24",
        2,
        ("claimable", "return Ready(take=isinstance(step, Take), finish=False", "return Ready(take=True, finish=False"),
    ),
    _bug(
        "the lease goes before the task",
        "the order of an end",
        0,
        (
            "Storage.close",
            "self.store.delete(self.keys.tasks(entry, batch=batch))\nself.drop_lease(entry)",
            "self.drop_lease(entry)\nself.store.delete(self.keys.tasks(entry, batch=batch))",
        ),
    ),
    _bug(
        "the task goes before the receipt",
        "F18",
        0,
        (
            "_write_end",
            "key = self._storage.keys.completed_of(self.entry)",
            "key = self._storage.keys.completed_of(self.entry)\n"
            "self._storage.store.delete(self._storage.keys.tasks(self.entry, batch=False))",
        ),
    ),
    _bug(
        "a delayed push is removed before it is pending",
        "the order of a promotion",
        1,
        (
            "_place_scheduled",
            "task = read_task(self._store.get(key).data, what=key)",
            "task = read_task(self._store.get(key).data, what=key)\nself._store.delete(key)",
        ),
    ),
    _bug(
        "a batch whose push was not answered counts as pushed",
        "F3",
        1,
        (
            "Pusher.push_many",
            "if isinstance(answer, Conflict | OutcomeUnknown):",
            "if isinstance(answer, OutcomeUnknown):\n    pass\nelif isinstance(answer, Conflict):",
        ),
    ),
    _bug(
        "a claim that could not be settled is renewed for ever",
        "found by the simulation",
        140,
        ("EntryClaim.__exit__", "finally:\n    self._end()", "finally:\n    pass"),
    ),
    _bug(
        "a failure that could not be written down is forgotten",
        "found by the simulation",
        0,
        ("EntryClaim._let_go", "and n not in self._spent}", "}"),
        scenario="queue/test_attempts.py::test_a_failure_that_could_not_be_written_down_costs_its_attempt",
    ),
    _bug(
        "hand-back keeps the attempt",
        "hand-back restores the attempt",
        0,
        ("decide.handed_back", "max(0, attempts_of(record, n) - 1) for n", "attempts_of(record, n) for n"),
    ),
    _bug(
        "a later finisher overwrites the receipt",
        "first finisher wins",
        87,
        (
            "write_receipt",
            "outcome = self.receipt(key).attempt(None, receipt)",
            "outcome = self.receipt(key).attempt(self.receipt(key).read(), receipt)",
        ),
    ),
    _bug(
        "rest is counted from the claim, not from the nack",
        "waits restart",
        115,
        ("claimable", "at = modified + timedelta(seconds=record.wait_s)", "at = modified"),
    ),
    _bug(
        "a batch task's own receipt counts before its batch has ended",
        "first finisher wins in a batch",
        108,
        ("completion", "return own if ended else None", "return own"),
        ("completion", "own if own is not None and n in whole.own else whole", "whole"),
    ),
    _bug(
        "a later finisher's own receipt beats the batch's",
        "first finisher wins in a batch",
        2873,
        (
            "completion",
            "if whole is not None and lists_done(whole, n):",
            "if own is None and whole is not None and lists_done(whole, n):",
        ),
        ("_complete_late", "if whole is None or not lists_done(whole, n)]", "if n >= 0]"),
        ("Inspection.completed", "if whole is None or n in whole.own or not lists_done(whole, n):", "if n >= 0:"),
    ),
    _bug(
        "of several claims only the first is renewed",
        "planted from outside",
        0,
        ("Renewer._tick", "for claim in due:", "for claim in due[:1]:"),
        scenario="queue/test_renewer.py::test_every_claim_that_is_due_is_renewed_in_the_same_tick",
    ),
    _bug(
        "receipts are kept by the wall clock",
        "planted from outside",
        0,
        (
            "Sweeper.retain",
            "before = self._store.now(max_age_s=BUSY_S) - timedelta(seconds=self._policy.retention_s)",
            "before = self._runtime.wall() - timedelta(seconds=self._policy.retention_s)",
        ),
        scenario="queue/test_sweep.py::test_retention_does_not_look_at_the_wall_clock",
    ),
    _bug(
        "a delay is rounded down",
        "planted from outside",
        0,
        ("Pusher._schedule", "timedelta(seconds=delay_s + 1)", "timedelta(seconds=delay_s)"),
        scenario="queue/test_push.py::test_a_delay_is_never_cut_short",
    ),
]

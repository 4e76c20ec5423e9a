"""Bugs planted in the queue: COUNTEREXAMPLES.md H1 to H7, FAILURES.md rows, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["QUEUE_BUGS"]


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str], scenario: str = "queue") -> Bug:
    return Bug(
        name, row, seed, tuple(Change(f"limpet.queue.{module}", old, new) for module, old, new in changes), scenario
    )


QUEUE_BUGS = [
    _bug(
        "retry swaps the receipt first",
        "H1",
        766,
        (
            "admin",
            '        self._pusher.place(f"{entry}{RETRY_MARK}{life}", task)\n',
            "",
        ),
        (
            "admin",
            "        self._storage.receipt(key).attempt(seen, retried)\n",
            "        self._storage.receipt(key).attempt(seen, retried)\n"
            '        self._pusher.place(f"{entry}{RETRY_MARK}{life}", task)\n',
        ),
    ),
    _bug(
        "a batch's receipt does not list its failed tasks",
        "H2",
        0,
        ("receipts", "        failed=record.failed,\n", "        failed=[],\n"),
    ),
    _bug(
        "every claim charges every task",
        "H3, attempts per entry",
        1,
        (
            "decide",
            "            waits=waits or {},\n",
            "            waits=waits or {},\n            charged=record.charged + 1,\n",
        ),
    ),
    _bug(
        "the first claim charges the only attempt",
        "H3",
        1,
        ("decide", "        charged=0,\n", "        charged=1,\n"),
        (
            "decide",
            "    return record.token > 1 or policy.max_attempts == 1\n",
            "    return record.token > 1\n",
        ),
    ),
    _bug(
        "a first claim that dies charges every task of its batch",
        "H3",
        2,
        ("decide", "        charged=0,\n", "        charged=0 if policy.max_attempts == 1 else 1,\n"),
        ("claim", "attempts_of(self._holding.record, n) + 1\n", "1\n"),
    ),
    _bug(
        "what a first claim has started is not charged by its end",
        "attempts are written with the next swap",
        0,
        ("decide", "        attempts={**record.attempts, **started},\n", ""),
        scenario="queue/test_attempts.py::test_every_handler_that_raises_costs_one_attempt",
    ),
    _bug(
        "finished work is dropped on a lost lease",
        "H4",
        6,
        (
            "claim",
            "        data = None if result is None else msgspec.Raw(result_bytes(result))\n",
            "        data = None if result is None else msgspec.Raw(result_bytes(result))\n"
            "        if not self._still_ours():\n            return\n",
        ),
    ),
    _bug(
        "a batch's finished tasks are dropped on a lost lease",
        "H4",
        192,
        (
            "claim",
            "        for n in tasks:\n            data = result",
            "        for n in [] if self.batch else tasks:\n            data = result",
        ),
    ),
    _bug(
        "a claim of a user's id does not look for receipts",
        "H5",
        2310,
        ("queue", "holding.token > 1 or not content.minted or", "holding.token > 1 or"),
    ),
    _bug(
        "a takeover does not look for receipts",
        "H5",
        2,
        ("queue", "holding.token > 1 or not content.minted or", "not content.minted or"),
    ),
    _bug(
        "completed is looked up before failed",
        "H6, receipts in the wrong order",
        0,
        (
            "storage",
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
            "push",
            "        if not self._settle(key, data, write_id=task.write_id):\n            return False\n",
            "        if not is_minted(entry) and self._storage.ended(entry):\n            return False\n"
            "        return self._settle(key, data, write_id=task.write_id)\n",
        ),
        ("queue", "holding.token > 1 or not content.minted or", "holding.token > 1 or"),
    ),
    _bug(
        "a nack moves the payload",
        "payload moved on nack",
        0,
        (
            "claim",
            "    def _let_go(self) -> None:\n",
            "    def _let_go(self) -> None:\n"
            "        key = self._storage.keys.tasks(self.entry, batch=self.batch)\n"
            "        blob = self._storage.store.get(key)\n"
            "        self._storage.store.delete(key)\n"
            "        self._storage.store.put(key, blob.data)\n",
        ),
    ),
    _bug(
        "a hung worker is renewed for ever",
        "F16",
        16,
        (
            "claim",
            "self._runtime.elapsed_s() - self._started_s <= limit_s:\n",
            "limit_s:\n",
        ),
    ),
    _bug(
        "a task that kills its process is not charged",
        "F19",
        0,
        (
            "claim",
            "                self._holding.rewrite(lambda record: charged(self._written(record), n))\n",
            "                self._holding.rewrite(self._written)\n",
        ),
    ),
    _bug(
        "a failed delete is taken for a success",
        "F20",
        10,
        (
            "storage",
            "            self.store.delete(self.keys.tasks(entry, batch=batch))\n",
            "            self.store.delete_many([self.keys.tasks(entry, batch=batch)])\n",
        ),
    ),
    _bug(
        "a listed entry without a lease is taken by a plain put",
        "F8, F21, F22",
        0,
        (
            "queue",
            "        match cell.attempt(seen, record):\n",
            "        if seen is None:\n            self._store.delete(cell.key)\n"
            "        match cell.attempt(seen, record):\n",
        ),
    ),
    _bug(
        "a lease is taken without looking at its age",
        "F24",
        2,
        (
            "decide",
            "    return Ready(take=isinstance(step, Take), finish=False",
            "    return Ready(take=True, finish=False",
        ),
    ),
    _bug(
        "the lease goes before the task",
        "the order of an end",
        0,
        (
            "storage",
            "            self.store.delete(self.keys.tasks(entry, batch=batch))\n            self.drop_lease(entry)\n",
            "            self.drop_lease(entry)\n            self.store.delete(self.keys.tasks(entry, batch=batch))\n",
        ),
    ),
    _bug(
        "the task goes before the receipt",
        "F18",
        0,
        (
            "claim",
            "                key = self._storage.keys.completed_of(self.entry)\n",
            "                key = self._storage.keys.completed_of(self.entry)\n"
            "                self._storage.store.delete(self._storage.keys.tasks(self.entry, batch=False))\n",
        ),
    ),
    _bug(
        "a delayed push is removed before it is pending",
        "the order of a promotion",
        1,
        (
            "push",
            "            task = read_task(self._store.get(key).data, what=key)\n",
            "            task = read_task(self._store.get(key).data, what=key)\n            self._store.delete(key)\n",
        ),
    ),
    _bug(
        "a batch whose push was not answered counts as pushed",
        "F3",
        1,
        (
            "push",
            "                if isinstance(answer, Conflict | OutcomeUnknown):\n",
            "                if isinstance(answer, OutcomeUnknown):\n                    pass\n"
            "                elif isinstance(answer, Conflict):\n",
        ),
    ),
    _bug(
        "a claim that could not be settled is renewed for ever",
        "found by the simulation",
        140,
        (
            "claim",
            "            self._settle()\n        finally:\n            self._end()\n",
            "            self._settle()\n        finally:\n            pass\n",
        ),
    ),
    _bug(
        "a failure that could not be written down is forgotten",
        "found by the simulation",
        0,
        ("claim", " and n not in self._spent}", "}"),
        scenario="queue/test_attempts.py::test_a_failure_that_could_not_be_written_down_costs_its_attempt",
    ),
    _bug(
        "hand-back keeps the attempt",
        "hand-back restores the attempt",
        0,
        ("decide", "max(0, attempts_of(record, n) - 1) for n", "attempts_of(record, n) for n"),
    ),
    _bug(
        "a later finisher overwrites the receipt",
        "first finisher wins",
        87,
        (
            "storage",
            "            outcome = self.receipt(key).attempt(None, receipt)\n",
            "            outcome = self.receipt(key).attempt(self.receipt(key).read(), receipt)\n",
        ),
    ),
    _bug(
        "rest is counted from the claim, not from the nack",
        "waits restart",
        115,
        ("decide", "        at = modified + timedelta(seconds=record.wait_s)\n", "        at = modified\n"),
    ),
    _bug(
        "a batch task's own receipt counts before its batch has ended",
        "first finisher wins in a batch",
        108,
        ("receipts", "    return own if ended else None\n", "    return own\n"),
        ("receipts", "own if own is not None and n in whole.own else whole", "whole"),
    ),
    _bug(
        "a later finisher's own receipt beats the batch's",
        "first finisher wins in a batch",
        2873,
        (
            "receipts",
            "    if whole is not None and lists_done(whole, n):\n",
            "    if own is None and whole is not None and lists_done(whole, n):\n",
        ),
        ("claim", "if whole is None or not lists_done(whole, n)]", "if n >= 0]"),
        ("look", "if whole is None or n in whole.own or not lists_done(whole, n):", "if n >= 0:"),
    ),
    _bug(
        "of several claims only the first is renewed",
        "planted from outside",
        0,
        ("heart", "        for claim in due:\n", "        for claim in due[:1]:\n"),
        scenario="queue/test_heart.py::test_every_claim_that_is_due_is_renewed_in_the_same_tick",
    ),
    _bug(
        "receipts are kept by the wall clock",
        "planted from outside",
        0,
        (
            "sweep",
            "        before = self._store.now(max_age_s=BUSY_S) - timedelta(seconds=self._policy.retention_s)\n",
            "        before = self._runtime.wall() - timedelta(seconds=self._policy.retention_s)\n",
        ),
        scenario="queue/test_sweep.py::test_retention_does_not_look_at_the_wall_clock",
    ),
    _bug(
        "a delay is rounded down",
        "planted from outside",
        0,
        ("push", "timedelta(seconds=delay_s + 1)\n", "timedelta(seconds=delay_s)\n"),
        scenario="queue/test_push.py::test_a_delay_is_never_cut_short",
    ),
]

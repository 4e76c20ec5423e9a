"""Bugs planted in the queue: COUNTEREXAMPLES.md H1 to H7, FAILURES.md rows, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["QUEUE_BUGS"]


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str], scenario: str = "queue") -> Bug:
    return Bug(name, row, seed, tuple(Change(f"queue.{where}", old, new) for where, old, new in changes), scenario)


def _far(name: str, row: str, seed: int, *changes: tuple[str, str, str]) -> Bug:
    return Bug(name, row, seed, tuple(Change(*change) for change in changes), "queue_far")


QUEUE_BUGS = [
    _bug(
        "retry swaps the receipt first",
        "H1",
        64,
        (
            "Admin._retry",
            "task = self._place_retry(key, seen, number, tag, from_scratch=from_scratch)\nif task is None:\n    tag =",
            "name_ = retry_name(first_name(receipt.id), number, tag)\n"
            'first = msgspec.structs.replace(receipt, state="retried", retried_as=name_)\n'
            "self._storage.receipt(key).attempt(seen, first)\n"
            "task = self._place_retry(key, seen, number, tag, from_scratch=from_scratch)\nif task is None:\n    tag =",
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
        ("EntryClaim._start", "attempts_of(self._lease.record, n) + 1", "1"),
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
        193,
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
        22,
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
            "    key = self.storage.keys.tasks(self.entry, batch=self.batch)\n"
            "    blob = self.storage.store.get(key)\n"
            "    self.storage.store.delete(key)\n"
            "    self.storage.store.put(key, blob.data)",
        ),
    ),
    _bug(
        "a hung worker is renewed for ever",
        "F16",
        16,
        ("EntryClaim.renew", "self._runtime.elapsed_s() - self._running_since_s() <= limit_s:", "limit_s:"),
    ),
    _bug(
        "a task that kills its process is not charged",
        "F19",
        0,
        (
            "_charge",
            "self._lease.rewrite(lambda record: charged(self._written(record), starts.tasks))",
            "self._lease.rewrite(self._written)",
        ),
    ),
    _bug(
        "a failed delete is taken for a success",
        "F20",
        10,
        (
            "Storage.close",
            "self.store.delete_in_order(keys)",
            "self.store.delete_many(keys)",
        ),
    ),
    _bug(
        "a listed entry without a lease is taken by a plain put",
        "F8, F21, F22",
        0,
        (
            "_take",
            "outcome = cell.attempt(seen, record)",
            "if seen is None:\n    self._store.delete(cell.key)\noutcome = cell.attempt(seen, record)",
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
        ("Storage.close", "self.store.delete_in_order(keys)", "self.store.delete_in_order(keys[::-1])"),
    ),
    _bug(
        "the task goes before the receipt",
        "F18",
        0,
        (
            "_write_end",
            "parts = [] if result else record.parts",
            "parts = [] if result else record.parts\n"
            "self.storage.store.delete(self.storage.keys.tasks(self.entry, batch=False))",
        ),
    ),
    _bug(
        "a delayed push is removed before it is pending",
        "the order of a promotion",
        35,
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
            "Pusher._put_group",
            "if isinstance(answer, Conflict | OutcomeUnknown):",
            "if isinstance(answer, OutcomeUnknown):\n    pass\nelif isinstance(answer, Conflict):",
        ),
    ),
    _bug(
        "a claim that could not be settled is renewed for ever",
        "found by the simulation",
        113,
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
        11,
        ("decide.handed_back", "max(0, attempts_of(record, n) - 1) for n", "attempts_of(record, n) for n"),
    ),
    _bug(
        "a later finisher overwrites the receipt",
        "first finisher wins",
        63,
        (
            "write_receipt",
            "outcome = self.receipt(key).attempt(None, receipt)",
            "outcome = self.receipt(key).attempt(self.receipt(key).read(), receipt)",
        ),
    ),
    _bug(
        "rest is counted from the claim, not from the nack",
        "waits restart",
        40,
        ("claimable", "at = modified + timedelta(seconds=record.wait_s)", "at = modified"),
    ),
    _bug(
        "a batch task's own receipt counts before its batch has ended",
        "first finisher wins in a batch",
        15,
        ("completion", "return own if ended else None", "return own"),
        ("completion", "own if own is not None and n in whole.own else whole", "whole"),
    ),
    _bug(
        "a later finisher's own receipt beats the batch's",
        "first finisher wins in a batch",
        2015,
        (
            "completion",
            "if whole is not None and lists_done(whole, n):",
            "if own is None and whole is not None and lists_done(whole, n):",
        ),
        ("_complete_late", "if whole is None or not lists_done(whole, n)]", "if n >= 0]"),
        ("Inspection._completed", "if whole is None or n in whole.own or not lists_done(whole, n):", "if n >= 0:"),
    ),
    _bug(
        "receipts are kept by the wall clock",
        "planted from outside",
        0,
        (
            "Sweeper.retain",
            "before = self._store.now(max_age_s=BUSY_S) - timedelta(seconds=self._policy.kept_s)",
            "before = self._runtime.wall() - timedelta(seconds=self._policy.kept_s)",
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
    _bug(
        "what a later claim has done shows before its batch ends",
        "a completed task's result never changes",
        0,
        ("first_done", "record.done if record.token == 1 else record.done[: record.settled]", "record.done"),
        scenario="queue/test_results.py::test_a_zombie_cannot_change_what_was_shown",
    ),
    _bug(
        "a takeover forgets what the first claim has done",
        "a completed task's result never changes",
        0,
        ("claimed", "settled=len(first_done(record))", "settled=0"),
        scenario="queue/test_results.py::test_what_the_first_claim_has_done_stays_done",
    ),
    _bug(
        "tasks that wait are charged with the one that starts",
        "only a task that was started is charged",
        0,
        ("_charge", "starts.tasks))", "[*starts.tasks, *self._waiting]))"),
        scenario="queue/test_spread.py::test_each_task_that_runs_is_named_in_the_lease_and_charged_and_no_other",
    ),
    _bug(
        "suspects run at once",
        "poison is isolated",
        13,
        ("decide.may_start", "return n not in suspects and not any(m in suspects for m in running)", "return True"),
    ),
    _bug(
        "only one of the tasks that ran beside each other is a suspect",
        "poison is isolated",
        658,
        ("_died", "_named_in(record))", "_named_in(record)[:1])"),
    ),
    _bug(
        "a verdict clears no suspicion",
        "the rest of a batch is spread",
        0,
        ("_named", "suspects = _without_verdict(record, record.suspects)", "suspects = record.suspects"),
        scenario="queue/test_spread.py::test_a_suspect_stays_one_until_it_has_a_verdict",
    ),
    _bug(
        "the verdict of one thread is lost when another ends the batch",
        "a handler that returned counts",
        0,
        ("EntryClaim.done", "ended = self._ended", "ended = False"),
        scenario="queue/test_spread.py::test_a_verdict_that_comes_while_another_thread_ends_the_claim_counts",
    ),
    _bug(
        "a task that runs beside another is handed back without its attempt",
        "hand-back restores the attempt",
        0,
        ("decide.handed_back", "if n in started or n in _named_in(record)", "if n == record.running"),
        scenario="queue/test_spread.py::test_handing_back_restores_the_attempts_of_all_that_run",
    ),
    _bug(
        "a young task keeps the claim of one that hangs",
        "F16",
        0,
        ("_running_since_s", "return min(self._running.values(), default=self._started_s)", "return self._started_s"),
        scenario="queue/test_spread.py::test_one_task_past_its_time_ends_the_claim_though_others_are_young",
    ),
    Bug(
        "the first thread to leave a claim ends it",
        "a thread does not end what others run",
        0,
        (Change("worker.SharedClaim.leave", "last = self._runners == {runner}", "last = True"),),
        "queue/test_worker_threads.py::test_stop_lets_all_that_run_end_and_gives_the_rest_back",
    ),
    _far(
        "a task that was read long before its claim is trusted",
        "H9",
        57,
        ("queue.BucketQueue._take", "self._runtime.elapsed_s() - sent_at_s > FRESH_S or ", ""),
    ),
    _bug(
        "a task that was read long before its claim is trusted, in the plain scenario",
        "H9",
        37,
        ("BucketQueue._take", "self._runtime.elapsed_s() - sent_at_s > FRESH_S or ", ""),
    ),
    _far(
        "a lease goes together with its task",
        "H9",
        703,
        ("queue.Closer._delete_tasks", "self._runtime.elapsed_s() + LINGER_S", "self._runtime.elapsed_s()"),
    ),
    _far(
        "leases are deleted before their tasks, in bulk",
        "the order of an end",
        10,
        ("queue.Closer.add", "self._tasks[entry] = batch", "self._tasks[entry] = batch\nself._leases[entry] = 0.0"),
    ),
    _far(
        "a bulk delete that failed in part counts as done",
        "F20",
        5,
        ("queue.Closer._delete_tasks", "if errors[key] is None:", "if key in errors:"),
    ),
    _far(
        "a claim ahead is not handed back",
        "a stop returns what was not started",
        0,
        ("worker.Worker._ahead", "self._give_back(runner, claim)", "pass"),
    ),
    _far(
        "the bell rings before the task is there",
        "a push wakes an idle worker",
        1,
        (
            "Pusher.push",
            "created = self.place(entry, task, fresh=fresh and entry == name)\nif created:\n    self._storage.ring()",
            "self._storage.ring()\ncreated = self.place(entry, task, fresh=fresh and entry == name)",
        ),
    ),
    _far(
        "a ring is used up by a look that fails",
        "a push wakes an idle worker",
        0,
        ("queue.Bell.listing", "self.expect(due_s)", "self._listed_at_s = at_s"),
        ("queue.BucketQueue._try_claim", "self._note_find()\nraise", "raise"),
    ),
    Bug(
        "a ring that failed counts as one",
        "a push wakes an idle worker",
        0,
        (Change("queue.Bell.ring", "self._rung_at_s = rung_before_s", "self._rung_at_s = at_s"),),
        "queue/test_bell.py::test_a_ring_that_failed_is_none",
    ),
    Bug(
        "a page without a free entry is all that there is",
        "what waits runs",
        0,
        (Change("queue.BucketQueue._look", "self.storage.bell.expect(self._next_page.due_s)", "pass"),),
        "queue/test_bell.py::test_a_page_of_a_long_backlog_without_a_free_entry_is_soon_followed_by_another",
    ),
    Bug(
        "a page shows what another thread is claiming",
        "threads of one process do not contend",
        0,
        (Change("queue.Discovery._show", "others = {*self._tried, *ended}", "others: set[str] = set()"),),
        "queue/test_discovery.py::test_a_page_leaves_out_what_another_thread_is_claiming",
    ),
    Bug(
        "a burst ends when one look finds nothing",
        "a burst leaves no task that can be claimed",
        0,
        (Change("worker.Worker._wait_for_all", "last=quiet", "last=False"),),
        "queue/test_crowded.py::test_a_burst_ends_only_after_a_look_at_all_of_the_backlog",
    ),
    _far(
        "the closer is lost on stop",
        "a stop leaves no ended entry behind",
        0,
        ("worker.Worker._run_thread", "job.queue.flush()", "pass"),
    ),
    _far(
        "a task that fails while it is handed back runs again",
        "found by the simulation of a worker",
        423,
        (
            "queue.EntryClaim.fail",
            "with self._writing:\n    if self._ended:\n        return\n    self._write_receipt(n, receipt)",
            "if not self._ended:\n    self._write_receipt(n, receipt)",
        ),
    ),
    Bug(
        "an adopted task is known by its id alone",
        "A1, found by use",
        0,
        (Change("queue.adopt.verdict", "others = kept.keys() - same", "same, others = {*kept}, {*()}"),),
        "queue/test_queue_adopt.py::test_two_folders_with_the_same_id_lose_neither_task",
    ),
    Bug(
        "an adopted receipt ends a task of ours with another payload",
        "A1, the same in the other direction",
        0,
        (Change("queue.adopt.verdict", '"other" if others else "write"', '"write"'),),
        "queue/test_queue_adopt.py::test_an_original_whose_id_is_used_here_for_another_payload_stays",
    ),
    Bug(
        "what lies at the name of a receipt does not count in place",
        "a bad file ends no task",
        0,
        (Change("queue.adopt.Adopter._kept", 'elif waits and where != "pending":', "elif not kept and not places:"),),
        "queue/test_queue_adopt.py::test_in_place_bad_files_stay_and_end_nothing",
    ),
    Bug(
        "in place, a lease of the other program stays",
        "a worker rejects what it cannot read",
        0,
        (Change("queue.adopt.Adopter._replace_task", "if task.file.lease is not None:", "if not task.file.name:"),),
        "queue/test_queue_adopt.py::test_in_place_every_task_is_taken_over_once",
    ),
    Bug(
        "a worker rejects tasks of another program",
        "F4, found by use",
        0,
        (Change("queue.finish.reject_entry", "except ForeignTask:\n    raise\n", ""),),
        "queue/test_queue_adopt.py::test_a_task_of_another_program_with_a_lease_that_nobody_can_read_is_not_rejected",
    ),
]

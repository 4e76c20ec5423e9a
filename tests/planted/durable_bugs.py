"""Bugs planted in durable tasks: the list of the plan, and what else could go wrong with records and suspensions."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["DURABLE_BUGS"]


def _bug(
    name: str, row: str, seed: int, *changes: tuple[str, str, str], scenario: str = "durable", room: str = "queue"
) -> Bug:
    return Bug(name, row, seed, tuple(Change(f"{room}.{where}", old, new) for where, old, new in changes), scenario)


DURABLE_BUGS = [
    _bug(
        "a retry does not copy the signals",
        "signals: a retry sees them",
        2,
        ("Admin._copy_steps", "for key in self._storage.signals_of(old, n):", "for key in ():"),
    ),
    _bug(
        "a signal to a task that has just failed is acknowledged",
        "signals: a retry sees them",
        0,
        (
            "Admin.signal",
            "if storage.exists(self._keys.failed_of(task_name(entry, n, batch=part is not None))):",
            "if False:",
        ),
        scenario="queue/test_durable.py::test_a_signal_to_a_task_that_fails_meanwhile_is_refused",
    ),
    _bug(
        "an id of many tasks is used for another number of tasks",
        "push_many: once per id",
        0,
        ("decide.other_shape", "(first.tasks, first.sha256) != (shape.tasks, shape.sha256)", "False"),
    ),
    _bug(
        "the entries of a push of many tasks are put before its shape",
        "push_many: once per id",
        1,
        ("Pusher.push_many", "if packs:\n    self._agree(id, name, [*map(len, packs)])", "pass"),
        (
            "Pusher.push_many",
            "return [made[n] for n in range(len(packs))]",
            "if id is not None and packs:\n"
            "    self._agree(id, str(name), [*map(len, packs)])\n"
            "return [made[n] for n in range(len(packs))]",
        ),
    ),
    _bug(
        "an entry that rests is left out of the pages for ever",
        "resting: until it is due",
        0,
        (
            "decide.is_left_out",
            "over = at_s >= rest.due_s or (rest.at is not None and now >= rest.at)",
            "over = False",
        ),
    ),
    _bug(
        "an entry that rests is left out though its lease has changed",
        "resting: while its lease is the same",
        0,
        ("decide.is_left_out", "if rest.version != version:", "if False:"),
        scenario="queue/test_crowded.py::test_an_entry_whose_lease_changes_is_seen_before_it_would_be_due",
    ),
    _bug(
        "every unknown lease of a page is read before the tasks that wait",
        "resting: the claims of others",
        0,
        (
            "BucketQueue._look",
            "if page is not None and not page.newest:\n    self._learn()",
            "while self._learn():\n    pass",
        ),
        scenario="queue/test_crowded.py::test_a_new_process_reads_each_lease_once_and_few_before_the_tasks_that_wait",
    ),
    _bug(
        "no page is of what was pushed last",
        "resting: the claims of others",
        0,
        ("Discovery._wants_newest", "if not self.crowded or", "if True or"),
        scenario="queue/test_crowded.py::test_a_new_task_is_found_with_few_listings_among_many_that_rest",
    ),
    _bug(
        "an attempt uses its own result, though another was recorded first",
        "steps: result recorded after use",
        3140,
        (
            "steps.step",
            'found = steps.record(number, "step", called, data, began_at=began_at, sha256=sha256)',
            'found = steps.record(number, "step", called, data, began_at=began_at, sha256=sha256)\nreturn value',
        ),
    ),
    _bug(
        "the last record of a step counts",
        "steps: last writer wins",
        271,
        (
            "steps._agreed",
            "claim.storage.put_first(cell, record, confirm=claim.check_held)",
            "cell.attempt(cell.read(), record)",
        ),
    ),
    _bug(
        "steps are removed before the receipt",
        "steps: removed before the receipt",
        0,
        (
            "EntryClaim._write_end",
            "if self._outlived():",
            "if self._durable():\n    self.storage.drop_steps(self.entry)\nif self._outlived():",
        ),
    ),
    _bug(
        "a suspension charges an attempt",
        "suspension: no attempt",
        0,
        ("EntryClaim.suspend", "self._progress.attempts[n] = max(0, self._attempts(n) - 1)", ""),
    ),
    _bug(
        "a gather waits for a failed task for ever",
        "gather: a failed task has ended",
        2,
        ("durable.has_ended", 'state in ("completed", "failed", "cancelled")', 'state == "completed"'),
    ),
    _bug(
        "a gather returns before all have ended",
        "gather: exactly the ends",
        0,
        ("durable.has_ended", 'state in ("completed", "failed", "cancelled")', 'state != "scheduled"'),
        ("TaskSteps._ends", "if in_time and keys and self._claim.storage.exists(keys[0]):", "if False:"),
    ),
    _bug(
        "a push of a durable task has no derived name",
        "pushes: made once",
        3,
        (
            "Pusher.push",
            "entry = check_id(id) if id is not None else name",
            "entry = check_id(id) if id is not None else None",
        ),
    ),
    _bug(
        "the batches of a durable task have no derived names",
        "pushes: made once",
        3,
        (
            "TaskSteps.push",
            "name = pushed_name(self._claim.origin(self._n), number)",
            "name = self._claim.storage.runtime.new_id()",
        ),
    ),
    _bug(
        "the number of a step depends on what was recorded meanwhile",
        "steps: numbered in the order of the calls",
        0,
        ("TaskSteps.take", "number = self._next", "number = max(self._next, len(self._log or ()))"),
    ),
    _bug(
        "a later claim numbers its steps otherwise",
        "steps: a zombie's step has the same number",
        0,
        ("TaskSteps.take", "number = self._next", "number = 2 * self._next + self._claim.token % 2"),
    ),
    _bug(
        "a later claim does not read the recorded steps",
        "steps: never run again",
        0,
        (
            "durable.may_have_begun",
            "token > 1 or bool(content.life or content.origin)",
            "bool(content.life or content.origin)",
        ),
    ),
    _bug(
        "a retry does not read the steps that it keeps",
        "retry: keeps the steps",
        2,
        ("durable.may_have_begun", "token > 1 or bool(content.life or content.origin)", "token > 1"),
    ),
    _bug(
        "a retry does not copy the steps",
        "retry: keeps the steps",
        2,
        ("Admin._place_retry", "keeps and", "False and"),
    ),
    _bug(
        "a retry names its pushes after its own life",
        "retry: pushes are found done",
        0,
        (
            "durable.origin_of",
            "f\"{keys.root}/{name}@{(content.life or content.write_id).partition('.')[0]}\"",
            'f"{keys.root}/{name}@{content.write_id}"',
        ),
        scenario="queue/test_durable.py::test_a_retry_keeps_the_recorded_steps_and_the_names_of_its_pushes",
    ),
    _bug(
        "a sweep removes the steps of tasks that wait",
        "sweep: only what has ended",
        11,
        ("durable.orphaned", "return set() if waits else", "return"),
    ),
    _bug(
        "a sweep removes the steps of failed tasks",
        "sweep: only what has ended",
        4,
        ("durable.orphaned", "{n for n in tasks if n not in failed}", "{*tasks}"),
    ),
    _bug(
        "steps that a zombie recorded are left behind",
        "sweep: no steps are left",
        402,
        (
            "Sweeper.sweep",
            "gone += self._drop_steps(stats, min(before, self._store.now() - timedelta(seconds=GRACE_S)))",
            "pass",
        ),
    ),
    _bug(
        "a sweep removes what was sent to a delayed task",
        "sweep: only what has ended",
        13,
        ("Sweeper._drop_steps", "or any(self._keys_of_scheduled(entry))", ""),
    ),
    _bug(
        "a sweep removes the copy of a retry's steps before the retry is pushed",
        "sweep: only what has ended",
        0,
        ("Sweeper.sweep", "min(before, self._store.now() - timedelta(seconds=GRACE_S))", "before"),
        scenario="queue/test_durable.py::test_a_sweep_between_the_copy_of_the_steps_and_the_retry_keeps_the_copy",
    ),
    _bug(
        "the steps of a task whose retry died are left behind",
        "sweep: no steps are left",
        0,
        ("Sweeper._failed_tasks", 'seen.value.state in ("failed", "cancelled")', "True"),
        scenario="queue/test_durable.py::"
        "test_the_steps_of_a_task_whose_retry_died_are_swept_and_those_of_its_next_life_are_not",
    ),
    _bug(
        "a retry of one task removes the steps of its whole batch",
        "retry: keeps the steps",
        20,
        (
            "Admin._drop_steps",
            "if part is None or not self._storage.exists(self._keys.tasks(part[0], batch=True)):\n"
            "    self._storage.drop_steps_of(*part or (name, 0))",
            "self._storage.drop_steps((part or (name, 0))[0])",
        ),
    ),
    _bug(
        "a retry copies the steps of the first task of its batch",
        "retry: keeps the steps",
        20,
        ("Admin._copy_steps", "old, n = batch_of(name) or (name, 0)", "old, n = (batch_of(name) or (name, 0))[0], 0"),
    ),
    _bug(
        "a retry keeps the number that its task had in the batch for its signals",
        "signals: a retry sees them",
        171,
        (
            "Admin._copy_steps",
            'Key(f"{self._keys.signals_of(entry)}/0.{key.removeprefix(before)}")',
            'Key(f"{self._keys.signals_of(entry)}/{n}.{key.removeprefix(before)}")',
        ),
    ),
    _bug(
        "the end of a batch removes the steps of its failed tasks",
        "retry: keeps the steps",
        20,
        ("EntryClaim._close", "keep=failed", "keep=()"),
    ),
    _bug(
        "a sleep begins again with each attempt",
        "sleep: counts from its first record",
        2,
        (
            "durable.left_s",
            "return step.value.wait_s - (now - step.modified).total_seconds()",
            "return step.value.wait_s",
        ),
    ),
    _bug(
        "a lease has no room for what its suspended tasks wait for",
        "suspension: whatever the tasks wait for",
        75,
        ("decide.fitted", "if sum(sizes.values()) <= room:", "if True:"),
        ("EntryClaim._free", "bare(change(record))", "change(record)"),
    ),
    _bug(
        "a suspension that is too large for its lease is not cut",
        "suspension: whatever the tasks wait for",
        0,
        ("EntryClaim._free", "bare(change(record))", "change(record)"),
        scenario="queue/test_batch.py::"
        "test_a_swap_that_is_refused_as_too_large_is_made_without_what_the_tasks_wait_for",
    ),
    _bug(
        "a sleep counts by the clock of the worker",
        "sleep: no worker's clock counts",
        13,
        (
            "TaskSteps._left_s",
            "left_before(self._claim.suspended_before.get(self._n), number, self._claim.held_s)",
            "step.value.wait_s - (self.wall() - step.value.at).total_seconds()",
        ),
    ),
    _bug(
        "a suspended task rests by the clock of the worker",
        "sleep: no worker's clock counts",
        7,
        ("decide.claimable", "take=at <= now", "take=(record.not_before or at) <= wall"),
        ("decide.now_for", "return watched if ours else max(now, watched)", "return now"),
        (
            "TaskSteps._left_s",
            "left_before(self._claim.suspended_before.get(self._n), number, self._claim.held_s)",
            "step.value.wait_s - (self.wall() - step.value.at).total_seconds()",
        ),
    ),
    _bug(
        "a suspended task rests for longer when the clock of the store was set back",
        "sleep: ends in time",
        7,
        ("decide.now_for", "return watched if ours else max(now, watched)", "return now"),
    ),
    _bug(
        "a sleep begins again when its claim cannot see how old its record is",
        "sleep: ends in time",
        0,
        ("durable.left_before", "return before.due_s - held_s", "return None"),
        scenario="queue/test_durable.py::test_a_sleep_ends_in_time_though_the_clock_of_the_store_was_set_back",
    ),
    _bug(
        "a signal is not looked for",
        "signal: a task that waits finds it",
        0,
        ("durable.looks", "or (each.due_s is not None and each.due_s <= since_s)", ""),
        ("BucketQueue._is_there", "any(self._has_come(entry, look) for look in signals.values())", "False"),
        ("durable.woken", "if record.state is not State.FREE or each is None or each.signal != signal:", "if True:"),
    ),
    _bug(
        "the timeout of a wait is not recorded",
        "steps: all attempts agree",
        14,
        (
            "TaskSteps.wait_signal",
            'found = self.record(number, "signal", name, records.encode(step), began_at=began_at)',
            "return _json(step.value) if step.came else default",
        ),
    ),
    _bug(
        "the ends of a gather are not recorded",
        "steps: all attempts agree",
        0,
        (
            "TaskSteps.gather",
            'found = self.record(number, "gather", name, gathered_bytes(results, digest), began_at=began_at)',
            "return results",
        ),
        scenario="queue/test_durable.py::test_the_ends_of_a_gather_stay_when_a_task_is_retried_later",
    ),
    _bug(
        "a cancelled batch loses the steps of its failed tasks",
        "retry: keeps the steps",
        0,
        ("finish.finish_cancelled", "steps=drops, keep=failed", "steps=batch and bool(durable)"),
        scenario="queue/test_durable.py::test_a_cancelled_batch_keeps_the_steps_of_its_failed_tasks",
    ),
    _bug(
        "a retry of a task whose lease was unreadable looks for no steps",
        "retry: keeps the steps",
        0,
        ("finish._fail_all", "origin_of(storage.keys, entry, n, content, batch=batch)", "None"),
        scenario="queue/test_durable.py::test_a_retry_keeps_the_steps_of_a_task_whose_lease_could_not_be_read",
    ),
    _bug(
        "a task that becomes pending while a sweep looks for it loses its signals",
        "sweep: only what has ended",
        0,
        ("Sweeper._drop_steps", "waits = waits or self._storage.exists(task)", ""),
        scenario="queue/test_durable.py::test_what_becomes_pending_while_it_is_looked_for_is_found",
    ),
    _bug(
        "the steps of a failed task outlast its receipt",
        "steps: of one task",
        0,
        ("Sweeper.retain", "if failures:", "if False:"),
        scenario="queue/test_durable.py::test_steps_of_a_failed_task_go_with_its_receipt",
    ),
    _bug(
        "an id that is used again derives the same names",
        "pushes: made once",
        0,
        (
            "durable.origin_of",
            "f\"{keys.root}/{name}@{(content.life or content.write_id).partition('.')[0]}\"",
            'f"{keys.root}/{name}"',
        ),
        scenario="queue/test_durable.py::test_an_id_that_is_used_again_after_its_receipt_pushes_anew",
    ),
    _bug(
        "a handler that catches its suspension goes on",
        "suspension: nothing follows",
        0,
        (
            "TaskSteps._to_suspend",
            "self.suspended = self.suspended or Suspend(wait_s, suspension)\nreturn self.suspended",
            "return Suspend(wait_s, suspension)",
        ),
        scenario="queue/test_durable.py::test_a_handler_that_catches_its_suspension_is_suspended_all_the_same",
    ),
    _bug(
        "coroutines beside the handler's own number their steps as they come",
        "steps: numbered in the order of the calls",
        0,
        ("TaskSteps._check_own", "if coroutine is None or coroutine is not self.main:", "if False:"),
        scenario="queue/test_durable.py::test_a_loop_of_a_plain_handler_has_one_coroutine_with_steps",
    ),
    _bug(
        "threads beside the handler's own number their steps as they come",
        "steps: numbered in the order of the calls",
        5,
        ("TaskSteps._check_own", "if self._runtime.thread() != self._thread:", "if False:"),
    ),
    _bug(
        "a step is another one's, whose arguments differ",
        "steps: of one program",
        3,
        ("durable.is_other", "return None not in (record.sha256, sha256) and record.sha256 != sha256", "return False"),
    ),
    _bug(
        "a worker that slept until its task had ended gets the value that it alone recorded",
        "steps: all attempts agree",
        0,
        ("TaskSteps._agreed", "claim.check_held()", "pass"),
        scenario="queue/test_durable.py"
        "::test_a_worker_that_slept_until_its_task_had_ended_gets_no_value_that_nobody_else_saw",
    ),
    _bug(
        "a worker that slept past its lease does not look whose it is",
        "steps: all attempts agree",
        0,
        (
            "HeldLease.check_held",
            "if seen is None or not self._is_of_this_claim(seen.value) or seen.value.state is not State.HELD:",
            "if seen is None:",
        ),
        room="lease",
        scenario="queue/test_durable.py::test_a_worker_whose_entry_another_one_has_taken_gets_no_value",
    ),
    _bug(
        "a value that cannot be recorded is retried",
        "steps: what has run is not run again",
        0,
        ("steps._final", "raise Fail(one_line(call.error)) from call.error", "raise call.error"),
        scenario="queue/test_durable.py::test_a_value_that_cannot_be_recorded_is_final",
    ),
    _bug(
        "a suspension leaves steps half-way",
        "suspension: steps that have begun are recorded",
        0,
        ("runner._watched", "reason = await _all_done(steps.under_way, over)", "reason = None"),
        room="worker",
        scenario="queue/test_durable.py::test_a_step_that_has_begun_is_recorded_before_the_task_is_suspended",
    ),
    _bug(
        "a run leaves coroutines in the loop",
        "runs: end with their loop",
        0,
        ("EventLoop.run", "self._wind_up(self._runner)", "pass"),
        room="worker",
        scenario="queue/test_worker_threads.py::test_a_run_ends_all_that_it_made_before_its_verdict",
    ),
    _bug(
        "what is no Exception leaves the call of a user's code",
        "runs: whatever leaves user code is a verdict",
        0,
        (
            "UserCall.__exit__",
            "return True",
            "return error is None or isinstance(error, (Exception, KeyboardInterrupt, SystemExit))",
        ),
        room="user_code",
        scenario="queue/test_worker_parts.py::test_whatever_leaves_the_users_code_is_a_verdict",
    ),
    _bug(
        "a gather gives the ends of its tasks to others",
        "gather: exactly the ends",
        0,
        ("TaskSteps.gather", "or gathered.sha256 not in (None, digest)", ""),
        scenario="queue/test_durable.py::test_a_gather_must_ask_for_the_same_tasks_in_the_same_order",
    ),
    _bug(
        "what another life has recorded counts",
        "lives: rule 1",
        222,
        ("entry.is_of", "recorded is None or recorded == life", "True"),
        scenario="lives",
    ),
    _bug(
        "a worker of an earlier life replaces a step without asking for its lease",
        "lives: rule 1",
        0,
        ("Storage.put_first", "confirm()", ""),
        scenario="queue/test_lives.py::test_a_worker_of_an_earlier_life_replaces_nothing",
    ),
    Bug(
        "a lease of the same token in another life counts as ours",
        "lives: rule 1",
        0,
        (
            Change(
                "HeldLease._is_of_this_claim",
                "(record.token, record.worker_id, record.created_at) == (ours.token, ours.worker_id, ours.created_at)",
                "record.token == ours.token",
            ),
        ),
        "queue/test_lives.py::test_a_worker_of_an_earlier_life_replaces_nothing",
    ),
    _bug(
        "a worker that wakes up in another life ends that",
        "lives: rule 1",
        0,
        ("EntryClaim._outlived", "self._lease.valid_for_s() > -OUTLIVED_S", "True"),
        scenario="queue/test_lives.py::test_a_worker_that_wakes_up_in_another_life_ends_nothing",
    ),
    _bug(
        "a name of a retry that is taken counts as that retry",
        "lives: rule 2",
        0,
        ("Admin._place_retry", "self._is_retry_of(entry, receipt, life)", "True"),
        scenario="queue/test_lives.py::test_the_retry_of_an_earlier_life_is_not_that_of_a_later_one",
    ),
    _bug(
        "a second call of a retry looks for another name",
        "lives: rule 2",
        0,
        ("Admin._retry", "if receipt.retried_as:", "if False:"),
        scenario="queue/test_lives.py::test_a_retry_whose_name_was_taken_is_made_once[True]",
    ),
    _bug(
        "what was recorded or failed in a batch goes by its age while the batch waits",
        "lives: rule 3",
        4,
        ("Retention._is_over", "entry not in self._there and (entry in self._receipts or not is_there(entry))", "True"),
        scenario="lives",
    ),
    _bug(
        "a retried receipt goes while its retry waits",
        "lives: rule 3",
        0,
        ("Retention._stays", "or self._retries.get(first, 0) > number", ""),
        scenario="queue/test_lives.py::test_a_retried_receipt_stays_as_long_as_its_retry",
    ),
    _bug(
        "the shape of a push goes while its tasks wait",
        "lives: rule 3",
        0,
        ("Retention.over", "if there.isdisjoint(names)", ""),
        scenario="lives",
    ),
    _bug(
        "the receipt of a batch goes before what else has its name",
        "lives: rule 3",
        0,
        ("Retention.add_completed", "name in self._inner or batch_of(name) or retry_of(name) or", ""),
        scenario="queue/test_lives.py::test_an_entry_that_is_cut_short_by_a_crash_of_retain_goes_later",
    ),
    _bug(
        "a claim of a restored task takes it for new",
        "lives: rule 4",
        0,
        ("durable.may_have_begun", "or content.epoch != epoch", ""),
        scenario="queue/test_lives.py::test_a_task_that_was_restored_is_looked_at_for_steps",
    ),
    _bug(
        "a receipt knows only of the steps that the lease names",
        "lives: what may have steps says so",
        456,
        ("durable.may_have_steps", "contested or n in durable", "n in durable"),
        scenario="lives",
    ),
    _bug(
        "a retry with recorded steps looks like any other task",
        "lives: what may have steps says so",
        2,
        ("entry.new_task", "DURABLE_SCHEMA if has_steps else SCHEMA", "SCHEMA"),
        ("entry.read_content", "task.schema == DURABLE_SCHEMA or bool(task.origin)", "bool(task.origin)"),
        scenario="lives",
    ),
    _bug(
        "a retry removes the steps of a task whose batch waits",
        "lives: rule 3",
        253,
        (
            "Admin._drop_steps",
            "if part is None or not self._storage.exists(self._keys.tasks(part[0], batch=True)):",
            "if True:",
        ),
        scenario="lives",
    ),
    _bug(
        "a retry has the key of its own push",
        "lives: one key",
        0,
        ("durable.life_of", "if content.life or content.origin:", "if False:"),
        scenario="lives",
    ),
]

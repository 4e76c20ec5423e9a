"""Bugs planted in backups and in what tells fleets apart: two runs to one target, recorded pushes, id and epoch."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["BACKUP_BUGS"]

TWO_RUNS = "app/test_backup.py::test_two_runs_to_one_target_leave_a_whole_backup"


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str], scenario: str = "backup") -> Bug:
    return Bug(name, row, seed, tuple(Change(*change) for change in changes), scenario)


BACKUP_BUGS = [
    _bug(
        "a run of a backup does not ask whether it may still write",
        "backup: two runs",
        0,
        ("backup._Run.confirm", "self._lease.check()\nseen =", "return\nseen ="),
        ("backup._finish", "raise LeaseLost(TAKEN_OVER, hint=TAKEN_OVER_HINT) from None", "pass"),
        scenario=TWO_RUNS,
    ),
    _bug(
        "a run of a backup removes the lists of later runs",
        "backup: two runs",
        0,
        ("backup_decide.older_lists", "if match and token_of_run(match[1]) < token_of_run(run):", "if match:"),
        ("backup._Run.confirm", "self._lease.check()\nseen =", "return\nseen ="),
        scenario=TWO_RUNS,
    ),
    _bug(
        "a run of a backup overwrites what a later run has written",
        "backup: two runs",
        0,
        ("backup._Run.write", "when = Match(there.version) if there else Absent()", "when = Always()"),
        scenario=TWO_RUNS,
    ),
    _bug(
        "a backup takes no lock",
        "backup: two runs",
        0,
        (
            "backup._alone",
            "lease = stack.enter_context(lock.hold(wait_s))",
            "lease = lock.acquire(wait_s)\nlease.release()",
        ),
        scenario="app/test_backup.py::test_a_run_is_refused_while_another_one_works_and_takes_over_after_it_was_killed",
    ),
    _bug(
        "what recorded pushes name is not followed",
        "backup: recorded pushes",
        14,
        ("backup._copy_steps", "pushed = _pushed(run) - followed", "pushed = set[str]()"),
    ),
    _bug(
        "steps are copied before the queues",
        "backup: recorded pushes",
        1172,
        (
            "backup._copy_fleet",
            "for kind in QUEUE_ORDER:",
            'for kind in ("steps", *QUEUE_ORDER):',
        ),
        (
            "backup._copy_steps",
            'run.copy_below(f"{keys.QUEUES}/{queue}/steps", "steps")',
            "pass",
        ),
    ),
    _bug(
        "a gather does not follow what was pushed before the last backup",
        "backup: recorded pushes",
        0,
        ("backup._Run.read_names", "unread = [", "unread = [] and ["),
        scenario="app/test_backup.py::test_what_a_task_gathers_while_it_is_copied_agrees_with_the_ends_in_the_copy",
    ),
    _bug(
        "a restore does not raise the epoch",
        "fleet: epoch",
        0,
        ("backup._restored_record", "epoch=next_epoch(record.epoch or 0, runtime.wall())", "epoch=record.epoch"),
    ),
    _bug(
        "a first claim in a restored fleet does not look for steps",
        "fleet: epoch",
        0,
        ("durable.may_have_begun", " or content.epoch != epoch", ""),
        scenario="app/test_backup.py::test_a_task_that_is_claimed_first_while_it_is_copied_calls_no_copied_step_again",
    ),
    _bug(
        "two restores of one backup have the same epoch",
        "fleet: epoch",
        0,
        ("backup_decide.next_epoch", "return max(epoch + 1, int(wall.timestamp()))", "return epoch + 1"),
        scenario="app/test_backup.py::test_a_restored_fleet_has_another_epoch_each_time_and_its_id_only_in_its_own_place",
    ),
    _bug(
        "a node sends to another fleet",
        "fleet: id",
        0,
        ("sync.decide.joined", "return FleetVerdict.OTHER", "return FleetVerdict.SAME"),
        scenario="queue/sync/test_sync_fresh.py::test_a_running_supervisor_stops_sending_to_another_fleet",
    ),
    _bug(
        "a node does not notice a restore",
        "fleet: epoch",
        0,
        (
            "sync.decide.joined",
            "return FleetVerdict.RESTORED if now.epoch > known.epoch else FleetVerdict.OLDER",
            "return FleetVerdict.SAME",
        ),
        scenario="queue/sync/test_sync_fresh.py::test_after_a_restore_all_nodes_send_again_what_they_have",
    ),
    _bug(
        "a node keeps its cursors after a restore",
        "fleet: epoch",
        0,
        ("NodeState.join", "adopted=False, pulled_at=None)", "adopted=False)"),
        ("NodeState.join", "self.cursors.clear()", "pass"),
        scenario="queue/sync/test_sync_fresh.py::test_a_node_that_joins_another_fleet_gets_what_is_there",
    ),
]

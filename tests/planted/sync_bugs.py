"""Bugs planted in the supervisor: COUNTEREXAMPLES.md H8, DESIGN section 5, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["SYNC_BUGS"]


def _bug(name: str, row: str, seen_by: int | str, *changes: tuple[str, str, str]) -> Bug:
    """A bug that a seed of the simulation sees, or a test of tests/."""
    made = tuple(Change(f"queue.{where}", old, new) for where, old, new in changes)
    if isinstance(seen_by, str):
        return Bug(name, row, 0, made, seen_by)
    return Bug(name, row, seen_by, made, "supervisor")


SYNC_BUGS = [
    _bug(
        "a push is journaled after its effect",
        "H8",
        507,
        (
            "place",
            "self._storage.journal.pushed(key, data)\n"
            "if not self._put_resolved(key, data, write_id=task.write_id):\n"
            "    return False",
            "if not self._put_resolved(key, data, write_id=task.write_id):\n"
            "    return False\n"
            "self._storage.journal.pushed(key, data)",
        ),
    ),
    _bug(
        "an end is journaled after its effect",
        "H8",
        5,
        ("write_receipt", "self.journal.ended(entry, batch, key, receipt)\ntry:", "try:"),
        (
            "write_receipt",
            "case Won(seen):\n    return seen.value",
            "case Won(seen):\n    self.journal.ended(entry, batch, key, receipt)\n    return seen.value",
        ),
    ),
    _bug(
        "an end whose receipt is not there yet is skipped",
        "H8",
        2,
        (
            "OutboxSender._send_one",
            "if isinstance(line, EndLine):",
            "if isinstance(line, EndLine):\n"
            "    if not self._here.storage(queue_place(line.key).keys).exists(Key(line.key)):\n"
            "        return _Sent(key)",
        ),
    ),
    _bug(
        "what is here and not there is sent",
        "H8, local minus remote",
        182,
        (
            "OutboxSender.run",
            'cycle = Cycle("up")',
            'cycle = Cycle("up")\n'
            "from limpet.queue.sync.apply import stored_bytes\n"
            "for stat in self._local.list(keys.QUEUES):\n"
            "    if not stat.key.endswith('task.json'):\n"
            "        continue\n"
            "    read = stored_bytes(self._local, stat.key, size_max=ENTRY_BYTES_MAX)\n"
            "    if read is not None and not self._there.storage(QueueKeys(stat.key)).exists(stat.key):\n"
            "        self._remote.put(stat.key, read)",
        ),
    ),
    _bug(
        "the outbox is trimmed before the log is written",
        "H8",
        6,
        (
            "_send",
            "cycle.logs += self._log.write([one.line for one in sent if one.line is not None])\n"
            "self._trim([one.key for one in sent if one.error is None], lines, cycle)",
            "self._trim([one.key for one in sent if one.error is None], lines, cycle)\n"
            "cycle.logs += self._log.write([one.line for one in sent if one.line is not None])",
        ),
    ),
    _bug(
        "the cursor moves before the lines are applied",
        "DESIGN section 5",
        1,
        (
            "LogApplier._read",
            "for some in _packed(node, seqs, listed):",
            "for some in _packed(node, seqs, listed):\n    self._state.read_up_to(node, some[-1])",
        ),
    ),
    _bug(
        "a pulled push is not looked up among the receipts",
        "H5, DESIGN section 5",
        0,
        ("Applier.push", '== "scheduled") and storage.ended(place.name):', '== "scheduled") and False:'),
        ("Applier.push", "if storage.ended(place.name):", "if False:"),
    ),
    _bug(
        "a pulled receipt is written over ours",
        "DESIGN section 5",
        2,
        (
            "merged",
            "if stands is None:\n    return ours",
            "if stands is None or stands.worker_id != ours.worker_id:\n    return ours",
        ),
    ),
    _bug(
        "a pulled lease is written over ours",
        "DESIGN section 5",
        0,
        (
            "RemoteLeases.note",
            "cell = self._cell(QueueKeys(line.root).remote(line.entry))",
            "from limpet.queue.decide import claimed\n"
            "from limpet.queue.api import Policy\n"
            "from limpet.queue.entry import Storage\n"
            "wall = self._runtime.wall()\n"
            "record = claimed(\n"
            "    None, entry=line.entry, worker_id=line.worker_id, label='', policy=Policy(), wall=wall\n"
            ")\n"
            "lease = Storage(self._store, QueueKeys(line.root), self._runtime).lease(line.entry)\n"
            "lease.attempt(lease.read(), record)\n"
            "cell = self._cell(QueueKeys(line.root).remote(line.entry))",
        ),
    ),
    _bug(
        "a log that is read again prolongs a foreign lease",
        "DESIGN section 5",
        21,
        ("noted", "stands.log >= seq:", "stands.log > seq:"),
    ),
    _bug(
        "the last writer of a lease wins",
        "seed 002, DESIGN section 5",
        426,
        ("published", "if not isinstance(step, Take):\n    return None", ""),
    ),
    _bug(
        "logs go before everybody could read them",
        "DESIGN section 5",
        28,
        ("trim_logs", "stats[:-1] if stat.modified < before]", "stats]"),
        ("LogApplier.run", "if fresh or news.gap or absent(", "if fresh or absent("),
    ),
    _bug(
        "what a client logged and never did is left undone in the bucket",
        "found by the simulation",
        1,
        ("_put", "if client:\n    self._there.end(line", "if False:\n    self._there.end(line"),
    ),
    _bug(
        "a fresh pull skips the logs of clients",
        "found by the simulation",
        52,
        ("_pull_afresh", "for some in _packed(node, seqs, listed):", "for some in ():"),
    ),
    _bug(
        "a fresh pull lists the outbox before what waits",
        "bootstrap",
        "queue/sync/test_sync_order.py::test_a_push_during_a_fresh_pull_stays",
        (
            "_FreshPull.run",
            "wanted = self._queues()",
            "wanted = self._queues()\nself._early = [stat.key for stat in self.here.store.list(keys.OUTBOX)]",
        ),
        ("_keep_unsent", "notes = (stat.key for stat in self.here.store.list(keys.OUTBOX))", "notes = self._early"),
    ),
    _bug(
        "a fresh pull lists the bucket before the outbox",
        "bootstrap",
        "queue/sync/test_sync_order.py::test_an_entry_that_goes_to_the_bucket_during_a_fresh_pull_stays",
        (
            "_FreshPull.run",
            "self._keep_unsent()\nfor queue in wanted:\n    self._pull(queue)",
            "for queue in wanted:\n    self._pull(queue)\nself._keep_unsent()",
        ),
    ),
    _bug(
        "a fresh pull drops what a client has logged",
        "bootstrap",
        "queue/sync/test_sync_order.py::test_what_a_client_has_logged_is_kept_by_a_fresh_pull",
        ("_pull_afresh", "pull.keep(found[1])", ""),
    ),
    _bug(
        "a fresh pull drops what a damaged note may have been about",
        "A2",
        "queue/sync/test_sync_damage.py::test_a_damaged_note_is_put_aside_and_the_rest_is_sent",
        ("drop", "if self.unsure:\n    return", ""),
    ),
    _bug(
        "the line at which a log is split is dropped",
        "logs",
        "queue/sync/test_sync_order.py::test_every_line_of_every_log_reaches_the_others",
        (
            "LogWriter.write",
            "for some in batched(lines, lambda line: len(records.encode(line)), size=LOG_BYTES_MAX, count=LINES_MAX):",
            "packs = batched(lines, lambda line: len(records.encode(line)), size=LOG_BYTES_MAX, count=LINES_MAX)\n"
            "for some in [pack[1:] if number else pack for number, pack in enumerate(packs)]:",
        ),
    ),
    _bug(
        "the last line of a log is dropped",
        "logs",
        0,
        (
            "read_log",
            'enumerate(data.split(b"\\n")[1:] if header.count',
            'enumerate(data.split(b"\\n")[1:-1] if header.count',
        ),
    ),
    _bug(
        "parts come after their receipt",
        "logs",
        0,
        ("_put_receipt", "self._copy_parts(place, receipt, parts_from)", ""),
        (
            "_put_receipt",
            "case Won() | Replaced():\n    return None",
            "case Won() | Replaced():\n    self._copy_parts(place, receipt, parts_from)\n    return None",
        ),
    ),
    _bug(
        "a part that was refused counts as written",
        "F6, found by the simulation",
        121,
        ("_put_part", "lambda: storage.exists(key) or None", "lambda: True"),
    ),
    _bug(
        "the receipt of a batch travels before those that count before it",
        "F",
        "queue/sync/test_sync_order.py::test_a_receipt_that_counts_before_that_of_its_batch_travels_before_it",
        ("_put_receipt", "self._copy_own(place, line.entry, receipt, parts_from)", ""),
    ),
    _bug(
        "a late finisher of a batch that is not here yet counts",
        "F",
        "queue/sync/test_sync_order.py::test_a_late_finisher_of_a_batch_that_is_not_here_yet_does_not_count_yet",
        ("Inspection._result", "gone=not self._storage.journal.travels", "gone=True"),
    ),
    _bug(
        "a delayed push that was done stays scheduled in the bucket",
        "F",
        "queue/sync/test_sync_order.py::test_a_delayed_push_that_a_node_has_done_is_not_scheduled_in_the_bucket",
        ("_send", "self._unschedule(line for _, line in todo)", ""),
    ),
]

"""Bugs planted in the supervisor: COUNTEREXAMPLES.md H8, DESIGN section 5, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["SYNC_BUGS"]


def _bug(name: str, row: str, seen_by: int | str, *changes: tuple[str, str, str]) -> Bug:
    """A bug that a seed of the simulation sees, or a test of tests/."""
    made = tuple(Change(f"limpet.queue.{module}", old, new) for module, old, new in changes)
    if isinstance(seen_by, str):
        return Bug(name, row, 0, made, seen_by)
    return Bug(name, row, seen_by, made, "supervisor")


SYNC_BUGS = [
    _bug(
        "a push is journaled after its effect",
        "H8",
        543,
        (
            "push",
            "        self._storage.journal.pushed(key, data)\n"
            "        if not self._settle(key, data, write_id=task.write_id):\n"
            "            return False\n",
            "        if not self._settle(key, data, write_id=task.write_id):\n"
            "            return False\n"
            "        self._storage.journal.pushed(key, data)\n",
        ),
    ),
    _bug(
        "an end is journaled after its effect",
        "H8",
        5,
        ("storage", "        self.journal.ended(entry, batch, key, receipt)\n        try:\n", "        try:\n"),
        (
            "storage",
            "            case Won(seen):\n                return seen.value\n",
            "            case Won(seen):\n"
            "                self.journal.ended(entry, batch, key, receipt)\n"
            "                return seen.value\n",
        ),
    ),
    _bug(
        "an end whose receipt is not there yet is skipped",
        "H8",
        2,
        (
            "sync.up",
            "        assert line.receipt is not None\n",
            "        assert line.receipt is not None\n"
            "        if not self._here.exists(Key(line.key)):\n"
            "            return _Sent(key, None, None, None)\n",
        ),
    ),
    _bug(
        "what is here and not there is sent",
        "H8, local minus remote",
        182,
        (
            "sync.up",
            '        cycle = Cycle("up")\n',
            '        cycle = Cycle("up")\n'
            "        for stat in self._local.list(keys.QUEUES):\n"
            '            data = self._here._read(stat.key) if stat.key.endswith("task.json") else None\n'
            "            if data is not None and not self._there.exists(stat.key):\n"
            "                self._remote.put(stat.key, data)\n",
        ),
    ),
    _bug(
        "the outbox is trimmed before the log is written",
        "H8",
        6,
        (
            "sync.up",
            "        cycle.logs += self._log.write([one.line for one in sent if one.line is not None])\n"
            "        self._trim([one.key for one in sent if one.error is None], lines, cycle)\n",
            "        self._trim([one.key for one in sent if one.error is None], lines, cycle)\n"
            "        cycle.logs += self._log.write([one.line for one in sent if one.line is not None])\n",
        ),
    ),
    _bug(
        "the cursor moves before the lines are applied",
        "DESIGN section 5",
        1,
        (
            "sync.down",
            "        for some in self._reader.packs(node, seqs):\n",
            "        for some in self._reader.packs(node, seqs):\n            self._state.read_up_to(node, some[-1])\n",
        ),
    ),
    _bug(
        "a pulled push is not looked up among the receipts",
        "H5, DESIGN section 5",
        0,
        ("sync.apply", '== "scheduled") and storage.ended(place.name):', '== "scheduled") and False:'),
        ("sync.apply", "        if storage.ended(place.name):\n", "        if False:\n"),
    ),
    _bug(
        "a pulled receipt is written over ours",
        "DESIGN section 5",
        2,
        (
            "sync.decide",
            "    if stands is None:\n        return ours\n",
            "    if stands is None or stands.worker_id != ours.worker_id:\n        return ours\n",
        ),
    ),
    _bug(
        "a pulled lease is written over ours",
        "DESIGN section 5",
        0,
        (
            "sync.lease_down",
            "        cell = self._cell(QueueKeys(line.root).remote(line.entry))\n",
            "        from limpet.queue.decide import claimed\n"
            "        from limpet.queue.storage import Policy, Storage\n"
            "        wall = self._runtime.wall()\n"
            "        record = claimed(\n"
            "            None, entry=line.entry, worker_id=line.worker_id, label='', policy=Policy(), wall=wall\n"
            "        )\n"
            "        lease = Storage(self._store, QueueKeys(line.root), self._runtime).lease(line.entry)\n"
            "        lease.attempt(lease.read(), record)\n"
            "        cell = self._cell(QueueKeys(line.root).remote(line.entry))\n",
        ),
        (
            "storage",
            "from limpet.runtime import Runtime\n",
            "from limpet.queue.api import Policy\nfrom limpet.runtime import Runtime\n",
        ),
    ),
    _bug(
        "a log that is read again prolongs a foreign lease",
        "DESIGN section 5",
        2,
        ("sync.decide", "stands.log >= seq:", "stands.log > seq:"),
    ),
    _bug(
        "the last writer of a lease wins",
        "seed 002, DESIGN section 5",
        181,
        ("sync.decide", "        if not isinstance(step, Take):\n            return None\n", ""),
    ),
    _bug(
        "logs go before everybody could read them",
        "DESIGN section 5",
        28,
        ("sync.log", "stats[:-1] if stat.modified < before]", "stats]"),
        ("sync.down", "if fresh or news.gap or absent(", "if fresh or absent("),
    ),
    _bug(
        "what a client logged and never did is left undone in the bucket",
        "found by the simulation",
        1,
        (
            "sync.down",
            "            if client:\n                self._there.end(line",
            "            if False:\n                self._there.end(line",
        ),
    ),
    _bug(
        "a fresh pull skips the logs of clients",
        "found by the simulation",
        52,
        ("sync.down", "self._reader.packs(node, numbers if is_client(node) else ())", "self._reader.packs(node, ())"),
    ),
    _bug(
        "a fresh pull lists the outbox before what waits",
        "bootstrap",
        "queue/sync/test_sync_order.py::test_a_push_during_a_fresh_pull_stays",
        (
            "sync.fresh",
            "        wanted = self._queues(queues, cycle)\n",
            "        wanted = self._queues(queues, cycle)\n"
            "        self._early = [stat.key for stat in self._local.list(keys.OUTBOX)]\n",
        ),
        (
            "sync.fresh",
            "        notes = (stat.key for stat in self._local.list(keys.OUTBOX))\n",
            "        notes = self._early\n",
        ),
    ),
    _bug(
        "a fresh pull lists the bucket before the outbox",
        "bootstrap",
        "queue/sync/test_sync_order.py::test_an_entry_that_goes_to_the_bucket_during_a_fresh_pull_stays",
        (
            "sync.fresh",
            "        self._keep_unsent(cycle)\n        for queue in wanted:\n            self._pull(queue, cycle)\n",
            "        for queue in wanted:\n            self._pull(queue, cycle)\n        self._keep_unsent(cycle)\n",
        ),
    ),
    _bug(
        "a fresh pull drops what a client has logged",
        "bootstrap",
        "queue/sync/test_sync_order.py::test_what_a_client_has_logged_is_kept_by_a_fresh_pull",
        ("sync.down", "                fresh.keep(found[1])\n", ""),
    ),
    _bug(
        "a fresh pull drops what a damaged note may have been about",
        "A2",
        "queue/sync/test_sync_damage.py::test_a_damaged_note_is_put_aside_and_the_rest_is_sent",
        ("sync.fresh", "        if self._unsure:\n            return\n", ""),
    ),
    _bug(
        "the line at which a log is split is dropped",
        "logs",
        "queue/sync/test_sync_order.py::test_every_line_of_every_log_reaches_the_others",
        (
            "sync.log",
            "            pack, size = [], 0\n        pack.append(line)\n",
            "            pack, size = [], 0\n            continue\n        pack.append(line)\n",
        ),
    ),
    _bug(
        "the last line of a log is dropped",
        "logs",
        0,
        (
            "sync.records",
            'enumerate(data.split(b"\\n")[1:] if header.count',
            'enumerate(data.split(b"\\n")[1:-1] if header.count',
        ),
    ),
    _bug(
        "parts come after their receipt",
        "logs",
        0,
        ("sync.apply", "            self._copy_parts(place, receipt, parts_from)\n", ""),
        (
            "sync.apply",
            "                case Won() | Replaced():\n                    return None\n",
            "                case Won() | Replaced():\n"
            "                    self._copy_parts(place, receipt, parts_from)\n"
            "                    return None\n",
        ),
    ),
    _bug(
        "a part that was refused counts as written",
        "F6, found by the simulation",
        289,
        (
            "sync.apply",
            "                if self.exists(key):\n                    return\n",
            "                return\n",
        ),
    ),
    _bug(
        "the receipt of a batch travels before those that count before it",
        "F",
        "queue/sync/test_sync_order.py::test_a_receipt_that_counts_before_that_of_its_batch_travels_before_it",
        ("sync.apply", "            self._copy_own(place, line.entry, receipt, parts_from)\n", ""),
    ),
    _bug(
        "a late finisher of a batch that is not here yet counts",
        "F",
        "queue/sync/test_sync_order.py::test_a_late_finisher_of_a_batch_that_is_not_here_yet_does_not_count_yet",
        ("look", "                gone = not self._storage.journal.travels\n", "                gone = True\n"),
    ),
    _bug(
        "a delayed push that was done stays scheduled in the bucket",
        "F",
        "queue/sync/test_sync_order.py::test_a_delayed_push_that_a_node_has_done_is_not_scheduled_in_the_bucket",
        ("sync.up", "        self._unschedule(line for _, line in todo)\n", ""),
    ),
]

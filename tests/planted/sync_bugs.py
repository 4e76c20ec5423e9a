"""Bugs planted in the supervisor: COUNTEREXAMPLES.md H8, DESIGN section 5, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["SYNC_BUGS"]


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str]) -> Bug:
    return Bug(
        name, row, seed, tuple(Change(f"limpet.queue.{module}", old, new) for module, old, new in changes), "supervisor"
    )


SYNC_BUGS = [
    _bug(
        "a push is journaled after its effect",
        "H8",
        44,
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
        806,
        (
            "storage",
            "        self.journal.ended(entry, batch, key, receipt)\n"
            "        match self.receipt(key).attempt(None, receipt):\n"
            "            case Won(seen):\n",
            "        match self.receipt(key).attempt(None, receipt):\n"
            "            case Won(seen):\n"
            "                self.journal.ended(entry, batch, key, receipt)\n",
        ),
    ),
    _bug(
        "an end whose receipt is not there yet is skipped",
        "H8",
        121,
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
        134,
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
        15,
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
        13,
        (
            "sync.down",
            "            some = seqs[start : start + AT_ONCE]\n",
            "            some = seqs[start : start + AT_ONCE]\n            self._state.read_up_to(node, some[-1])\n",
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
        1,
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
        20,
        ("sync.decide", "stands.log >= seq:", "stands.log > seq:"),
    ),
    _bug(
        "the last writer of a lease wins",
        "seed 002, DESIGN section 5",
        89,
        ("sync.decide", "        if not isinstance(step, Take):\n            return None\n", ""),
    ),
    _bug(
        "logs go before everybody could read them",
        "DESIGN section 5",
        7,
        ("sync.log", "stats[:-1] if stat.modified < before]", "stats]"),
        ("sync.down", "if fresh or news.gap or absent(", "if fresh or absent("),
    ),
    _bug(
        "what a client logged and never did is left undone in the bucket",
        "found by the simulation",
        358,
        (
            "sync.down",
            "            if client:\n                self._there.end(line",
            "            if False:\n                self._there.end(line",
        ),
    ),
    _bug(
        "a fresh pull skips the logs of clients",
        "found by the simulation",
        358,
        ("sync.down", "            for seq in numbers if is_client(node) else ():\n", "            for seq in ():\n"),
    ),
]

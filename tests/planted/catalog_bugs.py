"""Bugs planted in the catalog's kernel: COUNTEREXAMPLES.md (Catalog) 1 to 12, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["CATALOG_BUGS"]


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str]) -> Bug:
    planted = tuple(Change(f"limpet.catalog.{module}", old, new) for module, old, new in changes)
    return Bug(name, row, seed, planted, "catalog")


_ADD = "            path = self._add(term.lease, term.version, group, term.last_id)\n"

CATALOG_BUGS = [
    _bug(
        "an epoch needs the token that leads",
        "catalog 1",
        0,
        ("decide", "        if token <= head.token:\n", "        if token != head.token:\n"),
    ),
    _bug(
        "a compactor does not look whether it has published a batch before",
        "catalog 2",
        2,
        ("decide", "    if not found:\n        return None\n", "    if found is not None:\n        return None\n"),
    ),
    _bug(
        "a swap that is lost refuses the batch",
        "catalog 3",
        1,
        (
            "compactor",
            "            case _:\n                return None\n",
            "            case _:\n                raise Refusal(Refused(False, 'the head has moved'))\n",
        ),
    ),
    _bug(
        "the token is checked before what was published",
        "catalog 4",
        5,
        (
            "compactor",
            "        done = applied_in(head, paths)\n",
            "        if head is not None and token < head.token:\n"
            "            _refuse(Refused(True, 'another token leads'))\n"
            "        done = applied_in(head, paths)\n",
        ),
    ),
    _bug(
        "a lock of another process refuses the batch",
        "catalog 5",
        0,
        ("compactor", "        if head is None or head.token < token:\n", "        if paths:\n"),
        (
            "compactor",
            "        if holder is None or holder.value.token != token:\n",
            "        if holder is None or holder.value.token != token:\n"
            "            _refuse(Refused(True, 'another process holds the lock'))\n"
            "        if holder is None:\n",
        ),
    ),
    _bug(
        "after a refused batch nobody looks for the ids",
        "catalog 6",
        2,
        ("leader", "            told = state.told(pending.id)\n", "            told = None\n"),
    ),
    _bug(
        "a refusal is told before what it rests on is published",
        "catalog 7, dirty",
        0,
        (
            "leader",
            _ADD,
            "            for pending, _, error in group.told:\n"
            "                if error is not None:\n"
            "                    pending.fail(error)\n" + _ADD,
        ),
    ),
    _bug(
        "a leader refuses from memory",
        "catalog 7, stale",
        335,
        ("leader", "                if self._is_current(term):\n", "                if term is not None:\n"),
    ),
    _bug(
        "a snapshot holds no answers",
        "catalog 8",
        0,
        ("compactor", "        state.forget(seen.value.at)\n", "        state._answers.clear()\n"),
    ),
    _bug(
        "names follow from the head alone",
        "catalog 9",
        34,
        (
            "compactor",
            '        id_ = above(storage.runtime.new_id(), max(head.last_id, head.gc_floor) if head else "")\n',
            '        id_ = above("0" * 26, max(head.last_id, head.gc_floor) if head else "")\n',
        ),
        (
            "compactor",
            "        snapshot_id = above(storage.runtime.new_id(), id_)\n",
            '        snapshot_id = above("0" * 26, id_)\n',
        ),
    ),
    _bug(
        "a slow clock makes the name right above the last one",
        "catalog 9, catalog 12c, found by the simulation",
        9,
        (
            "storage",
            "    for character in floor[:TIME_CHARACTERS]:\n",
            "    for character in floor:\n",
        ),
        (
            "storage",
            "    return ulid(number + 1, 0)[:TIME_CHARACTERS] + id_[TIME_CHARACTERS:]\n",
            "    number += 1\n    return ulid(number >> 80, number & ((1 << 80) - 1))\n",
        ),
    ),
    _bug(
        "GC deletes without a floor in the head",
        "catalog 10",
        1,
        (
            "gc",
            "    if head is None or floor <= head.gc_floor:\n        return None\n",
            "    if head is None or floor:\n        return None\n",
        ),
        ("gc", "floor = seen.value, seen.value.gc_floor", "floor = seen.value, seen.value.links[0].id"),
    ),
    _bug(
        "the floor goes by the snapshot's name alone",
        "catalog 10, found by the simulation",
        7,
        ("gc", "    return min(snapshot.id, first.id) if snapshot else", "    return snapshot.id if snapshot else"),
    ),
    _bug(
        "a reader takes a snapshot that is gone for lost",
        "catalog 11",
        94,
        (
            "view",
            "                if seen.version == incomplete:\n",
            "                if seen.version != incomplete:\n",
        ),
    ),
    _bug(
        "a walker takes a commit below the newest floor for lost",
        "catalog 11, found by the simulation",
        9,
        ("chain", "        if link.id < _floor(storage, head, link):\n", "        if link.id < head.gc_floor:\n"),
    ),
    _bug(
        "nobody may make the first head",
        "catalog 12a",
        0,
        ("decide", "        return Go(_rows(batches)) if epoch else NoHead()\n", "        return NoHead()\n"),
    ),
    _bug(
        "a race for the first head is taken for a lost one",
        "catalog 12a, found by the simulation",
        7,
        (
            "compactor",
            '                    self._demand_moved(seen, "the head is missing, and there are commits")\n',
            '                    raise Corrupt("the head is missing, and there are commits")\n',
        ),
    ),
    _bug(
        "a lost lock begins again below the token that leads",
        "catalog 12b",
        0,
        (
            "leader",
            "        if before is not None and before.head.token >= lease.token:\n",
            "        if before is not None and before.head.token < 0:\n",
        ),
    ),
    _bug(
        "a slow clock makes names below those that are there",
        "catalog 12c",
        0,
        ("storage", "    if id_ > floor:\n", "    if id_:\n"),
    ),
    _bug(
        "the ledger is read before what was published is looked for",
        "catalog 12d",
        281,
        (
            "compactor",
            "        done = applied_in(head, paths)\n",
            "        self._batches(paths)\n        done = applied_in(head, paths)\n",
        ),
    ),
    _bug(
        "what was published long ago is not looked for in the chain",
        "catalog 2",
        2,
        (
            "compactor",
            "                return self._published_long_ago(head, batches, paths) or _refuse(refused)\n",
            "                _refuse(refused)\n",
        ),
    ),
    _bug(
        "an unclear swap is taken for lost",
        "F3",
        39,
        (
            "compactor",
            "            case _:\n                return None\n",
            "            case Lost():\n                return None\n"
            "            case _:\n                raise Refusal(Refused(False, 'the swap was lost'))\n",
        ),
        ("compactor", "from limpet.cell import Cell, Replaced,", "from limpet.cell import Cell, Lost, Replaced,"),
    ),
    _bug(
        "a compactor refuses by the head that it remembers",
        "catalog 7, stale",
        2,
        (
            "compactor",
            "            except (Refusal, Invalid, Unavailable, Corrupt):\n",
            "            except (Invalid, Unavailable, Corrupt):\n",
        ),
    ),
    _bug(
        "no epoch: a higher token may publish at once",
        "F12",
        0,
        ("decide", "    elif token != head.token:\n", "    elif token < head.token:\n"),
        (
            "leader",
            "        self._send(lease, self._add(lease, None, _Group(), last_id), EPOCH_PATIENCE_S)\n",
            "        if before is None:\n"
            "            self._send(lease, self._add(lease, None, _Group(), last_id), EPOCH_PATIENCE_S)\n",
        ),
        (
            "leader",
            "        if loaded is None or loaded.head.token != lease.token:\n",
            "        if loaded is None or loaded.head.token > lease.token:\n",
        ),
        (
            "leader",
            "        if loaded is None or loaded.head.token != term.lease.token:\n",
            "        if loaded is None or loaded.head.token > term.lease.token:\n",
        ),
    ),
    _bug(
        "a leader leads on after an unknown outcome",
        "catalog 6, by giving up",
        9,
        ("leader", "                self._resign()  # the next term begins with what was really published\n", ""),
    ),
    _bug(
        "a batch counts as dead if the last attempt met nobody",
        "F3",
        3349,
        ("leader", "                told |= not isinstance(", "                told = not isinstance("),
    ),
    _bug(
        "a batch may be published on any version",
        "F15",
        26,
        (
            "decide",
            "    elif any(batch.base_version != head.version for batch in batches):\n",
            "    elif any(batch.base_version is None for batch in batches):\n",
        ),
    ),
    _bug(
        "clients are answered before the head is swapped",
        "F25",
        0,
        (
            "leader",
            "            try:\n                published = self._send(term.lease, path, PATIENCE_S)\n",
            "            for pending, result, error in group.told:\n"
            "                if error is None:\n"
            "                    pending.answer(result)\n"
            "            try:\n                published = self._send(term.lease, path, PATIENCE_S)\n",
        ),
    ),
    _bug(
        "objects that a batch names are not waited for",
        "F25",
        12,
        (
            "storage",
            "at_once=WIDER * self.store.at_once):",
            "at_once=WIDER * self.store.at_once)[:1]:",
        ),
    ),
    _bug(
        "an id lives no longer than its commit",
        "catalog 8",
        0,
        ("state", "_oldest(at, ID_LIFETIME)\n", "_oldest(at, timedelta(0))\n"),
    ),
    _bug(
        "the record of a commit is never written",
        "found while designing",
        0,
        (
            "compactor",
            "                if head is not None:\n                    self._settle(head)\n",
            "                if head is not None:\n                    pass\n",
        ),
    ),
    _bug(
        "the record of a commit is not the one that the head names",
        "F23",
        0,
        ("decide", "        links=head.links[1:],\n", "        links=head.links,\n"),
        ("storage", "        if self.link(commit) != link:\n", "        if self.link(commit) is None:\n"),
    ),
    _bug(
        "a commit points back to an older one than the last",
        "found while designing",
        0,
        ("decide", "    kept: list[Link] = [head.links[0]]\n", "    kept: list[Link] = [head.links[-1]]\n"),
    ),
    _bug(
        "a prepared snapshot replaces a newer one",
        "found while designing",
        0,
        ("compactor", " not known < ready.ref.version <= head.version", " not ready.ref.version <= head.version"),
    ),
    _bug(
        "the tail loses a version that the snapshot does not hold",
        "found while designing",
        0,
        (
            "decide",
            "if snapshot is None or each.version > snapshot.version),",
            "if snapshot is None or each.version > max(snapshot.version, version - 3)),",
        ),
    ),
    _bug(
        "the time of a commit is whatever the clock says",
        "F13",
        5,
        (
            "compactor",
            '        at = max(time_text(storage.store.now()), head.at if head else "")\n',
            "        at = time_text(storage.store.now())\n",
        ),
    ),
    _bug(
        "what was worked out on older metadata is published",
        "C4, apply before the leader is asked",
        0,
        ("loaded", "        return path in self._results\n", "        return bool(self._results)\n"),
        ("loaded", "        result = self._results[path]\n", "        result = next(iter(self._results.values()))\n"),
    ),
    _bug(
        "a group is signed by the first who sent a request",
        "C5, actors",
        0,
        (
            "leader",
            "            signed = (Change(ACTOR, pending.actor),) if pending.actor else ()\n",
            "            signed = (Change(ACTOR, waiting[0].actor),) if waiting[0].actor else ()\n",
        ),
    ),
    _bug(
        "who sent a request becomes an entry",
        "C5, actors",
        0,
        ("state", "                if change.key != ACTOR:\n", "                if change.key:\n"),
    ),
    Bug(
        "a commit goes by what was worked out first",
        "C4, apply before the leader is asked",
        0,
        (
            Change(
                "limpet.catalog.tables",
                "    if ahead.has(path):\n        return ahead.result(path)\n",
                "    if ahead._results:\n        return ahead.result(next(iter(ahead._results)))\n",
            ),
        ),
        "catalog/test_catalog_hardening.py::"
        "test_what_a_commit_requires_is_checked_on_the_table_as_it_is_when_it_is_published",
    ),
]

"""Bugs planted in the index: COUNTEREXAMPLES.md 9 to 18, FAILURES.md rows, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["INDEX_BUGS"]


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str], scenario: str = "index") -> Bug:
    return Bug(name, row, seed, tuple(Change(f"index.{where}", old, new) for where, old, new in changes), scenario)


INDEX_BUGS = [
    _bug(
        "a lookup lists packs before singles",
        "index 9",
        16,
        (
            "find",
            "shard = shard_of(place, self._manifest.depth)",
            "shard = shard_of(place, self._manifest.depth)\npacks = self._storage.packs(shard)",
        ),
        ("find", "in self._storage.packs(shard)", "in packs"),
    ),
    _bug(
        "a lookup reads the shard before it lists what waits",
        "index 9",
        29,
        (
            "find",
            "shard = shard_of(place, self._manifest.depth)",
            "shard = shard_of(place, self._manifest.depth)\nearly = self._in_shard(key, shard)",
        ),
        ("find", "lines += self._in_shard(key, shard)", "lines += early"),
    ),
    _bug(
        "get_many lists packs before singles",
        "index 9",
        27,
        (
            "_some",
            "lines: list[bytes] = []\nif shard in work.singles:",
            "lines: list[bytes] = []\npacks = self._storage.packs(shard)\nif shard in work.singles:",
        ),
        ("_some", "in self._storage.packs(shard)", "in packs"),
    ),
    _bug(
        "the folders of packs are listed before those of singles",
        "index 9",
        1310,
        (
            "work",
            "singles = frozenset(self.store.list_dirs(self.keys.inbox))\n"
            "return WaitingShards(singles, frozenset(self.store.list_dirs(self.keys.packs)))",
            "packs = frozenset(self.store.list_dirs(self.keys.packs))\n"
            "singles = frozenset(self.store.list_dirs(self.keys.inbox))\n"
            "return WaitingShards(singles, packs)",
        ),
    ),
    _bug(
        "a scan looks for packs only where there were some",
        "index 9, singles that became a pack since",
        330,
        ("IndexStorage.waiting", "or shard in work.shards:", "or shard in work.packs:"),
    ),
    _bug(
        "get_many looks for packs only where there were some",
        "index 9, singles that became a pack since",
        1056,
        ("_some", "if shard in work.shards:", "if shard in work.packs:"),
    ),
    _bug(
        "packs are gathered into a pack",
        "index 11",
        2,
        ("Compiler.compile", "case Step.PACK:", "case Step.PACK:\n    singles += packs"),
    ),
    _bug(
        "a compiler drops tombstones",
        "index 12, index 13, index 14, index 15, index 16",
        0,
        (
            "_merge",
            "merged = merge(base, incoming, shape, what=what)",
            "merged = merge(base, incoming, shape, what=what)\n"
            "live = [line for line in merged.data.splitlines() if not self._schema.is_gone(line)]\n"
            "merged = merge(live, {}, shape, what=what)",
        ),
    ),
    _bug(
        "in put_many the first record of a key counts",
        "index 18",
        0,
        (
            "_gather",
            "shards[(place[0] << 8 | place[1]) >> above][place] = line",
            "shards[(place[0] << 8 | place[1]) >> above].setdefault(place, line)",
        ),
    ),
    _bug(
        "a compiler deletes whatever is below the prefix",
        "F18",
        0,
        (
            "_merge",
            "report.merged[shard] = read",
            "below = [*self._storage.singles(shard), *self._storage.packs(shard)]\n"
            "report.merged[shard] = [stat.key for stat in below]",
        ),
    ),
    _bug(
        "the lock alone keeps compilers apart",
        "F12, F8",
        17,
        ("_merge", "put(what, merged.data, when=Match(blob.version))", "put(what, merged.data)"),
    ),
    _bug(
        "a refused shard is put again, with a fresh version and the old merge",
        "F22",
        17,
        (
            "_merge",
            "except (Conflict, OutcomeUnknown):",
            "except Conflict:\n"
            "    now = Match(self._storage.shard(shard).version)\n"
            "    version = self._storage.store.put(what, merged.data, when=now)\n"
            "except OutcomeUnknown:",
        ),
    ),
    _bug(
        "the base is read before the version that it is swapped on",
        "F15",
        173,
        (
            "_merge",
            "blob = self._storage.shard(shard)",
            "early = self._storage.shard(shard).data\nblob = self._storage.shard(shard)",
        ),
        ("_merge", "(blob.data, what=what)", "(early, what=what)"),
    ),
    _bug(
        "objects go before the shard is there",
        "F18",
        0,
        (
            "_merge",
            "merged = merge(base, incoming, shape, what=what)",
            "merged = merge(base, incoming, shape, what=what)\nself._storage.remove(read)",
        ),
    ),
    _bug(
        "a fold of unknown outcome counts as done",
        "F3, F4",
        0,
        (
            "_merge",
            "except (Conflict, OutcomeUnknown):",
            "except OutcomeUnknown:\n    version = blob.version\nexcept Conflict:",
        ),
    ),
    _bug(
        "a pack of unknown outcome counts as there",
        "F3, F4",
        17,
        (
            "Compiler._pack",
            "except OutcomeUnknown:\n    report.conflicts = 1\n    return report",
            "except OutcomeUnknown:\n    pass",
        ),
        (
            "Compiler._pack",
            "self._storage.add(self._storage.keys.pack(",
            "self._storage.store.put(self._storage.keys.pack(",
        ),
    ),
    _bug(
        "an object that is gone is an error",
        "index, a 404 is skipped",
        6,
        ("IndexStorage.read", "if isinstance(outcome, Missing):\n    continue", ""),
    ),
    _bug(
        "an object that is gone means that there is no record",
        "index, a 404 is skipped",
        6,
        (
            "find",
            "self._storage.singles_of(shard, key))",
            "(listed := self._storage.singles_of(shard, key)))\nif listed and not lines:\n    return None",
        ),
    ),
    _bug(
        "the oldest single is read",
        "index, the newest single",
        1,
        ("_newest_of", "newest_stamp = max(", "newest_stamp = min("),
    ),
    Bug(
        "only the newest single of a key is read",
        "planted from outside",
        0,
        (
            Change(
                "Reader._newest_of",
                "if len(found) < len(wanted) < len(listed):",
                "if len(found) < len(wanted) < 0:",
            ),
        ),
        "index/test_index_damage.py::"
        "test_an_older_single_counts_when_the_newest_went_to_quarantine_since_it_was_listed",
    ),
    _bug(
        "one of two singles with the same time is read",
        "index, ties",
        79,
        ("_newest_of", "if single_stamp(stat.key) == newest_stamp]", "if single_stamp(stat.key) == newest_stamp][-1:]"),
    ),
    _bug(
        "of equal times the one that came first wins",
        "index, ties",
        6,
        ("rank", "return stamp, gone, line", 'return stamp, gone, b""'),
    ),
    _bug(
        "of equal times a record beats its tombstone",
        "index, ties",
        5,
        ("rank", "return stamp, gone, line", 'return stamp, b"", line'),
    ),
    _bug(
        "a missing shard reads as an empty one",
        "F23",
        5,
        (
            "IndexStorage.shard",
            "except Missing:",
            'except Missing:\n    return Blob(b"", self.store.put(self.keys.shard(shard), b""), self.store.now(), 0)',
        ),
    ),
    _bug(
        "a shard that lost records is built upon",
        "F23",
        5,
        ("_merge", "if known is not None and len(base) < known.records:", "if known is None:"),
        ("_merge", "if not is_recorded and is_unexplained(", "if known is None and is_unexplained("),
    ),
    _bug(
        "a later range may be of another version",
        "index, a read across two versions",
        155,
        ("_seek_once", "range=(start, stop), if_match=version)", "range=(start, stop))"),
    ),
    _bug(
        "a process stamps the same time twice",
        "index, stamps rise",
        391,
        ("Stamps.common", "self._floor.at + TICK", "self._floor.at"),
    ),
    _bug(
        "a put after a get may be older than what was seen",
        "index 17",
        10,
        ("after", "if seen is None or stamp_text(seen) < stamp:", "if True:"),
    ),
    _bug(
        "a put does not heed what was seen",
        "index 17, found by the simulation",
        12,
        ("Bulk._stamp", "if at else self._stamps.after(self._scope, key, times.common)", "if at else times.common"),
    ),
    _bug(
        "a bad object is deleted before it is kept",
        "F4",
        13,
        (
            "compiler.quarantine",
            "for key, (data, reason) in bad.items():",
            "for key, (data, reason) in bad.items():\n    storage.remove([key])",
        ),
    ),
    _bug(
        "a fold is recorded although another one followed",
        "index, counts",
        19,
        ("noted", "or is_current(shard, fold.version):", "or True:"),
    ),
    _bug(
        "a shard is counted that could not be put",
        "index, counts",
        0,
        (
            "_merge",
            "except (Conflict, OutcomeUnknown):",
            "except (Conflict, OutcomeUnknown):\n"
            "    count = Count(merged.records, len(merged.data), sum_of(merged.data))\n"
            "    report.folds[shard] = Fold(count, blob.version, base_sum)\n"
            "    report.merged[shard] = []",
        ),
    ),
    _bug(
        "a shard that would not change is not put",
        "F25",
        69,
        (
            "_merge",
            "version = self._storage.store.put(what, merged.data, when=",
            "version = blob.version if merged.data == blob.data else self._storage.store.put(what, merged.data, when=",
        ),
        scenario="index_disk",
    ),
    _bug(
        "an older program cuts off the new column",
        "mixed versions",
        79,
        (
            "_wide",
            "missing = width - 1 - line.count(SEPARATOR)",
            "missing = width - 1 - line.count(SEPARATOR)\nline = SEPARATOR.join(line.split(SEPARATOR)[:width])",
        ),
    ),
    _bug(
        "new lines are put behind the others",
        "index, the order of a shard",
        0,
        ("merge", "at = bisect_left(places, place, taken)", "at = len(places)"),
    ),
    _bug(
        "an older description overwrites a newer one",
        "found by the simulation",
        18,
        ("describe._write", "or _version_of(blob.data) > version):", "):"),
    ),
    _bug(
        "what waits is shown unchecked",
        "F23, found by the simulation",
        463,
        (
            "Reader.waiting",
            "for line in placed(self._schema, self._manifest.depth, shard, data, what=at)[1]",
            "for line in data.splitlines()",
        ),
    ),
    _bug(
        "a short shard is scanned as if it were whole",
        "F23, B5",
        5,
        ("demand_records", "if known is not None and number < known.records:\n    what", "if False:\n    what"),
    ),
    _bug(
        "a lookup takes a shard of any size",
        "F23, B5",
        5,
        ("_seek_once", "if version is None and shard is not None:", 'if shard == "":'),
        (
            "_in_shard",
            "if size == 0:\n    self.demand_whole(shard, size)\n    return []\nat =",
            "if size == 0:\n    return []\nat =",
        ),
    ),
    _bug(
        "objects go before their fold is recorded",
        "F23, B5",
        0,
        (
            "Compiler._record",
            "self._cell.update(change)\nself._storage.remove([key for shard in sorted(recorded) for",
            "self._storage.remove([key for keys in report.merged.values() for key in keys])\n"
            "self._cell.update(change)\n"
            "self._storage.remove([key for shard in sorted(recorded) for",
        ),
    ),
    _bug(
        "objects go although their fold was not recorded",
        "F23, B5",
        717,
        ("Compiler._record", "for shard in sorted(recorded) for key", "for shard in sorted(report.merged) for key"),
    ),
    _bug(
        "a digest is compared with another version's",
        "F23, B5",
        119,
        ("is_unexplained", "or not is_current(storage, shard, blob.version):", ":"),
    ),
    _bug(
        "a fold that is not recorded yet counts as damage",
        "F23, B5",
        0,
        (
            "is_unexplained",
            "for key, data in storage.waiting(shard).items():",
            "for key, data in dict[Key, bytes]().items():",
        ),
    ),
    _bug(
        "what is recorded is not looked at again",
        "F23, B5",
        356,
        ("is_unexplained", "and after.value.count(shard) == known:", ":"),
    ),
    _bug(
        "changed bytes of a shard are not compared",
        "F23, B5",
        5,
        ("_Verifier._shard", 'known.sum not in ("", count.sum) and', "known.sum is None and"),
    ),
    _bug(
        "a line that was replaced in its pack explains nothing",
        "F23, B5",
        113,
        ("explains", "(is_pack or rank(other, shape) == rank(line, shape))", "rank(other, shape) == rank(line, shape)"),
    ),
    _bug(
        "a conflict is taken for a shard that is there",
        "F15, found by the simulation",
        668,
        ("Layout.put_shards", "if not self._storage.exists(key):", "if not key:"),
    ),
]

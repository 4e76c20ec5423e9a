"""Bugs planted in the index: COUNTEREXAMPLES.md 9 to 18, FAILURES.md rows, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["INDEX_BUGS"]


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str], scenario: str = "index") -> Bug:
    return Bug(name, row, seed, tuple(Change(f"index.{where}", old, new) for where, old, new in changes), scenario)


def _far(name: str, seed: int, *changes: tuple[str, str, str]) -> Bug:
    return _bug(name, "index 9", seed, *changes, scenario="index_far")


INDEX_BUGS = [
    _bug(
        "a lookup lists packs before singles",
        "index 9",
        16,
        (
            "find",
            "listed = {key: self._storage.singles(shard, key)}",
            "packs = self._storage.packs(shard)\nlisted = {key: self._storage.singles(shard, key)}",
        ),
        (
            "find",
            "return self._sequentially(shard, [key], listed, may_have_packs=True, share=NEVER_WHOLE).get(key)",
            "lines = self._newest_singles(key, listed[key])[0]\n"
            "for stat in packs:\n"
            "    lines += self._of_pack(stat, [key], NEVER_WHOLE) or ()\n"
            "return self._winners([key], lines + self._of_shard(shard, [key], NEVER_WHOLE)).get(key)",
        ),
    ),
    _bug(
        "a lookup reads the shard before it lists what waits",
        "index 9",
        29,
        (
            "find",
            "listed = {key: self._storage.singles(shard, key)}",
            "early = self._of_shard(shard, [key], NEVER_WHOLE)\nlisted = {key: self._storage.singles(shard, key)}",
        ),
        (
            "find",
            "return self._sequentially(shard, [key], listed, may_have_packs=True, share=NEVER_WHOLE).get(key)",
            "lines = self._newest_singles(key, listed[key])[0]\n"
            "for stat in self._storage.packs(shard):\n"
            "    lines += self._of_pack(stat, [key], NEVER_WHOLE) or ()\n"
            "return self._winners([key], lines + early).get(key)",
        ),
    ),
    _bug(
        "get_many lists packs before singles",
        "index 9",
        27,
        (
            "find_many",
            "listed = list_singles(shard)\nreturn self._sequentially(",
            "keys = by_shard[shard]\n"
            "packs = self._storage.packs(shard)\n"
            "lines = []\n"
            "for key, stats in list_singles(shard).items():\n"
            "    lines += self._newest_singles(key, stats)[0]\n"
            "for stat in packs:\n"
            "    lines += self._of_pack(stat, keys, SHARE_FOR_WHOLE) or ()\n"
            "return self._winners(keys, lines + self._of_shard(shard, keys, SHARE_FOR_WHOLE))\n"
            "return self._sequentially(",
        ),
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
        ("find_many", "may_have_packs=shard in packed", "may_have_packs=shard in work.packs"),
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
            "merged = merge(base, incoming, shape, what=what, in_order=was_checked, is_wide=is_wide)",
            "merged = merge(base, incoming, shape, what=what, in_order=was_checked, is_wide=is_wide)\n"
            "live = [line for line in merged.data.splitlines() if not self._schema.is_tombstone(line)]\n"
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
        "a compiler deletes everything below the prefix",
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
        (
            "_merge",
            "lines_of(blob.data, what=what) if was_checked else self._schema.lines(blob.data, what=what)",
            "self._schema.lines(early, what=what)",
        ),
    ),
    _bug(
        "objects go before the shard is there",
        "F18",
        0,
        (
            "_merge",
            "merged = merge(base, incoming, shape, what=what, in_order=was_checked, is_wide=is_wide)",
            "merged = merge(base, incoming, shape, what=what, in_order=was_checked, is_wide=is_wide)\n"
            "self._storage.remove(read)",
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
            "_sequentially",
            "if may_have_packs:",
            "if any(listed.values()) and not lines:\n    return {}\nif may_have_packs:",
        ),
    ),
    _bug(
        "the oldest single is read",
        "index, the newest single",
        1,
        ("_newest_singles", "newest_stamp = max(", "newest_stamp = min("),
    ),
    Bug(
        "only the newest single of a key is read",
        "planted from outside",
        0,
        (
            Change(
                "Reader._newest_singles",
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
        (
            "_newest_singles",
            "if single_stamp(stat.key) == newest_stamp]",
            "if single_stamp(stat.key) == newest_stamp][-1:]",
        ),
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
        ("RecordEncoder._stamp", "self._stamps.after(self._scope, key, times.common)", "times.common"),
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
        940,
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
        ("_among", "at = bisect_left(places, place, at)", "at = len(places)"),
    ),
    _bug(
        "a guess is taken for the place of a line",
        "index, the order of a shard",
        0,
        ("_near", "while low < high and not is_there:", "while low < high - 1 and not is_there:"),
        scenario="index/test_index_decide.py::test_few_incoming_lines_find_their_place_whatever_the_key_is",
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
        "F23",
        5,
        ("check_records", "if known is not None and number < known.records:\n    what", "if False:\n    what"),
    ),
    _bug(
        "a lookup takes a shard of any size",
        "F23",
        5,
        ("_seek_once", "if version is None and shard is not None:", 'if shard == "":'),
        (
            "_in_shard",
            "if size == 0:\n    self.check_size(shard, size)\n    return []\nat =",
            "if size == 0:\n    return []\nat =",
        ),
    ),
    _bug(
        "objects go before their fold is recorded",
        "F23",
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
        "F23",
        717,
        ("Compiler._record", "for shard in sorted(recorded) for key", "for shard in sorted(report.merged) for key"),
    ),
    _bug(
        "a digest is compared with another version's",
        "F23",
        119,
        ("is_unexplained", "or not storage.is_current(shard, blob.version):", ":"),
    ),
    _bug(
        "a fold that is not recorded yet counts as damage",
        "F23",
        0,
        (
            "is_unexplained",
            "for key, data in storage.waiting(shard).items():",
            "for key, data in dict[Key, bytes]().items():",
        ),
    ),
    _bug(
        "what is recorded is not looked at again",
        "F23",
        356,
        ("is_unexplained", "and after.value.count(shard) == known:", ":"),
    ),
    _bug(
        "changed bytes of a shard are not compared",
        "F23",
        5,
        ("_Verifier._shard", 'known.sum not in ("", count.sum) and', "known.sum is None and"),
    ),
    _bug(
        "a line that was replaced in its pack explains nothing",
        "F23",
        113,
        ("explains", "(is_pack or rank(other, shape) == rank(line, shape))", "rank(other, shape) == rank(line, shape)"),
    ),
    _bug(
        "a conflict is taken for a shard that is there",
        "F15, found by the simulation",
        668,
        ("Layout.put_shards", "if not self._storage.store.exists(key):", "if not key:"),
    ),
    _far(
        "a far lookup does not list packs again where a single was gone",
        43,
        ("_concurrently", "moved.add(shard)", "pass"),
    ),
    _far(
        "a far lookup does not read the shard again where a pack was gone",
        16,
        ("_concurrently", "folded.add(shard)", "pass"),
    ),
    _far(
        "a far lookup reads the shard while packs are listed",
        120,
        (
            "_concurrently",
            "self._storage.together([*of_singles, *(partial(list_packs, shard) for shard in packed)])",
            "reads = [partial(read_shard, shard, keys) for shard, keys in wanted.items()]\n"
            "self._storage.together([*of_singles, *(partial(list_packs, shard) for shard in packed), *reads])",
        ),
        (
            "_concurrently",
            "[*of_packs, *(partial(read_shard, shard, keys) for shard, parts in of_shards.items() for keys in parts)]",
            "of_packs",
        ),
    ),
    _bug(
        "a far get_many lists packs only where it saw some",
        "index 9, singles that became a pack since",
        0,
        (
            "find_many",
            "packed = [shard for shard in by_shard if shard in work.shards]",
            "packed = [shard for shard in by_shard if shard in work.packs]",
        ),
        scenario="index/test_index_cost.py::test_a_far_get_many_looks_for_a_pack_that_was_made_of_singles_since",
    ),
    _bug(
        "a compiler checks no shard before it builds upon it",
        "F23",
        0,
        ("_merge", "base_sum == ours or (known is not None and known.sum == base_sum)", "True"),
        scenario="index/test_index_cost.py::"
        "test_a_shard_of_which_no_digest_is_recorded_is_checked_before_it_is_built_upon",
    ),
]

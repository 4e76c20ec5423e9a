"""Bugs planted in the index: COUNTEREXAMPLES.md 9 to 18, FAILURES.md rows, and what the simulation itself found."""

from __future__ import annotations

from planted.bug import Bug, Change

__all__ = ["INDEX_BUGS"]


def _bug(name: str, row: str, seed: int, *changes: tuple[str, str, str], scenario: str = "index") -> Bug:
    return Bug(
        name, row, seed, tuple(Change(f"limpet.index.{module}", old, new) for module, old, new in changes), scenario
    )


_FIND = "        shard = shard_of(place, self._manifest.depth)\n"

INDEX_BUGS = [
    _bug(
        "a lookup lists packs before singles",
        "index 9",
        16,
        ("reader", _FIND, _FIND + "        packs = self._storage.packs(shard)\n"),
        ("reader", "self._storage.packs(shard):\n            lines += ", "packs:\n            lines += "),
    ),
    _bug(
        "a lookup reads the shard before it lists what waits",
        "index 9",
        29,
        ("reader", _FIND, _FIND + "        early = self._in_shard(key, shard)\n"),
        ("reader", "        lines += self._in_shard(key, shard)\n", "        lines += early\n"),
    ),
    _bug(
        "get_many lists packs before singles",
        "index 9",
        27,
        (
            "reader",
            "        lines: list[bytes] = []\n        if shard in work.singles:\n",
            "        lines: list[bytes] = []\n        packs = self._storage.packs(shard)\n"
            "        if shard in work.singles:\n",
        ),
        (
            "reader",
            "self._storage.packs(shard):\n                lines += ",
            "packs:\n                lines += ",
        ),
    ),
    _bug(
        "the folders of packs are listed before those of singles",
        "index 9",
        1310,
        (
            "storage",
            "        singles = frozenset(self.store.list_dirs(self.keys.inbox))\n"
            "        return Work(singles, frozenset(self.store.list_dirs(self.keys.packs)))\n",
            "        packs = frozenset(self.store.list_dirs(self.keys.packs))\n"
            "        singles = frozenset(self.store.list_dirs(self.keys.inbox))\n"
            "        return Work(singles, packs)\n",
        ),
    ),
    _bug(
        "a scan looks for packs only where there were some",
        "index 9, singles that became a pack since",
        330,
        ("storage", " or shard in work.shards:\n", " or shard in work.packs:\n"),
    ),
    _bug(
        "get_many looks for packs only where there were some",
        "index 9, singles that became a pack since",
        1056,
        ("reader", "        if shard in work.shards:\n", "        if shard in work.packs:\n"),
    ),
    _bug(
        "packs are gathered into a pack",
        "index 11",
        2,
        (
            "compiler",
            "            case Step.PACK:\n",
            "            case Step.PACK:\n                singles += packs\n",
        ),
    ),
    _bug(
        "a compiler drops tombstones",
        "index 12, index 13, index 14, index 15, index 16",
        0,
        (
            "compiler",
            "        merged = merge(base, incoming, shape, what=what)\n",
            "        merged = merge(base, incoming, shape, what=what)\n"
            "        live = [line for line in merged.data.splitlines() if not self._schema.is_gone(line)]\n"
            "        merged = merge(live, {}, shape, what=what)\n",
        ),
    ),
    _bug(
        "in put_many the first record of a key counts",
        "index 18",
        0,
        (
            "writer",
            "            shards[(place[0] << 8 | place[1]) >> above][place] = line\n",
            "            shards[(place[0] << 8 | place[1]) >> above].setdefault(place, line)\n",
        ),
    ),
    _bug(
        "a compiler deletes whatever is below the prefix",
        "F18",
        0,
        (
            "compiler",
            "        report.merged[shard] = read\n",
            "        below = [*self._storage.singles(shard), *self._storage.packs(shard)]\n"
            "        report.merged[shard] = [stat.key for stat in below]\n",
        ),
    ),
    _bug(
        "the lock alone keeps compilers apart",
        "F12, F8",
        17,
        ("compiler", "put(what, merged.data, when=Match(blob.version))", "put(what, merged.data)"),
    ),
    _bug(
        "a refused shard is put again, with a fresh version and the old merge",
        "F22",
        17,
        (
            "compiler",
            "        except (Conflict, OutcomeUnknown):\n",
            "        except Conflict:\n"
            "            now = Match(self._storage.shard(shard).version)\n"
            "            version = self._storage.store.put(what, merged.data, when=now)\n"
            "        except OutcomeUnknown:\n",
        ),
    ),
    _bug(
        "the base is read before the version that it is swapped on",
        "F15",
        173,
        (
            "compiler",
            "        blob = self._storage.shard(shard)\n",
            "        early = self._storage.shard(shard).data\n        blob = self._storage.shard(shard)\n",
        ),
        ("compiler", "(blob.data, what=what)\n", "(early, what=what)\n"),
    ),
    _bug(
        "objects go before the shard is there",
        "F18",
        0,
        (
            "compiler",
            "        merged = merge(base, incoming, shape, what=what)\n",
            "        merged = merge(base, incoming, shape, what=what)\n        self._storage.remove(read)\n",
        ),
    ),
    _bug(
        "a fold of unknown outcome counts as done",
        "F3, F4",
        0,
        (
            "compiler",
            "        except (Conflict, OutcomeUnknown):\n",
            "        except OutcomeUnknown:\n            version = blob.version\n        except Conflict:\n",
        ),
    ),
    _bug(
        "a pack of unknown outcome counts as there",
        "F3, F4",
        17,
        (
            "compiler",
            "        except OutcomeUnknown:\n            report.conflicts = 1\n            return report\n",
            "        except OutcomeUnknown:\n            pass\n",
        ),
        ("compiler", "self._storage.add(self._storage.keys.pack(", "self._storage.store.put(self._storage.keys.pack("),
    ),
    _bug(
        "an object that is gone is an error",
        "index, a 404 is skipped",
        6,
        (
            "storage",
            "            if isinstance(outcome, Missing):\n                continue\n",
            "",
        ),
    ),
    _bug(
        "an object that is gone means that there is no record",
        "index, a 404 is skipped",
        6,
        (
            "reader",
            "self._storage.singles_of(shard, key))\n",
            "(listed := self._storage.singles_of(shard, key)))\n"
            "        if listed and not lines:\n            return None\n",
        ),
    ),
    _bug(
        "the oldest single is read",
        "index, the newest single",
        1,
        ("reader", "        newest_stamp = max(", "        newest_stamp = min("),
    ),
    Bug(
        "only the newest single of a key is read",
        "planted from outside",
        0,
        (
            Change(
                "limpet.index.reader",
                "        if len(found) < len(wanted) < len(listed):\n",
                "        if len(found) < len(wanted) < 0:\n",
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
            "reader",
            "if single_stamp(stat.key) == newest_stamp]\n",
            "if single_stamp(stat.key) == newest_stamp][-1:]\n",
        ),
    ),
    _bug(
        "of equal times the one that came first wins",
        "index, ties",
        6,
        ("decide", "    return stamp, gone, line\n", '    return stamp, gone, b""\n'),
    ),
    _bug(
        "of equal times a record beats its tombstone",
        "index, ties",
        5,
        ("decide", "    return stamp, gone, line\n", '    return stamp, b"", line\n'),
    ),
    _bug(
        "a missing shard reads as an empty one",
        "F23",
        5,
        (
            "storage",
            "(self.keys.shard(shard), size_max=SHARD_BYTES_MAX)\n        except Missing:\n",
            "(self.keys.shard(shard), size_max=SHARD_BYTES_MAX)\n        except Missing:\n"
            '            return Blob(b"", self.store.put(self.keys.shard(shard), b""), self.store.now(), 0)\n',
        ),
    ),
    _bug(
        "a shard that lost records is built upon",
        "F23",
        5,
        ("compiler", "        if known is not None and len(base) < known.records:\n", "        if known is None:\n"),
        ("compiler", "        if not is_recorded and is_unexplained(", "        if known is None and is_unexplained("),
    ),
    _bug(
        "a later range may be of another version",
        "index, a read across two versions",
        155,
        ("reader", "range=(start, stop), if_match=version)", "range=(start, stop))"),
    ),
    _bug(
        "a process stamps the same time twice",
        "index, stamps rise",
        391,
        ("stamps", "floor.at + TICK\n", "floor.at\n"),
    ),
    _bug(
        "a put after a get may be older than what was seen",
        "index 17",
        10,
        (
            "stamps",
            "            if seen is None or stamp_text(seen) < stamp:\n",
            "            if True:\n",
        ),
    ),
    _bug(
        "a put does not heed what was seen",
        "index 17, found by the simulation",
        12,
        (
            "bulk",
            "if at else self._stamps.after(self._scope, key, times.common)\n",
            "if at else times.common\n",
        ),
    ),
    _bug(
        "a bad object is deleted before it is kept",
        "F4",
        13,
        (
            "quarantine",
            "    for key, (data, reason) in bad.items():\n",
            "    for key, (data, reason) in bad.items():\n        storage.remove([key])\n",
        ),
    ),
    _bug(
        "a fold is recorded although another one followed",
        "index, counts",
        19,
        ("manifest", " or is_current(shard, fold.version):\n", " or True:\n"),
    ),
    _bug(
        "a shard is counted that could not be put",
        "index, counts",
        0,
        (
            "compiler",
            "        except (Conflict, OutcomeUnknown):\n",
            "        except (Conflict, OutcomeUnknown):\n"
            "            count = Count(merged.records, len(merged.data), sum_of(merged.data))\n"
            "            report.folds[shard] = Fold(count, blob.version, base_sum)\n"
            "            report.merged[shard] = []\n",
        ),
    ),
    _bug(
        "a shard that would not change is not put",
        "F25",
        69,
        (
            "compiler",
            "            version = self._storage.store.put(what, merged.data, when=",
            "            version = blob.version if merged.data == blob.data else "
            "self._storage.store.put(what, merged.data, when=",
        ),
        scenario="index_disk",
    ),
    _bug(
        "an older program cuts off the new column",
        "mixed versions",
        79,
        (
            "decide",
            "    missing = width - 1 - line.count(SEPARATOR)\n",
            "    missing = width - 1 - line.count(SEPARATOR)\n"
            "    line = SEPARATOR.join(line.split(SEPARATOR)[:width])\n",
        ),
    ),
    _bug(
        "new lines are put behind the others",
        "index, the order of a shard",
        0,
        ("decide", "at = bisect_left(places, place, taken)\n", "at = len(places)\n"),
    ),
    _bug(
        "an older description overwrites a newer one",
        "found by the simulation",
        18,
        ("described", " or _version_of(blob.data) > version):\n", "):\n"),
    ),
    _bug(
        "what waits is shown unchecked",
        "F23, found by the simulation",
        463,
        (
            "reader",
            "            for line in checked(self._schema, self._manifest.depth, shard, data, what=at)\n",
            "            for line in data.splitlines()\n",
        ),
    ),
    _bug(
        "a short shard is scanned as if it were whole",
        "F23, B5",
        5,
        (
            "reader",
            "        if known is not None and number < known.records:\n            what",
            "        if False:\n            what",
        ),
    ),
    _bug(
        "a lookup takes a shard of any size",
        "F23, B5",
        5,
        ("reader", "            if version is None and shard is not None:\n", '            if shard == "":\n'),
        (
            "reader",
            "        if size == 0:\n            self.demand_whole(shard, size)\n            return []\n        at =",
            "        if size == 0:\n            return []\n        at =",
        ),
    ),
    _bug(
        "objects go before their fold is recorded",
        "F23, B5",
        0,
        (
            "index",
            "        self._cell.update(change)\n        self._storage.remove([key for shard in sorted(recorded) for",
            "        self._storage.remove([key for keys in report.merged.values() for key in keys])\n"
            "        self._cell.update(change)\n        self._storage.remove([key for shard in sorted(recorded) for",
        ),
    ),
    _bug(
        "objects go although their fold was not recorded",
        "F23, B5",
        717,
        ("index", "for shard in sorted(recorded) for key", "for shard in sorted(report.merged) for key"),
    ),
    _bug(
        "a digest is compared with another version's",
        "F23, B5",
        119,
        (
            "compiler",
            " or not is_current(storage, shard, blob.version):\n",
            ":\n",
        ),
    ),
    _bug(
        "a fold that is not recorded yet counts as damage",
        "F23, B5",
        0,
        (
            "compiler",
            "        for key, data in storage.waiting(shard).items():\n",
            "        for key, data in dict[Key, bytes]().items():\n",
        ),
    ),
    _bug(
        "what is recorded is not looked at again",
        "F23, B5",
        356,
        ("compiler", " and after.value.count(shard) == known:\n", ":\n"),
    ),
    _bug(
        "changed bytes of a shard are not compared",
        "F23, B5",
        5,
        ("verify", 'known.sum not in ("", count.sum) and', "known.sum is None and"),
    ),
    _bug(
        "a line that was replaced in its pack explains nothing",
        "F23, B5",
        113,
        ("decide", "(is_pack or rank(other, shape) == rank(line, shape))", "rank(other, shape) == rank(line, shape)"),
    ),
    _bug(
        "a conflict is taken for a shard that is there",
        "F15, found by the simulation",
        668,
        ("layout", "                    if not self._storage.exists(key):\n", "                    if not key:\n"),
    ),
]

"""Reading a whole index again, reporting what is wrong with it, and repairing what can be derived from what is there.

A repair makes nothing up, and removes nothing before its records are durable where they belong. Every step is safe
beside readers, writers and compilers: what waits moves only forward, and a shard is swapped on the version that was
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from limpet.errors import Conflict, Corrupt, LimpetError, Missing, OutcomeUnknown
from limpet.index.codec.lines import DELETED, UPDATED_AT
from limpet.index.compiler import is_unexplained, keep, read_quarantined
from limpet.index.decide import DEPTHS, merge, newest, packed, shard_ids
from limpet.index.describe import json_schema, package
from limpet.index.maintain.offline import (
    Flaw,
    FlawKind,
    Inspected,
    MisplacedRecords,
    ObjectPlace,
    WholeIndex,
    batches,
    changed_meanwhile,
    good_lines,
    inspect,
    load,
    lower,
    misnamed,
    place_of,
    put_packs,
    record,
    sole,
    sound,
)
from limpet.index.storage import COUNTED_DEPTH_MAX, SHARD_BYTES_MAX, WAITING_BYTES_MAX, Count, Fold, Manifest, sum_of
from limpet.keys import Key
from limpet.store.api import Absent, Blob, Match, Stat, Version
from limpet.store.outcome import put_bytes


def verify(whole: WholeIndex, *, repair: bool = False, accept_loss: bool = False) -> VerifyReport:
    """Read everything again and report what is wrong. With `repair`, put right what can be derived, and nothing else.

    With `accept_loss`, damaged and missing shards become what is left of them, so that everything can be read and
    compiled again; their bytes are kept in quarantine, and the loss is noted there.
    It may run beside writers, readers and compilers. Memory is bounded by 32 MiB of objects or the largest one,
    whichever is more.
    Raises: Missing; Corrupt for a manifest that makes no sense; whatever a read met; if anything is to be changed
    Held, when another repair, reshard or purge is at work.
    Cost: 1 GET + 1 LIST per 1,000 objects + 1 GET an object; a repair see `Repairs`.
    Crash: a dry run changes nothing; every repair is whole or can be done again.
    """
    if not repair and not accept_loss:
        return _Verifier(whole).run()
    with sole(whole):
        verifier = _Verifier(whole)
        report = verifier.run()
        if accept_loss:
            verifier.accept_loss()
        if repair:
            verifier.repair()
        return report


class _Verifier:
    def __init__(self, whole: WholeIndex) -> None:
        self._whole = whole
        self._storage = whole.storage
        self._keys = whole.storage.keys
        self._manifest = load(whole).value
        _demand_sense(self._manifest, self._keys.manifest)
        self._schema = self._manifest.schema
        self._report = VerifyReport()
        self._folds: dict[str, Fold] = {}
        self._counts_make_sense = _wrong_counts(self._manifest) is None

    def run(self) -> VerifyReport:
        seen: set[str] = set()
        for batch in batches(self._storage.store.list(self._keys.root)):
            wanted = [stat for stat in batch if not self._by_name(stat.key)]
            large = {stat.key for stat in wanted if self._is_too_large(stat)}
            seen |= self._by_content([stat.key for stat in wanted if stat.key not in large])
            seen |= {place.shard for place in (place_of(self._keys, key) for key in large) if place.role == "shard"}
        for shard in shard_ids(self._manifest.depth):
            if shard not in seen:
                self._unlisted(shard)
        self._descriptions()
        self._counted()
        return self._report

    def repair(self) -> None:
        """Repair what was found, and note in the report what is right again."""
        findings = self._report.findings
        hopeless = {finding.key for finding in findings if finding.kind not in FIXABLE or finding.repaired}
        wanted = [finding.key for finding in findings if finding.key not in hopeless]
        outcomes = Repairs(self._whole, self._manifest, self._folds).run(wanted)
        for at, finding in enumerate(findings):
            if finding.key in outcomes:
                error = outcomes[finding.key]
                what = finding.what if error is None else f"{finding.what}; it could not be repaired: {error}"
                findings[at] = replace(finding, what=what, repaired=error is None)

    def accept_loss(self) -> None:
        """Go on with what is left of damaged shards, and note in the report what was kept of each."""
        findings = self._report.findings
        repairs = Repairs(self._whole, load(self._whole).value, {})
        done: dict[Key, str | None] = {}
        for at, finding in enumerate(findings):
            place = place_of(self._keys, finding.key)
            if finding.kind not in ACCEPTABLE or place.role != "shard" or finding.repaired:
                continue
            if finding.key not in done:
                try:
                    done[finding.key] = repairs.accept_loss(finding.key, place.shard, finding.what)
                except (Conflict, Corrupt, OutcomeUnknown) as error:
                    findings[at] = replace(finding, what=f"{finding.what}; the loss could not be accepted: {error}")
                    done[finding.key] = None
            summary = done[finding.key]
            if summary is not None:
                findings[at] = replace(finding, what=f"{finding.what}; accepted: {summary}", repaired=True)

    def _add(self, kind: FlawKind, key: Key, what: str) -> None:
        self._report.findings.append(Finding(kind, key, what))

    def _by_name(self, key: Key) -> bool:
        """Note what is wrong with the name of an object; whether it need not be read."""
        place = place_of(self._keys, key)
        if place.role in ("adopted", "described", "lock"):
            return True
        if place.role in ("plain", "unknown"):
            self._add("unknown", key, "does not belong to the index")
            return True
        if place.role != "quarantined" and len(place.shard) != self._manifest.depth:
            self._add("stray", key, f"belongs to an index of depth {len(place.shard)}, not {self._manifest.depth}")
            return True
        return False

    def _is_too_large(self, stat: Stat) -> bool:
        waits = place_of(self._keys, stat.key).role in ("single", "pack")
        size_max = WAITING_BYTES_MAX if waits else SHARD_BYTES_MAX
        if stat.size <= size_max:
            return False
        self._add("too_large", stat.key, f"has {stat.size} bytes, more than the {size_max} that it may have")
        return True

    def _by_content(self, keys: Sequence[Key]) -> set[str]:
        """Read objects, and note what is wrong with them; the shards among them that are there."""
        shards: set[str] = set()
        for key, found in self._storage.store.get_many(keys, size_max=SHARD_BYTES_MAX).items():
            place = place_of(self._keys, key)
            if isinstance(found, Missing):
                continue  # merged since it was listed; a shard is asked for again
            if isinstance(found, LimpetError):
                raise found  # F23: what cannot be read now is not known to be good
            self._report.read_bytes += len(found.data)
            if place.role == "quarantined":
                self._quarantined(key, found)
            elif place.role == "shard":
                self._shard(key, place.shard, found)
                shards.add(place.shard)
            else:
                self._waits(key, place, found)
        return shards

    def _quarantined(self, key: Key, blob: Blob) -> None:
        try:
            kept = read_quarantined(blob.data, what=key)
        except Corrupt as error:
            self._add("quarantined", key, f"cannot be read itself: {error}")
        else:
            self._add("quarantined", key, f"keeps what was {kept.key}: {kept.reason}")

    def _waits(self, key: Key, place: ObjectPlace, blob: Blob) -> None:
        self._report.waiting += 1
        found = inspect(blob.data, self._schema, self._manifest.depth, place.shard)
        flaws = found.flaws
        if not blob.data:
            flaws = [Flaw("cut_off", "is empty")]
        elif place.role == "single" and found.readable:
            wrong = misnamed(self._keys, key, place.shard, found, self._schema)
            flaws = [*flaws, wrong] if wrong else flaws
        for flaw in flaws:
            self._add(flaw.kind, key, flaw.what)

    def _shard(self, key: Key, shard: str, blob: Blob) -> None:
        found = inspect(blob.data, self._schema, self._manifest.depth, shard)
        self._report.shards += 1
        self._report.records += found.keys - found.tombstones
        self._report.tombstones += found.tombstones
        for flaw in found.flaws:
            self._add(flaw.kind, key, flaw.what)
        if not found.readable:
            return
        known = self._manifest.count(shard) if self._counts_make_sense else None
        if known is not None and found.keys < known.records:
            known = self._again().count(shard)
        if known is not None and found.keys < known.records:
            missing = known.records - found.keys
            self._add("lost", key, f"has {found.keys} records, and had {known.records} before: {missing} are lost")
        elif not found.flaws:
            count = Count(found.keys, len(blob.data), sum_of(blob.data))
            if (
                known is not None
                and known.sum not in ("", count.sum)
                and is_unexplained(self._storage, self._manifest, shard, blob, found.own)
            ):
                self._add("changed", key, "has other bytes than those that were compiled: it was changed since")
            else:
                self._folds[shard] = Fold(count, blob.version)

    def _again(self) -> Manifest:
        """The manifest as it is now, for a second look at what seems wrong.   Raises: Conflict if it was resharded."""
        now = load(self._whole).value
        if now.generation != self._manifest.generation:
            raise changed_meanwhile(self._whole)
        return now

    def _unlisted(self, shard: str) -> None:
        """A shard that no listing showed. A list is only a hint (F22)."""
        key = self._keys.shard(shard)
        try:
            blob = self._storage.store.get(key, size_max=SHARD_BYTES_MAX)
        except Missing:
            self._again()
            self._add("missing_shard", key, "is missing, and an index always has all its shards")
        else:
            self._shard(key, shard, blob)

    def _descriptions(self) -> None:
        wanted = descriptions(self._whole, self._manifest)
        found = self._storage.read(wanted)
        if any(found.get(key) != data for key, data in wanted.items()):
            for key, data in descriptions(self._whole, self._again()).items():
                if found.get(key) != data:
                    what = "is not what the manifest says" if key in found else "is not there"
                    self._add("description", key, what)

    def _counted(self) -> None:
        """What the manifest says of shards that are in order."""
        key = self._keys.manifest
        wrong = _wrong_counts(self._manifest)
        if wrong is not None:
            self._add("counts", key, wrong)
        elif self._behind(self._manifest):
            now = self._again()
            behind = self._behind(now)
            if behind:
                recorded, there = now.count(behind[0]), self._folds[behind[0]].count
                more = f"; and {len(behind) - 1} shards more" if len(behind) > 1 else ""
                assert recorded is not None
                self._add(
                    "behind",
                    key,
                    f"says {recorded.records} records and {recorded.size} bytes of shard {behind[0]}, which has "
                    f"{there.records} and {there.size}{'' if recorded.sum else ' (no digest is recorded)'}{more}",
                )

    def _behind(self, manifest: Manifest) -> list[str]:
        """The shards that the manifest does not count as they were read."""
        if manifest.depth > COUNTED_DEPTH_MAX or _wrong_counts(manifest):
            return []
        return [shard for shard, fold in self._folds.items() if manifest.count(shard) != fold.count]


def _demand_sense(manifest: Manifest, key: Key) -> None:
    names = {field.name for field in manifest.fields}
    if manifest.depth not in DEPTHS or not {manifest.key, UPDATED_AT, DELETED} <= names:
        raise Corrupt(f"{key} makes no sense: depth {manifest.depth}, key {manifest.key!r}", hint=RESTORE)


def _wrong_counts(manifest: Manifest) -> str | None:
    """Why the counts cannot be those of this index; None if they can."""
    length = 16**manifest.depth if manifest.depth <= COUNTED_DEPTH_MAX else 0
    if len(manifest.records) != length or len(manifest.sizes) != length:
        return f"has {len(manifest.records)} counts and {len(manifest.sizes)} sizes; there are {length} shards to count"
    if any(number < 0 for number in (*manifest.records, *manifest.sizes)):
        return "has a count below zero"
    return None


NOTES: frozenset[FlawKind] = frozenset({"behind", "quarantined"})
"""Worth knowing, and nothing is wrong: counts may lag behind after a crash, and quarantine is where bad objects go."""

RESTORE = "restore the object from a backup; lost records cannot be derived from anything else"
_ACCEPT = "restore the object from a backup; `limpet index verify --accept-loss` goes on with what is left"
_REPAIR = "`limpet index verify --repair` puts it right"
_COMPILE = "the next compile moves it to quarantine; restore it from a backup, or put its records again"

HINTS: dict[FlawKind, str] = {
    "bad_line": RESTORE,
    "bad_value": RESTORE,
    "behind": "the next compile of that shard notes it, or `limpet index verify --repair`",
    "changed": _ACCEPT,
    "counts": _REPAIR,
    "cut_off": RESTORE,
    "description": _REPAIR,
    "duplicate": _REPAIR,
    "lost": _ACCEPT,
    "misnamed": _REPAIR,
    "misplaced": _REPAIR,
    "missing_shard": _ACCEPT,
    "order": _REPAIR,
    "quarantined": "look at it, put its records again if they matter, and remove it",
    "stray": "if no reshard is under way, `limpet index verify --repair` brings its records home",
    "too_large": "no Limpet writes such an object: move it elsewhere; restore a shard from a backup",
    "unknown": "Limpet did not write it and never touches it; move it elsewhere, or `limpet index adopt` it",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that verify found. `what` follows the object's name; `repaired` says that it is so no longer."""

    kind: FlawKind
    key: Key
    what: str
    repaired: bool = False

    @property
    def wrong(self) -> bool:
        """Whether it is more than a note, and still so."""
        return not self.repaired and self.kind not in NOTES

    @property
    def hint(self) -> str:
        """What to do about it."""
        if self.kind in ("bad_line", "bad_value", "cut_off"):
            return _ACCEPT if "/shards/" in self.key else _COMPILE
        return HINTS[self.kind]


@dataclass(slots=True)
class VerifyReport:
    """What was read, and what was found. `records` and `tombstones` are those of the shards, `waiting` is objects."""

    shards: int = 0
    waiting: int = 0
    records: int = 0
    tombstones: int = 0
    read_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, or nothing any more."""
        return not any(finding.wrong for finding in self.findings)


FIXABLE: frozenset[FlawKind] = frozenset(
    {"behind", "counts", "description", "duplicate", "misnamed", "misplaced", "order", "stray"}
)
"""What is derived. An object with any other flaw is left as it is."""

ACCEPTABLE: frozenset[FlawKind] = frozenset(
    {"bad_line", "bad_value", "changed", "cut_off", "lost", "missing_shard", "too_large"}
)
"""Damage of a shard with which an operator may choose to go on."""

_ORDER = ("shard", "single", "pack", "described")


def descriptions(whole: WholeIndex, manifest: Manifest) -> dict[Key, bytes]:
    """What other tools should find beside the manifest."""
    keys = whole.storage.keys
    return {
        keys.package: package(whole.name, manifest),
        keys.json_schema: json_schema(whole.name, manifest),
    }


class Repairs:
    """Repairs objects of one index, each on what a fresh read shows of it.

    Cost: a shard 1 GET + 1 PUT and a swap of the manifest, and 1 PUT for each shard that gets records back; a single
    1 GET + 1 PUT + 1 DELETE; a pack 2 GETs + 1 PUT + 1 DELETE and a swap; a misplaced object see
    `MisplacedRecords`; a description 2 GETs + 1 PUT; counts 1 swap and 1 HEAD for each shard that is not recorded so.
    """

    def __init__(self, whole: WholeIndex, manifest: Manifest, folds: Mapping[str, Fold]) -> None:
        self._whole = whole
        self._storage = whole.storage
        self._manifest = manifest
        self._schema = manifest.schema
        self._misplaced = MisplacedRecords(whole, manifest)
        self._folds = {**folds}
        self._written = False

    def run(self, keys: Iterable[Key]) -> dict[Key, LimpetError | None]:
        """Repair these objects; for each None, or why it could not be done. Shards come first: the rest builds on them.

        Raises: what no repair can do anything about (Unavailable, Denied).
        """
        places = {key: place_of(self._storage.keys, key) for key in keys}
        outcomes: dict[Key, LimpetError | None] = {}
        if self._storage.keys.manifest in places:
            self._count()
            self._manifest = load(self._whole).value  # the rest goes by its counts
        for key, place in sorted(
            places.items(), key=lambda item: (self._is_misplaced(item[1]), _ORDER.index(item[1].role))
        ):
            try:
                self._one(key, place)
            except (Conflict, Corrupt, OutcomeUnknown) as error:
                outcomes[key] = error
            else:
                outcomes[key] = None
        if self._written:
            self._count()
        return outcomes

    def accept_loss(self, key: Key, shard: str, reason: str) -> str:
        """Have a damaged shard be what is left of it: its good lines, in order. Returns what was kept and what was not.

        First its bytes are kept in quarantine, then the manifest promises no more than is left, then the shard is put.
        Raises: Corrupt for a shard that is too large to be read; Conflict or OutcomeUnknown if others write it.
        Cost: 1 GET, 2 PUTs, 2 swaps.   Crash: at any point, nothing that was there is gone; accepting it again goes on.
        """
        known = self._manifest.count(shard)
        try:
            blob = self._storage.store.get(key, size_max=SHARD_BYTES_MAX)
        except Missing:
            blob = None
        data = blob.data if blob else b""
        kept = newest(good_lines(data, self._schema, self._manifest.depth, shard), self._schema.shape)
        left = packed(kept, self._schema.shape)
        lost = max(known.records - len(kept), 0) if known else None
        summary = f"{len(kept)} records are kept, {'an unknown number' if lost is None else lost} are lost"
        keep(self._storage, shard, key, data if left != data else b"", f"{reason}; the loss was accepted: {summary}")
        if left != data or blob is None:
            self._swap(shard, left, blob.version if blob else None, len(kept))
        else:
            count = Count(len(kept), len(left), sum_of(left))
            lower(self._whole, self._manifest, {shard: count})
            self._folds[shard] = Fold(count, blob.version)
        self._count()
        return summary

    def _is_misplaced(self, place: ObjectPlace) -> bool:
        return bool(place.shard) and len(place.shard) != self._manifest.depth

    def _one(self, key: Key, place: ObjectPlace) -> None:
        if self._is_misplaced(place):
            self._misplaced.bring_home(key, place)
        elif place.role == "shard":
            self._shard(key, place.shard)
        elif place.role in ("pack", "single"):
            self._waiting(key, place)
        elif key != self._storage.keys.manifest:
            self._describe(key)

    def _shard(self, key: Key, shard: str) -> None:
        """Order, duplicates, and records of other shards, which are durable in packs of theirs before they go here."""
        blob = self._storage.shard(shard)
        found = self._inspected(key, shard, blob.data)
        put_packs(self._storage, self._manifest, found.others)
        kept = newest(found.own, self._schema.shape)
        data = packed(kept, self._schema.shape)
        self._swap(shard, data, blob.version, len(kept))

    def _waiting(self, key: Key, place: ObjectPlace) -> None:
        """Forward only: a single becomes a pack, a pack goes into its shard.

        A reader that listed before and finds the object gone looks further on, so the records must be there: never in
        another single or pack beside it, which its listing did not show.
        """
        try:
            data = self._storage.store.get(key, size_max=WAITING_BYTES_MAX).data
        except Missing:
            return  # compiled meanwhile
        found = self._inspected(key, place.shard, data)
        put_packs(self._storage, self._manifest, found.others)
        if place.role == "single":
            put_packs(self._storage, self._manifest, found.own)
        else:
            self._fold(place.shard, found.own)
        self._storage.store.delete(key)

    def _fold(self, shard: str, lines: list[bytes]) -> None:
        at = self._storage.keys.shard(shard)
        blob = self._storage.shard(shard)
        base = sound(self._manifest, shard, blob.data, what=at)
        shape = self._schema.shape
        merged = merge(base, newest(lines, shape), shape, what=at)
        # F25: even if nothing changes, so that the pack is deleted only after our own write is durable
        self._swap(shard, merged.data, blob.version, merged.records)

    def _count(self) -> None:
        """Record the shards that were read or put, unless another process has put them since."""
        record(self._whole, self._manifest.generation, self._folds)

    def _describe(self, key: Key) -> None:
        """Write a description again. It is read before the manifest, so a later schema's is never replaced."""
        try:
            when: Match | Absent = Match(self._storage.store.head(key).version)
        except Missing:
            when = Absent()
        data = descriptions(self._whole, load(self._whole).value)[key]
        put_bytes(self._storage.store, self._storage.runtime, key, data, when)

    def _inspected(self, key: Key, shard: str, data: bytes) -> Inspected:
        found = inspect(data, self._schema, self._manifest.depth, shard)
        if not found.readable:
            raise Corrupt(f"{key} {found.flaws[0].what}")
        return found

    def _swap(self, shard: str, data: bytes, version: Version | None, records: int) -> None:
        """Put a shard, of which the manifest promises neither more nor a digest until it is recorded."""
        key = self._storage.keys.shard(shard)
        count = Count(records, len(data), sum_of(data))
        lower(self._whole, self._manifest, {shard: count})
        when = Match(version) if version is not None else Absent()
        put = put_bytes(self._storage.store, self._storage.runtime, key, data, when)
        self._folds[shard] = Fold(count, put)
        self._written = True

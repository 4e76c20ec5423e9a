"""Checking a whole index, and repairing what can be derived from the existing objects.

A repair invents no data, and removes nothing before its records are durable where they belong. Every step is safe while
readers, writers and compilers run: waiting records move only forward, and a shard is swapped on the version that was
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from limpet.index.codec import DELETED, UPDATED_AT
from limpet.index.compiler import is_unexplained, read_quarantined
from limpet.index.decide import DEPTHS, shard_ids
from limpet.index.describe import descriptions, package
from limpet.index.maintain import WholeIndex, batches, changed_meanwhile, load, sole
from limpet.index.maintain.flaws import (
    ACCEPTABLE,
    FIXABLE,
    UNREADABLE,
    Flaw,
    FlawKind,
    ObjectPlace,
    inspect,
    misnamed,
    place_of,
)
from limpet.index.maintain.repairs import Repairs
from limpet.index.storage import COUNTED_DEPTH_MAX, SHARD_BYTES_MAX, WAITING_BYTES_MAX, Count, Fold, Manifest, sum_of
from limpet.kernel.errors import Conflict, Corrupt, Missing, OutcomeUnknown
from limpet.kernel.keys import Key, is_key
from limpet.kernel.store.api import Blob
from limpet.kernel.wording import many


def verify(whole: WholeIndex, *, repair: bool = False, accept_loss: bool = False) -> VerifyReport:
    """Read the whole index and report problems. `repair`: repair what can be derived, and nothing else.

    `accept_loss`: reduce damaged and missing shards to their remaining valid records, so that everything can be read
    and compiled again; their bytes are kept in quarantine, and the loss is noted there.
    It may run while others write, read and compile. Memory is bounded by 32 MiB of objects, or the largest one.
    Raises: Missing; Corrupt for an inconsistent manifest; any read error; with `repair` or `accept_loss` Held, if
    another repair, reshard or purge is running.
    Cost: 1 GET + 1 LIST per 1,000 objects + 1 GET an object; a repair see `Repairs`.
    Crash: a dry run changes nothing; a repair is complete or can be repeated.
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
        names = {field.name for field in self._manifest.fields}
        if self._manifest.depth not in DEPTHS or not {self._manifest.key, UPDATED_AT, DELETED} <= names:
            raise Corrupt(
                f"{self._keys.manifest} is not valid: depth {self._manifest.depth}, key {self._manifest.key!r}",
                hint=RESTORE,
            )
        self._schema = self._manifest.schema
        self._report = VerifyReport()
        self._folds: dict[str, Fold] = {}
        self._counts_make_sense = _wrong_counts(self._manifest) is None

    def run(self) -> VerifyReport:
        """Read every object, and report its problems."""
        seen: set[str] = set()
        for batch in batches(self._storage.store.list(self._keys.root)):
            places: dict[Key, ObjectPlace] = {}
            for stat in batch:
                place = place_of(self._keys, stat.key)
                size_max = WAITING_BYTES_MAX if place.role in ("single", "pack") else SHARD_BYTES_MAX
                if place.role in ("adopted", "described", "lock"):
                    continue
                if place.role in ("plain", "unknown") or not is_key(stat.key):
                    self._add("unknown", stat.key, "does not belong to the index")
                elif place.role != "quarantined" and len(place.shard) != self._manifest.depth:
                    what = f"belongs to an index of depth {len(place.shard)}, not {self._manifest.depth}"
                    self._add("stray", stat.key, what)
                elif stat.size > size_max:
                    what = f"has {many(stat.size, 'byte')}, more than the {size_max:,} that it may have"
                    self._add("too_large", stat.key, what)
                    seen |= {place.shard} if place.role == "shard" else set()
                else:
                    places[stat.key] = place
            seen |= self._read(places)
        for shard in shard_ids(self._manifest.depth):
            if shard not in seen:
                self._unlisted(shard)
        self._descriptions()
        self._counted()
        return self._report

    def repair(self) -> None:
        """Repair the findings, and mark in the report which are repaired."""
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
        """Accept the loss of damaged shards, and note in the report what was kept of each."""
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

    def _read(self, places: Mapping[Key, ObjectPlace]) -> set[str]:
        shards: set[str] = set()
        # a missing object was merged since it was listed; a missing shard is looked up later
        for key, found in self._storage.blobs(places, SHARD_BYTES_MAX).items():
            place = places[key]
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
            self._add("quarantined", key, f"holds the former {kept.key}: {kept.reason}")

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
            known = self._current().count(shard)
        if known is not None and found.keys < known.records:
            missing = known.records - found.keys
            self._add("lost", key, f"has {many(found.keys, 'record')}, and had {known.records} before: {missing} lost")
        elif not found.flaws:
            count = Count(found.keys, len(blob.data), sum_of(blob.data))
            if (
                known is not None
                and known.sum not in ("", count.sum)
                and is_unexplained(self._storage, self._manifest, shard, blob, found.own)
            ):
                self._add("changed", key, "was changed since it was compiled: its digest differs")
            else:
                self._folds[shard] = Fold(count, blob.version)

    def _current(self) -> Manifest:
        """The current manifest, to confirm an apparent problem.   Raises: Conflict if it was resharded."""
        now = load(self._whole).value
        if now.generation != self._manifest.generation:
            raise changed_meanwhile(self._whole)
        return now

    def _unlisted(self, shard: str) -> None:
        """Look up a shard that no listing showed: a listing is only a hint (F22)."""
        key = self._keys.shard(shard)
        try:
            blob = self._storage.store.get(key, size_max=SHARD_BYTES_MAX)
        except Missing:
            self._current()
            self._add("missing_shard", key, "is missing, and an index always has all its shards")
        else:
            self._shard(key, shard, blob)

    def _descriptions(self) -> None:
        wanted = descriptions(self._keys, self._whole.name, self._manifest)
        found = self._storage.read(wanted)
        if any(found.get(key) != data for key, data in wanted.items()):
            for key, data in descriptions(self._keys, self._whole.name, self._current()).items():
                if found.get(key) == package(self._whole.name, self._manifest, formats=False):
                    self._add("outdated", key, "describes the columns as Limpet 0.1 did")
                elif found.get(key) != data:
                    what = "differs from the manifest" if key in found else "is missing"
                    self._add("description", key, what)

    def _counted(self) -> None:
        key = self._keys.manifest
        wrong = _wrong_counts(self._manifest)
        if wrong is not None:
            self._add("counts", key, wrong)
        elif self._behind(self._manifest):
            now = self._current()
            behind = self._behind(now)
            if behind:
                recorded, there = now.count(behind[0]), self._folds[behind[0]].count
                more = f"; and {many(len(behind) - 1, 'shard')} more" if len(behind) > 1 else ""
                assert recorded is not None
                self._add(
                    "behind",
                    key,
                    f"says {many(recorded.records, 'record')} and {many(recorded.size, 'byte')} of shard {behind[0]}, "
                    f"which has {there.records} and {there.size}"
                    f"{'' if recorded.sum else ' (no digest is recorded)'}{more}",
                )

    def _behind(self, manifest: Manifest) -> list[str]:
        if manifest.depth > COUNTED_DEPTH_MAX or _wrong_counts(manifest):
            return []
        return [shard for shard, fold in self._folds.items() if manifest.count(shard) != fold.count]


def _wrong_counts(manifest: Manifest) -> str | None:
    """Why the counts are inconsistent; None if they are not."""
    length = 16**manifest.depth if manifest.depth <= COUNTED_DEPTH_MAX else 0
    if len(manifest.records) != length or len(manifest.sizes) != length:
        counts = many(len(manifest.records), "count")
        return f"has {counts} and {many(len(manifest.sizes), 'size')}, and not those of {many(length, 'shard')}"
    if any(number < 0 for number in (*manifest.records, *manifest.sizes)):
        return "has a count below zero"
    return None


NOTES: frozenset[FlawKind] = frozenset({"behind", "outdated", "quarantined"})
"""Information, not problems: counts may lag behind after a crash, quarantine holds invalid objects, and some readers
cannot read datetimes by an older description."""
_FROM_BACKUP = "restore the object from a backup"
RESTORE = f"{_FROM_BACKUP}; lost records cannot be derived from anything else"
_COMPILE = "the next compile moves it to quarantine; restore it from a backup, or put its records again"
HINTS: dict[FlawKind, str] = {
    **dict.fromkeys(FIXABLE, "`limpet index verify --repair` repairs it"),
    **dict.fromkeys(ACCEPTABLE, f"{_FROM_BACKUP}; `limpet index verify --accept-loss` keeps what is left of it"),
    "behind": "the next compile of that shard notes it, or `limpet index verify --repair`",
    "outdated": "it is right; `limpet index verify --repair` writes it for more readers",
    "quarantined": "examine it, put its records again if they matter, and delete it",
    "stray": "if no reshard is running, `limpet index verify --repair` moves its records to their shards",
    "too_large": "Limpet does not write such objects: move it elsewhere; restore a shard from a backup",
    "unknown": "Limpet did not write it and never touches it; move it elsewhere, or `limpet index adopt` it",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of `verify`. `what` follows the object's name in a sentence; `repaired`: it is resolved."""

    kind: FlawKind
    key: Key
    what: str
    repaired: bool = False

    @property
    def wrong(self) -> bool:
        """Whether it is an unresolved problem, not only information."""
        return not self.repaired and self.kind not in NOTES

    @property
    def hint(self) -> str:
        """What to do about it."""
        return _COMPILE if self.kind in UNREADABLE and "/shards/" not in self.key else HINTS[self.kind]


@dataclass(slots=True)
class VerifyReport:
    """What was read and found. `records` and `tombstones` are counts of the shards, `waiting` counts objects."""

    shards: int = 0
    waiting: int = 0
    records: int = 0
    tombstones: int = 0
    read_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no unresolved problem."""
        return not any(finding.wrong for finding in self.findings)

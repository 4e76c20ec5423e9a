"""Reading a whole index again, and saying what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from limpet.errors import Conflict, Corrupt, LimpetError, Missing, OutcomeUnknown
from limpet.index.compiler import is_unexplained
from limpet.index.decide import DEPTHS, shard_ids
from limpet.index.fields import DELETED, UPDATED_AT
from limpet.index.findings import RESTORE, Finding, VerifyReport
from limpet.index.inspection import Flaw, Kind, inspect, misnamed
from limpet.index.manifest import COUNTED_DEPTH_MAX, Count, Fold, Manifest, sum_of
from limpet.index.offline import Whole, anew, batches, load, sole
from limpet.index.places import Place, place_of
from limpet.index.quarantine import read_quarantined
from limpet.index.repair import ACCEPTABLE, FIXABLE, Repairs, descriptions
from limpet.index.storage import SHARD_BYTES_MAX, WAITING_BYTES_MAX
from limpet.keys import Key
from limpet.store.api import Blob, Stat


def verify(whole: Whole, *, repair: bool = False, accept_loss: bool = False) -> VerifyReport:
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
    def __init__(self, whole: Whole) -> None:
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
            told = done[finding.key]
            if told is not None:
                findings[at] = replace(finding, what=f"{finding.what}; accepted: {told}", repaired=True)

    def _add(self, kind: Kind, key: Key, what: str) -> None:
        self._report.findings.append(Finding(kind, key, what))

    def _by_name(self, key: Key) -> bool:
        """Note what its name tells; whether there is no need to read it here."""
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

    def _waits(self, key: Key, place: Place, blob: Blob) -> None:
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
            if known is not None and known.sum not in ("", count.sum) and self._is_changed(shard, blob, found.own):
                self._add("changed", key, "has other bytes than those that were compiled: it was changed since")
            else:
                self._folds[shard] = Fold(count, blob.version)

    def _is_changed(self, shard: str, blob: Blob, lines: Sequence[bytes]) -> bool:
        return is_unexplained(self._storage, self._manifest, shard, blob, lines)

    def _again(self) -> Manifest:
        """The manifest as it is now, for a second look at what seems wrong.   Raises: Conflict if it was resharded."""
        now = load(self._whole).value
        if now.generation != self._manifest.generation:
            raise anew(self._whole)
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
                told, there = now.count(behind[0]), self._folds[behind[0]].count
                more = f"; and {len(behind) - 1} shards more" if len(behind) > 1 else ""
                assert told is not None
                self._add(
                    "behind",
                    key,
                    f"says {told.records} records and {told.size} bytes of shard {behind[0]}, which has "
                    f"{there.records} and {there.size}{'' if told.sum else ' (no digest is recorded)'}{more}",
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

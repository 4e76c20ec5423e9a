"""Checking a whole index, and repairing what can be derived from the existing objects.

A repair invents no data, and removes nothing before its records are durable where they belong. Every step is safe while
readers, writers and compilers run: waiting records move only forward, and a shard is swapped on the version that was
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from limpet.errors import Conflict, Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown
from limpet.index.codec import DELETED, END, UPDATED_AT, Schema, lines_of
from limpet.index.compiler import is_unexplained, keep, read_quarantined
from limpet.index.decide import DEPTHS, digest, keys_of, merge, newest, packed, rank, shard_ids, shard_of
from limpet.index.describe import descriptions, package
from limpet.index.maintain import (
    ALL,
    WholeIndex,
    batches,
    changed_meanwhile,
    checked_lines,
    load,
    lower,
    put_packs,
    record,
    sole,
)
from limpet.index.storage import (
    COUNTED_DEPTH_MAX,
    SHARD_BYTES_MAX,
    WAITING_BYTES_MAX,
    Count,
    Fold,
    IndexStorage,
    Manifest,
    sum_of,
)
from limpet.keys import IndexKeys, Key, is_key
from limpet.store.api import Absent, Blob, Match, Version
from limpet.store.outcome import put_bytes


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
                    what = f"has {stat.size} bytes, more than the {size_max} that it may have"
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
        """Read objects and report their problems. Returns the shards that were read."""
        shards: set[str] = set()
        for key, found in self._storage.store.get_many(places, size_max=SHARD_BYTES_MAX).items():
            if isinstance(found, Missing):
                continue  # merged since it was listed; a missing shard is looked up later
            if isinstance(found, LimpetError):
                raise found  # F23: an unreadable object is not known to be valid
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
            self._add("lost", key, f"has {found.keys} records, and had {known.records} before: {missing} are lost")
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
        """Compare the counts in the manifest with the valid shards."""
        key = self._keys.manifest
        wrong = _wrong_counts(self._manifest)
        if wrong is not None:
            self._add("counts", key, wrong)
        elif self._behind(self._manifest):
            now = self._current()
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
        """The shards whose recorded counts differ from what was read."""
        if manifest.depth > COUNTED_DEPTH_MAX or _wrong_counts(manifest):
            return []
        return [shard for shard, fold in self._folds.items() if manifest.count(shard) != fold.count]


def _wrong_counts(manifest: Manifest) -> str | None:
    """Why the counts are inconsistent; None if they are not."""
    length = 16**manifest.depth if manifest.depth <= COUNTED_DEPTH_MAX else 0
    if len(manifest.records) != length or len(manifest.sizes) != length:
        return f"has {len(manifest.records)} counts and {len(manifest.sizes)} sizes; there are {length} shards to count"
    if any(number < 0 for number in (*manifest.records, *manifest.sizes)):
        return "has a count below zero"
    return None


Role = Literal["adopted", "described", "lock", "pack", "plain", "quarantined", "shard", "single", "unknown"]
_SHARD = re.compile("[0-9a-f]{1,4}")


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """The role of an object, and its shard; `plain` is a record file that another program wrote."""

    role: Role
    shard: str = ""


def place_of(keys: IndexKeys, key: Key) -> ObjectPlace:
    """The role of an object below the index's root. A shard may have any depth.

    Compilers read all objects in a shard's folder of `inbox/` or `packs/`, so all count as singles or packs.
    """
    if key in (keys.manifest, keys.package, keys.json_schema):
        return ObjectPlace("described")
    match key.removeprefix(f"{keys.root}/").split("/"):
        case ["inbox", shard, _, *_] if _SHARD.fullmatch(shard):
            return ObjectPlace("single", shard)
        case ["packs", shard, _, *_] if _SHARD.fullmatch(shard):
            return ObjectPlace("pack", shard)
        case ["shards", name]:
            stem, _, ending = name.rpartition(".")
            if ending == "usv" and _SHARD.fullmatch(stem):
                return ObjectPlace("shard", stem)
            if ending == "lock" and (stem == ALL or _SHARD.fullmatch(stem)):
                return ObjectPlace("lock", stem)
        case ["adopted", *_]:
            return ObjectPlace("adopted")
        case ["imports", name] if name.endswith(".json"):
            return ObjectPlace("described")
        case ["quarantine", _, name] if name.endswith(".json"):
            return ObjectPlace("quarantined")
        case [name] if name.endswith(".usv"):
            return ObjectPlace("plain")
    return ObjectPlace("unknown")


FlawKind = Literal[
    "bad_line",
    "bad_value",
    "behind",
    "changed",
    "counts",
    "cut_off",
    "description",
    "duplicate",
    "lost",
    "misnamed",
    "misplaced",
    "missing_shard",
    "order",
    "outdated",
    "quarantined",
    "stray",
    "too_large",
    "unknown",
]

UNREADABLE = frozenset({"bad_line", "bad_value", "cut_off"})


@dataclass(frozen=True, slots=True)
class Flaw:
    """One problem; `what` follows the object's name in a sentence."""

    kind: FlawKind
    what: str


@dataclass(slots=True)
class Inspected:
    """The lines of an object: those of its shard, those of other shards, and their problems."""

    own: list[bytes] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)
    keys: int = 0
    tombstones: int = 0
    flaws: list[Flaw] = field(default_factory=list)

    @property
    def readable(self) -> bool:
        """Whether every line is a valid record."""
        return not any(flaw.kind in UNREADABLE for flaw in self.flaws)


def inspect(data: bytes, schema: Schema, depth: int, shard: str) -> Inspected:
    """Check every line and decode every value. The check ends at the first invalid line."""
    found = Inspected()
    if data and not data.endswith(END):
        found.flaws.append(Flaw("cut_off", "does not end with a line feed: it was cut off"))
        return found
    try:
        lines = schema.lines(data, what="it")
    except Corrupt as error:
        said = str(error)
        what = said.removeprefix("it ") if said.startswith("it ") else f"has a bad line: {said.removeprefix('it: ')}"
        found.flaws.append(Flaw("bad_line", what))
        return found
    _check_values(found, lines, schema)
    if found.readable:
        _check_places(found, lines, schema, depth, shard)
    return found


def good_lines(data: bytes, schema: Schema, depth: int, shard: str) -> list[bytes]:
    """The lines of a damaged shard that are valid records of that shard."""
    good: list[bytes] = []
    for line in data.split(END)[:-1]:
        try:
            [line] = schema.lines(line + END, what="it")
            [key] = keys_of([line], schema.shape)
        except Corrupt:
            continue
        if shard_of(digest(key), depth) == shard and _wrong_value(line, schema, where="it") is None:
            good.append(line)
    return good


def _check_values(found: Inspected, lines: list[bytes], schema: Schema) -> None:
    bad = 0
    first = ""
    for number, line in enumerate(lines, 1):
        wrong = _wrong_value(line, schema, where=f"line {number}")
        if wrong is not None:
            first = first or wrong
            bad += 1
    if bad:
        found.flaws.append(Flaw("bad_value", first + (f"; and {bad - 1} lines more" if bad > 1 else "")))


def _wrong_value(line: bytes, schema: Schema, *, where: str) -> str | None:
    """Why this line cannot come from a put; None if it can."""
    try:
        values = schema.values(line)
        key = schema.key_text(values[schema.key])
        if not schema.is_tombstone(line):
            schema.line(values, schema.stamp_of(line), where=where)
    except Corrupt as error:
        return f"{where}: {error}"
    except Invalid as error:
        return str(error) if str(error).startswith(where) else f"{where}: {error}"
    if keys_of([line], schema.shape) != [key.encode()]:
        return f"{where}: the key {key!r} is written in another way than Limpet does"
    return None


def _check_places(found: Inspected, lines: list[bytes], schema: Schema, depth: int, shard: str) -> None:
    keys = keys_of(lines, schema.shape)
    places = [digest(key) for key in keys]
    for number, (line, place) in enumerate(zip(lines, places, strict=True), 1):
        (found.own if shard_of(place, depth) == shard else found.others).append(line)
        found.tombstones += schema.is_tombstone(line)
        if len(found.others) == 1 and found.others[0] is line:
            belongs = shard_of(place, depth)
            found.flaws.append(Flaw("misplaced", f"has records of other shards: line {number} belongs to {belongs}"))
    found.keys = len(set(keys))
    if found.keys < len(keys):
        found.flaws.append(Flaw("duplicate", f"has {len(keys)} records of {found.keys} keys"))
    out = next((number for number, (a, b) in enumerate(pairwise(places), 2) if a > b), None)
    if out is not None:
        found.flaws.append(Flaw("order", f"is out of order at line {out}"))


def misnamed(keys: IndexKeys, key: Key, shard: str, found: Inspected, schema: Schema) -> Flaw | None:
    """How the name of a single contradicts its content, if it does; readers look it up by name."""
    lines = [*found.own, *found.others]
    if len(lines) != 1:
        return Flaw("misnamed", f"is a single, and has {len(lines)} records")
    [line] = lines
    text = keys_of([line], schema.shape)[0].decode()
    id_ = key.rpartition("/")[2].partition("-")[2].removesuffix(".usv")
    if not id_ or key != keys.single(shard, text, schema.stamp_of(line), id_):
        return Flaw("misnamed", f"is the record {text!r} of {schema.stamp_of(line)}, and its name says otherwise")
    return None


MOVED = b"the records of this shard lie in shards of another depth"
"""It has no final line feed, so that every reader and compiler refuses it."""

_HOLDING = ("pack", "shard", "single")


def misplaced_in(storage: IndexStorage, depth: int) -> Iterator[tuple[Key, ObjectPlace]]:
    """The objects of another depth that may hold records.   Cost: 1 LIST per 1,000 objects, at least 3."""
    for prefix in (storage.keys.inbox, storage.keys.packs, storage.keys.shards):
        for stat in storage.store.list(prefix):
            place = place_of(storage.keys, stat.key)
            if place.role in _HOLDING and len(place.shard) != depth:
                yield stat.key, place


def retire(storage: IndexStorage, key: Key, version: Version) -> None:
    """Remove a shard of another depth whose records are durable elsewhere, if it still has this version.

    Raises: OutcomeUnknown if another process wrote it since: it stays.   Cost: 1 PUT + 1 DELETE.
    Crash: a shard that is marked as moved; the next run removes it.
    """
    put_bytes(storage.store, storage.runtime, key, MOVED, Match(version), deletable=True)
    storage.store.delete(key)


NOTES: frozenset[FlawKind] = frozenset({"behind", "outdated", "quarantined"})
"""Information, not problems: counts may lag behind after a crash, quarantine holds invalid objects, and some readers
cannot read datetimes by an older description."""

RESTORE = "restore the object from a backup; lost records cannot be derived from anything else"
_ACCEPT = "restore the object from a backup; `limpet index verify --accept-loss` keeps what is left of it"
_REPAIR = "`limpet index verify --repair` repairs it"
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
        if self.kind in ("bad_line", "bad_value", "cut_off"):
            return _ACCEPT if "/shards/" in self.key else _COMPILE
        return HINTS[self.kind]


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


FIXABLE: frozenset[FlawKind] = frozenset(
    {"behind", "counts", "description", "duplicate", "misnamed", "misplaced", "order", "outdated", "stray"}
)
"""What can be derived from other objects. An object with another flaw is not changed."""

ACCEPTABLE: frozenset[FlawKind] = frozenset(
    {"bad_line", "bad_value", "changed", "cut_off", "lost", "missing_shard", "too_large"}
)
"""Damage of a shard that an operator may accept."""

_ORDER = ("shard", "single", "pack", "described")


class Repairs:
    """Repairs objects of one index, each after reading it again.

    Cost: a shard 1 GET + 1 PUT and a swap of the manifest, and 1 PUT for each shard that gets records back; a single
    1 GET + 1 PUT + 1 DELETE; a pack 2 GETs + 1 PUT + 1 DELETE and a swap; a misplaced object see `move`;
    a description 2 GETs + 1 PUT; counts 1 swap and 1 HEAD for each shard that is not recorded so.
    """

    def __init__(self, whole: WholeIndex, manifest: Manifest, folds: Mapping[str, Fold]) -> None:
        self._whole = whole
        self._storage = whole.storage
        self._manifest = manifest
        self._schema = manifest.schema
        self._folds = {**folds}
        self._written = False
        self._compared: tuple[str, dict[bytes, bytes]] = ("", {})
        """Cache of the shard that a misplaced object was last compared with: they come in the order of shards."""

    def run(self, keys: Iterable[Key]) -> dict[Key, LimpetError | None]:
        """Repair these objects; returns for each None, or the error. Shards come first: the rest depends on them.

        Raises: errors that concern all repairs (Unavailable, Denied).
        """
        places = {key: place_of(self._storage.keys, key) for key in keys}
        outcomes: dict[Key, LimpetError | None] = {}
        if self._storage.keys.manifest in places:
            self._count()
            self._manifest = load(self._whole).value  # the rest uses its counts
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
        """Replace a damaged shard by its valid lines, sorted. Returns a summary of records kept and lost.

        First its bytes are copied to quarantine, then the counts in the manifest are lowered, then the shard is put.
        Raises: Corrupt for a shard that is too large to be read; Conflict or OutcomeUnknown if others write it.
        Cost: 1 GET, 2 PUTs, 2 swaps.   Crash: nothing is lost; run it again.
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

    def move(self, key: Key, place: ObjectPlace) -> None:
        """Move the records of an object of another depth to their shards, then remove it.

        Raises: Corrupt if it cannot be read: it stays; OutcomeUnknown.
        Cost: 1 GET, 1 PUT for each shard that gets something, 1 DELETE; for a shard 1 PUT and 1 GET of each shard that
        its records belong to more.   Crash: the object still exists, and the move can be repeated.
        """
        try:
            blob = self._storage.store.get(key, size_max=SHARD_BYTES_MAX)
        except Missing:
            return
        if place.role == "shard" and blob.data == MOVED:
            self._storage.store.delete(key)
            return
        found = self._inspected(key, place.shard, blob.data)
        lines = [*found.own, *found.others]
        if place.role == "shard":
            put_packs(self._storage, self._manifest, self._uncovered(lines))
            retire(self._storage, key, blob.version)
        else:
            put_packs(self._storage, self._manifest, lines)
            self._storage.store.delete(key)

    def _uncovered(self, lines: Sequence[bytes]) -> list[bytes]:
        """The lines that are missing from their shard, or newer than the record there."""
        shape = self._schema.shape
        missing: list[bytes] = []
        for place, line in sorted(newest(lines, shape).items()):
            shard = shard_of(place, self._manifest.depth)
            if self._compared[0] != shard:
                there = lines_of(self._storage.shard(shard).data, what=self._storage.keys.shard(shard))
                self._compared = shard, newest(there, shape)
            standing = self._compared[1].get(place)
            if standing is None or rank(line, shape) > rank(standing, shape):
                missing.append(line)
        return missing

    def _is_misplaced(self, place: ObjectPlace) -> bool:
        return bool(place.shard) and len(place.shard) != self._manifest.depth

    def _one(self, key: Key, place: ObjectPlace) -> None:
        if self._is_misplaced(place):
            self.move(key, place)
        elif place.role == "shard":
            self._shard(key, place.shard)
        elif place.role in ("pack", "single"):
            self._waiting(key, place)
        elif key != self._storage.keys.manifest:
            self._describe(key)

    def _shard(self, key: Key, shard: str) -> None:
        """Repair order, duplicates and records of other shards, which are put into packs of those shards first."""
        blob = self._storage.shard(shard)
        found = self._inspected(key, shard, blob.data)
        put_packs(self._storage, self._manifest, found.others)
        kept = newest(found.own, self._schema.shape)
        data = packed(kept, self._schema.shape)
        self._swap(shard, data, blob.version, len(kept))

    def _waiting(self, key: Key, place: ObjectPlace) -> None:
        """Repair by moving records forward: a single becomes a pack, a pack is folded into its shard.

        A reader that listed the object and finds it gone continues with the next step, so the records must be there,
        and not in a new single or pack of the same step, which its listing did not show.
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
        base = checked_lines(self._manifest, shard, blob.data, what=at)
        shape = self._schema.shape
        merged = merge(base, newest(lines, shape), shape, what=at)
        # F25: even if nothing changes, so that our own write is durable before the pack is deleted
        self._swap(shard, merged.data, blob.version, merged.records)

    def _count(self) -> None:
        """Record the shards that were read or written, unless another process has written them since."""
        record(self._whole, self._manifest.generation, self._folds)

    def _describe(self, key: Key) -> None:
        """Write a description again. It is read before the manifest, so that of a later schema is never replaced."""
        try:
            when: Match | Absent = Match(self._storage.store.head(key).version)
        except Missing:
            when = Absent()
        data = descriptions(self._storage.keys, self._whole.name, load(self._whole).value)[key]
        put_bytes(self._storage.store, self._storage.runtime, key, data, when)

    def _inspected(self, key: Key, shard: str, data: bytes) -> Inspected:
        found = inspect(data, self._schema, self._manifest.depth, shard)
        if not found.readable:
            raise Corrupt(f"{key} {found.flaws[0].what}")
        return found

    def _swap(self, shard: str, data: bytes, version: Version | None, records: int) -> None:
        """Swap a shard. Before that, its counts in the manifest are lowered and its digest is removed."""
        key = self._storage.keys.shard(shard)
        count = Count(records, len(data), sum_of(data))
        lower(self._whole, self._manifest, {shard: count})
        when = Match(version) if version is not None else Absent()
        put = put_bytes(self._storage.store, self._storage.runtime, key, data, when)
        self._folds[shard] = Fold(count, put)
        self._written = True

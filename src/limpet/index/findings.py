"""What verify reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from limpet.index.inspection import Kind
from limpet.keys import Key

NOTES: frozenset[Kind] = frozenset({"behind", "quarantined"})
"""Worth knowing, and nothing is wrong: counts may lag behind after a crash, and quarantine is where bad objects go."""

RESTORE = "restore the object from a backup; records that are lost cannot be made anew"
_ACCEPT = "restore the object from a backup; `limpet index verify --accept-loss` goes on with what is left"
_REPAIR = "`limpet index verify --repair` puts it right"
_COMPILE = "the next compile moves it to quarantine; restore it from a backup, or put its records again"

HINTS: dict[Kind, str] = {
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

    kind: Kind
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

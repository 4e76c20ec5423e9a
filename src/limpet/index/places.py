"""What an object of an index is, told by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from limpet.index.offline import ALL
from limpet.keys import IndexKeys, Key

Role = Literal["adopted", "described", "lock", "pack", "plain", "quarantined", "shard", "single", "unknown"]

_SHARD = re.compile("[0-9a-f]{1,4}")


@dataclass(frozen=True, slots=True)
class Place:
    """What the object is for, and of which shard; `plain` is a record file as seed 001 lays them out."""

    role: Role
    shard: str = ""


def place_of(keys: IndexKeys, key: Key) -> Place:
    """The place of an object below the index's root. A shard may be of any depth.

    Whatever lies in a shard's folder of `inbox/` or `packs/` is read by compilers, so it counts as a single or a pack.
    """
    if key in (keys.manifest, keys.package, keys.json_schema):
        return Place("described")
    match key.removeprefix(f"{keys.root}/").split("/"):
        case ["inbox", shard, _, *_] if _SHARD.fullmatch(shard):
            return Place("single", shard)
        case ["packs", shard, _, *_] if _SHARD.fullmatch(shard):
            return Place("pack", shard)
        case ["shards", name]:
            stem, _, ending = name.rpartition(".")
            if ending == "usv" and _SHARD.fullmatch(stem):
                return Place("shard", stem)
            if ending == "lock" and (stem == ALL or _SHARD.fullmatch(stem)):
                return Place("lock", stem)
        case ["adopted", *_]:
            return Place("adopted")
        case ["imports", name] if name.endswith(".json"):
            return Place("described")
        case ["quarantine", _, name] if name.endswith(".json"):
            return Place("quarantined")
        case [name] if name.endswith(".usv"):
            return Place("plain")
    return Place("unknown")

"""The programs that the crash tests of the index run and kill: a writer, and a compiler."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from typing import Any

import limpet
from limpet.index import Index, decide, shard_id
from limpet.kernel.errors import OutcomeUnknown, Unavailable

__all__ = ["BEGAN", "SHARED", "Item", "compile_records", "key", "records", "write_records"]

SHARED = 40
"""Keys that all writers put, with times of their own."""
MORTAL = 10
"""The last of them are deleted now and then; then no older record may bring them back."""
OWN = 6
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Item:
    """What is put."""

    key: str
    text: str | None = None


def records(place: Any) -> Index[Item]:
    """The index that all of them use."""
    index: Index[Item] = place.index("items", Item, key="key")
    return index


@cache
def key(name: str) -> str:
    """A key of that name in one of two shards, so that there is always somebody else at work."""
    return next(found for n in count() if shard_id(found := f"{name}.{n}") in ("3a", "77"))


def write_records(url: str, slot: str, notes: str) -> None:
    """Put and delete, for ever. Notes in its own file, on disk before it goes on, what it begins and what was done."""
    lines = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    index = records(limpet.open(url))
    seen: set[str] = set()
    number = 0

    def note(**what: Any) -> None:
        os.write(lines, json.dumps(what).encode() + b"\n")
        os.fsync(lines)

    while True:
        number += 1
        act = _act(slot, f"{os.path.basename(notes)}.{number}")
        note(begin=number, **act)
        try:
            if act["kind"] == "own":
                # what an earlier life of this writer put is beaten only by one that has seen it
                fresh = {item[0] for item in act["items"]} - seen
                index.get_many(fresh)
                seen |= fresh
            _do(index, act)
        except (OutcomeUnknown, Unavailable):
            continue
        note(done=number)


def _act(slot: str, text: str) -> dict[str, Any]:
    chance = random.random()
    if chance < 0.4:
        keys = random.sample(range(SHARED), random.choice((1, 1, 1, 5)))
        items = [[key(f"shared{n}"), text, random.randrange(10**12)] for n in keys]
        return {"kind": "shared", "items": items}
    if chance < 0.43:
        return {"kind": "shared", "items": [[key(f"shared{SHARED - 1 - random.randrange(MORTAL)}"), None, None]]}
    keys = random.sample(range(OWN), random.choice((1, 1, 1, 3)))
    gone = chance < 0.6 and len(keys) == 1
    return {"kind": "own", "items": [[key(f"own{slot}.{n}"), None if gone else text, None] for n in keys]}


def _do(index: Index[Item], act: dict[str, Any]) -> None:
    values: list[dict[str, Any]] = []
    for name, text, at_us in act["items"]:
        stamp = {} if at_us is None else {"updated_at": BEGAN + timedelta(microseconds=at_us)}
        values.append({"key": name, "text": text, **stamp})
    if values[0]["text"] is None:
        index.delete(values[0]["key"])
    elif len(values) == 1:
        index.put(values[0])
    else:
        index.put_many(values)


def compile_records(url: str, notes: str) -> None:
    """Compile, for ever, now all and now what is due; packs are made although the index is small."""
    lines = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    decide.FOLD_BELOW_BYTES = 0
    decide.FOLD_SHARE = 10.0
    decide.FOLD_PACKS = 3
    decide.PACK_SINGLES = 1
    index = records(limpet.open(url))
    while True:
        try:
            report = index.compile(full=random.random() < 0.2)
        except (OutcomeUnknown, Unavailable):
            continue
        os.write(lines, json.dumps({"folded": report.folded, "packed": report.packed}).encode() + b"\n")

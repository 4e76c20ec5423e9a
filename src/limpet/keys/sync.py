"""What a supervisor and the nodes of a fleet keep."""

from __future__ import annotations

import re

from limpet.errors import Invalid
from limpet.keys.names import Key, name_of, segment

SYNC = "sync"
OUTBOX = f"{SYNC}/outbox"
CURSORS = f"{SYNC}/cursors"
DAMAGED = f"{SYNC}/damaged"
NODE = Key(f"{SYNC}/node.json")
SUPERVISOR = Key(f"{SYNC}/supervisor.lock")

LOG_MAX = 999_999_999
"""The last number of a log: one a second for 31 years. A larger one was not written by a node."""

_LOG = re.compile(r"sync/([^/]+)/([0-9]{10})\.jsonl")


def outbox_key(id_: str) -> Key:
    """One entry of a node's outbox."""
    return Key(f"{OUTBOX}/{segment(id_)}.json")


def cursor_key(node: str) -> Key:
    """How far this node has read the logs of `node`."""
    return Key(f"{CURSORS}/{segment(node)}.json")


def log_key(node: str, seq: int) -> Key:
    """What `node` did, part `seq`. Keys sort by it."""
    return Key(f"{SYNC}/{segment(node)}/{seq:010d}.jsonl")


def damaged_key(id_: str) -> Key:
    """An object of a node's own directory that could not be read, put aside."""
    return Key(f"{DAMAGED}/{segment(id_)}.json")


def log_of(key: str) -> tuple[str, int] | None:
    """The node and the number of a log; None for any other key, and for one that `log_key` does not make (F28)."""
    found = _LOG.fullmatch(key)
    if found is None or not 0 < int(found[2]) <= LOG_MAX:
        return None
    node = name_of(found[1])
    try:
        return (node, int(found[2])) if log_key(node, int(found[2])) == key else None
    except Invalid:
        return None

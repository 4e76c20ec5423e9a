"""What a supervisor and the nodes of a fleet keep."""

from __future__ import annotations

import re

from limpet.keys.names import Key, name_of, segment

__all__ = ["CURSORS", "NODE", "OUTBOX", "SUPERVISOR", "SYNC", "cursor_key", "log_key", "log_of", "outbox_key"]

SYNC = "sync"
OUTBOX = f"{SYNC}/outbox"
CURSORS = f"{SYNC}/cursors"
NODE = Key(f"{SYNC}/node.json")
SUPERVISOR = Key(f"{SYNC}/supervisor.lock")

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


def log_of(key: str) -> tuple[str, int] | None:
    """The node and the number of a log; None for any other key."""
    found = _LOG.fullmatch(key)
    return (name_of(found[1]), int(found[2])) if found else None

"""Names of entries and tasks, and what can be told from them alone."""

from __future__ import annotations

from limpet.errors import Invalid
from limpet.keys import is_minted, segment

RETRY_MARK = "~"
TASK = "task.json"
BATCH = "tasks.jsonl"
LEASE = "lease.json"
REMOTE = "remote.json"
KINDS = frozenset((TASK, BATCH, LEASE, REMOTE))


def check_id(id_: str) -> str:
    """The entry of a user's id.   Raises: Invalid for an id that no name can hold, or of a form that we mint."""
    if not isinstance(id_, str) or RETRY_MARK in id_:
        raise Invalid(f"the task id {id_!r} has a {RETRY_MARK!r}", hint="limpet marks retried tasks with it")
    if is_minted(id_):
        raise Invalid(f"the task id {id_!r} looks like one that limpet makes", hint="prefix it with a word of yours")
    return segment(id_)


def entry_of(id_: str) -> str:
    """The entry that a task id names: a minted one as it is, a user's encoded, a retried one with its mark."""
    if not isinstance(id_, str) or not id_:
        raise Invalid(f"a task id is a non-empty string, not {id_!r}")
    base, mark, life = id_.rpartition(RETRY_MARK)
    if mark and _is_number(life):
        return f"{base if is_minted(base) else segment(base)}{mark}{life}"
    return id_ if is_minted(id_) else segment(id_)


def batch_of(id_: str) -> tuple[str, int] | None:
    """The batch and the number of a task of a batch; None for any other id."""
    entry, dot, n = id_.rpartition(".")
    return (entry, int(n)) if dot and is_minted(id_) and _is_number(n) else None


def count_of(entry: str) -> int:
    """How many tasks an entry holds: a batch says so in its name."""
    return int(entry.rpartition("-")[2]) if is_batch(entry) else 1


def is_batch(entry: str) -> bool:
    """Whether an entry is a batch."""
    _, dash, count = entry.rpartition("-")
    return bool(dash) and _is_number(count) and is_minted(entry)


def life_before(name: str) -> str | None:
    """The name whose next life this is; None for a first life."""
    base, mark, life = name.rpartition(RETRY_MARK)
    if not mark or not _is_number(life):
        return None
    return base if life == "1" else f"{base}{RETRY_MARK}{int(life) - 1}"


def name_of_receipt(key: str) -> str:
    """The entry, or the task of a batch, that a receipt is about."""
    return key.rsplit("/", 1)[1].removesuffix(".json")


def parts_of_entry(key: str, pending: str) -> tuple[str, str] | None:
    """The entry and the kind of one of its objects; None for a key that is not ours."""
    if not key.startswith(f"{pending}/"):
        return None
    entry, _, kind = key[len(pending) + 1 :].partition("/")
    return (entry, kind) if kind in KINDS else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()

"""Names, segments and files: what a key may be, and the keys that belong to no room.

Two encodings, one for each border:

- `segment(name)` turns a user's name into one segment of `[A-Za-z0-9_-]`, non-leading dots and `%XX`.
- `disk_name(segment, leaf=)` turns a segment into a file name that survives case-folding and Unicode-normalising
  disks, and keeps the object `k` apart from the folder of `k/x`.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NewType
from urllib.parse import quote, unquote

from limpet.errors import Invalid

Key = NewType("Key", str)

KEY_BYTES_MAX = 900
DISK_NAME_BYTES_MAX = 240
SEGMENT_BYTES_MAX = 160
HASHED = "%h"

FLEET = Key("limpet.json")
LOCKS = "locks/user"
CELLS = "cells"
BACKUP = Key("backup.json")
BACKUPS = "backup"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_HIDDEN_FOLDER = re.compile(r"(^|/)(\.uploads|[^/]*\.versions)/")
_FILE_ENDING = re.compile(r"\.(json|jsonl|usv|lock|parquet|avro|puffin|csv|txt|sql)$")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_DISK_UNSAFE = re.compile(r"^\.|[^a-z0-9._%@~+,-]")
_DISK_ESCAPE = re.compile(r"=([0-9a-f]{2})")
_PLAIN = re.compile(r"(?:[a-z0-9_%@~+,-][a-z0-9._%@~+,-]*(?:/|$))+")
_ODD_FOLDER = re.compile(r"\.(json|jsonl|usv|lock|parquet|avro|puffin|csv|txt|sql|versions)/")


def segment(name: str) -> str:
    """One key segment for a user's name; distinct names give distinct segments.

    Raises: Invalid for an empty name, control characters or text that is not valid Unicode.
    """
    if not isinstance(name, str) or not name:
        raise Invalid(f"a name must be a non-empty string, not {name!r}")
    if _CONTROL.search(name):
        raise Invalid(f"the name {name!r} has control characters", hint="use printable characters")
    return encoded(name)


def encoded(name: str) -> str:
    """One key segment for any non-empty text; distinct texts give distinct segments. Long ones become a hash."""
    quoted = _PERCENT.sub(lambda found: found[0].lower(), quote(name, safe="").replace("~", "%7e"))
    if quoted.startswith("."):
        quoted = "%2e" + quoted[1:]
    if quoted.endswith(".versions"):
        quoted = quoted.removesuffix(".versions") + "%2eversions"
    if max(len(quoted), len(disk_name(quoted, leaf=False))) > SEGMENT_BYTES_MAX:
        return HASHED + hashlib.sha256(name.encode()).hexdigest()
    return quoted


def name_of(part: str) -> str:
    """The user's name behind a segment (a hashed one stays as it is)."""
    return part if part.startswith(HASHED) else unquote(part)


@lru_cache(maxsize=4096)
def check(key: str) -> Key:
    """`key`, if every store can hold it; the same rule for all of them.

    Raises: Invalid for `..`, empty segments, a leading slash, control characters, what some server misreads
    (a backslash, folders named `.uploads` or `*.versions`), or more bytes than a store takes.
    """
    if not isinstance(key, str) or not key:
        raise Invalid(f"a key must be a non-empty string, not {key!r}")
    if is_own_path(key):
        return Key(key)
    if _CONTROL.search(key):
        raise Invalid(f"the key {key!r} has control characters", hint="use printable characters")
    if "\\" in key or _HIDDEN_FOLDER.search(key):
        raise Invalid(
            f"the key {key!r} has a backslash, or a folder `.uploads` or `*.versions`",
            hint="some servers take the one for a slash and hide the others; choose another name",
        )
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise Invalid(f"the key {key!r} has an empty, '.' or '..' segment", hint="write it as segment/segment")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise Invalid(f"a key has at most {KEY_BYTES_MAX} bytes, this one {len(key.encode())}")
    for i, part in enumerate(parts):
        if len(disk_name(part, leaf=i == len(parts) - 1)) > DISK_NAME_BYTES_MAX:
            raise Invalid(f"the key segment {part[:40]!r}... is too long", hint="use a shorter name")
    return Key(key)


@lru_cache(maxsize=1024)
def check_prefix(prefix: str) -> str:
    """`prefix` if it is empty or whole segments; without a trailing slash."""
    return str(check(prefix.removesuffix("/"))) if prefix else ""


def is_own_path(key: str) -> bool:
    """Whether every store can hold `key`, and a disk under just that path. True for nearly all that Limpet makes."""
    return (
        len(key) < DISK_NAME_BYTES_MAX
        and _PLAIN.fullmatch(key) is not None
        and _FILE_ENDING.search(key) is not None
        and _ODD_FOLDER.search(key) is None
    )


def join(prefix: str, key: str) -> Key:
    """`key` below `prefix` (which may be empty)."""
    return Key(f"{prefix}/{key}") if prefix else Key(key)


def disk_name(part: str, *, leaf: bool) -> str:
    """The file name of one segment: lower-case ASCII, `=xx` for every other byte.

    Objects end in a known ending or else in `=`, folders the other way round, so `k` and `k/x` never collide.
    """
    name = _DISK_UNSAFE.sub(_escape, part)
    return name if bool(_FILE_ENDING.search(name)) is leaf else name + "="


def from_disk_name(name: str) -> str | None:
    """The segment behind a file name; None for a file that is not ours."""
    try:
        raw = _DISK_ESCAPE.sub(lambda m: chr(int(m[1], 16)), name.removesuffix("="))
        return raw.encode("latin-1").decode()
    except UnicodeError:
        return None


def _escape(found: re.Match[str]) -> str:
    return "".join(f"={byte:02x}" for byte in found[0].encode())


def lock_key(name: str) -> Key:
    """The lease record of a user's lock."""
    return Key(f"{LOCKS}/{segment(name)}.lock")


def cell_key(name: str) -> Key:
    """The object of a user's cell."""
    return Key(f"{CELLS}/{segment(name)}.json")


def clock_key(slot: int) -> Key:
    """An object that is rewritten only to read the store's clock from its LastModified."""
    return Key(f"clock/{slot:x}.json")


def probe_key(id_: str, name: str) -> Key:
    """A throw-away object of one `doctor` run."""
    return Key(f"probe/{segment(id_)}/{segment(name)}.json")


def backup_list_key(run: str, number: int) -> Key:
    """A list of objects that one run of `limpet backup` copied. Keys sort by run and number."""
    return Key(f"{BACKUPS}/{segment(run)}/{number:06d}.jsonl")

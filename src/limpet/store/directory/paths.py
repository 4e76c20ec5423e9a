"""Keys as file names below the root (F26, F28)."""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

from limpet.errors import Invalid
from limpet.keys import Key, check, check_prefix, disk_name, from_disk_name, is_own_path

LOCK_FILES = 64


@lru_cache(maxsize=4096)
def file_path(key: Key) -> str:
    """The path of an object, from the root.   Raises: Invalid for a key that no store can hold."""
    if is_own_path(key):
        return f"/{key}"
    folder, _, leaf = check(key).rpartition("/")
    return f"{folder_path(folder)}/{disk_name(leaf, leaf=True)}"


@lru_cache(maxsize=1024)
def folder_path(prefix: str) -> str:
    """The path of a prefix's folder, from the root; empty for the root itself.   Raises: Invalid."""
    checked = check_prefix(prefix)
    return "".join(f"/{disk_name(part, leaf=False)}" for part in checked.split("/")) if checked else ""


def segment_of(name: str, *, leaf: bool) -> str | None:
    """The key segment of a file (`leaf`) or folder; None if Limpet would not have named it so."""
    part = name if "=" not in name else _decoded(name)
    return part if part is not None and disk_name(part, leaf=leaf) == name else None


def _decoded(name: str) -> str | None:
    part = from_disk_name(name)
    if part is None or "/" in part:
        return None
    try:
        return check(part)
    except Invalid:
        return None


def lock_name(key: Key) -> str:
    """The lock file of a key: one of `LOCK_FILES`, the same in every process and version."""
    return f"{crc32(key.encode()) % LOCK_FILES:02x}"


def parent(path: str) -> str:
    """The folder of a file or folder."""
    return path.rpartition("/")[0] or "/"

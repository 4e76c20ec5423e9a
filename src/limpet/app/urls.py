"""From a URL to a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from limpet.errors import Invalid
from limpet.runtime import Runtime
from limpet.store import DirectoryStore, MemoryStore, Store

__all__ = ["Durability", "absolute", "store_for", "url_or_default"]

Durability = Literal["fsync", "os"]

_named_memory: dict[str, MemoryStore] = {}


def url_or_default(url: str | os.PathLike[str] | None) -> str:
    """`url`, else LIMPET_URL.   Raises: Invalid when there is neither."""
    found = os.fspath(url) if url is not None else os.environ.get("LIMPET_URL", "")
    if not found:
        raise Invalid("no URL was given", hint="pass one, such as ./fleet or s3://bucket/prefix, or set LIMPET_URL")
    return found


def absolute(url: str) -> str:
    """The URL as other processes can use it, and the same for every way to write it: a path from the root."""
    if url.startswith("file://"):
        url = unquote(urlsplit(url).path)
    if "://" not in url:
        return os.path.abspath(os.path.expanduser(url))
    scheme, separator, rest = url.partition("://")
    place, mark, query = rest.partition("?")
    return f"{scheme}{separator}{place.rstrip('/')}{mark}{query}"


def store_for(url: str, runtime: Runtime, *, durability: Durability = "fsync") -> Store:
    """The store behind `url`. Nothing is read or written yet.

    A path or `file://` is a directory, `memory://NAME` is shared within this process (`memory://` alone is new each
    time), and `s3://`, `gs://`, `az://` are buckets.   Raises: Invalid for anything else.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return DirectoryStore(Path(url).expanduser(), durability=durability, runtime=runtime)
    match scheme:
        case "file":
            parts = urlsplit(url)
            if parts.netloc not in ("", "localhost") or not parts.path:
                raise Invalid(f"{url!r} names no absolute path", hint="write file:///absolute/path, or ./relative")
            return DirectoryStore(Path(unquote(parts.path)), durability=durability, runtime=runtime)
        case "memory":
            if not rest:
                return MemoryStore(runtime)
            return _named_memory.setdefault(rest, MemoryStore(runtime))
        case "s3" | "gs" | "az":
            from limpet.store.cloud import CloudStore

            return CloudStore(url, runtime=runtime)
    raise Invalid(
        f"{scheme}:// is no store that limpet knows", hint="use ./dir, file://, memory://, s3://, gs:// or az://"
    )

"""From a URL to a store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from limpet.errors import Denied, Invalid
from limpet.runtime import Runtime
from limpet.store import DirectoryStore, MemoryStore, Store

Durability = Literal["fsync", "os"]

SCHEMES = "use ./dir, file://, memory://, s3://, gs:// or az://"
_SCHEME_ALONE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?!//)(/?)([^/].*)?")

_named_memory: dict[str, MemoryStore] = {}


def url_or_default(url: str | os.PathLike[str] | None) -> str:
    """`url`, else LIMPET_URL.   Raises: Invalid when there is neither."""
    found = os.fspath(url) if url is not None else os.environ.get("LIMPET_URL", "")
    if not found:
        raise Invalid("no URL was given", hint="pass one, such as ./fleet or s3://bucket/prefix, or set LIMPET_URL")
    return found


def absolute(url: str) -> str:
    """The URL as other processes can use it, and the same for every way to write it: a path from the root."""
    url = _whole(url)
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
    url = _whole(url)
    scheme, separator, rest = url.partition("://")
    if not separator:
        try:
            return DirectoryStore(Path(url).expanduser(), durability=durability, runtime=runtime)
        except OSError as error:  # the path is resolved at once
            raise Denied(f"cannot open {url}: {error.strerror}", hint="check the path and your rights to it") from None
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
    raise Invalid(f"{scheme}:// is no store that limpet knows", hint=SCHEMES)


def _whole(url: str) -> str:
    """`url`, unless it is a URL with too few slashes, which would read as a folder called `s3:`.   Raises: Invalid.

    `file:/x` is a URL as it stands: the same as `file:///x`.
    """
    cut = _SCHEME_ALONE.fullmatch(url)
    if cut is None:
        return url
    scheme, slash, rest = cut[1], cut[2], cut[3] or ""
    if scheme == "file" and slash:
        return f"file:///{rest}"
    hint = f"write {scheme}://{rest}, or ./{url} for a folder of that name"
    known = scheme in ("s3", "gs", "az", "memory", "sqs", "file")
    raise Invalid(f"{url!r} is no URL and no path", hint=hint if known else f"{SCHEMES}, or ./{url} for a folder")

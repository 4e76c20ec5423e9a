"""A fleet's URL: which store it names, and the provider of the queues, unless LIMPET_QUEUE_TYPE names that."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import unquote, urlsplit

from limpet.kernel.errors import Denied, Invalid, Unsupported
from limpet.kernel.runtime import Runtime
from limpet.kernel.store import DirectoryStore, MemoryStore, Store
from limpet.kernel.wording import an

Durability = Literal["fsync", "os"]

SCHEMES = "use ./dir, file://, memory://, s3://, gs:// or az://"
_SCHEME_ALONE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?!//)(/?)([^/].*)?")

QUOTES_AND_BLANKS = " \t\r\n'\""
SQS = "sqs"
PROVIDERS = ("filesystem", "bucket", SQS)

_sqs_clients: dict[tuple[int, str, str], Any] = {}
_named_memory: dict[str, MemoryStore] = {}


def url_or_default(url: str | os.PathLike[str] | None) -> str:
    """`url`, else LIMPET_URL.   Raises: Invalid when there is neither."""
    found = os.fspath(url) if url is not None else os.environ.get("LIMPET_URL", "")
    if not found:
        raise Invalid("no URL was given", hint="pass one, such as ./fleet or s3://bucket/prefix, or set LIMPET_URL")
    return found


def absolute(url: str) -> str:
    """The URL in one canonical form, which other processes can use: a path is absolute, without a trailing slash."""
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
    time), and `s3://`, `gs://`, `az://` are buckets.   Raises: Unsupported for `sqs://`; Invalid for anything else.
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
            from limpet.kernel.store.cloud import CloudStore

            return CloudStore(url, runtime=runtime)
        case "sqs":
            check_has_store(url, "it is no store")
    raise Invalid(f"{scheme}:// is no store that limpet knows", hint=SCHEMES)


def _whole(url: str) -> str:
    """`url`; but one in quotes or with too few slashes would be taken for a folder called `"` or `s3:`.

    `file:/x` is a URL as it stands: the same as `file:///x`. A path may have blanks in its names.   Raises: Invalid.
    """
    if url and (url[0] in QUOTES_AND_BLANKS or url[-1] in QUOTES_AND_BLANKS):
        bare = url.strip(QUOTES_AND_BLANKS)
        raise Invalid(f"quotes or blanks around the URL: {url!r}", hint=f"write {bare or './fleet'}")
    if "://" in url and any(map(str.isspace, url)):
        raise Invalid(f"a blank in the URL {url!r}", hint="write %20 where a name has one")
    cut = _SCHEME_ALONE.fullmatch(url)
    if cut is None:
        return url
    scheme, slash, rest = cut[1], cut[2], cut[3] or ""
    if scheme == "file" and slash:
        return f"file:///{rest}"
    hint = f"write {scheme}://{rest}, or ./{url} for a folder of that name"
    known = scheme in ("s3", "gs", "az", "memory", "sqs", "file")
    raise Invalid(f"{url!r} is no URL and no path", hint=hint if known else f"{SCHEMES}, or ./{url} for a folder")


def provider_of(url: str) -> str:
    """The provider of a fleet's queues: `filesystem`, `memory`, `bucket` or `sqs`.

    LIMPET_QUEUE_TYPE=sqs puts the queues of any fleet on SQS.   Raises: Invalid where it contradicts the URL.
    """
    scheme, separator, _ = url.partition("://")
    own = "filesystem" if not separator or scheme == "file" else scheme if scheme in ("memory", SQS) else "bucket"
    asked = os.environ.get("LIMPET_QUEUE_TYPE", "")
    if not asked or asked == own:
        return own
    if asked not in PROVIDERS:
        raise Invalid(f"LIMPET_QUEUE_TYPE is {asked!r}", hint=f"it can be {', '.join(PROVIDERS)}")
    if asked == SQS:
        return SQS
    raise Invalid(f"LIMPET_QUEUE_TYPE is {asked}, and {url} is {an(own)}", hint="unset it, or open another URL")


def has_store(url: str) -> bool:
    """Whether the fleet has a store, with locks and cells: `sqs://` has queues only."""
    return not url.startswith("sqs://")


def check_has_store(url: str, why: str) -> None:
    """Raises: Unsupported for `sqs://`; `why` says what that means for the caller."""
    if not has_store(url):
        raise _without_store(why)


def _without_store(why: str) -> Unsupported:
    return Unsupported(
        f"SQS has queues and nothing else: {why}",
        hint="use a bucket or a directory for locks, cells, indexes and tables; `limpet status` shows the queues",
    )


def sqs_place(url: str, runtime: Runtime) -> tuple[Any, str]:
    """The client for the queues of a fleet on SQS, one for each region and endpoint, and their prefix."""
    parts = urlsplit(url if url.startswith("sqs://") else "sqs://")
    region = parts.netloc or os.environ.get("LIMPET_SQS_REGION", "")
    prefix = parts.path.strip("/") or os.environ.get("LIMPET_SQS_PREFIX", "")
    place = (id(runtime), region, os.environ.get("LIMPET_SQS_ENDPOINT", ""))
    if place not in _sqs_clients:
        from limpet.queue.sqs.client import SqsClient

        _sqs_clients[place] = SqsClient(runtime, region=region or None, endpoint_url=place[2] or None)
    return _sqs_clients[place], prefix


class NoStore(Store):
    """The store of `sqs://`, which has queues only: every request is refused."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _without_store("this needs a store")

    get = head = put = delete = list = sample = list_dirs = _refuse


def request_budget() -> int | None:
    """What LIMPET_REQUEST_BUDGET allows; None without one.   Raises: Invalid for a text."""
    text = os.environ.get("LIMPET_REQUEST_BUDGET")
    if not text:
        return None
    if not text.isdigit():
        raise Invalid(f"LIMPET_REQUEST_BUDGET is {text!r}, not a number", hint="give a number of requests")
    return int(text)

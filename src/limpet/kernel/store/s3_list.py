"""One page of S3's ListObjectsV2 without the client library, for folders with a key that the library refuses.

obstore fails a whole page if one key in it has an empty, `.` or `..` segment or a control character. This module can
skip such keys. `CloudStore` uses it only after the library's own listing has failed; the library still signs the
request, so that every source of credentials works (`CloudStore._sign`).

The answer is not trusted: its bytes and its time are limited, document types and redirects are refused, and every field
that is used is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote_plus

from limpet.kernel.runtime import Runtime
from limpet.kernel.waiting import attempts
from limpet.kernel.wording import many

PAGE_BYTES_MAX = 8 << 20
"""Twice the size of 1,000 keys of 1,024 bytes, with each byte written as %XX."""

SILENCE_S = 30.0
PAGE_S = 120.0
REQUESTS_MAX = 4

_PART = 64 << 10
_DEPTH_MAX = 8
_ROOT = "ListBucketResult"
_SIZE = re.compile(r"[0-9]{1,19}", re.ASCII)
_REFUSED = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]|(^|/)\.{0,2}(/|$)")


@dataclass(frozen=True, slots=True)
class RawPage:
    """`objects` as obstore describes them, with whole keys; `folders` end in a slash; `token` names the next page."""

    objects: Sequence[Mapping[str, Any]]
    folders: Sequence[str]
    token: str | None


def is_refused(key: str) -> bool:
    """Whether the client library refuses to list this key, or lists it without its last slash; Limpet writes none."""
    return _REFUSED.search(key) is not None


def page_query(prefix: str, *, after: str | None, token: str | None, by_folder: bool) -> str:
    """The query of a request for one page: the first one behind the key `after`, or the one that `token` names."""
    asked = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
    if by_folder:
        asked["delimiter"] = "/"
    if token is not None:
        asked["continuation-token"] = token
    elif after is not None:
        asked["start-after"] = after
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in asked.items() if value)


def fetch(url: str, runtime: Runtime) -> tuple[int, bytes]:
    """The status and the body of a GET. It is sent again after a 5xx, a 429 or no answer, up to three times.

    Raises: OSError; ValueError for a body that is too large.   Cost: 1 request, at most 4.
    """
    for sent in attempts(runtime, REQUESTS_MAX):
        with suppress(OSError) if sent < REQUESTS_MAX else nullcontext():
            status, data = _fetch_once(url, runtime)
            if sent == REQUESTS_MAX or (status < 500 and status not in (408, 429)):
                break
    return status, data


def _fetch_once(url: str, runtime: Runtime) -> tuple[int, bytes]:
    # Imported here, since they take 30 ms and are rarely needed.
    from http.client import HTTPException
    from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler

    opener = OpenerDirector()  # this one follows no redirect, and raises no error for a 4xx
    for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    try:
        with opener.open(url, timeout=SILENCE_S) as answer:
            return answer.status, _body(answer, runtime)
    except HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from None


def _body(answer: Any, runtime: Runtime) -> bytes:
    until = runtime.elapsed_s() + PAGE_S
    data = bytearray()
    while part := answer.read1(_PART):
        data += part
        if len(data) > PAGE_BYTES_MAX:
            raise ValueError(f"the answer has more than {PAGE_BYTES_MAX} bytes")
        if runtime.elapsed_s() > until:
            raise TimeoutError(f"the answer was not complete after {PAGE_S:.0f} s")
    if answer.length:
        raise OSError(f"the answer ended {many(answer.length, 'byte')} too early")
    return bytes(data)


def parse(data: bytes) -> RawPage:
    """The page in an answer, including keys that the client library refuses.   Raises: ValueError."""
    found = _Reader().read(data)
    is_encoded = found.fields.get("EncodingType") == "url"

    def decoded(text: str) -> str:
        return unquote_plus(text, errors="surrogateescape") if is_encoded else text

    token = found.fields.get("NextContinuationToken")
    truncated = found.fields.get("IsTruncated", "true" if token else "false")
    if truncated not in ("true", "false") or (truncated == "true" and not token):
        raise ValueError("it does not say whether and where the listing continues")
    return RawPage(
        [_described(row, decoded(row.get("Key", ""))) for row in found.rows],
        [decoded(folder) for folder in found.folders],
        token if truncated == "true" else None,
    )


def _described(row: Mapping[str, str], key: str) -> Mapping[str, Any]:
    size = _SIZE.fullmatch(row.get("Size", ""))
    modified = datetime.fromisoformat(row.get("LastModified", ""))
    if not key or size is None or modified.tzinfo is None:
        raise ValueError("a row has no key, no size or a time without a zone")
    return {"path": key, "size": int(size[0]), "e_tag": row.get("ETag"), "last_modified": modified, "version": None}


class _Reader:
    """The texts of a listing's XML: `fields` of the listing, a map for each object, the prefix of each folder."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.rows: list[dict[str, str]] = []
        self.folders: list[str] = []
        self._open: list[str] = []
        self._text: list[str] = []

    def read(self, data: bytes) -> _Reader:
        from xml.parsers.expat import ExpatError, ParserCreate

        parser = ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(data, True)
        except ExpatError as error:
            raise ValueError(f"it is not XML: {error}") from None
        return self

    def _doctype(self, *_: object) -> None:
        raise ValueError("it declares a document type")

    def _start(self, name: str, _: Mapping[str, str]) -> None:
        self._open.append(name)
        self._text.clear()
        if self._open[0] != _ROOT or len(self._open) > _DEPTH_MAX:
            raise ValueError(f"it is a <{self._open[0][:40]}> and not a listing")
        if self._open[1:] == ["Contents"]:
            self.rows.append({})

    def _end(self, name: str) -> None:
        match self._open[1:]:
            case [field]:
                self.fields[field] = "".join(self._text)
            case ["Contents", field]:
                self.rows[-1][field] = "".join(self._text)
            case ["CommonPrefixes", "Prefix"]:
                self.folders.append("".join(self._text))
            case _:
                pass
        self._open.pop()
        self._text.clear()

"""Which S3 requests the service signs for a client: pure functions, no store, no clock, no key.

A signature lets its bearer send exactly one request with our key, for some minutes. So everything that decides what a
store does must be both checked here and covered by the signature: method, host, path, query, and every header whose
name begins with `x-amz-`. What is not known to be harmless is denied. The request is returned in one canonical form,
with each character encoded in one way, so that the store reads what was checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit
from xml.parsers.expat import ExpatError, ParserCreate

URI_CHARACTERS_MAX = 8192
HEADERS_MAX = 64
HEADER_CHARACTERS_MAX = 4096
BODY_BYTES_MAX = 2 << 20
KEYS_MAX = 1000
DECODINGS_MAX = 4

_URI = re.compile(r"[!-~]+")
_ESCAPES = re.compile(r"(?:[^%+\\]|%[0-9A-Fa-f]{2})*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
_HEADER_NAME = re.compile(r"[a-z0-9-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t -~]*")
_UPLOAD = re.compile(r"[A-Za-z0-9._~=+/-]{1,1024}")
_PART = re.compile(r"[1-9][0-9]{0,4}")
_UNWRITTEN = ".metadata.json"

_LIST = frozenset(
    ("list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type",
     "fetch-owner")
)  # fmt: skip
_READ_HEADERS = frozenset(
    ("x-amz-checksum-mode", "x-amz-content-sha256", "x-amz-date", "x-amz-expected-bucket-owner", "x-amz-request-payer",
     "x-amz-user-agent", "x-amz-server-side-encryption-customer-algorithm", "x-amz-server-side-encryption-customer-key",
     "x-amz-server-side-encryption-customer-key-md5")
)  # fmt: skip
_WRITE_HEADERS = _READ_HEADERS | frozenset(
    ("x-amz-sdk-checksum-algorithm", "x-amz-checksum-algorithm", "x-amz-checksum-type", "x-amz-decoded-content-length",
     "x-amz-mp-object-size", "x-amz-storage-class", "x-amz-trailer", "x-amz-server-side-encryption",
     "x-amz-server-side-encryption-aws-kms-key-id", "x-amz-server-side-encryption-bucket-key-enabled",
     "x-amz-server-side-encryption-context")
)  # fmt: skip
_WRITE_PREFIXES = ("x-amz-meta-", "x-amz-checksum-")
_COPY = "x-amz-copy-source"
_COPY_HEADERS = frozenset(
    (_COPY, "x-amz-copy-source-if-match", "x-amz-copy-source-if-none-match", "x-amz-copy-source-if-modified-since",
     "x-amz-copy-source-if-unmodified-since", "x-amz-copy-source-range", "x-amz-metadata-directive")
)  # fmt: skip
_DELETE_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass(frozen=True, slots=True)
class S3Request:
    """A request that a client wants to send to the store. `body`: only of a delete of several objects."""

    method: str
    uri: str
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: str | None = None


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """The bucket of the warehouse: its name, its server (`scheme://host:port`; None: AWS) and its region.

    AWS compares a body with the digest that was signed. Not every other server does: SeaweedFS 4.48 does not.
    """

    name: str
    endpoint: str | None = None
    region: str = ""

    @property
    def compares_bodies(self) -> bool:
        """Whether a signature for one body is worth nothing with another."""
        return self.endpoint is None


@dataclass(frozen=True, slots=True)
class SignableRequest:
    """A request that may be signed, in canonical form.

    `path` and `query` are encoded; `headers` have lower-case names and are all to be signed. `pins_body`: the signature
    must cover the body, because the body says what the request does.
    """

    method: str
    scheme: str
    host: str
    path: str
    query: str
    headers: Mapping[str, str]
    writes: bool
    pins_body: bool = False

    @property
    def uri(self) -> str:
        """What the client is to send the request to."""
        return f"{self.scheme}://{self.host}{self.path}" + (f"?{self.query}" if self.query else "")


@dataclass(frozen=True, slots=True)
class SigningRefusal:
    """Why a request is not signed."""

    reason: str


class _Refused(Exception):
    """A step of the decision refuses; the text is the reason."""


def decide(
    request: S3Request, *, may_write: bool, bucket: S3Bucket, folders: Sequence[str]
) -> SignableRequest | SigningRefusal:
    """Whether a request may be signed for a client that may read, or read and write, one table.

    `folders`: the table's folders, as keys of the bucket without a slash at the end. A request is allowed if all that
    it reads or changes is below one of them, and it is one of: GET, HEAD, PUT, DELETE of an object; a multipart upload;
    a copy from below the folders; a listing with a prefix below them; on AWS a delete of several objects.
    `*.metadata.json` is read only: the catalog alone writes it.
    """
    try:
        wanted = _decided(request, bucket, tuple(folders))
        if wanted.writes and not may_write:
            raise _Refused("the token may only read")
    except _Refused as refused:
        return SigningRefusal(str(refused))
    return wanted


def _decided(request: S3Request, bucket: S3Bucket, folders: tuple[str, ...]) -> SignableRequest:
    if not folders or not all(folders):
        raise _Refused("the table has no folder")
    scheme, host, raw_path, raw_query = _parts(request.uri)
    raw_key = _raw_key(scheme, host, raw_path, bucket)
    query = _query(raw_query)
    key = _decoded(raw_key, "path") if raw_key else ""
    headers = _headers(request.headers)
    kind, pins = _kind(request, key, query, folders)
    if pins and not bucket.compares_bodies:
        raise _Refused("a delete of several objects is signed only for AWS, which compares its body: delete one by one")
    writes = kind != "read"
    _check_headers(headers, kind, bucket, folders)
    if key and not _is_inside(key, folders):
        raise _Refused("the path is not in the folder of the table")
    if writes and key.endswith(_UNWRITTEN):
        raise _Refused(f"only the catalog writes *{_UNWRITTEN}")
    path = raw_path[: len(raw_path) - len(raw_key)] + encoded(key, keep="/")
    canonical = "&".join(f"{encoded(name)}={encoded(value)}" for name, value in sorted(query.items()))
    return SignableRequest(request.method, scheme, host, path, canonical, headers, writes, pins)


def encoded(text: str, keep: str = "") -> str:
    """`text` in the percent-encoding of SigV4."""
    return quote(text, safe=f"-_.~{keep}")


# ---- where ----


def _parts(uri: str) -> tuple[str, str, str, str]:
    if len(uri) > URI_CHARACTERS_MAX or not _URI.fullmatch(uri) or "#" in uri or "\\" in uri:
        raise _Refused("the URI is too long, or has characters that must be encoded")
    try:
        parts = urlsplit(uri)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise _Refused("the URI is not valid") from None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or host != host.strip("."):
        raise _Refused("the URI must be http:// or https:// and a host, without a user name")
    default = {"http": 80, "https": 443}[parts.scheme]
    shown = f"[{host}]" if ":" in host else host
    return parts.scheme, shown if port in (None, default) else f"{shown}:{port}", parts.path, parts.query


def _raw_key(scheme: str, host: str, path: str, bucket: S3Bucket) -> str:
    """The key in a path, still encoded; empty for the bucket itself.   Raises: _Refused outside of the bucket."""
    if bucket.endpoint is not None:
        own_scheme, own_host, _, _ = _parts(bucket.endpoint)
        servers: tuple[str, ...] = (own_host,)
    else:
        own_scheme = "https"
        servers = (
            "s3.amazonaws.com",
            f"s3.{bucket.region}.amazonaws.com",
            f"s3.dualstack.{bucket.region}.amazonaws.com",
        )
    if scheme != own_scheme:
        raise _Refused(f"the store is reached by {own_scheme}")
    if host in servers:
        if path in (f"/{bucket.name}", f"/{bucket.name}/"):
            return ""
        if path.startswith(f"/{bucket.name}/"):
            return path.removeprefix(f"/{bucket.name}/")
        raise _Refused("the path is not in the bucket of the warehouse")
    if host in [f"{bucket.name}.{server}" for server in servers]:
        if path and not path.startswith("/"):
            raise _Refused("the path is not valid")
        return path.removeprefix("/")
    raise _Refused("the host is not the store of the warehouse")


def _decoded(raw: str, what: str) -> str:
    """Percent-decoded text. A plus, a backslash or a stray % is refused: servers read them in different ways."""
    if not _ESCAPES.fullmatch(raw):
        raise _Refused(f"the {what} has a +, a \\ or a % that is not encoded")
    if what == "path" and "%2f" in raw.lower():
        raise _Refused("the path has an encoded slash")
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise _Refused(f"the {what} is not UTF-8") from None
    if _CONTROL.search(text):
        raise _Refused(f"the {what} has control characters or a backslash")
    return text


def _is_inside(key: str, folders: Sequence[str], *, whole: bool = True) -> bool:
    """Whether a key is below one of the folders, however often a server might decode it.

    The slash after the folder counts: `t-1` is not a folder of `t-12`. `whole`: it is a key; else the prefix of a
    listing, which may end in a slash.
    """
    for _ in range(DECODINGS_MAX):
        segments = key.split("/")
        inner = segments if whole else segments[:-1]
        if any(part in ("", ".", "..") for part in inner) or segments[-1] in (".", ".."):
            return False
        if _CONTROL.search(key) or not any(key.startswith(f"{folder}/") for folder in folders):
            return False
        again = unquote(key)
        if again == key:
            return True
        key = again
    return False


def _query(raw: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in raw.split("&") if raw else ():
        name, _, value = part.partition("=")
        name = _decoded(name, "query")
        if not name or name in found:
            raise _Refused("the query has a parameter without a name, or twice")
        found[name] = _decoded(value, "query")
    return found


# ---- what ----

_Kind = Literal["read", "write", "copy", "delete"]


def _kind(request: S3Request, key: str, query: Mapping[str, str], folders: Sequence[str]) -> tuple[_Kind, bool]:
    """What a request does, and whether its body must be signed.   Raises: _Refused for any other request."""
    names = frozenset(query) - {"x-id"}
    if not key:
        if request.method == "GET" and query.get("list-type") == "2" and names <= _LIST:
            if not _is_inside(query.get("prefix", ""), folders, whole=False):
                raise _Refused("the prefix of the listing is not in the folder of the table")
            return "read", False
        if request.method == "POST" and names == {"delete"} and not query["delete"]:
            _check_deletes(request.body, folders)
            return "delete", True
        raise _Refused("the request is about the bucket: only listings by prefix and deletes of objects are signed")
    upload = _UPLOAD.fullmatch(query.get("uploadId", "-")) is not None
    match request.method:
        case "GET" | "HEAD" if not names:
            return "read", False
        case "PUT" if not names or (
            names == {"partNumber", "uploadId"} and upload and _PART.fullmatch(query["partNumber"])
        ):
            return ("copy" if any(name.lower() == _COPY for name in request.headers) else "write"), False
        case "POST" if (names == {"uploads"} and not query["uploads"]) or (names == {"uploadId"} and upload):
            return "write", False
        case "DELETE" if not names or (names == {"uploadId"} and upload):
            return "delete", False
    shown = ", ".join(sorted(names))[:100]
    raise _Refused(f"{request.method[:10]} of an object{f' with {shown}' if shown else ''} is not signed")


def _headers(sent: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The headers to sign, by lower-case name: those of S3, and those that describe the body."""
    if len(sent) > HEADERS_MAX:
        raise _Refused(f"there are more than {HEADERS_MAX} headers")
    found: dict[str, str] = {}
    for each, values in sent.items():
        name = each.lower()
        if not _HEADER_NAME.fullmatch(name) or name in found or not values:
            raise _Refused("a header has a name that is not valid, no value, or comes twice")
        if name.startswith("x-amz-") or name in ("content-md5", "content-type"):
            if len(values) != 1 or len(values[0]) > HEADER_CHARACTERS_MAX or not _HEADER_VALUE.fullmatch(values[0]):
                raise _Refused(f"the header {name} must have one value of plain characters")
            found[name] = " ".join(values[0].split())
    return found


def _check_headers(headers: Mapping[str, str], kind: _Kind, bucket: S3Bucket, folders: Sequence[str]) -> None:
    known = {"read": _READ_HEADERS, "copy": _WRITE_HEADERS | _COPY_HEADERS}.get(kind, _WRITE_HEADERS)
    for name in headers:
        allowed = name in known or (kind != "read" and name.startswith(_WRITE_PREFIXES))
        if name.startswith("x-amz-") and not allowed:
            raise _Refused(f"a request with the header {name} is not signed")
    if kind == "copy":
        source = _decoded(headers[_COPY].removeprefix("/"), "copy source")
        name, _, key = source.partition("/")
        if "?" in source or name != bucket.name or not _is_inside(key, folders):
            raise _Refused("the source of the copy is not in the folder of the table")


def _check_deletes(body: str | None, folders: Sequence[str]) -> None:
    if body is None:
        raise _Refused("a delete of several objects is signed only with its body: send it, or delete one by one")
    keys = keys_to_delete(body)
    if not all(_is_inside(key, folders) for key in keys):
        raise _Refused("an object to delete is not in the folder of the table")
    if any(key.endswith(_UNWRITTEN) for key in keys):
        raise _Refused(f"only the catalog deletes *{_UNWRITTEN}")


def keys_to_delete(body: str) -> list[str]:
    """The keys in the body of DeleteObjects. XML that programs may read in different ways is refused.

    Allowed are the elements Delete, Object, Key and Quiet without attributes, and text in Key and Quiet: no comments,
    sections, document types, prefixes, or versions.
    """
    data = body.encode("utf-8", "surrogatepass")
    plain = re.sub(rb"^\s*<\?xml version=[\"']1\.0[\"'](?: encoding=[\"'][Uu][Tt][Ff]-8[\"'])? ?\?>", b"", data)
    if len(data) > BODY_BYTES_MAX or b"<!" in plain or b"<?" in plain or b"\x00" in plain:
        raise _Refused("the body of the delete is too large, or has a comment, a section or a declaration")
    path: list[str] = []
    text: list[str] = []
    keys: list[str] = []
    counts: list[int] = []

    def start(name: str, attributes: Mapping[str, str]) -> None:
        path.append(name)
        inside = "/".join(path)
        named = {"xmlns": _DELETE_NAMESPACE} if inside == "Delete" and attributes else {}
        if inside not in ("Delete", "Delete/Quiet", "Delete/Object", "Delete/Object/Key") or attributes != named:
            raise _Refused(f"the body of the delete has an element {name[:40]!r} that is not signed")
        if inside == "Delete/Object":
            counts.append(0)
        text.clear()

    def end(name: str) -> None:
        if path[-1] == "Key":
            counts[-1] += 1
            keys.append("".join(text))
        elif path[-1] != "Quiet" and "".join(text).strip():
            raise _Refused("the body of the delete has text outside of its keys")
        path.pop()
        text.clear()

    parser = ParserCreate("utf-8")
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text.append
    try:
        parser.Parse(plain, True)
    except ExpatError:
        raise _Refused("the body of the delete is not XML") from None
    if not keys or len(keys) > KEYS_MAX or any(count != 1 for count in counts):
        raise _Refused(f"a delete names 1 to {KEYS_MAX} objects, each by one key")
    if any(key != key.strip() for key in keys):
        raise _Refused("a key to delete begins or ends with a space")
    return keys

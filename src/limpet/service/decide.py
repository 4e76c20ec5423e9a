"""What clients without a key of the bucket may do there: pure functions, no store, no clock, no key.

`decide`: whether one S3 request may be signed. `session_policy`: what a short-lived credential allows.

A signature lets its bearer send exactly one request with our key, for some minutes. So everything that decides what a
store does must be both checked here and covered by the signature: method, host, path, query, and every header whose
name begins with `x-amz-`. What is not known to be harmless is denied. The request is returned in one canonical form,
with each character encoded in one way, so that the store reads what was checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit
from xml.parsers.expat import ExpatError, ParserCreate

URI_CHARACTERS_MAX = 8192
HEADERS_MAX = 64
HEADER_CHARACTERS_MAX = 4096
BODY_BYTES_MAX = 2 << 20
KEYS_MAX = 1000
DECODINGS_MAX = 4
POLICY_CHARACTERS_MAX = 2048
"""As much as AWS accepts with AssumeRole."""

_URI = re.compile(r"[!\"$-\[\]-~]+")
_ESCAPES = re.compile(r"(?:[^%+\\]|%[0-9A-Fa-f]{2})*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
_HEADER_NAME = re.compile(r"[a-z0-9-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t -~]*")
_UPLOAD = re.compile(r"(?!\.+\Z)[A-Za-z0-9._~=+-]{1,1024}|[A-Za-z0-9][A-Za-z0-9=+/]{0,1023}")
"""An upload id. A server may make a path of it: an id with a slash has no dots."""
_PART = re.compile(r"[1-9][0-9]{0,4}")
_CHECKSUM = re.compile(r"x-amz-checksum-[a-z0-9]{1,20}")
_UNWRITTEN = ".metadata.json"
_XML_DECLARATION = re.compile(rb"""\A<\?xml version=["']1\.0["'](?: encoding=["'][Uu][Tt][Ff]-8["'])? ?\?>""")

_LIST = frozenset(
    ("list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type",
     "fetch-owner")
)  # fmt: skip
_BODY_HEADERS = frozenset(("content-md5", "content-type"))
_READ_HEADERS = frozenset(
    ("x-amz-checksum-mode", "x-amz-content-sha256", "x-amz-date", "x-amz-expected-bucket-owner", "x-amz-request-payer",
     "x-amz-te", "x-amz-user-agent", "x-amz-server-side-encryption-customer-algorithm",
     "x-amz-server-side-encryption-customer-key", "x-amz-server-side-encryption-customer-key-md5")
)  # fmt: skip
_WRITE_HEADERS = _READ_HEADERS | frozenset(
    ("x-amz-sdk-checksum-algorithm", "x-amz-decoded-content-length", "x-amz-mp-object-size", "x-amz-storage-class",
     "x-amz-trailer", "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id",
     "x-amz-server-side-encryption-bucket-key-enabled", "x-amz-server-side-encryption-context")
)  # fmt: skip
_WRITE_PREFIXES = ("x-amz-meta-", "x-amz-checksum-")
_READ_ACTIONS = ("s3:GetObject",)
_WRITE_ACTIONS = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
_COPY = "x-amz-copy-source"
_COPY_HEADERS = frozenset(
    (_COPY, "x-amz-copy-source-if-match", "x-amz-copy-source-if-none-match", "x-amz-copy-source-if-modified-since",
     "x-amz-copy-source-if-unmodified-since", "x-amz-copy-source-range", "x-amz-metadata-directive")
)  # fmt: skip
_POLICY_SIGNS = re.compile(r"[*?${}\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Wildcards and variables of policies, and characters that a server may drop."""
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
    pins_body: bool

    @property
    def uri(self) -> str:
        """What the client is to send the request to."""
        return f"{self.scheme}://{self.host}{self.path}" + (f"?{self.query}" if self.query else "")


@dataclass(frozen=True, slots=True)
class SigningRefusal:
    """Why a request is not signed, or no credential issued."""

    reason: str


class _S3Operation(Enum):
    READ = "read"
    WRITE = "write"
    COPY = "copy"
    DELETE_BY_BODY = "delete"


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
    key = _decoded(raw_key, "path")
    headers = _headers(request.headers)
    kind = _kind(request, key, query, folders)
    writes, pins = kind is not _S3Operation.READ, kind is _S3Operation.DELETE_BY_BODY
    if pins and not bucket.compares_bodies:
        raise _Refused("a delete of several objects is signed only for AWS, which compares its body: delete one by one")
    _check_headers(headers, kind, bucket, folders)
    if key and not _is_inside(key, folders):
        raise _Refused("the path is not in the folder of the table")
    if writes and _is_metadata(key):
        raise _Refused(f"only the catalog writes *{_UNWRITTEN}")
    path = (raw_path.removesuffix(raw_key) or "/") + encoded(key, keep="/")
    canonical = "&".join(f"{encoded(name)}={encoded(value)}" for name, value in sorted(query.items()))
    return SignableRequest(request.method, scheme, host, path, canonical, headers, writes, pins)


def encoded(text: str, keep: str = "") -> str:
    """`text` in the percent-encoding of SigV4."""
    return quote(text, safe=f"-_.~{keep}")


# ---- where ----


def _parts(uri: str) -> tuple[str, str, str, str]:
    if len(uri) > URI_CHARACTERS_MAX or not _URI.fullmatch(uri):
        raise _Refused("the URI is too long, or has characters that must be encoded")
    try:
        parts = urlsplit(uri)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise _Refused("the URI is not valid") from None
    if "@" in parts.netloc:
        raise _Refused("the URI has a user name")
    default = {"http": 80, "https": 443}.get(parts.scheme)
    shown = f"[{host}]" if ":" in host else host
    return parts.scheme, shown if port in (None, default) else f"{shown}:{port}", parts.path, parts.query


def _raw_key(scheme: str, host: str, path: str, bucket: S3Bucket) -> str:
    """The key in a path, still encoded; empty for the bucket itself.   Raises: _Refused outside of the bucket.

    Only on AWS may the host name the bucket. Another server may ignore that, and take the first folder of the key for
    the bucket.
    """
    if bucket.endpoint is not None:
        own_scheme, own_host, _, _ = _parts(bucket.endpoint)
        servers = [own_host]
        named = []
    else:
        own_scheme, region = "https", bucket.region
        servers = ["s3.amazonaws.com", f"s3.{region}.amazonaws.com", f"s3.dualstack.{region}.amazonaws.com"]
        named = [f"{bucket.name}.{server}" for server in servers]
    if scheme != own_scheme:
        raise _Refused(f"the store is reached by {own_scheme}")
    if host in named:
        return path.removeprefix("/")
    if host not in servers:
        raise _Refused("the host is not the store of the warehouse")
    name, _, key = path.removeprefix("/").partition("/")
    if name != bucket.name:
        raise _Refused("the path is not in the bucket of the warehouse")
    return key


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


def _readings(key: str) -> list[str]:
    """A key, and what it becomes where a server decodes it again.   Raises: _Refused if that goes on and on."""
    found = [key]
    while (again := unquote(found[-1])) != found[-1]:
        if len(found) == DECODINGS_MAX:
            raise _Refused("a name is encoded too often")
        found.append(again)
    return found


def _is_inside(key: str, folders: Sequence[str], *, whole: bool = True) -> bool:
    """Whether a key is below one of the folders, however often a server might decode it.

    The slash after the folder counts: `t-1` is not a folder of `t-12`. `whole`: it is a key; else the prefix of a
    listing, which may end in a slash.
    """
    roots = tuple(f"{folder}/" for folder in folders)
    readings = [(each, (each if whole else each.removesuffix("/")).split("/")) for each in _readings(key)]
    return all(
        each.startswith(roots) and not {"", ".", ".."} & {*segments} and not _CONTROL.search(each)
        for each, segments in readings
    )


def _is_metadata(key: str) -> bool:
    """Whether a key names a metadata file, however often a server might decode it."""
    return any(each.endswith(_UNWRITTEN) for each in _readings(key))


def _query(raw: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in raw.split("&") if raw else ():
        raw_name, _, value = part.partition("=")
        name = _decoded(raw_name, "query")
        if not name or name in found:
            raise _Refused("the query has a parameter without a name, or twice")
        found[name] = _decoded(value, "query")
    return found


# ---- what ----


def _kind(request: S3Request, key: str, query: Mapping[str, str], folders: Sequence[str]) -> _S3Operation:
    """What a request does.   Raises: _Refused if it is not one of those that are signed."""
    names = frozenset(query) - {"x-id"}
    if not key:
        if request.method == "GET" and query.get("list-type") == "2" and names <= _LIST:
            if not _is_inside(query.get("prefix", ""), folders, whole=False):
                raise _Refused("the prefix of the listing is not in the folder of the table")
            return _S3Operation.READ
        if request.method == "POST" and names == {"delete"} and not query["delete"]:
            _check_deletes(request.body, folders)
            return _S3Operation.DELETE_BY_BODY
        raise _Refused("the request is about the bucket: only listings by prefix and deletes of objects are signed")
    upload = _UPLOAD.fullmatch(query.get("uploadId", "")) is not None
    match request.method:
        case "GET" | "HEAD" if not names:
            return _S3Operation.READ
        case "PUT" if not names or (
            names == {"partNumber", "uploadId"} and upload and _PART.fullmatch(query["partNumber"])
        ):
            pass
        case "POST" if (names == {"uploads"} and not query["uploads"]) or (names == {"uploadId"} and upload):
            pass
        case "DELETE" if not names or (names == {"uploadId"} and upload):
            pass
        case _:
            raise _Refused(f"{request.method[:10]!r} of an object with parameters {sorted(names)!s:.100} is not signed")
    copies = request.method == "PUT" and _COPY in {name.lower() for name in request.headers}
    return _S3Operation.COPY if copies else _S3Operation.WRITE


def _headers(sent: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The headers to sign, by lower-case name: those of S3, and those that describe the body."""
    if len(sent) > HEADERS_MAX:
        raise _Refused(f"there are more than {HEADERS_MAX} headers")
    found: dict[str, str] = {}
    for each, values in sent.items():
        name = each.lower()
        if not _HEADER_NAME.fullmatch(name) or name in found or not values:
            raise _Refused("a header has a name that is not valid, no value, or comes twice")
        if name.startswith("x-amz-") or name in _BODY_HEADERS:
            value, *more = values
            if more or len(value) > HEADER_CHARACTERS_MAX or not _HEADER_VALUE.fullmatch(value):
                raise _Refused(f"the header {name} must have one value of plain characters")
            found[name] = " ".join(value.split())
    return found


def _check_headers(headers: Mapping[str, str], kind: _S3Operation, bucket: S3Bucket, folders: Sequence[str]) -> None:
    known = _BODY_HEADERS | (_READ_HEADERS if kind is _S3Operation.READ else _WRITE_HEADERS)
    prefixes = () if kind is _S3Operation.READ else _WRITE_PREFIXES
    if kind is _S3Operation.COPY:
        known |= _COPY_HEADERS
    for name in headers:
        if name not in known and not name.startswith(prefixes):
            raise _Refused(f"a request with the header {name} is not signed")
    if "x-amz-trailer" in headers and not _CHECKSUM.fullmatch(headers["x-amz-trailer"].lower()):
        raise _Refused("only a checksum may follow a body")
    if kind is _S3Operation.COPY:
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
    if any(_is_metadata(key) for key in keys):
        raise _Refused(f"only the catalog deletes *{_UNWRITTEN}")


def keys_to_delete(body: str) -> list[str]:
    """The keys in the body of DeleteObjects. XML that programs may read in different ways is refused.

    Allowed are the elements Delete, Object, Key and Quiet without attributes, and text in Key and Quiet: no comments,
    sections, document types, prefixes, or versions.
    """
    data = body.encode("utf-8", "surrogatepass")
    plain = _XML_DECLARATION.sub(b"", data)
    if len(data) > BODY_BYTES_MAX or b"<!" in plain or b"<?" in plain:
        raise _Refused("the body of the delete is too large, or has a comment, a section or a declaration")
    reader = _DeleteReader()
    parser = ParserCreate("utf-8")
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler = reader.text.append
    try:
        parser.Parse(plain, True)
    except ExpatError:
        raise _Refused("the body of the delete is not XML") from None
    if not 0 < len(reader.keys) <= KEYS_MAX:
        raise _Refused(f"a delete names 1 to {KEYS_MAX} objects")
    if any(key != key.strip() for key in reader.keys):
        raise _Refused("a key to delete begins or ends with a space")
    return reader.keys


class _DeleteReader:
    def __init__(self) -> None:
        self.keys: list[str] = []
        self.text: list[str] = []
        self._path: list[str] = []
        self._objects = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._path.append(name)
        inside = "/".join(self._path)
        allowed = inside in ("Delete", "Delete/Quiet", "Delete/Object", "Delete/Object/Key")
        if not allowed or "".join(self.text).strip():
            raise _Refused(f"the body of the delete has an element {name[:40]!r}, or text, that is not signed")
        if attributes and (inside != "Delete" or attributes != {"xmlns": _DELETE_NAMESPACE}):
            raise _Refused("the body of the delete has an attribute that is not signed")
        self._objects += name == "Object"
        self.text.clear()

    def end(self, name: str) -> None:
        if name == "Key":
            self.keys.append("".join(self.text))
        elif name != "Quiet" and "".join(self.text).strip():
            raise _Refused("the body of the delete has text outside of its keys")
        if len(self.keys) != self._objects:
            raise _Refused("each object to delete is named by one key")
        self._path.pop()
        self.text.clear()


# ---- short-lived credentials ----


def session_policy(
    bucket: str, folders: Sequence[str], *, may_write: bool, partition: str = "aws"
) -> str | SigningRefusal:
    """The policy of a credential for one table: JSON for `Policy` of AssumeRole, with the rights that `decide` checks.

    `folders`: as for `decide`. Every pattern ends in a slash and one wildcard, so `t-1` is not a folder of `t-12`. A
    folder with a wildcard or variable of policies in its name is refused: servers escape them in different ways, or not
    at all. `*.metadata.json` can only be read. It does not allow what a bucket with its own KMS key needs.
    """
    if not folders or not all(folders):
        return SigningRefusal("the table has no folder")
    if any(_POLICY_SIGNS.search(each) or {"", ".", ".."} & {*each.split("/")} for each in (bucket, *folders)):
        return SigningRefusal("a folder of the table has a name that a policy cannot express")
    arns = [f"arn:{partition}:s3:::{bucket}/{folder}/*" for folder in folders]
    statements: list[dict[str, object]] = [
        {"Effect": "Allow", "Action": [*_READ_ACTIONS, *(_WRITE_ACTIONS if may_write else ())], "Resource": arns},
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [f"arn:{partition}:s3:::{bucket}"],
            "Condition": {"StringLike": {"s3:prefix": [f"{folder}/*" for folder in folders]}},
        },
    ]
    if may_write:
        unwritten = [f"{arn}{_UNWRITTEN}" for arn in arns]
        statements.append({"Effect": "Deny", "Action": ["s3:PutObject", "s3:DeleteObject"], "Resource": unwritten})
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
    if len(policy) > POLICY_CHARACTERS_MAX:
        return SigningRefusal(f"the policy for its folders has more than {POLICY_CHARACTERS_MAX} characters")
    return policy

"""Remote signing: the service signs S3 requests with its own key, and clients never see the key.

A client that sends `X-Iceberg-Access-Delegation: remote-signing` gets, with a table, the address where its requests
are signed. `limpet.service.decide` says which requests are signed. Signing is arithmetic: no request is sent.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Annotated
from urllib.parse import quote

import msgspec

from limpet.errors import Denied, Invalid, Unsupported
from limpet.records import Name
from limpet.runtime import Runtime
from limpet.service.decide import (
    BODY_BYTES_MAX,
    HEADER_CHARACTERS_MAX,
    HEADERS_MAX,
    URI_CHARACTERS_MAX,
    S3Bucket,
    S3Request,
    SignableRequest,
    SigningRefusal,
    decide,
)
from limpet.store.credentials import Place, locate

DELEGATION_HEADER = b"x-iceberg-access-delegation"
REMOTE_SIGNING = "remote-signing"
UNSIGNED = "UNSIGNED-PAYLOAD"
STREAMED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
REGION_DEFAULT = "us-east-1"

_HeaderValues = Annotated[
    list[Annotated[str, msgspec.Meta(max_length=HEADER_CHARACTERS_MAX)]], msgspec.Meta(max_length=HEADERS_MAX)
]


@dataclass(frozen=True, slots=True)
class S3Keys:
    """An access key of S3; `token` with short-lived ones."""

    access_key_id: str
    secret_access_key: str
    token: str = ""

    def __repr__(self) -> str:
        return f"S3Keys({self.access_key_id!r})"


class SignBody(msgspec.Struct):
    """The body of a request to sign, as in Iceberg's specification of S3 signers. `decide` says which are signed."""

    uri: Annotated[str, msgspec.Meta(max_length=URI_CHARACTERS_MAX)]
    method: Name
    headers: Annotated[dict[Name, _HeaderValues], msgspec.Meta(max_length=HEADERS_MAX)]
    region: Name = ""
    body: Annotated[str, msgspec.Meta(max_length=BODY_BYTES_MAX)] | None = None


class RequestSigner:
    """Signs requests to the bucket of a fleet. Thread-safe."""

    def __init__(self, bucket: S3Bucket, prefix: str, keys: Callable[[], S3Keys], runtime: Runtime) -> None:
        """`prefix`: the folder of the warehouse in the bucket. `keys` is called for each signature."""
        self._bucket = bucket
        self._prefix = prefix
        self._keys = keys
        self._runtime = runtime

    def sign(self, sent: SignBody, folders: Sequence[str], *, may_write: bool) -> dict[str, object]:
        """The URI and the headers to send. `folders`: those of the table, below the warehouse.

        Raises: Denied, with the reason.   Cost: none.
        """
        asked = S3Request(sent.method, sent.uri, sent.headers, sent.body)
        inside = [f"{self._prefix}/{folder}" for folder in folders]
        wanted = decide(asked, may_write=may_write, bucket=self._bucket, folders=inside)
        if isinstance(wanted, SigningRefusal):
            raise Denied(f"the request is not signed: {wanted.reason}", hint="")
        region = self._bucket.region or REGION_DEFAULT
        headers = signed_headers(wanted, self._keys(), region, self._runtime.wall(), sent.body)
        return {"uri": wanted.uri, "headers": {name: [value] for name, value in headers.items()}}


def table_config(namespace: Sequence[str], name: str, caller: str) -> dict[str, str]:
    """The settings that make PyIceberg and Java's S3FileIO have their requests for a table signed.

    The key id in them is not a key: PyIceberg ignores it, but s3fs shares a file system, and with it the endpoint that
    signs, between all tables of a process that have equal settings.
    """
    where = quote("\x1f".join(namespace), safe=""), quote(name, safe="")
    label = hashlib.sha256("\x1f".join((caller, *where)).encode()).hexdigest()[:16]
    return {
        "s3.access-key-id": f"{REMOTE_SIGNING}-{label}",
        "s3.secret-access-key": REMOTE_SIGNING,
        "s3.remote-signing-enabled": "true",
        "s3.signer": "S3V4RestSigner",
        "s3.signer.endpoint": "v1/namespaces/{}/tables/{}/sign".format(*where),
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
    }


def is_asked_for(header: str | None) -> bool:
    """Whether a client asks for remote signing, by its `X-Iceberg-Access-Delegation`: a list of what it supports."""
    return REMOTE_SIGNING in [part.strip().lower() for part in (header or "").split(",")]


def signer_of(url: str, warehouse_url: str, runtime: Runtime) -> RequestSigner:
    """The signer of a fleet in an S3 bucket.   Raises: Unsupported for another store, or if no key is found."""
    if not url.startswith("s3://"):
        raise Unsupported("remote signing needs a fleet in an S3 bucket", hint="leave --remote-signing out")
    place = locate(url)
    prefix = warehouse_url.removeprefix(f"s3://{place.bucket}/")
    bucket = S3Bucket(place.bucket, place.endpoint, place.options.get("region", ""))
    keys = _keys_of(place)
    keys()
    return RequestSigner(bucket, prefix, keys, runtime)


def _keys_of(place: Place) -> Callable[[], S3Keys]:
    """The source of keys: the environment or profile; else boto3, which renews short-lived ones."""
    options = place.options
    if "access_key_id" in options:
        fixed = S3Keys(options["access_key_id"], options["secret_access_key"], options.get("session_token", ""))
        return lambda: fixed
    try:
        found = import_module("boto3").Session(profile_name=place.profile).get_credentials()
    except ModuleNotFoundError:
        raise Unsupported(
            "remote signing found no AWS key in the environment or profile", hint="pip install boto3 for other sources"
        ) from None
    if found is None:
        raise Invalid("remote signing found no AWS key", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")

    def renewed() -> S3Keys:
        frozen = found.get_frozen_credentials()
        return S3Keys(frozen.access_key, frozen.secret_key, frozen.token or "")

    return renewed


def signed_headers(
    wanted: SignableRequest, keys: S3Keys, region: str, now: datetime, body: str | None = None
) -> dict[str, str]:
    """The headers of an allowed request with its signature (AWS Signature Version 4)."""
    headers = {**wanted.headers, "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}"}
    if wanted.pins_body:
        headers["x-amz-content-sha256"] = hashlib.sha256((body or "").encode()).hexdigest()
    elif headers.get("x-amz-content-sha256") != STREAMED:
        headers["x-amz-content-sha256"] = UNSIGNED
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    signed = {**headers, "host": wanted.host}
    authorization = authorization_of(wanted.method, wanted.path, wanted.query, signed, keys, region)
    return {**headers, "authorization": authorization}


def authorization_of(method: str, path: str, query: str, headers: Mapping[str, str], keys: S3Keys, region: str) -> str:
    """The Authorization header of a request to S3 in canonical form, with all of `headers` signed."""
    at = headers["x-amz-date"]
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    canonical = "\n".join((method, path, query, lines, names, headers["x-amz-content-sha256"]))
    scope = f"{at[:8]}/{region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", at, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"

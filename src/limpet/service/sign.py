"""Clients without a key of the bucket: remote signing, and short-lived credentials for one table.

A client that sends `X-Iceberg-Access-Delegation: remote-signing` gets, with a table, the address where the service
signs its S3 requests with a key that it never sees. Signing is arithmetic: no request is sent. With
`vended-credentials` it gets a credential of an STS, which lasts for an hour and is limited to the table's folders.
`limpet.service.decide` says what is signed, and what a credential allows.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from posixpath import commonpath
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import msgspec

from limpet.kernel.errors import Denied, Invalid, Unavailable, Unsupported
from limpet.kernel.keys import FLEET, join
from limpet.kernel.records import Name
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.credentials import Place, boto3_session, check_endpoint, locate
from limpet.kernel.waiting import backoff_s
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
    encoded,
    session_policy,
)

DELEGATION_HEADER = b"x-iceberg-access-delegation"
REMOTE_SIGNING = "remote-signing"
VENDED = "vended-credentials"
UNSIGNED = "UNSIGNED-PAYLOAD"
STREAMED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
REGION_DEFAULT = "us-east-1"
STS_S = 10.0
STS_BYTES_MAX = 64 << 10
STS_REST_S = 1.0
"""The pause after a failure of the STS, which grows with each; meanwhile its clients are answered 503 at once."""
STS_CALLS_MAX = 16
CREDENTIALS_MAX = 10_000
LIFE_S = 3600

_ROLE = re.compile(r"arn:([a-z][a-z0-9-]*):iam::(?:[0-9a-zA-Z]*:)?role/[\w+=,.@/-]{1,512}", re.ASCII)
_BAD_POLICY = frozenset(("PackedPolicyTooLarge", "MalformedPolicyDocument"))
"""What an STS answers because of one table's folders. It says nothing of other tables."""
_CREDENTIAL = re.compile(r"[!-~]{1,16384}")
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


KeySource = Callable[[], S3Keys]


class SignBody(msgspec.Struct):
    """The body of a request to sign, as in Iceberg's specification of S3 signers. `decide` says which are signed."""

    uri: Annotated[str, msgspec.Meta(max_length=URI_CHARACTERS_MAX)]
    method: Name
    headers: Annotated[dict[Name, _HeaderValues], msgspec.Meta(max_length=HEADERS_MAX)]
    region: Name = ""
    provider: Literal["s3"] | None = None
    body: Annotated[str, msgspec.Meta(max_length=BODY_BYTES_MAX)] | None = None


class RequestSigner:
    """Signs requests to the bucket of a fleet. Thread-safe."""

    def __init__(self, bucket: S3Bucket, prefix: str, keys: KeySource, runtime: Runtime) -> None:
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

    def check(self, outside: str) -> None:
        """Check that the store refuses S3 headers that are not signed. `outside`: an object that is in no table.

        Otherwise a client could add a copy source to a signed PUT, and read the whole bucket.   Raises: Unsupported;
        Unavailable.   Cost: 1 PUT that is refused.
        """
        key, source = f"{self._prefix}/{_probe(self._runtime)}", f"/{self._bucket.name}/{outside}"
        if _sent(self._bucket, "PUT", key, self._keys(), self._runtime, {"x-amz-copy-source": source}) != 403:
            _sent(self._bucket, "DELETE", key, self._keys(), self._runtime)
            raise Unsupported(
                "the store accepts S3 headers that are not signed, so a client could copy any object",
                hint="leave --remote-signing out",
            )


@dataclass(frozen=True, slots=True)
class ShortLivedKeys:
    """A credential of an STS. `expires_at` is by its clock."""

    keys: S3Keys
    expires_at: datetime

    def config(self) -> dict[str, str]:
        """The settings of a client that uses it."""
        return {
            "s3.access-key-id": self.keys.access_key_id,
            "s3.secret-access-key": self.keys.secret_access_key,
            "s3.session-token": self.keys.token,
            "s3.session-token-expires-at-ms": str(int(self.expires_at.timestamp() * 1000)),
        }


class StsClient:
    """Calls AssumeRole of an STS, with the service's key (`keys`). Thread-safe."""

    def __init__(self, role_arn: str, endpoint: str, region: str, keys: KeySource, life_s: int, runtime: Runtime):
        """`endpoint`: the URL of the STS.   Raises: Invalid."""
        found = _ROLE.fullmatch(role_arn)
        if found is None:
            raise Invalid(f"{role_arn!r} is not the ARN of a role", hint="write arn:aws:iam::ACCOUNT:role/NAME")
        check_endpoint(endpoint)
        self.partition = found[1]
        self.life_s = life_s
        self.endpoint = endpoint.rstrip("/")
        self._role_arn = role_arn
        self._region = region
        self.keys = keys
        self._runtime = runtime

    def assume(self, policy: str, keys: S3Keys | None = None) -> ShortLivedKeys:
        """A credential with the rights of the role, as far as `policy` allows (empty: all). `keys`: of the caller.

        Raises: Unavailable, also if the STS refuses; Unsupported if it refuses this policy.
        Cost: 1 request to the STS.
        """
        fields = {"Action": "AssumeRole", "Version": "2011-06-15", "RoleArn": self._role_arn, "Policy": policy}
        fields |= {"RoleSessionName": "limpet", "DurationSeconds": str(self.life_s)}
        body = urlencode({name: value for name, value in fields.items() if value}, quote_via=quote).encode()
        parts, by = urlsplit(self.endpoint), keys or self.keys()
        headers = {
            "content-type": "application/x-www-form-urlencoded; charset=utf-8",
            "host": parts.netloc,
            "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
            "x-amz-date": f"{self._runtime.wall():%Y%m%dT%H%M%SZ}",
            **({"x-amz-security-token": by.token} if by.token else {}),
        }
        path = parts.path or "/"
        headers["authorization"] = authorization_of("POST", path, "", headers, by, self._region, "sts")
        try:
            status, data = _exchange(self.endpoint, "POST", path, headers, body)
            answer = _parsed(data)
        except (OSError, HTTPException, ValueError) as error:
            raise Unavailable(f"the STS at {self.endpoint} gave no valid answer: {error}", hint="try again") from None
        if status != 200:
            code = str(next((each.text for each in answer.iter() if each.tag.endswith("Code")), "") or "")[:100]
            if code in _BAD_POLICY:
                raise Unsupported(
                    f"no credential is issued: the STS refused its policy: {code}",
                    hint="use remote signing for this table",
                )
            raise Unavailable(
                f"the STS at {self.endpoint} refused AssumeRole: {status} {code}",
                hint="the service's identity must be trusted by the role: see docs/run/serve.md",
            )
        return self._issued(answer)

    def _issued(self, answer: ElementTree.Element) -> ShortLivedKeys:
        found = {each.tag.rpartition("}")[2]: each.text or "" for each in answer.iterfind(".//{*}Credentials/*")}
        values = [found.get(name, "") for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
        try:
            expires_at = datetime.fromisoformat(found.get("Expiration", "")).astimezone(UTC)
        except ValueError:
            expires_at = None
        if expires_at is None or not all(_CREDENTIAL.fullmatch(each) for each in values):
            raise Unavailable(f"the STS at {self.endpoint} gave no valid credential", hint="is it an STS?")
        return ShortLivedKeys(S3Keys(*values), expires_at)


class CredentialSource:
    """Issues credentials for the folders of one table, and caches them. Thread-safe.

    A cached one is issued again, to every client with equal rights, until half of its life has passed. Rights and
    folders are the caller's to check, with each request: what was issued already stays valid until it expires.
    """

    def __init__(self, bucket: S3Bucket, prefix: str, sts: StsClient, runtime: Runtime) -> None:
        """`prefix`: the folder of the warehouse in the bucket."""
        self._bucket = bucket
        self._prefix = prefix
        self._sts = sts
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._calls = [runtime.mutex() for _ in range(STS_CALLS_MAX)]
        self._cache: OrderedDict[str, tuple[ShortLivedKeys, float]] = OrderedDict()
        self._failures = 0
        self._rests: tuple[float, str] = (float("-inf"), "")
        """Until when the STS is left alone, and why."""

    def issue(self, folders: Sequence[str], *, may_write: bool) -> ShortLivedKeys:
        """A credential for the folders of a table, below the warehouse; at least half of its life is left.

        Raises: Unsupported for folders that a policy cannot name; Unavailable.   Cost: 1 request to the STS, or 0.
        """
        inside = [f"{self._prefix}/{folder}" for folder in folders]
        policy = session_policy(self._bucket.name, inside, may_write=may_write, partition=self._sts.partition)
        if isinstance(policy, SigningRefusal):
            raise Unsupported(f"no credential is issued: {policy.reason}", hint="use remote signing for this table")
        with self._calls[hash(policy) % STS_CALLS_MAX]:  # of clients that come at once, one asks
            found = self._cached(policy)
            if found is None:
                found = self._new(policy)
        return found

    def storage_credentials(self, folders: Sequence[str], *, may_write: bool) -> list[dict[str, Any]]:
        """What Iceberg calls storage credentials: one, since Java's client takes no more. Raises, cost: as `issue`."""
        issued = self.issue(folders, may_write=may_write)
        url = f"s3://{self._bucket.name}/{self._prefix}/{commonpath(folders)}".rstrip("/")
        return [{"prefix": url, "config": issued.config()}]

    def check(self, outside: str) -> None:
        """Check that the store keeps clients to the policy, by a credential that may read one folder and no more.

        It must neither read `outside`, an object that is in no table, nor write, nor assume the role again, which would
        take the limits off.   Raises: Unsupported; Unavailable.   Cost: 2 requests to the STS, 1 GET, 1 PUT.
        """
        folder = _probe(self._runtime)
        key, keys = f"{self._prefix}/{folder}/x", self.issue([folder], may_write=False).keys
        if _sent(self._bucket, "GET", outside, keys, self._runtime) != 403:
            raise Unsupported(f"the store ignores session policies{_NO_VENDING}", hint=_WITHOUT_STS)
        if _sent(self._bucket, "PUT", key, keys, self._runtime) != 403:
            _sent(self._bucket, "DELETE", key, self._sts.keys(), self._runtime)
            raise Unsupported(f"the store lets a credential that may only read write{_NO_VENDING}", hint=_WITHOUT_STS)
        try:
            self._sts.assume("", keys)
        except Unavailable:
            return
        raise Unsupported(
            f"a credential of the role can assume the role again, without limits{_NO_VENDING}",
            hint="let the role's trust policy name the identity of the service, and not *",
        )

    def _cached(self, policy: str) -> ShortLivedKeys | None:
        with self._mutex:
            found = self._cache.get(policy)
            if found is None or self._runtime.elapsed_s() >= found[1]:
                return None
            self._cache.move_to_end(policy)
            return found[0]

    def _new(self, policy: str) -> ShortLivedKeys:
        until_s, why = self._rests
        began_s = self._runtime.elapsed_s()
        if began_s < until_s:
            raise Unavailable(why, hint="try again in a moment")
        try:
            issued = self._sts.assume(policy)
        except Unavailable as error:
            self._failures += 1
            rest_s = backoff_s(self._runtime, self._failures, STS_REST_S)
            self._rests = (self._runtime.elapsed_s() + rest_s, str(error))
            raise
        self._failures = 0
        life_s = min(self._sts.life_s, (issued.expires_at - self._runtime.wall()).total_seconds())
        with self._mutex:
            self._cache[policy] = (issued, began_s + life_s / 2)
            self._cache.move_to_end(policy)
            while len(self._cache) > CREDENTIALS_MAX:
                self._cache.popitem(last=False)
        return issued


_NO_VENDING = ": it would be a key of the whole bucket"
_WITHOUT_STS = "leave --sts-role-arn out, and use --remote-signing"


def table_path(namespace: Sequence[str], name: str) -> str:
    """The path of a table below the service's URL."""
    return "v1/namespaces/{}/tables/{}".format(quote("\x1f".join(namespace), safe=""), quote(name, safe=""))


def signer_config(path: str, endpoint: str, caller: str) -> dict[str, str]:
    """The settings that make PyIceberg and Java's S3FileIO have their requests for the table at `path` signed.

    The key id in them is not a key: PyIceberg ignores it, but s3fs shares a file system, and with it the endpoint that
    signs, between all tables of a process that have equal settings.
    """
    label = hashlib.sha256("\x1f".join((caller, path)).encode()).hexdigest()[:16]
    return {
        "s3.access-key-id": f"{REMOTE_SIGNING}-{label}",
        "s3.secret-access-key": REMOTE_SIGNING,
        "s3.remote-signing-enabled": "true",
        "s3.signer": "S3V4RestSigner",
        "s3.signer.endpoint": f"{path}/{endpoint}",
        "signer.endpoint": f"{path}/{endpoint}",  # Java from 1.12 on knows only this name
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
    }


def delegations(header: str | None) -> frozenset[str]:
    """What a client supports, by its `X-Iceberg-Access-Delegation`: a list of names."""
    return frozenset(part.strip().lower() for part in (header or "").split(","))


@dataclass(frozen=True, slots=True)
class StsArguments:
    """How the service gets credentials for its clients. Without an endpoint: the store's own, or that of AWS."""

    role_arn: str
    endpoint: str | None = None
    life_s: int = LIFE_S


def signer_of(url: str, warehouse_url: str, runtime: Runtime) -> RequestSigner:
    """The signer of a fleet in an S3 bucket.   Raises: Unsupported for another store, or if no key is found."""
    bucket, prefix, _, keys = _bucket_of(url, warehouse_url, "--remote-signing")
    return RequestSigner(bucket, prefix, keys, runtime)


def credential_source(url: str, warehouse_url: str, settings: StsArguments, runtime: Runtime) -> CredentialSource:
    """The source of credentials for a fleet in an S3 bucket.   Raises: Invalid; Unsupported, as `signer_of`."""
    bucket, prefix, place, keys = _bucket_of(url, warehouse_url, "--sts-role-arn")
    region = bucket.region or REGION_DEFAULT
    zone = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    endpoint = settings.endpoint or place.endpoint or f"https://sts.{region}.{zone}"
    sts = StsClient(settings.role_arn, endpoint, region, keys, settings.life_s, runtime)
    return CredentialSource(bucket, prefix, sts, runtime)


def outside_object(url: str) -> str:
    """The key of an object of each fleet that belongs to no table, for checks."""
    return join(locate(url).prefix, FLEET)


def _bucket_of(url: str, warehouse_url: str, option: str) -> tuple[S3Bucket, str, Place, KeySource]:
    if not url.startswith("s3://"):
        raise Unsupported(f"{option} needs a fleet in an S3 bucket", hint=f"leave {option} out")
    place = locate(url)
    prefix = warehouse_url.removeprefix(f"s3://{place.bucket}/")
    keys = _keys_of(place)
    keys()
    return S3Bucket(place.bucket, place.endpoint, place.options.get("region", "")), prefix, place, keys


def _keys_of(place: Place) -> KeySource:
    """The source of keys: the environment or profile; else boto3, which renews short-lived ones."""
    options = place.options
    if "access_key_id" in options:
        fixed = S3Keys(options["access_key_id"], options["secret_access_key"], options.get("session_token", ""))
        return lambda: fixed
    found = boto3_session(place.profile).get_credentials()
    if found is None:
        raise Invalid("no AWS key was found", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")

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


def authorization_of(
    method: str, path: str, query: str, headers: Mapping[str, str], keys: S3Keys, region: str, service: str = "s3"
) -> str:
    """The Authorization header of a request in canonical form, with all of `headers` signed."""
    at = headers["x-amz-date"]
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    canonical = "\n".join((method, path, query, lines, names, headers["x-amz-content-sha256"]))
    scope = f"{at[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", at, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"


# ---- requests of the service itself ----


def _probe(runtime: Runtime) -> str:
    """A name in the warehouse that nobody else uses."""
    return f"probe-{runtime.rng.getrandbits(64):016x}"


def _sent(
    bucket: S3Bucket, method: str, key: str, keys: S3Keys, runtime: Runtime, unsigned: Mapping[str, str] | None = None
) -> int:
    region = bucket.region or REGION_DEFAULT
    server = urlsplit(bucket.endpoint or f"https://s3.{region}.amazonaws.com")
    path = encoded(f"/{bucket.name}/{key}", keep="/")
    wanted = SignableRequest(method, server.scheme, server.netloc, path, "", {}, method != "GET", False)
    headers = {**signed_headers(wanted, keys, region, runtime.wall()), **(unsigned or {})}
    try:
        return _exchange(f"{server.scheme}://{server.netloc}", method, path, headers, b"")[0]
    except (OSError, HTTPException) as error:
        raise Unavailable(f"the store at {server.netloc} gave no answer: {error}") from None


def _exchange(url: str, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
    """One request; redirects are not followed. The status, and at most `STS_BYTES_MAX` of the body."""
    parts = urlsplit(url)
    connection = (HTTPSConnection if parts.scheme == "https" else HTTPConnection)(parts.netloc, timeout=STS_S)
    try:
        connection.request(method, path, body, {**headers})
        response = connection.getresponse()
        return response.status, response.read(STS_BYTES_MAX)
    finally:
        connection.close()


def _parsed(data: bytes) -> ElementTree.Element:
    """XML without document types.   Raises: ValueError."""
    try:
        if b"<!" in data:
            raise ValueError("it has a document type")
        return ElementTree.fromstring(data)
    except ElementTree.ParseError:
        raise ValueError("it is not XML") from None

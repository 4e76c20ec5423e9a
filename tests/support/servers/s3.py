"""The S3 calls that the cloud client has not: making a bucket, setting its policy."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPConnection
from urllib.parse import quote, urlsplit

from support.servers.process import Bucket

__all__ = ["REGION", "bucket_of", "create_bucket", "request", "set_policy"]

REGION = "us-east-1"


def bucket_of(endpoint: str, name: str, admin: Mapping[str, str], reader: Mapping[str, str]) -> Bucket:
    """The facts about a bucket of an S3 server."""
    env = {
        "AWS_ACCESS_KEY_ID": admin["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": admin["secret_access_key"],
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": REGION,
    }
    return Bucket(f"s3://{name}?endpoint={endpoint}&region={REGION}", admin, env, reader)


def create_bucket(endpoint: str, name: str, keys: Mapping[str, str]) -> bool:
    """Whether the server answered, and the bucket is there now."""
    try:
        status, _ = request(endpoint, keys, "PUT", f"/{name}")
    except OSError:
        return False
    return status in (200, 409)


def set_policy(endpoint: str, name: str, keys: Mapping[str, str], policy: Mapping[str, object]) -> None:
    """Put a bucket policy."""
    status, answer = request(endpoint, keys, "PUT", f"/{name}", query="policy=", body=json.dumps(policy).encode())
    assert status in (200, 204), answer


def request(
    endpoint: str, keys: Mapping[str, str], method: str, path: str, *, query: str = "", body: bytes = b""
) -> tuple[int, bytes]:
    """One request signed with AWS signature version 4; its status and body."""
    host = urlsplit(endpoint).netloc
    at = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": at}
    signed = ";".join(headers)
    canonical = "\n".join(
        [method, quote(path), query, *(f"{name}:{value}" for name, value in headers.items()), "", signed, digest]
    )
    scope = f"{at[:8]}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys['secret_access_key']}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    credential = f"{keys['access_key_id']}/{scope}"
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={signed}, Signature={signature}"
    )
    connection = HTTPConnection(host, timeout=30)
    try:
        connection.request(method, quote(path) + (f"?{query}" if query else ""), body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()

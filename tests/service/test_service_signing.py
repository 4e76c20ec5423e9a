"""Which S3 requests are signed, and how: tables of cases, hostile paths by the thousand, AWS's own examples."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import example, given
from hypothesis import strategies as st

from limpet.app.catalogs import lead, storage_of
from limpet.errors import Denied, Unsupported
from limpet.runtime import system
from limpet.service.decide import HEADERS_MAX, S3Bucket, S3Request, SignableRequest, SigningRefusal, decide
from limpet.service.http import Caller, Request, Tokens
from limpet.service.rest import Rest
from limpet.service.sign import (
    RequestSigner,
    S3Keys,
    SignBody,
    authorization_of,
    is_asked_for,
    signed_headers,
    signer_of,
    table_config,
)
from limpet.store import MemoryStore
from limpet.store.metered import MeteredStore

HERE = S3Bucket("lake", "http://127.0.0.1:9000", "us-east-1")
AWS = S3Bucket("lake", None, "eu-north-1")
FOLDER = "prod/warehouse/a/t-0123456789ab"
BASE = f"http://127.0.0.1:9000/lake/{FOLDER}"
KEYS = S3Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
NOW = datetime(2013, 5, 24, tzinfo=UTC)
Headers = dict[str, list[str]]


def asked(
    method: str, uri: str, headers: Headers | None = None, body: str | None = None, *, write: bool = True
) -> SignableRequest | SigningRefusal:
    return decide(S3Request(method, uri, headers or {}, body), may_write=write, bucket=HERE, folders=[FOLDER])


def allowed(method: str, uri: str, headers: Headers | None = None, *, write: bool = True) -> bool:
    return isinstance(asked(method, uri, headers, write=write), SignableRequest)


READS = [
    ("GET", f"{BASE}/data/x.parquet"),
    ("GET", f"{BASE}/data/x.parquet?x-id=GetObject"),
    ("HEAD", f"{BASE}/metadata/00000-abc.metadata.json"),
    ("GET", f"{BASE}/data/city=a%252Fb/%C3%A6.parquet"),
    ("GET", f"http://lake.127.0.0.1:9000/{FOLDER}/data/x.parquet"),
    ("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix={quote(FOLDER, safe='')}%2Fdata%2F&delimiter=%2F"),
    ("GET", f"http://127.0.0.1:9000/lake/?list-type=2&max-keys=1&prefix={quote(FOLDER, safe='')}%2F"),
]
WRITES = [
    ("PUT", f"{BASE}/data/x.parquet"),
    ("PUT", f"{BASE}/data/x.parquet?partNumber=1&uploadId=abc"),
    ("POST", f"{BASE}/data/x.parquet?uploads"),
    ("POST", f"{BASE}/data/x.parquet?uploads="),
    ("POST", f"{BASE}/data/x.parquet?uploadId=abc"),
    ("DELETE", f"{BASE}/data/x.parquet"),
    ("DELETE", f"{BASE}/data/x.parquet?uploadId=abc"),
]
SIBLING = f"{BASE}x/data/x.parquet"
DENIED = [
    ("GET", SIBLING),
    ("GET", f"{BASE}"),
    ("GET", f"{BASE}/"),
    ("GET", f"{BASE}/../other/x"),
    ("GET", f"{BASE}/a/../../other/x"),
    ("GET", f"{BASE}/%2e%2e/other/x"),
    ("GET", f"{BASE}/%252e%252e/other/x"),
    ("GET", f"{BASE}/%2e%2e%2fother/x"),
    ("GET", f"{BASE}%2Fdata/x.parquet"),
    ("GET", f"{BASE}/..%2Fother"),
    ("GET", f"{BASE}/..%5Cother"),
    ("GET", f"{BASE}//x"),
    ("GET", f"{BASE}/./x"),
    ("GET", f"{BASE}/a%00b"),
    ("GET", f"{BASE}/a%0Ab"),
    ("GET", f"{BASE}/a+b"),
    ("GET", f"{BASE}/a%zz"),
    ("GET", f"{BASE}/a%FF"),
    ("GET", f"{BASE}/x#y"),
    ("GET", f"{BASE}/x y"),
    ("GET", f"http://127.0.0.1:9000/other/{FOLDER}/x"),
    ("GET", f"http://127.0.0.1:9000/lakes/{FOLDER}/x"),
    ("GET", f"http://127.0.0.1:9000//lake/{FOLDER}/x"),
    ("GET", f"http://127.0.0.1:9000/l%61ke/{FOLDER}/x"),
    ("GET", f"http://other.127.0.0.1:9000/{FOLDER}/x"),
    ("GET", f"http://lake.127.0.0.1:9000/lake/{FOLDER}/x"),
    ("GET", f"http://user@127.0.0.1:9000/lake/{FOLDER}/x"),
    ("GET", f"http://127.0.0.1:9001/lake/{FOLDER}/x"),
    ("GET", f"https://127.0.0.1:9000/lake/{FOLDER}/x"),
    ("GET", f"http://169.254.169.254/lake/{FOLDER}/x"),
    ("GET", f"http://127.0.0.1:9000@evil/lake/{FOLDER}/x"),
    ("GET", f"ftp://127.0.0.1:9000/lake/{FOLDER}/x"),
    ("GET", f"http://127.0.0.1:99999/lake/{FOLDER}/x"),
    ("GET", f"http://[::1/lake/{FOLDER}/x"),
    ("GET", ""),
    ("GET", f"{BASE}/{'x' * 9000}"),
    *[("GET", f"{BASE}/x?{name}") for name in ("acl", "tagging", "versionId=1", "attributes", "partNumber=1")],
    *[("GET", f"{BASE}/x?{name}") for name in ("response-content-type=a", "X-Amz-Expires=9", "uploadId=a", "ACL")],
    *[("PUT", f"{BASE}/x?{name}") for name in ("acl", "tagging", "retention", "legal-hold", "uploads", "x=1")],
    ("PUT", f"{BASE}/x?partNumber=1"),
    ("PUT", f"{BASE}/x?partNumber=-1&uploadId=a"),
    ("PUT", f"{BASE}/x?partNumber=1&uploadId=a&acl"),
    ("PUT", f"{BASE}/metadata/00001-abc.metadata.json"),
    ("DELETE", f"{BASE}/metadata/00001-abc.metadata.json"),
    ("DELETE", f"{BASE}/x?versionId=1"),
    ("POST", f"{BASE}/x"),
    ("POST", f"{BASE}/x?select&select-type=2"),
    ("POST", f"{BASE}/x?restore"),
    ("PATCH", f"{BASE}/x"),
    ("get", f"{BASE}/x"),
    ("GET", "http://127.0.0.1:9000/"),
    ("GET", "http://127.0.0.1:9000/lake"),
    ("HEAD", "http://127.0.0.1:9000/lake"),
    ("PUT", "http://127.0.0.1:9000/lake"),
    ("DELETE", "http://127.0.0.1:9000/lake"),
    ("PUT", "http://127.0.0.1:9000/lake?policy"),
    ("GET", "http://127.0.0.1:9000/lake?location"),
    ("GET", "http://127.0.0.1:9000/lake?uploads"),
    ("GET", "http://127.0.0.1:9000/lake?list-type=2"),
    ("GET", "http://127.0.0.1:9000/lake?list-type=2&prefix="),
    ("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix={FOLDER}"),
    ("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix={FOLDER}x/"),
    ("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix={FOLDER}/..%2F"),
    ("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix={FOLDER}/&prefix="),
    ("GET", f"http://127.0.0.1:9000/lake?prefix={FOLDER}/"),
    ("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix={FOLDER}/&versions"),
    ("POST", "http://127.0.0.1:9000/lake?delete"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "uri"), READS)
def test_a_reader_reads_what_is_in_the_table(method: str, uri: str) -> None:
    assert allowed(method, uri, write=False)
    assert allowed(method, uri, write=True)


@pytest.mark.parametrize(("method", "uri"), WRITES)
def test_only_a_writer_writes(method: str, uri: str) -> None:
    assert allowed(method, uri, write=True)
    assert asked(method, uri, write=False) == SigningRefusal("the token may only read")


@pytest.mark.parametrize(("method", "uri"), DENIED)
def test_all_else_is_denied_to_a_writer_too(method: str, uri: str) -> None:
    found = asked(method, uri)
    assert isinstance(found, SigningRefusal)
    assert found.reason


def test_a_sibling_whose_name_begins_alike_is_another_table() -> None:
    assert allowed("GET", f"{BASE}/x")
    assert not allowed("GET", SIBLING)
    assert not allowed("GET", f"http://127.0.0.1:9000/lake?list-type=2&prefix={FOLDER}")


@pytest.mark.parametrize(
    ("name", "value", "fine"),
    [
        ("x-amz-meta-a", "b", True),
        ("X-Amz-Checksum-Crc32", "AAAAAA==", True),
        ("x-amz-server-side-encryption", "AES256", True),
        ("Range", "bytes=0-1", True),
        ("x-amz-copy-source", f"/lake/{FOLDER}/data/y.parquet", True),
        ("x-amz-copy-source", f"lake/{quote(FOLDER)}/data/y.parquet", True),
        ("x-amz-copy-source", f"/lake/{FOLDER}x/data/y.parquet", False),
        ("X-AMZ-COPY-SOURCE", "/lake/other/y", False),
        ("x-amz-copy-source", f"/other/{FOLDER}/y", False),
        ("x-amz-copy-source", f"/lake/{FOLDER}/../other", False),
        ("x-amz-copy-source", f"/lake/{FOLDER}/%2e%2e/other", False),
        ("x-amz-copy-source", f"/lake/{FOLDER}/y?versionId=1", False),
        ("x-amz-copy-source", "arn:aws:s3:eu:1:accesspoint/a/object/b", False),
        ("x-amz-copy-source", "", False),
        ("x-amz-acl", "public-read", False),
        ("x-amz-grant-read", "id=1", False),
        ("x-amz-tagging", "a=b", False),
        ("x-amz-website-redirect-location", "/", False),
        ("x-amz-object-lock-mode", "COMPLIANCE", False),
        ("x-amz-bypass-governance-retention", "true", False),
        ("x-amz-security-token", "theirs", False),
        ("x-amz-date\r\nx", "1", False),
        ("x-amz-meta-a", "b\r\nx-amz-acl: public-read", False),
    ],
)
def test_headers_that_decide_what_a_put_does_are_checked(name: str, value: str, fine: bool) -> None:
    assert allowed("PUT", f"{BASE}/data/x.parquet", {name: [value]}) is fine


def test_a_read_has_no_headers_of_writes() -> None:
    assert not allowed("GET", f"{BASE}/x", {"x-amz-copy-source": [f"/lake/{FOLDER}/y"]})
    assert not allowed("GET", f"{BASE}/x", {"x-amz-meta-a": ["b"]})
    assert not allowed("GET", f"{BASE}/x", {"x-amz-date": ["a"], "X-Amz-Date": ["b"]})
    assert not allowed("GET", f"{BASE}/x", {f"a{n}": ["b"] for n in range(HEADERS_MAX + 1)})


def deleted(body: str | None, bucket: S3Bucket = AWS) -> bool:
    host = bucket.endpoint or "https://s3.eu-north-1.amazonaws.com"
    request = S3Request("POST", f"{host}/lake?delete", {"content-md5": ["x"]}, body)
    found = decide(request, may_write=True, bucket=bucket, folders=[FOLDER])
    return isinstance(found, SignableRequest) and found.pins_body


ONE = f"<Object><Key>{FOLDER}/data/x</Key></Object>"


def test_a_delete_of_several_objects_is_checked_by_its_body() -> None:
    assert deleted(f"<Delete>{ONE}</Delete>")
    assert deleted(
        '<?xml version="1.0" encoding="UTF-8"?>\n<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"{ONE}{ONE}\n<Quiet>true</Quiet></Delete>"
    )
    assert not deleted(f"<Delete>{ONE}</Delete>", HERE), "a server that may not compare the body"


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "<Delete></Delete>",
        f"<Delete>{ONE}<Object><Key>other/x</Key></Object></Delete>",
        f"<Delete><Object><Key>{FOLDER}x/y</Key></Object></Delete>",
        f"<Delete><Object><Key>{FOLDER}/../y</Key></Object></Delete>",
        f"<Delete><Object><Key>{FOLDER}/&#46;./y</Key></Object></Delete>",
        f"<Delete><Object><Key>{FOLDER}/a.metadata.json</Key></Object></Delete>",
        f"<Delete><Object><Key>{FOLDER}/x</Key><Key>other</Key></Object></Delete>",
        f"<Delete><Object><Key>{FOLDER}/x</Key><VersionId>1</VersionId></Object></Delete>",
        f"<Delete><Object><Key>{FOLDER}/x</Key>other</Object></Delete>",
        f"<Delete><Object><Key>{FOLDER}/x<!-- -->/../../y</Key></Object></Delete>",
        f"<Delete><Object><Key><![CDATA[{FOLDER}/x]]></Key></Object></Delete>",
        f"<!DOCTYPE a [<!ENTITY b 'c'>]><Delete>{ONE}</Delete>",
        f"<a:Delete xmlns:a='b'>{ONE}</a:Delete>",
        f"<Delete xmlns='other'>{ONE}</Delete>",
        f"<Delete>{ONE}</Delete><Delete/>",
        f"<Delete><Object> {ONE}</Object></Delete>",
        f"<Delete><Object><Key> {FOLDER}/x</Key></Object></Delete>",
        f"<?xml version='1.0' encoding='utf-7'?><Delete>{ONE}</Delete>",
        f"<Delete>{ONE * 1001}</Delete>",
        "\ud800",
    ],
)
def test_a_body_that_may_be_read_in_another_way_is_denied(body: str | None) -> None:
    assert not deleted(body)


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("https://s3.eu-north-1.amazonaws.com/lake", True),
        ("https://lake.s3.eu-north-1.amazonaws.com", True),
        ("https://lake.s3.amazonaws.com:443", True),
        ("http://lake.s3.amazonaws.com", False),
        ("https://lake.s3.eu-north-1.amazonaws.com.evil.org", False),
        ("https://other.s3.eu-north-1.amazonaws.com", False),
        ("https://s3.us-east-1.amazonaws.com/lake", False),
        ("https://sts.amazonaws.com/lake", False),
    ],
)
def test_hosts_of_aws(host: str, fine: bool) -> None:
    request = S3Request("GET", f"{host}/{FOLDER}/x")
    assert isinstance(decide(request, may_write=True, bucket=AWS, folders=[FOLDER]), SignableRequest) is fine


PIECES = st.sampled_from(
    ["..", ".", "/", "//", "%2e", "%2E%2e", "%2f", "%252e", "%252f", "%25", "%5c", "\\", "+", "%00", "x", FOLDER,
     "lake", FOLDER[:-1], f"{FOLDER}x", "?", "prefix=", "list-type=2", "&", "acl", "uploads", "%C3", "%A6", "#", "@",
     ":", ";", "data/", "%20", "é", "127.0.0.1:9000", "http://"]
)  # fmt: skip


def decoded(text: str) -> str:
    for _ in range(8):
        text = unquote(text)
    return text.replace("\\", "/")


@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE"]),
    pieces=st.lists(PIECES, max_size=8),
    base=st.sampled_from([f"{BASE}/", BASE, "http://127.0.0.1:9000/lake", "http://lake.127.0.0.1:9000/", ""]),
    write=st.booleans(),
)
@example(method="GET", pieces=["x/data"], base=BASE, write=False)
@example(
    method="GET", pieces=["?", "list-type=2", "&", "prefix=", FOLDER], base="http://127.0.0.1:9000/lake", write=True
)
def test_whatever_the_path_what_is_signed_is_in_the_table(
    method: str, pieces: list[str], base: str, write: bool
) -> None:
    found = asked(method, base + "".join(pieces), write=write)
    if isinstance(found, SigningRefusal):
        return
    assert write or (method in ("GET", "HEAD") and not found.writes)
    parts = urlsplit(found.uri)
    assert parts.netloc in ("127.0.0.1:9000", "lake.127.0.0.1:9000")
    target = parts.path.removeprefix("/lake" if parts.netloc == "127.0.0.1:9000" else "").removeprefix("/")
    if not target:
        target = dict(each.split("=") for each in parts.query.split("&"))["prefix"]
    segments = decoded(target).split("/")
    assert decoded(target).startswith(f"{FOLDER}/")
    assert ".." not in segments
    assert "." not in segments


# ---- signatures ----

EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    ("path", "query", "more", "signature"),
    [
        ("/test.txt", "", {"range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/", "lifecycle=", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/", "max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_examples_of_aws(path: str, query: str, more: dict[str, str], signature: str) -> None:
    headers = {"host": "examplebucket.s3.amazonaws.com", "x-amz-date": "20130524T000000Z", **more}
    headers["x-amz-content-sha256"] = EMPTY
    assert authorization_of("GET", path, query, headers, KEYS, "us-east-1").endswith(f"Signature={signature}")


@given(
    name=st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\%"), min_size=1, max_size=20),
    put=st.booleans(),
)
def test_signatures_are_those_of_botocore(name: str, put: bool) -> None:
    method, headers = ("PUT", {"x-amz-meta-a": ["b  c"], "content-type": ["text/plain"]}) if put else ("GET", {})
    wanted = asked(method, f"{BASE}/p-{quote(name, safe='')}?x-id=a", headers)
    assert isinstance(wanted, SignableRequest)
    ours = signed_headers(wanted, KEYS, "us-east-1", NOW)
    request = AWSRequest(method, wanted.uri, {**{k: v for k, v in ours.items() if k != "authorization"}})
    theirs = S3SigV4Auth(Credentials(KEYS.access_key_id, KEYS.secret_access_key), "s3", "us-east-1")
    request.context.update(timestamp=ours["x-amz-date"], payload_signing_enabled=False)
    text = theirs.string_to_sign(request, theirs.canonical_request(request))
    assert ours["authorization"].rpartition("=")[2] == theirs.signature(text, request)


def test_a_body_that_decides_is_signed_and_a_session_token_too() -> None:
    request = S3Request("POST", "https://lake.s3.amazonaws.com/?delete", {}, f"<Delete>{ONE}</Delete>")
    wanted = decide(request, may_write=True, bucket=AWS, folders=[FOLDER])
    assert isinstance(wanted, SignableRequest)
    made = signed_headers(wanted, S3Keys("a", "b", "short-lived"), "eu-north-1", NOW, request.body)
    assert made["x-amz-content-sha256"] == hashlib.sha256((request.body or "").encode()).hexdigest()
    assert "x-amz-security-token" in made["authorization"]
    assert "b" not in repr(S3Keys("a", "b")).removeprefix("S3Keys")


# ---- the endpoint ----


def signer() -> RequestSigner:
    return RequestSigner(HERE, "prod/warehouse", lambda: KEYS, system())


def test_rights_are_checked_before_the_signature() -> None:
    put = SignBody(f"{BASE}/x", "PUT", {})
    folders = ["a/t-0123456789ab"]
    assert "authorization" in str(signer().sign(put, folders, may_write=True))
    with pytest.raises(Denied, match="the token may only read"):
        signer().sign(put, folders, may_write=False)


def test_what_clients_are_told() -> None:
    assert is_asked_for("vended-credentials, Remote-Signing")
    assert not is_asked_for("vended-credentials")
    assert not is_asked_for(None)
    config = table_config(["a", "b/c"], "t +", "etl")
    assert config["s3.signer.endpoint"] == "v1/namespaces/a%1Fb%2Fc/tables/t%20%2B/sign"
    assert config != table_config(["a", "b/c"], "t +", "other"), "s3fs would share a file system"
    assert KEYS.secret_access_key not in str(config)


def test_a_directory_has_nothing_to_sign(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="needs a fleet in an S3 bucket"):
        signer_of(str(tmp_path), f"file://{tmp_path}/warehouse", system())


SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}


def _asked(names: tuple[str, ...], body: Any, caller: Caller) -> Request:
    kind = (b"content-type", b"application/json")
    delegation = (b"x-iceberg-access-delegation", b"remote-signing")
    return Request("POST", names, b"", (kind, delegation), json.dumps(body).encode(), caller)


def test_a_signature_costs_no_request() -> None:
    store = MeteredStore(MemoryStore())
    with lead(storage_of(store, system()), "s3://lake/prod") as catalog:
        rest = Rest(catalog, Tokens(), {}, signer())
        catalog.create_namespace(["a"])
        etl = Caller("etl", frozenset(("read", "write")), (("a",),))
        made = rest.create_table(_asked(("a",), {"name": "t", "schema": SCHEMA}, etl))
        assert b"s3.signer.endpoint" in made.body
        [root] = catalog.table_folders(["a"], "t")
        uri = f"http://127.0.0.1:9000/lake/prod/warehouse/{root}/data/x"
        body = {"region": "us-east-1", "method": "PUT", "uri": uri, "headers": {}}
        before = store.snapshot().requests
        for _ in range(50):
            assert rest.sign(_asked(("a", "t"), body, etl)).status == 200
        spent = {verb: count - before.get(verb, 0) for verb, count in store.snapshot().requests.items()}
        assert sum(spent.values()) <= 2, f"{spent}: the leader renews its lease, and nothing else is sent"
        with pytest.raises(Denied):
            rest.sign(_asked(("a", "t"), body, Caller("r", frozenset(("read",)))))
        with pytest.raises(Unsupported, match="does not sign"):
            Rest(catalog, Tokens(), {}).sign(_asked(("a", "t"), body, etl))

"""Which S3 requests are signed, and how; what a credential allows: tables of cases, hostile paths by the thousand."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import example, given
from hypothesis import strategies as st

from limpet.app.catalogs import lead, storage_of
from limpet.catalog.names import NoSuchTable
from limpet.kernel.errors import Denied, Invalid, Unavailable, Unsupported
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore
from limpet.kernel.store.metered import MeteredStore
from limpet.service.decide import S3Bucket, S3Request, SignableRequest, SigningRefusal, decide, session_policy
from limpet.service.requests import Request
from limpet.service.rest import Rest
from limpet.service.sign import (
    CredentialSource,
    RequestSigner,
    S3Keys,
    ShortLivedKeys,
    SignBody,
    StsClient,
    authorization_of,
    delegations,
    signed_headers,
    signer_config,
    signer_of,
    table_path,
)
from limpet.service.tokens import Caller, Tokens

HERE = S3Bucket("lake", "http://127.0.0.1:9000", "us-east-1")
AWS = S3Bucket("lake", None, "eu-north-1")
FOLDER = "prod/warehouse/a/t-0123456789ab"
BASE = f"http://127.0.0.1:9000/lake/{FOLDER}"
KEYS = S3Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
NOW = datetime(2013, 5, 24, tzinfo=UTC)
Headers = dict[str, list[str]]


def asked(
    method: str, uri: str, headers: Headers | None = None, *, write: bool = True, bucket: S3Bucket = HERE
) -> SignableRequest | SigningRefusal:
    return decide(S3Request(method, uri, headers or {}), may_write=write, bucket=bucket, folders=[FOLDER])


def allowed(
    method: str, uri: str, headers: Headers | None = None, *, write: bool = True, bucket: S3Bucket = HERE
) -> bool:
    return isinstance(asked(method, uri, headers, write=write, bucket=bucket), SignableRequest)


def encoded(text: str, times: int) -> str:
    """Every character of `text` as %XX, and that encoded again."""
    text = "".join(f"%{byte:02X}" for byte in text.encode())
    for _ in range(times - 1):
        text = quote(text, safe="")
    return text


def cases(name: str) -> list[Any]:
    """A table of signing.toml: rows, or lines of two words, a method and a URL."""
    return [row.partition(" ")[::2] if isinstance(row, str) else row for row in map(_filled, CASES[name])]


def _filled(value: Any) -> Any:
    """A row of signing.toml with the table's places in its texts."""
    if isinstance(value, str):
        return value.replace("{table}", BASE).replace("{one}", ONE).replace("{folder}", FOLDER)
    return [*map(_filled, value)] if isinstance(value, list) else value


ONE = f"<Object><Key>{FOLDER}/data/x</Key></Object>"
CASES = tomllib.loads(Path(__file__).with_name("signing.toml").read_text(encoding="utf-8"))
READS = [*cases("read"), ("GET", f"{BASE}/{'x' * (8192 - len(BASE) - 1)}")]
WRITES = [*cases("write"), ("PUT", f"{BASE}/data/x.parquet?partNumber=99999&uploadId={'a' * 1024}")]
DENIED = [*cases("denied"), ("GET", f"{BASE}/{'x' * (8192 - len(BASE))}")]
SIBLING = f"{BASE}x/data/x.parquet"
FINE, REFUSED = cases("headers_fine"), cases("headers_denied")
HARMLESS = ("allowed_to_read", "allowed_to_write", "allowed_to_copy")
BODIES = [
    *map(_filled, CASES["bodies"]),
    *(f"<Delete>{ONE * 1001}</Delete>", f"<Delete>{ONE}{' ' * (2 * 1024 * 1024 - len(ONE) - 16)}</Delete>"),
]
TO_READ, TO_WRITE, TO_COPY = ({*CASES[name]} for name in HARMLESS)


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
    ("name", "value", "fine"), [*((*header, True) for header in FINE), *((*header, False) for header in REFUSED)]
)
def test_headers_that_decide_what_a_put_does_are_checked(name: str, value: str, fine: bool) -> None:
    assert allowed("PUT", f"{BASE}/data/x.parquet", {name: [value]}) is fine


def test_only_a_put_copies_and_a_read_has_no_headers_of_writes() -> None:
    for method, uri in (("GET", f"{BASE}/x"), ("DELETE", f"{BASE}/x"), ("POST", f"{BASE}/x?uploads")):
        assert not allowed(method, uri, {"x-amz-copy-source": [f"/lake/{FOLDER}/y"]})
    assert not allowed("GET", f"{BASE}/x", {"x-amz-meta-a": ["b"]})
    assert not allowed("GET", f"{BASE}/x", {"x-amz-date": ["a"], "X-Amz-Date": ["b"]})


def test_headers_have_limits() -> None:
    assert allowed("GET", f"{BASE}/x", {f"a{n}": ["b"] for n in range(64)})
    assert not allowed("GET", f"{BASE}/x", {f"a{n}": ["b"] for n in range(65)})
    assert allowed("PUT", f"{BASE}/x", {"x-amz-meta-a": ["b" * 4096]})
    assert not allowed("PUT", f"{BASE}/x", {"x-amz-meta-a": ["b" * 4097]})
    assert allowed("PUT", f"{BASE}/x", {"x-amz-meta-" + "a" * 89: ["b"]})
    assert not allowed("PUT", f"{BASE}/x", {"x-amz-meta-" + "a" * 90: ["b"]})
    assert allowed("GET", f"{BASE}/x", {"accept": ["a", "é" * 5000]}), "it is not signed, and the store may have it"
    for name in ("accept", "x-amz-date"):
        assert not allowed("GET", f"{BASE}/x", {name: []})
    for name in ("x-amz-date", "content-type", "content-md5"):
        assert allowed("GET", f"{BASE}/x", {name: ["a"]})
        assert not allowed("GET", f"{BASE}/x", {name: ["a", "a"]})
        assert not allowed("GET", f"{BASE}/x", {name: ["é"]})
        assert not allowed("GET", f"{BASE}/x", {name: ["a\nb"]})
    assert not allowed("GET", f"{BASE}/x", {"content-type": ["a"], "Content-Type": ["a"]})
    for name in ("", "a b", "a:b", "é", "a_b"):
        assert not allowed("GET", f"{BASE}/x", {name: ["a"]})


@pytest.mark.parametrize("name", sorted(TO_READ | TO_WRITE | TO_COPY | {*CASES["never_allowed"]}))
def test_each_header_is_allowed_where_it_is_harmless(name: str) -> None:
    copies, value = {"x-amz-copy-source": [f"/lake/{FOLDER}/y"]}, "x-amz-checksum-1"
    assert allowed("HEAD", f"{BASE}/x", {name: [value]}) is (name in TO_READ)
    for method, uri in (("PUT", f"{BASE}/x"), ("DELETE", f"{BASE}/x"), ("POST", f"{BASE}/x?uploads")):
        assert allowed(method, uri, {name: [value]}) is (name in TO_READ | TO_WRITE)
    for uri in (f"{BASE}/x", f"{BASE}/x?partNumber=1&uploadId=a"):
        assert allowed("PUT", uri, {name: [value], **copies}) is (name in TO_READ | TO_WRITE | TO_COPY)


@pytest.mark.parametrize(
    "parameter", ["delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "fetch-owner"]
)
def test_a_listing_has_no_other_parameters(parameter: str) -> None:
    uri = f"http://127.0.0.1:9000/lake?list-type=2&prefix={FOLDER}/"
    assert allowed("GET", f"{uri}&{parameter}={FOLDER}%2Fx")
    assert not allowed("GET", f"{uri}&{parameter}=1&{parameter}=1")
    assert not allowed("GET", f"{uri}&x{parameter}=1")
    more = "delimiter=/&max-keys=1&continuation-token=a&start-after=b&encoding-type=url&fetch-owner=true&x-id=L"
    assert allowed("GET", f"{uri}&{more}")


@pytest.mark.parametrize(
    ("upload", "fine"), [*cases("uploads"), ("a" * 1025, False), ("a/" * 512, True), ("a/" * 512 + "a", False)]
)
def test_an_upload_id_is_no_path_that_climbs(upload: str, fine: bool) -> None:
    for method, uri in (("DELETE", f"{BASE}/x?"), ("POST", f"{BASE}/x?"), ("PUT", f"{BASE}/x?partNumber=1&")):
        assert allowed(method, f"{uri}uploadId={quote(upload, safe='')}") is fine


def test_a_table_has_folders() -> None:
    request = S3Request("GET", f"{BASE}/x")
    for folders in ([], [""], [FOLDER, ""]):
        assert isinstance(decide(request, may_write=True, bucket=HERE, folders=folders), SigningRefusal)
    for folders in ([FOLDER], [FOLDER, "other"], ["other", FOLDER]):
        assert isinstance(decide(request, may_write=True, bucket=HERE, folders=folders), SignableRequest)
    assert isinstance(decide(request, may_write=True, bucket=HERE, folders=["other"]), SigningRefusal)


def test_what_is_signed_is_one_canonical_form() -> None:
    headers = {"X-Amz-Meta-A": [" b  c\t"], "Content-Type": ["a"], "Range": ["bytes=0-1"]}
    found = asked("PUT", f"{BASE}/%61%20b;%2Bé".replace("é", "%C3%A9") + "?x-id=P%75t", headers)
    assert found == SignableRequest(
        *("PUT", "http", "127.0.0.1:9000", f"/lake/{FOLDER}/a%20b%3B%2B%C3%A9", "x-id=Put"),
        {"x-amz-meta-a": "b c", "content-type": "a"},
        writes=True,
        pins_body=False,
    )
    assert found.uri == f"{BASE}/a%20b%3B%2B%C3%A9?x-id=Put"
    found = asked("GET", f"HTTP://127.0.0.1:9000/lake/?prefix={FOLDER}/&list-type=2")
    assert isinstance(found, SignableRequest)
    assert found.uri == f"http://127.0.0.1:9000/lake/?list-type=2&prefix={quote(FOLDER, safe='')}%2F"
    assert (found.writes, found.pins_body) == (False, False)
    found = asked("DELETE", f"{BASE}/x")
    assert isinstance(found, SignableRequest)
    assert (found.uri, found.writes, found.pins_body) == (f"{BASE}/x", True, False)


@pytest.mark.parametrize(("endpoint", "uri", "host"), cases("store_hosts"))
def test_the_host_is_that_of_the_store(endpoint: str, uri: str, host: str) -> None:
    found = asked("GET", f"{uri}/lake/{FOLDER}/x", bucket=S3Bucket("lake", endpoint))
    assert (found.host if isinstance(found, SignableRequest) else "") == host


@pytest.mark.parametrize(
    ("method", "uri", "headers", "reason"),
    [*cases("refusals"), ("GET", "x" * 8193, {}, "the URI is too long, or has characters that must be encoded")],
)
def test_a_refusal_says_why(method: str, uri: str, headers: Headers, reason: str) -> None:
    found = asked(method, uri, headers)
    assert isinstance(found, SigningRefusal)
    assert found.reason.startswith(reason)


def refusal(body: str | None, bucket: S3Bucket = AWS, folder: str = FOLDER) -> str:
    """Why a delete of several objects is refused; empty if it is signed with its body."""
    host = bucket.endpoint or "https://s3.eu-north-1.amazonaws.com"
    request = S3Request("POST", f"{host}/lake?delete", {"content-md5": ["x"]}, body)
    found = decide(request, may_write=True, bucket=bucket, folders=[folder])
    if isinstance(found, SigningRefusal):
        return found.reason
    assert found.pins_body
    assert found.writes
    return ""


def deleted(body: str | None, bucket: S3Bucket = AWS) -> bool:
    return not refusal(body, bucket)


def test_a_delete_of_several_objects_is_checked_by_its_body() -> None:
    assert deleted(f"<Delete>{ONE}</Delete>")
    assert deleted(
        '<?xml version="1.0" encoding="UTF-8"?>\n<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"{ONE}{ONE}\n<Quiet>true</Quiet></Delete>"
    )
    assert deleted(f"<?xml version='1.0'?><Delete>{ONE * 1000}</Delete>")
    assert deleted(f"<Delete>{ONE}{' ' * (2 * 1024 * 1024 - len(ONE) - 17)}</Delete>")
    assert deleted(f"<Delete><Quiet>\n</Quiet><Object>\n<Key>{FOLDER}/a b&amp;&#233;</Key> </Object> </Delete>\n")
    assert not deleted(f"<Delete>{ONE}</Delete>", HERE), "a server that may not compare the body"
    assert "only the catalog deletes" in refusal(
        f"<Delete><Object><Key>{FOLDER}/a.metadata%2Ejson</Key></Object></Delete>"
    )
    assert "is signed only with its body" in refusal(None)
    request = S3Request("POST", "https://lake.s3.amazonaws.com/?delete", {}, f"<Delete>{ONE}</Delete>")
    assert isinstance(decide(request, may_write=False, bucket=AWS, folders=[FOLDER]), SigningRefusal)


@pytest.mark.parametrize("query", ["delete=1", "delete&versionId=1", "delete&delete", "deletes", ""])
def test_a_delete_of_several_objects_has_one_parameter(query: str) -> None:
    request = S3Request("POST", f"https://lake.s3.amazonaws.com/?{query}", {}, f"<Delete>{ONE}</Delete>")
    assert isinstance(decide(request, may_write=True, bucket=AWS, folders=[FOLDER]), SigningRefusal)
    request = S3Request("PUT", "https://lake.s3.amazonaws.com/?delete", {}, f"<Delete>{ONE}</Delete>")
    assert isinstance(decide(request, may_write=True, bucket=AWS, folders=[FOLDER]), SigningRefusal)


@pytest.mark.parametrize("body", [None, "\ud800", *BODIES])
def test_a_body_that_may_be_read_in_another_way_is_denied(body: str | None) -> None:
    assert not deleted(body)


@pytest.mark.parametrize(("host", "fine"), cases("aws_hosts"))
def test_hosts_of_aws(host: str, fine: bool) -> None:
    request = S3Request("GET", f"{host}/{FOLDER}/x")
    assert isinstance(decide(request, may_write=True, bucket=AWS, folders=[FOLDER]), SignableRequest) is fine


def test_only_on_aws_may_the_host_name_the_bucket() -> None:
    """SeaweedFS ignores the host: there `http://lake.store/prod/x` is the object `x` of the bucket `prod`."""
    assert allowed("GET", f"https://lake.s3.amazonaws.com/{FOLDER}/x", bucket=AWS)
    assert not allowed("GET", f"http://lake.127.0.0.1:9000/{FOLDER}/x")


def test_the_bucket_itself_has_a_path_that_can_be_signed() -> None:
    query = f"list-type=2&prefix={quote(FOLDER, safe='')}%2F"
    found = asked("GET", f"https://lake.s3.amazonaws.com?{query}", bucket=AWS)
    assert isinstance(found, SignableRequest)
    assert found.uri == f"https://lake.s3.amazonaws.com/?{query}", "the signature is for what a client sends"


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
    base=st.sampled_from([f"{BASE}/", BASE, "http://127.0.0.1:9000/lake", "https://lake.s3.amazonaws.com/", ""]),
    write=st.booleans(),
)
@example(method="GET", pieces=["x/data"], base=BASE, write=False)
@example(
    method="GET", pieces=["?", "list-type=2", "&", "prefix=", FOLDER], base="http://127.0.0.1:9000/lake", write=True
)
def test_whatever_the_path_what_is_signed_is_in_the_table(
    method: str, pieces: list[str], base: str, write: bool
) -> None:
    found = asked(method, base + "".join(pieces), write=write, bucket=AWS if "amazonaws" in base else HERE)
    if isinstance(found, SigningRefusal):
        return
    assert write or (method in ("GET", "HEAD") and not found.writes)
    parts = urlsplit(found.uri)
    assert parts.netloc in ("127.0.0.1:9000", "lake.s3.amazonaws.com")
    target = parts.path.removeprefix("/lake" if parts.netloc == "127.0.0.1:9000" else "").removeprefix("/")
    if not target:
        target = dict(each.split("=") for each in parts.query.split("&"))["prefix"]
    segments = decoded(target).split("/")
    assert decoded(target).startswith(f"{FOLDER}/")
    assert ".." not in segments
    assert "." not in segments


# ---- policies of short-lived credentials ----

READER = """{"Version":"2012-10-17","Statement":[\
{"Effect":"Allow","Action":["s3:GetObject"],"Resource":["arn:aws:s3:::lake/w/a/t-1/*"]},\
{"Effect":"Allow","Action":["s3:ListBucket"],"Resource":["arn:aws:s3:::lake"],\
"Condition":{"StringLike":{"s3:prefix":["w/a/t-1/*"]}}}]}"""
WRITER = """{"Version":"2012-10-17","Statement":[\
{"Effect":"Allow","Action":["s3:GetObject","s3:PutObject","s3:DeleteObject","s3:AbortMultipartUpload",\
"s3:ListMultipartUploadParts"],"Resource":["arn:aws-cn:s3:::lake/w/a/t-1/*","arn:aws-cn:s3:::lake/w/b/*"]},\
{"Effect":"Allow","Action":["s3:ListBucket"],"Resource":["arn:aws-cn:s3:::lake"],\
"Condition":{"StringLike":{"s3:prefix":["w/a/t-1/*","w/b/*"]}}},\
{"Effect":"Deny","Action":["s3:PutObject","s3:DeleteObject"],\
"Resource":["arn:aws-cn:s3:::lake/w/a/t-1/*.metadata.json","arn:aws-cn:s3:::lake/w/b/*.metadata.json"]}]}"""


def test_a_policy_allows_the_folders_of_the_table_and_no_more() -> None:
    assert session_policy("lake", ["w/a/t-1"], may_write=False) == READER
    assert session_policy("lake", ["w/a/t-1", "w/b"], may_write=True, partition="aws-cn") == WRITER


def test_the_policy_of_a_table_does_not_match_its_sibling() -> None:
    for may_write in (False, True):
        policy = json.loads(str(session_policy("lake", ["w/a/t-1"], may_write=may_write)))
        patterns = [arn for each in policy["Statement"] for arn in each["Resource"]]
        patterns += policy["Statement"][1]["Condition"]["StringLike"]["s3:prefix"]
        assert any(fnmatchcase("arn:aws:s3:::lake/w/a/t-1/data/x", each) for each in patterns)
        for other in ("w/a/t-12/data/x", "w/a/t-1", "w/a/t-1x", "w/a/", "w/b/t-1/x"):
            assert not any(fnmatchcase(f"arn:aws:s3:::lake/{other}", each) for each in patterns), other
            assert not any(fnmatchcase(other, each) for each in patterns), other


@pytest.mark.parametrize(
    ("bucket", "folders", "reason"),
    [
        ("lake", [], "the table has no folder"),
        ("lake", ["w/t", ""], "the table has no folder"),
        *[("lake", [f"w/{text}"], "a name that a policy cannot express") for text in "*?${}\n\x00\x7f\x85\ud800"],
        *[("lake", ["w/t", name], "a name that a policy cannot express") for name in ("w/../t", "w/.", "w//t", "w/t/")],
        ("lake", ["w/${aws:username}"], "a name that a policy cannot express"),
        ("l*ke", ["w/t"], "a name that a policy cannot express"),
        ("lake", ["w" * 900, "v" * 900], "more than 2048 characters"),
    ],
)
def test_a_folder_that_a_policy_cannot_name_has_no_credential(bucket: str, folders: list[str], reason: str) -> None:
    for may_write in (False, True):
        found = session_policy(bucket, folders, may_write=may_write)
        assert isinstance(found, SigningRefusal)
        assert reason in found.reason


def test_a_policy_has_at_most_2048_characters() -> None:
    room = 2048 - len(str(session_policy("lake", ["w"], may_write=False)))
    longest = session_policy("lake", ["w" * (1 + room // 2)], may_write=False)
    assert isinstance(longest, str)
    assert 2046 < len(longest) <= 2048
    assert isinstance(session_policy("lake", ["w" * (2 + room // 2)], may_write=False), SigningRefusal)


def test_a_policy_is_plain_ascii_and_keeps_other_characters() -> None:
    policy = session_policy("lake", ["w/æ b\"+'"], may_write=False)
    assert isinstance(policy, str)
    assert policy.isascii()
    assert json.loads(policy)["Statement"][0]["Resource"] == ["arn:aws:s3:::lake/w/æ b\"+'/*"]


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
    assert delegations("vended-credentials, Remote-Signing") == {"vended-credentials", "remote-signing"}
    assert delegations(None) == {""}
    path = table_path(["a", "b/c"], "t +")
    config = signer_config(path, "sign", "etl")
    assert config["s3.signer.endpoint"] == config["signer.endpoint"] == "v1/namespaces/a%1Fb%2Fc/tables/t%20%2B/sign"
    assert config != signer_config(path, "sign", "other"), "s3fs would share a file system"
    assert KEYS.secret_access_key not in str(config)


def test_a_directory_has_nothing_to_sign(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="needs a fleet in an S3 bucket"):
        signer_of(str(tmp_path), f"file://{tmp_path}/warehouse", system())


class Sessions(StsClient):
    """An STS in memory that counts. The exchange itself is tested with SeaweedFS, in test_clients_signing.py."""

    def __init__(self, runtime: Any, life_s: int = 3600) -> None:
        super().__init__("arn:aws:iam::123456789012:role/tables", "http://sts", "r", lambda: KEYS, life_s, runtime)
        self.clock, self.lasts_s, self.is_down = runtime, life_s, False
        self.policies: list[str] = []

    def assume(self, policy: str, keys: S3Keys | None = None) -> ShortLivedKeys:
        self.policies.append(policy)
        if self.is_down:
            raise Unavailable("the STS is down")
        number = str(len(self.policies))
        return ShortLivedKeys(S3Keys(number, "b", "c"), self.clock.wall() + timedelta(seconds=self.lasts_s))


class Ahead:
    """The runtime of this machine, with clocks that a test sets ahead."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(system(), name)

    def elapsed_s(self) -> float:
        return system().elapsed_s() + self.by_s

    def wall(self) -> datetime:
        return system().wall() + timedelta(seconds=self.by_s)


def vending(life_s: int = 3600) -> tuple[CredentialSource, Sessions, Any]:
    clock: Any = Ahead()
    sts = Sessions(clock, life_s)
    return CredentialSource(HERE, "w", sts, clock), sts, clock


def number(issuer: CredentialSource, *folders: str, may_write: bool = True) -> str:
    return issuer.issue(folders, may_write=may_write).keys.access_key_id


def test_a_credential_is_issued_again_until_half_of_its_life_has_passed() -> None:
    issuer, sts, clock = vending()
    assert [number(issuer, "t"), number(issuer, "t"), number(issuer, "u"), number(issuer, "t", "u")] == [*"1123"]
    clock.by_s = 1790
    assert number(issuer, "t") == "1"
    clock.by_s = 1801
    assert number(issuer, "t") == "4"
    assert number(issuer, "t") == "4"
    assert len(sts.policies) == 4
    sts.lasts_s = 1000  # less than was asked for
    assert number(issuer, "v") == "5"
    clock.by_s += 490
    assert number(issuer, "v") == "5"
    clock.by_s += 20
    assert number(issuer, "v") == "6"
    sts.lasts_s = -100  # its clock is behind
    assert [number(issuer, "x"), number(issuer, "x")] == [*"78"]


def test_a_credential_for_a_token_that_may_only_read_is_another_one() -> None:
    issuer, sts, _ = vending()
    assert number(issuer, "t") == "1"
    assert number(issuer, "t", may_write=False) == "2"
    assert ["s3:PutObject" in policy for policy in sts.policies] == [True, False]
    assert all("arn:aws:s3:::lake/w/t/*" in policy for policy in sts.policies)


def test_clients_that_come_at_once_share_one_request_to_the_sts() -> None:
    issuer, sts, _ = vending()
    with ThreadPoolExecutor(16) as threads:
        assert {*threads.map(lambda _: number(issuer, "t"), range(200))} == {"1"}
    assert len(sts.policies) == 1


def test_an_sts_that_fails_is_left_alone_for_a_second() -> None:
    issuer, sts, clock = vending()
    sts.is_down = True
    for folder in "abc":
        with pytest.raises(Unavailable, match="the STS is down"):
            number(issuer, folder)
    assert len(sts.policies) == 1
    sts.is_down = False
    clock.by_s = 1.5
    assert number(issuer, "a") == "2"


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """The URL of a server that answers every request in that way."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("code", "status", "kind", "pauses"),
    [
        ("PackedPolicyTooLarge", 400, Unsupported, False),
        ("MalformedPolicyDocument", 400, Unsupported, False),
        ("AccessDenied", 403, Unavailable, True),
        ("Throttling", 400, Unavailable, True),
        ("", 500, Unavailable, True),
    ],
)
def test_a_policy_that_an_sts_refuses_is_that_of_one_table(
    code: str, status: int, kind: type[Exception], pauses: bool
) -> None:
    """Others get their credentials meanwhile: only an STS that fails is left alone for a second."""
    body = f"<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>".encode()
    clock: Any = Ahead()
    role = "arn:aws:iam::123456789012:role/tables"
    with answering(status, body) as url:
        sts = StsClient(role, url, "r", lambda: KEYS, 900, clock)
        issuer = CredentialSource(HERE, "w", sts, clock)
        with pytest.raises(kind, match=code or "500"):
            number(issuer, "t")
        sts.endpoint = "http://127.0.0.1:1"
        with pytest.raises(Unavailable, match=(code or "500") if pauses else "gave no valid answer"):
            number(issuer, "u")


def test_so_many_credentials_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.service.sign.CREDENTIALS_MAX", 2)
    issuer, _, _ = vending()
    assert [number(issuer, folder) for folder in "ababcab"] == [*"1212345"]


def test_one_storage_credential_covers_all_folders_of_a_table() -> None:
    issuer, _, _ = vending()

    def prefix(*folders: str) -> str:
        [found] = issuer.storage_credentials(folders, may_write=False)
        assert found["config"].keys() == {
            "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.session-token-expires-at-ms"
        }  # fmt: skip
        return str(found["prefix"])

    assert prefix("a/t") == "s3://lake/w/a/t"
    assert prefix("a/t", "a/t2/x") == "s3://lake/w/a"
    assert prefix("a/t", "b/t") == "s3://lake/w"


@pytest.mark.parametrize(
    "arn", ["", "role/x", "arn:aws:iam::1:user/x", "arn:aws:iam::1:role/", "arn:aws:iam::1:role/x y"]
)
def test_a_role_is_named_by_its_arn(arn: str) -> None:
    with pytest.raises(Invalid, match="is not the ARN of a role"):
        StsClient(arn, "http://sts", "r", lambda: KEYS, 900, system())
    for fine in ("arn:aws-cn:iam::1:role/a/b", "arn:aws:iam::role/x", "arn:aws:iam:::role/x"):
        assert StsClient(fine, "http://sts", "r", lambda: KEYS, 900, system()).partition in ("aws", "aws-cn")
    with pytest.raises(Invalid, match="is not a URL"):
        StsClient("arn:aws:iam::1:role/x", "sts.local", "r", lambda: KEYS, 900, system())


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


def test_what_is_signed_and_issued_follows_the_catalog() -> None:
    """No right is cached: each request reads the state, in which a table has its name and its folders at once."""
    with lead(storage_of(MemoryStore(), system()), "s3://lake/prod") as catalog:
        issuer, sts, _ = vending()
        rest = Rest(catalog, Tokens(), {}, signer(), issuer)
        etl = Caller("etl", frozenset(("read", "write")), (("a",), ("b",)))
        for namespace in "ab":
            catalog.create_namespace([namespace])
        rest.create_table(_asked(("a",), {"name": "t", "schema": SCHEMA}, etl))
        [root] = catalog.table_folders(["a"], "t")
        body = {"method": "GET", "uri": f"http://127.0.0.1:9000/lake/prod/warehouse/{root}/data/x", "headers": {}}

        def has_access(namespace: str, name: str) -> bool:
            asked = _asked((namespace, name), body, etl)
            try:
                [found] = json.loads(rest.credentials(asked).body)["storage-credentials"]
            except NoSuchTable:
                with pytest.raises(NoSuchTable):
                    rest.sign(asked)
                return False
            issued = f"arn:aws:s3:::lake/w/{root}/*" in sts.policies[int(found["config"]["s3.access-key-id"]) - 1]
            try:
                rest.sign(asked)
            except Denied:
                assert not issued
                return False
            assert issued
            return True

        assert has_access("a", "t")
        catalog.rename_table((["a"], "t"), (["b"], "u"))
        assert not has_access("a", "t")
        assert has_access("b", "u")
        catalog.drop_table(["b"], "u")
        assert not has_access("b", "u")
        rest.undrop(_asked((), {"namespace": ["b"], "name": "u"}, etl))
        assert has_access("b", "u")
        catalog.drop_table(["b"], "u")
        rest.create_table(_asked(("b",), {"name": "u", "schema": SCHEMA}, etl))
        assert not has_access("b", "u"), "a new table of that name, in another folder"


def test_without_an_sts_a_client_gets_what_else_it_accepts() -> None:
    with lead(storage_of(MemoryStore(), system()), "s3://lake/prod") as catalog:
        catalog.create_namespace(["a"])
        etl = Caller("etl", frozenset(("read", "write")))
        issuer, _, _ = vending()
        for n, (signs, vends, accepted, wanted) in enumerate(
            [
                (True, False, "vended-credentials,remote-signing", "s3.signer"),
                (True, False, "vended-credentials", None),
                (False, False, "vended-credentials,remote-signing", None),
                (False, True, "remote-signing", None),
                (True, True, "remote-signing", "s3.signer"),
                (True, True, "vended-credentials,remote-signing", "s3.session-token"),
                (True, True, "", None),
            ]
        ):
            rest = Rest(catalog, Tokens(), {}, signer() if signs else None, issuer if vends else None)
            body = json.dumps({"name": f"t{n}", "schema": SCHEMA}).encode()
            headers = (b"content-type", b"application/json"), (b"x-iceberg-access-delegation", accepted.encode())
            made = rest.create_table(Request("POST", ("a",), b"", headers, body, etl))
            config = json.loads(made.body)["config"]
            assert {"s3.signer", "s3.session-token"} & config.keys() == ({wanted} if wanted else set()), n
            if not vends:
                with pytest.raises(Unsupported, match="does not issue credentials"):
                    rest.credentials(_asked(("a", f"t{n}"), {}, etl))

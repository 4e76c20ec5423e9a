"""PyIceberg and hostile clients without a key of the bucket, on SeaweedFS: the service signs what a token allows, or
issues a credential that allows it.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import subprocess
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

import boto3  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError, ForbiddenError, SignError, UnauthorizedError
from pyiceberg.table import Table
from pyiceberg.utils.concurrent import ExecutorFactory

from limpet.kernel.errors import Unsupported
from limpet.kernel.runtime import system
from limpet.service.decide import S3Bucket, S3Request, SignableRequest, decide
from limpet.service.sign import CredentialSource, RequestSigner, S3Keys, StsClient, signed_headers
from service.operations import OPERATIONS
from support.servers.catalog import Answer, CatalogServer, catalog_server, until
from support.servers.process import Bucket
from support.servers.seaweedfs import OPEN_ROLE, STS_KEY, TABLES_ROLE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """PyIceberg 0.12 takes its signer off the file system of s3fs and puts it on again whenever a thread first uses it.

    All threads share that file system, so a request of another one may go out unsigned meanwhile, and is refused.
    """
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as threads:
        patch.setattr(ExecutorFactory, "_instance", threads)
        patch.setattr(ExecutorFactory, "_instance_pid", os.getpid())
        yield


TOKENS = {"etl": ("write", ["a"]), "dashboard": ("read", ["a"]), "other": ("write", ["b"]), "boss": ("admin", None)}
ROWS = pa.table({"id": [1, 2, 3]})


def secret(name: str) -> str:
    return f"the-secret-of-{name}-here"


def tokens_file(folder: Path, *names: str) -> Path:
    """A file with these tokens, written as an editor does."""
    text = ""
    for name in names:
        right, namespaces = TOKENS[name]
        text += f'[[token]]\nname = "{name}"\nsecret = "{secret(name)}"\nrights = ["{right}"]\n'
        text += f"namespaces = {json.dumps(namespaces)}\n" if namespaces else ""
    new = folder / "new"
    new.write_text(text)
    new.chmod(0o600)
    return new.rename(folder / "tokens.toml")


@pytest.fixture(scope="module")
def service(seaweedfs: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogServer]:
    """A service that signs and issues, with a token for each kind of client, and two namespaces."""
    file = tokens_file(tmp_path_factory.mktemp("tokens"), *TOKENS)
    arguments = ("--remote-signing", "--sts-role-arn", TABLES_ROLE, "--tokens-file", str(file))
    with catalog_server(seaweedfs.at(f"sign-{uuid4().hex}"), *arguments, env=seaweedfs.env) as server:
        boss = client(server, "boss")
        boss.create_namespace("a")
        boss.create_namespace("b")
        yield server


def client(service: CatalogServer, token: str, by: str = "remote-signing") -> RestCatalog:
    """PyIceberg with a token and without a key."""
    asked = {"header.X-Iceberg-Access-Delegation": by}
    return RestCatalog("limpet", uri=service.url, token=secret(token), **asked)


@pytest.fixture
def table(service: CatalogServer) -> Table:
    """A table in the namespace `a` with three rows, written through signed requests."""
    made: Table = client(service, "etl").create_table(("a", f"t{uuid4().hex[:8]}"), ROWS.schema)
    made.append(ROWS)
    return made


def signed(service: CatalogServer, token: str, table: tuple[str, ...], asked: Mapping[str, Any]) -> Any:
    """The answer of the sign endpoint."""
    path = f"/v1/namespaces/{table[0]}/tables/{table[1]}/sign"
    body = {"region": "us-east-1", "method": "GET", "headers": {}, **asked}
    return service.ask("POST", path, body, {"authorization": f"Bearer {secret(token)}"})


def send(answer: Any, method: str = "GET", body: Any = None, **more: str) -> tuple[int, bytes]:
    """Send what was signed to the store; its status and body."""
    parts = urlsplit(answer.json["uri"])
    headers = {name: values[0] for name, values in answer.json["headers"].items()}
    connection = HTTPConnection(parts.netloc, timeout=30)
    try:
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, body, {**headers, **more})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def url_of(bucket: Bucket, location: str) -> str:
    """The http URL of an s3:// URL."""
    endpoint = urlsplit(bucket.url).query.partition("endpoint=")[2].partition("&")[0]
    return f"{endpoint}/{location.removeprefix('s3://')}"


def data_file(table: Table) -> str:
    [task] = table.refresh().scan().plan_files()
    return task.file.file_path


def forge(table: Table, other: Table) -> None:
    """Commit a snapshot to `table` whose manifest names the data files of `other`."""
    with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        for task in other.scan().plan_files():
            snapshot.append_data_file(task.file)


@pytest.mark.parametrize("by", ["remote-signing", "vended-credentials"])
def test_a_table_that_names_files_of_another_does_not_open_them(service: CatalogServer, table: Table, by: str) -> None:
    own = client(service, "other", by).create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema)
    forge(own, table)
    with pytest.raises((SignError, OSError), match=r"403|ACCESS_DENIED"):
        client(service, "other", by).load_table(own.name()).scan().to_arrow()
    assert table.scan().count() == 3


def test_pyiceberg_writes_and_reads_without_a_key(service: CatalogServer, seaweedfs: Bucket, table: Table) -> None:
    table.append(ROWS)
    table.delete("id == 1")
    assert sorted(client(service, "dashboard").load_table(table.name()).scan().to_arrow()["id"].to_pylist()) == [
        *[2, 2, 3, 3]
    ]
    assert not {*table.io.properties.values()} & {*seaweedfs.options.values()}


def test_a_token_that_may_only_read_writes_no_data_file(service: CatalogServer, table: Table) -> None:
    reading = client(service, "dashboard").load_table(table.name())
    assert reading.scan().count() == 3
    with pytest.raises(SignError, match="403"):
        reading.append(ROWS)
    with pytest.raises((SignError, PermissionError, OSError)):
        reading.io.delete(data_file(table))
    assert reading.refresh().scan().count() == 3


def test_a_token_for_one_namespace_reads_no_other_s_files(
    service: CatalogServer, seaweedfs: Bucket, table: Table
) -> None:
    other = client(service, "other")
    with pytest.raises(ForbiddenError):
        other.load_table(table.name())
    own = other.create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema)
    own.append(ROWS)
    with pytest.raises(SignError, match="403"):
        own.io.new_input(data_file(table)).open().read()
    stolen = url_of(seaweedfs, data_file(table))
    assert signed(service, "other", table.name(), {"uri": stolen}).status == 403
    assert signed(service, "other", own.name(), {"uri": stolen}).status == 403
    assert send(signed(service, "etl", table.name(), {"uri": stolen}))[0] == 200


def test_a_signature_is_for_one_method_and_one_path_and_none_is_for_a_body_that_nobody_compares(
    service: CatalogServer, seaweedfs: Bucket, table: Table
) -> None:
    mine, base = data_file(table), url_of(seaweedfs, data_file(table))
    answer = signed(service, "etl", table.name(), {"uri": base})
    assert send(answer, "DELETE")[0] == 403
    assert send(answer, "PUT", b"x")[0] == 403
    bucket = base[: -len(mine.removeprefix("s3://").partition("/")[2]) - 1]
    key = mine.removeprefix("s3://").partition("/")[2]
    body = f"<Delete><Object><Key>{key}-none</Key></Object></Delete>"
    asked = {"uri": f"{bucket}?delete", "method": "POST", "body": body}
    assert signed(service, "etl", table.name(), asked).status == 403  # SeaweedFS would take another body with it
    assert signed(service, "etl", table.name(), {**asked, "body": None}).status == 403
    assert table.refresh().scan().count() == 3


def test_a_copy_source_that_is_added_to_a_signed_request_copies_nothing(
    service: CatalogServer, seaweedfs: Bucket, table: Table
) -> None:
    own = client(service, "other").create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema)
    target = url_of(seaweedfs, f"{own.location()}/data/stolen.parquet")
    answer = signed(service, "other", own.name(), {"uri": target, "method": "PUT"})
    assert answer.status == 200
    copied = send(answer, "PUT", b"", **{"x-amz-copy-source": data_file(table).removeprefix("s3:/")})
    status, data = send(signed(service, "other", own.name(), {"uri": target}))
    assert (copied[0], status) == (403, 404), (copied, data)
    assert send(answer, "PUT", b"mine")[0] == 200


def test_a_token_for_one_namespace_cannot_choose_a_folder(service: CatalogServer, table: Table) -> None:
    warehouse = table.location().rpartition("/a/")[0]
    other = client(service, "other")
    with pytest.raises(ForbiddenError, match="cannot choose a folder"):
        other.create_table(("b", "t"), ROWS.schema, location=f"{warehouse}/gone")
    own = other.create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema)
    with pytest.raises(ForbiddenError, match="cannot choose a folder"), own.transaction() as change:
        change.set_properties({"write.data.path": f"{warehouse}/gone"})
    assert client(service, "boss").create_table(("b", "free"), ROWS.schema, location=f"{warehouse}/gone")


def test_no_disguise_lets_a_token_for_one_namespace_choose_a_folder(
    service: CatalogServer, seaweedfs: Bucket, table: Table
) -> None:
    """The files of a dropped table of `a`, for a token of `b`. A property called `action` once hid the others."""
    boss, space = client(service, "boss"), table.location().rpartition("/a/")[0]
    place = f"{space}/chosen-{uuid4().hex[:6]}"
    dropped = boss.create_table(("a", f"t{uuid4().hex[:8]}"), ROWS.schema, location=place)
    dropped.append(ROWS)
    stolen = url_of(seaweedfs, data_file(dropped))
    boss.drop_table(dropped.name())
    name = f"t{uuid4().hex[:8]}"
    own = client(service, "other").create_table(("b", name), ROWS.schema)
    fields = {"schema": json.loads(own.schema().model_dump_json())}
    hidden = {"action": "x", "write.data.path": place}
    moves = [{"action": "set-location", "location": place}]
    sets = [{"action": "set-properties", "updates": hidden}]
    at = "/v1/namespaces/b"
    version = {"version-id": 1, "schema-id": 0, "timestamp-ms": 1, "summary": {}, "default-namespace": ["b"]}
    view = {"view-version": {**version, "representations": [{"type": "sql", "sql": "select 1", "dialect": "x"}]}}
    identifier = {"namespace": ["b"], "name": name}
    tries: list[tuple[str, Any]] = [
        (f"{at}/tables", {"name": "x", **fields, "properties": hidden}),
        (f"{at}/tables", {"name": "x", **fields, "properties": hidden, "stage-create": True}),
        (f"{at}/tables", {"name": "x", **fields, "location": place, "action": "x"}),
        (f"{at}/tables", {"name": "x", **fields, "location": f"{place}/"}),
        (f"{at}/tables/{name}", {"requirements": [], "updates": moves}),
        (f"{at}/tables/{name}", {"requirements": [], "updates": sets}),
        (f"{at}/tables/x", {"requirements": [{"type": "assert-create"}], "updates": moves}),
        *[
            ("/v1/transactions/commit", {"table-changes": [{"identifier": identifier, "updates": updates, **more}]})
            for updates in (moves, sets)
            for more in ({}, {"action": "x"}, {"action": "set-location", "location": 1})
        ],
        (f"{at}/views", {"name": "w", **fields, **view, "properties": {}, "location": place}),
        (f"{at}/views", {"name": "w", **fields, **view, "properties": hidden}),
        (f"{at}/register", {"name": "x", "metadata-location": dropped.metadata_location}),
        (f"{at}/register-view", {"name": "x", "metadata-location": dropped.metadata_location}),
        (f"{at}/tables/x/sign?staged={quote(place, safe='')}", {"uri": stolen, "method": "GET", "headers": {}}),
    ]
    bearer = {"authorization": f"Bearer {secret('other')}"}
    for path, body in tries:
        answer = service.ask("POST", path, body, bearer)
        assert answer.status == 403, (path, body, answer.body)
    assert signed(service, "other", ("b", name), {"uri": stolen}).status == 403


def test_a_listing_stays_in_the_table_wherever_it_is_told_to_begin(
    service: CatalogServer, seaweedfs: Bucket, table: Table
) -> None:
    """SeaweedFS takes the slash off the end of a prefix, and looks elsewhere for a mark that is not below it."""
    boss, space = client(service, "boss"), table.location().rpartition("/a/")[0]
    place = f"{space}/b/list-{uuid4().hex[:6]}"
    own, sibling = (boss.create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema, location=each)
                    for each in (place, f"{place}2"))  # fmt: skip
    for each in (own, sibling):
        each.append(ROWS)
    [host, _, folder] = url_of(seaweedfs, place).removeprefix("http://").split("/", 2)
    top = folder.partition("/")[0]
    marks = ["", *(f"&start-after={mark}" for mark in (quote(f"{folder}/", safe=""), top, "0", f"{folder}2", "%2F"))]
    marks += [f"&continuation-token={mark}" for mark in (quote(f"{folder}2/data", safe=""), "0", top, f"{folder}/")]
    listed = 0
    for mark in marks:
        for more in ("", "&delimiter=%2F", "&max-keys=1", "&delimiter=a&fetch-owner=true&encoding-type=url"):
            query = f"list-type=2&prefix={quote(folder, safe='')}%2F{mark}{more}"
            answer = signed(service, "other", own.name(), {"uri": f"http://{host}/limpet?{query}"})
            assert answer.status == 200, (query, answer.body)
            status, data = send(answer)
            keys = (
                [unquote(key) for key in re.findall(r"<(?:Key|Prefix)>([^<]*)<", data.decode())]
                if status == 200
                else []
            )
            assert all(key.startswith(f"{folder}/") for key in keys), (query, data)
            listed += len(keys)
    assert listed > 20


def test_an_upload_of_another_table_is_neither_completed_nor_ended(
    service: CatalogServer, seaweedfs: Bucket, table: Table
) -> None:
    target = url_of(seaweedfs, f"{table.location()}/data/large.parquet")
    started = signed(service, "etl", table.name(), {"uri": f"{target}?uploads", "method": "POST"})
    status, data = send(started, "POST")
    assert status == 200
    [upload] = re.findall("<UploadId>([^<]*)</UploadId>", data.decode())
    part = {"uri": f"{target}?partNumber=1&uploadId={upload}", "method": "PUT"}
    assert send(signed(service, "etl", table.name(), part), "PUT", b"theirs")[0] == 200
    own = client(service, "other").create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema)
    mine = url_of(seaweedfs, f"{own.location()}/data/x.parquet")
    assert signed(service, "other", own.name(), part).status == 403
    for method, query in (("PUT", f"partNumber=1&uploadId={upload}"), ("POST", f"uploadId={upload}"),
                          ("DELETE", f"uploadId={upload}")):  # fmt: skip
        answer = signed(service, "other", own.name(), {"uri": f"{mine}?{query}", "method": method})
        body = (
            b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>"
        )
        assert answer.status == 200, "it is about a file of its own table"
        assert send(answer, method, body if method == "POST" else b"mine")[0] in (400, 404), method
    assert send(signed(service, "other", own.name(), {"uri": mine}))[0] == 404
    ended = {"uri": f"{target}?uploadId={upload}", "method": "DELETE"}
    assert send(signed(service, "etl", table.name(), ended), "DELETE")[0] == 204, "it was still there"


@pytest.mark.parametrize("by", ["remote-signing", "vended-credentials"])
def test_a_registered_table_can_be_read_at_once(service: CatalogServer, table: Table, by: str) -> None:
    """With what the answer has; and the catalog that it was unregistered from signs no more for it."""
    etl = {"authorization": f"Bearer {secret('etl')}"}
    path = f"/v1/namespaces/a/tables/{table.name()[1]}"
    last = service.ask("POST", f"{path}/unregister", None, etl).json
    assert issued(service, "etl", table.name()).error == (404, "NoSuchTableException")
    found = client(service, "boss", by).register_table(("a", f"t{uuid4().hex[:8]}"), last["metadata-location"])
    assert found.scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("by", ["remote-signing", "vended-credentials"])
def test_a_table_is_written_before_it_is_in_the_catalog(service: CatalogServer, by: str) -> None:
    name = ("a", f"t{uuid4().hex[:8]}")
    with client(service, "etl", by).create_table_transaction(name, ROWS.schema) as staged:
        staged.append(ROWS)
    assert client(service, "dashboard", by).load_table(name).scan().count() == 3


def test_a_staged_table_takes_no_folder_of_another(service: CatalogServer, seaweedfs: Bucket, table: Table) -> None:
    stolen = url_of(seaweedfs, data_file(table))
    fresh = f"{table.location().rpartition('/')[0]}/t-{uuid4().hex[:12]}"
    for token, location, status in (
        ("etl", fresh, 200),
        ("dashboard", fresh, 403),
        ("other", fresh, 403),
        ("etl", table.location(), 400),
        ("etl", f"{table.location()}/data", 400),
        ("etl", table.location().rpartition("/")[0], 403),
        ("etl", f"{table.location().rpartition('/')[0]}/other", 403),
        ("boss", f"{table.location().rpartition('/')[0]}/other", 200),
        ("etl", "s3://elsewhere/t-0123456789ab", 400),
        ("etl", f"{table.location()}/../t-0123456789ab", 400),
    ):
        staged = quote(location, safe="")
        authorization = {"authorization": f"Bearer {secret(token)}"}
        path = "/v1/namespaces/a/tables/none"
        found = service.ask("GET", f"{path}/credentials?staged={staged}", None, authorization)
        assert found.status == status, (token, location, found.body)
        body = {"region": "us-east-1", "method": "PUT", "headers": {}, "uri": f"{url_of(seaweedfs, location)}/data/x"}
        found = service.ask("POST", f"{path}/sign?staged={staged}", body, authorization)
        assert found.status == status, (token, location, found.body)
        if status == 200:
            found = service.ask("POST", f"{path}/sign?staged={staged}", {**body, "uri": stolen}, authorization)
            assert found.status == 403


@pytest.mark.parametrize(
    "header",
    [
        "x-amz-copy-source", "X-Amz-Acl", "x-amz-tagging", "x-amz-meta-a", "x-amz-storage-class",
        "x-amz-website-redirect-location", "x-amz-object-lock-mode", "x-amz-server-side-encryption", "host",
        "x-forwarded-host",
    ],
)  # fmt: skip
def test_the_store_refuses_a_header_that_was_not_signed(
    service: CatalogServer, seaweedfs: Bucket, table: Table, header: str
) -> None:
    target = url_of(seaweedfs, f"{table.location()}/data/x")
    answer = signed(service, "etl", table.name(), {"uri": target, "method": "PUT"})
    assert send(answer, "PUT", b"x", **{header: "elsewhere"})[0] == 403


def test_headers_that_are_not_signed_change_nothing_of_what_a_request_does(
    service: CatalogServer, seaweedfs: Bucket, table: Table
) -> None:
    target = url_of(seaweedfs, f"{table.location()}/data/x")
    put = signed(service, "etl", table.name(), {"uri": target, "method": "PUT"})
    foreign = data_file(client(service, "boss").load_table(table.name())).removeprefix("s3:/")
    more = {f"x-{dialect}-copy-source": foreign for dialect in ("goog", "oss", "cos", "obs", "minio", "rgw")}
    more |= {"x-http-method-override": "DELETE", "content-range": "bytes 0-0/9", "cache-control": "a"}
    assert send(put, "PUT", b"mine", **more)[0] == 200
    get = signed(service, "dashboard", table.name(), {"uri": target})
    assert send(get, **{"x-http-method-override": "DELETE", "x-method-override": "DELETE"}) == (200, b"mine")
    assert send(get, **{"range": "bytes=1-2"}) == (206, b"in")
    assert send(get)[1] == b"mine"


def test_a_signature_ends_after_a_quarter_of_an_hour(seaweedfs: Bucket, table: Table) -> None:
    endpoint = url_of(seaweedfs, "s3://").rstrip("/")
    bucket, keys = S3Bucket("limpet", endpoint, "us-east-1"), S3Keys(*seaweedfs.options.values())
    uri = url_of(seaweedfs, data_file(table))
    wanted = decide(S3Request("GET", uri), may_write=False, bucket=bucket, folders=[table.location()[12:]])
    assert isinstance(wanted, SignableRequest)
    for minutes, status in ((0, 200), (14, 200), (16, 403), (-16, 403)):
        headers = signed_headers(wanted, keys, "us-east-1", datetime.now(UTC) - timedelta(minutes=minutes))
        answer = Answer(200, {}, json.dumps({"uri": uri, "headers": {k: [v] for k, v in headers.items()}}).encode())
        assert send(answer)[0] == status, minutes


# ---- a token that is revoked ----


def test_after_a_token_is_removed_nothing_is_signed_and_what_was_issued_ends_as_stated(
    seaweedfs: Bucket, tmp_path: Path
) -> None:
    """Signing ends with the file. A credential that a client has lives on until it expires, and is not renewed."""
    fleet, file = seaweedfs.at(f"revoke-{uuid4().hex}"), tokens_file(tmp_path, *TOKENS)
    arguments = ["--remote-signing", "--sts-role-arn", TABLES_ROLE, "--tokens-file", str(file)]
    arguments += ["--sts-duration-s", "900"]
    name = ("a", "t")
    with catalog_server(fleet, *arguments, env=seaweedfs.env) as server:
        client(server, "boss").create_namespace("a")
        client(server, "etl").create_table(name, ROWS.schema).append(ROWS)
        by_signature = client(server, "etl").load_table(name)
        by_credential = client(server, "etl", "vended-credentials").load_table(name)
        assert by_signature.scan().count() == by_credential.scan().count() == 3
        uri = url_of(seaweedfs, data_file(by_signature))
        held = signed(server, "etl", name, {"uri": uri})
        tokens_file(tmp_path, *(each for each in TOKENS if each != "etl"))
        until("the token is unknown", lambda: signed(server, "etl", name, {"uri": uri}).status == 401)
        with pytest.raises(SignError, match="401"):
            by_signature.scan().to_arrow()
        with pytest.raises(SignError, match="401"):
            by_signature.append(ROWS)
        with pytest.raises(UnauthorizedError):
            by_signature.refresh()
        assert send(held)[0] == 200, "one request that was signed before, for a quarter of an hour"
        assert by_credential.scan().to_arrow().num_rows == 3, "the store knows no tokens"
        assert issued(server, "etl", name).error == (401, "NotAuthorizedException")
        with pytest.raises(UnauthorizedError):
            client(server, "etl", "vended-credentials")
        ends_s = int(by_credential.io.properties["s3.session-token-expires-at-ms"]) / 1000
        assert 0 < ends_s - datetime.now(UTC).timestamp() <= 900
        assert client(server, "boss").load_table(name).scan().count() == 3
    with catalog_server(fleet, *arguments, env=seaweedfs.env) as server:
        assert signed(server, "etl", name, {"uri": uri}).error[0] == issued(server, "etl", name).error[0] == 401
        assert signed(server, "boss", name, {"uri": uri}).status == 200


def test_the_store_refuses_a_credential_after_its_end(service: CatalogServer, seaweedfs: Bucket, table: Table) -> None:
    """The end is in the session token, which SeaweedFS signs. We know its key, and write another end into the token."""
    [found] = issued(service, "etl", table.name()).json["storage-credentials"]
    config = found["config"]
    head, body, _ = config["s3.session-token"].split(".")
    claims = json.loads(urlsafe_b64decode(f"{body}=="))
    assert claims["exp"] == int(config["s3.session-token-expires-at-ms"]) // 1000, "the end that clients are told"
    key = table.metadata_location.removeprefix("s3://limpet/")
    for left_s, status in ((60, 200), (-60, 403)):
        changed = {**claims, "exp": int(datetime.now(UTC).timestamp()) + left_s}
        text = f"{head}.{urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip('=')}"
        mark = urlsafe_b64encode(hmac.digest(STS_KEY, text.encode(), "sha256")).decode().rstrip("=")
        token = f"{text}.{mark}"
        keys = S3Keys(config["s3.access-key-id"], config["s3.secret-access-key"], token)
        endpoint = url_of(seaweedfs, "s3://").rstrip("/")
        wanted = decide(
            S3Request("GET", f"{endpoint}/limpet/{key}"),
            may_write=False,
            bucket=S3Bucket("limpet", endpoint, "us-east-1"),
            folders=[table.location().removeprefix("s3://limpet/")],
        )
        assert isinstance(wanted, SignableRequest)
        headers = signed_headers(wanted, keys, "us-east-1", datetime.now(UTC))
        body_ = json.dumps({"uri": wanted.uri, "headers": {k: [v] for k, v in headers.items()}}).encode()
        assert send(Answer(200, {}, body_))[0] == status, left_s


# ---- short-lived credentials ----


def issued(service: CatalogServer, token: str, table: tuple[str, ...]) -> Any:
    """The answer to a request for the credential of a table."""
    path = f"/v1/namespaces/{table[0]}/tables/{table[1]}/credentials"
    return service.ask("GET", path, None, {"authorization": f"Bearer {secret(token)}"})


def store(service: CatalogServer, seaweedfs: Bucket, token: str, table: tuple[str, ...]) -> Any:
    """A hostile client: boto3 with the credential of a table."""
    [found] = issued(service, token, table).json["storage-credentials"]
    config = found["config"]
    return boto3.client(
        "s3",
        endpoint_url=url_of(seaweedfs, "s3://").rstrip("/"),
        region_name="us-east-1",
        aws_access_key_id=config["s3.access-key-id"],
        aws_secret_access_key=config["s3.secret-access-key"],
        aws_session_token=config["s3.session-token"],
        config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def test_pyiceberg_writes_and_reads_with_a_credential_of_one_table(
    service: CatalogServer, seaweedfs: Bucket, table: Table
) -> None:
    by = "vended-credentials"
    own = client(service, "etl", by).load_table(table.name())
    own.append(ROWS)
    own.delete("id == 1")
    reading = client(service, "dashboard", by).load_table(table.name())
    assert sorted(reading.scan().to_arrow()["id"].to_pylist()) == [2, 2, 3, 3]
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        reading.append(ROWS)
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        reading.io.delete(next(iter(reading.scan().plan_files())).file.file_path)
    assert reading.refresh().scan().count() == 4
    assert not {*own.io.properties.values()} & {*seaweedfs.options.values()}


def test_who_gets_a_credential(service: CatalogServer, table: Table) -> None:
    writing, reading = issued(service, "etl", table.name()).json, issued(service, "dashboard", table.name()).json
    assert issued(service, "etl", table.name()).json == writing, "it is issued again while it is fresh"
    [first], [second] = writing["storage-credentials"], reading["storage-credentials"]
    assert first["config"]["s3.access-key-id"] != second["config"]["s3.access-key-id"], "rights differ"
    assert first["prefix"] == second["prefix"] == table.location()
    left_s = int(first["config"]["s3.session-token-expires-at-ms"]) / 1000 - datetime.now(UTC).timestamp()
    assert 1800 - 60 < left_s <= 3600 + 60
    assert issued(service, "other", table.name()).error[0] == 403
    assert issued(service, "etl", ("a", "none")).error == (404, "NoSuchTableException")
    authorization = {"authorization": f"Bearer {secret('boss')}"}
    path = f"/v1/namespaces/{table.name()[0]}/tables/{table.name()[1]}"
    plain = service.ask("GET", path, None, authorization).json
    assert "storage-credentials" not in plain
    assert not [name for name in plain["config"] if "key" in name or "token" in name], "only on request"
    both = {**authorization, "x-iceberg-access-delegation": "remote-signing,vended-credentials"}
    found = service.ask("GET", path, None, both).json
    assert "s3.session-token" in found["config"]
    assert "s3.signer" not in found["config"]
    assert found["config"]["client.refresh-credentials-endpoint"] == f"{path[1:]}/credentials"


def test_signing_and_credentials_are_as_specified(service: CatalogServer, seaweedfs: Bucket, table: Table) -> None:
    """The two operations that a service on a directory refuses (`tests/service/test_service_spec.py`)."""
    boss = {"authorization": f"Bearer {secret('boss')}"}
    endpoints = service.ask("GET", "/v1/config", None, boss).json["endpoints"]
    refused = ("getConfig", "getToken", "listFunctions", "loadFunction")
    assert {*endpoints} == {each.endpoint for each in OPERATIONS if each.name not in refused}
    operations = {each.name: each for each in OPERATIONS}
    sent = {"region": "us-east-1", "method": "GET", "headers": {}, "uri": url_of(seaweedfs, data_file(table))}
    for body, status in (
        (sent, 200),
        ({**sent, "provider": "s3", "properties": {"a": "b"}, "body": None}, 200),
        ({**sent, "provider": "gcs"}, 400),
        ({**sent, "headers": {"a": "b"}}, 400),
        ({"region": "us-east-1"}, 400),
    ):
        answer = signed(service, "dashboard", table.name(), body)
        assert answer.status == status, body
        if status == 200:
            assert {*operations["signRequest"].required} <= answer.json.keys()
            assert answer.headers["cache-control"] == "no-store", "Java keeps signatures that are `private`"
    assert signed(service, "dashboard", ("a", "none"), sent).error == (404, "NoSuchTableException")
    for query in ("", "?planId=x", "?referenced-by=a%1Fv"):
        path = f"/v1/namespaces/a/tables/{table.name()[1]}/credentials{query}"
        found = service.ask("GET", path, None, boss).json
        assert {*operations["loadCredentials"].required} <= found.keys()
        assert found["storage-credentials"][0].keys() == {"prefix", "config"}


@pytest.mark.parametrize("token", ["etl", "dashboard"])
def test_a_credential_does_what_the_token_may_and_no_more(
    service: CatalogServer, seaweedfs: Bucket, table: Table, token: str
) -> None:
    """Every row is tried with a token that may write, and with one that may only read."""
    own = table.location().removeprefix("s3://limpet/")
    other = client(service, "other").create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema)
    other.append(ROWS)
    foreign = data_file(other).removeprefix("s3://limpet/")
    mine = data_file(table).removeprefix("s3://limpet/")
    metadata = table.metadata_location.removeprefix("s3://limpet/")
    s3 = partial(getattr, store(service, seaweedfs, token, table.name()))

    def upload(key: str) -> None:
        made = s3("create_multipart_upload")(Bucket="limpet", Key=key)["UploadId"]
        part = {"Bucket": "limpet", "Key": key, "UploadId": made}
        tag = s3("upload_part")(**part, PartNumber=1, Body=b"x")["ETag"]
        s3("complete_multipart_upload")(**part, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})

    def delete_many(key: str) -> None:
        failed = s3("delete_objects")(Bucket="limpet", Delete={"Objects": [{"Key": key}]}).get("Errors")
        if failed:
            raise ClientError({"Error": failed[0]}, "DeleteObjects")

    def done(name: str, **fields: Any) -> Callable[[], object]:
        return lambda: s3(name)(Bucket="limpet", **fields)

    reads = [done("get_object", Key=mine), done("head_object", Key=metadata), done("list_objects_v2", Prefix=f"{own}/")]
    writes: list[Callable[[], object]] = [
        done("put_object", Key=f"{own}/data/x", Body=b"x"),
        done("copy_object", Key=f"{own}/data/y", CopySource=f"limpet/{mine}"),
        partial(upload, f"{own}/data/z"),
        done("delete_object", Key=f"{own}/data/x"),
        partial(delete_many, f"{own}/data/y"),
    ]
    never: list[Callable[[], object]] = [
        *[done("get_object", Key=key) for key in (foreign, f"{own}x/data/x", f"{own}/../x", own, "limpet.json")],
        *[done("put_object", Key=key, Body=b"x") for key in (foreign, f"{own}x/data/x", own, "limpet.json", metadata)],
        *[done("delete_object", Key=key) for key in (foreign, metadata)],
        *[partial(delete_many, key) for key in (foreign, metadata)],
        *[partial(upload, key) for key in (foreign, metadata)],
        done("copy_object", Key=f"{own}/data/stolen", CopySource=f"limpet/{foreign}"),
        done("copy_object", Key=metadata, CopySource=f"limpet/{mine}"),
        *[done("list_objects_v2", Prefix=prefix) for prefix in ("", own, f"{own}x/", own.rpartition("/")[0])],
        *[done("list_object_versions", Prefix=prefix) for prefix in ("", f"{own}/")],
        done("list_multipart_uploads"),
        *[done(name) for name in ("get_bucket_acl", "get_bucket_policy", "get_bucket_versioning", "delete_bucket")],
        done("put_bucket_policy", Policy="{}"),
        done("put_object_acl", Key=mine, ACL="public-read"),
        done("put_object_tagging", Key=mine, Tagging={"TagSet": []}),
        lambda: s3("create_bucket")(Bucket="another"),
        lambda: s3("get_object")(Bucket="another", Key=mine),
    ]
    for read in reads:
        read()
    for write in writes:
        if token == "etl":
            write()
        else:
            with pytest.raises(ClientError, match="AccessDenied"):
                write()
    for n, refused in enumerate(never):
        with pytest.raises(ClientError) as error:
            refused()
        assert error.value.response["Error"]["Code"] in ("AccessDenied", "InvalidRequest", "403", "NoSuchBucket"), n
    assert table.refresh().scan().count() == other.refresh().scan().count() == 3


def test_a_folder_of_another_case_gives_no_credential_for_a_table(
    service: CatalogServer, seaweedfs: Bucket, table: Table
) -> None:
    """SeaweedFS ignores upper and lower case in policies, and not in keys: a credential for `A/t` opens `a/t` too."""
    space, _, folder = table.location().rpartition("/a/")
    other, upper = client(service, "other"), f"{space}/A/{folder}"
    with pytest.raises(BadRequestError, match="overlaps with"):
        other.create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema, location=upper)
    own = other.create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema)
    with pytest.raises(BadRequestError, match="overlaps with"), own.transaction() as change:
        change.set_properties({"write.data.path": f"{upper}/data"})
    staged = f"/v1/namespaces/b/tables/none/credentials?staged={quote(upper, safe='')}"
    assert service.ask("GET", staged, None, {"authorization": f"Bearer {secret('other')}"}).status == 400
    made = client(service, "boss").create_table(("a", f"T{uuid4().hex[:8]}"), ROWS.schema, location=f"{space}/Chosen")
    key = f"{space.removeprefix('s3://limpet/')}/chosen/x"
    store(service, seaweedfs, "etl", made.name()).put_object(Bucket="limpet", Key=key, Body=b"x")  # why it matters
    with pytest.raises(BadRequestError, match="overlaps with"):
        client(service, "boss").create_table(("b", "chosen"), ROWS.schema, location=f"{space}/chosen")


@pytest.mark.parametrize(
    ("role", "said"),
    [
        (OPEN_ROLE, "can assume the role again"),
        (f"{TABLES_ROLE}-none", "refused AssumeRole: 403 AccessDenied"),
        ("limpet-tables", "is not the ARN of a role"),
    ],
)
def test_a_role_that_would_give_too_much_or_nothing_is_refused_at_the_start(
    seaweedfs: Bucket, role: str, said: str
) -> None:
    environ = {**os.environ, **seaweedfs.env}
    command = [sys.executable, "-m", "limpet", "serve", "-u", seaweedfs.at(f"role-{uuid4().hex}"), "--port", "0"]
    done = subprocess.run(
        [*command, "--sts-role-arn", role], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_does_not_enforce_is_refused(server: Callable[[str], Bucket]) -> None:
    """moto answers AssumeRole, and then lets everybody do everything."""
    moto = server("moto").env["LIMPET_SQS_ENDPOINT"]
    name, keys = f"b{uuid4().hex[:8]}", S3Keys("test", "test")
    s3 = boto3.client(
        "s3", endpoint_url=moto, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    )
    s3.create_bucket(Bucket=name)
    s3.put_object(Bucket=name, Key="limpet.json", Body=b"{}")
    bucket, runtime = S3Bucket(name, moto, "us-east-1"), system()
    sessions = StsClient("arn:aws:iam::123456789012:role/tables", moto, "us-east-1", lambda: keys, 900, runtime)
    with pytest.raises(Unsupported, match="ignores session policies"):
        CredentialSource(bucket, "warehouse", sessions, runtime).check("limpet.json")
    with pytest.raises(Unsupported, match="headers that are not signed"):
        RequestSigner(bucket, "warehouse", lambda: keys, runtime).check("limpet.json")
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=name)["Contents"]] == ["limpet.json"]


@pytest.mark.full
def test_ceph_is_refused_at_the_start_both_ways(server: Callable[[str], Bucket]) -> None:
    """RGW 16.2 honours session policies for objects, and lets a credential assume its role again, whoever is trusted.

    It also obeys a copy source that is not signed: with a signed PUT a client could copy any object of the bucket.
    """
    rgw = server("rgw")
    endpoint, keys = url_of(rgw, "s3://").rstrip("/"), S3Keys(*rgw.options.values())
    named = {"aws_access_key_id": keys.access_key_id, "aws_secret_access_key": keys.secret_access_key}
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **named)
    prefix = f"sts-{uuid4().hex}"
    s3.put_object(Bucket="limpet", Key=f"{prefix}/limpet.json", Body=b"{}")
    bucket, runtime = S3Bucket("limpet", endpoint, "us-east-1"), system()
    sts = StsClient("arn:aws:iam:::role/limpet-tables", endpoint, "us-east-1", lambda: keys, 900, runtime)
    with pytest.raises(Unsupported, match="can assume the role again"):
        CredentialSource(bucket, f"{prefix}/warehouse", sts, runtime).check(f"{prefix}/limpet.json")
    with pytest.raises(Unsupported, match="headers that are not signed"):
        RequestSigner(bucket, f"{prefix}/warehouse", lambda: keys, runtime).check(f"{prefix}/limpet.json")
    assert s3.list_objects_v2(Bucket="limpet", Prefix=prefix)["KeyCount"] == 1

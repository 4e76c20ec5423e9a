"""PyIceberg and hostile clients without a key of the bucket, on SeaweedFS: the service signs what a token allows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, SignError
from pyiceberg.table import Table
from pyiceberg.utils.concurrent import ExecutorFactory

from support.servers.catalog import CatalogServer, catalog_server
from support.servers.process import Bucket

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


@pytest.fixture(scope="module")
def service(seaweedfs: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogServer]:
    """`limpet serve --remote-signing` with a token for each kind of client, and two namespaces."""
    text = ""
    for name, (right, namespaces) in TOKENS.items():
        text += f'[[token]]\nname = "{name}"\nsecret = "{secret(name)}"\nrights = ["{right}"]\n'
        text += f"namespaces = {json.dumps(namespaces)}\n" if namespaces else ""
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    file.write_text(text)
    file.chmod(0o600)
    arguments = ("--remote-signing", "--tokens-file", str(file))
    with catalog_server(seaweedfs.at(f"sign-{uuid4().hex}"), *arguments, env=seaweedfs.env) as server:
        boss = client(server, "boss")
        boss.create_namespace("a")
        boss.create_namespace("b")
        yield server


def client(service: CatalogServer, token: str) -> RestCatalog:
    """PyIceberg with a token and without a key."""
    asked = {"header.X-Iceberg-Access-Delegation": "remote-signing"}
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


def send(answer: Any, method: str = "GET", body: bytes | None = None, **more: str) -> tuple[int, bytes]:
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
    with pytest.raises(ForbiddenError, match="cannot choose the folder"):
        other.create_table(("b", "t"), ROWS.schema, location=f"{warehouse}/gone")
    own = other.create_table(("b", f"t{uuid4().hex[:8]}"), ROWS.schema)
    with pytest.raises(ForbiddenError, match="cannot choose the folder"), own.transaction() as change:
        change.set_properties({"write.data.path": f"{warehouse}/gone"})
    assert client(service, "boss").create_table(("b", "free"), ROWS.schema, location=f"{warehouse}/gone")

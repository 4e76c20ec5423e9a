"""Locations: inside the warehouse, or refused, wherever a client may name one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from limpet.catalog.catalog import Catalog
from limpet.catalog.names import free_in
from limpet.catalog.state import CatalogState
from limpet.catalog.warehouse import CACHE_BYTES_MAX, IN_MEMORY, Document, Warehouse
from limpet.kernel.errors import Corrupt, Denied, Invalid
from limpet.kernel.keys import Key
from limpet.kernel.runtime import system
from limpet.kernel.store import DirectoryStore, MemoryStore
from support.catalog import append, catalog, catalog_on, metadata, snapshot, table, view

__all__ = ["catalog"]

OUTSIDE = [
    "",
    "/",
    "x",
    "{url}",
    "{url}/",
    "{url}-evil/t",
    "{url}/../t",
    "{url}/a/../../t",
    "{url}/a/./t",
    "{url}//t",
    "{url}/%2e%2e/t",
    "{url}/a%2ft",
    "{url}/a?b",
    "{url}/a#b",
    "{url}/a\\b",
    "{url}/a\nb",
    "{url}/a\x00b",
    "{url}/" + "a/" * 600 + "t",
    " {url}/t",
    "s3://elsewhere/t",
    "S3://elsewhere/warehouse/t",
    "file:///etc/t",
    "file://host/{path}/t",
    "http://169.254.169.254/latest",
    "/etc/passwd",
    None,
    7,
    ["{url}/t"],
]


def outside(warehouse: Warehouse) -> list[Any]:
    path = warehouse.url.partition("://")[2]
    return [each.format(url=warehouse.url, path=path) if isinstance(each, str) else each for each in OUTSIDE]


def test_locations_inside_and_outside(catalog: Catalog) -> None:
    warehouse = catalog.warehouse
    assert warehouse.root_of(f"{warehouse.url}/a/t") == "a/t"
    assert warehouse.root_of(f"{warehouse.url}/a/t/") == "a/t"
    for url in outside(warehouse):
        with pytest.raises(Invalid):
            warehouse.root_of(url)
        with pytest.raises(Invalid):
            warehouse.path_of(url, "file")


def commits(loaded: Any, url: Any) -> list[dict[str, Any]]:
    """Every update of a table by which a client can name a place."""
    stats = {"snapshot-id": 1, "statistics-path": url, "file-size-in-bytes": 1}
    footer = {"file-footer-size-in-bytes": 1, "blob-metadata": []}
    updates: list[dict[str, Any]] = [
        {"action": "set-location", "location": url},
        {"action": "add-snapshot", "snapshot": {**snapshot(loaded, 5), "manifest-list": url}},
        {"action": "set-statistics", "statistics": {**stats, **footer}},
        {"action": "set-partition-statistics", "partition-statistics": stats},
    ]
    for key in ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"):
        updates.append({"action": "set-properties", "updates": {key: url}})
    for word in ("a.new-location", "my_dir", "their.directory", "folder", "their-warehouse", "x.PATH"):
        updates.append({"action": "set-properties", "updates": {word: url, "x": "y"}})
    return updates


def test_every_place_that_a_commit_can_name_is_checked(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])
    loaded = catalog.create_table(["a"], table())
    before = catalog.view.now()
    for url in outside(catalog.warehouse):
        for update in commits(loaded, url):
            change = {"requirements": [], "updates": [update]}
            named = {**change, "identifier": {"namespace": ["a"], "name": "t"}}
            attempts: list[Callable[[], object]] = [
                lambda change=change: catalog.commit_table(["a"], "t", change),  # type: ignore[misc]
                lambda named=named: catalog.commit_transaction([named]),  # type: ignore[misc]
            ]
            for attempt in attempts:
                with pytest.raises(Invalid):
                    attempt()
    after = catalog.view.now()
    assert before is not None
    assert after is not None
    assert before.head == after.head, "nothing was published"
    for update in commits(loaded, f"{catalog.warehouse.url}/elsewhere/x"):
        if "snapshot" not in str(update["action"]) and "statistics" not in update["action"]:
            catalog.commit_table(["a"], "t", {"updates": [update]})


def test_every_place_that_a_create_or_register_can_name_is_checked(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])
    for url in outside(catalog.warehouse):
        requests = [{"properties": {"write.data.path": url}}, *([{"location": url}] if url is not None else [])]
        for fields in requests:
            with pytest.raises(Invalid):
                catalog.create_table(["a"], table(**fields))
            with pytest.raises(Invalid):
                catalog.create_table(["a"], {**table(**fields), "stage-create": True})
            with pytest.raises(Invalid):
                catalog.create_view(["a"], view(**fields))
        with pytest.raises(Invalid):
            catalog.register_table(["a"], "r", url)
        with pytest.raises(Invalid):
            catalog.create_namespace(["b"], {"location": url})
    assert catalog.tables(["a"]).names == catalog.views(["a"]).names == []


@pytest.mark.parametrize(
    "key", ["s3.endpoint", "py-io-impl", "io-impl", "gcs.token", "write.py-location-provider.impl"]
)
def test_properties_that_redirect_clients_are_refused(catalog: Catalog, key: str) -> None:
    catalog.create_namespace(["a"])
    with pytest.raises(Invalid, match="configures access to files"):
        catalog.create_table(["a"], table(properties={key: "x"}))


def test_properties_that_are_no_places_are_taken(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])
    properties = {"comment": "see https://example.test/x", "owner": "me", "write.object-storage.enabled": "true"}
    found = metadata(catalog.create_table(["a"], table(properties=properties)))["properties"]
    assert found == {**properties, "write.parquet.compression-codec": "zstd"}


def test_a_link_out_of_the_warehouse_is_refused(tmp_path: Path) -> None:
    warehouse = Warehouse(DirectoryStore(tmp_path), str(tmp_path), system())
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "warehouse" / "link").symlink_to(tmp_path / "out")
    with pytest.raises(Invalid, match="through a link"):
        warehouse.root_of(f"{warehouse.url}/link/t")
    with pytest.raises(Denied, match="link is a symbolic link"):
        warehouse.files_in("link")


def test_on_a_disk_a_folder_has_the_path_that_its_name_says(tmp_path: Path) -> None:
    disk = Warehouse(DirectoryStore(tmp_path), str(tmp_path), system())
    bucket = Warehouse(MemoryStore(system()), "s3://bucket/prefix", system())
    assert bucket.root_of("s3://bucket/prefix/warehouse/My Table") == "My Table"
    with pytest.raises(Invalid, match="names of folders"):
        disk.root_of(f"{disk.url}/My Table")


def test_the_url_of_a_store_in_every_spelling(tmp_path: Path) -> None:
    store = MemoryStore(system())
    wanted = f"file://{tmp_path}/warehouse"
    for url in (str(tmp_path), f"{tmp_path}/", f"file://{tmp_path}", f"file://{tmp_path}/"):
        assert Warehouse(store, url, system()).url == wanted
    assert Warehouse(store, "s3://bucket/a?region=x", system()).url == "s3://bucket/a/warehouse"
    assert Warehouse(store, f"file://{tmp_path}/a%20b", system()).url == f"file://{tmp_path}/a b/warehouse"
    with pytest.raises(Invalid, match="%"):
        Warehouse(store, f"{tmp_path}/a%41", system())


def test_a_staged_table_has_a_folder_for_its_metadata(tmp_path: Path) -> None:
    with catalog_on(DirectoryStore(tmp_path), str(tmp_path)) as made:
        made.create_namespace(["a"])
        staged = made.create_table(["a"], {**table(), "stage-create": True})
    assert (Path(metadata(staged)["location"].removeprefix("file://")) / "metadata").is_dir(), "DuckDB makes none"


def test_new_names_are_unique_and_readable() -> None:
    warehouse = Warehouse(MemoryStore(system()), "s3://bucket", system())
    roots = {warehouse.new_root(("A b", "名" * 200), "T/x", free_in(CatalogState())) for _ in range(100)}
    assert len(roots) == 100
    assert all(root.startswith("a-b/x/t-x-") for root in roots)
    long = warehouse.new_root(tuple("n" * 255 for _ in range(16)), "t" * 255, free_in(CatalogState()))
    assert len(long) < 170
    assert warehouse.root_of(warehouse.location(long)) == long
    assert UUID(warehouse.new_uuid()).version == 4


def test_metadata_files_are_numbered() -> None:
    warehouse = Warehouse(MemoryStore(system()), "s3://bucket", system())
    for before, number in ((None, 0), ("a/metadata/00041-x.metadata.json", 42), ("a/v3.metadata.json", 4), ("a/x", 0)):
        path = warehouse.new_file("a/metadata", before, Document(b"{}"))
        assert path == f"a/metadata/{number:05d}-{sha256(b'{}').hexdigest()}.metadata.json"


def test_metadata_is_kept_in_memory_up_to_a_limit() -> None:
    warehouse = Warehouse(MemoryStore(system()), "s3://bucket", system())
    size = CACHE_BYTES_MAX // IN_MEMORY // 4
    for name in "abcd":
        warehouse.keep(name, Document(b" " * size))
    assert warehouse.cached("a") is not None
    warehouse.keep("e", Document(b" " * size))
    assert [name for name in "abcde" if warehouse.cached(name)] == ["a", "c", "d", "e"], "the one used longest ago goes"


def test_properties_are_text(catalog: Catalog) -> None:
    catalog.create_namespace(["a"], {"x": True, "y": 7})  # type: ignore[dict-item]  # as JSON brings them
    assert catalog.namespace(["a"]) == {"x": "true", "y": "7"}
    made = catalog.create_table(["a"], table(properties={"x": False}))
    assert metadata(made)["properties"]["x"] == "false"
    odd: Any
    for odd in (None, [], {}):
        with pytest.raises(Invalid, match="must be a string"):
            catalog.create_namespace(["b"], {"x": odd})


@pytest.mark.parametrize(
    "name",
    ["s3.endpoint", "signer.uri", "uri", "token", "credential", "oauth2-server-uri", "header.x", "fs.s3a.endpoint",
     "hdfs.host", "py-io-impl", " s3.endpoint", "uri "],
)  # fmt: skip
def test_a_table_cannot_tell_clients_where_to_go(catalog: Catalog, name: str) -> None:
    catalog.create_namespace(["a"])
    with pytest.raises(Invalid, match="configures access to files"):
        catalog.create_table(["a"], table(properties={name: "x"}))


def test_a_table_that_has_all_of_a_namespaces_folder(catalog: Catalog) -> None:
    catalog.create_namespace(["sales"])
    catalog.create_table(["sales"], table("wide", location=f"{catalog.warehouse.url}/sales"))
    beside = metadata(catalog.create_table(["sales"], table("orders")))["location"]
    staged = metadata(catalog.create_table(["sales"], {**table("staged"), "stage-create": True}))["location"]
    seen = metadata(catalog.create_view(["sales"], view("seen")))["location"]
    for location in (beside, staged, seen):
        assert not location.startswith(f"{catalog.warehouse.url}/sales/")
        assert location.startswith(f"{catalog.warehouse.url}/")


def test_a_folder_that_cannot_be_read_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = Warehouse(DirectoryStore(tmp_path), str(tmp_path), system())
    (tmp_path / "warehouse" / "a" / "inner").mkdir(parents=True)
    scan, inner = os.scandir, (tmp_path / "warehouse" / "a" / "inner").stat()

    def refused(path: Any) -> Any:
        if os.path.samestat(os.stat(path), inner):
            raise PermissionError(errno.EACCES, "Permission denied", "inner")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(Denied, match="folder of a: Permission denied"):
        warehouse.files_in("a")
    assert warehouse.files_in("b") == [], "one that is not there has no files"


@pytest.mark.parametrize("bad", [b"", b"{", b"[]", b'{"a": \xff}', b"null"])
def test_metadata_that_is_gone_or_broken_is_an_error(catalog: Catalog, bad: bytes) -> None:
    catalog.create_namespace(["a"])
    location = catalog.create_table(["a"], table()).metadata_location
    assert location is not None
    key = Key("warehouse/" + location.removeprefix(f"{catalog.warehouse.url}/"))
    reader = Catalog(catalog.storage, Warehouse(catalog.warehouse.store, catalog.warehouse.url[:-10], system()))
    assert reader.warehouse.url == catalog.warehouse.url
    catalog.warehouse.store.put(key, bad)
    with pytest.raises(Corrupt):
        reader.load_table(["a"], "t")
    catalog.warehouse.store.delete(key)
    with pytest.raises(Corrupt, match="cannot be read"):
        reader.load_table(["a"], "t")
    assert append(catalog.load_table(["a"], "t"), 1), "what is in memory is good"

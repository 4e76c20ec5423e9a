"""No link below the root is followed by those who read or write a directory beside the store's verbs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import limpet
from limpet.catalog.warehouse import Warehouse
from limpet.index.files import export
from limpet.index.maintain.import_existing import RECORD_FOLDERS
from limpet.index.sql import sql
from limpet.index.sql_tables import SMALL_BYTES
from limpet.kernel.errors import Denied
from limpet.kernel.keys import Key
from limpet.kernel.runtime import system
from limpet.kernel.store import DirectoryStore
from limpet.kernel.store.api import Store
from limpet.kernel.store.directory.plain import plain_warehouse
from limpet.kernel.store.sources import FolderSource

MIDDLES = ["indexes", "indexes/sites", "indexes/sites/shards"]


def behind_a_link(folder: Path, outside: Path) -> None:
    """Move a folder elsewhere and put a link in its place."""
    shutil.move(folder, outside)
    folder.symlink_to(outside)


@pytest.fixture(params=[10, SMALL_BYTES + 1], ids=["small", "large"])
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> limpet.Fleet:
    """A fleet with an index; `large`: of a shard that DuckDB reads where it is."""
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    index = fleet.index("sites", {"fields": [{"name": "key"}, {"name": "text"}]}, key="key")
    index.put({"key": "a", "text": "x" * request.param})
    index.compile(full=True)
    assert len(sql(fleet.store, system(), "select key from sites")) == 1
    return fleet


@pytest.mark.parametrize("where", MIDDLES)
def test_an_index_behind_a_link_is_refused(sites: limpet.Fleet, tmp_path: Path, where: str) -> None:
    index = sites.index("sites")
    assert index.manifest.depth == 2
    behind_a_link(tmp_path / "fleet" / where, tmp_path / "outside")
    with pytest.raises(Denied, match=rf"fleet/{where} is a symbolic link"):
        sql(sites.store, system(), "select * from sites")
    with pytest.raises(Denied, match=rf"fleet/{where} is a symbolic link"):
        [*index.scan()]
    with open(os.devnull, "wb") as stream, pytest.raises(Denied, match="is a symbolic link"):
        [*export(index, stream, "jsonl")]


def test_a_link_that_appears_while_duckdb_is_about_to_read(
    sites: limpet.Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB gets open files, so a link that comes after the check is of no use."""
    from limpet.index import sql as module

    session, opened = module._session, 0
    shards = tmp_path / "fleet" / "indexes/sites/shards"

    def swapped(*args: object) -> object:
        nonlocal opened
        opened += 1
        if opened == 2:
            (tmp_path / "secret").mkdir()
            for shard in shards.glob("*.usv"):
                (tmp_path / "secret" / shard.name).write_bytes(shard.read_bytes().replace(b"a", b"b", 1))
            shutil.rmtree(shards)
            shards.symlink_to(tmp_path / "secret")
        return session(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_session", swapped)
    assert list(sql(sites.store, system(), "select key from sites")) == [("a",)]
    assert opened == 2


@pytest.fixture
def warehouse(tmp_path: Path) -> Store:
    """The files of a warehouse that has a table, the folder of which was replaced by a link."""
    root = tmp_path / "fleet"
    store = plain_warehouse(DirectoryStore(root, durability="os"), system())
    store.put(Key("warehouse/a/t/data/day=1/x.parquet"), b"ours")
    return store


@pytest.mark.parametrize("where", ["warehouse", "warehouse/a", "warehouse/a/t/data/day=1"])
@pytest.mark.parametrize("verb", ["get", "head", "put", "delete", "list"])
def test_a_warehouse_behind_a_link_is_refused(warehouse: Store, tmp_path: Path, where: str, verb: str) -> None:
    behind_a_link(tmp_path / "fleet" / where, tmp_path / "outside")
    before = _all(tmp_path / "outside")
    key = Key("warehouse/a/t/data/day=1/x.parquet")
    verbs: dict[str, Callable[[], object]] = {
        "get": lambda: warehouse.get(key),
        "head": lambda: warehouse.head(key),
        "put": lambda: warehouse.put(key, b"new"),
        "delete": lambda: warehouse.delete(key),
        "list": lambda: [*warehouse.list("warehouse/a/t/data/day=1")],
    }
    with pytest.raises(Denied, match=rf"fleet/{where} is a symbolic link"):
        verbs[verb]()
    assert _all(tmp_path / "outside") == before


def test_a_listing_of_a_fleet_does_not_leave_out_its_warehouse_in_silence(warehouse: Store, tmp_path: Path) -> None:
    (tmp_path / "fleet/warehouse/a/link").symlink_to(tmp_path)
    assert [stat.key for stat in warehouse.list()] == ["warehouse/a/t/data/day=1/x.parquet"]
    behind_a_link(tmp_path / "fleet/warehouse", tmp_path / "outside")
    with pytest.raises(Denied, match="fleet/warehouse is a symbolic link"):
        [*warehouse.list()]


def test_a_pipe_in_a_warehouse_is_no_file_and_nobody_waits_for_it(warehouse: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fleet/warehouse/a/pipe")
    with pytest.raises(limpet.Missing):
        warehouse.get(Key("warehouse/a/pipe"))


@pytest.mark.parametrize("where", ["warehouse", "warehouse/a", "warehouse/a/t"])
def test_a_catalog_touches_no_files_behind_a_link(tmp_path: Path, where: str) -> None:
    root = tmp_path / "fleet"
    place = Warehouse(DirectoryStore(root, durability="os"), str(root), system())
    place.make_folder("a/t")
    (root / "warehouse/a/t/data").mkdir()
    (root / "warehouse/a/t/data/x.parquet").write_bytes(b"data")
    files = place.files_in("a/t")
    assert len(files) == 1
    behind_a_link(root / where, tmp_path / "outside")
    before = _all(tmp_path / "outside")
    for act in (
        lambda: place.files_in("a/t"),
        lambda: place.delete(files),
        lambda: place.make_folder("a/t/b"),
        lambda: place.prune("a/t"),
    ):
        with pytest.raises(Denied, match=rf"fleet/{where} is a symbolic link"):
            act()
    assert _all(tmp_path / "outside") == before


def test_a_purge_deletes_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    root = tmp_path / "fleet"
    place = Warehouse(DirectoryStore(root, durability="os"), str(root), system())
    place.make_folder("a/t")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/x").write_bytes(b"theirs")
    (root / "warehouse/a/t/link").symlink_to(tmp_path / "outside")
    (root / "warehouse/a/t/metadata/x").symlink_to(tmp_path / "outside/x")
    files = place.files_in("a/t")
    assert len(files) == 2
    place.delete(files)
    place.prune("a/t")
    assert not (root / "warehouse/a/t").exists()
    assert (tmp_path / "outside/x").read_bytes() == b"theirs"


def _all(folder: Path) -> dict[str, bytes | None]:
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize("where", ["indexes", "indexes/old", "indexes/old/shards", "indexes/old/inbox/5e"])
def test_files_behind_a_link_are_not_adopted(tmp_path: Path, where: str) -> None:
    root = tmp_path / "fleet"
    limpet.open(root, durability="os").cell("c").write(1)
    for name in ("shards/5e.usv", "inbox/5e/a.usv", "a.usv"):
        (root / "indexes/old" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "indexes/old" / name).write_bytes(b"a\x1fA\n")
    behind_a_link(root / where, tmp_path / "outside")
    before = _all(tmp_path / "outside")
    source = FolderSource(root / "indexes/old", RECORD_FOLDERS, root=root)
    if where == "indexes/old/inbox/5e":
        assert {stat.key for stat in source.files()} == {"a.usv", "shards/5e.usv"}, "a listing passes over the link"
    else:
        with pytest.raises(Denied, match=rf"fleet/{where} is a symbolic link"):
            [*source.files()]
    if where != "indexes/old/shards":
        name = "inbox/5e/a.usv"
        assert isinstance(source.read([name], size_max=1 << 20)[name], Denied)
        assert isinstance(source.delete([name])[name], Denied)
    assert _all(tmp_path / "outside") == before

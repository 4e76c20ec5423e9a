"""The services on SeaweedFS under keys that its server holds to exactly the printed policies of their roles."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ServiceUnavailableError

import limpet
from clients.serving import Place, Service, api, compactor, place_in
from limpet.kernel.catalog_keys import CatalogKeys
from support.roles import key_for
from support.servers.process import Bucket

KEYS = CatalogKeys.of("catalog")
LARGE = ["x" * 20_000] * 16
"""So much that the compactor writes a snapshot."""


@pytest.fixture
def prefix(seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty fleet that its owner has set up: no role may do that."""
    for name, value in seaweedfs.env.items():
        monkeypatch.setenv(name, value)
    made = f"clients-{uuid4().hex}"
    limpet.open(seaweedfs.at(made)).store.list_dirs("")
    return made


def under(bucket: Bucket, prefix: str, role: str) -> Place:
    """The fleet as somebody with that role's key sees it."""
    return Place(bucket.at(prefix), key_for(bucket, role, prefix).env)


def keys_of(bucket: Bucket, prefix: str, role: str) -> Mapping[str, str]:
    """What PyIceberg is told, to reach table data with that role's key."""
    return place_in(key_for(bucket, role, prefix), "").keys


def run(stack: ExitStack, folder: Path, front: Place, behind: Place) -> Service:
    """Both services, each with its own key; the API."""
    second = stack.enter_context(compactor(behind, folder)).wait(leads=False)
    return stack.enter_context(api(front, folder, second))


def test_the_services_work_under_exactly_their_policies(seaweedfs: Bucket, prefix: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        front, behind = under(seaweedfs, prefix, "api"), under(seaweedfs, prefix, "compactor")
        url = run(stack, tmp_path, front, behind).wait().url
        catalog = RestCatalog("limpet", uri=url, **keys_of(seaweedfs, prefix, "tables"))
        catalog.create_namespace("n")
        table = catalog.create_table(("n", "t"), pa.schema([("id", pa.int64())]))
        table.append(pa.table({"id": [1, 2]}))
        for value in LARGE:
            catalog.update_namespace_properties("n", updates={"large": value})
        only_reads = RestCatalog("reader", uri=url, **keys_of(seaweedfs, prefix, "reader")).load_table(("n", "t"))
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            only_reads.append(pa.table({"id": [3]}))
        assert only_reads.refresh().scan().count() == 2
        catalog.purge_table(("n", "t"))
        catalog.drop_namespace("n")
    owner = limpet.open(seaweedfs.at(prefix)).store
    assert [*owner.list(KEYS.snapshots)] != []
    assert [*owner.list(KEYS.commits)] != []


@pytest.mark.parametrize(("front", "behind"), [("api", "api"), ("compactor", "compactor"), ("reader", "compactor")])
def test_a_service_with_another_role_s_key_publishes_nothing(
    seaweedfs: Bucket, prefix: str, tmp_path: Path, front: str, behind: str
) -> None:
    with ExitStack() as stack:
        service = run(stack, tmp_path, under(seaweedfs, prefix, front), under(seaweedfs, prefix, behind))
        url = service.wait(leads=False).url
        catalog = RestCatalog("limpet", uri=url)
        with pytest.raises(ServiceUnavailableError):
            catalog.create_namespace("n")
        assert catalog.list_namespaces() == []
        assert not service.leads()
    owner = limpet.open(seaweedfs.at(prefix)).store
    assert [stat.key for prefix in ("manifests", "commits", "snapshots") for stat in owner.list(prefix)] == []

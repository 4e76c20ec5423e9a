"""The catalog: a fenced ledger, published by a sole writer.

Read `records` and `names` (what is stored, and under which names), `state` and `heads` (the state and how it changes:
pure), `commit` (one change of a table), `leader` (who may commit, and how commits are batched), `compactor` (who
publishes them), `storage` (reads only), `catalog` (the interface). `warehouse` places the files of tables, `history`
looks back, `gc` deletes what nothing refers to. `iceberg` knows the format of tables, `maintain` rewrites them.

It may import events and the kernel, and neither the queue nor the index. It knows no HTTP: that is the service's.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from limpet.catalog.compactor import Compactor, PublicationRefused
from limpet.catalog.leader import Grant, Leader, NotLeader
from limpet.catalog.records import CatalogHead, CommitRecord, RememberedAnswer
from limpet.catalog.state import CatalogState
from limpet.catalog.storage import CatalogView, LoadedState
from limpet.events.ledger import Publication, Publisher

if TYPE_CHECKING:
    from limpet.catalog.catalog import Catalog, LoadedTable, NamesPage, Verified
    from limpet.catalog.history import PastCatalog
    from limpet.catalog.iceberg.importer import ImportedTable
    from limpet.catalog.maintain.tables import CompactionReport, ExpiryReport, OrphanReport, TableMaintenance
    from limpet.catalog.warehouse import Document

__all__ = [
    "Catalog",
    "CatalogHead",
    "CatalogState",
    "CatalogView",
    "CommitRecord",
    "CompactionReport",
    "Compactor",
    "Document",
    "ExpiryReport",
    "Grant",
    "ImportedTable",
    "Leader",
    "LoadedState",
    "LoadedTable",
    "NamesPage",
    "NotLeader",
    "OrphanReport",
    "PastCatalog",
    "Publication",
    "PublicationRefused",
    "Publisher",
    "RememberedAnswer",
    "TableMaintenance",
    "Verified",
]

_LATER = {
    "Catalog": "catalog",
    "CompactionReport": "maintain.tables",
    "Document": "warehouse",
    "ExpiryReport": "maintain.tables",
    "ImportedTable": "iceberg.importer",
    "LoadedTable": "catalog",
    "NamesPage": "catalog",
    "OrphanReport": "maintain.tables",
    "PastCatalog": "history",
    "TableMaintenance": "maintain.tables",
    "Verified": "catalog",
}


def __getattr__(name: str) -> Any:
    """`Catalog` and what it returns, imported when asked for: they need the packages of the extra `catalog`."""
    if name in _LATER:
        return getattr(import_module(f"limpet.catalog.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

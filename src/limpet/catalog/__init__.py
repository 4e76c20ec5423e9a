"""The catalog: a fenced ledger, published by a sole writer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from limpet.catalog.compactor import Compactor, PublicationRefused
from limpet.catalog.leader import Grant, Leader, NotLeader
from limpet.catalog.records import CatalogHead, CommitRecord, RememberedAnswer
from limpet.catalog.state import CatalogState
from limpet.catalog.storage import CatalogView, LoadedState
from limpet.ledger import Publication, Publisher

if TYPE_CHECKING:
    from limpet.catalog.catalog import Catalog, LoadedTable, NamesPage, Verified
    from limpet.catalog.history import PastCatalog
    from limpet.catalog.warehouse import Document

__all__ = [
    "Catalog",
    "CatalogHead",
    "CatalogState",
    "CatalogView",
    "CommitRecord",
    "Compactor",
    "Document",
    "Grant",
    "Leader",
    "LoadedState",
    "LoadedTable",
    "NamesPage",
    "NotLeader",
    "PastCatalog",
    "Publication",
    "PublicationRefused",
    "Publisher",
    "RememberedAnswer",
    "Verified",
]

_LATER = {
    "Catalog": "catalog",
    "Document": "warehouse",
    "LoadedTable": "catalog",
    "NamesPage": "catalog",
    "PastCatalog": "history",
    "Verified": "catalog",
}


def __getattr__(name: str) -> Any:
    """`Catalog` and what it returns, imported when asked for: they need the packages of the extra `catalog`."""
    if name in _LATER:
        return getattr(import_module(f"limpet.catalog.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

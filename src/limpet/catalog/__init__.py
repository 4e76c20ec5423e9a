"""The catalog: a fenced ledger, published by a sole writer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from limpet.catalog.compactor import Compactor, Published, Publisher, Refusal
from limpet.catalog.leader import Grant, Leader, NotLeader
from limpet.catalog.records import Commit, Head, Told
from limpet.catalog.state import State
from limpet.catalog.view import Loaded, View

if TYPE_CHECKING:
    from limpet.catalog.catalog import Catalog, Verified
    from limpet.catalog.history import Past
    from limpet.catalog.loaded import LoadedTable, Page
    from limpet.catalog.warehouse import Document

__all__ = [
    "Catalog",
    "Commit",
    "Compactor",
    "Document",
    "Grant",
    "Head",
    "Leader",
    "Loaded",
    "LoadedTable",
    "NotLeader",
    "Page",
    "Past",
    "Published",
    "Publisher",
    "Refusal",
    "State",
    "Told",
    "Verified",
    "View",
]

_LATER = {
    "Catalog": "catalog",
    "Document": "warehouse",
    "LoadedTable": "loaded",
    "Page": "loaded",
    "Past": "history",
    "Verified": "catalog",
}


def __getattr__(name: str) -> Any:
    """`Catalog` and what it returns, imported when asked for: they need the packages of the extra `catalog`."""
    if name in _LATER:
        return getattr(import_module(f"limpet.catalog.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

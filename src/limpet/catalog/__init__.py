"""The catalog: a fenced ledger, published by a sole writer."""

from limpet.catalog.compactor import Compactor, Published, Publisher, Refusal
from limpet.catalog.leader import Grant, Leader, NotLeader
from limpet.catalog.view import View

__all__ = ["Compactor", "Grant", "Leader", "NotLeader", "Published", "Publisher", "Refusal", "View"]

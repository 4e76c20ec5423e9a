"""Records as lines of text: `lines` writes and reads them, `types` makes columns of what a program declares."""

from limpet.index.codec.lines import Constraints, Field, Kind, Schema, Typed
from limpet.index.codec.types import typed

__all__ = ["Constraints", "Field", "Kind", "Schema", "Typed", "typed"]

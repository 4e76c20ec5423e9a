"""`Cell`: one small JSON object that changes only by compare-and-swap. All mutable state of Limpet is in cells.

`decide` has the rules, `cell` the I/O.
"""

from limpet.cell.cell import PLAIN, Cell, Codec, Fenced, Lost, Outcome, Replaced, Unclear, Versioned, Won, struct_codec
from limpet.cell.decide import Fence, Header

__all__ = [
    "PLAIN",
    "Cell",
    "Codec",
    "Fence",
    "Fenced",
    "Header",
    "Lost",
    "Outcome",
    "Replaced",
    "Unclear",
    "Versioned",
    "Won",
    "struct_codec",
]

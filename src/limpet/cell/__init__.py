"""One object that is read, decided upon and swapped; everything mutable in Limpet is one.

Read `decide` for the rules and `cell` for the I/O around them.
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

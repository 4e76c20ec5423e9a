"""Positions: numbers that order the events of many processes, handed out in blocks. Order, never a gate."""

from __future__ import annotations

from typing import Annotated

import msgspec

from limpet.cell import Cell, struct_codec
from limpet.errors import Invalid, LimpetError
from limpet.keys import CatalogKeys
from limpet.runtime import Runtime
from limpet.store.api import Store

BLOCK = 100_000
NEXT_MAX = 1 << 62


class SequenceRecord(msgspec.Struct, frozen=True):
    """The fields of `sequence/<domain>.json` beside the cell's header: the first position that nobody has."""

    next: Annotated[int, msgspec.Meta(ge=0, le=NEXT_MAX)]


class Sequence:
    """The positions of one process: a block at a time. What is left of a block when the process ends is left out."""

    def __init__(self, store: Store, keys: CatalogKeys, runtime: Runtime) -> None:
        self._cell = Cell(store, keys.sequence, struct_codec(SequenceRecord), runtime)
        self._next = 0
        self._end = 0

    def cost(self, count: int) -> int:
        """How many requests `take` would make."""
        return 0 if self._next + count <= self._end else 2

    def take(self, count: int) -> int | None:
        """The first of `count` positions in a row; None if they cannot be had now. Never raises.

        Cost: nothing mostly; for each block 1 GET + 1 PUT.   Crash: the block is left out.
        """
        if self.cost(count):
            size = max(BLOCK, count)

            def further(record: SequenceRecord | None) -> SequenceRecord:
                after = (record.next if record else 1) + size
                if after > NEXT_MAX:
                    raise Invalid(f"{self._cell.key} stands at {after}: no process hands out so many")
                return SequenceRecord(after)

            try:
                seen = self._cell.update(further)
            except LimpetError:
                return None
            assert seen is not None
            self._next, self._end = seen.value.next - size, seen.value.next
        first = self._next
        self._next += count
        return first

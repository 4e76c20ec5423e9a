"""From records to lines. One is made field by field; many are made column by column, for a quarter of the price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Generic, TypeVar

from limpet.errors import Invalid
from limpet.index.fields import UPDATED_AT
from limpet.index.schema import Schema, stamp_in
from limpet.index.stamps import Stamps, Times, given
from limpet.index.typed import Typed
from limpet.index.values import all_in_utc, stamp_texts

R = TypeVar("R")
A = TypeVar("A")

CHUNK = 10_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Records ready to be written, in their order.

    `own` are the stamps that they brought along, None for those that brought none; None alone if none of them lies
    ahead of the store's clock, and so none need be remembered.
    """

    keys: Sequence[str]
    lines: Sequence[bytes]
    own: Sequence[str | None] | None


def chunks(items: Iterable[A]) -> Iterator[list[A]]:
    """The items in runs that are worth a batch, and small enough to stay in a processor's cache."""
    left = iter(items)
    while some := [*islice(left, CHUNK)]:
        yield some


ALONE = "the record"
"""What errors call a record that was put by itself; others have a number."""


class Bulk(Generic[R]):
    """Makes the lines of records, of one or of many, for the index whose keys lie below `scope`."""

    def __init__(self, schema: Schema, typed: Typed[R], stamps: Stamps, scope: str) -> None:
        self._schema = schema
        self._typed = typed
        self._stamps = stamps
        self._scope = scope

    def one(self, record: R | Mapping[str, Any], times: Times, where: str) -> tuple[str, str, bytes, bool]:
        """The record's key, its stamp, its line, and whether the stamp is the record's own.   Raises: Invalid."""
        values = self._typed.values(record, where=where)
        value = values.get(self._schema.key)
        if value is None:
            raise Invalid(f"{where}: field {self._schema.key!r}: expected the key, got nothing")
        key = self._schema.key_text(value)
        if where:
            where = f"{where} {key!r}" if where == ALONE else f"{where} ({key!r})"
        stamp, is_own = self._stamp(key, values.get(UPDATED_AT), times, where)
        return key, stamp, self._schema.line(values, stamp, where=where), is_own

    def _stamp(self, key: str, brought: Any, times: Times, where: str) -> tuple[str, bool]:
        """The stamp of a record that brings such an `updated_at`, and whether that is its own.   Raises: Invalid."""
        at = stamp_in({UPDATED_AT: brought}, where=where)
        stamp = given(at, times.latest, where=where) if at else self._stamps.after(self._scope, key, times.common)
        return stamp, at is not None

    def one_by_one(self, records: Iterable[R | Mapping[str, Any]], first: int, times: Times) -> Batch:
        """Those records, of which the first has that number in its call.   Raises: Invalid, saying which one is bad."""
        keys, lines, own = list[str](), list[bytes](), list[str | None]()
        for number, record in enumerate(records, first):
            try:
                key, stamp, line, is_own = self.one(record, times, "")
            except Invalid:
                self.one(record, times, f"record {number}")  # it says the same, and of which record
                raise
            keys.append(key)
            lines.append(line)
            own.append(stamp if is_own else None)
        return Batch(keys, lines, own)

    def in_columns(self, records: Sequence[R | Mapping[str, Any]], times: Times) -> Batch | None:
        """What `one_by_one` would make of them, for a fraction of the price; None if it may find one that is bad."""
        try:
            columns = self._typed.columns(records, self._names)
            keys = self._schema.key_texts(columns[self._schema.key])
            stamps, own = self._stamped(keys, columns.pop(UPDATED_AT), times)
            lines = self._schema.bulk_lines([*columns.values()], stamps)
        except (Invalid, LookupError):
            return None
        return Batch(keys, lines, own)

    @cached_property
    def _names(self) -> Sequence[str]:
        return [field.name for field in self._schema.columns]

    def _stamped(
        self, keys: Sequence[str], brought: Sequence[Any], times: Times
    ) -> tuple[Sequence[str], Sequence[str | None] | None]:
        """The stamp of each record, and `Batch.own`.   Raises: Invalid."""
        if {*map(type, brought)} == {type(None)}:
            return self._stamps.after_each(self._scope, keys, times.common), None
        if all_in_utc(brought) and (newest := max(brought)) <= times.latest:
            stamps = stamp_texts(brought)
            return stamps, stamps if times.is_ahead(newest) else None
        each = [self._stamp(key, at, times, "") for key, at in zip(keys, brought, strict=True)]
        return [stamp for stamp, _ in each], [stamp if is_own else None for stamp, is_own in each]

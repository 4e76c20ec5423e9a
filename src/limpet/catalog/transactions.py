"""Several tables in one commit: all of it is published, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limpet.catalog.entries import overlapping
from limpet.catalog.leader import Decide, Grant
from limpet.catalog.names import check_name, check_namespace, shown
from limpet.catalog.refusals import NeedsMetadata
from limpet.catalog.state import State
from limpet.catalog.tables import Applied, Find, Prepared, applied, prepare
from limpet.catalog.warehouse import Warehouse
from limpet.errors import Invalid

__all__ = ["commit", "prepare_all"]

TABLES_MAX = 1000


def prepare_all(warehouse: Warehouse, changes: object) -> tuple[Prepared, ...]:
    """The changes that a client asks for, each of another table.   Raises: Invalid."""
    if not isinstance(changes, Sequence) or isinstance(changes, str) or not changes:
        raise Invalid("table-changes must be a list of at least one change")
    if len(changes) > TABLES_MAX:
        raise Invalid(f"a transaction changes at most {TABLES_MAX} tables, this one {len(changes)}")
    prepared = tuple(_prepare(warehouse, change) for change in changes)
    names = [(each.namespace, each.name) for each in prepared]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Invalid(f"the transaction names {shown(*twice)!r} twice", hint="put its updates into one change")
    return prepared


def _prepare(warehouse: Warehouse, change: Any) -> Prepared:
    identifier = change.get("identifier") if isinstance(change, Mapping) else None
    if not isinstance(identifier, Mapping):
        raise Invalid("each table change must name its table by an identifier")
    namespace = check_namespace(identifier.get("namespace") or ())
    return prepare(warehouse, namespace, check_name(identifier.get("name"), "table name"), change)


def commit(warehouse: Warehouse, prepared: Sequence[Prepared], in_memory: Find) -> Decide:
    """Change several tables, or create staged ones, at once."""

    def decide(state: State) -> Grant:
        done: list[Applied] = []
        needed: list[str] = []
        for each in prepared:
            try:
                done.append(applied(state, warehouse, each, in_memory))
            except NeedsMetadata as need:
                needed += need.paths
        if needed:
            raise NeedsMetadata(tuple(needed))
        clash = overlapping([each.reserved for each in done])
        if clash is not None:
            raise Invalid(f"the locations {clash[0]!r} and {clash[1]!r} of the transaction overlap")
        changes = tuple(change for each in done for change in each.changes)
        return Grant("transaction", changes, None, tuple(put for each in done for put in each.writes))

    return decide

"""Several tables in one commit: all of it is published, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from limpet.catalog.entries import overlapping
from limpet.catalog.iceberg import listed
from limpet.catalog.leader import Decide, Grant
from limpet.catalog.loaded import Ahead
from limpet.catalog.names import Namespace, check_name, check_namespace, shown
from limpet.catalog.refusals import NeedsMetadata
from limpet.catalog.state import State
from limpet.catalog.tables import Applied, Prepared, applied, prepare
from limpet.catalog.warehouse import Warehouse
from limpet.errors import Invalid

TABLES_MAX = 1000
UPDATES_MAX = 10_000


def prepare_all(warehouse: Warehouse, known: Callable[[], State], changes: object) -> tuple[Prepared, ...]:
    """The changes that a client asks for, each of another table.   Raises: Invalid."""
    if not isinstance(changes, Sequence) or isinstance(changes, str) or not changes:
        raise Invalid("table-changes must be a list of at least one change")
    if len(changes) > TABLES_MAX:
        raise Invalid(f"a transaction changes at most {TABLES_MAX} tables, this one {len(changes)}")
    named: dict[tuple[Namespace, str], Mapping[str, Any]] = {}
    updates = 0
    for change in changes:
        name = _name_of(change)
        if name in named:
            raise Invalid(f"the transaction names {shown(*name)!r} twice", hint="put its updates into one change")
        named[name] = change
        updates += len(listed(change, "updates", UPDATES_MAX))
    if updates > UPDATES_MAX:
        raise Invalid(f"the transaction has {updates} updates; at most {UPDATES_MAX} are taken at once")
    return tuple(prepare(warehouse, known, *name, change) for name, change in named.items())


def _name_of(change: Any) -> tuple[Namespace, str]:
    identifier = change.get("identifier") if isinstance(change, Mapping) else None
    if not isinstance(identifier, Mapping):
        raise Invalid("each table change must name its table by an identifier")
    namespace = check_namespace(identifier.get("namespace") or ())
    return namespace, check_name(identifier.get("name"), "table name")


def commit(warehouse: Warehouse, prepared: Sequence[Prepared], ahead: Ahead) -> Decide:
    """Change several tables, or create staged ones, at once."""

    def decide(state: State) -> Grant:
        done: list[Applied] = []
        needs: dict[str, Callable[[Any], Any]] = {}
        for each in prepared:
            try:
                done.append(applied(state, warehouse, each, ahead))
            except NeedsMetadata as need:
                needs |= need.needs
        if needs:
            raise NeedsMetadata(needs)
        clash = overlapping([each.reserved for each in done])
        if clash is not None:
            raise Invalid(f"the locations {clash[0]!r} and {clash[1]!r} of the transaction overlap")
        changes = tuple(change for each in done for change in each.changes)
        return Grant("transaction", changes, None, tuple(put for each in done for put in each.writes))

    return decide

"""Namespaces: decisions on the state. Each level of a nested one is a namespace of its own, with properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limpet import records
from limpet.catalog.entries import check_alike, check_namespace_exists, is_empty
from limpet.catalog.leader import Decide, Grant
from limpet.catalog.names import Namespace, key_of, shown
from limpet.catalog.records import Change
from limpet.catalog.refusals import AlreadyExists, NamespaceNotEmpty
from limpet.catalog.state import State
from limpet.catalog.warehouse import Warehouse, property_text
from limpet.errors import Invalid

PROPERTIES_BYTES_MAX = 64 << 10


def key(namespace: Namespace) -> str:
    """The key of a namespace in the state."""
    return key_of("n", namespace[:-1], namespace[-1])


def check_properties(warehouse: Warehouse, properties: object) -> dict[str, str]:
    """What a client wants to set, as text.   Raises: Invalid, also for a location outside the warehouse."""
    if not isinstance(properties, Mapping):
        raise Invalid("properties must be an object")
    warehouse.check_properties(properties)
    checked = {name: property_text(name, value) for name, value in properties.items()}
    if len(records.plain_bytes(checked, what="properties")) > PROPERTIES_BYTES_MAX:
        raise Invalid(f"the properties of a namespace have at most {PROPERTIES_BYTES_MAX} bytes")
    return checked


def properties_of(state: State, namespace: Namespace) -> dict[str, str]:
    """The properties of a namespace.   Raises: NoSuchNamespace."""
    check_namespace_exists(state, namespace)
    found: dict[str, str] = state.get(key(namespace))
    return found


def create(namespace: Namespace, properties: Mapping[str, str]) -> Decide:
    """Create a namespace; its parent is there already."""

    def decide(state: State) -> Grant:
        check_namespace_exists(state, namespace[:-1])
        if state.get(key(namespace)) is not None:
            raise AlreadyExists(f"Namespace already exists: {shown(namespace)}")
        check_alike(state, "n", namespace[:-1], namespace[-1])
        return Grant("create namespace", (Change(key(namespace), properties),))

    return decide


def drop(namespace: Namespace) -> Decide:
    """Drop a namespace that holds nothing."""

    def decide(state: State) -> Grant:
        check_namespace_exists(state, namespace)
        if not is_empty(state, namespace):
            raise NamespaceNotEmpty(f"Namespace is not empty: {shown(namespace)}")
        return Grant("drop namespace", (Change(key(namespace), None),))

    return decide


def update(namespace: Namespace, removals: Sequence[str], updates: Mapping[str, str]) -> Decide:
    """Set and remove properties. Its result says which were set, which removed, and which were not there."""

    def decide(state: State) -> Grant:
        old = properties_of(state, namespace)
        removed = [name for name in removals if name in old]
        new = {**{name: value for name, value in old.items() if name not in removals}, **updates}
        if len(records.encode(new)) > PROPERTIES_BYTES_MAX:
            raise Invalid(f"the properties of a namespace have at most {PROPERTIES_BYTES_MAX} bytes")
        missing = [name for name in removals if name not in old]
        result: dict[str, Any] = {"updated": [*updates], "removed": removed, "missing": missing}
        return Grant("set namespace properties", (Change(key(namespace), new),), result)

    return decide

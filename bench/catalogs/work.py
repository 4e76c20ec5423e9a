"""The work: which tables there are, who appends to which, and the requests as PyIceberg sends them.

A table has ten columns. An append adds a snapshot and moves `main` to it, on condition that `main` is where this client
left it. Its manifest list is a name and nothing else: no catalog opens it, and data files are no catalog's affair.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

__all__ = ["NAMESPACE", "OWN_TABLES", "Share", "append_body", "as_bytes", "create_body", "schema_json", "table"]

NAMESPACE = "bench"
OWN_TABLES = 10
"""To how many tables a client appends, in turn."""
FILE_UUID = "5b0a4a3e-7c1d-4c57-8a3e-0d7a2d9c1f11"
COLUMNS = ("long", "string", "string", "double", "boolean", "date", "timestamptz", "string", "int", "binary")


def table(number: int) -> str:
    """The name of a table that is there before the clock starts."""
    return f"t{number:06}"


def schema_json() -> dict[str, Any]:
    """The columns of every table."""
    fields = [
        {"id": i, "name": f"column_{i}", "type": kind, "required": False} for i, kind in enumerate(COLUMNS, start=1)
    ]
    return {"type": "struct", "fields": fields, "schema-id": 0, "identifier-field-ids": []}


def create_body(name: str) -> dict[str, Any]:
    """What PyIceberg's `create_table` sends."""
    return {
        "name": name,
        "location": None,
        "schema": schema_json(),
        "partition-spec": {"spec-id": 0, "fields": []},
        "write-order": {"order-id": 0, "fields": []},
        "stage-create": False,
        "properties": {},
    }


def append_body(name: str, nth: int, warehouse: str) -> dict[str, Any]:
    """What PyIceberg's `append` sends, the nth time to one table: snapshots are numbered from 1."""
    summary = {
        "operation": "append",
        "added-files-size": "10240",
        "added-data-files": "1",
        "added-records": "100",
        "total-data-files": str(nth),
        "total-delete-files": "0",
        "total-records": str(100 * nth),
        "total-files-size": str(10240 * nth),
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
    }
    snapshot = {
        "snapshot-id": nth,
        "sequence-number": nth,
        "timestamp-ms": time.time_ns() // 1_000_000,
        "manifest-list": f"{warehouse}/{NAMESPACE}/{name}/metadata/snap-{nth}-0-{FILE_UUID}.avro",
        "summary": summary,
        "schema-id": 0,
    }
    if nth > 1:
        snapshot["parent-snapshot-id"] = nth - 1
    return {
        "identifier": {"namespace": [NAMESPACE], "name": name},
        "requirements": [
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": nth - 1 if nth > 1 else None}
        ],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": nth},
        ],
    }


@dataclass(frozen=True, slots=True)
class Share:
    """What one client of many does."""

    client: int
    clients: int

    def creates(self) -> Iterator[str]:
        """Names of tables that nobody else makes."""
        number = 0
        while True:
            yield f"new{self.client:02}x{number:05}"
            number += 1

    def own(self) -> Sequence[str]:
        """The tables that only this client appends to."""
        return [table(self.client + self.clients * i) for i in range(OWN_TABLES)]

    def appends(self) -> Iterator[str]:
        """Its own tables, in turn, without end."""
        return cycle(self.own())


def as_bytes(body: dict[str, Any]) -> bytes:
    """A request's body on the wire."""
    return json.dumps(body, separators=(",", ":")).encode()

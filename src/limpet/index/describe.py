"""What other tools read: a Frictionless data package and a JSON Schema, both derived from the manifest."""

from __future__ import annotations

from typing import Any

from limpet import records
from limpet.index.decide import shard_ids
from limpet.index.manifest import Manifest
from limpet.index.schema import DELETED

__all__ = ["json_schema", "package"]


def package(name: str, manifest: Manifest) -> bytes:
    """`datapackage.json`: every shard is listed, since a path may not be a pattern."""
    fields = [_field(field.name, field.type) for field in manifest.fields]
    described: dict[str, Any] = {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": name,
        "resources": [
            {
                "name": "shards",
                "type": "table",
                "path": [f"shards/{shard}.usv" for shard in shard_ids(manifest.depth)],
                "format": "csv",
                "mediatype": "text/csv",
                "encoding": "utf-8",
                "dialect": {"header": False, "delimiter": "\x1f", "lineTerminator": "\n", "quoteChar": "\x1e"},
                "schema": {"fields": fields, "primaryKey": [manifest.key], "missingValues": ["\\N"]},
            }
        ],
    }
    return records.encode(described)


def _field(name: str, kind: str) -> dict[str, Any]:
    if name == DELETED:
        return {"name": name, "type": "boolean", "trueValues": ["1"], "falseValues": ["0"]}
    if kind == "datetime":
        return {"name": name, "type": kind, "format": "%Y-%m-%dT%H:%M:%S.%fZ"}
    return {"name": name, "type": kind}


_JSON_TYPES = {
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
}


def json_schema(name: str, manifest: Manifest) -> bytes:
    """`schema.json`: the columns for validators such as qsv, which read each field as text."""
    properties = {field.name: {"type": [_JSON_TYPES.get(field.type, "string"), "null"]} for field in manifest.fields}
    described = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "type": "object",
        "properties": properties,
        "required": [manifest.key],
    }
    return records.encode(described)

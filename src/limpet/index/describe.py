"""What other tools read: a Frictionless data package and a JSON Schema, both derived from the manifest.

Facts about the data package (v2), found out with frictionless 5.21:

- A path may not be a pattern, so every shard is listed. `format` must be csv: it does not know `.usv`.
- The default `quoteChar` eats quotes, and v2 wants one character: it is U+001E, which no line has.
- `skipInitialSpace` must be said, or it is guessed from the first lines, and spaces are eaten.
- Null is what `missingValues` says; `nullSequence` is ignored.
- The default format of a datetime gives aware ones; a pattern would give naive ones.
- After a column was added, it reports a `missing-cell` for each line of a shard that was not folded since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from limpet import records
from limpet.index.constraints import Constraints
from limpet.index.decide import shard_ids
from limpet.index.fields import DELETED, OUR_CONSTRAINTS, Field
from limpet.index.manifest import Manifest
from limpet.index.text import NULL, SEPARATOR, escape
from limpet.index.values import Kind


def package(name: str, manifest: Manifest) -> bytes:
    """`datapackage.json`. Its `version` is that of the schema, as is that of `schema.json`."""
    described: dict[str, Any] = {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": name,
        "version": str(manifest.schema_version),
        "resources": [
            {
                "name": "shards",
                "type": "table",
                "path": [f"shards/{shard}.usv" for shard in shard_ids(manifest.depth)],
                "format": "csv",
                "mediatype": "text/csv",
                "encoding": "utf-8",
                "dialect": {
                    "header": False,
                    "delimiter": SEPARATOR.decode(),
                    "lineTerminator": "\n",
                    "quoteChar": "\x1e",
                    "skipInitialSpace": False,
                },
                "schema": {
                    "fields": [_field(field) for field in manifest.fields],
                    "primaryKey": [manifest.key],
                    "missingValues": [NULL.decode()],
                },
            }
        ],
    }
    return records.encode(described)


def _field(field: Field) -> dict[str, Any]:
    described: dict[str, Any] = {"name": field.name, "type": field.type}
    if field.name == DELETED:
        return {**described, "trueValues": ["1"], "falseValues": ["0"]}
    limits = field.constraints or Constraints()
    ours = {"required": True} if field.required else {}
    ours |= msgspec.to_builtins(limits)
    stored = msgspec.to_builtins(_of_text(limits) if field.type == "string" else limits)
    return described | ({"constraints": stored} if stored else {}) | ({OUR_CONSTRAINTS: ours} if ours != stored else {})


def _of_text(limits: Constraints) -> Constraints:
    """What the stored text of a string meets: it has escapes, so it may be longer, and look otherwise.

    No column's text is `required`: a tombstone has nulls.
    """
    enum = tuple(escape(str(each)).decode() for each in limits.enum) if limits.enum else None
    return msgspec.structs.replace(limits, enum=enum, max_length=None, pattern=None)


_JSON_TYPES: Mapping[Kind, dict[str, str]] = {
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "datetime": {"type": "string", "format": "date-time"},
}


def json_schema(name: str, manifest: Manifest) -> bytes:
    """`schema.json`: one record of a CSV export, as `qsv validate` judges it.

    qsv makes each field the type that its column has here, an empty one null, and an empty string as well: so a column
    of strings takes null unless it is the key. What is JSON in a column is a string to it.
    """
    described = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "version": str(manifest.schema_version),
        "type": "object",
        "properties": {field.name: _property(field, key=manifest.key) for field in manifest.fields},
        "required": [manifest.key],
    }
    return records.encode(described)


def _property(field: Field, *, key: str) -> dict[str, Any]:
    described: dict[str, Any] = {**_JSON_TYPES.get(field.type, {"type": "string"})}
    if field.type in ("string", "integer", "number", "boolean"):
        described |= msgspec.to_builtins(field.constraints or Constraints())
    if "pattern" in described:
        described["pattern"] = f"^(?:{described['pattern']})$"
    if field.name == key or (field.required and field.type != "string"):
        return described
    if "enum" in described:
        described["enum"] = [*described["enum"], None]
    return {**described, "type": [described["type"], "null"]}

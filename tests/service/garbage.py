"""Requests that make sense, to be broken: every route of the Iceberg REST catalog, and bodies that they take.

They stand in garbage.json, a request a line. In braces: the location, the UUID and the metadata file of the table that
is there, and the UUID and the location of the view, which the test fills in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BODIES", "CREATE_TABLE", "CREATE_VIEW", "ROUTES", "Body"]


@dataclass(frozen=True, slots=True)
class Body:
    """A request with a body."""

    method: str
    path: str
    json: Any


_REQUESTS: dict[str, Any] = json.loads(Path(__file__).with_name("garbage.json").read_text(encoding="utf-8"))
ROUTES: list[str] = _REQUESTS["routes"]
CREATE_TABLE: dict[str, Any] = _REQUESTS["create_table"]
CREATE_VIEW: dict[str, Any] = _REQUESTS["create_view"]
BODIES = [Body(*body) for body in _REQUESTS["bodies"]]

"""Formats for import and export: `text` and `parquet`; `api` has their interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType

from limpet.index.formats.api import Chunk, ChunkLimits, Format, Mark
from limpet.index.formats.parquet import Parquet
from limpet.index.formats.text import Csv, Jsonl, StrictUsv, Usv
from limpet.kernel.errors import Invalid

__all__ = ["FORMATS", "STDIO", "Chunk", "ChunkLimits", "Mark", "name_of"]

STDIO = "-"

FORMATS: Mapping[str, Format] = MappingProxyType(
    {"csv": Csv(), "jsonl": Jsonl(), "parquet": Parquet(), "usv": Usv(), "strict-usv": StrictUsv()}
)

_ENDINGS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".usv": "usv"}


def name_of(file: str, named: str | None) -> str:
    """The name of a file's format: as `named`, else by its ending.   Raises: Invalid."""
    if named is not None:
        if named not in FORMATS:
            raise Invalid(f"there is no format {named!r}", hint=f"the formats are {', '.join(FORMATS)}")
        return named
    found = _ENDINGS.get(PurePath(file).suffix.lower())
    if found is None:
        what = "standard input and output have no format" if file == STDIO else f"the name {file} implies no format"
        raise Invalid(what, hint=f"give --format {'|'.join(FORMATS)}")
    return found

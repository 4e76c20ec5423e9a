"""PyIceberg's models, for what reads a table (scans, plans, maintenance), and for views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import pydantic
from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.view.metadata import ViewMetadata

from limpet.catalog.iceberg.schemas import VERSION, columns_of
from limpet.catalog.warehouse import Document
from limpet.kernel.errors import Corrupt, Invalid, Unsupported

# PyIceberg raises all of these for invalid input.
_REJECTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RecursionError,
            StopIteration, TypeError, ValidationError, ValueError)  # fmt: skip


def table_of(document: Document) -> TableMetadata:
    """The metadata of a table in the catalog; kept in the document.

    Raises: Corrupt; Unsupported for one of version 3 with types that PyIceberg does not know.
    """
    if document.model is None:
        try:
            document.model = TableMetadataUtil.parse_raw(document.data.decode())
        except _REJECTS as error:
            if document.json().get("format-version") == VERSION:
                raise Unsupported(
                    f"PyIceberg cannot read this table of format version 3: {_line(error)}",
                    hint="use Spark or DuckDB for it",
                ) from None
            raise Corrupt(f"the metadata is not valid: {_line(error)}") from None
    table: TableMetadata = document.model
    return table


def check_view(metadata: Mapping[str, Any]) -> None:
    """Check the metadata of a view.   Raises: Invalid."""
    schemas = metadata.get("schemas")
    if isinstance(schemas, list):
        metadata = {**metadata, "schemas": [_without_columns(schema) for schema in schemas]}
    try:
        ViewMetadata.model_validate(metadata)
    except _REJECTS as error:
        _refuse("the view", error)


def _without_columns(schema: Any) -> Any:
    """A schema that is valid in version 3, without its columns: PyIceberg lacks some types. Another one as it is."""
    try:
        columns_of(schema)
    except Invalid:
        return schema
    return {**schema, "fields": [], "identifier-field-ids": []}


def _refuse(what: str, error: Exception) -> NoReturn:
    raise Invalid(f"{what} is not valid: {_line(error)}") from None


def _line(error: BaseException) -> str:
    """The error as one short line with the field."""
    inner = error.__cause__ if isinstance(error.__cause__, pydantic.ValidationError) else error
    if isinstance(inner, pydantic.ValidationError):
        first = inner.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"{place}: {first['msg']}"[:300] if place else first["msg"][:300]
    if isinstance(error, StopIteration):
        return "it refers to a schema, a partition spec or a sort order that does not exist"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:300]} is missing" if isinstance(error, KeyError) else text[:300]

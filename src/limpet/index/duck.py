"""How DuckDB reads the lines of an index: pieces of SQL, and nothing that needs DuckDB.

Lines are read as text (`options`), and a select list gives each column its type and undoes the escapes (`select`):

    select {select(schema)} from read_csv('shards/*.usv', {options(schema)}) where "_deleted" = '0'

A datetime becomes `TIMESTAMPTZ`. DuckDB shows it in the session's time zone (`set timezone = 'UTC'`), and its Python
client needs the package pytz to fetch one as an object; Arrow does not.
"""

from __future__ import annotations

from limpet.index.fields import Field
from limpet.index.schema import LINE_BYTES_MAX, Schema
from limpet.index.text import ESCAPES
from limpet.index.values import Kind

_TYPES: dict[Kind, str] = {
    "integer": "BIGINT",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "datetime": "TIMESTAMPTZ",
    "object": "JSON",
    "array": "JSON",
    "any": "JSON",
}


def identifier(name: str) -> str:
    """A name as SQL, safely quoted."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as SQL, safely quoted."""
    return "'" + text.replace("'", "''") + "'"


def columns(schema: Schema) -> dict[str, str]:
    """The type of each column for `read_csv`, `_deleted` included: text, since escapes and types come after."""
    return {field.name: "VARCHAR" for field in schema.fields}


def options(schema: Schema) -> str:
    """The arguments of `read_csv` after the path.

    Nothing is guessed and there are no quotes. A line of an older schema gets nulls at its end (`null_padding`), and of
    one of a newer schema the columns that we do not know are left away (`strict_mode`).
    """
    types = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in columns(schema).items())
    return (
        r"delim=chr(31), quote='', escape='', nullstr='\N', header=false, auto_detect=false, new_line='\n', "
        f"null_padding=true, strict_mode=false, max_line_size={LINE_BYTES_MAX + 1}, columns={{{types}}}"
    )


def select(schema: Schema) -> str:
    """The select list over the columns of `read_csv`: typed, escapes undone, without `_deleted`.

    A value that is not of its column's type is an error of the query, never a null.
    """
    return ", ".join(f"{_value(field)} as {identifier(field.name)}" for field in schema.columns)


def _value(field: Field) -> str:
    column = identifier(field.name)
    if field.type == "string":
        return _unescaped(column)
    return f"cast({column} as {_TYPES[field.type]})"


def _unescaped(column: str) -> str:
    r"""Split at `\\`, undo the other escapes in the pieces, join with one backslash: so none is taken for another."""
    short, long = "piece", "piece"
    for char, escaped in ESCAPES.items():
        if char != "\\":
            long = _replaced(long, escaped, char)
        if len(escaped) == 2 and char != "\\":
            short = _replaced(short, escaped, char)
    piece = rf"case when contains(piece, '\x') then {long} when contains(piece, '\') then {short} else piece end"
    pieces = rf"list_transform(string_split({column}, '\\'), lambda piece: {piece})"
    return rf"case when contains({column}, '\') then array_to_string({pieces}, '\') else {column} end"


def _replaced(text: str, escaped: str, char: str) -> str:
    return f"replace({text}, {literal(escaped)}, chr({ord(char)}))"

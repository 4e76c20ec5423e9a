"""JSON lines: one object per line, strictly parsed. A missing field is null; dates and times are ISO strings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import IO, Any

import msgspec

from limpet import records
from limpet.errors import Invalid
from limpet.index.codec.lines import LINE_BYTES_MAX, Schema
from limpet.index.formats.api import (
    BOM,
    SAMPLE_ROWS,
    Columns,
    Decode,
    DecodeMany,
    Format,
    LineReader,
    Mark,
    Sample,
    Write,
    by_column,
    fields_of_json,
    from_json,
    from_texts,
    in_field,
    text_of,
)


def parsed(raw: str | bytes, *, what: str = "the record") -> dict[str, Any]:
    """One JSON object.   Raises: Invalid."""
    value = records.parse_json(raw, what=what, bytes_max=LINE_BYTES_MAX)
    if not isinstance(value, dict):
        raise Invalid(
            f"{what} is a JSON {'array' if isinstance(value, list) else 'value'}, and a record is a JSON object",
            hint='write {"field": value, ...}',
        )
    return value


def json_decoder(schema: Schema) -> Decode:
    """Decodes a JSON object into values by column. (Unknown names are refused when the record is written.)"""
    plan = {field.name: from_json(field.type) for field in schema.columns if field.type in ("date", "datetime")}

    def decode(values: dict[str, Any]) -> dict[str, Any]:
        for name, read in plan.items():
            if name in values:
                try:
                    values[name] = read(values[name])
                except Invalid as error:
                    raise in_field(name, error) from None
        return values

    return decode


_FLAT = msgspec.json.Decoder(dict[str, str | int | float | bool | None])
_NAME_END = re.compile(rb'"[ \t\r\n]*:')


class Jsonl(Format):
    """JSON lines."""

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        decode = json_decoder(schema)
        return lambda raw: decode(parsed(text_of(raw.removeprefix(BOM))))

    def bulk_decoder(self, names: tuple[str, ...] | None, schema: Schema) -> DecodeMany:
        """Fast for records without nested values. msgspec accepts duplicate names, so they are counted: there are at
        most as many names as quotes followed by a colon.
        """
        times = {field.name: from_texts(field.type) for field in schema.columns if field.type in ("date", "datetime")}

        def decode(raws: Sequence[bytes]) -> Columns | None:
            try:
                found = [*map(_FLAT.decode, raws)]
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
            if sum(map(len, found)) != len(_NAME_END.findall(b"".join(raws))):
                return None
            return {name: times[name](some) if name in times else some for name, some in by_column(found).items()}

        return decode

    def sample(self, stream: IO[bytes]) -> Sample:
        rows = []
        for number, raw in islice(LineReader(stream, Mark()).records(), SAMPLE_ROWS):
            rows.append(parsed(text_of(raw.removeprefix(BOM)), what=f"line {number}"))
        if not rows:
            raise Invalid("the file is empty, so its fields are not known")
        return Sample(fields_of_json(rows))

    @contextmanager
    def write(self, stream: IO[bytes], schema: Schema) -> Iterator[Write]:
        yield lambda lines: stream.write(b"".join([records.encode(schema.values(line)) + b"\n" for line in lines]))

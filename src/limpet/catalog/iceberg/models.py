"""Tables for PyIceberg, which scans, plans and rewrites them: their metadata, and files that are read by `fetch`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import BytesIO

import pydantic
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from limpet.catalog.iceberg.schemas import VERSION
from limpet.catalog.warehouse import DATA_BYTES_MAX, METADATA_BYTES_MAX, Document
from limpet.kernel.errors import Corrupt, Unsupported

# PyIceberg raises all of these for invalid input.
_REJECTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RecursionError,
            StopIteration, TypeError, ValidationError, ValueError)  # fmt: skip


def table_of(metadata: bytes) -> TableMetadata:
    """The metadata of a table in the catalog.

    Raises: Corrupt; Unsupported for one of version 3 with types that PyIceberg does not know.
    """
    try:
        return TableMetadataUtil.parse_raw(metadata.decode())
    except _REJECTS as error:
        if Document(metadata).json().get("format-version") == VERSION:
            raise Unsupported(
                f"PyIceberg cannot read this table of format version 3: {_line(error)}",
                hint="use Spark or DuckDB for it",
            ) from None
        raise Corrupt(f"the metadata is not valid: {_line(error)}") from None


def _line(error: BaseException) -> str:
    inner = error.__cause__ if isinstance(error.__cause__, pydantic.ValidationError) else error
    if isinstance(inner, pydantic.ValidationError):
        first = inner.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"{place}: {first['msg']}"[:300] if place else first["msg"][:300]
    if isinstance(error, StopIteration):
        return "it refers to a schema, a partition spec or a sort order that does not exist"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text[:300]} is missing" if isinstance(error, KeyError) else text[:300]


# ---- files ----

Fetch = Callable[[str, int], bytes]
"""The bytes of a file that a table names; the number is how many are read at most, whatever the file is called."""


class Input(InputFile):
    """A file to read."""

    def __init__(self, location: str, fetch: Fetch, size_max: int = METADATA_BYTES_MAX) -> None:
        super().__init__(location)
        self._fetch = partial(fetch, location, size_max)

    def __len__(self) -> int:
        return len(self._fetch())

    def exists(self) -> bool:
        """Always: only files of the table are opened."""
        return True

    def open(self, seekable: bool = True) -> InputStream:
        """Its bytes."""
        return BytesIO(self._fetch())


class Output(OutputFile):
    """A file to write; `data` has the bytes once it is closed."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.data = b""

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        """Its name is new."""
        return False

    def to_input_file(self) -> InputFile:
        """The same file, to read."""
        return Input(self.location, lambda *_: self.data)

    def create(self, overwrite: bool = False) -> OutputStream:
        """A stream into it."""
        return _Sink(self)


class _Sink(BytesIO):
    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def close(self) -> None:
        if not self.closed:
            self._output.data = self.getvalue()
        super().close()


class FetchedFiles(FileIO):
    """Files that are read whole, by `fetch`; nothing is written."""

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self._fetch = fetch

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return Input(location, self._fetch, DATA_BYTES_MAX)

    def new_output(self, location: str) -> OutputFile:
        """Raises: Unsupported."""
        raise Unsupported(f"{location} cannot be written: a query only reads")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Raises: Unsupported."""
        raise Unsupported(f"{location} cannot be deleted: a query only reads")

"""Files of PyIceberg's that are bytes in memory: it reads what somebody fetches, and we store what it writes."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

Fetch = Callable[[str], bytes]
"""The bytes of the file at a URL."""


class Input(InputFile):
    """A file to read."""

    def __init__(self, location: str, fetch: Fetch) -> None:
        super().__init__(location)
        self._fetch = fetch

    def __len__(self) -> int:
        return len(self._fetch(self.location))

    def exists(self) -> bool:
        """Whoever asks for a file here has been told of it."""
        return True

    def open(self, seekable: bool = True) -> InputStream:
        """Its bytes."""
        return BytesIO(self._fetch(self.location))


class Output(OutputFile):
    """A file to write; `data` is what was written, once it is closed."""

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
        return Input(self.location, lambda _: self.data)

    def create(self, overwrite: bool = False) -> OutputStream:
        """A stream into it."""
        return _Sink(self)


class Source(FileIO):
    """Files to read, by URL."""

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self._fetch = fetch

    def new_input(self, location: str) -> InputFile:
        """One of them."""
        return Input(location, self._fetch)

    def new_output(self, location: str) -> OutputFile:
        """A file that nobody stores but whoever asked for it."""
        return Output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Nothing: it is not ours."""


class _Sink(BytesIO):
    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def close(self) -> None:
        if not self.closed:
            self._output.data = self.getvalue()
        super().close()

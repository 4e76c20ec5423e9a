"""PyIceberg's own FileIO, counted, and as far away as our slow store: for the peers, which reach storage through it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

__all__ = ["DELAY", "FarFileIO", "requests"]

DELAY = "bench.delay-s"
"""The property that says for how long each request waits."""

_requests: Counter[str] = Counter()
_mutex = threading.Lock()


def requests() -> dict[str, int]:
    """What all files of this process were asked so far, by verb. An open is one GET, whatever is read."""
    with _mutex:
        return dict(_requests)


def _ask(verb: str, delay_s: float) -> None:
    with _mutex:
        _requests[verb] += 1
    if delay_s:
        time.sleep(delay_s)


class _FarFile(PyArrowFile):
    delay_s = 0.0

    def __len__(self) -> int:
        _ask("head", self.delay_s)
        return super().__len__()

    def exists(self) -> bool:
        _ask("head", self.delay_s)
        return super().exists()

    def open(self, seekable: bool = True) -> Any:
        _ask("get", self.delay_s)
        return super().open(seekable)

    def create(self, overwrite: bool = False) -> Any:
        made = super().create(overwrite)
        _ask("put", self.delay_s)
        return made


class FarFileIO(PyArrowFileIO):
    """`py-io-impl` of the peers."""

    def new_input(self, location: str) -> PyArrowFile:
        return self._far(super().new_input(location))

    def new_output(self, location: str) -> PyArrowFile:
        return self._far(super().new_output(location))

    def delete(self, location: Any) -> None:
        _ask("delete", float(self.properties.get(DELAY, "0")))
        super().delete(location)

    def _far(self, file: PyArrowFile) -> PyArrowFile:
        far = _FarFile(file.location, file._path, file._filesystem, file._buffer_size)
        far.delay_s = float(self.properties.get(DELAY, "0"))
        return far

"""The claim that there was nothing to take."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from limpet.queue.api import Task


class EmptyClaim:
    """Falsy, without tasks; what is not there cannot be lost."""

    token = 0
    lost = False

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Task]:
        return iter(())

    def __enter__(self) -> EmptyClaim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return None

    def hand_back(self) -> None:
        pass

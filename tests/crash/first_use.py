"""Many threads decode a type that nobody decoded before, again and again. It ends, or the process is gone."""

from __future__ import annotations

import sys
from threading import Barrier, Thread
from typing import Any

import msgspec

from limpet.kernel import records

__all__ = ["main"]

THREADS, ROUNDS = 8, 200
DATA = b'{"inner":[{"x":{"a":1,"b":"x","c":[1,2]},"y":{"q":{"a":2,"b":"y"}}}],"one":{"a":1,"b":"z"}}'


def _new_type() -> type[Any]:
    """A struct of structs, with classes of its own each time."""
    low = msgspec.defstruct("Low", [("a", int), ("b", str), ("c", tuple[int, ...], ())])
    mid = msgspec.defstruct("Mid", [("x", low), ("y", dict[str, low])])  # type: ignore[valid-type]
    return msgspec.defstruct("Top", [("inner", tuple[mid, ...]), ("one", low)])  # type: ignore[valid-type]


def main() -> None:
    """The rounds, with threads that take turns as often as they can."""
    sys.setswitchinterval(1e-6)
    for _ in range(ROUNDS):
        kind, begin = _new_type(), Barrier(THREADS)

        def decode(kind: type[Any] = kind, begin: Barrier = begin) -> None:
            begin.wait()
            records.decode(DATA, kind, what="it")

        threads = [Thread(target=decode) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print("done")


if __name__ == "__main__":
    main()

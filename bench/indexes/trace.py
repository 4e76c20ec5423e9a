"""What lookups ask of the file system, counted by strace between two marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["BEGIN", "CALLS", "END", "Traced", "counted"]

BEGIN, END = "/limpet-bench-begin", "/limpet-bench-end"
CALLS = "open,openat,read,pread64,readv,preadv,preadv2,getdents64,mmap,stat,newfstatat,statx"
"""The stat calls are for the marks."""

_CALL = re.compile(r"^(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)$")
_RESULT = re.compile(r"\) += (-?\d+|0x[0-9a-f]+)")
_MAPPED = re.compile(r"^\w+, (\d+), ")


@dataclass(slots=True)
class Traced:
    """Calls on files below the index's folder. Of maps only the size is known, not what is read of them."""

    opened: int = 0
    listed: int = 0
    reads: int = 0
    read_bytes: int = 0
    mapped_bytes: int = 0


def counted(lines: Iterable[str], folder: str) -> Traced:
    """The calls on files below `folder` between the marks, from the output of `strace -f -y`."""
    traced = Traced()
    for call, arguments, result in _between(lines):
        if folder not in arguments or result < 0:
            continue
        if call in ("open", "openat"):
            traced.opened += 1
        elif call == "getdents64":
            traced.listed += result > 0
        elif call == "mmap":
            size = _MAPPED.match(arguments)
            traced.mapped_bytes += int(size[1]) if size else 0
        elif call not in ("stat", "newfstatat", "statx"):
            traced.reads += 1
            traced.read_bytes += result
    return traced


def _between(lines: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Each call that ended between the marks: its name, its arguments, what it returned."""
    inside = False
    begun: dict[str, str] = {}
    for line in lines:
        if BEGIN in line:
            inside = True
        elif END in line:
            return
        found = _CALL.match(line)
        if not found:
            continue
        process, resumed, called, rest = found.groups()
        if rest.endswith("<unfinished ...>"):
            begun[process] = rest
            continue
        arguments = begun.pop(process, "") + rest if resumed else rest
        result = _RESULT.search(rest)
        if inside and result:
            yield resumed or called, arguments, int(result[1], 0)

"""Key order from stores that list folder by folder, and places to start a sample.

S3 lists in the byte order of whole keys: `a-b/x`, `a.json`, `a/x`. A store that keeps real folders (SeaweedFS, Azure
with a hierarchical namespace) walks them instead: `a/x`, `a-b/x`, `a.json`, because there the folder is named `a`, not
`a/`. It also reads "start after `a`" as "skip the folder `a`". `in_key_order` gives the S3 order on both kinds.

It is a best-first search. Every listing that is not read to its end has a lower bound of the keys that it may still
give, and the smallest bound is looked at next. Only `/` sorts differently on the two kinds, so a bound is always the
last name seen, in the folder where the names differ. (Python orders text by code points, which is UTF-8's byte order.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter

from limpet.store.api import Stat

PAGE = 1000

Pages = Callable[[str, str | None], Iterator[Sequence[Stat]]]
"""`pages(folder, after)`: the objects below a folder, in either order, a page at a time; the last one is not full."""

_LAST = "\U0010ffff"
_DIGITS = 16
_CARRY = 4

_key = attrgetter("key")


@dataclass(frozen=True, slots=True)
class _Rest:
    """The unread rest of a listing; only what lies below `folder` counts."""

    folder: str
    pages: Iterator[Sequence[Stat]]


def in_key_order(pages: Pages, prefix: str, after: str | None, *, full: int = PAGE) -> Iterator[Stat]:
    """The objects below `prefix` behind the key `after`, in byte order, lazily; `full` is the size of a page.

    Cost: 1 LIST per page, 1 more for each folder that spans pages. With `after`: 1 more per level of it, and per
    character of it that sorts before `/`. Holds one page per level in memory.
    """
    order = count()
    todo: list[tuple[str, int, Stat | _Rest]] = []
    for bound, rest in _openings(pages, prefix, after):
        heappush(todo, (bound, next(order), rest))
    last = after or ""
    while todo:
        bound, _, found = heappop(todo)
        if isinstance(found, Stat):
            if bound > last:
                last = bound
                yield found
            continue
        page = next(found.pages, ())
        inside = _inside(found.folder)
        below = [stat for stat in page if stat.key.startswith(inside)]
        if len(page) == full == len(below):
            for bound, rest in _unread(pages, found, below):
                heappush(todo, (bound, next(order), rest))
        for stat in sorted(below, key=_key):
            # Most often nothing else is due before it, and the heap is not needed.
            if todo and stat.key >= todo[0][0]:
                heappush(todo, (stat.key, next(order), stat))
            elif stat.key > last:
                last = stat.key
                yield stat


def _unread(pages: Pages, rest: _Rest, page: Sequence[Stat]) -> Iterator[tuple[str, _Rest]]:
    """What may follow a full page.

    A folder that holds the whole page is read on by itself, so that nothing in it waits for its end; what follows it
    in the folders above is listed apart.
    """
    folder = rest.folder
    first, last = ([*stat.key[len(_inside(folder)) :].split("/")] for stat in (page[0], page[-1]))
    while len(first) > 1 and len(last) > 1 and first[0] == last[0]:
        name = _inside(folder) + first[0]
        yield _bound(name), _Rest(folder, _behind_folder(pages, folder, name))
        folder, first, last = name, first[1:], last[1:]
    yield _bound(_inside(folder) + last[0]), _Rest(folder, rest.pages)


def _openings(pages: Pages, prefix: str, after: str | None) -> Iterator[tuple[str, _Rest]]:
    """Listings that together hold every key below `prefix` behind `after`."""
    start = _inside(prefix)
    if after is None or (not after.startswith(start) and after < start):
        yield start, _Rest(prefix, pages(prefix, None))
        return
    if not after.startswith(start):
        return
    folder = prefix
    *parents, leaf = after[len(start) :].split("/")
    for name in parents:
        yield from _shorter(pages, folder, name)
        inner = _inside(folder) + name
        yield after, _Rest(folder, _behind_folder(pages, folder, inner))
        folder = inner
    yield from _shorter(pages, folder, leaf)
    yield after, _Rest(folder, pages(folder, after))
    yield _inside(after), _Rest(after, pages(after, None))


def _shorter(pages: Pages, folder: str, name: str) -> Iterator[tuple[str, _Rest]]:
    """Folders that a walk passes before `name` though their keys sort behind it: `a/` for `a-b`."""
    for i, char in enumerate(name):
        short = name[:i]
        if char < "/" and short not in ("", ".", ".."):
            inner = _inside(folder) + short
            yield _inside(inner), _Rest(inner, pages(inner, None))


def _behind_folder(pages: Pages, folder: str, name: str) -> Iterator[Sequence[Stat]]:
    return pages(folder, f"{name}/{_LAST}")


def _inside(folder: str) -> str:
    return folder + "/" if folder else ""


def _bound(name: str) -> str:
    """Below every key that starts with `name` and goes on; a space is the lowest character that a key may hold."""
    return name + " "


def place(keys: Sequence[str], share: float) -> str:
    """A text that lies `share` of the way from the first key to the last, or beyond it for a share above 1.

    Keys are read as numbers whose digits are the characters that occur in them, from a little before where they differ.
    """
    low, high = keys[0], keys[-1]
    differ = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    same = max(low.rfind("/", 0, differ) + 1, differ - _CARRY)
    digits = sorted({char for key in keys for char in key[same : same + _DIGITS]} - {"/", "."}) or ["0"]
    start, end = (_number(key[same:], digits) for key in (low, high))
    there = min(int(start + (end - start) * share), len(digits) ** _DIGITS - 1)
    text = ""
    for _ in range(_DIGITS):
        there, digit = divmod(there, len(digits))
        text = digits[digit] + text
    return low[:same] + text


def _number(text: str, digits: Sequence[str]) -> int:
    value = 0
    for char in text[:_DIGITS].ljust(_DIGITS, digits[0]):
        value = value * len(digits) + min(bisect_left(digits, char), len(digits) - 1)
    return value

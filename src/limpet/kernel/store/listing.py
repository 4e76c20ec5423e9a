"""Key order from servers that list folder by folder, and places to start a sample.

S3 lists in the byte order of whole keys: `a-b/x`, `a.json`, `a/x`. A server with real folders (SeaweedFS, Azure with
a hierarchical namespace) lists folder by folder: `a/x`, `a-b/x`, `a.json`, because there the folder is named `a` and
not `a/`. It also reads "start after `a`" as "skip the folder `a`". `in_key_order` restores S3's order for both kinds.

It is a best-first search. Every listing that has unread pages has a lower bound of the keys that are still to come,
and the listing with the smallest bound is read next. The two orders differ only in how `/` sorts, so a bound is
always the last name seen in the folder where the names differ. (Python orders text by code points, which is the byte
order of UTF-8.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter

from limpet.kernel.store.api import Stat

_key = attrgetter("key")
_LAST = "\U0010ffff"
_DIGITS = 16
"""How many characters of a key `key_between` reads as digits."""
_CARRY = 4
"""How many characters before the first difference may change when a digit overflows."""


@dataclass(frozen=True, slots=True)
class ListedPage:
    """A page of a listing. `more`: whether others may follow; a page with few objects need not be the last."""

    objects: Sequence[Stat]
    more: bool


Pages = Callable[[str, str | None], Iterator[ListedPage]]
"""`pages(folder, after)`: the objects below a folder, in either order, a page at a time."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """The unread pages of a listing, of which only the objects below `folder` are used."""

    folder: str
    pages: Iterator[ListedPage]


def in_key_order(pages: Pages, prefix: str, after: str | None) -> Iterator[Stat]:
    """The objects below `prefix` with keys greater than `after`, in byte order, lazily.

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
        page = next((page for page in found.pages if page.objects), None)
        if page is None:
            continue
        begin = inside(found.folder)
        below = [stat for stat in page.objects if stat.key.startswith(begin)]
        if page.more and len(below) == len(page.objects):
            for bound, rest in _unread(pages, found, below):
                heappush(todo, (bound, next(order), rest))
        for stat in sorted(below, key=_key):
            # Usually no other listing has a smaller key, and the heap is not needed.
            if todo and stat.key >= todo[0][0]:
                heappush(todo, (stat.key, next(order), stat))
            elif stat.key > last:
                last = stat.key
                yield stat


def _unread(pages: Pages, rest: _Rest, page: Sequence[Stat]) -> Iterator[tuple[str, _Rest]]:
    """The listings that continue after a full page.

    If all objects of the page are in one folder, that folder is read on by its own listing, so that its objects can be
    returned before it ends; the names after it in the folders above are another listing.
    """
    folder = rest.folder
    first, last = ([*stat.key[len(inside(folder)) :].split("/")] for stat in (page[0], page[-1]))
    while len(first) > 1 and len(last) > 1 and first[0] == last[0]:
        name = inside(folder) + first[0]
        yield _bound(name), _Rest(folder, _behind_folder(pages, folder, name))
        folder, first, last = name, first[1:], last[1:]
    yield _bound(inside(folder) + last[0]), _Rest(folder, rest.pages)


def _openings(pages: Pages, prefix: str, after: str | None) -> Iterator[tuple[str, _Rest]]:
    """Listings that together contain every key below `prefix` that is greater than `after`."""
    start = inside(prefix)
    if after is None or (not after.startswith(start) and after < start):
        yield start, _Rest(prefix, pages(prefix, None))
        return
    if not after.startswith(start):
        return
    folder = prefix
    *parents, leaf = after[len(start) :].split("/")
    for name in parents:
        yield from _shorter(pages, folder, name)
        inner = inside(folder) + name
        yield after, _Rest(folder, _behind_folder(pages, folder, inner))
        folder = inner
    yield from _shorter(pages, folder, leaf)
    yield after, _Rest(folder, pages(folder, after))
    yield inside(after), _Rest(after, pages(after, None))


def _shorter(pages: Pages, folder: str, name: str) -> Iterator[tuple[str, _Rest]]:
    """Folders that the server lists before `name` although their keys are greater: `a/` for `a-b`."""
    for i, char in enumerate(name):
        short = name[:i]
        if char < "/" and short not in ("", ".", ".."):
            inner = inside(folder) + short
            yield inside(inner), _Rest(inner, pages(inner, None))


def _behind_folder(pages: Pages, folder: str, name: str) -> Iterator[ListedPage]:
    return pages(folder, f"{name}/{_LAST}")


def inside(folder: str) -> str:
    """How the keys in a folder begin."""
    return folder + "/" if folder else ""


def _bound(name: str) -> str:
    """A lower bound of the longer keys that start with `name`: a space is the lowest character that a key may have."""
    return name + " "


def key_between(keys: Sequence[str], share: float) -> str:
    """A text at the fraction `share` of the way from the first key to the last; beyond the last if `share` exceeds 1.

    Keys are read as numbers whose digits are the characters that occur in them, from shortly before the first
    difference.
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

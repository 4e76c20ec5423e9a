"""A store in this process's memory: the reference model for the other stores, and the store for users' tests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from limpet.kernel.errors import Invalid, Missing
from limpet.kernel.keys import Key, check, check_prefix
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store.api import Always, Blob, Stat, Store, Version, When, check_put, check_read, check_size
from limpet.kernel.wording import many


class MemoryStore(Store):
    """Objects in a dict. Threads may share it; it ends with the process."""

    at_once = 1
    conflict_is_final = True

    def __init__(self, runtime: Runtime | None = None) -> None:
        super().__init__(runtime or system())
        self._objects: dict[Key, Blob] = {}
        self._mutex = self._runtime.mutex()
        self._written = 0

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        entry = self._find(key)
        check_read(key, entry.version, if_match, if_none_match)
        if range is None:
            check_size(key, entry.size, size_max)
            return entry
        return Blob(entry.data[clip(key, range, entry.size)], entry.version, entry.modified, entry.size)

    def head(self, key: Key) -> Stat:
        entry = self._find(key)
        return Stat(key, entry.size, entry.version, entry.modified)

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        check(key)
        with self._mutex:
            found = self._objects.get(key)
            check_put(key, found.version if found else None, when)
            self._written += 1
            version = Version(f"m{self._written}")
            entry = self._objects[key] = Blob(bytes(data), version, self._runtime.wall(), len(data))
        self._clock.observe(entry.modified)
        return version

    def delete(self, key: Key) -> None:
        with self._mutex:
            self._written += 1
            self._objects.pop(check(key), None)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        keys = self._below(prefix)
        return self._stats(keys[bisect_right(keys, after) if after else 0 :])

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        keys = self._below(prefix)
        if len(keys) > n:
            at = self._runtime.rng.randrange(len(keys))
            keys = [*keys[at : at + n], *keys[: max(0, at + n - len(keys))]]
        found = [*self._stats(keys)]
        self._runtime.rng.shuffle(found)
        return found

    def _stats(self, keys: Sequence[Key]) -> Iterator[Stat]:
        for key in keys:
            entry = self._objects.get(key)
            if entry is not None:
                yield Stat(key, entry.size, entry.version, entry.modified)

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        skip = len(check_prefix(prefix)) + 1 if prefix else 0
        return sorted({name for key in self._below(prefix) for name, slash, _ in [key[skip:].partition("/")] if slash})

    def change_token(self, prefix: str) -> str | None:
        """See `Store.change_token`: the number of writes and deletes so far."""
        return str(self._written)

    def _below(self, prefix: str) -> Sequence[Key]:
        """The keys below a prefix, sorted. Code points sort as their UTF-8 bytes do."""
        head = check_prefix(prefix) + "/" if prefix else ""
        with self._mutex:
            return sorted(key for key in self._objects if key.startswith(head))

    def _find(self, key: Key) -> Blob:
        entry = self._objects.get(check(key))
        if entry is None:
            raise Missing(f"there is no object {key}")
        self._clock.observe(entry.modified)
        return entry


def clip(key: Key, range: tuple[int, int], size: int) -> slice:
    """`range` cut to an object of `size` bytes.   Raises: Invalid for one that is empty or starts past the end."""
    start, stop = range
    if not 0 <= start < stop:
        raise Invalid(f"the range {start}..{stop} of {key} is not a range", hint="give 0 <= start < stop")
    if start >= size:
        raise Invalid(f"the range {start}..{stop} starts past the end of {key}, which has {many(size, 'byte')}")
    return slice(start, min(stop, size))

"""SlateDB, an LSM tree in an object store, here in a folder: batches of writes, made durable at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from bench.indexes.api import Index, Options, Place, needs
from bench.indexes.records import Fields, Months

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {"slatedb.uniffi": "slatedb"}
BATCH = 10_000
PAGE = 10_000

T = TypeVar("T")


def connect(place: Place, options: Options) -> Index:
    """There are no options."""
    return _Slate(place)


class _Slate(Index):
    def __init__(self, place: Place) -> None:
        self._api = needs("slatedb.uniffi", "slatedb")
        self._loop = asyncio.new_event_loop()
        self._store = self._api.ObjectStore.resolve("file:///")
        self._path = str(place.folder / "slate").lstrip("/")
        self._writer: Any = None
        self._reader: Any = None
        if not place.fresh:
            self._reader = self._run(self._api.DbReaderBuilder(self._path, self._store).build())

    def prepare(self, records: Sequence[Fields]) -> Any:
        return [
            (domain.encode(), f"{company}\x1f{version}\x1f{at.isoformat()}".encode())
            for domain, company, version, at in records
        ]

    def load(self, prepared: Any) -> None:
        self._run(self._write(prepared))

    def upsert(self, prepared: Any) -> None:
        self._run(self._write(prepared))

    def settle(self) -> None:
        memory = self._api.FlushOptions(flush_type=self._api.FlushType.MEM_TABLE)
        self._run(self._writer.flush_with_options(memory))

    def lookup(self, key: str) -> Fields | None:
        found = self._run(self._reader.get(key.encode()))
        return _fields(key, found) if found is not None else None

    def scans(self) -> Mapping[str, Callable[[], Months]]:
        return {"scan": lambda: self._run(self._scan())}

    def close(self) -> None:
        for each in (self._writer, self._reader):
            if each is not None:
                self._run(each.shutdown())
        self._loop.close()

    async def _write(self, prepared: Any) -> None:
        if self._writer is None:
            self._writer = await self._api.DbBuilder(self._path, self._store).build()
        last: Any = None
        for start in range(0, len(prepared), BATCH):
            batch = self._api.WriteBatch()
            for key, value in prepared[start : start + BATCH]:
                batch.put(key, value)
            last = await self._writer.write(batch)
        await last.await_durable()

    async def _scan(self) -> Months:
        everything = self._api.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=True)
        found: dict[str, tuple[int, int]] = {}
        rows = await self._reader.scan(everything)
        while page := await rows.next_batch(PAGE):
            for row in page:
                _, version, at = row.value.decode().split("\x1f")
                count, total = found.get(at[:7], (0, 0))
                found[at[:7]] = (count + 1, total + int(version))
        return found

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def _fields(key: str, value: bytes) -> Fields:
    company, version, at = value.decode().split("\x1f")
    return key, company, int(version), datetime.fromisoformat(at)

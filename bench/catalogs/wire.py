"""A catalog behind HTTP, by bare sockets that are kept open: what PyIceberg sends, without PyIceberg's own work.

Bodies are made before the clock starts where that can be; an answer is read whole and only its status is looked at.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.catalogs.api import Catalog, Driven, Place, together
from bench.catalogs.work import NAMESPACE, Share, append_body, as_bytes, create_body, table

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {}
FILLERS = 64
TABLES = f"/v1/namespaces/{NAMESPACE}/tables"
MARK = "TABLE-NAME"

Call = tuple[str, bytes]


def connect(place: Place) -> Catalog:
    """`place.server` answers already."""
    return _Wire(place)


class _Wire(Catalog):
    def __init__(self, place: Place) -> None:
        self._place = place
        self._warehouse = f"{place.url}/warehouse"

    def fill(self, tables: int) -> None:
        """Through the front door, many at once."""
        asyncio.run(self._fill(tables))

    async def _fill(self, tables: int) -> None:
        first = await self._open()
        await first.must("POST", "/v1/namespaces", as_bytes({"namespace": [NAMESPACE]}))
        first.close()

        async def some(start: int) -> None:
            connection = await self._open()
            for number in range(start, tables, FILLERS):
                await connection.must("POST", TABLES, _create(table(number)))
            connection.close()

        await asyncio.gather(*(some(start) for start in range(min(tables, FILLERS))))

    def drive(self, verb: str, shares: Sequence[Share], seconds: float) -> Driven:
        """See `Catalog.drive`. Clients are coroutines of one thread, each with a connection of its own."""
        return asyncio.run(self._drive(verb, shares, seconds))

    async def _drive(self, verb: str, shares: Sequence[Share], seconds: float) -> Driven:
        connections = [await self._open() for _ in shares]
        begun_s = time.perf_counter()
        work = (
            _work(connection, _creates(share) if verb == "create" else self._appends(share), begun_s + seconds)
            for connection, share in zip(connections, shares, strict=True)
        )
        done = await asyncio.gather(*work)
        took_s = time.perf_counter() - begun_s
        for connection in connections:
            connection.close()
        return together(done, took_s)

    def _appends(self, share: Share) -> Iterator[Call]:
        nth = dict.fromkeys(share.own(), 0)
        for name in share.appends():
            nth[name] += 1
            yield f"{TABLES}/{name}", as_bytes(append_body(name, nth[name], self._warehouse))

    def spent(self) -> Mapping[str, float]:
        """Nothing: the server counts."""
        return {}

    def count(self) -> int:
        return asyncio.run(self._count())

    async def _count(self) -> int:
        connection = await self._open()
        found = await connection.must("GET", TABLES)
        connection.close()
        return len(found["identifiers"])

    def snapshots(self, names: Sequence[str]) -> int:
        return asyncio.run(self._snapshots(names))

    async def _snapshots(self, names: Sequence[str]) -> int:
        async def some(mine: Sequence[str]) -> int:
            connection = await self._open()
            found = [await connection.must("GET", f"{TABLES}/{name}") for name in mine]
            connection.close()
            return sum(max(0, each["metadata"].get("current-snapshot-id") or 0) for each in found)

        return sum(await asyncio.gather(*(some(names[i::FILLERS]) for i in range(FILLERS))))

    async def _open(self) -> _Connection:
        host, _, port = self._place.server.partition(":")
        return _Connection(*await asyncio.open_connection(host, int(port)), self._place.server)


class _Connection:
    """One connection, kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return int(answer[9:12]), await self._reader.readexactly(int(length or b"0"))

    async def must(self, method: str, path: str, body: bytes = b"") -> Any:
        """The body of an answer that says yes."""
        status, data = await self.ask(method, path, body)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {data[:200]!r}")
        return json.loads(data) if data else None

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


async def _work(connection: _Connection, calls: Iterator[Call], until_s: float) -> Driven:
    done = Driven()
    while (begun_s := time.perf_counter()) < until_s:
        status, data = await connection.ask("POST", *next(calls))
        if status >= 300:
            done.fail(f"{status} {data[:150].decode(errors='replace')}")
            continue
        done.acknowledged += 1
        done.seconds.append(time.perf_counter() - begun_s)
    return done


def _creates(share: Share) -> Iterator[Call]:
    return ((TABLES, _create(name)) for name in share.creates())


_template = as_bytes(create_body(MARK))


def _create(name: str) -> bytes:
    return _template.replace(MARK.encode(), name.encode())

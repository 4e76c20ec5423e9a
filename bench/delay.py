"""A TCP proxy that puts a server far away: each byte that a client sends arrives `delay_s` later.

Requests on different connections wait side by side, as on a real network.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["delayed"]

CHUNK = 1 << 16


@contextmanager
def delayed(host: str, port: int, delay_s: float) -> Iterator[int]:
    """A proxy in front of a server; yields its port on 127.0.0.1."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="delay", daemon=True)
    thread.start()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        with suppress(asyncio.CancelledError):  # the end of the proxy; asyncio would print it
            await asyncio.gather(_pass_on(reader, far_writer, delay_s), _pass_on(far_reader, writer, 0.0))

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(connected, "127.0.0.1", 0)

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    connections = asyncio.all_tasks() - {asyncio.current_task()}
    for each in connections:
        each.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Copy one direction. What was read is written `delay_s` later, in order, while more is read."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        while True:
            due_s, data = await waiting.get()
            await asyncio.sleep(due_s - loop.time())
            if not data:
                return
            writer.write(data)
            await writer.drain()

    writing = asyncio.ensure_future(write())
    try:
        while data := await reader.read(CHUNK):
            waiting.put_nowait((loop.time() + delay_s, data))
    except OSError:
        pass
    waiting.put_nowait((loop.time() + delay_s, b""))
    try:
        await writing
    except OSError:
        writing.cancel()
    finally:
        writer.close()

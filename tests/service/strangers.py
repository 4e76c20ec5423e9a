"""A crowd of hostile clients without a token, as a process: `python strangers.py PORT COUNT SECONDS [tls]`.

Each connection plays one of `PLAYS` again and again until the time is over, then the process says how often as JSON.
Half of them come from 127.0.0.1, as honest clients do; the others from other addresses of this machine.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count

__all__ = ["PLAYS"]

HOST = b"host: localhost\r\n"
WRONG = b"authorization: Bearer wrong-wrong-wrong-wrong\r\n"
CHUNKED = b"transfer-encoding: chunked\r\ncontent-type: application/json\r\n"
OPEN, GUARDED = b"POST /v1/oauth/tokens HTTP/1.1\r\n", b"POST /v1/namespaces HTTP/1.1\r\n"
HEALTH, READY = b"GET /healthz HTTP/1.1\r\n", b"GET /readyz HTTP/1.1\r\n"
BLOCK = b"x" * 65536
PAUSE_S = 0.05

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _send(writer: asyncio.StreamWriter, *parts: bytes) -> None:
    for part in parts:
        writer.write(part)
        await writer.drain()


async def _for_ever(writer: asyncio.StreamWriter, block: bytes) -> None:
    while True:
        await _send(writer, block)
        await asyncio.sleep(0)


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Connects, and waits."""
    await reader.read()


async def half_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends half of a request."""
    await _send(writer, GUARDED + HOST + b"x: y")
    await reader.read()


async def slow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a header a byte at a time."""
    await _send(writer, HEALTH + HOST + b"x: ")
    while True:
        await _send(writer, b"y")
        await asyncio.sleep(0.2)


async def huge_head(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a header without end, just below the limit of what is taken first."""
    await _send(writer, HEALTH + HOST + b"x: ", b"y" * 60_000)
    await asyncio.sleep(1)
    await _for_ever(writer, BLOCK)


async def many_headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends tiny headers, each an object in the server's memory."""
    await _send(writer, HEALTH)
    await _for_ever(writer, b"a: b\r\n" * 1000)


async def huge_body_on_an_open_route(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a body as announced, to a route that asks for no token."""
    await _send(writer, OPEN + HOST + b"content-length: 60000000\r\n\r\n")
    await _for_ever(writer, BLOCK)


async def huge_body_on_health(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The same, in chunks."""
    await _send(writer, READY + HOST + CHUNKED + b"\r\n")
    await _for_ever(writer, b"10000\r\n" + BLOCK + b"\r\n")


async def huge_body_without_a_token(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a body as announced, to a route that asks for a token."""
    await _send(writer, GUARDED + HOST + WRONG + b"content-length: 16000000\r\n\r\n")
    await _for_ever(writer, BLOCK)


async def trailers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends trailers without end."""
    await _send(writer, OPEN + HOST + CHUNKED + b"\r\n1\r\n{\r\n0\r\n")
    await _for_ever(writer, (b"x: " + b"y" * 100 + b"\r\n") * 600)


async def one_trailer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends one trailer without end, to a route that asks for a token."""
    await _send(writer, GUARDED + HOST + CHUNKED + b"\r\n1\r\n{\r\n0\r\nauthorization: Bearer ")
    await _for_ever(writer, BLOCK)


async def extension(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends an extension of a chunk without end."""
    await _send(writer, HEALTH + HOST + CHUNKED + b"\r\n5;")
    await _for_ever(writer, BLOCK)


async def pipeline(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends requests without end, and reads no answer."""
    await _for_ever(writer, (HEALTH + b"\r\n") * 3000)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Asks as fast as it is answered."""
    while True:
        await _send(writer, READY + HOST + b"\r\n")
        await reader.readuntil(b"}")


async def wrong_token(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Guesses."""
    await _send(writer, b"GET /v1/namespaces HTTP/1.1\r\n" + HOST + WRONG + b"\r\n")
    await reader.read()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends what is no HTTP."""
    await _send(writer, b"\x16\x03\x01\x02\x00" * 100)
    await reader.read()


async def blank_lines(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends what may come before a request."""
    await _for_ever(writer, b"\r\n" * 100)


PLAYS: list[Play] = [
    silent,
    half_open,
    slow,
    huge_head,
    many_headers,
    huge_body_on_an_open_route,
    huge_body_on_health,
    huge_body_without_a_token,
    trailers,
    one_trailer,
    extension,
    pipeline,
    flood,
    wrong_token,
    garbage,
    blank_lines,
]


async def _stranger(number: int, port: int, context: ssl.SSLContext | None, played: Counter[str]) -> None:
    play = PLAYS[number // 2 % len(PLAYS)]
    source = "127.0.0.1" if number % 2 else f"127.0.{1 + number // 400}.{1 + number // 20 % 20}"
    for _ in count():
        writer = None
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(source, 0), ssl=context, limit=1 << 20
            )
            played[play.__name__] += 1
            await play(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            if writer is not None:
                writer.transport.abort()
        await asyncio.sleep(PAUSE_S)


async def _crowd(port: int, many: int, seconds: float, context: ssl.SSLContext | None) -> Counter[str]:
    played: Counter[str] = Counter()
    strangers = [asyncio.create_task(_stranger(number, port, context, played)) for number in range(many)]
    await asyncio.wait(strangers, timeout=seconds)
    for each in strangers:
        each.cancel()
    await asyncio.gather(*strangers, return_exceptions=True)
    return played


def main() -> None:
    """Play."""
    port, many, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    context = None
    if "tls" in sys.argv:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    print(json.dumps(asyncio.run(_crowd(port, many, seconds, context))))


if __name__ == "__main__":
    main()

"""An S3 server in this process that misbehaves on the wire, as told: one act for the next request of a method.

Without an act it is an honest little S3: conditional puts, ranges, listings with continuation tokens.
"""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from limpet.kernel.store.cloud import CloudStore

__all__ = ["ACTS", "Misbehaving", "misbehaving"]

ACTS = {
    "drop before": "close the connection, and do nothing",
    "drop after": "do it, and close the connection",
    "hang before": "do nothing, and do not answer",
    "hang after": "do it, and do not answer",
    "500 before": "answer 500, and do nothing",
    "500 after": "do it, and answer 500",
    "503 after": "do it, and answer 503",
    "409": "answer 409 ConditionalRequestConflict, and do nothing",
    "429": "answer 429 SlowDown, and do nothing",
    "403": "answer 403 AccessDenied, and do nothing",
    "404 key": "answer 404 NoSuchKey, and do nothing",
    "404 bare": "answer 404 without a word, and do nothing",
    "404 bucket": "answer 404 NoSuchBucket, and do nothing",
    "412 after": "do it, and answer 412, as to a request that was sent twice",
    "short": "send half the body and close the connection",
    "fewer": "answer a range with fewer bytes than it says, and a Content-Length that fits them",
    "long": "send more than the Content-Length",
    "lying range": "answer a range with other bytes",
    "no etag": "do it, and answer without an ETag",
    "other etag": "do it, and answer with the ETag of something else",
    "garbage": "answer 200 with bytes that are no XML",
    "cut": "answer 200 with the first half of the XML",
    "no token": "say that a listing goes on, and not where",
    "foreign": "list a key that was not asked for",
    "huge": "answer 200 with 9 MiB of XML",
    "bomb": "answer 200 with XML whose entities would grow to gigabytes",
    "other": "answer 200 with the XML of something else",
    "redirect": "answer 307 with the address of another server",
}


class Misbehaving(ThreadingHTTPServer):
    """The server. `objects` is what it holds, `requests` what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.page = 1000
        self.released = threading.Event()
        self.mutex = threading.Lock()
        self._acts: dict[str, deque[str]] = {}

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def store(self, prefix: str = "fleet") -> CloudStore:
        """A store in its only bucket."""
        url = f"s3://b/{prefix}?endpoint={self.address}&region=us-east-1"
        return CloudStore(url, options={"access_key_id": "some", "secret_access_key": "thing"})

    def act(self, method: str, *acts: str) -> None:
        """What to do with the next requests of `method`, one after the other.

        LIST is one too, and OWN a listing of Limpet's own, which asks for encoded keys.
        """
        assert set(acts) <= set(ACTS)
        self._acts.setdefault(method, deque()).extend(acts)

    def next_act(self, method: str) -> str:
        """The act for this request; empty to behave."""
        acts = self._acts.get(method)
        return acts.popleft() if acts else ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Misbehaving

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.name = unquote(parts.path).removeprefix("/b").lstrip("/")
        self.data = self.rfile.read(int(self.headers.get("content-length", 0)))
        method = "OWN" if "encoding-type" in self.query else "LIST" if "list-type" in self.query else self.command
        self.act = self.server.next_act(method)
        self.server.requests.append(f"{method} {self.name}")
        if self.act in ("drop before", "hang before"):
            self._vanish()
            return
        codes = {"409": "ConditionalRequestConflict", "429": "SlowDown", "404 key": "NoSuchKey", "404 bare": ""}
        codes |= {"403": "AccessDenied", "redirect": "TemporaryRedirect"}
        codes |= {"404 bucket": "NoSuchBucket", "500 before": "InternalError"}
        if self.act in codes:
            self._fail(307 if self.act == "redirect" else int(self.act[:3]), codes[self.act])
            return
        getattr(self, f"_{method.lower()}")()

    do_GET = do_PUT = do_HEAD = do_DELETE = _serve  # noqa: N815

    def _vanish(self) -> None:
        if self.act.startswith("hang"):
            self.server.released.wait(30)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _put(self) -> None:
        with self.server.mutex:
            found = self.server.objects.get(self.name)
            wanted = self.headers.get("if-match")
            if self.headers.get("if-none-match") == "*" and found is not None:
                return self._fail(412, "PreconditionFailed")
            if wanted is not None and found is None:
                return self._fail(404, "NoSuchKey")
            if wanted is not None and found is not None and wanted != _etag(found):
                return self._fail(412, "PreconditionFailed")
            self.server.objects[self.name] = self.data
        if self._spoilt():
            return None
        etag = {"no etag": None, "other etag": _etag(b"something else")}.get(self.act, _etag(self.data))
        return self._send(200, b"", etag=etag)

    def _delete(self) -> None:
        with self.server.mutex:
            self.server.objects.pop(self.name, None)
        if not self._spoilt():
            self._send(204, b"")

    def _spoilt(self) -> bool:
        if self.act in ("drop after", "hang after"):
            self._vanish()
            return True
        after = {"500 after": "InternalError", "503 after": "", "412 after": "PreconditionFailed"}
        if self.act in after:
            self._fail(int(self.act[:3]), after[self.act])
        return self.act in after

    def _get(self) -> None:
        found = self.server.objects.get(self.name)
        if found is None:
            return self._fail(404, "NoSuchKey")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if not asked:
            return self._send(200, found, etag=_etag(found))
        start, stop = int(asked[1]), min(int(asked[2]) + 1, len(found))
        if self.act == "lying range":
            start, stop = 0, stop - start
        place = f"bytes {start}-{stop - 1}/{len(found)}"
        if self.act == "fewer":
            stop -= 1
        return self._send(206, found[start:stop], etag=_etag(found), content_range=place)

    def _head(self) -> None:
        found = self.server.objects.get(self.name)
        if found is None:
            return self._fail(404, "")
        return self._send(200, found, etag=_etag(found))

    def _list(self) -> None:
        prefix, after = self.query.get("prefix", ""), self.query.get("start-after", "")
        after = max(after, unquote(self.query.get("continuation-token", "")))
        names = sorted(name for name in self.server.objects if name.startswith(prefix) and name > after)
        folders: set[str] = set()
        if "delimiter" in self.query:
            rests = [name.removeprefix(prefix) for name in names]
            folders = {f"{prefix}{rest.partition('/')[0]}/" for rest in rests if "/" in rest}
            names = [prefix + rest for rest in rests if "/" not in rest]
        page, more = names[: self.server.page], len(names) > self.server.page
        if self.act == "foreign":
            page = [*page, "elsewhere/secret.json"]
        is_encoded = "encoding-type" in self.query
        rows = "".join(_row(name, self.server.objects.get(name, b""), is_encoded) for name in page)
        for folder in folders:
            rows += f"<CommonPrefixes><Prefix>{_xml(folder, is_encoded)}</Prefix></CommonPrefixes>"
        truncated = str(more or self.act == "no token").lower()
        token = f"<NextContinuationToken>{quote(page[-1], safe='/')}</NextContinuationToken>" if more else ""
        head = f"<IsTruncated>{truncated}</IsTruncated>{'' if self.act == 'no token' else token}"
        head += "<EncodingType>url</EncodingType>" if is_encoded else ""
        rows += " " * (9 << 20 if self.act == "huge" else 0)
        body = _SPOILT.get(self.act, f"<ListBucketResult>{head}{rows}</ListBucketResult>".encode())
        self._send(200, body[: len(body) // 2] if self.act == "cut" else body)

    _own = _list

    def _fail(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>So it is.</Message></Error>".encode() if code else b""
        self._send(status, body)

    def _send(self, status: int, body: bytes, *, etag: str | None = None, content_range: str | None = None) -> None:
        self.send_response(status)
        if etag is not None:
            self.send_header("ETag", etag)
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        if self.act == "redirect":
            self.send_header("Location", f"{self.server.address}/elsewhere")
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.act == "short":
            self.wfile.write(body[: len(body) // 2])
            self._vanish()
            return
        self.wfile.write(body + b"and more" if self.act == "long" else body)
        if self.act == "long":
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests look at `requests`."""


_BOMB = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
_SPOILT = {
    "garbage": b"\xff\x00 not XML at all",
    "bomb": f'<!DOCTYPE b [<!ENTITY a0 "a">{_BOMB}]><ListBucketResult>&a9;</ListBucketResult>'.encode(),
    "other": b"<Error><Code>InternalError</Code><Message>So it is.</Message></Error>",
}


def _xml(name: str, is_encoded: bool) -> str:
    return quote(name) if is_encoded else escape(name)


def _row(name: str, data: bytes, is_encoded: bool) -> str:
    what = (
        f"<LastModified>2026-01-01T00:00:00Z</LastModified><ETag>{escape(_etag(data))}</ETag><Size>{len(data)}</Size>"
    )
    return f"<Contents><Key>{_xml(name, is_encoded)}</Key>{what}</Contents>"


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def misbehaving() -> Iterator[Misbehaving]:
    """A server that runs."""
    with Misbehaving() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()

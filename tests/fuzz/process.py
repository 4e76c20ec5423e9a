"""`limpet work`, `limpet serve` and `limpet ui` in this process, on the virtual clock of a `Bench`.

A worker process becomes a task on the clock, and a wait for a pipe lets virtual time pass. A request goes through the
ASGI application, and its handler runs where it is awaited, in place of a thread.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import selectors
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

from fuzz.world import Bench, FuzzRuntime, Unfit, unfit
from limpet.service import parts as parts_module
from limpet.service.app import HttpApp, Routes
from limpet.service.log import ServiceLog
from limpet.service.parts import ApiPart, CompactorPart, ServiceContext, ServicePart
from limpet.service.requests import Response
from limpet.service.serve import BODY_BYTES_MAX
from limpet.service.status import health_routes
from limpet.service.tokens import Tokens
from limpet.ui.server import UiPart
from limpet.worker import child, pool

__all__ = ["Answer", "Service", "browsing", "serving", "virtual_processes"]

T = TypeVar("T")

TICK_S = 0.1
PID = 99_999
JOBS_EVERY_S = 1.0
"""How often a service does in the background what it does every half minute or hour otherwise."""


# ---- worker processes ----


def _awaited(runtime: FuzzRuntime, timeout_s: float | None, ready: Callable[[], T]) -> T:
    """What `ready` finds, as soon as it finds something, or when the time is over."""
    until_s = float("inf") if timeout_s is None else runtime.elapsed_s() + timeout_s
    while not (found := ready()) and (left_s := until_s - runtime.elapsed_s()) > 0:
        runtime.sleep(min(TICK_S, left_s))
    return found


class _VirtualProcess:
    """Runs `python -m limpet.worker.child` as a task: what `ProcessPool` wants of `subprocess.Popen`."""

    def __init__(self, runtime: FuzzRuntime, *, pass_fds: tuple[int, int]) -> None:
        self.pid = PID
        self.returncode: int | None = None
        self._runtime = runtime
        self._fds = [os.dup(fd) for fd in pass_fds]
        runtime.spawn(self._run, name="child")

    def _run(self) -> None:
        code = 1
        try:
            code = child.main([*map(str, self._fds)])
        finally:
            for fd in self._fds:
                os.close(fd)
            self.returncode = code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not _awaited(self._runtime, timeout, lambda: self.returncode is not None):
            raise subprocess.TimeoutExpired("child", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        raise AssertionError("a worker did not end")


@contextlib.contextmanager
def virtual_processes(bench: Bench) -> Iterator[None]:
    """While the block lasts, worker processes are tasks on the clock of `bench`."""
    runtime = bench.runtime

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            return _awaited(runtime, timeout, lambda: super(Selector, self).select(0))

    real_readable = child.readable

    def readable(fds: Any, timeout_s: float | None) -> Any:
        return _awaited(runtime, timeout_s, lambda: real_readable(fds, 0.0))

    def start(*_: Any, pass_fds: tuple[int, int], **__: Any) -> _VirtualProcess:
        return _VirtualProcess(runtime, pass_fds=pass_fds)

    logging_before = logging.getLogRecordFactory(), logging.root.level, [*logging.root.handlers]
    try:
        with (
            patch.object(pool, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start})),
            patch.object(pool, "selectors", SimpleNamespace(**{**vars(selectors), "DefaultSelector": Selector})),
            patch.object(child, "readable", readable),
        ):
            yield
    finally:
        logging.setLogRecordFactory(logging_before[0])
        logging.root.setLevel(logging_before[1])
        logging.root.handlers[:] = logging_before[2]


# ---- the service ----


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets."""

    status: int
    body: Any


class _HandlersHere:
    """Runs a handler where it is awaited, so that what it waits for passes on the virtual clock."""

    async def run(self, work: Callable[[], Response]) -> Response:
        return work()

    def close(self) -> bool:
        return False


class Service:
    """A service on the bucket: its parts, its routes, its background jobs and its log."""

    def __init__(self, bench: Bench, url: str, parts: Callable[[ServiceContext], list[ServicePart]]) -> None:
        self._log = io.StringIO()
        self._runtime = bench.runtime
        context = ServiceContext(bench.open_at(url), bench.runtime, ServiceLog(bench.runtime, "text", self._log))
        self._parts = parts(context)
        routes = [*self._parts[-1].routes(), *health_routes(self._facts, lambda: False, bench.runtime)]
        self._app = HttpApp(Routes(routes), bench.runtime, body_bytes_max=BODY_BYTES_MAX, log=context.log)
        self._app._threads = _HandlersHere()  # type: ignore[assignment]

    def _facts(self) -> dict[str, Any]:
        return {name: value for part in self._parts for name, value in part.facts().items()}

    def start(self) -> None:
        """Start the parts, as `serve.run` does."""
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        """End them, and look at what was logged."""
        for part in reversed(self._parts):
            part.stop()
        if found := unfit(self._log.getvalue()):
            raise Unfit(f"the service logged {found!r}")

    def pause(self, seconds: float) -> None:
        """Let the background jobs have their turns."""
        self._runtime.sleep(seconds)

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request. A fault in a handler comes out; so does an error that says nothing."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"x-limpet-ui", b"1")]
        headers.append((b"content-length", str(len(data)).encode()))
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": data}

        async def send(message: Any) -> None:
            sent.append(message)

        where, _, query = path.partition("?")
        scope = {"type": "http", "method": method, "raw_path": where.encode(), "query_string": query.encode()}
        _run(self._app({**scope, "headers": headers}, receive, send))
        status, text = sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:]).decode()
        found: Any = json.loads(text) if text else None
        if status >= 400 and method != "HEAD":
            said = found["error"]["message"] if path != "/readyz" else found["error"]
            if not said or unfit(said) or "a fault in limpet" in said:
                raise Unfit(f"{method} {path} answers {status}: {text[:200]!r}")
        return Answer(status, found)


def _run(work: Any) -> None:
    """Run a coroutine that awaits nothing but coroutines: no event loop is needed."""
    try:
        work.send(None)
    except StopIteration:
        return
    finally:
        work.close()
    raise AssertionError("it waits for an event loop")


def _catalog(context: ServiceContext) -> list[ServicePart]:
    tokens = Tokens(())
    compactor = CompactorPart(context, tokens, exposed=False)
    return [compactor, ApiPart(context, tokens, compactor.publish, compactor.fold, lease_s=10.0)]


def serving(bench: Bench, url: str) -> contextlib.AbstractContextManager[Service]:
    """`limpet serve` that has started. Its background jobs have their turns every second."""
    return _started(bench, url, _catalog)


def browsing(bench: Bench, url: str) -> contextlib.AbstractContextManager[Service]:
    """`limpet ui` that has started."""
    return _started(bench, url, lambda context: [UiPart(context, Tokens(()))])


@contextlib.contextmanager
def _started(bench: Bench, url: str, parts: Callable[[ServiceContext], list[ServicePart]]) -> Iterator[Service]:
    with (
        patch.object(parts_module, "HAND_OVER_EVERY_S", JOBS_EVERY_S),
        patch.object(parts_module, "COLLECT_EVERY_S", JOBS_EVERY_S),
    ):
        service = Service(bench, url, parts)
        service.start()
        try:
            yield service
        finally:
            service.stop()

"""The log of a service: one line for each event, as text or as JSON, on stderr.

No line holds a secret, and nothing that a client sends can break a line or a terminal. A slow reader of the log, or a
full disk, never delays a request: a thread writes the lines, and those that do not fit into its queue are counted and
dropped. Clients without a token cannot fill the disk: refusals are logged at a limited rate.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections import deque
from contextlib import suppress
from typing import Any, Literal, TextIO
from urllib.parse import urlsplit, urlunsplit

from limpet import records
from limpet.runtime import Runtime, ThreadHandle

Form = Literal["text", "json", "none"]

LINES_MAX = 10_000
TEXT_MAX = 300
RARE_PER_S = 10
IDLE_S = 1.0
TRACE_MAX = 30


class ServiceLog:
    """Thread-safe. Until `start`, the thread that logs writes the line itself."""

    def __init__(self, runtime: Runtime, form: Form = "text", out: TextIO | None = None) -> None:
        self._runtime = runtime
        self._form = form
        self._out = out
        self._mutex = runtime.mutex()
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._rare: dict[str, tuple[int, int]] = {}
        self._wake = runtime.flag()
        self._stopped = runtime.flag()
        self._thread: ThreadHandle | None = None

    def start(self) -> None:
        """Start the thread that writes the lines."""
        self._thread = self._runtime.spawn(self._run, name="limpet-log")

    def event(self, kind: str, **fields: Any) -> None:
        """Log an event. Fields that are None or empty are left out."""
        if self._form != "none":
            self._add(self._line(kind, {name: value for name, value in fields.items() if value not in (None, "")}))

    def rare(self, kind: str, **fields: Any) -> None:
        """Log an event that strangers can cause: some of each kind a second, then how many were left out."""
        second = int(self._runtime.elapsed_s())
        with self._mutex:
            begun, count = self._rare.get(kind, (second, 0))
            left_out = max(0, count - RARE_PER_S) if begun != second else 0
            count = count + 1 if begun == second else 1
            self._rare[kind] = (second, count)
        if left_out:
            self.event(kind, left_out=left_out)
        if count <= RARE_PER_S:
            self.event(kind, **fields)

    def tell(self, text: str) -> None:
        """Log a warning."""
        self.event("warning", text=text)

    def _fault(self, record: logging.LogRecord) -> None:
        """Log a library's log record, with the traceback of a fault."""
        error = record.exc_info[1] if record.exc_info else None
        trace = "".join(traceback.format_exception(error)[-TRACE_MAX:]).splitlines() if error else []
        kind = "fault" if error else "warning"
        self.event(kind, text=record.getMessage().strip(), traceback=[*map(printable, trace)] or None)

    def hear(self, name: str) -> None:
        """Take over the logger `name` of the standard library: its warnings and errors go to this log."""
        heard = logging.getLogger(name)
        handler = logging.Handler(logging.WARNING)
        handler.emit = self._fault  # type: ignore[method-assign]
        heard.handlers, heard.propagate = [handler], False

    def _line(self, kind: str, fields: dict[str, Any]) -> str:
        at = self._runtime.wall()
        shown = {name: printable(value) if isinstance(value, str) else value for name, value in fields.items()}
        if self._form == "json":
            return records.encode({"at": at, "event": kind, **shown}).decode()
        text, trace = shown.pop("text", ""), shown.pop("traceback", [])
        words = [f"{at:%H:%M:%S}Z", f"{kind:<9}", *([text] if text else [])]
        line = " ".join([*words, *(f"{name}={_word(value)}" for name, value in shown.items())])
        return "\n".join([line, *(f"    | {each}" for each in trace)])

    def _add(self, line: str) -> None:
        with self._mutex:
            if self._thread is not None and len(self._lines) < LINES_MAX:
                self._lines.append(line)
                line = ""
            elif self._thread is not None:
                self._dropped += 1
                line = ""
        if line:
            self._write(line + "\n")
        else:
            self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set() or self._lines:
            self._wake.wait(IDLE_S)
            self._wake = self._runtime.flag()
            self._flush()

    def _flush(self) -> None:
        with self._mutex:
            lines, dropped = [*self._lines], self._dropped
            self._lines.clear()
            self._dropped = 0
        if dropped:
            lines.append(self._line("warning", {"text": f"{dropped} lines of the log were dropped"}))
        if lines:
            self._write("\n".join(lines) + "\n")

    def _write(self, text: str) -> None:
        out = self._out or sys.stderr
        with suppress(OSError, ValueError):  # closed, or a full disk: there is nowhere to report it
            out.write(text)
            out.flush()

    def stop(self) -> None:
        """Write what is left. The thread ends too, unless the reader of the log blocks it."""
        self._stopped.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._flush()


def printable(text: str) -> str:
    """`text` on one line, without characters that a terminal would act on, and of bounded length."""
    text = text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)


def redacted(url: str) -> str:
    """`url` without a user, password, query or fragment, to be shown."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "(a URL that cannot be read)"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    return f'"{text}"' if not text or " " in text or '"' in text else text

"""The log: one line for each event, as text or as JSON, on stderr.

No line contains a secret, and a client's text cannot break a line or control a terminal. A slow reader of the log, or
a full disk, never delays a request: a thread writes the lines, and those that do not fit into its queue are dropped
and counted. Clients without a token cannot fill the disk: refusals are rate-limited.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections import deque
from contextlib import suppress
from typing import Any, Literal, TextIO

from limpet.kernel import records
from limpet.kernel.runtime import Runtime
from limpet.kernel.waiting import BackgroundJob
from limpet.kernel.wording import many

USER_INFO_MAX = 2048
_USER_INFO = re.compile(rf"//[^/?#\s'\"]{{1,{USER_INFO_MAX}}}@")
"""The user and password of a URL, such as `s3n://ID:SECRET@bucket/`."""

Form = Literal["text", "json", "none"]
LINES_MAX = 10_000
TEXT_MAX = 300
RARE_PER_S = 10
IDLE_S = 1.0
TRACE_MAX = 30
_WORD = re.compile(rf"(?:[!#-.0-~]|/(?!/)){{1,{TEXT_MAX}}}")
"""A text that is shown as it is: ASCII without spaces and quotes, and no URL."""


class ServiceLog:
    """The log of a service. Thread-safe. Before `start`, lines are written by the calling thread."""

    def __init__(self, runtime: Runtime, form: Form = "text", out: TextIO | None = None) -> None:
        self._runtime = runtime
        self._form = form
        self._out = out
        self._mutex = runtime.mutex()
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._rare: dict[str, tuple[int, int]] = {}
        self._job: BackgroundJob | None = None

    def start(self) -> None:
        """Start the thread that writes the lines."""
        self._job = BackgroundJob("log", self._flush, IDLE_S, self._runtime)
        self._job.start()

    def event(self, kind: str, **fields: Any) -> None:
        """Log an event. Fields that are None or empty are omitted."""
        if self._form != "none":
            self._add(self._line(kind, fields))

    def rare(self, kind: str, **fields: Any) -> None:
        """Log an event that clients without a token can cause: rate-limited by kind, with a count of the rest."""
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

    def warn(self, text: str) -> None:
        """Log a warning."""
        self.event("warning", text=text)

    def redirect(self, name: str) -> None:
        """Redirect the warnings and errors of the standard library's logger `name` to this log."""
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_LibraryLog(self)], False

    def _line(self, kind: str, fields: dict[str, Any]) -> str:
        at = self._runtime.wall()
        shown: dict[str, Any] = {}
        for name, value in fields.items():
            if value is not None and value != "":
                shown[name] = printable(value) if isinstance(value, str) and not _WORD.fullmatch(value) else value
        if self._form == "json":
            return records.encode({"at": at, "event": kind, **shown}).decode()
        text, trace = shown.pop("text", ""), shown.pop("traceback", [])
        words = [f"{at:%H:%M:%S}Z", f"{kind:<9}", *([text] if text else [])]
        for name, value in shown.items():
            is_plain = isinstance(value, int) or (isinstance(value, str) and _WORD.fullmatch(value))
            words.append(f"{name}={value if is_plain else _word(value)}")
        return "\n".join([" ".join(words), *[f"    | {traced}" for traced in trace]])

    def _add(self, line: str) -> None:
        with self._mutex:
            job = self._job
            if job is not None and len(self._lines) < LINES_MAX:
                self._lines.append(line)
            elif job is not None:
                self._dropped += 1
        if job is None:
            self._write(line + "\n")
        else:
            job.wake()

    def _flush(self) -> None:
        with self._mutex:
            lines, dropped = [*self._lines], self._dropped
            self._lines.clear()
            self._dropped = 0
        if dropped:
            lines.append(self._line("warning", {"text": f"{many(dropped, 'line')} of the log were dropped"}))
        if lines:
            self._write("\n".join(lines) + "\n")

    def _write(self, text: str) -> None:
        out = self._out or sys.stderr
        with suppress(OSError, ValueError):  # closed, or a full disk: it cannot be reported anywhere
            out.write(text)
            out.flush()

    def stop(self) -> None:
        """Write the remaining lines. The thread ends too, unless the reader of the log blocks it."""
        job, self._job = self._job, None
        if job is not None:
            job.stop()
            self._flush()


class _LibraryLog(logging.Handler):
    def __init__(self, log: ServiceLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        trace = "".join(traceback.format_exception(error)[-TRACE_MAX:]).splitlines() if error else []
        kind = "fault" if error else "warning"
        self._log.event(kind, text=record.getMessage().strip(), traceback=[*map(printable, trace)] or None)


def printable(text: str) -> str:
    """`text` as one line of bounded length, without control characters for a terminal, or passwords in URLs."""
    text = _USER_INFO.sub("//...@", text[: 2 * USER_INFO_MAX])
    return records.printable(text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}...")


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    return f'"{text}"' if not text or " " in text or '"' in text else text

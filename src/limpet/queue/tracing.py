"""OpenTelemetry spans from a push to the handler to the verdict, in processes that have loaded OpenTelemetry.

    push enrich  ->  process enrich  ->  ack enrich

The context of the push travels in the task (`traceparent`, W3C), so that the handler's spans, on another machine,
belong to the trace of the push. Limpet never imports OpenTelemetry by itself: a process that exports spans has
loaded it before (`OTEL in sys.modules`), and any other pays nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Literal

import msgspec

OTEL = "opentelemetry.trace"
"""The module whose presence in `sys.modules` switches spans on."""

TRACE_CHARS_MAX = 128
Trace = Annotated[str, msgspec.Meta(max_length=TRACE_CHARS_MAX)]
"""The context of a push, as W3C's `traceparent`. Whatever else it holds is not used."""
TraceOrUnset = Trace | msgspec.UnsetType

SpanKind = Literal["producer", "consumer", "internal"]
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NAME = "limpet"


class TaskSpan:
    """A span that is open: what becomes known while it is."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def set(self, **attributes: str | int | float | bool) -> None:
        """Add attributes. `message_id` becomes `messaging.message.id`; any other name is one of `limpet.`."""
        for name, value in attributes.items():
            key = "messaging.message.id" if name == "message_id" else f"limpet.{name}"
            self._span.set_attribute(key, value)

    def failed(self, error: BaseException | str) -> None:
        """What it stands for has failed."""
        status = import_module("opentelemetry.trace.status")
        text = str(error) if isinstance(error, str) else f"{type(error).__name__}: {error}"
        if isinstance(error, BaseException):
            self._span.record_exception(error)
        self._span.set_status(status.Status(status.StatusCode.ERROR, text[:500]))

    def traceparent(self) -> str:
        """Its context, to be carried by a task; empty if no span is recorded."""
        context = self._span.get_span_context()
        if not context.is_valid:
            return ""
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


@contextmanager
def span(verb: str, queue: str, kind: SpanKind, *, parent: str | None = None, **known: Any) -> Iterator[TaskSpan]:
    """A span `verb queue` around the block; `parent`: the `traceparent` of another process.

    It ends without an error unless `TaskSpan.failed` is called: an exception that passes is not its business.
    Call it only if `OTEL in sys.modules`.
    """
    trace = import_module(OTEL)
    attributes: Mapping[str, Any] = {
        "messaging.system": _NAME,
        "messaging.destination.name": queue,
        "messaging.operation.name": verb,
    }
    with trace.get_tracer(_NAME).start_as_current_span(
        f"{verb} {queue}",
        context=_context(trace, parent),
        kind=trace.SpanKind[kind.upper()],
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as opened:
        found = TaskSpan(opened)
        found.set(**known)
        yield found


def _context(trace: Any, parent: str | None) -> Any:
    """The context that a stored `traceparent` names; None, the current one, for a text that is none."""
    if parent is None or _TRACEPARENT.fullmatch(parent) is None:
        return None
    _, trace_id, span_id, flags = parent.split("-")
    context = trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(trace.NonRecordingSpan(context)) if context.is_valid else None

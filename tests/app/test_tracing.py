"""OpenTelemetry: spans from push to handler to ack, in processes that have loaded it, and nothing in any other.

The programs run in processes of their own: once OpenTelemetry is loaded, it stays.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from cli.harness import limpet_command
from limpet.kernel.errors import Corrupt
from limpet.kernel.keys import QueueKeys
from limpet.kernel.store.api import Blob, Version
from limpet.queue.entry import BatchHeader, TaskRecord, batch_bytes, new_task, read_content, read_task
from limpet.queue.tracing import TRACE_CHARS_MAX
from support.clock import EPOCH

SET_UP = """
import json, sys
import limpet
from limpet import testing
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("mine")

def tell():
    print(json.dumps([{
        "name": span.name, "kind": span.kind.name, "status": span.status.status_code.name,
        "id": f"{span.context.span_id:016x}", "trace": f"{span.context.trace_id:032x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent else None,
        "attributes": dict(span.attributes), "events": [event.name for event in span.events],
    } for span in exporter.get_finished_spans()]))
"""


def spans(program: str, folder: Path) -> list[dict[str, Any]]:
    """The spans that a program has finished, in that order."""
    command = [sys.executable, "-c", SET_UP + program + "\ntell()\n"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_task_is_one_trace_from_push_to_ack(tmp_path: Path) -> None:
    found = spans(
        """
fleet = limpet.open("memory://")

@fleet.task()
def enrich(n: int):
    with tracer.start_as_current_span("my work"):
        return n

with tracer.start_as_current_span("a request"):
    pushed = enrich.push(1)
testing.drain(fleet)
""",
        tmp_path,
    )
    push, request, work, ack, process = found
    assert [span["name"] for span in found] == ["push enrich", "a request", "my work", "ack enrich", "process enrich"]
    assert {span["trace"] for span in found} == {request["trace"]}
    assert push["parent"] == request["id"]
    assert process["parent"] == push["id"]
    assert [work["parent"], ack["parent"]] == [process["id"], process["id"]]
    assert [push["kind"], process["kind"]] == ["PRODUCER", "CONSUMER"]
    assert process["attributes"]["messaging.message.id"] == push["attributes"]["messaging.message.id"]
    assert process["attributes"]["messaging.destination.name"] == "enrich"
    assert (process["attributes"]["limpet.attempt"], process["attributes"]["limpet.outcome"]) == (1, "done")
    assert process["status"] == "UNSET"


def test_batches_delays_coroutines_and_failures(tmp_path: Path) -> None:
    found = spans(
        """
fleet = limpet.open("memory://")

@fleet.task(max_attempts=2, backoff_s=0.0)
async def enrich(n: int):
    if n == 1:
        raise ValueError("no")
    with tracer.start_as_current_span("my work"):
        return n

enrich.push_many([(0,), (1,)])
testing.drain(fleet)
""",
        tmp_path,
    )
    [push] = [span for span in found if span["name"] == "push enrich"]
    runs = [span for span in found if span["name"] == "process enrich"]
    assert push["attributes"]["limpet.tasks"] == 2
    assert [run["attributes"]["limpet.outcome"] for run in runs] == ["done", "retried", "failed"]
    assert [run["status"] for run in runs] == ["UNSET", "ERROR", "ERROR"]
    assert runs[1]["events"] == ["exception"]
    assert {run["parent"] for run in runs} == {push["id"]}
    [work] = [span for span in found if span["name"] == "my work"]
    assert work["parent"] == runs[0]["id"]


APP = (
    SET_UP
    + """
import atexit, pathlib
fleet = limpet.open("./fleet")
atexit.register(lambda: pathlib.Path("spans").write_text(exporter_text()))

def exporter_text():
    return "\\n".join(f"{span.name} {span.parent.span_id:016x} {span.context.trace_id:032x}"
                     for span in exporter.get_finished_spans() if span.parent)

@fleet.task()
def enrich(n: int): ...
"""
)


def test_the_context_travels_to_another_process(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    [push] = spans('limpet.open("./fleet").queue("enrich").push({"n": 1}, delay_s=0.1)', tmp_path)
    written = tmp_path / "spans"
    while not written.exists() or "process" not in written.read_text():  # a scheduled task may not be due yet
        done = subprocess.run(
            limpet_command("work", "app:fleet", "--burst"), capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
    seen = [line for line in written.read_text().splitlines() if line.startswith("process enrich ")]
    assert seen == [f"process enrich {push['id']} {push['trace']}"]


def test_without_opentelemetry_nothing_is_stored_or_loaded(tmp_path: Path) -> None:
    program = """
import sys, limpet
fleet = limpet.open("./fleet")
fleet.queue("q").push({}, id="a")
ids = fleet.queue("q").push_many([{}])
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path).returncode == 0
    store = limpet.open(tmp_path / "fleet").store
    assert b"trace" not in store.get(QueueKeys.of("q").tasks("a", batch=False)).data


# ---- stored tasks ----


class OldTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as Limpet 0.1 reads it: it does not know the field, and passes it over."""

    id: str
    payload: msgspec.Raw
    sha256: str


PARENT = f"00-{'1' * 32}-{'2' * 16}-01"


def test_readers_of_both_versions_read_both(tmp_path: Path) -> None:
    new = new_task("a", b"{}", pushed_at=EPOCH, write_id="w", trace=PARENT)
    old = new_task("a", b"{}", pushed_at=EPOCH, write_id="w")
    data = msgspec.json.encode(new)
    assert msgspec.json.decode(data, type=OldTask).id == "a"
    assert read_task(data, what="x").trace == PARENT
    assert b"trace" not in msgspec.json.encode(old)
    assert read_task(msgspec.json.encode(old), what="x").trace is msgspec.UNSET
    for trace in (PARENT, ""):
        body = batch_bytes([b"1", b"2"], pushed_at=EPOCH, write_id="w", trace=trace)
        blob = Blob(body, Version("1"), EPOCH, len(body))
        entry = "01jd0000000000000000000000-2"
        assert read_content(blob, entry, batch=True, what="x").trace == trace


def test_the_field_is_bounded() -> None:
    data = msgspec.json.encode(new_task("a", b"{}", pushed_at=EPOCH, write_id="w", trace="x" * (TRACE_CHARS_MAX + 1)))
    with pytest.raises(Corrupt):
        read_task(data, what="x")
    assert {"trace"} <= {*TaskRecord.__struct_fields__} & {*BatchHeader.__struct_fields__}


def test_what_is_no_traceparent_starts_a_trace_of_its_own(tmp_path: Path) -> None:
    found = spans(
        """
from limpet.queue.tracing import span
for parent in ("", "x", "00-" + "0" * 32 + "-" + "0" * 16 + "-00", "00-" + "g" * 32 + "-" + "1" * 16 + "-00", None):
    with span("process", "q", "consumer", parent=parent):
        pass
""",
        tmp_path,
    )
    assert [each["parent"] for each in found] == [None] * 5

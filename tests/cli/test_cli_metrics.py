"""`limpet metrics` and `limpet work --metrics-port`, scraped as Prometheus does."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, Spawn, poll

APP = """
import limpet
fleet = limpet.open("./fleet")

@fleet.task(max_attempts=1)
def enrich(n: int):
    if n == 0:
        raise ValueError("no")
"""


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    found = re.fullmatch(r"metrics on (http://127\.0\.0\.1:\d+/metrics)\n", process.stderr.readline())
    assert found
    return found[1]


def _scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def test_a_file_for_the_node_exporter(here: Here, tmp_path: Path) -> None:
    limpet.open(tmp_path / "fleet").queue("q").push({})
    done = here("metrics", "--textfile", "out.prom", "-u", "fleet")
    assert (done.code, done.out, done.err) == (0, "", "wrote out.prom\n")
    assert 'limpet_queue_pending{queue="q"} 1.0\n' in (tmp_path / "out.prom").read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out.prom"]
    done = here("metrics", "--textfile", "nowhere/out.prom", "-u", "fleet")
    assert (done.code, done.err.splitlines()[0]) == (
        1,
        "limpet: cannot write nowhere/out.prom: No such file or directory",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say --serve PORT or --textfile FILE"),
        (("--serve", "1", "--textfile", "x"), "say --serve PORT or --textfile FILE"),
        (("--serve", "http"), "'http' is no port"),
    ],
)
def test_wrong_input_is_one_line(here: Here, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    limpet.open(tmp_path / "fleet").check()
    done = here("metrics", *arguments, "-u", "fleet")
    assert (done.code, done.err.splitlines()[0]) == (2, f"limpet: {said}")


def test_a_port_that_prometheus_scrapes(spawn: Spawn, tmp_path: Path) -> None:
    queue = limpet.open(tmp_path / "fleet").queue("q")
    queue.push({})
    process = spawn("metrics", "--serve", "0", "-u", "fleet")
    url = _address(process)
    assert 'limpet_queue_pending{queue="q"} 1.0\n' in _scrape(url)
    queue.push({})
    poll("the next push is seen", lambda: 'limpet_queue_pending{queue="q"} 2.0\n' in _scrape(url))
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


@pytest.mark.parametrize("quiet", [False, True])
def test_a_worker_that_prometheus_scrapes(spawn: Spawn, tmp_path: Path, quiet: bool) -> None:
    (tmp_path / "app.py").write_text(APP)
    queue = limpet.open(tmp_path / "fleet").queue("enrich")
    for n in range(3):
        queue.push({"n": n})
    process = spawn("work", "app:fleet", "--metrics-port", "0", *(["--quiet"] if quiet else []))
    url = _address(process)
    poll("two are done", lambda: 'limpet_tasks_total{outcome="done",queue="enrich"} 2.0\n' in _scrape(url))
    poll("one has failed", lambda: 'limpet_tasks_total{outcome="failed",queue="enrich"} 1.0\n' in _scrape(url))
    poll("requests are told", lambda: 'limpet_store_requests_total{verb="put"}' in _scrape(url))
    assert 'limpet_task_seconds_count{outcome="done",queue="enrich"} 2.0\n' in _scrape(url)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert process.stderr is not None
    said = process.stderr.read()
    assert ("started" in said) is not quiet
    assert "failed" in said


def test_a_port_that_is_taken_is_one_line(spawn: Spawn, here: Here, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    limpet.open(tmp_path / "fleet").queue("enrich").push({"n": 1})
    process = spawn("metrics", "--serve", "0", "-u", "fleet")
    port = _address(process).split(":")[2].split("/")[0]
    done = here("work", "app:fleet", "--burst", "--metrics-port", port)
    assert (done.code, done.err.splitlines()[0]) == (
        1,
        f"limpet: cannot listen on http://127.0.0.1:{port}/metrics: Address already in use",
    )

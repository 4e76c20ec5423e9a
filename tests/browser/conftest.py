"""One Chromium for all tests of a process, Debian's; and dashboards of fleets with something of everything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from support.dashboard import sample_fleet
from support.servers.catalog import CatalogServer, start_server

__all__ = ["FLAGS", "Dashboard", "dashboard_of"]

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Dashboard:
    """A running `limpet ui`, and the fleet that it shows. `held` keeps claims and leases alive."""

    def __init__(self, server: CatalogServer, fleet: limpet.Fleet, held: object) -> None:
        self.server = server
        self.fleet = fleet
        self.held = held

    def at(self, place: str = "") -> str:
        """The address of a page: the part behind the hash."""
        return f"{self.server.url}/ui#/{place}"


@contextmanager
def dashboard_of(folder: Path, *arguments: str, hostile: bool = True) -> Iterator[Dashboard]:
    """A sample fleet in a folder, and its dashboard."""
    fleet, held = sample_fleet(str(folder), hostile=hostile)
    server = start_server(str(folder), *arguments, verb="ui")
    try:
        yield Dashboard(server, fleet, held)
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium; apt-get install chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=15_000)
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield made
        made.close()


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A dashboard that tests of this process share. Each changes only what no other looks at."""
    with dashboard_of(tmp_path_factory.mktemp("browser") / "fleet") as made:
        yield made


@pytest.fixture
def page(browser: Any, dashboard: Dashboard) -> Iterator[Any]:
    """A fresh tab. A fault in the page's own code fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    made = context.new_page()
    made.set_default_timeout(20_000)
    faults: list[str] = []
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on("console", lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None)
    yield made
    context.close()
    assert faults == []

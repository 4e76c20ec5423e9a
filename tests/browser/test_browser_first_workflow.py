"""A newcomer's way: the code and the commands of README and docs/use, and the rest in the dashboard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.docs import ROOT, blocks, run_shell
from support.servers.catalog import start_server

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect


def command_of(page: Path, begin: str) -> str:
    """The command of a page that begins so, without the comment that says its answer."""
    lines = [line for body in blocks(page, "sh") for line in body.splitlines()]
    [command] = [line.partition("#=>")[0].strip() for line in lines if line.startswith(begin)]
    return command


def test_a_workflow_from_the_pages_is_approved_in_the_dashboard(browser: Any, tmp_path: Path) -> None:
    durable = ROOT / "docs" / "use" / "durable-tasks.md"
    code = [body for body in blocks(durable, "python") if body.startswith("# app.py") or "def order(" in body]
    (tmp_path / "app.py").write_text("\n\n".join(code))
    env = {"LIMPET_URL": "./fleet"}
    run_shell(command_of(durable, "limpet queue push order"), tmp_path, env)
    work = command_of(ROOT / "README.md", "limpet work").replace("--until-empty", "--quiet")
    worker = subprocess.Popen(
        [f"{Path(sys.executable).parent}/{work}".split()[0], *work.split()[1:], "-u", "./fleet"], cwd=tmp_path
    )
    server = start_server(str(tmp_path / "fleet"), verb="ui")
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(f"{server.url}/ui")
        page.get_by_role("link", name="order", exact=True).first.click()
        page.get_by_role("button", name="order-8").click()
        page.get_by_role("button", name="Send a signal").click()
        form = page.get_by_role("dialog", name="Send a signal to order-8?")
        expect(form.get_by_label("Name")).to_have_value("approved")
        form.get_by_label("Value, as JSON").fill('"bob"')
        form.get_by_role("button", name="Send").click()
        expect(page.locator(".toast")).to_contain_text("order-8 gets “approved”")
        page.goto(f"{server.url}/ui#/queue/order/order-8")
        expect(page.get_by_role("dialog").get_by_text("approved by bob").first).to_be_visible(timeout=30_000)
    finally:
        context.close()
        server.kill()
        worker.terminate()
        worker.wait()
    assert "approved by bob" in run_shell("limpet queue show order order-8", tmp_path, env)

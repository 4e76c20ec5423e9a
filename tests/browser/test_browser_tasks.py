"""Tasks in a real browser: search, what ended lately, the members of a failure group, signals, and local times."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from browser.conftest import Dashboard
from limpet.testing import drain
from support.dashboard import HOSTILE

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

SEARCH = "Search what is listed"


def panel(page: Any, title: str) -> Any:
    """The part of a page with this heading."""
    return page.locator(".panel", has=page.get_by_role("heading", name=title, exact=True))


def ran(dashboard: Dashboard, queue: str, *texts: str) -> None:
    """A task for each text, run at once: it fails if the text begins with "no"."""

    @dashboard.fleet.task(queue, max_attempts=1)
    def handler(text: str) -> str:
        if text.startswith("no"):
            raise ValueError(f"{text} is wrong")
        return text

    for n, text in enumerate(texts):
        handler.using(id=f"{queue}-{n}").push(text)
    drain(dashboard.fleet)


def test_search_finds_ids_errors_and_payloads_and_keeps_the_focus(page: Any, dashboard: Dashboard) -> None:
    ran(dashboard, "search", "no 7", HOSTILE)
    waits = dashboard.fleet.queue("search")
    waits.push({"to": "grace@example.org"}, id="first")
    waits.push({"to": "ada@example.org"}, id="second")
    page.goto(dashboard.at("queue/search"))
    waiting = panel(page, "Waiting")
    expect(waiting.locator("tbody tr")).to_have_count(2)
    page.keyboard.press("/")
    page.keyboard.type("GRACE example")
    expect(waiting.locator("tbody tr")).to_have_count(1)
    expect(waiting.locator(".excerpt")).to_contain_text("grace@example.org")  # of an object that only a search reads
    expect(page.locator(".search")).to_contain_text("1 of 3 tasks that are listed")
    waits.push({"to": "grace@example.com"}, id="third")
    expect(waiting.locator("tbody tr")).to_have_count(2)  # a live update
    page.keyboard.type(".org")
    expect(waiting.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="first")).to_contain_text("grace@example.org")
    page.keyboard.press("Escape")
    expect(page.get_by_label(SEARCH)).to_be_focused()
    page.keyboard.press("Escape")
    expect(waiting.locator("tbody tr")).to_have_count(3)
    page.get_by_label(SEARCH).fill("no 7 is wrong")
    expect(waiting).to_contain_text("Nothing here fits the search.")
    expect(panel(page, "Failures").locator("details[open] tbody tr")).to_have_count(1)
    page.get_by_label(SEARCH).fill("search-1")  # it has completed, and is not listed
    page.get_by_role("button", name="Look for a task with this id").click()
    expect(page.get_by_role("dialog", name="search-1")).to_contain_text("completed")


def test_what_ended_lately_is_asked_for_when_it_is_opened(page: Any, dashboard: Dashboard) -> None:
    ran(dashboard, "lately", "yes", "no 3", HOSTILE)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/ended") else None)
    page.goto(dashboard.at("queue/lately"))
    expect(panel(page, "Failures")).to_contain_text("no # is wrong")
    assert asked == []
    ended = panel(page, "Ended lately")
    ended.locator("summary").click()
    expect(ended.locator("tbody tr")).to_have_count(3)
    assert len(asked) == 1
    expect(ended.locator("tr", has_text="lately-1")).to_contain_text("ValueError: no 3 is wrong")
    expect(ended.locator("tr", has_text="lately-2")).to_contain_text("<img src=x")
    assert page.locator("main img, main script").count() == 0
    dashboard.fleet.queue("lately").push({"text": "late"}, id="late")
    drain(dashboard.fleet)
    expect(ended.locator("tbody tr").first).to_contain_text("late")  # it follows the fleet while it is open
    ended.get_by_role("button", name="lately-0").click()
    expect(page.get_by_role("dialog", name="lately-0")).to_contain_text('"yes"')


def test_a_failure_group_shows_all_its_members(page: Any, dashboard: Dashboard) -> None:
    ran(dashboard, "group", *(f"no {n}" for n in range(130)))
    page.goto(dashboard.at("queue/group"))
    group = page.locator("details.group")
    group.locator("summary").click()
    rows = group.locator("tbody tr")
    expect(rows).to_have_count(20)
    more = group.get_by_role("button", name="Show more")
    more.click()
    expect(rows).to_have_count(100)
    more.click()
    expect(rows).to_have_count(130)
    expect(more).to_have_count(0)
    rows.last.get_by_role("button").click()
    expect(page.get_by_role("dialog")).to_contain_text("is wrong")


def test_a_signal_is_sent_from_the_task_that_waits_for_it(page: Any, dashboard: Dashboard) -> None:
    @dashboard.fleet.task("approvals")
    def approval() -> str:
        return str(limpet.wait_signal("approved"))

    approval.using(id="order-7").push()
    drain(dashboard.fleet)
    page.goto(dashboard.at("queue/approvals/order-7"))
    page.get_by_role("button", name="Send a signal").click()
    form = page.get_by_role("dialog", name="Send a signal to order-7?")
    expect(form.get_by_label("Name")).to_have_value("approved")
    value = form.get_by_label("Value, as JSON")
    value.fill("yes")
    form.get_by_role("button", name="Send").click()
    expect(form.get_by_role("alert")).to_contain_text("this is not JSON")
    value.fill('"yes"')
    form.get_by_role("button", name="Send").click()
    expect(page.locator(".toast")).to_contain_text("order-7 gets “approved”")
    drain(dashboard.fleet)
    assert dashboard.fleet.queue("approvals").result("order-7").value == "yes"


def test_times_are_local_and_tell_utc(browser: Any, dashboard: Dashboard) -> None:
    context = browser.new_context(timezone_id="Asia/Kolkata", locale="en-GB")
    page = context.new_page()
    page.goto(dashboard.at("queue/enrich"))
    shown = panel(page, "Scheduled").locator("tbody time")
    expect(shown).to_have_count(1)
    due = shown.get_attribute("datetime")
    assert shown.get_attribute("title") == f"{due[:19].replace('T', ' ')} UTC"
    local = page.evaluate(
        "at => new Date(at).toLocaleTimeString('en-GB', {timeZone: 'Asia/Kolkata', timeStyle: 'medium'})", due
    )
    assert local in shown.inner_text()
    assert local != due[11:19]
    context.close()


def test_a_completed_workflow_leads_to_its_children_and_back(page: Any, dashboard: Dashboard) -> None:
    fleet = dashboard.fleet

    @fleet.task("parts")
    def part(n: int) -> int:
        return n * n

    @fleet.task("reports", durable=True)
    def report(text: str) -> str:
        part.push(7)
        return f"{text}: {limpet.wait_signal('approved')}"

    report.using(id="report-1").push(HOSTILE)
    drain(fleet)
    fleet.queue("reports").signal("report-1", "approved", HOSTILE)
    drain(fleet)
    page.goto(dashboard.at("queue/reports/report-1"))
    dialog = page.get_by_role("dialog", name="report-1")
    expect(dialog.locator("dl")).to_contain_text("Handler took")
    assert dialog.locator(".steps summary .badge").all_inner_texts() == ["push", "signal"]
    signal = dialog.locator("tr", has_text="approved")
    expect(signal).to_contain_text(fleet.runtime.label)
    expect(signal).to_contain_text("<img src=x")
    dialog.locator("tr", has_text="parts").get_by_role("link").click()
    child = page.get_by_role("dialog").filter(has_text="Pushed by")
    expect(child).to_contain_text("49")
    child.get_by_role("link", name="report-1").click()
    expect(page.get_by_role("dialog", name="report-1")).to_contain_text("completed")
    assert page.locator("main img, dialog img, dialog script").count() == 0
    assert "hacked" not in page.title()

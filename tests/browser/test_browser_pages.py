"""The dashboard in a real browser: what it shows, how it follows the fleet, and that nothing stored acts in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from browser.conftest import Dashboard
from limpet.testing import drain
from support.dashboard import HOLDER, HOSTILE, WAITING
from support.servers.catalog import start_server

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

PLACES = (
    "",
    "queues",
    "queue/enrich",
    "queue/shipping",
    "indexes",
    "index/companies",
    "catalog",
    "catalog/sales/orders",
    "locks",
    "store",
)


def tile(page: Any, label: str) -> Any:
    """The figure of a tile."""
    return page.locator(".tile", has=page.get_by_text(label, exact=True)).locator(".value")


def test_overview_loads(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at())
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    row = page.locator("tr", has=page.get_by_role("link", name="enrich", exact=True))
    expect(row).to_contain_text("14")
    expect(page.locator(".alerts")).to_contain_text("failed; the limit is 0")
    expect(page.get_by_role("link", name="companies").first).to_be_visible()
    expect(page.locator("#live")).to_have_attribute("data-state", "live")


def test_last_hour_is_drawn_and_its_source_named(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at())
    expect(page.locator(".source")).to_contain_text("depth by what this page's server has seen since")
    expect(page.locator("svg.spark[aria-label*='had not ended']").first).to_be_attached()
    page.goto(dashboard.at("queue/enrich"))
    expect(page.get_by_text("Depth, last hour")).to_be_visible()


def test_undrop_while_a_service_leads_is_explained(page: Any, dashboard: Dashboard) -> None:
    with dashboard.fleet.lead_catalog():
        page.goto(dashboard.at("catalog"))
        page.get_by_role("button", name="Undrop").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Undrop").click()
        expect(page.get_by_role("dialog")).to_contain_text("limpet catalog undrop sales.refunds --service URL")


def test_live_update_while_tasks_run(page: Any, dashboard: Dashboard) -> None:
    fleet = dashboard.fleet

    @fleet.task("live")
    def live(n: int) -> int:
        return n

    page.goto(dashboard.at())
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    for n in range(7):
        live.push(n)
    row = page.locator("tr", has=page.get_by_role("link", name="live", exact=True))
    expect(row.locator("td").nth(1)).to_have_text("7")
    page.evaluate("window.here = 1")
    drain(fleet)
    expect(row.locator("td").nth(1)).to_have_text("0")
    assert page.evaluate("window.here") == 1  # without a reload


def test_queue_page_shows_who_works_on_what(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at("queue/enrich"))
    work = page.locator(".panel", has=page.get_by_role("heading", name="At work"))
    expect(work).to_contain_text("59 of 100")
    expect(work).to_contain_text(HOLDER)
    expect(page.locator(".panel", has=page.get_by_role("heading", name="Scheduled"))).to_contain_text("in ")
    failures = page.locator(".panel", has=page.get_by_role("heading", name="Failures"))
    failures.get_by_text("TimeoutError: no answer from slow#.example after # s").click()
    failures.locator("details[open] button.open").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("attempt 2")
    expect(dialog).to_contain_text("Traceback (most recent call last)")
    expect(dialog).to_contain_text("slow")
    link = page.evaluate("location.href")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(dashboard.at("queue/enrich"))
    page.goto(link)  # to the task
    expect(page.get_by_role("dialog")).to_contain_text("Traceback (most recent call last)")


def test_a_suspended_task_shows_its_reason_and_its_steps(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at("queue/shipping"))
    suspended = page.locator(".panel", has=page.get_by_role("heading", name="Suspended, without a worker"))
    expect(suspended.locator("tr", has_text=WAITING)).to_contain_text("waiting for the signal 'approved'")
    suspended.get_by_role("button", name=WAITING).click()
    dialog = page.get_by_role("dialog")
    steps = dialog.locator(".steps")
    expect(steps.locator("summary")).to_have_count(3)
    expect(steps.locator("summary").nth(1)).to_contain_text("charge")
    expect(steps.locator("summary").nth(1)).to_contain_text(" s")
    expect(steps.locator(".waiting")).to_contain_text("waiting for the signal 'approved'")
    steps.locator("summary").nth(1).click()
    expect(steps.locator("details[open] pre")).to_contain_text('"paid": "49.00"')
    begins = steps.locator(".track i").evaluate_all("all => all.map((each) => parseFloat(each.style.marginLeft))")
    assert len(begins) == 4
    assert begins == sorted(begins), "each step begins after the one before, and the wait after all of them"


def test_an_open_task_follows_the_fleet(page: Any, dashboard: Dashboard) -> None:
    """From suspended to failed: the steps stay, and the retry says so. What was opened stays open."""

    @dashboard.fleet.task("returns", max_attempts=1)
    def returned(number: int) -> None:
        limpet.step(int, "7", name="reserve")
        limpet.wait_signal("approved")
        raise RuntimeError("no van today")

    returned.using(id="return-7").push(7)
    drain(dashboard.fleet)
    page.goto(dashboard.at("queue/returns/return-7"))
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("waiting for the signal 'approved'")
    dialog.locator(".steps summary").first.click()
    expect(dialog.get_by_role("button", name="Cancel the task")).to_be_visible()
    dashboard.fleet.queue("returns").signal("return-7", "approved", "ann")
    drain(dashboard.fleet)
    expect(dialog.locator("dl")).to_contain_text("failed")
    expect(dialog).to_contain_text("RuntimeError: no van today")
    expect(dialog.locator(".steps .waiting")).to_have_count(0)
    assert dialog.locator(".steps summary .badge").all_inner_texts() == ["step", "signal"]
    expect(dialog.locator(".steps details[open] pre")).to_have_text("7")
    dialog.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("dialog")).to_contain_text("limpet queue retry returns return-7 --from-scratch")


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_a_timeline_says_how_long_each_step_was_and_fits(
    page: Any, dashboard: Dashboard, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})

    @dashboard.fleet.task(f"long-{size[0]}")
    def long() -> None:
        limpet.step(int, "7", name="a step whose name is as long as a sentence")
        limpet.sleep(3600)

    long.using(id="one").push()
    drain(dashboard.fleet)
    page.goto(dashboard.at(f"queue/long-{size[0]}/one"))
    steps = page.get_by_role("dialog").locator(".steps")
    expect(steps.locator("summary").nth(1)).to_contain_text("of 3600 s")
    expect(steps.locator("summary").nth(1)).to_contain_text("60 min")
    expect(steps.locator(".waiting")).to_contain_text("sleeping until")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    name = steps.locator("summary .error").first.bounding_box()
    assert name["width"] >= 90, "not one letter below the other"


def test_the_list_of_queues_tells_what_is_idle_on_a_phone_too(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at())
    shipping, thumbnails = (
        page.locator("main tr", has=page.get_by_role("link", name=name, exact=True))
        for name in ("shipping", "thumbnails")
    )
    expect(shipping.get_by_title("waiting for the signal 'approved'")).to_have_text("1 suspended")
    expect(thumbnails.get_by_text("1 resting")).to_be_hidden()  # there is a column for it
    page.set_viewport_size({"width": 390, "height": 844})
    expect(shipping.get_by_text("1 suspended")).to_be_visible()
    expect(shipping.get_by_text("resting")).to_have_count(0)
    expect(thumbnails.get_by_text("1 resting")).to_be_visible()


def test_workers_are_shown(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at())
    workers = page.locator(".panel", has=page.get_by_role("heading", name="Workers"))
    expect(workers.locator("tr", has_text="fargate-7c2f")).to_contain_text("alive")
    expect(tile(page, "Workers alive")).to_have_text("4")


def test_retry_a_failed_group(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at("queue/enrich"))
    group = page.locator("details.group", has_text="RuntimeError: # Too Many Requests")
    group.get_by_role("button", name="Retry").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Too Many Requests")
    expect(dialog).to_contain_text("(4)")
    dialog.get_by_role("button", name="Retry the group").click()
    expect(page.locator(".toast")).to_contain_text("4 tasks of enrich wait again")
    expect(group).to_have_count(0)


def test_pause_resume_and_push(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at("queue/thumbnails"))
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator("main .badge", has_text="paused")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Push a task").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Payload, as JSON").fill("{")
    dialog.get_by_role("button", name="Push").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not JSON")
    dialog.get_by_label("Payload, as JSON").fill('{"image": "dog.png"}')
    dialog.get_by_label("Id").fill("dog.png")
    dialog.get_by_role("button", name="Push").click()
    expect(page.get_by_role("button", name="dog.png")).to_be_visible()
    page.get_by_role("button", name="dog.png").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the task").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the task").click()
    expect(page.get_by_role("button", name="dog.png")).to_have_count(0)


def test_find_a_record_and_run_sql(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at("index/companies"))
    expect(page.locator("svg.map rect")).to_have_count(256)
    page.get_by_label("The domain of a record").fill("company7.example")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("Tyrell 7")
    page.get_by_label("SQL").fill("select country, count(*) as n from companies group by country order by country")
    page.keyboard.press("Control+Enter")
    expect(page.locator("main")).to_contain_text("4 rows")
    page.get_by_label("SQL").fill("select * from read_csv('/etc/passwd')")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("root:")


def test_browse_a_table_compare_versions_and_undrop(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at("catalog"))
    page.get_by_role("link", name="orders").click()
    expect(page.locator("main")).to_contain_text("The number on the invoice")
    expect(page.locator("main")).to_contain_text("current")
    page.get_by_label("Older version").select_option("4")
    page.get_by_role("button", name="Compare").click()
    difference = page.locator(".panel", has=page.get_by_role("heading", name="From version 4 to"))  # the newest
    expect(difference).to_contain_text("web.visits")
    page.get_by_role("button", name="Undrop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("sales.refunds")
    dialog.get_by_role("button", name="Undrop").click()
    expect(page.get_by_role("link", name="refunds")).to_be_visible()
    expect(page.get_by_role("button", name="Undrop")).to_have_count(0)


def test_locks_and_store(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at("locks"))
    expect(page.locator("tr", has_text="deploy")).to_contain_text("held")
    free = page.locator(".panel", has=page.get_by_role("heading", name="Free"))
    expect(free.locator("tr", has_text="nightly-report")).to_contain_text("ago")
    page.goto(dashboard.at("store"))
    expect(tile(page, "A GET takes")).to_contain_text("ms")


def test_dark_mode(browser: Any, page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at())
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(background) != light
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    context = browser.new_context(color_scheme="dark")
    by_system = context.new_page()
    by_system.goto(dashboard.at())
    assert by_system.evaluate("document.documentElement.dataset.theme") == "dark"
    context.close()


@pytest.mark.parametrize("width", [390, 1600])
def test_every_page_fits_its_width(page: Any, dashboard: Dashboard, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    for place in PLACES:
        page.goto(dashboard.at(place))
        expect(page.locator("main h1").first).to_be_visible()
        expect(page.locator("main")).not_to_contain_text("Reading")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place


def shown_task(page: Any) -> None:
    page.locator("details.group summary").first.click()
    page.locator("details[open] button.open").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("Payload")


def opened_ended(page: Any) -> None:
    page.locator("details.ended summary").click()
    expect(page.locator("details.ended tbody tr").first).to_be_visible()


def searched(page: Any) -> None:
    page.get_by_label("Search what is listed").fill("slow")
    expect(page.locator(".search")).to_contain_text("that are listed")
    page.get_by_label("Search what is listed").fill("")


def found_record(page: Any) -> None:
    page.get_by_label("The domain of a record").fill("company7.example")
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".answer")).to_contain_text("employees")


def run_sql(page: Any) -> None:
    page.get_by_role("button", name="Run").click()
    expect(page.locator("main")).to_contain_text("20 rows")


def compared(page: Any) -> None:
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("main")).to_contain_text("From version")


def test_open_pages_ask_nothing_while_the_fleet_is_idle(page: Any, dashboard: Dashboard) -> None:
    """The feed alone reads the fleet, at most 200 requests an hour (`tests/app/test_overview.py`)."""
    acts: list[tuple[str, Sequence[Callable[[Any], None]]]] = [
        ("", ()),
        ("queue/enrich", (opened_ended, searched, shown_task)),
        ("index/companies", (found_record, run_sql)),
        ("catalog/sales/orders", (compared,)),
        ("locks", ()),
        ("store", ()),
    ]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for place, act_by_act in acts:
        page.goto(dashboard.at(place))
        page.reload()
        expect(page.locator("main h1").first).to_be_visible()
        expect(page.locator("main")).not_to_contain_text("Reading")
        for act in act_by_act:
            act(page)
        live = page.locator("#live")
        expect(live).to_have_attribute("data-state", "live")
        page.wait_for_timeout(1050)  # the server reads everything at most once a second
        asked.clear()
        before = live.get_attribute("title")
        assert dashboard.server.ask("POST", "/ui/api/refresh", {}, {"x-limpet-ui": "1"}).status == 200
        expect(live).not_to_have_attribute("title", before)  # a new overview came, in which nothing has changed
        page.wait_for_timeout(100)
        assert asked == [], place


def test_keyboard_reaches_everything(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at())
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.locator("#skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached: set[str] = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.key ?? document.activeElement.id"))
    assert {"#/queues", "#/store", "theme", "refresh", "skip", "#/queue/enrich"} <= reached


def test_hostile_names_and_payloads_are_text(page: Any, dashboard: Dashboard) -> None:
    page.goto(dashboard.at())
    expect(page.get_by_role("link", name=HOSTILE).first).to_be_visible()
    page.get_by_role("link", name=HOSTILE).last.click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    page.get_by_role("button", name=HOSTILE).click()
    expect(page.get_by_role("dialog").locator("pre")).to_contain_text("onerror")
    page.goto(dashboard.at("queue/enrich"))
    expect(page.locator("details.group", has_text="not a domain")).to_contain_text("<script>")
    assert "hacked" not in page.title()
    assert page.locator("main img, main script").count() == 0


def test_wrong_token_is_refused(page: Any, tmp_path: Path, dashboard: Dashboard) -> None:
    secret = tmp_path / "token"
    secret.write_text("the-token-of-this-test\n")
    secret.chmod(0o600)
    server = start_server(dashboard.fleet.url, "--token-file", str(secret), verb="ui")
    try:
        page.goto(f"{server.url}/ui")
        field = page.get_by_label("Token")
        field.fill("not-the-token-of-this-test")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("This token is not accepted.")
        expect(page.locator("main")).not_to_contain_text("enrich")
        page.get_by_label("Token").fill("the-token-of-this-test")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.get_by_role("link", name="enrich", exact=True).last).to_be_visible()
    finally:
        server.kill()


def test_read_only_page_has_no_buttons(page: Any, dashboard: Dashboard) -> None:
    server = start_server(dashboard.fleet.url, "--read-only", verb="ui")
    try:
        page.goto(f"{server.url}/ui#/queue/enrich")
        expect(page.locator("main .badge", has_text="read-only")).to_be_visible()
        expect(page.get_by_role("button", name="Push a task")).to_have_count(0)
        expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    finally:
        server.kill()

"""Take the pictures of the dashboard that the README and the docs show: a sample fleet, Chromium, docs/img.

    .venv/bin/python tools/screenshots.py

Each picture stays below 150 KB; a larger one is an error. Times in the sample are moved back, so that there is a past.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from playwright.sync_api import sync_playwright  # noqa: E402

from browser.conftest import FLAGS, Dashboard, dashboard_of  # noqa: E402
from support.dashboard import GONE, WAITING  # noqa: E402

__all__ = ["main"]

IMAGES = ROOT / "docs" / "img"
BYTES_MAX = 150_000
SETTLE_MS = 900
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
PLACES = {
    "overview": "",
    "queue": "queue/enrich",
    "index": "index/companies",
    "catalog": "catalog/sales/orders",
    "task": f"queue/shipping/{WAITING}",
}
SHOTS = (
    ("overview", "desktop", "light"),
    ("overview", "phone", "light"),
    ("queue", "desktop", "dark"),
    ("task", "desktop", "light"),
    ("index", "desktop", "light"),
    ("catalog", "desktop", "dark"),
)


def _with_a_past(folder: Path) -> None:
    """Spread the ends of tasks over the last hour, as if workers had been busy; and let one worker be gone."""
    chance = random.Random(7)
    for receipt in sorted(folder.glob("queues/enrich/completed/*")):
        wave = abs(math.sin(chance.random() * math.pi)) * 3500
        os.utime(receipt, (time.time() - wave, time.time() - wave))
    for gone in folder.glob(f"workers/{GONE}*"):
        os.utime(gone, (time.time() - 900, time.time() - 900))


def _take(browser: Any, dashboard: Dashboard, name: str, size: str, scheme: str) -> None:
    viewport = DESKTOP if size == "desktop" else PHONE
    context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(dashboard.at(PLACES[name]))
    page.locator("main h1").first.wait_for()
    if name == "index":
        page.get_by_label("SQL").fill(
            "select country, count(*) as companies, sum(employees) as employees\nfrom companies group by country"
        )
        page.get_by_role("button", name="Run").click()
        page.get_by_label("The domain of a record").fill("company7.example")
        page.get_by_role("button", name="Find").click()
    page.wait_for_timeout(SETTLE_MS)
    page.evaluate("scrollTo(0, 0)")
    file = IMAGES / f"ui-{name}-{size}-{scheme}.png"
    page.screenshot(path=str(file))
    context.close()
    taken = file.stat().st_size
    print(f"{file.relative_to(ROOT)}  {taken:,} bytes")
    if taken > BYTES_MAX:
        sys.exit(f"{file.name} has more than {BYTES_MAX:,} bytes")


def main() -> None:
    """Take all pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium; apt-get install chromium")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="acme-") as scratch:
        folder = Path(scratch) / "prod"
        with dashboard_of(folder, hostile=False) as dashboard, sync_playwright() as playwright:
            _with_a_past(folder)
            browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
            for name, size, scheme in SHOTS:
                _take(browser, dashboard, name, size, scheme)
            browser.close()


if __name__ == "__main__":
    main()

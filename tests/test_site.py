"""The documentation as a site: it builds, every link holds, nothing is loaded from elsewhere; figures and examples."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.docs import PAGES, ROOT, blocks

SITE = runpy.run_path(str(ROOT / "tools" / "make_site.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    SITE["build"](folder)
    return folder


def test_every_link_holds_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert SITE["broken"](site) == []
    made = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert {str(page.relative_to(ROOT).with_suffix(".html")) for page in PAGES[1:]} <= made
    found = {each["location"] for each in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    assert "docs/inside/architecture.html" in found
    assert not [location for location in found if location.startswith("docs/inside/decisions/")]


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    links = ("b.html#there", "b.html#gone", "c.html", "https://example.test/", "#here")
    page = (
        "".join(f'<a href="{link}"></a>' for link in links) + '<p id="here"></p><script src="//cdn.test/x.js"></script>'
    )
    (tmp_path / "a.html").write_text(page)
    (tmp_path / "b.html").write_text('<h2 id="there"></h2><img src="no.png">')
    (tmp_path / "s.css").write_text("@import url(https://fonts.test/a.css)")
    assert SITE["broken"](tmp_path) == [
        "a.html links to b.html#gone: there is no such anchor",
        "a.html links to c.html, which is not there",
        "a.html loads //cdn.test/x.js",
        "b.html links to no.png, which is not there",
        "s.css loads https://fonts.test/a.css",
    ]


def _listed(entries: Any) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    parts = entries.values() if isinstance(entries, dict) else entries
    return [each for part in parts for each in _listed(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = _listed(SITE["nav"](ROOT))
    assert len(listed) == len({*listed})
    assert {str(page.relative_to(ROOT)) for page in PAGES} <= {*listed}
    assert all((ROOT / name).is_file() for name in listed)


def test_a_list_gets_an_empty_line_before_it() -> None:
    text = "a\n- one\n  more\n- two\n\n```\nb\n- code\n```\n1. first\nlazy\n2. second\n"
    assert SITE["spaced"](text) == "a\n\n- one\n  more\n- two\n\n```\nb\n- code\n```\n\n1. first\nlazy\n2. second\n"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "json") or blocks(page, "yaml")], ids=lambda page: page.name
)
def test_examples_in_json_and_yaml_parse(page: Path) -> None:
    for body in blocks(page, "json"):
        json.loads(body)
    for body in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(body), dict)


def test_the_workflow_of_the_page_fits_its_schema(tmp_path: Path) -> None:
    [body] = blocks(ROOT / "docs" / "run" / "deploy.md", "yaml")
    (tmp_path / "work.yml").write_text(body)
    tool = str(Path(sys.executable).parent / "check-jsonschema")
    command = [tool, "--builtin-schema", "vendor.github-workflows", str(tmp_path / "work.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


SECTIONS = {
    "Queues": "queue.md",
    "Queues that are 30 ms away": "queue-far.md",
    "Procrastinate": "queue-procrastinate.md",
    "Durable tasks": "durable.md",
    "Tables of records": "index.md",
    "Catalogs": "catalog.md",
}


def test_every_figure_of_the_comparisons_is_in_the_recorded_results() -> None:
    text = (ROOT / "docs" / "trust" / "comparisons.md").read_text()
    seen = 0
    for title, name in SECTIONS.items():
        section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        [command] = re.findall(rf"`(python bench/[^`]+)`\swrote \[\S+\]\((?:\.\./)+bench/results/{name}\)", section)
        assert command in (ROOT / "bench" / "results" / name).read_text()
        results = {cell.strip() for cell in re.split(r"[|\n]", (ROOT / "bench" / "results" / name).read_text())}
        words = {word.removesuffix("/s") for cell in results for word in cell.replace("(", " ").split()}
        for row in re.findall(r"^\|(.*)\|$", section, re.M):
            for cell in row.split("|")[1:]:
                figure = re.match(r"\s*([\d.,]+k?)(?:/s| s| ms| MB)?\s*(?:\(|$)", cell)
                if figure:
                    seen += 1
                    assert figure[1] in words, f"{title}: {cell.strip()} is not in bench/results/{name}"
    assert seen > 50

"""Build the documentation as a static site: `make docs`, or `.venv/bin/python tools/make_site.py [FOLDER]`.

The pages are those of the repository, at the same places, so that every link in them holds: README.md, docs/, bench/
and deploy/. Nothing is loaded from elsewhere: no fonts, no scripts, no images. The site can be read from a disk; its
search needs a server on this machine, such as `python -m http.server -d build/site`. When it is built, every link and
anchor of every page is checked.

What is in the navigation follows from the folders: a page that is added to docs/use or docs/run is listed there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import yaml

__all__ = ["SITE", "broken", "build", "config", "copy_pages", "main", "nav", "spaced"]

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "Makefile")
FOLDERS = ("docs", "bench", "deploy")
USE = ("quickstart", "tasks", "durable-tasks", "index", "tables", "locks", "testing")
RUN = ("first-fleet", "stores", "roles", "serve", "look", "backup", "upgrade", "costs", "offline-nodes", "deploy")
TRUST = ("guarantees", "failures", "threat-model", "not-for", "comparisons")
REFERENCE = ("install", "cli", "python", "http", "iceberg", "bucket", "roles", "costs", "house")
"""Pages that come first in their folder, if they are there; the others follow by name."""

UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
"""Before a page that the search leaves out: reasons of a decision hide the page that a reader looks for."""
STYLE = "site.css"
WIDE = ".md-grid { max-width: 82rem; }\n.md-typeset pre > code { font-size: 0.65rem; }\n"
"""Code on these pages has up to 120 characters in a line."""


def copy_pages(to: Path) -> None:
    """Copy what the site is made of, and what its pages link to; an overview for each folder that has none."""
    for name in TOP:
        shutil.copy(ROOT / name, to)
    ignored = shutil.ignore_patterns("__pycache__", "*.py[co]")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, to / name, ignore=ignored)
    for page in [*to.rglob("*.md")]:
        for target in _linked(page):
            _bring(to, target)
    (to / STYLE).write_text(WIDE)
    for page in to.rglob("*.md"):
        unlisted = UNSEARCHED if page.is_relative_to(to / "docs" / "inside" / "decisions") else ""
        page.write_text(unlisted + spaced(page.read_text()))


def spaced(text: str) -> str:
    """The page with an empty line before each list: Python-Markdown wants one, GitHub does not."""
    lines: list[str] = []
    fenced = listed = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        begins = not fenced and re.match(r"(- |\d+\. )", line) is not None
        if begins and not listed and lines and lines[-1].strip():
            lines.append("")
        listed = begins or (listed and bool(line.strip()))
        lines.append(line)
    return "\n".join(lines) + "\n"


def _linked(page: Path) -> Iterator[Path]:
    """The files and folders that a page links to, below its place; code is passed over."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path = urldefrag(link)[0]
        if path and not re.match("[a-z]+:", path):
            yield Path(os.path.normpath(page.parent / path))


def _bring(to: Path, target: Path) -> None:
    source = ROOT / target.relative_to(to)
    if source.is_file() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    elif source.is_dir() and not any((target / name).exists() for name in ("README.md", "index.md")):
        target.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in source.iterdir() if path.is_file() and not path.name.startswith("."))
        rows = [f"- [{_title(source / name) if name.endswith('.md') else name}]({name})" for name in names]
        (target / "README.md").write_text(f"# {source.relative_to(ROOT)}\n\n" + "\n".join(rows) + "\n")
        for name in names:
            _bring(to, target / name)


def nav(pages: Path) -> list[Any]:
    """The navigation, from what is there."""

    def those(folder: str, first: Sequence[str] = ()) -> list[str]:
        found = {path.stem: path.relative_to(pages).as_posix() for path in (pages / folder).glob("*.md")}
        order = [*(name for name in first if name in found), *sorted(found.keys() - {*first})]
        return [found[name] for name in order]

    groups = {
        "Use": those("docs/use", USE),
        "Run": [*those("docs/run", RUN), "deploy/README.md"],
        "Trust": those("docs/trust", TRUST),
        "Inside": [*those("docs/inside", ("architecture", "glossary")), *those("docs/inside/decisions")],
        "Reference": those("docs/reference", REFERENCE),
        "Measurements": ["bench/README.md", *those("bench/results")],
        "Project": ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"],
    }
    return [{"Limpet": "README.md"}, *({title: entries} for title, entries in groups.items() if entries)]


def config(pages: Path, site: Path) -> dict[str, Any]:
    """What mkdocs is told."""
    palettes = [("default", "Dark", "weather-night"), ("slate", "Light", "weather-sunny")]
    return {
        "site_name": "Limpet",
        "site_description": "Run a whole fleet from one bucket.",
        "docs_dir": str(pages),
        "site_dir": str(site),
        "use_directory_urls": False,
        "nav": nav(pages),
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.tabs", "navigation.top", "search.highlight", "toc.follow"],
            "palette": [
                {"scheme": scheme, "primary": "teal", "toggle": {"icon": f"material/{icon}", "name": name}}
                for scheme, name, icon in palettes
            ],
        },
        "plugins": ["search"],
        "extra": {"generator": False},
        "extra_css": [STYLE],
        "markdown_extensions": [
            "tables",
            "pymdownx.highlight",
            "pymdownx.superfences",
            {"toc": {"permalink": True, "slugify": _slugs()}},
        ],
        "validation": {"nav": {"omitted_files": "ignore"}, "links": {"unrecognized_links": "ignore"}},
    }


def _slugs() -> Any:
    """Anchors as GitHub makes them, so that links work there and here."""
    from pymdownx.slugs import slugify

    return slugify(case="lower")


def _title(page: Path) -> str:
    found = re.search("^# (.*)", page.read_text(), re.M)
    return found[1] if found else page.name


def build(site: Path = SITE) -> None:
    """Build the site anew.   Raises: SystemExit if mkdocs fails."""
    work = site.parent / f"{site.name}-pages"
    for folder in (work, site):
        shutil.rmtree(folder, ignore_errors=True)
    work.mkdir(parents=True)
    copy_pages(work)
    file = site.parent / f"{site.name}.yml"
    file.write_text(yaml.dump(config(work, site), sort_keys=False))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    shutil.rmtree(work)
    file.unlink()
    if done.returncode:
        sys.exit(f"mkdocs failed ({done.returncode})")


class _Page(HTMLParser):
    """The links, the ids, and what a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("link", "script", "img", "iframe", "source"):
            self.loads += [found[name] for name in ("href", "src") if name in found]


def broken(site: Path) -> list[str]:
    """Links to pages, files and anchors that are not there, and whatever is loaded from elsewhere."""
    pages = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where} loads {each}" for each in page.loads if re.match("([a-z]+:)?//", each)]
        for link in [*page.links, *(each for each in page.loads if not re.match("([a-z]+:)?//|data:", each))]:
            target, anchor = urldefrag(link)
            if re.match("[a-z]+:", target) or path.name == "404.html":
                continue
            file = Path(os.path.normpath(path.parent / unquote(target))) if target else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                found.append(f"{where} links to {link}, which is not there")
            elif anchor and file in pages and unquote(anchor) not in pages[file].ids:
                found.append(f"{where} links to {link}: there is no such anchor")
    for style in site.rglob("*.css"):
        found += [
            f"{style.name} loads {each}" for each in re.findall(r"url\([\"']?(https?:[^)\"']+)", style.read_text())
        ]
    return sorted({*found})


def main(folder: Sequence[str]) -> int:
    """Build the site, check it, and say where it is."""
    site = Path(folder[0]).resolve() if folder else SITE
    build(site)
    found = broken(site)
    print("\n".join(found) or f"{len([*site.rglob('*.html')])} pages, every link checked: {site / 'index.html'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The picture: a panel for upserts, one for lookups, one for scans, a bar or two a system. Plain SVG, no library.

Scales are logarithmic and a short bar is good. Style, background and dark mode are those of the queue's picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from bench.indexes.rows import Row
from bench.queues.plot import STYLE

__all__ = ["picture"]

WIDTH, LEFT, RIGHT, TOP = 900, 170, 90, 48
BAR, GAP, HEAD, FOOT = 12, 8, 46, 34
PLOT = WIDTH - LEFT - RIGHT


@dataclass(frozen=True, slots=True)
class _Panel:
    """One comparison. Each bar has a shade, a name, and how it is read from a row."""

    title: str
    unit: str
    bars: tuple[tuple[int, str, Callable[[Row], float | None]], ...]

    def values(self, row: Row) -> Iterator[tuple[int, float]]:
        """The bars of a row: shade and value."""
        for shade, _, read in self.bars:
            value = read(row)
            if value:
                yield shade, value

    def height(self, row: Row) -> int:
        """How tall the row's bars are together."""
        return GAP + BAR * len([*self.values(row)])


def _cold_ms(row: Row) -> float | None:
    return row.cold["ms"] if row.cold else None


PANELS = (
    _Panel(
        "Upsert",
        "s",
        (
            (1, "until every reader sees it", lambda row: row.upsert_s),
            (0, "and settled: compiled, compacted, indexed", lambda row: row.upsert_both_s),
        ),
    ),
    _Panel(
        "Lookup by key",
        "ms",
        ((1, "with an open handle", lambda row: row.lookup_ms), (0, "new process, handle opened", _cold_ms)),
    ),
    _Panel("Scan: count and sum by month", "s", ((1, "one query", lambda row: row.scan_s()),)),
)


def picture(rows: Sequence[Row], title: str) -> str:
    """An SVG of all panels. Ours come first, then the quickest."""
    y = TOP
    parts: list[str] = []
    for panel in PANELS:
        shown = [row for row in rows if [*panel.values(row)]]
        shown.sort(key=lambda row: (row.system.kind != "ours", min(value for _, value in panel.values(row))))
        parts += _panel(panel, shown, y)
        y += HEAD + sum(panel.height(row) for row in shown) + FOOT
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
        f' role="img" aria-label="Seconds to upsert, look up and scan, by system">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{y}" rx="6"/>\n'
        f'<text class="title" x="16" y="28">{escape(title)}</text>\n{body}\n</svg>\n'
    )


def _panel(panel: _Panel, rows: Sequence[Row], top: int) -> Iterator[str]:
    values = [value for row in rows for _, value in panel.values(row)]
    low, high = floor(log10(min(values, default=1.0))), ceil(log10(max(values, default=10.0)))
    high = max(high, low + 1)
    yield f'<text class="ours-name" x="16" y="{top + 14}">{panel.title}, {panel.unit}; a short bar is good</text>'
    x = 16
    for shade, name, _ in panel.bars:
        yield f'<rect class="ours{shade}" x="{x}" y="{top + 22}" width="12" height="12"/>'
        yield f'<rect class="peer{shade}" x="{x + 14}" y="{top + 22}" width="12" height="12"/>'
        yield f'<text class="axis" x="{x + 32}" y="{top + 32}">{name}</text>'
        x += 60 + 6 * len(name)
    y = top + HEAD
    bottom = y + sum(panel.height(row) for row in rows)
    for power in range(low, high + 1):
        at = _x(10.0**power, low, high)
        yield f'<line class="grid" x1="{at:.1f}" y1="{y - 4}" x2="{at:.1f}" y2="{bottom}"/>'
        yield f'<text class="axis" x="{at:.1f}" y="{bottom + 13}" text-anchor="middle">{10.0**power:g}</text>'
    for row in rows:
        yield from _bars(panel, row, y, low, high)
        y += panel.height(row)


def _bars(panel: _Panel, row: Row, top: int, low: int, high: int) -> Iterator[str]:
    kind = "ours" if row.system.kind == "ours" else "peer"
    weight = "ours-name" if kind == "ours" else "name"
    middle = top + (panel.height(row) - GAP) / 2 + 4
    yield f'<text class="{weight}" x="{LEFT - 10}" y="{middle:.1f}" text-anchor="end">{escape(row.system.name)}</text>'
    for shade, value in panel.values(row):
        end = _x(value, low, high)
        yield f'<rect class="{kind}{shade}" x="{LEFT}" y="{top}" width="{max(end - LEFT, 1):.1f}" height="{BAR - 2}"/>'
        yield f'<text class="value" x="{end + 5:.1f}" y="{top + BAR - 3}">{value:.3g}</text>'
        top += BAR


def _x(value: float, low: int, high: int) -> float:
    return LEFT + PLOT * (log10(value) - low) / (high - low)

"""The picture: one block of bars a system, one bar a backlog, on a logarithmic scale. Plain SVG, no library.

It brings its own background and follows the reader's light or dark mode, so it can be read wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10

from bench.queues.rows import Row, Scale

__all__ = ["picture"]

WIDTH, LEFT, RIGHT, TOP = 900, 250, 80, 78
BAR, GAP = 13, 10
PLOT = WIDTH - LEFT - RIGHT
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .ours-name { font-weight: 700; }
  .value, .axis { font-size: 11px; fill: #59636e; }
  .paper { fill: #ffffff; }
  .grid { stroke: #d1d9e0; }
  .peer0 { fill: #b6c2cf; } .peer1 { fill: #7d8fa3; } .peer2 { fill: #4d5f73; }
  .ours0 { fill: #8fd3c8; } .ours1 { fill: #2f9e8f; } .ours2 { fill: #14665b; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .value, .axis { fill: #9aa5b1; }
    .paper { fill: #0d1117; }
    .grid { stroke: #2d333b; }
    .peer0 { fill: #4a5563; } .peer1 { fill: #76869a; } .peer2 { fill: #aab8c8; }
    .ours0 { fill: #1c6b60; } .ours1 { fill: #2fae9d; } .ours2 { fill: #93e0d5; }
  }
"""


def picture(rows: Sequence[Row], scale: Scale) -> str:
    """An SVG of tasks handled in a second by one worker. Ours come first, then the fastest."""
    backlogs = (*scale.backlogs, scale.many)
    shown = sorted(
        (row for row in rows if row.per_s(scale.judged) is not None),
        key=lambda row: (row.system.kind != "ours", -(row.per_s(scale.judged) or 0.0)),
    )
    rates = [per_s for row in shown for at in backlogs if (per_s := row.per_s(at)) is not None]
    low, high = floor(log10(min(rates, default=1.0))), ceil(log10(max(rates, default=10.0)))
    blocks = "\n".join(_blocks(shown, backlogs, low, high))
    height = TOP + sum(_block_height(row, backlogs) for row in shown) + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        f' role="img" aria-label="Tasks a second by system and backlog">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>\n'
        '<text class="title" x="16" y="28">Tasks a second, one worker, tmpfs</text>\n'
        + "\n".join([*_legend(backlogs), *_grid(low, high, height)])
        + f"\n{blocks}\n</svg>\n"
    )


def _legend(backlogs: Sequence[int]) -> Iterator[str]:
    for i, backlog in enumerate(backlogs):
        x = 16 + i * 160
        yield f'<rect class="ours{i}" x="{x}" y="42" width="12" height="12"/>'
        yield f'<rect class="peer{i}" x="{x + 14}" y="42" width="12" height="12"/>'
        yield f'<text class="axis" x="{x + 32}" y="52">{backlog:,} pending</text>'
    x = 16 + len(backlogs) * 160
    yield f'<text class="axis" x="{x}" y="52">logarithmic: one grid line is ten times the last</text>'


def _grid(low: int, high: int, height: int) -> Iterator[str]:
    for power in range(low, high + 1):
        x = _x(10.0**power, low, high)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 24}"/>'
        yield f'<text class="axis" x="{x:.1f}" y="{height - 9}" text-anchor="middle">{10**power:,}</text>'


def _blocks(rows: Sequence[Row], backlogs: Sequence[int], low: int, high: int) -> Iterator[str]:
    y = float(TOP)
    for row in rows:
        ours = row.system.kind == "ours"
        tall = _block_height(row, backlogs)
        middle = y + (tall - GAP) / 2 + 4
        name, weight = escape(row.system.name), "ours-name" if ours else "name"
        yield f'<text class="{weight}" x="{LEFT - 10}" y="{middle:.1f}" text-anchor="end">{name}</text>'
        top = y
        for i, backlog in enumerate(backlogs):
            per_s = row.per_s(backlog)
            if per_s is not None:
                end = _x(per_s, low, high)
                kind = "ours" if ours else "peer"
                yield f'<rect class="{kind}{i}" x="{LEFT}" y="{top:.1f}" width="{end - LEFT:.1f}" height="{BAR - 2}"/>'
                yield f'<text class="value" x="{end + 5:.1f}" y="{top + BAR - 3:.1f}">{per_s:,.0f}</text>'
                top += BAR
        y += tall


def _block_height(row: Row, backlogs: Sequence[int]) -> int:
    return GAP + BAR * sum(1 for at in backlogs if row.per_s(at) is not None)


def _x(per_s: float, low: int, high: int) -> float:
    return LEFT + PLOT * (log10(per_s) - low) / max(1, high - low)

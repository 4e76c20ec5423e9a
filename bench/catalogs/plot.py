"""The picture: a panel for each place, a block of bars for each system, a bar for 1, 8 and 64 clients. Plain SVG.

Appends a second on a logarithmic scale; a long bar is good. Style and dark mode are those of the queue's picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from bench.catalogs.runs import Measured
from bench.catalogs.systems import CLIENTS
from bench.queues.plot import STYLE

__all__ = ["picture"]

WIDTH, LEFT, RIGHT, TOP = 900, 190, 90, 66
BAR, GAP, HEAD, FOOT = 12, 8, 26, 34
PLOT = WIDTH - LEFT - RIGHT

Block = tuple[str, bool, Mapping[int, float]]
"""A system, whether it is ours, and its rate by clients."""


def picture(rows: Sequence[Measured]) -> str:
    """An SVG of all places."""
    y = TOP
    parts: list[str] = []
    for place in dict.fromkeys(row.place for row in rows):
        blocks = _blocks([row for row in rows if row.place == place])
        parts += _panel(place, blocks, y)
        y += HEAD + sum(_tall(block) for block in blocks) + FOOT
    body = "\n".join([*_legend(), *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
        f' role="img" aria-label="Appends a second by place, system and clients">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{y}" rx="6"/>\n'
        '<text class="title" x="16" y="28">Appends a second; a long bar is good, the scale is logarithmic</text>\n'
        f"{body}\n</svg>\n"
    )


def _blocks(rows: Sequence[Measured]) -> list[Block]:
    """Each system once, with its smallest catalog."""
    blocks: list[Block] = []
    for name in dict.fromkeys(row.system.name for row in rows):
        mine = sorted((row for row in rows if row.system.name == name), key=lambda row: -row.tables)
        rates = {row.clients: row.figures["append"].per_s for row in mine if "append" in row.figures}
        blocks.append((name, mine[0].system.kind == "ours", {n: rate for n, rate in rates.items() if rate > 0}))
    return [block for block in blocks if block[2]]


def _legend() -> Iterator[str]:
    for shade, clients in enumerate(CLIENTS):
        x = 16 + 130 * shade
        yield f'<rect class="ours{shade}" x="{x}" y="40" width="12" height="12"/>'
        yield f'<rect class="peer{shade}" x="{x + 14}" y="40" width="12" height="12"/>'
        yield f'<text class="axis" x="{x + 32}" y="50">{clients} client{"s" if clients > 1 else ""}</text>'


def _panel(place: str, blocks: Sequence[Block], top: int) -> Iterator[str]:
    values = [rate for _, _, rates in blocks for rate in rates.values()]
    low, high = floor(log10(min(values, default=1.0))), ceil(log10(max(values, default=10.0)))
    high = max(high, low + 1)
    yield f'<text class="ours-name" x="16" y="{top + 14}">{escape(place)}</text>'
    y = top + HEAD
    bottom = y + sum(_tall(block) for block in blocks)
    for power in range(low, high + 1):
        at = _x(10.0**power, low, high)
        yield f'<line class="grid" x1="{at:.1f}" y1="{y - 4}" x2="{at:.1f}" y2="{bottom}"/>'
        yield f'<text class="axis" x="{at:.1f}" y="{bottom + 13}" text-anchor="middle">{10.0**power:g}</text>'
    for block in blocks:
        yield from _bars(block, y, low, high)
        y += _tall(block)


def _bars(block: Block, top: int, low: int, high: int) -> Iterator[str]:
    name, ours, rates = block
    kind, weight = ("ours", "ours-name") if ours else ("peer", "name")
    middle = top + (_tall(block) - GAP) / 2 + 4
    yield f'<text class="{weight}" x="{LEFT - 10}" y="{middle:.1f}" text-anchor="end">{escape(name)}</text>'
    for shade, clients in enumerate(CLIENTS):
        if clients in rates:
            end = _x(rates[clients], low, high)
            width = max(end - LEFT, 1)
            yield f'<rect class="{kind}{shade}" x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR - 2}"/>'
            yield f'<text class="value" x="{end + 5:.1f}" y="{top + BAR - 3}">{rates[clients]:.3g}</text>'
            top += BAR


def _tall(block: Block) -> int:
    return GAP + BAR * len(block[2])


def _x(value: float, low: int, high: int) -> float:
    return LEFT + PLOT * (log10(value) - low) / (high - low)

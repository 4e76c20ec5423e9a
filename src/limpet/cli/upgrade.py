"""`limpet upgrade`: raise a fleet's formats to this version's."""

from __future__ import annotations

from typing import Annotated

import typer

from limpet.cli.options import JsonOption, UrlOption, existing
from limpet.cli.output import lines, print_json, say

EPILOG = lines(
    "Example: every machine has the new limpet by now",
    "$ limpet upgrade s3://acme/prod",
    "Exit codes: 0 upgraded, or nothing to do; 1 no fleet there, or refused; 2 wrong usage.",
)


def upgrade(
    where: Annotated[
        str | None, typer.Argument(metavar="[URL]", show_default=False, help="The fleet; or use --url.")
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Raise a fleet's recorded formats to those of this limpet.

    Do it once every machine runs the new version: older ones refuse the fleet from then on. Until then a new limpet
    keeps writing the old formats, so that mixed fleets work.
    """
    fleet = existing(where or url)
    before = fleet.record
    changed = fleet.upgrade()
    after = fleet.record
    if json:
        print_json({"url": fleet.url, "changed": changed, "before": before.format, "after": after.format})
        return
    steps = [
        f"{room} {before.format.get(room, 'none')} -> {number}"
        for room, number in sorted(after.format.items())
        if before.format.get(room) != number
    ]
    if before.min_writer != after.min_writer:
        steps.append(f"writers of level {before.min_writer} -> {after.min_writer}")
    formats = ", ".join(f"{room} {number}" for room, number in sorted(after.format.items()))
    if changed:
        say(f"upgraded {fleet.url}: {', '.join(steps)}")
    else:
        say(f"nothing to do: {fleet.url} has the formats of this limpet ({formats})")

"""The planted bugs, read from the `.bugs` files beside this one, an area each.

    bug: a batch's receipt does not list its failed tasks
    row: H2
    caught by: queue seed 0
    in: queue.batch_receipt
    -failed=record.failed
    +failed=[]

A bug is a block between empty lines. `row` is its row in docs/trust/failures.md, or its origin. A scenario
with a recorded seed catches it, or one test of tests/. `import: from x import y` may follow, for names that the changes
need. Each `in` names a function; its hunk holds the code that stands there (lines with a minus or a space) and the code
that replaces it (lines with a plus or a space). Lines that begin with # above the first bug are a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from planted.bug import Bug, Change

__all__ = ["BUGS", "Bug", "BugFileError", "parse", "record"]

_HERE = Path(__file__).parent
_HEAD = re.compile(r"bug: (.+)\nrow: (.+)\ncaught by: (?:(\w+) seed (\d+)|(\S+\.py::\S+))\n(?:import: (.+)\n)?(?=in: )")
_CHANGE = re.compile(r"in: (\S+)\n((?:[-+ ].*\S.*\n)+)")


class BugFileError(Exception):
    """A block that does not have the form above."""


def parse(text: str) -> Iterator[Bug]:
    """The bugs of a file.

    Raises:
        BugFileError: a block has another form, or changes nothing.
    """
    for block in re.sub(r"\A(#.*\n)*", "", text).strip("\n").split("\n\n"):
        lines = block + "\n"
        head = _HEAD.match(lines)
        at = head.end() if head else 0
        changes = []
        while head and (hunk := _CHANGE.match(lines, at)):
            changes.append(_change(*hunk.groups()))
            at = hunk.end()
        if head is None or at < len(lines) or any(change.old in ("", change.new) for change in changes):
            raise BugFileError(f"the line {lines[at:].partition(chr(10))[0]!r} does not fit into\n{block}")
        name, row, scenario, seed, test, imports = head.groups(default="")
        yield Bug(name, row, int(seed or 0), tuple(changes), scenario or test, imports)


def _change(where: str, hunk: str) -> Change:
    lines = hunk.splitlines()
    old, new = ("\n".join(line[1:] for line in lines if line[0] in kept) for kept in ("- ", "+ "))
    return Change(where, old, new)


def record(name: str, seed: int, folder: Path = _HERE) -> None:
    """Write the seed that catches a bug into the file of the bug."""
    line = re.compile(rf"(?<=^bug: {re.escape(name)}\n)(row: .+\ncaught by: \w+ seed )\d+$", re.M)
    for path in folder.glob("*.bugs"):
        text = path.read_text(encoding="utf-8")
        if line.search(text):
            path.write_text(line.sub(rf"\g<1>{seed}", text), encoding="utf-8")


def _all() -> dict[str, Bug]:
    bugs = [bug for path in sorted(_HERE.glob("*.bugs")) for bug in parse(path.read_text(encoding="utf-8"))]
    by_name = {bug.name: bug for bug in bugs}
    if len(by_name) < len(bugs):
        raise BugFileError("two bugs have one name")
    return by_name


BUGS = _all()
"""By name."""

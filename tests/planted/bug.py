"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bug", "Change"]


@dataclass(frozen=True)
class Change:
    """`old` stands exactly once in the module's source, and becomes `new`."""

    module: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """A planted bug, where it comes from, and the seed that catches it. `scenario` may also be one test of tests/."""

    name: str
    row: str
    seed: int
    changes: tuple[Change, ...]
    scenario: str = "kernel"

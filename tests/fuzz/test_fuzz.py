"""2,000 damaged objects, of every kind: no traceback, bounded cost, and the good work beside them is done."""

from __future__ import annotations

import pytest

from fuzz.kinds import KINDS
from fuzz.run import SEED, TOTAL, beside, cases, rotated, run_case, run_names


@pytest.mark.parametrize("name", KINDS)
def test_damaged_objects_stop_nobody(name: str) -> None:
    kind = KINDS[name]
    failures = []
    for n, mutation in enumerate(cases(kind, TOTAL // len(KINDS) + 1, SEED)):
        failures += run_case(kind, mutation, rotated(kind, mutation, n))
    assert not failures, f"seed {SEED}:\n" + "\n".join(map(str, failures[:20]))


ROOMS = {(kind.room, kind.place): kind for kind in KINDS.values()}
"""A kind of each room, for its fleet and its readers."""


@pytest.mark.parametrize("data", [None, b"{"], ids=["copies", "other bytes"])
@pytest.mark.parametrize("room", ROOMS, ids=lambda room: "-".join(filter(None, room)))
def test_names_that_nobody_wrote_stop_nobody(room: tuple[str, str], data: bytes | None) -> None:
    """Objects with hostile names, and with names that look like ours, lie in every folder beside the good ones."""
    kind = ROOMS[room]
    consumers = [each for of in KINDS.values() if (of.room, of.place) == room for each in of.consumers]
    names = beside(kind)
    for consumer in dict.fromkeys(consumers):
        error = run_names(kind, consumer, names, data)
        if error is not None:
            guilty = names
            while len(guilty) > 1:
                halves = [dict([*guilty.items()][n::2]) for n in (0, 1)]
                found = [half for half in halves if run_names(kind, consumer, half, data)]
                if not found:
                    break
                guilty = found[0]
            raise AssertionError(f"{consumer.__name__}: {error!r}, because of {[*guilty][:10]}") from error

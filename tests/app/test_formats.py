"""Which fleets this version may read, write and upgrade."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from limpet.app.record import CURRENT, LEVEL, FleetRecord, check_record, fresh, may_write, upgraded
from limpet.kernel.errors import Unsupported
from limpet.kernel.store.probe import Findings

FINDINGS = Findings(conditional=True, etag_style="quoted", at="2026-03-01T00:00:00+00:00", by="limpet 0.1.0")


def record(**changes: Any) -> FleetRecord:
    return msgspec.structs.replace(fresh(FINDINGS), **changes)


def test_a_fresh_fleet_may_be_read_and_written() -> None:
    check_record(fresh(FINDINGS), where="here")
    assert may_write(fresh(FINDINGS))
    assert fresh(FINDINGS).format == CURRENT
    assert fresh(FINDINGS).format is not CURRENT


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": {**CURRENT, "queue": 2}}, "queue format 2"),
        ({"format": {**CURRENT, "queue": 2, "index": 3}}, "index format 3, queue format 2"),
        ({"format": {**CURRENT, "garden": 1}}, "garden format 1"),
        ({"features": ["zstd"]}, "feature 'zstd'"),
        ({"features": ["b", "a"]}, "feature 'a', feature 'b'"),
        ({"min_reader": LEVEL + 1}, f"readers of level {LEVEL + 1}"),
        ({"min_reader": LEVEL + 1, "features": ["a"]}, f"readers of level {LEVEL + 1}, feature 'a'"),
    ],
)
def test_what_is_too_new_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported) as caught:
        check_record(record(**changes), where="./fleet")
    assert str(caught.value) == f"the fleet at ./fleet uses {said}, which this limpet does not know"
    assert "upgrade limpet" in caught.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"format": {"queue": 0}},
        {"format": {}},
        {"min_reader": LEVEL - 1, "min_writer": LEVEL - 1},
        {"min_writer": LEVEL + 1},
    ],
)
def test_what_is_older_may_be_read(changes: dict[str, Any]) -> None:
    check_record(record(**changes), where="here")


@pytest.mark.parametrize(("min_writer", "may"), [(LEVEL - 1, True), (LEVEL, True), (LEVEL + 1, False)])
def test_who_may_write(min_writer: int, may: bool) -> None:
    assert may_write(record(min_writer=min_writer)) is may


def test_a_current_fleet_needs_no_upgrade() -> None:
    assert upgraded(fresh(FINDINGS)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"format": {**CURRENT, "queue": 0}},
        {"format": {"queue": 1}},
        {"min_writer": LEVEL - 1},
        {"min_writer": LEVEL - 1, "min_reader": LEVEL - 1, "format": {}},
    ],
)
def test_an_upgrade_raises_everything_to_this_version(changes: dict[str, Any]) -> None:
    assert upgraded(record(**changes)) == fresh(FINDINGS)


def test_an_upgrade_keeps_the_probe() -> None:
    other = msgspec.structs.replace(FINDINGS, etag_style="unquoted")
    found = upgraded(record(min_writer=LEVEL - 1, probe=other))
    assert found is not None
    assert found.probe == other


@pytest.mark.parametrize(
    "changes",
    [
        {"format": {**CURRENT, "queue": 2}},
        {"format": {**CURRENT, "garden": 1}},
        {"min_writer": LEVEL + 1},
        {"min_writer": LEVEL + 1, "min_reader": LEVEL + 1},
    ],
)
def test_an_upgrade_never_lowers_what_a_newer_version_raised(changes: dict[str, Any]) -> None:
    newer = record(**changes)
    with suppress(Unsupported):
        assert upgraded(newer) in (None, newer)

"""A forked child is another process: it holds nothing of its parent's (F17)."""

from __future__ import annotations

import pytest

from crash.conftest import Start


def said(start: Start, *arguments: object) -> list[str]:
    text, _ = start(*arguments).communicate(timeout=60)
    return text.splitlines()


def test_a_forked_child_does_not_own_its_parents_lease(place: str, start: Start) -> None:
    """With a heartbeat thread that the child lacks, and both leaving the block."""
    assert said(start, "fork", place) == [
        "child check LeaseLost",
        "child renew LeaseLost",
        "child block LeaseLost",
        "parent check done",
        "parent renew done",
        "parent block done",
    ]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the child waits for a mutex that no thread of it holds")
def test_a_child_forked_during_a_renewal_can_leave_the_block(start: Start) -> None:
    assert said(start, "fork_mid_renewal") == ["child 0"]


def test_a_forked_child_may_open_its_own_fleet(place: str, start: Start, request: pytest.FixtureRequest) -> None:
    """Or is told that it may not; it never just hangs."""
    if place.startswith("s3:"):
        reason = "obstore's threads do not survive a fork: the child's first request never ends"
        request.applymarker(pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason))
    assert said(start, "fork_and_open", place) == ["child 0"]

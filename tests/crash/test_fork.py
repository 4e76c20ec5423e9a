"""A forked child is another process: it holds nothing of its parent's (F17)."""

from __future__ import annotations

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


def test_a_child_forked_during_a_renewal_can_leave_the_block(start: Start) -> None:
    assert said(start, "fork_mid_renewal") == ["child 0"]


def test_a_forked_child_may_open_its_own_fleet(place: str, start: Start) -> None:
    """Or is told that it may not, as with a bucket, whose client does not survive a fork; it never just hangs."""
    assert said(start, "fork_and_open", place) == ["child 0"]

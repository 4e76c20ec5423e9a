"""The cell's rules as tables."""

from __future__ import annotations

import hashlib
import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.kernel.cell.decide import (
    MARK_CHARS,
    MARKS_MAX,
    OFTEN_MS,
    RECENT_MAX,
    RING_SIZE,
    SCHEMA,
    Fence,
    Header,
    Write,
    admit,
    classify,
    mark,
    next_header,
)
from limpet.kernel.errors import Corrupt, Invalid, LeaseLost
from limpet.kernel.records import INTEGER_MAX
from limpet.kernel.runtime import ulid
from limpet.kernel.store import Version
from limpet.kernel.store.outcome import Verdict
from support.clock import steady

V1, V2 = Version("v1"), Version("v2")
A1, A2, A3, B1 = Fence("a", 1), Fence("a", 2), Fence("a", 3), Fence("b", 1)


def header(seq: int, *, ring: int | None = None, fence: Fence | None = None) -> Header:
    """The cell after others' writes w1 .. w<seq>, with a ring of that length (by default as long as it can be)."""
    length = min(seq - 1, RING_SIZE) if ring is None else ring
    return Header(SCHEMA, seq, f"w{seq}", tuple(f"w{n}" for n in range(seq - length, seq)), fence=fence)


def write(base_seq: int | None, *, deletable: bool = False) -> Write:
    base = header(base_seq) if base_seq else None
    return Write("mine", base, V1 if base_seq else None, deletable)


# ---- next_header ----


def contended(found: Header, writes: int, *, name: str = "other") -> Header:
    """The cell after so many writes by writers that had just lost a swap."""
    for n in range(writes):
        found = next_header(found, f"{name}{n}", None, lost=True)
    return found


def test_marks_are_kept_by_writers_that_lost_and_dropped_afterwards() -> None:
    assert header(40).marks == ""
    found = contended(header(40), 5000)
    assert len(found.recent) == RING_SIZE
    assert len(found.marks) == 3 * MARKS_MAX
    assert found.marks[-3:] == mark(f"other{5000 - RING_SIZE - 2}")
    found = next_header(found, "calm", None)
    assert len(found.marks) == 3 * MARKS_MAX - 3
    for n in range(MARKS_MAX):
        found = next_header(found, f"c{n}", None)
    assert found.marks == ""
    assert next_header(header(16), "early", None, lost=True).marks == "", "the ring still holds them all"


@pytest.mark.parametrize(("gap_ms", "kept"), [(0, 60), (312, 60), (313, 0), (60_000, 0)])
def test_marks_are_kept_while_the_cell_is_written_often(gap_ms: int, kept: int) -> None:
    found = None
    for n in range(77):
        found = next_header(found, ulid(1_790_000_000_000 + n * gap_ms, n), None)
    assert found is not None
    assert len(found.marks) == 3 * kept


@pytest.mark.parametrize(("others", "verdict"), [(17, "LOST"), (18, "LOST"), (4096, "LOST"), (4130, "UNKNOWN")])
@pytest.mark.parametrize("base_seq", [17, 50])
def test_a_swap_lost_to_many_is_known_to_be_lost(base_seq: int, others: int, verdict: str) -> None:
    """B1: so many other writes between the base and the read-back, by writers that contend."""
    found = contended(header(base_seq), others)
    assert classify(write(base_seq), found, V2) is Verdict[verdict]


@pytest.mark.parametrize("others", [17, 18, 500])
def test_a_landed_write_is_never_taken_for_lost(others: int) -> None:
    landed = next_header(header(50), "mine", None, lost=True)
    assert classify(write(50), contended(landed, others), V2) is Verdict.UNKNOWN


def test_marks_of_another_life_prove_nothing() -> None:
    """Counterexample 4: the cell was deleted and created by others, and its count has passed ours."""
    assert classify(write(50), contended(next_header(None, "new", None), 500), V2) is Verdict.UNKNOWN


def test_the_figures_of_a_header() -> None:
    assert (SCHEMA, RING_SIZE, RECENT_MAX, MARKS_MAX, MARK_CHARS, OFTEN_MS) == (1, 16, 1024, 4096, 3, 5000)
    largest = {"schema": 1, "seq": 1, "write_id": "w" * 64, "recent": ["w"] * 1024, "older": "m" * 3 * 4096}
    assert msgspec.convert(largest, Header).write_id == "w" * 64
    for more in ({"write_id": "w" * 65}, {"recent": ["w"] * 1025}, {"recent": ["w" * 65]}, {"older": "m" * 12_289}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**largest, **more}, Header)


@pytest.mark.parametrize("write_id", ["a", "b", "c", "w1", "w2", "w3", ""])
def test_a_mark_is_the_first_eighteen_bits_of_the_digest(write_id: str) -> None:
    bits = int.from_bytes(hashlib.sha256(write_id.encode()).digest()[:3], "big") >> 6
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    assert mark(write_id) == "".join(letters[bits >> shift & 63] for shift in (12, 6, 0))


def test_a_calm_write_adds_the_id_that_leaves_the_ring_and_drops_two_marks() -> None:
    found = contended(header(40), 10)
    assert next_header(found, "calm", None).marks == (found.marks + mark(found.recent[0]))[6:]


@pytest.mark.parametrize("lost", [False, True])
def test_while_the_ring_has_room_marks_are_left_alone(lost: bool) -> None:
    found = msgspec.structs.replace(header(40, ring=15), older="aaabbbccc")
    assert next_header(found, "next", None, lost=lost).marks == "aaabbbccc"


@pytest.mark.parametrize(("apart_ms", "kept"), [(4_999, 1), (5_000, 0), (-4_999, 1), (-5_000, 0)])
def test_often_is_less_than_five_seconds_for_a_whole_ring(apart_ms: int, kept: int) -> None:
    """By the clocks of the writers, of which one may be behind."""
    ids = [ulid(1_790_000_000_000, 1), *(f"w{n}" for n in range(15)), ulid(1_790_000_000_000 + apart_ms, 2)]
    found = next_header(Header(SCHEMA, 17, ids[-1], tuple(ids[:-1])), "next", None)
    assert len(found.marks) == 3 * kept


def test_the_oldest_mark_of_a_cell_without_a_ring_counts() -> None:
    found = Header(SCHEMA, 6, "w6", (), older=mark("w5"))
    assert classify(write(4), found, V2) is Verdict.LOST
    assert classify(write(4), Header(SCHEMA, 6, "w6", (), older=mark("mine")), V2) is Verdict.UNKNOWN
    assert classify(write(3), found, V2) is Verdict.UNKNOWN, "it goes no farther back"


def test_a_count_that_cannot_rise_is_not_written() -> None:
    last = Header(SCHEMA, INTEGER_MAX - 1, "w")
    assert next_header(last, "x", None).seq == INTEGER_MAX
    with pytest.raises(Corrupt, match="could never be read again"):
        next_header(Header(SCHEMA, INTEGER_MAX, "w"), "x", None)


def test_the_first_write_starts_the_count() -> None:
    assert next_header(None, "a", A1) == Header(SCHEMA, 1, "a", fence=A1)


def test_the_ring_holds_the_last_sixteen_newest_last() -> None:
    found = None
    for n in range(1, 40):
        found = next_header(found, f"w{n}", None)
        assert found == header(n)
    assert found is not None
    assert len(found.recent) == RING_SIZE == 16
    assert (found.recent[0], found.recent[-1]) == ("w23", "w38")


def test_the_fence_is_the_one_given() -> None:
    assert next_header(header(3, fence=A1), "x", A2).fence == A2
    assert next_header(header(3, fence=A1), "x", None).fence is None


# ---- classify ----


@pytest.mark.parametrize("base_seq", [None, 1, 5, 40])
def test_ours_stands_there(base_seq: int | None) -> None:
    attempt = write(base_seq)
    assert classify(attempt, next_header(attempt.base, "mine", None), V2) is Verdict.WON


@pytest.mark.parametrize("base_seq", [None, 1, 40])
@pytest.mark.parametrize(
    ("others", "verdict"),
    [(1, Verdict.REPLACED), (15, Verdict.REPLACED), (16, Verdict.REPLACED), (17, Verdict.UNKNOWN)],
)
def test_others_wrote_after_ours(base_seq: int | None, others: int, verdict: Verdict) -> None:
    """Up to sixteen later writes, the ring still names ours; after that nobody can tell (counterexamples 1, 2)."""
    attempt = write(base_seq)
    found = next_header(attempt.base, "mine", None)
    for n in range(others):
        found = next_header(found, f"other{n}", None)
    assert classify(attempt, found, V2) is verdict


@pytest.mark.parametrize("base_seq", [None, 1, 5, 40])
@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        (1, Verdict.LOST),
        (15, Verdict.LOST),
        (16, Verdict.LOST),
        (17, Verdict.LOST),  # the ring's oldest is the very write that took our place
        (18, Verdict.UNKNOWN),
        (1000, Verdict.UNKNOWN),
    ],
)
def test_others_wrote_instead_of_ours(base_seq: int | None, others: int, verdict: Verdict) -> None:
    """It is lost for certain only while the ring reaches back to the write that followed our base."""
    attempt = write(base_seq)
    assert classify(attempt, header((base_seq or 0) + others), V2) is verdict


def test_the_ring_is_read_as_long_as_it_is_not_as_long_as_it_should_be() -> None:
    assert classify(write(5), header(10, ring=4), V2) is Verdict.LOST  # w6 .. w9
    assert classify(write(5), header(10, ring=3), V2) is Verdict.UNKNOWN


@pytest.mark.parametrize("deletable", [False, True])
def test_still_the_base(deletable: bool) -> None:
    assert classify(write(5, deletable=deletable), header(5), V1) is Verdict.BASE


@pytest.mark.parametrize(
    ("base_seq", "deletable", "verdict"),
    [
        (None, False, Verdict.BASE),
        (None, True, Verdict.UNKNOWN),  # counterexample 3: it may have been written and removed
        (5, False, Verdict.UNKNOWN),
        (5, True, Verdict.UNKNOWN),
    ],
)
def test_there_is_no_object(base_seq: int | None, deletable: bool, verdict: Verdict) -> None:
    assert classify(write(base_seq, deletable=deletable), None, None) is verdict


@pytest.mark.parametrize("found_seq", [1, 4, 5])
def test_a_count_that_did_not_rise_is_unknown(found_seq: int) -> None:
    """Counterexample 4: deleted and created anew by others; ours may have been there in between."""
    assert classify(write(5), header(found_seq), V2) is Verdict.UNKNOWN


def test_a_version_without_a_base_means_nothing() -> None:
    assert classify(Write("mine", None, None, False), header(1), None) is Verdict.LOST


@steady
@given(st.integers(0, 40), st.lists(st.booleans(), max_size=60), st.booleans())
def test_a_verdict_is_never_wrong(base_seq: int, losers: list[bool], landed: bool) -> None:
    """Against the whole history: WON and REPLACED only if it landed, LOST and BASE only if it did not."""
    attempt = write(base_seq or None)
    others = len(losers)
    found = attempt.base
    if landed:
        found = next_header(found, "mine", None)
    for n, lost in enumerate(losers):
        found = next_header(found, f"o{n}", None, lost=lost)
    version = V1 if found is attempt.base and found is not None else V2
    verdict = classify(attempt, found, version if found else None)
    allowed = {Verdict.WON, Verdict.REPLACED} if landed else {Verdict.LOST, Verdict.BASE}
    assert verdict in allowed | {Verdict.UNKNOWN}
    if others <= RING_SIZE:
        assert verdict is not Verdict.UNKNOWN


# ---- admit ----


@pytest.mark.parametrize(
    ("kept", "offered", "fence"),
    [
        (None, None, None),
        (None, A1, A1),
        (A2, None, A2),  # counterexample 6: a write without a lease keeps the fence
        (A2, A2, A2),
        (A2, A3, A3),
    ],
)
def test_what_a_cell_admits(kept: Fence | None, offered: Fence | None, fence: Fence | None) -> None:
    assert admit(kept, offered, what="cells/x.json") == fence


def test_a_lower_token_is_refused() -> None:
    with pytest.raises(LeaseLost, match=r"cells/x\.json .* token 2; token 1 is too old"):
        admit(A2, A1, what="cells/x.json")


@pytest.mark.parametrize("offered", [B1, Fence("b", 99)])
def test_another_locks_token_is_not_compared(offered: Fence) -> None:
    """Counterexample 7."""
    with pytest.raises(Invalid, match="guarded by a, not by b"):
        admit(A2, offered, what="cells/x.json")


def test_a_cell_that_was_deleted_and_created_anew_tells_nothing() -> None:
    """Counterexample 4: its seq has passed ours, but its ring is of another life."""
    base = Header(1, 2, "base", ("first",))
    write = Write("mine", base, Version("v2"), deletable=False)
    assert classify(write, Header(1, 3, "c", ("a", "b")), Version("v9")) is Verdict.UNKNOWN
    assert classify(write, Header(1, 3, "c", ("first", "base")), Version("v9")) is Verdict.LOST

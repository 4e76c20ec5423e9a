"""The compactor's rules and the state of a catalog, as tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from limpet.catalog.heads import (
    APPLIED_MAX,
    PATH_CHARACTERS_MAX,
    TAIL_BYTES_MAX,
    Go,
    Publish,
    RefusedBatch,
    applied_in,
    classify,
    commit_of,
    links_after,
    next_head,
    unusable,
)
from limpet.catalog.records import CatalogHead, Change, LedgerBatch, Link, RememberedAnswer, Row, SnapshotRef, Tail
from limpet.catalog.state import TIDY_ABOVE, CatalogState, is_remembered, scoped, time_text
from limpet.events.ledger import AppliedBatch, Publication
from limpet.kernel.errors import Invalid

T0 = "2026-11-17T08:00:00.000000+00:00"
T1 = "2026-11-17T08:00:01.000000+00:00"
SHA = "0" * 64


def link(version: int) -> Link:
    return Link(version, f"c{version}", SHA)


def head(version: int = 5, token: int = 3, **fields: object) -> CatalogHead:
    given = {
        "version": version,
        "token": token,
        "at": T0,
        "links": tuple(map(link, range(version, 0, -1))),
        "snapshot": None,
        "tail": (Tail(version, T0, (row("h"),)),),
        "applied": (AppliedBatch(f"p{version}", version, f"c{version}"),),
        "last_id": "last",
        "gc_floor": "floor",
        **fields,
    }
    return CatalogHead(**given)  # type: ignore[arg-type]


def row(id_: str = "r", *changes: Change) -> Row:
    return Row(id_, "x", changes)


def batch(base: int | None, token: int = 3, rows: tuple[Row, ...] = ()) -> LedgerBatch:
    return LedgerBatch(domain="catalog", token=token, base_version=base, rows=rows)


# ---- was it published before? ----


def test_what_a_head_remembers_of_batches() -> None:
    known = head(applied=(AppliedBatch("a", 4, "c4"), AppliedBatch("b", 5, "c5"), AppliedBatch("c", 5, "c5")))
    assert applied_in(None, ["a"]) is None
    assert applied_in(known, ["x"]) is None
    assert applied_in(known, ["a"]) == Publication(4, "c4")
    assert applied_in(known, ["c", "b"]) == Publication(5, "c5")
    for partly in (["a", "b"], ["b", "x"], ["b", "c", "x"]):  # the first two were published as two versions
        with pytest.raises(Invalid, match="some of the paths were published before"):
            applied_in(known, partly)


# ---- may it be published? ----


@pytest.mark.parametrize(
    ("known", "batches", "token", "wanted"),
    [
        (None, [batch(None)], 3, "go"),
        (None, [batch(0)], 3, "no head"),
        (None, [batch(None, token=2)], 3, "stale"),
        (head(), [batch(5)], 3, "go"),
        (head(), [batch(4)], 3, "moved"),
        (head(), [batch(6)], 3, "moved"),
        (head(), [batch(5), batch(4)], 3, "moved"),
        (head(), [batch(5), batch(5)], 3, "go"),
        (head(), [batch(5, token=2)], 2, "stale"),
        (head(), [batch(5, token=4)], 4, "stale"),
        (head(), [batch(5, token=2)], 3, "stale"),
        (head(), [batch(5), batch(5, token=2)], 3, "stale"),
        (head(), [batch(None, token=4)], 4, "go"),
        (head(), [batch(None, token=3)], 3, "stale"),
        (head(), [batch(None, token=2)], 2, "stale"),
        (head(), [batch(5, token=4), batch(None, token=4)], 4, "go"),
    ],
)
def test_whether_batches_may_be_published(
    known: CatalogHead | None, batches: list[LedgerBatch], token: int, wanted: str
) -> None:
    found = classify(known, batches, token)
    match found:
        case Go():
            said = "go"
        case RefusedBatch(message="there is no catalog here yet"):
            said = "no head"
        case RefusedBatch(stale=True):
            said = "stale"
        case RefusedBatch():
            said = "moved"
    assert said == wanted


def test_the_rows_of_all_batches_go_in_order_and_a_refusal_says_why() -> None:
    rows = [row(str(n)) for n in range(3)]
    assert classify(head(), [batch(5, rows=(rows[0], rows[1])), batch(5, rows=(rows[2],))], 3) == Go(tuple(rows))
    assert classify(None, [batch(None, rows=(rows[0],))], 3) == Go((rows[0],))
    assert classify(head(), [batch(5, token=1)], 3) == RefusedBatch(True, "the batch was written with token 1, not 3")
    assert classify(head(), [batch(None, token=2)], 2) == RefusedBatch(
        True, "token 2 is not above 3, which has led already"
    )
    assert classify(head(), [batch(5, token=4)], 4) == RefusedBatch(True, "token 3 leads, not 4")
    assert classify(head(), [batch(1)], 3) == RefusedBatch(False, "the batch was validated on another version than 5")


# ---- the next head ----


def walked(versions: int) -> CatalogHead:
    """A head after so many publications."""
    now: CatalogHead | None = None
    for version in range(1, versions + 1):
        now = next_head(now, Publish((f"p{version}",), (), 1, T0, link(version), f"c{version}", None))
    assert now is not None
    return now


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        (1, []), (2, [1]), (3, [2]), (4, [3, 2]), (5, [4]), (6, [5, 4]), (7, [6, 4]), (8, [7, 6, 4]), (9, [8]),
        (10, [9, 8]), (12, [11, 10, 8]), (16, [15, 14, 12, 8]), (17, [16]), (100, [99, 98, 96, 64]),
        (1000, [999, 998, 996, 992, 960, 896, 768, 512]),
    ],
)  # fmt: skip
def test_a_commit_points_back_ever_farther(version: int, wanted: list[int]) -> None:
    """The last one, then for each power of two the last multiple of it that is not named yet."""
    found = walked(version)
    assert found.links[0] == link(version)
    assert [each.version for each in found.links[1:]] == wanted


def test_a_head_without_links_points_to_nothing() -> None:
    assert links_after(None) == ()
    assert links_after(head(links=())) == ()
    assert links_after(head(version=1)) == (link(1),)
    assert links_after(head(version=2)) == (link(2),)
    assert links_after(head(version=3)) == (link(3), link(2))


def test_the_head_after_a_publication() -> None:
    before = head(tail=(Tail(4, T0, ()), Tail(5, T0, ())))
    new = next_head(before, Publish(("q", "r"), (row("n"),), 4, T1, link(6), "c6", None))
    assert (new.version, new.token, new.at, new.last_id, new.gc_floor) == (6, 4, T1, "c6", "floor")
    assert [each.version for each in new.tail] == [4, 5, 6]
    assert new.tail[-1] == Tail(6, T1, (row("n"),))
    assert new.snapshot is None
    assert new.applied == (AppliedBatch("p5", 5, "c5"), AppliedBatch("q", 6, "c6"), AppliedBatch("r", 6, "c6"))
    assert new.links == (link(6), *links_after(before))
    first = next_head(None, Publish(("q",), (), 1, T1, link(1), "c1", None))
    assert (first.version, first.gc_floor, first.snapshot, first.applied) == (
        1,
        "",
        None,
        (AppliedBatch("q", 1, "c1"),),
    )
    assert first.tail == (Tail(1, T1, ()),)


def test_what_a_snapshot_holds_leaves_the_tail() -> None:
    old, newer = SnapshotRef("s4", SHA, 4, 1), SnapshotRef("s5", SHA, 5, 1)
    before = head(snapshot=old, tail=(Tail(4, T0, ()), Tail(5, T0, ())))
    kept = next_head(before, Publish(("q",), (), 3, T1, link(6), "c6", None))
    assert (kept.snapshot, [each.version for each in kept.tail]) == (old, [5, 6])
    taken = next_head(before, Publish(("q",), (), 3, T1, link(6), "c6", newer))
    assert (taken.snapshot, [each.version for each in taken.tail]) == (newer, [6])
    whole = SnapshotRef("s6", SHA, 6, 1)
    assert next_head(before, Publish(("q",), (), 3, T1, link(6), "c6", whole)).tail == ()


def test_so_many_batches_are_remembered_and_no_more() -> None:
    assert APPLIED_MAX == 16
    found = walked(20)
    assert [each.version for each in found.applied] == [*range(5, 21)]
    assert TAIL_BYTES_MAX == 262_144


def test_the_commit_of_a_head() -> None:
    ref = SnapshotRef("s", SHA, 3, 1)
    rows = (row("n"),)
    known = head(
        snapshot=ref,
        tail=(Tail(4, T0, ()), Tail(5, T0, rows)),
        applied=(AppliedBatch("a", 4, "c4"), AppliedBatch("b", 5, "c5"), AppliedBatch("c", 5, "c5")),
    )
    found = commit_of(known, "catalog")
    assert found is not None
    assert (found.domain, found.id, found.version, found.token, found.at) == ("catalog", "c5", 5, 3, T0)
    assert (found.paths, found.rows, found.snapshot) == (("b", "c"), rows, ref)
    assert [each.version for each in found.links] == [4, 3, 2, 1]
    assert commit_of(head(tail=()), "catalog") is None, "its record is written already"


def test_how_long_a_path_may_be() -> None:
    assert PATH_CHARACTERS_MAX == 4096
    for length, wrong in ((4096, False), (4097, True)):
        found = unusable([row("r", Change("l/" + "x" * length, 1))])
        assert (found is not None) is wrong


def test_what_is_wrong_with_a_row_is_said() -> None:
    assert unusable([row("r", Change("l/../x", 1))]) == "the entry 'l/../x' of request 'r' is not a folder"
    assert str(unusable([row("r", Change("l/x", 2))])).endswith("has an invalid value for a folder")
    assert str(unusable([row("r", Change("t/n//..", 2))])).endswith("has an invalid name of a table, view or namespace")
    assert str(unusable([row("r", Change("n//n", {"a": 2}))])).endswith("has properties that are not strings")
    assert str(unusable([row("r", Change("t/n//x", ["a"]))])).endswith("does not name its metadata")
    assert str(unusable([row("r", Change("t/n//x", ["a", ""]))])).endswith("names an invalid path")
    said = unusable([row("r" * 200, Change("n//" + "x" * 300, None))])
    assert said is not None
    assert len(said) < 300


def test_a_row_has_an_id_and_says_what_it_is() -> None:
    assert unusable([Row("r", "x")]) is None
    for id_, what in (("", "x"), ("r", ""), ("", "")):
        assert unusable([Row("r", "x"), Row(id_, what)]) == "a row has no id, or does not say what it is"


@pytest.mark.parametrize(
    ("key", "value", "sound"),
    [
        ("n//a", {}, True), ("n/a//b", {}, True), ("n//a", None, True), ("n//a", {"p": "v"}, True),
        ("t/a//b", ["x", "y"], True), ("v/a//b", ["x", "y"], True), ("v/a//b", None, True),
        ("l/x/y", 1, True), ("p/x/y", 1, True), ("l/x", None, True), ("p/x", None, True),
        ("l/./x", 1, False), ("l/../x", 1, False), ("l//x", 1, False), ("l/", 1, False), ("p/./x", 1, False),
        ("p//x", 1, False), ("l/x", 2, False), ("p/x", 2, False), ("p/x", ["x", "y"], False),
        ("n//", {}, False), ("n//.", {}, False), ("n/a/b", {}, False), ("n/a//b%", {}, False), ("n/a///b", {}, False),
        ("n//a", {"p": 1}, False), ("n//a", {1: "v"}, False), ("n//a", ["x", "y"], False),
        ("t//b", ["x", "y"], False), ("t/a/b", ["x", "y"], False), ("t/a//b", ["x"], False), ("t/a//b", "xy", False),
        ("t/a//b", ["x", 1], False), ("t/a//b", ["x", "../y"], False), ("t/a//b", ["./x", "y"], False),
        ("v//b", ["x", "y"], False), ("v/a//b", ["x"], False), ("v/a//b", {"p": "v"}, False),
        # of what kind it is, this version does not know, and leaves it alone
        ("n", 5, True), ("l", 5, True), ("t", 5, True), ("z//..", 5, True), ("", 5, True), ("nn//..", 5, True),
    ],
)  # fmt: skip
def test_which_entries_a_reader_can_use(key: str, value: object, sound: bool) -> None:
    assert (unusable([row("r", Change(key, value))]) is None) is sound
    assert (unusable([row("q"), row("r", Change("n//a", {}), Change(key, value))]) is None) is sound


# ---- the state ----


def test_entries_come_and_go_in_order() -> None:
    state = CatalogState({"b": 2, "a": 1})
    state = state.after([row("1", Change("c", 3), Change("a", None), Change("b", 4), Change("gone", None))], T0)
    assert [*state.under("")] == [("b", 4), ("c", 3)]
    assert state.entries() == {"b": 4, "c": 3}
    assert (state.get("a"), state.get("b")) == (None, 4)
    state = state.after([row("2", Change("a", 5), Change("ab", 6), Change("b", None))], T0)
    assert [*state.under("")] == [("a", 5), ("ab", 6), ("c", 3)]
    assert [*state.under("a")] == [("a", 5), ("ab", 6)]
    assert [*state.under("a", "a")] == [("ab", 6)]
    assert [*state.under("a", "aa")] == [("ab", 6)]
    assert [*state.under("b")] == []
    assert [*state.under("a", "b")] == []
    assert [*state.under("d")] == []


def test_a_state_is_never_changed() -> None:
    state = CatalogState({"a": 1}, {"k.d": RememberedAnswer("x", T0)})
    other = state.after([row("m.d", Change("b", 2))], T0)
    assert [*state.under("")] == [("a", 1)]
    assert [*other.under("")] == [("a", 1), ("b", 2)]
    assert (state.answered("m.d"), state.is_used("m")) == (None, False)
    assert (other.answered("m.d"), other.is_used("m"), other.is_used("k")) == (RememberedAnswer("x", T0), True, True)
    state = state.after([row("n.d", Change("c", 2))], T0)
    assert not other.is_used("n")
    assert other.get("c") is None


def test_what_clients_were_told() -> None:
    state = CatalogState()
    state = state.after([Row("k.d", "what", (), {"r": 1}), Row("~minted", "y")], T0)
    assert state.answered("k.d") == RememberedAnswer("what", T0, {"r": 1})
    assert state.answered("k") is None
    assert [state.is_used(key) for key in ("k", "k.d", "d", "~minted", "~", "")] == [
        True,
        False,
        False,
        False,
        False,
        False,
    ]
    assert state.answers().keys() == {"k.d", "~minted"}
    assert scoped("k", "d") == "k.d"
    assert CatalogState(answers={"a.b.c": RememberedAnswer("x", T0)}).is_used("a.b")


@pytest.mark.parametrize(
    ("id_", "age_s", "lives"),
    [
        ("k.d", 1799.0, True),
        ("k.d", 1800.0, True),
        ("k.d", 1800.000001, False),
        ("~m", 60.0, True),
        ("~m", 60.000001, False),
    ],
)
def test_how_long_an_id_lives(id_: str, age_s: float, lives: bool) -> None:
    now = time_text(datetime.fromisoformat(T0) + timedelta(seconds=age_s))
    assert is_remembered(id_, T0, now) is lives
    state = CatalogState(answers={id_: RememberedAnswer("x", T0)})
    state = state.forgetting(now)
    assert (state.answered(id_) is not None) is lives
    assert state.is_used("k") is (lives and id_ == "k.d")


def test_answers_are_dropped_when_it_pays() -> None:
    assert TIDY_ABOVE == 1000
    later = time_text(datetime.fromisoformat(T0) + timedelta(hours=1))
    state = CatalogState()
    state = state.after([row(f"k{n}.d") for n in range(1000)], T0)
    state = state.tidied(later)
    assert len(state.answers()) == 1000, "it does not pay yet"
    state = state.after([row("more.d")], T0)
    state = state.tidied(T0)
    assert len(state.answers()) == 1001, "they live still; from now on it pays at 3,002 more"
    state = state.after([row(f"l{n}.d") for n in range(2001)], T0)
    state = state.tidied(later)
    assert len(state.answers()) == 3002
    state = state.after([row("last.d")], T0)
    state = state.tidied(later)
    assert len(state.answers()) == 0
    assert not state.is_used("k1")
    given = CatalogState(answers={f"k{n}.d": RememberedAnswer("x", T0) for n in range(1001)})
    given = given.tidied(later)
    assert len(given.answers()) == 1001, "what a state began with counts as kept"
    copied = given.after([row(f"l{n}.d") for n in range(2001)], T0)
    copied = copied.tidied(later)
    assert len(copied.answers()) == 3002
    copied = copied.after([row("last.d")], T0)
    copied = copied.tidied(later)
    assert len(copied.answers()) == 0


def test_times_have_as_many_characters() -> None:
    assert time_text(datetime(2026, 11, 17, 8, tzinfo=UTC)) == T0
    assert len({len(time_text(datetime(2026, 1, 1, 0, 0, 0, us, tzinfo=UTC))) for us in (0, 1, 999_999)}) == 1

"""When a record was written: the store's clock, never the same time twice, and always after what was seen."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta, timezone
from uuid import uuid4

import pytest

import limpet
from limpet.index import Index
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import SystemRuntime
from support.clock import EPOCH, ManualRuntime, Time
from support.index import NAME, PAST, Rec

HOUR = timedelta(hours=1)


class Place:
    """One bucket on a hand-moved clock, and processes whose own wall clocks are wrong."""

    def __init__(self) -> None:
        self.time = Time()
        self.url = f"memory://stamps-{uuid4().hex}"
        limpet.open(self.url, runtime=ManualRuntime(self.time, "store")).check()

    def process(self, owner: str = "p1", *, wall_offset_s: float = 0.0) -> Index[Rec]:
        """A handle in a process of its own."""
        runtime = ManualRuntime(self.time, owner, wall_offset_s=wall_offset_s)
        return limpet.open(self.url, runtime=runtime).index(NAME, Rec, key="key")

    def now(self) -> datetime:
        """The store's time."""
        return EPOCH + timedelta(seconds=self.time.now_s)

    def stamp(self, key: str) -> datetime:
        """The time of the record that wins, as a process sees it that puts nothing."""
        found = limpet.open(self.url, runtime=ManualRuntime(self.time, "onlooker")).index(NAME).get(key)
        assert found is not None
        at = found["updated_at"]
        assert isinstance(at, datetime)
        return at


def test_a_stamp_is_the_stores_time_whatever_the_writers_clock_says() -> None:
    place = Place()
    for offset_s in (0.0, 1e6, -1e6):
        index = place.process(f"p{offset_s}", wall_offset_s=offset_s)
        assert index.manifest
        for n in range(3):
            place.time.sleep(400)
            index.put(Rec(f"{offset_s}.{n}"))
            assert abs(place.stamp(f"{offset_s}.{n}") - place.now()) < timedelta(seconds=1)


def test_no_two_stamps_of_a_process_are_the_same_and_none_is_lower() -> None:
    """On a clock that stands still, through two handles, by single puts, many and deletes."""
    place = Place()
    one = place.process()
    two = limpet.open(place.url, runtime=one._runtime).index(NAME, Rec, key="key")
    stamps = []
    for n in range(30):
        handle = (one, two)[n % 2]
        if n % 3:
            handle.put(Rec(f"k{n}"))
        else:
            handle.put_many([Rec(f"k{n}"), Rec(f"other{n}")])
        stamps.append(place.stamp(f"k{n}"))
    assert stamps == sorted({*stamps})


def test_threads_of_a_process_never_stamp_the_same() -> None:
    url = f"memory://threads-{uuid4().hex}"
    handles = [limpet.open(url).index(NAME, Rec, key="key") for _ in range(4)]
    assert handles[0].manifest

    def put(n: int) -> None:
        for each in range(100):
            handles[n].put(Rec(f"{n}.{each}"))

    threads = [threading.Thread(target=put, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stamps = [record["updated_at"] for record in limpet.open(url).index(NAME).scan()]
    assert len({*stamps}) == len(stamps) == 400


@pytest.mark.parametrize("how", ["put", "put_many", "delete"])
@pytest.mark.parametrize("seen_by", ["get", "get_many", "its own put", "its own put_many", "a second handle"])
def test_what_comes_after_a_record_from_the_future_that_was_seen_is_later(how: str, seen_by: str) -> None:
    place = Place()
    index = place.process("mine")
    future = {"key": "a", "text": "future", "updated_at": place.now() + 20 * HOUR}
    other = index if seen_by.startswith("its own") else place.process("other")
    if seen_by == "its own put_many":
        other.put_many([future])
    else:
        other.put(future)
    if seen_by == "get":
        index.get("a")
    elif seen_by == "get_many":
        index.get_many(["a"])
    elif seen_by == "a second handle":
        limpet.open(place.url, runtime=index._runtime).index(NAME).get("a")
    # records with an earlier time of their own change nothing of what was seen
    index.put({"key": "a", "text": "earlier", "updated_at": place.now() + 10 * HOUR})
    index.put({"key": "a", "text": "old", "updated_at": PAST})
    if how == "put":
        index.put(Rec("a", "new"))
    elif how == "put_many":
        index.put_many([Rec("b"), Rec("a", "new")])
    else:
        index.delete("a")
    wanted = None if how == "delete" else Rec("a", "new")
    assert index.get("a") == other.get("a") == wanted
    index.put(Rec("a", "newer"))
    index.compile(full=True)
    assert other.get("a") == Rec("a", "newer")
    assert place.stamp("a") - (place.now() + 20 * HOUR) < timedelta(seconds=1), "no later than it must be"


def test_a_record_from_the_future_does_not_carry_other_keys_along() -> None:
    place = Place()
    index = place.process()
    index.put({"key": "a", "updated_at": place.now() + 20 * HOUR})
    index.put(Rec("a"))
    index.put(Rec("b"))
    index.put_many([Rec("a", "again"), Rec("c")])
    assert abs(place.stamp("b") - place.now()) < timedelta(seconds=1)
    assert abs(place.stamp("c") - place.now()) < timedelta(seconds=1)
    assert index.get("a") == Rec("a", "again")


def test_a_tombstone_that_was_seen_is_beaten_too() -> None:
    place = Place()
    mine, other = place.process("mine"), place.process("other")
    other.put({"key": "a", "updated_at": place.now() + 20 * HOUR})
    other.delete("a")
    assert mine.get("a") is None
    mine.put(Rec("a", "back"))
    assert other.get("a") == Rec("a", "back")


def test_a_time_of_ones_own_is_kept_to_the_microsecond_in_any_zone() -> None:
    place = Place()
    index = place.process()
    at = datetime(2025, 6, 7, 8, 9, 10, 11, tzinfo=timezone(-7 * HOUR))
    index.put({"key": "a", "updated_at": at})
    assert place.stamp("a") == at
    index.compile(full=True)
    assert place.stamp("a") == at


@pytest.mark.parametrize("ahead", [timedelta(days=1, seconds=1), timedelta(days=10_000)])
def test_more_than_a_day_ahead_is_refused(ahead: timedelta) -> None:
    place = Place()
    index = place.process(wall_offset_s=1e9)
    for act in (
        lambda: index.put({"key": "a", "updated_at": place.now() + ahead}),
        lambda: index.put_many([Rec("b"), {"key": "a", "updated_at": place.now() + ahead}]),
    ):
        with pytest.raises(Invalid, match="more than a day ahead") as caught:
            act()
        assert "leave updated_at out" in caught.value.hint
    assert [*index.scan()] == []
    index.put({"key": "a", "updated_at": place.now() + timedelta(hours=23)})
    assert index.get("a")


@pytest.mark.parametrize(
    "wrong",
    [
        datetime(2026, 1, 1),
        "2026-01-01T00:00:00Z",
        1767225600,
        datetime(1, 1, 1, tzinfo=timezone(5 * HOUR)),
        datetime(9999, 12, 31, 23, tzinfo=timezone(-5 * HOUR)),
    ],
)
def test_what_is_no_time_is_refused(wrong: object) -> None:
    index = Place().process()
    with pytest.raises(Invalid):
        index.put({"key": "a", "updated_at": wrong})
    assert [*index.scan()] == []


def test_the_earliest_time_that_can_be_written_is_the_lowest() -> None:
    place = Place()
    index = place.process()
    index.put({"key": "a", "text": "first", "updated_at": datetime.min.replace(tzinfo=UTC)})
    assert index.get("a") == Rec("a", "first")
    index.put(Rec("a", "second"))
    assert index.get("a") == Rec("a", "second")


def test_a_clock_that_goes_back_does_not_hide_a_put() -> None:
    """The store's clock is set back by an hour; a process that saw the earlier time still stamps upwards."""
    url = f"memory://back-{uuid4().hex}"
    runtime = _Settable()
    index = limpet.open(url, runtime=runtime).index(NAME, Rec, key="key")
    index.put(Rec("a", "first"))
    runtime.back_s = 3600.0
    runtime.ahead_s = 1200.0
    index.put(Rec("a", "second"))
    assert index.get("a") == Rec("a", "second")
    index.delete("a")
    assert index.get("a") is None


class _Settable(SystemRuntime):
    """A machine whose wall clock, and so the memory store's, can be set back, and whose rising clock can be moved."""

    back_s = 0.0
    ahead_s = 0.0

    def wall(self) -> datetime:
        return super().wall() - timedelta(seconds=self.back_s)

    def elapsed_s(self) -> float:
        return super().elapsed_s() + self.ahead_s

"""The store's clock is a lower bound, whatever it is told (F13, F14)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from limpet.kernel.keys import Key, clock_key
from limpet.kernel.store import MemoryStore, MeteredStore
from limpet.kernel.store.api import StoreClock
from support.clock import EPOCH, ManualRuntime, Time, steady
from support.stores import ScriptedStore

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def clock() -> tuple[Time, StoreClock]:
    runtime = ManualRuntime()
    return runtime.time, StoreClock(runtime)


def test_nothing_seen_nothing_known() -> None:
    _, it = clock()
    assert it.read(max_age_s=None) is None
    assert it.read(max_age_s=1e9) is None


def test_it_goes_on_with_our_own_rising_clock() -> None:
    time, it = clock()
    it.observe(T0)
    time.sleep(10)
    assert it.read(max_age_s=None) == T0 + 10 * SECOND


def test_an_older_answer_does_not_set_it_back() -> None:
    time, it = clock()
    it.observe(T0)
    time.sleep(10)
    it.observe(T0 + 9 * SECOND)
    assert it.read(max_age_s=None) == T0 + 10 * SECOND
    it.observe(T0 + 11 * SECOND)
    assert it.read(max_age_s=None) == T0 + 11 * SECOND


def test_an_object_written_just_now_sets_it_even_back() -> None:
    """A LastModified from a store whose clock was then set back must not rule for ever."""
    time, it = clock()
    it.observe(T0 + 3600 * SECOND)
    time.sleep(5)
    it.reset(T0)
    assert it.read(max_age_s=0) == T0


def test_a_reading_ages() -> None:
    time, it = clock()
    it.observe(T0)
    time.sleep(5)
    assert it.read(max_age_s=5) == T0 + 5 * SECOND
    assert it.read(max_age_s=4.9) is None
    it.observe(T0 + 2 * SECOND)
    assert it.read(max_age_s=4.9) is None, "an answer that teaches nothing new does not make it younger"


@steady
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1000), st.booleans()), max_size=30))
def test_it_never_runs_ahead_of_the_store(steps: list[tuple[float, float, bool]]) -> None:
    """Objects of any age are seen, stamped in whole seconds; the bound stays at or below the store's true time."""
    time, it = clock()
    for pause_s, age_s, written_now in steps:
        time.sleep(pause_s)
        true_now = EPOCH + timedelta(seconds=time.now_s)
        stamped = (true_now - timedelta(seconds=0 if written_now else age_s)).replace(microsecond=0)
        (it.reset if written_now else it.observe)(stamped)
        bound = it.read(max_age_s=None)
        assert bound is not None
        assert bound <= true_now + timedelta(microseconds=30)


# ---- Store.now ----


def test_now_asks_the_store_only_when_nothing_was_seen() -> None:
    runtime = ManualRuntime()
    memory = MemoryStore(ManualRuntime(runtime.time, "another process"))
    memory.put(Key("a"), b"")
    store = MeteredStore(memory, runtime=runtime)
    with store.measure() as probe:
        asked = store.now()
    assert probe.requests == {"put": 1, "head": 1}
    assert asked == runtime.wall()
    runtime.time.sleep(100)
    with store.measure() as cost:
        assert store.now() == runtime.wall()
    assert cost.total() == 0


def test_any_answer_spares_the_question() -> None:
    runtime = ManualRuntime()
    memory = MemoryStore(ManualRuntime(runtime.time, "another process"))
    memory.put(Key("a"), b"")
    runtime.time.sleep(60)
    store = MeteredStore(memory, runtime=runtime)
    store.head(Key("a"))
    with store.measure() as cost:
        assert store.now() == runtime.wall() - 60 * SECOND, "a lower bound: the object was written a minute ago"
    assert cost.total() == 0


def test_an_old_reading_is_refreshed_when_asked_for() -> None:
    runtime = ManualRuntime()
    store = MeteredStore(MemoryStore(runtime), runtime=runtime)
    store.now()
    runtime.time.sleep(5)
    with store.measure() as cost:
        store.now(max_age_s=5)
        store.now(max_age_s=4)
        store.now(max_age_s=4)
    assert cost.requests == {"put": 1, "head": 1}


def test_the_question_is_spread_over_a_few_names() -> None:
    """So that no name is rewritten more than once a second or so, and nothing piles up."""
    runtime = ManualRuntime()
    store = ScriptedStore(runtime)
    for _ in range(200):
        runtime.time.sleep(1)
        store.now(max_age_s=0)
    assert {stat.key for stat in store.list()} == {clock_key(slot) for slot in range(16)}

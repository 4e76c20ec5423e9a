"""Reading, creating, swapping and writing a cell through a network that loses, repeats and delays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from limpet.kernel import records
from limpet.kernel.cell import PLAIN, Cell, Fence, Lost, Replaced, Unclear, Versioned, Won, struct_codec
from limpet.kernel.errors import Conflict, Corrupt, Denied, Invalid, LeaseLost, OutcomeUnknown, Unavailable, Unsupported
from limpet.kernel.keys import cell_key
from limpet.kernel.store import MemoryStore, Store
from support.clock import ManualRuntime, Time
from support.stores import (
    Fault,
    ScriptedStore,
    fails,
    late,
    lost_reply,
    lost_request,
    own_conflict,
    refused_409,
    then,
    unavailable,
)

K = cell_key("x")
T1, T2, T3 = (Fence("locks/user/a.lock", token) for token in (1, 2, 3))


class World:
    """Our cell behind a scripted network, and another process's handle of the same cell."""

    def __init__(self) -> None:
        time = Time()
        self.runtime = ManualRuntime(time, "me")
        self.store = ScriptedStore(self.runtime)
        self.cell = self.handle(self.store, self.runtime)
        self.other = self.handle(self.store.others, ManualRuntime(time, "other"))

    def handle(self, store: Store, runtime: ManualRuntime, *, deletable: bool = False) -> Cell[Any]:
        return Cell(store, K, PLAIN, runtime, deletable=deletable)

    def seen(self) -> Versioned[Any]:
        seen = self.handle(self.store.others, self.runtime).read()
        assert seen is not None
        return seen

    def value(self) -> Any:
        return self.seen().value

    def fence(self) -> Fence | None:
        return self.seen().header.fence

    def others_write(self, times: int = 1) -> Callable[[], None]:
        def write() -> None:
            for n in range(times):
                self.other.write(f"other {n}")

        return write


def plus(n: int) -> Callable[[Any], Any]:
    return lambda count: (count or 0) + n


@pytest.fixture
def world() -> World:
    return World()


# ---- read ----


def test_a_cell_that_was_never_written_reads_as_none(world: World) -> None:
    assert world.cell.read() is None


@pytest.mark.parametrize("value", [None, 0, "", [], {}, {"a": [1, None, "é", 1.5]}], ids=repr)
def test_a_value_reads_back(world: World, value: Any) -> None:
    written = world.cell.create(value)
    found = world.other.read()
    assert found is not None
    assert (found.value, found.header, found.version) == (value, written.header, written.version)
    assert found.modified == world.runtime.wall()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Corrupt),
        (b"not json", Corrupt),
        (b"{}", Corrupt),
        (b'{"schema":1,"seq":1,"write_id":"a"}', Corrupt),
        (b'{"schema":1,"seq":0,"write_id":"a","value":1}', Corrupt),
        (b'{"schema":0,"seq":1,"write_id":"a","value":1}', Corrupt),
        (b'{"schema":1,"seq":"1","write_id":"a","value":1}', Corrupt),
        (b'{"schema":1,"seq":1,"write_id":"a","value":1', Corrupt),
        (b'{"schema":2,"seq":1,"write_id":"a","value":1}', Unsupported),
        (b'{"schema":2,"seq":1,"write_id":"a","shape":"new"}', Unsupported),
    ],
)
def test_bytes_that_are_not_a_cell_are_refused_and_kept(
    world: World, data: bytes, kind: type[Corrupt] | type[Unsupported]
) -> None:
    world.store.others.put(K, data)
    for act in (world.cell.read, lambda: world.cell.write(1), lambda: world.cell.update(lambda _: 1)):
        with pytest.raises(kind, match=str(K)):
            act()
    with pytest.raises(kind):
        world.cell.create(1)
    assert world.store.others.get(K).data == data


def test_fields_of_a_newer_version_are_ignored(world: World) -> None:
    world.store.others.put(K, b'{"schema":1,"seq":1,"write_id":"a","colour":"red","value":7}')
    found = world.cell.read()
    assert found is not None
    assert found.value == 7


def test_a_struct_stands_beside_the_header() -> None:
    class Shape(msgspec.Struct):
        sides: int

    runtime = ManualRuntime()
    store = MemoryStore(runtime)
    Cell(store, K, struct_codec(Shape), runtime).create(Shape(3))
    assert store.get(K).data == b'{"schema":1,"seq":1,"write_id":"p1-1","recent":[],"fence":null,"sides":3}'


# ---- one attempt ----


@pytest.mark.parametrize("fault", [None, lost_reply, own_conflict, lost_request, refused_409])
@pytest.mark.parametrize("act", ["create", "swap"])
def test_a_write_wins_through(world: World, act: str, fault: Fault | None) -> None:
    base = world.cell.create("base") if act == "swap" else None
    world.store.puts.append(fault)
    written = world.cell.swap(base, "mine") if base else world.cell.create("mine")
    assert written.header.seq == (2 if base else 1)
    assert world.value() == "mine"
    assert world.cell.swap(written, "again").header.seq == written.header.seq + 1


@pytest.mark.parametrize("act", ["create", "swap"])
def test_what_others_wrote_first_is_a_conflict(world: World, act: str) -> None:
    base = world.cell.create("base") if act == "swap" else None
    world.others_write()()
    with pytest.raises(Conflict):
        world.cell.swap(base, "mine") if base else world.cell.create("mine")
    assert world.value() == "other 0"


def test_a_412_for_a_resend_is_not_taken_for_a_conflict(world: World) -> None:
    """Counterexample 1: send 1 times out, the base is seen, send 1 lands before the resend does."""
    base = world.cell.create("base")
    pending: list[Any] = []

    def resend(send: Any) -> Any:
        pending[0]()
        return send()

    world.store.puts.extend([late(pending), resend])
    assert isinstance(world.cell.attempt(base, "mine"), Won)
    assert world.value() == "mine"


@pytest.mark.parametrize("fault", [lost_reply, own_conflict])
@pytest.mark.parametrize(("others", "kind"), [(1, Replaced), (16, Replaced), (17, Unclear)])
def test_a_landed_write_that_others_replaced(world: World, fault: Fault, others: int, kind: type) -> None:
    """Counterexample 2: never a Conflict for a landed write."""
    base = world.cell.create("base")
    world.store.puts.append(then(fault, world.others_write(others)))
    outcome = world.cell.attempt(base, "mine")
    assert type(outcome) is kind
    assert outcome.now.value == f"other {others - 1}"  # type: ignore[union-attr]
    if kind is Unclear:
        world.store.puts.append(then(fault, world.others_write(others)))
        with pytest.raises(OutcomeUnknown):
            world.cell.swap(outcome.now, "mine")  # type: ignore[union-attr]


@pytest.mark.parametrize(("others", "kind"), [(1, Lost), (17, Lost), (18, Unclear)])
def test_a_write_that_others_prevented(world: World, others: int, kind: type) -> None:
    base = world.cell.create("base")
    world.store.puts.append(then(lost_request, world.others_write(others)))
    assert type(world.cell.attempt(base, "mine")) is kind
    assert world.value() == f"other {others - 1}"


def test_a_replaced_write_counts_as_written(world: World) -> None:
    base = world.cell.create("base")
    world.store.puts.append(then(lost_reply, world.others_write()))
    written = world.cell.swap(base, "mine")
    assert (written.value, written.header.seq) == ("mine", 2)
    with pytest.raises(Conflict):
        world.cell.swap(written, "on top of what is gone")
    assert world.value() == "other 0"


def test_a_deletable_cell_that_is_gone_is_unknown(world: World) -> None:
    """Counterexample 3: to send the create again would bring back what others removed."""
    cell = world.handle(world.store, world.runtime, deletable=True)
    world.store.puts.append(then(lost_reply, lambda: world.store.others.delete(K)))
    with pytest.raises(OutcomeUnknown):
        cell.create("mine")
    assert len(world.store.sent) == 1


def test_a_swap_of_a_cell_that_is_gone_is_unknown(world: World) -> None:
    base = world.cell.create("base")
    world.store.others.delete(K)
    with pytest.raises(OutcomeUnknown):
        world.cell.swap(base, "mine")


def test_a_write_id_that_the_caller_chose_is_written(world: World) -> None:
    world.store.puts.append(then(lost_reply, lambda: None))
    world.store.gets.append(fails(Unavailable("cut off")))
    with pytest.raises(OutcomeUnknown):
        world.cell.attempt(None, "mine", write_id="known")
    seen = world.cell.read()
    assert seen is not None
    assert seen.header.write_id == "known"


def test_every_attempt_has_bytes_of_its_own(world: World) -> None:
    """F15: an ETag that is only a digest never comes back, though the value does."""
    seen = world.cell.create("a")
    for value in ("b", "a", "b", "a"):
        seen = world.cell.swap(seen, value)
    assert len({data for data, _ in world.store.sent}) == 5


@pytest.mark.parametrize("kind", [Unavailable, Denied])
def test_nothing_sent_nothing_changed(world: World, kind: type[Unavailable] | type[Denied]) -> None:
    def refuse(send: Any) -> Any:
        raise kind("no")

    base = world.cell.create("base")
    world.store.puts.append(refuse)
    with pytest.raises(kind):
        world.cell.swap(base, "mine")
    assert world.cell.swap(base, "mine").header.seq == 2


@pytest.mark.parametrize("value", [float("nan"), {1: 2}, object(), "\ud800", "a" * records.RECORD_BYTES_MAX], ids=type)
def test_a_value_that_a_cell_cannot_hold_is_refused_before_it_is_sent(world: World, value: Any) -> None:
    update: Callable[[Any], object] = lambda value: world.cell.update(lambda _: value)  # noqa: E731
    for act in (world.cell.create, world.cell.write, update):
        with pytest.raises(Invalid):
            act(value)
    assert world.store.sent == []


# ---- update ----


def test_an_update_creates_and_then_changes(world: World) -> None:
    for _ in range(3):
        world.cell.update(plus(1))
    assert world.value() == 3


def test_an_update_that_declines_writes_nothing(world: World) -> None:
    assert world.cell.update(lambda _: None) is None
    world.other.write("theirs")
    seen = world.cell.update(lambda _: None)
    assert seen is not None
    assert seen.value == "theirs"
    assert world.store.sent == []


def test_an_update_starts_again_from_what_others_wrote(world: World) -> None:
    world.other.write(10)
    world.store.puts.append(then(refused_409, lambda: world.other.update(plus(100))))
    seen = world.cell.update(plus(1))
    assert seen is not None
    assert seen.value == world.value() == 111
    assert len(world.store.sent) == 2, "the read-back of the lost swap is the next base: no extra GET"


def test_an_update_that_was_replaced_is_not_made_twice(world: World) -> None:
    world.other.write(10)
    world.store.puts.append(then(lost_reply, lambda: world.other.update(plus(100))))
    world.cell.update(plus(1))
    assert world.value() == 111


def test_an_update_of_which_nobody_can_tell_is_not_made_again(world: World) -> None:
    world.other.write(10)

    def many() -> None:
        for _ in range(17):
            world.other.update(plus(100))

    world.store.puts.append(then(lost_reply, many))
    with pytest.raises(OutcomeUnknown):
        world.cell.update(plus(1))
    assert world.value() == 10 + 1 + 1700


def test_an_update_gives_up_after_a_hundred_lost_swaps(world: World) -> None:
    world.other.write(0)
    bump = then(refused_409, lambda: world.other.update(plus(1)))
    world.store.puts.extend([bump] * 100)
    with pytest.raises(Conflict, match="100 times"):
        world.cell.update(plus(1000))
    assert world.value() == 100


@pytest.mark.parametrize("fault", [lost_request, unavailable])
def test_an_update_that_cannot_be_settled_says_so(world: World, fault: Fault) -> None:
    world.store.puts.extend([fault] * 3)
    with pytest.raises(OutcomeUnknown if fault is lost_request else Unavailable):
        world.cell.update(lambda _: 1)


# ---- write ----


def test_a_write_replaces_whatever_is_there(world: World) -> None:
    world.cell.write("one")
    world.others_write(3)()
    world.cell.write("two")
    assert world.value() == "two"


@pytest.mark.parametrize("before", [None, 7])
def test_a_write_of_none_is_a_write(world: World, before: int | None) -> None:
    if before is not None:
        world.cell.write(before)
    assert world.cell.write(None).value is None
    assert world.value() is None


def test_a_newer_token_keeps_older_ones_out(world: World) -> None:
    """F12: the holder that slept through its TTL changes nothing."""
    world.cell.write("by 1", lease=T1)
    world.other.write("by 2", lease=T2)
    with pytest.raises(LeaseLost):
        world.cell.write("late", lease=T1)
    assert (world.value(), world.fence()) == ("by 2", T2)
    world.other.write("by 2 again", lease=T2)
    world.other.write("by 3", lease=T3)
    assert world.fence() == T3


def test_the_token_is_compared_in_the_swap_that_writes(world: World) -> None:
    """The newer token writes between the old holder's look and its put."""
    world.cell.write("by 1", lease=T1)
    world.store.puts.append(then(refused_409, lambda: world.other.write("by 2", lease=T2)))
    with pytest.raises(LeaseLost):
        world.cell.write("late", lease=T1)
    assert world.value() == "by 2"


def test_a_late_copy_of_an_older_tokens_write_cannot_land(world: World) -> None:
    world.cell.write("by 1", lease=T1)
    pending: list[Any] = []
    world.store.puts.extend([late(pending)])
    world.store.gets.append(fails(Unavailable("cut off")))
    with pytest.raises(OutcomeUnknown):
        world.cell.write("late", lease=T1)
    world.other.write("by 2", lease=T2)
    with pytest.raises(Conflict):
        pending[0]()
    assert world.value() == "by 2"


def test_a_write_without_a_lease_keeps_the_fence(world: World) -> None:
    """Counterexample 6."""
    world.cell.write("by 2", lease=T2)
    world.other.write("by nobody")
    assert world.fence() == T2
    with pytest.raises(LeaseLost):
        world.cell.write("late", lease=T1)


def test_a_swap_and_an_update_keep_the_fence(world: World) -> None:
    seen = world.cell.write("by 2", lease=T2)
    world.cell.swap(seen, 7)
    assert world.fence() == T2
    world.other.update(plus(1))
    assert (world.value(), world.fence()) == (8, T2)


def test_another_locks_lease_is_refused(world: World) -> None:
    """Counterexample 7."""
    world.cell.write("by a", lease=T2)
    with pytest.raises(Invalid, match="guarded by"):
        world.other.write("by b", lease=Fence("locks/user/b.lock", 99))
    assert world.value() == "by a"


def test_the_first_lease_puts_up_the_fence(world: World) -> None:
    world.other.write("free for all")
    world.cell.write("by 1", lease=T1)
    assert world.fence() == T1


def test_a_write_without_contention_never_sleeps(world: World) -> None:
    for n in range(5):
        world.cell.write(n)
    assert world.runtime.slept == []


def test_an_update_with_a_lease_is_fenced_like_a_write(world: World) -> None:
    """A read-modify-write under a lock: the newer token's addition is not lost to an older one's."""
    world.cell.update(lambda n: (n or 0) + 1, lease=T1)
    world.other.update(lambda n: (n or 0) + 1, lease=T2)
    with pytest.raises(LeaseLost):
        world.cell.update(lambda n: (n or 0) + 1, lease=T1)
    assert (world.value(), world.fence()) == (2, T2)

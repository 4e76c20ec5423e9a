"""How a lease is kept, checked, lost and given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lease.world import TTL_S, Process, World, won
from limpet.kernel.errors import Conflict, LeaseLost, OutcomeUnknown, Unavailable
from limpet.kernel.lease import Lease, State
from limpet.kernel.lease.decide import look_interval_s
from support.stores import Fault, fails, late, lost_reply, lost_request, own_conflict, refused_409, then, unavailable


class Holder:
    """A process that has the lock."""

    def __init__(self, world: World) -> None:
        self.process = world.process("a")
        self.lease = won(self.process.lock().try_acquire())

    def requests(self, act: Callable[[], object]) -> dict[str, int]:
        with self.process.store.measure() as cost:
            act()
        return cost.requests

    def cut_off(self, fault: Fault, act: Callable[[], object]) -> None:
        """The put of `act` meets `fault`, and then nothing can be read: its outcome is unknown."""
        self.process.store.puts.append(fault)
        self.process.store.gets.append(fails(Unavailable("cut off")))
        with pytest.raises(OutcomeUnknown):
            act()


@pytest.fixture
def holder(world: World) -> Holder:
    return Holder(world)


def taken_over(world: World) -> Process:
    """Somebody breaks the lock, and another takes it, while the holder believes in its lease."""
    b = world.process("b")
    b.lock().break_()
    won(b.lock().try_acquire())
    return b


# ---- time ----


def test_a_holder_that_slept_reads_whose_the_lease_is(world: World, holder: Holder) -> None:
    world.time.sleep(look_interval_s(TTL_S) - 0.01)
    assert holder.requests(holder.lease.check_held) == {}
    world.time.sleep(0.01)
    assert holder.requests(holder.lease.check_held) == {"get": 1}
    world.time.sleep(10 * TTL_S)
    assert holder.requests(holder.lease.check_held) == {"get": 1}, "nobody has taken it"
    taken_over(world)
    with pytest.raises(LeaseLost, match="ran out, and is no longer ours"):
        holder.lease.check_held()
    assert holder.lease.lost


def test_a_lease_lasts_its_ttl_on_our_own_clock(world: World, holder: Holder) -> None:
    world.time.sleep(TTL_S - 0.01)
    holder.lease.check()
    assert holder.lease.valid_for_s() == pytest.approx(0.01)
    world.time.sleep(0.01)
    assert holder.lease.lost
    with pytest.raises(LeaseLost, match="ran out without a renewal"):
        holder.lease.check()


def test_a_check_costs_nothing(holder: Holder) -> None:
    assert holder.requests(holder.lease.check) == {}


def slowly(world: World, seconds: float) -> Fault:
    def fault(send: Callable[[], Any]) -> Any:
        world.time.sleep(seconds)
        return send()

    return fault


def test_a_lease_counts_from_the_sending_not_from_the_answer(world: World) -> None:
    a = world.process("a")
    a.store.puts.append(slowly(world, 12))
    lease = won(a.lock().try_acquire())
    assert lease.valid_for_s() == TTL_S - 12
    a.store.puts.append(slowly(world, 7))
    lease.renew()
    assert lease.valid_for_s() == TTL_S - 7


def test_an_answer_that_comes_after_the_end_gives_a_lease_that_is_over(world: World) -> None:
    a = world.process("a")
    a.store.puts.append(slowly(world, TTL_S))
    assert won(a.lock().try_acquire()).lost


def test_renewing_keeps_it(world: World, holder: Holder) -> None:
    for _ in range(10):
        world.time.sleep(TTL_S - 1)
        holder.lease.renew()
        assert holder.lease.valid_for_s() == TTL_S
    assert world.facts() == (State.HELD, 1, "a")


@pytest.mark.parametrize("act", ["renew", "release"])
def test_what_ran_out_is_not_touched_again(world: World, holder: Holder, act: str) -> None:
    world.time.sleep(TTL_S)
    with holder.process.store.measure() as cost, pytest.raises(LeaseLost):
        getattr(holder.lease, act)()
    assert cost.total() == 0


def test_progress_is_remembered(world: World, holder: Holder) -> None:
    world.time.sleep(5)
    assert holder.lease.stalled_for_s() == 5
    holder.lease.progress()
    assert holder.lease.stalled_for_s() == 0


# ---- renew ----


@pytest.mark.parametrize("fault", [lost_reply, own_conflict, lost_request, refused_409])
def test_an_unclear_renewal_is_settled(world: World, holder: Holder, fault: Fault) -> None:
    world.time.sleep(10)
    holder.process.store.puts.append(fault)
    holder.lease.renew()
    holder.lease.renew()
    assert world.facts() == (State.HELD, 1, "a")


@pytest.mark.parametrize("fault", [lost_reply, lost_request])
def test_an_unknown_renewal_may_be_tried_again(world: World, holder: Holder, fault: Fault) -> None:
    world.time.sleep(10)
    holder.cut_off(fault, holder.lease.renew)
    assert holder.lease.valid_for_s() == TTL_S - 10, "an unknown renewal renews nothing"
    assert holder.requests(holder.lease.renew) == {"get": 1, "put": 1}
    assert holder.lease.valid_for_s() == TTL_S
    assert holder.requests(holder.lease.renew) == {"put": 1}


def test_a_renewal_that_was_not_sent_may_be_tried_again(world: World, holder: Holder) -> None:
    holder.process.store.puts.append(unavailable)
    with pytest.raises(Unavailable):
        holder.lease.renew()
    assert holder.requests(holder.lease.renew) == {"put": 1}


def test_a_renewal_that_lands_late_does_not_cost_the_lease(world: World, holder: Holder) -> None:
    """Renewal 1 is under way and unknown; renewal 2 reads the old version; 1 lands; 2 is refused."""
    pending: list[Callable[[], Any]] = []
    holder.cut_off(late(pending), holder.lease.renew)

    def overtaken(send: Callable[[], Any]) -> Any:
        pending[0]()
        return send()

    holder.process.store.puts.append(overtaken)
    holder.lease.renew()
    assert not holder.lease.lost


def test_a_renewal_of_what_others_took_is_the_end(world: World, holder: Holder) -> None:
    taken_over(world)
    with pytest.raises(LeaseLost, match="taken from token 1"):
        holder.lease.renew()
    assert holder.lease.lost
    with holder.process.store.measure() as cost:
        for act in (holder.lease.check, holder.lease.renew, holder.lease.release):
            with pytest.raises(LeaseLost):
                act()
    assert cost.total() == 0
    assert world.facts() == (State.HELD, 2, "b")


@pytest.mark.parametrize("fault", [lost_reply, own_conflict])
def test_a_renewal_found_only_in_the_ring_is_the_end(world: World, holder: Holder, fault: Fault) -> None:
    holder.process.store.puts.append(then(fault, lambda: taken_over(world)))
    with pytest.raises(LeaseLost):
        holder.lease.renew()
    assert world.facts() == (State.HELD, 2, "b")


@pytest.mark.parametrize("fault", [lost_reply, lost_request])
def test_an_unknown_renewal_and_a_takeover_is_the_end(world: World, holder: Holder, fault: Fault) -> None:
    holder.cut_off(fault, holder.lease.renew)
    taken_over(world)
    with pytest.raises(LeaseLost, match="taken from token 1"):
        holder.lease.renew()


def test_an_unknown_renewal_of_a_broken_lock_does_not_take_it_back(world: World, holder: Holder) -> None:
    """The token is still ours, but the lock is free: to swap it to held would be to take it without a new token."""
    holder.cut_off(lost_request, holder.lease.renew)
    world.process("admin").lock().break_()
    with pytest.raises(LeaseLost):
        holder.lease.renew()
    assert world.facts() == (State.FREE, 1, "a")


# ---- release ----


def test_a_release_frees_the_lock_at_once(world: World, holder: Holder) -> None:
    holder.lease.release()
    assert world.facts() == (State.FREE, 1, "a")
    assert won(world.process("b").lock().try_acquire()).token == 2


def test_a_release_is_the_end_and_may_be_repeated(world: World, holder: Holder) -> None:
    holder.lease.release()
    won(world.process("b").lock().try_acquire())
    assert holder.requests(holder.lease.release) == {}
    for act in (holder.lease.check, holder.lease.renew):
        with pytest.raises(LeaseLost, match="was released"):
            act()
    assert world.facts() == (State.HELD, 2, "b")


@pytest.mark.parametrize("fault", [lost_reply, own_conflict, lost_request, refused_409])
def test_an_unclear_release_is_settled(world: World, holder: Holder, fault: Fault) -> None:
    holder.process.store.puts.append(fault)
    holder.lease.release()
    assert world.facts() == (State.FREE, 1, "a")


def test_a_release_never_frees_a_successors_lock(world: World, holder: Holder) -> None:
    """F9."""
    taken_over(world)
    with pytest.raises(LeaseLost):
        holder.lease.release()
    assert world.facts() == (State.HELD, 2, "b")


def test_a_release_of_what_others_broke_is_a_loss(world: World, holder: Holder) -> None:
    """The lock is free and the token still ours, but not by our doing: somebody may have had it meanwhile."""
    world.process("admin").lock().break_()
    with pytest.raises(LeaseLost):
        holder.lease.release()
    assert world.facts() == (State.FREE, 1, "a")


def test_an_unknown_release_and_a_takeover_is_not_called_a_release(world: World, holder: Holder) -> None:
    holder.cut_off(lost_request, holder.lease.release)
    taken_over(world)
    with pytest.raises(LeaseLost):
        holder.lease.release()
    assert world.facts() == (State.HELD, 2, "b")


def test_a_release_that_lands_late_never_frees_a_successors_lock(world: World, holder: Holder) -> None:
    pending: list[Callable[[], Any]] = []
    holder.cut_off(late(pending), holder.lease.release)
    taken_over(world)
    with pytest.raises(Conflict):
        pending[0]()
    assert world.facts() == (State.HELD, 2, "b")


@pytest.mark.parametrize("fault", [lost_reply, own_conflict])
def test_a_release_whose_answer_is_lost_to_a_quick_successor_is_a_release(
    world: World, holder: Holder, fault: Fault
) -> None:
    """It landed, the next one took the free lock at once, then we read back: the work was done under our lease."""
    holder.process.store.puts.append(then(fault, lambda: won(world.process("b").lock().try_acquire())))
    holder.lease.release()


def test_an_unknown_release_may_be_repeated(world: World, holder: Holder) -> None:
    holder.cut_off(lost_reply, holder.lease.release)
    holder.lease.release()


# ---- forks ----


@pytest.mark.parametrize("act", ["check", "renew", "release"])
def test_a_forked_child_does_not_own_its_parents_lease(world: World, holder: Holder, act: str) -> None:
    """F17: the runtime gives a forked child another owner."""
    holder.process.runtime.owner = "child"
    with holder.process.store.measure() as cost, pytest.raises(LeaseLost, match="forked from"):
        getattr(holder.lease, act)()
    assert cost.total() == 0
    assert holder.lease.lost
    assert world.facts() == (State.HELD, 1, "a")


def test_a_lease_carries_what_a_cell_compares(holder: Holder) -> None:
    lease: Lease = holder.lease
    assert (lease.lock, lease.token) == ("locks/user/backup.lock", 1)

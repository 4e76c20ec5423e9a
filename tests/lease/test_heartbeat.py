"""The renewing thread: when it renews, retries, gives up and tells (F16). On a clock moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lease.world import TTL_S, World, won
from limpet.kernel.errors import Denied
from limpet.kernel.lease import Renewer, State
from support.stores import Fault, lost_request, unavailable

EVERY_S = TTL_S / 3
RETRY_S = TTL_S / 12


class Beating:
    """A holder with a renewer, and a note of when it was told of the loss."""

    def __init__(self, world: World, *, stall_s: float | None = None) -> None:
        self.world = world
        self.process = world.process("a")
        self.lease = won(self.process.lock().try_acquire())
        self.started_s = world.time.now_s
        self.lost_at_s: list[float] = []
        self.sent_at_s: list[float] = []
        self.process.store.sent.clear()
        self.renewer = Renewer.of_lease(self.lease, self.process.runtime, stall_s=stall_s, on_lost=self.on_lost)

    def on_lost(self) -> None:
        self.lost_at_s.append(self.world.time.now_s - self.started_s)

    def renewals(self) -> int:
        return len(self.process.store.sent)

    def network(self, fault: Fault) -> None:
        """From now on every put meets `fault`; note when."""

        def noted(send: Callable[[], Any]) -> Any:
            self.sent_at_s.append(self.world.time.now_s - self.started_s)
            return fault(send)

        self.process.store.puts.extend([noted] * 100)


def test_it_renews_three_times_a_ttl(world: World) -> None:
    beating = Beating(world)
    world.time.sleep(10 * TTL_S + 1)
    assert beating.renewals() == 30
    assert not beating.lease.lost
    assert beating.lost_at_s == []
    assert world.facts() == (State.HELD, 1, "a")
    beating.renewer.stop()


def test_it_stops_when_told_to(world: World) -> None:
    beating = Beating(world)
    world.time.sleep(EVERY_S + 1)
    beating.renewer.stop()
    world.time.sleep(10 * TTL_S)
    assert beating.renewals() == 1
    assert beating.lost_at_s == [], "to stop it is not to lose the lease"


def test_stopping_does_not_wait_for_the_next_renewal(world: World) -> None:
    beating = Beating(world)
    world.time.sleep(1)
    beating.renewer.stop()
    assert world.time.now_s - beating.started_s < 2


def denied(send: Callable[[], Any]) -> Any:
    raise Denied("the key was revoked")


@pytest.mark.parametrize("fault", [unavailable, denied])
def test_a_failed_renewal_is_tried_again_until_the_lease_runs_out(world: World, fault: Fault) -> None:
    beating = Beating(world)
    beating.network(fault)
    world.time.sleep(10 * TTL_S)
    assert beating.sent_at_s == pytest.approx([EVERY_S + n * RETRY_S for n in range(8)])
    assert beating.lost_at_s == pytest.approx([TTL_S])
    assert beating.lease.lost


def test_an_unknown_renewal_is_tried_again_too(world: World) -> None:
    beating = Beating(world)
    beating.network(lost_request)
    world.time.sleep(10 * TTL_S)
    assert len(beating.sent_at_s) >= 3 * 5
    assert max(beating.sent_at_s) < TTL_S
    assert beating.lost_at_s == pytest.approx([TTL_S], abs=0.5)


def test_a_renewal_that_works_in_time_saves_the_lease(world: World) -> None:
    beating = Beating(world)
    beating.process.store.puts.extend([unavailable] * 7)
    world.time.sleep(10 * TTL_S)
    assert not beating.lease.lost
    assert beating.lost_at_s == []
    beating.renewer.stop()


def test_the_loss_is_told_once_at_the_next_renewal(world: World) -> None:
    beating = Beating(world)
    world.time.sleep(EVERY_S + 1)
    b = world.process("b")
    b.lock().break_()
    won(b.lock().try_acquire())
    world.time.sleep(10 * TTL_S)
    assert beating.lost_at_s == pytest.approx([2 * EVERY_S])
    assert world.facts() == (State.HELD, 2, "b")


def test_work_that_stands_still_is_no_longer_kept(world: World) -> None:
    beating = Beating(world, stall_s=25)
    world.time.sleep(10 * TTL_S)
    assert beating.renewals() == 2, "at 10 and 20 s; at 30 s the work has stood still for 25 s"
    assert beating.lost_at_s == pytest.approx([20 + TTL_S])


def test_work_that_moves_on_is_kept(world: World) -> None:
    beating = Beating(world, stall_s=25)
    for n in range(1, 30):
        world.time.at(20.0 * n, beating.lease.progress)
    world.time.sleep(500)
    assert not beating.lease.lost
    beating.renewer.stop()


def test_nobody_need_be_told(world: World) -> None:
    process = world.process("a")
    lease = won(process.lock().try_acquire())
    renewer = Renewer.of_lease(lease, process.runtime)
    process.store.puts.extend([unavailable] * 100)
    world.time.sleep(2 * TTL_S)
    assert lease.lost
    renewer.stop()


def test_nobody_is_told_after_the_stop(world: World) -> None:
    """The whole process slept past the end of its lease; the one who stops the renewing finds out by itself."""
    beating = Beating(world)
    world.time.sleep(1)
    world.time.now_s += 2 * TTL_S
    beating.renewer.stop()
    assert beating.lease.lost
    assert beating.lost_at_s == []


def test_a_lease_that_was_given_back_is_not_a_loss(world: World) -> None:
    beating = Beating(world)
    world.time.sleep(1)
    beating.lease.release()
    world.time.sleep(2 * TTL_S)
    assert beating.lost_at_s == []
